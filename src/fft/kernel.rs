//! What is transformed, and rows of it by `rustfft` and `realfft`, with plans that are kept by
//! length.

use crate::dtype::Element;
use crate::graph::operation::{CpuRun, Refusal};
use crate::hosted::{elements, not_of, shared};
use crate::room;
use realfft::num_complex::Complex;
use realfft::{ComplexToReal, FftNum, RealFftPlanner, RealToComplex};
use rustfft::{Fft, FftPlanner};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What becomes what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Kind {
    /// Complex values to complex ones.
    Forward,
    Inverse,
    /// Real values to the first half of their bins.
    ToBins,
    /// And back.
    FromBins,
}

impl Kind {
    pub fn is_inverse(self) -> bool {
        matches!(self, Kind::Inverse | Kind::FromBins)
    }

    pub fn takes_complex(self) -> bool {
        self != Kind::ToBins
    }

    pub fn makes_complex(self) -> bool {
        self != Kind::FromBins
    }

    /// How many elements a transform of `n` takes.
    pub fn elements(self, n: usize) -> usize {
        if self == Kind::FromBins { n / 2 + 1 } else { n }
    }

    /// How many it makes.
    pub fn results(self, n: usize) -> usize {
        if self == Kind::ToBins { n / 2 + 1 } else { n }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Transform {
    pub name: &'static str,
    pub kind: Kind,
    pub n: usize,
    /// The factor of bins that mirror none: the first, and that in the middle. Complex values have
    /// this factor alone.
    pub ends: f64,
    /// The factor of the other bins.
    pub inner: f64,
}

impl Transform {
    /// The factor of bin `k` of real values.
    pub fn factor(&self, k: usize) -> f64 {
        if k == 0 || 2 * k == self.n { self.ends } else { self.inner }
    }
}

/// The most plans that are kept of a type.
const PLANS_MAX: usize = 64;

/// What a crate has prepared for transforms of one kind and length.
pub(super) enum Plan<T> {
    Complex(Arc<dyn Fft<T>>),
    ToBins(Arc<dyn RealToComplex<T>>),
    FromBins(Arc<dyn ComplexToReal<T>>),
}

impl<T> Clone for Plan<T> {
    fn clone(&self) -> Plan<T> {
        match self {
            Plan::Complex(plan) => Plan::Complex(plan.clone()),
            Plan::ToBins(plan) => Plan::ToBins(plan.clone()),
            Plan::FromBins(plan) => Plan::FromBins(plan.clone()),
        }
    }
}

impl<T: FftNum> Plan<T> {
    fn new(kind: Kind, n: usize) -> Plan<T> {
        match kind {
            Kind::Forward => Plan::Complex(FftPlanner::new().plan_fft_forward(n)),
            Kind::Inverse => Plan::Complex(FftPlanner::new().plan_fft_inverse(n)),
            Kind::ToBins => Plan::ToBins(RealFftPlanner::new().plan_fft_forward(n)),
            Kind::FromBins => Plan::FromBins(RealFftPlanner::new().plan_fft_inverse(n)),
        }
    }
}

pub(super) type Plans<T> = Mutex<BTreeMap<(Kind, usize), Plan<T>>>;

/// float32 and float64.
pub(super) trait Real: Element + FftNum {
    fn plans() -> &'static Plans<Self>;

    /// The lock is held for a look, never while a plan is made.
    fn plan(kind: Kind, n: usize) -> Plan<Self> {
        let lock = || Self::plans().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = lock().get(&(kind, n)) {
            return plan.clone();
        }
        let plan = Plan::new(kind, n);
        let mut plans = lock();
        if plans.len() >= PLANS_MAX {
            plans.clear();
        }
        plans.insert((kind, n), plan.clone());
        plan
    }
}

macro_rules! real {
    ($($t:ty)*) => {$(
        impl Real for $t {
            fn plans() -> &'static Plans<$t> {
                static PLANS: Plans<$t> = Mutex::new(BTreeMap::new());
                &PLANS
            }
        }
    )*};
}
real! { f32 f64 }

pub(super) fn run<T: Real>(op: &Transform, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
    let x = elements::<T>(run.inputs()[0])?;
    let parallel = run.parallel();
    let out = run.output().into_slice::<T>().ok_or_else(|| not_of(T::DTYPE.name()))?;
    // Of an empty batch a length may be anything, and no plan is made for it.
    if out.is_empty() {
        return Ok(());
    }
    let parts = |is_complex: bool| 1 + is_complex as usize;
    let from = op.kind.elements(op.n) * parts(op.kind.takes_complex());
    let to = op.kind.results(op.n) * parts(op.kind.makes_complex());
    let rows = out.len() / to;
    let cost_ns = (out.len() as u64).saturating_mul(2 + u64::from(op.n.ilog2())) / 2;
    let plan = T::plan(op.kind, op.n);
    shared(parallel, out, rows, cost_ns, |rows, out| {
        let x = x[rows.start * from..rows.end * from].chunks_exact(from);
        let rows = x.zip(out.chunks_exact_mut(to));
        match &plan {
            Plan::Complex(plan) => complex(op, &**plan, rows),
            Plan::ToBins(plan) => to_bins(op, &**plan, rows),
            Plan::FromBins(plan) => from_bins(op, &**plan, rows),
        }
        Ok(())
    })
}

fn number<T: Element>(x: f64) -> T {
    T::from_f64(x)
}

fn zeros<T: Real>(n: usize) -> Vec<Complex<T>> {
    room::filled(n, Complex::new(T::zero(), T::zero()))
}

fn complex<'a, T: Real>(
    op: &Transform,
    plan: &dyn Fft<T>,
    rows: impl Iterator<Item = (&'a [T], &'a mut [T])>,
) {
    let (mut row, mut scratch) = (zeros(op.n), zeros(plan.get_inplace_scratch_len()));
    let factor = number::<T>(op.ends);
    for (x, out) in rows {
        for (z, x) in row.iter_mut().zip(x.chunks_exact(2)) {
            *z = Complex::new(x[0], x[1]);
        }
        plan.process_with_scratch(&mut row, &mut scratch);
        for (out, z) in out.chunks_exact_mut(2).zip(&row) {
            (out[0], out[1]) = (z.re * factor, z.im * factor);
        }
    }
}

fn to_bins<'a, T: Real>(
    op: &Transform,
    plan: &dyn RealToComplex<T>,
    rows: impl Iterator<Item = (&'a [T], &'a mut [T])>,
) {
    let mut row = room::filled(op.n, T::zero());
    let (mut bins, mut scratch) = (zeros(op.n / 2 + 1), zeros(plan.get_scratch_len()));
    for (x, out) in rows {
        row.copy_from_slice(x);
        let done = plan.process_with_scratch(&mut row, &mut bins, &mut scratch);
        debug_assert!(done.is_ok(), "{done:?}");
        for (k, (out, z)) in out.chunks_exact_mut(2).zip(&bins).enumerate() {
            let factor = number::<T>(op.factor(k));
            (out[0], out[1]) = (z.re * factor, z.im * factor);
        }
    }
}

fn from_bins<'a, T: Real>(
    op: &Transform,
    plan: &dyn ComplexToReal<T>,
    rows: impl Iterator<Item = (&'a [T], &'a mut [T])>,
) {
    let (mut bins, mut scratch) = (zeros(op.n / 2 + 1), zeros(plan.get_scratch_len()));
    for (x, out) in rows {
        for (k, (z, x)) in bins.iter_mut().zip(x.chunks_exact(2)).enumerate() {
            let factor = number::<T>(op.factor(k));
            // The crate wants no imaginary part of a bin that mirrors none.
            let mirrors = k != 0 && 2 * k != op.n;
            let im = if mirrors { x[1] * factor } else { T::zero() };
            *z = Complex::new(x[0] * factor, im);
        }
        let done = plan.process_with_scratch(&mut bins, out, &mut scratch);
        debug_assert!(done.is_ok(), "{done:?}");
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn plans_are_kept_and_not_too_many() {
        for n in 1..=PLANS_MAX + 3 {
            f64::plan(Kind::Forward, n);
            let kept = f64::plans().lock().unwrap();
            assert!(kept.contains_key(&(Kind::Forward, n)) && kept.len() <= PLANS_MAX);
        }
    }
}
