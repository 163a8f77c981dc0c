//! The controls: `futsim_*`, for tests. `client.rs` is their Rust face, with the words for each.
//!
//! None of them needs `cuInit`. Those that count ("the nth launch") count from the call on.

use crate::checks::report::Stats;
use crate::ffi::{Handle, Kind, Out, Text, copy_text, id};
use crate::kernels::compile;
use crate::machine::entry::call_any;
use crate::machine::sim::{Sim, lock, sleep_until, wake_scheduler, wake_waiters};
use crate::machine::thread::MUST_NOT_BLOCK;
use crate::status::{INVALID_HANDLE, Outcome, Status};
use std::ffi::c_char;

/// 0 where kernels can be compiled; otherwise 1, and why not in `room` bytes at `why`.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_probe(why: *mut c_char, room: usize) -> i32 {
    match compile::version() {
        Ok(_) => 0,
        Err(text) => {
            copy_text(&text, why, room);
            1
        }
    }
}

/// A machine anew: no contexts, no faults, no reports. Waits for the item that is running.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_reset(seed: u64, devices: u32) -> Status {
    call_any(|mut sim| {
        for stream in sim.streams.values_mut() {
            stream.queue.clear();
            stream.completed = stream.enqueued;
        }
        let (mut sim, ()) = sleep_until(sim, |sim| sim.pace.in_flight.is_none().then_some(()));
        sim.reset(seed, devices as usize);
        wake_waiters();
        Ok(())
    })
}

/// The seed of the last reset, or of `FUTENSOR_SIM_SEED`.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_seed() -> u64 {
    lock().seed
}

fn change(body: impl FnOnce(&mut Sim) -> Outcome) -> Status {
    let status = call_any(|mut sim| body(&mut sim));
    wake_scheduler();
    status
}

/// 1: nothing runs but by `futsim_step`. 0: work runs again.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_pause(on: i32) -> Status {
    change(|sim| {
        sim.pace.paused = on != 0;
        Ok(())
    })
}

/// 1: work runs only while somebody waits, and one item a query.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_lazy(on: i32) -> Status {
    change(|sim| {
        sim.pace.lazy = on != 0;
        Ok(())
    })
}

/// Lets up to `n` items run although paused, waits for them, and returns how many did.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_step(n: u64) -> u64 {
    let mut sim = lock();
    let before = sim.stats.items_run;
    sim.pace.credits = n;
    let (sim, ()) = sleep_until(sim, |sim| {
        let over =
            sim.pace.in_flight.is_none() && (sim.pace.credits == 0 || sim.runnable().is_empty());
        over.then(|| sim.pace.credits = 0)
    });
    sim.stats.items_run - before
}

/// How many streams could move now.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_runnable() -> u64 {
    lock().runnable().len() as u64
}

/// How many items are queued or running.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_pending() -> u64 {
    let sim = lock();
    sim.streams.values().map(|stream| stream.queue.len() as u64).sum::<u64>()
        + u64::from(sim.pace.in_flight.is_some())
}

/// Bytes of a device.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_memory(device: i32, bytes: usize) -> Status {
    change(|sim| {
        sim.device(device)?.memory = bytes;
        Ok(())
    })
}

/// The nth allocation answers "out of memory".
#[unsafe(no_mangle)]
pub extern "C" fn futsim_fail_allocation(n: u64) -> Status {
    change(|sim| {
        sim.faults.fail_allocation(n);
        Ok(())
    })
}

/// The nth launch (kernel or gemm) answers `status` at the call.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_fail_launch(n: u64, status: Status) -> Status {
    change(|sim| {
        sim.faults.fail_launch_call(n, status);
        Ok(())
    })
}

/// The nth launch faults with `status` when it runs, which ends its context.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_fault_launch(n: u64, status: Status) -> Status {
    change(|sim| {
        sim.faults.fault_launch(n, status);
        Ok(())
    })
}

/// The nth launch never ends, until `futsim_release_hangs`.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_hang_launch(n: u64) -> Status {
    change(|sim| {
        sim.faults.hang_launch(n);
        Ok(())
    })
}

/// Milliseconds of processor time that a launch may take; 0 for no limit.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_kernel_limit(milliseconds: u64) -> Status {
    change(|_| {
        crate::kernels::limit::MILLISECONDS
            .store(milliseconds, std::sync::atomic::Ordering::Relaxed);
        Ok(())
    })
}

/// Hung launches run after all.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_release_hangs() -> Status {
    change(|sim| {
        sim.faults.hangs_released = true;
        Ok(())
    })
}

/// The nth `cuStreamWaitEvent` succeeds and orders nothing.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_drop_wait(n: u64) -> Status {
    change(|sim| {
        sim.faults.drop_wait(n);
        Ok(())
    })
}

/// The device is lost: its contexts end with `status`, new ones begin with it.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_lose_device(device: i32, status: Status) -> Status {
    change(|sim| {
        sim.device(device)?.lost = Some(status);
        let own = |(&id, context): (&u64, &crate::machine::objects::Context)| {
            (context.device == device as usize).then_some(id)
        };
        let contexts: Vec<u64> = sim.contexts.iter().filter_map(own).collect();
        for context in contexts {
            sim.poison(context, status);
        }
        Ok(())
    })
}

/// 1: the stream does not move. 0: it does again.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_stall_stream(stream: Handle, on: i32) -> Status {
    change(|sim| {
        let id = if stream > 2 { id(Kind::Stream, stream)? } else { sim.stream(stream)? };
        sim.streams.get_mut(&id).ok_or(INVALID_HANDLE)?.stalled = on != 0;
        Ok(())
    })
}

/// 1: devices cannot reach each other's memory.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_no_peers(on: i32) -> Status {
    change(|sim| {
        sim.faults.no_peers = on != 0;
        Ok(())
    })
}

/// 1: copies between devices bring nothing, without an error.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_silent_peers(on: i32) -> Status {
    change(|sim| {
        sim.faults.silent_peers = on != 0;
        Ok(())
    })
}

/// 1: what one host thread has waited for orders nothing for another.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_threads_apart(on: i32) -> Status {
    change(|sim| {
        sim.race.per_thread = on != 0;
        Ok(())
    })
}

/// 1: pools that have a threshold give out again what is freed from now on.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_reuse(on: i32) -> Status {
    change(|sim| {
        sim.reuse = on != 0;
        Ok(())
    })
}

/// 1: kernels that are loaded from now on are watched for races in shared memory.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_watch_shared(on: i32) -> Status {
    crate::checks::shared::WATCHED.store(on != 0, std::sync::atomic::Ordering::Relaxed);
    crate::status::SUCCESS
}

/// 1: a call that may block, on the calling thread, is reported.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_forbid_blocking(on: i32) {
    MUST_NOT_BLOCK.set(on != 0);
}

/// The counters.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_stats(to: Out<Stats>) -> Status {
    call_any(|sim| to.set(sim.stats))
}

/// How many findings there are of a kind (null: of all kinds).
#[unsafe(no_mangle)]
pub extern "C" fn futsim_report_count(kind: Text) -> u64 {
    let kind = kind.read().ok();
    lock().reports.count(kind.as_deref()) as u64
}

/// The findings, one a line, cut to `room` bytes. Returns the length of the whole text.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_report(to: *mut c_char, room: usize) -> usize {
    copy_text(&lock().reports.text(), to, room)
}

/// Forgets the findings.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_report_clear() -> Status {
    change(|sim| {
        sim.reports.clear();
        Ok(())
    })
}

/// Looks for what is left over and for overruns of live allocations, and reports it. Returns how
/// many findings that made. To be called when the streams have run.
#[unsafe(no_mangle)]
pub extern "C" fn futsim_check() -> u64 {
    let mut sim = lock();
    let before = sim.reports.count(None);
    let (damaged, leaked) = sim.memory.inspect();
    for text in damaged {
        sim.report("overrun", text);
    }
    for text in leaked {
        sim.report("leak", text);
    }
    let stats = sim.stats;
    for (count, what) in [
        (stats.live_events, "events"),
        (stats.live_streams, "streams"),
        (stats.live_pools, "pools"),
        (stats.live_modules, "modules"),
        (stats.live_graphs, "graphs"),
    ] {
        if count > 0 {
            sim.report("leak", format!("{count} {what}"));
        }
    }
    (sim.reports.count(None) - before) as u64
}
