//! What a text has to be like: a regular expression or a JSON schema. At each place the grammar says
//! which tokens may follow, and the device chooses among those.

use crate::engine::lock;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use llguidance::{Matcher, ParserFactory};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

/// What the text of an answer has to be like.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// A regular expression that matches the whole text.
    Regex(String),
    /// A JSON schema that the text, as JSON, is valid against. Properties come in the schema's order,
    /// which `serde_json` keeps in every program that has this package: `llguidance` turns its feature
    /// `preserve_order` on.
    JsonSchema(serde_json::Value),
}

/// Grammars over the tokens of a model.
pub(crate) struct Grammars(ParserFactory);

impl Grammars {
    /// Of a tokenizer, for a model that tells so many tokens apart.
    pub fn new(tokenizer: &Tokenizer, vocabulary: usize) -> Result<Grammars> {
        let end = *tokenizer.ends().first().ok_or_else(|| Error::model("no token ends a text"))?;
        let word = |token: u32| match tokenizer.is_mark(token) {
            // Never a part of a text.
            true => [&[TokTrie::SPECIAL_TOKEN_MARKER], tokenizer.name(token).unwrap_or_default().as_bytes()]
                .concat(),
            false => tokenizer.bytes(token).to_vec(),
        };
        let words: Vec<Vec<u8>> = (0..vocabulary as u32).map(word).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocabulary as u32, end), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| Error::model(e.to_string()))?;
        factory.quiet();
        Ok(Grammars(factory))
    }

    /// What guides one answer.
    pub fn guide(&self, constraint: &Constraint) -> Result<Guide> {
        let grammar = match constraint {
            Constraint::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Constraint::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema.clone()),
        };
        let matcher = Matcher::new(self.0.create_parser(grammar));
        match matcher.get_error() {
            Some(error) => Err(Error::request(format!("the constraint: {error}"))),
            None => Ok(Guide(matcher)),
        }
    }
}

/// How far one answer has come in its grammar.
pub(crate) struct Guide(Matcher);

impl Guide {
    /// Which tokens may come next: a bit each, the lowest of the first word first.
    pub fn mask(&mut self) -> Result<Vec<u32>> {
        let mask = self.0.compute_mask_or_eos().map_err(|e| Error::request(format!("the constraint: {e}")))?;
        Ok(mask.as_slice().to_vec())
    }

    /// The token that was chosen. True where nothing can follow.
    pub fn accept(&mut self, token: u32) -> Result<bool> {
        self.0.consume_token(token).map_err(|e| Error::request(format!("the constraint: {e}")))?;
        Ok(self.0.is_stopped())
    }
}

/// A guide and what it allows next, which a helper finds out. A clone is another handle on it.
#[derive(Clone)]
pub(crate) struct Guided(Arc<(Mutex<Guide>, Mutex<Option<Result<Vec<u32>>>>)>);

impl Guided {
    pub fn new(guide: Guide) -> Guided {
        Guided(Arc::new((Mutex::new(guide), Mutex::default())))
    }

    /// What is allowed next is not known from now on: whoever has this is to [find](Self::find) it.
    pub fn ask(&self) -> Guided {
        *lock(&self.0.1) = None;
        self.clone()
    }

    /// Sees what is allowed next. That may take long, and its panic is an error.
    pub fn find(&self) {
        let found = catch_unwind(AssertUnwindSafe(|| lock(&self.0.0).mask()));
        *lock(&self.0.1) = Some(found.unwrap_or_else(|_| Err(Error::request("the constraint: a panic"))));
    }

    /// True where what is allowed next is not known yet.
    pub fn waits(&self) -> bool {
        lock(&self.0.1).is_none()
    }

    /// What is allowed next.
    pub fn mask(&self) -> Result<Vec<u32>> {
        lock(&self.0.1).clone().unwrap_or_else(|| lock(&self.0.0).mask())
    }

    /// As the guide's.
    pub fn accept(&self, token: u32) -> Result<bool> {
        lock(&self.0.0).accept(token)
    }

    /// As long as this is there, nobody finds anything.
    #[cfg(test)]
    pub fn hold(&self) -> std::sync::MutexGuard<'_, impl Sized> {
        lock(&self.0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokenizer::testing::vocabulary;
    use serde_json::json;

    /// What comes of always taking the allowed token that this prefers.
    fn follow(constraint: Constraint, prefer: impl Fn(&[u32]) -> u32) -> String {
        let tokenizer = vocabulary().tokenizer().unwrap();
        let grammars = Grammars::new(&tokenizer, tokenizer.len()).unwrap();
        let mut guide = grammars.guide(&constraint).unwrap();
        let mut text = Vec::new();
        for _ in 0..200 {
            let mask = guide.mask().unwrap();
            let allowed: Vec<u32> =
                (0..tokenizer.len() as u32).filter(|&t| mask[t as usize / 32] >> (t % 32) & 1 == 1).collect();
            let token = prefer(&allowed);
            assert!(allowed.contains(&token), "some token is allowed");
            if tokenizer.ends().contains(&token) {
                break;
            }
            text.push(token);
            if guide.accept(token).unwrap() {
                break;
            }
        }
        tokenizer.decode(&text)
    }

    #[test]
    fn a_text_that_follows_a_grammar_is_of_it() {
        let last = |allowed: &[u32]| *allowed.last().unwrap();
        let first = |allowed: &[u32]| allowed[0];
        assert_eq!(follow(Constraint::Regex("(hello|bye) world[!?]".into()), last), "hello world?");
        assert_eq!(follow(Constraint::Regex("(hello|bye) world[!?]".into()), first), "bye world!");
        let schema = json!({ "type": "object", "properties": { "a": { "enum": [1, 2] } },
            "required": ["a"], "additionalProperties": false });
        let text = follow(Constraint::JsonSchema(schema), last);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(value["a"] == 1 || value["a"] == 2, "{text}");
        // In the schema's order, not the alphabet's.
        let schema = json!({ "type": "object", "properties": { "b": { "enum": [1] }, "a": { "enum": [1] } },
            "required": ["a", "b"], "additionalProperties": false });
        let text = follow(Constraint::JsonSchema(schema), last);
        assert!(text.find("\"b\"").unwrap() < text.find("\"a\"").unwrap(), "{text}");
    }

    #[test]
    fn what_is_no_grammar_is_the_requests_error() {
        let tokenizer = vocabulary().tokenizer().unwrap();
        let grammars = Grammars::new(&tokenizer, tokenizer.len()).unwrap();
        for wrong in [Constraint::Regex("(".into()), Constraint::JsonSchema(json!({ "type": "no such" }))] {
            assert!(grammars.guide(&wrong).err().unwrap().is_request());
        }
    }
}
