//! The convolutions that cuDNN computes (`dnn`). Where it is missing or takes one not, the caller
//! computes that convolution another way (`cuda/ops/conv`).
//!
//! Each set of sizes is decided once, in the background: a thread opens the library, asks it, and
//! runs its answer on zeros to warm it up, so that its kernels are loaded before a step needs them.
//! A step that comes first is deferred, as for a kernel, so values do not depend on the time of
//! asking. Where there is no memory for the warm-up, the answer stands without it, and the step
//! loads the kernels itself, which may wait for running work.

#![allow(unsafe_code)]

use super::dnn;
use super::handles::{Handles, Use};
use super::library_call::ConvolutionCall;
use super::nvidia::{self, Raw};
use crate::cuda::convolution::Convolution;
use crate::cuda::device::background::{Background, Pending, Wanted};
use crate::cuda::device::graph::executable::Captured;
use crate::cuda::device::modules::bounded_map::BoundedMap;
use crate::cuda::device::report::DeclinedConvolutions;
use crate::cuda::device::{Stream, Trouble, Until};
use crate::graph::operation::Refusal;
use crate::process_end;
use crate::sync::{Mutex, lock};
use std::sync::Arc;

/// Most sets of sizes that are remembered.
const SIZES_MAX: usize = 1024;

/// The handle and stream of warm-ups.
#[derive(Clone, Copy)]
struct WarmUp {
    handle: dnn::Handle,
    stream: Stream,
}

/// A plan, or why there is none.
pub(crate) type Decided = Result<Arc<dnn::Plan>, Refusal>;

/// The convolutions of a device.
pub(crate) struct Convolutions {
    pub handles: Handles<dnn::Handle>,
    sizes: BoundedMap<Convolution, Pending<Decided>>,
    warm_up: Arc<Mutex<Option<WarmUp>>>,
    pool: nvidia::Pool,
    background: Background,
    /// Those of float32 may round their operands to TF32.
    pub tf32: bool,
    /// cuDNN is to be asked.
    pub wanted: bool,
    /// The convolutions that it declined.
    pub declined: DeclinedConvolutions,
}

impl WarmUp {
    fn new() -> Result<WarmUp, Trouble> {
        let handle = dnn::Handle::make()?;
        match Raw::new() {
            Ok(raw) => Ok(WarmUp { handle, stream: Stream { raw, number: 0 } }),
            Err(trouble) => {
                handle.end();
                Err(trouble)
            }
        }
    }

    /// Runs a plan on zeros.
    fn run(self, plan: &dnn::Plan, pool: nvidia::Pool) -> Result<(), Trouble> {
        let Stream { raw, .. } = self.stream;
        let mut end = 0;
        let starts = plan.bytes.map(|bytes| {
            let start = end;
            end += bytes.next_multiple_of(256);
            start as u64
        });
        let memory = raw.allocate(pool, end, end)?;
        let at = starts.map(|start| memory.span().ptr() + start);
        let run = || plan.run(self.handle, at).map_err(|status| plan.said(status, &self.stream));
        let done = raw.zero(memory.span()).and_then(|()| run());
        // cuDNN loads more libraries as it is used.
        process_end::guard();
        raw.free(memory)?;
        done
    }
}

/// Asks the library, on a thread of the background.
fn decide(
    asked: &Convolution,
    tf32: bool,
    warm_up: &Mutex<Option<WarmUp>>,
    pool: nvidia::Pool,
    declined: &DeclinedConvolutions,
) -> Result<Decided, Trouble> {
    let library = match dnn::library() {
        Ok(library) => library,
        Err(why) => return Ok(Err(Refusal::kernel(why))),
    };
    let mut slot = lock(warm_up);
    let mut attempt = || {
        let warm_up = match *slot {
            Some(warm_up) => warm_up,
            None => *slot.insert(WarmUp::new()?),
        };
        warm_up.handle.bind(&warm_up.stream)?;
        let mut why = Refusal::kernel("cuDNN has no algorithm that repeats bit by bit");
        for plan in library.plans(warm_up.handle, asked, tf32)? {
            match warm_up.run(&plan, pool) {
                Ok(()) | Err(Trouble::OutOfMemory { .. }) => return Ok(Arc::new(plan)),
                Err(Trouble::Refused(refusal)) => why = refusal,
                Err(trouble) => return Err(trouble),
            }
        }
        Err(why.into())
    };
    match attempt() {
        Ok(plan) => Ok(Ok(plan)),
        Err(Trouble::Refused(refusal)) => {
            declined.note(asked, &refusal);
            Ok(Err(refusal))
        }
        Err(trouble) => Err(trouble),
    }
}

impl Convolutions {
    pub fn new(pool: nvidia::Pool, background: Background) -> Convolutions {
        Convolutions {
            handles: Handles::new(background.clone(), dnn::Handle::make, dnn::Handle::end),
            sizes: BoundedMap::new(SIZES_MAX),
            warm_up: Arc::default(),
            pool,
            background,
            tf32: false,
            wanted: true,
            declined: DeclinedConvolutions::default(),
        }
    }

    /// The plan for it, or why there is none.
    pub fn decided(&mut self, asked: &Convolution) -> Result<Decided, Trouble> {
        if self.sizes.get(asked).is_none() {
            let (asked, tf32, warm_up, pool) = (*asked, self.tf32, self.warm_up.clone(), self.pool);
            let declined = self.declined.clone();
            let made = self
                .background
                .make(Wanted::Now, move || decide(&asked, tf32, &warm_up, pool, &declined));
            self.sizes.put(asked, made);
        }
        let slot = self.sizes.get(asked).ok_or(Trouble::Later(Until::Made))?;
        let decided = slot.get().cloned();
        if !matches!(decided, Ok(_) | Err(Trouble::Later(_))) {
            self.sizes.remove(asked);
        }
        decided
    }

    pub fn forget_unused(&mut self) {
        self.sizes.sweep(|made| !made.is_there());
    }

    /// Ends its handles; the background has ended.
    pub fn clear(&mut self) {
        self.sizes.clear();
        self.handles.clear();
        if let Some(WarmUp { handle, stream }) = lock(&self.warm_up).take() {
            let _ = stream.raw.sleep();
            handle.end();
            // SAFETY: made by `WarmUp::new`, and nobody else has it.
            unsafe { stream.raw.destroy() };
        }
    }

    /// Queues one on a stream whose handle is ready.
    pub fn convolve(
        &self,
        stream: &Stream,
        convolved: &ConvolutionCall<u64>,
    ) -> Result<(), Trouble> {
        let handle = self.handles.get(Use::Lane(stream.number))?;
        handle.bind(stream)?;
        let plan = &convolved.plan;
        plan.run(handle, convolved.at).map_err(|status| plan.said(status, stream))
    }

    /// One as a graph, by capturing it on this stream.
    pub fn captured(
        &self,
        raw: Raw,
        convolved: &ConvolutionCall<u64>,
    ) -> Result<Captured, Trouble> {
        let (handle, stream) = (self.handles.get(Use::Capture)?, Stream { raw, number: 0 });
        handle.bind(&stream)?;
        let plan = &convolved.plan;
        Captured::of(raw, || plan.run(handle, convolved.at), |status| plan.said(status, &stream))
    }
}
