//! Values, types, order and gradients.

use super::stage::{Scene, Stage, block_on, settle};
use futensor::ranks::Combine::{Max, Min, Product, Sum};
use futensor::ranks::Group;
use futensor::{CpuOptions, DType, Device, grad};

pub fn scenes() -> Vec<Scene> {
    vec![
        Scene::of("values::every_collective_gives_what_its_name_says", 3, collectives),
        Scene::of("values::all_types_that_mpi_knows_and_halves", 2, types),
        Scene::of("values::calls_keep_their_order_whoever_is_late", 3, order),
        Scene::of("values::a_collective_runs_though_nobody_holds_its_result", 2, dropped),
        Scene::of("values::gradients_go_back_through_ranks", 2, gradients),
        Scene::of("values::splits_of_splits_work_apart", 4, splits),
        Scene::of("values::a_sum_takes_the_place_of_an_operand_that_nobody_else_has", 2, in_place),
        Scene::of("values::views_constants_and_nothing_at_all_can_be_sent", 2, layouts),
        Scene::of("values::calls_that_differ_are_an_error_on_every_rank", 2, differ),
        Scene::of(
            "values::an_operand_that_fails_fails_on_every_rank_and_shrink_goes_on",
            3,
            operand,
        ),
        Scene::of("values::an_executor_is_not_blocked_while_much_is_reduced", 2, heartbeat),
        Scene::of("values::times_and_sizes_without_end_have_an_end", 2, without_end),
    ]
}

pub fn collectives(stage: Stage) {
    let group = stage.join();
    let (r, n, device) = (group.rank(), group.size(), stage.device());
    assert_eq!(n, 3);
    let x = device.from_vec(vec![r as f32 + 1.0, 10.0 * (r as f32 + 1.0), 0.0], [3]);
    let read = |x: futensor::TensorFuture| block_on(x.to_vec::<f32>()).expect("a value");
    assert_eq!(read(x.all_reduce(&group, Sum)), [6.0, 60.0, 0.0]);
    assert_eq!(read(x.all_reduce(&group, Product)), [6.0, 6000.0, 0.0]);
    assert_eq!(read(x.all_reduce(&group, Min)), [1.0, 10.0, 0.0]);
    assert_eq!(read(x.all_reduce(&group, Max)), [3.0, 30.0, 0.0]);
    assert_eq!(read(x.broadcast(&group, 1)), [2.0, 20.0, 0.0]);
    let root = read(x.reduce(&group, Sum, 2));
    assert_eq!(root, if r == 2 { [6.0, 60.0, 0.0] } else { [0.0; 3] });
    let all = x.all_gather(&group);
    assert_eq!(all.dims(), [9]);
    assert_eq!(read(all), [1.0, 10.0, 0.0, 2.0, 20.0, 0.0, 3.0, 30.0, 0.0]);
    let part = x.reduce_scatter(&group, Sum);
    assert_eq!(read(part), [[6.0], [60.0], [0.0]][r]);
    let turned = read((&x + 0.5).all_to_all(&group));
    assert_eq!(turned, [[1.5, 2.5, 3.5], [10.5, 20.5, 30.5], [0.5, 0.5, 0.5]][r]);
    assert_eq!(
        block_on(x.sum_all().all_gather(&group).to_vec::<f32>()).unwrap(),
        [11.0, 22.0, 33.0]
    );
    // A ring, all at once.
    let sent = x.send(&group, (r + 1) % n);
    let got = group.recv((r + n - 1) % n, [3], DType::F32, &device);
    let from = ((r + n - 1) % n) as f32 + 1.0;
    assert_eq!(read(got), [from, 10.0 * from, 0.0]);
    block_on(sent).expect("it is sent");
    block_on(group.barrier()).expect("all are here");
    // What one rank refuses the others hear of: in a group of its own, so that nothing else fails.
    let apart = block_on(group.split(0)).expect("all of them");
    settle();
    assert!(x.broadcast(&apart, 3).error().is_some_and(|e| e.is_argument()), "there is no rank 3");
}

pub fn types(stage: Stage) {
    let group = stage.join();
    let device = stage.device();
    let mine = device.arange(1, 5, 1) + group.rank() as i64;
    for dtype in DType::ALL.into_iter().filter(|&dtype| dtype != DType::Bool) {
        let sum = mine.to_dtype(dtype).all_reduce(&group, Sum);
        assert_eq!(sum.dtype(), dtype);
        let sums = block_on(sum.to_dtype(DType::I64).to_vec::<i64>());
        match dtype.is_storage() {
            true => assert!(sums.unwrap_err().message().contains("for storage"), "{dtype}"),
            false => assert_eq!(sums.unwrap(), [3, 5, 7, 9], "{dtype}"),
        }
        let all = mine.to_dtype(dtype).all_gather(&group).to_dtype(DType::I64);
        assert_eq!(block_on(all.to_vec::<i64>()).unwrap(), [1, 2, 3, 4, 2, 3, 4, 5], "{dtype}");
    }
    let flags = device.from_vec(vec![true, group.rank() == 0, false], [3]);
    assert_eq!(
        block_on(flags.all_reduce(&group, Max).to_vec::<bool>()).unwrap(),
        [true, true, false]
    );
    assert_eq!(
        block_on(flags.all_reduce(&group, Min).to_vec::<bool>()).unwrap(),
        [true, false, false]
    );
    let apart = block_on(group.split(0)).expect("both");
    settle();
    let wrong = flags.all_reduce(&apart, Sum);
    assert!(block_on(&wrong).unwrap_err().is_dtype());
}

pub fn order(stage: Stage) {
    let group = stage.join();
    let device = stage.device();
    let r = group.rank();
    let mut sums = Vec::new();
    for k in 0..200 {
        // One rank is late at each, another each time.
        let x = if k % 3 == r {
            device.from_future([2], async move {
                std::thread::sleep(std::time::Duration::from_micros(300));
                Ok::<_, String>(vec![k as f32, 1.0])
            })
        } else {
            device.from_vec(vec![k as f32, 1.0], [2])
        };
        sums.push(x.all_reduce(&group, Sum));
    }
    // Awaited the other way round.
    for (k, sum) in sums.iter().enumerate().rev() {
        assert_eq!(block_on(sum.to_vec::<f32>()).unwrap(), [3.0 * k as f32, 3.0]);
    }
}

pub fn dropped(stage: Stage) {
    let group = stage.join();
    let x = stage.device().ones([4]);
    for _ in 0..10 {
        let sum = x.all_reduce(&group, Sum);
        if group.rank() == 0 {
            drop(sum);
        } else {
            assert_eq!(block_on(sum.to_vec::<f32>()).unwrap(), [2.0; 4]);
        }
    }
}

pub fn gradients(stage: Stage) {
    let group = stage.join();
    let (r, device) = (group.rank(), stage.device());
    let w = device.from_vec(vec![1.0f32, 2.0], [2]).requires_grad();
    let weights = device.from_vec(vec![r as f32 + 1.0, 10.0], [2]);
    let of = |loss: futensor::TensorFuture| {
        block_on(grad(&loss, &[&w])[0].to_vec::<f32>()).expect("a gradient")
    };
    // The gradient of a sum is the sum of the gradients.
    assert_eq!(of((w.all_reduce(&group, Sum) * &weights).sum_all()), [3.0, 20.0]);
    let rows = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [4]) * (r as f64 + 1.0);
    let gathered = of((w.all_gather(&group) * &rows).sum_all());
    assert_eq!(gathered, if r == 0 { [3.0, 6.0] } else { [9.0, 12.0] });
    assert_eq!(of((w.reduce_scatter(&group, Sum) * (r as f64 + 1.0)).sum_all()), [1.0, 2.0]);
    let root = of((w.broadcast(&group, 1) * &weights).sum_all());
    assert_eq!(root, if r == 1 { [3.0, 20.0] } else { [0.0; 2] });
    assert_eq!(of((w.reduce(&group, Sum, 0) * &weights).sum_all()), [1.0, 10.0]);
    assert_eq!(of((w.all_to_all(&group) * &weights).sum_all()), [[1.0, 2.0], [10.0, 10.0]][r]);
    let largest = w.all_reduce(&group, Max).sum_all();
    assert!(block_on(&grad(&largest, &[&w])[0]).unwrap_err().is_argument(), "only a sum has one");
}

pub fn splits(stage: Stage) {
    let group = stage.join();
    let half = block_on(group.split(group.rank() as u64 % 2)).expect("a half");
    assert_eq!((half.size(), half.rank()), (2, group.rank() / 2));
    let one = block_on(half.split(half.rank() as u64)).expect("one alone");
    assert_eq!(one.size(), 1);
    let x = stage.device().full([1], group.rank() as f32);
    let (all, two) = (x.all_reduce(&group, Sum), x.all_reduce(&half, Sum));
    assert_eq!(block_on(two.item::<f32>()).unwrap(), [2.0, 4.0][group.rank() % 2]);
    assert_eq!(block_on(all.item::<f32>()).unwrap(), 6.0);
    assert_eq!(block_on(x.all_reduce(&one, Sum).item::<f32>()).unwrap(), group.rank() as f32);
    // Groups that nobody holds any more go, each once what was asked of it is through.
    drop((half, one));
    // (Not more: once in some hundred communicators Open MPI hung at every member, and at each
    // further try.)
    for k in 0..4 {
        let short = block_on(group.split(k)).expect("all of them");
        let sum = x.all_reduce(&short, Sum);
        drop(short);
        assert_eq!(block_on(sum.item::<f32>()).unwrap(), 6.0);
    }
}

/// Whoever made the operand lets go of it a moment after it is there: so some of these, if not all.
fn in_place(stage: Stage) {
    const N: usize = 1 << 20;
    let group = stage.join();
    let mut once = 0;
    for _ in 0..10 {
        let device = Device::cpu_with(CpuOptions::default().threads(1));
        let (opens, gate) = futures::channel::oneshot::channel();
        let x = device.from_future([1], gate).expand([N]) * 2.0;
        let sum = x.all_reduce(&group, Sum);
        drop(x);
        opens.send(vec![1.5f32]).expect("it is awaited");
        assert_eq!(block_on(sum.narrow(0, N - 2, 2).to_vec::<f32>()).expect("a sum"), [6.0; 2]);
        once += usize::from(device.stats().bytes_peak < 2 * 4 * N);
        // One that somebody holds is not written over.
        let y = &sum * 1.0;
        let twice = y.all_reduce(&group, Sum);
        assert_eq!(block_on(twice.narrow(0, 0, 1).to_vec::<f32>()).expect("a sum"), [12.0]);
        assert_eq!(block_on(y.narrow(0, 0, 1).to_vec::<f32>()).expect("what it was"), [6.0]);
    }
    assert!(once > 0, "a second buffer each time");
}

pub fn layouts(stage: Stage) {
    let group = stage.join();
    let device = stage.device();
    let x = device.arange(0.0, 6.0, 1.0).reshape([2, 3]);
    assert_eq!(
        block_on(x.t().all_reduce(&group, Sum).to_vec::<f32>()).unwrap(),
        [0.0, 6.0, 2.0, 8.0, 4.0, 10.0]
    );
    assert_eq!(
        block_on(x.narrow(1, 1, 1).all_gather(&group).to_vec::<f32>()).unwrap(),
        [1.0, 4.0, 1.0, 4.0]
    );
    assert_eq!(
        block_on(device.ones([5]).all_reduce(&group, Sum).to_vec::<f32>()).unwrap(),
        [2.0; 5]
    );
    assert_eq!(
        block_on(device.ones([5, 0]).all_reduce(&group, Sum).to_vec::<f32>()).unwrap().len(),
        0
    );
    assert_eq!(block_on(device.full([], 3.0).all_reduce(&group, Sum).item::<f32>()).unwrap(), 6.0);
    // Its result is a value like any other: read twice, fused, written over.
    let sum = device.ones([1000]).all_reduce(&group, Sum);
    let (a, b) = (&sum * 2.0 + 1.0, sum.sqrt());
    drop(sum);
    assert_eq!(block_on(a.sum_all().item::<f32>()).unwrap(), 5000.0);
    assert!((block_on(b.max_all().item::<f32>()).unwrap() - 2f32.sqrt()).abs() < 1e-6);
    let region = device
        .region(|x: futensor::TensorFuture| x.all_reduce(&futensor::ranks::Group::alone(), Sum));
    assert!(block_on(region.call(device.ones([2]))).unwrap_err().message().contains("region"));
}

pub fn differ(stage: Stage) {
    let device = stage.device();
    let mut group = stage.join();
    let r = group.rank();
    // Shape, type, op, order.
    for k in 0..4 {
        let x = match k {
            0 => device.ones([2 + r]),
            1 => device.ones_dtype([2], [DType::F32, DType::I32][r]),
            _ => device.ones([2]),
        };
        let failed = match (k, r) {
            (2, 0) => x.all_reduce(&group, Max),
            (2, _) => x.all_reduce(&group, Sum),
            (3, 0) => x.all_gather(&group),
            _ => x.all_reduce(&group, Sum),
        };
        let error = block_on(&failed).unwrap_err();
        assert!(
            error.is_argument() && error.message().starts_with("calls differ: rank 0 calls"),
            "{error}"
        );
        // Nothing comes of that group any more, and a new one of the same members does.
        assert!(block_on(device.ones([2]).all_reduce(&group, Sum)).unwrap_err().is_argument());
        group = block_on(group.shrink()).expect("a whole group");
        assert_eq!((group.rank(), group.size()), (r, 2));
        assert_eq!(
            block_on(device.ones([2]).all_reduce(&group, Sum).to_vec::<f32>()).unwrap(),
            [2.0; 2]
        );
    }
}

pub fn operand(stage: Stage) {
    let group = stage.join();
    let device = stage.device();
    let x = if group.rank() == 1 { device.ones([2]) + device.ones([3]) } else { device.ones([2]) };
    let error = block_on(&x.all_reduce(&group, Sum)).unwrap_err();
    match group.rank() {
        1 => assert!(error.is_shape() && error.op() == "add", "{error}"),
        _ => {
            assert!(error.message().contains("the operand of rank 1 has failed: add"), "{error}")
        }
    }
    assert!(block_on(group.barrier()).is_err());
    let group = block_on(group.shrink()).expect("a whole group");
    assert_eq!(block_on(device.ones([1]).all_reduce(&group, Sum).item::<f32>()).unwrap(), 3.0);
}

pub fn without_end(stage: Stage) {
    let most = std::time::Duration::MAX;
    let options = stage.options().arrival(most).silence(most).deadline(most).compares(true);
    let group = block_on(Group::join(options)).expect("a group");
    let device = stage.device();
    for _ in 0..2 {
        assert_eq!(
            block_on(device.ones([1]).all_reduce(&group, Sum).item::<f32>()).expect("a sum"),
            2.0
        );
    }
    let part = block_on(group.split(0)).expect("a group of both");
    block_on(part.barrier()).expect("both are here");
    let error = block_on(&device.zeros([1usize << 63, 0]).all_gather(&group)).unwrap_err();
    assert!(error.is_out_of_memory() && error.op() == "zeros", "{error}");
    let group = block_on(group.shrink()).expect("both are left");
    block_on(group.barrier()).expect("both are here");
}

pub fn heartbeat(stage: Stage) {
    let group = stage.join();
    // What a simulated GPU exchanges takes longer.
    let much = if stage.device() == Device::cpu() { 16 << 20 } else { 2 << 20 };
    let x = stage.device().ones([much]) * 1.0;
    block_on(&x).expect("it is there");
    let sums: Vec<_> = (0..2).map(|_| x.all_reduce(&group, Sum)).collect();
    // A task beside the wait: it runs at each turn, none of which may be held up.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let mut latest = std::time::Duration::ZERO;
    let beats = runtime.block_on(async {
        let done = futures::future::join_all(sums);
        tokio::pin!(done);
        let mut beats = 0;
        loop {
            let due = std::time::Instant::now() + std::time::Duration::from_millis(1);
            tokio::select! {
                all = &mut done => {
                    all.into_iter().for_each(|sum| drop(sum.expect("a sum")));
                    return beats;
                }
                _ = tokio::time::sleep_until(due.into()) => {
                    latest = latest.max(due.elapsed());
                    beats += 1;
                }
            }
        }
    });
    stage.note(&format!("late-{}", group.rank()), latest.as_micros());
    assert!(
        beats > 5 && latest < std::time::Duration::from_millis(100),
        "{beats} beats, one late by {latest:?}"
    );
}
