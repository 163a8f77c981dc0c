//! Recurrent layers give PyTorch's values and gradients, with its weights by its names:
//! `tests/reference/recurrent.py`.

use crate::support::{block_on, near, reference_of};
use futensor::nn::{self, Module, RecurrentOptions};
use futensor::{Device, GradOptions, TensorFuture, grad_with};
use std::collections::HashMap;

/// The outputs and the last states of a layer.
type Run = Box<dyn Fn(&TensorFuture, &[&TensorFuture]) -> Vec<TensorFuture>>;

fn options(name: &str) -> RecurrentOptions {
    match name.split_once('_').map(|(_, kind)| kind) {
        Some("all") => RecurrentOptions::default().layers(2).bidirectional(true),
        Some("bare") => RecurrentOptions::default().bias(false).batch_first(true),
        _ => RecurrentOptions::default(),
    }
}

fn layer(
    name: &str,
    state: Vec<(String, TensorFuture)>,
    device: &Device,
) -> (Run, Vec<nn::Parameter>) {
    macro_rules! made {
        ($Layer:ident, |$layer:ident, $x:ident, $state:ident| $run:expr) => {{
            let $layer = nn::$Layer::new(3, 4, options(name), device);
            $layer.load_state(state).expect("PyTorch's names and shapes");
            let parameters = $layer.parameters();
            let run = move |$x: &TensorFuture, $state: &[&TensorFuture]| $run;
            (Box::new(run) as Run, parameters)
        }};
    }
    match name.split('_').next() {
        Some("lstm") => made!(Lstm, |layer, x, state| {
            let (y, (h, c)) = layer.run(x, Some((state[0], state[1])));
            vec![y, h, c]
        }),
        Some("gru") => made!(Gru, |layer, x, state| {
            let (y, h) = layer.run(x, Some(state[0]));
            vec![y, h]
        }),
        _ => made!(Rnn, |layer, x, state| {
            let (y, h) = layer.run(x, Some(state[0]));
            vec![y, h]
        }),
    }
}

#[test]
fn recurrent_layers_are_pytorchs_in_values_and_gradients() {
    let device = Device::cpu();
    let all = reference_of("recurrent", &device);
    let cases: std::collections::BTreeSet<&str> =
        all.keys().filter_map(|name| name.split('/').next()).collect();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let of: HashMap<&str, &TensorFuture> = all
            .iter()
            .filter_map(|(name, x)| Some((name.strip_prefix(case)?.strip_prefix('/')?, x)))
            .collect();
        let weights = of.iter().filter_map(|(name, x)| {
            Some((name.strip_prefix("weight/")?.to_owned(), TensorFuture::clone(x)))
        });
        let (run, parameters) = layer(case, weights.collect(), &device);
        let given: Vec<(&str, TensorFuture)> = ["x", "h", "c"]
            .into_iter()
            .filter_map(|name| Some((name, of.get(name)?.requires_grad())))
            .collect();
        let states: Vec<&TensorFuture> = given[1..].iter().map(|(_, x)| x).collect();
        let results = run(&given[0].1, &states);
        for (name, got) in ["y", "last_h", "last_c"].iter().zip(&results) {
            near(got, of[name], 1e-6, &format!("{case} {name}"));
        }
        let values: Vec<TensorFuture> = parameters.iter().map(|p| p.value()).collect();
        let names = of.keys().filter_map(|name| name.strip_prefix("gradient/"));
        assert_eq!(names.count(), given.len() + values.len(), "{case}");
        let leaves: Vec<&TensorFuture> = given.iter().map(|(_, x)| x).chain(&values).collect();
        let options = GradOptions::default().upstream(of["up"]);
        let gradients = grad_with(&results[0], &leaves, options);
        for ((name, _), gradient) in given.iter().zip(&gradients) {
            near(gradient, of[&format!("gradient/{name}")[..]], 1e-5, &format!("{case} by {name}"));
        }
        for (value, gradient) in values.iter().zip(&gradients[given.len()..]) {
            // Two weights of one shape would hide an exchange: PyTorch's names are in order.
            let same = |(name, want): (&&str, &&TensorFuture)| {
                let own = of.get(&format!("weight/{}", name.strip_prefix("gradient/")?)[..])?;
                let bits = |x: &TensorFuture| block_on(x.to_vec::<f32>()).expect("values");
                (own.shape() == value.shape() && bits(own) == bits(value)).then(|| (*want).clone())
            };
            let want = of.iter().find_map(same).expect("the weight's gradient");
            near(gradient, &want, 1e-5, &format!("{case} by a weight"));
        }
    }
}

#[test]
fn a_sequence_in_a_region_is_what_it_is_step_by_step() {
    let device = Device::cpu();
    let layer = nn::Lstm::new(3, 4, RecurrentOptions::default().bidirectional(true), &device);
    let x = device.randn([6, 2, 3]);
    let region = device.region(|x: TensorFuture| layer.forward(&x));
    let bits = |x: TensorFuture| block_on(x.to_vec::<f32>()).expect("values");
    assert_eq!(bits(region.call(x.clone())), bits(layer.forward(&x)));
}

#[test]
fn sequences_and_states_of_wrong_shapes_are_refused() {
    let device = Device::cpu();
    let layer = nn::Gru::new(3, 4, (), &device);
    for x in [device.ones([3]), device.ones([0, 2, 3]), device.ones([5, 2, 7])] {
        let error = block_on(layer.forward(&x)).expect_err("a wrong shape");
        assert!(error.is_shape() && error.op() == "Gru", "{error}");
    }
    let (y, h) = layer.run(device.ones([5, 2, 3]), Some(&device.ones([1, 3, 4])));
    assert!(y.error().is_some_and(|e| e.is_shape()) && h.error().is_some());
}

/// A layer that went on from the state before would give numbers.
#[test]
fn what_a_recurrent_layer_cannot_take_is_an_error_of_all_its_results() {
    let device = Device::cpu();
    let both = RecurrentOptions::default().layers(2).bidirectional(true);
    let (x, failed) = (device.ones([5, 2, 3]), device.ones([2]).reshape([5, 2, 3]));
    macro_rules! results {
        ($Layer:ident, $x:expr) => {
            nn::$Layer::new(3, 4, both, &device).forward(&$x)
        };
    }
    let wide = device.ones([5, 2, 5]);
    let double = x.to_dtype(futensor::DType::F64);
    for (x, word) in [(&wide, "3 wide"), (&double, "float64"), (&failed, "reshape")] {
        for y in [results!(Lstm, x), results!(Gru, x), results!(Rnn, x)] {
            let error = block_on(y.to_vec::<f32>()).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
            assert!(error.to_string().contains("recurrent.rs"), "{error}");
        }
    }
    // Weights that fail later fail every result.
    let lstm = nn::Lstm::new(3, 4, both, &device);
    let nowhere = device.from_vec(vec![9i64], [1]);
    let late = device.ones([3]).index_select(0, &nowhere).expand([4, 2, 4]);
    let (y, (h, c)) = lstm.run(&x, Some((&late, &late)));
    for result in [y, h, c] {
        assert!(block_on(result.to_vec::<f32>()).unwrap_err().is_index());
    }
    let half = device.zeros([4, 2, 4]).to_dtype(futensor::DType::F16);
    let (y, _) = lstm.run(&x, Some((&half, &half)));
    assert!(block_on(y.to_vec::<f32>()).unwrap_err().is_dtype());
}
