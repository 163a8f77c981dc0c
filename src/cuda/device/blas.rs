//! Products of matrices through cuBLAS, by raw calls.
//!
//! Floats go to cuBLAS wherever they lie as it can express (`gemm`), halves with sums in float32,
//! float32 without TF32 unless that is asked for (`FUTENSOR_TF32=1`). Integers, and floats where
//! there is no cuBLAS, go to a kernel of our own. A handle a stream, made when it is first needed,
//! each with a workspace of its own: so results repeat bit by bit, and products on several streams
//! never meet.

#![allow(unsafe_code)]

use super::gemm::Calls;
use super::made::Captured;
use super::nvidia::{Allocation, Idle, Raw, Span};
use super::transcript::Multiplied;
use super::{Gpu, Stream, Trouble};
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use cudarc::cublas::sys::{self as blas, cublasStatus_t as Status};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::ptr::null_mut;

/// One stream's handle.
struct Handle {
    raw: blas::cublasHandle_t,
    workspace: Allocation,
}

/// The handles of a device.
pub(super) struct Blas {
    /// By the stream's number.
    handles: Vec<Option<Handle>>,
    /// For what is captured; its workspace is the graph's.
    capturing: Option<Handle>,
    pub workspace: usize,
    tf32: bool,
}

/// What a call's result means. cuBLAS says "execution failed" of faults and of refusals alike: the
/// stream knows.
fn check(call: &'static str, status: Status, stream: &Stream) -> Result<(), Trouble> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        Status::CUBLAS_STATUS_ALLOC_FAILED => Err(Trouble::OutOfMemory { bytes: 0 }),
        other => match stream.raw.is_through() {
            Ok(_) => Err(Trouble::Refused(Refusal::kernel(format!("{call}: {other:?}")))),
            Err(fault) => Err(Trouble::Fault { call, status: fault }),
        },
    }
}

impl Handle {
    fn new(stream: &Stream) -> Result<Handle, Trouble> {
        let mut raw = null_mut();
        // SAFETY: the library is there (the caller has asked), and the place can be written.
        check("cublasCreate", unsafe { blas::cublasCreate_v2(&mut raw) }, stream)?;
        Ok(Handle { raw, workspace: Allocation::NOWHERE })
    }

    /// What is asked for from now on goes to a stream.
    fn bind(&self, stream: &Stream) -> Result<(), Trouble> {
        // SAFETY: handle and stream are alive.
        let bound = unsafe { blas::cublasSetStream_v2(self.raw, stream.raw.handle().cast()) };
        check("cublasSetStream", bound, stream)?;
        let exact = blas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: the handle is alive.
        check("cublasSetMathMode", unsafe { blas::cublasSetMathMode(self.raw, exact) }, stream)
    }

    /// After `bind`: a new stream takes the workspace away again.
    ///
    /// # Safety
    /// Nobody else uses the memory while what the handle is asked for runs.
    unsafe fn work_in(&self, memory: Span, stream: &Stream) -> Result<(), Trouble> {
        // SAFETY: the handle is alive, and the caller's promise.
        let set = unsafe { blas::cublasSetWorkspace_v2(self.raw, memory.ptr() as *mut c_void, memory.bytes()) };
        check("cublasSetWorkspace", set, stream)
    }

    fn destroy(self) -> Allocation {
        // SAFETY: made by us, and its one owner ends it.
        let _ = unsafe { blas::cublasDestroy_v2(self.raw) };
        self.workspace
    }
}

impl Blas {
    pub fn new(gpu: &Gpu) -> Blas {
        // What NVIDIA recommends: 32 MiB from Hopper on, 4 before (cuBLAS manual,
        // cublasSetWorkspace).
        let workspace = if gpu.capability.0 >= 9 { 32 << 20 } else { 4 << 20 };
        let tf32 = std::env::var("FUTENSOR_TF32").is_ok_and(|v| v == "1");
        Blas { handles: Vec::new(), capturing: None, workspace, tf32 }
    }

    fn handle(&mut self, stream: &Stream) -> Result<blas::cublasHandle_t, Trouble> {
        if let Some(Some(handle)) = self.handles.get(stream.number) {
            return Ok(handle.raw);
        }
        let mut handle = Handle::new(stream)?;
        let set = handle.bind(stream).and_then(|()| match stream.raw.allocate(self.workspace) {
            Ok(memory) => {
                handle.workspace = memory;
                // SAFETY: it is the handle's own, and what the handle is asked for runs in the order
                // of one stream.
                unsafe { handle.work_in(handle.workspace.span(), stream) }
            }
            // Without one it is slower, and not wrong.
            Err(Trouble::OutOfMemory { .. }) => Ok(()),
            Err(trouble) => Err(trouble),
        });
        if let Err(trouble) = set {
            let _ = stream.raw.free(handle.destroy());
            return Err(trouble);
        }
        if self.handles.len() <= stream.number {
            self.handles.resize_with(stream.number + 1, || None);
        }
        let raw = handle.raw;
        self.handles[stream.number] = Some(handle);
        Ok(raw)
    }

    /// Ends the handles and frees their workspaces.
    pub fn clear(&mut self, _: &Idle<'_>) {
        for handle in self.handles.drain(..).flatten().chain(self.capturing.take()) {
            handle.destroy().free_now();
        }
    }

    /// A product as a graph, by capturing it on a stream that has nothing to do with it; `spots`
    /// are its addresses. The workspace is memory of the graph's: no two of its launches overlap.
    pub fn captured(
        &mut self,
        raw: Raw,
        product: &Multiplied,
        spots: [u64; 3],
        workspace: Span,
    ) -> Result<Captured, Trouble> {
        let stream = Stream { raw, number: 0 };
        let handle = match &mut self.capturing {
            Some(handle) => handle,
            none => none.insert(Handle::new(&stream)?),
        };
        handle.bind(&stream)?;
        // SAFETY: the graph's launches have it one after the other.
        unsafe { handle.work_in(workspace, &stream) }?;
        let raw_handle = handle.raw;
        let calls = || self.gemms(raw_handle, product.dtype, &product.calls, product.adds, spots);
        match Captured::of(raw, calls) {
            Ok(Ok(graph)) => Ok(graph),
            Ok(Err(status)) => {
                let call = "cublasGemmStridedBatchedEx";
                let refused = || Refusal::kernel(format!("{call}: {status:?}")).into();
                Err(check(call, status, &stream).err().unwrap_or_else(refused))
            }
            // A capture that did not work out leaves the context as it was.
            Err(Trouble::Fault { call: call @ "cuStreamEndCapture", status }) if is_of_capture(status) => {
                Err(Refusal::kernel(format!("{call}: {status:?}")).into())
            }
            Err(trouble) => Err(trouble),
        }
    }

    /// One product as calls.
    pub(super) fn multiply(
        &mut self,
        stream: &Stream,
        dtype: DType,
        calls: &Calls,
        adds: bool,
        ptrs: [u64; 3],
    ) -> Result<(), Trouble> {
        let handle = self.handle(stream)?;
        let done = self.gemms(handle, dtype, calls, adds, ptrs);
        done.or_else(|status| check("cublasGemmStridedBatchedEx", status, stream))
    }

    fn gemms(
        &self,
        handle: blas::cublasHandle_t,
        dtype: DType,
        calls: &Calls,
        adds: bool,
        [a, b, out]: [u64; 3],
    ) -> Result<(), Status> {
        use blas::cublasComputeType_t as Compute;
        use blas::cublasOperation_t::{CUBLAS_OP_N as PLAIN, CUBLAS_OP_T as TRANSPOSED};
        use blas::cudaDataType_t as Type;
        let (kind, compute) = match dtype {
            DType::F64 => (Type::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F),
            DType::F32 if self.tf32 => (Type::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32),
            DType::F32 => (Type::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F),
            DType::F16 => (Type::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F),
            _ => (Type::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F),
        };
        // Scalars in the type of the sums.
        let wide = [1.0, adds as u8 as f64];
        let narrow = wide.map(|x| x as f32);
        let scalar = |i: usize| -> *const c_void {
            if dtype == DType::F64 { (&raw const wide[i]).cast() } else { (&raw const narrow[i]).cast() }
        };
        let operation = |by_columns: bool| if by_columns { TRANSPOSED } else { PLAIN };
        for at in &calls.at {
            let address = |base: u64, offset: isize| {
                base.wrapping_add_signed((offset * dtype.size() as isize) as i64) as *mut c_void
            };
            // SAFETY: the handle is alive and bound to the stream; sizes, leading dimensions and
            // strides were made for operands of these shapes (`gemm::calls`), which are alive in
            // the order of the stream; the scalars outlive the call, which reads them at once (host
            // pointer mode).
            let status = unsafe {
                blas::cublasGemmStridedBatchedEx(
                    handle,
                    operation(calls.b.by_columns),
                    operation(calls.a.by_columns),
                    calls.n,
                    calls.m,
                    calls.k,
                    scalar(0),
                    address(b, at.b),
                    kind,
                    calls.b.leading,
                    calls.b.batch,
                    address(a, at.a),
                    kind,
                    calls.a.leading,
                    calls.a.batch,
                    scalar(1),
                    address(out, at.out),
                    kind,
                    calls.n,
                    calls.out,
                    calls.batches,
                    compute,
                    blas::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
                )
            };
            if status != Status::CUBLAS_STATUS_SUCCESS {
                return Err(status);
            }
        }
        Ok(())
    }
}

/// What a stream says when a capture on it came to nothing.
fn is_of_capture(status: sys::CUresult) -> bool {
    use sys::CUresult::*;
    matches!(
        status,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            | CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            | CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
            | CUDA_ERROR_STREAM_CAPTURE_UNJOINED
            | CUDA_ERROR_STREAM_CAPTURE_ISOLATION
            | CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
            | CUDA_ERROR_CAPTURED_EVENT
    )
}
