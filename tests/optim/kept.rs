//! The state of optimizers: files of versions before are loaded, and what does not belong is
//! refused.

use crate::steps::*;
use futensor::nn::Parameter;
use futensor::optim::Optimizer;
use futensor::{DType, Device};
use std::path::Path;

/// `before.safetensors` was written by a version that counted steps by the optimizer and kept the
/// moments of halves as halves: two steps of a bfloat16 and of a float32 parameter along ones, with
/// a third one that was not used. So the next steps are those of an optimizer that has taken two.
#[test]
fn files_of_versions_before_are_loaded() {
    let device = Device::cpu();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("optim/before.safetensors");
    let all = block_on(futensor::safetensors::load(path, &device).all()).expect("a file");
    for name in ["adam", "adamw", "sgd_momentum"] {
        let make = || {
            let start = |dtype| Parameter::new(device.full_dtype([2], 0.5, dtype));
            let p = vec![start(DType::BF16), start(DType::F32), start(DType::F32)];
            (p.clone(), optimizer(name, p, 0.1))
        };
        let gradients = |third: bool| {
            let one = |dtype| Some(device.ones_dtype([2], dtype));
            [one(DType::BF16), one(DType::F32), one(DType::F32).filter(|_| third)]
        };
        let (fresh, mut stepped) = make();
        for _ in 0..2 {
            block_on(stepped.step_some(&gradients(false))).unwrap();
        }
        let (loaded, mut resumed) = make();
        let own = all.iter().filter_map(|(key, value)| {
            let key = key.strip_prefix(&format!("{name}/"))?;
            match key.strip_prefix("parameter.") {
                Some(k) => {
                    loaded[k.parse::<usize>().unwrap()].set(value);
                    None
                }
                None => Some((key.to_string(), value.clone())),
            }
        });
        let own: Vec<_> = own.collect();
        assert_eq!(own.len(), if name == "sgd_momentum" { 4 } else { 6 }, "{name}");
        resumed.load_state(own).unwrap_or_else(|error| panic!("{name}: {error}"));
        for _ in 0..3 {
            block_on(stepped.step_some(&gradients(true))).unwrap();
            block_on(resumed.step_some(&gradients(true))).unwrap();
        }
        for (k, slack) in [(0, 8e-3), (1, 1e-6), (2, 1e-6)] {
            let (a, b) = (floats(&fresh[k].value()), floats(&loaded[k].value()));
            let near = a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= slack);
            assert!(near, "{name}, parameter {k}: {b:?}, and not {a:?}");
        }
        for (key, value) in resumed.state() {
            assert_ne!(value.dtype(), DType::BF16, "{name}: {key} is float32 from now on");
        }
    }
}

#[test]
fn a_state_of_which_a_part_is_missing_is_refused_and_changes_nothing() {
    let device = Device::cpu();
    for name in ["adam", "adamw", "sgd_momentum"] {
        let of = |n: usize| (0..n).map(|_| Parameter::new(device.ones([2]))).collect::<Vec<_>>();
        let mut one = optimizer(name, of(2), 0.1);
        block_on(one.step(&[device.ones([2]), device.ones([2])])).unwrap();
        let whole = one.state();
        let dims = |o: &dyn Optimizer| {
            o.state().iter().map(|(n, x)| (n.clone(), x.shape().clone())).collect::<Vec<_>>()
        };
        for left_out in 0..whole.len() {
            let mut part = whole.clone();
            let (gone, _) = part.remove(left_out);
            let mut other = optimizer(name, of(2), 0.1);
            // A velocity whose share is 1 has none, and a parameter that was not stepped has no
            // velocity.
            let fine = name == "sgd_momentum" && gone.starts_with("share");
            match other.load_state(part) {
                Ok(()) => assert!(fine, "{name} without {gone}"),
                Err(error) => {
                    assert!(!fine && error.is_argument(), "{name} without {gone}: {error}");
                    assert!(error.location().file().ends_with("kept.rs"), "{error}");
                    assert!(other.state().is_empty());
                }
            }
        }
        let before = dims(&*one);
        assert!(
            one.load_state(vec![("mean_power".into(), device.ones(()))]).unwrap_err().is_argument()
        );
        // Of more parameters, or of fewer.
        if name != "sgd_momentum" {
            let mut three = optimizer(name, of(3), 0.1);
            assert!(three.load_state(whole.clone()).unwrap_err().is_shape(), "{name}");
            assert!(three.state().is_empty());
        }
        assert!(optimizer(name, of(1), 0.1).load_state(whole).is_err(), "{name}");
        assert_eq!(dims(&*one), before);
    }
}
