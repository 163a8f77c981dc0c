//! Counters, and a page of them in Prometheus' text format (version 0.0.4).

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Times, counted by the least of these bounds in seconds that they are not above.
pub struct Histogram {
    bounds: &'static [f64],
    counts: Vec<AtomicU64>,
    us: AtomicU64,
}

impl Histogram {
    pub fn new(bounds: &'static [f64]) -> Histogram {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram { bounds, counts, us: AtomicU64::new(0) }
    }

    pub fn add(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let bucket = self.bounds.iter().position(|&b| seconds <= b).unwrap_or(self.bounds.len());
        self.counts[bucket].fetch_add(1, Relaxed);
        self.us.fetch_add(took.as_micros() as u64, Relaxed);
    }

    /// Each bound, and how many times are not above it; the last bound is infinity.
    pub fn up_to(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0, |sum, (bound, count)| {
            *sum += count.load(Relaxed);
            Some((bound, *sum))
        })
    }
}

/// Answers by their status; 499 is a client that went away.
#[derive(Default)]
pub struct Statuses(Mutex<BTreeMap<u16, u64>>);

impl Statuses {
    pub fn count(&self, status: u16) {
        *self.0.lock().unwrap_or_else(|p| p.into_inner()).entry(status).or_default() += 1;
    }

    pub fn all(&self) -> BTreeMap<u16, u64> {
        self.0.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }
}

/// Metrics, each a head and its lines.
#[derive(Default)]
pub struct Page(String);

impl Page {
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn line(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.line(name, "", value);
    }

    pub fn statuses(&mut self, name: &str, help: &str, statuses: &Statuses) {
        self.head(name, "counter", help);
        for (status, count) in statuses.all() {
            self.line(name, &format!("{{status=\"{status}\"}}"), count);
        }
    }

    pub fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let mut all = 0;
        for (bound, count) in histogram.up_to() {
            let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".into() };
            self.line(&format!("{name}_bucket"), &format!("{{le=\"{bound}\"}}"), count);
            all = count;
        }
        self.line(&format!("{name}_sum"), "", histogram.us.load(Relaxed) as f64 / 1e6);
        self.line(&format!("{name}_count"), "", all);
    }

    pub fn text(self) -> String {
        self.0
    }
}
