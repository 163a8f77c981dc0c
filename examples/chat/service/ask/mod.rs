//! A client's request, in OpenAI's words, becomes some to the engine, or an error that names the
//! fault.
//!
//! What does not change the answer is ignored. What would change it is done, or refused by its
//! name.

mod fields;
mod messages;
mod options;

use super::App;
use super::tools::Form;
use fields::Fields;
use futensor_generate::Request;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Why a request is refused: status, OpenAI's type and code of it, what is wrong, and with which
/// parameter.
#[derive(Debug)]
pub struct Refusal {
    pub status: u16,
    pub kind: &'static str,
    pub code: Option<&'static str>,
    pub text: String,
    pub param: Option<String>,
}

impl Refusal {
    /// One of this status that is the client's fault.
    pub fn new(status: u16, text: impl Into<String>) -> Refusal {
        Refusal {
            status,
            kind: "invalid_request_error",
            code: None,
            text: text.into(),
            param: None,
        }
    }

    pub fn of_request(text: impl Into<String>, param: &str) -> Refusal {
        Refusal { param: Some(param.into()), ..Refusal::new(400, text) }
    }

    pub fn code(self, code: &'static str) -> Refusal {
        Refusal { code: Some(code), ..self }
    }

    /// The service's own fault.
    pub fn of_server(text: impl Into<String>) -> Refusal {
        Refusal { kind: "server_error", code: Some("server_error"), ..Refusal::new(500, text) }
    }
}

impl From<futensor_generate::Error> for Refusal {
    fn from(error: futensor_generate::Error) -> Refusal {
        let (status, kind) = match () {
            () if error.is_request() => return Refusal::new(400, error.to_string()),
            () if error.is_busy() || error.is_ended() => (503, "server_busy"),
            () if error.is_deadline() => (504, "timeout"),
            // Not for this request alone: others of its kind had better go elsewhere.
            () if error.device().is_some_and(futensor::Error::is_device_lost) => {
                (503, "server_lost")
            }
            () => return Refusal::of_server(error.to_string()),
        };
        Refusal { kind, code: Some(kind), ..Refusal::new(status, error.to_string()) }
    }
}

/// How an answer is to be written.
pub struct Asked {
    /// Tokens of all prompts.
    pub prompt: usize,
    /// Choices of each prompt.
    pub choices: usize,
    pub chat: bool,
    pub stream: bool,
    pub usage: bool,
    /// How calls of tools are written, where there may be some.
    pub tools: Option<Form>,
    /// The answer's name.
    pub id: String,
}

/// What an answer begins with.
enum Begin {
    Tokens(Vec<u32>),
    Text(String),
    /// Messages, and what else a template is told.
    Messages(Vec<Value>, Map<String, Value>),
}

/// What a body says.
struct Understood {
    begins: Vec<Begin>,
    /// But for its prompt and the seeds of further choices.
    request: Request,
    asked: Asked,
}

/// Bodies from which on a thread that may block looks into them: all that is done here, and what is
/// left of a body that is refused, is as much as the body is.
const SHORT: usize = 8192;

/// What a body asks for: a request for each choice, those of one prompt beside each other. Texts,
/// templates and constraints are the business of the library's helpers.
pub async fn read(
    app: &Arc<App>,
    bytes: Vec<u8>,
    chat: bool,
) -> Result<(Vec<Request>, Asked), Refusal> {
    let short = bytes.len() < SHORT;
    let own = app.clone();
    let understand = move || options::understand(&own, Fields::read(&bytes)?, chat);
    let understood = match short {
        true => understand(),
        false => tokio::task::spawn_blocking(understand)
            .await
            .map_err(|e| Refusal::of_server(e.to_string()))?,
    };
    let Understood { begins, request, mut asked } = understood?;
    if let Some(constraint) = &request.constraint {
        app.engine
            .prepare(constraint.clone())
            .await
            .map_err(|error| Refusal { param: Some("response_format".into()), ..error.into() })?;
    }
    let tokenizer = app.engine.model().tokenizer();
    let mut requests = Vec::new();
    for begin in begins {
        // A template says itself what a text begins with.
        let prompt = match begin {
            Begin::Tokens(tokens) => tokens,
            Begin::Text(text) => tokenizer.encode_later(text, true).await?,
            Begin::Messages(messages, more) => {
                let text = messages::rendered(app, messages, more).await?;
                tokenizer.encode_later(text, false).await?
            }
        };
        asked.prompt += prompt.len();
        let request = cut(app, Request { prompt, ..request.clone() }, chat)?;
        for choice in 0..asked.choices as u64 {
            let mut one = request.clone();
            // The first choice is that of whoever asks for no other.
            let further = choice.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            one.sampling.seed = one.sampling.seed.wrapping_add(further);
            requests.push(one);
        }
    }
    Ok((requests, asked))
}

/// As many new tokens as there is room for behind the prompt, at most.
fn cut(app: &App, mut request: Request, chat: bool) -> Result<Request, Refusal> {
    let (prompt, context) = (request.prompt.len(), app.engine.context());
    if prompt >= context {
        let text =
            format!("{prompt} tokens and 1 new one are more than the {context} of a request");
        let param = if chat { "messages" } else { "prompt" };
        return Err(Refusal::of_request(text, param).code("context_length_exceeded"));
    }
    request.tokens_max = request.tokens_max.map(|most| most.min(context - prompt));
    Ok(request)
}
