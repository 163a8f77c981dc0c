//! The laws once more, for blocks that are planned once and then only run.

use crate::support::{ALL, Counter, Gate, Kind, PARALLEL, block_on, identity, until};
use crate::{Laws, promises};
use futensor::custom::Refusal;
use futensor::{Device, TensorFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

pub fn add(laws: &mut Laws) {
    promises!(laws, 1, ALL;
        a_call_of_a_region_waits_for_nothing
        a_region_runs_its_closure_once_for_each_set_of_shapes
        a_region_that_runs_again_queues_one_op_and_plans_nothing
        a_region_that_was_warmed_is_traced_no_more_and_right
        what_a_region_captures_is_a_constant
        an_input_or_a_constant_may_be_an_output
        a_region_in_a_region_is_a_part_of_it
        a_region_takes_and_gives_nested_tuples_arrays_and_vecs
        nothing_is_read_or_awaited_while_a_region_is_traced
        a_closure_that_panics_leaves_its_thread_as_it_was);
    promises!(laws, 4, ALL;
        dropping_every_output_of_a_region_cancels_the_call
        an_output_that_is_dropped_is_not_computed
        a_detach_in_a_region_holds_at_each_call);
    promises!(laws, 7, ALL;
        an_op_that_fails_in_a_region_fails_what_is_made_from_it_alone
        a_failed_input_of_a_region_fails_what_is_made_from_it_alone
        an_op_that_is_refused_in_a_region_names_its_line
        inputs_of_a_region_are_on_its_device);
    promises!(laws, 9, ALL;
        a_region_draws_what_its_ops_would_draw
        a_region_of_many_outputs_of_many_inputs_is_planned
        gradients_flow_through_a_region_and_inside_one
        a_weight_updated_by_a_region_is_what_it_is_op_by_op
        a_region_keeps_two_groups_apart_that_meet_again_behind_a_sum);
    promises!(laws, 9, PARALLEL;
        calls_of_a_region_overlap
        products_side_by_side_are_what_they_are_op_by_op
        steps_of_a_region_that_need_nothing_of_each_other_run_side_by_side);
    promises!(laws, 5, PARALLEL;
        a_region_writes_over_an_input_that_nobody_else_holds
        what_one_step_reads_none_writes_over_that_runs_beside_it);
}

fn values(x: &TensorFuture) -> Vec<f32> {
    block_on(x.to_vec::<f32>()).unwrap()
}

fn a_call_of_a_region_waits_for_nothing(kind: Kind) {
    let device = kind.device();
    let region = device.region(|x: TensorFuture| [(&x + 1.0).sum_all(), x.reshape([6]) * 2.0]);
    let x = device.arange(0.0, 6.0, 1.0).reshape([2, 3]);
    let busy = kind.occupy(&device);
    for _ in 0..3 {
        let [sum, twice] = region.call(x.clone());
        assert_eq!((sum.rank(), twice.dims()), (0, &[6][..]));
        assert!(!sum.is_ready());
    }
    busy.release();
    let [sum, twice] = region.call(x);
    assert_eq!(values(&sum), [21.0]);
    assert_eq!(values(&twice), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
}

fn a_region_that_was_warmed_is_traced_no_more_and_right(kind: Kind) {
    let device = kind.device();
    let region = device
        .region(|(x, y): (TensorFuture, TensorFuture)| [x.matmul(&y).sum_all(), (x - 1.0).exp()]);
    let ones = || (device.ones([4, 4]) + 0.0, device.ones([4, 4]) + 0.0);
    block_on(region.warm(ones())).unwrap();
    assert_eq!(region.traces(), 1);
    let [sum, exp] = region.call(ones());
    assert_eq!((values(&sum), values(&exp)), (vec![64.0], vec![1.0; 16]));
    assert_eq!(region.traces(), 1);
    let failed = block_on(region.warm((device.ones([4, 4]), device.ones([3])))).unwrap_err();
    assert!(failed.is_shape(), "{failed}");
}

fn a_region_runs_its_closure_once_for_each_set_of_shapes(kind: Kind) {
    let device = kind.device();
    let calls = AtomicUsize::new(0);
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| {
        calls.fetch_add(1, SeqCst);
        (&x * &y + 1.0).relu()
    });
    for round in 1..4 {
        for n in [3, 5000] {
            let (x, y) = (device.full([2, n], round as f32), device.arange(0.0, n as f32, 1.0));
            let got = region.call((x, y));
            let want: Vec<f32> = (0..2 * n).map(|i| (i % n) as f32 * round as f32 + 1.0).collect();
            assert_eq!(values(&got), want);
        }
        let whole = region.call((device.full([3], 2), device.full([3], round)));
        assert_eq!(block_on(whole.to_vec::<f32>()).unwrap(), [2.0 * round as f32 + 1.0; 3]);
    }
    assert_eq!((calls.load(SeqCst), region.traces()), (3, 3));
}

fn a_region_that_runs_again_queues_one_op_and_plans_nothing(kind: Kind) {
    let device = kind.device();
    let chain = device.region(|mut x: TensorFuture| {
        for _ in 0..50 {
            x = (x * 0.5 + 1.0).tanh();
        }
        x
    });
    let x = device.rand([64, 64]);
    let first = values(&chain.call(x.clone()));
    block_on(device.waitall()).unwrap();
    let before = device.stats();
    let again = chain.call(x.clone());
    block_on(&again).unwrap();
    block_on(device.waitall()).unwrap();
    let after = device.stats();
    assert_eq!((after.enqueued - before.enqueued, after.started - before.started), (1, 1));
    assert_eq!(chain.traces(), 1);
    let mut want = x;
    for _ in 0..50 {
        want = (want * 0.5 + 1.0).tanh();
    }
    assert_eq!(values(&want), first);
    assert_eq!(values(&again), first);
}

fn what_a_region_captures_is_a_constant(kind: Kind) {
    let device = kind.device();
    let made = AtomicUsize::new(0);
    let counter = Counter::new();
    let weight = counter.op(&device.full([4], 3.0));
    let (sender, receiver) = futures::channel::oneshot::channel::<Vec<f32>>();
    let brought = device.from_future([4], async move {
        let data = receiver.await.map_err(|_| futensor::Error::custom("test", "nobody sent"))?;
        Ok::<_, futensor::Error>(data)
    });
    let region = device.region(|x: TensorFuture| {
        made.fetch_add(1, SeqCst);
        // Of constants alone: computed once.
        let scaled = counter.op(&(&weight * 2.0));
        let host = device.from_vec(vec![made.load(SeqCst) as f32; 4], [4]);
        x * scaled + host + &brought
    });
    let first = region.call(device.ones([4]));
    assert!(!first.is_ready());
    sender.send(vec![100.0; 4]).unwrap();
    assert_eq!(values(&first), [107.0; 4]);
    for k in 0..3 {
        assert_eq!(values(&region.call(device.full([4], k as f32))), [101.0 + 6.0 * k as f32; 4]);
    }
    assert_eq!(counter.runs(), 2);
}

fn an_input_or_a_constant_may_be_an_output(kind: Kind) {
    let device = kind.device();
    let constant = device.full([2], 5.0);
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| {
        let z = &x + &y;
        vec![y, z.clone(), constant.clone(), z, x]
    });
    for k in 0..3 {
        let k = k as f32;
        let out = region.call((device.full([2], k), device.ones([2])));
        let got: Vec<Vec<f32>> = out.iter().map(values).collect();
        assert_eq!(got, [[1.0; 2], [k + 1.0; 2], [5.0; 2], [k + 1.0; 2], [k; 2]]);
    }
    let nothing = device.region(|x: TensorFuture| {
        drop(x + 1.0);
        Vec::<TensorFuture>::new()
    });
    assert!(nothing.call(device.ones([2])).is_empty() && nothing.call(device.ones([2])).is_empty());
}

fn a_region_in_a_region_is_a_part_of_it(kind: Kind) {
    let device = kind.device();
    let inner = device.region(|x: TensorFuture| (x * 2.0).relu());
    let outer = device.region(|x: TensorFuture| inner.call(inner.call(x) + 1.0));
    for k in 0..3 {
        assert_eq!(values(&outer.call(device.full([3], k as f32))), [4.0 * k as f32 + 2.0; 3]);
    }
    assert_eq!((outer.traces(), inner.traces()), (1, 0));
}

fn a_region_takes_and_gives_nested_tuples_arrays_and_vecs(kind: Kind) {
    type T = TensorFuture;
    let device = kind.device();
    let number = |i: usize| device.full([2], i as f32);
    // Sums of what came together, in the form in which it came.
    let sum = |all: &[T]| all.iter().fold(device.zeros([2]), |sum, x| sum + x);
    let region =
        device.region(|(a, (b, pairs), [c, d]): (Vec<T>, (T, Vec<(T, Vec<T>)>), [Vec<T>; 2])| {
            let pairs: Vec<[T; 2]> =
                pairs.iter().map(|(x, many)| [x.clone() * 1.0, sum(many)]).collect();
            (pairs, (b + 1.0, (sum(&a), [sum(&c), sum(&d)])))
        });
    let numbers = |from: usize, n: usize| (from..from + n).map(number).collect::<Vec<T>>();
    // The same tensors in one list, put together in other ways: each is a plan of its own.
    for (k, (a, many, c, d)) in
        [(1, 2, 1, 3), (2, 1, 3, 1), (0, 3, 0, 4), (1, 2, 1, 3)].into_iter().enumerate()
    {
        let pairs = vec![(number(10), numbers(20, many)), (number(30), Vec::new())];
        let inputs = (numbers(1, a), (number(5), pairs), [numbers(40, c), numbers(50, d)]);
        let (pairs, (b, (of_a, [of_c, of_d]))) = region.call(inputs);
        let total = |from: usize, n: usize| (from..from + n).sum::<usize>() as f32;
        let got: Vec<f32> = pairs.iter().flatten().map(|x| values(x)[0]).collect();
        assert_eq!(got, [10.0, total(20, many), 30.0, 0.0], "call {k}");
        let got = [b, of_a, of_c, of_d].map(|x| values(&x)[0]);
        assert_eq!(got, [6.0, total(1, a), total(40, c), total(50, d)], "call {k}");
    }
    assert_eq!(region.traces(), 3);
}

fn nothing_is_read_or_awaited_while_a_region_is_traced(kind: Kind) {
    let device = kind.device();
    let seen = Mutex::new(Vec::new());
    let leaked = Mutex::new(None);
    let region = device.region(|x: TensorFuture| {
        let y = &x + 1.0;
        let mut seen = seen.lock().unwrap();
        seen.push(block_on(&x).unwrap_err());
        seen.push(block_on(y.to_vec::<f32>()).unwrap_err());
        seen.push(block_on((&y * 2.0).wait_to_read()).unwrap_err());
        // What has a shape that depends on data is read for it.
        seen.push(block_on(y.masked_select(y.gt(0.0))).unwrap_err());
        seen.push(block_on(x.unique()).unwrap_err());
        *leaked.lock().unwrap() = Some(&x * 3.0);
        y
    });
    // The closure has seen the errors; what it goes on with is as good as ever.
    assert_eq!(values(&region.call(device.ones([5000]))), [2.0; 5000]);
    for error in &*seen.lock().unwrap() {
        assert!(error.to_string().contains("region"), "{error}");
    }
    assert_eq!(seen.lock().unwrap().len(), 5);
    // What left the closure has an end as well, and so has what is made from it.
    let leaked = leaked.lock().unwrap().take().unwrap();
    assert!(block_on(&leaked).is_err() && block_on(&leaked + 1.0).is_err());
    assert_eq!(values(&(device.ones([2]) + 1.0)), [2.0; 2]);
}

fn a_closure_that_panics_leaves_its_thread_as_it_was(kind: Kind) {
    let device = kind.device();
    let region = device.region(|x: TensorFuture| -> TensorFuture {
        drop(x + 1.0);
        panic!("on purpose")
    });
    for _ in 0..2 {
        assert!(catch_unwind(AssertUnwindSafe(|| region.call(device.ones([2])))).is_err());
        assert_eq!(values(&(device.ones([2]) + 1.0)), [2.0; 2]);
    }
}

fn dropping_every_output_of_a_region_cancels_the_call(kind: Kind) {
    let device = kind.device();
    let counter = Counter::new();
    let one = device.region(|x: TensorFuture| counter.op(&counter.op(&x)));
    let two = device.region(|x: TensorFuture| [counter.op(&x), counter.op(&(x + 1.0))]);
    let x = device.ones([16]);
    let busy = kind.occupy(&device);
    for _ in 0..100 {
        drop(one.call(x.clone()));
        drop(two.call(x.clone()));
    }
    let kept = one.call(x.clone());
    busy.release();
    block_on(device.waitall()).unwrap();
    block_on(&kept).unwrap();
    assert_eq!(counter.runs(), 2);
    let stats = device.stats();
    assert_eq!(stats.started + stats.fused + stats.skipped, stats.enqueued, "{stats:?}");
}

fn an_output_that_is_dropped_is_not_computed(kind: Kind) {
    let device = kind.device();
    let (shared, first, second) = (Counter::new(), Counter::new(), Counter::new());
    let region = device.region(|x: TensorFuture| {
        let y = shared.op(&x);
        [first.op(&(&y + 1.0)), second.op(&(&y + 2.0))]
    });
    let x = device.ones([16]);
    let mut ran = [0, 0];
    for round in 1..6 {
        // What is published may still be in the task table, and its stream taken for busy.
        block_on(device.waitall()).unwrap();
        let busy = kind.occupy(&device);
        let mut outputs = region.call(x.clone()).map(Some);
        let kept = round % 2;
        outputs[1 - kept] = None;
        busy.release();
        assert_eq!(values(outputs[kept].as_ref().unwrap()), [kept as f32 + 2.0; 16]);
        ran[kept] += 1;
        assert_eq!((shared.runs(), [first.runs(), second.runs()]), (round, ran));
    }
    let [a, b] = region.call(x);
    assert_eq!((values(&a), values(&b)), (vec![2.0; 16], vec![3.0; 16]));
}

fn a_detach_in_a_region_holds_at_each_call(kind: Kind) {
    let device = kind.device();
    let counter = Counter::new();
    let region = device.region(|x: TensorFuture| {
        counter.op(&(&x * 2.0)).detach();
        identity("picky", &x, || Err(Refusal::kernel("never"))).detach();
        x + 1.0
    });
    for round in 1..4 {
        drop(region.call(device.ones([7])));
        let error = block_on(device.waitall()).unwrap_err();
        assert_eq!(error.errors().len(), 1, "{error}");
        assert_eq!((error.errors()[0].op(), counter.runs()), ("picky", round));
    }
}

fn an_op_that_fails_in_a_region_fails_what_is_made_from_it_alone(kind: Kind) {
    let device = kind.device();
    let line = line!() + 2;
    let region = device.region(|x: TensorFuture| {
        let bad = identity("picky", &(&x + 1.0), || Err(Refusal::kernel("not today")));
        [&bad * 2.0 + &x, (&x * 3.0).sum_all(), bad.sum_all()]
    });
    for _ in 0..3 {
        let [a, b, c] = region.call(device.ones([10]));
        assert_eq!(values(&b), [30.0]);
        for failed in [a, c] {
            let error = block_on(&failed).unwrap_err();
            assert_eq!(
                (error.op(), error.message(), error.location().line()),
                ("picky", "not today", line)
            );
        }
    }
}

fn a_failed_input_of_a_region_fails_what_is_made_from_it_alone(kind: Kind) {
    let device = kind.device();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| {
        (&x + &y, x.reshape([2, 2]), (&y * 2.0).sum_all(), y.exp())
    });
    for _ in 0..2 {
        let bad = identity("picky", &device.ones([4]), || Err(Refusal::kernel("not today")));
        let (a, b, c, d) = region.call((bad, device.ones([4])));
        assert_eq!(block_on(&a).unwrap_err().op(), "picky");
        assert_eq!(block_on(&b).unwrap_err().op(), "picky");
        assert_eq!(values(&c), [8.0]);
        assert!(block_on(&d).is_ok());
    }
}

fn an_op_that_is_refused_in_a_region_names_its_line(kind: Kind) {
    let device = kind.device();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| [&x * &y + 1.0, x + 1.0]);
    for _ in 0..2 {
        let [bad, good] = region.call((device.ones([2, 3]), device.ones([4])));
        let error = block_on(&bad).unwrap_err();
        assert!(
            error.is_shape()
                && error.op() == "mul"
                && error.location().file().ends_with("regions.rs")
        );
        assert_eq!(values(&good), [2.0; 6]);
    }
}

fn inputs_of_a_region_are_on_its_device(kind: Kind) {
    let (device, other) = (kind.device(), Device::cpu_with(Default::default()));
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| x + y);
    for _ in 0..2 {
        let z = region.call((device.ones([2]), other.ones([2])));
        assert!(z.error().is_some_and(|e| e.is_device() && e.op() == "region"));
        assert_eq!(values(&region.call((device.ones([2]), device.ones([2])))), [2.0; 2]);
    }
}

fn a_region_draws_what_its_ops_would_draw(kind: Kind) {
    let (device, plain) = (kind.device(), kind.device());
    let own = futensor::Generator::new(9);
    let block = |generator: &futensor::Generator, x: &TensorFuture| {
        let device = x.device();
        let unused = device.rand([33]);
        drop(unused);
        let noise = device.rand([5, 7]) + generator.randn(&device, [7]);
        [x + &noise, noise.sum_all() + device.rand([])]
    };
    let region = device.region(|x: TensorFuture| block(&own, &x));
    let same = futensor::Generator::new(9);
    device.seed(3);
    plain.seed(3);
    for _ in 0..3 {
        let [a, b] = region.call(device.ones([5, 7]));
        let [c, d] = block(&same, &plain.ones([5, 7]));
        assert_eq!((values(&a), values(&b)), (values(&c), values(&d)));
        // Draws beside it go on where the region's have ended.
        assert_eq!(values(&device.rand([4])), values(&plain.rand([4])));
    }
}

fn gradients_flow_through_a_region_and_inside_one(kind: Kind) {
    let device = kind.device();
    let square = device.region(|x: TensorFuture| (&x * &x).sum_all());
    let w = device.arange(1.0, 4.0, 1.0).requires_grad();
    for _ in 0..2 {
        // An input on the tape: op by op.
        let loss = square.call(w.clone());
        assert!(loss.is_on_tape());
        assert_eq!(values(&futensor::grad(&loss, &[&w])[0]), [2.0, 4.0, 6.0]);
        // None on it.
        assert_eq!(values(&square.call(w.stop_gradient())), [14.0]);
    }
    let captured = device.region(|x: TensorFuture| (&x * &w).sum_all());
    for _ in 0..2 {
        let loss = captured.call(device.full([3], 2.0));
        assert_eq!(values(&futensor::grad(&loss, &[&w])[0]), [2.0; 3]);
        let plain = futensor::no_grad(|| captured.call(device.full([3], 2.0)));
        assert!(!plain.is_on_tape() && values(&plain) == [12.0]);
    }
    // The gradient inside: a plan like any other.
    let inside = device.region(|x: TensorFuture| {
        let x = x.requires_grad();
        let loss = (&x * &x * &x).sum_all();
        let [gradient] = <[TensorFuture; 1]>::try_from(futensor::grad(&loss, &[&x])).unwrap();
        (loss.stop_gradient(), gradient)
    });
    for k in 1..4 {
        let (loss, gradient) = inside.call(device.full([2], k as f32));
        let k = k as f32;
        assert_eq!(
            (values(&loss), values(&gradient)),
            (vec![2.0 * k * k * k], vec![3.0 * k * k; 2])
        );
    }
    assert_eq!(inside.traces(), 1);
}

fn a_weight_updated_by_a_region_is_what_it_is_op_by_op(kind: Kind) {
    let device = kind.device();
    let step = |w: TensorFuture, x: &TensorFuture| {
        let w = w.requires_grad();
        let loss = (x.matmul(&w).tanh() - 0.5).square().mean_all();
        let gradient = futensor::grad(&loss, &[&w]).remove(0);
        (w.stop_gradient() - gradient * 0.1, loss.stop_gradient())
    };
    let region = device.region(|(w, x): (TensorFuture, TensorFuture)| step(w, &x));
    let x = device.rand([8, 5]);
    let start = device.rand([5, 3]);
    let (mut ours, mut theirs) = (start.clone(), start);
    for _ in 0..10 {
        let (next, loss) = region.call((ours, x.clone()));
        let (want, want_loss) = step(theirs, &x);
        assert_eq!(values(&loss), values(&want_loss));
        (ours, theirs) = (next, want);
    }
    assert_eq!(values(&ours), values(&theirs));
    assert_eq!(region.traces(), 1);
}

/// Each value is read last by one of several that run at once.
fn products_side_by_side_are_what_they_are_op_by_op(kind: Kind) {
    let device = kind.device();
    let n = 48;
    let w = device.rand([n, n]) * (1.0 / n as f32);
    let step = |x: &TensorFuture| {
        let [a, b, c] = [x.matmul(&w), x.matmul(w.transpose(0, 1)), x.softmax(1)];
        let [d, e, f] = [(a.matmul(&b) + &a).relu(), b.matmul(&c), c.matmul(&a) + &c];
        let cut = |x: &TensorFuture| x.narrow(0, 0, n / 2);
        (futensor::cat(&[cut(&d), cut(&e)], 0).matmul(&f), d.sum(0), e)
    };
    let region = device.region(|x: TensorFuture| step(&x));
    for _ in 0..10 {
        let x = device.rand([n, n]);
        let (want, got) = (step(&x), region.call(x));
        assert_eq!([&want.0, &want.1, &want.2].map(values), [&got.0, &got.1, &got.2].map(values));
    }
}

/// The sum that ends one group is an operand of the other: as one they would wait for themselves.
fn a_region_keeps_two_groups_apart_that_meet_again_behind_a_sum(kind: Kind) {
    let device = kind.device();
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| {
        let twice = &x * 2.0;
        let scaled = &y * twice.sum_all();
        &twice + &scaled
    });
    let x = device.arange(0.0, 6.0, 1.0).reshape([2, 3]);
    for _ in 0..3 {
        assert_eq!(
            values(&region.call((x.clone(), x.clone()))),
            [0.0, 32.0, 64.0, 96.0, 128.0, 160.0]
        );
    }
}

fn calls_of_a_region_overlap(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let region = device.region(|x: TensorFuture| gate.op(&(x + 1.0)) * 2.0);
    let (x, y) = (device.ones([4]), device.full([4], 2.0));
    let (a, b) = (region.call(x), region.call(y));
    gate.wait_entered(2);
    gate.open();
    assert_eq!((values(&a), values(&b)), (vec![4.0; 4], vec![6.0; 4]));
}

fn steps_of_a_region_that_need_nothing_of_each_other_run_side_by_side(kind: Kind) {
    let device = kind.device();
    let gate = Gate::new();
    let region = device.region(|x: TensorFuture| gate.op(&x) + gate.op(&x));
    let y = region.call(device.ones([4]));
    gate.wait_entered(2);
    gate.open();
    assert_eq!(values(&y), [2.0; 4]);
}

/// The sum is the last to read `twice` in the order of the plan, and could be written over it; the
/// other reader has begun, and has not read.
fn what_one_step_reads_none_writes_over_that_runs_beside_it(kind: Kind) {
    let device = kind.device();
    let (n, gate) = (128, Gate::new());
    let region = device.region(|(x, w): (TensorFuture, TensorFuture)| {
        let twice = x.matmul(&w * 2.0);
        (gate.op(&twice), &twice + x.matmul(&w))
    });
    let (kept, sum) = region.call((device.ones([n, n]), device.eye(n)));
    gate.wait_entered(1);
    std::thread::sleep(std::time::Duration::from_millis(20));
    gate.open();
    assert_eq!((values(&kept), values(&sum)), (vec![2.0; n * n], vec![3.0; n * n]));
}

fn a_region_writes_over_an_input_that_nobody_else_holds(kind: Kind) {
    let device = kind.device();
    let region = device.region(|x: TensorFuture| (x.sum_keepdim(0) * 1e-9 + &x) * 2.0);
    let bytes = 4 << 20;
    let mut x = device.rand([16, 1 << 16]);
    let mut kept = Vec::new();
    for i in 0..6 {
        if i == 3 {
            kept.push((x.clone(), values(&x)));
        }
        x = region.call(x);
        block_on(&x).unwrap();
    }
    for (x, was) in &kept {
        assert_eq!(&values(x), was, "somebody held it");
    }
    drop((x, kept));
    until(|| device.stats().bytes_live == 0);
    // One at a time but for the one that is kept, and its one successor, and a row of sums.
    assert!(device.stats().bytes_peak < 2 * bytes + bytes / 2, "{}", device.stats().bytes_peak);
}

/// More than one program may write, and what is cut off reads more than one may read.
fn a_region_of_many_outputs_of_many_inputs_is_planned(kind: Kind) {
    let device = kind.device();
    for reads in [9, 12] {
        let region = device.region(move |a: Vec<TensorFuture>| {
            let mut made = vec![&a[0] + &a[1]];
            for x in &a[2..9] {
                made.push(made[made.len() - 1].clone() + x);
            }
            let mut all = &made[0] + &made[1];
            for x in made[2..].iter().chain(&a[..reads]) {
                all = all + x;
            }
            made.push(all);
            made
        });
        let inputs: Vec<TensorFuture> =
            (0..reads).map(|k| device.full([3], k as f32) + device.ones([3])).collect();
        let got: Vec<f32> = region.call(inputs).iter().map(|y| values(y)[1]).collect();
        let mut want: Vec<f32> = (0..8).map(|m| (1..=m + 2).sum::<usize>() as f32).collect();
        want.push(want.iter().sum::<f32>() + (1..=reads).sum::<usize>() as f32);
        assert_eq!(got, want, "{reads}");
    }
}
