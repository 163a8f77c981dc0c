//! Shapes, views, joins and padding.

use super::Call;
use futensor::*;

pub fn all() -> Vec<Call> {
    calls![
        ("i of a list", |x| vec![
            x.i(Vec::new()),
            x.i(vec![Index::ALL; x.rank()]),
            x.i(vec![Index::At(0); x.rank() + 1]),
            x.i(vec![Index::from(5..-9).step(-3); x.rank()]),
            x.i([Index::At(isize::MIN)]),
            x.i(&vec![Index::from(isize::MAX..).step(isize::MIN)][..]),
            x.i([Index::Span { start: Some(isize::MIN), end: Some(isize::MAX), step: -1 }])
        ]),
        ("tril", |x| vec![
            x.tril(0),
            x.triu(i64::MAX),
            x.tril(i64::MIN),
            x.triu(i64::MIN),
            x.tril(i64::MAX)
        ]),
        ("roll", |x| vec![
            x.roll(1, 0),
            x.roll(isize::MIN, 0),
            x.roll(isize::MAX, -1),
            x.roll([1, 2], 0),
            x.roll([1, 2], [0, 0]),
            x.roll(1, 99),
            x.roll((), ())
        ]),
        ("flip", |x| vec![x.flip(0), x.flip([0, 0]), x.flip(()), x.flip(99), x.flip(isize::MIN)]),
        ("masked_fill", |x| vec![
            x.masked_fill(x, 1),
            x.masked_fill(x.gt(0), f64::NAN),
            x.masked_fill(x.device().ones_dtype([7, 1, 1], DType::Bool), 1e300)
        ]),
        ("repeat", |x| vec![
            x.repeat(2),
            x.repeat([2, 2, 2]),
            x.repeat(()),
            x.repeat(0),
            x.repeat([-1, -1, -1])
        ]),
        ("repeat big", |x| vec![x.repeat([usize::MAX / 2, 1, 1])]),
        ("repeat big2", |x| vec![x.repeat([1usize << 33, 1 << 33, 1])]),
        ("split 0", |x| x.split(0, 0)),
        ("split 99", |x| x.split(1, 99)),
        ("split", |x| x.split(2, 0)),
        ("split max", |x| x.split(usize::MAX, 0)),
        ("chunk 0", |x| x.chunk(0, 0)),
        ("chunk 99", |x| x.chunk(2, 99)),
        ("chunk", |x| x.chunk(2, 0)),
        ("chunk max", |x| x.chunk(usize::MAX, 0)),
        ("splitsizes", |x| x.split_with_sizes([1, 1], 0)),
        ("splitsizes -", |x| x.split_with_sizes([-1, 3], 0)),
        ("splitsizes big", |x| x.split_with_sizes([isize::MAX, isize::MAX], 0)),
        ("splitsizes dim", |x| x.split_with_sizes([1], 9)),
        ("splitsizes ()", |x| x.split_with_sizes((), 0)),
        ("reshape", |x| vec![
            x.reshape(-1),
            x.reshape([-1, -1]),
            x.reshape([-1, 0]),
            x.reshape([0, -1]),
            x.reshape(()),
            x.reshape([isize::MAX, isize::MAX]),
            x.reshape([-2, -3]),
            x.reshape(isize::MIN),
            x.reshape([1; 70]),
            x.reshape([0usize, 1 << 62, 1 << 62])
        ]),
        ("transpose", |x| vec![
            x.transpose(0, 1),
            x.transpose(9, 0),
            x.transpose(isize::MIN, 0),
            x.t(),
            x.permute(()),
            x.permute([0, 0]),
            x.permute([1, 0]),
            x.permute([0, -1, 5])
        ]),
        ("unsqueeze", |x| vec![
            x.unsqueeze(0),
            x.unsqueeze(-1),
            x.unsqueeze(99),
            x.unsqueeze(isize::MIN),
            x.unsqueeze(isize::MAX)
        ]),
        ("squeeze", |x| vec![
            x.squeeze(()),
            x.squeeze(0),
            x.squeeze(99),
            x.squeeze(isize::MIN),
            x.squeeze([0, 0]),
            x.squeeze_all()
        ]),
        ("expand", |x| vec![
            x.expand([3, 2, 3]),
            x.expand(()),
            x.expand([-1, -1]),
            x.expand([-1, -1, -1, -1]),
            x.expand(isize::MIN),
            x.expand([1 << 20, 2, 3]),
            x.expand([1isize << 61, 1 << 61, 1, 1])
        ]),
        ("expand+1", |x| vec![&x.expand([1isize << 40, 2, 3]) + 1.0]),
        ("expand big+1", |x| vec![&x.expand([1isize << 61, 1 << 61, 2, 3]) + 1.0]),
        ("narrow", |x| vec![
            x.narrow(0, 0, 1),
            x.narrow(0, usize::MAX, 2),
            x.narrow(9, 0, 0),
            x.narrow(0, 0, 0),
            x.narrow(isize::MIN, 0, 0)
        ]),
        ("i", |x| vec![
            x.i(0),
            x.i(-1),
            x.i(99),
            x.i(isize::MIN),
            x.i(..),
            x.i(1..),
            x.i(5..1),
            x.i(isize::MIN..isize::MAX),
            x.i(..=5),
            x.i((0, 0, 0, 0, 0, 0)),
            x.i(Index::ALL.step(0)),
            x.i(Index::ALL.step(isize::MIN)),
            x.i(Index::ALL.step(isize::MAX)),
            x.i(Index::ALL.step(-1))
        ]),
        ("i ..=max", |x| vec![x.i(..=isize::MAX)]),
        ("i usize max", |x| vec![x.i(usize::MAX)]),
        ("flatten", |x| vec![
            x.flatten(0, -1),
            x.flatten(-1, 0),
            x.flatten(5, 6),
            x.flatten(isize::MIN, isize::MIN)
        ]),
        ("movedim", |x| vec![
            x.movedim(0, -1),
            x.movedim([0, 1], 0),
            x.movedim([0, 0], [0, 1]),
            x.movedim(isize::MIN, 0),
            x.movedim((), ())
        ]),
        ("unflatten", |x| vec![
            x.unflatten(0, [1, -1]),
            x.unflatten(-1, [-1, -1]),
            x.unflatten(0, ()),
            x.unflatten(0, [isize::MAX, isize::MAX, 2]),
            x.unflatten(0, [-7, 0]),
            x.unflatten(99, 1)
        ]),
        ("unfold_dim", |x| vec![
            x.unfold_dim(0, 1, 1),
            x.unfold_dim(-1, 2, 1),
            x.unfold_dim(0, 0, usize::MAX),
            x.unfold_dim(0, 1, usize::MAX),
            x.unfold_dim(0, usize::MAX, 1),
            x.unfold_dim(0, 1, 0),
            x.unfold_dim(isize::MIN, 1, 1)
        ]),
        ("unbind", |x| [x.unbind(0), x.unbind(-1), x.unbind(99), x.unbind(isize::MIN)].concat()),
        ("tile", |x| vec![x.tile(2), x.tile(()), x.tile([0, 2]), x.tile([-1, 1]), x.tile([1; 70])]),
        ("tile big", |x| vec![x.tile([isize::MAX, 2])]),
        ("repeat_interleave", |x| vec![
            x.repeat_interleave(2, 0),
            x.repeat_interleave(0, -1),
            x.repeat_interleave(1, 99),
            x.repeat_interleave(usize::MAX, 0),
            x.repeat_interleave(1 << 61, -1)
        ]),
        ("meshgrid", |x| [meshgrid(&[x, x]), meshgrid(&[x.reshape(-1)])].concat()),
        ("diagonal", |x| vec![
            x.diagonal(0, 0, 1),
            x.diagonal(i64::MIN, 0, -1),
            x.diagonal(i64::MAX, 0, -1),
            x.diagonal(0, 0, 0),
            x.diagonal(0, 99, isize::MIN)
        ]),
        ("diag", |x| vec![
            x.diag(0),
            x.diag(-1),
            x.diag(i64::MIN),
            x.diag(i64::MAX),
            x.diag(1 << 40)
        ]),
        ("trace", |x| vec![x.trace()]),
        ("pad", |x| vec![
            x.pad([1, 1], 0.0),
            x.pad([-1, -1], 0),
            x.pad([1], 0),
            x.pad([1, 1, 1, 1, 1, 1, 1, 1], 0),
            x.pad((), 0),
            x.pad([-5, 5], 7),
            x.pad([1, 1], f64::NAN)
        ]),
        ("pad big", |x| vec![x.pad([isize::MAX, 0], 0)]),
        ("pad big2", |x| vec![x.pad([isize::MAX, isize::MIN], 0)]),
        ("pad big3", |x| vec![x.pad([isize::MIN, isize::MAX], 0)]),
        ("pad big4", |x| vec![x.pad([isize::MAX - 9, 0, isize::MAX - 9, 0], 0)]),
        ("padmode", |x| vec![
            x.pad_mode([1, 1], PadMode::Reflect),
            x.pad_mode([9, 9], PadMode::Circular),
            x.pad_mode([1, 1], PadMode::Replicate),
            x.pad_mode([-1, 0], PadMode::Reflect)
        ]),
        ("padmode big", |x| vec![x.pad_mode([isize::MAX - 10, 0], PadMode::Replicate)]),
        ("padmode min", |x| vec![x.pad_mode([isize::MIN, isize::MAX], PadMode::Replicate)]),
    ]
}
