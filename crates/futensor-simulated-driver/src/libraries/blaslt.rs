//! The stand-in for cuBLASLt: descriptors, one heuristic answer, and matmul with bias and
//! activation.
//!
//! Column-major layouts only. What it does not take (other orders, scales, auxiliary outputs) it
//! refuses, rather than compute something else.

use crate::ffi::{Handle, In, Kind, Out, handle, id};
use crate::libraries::blas::{INVALID_VALUE, NOT_SUPPORTED, Result, compute, scalar};
use crate::libraries::gemm::{Activation, Gemm, Matrix, Type};
use crate::machine::sim::lock;
use std::collections::BTreeMap;
use std::sync::{LazyLock, Mutex};

const SUCCESS: Result = 0;
const NOT_INITIALIZED: Result = 1;
const EXECUTION_FAILED: Result = 13;

/// A descriptor: attributes by their number, as 64 bits each.
type Attributes = BTreeMap<u32, u64>;

#[derive(Default)]
struct Table {
    next: u64,
    things: BTreeMap<u64, Attributes>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn create(to: Out<Handle>, attributes: Attributes) -> Result {
    let mut table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    table.next += 1;
    let number = table.next;
    table.things.insert(number, attributes);
    if to.set(handle(Kind::BlasLt, number)).is_ok() { SUCCESS } else { INVALID_VALUE }
}

fn destroy(thing: Handle) -> Result {
    let Ok(number) = id(Kind::BlasLt, thing) else { return INVALID_VALUE };
    let mut table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if table.things.remove(&number).is_some() { SUCCESS } else { INVALID_VALUE }
}

fn get(thing: Handle) -> std::result::Result<Attributes, Result> {
    let number = id(Kind::BlasLt, thing).map_err(|_| INVALID_VALUE)?;
    let table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    table.things.get(&number).cloned().ok_or(INVALID_VALUE)
}

fn set(thing: Handle, attribute: u32, value: In<u8>, size: usize) -> Result {
    let (Ok(number), Ok(bytes)) = (id(Kind::BlasLt, thing), value.list(size.min(8))) else {
        return INVALID_VALUE;
    };
    let mut table = TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(attributes) = table.things.get_mut(&number) else { return INVALID_VALUE };
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(&bytes);
    attributes.insert(attribute, u64::from_le_bytes(wide));
    SUCCESS
}

/// `cublasLtCreate`. Needs a current context.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtCreate(to: Out<Handle>) -> Result {
    if lock().healthy_current().is_err() {
        return NOT_INITIALIZED;
    }
    create(to, Attributes::new())
}

/// `cublasLtDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtDestroy(thing: Handle) -> Result {
    destroy(thing)
}

const COMPUTE: u32 = 0;
const SCALE: u32 = 1;
const POINTER_MODE: u32 = 2;
const TRANSPOSE_A: u32 = 3;
const TRANSPOSE_B: u32 = 4;
const EPILOGUE: u32 = 7;
const BIAS: u32 = 8;
const BIAS_TYPE: u32 = 26;

/// `cublasLtMatmulDescCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescCreate(to: Out<Handle>, compute: u32, scale: u32) -> Result {
    create(to, Attributes::from([(COMPUTE, u64::from(compute)), (SCALE, u64::from(scale))]))
}

/// `cublasLtMatmulDescDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescDestroy(thing: Handle) -> Result {
    destroy(thing)
}

/// `cublasLtMatmulDescSetAttribute`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulDescSetAttribute(
    thing: Handle,
    attribute: u32,
    value: In<u8>,
    size: usize,
) -> Result {
    set(thing, attribute, value, size)
}

const TYPE: u32 = 0;
const ORDER: u32 = 1;
const ROWS: u32 = 2;
const COLUMNS: u32 = 3;
const LEADING: u32 = 4;
const BATCHES: u32 = 5;
const STRIDE: u32 = 6;

/// `cublasLtMatrixLayoutCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutCreate(
    to: Out<Handle>,
    element: u32,
    rows: u64,
    columns: u64,
    leading: i64,
) -> Result {
    create(
        to,
        Attributes::from([
            (TYPE, u64::from(element)),
            (ROWS, rows),
            (COLUMNS, columns),
            (LEADING, leading as u64),
        ]),
    )
}

/// `cublasLtMatrixLayoutDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutDestroy(thing: Handle) -> Result {
    destroy(thing)
}

/// `cublasLtMatrixLayoutSetAttribute`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatrixLayoutSetAttribute(
    thing: Handle,
    attribute: u32,
    value: In<u8>,
    size: usize,
) -> Result {
    set(thing, attribute, value, size)
}

/// `cublasLtMatmulPreferenceCreate`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceCreate(to: Out<Handle>) -> Result {
    create(to, Attributes::new())
}

/// `cublasLtMatmulPreferenceDestroy`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceDestroy(thing: Handle) -> Result {
    destroy(thing)
}

/// `cublasLtMatmulPreferenceSetAttribute`.
#[unsafe(no_mangle)]
pub extern "C" fn cublasLtMatmulPreferenceSetAttribute(
    thing: Handle,
    attribute: u32,
    value: In<u8>,
    size: usize,
) -> Result {
    set(thing, attribute, value, size)
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Heuristic {
    algorithm: [u64; 8],
    workspace: usize,
    state: Result,
    waves: f32,
    reserved: [i32; 4],
}

/// `cublasLtMatmulAlgoGetHeuristic`: one algorithm, without a workspace, for what `cublasLtMatmul`
/// takes.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    _blas: Handle,
    operation: Handle,
    a: Handle,
    b: Handle,
    c: Handle,
    d: Handle,
    _preference: Handle,
    requested: i32,
    results: Out<Heuristic>,
    count: Out<i32>,
) -> Result {
    match plan(operation, [a, b, c, d], [0; 4], (0.0, 0.0)) {
        Ok(_) if requested > 0 => {
            let filled = results.set(Heuristic { waves: 1.0, ..Heuristic::default() });
            if filled.and(count.set(1)).is_ok() { SUCCESS } else { INVALID_VALUE }
        }
        Ok(_) => INVALID_VALUE,
        Err(result) => {
            count.set_if_asked(0);
            result
        }
    }
}

/// What a description asks for, or why it is refused.
fn plan(
    operation: Handle,
    layouts: [Handle; 4],
    addresses: [Handle; 4],
    scalars: (f64, f64),
) -> std::result::Result<Gemm, Result> {
    let operation = get(operation)?;
    let flag = |key| operation.get(&key).copied().unwrap_or(0);
    let known = [COMPUTE, SCALE, POINTER_MODE, TRANSPOSE_A, TRANSPOSE_B, EPILOGUE, BIAS, BIAS_TYPE];
    if flag(POINTER_MODE) != 0
        || operation.iter().any(|(key, &value)| !known.contains(key) && value != 0)
    {
        return Err(NOT_SUPPORTED);
    }
    let (_, wide) = compute(flag(COMPUTE) as u32).ok_or(NOT_SUPPORTED)?;
    let transposed = [flag(TRANSPOSE_A) != 0, flag(TRANSPOSE_B) != 0, false, false];
    let mut matrices = Vec::new();
    let mut sizes = Vec::new();
    let mut batches = 1;
    for i in 0..4 {
        let layout = get(layouts[i])?;
        let number = |key, otherwise: u64| layout.get(&key).copied().unwrap_or(otherwise) as usize;
        let element = Type::new(number(TYPE, 99) as u32).ok_or(NOT_SUPPORTED)?;
        // Order 0 is column-major.
        if number(ORDER, 0) != 0 {
            return Err(NOT_SUPPORTED);
        }
        let (rows, columns, leading) = (number(ROWS, 0), number(COLUMNS, 0), number(LEADING, 0));
        if leading < rows.max(1) {
            return Err(INVALID_VALUE);
        }
        batches = number(BATCHES, 1);
        let stride = number(STRIDE, 0);
        matrices.push(Matrix {
            address: addresses[i],
            element,
            leading,
            stride,
            transposed: transposed[i],
        });
        sizes.push(if transposed[i] { (columns, rows) } else { (rows, columns) });
    }
    let ((m, k), (k_again, n)) = (sizes[0], sizes[1]);
    if k != k_again || sizes[2] != (m, n) || sizes[3] != (m, n) {
        return Err(INVALID_VALUE);
    }
    let (activation, biased) = match flag(EPILOGUE) {
        0 | 1 => (Activation::None, false),
        2 => (Activation::Relu, false),
        4 => (Activation::None, true),
        6 => (Activation::Relu, true),
        32 => (Activation::Gelu, false),
        36 => (Activation::Gelu, true),
        _ => return Err(NOT_SUPPORTED),
    };
    let element = match operation.get(&BIAS_TYPE) {
        Some(&number) => Type::new(number as u32).ok_or(NOT_SUPPORTED)?,
        None => matrices[3].element,
    };
    let bias = biased.then_some((flag(BIAS) as usize, element));
    let (a, b, c, d) = (matrices[0], matrices[1], matrices[2], matrices[3]);
    let (alpha, beta) = scalars;
    Ok(Gemm { m, n, k, batches, a, b, c, d, alpha, beta, wide, bias, activation })
}

/// `cublasLtMatmul`.
#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub extern "C" fn cublasLtMatmul(
    _blas: Handle,
    operation: Handle,
    alpha: In<u8>,
    a: Handle,
    a_layout: Handle,
    b: Handle,
    b_layout: Handle,
    beta: In<u8>,
    c: Handle,
    c_layout: Handle,
    d: Handle,
    d_layout: Handle,
    _algorithm: Handle,
    _workspace: Handle,
    _workspace_bytes: usize,
    stream: Handle,
) -> Result {
    let prepare = || {
        let scale = get(operation)?.get(&SCALE).copied().unwrap_or(0);
        let scale = Type::new(scale as u32).ok_or(NOT_SUPPORTED)?;
        let scalars = (scalar(&alpha, scale)?, scalar(&beta, scale)?);
        plan(operation, [a_layout, b_layout, c_layout, d_layout], [a, b, c, d], scalars)
    };
    match prepare() {
        Err(result) => result,
        Ok(gemm) => match lock().enqueue_gemm("cublasLtMatmul", stream, gemm, (0, 0)) {
            Ok(()) => SUCCESS,
            Err(_) => EXECUTION_FAILED,
        },
    }
}
