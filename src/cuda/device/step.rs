//! Launching one step: operands in, results' places out, launches queued. The device's counterpart of
//! `host/step`.
//!
//! Called by the engine's driver on the device's thread. What is returned are promises: the elements are there when
//! the lane has reached the flight. Operands that failed fail what is made from them, and nothing else.

#![allow(unsafe_code)]

use super::doubt::Doubt;
use super::gear::{Berth, Gear, Place, device, read_back};
use super::group::End;
use super::handed::{Handed, Whereabouts};
use super::memory::DeviceBuffer;
use super::pinned::PinnedBlock;
use super::tape::spoken_of;
use super::{DeviceView, DeviceViewMut, Trouble};
use crate::dtype::{DType, Element, Scalar, with_dtype};
use crate::error::{Error, ErrorKind};
use crate::graph::fuse::Group;
use crate::graph::node::{Node, NodeLink, Op, Sink};
use crate::graph::operation::Refusal;
use crate::graph::program::{Code, Program, Reg};
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value, owners};
use crate::guard::caught;
use crate::host::step::{Results, broadcast, constant, first, instead, spread, strides_of, taint};
use crate::shape::{Layout, Shape, Strides, contiguous_strides};
use crate::view::{Serial, View};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::sync::Arc;

/// An operand of a step.
pub(crate) struct Operand {
    pub value: Result<Value, Error>,
    /// The step may write over it: nobody else will read it, and so many owners of its buffer are known.
    pub spare: Option<usize>,
}

/// A step that is queued.
#[derive(Default)]
pub(crate) struct Queued {
    pub results: Results,
    pub doubt: Option<Arc<Doubt>>,
    /// What a sink reads once the flight is reached.
    pub landing: Option<Landing>,
}

/// Host memory that a sink is given: staging that the flight fills, or a value that lay on the host all along.
pub(crate) struct Landing {
    staging: Option<PinnedBlock>,
    value: Option<Value>,
    layout: Layout,
    dtype: DType,
}

impl Landing {
    /// Hands the elements to the sink. To be called when the flight is reached.
    pub fn give(&self, sink: &dyn Sink, node: &Node) -> Result<(), Error> {
        let base = match (&self.staging, &self.value) {
            (Some(block), _) => block.ptr() as *const u8,
            (None, Some(value)) => value.host().unwrap_or(std::ptr::null()),
            (None, None) => std::ptr::null(),
        };
        let ptr = base.wrapping_add(self.layout.offset * self.dtype.size());
        let view = View { ptr, dtype: self.dtype, shape: &self.layout.shape, strides: &self.layout.strides };
        let taken = caught(|| sink.take(view, &Serial));
        taken.unwrap_or_else(|words| Err(node.fail(ErrorKind::Kernel, words)))
    }
}

fn out_of_memory(node: &Node, gear: &Gear, bytes: usize) -> Error {
    let text = format!(
        "out of memory: {bytes} bytes for {} {} ({} bytes live)",
        node.dtype,
        node.shape,
        gear.heap.bytes_live()
    );
    node.fail(ErrorKind::OutOfMemory, text)
}

/// What a trouble that is this step's own means to a node; a fault, and memory that may yet come, go up.
fn fail(trouble: Trouble, node: &Node, gear: &Gear, last_try: bool) -> Result<Error, Trouble> {
    match trouble {
        Trouble::Refused(refusal) => Ok(node.fail(refusal.kind, refusal.message)),
        Trouble::OutOfMemory { bytes } if last_try => Ok(out_of_memory(node, gear, bytes)),
        other => Err(other),
    }
}

/// The number that a value repeats, where that is all there is to it.
fn uniform(value: &Value, shape: &Shape, dtype: DType) -> Option<Scalar> {
    let Storage::Inline(_) = &value.storage else { return None };
    if shape.numel() == 0 {
        // Whatever its strides, no element is read.
        return Some(Scalar::Int(0));
    }
    let layout = value.layout(shape);
    if !layout.strides.iter().zip(shape.iter()).all(|(&s, &n)| s == 0 || n == 1) {
        return None;
    }
    let ptr = first(value, dtype);
    Some(with_dtype!(dtype, T => {
        // SAFETY: an inline value of this type has at least one element.
        let x = unsafe { ptr.cast::<T>().read() };
        match dtype {
            DType::Bool => Scalar::Bool(x.to_i64() != 0),
            d if d.is_int() => Scalar::Int(x.to_i64()),
            _ => Scalar::Float(x.to_f64()),
        }
    }))
}

/// The buffer of an operand that a result of this shape and type may take over.
fn spare(operand: &Operand, from: (&Shape, DType), to: (&Shape, DType)) -> Option<Arc<dyn Buffer>> {
    let value = operand.value.as_ref().ok()?;
    let Storage::Shared(buffer) = &value.storage else { return None };
    let fits = from.0 == to.0 && from.1.size() == to.1.size() && value.placed.is_none();
    let known = operand.spare?;
    let is_memory = device(&**buffer).is_some() || spoken_of(&**buffer).is_some();
    (fits && is_memory && owners(buffer) == known).then(|| buffer.clone())
}

/// A step's result before it is a value.
pub(super) struct Target {
    pub buffer: Arc<dyn Buffer>,
    pub ptr: u64,
}

impl Target {
    fn value(self) -> Value {
        Value::contiguous(Storage::Shared(self.buffer))
    }
}

/// A fused step: a group with the program for it, the members that are written out, and the reduction at its end.
pub(crate) struct Fused<'a> {
    pub group: &'a Group<NodeLink>,
    pub program: Cow<'a, Program>,
    pub written: &'a [u8],
    pub end: Option<(&'a Node, u8)>,
}

impl Gear {
    pub(super) fn target(&mut self, bytes: usize, lane: usize) -> Result<Target, Trouble> {
        if let Some(tape) = &self.tape {
            let buffer = tape.buffer(bytes);
            return Ok(Target { ptr: buffer.ptr(), buffer });
        }
        let buffer: Arc<DeviceBuffer> = self.heap.buffer(bytes, &self.lanes, lane)?;
        Ok(Target { ptr: buffer.ptr, buffer })
    }

    fn taken_over(&mut self, buffer: Arc<dyn Buffer>, lane: usize) -> Target {
        if let Some(there) = spoken_of(&*buffer) {
            there.taken_over();
            return Target { ptr: there.ptr(), buffer };
        }
        let here = device(&*buffer).unwrap_or_else(|| unreachable!("a spare buffer is device memory"));
        let ptr = here.ptr;
        self.overwrites(lane, here);
        Target { ptr, buffer }
    }

    /// Queues a fused step; see `host/step::run_group` for its operands and results. `None` where
    /// an operand is still on its way.
    ///
    /// # Errors
    /// Only what ends the device, and, but for the last try, memory that cannot be had now.
    pub fn group(
        &mut self,
        lane: usize,
        fused: Fused<'_>,
        operands: &[Operand],
        last_try: bool,
    ) -> Result<Option<Queued>, Trouble> {
        let Fused { group, mut program, written, end } = fused;
        let mut queued = Queued::default();
        self.after.clear();
        let Some((first_member, _)) = group.members.first() else { return Ok(Some(queued)) };
        let shape: &Shape = &first_member.shape;
        let mut errors: SmallVec<[Option<Error>; 4]> = SmallVec::new();
        let count = program.instrs.len();
        if operands.iter().any(|o| o.value.is_err()) {
            taint(program.to_mut(), |k| operands[k].value.as_ref().err().cloned(), &mut errors);
        }
        errors.resize(count, None);

        // Inputs that the program still reads: constants become part of it.
        let mut strides: SmallVec<[Strides; 4]> = SmallVec::new();
        let mut places: SmallVec<[(u64, DType); 4]> = SmallVec::new();
        for i in 0..count {
            let Code::Input(k) = program.instrs[i].code else { continue };
            let (node, operand) = (&group.inputs[k as usize], &operands[k as usize]);
            let Ok(value) = &operand.value else { continue };
            program.to_mut().instrs[i].code = match uniform(value, &node.shape, node.dtype) {
                Some(scalar) => Code::Fill(scalar),
                None => {
                    let ptr = match self.place(lane, value)? {
                        Some(Place::Device(ptr)) => ptr,
                        Some(Place::Inline) => unreachable!("what lies in its node is one element, repeated"),
                        None => return Ok(None),
                    };
                    let offset = value.placed.as_ref().map_or(0, |p| p.offset) * node.dtype.size();
                    places.push((ptr + offset as u64, node.dtype));
                    strides.push(broadcast(value, &node.shape, shape));
                    Code::Input(places.len() as u8 - 1)
                }
            };
        }

        // Places for what is written out.
        let mut targets: SmallVec<[(usize, Target); 2]> = SmallVec::new();
        let mut outputs: SmallVec<[Reg; 2]> = SmallVec::new();
        for &member in written {
            let (node, reg) = &group.members[member as usize];
            if let Some(error) = &errors[*reg as usize] {
                queued.results.push(Err(error.clone()));
                continue;
            }
            let alone = written.len() == 1 && end.is_none() && *reg as usize + 1 == count;
            let over = if alone {
                let to = (&node.shape, node.dtype);
                (0..operands.len())
                    .find_map(|k| spare(&operands[k], (&group.inputs[k].shape, group.inputs[k].dtype), to))
            } else {
                None
            };
            let target = match over {
                Some(buffer) => Ok(self.taken_over(buffer, lane)),
                None => self.target(node.bytes(), lane),
            };
            match target {
                Ok(target) => {
                    targets.push((queued.results.len(), target));
                    outputs.push(*reg);
                    // Filled in below, unless the launch fails.
                    queued.results.push(Ok(Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]))));
                }
                Err(trouble) => {
                    // No memory: what is made from this one fails with it, though it could be computed.
                    let error = fail(trouble, node, self, last_try)?;
                    errors[*reg as usize] = Some(error.clone());
                    spread(&program, &mut errors);
                    queued.results.push(Err(error));
                }
            }
        }
        let mut reduced = None;
        let mut end_error = None;
        if let Some((node, member)) = end {
            match &errors[group.members[member as usize].1 as usize] {
                Some(error) => end_error = Some(error.clone()),
                None => match self.target(node.bytes(), lane) {
                    Ok(target) => reduced = Some(target),
                    Err(trouble) => end_error = Some(fail(trouble, node, self, last_try)?),
                },
            }
        }

        if outputs[..] != program.outputs[..] {
            program.to_mut().outputs = outputs.iter().copied().collect();
        }
        let done = if targets.is_empty() && reduced.is_none() || shape.numel() == 0 && reduced.is_none() {
            Ok(())
        } else {
            let views: SmallVec<[DeviceView<'_>; 4]> = places
                .iter()
                .zip(&strides)
                .map(|(&(ptr, dtype), strides)| DeviceView { ptr, dtype, shape, strides })
                .collect();
            let out: SmallVec<[DeviceViewMut<'_>; 2]> = targets
                .iter()
                .zip(&outputs)
                .map(|((_, t), &reg)| DeviceViewMut { ptr: t.ptr, dtype: program.dtype(reg), shape })
                .collect();
            let end = match (end, &reduced) {
                (Some((node, member)), Some(target)) => {
                    let Op::Reduce(reduction) = &node.op else {
                        unreachable!("the end of a group is a reduction")
                    };
                    let output = DeviceViewMut { ptr: target.ptr, dtype: node.dtype, shape: &node.shape };
                    let reg = group.members[member as usize].1;
                    Some(End { op: reduction.op, dims: &reduction.dims, reg, output })
                }
                _ => None,
            };
            self.order(lane)?;
            let berth = self.berth(lane);
            let done = self.launcher.group(&berth, &program, shape, &views, &out, end);
            berth.give_up()?;
            done
        };
        let error = match done {
            Ok(()) => None,
            Err(trouble) => Some(fail(trouble, first_member, self, last_try)?),
        };
        for (slot, target) in targets {
            queued.results[slot] = error.clone().map_or_else(|| Ok(target.value()), Err);
        }
        if let Some((_, _)) = end {
            queued.results.push(match (end_error.or(error), reduced) {
                (None, Some(target)) => Ok(target.value()),
                (Some(error), _) => Err(error),
                (None, None) => unreachable!("a reduction has a place or an error"),
            });
        }
        Ok(Some(queued))
    }

    /// Queues a step of one node that is not elementwise; as `group`.
    pub fn node(
        &mut self,
        lane: usize,
        node: &Node,
        inputs: &[NodeLink],
        operands: &[Operand],
        last_try: bool,
    ) -> Result<Option<Queued>, Trouble> {
        let mut queued = Queued::default();
        if let Some(error) = operands.iter().find_map(|o| o.value.as_ref().err()) {
            queued.results.push(instead(node).ok_or_else(|| error.clone()));
            return Ok(Some(queued));
        }
        self.after.clear();
        let berth = self.berth(lane);
        let done = self.compute(lane, node, inputs, operands, &mut queued, &berth);
        let done = match done {
            Ok(None) => {
                berth.give_up()?;
                return Ok(None);
            }
            Ok(Some(value)) => berth.leave(&self.pinned, node).map(|doubt| {
                queued.doubt = doubt;
                value
            }),
            Err(trouble) => {
                berth.give_up()?;
                Err(trouble)
            }
        };
        queued.results.push(match done {
            Ok(value) => Ok(value),
            Err(trouble) => Err(fail(trouble, node, self, last_try)?),
        });
        Ok(Some(queued))
    }

    fn compute(
        &mut self,
        lane: usize,
        node: &Node,
        inputs: &[NodeLink],
        operands: &[Operand],
        queued: &mut Queued,
        berth: &Berth,
    ) -> Result<Option<Value>, Trouble> {
        match &node.op {
            Op::Fill(scalar) => return Ok(Some(constant(node, *scalar))),
            Op::View(op) => {
                let value = known(operands, 0);
                if let Some(layout) = op.apply(&value.layout(&inputs[0].shape), &node.shape) {
                    return Ok(Some(Value::placed(value.storage.clone(), &layout)));
                }
            }
            Op::Gate(_) => return Ok(Some(known(operands, 0).clone())),
            Op::Sink(_) => return self.sink(lane, &inputs[0], known(operands, 0), queued, berth),
            _ => {}
        }
        let mut places: SmallVec<[u64; 4]> = SmallVec::new();
        for k in 0..inputs.len() {
            let Some(ptr) = self.address(lane, known(operands, k), inputs[k].dtype, berth)? else {
                return Ok(None);
            };
            places.push(ptr);
        }
        let over = match &node.op {
            Op::Custom(op) => op.reuses().and_then(|k| {
                spare(&operands[k], (&inputs[k].shape, inputs[k].dtype), (&node.shape, node.dtype))
            }),
            _ => None,
        };
        let in_place = over.is_some();
        let target = match over {
            Some(buffer) => self.taken_over(buffer, lane),
            None => self.target(node.bytes(), lane)?,
        };
        let strides: SmallVec<[Strides; 4]> =
            (0..inputs.len()).map(|k| strides_of(known(operands, k), &inputs[k].shape)).collect();
        let views: SmallVec<[DeviceView<'_>; 4]> = (0..inputs.len())
            .map(|k| DeviceView {
                ptr: places[k],
                dtype: inputs[k].dtype,
                shape: &inputs[k].shape,
                strides: &strides[k],
            })
            .collect();
        let output = DeviceViewMut { ptr: target.ptr, dtype: node.dtype, shape: &node.shape };
        self.order(lane)?;
        if node.numel() > 0 {
            // What an op from outside says there is not to end the device.
            let run = || self.launcher.node(berth, &node.op, &views, output, in_place);
            caught(run).unwrap_or_else(|words| {
                let message = format!("the kernel panicked: {words}");
                Err(Trouble::Refused(Refusal { kind: ErrorKind::Kernel, message }))
            })?;
        }
        Ok(Some(target.value()))
    }

    /// Address of a value's first element for a launch on this lane; `None` while it is on its way.
    fn address(
        &mut self,
        lane: usize,
        value: &Value,
        dtype: DType,
        berth: &Berth,
    ) -> Result<Option<u64>, Trouble> {
        let offset = value.placed.as_ref().map_or(0, |p| p.offset) * dtype.size();
        let Some(place) = self.place(lane, value)? else { return Ok(None) };
        let ptr = match (place, &value.storage) {
            (Place::Device(ptr), _) => ptr,
            (Place::Inline, Storage::Inline(words)) => {
                let to = super::Site::scratch(berth, INLINE_BYTES)?;
                self.bring_words(words, to, lane)?;
                to
            }
            (Place::Inline, _) => unreachable!("inline values have their elements themselves"),
        };
        Ok(Some(ptr + offset as u64))
    }

    /// Copies a value to where its sink will read it.
    fn sink(
        &mut self,
        lane: usize,
        input: &Node,
        value: &Value,
        queued: &mut Queued,
        berth: &Berth,
    ) -> Result<Option<Value>, Trouble> {
        let done = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
        let layout = value.layout(&input.shape);
        if let Some(value) = on_host(value) {
            queued.landing = Some(Landing { staging: None, value: Some(value), layout, dtype: input.dtype });
            return Ok(Some(done));
        }
        let landing = |staging| {
            let strides = contiguous_strides(&input.shape);
            let layout = Layout { shape: input.shape.clone(), strides, offset: 0 };
            Landing { staging, value: None, layout, dtype: input.dtype }
        };
        let bytes = input.bytes();
        if bytes == 0 {
            queued.landing = Some(landing(Some(self.pinned.take(0)?)));
            return Ok(Some(done));
        }
        let Some(mut from) = self.address(lane, value, input.dtype, berth)? else { return Ok(None) };
        self.order(lane)?;
        if !layout.is_contiguous() {
            let view =
                DeviceView { ptr: from, dtype: input.dtype, shape: &input.shape, strides: &layout.strides };
            from = super::Site::scratch(berth, bytes)?;
            let to = DeviceViewMut { ptr: from, dtype: input.dtype, shape: &input.shape };
            self.launcher.copy(berth, view, to)?;
        }
        let block = self.pinned.take(bytes)?;
        read_back(block.ptr(), from, bytes, self.lanes.raw(lane))?;
        queued.landing = Some(landing(Some(block)));
        Ok(Some(done))
    }
}

fn known(operands: &[Operand], k: usize) -> &Value {
    match &operands[k].value {
        Ok(value) => value,
        Err(_) => unreachable!("a step with a failed operand is not computed"),
    }
}

/// The host value in which the elements lie as they do in this one, where they are not on the device.
fn on_host(value: &Value) -> Option<Value> {
    match &value.storage {
        Storage::Inline(_) => Some(value.clone()),
        Storage::Shared(buffer) => {
            let handed: &Handed = buffer.as_any().downcast_ref()?;
            match &*handed.whereabouts() {
                Whereabouts::Elsewhere(from) if from.placed.is_none() && from.host().is_some() => {
                    Some(from.clone())
                }
                _ => None,
            }
        }
    }
}
