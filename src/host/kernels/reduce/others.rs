//! What flows back through products: each element's is that of the result times the product of all
//! others.
//!
//! The product of all is divided by the element. It is a fraction and a power of two, so that it
//! neither overflows nor loses digits on the way; zeros are counted beside it, and so a line with
//! zeros is right as well. Lines with infinities, NaN, or numbers that only fractions of their
//! length can be (in f64), are worked on one element after the other.

use super::super::isa::vectorize;
use super::super::nest::{Shared, in_parts, slice_of};
use crate::dtype::DType;
use crate::room;
use crate::view::{Parallel, View, ViewMut};
use std::ops::Range;

/// Products of a line that are made side by side.
const LANES: usize = 32;
/// Lines that lie side by side, at a time.
const COLUMNS: usize = 256;
/// Fractions below 2 that are multiplied before their product is made a fraction again.
const STEPS: usize = 512;
/// A line, or so many side by side, is cut into pieces of so many elements: by its shape alone, and
/// so are the bits.
const PIECE: usize = if cfg!(all(test, debug_assertions)) { 1 << 10 } else { 1 << 16 };
/// Elements below which a further thread does not pay.
const LEAST: usize = if cfg!(all(test, debug_assertions)) { 200 } else { 16 << 10 };

/// Of `[outer, n, inner]` elements, and one of `g` for each `n` of them: `out[i, j, k]` is `g[i, 0,
/// k]` times the product of `x[i, .., k]` without `x[i, j, k]`. All are f32 or f64.
pub(crate) fn product_back(g: View<'_>, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    match x.dtype {
        DType::F64 => back::<f64>(g, x, out, par),
        _ => back::<f32>(g, x, out, par),
    }
}

/// An element.
trait Factor: Copy + Send + Sync + 'static {
    /// Whether f64 holds every quotient of a product and an element.
    const SINGLE: bool;
    const ZERO: Self;
    fn wide(self) -> f64;
    fn narrow(x: f64) -> Self;
    fn over(self, b: Self) -> Self;
    fn is_safe(self) -> bool;
}

macro_rules! factors {
    ($($T:ident $single:literal)*) => {$(
        impl Factor for $T {
            const SINGLE: bool = $single;
            const ZERO: $T = 0.0;
            #[inline(always)]
            fn wide(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn narrow(x: f64) -> $T {
                x as $T
            }
            #[inline(always)]
            fn over(self, b: $T) -> $T {
                self / b
            }
            #[inline(always)]
            fn is_safe(self) -> bool {
                self.is_normal()
            }
        }
    )*};
}
factors! { f32 true f64 false }

const EXPONENT: u64 = 0x7ff << 52;
const ONE: u64 = 1023 << 52;
/// A zero, and an element that is not for the quick way, as they are counted.
const ZERO: u64 = 1;
const WILD: u64 = 1 << 40;

/// The product of some elements: a fraction in [1, 2) with its sign, a power of two, and how many
/// elements are not in it.
#[derive(Clone, Copy)]
struct Found {
    fraction: f64,
    exponent: i64,
    others: u64,
}

impl Found {
    const NOTHING: Found = Found { fraction: 1.0, exponent: 0, others: 0 };

    fn join(self, other: Found) -> Found {
        let (fraction, exponent) = settled(self.fraction * other.fraction);
        let exponent = self.exponent + other.exponent + exponent;
        Found { fraction, exponent, others: self.others + other.others }
    }
}

/// A fraction and a power of two, of a number that is normal.
#[inline(always)]
fn settled(x: f64) -> (f64, i64) {
    let bits = x.to_bits();
    let exponent = ((bits & EXPONENT) >> 52) as i64 - 1023;
    (f64::from_bits(bits & !EXPONENT | ONE), exponent)
}

/// Products that are made side by side.
struct Side<const N: usize> {
    fraction: [f64; N],
    exponent: [i64; N],
    others: [u64; N],
    steps: usize,
}

impl<const N: usize> Side<N> {
    #[inline(always)]
    fn new() -> Side<N> {
        Side { fraction: [1.0; N], exponent: [0; N], others: [0; N], steps: 0 }
    }

    /// Multiplies the first of them by an element each.
    #[inline(always)]
    fn take<T: Factor>(&mut self, row: &[T]) {
        let columns = self.fraction.iter_mut().zip(&mut self.exponent).zip(&mut self.others);
        for (((fraction, exponent), others), x) in columns.zip(row) {
            let x = x.wide();
            let bits = x.to_bits();
            let field = bits & EXPONENT;
            let (is_zero, is_plain) = (x == 0.0, field != 0 && field != EXPONENT);
            *fraction *= f64::from_bits(if is_plain { bits & !EXPONENT | ONE } else { ONE });
            *exponent += if is_plain { (field >> 52) as i64 - 1023 } else { 0 };
            *others += match (is_plain, is_zero) {
                (true, _) => 0,
                (_, true) => ZERO,
                _ => WILD,
            };
        }
        self.steps += 1;
        if self.steps == STEPS {
            self.settle();
        }
    }

    #[inline(always)]
    fn settle(&mut self) {
        self.steps = 0;
        for (fraction, exponent) in self.fraction.iter_mut().zip(&mut self.exponent) {
            let (rest, more) = settled(*fraction);
            (*fraction, *exponent) = (rest, *exponent + more);
        }
    }

    /// The products, each settled.
    #[inline(always)]
    fn found(&mut self) -> impl Iterator<Item = Found> {
        self.settle();
        (0..N).map(|i| Found {
            fraction: self.fraction[i],
            exponent: self.exponent[i],
            others: self.others[i],
        })
    }
}

/// What is divided by the elements of each line, and what flows to an element that is zero.
struct Ends<T> {
    over: [f64; COLUMNS],
    at_zero: [f64; COLUMNS],
    /// The former, where a quotient of elements is right in every line.
    quick: Option<[T; COLUMNS]>,
}

impl<T: Factor> Ends<T> {
    fn new(lines: usize, line: impl Fn(usize) -> (Found, T)) -> Ends<T> {
        let mut ends = Ends { over: [0.0; COLUMNS], at_zero: [0.0; COLUMNS], quick: None };
        let (mut quick, mut all) = ([T::ZERO; COLUMNS], true);
        for c in 0..lines {
            let (found, g) = line(c);
            let (g, product) = (g.wide(), product::<T>(found));
            let zeros = found.others % WILD;
            ends.over[c] = if zeros == 0 { g * product } else { g * 0.0 };
            ends.at_zero[c] = if zeros == 1 { g * product } else { g * 0.0 };
            quick[c] = T::narrow(ends.over[c]);
            all &= zeros == 0 && (quick[c].is_safe() || g == 0.0);
        }
        ends.quick = all.then_some(quick);
        ends
    }
}

/// The product as a number; for f32 so small or large at the ends that no quotient by an element
/// and no product with one comes back.
fn product<T: Factor>(found: Found) -> f64 {
    let end = if T::SINGLE { 600 } else { 3000 };
    libm::ldexp(found.fraction, found.exponent.clamp(-end, end) as i32)
}

/// Whether a line is worked on one element after the other.
fn is_wild<T: Factor>(found: Found, g: T) -> bool {
    let (g, product) = (g.wide(), product::<T>(found));
    let is_normal = || product.is_normal() && ((g * product).is_normal() || !g.is_normal());
    found.others >= WILD || !T::SINGLE && !is_normal()
}

struct Call<'a, T> {
    x: Shared<T>,
    step: &'a [isize],
    g: Shared<T>,
    g_step: &'a [isize],
    out: Shared<T>,
    n: usize,
    inner: usize,
}

fn back<T: Factor>(g: View<'_>, x: View<'_>, out: &ViewMut<'_>, par: &dyn Parallel) {
    if out.numel() == 0 {
        return;
    }
    let [outer, n, inner] = [0, 1, 2].map(|d| x.shape[d]);
    let pieces = n.div_ceil(PIECE / inner.min(COLUMNS));
    let call = Call {
        x: Shared::<T>::new(x.ptr.cast_mut()),
        step: x.strides,
        g: Shared::<T>::new(g.ptr.cast_mut()),
        g_step: g.strides,
        out: Shared::<T>::new(out.ptr),
        n,
        inner,
    };
    let strips = inner.div_ceil(COLUMNS);
    let strip = |unit: usize| (unit / strips, slice_of(inner, strips, unit % strips));
    let least = (LEAST * strips / (n * inner)).max(1);
    if pieces == 1 {
        return in_parts(outer * strips, least, par, &|units| {
            for (o, columns) in units.map(strip) {
                let mut found = [Found::NOTHING; COLUMNS];
                call.look(o, columns.clone(), 0..n, &mut found);
                call.write(o, columns.clone(), 0..n, &found);
                call.mend(o, columns, &found);
            }
        });
    }
    let mut all = room::filled(outer * inner * pieces, Found::NOTHING);
    let at = Shared::<Found>::new(all.as_mut_ptr());
    // SAFETY (where it is used): each line of each piece has its own place.
    let place =
        |o: usize, piece: usize, c: usize| at.at(((o * pieces + piece) * inner + c) as isize);
    in_parts(outer * strips * pieces, (least / pieces).max(1), par, &|units| {
        for unit in units {
            let ((o, columns), piece) = (strip(unit / pieces), unit % pieces);
            let mut found = [Found::NOTHING; COLUMNS];
            call.look(o, columns.clone(), slice_of(n, pieces, piece), &mut found);
            for (c, found) in columns.zip(found) {
                // SAFETY: as above.
                unsafe { place(o, piece, c).write(found) }
            }
        }
    });
    // The first piece's place has the whole line's.
    for (o, c) in (0..outer).flat_map(|o| (0..inner).map(move |c| (o, c))) {
        // SAFETY: as above; nobody else is at them now.
        let whole = (0..pieces).map(|piece| unsafe { *place(o, piece, c) });
        let whole = whole.fold(Found::NOTHING, Found::join);
        // SAFETY: as above.
        unsafe { place(o, 0, c).write(whole) }
    }
    let of = |o: usize, columns: &Range<usize>| {
        let mut found = [Found::NOTHING; COLUMNS];
        for (found, c) in found.iter_mut().zip(columns.clone()) {
            // SAFETY: as above; nobody writes any more.
            *found = unsafe { *place(o, 0, c) };
        }
        found
    };
    in_parts(outer * strips * pieces, (least / pieces).max(1), par, &|units| {
        for unit in units {
            let ((o, columns), piece) = (strip(unit / pieces), unit % pieces);
            let found = of(o, &columns);
            call.write(o, columns, slice_of(n, pieces, piece), &found);
        }
    });
    in_parts(outer * strips, least, par, &|units| {
        for (o, columns) in units.map(strip) {
            let found = of(o, &columns);
            call.mend(o, columns, &found);
        }
    });
}

impl<T: Factor> Call<'_, T> {
    /// `len` elements that lie a step apart, in `room` if that is not 1.
    ///
    /// # Safety
    /// These are elements of the value.
    #[inline(always)]
    unsafe fn row<'a>(
        &self,
        o: usize,
        [r, c]: [usize; 2],
        len: usize,
        step: isize,
        room: &'a mut [T; COLUMNS],
    ) -> &'a [T] {
        let [o, r, c] = [o, r, c].map(|i| i as isize);
        let first = self.x.at(o * self.step[0] + r * self.step[1] + c * self.step[2]);
        // SAFETY: the caller's promise.
        unsafe {
            if step == 1 {
                return std::slice::from_raw_parts(first, len);
            }
            for (i, to) in room[..len].iter_mut().enumerate() {
                *to = *first.offset(i as isize * step);
            }
        }
        &room[..len]
    }

    /// The product of some elements of each of some lines.
    fn look(&self, o: usize, columns: Range<usize>, rows: Range<usize>, found: &mut [Found]) {
        let mut room = [T::ZERO; COLUMNS];
        if self.inner > 1 {
            let mut side = Side::<COLUMNS>::new();
            // SAFETY: elements of the value.
            vectorize!(|| unsafe {
                for r in rows {
                    let at = [r, columns.start];
                    side.take(self.row(o, at, columns.len(), self.step[2], &mut room));
                }
            });
            return found.iter_mut().zip(side.found()).for_each(|(to, found)| *to = found);
        }
        let mut side = Side::<LANES>::new();
        // SAFETY: elements of the value.
        vectorize!(|| unsafe {
            for r in rows.clone().step_by(COLUMNS) {
                let len = COLUMNS.min(rows.end - r);
                let row = self.row(o, [r, 0], len, self.step[1], &mut room);
                let (whole, rest) = row.as_chunks::<LANES>();
                whole.iter().for_each(|row| side.take(row));
                side.take(rest);
            }
        });
        found[0] = side.found().fold(Found::NOTHING, Found::join);
    }

    /// The element of `g` of a line.
    fn upstream(&self, o: usize, c: usize) -> T {
        let at = o as isize * self.g_step[0] + c as isize * self.g_step[2];
        // SAFETY: there is one for each line.
        unsafe { *self.g.at(at) }
    }

    /// Writes what flows to some elements of each of some lines, but of wild ones.
    fn write(&self, o: usize, columns: Range<usize>, rows: Range<usize>, found: &[Found]) {
        let ends = Ends::new(columns.len(), |c| (found[c], self.upstream(o, columns.start + c)));
        let mut room = [T::ZERO; COLUMNS];
        let out = |r: usize, len: usize| {
            let first = self.out.at(((o * self.n + r) * self.inner + columns.start) as isize);
            // SAFETY: elements of the output, this part's own; numbers need no initial value.
            unsafe { std::slice::from_raw_parts_mut(first.cast::<std::mem::MaybeUninit<T>>(), len) }
        };
        // SAFETY: elements of the value.
        vectorize!(|| unsafe {
            if self.inner > 1 {
                for r in rows {
                    let at = [r, columns.start];
                    let x = self.row(o, at, columns.len(), self.step[2], &mut room);
                    let out = out(r, x.len()).iter_mut().zip(x);
                    match &ends.quick {
                        Some(quick) => out.zip(quick).for_each(|((out, x), over)| {
                            out.write(over.over(*x));
                        }),
                        None => {
                            for ((out, x), (over, at_zero)) in
                                out.zip(ends.over.iter().zip(&ends.at_zero))
                            {
                                out.write(flows(x.wide(), *over, *at_zero));
                            }
                        }
                    }
                }
                return;
            }
            let (over, at_zero) = (ends.over[0], ends.at_zero[0]);
            for r in rows.clone().step_by(COLUMNS) {
                let len = COLUMNS.min(rows.end - r);
                let x = self.row(o, [r, 0], len, self.step[1], &mut room);
                let out = out(r, len).iter_mut().zip(x);
                match &ends.quick {
                    Some(quick) => {
                        let over = quick[0];
                        out.for_each(|(out, x)| {
                            out.write(over.over(*x));
                        });
                    }
                    None => out.for_each(|(out, x)| {
                        out.write(flows(x.wide(), over, at_zero));
                    }),
                }
            }
        });
    }

    /// Writes the wild ones of some lines.
    fn mend(&self, o: usize, columns: Range<usize>, found: &[Found]) {
        for (c, found) in columns.zip(found) {
            let g = self.upstream(o, c);
            if !is_wild(*found, g) {
                continue;
            }
            let [o_, c_] = [o, c].map(|i| i as isize);
            let x = |r: usize| {
                let at = o_ * self.step[0] + r as isize * self.step[1] + c_ * self.step[2];
                // SAFETY: an element of the value.
                unsafe { *self.x.at(at) }.wide()
            };
            let all = (0..self.n).map(x).fold(Whole::default(), Whole::with);
            for r in 0..self.n {
                let y = T::narrow(g.wide() * all.without(x(r)));
                // SAFETY: an element of the output, whose line is this part's.
                unsafe { self.out.at(((o * self.n + r) * self.inner + c) as isize).write(y) }
            }
        }
    }
}

#[inline(always)]
fn flows<T: Factor>(x: f64, over: f64, at_zero: f64) -> T {
    T::narrow(if x == 0.0 { at_zero } else { over / x })
}

/// All that is in a line.
#[derive(Default)]
struct Whole {
    zeros: usize,
    infinities: usize,
    nans: usize,
    is_negative: bool,
    /// That of the others is `2^exponent` times this, or one if there is none yet.
    fraction: Option<f64>,
    exponent: i64,
}

impl Whole {
    fn with(mut self, x: f64) -> Whole {
        self.is_negative ^= x.is_sign_negative();
        match x.abs() {
            t if t.is_nan() => self.nans += 1,
            f64::INFINITY => self.infinities += 1,
            0.0 => self.zeros += 1,
            t => {
                let (own, exponent) = libm::frexp(t);
                let (fraction, more) = libm::frexp(self.fraction.unwrap_or(1.0) * own);
                self.exponent += i64::from(exponent) + i64::from(more);
                self.fraction = Some(fraction);
            }
        }
        self
    }

    /// The product without one of the elements.
    fn without(&self, x: f64) -> f64 {
        let (is_zero, is_infinite) = (x == 0.0, x.is_infinite());
        let zeros = self.zeros - is_zero as usize;
        let infinities = self.infinities - is_infinite as usize;
        let fraction = self.fraction.unwrap_or(1.0);
        let size = |over: f64, exponent: i64| {
            libm::ldexp(fraction / over, (self.exponent - exponent).clamp(-3000, 3000) as i32)
        };
        let size = match (zeros, infinities) {
            _ if self.nans > x.is_nan() as usize => f64::NAN,
            (1.., 1..) => f64::NAN,
            (1.., 0) => 0.0,
            (0, 1..) => f64::INFINITY,
            (0, 0) if is_zero || is_infinite || x.is_nan() => size(1.0, 0),
            (0, 0) => {
                let (own, exponent) = libm::frexp(x.abs());
                size(own, i64::from(exponent))
            }
        };
        if self.is_negative ^ x.is_sign_negative() { -size } else { size }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::testing::*;
    use super::*;
    use crate::dtype::Element;

    /// By the definition, in f64, where the numbers leave nothing to lose.
    fn plain(g: f64, line: &[f64], at: usize) -> f64 {
        let others = (0..line.len()).filter(|i| *i != at).map(|i| line[i]);
        g * others.product::<f64>()
    }

    fn holds<T: Element + Factor>(rng: &mut Rng, shape: [usize; 3], draw: fn(&mut Rng) -> f64) {
        let [outer, n, inner] = shape;
        let x = Value::<T>::random(rng, &shape, |r| T::from_f64(draw(r)));
        let g = Value::<T>::random(rng, &[outer, 1, inner], |r| T::from_f64(r.unit()));
        let run = |threads: usize| {
            filled::<T>(&shape, |out| {
                let par = Threads { threads, seed: threads as u64 };
                product_back(g.view(), x.view(), out, &par);
            })
        };
        let got = run(1);
        let bits = |all: &[T]| all.iter().map(|x| x.to_f64().to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&got), bits(&run(3)), "whatever the threads");
        for (i, y) in indices(&shape).iter().zip(&got) {
            let line: Vec<f64> = (0..n).map(|j| Factor::wide(x.get(&[i[0], j, i[2]]))).collect();
            let up = g.get(&[i[0], 0, i[2]]);
            let want = <T as Factor>::narrow(plain(Factor::wide(up), &line, i[1]));
            let (y, want) = (Factor::wide(*y), Factor::wide(want));
            let near = (y - want).abs() <= 3e-7 * want.abs() + 1e-44;
            assert!(y == want || near || y.is_nan() && want.is_nan(), "{y} for {want} at {i:?}");
        }
    }

    #[test]
    fn each_element_has_the_product_of_the_others_wherever_they_lie() {
        let mut rng = Rng::new(81);
        let near: fn(&mut Rng) -> f64 = |r| (1.0 + r.unit() / 2.0).copysign(r.unit());
        let some: fn(&mut Rng) -> f64 = |r| match r.below(9) {
            0 => 0.0,
            1 => -0.0,
            _ => 1.0 + r.unit() / 2.0,
        };
        let wild: fn(&mut Rng) -> f64 = |r| match r.below(12) {
            0 => f64::INFINITY,
            1 => f64::NAN,
            2 => f64::NEG_INFINITY,
            3 => 0.0,
            _ => r.unit(),
        };
        for _ in turns(8) {
            for draw in [near, some, wild] {
                let shapes = [
                    [1 + rng.below(4), 1 + rng.below(6), 1 + rng.below(5)],
                    [1 + rng.below(3), 1 + rng.below(90), 1],
                    [1, 1 + rng.below(6), 200 + rng.below(400)],
                ];
                for shape in shapes {
                    holds::<f32>(&mut rng, shape, draw);
                    holds::<f64>(&mut rng, shape, draw);
                }
            }
        }
        // In pieces; the numbers are near 1, and their product is as well.
        let one: fn(&mut Rng) -> f64 = |r| 1.0 + r.unit() / 256.0;
        for shape in [[2, 2 * PIECE + 77, 1], [1, 70, 300]] {
            holds::<f32>(&mut rng, shape, one);
        }
    }

    /// 2^-100 a hundred times, and 2^100 as often: the running product of the one half is 0.
    #[test]
    fn a_product_on_the_way_may_be_beyond_all_numbers() {
        let x = (0..2000).map(|i| 2f32.powi(if i < 1000 { -100 } else { 100 })).collect();
        let (x, g) = (Value::new(&[1, 2000, 1], x), Value::new(&[1, 1, 1], vec![3f32]));
        let got = filled::<f32>(&[1, 2000, 1], |out| {
            product_back(g.view(), x.view(), out, &crate::view::Serial);
        });
        let want = |i: usize| 3.0 * 2f32.powi(if i < 1000 { 100 } else { -100 });
        assert!((0..2000).all(|i| got[i] == want(i)));
        // Of nothing but small ones it is nothing.
        let x = Value::new(&[1, 2000, 1], vec![0.5f64; 2000]);
        let g = Value::new(&[1, 1, 1], vec![1f64]);
        let got = filled::<f64>(&[1, 2000, 1], |out| {
            product_back(g.view(), x.view(), out, &crate::view::Serial);
        });
        assert_eq!(got, [0.0; 2000]);
    }

    at_every_level! {
        each_element_has_the_product_of_the_others_wherever_they_lie
        a_product_on_the_way_may_be_beyond_all_numbers
    }
}
