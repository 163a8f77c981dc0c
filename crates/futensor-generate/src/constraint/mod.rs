//! Constraints on a text: a regular expression or a JSON schema. At each position the grammar names
//! the tokens that may follow, and the device chooses among those.
//!
//! Constraints come from anybody. They are compiled on helper threads, once for each text
//! (`grammar`); the helpers also find the tokens that an answer may go on with (`guide`).

mod ends;
mod grammar;
mod guide;
mod numbers;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
#[cfg(test)]
pub use grammar::hold_compilers;
pub use grammar::{Grammar, Grammars};
pub use guide::Guided;
use serde_json::{Value, json};

/// What the text of an answer has to be like.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Constraint {
    /// A regular expression that matches the whole text; of 8 KiB at most.
    Regex(String),
    /// A JSON schema that the text, as JSON, is valid against; of 128 KiB and nested 64 deep at
    /// most, with 2,048 properties an object. White space and digits in a row are limited: a model
    /// may write another for ever. Properties come in the schema's order, which
    /// `serde_json` keeps in every program that has this package: `llguidance` turns its feature
    /// `preserve_order` on.
    JsonSchema(serde_json::Value),
    /// A text in which JSON that is valid against a schema stands between two marks.
    Tagged(Tagged),
}

/// JSON within a text: the calls of tools, say.
#[derive(Clone, Debug, PartialEq)]
pub struct Tagged {
    /// What stands before the JSON. Where it is empty the JSON is the whole text, or the text does
    /// not begin with a brace.
    pub open: String,
    /// What may follow: a name, which may be empty, and JSON that is valid against its schema,
    /// within [`JsonSchema`](Constraint::JsonSchema)'s limits. There may be a space before it.
    pub calls: Vec<(String, serde_json::Value)>,
    /// What stands behind it.
    pub close: String,
    /// There may be any other text before and behind it, and it may come any number of times, or
    /// not at all.
    pub free: bool,
}

/// Bytes of an expression at most.
const REGEX_MAX: usize = 8 << 10;
/// Bytes of a schema's text at most.
const SCHEMA_MAX: usize = 128 << 10;
/// Bytes of the marks around JSON within a text at most.
const MARKS_MAX: usize = 256;
/// Lists and objects within each other at most.
const DEPTH_MAX: usize = 64;
/// Members of one object at most: 2,048 properties that may be left out take half a second to
/// compile, and four times as many sixteen times as long.
const MEMBERS_MAX: usize = 2048;
/// The digits of a `multipleOf`, as a number, at most: there is a state for each remainder.
const MULTIPLE_MAX: u64 = 9_999;

impl Constraint {
    /// Its text, by which it is known.
    ///
    /// # Errors
    /// Where it is larger, or nested deeper, than one may be.
    pub(crate) fn text(&self) -> Result<String> {
        let large = |most: usize| Error::request(format!("the constraint: more than {most} bytes"));
        match self {
            Constraint::Regex(regex) if regex.len() > REGEX_MAX => Err(large(REGEX_MAX)),
            Constraint::Regex(regex) => Ok(regex.clone()),
            Constraint::JsonSchema(schema) => {
                measure(schema)?;
                let text = schema.to_string();
                if text.len() > SCHEMA_MAX { Err(large(SCHEMA_MAX)) } else { Ok(text) }
            }
            Constraint::Tagged(Tagged { open, calls, close, free }) => {
                let longest = calls.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
                if open.len() + close.len() + longest > MARKS_MAX {
                    return Err(Error::request("the constraint: marks that are too long"));
                }
                if calls.is_empty() {
                    return Err(Error::request("the constraint: nothing may follow the mark"));
                }
                calls.iter().try_for_each(|(_, schema)| measure(schema))?;
                // With nothing that could be taken for a part of the next.
                let text = json!([open, close, free, calls]).to_string();
                if text.len() > SCHEMA_MAX { Err(large(SCHEMA_MAX)) } else { Ok(text) }
            }
        }
    }
}

/// Refuses a schema that would take too long, without a recursion of its own.
fn measure(schema: &Value) -> Result<()> {
    let no = |text: String| Err(Error::request(format!("the constraint: {text}")));
    let mut level = vec![schema];
    for _ in 0..=DEPTH_MAX {
        let mut below = Vec::new();
        for value in level {
            match value {
                Value::Array(values) => below.extend(values),
                Value::Object(values) if values.len() > MEMBERS_MAX => {
                    return no(format!(
                        "an object of {} members, of {MEMBERS_MAX} at most",
                        values.len()
                    ));
                }
                Value::Object(values) => {
                    if let Some(Value::Number(number)) = values.get("multipleOf")
                        && digits(&number.to_string()) > MULTIPLE_MAX
                    {
                        return no(format!("multiples of {number}, of {MULTIPLE_MAX} at most"));
                    }
                    below.extend(values.values());
                }
                _ => {}
            }
        }
        if below.is_empty() {
            return Ok(());
        }
        level = below;
    }
    no(format!("a schema nested more than {DEPTH_MAX} deep"))
}

/// The digits of a number as another, without point and exponent.
fn digits(number: &str) -> u64 {
    if number.contains(['e', 'E']) {
        return u64::MAX;
    }
    let digits: String = number.chars().filter(char::is_ascii_digit).collect();
    digits.trim_start_matches('0').parse().unwrap_or(if digits.contains(|c| c != '0') {
        u64::MAX
    } else {
        0
    })
}
