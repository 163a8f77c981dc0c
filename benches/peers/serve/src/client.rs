//! The clients: connections that send one request after the other, and one that asks for the
//! health.

use super::{Outcome, sentences};
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

const WARM_UP: Duration = Duration::from_secs(1);
const HEALTH_EVERY: Duration = Duration::from_millis(5);
/// How many sentences there are; each with an embedding that its responses have to be.
const SENTENCES: usize = 64;

pub struct Seen {
    pub rate: f64,
    latencies: Vec<Duration>,
    lateness: Vec<Duration>,
}

fn quantile(sorted: &[Duration], share: f64) -> f64 {
    let at = ((sorted.len().max(1) - 1) as f64 * share).round() as usize;
    sorted.get(at).map_or(0.0, |d| d.as_secs_f64() * 1e3)
}

impl Seen {
    pub fn latency(&self, share: f64) -> f64 {
        quantile(&self.latencies, share)
    }
    pub fn lateness(&self, share: f64) -> f64 {
        quantile(&self.lateness, share)
    }
}

async fn connect(address: SocketAddr) -> Outcome<SendRequest<Full<Bytes>>> {
    let stream = tokio::net::TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await?;
    tokio::task::spawn_local(connection);
    Ok(sender)
}

async fn embed(sender: &mut SendRequest<Full<Bytes>>, text: &str) -> Outcome<Vec<f32>> {
    let body = serde_json::json!({ "text": text }).to_string();
    let request = Request::builder()
        .method(Method::POST)
        .uri("/embed")
        .header("host", "load")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))?;
    sender.ready().await?;
    let response = sender.send_request(request).await?;
    if response.status() != StatusCode::OK {
        return Err(format!("answered {}", response.status()).into());
    }
    Ok(serde_json::from_slice(&response.into_body().collect().await?.to_bytes())?)
}

/// Answers are this near to what the sentence's embedding is alone, or another's.
fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-3)
}

/// So many clients, for so long.
pub async fn load(
    address: SocketAddr,
    clients: usize,
    time: Duration,
    checks: bool,
) -> Outcome<Seen> {
    tokio::task::LocalSet::new().run_until(run(address, clients, time, checks)).await
}

async fn run(address: SocketAddr, clients: usize, time: Duration, checks: bool) -> Outcome<Seen> {
    let texts = Rc::new(sentences(SENTENCES));
    let mut first = connect(address).await?;
    let mut alone = Vec::new();
    for text in texts.iter() {
        alone.push(embed(&mut first, text).await?);
    }
    let alone = Rc::new(alone);
    let begin = Instant::now() + WARM_UP;
    let end = begin + time;
    let mut tasks = Vec::new();
    for client in 0..clients {
        let (texts, alone) = (texts.clone(), alone.clone());
        tasks.push(tokio::task::spawn_local(async move {
            let mut sender = connect(address).await?;
            let mut latencies = Vec::new();
            for k in 0.. {
                let from = Instant::now();
                if from >= end {
                    break;
                }
                let i = (client * 17 + k * 5) % texts.len();
                let vector = embed(&mut sender, &texts[i]).await?;
                let took = from.elapsed();
                if checks && !same(&vector, &alone[i]) {
                    return Err(format!(
                        "sentence {i} was answered with another's \
                        embedding"
                    )
                    .into());
                }
                if from >= begin && Instant::now() < end {
                    latencies.push(took);
                }
            }
            Outcome::Ok(latencies)
        }));
    }
    let health = tokio::task::spawn_local(async move {
        let mut sender = connect(address).await?;
        let (mut due, mut lateness) = (begin, Vec::new());
        while due < end {
            tokio::time::sleep_until(due.into()).await;
            let request = Request::builder()
                .uri("/healthz")
                .header("host", "load")
                .body(Full::new(Bytes::new()))?;
            sender.ready().await?;
            sender.send_request(request).await?.into_body().collect().await?;
            lateness.push(due.elapsed());
            // What was missed meanwhile is late as well: it would have been asked.
            due += HEALTH_EVERY;
        }
        Outcome::Ok(lateness)
    });
    let mut latencies = Vec::new();
    for task in tasks {
        latencies.extend(task.await??);
    }
    let mut lateness = health.await??;
    let rate = latencies.len() as f64 / time.as_secs_f64();
    latencies.sort();
    lateness.sort();
    Ok(Seen { rate, latencies, lateness })
}
