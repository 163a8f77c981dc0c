//! `Region`: a block of ops that is planned once and replayed.
//!
//! A call with inputs of new shapes traces the closure (`trace`) and plans the whole block
//! (`graph/plan`); every call queues one op that stands for the whole block. The devices decide how
//! to run a plan.

mod tensors;
mod trace;

use super::build::intercept::{enqueue, is_intercepted};
use super::build::{self, At, finite, mixed};
use super::device::Device;
use super::future::TensorFuture;
use super::gradient::taped::is_taping;
use crate::dtype::DType;
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind, number_of};
use crate::graph::call::{Call, Part};
use crate::graph::node::{Inputs, Node, NodeLink, Op};
use crate::graph::operation::Meta;
use crate::graph::plan::{Plan, plan};
use crate::shape::Shape;
use crate::sync::plain::{AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, lock};
use std::collections::HashMap;
use std::fmt;
use std::panic::{Location, RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
pub use tensors::{Flat, Tensors};
use trace::{Draw, Trace, is_traced};

/// The default number of plans that a region keeps.
const PLANS_MAX: usize = 64;

/// A block of ops that is planned once as a whole and replayed by each call: made by
/// [`Device::region`].
///
/// The first call with inputs of some shapes and types *traces* the closure: the closure runs with
/// placeholders for the inputs, and its ops are recorded. Then the whole block is planned: which
/// ops run as one step, in what order, and which op reads each value last. Every later call with
/// such inputs queues **one** op; nothing is built, fused or scheduled again. Values are bitwise
/// the same as op by op.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, TensorFuture};
/// let device = Device::cpu();
/// let step = device.region(|(x, w): (TensorFuture, TensorFuture)| {
///     let hidden = (x.matmul(&w) * 0.5 + 1.0).relu();
///     (hidden.sum_all(), hidden)
/// });
/// let w = device.ones([3, 2]);
/// for i in [0.0f32, 1.0, 2.0] {
///     let (sum, hidden) = step.call((device.full([4, 3], i), w.clone()));   // nothing has waited
///     assert_eq!(hidden.dims(), [4, 2]);                                    // known at once
///     assert_eq!(sum.item::<f32>().await?, 8.0 * (1.5 * i + 1.0));
/// }
/// assert_eq!(step.traces(), 1);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # What a trace fixes
///
/// The closure runs once for each set of shapes, types and keys (numbers among the inputs: see
/// [`Tensors`]), as under `torch.compile`, `jax.jit` and `tf.function`: side effects and `if`s
/// happen during the trace. The closure is synchronous, so it cannot await, and its ops cannot
/// depend on elements; a read of a traced value inside is an error. As with `jax.jit`, tensors that
/// the closure captures are constants (and values computed only from constants are computed once):
/// pass everything that changes from call to call as an input. `torch.compile` checks its captures
/// at each call, and recompiles if they changed; a region checks only shapes and types, and never
/// falls back silently.
///
/// Each call draws new random numbers: the call reserves positions in the order of the closure, so
/// the numbers are those of the same ops outside a region. (`tf.function` does the same; `jax.jit`
/// takes the key as an input.)
///
/// # Behaviour of a call
///
/// - A call begins when *all* its inputs are complete, and all its outputs complete together.
/// - An output that is unobserved when the block begins is not computed, nor are ops that only it
///   needs. A call without observers is skipped like any op; a `detach` in the closure applies to
///   each call.
/// - A failed input, or an op that fails, fails the outputs that depend on it; the error names
///   the op and its line in the closure.
/// - If a region is called inside another region's closure, its ops become part of the outer
///   region.
/// - **Gradients.** If an input or a captured tensor is on the gradient tape, a call runs the
///   closure op by op, and gradients flow as usual. A whole training step, [`grad`](crate::grad)
///   included, can be a region: call [`requires_grad`](TensorFuture::requires_grad) on the inputs
///   inside the closure.
/// - An input that is passed by its last handle may be overwritten.
/// - **On a GPU** a repeated block is launched as one CUDA graph, from its second run on or once
///   its fused kernels are compiled: a single launch runs all steps, with the inputs and outputs of
///   this call and new random numbers. The graph keeps the memory of internal values. The block is
///   launched step by step instead if it contains a [custom op](crate::custom::custom), if it has
///   only one launch, if inputs that go into matrix products are larger than 16 MiB together
///   (captured tensors may have any size), and while memory is short. Graphs are freed with the
///   region, or by [`Device::trim`]; [`Stats::graphs`](crate::Stats::graphs) counts their launches.
///
/// # In a struct
///
/// The lifetime parameter is that of the closure's borrows: `'static` if the closure owns its
/// captures.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, TensorFuture, region::Region};
///
/// struct Model {
///     forward: Region<'static, TensorFuture, TensorFuture>,
/// }
///
/// impl Model {
///     fn new(weight: TensorFuture) -> Model {
///         Model { forward: weight.device().region(move |x| weight.matmul(&x).relu()) }
///     }
/// }
///
/// let device = Device::cpu();
/// let model = Model::new(device.ones([2, 3]));
/// assert_eq!(model.forward.call(device.ones([3])).to_vec::<f32>().await?, [3.0, 3.0]);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
pub struct Region<'a, I, O> {
    device: Device,
    closure: Box<dyn Fn(I) -> O + Send + Sync + 'a>,
    plans: Mutex<Vec<Known>>,
    plans_max: usize,
    urgent: bool,
    traces: AtomicUsize,
}

// The closure is shared between threads, so its state is visible to other threads at any time, not
// only after a panic.
impl<I, O> UnwindSafe for Region<'_, I, O> {}
impl<I, O> RefUnwindSafe for Region<'_, I, O> {}

/// A plan, and the inputs it is for.
struct Known {
    inputs: Vec<(Shape, DType)>,
    /// The lengths of the inputs' `Vec`s, and the keys.
    lengths: Vec<usize>,
    recording: bool,
    /// Its ops are checked for what is not finite.
    is_checked: bool,
    /// The scope of mixed precision that it was traced in.
    mixed: Option<DType>,
    how: How,
}

#[derive(Clone)]
enum How {
    Planned(Arc<Ready>),
    /// A captured tensor is on the tape.
    OpByOp,
}

/// A plan, with its captures and outputs.
struct Ready {
    plan: Arc<Plan>,
    /// Captured values.
    captured: Vec<NodeLink>,
    draws: Vec<Draw>,
    gives: Vec<Gives>,
    /// The lengths of the outputs' `Vec`s.
    lengths: Vec<usize>,
    /// The metadata of the plan's outputs.
    metas: Vec<Meta>,
    /// The number of the plan's outputs, at the end, that were detached in the closure.
    detached: usize,
}

/// An output of the closure.
enum Gives {
    /// An output of the plan.
    Made(usize),
    Input(usize),
    /// A value from outside, or an op that was refused.
    Outside(TensorFuture),
}

impl Device {
    /// A block of ops on this device that is planned once for each set of input shapes and types,
    /// and then replayed: see [`Region`]. Nothing happens before the first call.
    #[doc(alias("compile", "jit", "trace"))]
    pub fn region<'a, I: Tensors, O: Tensors>(
        &self,
        closure: impl Fn(I) -> O + Send + Sync + 'a,
    ) -> Region<'a, I, O> {
        Region {
            device: self.clone(),
            closure: Box::new(closure),
            plans: Mutex::new(Vec::new()),
            plans_max: PLANS_MAX,
            urgent: false,
            traces: AtomicUsize::new(0),
        }
    }
}

impl<'a, I: Tensors, O: Tensors> Region<'a, I, O> {
    /// The most plans that the region keeps: at least one, 64 by default. Beyond the limit the
    /// oldest plan is dropped, with its graph on a GPU, and made again if a call needs it.
    ///
    /// ```
    /// let device = futensor::Device::cpu();
    /// let double = device.region(|x: futensor::TensorFuture| x * 2.0).plans_max(1);
    /// for n in [1, 1, 2, 1] {
    ///     double.call(device.ones([n])).detach();
    /// }
    /// assert_eq!(double.traces(), 3);
    /// ```
    #[must_use]
    pub fn plans_max(mut self, n: usize) -> Region<'a, I, O> {
        self.plans_max = n.max(1);
        self
    }

    /// Gives calls of this region priority. Once their inputs are complete, they start before all
    /// non-urgent work that waits for a thread or a stream, for example a decode step before queued
    /// prefills. Running work is not interrupted. On a GPU urgent calls, their outputs and reads of
    /// these outputs use a separate stream with the highest priority. (A call inside another
    /// region's closure is part of that region.)
    ///
    /// ```
    /// # tokio_test::block_on(async {
    /// use futensor::{Device, TensorFuture};
    /// let device = Device::cpu();
    /// let prefill = device.region(|x: TensorFuture| x.matmul(&x));
    /// let decode = device.region(|x: TensorFuture| x.exp()).urgent(true);
    /// let long: Vec<_> = (0..8).map(|_| prefill.call(device.ones([64, 64]))).collect();
    /// // The call does not wait for all prefills.
    /// assert_eq!(decode.call(device.zeros([4])).to_vec::<f32>().await?, [1.0; 4]);
    /// # drop(long);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn urgent(mut self, urgent: bool) -> Region<'a, I, O> {
        self.urgent = urgent;
        self
    }

    /// Queues the block on these inputs and returns its outputs immediately. The first call with
    /// new shapes and types traces and plans, which takes about as long as calling the ops.
    ///
    /// # Errors
    /// None of its own. If an op is refused or fails, the outputs that depend on it are failed
    /// values. If an input is on another device, all outputs are.
    ///
    /// # Panics
    /// If the closure panics, or if a user's [`Tensors`] implementation cannot rebuild a value from
    /// its parts.
    #[track_caller]
    pub fn call(&self, inputs: I) -> O {
        let at = Location::caller();
        let (inputs, lengths) = Flat::of(inputs);
        if is_intercepted() || is_taping() && inputs.iter().any(TensorFuture::is_on_tape) {
            return (self.closure)(Flat::put_together(inputs, &lengths));
        }
        match self.known(&inputs, &lengths).unwrap_or_else(|| self.trace(&inputs, &lengths, at)) {
            (How::OpByOp, _) => (self.closure)(Flat::put_together(inputs, &lengths)),
            (How::Planned(ready), first) => {
                Flat::put_together(ready.run(self.device.port, inputs, first, at), &ready.lengths)
            }
        }
    }

    /// Runs the block on these inputs until everything it needs has been prepared: the plan and, on
    /// a GPU, compiled and loaded kernels, library handles, and the block's graph. After that, the
    /// first call with such shapes takes no longer than later calls. The runs are real: random
    /// numbers are drawn, and detached values are computed.
    ///
    /// ```
    /// # futensor::block_on(async {
    /// use futensor::{Device, TensorFuture};
    /// let device = Device::cpu();
    /// let region = device.region(|x: TensorFuture| (x * 2.0).sum_all());
    /// region.warm(device.zeros([3])).await?;
    /// assert_eq!(region.call(device.ones([3])).item::<f32>().await?, 6.0);
    /// # Ok::<(), futensor::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Errors
    /// The error of the first output that fails.
    ///
    /// # Cancel safety
    /// Dropping the future keeps what has been prepared.
    pub async fn warm(&self, inputs: I) -> Result<(), Error> {
        let (inputs, lengths) = Flat::of(inputs);
        for runs in 1.. {
            let call = self.call(Flat::put_together(inputs.clone(), &lengths));
            for output in Flat::of(call).0 {
                output.await?;
            }
            match self.known(&inputs, &lengths) {
                Some((How::Planned(ready), _))
                    if !self.device.port.runner.is_warm(&ready.plan, runs) => {}
                _ => break,
            }
        }
        Ok(())
    }

    /// How often the closure was traced: once for each set of input shapes, types and keys, and
    /// again if a plan was dropped.
    pub fn traces(&self) -> usize {
        self.traces.load(Relaxed)
    }

    /// The device that the region runs on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn known(&self, inputs: &[TensorFuture], lengths: &[usize]) -> Option<(How, bool)> {
        let recording = is_taping();
        let (is_checked, mixed) = (finite::is_on(self.device.port), mixed::scope());
        let plans = lock(&self.plans);
        // Compares the last inputs first: state usually comes first, and rarely changes its shape.
        let fits = |known: &&Known| {
            known.recording == recording
                && known.inputs.len() == inputs.len()
                && known.is_checked == is_checked
                && known.mixed == mixed
                && known.lengths == lengths
                && known
                    .inputs
                    .iter()
                    .zip(inputs)
                    .rev()
                    .all(|(k, x)| k.0 == *x.shape() && k.1 == x.dtype())
        };
        plans.iter().find(fits).map(|known| (known.how.clone(), false))
    }

    /// Traces the closure and plans the block.
    fn trace(&self, inputs: &[TensorFuture], lengths: &[usize], at: At) -> (How, bool) {
        let port = self.device.port;
        let metas: Vec<Meta> = inputs.iter().map(|x| x.node.meta.clone()).collect();
        let mut given = Vec::new();
        let (outputs, traced) = Trace::of(port, &metas, at, |stand_ins| {
            let stand_ins = stand_ins.into_iter().map(TensorFuture::new).collect();
            let (outputs, lengths) =
                Flat::of((self.closure)(Flat::put_together(stand_ins, lengths)));
            given = lengths;
            outputs
        });
        self.traces.fetch_add(1, Relaxed);
        let refused = traced.refused();
        let how = if outputs.iter().any(TensorFuture::is_on_tape) && refused.is_none() {
            How::OpByOp
        } else {
            How::Planned(Arc::new(Ready::new(port, (outputs, given), traced, self.urgent, at)))
        };
        if refused.is_none() {
            let known = Known {
                inputs: metas.into_iter().map(|m| (m.shape, m.dtype)).collect(),
                lengths: lengths.to_vec(),
                recording: is_taping(),
                is_checked: finite::is_on(port),
                mixed: mixed::scope(),
                how: how.clone(),
            };
            let mut plans = lock(&self.plans);
            if plans.len() == self.plans_max {
                plans.remove(0);
            }
            plans.push(known);
        }
        (how, true)
    }
}

impl Ready {
    fn new(
        port: &'static Port,
        (outputs, lengths): (Vec<TensorFuture>, Vec<usize>),
        traced: Trace,
        urgent: bool,
        at: At,
    ) -> Ready {
        let mut made = Made::default();
        let input_of: HashMap<usize, usize> =
            traced.inputs.iter().enumerate().map(|(k, input)| (input.address(), k)).collect();
        let mut gives = Vec::new();
        for output in outputs {
            let node = output.node.link();
            gives.push(match output.node.error() {
                // An op that was refused, or a value that was awaited inside.
                Some(error) if is_traced(&node) => {
                    Gives::Outside(build::failed(port, node.meta.clone(), error.clone(), at))
                }
                _ if !is_traced(&node) => Gives::Outside(output),
                _ => match input_of.get(&node.address()) {
                    Some(&k) => Gives::Input(k),
                    None => Gives::Made(made.place_of(node)),
                },
            });
        }
        let before = made.nodes.len();
        for node in traced
            .nodes
            .iter()
            .filter(|n| n.completion.state().has(crate::concurrent::completion::DETACHED))
        {
            made.place_of(node.clone());
        }
        let made = made.nodes;
        let mut given = traced.inputs.clone();
        let captured = traced.captured();
        given.extend(captured.iter().cloned());
        let positions: Vec<(u64, u64)> = traced.draws.iter().map(|d| d.traced).collect();
        let plan = plan(traced.traced(), &given, &made, &positions, port.profile.limits.epilogues);
        let plan = Plan { inputs: traced.inputs.len(), urgent, ..plan };
        let mut traced = traced;
        Ready {
            plan: Arc::new(plan),
            captured,
            draws: std::mem::take(&mut traced.draws),
            gives,
            lengths,
            metas: made.iter().map(|n| n.meta.clone()).collect(),
            detached: made.len() - before,
        }
    }

    /// Queues one run. The `first` run uses the random numbers that were drawn during the trace.
    fn run(
        &self,
        port: &'static Port,
        inputs: Vec<TensorFuture>,
        first: bool,
        at: At,
    ) -> Vec<TensorFuture> {
        let draws = self
            .draws
            .iter()
            .map(|d| if first { d.traced } else { d.sequence.reserve(d.positions) });
        let draws = draws.collect();
        let given = self.gives.iter().map(|gives| match gives {
            Gives::Input(k) => Some(inputs[*k].clone()),
            _ => None,
        });
        let mut given: Vec<Option<TensorFuture>> = given.collect();
        let made = match inputs.iter().find(|x| !std::ptr::eq(x.port(), port)) {
            Some(other) => self.misplaced(port, other.port(), at),
            None => self.queue(port, inputs, draws, at),
        };
        for x in &made[made.len() - self.detached..] {
            x.detach();
        }
        let give = |(i, gives): (usize, &Gives)| match gives {
            Gives::Made(k) => made[*k].clone(),
            Gives::Input(_) => given[i].take().unwrap_or_else(|| unreachable!("it was put there")),
            Gives::Outside(x) => x.clone(),
        };
        self.gives.iter().enumerate().map(give).collect()
    }

    fn queue(
        &self,
        port: &'static Port,
        inputs: Vec<TensorFuture>,
        draws: Vec<(u64, u64)>,
        at: At,
    ) -> Vec<TensorFuture> {
        if self.metas.is_empty() {
            return Vec::new();
        }
        let call = Arc::new(Call::new(self.plan.clone(), draws));
        let mut links: Inputs = inputs.iter().map(|x| x.node.link()).collect();
        links.extend(self.captured.iter().cloned());
        // Before the engine can see the call: inputs without another owner may be overwritten.
        drop(inputs);
        if let [meta] = &self.metas[..] {
            let node = Node::new(Op::Call(call), links, meta.shape.clone(), meta.dtype, port, at);
            return vec![TensorFuture::new(enqueue(port, node))];
        }
        let hub = Node::new(Op::Call(call.clone()), links, 0.into(), DType::Bool, port, at);
        let hub = enqueue(port, hub);
        let part = |(output, meta): (usize, &Meta)| {
            let part = Arc::new(Part { call: call.clone(), output });
            let inputs = Inputs::from_iter([hub.link()]);
            let node = Node::new(Op::Part(part), inputs, meta.shape.clone(), meta.dtype, port, at);
            TensorFuture::new(enqueue(port, node))
        };
        self.metas.iter().enumerate().map(part).collect()
    }

    fn misplaced(&self, port: &'static Port, other: &'static Port, at: At) -> Vec<TensorFuture> {
        let text = format!(
            "the region is on {} and an input on {}: copy it with to_device",
            port.profile.name, other.profile.name
        );
        let error = Error::new(ErrorKind::Device, "region", text, at);
        self.metas.iter().map(|meta| build::failed(port, meta.clone(), error.clone(), at)).collect()
    }
}

/// The outputs of a plan, each once. (A linear search for each output made a region with 8,000
/// outputs quadratic.)
#[derive(Default)]
struct Made {
    nodes: Vec<NodeLink>,
    places: HashMap<usize, usize>,
}

impl Made {
    fn place_of(&mut self, node: NodeLink) -> usize {
        *self.places.entry(node.address()).or_insert_with(|| {
            self.nodes.push(node);
            self.nodes.len() - 1
        })
    }
}

impl<I, O> fmt::Debug for Region<'_, I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plans = lock(&self.plans).len();
        write!(f, "Region({}, {})", self.device, number_of(plans, "plan", "plans"))
    }
}
