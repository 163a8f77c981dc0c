//! What a client may send: how large it is, and how long it may take.

use super::{agent, hello, model, serve};
use chat::Config;
use futensor::{CpuOptions, Device};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// On one thread: whatever held it would hold everybody.
pub fn the_servers_thread_is_free_while_constraints_are_compiled() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let device = Device::cpu_with(CpuOptions::default());
        let app = chat::start(&device, model(), Config::default()).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(chat::serve(app, listener, std::future::pending::<()>));
        // The longest time for which another task had no turn.
        let longest = Arc::new(std::sync::Mutex::new(Duration::ZERO));
        let seen = longest.clone();
        tokio::spawn(async move {
            let mut last = Instant::now();
            loop {
                tokio::task::yield_now().await;
                let mut longest = seen.lock().unwrap();
                *longest = (*longest).max(last.elapsed());
                last = Instant::now();
            }
        });
        for (k, path) in ["chat/", ""].into_iter().enumerate() {
            let properties: serde_json::Map<_, _> =
                (0..1_200).map(|at| (format!("key{k}{at}"), json!({ "type": "string" }))).collect();
            let schema = json!({ "type": "object", "properties": properties });
            let regex = format!("([a-z]{{1,200}}[0-9]{{1,200}}){{1,9}}{k}");
            for format in [
                json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } }),
                json!({ "type": "regex", "regex": regex }),
            ] {
                let more = json!({ "response_format": format, "max_tokens": 1 });
                let mut body = hello(more);
                if path.is_empty() {
                    body.as_object_mut().unwrap().remove("messages");
                    body["prompt"] = "a".into();
                }
                *longest.lock().unwrap() = Duration::ZERO;
                let begin = Instant::now();
                let url = format!("http://{address}/v1/{path}completions");
                let asked = tokio::task::spawn_blocking(move || {
                    let request = agent().post(url).content_type("application/json");
                    request.send(body.to_string()).unwrap().status().as_u16()
                });
                let (status, took) = (asked.await.unwrap(), begin.elapsed());
                let longest = *longest.lock().unwrap();
                // One that is compiled here is most of that time.
                let most = took / 2 + Duration::from_secs(1);
                assert!([200, 400].contains(&status) && longest < most, "{longest:?} of {took:?}");
            }
        }
    });
}

pub fn what_is_too_large_is_refused_with_words() {
    let server = serve();
    let format = |format: Value| hello(json!({ "response_format": format })).to_string();
    let names: Vec<String> = (0..100_000).map(|k| format!("name{k}")).collect();
    let large = json!({ "type": "json_schema", "json_schema": { "schema": { "enum": names } } });
    let wide: serde_json::Map<_, _> = (0..2049).map(|k| (k.to_string(), json!(true))).collect();
    let wide = json!({ "type": "json_schema",
        "json_schema": { "schema": { "properties": wide } } });
    for (path, body, status, words) in [
        ("chat/", format(large.clone()), 400, "more than 131072 bytes"),
        ("", json!({ "prompt": "a", "response_format": large }).to_string(), 400, "131072 bytes"),
        ("chat/", format(wide), 400, "an object of 2049 members"),
        (
            "chat/",
            format(json!({ "type": "regex", "regex": "a".repeat(8193) })),
            400,
            "more than 8192 bytes",
        ),
        ("chat/", hello(json!({ "stop": vec!["a"; 400_000] })).to_string(), 400, "400000 stop"),
        (
            "chat/",
            hello(json!({ "stop": "a".repeat(2_000_000) })).to_string(),
            400,
            "2000000 bytes",
        ),
        ("", json!({ "prompt": vec![1; 900_000] }).to_string(), 400, "900000 tokens"),
    ] {
        let (got, text, _) = server.post(&format!("/v1/{path}completions"), &body);
        assert!(got == status && text.contains(words), "{words}: {got} {text}");
    }
}
