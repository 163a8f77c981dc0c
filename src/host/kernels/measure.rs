//! Measurements of single kernels, run by hand:
//! `cargo test --release --lib measure -- --ignored --nocapture --test-threads 1 <name>`.
//!
//! They print and promise nothing. One thread is timed by its own clock; with `PAIR=1` two threads too, held
//! ready by spinning and timed by the wall.

use super::reduce::{Source, reduce};
use crate::dtype::DType;
use crate::op::ReduceOp;
use crate::view::{Parallel, Serial, View, ViewMut};
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
        unsafe {
            *s.work.get() =
                Some(std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(part))
        };
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

/// Seconds that this thread has run: what others do on a busy machine counts less.
#[allow(unsafe_code)]
fn own_time() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the structure that it is given.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}

/// Seconds of a call, by a clock: a low quartile over about 0.2 s of work.
fn sampled(clock: impl Fn() -> f64, f: &mut dyn FnMut()) -> f64 {
    let mut times = vec![];
    let mut sum = 0.0;
    f();
    while times.len() < 3 || sum < 0.2 && times.len() < 2000 {
        let start = clock();
        f();
        times.push(clock() - start);
        sum += times[times.len() - 1];
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

/// Seconds of a call on this thread alone.
pub(super) fn alone(f: &mut dyn FnMut(&dyn Parallel)) -> f64 {
    sampled(own_time, &mut || f(&Serial))
}

/// Seconds of a call on two threads by the wall; not measured unless `PAIR` is set.
pub(super) fn paired(f: &mut dyn FnMut(&dyn Parallel)) -> f64 {
    if std::env::var_os("PAIR").is_none() {
        return f64::NAN;
    }
    let (pair, start) = (Pair::new(), Instant::now());
    sampled(move || start.elapsed().as_secs_f64(), &mut || f(&pair))
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
    let mut call =
        |par: &dyn Parallel| reduce(op, Source::View(x), dims, &out(&mut result, out_dtype, &kept), par);
    let (one, two) = (alone(&mut call), paired(&mut call));
    println!("{name:40} {:8.1} GB/s alone {:8.1} with two", bytes / one / 1e9, bytes / two / 1e9);
}

#[test]
#[ignore = "a measurement"]
fn measure_reduce() {
    use DType::*;
    let x: Vec<f32> = (0..1 << 24).map(|i| (i % 97) as f32).collect();
    let n = 4096;
    let (s, ni) = ([n, n], n as isize);
    let mut plain = |par: &dyn Parallel| {
        par.run(par.threads(), &|i| {
            let part = &x[super::nest::slice_of(1 << 24, par.threads(), i)];
            let sum = part.as_chunks::<64>().0.iter().fold([0u32; 64], |mut a, c| {
                (0..64).for_each(|l| a[l] ^= c[l].to_bits());
                a
            });
            std::hint::black_box(sum);
        })
    };
    let (one, two) = (alone(&mut plain), paired(&mut plain));
    let bytes = (4 << 24) as f64;
    println!("{:40} {:8.1} GB/s alone {:8.1} with two", "plain reading", bytes / one / 1e9, bytes / two / 1e9);
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
    use super::matmul::{matmul, matmul_packed};
    use super::testing::pack;
    let line = |name: &str, flops: f64, f: &mut dyn FnMut(&dyn Parallel)| {
        let (one, two) = (alone(f), paired(f));
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
            line(&name, flops, &mut |par| {
                matmul(a, b, &out(&mut result, DType::F32, &so), false, par).unwrap()
            });
            if m <= 512 {
                let packed = pack(b).unwrap();
                line("  packed", flops, &mut |par| {
                    matmul_packed(a, &packed, &out(&mut result, DType::F32, &so), par)
                });
            }
        }
        for (dtype, name, turned) in
            [(DType::BF16, "  bf16", false), (DType::BF16, "  bf16 turned", true), (DType::I32, "  i32", false)]
        {
            if n > 1000 && (dtype, m) != (DType::BF16, 16) || m == 1 {
                continue;
            }
            let (sa, sb, so) = ([m, k], [k, n], [m, n]);
            let (ta, tb) = ([k as isize, 1], if turned { [1, k as isize] } else { [n as isize, 1] });
            let (a, b) = (view(&data, dtype, &sa, &ta), view(&data, dtype, &sb, &tb));
            line(name, flops, &mut |par| matmul(a, b, &out(&mut result, dtype, &so), false, par).unwrap());
            if m <= 512 && dtype != DType::I32 {
                let packed = pack(b).unwrap();
                line("  packed", flops, &mut |par| {
                    matmul_packed(a, &packed, &out(&mut result, dtype, &so), par)
                });
            }
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn measure_copy_and_rows() {
    use super::index::{cumsum, sort, topk};
    use super::{copy, softmax};
    use DType::*;
    let n = 4096usize;
    let x: Vec<f32> = (0..n * n).map(|i| (i % 97) as f32 / 7.0).collect();
    let mut y = vec![0f32; n * n];
    let line = |name: &str, bytes: f64, f: &mut dyn FnMut(&dyn Parallel)| {
        let (one, two) = (alone(f), paired(f));
        let gb = |t: f64| bytes / t / 1e9;
        println!("{name:40} {:8.2} GB/s alone ({:.0} us) {:8.2} with two", gb(one), one * 1e6, gb(two));
    };
    let bytes = 8.0 * (n * n) as f64;
    let (s, ni) = ([n, n], n as isize);
    let (along, across) = ([ni, 1], [1, ni]);
    line("memcpy of 64 MiB", bytes, &mut |par| {
        let to = super::nest::Shared::<f32>::new(y.as_mut_ptr());
        par.run(par.threads(), &|i| {
            let half = super::nest::slice_of(n * n, par.threads(), i);
            // SAFETY: each part writes its own.
            #[allow(unsafe_code)]
            unsafe {
                std::ptr::copy_nonoverlapping(
                    x.as_ptr().add(half.start),
                    to.at(half.start as isize),
                    half.len(),
                );
            }
        });
    });
    let v = view(&x, F32, &s, &along);
    let t = view(&x, F32, &s, &across);
    line("copy [4096, 4096]", bytes, &mut |par| copy::copy(v, &out(&mut y, F32, &s), par));
    line("fill (bytes written)", bytes / 2.0, &mut |par| copy::fill(1.5.into(), &out(&mut y, F32, &s), par));
    line("copy transposed f32", bytes, &mut |par| copy::copy(t, &out(&mut y, F32, &s), par));
    let h = [n, 2 * n];
    let ht = [1, ni];
    line("copy transposed f16", bytes, &mut |par| {
        copy::copy(view(&x, F16, &h, &ht), &out(&mut y, F16, &h), par)
    });
    let d = [n, n / 2];
    line("copy transposed f64", bytes, &mut |par| {
        copy::copy(view(&x, F64, &d, &ht), &out(&mut y, F64, &d), par)
    });
    let odd = [4095, 4095];
    line("copy transposed [4095, 4095]", bytes, &mut |par| {
        copy::copy(view(&x, F32, &odd, &[1, 4095]), &out(&mut y, F32, &odd), par)
    });
    let heads = [8, 64, 512, 64];
    line("copy [8, 512, 64, 64] -> heads first", bytes, &mut |par| {
        let st = [512 * 64 * 64, 64, 64 * 64, 1];
        copy::copy(view(&x, F32, &heads, &st), &out(&mut y, F32, &heads), par)
    });
    line("copy of every second column", bytes / 2.0, &mut |par| {
        copy::copy(view(&x, F32, &[n, n / 2], &[ni, 2]), &out(&mut y, F32, &[n, n / 2]), par)
    });
    line("softmax over 1", bytes, &mut |par| softmax::softmax(v, 1, false, &out(&mut y, F32, &s), par));
    line("log_softmax over 1", bytes, &mut |par| softmax::softmax(v, 1, true, &out(&mut y, F32, &s), par));
    line("softmax over 0", bytes, &mut |par| softmax::softmax(v, 0, false, &out(&mut y, F32, &s), par));
    line("softmax bf16 over 1", bytes, &mut |par| {
        softmax::softmax(view(&x, BF16, &h, &[2 * ni, 1]), 1, false, &out(&mut y, BF16, &h), par)
    });
    line("softmax [1 Mi, 16]", bytes, &mut |par| {
        let s = [1 << 20, 16];
        softmax::softmax(view(&x, F32, &s, &[16, 1]), 1, false, &out(&mut y, F32, &s), par)
    });
    line("logsumexp over 1 (read)", bytes / 2.0, &mut |par| {
        softmax::logsumexp(v, 1, &out(&mut y, F32, &[n]), par)
    });
    line("logsumexp over 0 (read)", bytes / 2.0, &mut |par| {
        softmax::logsumexp(v, 0, &out(&mut y, F32, &[n]), par)
    });
    let wide = [n];
    let w = view(&x, F32, &wide, &[1]);
    line("layer_norm", bytes, &mut |par| {
        softmax::layer_norm(v, 1, Some(w), Some(w), 1e-5, &out(&mut y, F32, &s), par)
    });
    line("rms_norm", bytes, &mut |par| softmax::rms_norm(v, 1, Some(w), 1e-5, &out(&mut y, F32, &s), par));
    line("cumsum over 1", bytes, &mut |par| cumsum(v, 1, &out(&mut y, F32, &s), par));
    line("cumsum over 0", bytes, &mut |par| cumsum(v, 0, &out(&mut y, F32, &s), par));
    let mut places = vec![0i64; 1 << 20];
    let shape = [256, 4096];
    let z: Vec<f32> = (0..1u64 << 20).map(|i| ((i * 2654435761) >> 7 & 0xfffff) as f32).collect();
    let v = view(&z, F32, &shape, &[4096, 1]);
    line("sort 256 rows of 4096", 4e6, &mut |par| {
        sort(v, 1, false, None, Some(&out(&mut places, I64, &shape)), par)
    });
    line("topk 50 of 256 rows of 4096", 4e6, &mut |par| {
        topk(v, 1, 50, true, None, Some(&out(&mut places, I64, &[256, 50])), par)
    });
    let v = view(&z, F32, &[1 << 20], &[1]);
    line("sort 1 Mi", 4e6, &mut |par| sort(v, 0, false, None, Some(&out(&mut places, I64, &[1 << 20])), par));
}
