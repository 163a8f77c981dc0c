//! Products of matrices through cuBLAS, by raw calls.
//!
//! Floats go to cuBLAS wherever they lie as it can express (`gemm`), halves with sums in float32,
//! float32 without TF32 unless that is asked for (`FUTENSOR_TF32=1`). Integers, and floats where
//! there is no cuBLAS, go to a kernel of our own. A handle a stream, made when it is first needed,
//! each with a workspace of its own: so results repeat bit by bit, and products on several streams
//! never meet.

#![allow(unsafe_code)]

use super::context::Raw;
use super::gemm::Calls;
use super::tape::Multiplied;
use super::{Gpu, Stream, Trouble};
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use cudarc::cublas::sys::{self as blas, cublasStatus_t as Status};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::OnceLock;

/// One stream's handle.
struct Handle {
    raw: blas::cublasHandle_t,
    workspace: sys::CUdeviceptr,
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

/// Whether the library is there, looked for once.
pub(super) fn is_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: opens and closes a library by the names that cudarc will use; its initialisers are
    // NVIDIA's own.
    *PRESENT.get_or_init(|| unsafe { blas::is_culib_present() })
}

/// What a call's result means. cuBLAS says "execution failed" of faults and of refusals alike: the
/// stream knows.
fn check(call: &'static str, status: Status, stream: &Stream) -> Result<(), Trouble> {
    match status {
        Status::CUBLAS_STATUS_SUCCESS => Ok(()),
        Status::CUBLAS_STATUS_ALLOC_FAILED => Err(Trouble::OutOfMemory { bytes: 0 }),
        other => {
            // SAFETY: the stream is the caller's, alive; the context is current.
            match unsafe { sys::cuStreamQuery(stream.raw) } {
                sys::CUresult::CUDA_SUCCESS | sys::CUresult::CUDA_ERROR_NOT_READY => {
                    Err(Trouble::Refused(Refusal::kernel(format!("{call}: {other:?}"))))
                }
                fault => Err(Trouble::Fault { call, status: fault }),
            }
        }
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
        let mut raw = std::ptr::null_mut();
        // SAFETY: the library is there (the caller has asked), and the context is current.
        check("cublasCreate", unsafe { blas::cublasCreate_v2(&mut raw) }, stream)?;
        let mut handle = Handle { raw, workspace: 0 };
        // The workspace last: a new stream would take it away again. SAFETY: handle and stream are
        // alive; the workspace is memory of ours that nobody else uses, and it lives as long as the
        // handle.
        let set = unsafe {
            check("cublasSetStream", blas::cublasSetStream_v2(raw, stream.raw.cast()), stream)
                .and_then(|()| {
                    let exact = blas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
                    check("cublasSetMathMode", blas::cublasSetMathMode(raw, exact), stream)
                })
                .and_then(|()| {
                    let got = sys::cuMemAllocAsync(&mut handle.workspace, self.workspace, stream.raw);
                    match Trouble::of("cuMemAllocAsync", got) {
                        Ok(()) => {
                            let at = handle.workspace as *mut c_void;
                            check(
                                "cublasSetWorkspace",
                                blas::cublasSetWorkspace_v2(raw, at, self.workspace),
                                stream,
                            )
                        }
                        // Without one it is slower, and not wrong.
                        Err(Trouble::OutOfMemory { .. }) => {
                            handle.workspace = 0;
                            Ok(())
                        }
                        Err(trouble) => Err(trouble),
                    }
                })
        };
        if let Err(trouble) = set {
            // SAFETY: made above, and known to nobody else.
            let _ = unsafe { blas::cublasDestroy_v2(raw) };
            return Err(trouble);
        }
        if self.handles.len() <= stream.number {
            self.handles.resize_with(stream.number + 1, || None);
        }
        self.handles[stream.number] = Some(handle);
        Ok(raw)
    }

    /// Ends the handles and frees their workspaces, once nothing of this device runs.
    pub fn clear(&mut self) {
        for handle in self.handles.drain(..).flatten().chain(self.capturing.take()) {
            // SAFETY: made by us, and nothing that uses it is under way, says the caller.
            unsafe {
                let _ = blas::cublasDestroy_v2(handle.raw);
                if handle.workspace != 0 {
                    let _ = sys::cuMemFree_v2(handle.workspace);
                }
            }
        }
    }

    /// A product as a graph, by capturing it on a stream that has nothing to do with it; `spots`
    /// are its addresses. The workspace is memory of the graph's, of `self.workspace` bytes.
    pub fn captured(
        &mut self,
        raw: Raw,
        product: &Multiplied,
        spots: [u64; 3],
        workspace: u64,
    ) -> Result<sys::CUgraph, Trouble> {
        let stream = Stream { raw: raw.0, number: 0 };
        let handle = match &self.capturing {
            Some(handle) => handle.raw,
            None => {
                let mut raw = std::ptr::null_mut();
                // SAFETY: as in `handle`.
                check("cublasCreate", unsafe { blas::cublasCreate_v2(&mut raw) }, &stream)?;
                self.capturing = Some(Handle { raw, workspace: 0 });
                raw
            }
        };
        let exact = blas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: handle and stream are alive; the workspace is the graph's, and no two launches of
        // one graph overlap. The workspace last: a new stream would take it away again. What is
        // captured is not run, and nobody else captures on this stream, which this thread alone
        // gives work to.
        unsafe {
            check("cublasSetStream", blas::cublasSetStream_v2(handle, stream.raw.cast()), &stream)?;
            check("cublasSetMathMode", blas::cublasSetMathMode(handle, exact), &stream)?;
            let at = workspace as *mut c_void;
            let set = blas::cublasSetWorkspace_v2(handle, at, self.workspace);
            check("cublasSetWorkspace", set, &stream)?;
            // Other threads may go on calling the driver.
            let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            Trouble::of("cuStreamBeginCapture", sys::cuStreamBeginCapture_v2(stream.raw, mode))?;
        }
        let done = self.gemms(handle, product.dtype, &product.calls, product.adds, spots);
        let mut graph = std::ptr::null_mut();
        // SAFETY: begun above; the place can be written.
        let ended = unsafe { sys::cuStreamEndCapture(stream.raw, &mut graph) };
        let trouble = match done {
            Ok(()) => match Trouble::of("cuStreamEndCapture", ended) {
                Ok(()) => return Ok(graph),
                // A capture that did not work out leaves the context as it was.
                Err(Trouble::Fault { status, .. }) if is_of_capture(status) => {
                    Refusal::kernel(format!("cuStreamEndCapture: {status:?}")).into()
                }
                Err(trouble) => trouble,
            },
            Err(status) => check("cublasGemmStridedBatchedEx", status, &stream)
                .err()
                .unwrap_or_else(|| Refusal::kernel(format!("cublasGemmStridedBatchedEx: {status:?}")).into()),
        };
        if !graph.is_null() {
            // SAFETY: made by the capture, and known to nobody else.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        Err(trouble)
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
