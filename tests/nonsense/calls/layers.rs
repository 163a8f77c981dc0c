//! Products, attention, convolutions, pooling, losses.

use super::{Call, none};
use futensor::nn::Module;
use futensor::op_options::{GridOptions, GridPadding};
use futensor::*;

pub fn all() -> Vec<Call> {
    calls![
        ("losses of distances", |x| vec![
            x.l1_loss(x, ()),
            x.l1_loss(x.device().zeros([7, 5]), Reduction::None),
            x.smooth_l1_loss(x, -1.0, ()),
            x.smooth_l1_loss(x, f64::NAN, ()),
            x.smooth_l1_loss(x, f64::INFINITY, Reduction::Sum),
            x.huber_loss(x, 0.0, ()),
            x.huber_loss(x, 1e300, Reduction::None),
            x.kl_div(x, true, ()),
            x.kl_div(x, false, Reduction::None),
            x.binary_cross_entropy(x, ()),
            x.binary_cross_entropy(x, LossOptions::default().weight(x.device().zeros([7]))),
            x.cosine_embedding_loss(x, x, f64::NAN, ()),
            x.cosine_embedding_loss(x, x.device().ones([2]), 0.0, Reduction::None)
        ]),
        ("ctc_loss", |x| {
            let (n, one) = (x.dims().get(1).copied().unwrap_or(1), x.device().full([1], 1i64));
            let labels = x.device().full([n, 2], 1i64);
            let of = |k: i64| x.device().full([n], k);
            vec![
                x.ctc_loss(x, x, x, 0, false, ()),
                x.ctc_loss(&labels, of(1), of(2), 0, true, ()),
                x.ctc_loss(&labels, of(i64::MAX), of(i64::MIN), 1, false, Reduction::None),
                x.ctc_loss(&labels, of(1), of(77), usize::MAX, false, ()),
                x.ctc_loss(x.device().full([n, 2], 99i64), of(1), of(2), 0, false, ()),
                x.ctc_loss(&one, &one, &one, 0, false, ()),
            ]
        }),
        ("norms of groups", |x| vec![
            x.group_norm(0, None, None, 1e-5),
            x.group_norm(1, Some(x), None, f64::NAN),
            x.group_norm(usize::MAX, None, None, 0.0),
            x.instance_norm(None, None, -1.0),
            x.instance_norm(Some(&x.device().ones([2])), None, 1e-5)
        ]),
        ("adaptive", |x| vec![
            x.adaptive_avg_pool1d(2),
            x.adaptive_avg_pool2d([1, 2]),
            x.adaptive_avg_pool3d(0),
            x.adaptive_max_pool1d(-1),
            x.adaptive_max_pool2d([1, 2, 3]),
            x.adaptive_max_pool3d(2),
            x.adaptive_avg_pool2d(())
        ]),
        ("pixels", |x| vec![
            x.pixel_shuffle(0),
            x.pixel_shuffle(1),
            x.pixel_shuffle(usize::MAX),
            x.pixel_unshuffle(0),
            x.pixel_unshuffle(3),
            x.pixel_unshuffle(usize::MAX)
        ]),
        ("patches", |x| vec![
            x.unfold(2, ()),
            x.unfold([1, 1], ConvOptions::default().padding(1).stride(2)),
            x.unfold(usize::MAX, ()),
            x.unfold(0, ()),
            x.unfold([1, 1, 1], ConvOptions::default().dilation(usize::MAX)),
            x.fold(3, 2, ()),
            x.fold([3, usize::MAX], 1, ()),
            x.fold(0, 1, ()),
            x.fold([3, 3], [1, 1], ConvOptions::default().padding(1))
        ]),
        ("grid_sample", |x| vec![
            x.grid_sample(x, ()),
            x.grid_sample(x.device().full([1, 2, 2, 2], f32::NAN).to_dtype(x.dtype()), ()),
            x.grid_sample(
                x.device().full([2, 1, 1, 2], 1e30).to_dtype(x.dtype()),
                GridOptions::default().padding(GridPadding::Reflection)
            ),
            x.grid_sample(
                x.device().full([2, 1, 1, 2], -7.0).to_dtype(x.dtype()),
                GridOptions::default().padding(GridPadding::Border).nearest(true)
            ),
            x.grid_sample(
                x.device().full([2, 1, 1, 2], f64::NEG_INFINITY).to_dtype(x.dtype()),
                GridOptions::default().padding(GridPadding::Reflection).cubic(true)
            ),
            x.grid_sample(
                x.device().full([1, 2, 2, 2], 1e30).to_dtype(x.dtype()),
                GridOptions::default().cubic(true)
            )
        ]),
        ("interpolate antialias", |x| vec![
            x.interpolate(InterpolateOptions::size(2).antialias(true)),
            x.interpolate(InterpolateOptions::size(2).mode(InterpolateMode::Area)),
            x.interpolate(InterpolateOptions::size(2).mode(InterpolateMode::Cubic).antialias(true))
        ]),
        ("dropout", |x| vec![
            x.dropout(0.0),
            x.dropout(1.0),
            x.dropout(2.0),
            x.dropout(f64::NAN),
            x.dropout(0.3),
            x.dropout_with(f64::INFINITY, &Generator::new(1)),
            x.dropout_with(0.3, &Generator::new(1))
        ]),
        ("linear", |x| vec![
            x.linear(x, None),
            x.linear(x, Some(x)),
            x.linear(x.device().ones([2, 3]), Some(x)),
            x.linear(x.device().ones([0, 0]), None)
        ]),
        ("matmul", |x| vec![
            x.matmul(x),
            x.matmul(x.t()),
            x.bmm(x),
            x.mm(x),
            x.matmul(x.device().ones([3])),
            x.matmul(x.device().ones([3, 0])),
            x.matmul(x.device().ones([0, 0]))
        ]),
        ("addmm", |x| vec![x.addmm(x, x.t(), 1.0, f64::NAN)]),
        ("rope", |x| vec![
            x.rope(x, x, true),
            x.rope(x.device().ones([]), x.device().zeros([1]), false),
            x.rope(x.device().ones([2]), x, true),
            x.unsqueeze(-1).expand([-1, 0]).rope(x.device().ones([0]), x.device().ones([0]), false)
        ]),
        ("grouped", |x| vec![
            x.scaled_dot_product_attention(x, x, AttentionOptions::default().grouped(true)),
            x.reshape([1, 1, 1, -1]).scaled_dot_product_attention(
                x.reshape([1, 1, 1, -1]),
                x.reshape([1, 1, 1, -1]),
                AttentionOptions::default()
                    .grouped(true)
                    .mask(x)
                    .lengths(x.device().full([1], i64::MIN))
            ),
            x.scaled_dot_product_attention(x, x, AttentionOptions::default().lengths(x)),
            x.scaled_dot_product_attention(
                x,
                x,
                AttentionOptions::default().lengths(x.device().full([], i64::MAX))
            ),
            x.scaled_dot_product_attention(
                x,
                x,
                AttentionOptions::default()
                    .lengths(x.device().full([1, 1, 1, 1, 1], 2))
                    .dropout(0.5)
            )
        ]),
        ("paged_attention", |x| vec![
            x.paged_attention(x, x, x, x, ()),
            x.reshape([1, 1, 1, -1]).paged_attention(
                x.reshape([1, 1, 1, -1]),
                x.reshape([1, 1, 1, -1]),
                x.device().full_dtype([1, 1], -1, DType::I64),
                x.device().full_dtype([1], 1, DType::I64),
                ()
            ),
            x.reshape([1, 1, -1]).paged_attention(
                x.reshape([1, 1, 1, -1]),
                x.reshape([1, 1, 1, -1]),
                x.device().zeros_dtype([1, 1], DType::I64),
                x.device().full_dtype([1], i64::MAX, DType::I64),
                ()
            ),
            x.paged_attention(x, x, x, x, AttentionOptions::default().mask(x))
        ]),
        ("sdpa", |x| vec![
            x.scaled_dot_product_attention(x, x, AttentionOptions::default()),
            x.scaled_dot_product_attention(x, x, AttentionOptions::default().causal(true).mask(x)),
            x.scaled_dot_product_attention(x, x, AttentionOptions::default().dropout(5.0)),
            x.scaled_dot_product_attention(x, x, AttentionOptions::default().window(1)),
            x.scaled_dot_product_attention(
                x,
                x,
                AttentionOptions::default().mask(x.device().zeros_dtype([3], DType::Bool))
            )
        ]),
        ("conv", |x| vec![
            x.conv1d(x, None, ()),
            x.conv2d(x, None, ()),
            x.conv1d(x, Some(x), ConvOptions::default().stride(0)),
            x.conv2d(x, None, ConvOptions::default().groups(0)),
            x.conv2d(x, None, ConvOptions::default().padding(isize::MAX)),
            x.conv2d(x, None, ConvOptions::default().dilation(isize::MAX)),
            x.conv2d(x, None, ConvOptions::default().stride([1, 2, 3])),
            x.conv_transpose1d(x, None, ()),
            x.conv_transpose2d(x, None, ConvOptions::default().stride(usize::MAX / 2))
        ]),
        ("conv layers", |x| {
            let conv = |i, o, groups| {
                nn::Conv2d::new(i, o, 3, ConvOptions::default().groups(groups), &x.device())
                    .forward(x)
            };
            let kernel =
                |k: &[isize]| nn::Conv2d::without_bias(1, 1, k, (), &x.device()).forward(x);
            vec![
                conv(1, 1, 0),
                conv(3, 2, 2),
                conv(2, 3, 2),
                conv(usize::MAX, 2, 1),
                conv(0, 0, 1),
                kernel(&[]),
                kernel(&[0]),
                kernel(&[-3, 3]),
                kernel(&[1, 2, 3]),
                kernel(&[isize::MAX]),
            ]
        }),
        ("attention layers", |x| {
            let layer = |w, h| nn::MultiheadAttention::new(w, h, &x.device());
            let last = x.dims().last().copied().unwrap_or(4);
            let (one, three) = (layer(last, 1), layer(3, 3));
            vec![
                layer(8, 0).forward(x),
                layer(8, 3).forward(x),
                layer(usize::MAX, 1).forward(x),
                layer(usize::MAX / 3, 1).forward(x),
                layer(0, 1).forward(x),
                one.forward(x),
                three.forward(x),
                one.forward_with(x, AttentionOptions::default().mask(x)),
                one.forward_with(
                    x,
                    AttentionOptions::default().mask(x).causal(true).scale(f64::NAN),
                ),
                one.forward_with(
                    x,
                    AttentionOptions::default().mask(x.device().zeros_dtype([9, 1], DType::Bool)),
                ),
                three.attend(x, &x.device().ones([4, 3]), x, ()),
                three.dropout(5.0).forward(&x.device().ones([2, 3])),
                nn::TransformerEncoderLayer::new(last, 1, 0, &x.device()).forward(x),
                nn::TransformerEncoderLayer::new(last, 2, 3, &x.device())
                    .norm_first(true)
                    .forward(x),
            ]
        }),
        ("windows", |x| {
            let (one, three) = (x.device().ones([1, 1, 1, 1]), x.device().ones([1, 1, 3, 3]));
            vec![
                x.conv2d(&one, None, ()),
                x.conv2d(&three, None, ConvOptions::default().padding(1).stride(2)),
                x.conv_transpose2d(&three, None, ConvOptions::default().stride(3)),
                x.conv_transpose2d(
                    &one,
                    None,
                    ConvOptions::default().stride(i32::MAX).dilation(i32::MAX),
                ),
                x.conv_transpose1d(
                    x.device().ones([1, 1, 3]),
                    None,
                    ConvOptions::default().stride(7),
                ),
                x.max_pool2d(PoolOptions::new(3).padding(1).stride(2).ceil(true)),
                x.avg_pool2d(PoolOptions::new([2, 3]).padding([1, 0])),
            ]
        }),
        ("usize::MAX", |x| vec![
            x.reshape([usize::MAX, 2]),
            x.reshape(usize::MAX),
            x.expand([usize::MAX, 2, 3]),
            x.permute([usize::MAX, 0]),
            x.squeeze(usize::MAX),
            x.flip(usize::MAX),
            x.roll(usize::MAX, 0),
            x.roll(1, usize::MAX),
            x.repeat([usize::MAX, 1, 1, 1, 1]),
            x.pad([usize::MAX, 1], 0),
            x.pad_mode([1, usize::MAX], PadMode::Replicate),
            x.narrow(0, usize::MAX, usize::MAX),
            x.narrow(0, 0, usize::MAX),
            x.i(0..usize::MAX),
            x.i(usize::MAX..),
            x.i(..=usize::MAX),
            x.clamp(usize::MAX, usize::MAX),
            x + usize::MAX,
            x.mean([0, usize::MAX]),
            x.unsqueeze(isize::MAX)
        ]),
        ("lazy layer", |x| {
            let layer = nn::LazyLinear::new(2);
            vec![
                layer.forward(&(x + x.device().ones([7, 1, 5]))),
                layer.forward(x),
                layer.forward(&x.device().ones([3, 4])),
            ]
        }),
        ("pool", |x| vec![
            x.max_pool2d(1),
            x.max_pool2d(0),
            x.max_pool2d(usize::MAX),
            x.avg_pool2d(2),
            x.avg_pool2d(PoolOptions::new(2).stride(0)),
            x.avg_pool2d(PoolOptions::new(2).divisor(0)),
            x.max_pool2d(PoolOptions::new(()))
        ]),
        ("pool big", |x| vec![x.max_pool2d(PoolOptions::new(isize::MAX).padding(isize::MAX / 2))]),
        ("pool dil", |x| vec![x.max_pool2d(PoolOptions::new(isize::MAX).dilation(isize::MAX))]),
        ("pool ceil", |x| vec![x.max_pool2d(PoolOptions::new(1).stride(isize::MAX).ceil(true))]),
        ("conv sides", |x| vec![
            x.conv3d(x, None, ()),
            x.conv_transpose3d(x, None, ()),
            x.conv1d(x, None, ConvOptions::default().padding_sides(isize::MAX, 0)),
            x.conv2d(x, None, ConvOptions::default().padding_sides(-1, 1)),
            x.conv3d(x, Some(x), ConvOptions::default().padding_sides([1, 2], 0)),
            x.conv_transpose3d(x, None, ConvOptions::default().output_padding(9)),
            x.conv_transpose1d(x, None, ConvOptions::default().padding_sides(i32::MAX, i32::MAX)),
            x.conv_transpose2d(x, None, ConvOptions::default().padding_sides((), ()))
        ]),
        ("convs of everything", |x| {
            let none = x.device().zeros_dtype([0, 1, usize::MAX, 4], x.dtype());
            let w = x.device().zeros_dtype([1, 1, 2, 2], x.dtype());
            let far =
                || ConvOptions::default().stride(i32::MAX).dilation(i32::MAX).padding(i32::MAX);
            vec![
                none.conv2d(&w, None, ()),
                none.conv2d(&w, None, far()),
                none.conv_transpose2d(&w, None, ()),
                none.conv_transpose2d(&w, None, far()),
                none.conv_transpose2d(&w, None, far().output_padding(i32::MAX)),
                none.conv2d(&w, None, ConvOptions::default().groups(usize::MAX)),
                none.conv_transpose2d(&w, None, ConvOptions::default().groups(usize::MAX)),
                w.conv2d(&none, None, ()),
                none.i((.., .., .., 0)).conv1d(w.i((.., .., 0)), None, far()),
            ]
        }),
        ("pools", |x| vec![
            x.max_pool1d(1),
            x.max_pool1d(0),
            x.max_pool1d([2, 2]),
            x.max_pool3d(2),
            x.max_pool3d([2, 1]),
            x.avg_pool1d(usize::MAX),
            x.avg_pool3d(PoolOptions::new(2).padding(1)),
            x.avg_pool1d(PoolOptions::new(2).dilation(99)),
            x.max_pool1d(PoolOptions::new(2).padding_sides(2, 0)),
            x.max_pool1d(PoolOptions::new(2).dilation(9).padding(9)),
            x.avg_pool1d(PoolOptions::new(3).padding_sides((), ())),
            x.max_pool1d_with_positions(PoolOptions::new(2).ceil(true)).1,
            x.max_pool2d_with_positions(PoolOptions::new(2).dilation(9)).1,
            x.max_pool3d_with_positions(7).1
        ]),
        ("pools of everything", |x| {
            let none = x.device().zeros_dtype([0, 1, usize::MAX, 4], x.dtype());
            let far = || PoolOptions::new(i32::MAX).stride(i32::MAX).dilation(i32::MAX);
            let wide = || PoolOptions::new(i32::MAX).padding(i32::MAX / 2);
            vec![
                none.max_pool2d(1),
                none.max_pool2d(2),
                none.avg_pool2d(PoolOptions::new(2).padding(1)),
                none.max_pool2d(far().ceil(true)),
                none.max_pool2d(far().padding(i32::MAX).ceil(true)),
                x.max_pool1d(wide()),
                x.avg_pool1d(wide()),
                x.max_pool2d(wide()),
                x.avg_pool2d(wide().count_padding(false)),
                x.unsqueeze(0).max_pool3d(wide()),
                x.unsqueeze(0).avg_pool3d(wide()),
                x.unsqueeze(0).avg_pool3d(wide().divisor(usize::MAX)),
            ]
        }),
        ("interpolate", |x| {
            let to = |options: InterpolateOptions| {
                [
                    InterpolateMode::Nearest,
                    InterpolateMode::NearestExact,
                    InterpolateMode::Linear,
                    InterpolateMode::Cubic,
                ]
                .map(|mode| x.interpolate(options.clone().mode(mode)))
            };
            let mut all = vec![
                x.interpolate(0),
                x.interpolate(usize::MAX),
                x.interpolate(InterpolateOptions::size(())),
                x.interpolate(InterpolateOptions::size(-1)),
                x.interpolate([2, 2, 2, 2]),
                x.interpolate(InterpolateOptions::scales(&[])),
                x.interpolate(InterpolateOptions::size(2).align_corners(true)),
                x.device()
                    .zeros([0, 1, usize::MAX, 4])
                    .interpolate(InterpolateOptions::scale(2.0).mode(InterpolateMode::Linear)),
                x.device().zeros([0, 1, 3]).interpolate(5),
            ];
            for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300, 2.0] {
                all.extend(to(InterpolateOptions::scale(scale)));
            }
            all.extend(to(InterpolateOptions::size(3).align_corners(true)));
            all
        }),
        ("einsum", |x| vec![
            einsum("ij,jk->ik", &[x, x]),
            einsum("", &[x]),
            einsum("->", &[x]),
            einsum("ij,", &[x]),
            einsum("ii", &[x]),
            einsum("...->...", &[x]),
            einsum("ij->ijj", &[x]),
            einsum("é", &[x]),
            einsum("ij->ik", &[x]),
            einsum("...i...", &[x]),
            einsum("i j -> j i", &[x]),
            einsum("ij->ji->ij", &[x])
        ]),
        ("einsum empty", |x| {
            let _ = x;
            vec![einsum("ij->ij", &none())]
        }),
        ("cat empty", |x| {
            let _ = x;
            vec![cat(&none(), 0)]
        }),
        ("stack empty", |x| {
            let _ = x;
            vec![stack(&none(), 0)]
        }),
        ("cat", |x| vec![
            cat(&[x, x], 0),
            cat(&[x], -1),
            cat(&[x, x], 99),
            cat(&[x, x], isize::MIN),
            cat(&[x, &x.device().ones([0])], 0),
            cat(&[x, &Device::cpu().ones(x.shape())], 0),
            stack(&[x, x], -1),
            stack(&[x, x], 99),
            stack(&[x, x], isize::MIN),
            stack(&[x, &Device::cpu().ones(x.shape())], 0)
        ]),
        ("loss", |x| vec![
            x.mse_loss(x, ()),
            x.mse_loss(x.sum_all(), ()),
            x.cross_entropy(x, ()),
            x.nll_loss(x, ()),
            x.bce_with_logits(x, ()),
            x.cross_entropy(x.device().full([2], 99), ()),
            x.cross_entropy(x.device().full([2], -100), ()),
            x.cross_entropy(x.device().full([2], 0), LossOptions::default().label_smoothing(5.0)),
            x.cross_entropy(x.device().full([2], 0), LossOptions::default().weight(x)),
            x.nll_loss(x.device().full([2], -1), ())
        ]),
    ]
}
