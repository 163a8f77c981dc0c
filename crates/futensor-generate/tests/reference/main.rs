//! The crate beside what others wrote: models beside `transformers`, tokens beside `tiktoken`,
//! conversations beside Jinja's own engine (`make.py` made the values), and the choice of tokens
//! beside a plain loop in float64. Each option has a test in which its effect is read.

mod families;
mod files;
mod kinds;
mod models;
mod sampling;
mod streams;
mod tokens;
mod vocabularies;

use futensor_generate::{Engine, Request, Token};
use futures::StreamExt;
use serde_json::Value;

/// What `make.py` wrote.
fn cases() -> Value {
    serde_json::from_str(include_str!("cases.json")).unwrap()
}

/// The whole answer.
fn answer(engine: &Engine, request: Request) -> Vec<Token> {
    let tokens = engine.generate(request).unwrap();
    futensor::block_on(tokens.map(|token| token.unwrap()).collect())
}
