//! A simulated device, for tests of code that uses futensor, and of futensor itself.

use super::device::Device;
use crate::host::simulated::{self, SimOptions};
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

/// The controls of a simulated device that is run by hand.
///
/// ```
/// use futensor::{Device, sim::SimOptions};
/// let (device, simulation) = Device::simulated(SimOptions::new(42));
/// let y = device.ones([2]) + 1.0;
/// assert!(!y.is_ready());                          // nothing runs by itself
/// let values = simulation.block_on(y.to_vec::<f32>()).expect("it ends");
/// assert_eq!(values.unwrap(), [2.0, 2.0]);
/// ```
#[derive(Clone, Debug)]
pub struct Simulation(Device);

impl Device {
    /// A simulated device: the real engine with simulated threads and time. Values are
    /// computed.
    pub fn simulated(options: SimOptions) -> (Device, Simulation) {
        let device = Device::of(simulated::open(&options));
        (device.clone(), Simulation(device))
    }
}

impl Simulation {
    /// Runs one event; false if there is none.
    pub fn step(&self) -> bool {
        simulated::step(self.0.port)
    }

    /// Runs all events until none is left; returns their number.
    pub fn run(&self) -> usize {
        let mut events = 0;
        while self.step() {
            events += 1;
        }
        events
    }

    /// Polls a future and runs events in between. `None` if the future is still pending when no
    /// event is left: it hangs.
    pub fn block_on<F: Future>(&self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle = 0;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            // A poll that yields wakes itself: one more poll is not a hang.
            idle = if self.step() { 0 } else { idle + 1 };
            if idle > 2 {
                return None;
            }
        }
    }
}
