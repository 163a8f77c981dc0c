//! The stand-in for cuBLAS: handles, streams, and the gemm family. A gemm is an item of its
//! handle's stream.

use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::libraries::gemm::{Activation, Gemm, Matrix, Type};
use crate::libraries::{add_end, kept};
use crate::machine::entry::may_wait;
use crate::machine::sim::{Sim, lock};
use crate::machine::work::Work;
use crate::memory::Touch;
use crate::status::Outcome;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, Once};

/// A `cublasStatus_t`.
pub type Result = u32;
const SUCCESS: Result = 0;
const NOT_INITIALIZED: Result = 1;
/// See cuBLAS.
pub const INVALID_VALUE: Result = 7;
const EXECUTION_FAILED: Result = 13;
/// See cuBLAS.
pub const NOT_SUPPORTED: Result = 15;

#[derive(Clone, Copy, Default)]
struct State {
    stream: Handle,
    device_scalars: bool,
    /// Memory that its products write to.
    workspace: (usize, usize),
}

static STATES: LazyLock<Mutex<BTreeMap<u64, State>>> = LazyLock::new(Mutex::default);

fn states() -> MutexGuard<'static, BTreeMap<u64, State>> {
    static END: Once = Once::new();
    kept(&STATES, &END)
}

fn with(blas: Handle, body: impl FnOnce(&mut State) -> Result) -> Result {
    let Ok(id) = id(Kind::Blas, blas) else { return NOT_INITIALIZED };
    let mut states = states();
    states.get_mut(&id).map_or(NOT_INITIALIZED, body)
}

/// `cublasCreate_v2`. Needs a current context, as cuBLAS does.
#[unsafe(no_mangle)]
pub extern "C" fn cublasCreate_v2(blas: Out<Handle>) -> Result {
    if may_wait(lock(), "cublasCreate").is_err() {
        return NOT_INITIALIZED;
    }
    let mut sim = lock();
    sim.stats.live_handles += 1;
    let id = sim.fresh_id();
    drop(sim);
    states().insert(id, State::default());
    if blas.set(handle(Kind::Blas, id)).is_ok() { SUCCESS } else { INVALID_VALUE }
}

/// `cublasDestroy_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(blas: Handle) -> Result {
    let Ok(id) = id(Kind::Blas, blas) else { return NOT_INITIALIZED };
    let mut states = states();
    if states.remove(&id).is_none() {
        return NOT_INITIALIZED;
    }
    drop(states);
    let mut sim = lock();
    sim.stats.live_handles = sim.stats.live_handles.saturating_sub(1);
    SUCCESS
}

/// `cublasSetStream_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(blas: Handle, stream: Handle) -> Result {
    lock().stats.bindings += 1;
    with(blas, |state| {
        // "unconditionally resets the cuBLAS library workspace back to the default workspace pool"
        // (cuBLAS manual).
        (state.stream, state.workspace) = (stream, (0, 0));
        SUCCESS
    })
}

/// `cublasGetStream_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStream_v2(blas: Handle, stream: Out<Handle>) -> Result {
    with(blas, |state| if stream.set(state.stream).is_ok() { SUCCESS } else { INVALID_VALUE })
}

/// `cublasSetPointerMode_v2`: with scalars in device memory, gemm answers "not supported".
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetPointerMode_v2(blas: Handle, mode: u32) -> Result {
    with(blas, |state| {
        state.device_scalars = mode != 0;
        SUCCESS
    })
}

/// `cublasSetMathMode`: results are exact in every mode.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetMathMode(blas: Handle, _mode: u32) -> Result {
    lock().stats.bindings += 1;
    with(blas, |_| SUCCESS)
}

/// `cublasSetAtomicsMode`: there is nothing to be switched.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetAtomicsMode(blas: Handle, _mode: u32) -> Result {
    with(blas, |_| SUCCESS)
}

/// `cublasSetWorkspace_v2`: each product writes to all of it.
#[unsafe(no_mangle)]
pub extern "C" fn cublasSetWorkspace_v2(blas: Handle, workspace: Handle, bytes: usize) -> Result {
    lock().stats.bindings += 1;
    with(blas, |state| {
        state.workspace = (workspace, bytes);
        SUCCESS
    })
}

/// `cublasGetVersion_v2`: 13.0.
#[unsafe(no_mangle)]
pub extern "C" fn cublasGetVersion_v2(_blas: Handle, version: Out<i32>) -> Result {
    if version.set(130000).is_ok() { SUCCESS } else { INVALID_VALUE }
}

impl Sim {
    /// Puts a gemm on a stream.
    pub fn enqueue_gemm(
        &mut self,
        what: &str,
        stream: Handle,
        gemm: Gemm,
        workspace: (usize, usize),
    ) -> Outcome {
        let stream = self.stream(stream)?;
        let context = self.streams.get(&stream).map_or(0, |stream| stream.context);
        self.healthy(context)?;
        let (a, b, d) = (&gemm.a, &gemm.b, &gemm.d);
        let types = [a.element, b.element, d.element];
        let kernel = format!("gemm {types:?} {} {}", a.transposed, b.transposed);
        self.loads(stream, kernel)?;
        let fate = self.faults.on_launch()?;
        let stored = |matrix: &Matrix, rows: usize, columns: usize| {
            let (rows, columns) = if matrix.transposed { (columns, rows) } else { (rows, columns) };
            matrix.extent(rows, columns, gemm.batches)
        };
        let mut parts = vec![
            (gemm.a.address, stored(&gemm.a, gemm.m, gemm.k), false),
            (gemm.b.address, stored(&gemm.b, gemm.k, gemm.n), false),
            (gemm.d.address, stored(&gemm.d, gemm.m, gemm.n), true),
        ];
        if gemm.beta != 0.0 {
            parts.push((gemm.c.address, stored(&gemm.c, gemm.m, gemm.n), false));
        }
        if let Some((address, element)) = gemm.bias {
            parts.push((address, gemm.m * element.bytes(), false));
        }
        parts.push((workspace.0, workspace.1, true));
        let mut touches: Vec<Touch> = Vec::new();
        for (address, bytes, write) in parts.into_iter().filter(|part| part.1 > 0) {
            touches.push(self.touch(what, address, bytes, write)?);
        }
        self.stats.launches += 1;
        self.stats.half_products += u64::from(gemm.a.element.bytes() == 2);
        // SAFETY: the touches above cover all that `run` reads and writes, and the scheduler checks
        // before it runs the item that their allocations are there; the item is alone on the
        // simulated machine.
        let run: Arc<dyn Fn() + Send + Sync> = Arc::new(move || unsafe { gemm.run() });
        let label = format!("{what} {}x{}x{}", gemm.m, gemm.n, gemm.k);
        self.submit(
            stream,
            label,
            Work::Native { run, fault: fate.fault, hang: fate.hang },
            touches,
        )?;
        Ok(())
    }
}

/// One operand as a call gives it: address, `cudaDataType`, leading dimension, stride.
type Operand = (Handle, u32, i32, i64);

/// The numbers that a call gives beside its operands.
struct Shape {
    transposed: [u32; 2],
    size: [i32; 3],
    batches: i32,
    wide: bool,
}

/// Reads alpha or beta.
pub fn scalar(at: &In<u8>, kind: Type) -> std::result::Result<f64, Result> {
    let bytes = at.list(kind.bytes()).map_err(|_| INVALID_VALUE)?;
    let eight = |i: usize| bytes.get(i).copied().unwrap_or(0);
    Ok(match kind {
        Type::F64 => f64::from_le_bytes(std::array::from_fn(eight)),
        Type::F32 => f64::from(f32::from_le_bytes(std::array::from_fn(eight))),
        Type::F16 => f64::from(half::f16::from_le_bytes(std::array::from_fn(eight))),
        Type::Bf16 => f64::from(half::bf16::from_le_bytes(std::array::from_fn(eight))),
    })
}

fn gemm(
    blas: Handle,
    what: &str,
    shape: Shape,
    scalars: (In<u8>, In<u8>, Type),
    operands: [Operand; 3],
) -> Result {
    let mut stream = 0;
    let checked = with(blas, |state| {
        stream = state.stream;
        if state.device_scalars { NOT_SUPPORTED } else { SUCCESS }
    });
    if checked != SUCCESS {
        return checked;
    }
    let prepare = || {
        let [m, n, k] = shape.size.map(|n| usize::try_from(n).ok());
        let (m, n, k) = (m.ok_or(INVALID_VALUE)?, n.ok_or(INVALID_VALUE)?, k.ok_or(INVALID_VALUE)?);
        let batches = usize::try_from(shape.batches).map_err(|_| INVALID_VALUE)?;
        let flags = [shape.transposed[0] != 0, shape.transposed[1] != 0, false];
        let least = [if flags[0] { k } else { m }, if flags[1] { n } else { k }, m];
        let mut matrices = Vec::new();
        for (i, (address, element, leading, stride)) in operands.into_iter().enumerate() {
            let element = Type::new(element).ok_or(NOT_SUPPORTED)?;
            let leading = usize::try_from(leading).map_err(|_| INVALID_VALUE)?;
            let stride = usize::try_from(stride).map_err(|_| INVALID_VALUE)?;
            if leading < least[i].max(1) {
                return Err(INVALID_VALUE);
            }
            matrices.push(Matrix { address, element, leading, stride, transposed: flags[i] });
        }
        let (a, b, c) = (matrices[0], matrices[1], matrices[2]);
        let half = matches!(a.element, Type::F16 | Type::Bf16);
        // Halves may give floats; nothing else is mixed (cuBLAS manual, "cublasGemmEx").
        if a.element != b.element || c.element != a.element && !(half && c.element == Type::F32) {
            return Err(NOT_SUPPORTED);
        }
        let (alpha, beta) = (scalar(&scalars.0, scalars.2)?, scalar(&scalars.1, scalars.2)?);
        let (bias, activation, wide) = (None, Activation::None, shape.wide);
        Ok(Gemm { m, n, k, batches, a, b, c, d: c, alpha, beta, wide, bias, activation })
    };
    let gemm: Gemm = match prepare() {
        Ok(gemm) => gemm,
        Err(result) => return result,
    };
    if gemm.m == 0 || gemm.n == 0 || gemm.batches == 0 {
        return SUCCESS;
    }
    // The first product of a type loads more, which adds a handler of its own. So do the first with
    // one column, the first of a batch, and the first of many columns.
    static LOADED: [Once; 16] = [const { Once::new() }; 16];
    let path = match gemm {
        Gemm { batches: 2.., .. } => 1,
        Gemm { m: 1, .. } | Gemm { n: 1, .. } => 2,
        Gemm { m: 128.., .. } => 3,
        _ => 0,
    };
    LOADED[4 * path + gemm.a.element as usize].call_once(add_end);
    let mut workspace = (0, 0);
    with(blas, |state| {
        workspace = state.workspace;
        SUCCESS
    });
    let outcome = lock().enqueue_gemm(what, stream, gemm, workspace);
    if outcome.is_ok() { SUCCESS } else { EXECUTION_FAILED }
}

macro_rules! plain_gemms {
    ($($single:ident, $batched:ident, $element:literal, $Type:ident, $wide:literal;)*) => {$(
        /// A gemm of one type.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $single(
            blas: Handle, ta: u32, tb: u32, m: i32, n: i32, k: i32, alpha: In<u8>,
            a: Handle, lda: i32, b: Handle, ldb: i32, beta: In<u8>, c: Handle, ldc: i32,
        ) -> Result {
            let shape = Shape { transposed: [ta, tb], size: [m, n, k], batches: 1, wide: $wide };
            let operands = [(a, $element, lda, 0), (b, $element, ldb, 0), (c, $element, ldc, 0)];
            gemm(blas, stringify!($single), shape, (alpha, beta, Type::$Type), operands)
        }
        /// A batch of gemms of one type.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $batched(
            blas: Handle, ta: u32, tb: u32, m: i32, n: i32, k: i32, alpha: In<u8>,
            a: Handle, lda: i32, sa: i64, b: Handle, ldb: i32, sb: i64, beta: In<u8>,
            c: Handle, ldc: i32, sc: i64, batches: i32,
        ) -> Result {
            let shape = Shape { transposed: [ta, tb], size: [m, n, k], batches, wide: $wide };
            let operands = [(a, $element, lda, sa), (b, $element, ldb, sb), (c, $element, ldc, sc)];
            gemm(blas, stringify!($batched), shape, (alpha, beta, Type::$Type), operands)
        }
    )*};
}
plain_gemms! {
    cublasSgemm_v2, cublasSgemmStridedBatched, 0, F32, false;
    cublasDgemm_v2, cublasDgemmStridedBatched, 1, F64, true;
    cublasHgemm, cublasHgemmStridedBatched, 2, F16, false;
}

macro_rules! gemvs {
    ($($name:ident, $element:literal, $Type:ident, $wide:literal;)*) => {$(
        /// A matrix times a vector: a gemm with one column. The result must be without gaps (incy
        /// 1).
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        pub extern "C" fn $name(
            blas: Handle, ta: u32, m: i32, n: i32, alpha: In<u8>, a: Handle, lda: i32,
            x: Handle, incx: i32, beta: In<u8>, y: Handle, incy: i32,
        ) -> Result {
            if incy != 1 || incx < 1 {
                return NOT_SUPPORTED;
            }
            let (rows, inner) = if ta == 0 { (m, n) } else { (n, m) };
            // The vector is read as the transpose of a matrix of one row, whose columns lie incx
            // apart.
            let size = [rows, 1, inner];
            let shape = Shape { transposed: [ta, 1], size, batches: 1, wide: $wide };
            let y = (y, $element, rows.max(1), 0);
            let operands = [(a, $element, lda, 0), (x, $element, incx, 0), y];
            gemm(blas, stringify!($name), shape, (alpha, beta, Type::$Type), operands)
        }
    )*};
}
gemvs! {
    cublasSgemv_v2, 0, F32, false;
    cublasDgemv_v2, 1, F64, true;
}

/// Type of the scalars, and whether sums are wide, of a `cublasComputeType_t`.
pub fn compute(number: u32) -> Option<(Type, bool)> {
    match number {
        64 | 65 => Some((Type::F16, false)),
        68 | 69 | 74 | 75 | 77 | 78 => Some((Type::F32, false)),
        70 | 71 | 79 => Some((Type::F64, true)),
        _ => None,
    }
}

/// `cublasGemmEx`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cublasGemmEx(
    blas: Handle,
    ta: u32,
    tb: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: In<u8>,
    a: Handle,
    a_type: u32,
    lda: i32,
    b: Handle,
    b_type: u32,
    ldb: i32,
    beta: In<u8>,
    c: Handle,
    c_type: u32,
    ldc: i32,
    compute_type: u32,
    _algorithm: i32,
) -> Result {
    let Some((scalars, wide)) = compute(compute_type) else { return NOT_SUPPORTED };
    let shape = Shape { transposed: [ta, tb], size: [m, n, k], batches: 1, wide };
    let operands = [(a, a_type, lda, 0), (b, b_type, ldb, 0), (c, c_type, ldc, 0)];
    gemm(blas, "cublasGemmEx", shape, (alpha, beta, scalars), operands)
}

/// `cublasGemmStridedBatchedEx`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cublasGemmStridedBatchedEx(
    blas: Handle,
    ta: u32,
    tb: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: In<u8>,
    a: Handle,
    a_type: u32,
    lda: i32,
    sa: i64,
    b: Handle,
    b_type: u32,
    ldb: i32,
    sb: i64,
    beta: In<u8>,
    c: Handle,
    c_type: u32,
    ldc: i32,
    sc: i64,
    batches: i32,
    compute_type: u32,
    _algorithm: i32,
) -> Result {
    let Some((scalars, wide)) = compute(compute_type) else { return NOT_SUPPORTED };
    let shape = Shape { transposed: [ta, tb], size: [m, n, k], batches, wide };
    let operands = [(a, a_type, lda, sa), (b, b_type, ldb, sb), (c, c_type, ldc, sc)];
    gemm(blas, "cublasGemmStridedBatchedEx", shape, (alpha, beta, scalars), operands)
}
