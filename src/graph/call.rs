//! One run of a region's call: the content of an `Op::Call`, and the parts that its outputs are.
//!
//! A call with one output is that output's node. With several outputs each is a part: a node of its
//! own, made from the call's node, that takes its result from here. Knows nothing of devices or
//! time.

use super::node::{Node, Op, Planned};
use super::plan::{Plan, PlanStep, Slot, bit};
use super::program::{Code, Program};
use super::value::Value;
use crate::error::{Error, ErrorKind};
use crate::sync::plain::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, lock};
use smallvec::SmallVec;
use std::any::Any;
use std::borrow::Cow;
use std::sync::Arc;

/// The result of an output, until its part takes it.
pub(crate) struct Kept {
    pub result: Result<Value, Error>,
    /// What the device has still to check about the value: out-of-range indices.
    #[allow(dead_code)] // Only devices that run ahead of their kernels have checks.
    pub checks: Option<Arc<dyn Any + Send + Sync>>,
}

/// How far a run of a call has come. `K` is what the device keeps of a value until it has been
/// read.
pub(crate) struct Progress<K> {
    next: usize,
    made: Vec<Option<K>>,
    /// Outputs that were wanted when the run began.
    wanted: u64,
}

impl<K> Progress<K> {
    pub fn new(call: &Call) -> Progress<K> {
        let made = (call.plan.given..call.plan.slots).map(|_| None).collect();
        Progress { next: 0, made, wanted: call.wanted() }
    }

    /// The next step that is needed; `None` at the end. A step that serves only outputs that nobody
    /// can look at is left out.
    pub fn step<'a>(&mut self, call: &'a Call) -> Option<&'a PlanStep> {
        self.next = self.needed(call, self.next)?;
        call.plan.steps.get(self.next)
    }

    /// The first step from this one on that is needed.
    fn needed(&self, call: &Call, from: usize) -> Option<usize> {
        let steps = call.plan.steps[from..].iter();
        steps.map(|step| step.serves & self.wanted != 0).position(|is| is).map(|k| from + k)
    }

    /// The next steps that are needed, which may run side by side.
    pub fn wavefront<'a>(&mut self, call: &'a Call) -> SmallVec<[&'a PlanStep; 8]> {
        let mut steps: SmallVec<[&PlanStep; 8]> = self.step(call).into_iter().collect();
        if steps.is_empty() {
            return steps;
        }
        let mut at = self.next;
        while let Some(next) = self.needed(call, at + 1).map(|k| (k, &call.plan.steps[k]))
            && next.1.wavefront != 0
            && next.1.wavefront == steps[0].wavefront
        {
            at = next.0;
            steps.push(next.1);
        }
        steps
    }

    /// A value that a step has made; `Err` with its number if the value comes from outside.
    pub fn value(&self, slot: Slot, call: &Call) -> Result<&K, usize> {
        let slot = slot as usize;
        match slot.checked_sub(call.plan.given).map(|k| &self.made[k]) {
            None => Err(slot),
            Some(Some(made)) => Ok(made),
            Some(None) => unreachable!("a step runs after what it reads"),
        }
    }

    /// The next step has made these, and values that nobody reads after it are let go.
    pub fn stepped(&mut self, call: &Call, step: &PlanStep, results: impl IntoIterator<Item = K>) {
        let from = call.plan.given;
        for (&slot, result) in step.makes.iter().zip(results) {
            self.made[slot as usize - from] = Some(result);
        }
        for &slot in step.ends.iter().filter(|&&slot| slot as usize >= from) {
            self.made[slot as usize - from] = None;
        }
        self.next = self.needed(call, self.next).unwrap_or(self.next) + 1;
    }

    /// The outputs, as far as they were wanted.
    pub fn outputs(mut self, call: &Call) -> Vec<Option<K>> {
        let from = call.plan.given;
        call.plan.outputs.iter().map(|&slot| self.made[slot as usize - from].take()).collect()
    }
}

pub(crate) struct Call {
    pub plan: Arc<Plan>,
    /// Seed and offset of each draw, reserved for this run.
    pub draws: Vec<(u64, u64)>,
    /// A bit for each output that has an observer.
    wanted: AtomicU64,
    results: Mutex<Vec<Option<Kept>>>,
    /// How far a device has come that could not go on.
    #[allow(dead_code)] // Host devices never stop halfway.
    pub under_way: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Planned for Call {
    fn cost_ns(&self) -> u64 {
        self.plan.cost_ns
    }
    fn is_urgent(&self) -> bool {
        self.plan.urgent
    }
}

impl Call {
    /// The call that an op is, where it is one.
    pub fn of(op: &Op) -> Option<&Call> {
        let Op::Call(call) = op else { return None };
        (&**call as &dyn Any).downcast_ref()
    }

    pub fn new(plan: Arc<Plan>, draws: Vec<(u64, u64)>) -> Call {
        Call {
            plan,
            draws,
            wanted: AtomicU64::new(u64::MAX),
            results: Mutex::new(Vec::new()),
            under_way: Mutex::new(None),
        }
    }

    /// The same call with other draws, and exactly these outputs wanted.
    #[allow(dead_code)] // As `under_way`.
    pub fn again(&self, draws: Vec<(u64, u64)>, wanted: u64) -> Call {
        Call { wanted: AtomicU64::new(wanted), ..Call::new(self.plan.clone(), draws) }
    }

    /// Outputs that have an observer.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Relaxed)
    }

    /// Hands the outputs out: returns the result of the only one, or of the call itself, and leaves
    /// several outputs to the parts.
    pub fn settle(&self, node: &Node, mut outputs: Vec<Option<Kept>>) -> Kept {
        if outputs.len() > 1 {
            *lock(&self.results) = outputs;
            return Kept { result: Ok(Value::nothing()), checks: None };
        }
        outputs.pop().flatten().unwrap_or_else(|| Kept { result: Err(not_run(node)), checks: None })
    }

    /// A step's program, with the random numbers of this run.
    pub fn program<'a>(&self, step: &PlanStep, program: &'a Program) -> Cow<'a, Program> {
        let mut program = Cow::Borrowed(program);
        for &(instr, draw) in &step.draws {
            let (seed, offset) = self.draws[draw as usize];
            let code = &mut program.to_mut().instrs[instr as usize].code;
            *code = match code {
                Code::Normal { .. } => Code::Normal { seed, offset },
                Code::Uniform { .. } => Code::Uniform { seed, offset },
                Code::Input(_) | Code::Fill(_) | Code::Arange { .. } | Code::Cast(_) => continue,
                Code::Unary(..) | Code::Binary(..) | Code::Where(..) => continue,
            };
        }
        program
    }
}

/// One output of a call with several.
pub(crate) struct Part {
    pub call: Arc<Call>,
    pub output: usize,
}

impl Part {
    /// The part that an op is, where it is one.
    pub fn of(op: &Op) -> Option<&Part> {
        let Op::Part(part) = op else { return None };
        part.downcast_ref()
    }

    /// The result of the part's node, whose call has run.
    pub fn result(&self, node: &Node, call: &Node) -> Kept {
        let gone = || call.error().cloned().unwrap_or_else(|| not_run(node));
        self.take().unwrap_or_else(|| Kept { result: Err(gone()), checks: None })
    }

    /// The result, once; `None` where the call did not compute it.
    fn take(&self) -> Option<Kept> {
        lock(&self.call.results).get_mut(self.output).and_then(Option::take)
    }
}

impl Drop for Part {
    /// Its node is gone, so nobody can ask for it any more.
    fn drop(&mut self) {
        if self.output < 63 {
            self.call.wanted.fetch_and(!bit(self.output), Relaxed);
        }
        drop(self.take());
    }
}

/// Cannot be: what somebody can ask for is computed.
fn not_run(node: &Node) -> Error {
    node.fail(ErrorKind::Kernel, "the region skipped this output")
}
