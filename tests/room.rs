//! A kernel that finds no memory fails its value, whichever piece it is that cannot be had: no size
//! that depends on data ends the process.
//!
//! The allocator of this process refuses the first large piece that a call asks for, in the next
//! run of the same call the second, and so on until the call asks for no more. Each run has a
//! device and threads of its own, since threads keep what they have worked in.

mod support;

use futensor::quant::{Format, Quantized};
use futensor::{DType, Device, Result, TensorFuture, grad};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst};
use support::{Deadline, Kind, block_on};

/// What is smaller is always had: the engine's own task table is.
const LARGE: usize = 12 << 10;

/// The library `gemm` packs operands into pieces whose sizes the machine's caches bound; they alone
/// have this alignment.
const OF_GEMM: usize = 128;

/// So many large pieces are had before one is refused; below zero none is.
static LEFT: AtomicIsize = AtomicIsize::new(-1);
static REFUSED: AtomicBool = AtomicBool::new(false);

struct Refusing;

impl Refusing {
    fn refuses(bytes: usize, align: usize) -> bool {
        if bytes < LARGE || align == OF_GEMM || LEFT.load(SeqCst) < 0 {
            return false;
        }
        let refused = LEFT.fetch_sub(1, SeqCst) == 0;
        if refused {
            REFUSED.store(true, SeqCst);
        }
        refused
    }
}

// SAFETY: the system's, or nothing.
unsafe impl GlobalAlloc for Refusing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if Refusing::refuses(layout.size(), layout.align()) {
            null_mut()
        } else {
            unsafe { System.alloc(layout) }
        }
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if Refusing::refuses(layout.size(), layout.align()) {
            null_mut()
        } else {
            unsafe { System.alloc_zeroed(layout) }
        }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if Refusing::refuses(size, layout.align()) {
            null_mut()
        } else {
            unsafe { System.realloc(ptr, layout, size) }
        }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Refusing = Refusing;

/// Makes operands, and gives the call that is tried.
type Case = fn(&Device) -> Box<dyn FnOnce() -> TensorFuture>;

fn there(x: TensorFuture) -> TensorFuture {
    block_on(&x).expect("an operand");
    x
}

/// Some numbers of this shape.
fn some<const N: usize>(device: &Device, shape: [usize; N]) -> TensorFuture {
    let n = shape.iter().product::<usize>() as f64;
    there(((device.arange(0.0, n, 1.0) * 0.37).sin()).reshape(shape.map(|n| n as isize)))
}

fn half<const N: usize>(device: &Device, shape: [usize; N]) -> TensorFuture {
    there(some(device, shape).to_dtype(DType::F16))
}

fn indices(device: &Device, n: usize, below: usize) -> TensorFuture {
    there((device.arange(0, n as i64, 1) * 7) % below as i64)
}

/// `case!(|device| operands => call)`
macro_rules! case {
    ($name:literal, |$d:ident| $($x:ident = $make:expr),* => $call:expr) => {
        ($name, (|$d: &Device| {
            $(let $x = $make;)*
            Box::new(move || $call)
        }) as Case)
    };
}

fn gradient(of: &TensorFuture, by: &TensorFuture) -> TensorFuture {
    grad(of.sum_all(), &[by]).into_iter().next().expect("a gradient")
}

/// Calls whose kernels work in memory that grows with their operands.
fn cases() -> Vec<(&'static str, Case)> {
    vec![
        case!("quantized linear",
            |d| w = quantized(d, Format::Q8_0), x = some(d, [80, 256]) => w.linear(&x)),
        case!("quantized linear, repeated",
            |d| w = quantized(d, Format::Q4_0), x = some(d, [1, 256])
                => w.linear(x.expand([90, 256]))),
        case!("linear of halves, turned",
            |d| w = quantized(d, Format::F16), x = some(d, [256, 40]) => w.linear(x.t())),
        case!("quantized linear by groups",
            |d| w = quantized(d, Format::Q8_0), x = some(d, [80, 256]), i = indices(d, 80, 4)
                => w.grouped_linear(&x, &i, 4)),
        case!("quantized embedding",
            |d| w = quantized(d, Format::Q8_0), i = indices(d, 3000, 64) => w.embedding(&i)),
        case!("quantized from columns", |d| x = some(d, [256, 64]) => quantized_of(&x.t())),
        case!("paged_attention",
            |d| q = some(d, [4, 1, 8, 64]), p = some(d, [70, 16, 2, 64]),
                t = indices(d, 280, 70).reshape([4, 70]),
                n = there(d.full_dtype([4], 1100, DType::I64))
                => q.paged_attention(&p, &p, &t, &n, ())),
        case!("paged_attention, long table",
            |d| q = some(d, [1, 1, 1, 16]), p = some(d, [2, 1, 1, 16]),
                t = there(d.zeros_dtype([1, 1], DType::I64)).expand([1, 9000]),
                n = there(d.full_dtype([1], 9000, DType::I64))
                => q.paged_attention(&p, &p, &t, &n, ())),
        case!("attention",
            |d| q = some(d, [1, 2, 200, 64]) => q.scaled_dot_product_attention(&q, &q, ())),
        case!("softmax of halves", |d| x = half(d, [3, 20_000]) => x.softmax(1)),
        case!("softmax of columns", |d| x = some(d, [400, 60]) => x.softmax(0)),
        case!("layer_norm of a weight in halves",
            |d| x = some(d, [3, 5000]), w = half(d, [5000]) => x.layer_norm_weighted(&w, 1e-5)),
        case!("max_pool2d", |d| x = some(d, [1, 2, 130, 130]) => x.max_pool2d(2)),
        case!("max_pool2d_with_positions",
            |d| x = some(d, [1, 2, 9000]) => x.max_pool2d_with_positions(2).1),
        case!("gradient of max_pool2d",
            |d| x = there(some(d, [1, 1, 130, 130])).requires_grad(), y = there(x.max_pool2d(2))
                => gradient(&y, &x)),
        case!("fold", |d| x = some(d, [1, 4, 129 * 129]) => x.fold(130, 2, ())),
        case!("avg_pool2d", |d| x = some(d, [1, 1, 130, 130]) => x.avg_pool2d(2)),
        case!("gradient of avg_pool2d",
            |d| x = there(some(d, [1, 1, 130, 130])).requires_grad(), y = there(x.avg_pool2d(2))
                => gradient(&y, &x)),
        case!("conv2d",
            |d| x = some(d, [1, 16, 40, 40]), w = some(d, [24, 16, 3, 3])
                => x.conv2d(&w, None, ())),
        case!("conv2d of halves",
            |d| x = half(d, [1, 16, 40, 40]), w = half(d, [24, 16, 3, 3])
                => x.conv2d(&w, None, ())),
        case!("conv_transpose2d",
            |d| x = some(d, [1, 16, 30, 30]), w = some(d, [16, 24, 3, 3])
                => x.conv_transpose2d(&w, None, ())),
        case!("matmul turned", |d| a = some(d, [70, 90]), b = some(d, [80, 90]) => a.matmul(b.t())),
        case!("matmul of halves",
            |d| a = half(d, [100, 120]), b = half(d, [120, 90]) => a.matmul(&b)),
        case!("a column by a matrix",
            |d| a = some(d, [5000, 2]), b = some(d, [5000, 8]) => a.t().narrow(0, 0, 1).matmul(&b)),
        case!("sort", |d| x = some(d, [2, 9000]) => x.sort(1, false)),
        case!("sort of doubles",
            |d| x = there(some(d, [2, 9000]).to_dtype(DType::F64)) => x.argsort(1, true)),
        case!("topk", |d| x = some(d, [2, 9000]) => x.topk(3000, 1, true).1),
        case!("top_p", |d| x = there(some(d, [2, 9000]).softmax(1)) => x.top_p(0.5)),
        case!("sum of what is fused", |d| x = some(d, [300, 900]) => (x.exp() * 2.0).sum(0)),
        case!("nll_loss apart",
            |d| x = there(some(d, [3000, 4]).log_softmax(1)),
                t = there(indices(d, 6000, 4).reshape([3000, 2]))
                => x.nll_loss(t.narrow(1, 0, 1).squeeze(1), ())),
    ]
}

fn quantized(device: &Device, format: Format) -> Quantized {
    let w = Quantized::from_tensor(&some(device, [64, 256]), format).expect("a weight");
    drop(there(w.packed().clone()));
    w
}

fn quantized_of(x: &TensorFuture) -> TensorFuture {
    Quantized::from_tensor(x, Format::Q8_0).expect("a weight").packed().clone()
}

/// Elements as numbers, whatever their type.
fn numbers(x: &TensorFuture) -> Vec<f64> {
    block_on(x.to_dtype(DType::F64).to_vec::<f64>()).expect("elements")
}

/// What comes of a call whose large piece number `k` is refused, and whether there was one; all of
/// it on fresh threads.
fn tried(case: Case, k: isize) -> (Result<Vec<f64>>, bool) {
    let work = move || {
        let device = Kind::CpuWithoutInline.device();
        let call = case(&device);
        REFUSED.store(false, SeqCst);
        LEFT.store(k, SeqCst);
        let value = call();
        let end = block_on(&value).map(drop);
        LEFT.store(-1, SeqCst);
        (end.map(|()| numbers(&value)), REFUSED.load(SeqCst))
    };
    std::thread::spawn(work).join().expect("no panic")
}

// One test: the allocator is the process's.
#[test]
fn a_kernel_that_finds_no_room_fails_its_value_alone() {
    let mut without = Vec::new();
    for (name, case) in cases() {
        let _deadline = Deadline::of(name);
        let (want, _) = tried(case, -1);
        let want = want.unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut works_in_room = false;
        for k in 0.. {
            assert!(k < 200, "{name} asks for more and more");
            let (got, refused) = tried(case, k);
            match got {
                Ok(got) => assert_eq!(got, want, "{name}, piece {k}"),
                Err(error) => {
                    assert!(refused && error.is_out_of_memory(), "{name}, piece {k}: {error}");
                    works_in_room |= error.message().contains("to work in");
                }
            }
            if !refused {
                break;
            }
        }
        if !works_in_room {
            without.push(name);
        }
    }
    assert!(
        without.is_empty(),
        "nothing was refused to the kernels of {without:?}: the cases are too small"
    );
}
