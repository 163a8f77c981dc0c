//! The values on the tape, and what the tape leaves alone.

use super::{block_on, device, read};
use futensor::sim::SimOptions;
use futensor::{DType, Device, GradOptions, checkpoint, grad, grad_with, no_grad};

#[test]
fn the_tape_follows_floats_from_leaves_and_nothing_else() {
    let device = device();
    let (x, w) = (device.ones([2, 2]), device.ones([2, 2]).requires_grad());
    assert!(w.is_on_tape() && !x.is_on_tape());
    assert!((&x * &w).is_on_tape() && w.clone().is_on_tape() && w.t().is_on_tape());
    assert!(!(&x * 2.0).is_on_tape());
    assert!(
        !w.gt(0.0).is_on_tape()
            && !w.argmax_all().is_on_tape()
            && !w.to_dtype(DType::I64).is_on_tape()
    );
    assert!(!w.stop_gradient().is_on_tape() && !(w.stop_gradient() * 2.0).is_on_tape());
    assert!(block_on(&w * 2.0).unwrap().is_on_tape());
}

#[test]
fn no_grad_ends_with_its_closure_after_a_panic_too() {
    let w = device().ones([2]).requires_grad();
    assert!(!no_grad(|| no_grad(|| &w * 2.0) + &w).is_on_tape());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        no_grad(|| panic!("in the closure"))
    }));
    assert!(panicked.is_err());
    assert!((&w * 2.0).is_on_tape());
}

#[test]
fn gradients_wait_for_nothing() {
    // Nothing runs on a simulated device until it is told to.
    let (device, simulation) = Device::simulated(SimOptions::new(5));
    let w = device.randn([4, 4]).requires_grad();
    let loss = (w.matmul(&w).relu() + w.exp().softmax(0)).logsumexp(1).sum_all();
    let gradients = grad_with(&loss, &[&w], GradOptions::default().graph(true));
    let second = grad(gradients[0].square().sum_all(), &[&w]);
    let stats = device.stats();
    assert_eq!((stats.started, stats.barriers), (0, 0));
    assert!(!second[0].is_ready());
    let values = simulation.block_on(second[0].to_vec::<f32>()).expect("it ends").unwrap();
    assert!(values.iter().all(|v| v.is_finite()));
}

#[test]
fn gradients_are_the_same_whatever_the_order_of_events() {
    let mut seen: Option<Vec<f32>> = None;
    for seed in 0..20 {
        let (device, simulation) = Device::simulated(SimOptions::new(seed));
        let w = (device.arange(0.0, 12.0, 1.0).reshape([3, 4]) / 7.0).requires_grad();
        let b = device.ones([3]).requires_grad();
        let h = (w.matmul(w.t()) + &b).tanh();
        let loss = (h.matmul(&w).gelu() * w.sin()).square().mean_all();
        let all = grad(&loss, &[&w, &b]);
        let joined = futensor::cat(&[all[0].reshape([-1]), all[1].clone()], 0);
        let values = simulation.block_on(joined.to_vec::<f32>()).expect("it ends").unwrap();
        assert_eq!(seen.get_or_insert_with(|| values.clone()), &values, "seed {seed}");
    }
}

#[test]
fn a_value_used_twice_gets_both_gradients() {
    let x = device().from_vec(vec![2.0f32], [1]).requires_grad();
    let y = x.square();
    let loss = (&y * &y + &y * &x + &x).sum_all();
    // x^4 + x^3 + x
    assert_eq!(read(&grad(&loss, &[&x])[0]), [4.0 * 8.0 + 3.0 * 4.0 + 1.0]);
}

#[test]
fn gradients_of_values_between_and_of_the_loss_itself() {
    let x = device().from_vec(vec![2.0f32], [1]).requires_grad();
    let y = x.square();
    let loss = y.exp().sum_all();
    let gradients = grad(&loss, &[&x, &y, &loss]);
    let e = 4f64.exp();
    for (got, want) in gradients.iter().map(|g| read(g)[0]).zip([4.0 * e, e, 1.0]) {
        assert!((got - want).abs() < 1e-4 * want, "{got} {want}");
    }
}

#[test]
fn a_checkpoint_repeats_its_draws() {
    let device = device();
    device.seed(3);
    let x = device.ones([64]).requires_grad();
    let y = checkpoint(|x| x[0].dropout(0.5) * device_rand(&x[0]), &[&x]);
    let after = read(&device.rand([4]));
    let values = read(&y);
    // y = mask * r * x: the gradient is y itself, with the same mask and the same numbers.
    assert_eq!(read(&grad(y.sum_all(), &[&x])[0]), values);
    assert!(values.contains(&0.0) && values.iter().any(|v| *v > 0.0));
    // The second run took no positions of its own.
    assert_ne!(read(&device.rand([4])), after);
    device.seed(3);
    let _ = (device.rand([64]), device.rand([64]), device.rand([4]));
    let third = read(&device.rand([4]));
    device.seed(3);
    drop(checkpoint(|x| x[0].dropout(0.5) * device_rand(&x[0]), &[&x]));
    drop(device.rand([4]));
    assert_eq!(read(&device.rand([4])), third);
}

fn device_rand(like: &futensor::TensorFuture) -> futensor::TensorFuture {
    like.device().rand(like.shape())
}

#[test]
fn many_threads_may_record_and_differentiate_at_once() {
    let device = device();
    let w = device.ones([8, 8]).requires_grad();
    let trunk = (&w * 0.1).matmul(&w).tanh();
    let want = {
        let loss = trunk.square().sum_all();
        read(&grad_with(&loss, &[&w], GradOptions::default().retain(true))[0])
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..50 {
                    let loss = trunk.square().sum_all();
                    let got = grad_with(&loss, &[&w], GradOptions::default().retain(true));
                    assert_eq!(read(&got[0]), want);
                }
            });
        }
    });
}
