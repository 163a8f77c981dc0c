//! A compiled kernel library, loaded: its kernels, their parameters, and the shim's state inside
//! it.

use crate::kernels::abi::{Api, Hooks};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex};

/// Runs threads of a kernel until this fiber has nothing more to start.
pub type Worker = extern "C" fn(*mut *mut c_void);

/// Where a kernel's parameters hold addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// To memory that is read: a pointer to const.
    Read,
    /// To memory that may be written.
    Written,
}

/// One kernel.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Entry {
    pub name: String,
    pub work: Worker,
    /// Sizes of the parameters.
    pub parameters: Vec<usize>,
    /// Parameter, offset in it, and kind, of every pointer.
    pub pointers: Vec<(usize, usize, Pointer)>,
    /// Parameters that are, or hold, classes whose fields are not known: parameter, offset, size.
    pub opaque: Vec<(usize, usize, usize)>,
}

/// What a launch runs over.
#[derive(Clone, Copy)]
#[allow(missing_docs)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub dynamic: *mut c_void,
    pub dynamic_bytes: usize,
}

/// `futsim_s` of the shim.
#[repr(C)]
struct State {
    next: u32,
    total: u32,
    current: u32,
    together: u32,
    descending: u32,
    block: u64,
    blocks: u64,
    dynamic: *mut c_void,
    dynamic_bytes: u64,
}

/// `futsim_image_t` of the shim.
#[repr(C)]
struct Raw {
    state: *const State,
    api: *mut *const Api,
    begin: extern "C" fn(*const u32, *const u32, *mut c_void, u64, u32),
    advance: extern "C" fn() -> i32,
}

type Emit = extern "C" fn(*mut c_void, u32, u32, u32, u32);

/// `futsim_entry` of the shim.
#[repr(C)]
struct RawEntry {
    name: *const c_char,
    work: Worker,
    describe: extern "C" fn(Emit, *mut c_void),
}

/// A loaded library. It stays loaded for the life of the process.
pub struct Image {
    library: *mut c_void,
    raw: *const Raw,
    /// It tells of its accesses.
    watched: bool,
    /// Its kernels.
    pub entries: Vec<Entry>,
}

// SAFETY: the pointers lead into a library that is never unloaded; its state is changed by the
// scheduler's thread alone, through `begin`, `advance` and the kernels.
unsafe impl Send for Image {}
// SAFETY: as above; everything else only reads.
unsafe impl Sync for Image {}

extern "C" fn collect(to: *mut c_void, what: u32, parameter: u32, offset: u32, size: u32) {
    // SAFETY: `describe` hands back the pointer that `load` gave it, to an `Entry` that is
    // exclusively its own.
    let entry = unsafe { &mut *to.cast::<Entry>() };
    let (parameter, offset, size) = (parameter as usize, offset as usize, size as usize);
    match what {
        0 => entry.parameters.push(size),
        1 => entry.pointers.push((parameter, offset, Pointer::Read)),
        2 => entry.pointers.push((parameter, offset, Pointer::Written)),
        _ => entry.opaque.push((parameter, offset, size)),
    }
}

/// Loads a library once; the same path gives the same image. A watched one is given the hooks.
pub fn load(path: &Path, hooks: Hooks) -> Result<Arc<Image>, String> {
    static LOADED: LazyLock<Mutex<HashMap<PathBuf, Arc<Image>>>> = LazyLock::new(Mutex::default);
    let mut loaded = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(image) = loaded.get(path) {
        return Ok(image.clone());
    }
    let image = Arc::new(open(path, hooks)?);
    loaded.insert(path.to_owned(), image.clone());
    Ok(image)
}

fn open(path: &Path, told: Hooks) -> Result<Image, String> {
    let name =
        CString::new(path.to_string_lossy().as_bytes()).map_err(|error| error.to_string())?;
    // SAFETY: the library was compiled by `compile.rs` (its name is a hash of its source): its
    // initialisers are those of the client's own kernels, and the two symbols have the layouts
    // mirrored above.
    unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        if library.is_null() {
            let text = libc::dlerror();
            let text = if text.is_null() {
                "unknown".into()
            } else {
                CStr::from_ptr(text).to_string_lossy()
            };
            return Err(format!("cannot load a kernel library: {text}"));
        }
        let raw = libc::dlsym(library, c"futsim_image".as_ptr()) as *const Raw;
        let table = libc::dlsym(library, c"futsim_entries".as_ptr()) as *const RawEntry;
        if raw.is_null() || table.is_null() {
            return Err("a kernel library without its tables".into());
        }
        let mut entries = Vec::new();
        for i in 0.. {
            let row = &*table.add(i);
            if row.name.is_null() {
                break;
            }
            let name = CStr::from_ptr(row.name).to_string_lossy().into_owned();
            let (parameters, pointers, opaque) = Default::default();
            let mut entry = Entry { name, work: row.work, parameters, pointers, opaque };
            (row.describe)(collect, (&raw mut entry).cast());
            entries.push(entry);
        }
        let hooks = libc::dlsym(library, c"futsim_hooks".as_ptr()) as *mut Hooks;
        if !hooks.is_null() {
            hooks.write(told);
        }
        Ok(Image { library, raw, watched: !hooks.is_null(), entries })
    }
}

impl Image {
    fn state(&self) -> State {
        // SAFETY: the pointer leads to the shim's state, which only this thread (the scheduler's)
        // changes.
        unsafe { (*self.raw).state.read_volatile() }
    }

    /// Whether its kernels tell of their accesses.
    pub fn is_watched(&self) -> bool {
        self.watched
    }

    /// Sets up a launch. The memory at `dynamic` is the launch's until its last thread has ended.
    pub fn begin(&self, api: &'static Api, shape: &Shape, descending: bool) {
        let Shape { grid, block, dynamic, dynamic_bytes } = shape;
        // SAFETY: as in `state`; the table of calls lives for ever.
        unsafe {
            (*self.raw).api.write(api);
            let bytes = *dynamic_bytes as u64;
            ((*self.raw).begin)(
                grid.as_ptr(),
                block.as_ptr(),
                *dynamic,
                bytes,
                u32::from(descending),
            );
        }
    }

    /// Steps to the next block; false when there is none.
    pub fn advance(&self) -> bool {
        // SAFETY: as in `state`.
        unsafe { ((*self.raw).advance)() != 0 }
    }

    /// True once every thread of the block has been started.
    pub fn all_started(&self) -> bool {
        let state = self.state();
        state.next == state.total
    }

    /// The block (in the order in which they run) and the thread that run.
    pub fn position(&self) -> (u64, u32) {
        let state = self.state();
        (state.block, state.current)
    }

    /// Address and size of a variable of the source, by its name.
    pub fn symbol(&self, name: &str) -> Option<(usize, usize)> {
        let name = CString::new(name).ok()?;
        // SAFETY: the library is loaded. `dladdr1` with 1 (RTLD_DL_SYMENT) fills both places, the
        // second with a pointer to the symbol's entry in the loaded library.
        unsafe {
            let address = libc::dlsym(self.library, name.as_ptr());
            if address.is_null() {
                return None;
            }
            let mut info: libc::Dl_info = std::mem::zeroed();
            let mut entry: *mut c_void = std::ptr::null_mut();
            let known = libc::dladdr1(address, &mut info, &mut entry, 1) != 0 && !entry.is_null();
            let size = if known { (*entry.cast::<libc::Elf64_Sym>()).st_size as usize } else { 0 };
            Some((address as usize, size))
        }
    }
}
