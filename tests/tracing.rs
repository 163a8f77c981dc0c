//! Spans and events: `cargo test -p futensor-tests --test tracing`.
//!
//! The subscriber here is written by hand and keeps what it is given; any other gets the same.

use futensor::{CpuOptions, Device};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

#[derive(Debug, Clone)]
struct Seen {
    target: String,
    span: bool,
    fields: HashMap<String, String>,
}

#[derive(Default)]
struct Log {
    seen: Vec<Seen>,
    entered: usize,
    left: usize,
}

struct Keeper {
    log: Arc<Mutex<Log>>,
    from: Level,
}

struct Fields(HashMap<String, String>);
impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}").trim_matches('"').to_owned());
    }
}

impl Keeper {
    fn keep(&self, metadata: &Metadata<'_>, span: bool, record: impl FnOnce(&mut Fields)) -> usize {
        let mut fields = Fields(HashMap::new());
        record(&mut fields);
        let mut log = self.log.lock().unwrap();
        log.seen.push(Seen { target: metadata.target().to_owned(), span, fields: fields.0 });
        log.seen.len()
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("futensor::") && *metadata.level() <= self.from
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        Id::from_u64(self.keep(span.metadata(), true, |f| span.record(f)) as u64)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.keep(event.metadata(), false, |f| event.record(f));
    }
    fn enter(&self, _: &Id) {
        self.log.lock().unwrap().entered += 1;
    }
    fn exit(&self, _: &Id) {
        self.log.lock().unwrap().left += 1;
    }
}

// One test: the subscriber is the process's, since steps run on the device's threads.
#[test]
fn ops_steps_and_barriers_are_told_with_the_callers_line() {
    let log = Arc::new(Mutex::new(Log::default()));
    tracing::subscriber::set_global_default(Keeper { log: log.clone(), from: Level::TRACE })
        .unwrap();
    let device = Device::cpu_with(CpuOptions::default().inline(false));
    let line = line!() + 2;
    futensor::block_on(async {
        let product = device.ones([300, 300]).matmul(device.ones([300, 300]));
        let y = product.exp();
        y.sum_all().item::<f32>().await.unwrap();
        (device.ones([2]) + 1.0).to_vec::<f32>().await.unwrap();
        device.shutdown().await.unwrap();
    });
    let log = log.lock().unwrap();
    let of = |target: &str| log.seen.iter().filter(|s| s.target == target).collect::<Vec<_>>();
    let ops = of("futensor::op");
    let names: Vec<&str> = ops.iter().map(|s| s.fields["op"].as_str()).collect();
    assert_eq!(names[..5], ["full", "full", "matmul", "exp", "sum"], "{names:?}");
    let exp = ops[3];
    assert_eq!(
        (
            exp.fields["line"].parse::<u32>().unwrap(),
            exp.fields["shape"].as_str(),
            exp.fields["device"].as_str()
        ),
        (line + 1, "[300, 300]", device.name())
    );
    let steps = of("futensor::step");
    let product = steps
        .iter()
        .find(|s| s.span && s.fields["ops"].contains("matmul"))
        .expect("a span of a step");
    assert_eq!(product.fields["line"], line.to_string());
    assert!(steps.iter().any(|s| !s.span && s.fields["op"] == "add"), "the small step: {steps:#?}");
    assert_eq!(log.entered, log.left);
    let barriers = of("futensor::barrier");
    let what: Vec<(&str, u32)> = barriers
        .iter()
        .map(|s| (s.fields["what"].as_str(), s.fields["line"].parse().unwrap()))
        .collect();
    assert_eq!(what, [("item", line + 2), ("to_vec", line + 3), ("waitall", line + 4)]);
    assert_eq!(barriers[0].fields["had_to_wait"], "true");
}
