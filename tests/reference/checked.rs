//! What a device that checks its ops for what is not finite has to say of a case.

use super::case::{Case, Host, Item, Operand};
use futensor::{Error, Scalar};

/// Whether there is a NaN among some values, and an infinity.
#[derive(Clone, Copy, Default)]
struct Found {
    nan: bool,
    inf: bool,
}

impl Found {
    fn number(x: f64) -> Found {
        Found { nan: x.is_nan(), inf: x.is_infinite() }
    }

    fn of(host: &Host) -> Found {
        let float = |i: usize| if let Item::Float(x) = host.item(i) { x } else { 0.0 };
        (0..host.numel()).map(|i| Found::number(float(i))).fold(Found::default(), Found::and)
    }

    fn and(self, other: Found) -> Found {
        Found { nan: self.nan || other.nan, inf: self.inf || other.inf }
    }

    /// Something is here that was not made of what was there.
    fn is_new(self, had: Found) -> bool {
        self.nan && !had.nan || self.inf && !had.nan && !had.inf
    }
}

/// What is wrong about a case's end, `error` or values; where this is none of the check's affairs,
/// nothing, and whether the values are to be compared.
pub fn fault(case: &Case, error: Option<&Error>) -> (Option<String>, bool) {
    let operand = |operand: &Operand| match operand {
        Operand::Tensor(host, steps) => Found::of(&host.seen_through(steps)),
        Operand::Scalar(Scalar::Float(x)) => Found::number(*x),
        _ => Found::default(),
    };
    let all = |of: &mut dyn Iterator<Item = Found>| of.fold(Found::default(), Found::and);
    let had = all(&mut case.ins.iter().map(operand));
    let out = all(&mut case.out.iter().flatten().map(|x| Found::of(x)));
    // What halves are held against is wider, and finite where they are not.
    let of_halves = |rule: &str| rule == "own";
    let mut may = out.is_new(had) || of_halves(&case.tolerance);
    let must = out.is_new(had) && case.gradient.is_none();
    if let Some(gradient) = &case.gradient {
        let wanted = all(&mut gradient.wanted.iter().flatten().map(|x| Found::of(x)));
        may |= of_halves(&gradient.tolerance);
        may |= wanted.is_new(had.and(out).and(Found::of(&gradient.upstream)));
    }
    let ins: Vec<String> = case.ins.iter().map(Operand::to_string).collect();
    let text = |what: &str| {
        Some(format!("{}: {}({}) {}\n  {what}", case.place, case.op, ins.join("; "), case.attrs))
    };
    match error.filter(|error| error.is_not_finite()) {
        Some(_) if may => (None, false),
        Some(error) => (text(&format!("nothing in it is not finite, but: {error}")), false),
        None if must && error.is_none() => (text("the check has found nothing"), false),
        None => (None, true),
    }
}
