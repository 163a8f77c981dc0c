//! Faults on demand: which call or which item is to fail, and how. Counting starts at the last
//! reset.

use crate::status::{ILLEGAL_ADDRESS, LAUNCH_OUT_OF_RESOURCES, OUT_OF_MEMORY, Outcome, Status};

/// A fault of the simulated device. It ends the context it happens in.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What every later call answers.
    pub status: Status,
    /// What happened, for the report.
    pub text: String,
}

/// The faults that are asked for. Numbers count from 1; 0 means never.
pub struct Faults {
    allocation: u64,
    allocations_seen: u64,
    launch_call: (u64, Status),
    launch_run: (u64, Status),
    hang: u64,
    launches_seen: u64,
    wait: u64,
    waits_seen: u64,
    /// Hung work goes on.
    pub hangs_released: bool,
    /// Devices cannot reach each other's memory.
    pub no_peers: bool,
    /// Copies between devices bring nothing.
    pub silent_peers: bool,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            allocation: 0,
            allocations_seen: 0,
            launch_call: (0, LAUNCH_OUT_OF_RESOURCES),
            launch_run: (0, ILLEGAL_ADDRESS),
            hang: 0,
            launches_seen: 0,
            wait: 0,
            waits_seen: 0,
            hangs_released: false,
            no_peers: false,
            silent_peers: false,
        }
    }
}

/// What a launch is to suffer.
#[derive(Clone, Copy, Default)]
pub struct LaunchFate {
    /// It runs into this fault, which ends its context.
    pub fault: Option<Status>,
    /// It never ends.
    pub hang: bool,
}

impl Faults {
    /// The `n`th allocation from now on is refused.
    pub fn fail_allocation(&mut self, n: u64) {
        self.allocation = if n == 0 { 0 } else { self.allocations_seen + n };
    }
    /// The `n`th launch from now on is refused at the call.
    pub fn fail_launch_call(&mut self, n: u64, status: Status) {
        self.launch_call = (if n == 0 { 0 } else { self.launches_seen + n }, status);
    }
    /// The `n`th launch from now on faults when it runs.
    pub fn fault_launch(&mut self, n: u64, status: Status) {
        self.launch_run = (if n == 0 { 0 } else { self.launches_seen + n }, status);
    }
    /// The `n`th launch from now on never ends.
    pub fn hang_launch(&mut self, n: u64) {
        self.hang = if n == 0 { 0 } else { self.launches_seen + n };
        self.hangs_released = false;
    }
    /// The `n`th `cuStreamWaitEvent` from now on succeeds and orders nothing.
    pub fn drop_wait(&mut self, n: u64) {
        self.wait = if n == 0 { 0 } else { self.waits_seen + n };
    }

    /// Counts an allocation.
    pub fn on_allocation(&mut self) -> Outcome {
        self.allocations_seen += 1;
        if self.allocations_seen == self.allocation { Err(OUT_OF_MEMORY) } else { Ok(()) }
    }
    /// Counts a launch (a kernel or a library call).
    pub fn on_launch(&mut self) -> Outcome<LaunchFate> {
        self.launches_seen += 1;
        let n = self.launches_seen;
        if n == self.launch_call.0 {
            return Err(self.launch_call.1);
        }
        Ok(LaunchFate {
            fault: (n == self.launch_run.0).then_some(self.launch_run.1),
            hang: n == self.hang,
        })
    }
    /// Counts a wait; true where it is to be dropped.
    pub fn on_wait(&mut self) -> bool {
        self.waits_seen += 1;
        self.waits_seen == self.wait
    }
}
