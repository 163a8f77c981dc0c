//! The stand-in for NCCL: communicators between processes, whose members' elements meet at whoever
//! made the id (`hub`).
//!
//! A call is two items of its stream: what the member brings goes out, then what it gets comes in,
//! which may be never: then the stream stands still until the communicator is aborted, as a GPU's
//! does. As with the real one a member that dies is told to nobody. Every third call is queued only
//! after its communicator was asked twice how it is; who asks for anything else meanwhile is
//! reported (kind `nccl`), as is a blocking communicator. Calls that do not meet are an error here,
//! where the real one hangs or mixes up what it carries.
//!
//! `FUTENSOR_SIM_NCCL`: `hang` (no communicator is ever open), `error` (each fails after its third
//! call), `mute` (calls that do not meet stand still).

use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::libraries::kept;
use crate::machine::arrival::Arrival;
use crate::machine::entry::call;
use crate::machine::sim::{Sim, lock};
use crate::machine::work::Work;
use crate::memory::Touch;
use crate::status::Outcome;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ffi::c_char;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};

mod hub;

use hub::{Ask, Reply};

/// A `ncclResult_t`.
pub type Result = i32;
const SUCCESS: Result = 0;
const UNHANDLED: Result = 1;
const SYSTEM_ERROR: Result = 2;
const INVALID_ARGUMENT: Result = 4;
const INVALID_USAGE: Result = 5;
const REMOTE_ERROR: Result = 6;
const IN_PROGRESS: Result = 7;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

/// What begins every `ncclConfig_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: i32,
}

/// What a call puts on its stream.
struct Asked {
    name: &'static str,
    comm: u64,
    stream: Handle,
    ask: Ask,
    /// What goes out, and where what comes in goes: address and bytes.
    from: (usize, usize),
    to: (usize, usize),
}

#[derive(Default)]
struct Comm {
    size: usize,
    link: Option<Arc<TcpStream>>,
    /// What it says of itself.
    state: Result,
    /// Calls so far.
    asked: u64,
    /// Whose answers are awaited, by number.
    open: BTreeMap<u64, Arc<Arrival>>,
    /// Not queued yet, and how often is to be asked before.
    held: Option<(u32, Vec<Asked>)>,
}

static COMMS: LazyLock<Mutex<BTreeMap<u64, Comm>>> = LazyLock::new(Mutex::default);

thread_local! {
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    static GROUPED: RefCell<Vec<Asked>> = const { RefCell::new(Vec::new()) };
}

fn comms() -> MutexGuard<'static, BTreeMap<u64, Comm>> {
    static END: Once = Once::new();
    kept(&COMMS, &END)
}

fn fault() -> String {
    std::env::var("FUTENSOR_SIM_NCCL").unwrap_or_default()
}

/// `ncclGetVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetVersion(version: Out<i32>) -> Result {
    if version.set(22807).is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}

/// `ncclGetLastError`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_: Handle) -> *const c_char {
    c"of a stand-in".as_ptr()
}

/// `ncclGetUniqueId`: this process is where the members meet.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGetUniqueId(to: Out<UniqueId>) -> Result {
    let Ok(port) = hub::open() else { return SYSTEM_ERROR };
    let mut bytes = [0; 128];
    bytes[..2].copy_from_slice(&port.to_le_bytes());
    if to.set(UniqueId(bytes)).is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}

/// `ncclCommInitRankConfig`: goes on by itself.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommInitRankConfig(
    comm: Out<Handle>,
    size: i32,
    at: UniqueId,
    rank: i32,
    config: In<Config>,
) -> Result {
    let Ok(config) = config.get() else { return INVALID_ARGUMENT };
    let known = config.magic == 0xcafe_beef
        && config.size >= size_of::<Config>()
        && config.version >= 21400;
    if !known || rank < 0 || rank >= size {
        return INVALID_ARGUMENT;
    }
    let mut sim = lock();
    if config.blocking != 0 {
        sim.report("nccl", "a communicator that blocks".into());
    }
    if sim.healthy_current().is_err() {
        return UNHANDLED;
    }
    let number = sim.fresh_id();
    drop(sim);
    let link = TcpStream::connect(("127.0.0.1", u16::from_le_bytes([at.0[0], at.0[1]])));
    let Ok(link) = link.and_then(|link| link.set_nodelay(true).map(|()| Arc::new(link))) else {
        return SYSTEM_ERROR;
    };
    let state = IN_PROGRESS;
    comms().insert(
        number,
        Comm { size: size as usize, link: Some(link.clone()), state, ..Comm::default() },
    );
    let hello = [(rank as u32).to_le_bytes(), (size as u32).to_le_bytes()].concat();
    if (&*link).write_all(&hello).is_err() || comm.set(handle(Kind::Nccl, number)).is_err() {
        return SYSTEM_ERROR;
    }
    std::thread::spawn(move || {
        while let Some(reply) = Reply::read(&link) {
            let mut comms = comms();
            let Some(comm) = comms.get_mut(&number) else { return };
            match reply {
                Reply::Ready if fault() == "hang" => {}
                Reply::Ready => comm.state = SUCCESS,
                Reply::Wrong => comm.state = INVALID_USAGE,
                Reply::Gives(call, bytes) => {
                    comm.open
                        .remove(&call)
                        .into_iter()
                        .for_each(|arrival| arrival.put(bytes.clone()));
                }
            }
        }
    });
    IN_PROGRESS
}

/// `ncclCommGetAsyncError`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommGetAsyncError(comm: Handle, state: Out<Result>) -> Result {
    let Ok(number) = id(Kind::Nccl, comm) else { return INVALID_ARGUMENT };
    let (now, due) = {
        let mut comms = comms();
        let Some(comm) = comms.get_mut(&number) else { return INVALID_ARGUMENT };
        match &mut comm.held {
            Some((0, _)) => (comm.state, comm.held.take().map(|(_, asked)| asked)),
            Some((left, _)) => {
                *left -= 1;
                (IN_PROGRESS, None)
            }
            None => (comm.state, None),
        }
    };
    if let Some(asked) = due
        && enqueue(asked) != SUCCESS
    {
        return UNHANDLED;
    }
    if state.set(now).is_ok() { SUCCESS } else { INVALID_ARGUMENT }
}

/// `ncclCommAbort`: what is on streams ends, and brings nothing.
#[unsafe(no_mangle)]
pub extern "C" fn ncclCommAbort(comm: Handle) -> Result {
    let Ok(number) = id(Kind::Nccl, comm) else { return INVALID_ARGUMENT };
    let Some(gone) = comms().remove(&number) else { return INVALID_ARGUMENT };
    gone.link.iter().for_each(|link| drop(link.shutdown(Shutdown::Both)));
    gone.open.values().for_each(|arrival| arrival.put(Vec::new()));
    SUCCESS
}

/// `ncclGroupStart`.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> Result {
    DEPTH.set(DEPTH.get() + 1);
    SUCCESS
}

/// `ncclGroupEnd`: all that was asked since is one.
#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupEnd() -> Result {
    let Some(depth) = DEPTH.get().checked_sub(1) else { return INVALID_USAGE };
    DEPTH.set(depth);
    if depth > 0 { SUCCESS } else { hold(GROUPED.take()) }
}

fn ask(asked: Asked) -> Result {
    if DEPTH.get() > 0 {
        GROUPED.with_borrow_mut(|all| all.push(asked));
        return SUCCESS;
    }
    hold(vec![asked])
}

/// Has calls queued, now or once that was asked for.
fn hold(asked: Vec<Asked>) -> Result {
    let Some(first) = asked.first() else { return SUCCESS };
    let name = first.name;
    {
        let mut comms = comms();
        let Some(comm) = comms.get_mut(&first.comm) else { return INVALID_ARGUMENT };
        if comm.state != SUCCESS && comm.state != IN_PROGRESS {
            return comm.state;
        }
        if comm.state == IN_PROGRESS || comm.held.is_some() {
            drop(comms);
            lock().report("nccl", format!("{name} while its communicator is at something else"));
            return INVALID_USAGE;
        }
        comm.asked += 1;
        if comm.asked == 3 && fault() == "error" {
            comm.state = REMOTE_ERROR;
        }
        if comm.asked % 3 == 0 {
            comm.held = Some((2, asked));
            return IN_PROGRESS;
        }
    }
    enqueue(asked)
}

/// Puts calls on their streams: what goes out first, so that members whose calls are one wait for
/// nobody's.
fn enqueue(asked: Vec<Asked>) -> Result {
    let status = call(|sim| {
        let mut comes = Vec::new();
        for Asked { name, comm, stream, ask, from, to } in asked {
            let stream = sim.stream(stream)?;
            let reads = touch(sim, name, from, false)?;
            let writes = touch(sim, name, to, true)?;
            let arrival = Arc::new(Arrival::default());
            let (number, link) = {
                let mut comms = comms();
                let comm = comms.get_mut(&comm).ok_or(crate::status::INVALID_HANDLE)?;
                let number = comm
                    .open
                    .last_key_value()
                    .map_or(0, |(last, _)| last + 1)
                    .max(comm.asked << 16);
                comm.open.insert(number, arrival.clone());
                (number, comm.link.clone())
            };
            let run = move || {
                let bytes = match from {
                    (_, 0) => &[][..],
                    // SAFETY: the call named so many bytes of a live allocation.
                    (at, bytes) => unsafe { std::slice::from_raw_parts(at as *const u8, bytes) },
                };
                link.iter().for_each(|link| ask.write(link, number, bytes));
            };
            let goes = Work::Native { run: Arc::new(run), fault: None, hang: false };
            sim.submit(stream, format!("{name}, what goes out"), goes, reads)?;
            comes.push((stream, name, Work::Arrives { arrival, to: to.0 }, writes));
        }
        for (stream, name, work, writes) in comes {
            sim.submit(stream, format!("{name}, what comes in"), work, writes)?;
        }
        Ok(())
    });
    if status == 0 { SUCCESS } else { UNHANDLED }
}

fn touch(
    sim: &mut Sim,
    name: &str,
    (at, bytes): (usize, usize),
    write: bool,
) -> Outcome<Vec<Touch>> {
    if bytes == 0 { Ok(Vec::new()) } else { Ok(vec![sim.touch(name, at, bytes, write)?]) }
}

/// A call: what it says, and where what goes out and what comes in lies, by the bytes of an element
/// and the number of members.
macro_rules! calls {
    ($($name:ident($($arg:ident: $ty:ty),*) of $dtype:ident =
        |$n:ident, $size:ident| $what:expr;)*) => {$(
        #[doc = concat!("`", stringify!($name), "`.")]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty,)* comm: Handle, stream: Handle) -> Result {
            let (Ok(comm), Some($n)) = (id(Kind::Nccl, comm), hub::width($dtype)) else {
                return INVALID_ARGUMENT;
            };
            let Some($size) = comms().get(&comm).map(|comm| comm.size) else {
                return INVALID_ARGUMENT;
            };
            let (kind, op, root, count, from, to) = $what;
            let asks = Ask { kind, dtype: $dtype, op, root, count: count as u64 };
            ask(Asked { name: stringify!($name), comm, stream, ask: asks, from, to })
        }
    )*};
}

calls! {
    ncclAllReduce(from: usize, to: usize, count: usize, dtype: i32, op: i32) of dtype =
        |n, _size| (hub::ALL_REDUCE, op, 0, count, (from, count * n), (to, count * n));
    ncclReduce(from: usize, to: usize, count: usize, dtype: i32, op: i32, root: i32) of dtype =
        |n, _size| {
            let room = if to == 0 { 0 } else { count * n };
            (hub::REDUCE, op, root, count, (from, count * n), (to, room))
        };
    ncclBroadcast(from: usize, to: usize, count: usize, dtype: i32, root: i32) of dtype =
        |n, _size| (hub::BROADCAST, 0, root, count, (from, count * n), (to, count * n));
    ncclAllGather(from: usize, to: usize, count: usize, dtype: i32) of dtype =
        |n, size| (hub::ALL_GATHER, 0, 0, count, (from, count * n), (to, count * n * size));
    ncclReduceScatter(from: usize, to: usize, count: usize, dtype: i32, op: i32) of dtype =
        |n, size| (hub::REDUCE_SCATTER, op, 0, count, (from, count * n * size), (to, count * n));
    ncclSend(from: usize, count: usize, dtype: i32, peer: i32) of dtype =
        |n, _size| (hub::SEND, 0, peer, count, (from, count * n), (0, 0));
    ncclRecv(to: usize, count: usize, dtype: i32, peer: i32) of dtype =
        |n, _size| (hub::RECV, 0, peer, count, (0, 0), (to, count * n));
}
