//! Quantised weights: 4 to 8 bits per weight, or plain elements, multiplied without unpacking.
//!
//! A [`Quantized`] is a matrix `[outputs, inputs]` in one of ggml's block formats, as in GGUF
//! files; [`gguf`](crate::gguf) loads them. A product quantises its activations to 8 bits in blocks
//! of 32, and adds integer products: the weights are never unpacked in memory. Half weights
//! ([`Format::F16`], [`Format::BF16`]) are widened in registers, and multiplied with float32
//! activations in float32. (On a GPU, tensor cores multiply them with 16 or 22 bits of the
//! activations: `cuda::HalfProducts`.) Float32 weights ([`Format::F32`]) are for
//! [`Quantized::grouped_linear`]; elsewhere a dense tensor is faster. A [`Weight`] is either a
//! `Quantized` or a dense tensor.
//!
//! The bits of a row of a product do not depend on the other rows, the number of threads, or the
//! instruction set.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, quant::{Format, Quantized}};
//! let device = Device::cpu();
//! let weight = device.randn([16, 64]);
//! let small = Quantized::from_tensor(&weight, Format::Q8_0)?;
//! assert_eq!(small.bytes(), 16 * 64 / 32 * 34);
//!
//! let x = device.randn([3, 64]);
//! let (near, exact) = (small.linear(&x), x.linear(&weight, None));
//! assert!((near - exact).abs().max_all().item::<f32>().await? < 0.5);
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```

mod quantized;
mod weight;

pub use crate::format::Format;
pub use quantized::Quantized;
pub use weight::Weight;
