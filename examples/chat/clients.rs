//! What clients send beside what they ask for, and what they expect to hear.
//!
//! `clients.py` has a line for each expectation of OpenAI's own client.

use super::{Server, agent, hello, serve, serve_with};
use chat::Config;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn content(server: &Server, more: Value) -> String {
    let (status, answer) = server.ask("/v1/chat/completions", &hello(more.clone()));
    assert_eq!(status, 200, "{more}: {answer}");
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

pub fn what_changes_no_answer_is_ignored() {
    let server = serve();
    let plain = content(&server, json!({}));
    for more in [
        json!({ "store": true, "metadata": { "a": "b" }, "service_tier": "auto", "user": "me" }),
        json!({ "tools": [], "tool_choice": null, "functions": null, "logit_bias": {} }),
        json!({ "stop": null, "stop": [], "seed": 5, "top_k": -1, "min_p": 0, "n": null }),
        json!({ "prompt_cache_key": "a", "safety_identifier": "b", "cache_prompt": true }),
        json!({ "tools": [{ "type": "function", "function": { "name": "a" } }],
            "tool_choice": "none" }),
        json!({ "tool_choice": "none", "modalities": ["text"], "response_format": null }),
        json!({ "stream_options": null, "logprobs": false, "top_logprobs": 0, "echo": false }),
        json!({ "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1.0 }),
        json!({ "anything": null, "else": [], "at": {}, "all": "" }),
        json!({ "messages": [{ "role": "user", "name": null,
            "content": [{ "type": "text", "text": "He" }, { "type": "text", "text": "llo" }] }] }),
    ] {
        assert_eq!(content(&server, more.clone()), plain, "{more}");
    }
    // The server's own answer, as a client's library hands it back.
    let (_, first) = server.ask("/v1/chat/completions", &hello(json!({})));
    let mut said = first["choices"][0]["message"].clone();
    for (name, value) in [
        ("refusal", Value::Null),
        ("annotations", json!([])),
        ("tool_calls", Value::Null),
        ("function_call", Value::Null),
        ("audio", Value::Null),
        ("reasoning_content", Value::Null),
    ] {
        said[name] = value;
    }
    let turn = |said: Value| {
        let user = json!({ "role": "user", "content": "Hello" });
        let system = json!({ "role": "developer", "content": "Be kind." });
        content(&server, json!({ "messages": [system, user, said, user] }))
    };
    let bare = json!({ "role": "assistant", "content": said["content"] });
    assert_eq!(turn(said), turn(bare));
    // What would change it is refused by its name.
    for (more, name) in [
        (json!({ "best_of": 3 }), "best_of"),
        (json!({ "suffix": "a" }), "suffix"),
        (json!({ "modalities": ["audio"] }), "modalities"),
        (json!({ "web_search_options": { "a": 1 } }), "web_search_options"),
        (json!({ "min_tokens": 4 }), "min_tokens"),
        (json!({ "max_tokens": "many" }), "max_tokens"),
        (json!({ "temperature": "warm" }), "temperature"),
        (json!({ "logit_bias": { "a": 1 } }), "logit_bias"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages",
        ),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &hello(more.clone()));
        let error = &answer["error"];
        assert!(status == 400 && error["param"] == name, "{more}: {status} {answer}");
    }
}

pub fn several_answers_are_those_that_one_would_get_alone() {
    let server = serve();
    let texts = |more: Value| -> Vec<String> {
        let mut body = json!({ "max_tokens": 8, "seed": 3, "temperature": 1.0 });
        more.as_object().unwrap().iter().for_each(|(k, v)| body[k] = v.clone());
        let (status, answer) = server.ask("/v1/completions", &body);
        assert_eq!(status, 200, "{answer}");
        let choices = answer["choices"].as_array().unwrap();
        assert!(choices.iter().enumerate().all(|(k, choice)| choice["index"] == k), "{answer}");
        let tokens = answer["usage"]["completion_tokens"].as_u64().unwrap() as usize;
        assert!(tokens <= 8 * choices.len() && tokens > 4 * choices.len(), "{answer}");
        choices.iter().map(|choice| choice["text"].as_str().unwrap().to_owned()).collect()
    };
    let three = texts(json!({ "prompt": "a", "n": 3 }));
    let distinct: std::collections::BTreeSet<&String> = three.iter().collect();
    assert_eq!(distinct.len(), 3, "{three:?}");
    assert_eq!(texts(json!({ "prompt": "a" }))[0], three[0]);
    let several = texts(json!({ "prompt": ["a", "b", "c"], "n": 2 }));
    assert_eq!(several.len(), 6);
    assert_eq!((&several[..2], &several[2]), (&three[..2], &texts(json!({ "prompt": "b" }))[0]));
    assert_eq!(texts(json!({ "prompt": [[100], [101, 102]] })).len(), 2);
    // Streamed, each is told with its number, and the end comes behind the last of them.
    let body = hello(json!({ "n": 2, "stream": true,
        "stream_options": { "include_usage": true } }));
    let (_, text, _) = server.post("/v1/chat/completions", &body.to_string());
    let events = super::events(&text);
    let (_, whole) = server.ask("/v1/chat/completions", &hello(json!({ "n": 2 })));
    for k in 0..2 {
        let of = |e: &&Value| e["choices"][0]["index"] == k;
        let delta = |e: &Value| e["choices"][0]["delta"]["content"].as_str().map(String::from);
        let told: String = events.iter().filter(of).filter_map(delta).collect();
        assert_eq!(told, whole["choices"][k]["message"]["content"].as_str().unwrap());
    }
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
    assert!(events[..events.len() - 1].iter().all(|e| e["usage"].is_null()));
}

pub fn an_error_has_openais_code() {
    let server = serve();
    let long = json!({ "prompt": "a".repeat(600) });
    for (path, body, status, code, param) in [
        ("chat/", hello(json!({ "model": "no" })), 404, "model_not_found", "model"),
        ("chat/", hello(json!({ "colour": 1 })), 400, "unknown_parameter", "colour"),
        ("chat/", hello(json!({ "n": "two" })), 400, "invalid_type", "n"),
        ("", long, 400, "context_length_exceeded", "prompt"),
    ] {
        let (got, answer) = server.ask(&format!("/v1/{path}completions"), &body);
        let error = &answer["error"];
        assert_eq!((got, &error["code"], &error["param"]), (status, &json!(code), &json!(param)));
    }
    // More than there is room for is as much as there is room for.
    let (status, answer) = server.ask(
        "/v1/completions",
        &json!({ "prompt": "a", "max_tokens": 9999,
        "ignore_eos": true }),
    );
    assert_eq!((status, &answer["usage"]["total_tokens"]), (200, &json!(512)), "{answer}");
    let (status, text) = server.get("/v1/models/tiny");
    let model: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, &model["id"], &model["object"]), (200, &json!("tiny"), &json!("model")));
    assert_eq!(server.get("/v1/models/no/such").0, 404);
    assert_eq!(server.get("/health").0, 200);
    assert_eq!(server.get("/v1/completions").0, 405);
}

pub fn a_key_and_an_origin_let_in_whom_they_should() {
    let origins = vec!["https://chat.example".to_owned()];
    let server = serve_with(Config { key: Some("secret".into()), origins, ..Config::default() });
    let models = |key: &str| {
        let request = agent().get(server.url("/v1/models")).header("authorization", key);
        request.call().unwrap()
    };
    for wrong in ["", "Bearer", "Bearer ", "Bearer secre", "Bearer secrets", "Basic secret"] {
        let mut response = models(wrong);
        let text = response.body_mut().read_to_string().unwrap();
        assert!(response.status() == 401 && text.contains("invalid_api_key"), "{wrong}: {text}");
    }
    let response = models("Bearer secret");
    assert_eq!(response.status(), 200);
    assert!(response.headers()["x-request-id"].to_str().unwrap().starts_with("req-"));
    let named = agent().get(server.url("/health")).header("x-request-id", "mine").call().unwrap();
    assert_eq!(
        (named.status().as_u16(), &named.headers()["x-request-id"]),
        (200, &"mine".parse().unwrap())
    );
    let preflight = |origin: &str| {
        let request =
            ureq::http::Request::builder().method("OPTIONS").uri(server.url("/v1/models"));
        let request = request.header("origin", origin);
        let request = request
            .header("access-control-request-method", "POST")
            .header("access-control-request-headers", "authorization,x-stainless-os");
        let response = agent().run(request.body(()).unwrap()).unwrap();
        let head = |name: &str| Some(response.headers().get(name)?.to_str().unwrap().to_owned());
        assert_eq!(response.status(), 204);
        (head("access-control-allow-origin"), head("access-control-allow-headers"))
    };
    let headers = Some("authorization,x-stainless-os".to_owned());
    for origin in
        ["https://chat.example", "http://localhost:3000", "http://[::1]:1", "http://127.0.0.1"]
    {
        assert_eq!(preflight(origin), (Some(origin.to_owned()), headers.clone()));
    }
    for origin in
        ["https://evil.example", "http://localhost.evil.example", "null", "http://a@localhost"]
    {
        assert_eq!(preflight(origin), (None, None), "{origin}");
    }
}

/// Lists of calls, and calls behind their names, whole and piece by piece.
fn calls_are_found_as_mistral_writes_them(tool: &Value) {
    let form = |template: &str| {
        chat::tools::Tools::read(vec![tool.clone()], None, template).unwrap().unwrap().form
    };
    let list = form("{{ tools }} [TOOL_CALLS] ");
    let named = form("{{ tools }} [TOOL_CALLS]{{ name }}[ARGS]");
    let of = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
    let (a, b) = (of("add", "{\"a\": 1}"), of("no", "{}"));
    for (form, text, plain, calls) in [
        (
            list,
            "[TOOL_CALLS] [{\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
            "",
            vec![a.clone()],
        ),
        (
            list,
            "Yes. [TOOL_CALLS][{\"name\":\"add\",\"arguments\":{\"a\": 1}}, {\"name\":\"no\", \
             \"arguments\":{}, \"id\": \"x\"}]",
            "Yes. ",
            vec![a.clone(), b.clone()],
        ),
        (named, "[TOOL_CALLS]add[ARGS]{\"a\": 1}[TOOL_CALLS]no[CALL_ID]12[ARGS]{}", "", vec![a, b]),
        (named, "[TOOL_CALLS]add[ARGS]{\"a\":", "[TOOL_CALLS]add[ARGS]{\"a\":", vec![]),
        (list, "[1] and [TOOL", "[1] and [TOOL", vec![]),
    ] {
        assert_eq!(form.calls(text), (plain.to_owned(), calls), "{text}");
        // Nothing of a call is told before it is known to be none.
        let begin = text.find("[TOOL").unwrap_or(text.len());
        (0..=text.len()).for_each(|n| assert!(form.plain(&text[..n]) <= begin, "{n} of {text}"));
    }
}

pub fn a_call_is_of_its_tools_schema() {
    let server = serve();
    let tool = |name: &str| {
        let number = json!({ "$ref": "#/$defs/number" });
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": { "a": number, "b": number }, "required": ["a", "b"],
            "additionalProperties": false, "$defs": { "number": { "type": "integer" } } } } })
    };
    let body = |choice: Value| {
        hello(json!({ "tools": [tool("add"), tool("multiply")], "tool_choice": choice,
            "max_tokens": 300, "temperature": 2.0,
            // No line break, tab or space but where nothing else may be.
            "logit_bias": { "13": -100, "12": -100, "35": -100 } }))
    };
    let right = |call: &Value, names: &[&str]| {
        let text = call["function"]["arguments"].as_str().unwrap();
        let arguments: Value = serde_json::from_str(text).unwrap();
        assert!(names.contains(&call["function"]["name"].as_str().unwrap()), "{call}");
        assert!(arguments["a"].is_number() && arguments["b"].is_number(), "{call}");
        assert!(call["id"].is_string(), "{call}");
    };
    let multiply = json!({ "type": "function", "function": { "name": "multiply" } });
    for (choice, names) in
        [(json!("required"), &["add", "multiply"][..]), (multiply, &["multiply"])]
    {
        let mut body = body(choice);
        let (status, answer) = server.ask("/v1/chat/completions", &body);
        let first = &answer["choices"][0];
        assert_eq!((status, &first["finish_reason"]), (200, &json!("tool_calls")), "{answer}");
        assert!(first["message"]["content"].is_null(), "{answer}");
        right(&first["message"]["tool_calls"][0], names);
        body["stream"] = true.into();
        let (_, text, _) = server.post("/v1/chat/completions", &body.to_string());
        let events = super::events(&text);
        let last = &events.last().unwrap()["choices"][0];
        assert_eq!(last["finish_reason"], "tool_calls", "{text}");
        let of = |calls: &Value| calls[0]["function"].clone();
        assert_eq!(of(&last["delta"]["tool_calls"]), of(&first["message"]["tool_calls"]));
        let said = |e: &Value| e["choices"][0]["delta"]["content"] != "";
        assert!(!events.iter().any(said), "{text}");
    }
    // The call and what came of it, as the client hands them back.
    let call = json!({ "id": "a", "type": "function",
        "function": { "name": "add", "arguments": "{\"a\":1,\"b\":2}" } });
    let messages = json!([{ "role": "user", "content": "Hello" },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "a", "content": "3" }]);
    let before = content(&server, json!({ "messages": messages }));
    let words = "<tool_call>\n{\"name\":\"add\",\"arguments\":{\"a\":1,\"b\":2}}\n</tool_call>";
    let plain = json!([{ "role": "user", "content": "Hello" },
        { "role": "assistant", "content": words },
        { "role": "user", "content": "<tool_response>\n3\n</tool_response>" }]);
    assert_eq!(content(&server, json!({ "messages": plain })), before);
    calls_are_found_as_mistral_writes_them(&tool("add"));
    // A model whose template knows no tools is told of them in words.
    let list = vec![tool("add")];
    for before in [vec![], vec![json!({ "role": "system", "content": "Be kind." })]] {
        let tools = chat::tools::Tools::read(list.clone(), None, "").unwrap().unwrap();
        let (mut messages, count) = (before.clone(), before.len().max(1));
        tools.tell(&mut messages);
        let text = messages[0]["content"].as_str().unwrap();
        assert!(tools.told && messages.len() == count && text.contains("\"name\":\"add\""));
        assert!(before.is_empty() || text.starts_with("Be kind.\n\n# Tools"), "{text}");
    }
    for (more, name) in [
        (json!({ "tools": [{ "type": "web_search" }] }), "tools"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (
            json!({ "tools": [tool("add")], "tool_choice": { "type": "function",
            "function": { "name": "no" } } }),
            "tool_choice",
        ),
        (
            json!({ "tools": [tool("add")], "response_format": { "type": "json_object" } }),
            "response_format",
        ),
    ] {
        let (status, answer) = server.ask("/v1/chat/completions", &hello(more));
        assert!(status == 400 && answer["error"]["param"] == name, "{answer}");
    }
}

/// A Python that has OpenAI's client.
pub fn python() -> Option<PathBuf> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let python = std::env::var_os("FUTENSOR_PYTHON").map_or("python3".into(), PathBuf::from);
        let ran = Command::new(&python).args(["-c", "import openai"]).output();
        ran.is_ok_and(|ran| ran.status.success()).then_some(python)
    };
    FOUND.get_or_init(find).clone()
}

/// A Node that has OpenAI's client, in this folder.
pub fn node_modules() -> Option<PathBuf> {
    std::env::var_os("FUTENSOR_NODE_MODULES").map(PathBuf::from)
}

/// Runs a script beside this file, which says what does not hold.
fn run(program: impl AsRef<std::ffi::OsStr>, script: &str) {
    let server = serve();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let ran = Command::new(program)
        .arg(script)
        .arg(server.url(""))
        .env_remove("HTTP_PROXY")
        .env_remove("http_proxy")
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .unwrap();
    assert!(
        ran.status.success(),
        "{}{}",
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr)
    );
}

pub fn openais_own_clients_speak_to_it() {
    run(python().expect("ignored without it"), "clients.py");
}

pub fn openais_npm_client_speaks_to_it() {
    assert!(node_modules().is_some(), "ignored without it");
    run("node", "clients.mjs");
}
