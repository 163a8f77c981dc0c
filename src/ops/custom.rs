//! Ops from outside: an op from closures, and what stands between any of a user's and the engine.

use crate::Backward;
use crate::error::number_of;
use crate::graph::device_run::{CudaRun, CudaView};
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::guard::{Kernel, caught, discard_unlocked};
use crate::sync::plain::OnceLock;
use crate::view::View;
use smallvec::SmallVec;
use std::cell::Cell;

pub(crate) struct Closures<I, R> {
    pub name: String,
    pub infer: I,
    pub run: R,
}

impl<I, R> Operation for Closures<I, R>
where
    I: Fn(&[&Meta]) -> Result<Meta, Refusal> + Send + Sync + 'static,
    R: Fn(&mut CpuRun<'_>) -> Result<(), Refusal> + Send + Sync + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        (self.infer)(inputs)
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        (self.run)(run)
    }
}

/// An op of a user's, as the engine sees it. What the engine asks about it was asked once, under a
/// guard, by the caller; its panics end with it, the last as it is dropped. Its kernels see no
/// memory of anybody else's: what they are lent holds zeros, what the op itself has written, or the
/// elements of the one input that it changes in place, which it then sees nowhere else; what was
/// left unwritten fails the value. The crate's own ops write everything and go without.
pub(crate) struct Foreign<O: Operation> {
    /// Some, until it is dropped.
    op: Option<O>,
    name: Box<str>,
    estimate_ns: u64,
    takes_epilogue: bool,
    is_replayable: bool,
    reuses: Option<usize>,
    /// Why there is no gradient although a rule may be there.
    no_gradient: OnceLock<Refusal>,
}

impl<O: Operation> Foreign<O> {
    /// Asks an op on such inputs everything that the engine may want to know: the op, and what it
    /// makes of them.
    pub fn ask(op: O, inputs: &[&Meta]) -> (Foreign<O>, Result<Meta, Refusal>) {
        let mut this = Foreign {
            op: None,
            name: "custom".into(),
            estimate_ns: 0,
            takes_epilogue: false,
            is_replayable: false,
            reuses: None,
            no_gradient: OnceLock::new(),
        };
        let asked = Cell::new("name");
        let answers = caught(|| {
            this.name = op.name().into();
            if inputs.is_empty() {
                return Err(Refusal::argument("needs at least one tensor"));
            }
            asked.set("the shape rule");
            let meta = op.infer(inputs)?;
            asked.set("estimate_ns");
            this.estimate_ns = op.estimate_ns(inputs, &meta);
            asked.set("takes_epilogue");
            this.takes_epilogue = op.takes_epilogue();
            asked.set("is_replayable");
            this.is_replayable = op.is_replayable();
            asked.set("reuses");
            this.reuses = op.reuses();
            Ok(meta)
        });
        this.op = Some(op);
        let meta = answers.unwrap_or_else(|words| {
            Err(Refusal::kernel(format!("{} panicked: {words}", asked.get())))
        });
        let meta = meta.and_then(|meta| this.can_reuse(inputs, &meta).map(|()| meta));
        (this, meta)
    }

    fn can_reuse(&self, inputs: &[&Meta], meta: &Meta) -> Result<(), Refusal> {
        let Some(i) = self.reuses else { return Ok(()) };
        let text = match inputs.get(i) {
            Some(input) if *input == meta => return Ok(()),
            Some(input) => format!(
                "its result, {} {}, cannot reuse input {i}, {} {}",
                meta.dtype, meta.shape, input.dtype, input.shape
            ),
            None => format!("it reuses input {i} of {}", inputs.len()),
        };
        Err(Refusal::argument(text))
    }

    fn op(&self) -> &O {
        self.op.as_ref().unwrap_or_else(|| unreachable!("it is taken by the drop alone"))
    }
}

impl<O: Operation> Drop for Foreign<O> {
    fn drop(&mut self) {
        discard_unlocked(self.op.take());
    }
}

impl<O: Operation> Operation for Foreign<O> {
    fn name(&self) -> &str {
        &self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        caught(|| self.op().infer(inputs)).unwrap_or_else(|words| Err(Refusal::kernel(words)))
    }

    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        self.estimate_ns
    }

    fn takes_epilogue(&self) -> bool {
        self.takes_epilogue
    }

    fn is_replayable(&self) -> bool {
        self.is_replayable
    }

    fn reuses(&self) -> Option<usize> {
        self.reuses
    }

    /// The device turns a panic into the value's error, as it does with every kernel.
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let _kernel = Kernel::begin();
        let all = run.output.numel();
        let mut inputs: SmallVec<[View<'_>; 4]> = SmallVec::from_slice(run.inputs);
        if let Some(i) = self.reuses {
            inputs[i] = inputs[i].without_elements();
        }
        let mut own = CpuRun {
            inputs: &inputs,
            output: run.output_again(),
            parallel: run.parallel,
            in_place: run.in_place,
            written: if self.reuses.is_some() { all } else { 0 },
            buffers: run.buffers,
        };
        self.op().run_cpu(&mut own)?;
        if own.written < all {
            let all = number_of(all, "element", "elements");
            let text = format!("it wrote {} of {all} of its result", own.written);
            return Err(Refusal::kernel(text));
        }
        Ok(())
    }

    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let _kernel = Kernel::begin();
        let mut inputs: SmallVec<[CudaView<'_>; 4]> = SmallVec::from_slice(run.inputs);
        if let Some(i) = self.reuses {
            inputs[i] = inputs[i].without_elements();
        }
        let mut own = CudaRun {
            inputs: &inputs,
            output: run.output,
            in_place: run.in_place,
            fresh: self.reuses.is_none(),
            queue: &mut *run.queue,
        };
        self.op().run_cuda(&mut own)?;
        if own.fresh {
            return Err(Refusal::kernel("it wrote nothing: it never asked for its output"));
        }
        Ok(())
    }

    fn gradient_needs(&self, wanted: &[bool]) -> Needs {
        let needs = caught(|| self.op().gradient_needs(wanted)).unwrap_or_else(|words| {
            let _ =
                self.no_gradient.set(Refusal::kernel(format!("gradient_needs panicked: {words}")));
            Needs::NOTHING
        });
        needs.as_they_are()
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        if let Some(refusal) = self.no_gradient.get() {
            return Err(refusal.clone());
        }
        let ruled = call.by_user(|call| caught(|| self.op().gradient(call)));
        ruled.unwrap_or_else(|words| {
            Err(Refusal::kernel(format!("the gradient rule panicked: {words}")))
        })
    }
}
