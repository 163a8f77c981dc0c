//! Picking, putting back, sorting.

use super::Call;
use futensor::op_options::{Between, ScatterOptions};
use futensor::read::Later;
use futensor::*;

/// The values of a call whose shape depends on data; none where it fails.
fn shaped(later: [Later; 2]) -> Vec<TensorFuture> {
    later.into_iter().filter_map(|x| block_on(x).ok()).collect()
}

pub fn all() -> Vec<Call> {
    calls![
        ("gather self", |x| vec![
            x.gather(0, x),
            x.gather(-1, x),
            x.gather(99, x),
            x.gather(isize::MIN, x)
        ]),
        ("gather oob", |x| vec![
            x.gather(0, x.device().full(x.shape(), i64::MAX)),
            x.gather(0, x.device().full(x.shape(), -1)),
            x.gather(0, x.device().full(x.shape(), i64::MIN))
        ]),
        ("index_select", |x| vec![
            x.index_select(0, x),
            x.index_select(0, x.device().full([2], 99)),
            x.index_select(9, x.device().full([2], 0)),
            x.index_select(0, x.device().zeros_dtype([0], DType::I64)),
            x.index_select(0, x.device().full((), 0))
        ]),
        ("embedding", |x| vec![
            x.embedding(x),
            x.embedding(x.device().full([2, 2], 0)),
            x.embedding(x.device().full([2], -1))
        ]),
        ("scatter_add", |x| vec![
            x.scatter_add(0, x, x),
            x.scatter_add(0, x.device().full(x.shape(), 0), x),
            x.scatter_add(0, x.device().full(x.shape(), 77), x),
            x.scatter_add(-7, x, x)
        ]),
        ("index_copy", |x| vec![
            x.clone().index_copy(0, x, x),
            x.clone().index_copy(0, x.device().full([1], 0), x.narrow(0, 0, 1)),
            x.clone().index_copy(-1, x.device().full([1], 77), x.narrow(-1, 0, 1)),
            x.clone().index_copy(isize::MIN, x, x),
            x.clone().index_copy(0, x.device().zeros_dtype([0], DType::U8), x.narrow(0, 0, 0))
        ]),
        ("scatter", |x| vec![
            x.scatter(0, x, x),
            x.scatter(0, x.device().full(x.shape(), -1), x),
            x.scatter(-1, x.device().full(x.shape(), 77), x),
            x.scatter(-7, x, x),
            x.scatter(isize::MIN, x.device().zeros_dtype(x.shape(), DType::U8), x),
            x.scatter(0, x.device().full_dtype(x.shape(), 255, DType::U8), x),
            x.scatter(0, x.device().full([1; 3], i64::MIN), x)
        ]),
        ("scatter_reduce", |x| [
            ScatterMode::Assign,
            ScatterMode::Sum,
            ScatterMode::Prod,
            ScatterMode::Max,
            ScatterMode::Min
        ]
        .into_iter()
        .flat_map(|mode| [
            x.scatter_reduce(0, x.device().full(x.shape(), 0), x, mode),
            x.scatter_reduce(-1, x.device().full(x.shape(), i64::MAX), x, mode)
        ])
        .collect()),
        ("scatter_reduce alone", |x| [
            ScatterOptions::mean(),
            ScatterOptions::mean().include_self(false),
            ScatterOptions::from(ScatterMode::Max).include_self(false),
            ScatterOptions::from(ScatterMode::Assign).include_self(false)
        ]
        .into_iter()
        .flat_map(|how| [
            x.scatter_reduce(0, x.device().full(x.shape(), 0), x, how),
            x.scatter_reduce(-1, x, x.device().zeros([2]), how)
        ])
        .collect()),
        ("index_add", |x| vec![
            x.index_add(0, x, x, 1),
            x.index_add(0, x.device().full([1], 0), x.narrow(0, 0, 1), 2.5),
            x.index_add(isize::MIN, x.device().full([1], 77), x, i64::MAX),
            x.index_add(-1, x.device().full((), 0), x, f64::NAN)
        ]),
        ("index_fill", |x| vec![
            x.clone().index_fill(0, x, 1),
            x.clone().index_fill(-1, x.device().full([1], 0), f64::NAN),
            x.clone().index_fill(99, x.device().full([1], 0), 1),
            x.clone().index_fill(0, x.device().full([2], i64::MIN), 1)
        ]),
        ("index_put", |x| vec![
            x.index_put(&[], x, true),
            x.index_put(&[Some(x)], x, false),
            x.index_put(&[None, None, None, None], x, false),
            x.index_put(&[Some(&x.device().full([2], 0))], x.device().zeros([7]), true),
            x.index_put(&[Some(&x.device().full((), 0))], x.i(0), true),
            x.index_put(&[Some(&x.device().full([2], i64::MIN))], x.i(0), false)
        ]),
        ("searchsorted", |x| vec![
            x.searchsorted(x, true),
            x.reshape(-1).searchsorted(x, false),
            x.searchsorted(x.device().zeros([0]), false),
            x.searchsorted(x.device().full((), f64::NAN), true)
        ]),
        ("histc", |x| vec![
            x.histc(3, 0.0, 0.0),
            x.histc(0, 0.0, 1.0),
            x.histc(2, 1.0, -1.0),
            x.histc(2, f64::NAN, 1.0),
            x.histc(2, 0.0, f64::INFINITY),
            x.histc(usize::MAX, 0.0, 1.0)
        ]),
        ("masks", |x| [
            shaped([x.masked_select(x), x.masked_select(x.ne(x))]),
            shaped([x.index_mask(x), x.index_mask(x.eq(x))]),
            shaped([x.bincount(None, 0), x.bincount(Some(x), usize::MAX)]),
            shaped([
                x.repeat_interleave_by(x, 0),
                x.repeat_interleave_by(x.device().full([1], 2), -1)
            ]),
            block_on(x.unique()).map_or(Vec::new(), |(a, b, c)| vec![a, b, c])
        ]
        .concat()),
        ("kthvalue", |x| [0, 1, 99, usize::MAX]
            .into_iter()
            .flat_map(|k| [x.kthvalue(k, 0), x.kthvalue(k, isize::MIN)])
            .flat_map(|(a, b)| [a, b])
            .collect()),
        ("median", |x| [0, -1, 77, isize::MIN]
            .into_iter()
            .map(|d| x.median(d))
            .flat_map(|(a, b)| [a, b])
            .chain([x.median_all()])
            .collect()),
        ("quantile", |x| vec![
            x.quantile(0.3, 0, Between::Linear),
            x.quantile(f64::NAN, 0, Between::Lower),
            x.quantile(-1.0, -1, Between::Nearest),
            x.quantile(1.0, 99, Between::Midpoint)
        ]),
        ("from the end", |x| vec![
            x.gather(0, x.device().full(x.shape(), -1)),
            x.gather(-1, x.device().full(x.shape(), -99)),
            x.index_select(0, x.device().full([2], -1)),
            x.index_select(0, x.device().full_dtype([2], 0, DType::U8)),
            x.index_select(0, x.device().full([2], i64::MIN)),
            x.take(x.device().full([2], -1)),
            x.one_hot(usize::MAX / 2),
            x.embedding(x.device().full_dtype([2], 200, DType::U8))
        ]),
        ("one_hot", |x| vec![x.one_hot(0), x.one_hot(3), x.one_hot(usize::MAX)]),
        ("sort", |x| vec![
            x.sort(0, true),
            x.argsort(-1, false),
            x.sort(99, false),
            x.sort(isize::MIN, false),
            x.sort(0, false)
        ]),
        ("topk", |x| {
            let mut v = vec![];
            for k in [0, 1, 99, usize::MAX] {
                let (a, b) = x.topk(k, 0, true);
                v.push(a);
                v.push(b);
                let (a, b) = x.topk(k, 77, false);
                v.push(a);
                v.push(b);
            }
            v
        }),
        ("take", |x| vec![
            x.take(x),
            x.take(x.device().full([2, 1], 0)),
            x.take(x.device().full((), 1i64 << 40))
        ]),
        ("index", |x| vec![
            x.index(&[]),
            x.index(&[Some(x)]),
            x.index(&[None, None, None, None]),
            x.index(&[Some(&x.device().full((), 0))]),
            x.index(&[Some(&x.device().full([0], 0))]),
            x.index(&[Some(&x.device().full([2], i64::MIN))]),
            x.index(&[Some(&x.device().full([2], i64::MAX)), Some(&x.device().full([3], 0))])
        ]),
        ("with positions", |x| [0, -1, 77, isize::MIN]
            .into_iter()
            .flat_map(|d| [
                x.sort_with_positions(d, true),
                x.max_with_positions(d),
                x.min_with_positions(d)
            ])
            .flat_map(|(a, b)| [a, b])
            .collect()),
        ("top_p", |x| vec![
            x.top_p(0.5),
            x.top_p(f64::NAN),
            x.top_p(-3),
            x.top_p(2),
            x.top_p(x),
            x.top_p(x.device().zeros([0])),
            x.top_p(x.device().full([1], f32::NAN))
        ]),
        ("categorical", |x| vec![
            x.categorical(x),
            x.categorical(x.device().full([1], 7.0)),
            x.categorical(x.device().full([2], f32::NAN)),
            x.categorical(x.device().zeros([0])),
            Generator::new(1).categorical(x, 0),
            Generator::new(1).categorical(x, 3),
            x.abs().categorical(x.narrow(-1, 0, 1))
        ]),
    ]
}
