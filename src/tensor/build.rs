//! Makes a queued node of a call: checks, metadata, failed values.

pub(crate) mod caller;
pub(crate) mod finite;
pub(crate) mod intercept;
pub(crate) mod mixed;

use super::device::Device;
pub(crate) use super::future::At;
use super::future::TensorFuture;
use super::gradient::taped;
use crate::concurrent::completion::{Phase, QUEUED};
use crate::dtype::{DType, Scalar};
use crate::engine::port::{Port, Queued};
use crate::error::{Error, ErrorKind};
use crate::graph::infer;
use crate::graph::node::{Inputs, Node, NodeHandle, Op, Otherwise};
use crate::graph::operation::{Meta, Refusal, Ruled, Shaped};
use crate::graph::tape::Made;
use crate::op::{Beside, BinaryOp, ReduceOp, UnaryOp};
use crate::ops::Listed;
use crate::ops::checks::finite::{CheckFinite, NAN};
use crate::shape::Shape;
pub(crate) use caller::{called_from, named, seen, together, within};
use intercept::{enqueue, enter, is_usual};
use smallvec::SmallVec;
use std::sync::Arc;

/// Queues an op without operands.
pub(crate) fn create(
    port: &'static Port,
    op: Op,
    shape: Shape,
    dtype: DType,
    at: At,
) -> TensorFuture {
    create_named(None, port, op, shape, dtype, at)
}

/// [`create`] under another name than the op's own.
pub(crate) fn create_named(
    name: Option<&'static str>,
    port: &'static Port,
    op: Op,
    shape: Shape,
    dtype: DType,
    at: At,
) -> TensorFuture {
    let at = seen(at);
    if let Err(refusal) = fits(&shape, dtype) {
        let error = Error::new(refusal.kind, named(name.unwrap_or(op.name())), refusal.message, at);
        return failed(port, Meta { shape, dtype }, error, at);
    }
    let node = Node::new(op, Inputs::new(), shape, dtype, port, at);
    TensorFuture::new(enqueue(port, node))
}

/// The most dimensions, as in PyTorch; views and kernels count them in a byte.
const RANK_MAX: usize = 64;

/// Refuses a value with too many dimensions, or with more bytes than an address space holds, even
/// if it would need no memory (a constant, a view), since values computed from it would. So every
/// size is less than `isize::MAX`, which [`Dims`](super::dims::Dims) uses for numbers out of range,
/// also in empty values.
#[inline]
pub(crate) fn fits(shape: &Shape, dtype: DType) -> Result<(), Refusal> {
    if shape.rank() > RANK_MAX {
        return Err(Refusal::shape(format!(
            "{} dimensions are more than {RANK_MAX}",
            shape.rank()
        )));
    }
    let sizes = shape.iter().all(|&n| n < isize::MAX as usize);
    if sizes && shape.numel().saturating_mul(dtype.size()) <= isize::MAX as usize {
        return Ok(());
    }
    let message = format!("out of memory: {shape} of {dtype} is larger than any memory");
    Err(Refusal { kind: ErrorKind::OutOfMemory, message })
}

/// A failed value; its metadata is that of the first operand.
pub(crate) fn failed(port: &'static Port, meta: Meta, error: Error, at: At) -> TensorFuture {
    TensorFuture::new(port.given(meta.shape, meta.dtype, at, Err(error)))
}

/// A failed value of a composed op that refuses its operands; if the first operand is known to have
/// failed, with that error.
pub(crate) fn refused(op: &str, first: &TensorFuture, refusal: Refusal, at: At) -> TensorFuture {
    let at = seen(at);
    let refusal = refusal.of_types(std::iter::once(first.dtype()));
    let own = || Error::new(refusal.kind, named(op), refusal.message, at);
    failed(
        first.port(),
        first.node.meta.clone(),
        first.node.error().cloned().unwrap_or_else(own),
        at,
    )
}

/// An op that has been made but not passed to the engine yet. Owned operands are dropped in
/// between: otherwise an awake worker would see them observed, and copy a value that it could
/// overwrite.
#[must_use]
pub(crate) struct Asked {
    value: TensorFuture,
    queued: Option<Queued>,
}

impl From<TensorFuture> for Asked {
    /// A value that needs no push to the engine.
    fn from(value: TensorFuture) -> Asked {
        Asked { value, queued: None }
    }
}

impl Asked {
    #[inline]
    pub(crate) fn go(self) -> TensorFuture {
        if let Some(queued) = self.queued {
            caller::push(self.value.port(), queued);
        }
        self.value
    }

    /// [`go`](Self::go) after dropping these operands.
    #[inline]
    pub(crate) fn without<T>(self, owned: T) -> TensorFuture {
        drop(owned);
        self.go()
    }
}

/// Queues an op on operands, or makes a failed value.
pub(crate) fn apply(
    op: Op,
    operands: &[&TensorFuture],
    rule: impl FnOnce() -> Result<Meta, Refusal>,
    at: At,
) -> TensorFuture {
    ask(|| op, operands, rule, at).go()
}

/// Prepares an op on operands, or makes a failed value: if an operand is known to have failed (with
/// its error), if devices are mixed, or if the shape rule refuses.
///
/// What most ops are (their operands have not failed, on one device, no gradient, no region, no
/// check) is part of the caller: the node's fields are written once, where the node will be. On the
/// way over a function's stack they would be stored by words and loaded by lines, for which a
/// processor waits until all that was stored before is in its cache.
#[inline(always)]
pub(crate) fn ask<M: Ruled>(
    op: impl FnOnce() -> Op,
    operands: &[&TensorFuture],
    rule: impl FnOnce() -> Result<M, Refusal>,
    at: At,
) -> Asked {
    let at = seen(at);
    let port = operands[0].port();
    let is_plain = |x: &&TensorFuture| {
        std::ptr::eq(x.port(), port)
            && x.tape.is_none()
            && x.node.completion.state().phase() != Phase::Failed
    };
    match rule() {
        Ok(ruled) => {
            let numel = ruled.shape().numel();
            let bytes = numel.saturating_mul(ruled.dtype().size());
            let usual = operands.iter().all(is_plain) && is_usual() && port.life.is_usual();
            let rank = ruled.shape().rank();
            // An empty value may have any sizes, so they are checked one by one. A shape with many
            // dimensions has its own allocation.
            if !usual || numel == 0 || bytes > isize::MAX as usize || rank > Shape::FEW {
                return ask_slowly(op(), operands, Ok(ruled.meta()), at);
            }
            let inputs = || {
                let mut inputs = Inputs::new();
                for x in operands {
                    inputs.push(x.node.link());
                }
                inputs
            };
            let node = || Node::with(op, inputs, || ruled.meta(), port, at, numel, QUEUED);
            let (node, queued) = port.take_in(node, bytes);
            Asked { value: TensorFuture::new(node), queued: Some(queued) }
        }
        Err(refusal) => ask_slowly(op(), operands, Err(refusal), at),
    }
}

/// [`ask`] in all other cases.
#[inline(never)]
fn ask_slowly(op: Op, operands: &[&TensorFuture], ruled: Result<Meta, Refusal>, at: At) -> Asked {
    let first = operands[0];
    let port = first.port();
    let failed =
        |meta: Meta, error: Error| Asked { value: failed(port, meta, error, at), queued: None };
    let fail = |error: Error| failed(first.node.meta.clone(), error);
    if let Some(error) = operands.iter().find_map(|x| x.node.error()) {
        return match ruled {
            Ok(meta) => failed(meta, error.clone()),
            Err(_) => fail(error.clone()),
        };
    }
    if let Some(other) = operands.iter().find(|x| !std::ptr::eq(x.port(), port)) {
        let text = format!(
            "operands are on two devices, {} and {}: copy one with to_device",
            port.profile.name,
            other.port().profile.name
        );
        return fail(Error::new(ErrorKind::Device, named(op.name()), text, at));
    }
    match ruled.and_then(|meta| fits(&meta.shape, meta.dtype).map(|()| meta)) {
        Ok(Meta { shape, dtype }) => {
            let inputs = operands.iter().map(|x| x.node.link()).collect();
            let is_on_tape = operands.iter().any(|x| x.tape.is_some());
            let is_taped = is_on_tape && dtype.is_differentiable() && taped::is_taping();
            let is_checked = finite::checks(port, &op, dtype);
            let again = (is_taped || is_checked).then(|| op.clone());
            let (mut node, mut queued) = enter(port, Node::new(op, inputs, shape, dtype, port, at));
            let Some(op) = again else { return Asked { value: TensorFuture::new(node), queued } };
            if is_checked {
                if let Some(queued) = queued.take() {
                    caller::push(port, queued);
                }
                node = checked(&op, node, operands, at);
            }
            if is_taped {
                return Asked { value: taped::taped(Made::Op(op), operands, node), queued };
            }
            Asked { value: TensorFuture::new(node), queued }
        }
        Err(refusal) => {
            let refusal = refusal.of_types(operands.iter().map(|x| x.dtype()));
            fail(Error::new(refusal.kind, named(op.name()), refusal.message, at))
        }
    }
}

/// The result of an op on these operands, as a value that fails if the op is the first that makes
/// something which is not finite. The check is a few ops of the usual kind, so it is fused, planned
/// in a region and run on any device: they count what is not finite in the result and in the
/// operands, and the last of them fails if some is new.
#[cold]
fn checked(op: &Op, node: NodeHandle, operands: &[&TensorFuture], at: At) -> NodeHandle {
    let name = named(op.name()).to_owned();
    let part = (name != op.name()).then(|| op.name().to_owned());
    let metas = operands.iter().map(|x| &x.node.meta);
    let check = CheckFinite::new(name, part, finite::ruling(), &node.meta, metas);
    let _within = finite::within(false);
    let result = TensorFuture::new(node);
    let made = found(&result);
    let mut had: Option<TensorFuture> = None;
    for (i, x) in operands.iter().enumerate().filter(|(_, x)| x.dtype().is_differentiable()) {
        if operands[..i].iter().any(|y| y.node.address() == x.node.address()) {
            continue;
        }
        let found = found(&TensorFuture::new(x.node.clone()));
        had = Some(match had {
            Some(sum) => sum.add(found),
            None => found,
        });
    }
    let mut had = had.unwrap_or_else(|| result.device().full((), 0i64));
    if matches!(op, Op::WithScalar { scalar, .. } if scalar.as_f64().is_infinite()) {
        had = had.add(1);
    }
    // Of operands with an infinity a NaN is new, of those with a NaN nothing is.
    let new = had.lt(NAN).where_cond(made.floor_divide(NAN).mul(NAN), 0);
    let new = had.eq(0).where_cond(made, new);
    let sound = custom(Arc::new(check), &[&new], at);
    predicated(&result, &[sound], at).node.clone()
}

/// What is not finite in a value: its NaNs, [`NAN`] each, and its infinities.
pub(crate) fn found(x: &TensorFuture) -> TensorFuture {
    let x = if x.dtype().is_float8() { &x.to_dtype(DType::F32) } else { x };
    let nan = x.isnan().to_dtype(DType::I64).mul(NAN);
    nan.add(x.isinf().to_dtype(DType::I64)).sum_all()
}

pub(crate) fn unary(op: UnaryOp, x: &TensorFuture, at: At) -> TensorFuture {
    ask_unary(op, x, at).go()
}

pub(crate) fn ask_unary(op: UnaryOp, x: &TensorFuture, at: At) -> Asked {
    if let Some(x) = mixed::widened_in(op.name(), x, at) {
        return ask_unary(op, &x, at);
    }
    let rule = || Ok(Shaped(x.shape(), infer::unary(op, x.dtype())?.out));
    ask(|| Op::Unary(op), &[x], rule, at)
}

pub(crate) fn binary(op: BinaryOp, a: &TensorFuture, b: &TensorFuture, at: At) -> TensorFuture {
    ask_binary(op, a, b, at).go()
}

pub(crate) fn ask_binary(op: BinaryOp, a: &TensorFuture, b: &TensorFuture, at: At) -> Asked {
    if op == BinaryOp::Pow
        && let Some(wide) = mixed::each_widened(op.name(), &[a, b], at)
    {
        return ask_binary(op, &wide[0], &wide[1], at);
    }
    let dtype = || Ok(infer::binary(op, (a.dtype(), a.rank()), (b.dtype(), b.rank()))?.out);
    if a.shape().is(b.shape()) {
        return ask(|| Op::Binary(op), &[a, b], || Ok(Shaped(a.shape(), dtype()?)), at);
    }
    let rule = || Ok(Meta { shape: infer::broadcast(a.shape(), b.shape())?, dtype: dtype()? });
    ask(|| Op::Binary(op), &[a, b], rule, at)
}

pub(crate) fn ask_with_scalar(
    op: BinaryOp,
    x: &TensorFuture,
    scalar: Scalar,
    left: bool,
    at: At,
) -> Asked {
    // A number divided by a tensor is its reciprocal.
    if (op == BinaryOp::Pow || op == BinaryOp::Div && left)
        && let Some(x) = mixed::widened(x, at)
    {
        return ask_with_scalar(op, &x, scalar, left, at);
    }
    let scalar = match op.number() {
        Beside::limit => scalar.limited_to(x.dtype()),
        Beside::wide | Beside::rounded => scalar,
    };
    let rule = || Ok(Shaped(x.shape(), infer::with_scalar(op, x.dtype(), scalar)?.out));
    ask(|| Op::WithScalar { op, scalar, left }, &[x], rule, at)
}

/// `x`, once all values in `after` are complete; fails with the first of them that fails. All are
/// on one device.
pub(crate) fn predicated(x: &TensorFuture, after: &[TensorFuture], at: At) -> TensorFuture {
    let operands: SmallVec<[&TensorFuture; 8]> = std::iter::once(x).chain(after).collect();
    apply(Op::Predicated(Otherwise::Fails), &operands, || Ok(x.node.meta.clone()), at)
}

/// [`predicated`], but never failing: if an operand fails, every element is `number`.
pub(crate) fn predicated_or(
    number: impl Into<Scalar>,
    x: &TensorFuture,
    after: &[&TensorFuture],
    at: At,
) -> TensorFuture {
    let operands: SmallVec<[&TensorFuture; 4]> =
        std::iter::once(x).chain(after.iter().copied()).collect();
    predicated_otherwise(Otherwise::Number(number.into()), &operands, at)
}

/// `new`, or `old` (of the same shape and type) if `after` has failed. No element is touched.
pub(crate) fn predicated_else(
    new: &TensorFuture,
    old: &TensorFuture,
    after: &TensorFuture,
    at: At,
) -> TensorFuture {
    predicated_otherwise(Otherwise::Second, &[new, old, after], at)
}

fn predicated_otherwise(otherwise: Otherwise, operands: &[&TensorFuture], at: At) -> TensorFuture {
    let (at, port) = (seen(at), operands[0].port());
    let Meta { shape, dtype } = operands[0].node.meta.clone();
    // Not by `apply`: this op is made for operands that may have failed.
    let inputs = operands.iter().map(|x| x.node.link()).collect();
    let node = Node::new(Op::Predicated(otherwise), inputs, shape, dtype, port, at);
    TensorFuture::new(enqueue(port, node))
}

/// A 0-d value that completes once all of these do, on their device, and fails with the first that
/// fails.
pub(crate) fn all_there(values: &[TensorFuture], device: &Device, at: At) -> TensorFuture {
    let yes = create(device.port, Op::Fill(Scalar::Bool(true)), ().into(), DType::Bool, at);
    predicated(&yes, values, at)
}

/// `new` if `condition` (0-d, bool) is true, otherwise `old`; fails unless both have the same shape
/// and type.
pub(crate) fn choose(
    condition: &TensorFuture,
    new: TensorFuture,
    old: TensorFuture,
    at: At,
) -> TensorFuture {
    let rule = || match (&new.node.meta, &old.node.meta) {
        (n, o) if n.shape != o.shape => {
            Err(Refusal::shape(format!("cannot put {} in the place of {}", n.shape, o.shape)))
        }
        (n, o) if n.dtype != o.dtype => {
            Err(Refusal::dtype(format!("cannot put {} in the place of {}", n.dtype, o.dtype)))
        }
        (_, old) => Ok(old.clone()),
    };
    let asked = ask(|| Op::Where, &[condition, &new, &old], rule, at);
    asked.without((new, old))
}

pub(crate) fn custom(op: Arc<impl Listed>, operands: &[&TensorFuture], at: At) -> TensorFuture {
    ask_custom(op, operands, at).go()
}

pub(crate) fn ask_custom<O: Listed>(op: Arc<O>, operands: &[&TensorFuture], at: At) -> Asked {
    if let Some(wide) = mixed::each_widened(op.name(), operands, at) {
        return ask_custom(op, &wide.iter().collect::<SmallVec<[&TensorFuture; 4]>>(), at);
    }
    let metas: SmallVec<[&Meta; 4]> = operands.iter().map(|x| &x.node.meta).collect();
    let meta = match metas.iter().find(|meta| !O::MOVES && meta.dtype.is_storage()) {
        Some(meta) => Err(Refusal::storage(meta.dtype)),
        None => op.infer(&metas),
    };
    ask(|| Op::Custom(op), operands, || meta, at)
}

/// A reduction over these dimensions, or all of them. As in PyTorch, an empty list means all
/// dimensions, except in `any` and `all`, where it means none.
pub(crate) fn reduce(
    op: ReduceOp,
    x: &TensorFuture,
    dims: Option<&[isize]>,
    keepdim: bool,
    at: At,
) -> TensorFuture {
    if let Some(x) = mixed::widened_in(op.name(), x, at) {
        return reduce(op, &x, dims, keepdim, at);
    }
    let dims = dims.filter(|dims| !dims.is_empty() || op.keeps_no_dims());
    let mut gone: SmallVec<[bool; 8]> = SmallVec::from_elem(dims.is_none(), x.rank());
    let mut wrong = None;
    match named_dims(x, dims.unwrap_or(&[])) {
        Ok(named) => named.into_iter().for_each(|d| gone[d] = true),
        Err(refusal) => wrong = Some(refusal),
    }
    let rule = || match &wrong {
        Some(refusal) => Err(refusal.clone()),
        None => infer::reduce(op, &x.node.meta, &gone, keepdim),
    };
    let reduction = crate::graph::node::Reduction { op, dims: gone.clone() };
    apply(Op::Reduce(Box::new(reduction)), &[x], rule, at)
}

/// The failed value of a function without operands; on the CPU, since a value needs a device.
pub(crate) fn of_nothing(op: &str, at: At) -> TensorFuture {
    let error = Error::new(ErrorKind::Argument, op, "needs at least one tensor", at);
    failed(Device::cpu().port, Meta::new([0], DType::F32), error, at)
}

/// These dimensions, each named once. A 0-d value counts as a vector of one element, so its
/// dimension 0 is accepted, and dropped.
pub(crate) fn named_dims(
    x: &TensorFuture,
    dims: &[isize],
) -> Result<SmallVec<[usize; 8]>, Refusal> {
    let twice = |dim: isize| Refusal::argument(format!("dimension {dim} is named twice"));
    let mut out: SmallVec<[usize; 8]> = SmallVec::new();
    for &dim in dims {
        match x.shape().dim(dim) {
            None if is_row_of_one(x, dim) && dims.len() == 1 => {}
            None if is_row_of_one(x, dim) => return Err(twice(dim)),
            None => return Err(dim_refusal(dim, x.shape())),
            Some(d) if out.contains(&d) => return Err(twice(dim)),
            Some(d) => out.push(d),
        }
    }
    Ok(out)
}

/// True for the dimension of a 0-d value, which PyTorch treats as a vector of one element.
pub(crate) fn is_row_of_one(x: &TensorFuture, dim: isize) -> bool {
    x.rank() == 0 && matches!(dim, 0 | -1)
}

pub(crate) fn dim_refusal(dim: isize, shape: &Shape) -> Refusal {
    Refusal::index(format!("dimension {dim} is out of range for shape {shape}"))
}
