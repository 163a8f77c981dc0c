//! Mixed precision gives ops the types that PyTorch's `autocast` on CUDA gives them, and the scaler
//! of gradients moves as PyTorch's: `tests/reference/mixed_precision.py`.

use crate::support::{block_on, near};
use futensor::mixed::{Half, autocast, full_precision, mixed_precision};
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{GradScaler, Sgd};
use futensor::{AttentionOptions, DType, Device, Reduction, TensorFuture, einsum, grad};
use serde_json::Value;

fn reference() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/mixed_precision.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// An op of the reference.
fn apply(name: &str, x: &TensorFuture, y: Option<&TensorFuture>) -> TensorFuture {
    let zeros = || x.device().full_dtype([4], 0i64, DType::I64);
    let one = |x: &TensorFuture| x.unsqueeze(0);
    if let Some(y) = y {
        return match name {
            "matmul" => x.matmul(y),
            "mm" => x.mm(y),
            "bmm" => one(x).bmm(one(y)),
            "addmm" => x.addmm(y, y, 1, 1),
            "baddbmm" => one(x).baddbmm(one(y), one(y), 1, 1),
            "addmv" => x.i(0).addmv(y, y.i(0), 1, 1),
            "linear" => x.linear(y, None),
            "linear_bias" => x.linear(y, Some(&y.i(0))),
            "einsum" => einsum("ij,jk->ik", &[x, y]),
            "conv1d" => one(x).conv1d(y.unsqueeze(-1), None, ()),
            "conv_transpose1d" => one(x).conv_transpose1d(y.unsqueeze(-1), None, ()),
            "attention" => {
                let options = AttentionOptions::default();
                one(x).scaled_dot_product_attention(one(y), one(y), options)
            }
            "prelu" => x.prelu(y.i(0)),
            "add" => x + y,
            "mul" => x * y,
            "div" => x / y,
            "pow" => x.pow(y),
            "maximum" => x.maximum(y),
            "atan2" => x.atan2(y),
            "cat" => futensor::cat(&[x, y], 0),
            "l1_loss" => x.l1_loss(y, ()),
            "smooth_l1_loss" => x.smooth_l1_loss(y, 1.0, ()),
            "mse_loss" => x.mse_loss(y, ()),
            "kl_div" => x.kl_div(y, false, Reduction::Sum),
            "bce_with_logits" => x.bce_with_logits(y, ()),
            "cosine_similarity" => x.cosine_similarity(y, 1, 1e-8),
            "cdist" => x.cdist(y, 2.0),
            "layer_norm" => x.layer_norm(&y.i(0), &y.i(0), 1e-5),
            "group_norm" => one(x).group_norm(2, Some(&y.i(0)), Some(&y.i(0)), 1e-5),
            other => panic!("{other} is no op of two operands"),
        };
    }
    macro_rules! unary {
        ($($name:ident)*) => {
            match name {
                $(stringify!($name) => x.$name(),)*
                other => panic!("{other} is no op"),
            }
        };
    }
    match name {
        "pow_scalar" => x.pow(2.5),
        "reciprocal" => x.recip(),
        "number_divided" => 2.0 / x,
        "divided_by_number" => x / 2.0,
        "softmax" => x.softmax(-1),
        "log_softmax" => x.log_softmax(-1),
        "logsumexp" => x.logsumexp(-1),
        "sum" => x.sum(0),
        "prod" => x.prod(0),
        "mean" => x.mean(0),
        "amax" => x.max(0),
        "cumsum" => x.cumsum(0),
        "cumprod" => x.cumprod(0),
        "norm" => x.norm(2.0, 0),
        "cross_entropy" => x.cross_entropy(zeros(), ()),
        "nll_loss" => x.nll_loss(zeros(), ()),
        _ => unary!(
            t gelu silu softplus abs acos asin atan cos cosh erf erfinv exp exp2 expm1 floor log
            log10 log1p log2 neg relu rsqrt sigmoid sin sinh sqrt square tan tanh
        ),
    }
}

#[test]
fn result_types_are_those_of_pytorchs_autocast() {
    let (device, reference) = (Device::cpu(), reference());
    for (half, name) in [(Half::BF16, "bfloat16"), (Half::F16, "float16")] {
        let rows = reference[name].as_array().unwrap();
        assert!(rows.len() > 250, "{} rows", rows.len());
        for row in rows {
            let (op, given) = (row[0].as_str().unwrap(), row[1].as_array().unwrap());
            let operand = |dtype: &Value| {
                let dtype = match dtype.as_str().unwrap() {
                    "float64" => DType::F64,
                    "bfloat16" => DType::BF16,
                    "float16" => DType::F16,
                    _ => DType::F32,
                };
                device.full_dtype([4, 4], 0.5, dtype)
            };
            let operands: Vec<TensorFuture> = given.iter().map(operand).collect();
            let y = autocast(half, || apply(op, &operands[0], operands.get(1)));
            assert!(y.error().is_none(), "{row}: {:?}", y.error());
            assert_eq!(y.dtype().to_string(), row[2].as_str().unwrap(), "{row}");
            block_on(y.wait_to_read()).unwrap_or_else(|error| panic!("{row}: {error}"));
        }
    }
}

#[test]
fn a_product_has_the_bits_of_the_same_product_of_halves() {
    let device = Device::cpu();
    device.seed(1);
    let (x, w, b) = (device.randn([5, 7]), device.randn([3, 7]), device.randn([3]));
    let half = |x: &TensorFuture| x.to_dtype(DType::BF16);
    let want = half(&x).linear(half(&w), Some(&half(&b)));
    let got = autocast(Half::BF16, || x.linear(&w, Some(&b)));
    let bits = |x: &TensorFuture| block_on(x.to_dtype(DType::F32).to_vec::<f32>()).unwrap();
    assert_eq!(bits(&got), bits(&want));
    assert_ne!(bits(&got), bits(&x.linear(&w, Some(&b))));
}

#[test]
fn a_networks_loss_and_gradients_are_pytorchs() {
    let (device, reference) = (Device::cpu(), reference());
    let value = |name: &str| {
        let [shape, numbers] = [0, 1].map(|k| reference["network"][name][k].as_array().unwrap());
        let shape: Vec<usize> = shape.iter().map(|n| n.as_u64().unwrap() as usize).collect();
        let numbers: Vec<f32> = numbers.iter().map(|x| x.as_f64().unwrap() as f32).collect();
        device.from_vec(numbers, &shape[..])
    };
    let names = ["w1", "b1", "w2", "b2"];
    let wrt = names.map(|name| value(name).requires_grad());
    let [w1, b1, w2, b2] = &wrt;
    let loss = autocast(Half::BF16, || {
        let hidden = value("x").linear(w1, Some(b1)).relu();
        hidden.linear(w2, Some(b2)).mse_loss(value("target"), ())
    });
    // Halves have 8 bits; each number is a sum of a few roundings.
    near(&loss, &value("loss"), 0.02, "loss");
    let gradients = grad(&loss, &wrt.each_ref()[..]);
    for (name, gradient) in names.iter().zip(&gradients) {
        assert_eq!(gradient.dtype(), DType::F32);
        near(gradient, &value(&format!("gradient {name}")), 0.02, name);
    }
}

#[test]
fn a_scope_belongs_to_its_task_and_the_innermost_counts() {
    let x = Device::cpu().ones([2, 2]);
    let dtype = |x: &TensorFuture| x.matmul(x).dtype();
    let inner = mixed_precision(Half::F16, async {
        let before = dtype(&x);
        let full = full_precision(async { dtype(&x) }).await;
        let other = mixed_precision(Half::BF16, async { dtype(&x) }).await;
        // Another task runs on this thread meanwhile.
        tokio::task::yield_now().await;
        let closure = autocast(None, || dtype(&x));
        [before, full, other, closure, dtype(&x)]
    });
    let outer = async {
        let before = dtype(&x);
        tokio::task::yield_now().await;
        [before, dtype(&x)]
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let (inside, outside) = runtime.block_on(async { tokio::join!(inner, outer) });
    assert_eq!(inside, [DType::F16, DType::F32, DType::BF16, DType::F32, DType::F16]);
    assert_eq!(outside, [DType::F32; 2]);
    assert_eq!(dtype(&x), DType::F32);
}

#[test]
fn a_region_has_a_plan_for_each_scope() {
    let device = Device::cpu();
    let region = device.region(|x: TensorFuture| x.matmul(&x));
    let x = device.ones([2, 2]);
    let halves = || autocast(Half::BF16, || region.call(x.clone())).dtype();
    for _ in 0..2 {
        assert_eq!(region.call(x.clone()).dtype(), DType::F32);
        assert_eq!(halves(), DType::BF16);
    }
    assert_eq!(region.traces(), 2);
}

#[test]
fn a_checkpoint_computes_again_in_its_scope_and_gradients_flow_outside_of_it() {
    let device = Device::cpu();
    device.seed(2);
    let (x, w) = (device.randn([4, 5]), device.randn([5, 5]).requires_grad());
    let block =
        |x: &TensorFuture, w: &TensorFuture| x.matmul(w).tanh().matmul(w).square().sum_all();
    let plain = autocast(Half::BF16, || block(&x, &w));
    let of = move |v: &[TensorFuture]| block(&v[0], &v[1]);
    let again = autocast(Half::BF16, || futensor::checkpoint(of, &[&x, &w]));
    let bits = |x: &TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
    let want = bits(&grad(&plain, &[&w])[0]);
    assert_eq!(bits(&grad(&again, &[&w])[0]), want);
    // The same inside a scope of another type: rules compute in the types of their values.
    let plain = autocast(Half::BF16, || block(&x, &w));
    let inside = autocast(Half::F16, || grad(&plain, &[&w]).remove(0));
    assert_eq!(bits(&inside), want);
}

#[test]
fn recurrent_layers_multiply_in_halves() {
    let device = Device::cpu();
    let (lstm, x) = (nn::Lstm::new(3, 4, (), &device), device.ones([2, 1, 3]));
    let y = autocast(Half::BF16, || lstm.forward(&x));
    assert_eq!(y.dtype(), DType::BF16);
    let near_to = lstm.forward(&x);
    near(&y, &near_to, 0.02, "an Lstm in bfloat16");
    // Of a half, for weights in float32.
    let y = autocast(Half::F16, || lstm.forward(&y).dtype());
    assert_eq!(y, DType::F16);
}

#[test]
fn the_scaler_moves_as_pytorchs() {
    let (device, reference) = (Device::cpu(), reference());
    let of = |name: &str| reference["scaler"][name].as_array().unwrap().clone();
    let numbers = |name: &str| of(name).iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let w = Parameter::new(device.ones([2]));
    let mut sgd = Sgd::new(vec![w.clone()], 0.25);
    let mut scaler = GradScaler::new(&device).initial(8.0).growth(2.0, 3);
    let (factors, weights) = (numbers("factors"), numbers("weights"));
    for (k, bad) in of("bad").iter().enumerate() {
        let bad = bad.as_bool().unwrap();
        let loss = (w.value() * if bad { f64::INFINITY } else { 1.0 }).sum_all();
        let step = block_on(scaler.minimize(&mut sgd, &loss));
        assert_eq!(step.is_err_and(|error| error.is_not_finite()), bad, "step {k}");
        assert_eq!(block_on(scaler.factor().item::<f32>()).unwrap() as f64, factors[k], "step {k}");
        let w = block_on(w.value().to_vec::<f32>()).unwrap();
        assert_eq!(w, [weights[k] as f32; 2], "step {k}");
        // A scaler that is restored goes on alike.
        let mut other = GradScaler::new(&device).growth(2.0, 3);
        other.load_state(scaler.state()).unwrap();
        scaler = other;
    }
}

#[test]
fn a_gradient_that_failed_leaves_the_scaler_as_it_was() {
    let device = Device::cpu();
    let mut scaler = GradScaler::new(&device).initial(4.0).growth(2.0, 1);
    let failed = device.ones([2]) + device.ones([3]);
    let unscaled = scaler.unscale(&[Some(device.ones([2])), None, Some(failed)]);
    assert!(unscaled[1].is_none());
    for x in unscaled.iter().flatten() {
        assert!(block_on(x.wait_to_read()).unwrap_err().is_shape());
    }
    assert_eq!(block_on(scaler.factor().item::<f32>()).unwrap(), 4.0);
    let unscaled = scaler.unscale(&[Some(device.full([1], 2.0))]);
    assert_eq!(block_on(unscaled[0].as_ref().unwrap().item::<f32>()).unwrap(), 0.5);
    assert_eq!(block_on(scaler.factor().item::<f32>()).unwrap(), 8.0);
}

#[test]
fn numbers_that_make_no_scaler_are_refused() {
    let device = Device::cpu();
    let w = Parameter::new(device.ones([2]));
    let mut sgd = Sgd::new(vec![w.clone()], 0.25);
    let new = || GradScaler::new(&device);
    for (mut wrong, text) in [
        (new().growth(1.0, 5), "GradScaler: the growth is 1: it has to be finite, and more than 1"),
        (new().growth(2.0, 0), "GradScaler: the interval is 0: it has to be 1 or more"),
        (new().backoff(1.0), "GradScaler: the backoff is 1: it has to be between 0 and 1"),
    ] {
        let error = block_on(wrong.minimize(&mut sgd, &w.value().sum_all())).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
        let failed = wrong.unscale(&[Some(device.ones([1]))]);
        assert!(failed[0].as_ref().unwrap().error().unwrap().is_argument());
    }
    let mut scaler = new();
    let state = vec![("factor".to_string(), device.ones([2]))];
    assert!(scaler.load_state(state).unwrap_err().is_argument());
    let wide = vec![("factor".into(), device.ones([2])), ("good".into(), device.ones([2]))];
    assert!(scaler.load_state(wide).unwrap_err().is_argument());
    assert!(scaler.load_state(vec![]).unwrap_err().is_argument());
    assert_eq!(block_on(w.value().to_vec::<f32>()).unwrap(), [1.0; 2]);
}
