//! Training over ranks: the same curve as alone, on after a loss, layers in parts.

use super::stage::{Scene, Stage, block_on};
use futensor::data::Loader;
use futensor::nn::{ColumnLinear, Linear, Module, Parameter, Relu, RowLinear, Sequential};
use futensor::optim::{Adam, AdamW, Optimizer, Sgd, Sharded, Step, Update};
use futensor::ranks::Combine::Sum;
use futensor::ranks::Group;
use futensor::train::Trainer;
use futensor::{Device, TensorFuture, grad};

pub fn scenes() -> Vec<Scene> {
    vec![
        Scene::of("training::several_ranks_come_to_the_losses_of_one", 3, same_losses),
        Scene::of("training::gradients_in_many_buckets_are_those_of_one_batch", 2, buckets),
        Scene::of(
            "training::buckets_are_reduced_while_the_backward_pass_still_runs",
            2,
            overlapped,
        ),
        Scene::of(
            "training::a_step_over_several_batches_is_that_of_all_their_rows",
            2,
            accumulated,
        ),
        Scene::of("training::moments_shared_out_train_as_whole_ones_do", 3, sharded),
        Scene::of(
            "training::a_parameter_that_is_used_later_is_counted_for_itself_on_each_rank",
            2,
            used_later,
        ),
        Scene::of("training::layers_in_parts_give_what_the_whole_gives", 2, layers),
        Scene::of("training::a_layer_that_does_not_divide_says_so", 3, uneven),
    ]
}

const ROWS: usize = 50;

fn net(device: &Device) -> Sequential {
    Sequential::new().then(Linear::new(6, 32, device)).then(Relu).then(Linear::new(32, 1, device))
}

/// Ten epochs of five batches, of which the last does not divide by the ranks: the losses, and the
/// parameters at the end.
fn train(group: &Group, device: &Device) -> (Vec<f32>, Vec<f32>) {
    // Each rank begins elsewhere: what they train is rank 0's.
    device.seed(7 + group.rank() as u64);
    let net = net(device);
    device.seed(7);
    let trainer = Trainer::new([device]).with_group(group);
    trainer.prepare_model(&net);
    let mut optimizer = AdamW::new(net.parameters(), 1e-2);
    let all: Vec<f32> = block_on(device.randn([ROWS, 6]).to_vec()).expect("rows");
    let loader = Loader::new(ROWS, move |at, device| {
        let rows: Vec<f32> = at.iter().flat_map(|i| all[i * 6..][..6].to_vec()).collect();
        Ok(device.from_vec(rows, [at.len(), 6]))
    });
    let loader = loader.batch_size(11).shuffle(3).part(group.rank(), group.size());
    let mut losses = Vec::new();
    for epoch in 0..10 {
        let mut batches = loader.epoch(epoch, device);
        while let Some(x) = block_on(batches.next()) {
            let x = x.expect("a batch");
            let batch = trainer.prepare_batch(&[&x]);
            let loss = trainer.step(&net, &mut optimizer, &batch, |part| {
                let wanted = part[0].square().sum_keepdim(1);
                net.forward(&part[0]).mse_loss(&wanted, ())
            });
            losses.push(block_on(loss.item::<f32>()).expect("a loss"));
        }
    }
    let parameters = net
        .parameters()
        .iter()
        .flat_map(|p| block_on(p.value().to_vec::<f32>()).expect("values"))
        .collect();
    (losses, parameters)
}

fn same_losses(stage: Stage) {
    let group = stage.join();
    let device = Device::cpu();
    let (losses, parameters) = train(&group, &device);
    let (alone, _) = train(&Group::alone(), &device);
    assert_eq!((losses.len(), alone.len()), (50, 50));
    if group.rank() == 0 {
        // The same rows and the same first weights: the sums are in another order.
        for (step, (together, alone)) in losses.iter().zip(&alone).enumerate() {
            assert!(
                (together - alone).abs() <= 2e-3 * alone.abs(),
                "step {step}: {together}, alone {alone}"
            );
        }
    }
    assert!(losses[49] < losses[0] / 2.0, "it learns: {losses:?}");
    // Bit for bit the same on all ranks.
    let mine = device.from_vec(parameters.clone(), [1, parameters.len()]);
    let all = block_on(mine.all_gather(&group).to_vec::<f32>()).expect("all parameters");
    assert!(all.chunks(parameters.len()).all(|other| other == parameters));
}

fn buckets(stage: Stage) {
    let group = stage.join();
    let device = Device::cpu();
    device.seed(1);
    // Beyond one bucket, within one, and of another type's size.
    let sizes = [[1500, 1000], [3, 5], [700, 900], [1, 1], [1200, 1100]];
    let layers: Vec<Linear> = sizes.iter().map(|[n, m]| Linear::new(*n, *m, &device)).collect();
    let inputs: Vec<TensorFuture> = sizes.iter().map(|[n, _]| device.randn([2, *n])).collect();
    let loss = |r: usize| {
        let one =
            |(layer, x): (&Linear, &TensorFuture)| layer.forward(&x.narrow(0, r, 1)).sum_all();
        layers.iter().zip(&inputs).map(one).reduce(|a, b| a + b).expect("layers")
    };
    struct All<'a>(&'a [Linear]);
    impl Module for All<'_> {
        fn forward(&self, x: &TensorFuture) -> TensorFuture {
            x.clone()
        }
        fn parts(&self, visit: &mut dyn FnMut(&str, futensor::nn::Part<'_>)) {
            self.0
                .iter()
                .enumerate()
                .for_each(|(i, layer)| visit(&i.to_string(), futensor::nn::Part::Module(layer)));
        }
    }
    let before: Vec<Vec<f32>> = values(&layers);
    let wanted = grad((loss(0) + loss(1)) / 2.0, &All(&layers).parameters());
    let wanted: Vec<Vec<f32>> =
        wanted.iter().map(|g| block_on(g.to_vec::<f32>()).expect("a gradient")).collect();
    let trainer = Trainer::new([&device]).with_group(&group);
    let mut sgd = Sgd::new(All(&layers).parameters(), 1.0);
    let batch = trainer.prepare_batch(&[&device.ones([1])]);
    let mine = group.rank();
    block_on(&trainer.step(&All(&layers), &mut sgd, &batch, |_| loss(mine))).expect("a step");
    for ((after, before), gradient) in values(&layers).iter().zip(&before).zip(&wanted) {
        for ((after, before), gradient) in after.iter().zip(before).zip(gradient) {
            assert!(
                (before - gradient - after).abs() < 1e-4,
                "{before} - {gradient} is not {after}"
            );
        }
    }
}

/// Notes the gradients that it is given.
struct Noting(Vec<Parameter>, Vec<TensorFuture>);

impl Optimizer for Noting {
    fn parameters(&self) -> &[Parameter] {
        &self.0
    }
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        self.1 = gradients.iter().flatten().cloned().collect();
        Update::new("Noting", &self.0, gradients).map_or_else(|refused| refused, Update::step)
    }
    fn lr(&self) -> f64 {
        0.0
    }
    fn set_lr(&mut self, _: f64) {}
}

/// The first parameter's gradient is not there until that of the last, in another bucket, has been
/// reduced.
fn overlapped(stage: Stage) {
    let (group, device) = (stage.join(), Device::cpu());
    // Each more than a bucket.
    let parameters: Vec<Parameter> =
        (0..2).map(|_| Parameter::new(device.ones([1100, 1000]))).collect();
    let (opens, gate) = futures::channel::oneshot::channel();
    let late = device.from_future([1], gate);
    let mut noting = Noting(parameters.clone(), Vec::new());
    let trainer = Trainer::new([&device]).with_group(&group);
    let batch = trainer.prepare_batch(&[&device.ones([1])]);
    let net = futensor::nn::from_fn(|x| x.clone());
    let loss = trainer.step(&net, &mut noting, &batch, |_| {
        (parameters[0].value() * &late).sum_all() + (parameters[1].value() * 3.0).sum_all()
    });
    let last =
        block_on(noting.1[1].narrow(0, 0, 1).to_vec::<f32>()).expect("a gradient of all ranks");
    assert!(last.iter().all(|x| (x - 3.0).abs() < 1e-6), "{last:?}");
    assert!(!noting.1[0].is_ready() && !loss.is_ready(), "there was nothing to overlap");
    opens.send(vec![5.0f32]).expect("it is awaited");
    let first =
        block_on(noting.1[0].narrow(0, 0, 1).to_vec::<f32>()).expect("a gradient of all ranks");
    assert!(first.iter().all(|x| (x - 5.0).abs() < 1e-6), "{first:?}");
    block_on(&loss).expect("a loss");
}

/// The parameters after three steps, each over so many rows in batches of these sizes, and the
/// losses.
fn steps(trainer: &Trainer, start: usize, sizes: &[usize]) -> (Vec<f32>, Vec<f32>) {
    let device = Device::cpu();
    device.seed(3);
    let net = net(&device);
    trainer.prepare_model(&net);
    let x = device.randn([40, 6]).narrow(0, start, sizes.iter().sum());
    let mut ends = sizes.iter().scan(0, |end, n| {
        *end += n;
        Some(x.narrow(0, *end - n, *n))
    });
    let batches: Vec<_> = ends.by_ref().map(|x| trainer.prepare_batch(&[&x])).collect();
    let mut sgd = Sgd::new(net.parameters(), 0.05).momentum(0.9);
    let losses = (0..3).map(|_| {
        let loss = trainer.step_over(&net, &mut sgd, &batches, |part| {
            net.forward(&part[0]).mse_loss(part[0].square().sum_keepdim(1), ())
        });
        block_on(loss.item::<f32>()).expect("a loss")
    });
    let losses = losses.collect();
    let all = net.parameters().into_iter();
    (all.flat_map(|p| block_on(p.value().to_vec::<f32>()).expect("values")).collect(), losses)
}

fn accumulated(stage: Stage) {
    let group = stage.join();
    let device = Device::cpu();
    let (alone, together) = (Trainer::new([&device]), Trainer::new([&device]).with_group(&group));
    let near = |a: &(Vec<f32>, Vec<f32>), b: &(Vec<f32>, Vec<f32>)| {
        let pairs = a.0.iter().zip(&b.0).chain(a.1.iter().zip(&b.1));
        assert_eq!((a.0.len(), a.1.len()), (b.0.len(), b.1.len()));
        pairs.for_each(|(a, b)| assert!((a - b).abs() <= 1e-4 + 1e-4 * a.abs(), "{a} is not {b}"));
    };
    let whole = steps(&alone, 0, &[40]);
    near(&steps(&alone, 0, &[16, 16, 8]), &whole);
    // The ranks have neither the same number of rows nor of batches.
    let own: &[usize] = [&[10, 6][..], &[8, 8, 8]][group.rank()];
    near(&steps(&together, 16 * group.rank(), own), &whole);
}

/// Steps of a model of its own by an optimizer; the parameters after them.
fn stepped(
    group: &Group,
    net: &Sequential,
    optimizer: &mut dyn Optimizer,
    from: usize,
) -> Vec<f32> {
    let device = Device::cpu();
    let trainer = Trainer::new([&device]).with_group(group);
    device.seed(9);
    let x = device.randn([48, 6]);
    for k in from..from + 3 {
        let own = x.narrow(0, k * 12 % 36 + group.rank() * 12 / group.size(), 12 / group.size());
        let batch = trainer.prepare_batch(&[&own]);
        let loss = trainer.step(net, optimizer, &batch, |part| {
            net.forward(&part[0]).mse_loss(part[0].square().sum_keepdim(1), ())
        });
        block_on(&loss).expect("a loss");
    }
    net.parameters()
        .iter()
        .flat_map(|p| block_on(p.value().to_vec::<f32>()).expect("values"))
        .collect()
}

/// 32 units of 6 and one of 32 over three ranks: weights divide, and biases do not.
fn sharded(stage: Stage) {
    let (group, device) = (stage.join(), Device::cpu());
    let near = |a: &[f32], b: &[f32]| {
        assert_eq!(a.len(), b.len());
        a.iter()
            .zip(b)
            .for_each(|(a, b)| assert!((a - b).abs() <= 1e-4 + 1e-3 * b.abs(), "{a} is not {b}"));
    };
    let model = || {
        device.seed(4);
        net(&device)
    };
    let (whole, parts) = (model(), model());
    let mut adam = AdamW::new(whole.parameters(), 1e-2);
    let mut own = Sharded::new(parts.parameters(), &group, |own| AdamW::new(own, 1e-2));
    let wanted = stepped(&Group::alone(), &whole, &mut adam, 0);
    near(&stepped(&group, &parts, &mut own, 0), &wanted);
    // What is kept is whole for whoever asks, and any number of ranks goes on from it: one, here.
    let (kept, saved) = (adam.state(), own.state());
    assert_eq!(saved.len(), kept.len());
    for ((name, a), (other, b)) in saved.iter().zip(&kept) {
        assert_eq!((name, a.dims()), (other, b.dims()));
        let read = |x: &TensorFuture| {
            block_on(x.to_dtype(futensor::DType::F32).to_vec::<f32>()).expect("a state")
        };
        near(&read(a), &read(b));
    }
    let (again, alone) = (model(), model());
    again.load_state(parts.state()).expect("the same model");
    alone.load_state(parts.state()).expect("the same model");
    let mut resumed = Sharded::new(again.parameters(), &group, |own| AdamW::new(own, 1e-2));
    resumed.load_state(saved.clone()).expect("the same optimizer");
    let mut single = AdamW::new(alone.parameters(), 1e-2);
    single.load_state(saved).expect("an optimizer of one rank");
    let wanted = stepped(&Group::alone(), &whole, &mut adam, 3);
    near(&stepped(&group, &again, &mut resumed, 3), &wanted);
    near(&stepped(&Group::alone(), &alone, &mut single, 3), &wanted);
    let wrong = vec![("0.mean".to_string(), device.ones([3]))];
    assert!(single.load_state(wrong).unwrap_err().is_shape());
    assert!(
        single
            .load_state(vec![("velocity".to_string(), device.ones([3]))])
            .unwrap_err()
            .is_argument()
    );
    // Each element is kept by one rank.
    let elements: usize = own.own_parameters().iter().map(|p| p.value().numel()).sum();
    let sum = device.full([1], elements as f64).all_reduce(&group, Sum);
    let all: usize = parts.parameters().iter().map(|p| p.value().numel().next_multiple_of(3)).sum();
    assert_eq!(block_on(sum.item::<f32>()).expect("a sum"), all as f32);
}

/// Adam moves by the rate where a gradient stays the same, from its first step on. One parameter is
/// there at once, one at the fourth step, and one with an element is there on one rank alone.
fn used_later(stage: Stage) {
    let (group, device) = (stage.join(), Device::cpu());
    let fresh = || [(3, 1.0), (1, 2.0), (5, 0.5)].map(|(n, x)| Parameter::new(device.full([n], x)));
    let first = [0, 1, 3];
    let step = |parameters: &[Parameter], optimizer: &mut dyn Optimizer, share: f64, at: usize| {
        let gradients: Vec<Option<TensorFuture>> = parameters
            .iter()
            .zip(first)
            .map(|(p, first)| (at >= first).then(|| device.full(p.value().dims(), 0.5 * share)))
            .collect();
        block_on(optimizer.step_some(&gradients)).expect("a step");
    };
    let check = |parameters: &[Parameter], steps: usize| {
        for ((p, first), from) in parameters.iter().zip(first).zip([1.0, 2.0, 0.5]) {
            let want = from - 0.1 * steps.saturating_sub(first) as f32;
            let got = block_on(p.value().to_vec::<f32>()).expect("values");
            assert!(got.iter().all(|x| (x - want).abs() < 1e-5), "{got:?} for {want} at {steps}");
        }
    };
    let share = 1.0 / group.size() as f64;
    let parameters = fresh();
    let mut own = Sharded::new(parameters.to_vec(), &group, |own| Adam::new(own, 0.1));
    for at in 0..5 {
        step(&parameters, &mut own, share, at);
        check(&parameters, at + 1);
    }
    // Kept in a file, they go on as they were: shared out again, or on one rank alone.
    let saved = own.state();
    let (again, alone) = (fresh(), fresh());
    for copy in [&again, &alone] {
        copy.iter().zip(&parameters).for_each(|(to, from)| to.set(from.value()));
    }
    let mut resumed = Sharded::new(again.to_vec(), &group, |own| Adam::new(own, 0.1));
    let mut single = Adam::new(alone.to_vec(), 0.1);
    resumed.load_state(saved.clone()).expect("the same optimizer");
    single.load_state(saved).expect("an optimizer of one rank");
    for at in 5..8 {
        step(&again, &mut resumed, share, at);
        step(&alone, &mut single, 1.0, at);
        check(&again, at + 1);
        check(&alone, at + 1);
    }
}

fn values(layers: &[Linear]) -> Vec<Vec<f32>> {
    let all = layers.iter().flat_map(|layer| layer.parameters());
    all.map(|p| block_on(p.value().to_vec::<f32>()).expect("values")).collect()
}

fn layers(stage: Stage) {
    let group = stage.join();
    let (device, n) = (Device::cpu(), group.size());
    device.seed(5);
    let (up, down) = (Linear::new(4, 6, &device), Linear::new(6, 3, &device));
    let x = device.randn([5, 4]).requires_grad();
    let whole = down.forward(&up.forward(&x).relu());
    let wrt = [x.clone(), up.weight(), down.weight(), down.bias().expect("a bias")];
    let wanted = grad(whole.square().sum_all(), &wrt);
    let (columns, rows) = (ColumnLinear::of(&up, &group), RowLinear::of(&down, &group));
    assert_eq!(columns.parameters()[0].value().dims(), [6 / n, 4]);
    let parts = rows.forward(&columns.forward(&x).relu());
    let near = |a: &TensorFuture, b: &TensorFuture| {
        assert_eq!(a.dims(), b.dims());
        block_on((a - b).abs().max_all().item::<f32>()).expect("a difference") < 1e-4
    };
    assert!(near(&parts, &whole));
    let own = [
        x,
        columns.parameters()[0].value(),
        rows.parameters()[0].value(),
        rows.parameters()[1].value(),
    ];
    let found = grad(parts.square().sum_all(), &own);
    let mine = |x: &TensorFuture, dim: isize, size: usize| x.narrow(dim, group.rank() * size, size);
    assert!(near(&found[0], &wanted[0]), "of the input, on every rank whole");
    assert!(near(&found[1], &mine(&wanted[1], 0, 6 / n)));
    assert!(near(&found[2], &mine(&wanted[2], 1, 6 / n)));
    assert!(near(&found[3], &wanted[3]));
}

fn uneven(stage: Stage) {
    let group = stage.join();
    let device = Device::cpu();
    let layer = ColumnLinear::of(&Linear::new(2, 4, &device), &group);
    let error = block_on(&layer.forward(&device.ones([1, 2]))).unwrap_err();
    assert!(error.is_shape() && error.message().contains("is not divisible by 3 ranks"), "{error}");
    // Nothing was asked of the group, which goes on.
    assert_eq!(
        block_on(device.ones([1]).all_reduce(&group, Sum).item::<f32>()).expect("a sum"),
        3.0
    );
}
