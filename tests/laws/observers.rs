//! Laws 4 and 5: what nobody can observe need not be computed, and values are immutable.

use crate::support::{ALL, Counter, Gate, Kind, PARALLEL, Rng, block_on, same_meta};
use crate::{Laws, promises};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::{DType, TensorFuture};
use std::future::IntoFuture;
use std::sync::mpsc;

pub fn add(laws: &mut Laws) {
    promises!(laws, 4, ALL;
        dropping_the_last_handle_of_queued_work_skips_it
        dropping_one_future_of_a_chain_keeps_what_another_needs
        detached_work_runs_after_all_handles_are_gone
        one_detached_handle_speaks_for_its_clones
        a_pending_read_is_an_observer
        an_await_is_an_observer
        waitall_and_ready_are_not_observers
        running_work_is_not_torn_down_by_a_drop
        a_million_queued_nodes_drop_without_blocking_or_overflow
        whatever_is_dropped_the_rest_is_computed_once);
    promises!(laws, 4, PARALLEL;
        what_waits_in_the_task_table_is_skipped_when_its_last_handle_goes);
    promises!(laws, 5, ALL;
        slice_assign_leaves_other_handles_their_value
        slice_assign_of_the_last_handle_copies_nothing
        what_is_put_at_places_on_the_device_copies_nothing_of_its_last_reader
        a_copy_that_another_reader_makes_needed_is_counted
        an_operand_given_by_value_is_written_over_by_a_device_that_is_awake
        a_buffer_with_another_reader_is_not_reused
        a_group_writes_over_nothing_that_somebody_else_can_read
        an_op_is_offered_its_input_only_as_its_last_reader);
}

fn dropping_the_last_handle_of_queued_work_skips_it(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    let mut held = Vec::new();
    for _ in 0..1000 {
        let x = counter.op(&device.ones([16]));
        held.push(counter.op(&(x * 2.0)));
    }
    let kept = held.pop().unwrap();
    drop(held);
    busy.release();
    block_on(device.waitall()).unwrap();
    block_on(&kept).unwrap();
    assert_eq!(counter.runs(), 2);
    drop(kept);
    crate::support::until(|| counter.alive() == 0);
    let stats = device.stats();
    assert!(stats.skipped >= 999 * 3, "{stats:?}");
    assert_eq!(stats.started + stats.fused + stats.skipped, stats.enqueued, "{stats:?}");
}

/// The intake is one way to be queued, the engine's task table the other: these are in there,
/// behind what runs.
fn what_waits_in_the_task_table_is_skipped_when_its_last_handle_goes(kind: Kind) {
    let device = kind.device();
    let (gate, counter) = (Gate::new(), Counter::new());
    let x = gate.op(&device.ones([16]));
    gate.wait_entered(1);
    let shared = counter.op(&x);
    let chains: Vec<TensorFuture> = (0..100).map(|_| counter.op(&counter.op(&shared))).collect();
    let kept = counter.op(&counter.op(&x));
    // The intake is in order: when this has run, all of that is in the task table.
    let last = device.rand([5000]) + 1.0;
    crate::support::until(|| last.is_ready());
    drop((shared, chains));
    crate::support::until(|| device.stats().skipped >= 201);
    gate.open();
    block_on(&kept).unwrap();
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 2);
}

fn dropping_one_future_of_a_chain_keeps_what_another_needs(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    let a = counter.op(&device.ones([3]));
    let b = counter.op(&(&a + 1.0));
    let left = counter.op(&(&b * 10.0));
    let right = counter.op(&(&b * 100.0));
    drop((a, b, left));
    busy.release();
    assert_eq!(block_on(right.to_vec::<f32>()).unwrap(), [200.0; 3]);
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 3);
}

fn detached_work_runs_after_all_handles_are_gone(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    for _ in 0..100 {
        let a = counter.op(&device.ones([3]));
        counter.op(&(a + 1.0)).detach();
    }
    busy.release();
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 200);
}

fn one_detached_handle_speaks_for_its_clones(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    let x = counter.op(&device.ones([3]));
    let y = x.clone();
    y.detach();
    y.detach();
    drop((x, y));
    busy.release();
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 1);
}

fn a_pending_read_is_an_observer(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    let few = counter.op(&device.ones([3])).to_vec::<f32>();
    let many = counter.op(&device.ones([5000])).to_vec::<f32>();
    let item = counter.op(&device.ones([])).item::<f32>();
    let shown = counter.op(&device.ones([1])).display();
    let given_up = counter.op(&device.ones([5000])).to_vec::<f32>();
    drop(given_up);
    busy.release();
    assert_eq!(block_on(few).unwrap(), [1.0; 3]);
    assert_eq!(block_on(many).unwrap(), [1.0; 5000]);
    assert_eq!(block_on(item).unwrap(), 1.0);
    assert!(block_on(shown).unwrap().starts_with("tensor([1.]"));
    block_on(device.waitall()).unwrap();
    assert_eq!(counter.runs(), 4);
}

fn an_await_is_an_observer(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    let x = counter.op(&device.ones([3]));
    let (wait, value) = (x.wait_to_read(), (&x).into_future());
    drop(x);
    busy.release();
    block_on(wait).unwrap();
    block_on(value).unwrap();
    assert_eq!(counter.runs(), 1);
}

fn waitall_and_ready_are_not_observers(kind: Kind) {
    let device = kind.device_with(|o| o.queue_ops(0));
    let busy = kind.occupy(&device);
    let counter = Counter::new();
    let x = counter.op(&device.ones([3]));
    let (all, ready) = (device.waitall(), device.ready());
    drop(x);
    busy.release();
    block_on(all).unwrap();
    block_on(ready);
    assert_eq!(counter.runs(), 0);
}

fn running_work_is_not_torn_down_by_a_drop(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::channel();
    let tell = std::sync::Mutex::new(tell);
    let gate = Gate::new();
    let x = device.arange(0.0, 100_000.0, 1.0);
    let inside = gate.op(&device.ones([1]));
    let sum = futensor::custom::custom_fn("sum", &[&x, &inside], same_meta, {
        move |run: &mut CpuRun<'_>| {
            let values = run.inputs()[0].to_vec::<f32>().unwrap_or_default();
            let _ = tell.lock().unwrap().send(values.iter().map(|&v| v as f64).sum::<f64>());
            run.output().fill_from(values);
            Ok(())
        }
    });
    gate.wait_entered(1);
    sum.detach();
    // The inputs of what runs, and of what waits for it, live although their handles are gone.
    drop((x, inside, sum));
    gate.open();
    assert_eq!(told.recv().unwrap(), 99_999.0 * 50_000.0);
    block_on(device.waitall()).unwrap();
    crate::support::until(|| device.stats().bytes_live == 0);
}

fn a_million_queued_nodes_drop_without_blocking_or_overflow(kind: Kind) {
    let device = kind.device();
    let busy = kind.occupy(&device);
    let mut x = device.ones([4]);
    let mut y = device.ones([4]);
    for i in 0..500_000 {
        x = x + i;
        y = &y * &x;
    }
    // The caller's side returns although the device is blocked.
    drop((x, y));
    let kept = device.ones([4]) + 1.0;
    busy.release();
    assert_eq!(block_on(kept.to_vec::<f32>()).unwrap(), [2.0; 4]);
    block_on(device.waitall()).unwrap();
    crate::support::until(|| device.stats().queued == 0);
}

fn whatever_is_dropped_the_rest_is_computed_once(kind: Kind) {
    for seed in 0..50 {
        let mut rng = Rng(seed);
        let device = kind.device();
        let counter = Counter::new();
        let mut values: Vec<(TensorFuture, f32)> = vec![(device.ones([2]), 1.0)];
        for _ in 0..40 {
            let (x, v) = &values[rng.below(values.len())];
            let next = match rng.below(3) {
                0 => (counter.op(x), *v),
                1 => (x + 1.0, v + 1.0),
                _ => (x - 3.0, v - 3.0),
            };
            values.push(next);
            if rng.below(3) == 0 {
                let k = rng.below(values.len());
                if values.len() > 1 {
                    drop(values.swap_remove(k));
                }
            }
        }
        for (x, v) in &values {
            assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [*v; 2], "seed {seed}");
        }
        drop(values);
        block_on(device.waitall()).unwrap();
        let made = counter.runs();
        crate::support::until(|| counter.alive() == 0);
        assert!(made <= 40, "seed {seed}: an op ran twice");
    }
}

fn slice_assign_leaves_other_handles_their_value(kind: Kind) {
    let device = kind.device();
    let old = device.zeros([2, 1000]);
    let view = old.i(0);
    let new = old.clone().slice_assign((0, ..), device.ones([1000]));
    assert_eq!(block_on(new.sum_all().item::<f32>()).unwrap(), 1000.0);
    assert_eq!(block_on(view.to_vec::<f32>()).unwrap(), vec![0.0; 1000]);
    assert_eq!(block_on(old.to_vec::<f32>()).unwrap(), vec![0.0; 2000]);
    drop(old);
    // Now only the view is left beside it.
    let newer = new.slice_assign((1, ..), view);
    assert_eq!(block_on(newer.sum_all().item::<f32>()).unwrap(), 1000.0);
}

/// The engine may begin before the caller has returned: what the caller gives away is gone by then.
fn an_operand_given_by_value_is_written_over_by_a_device_that_is_awake(kind: Kind) {
    let device = kind.device();
    let one = 1 << 20;
    let region = device.region(|x: TensorFuture| x.sin() + 1.0);
    let mut x = device.rand([512, 512]);
    block_on(&x).unwrap();
    for i in 0..200 {
        x = match i % 3 {
            0 => x * 1.5,
            1 => x.slice_assign(i, device.ones([512])),
            _ => region.call(x),
        };
        block_on(&x).unwrap();
    }
    let peak = device.stats().bytes_peak;
    assert!(peak < one + one / 2, "{peak} bytes at the peak, of which the value is {one}");
}

fn slice_assign_of_the_last_handle_copies_nothing(kind: Kind) {
    let device = kind.device();
    let mut cache = device.zeros([256, 4096]);
    block_on(&cache).unwrap();
    let one = 4 << 20;
    let row = device.ones([4096]);
    for i in 0..256 {
        cache = cache.slice_assign(i, &row);
    }
    block_on(&cache).unwrap();
    assert_eq!(block_on(cache.sum_all().item::<f32>()).unwrap(), 256.0 * 4096.0);
    let peak = device.stats().bytes_peak;
    assert!(peak < one + one / 2, "{peak} bytes at the peak, of which the cache is {one}");
}

/// One op at a time, in a region, and when the next call is queued before the last has run.
fn what_is_put_at_places_on_the_device_copies_nothing_of_its_last_reader(kind: Kind) {
    let device = kind.device();
    let place = |i: usize| device.full_dtype([2], i as i64, DType::I64);
    let step = device.region(|(cache, i, x): (TensorFuture, TensorFuture, TensorFuture)| {
        // A view of what comes from outside; it is written over twice.
        let cache = cache.reshape([4096, 256]).reshape([256, 4096]).index_copy(
            0,
            &i,
            (x * 2.0 + 1.0).expand([2, 4096]),
        );
        let sum = cache.sum_all();
        let cache = cache.scatter(1, i.reshape([1, 2]), cache.device().full([1, 2], 5.0));
        (cache, sum)
    });
    let ahead = 4;
    let mut cache = device.zeros([256, 4096]) + 0.0;
    block_on(&cache).unwrap();
    let before = device.stats().copied_bytes;
    for i in 0..64 {
        let x = device.full([4096], i as f32) + 0.0;
        cache = match i / 32 {
            0 => cache.index_copy(0, place(i), (&x * 2.0 + 1.0).expand([2, 4096])),
            _ => step.call((cache, place(i), x)).0,
        };
        if i % ahead == 0 {
            block_on(&cache).unwrap();
            // The engine's task table may have a value a moment longer than it is awaited.
            crate::support::until(|| device.stats().queued == 0);
        }
    }
    let got = values(&cache);
    assert_eq!((got[10 * 4096], got[10 * 4096 + 4095], got[63 * 4096 + 1]), (21.0, 21.0, 127.0));
    assert_eq!(got[..64], [[1.0; 32], [5.0; 32]].concat());
    assert_eq!(device.stats().copied_bytes - before, 0);
}

fn a_copy_that_another_reader_makes_needed_is_counted(kind: Kind) {
    let device = kind.device();
    let cache = device.zeros([256, 64]) + 0.0;
    block_on(&cache).unwrap();
    let (i, row) = (device.full_dtype([1], 3, DType::I64), device.ones([1, 64]));
    let before = device.stats().copied_bytes;
    let newer = cache.clone().index_copy(0, &i, &row);
    block_on(&newer).unwrap();
    assert_eq!(device.stats().copied_bytes - before, 256 * 64 * 4);
    let both = device.region(|cache: TensorFuture| {
        let newer = cache.clone().index_copy(
            0,
            device.full_dtype([1], 1, DType::I64),
            device.ones([1, 64]),
        );
        (newer, cache + 1.0)
    });
    for call in 0..4 {
        let (newer, plus) = both.call(&cache * 1.0);
        block_on(newer).unwrap();
        block_on(plus).unwrap();
        assert_eq!(device.stats().copied_bytes - before, (call + 2) * 256 * 64 * 4);
    }
    assert_eq!(values(&cache), vec![0.0; 256 * 64]);
}

fn a_buffer_with_another_reader_is_not_reused(kind: Kind) {
    for seed in 0..40 {
        let mut rng = Rng(seed);
        let device = kind.device();
        let n = 5000;
        let x = device.arange(0.0, n as f32, 1.0) + 0.0;
        if rng.below(2) == 0 {
            block_on(&x).unwrap();
        }
        let view = x.narrow(0, 1, n - 1);
        let read = x.to_vec::<f32>();
        let y = &x + 1.0;
        let z = if rng.below(2) == 0 { (y + 1.0).tanh() } else { y * &x };
        drop(x);
        let kept = view.to_vec::<f32>();
        drop(view);
        if rng.below(2) == 0 {
            block_on(&z).unwrap();
        }
        drop(z);
        assert!(block_on(kept).unwrap().into_iter().eq((1..n).map(|i| i as f32)), "seed {seed}");
        assert!(block_on(read).unwrap().into_iter().eq((0..n).map(|i| i as f32)), "seed {seed}");
    }
}

/// Elementwise ops of one shape: the last one of a group may lie where its operand lay.
fn a_group_writes_over_nothing_that_somebody_else_can_read(kind: Kind) {
    let n = 5000;
    let want: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let group = |x: &TensorFuture| (x + 1.0) * 2.0;
    let values = |x: &TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
    let fresh = || {
        let device = kind.device();
        let x = device.from_vec(want.clone(), [n]) * 1.0;
        block_on(&x).unwrap();
        (device, x)
    };
    // A handle, and a view of the same memory.
    let (_device, x) = fresh();
    let y = group(&x);
    block_on(&y).unwrap();
    assert_eq!(values(&x), want);
    let view = x.reshape([2, n / 2]);
    block_on(&view).unwrap();
    let y = group(&x);
    drop(x);
    block_on(&y).unwrap();
    assert_eq!(values(&view), want);
    // Two groups that nobody else reads beside: whichever is first leaves the other its operand.
    let (device, x) = fresh();
    let busy = kind.occupy(&device);
    let (a, b) = (group(&x), (&x - 1.0).sum(0));
    let c = group(&x).i(0..n - 1) + 0.0;
    drop(x);
    busy.release();
    assert!(values(&a).into_iter().eq(want.iter().map(|v| (v + 1.0) * 2.0)));
    assert!(values(&c).into_iter().eq(want[..n - 1].iter().map(|v| (v + 1.0) * 2.0)));
    assert_eq!(values(&b), [want.iter().map(|v| v - 1.0).sum::<f32>()]);
    // And alone it does lie there: one buffer, for as long as the loop goes.
    let (device, mut x) = fresh();
    let busy = kind.occupy(&device);
    for _ in 0..3 {
        x = group(&x);
    }
    busy.release();
    block_on(&x).unwrap();
    assert!(values(&x).into_iter().eq(want.iter().map(|v| v * 8.0 + 14.0)));
}

/// Writes over its input where it is offered it, and says whether it was.
struct Over(mpsc::SyncSender<bool>);

impl Operation for Over {
    fn name(&self) -> &str {
        "over"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        same_meta(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let _ = self.0.send(run.in_place());
        run.output().fill_from(std::iter::repeat_n(7.0f32, 5000));
        Ok(())
    }
    fn reuses(&self) -> Option<usize> {
        Some(0)
    }
}

fn an_op_is_offered_its_input_only_as_its_last_reader(kind: Kind) {
    let device = kind.device();
    let (tell, told) = mpsc::sync_channel(8);
    let x = device.ones([5000]) + 1.0;
    let busy = kind.occupy(&device);
    let (first, second) = (custom(Over(tell.clone()), &[&x]), custom(Over(tell.clone()), &[&x]));
    busy.release();
    for y in [first, second] {
        assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [7.0; 5000]);
        assert!(!told.recv().unwrap());
    }
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [2.0; 5000]);
    let busy = kind.occupy(&device);
    let last = custom(Over(tell), &[&x]);
    drop(x);
    busy.release();
    block_on(last).unwrap();
    assert!(told.recv().unwrap(), "the last reader may have the buffer");
}

fn values(x: &TensorFuture) -> Vec<f32> {
    block_on(x.to_vec::<f32>()).unwrap()
}
