//! All processes, as this one sees them: the protocol behind its lock, and the execution of its
//! actions.
//!
//! A thread with an event (a caller's, the engine's, or that of the links) takes the lock, passes
//! the event to the machine, sends the machine's messages, and hands calls to the engine in the
//! machine's order. Awaits are completed outside the lock, since wakers are user code.

use super::driver::{Asks, Driver, Job};
use super::links::Links;
use super::options::Plan;
use super::protocol::message::{Fault, GroupId};
use super::protocol::{Action, Ended, JOIN, Machine, Ticket};
use super::slot::Slot;
use crate::engine::exchange::{Key, Through, Words};
use crate::guard::contained;
use crate::sync::lock_plain as lock;
use crate::tensor::device::Device;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub(crate) struct World {
    pub rank: usize,
    pub deadline: Duration,
    /// The number of this world in the process; part of the names of its communicators.
    pub serial: u64,
    pub links: Links,
    pub driver: &'static Driver,
    /// The device whose own library carries the values, if any.
    pub home: Option<Device>,
    began: Instant,
    machine: Mutex<Machine>,
    waits: Mutex<HashMap<Ticket, Arc<Slot>>>,
    /// Peers that were refused while this rank joined.
    notes: Mutex<Vec<String>>,
    left: AtomicBool,
    /// The world never formed, or its thread has ended.
    failed: AtomicBool,
}

/// Completed awaits.
type Ends = Vec<(Ticket, Result<Ended, Fault>)>;

impl World {
    /// The world of a process that begins to join, and the slot of that await.
    pub fn new(plan: &Plan, links: Links, driver: &'static Driver) -> (Arc<World>, Arc<Slot>) {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let slot = Arc::new(Slot::default());
        let world = World {
            rank: plan.rank,
            deadline: plan.rules.deadline,
            serial: SERIAL.fetch_add(1, SeqCst),
            links,
            driver,
            home: plan.home.clone(),
            began: Instant::now(),
            machine: Mutex::new(Machine::new(plan.rank, plan.size, plan.rules, Duration::ZERO)),
            waits: Mutex::new(HashMap::from([(JOIN, slot.clone())])),
            notes: Mutex::new(Vec::new()),
            left: AtomicBool::new(false),
            failed: AtomicBool::new(false),
        };
        (Arc::new(world), slot)
    }

    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Passes an event to the machine, and executes its actions.
    pub fn act<R>(&self, tell: impl FnOnce(&mut Machine, Duration) -> R) -> R {
        let (told, ended) = self.perform(tell);
        self.end(ended);
        told
    }

    /// The same for the thread of the links: if it were silent, the others would give this rank up,
    /// so wakers run on another thread.
    pub fn act_aside(self: &Arc<World>, tell: impl FnOnce(&mut Machine, Duration)) {
        let ((), ended) = self.perform(tell);
        if ended.is_empty() {
            return;
        }
        let (world, ended) = (self.clone(), Arc::new(Mutex::new(ended)));
        let ends = ended.clone();
        let thread = std::thread::Builder::new().name("futensor-ends".into());
        if thread.spawn(move || world.end(std::mem::take(&mut *lock(&ends)))).is_err() {
            self.end(std::mem::take(&mut *lock(&ended)));
        }
    }

    /// Passes an event to the machine, and executes all its actions except completing awaits.
    fn perform<R>(&self, tell: impl FnOnce(&mut Machine, Duration) -> R) -> (R, Ends) {
        let mut ended = Vec::new();
        let told = {
            let mut machine = lock(&self.machine);
            let told = tell(&mut machine, self.now());
            for action in machine.take() {
                match action {
                    Action::Send(rank, message) => self.links.send(rank, &message.encode()),
                    Action::Connect(rank, address) => self.links.ask_for(rank, address),
                    Action::Close(rank) => self.links.close(rank),
                    Action::Go(ticket) => self.driver.go(Key(self.serial, ticket)),
                    Action::Hear(group, words) => self.driver.hear(Key(self.serial, group), words),
                    Action::Abort(group) => self.driver.abort(Key(self.serial, group)),
                    Action::Free(group) => self.driver.free(Key(self.serial, group)),
                    Action::End(ticket, outcome) => ended.push((ticket, outcome)),
                }
            }
            told
        };
        for (ticket, outcome) in &mut ended {
            if let (&mut JOIN, Err(fault)) = (ticket, outcome) {
                self.tell_notes(fault);
                self.failed.store(true, SeqCst);
            }
        }
        (told, ended)
    }

    fn end(&self, ended: Ends) {
        for (ticket, outcome) in ended {
            let slot = lock(&self.waits).remove(&ticket);
            let mut unwanted = None;
            if let Some(slot) = slot {
                contained(|| unwanted = slot.end(outcome));
            }
            if let Some(id) = unwanted {
                self.act(|machine, _| machine.let_go(id));
            }
        }
    }

    /// An await of a ticket that the machine issues.
    ///
    /// # Errors
    /// The machine's error.
    pub fn ask(
        &self,
        ask: impl FnOnce(&mut Machine, Duration) -> Result<Ticket, Fault>,
    ) -> Result<Arc<Slot>, Fault> {
        self.act(|machine, now| {
            let ticket = ask(machine, now)?;
            Ok(self.await_of(ticket))
        })
    }

    /// A call of the engine: `job` is created with its ticket, in the order of the calls.
    ///
    /// # Errors
    /// The group is unusable.
    pub fn call(
        &self,
        ask: impl FnOnce(&mut Machine) -> Result<Ticket, Fault>,
        job: impl FnOnce(Arc<Slot>) -> Job,
    ) -> Result<Arc<Slot>, Fault> {
        self.act(|machine, _| {
            let ticket = ask(machine)?;
            let slot = self.await_of(ticket);
            // Under the lock, so that the engine's thread sees calls in order, and before they may
            // start.
            self.driver.add(Key(self.serial, ticket), job(slot.clone()));
            Ok(slot)
        })
    }

    /// Requires the machine's lock: the await cannot have completed yet.
    fn await_of(&self, ticket: Ticket) -> Arc<Slot> {
        let slot = Arc::new(Slot::default());
        lock(&self.waits).insert(ticket, slot.clone());
        slot
    }

    /// Notes that a peer was refused, for the error of a join that fails.
    pub fn note(&self, text: String) {
        let mut notes = lock(&self.notes);
        if notes.len() < 4 && !notes.contains(&text) {
            notes.push(text);
        }
    }

    fn tell_notes(&self, fault: &mut Fault) {
        let notes = lock(&self.notes);
        if !notes.is_empty() {
            fault.text = format!("{} ({})", fault.text, notes.join("; "));
        }
    }

    /// The time until the thread of the links has to act.
    pub fn sleep(&self) -> Duration {
        // A call that becomes ready meanwhile has a later deadline.
        let next = lock(&self.machine).next();
        next.saturating_sub(self.now()).min(self.deadline)
    }
}

impl Asks for World {
    fn ready(&self, group: GroupId, ticket: Ticket, operand: Result<(), String>) {
        self.act(|machine, now| match operand {
            Ok(()) => machine.ready(group, ticket, now),
            Err(text) => machine.operand_failed(group, ticket, text),
        });
    }

    fn done(&self, group: GroupId, ticket: Ticket, result: Through) {
        self.act(|machine, now| machine.done(group, ticket, result, now));
    }

    fn say(&self, group: GroupId, words: Words) {
        self.act(|machine, _| machine.say(group, words));
    }

    fn serial(&self) -> u64 {
        self.serial
    }

    fn fails(&self, text: String) {
        // First, since the end of the process waits for this flag.
        self.failed.store(true, SeqCst);
        self.driver.loses();
        contained(|| self.act(|machine, _| machine.part(text)));
        self.links.ring();
    }

    fn leave(&self) {
        if !self.left.swap(true, SeqCst) {
            self.act(|machine, _| machine.leave());
            self.links.ring();
        }
    }

    fn is_over(&self) -> (bool, bool) {
        let (alone, lost) = lock(&self.machine).is_alone();
        (self.left.load(SeqCst) && alone || self.failed.load(SeqCst), lost)
    }
}
