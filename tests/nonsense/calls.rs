//! Every op on every kind of value, with arguments that nobody means.

use futensor::custom::*;
use futensor::nn::Module;
use futensor::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

pub type Call = (&'static str, Box<dyn Fn(&TensorFuture) -> Vec<TensorFuture>>);

macro_rules! calls {
    ($($name:expr => |$x:ident| $e:expr),* $(,)?) => {
        vec![$(($name, Box::new(|$x: &TensorFuture| -> Vec<TensorFuture> { $e }) as Box<_>)),*]
    };
}

pub fn none() -> [TensorFuture; 0] {
    []
}

pub fn calls() -> Vec<Call> {
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

/// True of an error that shows the inside of something, or has "1 dimensions".
fn strange(text: &str) -> bool {
    let words: Vec<&str> =
        text.split(|c: char| !c.is_alphanumeric() && !"-.".contains(c)).collect();
    let plural = |word: &str| {
        word.ends_with('s') && !["is", "as", "has", "was", "does", "comes"].contains(&word)
    };
    let inside = ["[[", "Some(", "None", "Ok(", " { ", "::"].iter().any(|sign| text.contains(sign));
    inside || words.windows(2).any(|pair| pair[0] == "1" && plural(pair[1]))
}

/// What is wrong with a call on a value, if anything.
fn wrong(
    runtime: &tokio::runtime::Runtime,
    name: &str,
    call: &dyn Fn(&TensorFuture) -> Vec<TensorFuture>,
    x: &TensorFuture,
) -> Vec<String> {
    let Ok(values) = catch_unwind(AssertUnwindSafe(|| call(x))) else {
        return vec!["the call panics".into()];
    };
    let mut found = Vec::new();
    for (i, y) in values.iter().enumerate() {
        let limit = Duration::from_secs(20);
        let wait =
            || runtime.block_on(async { tokio::time::timeout(limit, y.wait_to_read()).await });
        let Ok(ended) = catch_unwind(AssertUnwindSafe(wait)) else {
            found.push(format!("{i} panics when it is awaited"));
            continue;
        };
        match ended {
            Err(_) => found.push(format!("{i} hangs")),
            // What has no kernel on a GPU says so.
            Ok(Err(error))
                if error.is_kernel() && error.message().contains("has no CUDA kernel") => {}
            Ok(Err(error)) if error.is_kernel() && !FAILING_KERNELS.contains(&name) => {
                found.push(format!("{i} fails in its kernel: {error}"));
            }
            Ok(Err(error))
                if error.message().is_empty() || !error.location().file().contains("nonsense/") =>
            {
                found.push(format!("{i} has an error that does not say where: {error}"));
            }
            Ok(Err(error)) if strange(error.message()) => {
                found.push(format!("{i} is told strangely: {error}"))
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
                    Ok((shown, read)) => {
                        found.push(format!("{i} cannot be shown or read: {shown:?} {read:?}"))
                    }
                    Err(_) => found.push(format!("{i} panics when it is read")),
                }
            }
            Ok(Ok(())) => {}
        }
    }
    found
}

pub fn try_all(calls: &[Call], values: &[(String, TensorFuture)]) {
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

pub fn an_error_that_is_told_strangely_is_seen(_: &Device) {
    for text in [
        "a padding of [[4, 4], [4, 4]]",
        "0 shifts for 1 dimensions",
        "Some(3) of it",
        "a Span { start: 1 }",
    ] {
        assert!(strange(text), "{text}");
    }
    for text in [
        "1 is too many for shape [2, 1]",
        "1 shift for 2 dimensions",
        "index 1 has no place in 21 rows",
    ] {
        assert!(!strange(text), "{text}");
    }
}

pub fn nonsense_gives_values_or_errors_and_never_panics_or_hangs(device: &Device) {
    let types = [
        DType::F32,
        DType::F64,
        DType::F16,
        DType::BF16,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
    ];
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

pub fn values_larger_than_memory_are_refused_or_never_written(device: &Device) {
    let values = [
        ("a constant of 2^40".to_string(), device.zeros([1usize << 40])),
        ("a constant of 2^64".to_string(), device.zeros([1usize << 62, 4])),
        ("a constant of the largest sizes".to_string(), device.zeros([usize::MAX, usize::MAX, 2])),
    ];
    let calls: Vec<Call> =
        calls().into_iter().filter(|(name, _)| TRIED_ON_LARGE.contains(name)).collect();
    assert!(calls.len() >= TRIED_ON_LARGE.len());
    try_all(&calls, &values);
}
