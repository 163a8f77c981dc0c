//! Page-locked memory of the user's, which the device reads and writes where it lies.

use super::support::{block_on, until};
use super::{Entry, device, entries};
use futensor::cuda::CudaOptions;
use futensor::{DType, Device, Element};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    entries![1, false;
        pinned_memory_is_read_where_it_lies
        pinned_memory_is_nobodys_while_it_is_copied
        pinned_memory_has_its_limits
        elements_come_to_pinned_memory_without_staging
        elements_of_every_type_and_lie_come_to_pinned_memory
        pinned_memory_is_nobodys_while_a_dropped_read_fills_it]
    .to_vec()
}

fn pinned_memory_is_read_where_it_lies(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(0)).unwrap();
    block_on(device.ones([3]) + 1.0).unwrap();
    let own = simulator.stats().live_pinned;
    // Of a few bytes, of some that go at once, and of 40 MB, which go in two pieces.
    for (n, pieces) in [(3, 1), (5000, 1), (10_000_001, 2)] {
        let once = |from: f32| {
            let mut rows = block_on(device.pinned::<f32>(n)).unwrap();
            assert_eq!(rows.len(), n);
            rows.iter_mut().enumerate().for_each(|(i, x)| *x = from + (i % 1000) as f32);
            let before = simulator.stats().copies;
            let x = block_on(device.from_pinned(rows, [n])).unwrap();
            let sum = block_on((x.narrow(0, n - 3, 3) * 1.0).to_vec::<f32>()).unwrap();
            assert!(sum.into_iter().eq((n - 3..n).map(|i| from + (i % 1000) as f32)));
            // And the three elements come back.
            assert_eq!(simulator.stats().copies - before, pieces + 1);
        };
        let locked = simulator.stats().live_pinned;
        (0..6).for_each(|k| once(k as f32));
        // Memory is used again, once the host has seen its copy end.
        assert!(simulator.stats().live_pinned <= locked + 3);
    }
    let staging = device.pools().into_iter().find(|pool| pool.name == "page-locked").unwrap();
    assert!(staging.peak <= 4096, "{staging:?}");
    // Other devices take it as well.
    let mut rows = block_on(device.pinned::<bool>(4)).unwrap();
    assert_eq!(*rows, [false; 4], "whatever was there before");
    rows[1] = true;
    let on_host = Device::cpu().from_pinned(rows, [2, 2]);
    assert_eq!(block_on(on_host.t().to_vec::<bool>()).unwrap(), [false, false, true, false]);
    drop(on_host);
    assert!(simulator.stats().live_pinned > own);
    until(|| {
        block_on(device.trim_wait()).unwrap();
        simulator.stats().live_pinned == own
    });
}

fn pinned_memory_is_nobodys_while_it_is_copied(simulator: &Simulator, _: u64) {
    let device = device(0);
    let n = 300_000;
    block_on((device.ones([n]) + 1.0).sum_all()).unwrap();
    let ask = || block_on(device.pinned::<f32>(n)).unwrap();
    let own = simulator.stats().live_pinned;
    let mut first = ask();
    first.fill(2.0);
    simulator.pause();
    let before = simulator.stats().copies;
    let x = device.from_pinned(first, [n]);
    let sum = (&x + 1.0).sum_all();
    sum.detach();
    until(|| simulator.stats().copies > before);
    // Its handle is gone, and its copy has not run.
    drop(x);
    let mut second = ask();
    assert_eq!(simulator.stats().live_pinned, own + 2);
    second.fill(5.0);
    simulator.resume();
    assert_eq!(block_on(sum.item::<f32>()).unwrap(), 3.0 * n as f32);
    // Nobody waits for this one, and nothing of it is lost.
    drop((second, device.pinned::<f32>(n)));
    until(|| {
        block_on(device.trim_wait()).unwrap();
        simulator.stats().live_pinned == own
    });
}

fn pinned_memory_has_its_limits(simulator: &Simulator, _: u64) {
    let device = device(0);
    block_on(device.ones([3]) + 1.0).unwrap();
    simulator.fail_allocation(1);
    let error = block_on(device.pinned::<f32>(1000)).unwrap_err();
    assert!(error.is_out_of_memory() && error.message().contains("4000 bytes"), "{error}");
    assert!(block_on(device.pinned::<f64>(usize::MAX)).unwrap_err().is_out_of_memory());
    assert!(block_on(device.pinned::<f32>(0)).unwrap().is_empty());
    let few = block_on(device.pinned::<f32>(4)).unwrap();
    assert!(device.from_pinned(few, [5]).error().unwrap().is_shape());
    assert_eq!(block_on((device.ones([3]) + 1.0).to_vec::<f32>()).unwrap(), [2.0; 3]);
}

fn elements_come_to_pinned_memory_without_staging(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().pinned_bytes(0)).unwrap();
    block_on(device.ones([3]) + 1.0).unwrap();
    let own = simulator.stats().live_pinned;
    // Of a few bytes, of some that go at once, of a chunk or more, and of 40 MB, which come in two
    // pieces.
    for (n, pieces) in [(3, 1), (5000, 1), (300_000, 1), (10_000_001, 2)] {
        let x = block_on(device.arange(0.0, n as f64, 1.0) + 1.0).unwrap();
        let mut buffer = block_on(device.pinned::<f32>(n)).unwrap();
        let at = buffer.as_ptr();
        for turn in 0..3 {
            let y = block_on(&x + turn as f32).unwrap();
            let before = simulator.stats().copies;
            buffer = block_on(y.to_pinned(buffer)).unwrap();
            assert_eq!(simulator.stats().copies - before, pieces);
            assert_eq!((buffer.as_ptr(), buffer.len()), (at, n), "the same memory");
            let found = |i: usize| buffer[i] == (i + 1 + turn) as f32;
            assert!((0..n).all(found), "{n} in turn {turn}");
        }
        // It goes on to the device from where it lies.
        let again = device.from_pinned(buffer, [n]);
        assert_eq!(block_on(again.max_all().item::<f32>()).unwrap(), (n + 2) as f32);
    }
    let staging = device.pools().into_iter().find(|pool| pool.name == "page-locked").unwrap();
    assert!(staging.peak <= 4096, "{staging:?}");
    until(|| {
        block_on(device.trim_wait()).unwrap();
        simulator.stats().live_pinned == own
    });
}

fn elements_of_every_type_and_lie_come_to_pinned_memory(simulator: &Simulator, _: u64) {
    fn check<T: Element>(device: &Device) {
        for n in [4, 40, 600] {
            let x = device.arange(0, (n * n) as i64, 1).to_dtype(DType::I32).remainder(120);
            let x = (x.reshape([n, n]) + 1).to_dtype(T::DTYPE);
            // As it is, not in row-major order, from its middle on, one element for all, none.
            let (middle, step) = (x.narrow(0, n / 2, n / 4), x.i((.., 1)));
            let lies = [x.clone(), x.t(), middle, step, x.i((1, 2)).expand([7, n])];
            let none = [x.narrow(1, 0, 0), device.full_dtype([n, 3], 1, T::DTYPE)];
            for x in lies.into_iter().chain(none) {
                let want = block_on(x.to_vec::<T>()).unwrap();
                // Its memory is page-locked, or plain.
                for of in [device, &Device::cpu()] {
                    let buffer = block_on(of.pinned::<T>(x.numel())).unwrap();
                    let got = block_on(x.to_pinned(buffer)).unwrap();
                    assert_eq!(*got, want[..], "{} of {}", x.shape(), T::DTYPE);
                }
                // A value on the host comes there too.
                let buffer = block_on(device.pinned::<T>(x.numel())).unwrap();
                let got = block_on(x.to_device(&Device::cpu()).to_pinned(buffer)).unwrap();
                assert_eq!(*got, want[..], "{} of {}", x.shape(), T::DTYPE);
            }
        }
    }
    let device = device(0);
    check::<bool>(&device);
    check::<u8>(&device);
    check::<i32>(&device);
    check::<i64>(&device);
    check::<half::f16>(&device);
    check::<half::bf16>(&device);
    check::<f32>(&device);
    check::<f64>(&device);
    // What is wrong is said at once, and a value that failed has its own error.
    let x = device.ones([2, 3]);
    let wrong = |n: usize| block_on(x.to_pinned(block_on(device.pinned::<f32>(n)).unwrap()));
    let error = wrong(5).unwrap_err();
    assert!(error.is_shape() && error.message().contains("6 elements"), "{error}");
    let error = block_on(x.to_pinned(block_on(device.pinned::<i32>(6)).unwrap())).unwrap_err();
    assert_eq!(error.message(), "the tensor is float32, not int32");
    let failed = device.ones([2]) + device.ones([3]);
    let buffer = block_on(device.pinned::<f32>(failed.numel())).unwrap();
    assert_eq!(block_on(failed.to_pinned(buffer)).unwrap_err().op(), "add");
    assert_eq!(*wrong(6).unwrap(), [1.0; 6]);
    until(|| {
        block_on(device.trim_wait()).unwrap();
        simulator.stats().live_pinned <= 1
    });
}

fn pinned_memory_is_nobodys_while_a_dropped_read_fills_it(simulator: &Simulator, _: u64) {
    let device = device(0);
    block_on(device.ones([3]) + 1.0).unwrap();
    let own = simulator.stats().live_pinned;
    for n in [5000, 300_000, 9_000_000] {
        let x = block_on(device.arange(0.0, n as f64, 1.0) + 1.0).unwrap();
        let first = block_on(device.pinned::<f32>(n)).unwrap();
        let locked = simulator.stats().live_pinned;
        simulator.pause();
        let before = simulator.stats().copies;
        let reading = x.to_pinned(first);
        until(|| simulator.stats().copies > before);
        // Nobody waits for it, and its copy has not run.
        drop((reading, x));
        let mut second = block_on(device.pinned::<f32>(n)).unwrap();
        assert_eq!(simulator.stats().live_pinned, locked + 1, "it is not the other's memory");
        second.fill(5.0);
        simulator.resume();
        block_on(device.waitall()).unwrap();
        // Now it is there for the next, and nobody writes to what others have.
        until(|| {
            let third = block_on(device.pinned::<f32>(n)).unwrap();
            let is_new = simulator.stats().live_pinned > locked + 1;
            drop(third);
            block_on(device.trim_wait()).unwrap();
            !is_new
        });
        assert!(second.iter().all(|&x| x == 5.0));
    }
    until(|| {
        block_on(device.trim_wait()).unwrap();
        simulator.stats().live_pinned == own
    });
}
