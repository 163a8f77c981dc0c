//! An optimizer whose state is sharded over ranks: the first stage of ZeRO (Rajbhandari et al.
//! 2020, arXiv:1910.02054).
//!
//! Each parameter is flattened, padded with zeros, and split into as many equal parts as there are
//! ranks. A rank's optimizer knows only its own parts. One `reduce_scatter` per bucket sums the
//! gradients and gives each rank its parts; an `all_gather` distributes the new parts.

use super::state::{beside, fits};
use super::{Optimizer, State, Step, trained, update};
use crate::error::{Error, ErrorKind};
use crate::nn::Parameter;
use crate::ranks::{Combine, Group, buckets};
use crate::tensor::build::{self, called_from};
use crate::tensor::future::TensorFuture;
use crate::tensor::methods::shaping::join::cat;
use std::panic::Location;

/// An optimizer whose state is sharded: each of n ranks keeps the moments of 1/n of the elements,
/// instead of all of them. It sums the gradients over the ranks itself, so
/// [`Trainer`](crate::train::Trainer) does not.
///
/// The inner optimizer must treat each element independently, as [`Sgd`](super::Sgd) and
/// [`AdamW`](super::AdamW) do: it gets flat parts of the parameters.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::{self, Module}, optim::{AdamW, Sharded}, ranks::Group,
///     train::Trainer};
/// let (group, device) = (Group::alone(), Device::cpu());
/// let net = nn::Linear::new(3, 1, &device);
/// let trainer = Trainer::new([&device]).with_group(&group);
/// trainer.prepare_model(&net);  // equal parameters on all ranks
/// let mut adam = Sharded::new(net.parameters(), &group, |own| AdamW::new(own, 1e-2));
/// let batch = trainer.prepare_batch(&[&device.ones([4, 3])]);
/// let loss = trainer
///     .step(&net, &mut adam, &batch, |part| net.forward(&part[0]).square().mean_all());
/// assert!(loss.item::<f32>().await? >= 0.0);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// If a rank is lost, a step leaves the parameters unchanged. The moments of the lost rank are
/// lost, except in a [state](Optimizer::state) that was saved before.
#[doc(alias("ZeRO", "ZeroRedundancyOptimizer", "FSDP"))]
#[derive(Debug)]
pub struct Sharded<O> {
    parameters: Vec<Parameter>,
    group: Group,
    own: Vec<Parameter>,
    optimizer: O,
}

impl<O: Optimizer> Sharded<O> {
    /// An optimizer of the trained ones of these parameters, which must have the same values on all
    /// ranks; `optimizer` creates the inner optimizer for this rank's parts.
    #[track_caller]
    pub fn new(
        parameters: Vec<Parameter>,
        group: &Group,
        optimizer: impl FnOnce(Vec<Parameter>) -> O,
    ) -> Sharded<O> {
        let at = Location::caller();
        let parameters = trained(parameters);
        let own = called_from(at, || {
            let part = |p: &Parameter| Parameter::new(own_part(&p.value(), group));
            parameters.iter().map(part).collect::<Vec<_>>()
        });
        let optimizer = optimizer(own.clone());
        Sharded { parameters, group: group.clone(), own, optimizer }
    }

    /// This rank's parts, whose moments it keeps: flat, with padding at the end.
    pub fn own_parameters(&self) -> &[Parameter] {
        &self.own
    }
}

/// The value as rows, one per rank, with padding in the last.
fn rows(x: &TensorFuture, group: &Group) -> TensorFuture {
    let (n, len) = (group.size(), x.numel());
    let each = len.div_ceil(n);
    let flat = x.stop_gradient().reshape([len]);
    let padding = (n - len % n) % n;
    let flat = match padding {
        0 => flat,
        _ => cat(&[&flat, &x.device().zeros_dtype([padding], x.dtype())], 0),
    };
    flat.reshape([n, each])
}

fn own_part(x: &TensorFuture, group: &Group) -> TensorFuture {
    rows(x, group).narrow(0, group.rank(), 1).reshape([x.numel().div_ceil(group.size())])
}

/// Concatenates values, and splits the result again.
fn together(
    values: &[TensorFuture],
    of: impl Fn(&TensorFuture) -> TensorFuture,
    back: impl Fn(usize, TensorFuture) -> TensorFuture,
) -> Vec<TensorFuture> {
    let all: Vec<&TensorFuture> = values.iter().collect();
    let made = of(&if let [one] = all[..] { one.clone() } else { cat(&all, 1) });
    let mut start = 0usize;
    let each = values.iter().enumerate().map(|(i, value)| {
        // A failed value may have any sizes.
        let columns = value.dims().get(1).copied().unwrap_or(0);
        let first = start;
        start = first.saturating_add(columns);
        back(i, made.narrow(1, first, columns))
    });
    each.collect()
}

impl<O: Optimizer> Optimizer for Sharded<O> {
    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    #[track_caller]
    fn step_some(&mut self, gradients: &[Option<TensorFuture>]) -> Step {
        let at = build::seen(Location::caller());
        let (n, m) = (self.parameters.len(), gradients.len());
        if n != m {
            let text = update::miscounted(m, n);
            let error = Error::new(ErrorKind::Argument, "Sharded", text, at);
            return update::refused(&self.parameters, error, at);
        }
        // A failed gradient goes the same way, so that the other ranks learn of it.
        called_from(at, || {
            let group = &self.group;
            let mut own: Vec<Option<TensorFuture>> = vec![None; gradients.len()];
            let buckets = buckets(gradients);
            for bucket in &buckets {
                let rows = bucket.iter().filter_map(|&i| Some(rows(gradients[i].as_ref()?, group)));
                let parts = together(
                    &rows.collect::<Vec<_>>(),
                    |rows| rows.reduce_scatter(group, Combine::Sum),
                    |_, part| part.reshape([part.numel()]),
                );
                bucket.iter().zip(parts).for_each(|(&i, part)| own[i] = Some(part));
            }
            let stepped = self.optimizer.step_some(&own);
            let mut new: Vec<Option<TensorFuture>> = vec![None; gradients.len()];
            for bucket in &buckets {
                let row = |&i: &usize| {
                    self.own[i].value().stop_gradient().reshape([1, self.own[i].value().numel()])
                };
                let whole = together(
                    &bucket.iter().map(row).collect::<Vec<_>>(),
                    |row| row.all_gather(group),
                    |k, rows| {
                        let old = self.parameters[bucket[k]].value();
                        rows.reshape([rows.numel()]).narrow(0, 0, old.numel()).reshape(old.dims())
                    },
                );
                bucket.iter().zip(whole).for_each(|(&i, whole)| new[i] = Some(whole));
            }
            update::taken(&self.parameters, &new, &stepped, at)
        })
    }

    fn sums_over_ranks(&self) -> bool {
        true
    }

    fn error(&self) -> Option<Error> {
        self.optimizer.error()
    }

    fn lr(&self) -> f64 {
        self.optimizer.lr()
    }

    fn set_lr(&mut self, lr: f64) {
        self.optimizer.set_lr(lr);
    }

    /// The complete state, as of an optimizer that is not sharded: all ranks have to call this.
    fn state(&self) -> State {
        let whole = |(name, value): (String, TensorFuture)| {
            let Some(parameter) = beside(&self.parameters, &name) else { return (name, value) };
            let old = parameter.value();
            (name, value.all_gather(&self.group).narrow(0, 0, old.numel()).reshape(old.dims()))
        };
        self.optimizer.state().into_iter().map(whole).collect()
    }

    fn load_state(&mut self, state: State) -> Result<(), Error> {
        fits("Sharded", &self.parameters, &state)?;
        let part = |(name, value): (String, TensorFuture)| {
            let own = beside(&self.parameters, &name).map(|_| own_part(&value, &self.group));
            (name, own.unwrap_or(value))
        };
        self.optimizer.load_state(state.into_iter().map(part).collect())
    }
}
