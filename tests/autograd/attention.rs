//! Gradients of attention whose scores are too many for one block.

use crate::{block_on, device, seed};
use futensor::{AttentionOptions, DType, Device, Generator, Result, TensorFuture, grad};

struct Shapes {
    batch: usize,
    rows: usize,
    keys: usize,
}

/// Queries, keys, values, upstream, and numbers that are added to the scores.
fn operands(device: &Device, lot: &Generator, shapes: &Shapes) -> [TensorFuture; 5] {
    let Shapes { batch, rows, keys } = *shapes;
    let made =
        |rows, columns| lot.randn_dtype(device, [batch, rows, columns], DType::F64).requires_grad();
    [made(rows, 4), made(keys, 4), made(keys, 3), made(rows, 3), made(rows, keys)]
}

/// The same out of products and a softmax.
fn plain([q, k, v, bias]: [&TensorFuture; 4], causal: bool, biased: bool) -> TensorFuture {
    let (rows, keys) = (q.dims()[1], k.dims()[1]);
    let mut scores = q.matmul(k.transpose(-2, -1)) * 0.5;
    if biased {
        scores = scores + bias;
    }
    if causal {
        let places = |n: usize| q.device().arange(0, n, 1);
        let sees = places(rows).unsqueeze(1).ge(places(keys));
        scores = sees.where_cond(&scores, f64::NEG_INFINITY);
    }
    scores.softmax(-1).matmul(v)
}

fn distance(a: &TensorFuture, b: &TensorFuture) -> Result<f64> {
    block_on((a - b).abs().max_all().item::<f64>())
}

#[test]
fn gradients_block_by_block_are_those_of_the_whole() -> Result<()> {
    let (device, lot) = (device(), Generator::new(seed()));
    let few_queries = Shapes { batch: 1, rows: 150, keys: 20_000 };
    let few_keys = Shapes { batch: 70, rows: 300, keys: 250 };
    let square = Shapes { batch: 16, rows: 260, keys: 260 };
    for (shapes, causal, biased) in [
        (&few_queries, false, false),
        (&few_queries, true, false),
        (&few_keys, true, false),
        (&few_keys, true, true),
        (&square, true, false),
        (&square, false, true),
    ] {
        let [q, k, v, up, bias] = operands(&device, &lot, shapes);
        let options = AttentionOptions::default().causal(causal);
        let options = if biased { options.mask(&bias) } else { options };
        let own = (q.scaled_dot_product_attention(&k, &v, options) * &up).sum_all();
        let want = (plain([&q, &k, &v, &bias], causal, biased) * &up).sum_all();
        let leaves: &[&TensorFuture] = if biased { &[&q, &k, &v, &bias] } else { &[&q, &k, &v] };
        for (own, want) in grad(&own, leaves).iter().zip(grad(&want, leaves)) {
            let (far, what) = (distance(own, &want)?, (causal, biased, own.dims().to_vec()));
            assert!(far < 1e-11, "{what:?}: {far}");
        }
    }
    Ok(())
}

#[test]
fn no_step_of_a_gradient_makes_all_the_scores() -> Result<()> {
    let device = device();
    let [q, k, v] = [(); 3].map(|()| device.randn([4, 1024, 8]).requires_grad());
    let all = 4 * 1024 * 1024 * 4;
    let options = AttentionOptions::default().causal(true);
    let loss = q.scaled_dot_product_attention(&k, &v, options).square().sum_all();
    for gradient in grad(&loss, &[&q, &k, &v]) {
        block_on(&gradient)?;
    }
    let peak = device.stats().bytes_peak;
    assert!(peak < all, "{peak} bytes at once, where all scores are {all}");
    Ok(())
}
