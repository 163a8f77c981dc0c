//! Whether a tensor is what it should be, within a case's tolerance, and where it is not. Called by
//! the harnesses. `store.py`'s `agrees` is the same rule on the other side.
//!
//! Tolerances (for floats; all else must be equal): `bits` the same value with the same sign of
//! zero; `value` the same value; `ulp:N` at most `N` floats apart; `near:N:A` that, or at most `A`
//! apart; `input:N:R` that, or at most `R` times the first input (64 at most) apart. NaN agrees
//! with any NaN.

use super::case::{Host, Item};

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
            let input = match first.filter(|f| per_input > 0.0 && f.numel() == want.numel()).map(|f| f.item(i))
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
pub fn difference(got: &Host, want: &Host, tolerance: &str, first: Option<&Host>) -> Option<String> {
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
    let bad: Vec<usize> = (0..want.numel()).filter(|&i| !agrees(got, want, i, &rule, first)).collect();
    let &i = bad.first()?;
    let far =
        if want.dtype.is_float() { format!(", {} ulps apart", ulps(got, want, i)) } else { String::new() };
    Some(format!(
        "{} of {} elements; at {:?} got {}, expected {}{far} (allowed {tolerance})",
        bad.len(),
        want.numel(),
        position(i, &want.shape),
        got.item(i),
        want.item(i),
    ))
}

/// The index of the first element that differs, linear, to look up what went in there.
pub fn first_difference(got: &Host, want: &Host, tolerance: &str, first: Option<&Host>) -> Option<usize> {
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
