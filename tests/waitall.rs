//! The barrier over every device of the process, in a process of its own.

mod support;

use futensor::Device;
use futensor::custom::{Refusal, custom_fn};
use futures::executor::block_on;
use futures::poll;
use support::{Deadline, Gate, Kind, same_meta};

// One test, so that no other's devices are joined.
#[test]
fn waitall_joins_every_device_and_returns_the_errors_of_each() {
    let _deadline = Deadline::of("waitall_joins_every_device_and_returns_the_errors_of_each");
    block_on(async {
        futensor::waitall().await.unwrap();

        let devices = [Device::cpu(), Kind::Cpu.device(), Kind::CpuOneThread.device()];
        let gates = [Gate::new(), Gate::new(), Gate::new()];
        for (device, gate) in devices.iter().zip(&gates) {
            gate.op(&device.ones([2])).detach();
            gate.wait_entered(1);
        }
        let mut all = futensor::waitall();
        // Of devices and of work that come later it knows nothing.
        let later = Kind::Cpu.device();
        let shut = Gate::new();
        let held = shut.op(&later.ones([2]));
        shut.wait_entered(1);
        for gate in &gates {
            assert!(poll!(&mut all).is_pending());
            gate.open();
        }
        all.await.unwrap();
        assert!(!held.is_ready());
        shut.open();
        held.await.unwrap();

        for (device, words) in devices.iter().zip(["one", "two", "three"]) {
            custom_fn("refuse", &[&device.ones([2])], same_meta, move |_| {
                Err(Refusal::kernel(words))
            })
            .detach();
        }
        let error = futensor::waitall().await.unwrap_err();
        let mut words: Vec<&str> = error.errors().iter().map(|e| e.message()).collect();
        words.sort();
        assert_eq!(words, ["one", "three", "two"]);
        futensor::waitall().await.unwrap();
        for device in &devices {
            device.waitall().await.unwrap();
        }

        // A device that has ended keeps nobody waiting.
        later.shutdown().await.unwrap();
        futensor::waitall().await.unwrap();
    });
}
