//! Counts of the state that devices hold, for the tests of this library: after each trial they must
//! be 0.
//!
//! Inspects every device of the process from outside, and takes the necessary locks.

use super::device::Device;
use crate::concurrent::live_counts::{self, NODES, WAKERS};
use crate::engine::port::{self, Port};
use crate::host::simulated;
use crate::sync::plain::Ordering::Relaxed;

/// The state that one device holds at one moment.
#[derive(Clone, Copy, Debug)]
pub struct InHand {
    port: &'static Port,
    /// Each count under its name.
    pub counts: [(&'static str, usize); 8],
}

impl InHand {
    fn of(port: &'static Port) -> InHand {
        let ((queued, queued_bytes), table) = (port.pressure.queued(), port.runner.table_size());
        let (waiting, permits) = port.pressure.waiting();
        InHand {
            port,
            counts: [
                ("queued ops", queued),
                ("queued bytes", queued_bytes),
                ("steps in flight", port.counters.in_flight.load(Relaxed)),
                ("live bytes", port.memory.bytes().live),
                // Of the machine's task table.
                ("entries", table.entries),
                // Each `waitall` that has not ended, and each wait for the queue or for a permit.
                ("waiters", table.markers + waiting),
                ("permits", permits),
                // Users' futures that supply values and have not been dropped.
                ("sources", port.sources.held()),
            ],
        }
    }

    /// The device's name.
    pub fn name(&self) -> &'static str {
        &self.port.profile.name
    }

    /// True for a lost GPU: its state lives as long as the process, since the driver's calls fail.
    pub fn is_lost(&self) -> bool {
        !self.port.profile.in_memory && self.port.life.is_ended() && !self.port.life.is_shut_down()
    }

    /// A handle on the device.
    pub fn device(&self) -> Device {
        Device::of(self.port)
    }
}

/// Every device of the process.
pub fn devices() -> Vec<InHand> {
    port::all().into_iter().map(InHand::of).collect()
}

/// The number of values on all devices, and of wakers that wait for them; counted with debug
/// assertions only.
pub fn values_and_wakers() -> [(&'static str, usize); 2] {
    [("values", live_counts::count(NODES)), ("wakers", live_counts::count(WAKERS))]
}

/// Runs all events of simulated devices that are run by hand.
pub fn drive() {
    for port in port::all() {
        while simulated::step(port) {}
    }
}
