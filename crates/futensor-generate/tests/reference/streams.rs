//! Streams as their readers see them, with the engine's own thread.

use super::files;
use futensor::{CpuOptions, Device, block_on};
use futensor_generate::{Constraint, End, Engine, Options, Request, Stats, Tokens};
use futures::{Stream, StreamExt};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Token k is followed by k + 1; no token ends a text but the first.
fn engine(options: Options) -> Engine {
    let row = |last: usize| {
        (0..50).map(move |next| if next == last % 49 + 1 { 9.0 } else { 0.0 }).collect()
    };
    let logits: Vec<Vec<f32>> = (0..50).map(row).collect();
    let device = Device::cpu_with(CpuOptions::default());
    Engine::start(files::table(&device, &logits, Vec::new()), options).unwrap()
}

fn until(engine: &Engine, is_so: impl Fn(&Stats) -> bool) {
    let begin = Instant::now();
    while !is_so(&engine.stats()) {
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", engine.stats());
        std::thread::sleep(Duration::from_millis(1));
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// The next item; a failure where nobody wakes for it.
fn next(tokens: &mut Tokens) -> Option<futensor_generate::Result<futensor_generate::Token>> {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let begin = Instant::now();
    loop {
        let Poll::Ready(item) = Pin::new(&mut *tokens).poll_next(&mut Context::from_waker(&waker))
        else {
            assert!(begin.elapsed() < Duration::from_secs(30), "nobody wakes the reader");
            std::thread::park_timeout(Duration::from_secs(30));
            continue;
        };
        return item;
    }
}

#[test]
fn a_reader_who_pauses_gets_all_the_rest() {
    let engine = engine(Options { slots: 1, buffer: 2, ..Options::default() });
    let mut tokens = engine.generate(Request::new(vec![1]).tokens_max(40)).unwrap();
    let mut read = 0;
    while let Some(token) = {
        // The engine has nothing left to do, and sleeps.
        let full = (read + 2).min(40);
        until(&engine, |s| s.tokens >= full);
        std::thread::sleep(Duration::from_millis(2));
        next(&mut tokens)
    } {
        assert_eq!(token.unwrap().id as u64, (read + 1) % 49 + 1);
        assert!(engine.stats().tokens <= read + 4, "what nobody has room for is not computed");
        read += 1;
    }
    assert_eq!(read, 40);
}

#[test]
fn a_deadline_ends_who_runs_and_who_waits_while_the_engine_sleeps() {
    let engine = engine(Options { slots: 1, buffer: 1, ..Options::default() });
    let ask = |ms: u64| {
        let request = Request::new(vec![1]).tokens_max(100);
        engine.generate(request.deadline(Duration::from_millis(ms))).unwrap()
    };
    let begin = Instant::now();
    let (mut runs, mut waits) = (ask(400), ask(150));
    let late = |tokens: &mut Tokens| {
        let error = next(tokens).unwrap().unwrap_err();
        assert!(error.is_deadline() && next(tokens).is_none(), "{error}");
        begin.elapsed().as_millis()
    };
    // Nothing else happens meanwhile: the one that runs has no room.
    let took = late(&mut waits);
    assert!((150..5_000).contains(&took), "{took}");
    until(&engine, |s| s.running == 0);
    let took = begin.elapsed().as_millis();
    assert!((400..5_000).contains(&took), "{took}");
    assert!(next(&mut runs).unwrap().is_ok());
    late(&mut runs);
    assert_eq!((engine.stats().failed, engine.stats().left), (2, 0));
}

#[test]
fn the_stop_word_that_comes_first_cuts_however_they_are_listed() {
    let engine = engine(Options { slots: 1, ..Options::default() });
    let name = |token: u32| files::names(50)[token as usize].clone();
    let said = |stop: &[String]| {
        let tokens =
            super::answer(&engine, Request::new(vec![1]).tokens_max(20).stop(stop.to_vec()));
        assert_eq!(tokens.last().unwrap().end, Some(End::Stop));
        tokens.iter().map(|t| &t.text[..]).collect::<String>()
    };
    let text = |to: u32| (2..to).map(name).collect::<String>();
    for stop in [
        [name(9), name(6)],
        [name(6), name(9)],
        [name(7) + &name(8), name(6)],
        [name(6) + "no", name(6)],
    ] {
        assert_eq!(said(&stop), text(6), "{stop:?}");
    }
    // What may become one and does not is shown at the end.
    let request = Request::new(vec![1]).tokens_max(20).stop([name(20) + &name(21) + &name(30)]);
    let tokens = super::answer(&engine, request);
    assert_eq!(tokens.last().unwrap().end, Some(End::Length));
    assert_eq!(tokens.iter().map(|t| &t.text[..]).collect::<String>(), text(22));
    assert_eq!(
        said(&[String::new(), name(12) + &name(13) + &name(14), name(13) + &name(14)]),
        text(12)
    );
}

#[test]
fn many_who_wait_go_away_at_once() {
    let engine = engine(Options { slots: 1, buffer: 1, ..Options::default() });
    let took = |count: usize| {
        let held = engine.generate(Request::new(vec![1]).tokens_max(100)).unwrap();
        let waiting: Vec<_> = (0..count)
            .map(|k| {
                let request = Request::new(vec![1]).tokens_max(9);
                engine
                    .generate(if k % 2 == 0 {
                        request
                    } else {
                        request.deadline(Duration::from_secs(900))
                    })
                    .unwrap()
            })
            .collect();
        until(&engine, |s| s.waiting == count && s.running == 1);
        let left = engine.stats().left;
        let begin = Instant::now();
        // In no order of theirs.
        let (odd, even): (Vec<_>, Vec<_>) =
            waiting.into_iter().enumerate().partition(|(k, _)| k % 2 == 1);
        drop((odd, even));
        until(&engine, |s| s.left == left + count as u64);
        let took = begin.elapsed();
        drop(held);
        until(&engine, |s| s.running == 0 && s.waiting == 0);
        took
    };
    let took = took(16_000);
    assert!(took < Duration::from_millis(700), "{took:?}");
}

#[test]
fn an_engine_goes_on_while_constraints_are_compiled() {
    let engine = engine(Options { slots: 1, ..Options::default() });
    let properties: serde_json::Map<_, _> =
        (0..1_500).map(|k| (format!("key{k}"), serde_json::json!({ "type": "string" }))).collect();
    let wide = serde_json::json!({ "type": "object", "properties": properties });
    let begin = Instant::now();
    let mut wide =
        engine.generate(Request::new(vec![1]).constraint(Constraint::JsonSchema(wide))).unwrap();
    let called = begin.elapsed();
    // It has no slot yet, and nobody waits behind it.
    let tokens = super::answer(&engine, Request::new(vec![1]).tokens_max(5));
    assert_eq!(tokens.len(), 5);
    assert!(called < Duration::from_millis(100), "{called:?}");
    // Braces are no tokens of this model: it cannot say what is asked for.
    assert!(next(&mut wide).is_some());
    let wrong =
        engine.generate(Request::new(vec![1]).constraint(Constraint::Regex("(".into()))).unwrap();
    let items: Vec<_> = block_on(wrong.collect());
    assert!(items.len() == 1 && items[0].as_ref().unwrap_err().is_request());
    // One that goes away, or is late, while it is compiled takes nothing with it.
    drop(
        engine.generate(Request::new(vec![1]).constraint(Constraint::Regex("3+6".into()))).unwrap(),
    );
    let late =
        Request::new(vec![1]).constraint(Constraint::Regex("3+5".into())).deadline(Duration::ZERO);
    assert!(next(&mut engine.generate(late).unwrap()).unwrap().unwrap_err().is_deadline());
    drop(wide);
    until(&engine, |s| s.running == 0 && s.waiting == 0 && s.pages_used == 0);
    let text: String = super::answer(
        &engine,
        Request::new(vec![1]).constraint(Constraint::Regex("3+4".into())).tokens_max(9),
    )
    .iter()
    .map(|t| &t.text[..])
    .collect();
    assert!(text.trim_start_matches('3') == "4" || text.chars().all(|c| c == '3'), "{text}");
}

/// A model of random weights, whose tokens depend on all that went before.
fn random(device: &Device) -> futensor_generate::Llama {
    let generator = futensor::Generator::new(9);
    let matrix = |out: usize, into: usize| {
        let x = generator.randn(device, [out, into]) * (1.5 / (into as f64).sqrt());
        x.to_dtype(futensor::DType::BF16)
    };
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), matrix(90, 64)),
        ("output_norm.weight".to_owned(), device.ones([64])),
    ];
    for k in 0..2 {
        for (name, out, into) in [
            ("attn_q", 64, 64),
            ("attn_k", 32, 64),
            ("attn_v", 32, 64),
            ("attn_output", 64, 64),
            ("ffn_gate", 96, 64),
            ("ffn_up", 96, 64),
            ("ffn_down", 64, 96),
        ] {
            tensors.push((format!("blk.{k}.{name}.weight"), matrix(out, into)));
        }
        for name in ["attn_norm", "ffn_norm"] {
            tensors.push((format!("blk.{k}.{name}.weight"), device.ones([64])));
        }
    }
    let metadata = files::metadata([2, 512, 64, 96, 4, 2], 90, Vec::new());
    files::load(device, metadata, tensors).unwrap()
}

/// There are pages for two of eight: the others wait again and again, and nobody hears of it.
#[test]
fn whoever_has_to_wait_again_goes_on_to_the_bit() {
    let device = Device::cpu_with(CpuOptions::default());
    // A page of four tokens has a kilobyte.
    let start = |slots: usize, kilobytes: usize| {
        let options =
            Options { slots, page: 4, pages_bytes: kilobytes << 10, ..Options::default() };
        Engine::start(random(&device), options).unwrap()
    };
    let request = |k: u32| {
        let prompt = (0..3 + k * 3).map(|at| (at * 7 + k) % 90).collect();
        let mut request = Request::new(prompt).tokens_max(40).logprobs(2);
        request.ignore_end = true;
        if k % 2 == 1 {
            request.sampling.temperature = 1.0;
            request.sampling.frequency_penalty = 0.4;
            request.sampling.seed = k.into();
        }
        request
    };
    let engine = start(1, 64);
    let alone: Vec<_> = (0..8).map(|k| super::answer(&engine, request(k))).collect();
    let engine = start(8, 24);
    let streams: Vec<_> = (0..8).map(|k| engine.generate(request(k)).unwrap()).collect();
    let together: Vec<Vec<futensor_generate::Token>> = block_on(futures::future::join_all(
        streams.into_iter().map(|stream| stream.map(|token| token.unwrap()).collect()),
    ));
    assert!(engine.stats().preempted > 3, "{:?}", engine.stats());
    for (k, (together, alone)) in together.iter().zip(&alone).enumerate() {
        assert_eq!(together, alone, "request {k}");
    }
    until(&engine, |s| s.pages_used == 0);
}
