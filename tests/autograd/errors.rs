//! Errors stay with the gradients.

use super::{block_on, device, read};
use futensor::custom::{Backward, CpuRun, Meta, Needs, Operation, Refusal, custom, custom_fn};
use futensor::rows::{self, OperandRef};
use futensor::{Device, GradOptions, checkpoint, grad, grad_with};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[track_caller]
fn fails(gradient: &futensor::TensorFuture, word: &str) {
    let error = gradient.error().expect("a failed gradient");
    assert!(error.to_string().contains(word), "`{error}` does not say `{word}`");
    assert_eq!(error.to_string(), block_on(gradient).unwrap_err().to_string());
}

#[test]
fn a_loss_that_cannot_have_a_gradient_says_why() {
    let device = device();
    let w = device.ones([3]).requires_grad();
    fails(&grad(&w * 2.0, &[&w])[0], "not one element");
    fails(&grad(device.arange(0, 1, 1), &[&w])[0], "floating point");
    fails(&grad(device.ones(()), &[&w])[0], "does not depend");
    let other = device.ones([3]);
    fails(&grad(w.sum_all(), &[&other])[0], "requires_grad");
    fails(&grad(w.sum_all(), &[&device.arange(0, 3, 1)])[0], "int64 has no gradient");
    let options = GradOptions::default().upstream(&device.ones([2]));
    fails(&grad_with(&w * 2.0, &[&w], options)[0], "upstream");
}

#[test]
fn a_failed_loss_gives_its_root_to_every_gradient() {
    let device = device();
    let (w, b) = (device.ones([3]).requires_grad(), device.ones([2]).requires_grad());
    let loss = (&w + &b).sum_all();
    for gradient in grad(&loss, &[&w, &b]) {
        assert_eq!(gradient.error().unwrap().to_string(), loss.error().unwrap().to_string());
    }
    assert_eq!(grad(&loss, &[&w, &b])[1].dims(), [2]);
}

#[test]
fn an_op_without_a_rule_fails_what_is_behind_it_and_nothing_else() {
    let device = device();
    let (w, b) = (device.ones([2]).requires_grad(), device.ones([2]).requires_grad());
    let opaque = custom_fn(
        "opaque",
        &[&w],
        |inputs| Ok(inputs[0].clone()),
        |run| {
            let x = run.inputs()[0].to_vec::<f32>().unwrap();
            run.output().fill_from(x);
            Ok(())
        },
    );
    let gradients = grad((opaque * &b).sum_all(), &[&w, &b]);
    fails(&gradients[0], "opaque");
    fails(&gradients[0], "no gradient rule");
    fails(&gradients[0], "errors.rs");
    assert_eq!(read(&gradients[1]), [1.0, 1.0]);
}

#[test]
fn a_second_gradient_says_that_the_tape_is_used_up_unless_it_was_retained() {
    let device = device();
    let w = device.from_vec(vec![2.0f32], [1]).requires_grad();
    let loss = w.square().sin().sum_all();
    let first = grad_with(&loss, &[&w], GradOptions::default().retain(true));
    let second = grad(&loss, &[&w]);
    assert_eq!(read(&first[0]), read(&second[0]));
    fails(&grad(&loss, &[&w])[0], "used up");
    // What another gradient has used up is not needed for this one.
    let v = device.from_vec(vec![3.0f32], [1]).requires_grad();
    let h = w.exp();
    let (one, two) = ((&h * &v).sum_all(), (&h + &v).square().sum_all());
    let _ = grad(&one, &[&w]);
    let of_v = grad_with(&two, &[&v], GradOptions::default().retain(true));
    let e = 2f64.exp();
    assert!((read(&of_v[0])[0] - 2.0 * (e + 3.0)).abs() < 1e-4);
    fails(&grad(&two, &[&w])[0], "used up");
}

#[test]
fn what_the_loss_does_not_depend_on_is_an_error_or_zeros_if_asked() {
    let device = device();
    let (w, v) = (device.ones([2]).requires_grad(), device.ones([3]).requires_grad());
    let loss = w.sum_all();
    let gradients = grad_with(&loss, &[&v, &w], GradOptions::default().zeros(true));
    assert_eq!((read(&gradients[0]), read(&gradients[1])), (vec![0.0; 3], vec![1.0; 2]));
}

/// As PyTorch's `floor`, `sign` and `div` with a `rounding_mode`: the loss depends on the operand,
/// beside a value and beside a number; the gradient itself depends on nothing.
#[test]
fn through_an_op_that_is_flat_everywhere_the_gradient_is_zeros() {
    use OperandRef::{Scalar, Tensor};
    let device = device();
    let w = device.from_vec(vec![2.5f32, -0.3], [2]).requires_grad();
    let mut flat = 0;
    for row in rows::all().into_iter().filter(|row| !row.has_gradient && row.gives_numbers()) {
        let beside: &[&[OperandRef<'_>]] = match row.operands() {
            1 => &[&[Tensor(&w)]],
            _ => &[
                &[Tensor(&w), Scalar(2.into())],
                &[Scalar(2.into()), Tensor(&w)],
                &[Tensor(&w), Tensor(&w)],
            ],
        };
        for operands in beside {
            let y = row.call(operands).expect("an op of so many operands");
            let options = GradOptions::default().graph(true);
            let first = grad_with((&y + 1.0).sum_all(), &[&w], options).remove(0);
            assert_eq!(read(&first), [0.0, 0.0], "{}", row.name);
            fails(&grad(first.sum_all(), &[&w])[0], "does not depend");
            flat += 1;
        }
    }
    assert!(flat > 10, "the test does not see the ops");
}

#[test]
fn a_value_that_fails_later_fails_the_gradients_that_need_it() {
    let device = device();
    let w = device.ones([4]).requires_grad();
    let picked = w.gather(0, device.full([4], 9));
    let gradients = grad((&picked * &picked).sum_all(), &[&w]);
    assert!(block_on(&gradients[0]).unwrap_err().is_index());
}

#[test]
fn devices_are_not_mixed_and_gradients_cross_where_values_did() {
    let (a, b) = (device(), device());
    let w = a.from_vec(vec![1.0f32, 2.0], [2]).requires_grad();
    let loss = (w.to_device(&b) * b.from_vec(vec![3.0f32, 4.0], [2])).sum_all();
    assert_eq!(loss.device(), b);
    let gradients = grad(&loss, &[&w]);
    assert_eq!(gradients[0].device(), a);
    assert_eq!(read(&gradients[0]), [3.0, 4.0]);
    let options = GradOptions::default().upstream(&Device::cpu().ones(()));
    fails(&grad_with(w.sum_all(), &[&w], options)[0], "to_device");
}

/// A rule that gives seven numbers, whatever its operand is.
struct Seven;

impl Operation for Seven {
    fn name(&self) -> &str {
        "seven"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs()[0].to_vec::<f32>().expect("float32");
        run.output().fill_from(x);
        Ok(())
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| call.upstream().device().ones([7]));
        Ok(())
    }
}

#[test]
fn a_rule_that_gives_another_shape_fails_what_is_behind_it_and_is_named() {
    let device = device();
    let x = device.ones([2, 3]).requires_grad();
    let rows = device.arange(0, 2, 1);
    let puts = |x: &futensor::TensorFuture| x.clone().index_copy(1, &rows, x.narrow(1, 0, 2));
    for part in [
        x.clone(),
        x.narrow(1, 0, 2),
        x.index_select(1, &rows),
        puts(&x),
        x.gather(1, rows.reshape([1, 2])),
    ] {
        let gradient = grad(custom(Seven, &[&part]).sum_all(), &[&x]).remove(0);
        fails(&gradient, "seven: ");
        fails(&gradient, "[7]");
        fails(&gradient, "errors.rs");
        assert_eq!(gradient.dims(), [2, 3]);
    }
}

#[test]
fn a_block_that_gives_another_shape_or_fails_the_second_time_fails_its_gradients() {
    let device = device();
    let x = device.ones([2, 3]).requires_grad();
    let gradient = |second: fn(&futensor::TensorFuture) -> futensor::TensorFuture| {
        let times = AtomicUsize::new(0);
        let block = move |xs: &[futensor::TensorFuture]| match times.fetch_add(1, Relaxed) {
            0 => xs[0].narrow(1, 0, 2),
            _ => second(&xs[0]),
        };
        grad(checkpoint(block, &[&x]).sum_all(), &[&x]).remove(0)
    };
    let another = gradient(|x| x.reshape([1, 2, 3]).narrow(2, 0, 2));
    fails(&another, "checkpoint: ");
    fails(&another, "[1, 2, 2]");
    assert_eq!(another.dims(), [2, 3]);
    let failed = gradient(|x| x.reshape(7));
    fails(&failed, "checkpoint: reshape: ");
    fails(&failed, "errors.rs");
}

#[test]
fn a_rule_that_cannot_be_followed_says_where_its_op_was_called() {
    // Its sizes are too many to be laid out as one.
    let x = device().zeros([0, 1 << 40, 1 << 40]).requires_grad();
    let line = line!() + 1;
    let pooled = x.max_pool2d(2);
    let graph = GradOptions::default().graph(true);
    let slope = grad_with(pooled.square().sum_all(), &[&x], graph).remove(0);
    assert_eq!(slope.dims(), x.dims());
    // Its own rule takes elements at their places, in planes that are laid out as lines.
    fails(&grad(slope.sum_all(), &[&x])[0], &format!("errors.rs:{line}"));
}
