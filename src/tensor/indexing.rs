//! Indexing by tensors, and shapes by their parts.

use super::build::{self, At};
use super::dims::{Dims, Index};
use super::future::TensorFuture;
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::op::ReduceOp;
use crate::shape::Shape;
use std::panic::Location;

/// Picking by tensors of indices. Nothing waits; an index that is out of range fails the value.
impl TensorFuture {
    /// The elements at these positions of all of them in row-major order; the result has the shape of the
    /// indices. Negative ones count from the end.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    /// assert_eq!(x.take(device.from_vec(vec![3i64, 0], [2])).to_vec::<i32>().await?, [4, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn take(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        let index = index.as_ref();
        let _within = build::within("take", Location::caller());
        self.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.dims())
    }

    /// Indexing by tensors: `x.index(&[Some(&i), None, Some(&j)])` is PyTorch's `x[i, :, j]`. The tensors are
    /// broadcast against each other; the dimensions of the result of that stand where the indexed ones were, or
    /// in front where those are not neighbours. Indices are integers, negative ones count from the end. What
    /// a bool tensor picks is as long as its data say: see [`nonzero`](Self::nonzero).
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.arange(0, 12, 1).reshape([3, 4]);
    /// let (i, j) = (device.from_vec(vec![0i64, 2], [2]), device.from_vec(vec![1i64, -1], [2]));
    /// assert_eq!(x.index(&[Some(&i), Some(&j)]).to_vec::<i64>().await?, [1, 11]);
    /// assert_eq!(x.index(&[None, Some(&j)]).to_vec::<i64>().await?, [1, 3, 5, 7, 9, 11]);
    /// assert!(x.index(&[Some(&device.full([1], 3))]).await.unwrap_err().is_index());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn index(&self, indices: &[Option<&TensorFuture>]) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("index", at);
        let refuse = |refusal| build::refused("index", self, refusal, at);
        if indices.len() > self.rank() {
            return refuse(Refusal::index(format!("{} indices for shape {}", indices.len(), self.shape())));
        }
        // One number is no list of them: it takes its dimension away before anything else is picked.
        if let Some(d) = indices.iter().position(|i| i.is_some_and(|i| i.rank() == 0 && i.dtype().is_int())) {
            let one = indices[d].map(|i| i.reshape(1));
            let mut alone = vec![None; d];
            alone.push(one.as_ref());
            let rest = [&indices[..d], &indices[d + 1..]].concat();
            return self.index(&alone).squeeze(d as isize).index(&rest);
        }
        let named: Vec<(usize, &TensorFuture)> =
            indices.iter().enumerate().filter_map(|(d, i)| i.map(|i| (d, i))).collect();
        if let Some((_, wrong)) = named.iter().find(|(_, i)| !i.dtype().is_int()) {
            return refuse(Refusal::dtype(format!("indices are integers, not {}", wrong.dtype())));
        }
        let mut shape = Shape::default();
        for (_, i) in &named {
            match shape.broadcast(i.shape()) {
                Some(both) => shape = both,
                None => return refuse(Refusal::shape(format!("cannot broadcast {shape} with {}", i.shape()))),
            }
        }
        // From the end where they are negative; where one is out of range, a place that nothing has.
        let placed = |d: usize, i: &TensorFuture| {
            let (i, n) = (i.to_dtype(DType::I64), self.dims()[d] as i64);
            i.lt(0).where_cond(&i + n, &i)
        };
        let (first, rest) = match &named[..] {
            [] => return self.clone(),
            &[(d, i)] => (d, i.clone()),
            [.., _] => {
                let mut sum: Option<(TensorFuture, TensorFuture)> = None;
                for &(d, i) in &named {
                    let (i, n) = (placed(d, i), self.dims()[d] as i64);
                    let fits = i.ge(0).logical_and(i.lt(n));
                    sum = Some(match sum {
                        None => (i, fits),
                        Some((sum, all)) => (sum * n + i, all.logical_and(fits)),
                    });
                }
                let Some((sum, fits)) = sum else { return self.clone() };
                let many: i64 = named.iter().map(|&(d, _)| self.dims()[d] as i64).fold(1, i64::saturating_mul);
                (named[0].0, fits.where_cond(sum, many))
            }
        };
        let dims: Vec<usize> = named.iter().map(|(d, _)| *d).collect();
        let neighbours = dims.windows(2).all(|w| w[0] + 1 == w[1]);
        let lead = if neighbours { first } else { 0 };
        let others: Vec<usize> = (0..self.rank()).filter(|d| !dims.contains(d)).collect();
        // The indexed dimensions together as one, at their place.
        let order: Vec<usize> = others[..lead].iter().chain(&dims).chain(&others[lead..]).copied().collect();
        let sizes = |of: &[usize]| -> Vec<usize> { of.iter().map(|&d| self.dims()[d]).collect() };
        let many = Shape::from(sizes(&dims)).numel();
        let merged = [&sizes(&others[..lead])[..], &[many], &sizes(&others[lead..])].concat();
        let rest = rest.expand(shape.dims()).reshape(-1);
        let out = [&sizes(&others[..lead])[..], shape.dims(), &sizes(&others[lead..])].concat();
        self.permute(&order[..]).reshape(&merged[..]).index_select(lead as isize, rest).reshape(&out[..])
    }

    /// One dimension by one index.
    #[track_caller]
    pub(crate) fn index_dim(&self, dim: usize, index: Index) -> TensorFuture {
        let mut all = vec![Index::ALL; dim];
        all.push(index);
        self.i(all)
    }

    /// As [`argmax`](Self::argmax), with the dimension kept at size 1.
    #[track_caller]
    pub fn argmax_keepdim(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMax, self, Some(&[dim]), true, Location::caller())
    }

    /// As [`argmin`](Self::argmin), with the dimension kept at size 1.
    #[track_caller]
    pub fn argmin_keepdim(&self, dim: isize) -> TensorFuture {
        build::reduce(ReduceOp::ArgMin, self, Some(&[dim]), true, Location::caller())
    }

    /// Consecutive parts of these sizes along `dim`, which add up to it; views.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 5]);
    /// let parts = x.split_with_sizes([2, 3], 1);
    /// assert_eq!((parts[0].dims(), parts[1].dims()), (&[2, 2][..], &[2, 3][..]));
    /// ```
    #[track_caller]
    pub fn split_with_sizes(&self, sizes: impl Dims, dim: isize) -> Vec<TensorFuture> {
        let (sizes, at): (_, At) = (sizes.dims(), Location::caller());
        let checked =
            self.shape().dim(dim).ok_or_else(|| build::dim_refusal(dim, self.shape())).and_then(|d| {
                let n = self.dims()[d];
                match sizes.iter().all(|&s| s >= 0)
                    && sizes.iter().map(|&s| s as i128).sum::<i128>() == n as i128
                {
                    true => Ok(()),
                    false => Err(Refusal::argument(format!("{sizes:?} do not add up to {n}"))),
                }
            });
        if let Err(refusal) = checked {
            let failed = build::refused("split_with_sizes", self, refusal, at);
            return vec![failed; sizes.len()];
        }
        let _within = build::within("split_with_sizes", at);
        let mut start = 0;
        let mut part = |&n: &isize| {
            start += n as usize;
            self.narrow(dim, start - n as usize, n as usize)
        };
        sizes.iter().map(&mut part).collect()
    }

    /// The dimensions from `start` to `end` (both included) as one.
    ///
    /// ```
    /// let x = futensor::Device::cpu().ones([2, 3, 4, 5]);
    /// assert_eq!(x.flatten(1, -1).dims(), [2, 60]);
    /// ```
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("flatten", at);
        if build::is_row_of_one(self, start) && build::is_row_of_one(self, end) {
            return self.reshape(1);
        }
        let dim = |d| self.shape().dim(d).ok_or_else(|| build::dim_refusal(d, self.shape()));
        let ends = dim(start).and_then(|a| match dim(end)? {
            b if a <= b => Ok((a, b)),
            _ => Err(Refusal::argument(format!("dimension {start} comes after {end}"))),
        });
        match ends {
            Err(refusal) => build::refused("flatten", self, refusal, at),
            Ok((a, b)) => {
                let one = Shape::from(&self.dims()[a..=b]).numel();
                let shape = [&self.dims()[..a], &[one], &self.dims()[b + 1..]].concat();
                self.reshape(&shape[..])
            }
        }
    }
}
