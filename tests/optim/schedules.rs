//! Learning rates beside PyTorch's: each option of each schedule.

use crate::steps::*;
use futensor::Device;
use futensor::optim::{Constant, Cosine, Schedule, StepDecay, Warmup};

#[test]
fn schedules_give_pytorchs_rates() {
    let reference = reference(&Device::cpu());
    let all: [(&str, Box<dyn Schedule>); 4] = [
        ("step", Box::new(StepDecay::new(0.3, 7, 0.3))),
        ("cosine", Box::new(Cosine::new(0.3, 20))),
        ("cosine_down_to", Box::new(Cosine::new(0.3, 20).down_to(0.05))),
        ("warmup", Box::new(Warmup::new(5, StepDecay::new(0.3, 7, 0.3)))),
    ];
    for (name, schedule) in all {
        let want = floats(&reference[&format!("schedule/{name}")]);
        assert!(want.len() > 20);
        for (step, want) in want.iter().enumerate() {
            let got = schedule.lr(step as u64);
            assert!((got - want).abs() < 1e-12, "{name}, step {step}: {got}, and not {want}");
        }
    }
}

#[test]
fn rates_are_kept_after_the_end_and_of_numbers_without_sense_there_is_none() {
    let cosine = Cosine::new(0.3, 20).down_to(0.05);
    assert_eq!([cosine.lr(20), cosine.lr(21), cosine.lr(u64::MAX)], [0.05; 3]);
    assert_eq!(StepDecay::new(1.0, 1, 0.5).lr(u64::MAX), 0.0);
    assert_eq!(Warmup::new(u64::MAX, Constant(1.0)).lr(u64::MAX), 1.0);
    // No step at all is one.
    assert_eq!([StepDecay::new(1.0, 0, 0.5).lr(1), Cosine::new(1.0, 0).lr(1)], [0.5, 0.0]);
    assert_eq!(Warmup::new(0, Constant(0.25)).lr(0), 0.25);
    let wrong: [Box<dyn Schedule>; 7] = [
        Box::new(Constant(-1.0)),
        Box::new(Constant(f64::INFINITY)),
        Box::new(StepDecay::new(-1.0, 2, 0.5)),
        Box::new(StepDecay::new(1.0, 2, f64::NAN)),
        Box::new(Cosine::new(f64::NAN, 3)),
        Box::new(Cosine::new(1.0, 3).down_to(-0.1)),
        Box::new(Warmup::new(3, Constant(-1.0))),
    ];
    for (k, schedule) in wrong.iter().enumerate() {
        assert!([0, 1, 5, 1000].iter().all(|step| schedule.lr(*step).is_nan()), "schedule {k}");
    }
}
