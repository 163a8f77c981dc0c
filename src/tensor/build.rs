//! From a call to a queued node: checks, metadata, failed values.

use super::device::Device;
use super::future::TensorFuture;
use super::gradient::record;
use super::region::trace::{enqueue, enter, is_tracing};
use crate::completion::{Phase, QUEUED};
use crate::dtype::{DType, Scalar};
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind};
use crate::graph::infer;
use crate::graph::node::{Inputs, Node, NodeLink, Op};
use crate::graph::operation::{Meta, Operation, Refusal};
use crate::graph::tape::Made;
use crate::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::shape::Shape;
use smallvec::SmallVec;
use std::cell::Cell;
use std::panic::Location;
use std::sync::Arc;

pub(crate) type At = &'static Location<'static>;

thread_local! {
    /// Who called the module that calls others now: see [`called_from`].
    static CALLER: Cell<Option<At>> = const { Cell::new(None) };
}

/// True of a place in the layers' own files.
fn in_layers(at: At) -> bool {
    let here = file!();
    let root = here.len() - "tensor/build.rs".len();
    let file = at.file();
    file.as_bytes().get(..root) == Some(&here.as_bytes()[..root]) && file.get(root..root + 2) == Some("nn")
}

/// Calls modules through a trait object, which knows no caller: what they ask for in a layer's own file is said to be
/// asked for at `at`. What a user's module asks for keeps its own line.
pub(crate) fn called_from<R>(at: At, f: impl FnOnce() -> R) -> R {
    struct Back(Option<At>);
    impl Drop for Back {
        fn drop(&mut self) {
            CALLER.set(self.0);
        }
    }
    let before = CALLER.get();
    let _back = Back(before);
    CALLER.set(Some(if in_layers(at) { before.unwrap_or(at) } else { at }));
    f()
}

/// Where an op was asked for, as its user sees it.
#[inline]
pub(crate) fn seen(at: At) -> At {
    match CALLER.get() {
        Some(caller) if in_layers(at) => caller,
        _ => at,
    }
}

/// Queues an op without operands.
pub(crate) fn create(port: &'static Port, op: Op, shape: Shape, dtype: DType, at: At) -> TensorFuture {
    let at = seen(at);
    if let Err(refusal) = fits(&shape, dtype) {
        let error = Error::new(refusal.kind, op.name(), refusal.message, at);
        return failed(port, Meta { shape, dtype }, error, at);
    }
    let node = Node::new(op, Inputs::new(), shape, dtype, port, at);
    TensorFuture::new(enqueue(port, node))
}

/// As many dimensions as PyTorch allows; views and kernels count them in a byte.
const RANK_MAX: usize = 64;

/// Refuses a value of too many dimensions, and one whose bytes no address space holds, even where it would
/// need none (a constant, a view): whatever is made from it would.
pub(crate) fn fits(shape: &Shape, dtype: DType) -> Result<(), Refusal> {
    if shape.rank() > RANK_MAX {
        return Err(Refusal::shape(format!("{} dimensions are more than {RANK_MAX}", shape.rank())));
    }
    if shape.numel().saturating_mul(dtype.size()) <= isize::MAX as usize {
        return Ok(());
    }
    let message = format!("out of memory: {shape} of {dtype} is larger than any memory");
    Err(Refusal { kind: ErrorKind::OutOfMemory, message })
}

/// A failed value; its metadata is that of the first operand.
pub(crate) fn failed(port: &'static Port, meta: Meta, error: Error, at: At) -> TensorFuture {
    TensorFuture::new(port.given(meta.shape, meta.dtype, at, Err(error)))
}

/// A failed value of an op that is made of others and does not take its operands: with the first one's
/// error where that is known to have failed.
pub(crate) fn refused(op: &str, first: &TensorFuture, refusal: Refusal, at: At) -> TensorFuture {
    let at = seen(at);
    let own = || Error::new(refusal.kind, op, refusal.message, at);
    failed(first.port(), first.node.meta(), first.node.error().cloned().unwrap_or_else(own), at)
}

/// An op that is asked for and that the engine has not been told of. Who owns an operand lets it go before: a
/// worker that is awake would find it observed, and copy what may be written over.
#[must_use]
pub(crate) struct Asked {
    value: TensorFuture,
    link: Option<NodeLink>,
}

impl From<TensorFuture> for Asked {
    /// Nothing to tell the engine.
    fn from(value: TensorFuture) -> Asked {
        Asked { value, link: None }
    }
}

impl Asked {
    #[inline]
    pub(crate) fn go(self) -> TensorFuture {
        if let Some(link) = self.link {
            self.value.port().push(link);
        }
        self.value
    }

    /// [`go`](Self::go) once these operands are let go.
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

/// Prepares an op on operands, or makes a failed value: where an operand is known to have failed, with
/// that one's error; where devices are mixed; where the rule refuses.
///
/// What most ops are (their operands have not failed, on one device, no gradient, no region) is part of the caller: the
/// node's fields are written once, where the node will be. On the way over a function's stack they would be stored by
/// words and loaded by lines, for which a processor waits until all that was stored before is in its cache.
#[inline(always)]
pub(crate) fn ask(
    op: impl FnOnce() -> Op,
    operands: &[&TensorFuture],
    rule: impl FnOnce() -> Result<Meta, Refusal>,
    at: At,
) -> Asked {
    let at = seen(at);
    let port = operands[0].port();
    let is_plain = |x: &&TensorFuture| {
        std::ptr::eq(x.port(), port) && x.tape.is_none() && x.node.completion.state().phase() != Phase::Failed
    };
    match rule() {
        Ok(Meta { shape, dtype }) => {
            let numel = shape.numel();
            let bytes = numel.saturating_mul(dtype.size());
            let usual = operands.iter().all(is_plain) && !is_tracing() && !port.has_ended();
            if !usual || bytes > isize::MAX as usize || shape.rank() > RANK_MAX {
                return ask_slowly(op(), operands, Ok(Meta { shape, dtype }), at);
            }
            let mut inputs = Inputs::new();
            for x in operands {
                inputs.push(x.node.link());
            }
            let node = Node::with(op(), inputs, shape, dtype, port, at, numel, QUEUED);
            let (node, link) = port.take_in(node, bytes);
            Asked { value: TensorFuture::new(node), link: Some(link) }
        }
        Err(refusal) => ask_slowly(op(), operands, Err(refusal), at),
    }
}

/// [`ask`], whatever there is to it.
#[inline(never)]
fn ask_slowly(op: Op, operands: &[&TensorFuture], ruled: Result<Meta, Refusal>, at: At) -> Asked {
    let first = operands[0];
    let port = first.port();
    let failed = |meta: Meta, error: Error| Asked { value: failed(port, meta, error, at), link: None };
    let fail = |error: Error| failed(first.node.meta(), error);
    if let Some(error) = operands.iter().find_map(|x| x.node.error()) {
        return match ruled {
            Ok(meta) => failed(meta, error.clone()),
            Err(_) => fail(error.clone()),
        };
    }
    if let Some(other) = operands.iter().find(|x| !std::ptr::eq(x.port(), port)) {
        let text = format!(
            "operands are on two devices, {} and {}: copy one with to_device",
            port.name,
            other.port().name
        );
        return fail(Error::new(ErrorKind::Device, op.name(), text, at));
    }
    match ruled.and_then(|meta| fits(&meta.shape, meta.dtype).map(|()| meta)) {
        Ok(Meta { shape, dtype }) => {
            let inputs = operands.iter().map(|x| x.node.link()).collect();
            if operands.iter().any(|x| x.tape.is_some()) && dtype.is_float() && record::is_recording() {
                let made = Made::Op(op.clone());
                let (node, link) = enter(port, Node::new(op, inputs, shape, dtype, port, at));
                return Asked { value: record::recorded(made, operands, node), link };
            }
            let (node, link) = enter(port, Node::new(op, inputs, shape, dtype, port, at));
            Asked { value: TensorFuture::new(node), link }
        }
        Err(refusal) => fail(Error::new(refusal.kind, op.name(), refusal.message, at)),
    }
}

pub(crate) fn unary(op: UnaryOp, x: &TensorFuture, at: At) -> TensorFuture {
    ask_unary(op, x, at).go()
}

pub(crate) fn ask_unary(op: UnaryOp, x: &TensorFuture, at: At) -> Asked {
    let rule = || Ok(Meta { shape: x.shape().clone(), dtype: infer::unary(op, x.dtype())?.out });
    ask(|| Op::Unary(op), &[x], rule, at)
}

pub(crate) fn binary(op: BinaryOp, a: &TensorFuture, b: &TensorFuture, at: At) -> TensorFuture {
    ask_binary(op, a, b, at).go()
}

pub(crate) fn ask_binary(op: BinaryOp, a: &TensorFuture, b: &TensorFuture, at: At) -> Asked {
    let rule = || {
        let same = a.shape().dims() == b.shape().dims();
        let shape = if same { a.shape().clone() } else { infer::broadcast(a.shape(), b.shape())? };
        Ok(Meta { shape, dtype: infer::binary(op, (a.dtype(), a.rank()), (b.dtype(), b.rank()))?.out })
    };
    ask(|| Op::Binary(op), &[a, b], rule, at)
}

pub(crate) fn ask_with_scalar(op: BinaryOp, x: &TensorFuture, scalar: Scalar, left: bool, at: At) -> Asked {
    let rule = || {
        let dtype = infer::with_scalar(op, x.dtype(), scalar)?.out;
        Ok(Meta { shape: x.shape().clone(), dtype })
    };
    ask(|| Op::WithScalar { op, scalar, left }, &[x], rule, at)
}

pub(crate) fn custom(op: Arc<dyn Operation>, operands: &[&TensorFuture], at: At) -> TensorFuture {
    ask_custom(op, operands, at).go()
}

pub(crate) fn ask_custom(op: Arc<dyn Operation>, operands: &[&TensorFuture], at: At) -> Asked {
    let metas: SmallVec<[Meta; 4]> = operands.iter().map(|x| x.node.meta()).collect();
    let refs: SmallVec<[&Meta; 4]> = metas.iter().collect();
    let rule = || op.infer(&refs);
    let meta = rule();
    ask(|| Op::Custom(op.clone()), operands, move || meta, at)
}

/// A reduction; `dims` empty with `all` reduces everything.
pub(crate) fn reduce(
    op: ReduceOp,
    x: &TensorFuture,
    dims: Option<&[isize]>,
    keepdim: bool,
    at: At,
) -> TensorFuture {
    let mut gone: SmallVec<[bool; 8]> = SmallVec::from_elem(dims.is_none(), x.rank());
    let mut wrong = None;
    for &dim in dims.unwrap_or(&[]) {
        match x.shape().dim(dim) {
            // A 0-d tensor counts as a row of one, as in PyTorch.
            None if x.rank() == 0 && matches!(dim, 0 | -1) => {}
            Some(d) if gone[d] => wrong = Some(Refusal::argument(format!("dimension {dim} is named twice"))),
            Some(d) => gone[d] = true,
            None => wrong = Some(dim_refusal(dim, x.shape())),
        }
    }
    let rule = || match &wrong {
        Some(refusal) => Err(refusal.clone()),
        None => infer::reduce(op, &x.node.meta(), &gone, keepdim),
    };
    let reduction = crate::graph::node::Reduction { op, dims: gone.clone() };
    apply(Op::Reduce(Box::new(reduction)), &[x], rule, at)
}

/// A failed value of a function that was given no operand at all: on the CPU, since it has to be somewhere.
pub(crate) fn of_nothing(op: &str, at: At) -> TensorFuture {
    let error = Error::new(ErrorKind::Argument, op, "needs at least one tensor", at);
    failed(Device::cpu().port, Meta::new([0], DType::F32), error, at)
}

pub(crate) fn dim_refusal(dim: isize, shape: &Shape) -> Refusal {
    Refusal::index(format!("dimension {dim} is out of range for shape {shape}"))
}
