//! Reading and writing elements by index.

use crate::dtype::DType;
use crate::error::number_of;
use crate::graph::operation::Refusal;
use crate::op::ScatterMode;
use crate::ops::Listed;
use crate::ops::index::embedding::Embedding;
use crate::ops::index::gather::Gather;
use crate::ops::index::index_copy::IndexCopy;
use crate::ops::index::index_select::IndexSelect;
use crate::ops::index::one_hot::OneHot;
use crate::ops::index::scatter::Scatter;
use crate::ops::index::scatter_add::ScatterAdd;
use crate::shape::Shape;
use crate::tensor::build::{self, At, custom};
use crate::tensor::dims::Index;
use crate::tensor::future::TensorFuture;
use std::panic::Location;
use std::sync::Arc;

/// Where tensors of indices point: the indexed dimensions are brought together and merged into one.
pub(super) struct Named {
    /// The order in which the indexed dimensions are adjacent.
    pub order: Vec<usize>,
    /// The sizes, once these are merged.
    pub merged: Vec<usize>,
    /// The merged dimension.
    pub lead: usize,
    /// The positions in it.
    pub flat: TensorFuture,
    /// The shape of what is picked.
    pub out: Vec<usize>,
}

/// # Indexing
///
/// Indices are int64, int32 or uint8. As in PyTorch, negative indices count from the end in
/// [`index`](TensorFuture::index), [`index_put`](TensorFuture::index_put),
/// [`index_fill`](TensorFuture::index_fill) and [`take`](TensorFuture::take), and are out of range
/// elsewhere. An index out of range fails the value, never the device.
impl TensorFuture {
    /// Gathers elements along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim` 0. A 0-d value or
    /// index counts as a vector of one element.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    /// let index = device.from_vec(vec![0i64, 0, 1, 0], [2, 2]);
    /// assert_eq!(x.gather(1, &index).to_vec::<i32>().await?, [1, 1, 4, 3]);
    /// let error = x.gather(1, device.full([2, 2], 2)).await.unwrap_err();
    /// assert_eq!(error.message(), "index 2 at position 0 is out of range for size 2");
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias("take_along_dim", "take_along_axis"))]
    #[track_caller]
    pub fn gather(&self, dim: isize, index: impl AsRef<TensorFuture>) -> TensorFuture {
        self.gathered(dim, index.as_ref(), false)
    }

    /// [`gather`](Self::gather), where negative indices may count `from_end`.
    #[track_caller]
    pub(crate) fn gathered(
        &self,
        dim: isize,
        index: &TensorFuture,
        from_end: bool,
    ) -> TensorFuture {
        let at: At = Location::caller();
        if (self.rank() == 0 || index.rank() == 0) && self.rank() <= 1 && index.rank() <= 1 {
            let _within = build::within("gather", at);
            let (row, places) = (self.reshape(-1), index.reshape(-1));
            return row.gathered(dim, &places, from_end).reshape(index.dims());
        }
        let op = Gather { dim, name: build::named("gather"), from_end };
        custom(Arc::new(op), &[self, index], at)
    }

    /// Copies slices of `source` to the positions along `dim` that a vector of indices names:
    /// `out[index[j]] = source[j]` for `dim` 0. If several slices go to one position, the last one
    /// wins, and only it has a gradient.
    ///
    /// Takes `self` by value: if it is the last handle and no other op still reads the value, only
    /// these slices are written. So a key-value cache with positions on the device costs only what
    /// it changes. [`Stats::copied_bytes`](crate::Stats::copied_bytes) tells
    /// whether anything was copied.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let mut cache = device.zeros([3, 2]);
    /// let places = device.from_vec(vec![2i64, 0], [2]);
    /// cache = cache.index_copy(0, &places, device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]));
    /// assert_eq!(cache.to_vec::<f32>().await?, [3.0, 4.0, 0.0, 0.0, 1.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The value fails if an index is out of range, if the types differ, or if the shape of
    /// `source` differs from this one in any dimension but `dim`, where its size is the number of
    /// indices.
    #[track_caller]
    pub fn index_copy(
        self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        self.slices_copied(dim, index.as_ref(), source, false)
    }

    /// [`index_copy`](Self::index_copy), where negative indices may count `from_end`.
    #[track_caller]
    pub(crate) fn slices_copied(
        self,
        dim: isize,
        index: &TensorFuture,
        source: impl AsRef<TensorFuture>,
        from_end: bool,
    ) -> TensorFuture {
        let at: At = Location::caller();
        let given = [&self, index, source.as_ref()];
        // A 0-d value counts as a vector of one element.
        if given.iter().any(|x| x.rank() == 0)
            && index.rank() <= 1
            && (self.rank() > 1) == (given[2].rank() > 1)
        {
            let _within = build::within("index_copy", at);
            let row = |x: &TensorFuture| if x.rank() == 0 { x.reshape(1) } else { x.clone() };
            let copied = row(&self).slices_copied(dim, &row(index), row(given[2]), from_end);
            return copied.reshape(self.dims());
        }
        let op = IndexCopy { dim, name: build::named("index_copy"), from_end };
        let asked = build::ask_custom(Arc::new(op), &given, at);
        asked.without((self, source))
    }

    /// Writes the elements of `source` to `index` along `dim`: `out[index[i][j]][j] = source[i][j]`
    /// for `dim` 0. If several elements go to one position, the last one in the order of the
    /// indices wins on every device, and only it has a gradient.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![1i64, 3], [2]);
    /// let x = device.zeros([4]).scatter(0, &index, device.from_vec(vec![5.0f32, 6.0], [2]));
    /// assert_eq!(x.to_vec::<f32>().await?, [0.0, 5.0, 0.0, 6.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "put_along_axis")]
    #[track_caller]
    pub fn scatter(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        self.scattered_by(dim, index.as_ref(), source.as_ref(), ScatterMode::Assign)
    }

    /// Adds the elements of `source` at `index` along `dim`, in the order of the indices, so the
    /// sums are reproducible. A 0-d value counts as a vector of one element.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let index = device.from_vec(vec![1i64, 1, 0], [3]);
    /// let sums = device.zeros([2])
    ///     .scatter_add(0, &index, device.from_vec(vec![1.0f32, 2.0, 4.0], [3]));
    /// assert_eq!(sums.to_vec::<f32>().await?, [4.0, 3.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn scatter_add(
        &self,
        dim: isize,
        index: impl AsRef<TensorFuture>,
        source: impl AsRef<TensorFuture>,
    ) -> TensorFuture {
        self.scatter_added(dim, index.as_ref(), source.as_ref(), false)
    }

    /// [`scatter_add`](Self::scatter_add), where negative indices may count `from_end`.
    #[track_caller]
    pub(crate) fn scatter_added(
        &self,
        dim: isize,
        index: &TensorFuture,
        source: &TensorFuture,
        from_end: bool,
    ) -> TensorFuture {
        let op = ScatterAdd { dim, name: build::named("scatter_add"), from_end };
        self.scattered("scatter_add", [index, source], Arc::new(op), dim)
    }

    /// In any operand a 0-d value counts as a vector of one element; an empty index may have any
    /// shape, as in PyTorch.
    #[track_caller]
    fn scattered(
        &self,
        name: &'static str,
        [index, source]: [&TensorFuture; 2],
        op: Arc<impl Listed>,
        dim: isize,
    ) -> TensorFuture {
        let at: At = Location::caller();
        let operands = [self, index, source];
        let fits = || {
            let whole = operands.iter().all(|x| x.error().is_none());
            whole
                && self.shape().dim(dim).is_some()
                && index.dtype().is_int()
                && self.dtype() == source.dtype()
        };
        if index.numel() == 0 && index.rank() != self.rank() && fits() {
            return self.clone();
        }
        if operands.iter().any(|x| x.rank() == 0) && operands.iter().all(|x| x.rank() <= 1) {
            let _within = build::within(name, at);
            let rows = operands.map(|x| if x.rank() == 0 { x.reshape(1) } else { x.clone() });
            return custom(op, &[&rows[0], &rows[1], &rows[2]], at).reshape(self.dims());
        }
        custom(op, &operands, at)
    }

    /// In this mode, with the elements that are there.
    #[track_caller]
    pub(super) fn scattered_by(
        &self,
        dim: isize,
        index: &TensorFuture,
        source: &TensorFuture,
        mode: ScatterMode,
    ) -> TensorFuture {
        if mode == ScatterMode::Sum {
            return self.scatter_add(dim, index, source);
        }
        let name = if mode == ScatterMode::Assign { "scatter" } else { "scatter_reduce" };
        let op = Scatter { dim, mode, name: build::named(name) };
        self.scattered(name, [index, source], Arc::new(op), dim)
    }

    /// Selects whole slices along `dim` by a vector of indices. A 0-d value or index counts as a
    /// vector of one element.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let x = device.arange(0, 6, 1).reshape([3, 2]);
    /// let rows = x.index_select(0, device.from_vec(vec![2i64, 0], [2]));
    /// assert_eq!(rows.to_vec::<i64>().await?, [4, 5, 0, 1]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn index_select(&self, dim: isize, index: impl AsRef<TensorFuture>) -> TensorFuture {
        self.slices(dim, index.as_ref(), false)
    }

    /// [`index_select`](Self::index_select), where negative indices may count `from_end`.
    #[track_caller]
    pub(crate) fn slices(&self, dim: isize, index: &TensorFuture, from_end: bool) -> TensorFuture {
        let at: At = Location::caller();
        let _within = build::within("index_select", at);
        if build::is_row_of_one(self, dim) {
            if index.rank() > 1 || index.numel() != 1 {
                let text = format!("indices of shape {} for one number", index.shape());
                return build::refused("index_select", self, Refusal::shape(text), at);
            }
            return self.reshape(1).slices(0, index, from_end).squeeze(0);
        }
        let one = (index.rank() == 0).then(|| index.reshape(1));
        let op = IndexSelect { dim, name: build::named("index_select"), from_end };
        custom(Arc::new(op), &[self, one.as_ref().unwrap_or(index)], at)
    }

    /// Indexes by tensors: `x.index(&[Some(&i), None, Some(&j)])` is PyTorch's `x[i, :, j]`. The
    /// index tensors are broadcast against each other; the broadcast dimensions replace the indexed
    /// ones, or come first if the indexed dimensions are not adjacent. Indices are integers;
    /// negative ones count from the end. For a bool mask see [`index_mask`](Self::index_mask).
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
        // A single index is not a list: it removes its dimension before the other indices are
        // applied.
        if let Some(d) =
            indices.iter().position(|i| i.is_some_and(|i| i.rank() == 0 && i.dtype().is_int()))
        {
            let one = indices[d].map(|i| i.reshape(1));
            let mut alone = vec![None; d];
            alone.push(one.as_ref());
            let rest = [&indices[..d], &indices[d + 1..]].concat();
            return self.index(&alone).squeeze(d as isize).index(&rest);
        }
        match self.named_places(indices) {
            Err(refusal) => refuse(refusal),
            Ok(None) => self.clone(),
            Ok(Some(Named { order, merged, lead, flat, out })) => self
                .permute(&order[..])
                .reshape(&merged[..])
                .slices(lead as isize, &flat, true)
                .reshape(&out[..]),
        }
    }

    /// Where tensors of indices point; `None` if there are none.
    #[track_caller]
    pub(super) fn named_places(
        &self,
        indices: &[Option<&TensorFuture>],
    ) -> Result<Option<Named>, Refusal> {
        if indices.len() > self.rank() {
            return Err(Refusal::index(format!(
                "{} for shape {}",
                number_of(indices.len(), "index", "indices"),
                self.shape()
            )));
        }
        let named: Vec<(usize, &TensorFuture)> =
            indices.iter().enumerate().filter_map(|(d, i)| i.map(|i| (d, i))).collect();
        if let Some((_, wrong)) = named.iter().find(|(_, i)| !i.dtype().is_int()) {
            return Err(Refusal::dtype(format!("indices are integers, not {}", wrong.dtype())));
        }
        let mut shape = Shape::default();
        for (_, i) in &named {
            match shape.broadcast(i.shape()) {
                Some(both) => shape = both,
                None => {
                    return Err(Refusal::shape(format!(
                        "cannot broadcast {shape} with {}",
                        i.shape()
                    )));
                }
            }
        }
        // Negative indices count from the end; one out of range becomes a position that fails.
        let placed = |d: usize, i: &TensorFuture| {
            let (i, n) = (i.to_dtype(DType::I64), self.dims()[d] as i64);
            i.lt(0).where_cond(&i + n, &i)
        };
        let (first, rest) = match &named[..] {
            [] => return Ok(None),
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
                let Some((sum, fits)) = sum else { return Ok(None) };
                let many: i64 =
                    named.iter().map(|&(d, _)| self.dims()[d] as i64).fold(1, i64::saturating_mul);
                (named[0].0, fits.where_cond(sum, many))
            }
        };
        let dims: Vec<usize> = named.iter().map(|(d, _)| *d).collect();
        let neighbours = dims.windows(2).all(|w| w[0] + 1 == w[1]);
        let lead = if neighbours { first } else { 0 };
        let others: Vec<usize> = (0..self.rank()).filter(|d| !dims.contains(d)).collect();
        // Merges the indexed dimensions into one, in place.
        let order: Vec<usize> =
            others[..lead].iter().chain(&dims).chain(&others[lead..]).copied().collect();
        let sizes = |of: &[usize]| -> Vec<usize> { of.iter().map(|&d| self.dims()[d]).collect() };
        let many = Shape::from(sizes(&dims)).numel();
        let merged = [&sizes(&others[..lead])[..], &[many], &sizes(&others[lead..])].concat();
        let flat = rest.expand(shape.dims()).reshape(-1);
        let out = [&sizes(&others[..lead])[..], shape.dims(), &sizes(&others[lead..])].concat();
        Ok(Some(Named { order, merged, lead, flat, out }))
    }

    /// Indexes one dimension.
    #[track_caller]
    pub(crate) fn index_dim(&self, dim: usize, index: Index) -> TensorFuture {
        let mut all = vec![Index::ALL; dim];
        all.push(index);
        self.i(all)
    }

    /// The elements at these positions in row-major order; the result has the shape of `index`.
    /// Negative indices count from the end.
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
        self.reshape(-1).slices(0, &index.reshape(-1), true).reshape(index.dims())
    }

    /// Looks up rows of this table `[n, width]` by indices of any shape.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let device = futensor::Device::cpu();
    /// let table = device.arange(0, 6, 1).reshape([3, 2]);
    /// let words = device.from_vec(vec![2i64, 0, 2], [1, 3]);
    /// assert_eq!(table.embedding(&words).dims(), [1, 3, 2]);
    /// assert_eq!(table.embedding(&words).to_vec::<i64>().await?, [4, 5, 0, 1, 4, 5]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        let op = Embedding { name: build::named("embedding") };
        custom(Arc::new(op), &[self, index.as_ref()], Location::caller())
    }

    /// For each class number, a vector of `classes` elements: 1 at the class, 0 elsewhere; int64.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// let classes = futensor::Device::cpu().from_vec(vec![2i64, 0], [2]);
    /// assert_eq!(classes.one_hot(3).to_vec::<i64>().await?, [0, 0, 1, 1, 0, 0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn one_hot(&self, classes: usize) -> TensorFuture {
        custom(Arc::new(OneHot { classes }), &[self], Location::caller())
    }
}
