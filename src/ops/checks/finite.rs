//! The end of a check for what is not finite: it fails where something was found.
//!
//! `tensor/build/finite` puts it behind an op and counts beforehand; so does `optim/scaler` with
//! gradients.

use crate::dtype::DType;
use crate::error::{ErrorKind, number_of};
use crate::graph::operation::{CpuRun, Meta, Operation, Refusal};
use crate::ops::no_gradient;
use std::sync::Arc;

/// A NaN among what was found counts so much, an infinity 1.
pub(crate) const NAN: i64 = 1 << 31;

/// Of what was found, a 0-d value in int64. The result is 0 where that is nothing; nobody reads it.
#[derive(Clone, Debug)]
pub(crate) struct CheckFinite {
    /// The name of the op that is checked.
    of: Arc<str>,
    /// Where it stands, and its shapes, in the words of the error.
    words: Arc<(String, String)>,
}

impl CheckFinite {
    /// Of an op with this name; `part` is the op's own name where the caller asked for a method
    /// that it is a part of, and `rule` the op whose gradient it is a part of.
    pub fn new<'a>(
        of: String,
        part: Option<String>,
        rule: Option<String>,
        result: &Meta,
        operands: impl Iterator<Item = &'a Meta>,
    ) -> CheckFinite {
        let rule = rule.map_or_else(String::new, |rule| format!("in the gradient of {rule}: "));
        let part = part.map_or_else(String::new, |part| format!("in its {part}: "));
        let operands: Vec<String> = operands.map(|meta| meta.shape.to_string()).collect();
        let shapes = format!(
            "in the {} result {}, and none in the operands {}",
            result.dtype,
            result.shape,
            operands.join(", ")
        );
        CheckFinite { of: of.into(), words: Arc::new((rule + &part, shapes)) }
    }

    /// Of what was found in the gradients of so many parameters.
    pub fn of_gradients(count: usize) -> CheckFinite {
        let text = format!("in the gradients of {}", number_of(count, "parameter", "parameters"));
        CheckFinite { of: "unscale".into(), words: Arc::new((String::new(), text)) }
    }

    /// The refusal, where so much was found.
    pub fn refusal(&self, found: i64) -> Refusal {
        let (nans, infinities) = (found / NAN, found % NAN);
        let what = match (nans, infinities) {
            (0, _) => format!("{infinities} inf"),
            (_, 0) => format!("{nans} NaN"),
            _ => format!("{nans} NaN and {infinities} inf"),
        };
        let message = format!("{}{what} {}", self.words.0, self.words.1);
        Refusal { kind: ErrorKind::NotFinite, message }
    }
}

impl Operation for CheckFinite {
    fn name(&self) -> &str {
        "check_finite"
    }
    fn blamed(&self) -> &str {
        &self.of
    }
    fn infer(&self, _: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(Meta::new((), DType::U8))
    }
    fn estimate_ns(&self, _: &[&Meta], _: &Meta) -> u64 {
        20
    }
    no_gradient!();
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        match run.inputs()[0].to_vec::<i64>().as_deref() {
            Some(&[0]) => {}
            found => return Err(self.refusal(found.map_or(0, |found| found[0]))),
        }
        run.output().fill_from([0u8]);
        Ok(())
    }
}
