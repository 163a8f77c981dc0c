//! The stand-in for cuDNN 9: handles, descriptors, and the three convolutions of its first API. One
//! is an item of its handle's stream.
//!
//! Like the real one it offers algorithms that do not repeat, that transform, that need more memory
//! than there is, that it refuses when they run (number 1 where a stride is above 2), and for some
//! sizes (volumes whose taps lie apart) none at all; one is loaded when it first runs in a context.

use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::libraries::convolve::{Convolve, Side, Tensor};
use crate::libraries::gemm::Type;
use crate::libraries::kept;
use crate::machine::entry::may_wait;
use crate::machine::sim::{Sim, lock};
use crate::machine::work::Work;
use crate::memory::Touch;
use crate::status::{OUT_OF_MEMORY, Outcome};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};

/// A `cudnnStatus_t`.
pub type Result = u32;
const SUCCESS: Result = 0;
const NOT_INITIALIZED: Result = 1001;
const BAD_PARAM: Result = 2000;
const SIZE_INSUFFICIENT: Result = 2006;
const SHAPE_MISMATCH: Result = 2008;
const NOT_SUPPORTED: Result = 3000;
const DEVICE_ALLOCATION_FAILED: Result = 4004;
const EXECUTION_FAILED: Result = 5000;

/// What a handle stands for.
#[derive(Clone)]
enum Object {
    Library { stream: Handle },
    Value(Option<Tensor>),
    Filter(Option<Tensor>),
    Walk(Walk),
}

#[derive(Clone, Default)]
struct Walk {
    padding: Vec<usize>,
    stride: Vec<usize>,
    dilation: Vec<usize>,
    groups: usize,
    math: u32,
}

static OBJECTS: LazyLock<Mutex<BTreeMap<u64, Object>>> = LazyLock::new(Mutex::default);
/// Which algorithms of which convolutions have been loaded, a context.
static LOADED: LazyLock<Mutex<BTreeSet<String>>> = LazyLock::new(Mutex::default);

fn objects() -> MutexGuard<'static, BTreeMap<u64, Object>> {
    static END: Once = Once::new();
    kept(&OBJECTS, &END)
}

fn result(outcome: std::result::Result<(), Result>) -> Result {
    outcome.err().unwrap_or(SUCCESS)
}

fn add(object: Object, to: &Out<Handle>) -> Result {
    let id = lock().fresh_id();
    objects().insert(id, object);
    if to.set(handle(Kind::Dnn, id)).is_ok() { SUCCESS } else { BAD_PARAM }
}

fn remove(raw: Handle) -> Result {
    let Ok(id) = id(Kind::Dnn, raw) else { return BAD_PARAM };
    if objects().remove(&id).is_some() { SUCCESS } else { BAD_PARAM }
}

fn with(raw: Handle, body: impl FnOnce(&mut Object) -> std::result::Result<(), Result>) -> Result {
    let Ok(id) = id(Kind::Dnn, raw) else { return BAD_PARAM };
    result(objects().get_mut(&id).map_or(Err(BAD_PARAM), body))
}

fn get(raw: Handle) -> std::result::Result<Object, Result> {
    let id = id(Kind::Dnn, raw).map_err(|_| BAD_PARAM)?;
    objects().get(&id).cloned().ok_or(BAD_PARAM)
}

/// `cudnnGetVersion`: `FUTENSOR_SIM_CUDNN`, or 9.15.0.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnGetVersion() -> usize {
    let asked = std::env::var("FUTENSOR_SIM_CUDNN");
    asked.ok().and_then(|number| number.parse().ok()).unwrap_or(91500)
}

/// `cudnnCreate`. Needs a current context, and takes long.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnCreate(library: Out<Handle>) -> Result {
    if may_wait(lock(), "cudnnCreate").is_err() {
        return NOT_INITIALIZED;
    }
    lock().stats.live_handles += 1;
    add(Object::Library { stream: 0 }, &library)
}

/// `cudnnDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnDestroy(library: Handle) -> Result {
    let removed = remove(library);
    if removed == SUCCESS {
        let mut sim = lock();
        sim.stats.live_handles = sim.stats.live_handles.saturating_sub(1);
    }
    removed
}

/// `cudnnSetStream`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetStream(library: Handle, to: Handle) -> Result {
    with(library, |object| match object {
        Object::Library { stream } => {
            *stream = to;
            Ok(())
        }
        _ => Err(BAD_PARAM),
    })
}

macro_rules! descriptors {
    ($($create:ident, $destroy:ident, $object:expr;)*) => {$(
        /// Makes a descriptor.
        #[unsafe(no_mangle)]
        pub extern "C" fn $create(to: Out<Handle>) -> Result {
            add($object, &to)
        }
        /// Ends a descriptor.
        #[unsafe(no_mangle)]
        pub extern "C" fn $destroy(descriptor: Handle) -> Result {
            remove(descriptor)
        }
    )*};
}
descriptors! {
    cudnnCreateTensorDescriptor, cudnnDestroyTensorDescriptor, Object::Value(None);
    cudnnCreateFilterDescriptor, cudnnDestroyFilterDescriptor, Object::Filter(None);
    cudnnCreateConvolutionDescriptor, cudnnDestroyConvolutionDescriptor,
        Object::Walk(Walk { groups: 1, ..Walk::default() });
}

fn element(number: u32) -> std::result::Result<Type, Result> {
    // A `cudnnDataType_t`, which is no `cudaDataType`.
    Ok(match number {
        0 => Type::F32,
        1 => Type::F64,
        2 => Type::F16,
        9 => Type::Bf16,
        _ => return Err(NOT_SUPPORTED),
    })
}

fn numbers(list: &In<i32>, count: i32, least: i32) -> std::result::Result<Vec<usize>, Result> {
    let list = list.list(count.clamp(0, 8) as usize).map_err(|_| BAD_PARAM)?;
    list.into_iter().map(|n| if n < least { Err(BAD_PARAM) } else { Ok(n as usize) }).collect()
}

/// `cudnnSetTensorNdDescriptor`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetTensorNdDescriptor(
    descriptor: Handle,
    kind: u32,
    rank: i32,
    sizes: In<i32>,
    strides: In<i32>,
) -> Result {
    with(descriptor, |object| {
        let (shape, strides) = (numbers(&sizes, rank, 1)?, numbers(&strides, rank, 1)?);
        match object {
            Object::Value(tensor) if (4..=5).contains(&rank) => {
                *tensor = Some(Tensor { element: element(kind)?, shape, strides });
                Ok(())
            }
            _ => Err(BAD_PARAM),
        }
    })
}

/// `cudnnSetFilterNdDescriptor`: by rows only.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetFilterNdDescriptor(
    descriptor: Handle,
    kind: u32,
    format: u32,
    rank: i32,
    sizes: In<i32>,
) -> Result {
    with(descriptor, |object| {
        let shape = numbers(&sizes, rank, 1)?;
        match object {
            Object::Filter(tensor) if format == 0 && (4..=5).contains(&rank) => {
                let strides = (0..shape.len()).map(|d| shape[d + 1..].iter().product()).collect();
                *tensor = Some(Tensor { element: element(kind)?, shape, strides });
                Ok(())
            }
            _ => Err(BAD_PARAM),
        }
    })
}

/// `cudnnSetConvolutionNdDescriptor`: not flipped, with sums in float32.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionNdDescriptor(
    descriptor: Handle,
    rank: i32,
    padding: In<i32>,
    stride: In<i32>,
    dilation: In<i32>,
    mode: u32,
    sums: u32,
) -> Result {
    with(descriptor, |object| match object {
        Object::Walk(walk) if mode == 1 && sums == 0 && (2..=3).contains(&rank) => {
            walk.padding = numbers(&padding, rank, 0)?;
            (walk.stride, walk.dilation) =
                (numbers(&stride, rank, 1)?, numbers(&dilation, rank, 1)?);
            Ok(())
        }
        _ => Err(BAD_PARAM),
    })
}

/// `cudnnSetConvolutionGroupCount`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionGroupCount(descriptor: Handle, groups: i32) -> Result {
    with(descriptor, |object| match object {
        Object::Walk(walk) if groups > 0 => {
            walk.groups = groups as usize;
            Ok(())
        }
        _ => Err(BAD_PARAM),
    })
}

/// `cudnnSetConvolutionMathType`.
#[unsafe(no_mangle)]
pub extern "C" fn cudnnSetConvolutionMathType(descriptor: Handle, math: u32) -> Result {
    with(descriptor, |object| match object {
        Object::Walk(walk) if math < 4 => {
            walk.math = math;
            Ok(())
        }
        _ => Err(BAD_PARAM),
    })
}

/// `cudnnConvolution...AlgoPerf_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Choice {
    algorithm: u32,
    status: Result,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [i32; 3],
}

/// The algorithms of a side, the best first: number, bytes, whether it repeats.
fn algorithms(side: Side) -> &'static [(u32, usize, bool)] {
    match side {
        Side::Output => &[(6, 0, true), (1, 3000, true), (2, 1 << 40, true), (0, 0, true)],
        Side::Input => &[(0, 0, false), (4, 0, true), (1, 700, true)],
        Side::Weight => &[(3, 0, false), (0, 0, false), (1, 0, true)],
    }
}

/// What three descriptors and a walk say; the values are in the order of the calls.
fn described(
    side: Side,
    values: [Handle; 3],
    walk: Handle,
) -> std::result::Result<(Convolve, Walk), Result> {
    let [a, b, c] = values;
    let (x, w, y) = match side {
        Side::Output => (a, b, c),
        Side::Input => (c, a, b),
        Side::Weight => (a, c, b),
    };
    let value =
        |raw| if let Object::Value(Some(tensor)) = get(raw)? { Ok(tensor) } else { Err(BAD_PARAM) };
    let Object::Filter(Some(w)) = get(w)? else { return Err(BAD_PARAM) };
    let Object::Walk(walk) = get(walk)? else { return Err(BAD_PARAM) };
    let (x, y) = (value(x)?, value(y)?);
    let own = walk.clone();
    let convolve = Convolve {
        side,
        x,
        w,
        y,
        padding: own.padding,
        stride: own.stride,
        dilation: own.dilation,
        groups: own.groups,
        transforms: false,
    };
    if convolve.fits() { Ok((convolve, walk)) } else { Err(SHAPE_MISMATCH) }
}

fn choose(
    side: Side,
    library: Handle,
    values: [Handle; 3],
    walk: Handle,
    most: i32,
    count: Out<i32>,
    choices: Out<Choice>,
) -> std::result::Result<(), Result> {
    let Object::Library { .. } = get(library)? else { return Err(NOT_INITIALIZED) };
    let (convolve, walk) = described(side, values, walk)?;
    let none = convolve.x.shape.len() == 5 && walk.dilation.iter().any(|&d| d > 1);
    let list = algorithms(side).iter().map(|&(algorithm, memory, repeats)| Choice {
        algorithm,
        status: if none { NOT_SUPPORTED } else { SUCCESS },
        memory,
        determinism: u32::from(repeats),
        math: walk.math,
        ..Choice::default()
    });
    let list: Vec<Choice> = list.take(most.max(0) as usize).collect();
    choices.set_all(&list).and(count.set(list.len() as i32)).map_err(|_| BAD_PARAM)
}

impl Sim {
    fn enqueue_convolution(
        &mut self,
        what: &str,
        stream: Handle,
        convolve: Convolve,
        at: [usize; 3],
        (workspace, bytes): (usize, usize),
        [alpha, beta]: [f32; 2],
    ) -> Outcome {
        let stream = self.stream(stream)?;
        let context = self.streams.get(&stream).map_or(0, |stream| stream.context);
        self.healthy(context)?;
        let fate = self.faults.on_launch()?;
        let label =
            format!("{what} {:?} {:?} {:?}", convolve.x.shape, convolve.w.shape, convolve.y.shape);
        let mut touches: Vec<Touch> = Vec::new();
        for (k, value) in convolve.in_order().into_iter().enumerate() {
            touches.push(self.touch(what, at[k], value.extent(), k == 2)?);
        }
        if bytes > 0 {
            touches.push(self.touch(what, workspace, bytes, true)?);
        }
        self.stats.launches += 1;
        self.stats.convolutions += 1;
        // SAFETY: the touches above cover all that `run` reads and writes, and the scheduler checks
        // before it runs the item that their allocations are there; the item is alone on the
        // simulated machine.
        let run: Arc<dyn Fn() + Send + Sync> = Arc::new(move || unsafe {
            std::ptr::write_bytes(workspace as *mut u8, 0xA5, bytes);
            convolve.run(at, alpha, beta);
        });
        self.submit(
            stream,
            label,
            Work::Native { run, fault: fate.fault, hang: fate.hang },
            touches,
        )?;
        Ok(())
    }
}

#[allow(clippy::too_many_arguments)]
fn convolve(
    side: Side,
    what: &str,
    library: Handle,
    values: [Handle; 3],
    at: [usize; 3],
    walk: Handle,
    algorithm: u32,
    workspace: (usize, usize),
    scalars: [In<f32>; 2],
) -> std::result::Result<(), Result> {
    let Object::Library { stream } = get(library)? else { return Err(NOT_INITIALIZED) };
    let (mut convolve, walk) = described(side, values, walk)?;
    convolve.transforms = algorithm > 3;
    let known = algorithms(side).iter().find(|known| known.0 == algorithm).ok_or(NOT_SUPPORTED)?;
    if workspace.1 < known.1 {
        return Err(SIZE_INSUFFICIENT);
    }
    if !known.2 {
        lock().report("misuse", format!("{what} by algorithm {algorithm}, which does not repeat"));
    }
    if algorithm == 1 && side == Side::Output && walk.stride.iter().any(|&s| s > 2) {
        return Err(NOT_SUPPORTED);
    }
    let [alpha, beta] = scalars.map(|at| at.get());
    let (alpha, beta) = (alpha.map_err(|_| BAD_PARAM)?, beta.map_err(|_| BAD_PARAM)?);
    let context = lock().current().map_err(|_| NOT_INITIALIZED)?;
    let kernel = format!("{context} {convolve:?} {algorithm} {}", beta != 0.0);
    let is_new = LOADED.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(kernel);
    if is_new && may_wait(lock(), &format!("{what}, which loads its kernel,")).is_err() {
        return Err(EXECUTION_FAILED);
    }
    let queued = lock().enqueue_convolution(what, stream, convolve, at, workspace, [alpha, beta]);
    queued.map_err(|status| match status {
        OUT_OF_MEMORY => DEVICE_ALLOCATION_FAILED,
        _ => EXECUTION_FAILED,
    })
}

macro_rules! sides {
    ($($choose:ident, $run:ident, $side:ident;)*) => {$(
        /// The algorithms for a convolution, the best first.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $choose(
            library: Handle, a: Handle, b: Handle, walk: Handle, c: Handle,
            most: i32, count: Out<i32>, choices: Out<Choice>,
        ) -> Result {
            result(choose(Side::$side, library, [a, b, c], walk, most, count, choices))
        }
        /// Queues a convolution.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $run(
            library: Handle, alpha: In<f32>, a: Handle, a_at: usize, b: Handle, b_at: usize,
            walk: Handle, algorithm: u32, workspace: usize, bytes: usize, beta: In<f32>,
            c: Handle, c_at: usize,
        ) -> Result {
            let (values, at) = ([a, b, c], [a_at, b_at, c_at]);
            let (scalars, what) = ([alpha, beta], stringify!($run));
            let workspace = (workspace, bytes);
            result(convolve(
                Side::$side, what, library, values, at, walk, algorithm, workspace, scalars,
            ))
        }
    )*};
}
sides! {
    cudnnGetConvolutionForwardAlgorithm_v7, cudnnConvolutionForward, Output;
    cudnnGetConvolutionBackwardDataAlgorithm_v7, cudnnConvolutionBackwardData, Input;
    cudnnGetConvolutionBackwardFilterAlgorithm_v7, cudnnConvolutionBackwardFilter, Weight;
}
