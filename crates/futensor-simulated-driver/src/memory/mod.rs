//! The table of allocations: who owns an address, from when to when it may be used, and what it
//! costs.
//!
//! The entry points are in `allocate.rs`; pages are `arena.rs`'s. An allocation has two lives: the
//! one the client sees, in the order of its calls, and the one in the order in which work runs.
//! `Life` is the second; `left` is the first.

pub mod arena;

use crate::checks::race::History;
use crate::status::{OUT_OF_MEMORY, Outcome};
use arena::{Arena, Span};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Where an allocation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On the device with this ordinal.
    Device(usize),
    /// Page-locked host memory of ours.
    Pinned,
    /// Host memory of the client's that it registered.
    Registered,
}

/// How far the simulated device is with an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Life {
    /// The allocation is queued.
    Coming,
    /// It may be used.
    Here,
    /// It has been freed.
    Gone,
}

/// One allocation.
#[allow(missing_docs)]
pub struct Allocation {
    pub serial: u64,
    pub span: Span,
    pub place: Place,
    /// The pool that it belongs to.
    pub pool: Option<u64>,
    pub life: Life,
    /// What freed it, once a call has.
    pub left: Option<Arc<str>>,
    /// Where its free is queued.
    pub leaves_at: Option<(u64, u64)>,
    /// A variable of a module, or memory of the client's: not ours to close.
    pub variable: bool,
    pub history: History,
}

/// Bytes of a device.
#[derive(Clone, Copy, Default)]
pub struct Usage {
    /// Held by allocations whose free has not run.
    pub held: usize,
    /// Of these, freed by a call.
    pub leaving: usize,
}

/// A part of an allocation that an item uses.
#[derive(Clone, Debug)]
pub struct Touch {
    /// The allocation's address.
    pub base: usize,
    /// Bytes of it.
    pub range: std::ops::Range<usize>,
    /// Written, or only read.
    pub write: bool,
}

/// All allocations, by address.
#[derive(Default)]
pub struct Memory {
    arena: Option<Arena>,
    table: BTreeMap<usize, Allocation>,
    usage: BTreeMap<usize, Usage>,
    serial: u64,
    /// Freed allocations that are still remembered, oldest first.
    buried: VecDeque<usize>,
    /// What pools keep of it.
    kept: Vec<Kept>,
    /// Bytes of each pool: allocated, and kept.
    pools: BTreeMap<u64, [usize; 2]>,
}

/// Freed memory that its pool gives out again.
struct Kept {
    span: Span,
    pool: u64,
    /// Where it was freed.
    freed: (u64, u64),
}

/// Freed allocations that are remembered, to tell a use after free from a wild address.
const BURIED_MAX: usize = 65536;

impl Memory {
    /// The table without its allocations; their pages are closed, addresses go on.
    pub fn emptied(self) -> Memory {
        for allocation in self.table.values() {
            if allocation.life == Life::Here && !allocation.variable {
                allocation.span.close();
            }
        }
        self.kept.iter().for_each(|kept| kept.span.close());
        Memory { arena: self.arena, ..Memory::default() }
    }

    /// Enters a new allocation. Memory that is `Coming` is opened when its item runs.
    pub fn add(
        &mut self,
        len: usize,
        place: Place,
        pool: Option<u64>,
        life: Life,
    ) -> Outcome<usize> {
        if self.arena.is_none() {
            self.arena = Arena::new();
        }
        let span = self.arena.as_mut().and_then(|arena| arena.take(len)).ok_or(OUT_OF_MEMORY)?;
        if life == Life::Here {
            if !span.open() {
                return Err(OUT_OF_MEMORY);
            }
            span.poison();
        }
        self.enter(span, place, pool, life);
        if let Place::Device(device) = place {
            self.usage.entry(device).or_default().held += len;
        }
        Ok(span.start)
    }

    /// Enters a new allocation where a pool keeps memory, if it does at an address that will do and
    /// after a free that will do.
    pub fn again(
        &mut self,
        len: usize,
        device: usize,
        pool: u64,
        may: impl Fn((u64, u64)) -> bool,
    ) -> Option<usize> {
        let fits =
            |kept: &Kept| kept.pool == pool && may(kept.freed) && kept.span.again(len).is_some();
        let found = self.kept.iter().rposition(fits)?;
        let kept = self.kept.remove(found).span;
        self.pools.entry(pool).or_default()[1] -= kept.len;
        let span = kept.again(len)?;
        self.enter(span, Place::Device(device), Some(pool), Life::Coming);
        self.usage.entry(device).or_default().held += len;
        Some(span.start)
    }

    /// Gives back what a pool keeps.
    pub fn trim(&mut self, pool: u64) {
        self.pools.entry(pool).or_default()[1] = 0;
        self.kept.retain(|kept| {
            if kept.pool == pool {
                kept.span.close();
            }
            kept.pool != pool
        });
    }

    /// Enters memory of the client's.
    pub fn register(&mut self, start: usize, len: usize) -> Outcome {
        if self.find(start).is_some() {
            return Err(crate::status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.enter(Span::of_client(start, len), Place::Registered, None, Life::Here);
        Ok(())
    }

    /// Enters a module's variable as memory of a device; it is never freed.
    pub fn adopt(&mut self, start: usize, len: usize, device: usize) {
        if !self.table.contains_key(&start) {
            self.enter(Span::of_client(start, len), Place::Device(device), None, Life::Here);
            if let Some(variable) = self.table.get_mut(&start) {
                variable.variable = true;
            }
        }
    }

    fn enter(&mut self, span: Span, place: Place, pool: Option<u64>, life: Life) {
        self.serial += 1;
        if let Some(pool) = pool {
            self.pools.entry(pool).or_default()[0] += span.len;
        }
        let (history, variable) = (History::default(), place == Place::Registered);
        let fresh = Allocation {
            serial: self.serial,
            span,
            place,
            pool,
            life,
            left: None,
            leaves_at: None,
            variable,
            history,
        };
        self.table.insert(span.start, fresh);
    }

    /// Takes registered memory out.
    pub fn unregister(&mut self, start: usize) {
        self.table.remove(&start);
    }

    /// The allocation that an address lies in, freed ones included.
    pub fn find(&mut self, address: usize) -> Option<&mut Allocation> {
        let (&start, allocation) = self.table.range_mut(..=address).next_back()?;
        (address < start + allocation.span.len.max(1)).then_some(allocation)
    }

    /// The allocation that begins at an address, freed ones included.
    pub fn at(&mut self, start: usize) -> Option<&mut Allocation> {
        self.table.get_mut(&start)
    }

    /// What was written beside live allocations, and which allocations no call has freed.
    pub fn inspect(&self) -> (Vec<String>, Vec<String>) {
        let (mut damaged, mut leaked) = (Vec::new(), Vec::new());
        for allocation in self.table.values().filter(|a| !a.variable && a.life != Life::Gone) {
            let (serial, len, place) = (allocation.serial, allocation.span.len, allocation.place);
            if allocation.life == Life::Here
                && let Some(at) = allocation.span.damage()
            {
                let offset = at as i64 - allocation.span.start as i64;
                damaged.push(format!("byte {offset} relative to allocation {serial} was written"));
            }
            if allocation.left.is_none() {
                leaked.push(format!("allocation {serial} of {len} bytes ({place:?})"));
            }
        }
        (damaged, leaked)
    }

    /// True where memory of a pool is not freed.
    pub fn has_of(&self, pool: u64) -> bool {
        self.table.values().any(|a| a.pool == Some(pool) && a.left.is_none())
    }

    /// Bytes of a pool: allocated, and kept.
    pub fn of_pool(&self, pool: u64) -> [usize; 2] {
        self.pools.get(&pool).copied().unwrap_or_default()
    }

    /// Bytes in use on a device.
    pub fn usage(&self, device: usize) -> Usage {
        self.usage.get(&device).copied().unwrap_or_default()
    }

    /// A call has freed the allocation; it is still held.
    pub fn leaving(&mut self, start: usize, label: Arc<str>, at: Option<(u64, u64)>) {
        let Some(allocation) = self.table.get_mut(&start) else { return };
        allocation.left = Some(label);
        allocation.leaves_at = at;
        if let Place::Device(device) = allocation.place {
            self.usage.entry(device).or_default().leaving += allocation.span.len;
        }
    }

    /// Bytes whose free is queued on this stream: a new allocation of the same stream may have
    /// them.
    pub fn leaving_on(&self, device: usize, stream: u64) -> usize {
        let here = |a: &&Allocation| a.place == Place::Device(device) && a.life != Life::Gone;
        let mine = |a: &&Allocation| a.leaves_at.is_some_and(|at| at.0 == stream);
        self.table.values().filter(here).filter(mine).map(|a| a.span.len).sum()
    }

    /// The free runs, at a point of a stream. Returns the address of a byte beside the allocation
    /// that was written, if any. A pool that keeps its memory keeps this.
    pub fn gone(
        &mut self,
        start: usize,
        freed: (u64, u64),
        keeps: impl Fn(u64) -> bool,
    ) -> Option<usize> {
        let allocation = self.table.get_mut(&start)?;
        let damage = (allocation.life == Life::Here).then(|| allocation.span.damage()).flatten();
        allocation.life = Life::Gone;
        allocation.history = History::default();
        if let Some(pool) = allocation.pool {
            self.pools.entry(pool).or_default()[0] -= allocation.span.len;
        }
        match allocation.pool.filter(|&pool| keeps(pool)) {
            Some(pool) => {
                self.pools.entry(pool).or_default()[1] += allocation.span.len;
                self.kept.push(Kept { span: allocation.span, pool, freed });
            }
            None => allocation.span.close(),
        }
        if let Place::Device(device) = allocation.place {
            let usage = self.usage.entry(device).or_default();
            usage.held -= allocation.span.len;
            usage.leaving -= allocation.span.len;
        }
        self.buried.push_back(start);
        if self.buried.len() > BURIED_MAX
            && let Some(oldest) = self.buried.pop_front()
            && self.table.get(&oldest).is_some_and(|allocation| allocation.life == Life::Gone)
        {
            self.table.remove(&oldest);
        }
        damage
    }
}
