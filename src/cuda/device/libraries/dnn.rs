//! cuDNN, by its symbols: its handles, and convolutions in its terms.
//!
//! The first convolution looks for cuDNN, and nothing ever needs it. Of its algorithms this file
//! takes those that repeat bit by bit and compute each element from its own window: by a Fourier or
//! a Winograd transform one NaN would spread over its neighbours, as on no other device. Float32 is
//! multiplied and added in float32 unless the options ask for TF32; halves go to tensor cores, with
//! sums in float32. All of version 9 has these calls, old as they are.

#![allow(unsafe_code)]

use super::search::{self, Status, calls};
use crate::cuda::convolution::{Convolution, Side, Sizes};
use crate::cuda::device::{Stream, Trouble};
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::process_end;
use crate::shape::contiguous_strides;
use libloading::Library;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// The version whose calls are known here.
const MAJOR: usize = 9;
/// Most bytes that an algorithm may work in.
const WORKSPACE_MAX: usize = 256 << 20;
/// So many algorithms are asked for: all that there are.
const CHOICES: usize = 8;

/// An object of the library's.
type Object = *mut c_void;
type At = *const c_void;

/// `cudnnConvolution...AlgoPerf_t`: the three of them are alike.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
struct Choice {
    algorithm: c_int,
    status: Status,
    time: f32,
    memory: usize,
    determinism: c_int,
    math: c_int,
    reserved: [c_int; 3],
}

const DETERMINISTIC: c_int = 1;
/// `cudnnMathType_t`.
const ANY_MATH: c_int = 0;
const TENSOR_CORES: c_int = 1;
const FUSED_MULTIPLY_ADD: c_int = 3;
/// `CUDNN_DATA_FLOAT`: of sums.
const FLOAT: c_int = 0;
/// `CUDNN_TENSOR_NCHW`.
const ROW_MAJOR: c_int = 0;
/// `CUDNN_CROSS_CORRELATION`.
const NOT_FLIPPED: c_int = 1;

calls! {
    create = b"cudnnCreate\0": fn(*mut Object);
    destroy = b"cudnnDestroy\0": fn(Object);
    set_stream = b"cudnnSetStream\0": fn(Object, Object);
    tensor = b"cudnnCreateTensorDescriptor\0": fn(*mut Object);
    set_tensor = b"cudnnSetTensorNdDescriptor\0": fn(
        Object, c_int, c_int, *const c_int, *const c_int
    );
    end_tensor = b"cudnnDestroyTensorDescriptor\0": fn(Object);
    filter = b"cudnnCreateFilterDescriptor\0": fn(*mut Object);
    set_filter = b"cudnnSetFilterNdDescriptor\0": fn(Object, c_int, c_int, c_int, *const c_int);
    end_filter = b"cudnnDestroyFilterDescriptor\0": fn(Object);
    walk = b"cudnnCreateConvolutionDescriptor\0": fn(*mut Object);
    set_walk = b"cudnnSetConvolutionNdDescriptor\0": fn(
        Object, c_int, *const c_int, *const c_int, *const c_int, c_int, c_int
    );
    set_groups = b"cudnnSetConvolutionGroupCount\0": fn(Object, c_int);
    set_math = b"cudnnSetConvolutionMathType\0": fn(Object, c_int);
    end_walk = b"cudnnDestroyConvolutionDescriptor\0": fn(Object);
    choose_output = b"cudnnGetConvolutionForwardAlgorithm_v7\0": fn(
        Object, Object, Object, Object, Object, c_int, *mut c_int, *mut Choice
    );
    choose_input = b"cudnnGetConvolutionBackwardDataAlgorithm_v7\0": fn(
        Object, Object, Object, Object, Object, c_int, *mut c_int, *mut Choice
    );
    choose_weight = b"cudnnGetConvolutionBackwardFilterAlgorithm_v7\0": fn(
        Object, Object, Object, Object, Object, c_int, *mut c_int, *mut Choice
    );
    output = b"cudnnConvolutionForward\0": fn(
        Object, At, Object, At, Object, At, Object, c_int, Object, usize, At, Object, Object
    );
    input = b"cudnnConvolutionBackwardData\0": fn(
        Object, At, Object, At, Object, At, Object, c_int, Object, usize, At, Object, Object
    );
    weight = b"cudnnConvolutionBackwardFilter\0": fn(
        Object, At, Object, At, Object, At, Object, c_int, Object, usize, At, Object, Object
    );
}

/// The library that is here.
pub(crate) struct Dnn {
    /// 9.1.0 is 90100.
    pub version: usize,
    calls: Calls,
    /// Stays open.
    _library: Library,
}

/// The library, looked for once.
///
/// # Errors
/// Where was looked, or which version was found.
pub(crate) fn library() -> Result<&'static Dnn, String> {
    static FOUND: OnceLock<Result<Dnn, String>> = OnceLock::new();
    let find = || {
        let mut why = search::missing("cudnn");
        for library in search::all("cudnn") {
            match Dnn::of(library) {
                Ok(found) => return Ok(found),
                Err(other) => why = other,
            }
        }
        Err(why)
    };
    FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
}

/// A handle that is alive.
#[derive(Clone, Copy)]
pub(crate) struct Handle(Object);

// SAFETY: a handle; one thread at a time uses it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

fn check(call: &str, status: Status) -> Result<(), Trouble> {
    match status {
        0 => Ok(()),
        // Memory of the host's or of the GPU's.
        4003 | 4004 => Err(Trouble::OutOfMemory { bytes: 0 }),
        other => Err(Refusal::kernel(format!("{call}: cuDNN says {other}")).into()),
    }
}

impl Handle {
    pub fn make() -> Result<Handle, Trouble> {
        let mut raw = null_mut();
        let library = library().map_err(Refusal::kernel)?;
        // SAFETY: the place can be written.
        check("cudnnCreate", unsafe { (library.calls.create)(&mut raw) })?;
        process_end::guard();
        Ok(Handle(raw))
    }

    pub fn end(self) {
        if let Ok(library) = library() {
            // SAFETY: made above, and its one owner ends it.
            let _ = unsafe { (library.calls.destroy)(self.0) };
        }
    }

    /// Has later calls go to this stream.
    pub fn bind(self, stream: &Stream) -> Result<(), Trouble> {
        let library = library().map_err(Refusal::kernel)?;
        // SAFETY: handle and stream are alive.
        let bound = unsafe { (library.calls.set_stream)(self.0, stream.raw.handle().cast()) };
        check("cudnnSetStream", bound)
    }
}

/// A description of the library's, ended when it is let go. That is memory of the host's.
struct Description {
    raw: Object,
    end: unsafe extern "C" fn(Object) -> Status,
}

// SAFETY: once it is made it is only read.
unsafe impl Send for Description {}
// SAFETY: as above.
unsafe impl Sync for Description {}

impl Description {
    fn new(
        create: unsafe extern "C" fn(*mut Object) -> Status,
        end: unsafe extern "C" fn(Object) -> Status,
    ) -> Result<Description, Trouble> {
        let mut raw = null_mut();
        // SAFETY: the place can be written.
        check("cudnnCreate...Descriptor", unsafe { create(&mut raw) })?;
        Ok(Description { raw, end })
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: the library made it, and it is not used again.
        let _ = unsafe { (self.end)(self.raw) };
    }
}

/// A convolution in the terms of the library, by one of its algorithms.
pub(crate) struct Plan {
    side: Side,
    adds: bool,
    /// Both operands and the result.
    values: [Description; 3],
    walk: Description,
    algorithm: c_int,
    /// Bytes of both operands, the result and the workspace.
    pub bytes: [usize; 4],
    calls: &'static Calls,
}

impl Dnn {
    fn of(library: Library) -> Result<Dnn, String> {
        // SAFETY: this is its type; it tells a number.
        let version = unsafe {
            library.get::<unsafe extern "C" fn() -> usize>(b"cudnnGetVersion\0").map(|call| call())
        };
        // 8.9.7 was 8907.
        match version.map_err(|e| e.to_string())? {
            version if version / 10_000 == MAJOR => {
                Ok(Dnn { version, calls: Calls::of(&library)?, _library: library })
            }
            number => {
                Err(format!("cuDNN version {number} was found, but version {MAJOR} is needed"))
            }
        }
    }

    fn value(&self, dtype: c_int, shape: &[i32]) -> Result<Description, Trouble> {
        let of = Description::new(self.calls.tensor, self.calls.end_tensor)?;
        let sizes: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let strides: Vec<c_int> = contiguous_strides(&sizes).iter().map(|&s| s as c_int).collect();
        let rank = shape.len() as c_int;
        // SAFETY: both lists have so many numbers.
        let set = unsafe {
            (self.calls.set_tensor)(of.raw, dtype, rank, shape.as_ptr(), strides.as_ptr())
        };
        check("cudnnSetTensorNdDescriptor", set).map(|()| of)
    }

    fn weight(&self, dtype: c_int, shape: &[i32]) -> Result<Description, Trouble> {
        let of = Description::new(self.calls.filter, self.calls.end_filter)?;
        let rank = shape.len() as c_int;
        // SAFETY: the list has so many numbers.
        let set =
            unsafe { (self.calls.set_filter)(of.raw, dtype, ROW_MAJOR, rank, shape.as_ptr()) };
        check("cudnnSetFilterNdDescriptor", set).map(|()| of)
    }

    fn walk(&self, sizes: &Sizes, math: c_int) -> Result<Description, Trouble> {
        let of = Description::new(self.calls.walk, self.calls.end_walk)?;
        let [padding, stride, dilation] =
            [&sizes.padding, &sizes.stride, &sizes.dilation].map(|s| s.as_ptr());
        let rank = sizes.padding.len() as c_int;
        // SAFETY: the three lists have so many numbers.
        let set = unsafe {
            (self.calls.set_walk)(of.raw, rank, padding, stride, dilation, NOT_FLIPPED, FLOAT)
        };
        check("cudnnSetConvolutionNdDescriptor", set)?;
        // SAFETY: it is alive, here and below.
        check("cudnnSetConvolutionGroupCount", unsafe {
            (self.calls.set_groups)(of.raw, sizes.groups)
        })?;
        // SAFETY: as above.
        check("cudnnSetConvolutionMathType", unsafe { (self.calls.set_math)(of.raw, math) })?;
        Ok(of)
    }

    /// The plans that will do, the fastest first by the library's estimate, which depends on sizes
    /// and the GPU, not on running work.
    pub fn plans(
        &'static self,
        handle: Handle,
        asked: &Convolution,
        tf32: bool,
    ) -> Result<Vec<Plan>, Trouble> {
        let refused = |why: &str| Trouble::from(Refusal::kernel(why));
        let sizes = asked.sizes().ok_or_else(|| refused("cuDNN does not support these sizes"))?;
        let (dtype, math) = match asked.dtype {
            DType::F32 if tf32 => (FLOAT, ANY_MATH),
            DType::F32 => (FLOAT, FUSED_MULTIPLY_ADD),
            DType::F16 => (2, TENSOR_CORES),
            DType::BF16 => (9, TENSOR_CORES),
            _ => return Err(refused("cuDNN is used for float32 and halves only")),
        };
        let described = || {
            let [x, w, y] = &sizes.shapes;
            let (x, w, y) = (self.value(dtype, x)?, self.weight(dtype, w)?, self.value(dtype, y)?);
            Ok::<_, Trouble>(match asked.side {
                Side::Output => [x, w, y],
                Side::Input => [w, y, x],
                Side::Weight => [x, y, w],
            })
        };
        let order = match asked.side {
            Side::Output => [0, 1, 2],
            Side::Input => [1, 2, 0],
            Side::Weight => [0, 2, 1],
        };
        let bytes = order.map(|k| {
            sizes.shapes[k].iter().map(|&n| n as usize).product::<usize>() * asked.dtype.size()
        });
        let (choose, algorithms) = match asked.side {
            Side::Output => (self.calls.choose_output, 0..=3),
            Side::Input => (self.calls.choose_input, 1..=1),
            Side::Weight => (self.calls.choose_weight, 1..=1),
        };
        let ([a, b, c], walk) = (&described()?, self.walk(&sizes, math)?);
        let (mut choices, mut count) = ([Choice::default(); CHOICES], 0);
        // SAFETY: handle and descriptions are alive, and there is room for so many choices.
        let chosen = unsafe {
            choose(
                handle.0,
                a.raw,
                b.raw,
                walk.raw,
                c.raw,
                CHOICES as c_int,
                &mut count,
                choices.as_mut_ptr(),
            )
        };
        check("cudnnGetConvolution...Algorithm_v7", chosen)?;
        let exact = asked.dtype == DType::F32 && !tf32;
        let mut plans = Vec::new();
        for choice in &choices[..(count.max(0) as usize).min(CHOICES)] {
            let repeats = choice.status == 0 && choice.determinism == DETERMINISTIC;
            let fits = choice.memory <= WORKSPACE_MAX && algorithms.contains(&choice.algorithm);
            if repeats && fits && (!exact || choice.math == FUSED_MULTIPLY_ADD) {
                plans.push(Plan {
                    side: asked.side,
                    adds: asked.adds,
                    values: described()?,
                    walk: self.walk(&sizes, choice.math)?,
                    algorithm: choice.algorithm,
                    bytes: [bytes[0], bytes[1], bytes[2], choice.memory],
                    calls: &self.calls,
                });
            }
        }
        Ok(plans)
    }
}

impl Plan {
    /// Queues it on the stream that the handle is bound to. The addresses are of whole values
    /// without gaps, and of a workspace.
    pub fn run(&self, handle: Handle, at: [u64; 4]) -> Result<(), Status> {
        let [x, y, out, workspace] = at.map(|at| at as Object);
        let [a, b, c] = self.values.each_ref().map(|value| value.raw);
        let (one, adds) = (1f32, self.adds as u8 as f32);
        let (one, adds): (At, At) = ((&raw const one).cast(), (&raw const adds).cast());
        let call = match self.side {
            Side::Output => self.calls.output,
            Side::Input => self.calls.input,
            Side::Weight => self.calls.weight,
        };
        let (algorithm, bytes) = (self.algorithm, self.bytes[3]);
        // SAFETY: the handle is alive; the descriptions are of values of these sizes, which are
        // alive in the order of the stream, as is the workspace, which is the call's alone; the
        // scalars outlive the call, which reads them at once.
        let status = unsafe {
            call(
                handle.0,
                one,
                a,
                x,
                b,
                y,
                self.walk.raw,
                algorithm,
                workspace,
                bytes,
                adds,
                c,
                out,
            )
        };
        if status == 0 { Ok(()) } else { Err(status) }
    }

    /// The meaning of an answer to [`run`](Self::run). The library says "failed" of faults and of
    /// refusals alike: the stream knows.
    pub fn said(&self, status: Status, stream: &Stream) -> Trouble {
        let call = match self.side {
            Side::Output => "cudnnConvolutionForward",
            Side::Input => "cudnnConvolutionBackwardData",
            Side::Weight => "cudnnConvolutionBackwardFilter",
        };
        match (stream.raw.is_through(), check(call, status)) {
            (Err(fault), _) => Trouble::Fault { call, status: fault },
            (_, Err(trouble)) => trouble,
            (_, Ok(())) => Refusal::kernel(call).into(),
        }
    }
}
