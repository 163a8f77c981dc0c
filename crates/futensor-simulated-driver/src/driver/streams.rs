//! Streams: queues of work, and the calls that make, wait for and order them.

use crate::checks::race::{Clock, Point};
use crate::ffi::{Handle, Kind, Out, handle, id};
use crate::machine::entry::{call, call_holding};
use crate::machine::objects::Stream;
use crate::machine::sim::{Guard, Sim, wait, wake_scheduler, wake_waiters};
use crate::machine::work::{Item, Work};
use crate::memory::Touch;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, NOT_READY, Outcome, Status};
use std::collections::VecDeque;
use std::sync::Arc;

const NON_BLOCKING: u32 = 1;

impl Sim {
    fn add_stream(&mut self, context: u64, flags: u32, priority: i32) -> u64 {
        let id = self.fresh_id();
        let stream = Stream {
            context,
            flags,
            priority,
            queue: VecDeque::new(),
            enqueued: 0,
            completed: 0,
            running: false,
            passing: false,
            stalled: false,
            destroyed: false,
            capture: None,
        };
        self.streams.insert(id, stream);
        id
    }

    /// The stream behind a handle. 0 and 1 are the current context's legacy default stream, 2 the
    /// thread's.
    pub fn stream(&mut self, raw: Handle) -> Outcome<u64> {
        if raw > 2 {
            let id = id(Kind::Stream, raw)?;
            return match self.streams.get(&id) {
                Some(stream) if !stream.destroyed => Ok(id),
                _ => Err(INVALID_HANDLE),
            };
        }
        let context = self.current()?;
        let thread = thread_number();
        let known = self.contexts.get(&context).and_then(|context| match raw {
            2 => context.thread_streams.get(&thread).copied(),
            _ => context.legacy_stream,
        });
        if let Some(id) = known {
            return Ok(id);
        }
        let id = self.add_stream(context, 0, 0);
        if let Some(context) = self.contexts.get_mut(&context) {
            match raw {
                2 => drop(context.thread_streams.insert(thread, id)),
                _ => context.legacy_stream = Some(id),
            }
        }
        Ok(id)
    }

    /// The streams of a context.
    pub fn streams_of(&self, context: u64) -> Vec<u64> {
        self.streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .map(|(&id, _)| id)
            .collect()
    }

    /// True once the work at a point has run. Streams that are no more have run all of it.
    pub fn has_run(&self, point: (u64, u64)) -> bool {
        self.streams.get(&point.0).is_none_or(|stream| stream.completed >= point.1)
    }

    /// The legacy default stream and the blocking streams of a context wait for each other (CUDA C
    /// Programming Guide, "Implicit Synchronization"): the points that new work of `stream` must
    /// wait for.
    fn implicit_needs(&self, stream: u64) -> Vec<(u64, u64)> {
        let Some(this) = self.streams.get(&stream) else { return Vec::new() };
        let legacy = self.contexts.get(&this.context).and_then(|context| context.legacy_stream);
        if this.flags & NON_BLOCKING != 0 || legacy.is_none() {
            return Vec::new();
        }
        let other = |id: u64, s: &Stream| {
            s.context == this.context
                && s.flags & NON_BLOCKING == 0
                && id != stream
                && (Some(stream) == legacy || Some(id) == legacy)
        };
        let found = self.streams.iter().filter(|&(&id, s)| other(id, s));
        found.filter(|(_, s)| s.enqueued > 0).map(|(&id, s)| (id, s.enqueued)).collect()
    }

    /// Puts work on a stream (or into the graph that the stream is capturing), checks its accesses
    /// against earlier work, and returns its position.
    pub fn submit(
        &mut self,
        stream: u64,
        label: String,
        work: Work,
        touches: Vec<Touch>,
    ) -> Outcome<u64> {
        self.submit_after(stream, label, work, touches, Vec::new())
    }

    /// As `submit`, after the points in `needs` too.
    pub fn submit_after(
        &mut self,
        stream: u64,
        label: String,
        work: Work,
        touches: Vec<Touch>,
        mut needs: Vec<Point>,
    ) -> Outcome<u64> {
        let this = self.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        self.healthy(this.context)?;
        if let Some(capture) = this.capture {
            return self.graphs.add_node(capture, stream, label, work, touches);
        }
        let (at, context) = (this.enqueued + 1, this.context);
        if self.contexts.get(&context).is_some_and(|context| context.legacy_stream == Some(stream))
        {
            self.legacy_is_free(context)?;
        }
        let implicit = self.implicit_needs(stream);
        for &(other, position) in &implicit {
            let mut clock = self.race.clock_of(other);
            clock.insert(other, position);
            self.race.stream_waits(stream, &clock);
        }
        needs.extend(implicit);
        crate::libraries::nvtx::work(&mut self.ranges, &label);
        let label: Arc<str> = format!("{label} (stream {stream}, item {at})").into();
        self.race.enter(stream, at);
        self.check_touches((stream, at), &touches, &label);
        if let Some(this) = self.streams.get_mut(&stream) {
            this.enqueued = at;
            this.queue.push_back(Item { at, label, work, touches, needs });
        }
        wake_scheduler();
        Ok(at)
    }

    /// Ends a context by a fault: its queued work is dropped, and every later call in it answers
    /// the error.
    pub fn poison(&mut self, context: u64, error: Status) {
        if let Some(context) = self.contexts.get_mut(&context)
            && context.error.is_none()
        {
            context.error = Some(error);
        }
        for stream in self.streams.values_mut().filter(|stream| stream.context == context) {
            stream.queue.clear();
            stream.completed = stream.enqueued;
            stream.capture = None;
        }
        self.streams.retain(|_, stream| {
            !(stream.destroyed && stream.context == context && !stream.running)
        });
        wake_waiters();
        wake_scheduler();
    }
}

/// A number for the calling thread.
pub fn thread_number() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|number| *number)
}

/// Blocks until everything on the streams has run or their context has ended; the host then knows
/// of it.
pub fn synchronize(sim: Guard, call: &str, context: u64, streams: &[u64]) -> (Guard, Outcome) {
    let mut clock = Clock::new();
    let mut points = Vec::new();
    for &stream in streams {
        crate::checks::race::join(&mut clock, &sim.race.clock_of(stream));
        points.push((stream, sim.streams.get(&stream).map_or(0, |stream| stream.enqueued)));
    }
    let (mut sim, outcome) = wait(sim, call, |sim| match sim.healthy(context) {
        Err(error) => Some(Err(error)),
        Ok(()) => points.iter().all(|&point| sim.has_run(point)).then_some(Ok(())),
    });
    if outcome.is_ok() {
        sim.race.host_waits(&clock);
        sim.shrink();
    }
    (sim, outcome)
}

fn create(stream: Out<Handle>, flags: u32, priority: i32) -> Status {
    call(|sim| {
        let context = sim.healthy_current()?;
        if flags & !NON_BLOCKING != 0 {
            return Err(INVALID_VALUE);
        }
        sim.stats.live_streams += 1;
        let id = sim.add_stream(context, flags, priority.clamp(-5, 0));
        stream.set(handle(Kind::Stream, id))
    })
}

/// `cuStreamCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: Out<Handle>, flags: u32) -> Status {
    create(stream, flags, 0)
}

/// `cuStreamCreateWithPriority`: of what could run, that of the greatest priority does.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(
    stream: Out<Handle>,
    flags: u32,
    priority: i32,
) -> Status {
    create(stream, flags, priority)
}

/// `cuStreamGetPriority`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetPriority(stream: Handle, priority: Out<i32>) -> Status {
    call(|sim| {
        let id = sim.stream(stream)?;
        priority.set(sim.streams.get(&id).map_or(0, |stream| stream.priority))
    })
}

/// `cuStreamGetFlags`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetFlags(stream: Handle, flags: Out<u32>) -> Status {
    call(|sim| {
        let id = sim.stream(stream)?;
        flags.set(sim.streams.get(&id).map_or(0, |stream| stream.flags))
    })
}

/// `cuStreamGetCtx`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCtx(stream: Handle, context: Out<Handle>) -> Status {
    call(|sim| {
        let id = sim.stream(stream)?;
        context.set(handle(Kind::Context, sim.streams.get(&id).map_or(0, |stream| stream.context)))
    })
}

/// `cuStreamDestroy_v2`: returns at once; queued work still runs.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> Status {
    call(|sim| {
        if stream <= 2 {
            return Err(INVALID_HANDLE);
        }
        let id = sim.stream(stream)?;
        sim.stats.live_streams -= 1;
        let Some(this) = sim.streams.get_mut(&id) else { return Err(INVALID_HANDLE) };
        this.destroyed = true;
        let (context, idle) = (this.context, this.queue.is_empty() && !this.running);
        if idle {
            sim.streams.remove(&id);
        }
        sim.healthy(context)
    })
}

/// `cuStreamQuery`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> Status {
    call(|sim| {
        let id = sim.stream(stream)?;
        sim.stats.queries += 1;
        let Some(this) = sim.streams.get(&id) else { return Err(INVALID_HANDLE) };
        sim.healthy(this.context)?;
        let behind = this.completed < this.enqueued;
        sim.not_captured(id)?;
        if behind {
            sim.grant_query();
            return Err(NOT_READY);
        }
        let clock = sim.race.clock_of(id);
        sim.race.host_waits(&clock);
        Ok(())
    })
}

/// `cuStreamSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> Status {
    call_holding(|mut sim| {
        let id = sim.stream(stream)?;
        let Some(this) = sim.streams.get(&id) else { return Err(INVALID_HANDLE) };
        let context = this.context;
        sim.healthy(context)?;
        sim.not_captured(id)?;
        synchronize(sim, "cuStreamSynchronize", context, &[id]).1
    })
}
