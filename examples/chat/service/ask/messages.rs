//! Messages as clients write them, and as templates know them.

use super::fields::Fields;
use super::{App, Refusal};
use serde_json::{Map, Value, json};

fn no<T>(text: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::of_request(text, "messages"))
}

/// A conversation, as templates know it.
pub fn conversation(messages: Vec<Value>) -> Result<Vec<Value>, Refusal> {
    if messages.is_empty() {
        return no("there are no messages");
    }
    messages.into_iter().map(message).collect()
}

/// An answer of this server's, sent back to it, is a message as well.
fn message(message: Value) -> Result<Value, Refusal> {
    let Some(mut fields) = Fields::of(message) else { return no("a message is no object") };
    let Some(role) = fields.text("role")? else { return no("a message has no role") };
    let calls = fields.list("tool_calls")?.unwrap_or_default();
    let refused = fields.text("refusal")?;
    let text = match fields.take("content") {
        Some(content) => text(content)?,
        // An assistant who calls tools, or refuses, says nothing else.
        None if !calls.is_empty() => String::new(),
        None => match refused {
            Some(refused) => refused,
            None => return no("a message has no text"),
        },
    };
    // `developer` is what `system` was called before.
    let role = if role == "developer" { "system".into() } else { role };
    let mut plain = json!({ "role": role, "content": text });
    if !calls.is_empty() {
        plain["tool_calls"] = calls.into_iter().map(call).collect::<Result<_, _>>()?;
    }
    for name in ["name", "tool_call_id", "reasoning_content"] {
        if let Some(text) = fields.text(name)?.filter(|text| !text.is_empty()) {
            plain[name] = text.into();
        }
    }
    // What was heard or quoted is part of the text.
    let _ = (fields.take("annotations"), fields.take("id"), fields.take("type"));
    fields.end()?;
    Ok(plain)
}

/// A call of a tool: templates want its arguments as an object, clients send them as text.
fn call(mut call: Value) -> Result<Value, Refusal> {
    let arguments = &mut call["function"]["arguments"];
    if let Value::String(text) = arguments {
        match serde_json::from_str(text) {
            Ok(value @ Value::Object(_)) => *arguments = value,
            _ if text.is_empty() => *arguments = json!({}),
            _ => return no("the arguments of a tool's call are no JSON object"),
        }
    }
    match call["function"]["name"].is_string() {
        true => Ok(call),
        false => no("a tool's call has no function with a name"),
    }
}

fn text(content: Value) -> Result<String, Refusal> {
    let parts = match content {
        Value::String(text) => return Ok(text),
        Value::Array(parts) => parts,
        _ => return no("a message has no text"),
    };
    let mut all = String::new();
    for part in parts {
        let kind = part["type"].as_str().unwrap_or_default();
        let text = match kind {
            "text" | "input_text" | "output_text" => &part["text"],
            "refusal" => &part["refusal"],
            _ => return no(format!("a message has other parts than text: {kind:?}")),
        };
        match text.as_str() {
            Some(text) => all.push_str(text),
            None => return no("a part of a message has no text"),
        }
    }
    Ok(all)
}

/// The text of a conversation, as the model knows it.
pub async fn rendered(
    app: &App,
    messages: Vec<Value>,
    more: Map<String, Value>,
) -> Result<String, Refusal> {
    match app.engine.model().template() {
        Some(template) => Ok(template.render_with(messages, more).await?),
        None => no("the model has no chat template: ask /v1/completions"),
    }
}
