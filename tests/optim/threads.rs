//! Changes that several threads make at once are all made.

use crate::steps::*;
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{self, Optimizer};
use futensor::{Device, TensorFuture};
use std::sync::Barrier;

const THREADS: usize = 8;
const TIMES: usize = 200;

/// Runs `f` on all threads at once, again and again.
fn at_once(f: impl Fn(usize) + Sync) {
    let begin = Barrier::new(THREADS);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (begin, f) = (&begin, &f);
            scope.spawn(move || {
                begin.wait();
                (0..TIMES).for_each(|_| f(thread));
            });
        }
    });
}

#[test]
fn running_averages_count_the_batches_of_all_tasks() {
    let device = Device::cpu();
    let norm = nn::BatchNorm::new(2, &device).momentum(0.5);
    let x = device.ones([4, 2]);
    at_once(|_| drop(norm.forward(&x)));
    let buffer = |name: &str| floats(&norm.parameter(name).expect("a buffer").value());
    assert_eq!(buffer("num_batches_tracked"), [(THREADS * TIMES) as f64]);
    assert!(buffer("running_mean").iter().all(|mean| (mean - 1.0).abs() < 1e-6));
    assert!(buffer("running_var").iter().all(|var| var.abs() < 1e-6));
}

#[test]
fn steps_of_several_optimizers_on_one_parameter_are_all_taken() {
    let device = Device::cpu();
    // By this much along each gradient of one, in so many steps.
    let makers: [(&str, fn(Vec<Parameter>) -> Box<dyn Optimizer + Send>); 3] = [
        ("Sgd", |p| Box::new(optim::Sgd::new(p, 0.25))),
        ("momentum", |p| Box::new(optim::Sgd::new(p, 0.25).momentum(1e-30))),
        ("AdamW", |p| {
            Box::new(optim::AdamW::new(p, 0.25).weight_decay(0.0).betas(0.0, 0.0).eps(0.0))
        }),
    ];
    for (name, make) in makers {
        let p = [Parameter::new(device.zeros([2])), Parameter::new(device.zeros([3]))];
        let optimizers: Vec<_> =
            (0..THREADS).map(|_| std::sync::Mutex::new(make(p.to_vec()))).collect();
        let gradients = [device.ones([2]), device.ones([3])];
        at_once(|thread| optimizers[thread].lock().unwrap().step(&gradients).detach());
        for p in &p {
            let want = -0.25 * (THREADS * TIMES) as f64;
            assert!(
                floats(&p.value()).iter().all(|x| *x == want),
                "{name}: {:?}, and not {want}",
                floats(&p.value())
            );
        }
    }
}

#[test]
fn an_update_is_made_again_where_another_came_between() {
    let device = Device::cpu();
    let (sum, calls) = (Parameter::new(device.zeros([1])), std::sync::atomic::AtomicUsize::new(0));
    let mut first = true;
    sum.update(|old| {
        calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        assert!(!old.is_on_tape(), "it is given the value alone");
        if std::mem::replace(&mut first, false) {
            // Somebody else's, meanwhile: nothing is locked.
            sum.update(|old| old + 10.0);
        }
        old + 1.0
    });
    assert_eq!(calls.into_inner(), 2);
    assert_eq!(floats(&sum.value()), [11.0]);
    assert!(sum.value().is_on_tape(), "a weight is a leaf again");

    at_once(|_| sum.update(|old| old + 1.0));
    assert_eq!(floats(&sum.value()), [11.0 + (THREADS * TIMES) as f64]);

    // One that has no value yet has none after it.
    let lazy = Parameter::lazy([Some(2)]);
    lazy.update(|_| device.ones([2]));
    assert!(lazy.is_lazy());
}

/// A step of several parameters is one change: half of one is never seen by another that fails.
#[test]
fn a_plain_step_is_taken_whole_though_others_step_the_same_parameters_in_another_order() {
    let device = Device::cpu();
    let p = [Parameter::new(device.zeros([2])), Parameter::new(device.zeros([2]))];
    let gradient = |x: f64| -> TensorFuture { device.full([2], x) };
    let gradients = [gradient(1.0), gradient(1.0)];
    at_once(|thread| {
        let mut order = p.to_vec();
        if thread % 2 == 0 {
            order.reverse();
        }
        // One that names a parameter twice steps it once.
        if thread == 0 {
            order[1] = order[0].clone();
        }
        optim::Sgd::new(order, 1.0).step(&gradients).detach();
    });
    let counts = p.map(|p| -floats(&p.value())[0]);
    let all = (THREADS * TIMES) as f64;
    assert_eq!(counts, [all - TIMES as f64, all]);
}
