//! First and second gradients where slopes are infinite or nothing, beside PyTorch's: every row of
//! the op table that has a gradient. `edges.py` made the values.

use super::reference::apply::{self, Made};
use super::reference::case::{self, Case, Host, Item, Operand};
use super::{block_on, device};
use futensor::rows;
use futensor::{Device, GradOptions, TensorFuture, grad_with};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Rows without a case, and why; beside what is made of no tensor, and rows of the op tables that
/// give no numbers.
const WITHOUT: &[(&str, &str)] = &[
    (
        "bitwise_not argsort one_hot categorical searchsorted histc unique bincount isclose \
allclose",
        "integers, counts, truth",
    ),
    (
        "sort_with_positions max_with_positions min_with_positions cummax cummin",
        "the values of `sort`, `max`, `min`, gathered",
    ),
    ("round_decimals", "as flat as `round`"),
    (
        "selu mish hardswish prelu huber_loss kl_div binary_cross_entropy cosine_embedding_loss \
ctc_loss group_norm instance_norm adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d \
grid_sample",
        "made of ops that have theirs, in rows or windows",
    ),
    ("cosine_similarity cdist", "sums that infinities end: `differences` has them"),
    ("dropout dropout_with", "a product with random numbers"),
    ("top_p paged_attention", "PyTorch has none"),
    ("to_device", "a copy"),
];

/// Numbers that are not all alike; `edges.py` has the same.
fn weights(like: &TensorFuture) -> TensorFuture {
    let of = |i: usize| (0.5 + ((i * 7 + 3) % 11) as f64 / 7.0) as f32;
    like.device().from_vec((0..like.numel()).map(of).collect::<Vec<f32>>(), like.dims())
}

fn float(host: &Host, i: usize) -> f64 {
    match host.item(i) {
        Item::Float(x) => x,
        other => panic!("{other} is no float"),
    }
}

/// A number that is not PyTorch's.
struct Other<'a> {
    /// What went in: of an elementwise op at this place, else in this row of the first operand.
    ins: &'a [f64],
    got: f64,
    want: f64,
}

impl Other<'_> {
    fn any(&self, of: impl Fn(f64) -> bool) -> bool {
        self.ins.iter().any(|&x| of(x))
    }
}

/// Where this crate has something else, and why.
const OTHERWISE: &[(&str, fn(&Other<'_>) -> bool, &str)] = &[
    (
        "pow atan2 norm",
        |o| o.want.is_nan(),
        "nothing flows through an infinite slope that is masked, whatever comes",
    ),
    (
        "pow",
        |o| o.ins[1] == 0.0,
        "the derivative by both is 1 / a at exponent 0, and PyTorch's mask hides it",
    ),
    (
        "fmod",
        |o| o.got.is_nan() && o.want.is_infinite(),
        "where the remainder is NaN, so is its slope",
    ),
    (
        "clamp",
        |o| o.ins.len() == 3,
        "by two tensors it is `maximum`, then `minimum`: equals share, NaN goes to both",
    ),
    ("elu", |o| o.ins[0] == 0.0, "at the corner the second slope is the first one's side's"),
    (
        "var",
        |o| o.got.is_nan() && o.any(f64::is_infinite),
        "the mean is infinite, and nothing lies at a distance",
    ),
    (
        "cumprod cumprod_with",
        |o| o.any(|x| !x.is_finite() || squared(x)),
        "without a graph it divides, as PyTorch's",
    ),
    (
        "digamma",
        |o| o.got.is_nan() && o.want.is_infinite(),
        "the second slope at a pole is made of infinities",
    ),
    (
        "lgamma digamma",
        |o| o.got.is_infinite() && o.any(|x| x < 0.0 && x == x.floor()),
        "at a pole the slope is infinite; PyTorch's is what rounding left of it",
    ),
    ("std", |o| o.any(squared), "a square that float32 does not hold"),
    ("norm rms_norm", |o| o.got.is_nan() && o.any(squared), "a power that float32 does not hold"),
    (
        "norm",
        |o| o.got.is_nan() && o.any(f64::is_nan),
        "the largest of a row with NaN is NaN, and no zero hides it",
    ),
];

/// Its square, or another power, is beyond float32.
fn squared(x: f64) -> bool {
    x.is_finite() && x != 0.0 && !(1e-18..1e18).contains(&x.abs())
}

/// The same number but for roundings. What is made of a row is as exact as what is largest in it.
fn agree(got: f64, want: f64, in_rows: bool) -> bool {
    let slack = if in_rows { 1e-4 * want.abs() + 1e-5 } else { 1e-5 * want.abs() + 1e-37 };
    got == want || got.is_nan() && want.is_nan() || (got - want).abs() <= slack
}

/// Ops that sum up, whose terms may cancel.
const IN_ROWS: &str = "mean var std norm softmax log_softmax logsumexp layer_norm \
    layer_norm_weighted layer_norm_plain \
    rms_norm rms_norm_plain batch_norm batch_norm_train bce_with_logits cross_entropy atan2 \
    interpolate \
    scaled_dot_product_attention hypot digamma";

/// A gradient, and what PyTorch has for it: in float32, and in float64 and rounded.
struct Asked<'a> {
    what: String,
    got: TensorFuture,
    want: [&'a Arc<Host>; 2],
}

fn asked<'a>(case: &'a Case, device: &Device) -> Vec<Asked<'a>> {
    let of = case.gradient.as_ref().expect("a gradient");
    let (args, bases) = apply::operands(device, case);
    let result = match block_on(apply::call(device, case, &args).shaped()) {
        Made::Futures(all) => all[0].clone(),
        _ => panic!("{}: nobody knows how to call {} with {}", case.place, case.op, case.attrs),
    };
    let at: Vec<usize> = (0..bases.len()).filter(|&i| of.wanted[i].is_some()).collect();
    let leaves: Vec<&TensorFuture> =
        at.iter().map(|&i| bases[i].as_ref().expect("a tensor")).collect();
    let up = apply::upload(device, &of.upstream);
    let plain =
        grad_with(&result, &leaves, GradOptions::default().retain(true).zeros(true).upstream(&up));
    let options = GradOptions::default().graph(true).zeros(true);
    let first = grad_with(&result, &leaves, options.clone().upstream(&up));
    let pair = |a: &'a [Option<Arc<Host>>], b: &'a [Option<Arc<Host>>], i: usize| {
        [a[i].as_ref().expect("a gradient"), b[i].as_ref().expect("a gradient")]
    };
    let mut all = Vec::new();
    for (k, (g, plain)) in first.into_iter().zip(plain).enumerate() {
        let want = pair(&of.wanted, &of.wide, at[k]);
        all.push(Asked { what: format!("by operand {k}"), got: plain, want });
        let second = grad_with(&g, &leaves, options.clone().upstream(&weights(&g)));
        all.push(Asked { what: format!("by operand {k}, with a graph"), got: g, want });
        for (j, h) in second.into_iter().enumerate() {
            let want = pair(&of.second[k], &of.wide_second[k], at[j]);
            all.push(Asked { what: format!("by operands {k} and {j}"), got: h, want });
        }
    }
    all
}

/// What went in at element `i` of a gradient of `n` elements.
fn inputs(case: &Case, i: usize, n: usize) -> Vec<f64> {
    let one = |x: &Operand| match x {
        Operand::Tensor(host, _) if host.numel() == n && host.dtype.is_float() => {
            Some(float(host, i))
        }
        Operand::Scalar(s) => Some(s.as_f64()),
        _ => None,
    };
    let Operand::Tensor(first, _) = &case.ins[0] else {
        return case.ins.iter().filter_map(one).collect();
    };
    if first.shape.len() != 2 || first.numel() != n {
        return case.ins.iter().filter_map(one).collect();
    }
    let width = first.shape[1];
    (i / width * width..).take(width).map(|i| float(first, i)).collect()
}

#[test]
fn gradients_at_the_edges_are_pytorchs() {
    let device = device();
    let cases = case::read("edges");
    let (mut faults, mut used) = (Vec::new(), BTreeSet::new());
    for case in &cases {
        let name = format!(
            "{}: {} {}",
            case.place.rsplit('/').next().unwrap_or_default(),
            case.row,
            case.attrs
        );
        let has = |names: &str| names.split_whitespace().any(|name| name == case.row);
        for Asked { what, got, want: [want, wide] } in asked(case, &device) {
            let got = match block_on(apply::download(&got)) {
                Ok(got) => got,
                Err(error) => {
                    faults.push(format!("{name}, {what}: {error}"));
                    continue;
                }
            };
            assert_eq!(got.shape, want.shape, "{name}, {what}");
            for i in 0..want.numel() {
                let (g, w, v) = (float(&got, i), float(want, i), float(wide, i));
                if agree(g, w, has(IN_ROWS)) || agree(g, v, has(IN_ROWS)) {
                    continue;
                }
                let ins = inputs(case, i, want.numel());
                let other = Other { ins: &ins, got: g, want: w };
                match OTHERWISE.iter().position(|(rows, is, _)| has(rows) && is(&other)) {
                    Some(reason) => drop(used.insert((reason, case.row.clone()))),
                    None => faults.push(format!(
                        "{name}, {what}, of {ins:?}: {g:e}, PyTorch {w:e} and {v:e}"
                    )),
                }
            }
        }
    }
    assert!(faults.is_empty(), "{} gradients differ:\n{}", faults.len(), faults.join("\n"));
    let idle: Vec<(&str, &str)> = (0..OTHERWISE.len())
        .flat_map(|i| OTHERWISE[i].0.split(' ').map(move |row| (i, row)))
        .filter(|&(i, row)| !used.contains(&(i, row.to_string())))
        .map(|(i, row)| (row, OTHERWISE[i].2))
        .collect();
    assert!(idle.is_empty(), "nothing differs for this reason any more: {idle:?}");
}

#[test]
fn every_op_has_its_edges() {
    let without: BTreeSet<&str> = WITHOUT.iter().flat_map(|(names, _)| names.split(' ')).collect();
    let cases: BTreeSet<String> = case::read("edges").into_iter().map(|case| case.row).collect();
    let names = support::op_names::ops();
    let mut known = support::op_names::group("creation");
    let others = rows::all().into_iter().filter(|row| !row.gives_numbers());
    known.extend(others.map(|row| row.name.to_string()));
    let is_left_out = |n: &String| without.contains(&n[..]) || known.contains(n);
    let missing: Vec<&String> =
        names.iter().filter(|n| !cases.contains(*n) && !is_left_out(n)).collect();
    assert!(missing.is_empty(), "ops without a case in tests/reference/edges.py: {missing:?}");
    let is_idle = |n: &str| cases.contains(n) || !names.contains(n) || known.contains(n);
    let idle: Vec<&&str> = without.iter().filter(|n| is_idle(n)).collect();
    assert!(idle.is_empty(), "left out for no reason: {idle:?}");
    let idle: Vec<&str> = IN_ROWS.split_whitespace().filter(|&n| !cases.contains(n)).collect();
    assert!(idle.is_empty(), "ops that sum up, without a case: {idle:?}");
}

/// A share of 0 that should be 1 is as wrong as can be: a slope of 0 would keep it for ever.
#[test]
fn a_share_that_is_wrong_for_certain_has_pytorchs_slope() {
    let device = device();
    // By PyTorch 2.15: losses of 100 and slopes of 1e12.
    for dtype in [futensor::DType::F32, futensor::DType::F64] {
        let x = device.from_vec(vec![0.0f32, 1.0, 0.25], [3]).to_dtype(dtype).requires_grad();
        let target = device.from_vec(vec![1.0f32, 0.0, 1.0], [3]).to_dtype(dtype);
        let loss = x.binary_cross_entropy(&target, futensor::Reduction::None);
        let slope = super::read(&futensor::grad(loss.sum_all(), &[&x])[0]);
        assert_eq!(super::read(&loss)[..2], [100.0, 100.0]);
        for (got, want) in slope.iter().zip([-1e12, 1e12, -4.0]) {
            assert!((got - want).abs() <= 1e-6 * f64::abs(want), "{slope:?}");
        }
    }
}

/// `y + alpha`, of which little is left, is no slope.
#[test]
fn slopes_of_elu_are_pytorchs_however_small() {
    let x = device().from_vec(vec![-20.0f32, -10.0, -1.0, 0.0, 2.0], [5]).requires_grad();
    // By PyTorch 2.15.
    let cases = [
        (x.elu(1.0), [2.0611536e-9, 4.539993e-5, 0.36787945, 1.0, 1.0]),
        (x.elu(0.5), [1.0305768e-9, 2.2699965e-5, 0.18393973, 0.5, 1.0]),
        (x.selu(), [3.6237128e-9, 7.981759e-5, 0.64676862, 1.7580993, 1.050701]),
    ];
    for (y, want) in cases {
        let slopes = super::read(&futensor::grad(y.sum_all(), &[&x])[0]);
        for (got, want) in slopes.iter().zip(want) {
            assert!((got - want).abs() <= 1e-6 * want, "{slopes:?}");
        }
    }
}

#[test]
fn a_point_that_is_no_number_is_seen_in_its_own_result_alone() {
    let device = device();
    let x = device.arange(0, 4, 1).to_dtype(futensor::DType::F32).reshape([1, 1, 2, 2]);
    let x = x.requires_grad();
    let grid = device.from_vec(vec![f32::NAN, 0.1, 0.2, 0.3], [1, 1, 2, 2]);
    let y = x.grid_sample(&grid, ());
    let got = super::read(&y);
    // By PyTorch 2.15.
    assert!(got[0].is_nan() && (got[1] - 2.3).abs() < 1e-6, "{got:?}");
    let slopes = super::read(&futensor::grad(y.sum_all(), &[&x])[0]);
    for (got, want) in slopes.iter().zip([0.06, 0.14, 0.24, 0.56]) {
        assert!((got - want).abs() < 1e-6, "{slopes:?}");
    }
}

/// An integer beside a float is that float in the slope too: its square, or one less, wraps.
#[test]
fn slopes_beside_integers_are_those_beside_the_same_floats() {
    use futensor::DType::{Bool, F32, F64, I32, I64, U8};
    let device = device();
    let of = |n: f64| device.from_vec(vec![n], [1]);
    type Op = fn(&TensorFuture, &TensorFuture) -> TensorFuture;
    let ops: [(&str, Op); 9] = [
        ("atan2", |a, b| a.atan2(b)),
        ("hypot", |a, b| a.hypot(b)),
        ("pow", |a, b| a.pow(b)),
        ("div", |a, b| a.div(b)),
        ("xlogy", |a, b| a.xlogy(b)),
        ("remainder", |a, b| a.remainder(b)),
        ("fmod", |a, b| a.fmod(b)),
        ("maximum", |a, b| a.maximum(b)),
        ("logaddexp", |a, b| a.logaddexp(b)),
    ];
    let integers = [(100.0, U8), (0.0, U8), (1.0, Bool), (50_000.0, I32), (2f64.powi(40), I64)];
    for (name, op) in ops {
        for (n, dtype) in integers {
            for float in [F32, F64] {
                let slopes = |n: &TensorFuture, left: bool| {
                    let x = of(90.5).to_dtype(float).requires_grad();
                    let y = if left { op(&x, n) } else { op(n, &x) };
                    super::read(&futensor::grad(y.sum_all(), &[&x])[0])[0]
                };
                for left in [true, false] {
                    let got = slopes(&of(n).to_dtype(dtype), left);
                    let want = slopes(&of(n).to_dtype(float), left);
                    let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                    assert!(same, "{name} beside {n} of {dtype}, {float}: {got}, not {want}");
                }
            }
        }
    }
}

#[test]
fn the_curvature_of_a_loss_at_its_target_is_pytorchs() {
    let device = device();
    let x = device.from_vec(vec![1.0f32, 2.0, -1.0], [3]).requires_grad();
    let target = x.stop_gradient();
    let losses = [
        x.smooth_l1_loss(&target, 0.5, futensor::Reduction::Sum),
        x.huber_loss(&target, 2.0, futensor::Reduction::Sum),
    ];
    // By PyTorch 2.15.
    for (loss, want) in losses.into_iter().zip([2.0, 1.0]) {
        let options = GradOptions::default().graph(true);
        let first = grad_with(&loss, &[&x], options);
        let second = futensor::grad(first[0].sum_all(), &[&x]);
        assert_eq!(super::read(&second[0]), [want; 3]);
    }
}
