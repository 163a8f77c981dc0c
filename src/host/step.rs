//! A step on host memory: the place of its values, and the kernel that computes it.
//!
//! The CPU device, the simulated device and a poll that runs a small op share this file. The engine
//! says which op fails with which, and which op reads a value last.

#![allow(unsafe_code)]

use crate::backend::{self, Backend, End, Fused, Immediate, OpRun, Operand, Read, guarded};
use crate::dtype::{DType, Element, with_any_dtype};
use crate::error::Error;
use crate::graph::claim::Claim;
use crate::graph::infer;
use crate::graph::node::{Node, Op, Sink};
use crate::graph::operation::{CpuRun, Refusal};
use crate::graph::program::{OUTPUTS_MAX, Program, Reg};
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value};
use crate::host::kernels::elementwise::{Lone, One};
use crate::host::kernels::stream::{self, Fenced};
use crate::host::kernels::{copy, elementwise, reduce};
use crate::memory::{Block, Memory};
use crate::op::ReduceOp;
use crate::shape::Shape;
use crate::view::{Parallel, Serial, View, ViewMut};
use smallvec::SmallVec;
use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

/// Where a step runs.
#[derive(Clone, Copy)]
pub(crate) struct Host<'a> {
    pub memory: &'a Arc<Memory>,
    pub parallel: &'a dyn Parallel,
    /// Small results lie in their node.
    pub inline_values: bool,
}

/// A place for a result, before it is a value.
pub(crate) enum Place {
    Inline([u64; INLINE_BYTES / 8]),
    Shared(Arc<dyn Buffer>),
}

impl Place {
    fn ptr(&mut self) -> *mut u8 {
        match self {
            Place::Inline(words) => words.as_mut_ptr() as *mut u8,
            Place::Shared(buffer) => buffer.host().unwrap_or(std::ptr::null_mut()),
        }
    }

    fn view<'a>(&mut self, dtype: DType, shape: &'a Shape) -> ViewMut<'a> {
        ViewMut { ptr: self.ptr(), dtype, shape, life: PhantomData }
    }
}

/// Why there is no result.
pub(crate) enum Trouble {
    OutOfMemory { bytes: usize },
    Refused(Refusal),
    Failed(Error),
}

impl From<Refusal> for Trouble {
    fn from(refusal: Refusal) -> Trouble {
        Trouble::Refused(refusal)
    }
}

fn view<'a>(read: &'a Read<'_, *const u8>) -> View<'a> {
    View { ptr: read.at, dtype: read.dtype, shape: read.shape, strides: &read.strides }
}

impl Backend for Host<'_> {
    type At = *const u8;
    type Place = Place;
    type Kept = Result<Value, Error>;
    type Trouble = Trouble;
    type Stop = Infallible;

    fn nowhere() -> *const u8 {
        static NOTHING: u64 = 0;
        (&raw const NOTHING).cast()
    }

    fn find(&mut self, value: &Value, of: &Node) -> Result<*const u8, Trouble> {
        Ok(value.first(of.dtype))
    }

    fn place(&mut self, of: &Node) -> Result<Place, Trouble> {
        let bytes = of.bytes();
        if bytes <= INLINE_BYTES && self.inline_values {
            return Ok(Place::Inline([0; INLINE_BYTES / 8]));
        }
        let block = self.memory.alloc(bytes).ok_or(Trouble::OutOfMemory { bytes })?;
        Ok(Place::Shared(block))
    }

    fn take_over(&mut self, buffer: &Arc<dyn Buffer>, _: bool) -> Place {
        let block = buffer.as_any().downcast_ref::<Block>();
        Place::Shared(
            block.unwrap_or_else(|| unreachable!("what is reusable here is a block")).move_out(),
        )
    }

    fn value(place: Place) -> Value {
        Value::contiguous(match place {
            Place::Inline(words) => Storage::Inline(words),
            Place::Shared(buffer) => Storage::Shared(buffer),
        })
    }

    /// Each element is computed once: what the reduction reads, and whatever else is written, on
    /// the way.
    fn fused(&mut self, fused: Fused<'_, Self>) -> Result<(), Trouble> {
        let Fused { program, shape, reads, places, end } = fused;
        let views: SmallVec<[View<'_>; 4]> = reads.iter().map(view).collect();
        let regs = program.outputs.iter().copied();
        let mut out: SmallVec<[Output<'_>; 2]> = regs
            .zip(places)
            .map(|(reg, place)| Output { reg, view: place.view(program.dtype(reg), shape) })
            .collect();
        let fits =
            |end: &End<'_, Place>| out.len() < OUTPUTS_MAX || out.iter().any(|o| o.reg == end.reg);
        let together = end.as_ref().is_some_and(fits);
        guarded(|| {
            if !together && !out.is_empty() {
                let out: SmallVec<[ViewMut<'_>; 2]> = out.drain(..).map(|o| o.view).collect();
                if shape.numel() > 0 {
                    elementwise::run_parallel(program, shape, &views, &out, self.parallel);
                }
            }
            if let Some(end) = end {
                run_reduction_of(program, end, shape, &views, &out, self.parallel);
            }
            Ok(())
        })
    }

    fn op(&mut self, call: OpRun<'_, Self>) -> Result<(), Trouble> {
        let OpRun { node, reads, place, in_place } = call;
        let views: SmallVec<[View<'_>; 4]> = reads.iter().map(view).collect();
        let output = place.view(node.dtype, &node.shape);
        guarded(|| {
            match &node.op {
                // The elements in order; the new shape is the reader's.
                Op::View(_) => {
                    let output = place.view(node.dtype, reads[0].shape);
                    copy::copy(views[0], &output, self.parallel);
                }
                Op::Reduce(reduction) => {
                    let source = reduce::Source::View(views[0]);
                    reduce::reduce(reduction.op, source, &reduction.dims, &output, self.parallel);
                }
                Op::Custom(op) => {
                    if let Some(i) = op.reuses().filter(|_| !in_place) {
                        copy::copy(views[i], &output, self.parallel);
                        self.memory.copied(node.bytes());
                    }
                    let buffers: SmallVec<[_; 4]> = reads.iter().map(|read| read.buffer).collect();
                    op.run_cpu(&mut CpuRun {
                        inputs: &views,
                        output,
                        parallel: self.parallel,
                        in_place,
                        written: 0,
                        buffers: &buffers,
                    })?;
                }
                Op::Unary(_)
                | Op::Binary(_)
                | Op::WithScalar { .. }
                | Op::Where
                | Op::Cast
                | Op::Fill(_)
                | Op::Arange { .. }
                | Op::Random { .. } => {
                    unreachable!("elementwise nodes run in groups")
                }
                Op::Source(_)
                | Op::Sink(_)
                | Op::Call(_)
                | Op::Part(_)
                | Op::Predicated(_)
                | Op::Marker
                | Op::Given => unreachable!("{} has no kernel", node.op.name()),
            }
            Ok(())
        })
    }

    fn give(
        &mut self,
        sink: &dyn Sink,
        node: &Node,
        value: &Value,
        of: &Node,
    ) -> Result<(), Trouble> {
        let strides = value.strides(&of.shape);
        let from = View {
            ptr: value.first(of.dtype),
            dtype: of.dtype,
            shape: &of.shape,
            strides: &strides,
        };
        backend::given(sink, node, from, self.parallel).map_err(Trouble::Failed)
    }

    fn is_tiny(&self, node: &Node) -> bool {
        let bytes = node.bytes();
        self.inline_values && bytes <= INLINE_BYTES && bytes > 0 && node.op.is_elementwise()
    }

    fn run_tiny(&self, claim: &mut Claim<'_>) -> bool {
        run_tiny(claim)
    }

    fn blame(&self, trouble: Trouble, node: &Node) -> Result<Error, Infallible> {
        Ok(match trouble {
            Trouble::OutOfMemory { bytes } => {
                backend::out_of_memory(node, bytes, self.memory.bytes().live)
            }
            Trouble::Refused(refusal) => node.fail(refusal.kind, refusal.message),
            Trouble::Failed(error) => error,
        })
    }

    fn kept(kept: &Result<Value, Error>) -> Operand<'_> {
        kept.as_ref()
    }
}

impl Immediate for Host<'_> {
    fn side_by_side(self, n: usize, each: &(dyn Fn(usize, Self) + Sync)) {
        self.parallel.run(n, &|i| each(i, Host { parallel: &Serial, ..self }));
    }
}

/// A register of a program that is written, and where to.
struct Output<'a> {
    reg: Reg,
    view: ViewMut<'a>,
}

/// Reduces a register of a program as it is computed, tile by tile, and writes `out` on the way.
/// The reduced register is written as a whole only if it is among these.
fn run_reduction_of(
    program: &Program,
    end: End<'_, Place>,
    shape: &Shape,
    views: &[View<'_>],
    out: &[Output<'_>],
    parallel: &dyn Parallel,
) {
    let End { node, reduction, reg, place } = end;
    let is_sum = matches!(reduction.op, ReduceOp::Sum | ReduceOp::Mean);
    if let Some(input) = program.squared_input(reg).filter(|_| is_sum && out.is_empty()) {
        let source = reduce::Source::Squares(views[input]);
        let result = place.view(node.dtype, &node.shape);
        return reduce::reduce(reduction.op, source, &reduction.dims, &result, parallel);
    }
    let mut program = program.clone();
    program.outputs = SmallVec::from_slice(&[reg]);
    program.outputs.extend(out.iter().map(|o| o.reg).filter(|r| *r != reg));
    let dtype = program.dtype(reg);
    let result = place.view(node.dtype, &node.shape);
    let front = elementwise::Front::new(&program, shape, views);
    let tiles = |range: std::ops::Range<usize>, to: *mut u8| {
        let at = |view: &ViewMut<'_>| view.ptr.wrapping_add(range.start * view.dtype.size());
        let mut places: SmallVec<[*mut u8; 4]> = SmallVec::from_slice(&[to]);
        places.extend(out.iter().filter(|o| o.reg != reg).map(|o| at(&o.view)));
        // SAFETY: the reduction hands in memory of its own for exactly these elements, and reads an
        // element from one part only (`argmax` some of them twice), so no other thread writes
        // there.
        unsafe { front.read(range.clone(), &mut places) };
        if let Some(Output { view, .. }) = out.iter().find(|o| o.reg == reg) {
            // SAFETY: as above; the tile was just computed.
            unsafe {
                stream::put(to, at(view), range.len() * dtype.size(), view.numel() * dtype.size())
            };
        }
    };
    let source = reduce::Source::Fused { dtype, shape, read: &tiles };
    match out.is_empty() {
        true => reduce::reduce(reduction.op, source, &reduction.dims, &result, parallel),
        false => {
            reduce::reduce(reduction.op, source, &reduction.dims, &result, &Fenced(parallel));
            stream::fence();
        }
    }
}

/// Runs one elementwise op with a result of a few bytes, straight from its operands' memory to
/// where the value is read, and leaves it to be published; false where it is not as simple as that.
/// This is what most small eager ops are, and half of their cost would be the views and the program
/// around them. Nothing here is handed on but in registers: what was just stored by words, and is
/// loaded whole, waits until every store before it is in the cache.
fn run_tiny(claim: &mut Claim<'_>) -> bool {
    let (node, inputs) = (claim.node(), claim.inputs());
    let n = node.numel();
    let mut cell = 0u64;
    let cell = (&raw mut cell).cast::<u8>();
    // Null where it is not simple.
    let operand = |i: usize, on: DType| -> Lone {
        let input: &Node = &inputs[i];
        match input.value() {
            _ if input.dtype != on => Lone::same(std::ptr::null()),
            Some(value) if value.placed.is_none() && input.shape.is(&node.shape) => {
                Lone::each(value.first(on))
            }
            Some(value) if input.numel() == 1 => Lone::same(value.first(on)),
            _ => Lone::same(std::ptr::null()),
        }
    };
    let (op, on, a, b) = match node.op {
        Op::WithScalar { op, ref scalar, left } => {
            let Ok(types) = infer::with_scalar(op, inputs[0].dtype, *scalar) else { return false };
            let x = operand(0, types.on);
            // SAFETY: there is room for any element.
            let s = unsafe { elementwise::lone_number(*scalar, types.on, cell) };
            let (a, b) = if left { (s, x) } else { (x, s) };
            (One::Binary(op), types.on, a, b)
        }
        Op::Binary(op) => {
            let kind = |i: usize| (inputs[i].dtype, inputs[i].shape.rank());
            let Ok(types) = infer::binary(op, kind(0), kind(1)) else { return false };
            (One::Binary(op), types.on, operand(0, types.on), operand(1, types.on))
        }
        Op::Unary(op) => {
            let Ok(types) = infer::unary(op, inputs[0].dtype) else { return false };
            let x = operand(0, types.on);
            (One::Unary(op), types.on, x, x)
        }
        // Written out: the way of a constant, one element with strides of 0, through a program
        // costs its readers ten times as much as theirs (5,000 instructions).
        Op::Fill(number) => {
            return claim.fill_in(|to| {
                with_any_dtype!(node.dtype, T => {
                    let x = <T as Element>::from_scalar(number);
                    // SAFETY: there is room for n of them.
                    (0..n).for_each(|k| unsafe { to.cast::<T>().add(k).write(x) });
                });
                true
            });
        }
        _ => return false,
    };
    if a.is_null() || b.is_null() {
        return false;
    }
    // SAFETY: operands are complete values of n elements, or of one; the result has room for n.
    // The kernels of the table do not panic.
    claim.fill_in(|to| unsafe { elementwise::one(op, on, a, b, to, n) })
}

#[cfg(all(test, not(futensor_loom)))]
#[path = "fused_tests.rs"]
mod tests;
