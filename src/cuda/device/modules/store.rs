//! The kernels of one device: taken from memory, or from disk, or compiled.
//!
//! The kernel of a single op is compiled and loaded in the background at its first use: a step that
//! needs it is retried when the kernel is ready, and meanwhile the device's thread continues with
//! other steps. The kernel's relatives (`cuda/kernels/bundle`) are compiled next if the disk keeps
//! them. A fused kernel is compiled when its program is seen for the third time; until then the
//! caller runs the program op by op.
//!
//! The launcher uses the store, on the device's thread. Its maps are bounded; an evicted kernel is
//! unloaded when the device is known to be idle, never while a launch may be in progress.

use super::bounded_map::BoundedMap;
use super::cache::{Disk, Key};
use super::compile::{self, Target, compile};
use crate::cuda::device::background::{Background, Pending, Wanted};
use crate::cuda::device::libraries::nvidia::{Function, Idle, Module};
use crate::cuda::device::{Gpu, Trouble, Until};
use crate::cuda::kernels::Kernel;
use crate::cuda::kernels::bundle::bundle;
use crate::cuda::kernels::source::{KernelSource, OPTIONS, module};
use crate::graph::device_run::CudaKernel;
use crate::graph::operation::Refusal;
use crate::sync::{Mutex, lock};
use std::collections::HashSet;
use std::sync::Arc;

/// When a fused program gets its own kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fusion {
    /// In the background, when the program is seen for the third time.
    Background,
    /// At first sight: the step waits for the compiler. For tests, and for programs whose runs are
    /// all alike.
    AtOnce,
    /// Never: every op is a launch. For debugging.
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
    /// Together with the kernel: fewer and longer compilations. For tests, and to fill a disk
    /// cache.
    Now,
    /// In the background, if the disk keeps them for the next process and they are cheap.
    Later,
    /// Only when they are needed themselves.
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

/// A fused program is compiled when it has been seen this often.
pub(crate) const SEEN_BEFORE_COMPILED: u32 = 3;
/// The most kernels of each kind that are kept.
const KERNELS_MAX: usize = 4096;

/// Modules without a kernel in a map, to be unloaded when the device is idle.
type Retired = Arc<Mutex<Vec<Module>>>;

/// A loaded module. It is retired when its last kernel is dropped.
struct Loaded {
    module: Option<Module>,
    retired: Retired,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        lock(&self.retired).extend(self.module.take());
    }
}

/// Kernels that were compiled together.
type Made = Vec<Result<(Function, Arc<Loaded>), Refusal>>;

/// The state of a kernel in a map.
enum Kept {
    /// A fused kernel that was seen this often.
    Seen(u32),
    /// The nth of the kernels that are being compiled.
    Coming(Pending<Made>, usize),
    Ready(Function, #[allow(dead_code)] Arc<Loaded>), // Kept for its drop.
    /// The kernel does not compile or load, and would not on a retry.
    Refused(Refusal),
}

impl Kept {
    /// The kernel.
    ///
    /// # Errors
    /// [`Trouble::Later`] while the kernel is being compiled; a refusal; a fault that ends the
    /// device.
    fn settle(&mut self) -> Result<Function, Trouble> {
        if let Kept::Coming(made, at) = self {
            *self = match made.get()?[*at].clone() {
                Ok((function, loaded)) => Kept::Ready(function, loaded),
                Err(refusal) => Kept::Refused(refusal),
            };
        }
        match self {
            Kept::Ready(function, _) => Ok(*function),
            Kept::Refused(refusal) => Err(Trouble::Refused(refusal.clone())),
            Kept::Seen(_) | Kept::Coming(..) => Err(Trouble::Later(Until::Made)),
        }
    }

    fn is_coming(&self) -> bool {
        matches!(self, Kept::Coming(made, _) if !made.is_there())
    }
}

/// A translation unit.
struct Unit {
    name: String,
    text: String,
    entries: Vec<String>,
}

impl Unit {
    fn of(all: &[KernelSource]) -> Unit {
        let entries: Vec<String> = all.iter().map(|source| source.entry.clone()).collect();
        Unit { name: entries[0].clone(), text: module(all), entries }
    }

    fn key(&self, target: Target) -> Result<Key, String> {
        let (major, minor) = compile::compiler()?.version;
        let about = format!("{} {} NVRTC {major}.{minor}", OPTIONS.join(" "), target.option());
        Ok(Key::of(&[about.as_bytes(), self.text.as_bytes()]))
    }
}

/// Compiles kernels, on the background's threads.
#[derive(Clone)]
struct Maker {
    sm: u32,
    disk: Arc<Disk>,
    retired: Retired,
}

impl Maker {
    /// Compiles the kernels as one unit; if that fails, each kernel alone, so that one bad relative
    /// does not fail the others.
    fn all(&self, sources: &[KernelSource]) -> Result<Made, Trouble> {
        match self.unit(&Unit::of(sources)) {
            Err(Trouble::Refused(refusal)) if sources.len() == 1 => Ok(vec![Err(refusal)]),
            Err(Trouble::Refused(_)) => {
                let alone: Result<Vec<Made>, Trouble> =
                    sources.chunks(1).map(|one| self.all(one)).collect();
                Ok(alone?.into_iter().flatten().collect())
            }
            made => made,
        }
    }

    /// Reads a unit from the disk or compiles it, and loads it.
    fn unit(&self, unit: &Unit) -> Result<Made, Trouble> {
        let known = &compile::compiler().map_err(Refusal::kernel)?.known;
        let target = Target::choose(self.sm, known).ok_or_else(|| {
            Refusal::kernel(format!(
                "NVRTC does not know this device's architecture, sm_{}: it knows {known:?}",
                self.sm
            ))
        })?;
        let key = unit.key(target).map_err(Refusal::kernel)?;
        let refused = match self.load(unit, target)? {
            Ok(made) => return Ok(made),
            Err(refused) => refused,
        };
        // The disk's image may not suit this driver: compile the source instead.
        let again = if self.disk.forget(key) { self.load(unit, target)? } else { Err(refused) };
        let refused = match (again, compile::newer_than_the_driver()) {
            (Ok(made), _) => return Ok(made),
            (Err(refused), None) => refused,
            // The driver may accept the PTX of an architecture, but not its binaries.
            (Err(refused), Some(why)) => match self.load(unit, target.portable())? {
                Ok(made) => return Ok(made),
                Err(_) => Refusal::kernel(format!("{}; {why}", refused.message)),
            },
        };
        self.disk.forget(key);
        Err(refused.into())
    }

    /// Loads a unit's image; a refusal says why the driver rejects it.
    fn load(&self, unit: &Unit, target: Target) -> Result<Result<Made, Refusal>, Trouble> {
        let key = unit.key(target).map_err(Refusal::kernel)?;
        let image = match self.disk.get(key) {
            Some(image) => image,
            None => {
                let image =
                    compile(&unit.name, &unit.text, OPTIONS, target).map_err(Refusal::kernel)?;
                self.disk.put(key, &image);
                image
            }
        };
        let module = match Module::load(&image) {
            Err(Trouble::Refused(refusal)) => return Ok(Err(refusal)),
            loaded => loaded?,
        };
        let found: Vec<Result<Function, Trouble>> =
            unit.entries.iter().map(|entry| module.function(entry)).collect();
        let loaded = Arc::new(Loaded { module: Some(module), retired: self.retired.clone() });
        let kernel = |(entry, found): (&String, Result<Function, Trouble>)| match found {
            Ok(function) => Ok(Ok((function, loaded.clone()))),
            Err(Trouble::Refused(_)) => {
                let text = format!("the source has no kernel named {entry} (is it extern \"C\"?)");
                Ok(Err(Refusal::kernel(text)))
            }
            Err(fault) => Err(fault),
        };
        unit.entries.iter().zip(found).map(kernel).collect::<Result<Made, Trouble>>().map(Ok)
    }
}

/// The kernel of a custom op: its function and its source.
type CustomKernel = (String, String);

/// The kernels of a device.
pub(crate) struct Modules {
    maker: Maker,
    fusion: Fusion,
    relatives: Relatives,
    background: Background,
    single: BoundedMap<Kernel, Kept>,
    fused: BoundedMap<Kernel, Kept>,
    custom: BoundedMap<CustomKernel, Kept>,
    /// Families that were sent to the background, by their first kernels.
    sent: HashSet<Kernel>,
    /// Families whose kernels are not in the map yet.
    families: Vec<(Vec<Kernel>, Pending<Made>)>,
    /// Fused kernels that the current step would use.
    pub asked: Vec<Kernel>,
    /// Whether something was launched op by op although its fused kernel may still come.
    pub unsettled: bool,
}

impl Modules {
    pub fn new(gpu: &Gpu, fusion: Fusion, disk: Disk, background: Background) -> Modules {
        let sm = gpu.capability.0 * 10 + gpu.capability.1;
        Modules {
            maker: Maker { sm, disk: Arc::new(disk), retired: Retired::default() },
            fusion,
            relatives: Relatives::from_environment(),
            background,
            single: BoundedMap::new(KERNELS_MAX),
            fused: BoundedMap::new(KERNELS_MAX),
            custom: BoundedMap::new(KERNELS_MAX / 8),
            sent: HashSet::new(),
            families: Vec::new(),
            asked: Vec::new(),
            unsettled: false,
        }
    }

    /// The kernel that an op needs.
    ///
    /// # Errors
    /// [`Trouble::Later`] at first use, while the kernel is being compiled. A refusal if it does
    /// not compile or load.
    pub fn single(&mut self, kernel: &Kernel) -> Result<Function, Trouble> {
        if let Some(kept) = self.single.get(kernel) {
            return kept.settle();
        }
        self.keep_families();
        if let Some(kept) = self.single.get(kernel) {
            return kept.settle();
        }
        if self.relatives == Relatives::Now {
            let all = bundle(kernel);
            let made = self.make(Wanted::Now, &all);
            self.keep(all, &made);
        } else {
            let made = self.make(Wanted::Now, std::slice::from_ref(kernel));
            self.single.put(kernel.clone(), Kept::Coming(made, 0));
            self.send_relatives(kernel);
        }
        Err(Trouble::Later(Until::Made))
    }

    fn make(&self, wanted: Wanted, kernels: &[Kernel]) -> Pending<Made> {
        let (maker, kernels) = (self.maker.clone(), kernels.to_vec());
        self.background.make(wanted, move || {
            let sources: Vec<KernelSource> = kernels.iter().map(Kernel::source).collect();
            maker.all(&sources)
        })
    }

    /// Sends the relatives of an elementwise kernel to the background, each family once.
    fn send_relatives(&mut self, kernel: &Kernel) {
        let cheap = matches!(kernel, Kernel::Elementwise(_) | Kernel::Copy(_) | Kernel::Index(_));
        if self.relatives != Relatives::Later || !cheap || !self.maker.disk.is_there() {
            return;
        }
        let all = bundle(kernel);
        if all.len() > 1 && self.sent.insert(all[0].clone()) {
            let made = self.make(Wanted::Sometime, &all);
            self.families.push((all, made));
        }
    }

    /// Puts kernels that were compiled together into their map, except those that it already has.
    fn keep(&mut self, all: Vec<Kernel>, made: &Pending<Made>) {
        for (k, kernel) in all.into_iter().enumerate() {
            if self.single.get(&kernel).is_none() {
                self.single.put(kernel, Kept::Coming(made.clone(), k));
            }
        }
    }

    /// The same for families that have been compiled; the kernels of other families are compiled
    /// one by one on use.
    fn keep_families(&mut self) {
        let (there, coming) = self.families.drain(..).partition(|(_, made)| made.is_there());
        self.families = coming;
        let there: Vec<(Vec<Kernel>, Pending<Made>)> = there;
        there.into_iter().for_each(|(all, made)| self.keep(all, &made));
    }

    /// The kernel of a fused program, if it is ready.
    ///
    /// # Errors
    /// A fault of the device; [`Trouble::Later`] if steps wait for fused kernels. A program whose
    /// kernel does not compile runs op by op.
    pub fn fused(&mut self, kernel: &Kernel) -> Result<Option<Function>, Trouble> {
        if self.fusion == Fusion::Never {
            return Ok(None);
        }
        let at_once = self.fusion == Fusion::AtOnce;
        let found = match self.fused.get(kernel) {
            Some(kept) => kept.settle(),
            None if at_once => {
                let made = self.make(Wanted::Now, std::slice::from_ref(kernel));
                self.fused.put(kernel.clone(), Kept::Coming(made, 0));
                Err(Trouble::Later(Until::Made))
            }
            None => {
                self.fused.put(kernel.clone(), Kept::Seen(0));
                Err(Trouble::Later(Until::Made))
            }
        };
        match found {
            Err(Trouble::Refused(_)) => Ok(None),
            Err(Trouble::Later(_)) if !at_once => {
                self.asked.push(kernel.clone());
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    /// Counts the fused programs that ran op by op since the last call, and compiles those that
    /// were seen often enough.
    pub fn were_seen(&mut self) {
        for kernel in std::mem::take(&mut self.asked) {
            self.unsettled = true;
            let Some(Kept::Seen(times)) = self.fused.get(&kernel) else { continue };
            *times += 1;
            if *times >= SEEN_BEFORE_COMPILED {
                let made = self.make(Wanted::Sometime, std::slice::from_ref(&kernel));
                self.fused.put(kernel, Kept::Coming(made, 0));
            }
        }
    }

    /// The kernel of a custom op.
    ///
    /// # Errors
    /// As [`single`](Self::single), and if the source lacks the function.
    pub fn custom(&mut self, kernel: CudaKernel<'_>) -> Result<Function, Trouble> {
        let key: CustomKernel = (kernel.entry().to_owned(), kernel.source().to_owned());
        if let Some(kept) = self.custom.get(&key) {
            return kept.settle();
        }
        let (maker, (entry, text)) = (self.maker.clone(), key.clone());
        let made = self.background.make(Wanted::Now, move || {
            let unit = Unit { name: entry.clone(), text, entries: vec![entry] };
            match maker.unit(&unit) {
                Err(Trouble::Refused(refusal)) => Ok(vec![Err(refusal)]),
                made => made,
            }
        });
        self.custom.put(key, Kept::Coming(made, 0));
        Err(Trouble::Later(Until::Made))
    }

    /// Removes kernels that were not used since the last call from their maps;
    /// [`trim`](Self::trim) unloads them.
    pub fn forget_unused(&mut self) {
        self.single.sweep(Kept::is_coming);
        self.custom.sweep(Kept::is_coming);
        self.fused.sweep(Kept::is_coming);
    }

    /// Unloads modules that are no longer in a map.
    pub fn trim(&mut self, idle: &Idle<'_>) {
        std::mem::take(&mut *lock(&self.maker.retired))
            .into_iter()
            .for_each(|module| module.unload(idle));
    }

    /// Removes and unloads all kernels; the background has ended.
    pub fn clear(&mut self, idle: &Idle<'_>) {
        self.single.clear();
        self.fused.clear();
        self.custom.clear();
        self.families.clear();
        self.trim(idle);
    }
}
