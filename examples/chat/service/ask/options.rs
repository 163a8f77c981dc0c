//! The options of a body, in the engine's words.

use super::fields::Fields;
use super::messages::conversation;
use super::{App, Asked, Begin, Refusal, Understood};
use crate::tools::{Tools, in_words};
use futensor_generate::{Constraint, Request, Sampling};
use serde_json::{Map, Value, json};
use std::sync::atomic::Ordering::Relaxed;

/// Answers that one body may ask for.
const ANSWERS_MAX: usize = 128;

fn no<T>(text: impl Into<String>, param: &str) -> Result<T, Refusal> {
    Err(Refusal::of_request(text, param).code("invalid_value"))
}

/// A body in the engine's words.
pub fn understand(app: &App, mut body: Fields, chat: bool) -> Result<Understood, Refusal> {
    let count = app.count.fetch_add(1, Relaxed);
    app.knows(body.text("model")?.as_deref())?;
    let choices = body.count(&["n"])?.unwrap_or(1);
    let mut tools = None;
    let begins = match chat {
        true => {
            let mut more = template_options(&mut body)?;
            let messages = body.list("messages")?;
            let Some(messages) = messages else { return no("messages are needed", "messages") };
            let mut messages = conversation(messages)?;
            let template = app.engine.model().template().map_or("", |t| t.source());
            let (list, choice) =
                (body.list("tools")?.unwrap_or_default(), body.take("tool_choice"));
            tools = Tools::read(list, choice, template)?;
            if !template.contains("tool_calls") {
                in_words(&mut messages);
            }
            match &tools {
                Some(tools) if tools.told => tools.tell(&mut messages),
                Some(tools) => drop(more.insert("tools".into(), tools.list.clone().into())),
                None => {}
            }
            vec![Begin::Messages(messages, more)]
        }
        false => prompts(&mut body)?,
    };
    let format = body.object("response_format")?;
    let answers = choices.saturating_mul(begins.len());
    if choices == 0 || answers > ANSWERS_MAX {
        let text = format!("{answers} answers, of 1 to {ANSWERS_MAX} in one request");
        return no(text, "n");
    }
    if body.whole(&["best_of"])?.is_some_and(|n| n != choices as i64) {
        return no("best_of is not done: each answer is given", "best_of");
    }
    let mut request = Request::new(Vec::new());
    let most = body.count(&["max_completion_tokens"])?;
    request.tokens_max = body.count(&["max_tokens"])?;
    request.tokens_max = most.or(request.tokens_max);
    if request.tokens_max == Some(0) {
        return no("no tokens are asked for", "max_tokens");
    }
    request.sampling = sampling(&mut body, count)?;
    request.stop = body.texts("stop")?;
    request.ignore_end = body.flag("ignore_eos")?;
    request.logprobs = logprobs(&mut body, chat)?;
    let form = format.map(constraint).transpose()?.flatten();
    if form.is_some() && tools.is_some() {
        return no("response_format beside tools is not done", "response_format");
    }
    request.constraint = form.or(tools.as_ref().map(Tools::constraint)).map(Into::into);
    let stream = body.flag("stream")?;
    let options = body.object("stream_options")?.unwrap_or_default();
    let usage = options.get("include_usage") == Some(&Value::Bool(true));
    // What else changes nothing in its usual value.
    let usual = |name: &str, value: &Value| match name {
        "modalities" => *value == json!(["text"]),
        "function_call" => *value == "none" || *value == "auto",
        "repeat_last_n" => *value == 64,
        "min_tokens" => *value == 0,
        "add_generation_prompt" | "skip_special_tokens" => *value == true,
        _ => false,
    };
    for name in [
        "modalities",
        "function_call",
        "repeat_last_n",
        "min_tokens",
        "add_generation_prompt",
        "skip_special_tokens",
    ] {
        if let Some(value) = body.take(name)
            && !usual(name, &value)
        {
            return no(format!("{name} of {value} is not done"), name);
        }
    }
    body.end()?;
    // Whatever is too large goes no further.
    request.check()?;
    let id = format!("{}-{:016x}", if chat { "chatcmpl" } else { "cmpl" }, app.unique(count));
    let tools = tools.map(|tools| tools.form);
    let asked = Asked { prompt: 0, choices, chat, stream, usage, tools, id };
    Ok(Understood { begins, request, asked })
}

/// What a template is told beside messages.
fn template_options(body: &mut Fields) -> Result<Map<String, Value>, Refusal> {
    let mut more = body.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = body.text("reasoning_effort")? {
        more.insert("reasoning_effort".into(), effort.into());
    }
    match more.keys().find(|name| ["messages", "add_generation_prompt"].contains(&&name[..])) {
        Some(name) => no(format!("{name} is not the client's to say"), "chat_template_kwargs"),
        None => Ok(more),
    }
}

/// A text, tokens, or several of either.
fn prompts(body: &mut Fields) -> Result<Vec<Begin>, Refusal> {
    let Some(prompt) = body.take("prompt") else { return no("a prompt is needed", "prompt") };
    let tokens = |items: &[Value]| -> Option<Vec<u32>> {
        items.iter().map(|item| u32::try_from(item.as_u64()?).ok()).collect()
    };
    let all = match prompt {
        Value::String(text) => Some(vec![Begin::Text(text)]),
        Value::Array(items) if items.is_empty() => return no("the prompt is empty", "prompt"),
        Value::Array(items) => match tokens(&items) {
            Some(tokens) => Some(vec![Begin::Tokens(tokens)]),
            None => items
                .into_iter()
                .map(|item| match item {
                    Value::String(text) => Some(Begin::Text(text)),
                    Value::Array(items) => tokens(&items).map(Begin::Tokens),
                    _ => None,
                })
                .collect(),
        },
        _ => None,
    };
    match all {
        Some(all) => Ok(all),
        None => no("a prompt is a text, a list of tokens, or a list of either", "prompt"),
    }
}

fn sampling(body: &mut Fields, count: u64) -> Result<Sampling, Refusal> {
    let usual = Sampling::default();
    let mut logit_bias = Vec::new();
    for (token, bias) in body.object("logit_bias")?.unwrap_or_default() {
        match (token.parse(), bias.as_f64()) {
            (Ok(token), Some(bias)) => logit_bias.push((token, bias as f32)),
            _ => return no("logit_bias gives tokens, by number, a number each", "logit_bias"),
        }
    }
    Ok(Sampling {
        temperature: body.number(&["temperature"])?.unwrap_or(1.0),
        top_k: body.count(&["top_k"])?.unwrap_or(usual.top_k),
        top_p: body.number(&["top_p"])?.unwrap_or(usual.top_p),
        min_p: body.number(&["min_p"])?.unwrap_or(usual.min_p),
        repetition_penalty: body
            .number(&["repetition_penalty", "repeat_penalty"])?
            .unwrap_or(usual.repetition_penalty),
        frequency_penalty: body.number(&["frequency_penalty"])?.unwrap_or(0.0),
        presence_penalty: body.number(&["presence_penalty"])?.unwrap_or(0.0),
        logit_bias,
        seed: body.whole(&["seed"])?.map_or_else(|| fresh_seed(count), |seed| seed as u64),
    })
}

fn logprobs(body: &mut Fields, chat: bool) -> Result<Option<usize>, Refusal> {
    let top = body.count(&["top_logprobs"])?;
    match (chat, body.take("logprobs"), top) {
        (_, None | Some(Value::Bool(false)), None | Some(0)) => Ok(None),
        (true, Some(Value::Bool(true)), top) => Ok(Some(top.unwrap_or(0))),
        (false, Some(Value::Number(n)), None) => {
            Ok(Some(n.as_u64().unwrap_or(u64::MAX).try_into().unwrap_or(usize::MAX)))
        }
        (true, ..) => no("logprobs is true or false, and needed for top_logprobs", "logprobs"),
        (false, ..) => no("logprobs is a number", "logprobs"),
    }
}

/// What an answer has to be like. `regex` is not OpenAI's: the whole answer matches it.
fn constraint(mut format: Map<String, Value>) -> Result<Option<Constraint>, Refusal> {
    let kind = format.remove("type").unwrap_or_default();
    let schema = |from: Option<Value>| from.filter(|schema| !schema.is_null());
    let constraint = match kind.as_str() {
        None | Some("text") => return Ok(None),
        // An object, or what some servers let a client say beside it.
        Some("json_object") => {
            let given = schema(format.remove("schema"));
            Constraint::JsonSchema(given.unwrap_or_else(|| json!({ "type": "object" })))
        }
        Some("json_schema") => {
            let mut inner = format.remove("json_schema").unwrap_or_default();
            let given = schema(inner.get_mut("schema").map(Value::take));
            match given.or_else(|| schema(format.remove("schema"))) {
                Some(schema) => Constraint::JsonSchema(schema),
                None => return no("a json_schema has a schema", "response_format"),
            }
        }
        Some("regex") => match format.remove("regex") {
            Some(Value::String(regex)) => Constraint::Regex(regex),
            _ => return no("a regex has its text", "response_format"),
        },
        Some(other) => {
            let other: String = other.chars().take(60).collect();
            return no(format!("response_format {other:?} is not known"), "response_format");
        }
    };
    Ok(Some(constraint))
}

/// A seed for a request that brings none.
fn fresh_seed(count: u64) -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |t| t.as_nanos() as u64).wrapping_add(count.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}
