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
