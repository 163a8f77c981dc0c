//! Items of work, and how each is carried out.
//!
//! `submit` queues them, the scheduler runs them (`run`, without the lock).

use crate::checks::race::Point;
use crate::checks::report::Findings;
use crate::kernels::launch::Launch;
use crate::machine::arrival::Arrival;
use crate::machine::faults::Fault;
use crate::machine::thread::IN_HOST_FUNCTION;
use crate::memory::Touch;
use crate::memory::arena::Span;
use crate::random::Random;
use crate::status::Status;
use std::ffi::c_void;
use std::sync::Arc;

/// Where a copy comes from.
#[derive(Clone)]
pub enum Source {
    /// Memory, read when the copy runs.
    At(usize),
    /// Page-locked memory that must not change until then, and its hash.
    Held(usize, u64),
    /// Bytes taken when the copy was enqueued (pageable host memory).
    Staged(Arc<[u8]>),
}

/// One thing to do.
#[derive(Clone)]
#[allow(missing_docs)]
pub enum Work {
    /// Nothing: a place to wait at, or for others to wait for.
    Mark,
    /// Stamps an event with the time.
    Stamp(u64),
    /// A kernel.
    Launch(Arc<Launch>),
    /// A library's computation on memory that was checked when it was enqueued.
    Native {
        run: Arc<dyn Fn() + Send + Sync>,
        fault: Option<Status>,
        hang: bool,
    },
    Copy {
        to: usize,
        from: Source,
        bytes: usize,
    },
    /// `count` values of `width` bytes.
    Fill {
        to: usize,
        width: usize,
        value: u32,
        count: usize,
    },
    /// An allocation becomes usable.
    Open(Span),
    /// The allocation at this address is freed.
    Close(usize),
    /// A function on the host, with its argument.
    Host {
        function: usize,
        data: usize,
    },
    /// A store of `width` bytes.
    Store {
        to: usize,
        value: u64,
        width: usize,
    },
    /// Waits until the value at an address compares as asked (`CU_STREAM_WAIT_VALUE_*`).
    Until {
        at: usize,
        value: u64,
        width: usize,
        flags: u32,
    },
    /// What other processes send, which may be never.
    Arrives {
        arrival: Arc<Arrival>,
        to: usize,
    },
    /// The nodes of a graph.
    Graph(Arc<Vec<GraphItem>>),
}

/// One node of a graph that is launched.
#[derive(Clone)]
#[allow(missing_docs)]
pub struct GraphItem {
    pub label: Arc<str>,
    pub work: Work,
    pub touches: Vec<Touch>,
    /// Nodes that come before, by their place in the graph.
    pub after: Vec<usize>,
}

/// Work at its place in a stream.
#[allow(missing_docs)]
pub struct Item {
    pub at: u64,
    pub label: Arc<str>,
    pub work: Work,
    pub touches: Vec<Touch>,
    /// Points that must have been reached.
    pub needs: Vec<Point>,
}

impl Work {
    /// True of what only stands in the order.
    pub fn is_mark(&self) -> bool {
        matches!(self, Work::Mark | Work::Stamp(_))
    }

    /// True for work that a fault keeps from ever ending.
    pub fn hangs(&self) -> bool {
        match self {
            Work::Launch(launch) => launch.fate.hang,
            Work::Native { hang, .. } => *hang,
            Work::Graph(nodes) => nodes.iter().any(|node| node.work.hangs()),
            _ => false,
        }
    }

    /// True where a `cuStreamWaitValue` is not met yet, or another process has not sent.
    pub fn unmet(&self) -> bool {
        if let Work::Arrives { arrival, .. } = self {
            return arrival.is_missing();
        }
        let Work::Until { at, value, width, flags } = *self else { return false };
        // SAFETY: the enqueuing call checked that the address lies in a live allocation; a client
        // that frees it while work waits on it breaks the API's rule and is reported by the free.
        let now = unsafe {
            if width == 8 {
                std::sync::atomic::AtomicU64::from_ptr(at as *mut u64)
                    .load(std::sync::atomic::Ordering::Acquire)
            } else {
                let cell = std::sync::atomic::AtomicU32::from_ptr(at as *mut u32);
                u64::from(cell.load(std::sync::atomic::Ordering::Acquire))
            }
        };
        !match flags & 3 {
            0 if width == 8 => now.wrapping_sub(value) as i64 >= 0,
            0 => (now as u32).wrapping_sub(value as u32) as i32 >= 0,
            1 => now == value,
            2 => now & value != 0,
            _ => !(now | value) != 0,
        }
    }

    /// A guess at its time on a device, in nanoseconds: a few microseconds, and 1 TB/s.
    pub fn cost(&self) -> u64 {
        match self {
            Work::Mark | Work::Stamp(_) => 100,
            Work::Launch(launch) => 2000 + launch.threads() / 64,
            Work::Copy { bytes, .. } => 2000 + (*bytes / 50) as u64,
            Work::Fill { width, count, .. } => 2000 + (width * count / 1000) as u64,
            Work::Graph(nodes) => nodes.iter().map(|node| node.work.cost()).sum(),
            _ => 2000,
        }
    }

    /// Does it. Runs on the scheduler's thread, without the lock; what it finds is told to `found`.
    pub fn run(&self, order: &mut Random, found: &mut Findings) -> Result<(), Fault> {
        match self {
            Work::Mark | Work::Stamp(_) | Work::Close(_) | Work::Until { .. } => {}
            Work::Arrives { arrival, to } => arrival.copy(*to),
            Work::Open(span) => span.poison(),
            Work::Launch(launch) => launch.run(order, found)?,
            Work::Native { run, fault, .. } => {
                if let Some(status) = *fault {
                    return Err(Fault { status, text: "a fault on demand".into() });
                }
                run();
            }
            Work::Copy { to, from, bytes } => {
                if let Source::Held(address, before) = from
                    && hash(*address, *bytes) != *before
                {
                    let text = "the page-locked source of a copy changed while the copy was queued";
                    found.push(("race", format!("{text}: {bytes} bytes at {address:#x}")));
                }
                let from = match from {
                    Source::At(address) | Source::Held(address, _) => *address as *const u8,
                    Source::Staged(staged) => staged.as_ptr(),
                };
                // SAFETY: `before` found the device side inside live allocations; the host side is
                // the caller's, who promises it until the copy has run. The ranges may overlap.
                unsafe { std::ptr::copy(from, *to as *mut u8, *bytes) };
            }
            Work::Fill { to, width, value, count } => {
                let bytes = value.to_le_bytes();
                if *width == 1 {
                    // SAFETY: `before` found the range inside a live allocation.
                    unsafe { std::ptr::write_bytes(*to as *mut u8, bytes[0], *count) };
                    return Ok(());
                }
                for i in 0..*count {
                    // SAFETY: as above.
                    unsafe {
                        std::ptr::copy_nonoverlapping(
                            bytes.as_ptr(),
                            (*to + i * width) as *mut u8,
                            *width,
                        )
                    };
                }
            }
            Work::Host { function, data } => {
                // SAFETY: `cuLaunchHostFunc` took the address as a function of this type.
                let function: extern "C" fn(*mut c_void) =
                    unsafe { std::mem::transmute::<usize, extern "C" fn(*mut c_void)>(*function) };
                IN_HOST_FUNCTION.set(true);
                function(*data as *mut c_void);
                IN_HOST_FUNCTION.set(false);
            }
            Work::Store { to, value, width } => {
                use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
                // SAFETY: `before` found the place inside a live allocation; the API asks for its
                // alignment, which the call checked.
                unsafe {
                    match width {
                        8 => AtomicU64::from_ptr(*to as *mut u64).store(*value, Ordering::Release),
                        _ => AtomicU32::from_ptr(*to as *mut u32)
                            .store(*value as u32, Ordering::Release),
                    }
                }
            }
            Work::Graph(nodes) => {
                for index in shuffled(nodes, order) {
                    nodes[index].work.run(order, found)?;
                }
            }
        }
        Ok(())
    }
}

/// A hash of memory, eight bytes at a time.
pub fn hash(address: usize, bytes: usize) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    // SAFETY: callers name page-locked memory that is allocated and that the client must not free
    // before the copy.
    let memory = unsafe { std::slice::from_raw_parts(address as *const u8, bytes) };
    for chunk in memory.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash =
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
    hash
}

/// The nodes in one of the orders that their dependencies allow.
fn shuffled(nodes: &[GraphItem], order: &mut Random) -> Vec<usize> {
    let mut left: Vec<usize> = (0..nodes.len()).collect();
    let mut done = vec![false; nodes.len()];
    let mut result = Vec::with_capacity(nodes.len());
    while !left.is_empty() {
        let free = |&i: &usize| nodes[i].after.iter().all(|&before| done[before]);
        let ready: Vec<usize> = left.iter().copied().filter(free).collect();
        // Nodes are made after those that they come after, so the first that is left is always
        // ready.
        let next = ready[order.below(ready.len())];
        done[next] = true;
        left.retain(|&i| i != next);
        result.push(next);
    }
    result
}
