//! The time that a device spends on each request, by `tracing`: `cargo test -p futensor-tests
//! --test request_time`.
//!
//! The layer is that of the library's page of recordings, to the letter.

use futensor::serve::{BatchOptions, Batcher, rows};
use futensor::sim::SimOptions;
use futensor::{CpuOptions, Device, stack};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};
use tracing::Instrument;
use tracing_subscriber::layer::SubscriberExt;

// The page: from here
use tracing::field::{Field, Visit};
use tracing::{Id, Subscriber, span};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// Nanoseconds of device time, by the id of a request's span.
#[derive(Clone, Default)]
struct DeviceTime(Arc<Mutex<HashMap<u64, u64>>>);

/// In a step's or a batch's span: who asked for it.
#[derive(Default)]
struct AskedBy(Vec<Id>);

struct Took(u64);
impl Visit for Took {
    fn record_u64(&mut self, field: &Field, ns: u64) {
        if field.name() == "took_ns" {
            self.0 += ns;
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl DeviceTime {
    /// Each of those who asked has its part. A batch hands its part on to its requests.
    fn share<S: Subscriber + for<'a> LookupSpan<'a>>(
        &self,
        ns: u64,
        of: &Id,
        spans: &Context<'_, S>,
    ) {
        let Some(span) = spans.span(of) else { return };
        let asked_by = span.extensions().get::<AskedBy>().map(|by| by.0.clone());
        let Some(asked_by) = asked_by else {
            // A span of the program's own: the outermost around it is the request's.
            let request = span.scope().from_root().next().map_or(span.id(), |root| root.id());
            *self.0.lock().unwrap().entry(request.into_u64()).or_default() += ns;
            return;
        };
        for asker in &asked_by {
            self.share(ns / asked_by.len() as u64, asker, spans);
        }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for DeviceTime {
    fn on_follows_from(&self, span: &Id, asker: &Id, spans: Context<'_, S>) {
        let Some(span) = spans.span(span) else { return };
        let mut extensions = span.extensions_mut();
        match extensions.get_mut::<AskedBy>() {
            Some(by) => by.0.push(asker.clone()),
            None => extensions.insert(AskedBy(vec![asker.clone()])),
        }
    }
    fn on_record(&self, step: &Id, values: &span::Record<'_>, spans: Context<'_, S>) {
        let mut took = Took(0);
        values.record(&mut took);
        if took.0 > 0 {
            self.share(took.0, step, &spans);
        }
    }
    fn on_close(&self, request: Id, _: Context<'_, S>) {
        // To the log, or to the server's metrics.
        if let Some(ns) = self.0.lock().unwrap().remove(&request.into_u64()) {
            println!("a request has had {ns} ns of the device");
        }
    }
}
// The page: to here

/// How often each span was followed, by the span and the ops of the step or `batch`.
#[derive(Clone, Default)]
struct Followed(Arc<Mutex<Vec<(String, u64)>>>);

struct Ops(String);
impl Visit for Ops {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "ops" {
            self.0 = value.to_owned();
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Followed {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &Id, spans: Context<'_, S>) {
        let mut ops = Ops(attributes.metadata().name().to_owned());
        attributes.record(&mut ops);
        spans.span(id).unwrap().extensions_mut().insert(ops);
    }
    fn on_follows_from(&self, span: &Id, asker: &Id, spans: Context<'_, S>) {
        let span = spans.span(span).unwrap();
        let extensions = span.extensions();
        let ops = extensions.get::<Ops>().unwrap().0.clone();
        self.0.lock().unwrap().push((ops, asker.into_u64()));
    }
}

/// Spans that have closed.
#[derive(Clone, Default)]
struct Closed(Arc<Mutex<Vec<u64>>>);

impl<S: Subscriber> Layer<S> for Closed {
    fn on_close(&self, id: Id, _: Context<'_, S>) {
        self.0.lock().unwrap().push(id.into_u64());
    }
}

/// The subscriber is the process's, since steps run on the device's threads.
static SEEN: LazyLock<(DeviceTime, Followed, Closed)> = LazyLock::new(|| {
    let seen = (DeviceTime::default(), Followed::default(), Closed::default());
    let layers = tracing_subscriber::registry()
        .with(seen.0.clone())
        .with(seen.1.clone())
        .with(seen.2.clone());
    tracing::subscriber::set_global_default(layers).unwrap();
    seen
});

fn time_of(span: &tracing::Span) -> u64 {
    SEEN.0.0.lock().unwrap().get(&span.id().unwrap().into_u64()).copied().unwrap_or(0)
}

/// What followed from a span.
fn followers(span: &tracing::Span) -> Vec<String> {
    let id = span.id().unwrap().into_u64();
    let all = SEEN.1.0.lock().unwrap();
    all.iter().filter(|(_, asker)| *asker == id).map(|(ops, _)| ops.clone()).collect()
}

#[test]
fn each_request_has_the_time_of_its_own_steps() {
    LazyLock::force(&SEEN);
    let (simulated, simulation) = Device::simulated(SimOptions::new(7));
    for device in [Device::cpu_with(CpuOptions::default()), simulated] {
        let (light, heavy) = (tracing::info_span!("light"), tracing::info_span!("heavy"));
        let request = async |n: usize, times: usize| {
            let x = device.ones([n, n]) * (1.0 / n as f32);
            for _ in 0..times {
                // In a span inside the request's.
                let product = tracing::info_span!("layer").in_scope(|| x.matmul(&x));
                product.exp().sum_all().item::<f32>().await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let both = async {
            futures::join!(
                request(128, 3).instrument(light.clone()),
                request(300, 6).instrument(heavy.clone())
            )
        };
        match device.name().starts_with("sim") {
            true => drop(simulation.block_on(both).expect("it ends")),
            false => drop(futensor::block_on(both)),
        }
        // A step's span is over before its value is seen: nothing is still to come.
        let (light, heavy) = (time_of(&light), time_of(&heavy));
        // On a busy machine a short step may be kept from its core; simulated time is its own.
        let least = if device.name().starts_with("sim") { 4 * light } else { 0 };
        assert!(light > 0 && heavy > least, "{device}: {light} and {heavy} ns");
    }
}

#[test]
fn a_fused_step_follows_from_each_who_asked_for_a_part_of_it() {
    LazyLock::force(&SEEN);
    let device = Device::cpu_with(CpuOptions::default());
    let [first, second, other] = ["first", "second", "other"].map(|_| tracing::info_span!("of"));
    // Nothing is taken up before all of it is queued.
    let gate = support::Gate::new();
    let source = gate.op(&device.randn([200_000]));
    let region = device.region(|x: futensor::TensorFuture| x.tanh() * 3.0);
    futensor::block_on(async {
        let a = first.in_scope(|| source.exp() + 1.0);
        let b = second.in_scope(|| a * 2.0);
        gate.open();
        b.await.unwrap();
        other.in_scope(|| region.call(source.clone())).await.unwrap();
    });
    let both = |span| followers(span).iter().any(|ops| ops.contains("exp") && ops.contains("mul"));
    assert!(both(&first) && both(&second), "{:?} {:?}", followers(&first), followers(&second));
    assert_eq!(followers(&first).len(), 1, "once, though two of its ops are in there");
    assert!(!followers(&other).is_empty(), "who calls a region asks for it");
}

#[test]
fn a_span_closes_though_what_was_asked_for_in_it_lives() {
    LazyLock::force(&SEEN);
    let device = Device::cpu_with(CpuOptions::default());
    let region = device.region(|x: futensor::TensorFuture| x.matmul(&x) + 1.0);
    let span = tracing::info_span!("the first request");
    let id = span.id().unwrap().into_u64();
    let closed = || SEEN.2.0.lock().unwrap().contains(&id);
    // Planned in here, and kept: the plan, and the values.
    let x = span.in_scope(|| device.randn([70, 70]));
    let y = span.in_scope(|| region.call(x.clone()));
    drop(span);
    futensor::block_on(async { y.wait_to_read().await.unwrap() });
    support::until(closed);
    // What is skipped lets go as well.
    let span = tracing::info_span!("a request that goes away");
    let id = span.id().unwrap().into_u64();
    drop(span.in_scope(|| device.randn([70, 70])));
    drop(span);
    support::until(|| SEEN.2.0.lock().unwrap().contains(&id));
    drop((x, y, region));
}

#[test]
fn a_batch_follows_from_its_requests_and_its_steps_from_the_batch() {
    LazyLock::force(&SEEN);
    let device = Device::cpu_with(CpuOptions::default());
    let weight = device.ones([256, 256]);
    let options = BatchOptions::default().batch_max(2).eager(false);
    let batcher = Batcher::new(options, move |requests: &[f32]| {
        let inputs: Vec<_> = requests.iter().map(|&r| device.full([256, 256], r)).collect();
        rows(&stack(&inputs, 0).matmul(&weight).exp())
    });
    let spans = [tracing::info_span!("one"), tracing::info_span!("two")];
    let last = tracing::info_span!("who happens to make the batch due");
    futensor::block_on(async {
        let one = spans[0].in_scope(|| batcher.submit(0.001));
        // The second comes in a task of its own, in whose span the function is called.
        let two = last.in_scope(|| {
            let place = spans[1].clone();
            place.in_scope(|| batcher.submit(0.002))
        });
        futures::try_join!(one, two).unwrap();
    });
    assert_eq!(followers(&spans[0]), ["batch"]);
    assert_eq!(followers(&spans[1]), ["batch"]);
    assert!(followers(&last).is_empty());
    let [one, two] = spans.each_ref().map(time_of);
    assert!(one > 0 && one == two, "{one} and {two}");
}

#[test]
fn the_layer_is_the_pages() {
    let own = include_str!("request_time.rs");
    let own = own.split("// The page: from here\n").nth(1).unwrap();
    let own = own.split("// The page: to here").next().unwrap();
    let page: String = include_str!("../src/lib.rs")
        .lines()
        .filter_map(|line| line.strip_prefix("///"))
        .map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line)))
        .collect();
    assert!(page.contains(own.trim()), "the page of `recording` shows another layer");
}
