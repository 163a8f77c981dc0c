//! Helpers for the gradients of the op tables: accurate slopes, and gradients that depend on
//! comparisons of operands. Called by `table` alone.

use super::side::Side;
use crate::ops::order::others::others;
use crate::shape::{Shape, numel};
use crate::tensor::build::finite::unchecked;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// The slope of `gelu`: `cdf(x) + x * pdf(x)` of the normal distribution.
pub(super) fn gelu_slope(x: &TensorFuture) -> TensorFuture {
    let below = x.mul(FRAC_1_SQRT_2).erf().add(1).mul(0.5);
    let density = x.square().mul(-0.5).exp().mul(FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / 2.0);
    below.add(x.mul(density))
}

/// The slope of `x (1 + tanh u) / 2` with `u = sqrt(2/pi) (x + 0.044715 x^3)`.
pub(super) fn gelu_tanh_slope(x: &TensorFuture) -> TensorFuture {
    const K: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    const C: f64 = 0.044715;
    let square = x.square();
    let t = x.mul(square.mul(C).add(1)).mul(K).tanh();
    let inner = square.mul(3.0 * C).add(1).mul(K);
    let slope = (1.0 - t.square()).mul(inner).mul(x);
    t.add(1).add(slope).mul(0.5)
}

/// The same by `(1 + tanh u) / 2 = sigmoid(2 u)`, which is accurate near 0.
pub(super) fn gelu_tanh_slope_at_ends(x: &TensorFuture) -> TensorFuture {
    const K: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
    const C: f64 = 0.044715;
    let square = x.square();
    let u = x.mul(square.mul(C).add(1)).mul(2.0 * K);
    let inner = square.mul(3.0 * C).add(1).mul(2.0 * K);
    let (above, lesser) = lesser_sigmoid(&u);
    let other = 1.0 - &lesser;
    above.where_cond(&other, &lesser).add(lesser.mul(&other).mul(inner).mul(x))
}

/// The slope of `hardswish`: of NaN it is NaN.
pub(super) fn hardswish_slope(x: &TensorFuture) -> TensorFuture {
    let inner = x.mul(1.0 / 3.0).add(0.5);
    x.ge(3).where_cond(1.0, x.le(-3).where_cond(0.0, inner))
}

/// Where `x` is above 0, and the smaller of the sigmoids of `x` and `-x`, which is accurate however
/// small it is; the other is 1 minus it. The argument is chosen: as `-|x|` it would have a slope
/// of 0 at 0, and higher gradients would be wrong there.
fn lesser_sigmoid(x: &TensorFuture) -> (TensorFuture, TensorFuture) {
    let above = x.gt(0);
    let lesser = above.where_cond(x.neg(), x).sigmoid();
    (above, lesser)
}

/// The slope of `1 / (1 + e^-x)`, accurate also where it is small.
pub(super) fn sigmoid_slope(x: &TensorFuture) -> TensorFuture {
    let (_, lesser) = lesser_sigmoid(x);
    (1.0 - &lesser).mul(lesser)
}

/// `1 - x^2`, accurate near 1 and -1. There it is computed by factors; elsewhere, and at 1 itself,
/// the slope of the factors would be inaccurate.
pub(super) fn one_less_square(x: &TensorFuture) -> TensorFuture {
    let size = x.abs();
    let near = size.gt(0.5).logical_and(size.lt(1));
    near.where_cond((1.0 - x).mul(x.add(1)), 1.0 - x.square())
}

/// `x^2 - 1`, likewise.
pub(super) fn square_less_one(x: &TensorFuture) -> TensorFuture {
    let near = x.gt(1).logical_and(x.lt(2));
    near.where_cond(x.sub(1).mul(x.add(1)), x.square().sub(1))
}

/// The slope of `log(e^a + e^b)` in `a`: its share of the sum. A share near 1 is computed as 1
/// minus the other share, so that both slopes are accurate.
pub(super) fn part_of_sum(a: &Side, b: &Side) -> TensorFuture {
    let (above, lesser) = lesser_sigmoid(&a.sub(b));
    above.where_cond(1.0 - &lesser, lesser)
}

/// The gradient of `a^b` in `a`: `b * a^(b - 1)`, and 0 where `b` is 0.
pub(super) fn through_base(g: &TensorFuture, a: &Side, b: &Side) -> TensorFuture {
    match (a, b) {
        (Side::Value(a), Side::Value(b)) => {
            let slope = unchecked(|| a.recip().isfinite());
            let finite = slope.logical_and(g.isfinite());
            let still = b.eq(0).logical_and(finite.logical_not());
            let (g, a) = (still.where_cond(0.0, g), still.where_cond(1.0, a));
            b.mul(a.pow(b.sub(1))).mul(g)
        }
        (Side::Value(a), Side::Number(s)) => match s.as_f64() {
            0.0 => g.device().zeros_dtype(g.shape().clone(), g.dtype()),
            2.0 => g.mul(a).mul(2),
            power => g.mul(a.pow(power - 1.0)).mul(*s),
        },
        (Side::Number(_), _) => unreachable!("no gradient goes to a number"),
    }
}

/// The gradient of `y = a^b` in `b`: `y log(a)`, and 0 where `a` is 0 and `y` is finite, since `y`
/// is constant there.
pub(super) fn through_exponent(g: &TensorFuture, a: &Side, y: &TensorFuture) -> TensorFuture {
    match a {
        Side::Value(a) => {
            let still = a.eq(0).logical_and(y.isfinite());
            y.mul(still.where_cond(1.0, a.to_dtype(y.dtype())).log()).mul(g)
        }
        Side::Number(s) => {
            let slope = || g.mul(y).mul(s.as_f64().ln());
            // Of 0 the logarithm is an infinity, which is not looked at where `y` is finite.
            let still = || y.isfinite().where_cond(0.0, slope());
            if s.as_f64() == 0.0 { unchecked(still) } else { slope() }
        }
    }
}

/// The gradient of `a log(b)` in `a`: `log(b)`, and 0 where `a` is 0 and `b` has no logarithm.
pub(super) fn through_factor(g: &TensorFuture, a: &Side, b: &Side) -> TensorFuture {
    let slope = g.xlogy(b);
    match a {
        Side::Value(a) => {
            let none = match b {
                Side::Value(b) => b.le(0).logical_and(a.eq(0)),
                Side::Number(b) if b.as_f64() <= 0.0 => a.eq(0),
                Side::Number(_) => return slope,
            };
            none.where_cond(0.0, slope)
        }
        Side::Number(_) => unreachable!("no gradient goes to a number"),
    }
}

/// The slope of `digamma`: reflected to above 0.5, moved up by the recurrence, then by its series.
pub(super) fn trigamma(x: &TensorFuture) -> TensorFuture {
    const PI: f64 = std::f64::consts::PI;
    let reflected = x.lt(0.5);
    let mut y = reflected.where_cond(1.0 - x, x);
    let mut sum = y.square().recip();
    for _ in 0..5 {
        y = y.add(1);
        sum = sum.add(y.square().recip());
    }
    y = y.add(1);
    let square = y.square().recip();
    let series = square.mul(1.0 / 6.0 - square.mul(1.0 / 30.0 - square.mul(1.0 / 42.0)));
    sum = sum.add(series.add(y.mul(2).recip()).add(1).div(y));
    // Of a turn, the part in which the sine is exact. Elsewhere any number whose slope is finite.
    let turn = reflected.where_cond(x.sub(x.round()), 0.25);
    let below = turn.mul(PI).sin().square().recip().mul(PI * PI);
    reflected.where_cond(below.sub(&sum), &sum)
}

/// The gradient of `leaky_relu(a, b)` in `a`.
pub(super) fn through_leak(g: &TensorFuture, a: &Side, b: &Side) -> TensorFuture {
    match a {
        Side::Value(a) => a.gt(0).where_cond(g, g.mul(b)),
        Side::Number(_) => unreachable!("no gradient goes to a number"),
    }
}

/// The gradient of `leaky_relu(a, b)` in `b`.
pub(super) fn through_slope(g: &TensorFuture, a: &Side) -> TensorFuture {
    match a {
        Side::Value(a) => a.gt(0).where_cond(0.0, g.mul(a)),
        Side::Number(a) => g.mul(a.as_f64().min(0.0)),
    }
}

/// The gradient of `maximum(a, b)` in `a`.
pub(super) fn larger(g: &TensorFuture, a: &Side, b: &Side) -> TensorFuture {
    match (a, b) {
        (Side::Value(a), Side::Value(b)) => chosen(g, a.lt(b), a.eq(b)),
        (Side::Value(a), Side::Number(limit)) => within(g, a.gt(*limit)),
        (Side::Number(_), _) => unreachable!("no gradient goes to a number"),
    }
}

/// The gradient of `minimum(a, b)` in `a`.
pub(super) fn smaller(g: &TensorFuture, a: &Side, b: &Side) -> TensorFuture {
    match (a, b) {
        (Side::Value(a), Side::Value(b)) => chosen(g, a.gt(b), a.eq(b)),
        (Side::Value(a), Side::Number(limit)) => within(g, a.lt(*limit)),
        (Side::Number(_), _) => unreachable!("no gradient goes to a number"),
    }
}

/// Passes the gradient to the selected operand, and half of it to each if both are equal. If an
/// operand is NaN, both get the whole gradient.
fn chosen(g: &TensorFuture, lost: TensorFuture, tied: TensorFuture) -> TensorFuture {
    lost.where_cond(0.0, tied.where_cond(g.mul(0.5), g))
}

/// Passes the gradient within a limit. At the limit itself the gradient is 0, as in PyTorch's
/// clamp.
fn within(g: &TensorFuture, within: TensorFuture) -> TensorFuture {
    within.where_cond(g, 0.0)
}

/// `x / square`, and 0 where `square` is 0: at the origin the angle is undefined.
pub(super) fn of_angle(x: TensorFuture, square: TensorFuture) -> TensorFuture {
    let nothing = square.eq(0);
    nothing.where_cond(0.0, x).div(nothing.where_cond(1.0, square))
}

/// The integer `multiple / b`, for an exact multiple of `b`; the computed quotient may be off by a
/// rounding error.
pub(super) fn whole_quotient(multiple: &TensorFuture, b: &Side) -> TensorFuture {
    multiple.div(b).round()
}

/// The gradient of windows along a dimension: each element gets what its windows have for it.
pub(super) fn of_windows(g: &TensorFuture, shape: &Shape, dim: usize, step: usize) -> TensorFuture {
    let (count, size, n) = (g.dims()[dim], g.dims()[g.rank() - 1], shape[dim]);
    let d = dim as isize;
    let apart = g.movedim(-1, d + 1);
    let whole = |sizes: &[usize]| -> Vec<(usize, usize, isize)> {
        sizes.iter().map(|&n| (0, n, 1)).collect()
    };
    if size > step {
        let device = g.device();
        let first = device.arange(0, count as i64, 1) * step as i64;
        let places = first.unsqueeze(1) + device.arange(0, size as i64, 1);
        let zeros = device.zeros_dtype(shape.clone(), g.dtype());
        return zeros.index_add(d, places.reshape(-1), apart.flatten(d, d + 1), 1);
    }
    // No element is in two windows. Those between windows, and behind the last, are zeros.
    let mut with_gaps = apart.shape().clone();
    with_gaps.dims_mut()[dim + 1] = step;
    let all = apart.among_zeros(&with_gaps, &whole(apart.dims())).flatten(d, d + 1);
    match count * step <= n {
        true => all.among_zeros(shape, &whole(all.dims())),
        false => all.narrow(d, 0, n),
    }
}

/// The dimensions of a reduction.
pub(super) struct Over<'a> {
    /// The shape of the operand.
    shape: &'a Shape,
    gone: &'a [bool],
    /// The number of elements that are reduced to one.
    pub count: usize,
    /// True if the gradients need gradients themselves.
    graph: bool,
}

impl<'a> Over<'a> {
    pub fn new(shape: &'a Shape, gone: &'a [bool], graph: bool) -> Over<'a> {
        let over = shape.iter().zip(gone).filter(|(_, gone)| **gone).map(|(&n, _)| n);
        Over { shape, gone, count: over.collect::<Shape>().numel(), graph }
    }

    /// A result with the reduced dimensions at size 1.
    pub fn kept(&self, x: &TensorFuture) -> TensorFuture {
        let sizes = self.shape.iter().zip(self.gone);
        let kept: SmallVec<[isize; 8]> =
            sizes.map(|(&n, &gone)| if gone { 1 } else { n as isize }).collect();
        x.reshape(&kept[..])
    }

    /// The gradient of a maximum or minimum: equal elements share it.
    pub fn shared(&self, g: &TensorFuture, x: &TensorFuture, y: &TensorFuture) -> TensorFuture {
        let dims: SmallVec<[isize; 8]> =
            (0..self.gone.len()).filter(|&d| self.gone[d]).map(|d| d as isize).collect();
        let chosen = x.eq(y).to_dtype(g.dtype());
        chosen.mul(g.div(chosen.sum_keepdim(&dims[..])))
    }

    /// The gradient of a product: for each element, `g` times the product of all other elements
    /// that are reduced with it.
    pub fn through_product(&self, g: &TensorFuture, x: &TensorFuture) -> TensorFuture {
        // The reduced dimensions as one: where they lie side by side, and at the end elsewhere, and
        // before a few others, which a kernel would work on side by side.
        const FEW: usize = 16;
        let (rank, count) = (self.shape.rank(), self.gone.iter().filter(|gone| **gone).count());
        let mut order: SmallVec<[usize; 8]> = (0..rank).collect();
        let mut lead = self.gone.iter().position(|&gone| gone).unwrap_or(rank - count);
        let end = self.gone.iter().rposition(|&gone| gone).map_or(rank, |last| last + 1);
        if end - lead > count || numel(&self.shape[end..]) < FEW {
            order.sort_by_key(|&d| self.gone[d]);
            lead = rank - count;
        }
        let size = |dims: &[usize]| dims.iter().map(|&d| self.shape[d]).collect::<Shape>().numel();
        let (outer, inner) = (size(&order[..lead]), size(&order[lead + count..]));
        let lines = |x: &TensorFuture, n| x.permute(&order[..]).reshape([outer, n, inner]);
        let (g, x) = (lines(g, 1), lines(x, self.count));
        let at_once = if self.graph { None } else { x.through_product(&g) };
        let through = at_once.unwrap_or_else(|| others(&x, 1).mul(&g));
        let shape: SmallVec<[usize; 8]> = order.iter().map(|&d| self.shape[d]).collect();
        let mut back: SmallVec<[usize; 8]> = SmallVec::from_elem(0, rank);
        order.iter().enumerate().for_each(|(to, &from)| back[from] = to);
        through.reshape(&shape[..]).permute(&back[..])
    }
}
