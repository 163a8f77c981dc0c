//! Convolutions in plain loops, as cuDNN defines them. Sums are kept in float32, and rounded once;
//! the gradient of an input is rounded before it is added to what is there, as on an H100.
//!
//! Knows nothing of handles and streams; the caller has checked every address.

use crate::libraries::gemm::Type;

/// Which of the three values is computed from the other two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Side {
    Output,
    Input,
    Weight,
}

/// A value: channels behind the batch.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Tensor {
    pub element: Type,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

impl Tensor {
    /// Bytes from the first element to the last.
    pub fn extent(&self) -> usize {
        let last: usize =
            self.shape.iter().zip(&self.strides).map(|(n, step)| (n - 1) * step).sum();
        (last + 1) * self.element.bytes()
    }

    /// The positions of the elements of one channel of one image, by their indices in three
    /// dimensions.
    fn at(&self, lead: [usize; 2], place: [usize; 3]) -> usize {
        let place = &place[5 - self.shape.len()..];
        lead.iter().chain(place).zip(&self.strides).map(|(i, step)| i * step).sum()
    }
}

/// A convolution; lists of two or three are of the last dimensions.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Convolve {
    pub side: Side,
    pub x: Tensor,
    pub w: Tensor,
    pub y: Tensor,
    pub padding: Vec<usize>,
    pub stride: Vec<usize>,
    pub dilation: Vec<usize>,
    pub groups: usize,
    /// By a transform: what is not a number spreads.
    pub transforms: bool,
}

fn triple(list: &[usize], neutral: usize) -> [usize; 3] {
    let mut all = [neutral; 3];
    all[3 - list.len()..].copy_from_slice(list);
    all
}

/// All indices below a size, in order.
fn each(size: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [d, h, w] = size;
    (0..d * h * w).map(move |i| [i / (h * w), i / w % h, i % w])
}

impl Convolve {
    /// The values in the order of a call: what is read, then what is written.
    pub fn in_order(&self) -> [&Tensor; 3] {
        match self.side {
            Side::Output => [&self.x, &self.w, &self.y],
            Side::Input => [&self.w, &self.y, &self.x],
            Side::Weight => [&self.x, &self.y, &self.w],
        }
    }

    /// Whether the sizes belong together.
    pub fn fits(&self) -> bool {
        let (x, w, y) = (&self.x.shape, &self.w.shape, &self.y.shape);
        let rank = self.padding.len() + 2;
        if [x.len(), w.len(), y.len()] != [rank; 3] {
            return false;
        }
        let along = |d: usize| {
            let reach = self.dilation[d] * (w[d + 2] - 1) + 1;
            let room = (x[d + 2] + 2 * self.padding[d]).checked_sub(reach);
            room.map(|room| room / self.stride[d] + 1) == Some(y[d + 2])
        };
        let channels =
            x[1] == w[1] * self.groups && w[0] == y[1] && w[0].is_multiple_of(self.groups);
        x[0] == y[0] && channels && (0..self.padding.len()).all(along)
    }

    /// Computes `alpha` times it, plus `beta` times what the result holds.
    ///
    /// # Safety
    /// The values at these addresses, in the order of a call, are memory that nobody else writes
    /// meanwhile; the last is nobody else's.
    pub unsafe fn run(&self, at: [usize; 3], alpha: f32, beta: f32) {
        let (x, w, y) = (&self.x, &self.w, &self.y);
        let [batch, outs] = [y.shape[0], y.shape[1]];
        let (depth, group) = (w.shape[1], outs / self.groups);
        let [padding, stride, dilation] =
            [(&self.padding, 0), (&self.stride, 1), (&self.dilation, 1)].map(|(l, n)| triple(l, n));
        let [input, kernel, output] = [x, w, y].map(|value| triple(&value.shape[2..], 1));
        let [a, b, out] = self.in_order();
        let size =
            out.shape.iter().zip(&out.strides).map(|(n, step)| (n - 1) * step).sum::<usize>() + 1;
        let mut sums = vec![0f32; size];
        // SAFETY: the caller's promise; the positions lie within the extents.
        let read =
            |value: &Tensor, k: usize, i: usize| unsafe { value.element.read(at[k], i) as f32 };
        for (n, o) in (0..batch).flat_map(|n| (0..outs).map(move |o| (n, o))) {
            for (c, tap) in (0..depth).flat_map(|c| each(kernel).map(move |tap| (c, tap))) {
                let weight = w.at([o, c], tap);
                for place in each(output) {
                    let mut from = [0; 3];
                    let on = (0..3).all(|d| {
                        from[d] =
                            (place[d] * stride[d] + tap[d] * dilation[d]).wrapping_sub(padding[d]);
                        from[d] < input[d]
                    });
                    if !on {
                        continue;
                    }
                    let (i, j) = (x.at([n, o / group * depth + c], from), y.at([n, o], place));
                    let (first, second, to) = match self.side {
                        Side::Output => (i, weight, j),
                        Side::Input => (weight, j, i),
                        Side::Weight => (i, j, weight),
                    };
                    sums[to] += read(a, 0, first) * read(b, 1, second);
                }
            }
        }
        if self.transforms && sums.iter().any(|sum| sum.is_nan()) {
            sums.fill(f32::NAN);
        }
        let triple_of = triple(&out.shape[2..], 1);
        for (n, c) in (0..out.shape[0]).flat_map(|n| (0..out.shape[1]).map(move |c| (n, c))) {
            for place in each(triple_of) {
                let i = out.at([n, c], place);
                let old = if beta == 0.0 { 0.0 } else { beta * read(out, 2, i) };
                // SAFETY: the caller's promise, here and below.
                let write = |x: f32| unsafe { out.element.write(at[2], i, f64::from(x)) };
                let mut sum = alpha * sums[i];
                if self.side == Side::Input && beta != 0.0 {
                    write(sum);
                    sum = read(out, 2, i);
                }
                write(sum + old);
            }
        }
    }
}
