//! The op: a function of a matrix, or of a matrix and a right side, for each of a batch. What has
//! several results has them one after the other in its last dimension, and views of it are they.
//!
//! The gradients are written in ordinary ops and in the op itself, so that they have gradients.

use super::kernel::{self, Real, number};
use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::hosted::{elements, not_of, shared};
use crate::shape::Shape;
use crate::tensor::custom::custom;
use crate::tensor::future::TensorFuture;

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Kind {
    Solve,
    TriangularSolve {
        upper: bool,
        ones: bool,
    },
    Lstsq {
        rcond: f64,
    },
    Cholesky,
    Det,
    LogDet,
    Cofactors,
    /// Of at least as many rows as columns: Q, R.
    Qr,
    /// Values, vectors.
    Eigh,
    /// U, S, V'.
    Svd,
    /// The values of one of these, of the matrix and its decomposition: where values are equal they
    /// have a gradient, and vectors have none.
    EighValues,
    SvdValues,
}

impl Kind {
    fn takes_two(self) -> bool {
        matches!(self, Kind::Solve | Kind::TriangularSolve { .. } | Kind::Lstsq { .. })
    }

    fn takes_any_shape(self) -> bool {
        matches!(self, Kind::Lstsq { .. } | Kind::Qr | Kind::Svd | Kind::SvdValues)
    }

    /// The dimensions of the result behind those of the batch. Beside a size of 0 others may be
    /// anything.
    fn results(self, [m, n]: [usize; 2], width: usize) -> Vec<usize> {
        let k = m.min(n);
        let of = usize::saturating_mul;
        let sum = |sizes: [usize; 3]| sizes.into_iter().fold(0, usize::saturating_add);
        match self {
            Kind::Solve | Kind::TriangularSolve { .. } | Kind::Lstsq { .. } => vec![n, width],
            Kind::Cholesky | Kind::Cofactors => vec![n, n],
            Kind::Det => vec![],
            Kind::LogDet => vec![2],
            Kind::Qr => vec![sum([of(m, n), of(n, n), 0])],
            Kind::Eigh => vec![sum([n, of(n, n), 0])],
            Kind::Svd => vec![sum([of(m, k), k, of(k, n)])],
            Kind::EighValues | Kind::SvdValues => vec![k],
        }
    }
}

/// An op of a kind, under the name of the function that the user called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linalg {
    pub name: &'static str,
    pub kind: Kind,
}

/// The batch and the sizes of its matrices.
pub(super) fn matrices(shape: &Shape) -> Result<(&[usize], [usize; 2]), Refusal> {
    match shape.dims() {
        [batch @ .., m, n] => Ok((batch, [*m, *n])),
        _ => Err(Refusal::shape(format!("{shape} is no matrix"))),
    }
}

pub(super) fn t(x: &TensorFuture) -> TensorFuture {
    x.transpose(-2, -1)
}

/// Ones on the diagonal of matrices as these are.
fn eye(of: &TensorFuture) -> TensorFuture {
    let n = of.dims().last().copied().unwrap_or(0);
    of.device().eye_dtype([n, n], of.dtype())
}

impl Linalg {
    fn again(&self, kind: Kind, operands: &[&TensorFuture]) -> TensorFuture {
        custom(Linalg { kind, ..*self }, operands)
    }

    /// The results of a decomposition, which lie one after the other.
    pub fn pieces(&self, of: &TensorFuture, [m, n]: [usize; 2]) -> [TensorFuture; 3] {
        let k = m.min(n);
        let shapes = match self.kind {
            Kind::Qr => [vec![m, n], vec![n, n], vec![0]],
            Kind::Eigh | Kind::EighValues => [vec![n], vec![n, n], vec![0]],
            _ => [vec![m, k], vec![k], vec![k, n]],
        };
        let batch = &of.dims()[..of.rank().saturating_sub(1)];
        let mut start = 0;
        shapes.map(|shape| {
            let size: usize = shape.iter().product();
            start += size;
            of.narrow(-1, start - size, size).reshape([batch, &shape[..]].concat())
        })
    }

    fn solve(&self, a: &TensorFuture, b: &TensorFuture) -> TensorFuture {
        self.again(Kind::Solve, &[a, b])
    }

    fn solve_upper(&self, a: &TensorFuture, b: &TensorFuture) -> TensorFuture {
        self.again(Kind::TriangularSolve { upper: true, ones: false }, &[a, b])
    }

    fn transposed_inverse(&self, a: &TensorFuture) -> TensorFuture {
        self.solve(&t(a), &eye(a).expand(a.dims()))
    }

    /// L L' = A (Murray 2016, "Differentiation of the Cholesky decomposition", equation 10).
    fn cholesky_back(&self, l: &TensorFuture, up: &TensorFuture) -> TensorFuture {
        let product = t(l).matmul(up);
        let half = (product.tril(0) + product.tril(-1)) * 0.5;
        let both = (&half + t(&half)) * 0.5;
        let left = self.solve_upper(&t(l), &both);
        t(&self.solve_upper(&t(l), &t(&left)))
    }

    /// The cofactors of an invertible matrix are its determinant times its transposed inverse.
    fn cofactors_back(&self, a: &TensorFuture, up: &TensorFuture) -> TensorFuture {
        let inverse = self.transposed_inverse(a);
        let det = self.again(Kind::Det, &[a]).unsqueeze(-1).unsqueeze(-1);
        let along = (up * &inverse).sum_keepdim([-2, -1]) * &inverse;
        det * (along - inverse.matmul(t(up)).matmul(&inverse))
    }

    /// Walter and Lehmann 2018, "Algorithmic differentiation of linear algebra functions", 3.2; in
    /// PyTorch's `derivatives.yaml` it is `linalg_qr_backward`.
    fn qr_back(
        &self,
        [q, r]: [&TensorFuture; 2],
        [up_q, up_r]: [&TensorFuture; 2],
    ) -> TensorFuture {
        let m = up_r.matmul(t(r)) - t(q).matmul(up_q);
        let both = m.triu(0) + t(&m.triu(1));
        let sum = q.matmul(both) + up_q;
        t(&self.solve_upper(r, &t(&sum)))
    }

    /// Giles 2008, "Collected matrix derivative results", 3.1, for a gradient that is symmetric.
    fn eigh_back(
        [values, v]: [&TensorFuture; 2],
        [up_values, up_v]: [&TensorFuture; 2],
    ) -> TensorFuture {
        let one = eye(v);
        let along = t(v).matmul(up_v);
        let turned = (&along - t(&along)) * 0.5;
        let apart = values.unsqueeze(-2) - values.unsqueeze(-1) + &one;
        let inner = turned / apart + up_values.unsqueeze(-1) * one;
        v.matmul(inner).matmul(t(v))
    }

    /// Townsend 2016, "Differentiating the singular value decomposition".
    fn svd_back(
        [u, s, vh]: [&TensorFuture; 3],
        [up_u, up_s, up_vh]: [&TensorFuture; 3],
    ) -> TensorFuture {
        let k = s.dims().last().copied().unwrap_or(0);
        let (across, down) = (s.unsqueeze(-2), s.unsqueeze(-1));
        let one = s.device().eye_dtype([k, k], s.dtype());
        let apart = across.square() - down.square() + &one;
        let turned = |x: TensorFuture| (&x - t(&x)) / &apart;
        let (along_u, along_v) = (t(u).matmul(up_u), vh.matmul(t(up_vh)));
        let inner = turned(along_u.clone()) * &across
            + turned(along_v.clone()) * &down
            + up_s.unsqueeze(-1) * one;
        let mut sum = u.matmul(inner).matmul(vh);
        // What leaves the space that the factors span: of a square matrix nothing does.
        if u.dims()[u.rank() - 2] > k {
            sum = sum + ((up_u - u.matmul(along_u)) / &across).matmul(vh);
        }
        if vh.dims()[vh.rank() - 1] > k {
            sum = sum + u.matmul((up_vh - t(&along_v).matmul(vh)) / &down);
        }
        sum
    }

    /// The derivative of a pseudoinverse of constant rank (Golub and Pereyra 1973, "The
    /// differentiation of pseudo-inverses and nonlinear least squares problems", equation 4.12).
    fn lstsq_back(
        &self,
        [a, b, x]: [&TensorFuture; 3],
        [up, up_b]: [&TensorFuture; 2],
    ) -> TensorFuture {
        let pseudo = |a: &TensorFuture, b: &TensorFuture| self.again(self.kind, &[a, b]);
        let missed = (b - a.matmul(x)).matmul(t(&pseudo(a, up_b)));
        let free = pseudo(&t(a), x).matmul(t(&(up - t(a).matmul(up_b))));
        missed + free - up_b.matmul(t(x))
    }
}

impl Operation for Linalg {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let Meta { shape, dtype } = inputs[0];
        if let Some(other) = inputs.iter().find(|x| !matches!(x.dtype, DType::F32 | DType::F64)) {
            return Err(Refusal::dtype(format!("needs float32 or float64, not {}", other.dtype)));
        }
        let (batch, [m, n]) = matrices(shape)?;
        if m != n && !self.kind.takes_any_shape() {
            return Err(Refusal::shape(format!("{shape} is not square")));
        }
        if m < n && self.kind == Kind::Qr {
            return Err(Refusal::shape(format!("{shape} is wider than high")));
        }
        let mut width = 0;
        if self.kind.takes_two() {
            let b = inputs[1];
            if b.dtype != *dtype {
                return Err(Refusal::dtype(format!("{dtype} and {}: two types", b.dtype)));
            }
            match matrices(&b.shape)? {
                (other, [rows, columns]) if rows == m && other == batch => width = columns,
                _ => return Err(Refusal::shape(format!("{shape} and {} do not fit", b.shape))),
            }
        }
        let mut dims = batch.to_vec();
        dims.extend(self.kind.results([m, n], width));
        Ok(Meta::new(dims, *dtype))
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        let [count, least] = match matrices(&inputs[0].shape) {
            Ok((batch, [m, n])) => {
                let count = batch.iter().fold(1u64, |all, &size| all.saturating_mul(size as u64));
                [count, m.min(n) as u64]
            }
            Err(_) => [0, 0],
        };
        let all = inputs.iter().map(|x| x.shape.numel() as u64).fold(0, u64::saturating_add);
        // An iteration goes over the matrix some ten times.
        let times = match self.kind {
            Kind::EighValues | Kind::SvdValues => return all.saturating_add(500),
            Kind::Eigh | Kind::Svd | Kind::Lstsq { .. } => 10,
            Kind::Solve | Kind::TriangularSolve { .. } | Kind::Cholesky | Kind::Det => 1,
            Kind::LogDet | Kind::Cofactors | Kind::Qr => 2,
        };
        let each = count.saturating_mul(1_000);
        all.saturating_mul(least).saturating_add(each).saturating_mul(times).saturating_add(500)
    }

    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        match self.kind {
            Kind::Solve | Kind::TriangularSolve { .. } if !wanted[0] => Needs::inputs(&[0]),
            Kind::Solve | Kind::TriangularSolve { .. } => Needs::inputs(&[0]).and_output(),
            Kind::Lstsq { .. } if !wanted[0] => Needs::inputs(&[0]),
            Kind::Lstsq { .. } => Needs::inputs(&[0, 1]).and_output(),
            Kind::Det | Kind::LogDet | Kind::Cofactors => Needs::inputs(&[0]),
            Kind::Cholesky | Kind::Qr | Kind::Eigh | Kind::Svd => Needs::OUTPUT,
            Kind::EighValues | Kind::SvdValues => Needs::inputs(&[1]),
        }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let up = call.upstream().clone();
        let (_, sizes) = matrices(&call.meta(0).shape)?;
        match self.kind {
            // Giles 2008, 2.2.3 and 2.3.1: what flows to B is solved by the transposed matrix, and
            // what flows to A is made of it.
            Kind::Solve | Kind::TriangularSolve { .. } | Kind::Lstsq { .. } => {
                let kind = match self.kind {
                    Kind::TriangularSolve { upper, ones } => {
                        Kind::TriangularSolve { upper: !upper, ones }
                    }
                    other => other,
                };
                let up_b = self.again(kind, &[&t(call.input(0)), &up]);
                call.give(0, |call| {
                    let x = call.output();
                    match self.kind {
                        Kind::Lstsq { .. } => {
                            self.lstsq_back([call.input(0), call.input(1), x], [&up, &up_b])
                        }
                        Kind::TriangularSolve { upper, ones } => {
                            let all = -up_b.matmul(t(x));
                            if upper { all.triu(ones as i64) } else { all.tril(-(ones as i64)) }
                        }
                        _ => -up_b.matmul(t(x)),
                    }
                });
                call.give(1, |_| up_b);
            }
            Kind::Det => call.give(0, |call| {
                let cofactors = self.again(Kind::Cofactors, &[call.input(0)]);
                up.unsqueeze(-1).unsqueeze(-1) * cofactors
            }),
            // The sign is flat.
            Kind::LogDet => call.give(0, |call| {
                up.narrow(-1, 1, 1).unsqueeze(-1) * self.transposed_inverse(call.input(0))
            }),
            Kind::Cofactors => call.give(0, |call| self.cofactors_back(call.input(0), &up)),
            Kind::Cholesky => call.give(0, |call| self.cholesky_back(call.output(), &up)),
            Kind::Qr | Kind::Eigh | Kind::Svd => call.give(0, |call| {
                let (own, ups) = (self.pieces(call.output(), sizes), self.pieces(&up, sizes));
                let ([a, b, c], [up_a, up_b, up_c]) = (own.each_ref(), ups.each_ref());
                match self.kind {
                    Kind::Qr => self.qr_back([a, b], [up_a, up_b]),
                    Kind::Eigh => Self::eigh_back([a, b], [up_a, up_b]),
                    _ => Self::svd_back([a, b, c], [up_a, up_b, up_c]),
                }
            }),
            Kind::EighValues => call.give(0, |call| {
                let [_, v, _] = self.pieces(call.input(1), sizes);
                (&v * up.unsqueeze(-2)).matmul(t(&v))
            }),
            Kind::SvdValues => call.give(0, |call| {
                let [u, _, vh] = self.pieces(call.input(1), sizes);
                (u * up.unsqueeze(-2)).matmul(vh)
            }),
        }
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        match run.inputs()[0].dtype() {
            DType::F64 => self.run::<f64>(run),
            _ => self.run::<f32>(run),
        }
    }
}

impl Linalg {
    fn run<T: Real>(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let &[ref batch @ .., m, n] = run.inputs()[0].shape() else { return Ok(()) };
        if run.output().numel() == 0 {
            return Ok(());
        }
        let a = elements::<T>(run.inputs()[0])?;
        let b = run.inputs().get(1).map(|b| elements::<T>(*b)).transpose()?.unwrap_or_default();
        let count = batch.iter().product::<usize>();
        let right = b.len() / count.max(1);
        let width = right / m.max(1);
        let cost_ns = (a.len() as u64).saturating_mul(m.min(n) as u64);
        let parallel = run.parallel();
        let out = run.output().into_slice::<T>().ok_or_else(|| not_of(T::DTYPE.name()))?;
        shared(parallel, out, count, cost_ns, |which, out| {
            let size = out.len() / which.len();
            for (k, out) in which.zip(out.chunks_exact_mut(size)) {
                let (a, b) = (&a[k * m * n..][..m * n], &b[k * right..][..right]);
                self.one(a, b, [m, n, width], out).map_err(|refusal| match count {
                    1 => refusal,
                    _ => Refusal {
                        message: format!("matrix {k} of the batch: {}", refusal.message),
                        ..refusal
                    },
                })?;
            }
            Ok(())
        })
    }

    /// One of the batch.
    fn one<T: Real>(
        &self,
        a: &[T],
        b: &[T],
        [m, n, width]: [usize; 3],
        out: &mut [T],
    ) -> Result<(), Refusal> {
        let k = m.min(n);
        match self.kind {
            Kind::Solve => kernel::solve(a, b, [n, width], out)?,
            Kind::TriangularSolve { upper, ones } => {
                kernel::triangular_solve(a, b, [n, width], upper, ones, out)?;
            }
            Kind::Lstsq { rcond } => kernel::lstsq(a, b, [m, n, width], rcond, out)?,
            Kind::Cholesky => kernel::cholesky(a, n, out)?,
            Kind::Det => out[0] = number(kernel::det(a, n)),
            Kind::LogDet => {
                let (sign, log) = kernel::log_det(a, n);
                out.copy_from_slice(&[number(sign), number(log)]);
            }
            Kind::Cofactors => kernel::cofactors(a, n, out)?,
            Kind::Qr => {
                let (q, r) = out.split_at_mut(m * n);
                kernel::qr(a, [m, n], q, r);
            }
            Kind::Eigh => {
                let (values, vectors) = out.split_at_mut(n);
                kernel::eigh(a, n, values, vectors)?;
            }
            Kind::EighValues => out.copy_from_slice(&b[..n]),
            Kind::SvdValues => out.copy_from_slice(&b[m * k..][..k]),
            Kind::Svd => {
                let (u, rest) = out.split_at_mut(m * k);
                let (s, vh) = rest.split_at_mut(k);
                kernel::svd_in_rows(a, [m, n], u, s, vh)?;
            }
        }
        Ok(())
    }
}
