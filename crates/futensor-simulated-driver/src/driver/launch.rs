//! Launches, and the attributes of functions. Modules are in `module.rs`.

use crate::driver::devices::SHARED_OPTIN;
use crate::ffi::{Handle, In, Kind, Out, id};
use crate::kernels::image::Pointer;
use crate::kernels::launch::Launch;
use crate::machine::entry::call;
use crate::machine::objects::Function;
use crate::machine::sim::Sim;
use crate::machine::thread::LAUNCHES;
use crate::machine::work::Work;
use crate::memory::Touch;
use crate::status::{
    INVALID_HANDLE, INVALID_VALUE, LAUNCH_OUT_OF_RESOURCES, NOT_SUPPORTED, Outcome, Status,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What it reads and writes. A pointer reaches all of the allocation that it points into.
fn touches(launch: &Launch, sim: &mut Sim) -> Vec<Touch> {
    let entry = &launch.image.entries[launch.entry];
    let mut touches: Vec<Touch> = Vec::new();
    let mut note = |sim: &mut Sim, address: usize, write: bool| {
        let Some(allocation) = sim.memory.find(address) else { return false };
        let base = allocation.span.start;
        let range = 0..allocation.span.len.max(1);
        match touches.iter_mut().find(|touch| touch.base == base) {
            Some(touch) => touch.write |= write,
            None => touches.push(Touch { base, range, write }),
        }
        true
    };
    for &(parameter, offset, kind) in &entry.pointers {
        let address = launch.word(parameter, offset);
        let known = address == 0 || note(sim, address, kind == Pointer::Written);
        if !known && sim.memory.find(address - 1).is_none() {
            let text = format!(
                "{}: parameter {parameter}, byte {offset}: {address:#x} is no device's",
                entry.name
            );
            sim.report("misuse", text);
        }
    }
    // Fields that the scan did not find: whatever looks like an address is taken as read.
    for &(parameter, offset, size) in &entry.opaque {
        for at in (offset..offset + size / 8 * 8).step_by(8) {
            note(sim, launch.word(parameter, at), false);
        }
    }
    touches
}

/// A grid as a call gives it.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Grid {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
}

impl Sim {
    fn function(&self, raw: Handle) -> Outcome<Arc<Function>> {
        let id = id(Kind::Function, raw)?;
        let function = self.functions.get(&id).ok_or(INVALID_HANDLE)?;
        if self.modules.contains_key(&function.module) {
            Ok(function.clone())
        } else {
            Err(INVALID_HANDLE)
        }
    }

    /// A launch and its accesses, from what a call gives.
    pub fn launch(
        &mut self,
        function: Handle,
        grid: Grid,
        arguments: &In<usize>,
    ) -> Outcome<(Launch, Vec<Touch>)> {
        let function = self.function(function)?;
        let block_threads = grid.block.iter().map(|&n| u64::from(n)).product::<u64>();
        let sane = grid.grid.iter().chain(&grid.block).all(|&n| n > 0)
            && grid.grid[0] <= i32::MAX as u32
            && grid.grid[1].max(grid.grid[2]) <= 65535
            && grid.block[2] <= 64
            && block_threads <= 1024
            && grid.shared as usize <= function.shared_max.load(Ordering::Relaxed);
        if !sane {
            return Err(INVALID_VALUE);
        }
        if block_threads > u64::from(function.bounds.threads) {
            return Err(LAUNCH_OUT_OF_RESOURCES);
        }
        let count = function.image.entries[function.entry].parameters.len();
        let addresses = arguments.list(count)?;
        let over = (grid.grid, grid.block, grid.shared as usize);
        // SAFETY: the caller of the C function promises that each argument pointer leads to a value
        // of the kernel's parameter type, whose size the entry names.
        let launch =
            unsafe { Launch::new(function.image.clone(), function.entry, over, &addresses) };
        let touches = touches(&launch, self);
        Ok((launch, touches))
    }

    fn enqueue_launch(
        &mut self,
        function: Handle,
        grid: Grid,
        stream: Handle,
        arguments: In<usize>,
    ) -> Outcome {
        LAUNCHES.set(true);
        let stream = self.stream(stream)?;
        let context = self.streams.get(&stream).ok_or(INVALID_HANDLE)?.context;
        self.healthy(context)?;
        let fate = self.faults.on_launch()?;
        let (mut launch, touches) = self.launch(function, grid, &arguments)?;
        // Before CUDA 12.1 a launch takes 4 KiB of parameters (CUDA guide, "__global__").
        let bytes: usize = launch.image.entries[launch.entry].parameters.iter().sum();
        if bytes > if crate::driver::devices::driver() < (12, 1) { 4096 } else { 32764 } {
            self.report("misuse", format!("a launch with {bytes} bytes of parameters"));
            return Err(INVALID_VALUE);
        }
        launch.fate = fate;
        self.stats.launches += 1;
        let label = format!("kernel {}", launch.image.entries[launch.entry].name);
        self.submit(stream, label, Work::Launch(Arc::new(launch)), touches)?;
        Ok(())
    }
}

const DYNAMIC_SHARED: u32 = 8;

/// `cuFuncGetAttribute`: what a client sizes its blocks by. A kernel has as many registers as its
/// launch bounds leave it: more than the compiler gives it.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) -> Status {
    call(|sim| {
        let function = sim.function(function)?;
        value.set(match attribute {
            0 => function.bounds.threads as i32,   // MAX_THREADS_PER_BLOCK
            4 => function.bounds.registers as i32, // NUM_REGS
            5 | 6 => 90,                           // PTX_VERSION, BINARY_VERSION
            DYNAMIC_SHARED => function.shared_max.load(Ordering::Relaxed) as i32,
            _ => 0,
        })
    })
}

/// `cuFuncSetAttribute`: the limit of dynamic shared memory counts, the rest has no effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) -> Status {
    call(|sim| {
        let function = sim.function(function)?;
        let bytes = usize::try_from(value).map_err(|_| INVALID_VALUE)?;
        if attribute == DYNAMIC_SHARED {
            if bytes > SHARED_OPTIN {
                return Err(INVALID_VALUE);
            }
            function.shared_max.store(bytes, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// `cuFuncSetCacheConfig`: accepted without effect.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: u32) -> Status {
    call(|sim| sim.function(function).map(drop))
}

/// `cuOccupancyMaxActiveBlocksPerMultiprocessor`: by threads alone.
#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: Out<i32>,
    function: Handle,
    block: i32,
    _shared: usize,
) -> Status {
    call(|sim| {
        sim.function(function)?;
        blocks.set(if block > 0 { (2048 / block).min(32) } else { return Err(INVALID_VALUE) })
    })
}

/// `cuLaunchKernel`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    arguments: In<usize>,
    extra: Handle,
) -> Status {
    call(|sim| {
        if extra != 0 {
            return Err(NOT_SUPPORTED);
        }
        let grid =
            Grid { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
        sim.enqueue_launch(function, grid, stream, arguments)
    })
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: Handle,
    attribute_count: u32,
}

/// `cuLaunchKernelEx`: attributes (clusters, programmatic launch...) are ignored.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx(
    config: In<LaunchConfig>,
    function: Handle,
    arguments: In<usize>,
    extra: Handle,
) -> Status {
    call(|sim| {
        let config = config.get()?;
        if extra != 0 {
            return Err(NOT_SUPPORTED);
        }
        let grid = Grid { grid: config.grid, block: config.block, shared: config.shared };
        sim.enqueue_launch(function, grid, config.stream, arguments)
    })
}

/// `cuLaunchCooperativeKernel`: refused, as blocks run one after the other and cannot wait for each
/// other.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cuLaunchCooperativeKernel(
    _function: Handle,
    _grid_x: u32,
    _grid_y: u32,
    _grid_z: u32,
    _block_x: u32,
    _block_y: u32,
    _block_z: u32,
    _shared: u32,
    _stream: Handle,
    _arguments: Handle,
) -> Status {
    call(|_| Err(NOT_SUPPORTED))
}
