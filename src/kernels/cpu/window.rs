//! A window that moves over a plane: what convolutions and pooling share. Pure arithmetic.

use std::ops::Range;

/// Sizes of a moving window. Pairs are height and width; one dimension is a height of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    pub input: [usize; 2],
    pub kernel: [usize; 2],
    pub output: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
}

impl Window {
    /// Taps of the window.
    pub fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Places of an output plane.
    pub fn places(&self) -> usize {
        self.output[0] * self.output[1]
    }

    /// The input coordinate that output 0 meets under a tap; it may lie in the padding.
    #[inline(always)]
    pub fn shift(&self, axis: usize, tap: usize) -> isize {
        (tap * self.dilation[axis]) as isize - self.padding[axis] as isize
    }

    /// The outputs along an axis for which a tap lies on the input.
    #[inline(always)]
    pub fn span(&self, axis: usize, tap: usize) -> Range<usize> {
        let (stride, last) = (self.stride[axis] as isize, self.input[axis] as isize - 1);
        let shift = self.shift(axis, tap);
        let end = if shift > last { 0 } else { (last - shift) / stride + 1 };
        let end = end.min(self.output[axis] as isize);
        let start = if shift >= 0 { 0 } else { (stride - 1 - shift) / stride };
        start.min(end) as usize..end as usize
    }

    /// Calls `f(tap, output row, outputs, input row, first input column)` for each row that a tap meets.
    #[inline(always)]
    pub fn each_row(&self, mut f: impl FnMut(usize, usize, Range<usize>, usize, usize)) {
        for y in 0..self.kernel[0] {
            for x in 0..self.kernel[1] {
                let span = self.span(1, x);
                if span.is_empty() {
                    continue;
                }
                let ix = ((span.start * self.stride[1]) as isize + self.shift(1, x)) as usize;
                for oy in self.span(0, y) {
                    let iy = ((oy * self.stride[0]) as isize + self.shift(0, y)) as usize;
                    f(y * self.kernel[1] + x, oy, span.clone(), iy, ix);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tap_is_met_exactly_where_it_lies_on_the_input() {
        for input in 1..9usize {
            for kernel in 1..4usize {
                for (stride, padding, dilation) in [(1, 0, 1), (2, 1, 1), (1, 3, 2), (3, 2, 2), (4, 0, 3)] {
                    let reach = dilation * (kernel - 1) + 1;
                    if input + 2 * padding < reach {
                        continue;
                    }
                    let output = (input + 2 * padding - reach) / stride + 1;
                    let both = |n| [1, n];
                    let window = Window {
                        input: both(input),
                        kernel: both(kernel),
                        output: both(output),
                        stride: both(stride),
                        padding: [0, padding],
                        dilation: both(dilation),
                    };
                    for tap in 0..kernel {
                        let on = |o: &usize| {
                            let at = (o * stride + tap * dilation) as isize - padding as isize;
                            (0..input as isize).contains(&at)
                        };
                        let want: Vec<usize> = (0..output).filter(on).collect();
                        assert_eq!(window.span(1, tap).collect::<Vec<_>>(), want, "{window:?} {tap}");
                    }
                }
            }
        }
    }
}
