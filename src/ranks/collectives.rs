//! Collectives as ops: methods of `TensorFuture`.

use super::driver::Gives;
use super::gradients::{OfCollective, Rule};
use super::group::{Asked, Group, Waiting};
use super::protocol::message::Lane;
use super::slot::End;
use crate::concurrent::completion::TRACED;
use crate::dtype::DType;
use crate::engine::exchange::{Combine, What};
use crate::error::{Error, ErrorKind};
use crate::graph::node::Op;
use crate::graph::operation::{Meta, Refusal};
use crate::graph::tape::Made;
use crate::graph::value::{INLINE_BYTES, Storage, Value};
use crate::shape::{Layout, Shape};
use crate::tensor::build::{self, At, called_from};
use crate::tensor::creation::sourced;
use crate::tensor::device::Device;
use crate::tensor::future::TensorFuture;
use crate::tensor::gradient::taped::{is_taping, taped};
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::Arc;

/// # Collectives
///
/// Ops between the members of a [`Group`]. All members have to call each of them, in the same
/// order, with values of the same shape and type. MPI combines halves in float32, NCCL in their own
/// type.
///
/// A [`Region`](crate::region::Region) cannot contain a collective: a plan runs as soon as its
/// operands are complete, while a collective also needs the calls of the other ranks and a position
/// in the group's order, and may fail by a loss. Use one region before the collective and another
/// after it.
impl TensorFuture {
    /// Combines the values of all ranks; every rank gets the result.
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, grad, ranks::{Combine::Sum, Group}};
    /// let group = Group::alone();
    /// let w = Device::cpu().ones([2]).requires_grad();
    /// let loss = (&w * 2.0).all_reduce(&group, Sum).sum_all();
    /// assert_eq!(grad(&loss, &[&w])[0].to_vec::<f32>().await?, [2.0, 2.0]);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// [`is_peer_lost`](Error::is_peer_lost) with the lost rank; an argument error if the calls of
    /// the ranks differ; the error of another rank's operand; a type error for sums and
    /// products of bool. Only a sum has a gradient (which is the sum of the gradients).
    #[track_caller]
    pub fn all_reduce(&self, group: &Group, combine: Combine) -> TensorFuture {
        let at = Location::caller();
        combined("all_reduce", self, group, combine, at, |x| {
            Ok((What::AllReduce(combine), x.shape().clone(), Gives::Result, Rule::AllReduce))
        })
    }

    /// Combines the values of all ranks; `root` gets the result, the other ranks get zeros.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); an argument error if the rank does not exist.
    #[track_caller]
    pub fn reduce(&self, group: &Group, combine: Combine, root: usize) -> TensorFuture {
        let at = Location::caller();
        combined("reduce", self, group, combine, at, |x| {
            has_rank(group, root)?;
            let gives =
                if group.rank() == root { Gives::Result } else { Gives::Known(zeros(x.shape())) };
            Ok((What::Reduce(combine, root), x.shape().clone(), gives, Rule::Reduce(root)))
        })
    }

    /// Combines the values of all ranks; each rank gets its part of the first dimension.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); a shape error if the first dimension is not divisible
    /// by the number of ranks.
    #[track_caller]
    pub fn reduce_scatter(&self, group: &Group, combine: Combine) -> TensorFuture {
        let at = Location::caller();
        combined("reduce_scatter", self, group, combine, at, |x| {
            let part = part_of(x, group)?;
            Ok((What::ReduceScatter(combine), part, Gives::Result, Rule::ReduceScatter))
        })
    }

    /// Sends the value of `root` to all ranks.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); an argument error if the rank does not exist.
    #[track_caller]
    pub fn broadcast(&self, group: &Group, root: usize) -> TensorFuture {
        let at = Location::caller();
        collective("broadcast", self, group, at, |x| {
            has_rank(group, root)?;
            let gives = if group.rank() == root { Gives::Operand } else { Gives::Result };
            Ok((What::Broadcast(root), x.shape().clone(), gives, Some(Rule::Broadcast(root))))
        })
    }

    /// Concatenates the values of all ranks along the first dimension. A 0-d value counts as a
    /// vector of one element.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    #[track_caller]
    pub fn all_gather(&self, group: &Group) -> TensorFuture {
        let at = Location::caller();
        if self.rank() == 0 {
            return self.reshape([1]).all_gather_at(group, at);
        }
        self.all_gather_at(group, at)
    }

    fn all_gather_at(&self, group: &Group, at: At) -> TensorFuture {
        collective("all_gather", self, group, at, |x| {
            let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(x.dims());
            dims[0] = dims[0].saturating_mul(group.size());
            Ok((What::AllGather, dims[..].into(), Gives::Result, Some(Rule::AllGather)))
        })
    }

    /// Splits the first dimension into one part per rank and exchanges the parts: part `i` of rank
    /// `j` becomes part `j` of rank `i`.
    ///
    /// # Errors
    /// As [`reduce_scatter`](Self::reduce_scatter).
    #[track_caller]
    pub fn all_to_all(&self, group: &Group) -> TensorFuture {
        let at = Location::caller();
        collective("all_to_all", self, group, at, |x| {
            part_of(x, group)?;
            Ok((What::AllToAll, x.shape().clone(), Gives::Result, Some(Rule::AllToAll)))
        })
    }

    /// Sends this value to a rank, which [receives](Group::recv) it. Sends to one rank arrive in
    /// order. A send has no gradient.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce); an argument error if the rank does not exist, or is
    /// this one.
    #[track_caller]
    pub fn send(&self, group: &Group, to: usize) -> Waiting<()> {
        let at = Location::caller();
        if let Err(refusal) = is_other(group, to).and_then(|()| is_plain(self)) {
            group.spoil("send", &refusal.message);
            let error = Error::new(refusal.kind, "send", refusal.message, at);
            return Waiting::on(async { Err(error) });
        }
        group.signal(Asked {
            op: "send",
            lane: Lane::Send(to),
            what: What::Send(to),
            text: format!("a value of {} {}", self.dtype(), self.shape()),
            dtype: self.dtype(),
            operand: Some(self),
            result: None,
            gives: Gives::Result,
            at,
        })
    }
}

impl Group {
    /// Receives the value that a rank [sends](TensorFuture::send), on a device.
    ///
    /// # Errors
    /// As [`all_reduce`](TensorFuture::all_reduce); an argument error if the rank does not exist,
    /// or is this one.
    #[track_caller]
    pub fn recv(
        &self,
        from: usize,
        shape: impl Into<Shape>,
        dtype: DType,
        device: &Device,
    ) -> TensorFuture {
        let (at, shape) = (Location::caller(), shape.into());
        let meta = Meta { shape: shape.clone(), dtype };
        if let Err(refusal) = is_other(self, from).and_then(|()| build::fits(&shape, dtype)) {
            self.spoil("recv", &refusal.message);
            let error = Error::new(refusal.kind, "recv", refusal.message, at);
            return build::failed(device.port, meta, error, at);
        }
        let asked = Asked {
            op: "recv",
            lane: Lane::Recv(from),
            what: What::Recv(from),
            text: format!("a value of {dtype} {shape}"),
            dtype,
            operand: None,
            result: Some((shape.numel(), self.memory(device))),
            gives: Gives::Result,
            at,
        };
        value_of(self, asked, device, meta)
    }
}

/// A value that is equal on all ranks but used differently by each: the gradients are summed.
#[track_caller]
pub(crate) fn shared(x: &TensorFuture, group: &Group) -> TensorFuture {
    let own = x.stop_gradient();
    if group.size() == 1 {
        x.clone()
    } else {
        on_tape("shared", Some(Rule::AllReduce), &[x], group, own)
    }
}

/// A sum over ranks that goes into a loss that all ranks compute: each rank's gradient passes
/// unchanged.
#[track_caller]
pub(crate) fn summed_once(x: &TensorFuture, group: &Group) -> TensorFuture {
    let at = Location::caller();
    combined("all_reduce", x, group, Combine::Sum, at, |x| {
        Ok((What::AllReduce(Combine::Sum), x.shape().clone(), Gives::Result, Rule::Same))
    })
}

type Ruled = Result<(What, Shape, Gives, Option<Rule>), Refusal>;

/// A collective that reduces: halves in float32, and only a sum has a gradient.
fn combined(
    op: &'static str,
    x: &TensorFuture,
    group: &Group,
    combine: Combine,
    at: At,
    rule: impl Fn(&TensorFuture) -> Result<(What, Shape, Gives, Rule), Refusal>,
) -> TensorFuture {
    if x.dtype().is_storage() {
        return build::refused(op, x, Refusal::storage(x.dtype()), at);
    }
    if !group.combines(x.dtype()) {
        return combined(op, &x.to_dtype(DType::F32), group, combine, at, rule).to_dtype(x.dtype());
    }
    collective(op, x, group, at, |x| {
        if x.dtype() == DType::Bool && matches!(combine, Combine::Sum | Combine::Product) {
            return Err(Refusal::dtype(format!(
                "bool has no {}: use min for and, max for or",
                combine.name()
            )));
        }
        let (what, shape, gives, gradient) = rule(x)?;
        Ok((what, shape, gives, Some(gradient).filter(|_| combine == Combine::Sum)))
    })
}

fn collective(
    op: &'static str,
    x: &TensorFuture,
    group: &Group,
    at: At,
    rule: impl Fn(&TensorFuture) -> Ruled,
) -> TensorFuture {
    let at = build::seen(at);
    let ruled = is_plain(x).and_then(|()| rule(x)).and_then(|ruled| {
        build::fits(&ruled.1, x.dtype())?;
        Ok(ruled)
    });
    let (what, shape, gives, gradient) = match ruled {
        Ok(ruled) => ruled,
        Err(refusal) => {
            group.spoil(op, &refusal.message);
            return build::refused(op, x, refusal, at);
        }
    };
    if group.size() == 1 {
        return x.clone();
    }
    let text = format!("{what} of {} {}", x.dtype(), x.shape());
    let result = matches!(gives, Gives::Result).then(|| (shape.numel(), group.memory(&x.device())));
    let asked = Asked {
        op,
        lane: Lane::All,
        what,
        text,
        dtype: x.dtype(),
        operand: Some(x),
        result,
        gives,
        at,
    };
    let value = value_of(group, asked, &x.device(), Meta { shape, dtype: x.dtype() });
    on_tape(op, gradient, &[x], group, value)
}

/// Puts a value on the tape if its operand is on it.
fn on_tape(
    op: &'static str,
    rule: Option<Rule>,
    x: &[&TensorFuture; 1],
    group: &Group,
    value: TensorFuture,
) -> TensorFuture {
    if x[0].tape.is_none() || !x[0].dtype().is_differentiable() || !is_taping() {
        return value;
    }
    let rule = Arc::new(OfCollective { op, rule, group: group.clone() });
    taped(Made::Op(Op::Custom(rule)), x, value.node.clone())
}

/// The result of a call, on a device.
fn value_of(group: &Group, asked: Asked<'_>, device: &Device, meta: Meta) -> TensorFuture {
    let (at, home) = (asked.at, group.home(device));
    let value = value_at(group, asked, home, meta);
    if home == device { value } else { called_from(at, || value.to_device(device)) }
}

fn value_at(group: &Group, asked: Asked<'_>, device: &Device, meta: Meta) -> TensorFuture {
    let (op, at, port) = (asked.op, asked.at, device.port);
    let slot = match group.call(asked) {
        Ok(slot) => slot,
        Err(error) => return build::failed(port, meta, error, at),
    };
    let (group, Meta { shape, dtype }) = (group.clone(), meta);
    let (of, ends) = (shape.clone(), slot.clone());
    let brought = async move {
        match End(ends).await {
            Ok((_, Some(value))) => Ok(port.runner.receive(value, &of, dtype)),
            Ok((_, None)) => Err(Error::new(ErrorKind::Kernel, op, "it ended without a value", at)),
            Err(trouble) => Err(group.error(trouble, op, at)),
        }
    };
    let value = sourced(port, op, true, shape, dtype, brought, at);
    slot.brings(value.node.link());
    value
}

/// Refuses a traced value of a region's closure: it has no elements to send.
fn is_plain(x: &TensorFuture) -> Result<(), Refusal> {
    match x.node.completion.state().has(TRACED) {
        true => Err(Refusal::argument("a collective cannot be part of a region")),
        false => Ok(()),
    }
}

fn has_rank(group: &Group, rank: usize) -> Result<(), Refusal> {
    match rank < group.size() {
        true => Ok(()),
        false => Err(Refusal::argument(format!(
            "there is no rank {rank} in a group of {}",
            group.size()
        ))),
    }
}

fn is_other(group: &Group, rank: usize) -> Result<(), Refusal> {
    has_rank(group, rank)?;
    match rank == group.rank() {
        true => Err(Refusal::argument(format!("rank {rank} is this rank"))),
        false => Ok(()),
    }
}

/// The shape of one rank's part of the first dimension.
fn part_of(x: &TensorFuture, group: &Group) -> Result<Shape, Refusal> {
    let n = group.size();
    let mut dims: SmallVec<[usize; 8]> = SmallVec::from_slice(x.dims());
    match dims.first_mut() {
        Some(first) if *first % n == 0 => {
            *first /= n;
            Ok(dims[..].into())
        }
        _ => Err(Refusal::shape(format!(
            "the first dimension of {} is not divisible by {n} ranks",
            x.shape()
        ))),
    }
}

/// Zeros that take no memory.
fn zeros(shape: &Shape) -> Value {
    let strides = SmallVec::from_elem(0, shape.rank());
    Value::placed(
        Storage::Inline([0; INLINE_BYTES / 8]),
        &Layout { shape: shape.clone(), strides, offset: 0 },
    )
}
