//! A convolution as a library takes it: sizes of whole, contiguous values. Pure arithmetic.

use crate::dtype::DType;
use crate::host::kernels::windows::conv::Geometry;
use crate::window::places;
use std::fmt;

/// Which of the three values is computed from the other two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Side {
    /// From the input and the weight.
    Output,
    /// From the weight and the output's gradient.
    Input,
    /// From the input and the output's gradient.
    Weight,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Output => "the output",
            Side::Input => "the gradient of the input",
            Side::Weight => "the gradient of the weight",
        })
    }
}

/// A convolution of an op; operands have the order in [`Side`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Convolution {
    pub dtype: DType,
    pub side: Side,
    pub geometry: Geometry,
    /// Whether the result is added to the output's old value before rounding.
    pub adds: bool,
}

/// The sizes as numbers that a library takes; with fewer dimensions the first ones of a triple are
/// left out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// The shapes of the input, the weight and the output.
    pub shapes: [Vec<i32>; 3],
    pub groups: i32,
    pub padding: Vec<i32>,
    pub stride: Vec<i32>,
    pub dilation: Vec<i32>,
}

impl Convolution {
    /// The sizes, or `None` if a library does not support them: it needs equal padding on both
    /// sides, non-empty values, and element counts in 31 bits.
    pub fn sizes(&self) -> Option<Sizes> {
        let Geometry { batch, groups, channels: [depth, outs], window } = &self.geometry;
        let small = |n: &usize| i32::try_from(*n).ok();
        // A 1-d signal is an image with one row.
        let own = 3 - window.spatial.max(2);
        for axis in 0..3 {
            let (before, kernel) = (window.padding[axis][0], window.kernel[axis]);
            let (stride, dilation) = (window.stride[axis], window.dilation[axis]);
            let alike = places(window.input[axis], kernel, stride, [before; 2], dilation, false);
            if alike != Some(window.output[axis]) {
                return None;
            }
        }
        let triple = |all: [usize; 3]| all[own..].iter().map(small).collect::<Option<Vec<i32>>>();
        let shape = |lead: [usize; 2], size: [usize; 3]| {
            let all = lead.iter().chain(&size[own..]);
            let numel = all.clone().try_fold(1usize, |n, &size| n.checked_mul(size))?;
            small(&numel).filter(|&numel| numel > 0)?;
            all.map(small).collect::<Option<Vec<i32>>>()
        };
        Some(Sizes {
            shapes: [
                shape([*batch, groups * depth], window.input)?,
                shape([groups * outs, *depth], window.kernel)?,
                shape([*batch, groups * outs], window.output)?,
            ],
            groups: small(groups)?,
            padding: triple(window.padding.map(|p| p[0]))?,
            stride: triple(window.stride)?,
            dilation: triple(window.dilation)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Window;

    fn of(input: usize, padding: [usize; 2], output: usize) -> Convolution {
        let window = Window {
            spatial: 1,
            input: [1, 1, input],
            kernel: [1, 1, 3],
            output: [1, 1, output],
            stride: [1, 1, 2],
            padding: [[0; 2], [0; 2], padding],
            dilation: [1; 3],
        };
        let geometry = Geometry { batch: 5, groups: 2, channels: [3, 4], window };
        Convolution { dtype: DType::F32, side: Side::Output, geometry, adds: false }
    }

    #[test]
    fn a_line_is_a_plane_of_one_row() {
        let sizes = of(9, [1, 1], 5).sizes().unwrap();
        assert_eq!(sizes.shapes, [vec![5, 6, 1, 9], vec![8, 3, 1, 3], vec![5, 8, 1, 5]]);
        assert_eq!((sizes.padding, sizes.stride, sizes.groups), (vec![0, 1], vec![1, 2], 2));
    }

    #[test]
    fn padding_that_no_output_meets_may_differ_and_other_may_not() {
        // No window covers the last of ten elements, with or without padding after it.
        assert!(of(10, [1, 0], 5).sizes().is_some());
        assert!(of(9, [1, 0], 4).sizes().is_none());
        assert!(of(9, [0, 2], 5).sizes().is_none());
    }

    #[test]
    fn what_is_empty_or_has_too_many_elements_has_no_sizes() {
        let mut none = of(9, [1, 1], 5);
        none.geometry.channels[0] = 0;
        assert!(none.sizes().is_none());
        let mut many = of(9, [1, 1], 5);
        many.geometry.batch = 1 << 27;
        assert!(many.sizes().is_none());
    }
}
