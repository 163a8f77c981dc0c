//! Ends kernels that do not terminate: a watching thread, and a limit of processor time per launch.
//!
//! A kernel that spins until another thread or block changes a value never returns here, since
//! threads run one after the other. The limit (`FUTENSOR_SIM_KERNEL_LIMIT`, milliseconds, 60 s by
//! default, 0 for none) counts processor time, so that a busy machine does not trip it. It helps to
//! find the kernel, on a best-effort basis: if the kernel is interrupted while it switches between
//! threads, the interrupt is retried.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The limit in milliseconds of processor time.
pub static MILLISECONDS: AtomicU64 = AtomicU64::new(60_000);

/// The number of the running launch, counted from 1; 0 between launches.
static RUNNING: AtomicU64 = AtomicU64::new(0);
static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Marks, while it lives, that this thread runs a launch.
pub struct Watched(());

impl Watched {
    /// Begins a launch.
    pub fn new() -> Watched {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            if let Some(limit) =
                std::env::var("FUTENSOR_SIM_KERNEL_LIMIT").ok().and_then(|text| text.parse().ok())
            {
                MILLISECONDS.store(limit, Ordering::Relaxed);
            }
            // SAFETY: the call returns the calling thread, the scheduler's, which lives as long as
            // the process.
            let thread = unsafe { libc::pthread_self() };
            let name = "simulated device: limit".to_owned();
            let _ = std::thread::Builder::new().name(name).spawn(move || watch(thread));
        });
        RUNNING.store(LAUNCHES.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        Watched(())
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        RUNNING.store(0, Ordering::Relaxed);
    }
}

/// The processor time of a thread, in milliseconds.
fn processor_time(thread: libc::pthread_t) -> u64 {
    // SAFETY: the thread lives as long as the process; both calls fill local values.
    unsafe {
        let mut clock = 0;
        let mut time: libc::timespec = std::mem::zeroed();
        if libc::pthread_getcpuclockid(thread, &mut clock) != 0
            || libc::clock_gettime(clock, &mut time) != 0
        {
            return 0;
        }
        time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
    }
}

fn watch(thread: libc::pthread_t) {
    let (mut launch, mut since) = (0, 0);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let (now, running) = (processor_time(thread), RUNNING.load(Ordering::Relaxed));
        if running != launch {
            (launch, since) = (running, now);
            continue;
        }
        let limit = MILLISECONDS.load(Ordering::Relaxed);
        if running != 0 && limit != 0 && now - since > limit {
            // SAFETY: the thread lives as long as the process, and has a handler for the signal
            // (`trap.rs`).
            unsafe { libc::pthread_kill(thread, libc::SIGXCPU) };
        }
    }
}
