//! Whether a tensor is what it should be, within a case's tolerance, and where it is not. Called by
//! the harnesses. `store.py`'s `agrees` is the same rule on the other side.
//!
//! Tolerances (for floats; all else must be equal): `bits` the same value with the same sign of
//! zero; `own` no rougher than PyTorch's own halves ([`rougher`]); `value` the same value; `ulp:N`
//! at most `N` floats apart; `near:N:A` that, or at most `A` apart; `input:N:R` that, or at most
//! `R` times the first input (64 at most) apart. NaN agrees with any NaN.

use super::case::{Host, Item};
use futensor::DType;
use half::{bf16, f16};

enum Tolerance {
    Bits,
    Value,
    Within { ulps: u64, apart: f64, per_input: f64 },
}

fn parse(text: &str) -> Tolerance {
    let mut parts = text.split(':');
    let kind = parts.next().unwrap_or_default();
    let ulps = parts.next().map_or(0, |n| n.parse().expect("a count of ulps"));
    let slack: f64 = parts.next().map_or(0.0, |x| x.parse().expect("a number"));
    match kind {
        "bits" => Tolerance::Bits,
        "value" => Tolerance::Value,
        "ulp" => Tolerance::Within { ulps, apart: 0.0, per_input: 0.0 },
        "near" => Tolerance::Within { ulps, apart: slack, per_input: 0.0 },
        "input" => Tolerance::Within { ulps, apart: 0.0, per_input: slack },
        _ => panic!("no tolerance is called {text}"),
    }
}

/// A float's place among the floats of its type; both zeros have place 0.
fn place(bits: u64, size: usize) -> i128 {
    let sign = 1u64 << (8 * size - 1);
    if bits & sign != 0 { -((bits & !sign) as i128) } else { bits as i128 }
}

/// How many floats lie between elements `i` of two tensors of one type.
pub fn ulps(a: &Host, b: &Host, i: usize) -> u64 {
    let size = a.dtype.size();
    (place(a.bits(i), size) - place(b.bits(i), size)).unsigned_abs().try_into().unwrap_or(u64::MAX)
}

fn agrees(got: &Host, want: &Host, i: usize, tolerance: &Tolerance, first: Option<&Host>) -> bool {
    let (Item::Float(g), Item::Float(w)) = (got.item(i), want.item(i)) else {
        return got.item(i) == want.item(i);
    };
    if g.is_nan() || w.is_nan() {
        return g.is_nan() && w.is_nan();
    }
    match *tolerance {
        Tolerance::Bits => g.to_bits() == w.to_bits(),
        Tolerance::Value => g == w,
        Tolerance::Within { ulps: n, apart, per_input } => {
            let input = match first
                .filter(|f| per_input > 0.0 && f.numel() == want.numel())
                .map(|f| f.item(i))
            {
                Some(Item::Float(x)) => x.abs().min(64.0),
                Some(Item::Int(x)) => (x as f64).abs().min(64.0),
                _ => 0.0,
            };
            let apart = apart + per_input * input;
            // The difference of infinities is NaN, which is not within anything.
            g == w || (g - w).abs() <= apart || ulps(got, want, i) <= n
        }
    }
}

/// Says in a few words where `got` is not `want`, if it is not. `first` is the first input, for
/// tolerances that are relative to it.
pub fn difference(
    got: &Host,
    want: &Host,
    tolerance: &str,
    first: Option<&Host>,
) -> Option<String> {
    if got.dtype != want.dtype {
        return Some(format!("type {}, expected {}", got.dtype, want.dtype));
    }
    if got.shape != want.shape {
        return Some(format!("shape {:?}, expected {:?}", got.shape, want.shape));
    }
    if got.bytes.len() != want.bytes.len() {
        return Some(format!("{} bytes, expected {}", got.bytes.len(), want.bytes.len()));
    }
    let rule = parse(tolerance);
    let bad: Vec<usize> =
        (0..want.numel()).filter(|&i| !agrees(got, want, i, &rule, first)).collect();
    let &i = bad.first()?;
    let far = if want.dtype.is_float() {
        format!(", {} ulps apart", ulps(got, want, i))
    } else {
        String::new()
    };
    Some(format!(
        "{} of {} elements; at {:?} got {}, expected {}{far} (allowed {tolerance})",
        bad.len(),
        want.numel(),
        position(i, &want.shape),
        got.item(i),
        want.item(i),
    ))
}

/// A number rounded to a type of halves, and the distance to the next one above it.
fn rounded(x: f64, dtype: DType) -> (f64, f64) {
    macro_rules! of {
        ($T:ident) => {{
            let near = $T::from_f64(x);
            let (low, high) = (
                $T::from_bits(near.to_bits() & 0x7fff),
                $T::from_bits((near.to_bits() & 0x7fff) + 1),
            );
            (near.to_f64(), high.to_f64() - low.to_f64())
        }};
    }
    match dtype {
        DType::F16 => of!(f16),
        DType::BF16 => of!(bf16),
        other => panic!("{other} is none of the halves"),
    }
}

/// Says where `got`, in halves, is further from the `truth`, in float32, than a unit in the last
/// place and 1.2 times what PyTorch's own answer is; and where it is 0, infinite or NaN although
/// the truth, rounded, is not. `terms` is how many units in the last place of the largest element
/// may be lost besides, where the terms of sums are halves.
pub fn rougher(got: &Host, truth: &Host, own: Option<&Host>, terms: f64) -> Option<String> {
    if got.shape != truth.shape {
        return Some(format!("shape {:?}, expected {:?}", got.shape, truth.shape));
    }
    let float = |x: &Host, i: usize| match x.item(i) {
        Item::Float(x) => x,
        other => panic!("{other} is no float"),
    };
    let largest = (0..truth.numel()).map(|i| float(truth, i).abs()).fold(0.0, f64::max);
    let slack = if terms > 0.0 { terms * rounded(largest, got.dtype).1 } else { 0.0 };
    let is_off = |&i: &usize| {
        let (g, t) = (float(got, i), float(truth, i));
        let (near, unit) = rounded(t, got.dtype);
        if !near.is_finite() {
            // The largest number stands beside infinity.
            return !(g == near
                || near.is_nan() && g.is_nan()
                || near.is_infinite()
                    && g.is_finite()
                    && rounded(g, got.dtype).1.is_infinite()
                    && (g > 0.0) == (near > 0.0));
        }
        let off = own.map_or(0.0, |own| (float(own, i) - t).abs());
        // Beside 1, float64 is no truth beyond this.
        let most = unit.max(1e-15).max(if off.is_finite() { 1.2 * off } else { 0.0 }) + slack;
        !g.is_finite() || g == 0.0 && near.abs() > slack || (g - t).abs() > most
    };
    let bad: Vec<usize> = (0..truth.numel()).filter(is_off).collect();
    let &i = bad.first()?;
    let beside = own.map_or(String::new(), |own| format!(", PyTorch {}", own.item(i)));
    Some(format!(
        "{} of {} elements; at {:?} got {}, expected {}{beside}",
        bad.len(),
        truth.numel(),
        position(i, &truth.shape),
        got.item(i),
        truth.item(i),
    ))
}

/// The index of the first element that differs, linear, to look up what went in there.
pub fn first_difference(
    got: &Host,
    want: &Host,
    tolerance: &str,
    first: Option<&Host>,
) -> Option<usize> {
    if got.dtype != want.dtype || got.shape != want.shape {
        return None;
    }
    let rule = parse(tolerance);
    (0..want.numel()).find(|&i| !agrees(got, want, i, &rule, first))
}

/// The index of element `linear` of a tensor of that shape.
pub fn position(linear: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = linear;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&n| {
            let i = rest % n;
            rest /= n;
            i
        })
        .collect();
    index.reverse();
    index
}

/// The element of `host` that broadcasting brings to element `index` of a result.
pub fn broadcast_item(host: &Host, index: &[usize]) -> Option<Item> {
    let lead = index.len().checked_sub(host.shape.len())?;
    let mut linear = 0;
    for (d, &n) in host.shape.iter().enumerate() {
        let i = if n == 1 { 0 } else { index[lead + d] };
        if i >= n {
            return None;
        }
        linear = linear * n + i;
    }
    Some(host.item(linear))
}
