//! Elementwise ops, reductions, norms, and what makes values.

use super::Call;
use futensor::*;

pub fn all() -> Vec<Call> {
    calls![
        ("neg", |x| vec![-x]),
        ("abs", |x| vec![x.abs()]),
        ("sqrt", |x| vec![x.sqrt()]),
        ("exp", |x| vec![x.exp()]),
        ("add1", |x| vec![x + 1.0]),
        ("addself", |x| vec![x + x]),
        ("add t", |x| vec![x + x.transpose(0, -1)]),
        ("div0", |x| vec![x / 0]),
        ("div0f", |x| vec![x / 0.0]),
        ("rem0", |x| vec![x.remainder(0)]),
        ("fmod0", |x| vec![x.fmod(0)]),
        ("fmod -1", |x| vec![x.fmod(-1)]),
        ("rem -1", |x| vec![x.remainder(-1)]),
        ("pow-1", |x| vec![x.pow(-1)]),
        ("pow 0.5", |x| vec![x.pow(0.5)]),
        ("pow big", |x| vec![x.pow(1000)]),
        ("min/-1", |x| vec![
            x.device().full_dtype((), i64::MIN, x.dtype()) / -1,
            x.device().full_dtype((), i64::MIN, x.dtype()).abs(),
            -x.device().full_dtype((), i64::MIN, x.dtype()),
            x.device().full_dtype((), i64::MAX, x.dtype()) + 1,
            x.device().full_dtype((), i64::MAX, x.dtype()) * 2
        ]),
        ("logical", |x| vec![
            x.logical_and(x),
            x.logical_or(1),
            x.logical_xor(0.5),
            x.logical_not()
        ]),
        ("bitwise", |x| vec![x.bitwise_and(x), x.bitwise_or(1), x.bitwise_not()]),
        ("bitwise f", |x| vec![x.bitwise_and(0.5)]),
        ("clamp rev", |x| vec![x.clamp(5, -5)]),
        ("clamp nan", |x| vec![x.clamp(f64::NAN, f64::INFINITY)]),
        ("clampmin", |x| vec![x.clamp_min(1e300), x.clamp_max(-1e300)]),
        ("elu nan", |x| vec![x.elu(f64::NAN), x.leaky_relu(f64::INFINITY)]),
        ("sums", |x| vec![x.sum_all(), x.mean_all(), x.prod_all(), x.any_all(), x.all_all()]),
        ("largest", |x| vec![x.max_all()]),
        ("largest", |x| vec![x.min_all()]),
        ("largest", |x| vec![x.argmax_all(), x.argmin_all()]),
        ("along the first", |x| vec![x.sum(0), x.sum_keepdim(-1), x.mean(0), x.prod(0)]),
        ("along none", |x| vec![x.sum(()), x.max(())]),
        ("sum[0,0]", |x| vec![x.sum([0, 0])]),
        ("sum99", |x| vec![x.sum(99)]),
        ("sum -99", |x| vec![x.sum(-99)]),
        ("sum big", |x| vec![x.sum(isize::MAX), x.sum(isize::MIN), x.sum(usize::MAX)]),
        ("along the first", |x| vec![x.max(0), x.argmax(0), x.argmin(-1), x.min(-1)]),
        ("argmax big", |x| vec![x.argmax(isize::MIN), x.argmax(isize::MAX), x.argmax_keepdim(7)]),
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
            x.rms_norm(x, 0.0),
            x.rms_norm_plain(usize::MAX, 0.0)
        ]),
        ("bn", |x| vec![
            x.batch_norm(x, x, None, None, 0.0),
            x.batch_norm_train(Some(x), None, 0.0).0,
            x.batch_norm_train(None, None, f64::NAN).1
        ]),
        ("inverses", |x| vec![
            x.asin(),
            x.acos(),
            x.atan(),
            x.asinh(),
            x.acosh(),
            x.atanh(),
            (x * 1e30).sinh(),
            (x * -1e30).cosh()
        ]),
        ("whole quotients", |x| vec![
            x.floor_divide(0),
            x.trunc_divide(0),
            x.floor_divide(-1),
            x.trunc_divide(-1),
            x.floor_divide(x),
            x.trunc_divide(0.0),
            x.floor_divide(f64::NAN),
            x.floor_divide(f64::INFINITY),
            x.device().full_dtype((), i64::MIN, x.dtype()).floor_divide(-1),
            x.device().full_dtype((), i64::MIN, x.dtype()).trunc_divide(-1)
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
            x.cumprod(0),
            x.cumprod(-1),
            x.cumprod(9),
            x.cumprod(isize::MIN),
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
