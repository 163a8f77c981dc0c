//! Devices and contexts: `cuInit`, `cuDevice*`, `cuDevicePrimaryCtx*`, `cuCtx*`.

use crate::ffi::{Handle, Kind, Out, copy_text, handle};
use crate::sim::{CURRENT, Sim, call, call_any, call_holding, current_handle};
use crate::status::{
    INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, Outcome, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED, STREAM_CAPTURE_UNSUPPORTED, Status,
};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_char;

/// One device.
pub struct Device {
    /// Bytes of memory.
    pub memory: usize,
    /// Devices that may reach this one's default pool (`cuMemPoolSetAccess`).
    pub pool_access: BTreeSet<usize>,
    /// The primary context, once retained.
    pub primary: Option<u64>,
    /// The error that lost the device.
    pub lost: Option<Status>,
    /// The default pool's release threshold.
    pub threshold: u64,
}

impl Device {
    /// A device with this much memory.
    pub fn new(memory: usize) -> Device {
        Device { memory, pool_access: BTreeSet::new(), primary: None, lost: None, threshold: 0 }
    }
}

/// One context.
pub struct Context {
    /// Ordinal of its device.
    pub device: usize,
    /// How often a primary context is retained.
    pub references: usize,
    /// The error that ended it.
    pub error: Option<Status>,
    /// Contexts whose memory it may reach.
    pub peers: BTreeSet<u64>,
    /// The legacy default stream, once used.
    pub legacy_stream: Option<u64>,
    /// Default streams of threads, once used.
    pub thread_streams: BTreeMap<u64, u64>,
    /// `cuCtxSetFlags`.
    pub flags: u32,
    limits: BTreeMap<u32, usize>,
}

impl Sim {
    fn new_context(&mut self, device: usize) -> u64 {
        let id = self.fresh_id();
        let context = Context {
            device,
            references: 1,
            error: self.devices[device].lost,
            peers: BTreeSet::new(),
            legacy_stream: None,
            thread_streams: BTreeMap::new(),
            flags: 0,
            limits: BTreeMap::new(),
        };
        self.contexts.insert(id, context);
        id
    }
}

/// `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> Status {
    call_any(|mut sim| {
        if sim.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        sim.started = true;
        Ok(())
    })
}

/// `cuDriverGetVersion`: 13.0.
#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Status {
    call_any(|_| version.set(13000))
}

/// `cuDeviceGetCount`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: Out<i32>) -> Status {
    call(|sim| count.set(sim.devices.len() as i32))
}

/// `cuDeviceGet`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: Out<i32>, ordinal: i32) -> Status {
    call(|sim| {
        sim.device(ordinal)?;
        device.set(ordinal)
    })
}

/// `cuDeviceGetName`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut c_char, room: i32, device: i32) -> Status {
    call(|sim| {
        sim.device(device)?;
        copy_text(&format!("Simulated device {device}"), name, room.max(0) as usize);
        Ok(())
    })
}

fn uuid(to: Out<[u8; 16]>, device: i32) -> Status {
    call(|sim| {
        sim.device(device)?;
        to.set([0xF5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, device as u8])
    })
}

/// `cuDeviceGetUuid`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(to: Out<[u8; 16]>, device: i32) -> Status {
    uuid(to, device)
}

/// `cuDeviceGetUuid_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(to: Out<[u8; 16]>, device: i32) -> Status {
    uuid(to, device)
}

/// `cuDeviceTotalMem_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) -> Status {
    call(|sim| bytes.set(sim.device(device)?.memory))
}

/// `cuDeviceGetAttribute`: an H200's numbers where they matter to a client, 0 for what is not simulated.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: Out<i32>, attribute: u32, device: i32) -> Status {
    call(|sim| {
        sim.device(device)?;
        value.set(match attribute {
            1 => 1024,                 // MAX_THREADS_PER_BLOCK
            2 | 3 => 1024,             // MAX_BLOCK_DIM_X, _Y
            4 => 64,                   // MAX_BLOCK_DIM_Z
            5 => i32::MAX,             // MAX_GRID_DIM_X
            6 | 7 => 65535,            // MAX_GRID_DIM_Y, _Z
            8 => SHARED_MAX as i32,    // MAX_SHARED_MEMORY_PER_BLOCK
            9 => 65536,                // TOTAL_CONSTANT_MEMORY
            10 => 32,                  // WARP_SIZE
            12 | 82 => 65536,          // MAX_REGISTERS_PER_BLOCK, _PER_MULTIPROCESSOR
            13 => 1_980_000,           // CLOCK_RATE
            14 => 512,                 // TEXTURE_ALIGNMENT
            16 => 132,                 // MULTIPROCESSOR_COUNT
            19 | 31 | 41 => 1,         // CAN_MAP_HOST_MEMORY, CONCURRENT_KERNELS, UNIFIED_ADDRESSING
            34 => device,              // PCI_DEVICE_ID
            36 => 3_201_000,           // MEMORY_CLOCK_RATE
            37 => 6144,                // GLOBAL_MEMORY_BUS_WIDTH
            38 => 60 << 20,            // L2_CACHE_SIZE
            39 => 2048,                // MAX_THREADS_PER_MULTIPROCESSOR
            40 => 3,                   // ASYNC_ENGINE_COUNT
            75 => 9,                   // COMPUTE_CAPABILITY_MAJOR
            78 => 1,                   // STREAM_PRIORITIES_SUPPORTED
            81 => 228 << 10,           // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
            97 => SHARED_OPTIN as i32, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            106 => 32,                 // MAX_BLOCKS_PER_MULTIPROCESSOR
            115 => 1,                  // MEMORY_POOLS_SUPPORTED
            _ => 0,
        })
    })
}

/// Shared memory a block may have without asking.
pub const SHARED_MAX: usize = 48 << 10;
/// Shared memory a block may have at most.
pub const SHARED_OPTIN: usize = 227 << 10;

/// `cuDevicePrimaryCtxRetain`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: Out<Handle>, device: i32) -> Status {
    call(|sim| {
        let existing = sim.device(device)?.primary;
        let id = match existing {
            Some(id) => {
                if let Some(context) = sim.contexts.get_mut(&id) {
                    context.references += 1;
                }
                id
            }
            None => {
                let id = sim.new_context(device as usize);
                sim.device(device)?.primary = Some(id);
                id
            }
        };
        context.set(handle(Kind::Context, id))
    })
}

/// `cuDevicePrimaryCtxRelease_v2`. The context outlives its last release, as a fault does: a fault ends a
/// context for the life of the process.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> Status {
    call(|sim| {
        let id = sim.device(device)?.primary.ok_or(INVALID_DEVICE)?;
        let context = sim.contexts.get_mut(&id).ok_or(INVALID_DEVICE)?;
        context.references = context.references.saturating_sub(1);
        Ok(())
    })
}

/// `cuDevicePrimaryCtxGetState`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) -> Status {
    call(|sim| {
        let id = sim.device(device)?.primary;
        let context = id.and_then(|id| sim.contexts.get(&id));
        flags.set(context.map_or(0, |context| context.flags))?;
        active.set(context.is_some_and(|context| context.references > 0) as i32)
    })
}

/// `cuCtxCreate_v4`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v4(context: Out<Handle>, _parameters: Handle, flags: u32, device: i32) -> Status {
    call(|sim| {
        sim.device(device)?;
        let id = sim.new_context(device as usize);
        if let Some(context) = sim.contexts.get_mut(&id) {
            context.flags = flags;
        }
        CURRENT.set(id);
        context.set(handle(Kind::Context, id))
    })
}

/// `cuCtxDestroy_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDestroy_v2(context: Handle) -> Status {
    call(|sim| {
        let id = sim.context(context)?;
        if sim.devices.iter().any(|device| device.primary == Some(id)) {
            return Err(INVALID_VALUE);
        }
        sim.poison(id, crate::status::CONTEXT_IS_DESTROYED);
        sim.contexts.remove(&id);
        sim.streams.retain(|_, stream| stream.context != id);
        Ok(())
    })
}

/// `cuCtxGetCurrent`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: Out<Handle>) -> Status {
    call(|_| context.set(current_handle()))
}

/// `cuCtxSetCurrent`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> Status {
    call(|sim| {
        CURRENT.set(if context == 0 { 0 } else { sim.context(context)? });
        Ok(())
    })
}

/// `cuCtxGetDevice`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: Out<i32>) -> Status {
    call(|sim| device.set(sim.device_of(sim.current()?) as i32))
}

/// `cuCtxSetFlags`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(flags: u32) -> Status {
    call(|sim| {
        let id = sim.healthy_current()?;
        if let Some(context) = sim.contexts.get_mut(&id) {
            context.flags = flags;
        }
        Ok(())
    })
}

/// `cuCtxSetLimit`: remembered, without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(limit: u32, value: usize) -> Status {
    call(|sim| {
        let id = sim.healthy_current()?;
        if let Some(context) = sim.contexts.get_mut(&id) {
            context.limits.insert(limit, value);
        }
        Ok(())
    })
}

/// `cuCtxGetLimit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetLimit(value: Out<usize>, limit: u32) -> Status {
    call(|sim| {
        let id = sim.healthy_current()?;
        value.set(sim.contexts.get(&id).and_then(|c| c.limits.get(&limit).copied()).unwrap_or(1024))
    })
}

/// `cuCtxSetCacheConfig`: without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(_config: u32) -> Status {
    call(|sim| sim.healthy_current().map(drop))
}

/// `cuCtxGetCacheConfig`: no preference.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCacheConfig(config: Out<u32>) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        config.set(0)
    })
}

/// `cuProfilerStart`: without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStart() -> Status {
    call(|sim| sim.healthy_current().map(drop))
}

/// `cuProfilerStop`: without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStop() -> Status {
    call(|sim| sim.healthy_current().map(drop))
}

/// `cuCtxGetStreamPriorityRange`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) -> Status {
    call(|sim| {
        sim.healthy_current()?;
        least.set_if_asked(0);
        greatest.set_if_asked(-5);
        Ok(())
    })
}

/// `cuCtxSynchronize`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    call_holding(|sim| {
        let context = sim.healthy_current()?;
        let streams: Vec<u64> = sim.streams_of(context);
        if streams.iter().any(|id| sim.streams.get(id).is_some_and(|stream| stream.capture.is_some())) {
            return Err(STREAM_CAPTURE_UNSUPPORTED);
        }
        crate::streams::synchronize(sim, "cuCtxSynchronize", context, &streams).1
    })
}

/// `cuDeviceCanAccessPeer`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) -> Status {
    call(|sim| {
        sim.device(device)?;
        sim.device(peer)?;
        can.set((device != peer && !sim.faults.no_peers) as i32)
    })
}

fn peer(sim: &mut Sim, peer: Handle) -> Outcome<(u64, u64)> {
    let own = sim.healthy_current()?;
    let peer = sim.context(peer)?;
    if sim.device_of(own) == sim.device_of(peer) {
        return Err(INVALID_DEVICE);
    }
    Ok((own, peer))
}

/// `cuCtxEnablePeerAccess`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(context: Handle, flags: u32) -> Status {
    call(|sim| {
        let (own, other) = peer(sim, context)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if sim.faults.no_peers {
            return Err(PEER_ACCESS_UNSUPPORTED);
        }
        let fresh = sim.contexts.get_mut(&own).is_some_and(|own| own.peers.insert(other));
        if fresh { Ok(()) } else { Err(PEER_ACCESS_ALREADY_ENABLED) }
    })
}

/// `cuCtxDisablePeerAccess`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxDisablePeerAccess(context: Handle) -> Status {
    call(|sim| {
        let (own, other) = peer(sim, context)?;
        let was = sim.contexts.get_mut(&own).is_some_and(|own| own.peers.remove(&other));
        if was { Ok(()) } else { Err(PEER_ACCESS_NOT_ENABLED) }
    })
}
