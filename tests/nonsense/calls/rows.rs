//! Every row of the op tables, on numbers and dimensions that nobody means.

use super::Call;
use futensor::rows::{self, OperandRef, Row};
use futensor::*;

pub fn all() -> Vec<Call> {
    let rows = rows::all().into_iter().map(|row| -> Call {
        let call: fn(&Row, &TensorFuture) -> Vec<TensorFuture> =
            match (row.is_reduction(), row.operands()) {
                (true, _) => reduction,
                (false, 1) => unary,
                (false, _) => binary,
            };
        (row.name, Box::new(move |x| call(&row, x)))
    });
    let scans = rows::scans().into_iter().map(|(name, scan)| -> Call {
        let dims = [0, -1, 9, isize::MIN, isize::MAX];
        (name, Box::new(move |x| dims.into_iter().flat_map(|dim| scan(x, dim)).collect()))
    });
    rows.chain(scans).collect()
}

fn called(row: &Row, operands: &[OperandRef<'_>]) -> TensorFuture {
    row.call(operands).expect("an op of so many operands")
}

/// The value itself, and the end of its type's numbers.
fn unary(row: &Row, x: &TensorFuture) -> Vec<TensorFuture> {
    let least = x.device().full_dtype((), i64::MIN, x.dtype());
    [x, &least].map(|x| called(row, &[OperandRef::Tensor(x)])).into()
}

fn binary(row: &Row, x: &TensorFuture) -> Vec<TensorFuture> {
    use OperandRef::{Scalar, Tensor};
    let extreme = |number: i64| x.device().full_dtype((), number, x.dtype());
    let (turned, least, most) = (x.transpose(0, -1), extreme(i64::MIN), extreme(i64::MAX));
    let mut all = vec![
        called(row, &[Tensor(x), Tensor(x)]),
        called(row, &[Tensor(x), Tensor(&turned)]),
        called(row, &[Tensor(&least), Scalar((-1).into())]),
        called(row, &[Tensor(&most), Scalar(2.into())]),
    ];
    for number in [0.into(), (-1).into(), 1000.into(), 0.5.into(), f64::NAN.into()] {
        all.push(called(row, &[Tensor(x), Scalar(number)]));
        all.push(called(row, &[Scalar(number), Tensor(x)]));
    }
    all
}

fn reduction(row: &Row, x: &TensorFuture) -> Vec<TensorFuture> {
    const MAX: isize = isize::MAX;
    let lists: [&[isize]; 8] =
        [&[0], &[-1], &[0, 0], &[0, 1], &[99], &[-99], &[MAX], &[isize::MIN]];
    // Those of positions take one dimension, and so they do here.
    let none = (!row.is_positions()).then_some(&[][..]);
    let lists = lists.into_iter().chain(none).map(Some).chain([None]);
    let reduced = |dims| [false, true].map(|keep| row.reduce(x, dims, keep).expect("a reduction"));
    lists.flat_map(reduced).collect()
}
