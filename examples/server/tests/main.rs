//! The server example, as it is: its routes over a loopback port with a real HTTP client, its page
//! in a real browser where there is one, its faults on a simulated device.
//!
//! `FUTENSOR_SEED=7 cargo test -p server` replays the choices of the soak.

#[path = "../../../tests/support/mod.rs"]
mod support;

mod faults;
mod rig;

use faults::{
    a_kernel_that_fails_is_500_for_its_batch_and_nothing_else,
    a_lost_device_ends_the_service_where_that_is_the_policy,
    a_lost_device_fails_all_pending_at_once_and_the_cpu_takes_over,
    a_stuck_kernel_trips_the_deadline_and_not_the_executor,
    memory_that_is_not_to_be_had_is_500_for_its_batch_and_nothing_else,
    random_faults_disconnects_and_deadlines_lose_nothing,
};
use futensor::{CpuOptions, Device};
use libtest_mimic::{Arguments, Trial};
use rig::{JSON, RAW, Server, agent, check_answer, cpu, held_out, patient, send_only};
use serde_json::json;
use server::{App, Config};
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;
use support::browser::Browser;
use support::{Deadline, until};

fn both_kinds_of_body_are_answered_as_pytorch_does_with_these_weights() {
    let server = Server::start(cpu(), Config::default());
    let mut right = 0;
    let cases = held_out();
    for (pixels, digit, probability) in &cases {
        let (status, raw) = server.post(RAW, pixels);
        assert_eq!(status, 200);
        check_answer(&raw, probability);
        let body = json!({ "pixels": pixels }).to_string();
        let (status, from_json) = server.post("application/json; charset=utf-8", body.as_bytes());
        assert_eq!((status, &from_json["digit"]), (200, &raw["digit"]));
        check_answer(&from_json, probability);
        right += (raw["digit"] == *digit) as usize;
    }
    assert!(right * 20 >= cases.len() * 19, "{right} of {}", cases.len());
    server.stop().unwrap();
}

fn of_the_held_out_fifth_98_percent_are_recognised() {
    // 1,797 images of 64 bytes, then their labels; every fifth was held out of the training.
    let digits = include_bytes!("../../train_digits/data/digits.bin");
    let (images, labels) = digits.split_at(1797 * 64);
    let held_out: Vec<usize> = (4..1797).step_by(5).collect();
    let server = Server::start(cpu(), Config::default());
    let right = held_out.iter().filter(|&&i| {
        let (status, answer) = server.post(RAW, &images[i * 64..][..64]);
        assert_eq!(status, 200, "{answer}");
        answer["digit"] == labels[i]
    });
    let right = right.count();
    assert!(right * 100 >= held_out.len() * 98, "{right} of {}", held_out.len());
    server.stop().unwrap();
}

fn weights_of_another_network_are_refused_by_name_and_shape() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let refused = |model: &'static [u8]| {
        let config = Config {
            model: model.into(),
            model_file: "other.safetensors".into(),
            ..Config::default()
        };
        runtime.block_on(App::new(cpu(), config)).err().expect("an error").to_string()
    };
    let other = refused(include_bytes!("../../load_weights/weights.safetensors"));
    assert!(
        other.contains("0.weight has shape [16, 1, 3, 3], but the value has [8, 1, 3, 3]"),
        "{other}"
    );
    let cut = refused(&include_bytes!("../model/digits.safetensors")[..30_000]);
    assert!(cut.contains("truncated"), "{cut}");
    for error in [other, cut] {
        assert!(error.starts_with("other.safetensors: "), "{error}");
    }
}

fn an_address_that_is_taken_is_named() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let start = server::start(cpu(), Config::default(), address, |_| panic!("announced"));
    let error = runtime.block_on(start).err().expect("an error").to_string();
    assert!(error.starts_with(&format!("{address}: ")), "{error}");
}

fn nobody_is_told_of_the_address_and_nothing_listens_before_the_weights_are_there() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Somebody has this address: who asks for it before the weights are there says so, else what
    // the weights lack is said.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let refused = |device, model: &'static [u8], address| {
        let config = Config { model: model.into(), ..Config::default() };
        let start = server::start(device, config, address, |_| panic!("announced"));
        runtime.block_on(start).err().expect("an error").to_string()
    };
    let (own, other) = (
        include_bytes!("../model/digits.safetensors"),
        include_bytes!("../../load_weights/weights.safetensors"),
    );
    for address in [taken, ([127, 0, 0, 1], 0).into()] {
        let error = refused(cpu(), other, address);
        assert!(error.contains("has shape"), "{error}");
        // There is no room for them on the device.
        let device = Device::cpu_with(CpuOptions::default().bytes_max(1000));
        let error = refused(device, own, address);
        assert!(error.contains("memory"), "{error}");
    }
    let announced = std::cell::Cell::new(None);
    let start = server::start(cpu(), Config::default(), ([127, 0, 0, 1], 0).into(), |at| {
        announced.set(Some(at))
    });
    let _listening = runtime.block_on(start).unwrap();
    assert!(TcpStream::connect(announced.get().expect("told")).is_ok());
}

fn concurrent_requests_share_batches_and_each_gets_its_own_answer() {
    let config =
        Config { batch: 8, delay: Duration::from_millis(5), eager: false, ..Config::default() };
    let server = Server::start(cpu(), config);
    let cases = held_out();
    std::thread::scope(|scope| {
        for k in 0..16 {
            let (server, cases) = (&server, &cases);
            scope.spawn(move || {
                for i in 0..20 {
                    let (pixels, _, probability) = &cases[(7 * k + 3 * i) % cases.len()];
                    let (status, answer) = server.post(RAW, pixels);
                    assert_eq!(status, 200, "{answer}");
                    check_answer(&answer, probability);
                }
            });
        }
    });
    assert_eq!(server.metric("batcher_requests_total"), 320.0);
    assert!(server.metric("batcher_batches_total") < 320.0, "nobody shared a batch");
    assert_eq!(server.metric("predict_requests_total{status=\"200\"}"), 320.0);
    assert_eq!(server.metric("predict_seconds_count"), 320.0);
    assert_eq!(server.metric("batcher_waiting"), 0.0);
    server.stop().unwrap();
}

fn what_is_wrong_with_a_request_is_said_with_the_right_status() {
    let server = Server::start(cpu(), Config::default());
    let good = json!({ "pixels": vec![1; 64] }).to_string();
    let cases: &[(&str, Vec<u8>, u16, &str)] = &[
        (JSON, b"{\"pixels\": [1, 2".to_vec(), 400, "not the JSON"),
        (JSON, b"{}".to_vec(), 400, "pixels"),
        (JSON, good.replace("pixels", "pixel").into_bytes(), 400, "pixel"),
        (JSON, json!({ "pixels": vec![1; 63] }).to_string().into_bytes(), 422, "63 pixels"),
        (JSON, json!({ "pixels": vec![17; 64] }).to_string().into_bytes(), 422, "a pixel of 17"),
        (JSON, json!({ "pixels": vec!["a"; 64] }).to_string().into_bytes(), 400, "not the JSON"),
        (RAW, vec![1; 65], 422, "65 pixels"),
        (RAW, vec![255; 64], 422, "a pixel of 255"),
        (RAW, Vec::new(), 422, "0 pixels"),
        ("text/plain", vec![1; 64], 415, "application/json"),
        (RAW, vec![1; 100_000], 413, "length limit"),
    ];
    for (kind, body, status, words) in cases {
        let (got, answer) = server.post(kind, body);
        let text = answer.to_string();
        assert!(got == *status && text.contains(words), "{status} {words}: {got} {text}");
    }
    assert_eq!(agent().get(server.url("/predict")).call().unwrap().status(), 405);
    assert_eq!(server.get("/nowhere").0, 404);
    assert_eq!(server.post(JSON, good.as_bytes()).0, 200);
    // The engine has seen only the last.
    assert_eq!(server.metric("batcher_requests_total"), 1.0);
    server.stop().unwrap();
}

fn a_client_that_goes_away_takes_its_request_with_it() {
    let server = Server::start(cpu(), Config { batch: 3, ..patient() });
    let cases = held_out();
    let gone: Vec<TcpStream> = (0..2).map(|i| send_only(server.address, &cases[i].0)).collect();
    until(|| server.metric("batcher_waiting") == 2.0);
    drop(gone);
    until(|| server.metric("batcher_withdrawn_total{from=\"queue\"}") == 2.0);
    until(|| server.metric("predict_requests_total{status=\"499\"}") == 2.0);
    // Those who stay make a batch of their own, in which the others are not.
    std::thread::scope(|scope| {
        for case in &cases[3..6] {
            let server = &server;
            scope.spawn(move || check_answer(&server.post(RAW, &case.0).1, &case.2));
        }
    });
    assert_eq!(server.metric("batcher_batch_size_sum"), 3.0);
    server.stop().unwrap();
}

fn a_deadline_that_passes_is_504_and_its_work_is_withdrawn() {
    let server = Server::start(cpu(), patient());
    let (status, answer, _) = server.post_with(RAW, &[0; 64], Some(20));
    assert_eq!(status, 504, "{answer}");
    assert_eq!(server.metric("batcher_withdrawn_total{from=\"queue\"}"), 1.0);
    assert_eq!(server.metric("batcher_batches_total"), 0.0);
    server.stop().unwrap();
}

fn a_full_queue_is_503_with_retry_after() {
    let server = Server::start(cpu(), Config { queue: 2, ..patient() });
    let held = [send_only(server.address, &[1; 64]), send_only(server.address, &[2; 64])];
    until(|| server.metric("batcher_waiting") == 2.0);
    let (status, answer, retry) = server.post_with(RAW, &[3; 64], None);
    assert_eq!((status, retry.as_deref()), (503, Some("1")), "{answer}");
    drop(held);
    server.stop().unwrap();
}

fn a_queue_is_as_long_as_it_was_asked_for_and_each_503_is_counted() {
    // More than a device's own permits are by default.
    let queue = 100;
    let server = Server::start(cpu(), Config { queue, batch: 200, ..patient() });
    let held: Vec<_> = (0..queue + 3).map(|_| send_only(server.address, &[1; 64])).collect();
    let refused = "predict_requests_total{status=\"503\"}";
    until(|| server.get("/metrics").1.contains(&format!("{refused} 3\n")));
    assert_eq!(server.metric("batcher_waiting"), queue as f64);
    assert_eq!(server.metric("batcher_refused_total"), 3.0);
    drop(held);
    server.stop().unwrap();
}

fn the_end_answers_what_is_there_and_takes_no_more() {
    // The delay is short enough for the request to be answered during the end, and not before it.
    let config = Config { eager: false, delay: Duration::from_millis(300), ..Config::default() };
    let server = Server::start(cpu(), config);
    let cases = held_out();
    let mut waits = send_only(server.address, &cases[0].0);
    until(|| server.metric("batcher_waiting") == 1.0);
    let address = server.address;
    server.stop().unwrap();
    let mut text = String::new();
    waits.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    check_answer(
        &serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap(),
        &cases[0].2,
    );
    assert!(TcpStream::connect(address).is_err(), "it still listens");
}

fn an_end_that_takes_too_long_is_cut_and_says_so() {
    let server = Server::start(cpu(), Config { drain: Duration::from_millis(50), ..patient() });
    let held = send_only(server.address, &[1; 64]);
    until(|| server.metric("batcher_waiting") == 1.0);
    let error = server.stop().unwrap_err();
    assert!(error.contains("connections did not end in time"), "{error}");
    drop(held);
}

/// A seven and a zero, as strokes on the page's canvas.
const SEVEN: &str =
    "70,60;110,60;150,60;200,60;185,100;165,140;145,180;130,230|100,150;140,148;185,146";
const ZERO: &str = "140,40;110,55;90,90;82,140;90,190;110,225;\
    140,240;170,225;190,190;198,140;190,90;170,55;140,40";

fn the_page_draws_asks_and_shows_in_a_real_browser() {
    let server = Server::start(cpu(), Config::default());
    let browser = Browser::find().expect("the trial is ignored without one");
    for (strokes, digit) in [(ZERO, "0"), (SEVEN, "7")] {
        // It asks after each stroke.
        let drawn = format!("$('digit').textContent === '{digit}'");
        let shown =
            format!("{drawn} && /ok, on cpu:[^]*routes.rs:/.test(document.body.textContent)");
        let page = browser.page(&server.url(&format!("/#draw={strokes}")), &shown);
        assert!(page.contains(&format!("<div id=\"digit\">{digit}</div>")), "not {digit}:\n{page}");
        assert!(
            page.contains("ok, on cpu:") && page.contains("routes.rs:"),
            "no live figures:\n{page}"
        );
        assert!(page.contains("<div id=\"note\"></div>"), "an error is shown:\n{page}");
    }
    assert!(server.metric("predict_requests_total{status=\"200\"}") >= 2.0);
    server.stop().unwrap();
}

macro_rules! trials {
    ($($name:ident)*) => {
        vec![$(Trial::test(stringify!($name), || {
            let _deadline = Deadline::of(stringify!($name));
            $name();
            Ok(())
        })),*]
    };
}

fn main() {
    let mut trials = trials!(
        both_kinds_of_body_are_answered_as_pytorch_does_with_these_weights
        of_the_held_out_fifth_98_percent_are_recognised
        weights_of_another_network_are_refused_by_name_and_shape
        an_address_that_is_taken_is_named
        nobody_is_told_of_the_address_and_nothing_listens_before_the_weights_are_there
        concurrent_requests_share_batches_and_each_gets_its_own_answer
        what_is_wrong_with_a_request_is_said_with_the_right_status
        a_client_that_goes_away_takes_its_request_with_it
        a_deadline_that_passes_is_504_and_its_work_is_withdrawn
        a_full_queue_is_503_with_retry_after
        a_queue_is_as_long_as_it_was_asked_for_and_each_503_is_counted
        the_end_answers_what_is_there_and_takes_no_more
        an_end_that_takes_too_long_is_cut_and_says_so
        a_lost_device_fails_all_pending_at_once_and_the_cpu_takes_over
        a_lost_device_ends_the_service_where_that_is_the_policy
        a_kernel_that_fails_is_500_for_its_batch_and_nothing_else
        memory_that_is_not_to_be_had_is_500_for_its_batch_and_nothing_else
        a_stuck_kernel_trips_the_deadline_and_not_the_executor
        random_faults_disconnects_and_deadlines_lose_nothing
    );
    let in_browser = trials!(the_page_draws_asks_and_shows_in_a_real_browser);
    trials.extend(in_browser.into_iter().map(|t| t.with_ignored_flag(Browser::find().is_none())));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}
