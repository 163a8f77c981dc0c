//! The places of largest and smallest elements so far along a dimension.
//!
//! The best element so far seldom changes: of a line in no order a few times in all. So a line is
//! looked at in groups, and a group without a better one is its last place, repeated.

use super::super::isa::vectorize;
use super::super::load::Load;
use super::scan::{How, LINES, Lines, Running, run};
use crate::dtype::DType;
use crate::view::{Parallel, View, ViewMut};
use half::{bf16, f16};

/// Elements that are looked at together.
const GROUP: usize = 16;

/// `out[.., i, ..]` is the place of the largest element of `input[.., ..=i, ..]`, or of the
/// smallest; of equal ones the last, and of NaN the last.
pub(crate) fn scan_places(
    largest: bool,
    x: View<'_>,
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    macro_rules! by_type {
        ($($dtype:pat => $T:ty as $W:ty;)*) => {
            match x.dtype {
                $($dtype => match largest {
                    true => places::<$T, $W>(x, dim, out, par, <$W>::LOWEST, <$W>::is_largest),
                    false => places::<$T, $W>(x, dim, out, par, <$W>::HIGHEST, <$W>::is_smallest),
                },)*
                stored => stored.never_computed(),
            }
        };
    }
    by_type! {
        DType::F32 => f32 as f32;
        DType::F64 => f64 as f64;
        DType::F16 => f16 as f32;
        DType::BF16 => bf16 as f32;
        DType::I32 => i32 as i64;
        DType::I64 => i64 as i64;
        DType::U8 | DType::Bool => u8 as i64;
    }
}

fn places<T: Load<W>, W: Running>(
    x: View<'_>,
    dim: usize,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
    worst: W,
    is_best: impl Fn(W, W) -> bool + Copy + Sync,
) {
    let how = How {
        nothing: (worst, 0),
        wide: |x: T, place: usize| (x.load(), place as i64),
        // A later one, or piece, that is as good as the best so far is the best.
        join: |a: (W, i64), b: (W, i64)| if is_best(b.0, a.0) { b } else { a },
        end: |best: (W, i64)| best.1,
    };
    run::<T, (W, i64), i64>(x, dim, out, par, how, |lines, best, writes| {
        // SAFETY: its promise is the caller's.
        unsafe { some_lines(lines, best, writes, is_best) }
    });
}

/// Scans some lines, one after the other, each from its own best place on, and leaves the last
/// there.
///
/// # Safety
/// Each line's elements lie a step apart, and, where it `writes`, it has room for as many results.
unsafe fn some_lines<T: Load<W>, W: Copy>(
    lines: &Lines<'_, T, i64>,
    best: &mut [(W, i64); LINES],
    writes: bool,
    is_best: impl Fn(W, W) -> bool + Copy,
) {
    let (step, n) = (lines.step, lines.n);
    // SAFETY: by the caller's promise.
    vectorize!(|| unsafe {
        for (((x, y), &start), best) in lines.at.iter().zip(lines.starts).zip(best) {
            let (x, y, mut so_far) = (x.at(0).cast_const(), y.at(0), *best);
            let one = |i: usize, so_far: &mut (W, i64)| {
                let own = (*x.offset(i as isize * step)).load();
                if is_best(own, so_far.0) {
                    *so_far = (own, (start + i) as i64);
                }
                if writes {
                    y.add(i).write(so_far.1);
                }
            };
            let groups = if step == 1 { n / GROUP } else { 0 };
            for first in (0..groups).map(|g| g * GROUP) {
                let group = x.add(first).cast::<[T; GROUP]>().read_unaligned();
                let mut is_better = false;
                (0..GROUP).for_each(|i| is_better |= is_best(group[i].load(), so_far.0));
                if is_better {
                    (first..first + GROUP).for_each(|i| one(i, &mut so_far));
                } else if writes {
                    y.add(first).cast::<[i64; GROUP]>().write_unaligned([so_far.1; GROUP]);
                }
            }
            (groups * GROUP..n).for_each(|i| one(i, &mut so_far));
            *best = so_far;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::super::scan::LONG;
    use super::*;

    #[test]
    fn the_place_of_the_best_so_far_is_the_last_of_equals_and_of_nan() {
        let mut rng = Rng::new(64);
        for _ in turns(12) {
            let shapes = [
                vec![1 + rng.below(3), 2 * LONG + rng.below(3 * LONG)],
                vec![1 + rng.below(9), 1 + rng.below(40), 1 + rng.below(3)],
                vec![1 + rng.below(40), 1 + rng.below(90)],
            ];
            for (shape, dim) in shapes.iter().zip([1, 1, 0]) {
                let draw = |r: &mut Rng| [f32::NAN, 1.0, -2.0, 0.5, 3.0][r.below(5)];
                let rarely = |r: &mut Rng| if r.below(50) == 0 { draw(r) } else { r.unit() as f32 };
                let x = Value::<f32>::random(&mut rng, shape, rarely);
                for largest in [true, false] {
                    let run = |threads: usize| {
                        filled::<i64>(shape, |out| {
                            let par = Threads { threads, seed: threads as u64 };
                            scan_places(largest, x.view(), dim, out, &par);
                        })
                    };
                    let got = run(1);
                    assert_eq!(got, run(3));
                    let place_of = |at: &[usize]| {
                        let i = at.iter().zip(shape).fold(0, |i, (&at, &n)| i * n + at);
                        got[i] as usize
                    };
                    for (at, place) in indices(shape).iter().zip(&got) {
                        let mut before = at.clone();
                        before[dim] = at[dim].saturating_sub(1);
                        before[dim] = place_of(&before);
                        let (best, own) = (x.get(&before), x.get(at));
                        let as_good = if largest { own >= best } else { own <= best };
                        let is_own = at[dim] == 0 || own.is_nan() || as_good;
                        let want = if is_own { at[dim] } else { before[dim] } as i64;
                        assert_eq!(*place, want, "at {at:?} of {shape:?} over {dim}");
                    }
                }
            }
        }
    }

    at_every_level! {
        the_place_of_the_best_so_far_is_the_last_of_equals_and_of_nan
    }
}
