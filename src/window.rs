//! A window that moves over one, two or three dimensions, for convolutions and pooling. Pure
//! arithmetic.

use crate::shape::numel;
use std::ops::Range;

/// The sizes of a moving window. Triples are depth, height and width; missing dimensions have size,
/// stride and dilation 1, and no padding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Window {
    /// The number of spatial dimensions: one, two or three.
    pub spatial: usize,
    pub input: [usize; 3],
    pub kernel: [usize; 3],
    pub output: [usize; 3],
    pub stride: [usize; 3],
    /// The padding before and after the input.
    pub padding: [[usize; 2]; 3],
    pub dilation: [usize; 3],
}

/// The last dimensions of a value as a triple; missing dimensions are `neutral`.
pub(crate) fn triple<T: Copy>(last: &[T], neutral: T) -> [T; 3] {
    let mut all = [neutral; 3];
    all[3 - last.len()..].copy_from_slice(last);
    all
}

/// A padding as text: one number per dimension if both sides are equal.
pub(crate) fn padding_shown(padding: &[[usize; 2]]) -> String {
    let side = |i: usize| -> Vec<usize> { padding.iter().map(|sides| sides[i]).collect() };
    let (before, after) = (side(0), side(1));
    if before == after {
        format!("{before:?}")
    } else {
        format!("{before:?} before and {after:?} after")
    }
}

/// The offset of an element from the first one.
#[inline(always)]
pub(crate) fn offset(at: [usize; 3], steps: [isize; 3]) -> isize {
    at[0] as isize * steps[0] + at[1] as isize * steps[1] + at[2] as isize * steps[2]
}

/// Adjacent outputs that a tap maps to a row of the input.
pub(crate) struct Row {
    pub tap: [usize; 3],
    /// The index of the row of outputs.
    pub line: usize,
    /// The first of these outputs.
    pub out: [usize; 3],
    pub count: usize,
    /// The input coordinates of the tap for that output.
    pub from: [usize; 3],
}

impl Window {
    /// The number of taps of the window.
    pub fn taps(&self) -> usize {
        // A pool with huge padding may have any number of taps, which need no memory.
        self.kernel.iter().fold(1, |n: usize, &k| n.saturating_mul(k))
    }

    /// The numbers of outputs and of input elements of one channel; in an empty batch they may be
    /// anything.
    pub fn places(&self) -> usize {
        numel(&self.output)
    }

    pub fn room(&self) -> usize {
        numel(&self.input)
    }

    /// The input coordinate of a tap for output 0; it may be in the padding.
    #[inline(always)]
    pub fn shift(&self, axis: usize, tap: usize) -> isize {
        (tap * self.dilation[axis]) as isize - self.padding[axis][0] as isize
    }

    /// The input coordinate of a tap for an output, if it is on the input.
    #[inline(always)]
    pub fn met(&self, axis: usize, output: usize, tap: usize) -> usize {
        ((output * self.stride[axis]) as isize + self.shift(axis, tap)) as usize
    }

    /// The outputs along an axis for which a tap is on the input.
    #[inline(always)]
    pub fn span(&self, axis: usize, tap: usize) -> Range<usize> {
        let (stride, last) = (self.stride[axis] as isize, self.input[axis] as isize - 1);
        let (shift, all) = (self.shift(axis, tap), self.output[axis] as isize);
        // Most taps are on the input for the first and the last output: they need no division.
        let end = if (all - 1) * stride + shift <= last {
            all
        } else if shift > last {
            0
        } else {
            (last - shift) / stride + 1
        };
        let start = if shift >= 0 { 0 } else { (stride - 1 - shift) / stride };
        start.min(end) as usize..end as usize
    }

    /// The taps along an axis that are on the input for an output.
    #[inline(always)]
    pub fn on(&self, axis: usize, output: usize) -> Range<usize> {
        let start = (output * self.stride[axis]) as isize - self.padding[axis][0] as isize;
        // Taps that lie before a coordinate.
        let before = |end: isize| {
            let room = (end - start).max(0) as usize;
            room.div_ceil(self.dilation[axis]).min(self.kernel[axis])
        };
        before(0)..before(self.input[axis] as isize)
    }

    /// The taps along an axis that may be on the input for some output: a pool may have far more
    /// taps.
    #[inline(always)]
    pub fn near(&self, axis: usize) -> Range<usize> {
        let (before, dilation) = (self.padding[axis][0], self.dilation[axis]);
        let walked = self.output[axis].saturating_sub(1) * self.stride[axis];
        let end = (self.input[axis] + before).div_ceil(dilation).min(self.kernel[axis]);
        before.saturating_sub(walked).div_ceil(dilation).min(end)..end
    }

    /// Calls `f` for each row of each tap, tap by tap.
    #[inline(always)]
    pub fn each_row(&self, mut f: impl FnMut(Row)) {
        for z in self.near(0) {
            for y in self.near(1) {
                for x in self.near(2) {
                    let span = self.span(2, x);
                    if span.is_empty() {
                        continue;
                    }
                    let ix = self.met(2, span.start, x);
                    for oz in self.span(0, z) {
                        let iz = self.met(0, oz, z);
                        for oy in self.span(1, y) {
                            let line = oz * self.output[1] + oy;
                            let (out, from) = ([oz, oy, span.start], [iz, self.met(1, oy, y), ix]);
                            f(Row { tap: [z, y, x], line, out, count: span.len(), from });
                        }
                    }
                }
            }
        }
    }
}

/// The number of positions of a window along an axis, if it fits. With `ceil` a last position that
/// begins on or before the input counts, even if it ends beyond.
pub(crate) fn places(
    input: usize,
    kernel: usize,
    stride: usize,
    padding: [usize; 2],
    dilation: usize,
    ceil: bool,
) -> Option<usize> {
    let reach = dilation.checked_mul(kernel.checked_sub(1)?)?.checked_add(1)?;
    let begin = input.checked_add(padding[0])?;
    let over = if ceil { stride - 1 } else { 0 };
    let room = begin.checked_add(padding[1])?.checked_add(over)?.checked_sub(reach)?;
    let last = room / stride;
    Some(if ceil && last.checked_mul(stride)? >= begin { last } else { last + 1 })
}

/// The numbers `(first + i * stride) % by`, for `i` from 0.
pub(crate) struct Steps {
    pub first: usize,
    pub stride: usize,
    pub by: usize,
}

impl Steps {
    /// True if one of the first `n` numbers is at least `limit`, which is at most `by`. The numbers
    /// are not tested one by one: after adding `by - limit`, exactly those that are at least
    /// `limit` cross a multiple of `by`.
    pub fn reaches(&self, limit: usize, n: usize) -> bool {
        let [first, stride, by, n] = [self.first, self.stride, self.by, n].map(|n| n as u128);
        let raised = first + by - limit as u128;
        quotients(n, by, stride, raised) > quotients(n, by, stride, first)
    }
}

/// The sum of `(a * i + b) / m` for `i` in `0..n`: the number of lattice points below a line,
/// counted by rows and columns in turn as in Euclid's algorithm.
fn quotients(mut n: u128, mut m: u128, mut a: u128, mut b: u128) -> u128 {
    let mut sum = 0;
    while n > 0 {
        sum += a / m * (n * (n - 1) / 2) + b / m * n;
        (a, b) = (a % m, b % m);
        let end = a * n + b;
        (n, b) = (end / m, end % m);
        (m, a) = (a, m);
    }
    sum
}

/// The sizes of planes whose lines, planes or volumes are divided evenly, and of what becomes of
/// them: depth, height and width.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Cells {
    /// The number of dimensions that are divided: one, two or three.
    pub spatial: usize,
    pub input: [usize; 3],
    pub output: [usize; 3],
}

impl Cells {
    /// What a cell takes of an axis. Neighbours may have an element in common.
    pub fn interval(input: usize, output: usize, cell: usize) -> std::ops::Range<usize> {
        let wide = |i: usize| i as u128 * input as u128;
        let first = (wide(cell) / output as u128) as usize;
        first..wide(cell + 1).div_ceil(output as u128) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_reach_a_limit_exactly_where_one_of_them_does() {
        for by in 1..12 {
            for (stride, first, n) in
                (1..25).flat_map(|s| (0..by).flat_map(move |f| (1..=by).map(move |n| (s, f, n))))
            {
                let steps = Steps { first, stride, by };
                let most = (0..n).map(|i| (first + i * stride) % by).max().unwrap();
                (0..=by).for_each(|limit| assert_eq!(steps.reaches(limit, n), most >= limit));
            }
        }
        let huge = i32::MAX as usize;
        assert!(Steps { first: 0, stride: 1, by: huge }.reaches(huge - 1, huge));
        assert!(!Steps { first: 0, stride: 2, by: huge - 1 }.reaches(huge - 2, huge - 1));
    }

    #[test]
    fn a_tap_is_met_exactly_where_it_lies_on_the_input() {
        for input in 1..9usize {
            for kernel in 1..4usize {
                for (stride, padding, dilation) in [
                    (1, [0, 0], 1),
                    (2, [1, 1], 1),
                    (1, [3, 3], 2),
                    (3, [2, 0], 2),
                    (4, [0, 5], 3),
                    (1, [0, 2], 1),
                ] {
                    let Some(output) = places(input, kernel, stride, padding, dilation, false)
                    else {
                        continue;
                    };
                    let last = |n| [1, 1, n];
                    let window = Window {
                        spatial: 1,
                        input: last(input),
                        kernel: last(kernel),
                        output: last(output),
                        stride: last(stride),
                        padding: [[0, 0], [0, 0], padding],
                        dilation: last(dilation),
                    };
                    let mut met = Vec::new();
                    window.each_row(|row| {
                        let at = |i| (row.out[2] + i, row.from[2] + i * stride);
                        met.extend((0..row.count).map(at));
                    });
                    let mut wanted = Vec::new();
                    for tap in 0..kernel {
                        let at =
                            |o: usize| (o * stride + tap * dilation) as isize - padding[0] as isize;
                        let on = |o: &usize| (0..input as isize).contains(&at(*o));
                        let want: Vec<usize> = (0..output).filter(on).collect();
                        assert_eq!(
                            window.span(2, tap).collect::<Vec<_>>(),
                            want,
                            "{window:?} {tap}"
                        );
                        for o in 0..output {
                            assert_eq!(window.on(2, o).contains(&tap), on(&o), "{window:?} {tap}");
                        }
                        wanted.extend(want.into_iter().map(|o| (o, at(o) as usize)));
                    }
                    assert_eq!(met, wanted, "{window:?}");
                }
            }
        }
    }

    #[test]
    fn a_window_far_larger_than_its_input_is_walked_in_no_time() {
        let huge = i32::MAX as usize;
        let window = Window {
            spatial: 3,
            input: [2, 3, 4],
            kernel: [huge; 3],
            output: [1; 3],
            stride: [1; 3],
            padding: [[huge / 2; 2]; 3],
            dilation: [1; 3],
        };
        let mut elements = 0;
        window.each_row(|row| elements += row.count);
        assert_eq!(elements, 24);
    }

    #[test]
    fn places_of_any_size_do_not_overflow() {
        assert_eq!(places(usize::MAX, 2, 1, [0, 0], 1, false), Some(usize::MAX - 1));
        assert_eq!(places(usize::MAX, 2, 1, [1, 0], 1, false), None);
        assert_eq!(places(4, usize::MAX, 1, [0, 0], 2, true), None);
        assert_eq!(places(4, 3, 2, [0, 0], 1, true), Some(2));
        assert_eq!(places(4, 0, 1, [0, 0], 1, false), None);
    }
}
