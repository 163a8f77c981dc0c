//! A request, and the tokens that come back.

use crate::constraint::Constraint;
use crate::error::{Error, Result, number_of};
use crate::sampling::{ALTERNATIVES, Sampling};
use std::sync::Arc;
use std::time::Duration;

/// Stop words of a request at most, and bytes of each: every token is looked at for all of them.
const STOPS_MAX: usize = 64;
const STOP_BYTES_MAX: usize = 256;

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
    pub constraint: Option<Arc<Constraint>>,
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
    pub fn constraint(mut self, constraint: impl Into<Arc<Constraint>>) -> Request {
        self.constraint = Some(constraint.into());
        self
    }

    /// Whether its parts, but for the prompt, are such as any request may have: for whoever has one
    /// from outside, and wants to know before it goes on. It takes as long as they are large.
    ///
    /// ```
    /// use futensor_generate::Request;
    /// let wrong = Request::new(vec![1]).stop(["a".repeat(1_000)]).check();
    /// assert!(wrong.unwrap_err().is_request());
    /// ```
    ///
    /// # Errors
    /// Where one is larger than it may be, or no number that makes sense.
    pub fn check(&self) -> Result<()> {
        self.check_small()?;
        self.constraint.as_ref().map_or(Ok(()), |constraint| constraint.text().map(drop))
    }

    /// The same, but for the constraint.
    pub(crate) fn check_small(&self) -> Result<()> {
        self.sampling.check()?;
        let no = |text: String| Err(Error::request(text));
        if let Some(n) = self.logprobs.filter(|&n| n > ALTERNATIVES) {
            return no(format!(
                "log-probabilities are told of {ALTERNATIVES} tokens at most, not {n}"
            ));
        }
        let (words, bytes) =
            (self.stop.len(), self.stop.iter().map(String::len).max().unwrap_or(0));
        if words > STOPS_MAX || bytes > STOP_BYTES_MAX {
            let most = format!("{STOPS_MAX} of {STOP_BYTES_MAX} bytes at most");
            let words = number_of(words, "stop word", "stop words");
            let bytes = number_of(bytes, "byte", "bytes");
            return no(format!("{words}, the longest of {bytes}, and there may be {most}"));
        }
        Ok(())
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
