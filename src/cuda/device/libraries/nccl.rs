//! NCCL, by its symbols: communicators that never block the caller, and the calls queued on them.
//!
//! The first group of GPUs looks for NCCL, and nothing ever needs it. All of version 2.17 and later
//! has these calls. (cudarc's own loader does not look for `libnccl.so.2`, the one name that
//! NVIDIA's wheel has.)

#![allow(unsafe_code)]

use super::nvidia::Raw;
use super::search::{self, Status, calls};
use crate::dtype::DType;
use crate::engine::exchange::{Combine, What};
use crate::process_end;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// An object of the library's.
type Object = *mut c_void;
type At = *const c_void;
type Stream = *mut c_void;

/// `ncclUniqueId`: where the members of a communicator meet.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Id(pub [u8; Id::BYTES]);

impl Id {
    pub const BYTES: usize = 128;
}

/// `ncclConfig_v21700`: later ones begin with it, and the library goes by the version in it.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

const MAGIC: c_uint = 0xcafe_beef;
const VERSION: c_uint = 21700;
const UNDEFINED: c_int = c_int::MIN;
/// `ncclInProgress`: the call goes on by itself.
const IN_PROGRESS: Status = 7;

calls! {
    version = b"ncclGetVersion\0": fn(*mut c_int);
    id = b"ncclGetUniqueId\0": fn(*mut Id);
    open = b"ncclCommInitRankConfig\0": fn(*mut Object, c_int, Id, c_int, *mut Config);
    state = b"ncclCommGetAsyncError\0": fn(Object, *mut Status);
    abort = b"ncclCommAbort\0": fn(Object);
    all_reduce = b"ncclAllReduce\0": fn(At, Object, usize, c_int, c_int, Object, Stream);
    reduce = b"ncclReduce\0": fn(At, Object, usize, c_int, c_int, c_int, Object, Stream);
    broadcast = b"ncclBroadcast\0": fn(At, Object, usize, c_int, c_int, Object, Stream);
    all_gather = b"ncclAllGather\0": fn(At, Object, usize, c_int, Object, Stream);
    reduce_scatter = b"ncclReduceScatter\0": fn(At, Object, usize, c_int, c_int, Object, Stream);
    send = b"ncclSend\0": fn(At, usize, c_int, c_int, Object, Stream);
    recv = b"ncclRecv\0": fn(Object, usize, c_int, c_int, Object, Stream);
    group_start = b"ncclGroupStart\0": fn();
    group_end = b"ncclGroupEnd\0": fn();
}

/// The library that is here.
pub(crate) struct Nccl {
    calls: Calls,
    last_error: unsafe extern "C" fn(Object) -> *const c_char,
    /// Stays open.
    _library: Library,
}

/// The library, looked for once.
///
/// # Errors
/// Where was looked, or which version was found.
pub(crate) fn library() -> Result<&'static Nccl, String> {
    static FOUND: OnceLock<Result<Nccl, String>> = OnceLock::new();
    let find = || {
        let mut why = search::missing("nccl");
        for library in search::all("nccl") {
            match Nccl::of(library) {
                Ok(found) => return Ok(found),
                Err(other) => why = other,
            }
        }
        Err(why)
    };
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// A communicator. One thread at a time uses it.
#[derive(Clone, Copy)]
pub(crate) struct Comm(Object);

// SAFETY: a handle; the library ties it to no thread.
unsafe impl Send for Comm {}

/// Device memory that a call reads and writes, with the number and type of the elements.
pub(crate) struct Elements {
    pub dtype: DType,
    pub reads: usize,
    pub writes: usize,
    /// Address 0 where there is none.
    pub from: u64,
    pub to: u64,
}

fn number(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 0,
        DType::U8 | DType::Bool => 1,
        // Types for storage are moved, and not combined.
        DType::F8E4M3 | DType::F8E5M2 => 1,
        DType::I32 => 2,
        DType::U32 => 3,
        DType::I64 => 4,
        DType::U64 => 5,
        DType::F16 | DType::I16 | DType::U16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

fn op(combine: Combine) -> c_int {
    match combine {
        Combine::Sum => 0,
        Combine::Product => 1,
        Combine::Max => 2,
        Combine::Min => 3,
    }
}

impl Nccl {
    fn of(library: Library) -> Result<Nccl, String> {
        let calls = Calls::of(&library)?;
        // SAFETY: the type that the library's header gives it.
        let last_error =
            *unsafe { library.get(b"ncclGetLastError\0") }.map_err(|e| e.to_string())?;
        let mut version = 0;
        // SAFETY: the place can be written.
        unsafe { (calls.version)(&mut version) };
        if version < VERSION as c_int {
            return Err(format!("NCCL {version} was found, but {VERSION} or later is needed"));
        }
        Ok(Nccl { calls, last_error, _library: library })
    }

    /// True where a call is through, false where it goes on by itself.
    fn check(&self, comm: Object, status: Status) -> Result<bool, String> {
        if status == 0 || status == IN_PROGRESS {
            return Ok(status == 0);
        }
        // SAFETY: a communicator of this library's or none; the text is the library's, and ends.
        let text = unsafe {
            let text = (self.last_error)(comm);
            if text.is_null() { "".into() } else { CStr::from_ptr(text).to_string_lossy() }
        };
        Err(format!("NCCL says {status} {text}").trim_end().to_owned())
    }

    /// Where a new communicator's members are to meet: at this process.
    pub fn id(&self) -> Result<Id, String> {
        let mut id = Id([0; Id::BYTES]);
        // SAFETY: the place can be written.
        let status = unsafe { (self.calls.id)(&mut id) };
        process_end::guard();
        self.check(null_mut(), status).map(|_| id)
    }

    /// Begins to open a communicator on the current context's GPU: [`state`](Self::state) says when
    /// it is.
    pub fn open(&self, id: Id, size: usize, rank: usize) -> Result<Comm, String> {
        let mut config = Config {
            size: size_of::<Config>(),
            magic: MAGIC,
            version: VERSION,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: null(),
            split_share: UNDEFINED,
        };
        let mut comm = null_mut();
        // SAFETY: the places can be written; the library copies the rest.
        let status =
            unsafe { (self.calls.open)(&mut comm, size as c_int, id, rank as c_int, &mut config) };
        process_end::guard();
        self.check(null_mut(), status).map(|_| Comm(comm))
    }

    /// True where all that was asked of it is queued; an error ends it for all.
    pub fn state(&self, comm: Comm) -> Result<bool, String> {
        let mut state = 0;
        // SAFETY: a communicator that was not ended, here and below; the place can be written.
        let status = unsafe { (self.calls.state)(comm.0, &mut state) };
        self.check(comm.0, status).and_then(|_| self.check(comm.0, state))
    }

    /// Queues a call on a stream. True where that is done; else [`state`](Self::state) says when.
    ///
    /// # Safety
    /// So many elements can be read and written there in the stream's order, until it has come past
    /// the call, or the communicator was aborted and the stream is through.
    pub unsafe fn start(
        &self,
        comm: Comm,
        size: usize,
        what: &What,
        elements: &Elements,
        stream: Raw,
    ) -> Result<bool, String> {
        let &Elements { dtype, reads, writes, from, to } = elements;
        let (of, bytes) = (number(dtype), dtype.size());
        let (from, to, comm, on) = (from as At, to as Object, comm.0, stream.handle().cast());
        let calls = &self.calls;
        // SAFETY: the caller's promise.
        let status = unsafe {
            match *what {
                What::Open(..) => return Err("a communicator is opened by itself".into()),
                What::Barrier => {
                    (calls.all_reduce)(from, to, reads, of, op(Combine::Sum), comm, on)
                }
                What::AllReduce(how) => (calls.all_reduce)(from, to, reads, of, op(how), comm, on),
                What::Reduce(how, root) => {
                    (calls.reduce)(from, to, reads, of, op(how), root as c_int, comm, on)
                }
                What::Broadcast(root) => {
                    // The owner of the elements keeps them.
                    let to = if to.is_null() { from.cast_mut() } else { to };
                    (calls.broadcast)(from, to, reads, of, root as c_int, comm, on)
                }
                What::AllGather => (calls.all_gather)(from, to, reads, of, comm, on),
                What::ReduceScatter(how) => {
                    (calls.reduce_scatter)(from, to, writes, of, op(how), comm, on)
                }
                What::AllToAll => {
                    let each = reads / size;
                    (calls.group_start)();
                    for rank in 0..size {
                        let (from, to) =
                            (from.byte_add(rank * each * bytes), to.byte_add(rank * each * bytes));
                        (calls.send)(from, each, of, rank as c_int, comm, on);
                        (calls.recv)(to, each, of, rank as c_int, comm, on);
                    }
                    (calls.group_end)()
                }
                What::Send(rank) => (calls.send)(from, reads, of, rank as c_int, comm, on),
                What::Recv(rank) => (calls.recv)(to, writes, of, rank as c_int, comm, on),
            }
        };
        self.check(comm, status)
    }

    /// Ends a communicator in any state. The call may wait, and is the communicator's last.
    pub fn abort(&self, comm: Comm) {
        // SAFETY: as above.
        unsafe { (self.calls.abort)(comm.0) };
    }
}
