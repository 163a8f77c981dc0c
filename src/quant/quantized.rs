//! `Quantized`: the bytes of a packed weight, and what they mean.

use super::Format;
use crate::dtype::DType;
use crate::error::{Error, ErrorKind, Result, bytes_of};
use crate::format::{Packing, ROWS};
use crate::ops::products::quantized::{Dequantize, Quantize, QuantizedEmbedding, QuantizedLinear};
use crate::tensor::build::{self, At};
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// A matrix of quantised weights, or of halves, on a device, `[outputs, inputs]` as a layer's or a
/// table's.
///
/// It is packed for the kernels when it is made, once and for all: sixteen rows side by side, in
/// [`bytes`](Self::bytes) of the device's memory and nowhere else. A clone is another handle on it.
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
    /// Quantises a matrix of float32, to the byte as gguf-py does; one of halves may be of its
    /// format's own type. Nothing waits.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, quant::{Format, Quantized}};
    /// let x = Device::cpu().arange(0, 32, 1).to_dtype(futensor::DType::F32).reshape([1, 32]);
    /// let weight = Quantized::from_tensor(&x, Format::Q4_1)?;
    /// assert_eq!(weight.dims(), [1, 32]);
    /// assert!((weight.dequantize() - &x).abs().max_all().item::<f32>().await? < 1.1);
    /// let wrong = Quantized::from_tensor(&x, Format::Q6_K).unwrap_err();
    /// assert!(wrong.message().contains("no blocks of 256"));
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// A value that is no such matrix, rows that are no whole blocks, and the formats to
    /// which gguf-py does not quantise (Q4_K, Q6_K).
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

    /// A matrix from the blocks that a GGUF file has, row by row. They are packed by the caller's
    /// thread.
    ///
    /// # Errors
    /// Rows that are no whole blocks, and bytes that are not as many as the blocks have.
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
        let mut panels = Vec::with_capacity(packing.bytes());
        blocks
            .chunks(packing.panel_bytes().max(1))
            .for_each(|rows| packing.pack(rows, &mut panels));
        Ok(Quantized::of(device, panels, packing, at))
    }

    /// What is packed already.
    pub(crate) fn of(device: &Device, panels: Vec<u8>, packing: Packing, at: At) -> Quantized {
        let bytes = panels.len();
        Quantized { packed: device.handed("from_blocks", panels, [bytes].into(), at), packing }
    }

    /// One weight of all rows of several, in this order: of a product with all of them at once,
    /// say. A copy; nothing waits.
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
    /// None at all; formats or inputs that differ; any but the last with rows that are no multiple
    /// of sixteen, since these lie side by side.
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
            return Err(refuse("rows that are no multiple of sixteen"));
        }
        // Rows without columns may be any number.
        let rows = weights.iter().fold(0usize, |rows, w| rows.saturating_add(w.packing.rows));
        let packing = Packing::new(format, rows, columns).map_err(|text| refuse(&text))?;
        let all: Vec<&TensorFuture> = weights.iter().map(|w| &w.packed).collect();
        Ok(Quantized { packed: crate::cat(&all, 0), packing })
    }

    /// `x w^T`: for each row of `inputs` numbers, `outputs` numbers. `x` is `[.., inputs]` of
    /// float32, and so is the result. Nothing waits.
    ///
    /// Gradients flow to `x`, as if the weight were dense; it has none itself.
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

    /// Rows of this table in float32, for indices of any shape. Nothing waits.
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

    /// All weights in float32, to the bit as gguf-py has them. Nothing waits.
    #[track_caller]
    pub fn dequantize(&self) -> TensorFuture {
        build::custom(Arc::new(Dequantize(self.packing)), &[&self.packed], Location::caller())
    }

    /// Outputs and inputs.
    pub fn dims(&self) -> [usize; 2] {
        [self.packing.rows, self.packing.columns]
    }

    /// How it is quantised.
    pub fn format(&self) -> Format {
        self.packing.format
    }

    /// Bytes of the device's memory that it takes: those of its blocks, with rows filled up to a
    /// multiple of sixteen.
    pub fn bytes(&self) -> usize {
        self.packing.bytes()
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        self.packed.device()
    }

    /// A copy on another device; itself where it is there already. Nothing waits.
    #[track_caller]
    pub fn to_device(&self, device: &Device) -> Quantized {
        Quantized { packed: self.packed.to_device(device), packing: self.packing }
    }

    /// The packed bytes, in the layout of this version: to be awaited, or watched for an error.
    pub fn packed(&self) -> &TensorFuture {
        &self.packed
    }

    #[cfg(feature = "gguf")]
    pub(crate) fn packing(&self) -> Packing {
        self.packing
    }
}
