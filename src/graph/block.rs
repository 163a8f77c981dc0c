//! One run of a planned block: what an `Op::Block` carries, and the parts that its outputs are.
//!
//! A block with one output is that output's node. With more of them each output is a part: a node of its own, made
//! from the block's, that takes its result from here. Knows nothing of where or when it runs.

use super::plan::{Plan, bit};
use super::value::Value;
use crate::error::Error;
use crate::sync::{Mutex, lock};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The result of an output, until its part takes it.
pub(crate) struct Kept {
    pub result: Result<Value, Error>,
    /// What the device that made it still doubts about it.
    #[allow(dead_code)] // Only devices that run ahead of their kernels have doubts.
    pub doubts: Option<Arc<dyn Any + Send + Sync>>,
}

pub(crate) struct Block {
    pub plan: Arc<Plan>,
    /// Seed and offset of each draw, reserved for this run.
    pub draws: Vec<(u64, u64)>,
    /// A bit for each output that somebody may still look at.
    wanted: AtomicU64,
    results: Mutex<Vec<Option<Kept>>>,
    /// How far a device has come that could not go on.
    #[allow(dead_code)] // Host devices never stop halfway.
    pub under_way: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Block {
    pub fn new(plan: Arc<Plan>, draws: Vec<(u64, u64)>) -> Block {
        Block {
            plan,
            draws,
            wanted: AtomicU64::new(u64::MAX),
            results: Mutex::new(Vec::new()),
            under_way: Mutex::new(None),
        }
    }

    /// The same block with other draws, and exactly these outputs wanted.
    #[allow(dead_code)] // As `under_way`.
    pub fn again(&self, draws: Vec<(u64, u64)>, wanted: u64) -> Block {
        Block { wanted: AtomicU64::new(wanted), ..Block::new(self.plan.clone(), draws) }
    }

    /// Outputs that somebody may still look at.
    pub fn wanted(&self) -> u64 {
        self.wanted.load(Relaxed)
    }

    /// Leaves the results to the parts.
    pub fn keep(&self, results: Vec<Option<Kept>>) {
        *lock(&self.results) = results;
    }
}

/// One output of a block with several.
pub(crate) struct Part {
    pub block: Arc<Block>,
    pub output: usize,
}

impl Part {
    /// The result, once; `None` where the block did not compute it.
    pub fn take(&self) -> Option<Kept> {
        lock(&self.block.results).get_mut(self.output).and_then(Option::take)
    }
}

impl Drop for Part {
    /// Its node is gone, so nobody can ask for it any more.
    fn drop(&mut self) {
        if self.output < 63 {
            self.block.wanted.fetch_and(!bit(self.output), Relaxed);
        }
        drop(self.take());
    }
}
