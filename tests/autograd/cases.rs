//! The functions whose gradients are compared with differences, beside the rows of the table.

use futensor::custom::{Backward, CpuRun, Meta, Needs, Operation, Refusal, custom};
use futensor::op_options::{GridOptions, GridPadding};
use futensor::{
    AttentionOptions, ConvOptions, DType, Dims, Index, InterpolateMode, InterpolateOptions,
    PadMode, PoolOptions, Scalar, ScatterMode, TensorFuture, cat, checkpoint, einsum, stack,
};

pub type Call = fn(&[TensorFuture]) -> TensorFuture;

/// A function of float64 tensors: name, shapes of the operands, how they are prepared, the
/// function, and whether it is smooth enough for second derivatives.
pub struct Case(pub &'static str, pub &'static [&'static [usize]], pub Kind, pub Call, pub bool);

/// Values at which a function is smooth.
#[derive(Clone, Copy, PartialEq)]
pub enum Kind {
    Any,
    Positive,
    /// At least 0.3 from zero.
    Off,
    /// All different, a quarter apart.
    Apart,
}
use Kind::*;

fn index(x: &TensorFuture, values: &[i64], shape: &[usize]) -> TensorFuture {
    x.device().from_vec(values.to_vec(), shape)
}

pub const ONE: &[&[usize]] = &[&[2, 3]];
pub const TWO: &[&[usize]] = &[&[2, 3], &[2, 3]];
pub const SPREAD: &[&[usize]] = &[&[2, 1, 3], &[4, 1]];
const SCATTERED: &[&[usize]] = &[&[3, 2], &[4, 3]];

/// Places that are named more than once; of the second operand a part is read.
fn put(x: &[TensorFuture], mode: ScatterMode) -> TensorFuture {
    x[0].scatter_reduce(0, index(&x[0], &[0, 2, 2, 2, 2, 0, 2, 1], &[4, 2]), &x[1], mode)
}

fn rows(x: &TensorFuture) -> TensorFuture {
    index(x, &[2, 2, 0, 1], &[2, 2])
}

/// A zero in one row, two in the other.
fn zeros(x: &TensorFuture) -> TensorFuture {
    x.device().from_vec(vec![1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 1.0], [2, 4])
}

/// Two heads share keys, of which some are padding.
fn grouped(x: &[TensorFuture]) -> TensorFuture {
    let options = AttentionOptions::default().grouped(true).lengths(index(&x[0], &[3, 9], &[2]));
    x[0].scaled_dot_product_attention(&x[1], &x[2], options)
}

fn backwards() -> Index {
    Index::from(3..0).step(-2)
}
pub fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    all.extend([
        Case("floor_divide", TWO, Apart, |x| x[0].floor_divide(&x[1] + 40.0) + &x[0], false),
        Case("trunc_divide", ONE, Off, |x| x[0].trunc_divide(0.1234) * &x[0], false),
        Case("x + 2", ONE, Any, |x| &x[0] + 2.0, true),
        Case("2 - x", ONE, Any, |x| 2.0 - &x[0], true),
        Case("3 x", ONE, Any, |x| 3.0 * &x[0], true),
        Case("x / 3", ONE, Any, |x| &x[0] / 3.0, true),
        Case("3 / x", ONE, Off, |x| 3.0 / &x[0], true),
        Case("x ^ 3", ONE, Any, |x| x[0].pow(3), true),
        Case("2.5 ^ x", ONE, Any, |x| Scalar::from(2.5).pow(&x[0]), true),
        Case("atan2 from 2", ONE, Any, |x| Scalar::from(2).atan2(&x[0]), true),
        Case("fmod of 7", ONE, Off, |x| Scalar::from(7).fmod(&x[0] * 10.0), false),
        Case("x ^ 2.5", ONE, Positive, |x| x[0].pow(2.5), true),
        Case("clamp", ONE, Apart, |x| x[0].clamp(-0.6, 0.6), false),
        Case("x % 0.7", ONE, Apart, |x| &x[0] % 10.0, false),
        Case("where", TWO, Any, |x| x[0].gt(0.0).where_cond(&x[0], &x[1]), true),
        Case("masked_fill", ONE, Any, |x| x[0].masked_fill(x[0].gt(0.2), 5.0), true),
        Case("lerp, fused", TWO, Any, |x| (&x[0] * 0.3 + &x[1] * 0.7).tanh() * &x[0], true),
        Case("softmax", ONE, Any, |x| x[0].softmax(-1), true),
        Case("softmax 0", ONE, Any, |x| x[0].softmax(0), true),
        Case("log_softmax", ONE, Any, |x| x[0].log_softmax(1), true),
        Case("logsumexp", ONE, Any, |x| x[0].logsumexp(1), true),
        Case("logsumexp kept", ONE, Any, |x| x[0].logsumexp_keepdim(0), true),
        Case(
            "layer_norm",
            &[&[3, 4], &[4], &[4]],
            Any,
            |x| x[0].layer_norm(&x[1], &x[2], 1e-3),
            true,
        ),
        Case(
            "layer_norm weighted",
            &[&[3, 4], &[4]],
            Any,
            |x| x[0].layer_norm_weighted(&x[1], 1e-3),
            true,
        ),
        Case("layer_norm plain", &[&[2, 3, 4]], Any, |x| x[0].layer_norm_plain(2, 1e-3), true),
        Case("rms_norm", &[&[3, 4], &[4]], Any, |x| x[0].rms_norm(&x[1], 1e-3), true),
        Case("rms_norm plain", &[&[3, 4]], Any, |x| x[0].rms_norm_plain(1, 1e-3), true),
    ]);
    all.extend([
        Case("mean of all", ONE, Any, |x| x[0].mean_all(), true),
        Case("min kept", ONE, Apart, |x| x[0].min_keepdim(0), true),
        Case("prod of all", ONE, Off, |x| x[0].prod_all(), true),
        Case("var", ONE, Any, |x| x[0].var(1, 1.0), true),
        Case("std", ONE, Any, |x| x[0].std_all(0.0), true),
        Case("norm", ONE, Off, |x| x[0].norm(2.0, 1), true),
        Case("cumsum", ONE, Any, |x| x[0].cumsum(1), true),
        Case("matmul", &[&[2, 3], &[3, 4]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul of itself", &[&[3, 3]], Any, |x| x[0].matmul(&x[0]), true),
        Case("matmul batched", &[&[2, 2, 3], &[2, 3, 2]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul broadcast", &[&[3, 2, 3], &[3, 2]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul broadcast left", &[&[2, 3], &[2, 1, 3, 2]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul vectors", &[&[3], &[3]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul row", &[&[3], &[2, 3, 2]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul column", &[&[2, 2, 3], &[3]], Any, |x| x[0].matmul(&x[1]), true),
        Case("matmul of views", &[&[3, 2], &[3, 4]], Any, |x| x[0].t().matmul(&x[1]), true),
        Case(
            "nll_loss, one ignored",
            ONE,
            Any,
            |x| x[0].nll_loss(index(&x[0], &[1, -100], &[2]), futensor::Reduction::Sum),
            true,
        ),
        Case("matmul transposed", &[&[3, 2], &[4, 3]], Any, |x| x[0].t().matmul(x[1].t()), true),
        Case(
            "conv1d",
            &[&[2, 2, 5], &[3, 2, 3], &[3]],
            Any,
            |x| x[0].conv1d(&x[1], Some(&x[2]), ()),
            true,
        ),
        Case("conv2d", &[&[2, 2, 4, 5], &[2, 1, 2, 3], &[2]], Any, conv, true),
        Case("max_pool2d", &[&[1, 1, 4, 4]], Apart, |x| x[0].max_pool2d(2), true),
        Case("avg_pool2d", &[&[1, 2, 4, 4]], Any, |x| x[0].avg_pool2d(2), true),
    ]);
    all.extend([
        Case("reshape", ONE, Any, |x| x[0].reshape([3, 2]).square(), true),
        Case("permute", &[&[2, 3, 4]], Any, |x| x[0].permute([2, 0, 1]).exp(), true),
        Case("expand", &[&[2, 1]], Any, |x| x[0].expand([3, 2, 4]).sin(), true),
        Case("narrow", ONE, Any, |x| x[0].narrow(1, 1, 2).exp(), true),
        Case("steps", &[&[5, 4]], Any, |x| x[0].i((Index::ALL.step(-2), 1..3)).exp(), true),
        Case("position", &[&[3, 4]], Any, |x| x[0].i((1, ..)).exp(), true),
        Case("flip", ONE, Any, |x| x[0].flip([0, 1]).exp(), true),
        Case("roll", ONE, Any, |x| x[0].roll([1, -1], [0, 1]).exp(), true),
        Case("repeat", ONE, Any, |x| x[0].repeat([2, 1, 2]).exp(), true),
        Case("cat", TWO, Any, |x| cat(&[&x[0], &x[1], &x[0]], 1).exp(), true),
        Case("stack", TWO, Any, |x| stack(&[&x[0], &x[1]], 1).exp(), true),
        Case(
            "split",
            &[&[5, 2]],
            Any,
            |x| x[0].split(2, 0).iter().map(|p| p.exp().sum_all()).reduce(|a, b| a * b).unwrap(),
            true,
        ),
        Case(
            "slice_assign",
            &[&[3, 4], &[2]],
            Any,
            |x| x[0].clone().slice_assign((1, 1..3), &x[1]).exp(),
            true,
        ),
        Case("tril", &[&[3, 3]], Any, |x| x[0].tril(0).exp(), true),
        Case("triu", &[&[3, 3]], Any, |x| x[0].triu(1).exp(), true),
        Case("pad", ONE, Any, |x| x[0].pad([1, 2], 0.5).exp(), true),
        Case(
            "gather",
            &[&[3, 2]],
            Any,
            |x| x[0].gather(0, index(&x[0], &[0, 2, 2, 1], &[2, 2])).exp(),
            true,
        ),
        Case(
            "index_select",
            &[&[3, 2]],
            Any,
            |x| x[0].index_select(0, index(&x[0], &[2, 0, 2], &[3])).exp(),
            true,
        ),
        Case(
            "embedding",
            &[&[4, 2]],
            Any,
            |x| x[0].embedding(index(&x[0], &[3, 0, 3, 1], &[2, 2])).exp(),
            true,
        ),
        Case(
            "scatter_add",
            &[&[3, 2], &[2, 2]],
            Any,
            |x| x[0].scatter_add(0, index(&x[0], &[0, 2, 2, 2], &[2, 2]), &x[1]).exp(),
            true,
        ),
        Case("scatter", SCATTERED, Any, |x| put(x, ScatterMode::Assign).exp(), true),
        Case(
            "index_copy",
            &[&[3, 4], &[3, 3]],
            Any,
            |x| x[0].clone().index_copy(1, index(&x[0], &[2, 0, 2], &[3]), &x[1]).exp(),
            true,
        ),
        Case("scatter_reduce sum", SCATTERED, Any, |x| put(x, ScatterMode::Sum).exp(), true),
        Case("scatter_reduce prod", SCATTERED, Off, |x| put(x, ScatterMode::Prod).sin(), true),
        Case("scatter_reduce max", SCATTERED, Apart, |x| put(x, ScatterMode::Max).exp(), true),
        Case("scatter_reduce min", SCATTERED, Apart, |x| put(x, ScatterMode::Min).exp(), true),
        Case("gather from the end", &[&[3, 2]], Any, |x| x[0].gather(0, rows(&x[0])).exp(), true),
        Case("cumprod", &[&[2, 4]], Off, |x| x[0].cumprod(1).sin(), true),
        Case("cumprod_with", &[&[4, 2]], Off, |x| x[0].cumprod_with(0, true, true).sin(), true),
        Case(
            "cumprod beside a zero",
            &[&[2, 4]],
            Off,
            |x| (&x[0] * zeros(&x[0])).cumprod(1).sin(),
            false,
        ),
        Case("cumsum_with", &[&[2, 4]], Any, |x| x[0].cumsum_with(1, true, true).exp(), true),
        Case("max_initial", &[&[2, 4]], Apart, |x| x[0].max_initial(1, 0.1).exp(), true),
        Case("min_initial", &[&[2, 4]], Apart, |x| x[0].min_initial_all(-0.2).exp(), true),
        Case(
            "a list of indices",
            &[&[3, 4]],
            Any,
            |x| x[0].i(vec![Index::At(-1), backwards()]).exp(),
            true,
        ),
        Case("sort", ONE, Apart, |x| x[0].sort(1, true) * &x[0], true),
        Case("topk", ONE, Apart, |x| x[0].topk(2, 1, false).0.exp(), true),
        Case("max_with_positions", ONE, Apart, |x| x[0].max_with_positions(1).0.exp(), true),
        Case(
            "sort_with_positions",
            ONE,
            Apart,
            |x| x[0].sort_with_positions(0, true).0.exp(),
            true,
        ),
        Case("top_p", ONE, Positive, |x| x[0].top_p(0.99).exp(), true),
        Case(
            "rope",
            &[&[2, 6], &[3], &[2, 3]],
            Any,
            |x| x[0].rope(&x[1], &x[2], false).exp(),
            true,
        ),
        Case(
            "rope of neighbours",
            &[&[4], &[2], &[2]],
            Any,
            |x| x[0].rope(&x[1], &x[2], true).sin(),
            true,
        ),
        Case(
            "attention of groups",
            &[&[2, 4, 2, 3], &[2, 2, 4, 3], &[2, 2, 4, 2]],
            Any,
            grouped,
            true,
        ),
        Case("casts", ONE, Any, |x| x[0].to_dtype(DType::F64).exp().to_dtype(DType::F64), true),
        Case("mse_loss", TWO, Any, |x| x[0].mse_loss(&x[1], ()), true),
        Case(
            "cross_entropy",
            ONE,
            Any,
            |x| x[0].cross_entropy(index(&x[0], &[2, 0], &[2]), ()),
            true,
        ),
        Case(
            "bce_with_logits",
            ONE,
            Any,
            |x| x[0].bce_with_logits(x[0].device().full_dtype([2, 3], 0.3, DType::F64), ()),
            true,
        ),
        Case(
            "attention",
            &[&[2, 3, 4], &[2, 5, 4], &[2, 5, 3]],
            Any,
            |x| x[0].scaled_dot_product_attention(&x[1], &x[2], ()),
            true,
        ),
        Case(
            "checkpoint",
            TWO,
            Any,
            |x| checkpoint(|x| (&x[0] * &x[1]).tanh().exp(), &[&x[0], &x[1]]),
            true,
        ),
        Case("checkpoint, capturing", TWO, Any, captured, true),
        Case("custom", ONE, Any, |x| custom(Cube, &[&x[0]]), true),
        Case("a deep mixture", &[&[3, 4], &[4, 3], &[3]], Any, deep, true),
    ]);
    all.extend([
        Case("conv_transpose2d", &[&[1, 4, 2, 3], &[4, 1, 2, 2], &[2]], Any, transposed, true),
        Case("var", &[&[3, 4]], Any, |x| x[0].var(1, 1.0).exp(), true),
        Case("std", &[&[3, 4]], Any, |x| x[0].std_all(0.0).exp(), true),
        Case("norm", ONE, Off, |x| x[0].norm(3.0, 0).exp(), true),
        Case("logsumexp", &[&[2, 3, 2]], Any, |x| x[0].logsumexp([0, 2]).exp(), true),
        Case(
            "batch_norm",
            &[&[3, 2, 2], &[2], &[2]],
            Any,
            |x| x[0].batch_norm_train(Some(&x[1]), Some(&x[2]), 1e-3).0.exp(),
            true,
        ),
        Case("elu", ONE, Off, |x| x[0].elu(0.7), true),
        Case("leaky_relu", ONE, Off, |x| x[0].leaky_relu(0.1).square(), true),
        Case("pad_mode", ONE, Any, |x| x[0].pad_mode([2, 1], PadMode::Reflect).exp(), true),
        Case(
            "einsum",
            &[&[2, 3], &[3, 2, 2]],
            Any,
            |x| einsum("ij,jkk->ki", &[&x[0], &x[1]]).exp(),
            true,
        ),
        Case(
            "addmm",
            &[&[2], &[3, 2], &[2, 2]],
            Any,
            |x| x[0].addmm(&x[1], &x[2], 0.5, 2.0).exp(),
            true,
        ),
        Case(
            "index",
            &[&[3, 4]],
            Any,
            |x| {
                x[0].index(&[
                    Some(&index(&x[0], &[0, -1, 0], &[3])),
                    Some(&index(&x[0], &[1, 2, 1], &[3])),
                ])
                .exp()
            },
            true,
        ),
        Case("cosine_similarity", TWO, Any, |x| x[0].cosine_similarity(&x[1], 1, 1e-8).exp(), true),
        Case("cdist", &[&[2, 3], &[3, 3]], Apart, |x| x[0].cdist(&x[1], 3.0).exp(), true),
        Case(
            "index_put",
            &[&[3, 4], &[3]],
            Any,
            |x| {
                let (i, j) = (index(&x[0], &[0, -1, 0], &[3]), index(&x[0], &[1, 2, 1], &[3]));
                x[0].index_put(&[Some(&i), Some(&j)], &x[1], true).exp()
            },
            true,
        ),
        Case(
            "grid_sample",
            &[&[1, 2, 3, 3], &[1, 2, 2, 2]],
            Any,
            |x| x[0].grid_sample(&x[1] * 0.3, ()).exp(),
            true,
        ),
        Case(
            "grid_sample, cubic",
            &[&[1, 2, 3, 3], &[1, 2, 2, 2]],
            Any,
            |x| {
                let options = GridOptions::default().padding(GridPadding::Reflection).cubic(true);
                x[0].grid_sample(&x[1] * 0.9, options).sin()
            },
            true,
        ),
        Case("unfold_dim", &[&[2, 5]], Any, |x| x[0].unfold_dim(1, 3, 1).exp(), true),
        Case(
            "grid_sample, volumes",
            &[&[1, 2, 2, 3, 2], &[1, 1, 2, 2, 3]],
            Any,
            |x| x[0].grid_sample(&x[1] * 0.3, ()).exp(),
            true,
        ),
        Case(
            "adaptive_avg_pool2d",
            &[&[2, 5, 4]],
            Any,
            |x| x[0].adaptive_avg_pool2d(3).exp(),
            true,
        ),
        Case("huber_loss", TWO, Any, |x| x[0].huber_loss(&x[1], 0.4, ()), true),
        Case("mish", ONE, Any, |x| x[0].mish(), true),
        Case("hardswish", ONE, Any, |x| x[0].hardswish(), true),
        Case("selu", ONE, Off, |x| x[0].selu(), true),
        Case("prelu", &[&[2, 3], &[3]], Off, |x| x[0].prelu(&x[1]).square(), true),
        Case("adaptive_max_pool1d", &[&[2, 5]], Apart, |x| x[0].adaptive_max_pool1d(3).exp(), true),
        Case(
            "group_norm",
            &[&[2, 4, 2]],
            Any,
            |x| x[0].group_norm(2, None, None, 1e-3).exp(),
            true,
        ),
        Case("unfold", &[&[1, 1, 3, 3]], Any, |x| x[0].unfold(2, ()).exp(), true),
        Case("fold", &[&[1, 4, 4]], Any, |x| x[0].fold(3, 2, ()).exp(), true),
        Case(
            "ctc_loss",
            &[&[4, 1, 3]],
            Any,
            |x| {
                let one = |n: i64| index(&x[0], &[n], &[1]);
                let labels = index(&x[0], &[1, 2], &[1, 2]);
                x[0].ctc_loss(labels, one(4), one(2), 0, false, ()).exp()
            },
            true,
        ),
        Case("avg_pool2d padded", &[&[1, 2, 3, 4]], Any, |x| x[0].avg_pool2d(padded()).exp(), true),
        Case(
            "conv1d, sides",
            &[&[2, 2, 4], &[3, 2, 3]],
            Any,
            |x| x[0].conv1d(&x[1], None, causal()).exp(),
            true,
        ),
        Case("conv3d", &[&[1, 2, 3, 2, 3], &[2, 2, 2, 2, 2], &[2]], Any, volume, true),
        Case("conv_transpose3d", &[&[1, 2, 2, 1, 2], &[2, 1, 2, 2, 2]], Any, transposed3, true),
        Case("max_pool1d", &[&[2, 5]], Apart, |x| x[0].max_pool1d(dilated(2)).square(), true),
        Case("max_pool3d", &[&[1, 3, 3, 2]], Apart, |x| x[0].max_pool3d(dilated(2)).square(), true),
        Case("avg_pool1d", &[&[2, 5]], Any, |x| x[0].avg_pool1d(dilated(2)).exp(), true),
        Case("avg_pool3d", &[&[1, 3, 3, 2]], Any, |x| x[0].avg_pool3d(dilated(2)).exp(), true),
        Case("interpolate", &[&[1, 1, 2, 3]], Any, |x| x[0].interpolate([3, 2]).exp(), true),
        Case(
            "interpolate, linear",
            &[&[1, 1, 2, 3]],
            Any,
            |x| {
                x[0].interpolate(InterpolateOptions::scale(1.6).mode(InterpolateMode::Linear)).exp()
            },
            true,
        ),
        Case(
            "interpolate, cubic",
            &[&[1, 1, 2, 3]],
            Any,
            |x| {
                x[0].interpolate(InterpolateOptions::size([3, 4]).mode(InterpolateMode::Cubic))
                    .exp()
            },
            true,
        ),
    ]);
    all
}

fn transposed(x: &[TensorFuture]) -> TensorFuture {
    let options = ConvOptions::default().stride([2, 1]).output_padding([1, 0]).groups(2);
    x[0].conv_transpose2d(&x[1], Some(&x[2]), options).exp()
}

fn causal() -> ConvOptions {
    ConvOptions::default().padding_sides(2, 0)
}

fn volume(x: &[TensorFuture]) -> TensorFuture {
    let options = ConvOptions::default().stride([2, 1, 1]).padding_sides([1, 0, 0], [0, 1, 0]);
    x[0].conv3d(&x[1], Some(&x[2]), options.dilation([1, 2, 1])).exp()
}

fn transposed3(x: &[TensorFuture]) -> TensorFuture {
    let options = ConvOptions::default().stride([1, 2, 1]).output_padding([0, 1, 0]);
    x[0].conv_transpose3d(&x[1], None, options.padding_sides([1, 0, 0], [0, 0, 1])).exp()
}

fn dilated(kernel: impl Dims) -> PoolOptions {
    PoolOptions::new(kernel).stride(1).dilation(2).padding_sides(0, 1).count_padding(false)
}

fn padded() -> PoolOptions {
    PoolOptions::new([2, 3]).stride([2, 1]).padding([1, 1]).ceil(true).count_padding(false)
}

fn conv(x: &[TensorFuture]) -> TensorFuture {
    x[0].conv2d(&x[1], Some(&x[2]), ConvOptions::default().stride([1, 2]).padding([1, 0]).groups(2))
}

fn captured(x: &[TensorFuture]) -> TensorFuture {
    let own = &x[1] * 2.0;
    let inner = own.clone();
    checkpoint(move |x| (&x[0] * &inner).sin() + &inner, &[&x[0]]) * own
}

fn deep(x: &[TensorFuture]) -> TensorFuture {
    let h = (x[0].matmul(&x[1]) + &x[2]).gelu();
    let h = (&h + h.mean_keepdim(1)).layer_norm_plain(1, 1e-2);
    (h.matmul(x[1].t()).tanh() * &x[0]).softmax(-1).square().sum(0)
}

/// An op of a user's own, with a gradient of his own.
struct Cube;

impl Operation for Cube {
    fn name(&self) -> &str {
        "cube"
    }
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        Ok(inputs[0].clone())
    }
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs()[0].to_vec::<f64>().ok_or_else(|| Refusal::dtype("float64 only"))?;
        run.output().fill_from(x.into_iter().map(|x| x * x * x));
        Ok(())
    }
    fn gradient_needs(&self, _: &[bool]) -> Needs {
        Needs::inputs(&[0])
    }
    fn gradient(&self, call: &mut Backward<'_>) -> Result<(), Refusal> {
        call.give(0, |call| call.input(0).square() * 3.0 * call.upstream());
        Ok(())
    }
}
