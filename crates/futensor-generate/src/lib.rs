//! Language models on `futensor`: tokens as streams, many requests in one batch.
//!
//! ```no_run
//! # futensor::block_on(async {
//! use futensor::Device;
//! use futensor_generate::{Engine, Llama, Options, Request};
//! use futures::StreamExt;
//! let model = Llama::from_folder(&Device::try_gpu(0), "SmolLM2-135M-Instruct").await?;
//! let engine = Engine::start(model, Options::default())?;
//! let prompt = engine.model().tokenizer().encode("Once upon a time", true)?;
//! let mut tokens = engine.generate(Request::new(prompt).tokens_max(50))?;
//! while let Some(token) = tokens.next().await {
//!     print!("{}", token?.text);
//! }
//! # Ok::<(), futensor_generate::Error>(()) }).unwrap();
//! ```
//!
//! # Finding your way
//!
//! - [`Llama`]: a model from a file. [`Tokenizer`], [`Template`]: what comes with it.
//! - [`Engine`]: the model at work. [`generate`](Engine::generate) takes a [`Request`] and gives
//!   [`Tokens`], a `Stream`; dropping it ends the request.
//! - [`Sampling`], [`Constraint`]: how tokens are chosen, and what the answer has to be like.
//!
//! # What it promises
//!
//! - **The same tokens, whoever else is there**: bit for bit alone and among any neighbours,
//!   whether a prompt was computed at once, in pieces, or shared. (A GPU keeps this for all types
//!   of weights but float32, which cuBLAS multiplies.)
//! - **Nobody's request hurts another.** A reader that is slow stops its own request, and gives
//!   its slot and pages back after a while; one that goes away frees them when the step under way
//!   is through. A request has the pages that it uses. Where there are none left the last to come
//!   waits again, and goes on with the tokens that it would have had.
//! - **Every stream ends**, with its last token or with an error.
//! - **What comes from outside is bounded**, in size, depth and work, and does not run on the
//!   caller's thread: constraints are compiled, templates run and files read by helper threads, and
//!   [`encode_later`](Tokenizer::encode_later) finds a long text's tokens there.
//!
//! # How it is built
//!
//! From below, each knowing those before it: `helpers`, the threads for what may take long;
//! `tokenizer`, `template`, `constraint` and `sampling`; `pages` and `batch_planner`, which are
//! bookkeeping alone; `model`, which turns steps into calls of one region; `engine`, the thread
//! that drives them.

mod batch_planner;
mod constraint;
mod engine;
mod error;
mod helpers;
mod lock;
mod model;
mod options;
mod pages;
mod request;
mod sampling;
mod template;
mod tokenizer;

pub use constraint::{Constraint, Tagged};
pub use engine::{Engine, Stats, Tokens};
pub use error::{Error, Result};
pub use futensor_models::{Folder, Progress};
pub use helpers::Work;
pub use model::{Activation, Config, Experts, HeadNorms, Llama, Rope, Scaling, Variant};
pub use options::Options;
pub use request::{End, Logprobs, Request, Token};
pub use sampling::Sampling;
pub use template::Template;
pub use tokenizer::{Tokenizer, Vocabulary};
