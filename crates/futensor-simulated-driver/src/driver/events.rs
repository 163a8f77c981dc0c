//! Events: marks in streams that the host and other streams wait for.

use crate::ffi::{Handle, Kind, Out, handle, id};
use crate::machine::entry::{call, call_holding};
use crate::machine::objects::Event;
use crate::machine::sim::{Sim, wait};
use crate::machine::work::Work;
use crate::status::{
    CAPTURED_EVENT, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_READY, Outcome, Status,
};

const DISABLE_TIMING: u32 = 2;

impl Sim {
    fn event(&self, raw: Handle) -> Outcome<u64> {
        let id = id(Kind::Event, raw)?;
        if self.events.contains_key(&id) { Ok(id) } else { Err(INVALID_HANDLE) }
    }
}

/// `cuEventCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: Out<Handle>, flags: u32) -> Status {
    call(|sim| {
        let context = sim.healthy_current()?;
        if flags & !7 != 0 {
            return Err(INVALID_VALUE);
        }
        let id = sim.fresh_id();
        sim.events.insert(id, Event { context, flags, ..Event::default() });
        sim.stats.events += 1;
        sim.stats.live_events += 1;
        event.set(handle(Kind::Event, id))
    })
}

/// `cuEventDestroy_v2`: returns at once, whether or not the event has been reached.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> Status {
    call(|sim| {
        let id = sim.event(event)?;
        sim.stats.live_events -= 1;
        let context = sim.events.remove(&id).map_or(0, |event| event.context);
        sim.healthy(context)
    })
}

fn record(event: Handle, stream: Handle) -> Status {
    call(|sim| {
        let id = sim.event(event)?;
        let stream = sim.stream(stream)?;
        let context = sim.events.get(&id).map_or(0, |event| event.context);
        let this = sim.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        if this.context != context {
            return Err(INVALID_HANDLE);
        }
        sim.healthy(context)?;
        sim.stats.records += 1;
        let is_timed = sim.events.get(&id).is_some_and(|event| event.flags & DISABLE_TIMING == 0);
        sim.stats.timed_records += u64::from(is_timed);
        if let Some(capture) = this.capture {
            let front = sim.graphs.front(capture, stream)?;
            if let Some(event) = sim.events.get_mut(&id) {
                event.captured = Some((capture, front));
            }
            return Ok(());
        }
        let at = sim.submit(stream, "event record".into(), Work::Stamp(id), Vec::new())?;
        let clock = sim.race.clock_of(stream);
        if let Some(event) = sim.events.get_mut(&id) {
            event.point = Some((stream, at));
            event.clock = clock;
            event.time = None;
            event.captured = None;
        }
        Ok(())
    })
}

/// `cuEventRecord`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> Status {
    record(event, stream)
}

/// `cuEventRecordWithFlags`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) -> Status {
    record(event, stream)
}

/// `cuEventQuery`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> Status {
    call(|sim| {
        let id = sim.event(event)?;
        sim.stats.queries += 1;
        let Some(event) = sim.events.get(&id) else { return Err(INVALID_HANDLE) };
        sim.healthy(event.context)?;
        if let Some((capture, _)) = event.captured {
            return Err(sim.break_capture(capture, CAPTURED_EVENT));
        }
        if event.point.is_some_and(|point| !sim.has_run(point)) {
            sim.grant_query();
            return Err(NOT_READY);
        }
        let clock = event.clock.clone();
        sim.race.host_waits(&clock);
        Ok(())
    })
}

/// `cuEventSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> Status {
    call_holding(|mut sim| {
        let id = sim.event(event)?;
        let Some(event) = sim.events.get(&id) else { return Err(INVALID_HANDLE) };
        let (context, point, clock) = (event.context, event.point, event.clock.clone());
        sim.healthy(context)?;
        if let Some((capture, _)) = event.captured {
            return Err(sim.break_capture(capture, CAPTURED_EVENT));
        }
        let (mut sim, outcome) =
            wait(sim, "cuEventSynchronize", |sim| match sim.healthy(context) {
                Err(error) => Some(Err(error)),
                Ok(()) => point.is_none_or(|point| sim.has_run(point)).then_some(Ok(())),
            });
        if outcome.is_ok() {
            sim.race.host_waits(&clock);
            sim.shrink();
        }
        outcome
    })
}

fn elapsed(milliseconds: Out<f32>, start: Handle, end: Handle) -> Status {
    call(|sim| {
        let (start, end) = (sim.event(start)?, sim.event(end)?);
        let (Some(start), Some(end)) = (sim.events.get(&start), sim.events.get(&end)) else {
            return Err(INVALID_HANDLE);
        };
        sim.healthy(start.context)?;
        if start.context != end.context {
            return Err(INVALID_CONTEXT);
        }
        if (start.flags | end.flags) & DISABLE_TIMING != 0
            || start.point.is_none()
            || end.point.is_none()
        {
            return Err(INVALID_HANDLE);
        }
        let (Some(from), Some(to)) = (start.time, end.time) else { return Err(NOT_READY) };
        milliseconds.set((to as f64 - from as f64) as f32 / 1e6)
    })
}

/// `cuEventElapsedTime`: simulated time, the same at each replay.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: Out<f32>, start: Handle, end: Handle) -> Status {
    elapsed(milliseconds, start, end)
}

/// `cuEventElapsedTime_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(
    milliseconds: Out<f32>,
    start: Handle,
    end: Handle,
) -> Status {
    elapsed(milliseconds, start, end)
}

/// `cuStreamWaitEvent`. A wait that is dropped on demand succeeds all the same.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let id = sim.event(event)?;
        let context = sim.streams.get(&stream).map_or(0, |stream| stream.context);
        sim.healthy(context)?;
        sim.stats.waits += 1;
        if sim.faults.on_wait() {
            return Ok(());
        }
        let Some(event) = sim.events.get(&id) else { return Err(INVALID_HANDLE) };
        let (point, clock, captured) = (event.point, event.clock.clone(), event.captured.clone());
        let capturing = sim.streams.get(&stream).and_then(|stream| stream.capture);
        if captured.is_some() || capturing.is_some() {
            return sim.captured_wait(stream, captured, point.is_some());
        }
        let Some(point) = point else { return Ok(()) };
        sim.race.stream_waits(stream, &clock);
        if point.0 != stream {
            sim.submit_after(stream, "wait for event".into(), Work::Mark, Vec::new(), vec![point])?;
        }
        Ok(())
    })
}
