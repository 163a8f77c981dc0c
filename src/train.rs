//! Training on one or several devices: batches are split over the devices, and one step runs on all
//! of them. A [`Monitor`] writes a page that shows a training while it runs.

mod monitor;

pub use monitor::{FinishMonitor, Monitor, MonitorOptions, OpenMonitor};

use crate::dtype::DType;
use crate::error::ErrorKind;
use crate::nn::{Module, Parameter, substituted, values};
use crate::optim::{Optimizer, Step};
#[cfg(all(feature = "ranks", unix))]
use crate::ranks::{Combine, Group, summed};
use crate::tensor::build::called_from;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::some_gradients;
use std::panic::Location;

/// Moves a model and its batches to devices. With several devices, each batch is split, each device
/// runs the model on its part, and the gradients are averaged: the result is that of one batch on
/// one device. Nothing waits.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::{self, Module}, optim::Sgd, train::Trainer};
/// let devices = [Device::cpu(), Device::cpu_with(Default::default())];
/// let host = Device::cpu();
/// let net = nn::Linear::new(3, 1, &host);
/// let trainer = Trainer::new(&devices);
/// trainer.prepare_model(&net);
/// let mut sgd = Sgd::new(net.parameters(), 0.1);
/// let (x, y) = (host.ones([4, 3]), host.zeros([4, 1]));
/// let batch = trainer.prepare_batch(&[&x, &y]);                   // two parts of two rows
/// let loss = trainer.step(&net, &mut sgd, &batch, |part| {
///     net.forward(&part[0]).mse_loss(&part[1], ())
/// });
/// assert!(loss.item::<f32>().await? >= 0.0); // of the whole batch, before the step
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # A run that is resumed
///
/// A trainer keeps nothing of a run. A checkpoint has the model's state, the optimizer's, and where
/// the generator of each device stands: a resumed run has the same bits then.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, GeneratorState, nn::{self, Module}, optim::{Adam, Optimizer}};
/// use futensor::{TensorFuture, safetensors, train::Trainer};
/// let device = Device::cpu_with(Default::default());
/// let trainer = Trainer::new([&device]);
/// let step = |net: &nn::Linear, adam: &mut Adam| {
///     let batch = trainer.prepare_batch(&[&device.randn([4, 3])]);
///     let loss = |part: &[TensorFuture]| {
///         net.forward(&part[0].dropout(0.5)).square().mean_all()
///     };
///     trainer.step(net, adam, &batch, loss).detach();
/// };
/// let net = nn::Linear::new(3, 1, &device);
/// let mut adam = Adam::new(net.parameters(), 0.1);
/// step(&net, &mut adam);
///
/// let named = |prefix: &str, state: Vec<_>| -> Vec<_> {
///     state.into_iter().map(|(name, x)| (format!("{prefix}.{name}"), x)).collect()
/// };
/// let position = device.from_slice(&device.generator().state().to_bytes(), [16]);
/// let mut all = named("model", net.state());
/// all.extend(named("optimizer", adam.state()));
/// all.push(("generator".into(), position));
/// # let path = std::env::temp_dir()
/// #     .join(format!("futensor-resumed-{}.safetensors", std::process::id()));
/// safetensors::save(&path, all).await?;
/// step(&net, &mut adam);                                                // the run goes on
///
/// let saved = safetensors::load(&path, &device).all().await?;          // and is resumed
/// let part = |prefix: &str| -> Vec<_> {
///     let own = |(name, x): (&String, &_)| {
///         Some((name.strip_prefix(prefix)?.to_string(), TensorFuture::clone(x)))
///     };
///     saved.iter().filter_map(own).collect()
/// };
/// let resumed = nn::Linear::new(3, 1, &device);
/// resumed.load_state(part("model."))?;
/// let mut its = Adam::new(resumed.parameters(), 0.1);
/// its.load_state(part("optimizer."))?;
/// let bytes = saved["generator"].to_vec::<u8>().await?;
/// device.generator().set_state(GeneratorState::from_bytes(bytes.try_into().expect("16 bytes")));
/// step(&resumed, &mut its);
/// let weight = |net: &nn::Linear| net.weight().to_vec::<f32>();
/// assert_eq!(weight(&resumed).await?, weight(&net).await?);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[doc(alias("DataParallel", "DistributedDataParallel", "DDP"))]
#[derive(Clone, Debug)]
pub struct Trainer {
    devices: Vec<Device>,
    #[cfg(all(feature = "ranks", unix))]
    group: Option<Group>,
}

/// A batch in parts, one per device: see [`Trainer::prepare_batch`].
#[derive(Clone, Debug)]
pub struct SplitBatch {
    first: Part,
    others: Vec<Part>,
    rows: usize,
}

#[derive(Clone, Debug)]
struct Part {
    device: Device,
    tensors: Vec<TensorFuture>,
    rows: usize,
}

impl SplitBatch {
    /// The total number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The tensors of each device.
    pub fn parts(&self) -> impl Iterator<Item = &[TensorFuture]> {
        std::iter::once(&self.first).chain(&self.others).map(|part| &part.tensors[..])
    }
}

impl Trainer {
    /// A trainer on these devices; the first one keeps the model.
    ///
    /// # Panics
    /// If there are no devices.
    pub fn new<'a>(devices: impl IntoIterator<Item = &'a Device>) -> Trainer {
        let devices: Vec<Device> = devices.into_iter().cloned().collect();
        assert!(!devices.is_empty(), "a trainer needs at least one device");
        Trainer {
            devices,
            #[cfg(all(feature = "ranks", unix))]
            group: None,
        }
    }

    /// Trains together with other processes. Each rank runs the model on its own rows, and the
    /// gradients are averaged, as if all rows were one batch.
    /// [`prepare_model`](Self::prepare_model) then copies rank 0's parameters to all ranks, and
    /// each rank loads its [part](crate::data::Loader::part) of a batch.
    /// All ranks have to make the same steps.
    ///
    /// Gradients are reduced in buckets, each as soon as it is complete, while the backward pass
    /// continues.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::{self, Module}, optim::Sgd};
    /// use futensor::{ranks::{Group, Options}, train::Trainer};
    /// let (group, device) = (Group::join(Options::default()).await?, Device::cpu());
    /// let net = nn::Linear::new(3, 1, &device);
    /// let trainer = Trainer::new([&device]).with_group(&group);
    /// trainer.prepare_model(&net);
    /// let mut sgd = Sgd::new(net.parameters(), 0.1);
    /// let batch = trainer.prepare_batch(&[&device.ones([4, 3])]);             // this rank's rows
    /// let loss = trainer.step(&net, &mut sgd, &batch, |part| {
    ///     net.forward(&part[0]).square().mean_all()
    /// });
    /// assert!(loss.item::<f32>().await? >= 0.0); // of all ranks' rows
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// If a rank is lost, a step leaves the model unchanged, and its loss fails with
    /// [`is_peer_lost`](crate::Error::is_peer_lost). One rank may have completed the step while
    /// another has not: create a trainer with the remaining group, prepare the model again, and
    /// continue with a new optimizer.
    #[cfg(all(feature = "ranks", unix))]
    pub fn with_group(mut self, group: &Group) -> Trainer {
        self.group = Some(group.clone());
        self
    }

    /// The device that keeps the model.
    pub fn device(&self) -> &Device {
        &self.devices[0]
    }

    /// Moves a model to the first device. Call it before the optimizer's first step.
    #[track_caller]
    pub fn prepare_model(&self, model: &dyn Module) {
        model.to(self.device());
        #[cfg(all(feature = "ranks", unix))]
        if let Some(group) = &self.group {
            let all = model.named_parameters().into_iter().chain(model.named_buffers());
            all.for_each(|(_, own)| own.set(own.value().stop_gradient().broadcast(group, 0)));
        }
    }

    /// Splits a batch of tensors with the same number of rows, and moves the parts to the devices:
    /// as many parts as devices, or as rows if there are fewer rows.
    ///
    /// ```
    /// use futensor::{CpuOptions, Device, train::Trainer};
    /// let devices = [Device::cpu(), Device::cpu_with(CpuOptions::default())];
    /// let trainer = Trainer::new(&devices);
    /// let x = Device::cpu().arange(0, 5, 1);
    /// let batch = trainer.prepare_batch(&[&x]);
    /// let sizes: Vec<usize> = batch.parts().map(|part| part[0].numel()).collect();
    /// assert_eq!((batch.rows(), &sizes[..]), (5, &[3, 2][..]));
    /// assert!(batch.parts().zip(&devices).all(|(part, device)| part[0].device() == *device));
    /// ```
    #[track_caller]
    pub fn prepare_batch(&self, tensors: &[&TensorFuture]) -> SplitBatch {
        let rows = tensors.first().and_then(|x| x.dims().first().copied()).unwrap_or(1);
        if self.devices.len() == 1 || rows < 2 {
            let device = self.device().clone();
            let tensors = tensors.iter().map(|x| x.to_device(&device)).collect();
            return SplitBatch { first: Part { device, tensors, rows }, others: Vec::new(), rows };
        }
        let n = self.devices.len().min(rows);
        // If the rows do not divide evenly, the first parts have one row more.
        let size = |i: usize| rows / n + usize::from(i < rows % n);
        let mut start = 0;
        let mut part = |i: usize| {
            let device = self.devices[i].clone();
            let own = |x: &&TensorFuture| x.narrow(0, start, size(i)).to_device(&device);
            let part = Part {
                tensors: tensors.iter().map(own).collect(),
                device: device.clone(),
                rows: size(i),
            };
            start += size(i);
            part
        };
        SplitBatch { first: part(0), others: (1..n).map(part).collect(), rows }
    }

    /// The loss of a batch, on the first device: the mean of the parts' losses, weighted by their
    /// rows. `loss` is called once per part, with the model's parameters on that part's device;
    /// gradients flow back to the first device. Running averages are updated from the first part
    /// only, as in PyTorch's `DataParallel`.
    ///
    /// `loss` returns the mean over its rows.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{CpuOptions, Device, nn::{self, Module}, train::Trainer};
    /// let (host, other) = (Device::cpu(), Device::cpu_with(CpuOptions::default()));
    /// let net = nn::from_fn(|x| x * 2.0);
    /// let x = host.from_vec(vec![1.0f32, 2.0, 6.0], [3, 1]);
    /// let trainer = Trainer::new([&host, &other]);
    /// let batch = trainer.prepare_batch(&[&x]);                            // two rows, and one
    /// let loss = trainer.loss(&net, &batch, |part| net.forward(&part[0]).mean_all());
    /// assert!((loss.item::<f32>().await? - 6.0).abs() < 1e-6); // the mean of all three, doubled
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[track_caller]
    pub fn loss(
        &self,
        model: &dyn Module,
        batch: &SplitBatch,
        loss: impl Fn(&[TensorFuture]) -> TensorFuture,
    ) -> TensorFuture {
        let home = self.device();
        let of = |part: &Part| {
            if part.device == *home {
                return loss(&part.tensors);
            }
            let all = model.named_parameters().into_iter().chain(model.named_buffers());
            let there: Vec<(Parameter, TensorFuture)> = all
                .map(|(_, own)| {
                    let value = own.value().to_device(&part.device);
                    (own, value)
                })
                .collect();
            substituted(&there, || loss(&part.tensors)).to_device(home)
        };
        let first = of(&batch.first);
        if batch.others.is_empty() {
            return first;
        }
        let weighted =
            |loss: &TensorFuture, rows: usize| loss.wide() * (rows as f64 / batch.rows as f64);
        let sum = weighted(&first, batch.first.rows);
        let sum = batch.others.iter().fold(sum, |sum, part| sum + weighted(&of(part), part.rows));
        sum.to_dtype(first.dtype())
    }

    /// One training step: [`loss`](Self::loss) of the batch, its gradients, and the optimizer's
    /// step. Returns the loss, off the tape, for reports.
    ///
    /// # Errors
    /// A step whose gradients fail leaves the model unchanged, and the returned loss fails with the
    /// error. (So the loss completes only when the gradients do.)
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::{self, Module}, optim::Sgd, train::Trainer};
    /// let device = Device::cpu();
    /// let (net, trainer) = (nn::Linear::new(3, 1, &device), Trainer::new([&device]));
    /// let mut sgd = Sgd::new(net.parameters(), 0.1);
    /// let batch = trainer.prepare_batch(&[&device.ones([2, 4])]); // four columns, not three
    /// let loss = trainer.step(&net, &mut sgd, &batch, |part| net.forward(&part[0]).sum_all());
    /// assert!(loss.item::<f32>().await.unwrap_err().is_shape());
    /// assert!(net.weight().error().is_none());
    /// # });
    /// ```
    #[track_caller]
    pub fn step(
        &self,
        model: &dyn Module,
        optimizer: &mut dyn Optimizer,
        batch: &SplitBatch,
        loss: impl Fn(&[TensorFuture]) -> TensorFuture,
    ) -> TensorFuture {
        self.step_over(model, optimizer, std::slice::from_ref(batch), loss)
    }

    /// One step over several batches, for a batch that does not fit in memory: each batch runs
    /// separately, gradients are accumulated on the first device, and ranks exchange them once. (In
    /// PyTorch: several `backward`s under `no_sync`, then one without.) Returns the mean loss of
    /// all rows.
    ///
    /// # Errors
    /// As [`step`](Self::step), if any of the batches fails; an error without batches.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, nn::{self, Module}, optim::Sgd, train::Trainer};
    /// let device = Device::cpu();
    /// let (net, trainer) = (nn::Linear::new(3, 1, &device), Trainer::new([&device]));
    /// let mut sgd = Sgd::new(net.parameters(), 0.1);
    /// let batches = [8, 8, 4].map(|rows| trainer.prepare_batch(&[&device.ones([rows, 3])]));
    /// let loss = trainer.step_over(&net, &mut sgd, &batches, |part| {
    ///     net.forward(&part[0]).square().mean_all()
    /// });
    /// assert!(loss.item::<f32>().await? >= 0.0); // of twenty rows
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[doc(alias = "no_sync")]
    #[track_caller]
    pub fn step_over(
        &self,
        model: &dyn Module,
        optimizer: &mut dyn Optimizer,
        batches: &[SplitBatch],
        loss: impl Fn(&[TensorFuture]) -> TensorFuture,
    ) -> TensorFuture {
        let at = Location::caller();
        let rows = batches.iter().map(SplitBatch::rows).fold(0, usize::saturating_add);
        let (mut gradients, mut mean, mut failed, mut whole) = (Vec::new(), None, None, None);
        for batch in batches {
            let loss = self.loss(model, batch, &loss);
            let dtype = loss.dtype();
            called_from(at, || {
                let loss = self.share_of(loss, batch.rows, rows, &mut whole);
                match some_gradients(&loss, &values(optimizer.parameters())) {
                    Ok(own) => add(&mut gradients, own),
                    Err(_) => failed = Some(loss.clone()),
                }
                let own = loss.stop_gradient();
                mean = Some(match mean.take() {
                    Some((mean, dtype)) => (mean + own, dtype),
                    None => (own, dtype),
                });
            });
        }
        let Some((mut mean, dtype)) = mean else {
            let text = "there are no batches".into();
            return self.device().refused("step_over", ErrorKind::Argument, text, DType::F32, at);
        };
        let sums = optimizer.sums_over_ranks();
        called_from(at, || {
            let step = match failed {
                // As a single step would fail; other ranks learn of it by the loss.
                Some(loss) => self.of_all(&[], sums, &mut mean, |_| optimizer.minimize(&loss)),
                None => {
                    let gradients = rounded(gradients, optimizer.parameters());
                    self.of_all(&gradients, sums, &mut mean, |all| optimizer.step_some(all))
                }
            };
            step.predicated(&mean.to_dtype(dtype), at)
        })
    }

    /// A batch's share of the mean loss over all rows here, or on all ranks, which need not have
    /// the same number of rows. In the compute type: a row count must not be rounded to halves.
    fn share_of(
        &self,
        loss: TensorFuture,
        own: usize,
        rows: usize,
        whole: &mut Option<TensorFuture>,
    ) -> TensorFuture {
        let loss = loss.wide();
        let number = |n: usize| loss.device().full_dtype((), n as f64, loss.dtype());
        #[cfg(all(feature = "ranks", unix))]
        if let Some(group) = &self.group {
            let whole = whole.get_or_insert_with(|| number(rows).all_reduce(group, Combine::Sum));
            return &loss * (number(own) / &*whole);
        }
        if own == rows {
            return loss;
        }
        let whole = whole.get_or_insert_with(|| number(rows));
        &loss * (number(own) / &*whole)
    }

    /// Takes a step with the gradients of all ranks, unless the optimizer sums them itself, and
    /// averages the loss over all ranks.
    #[cfg_attr(not(all(feature = "ranks", unix)), allow(unused_variables))]
    fn of_all(
        &self,
        gradients: &[Option<TensorFuture>],
        is_summing: bool,
        mean: &mut TensorFuture,
        step: impl FnOnce(&[Option<TensorFuture>]) -> Step,
    ) -> Step {
        #[cfg(all(feature = "ranks", unix))]
        if let Some(group) = &self.group {
            let step = if is_summing { step(gradients) } else { step(&summed(gradients, group)) };
            *mean = mean.all_reduce(group, Combine::Sum);
            return step;
        }
        step(gradients)
    }
}

/// Sums of gradients, cast to the types of their parameters.
fn rounded(sums: Vec<Option<TensorFuture>>, parameters: &[Parameter]) -> Vec<Option<TensorFuture>> {
    let of_type =
        |(sum, own): (Option<TensorFuture>, &Parameter)| Some(sum?.to_dtype(own.value().dtype()));
    sums.into_iter().zip(parameters).map(of_type).collect()
}

/// Adds the gradients of another batch; halves are accumulated in float32.
fn add(sums: &mut Vec<Option<TensorFuture>>, own: Vec<Option<TensorFuture>>) {
    if sums.is_empty() {
        return *sums = own;
    }
    for (sum, own) in sums.iter_mut().zip(own) {
        *sum = match (sum.take(), own) {
            (Some(sum), Some(own)) => Some(sum.wide() + own.wide()),
            (sum, own) => sum.or(own),
        };
    }
}
