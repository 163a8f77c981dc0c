//! A request, and the tokens that come back.

use crate::constraint::Constraint;
use crate::sampling::Sampling;
use std::time::Duration;

/// A text to go on with, and how.
///
/// ```
/// use futensor_generate::{Request, Sampling};
/// let request = Request::new(vec![1, 2, 3]).tokens_max(20).stop(["\n"]);
/// assert_eq!(request.prompt.len(), 3);
/// ```
#[derive(Clone, Debug)]
pub struct Request {
    /// The tokens of the text so far.
    pub prompt: Vec<u32>,
    /// New tokens at most. `None`: as many as there is room for.
    pub tokens_max: Option<usize>,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// Texts that end the answer, and are not part of it.
    pub stop: Vec<String>,
    /// Log-probabilities of each token, and of so many alternatives (20 at most).
    pub logprobs: Option<usize>,
    /// What the answer has to be like.
    pub constraint: Option<Constraint>,
    /// How long it may take in all.
    pub deadline: Option<Duration>,
    /// Goes on behind a token that ends a text.
    pub ignore_end: bool,
}

impl Request {
    /// Goes on with these tokens, greedily.
    pub fn new(prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            tokens_max: None,
            sampling: Sampling::default(),
            stop: Vec::new(),
            logprobs: None,
            constraint: None,
            deadline: None,
            ignore_end: false,
        }
    }

    /// New tokens at most.
    pub fn tokens_max(mut self, tokens: usize) -> Request {
        self.tokens_max = Some(tokens);
        self
    }

    /// How each token is chosen.
    pub fn sampling(mut self, sampling: Sampling) -> Request {
        self.sampling = sampling;
        self
    }

    /// Texts that end the answer, and are not part of it.
    pub fn stop<S: Into<String>>(mut self, stop: impl IntoIterator<Item = S>) -> Request {
        self.stop = stop.into_iter().map(Into::into).collect();
        self
    }

    /// Log-probabilities of each token, and of so many alternatives (20 at most).
    pub fn logprobs(mut self, alternatives: usize) -> Request {
        self.logprobs = Some(alternatives);
        self
    }

    /// What the answer has to be like.
    pub fn constraint(mut self, constraint: Constraint) -> Request {
        self.constraint = Some(constraint);
        self
    }

    /// How long it may take in all.
    pub fn deadline(mut self, deadline: Duration) -> Request {
        self.deadline = Some(deadline);
        self
    }
}

/// The next token of an answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its number.
    pub id: u32,
    /// The text that can be shown since it is there: it may be nothing, or that of several tokens.
    pub text: String,
    /// Where log-probabilities were asked for.
    pub logprobs: Option<Logprobs>,
    /// Set in the last one: why nothing follows.
    pub end: Option<End>,
}

/// How probable a token was, before temperature and penalties.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// Of the token itself.
    pub chosen: f32,
    /// The likeliest tokens, the likeliest first.
    pub alternatives: Vec<(u32, f32)>,
}

/// Why an answer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended it, or a stop word, or its constraint allows nothing more.
    Stop,
    /// It has as many tokens as it may have.
    Length,
}
