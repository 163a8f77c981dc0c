//! Attention layers have PyTorch's names, values and gradients:
//! `tests/reference/attention_layers.py`.

use crate::support::{near, reference_of};
use futensor::nn::{self, Module};
use futensor::{AttentionOptions, Device, GradOptions, TensorFuture, grad_with};
use std::collections::HashMap;

/// A case of `attention.py`: PyTorch's state is loaded by its names; the result and all gradients
/// are PyTorch's.
fn attention_case<M: Module>(
    layer: M,
    case: &str,
    reference: &HashMap<String, TensorFuture>,
    call: impl Fn(&M, &dyn Fn(&str) -> TensorFuture) -> TensorFuture,
) {
    let own = |name: &str| reference.get(&format!("{case}/{name}")).cloned();
    let prefix = format!("{case}/state.");
    let state = reference
        .iter()
        .filter_map(|(name, x)| Some((name.strip_prefix(&prefix)?.to_string(), x.clone())));
    layer.load_state(state).unwrap();
    let inputs: HashMap<String, TensorFuture> = ["x", "query", "key", "value", "mask"]
        .into_iter()
        .filter_map(|name| Some((name.to_string(), own(name)?.requires_grad())))
        .collect();
    let y = call(&layer, &|name| {
        inputs.get(name).cloned().or_else(|| own(name)).expect("an input of the case")
    });
    near(&y, &own("y").unwrap(), 2e-6, &format!("{case}, the result"));
    let parameters = layer.named_parameters().into_iter().map(|(name, p)| (name, p.value()));
    let leaves: Vec<(String, TensorFuture)> =
        inputs.clone().into_iter().chain(parameters).collect();
    let values: Vec<&TensorFuture> = leaves.iter().map(|(_, value)| value).collect();
    let gradients = grad_with(&y, &values, GradOptions::default().upstream(&own("up").unwrap()));
    let mut seen = 0;
    for ((name, _), gradient) in leaves.iter().zip(&gradients) {
        if let Some(want) = own(&format!("gradient.{name}")) {
            near(gradient, &want, 1e-5, &format!("{case}, the gradient of {name}"));
            seen += 1;
        }
    }
    assert_eq!(seen, if case == "blind" { 0 } else { leaves.len() }, "{case}");
}

#[test]
fn attention_layers_have_pytorchs_names_values_and_gradients() {
    let device = Device::cpu();
    let reference = reference_of("attention_layers", &device);
    let layer = || nn::MultiheadAttention::new(8, 2, &device);
    // PyTorch's mask tells what is hidden.
    let seen = |hidden: TensorFuture| hidden.eq(0).unsqueeze(1).unsqueeze(1);
    let masked = |mask: TensorFuture| AttentionOptions::default().mask(mask);
    for case in ["plain", "alone"] {
        attention_case(layer(), case, &reference, |m, get| m.forward(&get("x")));
    }
    let without = nn::MultiheadAttention::without_bias(8, 2, &device);
    attention_case(without, "no_bias", &reference, |m, get| m.forward(&get("x")));
    for case in ["padded", "blind"] {
        attention_case(layer(), case, &reference, |m, get| {
            m.forward_with(&get("x"), masked(seen(get("hidden"))))
        });
    }
    // The same as numbers that are added: nothing, or minus infinity.
    attention_case(layer(), "blind", &reference, |m, get| {
        let hidden = seen(get("hidden")).where_cond(0.0, f64::NEG_INFINITY);
        m.forward_with(&get("x"), masked(hidden))
    });
    attention_case(layer(), "added", &reference, |m, get| {
        m.forward_with(&get("x"), masked(get("mask")))
    });
    attention_case(layer(), "causal", &reference, |m, get| {
        m.forward_with(&get("x"), AttentionOptions::default().causal(true))
    });
    attention_case(layer(), "other", &reference, |m, get| {
        m.attend(&get("query"), &get("key"), &get("value"), ())
    });
}

#[test]
fn a_transformers_layer_has_pytorchs_names_values_and_gradients() {
    let device = Device::cpu();
    let reference = reference_of("attention_layers", &device);
    let layer = || nn::TransformerEncoderLayer::new(8, 2, 12, &device);
    let cases = [
        ("layer", layer().activation(nn::Gelu).eps(1e-3)),
        ("layer_relu", layer()),
        ("layer_first", layer().activation(nn::Gelu).norm_first(true)),
    ];
    for (case, layer) in cases {
        attention_case(layer, case, &reference, |m, get| {
            let seen = get("hidden").eq(0).unsqueeze(1).unsqueeze(1);
            m.forward_with(&get("x"), AttentionOptions::default().mask(seen))
        });
    }
}
