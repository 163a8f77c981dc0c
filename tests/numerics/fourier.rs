//! Fourier transforms: `tests/reference/fourier.py`.

use crate::support::{block_on, cases, near, values};
use futensor::fft::Norm;
use futensor::{DType, Device, GradOptions, TensorFuture, grad, grad_with};

fn transform(op: &str, x: &TensorFuture, n: Option<usize>, dim: isize, norm: Norm) -> TensorFuture {
    match op {
        "fft" => x.fft(n, dim, norm),
        "ifft" => x.ifft(n, dim, norm),
        "rfft" => x.rfft(n, dim, norm),
        _ => x.irfft(n, dim, norm),
    }
}

fn along(op: &str, x: &TensorFuture, n: &[isize], dims: &[isize], norm: Norm) -> TensorFuture {
    match op {
        "fft2" => x.fft2(n, dims, norm),
        "ifft2" => x.ifft2(n, dims, norm),
        "rfft2" => x.rfft2(n, dims, norm),
        "irfft2" => x.irfft2(n, dims, norm),
        "fftn" => x.fftn(n, dims, norm),
        "ifftn" => x.ifftn(n, dims, norm),
        "rfftn" => x.rfftn(n, dims, norm),
        _ => x.irfftn(n, dims, norm),
    }
}

const ALONG: [&str; 8] = ["fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn"];

/// The call that a case names: `OP@n@dim@norm/SHAPE`, or with lists of `n` and `dim`.
fn call(case: &str, x: &TensorFuture) -> TensorFuture {
    let words: Vec<&str> = case.split(['@', '/']).collect();
    let norm = match words[3] {
        "backward" => Norm::Backward,
        "ortho" => Norm::Ortho,
        _ => Norm::Forward,
    };
    if ALONG.contains(&words[0]) {
        let numbers = |list: &str| -> Vec<isize> {
            list.split(',').filter(|n| !n.is_empty()).map(|n| n.parse().unwrap()).collect()
        };
        return along(words[0], x, &numbers(words[1]), &numbers(words[2]), norm);
    }
    let n = Some(words[1].parse().unwrap()).filter(|n| *n != 0);
    transform(words[0], x, n, words[2].parse().unwrap(), norm)
}

#[test]
fn transforms_are_pytorchs_in_values_and_gradients_of_two_orders() {
    let device = Device::cpu();
    let cases = cases("fourier", &device);
    assert_eq!(cases.len(), 40 + 8 * 7);
    for (case, of) in &cases {
        for (dtype, slack) in [(DType::F32, 3e-6), (DType::F64, 3e-7)] {
            let of = |what: &str| of[what].to_dtype(dtype);
            let x = of("x").requires_grad();
            let y = call(case, &x);
            assert_eq!(y.dtype(), dtype, "{case}");
            near(&y, &of("y"), slack, &format!("{case} {dtype}"));
            let cubes = (y.pow(3) * of("up")).sum_all();
            let options = GradOptions::default().graph(true);
            let first = grad_with(&cubes, &[&x], options).remove(0);
            near(&first, &of("first"), 4.0 * slack, &format!("{case} {dtype}, its gradient"));
            let second = grad((first * of("weight")).sum_all(), &[&x]).remove(0);
            near(&second, &of("second"), 8.0 * slack, &format!("{case} {dtype}, its second"));
        }
    }
}

/// More rows than threads, so that several have some; each is what it is alone.
#[test]
fn many_rows_are_transformed_as_each_alone() {
    let device = Device::cpu();
    device.seed(7);
    let x = block_on(device.randn([301, 96])).unwrap();
    let all = x.rfft(None, -1, Norm::Backward);
    for k in [0, 1, 149, 150, 151, 300] {
        let alone = x.i(k).rfft(None, -1, Norm::Backward);
        assert_eq!(values(&all.i(k)), values(&alone), "row {k}");
    }
    let columns = x.t().rfft(None, 0, Norm::Backward).transpose(0, 1);
    assert_eq!(values(&columns), values(&all));
}

/// Plans are kept by kind and length, some of them: what a length had before does not matter.
#[test]
fn a_hundred_lengths_one_after_the_other_go_there_and_back() {
    let device = Device::cpu();
    for n in (1..=100).chain(1..=3) {
        let x = block_on(device.randn([n])).unwrap();
        let back = x.rfft(None, 0, Norm::Ortho).irfft(n, 0, Norm::Ortho);
        near(&back, &x, 2e-6, &format!("{n} elements"));
    }
}

#[test]
fn what_cannot_be_transformed_is_refused_by_its_name_and_line() {
    let device = Device::cpu();
    let (real, pair) = (device.ones([3, 4]), device.ones([3, 2]));
    let none = Norm::Backward;
    let whole = pair.to_dtype(DType::I32);
    let half = pair.to_dtype(DType::F16);
    for op in ["fft", "ifft", "rfft", "irfft"] {
        for x in [&whole, &half] {
            let error = transform(op, x, None, -1, none).error().expect("another type");
            assert!(error.is_dtype() && error.op() == op, "{error}");
            assert!(error.message().starts_with("needs float32 or float64, not "), "{error}");
            assert!(error.to_string().contains("fourier.rs"), "{error}");
        }
        let error = transform(op, &pair, None, 5, none).error().expect("a dimension");
        assert!(error.is_index() && error.op() == op, "{error}");
        let error = transform(op, &pair, Some(0), 0, none).error().expect("no elements");
        assert!(error.is_argument() && error.message().contains("no elements"), "{error}");
        let large = transform(op, &pair, Some(usize::MAX / 2), 0, none);
        assert!(block_on(large).unwrap_err().is_out_of_memory());
    }
    for op in ["fft", "ifft", "irfft"] {
        let error = transform(op, &real, None, -1, none).error().expect("no parts");
        assert!(error.is_shape() && error.message().contains("unlike [3, 4]"), "{error}");
    }
    // Of nothing any length is as good.
    let empty = device.ones([0, 3]).rfft(usize::MAX / 8, -1, none);
    assert!(values(&empty).is_empty() && empty.dims() == [0, usize::MAX / 16 + 1, 2]);
    // Of one bin and no length there is nothing to make.
    assert!(device.ones([1, 2]).irfft(None, 0, none).error().is_some_and(|e| e.is_argument()));
    let failed = device.ones([2]).reshape([3, 2]);
    assert!(failed.fft(None, 0, none).error().is_some_and(|e| e.op() == "reshape"));
}

#[test]
fn what_cannot_be_transformed_along_its_dimensions_is_refused_by_its_name_and_line() {
    let device = Device::cpu();
    let (x, none) = (device.ones([3, 4, 2]), Norm::Backward);
    let is_real = |op: &str| op.starts_with('r');
    for op in ALONG {
        let of = |n: &[isize], dims: &[isize]| along(op, &x, n, dims, none);
        let rank = if is_real(op) { 3 } else { 2 };
        let wrong = [
            (of(&[], &[0, 0]), "dimension 0 is named twice".to_string()),
            (of(&[], &[0, -rank]), format!("dimension -{rank} is named twice")),
            (of(&[2, 2, 2], &[0, 1]), "3 sizes for 2 dimensions".to_string()),
            (of(&[2, 0], &[0, 1]), "a transform of no elements".to_string()),
            (of(&[2, -2], &[0, 1]), "a transform of no elements".to_string()),
        ];
        for (value, text) in &wrong {
            let error = value.error().expect("an argument");
            assert!(error.is_argument() && error.op() == op, "{error}");
            assert_eq!(error.message(), text, "{op}");
            assert!(error.to_string().contains("fourier.rs"), "{error}");
        }
        let error = of(&[], &[0, 7]).error().expect("a dimension");
        assert!(error.is_index() && error.op() == op, "{error}");
        let half = along(op, &x.to_dtype(DType::F16), &[], &[], none);
        assert!(half.error().is_some_and(|e| e.is_dtype() && e.op() == op), "{half:?}");
        let failed = along(op, &x.reshape([7]), &[], &[0, 1], none);
        assert!(failed.error().is_some_and(|e| e.op() == "reshape"), "{failed:?}");
        if !is_real(op) {
            let odd = along(op, &device.ones([3, 4]), &[], &[], none);
            assert!(odd.error().is_some_and(|e| e.is_shape() && e.op() == op), "{odd:?}");
        }
    }
    // Of one complex number there is no dimension to transform.
    let one = device.from_vec(vec![3.0f32, 4.0], [2]);
    assert_eq!(values(&one.fftn((), (), none)), [3.0, 4.0]);
    assert!(one.irfftn((), (), none).error().is_some_and(|e| e.is_argument()));
    assert!(device.ones(()).rfftn((), (), none).error().is_some_and(|e| e.is_argument()));
}

/// A value that waits does not hold up its caller.
#[test]
fn a_call_returns_before_its_operand_is_there() {
    let device = Device::cpu();
    let (sender, receiver) = futures::channel::oneshot::channel::<Vec<f32>>();
    let x = device.from_future([4], receiver);
    let y = x.rfft(None, -1, Norm::Backward);
    assert!(!y.is_ready() && y.dims() == [3, 2]);
    sender.send(vec![1.0, 2.0, 3.0, 2.0]).unwrap();
    assert_eq!(values(&y), [8.0, 0.0, -2.0, 0.0, 0.0, 0.0]);
}
