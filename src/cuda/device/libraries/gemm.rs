//! A product of matrices as calls that cuBLAS takes: leading dimensions, transposes, one stride
//! between batches.
//!
//! Pure arithmetic. cuBLAS counts by columns, so for row-major operands the call asks for the
//! transposed product: `out' = b' a'`, where each prime costs nothing.

use crate::cuda::kernels::geometry::Geometry;
use crate::cuda::kernels::matmul::Product;
use crate::dtype::DType;
use smallvec::SmallVec;

/// More calls than this for one product are not worth it: then the operands are copied first.
const CALLS_MAX: usize = 64;

/// An operand: whether it lies by columns, and how far its rows (or columns) are apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Matrix {
    pub by_columns: bool,
    pub leading: i32,
    /// Elements from one batch to the next.
    pub batch: i64,
}

/// One call of a strided batch: where its operands begin, in elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offsets {
    pub a: isize,
    pub b: isize,
    pub out: isize,
}

/// The calls of one product; they differ in where they begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Calls {
    pub m: i32,
    pub n: i32,
    pub k: i32,
    pub a: Matrix,
    pub b: Matrix,
    /// Elements from one result to the next.
    pub out: i64,
    pub batches: i32,
    pub at: SmallVec<[Offsets; 1]>,
}

/// A product that a library computes.
#[derive(Clone, Debug)]
pub(crate) struct ProductCall<At> {
    /// Of the operands, and of the result.
    pub dtypes: [DType; 2],
    pub calls: Calls,
    pub adds: bool,
    /// Where both operands and the result are.
    pub at: [At; 3],
}

/// Why cuBLAS cannot express a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Misfit {
    /// The rows of an operand, or of both, lie as cuBLAS cannot express.
    Layout { a: bool, b: bool },
    /// Batches lie so oddly that there would be too many calls.
    Batches,
    /// A size beyond 31 bits.
    Size,
}

/// How a `rows` by `columns` matrix lies: by rows or by columns, neighbours without gaps.
fn layout(rows: usize, columns: usize, [row, column]: [isize; 2]) -> Option<(bool, usize)> {
    let leading = |count: usize, step: isize, least: usize| match count {
        1 => Some(least.max(1)),
        _ => usize::try_from(step).ok().filter(|&step| step >= least.max(1)),
    };
    let by_rows = if column == 1 || columns == 1 { leading(rows, row, columns) } else { None };
    let by_columns = || if row == 1 || rows == 1 { leading(columns, column, rows) } else { None };
    by_rows.map(|l| (false, l)).or_else(|| by_columns().map(|l| (true, l)))
}

/// The calls that make a product of floats; none of its sizes is 0.
pub(crate) fn calls(p: &Product) -> Result<Calls, Misfit> {
    let rank = p.batch.rank();
    let small = |n: usize| i32::try_from(n).map_err(|_| Misfit::Size);
    let of = |s: &[isize]| [s[rank], s[rank + 1]];
    let (a, b) = (layout(p.m, p.k, of(&p.a)), layout(p.k, p.n, of(&p.b)));
    let (Some(a), Some(b)) = (a, b) else {
        return Err(Misfit::Layout { a: a.is_none(), b: b.is_none() });
    };
    let matrix = |(by_columns, leading): (bool, usize), batch: isize| {
        Ok(Matrix { by_columns, leading: small(leading)?, batch: batch as i64 })
    };
    // One weight for all batches: their rows are the rows of one large matrix.
    let shared = p.b[..rank].iter().zip(p.batch.iter()).all(|(&s, &n)| s == 0 || n == 1);
    if shared && !a.0 {
        let shape: SmallVec<[usize; 8]> = p.batch.iter().copied().chain([p.m]).collect();
        let rows = Geometry::new(&shape, &[&p.a[..rank + 1]]);
        if rows.rank() <= 1 && rows.numel() > 0 {
            let leading = if rows.numel() == 1 { p.k.max(1) as isize } else { rows.inner(0) };
            if leading >= p.k.max(1) as isize {
                return Ok(Calls {
                    m: small(rows.numel())?,
                    n: small(p.n)?,
                    k: small(p.k)?,
                    a: matrix((false, leading as usize), 0)?,
                    b: matrix(b, 0)?,
                    out: 0,
                    batches: 1,
                    at: SmallVec::from_elem(Offsets { a: 0, b: 0, out: 0 }, 1),
                });
            }
        }
    }
    let mut out: SmallVec<[isize; 8]> = SmallVec::from_elem(0, rank);
    let mut step = (p.m * p.n) as isize;
    for d in (0..rank).rev() {
        out[d] = step;
        step *= p.batch[d] as isize;
    }
    let g = Geometry::new(&p.batch, &[&p.a[..rank], &p.b[..rank], &out]);
    let batches = g.dims.first().copied().unwrap_or(1);
    let inner = |k: usize| g.strides[k].first().copied().unwrap_or(0);
    let outer = crate::shape::numel(g.dims.get(1..).unwrap_or(&[]));
    if outer > CALLS_MAX || (0..2).any(|k| inner(k) < 0) {
        return Err(Misfit::Batches);
    }
    let at = (0..outer).map(|i| {
        let (mut rest, mut at) = (i, [0isize; 3]);
        for d in 1..g.rank() {
            let r = (rest % g.dims[d]) as isize;
            rest /= g.dims[d];
            (0..3).for_each(|k| at[k] += r * g.strides[k][d]);
        }
        Offsets { a: at[0], b: at[1], out: at[2] }
    });
    Ok(Calls {
        m: small(p.m)?,
        n: small(p.n)?,
        k: small(p.k)?,
        a: matrix(a, inner(0))?,
        b: matrix(b, inner(1))?,
        out: inner(2) as i64,
        batches: small(batches)?,
        at: at.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::shape::Shape;

    fn product(batch: &[usize], [m, k, n]: [usize; 3], a: &[isize], b: &[isize]) -> Product {
        let (a, b) = (a.iter().copied().collect(), b.iter().copied().collect());
        Product {
            dtype: DType::F32,
            to: DType::F32,
            batch: Shape::from(batch),
            m,
            k,
            n,
            a,
            b,
            adds: false,
        }
    }

    #[test]
    fn rows_columns_and_vectors_need_no_copy() {
        let c = calls(&product(&[], [2, 3, 4], &[3, 1], &[4, 1])).unwrap();
        assert_eq!(
            (c.a.by_columns, c.a.leading, c.b.by_columns, c.b.leading),
            (false, 3, false, 4)
        );
        // Transposed, and a part of a wider matrix.
        let c = calls(&product(&[], [2, 3, 4], &[1, 2], &[9, 1])).unwrap();
        assert_eq!((c.a.by_columns, c.a.leading, c.b.by_columns, c.b.leading), (true, 2, false, 9));
        // A row and a column with gaps.
        let c = calls(&product(&[], [1, 3, 1], &[77, 5], &[7, 0])).unwrap();
        assert_eq!((c.a.by_columns, c.a.leading, c.b.by_columns, c.b.leading), (true, 5, false, 7));
    }

    #[test]
    fn what_repeats_or_walks_backwards_inside_a_matrix_has_to_be_copied() {
        for (a, b, misfit) in [
            ([0, 1], [4, 1], (true, false)),
            ([3, -1], [4, 1], (true, false)),
            ([3, 1], [8, 2], (false, true)),
            ([2, 1], [0, 0], (true, true)),
        ] {
            let got = calls(&product(&[], [2, 3, 4], &a, &b));
            assert_eq!(got, Err(Misfit::Layout { a: misfit.0, b: misfit.1 }));
        }
    }

    #[test]
    fn batches_beside_one_weight_are_one_product() {
        let c = calls(&product(&[5, 7], [2, 3, 4], &[42, 6, 3, 1], &[0, 0, 4, 1])).unwrap();
        assert_eq!((c.m, c.batches, c.at.len()), (70, 1, 1));
        // Not where the rows have a gap between batches.
        let c = calls(&product(&[5, 7], [2, 3, 4], &[42, 6, 2, 1], &[0, 0, 4, 1]));
        assert_eq!(c, Err(Misfit::Layout { a: true, b: false }));
        let c = calls(&product(&[5], [2, 3, 4], &[8, 3, 1], &[0, 4, 1])).unwrap();
        assert_eq!((c.m, c.batches, c.a.batch, c.b.batch), (2, 5, 8, 0));
    }

    #[test]
    fn batches_that_do_not_merge_are_several_calls() {
        // a repeats over the first batch dimension, b over the second.
        let c = calls(&product(&[3, 2], [2, 3, 4], &[0, 6, 3, 1], &[12, 0, 4, 1])).unwrap();
        assert_eq!((c.batches, c.a.batch, c.b.batch, c.out), (2, 6, 0, 8));
        let at: Vec<[isize; 3]> = c.at.iter().map(|o| [o.a, o.b, o.out]).collect();
        assert_eq!(at, [[0, 0, 0], [0, 12, 16], [0, 24, 32]]);
        let many = product(&[100, 2], [2, 3, 4], &[0, 6, 3, 1], &[12, 0, 4, 1]);
        assert_eq!(calls(&many), Err(Misfit::Batches));
        let backwards = product(&[3], [2, 3, 4], &[-6, 3, 1], &[12, 4, 1]);
        assert_eq!(calls(&backwards), Err(Misfit::Batches));
    }
}
