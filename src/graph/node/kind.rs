//! The op of a node, and the payload that an op may carry.
//!
//! `tensor/` and `ops/` make it; the code that takes a node up reads it. Knows no nodes.

#![allow(unsafe_code)]

use crate::dtype::Scalar;
use crate::error::Error;
use crate::graph::operation::{Operation, Refusal};
use crate::graph::value::{Buffer, Value};
use crate::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::shape::{Layout, Shape};
use smallvec::SmallVec;
use std::{any::Any, mem::MaybeUninit, sync::Arc};

/// A value that some future brings, polled by a device's threads for sources.
pub(crate) trait Source: Send + Sync {
    /// Polls it, unless another thread does just now; that one then sees to it that it is asked
    /// again.
    fn poll(&self, context: &mut std::task::Context<'_>) -> std::task::Poll<Result<Value, Error>>;
    /// Its poll and its drop are the library's own and short. Else they are the user's, and may
    /// take long.
    fn is_ours(&self) -> bool;
    fn name(&self) -> &'static str;
}

/// Something that takes a value away (a read): its own node never has elements.
pub(crate) trait Sink: Send + Sync {
    /// Called with the operand in host memory, by the thread that runs or publishes the step.
    fn take(
        &self,
        view: crate::view::View<'_>,
        parallel: &dyn crate::view::Parallel,
    ) -> Result<(), Error>;
    fn name(&self) -> &'static str;
    /// Memory for all elements in row-major order, where the sink takes them as they are: then it
    /// may be filled in pieces, and the sink is not called.
    #[allow(dead_code)] // Host devices have all elements at once.
    fn room(&self) -> Option<Result<Room, Refusal>> {
        None
    }
    /// The buffer to fill, where it is a user's: from its start on, with all elements in row-major
    /// order. Once it is filled, the sink is not called. Who fills it keeps it meanwhile.
    #[allow(dead_code)] // As above.
    fn place(&self) -> Option<Arc<dyn Buffer>> {
        None
    }
}

/// Host memory that another thread fills.
#[allow(dead_code)] // As above.
pub(crate) struct Room {
    pub ptr: *mut u8,
    /// To be called when all of it is written; the memory is kept until then.
    pub full: Box<dyn FnOnce() + Send>,
}

// SAFETY: memory of its own.
unsafe impl Send for Room {}

impl Room {
    /// Memory for so many bytes, which the second has as well.
    #[allow(dead_code)] // As above.
    pub fn plain(bytes: usize) -> Result<(Room, Arc<Vec<MaybeUninit<u64>>>), Refusal> {
        let mut words: Vec<MaybeUninit<u64>> = Vec::new();
        let n = bytes.div_ceil(8);
        words.try_reserve_exact(n).map_err(|_| Refusal::no_host_memory(bytes))?;
        // SAFETY: so much is reserved, and need not be anything.
        unsafe { words.set_len(n) };
        let ptr = words.as_mut_ptr().cast();
        let all = Arc::new(words);
        let kept = all.clone();
        Ok((Room { ptr, full: Box::new(move || drop(kept)) }, all))
    }
}

/// A call of a region, run as one op. Only `call` knows its content.
pub(crate) trait Planned: Any + Send + Sync {
    /// Estimated time of all of it on one thread of a CPU.
    fn cost_ns(&self) -> u64;
    /// It is taken up before what waits and is not.
    fn is_urgent(&self) -> bool;
}

/// Another look at the same elements.
#[derive(Clone, Debug)]
pub(crate) enum ViewOp {
    Reshape,
    Expand,
    Permute(SmallVec<[u8; 8]>),
    Slice {
        dim: u8,
        start: usize,
        step: isize,
    },
    /// Windows along a dimension, each `step` further; what is inside one becomes the last
    /// dimension.
    Windows {
        dim: u8,
        step: usize,
    },
    /// From a position of the last two dimensions on, one further in both at each step.
    Diagonal {
        start: [usize; 2],
    },
}

impl ViewOp {
    pub fn name(&self) -> &'static str {
        match self {
            ViewOp::Reshape => "reshape",
            ViewOp::Expand => "expand",
            ViewOp::Permute(_) => "permute",
            ViewOp::Slice { .. } => "narrow",
            ViewOp::Windows { .. } => "unfold_dim",
            ViewOp::Diagonal { .. } => "diagonal",
        }
    }

    /// The layout of the view, where it needs no copy.
    pub fn apply(&self, layout: &Layout, shape: &Shape) -> Option<Layout> {
        match self {
            ViewOp::Reshape => layout.reshape(shape),
            ViewOp::Expand => Some(layout.expand(shape)),
            ViewOp::Permute(order) => {
                let order: SmallVec<[usize; 8]> = order.iter().map(|&d| d as usize).collect();
                Some(layout.permute(&order))
            }
            ViewOp::Slice { dim, start, step } => {
                Some(layout.slice(*dim as usize, *start, shape[*dim as usize], *step))
            }
            ViewOp::Windows { dim, step } => Some(layout.windows(*dim as usize, shape, *step)),
            ViewOp::Diagonal { start } => Some(layout.diagonal(*start, shape)),
        }
    }
}

/// A reduction: which dimensions go.
#[derive(Clone, Debug)]
pub(crate) struct Reduction {
    pub op: ReduceOp,
    pub dims: SmallVec<[bool; 8]>,
}

/// The value of a predicated node if an input has failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Otherwise {
    /// It fails as well.
    Fails,
    /// This number, in every element.
    Number(Scalar),
    /// Its second input's elements, where one after those two has failed.
    Second,
}

/// How a node's value is made from its inputs.
#[derive(Clone)]
pub(crate) enum Op {
    Unary(UnaryOp),
    Binary(BinaryOp),
    /// A tensor and a number; `left` where the number is the left operand.
    WithScalar {
        op: BinaryOp,
        scalar: Scalar,
        left: bool,
    },
    Where,
    Cast,
    Fill(Scalar),
    Arange {
        start: Scalar,
        step: Scalar,
    },
    Random {
        normal: bool,
        seed: u64,
        offset: u64,
    },
    View(ViewOp),
    Reduce(Box<Reduction>),
    Custom(Arc<dyn Operation>),
    Source(Arc<dyn Source>),
    Sink(Arc<dyn Sink>),
    /// A call of a region, run as one step.
    Call(Arc<dyn Planned>),
    /// An output of a call that has several; its one input is the call.
    Part(Arc<dyn Any + Send + Sync>),
    /// Its first input's elements, once all inputs are there; otherwise see [`Otherwise`]. An
    /// optimizer's step predicates each new value on all gradients.
    Predicated(Otherwise),
    /// A point in the queue that `waitall` waits for.
    Marker,
    /// The value was handed in.
    Given,
}

impl Op {
    /// The name that errors and traces show.
    pub fn name(&self) -> &str {
        match self {
            Op::Unary(op) => op.name(),
            Op::Binary(op) | Op::WithScalar { op, .. } => op.name(),
            Op::Where => "where_cond",
            Op::Cast => "to_dtype",
            Op::Fill(_) => "full",
            Op::Arange { .. } => "arange",
            Op::Random { normal: true, .. } => "randn",
            Op::Random { normal: false, .. } => "rand",
            Op::View(view) => view.name(),
            Op::Reduce(r) => r.op.name(),
            Op::Custom(op) => op.name(),
            Op::Source(source) => source.name(),
            Op::Sink(sink) => sink.name(),
            Op::Call(_) | Op::Part(_) => "region",
            Op::Predicated(_) => "predicated",
            Op::Marker => "waitall",
            Op::Given => "given",
        }
    }

    /// The name that its errors show: its own, but for the check of another op.
    pub fn blamed(&self) -> &str {
        if let Op::Custom(op) = self { op.blamed() } else { self.name() }
    }

    /// Which ops it is like, for pictures. Those of `ops/` have the name of their folder there.
    pub fn family(&self) -> &'static str {
        match self {
            Op::Fill(_) | Op::Arange { .. } | Op::Random { .. } => "creation",
            Op::Unary(_) | Op::Binary(_) | Op::WithScalar { .. } | Op::Where | Op::Cast => {
                "elementwise"
            }
            Op::View(_) => "shaping",
            Op::Reduce(_) => "reductions",
            Op::Custom(op) => op.family(),
            Op::Sink(_) => "reads",
            Op::Call(_) | Op::Part(_) => "regions",
            Op::Source(_) | Op::Predicated(_) | Op::Marker | Op::Given => "others",
        }
    }

    /// True where what follows may run in the same step, on the result that only it reads.
    pub fn takes_epilogue(&self) -> bool {
        matches!(self, Op::Custom(op) if op.takes_epilogue())
    }

    /// The input that the op changes in place.
    pub fn reuses(&self) -> Option<usize> {
        if let Op::Custom(op) = self { op.reuses() } else { None }
    }

    /// True where the op is an instruction of a fused program.
    pub fn is_elementwise(&self) -> bool {
        matches!(
            self,
            Op::Unary(_)
                | Op::Binary(_)
                | Op::WithScalar { .. }
                | Op::Where
                | Op::Cast
                | Op::Fill(_)
                | Op::Arange { .. }
                | Op::Random { .. }
        )
    }
}
