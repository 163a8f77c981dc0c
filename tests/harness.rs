//! How trials are run, tried on a suite that breaks every rule: each trial has an outcome of its
//! own, and what one leaves behind is named.

mod support;
#[path = "support/trials.rs"]
mod trials;

use futensor::Device;
use std::collections::BTreeMap;
use std::mem::forget;
use std::process::{Command, ExitCode};
use support::{Kind, NotHere, block_on};
use trials::cases;

/// Set in the process that has the suite of [`broken`] trials.
const BROKEN: &str = "FUTENSOR_TRIALS_BROKEN";

fn main() -> ExitCode {
    match std::env::var_os(BROKEN) {
        Some(_) => trials::run(broken(), true),
        None => {
            trials::run(cases![""; each_trial_has_an_outcome_and_what_it_leaves_is_named], true)
        }
    }
}

/// What each of them does wrong, with some between that do nothing wrong.
fn broken() -> Vec<trials::Case> {
    cases![""; passes hangs passes_after_a_hang aborts exits panics passes_after_all_that
        is_left_out forgets_a_value forgets_a_source forgets_an_await forgets_a_place
        forgets_a_permit keeps_what_it_says
        keeps_more_than_it_says passes_at_the_end]
}

fn passes() {
    println!("what a trial that passes prints is nobody's concern");
    block_on(Kind::Cpu.device().ones([3]) + 1.0).expect("a value");
}

fn passes_after_a_hang() {
    passes();
}

fn passes_after_all_that() {
    passes();
}

fn passes_at_the_end() {
    passes();
}

fn hangs() {
    println!("it gets as far as this");
    loop {
        std::thread::park();
    }
}

fn aborts() {
    std::process::abort();
}

fn exits() {
    std::process::exit(0);
}

fn panics() {
    panic!("as it was\nasked to");
}

fn is_left_out() {
    std::panic::resume_unwind(Box::new(NotHere("such a thing")));
}

fn forgets_a_value() {
    forget(block_on(Kind::Cpu.device().ones([100]) + 1.0));
}

fn forgets_a_source() {
    let never = std::future::pending::<Result<Vec<f32>, String>>();
    forget(Kind::Cpu.device().from_future([2], never) + 1.0);
}

fn forgets_an_await() {
    let (device, _) = Device::simulated(futensor::sim::SimOptions::new(1).stuck_at(Some(1)));
    support::keeps(&device, support::STUCK);
    let x = device.ones([2]) + 1.0;
    let mut wait = x.wait_to_read();
    block_on(async { assert!(futures::poll!(&mut wait).is_pending()) });
    forget(wait);
}

fn forgets_a_place() {
    let device = Kind::Cpu.device_with(|o| o.permits(1));
    let permit = device.try_admit();
    let mut place = device.admit();
    block_on(async { assert!(futures::poll!(&mut place).is_pending()) });
    forget((permit, place));
}

fn forgets_a_permit() {
    forget(Kind::Cpu.device().try_admit());
}

fn keeps_what_it_says() {
    let device = Kind::Cpu.device();
    support::keeps(&device, &["live bytes", "values"]);
    forget(block_on(device.ones([100]) + 1.0));
}

fn keeps_more_than_it_says() {
    let device = Kind::Cpu.device();
    support::keeps(&device, &["live bytes", "values"]);
    forget((block_on(device.ones([100]) + 1.0), device.try_admit()));
}

fn each_trial_has_an_outcome_and_what_it_leaves_is_named() {
    let this = std::env::current_exe().expect("a program");
    let mut command = Command::new(this);
    command.env(BROKEN, "1").env("FUTENSOR_TRIAL_SECONDS", "1").env_remove(trials::NAMED);
    let output = command.output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{text}");
    let outcomes: BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("test ")?.split_once(" ... ")).collect();
    let outcomes: BTreeMap<&str, &str> =
        outcomes.iter().map(|(name, came)| (name.trim(), came.trim())).collect();
    // What it says of a failure: the text between its own headline and the next.
    let said = |name: &str| {
        let (_, after) = text
            .split_once(&format!("---- {name} ----"))
            .unwrap_or_else(|| panic!("{name}: {text}"));
        after.split("\n---- ").next().unwrap_or(after).to_owned()
    };
    let failed: [(&str, &[&str]); 10] = [
        ("hangs", &["not through after 1s", "it gets as far as this"]),
        ("aborts", &["its process ended before it did", "signal"]),
        ("exits", &["its process ended before it did", "exit status: 0"]),
        ("panics", &["as it was\nasked to"]),
        ("forgets_a_value", &["448 live bytes", "1 values"]),
        ("forgets_a_source", &["2 queued ops", "2 entries", "1 sources", "1 waitalls do not end"]),
        ("forgets_an_await", &["1 wakers"]),
        ("forgets_a_place", &["1 waiters", "1 permits"]),
        ("forgets_a_permit", &["cpu:", "1 permits"]),
        ("keeps_more_than_it_says", &["1 permits"]),
    ];
    for (name, words) in failed {
        assert_eq!(outcomes.get(name), Some(&"FAILED"), "{name}: {text}");
        let said = said(name);
        assert!(
            words.iter().all(|word| said.contains(word)),
            "{name} should say {words:?}: {said}"
        );
    }
    assert!(!said("keeps_more_than_it_says").contains("live bytes"), "{text}");
    let passed = [
        "passes",
        "passes_after_a_hang",
        "passes_after_all_that",
        "keeps_what_it_says",
        "passes_at_the_end",
    ];
    for name in passed {
        assert_eq!(outcomes.get(name), Some(&"ok"), "{name}: {text}");
    }
    assert_eq!(outcomes.get("is_left_out"), Some(&"ignored (such a thing)"), "{text}");
    assert_eq!(outcomes.len(), broken().len(), "{text}");
}
