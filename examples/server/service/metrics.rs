//! The counters of the service, and Prometheus' text of it.

use super::prometheus::{Histogram, Page, Statuses};
use super::{App, Engine};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Upper bounds of the latency's buckets, in seconds.
const BUCKETS: [f64; 12] = [0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0];

pub struct Metrics {
    statuses: Statuses,
    latency: Histogram,
    /// Devices that were lost, by name.
    lost: Mutex<Vec<String>>,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            statuses: Statuses::default(),
            latency: Histogram::new(&BUCKETS),
            lost: Mutex::default(),
        }
    }
}

impl Metrics {
    pub fn count(&self, status: u16, took: Duration) {
        self.statuses.count(status);
        self.latency.add(took);
    }

    /// True for the first to say that this device is lost.
    pub fn count_loss(&self, device: &str) -> bool {
        let mut lost = self.lost.lock().unwrap_or_else(|p| p.into_inner());
        let first = !lost.iter().any(|d| d == device);
        if first {
            lost.push(device.to_owned());
        }
        first
    }

    pub fn losses(&self) -> usize {
        self.lost.lock().unwrap_or_else(|p| p.into_inner()).len()
    }

    pub fn statuses(&self) -> BTreeMap<u16, u64> {
        self.statuses.all()
    }

    /// A latency below which this share of the requests stayed, by the buckets; in seconds.
    pub fn quantile(&self, share: f64) -> f64 {
        let all = self.latency.up_to().last().map_or(0, |(_, count)| count);
        let wanted = ((all as f64 * share).ceil() as u64).max(1);
        self.latency.up_to().find(|&(_, count)| count >= wanted).map_or(0.0, |(bound, _)| bound)
    }
}

/// A label's value, with what the format asks to be escaped.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Everything, in Prometheus' text format (version 0.0.4).
pub fn text(app: &App, engine: &Engine) -> String {
    let (mut page, m) = (Page::default(), &app.metrics);
    let help = "Requests to /predict by status; 499: the client went away.";
    page.statuses("predict_requests_total", help, &m.statuses);
    page.histogram("predict_seconds", "Time from a request's head to its answer.", &m.latency);

    let b = engine.batcher.stats();
    page.one("batcher_waiting", "gauge", "Requests that wait for a batch.", b.waiting);
    page.one("batcher_running", "gauge", "Requests whose batch is under way.", b.running);
    page.one("batcher_batches_in_flight", "gauge", "Batches under way.", b.in_flight);
    page.one("batcher_requests_total", "counter", "Requests taken into the queue.", b.requests);
    page.one(
        "batcher_refused_total",
        "counter",
        "Requests refused: the queue was full.",
        b.refused,
    );
    page.one("batcher_batches_total", "counter", "Batches.", b.batches);
    page.head(
        "batcher_withdrawn_total",
        "counter",
        "Requests that went away: from the queue, or from a batch.",
    );
    page.line("batcher_withdrawn_total", "{from=\"queue\"}", b.left_waiting);
    page.line("batcher_withdrawn_total", "{from=\"batch\"}", b.left_running);
    page.head("batcher_batch_size", "histogram", "Requests in a batch.");
    let (mut batches, mut rows) = (0, 0);
    for (k, count) in b.sizes.iter().enumerate() {
        (batches, rows) = (batches + count, rows + count * (k as u64 + 1));
        page.line("batcher_batch_size_bucket", &format!("{{le=\"{}\"}}", k + 1), batches);
    }
    page.line("batcher_batch_size_bucket", "{le=\"+Inf\"}", batches);
    page.line("batcher_batch_size_sum", "", rows);
    page.line("batcher_batch_size_count", "", batches);
    page.one(
        "batcher_queued_seconds_sum",
        "counter",
        "Time in the queue.",
        b.queued_total.as_secs_f64(),
    );

    let d = engine.device.stats();
    let device = format!("{{device=\"{}\"}}", label(engine.device.name()));
    let mut of_device = |name: &str, kind: &str, help: &str, value: f64| {
        page.head(name, kind, help);
        page.line(name, &device, value);
    };
    of_device("futensor_queued", "gauge", "Ops that are queued or running.", d.queued as f64);
    of_device("futensor_enqueued_total", "counter", "Ops that were queued.", d.enqueued as f64);
    of_device("futensor_started_total", "counter", "Steps that were started.", d.started as f64);
    of_device(
        "futensor_fused_total",
        "counter",
        "Ops that ran in another op's step.",
        d.fused as f64,
    );
    of_device(
        "futensor_skipped_total",
        "counter",
        "Ops that nobody wanted any more.",
        d.skipped as f64,
    );
    of_device("futensor_failed_total", "counter", "Values that failed.", d.failed as f64);
    of_device("futensor_bytes_live", "gauge", "Bytes of values.", d.bytes_live as f64);
    page.one("futensor_devices_lost_total", "counter", "Devices that were lost.", m.losses());

    let sites = engine.barriers.report().sites;
    let columns: [(&str, &str, &str, fn(&futensor::barrier::BarrierSite) -> f64); 4] = [
        ("futensor_barrier_total", "counter", "Awaits that have ended, by line.", |s| {
            s.count as f64
        }),
        ("futensor_barrier_seconds_total", "counter", "Time waited.", |s| s.total.as_secs_f64()),
        ("futensor_barrier_worst_seconds", "gauge", "Longest wait.", |s| s.worst.as_secs_f64()),
        ("futensor_barrier_ran_dry_total", "counter", "Waits that left the device idle.", |s| {
            s.ran_dry as f64
        }),
    ];
    for (name, kind, help, value) in columns {
        page.head(name, kind, help);
        for site in &sites {
            let place = format!("{}:{}", label(site.site.file()), site.site.line());
            page.line(name, &format!("{{site=\"{place}\",what=\"{}\"}}", site.what), value(site));
        }
    }
    page.text()
}
