//! The kernels of one device: found in memory, else on disk, else compiled.
//!
//! A kernel that one op needs is compiled when it is first asked for; the device's thread waits for
//! that, some 50 ms once in a machine's life. Its relatives (`cuda/kernels/bundle`) follow in the
//! background where the disk will keep them. A fused kernel is compiled in the background when its
//! program is seen for the third time; until it is there the caller runs the program op by op.
//!
//! Used by the launcher, on the device's thread with the context current. Maps are bounded; what
//! falls out is unloaded when the device is known to be idle, never while a launch may be under
//! way.

use super::background::{Background, Job};
use super::cache::{Disk, Key};
use super::compile::{self, Target};
use super::nvidia::{Function, Idle, Module};
use super::shelf::Shelf;
use super::{Gpu, Trouble};
use crate::cuda::kernels::Kernel;
use crate::cuda::kernels::bundle::bundle;
use crate::cuda::kernels::source::{KernelSource, OPTIONS, module};
use crate::graph::device_run::CudaKernel;
use crate::graph::operation::Refusal;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// When a fused program gets a kernel of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fusion {
    /// In the background, when it is seen for the third time.
    Background,
    /// At once: the device waits for the compiler. For tests, and where every run is the same.
    AtOnce,
    /// Never: every op is a launch. For finding the culprit.
    Never,
}

impl Fusion {
    /// `FUTENSOR_FUSION`: `now`, `never`, or anything else.
    pub fn from_environment() -> Fusion {
        match std::env::var("FUTENSOR_FUSION").as_deref() {
            Ok("now") => Fusion::AtOnce,
            Ok("never") => Fusion::Never,
            _ => Fusion::Background,
        }
    }
}

/// When a kernel's relatives are compiled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Relatives {
    /// Together with it: fewer and longer compilations. For tests, and for filling a disk cache.
    Now,
    /// In the background, where the disk keeps them for the next process and they are cheap.
    Later,
    /// When they are asked for themselves.
    Never,
}

impl Relatives {
    /// `FUTENSOR_RELATIVES`: `now`, `never`, or anything else.
    pub fn from_environment() -> Relatives {
        match std::env::var("FUTENSOR_RELATIVES").as_deref() {
            Ok("now") => Relatives::Now,
            Ok("never") => Relatives::Never,
            _ => Relatives::Later,
        }
    }
}

/// A fused program is worth a compiler's time when it is seen as often as this.
const SEEN_BEFORE_COMPILED: u32 = 3;
/// Most kernels of each kind that are remembered.
const KERNELS_MAX: usize = 4096;

/// Number of a loaded module in the store's list.
type ModuleId = usize;

struct Loaded {
    raw: Module,
    /// Kernels of it that are on a shelf.
    kernels: usize,
}

/// A kernel on a shelf.
#[derive(Clone)]
enum Found {
    Ready(Function, ModuleId),
    /// It does not compile or load, and would not the next time either.
    Refused(Refusal),
}

/// A fused kernel on its way.
enum Fused {
    Seen(u32),
    Compiling,
    Done(Found),
}

/// A kernel from outside: its function and its text.
type Brought = (String, String);

/// What the background was asked for.
enum Ticket {
    Fused(Box<Kernel>),
    Relatives(Vec<(Kernel, KernelSource)>),
}

/// All kernels of a device.
pub(crate) struct Modules {
    sm: u32,
    fusion: Fusion,
    disk: Arc<Disk>,
    single: Shelf<Kernel, Found>,
    fused: Shelf<Kernel, Fused>,
    brought: Shelf<Brought, Found>,
    background: Background<Ticket>,
    relatives: Relatives,
    /// Translation units of relatives that were sent to the background.
    sent: HashSet<Key>,
    loaded: HashMap<ModuleId, Loaded>,
    next: ModuleId,
    /// Out of every shelf; unloaded when nothing runs.
    retired: Vec<Module>,
    /// Somebody was told that a fused kernel is not there yet.
    pub unsettled: bool,
}

impl Modules {
    pub fn new(gpu: &Gpu, fusion: Fusion, disk: Arc<Disk>) -> Modules {
        Modules {
            sm: gpu.capability.0 * 10 + gpu.capability.1,
            fusion,
            background: Background::new(disk.clone(), OPTIONS),
            relatives: Relatives::from_environment(),
            sent: HashSet::new(),
            disk,
            single: Shelf::new(KERNELS_MAX),
            fused: Shelf::new(KERNELS_MAX),
            brought: Shelf::new(KERNELS_MAX / 8),
            loaded: HashMap::new(),
            next: 0,
            retired: Vec::new(),
            unsettled: false,
        }
    }

    /// The kernel; compiled now where it was never seen.
    ///
    /// # Errors
    /// Where it does not compile or load.
    pub fn single(&mut self, kernel: &Kernel) -> Result<Function, Trouble> {
        if let Some(found) = self.single.get(kernel) {
            return found.result();
        }
        self.collect()?;
        if self.relatives == Relatives::Now {
            let all = with_sources(kernel);
            if let Ok(image) = self.job(all.iter().map(|(_, s)| s)).and_then(|job| self.image(&job)) {
                self.shelve(all, &image)?;
            }
        }
        if let Some(found) = self.single.get(kernel) {
            return found.result();
        }
        // Alone: a relative's trouble is not this kernel's.
        let source = kernel.source();
        let found = self.found(&source.entry, |own| own.job([&source]))?;
        let out = self.single.put(kernel.clone(), found.clone());
        self.release(out);
        self.send_relatives(kernel);
        found.result()
    }

    /// Has the relatives of an elementwise kernel compiled in the background, each family once.
    fn send_relatives(&mut self, kernel: &Kernel) {
        let cheap = matches!(kernel, Kernel::Elementwise(_) | Kernel::Copy(_) | Kernel::Index(_));
        if self.relatives != Relatives::Later || !cheap || !self.disk.is_there() {
            return;
        }
        let all = with_sources(kernel);
        if all.len() > 1
            && let Ok(job) = self.job(all.iter().map(|(_, s)| s))
            && self.sent.insert(job.key)
        {
            self.background.start(Ticket::Relatives(all), job);
        }
    }

    /// Puts the kernels of a module on their shelf, but for those that are there already: functions
    /// of them may be in use.
    fn shelve(&mut self, all: Vec<(Kernel, KernelSource)>, image: &[u8]) -> Result<(), Trouble> {
        let id = match self.load(image) {
            Ok(id) => id,
            Err(Trouble::Refused(_)) => return Ok(()),
            Err(trouble) => return Err(trouble),
        };
        for (kernel, source) in all {
            if self.single.get(&kernel).is_none() {
                let found = self.function(id, &source.entry)?;
                let out = self.single.put(kernel, found);
                self.release(out);
            }
        }
        self.drop_if_unused(id);
        Ok(())
    }

    /// The kernel of a fused program, where it is there; asking is being seen.
    ///
    /// # Errors
    /// Only of the device: a program whose kernel cannot be had runs op by op.
    pub fn fused(&mut self, kernel: &Kernel) -> Result<Option<Function>, Trouble> {
        self.collect()?;
        let seen = match self.fused.get(kernel) {
            Some(Fused::Done(Found::Ready(function, _))) => return Ok(Some(*function)),
            Some(Fused::Done(Found::Refused(_))) => return Ok(None),
            Some(Fused::Compiling) => {
                self.unsettled = true;
                return Ok(None);
            }
            Some(Fused::Seen(times)) => {
                *times = times.saturating_add(1);
                *times
            }
            None => {
                let out = self.fused.put(kernel.clone(), Fused::Seen(1));
                self.release_fused(out);
                1
            }
        };
        match self.fusion {
            Fusion::Never => Ok(None),
            Fusion::Background if seen < SEEN_BEFORE_COMPILED => {
                self.unsettled = true;
                Ok(None)
            }
            Fusion::Background => {
                self.unsettled = true;
                let source = kernel.source();
                let started = match self.job([&source]) {
                    Ok(job) => self.background.start(Ticket::Fused(Box::new(kernel.clone())), job),
                    Err(_) => false,
                };
                if started {
                    let out = self.fused.put(kernel.clone(), Fused::Compiling);
                    self.release_fused(out);
                }
                Ok(None)
            }
            Fusion::AtOnce => {
                let source = kernel.source();
                let found = self.found(&source.entry, |own| own.job([&source]))?;
                let function = match found {
                    Found::Ready(function, _) => Some(function),
                    Found::Refused(_) => None,
                };
                let out = self.fused.put(kernel.clone(), Fused::Done(found));
                self.release_fused(out);
                Ok(function)
            }
        }
    }

    /// A kernel that an op from outside brings.
    ///
    /// # Errors
    /// Where it does not compile or load, or has no such function.
    pub fn brought(&mut self, kernel: CudaKernel<'_>) -> Result<Function, Trouble> {
        let key: Brought = (kernel.entry().to_owned(), kernel.source().to_owned());
        if let Some(found) = self.brought.get(&key) {
            return found.result();
        }
        let found = self.found(kernel.entry(), |own| own.job_of(kernel.entry(), kernel.source().to_owned()))?;
        let out = self.brought.put(key, found.clone());
        self.release(out);
        found.result()
    }

    /// Takes kernels from their shelves that were not used since the last call;
    /// [`trim`](Self::trim) unloads them.
    pub fn forget_unused(&mut self) {
        let out = self.single.sweep(|_| false).into_iter().chain(self.brought.sweep(|_| false)).collect();
        self.release(out);
        let out = self.fused.sweep(|f| matches!(f, Fused::Compiling));
        self.release_fused(out);
    }

    /// Unloads what no shelf holds any more.
    pub fn trim(&mut self, idle: &Idle<'_>) {
        self.retired.drain(..).for_each(|module| module.unload(idle));
    }

    /// Forgets and unloads everything.
    pub fn clear(&mut self, idle: &Idle<'_>) {
        self.single.clear();
        self.fused.clear();
        self.brought.clear();
        self.retired.extend(self.loaded.drain().map(|(_, loaded)| loaded.raw));
        self.trim(idle);
    }

    fn target(&self) -> Result<Target, String> {
        let known = &compile::compiler()?.known;
        Target::choose(self.sm, known).ok_or_else(|| {
            format!("NVRTC does not know this device's architecture, sm_{}: it knows {known:?}", self.sm)
        })
    }

    fn job<'a>(&self, sources: impl IntoIterator<Item = &'a KernelSource> + Clone) -> Result<Job, String> {
        let name = sources.clone().into_iter().next().map_or("nothing", |s| &s.entry);
        self.job_of(name, module(sources))
    }

    fn job_of(&self, name: &str, text: String) -> Result<Job, String> {
        let target = self.target()?;
        let (major, minor) = compile::compiler()?.version;
        let about = format!("{} {} NVRTC {major}.{minor}", OPTIONS.join(" "), target.option());
        let key = Key::of(&[about.as_bytes(), text.as_bytes()]);
        Ok(Job { name: name.to_owned(), text, target, key })
    }

    fn image(&self, job: &Job) -> Result<Vec<u8>, String> {
        job.run(&self.disk, OPTIONS)
    }

    /// Compiles and loads one kernel. An error is the device's; what is the kernel's own fault is
    /// found.
    fn found(
        &mut self,
        entry: &str,
        job: impl FnOnce(&Modules) -> Result<Job, String>,
    ) -> Result<Found, Trouble> {
        let job = match job(self) {
            Ok(job) => job,
            Err(why) => return Ok(Found::Refused(Refusal::kernel(why))),
        };
        let loaded = match self.image(&job) {
            Ok(image) => self.load(&image),
            Err(why) => return Ok(Found::Refused(Refusal::kernel(why))),
        };
        let loaded = match loaded {
            // What the disk kept may be no image for this driver: once more from the source.
            Err(Trouble::Refused(_)) => {
                self.disk.forget(job.key);
                match self.image(&job) {
                    Ok(image) => self.load(&image),
                    Err(why) => return Ok(Found::Refused(Refusal::kernel(why))),
                }
            }
            loaded => loaded,
        };
        match loaded {
            Ok(id) => {
                let found = self.function(id, entry);
                self.drop_if_unused(id);
                found
            }
            Err(Trouble::Refused(refusal)) => Ok(Found::Refused(refusal)),
            Err(trouble) => Err(trouble),
        }
    }

    fn load(&mut self, image: &[u8]) -> Result<ModuleId, Trouble> {
        let raw = Module::load(image)?;
        let id = self.next;
        self.next += 1;
        self.loaded.insert(id, Loaded { raw, kernels: 0 });
        Ok(id)
    }

    fn function(&mut self, id: ModuleId, entry: &str) -> Result<Found, Trouble> {
        let Some(loaded) = self.loaded.get_mut(&id) else {
            return Ok(Found::Refused(Refusal::kernel("its module is gone")));
        };
        match loaded.raw.function(entry) {
            Ok(function) => {
                loaded.kernels += 1;
                Ok(Found::Ready(function, id))
            }
            Err(Trouble::Refused(_)) => {
                let text = format!("the source has no kernel named {entry} (is it extern \"C\"?)");
                Ok(Found::Refused(Refusal::kernel(text)))
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// Takes in what the background has made.
    fn collect(&mut self) -> Result<(), Trouble> {
        for (ticket, image) in self.background.finished() {
            let kernel = match ticket {
                Ticket::Fused(kernel) => *kernel,
                Ticket::Relatives(all) => {
                    if let Ok(image) = image {
                        self.shelve(all, &image)?;
                    }
                    continue;
                }
            };
            let entry = kernel.source().entry;
            let found = match image.map(|image| self.load(&image)) {
                Ok(Ok(id)) => self.function(id, &entry)?,
                Ok(Err(Trouble::Refused(refusal))) => Found::Refused(refusal),
                Ok(Err(trouble)) => return Err(trouble),
                Err(why) => Found::Refused(Refusal::kernel(why)),
            };
            let out = self.fused.put(kernel, Fused::Done(found));
            self.release_fused(out);
        }
        Ok(())
    }

    fn release_fused(&mut self, out: Vec<Fused>) {
        let found = out.into_iter().filter_map(|f| if let Fused::Done(found) = f { Some(found) } else { None });
        self.release(found.collect());
    }

    /// Lets go of kernels that fell out; a module without any is retired.
    fn release(&mut self, out: Vec<Found>) {
        for found in out {
            let Found::Ready(_, id) = found else { continue };
            if let Some(loaded) = self.loaded.get_mut(&id) {
                loaded.kernels -= 1;
            }
            self.drop_if_unused(id);
        }
    }

    fn drop_if_unused(&mut self, id: ModuleId) {
        if self.loaded.get(&id).is_some_and(|loaded| loaded.kernels == 0)
            && let Some(loaded) = self.loaded.remove(&id)
        {
            self.retired.push(loaded.raw);
        }
    }
}

/// A kernel with its relatives, and the source of each.
fn with_sources(kernel: &Kernel) -> Vec<(Kernel, KernelSource)> {
    bundle(kernel).into_iter().map(|k| (k.clone(), k.source())).collect()
}

impl Found {
    fn result(&self) -> Result<Function, Trouble> {
        match self {
            Found::Ready(function, _) => Ok(*function),
            Found::Refused(refusal) => Err(Trouble::Refused(refusal.clone())),
        }
    }
}
