//! The server example, as it is: its routes over a loopback port with a real HTTP client, its page
//! in a real browser where there is one, its faults on a simulated device.
//!
//! `FUTENSOR_SEED=7 cargo test -p server` replays the choices of the soak.

#[path = "../../tests/support/mod.rs"]
mod support;

use futensor::sim::SimOptions;
use futensor::{CpuOptions, Device};
use libtest_mimic::{Arguments, Trial};
use serde_json::{Value, json};
use server::{App, Config, OnLoss};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::browser::Browser;
use support::{Deadline, Rng, until};

/// A server that runs until it is dropped or told to end.
struct Server {
    address: SocketAddr,
    app: Arc<App>,
    runtime: tokio::runtime::Runtime,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    ended: Option<tokio::task::JoinHandle<server::Outcome<()>>>,
}

impl Server {
    fn start(device: Device, config: Config) -> Server {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (address, app, ended) = runtime.block_on(async {
            let mut announced = None;
            let any = ([127, 0, 0, 1], 0).into();
            let started =
                server::start(device, config, any, |address| announced = Some(address)).await;
            let ((app, listener), address) = (started.unwrap(), announced.unwrap());
            let asked = async { stopped.await.unwrap_or(()) };
            (address, app.clone(), tokio::spawn(server::serve(app, listener, asked)))
        });
        Server { address, app, runtime, stop: Some(stop), ended: Some(ended) }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn get(&self, path: &str) -> (u16, String) {
        let mut response = agent().get(self.url(path)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// A metric's value.
    fn metric(&self, line: &str) -> f64 {
        let text = self.get("/metrics").1;
        let found =
            text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {line} in\n{text}"))
    }

    fn post(&self, kind: &str, body: &[u8]) -> (u16, Value) {
        let (status, value, _) = self.post_with(kind, body, None);
        (status, value)
    }

    fn post_with(
        &self,
        kind: &str,
        body: &[u8],
        deadline_ms: Option<u64>,
    ) -> (u16, Value, Option<String>) {
        let mut request = agent().post(self.url("/predict")).content_type(kind);
        if let Some(ms) = deadline_ms {
            request = request.header("x-deadline-ms", ms.to_string());
        }
        let mut response = request.send(body).unwrap();
        let status = response.status().as_u16();
        let retry = response.headers().get("retry-after").map(|v| v.to_str().unwrap().to_owned());
        let text = response.body_mut().read_to_string().unwrap();
        (status, serde_json::from_str(&text).unwrap_or(Value::String(text)), retry)
    }

    /// Asks it to end, and gives what it ended with.
    fn stop(mut self) -> Result<(), String> {
        let _ = self.stop.take().unwrap().send(());
        let ended = self.runtime.block_on(self.ended.take().unwrap()).unwrap();
        ended.map_err(|e| e.to_string())
    }
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(50))).build().into()
}

/// Held-out images with what PyTorch says of them with the same weights.
fn held_out() -> Vec<(Vec<u8>, usize, Vec<f64>)> {
    let text = include_str!("model/held_out.json");
    let cases: Vec<Value> = serde_json::from_str(text).unwrap();
    let numbers =
        |v: &Value| v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect::<Vec<_>>();
    cases
        .iter()
        .map(|case| {
            let pixels = numbers(&case["pixels"]).iter().map(|&p| p as u8).collect();
            (pixels, case["digit"].as_u64().unwrap() as usize, numbers(&case["probability"]))
        })
        .collect()
}

fn check_answer(answer: &Value, probability: &[f64]) {
    let got = answer["probability"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(got.len(), 10);
    for (p, want) in got.iter().zip(probability) {
        assert!((p.as_f64().unwrap() - want).abs() < 1e-4, "{answer} is not {probability:?}");
    }
}

fn cpu() -> Device {
    Device::cpu_with(CpuOptions::default().threads(2).nice(0))
}

const RAW: &str = "application/octet-stream";
const JSON: &str = "application/json";

fn both_kinds_of_body_are_answered_as_pytorch_does_with_these_weights() {
    let server = Server::start(cpu(), Config::default());
    let mut right = 0;
    let cases = held_out();
    for (pixels, digit, probability) in &cases {
        let (status, raw) = server.post(RAW, pixels);
        assert_eq!(status, 200);
        check_answer(&raw, probability);
        let body = json!({ "pixels": pixels }).to_string();
        let (status, from_json) = server.post("application/json; charset=utf-8", body.as_bytes());
        assert_eq!((status, &from_json["digit"]), (200, &raw["digit"]));
        check_answer(&from_json, probability);
        right += (raw["digit"] == *digit) as usize;
    }
    assert!(right * 20 >= cases.len() * 19, "{right} of {}", cases.len());
    server.stop().unwrap();
}

fn of_the_held_out_fifth_98_percent_are_recognised() {
    // 1,797 images of 64 bytes, then their labels; every fifth was held out of the training.
    let digits = include_bytes!("../train_digits/data/digits.bin");
    let (images, labels) = digits.split_at(1797 * 64);
    let held_out: Vec<usize> = (4..1797).step_by(5).collect();
    let server = Server::start(cpu(), Config::default());
    let right = held_out.iter().filter(|&&i| {
        let (status, answer) = server.post(RAW, &images[i * 64..][..64]);
        assert_eq!(status, 200, "{answer}");
        answer["digit"] == labels[i]
    });
    let right = right.count();
    assert!(right * 100 >= held_out.len() * 98, "{right} of {}", held_out.len());
    server.stop().unwrap();
}

fn weights_of_another_network_are_refused_by_name_and_shape() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = |model: &'static [u8]| {
        let config = Config {
            model: model.into(),
            model_file: "other.safetensors".into(),
            ..Config::default()
        };
        runtime.block_on(App::new(cpu(), config)).err().expect("an error").to_string()
    };
    let other = refused(include_bytes!("../load_weights/weights.safetensors"));
    assert!(
        other.contains("0.weight has shape [16, 1, 3, 3], and the value [8, 1, 3, 3]"),
        "{other}"
    );
    let cut = refused(&include_bytes!("model/digits.safetensors")[..30_000]);
    assert!(cut.contains("truncated"), "{cut}");
    for error in [other, cut] {
        assert!(error.starts_with("other.safetensors: "), "{error}");
    }
}

fn an_address_that_is_taken_is_named() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = server::start(cpu(), Config::default(), address, |_| panic!("announced"));
    let error = runtime.block_on(start).err().expect("an error").to_string();
    assert!(error.starts_with(&format!("{address}: ")), "{error}");
}

fn nobody_is_told_of_the_address_and_nothing_listens_before_the_weights_are_there() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Somebody has this address: who asks for it before the weights are there says so, else what
    // the weights lack is said.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let refused = |device, model: &'static [u8], address| {
        let config = Config { model: model.into(), ..Config::default() };
        let start = server::start(device, config, address, |_| panic!("announced"));
        runtime.block_on(start).err().expect("an error").to_string()
    };
    let (own, other) = (
        include_bytes!("model/digits.safetensors"),
        include_bytes!("../load_weights/weights.safetensors"),
    );
    for address in [taken, ([127, 0, 0, 1], 0).into()] {
        let error = refused(cpu(), other, address);
        assert!(error.contains("has shape"), "{error}");
        // There is no room for them on the device.
        let device = Device::cpu_with(CpuOptions::default().bytes_max(1000));
        let error = refused(device, own, address);
        assert!(error.contains("memory"), "{error}");
    }
    let announced = std::cell::Cell::new(None);
    let start = server::start(cpu(), Config::default(), ([127, 0, 0, 1], 0).into(), |at| {
        announced.set(Some(at))
    });
    let _listening = runtime.block_on(start).unwrap();
    assert!(TcpStream::connect(announced.get().expect("told")).is_ok());
}

fn concurrent_requests_share_batches_and_each_gets_its_own_answer() {
    let config =
        Config { batch: 8, delay: Duration::from_millis(5), eager: false, ..Config::default() };
    let server = Server::start(cpu(), config);
    let cases = held_out();
    std::thread::scope(|scope| {
        for k in 0..16 {
            let (server, cases) = (&server, &cases);
            scope.spawn(move || {
                for i in 0..20 {
                    let (pixels, _, probability) = &cases[(7 * k + 3 * i) % cases.len()];
                    let (status, answer) = server.post(RAW, pixels);
                    assert_eq!(status, 200, "{answer}");
                    check_answer(&answer, probability);
                }
            });
        }
    });
    assert_eq!(server.metric("batcher_requests_total"), 320.0);
    assert!(server.metric("batcher_batches_total") < 320.0, "nobody shared a batch");
    assert_eq!(server.metric("predict_requests_total{status=\"200\"}"), 320.0);
    assert_eq!(server.metric("predict_seconds_count"), 320.0);
    assert_eq!(server.metric("batcher_waiting"), 0.0);
    server.stop().unwrap();
}

fn what_is_wrong_with_a_request_is_said_with_the_right_status() {
    let server = Server::start(cpu(), Config::default());
    let good = json!({ "pixels": vec![1; 64] }).to_string();
    let cases: &[(&str, Vec<u8>, u16, &str)] = &[
        (JSON, b"{\"pixels\": [1, 2".to_vec(), 400, "not the JSON"),
        (JSON, b"{}".to_vec(), 400, "pixels"),
        (JSON, good.replace("pixels", "pixel").into_bytes(), 400, "pixel"),
        (JSON, json!({ "pixels": vec![1; 63] }).to_string().into_bytes(), 422, "63 pixels"),
        (JSON, json!({ "pixels": vec![17; 64] }).to_string().into_bytes(), 422, "a pixel of 17"),
        (JSON, json!({ "pixels": vec!["a"; 64] }).to_string().into_bytes(), 400, "not the JSON"),
        (RAW, vec![1; 65], 422, "65 pixels"),
        (RAW, vec![255; 64], 422, "a pixel of 255"),
        (RAW, Vec::new(), 422, "0 pixels"),
        ("text/plain", vec![1; 64], 415, "application/json"),
        (RAW, vec![1; 100_000], 413, "length limit"),
    ];
    for (kind, body, status, words) in cases {
        let (got, answer) = server.post(kind, body);
        let text = answer.to_string();
        assert!(got == *status && text.contains(words), "{status} {words}: {got} {text}");
    }
    assert_eq!(agent().get(server.url("/predict")).call().unwrap().status(), 405);
    assert_eq!(server.get("/nowhere").0, 404);
    assert_eq!(server.post(JSON, good.as_bytes()).0, 200);
    // The engine has seen only the last.
    assert_eq!(server.metric("batcher_requests_total"), 1.0);
    server.stop().unwrap();
}

/// A request whose answer nobody reads: sent, and left to the caller to hold or drop.
fn send_only(address: SocketAddr, pixels: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    let head = format!(
        "POST /predict HTTP/1.1\r\nhost: test\r\ncontent-type: {RAW}\r\ncontent-length: {}\r\n\r\n",
        pixels.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(pixels).unwrap();
    stream
}

/// Holds batches back for as long as a test likes: nothing is eager, and the delay is long.
fn patient() -> Config {
    let long = Duration::from_secs(3600);
    Config {
        eager: false,
        delay: long,
        deadline: long,
        drain: Duration::from_secs(20),
        ..Config::default()
    }
}

fn a_client_that_goes_away_takes_its_request_with_it() {
    let server = Server::start(cpu(), Config { batch: 3, ..patient() });
    let cases = held_out();
    let gone: Vec<TcpStream> = (0..2).map(|i| send_only(server.address, &cases[i].0)).collect();
    until(|| server.metric("batcher_waiting") == 2.0);
    drop(gone);
    until(|| server.metric("batcher_withdrawn_total{from=\"queue\"}") == 2.0);
    until(|| server.metric("predict_requests_total{status=\"499\"}") == 2.0);
    // Those who stay make a batch of their own, in which the others are not.
    std::thread::scope(|scope| {
        for case in &cases[3..6] {
            let server = &server;
            scope.spawn(move || check_answer(&server.post(RAW, &case.0).1, &case.2));
        }
    });
    assert_eq!(server.metric("batcher_batch_size_sum"), 3.0);
    server.stop().unwrap();
}

fn a_deadline_that_passes_is_504_and_its_work_is_withdrawn() {
    let server = Server::start(cpu(), patient());
    let (status, answer, _) = server.post_with(RAW, &[0; 64], Some(20));
    assert_eq!(status, 504, "{answer}");
    assert_eq!(server.metric("batcher_withdrawn_total{from=\"queue\"}"), 1.0);
    assert_eq!(server.metric("batcher_batches_total"), 0.0);
    server.stop().unwrap();
}

fn a_full_queue_is_503_with_retry_after() {
    let server = Server::start(cpu(), Config { queue: 2, ..patient() });
    let held = [send_only(server.address, &[1; 64]), send_only(server.address, &[2; 64])];
    until(|| server.metric("batcher_waiting") == 2.0);
    let (status, answer, retry) = server.post_with(RAW, &[3; 64], None);
    assert_eq!((status, retry.as_deref()), (503, Some("1")), "{answer}");
    drop(held);
    server.stop().unwrap();
    // And the device's own permits.
    let server = Server::start(Device::cpu_with(CpuOptions::default().permits(1)), patient());
    let held = send_only(server.address, &[1; 64]);
    until(|| server.metric("batcher_waiting") == 1.0);
    let (status, answer, retry) = server.post_with(RAW, &[3; 64], None);
    assert_eq!((status, retry.as_deref()), (503, Some("1")), "{answer}");
    drop(held);
    server.stop().unwrap();
}

fn the_end_answers_what_is_there_and_takes_no_more() {
    // The delay is short enough for the request to be answered during the end, and not before it.
    let config = Config { eager: false, delay: Duration::from_millis(300), ..Config::default() };
    let server = Server::start(cpu(), config);
    let cases = held_out();
    let mut waits = send_only(server.address, &cases[0].0);
    until(|| server.metric("batcher_waiting") == 1.0);
    let address = server.address;
    server.stop().unwrap();
    let mut text = String::new();
    waits.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    check_answer(
        &serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap(),
        &cases[0].2,
    );
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}

fn an_end_that_takes_too_long_is_cut_and_says_so() {
    let server = Server::start(cpu(), Config { drain: Duration::from_millis(50), ..patient() });
    let held = send_only(server.address, &[1; 64]);
    until(|| server.metric("batcher_waiting") == 1.0);
    let error = server.stop().unwrap_err();
    assert!(error.contains("connections did not end in time"), "{error}");
    drop(held);
}

/// A step that comes with the first batches: the model's own are fewer.
const AFTER_START: u64 = 60;

/// A simulated device that runs by itself, with faults to come.
fn simulated(change: impl FnOnce(SimOptions) -> SimOptions) -> Device {
    Device::simulated(change(SimOptions::new(5)).own_thread(true)).0
}

fn a_lost_device_fails_all_pending_at_once_and_the_cpu_takes_over() {
    let cases = held_out();
    let device = simulated(|o| o.device_loss_at(Some(AFTER_START)));
    let server = Server::start(device, Config { batch: 4, ..Config::default() });
    let name = server.app.engine().device.name().to_owned();
    assert!(name.starts_with("sim"));
    let (mut lost, mut answered) = (0, 0);
    while lost == 0 {
        let (status, answer) = server.post(RAW, &cases[0].0);
        match status {
            200 => answered += 1,
            503 => lost += 1,
            _ => panic!("{status} {answer}"),
        }
        assert!(answered < 1000, "the device is never lost");
    }
    until(|| server.get("/healthz").0 == 200);
    let health: Value = serde_json::from_str(&server.get("/healthz").1).unwrap();
    assert_eq!(health["status"], "fallback");
    for (pixels, _, probability) in &cases {
        let (status, answer) = server.post(RAW, pixels);
        assert_eq!(status, 200, "{answer}");
        check_answer(&answer, probability);
    }
    assert_eq!(server.metric("futensor_devices_lost_total"), 1.0);
    server.stop().unwrap();
}

fn a_lost_device_ends_the_service_where_that_is_the_policy() {
    let config =
        Config { on_loss: OnLoss::Exit, drain: Duration::from_secs(20), ..Config::default() };
    let mut server = Server::start(simulated(|o| o.device_loss_at(Some(AFTER_START))), config);
    let ended = server.ended.take().unwrap();
    // Asked until it says so; the health is red from then on, until nobody listens any more.
    loop {
        let Ok(mut response) =
            agent().post(server.url("/predict")).content_type(RAW).send(&[0u8; 64][..])
        else {
            break;
        };
        let status = response.status().as_u16();
        let _ = response.body_mut().read_to_string();
        if status == 503 {
            if let Ok(health) = agent().get(server.url("/healthz")).call() {
                assert_eq!(health.status(), 503);
            }
            break;
        }
        assert_eq!(status, 200);
    }
    let error = server.runtime.block_on(ended).unwrap().unwrap_err().to_string();
    assert!(error.contains("the device is lost"), "{error}");
}

fn a_kernel_that_fails_is_500_for_its_batch_and_nothing_else() {
    one_batch_fails(simulated(|o| o.kernel_failure_at(Some(AFTER_START))), "kernel failed");
}

fn memory_that_is_not_to_be_had_is_500_for_its_batch_and_nothing_else() {
    one_batch_fails(simulated(|o| o.out_of_memory_at(AFTER_START as usize)), "out of memory");
}

/// One of these requests meets a fault, whose error has these words.
fn one_batch_fails(device: Device, words: &str) {
    let server = Server::start(device, Config::default());
    let cases = held_out();
    let mut failed = 0;
    for i in 0..40 {
        let (status, answer) = server.post(RAW, &cases[i % cases.len()].0);
        match status {
            200 => check_answer(&answer, &cases[i % cases.len()].2),
            500 => {
                assert!(answer["error"].as_str().unwrap().contains(words), "{answer}");
                failed += 1;
            }
            _ => panic!("{status} {answer}"),
        }
    }
    assert_eq!(failed, 1);
    assert_eq!(server.get("/healthz").0, 200);
    server.stop().unwrap();
}

fn a_stuck_kernel_trips_the_deadline_and_not_the_executor() {
    let config =
        Config { deadline: Duration::from_millis(200), on_loss: OnLoss::Cpu, ..Config::default() };
    let server = Server::start(simulated(|o| o.stuck_at(Some(AFTER_START))), config);
    let late = (0..100).find(|_| server.post(RAW, &[1; 64]).0 == 504);
    assert!(late.is_some(), "nothing got stuck");
    // Everything else is answered as ever.
    for _ in 0..20 {
        assert_eq!(server.get("/healthz").0, 200);
    }
    let drained = server.stop().unwrap_err();
    assert!(drained.contains("did not drain"), "{drained}");
}

fn random_faults_disconnects_and_deadlines_lose_nothing() {
    let seed = std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 =
        seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64));
    println!("FUTENSOR_SEED={seed}");
    let mut rng = Rng(seed);
    let cases = held_out();
    for round in 0..6 {
        let when = AFTER_START as usize + rng.below(200);
        let device = simulated(|o| match round {
            0 => o.kernel_failure_at(Some(when as u64)),
            1 => o.out_of_memory_at(when),
            2 => o.device_loss_at(Some(when as u64)),
            3 => o.stuck_at(Some(when as u64)).watchdog(Some(Duration::from_millis(1))),
            _ => o.queue_ops(40).permits(6),
        });
        let config = Config {
            batch: 1 + rng.below(8),
            queue: 4 + rng.below(12),
            delay: Duration::from_micros(rng.below(2000) as u64),
            eager: rng.below(2) == 0,
            deadline: Duration::from_secs(10),
            drain: Duration::from_secs(20),
            ..Config::default()
        };
        let server = Server::start(device.clone(), config);
        // The model alone: what has to be left at the end.
        until(|| device.stats().queued == 0);
        let resting = device.stats().bytes_live;
        let (answered, failed, gone) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for client in 0..8 {
                let mut rng = Rng(seed ^ (round * 100 + client));
                let (server, cases, answered, failed, gone) =
                    (&server, &cases, &answered, &failed, &gone);
                scope.spawn(move || {
                    for _ in 0..40 {
                        let (pixels, _, probability) = &cases[rng.below(cases.len())];
                        if rng.below(5) == 0 {
                            let stream = send_only(server.address, pixels);
                            let moment = Instant::now();
                            let wait = Duration::from_micros(rng.below(800) as u64);
                            until(|| moment.elapsed() >= wait);
                            drop(stream);
                            gone.fetch_add(1, SeqCst);
                            continue;
                        }
                        let deadline = (rng.below(4) == 0).then(|| rng.below(3) as u64);
                        let (status, answer, _) = server.post_with(RAW, pixels, deadline);
                        match status {
                            200 => {
                                check_answer(&answer, probability);
                                answered.fetch_add(1, SeqCst);
                            }
                            500 | 503 | 504 => {
                                failed.fetch_add(1, SeqCst);
                            }
                            _ => panic!("{status} {answer}"),
                        }
                    }
                });
            }
        });
        let counts = (answered.load(SeqCst), failed.load(SeqCst), gone.load(SeqCst));
        assert_eq!(counts.0 + counts.1 + counts.2, 320);
        assert!(counts.0 > 20, "round {round}: {counts:?}");
        let engine = server.app.engine();
        until(|| {
            let stats = engine.batcher.stats();
            (stats.waiting, stats.running, stats.in_flight) == (0, 0, 0)
        });
        let stats = engine.batcher.stats();
        let ended = stats.answered + stats.failed + stats.left_waiting + stats.left_running;
        assert_eq!(ended, stats.requests, "round {round}: {stats:?}");
        until(|| engine.device.stats().queued == 0);
        if !engine.fallback {
            until(|| {
                // The model's weights in packed form are not of a request.
                device.trim();
                device.stats().bytes_live == resting
            });
        }
        assert_eq!(server.get("/healthz").0, 200);
        drop(engine);
        server.stop().unwrap();
    }
}

/// A seven and a zero, as strokes on the page's canvas.
const SEVEN: &str =
    "70,60;110,60;150,60;200,60;185,100;165,140;145,180;130,230|100,150;140,148;185,146";
const ZERO: &str = "140,40;110,55;90,90;82,140;90,190;110,225;140,240;170,225;190,190;198,140;190,90;170,55;140,40";

fn the_page_draws_asks_and_shows_in_a_real_browser() {
    let server = Server::start(cpu(), Config::default());
    let browser = Browser::find().expect("the trial is ignored without one");
    for (strokes, digit) in [(ZERO, "0"), (SEVEN, "7")] {
        // It asks after each stroke.
        let drawn = format!("$('digit').textContent === '{digit}'");
        let shown =
            format!("{drawn} && /ok, on cpu:[^]*routes.rs:/.test(document.body.textContent)");
        let page = browser.page(&server.url(&format!("/#draw={strokes}")), &shown);
        assert!(page.contains(&format!("<div id=\"digit\">{digit}</div>")), "not {digit}:\n{page}");
        assert!(
            page.contains("ok, on cpu:") && page.contains("routes.rs:"),
            "no live figures:\n{page}"
        );
        assert!(page.contains("<div id=\"note\"></div>"), "an error is shown:\n{page}");
    }
    assert!(server.metric("predict_requests_total{status=\"200\"}") >= 2.0);
    server.stop().unwrap();
}

macro_rules! trials {
    ($($name:ident)*) => {
        vec![$(Trial::test(stringify!($name), || {
            let _deadline = Deadline::of(stringify!($name));
            $name();
            Ok(())
        })),*]
    };
}

fn main() {
    let mut trials = trials!(
        both_kinds_of_body_are_answered_as_pytorch_does_with_these_weights
        of_the_held_out_fifth_98_percent_are_recognised
        weights_of_another_network_are_refused_by_name_and_shape
        an_address_that_is_taken_is_named
        nobody_is_told_of_the_address_and_nothing_listens_before_the_weights_are_there
        concurrent_requests_share_batches_and_each_gets_its_own_answer
        what_is_wrong_with_a_request_is_said_with_the_right_status
        a_client_that_goes_away_takes_its_request_with_it
        a_deadline_that_passes_is_504_and_its_work_is_withdrawn
        a_full_queue_is_503_with_retry_after
        the_end_answers_what_is_there_and_takes_no_more
        an_end_that_takes_too_long_is_cut_and_says_so
        a_lost_device_fails_all_pending_at_once_and_the_cpu_takes_over
        a_lost_device_ends_the_service_where_that_is_the_policy
        a_kernel_that_fails_is_500_for_its_batch_and_nothing_else
        memory_that_is_not_to_be_had_is_500_for_its_batch_and_nothing_else
        a_stuck_kernel_trips_the_deadline_and_not_the_executor
        random_faults_disconnects_and_deadlines_lose_nothing
    );
    let in_browser = trials!(the_page_draws_asks_and_shows_in_a_real_browser);
    trials.extend(in_browser.into_iter().map(|t| t.with_ignored_flag(Browser::find().is_none())));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
