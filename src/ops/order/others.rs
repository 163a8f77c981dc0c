//! What flows back through products, without a division: right wherever zeros are and however many,
//! and in ops that have gradients themselves.
//!
//! Of running products and of places a rule uses it where the gradients are to have gradients;
//! without that it divides, which is quicker.

use crate::TensorFuture;
use crate::ops::check::checked;

/// For each element the product of all others along `dim`.
pub(crate) fn others(x: &TensorFuture, dim: isize) -> TensorFuture {
    x.cumprod_with(dim, true, false) * x.cumprod_with(dim, true, true)
}

/// What flows back through `cumprod`: the product before an element, times `s[k] = g[k] + x[k + 1]
/// s[k + 1]`. A sum of so many terms is made of two of half as many.
pub(crate) fn through_cumprod(g: &TensorFuture, x: &TensorFuture, dim: isize) -> TensorFuture {
    let n = x.dims()[checked(dim, x.rank())];
    if n < 2 {
        return g.clone();
    }
    let (mut sum, mut factor, mut terms) = (g.clone(), x.narrow(dim, 1, n - 1), 1);
    loop {
        let with_later = n - terms;
        let later = &factor * sum.narrow(dim, terms, with_later);
        let sums = sum.narrow(dim, 0, with_later) + later;
        sum = sums.followed_by(&sum.narrow(dim, with_later, terms), dim);
        if 2 * terms >= n {
            return x.cumprod_with(dim, true, false) * sum;
        }
        let shorter = n - 2 * terms;
        factor = factor.narrow(dim, 0, shorter) * factor.narrow(dim, terms, shorter);
        terms *= 2;
    }
}

/// For each element of `source` the product of the others that go to its place along `dim`.
pub(crate) fn others_of_place(
    source: &TensorFuture,
    places: &TensorFuture,
    dim: isize,
) -> TensorFuture {
    // Those of one place beside each other.
    let order = places.argsort(dim, false);
    let (sorted, places) = (source.gather(dim, &order), places.gather(dim, &order));
    let before = before_in_place(&sorted, &places, dim);
    let behind = before_in_place(&sorted.flip(dim), &places.flip(dim), dim).flip(dim);
    (before * behind).gather(dim, order.argsort(dim, false))
}

/// The product of those before, back to where another place begins: of so many, then of twice as
/// many.
fn before_in_place(x: &TensorFuture, places: &TensorFuture, dim: isize) -> TensorFuture {
    let n = x.dims()[checked(dim, x.rank())];
    if n == 0 {
        return x.clone();
    }
    // Of what lies so far before, where that goes to the same place.
    let from = |x: &TensorFuture, by: usize| {
        let same = places.narrow(dim, by, n - by).eq(places.narrow(dim, 0, n - by));
        same.where_cond(x.narrow(dim, 0, n - by), 1.0)
    };
    let nothing = x.device().full_dtype(x.narrow(dim, 0, 1).dims(), 1, x.dtype());
    let mut product = nothing.followed_by(&from(x, 1), dim);
    let mut factors = 1;
    while factors < n {
        let longer = product.narrow(dim, factors, n - factors) * from(&product, factors);
        product = product.narrow(dim, 0, factors).followed_by(&longer, dim);
        factors *= 2;
    }
    product
}
