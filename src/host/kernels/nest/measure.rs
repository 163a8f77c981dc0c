//! From which size on a further thread pays, kernel by kernel. Prints, asserts nothing:
//! `cargo test --release --lib measure_cut_over -- --ignored --nocapture` (`FUTENSOR_TEST_KERNEL=NAME` for one).
//!
//! Each kernel runs over a size on one thread, and as equal pieces on all threads of the device, whose pool is the
//! one that ships. Beforehand the other threads either are awake still, or have gone to sleep. Sizes are in the
//! units of the kernel's constant, whatever that says: the pieces are cut here.
//!
//! **What follows from it.** On two cores of a Xeon with AVX-512 (busy with other work besides) two threads are faster than
//! one from some 5 us of work on where the second is awake, and from 30 to 60 us on where it sleeps: calling it takes some
//! 10 us of both. The constants take a part to be some 20 us, so work is cut from 40 us on: there a call costs nothing, and
//! below it two threads would be busy for what one does nearly as fast. At each constant stand three times in us for two
//! parts of its size: on one thread, on two, and on two of which one has slept.

#![allow(unsafe_code)]

use super::{Shared, slice_of};
use crate::dtype::{DType, Scalar};
use crate::graph::program::{Arg, Code, Program};
use crate::host::kernels::conv::{self, Geometry};
use crate::host::kernels::index::{cumsum, gather, index_select, scatter, sort, topk, tril};
use crate::host::kernels::matmul::matmul;
use crate::host::kernels::reduce::{Source, reduce};
use crate::host::kernels::window::Window;
use crate::host::kernels::{attention, copy, elementwise, pool, softmax};
use crate::op::ScatterMode;
use crate::op::{BinaryOp, ReduceOp, UnaryOp};
use crate::view::{Parallel, Serial, View, ViewMut};
use std::marker::PhantomData;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Elements of each array.
const MAX: usize = 1 << 22;

/// The lower quartile of a call in microseconds, after a pause that lets the other threads go to sleep, or without one.
fn time(pause: bool, f: &dyn Fn()) -> f64 {
    let (start, mut times) = (Instant::now(), vec![]);
    while times.len() < 5 || start.elapsed() < Duration::from_millis(150) && times.len() < 2000 {
        if pause {
            std::thread::sleep(Duration::from_micros(400));
        }
        let from = Instant::now();
        f();
        times.push(from.elapsed().as_nanos() as f64 / 1000.0);
    }
    times.sort_by(f64::total_cmp);
    times[times.len() / 4]
}

struct Sweep<'a> {
    par: &'a dyn Parallel,
    only: Option<String>,
}

impl Sweep<'_> {
    /// Prints a kernel's times. `f` runs it over a range of pieces; `each` is the size of a piece.
    fn kernel(&self, name: &str, unit: &str, each: usize, pieces: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
        if self.only.as_deref().is_some_and(|only| !name.contains(only)) {
            return;
        }
        println!("{name} ({unit}): one thread, all of {} awake, asleep", self.par.threads());
        let mut n = self.par.threads();
        let mut line = String::new();
        while n <= pieces {
            let one = || f(0..n);
            let all = || self.par.run(self.par.threads(), &|i| f(slice_of(n, self.par.threads(), i)));
            all();
            let single = time(true, &one);
            if single > 3.0 {
                let (awake, asleep) = (time(false, &all), time(true, &all));
                line += &format!(
                    "  {:9} {single:8.1} us {awake:8.1} ({:.2}) {asleep:8.1} ({:.2})\n",
                    n * each,
                    single / awake,
                    single / asleep
                );
                if single > 150.0 {
                    break;
                }
            }
            n *= 2;
        }
        print!("{line}");
    }
}

fn single(code: impl Fn(Arg) -> Code) -> Program {
    let mut program = Program::default();
    let x = Arg::Reg(program.push(Code::Input(0), DType::F32, DType::F32));
    let r = program.push(code(x), DType::F32, DType::F32);
    program.outputs.push(r);
    program
}

fn sweep(par: &dyn Parallel) {
    use DType::*;
    let s = Sweep { par, only: std::env::var("FUTENSOR_TEST_KERNEL").ok() };
    let x: Vec<f32> = (0..MAX).map(|i| (i % 97) as f32 / 7.0).collect();
    let mut y = vec![0f32; 2 * MAX];
    let places: Vec<i64> = (0..MAX as i64).map(|i| i * 31 % 256).collect();
    let to = Shared::<f32>::new(y.as_mut_ptr());
    // The elements from `at` on of the operand and of the result.
    fn of<'a>(x: &'a [f32], at: usize, shape: &'a [usize], strides: &'a [isize]) -> View<'a> {
        View { ptr: x[at..].as_ptr().cast(), dtype: DType::F32, shape, strides }
    }
    fn indices<'a>(places: &'a [i64], at: usize, shape: &'a [usize], strides: &'a [isize]) -> View<'a> {
        View { ptr: places[at..].as_ptr().cast(), dtype: DType::I64, shape, strides }
    }
    fn into<'a>(to: Shared<f32>, at: usize, dtype: DType, shape: &'a [usize]) -> ViewMut<'a> {
        ViewMut { ptr: to.at(at as isize).cast(), dtype, shape, life: PhantomData }
    }

    for (name, program) in [
        ("elementwise x + 1", single(|x| Code::Binary(BinaryOp::Add, x, Arg::Scalar(Scalar::Float(1.0))))),
        ("elementwise exp", single(|x| Code::Unary(UnaryOp::Exp, x))),
        ("elementwise gelu", single(|x| Code::Unary(UnaryOp::Gelu, x))),
    ] {
        println!("(by the estimate, 1024 elements are {} ns)", elementwise::estimate_ns(&program, 1024));
        s.kernel(name, "elements", 1024, MAX >> 10, &|pieces| {
            let shape = [pieces.len() << 10];
            let at = pieces.start << 10;
            let out = [into(to, at, F32, &shape)];
            elementwise::run(&program, &shape, &[of(&x, at, &shape, &[1])], &out, 0..shape[0]);
        });
    }
    for (k, n) in [(64, 64), (128, 128), (256, 256)] {
        s.kernel(&format!("matmul [m, {k}] x [{k}, {n}]"), "multiply-adds", 8 * k * n, 1 << 12, &|pieces| {
            let (m, at) = (pieces.len() * 8, pieces.start * 8 % 4096);
            let (a, b, o) = ([m, k], [k, n], [m, n]);
            let steps = [[k as isize, 1], [n as isize, 1]];
            let (a, b) = (of(&x, at * k % (1 << 20), &a, &steps[0]), of(&x, 0, &b, &steps[1]));
            matmul(a, b, &into(to, at * n, F32, &o), false, &Serial).unwrap();
        });
    }
    s.kernel(
        "matmul [1, 512] x [512, n], read in the time of 8",
        "multiply-adds",
        9 * 512 * 64,
        128,
        &|pieces| {
            let n = pieces.len() * 64;
            let (b, steps, o) = ([512, n], [n as isize, 1], [1, n]);
            let b = of(&x, pieces.start * 64 * 512, &b, &steps);
            matmul(of(&x, 0, &[1, 512], &[512, 1]), b, &into(to, pieces.start * 64, F32, &o), false, &Serial)
                .unwrap();
        },
    );
    for width in [64, 1024] {
        let rows = |pieces: &Range<usize>| [pieces.len(), width];
        let st = [width as isize, 1];
        s.kernel(&format!("softmax of rows of {width}"), "elements", width, MAX / width, &|pieces| {
            let (o, at) = (rows(&pieces), pieces.start * width);
            softmax::softmax(of(&x, at, &o, &st), 1, false, &into(to, at, F32, &o), &Serial);
        });
        s.kernel(&format!("rms_norm of rows of {width}"), "elements", width, MAX / width, &|pieces| {
            let (o, at) = (rows(&pieces), pieces.start * width);
            softmax::rms_norm(of(&x, at, &o, &st), 1, None, 1e-5, &into(to, at, F32, &o), &Serial);
        });
        s.kernel(&format!("reduce: sum of rows of {width}"), "bytes", 4 * width, MAX / width, &|pieces| {
            let o = rows(&pieces);
            let (x, out) = (Source::View(of(&x, pieces.start * width, &o, &st)), [pieces.len()]);
            reduce(ReduceOp::Sum, x, &[false, true], &into(to, pieces.start, F32, &out), &Serial);
        });
        s.kernel(
            &format!("reduce: sum of columns, {width} rows"),
            "bytes",
            64 * width,
            MAX / width / 16,
            &|pieces| {
                let columns = pieces.len() * 16;
                let (o, steps, out) = ([width, columns], [columns as isize, 1], [columns]);
                let x = Source::View(of(&x, pieces.start * 16 * width, &o, &steps));
                reduce(ReduceOp::Sum, x, &[true, false], &into(to, pieces.start * 16, F32, &out), &Serial);
            },
        );
        s.kernel(&format!("index: cumsum of rows of {width}"), "elements", width, MAX / width, &|pieces| {
            let (o, at) = (rows(&pieces), pieces.start * width);
            cumsum(of(&x, at, &o, &st), 1, &into(to, at, F32, &o), &Serial);
        });
        s.kernel(&format!("index: sort of rows of {width}"), "elements", width, MAX / width, &|pieces| {
            let (o, at) = (rows(&pieces), pieces.start * width);
            sort(of(&x, at, &o, &st), 1, false, None, Some(&into(to, 2 * at, I64, &o)), &Serial);
        });
    }
    s.kernel("index: gather of rows of 256", "elements", 256, MAX >> 8, &|pieces| {
        let (o, at) = ([pieces.len(), 256], pieces.start << 8);
        let index = indices(&places, at, &o, &[256, 1]);
        gather(of(&x, at, &o, &[256, 1]), 1, index, true, &into(to, at, F32, &o), &Serial).ok().unwrap();
    });
    s.kernel("index: scatter_add of rows of 256", "elements", 256, MAX >> 8, &|pieces| {
        let (o, at) = ([pieces.len(), 256], pieces.start << 8);
        let (i, x) = (indices(&places, at, &o, &[256, 1]), of(&x, at, &o, &[256, 1]));
        scatter(x, 1, ScatterMode::Sum, i, x, &into(to, at, F32, &o), &Serial).ok().unwrap();
    });
    s.kernel("index: index_select, rows of 64", "elements", 64, MAX >> 6, &|pieces| {
        let (i, o) = ([pieces.len()], [pieces.len(), 64]);
        let (i, x) = (indices(&places, pieces.start, &i, &[1]), of(&x, 0, &[256, 64], &[64, 1]));
        index_select(x, 0, i, true, &into(to, pieces.start * 64, F32, &o), &Serial).ok().unwrap();
    });
    s.kernel("index: tril of rows of 256", "elements", 256, MAX >> 8, &|pieces| {
        let (o, at) = ([pieces.len(), 256], pieces.start << 8);
        tril(of(&x, at, &o, &[256, 1]), 0, &into(to, at, F32, &o), &Serial);
    });
    s.kernel("index: topk, 8 of rows of 256", "elements", 256, MAX >> 8, &|pieces| {
        let (i, o, at) = ([pieces.len(), 256], [pieces.len(), 8], pieces.start << 8);
        topk(of(&x, at, &i, &[256, 1]), 1, 8, true, None, Some(&into(to, at, I64, &o)), &Serial);
    });
    s.kernel("index: cumsum of columns, 64 rows", "elements", 64 * 16, MAX / 64 / 16, &|pieces| {
        let columns = pieces.len() * 16;
        let (o, steps, at) = ([64, columns], [columns as isize, 1], pieces.start * 16 * 64);
        cumsum(of(&x, at, &o, &steps), 0, &into(to, at, F32, &o), &Serial);
    });
    s.kernel("copy in order", "bytes", 4096, MAX >> 10, &|pieces| {
        let (o, at) = ([pieces.len() << 10], pieces.start << 10);
        copy::copy(of(&x, at, &o, &[1]), &into(to, at, F32, &o), &Serial);
    });
    s.kernel("copy turned, 64 columns", "bytes", 4 * 64 * 16, MAX / 1024, &|pieces| {
        let (o, at) = ([pieces.len() * 16, 64], pieces.start * 1024);
        copy::copy(of(&x, at, &o, &[1, 16 * pieces.len() as isize]), &into(to, at, F32, &o), &Serial);
    });
    s.kernel("fill", "bytes", 4096, MAX >> 10, &|pieces| {
        let o = [pieces.len() << 10];
        copy::fill(1.5.into(), &into(to, pieces.start << 10, F32, &o), &Serial);
    });
    let pooled = Window {
        spatial: 2,
        input: [1, 32, 32],
        kernel: [1, 2, 2],
        output: [1, 16, 16],
        stride: [1, 2, 2],
        padding: [[0; 2]; 3],
        dilation: [1; 3],
    };
    // A plane's work is its places times its taps.
    s.kernel("pool: largest of 2 x 2 of planes of 32 x 32", "elements", 1024, MAX >> 10, &|pieces| {
        let (i, o) = ([pieces.len(), 32, 32], [pieces.len(), 16, 16]);
        let x = of(&x, pieces.start << 10, &i, &[1024, 32, 1]);
        pool::max(&pooled, x, &into(to, pieces.start << 8, F32, &o), &Serial);
    });
    for channels in [1, 8, 32] {
        let (kernel, output, padding) = ([1, 3, 3], [1, 32, 32], [[0; 2], [1; 2], [1; 2]]);
        let window = Window { kernel, output, stride: [1; 3], padding, ..pooled };
        let work = channels * channels * 9 * 1024;
        let name = format!("conv 3 x 3, {channels} channels of 32 x 32");
        s.kernel(&name, "multiply-adds", work, 256 / channels, &|pieces| {
            let geo = Geometry { batch: pieces.len(), groups: 1, channels: [channels; 2], window };
            let (o, w) = ([pieces.len(), channels, 32, 32], [channels, channels, 3, 3]);
            let (at, c) = (pieces.start * channels * 1024, channels as isize);
            let steps = [[c * 1024, 1024, 32, 1], [c * 9, 9, 3, 1]];
            let (image, w) = (of(&x, at, &o, &steps[0]), of(&x, 0, &w, &steps[1]));
            conv::forward(&geo, image, w, None, &into(to, at, F32, &o), &Serial);
        });
    }
    let sight = attention::Sight { scale: 0.2, causal: false };
    s.kernel("attention of 64 queries and keys of 32", "multiply-adds", 64 * 64 * 64, 256, &|pieces| {
        let (o, st) = ([pieces.len(), 64, 32], [64 * 32, 32, 1]);
        let x = of(&x, pieces.start * 64 * 32, &o, &st);
        attention::attention([x; 3], None, sight, &into(to, pieces.start * 64 * 32, F32, &o), &Serial);
    });
}

#[test]
#[ignore = "a measurement"]
fn measure_cut_over() {
    let device = crate::Device::cpu();
    let x = device.zeros([1]);
    let infer = |inputs: &[&crate::custom::Meta]| Ok(crate::custom::Meta::clone(inputs[0]));
    // Inside one step of the device, so that its own threads do the work.
    let y = crate::custom::custom_fn("sweep", &[&x], infer, |run| {
        sweep(run.parallel());
        run.output().fill_from(std::iter::once(0f32));
        Ok(())
    });
    futures::executor::block_on(y).unwrap();
}
