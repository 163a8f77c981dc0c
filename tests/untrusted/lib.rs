//! A function for each kind of input from outside: files, templates, schemas, requests, peers. It
//! hands the bytes to the library, which answers with a value or an error. It panics where the
//! library breaks a promise.
//!
//! `main.rs` calls these functions with valid inputs that a seed changes, and `fuzz/` calls them
//! from libFuzzer.

pub mod changes;
mod folders;
mod models;
mod requests;
mod values;

/// A kind of input.
pub struct Target {
    pub name: &'static str,
    /// Takes an input, and returns whether it was valid.
    ///
    /// # Panics
    /// The library has broken a promise.
    pub run: fn(&[u8]) -> bool,
    /// Inputs that are valid, or nearly so.
    pub corpus: fn() -> Vec<Vec<u8>>,
    /// Words of such inputs.
    pub words: &'static [&'static str],
    /// The number of inputs in a test of about a second.
    pub inputs: usize,
    /// The most bytes of memory for any input, and for each byte of it in addition.
    pub memory: (usize, usize),
}

/// All kinds.
pub const TARGETS: &[Target] = &[
    values::GGUF,
    values::SAFETENSORS,
    values::NPY,
    values::NPZ,
    values::PTH,
    folders::FOLDER,
    models::MODEL,
    models::VOCABULARY,
    models::TOKENIZER,
    models::TEMPLATE,
    requests::CONSTRAINT,
    requests::BODY,
    #[cfg(unix)]
    RANKS,
];

/// Hands an input to the target of this name.
///
/// # Panics
/// The library has broken a promise, or no target has this name.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    (target.run)(bytes);
}

/// Calls from strangers, answers to calls, and messages of peers.
#[cfg(unix)]
const RANKS: Target = Target {
    name: "ranks",
    run: futensor::untrusted::hear,
    corpus: futensor::untrusted::examples,
    words: &["futensor-ranks-\n"],
    inputs: 4000,
    memory: (1 << 20, 256),
};
