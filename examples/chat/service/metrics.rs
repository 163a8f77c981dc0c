//! The counters of the service, and Prometheus' text of it.

use super::App;
use super::prometheus::{Histogram, Page, Statuses};
use std::time::Duration;

/// Upper bounds of the buckets, in seconds.
const BUCKETS: [f64; 12] = [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0];

pub struct Metrics {
    statuses: Statuses,
    head: Histogram,
    first_token: Histogram,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let times = || Histogram::new(&BUCKETS);
        Metrics { statuses: Statuses::default(), head: times(), first_token: times() }
    }
}

impl Metrics {
    pub fn count(&self, status: u16, took: Duration) {
        self.statuses.count(status);
        self.head.add(took);
    }

    pub fn first_token(&self, took: Duration) {
        self.first_token.add(took);
    }
}

/// Everything, in Prometheus' text format (version 0.0.4).
pub fn text(app: &App) -> String {
    let (mut page, m, s) = (Page::default(), &app.metrics, app.engine.stats());
    let help = "Requests for text by status; 499: the client went away.";
    page.statuses("chat_requests_total", help, &m.statuses);
    page.histogram(
        "chat_answer_seconds",
        "Time to the answer, or to the head of a streamed one.",
        &m.head,
    );
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
    page.text()
}
