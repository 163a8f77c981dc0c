//! What the executor takes on this machine. Prints, asserts nothing:
//! `cargo test --release --lib measure -- --ignored --nocapture --test-threads=1`.

use super::tests::{Buffer, chain, single};
use super::*;
use crate::dtype::Scalar;
use crate::graph::program::{Arg, Code};
use crate::op::{BinaryOp, UnaryOp};
use crate::view::Serial;
use DType::*;
use std::hint::black_box;
use std::time::Instant;

/// Nanoseconds that this thread has computed: other work on the machine counts as little as can be.
fn thread_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` may be written.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Nanoseconds of a call: the first decile of batches of about 200 us, since other work only ever adds.
fn time(mut f: impl FnMut()) -> f64 {
    let start = Instant::now();
    f();
    let once = start.elapsed().as_nanos().max(20) as usize;
    let batch = (200_000 / once).clamp(1, 10_000);
    let rounds = (20_000_000 / (batch * once)).clamp(10, 400);
    let mut times: Vec<f64> = (0..rounds)
        .map(|_| {
            let start = thread_ns();
            (0..batch).for_each(|_| f());
            (thread_ns() - start) as f64 / batch as f64
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[rounds / 10]
}

/// Threads that wait for work by spinning, as many as the machine has.
struct Spinning {
    threads: usize,
}

impl Parallel for Spinning {
    fn threads(&self) -> usize {
        self.threads
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let next = std::sync::atomic::AtomicUsize::new(0);
        let work = || {
            loop {
                let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if i >= parts {
                    break;
                }
                part(i);
            }
        };
        std::thread::scope(|s| {
            (1..self.threads).for_each(|_| drop(s.spawn(work)));
            work();
        });
    }
}

fn filled(dtype: DType, n: usize) -> Buffer {
    let mut buffer = Buffer::new(dtype, n);
    let mut program = Program::default();
    let r = program.push(Code::Uniform { seed: 1, offset: 0 }, F32, F32);
    let s = program.push(Code::Binary(BinaryOp::Mul, Arg::Reg(r), Arg::Scalar(Scalar::Float(4.0))), F32, F32);
    let t = program.push(Code::Cast(Arg::Reg(s)), F32, dtype);
    program.outputs.push(t);
    run(&program, &[n], &[], &[buffer.view_mut(&[n])], 0..n);
    buffer
}

#[test]
#[ignore = "a measurement"]
fn measure_each_op_in_the_first_cache() {
    let n = 2048;
    let shape = [n];
    for level in Level::available() {
        println!("{level:?}, ns an element, arrays of {n}");
        for dtype in [F32, F64, F16, BF16, I32] {
            let (a, b) = (filled(dtype, n), filled(dtype, n));
            let views = [a.view(&shape, &[1], 0), b.view(&shape, &[1], 0)];
            let mut out = Buffer::new(dtype, n);
            let mut bools = Buffer::new(Bool, n);
            let outputs = [out.view_mut(&shape)];
            let bool_outputs = [bools.view_mut(&shape)];
            let mut line = format!("{dtype}:");
            let mut put = |name: &str, program: &Program| {
                let outputs = if program.dtype(program.outputs[0]) == Bool { &bool_outputs } else { &outputs };
                let ns = time(|| run_at(level, program, &shape, black_box(&views), outputs, 0..n));
                line += &format!(" {name} {:.3}", ns / n as f64);
            };
            for &op in UnaryOp::ALL.iter().filter(|o| super::tests::takes(o.class(), dtype)) {
                let result = super::tests::result(op.class(), dtype);
                put(op.name(), &single(&[dtype], |a| Code::Unary(op, a[0]), dtype, result));
            }
            for &op in BinaryOp::ALL.iter().filter(|o| super::tests::takes(o.class(), dtype)) {
                let result = super::tests::result(op.class(), dtype);
                put(op.name(), &single(&[dtype; 2], |a| Code::Binary(op, a[0], a[1]), dtype, result));
            }
            println!("{line}");
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_random_numbers_in_the_first_cache() {
    let n = 2048;
    for level in Level::available() {
        for dtype in [F32, F64] {
            let mut out = Buffer::new(dtype, n);
            let outputs = [out.view_mut(&[2048])];
            for (name, code) in
                [("rand", Code::Uniform { seed: 1, offset: 0 }), ("randn", Code::Normal { seed: 1, offset: 0 })]
            {
                let mut program = Program::default();
                let r = program.push(code, dtype, dtype);
                program.outputs.push(r);
                let ns = time(|| run_at(level, &program, &[n], &[], &outputs, 0..n));
                println!("{level:?} {name} {dtype}: {:.3} ns an element", ns / n as f64);
            }
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_tiny_calls() {
    let shape = [2];
    let (a, b) = (filled(F32, 64), filled(F32, 64));
    let mut out = Buffer::new(F32, 64);
    let views = [a.view(&shape, &[1], 0), b.view(&shape, &[1], 0)];
    let add = single(&[F32; 2], |a| Code::Binary(BinaryOp::Add, a[0], a[1]), F32, F32);
    let one = single(&[F32], |a| Code::Binary(BinaryOp::Add, a[0], Arg::Scalar(Scalar::Float(1.0))), F32, F32);
    let exp = single(&[F32], |a| Code::Unary(UnaryOp::Exp, a[0]), F32, F32);
    let outputs = [out.view_mut(&shape)];
    for (name, program) in [("x + y", &add), ("x + 1", &one), ("exp x", &exp), ("chain", &chain())] {
        let ns = time(|| run(program, &shape, black_box(&views), &outputs, 0..2));
        let par = time(|| run_parallel(program, &shape, black_box(&views), &outputs, &Serial));
        println!(
            "{name} of 2: run {ns:.1} ns, run_parallel {par:.1} ns, estimate {} ns",
            program_ns(program, 2)
        );
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_large_arrays() {
    let n = 16 << 20;
    let shape = [n];
    let a = filled(F32, n);
    let mut out = filled(F32, n);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    for par in [Spinning { threads: 1 }, Spinning { threads }] {
        let views = [a.view(&shape, &[1], 0)];
        let outputs = [out.view_mut(&shape)];
        println!("{} threads, 16 Mi float32, ns an element (GB/s of one read and one write)", par.threads);
        let report = |name: &str, f: &mut dyn FnMut()| {
            f();
            let mut times: Vec<f64> = (0..25)
                .map(|_| {
                    let start = Instant::now();
                    f();
                    start.elapsed().as_nanos() as f64
                })
                .collect();
            times.sort_by(f64::total_cmp);
            let ns = times[12] / n as f64;
            println!("  {name}: {ns:.3} ({:.1}), best {:.3}", 8.0 / ns, times[1] / n as f64);
        };
        let parts = 4 * par.threads;
        let cut = n / parts;
        let (from, to) = (views[0].ptr as usize, outputs[0].ptr as usize);
        report("memcpy", &mut || {
            // SAFETY: disjoint parts of two buffers of n floats.
            par.run(parts, &|i| unsafe {
                std::ptr::copy_nonoverlapping(
                    (from as *const f32).add(i * cut),
                    (to as *mut f32).add(i * cut),
                    cut,
                )
            });
        });
        report("non-temporal copy", &mut || {
            // SAFETY: as above.
            par.run(parts, &|i| unsafe {
                let (from, to) = ((from as *const u8).add(4 * i * cut), (to as *mut u8).add(4 * i * cut));
                stream::copy(level(), from, to, 4 * cut, &mut stream::Ahead::default());
                stream::fence();
            });
        });
        let mut programs = vec![("chain relu((x*2+1)*x-0.5)", chain())];
        for op in [
            UnaryOp::Neg,
            UnaryOp::Exp,
            UnaryOp::Tanh,
            UnaryOp::Gelu,
            UnaryOp::GeluTanh,
            UnaryOp::Sigmoid,
            UnaryOp::Sin,
            UnaryOp::Log,
        ] {
            programs.push((op.name(), single(&[F32], |a| Code::Unary(op, a[0]), F32, F32)));
        }
        for (name, code) in
            [("rand", Code::Uniform { seed: 1, offset: 0 }), ("randn", Code::Normal { seed: 1, offset: 0 })]
        {
            let mut program = Program::default();
            let r = program.push(code, F32, F32);
            program.outputs.push(r);
            programs.push((name, program));
        }
        for (name, program) in &programs {
            report(name, &mut || run_parallel(program, &shape, &views, &outputs, &par));
        }
    }
}
