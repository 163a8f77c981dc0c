//! Diagonals of matrices, and matrices with a diagonal.

use crate::graph::operation::Refusal;
use crate::shape::Shape;
use crate::tensor::build;
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// The diagonal of a matrix of this size: the position of its first element, and its length.
fn along(rows: usize, columns: usize, offset: i64) -> ([usize; 2], usize) {
    let far = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    let (start, len) = match offset >= 0 {
        true => ([0, far], rows.min(columns.saturating_sub(far))),
        false => ([far, 0], rows.saturating_sub(far).min(columns)),
    };
    if len == 0 { ([0, 0], 0) } else { (start, len) }
}

/// Diagonals.
impl TensorFuture {
    /// The elements on a diagonal of two dimensions, which become the last one: `offset` columns to
    /// the right, or `-offset` rows down. A view.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 6, 1).reshape([2, 3]);
    /// assert_eq!(x.diagonal(0, 0, 1).to_vec::<i64>().await?, [0, 4]);
    /// assert_eq!(x.diagonal(1, 0, 1).to_vec::<i64>().await?, [1, 5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn diagonal(&self, offset: i64, dim1: isize, dim2: isize) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("diagonal", at);
        if let Some(&dim) = [dim1, dim2].iter().find(|&&dim| self.shape().dim(dim).is_none()) {
            let refusal = build::dim_refusal(dim, self.shape());
            return build::refused("diagonal", self, refusal, at);
        }
        let last = self.movedim([dim1, dim2], [-2, -1]);
        let &[.., rows, columns] = last.dims() else { return last };
        if last.error().is_some() {
            return last;
        }
        let (start, len) = along(rows, columns, offset);
        last.along_diagonal(start, len, at)
    }

    /// Of a matrix the elements on a diagonal; of a vector the matrix that has it on that diagonal,
    /// and zeros elsewhere.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(1, 3, 1);
    /// assert_eq!(x.diag(0).to_vec::<i64>().await?, [1, 0, 0, 2]);
    /// assert_eq!(x.diag(0).diag(0).to_vec::<i64>().await?, [1, 2]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn diag(&self, offset: i64) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("diag", at);
        let refuse = |refusal| build::refused("diag", self, refusal, at);
        match *self.dims() {
            [_, _] => self.diagonal(offset, 0, 1),
            [len] => {
                let far = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
                let n = len.saturating_add(far);
                if let Err(refusal) = build::fits(&[n, n].into(), self.dtype()) {
                    return refuse(refusal);
                }
                self.on_diagonal(&[n, n].into(), along(n, n, offset).0)
            }
            _ => refuse(Refusal::shape(format!("a vector or a matrix, not {}", self.shape()))),
        }
    }

    /// The sum of the diagonal of a matrix; integers are added in int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let x = futensor::Device::cpu().arange(0, 6, 1).reshape([2, 3]);
    /// assert_eq!(x.trace().item::<i64>().await?, 4);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn trace(&self) -> TensorFuture {
        let at = Location::caller();
        let _within = build::within("trace", at);
        if self.rank() != 2 {
            let text = format!("a matrix, not {}", self.shape());
            return build::refused("trace", self, Refusal::shape(text), at);
        }
        self.diagonal(0, 0, 1).sum(0)
    }

    /// Zeros of a shape, with this value from a position of the last two dimensions on: the
    /// gradient of a diagonal.
    pub(crate) fn on_diagonal(&self, shape: &Shape, start: [usize; 2]) -> TensorFuture {
        let &[.., rows, columns] = shape.dims() else { return self.clone() };
        let mut parts: Vec<_> = self.dims().iter().map(|&n| (0, n, 1)).collect();
        if let Some(last) = parts.last_mut() {
            *last = (start[0] * columns + start[1], last.1, columns as isize + 1);
        }
        let mut flat = shape.dims()[..shape.rank() - 2].to_vec();
        flat.push(rows * columns);
        self.among_zeros(&flat.into(), &parts).reshape(shape.dims())
    }
}
