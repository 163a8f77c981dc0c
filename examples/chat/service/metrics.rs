//! What the service counts, and Prometheus' text of it.

use super::App;
use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];

#[derive(Default)]
struct Histogram {
    counts: [AtomicU64; BUCKETS.len() + 1],
    us: AtomicU64,
}

impl Histogram {
    fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = BUCKETS.iter().position(|&b| seconds <= b).unwrap_or(BUCKETS.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.us.fetch_add(took.as_micros() as u64, Relaxed);
    }
}

#[derive(Default)]
pub struct Metrics {
    /// Answers by their status; 499 is a client that went away.
    statuses: Mutex<BTreeMap<u16, u64>>,
    head: Histogram,
    first_token: Histogram,
}

impl Metrics {
    pub fn count(&self, status: u16, took: Duration) {
        *self.statuses.lock().unwrap_or_else(|p| p.into_inner()).entry(status).or_default() += 1;
        self.head.add(took);
    }

    pub fn first_token(&self, took: Duration) {
        self.first_token.add(took);
    }
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
    fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, "", value);
    }
    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut sum = 0;
        for (bucket, count) in histogram.counts.iter().enumerate() {
            sum += count.load(Relaxed);
            let bound = BUCKETS.get(bucket).map_or("+Inf".into(), f64::to_string);
            self.line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), sum);
        }
        self.line(&format!("{name}_sum"), "", histogram.us.load(Relaxed) as f64 / 1e6);
        self.line(&format!("{name}_count"), "", sum);
    }
}

/// Everything, in Prometheus' text format (version 0.0.4).
pub fn text(app: &App) -> String {
    let (mut page, m, s) = (Page(String::new()), &app.metrics, app.engine.stats());
    page.head("chat_requests_total", "counter", "Requests for text by status; 499: the client went away.");
    for (status, count) in m.statuses.lock().unwrap_or_else(|p| p.into_inner()).iter() {
        page.line("chat_requests_total", &format!("{{status=\"{status}\"}}"), count);
    }
    page.histogram("chat_answer_seconds", "Time to the answer, or to the head of a streamed one.", &m.head);
    page.histogram("chat_first_token_seconds", "Time to the first token.", &m.first_token);
    page.one("generate_running", "gauge", "Requests that have a slot.", s.running);
    page.one("generate_waiting", "gauge", "Requests that wait for a slot and pages.", s.waiting);
    page.one("generate_pages_used", "gauge", "Pages of keys and values in use.", s.pages_used);
    page.one("generate_pages", "gauge", "Pages of keys and values.", s.pages);
    page.one("generate_requests_total", "counter", "Requests that the engine took.", s.requests);
    page.one("generate_left_total", "counter", "Requests that went away before their end.", s.left);
    page.one("generate_failed_total", "counter", "Requests that ended with an error.", s.failed);
    page.one("generate_steps_total", "counter", "Steps of the model.", s.steps);
    page.one("generate_rows_total", "counter", "Rows of all steps.", s.rows);
    page.one("generate_tokens_total", "counter", "Tokens that were handed out.", s.tokens);
    page.one(
        "generate_shared_tokens_total",
        "counter",
        "Tokens of prompts that were not computed again.",
        s.shared_tokens,
    );
    page.0
}
