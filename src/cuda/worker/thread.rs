//! The device's thread: attends to the intake, calls the machine, queues its steps on the GPU.
//!
//! Everything that launches, loads or allocates happens here, and nothing here waits for the GPU. A
//! step that cannot be queued yet (an operand is still being copied, a kernel is being compiled,
//! memory is short and some is about to come free) stays at the head of its lane and is tried again
//! when that may have changed.

#![allow(unsafe_code)]

mod submit;

use super::submissions::put;
use super::{Shared, reaper};
use crate::cuda::device::Trouble;
use crate::cuda::device::background::{Pending, Wanted};
use crate::cuda::device::context::DeviceContext;
use crate::cuda::device::lanes::Mark;
use crate::cuda::device::step::HostCopy;
use crate::cuda::device::timing::Timing;
use crate::engine::scheduler::Scheduler;
use crate::engine::step::Step;
use crate::error::bytes_of;
use crate::graph::node::NodeLink;
use crate::guard::{self, DeferredDrops, DeferredWakes, Leftovers, Wakers, caught};
use crate::process_end::inside;
use crate::sync::lock;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::Instant;

/// Steps launched on each lane before anything else is looked at.
const AT_ONCE: usize = 64;
/// Work on a lane, in estimated nanoseconds, behind which an event is recorded although more
/// follows.
const COVERED_AFTER_NS: u64 = 20_000;
/// Steps on a lane behind which an event is recorded although more follows.
const COVERED_AFTER: u32 = 32;

/// Why a step was deferred.
enum Deferral {
    /// Other work is not through yet, or an operand is on its way.
    Moving,
    /// Something is made in the background, where so much had been made when it was tried. Nothing
    /// else helps it: a try may allocate and free, which is something that moves, so it would go on
    /// and on.
    Making(u64),
    /// Memory is short.
    Memory,
    /// Memory is short, nothing runs, and all kept memory has been given back to the driver's pool.
    GivenBack,
    /// The driver gives back what its pool keeps: memory that is missing after that will not come.
    Trimming(Pending<()>),
}

impl Deferral {
    fn is_of_memory(&self) -> bool {
        matches!(self, Deferral::Memory | Deferral::GivenBack | Deferral::Trimming(_))
    }

    fn is_trimming(&self) -> bool {
        matches!(self, Deferral::Trimming(trimmed) if !trimmed.is_there())
    }
}

/// A lane's steps that are not queued yet, and its work since the last event.
#[derive(Default)]
struct Queue {
    steps: VecDeque<Step>,
    deferred: Option<Deferral>,
    since_event: u32,
    since_event_ns: u64,
    /// The machine's point that has been queued.
    point: u64,
}

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) context: DeviceContext,
    queues: Vec<Queue>,
    /// The reapers' progress when this thread last looked.
    seen: u64,
    /// Something was freed or has come through since memory was short.
    moved: bool,
    trim: Trim,
}

/// Trims that may be under way; those that are asked for beyond them begin together.
const TRIMS_MAX: usize = 8;

/// How far the trims have come that the device was asked for.
#[derive(Default)]
struct Trim {
    /// The number of the last one that has begun.
    begun: u64,
    /// Of each that has begun: its number, and the points behind which the driver has what was
    /// given back, until they are reached.
    frees: VecDeque<(u64, SmallVec<[Mark; 8]>)>,
    /// The rest, kernels among it, goes once nothing runs.
    is_left: bool,
}

/// The life of the device's thread.
pub(super) fn live(shared: Arc<Shared>, running: Arc<AtomicBool>) {
    let port = shared.port;
    let timing = Timing::new(shared.settings.timed, shared.timed.clone());
    let (heap, pinned) = (shared.heap.clone(), shared.pinned.clone());
    let on_done = {
        let shared = shared.clone();
        Arc::new(move || shared.look_again())
    };
    let starts = inside();
    let opened = DeviceContext::open(
        heap,
        pinned,
        shared.events.clone(),
        shared.reached.clone(),
        timing,
        on_done,
        shared.settings.kept_bytes,
        shared.settings.stream,
    );
    drop(starts);
    let lanes = shared.lanes.len();
    let worker = match opened {
        Ok(mut context) => Some(Worker {
            context: {
                let settings = shared.settings;
                context.set(settings.tf32, settings.cudnn, settings.warm, shared.declined.clone());
                context.launcher.half_products = settings.half_products;
                context
            },
            queues: (0..lanes).map(|_| Queue::default()).collect(),
            seen: 0,
            moved: false,
            trim: Trim::default(),
            shared: shared.clone(),
        }),
        Err(why) => {
            shared.lose(format_args!("{} could not be opened: {why}", port.profile.name));
            None
        }
    };
    if let Some(mut worker) = worker {
        let result = caught(|| worker.work());
        let healthy = result.is_ok() && !shared.over.load(SeqCst);
        if let Err(words) = result {
            shared.lose(format_args!("its engine panicked: {words}"));
        }
        if healthy {
            worker.close();
        } else {
            // After a fault no call succeeds any more, and some never return: the process's end
            // cleans up.
            std::mem::forget(worker);
        }
    }
    refuse_until_abandoned(&shared);
    running.store(false, SeqCst);
    // All memory went with the context. Who asks from now on starts a thread.
    shared.trims.end(shared.trims.asked());
    // A push that came in between found a thread: start again for it.
    if !port.mailbox.intake.is_empty() {
        port.runner.start(port);
    }
}

/// After the end: everything that comes in fails.
fn refuse_until_abandoned(shared: &Shared) {
    let attendance = &shared.port.mailbox.attendance;
    while shared.port.life.is_ended() {
        attendance.attend(0);
        shared.refuse_all();
        attendance.park(0);
        attendance.leave(0);
        if !shared.port.mailbox.intake.is_empty() {
            attendance.unpark(0);
            continue;
        }
        while attendance.is_parked(0) {
            if shared.abandoned.load(SeqCst) {
                attendance.unpark(0);
                return;
            }
            std::thread::park();
        }
    }
}

/// A node's op and the caller's line, for a profiler.
pub(super) fn named(node: &NodeLink) -> (&str, &'static Location<'static>) {
    (node.op.name(), node.at)
}

impl Worker {
    fn work(&mut self) {
        let anchored = {
            let _inside = inside();
            self.anchor()
        };
        if let Err(trouble) = anchored {
            return self.lose(trouble);
        }
        let mut last = Instant::now();
        loop {
            if self.shared.over.load(SeqCst) {
                return;
            }
            match self.turn() {
                Err(trouble) => {
                    self.lose(trouble);
                    return;
                }
                Ok(true) => last = Instant::now(),
                Ok(false) => {
                    if !self.idle(last) {
                        return;
                    }
                }
            }
        }
    }

    /// Takes the origin of each lane's times, before anything is queued.
    fn anchor(&self) -> Result<(), Trouble> {
        for (lane, of) in self.shared.lanes.iter().enumerate() {
            *lock(&of.anchor) = self.context.timing.anchor(self.context.lanes.raw(lane))?;
        }
        Ok(())
    }

    fn lose(&self, trouble: Trouble) {
        match trouble {
            Trouble::OutOfMemory { bytes } => self
                .shared
                .lose(format_args!("{} for its own work could not be allocated", bytes_of(bytes))),
            Trouble::Later(_) => unreachable!("only steps are tried again"),
            other => self.shared.lose(other),
        }
    }

    /// One round of everything; true where anything was done. Values of users that it lets go of
    /// are dropped on another thread.
    fn turn(&mut self) -> Result<bool, Trouble> {
        let later = DeferredDrops::begin();
        let did = {
            let _inside = inside();
            self.round()
        };
        let leftovers = later.end();
        if !leftovers.is_empty() {
            self.shared.see_to(Wakers::new(), leftovers);
        }
        did
    }

    fn round(&mut self) -> Result<bool, Trouble> {
        let shared = self.shared.clone();
        let seen = shared.progress.load(SeqCst);
        let mut did = seen != self.seen;
        self.seen = seen;
        self.moved |= did;
        shared.port.mailbox.attendance.attend(0);
        let woken = DeferredWakes::begin();
        let is_ended = {
            let mut scheduler = guard::lock(&shared.scheduler);
            did |= self.settle_done(&mut scheduler);
            did |= shared.visit_queued(&mut scheduler);
            did |= !scheduler.machine.is_ended() && self.take_steps(&mut scheduler);
            // A device that was shut down goes on until its values are gone, and then gives back
            // its memory.
            scheduler.machine.is_ended() && !shared.port.life.is_shut_down()
        };
        shared.see_to(woken.end(), Leftovers::new());
        if is_ended {
            shared.over.store(true, SeqCst);
            shared.ring_all();
            return Ok(false);
        }
        self.trim()?;
        did |= self.launch_some()?;
        if self.context.heap.has_returned() || self.context.frees_under_way() > 0 {
            let before = self.context.heap.live();
            self.context.free_returned()?;
            self.moved |= self.context.heap.live() != before;
        }
        did |= self.copy()?;
        let deferred = || self.queues.iter().filter_map(|queue| queue.deferred.as_ref());
        let is_short = deferred().any(Deferral::is_of_memory);
        let is_due = deferred().any(|why| why.is_of_memory() && !why.is_trimming());
        if is_short {
            self.watch_frees()?;
        }
        if !did {
            self.cover_all()?;
            if self.trim.is_left && self.is_alone() {
                self.trim.is_left = !self.context.end_trim()?;
            }
        }
        self.send_reapers();
        // Nothing can bring memory any more: the next try is due.
        Ok(did || is_due && self.has_all_memory())
    }

    /// Begins the trims that were asked for, and ends those whose memory the driver has by now.
    /// What is queued meanwhile holds none up.
    fn trim(&mut self) -> Result<(), Trouble> {
        let asked = self.shared.trims.asked();
        if asked > self.trim.begun && self.trim.frees.len() < TRIMS_MAX {
            self.trim.begun = asked;
            self.trim.is_left = true;
            self.context.begin_trim()?;
            self.watch_frees()?;
            let marks = (0..self.queues.len()).map(|lane| self.context.lanes.last(lane));
            self.trim.frees.push_back((asked, marks.collect()));
        }
        let lanes = &self.context.lanes;
        let is_through = |(_, marks): &(u64, SmallVec<[Mark; 8]>)| {
            marks.iter().all(|&mark| lanes.is_reached(mark))
        };
        let through = self.trim.frees.iter().take_while(|trim| is_through(trim)).count();
        if let Some((number, _)) = self.trim.frees.drain(..through).next_back() {
            let trims = self.shared.trims.clone();
            self.context.trim_pool(Wanted::Sometime, move || trims.end(number));
        }
        Ok(())
    }

    /// Steps that may begin, to their lanes' queues; true where there was any.
    fn take_steps(&mut self, scheduler: &mut Scheduler) -> bool {
        let now = self.shared.now();
        scheduler.machine.tick(now);
        for lane in 0..self.context.copy_lane() {
            scheduler.machine.stuck(lane, self.queues[lane].deferred.is_some());
        }
        let mut any = false;
        while let Some(step) = scheduler.machine.next(now) {
            self.queues[step.at.stream as usize].steps.push_back(step);
            any = true;
        }
        any
    }

    /// A free is queued like all else, and other lanes cannot have the memory before that lane has
    /// come past it. Here an empty submission follows the frees, so that the engine hears of it;
    /// only where memory is short.
    fn watch_frees(&mut self) -> Result<(), Trouble> {
        for lane in 0..self.queues.len() {
            if self.context.lanes.has_freed(lane) {
                self.depart(lane, None, None, None);
                self.cover(lane)?;
            }
        }
        Ok(())
    }

    /// Tells the machine which steps are through.
    fn settle_done(&mut self, scheduler: &mut Scheduler) -> bool {
        let done = std::mem::take(&mut *lock(&self.shared.done));
        let any = !done.is_empty();
        for step in done {
            for &entry in &step.entries {
                put(&self.shared.table, entry, None);
            }
            let now = self.shared.now();
            scheduler.machine.finished(step, now);
        }
        any
    }

    /// Queues steps on their lanes, in turn.
    fn launch_some(&mut self) -> Result<bool, Trouble> {
        let mut launched = 0;
        let mut deferred = 0;
        let lanes = self.queues.len();
        for _ in 0..AT_ONCE {
            let before = launched;
            for lane in 0..lanes {
                if self.queues[lane].steps.is_empty() {
                    continue;
                }
                let in_vain = match &self.queues[lane].deferred {
                    Some(Deferral::Making(made)) => {
                        self.context.launcher.background.made() == *made
                    }
                    Some(why) if why.is_of_memory() => {
                        !self.moved && (why.is_trimming() || !self.has_all_memory())
                    }
                    _ => false,
                };
                if in_vain {
                    continue;
                }
                let Some(step) = self.queues[lane].steps.pop_front() else { continue };
                if step.waits.iter().any(|w| self.queues[w.stream as usize].point < w.point) {
                    self.queues[lane].steps.push_front(step);
                    continue;
                }
                match self.submit(lane, step)? {
                    None => launched += 1,
                    Some(step) => {
                        deferred += 1;
                        self.queues[lane].steps.push_front(step);
                    }
                }
            }
            if launched == before {
                break;
            }
        }
        if deferred > 0 {
            // The thread has to see the event that a step waits for.
            self.cover_all()?;
        }
        self.moved = false;
        Ok(launched > 0)
    }

    /// True where nothing that is under way could give memory back.
    fn is_alone(&self) -> bool {
        let shared = &self.shared;
        let lanes = &self.context.lanes;
        let through = (0..self.queues.len()).all(|lane| lanes.is_through(lane));
        through
            && lock(&shared.done).is_empty()
            && self.context.frees_under_way() == 0
            && !shared.heap.has_returned()
            && !self.context.is_uploading()
            && !self.context.is_downloading()
    }

    /// True where no more memory can come: nothing is under way, nor a free, nor word of a value
    /// that was dropped.
    fn has_all_memory(&self) -> bool {
        let freed = (0..self.queues.len()).any(|lane| self.context.lanes.has_freed(lane));
        !freed
            && !self.shared.port.mailbox.has_queued()
            && lock(&self.shared.scheduler).is_clear()
            && self.is_alone()
    }

    /// Goes on with copies to the device, and from it.
    fn copy(&mut self) -> Result<bool, Trouble> {
        let lane = self.context.copy_lane();
        let mut did = false;
        if let Some(chunk) = self.context.download_chunk()? {
            self.depart(lane, None, Some(HostCopy::Chunk(chunk)), None);
            self.cover(lane)?;
            did = true;
        }
        let under_way = self.shared.lanes[lane].in_flight().submissions.len();
        if !self.context.can_upload(under_way) {
            return Ok(did);
        }
        match self.context.upload_chunk() {
            Ok(()) => {}
            // All page-locked memory is lent.
            Err(Trouble::Later(_)) => return Ok(did),
            // The step that needs it asks again.
            Err(Trouble::OutOfMemory { .. }) => self.moved = true,
            Err(trouble) => return Err(trouble),
        }
        self.depart(lane, None, None, None);
        self.cover(lane)?;
        Ok(true)
    }

    fn cover(&mut self, lane: usize) -> Result<(), Trouble> {
        self.queues[lane].since_event = 0;
        self.queues[lane].since_event_ns = 0;
        self.context.cover(lane)
    }

    /// Sees to it that everything that is queued will be seen to be through.
    fn cover_all(&mut self) -> Result<(), Trouble> {
        (0..self.queues.len()).try_for_each(|lane| self.cover(lane))
    }

    /// Hands recorded events to the reapers.
    fn send_reapers(&mut self) {
        for reap in std::mem::take(&mut self.context.to_reap) {
            self.shared.lanes[reap.lane].in_flight().events.push_back((reap.at, reap.event));
            reaper::call(&self.shared, reap.lane);
        }
    }

    /// Stays awake for a moment, then sleeps. False where the thread is to end.
    fn idle(&mut self, last: Instant) -> bool {
        let shared = self.shared.clone();
        let attendance = &shared.port.mailbox.attendance;
        let news = || {
            shared.port.mailbox.has_queued()
                || shared.progress.load(SeqCst) != self.seen
                || shared.heap.has_returned()
                || shared.over.load(SeqCst)
        };
        loop {
            if news() {
                return true;
            }
            let deadline = lock(&shared.scheduler).machine.deadline();
            if deadline.is_some_and(|d| d <= shared.now()) {
                return true;
            }
            // Once nobody can ask for more the thread is to end.
            let alone = shared.abandoned.load(SeqCst);
            if deadline.is_none() && (alone || last.elapsed() > shared.settings.linger) {
                break;
            }
            for _ in 0..16 {
                std::hint::spin_loop();
            }
        }
        attendance.park(0);
        attendance.leave(0);
        // Anything pushed or offered before the two lines above is seen by the next.
        if news() {
            attendance.unpark(0);
            return true;
        }
        while attendance.is_parked(0) {
            if shared.abandoned.load(SeqCst) && self.retire() {
                return false;
            }
            std::thread::park();
        }
        true
    }

    /// True where the device has been abandoned and has nothing left: no work, no values.
    fn retire(&self) -> bool {
        let shared = &self.shared;
        let nothing = {
            let scheduler = lock(&shared.scheduler);
            scheduler.machine.is_idle() && scheduler.is_clear() && !shared.port.mailbox.has_queued()
        };
        if !nothing || !self.is_alone() || self.context.heap.live() > 0 {
            return false;
        }
        // A push that appointed this thread meanwhile counts on it.
        shared.port.mailbox.attendance.unpark(0)
    }

    /// The orderly end.
    fn close(self) {
        self.shared.over.store(true, SeqCst);
        self.shared.ring_all();
        for lane in &self.shared.lanes {
            let reapers = std::mem::take(&mut lane.in_flight().reapers);
            // Nothing is under way, so they end at once.
            reapers.into_iter().for_each(|reaper| drop(reaper.join()));
        }
        for lane in &self.shared.lanes {
            if let Some(anchor) = lock(&lane.anchor).take() {
                anchor.close(&self.shared.timed);
            }
        }
        self.context.launcher.background.end();
        let _inside = inside();
        let driver = self.context.close();
        // SAFETY: nothing is under way, the reapers have ended, the anchors gave their events back,
        // and the lanes went with the device context.
        unsafe { driver.close(&[&self.shared.events, &self.shared.timed]) };
    }
}
