//! `einsum`: sums of products by dimension labels, composed of permutations, products and sums.

use crate::error::{Error, number_of};
use crate::graph::operation::Refusal;
use crate::shape::Shape;
use crate::tensor::build::{self, At, mixed};
use crate::tensor::dims::Index;
use crate::tensor::future::TensorFuture;
use smallvec::SmallVec;
use std::panic::Location;

/// A dimension's label: a letter, or a position in the ellipsis, counted from the end.
type Label = u32;
type Labels = SmallVec<[Label; 6]>;

/// Labels from here on, above all letters, belong to the ellipsis.
const ELLIPSIS: Label = 0x8000_0000;

/// Sums of products by dimension labels: `"ij,jk->ik"` is a matrix product. Operands are multiplied
/// along shared labels, labels missing on the right are summed over, `ii` is a diagonal, and `...`
/// stands for any dimensions, which are broadcast. Without `->`, the result has the labels that
/// occur once, in alphabetical order. Operands are combined from left to right, as in PyTorch's
/// `einsum`. Integers keep their type where products are summed; a sum over a single operand is
/// int64, as in `sum`.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, einsum};
/// let device = Device::cpu();
/// let x = device.arange(0.0, 4.0, 1.0).reshape([2, 2]);
/// assert_eq!(einsum("ij,jk->ik", &[&x, &x]).to_vec::<f32>().await?, [2.0, 3.0, 6.0, 11.0]);
/// assert_eq!(einsum("ii", &[&x]).item::<f32>().await?, 3.0);
/// assert_eq!(einsum("i...->...", &[&x]).to_vec::<f32>().await?, [2.0, 4.0]);
/// assert!(einsum("ij,jk->il", &[&x, &x]).error().unwrap().is_argument());
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// # Errors
/// The value fails if the equation does not fit its operands; without operands it is an argument
/// error (on [`Device::cpu`](crate::Device::cpu)).
#[doc(alias = "tensordot")]
#[track_caller]
pub fn einsum(equation: &str, operands: &[impl AsRef<TensorFuture>]) -> TensorFuture {
    if operands.is_empty() {
        return build::of_nothing("einsum", Location::caller());
    }
    let operands: Vec<&TensorFuture> = operands.iter().map(|x| x.as_ref()).collect();
    let at: At = Location::caller();
    if let Some(narrow) = mixed::each_narrowed(&operands, at) {
        return einsum(equation, &narrow);
    }
    match plan(equation, &operands) {
        Ok(plan) => {
            let _within = build::within("einsum", at);
            let dtype = operands[0].dtype();
            let is_half = dtype.is_half() && operands.iter().all(|x| x.dtype() == dtype);
            let found = match is_half && plan.rounds_between() {
                true => {
                    let wide: Vec<TensorFuture> = operands.iter().map(|x| x.wide()).collect();
                    plan.run(&wide.iter().collect::<Vec<_>>()).map(|y| y.to_dtype(dtype))
                }
                false => plan.run(&operands),
            };
            found.unwrap_or_else(|error| {
                let first = operands[0];
                build::failed(first.port(), first.node.meta.clone(), error, at)
            })
        }
        Err(refusal) => build::refused("einsum", operands[0], refusal, at),
    }
}

/// An equation that fits its operands.
struct Plan {
    inputs: Vec<Labels>,
    output: Labels,
}

fn plan(equation: &str, operands: &[&TensorFuture]) -> Result<Plan, Refusal> {
    let wrong = |text: String| Refusal::argument(format!("\"{equation}\": {text}"));
    let spec: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match spec.split_once("->") {
        Some((left, right)) => (left.to_string(), Some(right.to_string())),
        None => (spec, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != operands.len() {
        return Err(wrong(format!(
            "{} for {}",
            number_of(terms.len(), "term", "terms"),
            number_of(operands.len(), "operand", "operands")
        )));
    }
    let mut sizes: Vec<(Label, usize)> = Vec::new();
    let mut inputs = Vec::new();
    let mut dots = 0;
    for (term, x) in terms.iter().zip(operands) {
        let letters = term.replacen("...", "", 1).chars().count();
        let more = x.rank().checked_sub(letters).filter(|&n| n == 0 || term.contains("..."));
        let more = more.ok_or_else(|| {
            wrong(format!("\"{term}\" does not name the dimensions of {}", x.shape()))
        })?;
        let labels = labels(term, more).map_err(wrong)?;
        dots = dots.max(more);
        let mut own: Vec<(Label, usize)> = Vec::new();
        for (&label, &n) in labels.iter().zip(x.dims()) {
            match own.iter().find(|(l, _)| *l == label) {
                Some(&(_, m)) if m != n => {
                    return Err(Refusal::shape(format!(
                        "\"{equation}\": a diagonal of {m} by {n}"
                    )));
                }
                Some(_) => {}
                None => own.push((label, n)),
            }
        }
        for (label, n) in own {
            match sizes.iter_mut().find(|(l, _)| *l == label) {
                Some((_, m)) if *m == n || n == 1 => {}
                Some((_, m)) if *m == 1 => *m = n,
                Some((_, m)) => {
                    let name = char::from_u32(label).unwrap_or('.');
                    return Err(Refusal::shape(format!("\"{equation}\": {name} is {m} and {n}")));
                }
                None => sizes.push((label, n)),
            }
        }
        inputs.push(labels);
    }
    let output = match right {
        Some(right) => {
            // An ellipsis that is missing on the right is summed over.
            labels(&right, if right.contains("...") { dots } else { 0 }).map_err(wrong)?
        }
        None => {
            let count = |l: Label| inputs.iter().flatten().filter(|&&m| m == l).count();
            let mut once: Labels =
                sizes.iter().map(|(l, _)| *l).filter(|&l| l < ELLIPSIS && count(l) == 1).collect();
            once.sort_unstable();
            (0..dots).rev().map(|i| ELLIPSIS + i as Label).chain(once).collect()
        }
    };
    for (i, l) in output.iter().enumerate() {
        if !sizes.iter().any(|(m, _)| m == l) {
            return Err(wrong("the result has a label that no operand has".into()));
        }
        if output[..i].contains(l) {
            return Err(wrong("the result has a label twice".into()));
        }
    }
    Ok(Plan { inputs, output })
}

/// The labels of a term whose ellipsis stands for `dots` dimensions.
fn labels(term: &str, dots: usize) -> Result<Labels, String> {
    let mut out = Labels::new();
    let mut rest = term;
    let mut seen = false;
    while let Some(c) = rest.chars().next() {
        if let Some(after) = rest.strip_prefix("...") {
            if seen {
                return Err("a second ellipsis in one term".into());
            }
            seen = true;
            out.extend((0..dots).rev().map(|i| ELLIPSIS + i as Label));
            rest = after;
        } else if c.is_ascii_alphabetic() {
            out.push(c as Label);
            rest = &rest[1..];
        } else {
            return Err(format!("{c:?} is not a label of a dimension"));
        }
    }
    Ok(out)
}

/// A value and the labels of its dimensions, each once.
struct Named {
    x: TensorFuture,
    labels: Labels,
}

impl Named {
    /// Takes the diagonal for a label that occurs twice.
    #[track_caller]
    fn new(x: &TensorFuture, labels: &Labels) -> Result<Named, Error> {
        let (mut x, mut labels) = (x.clone(), labels.clone());
        while let Some((a, b)) = twice(&labels) {
            let n = x.dims()[a];
            let mut order: Vec<usize> = (0..labels.len()).filter(|&d| d != a && d != b).collect();
            order.extend([a, b]);
            let mut shape: Vec<usize> =
                order[..order.len() - 2].iter().map(|&d| x.dims()[d]).collect();
            let lead = shape.len();
            shape.push(n.saturating_mul(n));
            x = x.permute(&order[..]).reshape(&shape[..]);
            // Each element of the diagonal is one row and one column after the previous one.
            let span = Index::ALL.step((n as isize).saturating_add(1));
            x = x.index_dim(lead, span);
            labels = order[..lead + 1].iter().map(|&d| labels[d]).collect();
        }
        Named { x, labels }.whole()
    }

    /// Sums over labels that are no longer needed.
    #[track_caller]
    fn keep(self, needed: impl Fn(Label) -> bool) -> Result<Named, Error> {
        let gone: SmallVec<[isize; 6]> = (0..self.labels.len())
            .filter(|&d| !needed(self.labels[d]))
            .map(|d| d as isize)
            .collect();
        if gone.is_empty() {
            return Ok(self);
        }
        let labels = self.labels.iter().copied().filter(|&l| needed(l)).collect();
        // A sum of integers is int64.
        Named { x: self.x.sum(&gone[..]), labels }.whole()
    }

    /// Merges each group of dimensions into one; a label that this value lacks has size
    /// 1.
    #[track_caller]
    fn grouped(&self, groups: [&[Label]; 3], sizes: &[(Label, usize)]) -> TensorFuture {
        let order: Vec<isize> =
            groups.iter().flat_map(|g| g.iter()).map(|&l| self.at(l) as isize).collect();
        let full: Vec<usize> =
            groups.iter().flat_map(|g| g.iter()).map(|&l| size(sizes, l)).collect();
        let merged = groups.map(|g| g.iter().map(|&l| size(sizes, l)).collect::<Shape>().numel());
        self.x.permute(&order[..]).expand(&full[..]).reshape(merged)
    }

    fn at(&self, label: Label) -> usize {
        let own = self.labels.iter().position(|&l| l == label);
        own.expect(
            "the plan has seen that some operand has the name, and what is still needed is kept",
        )
    }

    /// Returns the error of a call that failed: such a value has the sizes of its first operand.
    fn whole(self) -> Result<Named, Error> {
        match self.x.node.error() {
            Some(error) if self.x.rank() != self.labels.len() => Err(error.clone()),
            _ => Ok(self),
        }
    }
}

/// Two positions of one label.
fn twice(labels: &[Label]) -> Option<(usize, usize)> {
    (1..labels.len()).find_map(|b| labels[..b].iter().position(|l| *l == labels[b]).map(|a| (a, b)))
}

fn size(sizes: &[(Label, usize)], label: Label) -> usize {
    sizes.iter().find(|(l, _)| *l == label).map_or(1, |(_, n)| *n)
}

impl Plan {
    /// Whether halves would be rounded before the last step: if there are several products, or a
    /// sum before the only one.
    fn rounds_between(&self) -> bool {
        let is_alone =
            |i: usize, l: &Label| !self.output.contains(l) && !self.inputs[1 - i].contains(l);
        match self.inputs.len() {
            1 => false,
            2 => (0..2).any(|i| self.inputs[i].iter().any(|l| is_alone(i, l))),
            _ => true,
        }
    }

    #[track_caller]
    fn run(&self, operands: &[&TensorFuture]) -> Result<TensorFuture, Error> {
        let needed_after = |i: usize, l: Label| {
            self.output.contains(&l)
                || self.inputs[i + 1..].iter().any(|labels| labels.contains(&l))
        };
        let mut sum = Named::new(operands[0], &self.inputs[0])?.keep(|l| needed_after(0, l))?;
        for i in 1..operands.len() {
            let next = Named::new(operands[i], &self.inputs[i])?;
            let next = next.keep(|l| needed_after(i, l) || sum.labels.contains(&l))?;
            let after = |l: Label| needed_after(i, l);
            sum = self.product(&sum, &next, after).whole()?;
        }
        let order: Vec<isize> = self.output.iter().map(|&l| sum.at(l) as isize).collect();
        Ok(sum.x.permute(&order[..]))
    }

    #[track_caller]
    fn product(&self, a: &Named, b: &Named, needed: impl Fn(Label) -> bool) -> Named {
        // A dimension of size 1 in one operand counts as belonging to the other operand alone.
        let of = |x: &Named, l: Label| x.labels.contains(&l);
        let both: Labels = a.labels.iter().copied().filter(|&l| of(b, l)).collect();
        let batch: Labels = both.iter().copied().filter(|&l| needed(l)).collect();
        let within: Labels = both.iter().copied().filter(|&l| !needed(l)).collect();
        let left: Labels = a.labels.iter().copied().filter(|&l| !of(b, l)).collect();
        let right: Labels = b.labels.iter().copied().filter(|&l| !of(a, l)).collect();
        let sizes: Vec<(Label, usize)> = a
            .labels
            .iter()
            .chain(&b.labels)
            .map(|&l| {
                let own =
                    |x: &Named| x.labels.iter().position(|&m| m == l).map_or(1, |d| x.x.dims()[d]);
                (l, if own(a) == 1 { own(b) } else { own(a) })
            })
            .collect();
        let labels: Labels = batch.iter().chain(&left).chain(&right).copied().collect();
        let shape: Vec<usize> = labels.iter().map(|&l| size(&sizes, l)).collect();
        let x = if within.is_empty() {
            // Nothing is summed: an elementwise product, which fuses.
            let one = |x: &Named| {
                let order: Vec<isize> =
                    labels.iter().filter(|&&l| of(x, l)).map(|&l| x.at(l) as isize).collect();
                let own: Vec<usize> = labels
                    .iter()
                    .map(|&l| if of(x, l) { x.x.dims()[x.at(l)] } else { 1 })
                    .collect();
                x.x.permute(&order[..]).reshape(&own[..])
            };
            one(a) * one(b)
        } else {
            let (a, b) = (
                a.grouped([&batch, &left, &within], &sizes),
                b.grouped([&batch, &within, &right], &sizes),
            );
            // A sum of integers may stand beside integers of another type.
            let whole = !a.dtype().is_float() && !b.dtype().is_float();
            let dtype = a.dtype().promote(b.dtype());
            let alike = |x: TensorFuture| if whole { x.to_dtype(dtype) } else { x };
            alike(a).matmul(alike(b)).reshape(&shape[..])
        };
        Named { x, labels }
    }
}
