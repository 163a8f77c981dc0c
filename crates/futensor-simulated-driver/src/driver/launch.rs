//! Launches, and what can be asked of a function. Modules are in `module.rs`.

use crate::checks::shared;
use crate::driver::devices::SHARED_OPTIN;
use crate::driver::module::Function;
use crate::ffi::{Handle, In, Kind, Out, id};
use crate::kernels::fibers;
use crate::kernels::image::{Image, Pointer, Shape};
use crate::machine::faults::LaunchFate;
use crate::machine::sim::{LAUNCHES, Sim, call, lock};
use crate::machine::work::{Fault, Work};
use crate::memory::Touch;
use crate::random::Random;
use crate::status::{INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, Outcome, Status};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes at the largest alignment that a parameter or shared memory can ask for.
#[repr(C, align(256))]
#[derive(Clone, Copy)]
struct Line([u8; 256]);

/// One launch: a kernel, its grid, and a copy of its arguments.
#[derive(Clone)]
pub struct Launch {
    image: Arc<Image>,
    entry: usize,
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
    arguments: Vec<Vec<Line>>,
    /// What it is to suffer.
    pub fate: LaunchFate,
}

impl Launch {
    /// Its kernel.
    pub fn name(&self) -> &str {
        &self.image.entries[self.entry].name
    }

    /// The same, with another fate.
    pub fn suffering(&self, fate: LaunchFate) -> Launch {
        Launch { fate, ..self.clone() }
    }

    /// How many threads it has.
    pub fn threads(&self) -> u64 {
        self.grid.iter().chain(&self.block).map(|&n| u64::from(n)).product()
    }

    /// Runs it. The seed says whether threads and blocks start from the first or from the last.
    pub fn run(&self, order: &mut Random) -> Result<(), Fault> {
        if let Some(status) = self.fate.fault {
            return Err(Fault { status, text: "a fault on demand".into() });
        }
        let descending = order.bits() & 1 == 1;
        let mut shared = vec![Line([0xFF; 256]); self.shared.div_ceil(256)];
        // Kernels own their arguments: each run works on a copy, as a graph may run this launch
        // again.
        let mut copies = self.arguments.clone();
        let mut addresses: Vec<*mut c_void> =
            copies.iter_mut().map(|a| a.as_mut_ptr().cast()).collect();
        let entry = &self.image.entries[self.entry];
        let (dynamic, dynamic_bytes) = (shared.as_mut_ptr().cast(), self.shared);
        let shape = Shape { grid: self.grid, block: self.block, dynamic, dynamic_bytes };
        let done = fibers::run(&self.image, entry.work, &mut addresses, &shape, descending);
        for found in shared::end() {
            lock().report("race", format!("kernel {}: {found}", entry.name));
        }
        done
    }

    /// What it reads and writes. A pointer reaches all of the allocation that it points into.
    fn touches(&self, sim: &mut Sim) -> Vec<Touch> {
        let entry = &self.image.entries[self.entry];
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
            let address = self.word(parameter, offset);
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
                note(sim, self.word(parameter, at), false);
            }
        }
        touches
    }

    fn word(&self, parameter: usize, offset: usize) -> usize {
        let mut bytes = [0; 8];
        for (i, byte) in bytes.iter_mut().enumerate() {
            let at = offset + i;
            *byte = self.arguments[parameter].get(at / 256).map_or(0, |line| line.0[at % 256]);
        }
        usize::from_le_bytes(bytes)
    }
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
        let sizes = &function.image.entries[function.entry].parameters;
        let mut copies = Vec::new();
        for (address, &size) in arguments.list(sizes.len())?.into_iter().zip(sizes) {
            let mut lines = vec![Line([0; 256]); size.div_ceil(256)];
            // SAFETY: the caller of the C function promises that each argument pointer leads to a
            // value of the kernel's parameter type; `size` is that type's, and the lines have room
            // for it.
            unsafe {
                std::ptr::copy_nonoverlapping(address as *const u8, lines.as_mut_ptr().cast(), size)
            };
            copies.push(lines);
        }
        let launch = Launch {
            image: function.image.clone(),
            entry: function.entry,
            grid: grid.grid,
            block: grid.block,
            shared: grid.shared as usize,
            arguments: copies,
            fate: LaunchFate::default(),
        };
        let touches = launch.touches(self);
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

/// `cuFuncGetAttribute`: what a client sizes its blocks by.
#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: Handle) -> Status {
    call(|sim| {
        let function = sim.function(function)?;
        value.set(match attribute {
            0 => 1024,   // MAX_THREADS_PER_BLOCK
            4 => 32,     // NUM_REGS
            5 | 6 => 90, // PTX_VERSION, BINARY_VERSION
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
