//! Linear layers whose weights are split over ranks (Shoeybi et al. 2019, Megatron-LM).
//!
//! All ranks get the same input and compute the same loss. The input is shared, so its gradients
//! are summed; the result of a row layer is a sum over ranks, whose gradient passes to each rank
//! unchanged. A column layer, an elementwise op and a row layer need one sum forward and
//! one backward.

use super::linear::Linear;
use super::module::{Module, Part};
use super::parameter::Parameter;
use crate::error::ErrorKind;
use crate::graph::operation::Refusal;
use crate::ranks::{Group, shared, summed_once};
use crate::tensor::build::{self, At};
use crate::tensor::future::TensorFuture;
use std::panic::Location;

/// A [`Linear`] whose outputs are split over ranks: from `[..., inputs]` to this rank's
/// `[..., outputs / ranks]`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, nn::{ColumnLinear, Linear, Module, RowLinear}, ranks::{Group, Options}};
/// let (group, device) = (Group::join(Options::default()).await?, Device::cpu());
/// let up = ColumnLinear::of(&Linear::new(4, 8 * group.size(), &device), &group);
/// let down = RowLinear::of(&Linear::new(8 * group.size(), 2, &device), &group);
/// let x = device.ones([3, 4]);
/// let hidden = up.forward(&x).relu();
/// assert_eq!(hidden.dims(), [3, 8]);                                    // this rank's part
/// assert_eq!(down.forward(&hidden).dims(), [3, 2]);                     // the same on all ranks
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct ColumnLinear {
    linear: Linear,
    group: Group,
}

/// A [`Linear`] whose inputs are split over ranks: from this rank's `[..., inputs / ranks]` to
/// `[..., outputs]`, the same on all ranks. See the example of [`ColumnLinear`].
#[derive(Debug)]
pub struct RowLinear {
    weight: Parameter,
    bias: Option<Parameter>,
    group: Group,
}

/// This rank's part of a dimension of rank 0's value.
fn part(x: &TensorFuture, dim: usize, group: &Group, at: At) -> TensorFuture {
    let (n, size) = (group.size(), x.dims().get(dim).copied().unwrap_or(0));
    if size % n != 0 {
        let text = format!("dimension {dim} of {} is not divisible by {n} ranks", x.shape());
        return build::refused("part", x, Refusal { kind: ErrorKind::Shape, message: text }, at);
    }
    let whole = x.stop_gradient().broadcast(group, 0);
    // A copy, so that the part does not keep the whole alive.
    whole.narrow(dim as isize, group.rank() * (size / n), size / n) * 1
}

impl ColumnLinear {
    /// This rank's part of rank 0's layer. All ranks have to call this.
    ///
    /// # Errors
    /// A shape error, in the parameters and the layer's results, if the outputs are not divisible
    /// by the number of ranks.
    #[track_caller]
    pub fn of(linear: &Linear, group: &Group) -> ColumnLinear {
        let at = Location::caller();
        let part = |x: TensorFuture| Parameter::new(part(&x, 0, group, at));
        let (weight, bias) = (part(linear.weight()), linear.bias().map(part));
        ColumnLinear { linear: Linear::from_parameters(weight, bias), group: group.clone() }
    }
}

impl Module for ColumnLinear {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        self.linear.forward(&shared(x, &self.group))
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        self.linear.parts(visit);
    }
}

impl RowLinear {
    /// This rank's part of rank 0's layer. All ranks have to call this.
    /// Every rank has the whole bias.
    ///
    /// # Errors
    /// A shape error, in the parameters and the layer's results, if the inputs are not divisible by
    /// the number of ranks.
    #[track_caller]
    pub fn of(linear: &Linear, group: &Group) -> RowLinear {
        let at = Location::caller();
        let weight = Parameter::new(part(&linear.weight(), 1, group, at));
        let bias =
            linear.bias().map(|bias| Parameter::new(bias.stop_gradient().broadcast(group, 0)));
        RowLinear { weight, bias, group: group.clone() }
    }
}

impl Module for RowLinear {
    #[track_caller]
    fn forward(&self, x: &TensorFuture) -> TensorFuture {
        let y = summed_once(&x.linear(self.weight.value(), None), &self.group);
        match &self.bias {
            Some(bias) => y + bias.value(),
            None => y,
        }
    }
    fn parts(&self, visit: &mut dyn FnMut(&str, Part<'_>)) {
        visit("weight", Part::Parameter(&self.weight));
        if let Some(bias) = &self.bias {
            visit("bias", Part::Parameter(bias));
        }
    }
}
