//! A server that a test talks to, and what the tests ask with.

use futensor::{CpuOptions, Device};
use serde_json::Value;
use server::{App, Config};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// A server that runs until it is dropped or told to end.
pub struct Server {
    pub address: SocketAddr,
    pub app: Arc<App>,
    pub runtime: tokio::runtime::Runtime,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    pub ended: Option<tokio::task::JoinHandle<server::Outcome<()>>>,
}

impl Server {
    pub fn start(device: Device, config: Config) -> Server {
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

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let mut response = agent().get(self.url(path)).call().unwrap();
        (response.status().as_u16(), response.body_mut().read_to_string().unwrap())
    }

    /// A metric's value.
    pub fn metric(&self, line: &str) -> f64 {
        let text = self.get("/metrics").1;
        let found =
            text.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(' ')?.parse().ok());
        found.unwrap_or_else(|| panic!("no {line} in\n{text}"))
    }

    pub fn post(&self, kind: &str, body: &[u8]) -> (u16, Value) {
        let (status, value, _) = self.post_with(kind, body, None);
        (status, value)
    }

    pub fn post_with(
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
    pub fn stop(mut self) -> Result<(), String> {
        let _ = self.stop.take().unwrap().send(());
        let ended = self.runtime.block_on(self.ended.take().unwrap()).unwrap();
        ended.map_err(|e| e.to_string())
    }
}

pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().http_status_as_error(false);
    config.timeout_global(Some(Duration::from_secs(50))).build().into()
}

/// Held-out images with what PyTorch says of them with the same weights.
pub fn held_out() -> Vec<(Vec<u8>, usize, Vec<f64>)> {
    let text = include_str!("../model/held_out.json");
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

pub fn check_answer(answer: &Value, probability: &[f64]) {
    let got = answer["probability"].as_array().unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(got.len(), 10);
    for (p, want) in got.iter().zip(probability) {
        assert!((p.as_f64().unwrap() - want).abs() < 1e-4, "{answer} is not {probability:?}");
    }
}

pub fn cpu() -> Device {
    Device::cpu_with(CpuOptions::default().threads(2).nice(0))
}

pub const RAW: &str = "application/octet-stream";
pub const JSON: &str = "application/json";

/// A request whose answer nobody reads: sent, and left to the caller to hold or drop.
pub fn send_only(address: SocketAddr, pixels: &[u8]) -> TcpStream {
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
pub fn patient() -> Config {
    let long = Duration::from_secs(3600);
    Config {
        eager: false,
        delay: long,
        deadline: long,
        drain: Duration::from_secs(20),
        ..Config::default()
    }
}
