//! Law 3: `.await` is the only barrier, and each waits for what it says.

use crate::support::{ALL, Counter, Gate, Kind, PARALLEL, block_on};
use crate::{Laws, promises};
use futensor::TensorFuture;
use futures::poll;
use std::future::IntoFuture;

pub fn add(laws: &mut Laws) {
    promises!(laws, 3, ALL;
        waitall_waits_for_all_before_it
        waitall_does_not_wait_for_what_comes_after_the_call
        waitall_takes_its_snapshot_at_the_call_not_at_the_first_poll
        reads_take_their_snapshot_at_the_call
        dropping_a_wait_gives_up_the_wait_and_nothing_else
        every_way_of_awaiting_gives_the_same_value
        waitall_on_an_idle_device_is_ready_at_once);
    promises!(laws, 3, PARALLEL;
        wait_to_read_returns_while_other_work_runs
        waitall_waits_for_every_stream);
}

fn wait_to_read_returns_while_other_work_runs(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let other = gate.op(&device.ones([1]));
    gate.wait_entered(1);
    let x = device.ones([1000]) * 2.0;
    block_on(x.wait_to_read()).unwrap();
    assert_eq!(block_on(x.sum_all().item::<f32>()).unwrap(), 2000.0);
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap().len(), 1000);
    assert!(!other.is_ready());
}

fn waitall_waits_for_all_before_it(kind: Kind) {
    block_on(async {
        let device = kind.device();
        let gate = Gate::new();
        let first = gate.op(&device.ones([1]));
        let chain = (&first + 1.0).sum_all();
        gate.wait_entered(1);
        let mut all = device.waitall();
        assert!(poll!(&mut all).is_pending());
        gate.open();
        all.await.unwrap();
        assert!(first.is_ready() && chain.is_ready());
    });
}

fn waitall_waits_for_every_stream(kind: Kind) {
    block_on(async {
        let device = kind.device();
        let gates = [Gate::new(), Gate::new()];
        let held: Vec<TensorFuture> = gates.iter().map(|g| g.op(&device.ones([1]))).collect();
        gates.iter().for_each(|g| g.wait_entered(1));
        let mut all = device.waitall();
        assert!(poll!(&mut all).is_pending());
        gates[1].open();
        (&held[1]).await.unwrap();
        assert!(poll!(&mut all).is_pending());
        gates[0].open();
        all.await.unwrap();
        assert!(held.iter().all(TensorFuture::is_ready));
    });
}

fn waitall_does_not_wait_for_what_comes_after_the_call(kind: Kind) {
    let device = kind.device_with(|o| o.threads(2));
    let before = Gate::new();
    let first = before.op(&device.ones([1]));
    before.wait_entered(1);
    let all = device.waitall();
    let after = Gate::new();
    let second = after.op(&device.ones([1]));
    let third = after.op(&first);
    after.wait_entered(1);
    before.open();
    block_on(all).unwrap();
    assert!(first.is_ready() && !second.is_ready() && !third.is_ready());
}

fn waitall_takes_its_snapshot_at_the_call_not_at_the_first_poll(kind: Kind) {
    let device = kind.device();
    let x = device.ones([1]);
    block_on(&x).unwrap();
    let all = device.waitall();
    let gate = Gate::new();
    let later = gate.op(&x);
    gate.wait_entered(1);
    block_on(all).unwrap();
    assert!(!later.is_ready());
}

fn reads_take_their_snapshot_at_the_call(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let mut x = device.arange(0.0, 4000.0, 1.0);
    let (all, few) = (x.to_vec::<f32>(), x.narrow(0, 0, 2).to_vec::<f32>());
    let (item, shown) = (x.sum_all().item::<f32>(), x.narrow(0, 0, 2).display());
    x = x.slice_assign(0..4000, device.zeros([4000]));
    drop(x);
    busy.release();
    assert!(block_on(all).unwrap().into_iter().eq((0..4000).map(|i| i as f32)));
    assert_eq!(block_on(few).unwrap(), [0.0, 1.0]);
    assert_eq!(block_on(item).unwrap(), 7_998_000.0);
    assert!(block_on(shown).unwrap().starts_with("tensor([0., 1.]"));
}

fn dropping_a_wait_gives_up_the_wait_and_nothing_else(kind: Kind) {
    block_on(async {
        let device = kind.device();
        let (gate, counter) = (Gate::new(), Counter::new());
        let x = counter.op(&gate.op(&device.ones([2])));
        gate.wait_entered(1);
        {
            let (mut value, mut wait) = ((&x).into_future(), x.wait_to_read());
            let (mut read, mut all) = (x.to_vec::<f32>(), device.waitall());
            assert!(poll!(&mut value).is_pending() && poll!(&mut wait).is_pending());
            assert!(poll!(&mut read).is_pending() && poll!(&mut all).is_pending());
        }
        gate.open();
        assert_eq!(x.to_vec::<f32>().await.unwrap(), [1.0, 1.0]);
        device.waitall().await.unwrap();
        assert_eq!(counter.runs(), 1);
    });
}

fn every_way_of_awaiting_gives_the_same_value(kind: Kind) {
    block_on(async {
        let device = kind.device();
        let mut x = device.arange(0, 5, 1) * 2;
        let want = [0i64, 2, 4, 6, 8];
        x.wait_to_read().await.unwrap();
        let by_reference = (&x).await.unwrap();
        let by_mutable = (&mut x).await.unwrap();
        let by_value = x.await.unwrap();
        let again = (&by_value).await.unwrap();
        for tensor in [by_reference, by_mutable, by_value, again] {
            assert!(tensor.is_ready());
            assert_eq!(tensor.to_vec::<i64>().await.unwrap(), want);
            assert_eq!(tensor.await.unwrap().to_vec::<i64>().await.unwrap(), want);
        }
    });
}

fn waitall_on_an_idle_device_is_ready_at_once(kind: Kind) {
    block_on(async {
        let device = kind.device();
        assert!(poll!(device.waitall()).is_ready());
        (device.ones([10]) + 1.0).detach();
        device.waitall().await.unwrap();
        crate::support::until(|| device.stats().queued == 0);
        assert!(poll!(device.waitall()).is_ready());
    });
}
