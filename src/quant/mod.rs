//! Quantised weights: 4, 6 or 8 bits a weight, or halves, multiplied as they lie.
//!
//! A [`Quantized`] is a matrix `[outputs, inputs]` in one of the block formats of ggml, as GGUF
//! files have them; [`gguf`](crate::gguf) loads them. A product quantises its activations to 8 bits
//! a block of 32, and adds integer products: the weights are never unpacked in memory. Weights of
//! halves ([`Format::F16`], [`Format::BF16`]) are widened in registers beside activations of
//! float32, whose products are added in float32. A [`Weight`] is either that or a dense tensor.
//!
//! A row of a product has the same bits whatever stands beside it, on any number of threads and
//! with any instruction set.
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
