//! Contexts: `cuDevicePrimaryCtx*`, `cuCtx*`, and access between peers.

use crate::ffi::{Handle, Kind, Out, handle};
use crate::machine::entry::{call, call_holding};
use crate::machine::objects::Context;
use crate::machine::sim::Sim;
use crate::machine::thread::{CURRENT, current_handle};
use crate::status::{
    INVALID_DEVICE, INVALID_VALUE, Outcome, PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED,
    PEER_ACCESS_UNSUPPORTED, Status,
};
use std::collections::{BTreeMap, BTreeSet};

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

/// `cuDevicePrimaryCtxRelease_v2`. The context outlives its last release, as a fault does: a fault
/// ends a context for the life of the process.
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
pub extern "C" fn cuDevicePrimaryCtxGetState(
    device: i32,
    flags: Out<u32>,
    active: Out<i32>,
) -> Status {
    call(|sim| {
        let id = sim.device(device)?.primary;
        let context = id.and_then(|id| sim.contexts.get(&id));
        flags.set(context.map_or(0, |context| context.flags))?;
        active.set(context.is_some_and(|context| context.references > 0) as i32)
    })
}

/// `cuCtxCreate_v4`.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxCreate_v4(
    context: Out<Handle>,
    _parameters: Handle,
    flags: u32,
    device: i32,
) -> Status {
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
    call_holding(|mut sim| {
        let context = sim.healthy_current()?;
        let streams: Vec<u64> = sim.streams_of(context);
        streams.iter().try_for_each(|&stream| sim.not_captured(stream))?;
        crate::driver::streams::synchronize(sim, "cuCtxSynchronize", context, &streams).1
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
