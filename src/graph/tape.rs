//! The tape: how a value on it was made, and what has to be kept so that a gradient can be formed.
//!
//! A node lets its inputs go when it is complete, so the tape stands beside the graph: a value on
//! it has an [`Entry`] that knows the op and the entries of the operands. `tensor/gradient` writes
//! entries when ops are called and walks them in `grad`; this file knows only who may still ask for
//! which value.
//!
//! # What is kept
//!
//! An entry is *active* while a user holds its value, or a gradient rule will ask for it, or an
//! active entry leans on it. The one invariant: **an active entry can give its value.** It has it
//! (`kept`), or it is *light* (elementwise or a view, which fusion as a rule never writes out) and
//! leans on its operands, so that the value can be computed again from theirs. An entry that is not
//! light has its own value from the start, and lets it go as soon as it is not active. So:
//!
//! - A product whose result only feeds `+ bias` and `relu` is kept no longer than fusion needs it;
//!   the `relu` is kept in its place once an op reads it that needs it in memory anyway (`want`).
//! - A light value that nobody needs in memory is never written for the tape's sake, only computed
//!   again.
//! - The tape is owned by the handles of results: dropping the loss drops it, and work that only
//!   the tape observed is cancelled. An entry becomes active only when it is made, never again
//!   later.
//!
//! Entries are freed in a loop, so a tape of a million ops does not overflow the stack. A lock
//! guards one entry for a few instructions; no two are ever held together.

use super::node::{Home, NodeHandle, Op, ViewOp};
use super::operation::{Meta, Needs};
use crate::concurrent::counted::{Handle, Link, Observed};
use crate::sync::plain::{AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, lock, statics};
use smallvec::SmallVec;
use std::panic::Location;

/// An entry as a user's value holds it.
pub(crate) type TapeHandle = Handle<Entry>;
/// An entry as later entries hold it.
pub(crate) type TapeLink = Link<Entry>;

/// How a value on the tape came about.
#[derive(Clone)]
pub(crate) enum Made {
    /// Named by the user: the gradient ends here.
    Leaf,
    /// The same value as its operand's.
    Same,
    /// A copy of its operand on another device.
    Moved,
    /// By an op.
    Op(Op),
}

impl Made {
    /// The name that errors show.
    pub fn name(&self) -> &str {
        match self {
            Made::Leaf => "requires_grad",
            Made::Same => "grad",
            Made::Moved => "to_device",
            Made::Op(op) => op.name(),
        }
    }

    /// A view with the last two dimensions changed.
    pub fn turns(&self) -> bool {
        let Made::Op(Op::View(ViewOp::Permute(order))) = self else { return false };
        let (rank, last) = (order.len(), order.len() as u8);
        rank >= 2
            && order[..rank - 2].iter().enumerate().all(|(d, &from)| from as usize == d)
            && order[rank - 2..] == [last - 1, last - 2]
    }

    /// Cheap to compute again, and as a rule fused away.
    fn is_light(&self) -> bool {
        match self {
            Made::Same => true,
            Made::Leaf | Made::Moved => false,
            Made::Op(op) => op.is_elementwise() || matches!(op, Op::View(_)),
        }
    }

    /// Needs its operands in memory, so that keeping them costs nothing beyond the memory.
    fn reads_memory(&self) -> bool {
        match self {
            Made::Op(Op::Custom(op)) => !op.is_rule(),
            Made::Moved | Made::Op(Op::View(_)) => true,
            _ => false,
        }
    }
}

/// Bytes up to which a light value is kept as it is: computing it again would cost more.
const SMALL_BYTES: usize = 1024;

/// Where the value of an operand that is not on the tape comes from.
#[derive(Clone)]
pub(crate) enum Constant {
    Kept(NodeHandle),
    /// A fill, a range, a draw: made again from nothing.
    Again(Op),
}

/// An operand of an op that is on the tape.
#[derive(Clone)]
pub(crate) struct Operand {
    pub meta: Meta,
    /// Where it is on the tape.
    pub entry: Option<TapeLink>,
    /// Its value where it is not, and somebody will ask for it.
    pub constant: Option<Constant>,
}

struct State {
    inputs: SmallVec<[Operand; 2]>,
    kept: Option<NodeHandle>,
    /// Rules and leaning entries that will ask for this value.
    wants: u32,
    /// A user holds the value.
    observed: bool,
    /// Wants its operands' values so as to give its own.
    leans: bool,
    /// The values that its gradient rule will ask for.
    needs: Needs,
    /// The gradient has gone through; what the rule needed is gone.
    spent: bool,
}

/// A value on the tape.
pub(crate) struct Entry {
    /// Grows from operands to results.
    pub serial: u64,
    pub made: Made,
    pub meta: Meta,
    pub home: &'static dyn Home,
    pub at: &'static Location<'static>,
    state: Mutex<State>,
}

/// The origin of an entry's value.
pub(crate) enum Origin {
    Kept(NodeHandle),
    /// By the op again, of these.
    Again(SmallVec<[Operand; 2]>),
    /// It was let go when a gradient went through.
    Gone,
}

statics! {
    /// Numbers entries.
    static SERIAL: AtomicU64 = AtomicU64::new(0);
}

/// A number above those of all entries that this thread has seen, and below all that it will make.
pub(crate) fn next_serial() -> u64 {
    SERIAL.fetch_add(1, Relaxed)
}

/// An operand, as an op is called with it.
pub(crate) struct Given<'a> {
    /// `None` for a value that the op reads of its own, and that no rule will ask for.
    pub node: Option<&'a NodeHandle>,
    pub meta: Meta,
    pub entry: Option<TapeLink>,
}

impl Entry {
    /// Puts a value on the tape. Entries among the operands are active: their values are in the
    /// caller's hands.
    pub fn record<'a>(
        made: Made,
        operands: impl Iterator<Item = Given<'a>>,
        node: &NodeHandle,
        needs: Needs,
    ) -> TapeHandle {
        let light = made.is_light() && node.bytes() > SMALL_BYTES;
        let reads_memory = made.reads_memory();
        let mut inputs: SmallVec<[Operand; 2]> = SmallVec::new();
        for (i, operand) in operands.enumerate() {
            let wants = needs.has_input(i) as u32 + light as u32;
            let mut constant = None;
            match (&operand.entry, operand.node) {
                (Some(entry), node) => entry.want(wants, node.filter(|_| reads_memory)),
                (None, Some(node)) if wants > 0 => {
                    constant = Some(Constant::of(node, reads_memory))
                }
                _ => {}
            }
            inputs.push(Operand { meta: operand.meta, entry: operand.entry, constant });
        }
        Handle::new(Entry {
            serial: next_serial(),
            made,
            meta: node.meta.clone(),
            home: node.home,
            at: node.at,
            state: Mutex::new(State {
                inputs,
                kept: (!light).then(|| node.clone()),
                wants: needs.has_output() as u32,
                observed: true,
                leans: light,
                needs,
                spent: false,
            }),
        })
    }

    /// Somebody will ask for this value so many times more, and may read it from memory.
    fn want(&self, times: u32, in_memory: Option<&NodeHandle>) {
        let mut state = lock(&self.state);
        debug_assert!(state.observed || state.wants > 0, "an entry never becomes active again");
        state.wants += times;
        let Some(node) = in_memory else { return };
        if state.wants == 0 || state.kept.is_some() {
            return;
        }
        // It is written out now: it needs to lean on nobody any more.
        state.kept = Some(node.clone());
        let released = state.stop_leaning();
        drop(state);
        settle(released);
    }

    /// Operands, in order, as far as they are on the tape.
    pub fn sources(&self) -> SmallVec<[Option<TapeLink>; 2]> {
        lock(&self.state).inputs.iter().map(|operand| operand.entry.clone()).collect()
    }

    /// The operands, and whether the gradient has gone through already.
    pub fn operands(&self) -> (SmallVec<[Operand; 2]>, bool) {
        let state = lock(&self.state);
        (state.inputs.clone(), state.spent)
    }

    /// The values that the gradient rule asks for.
    pub fn needs(&self) -> Needs {
        lock(&self.state).needs
    }

    pub fn origin(&self) -> Origin {
        let state = lock(&self.state);
        match &state.kept {
            Some(node) => Origin::Kept(node.clone()),
            None if state.leans => Origin::Again(state.inputs.clone()),
            None => Origin::Gone,
        }
    }

    /// The gradient has gone through: lets go of what the rule needed. How values hang together
    /// stays, so that a second gradient can say what is wrong.
    pub fn spend(&self) {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.spent, true) {
            return;
        }
        let needs = std::mem::take(&mut state.needs);
        let mut released = Released::default();
        for (i, operand) in state.inputs.iter().enumerate() {
            if needs.has_input(i)
                && let Some(entry) = &operand.entry
            {
                released.wants.push((entry.clone(), 1));
            }
        }
        state.wants -= needs.has_output() as u32;
        state.tidy(&mut released);
        drop(state);
        settle(released);
    }

    fn unobserve(&self) {
        let mut released = Released::default();
        let mut state = lock(&self.state);
        state.observed = false;
        state.tidy(&mut released);
        drop(state);
        settle(released);
    }
}

impl Constant {
    /// A draw that is in memory, or has to be there for the op anyway, is kept like any other
    /// value.
    fn of(node: &NodeHandle, reads_memory: bool) -> Constant {
        let written = reads_memory || node.completion.state().is_complete();
        match node.op {
            Op::Fill(_) => Constant::Again(node.op.clone()),
            Op::Arange { .. } | Op::Random { .. } if !written => Constant::Again(node.op.clone()),
            _ => Constant::Kept(node.clone()),
        }
    }
}

/// Values that an entry has let go, to be dropped outside its lock.
#[derive(Default)]
struct Released {
    wants: Vec<(TapeLink, u32)>,
    values: SmallVec<[NodeHandle; 2]>,
}

impl State {
    /// Lets go of what nobody can ask for any more.
    fn tidy(&mut self, released: &mut Released) {
        if !self.observed && self.wants == 0 {
            released.values.extend(self.kept.take());
            let more = self.stop_leaning();
            released.wants.extend(more.wants);
            released.values.extend(more.values);
        }
        if !self.leans {
            self.drop_constants(released);
        }
    }

    fn stop_leaning(&mut self) -> Released {
        let mut released = Released::default();
        if std::mem::take(&mut self.leans) {
            released.wants.extend(self.inputs.iter().filter_map(|o| Some((o.entry.clone()?, 1))));
            self.drop_constants(&mut released);
        }
        released
    }

    fn drop_constants(&mut self, released: &mut Released) {
        let needs = self.needs;
        for (_, operand) in self.inputs.iter_mut().enumerate().filter(|(i, _)| !needs.has_input(*i))
        {
            if let Some(Constant::Kept(node)) = operand.constant.take() {
                released.values.push(node);
            }
        }
    }

    /// Takes the operands out, with what is wanted of each.
    fn take_apart(&mut self) -> Vec<(TapeLink, u32)> {
        let (leans, needs) = (std::mem::take(&mut self.leans), std::mem::take(&mut self.needs));
        let inputs = std::mem::take(&mut self.inputs);
        let wanted = |(i, operand): (usize, Operand)| {
            Some((operand.entry?, leans as u32 + needs.has_input(i) as u32))
        };
        inputs.into_iter().enumerate().filter_map(wanted).collect()
    }
}

/// Takes wants back and drops links, in a loop: each may let go of more.
fn settle(released: Released) {
    drop(released.values);
    let mut work = released.wants;
    while let Some((entry, wants)) = work.pop() {
        let mut more = Released::default();
        let mut state = lock(&entry.state);
        state.wants -= wants;
        state.tidy(&mut more);
        if entry.is_only_owner() {
            more.wants.extend(state.take_apart());
        }
        drop(state);
        drop(more.values);
        work.extend(more.wants);
        drop(entry);
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let wants = lock(&self.state).take_apart();
        settle(Released { wants, values: SmallVec::new() });
    }
}

impl Observed for Entry {
    fn unobserved(this: TapeLink) {
        this.unobserve();
        settle(Released { wants: vec![(this, 0)], values: SmallVec::new() });
    }
}
