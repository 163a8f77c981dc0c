//! Captures: work that a stream was given becomes nodes of a graph, until the capture ends.

use super::ancestors;
use crate::driver::streams::thread_number;
use crate::ffi::{Handle, Kind, Out, handle};
use crate::machine::entry::call;
use crate::machine::objects::{Capture, Graphs, Stream};
use crate::machine::sim::Sim;
use crate::machine::work::{GraphItem, Work};
use crate::memory::Touch;
use crate::status::{
    CAPTURED_EVENT, INVALID_HANDLE, INVALID_VALUE, Outcome, STREAM_CAPTURE_IMPLICIT,
    STREAM_CAPTURE_INVALIDATED, STREAM_CAPTURE_ISOLATION, STREAM_CAPTURE_MERGE,
    STREAM_CAPTURE_UNJOINED, STREAM_CAPTURE_UNMATCHED, STREAM_CAPTURE_UNSUPPORTED,
    STREAM_CAPTURE_WRONG_THREAD, Status,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

impl Graphs {
    /// The nodes that the next node of a capturing stream comes after.
    pub fn front(&self, capture: u64, stream: u64) -> Outcome<Vec<usize>> {
        let capture = self.captures.get(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        if capture.broken {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        Ok(capture.fronts.get(&stream).cloned().unwrap_or_default())
    }

    /// Makes a node of work that a capturing stream was given. Returns its place.
    pub fn add_node(
        &mut self,
        capture: u64,
        stream: u64,
        label: String,
        work: Work,
        touches: Vec<Touch>,
    ) -> Outcome<u64> {
        let capture = self.captures.get_mut(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        if capture.broken {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let place = capture.nodes.len();
        let label: Arc<str> = format!("{label} (node {place} of a graph)").into();
        let after = capture.fronts.insert(stream, vec![place]).unwrap_or_default();
        capture.nodes.push(GraphItem { label, work, touches, after });
        Ok(place as u64)
    }
}

thread_local! {
    /// What `cuThreadExchangeStreamCaptureMode` set.
    static MODE: Cell<u32> = const { Cell::new(0) };
}

impl Sim {
    /// What was asked for is not allowed in a capture ("any associated capture graphs are
    /// invalidated", CUDA C++ Programming Guide, "Invalidation").
    pub fn break_capture(&mut self, capture: u64, status: Status) -> Status {
        if let Some(capture) = self.graphs.captures.get_mut(&capture) {
            capture.broken = true;
        }
        status
    }

    /// That a stream does not capture, for a call that may not be made of one that does.
    pub fn not_captured(&mut self, stream: u64) -> Outcome {
        match self.streams.get(&stream).and_then(|stream| stream.capture) {
            Some(capture) => Err(self.break_capture(capture, STREAM_CAPTURE_UNSUPPORTED)),
            None => Ok(()),
        }
    }

    /// A library's kernel is loaded when it is first asked for. In a capture that is not allowed
    /// ("Lazy Loading", CUDA C++ Programming Guide): who captures has asked for it before.
    pub fn loads(&mut self, stream: u64, kernel: String) -> Outcome {
        let capture = self.streams.get(&stream).and_then(|stream| stream.capture);
        match capture.filter(|_| !self.graphs.loaded.contains(&kernel)) {
            Some(capture) => Err(self.break_capture(capture, STREAM_CAPTURE_UNSUPPORTED)),
            None => {
                self.graphs.loaded.insert(kernel);
                Ok(())
            }
        }
    }

    /// That no capture is under way during which this thread may not make an unsafe call, one that
    /// may wait for the device or use the legacy stream (`cuThreadExchangeStreamCaptureMode`).
    pub fn is_safe(&mut self) -> Outcome {
        let (me, relaxed) = (thread_number(), MODE.get() == 2);
        let mut done = Ok(());
        for capture in self.graphs.captures.values_mut() {
            if !relaxed && (capture.mode == 0 || capture.mode == 1 && capture.thread == me) {
                capture.broken = true;
                done = Err(STREAM_CAPTURE_UNSUPPORTED);
            }
        }
        done
    }

    /// That no blocking stream of a context captures, for work on its legacy stream, which would
    /// come after all of theirs.
    pub fn legacy_is_free(&mut self, context: u64) -> Outcome {
        let blocking = |stream: &&Stream| stream.context == context && stream.flags & 1 == 0;
        let captures: Vec<u64> =
            self.streams.values().filter(blocking).filter_map(|s| s.capture).collect();
        let mut broken = captures.iter().map(|&c| self.break_capture(c, STREAM_CAPTURE_IMPLICIT));
        broken.next().map_or(Ok(()), Err)
    }
}

impl Sim {
    /// `cuStreamWaitEvent` where the stream captures or the event was captured.
    pub fn captured_wait(
        &mut self,
        stream: u64,
        captured: Option<(u64, Vec<usize>)>,
        recorded: bool,
    ) -> Outcome {
        let capturing = self.streams.get(&stream).and_then(|stream| stream.capture);
        let Some((capture, front)) = captured else {
            let Some(own) = capturing.filter(|_| recorded) else { return Ok(()) };
            return Err(self.break_capture(own, STREAM_CAPTURE_ISOLATION));
        };
        if let Some(own) = capturing.filter(|own| *own != capture) {
            self.break_capture(own, STREAM_CAPTURE_MERGE);
            return Err(self.break_capture(capture, STREAM_CAPTURE_MERGE));
        }
        let Some(of) = self.graphs.captures.get_mut(&capture) else { return Err(CAPTURED_EVENT) };
        let mine = of.fronts.entry(stream).or_default();
        for node in front {
            if !mine.contains(&node) {
                mine.push(node);
            }
        }
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.capture = Some(capture);
        }
        Ok(())
    }

    fn end_capture(&mut self, stream: u64) -> Outcome<u64> {
        let capture =
            self.streams.get(&stream).and_then(|stream| stream.capture).ok_or(INVALID_VALUE)?;
        let of = self.graphs.captures.get_mut(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        if of.origin != stream {
            of.broken = true;
            return Err(STREAM_CAPTURE_UNMATCHED);
        }
        if of.mode != 2 && of.thread != thread_number() {
            return Err(STREAM_CAPTURE_WRONG_THREAD);
        }
        let done = self.graphs.captures.remove(&capture).ok_or(STREAM_CAPTURE_UNMATCHED)?;
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(capture)) {
            stream.capture = None;
        }
        if done.broken {
            return Err(STREAM_CAPTURE_INVALIDATED);
        }
        let before = ancestors(&done.nodes);
        let own = done.fronts.get(&stream).cloned().unwrap_or_default();
        let joined =
            |node: &usize| own.iter().any(|mine| mine == node || before[*mine].contains(node));
        if !done.fronts.values().flatten().all(joined) {
            return Err(STREAM_CAPTURE_UNJOINED);
        }
        self.check_graph(&done.nodes);
        self.stats.captures += 1;
        let graph = self.fresh_id();
        self.graphs.graphs.insert(graph, done.nodes);
        self.count_graphs();
        Ok(graph)
    }
}

/// `cuStreamBeginCapture_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> Status {
    call(|sim| {
        if mode > 2 {
            return Err(INVALID_VALUE);
        }
        if stream <= 1 {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        let stream = sim.stream(stream)?;
        let capture = sim.fresh_id();
        let this = sim.streams.get_mut(&stream).ok_or(INVALID_HANDLE)?;
        let context = this.context;
        if this.capture.is_some() {
            return Err(INVALID_VALUE);
        }
        this.capture = Some(capture);
        sim.healthy(context)?;
        let fronts = BTreeMap::from([(stream, Vec::new())]);
        sim.graphs.captures.insert(
            capture,
            Capture {
                origin: stream,
                mode,
                thread: thread_number(),
                broken: false,
                nodes: Vec::new(),
                fronts,
            },
        );
        Ok(())
    })
}

/// `cuStreamEndCapture`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Handle, graph: Out<Handle>) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let context = sim.streams.get(&stream).map_or(0, |stream| stream.context);
        sim.healthy(context)?;
        let _ = graph.set(0);
        let id = sim.end_capture(stream)?;
        graph.set(handle(Kind::Graph, id))
    })
}

/// `cuStreamIsCapturing`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: Handle, status: Out<u32>) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let capture = sim.streams.get(&stream).and_then(|stream| stream.capture);
        let broken =
            capture.and_then(|c| sim.graphs.captures.get(&c)).is_some_and(|capture| capture.broken);
        status.set(if broken { 2 } else { capture.is_some() as u32 })
    })
}

/// `cuThreadExchangeStreamCaptureMode`.
#[unsafe(no_mangle)]
pub extern "C" fn cuThreadExchangeStreamCaptureMode(mode: Out<u32>) -> Status {
    call(|_| {
        let new = mode.get()?;
        if new > 2 { Err(INVALID_VALUE) } else { mode.set(MODE.replace(new)) }
    })
}
