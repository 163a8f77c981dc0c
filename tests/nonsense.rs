//! Nonsense for arguments: every op on every kind of value, with sizes, dimensions and indices that
//! nobody means. Each call gives values that come, or that fail with a clear error: none panics,
//! none hangs.
//!
//! One list of promises, more devices: the CPU here, simulated CUDA in `nonsense_simulated_cuda`.

#![allow(clippy::reversed_empty_ranges)]

use futensor::custom::*;
use futensor::nn::Module;
use futensor::quant::{Format, Quantized};
use futensor::*;
use libtest_mimic::{Arguments, Failed, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::Duration;

type Call = (&'static str, Box<dyn Fn(&TensorFuture) -> Vec<TensorFuture>>);

macro_rules! calls {
    ($($name:expr => |$x:ident| $e:expr),* $(,)?) => {
        vec![$(($name, Box::new(|$x: &TensorFuture| -> Vec<TensorFuture> { $e }) as Box<_>)),*]
    };
}

fn none() -> [TensorFuture; 0] {
    []
}

fn calls() -> Vec<Call> {
    calls![
      "neg" => |x| vec![-x], "abs" => |x| vec![x.abs()], "sqrt" => |x| vec![x.sqrt()], "exp" => |x| vec![x.exp()],
      "add1" => |x| vec![x + 1.0], "addself" => |x| vec![x + x], "add t" => |x| vec![x + x.transpose(0, -1)],
      "div0" => |x| vec![x / 0], "div0f" => |x| vec![x / 0.0], "rem0" => |x| vec![x.remainder(0)], "fmod0" => |x| vec![x.fmod(0)], "fmod -1" => |x| vec![x.fmod(-1)], "rem -1" => |x| vec![x.remainder(-1)],
      "pow-1" => |x| vec![x.pow(-1)], "pow 0.5" => |x| vec![x.pow(0.5)], "pow big" => |x| vec![x.pow(1000)],
      "min/-1" => |x| vec![x.device().full_dtype((), i64::MIN, x.dtype()) / -1, x.device().full_dtype((), i64::MIN, x.dtype()).abs(), -x.device().full_dtype((), i64::MIN, x.dtype()), x.device().full_dtype((), i64::MAX, x.dtype()) + 1, x.device().full_dtype((), i64::MAX, x.dtype()) * 2],
      "logical" => |x| vec![x.logical_and(x), x.logical_or(1), x.logical_xor(0.5), x.logical_not()],
      "bitwise" => |x| vec![x.bitwise_and(x), x.bitwise_or(1), x.bitwise_not()],
      "bitwise f" => |x| vec![x.bitwise_and(0.5)],
      "clamp rev" => |x| vec![x.clamp(5, -5)], "clamp nan" => |x| vec![x.clamp(f64::NAN, f64::INFINITY)],
      "clampmin" => |x| vec![x.clamp_min(1e300), x.clamp_max(-1e300)],
      "elu nan" => |x| vec![x.elu(f64::NAN), x.leaky_relu(f64::INFINITY)],
      "sums" => |x| vec![x.sum_all(), x.mean_all(), x.prod_all(), x.any_all(), x.all_all()],
      "largest" => |x| vec![x.max_all()], "largest" => |x| vec![x.min_all()], "largest" => |x| vec![x.argmax_all(), x.argmin_all()],
      "along the first" => |x| vec![x.sum(0), x.sum_keepdim(-1), x.mean(0), x.prod(0)], "along none" => |x| vec![x.sum(()), x.max(())], "sum[0,0]" => |x| vec![x.sum([0,0])], "sum99" => |x| vec![x.sum(99)], "sum -99" => |x| vec![x.sum(-99)], "sum big" => |x| vec![x.sum(isize::MAX), x.sum(isize::MIN), x.sum(usize::MAX)],
      "along the first" => |x| vec![x.max(0), x.argmax(0), x.argmin(-1), x.min(-1)], "argmax big" => |x| vec![x.argmax(isize::MIN), x.argmax(isize::MAX), x.argmax_keepdim(7)],
      "variances" => |x| vec![x.var(0, 1.0), x.var_all(f64::NAN), x.std_all(1e9), x.std(-1, -3.0), x.var_keepdim([0,0], 1.0), x.var((), 1.0)],
      "norms" => |x| vec![x.norm_all(2.0), x.norm(0.0, 0), x.norm(f64::INFINITY, -1), x.norm(f64::NEG_INFINITY, 0), x.norm_all(f64::NAN), x.norm(-1.0, 99), x.norm(f64::INFINITY, ())],
      "logsumexp" => |x| vec![x.logsumexp(0), x.logsumexp(()), x.logsumexp([0,0]), x.logsumexp(isize::MIN), x.logsumexp_keepdim([0, 1])],
      "softmax" => |x| vec![x.softmax(0), x.softmax(-1), x.log_softmax(5), x.softmax(isize::MIN)],
      "ln" => |x| vec![x.layer_norm_plain(1, 1e-5), x.layer_norm_plain(0, 1e-5), x.layer_norm_plain(99, 1e-5), x.layer_norm_plain(usize::MAX, 1e-5), x.layer_norm_plain(1, f64::NAN), x.layer_norm(x, x, 0.0), x.rms_norm(x, 0.0), x.rms_norm_plain(usize::MAX, 0.0)],
      "bn" => |x| vec![x.batch_norm(x, x, None, None, 0.0), x.batch_norm_train(Some(x), None, 0.0).0, x.batch_norm_train(None, None, f64::NAN).1],
      "gather self" => |x| vec![x.gather(0, x), x.gather(-1, x), x.gather(99, x), x.gather(isize::MIN, x)],
      "gather oob" => |x| vec![x.gather(0, x.device().full(x.shape(), i64::MAX)), x.gather(0, x.device().full(x.shape(), -1)), x.gather(0, x.device().full(x.shape(), i64::MIN))],
      "index_select" => |x| vec![x.index_select(0, x), x.index_select(0, x.device().full([2], 99)), x.index_select(9, x.device().full([2], 0)), x.index_select(0, x.device().zeros_dtype([0], DType::I64)), x.index_select(0, x.device().full((), 0))],
      "embedding" => |x| vec![x.embedding(x), x.embedding(x.device().full([2,2], 0)), x.embedding(x.device().full([2], -1))],
      "scatter_add" => |x| vec![x.scatter_add(0, x, x), x.scatter_add(0, x.device().full(x.shape(), 0), x), x.scatter_add(0, x.device().full(x.shape(), 77), x), x.scatter_add(-7, x, x)],
      "index_copy" => |x| vec![x.clone().index_copy(0, x, x), x.clone().index_copy(0, x.device().full([1], 0), x.narrow(0, 0, 1)), x.clone().index_copy(-1, x.device().full([1], 77), x.narrow(-1, 0, 1)), x.clone().index_copy(isize::MIN, x, x), x.clone().index_copy(0, x.device().zeros_dtype([0], DType::U8), x.narrow(0, 0, 0))],
      "scatter" => |x| vec![x.scatter(0, x, x), x.scatter(0, x.device().full(x.shape(), -1), x), x.scatter(-1, x.device().full(x.shape(), 77), x), x.scatter(-7, x, x), x.scatter(isize::MIN, x.device().zeros_dtype(x.shape(), DType::U8), x), x.scatter(0, x.device().full_dtype(x.shape(), 255, DType::U8), x), x.scatter(0, x.device().full([1; 3], i64::MIN), x)],
      "scatter_reduce" => |x| [ScatterMode::Assign, ScatterMode::Sum, ScatterMode::Prod, ScatterMode::Max, ScatterMode::Min].into_iter().flat_map(|mode| [x.scatter_reduce(0, x.device().full(x.shape(), 0), x, mode), x.scatter_reduce(-1, x.device().full(x.shape(), i64::MAX), x, mode)]).collect(),
      "from the end" => |x| vec![x.gather(0, x.device().full(x.shape(), -1)), x.gather(-1, x.device().full(x.shape(), -99)), x.index_select(0, x.device().full([2], -1)), x.index_select(0, x.device().full_dtype([2], 0, DType::U8)), x.index_select(0, x.device().full([2], i64::MIN)), x.take(x.device().full([2], -1)), x.one_hot(usize::MAX / 2), x.embedding(x.device().full_dtype([2], 200, DType::U8))],
      "inverses" => |x| vec![x.asin(), x.acos(), x.atan(), x.asinh(), x.acosh(), x.atanh(), (x * 1e30).sinh(), (x * -1e30).cosh()],
      "whole quotients" => |x| vec![x.floor_divide(0), x.trunc_divide(0), x.floor_divide(-1), x.trunc_divide(-1), x.floor_divide(x), x.trunc_divide(0.0), x.floor_divide(f64::NAN), x.floor_divide(f64::INFINITY), x.device().full_dtype((), i64::MIN, x.dtype()).floor_divide(-1), x.device().full_dtype((), i64::MIN, x.dtype()).trunc_divide(-1)],
      "initial" => |x| vec![x.max_initial(0, 1), x.max_initial((), f64::NAN), x.min_initial([0, 0], 1), x.min_initial(99, i64::MIN), x.max_initial_keepdim(-1, 1e300), x.min_initial_all(-1e300), x.max_initial_all(true), x.min_initial_keepdim(isize::MIN, 0)],
      "running" => |x| vec![x.cumprod(0), x.cumprod(-1), x.cumprod(9), x.cumprod(isize::MIN), x.cumsum_with(0, true, true), x.cumsum_with(7, true, false), x.cumprod_with(-1, true, false), x.cumprod_with(0, false, true), x.cumprod_with(isize::MAX, true, true)],
      "eye" => |x| { let d = x.device(); vec![d.eye_dtype([2, 3], x.dtype()), d.eye_dtype([1, 2, 3], x.dtype()), d.eye_diagonal(3, i64::MIN, x.dtype()), d.eye_diagonal([0, 2], i64::MAX, x.dtype()), d.eye_diagonal([usize::MAX, 2], 1, x.dtype()), d.eye_diagonal([usize::MAX, usize::MAX], i64::MIN, x.dtype())] },
      "i of a list" => |x| vec![x.i(Vec::new()), x.i(vec![Index::ALL; x.rank()]), x.i(vec![Index::At(0); x.rank() + 1]), x.i(vec![Index::from(5..-9).step(-3); x.rank()]), x.i([Index::At(isize::MIN)]), x.i(&vec![Index::from(isize::MAX..).step(isize::MIN)][..]), x.i([Index::Span { start: Some(isize::MIN), end: Some(isize::MAX), step: -1 }])],
      "one_hot" => |x| vec![x.one_hot(0), x.one_hot(3), x.one_hot(usize::MAX)],
      "sort" => |x| vec![x.sort(0, true), x.argsort(-1, false), x.sort(99, false), x.sort(isize::MIN, false), x.sort(0,false)],
      "topk" => |x| { let mut v = vec![]; for k in [0, 1, 99, usize::MAX] { let (a,b) = x.topk(k, 0, true); v.push(a); v.push(b); let (a,b) = x.topk(k, 77, false); v.push(a); v.push(b);} v },
      "cumsum" => |x| vec![x.cumsum(0), x.cumsum(-1), x.cumsum(9), x.cumsum(isize::MIN)],
      "tril" => |x| vec![x.tril(0), x.triu(i64::MAX), x.tril(i64::MIN), x.triu(i64::MIN), x.tril(i64::MAX)],
      "roll" => |x| vec![x.roll(1, 0), x.roll(isize::MIN, 0), x.roll(isize::MAX, -1), x.roll([1,2], 0), x.roll([1,2],[0,0]), x.roll(1, 99), x.roll((), ())],
      "flip" => |x| vec![x.flip(0), x.flip([0,0]), x.flip(()), x.flip(99), x.flip(isize::MIN)],
      "masked_fill" => |x| vec![x.masked_fill(x, 1), x.masked_fill(x.gt(0), f64::NAN), x.masked_fill(x.device().ones_dtype([7,1,1], DType::Bool), 1e300)],
      "repeat" => |x| vec![x.repeat(2), x.repeat([2,2,2]), x.repeat(()), x.repeat(0), x.repeat([-1,-1,-1])],
      "repeat big" => |x| vec![x.repeat([usize::MAX/2, 1, 1])], "repeat big2" => |x| vec![x.repeat([1usize<<33, 1<<33, 1])],
      "split 0" => |x| x.split(0, 0), "split 99" => |x| x.split(1, 99), "split" => |x| x.split(2, 0), "split max" => |x| x.split(usize::MAX, 0),
      "chunk 0" => |x| x.chunk(0, 0), "chunk 99" => |x| x.chunk(2, 99), "chunk" => |x| x.chunk(2, 0), "chunk max" => |x| x.chunk(usize::MAX, 0),
      "splitsizes" => |x| x.split_with_sizes([1,1], 0), "splitsizes -" => |x| x.split_with_sizes([-1,3], 0), "splitsizes big" => |x| x.split_with_sizes([isize::MAX, isize::MAX], 0), "splitsizes dim" => |x| x.split_with_sizes([1], 9), "splitsizes ()" => |x| x.split_with_sizes((), 0),
      "reshape" => |x| vec![x.reshape(-1), x.reshape([-1,-1]), x.reshape([-1, 0]), x.reshape([0,-1]), x.reshape(()), x.reshape([isize::MAX, isize::MAX]), x.reshape([-2, -3]), x.reshape(isize::MIN), x.reshape([1;70]), x.reshape([0usize, 1<<62, 1<<62])],
      "transpose" => |x| vec![x.transpose(0, 1), x.transpose(9,0), x.transpose(isize::MIN, 0), x.t(), x.permute(()), x.permute([0,0]), x.permute([1,0]), x.permute([0, -1, 5])],
      "unsqueeze" => |x| vec![x.unsqueeze(0), x.unsqueeze(-1), x.unsqueeze(99), x.unsqueeze(isize::MIN), x.unsqueeze(isize::MAX)],
      "squeeze" => |x| vec![x.squeeze(()), x.squeeze(0), x.squeeze(99), x.squeeze(isize::MIN), x.squeeze([0,0]), x.squeeze_all()],
      "expand" => |x| vec![x.expand([3, 2, 3]), x.expand(()), x.expand([-1, -1]), x.expand([-1,-1,-1,-1]), x.expand(isize::MIN), x.expand([1<<20, 2, 3]), x.expand([1isize<<61, 1<<61, 1, 1])],
      "expand+1" => |x| vec![&x.expand([1isize<<40, 2, 3]) + 1.0],
      "expand big+1" => |x| vec![&x.expand([1isize<<61, 1<<61, 2, 3]) + 1.0],
      "narrow" => |x| vec![x.narrow(0,0,1), x.narrow(0, usize::MAX, 2), x.narrow(9,0,0), x.narrow(0,0,0), x.narrow(isize::MIN,0,0)],
      "i" => |x| vec![x.i(0), x.i(-1), x.i(99), x.i(isize::MIN), x.i(..), x.i(1..), x.i(5..1), x.i(isize::MIN..isize::MAX), x.i(..=5), x.i((0,0,0,0,0,0)), x.i(Index::ALL.step(0)), x.i(Index::ALL.step(isize::MIN)), x.i(Index::ALL.step(isize::MAX)), x.i(Index::ALL.step(-1))],
      "i ..=max" => |x| vec![x.i(..=isize::MAX)], "i usize max" => |x| vec![x.i(usize::MAX)],
      "take" => |x| vec![x.take(x), x.take(x.device().full([2,1], 0)), x.take(x.device().full((), 1i64 << 40))],
      "index" => |x| vec![x.index(&[]), x.index(&[Some(x)]), x.index(&[None, None, None, None]), x.index(&[Some(&x.device().full((), 0))]), x.index(&[Some(&x.device().full([0], 0))]), x.index(&[Some(&x.device().full([2], i64::MIN))]), x.index(&[Some(&x.device().full([2], i64::MAX)), Some(&x.device().full([3], 0))])],
      "flatten" => |x| vec![x.flatten(0,-1), x.flatten(-1, 0), x.flatten(5,6), x.flatten(isize::MIN, isize::MIN)],
      "pad" => |x| vec![x.pad([1,1], 0.0), x.pad([-1,-1], 0), x.pad([1], 0), x.pad([1,1,1,1,1,1,1,1], 0), x.pad((), 0), x.pad([-5, 5], 7), x.pad([1,1], f64::NAN)],
      "pad big" => |x| vec![x.pad([isize::MAX, 0], 0)], "pad big2" => |x| vec![x.pad([isize::MAX, isize::MIN], 0)], "pad big3" => |x| vec![x.pad([isize::MIN, isize::MAX], 0)],"pad big4" => |x| vec![x.pad([isize::MAX-9, 0, isize::MAX -9, 0], 0)],
      "padmode" => |x| vec![x.pad_mode([1,1], PadMode::Reflect), x.pad_mode([9,9], PadMode::Circular), x.pad_mode([1,1], PadMode::Replicate), x.pad_mode([-1,0], PadMode::Reflect)],
      "padmode big" => |x| vec![x.pad_mode([isize::MAX - 10, 0], PadMode::Replicate)], "padmode min" => |x| vec![x.pad_mode([isize::MIN, isize::MAX], PadMode::Replicate)],
      "dropout" => |x| vec![x.dropout(0.0), x.dropout(1.0), x.dropout(2.0), x.dropout(f64::NAN), x.dropout(0.3)],
      "linear" => |x| vec![x.linear(x, None), x.linear(x, Some(x)), x.linear(x.device().ones([2, 3]), Some(x)), x.linear(x.device().ones([0, 0]), None)],
      "matmul" => |x| vec![x.matmul(x), x.matmul(x.t()), x.bmm(x), x.mm(x), x.matmul(x.device().ones([3])), x.matmul(x.device().ones([3, 0])), x.matmul(x.device().ones([0,0]))],
      "addmm" => |x| vec![x.addmm(x, x.t(), 1.0, f64::NAN)],
      "with positions" => |x| [0, -1, 77, isize::MIN].into_iter().flat_map(|d| [x.sort_with_positions(d, true), x.max_with_positions(d), x.min_with_positions(d)]).flat_map(|(a, b)| [a, b]).collect(),
      "top_p" => |x| vec![x.top_p(0.5), x.top_p(f64::NAN), x.top_p(-3), x.top_p(2), x.top_p(x), x.top_p(x.device().zeros([0])), x.top_p(x.device().full([1], f32::NAN))],
      "categorical" => |x| vec![x.categorical(x), x.categorical(x.device().full([1], 7.0)), x.categorical(x.device().full([2], f32::NAN)), x.categorical(x.device().zeros([0])), Generator::new(1).categorical(x, 0), Generator::new(1).categorical(x, 3), x.abs().categorical(x.narrow(-1, 0, 1))],
      "rope" => |x| vec![x.rope(x, x, true), x.rope(x.device().ones([]), x.device().zeros([1]), false), x.rope(x.device().ones([2]), x, true), x.unsqueeze(-1).expand([-1, 0]).rope(x.device().ones([0]), x.device().ones([0]), false)],
      "grouped" => |x| vec![x.scaled_dot_product_attention(x, x, AttentionOptions::default().grouped(true)), x.reshape([1, 1, 1, -1]).scaled_dot_product_attention(x.reshape([1, 1, 1, -1]), x.reshape([1, 1, 1, -1]), AttentionOptions::default().grouped(true).mask(x).lengths(x.device().full([1], i64::MIN))), x.scaled_dot_product_attention(x, x, AttentionOptions::default().lengths(x)), x.scaled_dot_product_attention(x, x, AttentionOptions::default().lengths(x.device().full([], i64::MAX))), x.scaled_dot_product_attention(x, x, AttentionOptions::default().lengths(x.device().full([1, 1, 1, 1, 1], 2)).dropout(0.5))],
      "paged_attention" => |x| vec![x.paged_attention(x, x, x, x, ()), x.reshape([1, 1, 1, -1]).paged_attention(x.reshape([1, 1, 1, -1]), x.reshape([1, 1, 1, -1]), x.device().full_dtype([1, 1], -1, DType::I64), x.device().full_dtype([1], 1, DType::I64), ()), x.reshape([1, 1, -1]).paged_attention(x.reshape([1, 1, 1, -1]), x.reshape([1, 1, 1, -1]), x.device().zeros_dtype([1, 1], DType::I64), x.device().full_dtype([1], i64::MAX, DType::I64), ()), x.paged_attention(x, x, x, x, AttentionOptions::default().mask(x))],
      "sdpa" => |x| vec![x.scaled_dot_product_attention(x, x, AttentionOptions::default()), x.scaled_dot_product_attention(x, x, AttentionOptions::default().causal(true).mask(x)), x.scaled_dot_product_attention(x, x, AttentionOptions::default().dropout(5.0)), x.scaled_dot_product_attention(x, x, AttentionOptions::default().mask(x.device().zeros_dtype([3], DType::Bool)))],
      "conv" => |x| vec![x.conv1d(x, None, ()), x.conv2d(x, None, ()), x.conv1d(x, Some(x), ConvOptions::default().stride(0)), x.conv2d(x, None, ConvOptions::default().groups(0)), x.conv2d(x, None, ConvOptions::default().padding(isize::MAX)), x.conv2d(x, None, ConvOptions::default().dilation(isize::MAX)), x.conv2d(x, None, ConvOptions::default().stride([1,2,3])), x.conv_transpose1d(x, None, ()), x.conv_transpose2d(x, None, ConvOptions::default().stride(usize::MAX/2))],
      "conv layers" => |x| { let conv = |i, o, groups| nn::Conv2d::new(i, o, 3, ConvOptions::default().groups(groups), &x.device()).forward(x); let kernel = |k: &[isize]| nn::Conv2d::without_bias(1, 1, k, (), &x.device()).forward(x); vec![conv(1, 1, 0), conv(3, 2, 2), conv(2, 3, 2), conv(usize::MAX, 2, 1), conv(0, 0, 1), kernel(&[]), kernel(&[0]), kernel(&[-3, 3]), kernel(&[1, 2, 3]), kernel(&[isize::MAX])] },
      "attention layers" => |x| { let layer = |w, h| nn::MultiheadAttention::new(w, h, &x.device()); let last = x.dims().last().copied().unwrap_or(4); let (one, three) = (layer(last, 1), layer(3, 3)); vec![layer(8, 0).forward(x), layer(8, 3).forward(x), layer(usize::MAX, 1).forward(x), layer(usize::MAX / 3, 1).forward(x), layer(0, 1).forward(x), one.forward(x), three.forward(x), one.forward_with(x, AttentionOptions::default().mask(x)), one.forward_with(x, AttentionOptions::default().mask(x).causal(true).scale(f64::NAN)), one.forward_with(x, AttentionOptions::default().mask(x.device().zeros_dtype([9, 1], DType::Bool))), three.attend(x, &x.device().ones([4, 3]), x, ()), three.dropout(5.0).forward(&x.device().ones([2, 3])), nn::TransformerEncoderLayer::new(last, 1, 0, &x.device()).forward(x), nn::TransformerEncoderLayer::new(last, 2, 3, &x.device()).norm_first(true).forward(x)] },
      "windows" => |x| { let (one, three) = (x.device().ones([1, 1, 1, 1]), x.device().ones([1, 1, 3, 3])); vec![x.conv2d(&one, None, ()), x.conv2d(&three, None, ConvOptions::default().padding(1).stride(2)), x.conv_transpose2d(&three, None, ConvOptions::default().stride(3)), x.conv_transpose2d(&one, None, ConvOptions::default().stride(i32::MAX).dilation(i32::MAX)), x.conv_transpose1d(x.device().ones([1, 1, 3]), None, ConvOptions::default().stride(7)), x.max_pool2d(PoolOptions::new(3).padding(1).stride(2).ceil(true)), x.avg_pool2d(PoolOptions::new([2, 3]).padding([1, 0]))] },
      "usize::MAX" => |x| vec![x.reshape([usize::MAX, 2]), x.reshape(usize::MAX), x.expand([usize::MAX, 2, 3]), x.permute([usize::MAX, 0]), x.squeeze(usize::MAX), x.flip(usize::MAX), x.roll(usize::MAX, 0), x.roll(1, usize::MAX), x.repeat([usize::MAX, 1, 1, 1, 1]), x.pad([usize::MAX, 1], 0), x.pad_mode([1, usize::MAX], PadMode::Replicate), x.narrow(0, usize::MAX, usize::MAX), x.narrow(0, 0, usize::MAX), x.i(0..usize::MAX), x.i(usize::MAX..), x.i(..=usize::MAX), x.clamp(usize::MAX, usize::MAX), x + usize::MAX, x.mean([0, usize::MAX]), x.unsqueeze(isize::MAX)],
      "lazy layer" => |x| { let layer = nn::LazyLinear::new(2); vec![layer.forward(&(x + x.device().ones([7, 1, 5]))), layer.forward(x), layer.forward(&x.device().ones([3, 4]))] },
      "pool" => |x| vec![x.max_pool2d(1), x.max_pool2d(0), x.max_pool2d(usize::MAX), x.avg_pool2d(2), x.avg_pool2d(PoolOptions::new(2).stride(0)), x.avg_pool2d(PoolOptions::new(2).divisor(0)), x.max_pool2d(PoolOptions::new(()))],
      "pool big" => |x| vec![x.max_pool2d(PoolOptions::new(isize::MAX).padding(isize::MAX/2))], "pool dil" => |x| vec![x.max_pool2d(PoolOptions::new(isize::MAX).dilation(isize::MAX))], "pool ceil" => |x| vec![x.max_pool2d(PoolOptions::new(1).stride(isize::MAX).ceil(true))],
      "conv sides" => |x| vec![x.conv3d(x, None, ()), x.conv_transpose3d(x, None, ()), x.conv1d(x, None, ConvOptions::default().padding_sides(isize::MAX, 0)), x.conv2d(x, None, ConvOptions::default().padding_sides(-1, 1)), x.conv3d(x, Some(x), ConvOptions::default().padding_sides([1, 2], 0)), x.conv_transpose3d(x, None, ConvOptions::default().output_padding(9)), x.conv_transpose1d(x, None, ConvOptions::default().padding_sides(i32::MAX, i32::MAX)), x.conv_transpose2d(x, None, ConvOptions::default().padding_sides((), ()))],
      "convs of everything" => |x| { let none = x.device().zeros_dtype([0, 1, usize::MAX, 4], x.dtype()); let w = x.device().zeros_dtype([1, 1, 2, 2], x.dtype()); let far = || ConvOptions::default().stride(i32::MAX).dilation(i32::MAX).padding(i32::MAX); vec![none.conv2d(&w, None, ()), none.conv2d(&w, None, far()), none.conv_transpose2d(&w, None, ()), none.conv_transpose2d(&w, None, far()), none.conv_transpose2d(&w, None, far().output_padding(i32::MAX)), none.conv2d(&w, None, ConvOptions::default().groups(usize::MAX)), none.conv_transpose2d(&w, None, ConvOptions::default().groups(usize::MAX)), w.conv2d(&none, None, ()), none.i((.., .., .., 0)).conv1d(w.i((.., .., 0)), None, far())] },
      "pools" => |x| vec![x.max_pool1d(1), x.max_pool1d(0), x.max_pool1d([2, 2]), x.max_pool3d(2), x.max_pool3d([2, 1]), x.avg_pool1d(usize::MAX), x.avg_pool3d(PoolOptions::new(2).padding(1)), x.avg_pool1d(PoolOptions::new(2).dilation(99)), x.max_pool1d(PoolOptions::new(2).padding_sides(2, 0)), x.max_pool1d(PoolOptions::new(2).dilation(9).padding(9)), x.avg_pool1d(PoolOptions::new(3).padding_sides((), ())), x.max_pool1d_with_positions(PoolOptions::new(2).ceil(true)).1, x.max_pool3d_with_positions(7).1],
      "pools of everything" => |x| { let none = x.device().zeros_dtype([0, 1, usize::MAX, 4], x.dtype()); let far = || PoolOptions::new(i32::MAX).stride(i32::MAX).dilation(i32::MAX); let wide = || PoolOptions::new(i32::MAX).padding(i32::MAX / 2); vec![none.max_pool2d(1), none.max_pool2d(2), none.avg_pool2d(PoolOptions::new(2).padding(1)), none.max_pool2d(far().ceil(true)), none.max_pool2d(far().padding(i32::MAX).ceil(true)), x.max_pool1d(wide()), x.avg_pool1d(wide()), x.max_pool2d(wide()), x.avg_pool2d(wide().count_padding(false)), x.unsqueeze(0).max_pool3d(wide()), x.unsqueeze(0).avg_pool3d(wide()), x.unsqueeze(0).avg_pool3d(wide().divisor(usize::MAX))] },
      "interpolate" => |x| { let to = |options: InterpolateOptions| [InterpolateMode::Nearest, InterpolateMode::NearestExact, InterpolateMode::Linear, InterpolateMode::Cubic].map(|mode| x.interpolate(options.clone().mode(mode))); let mut all = vec![x.interpolate(0), x.interpolate(usize::MAX), x.interpolate(InterpolateOptions::size(())), x.interpolate(InterpolateOptions::size(-1)), x.interpolate([2, 2, 2, 2]), x.interpolate(InterpolateOptions::scales(&[])), x.interpolate(InterpolateOptions::size(2).align_corners(true)), x.device().zeros([0, 1, usize::MAX, 4]).interpolate(InterpolateOptions::scale(2.0).mode(InterpolateMode::Linear)), x.device().zeros([0, 1, 3]).interpolate(5)]; for scale in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300, 1e-300, 2.0] { all.extend(to(InterpolateOptions::scale(scale))); } all.extend(to(InterpolateOptions::size(3).align_corners(true))); all },
      "einsum" => |x| vec![einsum("ij,jk->ik", &[x, x]), einsum("", &[x]), einsum("->", &[x]), einsum("ij,", &[x]), einsum("ii", &[x]), einsum("...->...", &[x]), einsum("ij->ijj", &[x]), einsum("é", &[x]), einsum("ij->ik", &[x]), einsum("...i...", &[x]), einsum("i j -> j i", &[x]), einsum("ij->ji->ij", &[x])],
      "einsum empty" => |x| {let _ = x; vec![einsum("ij->ij", &none())]},
      "cat empty" => |x| {let _ = x; vec![cat(&none(), 0)]},
      "stack empty" => |x| {let _ = x; vec![stack(&none(), 0)]},
      "cat" => |x| vec![cat(&[x, x], 0), cat(&[x], -1), cat(&[x, x], 99), cat(&[x, x], isize::MIN), cat(&[x, &x.device().ones([0])], 0), cat(&[x, &Device::cpu().ones(x.shape())], 0), stack(&[x,x], -1), stack(&[x,x], 99), stack(&[x,x], isize::MIN), stack(&[x, &Device::cpu().ones(x.shape())], 0)],
      "loss" => |x| vec![x.mse_loss(x, ()), x.mse_loss(x.sum_all(), ()), x.cross_entropy(x, ()), x.nll_loss(x, ()), x.bce_with_logits(x, ()), x.cross_entropy(x.device().full([2], 99), ()), x.cross_entropy(x.device().full([2], -100), ()), x.cross_entropy(x.device().full([2], 0), LossOptions::default().label_smoothing(5.0)), x.cross_entropy(x.device().full([2], 0), LossOptions::default().weight(x)), x.nll_loss(x.device().full([2], -1), ())],
      "slice_assign" => |x| vec![x.clone().slice_assign(0, x), x.clone().slice_assign(99, x), x.clone().slice_assign((0,0,0,0,0), x), x.clone().slice_assign(.., x), x.clone().slice_assign(Index::ALL.step(0), x), x.clone().slice_assign(0, x.device().ones([9]))],
      "where" => |x| vec![x.where_cond(1, 2), x.gt(0).where_cond(x, f64::NAN), x.where_cond(x, x)],
      "cast" => |x| [DType::F32,DType::F64,DType::F16,DType::BF16,DType::I32,DType::I64,DType::U8,DType::Bool].iter().map(|&t| x.to_dtype(t)).collect(),
      "grad" => |x| { let x = x.requires_grad(); grad((&x * &x).sum_all(), &[&x]) }, "grad empty" => |x| grad(x.sum_all(), &none()), "grad nonscalar" => |x| grad(x, &[x]), "grad up" => |x| { let x = x.requires_grad(); grad_with(&x * 2.0, &[&x], GradOptions::default().upstream(&x.device().ones([77])))},
      "checkpoint" => |x| vec![checkpoint(|x| x[0].exp(), &[x])], "custom0" => |x| { let _ = x; vec![custom_fn("none", &[], |_| Ok(Meta::new([2], DType::F32)), |_| Ok(()))]},
      "a kernel that fails" => |x| vec![custom_fn("pan", &[x], |_| Ok(Meta::new([2], DType::F32)), |_| panic!("in run")), custom_fn("ref", &[x], |_| Ok(Meta::new([2], DType::F32)), |_| Err(Refusal::argument("no")))], "a rule that panics" => |x| vec![custom_fn("pan", &[x], |_| panic!("in infer"), |_| Ok(()))], "custom huge" => |x| vec![custom_fn("pan", &[x], |_| Ok(Meta::new([usize::MAX, usize::MAX], DType::F32)), |_| Ok(()))],
      "todev" => |x| vec![x.to_device(&Device::cpu()), x + Device::cpu().ones([1]), x.matmul(Device::cpu().ones([3, 3]))],
      "clip" => |x| optim::clip_grad_norm(std::slice::from_ref(x), 1.0).0, "clip empty" => |x| {let _ = x; let (v, n) = optim::clip_grad_norm(&[], 1.0); let mut v = v; v.push(n); v},"clip nan" => |x| optim::clip_grad_value(std::slice::from_ref(x), f64::NAN), "clip neg" => |x| optim::clip_grad_value(std::slice::from_ref(x), -1.0),
    ]
}

/// Calls that are meant to fail inside a kernel.
const FAILING_KERNELS: &[&str] = &["a kernel that fails", "a rule that panics"];

/// Calls whose results would need memory, or need none; others look at every element, which takes
/// its time.
const TRIED_ON_LARGE: &[&str] = &[
    "neg",
    "exp",
    "add1",
    "cast",
    "sort",
    "cumsum",
    "repeat",
    "reshape",
    "transpose",
    "unsqueeze",
    "squeeze",
    "expand",
    "narrow",
    "i",
    "flatten",
    "pad",
    "cat",
];

/// What is wrong with a call on a value, if anything.
fn wrong(
    runtime: &tokio::runtime::Runtime,
    name: &str,
    call: &dyn Fn(&TensorFuture) -> Vec<TensorFuture>,
    x: &TensorFuture,
) -> Vec<String> {
    let Ok(values) = catch_unwind(AssertUnwindSafe(|| call(x))) else { return vec!["the call panics".into()] };
    let mut found = Vec::new();
    for (i, y) in values.iter().enumerate() {
        let limit = Duration::from_secs(20);
        let wait = || runtime.block_on(async { tokio::time::timeout(limit, y.wait_to_read()).await });
        let Ok(ended) = catch_unwind(AssertUnwindSafe(wait)) else {
            found.push(format!("{i} panics when it is awaited"));
            continue;
        };
        match ended {
            Err(_) => found.push(format!("{i} hangs")),
            // What has no kernel on a GPU says so.
            Ok(Err(error)) if error.is_kernel() && error.message().contains("has no CUDA kernel") => {}
            Ok(Err(error)) if error.is_kernel() && !FAILING_KERNELS.contains(&name) => {
                found.push(format!("{i} fails in its kernel: {error}"));
            }
            Ok(Err(error))
                if error.message().is_empty() || !error.location().file().ends_with("nonsense.rs") =>
            {
                found.push(format!("{i} has an error that does not say where: {error}"));
            }
            Ok(Err(_)) => {}
            Ok(Ok(())) if y.numel() < 10_000 => {
                let read = || {
                    runtime.block_on(async {
                        let shown = tokio::time::timeout(limit, y.display()).await;
                        let read = y.to_dtype(DType::F64).to_vec::<f64>();
                        (shown, tokio::time::timeout(limit, read).await)
                    })
                };
                match catch_unwind(AssertUnwindSafe(read)) {
                    Ok((Ok(Ok(_)), Ok(Ok(read)))) if read.len() == y.numel() => {}
                    Ok((shown, read)) => found.push(format!("{i} cannot be shown or read: {shown:?} {read:?}")),
                    Err(_) => found.push(format!("{i} panics when it is read")),
                }
            }
            Ok(Ok(())) => {}
        }
    }
    found
}

fn try_all(calls: &[Call], values: &[(String, TensorFuture)]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut found = String::new();
    for (name, call) in calls {
        for (of, x) in values {
            for what in wrong(&runtime, name, call, x) {
                found += &format!("{name} of {of}: {what}\n");
            }
        }
    }
    assert!(found.is_empty(), "{found}");
}

fn nonsense_gives_values_or_errors_and_never_panics_or_hangs(device: &Device) {
    let types =
        [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8, DType::Bool];
    // Each kernel of a GPU is compiled: one type of a kind.
    let types = if device.name().starts_with("cpu") {
        &types[..]
    } else {
        &[DType::F32, DType::F16, DType::I64, DType::Bool]
    };
    let shapes: [&[usize]; 9] =
        [&[], &[0], &[3], &[1, 1], &[2, 3], &[3, 3], &[2, 0, 3], &[2, 2, 3, 3], &[1, 2, 1, 3]];
    let mut values = Vec::new();
    for &dtype in types {
        for shape in shapes {
            let n: usize = shape.iter().product();
            let x = (device.arange(0, n as i64, 1) - 1).to_dtype(dtype).reshape(shape);
            values.push((format!("{dtype} {shape:?}"), x));
        }
    }
    values.push(("NaN".into(), device.full([2, 3], f64::NAN)));
    values.push(("infinity".into(), device.full([2, 3], f64::INFINITY)));
    values.push(("9 dimensions".into(), device.ones([1; 9])));
    values.push(("64 dimensions".into(), device.ones([1; 64])));
    values.push(("300 dimensions".into(), device.ones([1; 300])));
    values.push(("a failed value".into(), device.ones([2]) + device.ones([3])));
    values.push(("nothing of large sizes".into(), device.zeros([0, 1 << 10, 4])));
    values.push(("65 dimensions".into(), device.ones([1; 65])));
    try_all(&calls(), &values);
}

fn values_larger_than_memory_are_refused_or_never_written(device: &Device) {
    let values = [
        ("a constant of 2^40".to_string(), device.zeros([1usize << 40])),
        ("a constant of 2^64".to_string(), device.zeros([1usize << 62, 4])),
        ("a constant of the largest sizes".to_string(), device.zeros([usize::MAX, usize::MAX, 2])),
    ];
    let calls: Vec<Call> = calls().into_iter().filter(|(name, _)| TRIED_ON_LARGE.contains(name)).collect();
    assert!(calls.len() >= TRIED_ON_LARGE.len());
    try_all(&calls, &values);
}

/// No elements, and sizes whose products and sums no integer holds.
fn sizes_beside_a_size_of_0_overflow_nothing(device: &Device) {
    const HUGE: usize = 1 << 62;
    const LARGEST: usize = isize::MAX as usize - 1;
    let shapes: &[&[usize]] = &[
        &[0, usize::MAX, 4],
        &[0, 1, usize::MAX, 4],
        &[0, 1, LARGEST, 4],
        &[0, LARGEST],
        &[0, LARGEST, LARGEST],
        &[2, LARGEST, 0],
        &[1, 0, HUGE, HUGE],
        &[1, HUGE, HUGE, 0],
        &[HUGE, HUGE, 0],
    ];
    let values: Vec<_> = shapes.iter().map(|&s| (format!("{s:?}"), device.zeros(s))).collect();
    let all = calls();
    // As many parts as there are rows are what is asked for.
    let (parts, calls): (Vec<Call>, Vec<Call>) =
        all.into_iter().partition(|(name, _)| name.starts_with("split") || name.starts_with("chunk"));
    try_all(&calls, &values);
    try_all(&parts, &values[..5]);
}

/// A number that `isize` cannot hold is beyond everything; it is not -1.
fn usize_max_is_no_dimension_and_no_size(device: &Device) {
    const MAX: usize = usize::MAX;
    let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    let byte = device.zeros_dtype([1], DType::U8);
    let refused = [
        ("reshape", x.reshape([MAX, 2])),
        ("reshape", byte.reshape(MAX)),
        ("expand", byte.expand(MAX)),
        ("expand", byte.expand([MAX, 1])),
        ("expand", device.zeros([0, 1]).expand([0, MAX])),
        ("permute", x.permute([0, MAX])),
        ("squeeze", device.ones([2, 1]).squeeze(MAX)),
        ("sum", x.sum(MAX)),
        ("mean", device.ones([2, 2]).mean_keepdim([0, MAX])),
        ("any", x.any(MAX)),
        ("var", device.ones([2, 2]).var(MAX, 0.0)),
        ("norm", device.ones([2, 2]).norm(2.0, MAX)),
        ("logsumexp", device.ones([2, 2]).logsumexp([0, MAX])),
        ("flip", x.flip(MAX)),
        ("roll", x.roll(MAX, 0)),
        ("roll", x.roll(1, MAX)),
        ("repeat", byte.repeat(MAX)),
        ("pad", x.pad([MAX, 1], 0)),
        ("pad_mode", x.pad_mode([0, MAX], PadMode::Replicate)),
        ("i", x.i(MAX)),
        ("i", x.i((.., MAX))),
        ("narrow", x.narrow(0, MAX, 1)),
        ("topk", x.topk(MAX, 0, true).0),
        ("split_with_sizes", x.split_with_sizes([3, MAX], 0).remove(0)),
        (
            "conv1d",
            device.ones([1, 1, 4]).conv1d(device.ones([1, 1, 1]), None, ConvOptions::default().padding(MAX)),
        ),
        ("max_pool2d", device.ones([1, 4, 4]).max_pool2d(PoolOptions::new(1).stride(MAX))),
        ("zeros", device.zeros([0, MAX])),
    ];
    for (i, (name, value)) in refused.iter().enumerate() {
        let error = value.error().unwrap_or_else(|| panic!("{name}, {i}: {value:?} is no mistake"));
        assert_eq!(error.op(), *name, "{i}: {error}");
    }
    let same = |y: TensorFuture| assert_eq!(block_on(y.to_vec::<i32>()).unwrap(), [1, 2, 3, 4], "{y:?}");
    same(x.i(0..MAX));
    same(x.i(..=MAX));
    same(x.clamp_max(MAX));
    same(x.clone().slice_assign(MAX.., device.zeros_dtype((), DType::I32)));
    assert_eq!(x.i(MAX..).dims(), [0, 2]);
    assert_eq!(x.split(MAX, 0).len(), 1);
    assert_eq!(x.repeat([0, 1]).dims(), [0, 2]);
    assert_eq!(device.zeros([0]).repeat(MAX).dims(), [0]);
}

/// Numbers that the integer type cannot hold: PyTorch's clamp of `uint8 [1, 200]` to -5..300 is
/// `[1, 200]`.
fn numbers_beyond_an_integer_type_are_taken_as_they_are(device: &Device) {
    let x = device.from_vec(vec![1u8, 200], [2]);
    let y = device.from_vec(vec![i32::MIN, 7], [2]);
    let bytes = |x: TensorFuture| block_on(x.to_vec::<u8>()).unwrap();
    let ints = |x: TensorFuture| block_on(x.to_vec::<i32>()).unwrap();
    let bools = |x: TensorFuture| block_on(x.to_vec::<bool>()).unwrap();
    assert_eq!(bytes(x.clamp(-5, 300)), [1, 200]);
    assert_eq!(bytes(x.clamp_min(-1)), [1, 200]);
    assert_eq!(bytes(x.clamp_min(300)), [255, 255]);
    assert_eq!(bytes(x.clamp_max(300)), [1, 200]);
    assert_eq!(bytes(x.clamp_max(-1)), [0, 0]);
    assert_eq!(bytes(x.clamp(usize::MAX, usize::MAX)), [255, 255]);
    assert_eq!(bytes(x.maximum(256)), [255, 255]);
    assert_eq!(bytes(x.minimum(i64::MIN)), [0, 0]);
    assert_eq!(ints(y.clamp(i64::MIN, i64::MAX)), [i32::MIN, 7]);
    assert_eq!(ints(y.clamp_max(1i64 << 32)), [i32::MIN, 7]);
    assert_eq!(ints(y.clamp_min(-(1i64 << 40))), [i32::MIN, 7]);
    // Within the type nothing changes.
    assert_eq!(bytes(x.clamp(5, 100)), [5, 100]);
    // More elements than an await computes by itself, and in a chain.
    let many = device.arange(0, 1000, 1).to_dtype(DType::U8);
    assert!(bools((many.clamp(-1, 256).eq(&many)).all_all())[0]);
    // Comparisons are of the same kind.
    assert_eq!(bools(x.lt(300)), [true, true]);
    assert_eq!(bools(x.gt(-1)), [true, true]);
    assert_eq!(bools(x.eq(257)), [false, false]);
    assert_eq!(bools(x.ne(456)), [true, true]);
    assert_eq!(bools(y.ge(1i64 << 32)), [false, false]);
    assert_eq!(bools(many.le(256)), [true; 1000]);
}

/// PyTorch takes dimension 0 of a 0-d value (`maybe_wrap_dim` with `wrap_scalar`,
/// `ensure_nonempty_dim`), and `index_select` keeps its shape (`index_select_out_cpu_` of ATen).
fn one_number_is_a_row_of_one(device: &Device) {
    let x = device.from_vec(vec![3i32], ());
    let (zero, zeros) = (device.from_vec(vec![0i64], ()), device.zeros_dtype([3], DType::I64));
    let ints =
        |x: &TensorFuture| (x.dims().to_vec(), block_on(x.to_dtype(DType::I64).to_vec::<i64>()).unwrap());
    for dim in [0, -1] {
        assert_eq!(ints(&x.cumsum(dim)), (vec![], vec![3]));
        assert_eq!(x.cumsum(dim).dtype(), DType::I64);
        for k in [0, 1] {
            let (value, position) = x.topk(k, dim, false);
            assert_eq!((ints(&value), ints(&position)), ((vec![], vec![3]), (vec![], vec![0])));
            assert_eq!(position.dtype(), DType::I64);
        }
        assert_eq!(ints(&x.gather(dim, &zero)), (vec![], vec![3]));
        assert_eq!(ints(&x.gather(dim, &zeros)), (vec![3], vec![3, 3, 3]));
        assert_eq!(ints(&device.arange(4, 7, 1).gather(dim, &zero)), (vec![], vec![4]));
        assert_eq!(ints(&x.scatter_add(dim, &zero, &x)), (vec![], vec![6]));
        let sources = device.from_vec(vec![1, 2, 4], [3]);
        assert_eq!(ints(&x.scatter_add(dim, &zeros, &sources)), (vec![], vec![10]));
        assert_eq!(
            ints(&device.zeros_dtype([2], DType::I32).scatter_add(dim, &zero, &x)),
            (vec![2], vec![3, 0])
        );
        assert_eq!(ints(&x.index_select(dim, &zero)), (vec![], vec![3]));
        assert_eq!(ints(&x.index_select(dim, zeros.narrow(0, 0, 1))), (vec![], vec![3]));
        assert_eq!(ints(&device.arange(4, 7, 1).index_select(dim, &zero)), (vec![1], vec![4]));
        assert_eq!(ints(&x.flip(dim)), (vec![], vec![3]));
    }
    for (name, wrong) in [
        ("cumsum", x.cumsum(1)),
        ("topk", x.topk(2, 0, true).0),
        ("topk", x.topk(1, -2, true).1),
        ("gather", x.gather(1, &zero)),
        ("gather", x.gather(0, zeros.reshape([3, 1]))),
        ("scatter_add", x.scatter_add(1, &zero, &x)),
        ("index_select", x.index_select(0, &zeros)),
        ("index_select", x.index_select(1, &zero)),
    ] {
        let error = wrong.error().unwrap_or_else(|| panic!("{name} of {wrong:?}"));
        assert_eq!(error.op(), name, "{error}");
    }
    let error = block_on(x.gather(0, device.full([2], 1))).unwrap_err();
    assert!(error.is_index() && error.op() == "gather", "{error}");
    // Gradients go the same way back.
    let leaf = device.full((), 2.0).requires_grad();
    let out = leaf.cumsum(0) + leaf.index_select(0, &zero) + leaf.gather(0, &zeros).sum_all();
    let back = grad(out + leaf.topk(1, 0, true).0, &[&leaf]).remove(0);
    assert_eq!(block_on(back.item::<f32>()).unwrap(), 6.0);
}

/// PyTorch's `dim_list_to_bitset`: "dim 0 appears multiple times in the list of dims".
fn a_dimension_is_named_once(device: &Device) {
    let (x, one) = (device.ones([1, 2]), device.ones(()));
    let wrong = [
        ("flip", x.flip([0, 0])),
        ("flip", x.flip([1, -1])),
        ("flip", one.flip([0, -1])),
        ("squeeze", x.squeeze([0, -2])),
        ("squeeze", one.squeeze([0, 0])),
        ("sum", x.sum([1, 1])),
        ("sum", one.sum([0, -1])),
        ("var", x.var([0, 0], 0.0)),
        ("norm", x.norm(1.0, [0, 0])),
        ("logsumexp", x.logsumexp([1, 1])),
        ("permute", x.permute([0, -2])),
    ];
    for (name, value) in wrong {
        let error = value.error().unwrap_or_else(|| panic!("{name} took a dimension twice"));
        assert!(error.is_argument() && error.op() == name && error.message().contains("twice"), "{error}");
    }
}

/// As `dim=()` in PyTorch: everything is reduced (`make_dim_mask`), but by `any` and `all`
/// (`allow_empty_dims` of `allany_meta`), and nothing is squeezed.
fn no_dimension_is_all_of_them_for_reductions_alone(device: &Device) {
    let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 6.0], [1, 4]);
    let value = |y: TensorFuture| {
        assert_eq!(y.dims(), [0; 0], "{y:?}");
        block_on(y.item::<f32>()).unwrap()
    };
    assert_eq!(value(x.sum(())), 12.0);
    assert_eq!(value(x.mean([0; 0])), 3.0);
    assert_eq!(value(x.prod(Vec::<i32>::new())), 36.0);
    assert_eq!((value(x.max(())), value(x.min(()))), (6.0, 1.0));
    assert_eq!(value(x.var((), 0.0)), 3.5);
    assert_eq!(value(x.norm(1.0, ())), 12.0);
    assert_eq!(value(device.zeros([2, 2]).logsumexp(())), 4f32.ln());
    assert_eq!(x.sum_keepdim(()).dims(), [1, 1]);
    assert_eq!(x.norm_keepdim(2.0, ()).dims(), [1, 1]);
    assert_eq!(x.logsumexp_keepdim(()).dims(), [1, 1]);
    assert_eq!(block_on(x.sub(2.0).any(()).to_vec::<bool>()).unwrap(), [true, false, true, true]);
    assert_eq!(x.all_keepdim(()).dims(), [1, 4]);
    assert_eq!(x.squeeze(()).dims(), [1, 4]);
    assert_eq!(x.squeeze([0; 0]).dims(), [1, 4]);
    assert_eq!((x.squeeze_all().dims(), device.ones(()).squeeze_all().dims()), (&[4][..], &[][..]));
    assert_eq!(x.flip(()).dims(), [1, 4]);
}

/// The op, and the file and line, that the user wrote.
fn errors_name_what_was_called_and_where(device: &Device) {
    let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    let (flag, other) = (x.gt(0.0), device.ones([3]));
    let bad = device.from_vec(vec![0i64, 7], [2]);
    let huge = usize::MAX / 2;
    let start = line!();
    let wrong = [
        ("transpose", x.transpose(0, 5)),
        ("t", device.ones([1, 1, 1]).t()),
        ("permute", x.permute([0, 5])),
        ("reshape", x.reshape(7)),
        ("unsqueeze", x.unsqueeze(9)),
        ("unsqueeze", device.ones([1; 64]).unsqueeze(0)),
        ("squeeze", x.squeeze(9)),
        ("expand", x.expand([3, 3])),
        ("narrow", x.narrow(0, 1, 9)),
        ("i", x.i(5)),
        ("i", x.i((0, 0, 0))),
        ("flip", x.flip(7)),
        ("slice_assign", x.clone().slice_assign(5, &x)),
        ("zeros", device.zeros([huge, 2])),
        ("zeros_dtype", device.zeros_dtype([huge, 2], DType::I64)),
        ("ones", device.ones([huge, 2])),
        ("ones_dtype", device.ones_dtype([huge, 2], DType::I64)),
        ("full", device.full([huge, 2], 1)),
        ("full_dtype", device.full_dtype([huge, 2], 1, DType::I64)),
        ("rand", device.rand([huge, 2])),
        ("randn", device.randn([huge, 2])),
        ("eye", device.eye([huge, 2])),
        ("linspace", device.linspace(0.0, 1.0, huge)),
        ("arange", device.arange(0, i64::MAX, 1)),
        ("from_vec", device.from_vec(vec![1.0f32], [2])),
        ("from_slice", device.from_slice(&[1.0f32], [2])),
        ("clamp", x.clamp(0.0, &other)),
        ("clamp_min", x.clamp_min(&other)),
        ("clamp_max", x.clamp_max(&other)),
        ("bitwise_not", x.bitwise_not()),
        ("masked_fill", x.masked_fill(&x, 1)),
        ("where_cond", x.where_cond(1, 2)),
        ("take", x.take(&x)),
        ("index", x.index(&[Some(&x)])),
        ("gather", x.gather(0, &x)),
        ("index_select", x.index_select(0, &x)),
        ("repeat", x.repeat([huge, 4])),
        ("split", x.split(0, 0).remove(0)),
        ("chunk", x.chunk(1, 9).remove(0)),
        ("flatten", x.flatten(0, 9)),
        ("pad", x.pad([huge / 4, 0, huge / 4, 0], 0)),
        ("pad_mode", x.pad_mode([9, 9], PadMode::Circular)),
        ("dropout", x.dropout(2.0)),
        ("mse_loss", x.mse_loss(&other, ())),
        ("cross_entropy", x.cross_entropy(bad.reshape([1, 2]), ())),
        ("nll_loss", x.nll_loss(&x, ())),
        ("bce_with_logits", x.bce_with_logits(&other, ())),
        ("bce_with_logits", x.bce_with_logits(&x, LossOptions::default().weight(&other))),
        ("matmul", x.matmul(&other)),
        ("bmm", x.bmm(&x)),
        ("addmm", x.addmm(&other, &x, 1, 1)),
        ("einsum", einsum("ij,jk->il", &[&x, &x])),
        ("stack", stack(&[&x, &other], 0)),
        ("stack", stack(&[&device.ones([1; 64])], 0)),
        ("cat", cat(&[&x, &other], 0)),
        ("conv1d", x.conv1d(&x, None, ())),
        ("conv2d", x.reshape([1, 1, 2, 2]).conv2d(device.ones([1, 2, 1, 1]), None, ())),
        ("conv_transpose1d", x.conv_transpose1d(&x, None, ())),
        ("avg_pool2d", x.avg_pool2d(2)),
        ("softmax", x.softmax(3)),
        ("layer_norm", x.layer_norm(&other, &other, 0.0)),
        ("batch_norm", x.batch_norm(&other, &other, None, None, 0.0)),
        ("batch_norm_train", x.batch_norm_train(Some(&other), None, 0.0).0),
        ("std", flag.std(0, 1.0)),
        ("std", x.std(5, 1.0)),
        ("norm", x.norm(f64::NAN, 0)),
        ("scaled_dot_product_attention", x.scaled_dot_product_attention(&other, &x, ())),
        ("sort", x.sort(5, true)),
        ("argsort", x.argsort(5, true)),
        ("topk", x.topk(5, 0, true).1),
        ("tril", other.tril(0)),
        ("pow", x.pow(&other)),
        ("add", &x + &other),
    ];
    let end = line!();
    let mut misnamed = String::new();
    for (name, value) in &wrong {
        match value.error() {
            None => misnamed += &format!("{name}: {value:?} is no mistake\n"),
            Some(error) => {
                let at = error.location();
                let here = at.file().ends_with("nonsense.rs") && (start..end).contains(&at.line());
                if error.op() != *name || !here {
                    misnamed += &format!("{name}: {error}\n");
                }
            }
        }
    }
    assert!(misnamed.is_empty(), "{misnamed}");
    assert_eq!(x.i(5).error().unwrap().message(), "index 5 is not in a dimension of 2");
    let part = x.clone().slice_assign((1, 2..=3, 0), &x);
    assert_eq!(part.error().unwrap().message(), "3 indices for shape [2, 2]");

    // What is only known when it runs: on the CPU a loss is one op, on a GPU several.
    let weighted = || LossOptions::default().weight(device.ones([2]));
    // Of no elements, which are picked for nothing.
    let empty = device.ones([2, 0]);
    let start = line!();
    let wrong = [
        ("cross_entropy", x.cross_entropy(&bad, ())),
        ("cross_entropy", x.cross_entropy(&bad, Reduction::None)),
        ("cross_entropy", x.cross_entropy(&bad, weighted())),
        ("nll_loss", x.nll_loss(&bad, ())),
        ("nll_loss", x.nll_loss(&bad, weighted())),
        ("take", x.take(&bad)),
        ("index", x.index(&[Some(&bad)])),
        ("index_select", x.index_select(0, &bad)),
        ("gather", x.gather(0, bad.reshape([1, 2]))),
        ("embedding", x.embedding(&bad)),
        ("index_select", empty.index_select(0, &bad)),
        ("embedding", empty.embedding(&bad)),
    ];
    let end = line!();
    for (name, value) in wrong {
        let error = block_on(value.wait_to_read()).unwrap_err();
        assert!(error.is_index() && error.op() == name, "{name}: {error}");
        assert!((start..end).contains(&error.location().line()), "{error}");
        assert!(error.message().contains("index 7 "), "{error}");
    }

    // A device that is not there.
    let line = line!() + 1;
    let error = Device::cuda(1000).unwrap_err();
    assert!(error.to_string().contains(&format!("tests/nonsense.rs:{line}")), "{error}");
    // A batch that is made on a thread of its own.
    let loader = data::Loader::<()>::new(2, |_, _| panic!("no such file"));
    let line = line!() + 1;
    let error = block_on(loader.epoch(0, device).next()).unwrap().unwrap_err();
    assert!(error.to_string().contains(&format!("tests/nonsense.rs:{line}")), "{error}");
}

fn a_value_without_elements_is_shown_whatever_its_sizes(device: &Device) {
    let x = device.zeros([0, 1 << 60]);
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [0.0; 0]);
    assert!(block_on(x.display()).unwrap().starts_with("tensor([]"));
}

fn the_norm_of_no_gradients_is_nothing(_: &Device) {
    let (clipped, norm) = optim::clip_grad_norm(&[], 1.0);
    assert!(clipped.is_empty());
    assert_eq!(block_on(norm.item::<f32>()).unwrap(), 0.0);
}

fn functions_of_no_tensors_fail_and_say_what_they_need(_: &Device) {
    for (name, value) in
        [("cat", cat(&none(), 0)), ("stack", stack(&none(), 0)), ("einsum", einsum("ij->ij", &none()))]
    {
        let error = value.error().expect("it failed at once");
        assert!(error.is_argument() && error.op() == name, "{error}");
        assert_eq!(error.message(), "needs at least one tensor");
    }
}

fn parts_of_no_size_or_of_no_dimension_are_one_failed_value(device: &Device) {
    let x = device.ones([4, 2]);
    for (name, parts) in [
        ("split", x.split(0, 0)),
        ("split", x.split(1, 2)),
        ("chunk", x.chunk(0, 0)),
        ("chunk", x.chunk(2, -3)),
    ] {
        assert_eq!(parts.len(), 1, "{name}");
        let error = parts[0].error().expect("it failed at once");
        assert_eq!(error.op(), name, "{error}");
    }
}

fn a_repeated_value_is_one_copy_and_its_mistakes_name_repeat(device: &Device) {
    let x = device.from_vec(vec![1, 2, 3, 4], [2, 2]);
    let y = block_on(x.repeat([2, 1, 2]).to_vec::<i32>()).unwrap();
    assert_eq!(y, [1, 2, 1, 2, 3, 4, 3, 4, 1, 2, 1, 2, 3, 4, 3, 4]);
    assert_eq!(x.repeat([0, 2]).dims(), [0, 4]);
    for wrong in [x.repeat(2), x.repeat([-1, 1]), x.repeat([usize::MAX / 2, 2])] {
        assert_eq!(wrong.error().unwrap().op(), "repeat", "{:?}", wrong.error());
    }
}

fn ranges_that_are_longer_than_any_memory_are_refused(device: &Device) {
    for range in [device.arange(0.0, 1e30, 1.0), device.arange(i64::MIN, i64::MAX, 1)] {
        assert!(range.error().is_some_and(|e| e.is_out_of_memory()), "{:?}", range);
    }
    assert_eq!(device.arange(0, 4, 1).i(1..=isize::MAX).dims(), [3]);
}

/// The generator stands where it stood: what is drawn next has numbers of its own.
fn a_draw_that_fails_at_the_call_uses_no_numbers_up(device: &Device) {
    let drawn = |x: TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
    let own = Generator::new(3);
    let sources: [&dyn Fn(usize) -> TensorFuture; 2] = [&|n| device.rand([n]), &|n| own.randn(device, [n])];
    for draw in sources {
        let before = drawn(draw(4));
        assert!(draw(usize::MAX).error().is_some_and(|e| e.is_out_of_memory()));
        assert_ne!(drawn(draw(4)), before);
    }
    device.seed(3);
    let all = drawn(device.rand([8]));
    device.seed(3);
    let first = drawn(device.rand([4]));
    assert!(device.rand([usize::MAX]).error().is_some());
    assert_eq!([first, drawn(device.rand([4]))].concat(), all);
}

/// Neither differences that a double cannot hold nor products that it rounds to zero.
fn a_range_that_leads_away_is_refused_whatever_its_size(device: &Device) {
    let wrong = [
        device.arange(i64::MAX, i64::MAX - 1, 1),
        device.arange((1i64 << 53) + 1, 1i64 << 53, 1),
        device.arange(i64::MIN, i64::MIN + 1, -1),
        device.arange(1e-200, 0.0, 1e-200),
        device.arange(0, 1, 0),
        device.arange(0.0, f64::NAN, 1.0),
    ];
    for range in wrong {
        assert!(range.error().is_some_and(|e| e.is_argument() && e.op() == "arange"), "{range:?}");
    }
    let ints = |x: TensorFuture| block_on(x.to_vec::<i64>()).unwrap();
    assert_eq!(ints(device.arange(i64::MAX - 1, i64::MAX, 1)), [i64::MAX - 1]);
    assert_eq!(ints(device.arange(i64::MAX, i64::MIN, i64::MIN)), [i64::MAX, -1]);
    assert_eq!(ints(device.arange(5, 5, -1)), [0i64; 0]);
    assert_eq!(device.arange(1e-200, 0.0, -1e-200).dims(), [1]);
}

/// The values between have the sizes of what they were to be made from.
fn an_einsum_that_fails_on_its_way_is_one_failed_value(device: &Device) {
    let x = device.ones([2, 2, 2, 3]);
    let (double, last) = (device.ones_dtype([3, 4], DType::F64), device.ones([4, 5]));
    let elsewhere = Device::cpu_with(CpuOptions::default().threads(1)).ones([3, 4]);
    let failed = device.ones([3, 4]) + device.ones([7]);
    let (huge, wide) = (device.zeros([0, 1 << 40, 1 << 40]), device.zeros([1 << 40, 5]));
    for value in [
        einsum("abcd,de,ef->abcf", &[&x, &double, &last]),
        einsum("abcd,de,ef->abcf", &[&x, &elsewhere, &last]),
        einsum("abcd,de,ef->abcf", &[&x, &failed, &last]),
        einsum("abc,bd,cd->d", &[&huge, &wide, &wide]),
    ] {
        assert!(value.error().is_some() && value.device() == *device, "{value:?}");
    }
}

fn a_roll_has_a_gradient_whatever_its_shift(device: &Device) {
    let weight = device.from_vec(vec![1.0f32, 2.0, 4.0], [3]);
    for (shift, once) in [(isize::MIN, 1), (isize::MIN + 1, 2), (isize::MAX - 1, 0)] {
        let x = device.from_vec(vec![0.0f32, 1.0, 2.0], [3]).requires_grad();
        let y = x.roll(shift, 0);
        let gradient = grad((&y * &weight).sum_all(), &[&x]).remove(0);
        let floats = |x: &TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
        assert_eq!(floats(&y), floats(&x.roll(once, 0)), "{shift}");
        assert_eq!(floats(&gradient), floats(&weight.roll(-once, 0)), "{shift}");
    }
    let x = device.zeros([0]).requires_grad();
    assert_eq!(grad(x.roll(isize::MIN, 0).sum_all(), &[&x])[0].dims(), [0]);
}

fn more_parts_than_memory_has_room_for_are_one_failed_value(device: &Device) {
    let none = device.zeros([usize::MAX]);
    assert!(none.error().is_some());
    for parts in [none.split(1, 0), none.chunk(usize::MAX, 0), device.zeros([1 << 40]).split(1, 0)] {
        assert_eq!(parts.len(), 1);
        assert!(parts[0].error().is_some_and(|e| e.is_out_of_memory()), "{:?}", parts[0]);
    }
}

fn the_places_of_more_elements_than_memory_has_room_for_fail(device: &Device) {
    let places = block_on(device.zeros_dtype([1 << 60], DType::Bool).nonzero());
    assert!(places.as_ref().is_err_and(|e| e.is_out_of_memory() && e.op() == "nonzero"), "{places:?}");
    let places = block_on(device.ones_dtype([2, 0, 3], DType::Bool).nonzero()).unwrap();
    assert_eq!(places.dims(), [0, 3]);
}

fn of_a_value_of_many_dimensions_the_first_elements_are_shown(device: &Device) {
    for x in [device.zeros(vec![7; 20]), device.zeros(vec![2; 40]), device.ones([1; 64])] {
        let text = block_on(x.display()).unwrap();
        assert!(text.starts_with("tensor([[[[[[[[[[[[[[[[[[[["), "{}", &text[..100]);
        assert!(text.len() < 4 << 20, "{}", text.len());
    }
}

fn pages_of_any_size_give_values_and_gradients(device: &Device) {
    const LARGEST: usize = isize::MAX as usize - 1;
    let one = |n: i64| device.full([1], n);
    let (none, rows) = (device.zeros_dtype([0], DType::I64), device.zeros_dtype([0, 0], DType::I64));
    // No queries, and no keys.
    let pages = device.zeros([0, 1, 1, LARGEST]).requires_grad();
    let q = device.zeros([0, 1, 1, LARGEST]).requires_grad();
    let y = q.paged_attention(&pages, &pages, &rows, &none, ());
    assert_eq!(y.dims(), [0, 1, 1, LARGEST]);
    let gradients = grad(y.sum_all(), &[&q, &pages]);
    gradients.iter().for_each(|g| block_on(g.wait_to_read()).unwrap());
    let pages = device.zeros([0, LARGEST, 1, 2]).requires_grad();
    let (q, table) = (device.ones([1, 1, 1, 2]).requires_grad(), device.zeros_dtype([1, 4], DType::I64));
    let y = q.paged_attention(&pages, &pages, table, one(0), ());
    let gradients = grad(y.sum_all(), &[&q, &pages]);
    assert_eq!(block_on(gradients[0].to_vec::<f32>()).unwrap(), [0.0; 2]);
    assert_eq!(gradients[1].dims(), pages.dims());
    // A table of one number that is repeated.
    let (pages, table) =
        (device.ones([1, 32, 1, 2]), device.zeros_dtype([1, 1], DType::I64).expand([1, 1isize << 59]));
    let y = q.paged_attention(&pages, &pages, &table, one(3), ());
    let without_kernel = |error: &Error| error.message().contains("has no CUDA kernel");
    match block_on(y.to_vec::<f32>()) {
        Ok(found) => assert_eq!(found, [1.0; 2]),
        Err(error) => assert!(without_kernel(&error), "{error}"),
    }
    let error = block_on(grad(y.sum_all(), &[&q]).remove(0)).unwrap_err();
    assert!(error.op() == "paged_attention" && (error.is_out_of_memory() || without_kernel(&error)), "{error}");
}

fn a_weight_without_rows_or_columns_has_any_other_size(device: &Device) {
    use futensor::quant::{Format, Quantized};
    for (format, columns) in [(Format::F16, 1usize << 63), (Format::Q8_0, 1 << 60)] {
        let refused = Quantized::from_blocks(device, &[], format, [0, columns]);
        assert!(refused.unwrap_err().message().contains("larger than any memory"));
    }
    let none = Quantized::from_blocks(device, &[], Format::Q4_0, [1 << 63, 0]).unwrap();
    assert!(Quantized::join(&[&none, &none]).unwrap_err().message().contains("larger than any memory"));
    assert!(none.linear(device.ones([1, 0])).error().is_some_and(|e| e.is_out_of_memory()));
}

fn sizes_of_failed_values_overflow_nothing(device: &Device) {
    let image = device.zeros([1, 1, 1 << 63]);
    for mode in [InterpolateMode::Nearest, InterpolateMode::Linear, InterpolateMode::Cubic] {
        assert!(image.interpolate(InterpolateOptions::size(5).mode(mode)).error().is_some());
    }
    let rows = device.zeros([usize::MAX, 4]);
    for lengths in [vec![usize::MAX; 2], vec![usize::MAX, 0], vec![1 << 63; 2]] {
        let options = AttentionOptions::default().sequences(lengths);
        assert!(rows.scaled_dot_product_attention(&rows, &rows, options).error().is_some());
    }
}

/// What is not a future never does device-sized work.
fn a_pool_looks_at_no_place_one_by_one_when_it_is_asked_for(device: &Device) {
    let start = std::time::Instant::now();
    let options = PoolOptions::new(2).dilation(i32::MAX).padding(i32::MAX).stride(1);
    let pooled = device.zeros([1, 1, (1 << 31) - 2]).max_pool1d(options.clone());
    assert!(pooled.error().is_some_and(|e| e.is_shape() && e.message().contains("passes over")));
    let pooled = device.zeros([1, 1, (1 << 31) - 1]).max_pool1d(options);
    assert_eq!(pooled.dims(), [1, 1, (1 << 32) - 2]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

fn a_convolution_of_no_images_has_a_gradient_whatever_their_size(device: &Device) {
    for outs in [1, 4] {
        let x = device.zeros([0, 1, 1 << 40, 1 << 40]).requires_grad();
        let w = device.ones([outs, 1, 3, 3]).requires_grad();
        let gradients = grad(x.conv2d(&w, None, ()).sum_all(), &[&w, &x]);
        assert_eq!(block_on(gradients[0].to_vec::<f32>()).unwrap(), vec![0.0; 9 * outs]);
        block_on(gradients[1].wait_to_read()).unwrap();
        let y = x.conv_transpose2d(device.ones([1, outs, 3, 3]), None, ());
        block_on(grad(y.sum_all(), &[&x])[0].wait_to_read()).unwrap();
    }
}

/// A row of no columns is no work, however many there are.
fn rows_without_columns_are_quantised_at_once(device: &Device) {
    for rows in [1usize << 40, 1 << 60] {
        let none = device.zeros([rows, 0]);
        for format in [Format::Q8_0, Format::F16] {
            if let Ok(weight) = Quantized::from_tensor(&none, format) {
                let back = block_on(weight.dequantize()).unwrap();
                assert_eq!(back.dims(), [rows, 0]);
            }
        }
    }
}

fn attention_of_no_width_finds_the_mean_of_the_values(device: &Device) {
    let (q, k) = (device.zeros([1, 1, 1, 0]), device.zeros([1, 2, 1, 0]));
    let v = device.arange(0.0, 32.0, 1.0).reshape([1, 2, 1, 16]);
    let mean: Vec<f32> = (0..16).map(|c| c as f32 + 8.0).collect();
    let table = device.zeros_dtype([1, 1], DType::I64);
    let found = q.paged_attention(&k, &v, table, device.full_dtype([1], 2, DType::I64), ());
    let flat = q.scaled_dot_product_attention(k.transpose(1, 2), v.transpose(1, 2), ());
    for found in [found, flat] {
        match block_on(found.to_vec::<f32>()) {
            Ok(found) => assert_eq!(found, mean),
            Err(error) => assert!(error.message().contains("no CUDA kernel"), "{error}"),
        }
    }
}

/// "As long as you like" and "as much as there is" overflow nothing.
fn options_without_end_are_no_limits(_: &Device) {
    let (most, longest) = (usize::MAX, Duration::MAX);
    for limit in [longest, Duration::from_nanos(u64::MAX) + Duration::from_nanos(1)] {
        let options = CpuOptions::default().threads(2).linger(longest).hold_back(limit).watchdog(Some(limit));
        let options = options.bytes_max(most).in_flight_ops(most).in_flight_bytes(most).nice(i32::MAX);
        let device = Device::cpu_with(options.queue_ops(most).queue_bytes(most).permits(most));
        // The other thread has nothing to do meanwhile, and looks around.
        let region = device.region(|x: TensorFuture| {
            let as_it_is = |inputs: &[&Meta]| Ok(Meta::new(inputs[0].shape.clone(), DType::F32));
            let slow = custom_fn("slow", &[&x], as_it_is, |run| {
                (0..2000).for_each(|_| std::thread::yield_now());
                let x = run.inputs()[0].to_vec::<f32>().unwrap_or_default();
                run.output().fill_from(x);
                Ok(())
            });
            slow.sum_all()
        });
        let sum = block_on(region.call(device.eye(128)).item::<f32>()).unwrap();
        assert_eq!(sum, 128.0);
    }
}

/// Every promise, of a device with 64 MiB.
const ALL: &[(&str, fn(&Device))] = &[
    (
        "nonsense_gives_values_or_errors_and_never_panics_or_hangs",
        nonsense_gives_values_or_errors_and_never_panics_or_hangs,
    ),
    (
        "values_larger_than_memory_are_refused_or_never_written",
        values_larger_than_memory_are_refused_or_never_written,
    ),
    (
        "a_value_without_elements_is_shown_whatever_its_sizes",
        a_value_without_elements_is_shown_whatever_its_sizes,
    ),
    ("sizes_beside_a_size_of_0_overflow_nothing", sizes_beside_a_size_of_0_overflow_nothing),
    ("usize_max_is_no_dimension_and_no_size", usize_max_is_no_dimension_and_no_size),
    (
        "numbers_beyond_an_integer_type_are_taken_as_they_are",
        numbers_beyond_an_integer_type_are_taken_as_they_are,
    ),
    ("one_number_is_a_row_of_one", one_number_is_a_row_of_one),
    ("a_dimension_is_named_once", a_dimension_is_named_once),
    ("no_dimension_is_all_of_them_for_reductions_alone", no_dimension_is_all_of_them_for_reductions_alone),
    ("errors_name_what_was_called_and_where", errors_name_what_was_called_and_where),
    ("the_norm_of_no_gradients_is_nothing", the_norm_of_no_gradients_is_nothing),
    (
        "functions_of_no_tensors_fail_and_say_what_they_need",
        functions_of_no_tensors_fail_and_say_what_they_need,
    ),
    (
        "parts_of_no_size_or_of_no_dimension_are_one_failed_value",
        parts_of_no_size_or_of_no_dimension_are_one_failed_value,
    ),
    (
        "a_repeated_value_is_one_copy_and_its_mistakes_name_repeat",
        a_repeated_value_is_one_copy_and_its_mistakes_name_repeat,
    ),
    ("ranges_that_are_longer_than_any_memory_are_refused", ranges_that_are_longer_than_any_memory_are_refused),
    ("a_draw_that_fails_at_the_call_uses_no_numbers_up", a_draw_that_fails_at_the_call_uses_no_numbers_up),
    (
        "a_range_that_leads_away_is_refused_whatever_its_size",
        a_range_that_leads_away_is_refused_whatever_its_size,
    ),
    (
        "an_einsum_that_fails_on_its_way_is_one_failed_value",
        an_einsum_that_fails_on_its_way_is_one_failed_value,
    ),
    ("a_roll_has_a_gradient_whatever_its_shift", a_roll_has_a_gradient_whatever_its_shift),
    (
        "more_parts_than_memory_has_room_for_are_one_failed_value",
        more_parts_than_memory_has_room_for_are_one_failed_value,
    ),
    (
        "the_places_of_more_elements_than_memory_has_room_for_fail",
        the_places_of_more_elements_than_memory_has_room_for_fail,
    ),
    (
        "of_a_value_of_many_dimensions_the_first_elements_are_shown",
        of_a_value_of_many_dimensions_the_first_elements_are_shown,
    ),
    ("pages_of_any_size_give_values_and_gradients", pages_of_any_size_give_values_and_gradients),
    (
        "a_weight_without_rows_or_columns_has_any_other_size",
        a_weight_without_rows_or_columns_has_any_other_size,
    ),
    ("sizes_of_failed_values_overflow_nothing", sizes_of_failed_values_overflow_nothing),
    (
        "a_pool_looks_at_no_place_one_by_one_when_it_is_asked_for",
        a_pool_looks_at_no_place_one_by_one_when_it_is_asked_for,
    ),
    (
        "a_convolution_of_no_images_has_a_gradient_whatever_their_size",
        a_convolution_of_no_images_has_a_gradient_whatever_their_size,
    ),
    ("rows_without_columns_are_quantised_at_once", rows_without_columns_are_quantised_at_once),
    ("attention_of_no_width_finds_the_mean_of_the_values", attention_of_no_width_finds_the_mean_of_the_values),
    ("options_without_end_are_no_limits", options_without_end_are_no_limits),
];

/// Runs all of them, each on a device of its own.
pub fn run(kind: &str, alone: bool, ignored: bool, make: fn() -> Device) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if alone {
        arguments.test_threads = Some(1);
    }
    let trials = ALL.iter().map(|&(name, promise)| {
        let trial = move || {
            let kept = catch_unwind(AssertUnwindSafe(|| promise(&make())));
            kept.map_err(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Failed::from(
                    text.or_else(|| panic.downcast_ref::<&str>().map(|t| t.to_string())).unwrap_or_default(),
                )
            })
        };
        Trial::test(format!("{name}[{kind}]"), trial).with_ignored_flag(ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn main() -> ExitCode {
    run("cpu", false, false, || Device::cpu_with(CpuOptions::default().bytes_max(1 << 26).threads(2)))
}
