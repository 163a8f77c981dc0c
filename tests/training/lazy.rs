//! Layers whose weights are made by their first input.

use crate::support::{bits, block_on, near};
use futensor::nn::{self, Module, Parameter};
use futensor::optim::{self, Optimizer};
use futensor::{CpuOptions, DType, Device, TensorFuture};

#[test]
fn a_lazy_layers_weights_are_the_optimizers_from_the_start() {
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let net = nn::Sequential::new()
        .then(nn::LazyLinear::new(4))
        .then(nn::Relu)
        .then(nn::LazyLinear::new(1));
    assert_eq!((net.parameters().len(), net.device()), (4, None));
    let mut sgd = optim::Sgd::new(net.parameters(), 0.1);
    let x = device.ones([2, 3]);
    let too_early = sgd.minimize(&(&x * device.ones([1]).requires_grad()).sum_all());
    assert!(too_early.error().unwrap().is_argument(), "there is nothing to train yet");
    let loss = net.forward(&x).square().sum_all();
    let before: Vec<_> = net.parameters().iter().map(bits).collect();
    block_on(sgd.minimize(&loss)).unwrap();
    let after: Vec<_> = net.parameters().iter().map(bits).collect();
    assert!(
        before.iter().zip(&after).all(|(b, a)| b != a),
        "each of them is trained: {before:?} {after:?}"
    );
}

#[test]
fn a_lazy_layer_remembers_where_it_was_moved_and_its_type() {
    let (home, away) = (Device::cpu(), Device::cpu_with(CpuOptions::default().threads(1)));
    let net = nn::Sequential::new().then(nn::LazyLinear::new(2));
    net.to(&away);
    net.to_dtype(DType::BF16);
    net.parameter("0.bias").unwrap().train(false);
    assert_eq!(net.device(), Some(away.clone()));
    let wrong = net.forward(&home.ones_dtype([1, 3], DType::BF16));
    assert!(wrong.error().unwrap().is_device(), "the weights are not made elsewhere");
    assert!(net.parameter("0.weight").unwrap().is_lazy());
    let y = net.forward(&away.ones_dtype([1, 3], DType::BF16));
    assert_eq!((y.device(), y.dtype()), (away.clone(), DType::BF16));
    for (name, p) in net.named_parameters() {
        assert_eq!((p.value().device(), p.value().dtype()), (away.clone(), DType::BF16), "{name}");
        assert_eq!(p.is_trained(), name == "0.weight");
    }
}

#[test]
fn a_lazy_layers_state_is_loaded_before_any_input_and_not_saved_before() {
    let device = Device::cpu();
    let (a, b) = (nn::LazyLinear::new(2), nn::LazyLinear::new(2));
    for (name, value) in a.state() {
        assert!(value.error().unwrap().is_argument(), "{name}");
    }
    block_on(a.forward(&device.ones([1, 3]))).unwrap();
    let wrong =
        vec![("weight".to_string(), device.ones([5, 3])), ("bias".to_string(), device.ones([5]))];
    let error = b.load_state(wrong).unwrap_err();
    assert!(error.is_shape() && error.message().contains("[2, ?]"), "{error}");
    assert!(b.parameters().iter().all(Parameter::is_lazy));
    b.load_state(a.state()).unwrap();
    assert_eq!(bits(&a.parameters()[0]), bits(&b.parameters()[0]));
    assert!(
        b.forward(&device.ones([1, 4])).error().unwrap().is_shape(),
        "it has its number of inputs"
    );
}

#[test]
fn threads_that_are_first_at_once_make_one_set_of_weights() {
    let device = Device::cpu();
    for _ in 0..20 {
        let layer = nn::LazyLinear::new(3);
        let results: Vec<TensorFuture> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..4).map(|_| scope.spawn(|| layer.forward(&device.ones([1, 5])))).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let own = layer.forward(&device.ones([1, 5]));
        for y in results {
            near(&y, &own, 0.0, "one layer");
        }
    }
}
