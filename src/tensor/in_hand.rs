//! What devices have in hand, for the tests of this library: after each trial it is nothing.
//!
//! Looks at every device of the process, from outside; takes the locks that it has to.

use super::device::Device;
use crate::concurrent::live_counts::{self, NODES, WAKERS};
use crate::engine::port::{self, Port};
use crate::host::simulated;
use crate::sync::plain::Ordering::Relaxed;

/// What one device has in hand at one moment.
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
                // Of the machine's table.
                ("entries", table.entries),
                // `waitall`s that have not ended, and those who wait for the queue or for a permit.
                ("waiters", table.markers + waiting),
                ("permits", permits),
                // Futures of users' that are to bring values and have not been dropped.
                ("sources", port.sources.held()),
            ],
        }
    }

    /// The device's name.
    pub fn name(&self) -> &'static str {
        &self.port.profile.name
    }

    /// A GPU that is lost: what it had goes with the process, as no call of the driver's succeeds
    /// any more.
    pub fn is_lost(&self) -> bool {
        !self.port.profile.in_memory && self.port.life.is_ended() && !self.port.life.is_shut_down()
    }

    /// A handle on it.
    pub fn device(&self) -> Device {
        Device::of(self.port)
    }
}

/// Every device of the process.
pub fn devices() -> Vec<InHand> {
    port::all().into_iter().map(InHand::of).collect()
}

/// Values of all devices, and wakers that wait for one: counted where debug assertions are on.
pub fn values_and_wakers() -> [(&'static str, usize); 2] {
    [("values", live_counts::count(NODES)), ("wakers", live_counts::count(WAKERS))]
}

/// Lets everything happen on those simulated devices that are run by hand.
pub fn drive() {
    for port in port::all() {
        while simulated::step(port) {}
    }
}
