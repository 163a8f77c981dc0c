//! Tokens as OpenAI writes them: in one piece, or event by event.

use super::App;
use super::ask::{Asked, Refusal};
use futensor_generate::{End, Logprobs, Token, Tokenizer, Tokens};
use futures::{Stream, StreamExt};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What all pieces of one answer have in common.
pub struct Answer {
    app: Arc<App>,
    asked: Asked,
    created: u64,
    began: Instant,
    /// Tokens so far, and characters.
    count: usize,
    offset: usize,
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
    pub fn new(app: Arc<App>, asked: Asked) -> Answer {
        let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
        Answer { app, asked, created, began: Instant::now(), count: 0, offset: 0 }
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
        json!({
            "prompt_tokens": prompt, "completion_tokens": self.count,
            "total_tokens": prompt + self.count,
        })
    }

    /// A token's probabilities, in the words of the route.
    fn logprobs(&self, token: &Token, logprobs: &Logprobs) -> Value {
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
            "top_logprobs": [top], "text_offset": [self.offset],
        })
    }

    /// Counts a token, and gives its probabilities where they were asked for.
    fn take(&mut self, token: &Token) -> Value {
        if self.count == 0 {
            self.app.metrics.first_token(self.began.elapsed());
        }
        let logprobs = token.logprobs.as_ref().map_or(Value::Null, |l| self.logprobs(token, l));
        self.count += 1;
        self.offset += token.text.chars().count();
        logprobs
    }

    /// All of it in one piece.
    pub async fn whole(mut self, mut tokens: Tokens) -> Result<String, Refusal> {
        let (mut text, mut reason, mut all) = (String::new(), Value::Null, Value::Null);
        while let Some(token) = tokens.next().await {
            let token = token?;
            join(&mut all, self.take(&token));
            text.push_str(&token.text);
            reason = end(token.end);
        }
        let short = all.is_null();
        let write = move || {
            let mut choice = json!({ "index": 0, "finish_reason": reason });
            choice["logprobs"] = all;
            match self.asked.chat {
                true => {
                    choice["message"] =
                        json!({ "role": "assistant", "content": text, "refusal": null })
                }
                false => choice["text"] = text.into(),
            }
            let mut whole = self.object(Vec::new(), false);
            whole["choices"] = vec![choice].into();
            whole["usage"] = self.usage();
            whole.to_string()
        };
        // Probabilities are some thousand bytes a token.
        match short {
            true => Ok(write()),
            false => tokio::task::spawn_blocking(write).await.map_err(|e| Refusal {
                status: 500,
                kind: "server_error",
                text: e.to_string(),
                param: None,
            }),
        }
    }

    /// One event a token, and what follows the last.
    pub fn events(
        self,
        tokens: Tokens,
    ) -> impl Stream<Item = Result<String, std::convert::Infallible>> + Send {
        let events = futures::stream::unfold(
            (self, tokens, false),
            |(mut answer, mut tokens, done)| async move {
                let token = match tokens.next().await {
                    _ if done => return None,
                    None => return None,
                    Some(Err(error)) => {
                        let event = event(&error_body(&error.into()));
                        return Some((event, (answer, tokens, true)));
                    }
                    Some(Ok(token)) => token,
                };
                let first = answer.count == 0;
                let logprobs = answer.take(&token);
                let mut text = String::new();
                let mut choice = json!({ "index": 0, "finish_reason": null, "logprobs": logprobs });
                match answer.asked.chat {
                    true => {
                        choice["delta"] = json!({ "content": token.text });
                        if first {
                            choice["delta"]["role"] = "assistant".into();
                        }
                    }
                    false => choice["text"] = token.text.into(),
                }
                choice["finish_reason"] = end(token.end);
                text.push_str(&event(&answer.object(vec![choice], true)));
                if token.end.is_some() {
                    if answer.asked.usage {
                        let mut last = answer.object(Vec::new(), true);
                        last["usage"] = answer.usage();
                        text.push_str(&event(&last));
                    }
                    text.push_str("data: [DONE]\n\n");
                }
                Some((text, (answer, tokens, false)))
            },
        );
        events.map(Ok)
    }
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
        "code": refusal.status,
    } })
}
