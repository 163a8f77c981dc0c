//! A client's request, in OpenAI's words, becomes one to the engine, or an error that names the
//! fault.

use super::App;
use futensor_generate::{Constraint, Request, Sampling};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Why a request is refused: status, OpenAI's type of it, what is wrong, and with which parameter.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub kind: &'static str,
    pub text: String,
    pub param: Option<&'static str>,
}

impl Refusal {
    pub fn of_request(text: impl Into<String>, param: Option<&'static str>) -> Refusal {
        Refusal { status: 400, kind: "invalid_request_error", text: text.into(), param }
    }
}

impl From<futensor_generate::Error> for Refusal {
    fn from(error: futensor_generate::Error) -> Refusal {
        let (status, kind) = match () {
            () if error.is_request() => (400, "invalid_request_error"),
            () if error.is_busy() || error.is_ended() => (503, "server_busy"),
            () if error.is_deadline() => (504, "timeout"),
            // Not for this request alone: others of its kind had better go elsewhere.
            () if error.device().is_some_and(futensor::Error::is_device_lost) => {
                (503, "server_lost")
            }
            () => (500, "server_error"),
        };
        Refusal { status, kind, text: error.to_string(), param: None }
    }
}

/// One, or several.
#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore<T> {
    One(T),
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    fn into_vec(self) -> Vec<T> {
        match self {
            OneOrMore::One(one) => vec![one],
            OneOrMore::More(more) => more,
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Prompt {
    Tokens(Vec<u32>),
    Text(OneOrMore<String>),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct StreamOptions {
    #[serde(default)]
    include_usage: bool,
    #[serde(rename = "include_obfuscation")]
    _padding: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    role: String,
    content: Value,
    name: Option<String>,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Format {
    Text,
    JsonObject,
    JsonSchema {
        json_schema: Schema,
    },
    /// Not OpenAI's: the whole answer matches this expression.
    Regex {
        regex: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Schema {
    schema: Value,
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
    #[serde(rename = "description")]
    _description: Option<String>,
}

/// The body of either route.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    model: Option<String>,
    messages: Option<Vec<Message>>,
    prompt: Option<Prompt>,
    max_tokens: Option<usize>,
    max_completion_tokens: Option<usize>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<usize>,
    repetition_penalty: Option<f32>,
    presence_penalty: Option<f32>,
    frequency_penalty: Option<f32>,
    seed: Option<i64>,
    stop: Option<OneOrMore<String>>,
    #[serde(default)]
    stream: bool,
    stream_options: Option<StreamOptions>,
    logprobs: Option<Value>,
    top_logprobs: Option<usize>,
    response_format: Option<Format>,
    n: Option<usize>,
    #[serde(rename = "user")]
    _user: Option<String>,
}

/// How an answer is to be written.
pub struct Asked {
    /// Tokens of the prompt.
    pub prompt: usize,
    pub chat: bool,
    pub stream: bool,
    pub usage: bool,
    /// The answer's name.
    pub id: String,
}

/// What an answer begins with.
enum Begin {
    Tokens(Vec<u32>),
    Text(String),
    Messages(Vec<Value>),
}

/// Bodies from which on a thread that may block looks into them: all that is done here, and what is
/// left of a body that is refused, is as much as the body is.
const SHORT: usize = 8192;

/// What a body asks for. Texts, templates and constraints are the business of the library's
/// helpers.
pub async fn read(app: &Arc<App>, bytes: Vec<u8>, chat: bool) -> Result<(Request, Asked), Refusal> {
    let short = bytes.len() < SHORT;
    let own = app.clone();
    let understand = move || {
        let body = serde_json::from_slice(&bytes);
        understand(&own, body.map_err(|e| Refusal::of_request(e.to_string(), None))?, chat)
    };
    let understood = match short {
        true => understand(),
        false => tokio::task::spawn_blocking(understand).await.map_err(|e| Refusal {
            status: 500,
            kind: "server_error",
            text: e.to_string(),
            param: None,
        })?,
    };
    let (begin, mut request, mut asked) = understood?;
    let tokenizer = app.engine.model().tokenizer();
    // A template says itself what a text begins with.
    request.prompt = match begin {
        Begin::Tokens(tokens) => tokens,
        Begin::Text(text) => tokenizer.encode_later(text, true).await?,
        Begin::Messages(messages) => {
            tokenizer.encode_later(rendered(app, messages).await?, false).await?
        }
    };
    asked.prompt = request.prompt.len();
    if let Some(constraint) = &request.constraint {
        app.engine.prepare(constraint.clone()).await?;
    }
    Ok((request, asked))
}

/// A body in the engine's words.
fn understand(app: &App, body: Body, chat: bool) -> Result<(Begin, Request, Asked), Refusal> {
    let no = |text: String, param| Err(Refusal::of_request(text, Some(param)));
    if let Some(model) = body.model.as_ref().filter(|&model| *model != app.name) {
        let text = format!("there is no model {model:?}: {:?} is", app.name);
        return Err(Refusal {
            status: 404,
            kind: "invalid_request_error",
            text,
            param: Some("model"),
        });
    }
    if body.n.is_some_and(|n| n != 1) {
        return no("one choice a request is all there is".into(), "n");
    }
    if [body.presence_penalty, body.frequency_penalty].iter().flatten().any(|&p| p != 0.0) {
        return no("penalties are asked for as repetition_penalty".into(), "presence_penalty");
    }
    let begin = match (body.prompt, body.messages) {
        (None, Some(messages)) if chat => Begin::Messages(conversation(messages)?),
        (Some(Prompt::Tokens(tokens)), None) if !chat => Begin::Tokens(tokens),
        (Some(Prompt::Text(texts)), None) if !chat => {
            let [text] = <[String; 1]>::try_from(texts.into_vec()).map_err(|texts| {
                Refusal::of_request(format!("{} prompts, not one", texts.len()), Some("prompt"))
            })?;
            Begin::Text(text)
        }
        _ if chat => {
            return no("messages are needed, and nothing else to begin with".into(), "messages");
        }
        _ => return no("a prompt is needed, and nothing else to begin with".into(), "prompt"),
    };
    let mut request = Request::new(Vec::new());
    request.tokens_max = body.max_completion_tokens.or(body.max_tokens);
    let count = app.count.fetch_add(1, Relaxed);
    let temperature = body.temperature.unwrap_or(1.0);
    request.sampling = Sampling {
        temperature,
        top_k: body.top_k.unwrap_or(0),
        top_p: body.top_p.unwrap_or(1.0),
        repetition_penalty: body.repetition_penalty.unwrap_or(1.0),
        seed: body.seed.map_or_else(|| fresh_seed(count), |seed| seed as u64),
    };
    request.stop = body.stop.map_or_else(Vec::new, OneOrMore::into_vec);
    request.logprobs = match (chat, body.logprobs, body.top_logprobs) {
        (_, None | Some(Value::Null | Value::Bool(false)), None) => None,
        (true, Some(Value::Bool(true)), top) => Some(top.unwrap_or(0)),
        (false, Some(Value::Number(n)), None) => Some(n.as_u64().unwrap_or(u64::MAX) as usize),
        (true, ..) => {
            return no("logprobs is true or false, and needed for top_logprobs".into(), "logprobs");
        }
        (false, ..) => return no("logprobs is a number".into(), "logprobs"),
    };
    let constraint = match body.response_format {
        None | Some(Format::Text) => None,
        Some(Format::JsonObject) => Some(Constraint::JsonSchema(json!({ "type": "object" }))),
        Some(Format::JsonSchema { json_schema }) => {
            Some(Constraint::JsonSchema(json_schema.schema))
        }
        Some(Format::Regex { regex }) => Some(Constraint::Regex(regex)),
    };
    request.constraint = constraint.map(Into::into);
    // Whatever is too large goes no further.
    request.check()?;
    let usage = body.stream_options.unwrap_or_default().include_usage;
    let id = format!("{}-{count}", if chat { "chatcmpl" } else { "cmpl" });
    Ok((begin, request, Asked { prompt: 0, chat, stream: body.stream, usage, id }))
}

/// A conversation, as templates know them.
fn conversation(messages: Vec<Message>) -> Result<Vec<Value>, Refusal> {
    let no = |text: &str| Err(Refusal::of_request(text, Some("messages")));
    if messages.is_empty() {
        return no("there are no messages");
    }
    let mut plain = Vec::new();
    for message in messages {
        let text = match message.content {
            Value::String(text) => text,
            Value::Array(parts) => {
                let text = |part: &Value| {
                    (part["type"] == "text").then(|| part["text"].as_str().map(String::from))
                };
                match parts.iter().map(|part| text(part).flatten()).collect::<Option<Vec<_>>>() {
                    Some(texts) => texts.concat(),
                    None => return no("a message has other parts than text"),
                }
            }
            _ => return no("a message has no text"),
        };
        let mut one = json!({ "role": message.role, "content": text });
        if let Some(name) = message.name {
            one["name"] = name.into();
        }
        plain.push(one);
    }
    Ok(plain)
}

/// The text of a conversation, as the model knows it.
async fn rendered(app: &App, messages: Vec<Value>) -> Result<String, Refusal> {
    match app.engine.model().template() {
        Some(template) => Ok(template.render(messages).await?),
        None => {
            let text = "the model has no chat template: ask /v1/completions";
            Err(Refusal::of_request(text, Some("messages")))
        }
    }
}

/// A seed for a request that brings none.
fn fresh_seed(count: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |t| t.as_nanos() as u64).wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
