//! A step on a lane: the places of its values, the launches of its kernels, and the rest that is
//! settled when the lane has reached the step. The GPU's counterpart of `host/step`.
//!
//! The device's thread calls it. Its results are promises: the elements are there when the lane has
//! reached the submission.

use super::context::{DeviceContext, Place, StepSite, device, here};
use super::graph::launch_list::as_placeholder;
use super::index_check::{IndexCheck, Known};
use super::launch::group;
use super::memory::chunked::{Chunk, ChunkedTransfer};
use super::memory::download::CHUNK_BYTES;
use super::memory::heap::DeviceBuffer;
use super::memory::lazy_upload::{LazyUpload, Residency};
use super::memory::page_locked;
use super::memory::pinned::PinnedBlock;
use super::{DeviceView, DeviceViewMut, Trouble};
use crate::backend::{self, Backend, Fused, OpRun, Read, Results, guarded};
use crate::cuda::ops;
use crate::dtype::{DType, Element, Scalar, with_any_dtype};
use crate::engine::run;
use crate::error::Error;
use crate::graph::node::{Node, NodeLink, Op, Room, Sink};
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value};
use crate::graph::work::Work;
use crate::shape::{Layout, Shape, contiguous_strides};
use crate::view::{Serial, View};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// An operand of a step.
pub(crate) struct Operand {
    pub value: Result<Value, Error>,
    /// The step may write over it: nobody else will read it, and this many owners of its buffer are
    /// known.
    pub spare: Option<usize>,
}

/// A step that is queued.
pub(crate) struct Queued {
    pub results: Results,
    pub check: Option<Arc<IndexCheck>>,
    /// The elements that a sink reads once the submission is reached.
    pub host_copy: Option<HostCopy>,
}

/// A copy to the host, complete when a submission is reached.
pub(crate) enum HostCopy {
    /// Host memory for a sink: staging that the submission fills.
    Staged(Arc<PinnedBlock>, Layout, DType),
    /// The submission has filled the sink's own memory.
    InPlace,
    /// The same: a value that lay on the host all along.
    OnHost(Value, Layout, DType),
    /// A value that comes in chunks, to where its sink wants it; or to here, to be looked at.
    Chunked(Arc<ChunkedTransfer>, Option<(Arc<Vec<MaybeUninit<u64>>>, Layout, DType)>),
    /// One of these chunks; of no step.
    Chunk(Chunk),
}

impl HostCopy {
    /// Hands the elements to the sink, where it is to be given any. To be called when the
    /// submission is reached.
    pub fn give(&self, sink: &dyn Sink, node: &Node) -> Result<(), Error> {
        let (base, layout, dtype) = match self {
            HostCopy::Staged(block, layout, dtype) => (block.ptr() as *const u8, layout, *dtype),
            HostCopy::OnHost(value, layout, dtype) => {
                (value.host().unwrap_or(std::ptr::null()), layout, *dtype)
            }
            HostCopy::Chunked(_, Some((all, layout, dtype))) => {
                (all.as_ptr().cast(), layout, *dtype)
            }
            HostCopy::InPlace | HostCopy::Chunked(_, None) | HostCopy::Chunk(_) => return Ok(()),
        };
        let ptr = base.wrapping_add(layout.offset * dtype.size());
        let view = View { ptr, dtype, shape: &layout.shape, strides: &layout.strides };
        backend::given(sink, node, view, &Serial)
    }
}

/// The number that a value repeats, where that is all there is to it.
fn uniform(value: &Value, shape: &Shape, dtype: DType) -> Option<Scalar> {
    let Storage::Inline(_) = &value.storage else { return None };
    if shape.numel() == 0 {
        // With any strides, no element is read.
        return Some(Scalar::Int(0));
    }
    let layout = value.layout(shape);
    if !layout.strides.iter().zip(shape.iter()).all(|(&s, &n)| s == 0 || n == 1) {
        return None;
    }
    let one = View { ptr: value.first(dtype), dtype, shape: &[], strides: &[] };
    Some(with_any_dtype!(dtype, T => {
        let x = one.as_slice::<T>()?[0];
        match dtype {
            DType::Bool => Scalar::Bool(x.to_i64() != 0),
            d if d.is_differentiable() => Scalar::Float(x.to_f64()),
            _ => Scalar::Int(x.to_i64()),
        }
    }))
}

/// A step's result before it is a value.
pub(super) struct Target {
    pub buffer: Arc<dyn Buffer>,
    pub ptr: u64,
}

/// The device, for the time in which a step is queued on a lane.
pub(super) struct Launch<'a> {
    context: &'a mut DeviceContext,
    lane: usize,
    site: StepSite,
    /// Memory that cannot be had now will not come.
    last_try: bool,
    host_copy: Option<HostCopy>,
}

fn view<'a>(read: &'a Read<'_, u64>) -> DeviceView<'a> {
    DeviceView { ptr: read.at, dtype: read.dtype, shape: read.shape, strides: &read.strides }
}

impl Backend for Launch<'_> {
    type At = u64;
    type Place = Target;
    type Kept = Known;
    type Trouble = Trouble;
    /// Trouble that ends the device, or that may be gone when the step is tried again.
    type Stop = Trouble;

    fn nowhere() -> u64 {
        0
    }

    fn number(&self, value: &Value, of: &Node) -> Option<Scalar> {
        uniform(value, &of.shape, of.dtype)
    }

    fn find(&mut self, value: &Value, of: &Node) -> Result<u64, Trouble> {
        let offset = value.placed.as_ref().map_or(0, |p| p.offset) * of.dtype.size();
        let ptr = match (self.context.place(self.lane, value)?, &value.storage) {
            (Place::Device(ptr), _) => ptr,
            (Place::Inline, Storage::Inline(words)) => match &self.context.launch_list {
                Some(launch_list) => {
                    let to = super::Site::scratch(&self.site, INLINE_BYTES)?;
                    launch_list.constant(words, to);
                    to
                }
                None => {
                    let to = self.site.room(INLINE_BYTES)?;
                    self.context.bring_words(words, to, self.lane)?;
                    to.ptr()
                }
            },
            (Place::Inline, _) => unreachable!("inline values have their elements themselves"),
        };
        Ok(ptr + offset as u64)
    }

    fn place(&mut self, of: &Node) -> Result<Target, Trouble> {
        self.context.target(of.bytes(), self.lane)
    }

    fn take_over(&mut self, buffer: &Arc<dyn Buffer>, keeps: bool) -> Target {
        let buffer = buffer.clone();
        match as_placeholder(&*buffer) {
            Some(there) if keeps => {
                there.changed();
                return Target { ptr: there.ptr(), buffer };
            }
            Some(there) => {
                let buffer = there.taken_over();
                return Target { ptr: buffer.ptr(), buffer };
            }
            None => {}
        }
        let here =
            device(&*buffer).unwrap_or_else(|| unreachable!("a spare buffer is device memory"));
        let ptr = here.ptr();
        self.context.overwrites(self.lane, here);
        Target { ptr, buffer }
    }

    fn value(place: Target) -> Value {
        Value::contiguous(Storage::Shared(place.buffer))
    }

    fn fused(&mut self, fused: Fused<'_, Self>) -> Result<(), Trouble> {
        let Fused { program, shape, reads, places, end } = fused;
        let views: SmallVec<[DeviceView<'_>; 4]> = reads.iter().map(view).collect();
        let out: SmallVec<[DeviceViewMut<'_>; 2]> = places
            .iter()
            .zip(&program.outputs)
            .map(|(place, &reg)| DeviceViewMut { ptr: place.ptr, dtype: program.dtype(reg), shape })
            .collect();
        let end = end.map(|end| {
            let (op, dims) = (end.reduction.op, &end.reduction.dims[..]);
            let output =
                DeviceViewMut { ptr: end.place.ptr, dtype: end.node.dtype, shape: &end.node.shape };
            group::End { op, dims, reg: end.reg, output }
        });
        self.context.order(self.lane)?;
        self.context.launcher.group(&self.site, program, shape, &views, &out, end)
    }

    fn op(&mut self, call: OpRun<'_, Self>) -> Result<(), Trouble> {
        let OpRun { node, reads, place, in_place } = call;
        let views: SmallVec<[DeviceView<'_>; 4]> = reads.iter().map(view).collect();
        let output = DeviceViewMut { ptr: place.ptr, dtype: node.dtype, shape: &node.shape };
        self.context.order(self.lane)?;
        if node.numel() == 0 && !matches!(&node.op, Op::Custom(op) if ops::looks(&**op)) {
            return Ok(());
        }
        // A panic of a custom op must not end the device.
        guarded(|| self.context.launcher.node(&self.site, &node.op, &views, output, in_place))?;
        if node.op.reuses().is_some() && !in_place {
            match &self.context.launch_list {
                Some(launch_list) => launch_list.copied(node.bytes()),
                None => self.context.heap.copied(node.bytes()),
            }
        }
        Ok(())
    }

    /// Copies a value to where its sink will read it.
    fn give(&mut self, sink: &dyn Sink, _: &Node, value: &Value, of: &Node) -> Result<(), Trouble> {
        let layout = value.layout(&of.shape);
        if let Some(value) = on_host(value) {
            self.host_copy = Some(HostCopy::OnHost(value, layout, of.dtype));
            return Ok(());
        }
        let bytes = of.bytes();
        let place = sink.place().filter(|place| page_locked::address_of(&**place).is_some());
        if bytes > CHUNK_BYTES {
            self.context.pinned.reserve()?;
            let ptr = self.find(value, of)?;
            self.context.order(self.lane)?;
            let (from, offset) = match buffer_here(value).filter(|_| layout.is_contiguous()) {
                Some(from) => (from, layout.offset * of.dtype.size()),
                None => {
                    let to = self.context.target(bytes, self.lane)?;
                    self.row_by_row(ptr, &layout, of, to.ptr)?;
                    (to.buffer, 0)
                }
            };
            let (room, looked_at) = match sink.room() {
                Some(room) => (room?, None),
                None => {
                    let (room, all) = Room::plain(bytes)?;
                    (room, Some((all, contiguous(&of.shape), of.dtype)))
                }
            };
            self.host_copy = Some(HostCopy::Chunked(
                self.context.download(from, offset, bytes, room, place),
                looked_at,
            ));
            return Ok(());
        }
        let staging = if bytes > 0 {
            let block = match place {
                Some(_) => None,
                None => Some(self.context.pinned.take(bytes)?),
            };
            let ptr = self.find(value, of)?;
            self.context.order(self.lane)?;
            let from = if layout.is_contiguous() {
                let all = here(value).unwrap_or_else(|| unreachable!("it was just found here"));
                all.part((layout.offset * of.dtype.size()) as u64, bytes)
            } else {
                let copy = self.site.room(bytes)?;
                self.row_by_row(ptr, &layout, of, copy.ptr())?;
                copy
            };
            let retained = &mut self.context.retained[self.lane];
            let raw = self.context.lanes.raw(self.lane);
            // The last of the step that may fail: a copy to a user's memory is queued once.
            match (block, place) {
                (Some(block), _) => retained.download(block, from, raw)?,
                (None, place) => {
                    place
                        .map_or(Ok(()), |place| retained.download_in_place(place, 0, from, raw))?;
                    self.host_copy = Some(HostCopy::InPlace);
                    return Ok(());
                }
            }
        } else {
            Arc::new(self.context.pinned.take(0)?)
        };
        self.host_copy = Some(HostCopy::Staged(staging, contiguous(&of.shape), of.dtype));
        Ok(())
    }

    fn blame(&self, trouble: Trouble, node: &Node) -> Result<Error, Trouble> {
        self.context.blame(trouble, node, self.last_try)
    }

    fn kept(kept: &Known) -> backend::Operand<'_> {
        kept.result.as_ref()
    }
}

impl Launch<'_> {
    /// Copies a value's elements to memory without gaps.
    fn row_by_row(&mut self, ptr: u64, layout: &Layout, of: &Node, to: u64) -> Result<(), Trouble> {
        let view = DeviceView { ptr, dtype: of.dtype, shape: &of.shape, strides: &layout.strides };
        let to = DeviceViewMut { ptr: to, dtype: of.dtype, shape: &of.shape };
        self.context.launcher.copy(&self.site, view, to)?;
        self.context.launcher.send(&self.site)
    }
}

fn contiguous(shape: &Shape) -> Layout {
    Layout { shape: shape.clone(), strides: contiguous_strides(shape), offset: 0 }
}

/// The buffer in which a value's elements lie on the device.
fn buffer_here(value: &Value) -> Option<Arc<dyn Buffer>> {
    let Storage::Shared(buffer) = &value.storage else { return None };
    if device(&**buffer).is_some() {
        return Some(buffer.clone());
    }
    let lazy: &LazyUpload = buffer.as_any().downcast_ref()?;
    match &*lazy.residency() {
        Residency::Resident(here) => Some(here.clone()),
        _ => None,
    }
}

impl DeviceContext {
    pub(super) fn target(&mut self, bytes: usize, lane: usize) -> Result<Target, Trouble> {
        if let Some(launch_list) = &self.launch_list {
            let buffer = launch_list.buffer(bytes);
            return Ok(Target { ptr: buffer.ptr(), buffer });
        }
        let buffer: Arc<DeviceBuffer> = self.heap.buffer(&self.pool, bytes, &self.lanes, lane)?;
        Ok(Target { ptr: buffer.ptr(), buffer })
    }

    /// Makes a step's launches, all that it takes being there.
    fn send(&mut self, lane: usize, site: &StepSite) -> Result<(), Trouble> {
        if self.launcher.batch.has_products() {
            let next = self.lanes.next(lane);
            match self.launcher.blas.works(self.lanes.stream(lane), &self.pool, next) {
                Ok(before) => {
                    self.after.extend(before);
                    self.order(lane)?;
                }
                Err(trouble) => {
                    self.launcher.forget();
                    return Err(trouble);
                }
            }
        }
        self.launcher.send(site)
    }

    /// The step's own error; a fault, and trouble that may be gone later, go up.
    fn blame(&self, trouble: Trouble, node: &Node, last_try: bool) -> Result<Error, Trouble> {
        match trouble {
            Trouble::Refused(refusal) => Ok(node.fail(refusal.kind, refusal.message)),
            Trouble::OutOfMemory { bytes } if last_try => {
                Ok(backend::out_of_memory(node, bytes, self.heap.bytes_live()))
            }
            other => Err(other),
        }
    }

    /// Queues a step on operands that may only be queued themselves.
    ///
    /// # Errors
    /// A fault that ends the device; an operand that is on its way; and, but for the last try,
    /// memory that cannot be had now.
    pub fn work(
        &mut self,
        lane: usize,
        work: &Work,
        inputs: &[NodeLink],
        operands: &[Operand],
        last_try: bool,
    ) -> Result<Queued, Trouble> {
        self.queue(lane, work, last_try, |launch| {
            let operand = |k: usize| operands[k].value.as_ref();
            run::work(work, inputs, &operand, &|k| operands[k].spare, &|p| Cow::Borrowed(p), launch)
        })
    }

    /// Queues the launches of `run` for some work.
    pub(super) fn queue(
        &mut self,
        lane: usize,
        work: &Work,
        last_try: bool,
        run: impl FnOnce(&mut Launch<'_>) -> Result<Results, Trouble>,
    ) -> Result<Queued, Trouble> {
        self.after.clear();
        let site = self.site(lane);
        let mut launch = Launch { context: self, lane, site, last_try, host_copy: None };
        let mut results = match run(&mut launch) {
            Ok(results) => results,
            Err(trouble) => {
                launch.context.launcher.forget();
                launch.site.give_up()?;
                return Err(trouble);
            }
        };
        if let Err(trouble) = launch.context.send(lane, &launch.site) {
            let written = work.nodes().enumerate().filter(|(k, _)| work.writes(*k));
            for ((_, node), result) in
                written.zip(&mut results).filter(|(_, result)| result.is_ok())
            {
                match launch.context.blame(trouble.clone(), node, last_try) {
                    Ok(error) => *result = Err(error),
                    Err(trouble) => {
                        launch.site.give_up()?;
                        return Err(trouble);
                    }
                }
            }
        }
        let mut check = None;
        match (work, &mut results[..]) {
            (Work::Node(node), [result @ Ok(_)]) => match launch.site.leave(launch.context, node) {
                Ok(left) => check = left,
                Err(trouble) => *result = Err(launch.context.blame(trouble, node, last_try)?),
            },
            _ => launch.site.give_up()?,
        }
        Ok(Queued { results, check, host_copy: launch.host_copy })
    }
}

/// The host value in which the elements lie as they do in this one, where they are not on the
/// device.
fn on_host(value: &Value) -> Option<Value> {
    match &value.storage {
        Storage::Inline(_) => Some(value.clone()),
        Storage::Shared(buffer) => {
            let lazy: &LazyUpload = buffer.as_any().downcast_ref()?;
            match &*lazy.residency() {
                Residency::Elsewhere(from) if from.placed.is_none() && from.host().is_some() => {
                    Some(from.clone())
                }
                _ => None,
            }
        }
    }
}
