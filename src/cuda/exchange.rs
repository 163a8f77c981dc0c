//! The exchange of a GPU's values from rank to rank: NCCL, for `ranks/`.
//!
//! A group has a communicator, whose calls go to one stream in program order. Each two ranks that
//! send have another communicator, since a send waits on its stream until it is received. The first
//! member of a communicator makes its id, and tells the others. Nothing here waits: this file asks
//! a communicator whether it has queued its last call, and an event whether the stream has come
//! past it. The device's own thread has no part in this: operands are complete before a call
//! starts, and a result is given out when the host has seen its event, so nothing on the lanes has
//! to be ordered after it.
//!
//! An abort may wait, and has a thread of its own, which then lets go of the memory of the calls.

#![allow(unsafe_code)]

use super::device::Trouble;
use super::device::context::{device, here};
use super::device::driver_context;
use super::device::libraries::nccl::{self, Comm, Elements, Id, Nccl};
use super::device::libraries::nvidia::{Event, Events, Raw};
use super::device::memory::heap::{DeviceBuffer, Heap};
use super::device::memory::lazy_upload::{LazyUpload, Residency};
use super::device::peers::Open;
use crate::dtype::DType;
use crate::engine::exchange::{Call, Engine, Key, Through, What, Words};
use crate::engine::port::Port;
use crate::error::bytes_of;
use crate::graph::value::{Buffer, Value};
use crate::memory::Memory;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A group; for a pair of members that send, also the sender and the receiver.
type Name = (Key, Option<(usize, usize)>);

/// Ids that are kept for calls that this rank has not come to: those of all pairs, and of many
/// groups.
const IDS_MAX: usize = 1 << 16;

pub(crate) struct Exchange {
    nccl: &'static Nccl,
    port: &'static Port,
    /// The device's memory, once its thread is there, which this starts.
    heap: fn(&'static Port) -> Option<Arc<Heap>>,
    /// Allocations alone.
    rooms: Option<Raw>,
    events: Arc<Events>,
    lanes: HashMap<Name, Lane>,
    /// Where members meet of whom this rank has not heard otherwise.
    ids: HashMap<Name, Id>,
    words: Vec<(Key, Words)>,
    /// Calls that were not begun.
    refused: Vec<(Call, Through)>,
    aborting: Arc<AtomicUsize>,
}

/// A communicator, and the stream that all its calls go to.
struct Lane {
    size: usize,
    rank: usize,
    id: Option<Id>,
    begun: Option<(Comm, Raw, Arc<DeviceBuffer>)>,
    /// Its last call is not queued yet: nothing else may be asked of it meanwhile.
    settles: bool,
    /// Not called yet.
    waiting: VecDeque<Call>,
    flying: VecDeque<Flying>,
    /// Why nothing comes of it any more. The memory of its calls may be written to until it is
    /// aborted.
    broken: Option<String>,
}

/// A call that the library has.
struct Flying {
    call: Call,
    /// Where its operand was copied to, if it was not there.
    _copy: Option<Arc<DeviceBuffer>>,
    /// Behind it, once it is queued.
    event: Option<Event>,
}

impl Exchange {
    /// # Errors
    /// There is no NCCL: where it was looked for.
    pub fn new(
        port: &'static Port,
        heap: fn(&'static Port) -> Option<Arc<Heap>>,
    ) -> Result<Exchange, String> {
        Ok(Exchange {
            nccl: nccl::library()?,
            port,
            heap,
            rooms: None,
            events: Arc::new(Events::untimed()),
            lanes: HashMap::new(),
            ids: HashMap::new(),
            words: Vec::new(),
            refused: Vec::new(),
            aborting: Arc::default(),
        })
    }

    /// The device, once its thread has opened it; its context is this thread's from then on.
    fn open(&mut self) -> Option<(Arc<Heap>, Open)> {
        let heap = (self.heap)(self.port)?;
        let open = heap.open()?;
        if self.rooms.is_none() {
            driver_context::keep(heap.ordinal);
            open.context.make_current();
            self.rooms = Raw::new().ok();
        }
        Some((heap, open))
    }

    fn buffer(&mut self, bytes: usize) -> Option<Arc<DeviceBuffer>> {
        let (heap, open) = self.open()?;
        let rooms = self.rooms?;
        let buffer = heap.beside_lanes(bytes, || rooms.allocate(open.pool, bytes, bytes)).ok()?;
        // The free is ordered behind the host alone. Nothing else is on this stream.
        rooms.sleep().ok()?;
        Some(buffer)
    }

    fn lane(&mut self, name: Name, size: usize, rank: usize) -> Result<&mut Lane, String> {
        if !self.lanes.contains_key(&name) {
            let id = match rank {
                0 => {
                    let id = self.nccl.id()?;
                    let pair = name.1.map_or([u32::MAX; 2], |(from, to)| [from as u32, to as u32]);
                    let words =
                        [&pair[0].to_le_bytes()[..], &pair[1].to_le_bytes(), &id.0].concat();
                    self.words.push((name.0, words));
                    Some(id)
                }
                _ => self.ids.remove(&name),
            };
            let (waiting, flying) = (VecDeque::new(), VecDeque::new());
            self.lanes.insert(
                name,
                Lane { size, rank, id, begun: None, settles: false, waiting, flying, broken: None },
            );
        }
        self.lanes.get_mut(&name).ok_or_else(|| "there is no such communicator".into())
    }

    /// This rank's number in a group, whose opening came before all else.
    fn number(&self, group: Key) -> Result<usize, String> {
        self.lanes
            .get(&(group, None))
            .map(|lane| lane.rank)
            .ok_or_else(|| "the group was not opened".into())
    }

    /// Brings a communicator as far as it goes without a wait.
    fn advance(&mut self, lane: &mut Lane, ended: &mut Vec<(Call, Through)>) -> Through {
        let (comm, stream, scratch) = match &lane.begun {
            Some(begun) => begun.clone(),
            None => {
                let (Some(id), Some(_)) = (lane.id, self.open()) else {
                    return match self.port.life.is_ended() {
                        true => Err("the device is lost".into()),
                        false => Ok(()),
                    };
                };
                let scratch = self.buffer(DType::I32.size()).ok_or("out of memory")?;
                let stream = Raw::new().map_err(|trouble| trouble.to_string())?;
                let comm = self.nccl.open(id, lane.size, lane.rank)?;
                lane.settles = true;
                lane.begun.insert((comm, stream, scratch)).clone()
            }
        };
        lane.settles = !self.nccl.state(comm)?;
        while !lane.settles {
            if let Some(last) = lane.flying.back_mut().filter(|last| last.event.is_none()) {
                let event = self.events.take().map_err(|trouble| trouble.to_string())?;
                last.event = Some(event);
                stream.record(event).map_err(|trouble| trouble.to_string())?;
            }
            let Some(call) = lane.waiting.pop_front() else { break };
            if let What::Open(..) = call.what {
                ended.push((call, Ok(())));
                continue;
            }
            let barrier = scratch.ptr();
            let (copy, elements) = match self.elements(&call, barrier, stream) {
                Ok(there) => there,
                Err(text) => {
                    ended.push((call, Err(text)));
                    continue;
                }
            };
            if elements.reads + elements.writes == 0 {
                ended.push((call, Ok(())));
                continue;
            }
            // A pair's members are 0, the sender, and 1.
            let what = match call.what {
                What::Send(_) => What::Send(1),
                What::Recv(_) => What::Recv(0),
                ref what => what.clone(),
            };
            lane.flying.push_back(Flying { call, _copy: copy, event: None });
            // SAFETY: the call owns the memory that it reads and writes, of at least so many
            // elements of this type, and is kept until the stream has come past it, or in `let_go`
            // is through.
            lane.settles = !unsafe { self.nccl.start(comm, lane.size, &what, &elements, stream)? };
        }
        while let Some(event) = lane.flying.front().and_then(|first| first.event) {
            if !event.is_reached().map_err(|status| format!("the device is lost: {status:?}"))? {
                break;
            }
            self.events.give_back(event);
            ended.extend(lane.flying.pop_front().map(|first| (first.call, Ok(()))));
        }
        Ok(())
    }

    /// Where a call's elements are on the device; an operand that is elsewhere is copied there
    /// first.
    fn elements(
        &mut self,
        call: &Call,
        barrier: u64,
        stream: Raw,
    ) -> Result<(Option<Arc<DeviceBuffer>>, Elements), String> {
        let &Call { dtype, reads, writes, .. } = call;
        if let What::Barrier = call.what {
            let elements =
                Elements { dtype: DType::I32, reads: 1, writes: 1, from: barrier, to: barrier };
            return Ok((None, elements));
        }
        let to = call.to.as_ref().and_then(|to| device(&**to)).map_or(0, DeviceBuffer::ptr);
        let mut elements = Elements { dtype, reads, writes, from: 0, to };
        let Some(value) = call.from.as_deref().filter(|_| reads > 0) else {
            if let What::AllReduce(_) = call.what {
                elements.from = to;
            }
            return Ok((None, elements));
        };
        let first =
            |value: &Value| value.placed.as_ref().map_or(0, |placed| placed.offset) * dtype.size();
        if let Some(span) = here(value) {
            elements.from = span.ptr() + first(value) as u64;
            return Ok((None, elements));
        }
        let bytes = reads * dtype.size();
        let copy =
            self.buffer(bytes).ok_or_else(|| format!("out of memory: {}", bytes_of(bytes)))?;
        self.bring(value, dtype, &copy, stream)?;
        elements.from = copy.ptr();
        Ok((Some(copy), elements))
    }

    /// Copies a value that is not on this device.
    fn bring(
        &mut self,
        value: &Value,
        dtype: DType,
        to: &DeviceBuffer,
        stream: Raw,
    ) -> Result<(), String> {
        let said = |trouble: Trouble| trouble.to_string();
        if let Some(lazy) =
            value.buffer().and_then(|buffer| buffer.as_any().downcast_ref::<LazyUpload>())
            && let Residency::Elsewhere(from) = &*lazy.residency()
        {
            return match (from.buffer().and_then(device), self.open()) {
                (Some(other), Some((_, open))) => {
                    let there = other.heap.context().ok_or("the other device is closed")?;
                    let offset = from.placed.as_ref().map_or(0, |p| p.offset) * dtype.size();
                    let part = other.span().part(offset as u64, to.span().bytes());
                    stream.bring((to.span(), open.context), (part, there)).map_err(said)
                }
                _ => stage(from, dtype, to, stream),
            };
        }
        stage(value, dtype, to, stream)
    }

    /// Ends the communicators of a group beside everything else; nobody waits for their calls.
    fn let_go(&mut self, group: Key) {
        self.ids.retain(|name, _| name.0 != group);
        let gone: Vec<(Name, Lane)> = self.lanes.extract_if(|name, _| name.0 == group).collect();
        for (_, mut lane) in gone {
            let Some((comm, stream, _)) = lane.begun.clone() else { continue };
            let Some((_, open)) = self.open() else { continue };
            let (nccl, events, aborting) = (self.nccl, self.events.clone(), self.aborting.clone());
            aborting.fetch_add(1, SeqCst);
            let ends = move || {
                open.context.make_current();
                nccl.abort(comm);
                if stream.sleep().is_ok() {
                    lane.flying
                        .drain(..)
                        .filter_map(|f| f.event)
                        .for_each(|event| events.give_back(event));
                }
                drop(lane);
                aborting.fetch_sub(1, SeqCst);
            };
            // Without a thread all of it stays as it is.
            let _ = std::thread::Builder::new().name("futensor-aborts".into()).spawn(ends);
        }
    }
}

impl Engine for Exchange {
    fn combines(&self, _: DType) -> bool {
        true
    }

    /// Steps that have been queued may be reading it still, though its value is let go.
    fn writes_over(&self, operand: &dyn Buffer) -> bool {
        device(operand).is_some_and(DeviceBuffer::is_unread)
    }

    fn room(&mut self, _: &Arc<Memory>, bytes: usize) -> Option<Arc<dyn Buffer>> {
        self.buffer(bytes).map(|buffer| buffer as Arc<dyn Buffer>)
    }

    fn moves(&mut self) {
        if self.rooms.is_some()
            && let Some((_, open)) = self.open()
        {
            open.context.make_current();
        }
    }

    fn words(&mut self) -> Vec<(Key, Words)> {
        std::mem::take(&mut self.words)
    }

    fn hear(&mut self, group: Key, words: Words) {
        let Some((pair, id)) = words.split_at_checked(8) else { return };
        let Ok(id) = <[u8; Id::BYTES]>::try_from(id) else { return };
        let rank =
            |at: usize| u32::from_le_bytes([pair[at], pair[at + 1], pair[at + 2], pair[at + 3]]);
        let pair = (rank(0) != u32::MAX).then_some((rank(0) as usize, rank(4) as usize));
        match self.lanes.get_mut(&(group, pair)) {
            Some(lane) => lane.id = lane.id.or(Some(Id(id))),
            // Of those that nobody has asked for here; a member has no more.
            None if self.ids.len() < IDS_MAX => drop(self.ids.insert((group, pair), Id(id))),
            None => {}
        }
    }

    fn start(&mut self, call: Call) {
        let group = call.group;
        let name = match call.what {
            What::Open(ref ranks, me) => {
                let rank = ranks.iter().position(|&rank| rank == me).unwrap_or(0);
                Ok(((group, None), ranks.len(), rank))
            }
            What::Send(to) => self.number(group).map(|me| ((group, Some((me, to))), 2, 0)),
            What::Recv(from) => self.number(group).map(|me| ((group, Some((from, me))), 2, 1)),
            _ => self.number(group).map(|me| ((group, None), 0, me)),
        };
        match name.and_then(|(name, size, rank)| self.lane(name, size, rank)) {
            Ok(lane) if lane.broken.is_none() => lane.waiting.push_back(call),
            Ok(lane) => {
                let text = lane.broken.clone().unwrap_or_default();
                self.refused.push((call, Err(text)));
            }
            Err(text) => self.refused.push((call, Err(text))),
        }
    }

    fn poll(&mut self, ended: &mut Vec<(Call, Through)>) {
        ended.append(&mut self.refused);
        let mut lanes = std::mem::take(&mut self.lanes);
        for lane in lanes.values_mut().filter(|lane| !lane.is_idle()) {
            if let Err(text) = self.advance(lane, ended) {
                ended.extend(lane.fail(text));
            }
        }
        self.lanes = lanes;
    }

    fn abort(&mut self, group: Key) {
        self.let_go(group);
    }

    fn free(&mut self, group: Key) {
        self.let_go(group);
    }

    fn in_flight(&self) -> usize {
        let busy = self.lanes.values().filter(|lane| !lane.is_idle());
        busy.map(|lane| lane.waiting.len() + lane.flying.len()).sum()
    }

    fn finish(&mut self, _: bool) -> bool {
        // The driver gives a process's things back when it ends; a thread that is still in there
        // may not come out.
        self.aborting.load(SeqCst) == 0
    }
}

impl Drop for Lane {
    /// Calls under way still read and write memory of their own, which stays: nobody waits for
    /// it.
    fn drop(&mut self) {
        if !self.flying.is_empty() {
            std::mem::forget((std::mem::take(&mut self.flying), self.begun.take()));
        }
    }
}

impl Lane {
    fn is_idle(&self) -> bool {
        self.broken.is_some() || self.waiting.is_empty() && self.flying.is_empty()
    }

    /// Ends all its calls, whose memory stays here.
    fn fail(&mut self, text: String) -> Vec<(Call, Through)> {
        self.broken = Some(text.clone());
        let flying = self.flying.iter_mut().map(|flying| {
            let (from, to) = (flying.call.from.take(), flying.call.to.take());
            let call = Call { what: flying.call.what.clone(), from: None, to: None, ..flying.call };
            (flying.call.from, flying.call.to) = (from, to);
            call
        });
        let all: Vec<Call> = flying.chain(self.waiting.drain(..)).collect();
        all.into_iter().map(|call| (call, Err(text.clone()))).collect()
    }
}

/// Copies from host memory, which the call keeps until the stream has come past it.
fn stage(value: &Value, dtype: DType, to: &DeviceBuffer, stream: Raw) -> Result<(), String> {
    // SAFETY: a value in host memory, row-major, of as many bytes as there is room for.
    unsafe { stream.upload(to.span(), value.first(dtype)) }.map_err(|trouble| trouble.to_string())
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::any::Any;

    #[derive(Debug)]
    struct Room;

    impl Buffer for Room {
        fn host(&self) -> Option<*mut u8> {
            None
        }
        fn bytes(&self) -> usize {
            0
        }
        fn as_any(&self) -> &dyn Any {
            self
        }
    }

    /// A lane with one call, under way or not, and where that writes to.
    fn lane(under_way: bool) -> (Lane, Arc<Room>) {
        let room = Arc::new(Room);
        let (ticket, group, to) = (Key(0, 0), Key(0, 1), Some(room.clone() as Arc<dyn Buffer>));
        let call = Call {
            ticket,
            group,
            what: What::Recv(0),
            dtype: DType::F32,
            reads: 0,
            writes: 1,
            from: None,
            to,
        };
        let (mut waiting, mut flying) = (VecDeque::new(), VecDeque::new());
        match under_way {
            true => flying.push_back(Flying { call, _copy: None, event: None }),
            false => waiting.push_back(call),
        }
        (
            Lane {
                size: 2,
                rank: 1,
                id: None,
                begun: None,
                settles: false,
                waiting,
                flying,
                broken: None,
            },
            room,
        )
    }

    #[test]
    fn what_a_lane_has_under_way_at_its_end_stays_and_the_rest_goes() {
        for under_way in [false, true] {
            let (mut failed, of_failed) = lane(under_way);
            let (ends, of_ends) = lane(under_way);
            drop(failed.fail("it broke".into()));
            drop((failed, ends));
            for room in [of_failed, of_ends] {
                assert_eq!(Arc::strong_count(&room), 1 + usize::from(under_way));
            }
        }
    }
}
