//! The limits of the machine: copies, reads, multiply-adds, an empty task, and the `gemm` crate
//! called directly.

use crate::cases::{Case, LARGE, OPS, ROWS, numbers};
use crate::measure::{Job, Sample, ends};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering::*};
use std::time::{Duration, Instant};

const ALIGN: usize = 2 << 20;

/// Memory that has been touched, in huge pages where there are any.
struct Block {
    at: *mut f32,
    len: usize,
}

impl Block {
    fn new(len: usize, value: f32) -> Block {
        let layout = Layout::array::<f32>(len).and_then(|l| l.align_to(ALIGN)).expect("a size");
        // SAFETY: the layout is not empty; what is advised is our own allocation; each element is
        // written once.
        unsafe {
            let at = alloc(layout) as *mut f32;
            if at.is_null() {
                handle_alloc_error(layout);
            }
            #[cfg(target_os = "linux")]
            libc::madvise(at.cast(), layout.size(), libc::MADV_HUGEPAGE);
            (0..len).for_each(|i| at.add(i).write(value));
            Block { at, len }
        }
    }

    fn shows(&self) -> Vec<f32> {
        // SAFETY: all elements are there, and no thread writes to them now.
        unsafe { vec![*self.at, *self.at.add(self.len - 1)] }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let layout =
            Layout::array::<f32>(self.len).and_then(|l| l.align_to(ALIGN)).expect("as before");
        // SAFETY: allocated with the same layout.
        unsafe { dealloc(self.at.cast(), layout) }
    }
}

/// One thread's part of two blocks.
#[derive(Clone, Copy)]
struct Part {
    from: *const f32,
    to: *mut f32,
    len: usize,
}

// SAFETY: parts of one sample do not overlap, and the sample outlives its threads.
unsafe impl Send for Part {}

/// A new thread may find itself beside its sibling on one core for longer than a copy takes; so
/// each has its own.
fn stay_on(core: usize) {
    #[cfg(target_os = "linux")]
    // SAFETY: zeroed sets are sets; both calls are about this thread only. A core that cannot be
    // had is no matter.
    unsafe {
        let (mut allowed, mut own): (libc::cpu_set_t, libc::cpu_set_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        let size = std::mem::size_of::<libc::cpu_set_t>();
        libc::sched_getaffinity(0, size, &mut allowed);
        let cores = (0..libc::CPU_SETSIZE as usize).filter(|&c| libc::CPU_ISSET(c, &allowed));
        if let Some(core) = cores.into_iter().nth(core) {
            libc::CPU_SET(core, &mut own);
            libc::sched_setaffinity(0, size, &own);
        }
    }
}

/// `n` times `work` on as many parts as there are threads, each on its own.
fn spread(
    n: usize,
    threads: usize,
    from: &Block,
    to: &Block,
    work: impl Fn(Part) -> f32 + Sync,
) -> (Duration, f32) {
    let len = from.len / threads / 64 * 64;
    let begin = Instant::now();
    let mut sum = 0.0;
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|t| {
                // SAFETY: inside the blocks.
                let part =
                    unsafe { Part { from: from.at.add(t * len), to: to.at.add(t * len), len } };
                let work = &work;
                scope.spawn(move || {
                    let part = part;
                    stay_on(t);
                    (0..n).fold(0.0, |_, _| work(black_box(part)))
                })
            })
            .collect();
        sum = threads.into_iter().map(|t| t.join().expect("no panic")).sum();
    });
    (begin.elapsed(), sum)
}

/// How long a line of memory takes from one core to the next and back. On a virtual machine it
/// changes by the hour, with the place where its cores are: 44 and 360 ns were seen on one, and
/// what two threads do together follows it.
pub fn round_trip() -> Duration {
    const TURNS: usize = 200_000;
    if std::thread::available_parallelism().map_or(1, |n| n.get()) < 2 {
        return Duration::ZERO;
    }
    let line = AtomicUsize::new(0);
    let play = &|core: usize| {
        stay_on(core);
        for turn in (core..2 * TURNS).step_by(2) {
            while line.load(Acquire) != turn {
                std::hint::spin_loop();
            }
            line.store(turn + 1, Release);
        }
    };
    let begin = Instant::now();
    std::thread::scope(|scope| (0..2).for_each(|core| drop(scope.spawn(move || play(core)))));
    begin.elapsed() / TURNS as u32
}

fn copy(part: Part) -> f32 {
    // SAFETY: see `Part`.
    unsafe { std::ptr::copy_nonoverlapping(part.from, part.to, part.len) };
    0.0
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn copy_past_the_caches(part: Part) -> f32 {
    use std::arch::x86_64::{_mm_sfence, _mm256_load_ps, _mm256_stream_ps};
    for i in (0..part.len).step_by(32) {
        // SAFETY: see `Part`; parts begin at multiples of 64 elements of an aligned block.
        unsafe {
            let v = [0, 8, 16, 24].map(|k| _mm256_load_ps(part.from.add(i + k)));
            v.iter().enumerate().for_each(|(k, &v)| _mm256_stream_ps(part.to.add(i + 8 * k), v));
        }
    }
    _mm_sfence();
    0.0
}

/// As many sums as it takes to wait for memory only.
#[inline(always)]
fn sums(part: Part) -> f32 {
    // SAFETY: see `Part`.
    let elements = unsafe { std::slice::from_raw_parts(part.from, part.len) };
    let mut sums = [0f32; 64];
    for chunk in elements.as_chunks::<64>().0 {
        sums.iter_mut().zip(chunk).for_each(|(sum, v)| *sum += v);
    }
    sums.iter().sum()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn sums_avx2(part: Part) -> f32 {
    sums(part)
}

fn read(part: Part) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        return unsafe { sums_avx2(part) };
    }
    sums(part)
}

/// Multiply-adds on registers; how many floating-point operations that were.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn multiply_adds(rounds: usize) -> f64 {
    use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_reduce_add_ps, _mm512_set1_ps};
    let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
    // By name: an array of them would live in memory.
    macro_rules! rounds {
        ($($sum:ident)*) => {{
            $(let mut $sum = _mm512_set1_ps(black_box(1.0));)*
            for _ in 0..rounds {
                $($sum = _mm512_fmadd_ps($sum, a, b);)*
            }
            $(black_box(_mm512_reduce_add_ps($sum));)*
        }};
    }
    rounds!(s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 s10 s11);
    (rounds * 12 * 32) as f64
}

/// The time that `flops` would take if each thread did nothing but multiply and add.
#[cfg(target_arch = "x86_64")]
fn fma(threads: usize, flops: f64) -> Option<Job> {
    if !is_x86_feature_detected!("avx512f") {
        return None;
    }
    Some(Job::new("FMA peak", move |n| {
        let rounds = (flops * n as f64 / threads as f64 / (12.0 * 32.0)).max(1000.0) as usize;
        let begin = Instant::now();
        let done: f64 = std::thread::scope(|scope| {
            let each = |t| {
                stay_on(t);
                // SAFETY: AVX-512 is there.
                unsafe { multiply_adds(rounds) }
            };
            let all: Vec<_> = (0..threads).map(|t| scope.spawn(move || each(t))).collect();
            all.into_iter().map(|t| t.join().expect("no panic")).sum()
        });
        Sample { time: begin.elapsed().mul_f64(flops * n as f64 / done), shows: Vec::new() }
    }))
}

#[cfg(not(target_arch = "x86_64"))]
fn fma(_: usize, _: f64) -> Option<Job> {
    None
}

/// `[m, k]` by `[k, n]` with the crate that all Rust libraries here use, into memory that is there.
fn product(name: &str, [m, k, n]: [usize; 3], parallel: gemm::Parallelism) -> Job {
    let (a, b) = (numbers(6, m * k, 1.0), numbers(7, k * n, 1.0));
    let mut c = vec![0f32; m * n];
    Job::new(name, move |times| {
        let from = Instant::now();
        for _ in 0..times {
            // SAFETY: the strides are those of row-major matrices of these sizes.
            unsafe {
                gemm::gemm(
                    m,
                    n,
                    k,
                    c.as_mut_ptr(),
                    1,
                    n as isize,
                    false,
                    black_box(a.as_ptr()),
                    1,
                    k as isize,
                    black_box(b.as_ptr()),
                    1,
                    n as isize,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallel,
                );
            }
        }
        Sample { time: from.elapsed(), shows: ends(&c) }
    })
}

fn copies(threads: usize, elements: usize) -> Vec<Job> {
    let blocks = |value| (Block::new(elements, value), Block::new(elements, 0.0));
    let (from, to) = blocks(1.0);
    let mut jobs = vec![Job::new("copy", move |n| {
        let (time, _) = spread(n, threads, &from, &to, copy);
        assert_eq!(to.shows(), from.shows());
        Sample { time, shows: Vec::new() }
    })];
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        let (from, to) = blocks(2.0);
        jobs.push(Job::new("copy non-temporal", move |n| {
            // SAFETY: AVX is there.
            let (time, _) =
                spread(n, threads, &from, &to, |part| unsafe { copy_past_the_caches(part) });
            assert_eq!(to.shows(), from.shows());
            Sample { time, shows: Vec::new() }
        }));
    }
    jobs
}

fn empty_tasks() -> Job {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    Job::new("tokio spawn + await", move |n| {
        runtime.block_on(async {
            let from = Instant::now();
            for _ in 0..n * OPS {
                tokio::spawn(async {}).await.expect("an empty task");
            }
            Sample { time: from.elapsed(), shows: Vec::new() }
        })
    })
}

pub fn jobs(case: Case, threads: usize) -> Vec<Job> {
    let all = || gemm::Parallelism::Rayon(threads);
    match case {
        Case::Awaited => vec![empty_tasks()],
        Case::Chain | Case::Exp | Case::Tanh | Case::Gelu | Case::Softmax => copies(threads, LARGE),
        Case::Sum => {
            let (from, to) = (Block::new(LARGE, 1.0), Block::new(64, 0.0));
            vec![Job::new("read", move |n| {
                let (time, sum) = spread(n, threads, &from, &to, read);
                assert_eq!(sum, (LARGE / threads / 64 * 64 * threads) as f32);
                Sample { time, shows: Vec::new() }
            })]
        }
        Case::Matmul(n) => {
            let mut jobs = vec![product("gemm crate", [n; 3], all())];
            jobs.extend(fma(threads, 2.0 * (n * n * n) as f64));
            jobs
        }
        Case::Rows => vec![
            product("gemm crate", ROWS, all()),
            product("gemm crate, one thread", ROWS, gemm::Parallelism::None),
        ],
        _ => Vec::new(),
    }
}
