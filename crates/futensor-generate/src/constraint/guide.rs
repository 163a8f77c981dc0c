//! The position of one answer in its grammar, and the tokens that may follow.

use super::Grammar;
use super::numbers::Numbers;
use crate::error::{Error, Result};
use crate::lock::lock;
use llguidance::Matcher;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// How far one answer has come in its grammar.
pub struct Guide {
    matcher: Matcher,
    /// Of a text that is JSON.
    numbers: Option<Numbers>,
}

impl Guide {
    pub fn new(matcher: Matcher, numbers: Option<Numbers>) -> Guide {
        Guide { matcher, numbers }
    }

    /// Which tokens may come next: a bit each, the lowest of the first word first.
    pub fn mask(&mut self) -> Result<Vec<u32>> {
        let mask = self
            .matcher
            .compute_mask_or_eos()
            .map_err(|e| Error::request(format!("the constraint: {e}")))?;
        let mask = mask.as_slice();
        Ok(self.numbers.as_ref().and_then(|n| n.end(mask)).unwrap_or_else(|| mask.to_vec()))
    }

    /// The token that was chosen. True where nothing can follow.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        let wrong = |e| Error::request(format!("the constraint: {e}"));
        self.matcher.consume_token(token).map_err(wrong)?;
        self.numbers.iter_mut().for_each(|n| n.accept(token));
        Ok(self.matcher.is_stopped())
    }

    pub fn deep_clone(&self) -> Guide {
        Guide { matcher: self.matcher.deep_clone(), numbers: self.numbers.clone() }
    }
}

struct Answer {
    grammar: Arc<Grammar>,
    /// `None` before the first token is asked for: those who wait for a slot hold no more than the
    /// grammar that they share.
    guide: Mutex<Option<Guide>>,
    /// What is allowed next, where that is known.
    allowed: Mutex<Option<Result<Vec<u32>>>>,
}

/// One answer's guide and what it allows next, which a helper finds out. A clone is another handle
/// on it.
#[derive(Clone)]
pub struct Guided(Arc<Answer>);

impl Guided {
    pub fn new(grammar: Arc<Grammar>) -> Guided {
        Guided(Arc::new(Answer { grammar, guide: Mutex::default(), allowed: Mutex::default() }))
    }

    /// What is allowed next is not known from now on: whoever has this is to [find](Self::find) it.
    pub fn ask(&self) -> Guided {
        *lock(&self.0.allowed) = None;
        self.clone()
    }

    /// Sees what is allowed next. That may take long, and its panic is an error.
    pub fn find(&self) {
        let found = catch_unwind(AssertUnwindSafe(|| {
            let guide = &mut *lock(&self.0.guide);
            match guide {
                Some(guide) => guide.mask(),
                None => {
                    let (begun, first) = self.0.grammar.begin();
                    *guide = Some(begun);
                    Ok(first)
                }
            }
        }));
        *lock(&self.0.allowed) =
            Some(found.unwrap_or_else(|_| Err(Error::request("the constraint: a panic"))));
    }

    /// True where what is allowed next is not known yet.
    pub fn waits(&self) -> bool {
        lock(&self.0.allowed).is_none()
    }

    /// What is allowed next, as it was found.
    pub fn mask(&self) -> Result<Vec<u32>> {
        lock(&self.0.allowed)
            .clone()
            .unwrap_or_else(|| Err(Error::request("the constraint: nothing is known")))
    }

    /// The token that was chosen. True where nothing can follow.
    pub fn accept(&self, token: u32) -> Result<bool> {
        lock(&self.0.guide).as_mut().map_or(Ok(false), |guide| guide.accept(token))
    }
}
