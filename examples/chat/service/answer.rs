//! Tokens as OpenAI writes them: in one piece, or event by event.

use super::App;
use super::ask::{Asked, Refusal};
use super::tools::Form;
use futensor_generate::{End, Logprobs, Token, Tokenizer, Tokens};
use futures::{Stream, StreamExt};
use serde_json::{Map, Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What all pieces of one answer have in common.
pub struct Answer {
    app: Arc<App>,
    asked: Asked,
    created: u64,
    began: Instant,
    choices: Vec<Choice>,
}

/// One of the texts that an answer gives.
#[derive(Default)]
struct Choice {
    /// Tokens so far, and characters.
    count: usize,
    offset: usize,
    ended: bool,
    /// What is not told yet, or how much of it was, where a call may begin in it.
    text: String,
    shown: usize,
    reason: Value,
    logprobs: Value,
}

/// Tokens with the numbers of their choices.
type Tagged = Pin<Box<dyn Stream<Item = (usize, futensor_generate::Result<Token>)> + Send>>;

fn tagged(streams: Vec<Tokens>) -> Tagged {
    let tag = |(index, tokens): (usize, Tokens)| tokens.map(move |token| (index, token));
    Box::pin(futures::stream::select_all(streams.into_iter().enumerate().map(tag)))
}

fn end(end: Option<End>) -> Value {
    match end {
        None => Value::Null,
        Some(End::Stop) => "stop".into(),
        Some(End::Length) => "length".into(),
    }
}

/// A token's name: its text, where it has one.
fn named(tokenizer: &Tokenizer, token: u32) -> String {
    match tokenizer.bytes(token) {
        [] => tokenizer.name(token).unwrap_or_default(),
        bytes => String::from_utf8_lossy(bytes).into_owned(),
    }
}

impl Answer {
    /// One of so many choices in all.
    pub fn new(app: Arc<App>, asked: Asked, choices: usize) -> Answer {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        let choices = (0..choices).map(|_| Choice::default()).collect();
        Answer { app, asked, created, began: Instant::now(), choices }
    }

    fn object(&self, choices: Vec<Value>, piece: bool) -> Value {
        let object = match (self.asked.chat, piece) {
            (true, true) => "chat.completion.chunk",
            (true, false) => "chat.completion",
            (false, _) => "text_completion",
        };
        let (id, model) = (&self.asked.id, &self.app.name);
        json!({
            "id": id, "object": object, "created": self.created, "model": model,
            "choices": choices,
        })
    }

    fn usage(&self) -> Value {
        let prompt = self.asked.prompt;
        let count: usize = self.choices.iter().map(|choice| choice.count).sum();
        json!({
            "prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count,
        })
    }

    /// A token's probabilities, in the words of the route.
    fn logprobs(&self, token: &Token, logprobs: &Logprobs, offset: usize) -> Value {
        let tokenizer = self.app.engine.model().tokenizer();
        if self.asked.chat {
            let one = |id: u32, logprob: f32| {
                let (token, bytes) = (named(tokenizer, id), tokenizer.bytes(id));
                json!({ "token": token, "logprob": logprob, "bytes": bytes })
            };
            let mut own = one(token.id, logprobs.chosen);
            own["top_logprobs"] =
                logprobs.alternatives.iter().map(|&(id, logprob)| one(id, logprob)).collect();
            return json!({ "content": [own] });
        }
        let top: Map<String, Value> = logprobs
            .alternatives
            .iter()
            .map(|&(id, logprob)| (named(tokenizer, id), logprob.into()))
            .collect();
        json!({
            "tokens": [named(tokenizer, token.id)], "token_logprobs": [logprobs.chosen],
            "top_logprobs": [top], "text_offset": [offset],
        })
    }

    /// Counts a token of a choice, and gives its probabilities where they were asked for.
    fn take(&mut self, index: usize, token: &Token) -> Value {
        if self.choices.iter().all(|choice| choice.count == 0) {
            self.app.metrics.first_token(self.began.elapsed());
        }
        let offset = self.choices[index].offset;
        let logprobs =
            token.logprobs.as_ref().map_or(Value::Null, |l| self.logprobs(token, l, offset));
        let choice = &mut self.choices[index];
        choice.count += 1;
        choice.offset += token.text.chars().count();
        choice.ended |= token.end.is_some();
        logprobs
    }

    /// All of it in one piece.
    pub async fn whole(mut self, streams: Vec<Tokens>) -> Result<String, Refusal> {
        let mut tokens = tagged(streams);
        while let Some((index, token)) = tokens.next().await {
            let token = token?;
            let logprobs = self.take(index, &token);
            let choice = &mut self.choices[index];
            join(&mut choice.logprobs, logprobs);
            choice.text.push_str(&token.text);
            choice.reason = end(token.end);
        }
        // Probabilities are some thousand bytes a token.
        match self.choices.iter().all(|choice| choice.logprobs.is_null()) {
            true => Ok(self.written()),
            false => tokio::task::spawn_blocking(move || self.written())
                .await
                .map_err(|e| Refusal::of_server(e.to_string())),
        }
    }

    /// What a text says beside the calls of tools, and those, as OpenAI writes them.
    fn calls(&self, choice: usize, text: &str) -> (String, Vec<Value>) {
        let Some(form) = self.asked.tools else { return (text.into(), Vec::new()) };
        let (rest, calls) = form.calls(text);
        let one = |(at, (name, arguments)): (usize, (String, String))| {
            let id = call_id(&self.asked.id, choice, at);
            json!({ "index": at, "id": id, "type": "function",
                "function": { "name": name, "arguments": arguments } })
        };
        (rest, calls.into_iter().enumerate().map(one).collect())
    }

    /// Tells what is no part of a call, and at the end the calls.
    fn hold_back(&mut self, form: Form, index: usize, token: &Token, piece: &mut Value) {
        let choice = &mut self.choices[index];
        choice.text.push_str(&token.text);
        let from = choice.shown;
        if token.end.is_none() {
            choice.shown += form.plain(&choice.text[from..]);
            piece["delta"]["content"] = choice.text[from..choice.shown].into();
            return;
        }
        let text = std::mem::take(&mut choice.text);
        let (rest, calls) = self.calls(index, &text[from..]);
        if !calls.is_empty() {
            piece["delta"]["tool_calls"] = calls.into();
            piece["finish_reason"] = "tool_calls".into();
        }
        piece["delta"]["content"] = rest.into();
    }

    fn written(mut self) -> String {
        let mut choices = Vec::new();
        for (index, choice) in std::mem::take(&mut self.choices).into_iter().enumerate() {
            let mut one = json!({ "index": index, "finish_reason": choice.reason });
            one["logprobs"] = choice.logprobs;
            match self.asked.chat {
                true => {
                    let (text, calls) = self.calls(index, &choice.text);
                    one["message"] =
                        json!({ "role": "assistant", "content": text, "refusal": null });
                    if !calls.is_empty() {
                        one["message"]["tool_calls"] = calls.into();
                        one["finish_reason"] = "tool_calls".into();
                        if text.trim().is_empty() {
                            one["message"]["content"] = Value::Null;
                        }
                    }
                }
                false => one["text"] = choice.text.into(),
            }
            choices.push(one);
            self.choices.push(Choice { count: choice.count, ..Choice::default() });
        }
        let mut whole = self.object(choices, false);
        whole["usage"] = self.usage();
        whole.to_string()
    }

    /// One event a token, and what follows the last.
    pub fn events(
        self,
        streams: Vec<Tokens>,
    ) -> impl Stream<Item = Result<String, std::convert::Infallible>> + Send {
        let begin = (self, Some(tagged(streams)));
        let events = futures::stream::unfold(begin, |(mut answer, tokens)| async move {
            let mut tokens = tokens?;
            match tokens.next().await? {
                (_, Err(error)) => Some((event(&error_body(&error.into())), (answer, None))),
                (index, Ok(token)) => Some((answer.piece(index, token), (answer, Some(tokens)))),
            }
        });
        events.map(Ok)
    }

    /// A token's event; behind the last of all choices what ends the stream.
    fn piece(&mut self, index: usize, token: Token) -> String {
        let first = self.choices[index].count == 0;
        let logprobs = self.take(index, &token);
        let mut choice = json!({ "index": index, "finish_reason": null, "logprobs": logprobs });
        match self.asked.chat {
            true => {
                choice["delta"] = json!({ "content": token.text });
                if first {
                    choice["delta"]["role"] = "assistant".into();
                }
            }
            false => choice["text"] = token.text.clone().into(),
        }
        choice["finish_reason"] = end(token.end);
        if let Some(form) = self.asked.tools {
            self.hold_back(form, index, &token, &mut choice);
        }
        let mut piece = self.object(vec![choice], true);
        if self.asked.usage {
            piece["usage"] = Value::Null;
        }
        let mut text = event(&piece);
        if self.choices.iter().all(|choice| choice.ended) {
            if self.asked.usage {
                let mut last = self.object(Vec::new(), true);
                last["usage"] = self.usage();
                text.push_str(&event(&last));
            }
            text.push_str("data: [DONE]\n\n");
        }
        text
    }
}

/// The number of a call: nine letters and digits, since Mistral's templates take no others back.
fn call_id(answer: &str, choice: usize, at: usize) -> String {
    let mut hasher = DefaultHasher::new();
    (answer, choice, at).hash(&mut hasher);
    let mut rest = hasher.finish();
    let mut next = || {
        let digit = char::from_digit((rest % 36) as u32, 36).expect("a digit of 36");
        rest /= 36;
        digit
    };
    (0..9).map(|_| next()).collect()
}

fn event(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// Adds a token's probabilities to those before it.
fn join(all: &mut Value, one: Value) {
    match (all, one) {
        (all @ Value::Null, one) => *all = one,
        (Value::Object(all), Value::Object(one)) => {
            for (key, value) in one {
                if let (Some(Value::Array(all)), Value::Array(one)) = (all.get_mut(&key), value) {
                    all.extend(one);
                }
            }
        }
        _ => {}
    }
}

/// An error as OpenAI writes it.
pub fn error_body(refusal: &Refusal) -> Value {
    json!({ "error": {
        "message": refusal.text, "type": refusal.kind, "param": refusal.param,
        "code": refusal.code,
    } })
}
