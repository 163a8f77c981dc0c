//! Law 6: every await ends, whatever fails.

use crate::support::{ALL, Counter, Gate, Kind, block_on, copy_input, identity, same_meta};
use crate::{Laws, promises};
use futensor::custom::{Refusal, custom_fn};
use futensor::{Device, Error, TensorFuture};
use futures::future::join_all;
use std::time::Duration;

pub fn add(laws: &mut Laws) {
    promises!(laws, 6, ALL;
        a_panicking_kernel_fails_its_value_and_nothing_else
        a_refusing_kernel_fails_its_value_with_its_words
        out_of_memory_fails_the_value_and_leaves_the_device_well
        an_allocation_that_is_refused_is_no_part_of_the_peak
        absurd_sizes_fail_and_never_wait
        a_panicking_or_failing_source_fails_its_value
        a_stuck_kernel_ends_every_await_when_the_watchdog_expires
        shutdown_ends_what_was_before_and_refuses_what_comes_after
        the_smallest_limits_cannot_deadlock
        values_outlive_the_device_handles);
}

fn panicking(x: &TensorFuture) -> TensorFuture {
    identity("explode", x, || panic!("a kernel of a test panics"))
}

fn failure(x: TensorFuture) -> Error {
    block_on(x).expect_err("this value fails")
}

fn a_panicking_kernel_fails_its_value_and_nothing_else(kind: Kind) {
    let device = kind.device();
    let good = device.ones([4]) * 3.0;
    for _ in 0..20 {
        let bad = panicking(&good);
        let after = bad.sum_all();
        let error = failure(after);
        assert!(error.is_kernel() && error.op() == "explode", "{error}");
        assert!(error.same_root(&failure(bad)));
    }
    assert_eq!(block_on((&good + 1.0).to_vec::<f32>()).unwrap(), [4.0; 4]);
    block_on(device.waitall()).unwrap();
}

fn a_refusing_kernel_fails_its_value_with_its_words(kind: Kind) {
    let device = kind.device();
    let x = device.ones([4]);
    let bad = identity("pick", &x, || Err(Refusal::index("row 7 of 4")));
    let read = (&bad * 2.0).to_vec::<f32>();
    let error = block_on(read).unwrap_err();
    assert!(error.is_index() && error.to_string().starts_with("pick: row 7 of 4"), "{error}");
    assert!(block_on(x).is_ok());
}

fn out_of_memory_fails_the_value_and_leaves_the_device_well(kind: Kind) {
    let device = kind.device_with(|o| o.bytes_max(8 << 20));
    let kept = device.rand([1 << 20]) + 1.0;
    block_on(&kept).unwrap();
    let large = device.rand([1 << 21]);
    let error = failure(large.clone());
    assert!(failure((&large * 2.0).sum_all()).same_root(&error));
    assert!(error.is_out_of_memory() && error.op() == "rand", "{error}");
    let handed = device.from_vec(vec![0.0f32; 1 << 21], [1 << 21]);
    assert!(failure(handed).is_out_of_memory());
    drop(kept);
    // What was freed can be had again.
    crate::support::until(|| device.stats().bytes_live == 0);
    let again = device.rand([1 << 20]);
    block_on(&again).unwrap();
    block_on(device.waitall()).unwrap();
}

fn an_allocation_that_is_refused_is_no_part_of_the_peak(kind: Kind) {
    let device = kind.device();
    let kept = device.rand([1 << 20]);
    block_on(&kept).unwrap();
    let peak = device.stats().bytes_peak;
    assert!((4 << 20..5 << 20).contains(&peak), "{peak}");
    // No limit of the device's refuses it: the system does, or the driver.
    assert!(failure(device.rand([1usize << 45])).is_out_of_memory());
    assert_eq!(device.stats().bytes_peak, peak);
}

fn absurd_sizes_fail_and_never_wait(kind: Kind) {
    let device = kind.device();
    let huge = [1usize << 40, 1 << 40];
    for x in
        [device.zeros(huge), device.rand(huge), device.ones([usize::MAX]), device.full(huge, 1)]
    {
        let sum = (&x + 1.0).sum_all();
        assert!(failure(x).is_out_of_memory());
        assert!(failure(sum).is_out_of_memory());
    }
    // Views cost nothing, but a copy of one does.
    let wide = device.ones([1, 1]).expand([1usize << 40, 1 << 20]);
    assert!(failure(&wide + 1.0).is_out_of_memory());
    assert!(block_on(wide.to_vec::<f32>()).unwrap_err().is_out_of_memory());
    assert!(
        failure(device.ones([1usize << 40, 0]).matmul(device.ones([0, 1usize << 40])))
            .is_out_of_memory()
    );
    block_on(device.waitall()).unwrap();
    assert_eq!(block_on(device.ones([2]).to_vec::<f32>()).unwrap(), [1.0; 2]);
    assert_eq!(device.stats().bytes_live, 0);
}

fn a_panicking_or_failing_source_fails_its_value(kind: Kind) {
    let device = kind.device();
    let panics = device
        .from_future([1], async { panic!("a source of a test panics") as Result<Vec<f32>, Error> });
    let fails = device.from_future([1], async { Err::<Vec<f32>, _>("the file is gone") });
    let short = device.from_future([3], async { Ok::<_, Error>(vec![1.0f32]) });
    assert!(failure(&panics + 1.0).is_source());
    let error = failure(fails.sum_all());
    assert!(error.is_source() && error.message().contains("the file is gone"), "{error}");
    assert!(failure(short).is_shape());
    assert!(block_on(device.ones([1])).is_ok());
}

fn a_stuck_kernel_ends_every_await_when_the_watchdog_expires(kind: Kind) {
    let device =
        kind.device_with(|o| o.watchdog(Some(Duration::from_millis(50))).queue_ops(0).permits(1));
    let kept = device.ones([2]) + 1.0;
    block_on(&kept).unwrap();
    let gate = Gate::new();
    let permit = device.try_admit();
    let stuck = gate.op(&kept);
    gate.wait_entered(1);
    let after = &stuck * 2.0;
    let detached = &stuck + 5.0;
    detached.detach();
    block_on(async {
        let waits = join_all((0..10).map(|_| after.wait_to_read()));
        let (read, all) = (after.to_vec::<f32>(), device.waitall());
        let (ready, admit) = (device.ready(), device.admit());
        for result in waits.await {
            assert!(result.unwrap_err().is_device_lost());
        }
        assert!(read.await.unwrap_err().is_device_lost());
        assert!((&stuck).await.unwrap_err().is_device_lost());
        let error = all.await.unwrap_err();
        assert!(error.is_device_lost() && error.message().contains("watchdog"), "{error}");
        ready.await;
        drop(admit.await);
        // From now on every op fails at once, and every barrier ends.
        assert!((&kept + 1.0).await.unwrap_err().is_device_lost());
        device.waitall().await.unwrap();
        device.ready().await;
        device.shutdown().await.unwrap();
    });
    // What was there stays readable.
    assert_eq!(block_on(kept.to_vec::<f32>()).unwrap(), [2.0; 2]);
    drop(permit);
    gate.open();
}

fn shutdown_ends_what_was_before_and_refuses_what_comes_after(kind: Kind) {
    let device = kind.device();
    let counter = Counter::new();
    let gate = Gate::new();
    let first = gate.op(&device.ones([2]));
    let before = counter.op(&first);
    before.detach();
    gate.wait_entered(1);
    block_on(async {
        let mut end = device.shutdown();
        assert!(futures::poll!(&mut end).is_pending());
        gate.open();
        end.await.unwrap();
        assert_eq!(counter.runs(), 1);
        let after = &before + 1.0;
        assert!(after.error().is_some_and(|e| e.is_shutdown()));
        assert!(after.await.unwrap_err().is_shutdown());
        assert!(device.ones([2]).await.unwrap_err().is_shutdown());
        assert_eq!(before.to_vec::<f32>().await.unwrap(), [1.0; 2]);
        device.waitall().await.unwrap();
        device.ready().await;
        drop(device.admit().await);
        device.shutdown().await.unwrap();
    });
}

fn the_smallest_limits_cannot_deadlock(kind: Kind) {
    let device =
        kind.device_with(|o| o.in_flight_ops(1).in_flight_bytes(1).queue_ops(1).queue_bytes(1));
    let mut rng = crate::support::Rng(7);
    let mut values: Vec<TensorFuture> = (0..4).map(|i| device.ones([3000]) * i).collect();
    for _ in 0..300 {
        let (a, b) = (rng.below(values.len()), rng.below(values.len()));
        let next = custom_fn("join", &[&values[a], &values[b]], same_meta, copy_input) + &values[b];
        let slot = rng.below(values.len());
        values[slot] = next.minimum(10.0);
    }
    block_on(join_all(values.iter().map(|x| x.wait_to_read())))
        .into_iter()
        .for_each(|r| r.unwrap());
    block_on(async {
        for _ in 0..20 {
            device.ready().await;
            let _permit = device.admit().await;
            (device.rand([5000]) + 1.0).detach();
        }
        device.waitall().await.unwrap();
    });
}

fn values_outlive_the_device_handles(kind: Kind) {
    for round in 0..200 {
        let device: Device = kind.device_with(|o| o.linger(Duration::ZERO));
        let x = device.ones([64]) + round;
        let slow = custom_fn("slow", &[&x], same_meta, copy_input);
        drop(device);
        let y = (&slow + 1.0).sum_all();
        assert_eq!(block_on(y.item::<f32>()).unwrap(), 64.0 * (round + 2) as f32);
        // Its threads may have ended, or be about to.
        let z = custom_fn("slow", &[&x], same_meta, copy_input);
        assert_eq!(block_on(z.to_vec::<f32>()).unwrap()[0], (round + 1) as f32);
    }
}
