//! Values side by side along a dimension: `cat`, and with it `stack`.

use super::super::isa::vectorize;
use super::super::nest::{Shared, in_parts};
use super::turned::woven;
use super::{PART_BYTES, Window, copy_into};
use crate::shape::{contiguous_strides, numel};
use crate::view::{Parallel, View, ViewMut};
use std::marker::PhantomData;

/// Writes values to `out`, one after the other along a dimension. They have its element type and
/// its sizes along the other dimensions.
pub(crate) fn join(values: &[View<'_>], dim: usize, out: &ViewMut<'_>, par: &dyn Parallel) {
    if out.numel() == 0 {
        return;
    }
    // Where each value has one element in turn, every line of the result has some of all values.
    if values.iter().all(|x| x.is_contiguous() && numel(&x.shape[dim..]) == 1) {
        match *values {
            [a, b] => return interleave([a, b], out, par),
            [a, b, c] => return interleave([a, b, c], out, par),
            [a, b, c, d] => return interleave([a, b, c, d], out, par),
            _ => {}
        }
    }
    let (size, strides) = (out.dtype.size(), contiguous_strides(out.shape));
    let mut at = 0;
    for value in values {
        // Wrapping: an empty value may begin at the end of the memory.
        let ptr = out.ptr.wrapping_add(at * strides[dim] as usize * size);
        copy_into(*value, &Window { ptr, strides: &strides, life: PhantomData }, par);
        at += value.shape[dim];
    }
}

/// Writes the elements of a few values in turn.
fn interleave<const K: usize>(values: [View<'_>; K], out: &ViewMut<'_>, par: &dyn Parallel) {
    match out.dtype.size() {
        1 => interleave_sized::<u8, K>(values, out, par),
        2 => interleave_sized::<u16, K>(values, out, par),
        4 => interleave_sized::<u32, K>(values, out, par),
        _ => interleave_sized::<u64, K>(values, out, par),
    }
}

fn interleave_sized<T: Copy + Send + Sync, const K: usize>(
    values: [View<'_>; K],
    out: &ViewMut<'_>,
    par: &dyn Parallel,
) {
    let from = values.map(|x| Shared::<T>::new(x.ptr.cast_mut()));
    let to = Shared::<T>::new(out.ptr);
    in_parts(out.numel() / K, PART_BYTES / size_of::<T>() / K, par, &|part| {
        let (d, first) = (to.at((part.start * K) as isize), part.start as isize);
        let s = from.map(|from| from.at(first).cast_const());
        // SAFETY: each value has so many elements, and parts write elements that do not meet.
        vectorize!(|| unsafe { woven(d, s, part.len()) });
    });
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;
    use crate::dtype::Element;

    fn check<T: Element>(rng: &mut Rng) {
        let rank = 1 + rng.below(4);
        let (mut shape, dim) = (random_shape(rng, rank, 9), rng.below(rank));
        let (count, most) = (1 + rng.below(5), 1 + rng.below(4));
        let in_turn = rng.below(2) == 0;
        let values: Vec<Value<T>> = (0..count)
            .map(|_| {
                shape[dim] = if in_turn { 1 } else { rng.below(most + 1) };
                let x = Value::random(rng, &shape, small);
                if in_turn { Value::new(&shape, x.to_vec()) } else { x }
            })
            .collect();
        shape[dim] = values.iter().map(|x| x.shape[dim]).sum();
        let views: Vec<View<'_>> = values.iter().map(|x| x.view()).collect();
        let par = Threads { threads: 1 + rng.below(3), seed: rng.word() };
        let got = filled::<T>(&shape, |out| join(&views, dim, out, &par));
        let mut wanted = Vec::new();
        for mut at in indices(&shape) {
            let mut of = values.iter();
            let mut value = of.next();
            while let Some(x) = value.filter(|x| at[dim] >= x.shape[dim]) {
                at[dim] -= x.shape[dim];
                value = of.next();
            }
            wanted.extend(value.map(|x| x.get(&at)));
        }
        assert_eq!(got, wanted, "{shape:?} along {dim}");
    }

    #[test]
    fn values_of_any_layout_lie_one_after_the_other() {
        let mut rng = Rng::new(15);
        for _ in turns(200) {
            check::<f32>(&mut rng);
            check::<half::bf16>(&mut rng);
            check::<f64>(&mut rng);
            check::<u8>(&mut rng);
        }
    }

    #[test]
    fn single_elements_of_long_values_are_woven_on_several_threads() {
        let par = Threads { threads: 3, seed: 6 };
        let n = 400_000;
        let value = |k: usize| Value::<i32>::new(&[n, 1], (k..n + k).map(|i| i as i32).collect());
        let values: Vec<_> = (0..4).map(value).collect();
        let views: Vec<View<'_>> = values.iter().map(|x| x.view()).collect();
        for k in 2..=4 {
            let got = filled::<i32>(&[n, k], |out| join(&views[..k], 1, out, &par));
            assert!((0..n * k).all(|i| got[i] as usize == i / k + i % k), "{k} values");
        }
    }

    at_every_level! {
        values_of_any_layout_lie_one_after_the_other
        single_elements_of_long_values_are_woven_on_several_threads
    }
}
