//! The kernels of one device: found in memory, else on disk, else compiled.
//!
//! A kernel that one op needs is compiled and loaded in the background when it is first asked for:
//! a step that needs it is tried again when it is there, and the device's thread goes on with
//! others. Its relatives (`cuda/kernels/bundle`) follow where the disk will keep them. A fused
//! kernel is compiled when its program is seen for the third time; until it is there the caller
//! runs the program op by op.
//!
//! The launcher uses the store, on the device's thread. Its maps are bounded; a kernel that falls
//! out is unloaded when the device is known to be idle, never while a launch may be under way.

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

/// When a fused program gets a kernel of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fusion {
    /// In the background, when it is seen for the third time.
    Background,
    /// At once: the step waits for the compiler. For tests, and where every run is the same.
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

/// Modules without a kernel in a map, to be unloaded when nothing runs.
type Retired = Arc<Mutex<Vec<Module>>>;

/// A loaded module. When its last kernel is forgotten it is retired.
struct Loaded {
    module: Option<Module>,
    retired: Retired,
}

impl Drop for Loaded {
    fn drop(&mut self) {
        lock(&self.retired).extend(self.module.take());
    }
}

/// Kernels that were made together.
type Made = Vec<Result<(Function, Arc<Loaded>), Refusal>>;

/// The state of a kernel in a map.
enum Kept {
    /// It was seen so often; of fused ones.
    Seen(u32),
    /// It is the nth of those that are being made.
    Coming(Pending<Made>, usize),
    Ready(Function, #[allow(dead_code)] Arc<Loaded>), // Kept for its drop.
    /// It does not compile or load, and would not the next time either.
    Refused(Refusal),
}

impl Kept {
    /// The kernel.
    ///
    /// # Errors
    /// [`Trouble::Later`] where it is on its way; a refusal; a fault that ends the device.
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

/// Makes kernels, on the background's threads.
#[derive(Clone)]
struct Maker {
    sm: u32,
    disk: Arc<Disk>,
    retired: Retired,
}

impl Maker {
    /// Kernels of one unit; where that does not work out, each alone: a relative's trouble is not
    /// another kernel's.
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

    /// Finds a unit on the disk or compiles it, and loads it.
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
        // The disk's entry may be no image for this driver: once more from the source.
        let again = if self.disk.forget(key) { self.load(unit, target)? } else { Err(refused) };
        let refused = match (again, compile::newer_than_the_driver()) {
            (Ok(made), _) => return Ok(made),
            (Err(refused), None) => refused,
            // The driver may know the assembly of an architecture without its binaries.
            (Err(refused), Some(why)) => match self.load(unit, target.portable())? {
                Ok(made) => return Ok(made),
                Err(_) => Refusal::kernel(format!("{}; {why}", refused.message)),
            },
        };
        self.disk.forget(key);
        Err(refused.into())
    }

    /// Loads a unit's image, or says why the driver refuses it.
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

/// A kernel from outside: its function and its text.
type CustomKernel = (String, String);

/// All kernels of a device.
pub(crate) struct Modules {
    maker: Maker,
    fusion: Fusion,
    relatives: Relatives,
    background: Background,
    single: BoundedMap<Kernel, Kept>,
    fused: BoundedMap<Kernel, Kept>,
    custom: BoundedMap<CustomKernel, Kept>,
    /// Families that were asked for in the background, by their first kernels.
    sent: HashSet<Kernel>,
    /// Families whose kernels are not in the map yet.
    families: Vec<(Vec<Kernel>, Pending<Made>)>,
    /// Fused kernels that the step being prepared would have.
    pub asked: Vec<Kernel>,
    /// Something was launched without a fused kernel that may come.
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
    /// [`Trouble::Later`] where it was never seen: it is being made. A refusal, where it does not
    /// compile or load.
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

    /// Has the relatives of an elementwise kernel compiled in the background, each family once.
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

    /// Puts kernels that were made together into their map, but for those that are there already.
    fn keep(&mut self, all: Vec<Kernel>, made: &Pending<Made>) {
        for (k, kernel) in all.into_iter().enumerate() {
            if self.single.get(&kernel).is_none() {
                self.single.put(kernel, Kept::Coming(made.clone(), k));
            }
        }
    }

    /// The same for families that are there by now; of one that is not, each kernel comes by
    /// itself.
    fn keep_families(&mut self) {
        let (there, coming) = self.families.drain(..).partition(|(_, made)| made.is_there());
        self.families = coming;
        let there: Vec<(Vec<Kernel>, Pending<Made>)> = there;
        there.into_iter().for_each(|(all, made)| self.keep(all, &made));
    }

    /// The kernel of a fused program, where it is there.
    ///
    /// # Errors
    /// Of the device; [`Trouble::Later`] where steps wait for fused kernels. A program whose kernel
    /// cannot be had runs op by op.
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

    /// Counts the fused kernels that were asked for since the last call, and were run op by op: one
    /// that was seen often enough is compiled.
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

    /// A kernel that an op from outside brings.
    ///
    /// # Errors
    /// As [`single`](Self::single), and where the source has no such function.
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

    /// Takes kernels from their maps that were not used since the last call;
    /// [`trim`](Self::trim) unloads them.
    pub fn forget_unused(&mut self) {
        self.single.sweep(Kept::is_coming);
        self.custom.sweep(Kept::is_coming);
        self.fused.sweep(Kept::is_coming);
    }

    /// Unloads modules that no map holds any more.
    pub fn trim(&mut self, idle: &Idle<'_>) {
        std::mem::take(&mut *lock(&self.maker.retired))
            .into_iter()
            .for_each(|module| module.unload(idle));
    }

    /// Forgets and unloads everything; the background has ended.
    pub fn clear(&mut self, idle: &Idle<'_>) {
        self.single.clear();
        self.fused.clear();
        self.custom.clear();
        self.families.clear();
        self.trim(idle);
    }
}
