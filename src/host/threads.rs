//! The requests of compute threads to the operating system: to give way to the executor's threads,
//! and to be woken on separate cores.

#![allow(unsafe_code)]

use crate::sync::plain::AtomicUsize;
#[cfg(target_os = "linux")]
use crate::sync::plain::{AtomicBool, Ordering::Relaxed};
use crate::sync::threads::Thread;
use crate::sync::{Mutex, lock};
use std::sync::Arc;

/// How long such a thread keeps its core against one that wakes, where the kernel can be told
/// (Linux 6.12). By default it was 1.4 ms on two cores (`/proc/PID/task/TID/sched`), whatever the
/// priorities.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 200_000;

/// Lowers the calling thread's priority below the executor's, and has it give way soon to whoever
/// wakes. A refusal of either leaves that as it was.
pub(crate) fn lower_priority(nice: i32) {
    #[cfg(target_os = "linux")]
    if nice != 0 {
        // SAFETY: plain system calls on the calling thread, with a place of the size that they are
        // told.
        unsafe {
            let tid = libc::syscall(libc::SYS_gettid) as libc::id_t;
            let now = libc::getpriority(libc::PRIO_PROCESS, tid);
            libc::setpriority(libc::PRIO_PROCESS, tid, now.saturating_add(nice).clamp(-20, 19));
            let mut how: libc::sched_attr = std::mem::zeroed();
            let size = size_of::<libc::sched_attr>();
            let known = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut how, size, 0) == 0;
            // Of a real-time thread the number is something else.
            if known && [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(how.sched_policy as i32))
            {
                how.sched_runtime = SLICE_NS;
                libc::syscall(libc::SYS_sched_setattr, 0, &raw const how, 0);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// The core on which the calling thread runs just now, where the system tells.
pub(super) fn core() -> Option<usize> {
    #[cfg(futensor_shuttle)]
    return Some(crate::sync::schedule::core());
    // SAFETY: a plain system call, without operands.
    #[cfg(all(target_os = "linux", not(futensor_shuttle)))]
    return usize::try_from(unsafe { libc::sched_getcpu() }).ok();
    #[cfg(not(any(target_os = "linux", futensor_shuttle)))]
    None
}

/// The cores that a compute thread may use, for the thread that wakes it.
///
/// The system puts a thread beside the one that wakes it, and moves neither while both have run
/// within half a millisecond: with two threads on one of two cores a product of [256, 256] took 3.1
/// ms instead of 0.09, since the parts begun there waited for a slice of time. So the thread is
/// kept off its waker's core until it is awake. (Not for good: threads that a user's op starts
/// would be kept with it, and beside a caller that goes on working the thread would wait while
/// another core is idle.)
pub(crate) struct Affinity {
    #[cfg(target_os = "linux")]
    thread: libc::pid_t,
    #[cfg(target_os = "linux")]
    cores: libc::cpu_set_t,
    /// The thread is kept off a core.
    #[cfg(target_os = "linux")]
    is_apart: AtomicBool,
}

#[cfg(target_os = "linux")]
const SET: usize = size_of::<libc::cpu_set_t>();

impl Affinity {
    /// The calling thread's affinity, where there is more than one core and the system tells.
    pub fn here() -> Option<Affinity> {
        #[cfg(target_os = "linux")]
        // SAFETY: plain system calls on the calling thread, with a place of the size that they are
        // told; zeros are a set.
        unsafe {
            let mut cores: libc::cpu_set_t = std::mem::zeroed();
            let known =
                libc::sched_getaffinity(0, SET, &raw mut cores) == 0 && libc::CPU_COUNT(&cores) > 1;
            let thread = libc::syscall(libc::SYS_gettid) as libc::pid_t;
            known.then_some(Affinity { thread, cores, is_apart: AtomicBool::new(false) })
        }
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Keeps the thread off the caller's core. The thread has not ended. A refusal changes nothing.
    pub fn keep_apart(&self) {
        #[cfg(target_os = "linux")]
        if let Some(core) = core().filter(|&core| core < 8 * SET) {
            let mut others = self.cores;
            // SAFETY: plain system calls, with a set of the size that they are told; the core is
            // one of a set's.
            unsafe { libc::CPU_CLR(core, &mut others) };
            // SAFETY: as above.
            if unsafe { libc::CPU_COUNT(&others) } > 0 {
                self.is_apart.store(true, Relaxed);
                // SAFETY: as above.
                unsafe { libc::sched_setaffinity(self.thread, SET, &raw const others) };
            }
        }
    }

    /// Called by the thread itself, once it is awake: the system may move it anywhere again.
    pub fn go_anywhere(&self) {
        #[cfg(target_os = "linux")]
        if self.is_apart.load(Relaxed) {
            self.is_apart.store(false, Relaxed);
            // SAFETY: a plain system call on the calling thread, with a set of the size that it is
            // told.
            unsafe { libc::sched_setaffinity(0, SET, &raw const self.cores) };
        }
    }
}

/// The threads, for the callers that wake them.
#[derive(Default)]
pub(super) struct Threads {
    pub list: Mutex<Vec<Option<Thread>>>,
    /// The affinities of the threads that have not ended.
    affinities: Mutex<Vec<Option<Arc<Affinity>>>>,
    pub running: AtomicUsize,
}

impl Threads {
    pub fn wake(&self, worker: usize) {
        if let Some(Some(thread)) = lock(&self.list).get(worker) {
            thread.unpark();
        }
    }

    /// Wakes a worker on another core, for a caller that goes on working. A caller that is about to
    /// await leaves its own core to the woken worker, which begins sooner there: an op began 5 us
    /// after its call, and 57 when another core had to wake for it.
    pub fn wake_apart(&self, worker: usize) {
        if let Some(Some(affinity)) = lock(&self.affinities).get(worker) {
            affinity.keep_apart();
        }
        self.wake(worker);
    }

    /// Another thread takes this worker's place.
    pub fn replace(&self, worker: usize, thread: Thread) {
        if let Some(slot) = lock(&self.list).get_mut(worker) {
            *slot = Some(thread);
        }
    }

    pub fn set_affinity(&self, worker: usize, affinity: Option<Arc<Affinity>>) {
        let mut affinities = lock(&self.affinities);
        let size = affinities.len().max(worker + 1);
        affinities.resize(size, None);
        affinities[worker] = affinity;
    }

    /// The thread ends: its number may soon be another thread's.
    pub fn clear_affinity(&self, worker: usize, affinity: Option<Arc<Affinity>>) {
        // A thread that was started since has another affinity.
        if let Some(own) = lock(&self.affinities).get_mut(worker)
            && own.as_ref().zip(affinity.as_ref()).is_some_and(|(a, b)| Arc::ptr_eq(a, b))
        {
            *own = None;
        }
    }

    pub fn wake_all(&self) {
        for thread in lock(&self.list).iter().flatten() {
            thread.unpark();
        }
    }
}

#[cfg(all(test, target_os = "linux", not(futensor_loom)))]
mod tests {
    use super::*;
    use std::sync::Barrier;

    /// The cores that the calling thread may use.
    fn cores() -> Vec<usize> {
        // SAFETY: a plain system call with a place of the size that it is told; zeros are a set of
        // cores.
        unsafe {
            let mut may: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, SET, &raw mut may), 0);
            (0..8 * SET).filter(|&core| libc::CPU_ISSET(core, &may)).collect()
        }
    }

    #[test]
    fn no_niceness_is_too_much() {
        let nice = std::thread::spawn(|| {
            lower_priority(1);
            lower_priority(i32::MAX);
            // SAFETY: plain system calls on the calling thread.
            unsafe {
                libc::getpriority(libc::PRIO_PROCESS, libc::syscall(libc::SYS_gettid) as libc::id_t)
            }
        });
        assert_eq!(nice.join().expect("no panic"), 19);
    }

    #[test]
    fn who_is_woken_is_off_its_wakers_core_until_it_is_awake() {
        let all = cores();
        if all.len() < 2 {
            return;
        }
        let turn = Arc::new(Barrier::new(2));
        let (tell, told) = std::sync::mpsc::channel();
        let woken = std::thread::spawn({
            let turn = turn.clone();
            move || {
                let affinity = Arc::new(Affinity::here().expect("an affinity"));
                tell.send(affinity.clone()).expect("a waker");
                turn.wait();
                let apart = cores();
                affinity.go_anywhere();
                (apart, cores())
            }
        });
        told.recv().expect("an affinity").keep_apart();
        turn.wait();
        let (apart, after) = woken.join().expect("no panic");
        assert_eq!(apart.len(), all.len() - 1, "{apart:?} of {all:?}");
        assert_eq!(after, all);
    }
}
