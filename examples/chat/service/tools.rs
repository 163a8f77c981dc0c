//! Tools: how a model is told of them, and its calls in an answer.
//!
//! The model's template says how calls are written. A model whose template knows no tools is told
//! of them by a system message. Either way the grammar holds what begins as a call to the schema of
//! the tool that it names.

use super::ask::Refusal;
use futensor_generate::{Constraint, Tagged};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

const TOOLS_MAX: usize = 128;

/// How calls are written in an answer: JSON between two marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Form {
    pub open: &'static str,
    pub close: &'static str,
    pub json: Json,
}

/// What stands between the marks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Json {
    /// A call, with this name for its arguments.
    One(&'static str),
    /// A list of such calls.
    List(&'static str),
    /// A call's name, [`ARGUMENTS`], and its arguments.
    Named,
}

/// Hermes', which Qwen and others have as well.
const HERMES: Form =
    Form { open: "<tool_call>\n", close: "\n</tool_call>", json: Json::One("arguments") };
/// Mistral's, and that of its later models.
const MISTRAL: Form = Form { open: "[TOOL_CALLS]", close: "", json: Json::List("arguments") };
const MISTRAL_NAMED: Form = Form { json: Json::Named, ..MISTRAL };
/// Llama 3's: the answer is the call.
const BARE: Form = Form { open: "", close: "", json: Json::One("parameters") };

/// What stands between a call's name and its arguments; before it may be a number of the call's.
const ARGUMENTS: &str = "[ARGS]";
const NUMBER: &str = "[CALL_ID]";

/// A call as a model writes it; its arguments are handed on to the letter.
#[derive(Deserialize)]
struct Call<'a> {
    name: String,
    #[serde(borrow, alias = "parameters")]
    arguments: &'a RawValue,
}

/// What a request says of tools.
pub struct Tools {
    /// As clients send them, which templates know as well.
    pub list: Vec<Value>,
    pub form: Form,
    /// The template does not know of them.
    pub told: bool,
    constraint: Tagged,
}

fn no<T>(text: impl Into<String>, param: &str) -> Result<T, Refusal> {
    Err(Refusal::of_request(text, param).code("invalid_value"))
}

/// How a model with this template writes calls, and whether the template knows tools.
fn form(template: &str) -> (Form, bool) {
    let says = |word: &str| template.contains(word);
    match () {
        () if !says("tools") => (HERMES, false),
        () if says(MISTRAL.open) && says(ARGUMENTS) => (MISTRAL_NAMED, true),
        () if says(MISTRAL.open) => (MISTRAL, true),
        () if says("\"parameters\"") && !says("<tool_call>") => (BARE, true),
        () => (HERMES, true),
    }
}

impl Tools {
    /// Of a body's `tools` and `tool_choice`; none where there are none, or none is to be called.
    pub fn read(
        list: Vec<Value>,
        choice: Option<Value>,
        template: &str,
    ) -> Result<Option<Tools>, Refusal> {
        let choice = choice.unwrap_or_else(|| "auto".into());
        let named = choice["function"]["name"].as_str();
        let free = match choice.as_str() {
            Some("none") => return Ok(None),
            Some("auto") => true,
            Some("required") => false,
            None if named.is_some() && choice["type"] == "function" => false,
            _ => return no("tool_choice is none, auto, required, or a function", "tool_choice"),
        };
        if list.is_empty() {
            return match free {
                true => Ok(None),
                false => no("tool_choice wants a tool, and there are none", "tool_choice"),
            };
        }
        if list.len() > TOOLS_MAX {
            return no(format!("{} tools, of {TOOLS_MAX} at most", list.len()), "tools");
        }
        let (form, knows) = form(template);
        let mut calls = Vec::new();
        for tool in &list {
            let Some(name) =
                tool["function"]["name"].as_str().filter(|_| tool["type"] == "function")
            else {
                return no("a tool is a function with a name", "tools");
            };
            if named.is_none_or(|named| named == name) {
                calls.push((name, &tool["function"]["parameters"]));
            }
        }
        if calls.is_empty() {
            return no(format!("there is no tool {:?}", named.unwrap_or("")), "tool_choice");
        }
        let calls = form.grammar(&calls);
        let (open, close) = (form.open.into(), form.close.into());
        let constraint = Tagged { open, calls, close, free };
        Ok(Some(Tools { list, form, told: !knows, constraint }))
    }

    pub fn constraint(&self) -> Constraint {
        Constraint::Tagged(self.constraint.clone())
    }

    /// Says in words what the template does not: in the system message, or in one of its own.
    pub fn tell(&self, messages: &mut Vec<Value>) {
        let list: Vec<String> = self.list.iter().map(Value::to_string).collect();
        let text = format!(
            "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou \
             are provided with function signatures within <tools></tools> XML tags:\n<tools>\n{}\n\
             </tools>\n\nFor each function call, return a json object with function name and \
             arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{{\"name\": \
             <function-name>, \"arguments\": <args-json-object>}}\n</tool_call>",
            list.join("\n")
        );
        match messages.first_mut().filter(|first| first["role"] == "system") {
            Some(first) => {
                let before = first["content"].as_str().unwrap_or_default();
                first["content"] = format!("{before}\n\n{text}").into();
            }
            None => messages.insert(0, json!({ "role": "system", "content": text })),
        }
    }
}

/// Messages with calls and their results, for a template that knows neither.
pub fn in_words(messages: &mut [Value]) {
    for message in messages {
        if let Some(Value::Array(calls)) =
            message.as_object_mut().and_then(|m| m.remove("tool_calls"))
        {
            let mut text = message["content"].as_str().unwrap_or_default().to_owned();
            for call in calls {
                let (name, arguments) = (&call["function"]["name"], &call["function"]["arguments"]);
                let call = json!({ "name": name, "arguments": arguments });
                text.push_str(&format!("{}{call}{}", HERMES.open, HERMES.close));
            }
            message["content"] = text.into();
        }
        if message["role"] == "tool" {
            let result = message["content"].as_str().unwrap_or_default();
            let text = format!("<tool_response>\n{result}\n</tool_response>");
            *message = json!({ "role": "user", "content": text });
        }
    }
}

/// The schema of a tool's arguments, which stands at some place of another.
fn arguments(parameters: &Value, at: &str) -> Value {
    match parameters.is_null() {
        true => json!({ "type": "object", "properties": {}, "additionalProperties": false }),
        false => moved(parameters, at),
    }
}

/// A schema whose references to itself begin at another place. A body is not nested deep.
fn moved(schema: &Value, to: &str) -> Value {
    match schema {
        Value::Object(members) => {
            let one = |(key, value): (&String, &Value)| {
                let value = match value.as_str().and_then(|text| text.strip_prefix('#')) {
                    Some(path) if key == "$ref" => format!("{to}{path}").into(),
                    _ => moved(value, to),
                };
                (key.clone(), value)
            };
            Value::Object(members.iter().map(one).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(|item| moved(item, to)).collect(),
        other => other.clone(),
    }
}

impl Form {
    /// What may stand between the marks: names, and JSON by schemas.
    fn grammar(self, tools: &[(&str, &Value)]) -> Vec<(String, Value)> {
        let (key, list) = match self.json {
            Json::One(key) => (key, false),
            Json::List(key) => (key, true),
            Json::Named => {
                let one = |(name, parameters): &(&str, &Value)| {
                    (format!("{name}{ARGUMENTS}"), arguments(parameters, "#"))
                };
                return tools.iter().map(one).collect();
            }
        };
        let root = if list { "#/items" } else { "#" };
        let one = |(at, (name, parameters)): (usize, &(&str, &Value))| {
            let parameters = arguments(parameters, &format!("{root}/anyOf/{at}/properties/{key}"));
            json!({
                "type": "object",
                "properties": { "name": { "const": name }, key: parameters },
                "required": ["name", key],
                "additionalProperties": false,
            })
        };
        let any = json!({ "anyOf": tools.iter().enumerate().map(one).collect::<Vec<_>>() });
        let schema = match list {
            true => json!({ "type": "array", "items": any, "minItems": 1 }),
            false => any,
        };
        vec![(String::new(), schema)]
    }

    /// How much of a text is certainly no part of a call.
    pub fn plain(&self, text: &str) -> usize {
        if self.open.is_empty() {
            let begin = text.trim_start();
            return if begin.is_empty() || begin.starts_with('{') { 0 } else { text.len() };
        }
        let last = text.len().saturating_sub(self.open.len());
        let begins = |at: &usize| *at >= last && self.open.starts_with(&text[*at..]);
        text.find(self.open)
            .or_else(|| text.char_indices().map(|(at, _)| at).find(begins))
            .unwrap_or(text.len())
    }

    /// The calls in a text, each with its arguments, and what else it says. One that was cut off is
    /// a part of the text.
    pub fn calls(&self, text: &str) -> (String, Vec<(String, String)>) {
        let (mut rest, mut plain, mut calls) = (text, String::new(), Vec::new());
        while let Some(at) = rest.find(self.open) {
            let Some((found, behind)) = read(&rest[at + self.open.len()..]) else { break };
            let Some(behind) = behind.strip_prefix(self.close) else { break };
            plain.push_str(&rest[..at]);
            calls.extend(found);
            rest = behind;
            if self.open.is_empty() {
                break;
            }
        }
        plain.push_str(rest);
        (plain, calls)
    }
}

/// What a text begins with: a call, a list of them, or one behind its name; and what follows.
fn read(text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let one = |call: Call| (call.name, call.arguments.get().to_owned());
    match text.trim_start().chars().next()? {
        '{' => first::<Call>(text).map(|(call, rest)| (vec![one(call)], rest)),
        '[' => first::<Vec<Call>>(text)
            .map(|(calls, rest)| (calls.into_iter().map(one).collect(), rest)),
        _ => {
            let (name, json) = text.split_once(ARGUMENTS)?;
            let name = name.split(NUMBER).next().unwrap_or(name).trim();
            let (arguments, rest) = first::<&RawValue>(json)?;
            Some((vec![(name.to_owned(), arguments.get().to_owned())], rest))
        }
    }
}

/// The JSON that a text begins with, and what follows.
fn first<'a, T: Deserialize<'a>>(text: &'a str) -> Option<(T, &'a str)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let value = values.next()?.ok()?;
    let rest = &text[values.byte_offset()..];
    Some((value, rest))
}
