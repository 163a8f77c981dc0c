//! Running one step on host memory: values in, values out.
//!
//! The CPU device and the simulated one share this; so does a poll that runs a small step itself.
//! Finds the operands' memory, makes the result's, calls the kernel, and turns refusals and panics
//! into errors of that value. Knows neither streams nor queues.

#![allow(unsafe_code)]

use crate::dtype::{DType, Scalar};
use crate::error::{Error, ErrorKind};
use crate::graph::fuse::Group;
use crate::graph::infer;
use crate::graph::node::{Node, NodeLink, Op};
use crate::graph::operation::{CpuRun, Meta, Refusal};
use crate::graph::program::{Arg, Code, OUTPUTS_MAX, Program, Reg};
use crate::graph::value::{Buffer, INLINE_BYTES, Storage, Value, owners};
use crate::graph::work::Work;
use crate::guard::caught;
use crate::host::kernels::elementwise::{Lone, One};
use crate::host::kernels::stream::{self, Fenced};
use crate::host::kernels::{copy, elementwise, reduce};
use crate::host::memory::Memory;
use crate::shape::{Shape, Strides};
use crate::view::{Parallel, View, ViewMut};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

/// Where a step runs.
pub(crate) struct Host<'a> {
    pub memory: &'a Arc<Memory>,
    pub parallel: &'a dyn Parallel,
    /// Small results lie in their node.
    pub inline_values: bool,
}

/// A place for a result, before it is a value.
enum Place {
    Inline([u64; INLINE_BYTES / 8]),
    Shared(Arc<dyn crate::graph::value::Buffer>),
}

impl Place {
    fn ptr(&mut self) -> *mut u8 {
        match self {
            Place::Inline(words) => words.as_mut_ptr() as *mut u8,
            Place::Shared(buffer) => buffer.host().unwrap_or(std::ptr::null_mut()),
        }
    }
    fn into_value(self) -> Value {
        Value::contiguous(match self {
            Place::Inline(words) => Storage::Inline(words),
            Place::Shared(buffer) => Storage::Shared(buffer),
        })
    }
}

impl Host<'_> {
    fn place(&self, node: &Node) -> Result<Place, Error> {
        let bytes = node.bytes();
        if bytes <= INLINE_BYTES && self.inline_values {
            return Ok(Place::Inline([0; INLINE_BYTES / 8]));
        }
        match self.memory.alloc(bytes) {
            Some(block) => Ok(Place::Shared(block)),
            None => Err(node.fail(
                ErrorKind::OutOfMemory,
                format!(
                    "out of memory: {bytes} bytes for {} {} ({} bytes live)",
                    node.dtype,
                    node.shape,
                    self.memory.bytes().live
                ),
            )),
        }
    }
}

/// Address of a value's first element.
pub(crate) fn first(value: &Value, dtype: DType) -> *const u8 {
    let base = value.host().unwrap_or(std::ptr::null());
    let offset = value.placed.as_ref().map_or(0, |p| p.offset);
    // SAFETY: the offset of a layout lies inside its storage (or at its start, where it is empty).
    unsafe { base.add(offset * dtype.size()) }
}

pub(crate) fn strides_of(value: &Value, shape: &Shape) -> Strides {
    match &value.placed {
        None => crate::shape::contiguous_strides(shape),
        Some(placed) => placed.strides.clone(),
    }
}

/// A node's value as a view; `strides` lends the memory for its strides.
fn view<'a>(node: &'a Node, value: &Value, strides: &'a mut Strides) -> View<'a> {
    *strides = strides_of(value, &node.shape);
    View { ptr: first(value, node.dtype), dtype: node.dtype, shape: &node.shape, strides }
}

/// Runs a kernel; its panic is this node's error.
fn guarded<R>(node: &Node, kernel: impl FnOnce() -> Result<R, Refusal>) -> Result<R, Error> {
    match caught(kernel) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(refusal)) => Err(node.fail(refusal.kind, refusal.message)),
        Err(words) => Err(node.fail(ErrorKind::Kernel, format!("the kernel panicked: {words}"))),
    }
}

/// What a fused step brings: a result for each member that is written out, in the order asked for,
/// and one more for the reduction at its end.
pub(crate) type Results = SmallVec<[Result<Value, Error>; 2]>;

/// A value that a step reads, or why there is none.
pub(crate) type Operand<'v> = Result<&'v Value, Option<&'v Error>>;

/// A node's value as an operand.
pub(crate) fn operand_of(node: &Node) -> Operand<'_> {
    node.value().ok_or_else(|| node.error())
}

/// Runs a step. Its operands are those of the group, then those of the head or of the one node, `inputs` of which say
/// what they are and no more. `last_reader` says which operands nobody else will read, `program` what is to be run in
/// place of the group's program.
pub(crate) fn run_work<'v>(
    work: &Work,
    inputs: &[NodeLink],
    operand: impl Fn(usize) -> Operand<'v>,
    last_reader: impl Fn(usize) -> bool,
    program: impl FnOnce(&Program) -> Cow<'_, Program>,
    host: &Host<'_>,
) -> Results {
    let (group, written, end) = match work {
        Work::Group { group, written, end } => (group, written, end.as_ref().map(|(n, k)| (&**n, *k))),
        Work::Node(node) => {
            return Results::from_iter([run_node_on(node, inputs, operand, last_reader, host)]);
        }
    };
    let program = program(&group.program);
    let Some((head, at)) = &group.head else {
        return run_group_on(group, program, written, end, operand, last_reader, host);
    };
    let (at, first) = (*at as usize, group.inputs.len());
    let value = run_node_on(head, inputs, |k| operand(first + k), |k| last_reader(first + k), host);
    let of_head = |k: usize| if k == at { value.as_ref().map_err(Some) } else { operand(k) };
    run_group_on(group, program, written, end, of_head, |k| k == at || last_reader(k), host)
}

/// Runs a fused program. `written` names members; `end` is a reduction over the last of them, or over
/// the member that it has as its input. `last_reader` says which inputs nobody else will read.
pub(crate) fn run_group<N: Deref<Target = Node> + Clone>(
    group: &Group<N>,
    written: &[u8],
    end: Option<(&Node, u8)>,
    last_reader: impl Fn(usize) -> bool,
    host: &Host<'_>,
) -> Results {
    let program = Cow::Borrowed(&group.program);
    run_group_on(group, program, written, end, |k| operand_of(&group.inputs[k]), last_reader, host)
}

/// [`run_group`] on operands that are not the values of the group's inputs, which say what they are and no more.
fn run_group_on<'v, N: Deref<Target = Node> + Clone>(
    group: &Group<N>,
    mut program: Cow<'_, Program>,
    written: &[u8],
    end: Option<(&Node, u8)>,
    operand: impl Fn(usize) -> Operand<'v>,
    last_reader: impl Fn(usize) -> bool,
    host: &Host<'_>,
) -> Results {
    let mut results = Results::new();
    // What depends on a failed input fails with it; the rest of the step goes on.
    let mut errors: SmallVec<[Option<Error>; 4]> = SmallVec::new();
    if (0..group.inputs.len()).any(|k| operand(k).is_err()) {
        taint(program.to_mut(), |k| operand(k).err().flatten().cloned(), &mut errors);
    }
    let error_of = |errors: &SmallVec<[Option<Error>; 4]>, member: u8| {
        let reg = group.members[member as usize].1 as usize;
        errors.get(reg).and_then(|e| e.clone())
    };

    let Some((first_member, _)) = group.members.first() else { return results };
    let shape: &Shape = &first_member.shape;
    let mut strides: SmallVec<[Strides; 4]> = SmallVec::new();
    for (k, input) in group.inputs.iter().enumerate() {
        strides.push(match operand(k) {
            Err(_) => SmallVec::from_elem(0, shape.rank()),
            Ok(value) => broadcast(value, &input.shape, shape),
        });
    }
    let nothing = 0u64;
    let mut views: SmallVec<[View<'_>; 4]> = SmallVec::new();
    for ((k, input), strides) in group.inputs.iter().enumerate().zip(&strides) {
        let ptr = match operand(k) {
            Ok(value) => first(value, input.dtype),
            Err(_) => &nothing as *const u64 as *const u8,
        };
        views.push(View { ptr, dtype: input.dtype, shape, strides });
    }

    // Places for what is written out.
    let mut places: SmallVec<[(usize, Place); 2]> = SmallVec::new();
    let mut outputs: SmallVec<[u8; 2]> = SmallVec::new();
    for &member in written {
        let (node, reg) = &group.members[member as usize];
        if let Some(error) = error_of(&errors, member) {
            results.push(Err(error));
            continue;
        }
        let over = (written.len() == 1 && end.is_none())
            .then(|| overwritable(group, &program, *reg, node, &operand, &last_reader))
            .flatten();
        match over.map_or_else(|| host.place(node), |buffer| Ok(Place::Shared(buffer))) {
            Ok(place) => {
                places.push((results.len(), place));
                outputs.push(*reg);
                // Filled in below, unless the kernel fails.
                results.push(Ok(Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]))));
            }
            Err(error) => {
                // No memory: what is made from this one fails with it, though it could be computed.
                errors.resize(program.instrs.len(), None);
                errors[*reg as usize] = Some(error.clone());
                spread(&program, &mut errors);
                results.push(Err(error));
            }
        }
    }

    let mut out: SmallVec<[Output<'_>; 2]> = SmallVec::new();
    for ((_, place), &reg) in places.iter_mut().zip(&outputs) {
        let view = ViewMut { ptr: place.ptr(), dtype: program.dtype(reg), shape, life: PhantomData };
        out.push(Output { reg, view });
    }
    let end = end.map(|(node, member)| match error_of(&errors, member) {
        Some(error) => Err(error),
        None => host.place(node).map(|place| End { node, reg: group.members[member as usize].1, place }),
    });
    // Each element is computed once: what the reduction reads, and whatever else is written, on the way.
    let on_the_way = |end: &End<'_>| out.len() < OUTPUTS_MAX || out.iter().any(|o| o.reg == end.reg);
    let together = matches!(&end, Some(Ok(end)) if on_the_way(end));
    let mut written = Ok(());
    if !out.is_empty() && !together {
        if outputs[..] != program.outputs[..] {
            program.to_mut().outputs = outputs.iter().copied().collect();
        }
        written = guarded(first_member, || {
            let out: SmallVec<[ViewMut<'_>; 2]> = out.drain(..).map(|o| o.view).collect();
            if shape.numel() > 0 {
                elementwise::run_parallel(&program, shape, &views, &out, host.parallel);
            }
            Ok(())
        });
    }
    let reduced = end.map(|end| end.and_then(|end| run_reduction_of(&program, end, shape, &views, &out, host)));
    if let (true, Some(Err(error))) = (together, &reduced) {
        written = Err(error.clone());
    }
    for (slot, place) in places {
        results[slot] = written.clone().map(|()| place.into_value());
    }
    results.extend(reduced);
    results
}

/// A register of a program that is written, and where to.
struct Output<'a> {
    reg: Reg,
    view: ViewMut<'a>,
}

/// The reduction at the end of a group: of which register, and where to.
struct End<'a> {
    node: &'a Node,
    reg: Reg,
    place: Place,
}

/// Reduces a register of a program as it is computed, tile by tile, and writes `out` on the way. What is reduced is
/// only written as a whole where it is among these.
fn run_reduction_of(
    program: &Program,
    end: End<'_>,
    shape: &Shape,
    views: &[View<'_>],
    out: &[Output<'_>],
    host: &Host<'_>,
) -> Result<Value, Error> {
    let End { node, reg, mut place } = end;
    let Op::Reduce(reduction) = &node.op else { unreachable!("the end of a group is a reduction") };
    let mut program = program.clone();
    program.outputs = SmallVec::from_slice(&[reg]);
    program.outputs.extend(out.iter().map(|o| o.reg).filter(|r| *r != reg));
    let dtype = program.dtype(reg);
    guarded(node, || {
        let result = ViewMut { ptr: place.ptr(), dtype: node.dtype, shape: &node.shape, life: PhantomData };
        let tiles = |range: std::ops::Range<usize>, to: *mut u8| {
            let at = |view: &ViewMut<'_>| view.ptr.wrapping_add(range.start * view.dtype.size());
            let mut places: SmallVec<[*mut u8; 4]> = SmallVec::from_slice(&[to]);
            places.extend(out.iter().filter(|o| o.reg != reg).map(|o| at(&o.view)));
            // SAFETY: the reduction hands in memory of its own for exactly these elements, and reads an element
            // from one part only (`argmax` some of them twice), so no other thread writes there.
            unsafe { elementwise::run_into(&program, shape, views, range.clone(), &mut places) };
            if let Some(Output { view, .. }) = out.iter().find(|o| o.reg == reg) {
                // SAFETY: as above; the tile was just computed.
                unsafe { stream::put(to, at(view), range.len() * dtype.size(), view.numel() * dtype.size()) };
            }
        };
        let source = reduce::Source::Fused { dtype, shape, read: &tiles };
        match out.is_empty() {
            true => reduce::reduce(reduction.op, source, &reduction.dims, &result, host.parallel),
            false => {
                reduce::reduce(reduction.op, source, &reduction.dims, &result, &Fenced(host.parallel));
                stream::fence();
            }
        }
        Ok(())
    })?;
    Ok(place.into_value())
}

/// Strides with which a value is read over a larger shape.
pub(crate) fn broadcast(value: &Value, from: &Shape, to: &Shape) -> Strides {
    if from == to {
        return strides_of(value, from);
    }
    let strides = strides_of(value, from);
    let lead = to.rank() - from.rank();
    (0..to.rank()).map(|i| if i < lead || from[i - lead] == 1 { 0 } else { strides[i - lead] }).collect()
}

/// Marks what depends on failed inputs, and makes it read nothing.
pub(crate) fn taint(
    program: &mut Program,
    of_input: impl Fn(usize) -> Option<Error>,
    errors: &mut SmallVec<[Option<Error>; 4]>,
) {
    for i in 0..program.instrs.len() {
        let error = match program.instrs[i].code {
            Code::Input(k) => of_input(k as usize),
            code => inherited(code, errors),
        };
        if error.is_some() {
            program.instrs[i].code = Code::Fill(Scalar::Int(0));
        }
        errors.push(error);
    }
}

/// Gives each instruction the error of its operands, if it has none of its own.
pub(crate) fn spread(program: &Program, errors: &mut [Option<Error>]) {
    for i in 0..program.instrs.len() {
        if errors[i].is_none() {
            errors[i] = inherited(program.instrs[i].code, errors);
        }
    }
}

/// The error of an instruction's operands.
fn inherited(code: Code, errors: &[Option<Error>]) -> Option<Error> {
    let of = |arg: Arg| match arg {
        Arg::Reg(reg) => errors[reg as usize].clone(),
        Arg::Scalar(_) => None,
    };
    match code {
        Code::Unary(_, a) | Code::Cast(a) => of(a),
        Code::Binary(_, a, b) => of(a).or_else(|| of(b)),
        Code::Where(c, a, b) => of(c).or_else(|| of(a)).or_else(|| of(b)),
        _ => None,
    }
}

/// The buffer of an input that this step may write its one result over: nobody else reads it, it lies
/// exactly as the result will, and the result is the program's last instruction, so that each element
/// is read before it is written.
fn overwritable<'v, N: Deref<Target = Node> + Clone>(
    group: &Group<N>,
    program: &Program,
    reg: u8,
    node: &Node,
    operand: &impl Fn(usize) -> Operand<'v>,
    last_reader: &impl Fn(usize) -> bool,
) -> Option<Arc<dyn Buffer>> {
    if reg as usize + 1 != program.instrs.len() {
        return None;
    }
    (0..group.inputs.len()).find_map(|i| {
        let input = &group.inputs[i];
        let value = operand(i).ok()?;
        let Storage::Shared(buffer) = &value.storage else { return None };
        let fits =
            input.dtype.size() == node.dtype.size() && input.shape == node.shape && value.placed.is_none();
        (fits && last_reader(i) && owners(buffer) == 1).then(|| buffer.move_out()).flatten()
    })
}

/// The value of a constant: one element, repeated. It takes no memory on any device.
pub(crate) fn constant(node: &Node, scalar: Scalar) -> Value {
    let mut words = [0u64; INLINE_BYTES / 8];
    crate::dtype::with_dtype!(node.dtype, T => {
        // SAFETY: 32 bytes hold one element of any type, aligned to 8.
        unsafe { (words.as_mut_ptr() as *mut T).write(<T as crate::dtype::Element>::from_scalar(scalar)) }
    });
    let strides = SmallVec::from_elem(0, node.shape.rank());
    let layout = crate::shape::Layout { shape: node.shape.clone(), strides, offset: 0 };
    Value::placed(Storage::Inline(words), &layout)
}

/// The value of a node of which an input has failed, where it has one all the same.
pub(crate) fn instead(node: &Node) -> Option<Value> {
    match node.op {
        Op::Gate(Some(number)) => Some(constant(node, number)),
        _ => None,
    }
}

/// Runs an op that is not elementwise, on operands that are complete. The inputs say what they are and no more.
pub(crate) fn run_node_on<'v>(
    node: &Node,
    inputs: &[NodeLink],
    operand: impl Fn(usize) -> Operand<'v>,
    last_reader: impl Fn(usize) -> bool,
    host: &Host<'_>,
) -> Result<Value, Error> {
    if let Some(error) = (0..inputs.len()).find_map(|i| operand(i).err().flatten()) {
        return instead(node).ok_or_else(|| error.clone());
    }
    let value = |i: usize| operand(i).expect("inputs of a step are complete");
    match &node.op {
        Op::Gate(_) => Ok(value(0).clone()),
        Op::View(op) => {
            let (input, layout) = (&inputs[0], value(0).layout(&inputs[0].shape));
            if let Some(layout) = op.apply(&layout, &node.shape) {
                return Ok(Value::placed(value(0).storage.clone(), &layout));
            }
            // A reshape that mixes dimensions: the elements in order, then the new shape over them.
            let mut place = host.place(node)?;
            guarded(node, || {
                let mut strides = Strides::new();
                let from = view(input, value(0), &mut strides);
                let out =
                    ViewMut { ptr: place.ptr(), dtype: node.dtype, shape: &input.shape, life: PhantomData };
                copy::copy(from, &out, host.parallel);
                Ok(())
            })?;
            Ok(place.into_value())
        }
        Op::Fill(scalar) => Ok(constant(node, *scalar)),
        Op::Reduce(reduction) => {
            let mut place = host.place(node)?;
            guarded(node, || {
                let mut strides = Strides::new();
                let from = view(&inputs[0], value(0), &mut strides);
                let out =
                    ViewMut { ptr: place.ptr(), dtype: node.dtype, shape: &node.shape, life: PhantomData };
                reduce::reduce(reduction.op, reduce::Source::View(from), &reduction.dims, &out, host.parallel);
                Ok(())
            })?;
            Ok(place.into_value())
        }
        Op::Custom(op) => {
            let over = op.reuses().and_then(|i| {
                let value = value(i);
                let Storage::Shared(buffer) = &value.storage else { return None };
                let same = inputs[i].meta() == Meta { shape: node.shape.clone(), dtype: node.dtype };
                let free = last_reader(i) && owners(buffer) == 1;
                // Inside a region one value may be read twice by its last reader.
                let lies_here = |k: usize| matches!(&operand(k), Ok(Value { storage: Storage::Shared(b), .. }) if Arc::ptr_eq(b, buffer));
                let once = (0..inputs.len()).all(|k| k == i || !lies_here(k));
                (same && free && once && value.placed.is_none()).then(|| buffer.move_out()).flatten()
            });
            let in_place = over.is_some();
            let mut place = over.map_or_else(|| host.place(node), |buffer| Ok(Place::Shared(buffer)))?;
            guarded(node, || {
                let mut strides: SmallVec<[Strides; 4]> = SmallVec::from_elem(Strides::new(), inputs.len());
                let mut views: SmallVec<[View<'_>; 4]> = SmallVec::new();
                for ((i, input), strides) in inputs.iter().enumerate().zip(&mut strides) {
                    views.push(view(input, value(i), strides));
                }
                let output =
                    ViewMut { ptr: place.ptr(), dtype: node.dtype, shape: &node.shape, life: PhantomData };
                let buffer = |i: usize| match &value(i).storage {
                    Storage::Shared(buffer) => Some(&**buffer),
                    Storage::Inline(_) => None,
                };
                let buffers: SmallVec<[_; 4]> = (0..inputs.len()).map(buffer).collect();
                op.run_cpu(&mut CpuRun {
                    inputs: &views,
                    output,
                    parallel: host.parallel,
                    in_place,
                    written: 0,
                    buffers: &buffers,
                })
            })?;
            Ok(place.into_value())
        }
        Op::Sink(sink) => {
            let mut strides = Strides::new();
            let from = view(&inputs[0], value(0), &mut strides);
            let taken = caught(|| sink.take(from, host.parallel));
            taken.unwrap_or_else(|words| Err(node.fail(ErrorKind::Kernel, words)))?;
            Ok(Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8])))
        }
        _ => unreachable!("elementwise nodes run in groups, sources and markers never run"),
    }
}

/// Runs one elementwise op with a result of a few bytes, straight from its operands' memory to where the value is read,
/// and leaves it to be published; false where it is not as simple as that. This is what most small eager ops are, and
/// half of their cost would be the views and the program around them. Nothing here is handed on but in registers: what was
/// just stored by words, and is loaded whole, waits until every store before it is in the cache.
///
/// The caller has claimed the node.
pub(crate) fn run_tiny(node: &Node, inputs: &[NodeLink], host: &Host<'_>) -> bool {
    let n = node.numel();
    if !host.inline_values || n == 0 || node.bytes() > INLINE_BYTES {
        return false;
    }
    let mut cells = [[0u64; INLINE_BYTES / 8]; 2];
    let mut cell = |i: usize| cells[i].as_mut_ptr().cast::<u8>();
    // Null where it is not simple.
    let operand = |i: usize, on: DType, cell: *mut u8| -> Lone {
        let input: &Node = &inputs[i];
        let Some(value) = input.value().filter(|_| input.dtype == on) else {
            return Lone::same(std::ptr::null());
        };
        if input.numel() == 1 {
            return Lone::same(first(value, on));
        }
        // A constant is one element, repeated by strides of 0. It is written out here, since there is no loop
        // over two lone elements, and the way through a program costs ten times as much (5,000 instructions).
        let constant = value.placed.as_ref().is_some_and(|p| p.strides.iter().all(|&s| s == 0));
        if constant && n * on.size() <= INLINE_BYTES {
            let from = first(value, on);
            for k in 0..n {
                // SAFETY: the value has its element, and there is room for n of them.
                unsafe { std::ptr::copy_nonoverlapping(from, cell.add(k * on.size()), on.size()) };
            }
            return Lone::each(cell);
        }
        let plain = value.placed.is_none() && input.shape == node.shape;
        Lone::each(if plain { first(value, on) } else { std::ptr::null() })
    };
    let (op, on, a, b) = match node.op {
        Op::WithScalar { op, ref scalar, left } => {
            let Ok(types) = infer::with_scalar(op, inputs[0].dtype, *scalar) else { return false };
            let x = operand(0, types.on, cell(0));
            // SAFETY: there is room for any element.
            let s = unsafe { elementwise::lone_number(*scalar, types.on, cell(1)) };
            let (a, b) = if left { (s, x) } else { (x, s) };
            (One::Binary(op), types.on, a, b)
        }
        Op::Binary(op) => {
            let kind = |i: usize| (inputs[i].dtype, inputs[i].shape.rank());
            let Ok(types) = infer::binary(op, kind(0), kind(1)) else { return false };
            (One::Binary(op), types.on, operand(0, types.on, cell(0)), operand(1, types.on, cell(1)))
        }
        Op::Unary(op) => {
            let Ok(types) = infer::unary(op, inputs[0].dtype) else { return false };
            let x = operand(0, types.on, cell(0));
            (One::Unary(op), types.on, x, x)
        }
        _ => return false,
    };
    if a.is_null() || b.is_null() {
        return false;
    }
    let empty = Value::contiguous(Storage::Inline([0; INLINE_BYTES / 8]));
    node.completion.fill_in(Ok(empty), |value| {
        let Ok(Value { storage: Storage::Inline(words), .. }) = value else { return false };
        // SAFETY: operands are complete values of n elements, or of one; the result has room for n. The
        // kernels of the table do not panic.
        unsafe { elementwise::one(op, on, a, b, words.as_mut_ptr().cast(), n) }
    })
}

#[cfg(all(test, not(futensor_loom)))]
#[path = "step_tests.rs"]
mod tests;
