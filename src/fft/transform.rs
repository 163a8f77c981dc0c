//! The op: a transform along the last dimension, or the last but that of the parts. The transforms
//! are linear, and each is another one's gradient.

use super::kernel::{self, Kind, Transform};
use crate::Backward;
use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::tensor::custom::custom;

/// A dimension, and the parts where values are complex.
fn ends_with(dims: &[usize], n: usize, is_complex: bool) -> bool {
    match is_complex {
        true => dims.ends_with(&[n, 2]),
        false => dims.ends_with(&[n]),
    }
}

impl Operation for Transform {
    fn name(&self) -> &str {
        self.name
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let Meta { shape, dtype } = inputs[0];
        let (elements, results) = (self.kind.elements(self.n), self.kind.results(self.n));
        let fits = matches!(dtype, DType::F32 | DType::F64)
            && ends_with(shape.dims(), elements, self.kind.takes_complex());
        if !fits {
            return Err(Refusal::shape(format!(
                "{dtype} of {shape} for a transform of {}",
                self.n
            )));
        }
        let own = 1 + self.kind.takes_complex() as usize;
        let mut dims = shape.dims()[..shape.rank() - own].to_vec();
        dims.push(results);
        if self.kind.makes_complex() {
            dims.push(2);
        }
        Ok(Meta::new(&dims[..], *dtype))
    }

    fn estimate_ns(&self, inputs: &[&Meta], _: &Meta) -> u64 {
        // Once for the factors of a length that was not there yet.
        let once = (self.n as u64).saturating_mul(20).saturating_add(1_000);
        let all = inputs[0].shape.numel() as u64;
        once.saturating_add(all.saturating_mul(2 + u64::from(self.n.max(1).ilog2())) / 2)
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::NOTHING
    }

    /// What flows back is the transform by the matrix's conjugate and transpose. Of real values
    /// only the first half of the bins is there, and an inverse adds what mirrors them: half of
    /// what flows to a bin with a mirror image is its own.
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        let (kind, share) = match self.kind {
            Kind::Forward => (Kind::Inverse, 1.0),
            Kind::Inverse => (Kind::Forward, 1.0),
            Kind::ToBins => (Kind::FromBins, 0.5),
            Kind::FromBins => (Kind::ToBins, 2.0),
        };
        let back = Transform { kind, inner: self.inner * share, ..*self };
        call.give(0, |call| custom(back, &[call.upstream()]));
        Ok(())
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        match run.inputs()[0].dtype() {
            DType::F64 => kernel::run::<f64>(self, run),
            _ => kernel::run::<f32>(self, run),
        }
    }
}
