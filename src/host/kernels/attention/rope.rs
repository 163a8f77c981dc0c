//! Pairs of numbers turned by angles, given by their cosines and sines.
//!
//! Called by the op's CPU kernel, which has checked shapes and types.

use crate::host::kernels::isa::vectorize;
use crate::host::kernels::load::{Load, by_float};
use crate::host::kernels::nest::{Nest, Shared, in_parts};
use crate::host::kernels::rows::Float;
use crate::view::{Parallel, View, ViewMut};

/// Elements below which a further thread does not pay.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 32 << 10 };

/// `(a, b)` to `(a c - b s, a s + b c)`, rounded once an operation, of pairs that are neighbours
/// or, where they are not `interleaved`, of the first half and the second.
pub(crate) fn rope(
    [x, cosine, sine]: [View<'_>; 3],
    interleaved: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    by_float!(x.dtype, turn([x, cosine, sine], interleaved, out, par));
}

fn turn<T: Load<W>, W: Float>(
    [x, cosine, sine]: [View<'_>; 3],
    interleaved: bool,
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    if out.numel() == 0 {
        return;
    }
    let lead = x.shape.len() - 1;
    let width = x.shape[lead];
    let half = width / 2;
    let pairs = Pairs {
        half,
        apart: if interleaved { 1 } else { half },
        next: if interleaved { 2 } else { 1 },
    };
    let rows = Nest::new(&x.shape[..lead], [x, cosine, sine].map(|v| &v.strides[..lead])).merged();
    let steps = [x, cosine, sine].map(|v| v.strides[lead]);
    let (from, to) = (Shared::<T>::new(x.ptr.cast_mut()), Shared::<T>::new(out.ptr));
    let tables = [cosine, sine].map(|v| Shared::<W>::new(v.ptr.cast_mut()));
    in_parts(rows.numel(), (LEAST / width).max(1), par, &|part| {
        for (row, [x, c, s]) in rows.turns(part) {
            let (from, to) = (from.at(x), to.at((row * width) as isize));
            let tables = [tables[0].at(c), tables[1].at(s)];
            // SAFETY: a row of the input, of the output, and of both tables.
            unsafe {
                match steps {
                    [1, 1, 1] => vectorize!(|| pairs.turn(from, tables, [1; 3], to)),
                    steps => pairs.turn(from, tables, steps, to),
                }
            }
        }
    });
}

/// How the pairs of a row lie.
#[derive(Clone, Copy)]
struct Pairs {
    half: usize,
    /// From one of a pair to the other.
    apart: usize,
    /// From one pair to the next.
    next: usize,
}

impl Pairs {
    /// Turns the pairs of a row.
    ///
    /// # Safety
    /// All are there: `from` and the tables with these steps, `to` without gaps.
    #[inline(always)]
    unsafe fn turn<T: Load<W>, W: Float>(
        self,
        from: *const T,
        [cosine, sine]: [*mut W; 2],
        [step, c_step, s_step]: [isize; 3],
        to: *mut T,
    ) {
        for j in 0..self.half {
            let (first, second) = (j * self.next, j * self.next + self.apart);
            // SAFETY: as the caller says.
            unsafe {
                let [a, b] = [first, second].map(|k| (*from.offset(k as isize * step)).load());
                let (c, s) =
                    (*cosine.offset(j as isize * c_step), *sine.offset(j as isize * s_step));
                to.add(first).write(T::store(a.mul(c).sub(b.mul(s))));
                to.add(second).write(T::store(a.mul(s).add(b.mul(c))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::kernels::testing::*;

    #[test]
    fn pairs_are_turned_however_they_lie() {
        let mut rng = Rng::new(61);
        for turn in turns(60) {
            let (half, interleaved) = (rng.below(40), turn % 2 == 0);
            let lead = [1 + rng.below(5), 1 + rng.below(5)];
            let value = |rng: &mut Rng, width: usize| {
                Value::<f32>::random(rng, &[&lead[..], &[width]].concat(), |r| r.unit() as f32)
            };
            let (x, c, s) =
                (value(&mut rng, 2 * half), value(&mut rng, half), value(&mut rng, half));
            let par = Threads { threads: 3, seed: rng.word() };
            let shape = [&lead[..], &[2 * half]].concat();
            let views = [x.view(), c.view(), s.view()];
            let got = filled::<f32>(&shape, |out| rope(views, interleaved, out, &par));
            for (i, at) in indices(&shape).iter().enumerate() {
                let k = at[2];
                let (j, first) =
                    if interleaved { (k / 2, k % 2 == 0) } else { (k % half, k < half) };
                let [a, b] = if interleaved { [2 * j, 2 * j + 1] } else { [j, j + half] }
                    .map(|k| x.get(&[at[0], at[1], k]));
                let [c, s] = [&c, &s].map(|table| table.get(&[at[0], at[1], j]));
                let want = if first { a * c - b * s } else { a * s + b * c };
                assert_eq!(got[i].to_bits(), want.to_bits(), "{shape:?} {at:?}");
            }
        }
    }

    at_every_level! {
        pairs_are_turned_however_they_lie
    }
}
