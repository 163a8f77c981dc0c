//! The executor against a naive evaluator, and against itself: fused, cut, strided, at every level.
//! The tests' helpers are here: elements of any type, programs, and random views.

mod compiled;
mod fused;
mod lookups;
mod memory;
mod naive;
mod ops;

use super::*;
use crate::dtype::{DType, Element, Scalar, with_any_dtype, with_dtype};
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, Reg};
use crate::op::{BinaryOp, Class, UnaryOp};
use crate::shape::contiguous_strides;
use crate::view::Serial;
use DType::*;
use half::{bf16, f16};
use std::marker::PhantomData;

/// Elements of any type, aligned, with guards that catch a write past the end.
#[derive(Clone)]
pub(super) struct Buffer {
    dtype: DType,
    numel: usize,
    lines: Vec<Line>,
}

/// A cache line, as the engine's memory is aligned.
#[derive(Clone, Copy, PartialEq, Debug)]
#[repr(align(64))]
struct Line([u64; 8]);

const GUARD: u64 = 0x5aa5_0ff0_1234_8001;

impl Buffer {
    pub fn new(dtype: DType, numel: usize) -> Buffer {
        let lines = (numel * dtype.size()).div_ceil(64);
        Buffer { dtype, numel, lines: vec![Line([GUARD; 8]); lines + 1] }
    }
    fn of<T: Element>(values: &[T]) -> Buffer {
        let mut buffer = Buffer::new(T::DTYPE, values.len());
        // SAFETY: there is room for the values.
        unsafe {
            std::ptr::copy_nonoverlapping(
                values.as_ptr(),
                buffer.lines.as_mut_ptr().cast(),
                values.len(),
            )
        };
        buffer
    }
    fn get<T: Element>(&self) -> &[T] {
        assert_eq!(T::DTYPE, self.dtype);
        // SAFETY: that many elements of this type were written.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.numel) }
    }
    pub fn view<'a>(&'a self, shape: &'a [usize], strides: &'a [isize], offset: usize) -> View<'a> {
        let ptr = self.lines.as_ptr().cast::<u8>().wrapping_add(offset * self.dtype.size());
        View { ptr, dtype: self.dtype, shape, strides }
    }
    pub fn view_mut<'a>(&'a mut self, shape: &'a [usize]) -> ViewMut<'a> {
        ViewMut { ptr: self.lines.as_mut_ptr().cast(), dtype: self.dtype, shape, life: PhantomData }
    }
    /// Equal bits, all NaN being equal: which NaN comes out of `a + b` is the machine's choice.
    fn same(&self, other: &Buffer) -> bool {
        assert_eq!(self.lines.last(), Some(&Line([GUARD; 8])));
        self.dtype == other.dtype
            && self.numel == other.numel
            && with_any_dtype!(self.dtype, T => {
                let key = |x: &T| {
                    let value = x.to_f64();
                    if value.is_nan() { (1, 0, 0) } else { (0, value.to_bits(), x.to_i64()) }
                };
                self.get::<T>().iter().map(key).eq(other.get::<T>().iter().map(key))
            })
    }
}

/// Runs a program at a level over views, whole or in the given cuts.
fn run_on(
    level: Level,
    program: &Program,
    shape: &[usize],
    inputs: &[View<'_>],
    cuts: &[usize],
) -> Vec<Buffer> {
    let numel = shape.iter().product();
    let mut outputs: Vec<Buffer> =
        program.outputs.iter().map(|&r| Buffer::new(program.dtype(r), numel)).collect();
    let views: Vec<ViewMut<'_>> = outputs.iter_mut().map(|b| b.view_mut(shape)).collect();
    let mut from = 0;
    for &to in cuts.iter().chain([&numel]) {
        run(level, program, &[], shape, inputs, &views, from..to);
        from = to;
    }
    drop(views);
    outputs
}

/// A program of one instruction over inputs of the given types.
pub(super) fn single(
    dtypes: &[DType],
    code: impl Fn(&[Arg]) -> Code,
    on: DType,
    dtype: DType,
) -> Program {
    let mut program = Program::default();
    let args: Vec<Arg> = dtypes
        .iter()
        .enumerate()
        .map(|(k, &d)| Arg::Reg(program.push(Code::Input(k as u8), d, d)))
        .collect();
    let r = program.push(code(&args), on, dtype);
    program.outputs.push(r);
    program
}

/// Numbers that tend to go wrong, as far as a type has them.
fn edges<T: Element>() -> Vec<T> {
    let floats = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -2.5,
        3.0,
        -3.0,
        7.0,
        20.0,
        21.0,
        88.0,
        -88.0,
        100.0,
        -104.0,
        1e-3,
        1e-8,
        6e-8,
        1e-40,
        -1e-40,
        65504.0,
        65520.0,
        1e5,
        -1e5,
        2147483648.0,
        -2147483649.0,
        1e10,
        1e19,
        -1e19,
        3.4e38,
        1e300,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        0.1,
        255.0,
        256.0,
        -300.7,
    ];
    let ints = [
        0,
        1,
        -1,
        2,
        -2,
        3,
        5,
        7,
        -7,
        63,
        64,
        100,
        127,
        128,
        255,
        i32::MAX as i64,
        i32::MIN as i64,
        i64::MAX,
        i64::MIN,
    ];
    match T::DTYPE {
        Bool => vec![T::from_i64(0), T::from_i64(1)],
        d if d.is_differentiable() => floats.map(T::from_f64).to_vec(),
        _ => ints.map(T::from_i64).to_vec(),
    }
}

/// Every pair of two lists, as two columns.
fn pairs<T: Copy>(a: &[T]) -> (Vec<T>, Vec<T>) {
    a.iter().flat_map(|&x| a.iter().map(move |&y| (x, y))).unzip()
}

struct Seeded(u64);

impl Seeded {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// An input over an iteration shape: a buffer, and how it is read.
struct Input {
    buffer: Buffer,
    strides: Vec<isize>,
    offset: usize,
}

fn random_buffer(rng: &mut Seeded, dtype: DType, numel: usize) -> Buffer {
    with_any_dtype!(dtype, T => {
        let edges = edges::<T>();
        Buffer::of(&(0..numel).map(|_| match rng.below(4) {
            0 => rng.pick(&edges),
            _ if dtype.is_differentiable() => T::from_f64((rng.next() as i32 as f64) / 3e8),
            _ => T::from_i64(rng.next() as i64 % 50),
        }).collect::<Vec<T>>())
    })
}

/// An input with dimensions that repeat, lie in another order, have gaps or run backwards.
fn random_input(rng: &mut Seeded, dtype: DType, shape: &[usize]) -> Input {
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if rng.below(3) == 0 {
        for i in (1..order.len()).rev() {
            order.swap(i, rng.below(i + 1));
        }
    }
    let plain = rng.below(2) == 0;
    let mut strides = vec![0isize; shape.len()];
    let (mut size, mut offset) = (1usize, 0usize);
    for &d in order.iter().rev() {
        match rng.below(6) {
            0 if !plain => {}
            1 if !plain => {
                strides[d] = -(size as isize);
                offset += size * shape[d].saturating_sub(1);
                size *= shape[d];
            }
            2 if !plain => {
                size += rng.below(3);
                strides[d] = 2 * size as isize;
                size *= 2 * shape[d];
            }
            _ => {
                strides[d] = size as isize;
                size *= shape[d];
            }
        }
    }
    let room = size.max(1) + offset + rng.below(3);
    Input { buffer: random_buffer(rng, dtype, room), strides, offset }
}

fn random_shape(rng: &mut Seeded) -> Vec<usize> {
    match rng.below(8) {
        0 => vec![],
        1 => vec![rng.below(3)],
        2 => vec![1 + rng.below(20_000)],
        3 => vec![1 + rng.below(70), 1 + rng.below(70)],
        4 => vec![1 + rng.below(3), 1 + rng.below(5000)],
        5 => vec![1 + rng.below(9), rng.below(9), 1 + rng.below(9), 1 + rng.below(9)],
        6 => vec![2, 1, 3, 1 + rng.below(4), 2, 1 + rng.below(40), 2],
        _ => vec![1 + rng.below(2000), 1 + rng.below(5)],
    }
}
