//! Allocation: `cuMemAlloc*`, `cuMemFree*`, pinned host memory, `cuMemGetInfo`. Pools are in
//! `pools`.

use crate::driver::pools::default_of;
use crate::ffi::{Handle, Kind, Out, id};
use crate::machine::entry::{call, call_holding, may_wait};
use crate::machine::sim::Sim;
use crate::machine::work::Work;
use crate::memory::{Life, Place, Touch};
use crate::status::{
    HOST_MEMORY_NOT_REGISTERED, INVALID_HANDLE, INVALID_VALUE, OUT_OF_MEMORY, Outcome, SUCCESS,
    Status,
};
use std::sync::Arc;

impl Sim {
    /// Room for `len` more bytes on a device. What is freed earlier on the same stream is room.
    fn grant(&mut self, device: usize, len: usize, stream: Option<u64>) -> Outcome {
        self.faults.on_allocation()?;
        let total = self.devices.get(device).map_or(0, |device| device.memory);
        let held = self.memory.usage(device).held;
        if held.saturating_add(len) > total {
            let coming_free = stream.map_or(0, |stream| self.memory.leaving_on(device, stream));
            if (held - coming_free).saturating_add(len) > total {
                return Err(OUT_OF_MEMORY);
            }
        }
        self.stats.allocations += 1;
        self.stats.live_allocations += 1;
        Ok(())
    }

    /// The allocation that begins at `address` and that no call has freed yet.
    fn owned(&mut self, what: &str, address: usize) -> Outcome<(usize, Place)> {
        let found = self
            .memory
            .at(address)
            .filter(|a| !a.variable)
            .map(|a| (a.span.len, a.place, a.serial, a.left.clone()));
        match found {
            Some((len, place, _, None)) => Ok((len, place)),
            Some((_, _, serial, Some(left))) => {
                self.report(
                    "misuse",
                    format!("{what}: allocation {serial} is freed again, after {left}"),
                );
                Err(INVALID_VALUE)
            }
            None => {
                self.report("misuse", format!("{what}: no allocation begins at {address:#x}"));
                Err(INVALID_VALUE)
            }
        }
    }
}

/// `cuMemAlloc_v2`: usable at once, by every stream.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(pointer: Out<Handle>, len: usize) -> Status {
    call(|sim| {
        let context = sim.healthy_current()?;
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        let device = sim.device_of(context);
        sim.grant(device, len, None)?;
        let start = sim.memory.add(len, Place::Device(device), None, Life::Here)?;
        sim.count_bytes();
        pointer.set(start)
    })
}

/// `cuMemFree_v2`: waits for the context's streams first, as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: Handle) -> Status {
    call_holding(|mut sim| {
        if pointer == 0 {
            return Ok(());
        }
        let context = sim.healthy_current()?;
        sim.owned("cuMemFree", pointer)?;
        let streams = sim.streams_of(context);
        let (mut sim, outcome) =
            crate::driver::streams::synchronize(sim, "cuMemFree", context, &streams);
        outcome?;
        let sim = &mut *sim;
        sim.stats.frees += 1;
        sim.stats.live_allocations -= 1;
        sim.memory.leaving(pointer, "cuMemFree".into(), None);
        sim.after(&Work::Close(pointer), (0, 0), "cuMemFree");
        Ok(())
    })
}

fn allocate_async(
    pointer: Out<Handle>,
    len: usize,
    pool: Option<Handle>,
    stream: Handle,
) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        let this = sim.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        let context = this.context;
        sim.healthy(context)?;
        sim.not_captured(stream)?;
        let (device, pool) = match pool {
            Some(pool) => (sim.pool(pool)?.device, id(Kind::Pool, pool)?),
            None => (sim.device_of(context), default_of(sim.device_of(context))),
        };
        sim.grant(device, len, Some(stream))?;
        let start = match sim.again(device, pool, len, stream) {
            Some(start) => start,
            None => sim.memory.add(len, Place::Device(device), Some(pool), Life::Coming)?,
        };
        sim.note_high(pool);
        sim.grow(pool, stream);
        sim.count_bytes();
        let Some(allocation) = sim.memory.at(start) else { return Err(OUT_OF_MEMORY) };
        let work = Work::Open(allocation.span);
        let touch = Touch { base: start, range: 0..len.max(1), write: true };
        sim.submit(stream, format!("allocation of {len} bytes"), work, vec![touch])?;
        pointer.set(start)
    })
}

/// `cuMemAllocAsync`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(pointer: Out<Handle>, len: usize, stream: Handle) -> Status {
    allocate_async(pointer, len, None, stream)
}

/// `cuMemAllocFromPoolAsync`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(
    pointer: Out<Handle>,
    len: usize,
    pool: Handle,
    stream: Handle,
) -> Status {
    allocate_async(pointer, len, Some(pool), stream)
}

/// `cuMemFreeAsync`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(pointer: Handle, stream: Handle) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        if pointer == 0 {
            return Ok(());
        }
        let this = sim.streams.get(&stream).ok_or(INVALID_HANDLE)?;
        sim.healthy(this.context)?;
        sim.not_captured(stream)?;
        let (len, place) = sim.owned("cuMemFreeAsync", pointer)?;
        if !matches!(place, Place::Device(_)) {
            return Err(INVALID_VALUE);
        }
        let touch = Touch { base: pointer, range: 0..len.max(1), write: true };
        let at = sim.submit(stream, "free".into(), Work::Close(pointer), vec![touch])?;
        let label: Arc<str> = format!("free (stream {stream}, item {at})").into();
        sim.memory.leaving(pointer, label, Some((stream, at)));
        sim.stats.frees += 1;
        sim.stats.live_allocations -= 1;
        Ok(())
    })
}

/// `cuMemGetInfo_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) -> Status {
    call(|sim| {
        let context = sim.healthy_current()?;
        let device = sim.device_of(context);
        let memory = sim.devices.get(device).map_or(0, |device| device.memory);
        free.set(memory.saturating_sub(sim.memory.usage(device).held))?;
        total.set(memory)
    })
}

/// `cuMemHostAlloc`. All flags are taken as plain page-locked memory. It takes its time.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(pointer: Out<Handle>, len: usize, flags: u32) -> Status {
    let waited = call_holding(|sim| may_wait(sim, "cuMemHostAlloc"));
    if waited != SUCCESS {
        return waited;
    }
    call(|sim| {
        sim.healthy_current()?;
        if len == 0 || flags & !7 != 0 {
            return Err(INVALID_VALUE);
        }
        sim.faults.on_allocation()?;
        let start = sim.memory.add(len, Place::Pinned, None, Life::Here)?;
        sim.stats.live_pinned += 1;
        pointer.set(start)
    })
}

/// `cuMemFreeHost`. Work that still uses the memory is reported; the memory goes all the same.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: Handle) -> Status {
    call(|sim| {
        let context = sim.current()?;
        let (_, place) = sim.owned("cuMemFreeHost", pointer)?;
        if place != Place::Pinned {
            return Err(INVALID_VALUE);
        }
        sim.report_pending_use("cuMemFreeHost", pointer);
        sim.memory.leaving(pointer, "cuMemFreeHost".into(), None);
        sim.stats.live_pinned -= 1;
        sim.after(&Work::Close(pointer), (0, 0), "cuMemFreeHost");
        sim.healthy(context)
    })
}

impl Sim {
    fn report_pending_use(&mut self, what: &str, start: usize) {
        let Some(allocation) = self.memory.at(start) else { return };
        let serial = allocation.serial;
        if let Some(access) = allocation.history.unknown_to_host(&self.race) {
            let text = format!(
                "{what} of allocation {serial}, and the host has not waited for: {}",
                access.label
            );
            self.reports.add("use after free", text);
        }
    }
}

/// `cuMemHostRegister_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(pointer: Handle, len: usize, _flags: u32) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        if pointer == 0 || len == 0 {
            return Err(INVALID_VALUE);
        }
        sim.memory.register(pointer, len)
    })
}

/// `cuMemHostUnregister`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(pointer: Handle) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        if sim.memory.at(pointer).is_none_or(|allocation| allocation.place != Place::Registered) {
            return Err(HOST_MEMORY_NOT_REGISTERED);
        }
        sim.report_pending_use("cuMemHostUnregister", pointer);
        sim.memory.unregister(pointer);
        Ok(())
    })
}

/// `cuMemHostGetDevicePointer_v2`: the same address.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostGetDevicePointer_v2(
    device: Out<Handle>,
    host: Handle,
    _flags: u32,
) -> Status {
    call(|sim| match sim.memory.find(host) {
        Some(allocation) if !matches!(allocation.place, Place::Device(_)) => device.set(host),
        _ => Err(INVALID_VALUE),
    })
}
