//! The Rust face of the controls, for test processes.
//!
//! The simulated driver is a library of its own in the process, found by the loader as
//! `libcuda.so.1`; the copy of this crate that a test links is only this client. Functions that
//! count ("the nth") count from the call on, beginning with 1; 0 takes the order back.

use crate::checks::report::Stats;
use crate::status::Status;
use std::ffi::{CString, c_char};

macro_rules! controls {
    ($($name:ident($($Type:ty),*) $(-> $Result:ty)?;)*) => {
        #[derive(Clone, Copy)]
        struct Controls { $($name: extern "C" fn($($Type),*) $(-> $Result)?),* }

        fn find() -> Result<Controls, String> {
            // SAFETY: loading a library that cudarc is about to load anyway; symbols of these names
            // exist in the simulated driver alone, built from this same crate, with these types.
            unsafe {
                let how = libc::RTLD_NOW | libc::RTLD_LOCAL;
                let library = libc::dlopen(c"libcuda.so.1".as_ptr(), how);
                if library.is_null() {
                    return Err("no libcuda.so.1".to_owned());
                }
                $(
                    let name = concat!(stringify!($name), "\0");
                    let $name = libc::dlsym(library, name.as_ptr().cast());
                    if $name.is_null() {
                        return Err("libcuda.so.1 is not the simulated driver".to_owned());
                    }
                    let $name = std::mem::transmute::<
                        *mut libc::c_void,
                        extern "C" fn($($Type),*) $(-> $Result)?,
                    >($name);
                )*
                Ok(Controls { $($name),* })
            }
        }
    };
}

controls! {
    futsim_probe(*mut c_char, usize) -> i32;
    futsim_reset(u64, u32) -> Status;
    futsim_seed() -> u64;
    futsim_pause(i32) -> Status;
    futsim_lazy(i32) -> Status;
    futsim_step(u64) -> u64;
    futsim_runnable() -> u64;
    futsim_pending() -> u64;
    futsim_memory(i32, usize) -> Status;
    futsim_fail_allocation(u64) -> Status;
    futsim_fail_launch(u64, Status) -> Status;
    futsim_fault_launch(u64, Status) -> Status;
    futsim_hang_launch(u64) -> Status;
    futsim_kernel_limit(u64) -> Status;
    futsim_release_hangs() -> Status;
    futsim_drop_wait(u64) -> Status;
    futsim_lose_device(i32, Status) -> Status;
    futsim_stall_stream(usize, i32) -> Status;
    futsim_no_peers(i32) -> Status;
    futsim_silent_peers(i32) -> Status;
    futsim_threads_apart(i32) -> Status;
    futsim_watch_shared(i32) -> Status;
    futsim_reuse(i32) -> Status;
    futsim_forbid_blocking(i32);
    futsim_stats(*mut Stats) -> Status;
    futsim_report_count(*const c_char) -> u64;
    futsim_report(*mut c_char, usize) -> usize;
    futsim_ranges(*mut c_char, usize) -> usize;
    futsim_report_clear() -> Status;
    futsim_check() -> u64;
}

/// The simulated machine of this process.
#[derive(Clone, Copy)]
pub struct Simulator(Controls);

impl Simulator {
    /// Finds the simulated driver in this process.
    ///
    /// # Errors
    /// Where `libcuda.so.1` is missing, or is a real driver.
    pub fn attach() -> Result<Simulator, String> {
        find().map(Simulator)
    }

    /// Whether kernels can be compiled; why not, otherwise. Tests that need kernels are skipped
    /// then.
    pub fn can_compile(&self) -> Result<(), String> {
        let mut why = vec![0u8; 500];
        match (self.0.futsim_probe)(why.as_mut_ptr().cast(), why.len()) {
            0 => Ok(()),
            _ => Err(String::from_utf8_lossy(&why).trim_end_matches('\0').to_owned()),
        }
    }

    /// A machine anew: this many devices, no contexts, no faults, no reports, counters at 0.
    /// Clients must have let go of everything they made before.
    pub fn reset(&self, seed: u64, devices: u32) {
        (self.0.futsim_reset)(seed, devices);
    }

    /// The seed that streams are picked by.
    pub fn seed(&self) -> u64 {
        (self.0.futsim_seed)()
    }

    /// Nothing runs until `resume`, but by `step`. Calls that wait then block for ever unless
    /// another thread steps.
    pub fn pause(&self) {
        (self.0.futsim_pause)(1);
    }

    /// Work runs again by itself.
    pub fn resume(&self) {
        (self.0.futsim_pause)(0);
    }

    /// Lazy mode: work runs only while a call waits for some, and one item at each query of an
    /// event or a stream. With one client thread an execution is then a function of the seed.
    pub fn lazy(&self, on: bool) {
        (self.0.futsim_lazy)(i32::from(on));
    }

    /// Runs up to `n` items, paused or not, and says how many ran.
    pub fn step(&self, n: u64) -> u64 {
        (self.0.futsim_step)(n)
    }

    /// How many streams have an item that could run now.
    pub fn runnable(&self) -> u64 {
        (self.0.futsim_runnable)()
    }

    /// How many items are queued or running.
    pub fn pending(&self) -> u64 {
        (self.0.futsim_pending)()
    }

    /// Bytes of memory of a device; allocations beyond fail.
    pub fn set_memory(&self, device: i32, bytes: usize) {
        (self.0.futsim_memory)(device, bytes);
    }

    /// The nth allocation, of a device or pinned, answers "out of memory".
    pub fn fail_allocation(&self, n: u64) {
        (self.0.futsim_fail_allocation)(n);
    }

    /// The nth launch is refused with this code at the call; the context goes on.
    pub fn fail_launch(&self, n: u64, status: Status) {
        (self.0.futsim_fail_launch)(n, status);
    }

    /// The nth launch faults with this code when it runs: every later call in its context answers
    /// the code.
    pub fn fault_launch(&self, n: u64, status: Status) {
        (self.0.futsim_fault_launch)(n, status);
    }

    /// The nth launch never ends: its stream stands still.
    pub fn hang_launch(&self, n: u64) {
        (self.0.futsim_hang_launch)(n);
    }

    /// Kernels that take longer, in milliseconds of processor time, end with `LAUNCH_TIMEOUT` (702)
    /// and a report. 0 for no limit; 60 s unless told otherwise. Kept over a reset.
    pub fn limit_kernels(&self, milliseconds: u64) {
        (self.0.futsim_kernel_limit)(milliseconds);
    }

    /// What hangs goes on.
    pub fn release_hangs(&self) {
        (self.0.futsim_release_hangs)();
    }

    /// The nth `cuStreamWaitEvent` succeeds and orders nothing.
    pub fn drop_wait(&self, n: u64) {
        (self.0.futsim_drop_wait)(n);
    }

    /// The device is lost, now: all calls on it answer this code.
    pub fn lose_device(&self, device: i32, status: Status) {
        (self.0.futsim_lose_device)(device, status);
    }

    /// The stream with this handle does not move, or moves again.
    pub fn stall_stream(&self, stream: usize, on: bool) {
        (self.0.futsim_stall_stream)(stream, i32::from(on));
    }

    /// Devices cannot, or can, reach each other's memory.
    pub fn deny_peers(&self, on: bool) {
        (self.0.futsim_no_peers)(i32::from(on));
    }

    /// Copies between devices succeed and bring nothing, or bring what they should again.
    pub fn silence_peers(&self, on: bool) {
        (self.0.futsim_silent_peers)(i32::from(on));
    }

    /// For the race check: each host thread is a party of its own, so that what one has waited for
    /// orders nothing for another. By default they are one party, as the locks between them are not
    /// seen.
    pub fn threads_apart(&self, on: bool) {
        (self.0.futsim_threads_apart)(i32::from(on));
    }

    /// Whether pools that have a threshold give out again what is freed from now on, by the
    /// driver's rules.
    pub fn reuse(&self, on: bool) {
        (self.0.futsim_reuse)(i32::from(on));
    }

    /// Whether kernels that are loaded from now on are watched for races in shared memory (kind
    /// `race`).
    pub fn watch_shared(&self, on: bool) {
        (self.0.futsim_watch_shared)(i32::from(on));
    }

    /// Reports calls that may block on the calling thread (kind `blocking`).
    pub fn forbid_blocking(&self, on: bool) {
        (self.0.futsim_forbid_blocking)(i32::from(on));
    }

    /// The counters.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        (self.0.futsim_stats)(&mut stats);
        stats
    }

    /// How many findings there are of a kind: `race`, `use after free`, `overrun`, `leak`,
    /// `misuse`, `kernel`, `blocking`, `stall`, `internal`.
    pub fn count(&self, kind: &str) -> u64 {
        let kind = CString::new(kind).unwrap_or_default();
        (self.0.futsim_report_count)(kind.as_ptr())
    }

    /// All findings, one a line; empty where there are none.
    pub fn report(&self) -> String {
        let room = (self.0.futsim_report)(std::ptr::null_mut(), 0) + 1;
        let mut text = vec![0u8; room];
        (self.0.futsim_report)(text.as_mut_ptr().cast(), room);
        String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
    }

    /// What the simulated profiler saw since the last reset, once a client has asked for it: lines
    /// `thread push text`, `thread pop` and `thread work label`.
    pub fn ranges(&self) -> Vec<String> {
        let room = (self.0.futsim_ranges)(std::ptr::null_mut(), 0) + 1;
        let mut text = vec![0u8; room];
        (self.0.futsim_ranges)(text.as_mut_ptr().cast(), room);
        String::from_utf8_lossy(&text).trim_end_matches('\0').lines().map(str::to_owned).collect()
    }

    /// Forgets the findings.
    pub fn clear_report(&self) {
        (self.0.futsim_report_clear)();
    }

    /// Reports what has not been given back (`leak`) and writes beside live allocations
    /// (`overrun`), and says how many findings that made. To be called when the streams have run.
    pub fn check(&self) -> u64 {
        (self.0.futsim_check)()
    }
}
