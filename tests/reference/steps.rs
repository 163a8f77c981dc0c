//! Steps of optimizers and clipping beside the values of `steps.py`, on whatever device.

use futensor::nn::Parameter;
use futensor::optim::{self, Optimizer};
use futensor::{DType, Device, TensorFuture};
use std::collections::HashMap;

pub fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

/// The reference, by name.
pub fn reference(device: &Device) -> HashMap<String, TensorFuture> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("reference/steps.safetensors");
    let all = block_on(futensor::safetensors::load(path, device).all()).expect("the reference");
    all.into_iter().collect()
}

/// The optimizers of `steps.py`.
pub const OPTIMIZERS: [&str; 8] = [
    "sgd",
    "sgd_decay",
    "sgd_momentum",
    "sgd_nesterov",
    "adam",
    "adam_decay",
    "adamw",
    "adamw_decay",
];

pub fn optimizer(name: &str, p: Vec<Parameter>, lr: f64) -> Box<dyn Optimizer> {
    match name {
        "sgd" => Box::new(optim::Sgd::new(p, lr)),
        "sgd_decay" => Box::new(optim::Sgd::new(p, lr).weight_decay(0.05)),
        "sgd_momentum" => {
            Box::new(optim::Sgd::new(p, lr).momentum(0.9).dampening(0.2).weight_decay(0.01))
        }
        "sgd_nesterov" => Box::new(optim::Sgd::new(p, lr).momentum(0.9).nesterov(true)),
        "adam" => Box::new(optim::Adam::new(p, lr)),
        "adam_decay" => {
            Box::new(optim::Adam::new(p, lr).betas(0.8, 0.95).eps(1e-3).weight_decay(0.1))
        }
        "adamw" => Box::new(optim::AdamW::new(p, lr)),
        "adamw_decay" => {
            Box::new(optim::AdamW::new(p, lr).betas(0.8, 0.95).eps(1e-3).weight_decay(0.2))
        }
        other => panic!("no optimizer is called {other}"),
    }
}

/// A rate that moves parameters of this scale by some hundredths.
fn rate(name: &str, scale: &str) -> f64 {
    if name.starts_with("sgd") { 0.05 } else { 0.05 * scale.parse::<f64>().expect("a scale") }
}

pub fn floats(x: &TensorFuture) -> Vec<f64> {
    block_on(x.to_dtype(DType::F64).to_vec::<f64>()).expect("values")
}

/// At most 1 ulp of the type is between each two elements; and neither is 0, inf or NaN alone.
#[track_caller]
pub fn one_ulp(got: &TensorFuture, want: &TensorFuture, what: &str) {
    assert_eq!((got.dtype(), got.dims()), (want.dtype(), want.dims()), "{what}");
    let (least, digits) = match got.dtype() {
        DType::F16 => (2f64.powi(-24), 10),
        DType::BF16 => (2f64.powi(-133), 7),
        other => panic!("{other} is no half"),
    };
    let (got, want) = (floats(got), floats(want));
    for (g, w) in got.iter().zip(&want) {
        let ulp = least.max(2f64.powi(w.abs().max(least).log2().floor() as i32 - digits));
        assert!((g - w).abs() <= ulp, "{what}: {got:?}, and not {want:?}");
        assert_eq!(
            (*g == 0.0, g.is_finite()),
            (*w == 0.0, w.is_finite()),
            "{what}: {got:?}, and not {want:?}"
        );
    }
}

pub const HALVES: [&str; 2] = ["f16", "bf16"];
pub const SCALES: [&str; 3] = ["0.0001", "1", "300"];

/// What an optimizer keeps of halves is float32.
fn keeps_float32(optimizer: &dyn Optimizer, what: &str) {
    for (name, value) in optimizer.state() {
        let want = if name.ends_with("powers") { DType::F64 } else { DType::F32 };
        assert_eq!(value.dtype(), want, "{what}: {name}");
    }
}

/// Each step from the reference's parameters, with what was kept from the steps before.
pub fn halves_step_as_float64_rounded_once(device: &Device, optimizers: &[&str]) {
    let reference = reference(device);
    for (half, scale) in HALVES.iter().flat_map(|half| SCALES.map(|scale| (half, scale))) {
        for name in optimizers {
            let at = |what: &str| &reference[&format!("{half}/{scale}/{what}")];
            let p = Parameter::new(at("start"));
            let mut optimizer = optimizer(name, vec![p.clone()], rate(name, scale));
            for k in 0..4 {
                let step = optimizer.step(std::slice::from_ref(at(&format!("gradient/{k}"))));
                block_on(step).expect("a step that is taken");
                let want = at(&format!("{name}/{k}"));
                one_ulp(&p.value(), want, &format!("{name} of {half} at {scale}, step {k}"));
                p.set(want);
            }
            keeps_float32(&*optimizer, name);
        }
    }
}

/// The same steps inside a region: its closure makes an optimizer that goes on from a state.
pub fn a_region_steps_halves_as_float64_rounded_once(device: &Device, optimizers: &[&str]) {
    let reference = reference(device);
    for (half, name) in
        HALVES.iter().flat_map(|half| optimizers.iter().map(move |name| (half, *name)))
    {
        let scale = "300";
        let at = |what: &str| &reference[&format!("{half}/{scale}/{what}")];
        let lr = rate(name, scale);
        let names = std::sync::Mutex::new(Vec::new());
        let region =
            device.region(|(p, g, kept): (TensorFuture, TensorFuture, Vec<TensorFuture>)| {
                let p = Parameter::new(p);
                let mut own = optimizer(name, vec![p.clone()], lr);
                let before = names.lock().unwrap().clone();
                own.load_state(before.into_iter().zip(kept).collect()).expect("its own state");
                own.step(&[g]).detach();
                let (after, kept): (Vec<String>, Vec<TensorFuture>) =
                    own.state().into_iter().unzip();
                *names.lock().unwrap() = after;
                (p.value().stop_gradient(), kept)
            });
        let (mut p, mut kept) = (at("start").clone(), Vec::new());
        for k in 0..4 {
            let (new, after) = region.call((p, at(&format!("gradient/{k}")).clone(), kept));
            let want = at(&format!("{name}/{k}"));
            one_ulp(&new, want, &format!("{name} of {half} in a region, step {k}"));
            (p, kept) = (want.clone(), after);
        }
    }
}

/// Norms and clipped gradients of halves.
pub fn halves_are_clipped_as_float64_rounded_once(device: &Device) {
    let reference = reference(device);
    for (half, scale) in HALVES.iter().flat_map(|half| SCALES.map(|scale| (half, scale))) {
        let at = |what: &str| reference[&format!("clip/{half}/{scale}/{what}")].clone();
        let gradients = [at("gradient/0"), at("gradient/1")];
        for limit in ["0.1", "100"] {
            let most =
                limit.parse::<f64>().expect("a limit") * scale.parse::<f64>().expect("a scale");
            let what = format!("{half} at {scale}, limit {limit}");
            let (clipped, norm) = optim::clip_grad_norm(&gradients, most);
            one_ulp(&norm, &at(&format!("{limit}/norm")), &what);
            let values = optim::clip_grad_value(&gradients, most);
            let region = device
                .region(|gradients: Vec<TensorFuture>| optim::clip_grad_norm(&gradients, most));
            let (inside, norm_inside) = region.call(gradients.to_vec());
            one_ulp(&norm_inside, &norm, &what);
            for k in 0..2 {
                one_ulp(&clipped[k], &at(&format!("{limit}/{k}")), &what);
                one_ulp(&inside[k], &clipped[k], &what);
                one_ulp(&values[k], &at(&format!("{limit}/value/{k}")), &what);
            }
        }
    }
}

/// Steps are counted for each parameter: PyTorch's values of one that is first used at the fourth
/// step, and of another that is left out of the fifth.
pub fn steps_are_counted_for_each_parameter(
    device: &Device,
    of: impl Fn(&str, Vec<Parameter>) -> Box<dyn Optimizer>,
    save: Option<&dyn Fn(optim::State) -> optim::State>,
) {
    let reference = reference(device);
    let at = |what: String| reference[&format!("later/{what}")].clone();
    for name in ["sgd_momentum", "adam", "adam_decay", "adamw"] {
        let p: Vec<Parameter> = (0..2).map(|k| Parameter::new(at(format!("start/{k}")))).collect();
        let mut optimizer = of(name, p.clone());
        for step in 0..6 {
            let used = [step != 4, step >= 3];
            let gradient = |k: usize| used[k].then(|| at(format!("gradient/{step}/{k}")));
            block_on(optimizer.step_some(&[gradient(0), gradient(1)]))
                .expect("a step that is taken");
            for (k, p) in p.iter().enumerate() {
                let (got, want) = (floats(&p.value()), floats(&at(format!("{name}/{step}/{k}"))));
                let near =
                    got.iter().zip(&want).all(|(g, w)| (g - w).abs() <= 2e-6 * w.abs().max(1.0));
                assert!(near, "{name}, step {step}, parameter {k}: {got:?}, and not {want:?}");
            }
            // Another one goes on from what was kept.
            let Some(save) = save else { continue };
            let state = save(optimizer.state());
            optimizer = of(name, p.clone());
            optimizer.load_state(state).expect("its own state");
        }
    }
}
