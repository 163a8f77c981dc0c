//! `Quantized`: a packed weight.

use super::Format;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, bytes_of};
use crate::format::{Packing, ROWS};
use crate::memory::Pages;
use crate::ops::products::quantized::{
    Dequantize, GroupedLinear, Quantize, QuantizedEmbedding, QuantizedLinear,
};
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A matrix of quantised or half weights on a device: `[outputs, inputs]`, as in a layer or a
/// table.
///
/// It is packed for the kernels once, when it is created: groups of sixteen rows side by side, in
/// [`bytes`](Self::bytes) of the device's memory, without another copy. Clones share the memory.
#[derive(Clone)]
pub struct Quantized {
    packed: TensorFuture,
    packing: Packing,
}

impl fmt::Debug for Quantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Packing { format, rows, columns } = self.packing;
        write!(f, "Quantized([{rows}, {columns}], {format})")
    }
}

fn refused(op: &str, text: String, at: At) -> Error {
    Error::new(ErrorKind::Argument, op, text, at)
}

impl Quantized {
    /// Quantises a float32 matrix, to the same bytes as gguf-py; for a format of plain elements the
    /// matrix may also have their type. Nothing waits.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, quant::{Format, Quantized}};
    /// let x = Device::cpu().arange(0, 32, 1).to_dtype(futensor::DType::F32).reshape([1, 32]);
    /// let weight = Quantized::from_tensor(&x, Format::Q4_1)?;
    /// assert_eq!(weight.dims(), [1, 32]);
    /// assert!((weight.dequantize() - &x).abs().max_all().item::<f32>().await? < 1.1);
    /// let wrong = Quantized::from_tensor(&x, Format::Q6_K).unwrap_err();
    /// assert!(wrong.message().contains("not blocks of 256"));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If the value is not such a matrix, if its rows are not a whole number of blocks, or for
    /// formats to which gguf-py does not quantise (those named K).
    #[track_caller]
    pub fn from_tensor(x: &TensorFuture, format: Format) -> Result<Quantized> {
        let at = Location::caller();
        let (own, given) = (format.dtype().unwrap_or(DType::F32), x.dtype());
        let (true, &[rows, columns]) = (given == own || given == DType::F32, x.dims()) else {
            let text = format!("{} of {given}: not a matrix of float32 for {format}", x.shape());
            return Err(refused("quantize", text, at));
        };
        let packing =
            Packing::new(format, rows, columns).map_err(|text| refused("quantize", text, at))?;
        if !format.can_quantize() {
            return Err(refused("quantize", format!("{format} is read, not made"), at));
        }
        let packed = build::custom(Arc::new(Quantize(packing)), &[&x.to_dtype(own)], at);
        Ok(Quantized { packed, packing })
    }

    /// A matrix from the blocks of a GGUF file, row by row. The caller's thread packs them.
    ///
    /// # Errors
    /// If rows are not a whole number of blocks, if the number of bytes differs from that of the
    /// blocks, or if there is no memory.
    #[track_caller]
    pub fn from_blocks(
        device: &Device,
        blocks: &[u8],
        format: Format,
        dims: [usize; 2],
    ) -> Result<Quantized> {
        let at = Location::caller();
        let refuse = |text| refused("from_blocks", text, at);
        let packing = Packing::new(format, dims[0], dims[1]).map_err(refuse)?;
        if blocks.len() != packing.file_bytes() {
            let text = format!(
                "{} for {dims:?} in {format}, which has {}",
                bytes_of(blocks.len()),
                packing.file_bytes()
            );
            return Err(refuse(text));
        }
        let Some(mut panels) = Pages::with_room(packing.bytes()) else {
            let text = format!("out of memory: {}", bytes_of(packing.bytes()));
            return Err(Error::new(ErrorKind::OutOfMemory, "from_blocks", text, at));
        };
        packing.pack_all(blocks, panels.more(packing.bytes()));
        Ok(Quantized::of(device, panels, packing, at))
    }

    /// A matrix that is already packed.
    pub(crate) fn of(device: &Device, panels: Pages, packing: Packing, at: At) -> Quantized {
        let bytes = panels.as_ref().len();
        Quantized { packed: device.handed("from_blocks", panels, [bytes].into(), at), packing }
    }

    /// Joins the rows of several weights, in this order, for example to multiply with all of them
    /// at once. A copy; nothing waits.
    ///
    /// ```
    /// use futensor::{Device, quant::{Format, Quantized}};
    /// let x = Device::cpu().ones([16, 32]);
    /// let weight = Quantized::from_tensor(&x, Format::Q8_0)?;
    /// assert_eq!(Quantized::join(&[&weight, &weight])?.dims(), [32, 32]);
    /// # Ok::<(), futensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there are no weights, if formats or inputs differ, or if the rows of any weight but the
    /// last are not a multiple of sixteen, since rows are packed in groups of sixteen.
    #[track_caller]
    pub fn join(weights: &[&Quantized]) -> Result<Quantized> {
        let refuse = |text: &str| refused("join", text.into(), Location::caller());
        let (Some(first), Some((_, before))) = (weights.first(), weights.split_last()) else {
            return Err(refuse("no weights"));
        };
        let Packing { format, columns, .. } = first.packing;
        if weights.iter().any(|w| (w.packing.format, w.packing.columns) != (format, columns)) {
            return Err(refuse("formats or inputs differ"));
        }
        if before.iter().any(|w| !w.packing.rows.is_multiple_of(ROWS)) {
            return Err(refuse("the number of rows is not a multiple of sixteen"));
        }
        // A weight without columns may have any number of rows.
        let rows = weights.iter().fold(0usize, |rows, w| rows.saturating_add(w.packing.rows));
        let packing = Packing::new(format, rows, columns).map_err(|text| refuse(&text))?;
        let all: Vec<&TensorFuture> = weights.iter().map(|w| &w.packed).collect();
        Ok(Quantized { packed: crate::cat(&all, 0), packing })
    }

    /// `x w^T`: float32 `x` `[.., inputs]` gives float32 `[.., outputs]`. Nothing waits.
    ///
    /// Gradients flow to `x` as with a dense weight; the weight itself has no gradient.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, quant::{Format, Quantized}};
    /// let device = Device::cpu();
    /// let weight = Quantized::from_tensor(&device.ones([5, 32]), Format::Q4_1)?;
    /// let y = weight.linear(device.full([1, 1, 32], 0.5));
    /// assert_eq!((y.dims(), y.to_vec::<f32>().await?), (&[1, 1, 5][..], vec![16.0; 5]));
    /// let wrong = weight.linear(device.ones([1, 31])).error().unwrap();
    /// assert_eq!((wrong.op(), wrong.message()),
    ///     ("linear", "[1, 31] by a weight of [5, 32] in Q4_1"));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn linear(&self, x: impl AsRef<TensorFuture>) -> TensorFuture {
        let operands = [x.as_ref(), &self.packed];
        build::custom(Arc::new(QuantizedLinear(self.packing)), &operands, Location::caller())
    }

    /// Multiplies each row by a matrix of its own, as a mixture of experts does. This weight is
    /// `groups` matrices of equal size, one below the other; row `i` of float32 `x` `[rows,
    /// inputs]` meets the one that `which[i]` names, and gives `[rows, outputs of a matrix]`. A
    /// matrix is read once for all of its rows; on a GPU once for up to 64, where there are more
    /// than some rows for each matrix. The bits of a row do not depend on the others.
    /// There is no gradient. Nothing waits.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, cat, quant::{Format, Quantized}};
    /// let device = Device::cpu();
    /// let [ones, twos] = [1.0, 2.0].map(|x| device.full([16, 32], x));
    /// let both = Quantized::from_tensor(&cat(&[&ones, &twos], 0), Format::Q4_1)?;
    /// let which = device.from_vec(vec![1i64, 0, 1], [3]);
    /// let y = both.grouped_linear(device.ones([3, 32]), &which, 2);
    /// assert_eq!((y.dims(), y.i(1).to_vec::<f32>().await?), (&[3, 16][..], vec![32.0; 16]));
    /// let wrong = both.grouped_linear(device.ones([1, 32]), device.from_vec(vec![2i64], [1]), 2);
    /// assert!(wrong.await.unwrap_err().is_index());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The value fails if shapes or types do not fit each other, if the rows of a matrix are not a
    /// multiple of sixteen, or if there is no matrix that `which` names.
    #[track_caller]
    pub fn grouped_linear(
        &self,
        x: impl AsRef<TensorFuture>,
        which: impl AsRef<TensorFuture>,
        groups: usize,
    ) -> TensorFuture {
        let op = GroupedLinear { packing: self.packing, groups };
        build::custom(Arc::new(op), &[x.as_ref(), &self.packed, which.as_ref()], Location::caller())
    }

    /// Looks up rows of this table, in float32, by indices of any shape. Nothing waits.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, quant::{Format, Quantized}};
    /// let device = Device::cpu();
    /// let table = device.arange(0, 3, 1).to_dtype(futensor::DType::F32).reshape([3, 1])
    ///     .expand([3, 32]);
    /// let table = Quantized::from_tensor(&table, Format::Q4_1)?;
    /// let words = table.embedding(device.from_vec(vec![2i64, 0], [2]));
    /// assert_eq!(words.sum([-1]).to_vec::<f32>().await?, [64.0, 0.0]);
    /// assert!(table.embedding(device.from_vec(vec![3i64], [1])).await.unwrap_err().is_index());
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: impl AsRef<TensorFuture>) -> TensorFuture {
        let operands = [&self.packed, index.as_ref()];
        build::custom(Arc::new(QuantizedEmbedding(self.packing)), &operands, Location::caller())
    }

    /// All weights in float32, bitwise as gguf-py computes them. Nothing waits.
    #[track_caller]
    pub fn dequantize(&self) -> TensorFuture {
        build::custom(Arc::new(Dequantize(self.packing)), &[&self.packed], Location::caller())
    }

    /// Outputs and inputs.
    pub fn dims(&self) -> [usize; 2] {
        [self.packing.rows, self.packing.columns]
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.packing.format
    }

    /// The bytes that it takes in the device's memory: those of its blocks, with rows padded to a
    /// multiple of sixteen.
    pub fn bytes(&self) -> usize {
        self.packing.bytes()
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.packed.device()
    }

    /// A copy on another device; a weight that is already there is returned as it is. Nothing
    /// waits.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Quantized {
        Quantized { packed: self.packed.to_device(device), packing: self.packing }
    }

    /// The packed bytes, in the layout of this version, to await or to check for an error.
    pub fn packed(&self) -> &TensorFuture {
        &self.packed
    }

    #[cfg(feature = "gguf")]
    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }
}
