//! Modules: images loaded, their functions and variables.

use crate::checks::shared::HOOKS;
use crate::driver::devices::SHARED_MAX;
use crate::ffi::{Handle, Kind, Out, Text, handle, id};
use crate::kernels::bounds::Bounds;
use crate::kernels::compile::{self, Program};
use crate::kernels::image::{self, Image};
use crate::machine::entry::{call, call_holding, may_wait};
use crate::machine::objects::{Function, Module};
use crate::machine::sim::Sim;
use crate::status::{
    FILE_NOT_FOUND, INVALID_HANDLE, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NOT_FOUND, Outcome,
    SUCCESS, Status, UNSUPPORTED_PTX_VERSION,
};
use std::sync::Arc;

impl Sim {
    fn load(&mut self, module: Out<Handle>, image: Arc<Image>, source: &str) -> Outcome {
        let context = self.healthy_current()?;
        let id = self.fresh_id();
        self.modules.insert(id, Module { context, image, source: source.into() });
        self.stats.live_modules += 1;
        module.set(handle(Kind::Module, id))
    }
}

fn load_text(module: Out<Handle>, text: &str) -> Status {
    if compile::version_of(text).is_some_and(|made| made > crate::driver::devices::driver()) {
        return UNSUPPORTED_PTX_VERSION;
    }
    // Compiled before the lock is taken: g++ takes its time.
    let loaded = match Program::from_image(text) {
        None => Err("an image that no simulated NVRTC made".to_owned()),
        Some(program) => program.compile().and_then(|path| image::load(&path, HOOKS)),
    };
    let waited = call_holding(|sim| may_wait(sim, "cuModuleLoadData"));
    if waited != SUCCESS {
        return waited;
    }
    call(|sim| match loaded {
        Ok(image) => sim.load(module, image, text),
        Err(message) => {
            sim.report("misuse", format!("cuModuleLoadData: {message}"));
            // What is no binary is taken for PTX.
            Err(if text.starts_with("\x7fELF") { INVALID_IMAGE } else { INVALID_PTX })
        }
    })
}

/// `cuModuleLoadData`.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadData(module: Out<Handle>, image: Text) -> Status {
    match image.read() {
        Ok(text) => load_text(module, &text),
        Err(status) => status,
    }
}

/// `cuModuleLoadDataEx`: options are ignored.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoadDataEx(
    module: Out<Handle>,
    image: Text,
    _: u32,
    _: Handle,
    _: Handle,
) -> Status {
    cuModuleLoadData(module, image)
}

/// `cuModuleLoad`.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleLoad(module: Out<Handle>, path: Text) -> Status {
    let Ok(path) = path.read() else { return INVALID_VALUE };
    match std::fs::read(path) {
        Ok(bytes) => load_text(module, String::from_utf8_lossy(&bytes).trim_end_matches('\0')),
        Err(_) => FILE_NOT_FOUND,
    }
}

/// `cuModuleUnload`.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(module: Handle) -> Status {
    call(|sim| {
        let module = sim.modules.remove(&id(Kind::Module, module)?).ok_or(INVALID_HANDLE)?;
        sim.stats.live_modules -= 1;
        sim.healthy(module.context)
    })
}

/// `cuModuleGetFunction`.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetFunction(function: Out<Handle>, module: Handle, name: Text) -> Status {
    call(|sim| {
        let (module, name) = (id(Kind::Module, module)?, name.read()?);
        let Module { image, source, .. } = sim.modules.get(&module).ok_or(INVALID_HANDLE)?;
        let (image, bounds) = (image.clone(), Bounds::of(source, &name));
        let entry = image.entries.iter().position(|entry| entry.name == name).ok_or(NOT_FOUND)?;
        let id = sim.fresh_id();
        sim.functions.insert(
            id,
            Arc::new(Function { module, image, entry, bounds, shared_max: SHARED_MAX.into() }),
        );
        function.set(handle(Kind::Function, id))
    })
}

/// `cuModuleGetGlobal_v2`: the variable in the kernel library, which copies may then use. It is
/// shared by all modules of the same source.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleGetGlobal_v2(
    address: Out<Handle>,
    size: Out<usize>,
    module: Handle,
    name: Text,
) -> Status {
    call(|sim| {
        let module = sim.modules.get(&id(Kind::Module, module)?).ok_or(INVALID_HANDLE)?;
        let device = sim.device_of(module.context);
        let (start, len) = module.image.symbol(&name.read()?).ok_or(NOT_FOUND)?;
        sim.memory.adopt(start, len, device);
        address.set_if_asked(start);
        size.set_if_asked(len);
        Ok(())
    })
}
