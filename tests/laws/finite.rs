//! Law 7, where ops are checked: the first that makes a NaN or an infinity fails, and says where.

// NaN is made of an operand and itself, and a value that nobody awaited yet is what a task gives.
#![allow(clippy::eq_op, clippy::async_yields_async)]

use crate::support::{ALL, Gate, Kind, block_on};
use crate::{Laws, promises};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom};
use futensor::finite::{allow_not_finite, check_finite};
use futensor::{DType, Device, Error, GradOptions, TensorFuture, grad, grad_with};

pub fn add(laws: &mut Laws) {
    promises!(laws, 7, ALL;
        the_first_op_that_makes_a_nan_or_an_inf_fails_and_says_where
        what_is_made_of_a_nan_or_an_inf_is_no_error
        a_nan_that_is_made_of_infinities_is_found
        floats_of_all_types_are_checked
        what_ends_finite_is_no_error_however_large_its_operand
        ops_of_each_kind_are_checked
        the_op_of_a_gradient_says_of_which_op_it_is
        a_region_checks_its_ops_where_its_caller_is_checked
        a_scope_is_its_tasks_alone
        what_is_not_checked_queues_nothing_more);
}

fn found(value: &TensorFuture) -> Error {
    let error = block_on(value).expect_err("it is not finite");
    assert!(error.is_not_finite(), "{error}");
    error
}

fn is_nan(value: &TensorFuture) -> bool {
    block_on(value.to_vec::<f32>()).unwrap().iter().all(|x| x.is_nan())
}

fn the_first_op_that_makes_a_nan_or_an_inf_fails_and_says_where(kind: Kind) {
    let device = kind.checked_device();
    let x = device.arange(-1.0, 2.0, 1.0);
    let (root, line) = (x.sqrt(), line!());
    let sum = (&root * 2.0 + &x).sum_all();
    let error = found(&sum);
    let text = "1 NaN in the float32 result [3], and none in the operands [3]";
    assert_eq!(error.to_string(), format!("sqrt: {text} ({}:{line})", file!()));
    assert!(found(&root).same_root(&error));
    assert!(block_on(root.to_vec::<f32>()).unwrap_err().same_root(&error));
    root.detach();
    assert!(block_on(device.waitall()).unwrap_err().same_root(&error));

    let y = device.from_vec(vec![0f32, 1.0, 0.0, 0.0, 1.0, 2.0], [2, 3]);
    let error = found(&(&y / &y.i(0)));
    let text = "3 NaN and 1 inf in the float32 result [2, 3], and none in the operands [2, 3], [3]";
    assert_eq!((error.op(), error.message()), ("div", text));
    let error = found(&(1.0 / device.zeros([])));
    assert_eq!(error.message(), "1 inf in the float32 result [], and none in the operands []");

    // Others go on, and what they are is what they would be.
    assert_eq!(block_on((&x * 2.0).exp().log().to_vec::<f32>()).unwrap()[1], 0.0);
    assert_eq!(block_on((&x + 1.0).sqrt().sum_all().item::<f32>()).unwrap(), 1.0 + 2f32.sqrt());
}

fn what_is_made_of_a_nan_or_an_inf_is_no_error(kind: Kind) {
    let device = kind.checked_device();
    let bad = device.from_vec(vec![1.0, f32::NAN, f32::INFINITY], [3]);
    assert!(is_nan(&((&bad - &bad).sum_all() * 0.0)));
    assert!(is_nan(&(device.full([2], f32::NAN) + 1.0).exp()));
    let x = device.ones([2, 2]);
    assert!(is_nan(&(&x * f32::NAN)));
    assert_eq!(block_on((&x + f32::INFINITY).to_vec::<f32>()).unwrap(), [f32::INFINITY; 4]);
    let mask = device.from_vec(vec![true, false, true, false], [2, 2]);
    let masked = x.masked_fill(&mask, f32::NEG_INFINITY);
    assert_eq!(block_on(masked.softmax(1).to_vec::<f32>()).unwrap(), [0.0, 1.0, 0.0, 1.0]);
    assert_eq!(block_on(masked.max_all().item::<f32>()).unwrap(), 1.0);
}

fn a_nan_that_is_made_of_infinities_is_found(kind: Kind) {
    let device = kind.checked_device();
    let all = device.full([2], f32::NEG_INFINITY);
    assert_eq!(found(&all.softmax(0)).op(), "softmax");
    let error = found(&(&all - &all));
    assert_eq!(
        error.message(),
        "2 NaN in the float32 result [2], and none in the operands [2], [2]"
    );
    assert_eq!(found(&(device.zeros([2]) * f32::INFINITY)).op(), "mul");
}

fn floats_of_all_types_are_checked(kind: Kind) {
    let device = kind.checked_device();
    for (dtype, most) in [(DType::F16, 12.0), (DType::BF16, 90.0), (DType::F64, 800.0)] {
        let x = device.full([3], most).to_dtype(dtype);
        let error = found(&x.exp());
        let text = format!("3 inf in the {dtype} result [3], and none in the operands [3]");
        assert_eq!((error.op(), error.message()), ("exp", &text[..]));
        assert_eq!(found(&(&x - &x).log()).op(), "log");
        assert!(block_on((&x / 8.0).exp()).is_ok());
    }
    let large = device.full([2], 1e6) + 0.0;
    assert_eq!(found(&large.to_dtype(DType::F16)).op(), "to_dtype");
    // Integers have neither; what is made of them may.
    let n = device.from_vec(vec![0i64, 3], [2]);
    assert_eq!(found(&(&n / &n)).op(), "div");
    assert!(block_on(large.to_dtype(DType::I64)).is_ok());
}

/// What is composed of ops must not fail by a power on the way that its result does not have.
fn what_ends_finite_is_no_error_however_large_its_operand(kind: Kind) {
    type Made = fn(&TensorFuture, &TensorFuture) -> TensorFuture;
    let all: [(&str, Made); 22] = [
        ("relu", |x, _| x.relu()),
        ("sigmoid", |x, _| x.sigmoid()),
        ("tanh", |x, _| x.tanh()),
        ("silu", |x, _| x.silu()),
        ("gelu", |x, _| x.gelu()),
        ("gelu_tanh", |x, _| x.gelu_tanh()),
        ("hardswish", |x, _| x.hardswish()),
        ("leaky_relu", |x, _| x.leaky_relu(0.01)),
        ("softplus", |x, _| x.softplus()),
        ("softplus_with", |x, _| x.softplus_with(2.0, 20.0)),
        ("mish", |x, _| x.mish()),
        ("elu", |x, _| x.elu(1.5)),
        ("selu", |x, _| x.selu()),
        ("glu", |x, _| x.glu(0)),
        ("erf", |x, _| x.erf()),
        ("logaddexp", |x, t| x.logaddexp(t)),
        ("lerp", |x, t| x.lerp(t, 0.25)),
        ("lerp by a tensor", |x, t| x.lerp(t, t + 0.75)),
        ("softmax", |x, _| x.softmax(0)),
        ("log_softmax", |x, _| x.log_softmax(0)),
        ("bce_with_logits", |x, t| x.bce_with_logits(t, ())),
        ("cosine_similarity", |x, t| x.cosine_similarity(t + 1.0, 0, 1e-8)),
    ];
    let device = kind.checked_device();
    for (name, made) in all {
        for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
            for at in [-1000.0, 1000.0] {
                let x = (device.full([4], at) + 0.0).to_dtype(dtype).requires_grad();
                let target = device.zeros([4]).to_dtype(dtype);
                let y = made(&x, &target);
                let g = grad(y.sum_all(), &[&x]).remove(0);
                for value in [&y, &g] {
                    if let Err(error) = block_on(value) {
                        panic!("{name} of {at} in {dtype}: {error}");
                    }
                }
            }
        }
    }
}

/// Makes NaN of anything.
struct Careless;

impl Operation for Careless {
    fn name(&self) -> &str {
        "careless"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        run.output().fill_from(std::iter::repeat(f32::NAN));
        Ok(())
    }
}

fn ops_of_each_kind_are_checked(kind: Kind) {
    let device = kind.checked_device();
    let x = device.full([4, 4], 3e38) + 0.0;
    assert_eq!(found(&x.sum(0)).op(), "sum");
    assert_eq!(found(&x.matmul(&x)).op(), "matmul");
    assert_eq!(found(&x.cumsum(0)).op(), "cumsum");
    assert_eq!(found(&device.zeros([4]).mean(0).log()).op(), "log");
    if kind != Kind::Cuda {
        assert_eq!(found(&custom(Careless, &[&x])).op(), "careless");
    }
    let one = device.ones([1]) + 0.0;
    let error = found(&one.var_all(1.0));
    assert!(error.op() == "var" && error.message().starts_with("in its div: 1 NaN"), "{error}");
    // What moves elements makes nothing, and an empty value has nothing.
    assert!(block_on(futensor::cat(&[&x, &x], 0).transpose(0, 1).i(2)).is_ok());
    assert!(block_on(device.zeros([0, 3]).log().sum(1)).is_ok());
}

fn the_op_of_a_gradient_says_of_which_op_it_is(kind: Kind) {
    let device = kind.checked_device();
    let w = device.from_vec(vec![0f32, 4.0], [2]).requires_grad();
    let (root, line) = (w.sqrt(), line!());
    let loss = (&root * 3.0).sum_all();
    assert_eq!(block_on(loss.item::<f32>()).unwrap(), 6.0);
    let error = found(&grad(&loss, &[&w])[0]);
    assert!(error.message().starts_with("in the gradient of sqrt: 1 inf in"), "{error}");
    assert_eq!((error.location().file(), error.location().line()), (file!(), line), "{error}");

    // A loss that failed has gradients that fail with it where they need what failed.
    let wrong = (&w - 1.0).log().exp().sum_all();
    let error = found(&wrong);
    assert!(error.op() == "log" && error.message().starts_with("1 NaN"), "{error}");
    assert!(found(&grad(&wrong, &[&w])[0]).same_root(&error));

    let fine = (&w + 1.0).sqrt().sum_all();
    assert_eq!(block_on(grad(&fine, &[&w])[0].to_vec::<f32>()).unwrap()[0], 0.5);
    // Infinities that a rule makes on its way are its own.
    let power = w.pow(device.full([2], 2.0)).sum_all();
    assert_eq!(block_on(grad(&power, &[&w])[0].to_vec::<f32>()).unwrap(), [0.0, 8.0]);
    drop(root);

    // So it is in the rules of functions that several ops compute.
    let x = device.full([4, 2], 3.0).requires_grad();
    let (mean, tiny) = (device.full([2], 3.0), device.full([2], 1e-38));
    let cases: [(&str, u32, TensorFuture); 4] = [
        ("batch_norm", line!(), x.batch_norm(&mean, &tiny, None, None, 0.0)),
        ("batch_norm_train", line!(), x.batch_norm_train(None, None, 1e-38).0),
        ("elu", line!(), (&x - 4.0).elu(1e10)),
        ("lerp", line!(), x.lerp(&x + 0.0, 1e10)),
    ];
    let upstream = device.full([4, 2], 3e30);
    for (name, line, y) in cases {
        assert!(block_on(y.to_vec::<f32>()).is_ok(), "{name}");
        let flows = grad_with(&y, &[&x], GradOptions::default().upstream(&upstream));
        let error = found(&flows[0]);
        assert!(error.message().starts_with(&format!("in the gradient of {name}:")), "{error}");
        assert_eq!((error.location().file(), error.location().line()), (file!(), line), "{error}");
    }
}

fn a_region_checks_its_ops_where_its_caller_is_checked(kind: Kind) {
    let device = kind.device();
    let line = line!() + 2;
    let region = device.region(|(x, y): (TensorFuture, TensorFuture)| {
        let z = x.log();
        (z.sum_all(), &x * &y)
    });
    let y = device.ones([2]);
    let call = |x: f32| region.call((device.full([2], x), y.clone()));
    assert_eq!(block_on(call(0.0).0.item::<f32>()).unwrap(), f32::NEG_INFINITY);
    block_on(check_finite(async {
        for round in 0..4 {
            let (sum, product) = call(1.0);
            assert_eq!(sum.item::<f32>().await.unwrap(), 0.0);
            let (bad, fine) = call(0.0);
            let error = bad.await.unwrap_err();
            assert!(error.is_not_finite() && error.op() == "log", "{round}: {error}");
            assert_eq!(
                error.message(),
                "2 inf in the float32 result [2], and none in the operands [2]"
            );
            assert_eq!(error.location().line(), line, "{error}");
            assert_eq!(fine.to_vec::<f32>().await.unwrap(), [0.0; 2]);
            assert_eq!(product.to_vec::<f32>().await.unwrap(), [1.0; 2]);
        }
    }));
    assert_eq!(block_on(call(0.0).0.item::<f32>()).unwrap(), f32::NEG_INFINITY);
    assert_eq!(region.traces(), 2);

    // With gradients it runs op by op.
    let device = kind.checked_device();
    let region = device.region(|x: TensorFuture| x.sqrt().sum_all());
    let w = device.zeros([2]).requires_grad();
    let error = found(&grad(region.call(w.clone()), &[&w])[0]);
    assert!(error.message().starts_with("in the gradient of sqrt"), "{error}");
}

fn a_scope_is_its_tasks_alone(kind: Kind) {
    let device = kind.device();
    let zero = device.zeros([2]);
    let log = |device: &Device| device.zeros([2]).log();
    let gate = Gate::new();
    let checked = check_finite(async {
        let before = log(&device);
        // It stops here, and is polled again after the other.
        gate.op(&zero).await.unwrap();
        let inner = allow_not_finite(async { log(&device) }).await;
        (before, log(&device), inner)
    });
    let free = async {
        let value = log(&device);
        gate.open();
        value
    };
    let ((before, after, inner), free) = block_on(futures::future::join(checked, free));
    assert!(found(&before).op() == "log" && found(&after).op() == "log");
    for value in [free, inner, log(&device)] {
        assert_eq!(block_on(value.to_vec::<f32>()).unwrap(), [f32::NEG_INFINITY; 2]);
    }
    // A scope that is dropped in the middle leaves nothing behind.
    block_on(async {
        let mut stopped = check_finite(std::future::pending::<()>());
        assert!(futures::poll!(&mut stopped).is_pending());
    });
    assert!(block_on(log(&device)).is_ok());
}

fn what_is_not_checked_queues_nothing_more(kind: Kind) {
    let queued = async |device: &Device, ops: &dyn Fn(&TensorFuture) -> TensorFuture| {
        let x = device.ones([2]).await.unwrap();
        let before = device.stats().enqueued;
        ops(&x).await.unwrap();
        device.stats().enqueued - before
    };
    let two = |x: &TensorFuture| x.exp().log();
    assert_eq!(block_on(queued(&kind.device(), &two)), 2);
    let device = kind.checked_device();
    assert!(block_on(queued(&device, &two)) > 2);
    assert_eq!(block_on(allow_not_finite(queued(&device, &two))), 2);
    // Views, what is created, and what has no floats.
    let no_floats =
        |x: &TensorFuture| x.reshape([2, 1]).transpose(0, 1).gt(0.5).to_dtype(DType::I64);
    assert_eq!(block_on(queued(&device, &no_floats)), 4);
}
