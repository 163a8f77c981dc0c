//! The common part of the tests of training: the reference by name, values that are near, an
//! optimizer of each kind.

use futensor::nn::Parameter;
use futensor::optim::{self, Optimizer};
use futensor::{DType, Device, TensorFuture};
use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;

pub fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

/// The reference, by name.
pub fn reference(device: &Device) -> HashMap<String, TensorFuture> {
    reference_of("training", device)
}

pub fn reference_of(file: &str, device: &Device) -> HashMap<String, TensorFuture> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("reference");
    let path = folder.join(format!("{file}.safetensors"));
    let data = std::fs::read(path).expect("the reference");
    let tensors = SafeTensors::deserialize(&data).expect("a safetensors file");
    let of = |name: &str, view: safetensors::tensor::TensorView<'_>| {
        let value = match view.dtype() {
            Dtype::F32 => {
                let data =
                    view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()));
                device.from_vec(data.collect::<Vec<_>>(), view.shape())
            }
            Dtype::I64 => {
                let data =
                    view.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
                device.from_vec(data.collect::<Vec<_>>(), view.shape())
            }
            other => panic!("{name} is {other:?}"),
        };
        (name.to_string(), value)
    };
    tensors.iter().map(|(name, view)| of(name, view)).collect()
}

#[track_caller]
pub fn near(got: &TensorFuture, want: &TensorFuture, slack: f32, what: &str) {
    assert_eq!(got.shape(), want.shape(), "{what}");
    let read = |x: &TensorFuture| block_on(x.to_dtype(DType::F32).to_vec::<f32>()).unwrap();
    let (got, want) = (read(got), read(want));
    let worst =
        got.iter().zip(&want).map(|(g, w)| (g - w).abs() / w.abs().max(1.0)).fold(0.0, f32::max);
    assert!(worst <= slack, "{what}: {worst} apart\n  got      {got:?}\n  expected {want:?}");
}

pub const STEPS: usize = 4;
pub const NAMES: [&str; 2] = ["w", "b"];

pub fn optimizer(name: &str, p: Vec<Parameter>) -> Box<dyn Optimizer> {
    match name {
        "sgd" => Box::new(optim::Sgd::new(p, 0.1)),
        "sgd_decay" => Box::new(optim::Sgd::new(p, 0.1).weight_decay(0.05)),
        "sgd_momentum" => {
            Box::new(optim::Sgd::new(p, 0.1).momentum(0.9).dampening(0.2).weight_decay(0.01))
        }
        "sgd_nesterov" => Box::new(optim::Sgd::new(p, 0.1).momentum(0.9).nesterov(true)),
        "adam" => Box::new(optim::Adam::new(p, 0.05)),
        "adam_decay" => {
            Box::new(optim::Adam::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.1))
        }
        "adamw" => Box::new(optim::AdamW::new(p, 0.05)),
        "adamw_decay" => {
            Box::new(optim::AdamW::new(p, 0.05).betas(0.8, 0.95).eps(1e-3).weight_decay(0.2))
        }
        "rmsprop" => Box::new(optim::RmsProp::new(p, 0.05)),
        "rmsprop_all" => {
            let rms = optim::RmsProp::new(p, 0.05).alpha(0.8).eps(1e-3).weight_decay(0.1);
            Box::new(rms.momentum(0.9).centred(true))
        }
        "adagrad" => Box::new(optim::Adagrad::new(p, 0.05)),
        "adagrad_all" => {
            Box::new(optim::Adagrad::new(p, 0.05).eps(1e-3).weight_decay(0.1).initial(0.5))
        }
        "lion" => Box::new(optim::Lion::new(p, 0.05).betas(0.8, 0.95).weight_decay(0.1)),
        other => panic!("no optimizer is called {other}"),
    }
}

/// The bits of a parameter.
pub fn bits(p: &Parameter) -> Vec<u32> {
    let values = block_on(p.value().to_dtype(DType::F32).to_vec::<f32>())
        .expect("a parameter that is there");
    values.into_iter().map(f32::to_bits).collect()
}
