//! Products of matrices through cuBLAS, by raw calls.
//!
//! Floats go to cuBLAS wherever it can express their strides (`gemm`): halves with sums in float32,
//! float32 without TF32 unless the options ask for it. Integers, and floats where cuBLAS is
//! missing, go to a kernel of our own. Each stream has a handle (`handles`), and each lane a
//! workspace, in which one product after the other works: so results repeat bit by bit, and
//! products on several streams never meet. A graph's products work in the workspace of the lane for
//! which they were captured, and join its order.

#![allow(unsafe_code)]

use super::gemm::{Matrix, ProductCall};
use super::handles::{Handles, Use};
use super::nvidia::{self, Allocation, Idle};
use crate::cuda::device::background::Background;
use crate::cuda::device::graph::executable::Captured;
use crate::cuda::device::lanes::Mark;
use crate::cuda::device::memory::pool::Pool;
use crate::cuda::device::{Gpu, Stream, Trouble};
use crate::dtype::DType;
use crate::graph::operation::Refusal;
use crate::process_end;
use crate::sync::{Mutex, lock};
use cudarc::cublas::sys::{self as blas, cublasStatus_t as Status};
use std::ffi::c_void;
use std::ptr::null_mut;

/// A handle that is alive.
#[derive(Clone, Copy)]
pub(crate) struct Raw(blas::cublasHandle_t);

// SAFETY: a handle; one thread at a time uses it.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// The workspace of the products on a lane, and its last user.
#[derive(Default)]
struct Workspace {
    memory: Allocation,
    last: Option<Mark>,
}

/// A handle's stream and workspace, by address.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Told {
    handle: usize,
    stream: usize,
    workspace: u64,
}

/// The handles of a device.
pub(crate) struct Blas {
    pub handles: Handles<Raw>,
    /// By the lane's number.
    workspaces: Vec<Workspace>,
    workspace_bytes: usize,
    /// What each handle was told last.
    told: Mutex<Vec<Told>>,
    /// Products of float32 may round their operands to TF32.
    pub tf32: bool,
}

/// The meaning of a call's result. cuBLAS says "execution failed" of faults and of refusals alike:
/// the stream knows.
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

fn make() -> Result<Raw, Trouble> {
    let mut raw = null_mut();
    // SAFETY: the library is there (`has_cublas` was asked), and the place can be written.
    match unsafe { blas::cublasCreate_v2(&mut raw) } {
        Status::CUBLAS_STATUS_SUCCESS => {
            process_end::guard();
            Ok(Raw(raw))
        }
        Status::CUBLAS_STATUS_ALLOC_FAILED => Err(Trouble::OutOfMemory { bytes: 0 }),
        other => Err(Refusal::kernel(format!("cublasCreate: {other:?}")).into()),
    }
}

fn end(Raw(raw): Raw) {
    // SAFETY: made above, and its one owner ends it.
    let _ = unsafe { blas::cublasDestroy_v2(raw) };
}

impl Blas {
    pub fn new(gpu: &Gpu, background: Background) -> Blas {
        // NVIDIA recommends 32 MiB from Hopper on, 4 before (cuBLAS manual,
        // cublasSetWorkspace).
        let workspace_bytes = if gpu.capability.0 >= 9 { 32 << 20 } else { 4 << 20 };
        let handles = Handles::new(background, make, end);
        let told = Mutex::default();
        Blas { handles, workspaces: Vec::new(), workspace_bytes, told, tf32: false }
    }

    /// The next user of a lane's workspace, and the marks it has to come after.
    ///
    /// # Errors
    /// Where there is no memory for it.
    pub fn works(
        &mut self,
        lane: Stream,
        pool: &Pool,
        next: Mark,
    ) -> Result<Option<Mark>, Trouble> {
        if self.workspaces.len() <= lane.number {
            self.workspaces.resize_with(lane.number + 1, Workspace::default);
        }
        let Workspace { memory, last } = &mut self.workspaces[lane.number];
        if memory.span().bytes() == 0 {
            // In this lane's order: any other user comes after the mark.
            *memory = pool.allocate(lane, self.workspace_bytes)?;
        }
        Ok(last.replace(next))
    }

    /// Ends the handles and frees their workspaces; the background has ended.
    pub fn clear(&mut self, _: &Idle<'_>) {
        self.handles.clear();
        lock(&self.told).clear();
        self.workspaces.drain(..).for_each(|workspace| workspace.memory.free_now());
    }

    /// A handle for calls on a stream, in a lane's workspace. It is told what it was not told
    /// before.
    fn bound(&self, use_of: Use, stream: &Stream, lane: usize) -> Result<Raw, Trouble> {
        let raw = self.handles.get(use_of)?;
        let memory =
            self.workspaces.get(lane).map_or(Allocation::NOWHERE.span(), |w| w.memory.span());
        let (handle, at) = (raw.0.addr(), stream.raw.handle().addr());
        let now = Told { handle, stream: at, workspace: memory.ptr() };
        let mut told = lock(&self.told);
        if told.contains(&now) {
            return Ok(raw);
        }
        // Until all of it is done.
        told.retain(|told| told.handle != handle);
        // SAFETY: handle and stream are alive, here and below.
        let bound = unsafe { blas::cublasSetStream_v2(raw.0, stream.raw.handle().cast()) };
        check("cublasSetStream", bound, stream)?;
        let exact = blas::cublasMath_t::CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION;
        // SAFETY: as above.
        check("cublasSetMathMode", unsafe { blas::cublasSetMathMode(raw.0, exact) }, stream)?;
        // A new stream takes the workspace away again, so this comes last.
        // SAFETY: as above; all that works in it is put into one order (`works`).
        let set = unsafe {
            blas::cublasSetWorkspace_v2(raw.0, memory.ptr() as *mut c_void, memory.bytes())
        };
        check("cublasSetWorkspace", set, stream)?;
        told.push(now);
        Ok(raw)
    }

    /// A product as a graph, by capturing it on this stream, in the workspace of the lane `home`.
    pub fn captured(
        &self,
        raw: nvidia::Raw,
        product: &ProductCall<u64>,
        home: usize,
    ) -> Result<Captured, Trouble> {
        let stream = Stream { raw, number: 0 };
        let handle = self.bound(Use::Capture, &stream, home)?;
        let call = "cublasGemmStridedBatchedEx";
        Captured::of(
            raw,
            || self.gemms(handle, product),
            |status| {
                let refused = || Refusal::kernel(format!("{call}: {status:?}")).into();
                check(call, status, &stream).err().unwrap_or_else(refused)
            },
        )
    }

    /// Queues a product on a stream that is ready, and whose lane has been put behind `works`.
    pub fn multiply(&self, stream: &Stream, product: &ProductCall<u64>) -> Result<(), Trouble> {
        let handle = self.bound(Use::Lane(stream.number), stream, stream.number)?;
        let done = self.gemms(handle, product);
        done.or_else(|status| check("cublasGemmStridedBatchedEx", status, stream))
    }

    fn gemms(&self, Raw(handle): Raw, product: &ProductCall<u64>) -> Result<(), Status> {
        let &ProductCall { dtypes: [dtype, to], ref calls, adds, at: [a, b, out] } = product;
        use blas::cublasComputeType_t as Compute;
        use blas::cublasOperation_t::{CUBLAS_OP_N as PLAIN, CUBLAS_OP_T as TRANSPOSED};
        use blas::cudaDataType_t as Type;
        let [kind, kind_to] = [dtype, to].map(|dtype| match dtype {
            DType::F64 => Type::CUDA_R_64F,
            DType::F32 => Type::CUDA_R_32F,
            DType::F16 => Type::CUDA_R_16F,
            _ => Type::CUDA_R_16BF,
        });
        let compute = match dtype {
            DType::F64 => Compute::CUBLAS_COMPUTE_64F,
            DType::F32 if self.tf32 => Compute::CUBLAS_COMPUTE_32F_FAST_TF32,
            _ => Compute::CUBLAS_COMPUTE_32F,
        };
        // Scalars in the type of the sums.
        let wide = [1.0, adds as u8 as f64];
        let narrow = wide.map(|x| x as f32);
        let scalar = |i: usize| -> *const c_void {
            if dtype == DType::F64 {
                (&raw const wide[i]).cast()
            } else {
                (&raw const narrow[i]).cast()
            }
        };
        let operation = |by_columns: bool| if by_columns { TRANSPOSED } else { PLAIN };
        let log = |n: i32| n.unsigned_abs().max(1).ilog2();
        let aligned = |matrix: &Matrix| matrix.leading.trailing_zeros().min(4);
        // All that may choose the kernel, sizes by powers of two.
        let sort = [
            [kind as u32, kind_to as u32, compute as u32],
            [log(calls.m), log(calls.n), log(calls.k)],
            [(calls.m == 1) as u32, (calls.n == 1) as u32, log(calls.batches)],
            [calls.a.by_columns as u32, calls.b.by_columns as u32, adds as u32],
            [aligned(&calls.a), aligned(&calls.b), (calls.batches > 1) as u32],
        ];
        for at in &calls.at {
            let address = |base: u64, offset: isize, of: DType| {
                base.wrapping_add_signed((offset * of.size() as isize) as i64) as *mut c_void
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
                    address(b, at.b, dtype),
                    kind,
                    calls.b.leading,
                    calls.b.batch,
                    address(a, at.a, dtype),
                    kind,
                    calls.a.leading,
                    calls.a.batch,
                    scalar(1),
                    address(out, at.out, to),
                    kind_to,
                    calls.n,
                    calls.out,
                    calls.batches,
                    compute,
                    blas::cublasGemmAlgo_t::CUBLAS_GEMM_DFALT,
                )
            };
            // cuBLAS may load more libraries in the first product of a sort.
            process_end::guard_first(sort.as_flattened());
            if status != Status::CUBLAS_STATUS_SUCCESS {
                return Err(status);
            }
        }
        Ok(())
    }
}
