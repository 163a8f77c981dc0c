//! Measurements of single kernels, run by hand:
//! `cargo test --release --lib measure -- --ignored --nocapture --test-threads 1 <name>`.
//!
//! They print medians and promise nothing. Two threads, held ready by spinning.

use super::super::{Parallel, Serial, View, ViewMut};
use super::reduce::{Source, reduce};
use crate::dtype::DType;
use crate::op::ReduceOp;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::Instant;

/// Two threads; the second spins for work.
pub(super) struct Pair {
    shared: Arc<State>,
    helper: Option<std::thread::JoinHandle<()>>,
}

struct State {
    one: std::sync::Mutex<()>,
    work: std::cell::UnsafeCell<Option<&'static (dyn Fn(usize) + Sync)>>,
    parts: AtomicUsize,
    next: AtomicUsize,
    epoch: AtomicUsize,
    done: AtomicUsize,
    stop: AtomicBool,
}
// SAFETY: `work` is written between epochs only.
#[allow(unsafe_code)]
unsafe impl Sync for State {}

impl State {
    #[allow(unsafe_code)]
    fn drain(&self) {
        let parts = self.parts.load(Acquire);
        // SAFETY: nobody writes while an epoch runs.
        let work = unsafe { (*self.work.get()).unwrap() };
        loop {
            let i = self.next.fetch_add(1, Relaxed);
            if i >= parts {
                return;
            }
            work(i);
        }
    }
}

impl Pair {
    pub fn new() -> Pair {
        let shared = Arc::new(State {
            one: Default::default(),
            work: std::cell::UnsafeCell::new(None),
            parts: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            epoch: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
        });
        let state = shared.clone();
        let helper = std::thread::spawn(move || {
            let mut seen = 0;
            while !state.stop.load(Relaxed) {
                if state.epoch.load(Acquire) != seen {
                    seen += 1;
                    state.drain();
                    state.done.store(seen, Release);
                }
                std::hint::spin_loop();
            }
        });
        Pair { shared, helper: Some(helper) }
    }
}

impl Parallel for Pair {
    fn threads(&self) -> usize {
        2
    }
    #[allow(unsafe_code)]
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let s = &self.shared;
        let _one = s.one.lock();
        // SAFETY: the helper is between epochs, and is waited for before this returns.
        unsafe { *s.work.get() = Some(std::mem::transmute::<&(dyn Fn(usize) + Sync), _>(part)) };
        s.parts.store(parts, Relaxed);
        s.next.store(0, Relaxed);
        let epoch = s.epoch.fetch_add(1, Release) + 1;
        s.drain();
        while s.done.load(Acquire) != epoch {
            std::hint::spin_loop();
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.shared.stop.store(true, Relaxed);
        self.helper.take().unwrap().join().unwrap();
    }
}

/// Median seconds of a call, over about 0.4 s.
pub(super) fn seconds(mut f: impl FnMut()) -> f64 {
    f();
    let start = Instant::now();
    f();
    let once = start.elapsed().as_secs_f64();
    let runs = (0.4 / once).clamp(5.0, 2000.0) as usize;
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            f();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[runs / 2]
}

pub(super) fn out<'a, T>(data: &'a mut [T], dtype: DType, shape: &'a [usize]) -> ViewMut<'a> {
    ViewMut { ptr: data.as_mut_ptr().cast(), dtype, shape, life: PhantomData }
}

pub(super) fn view<'a, T>(data: &'a [T], dtype: DType, shape: &'a [usize], strides: &'a [isize]) -> View<'a> {
    View { ptr: data.as_ptr().cast(), dtype, shape, strides }
}

fn reduce_line(name: &str, op: ReduceOp, x: View<'_>, dims: &[bool], out_dtype: DType) {
    let kept: Vec<usize> = x.shape.iter().zip(dims).filter(|(_, d)| !**d).map(|(&n, _)| n).collect();
    let mut result = vec![0u64; kept.iter().product()];
    let bytes = (x.numel() * x.dtype.size()) as f64;
    let pair = Pair::new();
    let mut at = |par: &dyn Parallel| {
        let t = seconds(|| reduce(op, Source::View(x), dims, &out(&mut result, out_dtype, &kept), par));
        bytes / t / 1e9
    };
    let (one, two) = (at(&Serial), at(&pair));
    println!("{name:40} {one:8.1} GB/s with one thread {two:8.1} with two");
}

#[test]
#[ignore = "a measurement"]
fn measure_reduce() {
    use DType::*;
    let x: Vec<f32> = (0..1 << 24).map(|i| (i % 97) as f32).collect();
    let n = 4096;
    let (s, ni) = ([n, n], n as isize);
    let pair = Pair::new();
    let to = std::sync::Mutex::new(());
    let read = |par: &dyn Parallel| {
        let t = seconds(|| {
            par.run(2, &|i| {
                let half = &x[i * (1 << 23)..(i + 1) * (1 << 23)];
                let sum = half.as_chunks::<64>().0.iter().fold([0u32; 64], |mut a, c| {
                    (0..64).for_each(|l| a[l] ^= c[l].to_bits());
                    a
                });
                let _hold = to.lock();
                std::hint::black_box(sum);
            })
        });
        (4 << 24) as f64 / t / 1e9
    };
    println!("{:40} {:8.1} GB/s with one thread {:8.1} with two", "plain reading", read(&Serial), read(&pair));
    drop(pair);
    let (along, across) = ([ni, 1], [1, ni]);
    let v = view(&x, F32, &s, &along);
    let t = view(&x, F32, &s, &across);
    reduce_line("sum of 16 Mi f32", ReduceOp::Sum, view(&x, F32, &[1 << 24], &[1]), &[true], F32);
    reduce_line("sum of 64 Ki f32 (in cache)", ReduceOp::Sum, view(&x, F32, &[1 << 16], &[1]), &[true], F32);
    reduce_line("sum of 16 Mi f32 transposed", ReduceOp::Sum, t, &[true, true], F32);
    reduce_line("max of 16 Mi f32", ReduceOp::Max, v, &[true, true], F32);
    reduce_line("argmax of 16 Mi f32", ReduceOp::ArgMax, v, &[true, true], I64);
    reduce_line("sum [4096, 4096] over 1", ReduceOp::Sum, v, &[false, true], F32);
    reduce_line("sum [4096, 4096] over 0", ReduceOp::Sum, v, &[true, false], F32);
    reduce_line("max [4096, 4096] over 0", ReduceOp::Max, v, &[true, false], F32);
    reduce_line("argmax [4096, 4096] over 1", ReduceOp::ArgMax, v, &[false, true], I64);
    reduce_line("argmax [4096, 4096] over 0", ReduceOp::ArgMax, v, &[true, false], I64);
    reduce_line("sum transposed [4096, 4096] over 1", ReduceOp::Sum, t, &[false, true], F32);
    reduce_line("sum transposed [4096, 4096] over 0", ReduceOp::Sum, t, &[true, false], F32);
    let wide = [1 << 14, 1 << 10];
    reduce_line(
        "sum [16384, 1024] over 0",
        ReduceOp::Sum,
        view(&x, F32, &wide, &[1 << 10, 1]),
        &[true, false],
        F32,
    );
    let tall = [1 << 20, 16];
    reduce_line("sum [1 Mi, 16] over 0", ReduceOp::Sum, view(&x, F32, &tall, &[16, 1]), &[true, false], F32);
    reduce_line("sum [1 Mi, 16] over 1", ReduceOp::Sum, view(&x, F32, &tall, &[16, 1]), &[false, true], F32);
    let few = [1 << 22, 4];
    reduce_line("sum [4 Mi, 4] over 1", ReduceOp::Sum, view(&x, F32, &few, &[4, 1]), &[false, true], F32);
    reduce_line("sum [4 Mi, 4] over 0", ReduceOp::Sum, view(&x, F32, &few, &[4, 1]), &[true, false], F32);
    let b = [64, 64, 4096];
    reduce_line(
        "sum [64, 64, 4096] over 0, 2",
        ReduceOp::Sum,
        view(&x, F32, &b, &[64 * 4096, 4096, 1]),
        &[true, false, true],
        F32,
    );
    reduce_line("sum of 32 Mi f16", ReduceOp::Sum, view(&x, F16, &[1 << 25], &[1]), &[true], F16);
    reduce_line("sum of 32 Mi bf16", ReduceOp::Sum, view(&x, BF16, &[1 << 25], &[1]), &[true], BF16);
    reduce_line("sum of 16 Mi i32", ReduceOp::Sum, view(&x, I32, &[1 << 24], &[1]), &[true], I64);
    reduce_line("sum of 64 Mi bool", ReduceOp::Sum, view(&x, U8, &[1 << 26], &[1]), &[true], I64);
    reduce_line(
        "any of 64 Mi zero bool",
        ReduceOp::Any,
        view(&vec![0u8; 1 << 26], U8, &[1 << 26], &[1]),
        &[true],
        Bool,
    );
}

#[test]
#[ignore = "a measurement"]
fn measure_matmul() {
    use super::matmul::{matmul, matmul_packed, pack};
    let pair = Pair::new();
    let line = |name: &str, flops: f64, f: &mut dyn FnMut(&dyn Parallel)| {
        let (one, two) = (seconds(|| f(&Serial)), seconds(|| f(&pair)));
        let us = |t: f64| t * 1e6;
        println!(
            "{name:34} {:9.1} us {:6.1} GF/s alone, {:9.1} us {:6.1} GF/s with two",
            us(one),
            flops / one / 1e9,
            us(two),
            flops / two / 1e9
        );
    };
    let data: Vec<f32> = (0..2048 * 2048).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut result = vec![0f32; 2048 * 2048];
    for [m, k, n] in [
        [64, 64, 64],
        [128, 128, 128],
        [256, 256, 256],
        [512, 512, 512],
        [1000, 1000, 1000],
        [2048, 2048, 2048],
        [16, 384, 1536],
        [1, 1024, 1024],
        [2048, 64, 2048],
    ] {
        let flops = 2.0 * (m * n * k) as f64;
        for turned in [false, true] {
            let (sa, sb, so) = ([m, k], [k, n], [m, n]);
            let (ta, tb) = ([k as isize, 1], if turned { [1, k as isize] } else { [n as isize, 1] });
            let (a, b) = (view(&data, DType::F32, &sa, &ta), view(&data, DType::F32, &sb, &tb));
            let name = format!("[{m}, {k}] x [{k}, {n}]{}", if turned { " turned" } else { "" });
            line(&name, flops, &mut |par| matmul(a, b, &out(&mut result, DType::F32, &so), par).unwrap());
            if m <= 32 {
                let packed = pack(b).unwrap();
                line("  packed", flops, &mut |par| {
                    matmul_packed(a, &packed, &out(&mut result, DType::F32, &so), None, par)
                });
            }
        }
        for (dtype, name) in [(DType::BF16, "  bf16"), (DType::I32, "  i32")] {
            if n > 1000 || m == 1 {
                continue;
            }
            let (sa, sb, so) = ([m, k], [k, n], [m, n]);
            let (ta, tb) = ([k as isize, 1], [n as isize, 1]);
            let (a, b) = (view(&data, dtype, &sa, &ta), view(&data, dtype, &sb, &tb));
            line(name, flops, &mut |par| matmul(a, b, &out(&mut result, dtype, &so), par).unwrap());
        }
    }
}
