//! The GPU's own times of what a recording saw, taken without waiting for them.

use super::support::block_on;
use super::{Entry, entries};
use futensor::cuda::CudaOptions;
use futensor::recording::{Ran, RecordedStep};
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::Simulator;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Id, Metadata, span};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

pub fn all() -> Vec<Entry> {
    entries![4, false;
        a_timed_recording_has_the_times_of_the_gpu
        a_sample_is_timed_and_the_rest_has_times_of_the_host
        nothing_is_timed_while_nobody_records
        a_steps_span_has_the_time_of_the_gpu_and_who_asked_for_it
        ranges_lie_around_the_launches_of_each_step_and_name_its_ops
        a_profiler_hears_nothing_unless_asked_to
    ]
    .to_vec()
}

/// What a step's span says: where the step ran, who asked for it, and how long it took.
#[derive(Clone, Debug, Default)]
struct StepSpan {
    at: (u64, u64),
    askers: Vec<u64>,
    took_ns: u64,
}

/// Spans of steps by their ids, while a trial listens.
#[derive(Clone, Default)]
struct Steps(Arc<Mutex<HashMap<u64, StepSpan>>>);

/// The subscriber is the process's; nobody else's trial hears of it.
static LISTENS: AtomicBool = AtomicBool::new(false);

impl Visit for StepSpan {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "stream" => self.at.0 = value,
            "point" => self.at.1 = value,
            "took_ns" => self.took_ns += value,
            _ => {}
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Steps {
    fn with(&self, step: &Id, change: impl FnOnce(&mut StepSpan)) {
        change(self.0.lock().unwrap().entry(step.into_u64()).or_default());
    }
}

impl<S: tracing::Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Steps {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }
    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        LISTENS.load(SeqCst)
    }
    fn on_new_span(&self, fields: &span::Attributes<'_>, step: &Id, _: Context<'_, S>) {
        self.with(step, |span| fields.record(span));
    }
    fn on_follows_from(&self, step: &Id, asker: &Id, _: Context<'_, S>) {
        self.with(step, |span| span.askers.push(asker.into_u64()));
    }
    fn on_record(&self, step: &Id, values: &span::Record<'_>, _: Context<'_, S>) {
        self.with(step, |span| values.record(span));
    }
}

fn a_steps_span_has_the_time_of_the_gpu_and_who_asked_for_it(simulator: &Simulator, _: u64) {
    static STEPS: OnceLock<Steps> = OnceLock::new();
    let steps = STEPS.get_or_init(|| {
        let steps = Steps::default();
        let subscriber = tracing_subscriber::registry().with(steps.clone());
        tracing::subscriber::set_global_default(subscriber).unwrap();
        steps
    });
    let device = Device::cuda_with(0, CudaOptions::default().timed(1)).unwrap();
    let weights = device.randn([32, 32]);
    // What a first product needs is there.
    block_on(weights.matmul(&weights).to_vec::<f32>()).unwrap();
    block_on(device.waitall()).unwrap();
    steps.0.lock().unwrap().clear();
    let recording = device.record();
    LISTENS.store(true, SeqCst);
    let requests = [1, 4].map(|times| (times, tracing::info_span!("request")));
    let ids = requests.each_ref().map(|(_, span)| span.id().unwrap().into_u64());
    let ask = |times: usize| {
        let products = (0..times).fold(weights.clone(), |x, _| x.matmul(&weights));
        products.to_vec::<f32>()
    };
    let reads = requests.each_ref().map(|(times, span)| span.in_scope(|| ask(*times)));
    // Another task's read, or none at all: nobody asked for it within a span.
    let aside = ask(1);
    reads.into_iter().for_each(|read| drop(block_on(read).unwrap()));
    // A step's span is over before its value is seen.
    let seen = steps.0.lock().unwrap().clone();
    block_on(aside).unwrap();
    block_on(device.waitall()).unwrap();
    LISTENS.store(false, SeqCst);
    let recorded = recording.finish().steps;
    for (id, (times, _)) in ids.into_iter().zip(&requests) {
        let asked = |span: &&StepSpan| span.askers == [id];
        let products: Vec<_> = recorded
            .iter()
            .filter(|step| step.ops.iter().any(|op| op.name == "matmul"))
            .filter_map(|step| match step.ran {
                Ran::Stream { stream, point } => Some((step, (stream as u64, point))),
                _ => None,
            })
            .filter_map(|(step, at)| {
                Some((step, seen.values().filter(asked).find(|span| span.at == at)?))
            })
            .collect();
        assert_eq!(products.len(), *times, "{seen:?}, {recorded:?}");
        for (step, span) in products {
            let took = step.ended - step.began;
            assert!(step.by_device && span.took_ns > 0, "{span:?}, {step:?}");
            assert_eq!(span.took_ns, took.as_nanos() as u64, "{span:?}, {step:?}");
        }
    }
    drop((weights, device));
    super::settle(simulator);
}

/// Ranges as the profiler saw them: depth of each line, and what stands open there.
fn opened(simulator: &Simulator) -> Vec<(Vec<String>, String)> {
    let mut open: HashMap<String, Vec<String>> = HashMap::new();
    let mut works = Vec::new();
    for line in simulator.ranges() {
        let (thread, rest) = line.split_once(' ').unwrap();
        let stack = open.entry(thread.to_owned()).or_default();
        match rest.split_once(' ').unwrap_or((rest, "")) {
            ("push", text) => stack.push(text.to_owned()),
            ("pop", _) => drop(stack.pop().expect("a range to close")),
            ("work", label) => works.push((stack.clone(), label.to_owned())),
            _ => panic!("{line}"),
        }
    }
    assert!(open.values().all(Vec::is_empty), "ranges stay open: {open:?}");
    works
}

fn ranges_lie_around_the_launches_of_each_step_and_name_its_ops(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().nvtx(true)).unwrap();
    let weights = device.randn([64, 64]);
    block_on(weights.clone()).unwrap();
    let line = line!() + 1;
    let y = weights.matmul(&weights).tanh() * 0.5;
    block_on(y.to_vec::<f32>()).unwrap();
    let region = device.region(|x: TensorFuture| (x.matmul(&x) + 1.0).tanh());
    for _ in 0..4 {
        block_on(region.call(weights.clone()).sum_all().item::<f32>()).unwrap();
    }
    drop((region, weights, y, device));
    super::settle(simulator);
    let works = opened(simulator);
    let kernels: Vec<_> = works
        .iter()
        .filter(|(_, label)| label.starts_with("kernel") || label.starts_with("cublas"))
        .collect();
    assert!(kernels.len() >= 8, "{works:?}");
    let within = |name: &str| {
        kernels.iter().filter(|(open, _)| open.iter().any(|text| text.contains(name))).count()
    };
    assert!(within(&format!("matmul (tests/simulated_cuda/times.rs:{line})")) >= 1, "{works:?}");
    // Fused with what follows, or before that came.
    let of_line =
        |text: &String| text.starts_with("tanh") && text.contains(&format!("times.rs:{line})"));
    assert!(kernels.iter().any(|(open, _)| open.iter().any(of_line)), "{works:?}");
    assert!(within("sum") >= 4, "{works:?}");
    // A region's steps have ranges of their own, inside the region's.
    assert!(
        kernels.iter().any(|(open, _)| open.len() == 2 && open[1].contains("matmul")),
        "{works:?}"
    );
    let bare: Vec<_> = works
        .iter()
        .filter(|(open, label)| open.is_empty() && label.starts_with("kernel"))
        .collect();
    assert!(bare.is_empty(), "launched outside a range: {bare:?}");
}

fn a_profiler_hears_nothing_unless_asked_to(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default()).unwrap();
    block_on(device.arange(0.0, 100.0, 1.0).exp().to_vec::<f32>()).unwrap();
    drop(device);
    super::settle(simulator);
    assert!(!simulator.ranges().iter().any(|line| line.contains("push")));
}

/// Some chains of products, recorded; only what ran on a stream.
fn recorded(device: &Device) -> Vec<RecordedStep> {
    let weights = device.randn([32, 32]);
    block_on(weights.clone()).unwrap();
    let recording = device.record();
    let mut chains = [weights.clone(), weights.clone(), weights.clone()];
    for _ in 0..8 {
        chains.iter_mut().for_each(|x| *x = x.matmul(&weights));
    }
    chains.iter().for_each(|x| drop(block_on(x.to_vec::<f32>()).unwrap()));
    block_on(device.waitall()).unwrap();
    let steps = recording.finish().steps;
    steps.into_iter().filter(|s| matches!(s.ran, Ran::Stream { .. })).collect()
}

fn a_timed_recording_has_the_times_of_the_gpu(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().timed(1)).unwrap();
    let steps = recorded(&device);
    let products = steps.iter().filter(|s| s.ops.iter().any(|op| op.name == "matmul"));
    assert_eq!(products.clone().count(), 24);
    assert!(products.clone().all(|s| s.by_device), "{steps:?}");
    assert!(products.clone().any(|s| s.ended > s.began), "no product took any time");
    let mut by_stream: HashMap<usize, Vec<(u64, &RecordedStep)>> = HashMap::new();
    for step in products {
        let Ran::Stream { stream, point } = step.ran else { continue };
        by_stream.entry(stream).or_default().push((point, step));
    }
    for steps in by_stream.values_mut() {
        steps.sort_by_key(|(point, _)| *point);
        for pair in steps.windows(2) {
            assert!(pair[0].1.ended <= pair[1].1.began, "steps of one stream overlap: {pair:?}");
        }
    }
    drop(device);
    super::settle(simulator);
}

fn a_sample_is_timed_and_the_rest_has_times_of_the_host(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().timed(3)).unwrap();
    let steps = recorded(&device);
    let timed = steps.iter().filter(|s| s.by_device).count();
    assert!(
        timed >= steps.len() / 3 - 1 && timed <= steps.len() / 3 + 1,
        "{timed} of {}",
        steps.len()
    );
    let host = steps.iter().filter(|s| !s.by_device);
    assert!(
        host.clone().all(|s| s.ended > s.began),
        "launched, and later seen to be through: {steps:?}"
    );
    drop(device);
    super::settle(simulator);
}

fn nothing_is_timed_while_nobody_records(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().streams(1).timed(1)).unwrap();
    let mut x = device.randn([32, 32]);
    block_on(x.matmul(&x).to_vec::<f32>()).unwrap();
    let timed = |x: &mut TensorFuture| {
        let before = simulator.stats().timed_records;
        for _ in 0..8 {
            *x = x.matmul(&*x) * 0.01;
        }
        block_on(x.to_vec::<f32>()).unwrap();
        simulator.stats().timed_records - before
    };
    assert_eq!(timed(&mut x), 0);
    let recording = device.record();
    let while_recorded = timed(&mut x);
    assert!(while_recorded >= 2 * 8, "{while_recorded} events around 8 products");
    drop(recording);
    assert_eq!(timed(&mut x), 0);
    drop((x, device));
    super::settle(simulator);
    assert_eq!(simulator.stats().live_events, 0);
}
