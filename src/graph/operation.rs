//! The trait behind every op that is not in the table: shape rule, cost, kernels, gradient rule.
//!
//! `ops/` implements the trait, one file an op; a user's custom op implements it from outside. The
//! engine and the devices call it without knowing the implementation.

use super::device_run::CudaRun;
pub use super::refusal::Refusal;
use super::value::Buffer;
// The one name from above: a gradient rule is written in the ops that users call. Nothing here
// calls it.
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

/// Shape and type of a result, as a rule gives them.
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

/// A result with an operand's shape. The shape is copied where the node is written, and not on the
/// way there: on a stack it would be stored by words and loaded by lines.
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
    /// So many elements of the output, from the first on, an op from outside has written or was
    /// given. The crate's own write all of them through the field.
    pub(crate) written: usize,
    /// The buffer of each input, if its elements lie in one and not in the node: kernels may keep
    /// data beside them.
    pub(crate) buffers: &'a [Option<&'a dyn Buffer>],
}

impl<'a> CpuRun<'a> {
    /// The operands' values, in order. The one that [`Operation::reuses`] names has shape and type
    /// here, and its elements in the output alone.
    pub fn inputs(&self) -> &'a [View<'a>] {
        self.inputs
    }

    /// Where the result goes. Every element has to be written, or the value fails.
    pub fn output(&mut self) -> Output<'_> {
        Output::new(self.output_again(), &mut self.written)
    }

    /// The output once more, for a kernel that sees it in another shape.
    pub(crate) fn output_again(&self) -> ViewMut<'a> {
        let ViewMut { ptr, dtype, shape, life } = self.output;
        ViewMut { ptr, dtype, shape, life }
    }

    /// A way to use several threads.
    pub fn parallel(&self) -> &'a dyn Parallel {
        self.parallel
    }

    /// True where the output is the memory of the input that [`Operation::reuses`] names; false
    /// where it is a copy.
    pub fn in_place(&self) -> bool {
        self.in_place
    }
}

/// Which values a gradient rule reads: they are kept, or can be computed again, until the gradient
/// has gone through. The upstream gradient, shapes and types are always there.
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
    /// Computed again of all operands, instead of the result that was kept.
    output_again: bool,
    as_they_are: bool,
}

impl Needs {
    /// The upstream gradient is enough.
    pub const NOTHING: Needs =
        Needs { inputs: 0, output: false, output_again: false, as_they_are: false };
    /// The result.
    pub const OUTPUT: Needs = Needs::NOTHING.and_output();
    /// All operands and the result.
    pub const ALL: Needs = Needs { inputs: u64::MAX, ..Needs::OUTPUT };

    /// These operands. (The 64th stands for all after it as well.)
    pub const fn inputs(which: &[usize]) -> Needs {
        let (mut inputs, mut i) = (0, 0);
        while i < which.len() {
            inputs |= 1 << if which[i] < 63 { which[i] } else { 63 };
            i += 1;
        }
        Needs { inputs, ..Needs::NOTHING }
    }

    /// These and the result.
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

    /// The same, in their own types. The rules of this crate's ops are else given halves in
    /// float32, and the result of an op on halves as it was before it was rounded. For a rule that
    /// rounds once as it is, and for all of users'.
    pub(crate) const fn as_they_are(self) -> Needs {
        Needs { as_they_are: true, ..self }
    }

    /// All operands in place of the result, if that is among them: it is computed again of these.
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

/// An op that the table does not have. Implement it to bring an op of your own.
///
/// [`run_cpu`](Self::run_cpu) and [`run_cuda`](Self::run_cuda) are called on the device's threads
/// and must not wait for anything. The others are asked once, by the caller's thread, when the op
/// is asked for (the gradient's when the gradient is). Wherever one panics, the value fails and
/// says so, and nothing else does; so it is with a panic of what the op drops.
/// [`custom_owned`](crate::custom::custom_owned) shows one that changes a value in place, as a
/// key-value cache does.
pub trait Operation: Any + Send + Sync {
    /// The op's name, for errors and traces.
    fn name(&self) -> &str;

    /// Shape and type of the result, or why there is none. Called by the caller of the op, at once.
    ///
    /// # Errors
    /// A [`Refusal`] makes a failed value.
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal>;

    /// Computes the elements. Every element of the output has to be written.
    ///
    /// # Errors
    /// A [`Refusal`] fails this value and those made from it, nothing else. So does a panic, and an
    /// element of the output that was not written.
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal>;

    /// Queues what computes the elements on a CUDA device. Called on the device's thread, which it
    /// must not keep: it says what to launch, and returns. Where a kernel is still being compiled,
    /// or memory is short, nothing of it is launched, and it is called again later.
    ///
    /// By default it refuses: an op without a CUDA kernel fails there, and says so.
    ///
    /// # Errors
    /// A [`Refusal`] fails this value and those made from it, nothing else. So does a panic, and an
    /// op that never asked where its output is.
    fn run_cuda(&self, _run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        Err(Refusal::no_kernel(self.name()))
    }

    /// Estimated time on one thread in nanoseconds. Below 6,000 an awaiting poll may run the op
    /// itself; the engine runs the cheapest where it stands. By default 10,000 and a nanosecond an
    /// element read or written, since nobody else knows what an op does. Whatever it says, the
    /// engine takes a nanosecond for 16 elements of all operands and the result as the least.
    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs.iter().copied().chain([output]).map(|m| m.shape.numel() as u64);
        all.fold(10_000, u64::saturating_add)
    }

    /// An input (of the output's shape and type) that the op changes in place: the output begins
    /// with its elements.
    ///
    /// Where this op is the input's last reader, the output is its memory, and nothing is copied;
    /// else it is a copy, and whoever holds the input sees no change. Either way the output is the
    /// one view of these elements: [`CpuRun::inputs`] and [`CudaRun::inputs`] have the input's
    /// shape and type alone. One that is not there, or of another shape or type, is an argument
    /// error.
    fn reuses(&self) -> Option<usize> {
        None
    }

    /// True where elementwise ops that follow, and a reduction after them, may run in the same
    /// step, if nobody else can look at this op's result. They then work on its memory while that
    /// is warm. By default false: worth while for an op that makes a large result in an order of
    /// its own.
    fn takes_epilogue(&self) -> bool {
        false
    }

    /// Which values [`gradient`](Self::gradient) reads, where the inputs marked in `wanted` are on
    /// the tape. Called with the op itself. By default all of them.
    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let _ = wanted;
        Needs::ALL
    }

    /// The gradients of the inputs, in the ops that everybody calls, so that they have gradients
    /// themselves. Called by [`grad`](crate::grad) in the caller's thread; nothing in it waits.
    /// [`Backward`] says what is there.
    ///
    /// # Errors
    /// A [`Refusal`] makes the gradients that come through here failed values. That is the default:
    /// an op without a rule has no gradient.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let _ = call;
        Err(Refusal::no_gradient())
    }
}
