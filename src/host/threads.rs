//! What a compute thread asks of the operating system: to give way to the executor's.

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
