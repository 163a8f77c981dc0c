//! Races in shared memory: two threads of a block use the same bytes, one of them writes, and no
//! barrier stands between, whatever came of it.
//!
//! Where it is asked for, kernels are compiled so that they tell of each access (`shim/shared.h`),
//! some ten times slower. A clock ticks each time that waiting threads are let go. For each byte
//! the last write and the last reads of two threads are kept; two accesses are in order where,
//! after the first, both threads were let go from the same barrier or warp collective.

use crate::kernels::abi::Hooks;
use crate::kernels::image::Image;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::AtomicBool;

/// Whether what is compiled from now on tells of its accesses: `FUTENSOR_SIM_SHARED=1`, or asked
/// for.
pub static WATCHED: LazyLock<AtomicBool> = LazyLock::new(|| {
    AtomicBool::new(std::env::var_os("FUTENSOR_SIM_SHARED").is_some_and(|v| v == "1"))
});

/// The one table of them.
pub const HOOKS: Hooks = Hooks { shared, touch };

/// An access: the thread, and the clock, which is 0 for none.
type Point = (u32, u32);

#[derive(Clone, Copy, Default)]
struct Byte {
    written: Point,
    /// By two threads, the later one first.
    read: [Point; 2],
}

#[derive(Default)]
struct Watch {
    /// A kernel that tells of its accesses runs.
    on: bool,
    /// Of the block that runs.
    epoch: u64,
    clock: u32,
    /// When all threads were last let go.
    barrier: u32,
    /// When two lanes of a warp were last let go together.
    joint: Vec<[[u32; 32]; 32]>,
    pieces: Vec<(Range<usize>, Vec<Byte>)>,
    dynamic: (usize, usize),
    found: BTreeSet<String>,
}

thread_local! {
    static WATCH: RefCell<Watch> = RefCell::default();
}

/// A kernel begins, with so many bytes of dynamic shared memory.
pub fn begin(image: &Image, dynamic: (usize, usize)) {
    let on = image.is_watched();
    WATCH.with_borrow_mut(|watch| {
        *watch = Watch { on, dynamic, ..Watch::default() };
    });
}

/// What was found since the kernel began.
pub fn end() -> BTreeSet<String> {
    WATCH.with_borrow_mut(|watch| {
        watch.on = false;
        std::mem::take(&mut watch.found)
    })
}

/// All threads are let go.
pub fn barrier() {
    WATCH.with_borrow_mut(|watch| {
        watch.clock += 1;
        watch.barrier = watch.clock;
    });
}

/// Lanes of a warp are let go.
pub fn collective(warp: usize, lanes: u32) {
    WATCH.with_borrow_mut(|watch| {
        if !watch.on {
            return;
        }
        watch.clock += 1;
        if watch.joint.len() <= warp {
            watch.joint.resize(warp + 1, [[0; 32]; 32]);
        }
        let all = || (0..32).filter(|lane| lanes >> lane & 1 == 1);
        for (a, b) in all().flat_map(|a| all().map(move |b| (a, b))) {
            watch.joint[warp][a][b] = watch.clock;
        }
    });
}

extern "C" fn shared(epoch: u64, at: usize, bytes: usize) {
    WATCH.with_borrow_mut(|watch| watch.of(epoch).add(at, bytes));
}

extern "C" fn touch(epoch: u64, thread: u32, at: usize, bytes: usize, write: u32) {
    WATCH.with_borrow_mut(|watch| watch.of(epoch).touch(thread, at, bytes, write != 0));
}

impl Watch {
    /// In a block, which may have just begun.
    fn of(&mut self, epoch: u64) -> &mut Watch {
        if self.epoch != epoch {
            (self.epoch, self.clock, self.barrier) = (epoch, 1, 0);
            self.joint.clear();
            self.pieces.clear();
            self.add(self.dynamic.0, self.dynamic.1);
        }
        self
    }

    fn add(&mut self, at: usize, bytes: usize) {
        self.pieces.push((at..at + bytes, vec![Byte::default(); bytes]));
    }

    fn touch(&mut self, thread: u32, at: usize, bytes: usize, write: bool) {
        let Some((range, state)) = self.pieces.iter_mut().find(|(range, _)| range.contains(&at))
        else {
            return;
        };
        let from = at - range.start;
        let (clock, barrier, joint) = (self.clock, self.barrier, &self.joint);
        let races = |(other, then): Point| {
            let together = || {
                joint
                    .get(thread as usize / 32)
                    .map_or(0, |j| j[other as usize % 32][thread as usize % 32])
            };
            let same_warp = other / 32 == thread / 32;
            then > 0 && other != thread && then >= barrier && !(same_warp && then < together())
        };
        let end = (from + bytes).min(state.len());
        for byte in &mut state[from..end] {
            let reads = byte.read.iter().filter(|_| write);
            if let Some(&(other, _)) =
                [byte.written].iter().chain(reads).find(|&&point| races(point))
            {
                let verb = if write { "writes" } else { "reads" };
                self.found.insert(format!(
                    "thread {thread} {verb} byte {from} of shared memory, which thread {other} \
                        uses, and no barrier stands between"
                ));
                break;
            }
        }
        for byte in &mut state[from..end] {
            if write {
                *byte = Byte { written: (thread, clock), ..Byte::default() };
            } else {
                if byte.read[0].0 != thread {
                    byte.read[1] = byte.read[0];
                }
                byte.read[0] = (thread, clock);
            }
        }
    }
}
