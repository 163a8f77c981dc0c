//! Question: how near to its ceiling is each kernel that is bound by memory, or by one function?
//!
//! Method: warm operands, one step awaited at a time, its result dropped before the next begins, so
//! that memory is used again. Between any two runs of a kernel its ceilings are run, on as many
//! threads and over as many bytes: the median of each stands in the same line, with the ratio of
//! the two, so that what the neighbours of a machine do falls on both. Ceilings: `copy` is the
//! better of a plain and a non-temporal copy of what the kernel reads and writes, each on as many
//! threads as the device has; `read` reads as many bytes; `L1` is the same function over a row that
//! stays in the first cache, summed there (so it has the sum's cost on top, and writes nothing).
//! Values are compared with plain Rust once. At the end each row of the op tables has a line, of
//! one size, against a copy.
//!
//! `cargo bench -p futensor-benches --bench kernels`, `-- softmax` for some rows, `-- table` for
//! those of the op tables

#![allow(unsafe_code)] // Non-temporal stores, and threads that write halves of one slice.

use futensor::quant::{Format, Quantized};
use futensor::rows::{self, Domain, OperandRef};
use futensor::{CpuOptions, DType, Device, Result, TensorFuture};
use ledger::Ledger;
use std::cell::RefCell;
use std::hint::black_box;
use std::time::{Duration, Instant};

const MI16: usize = 16 << 20;

/// Memory that ceilings move: as large as the largest case.
struct Ceilings {
    from: Vec<u8>,
    to: Vec<u8>,
    threads: usize,
}

#[derive(Clone, Copy)]
struct Address(*mut u8);
// SAFETY: each thread has a part of its own.
unsafe impl Send for Address {}
unsafe impl Sync for Address {}

impl Address {
    fn at(self, i: usize) -> *mut u8 {
        self.0.wrapping_add(i)
    }
}

/// 2 MiB-aligned parts of a vector that has asked for huge pages, as the device's own memory does.
fn huge(bytes: usize) -> Vec<u8> {
    let mut memory: Vec<u8> = Vec::with_capacity(bytes);
    #[cfg(target_os = "linux")]
    // SAFETY: advice on memory that is ours; it changes no contents.
    unsafe {
        let at = memory.as_ptr().align_offset(2 << 20);
        libc::madvise(memory.as_mut_ptr().add(at).cast(), bytes - at, libc::MADV_HUGEPAGE);
    }
    memory.resize(bytes, 1);
    memory
}

impl Ceilings {
    fn new(threads: usize) -> Ceilings {
        Ceilings { from: huge(68 << 20), to: huge(68 << 20), threads }
    }

    /// Runs a body on as many threads as the device has, each with its part of so many bytes.
    fn parts(&self, bytes: usize, body: impl Fn(usize, usize) + Sync) -> f64 {
        let from = Instant::now();
        let part = bytes.div_ceil(self.threads).next_multiple_of(4096);
        std::thread::scope(|scope| {
            for t in 1..self.threads {
                let body = &body;
                scope.spawn(move || body((t * part).min(bytes), ((t + 1) * part).min(bytes)));
            }
            body(0, part.min(bytes));
        });
        from.elapsed().as_secs_f64()
    }

    fn plain_copy(&mut self, bytes: usize) -> f64 {
        let (from, to) = (Address(self.from.as_mut_ptr()), Address(self.to.as_mut_ptr()));
        // SAFETY: the parts are disjoint and inside both.
        self.parts(bytes, |a, b| unsafe {
            std::ptr::copy_nonoverlapping(from.at(a), to.at(a), b - a)
        })
    }

    fn streamed_copy(&mut self, bytes: usize) -> f64 {
        let (from, to) = (Address(self.from.as_mut_ptr()), Address(self.to.as_mut_ptr()));
        // SAFETY: as above, and both vectors are larger by more than a line.
        self.parts(bytes, |a, b| unsafe { stream(from.at(a), to.at(a), b - a) })
    }

    fn read(&mut self, bytes: usize) -> f64 {
        let from = &self.from;
        self.parts(bytes, |a, b| {
            let mut lanes = [0u64; 32];
            for chunk in from[a..b].as_chunks::<256>().0 {
                for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
                    *lane ^= u64::from_ne_bytes(*word);
                }
            }
            black_box(lanes);
        })
    }

    fn write(&mut self, bytes: usize) -> f64 {
        let to = Address(self.to.as_mut_ptr());
        // SAFETY: as in `plain_copy`.
        self.parts(bytes, |a, b| unsafe { to.at(a).write_bytes(1, b - a) })
    }
}

/// # Safety
/// As for a copy of non-overlapping memory.
#[cfg(target_arch = "x86_64")]
unsafe fn stream(from: *const u8, to: *mut u8, n: usize) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    // SAFETY: the caller's promise; addresses of stores are multiples of 16.
    unsafe {
        let head = to.align_offset(64).min(n);
        std::ptr::copy_nonoverlapping(from, to, head);
        let mut at = head;
        while at + 64 <= n {
            for k in [0, 16, 32, 48] {
                _mm_stream_si128(to.add(at + k).cast(), _mm_loadu_si128(from.add(at + k).cast()));
            }
            at += 64;
        }
        std::ptr::copy_nonoverlapping(from.add(at), to.add(at), n - at);
        _mm_sfence();
    }
}

/// # Safety
/// As for a copy of non-overlapping memory.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream(from: *const u8, to: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, n) }
}

/// What a row is held against.
#[derive(Clone, Copy)]
enum Against {
    /// A copy of so many bytes.
    Copy(usize),
    Read(usize),
    Write(usize),
    /// Nothing but its own time.
    Itself,
}

type Make<'a> = &'a dyn Fn() -> TensorFuture;

struct Bench<'a, 'm> {
    group: &'a mut criterion::BenchmarkGroup<'m, criterion::measurement::WallTime>,
    ledger: &'a mut Ledger,
    runtime: tokio::runtime::Runtime,
    ceilings: RefCell<Ceilings>,
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

impl Bench<'_, '_> {
    /// A row of a step that reads so many bytes, against a copy of as many as it reads and writes.
    fn swept(&mut self, name: &str, read: usize, elements: usize, make: Make<'_>) {
        let moved = (read + size_of(&make())) / 2;
        self.row(name, elements, Against::Copy(moved), None, make);
    }

    /// One row: a step of `elements`, against a ceiling, and against the same function in the first
    /// cache.
    fn row(
        &mut self,
        name: &str,
        elements: usize,
        against: Against,
        in_cache: Option<Make<'_>>,
        make: Make<'_>,
    ) {
        let mut times: [Vec<f64>; 4] = Default::default();
        let (runtime, ceilings) = (&self.runtime, &self.ceilings);
        self.ledger.bench(self.group, name, elements as u64, |n| {
            let mut time = Duration::ZERO;
            for _ in 0..n {
                let from = Instant::now();
                let y = runtime.block_on(make().wait_to_read());
                let took = from.elapsed();
                y.expect("a value");
                time += took;
                times[0].push(took.as_secs_f64());
                let mut c = ceilings.borrow_mut();
                match against {
                    Against::Copy(bytes) => {
                        times[1].push(c.plain_copy(bytes));
                        times[2].push(c.streamed_copy(bytes));
                    }
                    Against::Read(bytes) => times[1].push(c.read(bytes)),
                    Against::Write(bytes) => times[1].push(c.write(bytes)),
                    Against::Itself => {}
                }
                if let Some(make) = in_cache {
                    let from = Instant::now();
                    runtime.block_on(make().wait_to_read()).expect("a value");
                    times[3].push(from.elapsed().as_secs_f64());
                }
            }
            time
        });
        if times[0].is_empty() {
            return;
        }
        let own = median(&mut times[0]);
        let mut line = format!(
            "ceiling: {name}: {:.3} ms, {:.3} ns an element (quickest {:.3} ms)",
            own * 1e3,
            own * 1e9 / elements as f64,
            times[0][0] * 1e3
        );
        let mut ceiling = |what: &str, i: usize| {
            if !times[i].is_empty() {
                let m = median(&mut times[i]);
                let (m3, q3, ratio) = (m * 1e3, times[i][0] * 1e3, m / own);
                line += &format!("; {what} {m3:.3} ms (quickest {q3:.3}) ratio {ratio:.2}");
            }
        };
        let names = match against {
            Against::Copy(_) => ["plain copy", "non-temporal copy"],
            Against::Read(_) => ["reading", ""],
            _ => ["writing", ""],
        };
        ceiling(names[0], 1);
        ceiling(names[1], 2);
        ceiling("the same in L1, and its sum,", 3);
        println!("{line}");
    }
}

/// The largest relative distance between a result's first elements and what they should be.
fn check(
    runtime: &tokio::runtime::Runtime,
    y: &TensorFuture,
    want: impl Fn(usize) -> f64,
    within: f64,
) {
    let got = runtime.block_on(y.to_vec::<f32>()).expect("a value");
    for i in (0..got.len()).step_by((got.len() / 997).max(1)) {
        let (got, want) = (got[i] as f64, want(i));
        assert!(
            (got - want).abs() <= within * want.abs().max(1e-3),
            "element {i}: {got}, not {want}"
        );
    }
}

fn main() {
    ledger::run("kernels", |group, ledger| {
        // Ceilings run at this priority too.
        let device = Device::cpu_with(CpuOptions::default().nice(0));
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let bench = Bench {
            group,
            ledger,
            runtime: ledger::runtime(),
            ceilings: RefCell::new(Ceilings::new(threads)),
        };
        rows(&device, bench).expect("no errors");
    });
}

fn rows(device: &Device, mut bench: Bench<'_, '_>) -> Result<()> {
    let warm = |x: TensorFuture| -> Result<TensorFuture> { Ok(futensor::block_on(x)?.into()) };
    let x = warm(device.rand([MI16]) * 4.0 - 2.0)?;
    let host = futensor::block_on(x.to_vec::<f32>())?;
    let at = |i: usize| host[i] as f64;
    let bytes = 4 * MI16;

    let chain = |x: &TensorFuture| ((x * 2.0 + 1.0) * x - 0.5).relu();
    check(&bench.runtime, &chain(&x), |i| ((at(i) * 2.0 + 1.0) * at(i) - 0.5).max(0.0), 1e-3);
    let row = warm(device.rand([1, 1024]) * 4.0 - 2.0)?;
    let rows = warm(row.expand([MI16 / 1024, 1024]))?;
    bench.row("chain of 5, 16 Mi", MI16, Against::Copy(bytes), None, &|| chain(&x));
    for (name, f, want) in functions() {
        check(&bench.runtime, &f(&x), |i| want(at(i)), 1e-5);
        let name = format!("{name}, 16 Mi");
        bench.row(&name, MI16, Against::Copy(bytes), Some(&|| f(&rows).sum_all()), &|| f(&x));
    }
    let sum = host.iter().map(|&x| x as f64).sum::<f64>();
    check(&bench.runtime, &x.sum_all(), |_| sum, 1e-4);
    bench.row("sum, 16 Mi", MI16, Against::Read(bytes), None, &|| x.sum_all());
    bench.row("sum of a chain, 16 Mi", MI16, Against::Read(bytes), None, &|| {
        (&x * &x + 1.0).sum_all()
    });

    let m = warm(x.reshape([4096, 4096]))?;
    let (w, b) = (warm(device.rand([4096]))?, warm(device.rand([4096]))?);
    bench.row("softmax [4096, 4096]", MI16, Against::Copy(bytes), None, &|| m.softmax(-1));
    bench.row("log_softmax [4096, 4096]", MI16, Against::Copy(bytes), None, &|| m.log_softmax(-1));
    bench.row("layer_norm [4096, 4096]", MI16, Against::Copy(bytes), None, &|| {
        m.layer_norm(&w, &b, 1e-5)
    });
    bench.row("logsumexp [4096, 4096]", MI16, Against::Read(bytes), None, &|| m.logsumexp(-1));
    bench.row("sum over 0 of [4096, 4096]", MI16, Against::Read(bytes), None, &|| m.sum([0]));
    bench.row("sum over 1 of [4096, 4096]", MI16, Against::Read(bytes), None, &|| m.sum([1]));

    // What choosing a token asks of its logits.
    bench.row("topk, 64 of [4096, 4096]", MI16, Against::Read(bytes), None, &|| {
        m.topk(64, -1, true).0
    });
    let (weights, draws) = (warm(m.exp())?, warm(device.rand([4096, 1]))?);
    bench.row("top_p of [4096, 4096]", MI16, Against::Copy(bytes), None, &|| weights.top_p(0.5));
    bench.row("categorical [4096, 4096]", MI16, Against::Read(bytes), None, &|| {
        weights.categorical(&draws)
    });

    bench.row("row + matrix", MI16, Against::Copy(bytes), None, &|| &m + &w);
    let column = warm(device.rand([4096, 1]))?;
    bench.row("column * matrix + row", MI16, Against::Copy(bytes), None, &|| &m * &column + &w);
    let turned = warm(m.transpose(0, 1))?;
    bench.row("turned + 1", MI16, Against::Copy(bytes), None, &|| &turned + 1.0);
    let even = warm(m.reshape([4096, 2048, 2]).narrow(2, 0, 1).squeeze(2))?;
    bench.row("every second column + 1", MI16 / 2, Against::Copy(bytes), None, &|| &even + 1.0);
    let half = warm(x.to_dtype(DType::BF16))?;
    bench.row("chain of 5, bf16", MI16, Against::Copy(bytes / 2), None, &|| chain(&half));
    bench.row("to bf16", MI16, Against::Copy(bytes * 3 / 4), None, &|| x.to_dtype(DType::BF16));

    bench.row("rand, 16 Mi", MI16, Against::Write(bytes), None, &|| device.rand([MI16]));
    bench.row("randn, 16 Mi", MI16, Against::Write(bytes), None, &|| device.randn([MI16]));

    // Of a size that a cache holds: what a thread more is worth, and where it costs.
    let small = warm(device.rand([256, 10]))?;
    bench.row("softmax [256, 10]", 2560, Against::Itself, None, &|| small.softmax(-1));
    bench.row("log_softmax [256, 10]", 2560, Against::Itself, None, &|| small.log_softmax(-1));
    let square = warm(device.rand([256, 256]))?;
    let mask = warm(square.gt(0.5))?;
    let other = warm(device.rand([256, 256]))?;
    bench.row("sum over 0 of where, [256, 256]", 65536, Against::Itself, None, &|| {
        mask.where_cond(&square, &other).sum([0])
    });
    bench.row("sum over 0 of [256, 256]", 65536, Against::Itself, None, &|| square.sum([0]));
    bench.row("x + 1, [256, 256]", 65536, Against::Copy(4 * 65536), None, &|| &square + 1.0);
    let mi = warm(device.rand([1 << 20]))?;
    bench.row("chain of 5, 1 Mi", 1 << 20, Against::Copy(4 << 20), None, &|| chain(&mi));
    bench.row("sum, 1 Mi", 1 << 20, Against::Read(4 << 20), None, &|| mi.sum_all());
    quantised(device, &mut bench)?;
    tables(device, &mut bench)
}

/// Each row of the op tables, over 1 Mi elements: in float32, or in int32 what takes no floats.
fn tables(device: &Device, bench: &mut Bench<'_, '_>) -> Result<()> {
    const SIDE: usize = 1 << 10;
    const N: usize = SIDE * SIDE;
    // There are many, and they are to be a sweep.
    bench.group.warm_up_time(Duration::from_millis(5));
    bench.group.measurement_time(Duration::from_millis(20)).sample_size(10);
    let warm = |x: TensorFuture| -> Result<TensorFuture> { Ok(futensor::block_on(x)?.into()) };
    let uniform = device.rand([SIDE, SIDE]);
    let whole = warm((&uniform * 100.0 + 1.0).to_dtype(DType::I32))?;
    let uniform = warm(uniform)?;
    for row in rows::all() {
        let name = format!("table: {}", row.name);
        let one = match row.domain {
            Domain::all | Domain::off_zero | Domain::apart => &uniform * 4.0 - 2.0,
            Domain::positive | Domain::large_divisor => &uniform + 0.25,
            Domain::unit => &uniform * 1.8 - 0.9,
            Domain::above_one => &uniform + 1.1,
        };
        let (one, other) = (warm(one)?, warm(&uniform + 2.0)?);
        let call = |x: &TensorFuture, other: &TensorFuture| match row.operands() {
            _ if row.is_reduction() => row.reduce(x, Some(&[1]), false),
            1 => row.call(&[OperandRef::Tensor(x)]),
            _ => row.call(&[OperandRef::Tensor(x), OperandRef::Tensor(other)]),
        };
        let call = |x: &TensorFuture, other: &TensorFuture| {
            call(x, other).expect("an op of so many operands")
        };
        let [x, other] = match call(&one, &other).error() {
            None => [&one, &other],
            Some(_) => [&whole, &whole],
        };
        bench.swept(&name, row.operands() * size_of(x), N, &|| call(x, other));
    }
    for (name, scan) in rows::scans() {
        let x = &uniform;
        bench.swept(&format!("table: {name}"), size_of(x), N, &|| scan(x, -1).swap_remove(0));
    }
    Ok(())
}

fn size_of(x: &TensorFuture) -> usize {
    x.numel() * x.dtype().size()
}

/// Products of a weight of 18 Mi: one row and eight are bound by reading it, 512 by arithmetic (an
/// element is a multiply-add here).
fn quantised(device: &Device, bench: &mut Bench<'_, '_>) -> Result<()> {
    const SIZES: [usize; 2] = [16384, 1152];
    let dense = device.randn(SIZES);
    for format in [Format::Q4_1, Format::Q4_0, Format::Q8_0, Format::F16, Format::BF16] {
        let weight = Quantized::from_tensor(&dense, format)?;
        for rows in [1, 8, 512] {
            let x: TensorFuture = futensor::block_on(device.randn([rows, SIZES[1]]))?.into();
            let name = format!("{rows} rows by {format}");
            let products = rows * SIZES[0] * SIZES[1];
            bench.row(&name, products, Against::Read(weight.bytes()), None, &|| weight.linear(&x));
        }
    }
    Ok(())
}

type Function = (&'static str, fn(&TensorFuture) -> TensorFuture, fn(f64) -> f64);

fn functions() -> [Function; 3] {
    [
        ("exp", |x| x.exp(), f64::exp),
        ("tanh", |x| x.tanh(), f64::tanh),
        // Abramowitz and Stegun 7.1.26: within 1.5e-7.
        (
            "gelu",
            |x| x.gelu(),
            |x| {
                let z = x.abs() / std::f64::consts::SQRT_2;
                let t = 1.0 / (1.0 + 0.3275911 * z);
                let c = [0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429];
                let p = c.iter().rev().fold(0.0, |p, c| (p + c) * t);
                let erf = (1.0 - p * (-z * z).exp()) * x.signum();
                0.5 * x * (1.0 + erf)
            },
        ),
    ]
}
