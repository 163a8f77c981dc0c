//! The state of optimizers: files of versions before are loaded, and what does not belong is
//! refused.

use crate::steps::*;
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{Adam, Optimizer};
use futensor::sim::SimOptions;
use futensor::train::Trainer;
use futensor::{CpuOptions, DType, Device, GeneratorState};
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

/// Steps with noise and dropout; the weights' bits at the end.
async fn trained(device: &Device, resumed_after: Option<usize>) -> Vec<u32> {
    let trainer = Trainer::new([device]);
    let make = || {
        let net = nn::Sequential::new()
            .then(nn::Linear::new(3, 5, device))
            .then(nn::Dropout::new(0.5))
            .then(nn::Linear::new(5, 1, device));
        let adam = Adam::new(net.parameters(), 0.1);
        (net, adam)
    };
    device.seed(11);
    let (mut net, mut adam) = make();
    for step in 0..6 {
        if resumed_after == Some(step) {
            let (weights, kept) = (net.state(), adam.state());
            let position = device.generator().state().to_bytes();
            // As another process begins.
            device.seed(0);
            (net, adam) = make();
            net.load_state(weights).unwrap();
            adam.load_state(kept).unwrap();
            device.generator().set_state(GeneratorState::from_bytes(position));
        }
        let batch = trainer.prepare_batch(&[&device.randn([7, 3])]);
        let loss =
            trainer.step(&net, &mut adam, &batch, |part| net.forward(&part[0]).square().mean_all());
        loss.wait_to_read().await.unwrap();
    }
    let mut bits = Vec::new();
    for parameter in net.parameters() {
        let values = parameter.value().to_vec::<f32>().await.unwrap();
        bits.extend(values.into_iter().map(f32::to_bits));
    }
    bits
}

#[test]
fn a_run_that_is_resumed_has_the_same_bits() {
    let device = Device::cpu_with(CpuOptions::default());
    let straight = block_on(trained(&device, None));
    assert_eq!(block_on(trained(&device, Some(3))), straight);
    for seed in 0..4 {
        let (device, simulation) = Device::simulated(SimOptions::new(seed));
        assert_eq!(simulation.block_on(trained(&device, Some(3))).expect("it ends"), straight);
    }
}
