//! What a compute thread asks of the operating system: to give way to the executor's, and to stay on a core.

#![allow(unsafe_code)]

/// How long such a thread keeps its core against one that wakes, where the kernel can be told (Linux 6.12).
/// By default it was 1.4 ms on two cores (`/proc/PID/task/TID/sched`), whatever the priorities.
#[cfg(target_os = "linux")]
const SLICE_NS: u64 = 200_000;

/// Lowers the calling thread's priority below the executor's, and has it give way soon to whoever wakes.
/// A refusal of either leaves that as it was.
pub(crate) fn lower_priority(nice: i32) {
    #[cfg(target_os = "linux")]
    if nice != 0 {
        // SAFETY: plain system calls on the calling thread, with a place of the size that they are told.
        unsafe {
            let tid = libc::syscall(libc::SYS_gettid) as libc::id_t;
            let now = libc::getpriority(libc::PRIO_PROCESS, tid);
            libc::setpriority(libc::PRIO_PROCESS, tid, (now + nice).min(19));
            let mut how: libc::sched_attr = std::mem::zeroed();
            let size = size_of::<libc::sched_attr>();
            let known = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut how, size, 0) == 0;
            // Of a real-time thread the number is something else.
            if known && [libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(how.sched_policy as i32)) {
                how.sched_runtime = SLICE_NS;
                libc::syscall(libc::SYS_sched_setattr, 0, &raw const how, 0);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = nice;
}

/// Keeps the calling thread on one of the cores that it may use, the `number`th in turn, where `threads` are to have
/// one each. Fewer threads than cores go where the system puts them, and so do more. A refusal leaves that as it was.
///
/// A thread that another wakes may be put beside it, and while both have run within half a millisecond neither is
/// moved: with two threads on one of two cores a product of [256, 256] took 3.1 ms instead of 0.09, for what had been
/// begun there waited for a slice of time.
pub(crate) fn keep_to_core(number: usize, threads: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: plain system calls on the calling thread, with places of the size that they are told; zeros are a
    // set of cores.
    unsafe {
        const SIZE: usize = size_of::<libc::cpu_set_t>();
        let mut may: libc::cpu_set_t = std::mem::zeroed();
        let known = libc::sched_getaffinity(0, SIZE, &raw mut may) == 0;
        if known && threads > 1 && libc::CPU_COUNT(&may) as usize == threads {
            let mut cores = (0..8 * SIZE).filter(|&core| libc::CPU_ISSET(core, &may));
            if let Some(core) = cores.nth(number % threads) {
                let mut own: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(core, &mut own);
                libc::sched_setaffinity(0, SIZE, &raw const own);
            }
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (number, threads);
}

#[cfg(all(test, target_os = "linux", not(futensor_loom)))]
mod tests {
    use super::*;

    /// The cores that the calling thread may use.
    fn cores() -> Vec<usize> {
        // SAFETY: a plain system call with a place of the size that it is told; zeros are a set of cores.
        unsafe {
            let mut may: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut may), 0);
            (0..8 * size_of::<libc::cpu_set_t>()).filter(|&core| libc::CPU_ISSET(core, &may)).collect()
        }
    }

    #[test]
    fn as_many_threads_as_cores_have_one_each_and_others_go_anywhere() {
        let all = cores();
        let kept = |number, threads| {
            let run = move || {
                keep_to_core(number, threads);
                cores()
            };
            std::thread::spawn(run).join().unwrap()
        };
        for (number, core) in all.iter().enumerate() {
            assert_eq!(kept(number, all.len()), [*core]);
            assert_eq!(kept(number + all.len(), all.len()), [*core], "in turn");
            assert_eq!(kept(number, all.len() + 1), all);
        }
        if all.len() > 2 {
            assert_eq!(kept(0, all.len() - 1), all);
        }
    }
}
