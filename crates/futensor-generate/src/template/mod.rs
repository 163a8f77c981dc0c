//! Chat templates: messages to the text that the model was trained on, by the Jinja template that
//! comes with it.
//!
//! A template comes from anybody, as its model does. What it does is paid for with fuel, by the
//! instruction, by the byte it makes and by the item it looks at, however deep in a value (`paid`):
//! that bounds its time, its memory and how deep its values can be. It is parsed and run on threads
//! with a deep stack.

mod environment;
mod paid;
mod python;

use crate::error::{Error, Result};
use crate::helpers::{STACK, Work, outside};
use environment::environment;
use minijinja::machinery::{eval, get_compiled_template, make_string_output};
use minijinja::value::Serde;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::Serialize;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A chat template. Templates see nothing but what they are given, and are run with bounds on time,
/// memory and depth.
pub struct Template {
    /// What it says, where it cannot be read.
    environment: Result<Environment<'static>>,
    source: String,
    begin: String,
    end: String,
}

const NAME: &str = "chat";

/// Bytes of a template at most. Those of models have some 20,000.
const SOURCE_MAX: usize = 128 << 10;

/// Fuel that any conversation has, that it has for each message and for each few bytes of them, and
/// that it has at most. One instruction costs 1, as do 64 bytes. Templates of models spend some 10
/// to 400 on a message, and look at each byte some six times. A level of a value costs 2 at
/// least, and took 700 bytes of a helper's stack at most (compared, shown and freed, 380,000 levels
/// fit).
const FUEL: u64 = 50_000;
const FUEL_OF_MESSAGE: u64 = 600;
const BYTES_OF_FUEL: u64 = 4;
const FUEL_MAX: u64 = 400_000;

impl Template {
    /// Of a template's source, and the names of the tokens that begin and end a text.
    ///
    /// # Errors
    /// Where the source is no template, or has more than 128 KiB.
    pub fn new(source: &str, begin: &str, end: &str) -> Result<Template> {
        if source.len() > SOURCE_MAX {
            return Err(Error::model(format!("the chat template: more than {SOURCE_MAX} bytes")));
        }
        let wrong = |text: String| Error::model(format!("the chat template: {text}"));
        let parsed = std::thread::scope(|scope| {
            let thread =
                std::thread::Builder::new().name("futensor-parse".into()).stack_size(STACK);
            let parse = || catch_unwind(AssertUnwindSafe(|| environment(NAME, source)));
            thread.spawn_scoped(scope, parse).map(|parsing| parsing.join())
        });
        let parsed = parsed.map_err(|e| wrong(format!("no thread: {e}")))?;
        let parsed = parsed.and_then(|caught| caught).map_err(|_| wrong("a panic".into()))?;
        let environment = parsed.map_err(|e| wrong(e.to_string()))?;
        let (begin, end) = (begin.into(), end.into());
        Ok(Template { environment: Ok(environment), source: source.into(), begin, end })
    }

    /// One that refuses every conversation with this.
    pub(crate) fn refusing(error: &Error) -> Template {
        let error = Err(Error::request(error.to_string()));
        let none = String::new;
        Template { environment: error, source: none(), begin: none(), end: none() }
    }

    /// What it was made from; nothing of one that refuses.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The text of a conversation, up to where the model is to go on. Messages are maps with `role`
    /// and `content`. Another thread makes it: a template may take its time.
    ///
    /// ```
    /// use futensor_generate::Template;
    /// let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    /// let template = Template::new(source, "", "").unwrap();
    /// let message = std::collections::BTreeMap::from([("role", "user"), ("content", "Hello")]);
    /// let text = futensor::block_on(template.render([message]));
    /// assert_eq!(text.unwrap(), "user: Hello\n");
    /// ```
    ///
    /// # Errors
    /// Where the template does not take such messages, or does more than any has to.
    ///
    /// # Cancel safety
    /// Dropping the future gives the text up.
    pub fn render(&self, messages: impl Serialize + Send + 'static) -> Work<String> {
        self.render_with(messages, serde_json::Map::new())
    }

    /// The same, with more that the template is told by name, such as `tools`.
    ///
    /// # Errors
    /// As [`render`](Self::render).
    ///
    /// # Cancel safety
    /// Dropping the future gives the text up.
    pub fn render_with(
        &self,
        messages: impl Serialize + Send + 'static,
        more: serde_json::Map<String, serde_json::Value>,
    ) -> Work<String> {
        let environment = self.environment.clone();
        let (begin, end) = (self.begin.clone(), self.end.clone());
        outside().work(move || {
            let mut environment = environment?;
            let values = Value::from(Serde(messages));
            let more = Value::from(Serde(more));
            let messages = values.len().unwrap_or(0) as u64;
            let bytes = bytes_of(&values) + bytes_of(&more);
            let fuel = FUEL + FUEL_OF_MESSAGE.saturating_mul(messages) + bytes / BYTES_OF_FUEL;
            environment.set_fuel(Some(fuel.min(FUEL_MAX)));
            let wrong = |e: minijinja::Error| match e.kind() {
                ErrorKind::OutOfFuel => {
                    Error::request("the chat template does more than any has to")
                }
                _ => Error::request(format!("the chat template refuses: {e}")),
            };
            let template = environment.get_template(NAME).map_err(wrong)?;
            let compiled = get_compiled_template(&template);
            let paid = paid::paid(&compiled.instructions).map_err(wrong)?;
            // Where there are none, `transformers` says so as well.
            let none = context! { tools => Value::from(()), documents => Value::from(()) };
            let context = context! {
                messages => values,
                add_generation_prompt => true,
                bos_token => begin,
                eos_token => end,
                ..context! { ..more, ..none }
            };
            let (mut text, escape) = (String::new(), compiled.initial_auto_escape.clone());
            let mut out = make_string_output(&mut text);
            eval(&environment, &paid, context, &compiled.blocks, &mut out, escape)
                .map_err(wrong)?;
            Ok(text)
        })
    }
}

/// Bytes of the texts in messages; depth is theirs who made them.
fn bytes_of(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => text.len() as u64,
        None => value.try_iter().map_or(0, |items| {
            let one =
                |item: Value| bytes_of(&item) + value.get_item(&item).map_or(0, |v| bytes_of(&v));
            items.map(one).sum()
        }),
    }
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Template")
    }
}

#[cfg(test)]
mod tests;
