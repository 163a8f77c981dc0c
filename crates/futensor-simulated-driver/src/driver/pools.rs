//! Memory pools: `cuMemPool*`. Each device has one by default; a client makes more.
//!
//! A pool is who may reach its memory, a threshold, and rules by which memory that was freed on one
//! stream is given out on another. Where that is asked for (`futsim_reuse`), a pool with a
//! threshold keeps what was freed, once the free has run, and gives it out again by these rules;
//! else no address comes twice, and each stale one is found. What is kept counts as free: the
//! driver maps it elsewhere where memory is short. What one pool keeps others are not refused for.

use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::machine::entry::{call, call_holding, may_wait};
use crate::machine::objects::Pool;
use crate::machine::sim::Sim;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, Outcome, Status};

/// A pool reserves so many bytes at a time.
const STEP: usize = 2 << 20;

/// The number of a device's default pool.
pub fn default_of(device: usize) -> u64 {
    u64::from(u32::MAX) - device as u64
}

impl Sim {
    fn default_pool(&mut self, device: i32) -> Outcome<Handle> {
        self.device(device)?;
        let number = default_of(device as usize);
        self.pools.entry(number).or_insert_with(|| Pool::of(device as usize));
        Ok(handle(Kind::Pool, number))
    }

    /// Memory that a pool keeps, for what is put on a stream from now on. Its new owner knows
    /// nothing of its old one: whoever still uses the address is compared with the new one's work.
    pub fn again(&mut self, device: usize, pool: u64, len: usize, stream: u64) -> Option<usize> {
        let Pool { follows, chances, .. } = *self.pools.get(&pool)?;
        let race = &self.race;
        let may = |freed: (u64, u64)| {
            freed.0 == stream || chances || follows && race.ordered(stream, freed)
        };
        let start = self.memory.again(len, device, pool, may)?;
        self.stats.reused += 1;
        Some(start)
    }

    /// Notes what a pool has now, if it never had as much.
    pub fn note_high(&mut self, number: u64) {
        let [used, kept] = self.memory.of_pool(number);
        let Some(pool) = self.pools.get_mut(&number) else { return };
        pool.high = [pool.high[0].max(used), pool.high[1].max(used + kept)];
    }

    /// Reserves more where a pool has too little for what is allocated now. What was freed earlier
    /// on the same stream is room.
    pub fn grow(&mut self, number: u64, stream: u64) {
        let Some(pool) = self.pools.get_mut(&number) else { return };
        let used = self.memory.of_pool(number)[0];
        if used <= pool.reserved {
            return;
        }
        let needed = used.saturating_sub(self.memory.leaving_on(pool.device, stream));
        if needed > pool.reserved {
            pool.reserved = needed.next_multiple_of(STEP);
            self.stats.growths += 1;
        }
    }

    /// Somebody has waited for the device: pools give back what is free beyond their thresholds.
    pub fn shrink(&mut self) {
        for (&number, pool) in &mut self.pools {
            let keep = usize::try_from(pool.threshold).unwrap_or(usize::MAX);
            let used = self.memory.of_pool(number)[0].next_multiple_of(STEP);
            pool.reserved = pool.reserved.min(used.max(keep));
        }
    }

    /// The pool behind a handle.
    pub fn pool(&mut self, pool: Handle) -> Outcome<&mut Pool> {
        self.pools.get_mut(&id(Kind::Pool, pool)?).ok_or(INVALID_HANDLE)
    }
}

/// `cuDeviceGetDefaultMemPool`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetDefaultMemPool(pool: Out<Handle>, device: i32) -> Status {
    call(|sim| pool.set(sim.default_pool(device)?))
}

/// `cuDeviceGetMemPool`: the default one.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetMemPool(pool: Out<Handle>, device: i32) -> Status {
    call(|sim| pool.set(sim.default_pool(device)?))
}

/// `CUmemPoolProps`, as far as it is looked at.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    /// 1: pinned, the only kind there is.
    kind: u32,
    handles: u32,
    place: u32,
    device: i32,
}

/// `cuMemPoolCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(pool: Out<Handle>, properties: In<Properties>) -> Status {
    call(|sim| {
        let Properties { kind, handles, place, device } = properties.get()?;
        sim.device(device)?;
        if kind != 1 || handles != 0 || place != 1 {
            return Err(INVALID_VALUE);
        }
        let number = sim.fresh_id();
        sim.pools.insert(number, Pool::of(device as usize));
        sim.stats.live_pools += 1;
        pool.set(handle(Kind::Pool, number))
    })
}

/// `cuMemPoolDestroy`. Memory of it that is still held is reported.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: Handle) -> Status {
    call(|sim| {
        sim.pool(pool)?;
        let number = id(Kind::Pool, pool)?;
        if sim.memory.has_of(number) {
            sim.report("misuse", "cuMemPoolDestroy of a pool whose memory is not all freed".into());
        }
        sim.memory.trim(number);
        sim.pools.remove(&number);
        sim.stats.live_pools -= 1;
        Ok(())
    })
}

/// `cuMemPoolTrimTo`: all of it, whatever is to be kept; it takes its time.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: Handle, _keep: usize) -> Status {
    call_holding(|mut sim| {
        sim.pool(pool)?;
        let number = id(Kind::Pool, pool)?;
        sim.memory.trim(number);
        let used = sim.memory.of_pool(number)[0];
        sim.pool(pool)?.reserved = used.next_multiple_of(STEP);
        may_wait(sim, "cuMemPoolTrimTo")
    })
}

const THRESHOLD: u32 = 4;

/// `cuMemPoolSetAttribute`: the threshold and the rules of reuse, but that of dependencies which
/// the driver adds by itself.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: In<u64>) -> Status {
    call(|sim| {
        let pool = sim.pool(pool)?;
        match attribute {
            THRESHOLD => pool.threshold = value.get()?,
            // A switch is an int.
            1 => pool.follows = value.get()? as u32 != 0,
            2 => pool.chances = value.get()? as u32 != 0,
            3 | 6 | 8 => {}
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    })
}

/// `cuMemPoolGetAttribute`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: Out<u64>) -> Status {
    call(|sim| {
        let number = id(Kind::Pool, pool)?;
        let (threshold, high) = sim.pool(pool).map(|pool| (pool.threshold, pool.high))?;
        let [used, kept] = sim.memory.of_pool(number);
        value.set(match attribute {
            THRESHOLD => threshold,
            5 => (used + kept) as u64, // RESERVED_MEM_CURRENT
            6 => high[1] as u64,       // RESERVED_MEM_HIGH
            7 => used as u64,          // USED_MEM_CURRENT
            8 => high[0] as u64,       // USED_MEM_HIGH
            _ => return Err(INVALID_VALUE),
        })
    })
}

/// `CUmemAccessDesc` of CUDA 13.0: kind and number of a place, and its rights.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemoryAccess {
    kind: u32,
    device: i32,
    rights: u32,
}

/// `cuMemPoolSetAccess`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAccess(pool: Handle, list: In<MemoryAccess>, count: usize) -> Status {
    call(|sim| {
        let own = sim.pool(pool)?.device;
        for access in list.list(count)? {
            sim.device(access.device)?;
            let other = access.device as usize;
            if access.kind != 1 || other != own && sim.faults.no_peers {
                return Err(INVALID_VALUE);
            }
            sim.stats.accesses += 1;
            let pool = sim.pool(pool)?;
            if access.rights == 3 {
                pool.access.insert(other);
            } else {
                pool.access.remove(&other);
            }
        }
        Ok(())
    })
}
