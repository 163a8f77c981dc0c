//! Requests to the chat server: bodies, and the constraints in them.

use super::Target;
use super::models::tiny_model;
use super::values::device;
use chat::{App, Config};
use futensor::block_on;
use futensor_generate::Constraint;
use serde_json::json;
use std::sync::{Arc, OnceLock};
use tokio::runtime::Runtime;

fn app() -> &'static (Runtime, Arc<App>) {
    static APP: OnceLock<(Runtime, Arc<App>)> = OnceLock::new();
    APP.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let app = runtime.block_on(chat::start(device(), tiny_model(), Config::default()));
        (runtime, app.expect("a model"))
    })
}

/// Compiles a JSON schema, or a regular expression if the bytes are no JSON.
fn constraint(bytes: &[u8]) -> bool {
    let constraint = match serde_json::from_slice(bytes) {
        Ok(schema) => Constraint::JsonSchema(schema),
        Err(_) => Constraint::Regex(String::from_utf8_lossy(bytes).into_owned()),
    };
    let prepared = block_on(app().1.engine.prepare(constraint));
    if let Err(error) = &prepared {
        assert!(error.is_request(), "{error}");
    }
    prepared.is_ok()
}

pub const CONSTRAINT: Target = Target {
    name: "constraint",
    run: constraint,
    corpus: || {
        let schemas = [
            json!({ "type": "object", "properties": { "name": { "type": "string", "maxLength": 9 },
                "age": { "type": "integer", "minimum": 0, "maximum": 150, "multipleOf": 5 } },
                "required": ["name"], "additionalProperties": false }),
            json!({ "type": "array", "items": { "enum": ["a", 1, null] }, "minItems": 1,
                "maxItems": 5, "prefixItems": [true] }),
            json!({ "$defs": { "tree": { "type": "object", "properties": { "left": {
                "$ref": "#/$defs/tree" } } } }, "$ref": "#/$defs/tree" }),
            json!({ "anyOf": [{ "const": 1.5 }, { "type": ["string", "null"],
                "pattern": "^[a-z]{1,9}$", "format": "date" }], "oneOf": [true], "allOf": [{}] }),
        ];
        let regexes = ["[a-z]+(, [a-z]+)*", "(yes|no)", "\\d{3}-\\d{4}", "(?i)é.*[^\\x00-\\x7f]"];
        schemas
            .map(|schema| schema.to_string().into_bytes())
            .into_iter()
            .chain(regexes.map(Vec::from))
            .collect()
    },
    words: &[
        "{\"type\":\"object\"}",
        "\"$ref\":\"#\"",
        "\"allOf\":[",
        "\"anyOf\":[",
        "\"not\":",
        "true",
        "\"patternProperties\":{",
        "\"minLength\":99999",
        "\"maxItems\":99999",
        "{1,9999}",
        "((a*)*)*",
        "(a|b|ab)*c",
        "&",
        "~",
        "\\b",
        "(?=a)",
        ".{0,999}",
        "\"format\":\"date-time\"",
        "\"propertyNames\":",
        "\"contains\":",
        "\"multipleOf\":0.01",
        "\"minProperties\":99",
    ],
    inputs: 120,
    memory: (128 << 20, 256),
};

/// Turns a body into a request to the engine, or into a refusal with a client's status.
fn body(bytes: &[u8]) -> bool {
    let (runtime, app) = app();
    let is_chat = !bytes.windows(8).any(|w| w == b"\"prompt\"");
    let read = runtime.block_on(chat::ask::read(app, bytes.to_vec(), is_chat));
    match read {
        Ok((requests, asked)) => {
            assert!(requests.iter().all(|request| request.check().is_ok()));
            let prompts: usize = requests.iter().map(|request| request.prompt.len()).sum();
            assert_eq!(asked.prompt * asked.choices, prompts);
            true
        }
        Err(refusal) => {
            assert!([400, 404].contains(&refusal.status), "{refusal:?}");
            false
        }
    }
}

pub const BODY: Target = Target {
    name: "body",
    run: body,
    corpus: || {
        let messages = json!([{ "role": "system", "content": "Be kind." },
            { "role": "user", "content": [{ "type": "text", "text": "Hello" }], "name": "me" }]);
        let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
        let bodies = [
            json!({ "messages": messages, "max_tokens": 9, "temperature": 0.5, "top_p": 0.9,
                "top_k": 40, "seed": 1, "stop": ["\n", "end"], "stream": true,
                "stream_options": { "include_usage": true } }),
            json!({ "model": "tiny", "messages": messages, "logprobs": true, "top_logprobs": 2,
                "n": 1, "response_format": { "type": "json_schema",
                "json_schema": { "name": "a", "strict": true, "schema": schema } } }),
            json!({ "messages": messages, "response_format": { "type": "json_object" },
                "max_completion_tokens": 9, "user": "me" }),
            json!({ "messages": messages, "repetition_penalty": 1.1,
                "response_format": { "type": "regex", "regex": "[ab]{1,9}" } }),
            json!({ "prompt": "Once upon a time", "logprobs": 3, "stop": "x" }),
            json!({ "prompt": [1, 2, 3], "frequency_penalty": 0, "presence_penalty": 0.0 }),
            json!({ "prompt": ["a", [1, 2]], "n": 2, "logit_bias": { "3": -1 }, "min_p": 0.1 }),
            json!({ "messages": [{ "role": "assistant", "content": null, "refusal": null,
                "tool_calls": [{ "id": "a", "type": "function",
                "function": { "name": "f", "arguments": "{\"a\":1}" } }] }],
                "chat_template_kwargs": { "thinks": true } }),
        ];
        bodies.map(|body| body.to_string().into_bytes()).into()
    },
    words: &[
        "null",
        "true",
        "-1",
        "1e999",
        "1.5",
        "18446744073709551616",
        "\"\"",
        "\\u0000",
        "\\ud800",
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "\"role\"",
        "\"content\"",
        "\"text\"",
        "\"json_schema\"",
        "\"$ref\":\"#\"",
        "\"stop\":[",
        "\"logprobs\":",
        "<|im_start|>",
        "<|im_end|>",
    ],
    inputs: 800,
    memory: (128 << 20, 256),
};
