//! Helpers of the kernels' tests: seeded numbers, values with random layouts, threads in any order.

use super::simd::{FORCED, Level, level};
use crate::dtype::{DType, Element};
use crate::graph::value::Buffer;
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Random numbers for tests (SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom
/// number generators", OOPSLA 2014). The seed is printed, so a failing test shows it.
pub(super) struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        println!("seed {seed}");
        Rng(seed)
    }
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// In `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.word() % n as u64) as usize
    }
    /// In -1..1.
    pub fn unit(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// A value for tests: a buffer and a way through it.
#[derive(Clone, Debug)]
pub(super) struct Value<T> {
    pub data: Vec<T>,
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<isize>,
}

#[allow(unsafe_code)]
impl<T: Element> Value<T> {
    /// Row by row.
    pub fn new(shape: &[usize], data: Vec<T>) -> Value<T> {
        assert_eq!(shape.iter().product::<usize>(), data.len());
        let strides = crate::shape::contiguous_strides(shape).to_vec();
        Value { data, offset: 0, shape: shape.to_vec(), strides }
    }

    /// Of a shape, through a random layout: permuted, reversed, with gaps, with repeated
    /// dimensions.
    pub fn random(rng: &mut Rng, shape: &[usize], mut draw: impl FnMut(&mut Rng) -> T) -> Value<T> {
        let rank = shape.len();
        let mut order: Vec<usize> = (0..rank).collect();
        if rng.below(2) == 0 {
            (1..rank).for_each(|i| order.swap(i, rng.below(i + 1)));
        }
        let wild = rng.below(3) > 0;
        let mut strides = vec![0isize; rank];
        let (mut step, mut offset) = (1isize, 0isize);
        for &d in order.iter().rev() {
            let n = shape[d].max(1) as isize;
            let kind = if wild { rng.below(8) } else { 7 };
            if kind == 0 {
                continue; // stride 0
            }
            if kind == 1 {
                step *= 2;
            }
            strides[d] = step;
            if kind == 2 {
                strides[d] = -step;
                offset += step * (n - 1);
            }
            step *= n;
            if kind == 3 {
                step += 3;
            }
        }
        let data = (0..step.max(1)).map(|_| draw(rng)).collect();
        Value { data, offset: offset as usize, shape: shape.to_vec(), strides }
    }

    pub fn view(&self) -> View<'_> {
        let ptr = self.data.as_ptr().wrapping_add(self.offset).cast();
        View { ptr, dtype: T::DTYPE, shape: &self.shape, strides: &self.strides }
    }

    /// The element at a multi-index.
    pub fn get(&self, index: &[usize]) -> T {
        let at: isize = index.iter().zip(&self.strides).map(|(&i, &s)| i as isize * s).sum();
        self.data[(self.offset as isize + at) as usize]
    }

    /// All elements, row by row.
    pub fn to_vec(&self) -> Vec<T> {
        indices(&self.shape).iter().map(|i| self.get(i)).collect()
    }
}

/// Every multi-index of a shape, row by row.
pub(super) fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut out = vec![vec![]];
    for &n in shape {
        out = out
            .iter()
            .flat_map(|i: &Vec<usize>| (0..n).map(move |j| [&i[..], &[j]].concat()))
            .collect();
    }
    out
}

/// Runs a kernel that fills a value of a shape, and gives what it wrote.
pub(super) fn filled<T: Element>(shape: &[usize], run: impl FnOnce(&ViewMut<'_>)) -> Vec<T> {
    let n: usize = shape.iter().product();
    let mut data = vec![T::from_i64(77); n];
    run(&ViewMut { ptr: data.as_mut_ptr().cast(), dtype: T::DTYPE, shape, life: PhantomData });
    data
}

/// `threads` threads that take the parts in an order shuffled by the seed, awake or not by it.
pub(super) struct Threads {
    pub threads: usize,
    pub seed: u64,
}

impl Parallel for Threads {
    fn threads(&self) -> usize {
        self.threads
    }
    fn is_awake(&self) -> bool {
        self.seed.is_multiple_of(2)
    }
    fn run(&self, parts: usize, part: &(dyn Fn(usize) + Sync)) {
        let mut order: Vec<usize> = (0..parts).collect();
        let mut rng = Rng(self.seed);
        (1..parts).for_each(|i| order.swap(i, rng.below(i + 1)));
        let next = AtomicUsize::new(0);
        let level = FORCED.get();
        let work = || {
            FORCED.set(level);
            while let Some(&i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                part(i);
            }
        };
        std::thread::scope(|s| {
            (1..self.threads).for_each(|_| {
                s.spawn(work);
            });
            work();
        });
    }
}

/// Runs a test at every level that this machine has but the one at which it runs by itself. The
/// `gemm` crate chooses for itself, whatever the level.
pub(super) fn at_other_levels(test: fn()) {
    for other in Level::available().filter(|&other| other != level()) {
        println!("at {}", other.name());
        FORCED.set(Some(other));
        let outcome = std::panic::catch_unwind(test);
        FORCED.set(None);
        if let Err(panic) = outcome {
            eprintln!("at {}", other.name());
            std::panic::resume_unwind(panic);
        }
    }
}

/// Turns of a test whose checks take long: a few at each level, all of them where it runs by
/// itself.
pub(super) fn turns(all: usize) -> Range<usize> {
    0..if FORCED.get().is_some() { all.div_ceil(6) } else { all }
}

/// `at_every_level! { a b c }`: the tests `a`, `b` and `c` hold at the levels below the machine's
/// widest as well.
macro_rules! at_every_level {
    ($($name:ident)*) => {
        mod at_every_level {
            $(
                #[test]
                fn $name() {
                    $crate::host::kernels::testing::at_other_levels(super::$name);
                }
            )*
        }
    };
}
pub(super) use at_every_level;

/// A random shape of a rank with up to `most` elements in a dimension, now and then an empty one.
pub(super) fn random_shape(rng: &mut Rng, rank: usize, most: usize) -> Vec<usize> {
    (0..rank).map(|_| if rng.below(20) == 0 { 0 } else { 1 + rng.below(most) }).collect()
}

/// Every dtype with a drawing of small numbers, drawn at random.
pub(super) fn small<T: Element>(rng: &mut Rng) -> T {
    match T::DTYPE {
        DType::Bool => T::from_i64(rng.below(2) as i64),
        DType::U8 => T::from_i64(rng.below(9) as i64),
        d if d.is_float() => T::from_f64(rng.unit() * 4.0),
        _ => T::from_i64(rng.below(17) as i64 - 8),
    }
}

/// Host memory that no device counts.
#[derive(Debug)]
struct Loose {
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
#[repr(align(64))]
#[allow(dead_code)] // It is looked at as bytes.
struct Line([u8; 64]);

impl Buffer for Loose {
    fn host(&self) -> Option<*mut u8> {
        Some(self.lines.as_ptr().cast::<u8>().cast_mut())
    }
    fn bytes(&self) -> usize {
        64 * self.lines.len()
    }
    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// A weight in packed form.
pub(super) fn pack(b: View<'_>) -> Result<super::matmul::Packed, String> {
    let bytes = super::matmul::Packed::bytes(b.dtype, b.shape[0], b.shape[1]).ok_or("too large")?;
    // Not zeros: what is not written shows.
    let lines = vec![Line([0xff; 64]); bytes.div_ceil(64)];
    super::matmul::pack(b, Arc::new(Loose { lines }))
}
