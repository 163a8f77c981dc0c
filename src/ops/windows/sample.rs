//! Elements of images at places between them: `grid_sample` once points are counted in elements.
//! Only host devices are asked for it, or for what flows back; elsewhere, and where the gradient
//! has a gradient, both are made of elements that are picked, weighed and added.

use crate::dtype::DType;
use crate::graph::operation::{CpuRun, Meta, Needs, Operation, Refusal};
use crate::host::kernels::windows::around::{A, Around, Beyond, Taken};
use crate::host::kernels::windows::sample;
use crate::{Backward, TensorFuture, own};

/// What is computed, of places `[batch, points]` along each dimension and some values more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flow {
    /// Of images `[batch, channels, ..]` samples `[batch, channels, points]`.
    Samples,
    /// Of the samples' gradient the images'.
    Images,
    /// Of images and the samples' gradient that of the places, `[dimensions, batch, points]`.
    Places,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sample {
    pub taken: Taken,
    pub flow: Flow,
}

/// Of all points the elements that lie at one side of them along a dimension.
struct Side {
    /// Which; the first for those beyond the ends.
    at: TensorFuture,
    is_there: TensorFuture,
    /// What they are weighed by and how this grows, if elements are weighed.
    share: Option<[TensorFuture; 2]>,
}

/// The elements around all points that are at one corner.
struct Corner<'a> {
    /// Which, of an image row by row; the first for those beyond the ends.
    at: TensorFuture,
    is_there: TensorFuture,
    sides: Vec<&'a Side>,
}

impl Corner<'_> {
    /// The weight, or how it grows along a dimension.
    #[track_caller]
    fn weight(&self, grown: Option<usize>) -> Option<TensorFuture> {
        let shares = self.sides.iter().enumerate().filter_map(|(a, side)| {
            let [share, slope] = side.share.as_ref()?;
            Some(if grown == Some(a) { slope.clone() } else { share.clone() })
        });
        shares.reduce(|w, share| w * share)
    }

    /// The elements, not weighed. What is beyond the ends is 0 before it is weighed, so that a
    /// point that is no number makes NaN of its own result alone.
    #[track_caller]
    fn taken(&self, flat: &TensorFuture) -> TensorFuture {
        let taken = flat.gather(2, self.index(flat.dims()[1]));
        self.is_there.unsqueeze(1).where_cond(taken, 0.0)
    }

    #[track_caller]
    fn index(&self, channels: usize) -> TensorFuture {
        let (batch, points) = (self.at.dims()[0], self.at.dims()[1]);
        self.at.unsqueeze(1).expand([batch, channels, points])
    }
}

/// Places along a dimension of `n` elements between mirrors at its ends: the centres of the last
/// elements, or their edges.
#[track_caller]
pub(crate) fn mirrored(place: &TensorFuture, n: usize, centres: bool) -> TensorFuture {
    let n = n as f64;
    let (low, span) = if centres { (0.0, n - 1.0) } else { (-0.5, n) };
    if span == 0.0 {
        return place * 0.0;
    }
    // Between the mirrors and back.
    let away = (place - low).abs();
    let turns = (away.stop_gradient() / span).floor();
    let rest = &away - &turns * span;
    let back = turns.remainder(2.0).eq(0.0).where_cond(&rest, span - &rest);
    (back + low).clamp(0.0, n - 1.0)
}

/// Of places so far behind the second of four elements each one's weight, and how it grows.
#[track_caller]
fn cubic(t: &TensorFuture) -> [[TensorFuture; 2]; 4] {
    let inner = |x: &TensorFuture| {
        let share = (x * (A + 2.0) - (A + 3.0)) * x * x + 1.0;
        (share, (x * (3.0 * (A + 2.0)) - 2.0 * (A + 3.0)) * x)
    };
    let outer = |x: &TensorFuture| {
        let share = ((x - 5.0) * x + 8.0) * x * A - 4.0 * A;
        (share, ((x * 3.0 - 10.0) * x + 8.0) * A)
    };
    let (behind, before) = (t + 1.0, 1.0 - t);
    let beyond = &before + 1.0;
    let after = |(share, slope): (TensorFuture, TensorFuture)| [share, -slope];
    let [first, second] = [outer(&behind), inner(t)].map(|(share, slope)| [share, slope]);
    [first, second, after(inner(&before)), after(outer(&beyond))]
}

impl Sample {
    /// The sides of all points along a dimension of `size` elements.
    #[track_caller]
    fn sides(&self, p: &TensorFuture, size: usize) -> Vec<Side> {
        let low = p.stop_gradient();
        let low = if self.taken.by == Around::Nearest { low.round() } else { low.floor() };
        let number = |x: f64| p.device().full_dtype((), x, p.dtype());
        let (first, shares) = match self.taken.by {
            Around::Nearest => (0.0, vec![None]),
            Around::Linear => {
                let lower = [&low + 1.0 - p, number(-1.0)];
                (0.0, vec![Some(lower), Some([p - &low, number(1.0)])])
            }
            Around::Cubic(_) => (-1.0, cubic(&(p - &low)).into_iter().map(Some).collect()),
        };
        let side = |(k, share)| {
            let there = &low + (first + k as f64);
            let there = match self.taken.by {
                Around::Cubic(Beyond::Border) => there.clamp(0.0, size as f64 - 1.0),
                Around::Cubic(Beyond::Mirrors { centres }) => mirrored(&there, size, centres),
                Around::Cubic(Beyond::Zeros) | Around::Nearest | Around::Linear => there,
            };
            let is_there = there.ge(0).logical_and(there.le(size as i64 - 1));
            let at = is_there.where_cond(there, 0.0).to_dtype(DType::I64);
            Side { at, is_there, share }
        };
        shares.into_iter().enumerate().map(side).collect()
    }

    /// The sides along all dimensions.
    #[track_caller]
    fn all_sides(&self, places: &[&TensorFuture]) -> Vec<Vec<Side>> {
        let sizes = self.taken.sizes().iter();
        places.iter().zip(sizes).map(|(p, &size)| self.sides(p, size)).collect()
    }

    #[track_caller]
    fn corner<'a>(&self, all: &'a [Vec<Side>], corner: usize) -> Corner<'a> {
        let part = |a: usize| corner / self.taken.reach().pow(a as u32) % self.taken.reach();
        let sides: Vec<&Side> = all.iter().enumerate().map(|(a, of)| &of[part(a)]).collect();
        let (mut at, mut is_there) = (sides[0].at.clone(), sides[0].is_there.clone());
        for (side, &size) in sides.iter().zip(self.taken.sizes()).skip(1) {
            at = at * size + &side.at;
            is_there = is_there.logical_and(&side.is_there);
        }
        Corner { at, is_there, sides }
    }

    #[track_caller]
    fn corners<'a>(&self, all: &'a [Vec<Side>]) -> Vec<Corner<'a>> {
        (0..self.taken.corners()).map(|corner| self.corner(all, corner)).collect()
    }

    /// Samples by ops that every device has.
    #[track_caller]
    pub fn composed(&self, places: &[&TensorFuture], x: &TensorFuture) -> TensorFuture {
        let (flat, sides) = (x.flatten(2, -1), self.all_sides(places));
        let terms = self.corners(&sides).into_iter().map(|corner| {
            let taken = corner.taken(&flat);
            match corner.weight(None) {
                Some(weight) => taken * weight.unsqueeze(1),
                None => taken,
            }
        });
        terms.reduce(|sum, term| sum + term).unwrap_or(flat)
    }

    /// The rule by ops that have gradients.
    fn composed_gradient(&self, call: &mut Backward<'_>) {
        let n = self.taken.spatial;
        let places: Vec<&TensorFuture> = (0..n).map(|a| call.input(a)).collect();
        let sides = self.all_sides(&places);
        let (corners, flat) = (self.corners(&sides), call.input(n).flatten(2, -1));
        for a in (0..n).filter(|_| self.taken.by != Around::Nearest) {
            call.give(a, |call| {
                let terms = corners.iter().map(|corner| {
                    let grown = (corner.taken(&flat) * call.upstream()).sum(1);
                    match corner.weight(Some(a)) {
                        Some(weight) => grown * weight,
                        None => grown,
                    }
                });
                terms.reduce(|sum, term| sum + term).unwrap_or_else(|| call.zeros(a))
            });
        }
        call.give(n, |call| {
            let sums = corners.iter().fold(call.zeros(n).flatten(2, -1), |sums, corner| {
                let weighed = match corner.weight(None) {
                    Some(weight) => call.upstream() * weight.unsqueeze(1),
                    None => call.upstream().clone(),
                };
                let there = corner.is_there.unsqueeze(1).where_cond(weighed, 0.0);
                sums.scatter_add(2, corner.index(flat.dims()[1]), there)
            });
            sums.reshape(call.meta(n).shape.dims())
        });
    }
}

impl Operation for Sample {
    fn name(&self) -> &str {
        "grid_sample"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let (places, values) = inputs.split_at(self.taken.spatial);
        let (at, x, sizes) = (places[0], values[0], self.taken.sizes());
        let lead = [at.shape[0], *x.shape.get(1).unwrap_or(&0)];
        let images = [&lead[..], sizes].concat();
        let samples = [&lead[..], &[at.shape[1]]].concat();
        let (from, to): (&[&[usize]], _) = match self.flow {
            Flow::Samples => (&[&images], samples.clone()),
            Flow::Images => (&[&samples], images.clone()),
            Flow::Places => (&[&images, &samples], vec![sizes.len(), lead[0], at.shape[1]]),
        };
        let fits = matches!(x.dtype, DType::F32 | DType::F64)
            && inputs.iter().all(|meta| meta.dtype == x.dtype)
            && places.iter().all(|meta| meta.shape == at.shape)
            && values.iter().map(|meta| meta.shape.dims()).eq(from.iter().copied());
        match fits {
            true => Ok(Meta::new(&to[..], x.dtype)),
            false => Err(Refusal::shape(format!("{} of {}, {}", x.dtype, x.shape, at.shape))),
        }
    }

    fn estimate_ns(&self, inputs: &[&Meta], output: &Meta) -> u64 {
        let all = inputs.iter().copied().chain([output]).map(|meta| meta.shape.numel() as u64);
        let samples = match self.flow {
            Flow::Samples => output,
            _ => inputs[inputs.len() - 1],
        };
        let met = (samples.shape.numel() as u64).saturating_mul(self.taken.corners() as u64);
        all.fold(met, u64::saturating_add).saturating_add(200)
    }

    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let (places, values) = run.inputs.split_at(self.taken.spatial);
        let (taken, out, par) = (&self.taken, &run.output, run.parallel);
        macro_rules! by_type {
            ($W:ident) => {
                match *values {
                    [x, dy] => sample::to_places::<$W>(taken, places, [x, dy], out, par),
                    [dy] if self.flow == Flow::Images => {
                        sample::to_images::<$W>(taken, places, dy, out, par)
                    }
                    _ => sample::sample::<$W>(taken, places, values[0], out, par),
                }
            };
        }
        match out.dtype {
            DType::F64 => by_type!(f64),
            _ => by_type!(f32),
        }
        Ok(())
    }

    fn gradient_needs(&self, _: &[bool]) -> Needs {
        match (self.flow, self.taken.spatial) {
            (Flow::Samples, 2) => Needs::inputs(&[0, 1, 2]),
            (Flow::Samples, _) => Needs::inputs(&[0, 1, 2, 3]),
            _ => Needs::NOTHING,
        }
    }

    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        if self.flow != Flow::Samples {
            return Err(Refusal::no_gradient());
        }
        let n = self.taken.spatial;
        if call.keeps_graph() {
            self.composed_gradient(call);
            return Ok(());
        }
        let flows = |call: &Backward<'_>, flow: Flow, values: &[&TensorFuture]| {
            let places = (0..n).map(|a| call.input(a));
            let all: Vec<&TensorFuture> = places.chain(values.iter().copied()).collect();
            own(Sample { flow, ..*self }, &all)
        };
        // No place of a nearest element has a slope.
        if self.taken.by != Around::Nearest && (0..n).any(|a| call.wants(a)) {
            let all = flows(call, Flow::Places, &[call.input(n), call.upstream()]);
            (0..n).for_each(|a| call.give(a, |_| all.index_dim(0, a.into())));
        }
        call.give(n, |call| flows(call, Flow::Images, &[call.upstream()]));
        Ok(())
    }
}
