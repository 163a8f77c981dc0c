//! The trait of every op that is not in the tables: shape rule, cost, kernels, gradient rule.
//!
//! `ops/` implements the trait, one file an op; a user's custom op implements it from outside. The
//! engine and the devices call it without knowing the implementation.

use super::device_run::CudaRun;
pub use super::refusal::Refusal;
use super::value::Buffer;
// The only import from a higher layer: a gradient rule is written in the ops that users call.
// Nothing here calls it.
use crate::Backward;
use crate::dtype::DType;
use crate::shape::Shape;
use crate::view::{Output, Parallel, View, ViewMut};
use std::any::Any;

/// The shape and type of a value, known before the value is computed.
///
/// ```
/// use futensor::{DType, custom::Meta};
/// let meta = Meta::new([2, 3], DType::F32);
/// assert_eq!(meta.bytes(), 24);
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Meta {
    /// Sizes of the dimensions.
    pub shape: Shape,
    /// Element type.
    pub dtype: DType,
}

impl Meta {
    /// Shape and element type together.
    pub fn new(shape: impl Into<Shape>, dtype: DType) -> Meta {
        Meta { shape: shape.into(), dtype }
    }

    /// Bytes of the elements; saturates.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.shape.numel().saturating_mul(self.dtype.size())
    }
}

/// Shape and type of a result, as a shape rule returns them.
pub(crate) trait Ruled {
    fn shape(&self) -> &Shape;
    fn dtype(&self) -> DType;
    fn meta(self) -> Meta;
}

impl Ruled for Meta {
    #[inline(always)]
    fn shape(&self) -> &Shape {
        &self.shape
    }
    #[inline(always)]
    fn dtype(&self) -> DType {
        self.dtype
    }
    #[inline(always)]
    fn meta(self) -> Meta {
        self
    }
}

/// A result with an operand's shape. The shape is copied directly into the node: a copy on the
/// stack would be stored in words and loaded in lines.
pub(crate) struct Shaped<'a>(pub &'a Shape, pub DType);

impl Ruled for Shaped<'_> {
    #[inline(always)]
    fn shape(&self) -> &Shape {
        self.0
    }
    #[inline(always)]
    fn dtype(&self) -> DType {
        self.1
    }
    #[inline(always)]
    fn meta(self) -> Meta {
        Meta { shape: self.0.clone(), dtype: self.1 }
    }
}

/// The arguments of a CPU kernel.
pub struct CpuRun<'a> {
    pub(crate) inputs: &'a [View<'a>],
    pub(crate) output: ViewMut<'a>,
    pub(crate) parallel: &'a dyn Parallel,
    pub(crate) in_place: bool,
    /// The number of elements, from the first, that a custom op has written or was given. The
    /// crate's own ops write all elements through `output`.
    pub(crate) written: usize,
    /// The buffer of each input, unless its elements are stored in the node: kernels may keep data
    /// beside a buffer.
    pub(crate) buffers: &'a [Option<&'a dyn Buffer>],
}

impl<'a> CpuRun<'a> {
    /// The operands, in order. The operand that [`Operation::reuses`] names has only shape and type
    /// here; its elements are in the output.
    pub fn inputs(&self) -> &'a [View<'a>] {
        self.inputs
    }

    /// The output. Every element has to be written, or the value fails.
    pub fn output(&mut self) -> Output<'_> {
        Output::new(self.output_again(), &mut self.written)
    }

    /// A second view of the output, for a kernel that sees it in another shape.
    pub(crate) fn output_again(&self) -> ViewMut<'a> {
        let ViewMut { ptr, dtype, shape, life } = self.output;
        ViewMut { ptr, dtype, shape, life }
    }

    /// Runs parts of the kernel on several threads.
    pub fn parallel(&self) -> &'a dyn Parallel {
        self.parallel
    }

    /// True if the output is the memory of the input that [`Operation::reuses`] names; false if it
    /// is a copy.
    pub fn in_place(&self) -> bool {
        self.in_place
    }
}

/// The values that a gradient rule reads: they are kept, or can be recomputed, until the gradient
/// has gone through. The upstream gradient, shapes and types are always available.
///
/// ```
/// use futensor::custom::Needs;
/// let _ = Needs::NOTHING;                       // a sum
/// let _ = Needs::inputs(&[1]).and_output();     // the second operand and the result
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Needs {
    inputs: u64,
    output: bool,
    /// The result is recomputed from all operands instead of being kept.
    output_again: bool,
    as_they_are: bool,
}

impl Needs {
    /// Only the upstream gradient.
    pub const NOTHING: Needs =
        Needs { inputs: 0, output: false, output_again: false, as_they_are: false };
    /// The result.
    pub const OUTPUT: Needs = Needs::NOTHING.and_output();
    /// All operands and the result.
    pub const ALL: Needs = Needs { inputs: u64::MAX, ..Needs::OUTPUT };

    /// These operands. (The 64th also stands for all operands after it.)
    pub const fn inputs(which: &[usize]) -> Needs {
        let (mut inputs, mut i) = (0, 0);
        while i < which.len() {
            inputs |= 1 << if which[i] < 63 { which[i] } else { 63 };
            i += 1;
        }
        Needs { inputs, ..Needs::NOTHING }
    }

    /// These operands, and the result.
    pub const fn and_output(self) -> Needs {
        Needs { output: true, ..self }
    }

    /// The needs of both.
    pub const fn and(self, other: Needs) -> Needs {
        Needs {
            inputs: self.inputs | other.inputs,
            output: self.output | other.output,
            output_again: self.output_again | other.output_again,
            as_they_are: self.as_they_are | other.as_they_are,
        }
    }

    /// The same values in their own types. By default the rules of this crate's ops get halves in
    /// float32, and the result of an op on halves before rounding. For rules that already round
    /// once, and for all rules of users.
    pub(crate) const fn as_they_are(self) -> Needs {
        Needs { as_they_are: true, ..self }
    }

    /// Replaces the result, if it is needed, by all operands, from which it is recomputed.
    pub(crate) const fn with_output_again(self) -> Needs {
        match self.output {
            true => Needs { inputs: u64::MAX, output: false, output_again: true, ..self },
            false => self,
        }
    }

    pub(crate) const fn has_input(&self, i: usize) -> bool {
        self.inputs >> (if i < 63 { i } else { 63 }) & 1 == 1
    }

    pub(crate) const fn has_output(&self) -> bool {
        self.output
    }

    pub(crate) const fn has_output_again(&self) -> bool {
        self.output_again
    }

    pub(crate) const fn are_as_they_are(&self) -> bool {
        self.as_they_are
    }
}

/// An op outside the tables. Implement this trait for an op of your own.
///
/// [`run_cpu`](Self::run_cpu) and [`run_cuda`](Self::run_cuda) are called on the device's threads
/// and must not wait. The other methods are called once, on the caller's thread, when the op is
/// called (the gradient methods when the gradient is taken). A panic in any method fails only this
/// value, with an error that says so; so does a panic when the op is dropped.
/// [`custom_owned`](crate::custom::custom_owned) shows an op that changes a value in place, as a
/// key-value cache does.
pub trait Operation: Any + Send + Sync {
    /// The op's name, for errors and traces.
    fn name(&self) -> &str;

    /// The op that its failure is said to be of, where that is another one.
    #[doc(hidden)]
    fn blamed(&self) -> &str {
        self.name()
    }

    /// The folder of `ops/` that the op is in, for pictures: "custom" for ops from outside.
    #[doc(hidden)]
    fn family(&self) -> &'static str {
        let path = std::any::type_name::<Self>().strip_prefix("futensor::ops::");
        path.and_then(|path| path.split("::").next()).unwrap_or("custom")
    }

    /// Shape and type of the result, or why there is none. Called by the caller of the op, at once.
    ///
    /// # Errors
    /// A [`Refusal`] makes a failed value.
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal>;

    /// Computes the elements. Every element of the output has to be written.
    ///
    /// # Errors
    /// A [`Refusal`] fails this value and values computed from it, nothing else. So does a panic,
    /// or an output element that was not written.
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal>;

    /// Queues the launches that compute the elements on a CUDA device. Called on the device's
    /// thread, which it must not block: it names the launches and returns. If a kernel is still
    /// being compiled, or memory is short, nothing is launched, and the method is called again
    /// later.
    ///
    /// By default it refuses: an op without a CUDA kernel fails on CUDA devices with an error that
    /// says so.
    ///
    /// # Errors
    /// A [`Refusal`] fails this value and values computed from it, nothing else. So does a panic,
    /// or an op that never asked for its output.
    fn run_cuda(&self, _run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::no_kernel(self.name()))
    }

    /// Whether a region with this op may become a CUDA graph, which replays the launches of one
    /// run: true promises that [`run_cuda`](Self::run_cuda) makes the same launches whenever it is
    /// asked for operands of these shapes and strides, and passes addresses as
    /// [`CudaArg::Address`](crate::cuda::CudaArg::Address) only. False by default: such a region is
    /// launched step by step.
    fn is_replayable(&self) -> bool {
        false
    }

    /// The estimated time on one thread in nanoseconds. Below 6,000 an awaiting poll may run the op
    /// itself, and the engine runs the cheapest ops immediately. By default 10,000 plus one
    /// nanosecond per element read or written, since the cost of a custom op is unknown. The engine
    /// assumes at least one nanosecond per 16 elements of all operands and the result.
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs.iter().copied().chain([output]).map(|m| m.shape.numel() as u64);
        all.fold(10_000, u64::saturating_add)
    }

    /// The input (of the output's shape and type) that the op changes in place: the output starts
    /// with its elements.
    ///
    /// If this op is the input's last reader, the output is the input's memory, and nothing is
    /// copied; otherwise the output is a copy, and other holders of the input see no change. Either
    /// way only the output has the elements: [`CpuRun::inputs`] and [`CudaRun::inputs`] have only
    /// the input's shape and type. An input that does not exist, or has another shape or type, is
    /// an argument error.
    fn reuses(&self) -> Option<usize> {
        None
    }

    /// Whether the op reads of its first operand only the elements that the others name, so that
    /// the size of that one says nothing of the time that it takes. Only ops of this crate are
    /// asked: others are taken to read all of their operands, whatever their estimates say.
    #[doc(hidden)]
    fn picks(&self) -> bool {
        false
    }

    /// Whether it is a rule for a value that other ops have computed, and so reads nothing itself.
    #[doc(hidden)]
    fn is_rule(&self) -> bool {
        false
    }

    /// Whether elementwise ops that follow, and a reduction after them, may run in the same step if
    /// this op's result is otherwise unobserved. They then work on its memory while it is in the
    /// caches. False by default; worthwhile for an op that writes a large result in its own order.
    fn takes_epilogue(&self) -> bool {
        false
    }

    /// The values that [`gradient`](Self::gradient) reads if the inputs marked in `wanted` are on
    /// the tape. Called when the op is called. All values by default.
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let _ = wanted;
        Needs::ALL
    }

    /// The gradients of the inputs, written in ordinary ops, so that they have gradients
    /// themselves. Called by [`grad`](crate::grad) on the caller's thread; must not wait.
    /// [`Backward`] has the available values.
    ///
    /// # Errors
    /// A [`Refusal`] makes the gradients that flow through this op failed values. This is the
    /// default: an op without a rule has no gradient.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let _ = call;
        Err(Refusal::no_gradient())
    }
}
