//! Linear algebra: `tests/reference/linalg.py`.

use crate::support::{block_on, cases, near, values};
use futensor::{DType, Device, GradOptions, TensorFuture, grad, grad_with};
use std::collections::BTreeSet;

/// The call that a case names, `OP@ARGUMENTS/SHAPES`.
fn call(case: &str, x: &[TensorFuture]) -> Vec<TensorFuture> {
    let (op, arguments) = case.split('/').next().unwrap().split_once('@').unwrap();
    let has = |word: &str| arguments.contains(word);
    match op {
        "solve" => vec![x[0].solve(&x[1])],
        "triangular_solve" => vec![x[0].triangular_solve(&x[1], has("u"), has("1"))],
        "lstsq" => vec![x[0].lstsq(&x[1])],
        "inverse" => vec![x[0].inverse()],
        "det" => vec![x[0].det()],
        "slogdet" => vec![x[0].slogdet().1],
        "cholesky" => vec![x[0].cholesky(has("u"))],
        "qr" => {
            let (q, r) = x[0].qr();
            vec![q, r]
        }
        "eigh" => {
            let (values, vectors) = x[0].eigh();
            vec![values, vectors.square()]
        }
        "svd" => {
            let (u, s, vh) = x[0].svd();
            vec![u.square(), s, vh.square()]
        }
        other => panic!("{other}"),
    }
}

/// A gradient as it is known: where one triangle is read, what is symmetric of it.
fn known(case: &str, x: &TensorFuture) -> TensorFuture {
    match case.starts_with("cholesky") || case.starts_with("eigh") {
        true => (x + x.transpose(-2, -1)) * 0.5,
        false => x.clone(),
    }
}

#[test]
fn linear_algebra_is_pytorchs_in_values_and_gradients_of_two_orders() {
    let device = Device::cpu();
    let cases = cases("linalg", &device);
    let ops: BTreeSet<&str> = cases.keys().filter_map(|case| case.split('@').next()).collect();
    assert_eq!((ops.len(), cases.len()), (10, 57));
    for (case, of) in &cases {
        for (dtype, slack) in [(DType::F64, 1e-9), (DType::F32, 3e-4)] {
            let all = |what: &str| -> Vec<TensorFuture> {
                let named = (0..).map_while(|k| of.get(&format!("{what}{k}")));
                named.map(|x| x.to_dtype(dtype)).collect()
            };
            let compare = |got: &[TensorFuture], what: &str, slack: f64| {
                for (k, (got, want)) in got.iter().zip(all(what)).enumerate() {
                    near(got, &want, slack, &format!("{case} {dtype}, {what} {k}"));
                }
            };
            let x: Vec<TensorFuture> = all("x").iter().map(|x| x.requires_grad()).collect();
            let y = call(case, &x);
            assert!(y.iter().all(|y| y.dtype() == dtype) && y.len() == all("y").len(), "{case}");
            compare(&y, "y", slack);
            let parts = y.iter().zip(all("up")).map(|(y, up)| (y.square() * up).sum_all());
            let sum = parts.reduce(|a, b| a + b).unwrap();
            let leaves: Vec<&TensorFuture> = x.iter().collect();
            let first = grad_with(&sum, &leaves, GradOptions::default().graph(true));
            let first: Vec<TensorFuture> = first.iter().map(|g| known(case, g)).collect();
            compare(&first, "first", 10.0 * slack);
            if of.contains_key("second0") {
                let parts = first.iter().zip(all("weight")).map(|(g, w)| (g * w).sum_all());
                let sum = parts.reduce(|a, b| a + b).unwrap();
                let second = grad(&sum, &leaves);
                let second: Vec<TensorFuture> = second.iter().map(|g| known(case, g)).collect();
                compare(&second, "second", 100.0 * slack);
            }
        }
    }
}

/// Of equal values the vectors are a choice: the sum of the values has a gradient, the identity.
#[test]
fn values_that_are_equal_have_a_gradient() {
    let device = Device::cpu();
    let x = device.eye_dtype([3, 3], DType::F64).requires_grad();
    for sum in [x.eigh().0.sum_all(), x.svd().1.sum_all()] {
        let gradient = grad(&sum, &[&x]).remove(0);
        near(&gradient, &device.eye_dtype([3, 3], DType::F64), 1e-12, "the trace's gradient");
    }
}

/// What multiplies to the matrix again, for sizes at which the crate takes other ways.
#[test]
fn factors_multiply_to_the_matrix() {
    let device = Device::cpu();
    device.seed(3);
    for [m, n] in [[1, 1], [64, 64], [70, 33], [33, 70], [150, 150]] {
        let x = block_on(device.randn([m, n]).to_dtype(DType::F64)).unwrap();
        let (q, r) = x.qr();
        near(&q.matmul(&r), &x, 1e-12, &format!("qr of {m} by {n}"));
        let (u, s, vh) = x.svd();
        near(&(u * s.unsqueeze(-2)).matmul(vh), &x, 1e-12, &format!("svd of {m} by {n}"));
        let square = x.matmul(x.t());
        let (values, vectors) = square.eigh();
        let again = (&vectors * values.unsqueeze(-2)).matmul(vectors.t());
        near(&again, &square, 1e-12, &format!("eigh of {m} by {m}"));
        let positive = square + device.eye_dtype([m, m], DType::F64);
        let l = positive.cholesky(false);
        near(&l.matmul(l.t()), &positive, 1e-12, &format!("cholesky of {m} by {m}"));
        let b = block_on(device.randn([m, 2]).to_dtype(DType::F64)).unwrap();
        near(&positive.matmul(positive.solve(&b)), &b, 1e-10, &format!("solve of {m} by {m}"));
    }
}

#[test]
fn determinants_of_singular_matrices_are_zero_and_their_logarithms_have_no_end() {
    let device = Device::cpu();
    let x = device.from_vec(vec![1.0f32, 2.0, 2.0, 4.0], [2, 2]).requires_grad();
    assert_eq!(values(&x.det()), [0.0]);
    let gradient = grad(x.det(), &[&x]).remove(0);
    let cofactors = device.from_vec(vec![4.0f32, -2.0, -2.0, 1.0], [2, 2]);
    near(&gradient, &cofactors, 1e-6, "the cofactors");
    let (sign, log) = x.slogdet();
    assert_eq!((values(&sign), values(&log)), (vec![0.0], vec![f64::NEG_INFINITY]));
    assert_eq!(values(&device.zeros([3, 3]).det()), [0.0]);
    let turned = device.from_vec(vec![0.0f32, 1.0, 1.0, 0.0], [2, 2]);
    assert_eq!((values(&turned.det()), values(&turned.slogdet().0)), (vec![-1.0], vec![-1.0]));
}

#[test]
fn a_matrix_that_does_not_allow_it_fails_its_value_alone() {
    let device = Device::cpu();
    let zero = device.zeros([2, 2]);
    let one = device.eye([2, 2]);
    let both = futensor::stack(&[&one, &zero], 0);
    let nan = device.full([2, 2], f64::NAN);
    let b = device.ones([2, 1]);
    let calls = [
        ("solve", zero.solve(&b), "the matrix is singular: pivot 1 of 2 is zero"),
        ("solve", both.solve(&b), "matrix 1 of the batch: the matrix is singular"),
        ("inverse", zero.inverse(), "the matrix is singular"),
        ("triangular_solve", zero.triangular_solve(&b, true, false), "element 0 of its diagonal"),
        ("cholesky", (&one - 2.0).cholesky(false), "its leading minor of order 1"),
        ("cholesky", nan.cholesky(true), "the matrix is not positive definite"),
        ("eigh", nan.eigh().0, "elements that are not finite"),
        ("eigh", nan.eigh().1, "elements that are not finite"),
        ("svd", nan.svd().1, "elements that are not finite"),
        ("lstsq", nan.lstsq(&b), "elements that are not finite"),
    ];
    for (op, value, words) in calls {
        let error = block_on(value.to_vec::<f32>()).unwrap_err();
        assert!(error.is_argument() && error.op() == op, "{error}");
        assert!(error.message().contains(words), "{error}");
        assert!(error.to_string().contains("linalg.rs"), "{error}");
    }
    assert_eq!(values(&one.solve(&b)), [1.0, 1.0]);
    // A gradient that needs an inverse says so.
    let x = zero.requires_grad();
    let gradient = grad(x.slogdet().1, &[&x]).remove(0);
    let error = block_on(gradient.to_vec::<f32>()).unwrap_err();
    assert!(error.op() == "slogdet" && error.message().contains("singular"), "{error}");
    assert!(error.to_string().contains("tests/numerics/linalg.rs"), "{error}");
}

#[test]
fn what_is_no_matrix_of_floats_is_refused_at_once() {
    let device = Device::cpu();
    let (vector, wide, b) = (device.ones([3]), device.ones([2, 3]), device.ones([2, 1]));
    let two = |x: &TensorFuture| -> [(&str, TensorFuture); 3] {
        [
            ("solve", x.solve(&b)),
            ("triangular_solve", x.triangular_solve(&b, true, true)),
            ("lstsq", x.lstsq(&b)),
        ]
    };
    let square = |x: &TensorFuture| -> [(&str, TensorFuture); 5] {
        let (values, sign) = (x.eigh().0, x.slogdet().0);
        [
            ("inverse", x.inverse()),
            ("det", x.det()),
            ("slogdet", sign),
            ("cholesky", x.cholesky(true)),
            ("eigh", values),
        ]
    };
    let any = |x: &TensorFuture| [("qr", x.qr().1), ("svd", x.svd().2)];
    let mut all = Vec::new();
    all.extend(two(&vector).into_iter().chain(square(&vector)).chain(any(&vector)));
    all.extend(two(&wide).into_iter().take(2).chain(square(&wide)));
    for (op, value) in all {
        let error = value.error().unwrap_or_else(|| panic!("{op} takes it"));
        assert!(error.is_shape() && error.op() == op, "{error}");
        assert!(error.to_string().contains("linalg.rs"), "{error}");
    }
    let apart = device.ones([2, 2]).solve(device.ones([3, 1]));
    assert!(apart.error().is_some_and(|e| e.message() == "[2, 2] and [3, 1] do not fit"));
    for dtype in [DType::F16, DType::I64] {
        let x = device.ones([2, 2]).to_dtype(dtype);
        for (op, value) in two(&x).into_iter().chain(square(&x)).chain(any(&x)) {
            let error = value.error().unwrap_or_else(|| panic!("{op} takes {dtype}"));
            assert!(error.is_dtype() && error.op() == op, "{error}");
        }
    }
    let double = device.ones_dtype([2, 1], DType::F64);
    assert!(device.eye([2, 2]).solve(double).error().is_some_and(|e| e.is_dtype()));
}

/// More matrices than threads; each is what it is alone.
#[test]
fn a_batch_is_what_its_matrices_are_alone() {
    let device = Device::cpu();
    device.seed(5);
    let x = block_on(device.randn([67, 9, 9])).unwrap();
    let (inverse, det) = (x.inverse(), x.det());
    for k in [0, 33, 34, 66] {
        assert_eq!(values(&inverse.i(k)), values(&x.i(k).inverse()), "matrix {k}");
        assert_eq!(values(&det.i(k)), values(&x.i(k).det()), "matrix {k}");
    }
}
