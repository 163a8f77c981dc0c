//! Devices and contexts: `cuInit`, `cuDevice*`, `cuDevicePrimaryCtx*`, `cuCtx*`.

use crate::ffi::{Out, copy_text};
use crate::machine::entry::{call, call_any};
use crate::status::{NO_DEVICE, Status};
use std::ffi::c_char;

/// `cuInit`.
#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> Status {
    call_any(|mut sim| {
        if sim.devices.is_empty() {
            return Err(NO_DEVICE);
        }
        if !std::mem::replace(&mut sim.started, true) {
            // SAFETY: a function that only sets a flag.
            unsafe { libc::atexit(crate::machine::entry::exit) };
        }
        Ok(())
    })
}

/// A version of CUDA that the environment names, as "12.8".
pub fn version(variable: &str, otherwise: (i32, i32)) -> (i32, i32) {
    let parse = |text: String| {
        let (major, minor) = text.split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    std::env::var(variable).ok().and_then(parse).unwrap_or(otherwise)
}

/// The version of CUDA that the driver knows.
pub fn driver() -> (i32, i32) {
    version("FUTENSOR_SIM_DRIVER", (13, 0))
}

/// `cuDriverGetVersion`.
#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: Out<i32>) -> Status {
    let (major, minor) = driver();
    call_any(|_| version.set(major * 1000 + minor * 10))
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

/// `cuDeviceGetAttribute`: an H200's numbers where they matter to a client, 0 for what is not
/// simulated.
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
            19 | 31 | 41 => 1, // CAN_MAP_HOST_MEMORY, CONCURRENT_KERNELS, UNIFIED_ADDRESSING
            34 => device,      // PCI_DEVICE_ID
            36 => 3_201_000,   // MEMORY_CLOCK_RATE
            37 => 6144,        // GLOBAL_MEMORY_BUS_WIDTH
            38 => 60 << 20,    // L2_CACHE_SIZE
            39 => 2048,        // MAX_THREADS_PER_MULTIPROCESSOR
            40 => 3,           // ASYNC_ENGINE_COUNT
            75 => 9,           // COMPUTE_CAPABILITY_MAJOR
            78 => 1,           // STREAM_PRIORITIES_SUPPORTED
            81 => 228 << 10,   // MAX_SHARED_MEMORY_PER_MULTIPROCESSOR
            97 => SHARED_OPTIN as i32, // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
            106 => 32,         // MAX_BLOCKS_PER_MULTIPROCESSOR
            115 => 1,          // MEMORY_POOLS_SUPPORTED
            _ => 0,
        })
    })
}

/// Shared memory a block may have without asking.
pub const SHARED_MAX: usize = 48 << 10;
/// Shared memory a block may have at most.
pub const SHARED_OPTIN: usize = 227 << 10;
