//! Linear algebra: [`solve`](TensorFuture::solve),
//! [`triangular_solve`](TensorFuture::triangular_solve), [`lstsq`](TensorFuture::lstsq),
//! [`inverse`](TensorFuture::inverse), [`det`](TensorFuture::det),
//! [`slogdet`](TensorFuture::slogdet), [`cholesky`](TensorFuture::cholesky),
//! [`qr`](TensorFuture::qr), [`eigh`](TensorFuture::eigh), [`svd`](TensorFuture::svd).
//!
//! A value is a matrix in its last two dimensions, and a batch of matrices in those before. The
//! types are float32 and float64. All have gradients of any order. The crate `faer` computes them
//! on the threads of the CPU device, each matrix on one of them; the values of a GPU are copied
//! there and back without a wait.
//!
//! A matrix that does not allow it (one that is singular, or not positive definite) fails the
//! value, with all others of its batch.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::Device;
//! let a = Device::cpu().from_vec(vec![4.0f32, 2.0, 2.0, 3.0], [2, 2]);
//! let b = Device::cpu().from_vec(vec![8.0f32, 8.0], [2]);
//! let x = a.solve(&b);
//! assert!((a.matmul(&x) - b).abs().max_all().item::<f32>().await? < 1e-6);
//! assert!((a.det().item::<f32>().await? - 8.0).abs() < 1e-5);
//! let error = (a - 4.0).cholesky(false).await.unwrap_err();
//! assert!(error.message().starts_with("the matrix is not positive definite"));
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod kernel;
mod op;

use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::hosted::hosted;
use crate::tensor::build::{self, At};
use crate::tensor::custom::custom;
use crate::tensor::future::TensorFuture;
use op::{Kind, Linalg, matrices, t};
use std::panic::Location;

/// # Linear algebra
///
/// With the feature `linalg`: [`linalg`](crate::linalg) has the rules. Each is a type error for
/// other types than float32 and float64, and a shape error for what is no matrix, or not square
/// where it has to be.
impl TensorFuture {
    /// The solution of `self @ x = b`. `b` is a vector, or matrices; batches are broadcast. As in
    /// PyTorch `b` is a batch of vectors where it has the shape of the batch and of a row.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let a = device.from_vec(vec![2.0f32, 0.0, 0.0, 4.0], [2, 2]);
    /// let b = device.from_vec(vec![2.0f32, 2.0], [2]);
    /// assert_eq!(a.solve(b).to_vec::<f32>().await?, [1.0, 0.5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if a matrix is singular; a shape error if `b` does not fit.
    #[track_caller]
    pub fn solve(&self, b: impl AsRef<TensorFuture>) -> TensorFuture {
        two("solve", Kind::Solve, self, b.as_ref(), Location::caller())
    }

    /// [`solve`](Self::solve) for a triangular matrix, the upper or the lower one of this value;
    /// the other triangle is not read. With `unitriangular` the diagonal is not read either, and
    /// counts as ones.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let a = device.from_vec(vec![2.0f32, 2.0, 9.0, 4.0], [2, 2]);
    /// let b = device.from_vec(vec![4.0f32, 4.0], [2]);
    /// assert_eq!(a.triangular_solve(b, true, false).to_vec::<f32>().await?, [1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if the diagonal has a zero; a shape error if `b` does not fit.
    #[doc(alias = "solve_triangular")]
    #[track_caller]
    pub fn triangular_solve(
        &self,
        b: impl AsRef<TensorFuture>,
        upper: bool,
        unitriangular: bool,
    ) -> TensorFuture {
        let kind = Kind::TriangularSolve { upper, ones: unitriangular };
        two("triangular_solve", kind, self, b.as_ref(), Location::caller())
    }

    /// The `x` with the least squares of `self @ x - b`; of several the one with the least squares
    /// itself. Singular values below the largest one times the type's epsilon and the larger size
    /// count as zero, as in PyTorch's driver `gelsd`. The gradient is that of matrices of the same
    /// rank.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let a = device.from_vec(vec![1.0f64, 1.0, 1.0], [3, 1]);
    /// let b = device.from_vec(vec![1.0f64, 2.0, 6.0], [3]);
    /// assert!((a.lstsq(b).item::<f64>().await? - 3.0).abs() < 1e-12);      // the mean
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if an element is not finite; a shape error if `b` does not fit.
    #[track_caller]
    pub fn lstsq(&self, b: impl AsRef<TensorFuture>) -> TensorFuture {
        let epsilon = match self.dtype() {
            DType::F64 => f64::EPSILON,
            _ => f32::EPSILON as f64,
        };
        let size = self.dims().iter().rev().take(2).max().copied().unwrap_or(0);
        let kind = Kind::Lstsq { rcond: epsilon * size as f64 };
        two("lstsq", kind, self, b.as_ref(), Location::caller())
    }

    /// The inverse. To multiply by it, [`solve`](Self::solve) is quicker and more exact.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().from_vec(vec![2.0f32, 0.0, 0.0, 4.0], [2, 2]);
    /// assert_eq!(a.inverse().to_vec::<f32>().await?, [0.5, 0.0, 0.0, 0.25]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if a matrix is singular.
    #[doc(alias = "inv")]
    #[track_caller]
    pub fn inverse(&self) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("inverse", at);
        let n = self.dims().last().copied().unwrap_or(0);
        if let Err(refusal) = square(self) {
            return build::refused("inverse", self, refusal, at);
        }
        let one = self.device().eye_dtype([n, n], self.dtype()).expand(self.dims());
        queued(Linalg { name: "inverse", kind: Kind::Solve }, &[self, &one])
    }

    /// The determinant. Of a singular matrix it is 0, and has a gradient all the same.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().from_vec(vec![2.0f32, 1.0, 0.0, 4.0], [2, 2]);
    /// assert_eq!(a.det().item::<f32>().await?, 8.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn det(&self) -> TensorFuture {
        one("det", Kind::Det, self, Location::caller())
    }

    /// The sign of the determinant and the logarithm of its size, which does not overflow. Of a
    /// singular matrix they are 0 and minus infinity.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().eye([3, 3]) * -1e30;
    /// let (sign, log) = a.slogdet();
    /// assert_eq!(sign.item::<f32>().await?, -1.0);
    /// assert!((log.item::<f32>().await? - 3.0 * 1e30f32.ln()).abs() < 1e-3);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "logdet")]
    #[track_caller]
    pub fn slogdet(&self) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        let both = one("slogdet", Kind::LogDet, self, at);
        let _within = build::within("slogdet", at);
        if both.error().is_some() {
            return (both.clone(), both);
        }
        (both.narrow(-1, 0, 1).squeeze(-1), both.narrow(-1, 1, 1).squeeze(-1))
    }

    /// The lower triangular `l` with `l @ l' = self`, of a symmetric positive definite matrix whose
    /// lower triangle is read; with `upper` the upper triangular `u` with `u' @ u = self`, and the
    /// upper triangle is read.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().from_vec(vec![4.0f32, 2.0, 2.0, 2.0], [2, 2]);
    /// assert_eq!(a.cholesky(false).to_vec::<f32>().await?, [2.0, 0.0, 1.0, 1.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if a matrix is not positive definite.
    #[track_caller]
    pub fn cholesky(&self, upper: bool) -> TensorFuture {
        let at = Location::caller();
        let turned = |x: &TensorFuture| if upper && x.rank() >= 2 { t(x) } else { x.clone() };
        let _within = build::within("cholesky", at);
        turned(&one("cholesky", Kind::Cholesky, &turned(self), at))
    }

    /// `q` with orthonormal columns and the upper triangular `r` with `q @ r = self`; PyTorch's
    /// mode `reduced`.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().from_vec(vec![3.0f32, 4.0], [2, 1]);
    /// let (q, r) = a.qr();
    /// assert_eq!((q.dims(), r.dims()), (&[2, 1][..], &[1, 1][..]));
    /// assert!((q.matmul(r) - a).abs().max_all().item::<f32>().await? < 1e-6);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn qr(&self) -> (TensorFuture, TensorFuture) {
        let at = Location::caller();
        let _within = build::within("qr", at);
        let of = |x: &TensorFuture| {
            let [q, r, _] = factors(Linalg { name: "qr", kind: Kind::Qr }, x, at);
            (q, r)
        };
        match self.dims() {
            // Of a wide matrix the square part at the left has the same `q`.
            &[.., m, n] if m < n => {
                let (q, r) = of(&self.narrow(-1, 0, m));
                let rest = t(&q).matmul(self.narrow(-1, m, n - m));
                let r = r.followed_by(&rest, -1);
                (q, r)
            }
            _ => of(self),
        }
    }

    /// Eigenvalues in ascending order, and eigenvectors as columns, of a symmetric matrix whose
    /// lower triangle is read. Vectors have any sign. Where values are equal the gradient of the
    /// vectors is not finite.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().from_vec(vec![1.0f64, 2.0, 2.0, 1.0], [2, 2]);
    /// let (values, vectors) = a.eigh();
    /// let wrong = a.matmul(&vectors) - vectors * &values;
    /// assert!(wrong.abs().max_all().item::<f64>().await? < 1e-12);
    /// assert!((values.i(0).item::<f64>().await? + 1.0).abs() < 1e-12);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if an element is not finite; a kernel error if the iteration does not end.
    #[doc(alias = "eigvalsh")]
    #[track_caller]
    pub fn eigh(&self) -> (TensorFuture, TensorFuture) {
        let op = Linalg { name: "eigh", kind: Kind::Eigh };
        let [values, vectors, _] = factors(op, self, Location::caller());
        (values, vectors)
    }

    /// `u`, `s` and `vh` with `u @ diag(s) @ vh = self`: the singular values in descending order,
    /// and as many vectors of each side; PyTorch's `full_matrices=False`. Vectors have any sign.
    /// Where values are equal, or zero, the gradient of the vectors is not finite.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let a = futensor::Device::cpu().from_vec(vec![3.0f64, 0.0, 4.0, 0.0, 5.0, 0.0], [3, 2]);
    /// let (u, s, vh) = a.svd();
    /// let again = (u * s.unsqueeze(-2)).matmul(vh);
    /// assert!((again - a).abs().max_all().item::<f64>().await? < 1e-12);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// An argument error if an element is not finite; a kernel error if the iteration does not end.
    #[doc(alias = "svdvals")]
    #[track_caller]
    pub fn svd(&self) -> (TensorFuture, TensorFuture, TensorFuture) {
        let [u, s, vh] = factors(Linalg { name: "svd", kind: Kind::Svd }, self, Location::caller());
        (u, s, vh)
    }
}

fn square(x: &TensorFuture) -> Result<(), Refusal> {
    let (_, [m, n]) = matrices(x.shape())?;
    match m == n {
        true => Ok(()),
        false => Err(Refusal::shape(format!("{} is not square", x.shape()))),
    }
}

fn queued(op: Linalg, operands: &[&TensorFuture]) -> TensorFuture {
    let [result] = hosted(&op, operands, |operands| [custom(op, operands)]);
    result
}

fn one(name: &'static str, kind: Kind, x: &TensorFuture, at: At) -> TensorFuture {
    let _within = build::within(name, at);
    queued(Linalg { name, kind }, &[x])
}

/// The results of a decomposition; each is the failed value where it is refused.
fn factors(op: Linalg, x: &TensorFuture, at: At) -> [TensorFuture; 3] {
    let _within = build::within(op.name, at);
    hosted(&op, &[x], |x| {
        let packed = custom(op, x);
        let sizes = match matrices(x[0].shape()) {
            Ok((_, sizes)) if packed.error().is_none() => sizes,
            _ => return [packed.clone(), packed.clone(), packed],
        };
        let values = |kind| custom(Linalg { kind, ..op }, &[x[0], &packed]);
        let [a, b, c] = op.pieces(&packed, sizes);
        match op.kind {
            Kind::Eigh => [values(Kind::EighValues), b, c],
            Kind::Svd => [a, values(Kind::SvdValues), c],
            _ => [a, b, c],
        }
    })
}

/// An op with a right side: a vector, or matrices, with the batch of the left side.
fn two(name: &'static str, kind: Kind, a: &TensorFuture, b: &TensorFuture, at: At) -> TensorFuture {
    let _within = build::within(name, at);
    let of_vectors = b.rank() == 1 || a.rank() == b.rank() + 1 && a.dims()[..b.rank()] == *b.dims();
    let sides = || {
        let b = if of_vectors { b.unsqueeze(-1) } else { b.clone() };
        let (left, sizes) = matrices(a.shape())?;
        let (right, [rows, width]) = matrices(b.shape())?;
        let refusal = || Refusal::shape(format!("{} and {} do not fit", a.shape(), b.shape()));
        let batch = crate::shape::Shape::from(left).broadcast(&right.into());
        let batch = batch.filter(|_| rows == sizes[0]).ok_or_else(refusal)?;
        let to = |x: &TensorFuture, own: [usize; 2]| x.expand([batch.dims(), &own].concat());
        Ok((to(a, sizes), to(&b, [rows, width])))
    };
    match sides() {
        Err(refusal) => build::refused(name, a, refusal, at),
        Ok((a, b)) => {
            let x = queued(Linalg { name, kind }, &[&a, &b]);
            if of_vectors && x.error().is_none() { x.squeeze(-1) } else { x }
        }
    }
}
