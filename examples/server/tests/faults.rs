//! Devices that are lost, kernels that fail or hang, and all of that at random.

use crate::rig::{RAW, Server, agent, check_answer, held_out, send_only};
use crate::support::{Rng, until};
use futensor::Device;
use futensor::sim::SimOptions;
use serde_json::Value;
use server::{Config, OnLoss};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// A step that comes with the first batches: the model's own are fewer.
const AFTER_START: u64 = 60;

/// A simulated device that runs by itself, with faults to come.
fn simulated(change: impl FnOnce(SimOptions) -> SimOptions) -> Device {
    Device::simulated(change(SimOptions::new(5)).own_thread(true)).0
}

pub fn a_lost_device_fails_all_pending_at_once_and_the_cpu_takes_over() {
    let cases = held_out();
    let device = simulated(|o| o.device_loss_at(Some(AFTER_START)));
    let server = Server::start(device, Config { batch: 4, ..Config::default() });
    let name = server.app.engine().device.name().to_owned();
    assert!(name.starts_with("sim"));
    let (mut lost, mut answered) = (0, 0);
    while lost == 0 {
        let (status, answer) = server.post(RAW, &cases[0].0);
        match status {
            200 => answered += 1,
            503 => lost += 1,
            _ => panic!("{status} {answer}"),
        }
        assert!(answered < 1000, "the device is never lost");
    }
    until(|| server.get("/healthz").0 == 200);
    let health: Value = serde_json::from_str(&server.get("/healthz").1).unwrap();
    assert_eq!(health["status"], "fallback");
    for (pixels, _, probability) in &cases {
        let (status, answer) = server.post(RAW, pixels);
        assert_eq!(status, 200, "{answer}");
        check_answer(&answer, probability);
    }
    assert_eq!(server.metric("futensor_devices_lost_total"), 1.0);
    server.stop().unwrap();
}

pub fn a_lost_device_ends_the_service_where_that_is_the_policy() {
    let config =
        Config { on_loss: OnLoss::Exit, drain: Duration::from_secs(20), ..Config::default() };
    let mut server = Server::start(simulated(|o| o.device_loss_at(Some(AFTER_START))), config);
    let ended = server.ended.take().unwrap();
    // Asked until it says so; the health is red from then on, until nobody listens any more.
    loop {
        let Ok(mut response) =
            agent().post(server.url("/predict")).content_type(RAW).send(&[0u8; 64][..])
        else {
            break;
        };
        let status = response.status().as_u16();
        let _ = response.body_mut().read_to_string();
        if status == 503 {
            if let Ok(health) = agent().get(server.url("/healthz")).call() {
                assert_eq!(health.status(), 503);
            }
            break;
        }
        assert_eq!(status, 200);
    }
    let error = server.runtime.block_on(ended).unwrap().unwrap_err().to_string();
    assert!(error.contains("the device is lost"), "{error}");
}

pub fn a_kernel_that_fails_is_500_for_its_batch_and_nothing_else() {
    one_batch_fails(simulated(|o| o.kernel_failure_at(Some(AFTER_START))), "kernel failed");
}

pub fn memory_that_is_not_to_be_had_is_500_for_its_batch_and_nothing_else() {
    one_batch_fails(simulated(|o| o.out_of_memory_at(AFTER_START as usize)), "out of memory");
}

/// One of these requests meets a fault, whose error has these words.
fn one_batch_fails(device: Device, words: &str) {
    let server = Server::start(device, Config::default());
    let cases = held_out();
    let mut failed = 0;
    for i in 0..40 {
        let (status, answer) = server.post(RAW, &cases[i % cases.len()].0);
        match status {
            200 => check_answer(&answer, &cases[i % cases.len()].2),
            500 => {
                assert!(answer["error"].as_str().unwrap().contains(words), "{answer}");
                failed += 1;
            }
            _ => panic!("{status} {answer}"),
        }
    }
    assert_eq!(failed, 1);
    assert_eq!(server.get("/healthz").0, 200);
    server.stop().unwrap();
}

pub fn a_stuck_kernel_trips_the_deadline_and_not_the_executor() {
    let config =
        Config { deadline: Duration::from_millis(200), on_loss: OnLoss::Cpu, ..Config::default() };
    let server = Server::start(simulated(|o| o.stuck_at(Some(AFTER_START))), config);
    let late = (0..100).find(|_| server.post(RAW, &[1; 64]).0 == 504);
    assert!(late.is_some(), "nothing got stuck");
    // Everything else is answered as ever.
    for _ in 0..20 {
        assert_eq!(server.get("/healthz").0, 200);
    }
    let drained = server.stop().unwrap_err();
    assert!(drained.contains("did not drain"), "{drained}");
}

pub fn random_faults_disconnects_and_deadlines_lose_nothing() {
    let seed = std::env::var("FUTENSOR_SEED").ok().and_then(|s| s.parse().ok());
    let seed: u64 =
        seed.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(0, |t| t.as_nanos() as u64));
    println!("FUTENSOR_SEED={seed}");
    let mut rng = Rng(seed);
    let cases = held_out();
    for round in 0..6 {
        let when = AFTER_START as usize + rng.below(200);
        let device = simulated(|o| match round {
            0 => o.kernel_failure_at(Some(when as u64)),
            1 => o.out_of_memory_at(when),
            2 => o.device_loss_at(Some(when as u64)),
            3 => o.stuck_at(Some(when as u64)).watchdog(Some(Duration::from_millis(1))),
            _ => o,
        });
        let config = Config {
            batch: 1 + rng.below(8),
            queue: 4 + rng.below(12),
            delay: Duration::from_micros(rng.below(2000) as u64),
            eager: rng.below(2) == 0,
            deadline: Duration::from_secs(10),
            drain: Duration::from_secs(20),
            ..Config::default()
        };
        let server = Server::start(device.clone(), config);
        // The model alone: what has to be left at the end.
        until(|| device.stats().queued == 0);
        let resting = device.stats().bytes_live;
        let (answered, failed, gone) =
            (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for client in 0..8 {
                let mut rng = Rng(seed ^ (round * 100 + client));
                let (server, cases, answered, failed, gone) =
                    (&server, &cases, &answered, &failed, &gone);
                scope.spawn(move || {
                    for _ in 0..40 {
                        let (pixels, _, probability) = &cases[rng.below(cases.len())];
                        if rng.below(5) == 0 {
                            let stream = send_only(server.address, pixels);
                            let moment = Instant::now();
                            let wait = Duration::from_micros(rng.below(800) as u64);
                            until(|| moment.elapsed() >= wait);
                            drop(stream);
                            gone.fetch_add(1, SeqCst);
                            continue;
                        }
                        let deadline = (rng.below(4) == 0).then(|| rng.below(3) as u64);
                        let (status, answer, _) = server.post_with(RAW, pixels, deadline);
                        match status {
                            200 => {
                                check_answer(&answer, probability);
                                answered.fetch_add(1, SeqCst);
                            }
                            500 | 503 | 504 => {
                                failed.fetch_add(1, SeqCst);
                            }
                            _ => panic!("{status} {answer}"),
                        }
                    }
                });
            }
        });
        let counts = (answered.load(SeqCst), failed.load(SeqCst), gone.load(SeqCst));
        assert_eq!(counts.0 + counts.1 + counts.2, 320);
        assert!(counts.0 > 20, "round {round}: {counts:?}");
        let engine = server.app.engine();
        until(|| {
            let stats = engine.batcher.stats();
            (stats.waiting, stats.running, stats.in_flight) == (0, 0, 0)
        });
        let stats = engine.batcher.stats();
        let ended = stats.answered + stats.failed + stats.left_waiting + stats.left_running;
        assert_eq!(ended, stats.requests, "round {round}: {stats:?}");
        until(|| engine.device.stats().queued == 0);
        if !engine.fallback {
            until(|| {
                // The model's weights in packed form are not of a request.
                device.trim();
                device.stats().bytes_live == resting
            });
        }
        assert_eq!(server.get("/healthz").0, 200);
        drop(engine);
        server.stop().unwrap();
    }
}
