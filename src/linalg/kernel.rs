//! One matrix each, by `faer` on the calling thread.

use crate::dtype::Element;
use crate::graph::operation::Refusal;
use crate::room;
use faer::diag::DiagMut;
use faer::dyn_stack::{MemBuffer, MemStack, StackReq};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as reflect_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as reflect,
};
use faer::linalg::lu::partial_pivoting::factor as lu;
use faer::linalg::matmul::matmul;
use faer::linalg::qr::no_pivoting::factor as qr;
use faer::linalg::{cholesky::llt::factor as llt, evd, svd, triangular_solve};
use faer::traits::RealField;
use faer::{Accum, Conj, MatMut, MatRef, Par};

/// float32 and float64.
pub(super) trait Real: Element + RealField {}
impl Real for f32 {}
impl Real for f64 {}

pub(super) fn number<T: Element>(x: f64) -> T {
    T::from_f64(x)
}

fn zeros<T: Element>(n: usize) -> Vec<T> {
    room::filled(n, T::default())
}

/// Memory for the crate to work in.
fn scratch(size: StackReq) -> MemBuffer {
    MemBuffer::try_new(size).unwrap_or_else(|_| room::denied(size.size_bytes()))
}

fn rows<T>(of: &[T], m: usize, n: usize) -> MatRef<'_, T> {
    MatRef::from_row_major_slice(of, m, n)
}

fn rows_mut<T>(of: &mut [T], m: usize, n: usize) -> MatMut<'_, T> {
    MatMut::from_row_major_slice_mut(of, m, n)
}

fn columns<T>(of: &[T], m: usize, n: usize) -> MatRef<'_, T> {
    MatRef::from_column_major_slice(of, m, n)
}

fn columns_mut<T>(of: &mut [T], m: usize, n: usize) -> MatMut<'_, T> {
    MatMut::from_column_major_slice_mut(of, m, n)
}

/// A copy in columns, which the crate prefers.
fn in_columns<T: Real>(of: &[T], m: usize, n: usize) -> Vec<T> {
    let mut copy = zeros(m * n);
    columns_mut(&mut copy, m, n).copy_from(rows(of, m, n));
    copy
}

/// The decompositions by iteration go on for ever, or end anyhow, where a number is not finite.
fn finite<T: Real>(of: &[T]) -> Result<(), Refusal> {
    match of.iter().all(|x| x.to_f64().is_finite()) {
        true => Ok(()),
        false => Err(Refusal::argument("the matrix has elements that are not finite")),
    }
}

fn not_converged() -> Refusal {
    Refusal::kernel("the iteration did not converge")
}

/// The lower factor of a matrix whose lower triangle is read.
pub(super) fn cholesky<T: Real>(a: &[T], n: usize, out: &mut [T]) -> Result<(), Refusal> {
    let mut l = in_columns(a, n, n);
    let mut memory = scratch(llt::cholesky_in_place_scratch::<T>(n, Par::Seq, Default::default()));
    let done = llt::cholesky_in_place(
        columns_mut(&mut l, n, n),
        Default::default(),
        Par::Seq,
        MemStack::new(&mut memory),
        Default::default(),
    );
    // A pivot that is NaN passes for a positive one.
    let wrong = match done {
        Err(llt::LltError::NonPositivePivot { index }) => Some(index),
        Ok(_) => (0..n).find(|&k| !l[k * n + k].to_f64().is_finite()),
    };
    if let Some(k) = wrong {
        return Err(Refusal::argument(format!(
            "the matrix is not positive definite: its leading minor of order {} is not positive",
            k + 1
        )));
    }
    for (i, row) in out.chunks_exact_mut(n).enumerate() {
        for (j, x) in row.iter_mut().enumerate() {
            *x = if j <= i { l[j * n + i] } else { T::default() };
        }
    }
    Ok(())
}

/// A matrix as lower and upper factor, with the order of its rows.
struct Lu<T> {
    /// Column by column; the ones of the lower factor's diagonal are not stored.
    factors: Vec<T>,
    order: Vec<usize>,
    is_odd: bool,
    n: usize,
}

impl<T: Real> Lu<T> {
    fn new(mut factors: Vec<T>, n: usize) -> Lu<T> {
        let (mut order, mut back) = (room::filled(n, 0usize), room::filled(n, 0usize));
        let size = lu::lu_in_place_scratch::<usize, T>(n, n, Par::Seq, Default::default());
        let (info, _) = lu::lu_in_place(
            columns_mut(&mut factors, n, n),
            &mut order,
            &mut back,
            Par::Seq,
            MemStack::new(&mut scratch(size)),
            Default::default(),
        );
        Lu { factors, order, is_odd: info.transposition_count % 2 == 1, n }
    }

    fn pivots(&self) -> impl Iterator<Item = f64> {
        (0..self.n).map(|k| self.factors[k * self.n + k].to_f64())
    }

    /// The first pivot that is zero; those after it may be anything.
    fn zero_pivot(&self) -> Option<usize> {
        self.pivots().position(|x| x == 0.0)
    }

    /// The sign of the determinant, and the logarithm of its size.
    fn log_det(&self) -> (f64, f64) {
        if self.zero_pivot().is_some() {
            return (0.0, f64::NEG_INFINITY);
        }
        let first = if self.is_odd { -1.0 } else { 1.0 };
        self.pivots().fold((first, 0.0), |(sign, log), x| (sign * x.signum(), log + x.abs().ln()))
    }

    fn det(&self) -> f64 {
        if self.zero_pivot().is_some() {
            return 0.0;
        }
        let first = if self.is_odd { -1.0 } else { 1.0 };
        self.pivots().fold(first, |all, x| all * x)
    }

    /// Solves for `k` columns of `b`, which lies in rows as `out` does.
    fn solve(&self, b: &[T], k: usize, out: &mut [T]) {
        for (to, &from) in out.chunks_exact_mut(k).zip(&self.order) {
            to.copy_from_slice(&b[from * k..][..k]);
        }
        let (n, factors) = (self.n, columns(&self.factors, self.n, self.n));
        triangular_solve::solve_unit_lower_triangular_in_place(
            factors,
            rows_mut(out, n, k),
            Par::Seq,
        );
        triangular_solve::solve_upper_triangular_in_place(factors, rows_mut(out, n, k), Par::Seq);
    }
}

pub(super) fn solve<T: Real>(
    a: &[T],
    b: &[T],
    [n, k]: [usize; 2],
    out: &mut [T],
) -> Result<(), Refusal> {
    let lu = Lu::new(in_columns(a, n, n), n);
    if let Some(k) = lu.zero_pivot() {
        let text = format!("the matrix is singular: pivot {} of {n} is zero", k + 1);
        return Err(Refusal::argument(text));
    }
    lu.solve(b, k, out);
    Ok(())
}

pub(super) fn triangular_solve<T: Real>(
    a: &[T],
    b: &[T],
    [n, k]: [usize; 2],
    is_upper: bool,
    has_ones: bool,
    out: &mut [T],
) -> Result<(), Refusal> {
    if !has_ones && let Some(k) = (0..n).find(|&k| a[k * n + k] == T::default()) {
        let text = format!("the matrix is singular: element {k} of its diagonal is zero");
        return Err(Refusal::argument(text));
    }
    out.copy_from_slice(b);
    let (a, x) = (rows(a, n, n), rows_mut(out, n, k));
    match (is_upper, has_ones) {
        (true, false) => triangular_solve::solve_upper_triangular_in_place(a, x, Par::Seq),
        (true, true) => triangular_solve::solve_unit_upper_triangular_in_place(a, x, Par::Seq),
        (false, false) => triangular_solve::solve_lower_triangular_in_place(a, x, Par::Seq),
        (false, true) => triangular_solve::solve_unit_lower_triangular_in_place(a, x, Par::Seq),
    }
    Ok(())
}

pub(super) fn det<T: Real>(a: &[T], n: usize) -> f64 {
    Lu::new(in_columns(a, n, n), n).det()
}

pub(super) fn log_det<T: Real>(a: &[T], n: usize) -> (f64, f64) {
    Lu::new(in_columns(a, n, n), n).log_det()
}

/// The matrix of cofactors: the determinant times the transposed inverse, where there is one.
pub(super) fn cofactors<T: Real>(a: &[T], n: usize, out: &mut [T]) -> Result<(), Refusal> {
    let lu = Lu::new(in_columns(a, n, n), n);
    let pivots = || lu.pivots().map(f64::abs);
    let (least, most) = (pivots().fold(f64::INFINITY, f64::min), pivots().fold(0.0, f64::max));
    let epsilon = if size_of::<T>() == 4 { f32::EPSILON as f64 } else { f64::EPSILON };
    if lu.zero_pivot().is_none() && least > epsilon.sqrt() * most {
        let mut one = zeros(n * n);
        one.iter_mut().step_by(n + 1).for_each(|x| *x = number::<T>(1.0));
        let mut inverse = zeros(n * n);
        lu.solve(&one, n, &mut inverse);
        let det = lu.det();
        for (i, row) in out.chunks_exact_mut(n).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                *x = number(det * inverse[j * n + i].to_f64());
            }
        }
        return Ok(());
    }
    // Also without an inverse: the cofactors of U S V' are those of the three factors (Higham,
    // "What is the adjugate of a matrix?", 2020).
    let [mut u, mut s, mut v] = [zeros(n * n), zeros(n), zeros(n * n)];
    svd(a, [n, n], &mut u, &mut s, &mut v)?;
    let sign = Lu::new(u.clone(), n).log_det().0 * Lu::new(v.clone(), n).log_det().0;
    for j in 0..n {
        let others = (0..n).filter(|&i| i != j).map(|i| s[i].to_f64());
        let factor = sign * others.product::<f64>();
        u[j * n..][..n].iter_mut().for_each(|x| *x = number(x.to_f64() * factor));
    }
    let (u, v) = (columns(&u, n, n), columns(&v, n, n));
    matmul(rows_mut(out, n, n), Accum::Replace, u, v.transpose(), number(1.0), Par::Seq);
    Ok(())
}

/// Thin factors of a matrix that is at least as high as wide, both in rows.
pub(super) fn qr<T: Real>(a: &[T], [m, n]: [usize; 2], q: &mut [T], r: &mut [T]) {
    let mut basis = in_columns(a, m, n);
    let block = qr::recommended_block_size::<T>(m, n);
    let mut factors = zeros(block * n);
    let size = qr::qr_in_place_scratch::<T>(m, n, block, Par::Seq, Default::default());
    qr::qr_in_place(
        columns_mut(&mut basis, m, n),
        columns_mut(&mut factors, block, n),
        Par::Seq,
        MemStack::new(&mut scratch(size)),
        Default::default(),
    );
    // The upper triangle is R; what is below are reflections, whose diagonal of ones is not stored.
    for i in 0..n {
        for j in 0..n {
            r[i * n + j] = if j >= i { basis[j * m + i] } else { T::default() };
        }
    }
    for j in 0..n {
        basis[j * m..][..j].fill(T::default());
        basis[j * m + j] = number(1.0);
    }
    let mut own = zeros(m * n);
    own.iter_mut().step_by(m + 1).take(n).for_each(|x| *x = number(1.0));
    let size = reflect_scratch::<T>(m, block, n);
    reflect(
        columns(&basis, m, n),
        columns(&factors, block, n),
        Conj::No,
        columns_mut(&mut own, m, n),
        Par::Seq,
        MemStack::new(&mut scratch(size)),
    );
    rows_mut(q, m, n).copy_from(columns(&own, m, n));
}

/// Eigenvalues of a symmetric matrix whose lower triangle is read, in ascending order, and
/// eigenvectors as columns.
pub(super) fn eigh<T: Real>(a: &[T], n: usize, s: &mut [T], v: &mut [T]) -> Result<(), Refusal> {
    finite(a)?;
    let (a, mut own) = (in_columns(a, n, n), zeros(n * n));
    let compute = evd::ComputeEigenvectors::Yes;
    let size = evd::self_adjoint_evd_scratch::<T>(n, compute, Par::Seq, Default::default());
    evd::self_adjoint_evd(
        columns(&a, n, n),
        DiagMut::from_slice_mut(s),
        Some(columns_mut(&mut own, n, n)),
        Par::Seq,
        MemStack::new(&mut scratch(size)),
        Default::default(),
    )
    .map_err(|_| not_converged())?;
    rows_mut(v, n, n).copy_from(columns(&own, n, n));
    Ok(())
}

/// Singular values in descending order, and the vectors of both sides, `u` and `v` in columns.
pub(super) fn svd<T: Real>(
    a: &[T],
    [m, n]: [usize; 2],
    u: &mut [T],
    s: &mut [T],
    v: &mut [T],
) -> Result<(), Refusal> {
    finite(a)?;
    let (a, k) = (in_columns(a, m, n), m.min(n));
    let thin = svd::ComputeSvdVectors::Thin;
    let size = svd::svd_scratch::<T>(m, n, thin, thin, Par::Seq, Default::default());
    svd::svd(
        columns(&a, m, n),
        DiagMut::from_slice_mut(s),
        Some(columns_mut(u, m, k)),
        Some(columns_mut(v, n, k)),
        Par::Seq,
        MemStack::new(&mut scratch(size)),
        Default::default(),
    )
    .map_err(|_| not_converged())
}

/// [`svd`] with all factors in rows; those of the right side are rows of the result.
pub(super) fn svd_in_rows<T: Real>(
    a: &[T],
    [m, n]: [usize; 2],
    u: &mut [T],
    s: &mut [T],
    vh: &mut [T],
) -> Result<(), Refusal> {
    let k = m.min(n);
    let mut own = zeros(m * k);
    svd(a, [m, n], &mut own, s, vh)?;
    rows_mut(u, m, k).copy_from(columns(&own, m, k));
    Ok(())
}

/// The least solution of those with the least squares. Singular values below `rcond` of the largest
/// count as zero.
pub(super) fn lstsq<T: Real>(
    a: &[T],
    b: &[T],
    [m, n, width]: [usize; 3],
    rcond: f64,
    out: &mut [T],
) -> Result<(), Refusal> {
    let k = m.min(n);
    if k == 0 {
        out.fill(T::default());
        return Ok(());
    }
    let [mut u, mut s, mut v] = [zeros(m * k), zeros(k), zeros(n * k)];
    svd(a, [m, n], &mut u, &mut s, &mut v)?;
    let mut parts = zeros(k * width);
    let one = number::<T>(1.0);
    matmul(
        rows_mut(&mut parts, k, width),
        Accum::Replace,
        columns(&u, m, k).transpose(),
        rows(b, m, width),
        one,
        Par::Seq,
    );
    let least = rcond * s[0].to_f64();
    for (row, s) in parts.chunks_exact_mut(width).zip(&s) {
        let s = s.to_f64();
        row.iter_mut().for_each(|x| *x = number(if s > least { x.to_f64() / s } else { 0.0 }));
    }
    let (v, parts) = (columns(&v, n, k), rows(&parts, k, width));
    matmul(rows_mut(out, n, width), Accum::Replace, v, parts, one, Par::Seq);
    Ok(())
}
