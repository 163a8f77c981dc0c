//! The chat example with a real HTTP client, on a small model of random weights that the tests
//! write as a GGUF file.
//!
//! OpenAI's own clients speak to it where `FUTENSOR_PYTHON`, or `python3` on the path, has the
//! package `openai`, and where the folder `FUTENSOR_NODE_MODULES` has npm's; a browser opens the
//! page where there is one. Without them those trials are reported as ignored.

#[path = "../../tests/support/browser.rs"]
mod browser;
mod clients;
mod limits;
mod lines;
mod pages;
mod tiny;

use browser::Browser;
use chat::{App, Config};
use clients::*;
use futensor::{CpuOptions, Device};
use futensor_generate::Options;
use libtest_mimic::{Arguments, Trial};
use limits::*;
use lines::*;
use pages::*;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tiny::model;

/// A server; it ends with this.
struct Server {
    address: SocketAddr,
    app: Arc<App>,
    end: Option<tokio::sync::mpsc::UnboundedSender<()>>,
    served: Option<tokio::task::JoinHandle<chat::Outcome<()>>>,
    runtime: tokio::runtime::Runtime,
}

fn serve_with(config: Config) -> Server {
    serve_on(Device::cpu_with(CpuOptions::default()), config)
}

fn serve_on(device: Device, config: Config) -> Server {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let path = model();
    let (address, app, end, served) = runtime.block_on(async {
        let app = chat::start(&device, path, config).await.unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (end, asked) = tokio::sync::mpsc::unbounded_channel();
        let asked = Arc::new(tokio::sync::Mutex::new(asked));
        let asked = move || {
            let asked = asked.clone();
            async move {
                // Nobody asks any more: it goes on.
                if asked.lock().await.recv().await.is_none() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let served = tokio::spawn(chat::serve(app.clone(), listener, asked));
        (address, app, end, served)
    });
    Server { address, app, end: Some(end), served: Some(served), runtime }
}

fn serve() -> Server {
    serve_with(Config::default())
}

impl Server {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn post(&self, path: &str, body: &str) -> (u16, String, Option<String>) {
        let mut response =
            agent().post(self.url(path)).content_type("application/json").send(body).unwrap();
        let again = response.headers().get("retry-after").map(|v| v.to_str().unwrap().to_owned());
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap(), again)
    }

    fn ask(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, text, _) = self.post(path, &body.to_string());
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut response = agent().get(self.url(path)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// A stream that has begun, and is read by nobody.
    fn begin(&self, tokens: usize) -> TcpStream {
        let body = json!({ "prompt": "a", "max_tokens": tokens, "stream": true, "response_format":
            { "type": "regex", "regex": "[a-z]{400}" } });
        let body = body.to_string();
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: \
            application/json\r\nconnection: close";
        write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        stream
    }

    fn until(&self, is_so: impl Fn(&futensor_generate::Stats) -> bool) {
        let begin = Instant::now();
        while !is_so(&self.app.engine.stats()) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", self.app.engine.stats());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(50))).build().into()
}

/// The events of a stream; the last says that it is the last.
fn events(text: &str) -> Vec<Value> {
    let mut events: Vec<&str> = text.split("\n\n").collect();
    assert_eq!(events.pop(), Some(""));
    assert_eq!(events.pop(), Some("data: [DONE]"));
    events
        .iter()
        .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
        .collect()
}

fn hello(more: Value) -> Value {
    let mut body = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "Hello" }],
        "max_tokens": 20, "seed": 5 });
    more.as_object().unwrap().iter().for_each(|(key, value)| body[key] = value.clone());
    body
}

fn a_chat_is_answered_in_one_piece_and_streamed_alike() {
    let server = serve();
    let (status, whole) = server.ask("/v1/chat/completions", &hello(json!({})));
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    assert_eq!(
        (&whole["object"], &choice["message"]["role"]),
        (&json!("chat.completion"), &json!("assistant"))
    );
    // `<|begin|><|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n` with a token a byte: it
    // begins once, by the template, and a text by the tokenizer.
    assert_eq!(whole["usage"]["prompt_tokens"], 25);
    let (_, text) = server.ask("/v1/completions", &json!({ "prompt": "Hello", "max_tokens": 1 }));
    assert_eq!(text["usage"]["prompt_tokens"], 6);
    let body = hello(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let (status, text, _) = server.post("/v1/chat/completions", &body.to_string());
    let events = events(&text);
    let pieces = events.iter().filter_map(|e| e["choices"][0]["delta"]["content"].as_str());
    assert_eq!((status, &json!(pieces.collect::<String>())), (200, &choice["message"]["content"]));
    assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
    let last = &events[events.len() - 2]["choices"][0];
    assert_eq!(last["finish_reason"], choice["finish_reason"]);
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
}

fn a_text_is_gone_on_with_and_its_tokens_are_told() {
    let server = serve();
    let body = json!({ "prompt": [10, 20, 30], "max_tokens": 4, "temperature": 0, "logprobs": 2 });
    let (status, answer) = server.ask("/v1/completions", &body);
    assert_eq!(status, 200, "{answer}");
    let logprobs = &answer["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 4, "{logprobs}");
    }
    let of = |k: usize| logprobs["token_logprobs"][k].as_f64().unwrap();
    assert!((0..4).all(|k| of(k) < 0.0));
    assert_eq!(
        answer["usage"],
        json!({ "prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7 })
    );
    let body = hello(json!({ "logprobs": true, "top_logprobs": 3, "max_tokens": 2 }));
    let (_, answer) = server.ask("/v1/chat/completions", &body);
    let content = answer["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert!(
        content.len() == 2 && content[0]["top_logprobs"].as_array().unwrap().len() == 3,
        "{answer}"
    );
}

fn an_answer_is_of_the_schema_that_is_asked_for() {
    let server = serve();
    let schema = json!({ "type": "object",
        "properties": { "ok": { "type": "boolean" } }, "required": ["ok"],
        "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let (status, answer) = server.ask(
        "/v1/chat/completions",
        &hello(json!({ "response_format": format, "max_tokens": 200 })),
    );
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    let value: Value = serde_json::from_str(text).unwrap();
    assert!(value["ok"].is_boolean(), "{text}");
}

fn what_is_wrong_is_said() {
    let server = serve();
    let long = "a".repeat(600);
    for (path, body, status, words) in [
        ("chat/", "{".to_string(), 400, "EOF"),
        ("chat/", "[]".to_string(), 400, "no object"),
        ("chat/", hello(json!({ "colour": "red" })).to_string(), 400, "unknown field `colour`"),
        ("chat/", hello(json!({ "model": "gpt-4" })).to_string(), 404, "no model \\\"gpt-4\\\""),
        ("chat/", hello(json!({ "messages": [] })).to_string(), 400, "no messages"),
        ("chat/", json!({ "prompt": "a" }).to_string(), 400, "messages are needed"),
        ("chat/", hello(json!({ "n": 0 })).to_string(), 400, "0 answers"),
        ("chat/", hello(json!({ "n": 200 })).to_string(), 400, "200 answers"),
        ("chat/", hello(json!({ "temperature": -1 })).to_string(), 400, "temperature"),
        ("chat/", hello(json!({ "max_tokens": 0 })).to_string(), 400, "no tokens"),
        ("chat/", hello(json!({ "top_logprobs": 3 })).to_string(), 400, "logprobs"),
        (
            "chat/",
            hello(json!({ "response_format": { "type": "regex", "regex": "(" } })).to_string(),
            400,
            "constraint",
        ),
        ("", json!({ "prompt": [] }).to_string(), 400, "the prompt is empty"),
        ("", json!({ "prompt": ["a", 1] }).to_string(), 400, "a prompt is a text"),
        ("", json!({ "prompt": [9999] }).to_string(), 400, "token 9999"),
        (
            "",
            json!({ "prompt": long }).to_string(),
            400,
            "601 tokens and 1 new one are more than the 512",
        ),
        ("", json!({ "messages": [] }).to_string(), 400, "a prompt is needed"),
    ] {
        let (got, text, _) = server.post(&format!("/v1/{path}completions"), &body);
        assert!(got == status && text.contains(words), "{body}: {got} {text}");
        assert!(serde_json::from_str::<Value>(&text).unwrap()["error"]["message"].is_string());
    }
    assert_eq!(server.post("/v1/embeddings", "{}").0, 404);
    // A hundred megabytes are refused at their head.
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 100000000\r\n\r\n{{"
    )
    .unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(&head, b"HTTP/1.1 413");
    // And one that does not say how long it is, once it is too long.
    let body = format!("{{\"prompt\": \"{}\"}}", "a".repeat(3 << 20));
    let request = agent().post(server.url("/v1/completions")).content_type("application/json");
    let sent = request.send(ureq::SendBody::from_reader(&mut body.as_bytes()));
    assert_eq!(sent.unwrap().status(), 413);
    assert_eq!(server.app.engine.stats().running, 0);
}

fn bodies_of_any_kind_are_answered() {
    let server = serve();
    let post = |body: &[u8]| {
        let request =
            agent().post(server.url("/v1/chat/completions")).content_type("application/json");
        request.send(body).unwrap().status().as_u16()
    };
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let deep = format!("{{\"messages\":{}1{}}}", open.repeat(50_000), close.repeat(50_000));
        assert_eq!(post(deep.as_bytes()), 400);
    }
    let whole =
        hello(json!({ "max_tokens": 1, "stop": ["a"], "response_format": { "type": "text" } }))
            .to_string();
    for seed in 0..120u64 {
        let (mut body, mut state) = (whole.clone().into_bytes(), seed);
        let mut pick = |n: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        for _ in 0..1 + pick(3) {
            let at = pick(body.len());
            match pick(3) {
                0 => body[at] = pick(256) as u8,
                1 => drop(body.splice(at..at, b"\"],{}0:e9"[pick(9)..].iter().copied())),
                _ => drop(body.drain(at..(at + 1 + pick(5)).min(body.len()))),
            }
        }
        let status = post(&body);
        assert!(
            [200, 400, 404].contains(&status),
            "seed {seed}: {status} {}",
            String::from_utf8_lossy(&body)
        );
    }
    server.until(|s| s.running == 0 && s.waiting == 0);
}

fn who_goes_away_frees_what_he_had() {
    let server = serve();
    let stream = server.begin(400);
    server.until(|s| s.running == 1 && s.pages_used > 0);
    drop(stream);
    server.until(|s| s.running == 0 && s.pages_used == 0 && s.left == 1);
}

fn a_full_house_says_when_to_come_again_and_a_deadline_ends_who_waits() {
    let options = Options { slots: 1, waiting: 1, ..Options::default() };
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let server = serve_on(device.clone(), Config { options, ..Config::default() });
    // Nobody comes on before it is let go.
    let (go, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    let gate = futensor::custom::custom_fn(
        "gate",
        &[&device.ones([1])],
        |m| Ok(m[0].clone()),
        move |_| {
            let _ = held.lock().unwrap().recv_timeout(Duration::from_secs(60));
            Ok(())
        },
    );
    gate.detach();
    let late = |path: &str, deadline: &str| {
        let body =
            json!({ "prompt": "b", "max_tokens": 1, "stream": path == "streamed" }).to_string();
        let request = agent().post(server.url("/v1/completions")).header("x-deadline-ms", deadline);
        let begin = Instant::now();
        let mut response = request.content_type("application/json").send(body).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        (response.status().as_u16(), text, begin.elapsed())
    };
    std::thread::scope(|scope| {
        let running = scope.spawn(|| late("whole", "1500"));
        server.until(|s| s.running == 1);
        let waiting = scope.spawn(|| late("streamed", "300"));
        server.until(|s| s.waiting == 1);
        let (status, text, again) =
            server.post("/v1/completions", &json!({ "prompt": "c" }).to_string());
        assert_eq!((status, again.as_deref()), (503, Some("1")), "{text}");
        // Milliseconds, whether it waits or runs: within ten times of what was asked for, on any
        // machine.
        let (status, text, took) = waiting.join().unwrap();
        assert!(status == 200 && text.contains("the deadline has passed"), "{status} {text}");
        assert!((300..3_000).contains(&took.as_millis()), "{took:?}");
        let (status, text, took) = running.join().unwrap();
        assert_eq!(status, 504, "{text}");
        assert!((1_500..15_000).contains(&took.as_millis()), "{took:?}");
    });
    go.send(()).unwrap();
    server.until(|s| s.running == 0);
    assert_eq!(server.ask("/v1/completions", &json!({ "prompt": "d", "max_tokens": 1 })).0, 200);
}

fn a_client_may_ask_for_less_time_than_there_is_and_not_for_more() {
    let server = serve_with(Config { deadline: Duration::ZERO, ..Config::default() });
    let request = agent().post(server.url("/v1/completions")).header("x-deadline-ms", "60000");
    let body = json!({ "prompt": "b", "max_tokens": 1 }).to_string();
    assert_eq!(request.content_type("application/json").send(body).unwrap().status().as_u16(), 504);
}

fn what_makes_an_answer_random_is_a_seed_of_its_own() {
    let server = serve();
    let text = |more: Value| {
        let (status, answer) = server.ask("/v1/chat/completions", &hello(more));
        assert_eq!(status, 200, "{answer}");
        answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let unseeded: std::collections::BTreeSet<String> =
        (0..4).map(|_| text(json!({ "seed": null }))).collect();
    assert_eq!(unseeded.len(), 4, "each has its own: {unseeded:?}");
    assert_eq!(text(json!({ "seed": 7 })), text(json!({ "seed": 7 })));
    assert_ne!(text(json!({ "seed": 7 })), text(json!({ "seed": 8 })));
    // Each option that makes it likeliest, or not: the engine has been told of them all.
    let likeliest = text(json!({ "temperature": 0 }));
    assert_eq!(text(json!({ "top_k": 1 })), likeliest);
    assert_eq!(text(json!({ "top_p": 1e-6 })), likeliest);
    assert_eq!(text(json!({ "min_p": 1.0 })), likeliest);
    assert_ne!(text(json!({ "temperature": 0, "frequency_penalty": 2.0 })), likeliest);
    assert_ne!(text(json!({ "temperature": 0, "logit_bias": { "40": 100 } })), likeliest);
    assert_ne!(text(json!({ "temperature": 0, "repetition_penalty": 5.0 })), likeliest);
    assert_ne!(text(json!({ "temperature": 2.0 })), text(json!({ "temperature": 1.0 })));
    assert_eq!(text(json!({})), text(json!({ "temperature": 1.0 })), "OpenAI's default");
}

fn an_answer_ends_where_it_is_told_to() {
    let server = serve();
    let ask = |more: Value| server.ask("/v1/chat/completions", &hello(more)).1;
    let whole = ask(json!({ "temperature": 0 }));
    let (choice, count) = (&whole["choices"][0], &whole["usage"]["completion_tokens"]);
    let text = choice["message"]["content"].as_str().unwrap();
    assert!(
        choice["finish_reason"] == "length" && count == 20 || choice["finish_reason"] == "stop",
        "{whole}"
    );
    let few = ask(json!({ "temperature": 0, "max_tokens": null, "max_completion_tokens": 3 }));
    assert_eq!(
        (&few["choices"][0]["finish_reason"], &few["usage"]["completion_tokens"]),
        (&json!("length"), &json!(3))
    );
    // One stop word or several, of which the first to come cuts, however they are listed.
    let letters: Vec<(usize, char)> =
        text.char_indices().filter(|(_, c)| *c != '\u{fffd}').collect();
    let (early, late) =
        (letters[2], *letters.iter().rev().find(|(_, c)| *c != letters[2].1).unwrap());
    let first = text.find([early.1, late.1]).unwrap();
    for stop in [json!([late.1, early.1]), json!([early.1, late.1])] {
        let answer = ask(json!({ "temperature": 0, "stop": stop }));
        assert_eq!(answer["choices"][0]["message"]["content"], text[..first], "{stop}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    }
    let answer = ask(json!({ "temperature": 0, "stop": early.1 }));
    assert_eq!(answer["choices"][0]["message"]["content"], text[..text.find(early.1).unwrap()]);
}

/// Others are answered while somebody's constraint, template or long text is worked on.
fn nobody_waits_for_what_another_has_compiled() {
    let server = serve();
    let properties: serde_json::Map<_, _> =
        (0..400).map(|k| (format!("key{k}"), json!({ "type": "string" }))).collect();
    let schema =
        json!({ "type": "object", "properties": properties, "additionalProperties": false });
    let format = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let constrained = hello(json!({ "response_format": format, "max_tokens": 1 })).to_string();
    let long = json!({ "prompt": "word ".repeat(300_000) }).to_string();
    let messages = vec![json!({ "role": "user", "content": "a" }); 30_000];
    let many = json!({ "messages": messages }).to_string();
    std::thread::scope(|scope| {
        let busy: Vec<_> = [
            ("chat/", &constrained, 200, ""),
            ("", &long, 400, "more than the 512"),
            ("chat/", &many, 400, ""),
        ]
        .into_iter()
        .map(|(path, body, status, words)| {
            let server = &server;
            scope.spawn(move || {
                let (got, text, _) = server.post(&format!("/v1/{path}completions"), body);
                assert!(got == status && text.contains(words), "{got} {text}");
            })
        })
        .collect();
        while busy.iter().any(|busy| !busy.is_finished()) {
            let begin = Instant::now();
            assert_eq!(server.get("/healthz").0, 200);
            assert!(begin.elapsed() < Duration::from_secs(5));
        }
        busy.into_iter().for_each(|busy| busy.join().unwrap());
    });
    assert_eq!(server.app.engine.stats().running, 0);
}

fn the_end_waits_for_answers_under_way() {
    let mut server = serve_with(Config { drain: Duration::from_secs(600), ..Config::default() });
    let mut stream = server.begin(60);
    server.end.take().unwrap().send(()).unwrap();
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"), "{rest}");
    let served = server.served.take().unwrap();
    server.runtime.block_on(served).unwrap().unwrap();
    assert!(TcpStream::connect(server.address).is_err());
    server.until(|s| s.pages_used == 0);
}

fn whoever_runs_it_sees_what_it_does() {
    let server = serve();
    assert_eq!(server.ask("/v1/completions", &json!({ "prompt": "a", "max_tokens": 3 })).0, 200);
    assert_eq!(server.post("/v1/completions", "no").0, 400);
    let (status, text) = server.get("/metrics");
    assert_eq!(status, 200);
    for line in [
        "chat_requests_total{status=\"200\"} 1",
        "chat_requests_total{status=\"400\"} 1",
        "chat_first_token_seconds_count 1",
        "generate_requests_total 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    let (status, text) = server.get("/healthz");
    assert!(status == 200 && text.contains("\"ok\""), "{text}");
    let (_, text) = server.get("/v1/models");
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["data"][0]["id"], "tiny");
}

fn a_lost_device_ends_its_streams_and_says_so() {
    let options = CpuOptions::default().threads(1).watchdog(Some(Duration::from_secs(2)));
    let device = Device::cpu_with(options);
    let server = serve_on(device.clone(), Config::default());
    assert_eq!(server.get("/healthz").0, 200);
    // It takes longer than anything may.
    let stuck = futensor::custom::custom_fn(
        "stuck",
        &[&device.ones([1])],
        |m| Ok(m[0].clone()),
        |_| {
            std::thread::sleep(Duration::from_secs(6));
            Ok(())
        },
    );
    stuck.detach();
    let (mut stream, mut rest) = (server.begin(5), String::new());
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"error\"") && rest.contains("watchdog"), "{rest}");
    let (status, text) = server.get("/healthz");
    assert!(status == 503 && text.contains("\"lost\"") && text.contains("watchdog"), "{text}");
    let (status, answer) =
        server.ask("/v1/completions", &json!({ "prompt": "a", "max_tokens": 1 }));
    assert!(status == 503 && answer.to_string().contains("watchdog"), "{status} {answer}");
    server.until(|s| s.running == 0 && s.pages_used == 0);
}

macro_rules! trials {
    ($($name:ident)*) => {
        vec![$(Trial::test(stringify!($name), || {
            $name();
            Ok(())
        })),*]
    };
}

fn main() {
    let mut trials = trials!(
        a_chat_is_answered_in_one_piece_and_streamed_alike
        a_text_is_gone_on_with_and_its_tokens_are_told
        an_answer_is_of_the_schema_that_is_asked_for
        what_is_wrong_is_said
        bodies_of_any_kind_are_answered
        who_goes_away_frees_what_he_had
        a_full_house_says_when_to_come_again_and_a_deadline_ends_who_waits
        a_client_may_ask_for_less_time_than_there_is_and_not_for_more
        what_makes_an_answer_random_is_a_seed_of_its_own
        an_answer_ends_where_it_is_told_to
        nobody_waits_for_what_another_has_compiled
        the_servers_thread_is_free_while_constraints_are_compiled
        what_is_too_large_is_refused_with_words
        the_end_waits_for_answers_under_way
        whoever_runs_it_sees_what_it_does
        a_lost_device_ends_its_streams_and_says_so
        what_changes_no_answer_is_ignored
        a_call_is_of_its_tools_schema
        who_closes_his_side_gets_his_answer
        who_is_gone_before_his_answer_frees_what_he_had
        who_takes_long_to_ask_is_not_waited_for
        a_stream_that_the_end_cuts_is_told_so
        asked_twice_it_ends_at_once
        several_answers_are_those_that_one_would_get_alone
        an_error_has_openais_code
        a_key_and_an_origin_let_in_whom_they_should
        the_page_and_all_its_files_are_served_with_a_policy
        what_others_have_written_is_as_they_published_it
    );
    let in_python = trials!(openais_own_clients_speak_to_it);
    trials.extend(in_python.into_iter().map(|t| t.with_ignored_flag(python().is_none())));
    let in_node = trials!(openais_npm_client_speaks_to_it);
    trials.extend(in_node.into_iter().map(|t| t.with_ignored_flag(node_modules().is_none())));
    let in_browser = trials!(
        the_page_chats_in_a_real_browser
        the_page_shows_a_hostile_answer_and_does_nothing_of_it
        the_page_marks_half_an_answer_and_sends_it_no_more
    );
    trials.extend(in_browser.into_iter().map(|t| t.with_ignored_flag(Browser::find().is_none())));
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    let _ = std::fs::remove_dir_all(model().parent().expect("a folder"));
    conclusion.exit();
}
