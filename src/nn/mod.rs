//! Layers: modules with PyTorch's parameter names and default initialisation.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, nn, nn::Module, optim, optim::Optimizer};
//! let device = Device::cpu();
//! let net = nn::Sequential::new()
//!     .then(nn::Linear::new(2, 8, &device))
//!     .then(nn::Tanh)
//!     .then(nn::Linear::new(8, 1, &device));
//! assert_eq!(net[0].parameters()[0].value().dims(), [8, 2]);
//! let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
//! assert_eq!(names, ["0.weight", "0.bias", "2.weight", "2.bias"]);
//!
//! let (x, y) = (device.ones([4, 2]), device.full([4, 1], 0.5));
//! let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
//! for _ in 0..200 {
//!     device.ready().await;                       // the loop's only barrier: room in the queue
//!     sgd.minimize(&net.forward(&x).mse_loss(&y, ())).detach();
//! }
//! assert!(net.forward(&x).mse_loss(&y, ()).item::<f32>().await? < 1e-4);
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```
//!
//! `forward` is synchronous and returns a future like every op: nothing here waits. A module holds
//! [`Parameter`]s, cells with an immutable value that an optimizer replaces.

mod activation;
mod attention;
mod conv;
mod dropout;
mod embedding;
mod groups;
pub mod init;
mod linear;
mod module;
mod norm;
#[cfg(all(feature = "ranks", unix))]
mod parallel;
mod parameter;
mod pool;
mod recurrent;
mod sequential;
mod summary;
mod transformer;

pub use activation::{
    Flatten, Func, Gelu, Glu, Hardswish, LeakyRelu, LogSoftmax, Mish, Prelu, Relu, Selu, Sigmoid,
    Silu, Softmax, Softplus, Tanh, from_fn,
};
pub use attention::MultiheadAttention;
pub use conv::{Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use groups::{GroupNorm, InstanceNorm};
pub use linear::{LazyLinear, Linear};
pub use module::{Mode, Module, Part};
pub use norm::{BatchNorm, LayerNorm, RmsNorm};
#[cfg(all(feature = "ranks", unix))]
pub use parallel::{ColumnLinear, RowLinear};
pub(crate) use parameter::substituted;
pub use parameter::{Parameter, values};
pub use pool::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool1d, AdaptiveMaxPool2d,
    AdaptiveMaxPool3d, AvgPool1d, AvgPool2d, AvgPool3d, MaxPool1d, MaxPool2d, MaxPool3d,
    PixelShuffle, PixelUnshuffle, Upsample,
};
pub use recurrent::{Gru, Lstm, RecurrentOptions, Rnn};
pub use sequential::Sequential;
pub use summary::Summary;
pub use transformer::TransformerEncoderLayer;
