//! Elementwise ops, reductions, norms, and what makes values.

use super::Call;
use futensor::*;

pub fn all() -> Vec<Call> {
    calls![
        ("add1", |x| vec![x + 1.0]),
        ("bitwise_not", |x| vec![x.bitwise_not()]),
        ("clamp rev", |x| vec![x.clamp(5, -5)]),
        ("clamp nan", |x| vec![x.clamp(f64::NAN, f64::INFINITY)]),
        ("clampmin", |x| vec![x.clamp_min(1e300), x.clamp_max(-1e300)]),
        ("elu nan", |x| vec![x.elu(f64::NAN), x.leaky_relu(f64::INFINITY)]),
        ("lerp", |x| vec![
            x.lerp(x, 0.5),
            x.lerp(x, f64::NAN),
            x.lerp(x, x),
            x.lerp(x.device().zeros([7, 1, 5]), 2)
        ]),
        ("nan_to_num", |x| vec![
            x.nan_to_num(None, None, None),
            x.nan_to_num(f64::INFINITY, f64::NAN, 1e300)
        ]),
        ("isclose", |x| vec![
            x.isclose(x, 1e-5, 1e-8, true),
            x.isclose(x, f64::NAN, 0.0, false),
            x.isclose(x.device().zeros([7, 5]), f64::INFINITY, 0.0, false),
            x.allclose(x, 0.0, -1.0, true),
            x.allclose(x, 0.0, 0.0, false)
        ]),
        ("round_decimals", |x| vec![
            x.round_decimals(i32::MIN),
            x.round_decimals(i32::MAX),
            x.round_decimals(0)
        ]),
        ("softplus_with", |x| vec![
            x.softplus_with(0.0, f64::NAN),
            x.softplus_with(f64::INFINITY, -1.0),
            x.softplus_with(-1.0, 2.0)
        ]),
        ("activations", |x| vec![
            x.mish(),
            x.hardswish(),
            x.selu(),
            x.prelu(x),
            x.prelu(x.device().full([1], f32::NAN)),
            x.glu(0),
            x.glu(-1),
            x.glu(isize::MIN)
        ]),
        ("vectors", |x| vec![
            x.dot(x),
            x.dot(x.device().zeros([0])),
            x.outer(x),
            x.inner(x),
            x.inner(x.device().zeros([0])),
            x.cosine_similarity(x, 0, f64::NAN),
            x.cosine_similarity(x, 99, 0.0),
            x.cosine_similarity(x.device().zeros([7, 5]), 0, 1e-8),
            x.cdist(x, 2.0),
            x.cdist(x, f64::NAN),
            x.cdist(x, -1.0),
            x.cdist(x, f64::INFINITY)
        ]),
        ("beside products", |x| vec![
            x.addmv(x, x, 1, 1),
            x.addmv(x.device().ones([3, 2]), x.device().ones([2]), 0.5, f64::NAN),
            x.baddbmm(x, x, 1, 1),
            x.baddbmm(x.device().ones([2, 3, 0]), x.device().ones([2, 0, 3]), 0, 2)
        ]),
        ("variances", |x| vec![
            x.var(0, 1.0),
            x.var_all(f64::NAN),
            x.std_all(1e9),
            x.std(-1, -3.0),
            x.var_keepdim([0, 0], 1.0),
            x.var((), 1.0)
        ]),
        ("norms", |x| vec![
            x.norm_all(2.0),
            x.norm(0.0, 0),
            x.norm(f64::INFINITY, -1),
            x.norm(f64::NEG_INFINITY, 0),
            x.norm_all(f64::NAN),
            x.norm(-1.0, 99),
            x.norm(f64::INFINITY, ())
        ]),
        ("logsumexp", |x| vec![
            x.logsumexp(0),
            x.logsumexp(()),
            x.logsumexp([0, 0]),
            x.logsumexp(isize::MIN),
            x.logsumexp_keepdim([0, 1])
        ]),
        ("softmax", |x| vec![x.softmax(0), x.softmax(-1), x.log_softmax(5), x.softmax(isize::MIN)]),
        ("ln", |x| vec![
            x.layer_norm_plain(1, 1e-5),
            x.layer_norm_plain(0, 1e-5),
            x.layer_norm_plain(99, 1e-5),
            x.layer_norm_plain(usize::MAX, 1e-5),
            x.layer_norm_plain(1, f64::NAN),
            x.layer_norm(x, x, 0.0),
            x.layer_norm_weighted(x, -1.0),
            x.rms_norm(x, 0.0),
            x.rms_norm_plain(usize::MAX, 0.0)
        ]),
        ("bn", |x| vec![
            x.batch_norm(x, x, None, None, 0.0),
            x.batch_norm_train(Some(x), None, 0.0).0,
            x.batch_norm_train(None, None, f64::NAN).1
        ]),
        ("initial", |x| vec![
            x.max_initial(0, 1),
            x.max_initial((), f64::NAN),
            x.min_initial([0, 0], 1),
            x.min_initial(99, i64::MIN),
            x.max_initial_keepdim(-1, 1e300),
            x.min_initial_all(-1e300),
            x.max_initial_all(true),
            x.min_initial_keepdim(isize::MIN, 0)
        ]),
        ("running", |x| vec![
            x.cumsum_with(0, true, true),
            x.cumsum_with(7, true, false),
            x.cumprod_with(-1, true, false),
            x.cumprod_with(0, false, true),
            x.cumprod_with(isize::MAX, true, true)
        ]),
        ("eye", |x| {
            let d = x.device();
            vec![
                d.eye_dtype([2, 3], x.dtype()),
                d.eye_dtype([1, 2, 3], x.dtype()),
                d.eye_diagonal(3, i64::MIN, x.dtype()),
                d.eye_diagonal([0, 2], i64::MAX, x.dtype()),
                d.eye_diagonal([usize::MAX, 2], 1, x.dtype()),
                d.eye_diagonal([usize::MAX, usize::MAX], i64::MIN, x.dtype()),
            ]
        }),
    ]
}
