//! Hidden states and embeddings beside `transformers`, and what is no BERT.

use super::{Case, device};
use futensor::barrier::deny_barriers;
use futensor::{DType, Device, TensorFuture, block_on};
use futensor_models::Bert;
use futures::FutureExt as _;
use serde_json::json;

/// The largest difference between two values.
fn apart(a: &TensorFuture, b: &TensorFuture) -> f64 {
    assert_eq!(a.dims(), b.dims());
    block_on((a - b).abs().max_all().item::<f32>()).unwrap().into()
}

fn load(case: &Case, device: &Device, dtype: DType) -> Bert {
    let folder = case.folder(case.weights());
    block_on(Bert::from_folder(device, &folder.0, dtype)).unwrap()
}

#[test]
fn hidden_states_and_embeddings_are_transformers_together_and_alone() {
    let device = device();
    for name in ["plain", "tanh"] {
        let case = Case::new(name, &device);
        let bert = load(&case, &device, DType::F32);
        let (hidden, embedded) = (bert.hidden(&case.rows), bert.embed(&case.rows));
        let mut from = 0;
        for (k, row) in case.rows.iter().enumerate() {
            let [states, vector] =
                ["hidden", "embedding"].map(|what| &case.tensors[&format!("{what}.{k}")]);
            let own = hidden.narrow(0, from, row.len());
            from += row.len();
            assert!(apart(&own, states) < 2e-5, "{name}, row {k}");
            assert!(apart(&embedded.i(k as i64), vector) < 1e-5, "{name}, row {k}");
            let alone = std::slice::from_ref(row);
            assert!(apart(&bert.hidden(alone), states) < 2e-5, "{name}, row {k} alone");
            assert!(apart(&bert.embed(alone).i(0), vector) < 1e-5, "{name}, row {k} alone");
        }
    }
}

#[test]
fn halves_are_near_in_every_type() {
    let device = device();
    let case = Case::new("plain", &device);
    for (dtype, bound) in [(DType::BF16, 4e-2), (DType::F16, 5e-3)] {
        let embedded = load(&case, &device, dtype).embed(&case.rows);
        assert_eq!(embedded.dtype(), DType::F32);
        for k in 0..case.rows.len() {
            let off = apart(&embedded.i(k as i64), &case.tensors[&format!("embedding.{k}")]);
            assert!(off < bound, "{dtype}, row {k}: off by {off}");
        }
        // So are weights that the file has as halves.
        let half = case.weights().into_iter().map(|(name, x)| (name, x.to_dtype(dtype))).collect();
        let folder = case.folder(half);
        let bert = block_on(Bert::from_folder(&device, &folder.0, DType::F32)).unwrap();
        assert!(apart(&bert.embed(&case.rows), &embedded) < bound, "{dtype}");
    }
}

#[test]
fn embedding_queues_and_waits_for_nothing() {
    let device = device();
    let case = Case::new("plain", &device);
    let bert = load(&case, &device, DType::F32);
    let before = device.stats().barriers;
    let vectors = block_on(deny_barriers(
        std::future::ready(&bert).map(|bert| bert.embed(&[vec![1, 5, 2], vec![1, 2]])),
    ));
    assert_eq!(device.stats().barriers, before);
    assert_eq!((vectors.dims(), bert.config().hidden_size), (&[2, 24][..], 24));
}

#[test]
fn tokens_and_places_that_are_not_there_fail_the_value() {
    let device = device();
    let bert = load(&Case::new("plain", &device), &device, DType::F32);
    for row in [vec![1, 40], vec![1; 17]] {
        assert!(block_on(bert.embed(&[row]).wait_to_read()).is_err());
    }
    assert!(block_on(bert.embed(&[]).wait_to_read()).is_err());
    block_on(bert.embed(&[vec![39; 16]]).wait_to_read()).unwrap();
    // Nothing has no mean, and does not disturb its neighbours.
    let found = block_on(bert.embed(&[vec![1, 2], vec![], vec![1, 2]]).to_vec::<f32>()).unwrap();
    assert!(found[24..48].iter().all(|x| x.is_nan()));
    assert!(found[..24] == found[48..] && found[..24].iter().all(|x| x.is_finite()));
}

/// Files of models with heads, and those of the first years, have other names.
#[test]
fn a_model_with_a_head_and_old_names_are_read() {
    let device = device();
    let case = Case::new("plain", &device);
    let old = |(name, x): (String, TensorFuture)| {
        let name = name.replace("LayerNorm.weight", "LayerNorm.gamma");
        (format!("bert.{}", name.replace("LayerNorm.bias", "LayerNorm.beta")), x)
    };
    let mut weights: Vec<_> = case.weights().into_iter().map(old).collect();
    weights.push(("cls.predictions.bias".into(), device.zeros([40])));
    let places = device.arange(0, 16, 1).reshape([1, 16]);
    weights.push(("bert.embeddings.position_ids".into(), places));
    let folder = case.folder(weights);
    let bert = block_on(Bert::from_folder(&device, &folder.0, DType::F32)).unwrap();
    let off = apart(&bert.embed(&case.rows[..1]).i(0), &case.tensors["embedding.0"]);
    assert!(off < 1e-5, "{off}");
}

#[test]
fn what_is_no_such_model_is_refused_by_the_names_of_file_and_tensor() {
    let device = device();
    let case = Case::new("plain", &device);
    let refused = |folder: super::Scratch, says: &str| {
        let error = block_on(Bert::from_folder(&device, &folder.0, DType::F32)).unwrap_err();
        assert!(error.is_model(), "{error}");
        assert_eq!(error.to_string(), format!("{}/{says}", folder.0.display()));
    };
    let changed = |change: &dyn Fn(&mut Vec<(String, TensorFuture)>)| {
        let mut weights = case.weights();
        change(&mut weights);
        case.folder(weights)
    };
    refused(
        changed(&|w| w.retain(|(name, _)| name != "encoder.layer.1.output.dense.bias")),
        "model.safetensors: there is no tensor encoder.layer.1.output.dense.bias",
    );
    refused(
        changed(&|w| w.push(("encoder.layer.2.output.dense.bias".into(), device.zeros([24])))),
        "model.safetensors: tensor encoder.layer.2.output.dense.bias is left over: a model with \
         such a part is not supported",
    );
    refused(
        changed(&|w| {
            w.retain(|(name, _)| name != "embeddings.word_embeddings.weight");
            w.push(("embeddings.word_embeddings.weight".into(), device.zeros([41, 24])));
        }),
        "model.safetensors: tensor embeddings.word_embeddings.weight is [41, 24], not [40, 24]",
    );
    for (key, value, says) in [
        ("model_type", json!("roberta"), "a model of architecture \"roberta\", not \"bert\""),
        ("model_type", json!(null), "a model of architecture \"\", not \"bert\""),
        ("hidden_act", json!("swish9"), "hidden_act \"swish9\" is not supported"),
        (
            "position_embedding_type",
            json!("relative_key"),
            "position_embedding_type is \"relative_key\", which is not supported",
        ),
        ("is_decoder", json!(true), "is_decoder is true, which is not supported"),
        (
            "num_attention_heads",
            json!(5),
            "hidden_size 24 does not divide into 5 of num_attention_heads",
        ),
    ] {
        let folder = case.folder(case.weights());
        let mut config = case.config.clone();
        config[key] = value;
        folder.write("config.json", &config);
        refused(folder, &format!("config.json: {says}"));
    }
    let folder = case.folder(case.weights());
    let error = block_on(Bert::from_folder(&device, &folder.0, DType::I64)).unwrap_err();
    assert_eq!(error.to_string(), "weights are no int64");
}
