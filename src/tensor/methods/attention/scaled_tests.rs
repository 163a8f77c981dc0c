//! Ways of attention beside each other.

use crate::{AttentionOptions, DType, Device, GradOptions, grad_with};

/// Attention with and without a stored matrix of scores agrees: values, and gradients of all
/// operands.
#[tokio::test]
async fn long_sequences_have_the_values_and_gradients_of_short_ones() {
    let device = Device::cpu_with(Default::default());
    let (q, k) = (device.randn([2, 1, 700, 16]), device.randn([1, 3, 900, 16]));
    let (v, mask) = (device.randn([3, 900, 8]), device.randn([700, 900]));
    for causal in [false, true] {
        let leaves = [&q, &k, &v, &mask].map(|x| x.requires_grad());
        let [lq, lk, lv, lmask] = &leaves;
        let options = AttentionOptions::default().causal(causal);
        let long = lq.scaled_dot_product_attention(lk, lv, options.clone().mask(lmask));
        // A few queries at a time have few scores.
        let parts: Vec<_> = (0..7)
            .map(|i| {
                let rows = |x: &crate::TensorFuture| x.narrow(-2, i * 100, 100);
                let see = device
                    .arange(i * 100, i * 100 + 100, 1)
                    .unsqueeze(1)
                    .ge(device.arange(0, 900, 1));
                let hidden = see.where_cond(rows(lmask), f64::NEG_INFINITY);
                let mask = if causal { hidden } else { rows(lmask) };
                let options = AttentionOptions::default().mask(mask);
                rows(lq).scaled_dot_product_attention(lk, lv, options)
            })
            .collect();
        let short = crate::cat(&parts, -2);
        let up = device.randn([2, 3, 700, 8]);
        let close = async |a: &crate::TensorFuture, b: &crate::TensorFuture, what: &str| {
            let most = (a - b).abs().max_all().item::<f32>().await.unwrap();
            assert!(most < 2e-3, "{what}, causal {causal}: {most}");
        };
        close(&long, &short, "values").await;
        let options = || GradOptions::default().upstream(&up).retain(true);
        let a = grad_with(&long, &leaves, options());
        let b = grad_with(&short, &leaves, options());
        for (i, (a, b)) in a.iter().zip(&b).enumerate() {
            close(a, b, ["q", "k", "v", "mask"][i]).await;
        }
    }
}

/// A small matrix of scores is computed in blocks if it is not kept for a gradient and there
/// are several queries.
#[tokio::test]
async fn few_scores_are_kept_on_a_tape_alone() {
    let device = Device::cpu_with(Default::default());
    let [q, k, v] = [12, 20, 20].map(|rows| device.randn([2, 3, rows, 8]));
    let mask = device.randn([12, 20]).gt(-0.5);
    device.waitall().await.unwrap();
    let attend = |q: &crate::TensorFuture, mask: Option<&crate::TensorFuture>| {
        let options = AttentionOptions::default().causal(true);
        let options = mask.map_or(options.clone(), |mask| options.mask(mask));
        q.scaled_dot_product_attention(&k, &v, options)
    };
    // The values, and whether a single op computed them.
    let of = async |make: &dyn Fn() -> crate::TensorFuture| {
        let recorder = device.record();
        let values = make().to_vec::<f32>().await.unwrap();
        let steps = recorder.finish().steps;
        let mut ops = steps.iter().flat_map(|step| &step.ops);
        (values, ops.any(|op| op.name == "scaled_dot_product_attention"))
    };
    let (leaf, one) = (q.requires_grad(), q.narrow(-2, 3, 1));
    for mask in [None, Some(&mask)] {
        let (by_blocks, at_once) = of(&|| attend(&q, mask)).await;
        let (kept, at_once_on_a_tape) = of(&|| attend(&leaf, mask)).await;
        assert!(at_once && !at_once_on_a_tape);
        assert!(by_blocks.iter().zip(&kept).all(|(a, b)| (a - b).abs() < 1e-5));
        assert!(
            of(&|| crate::no_grad(|| attend(&leaf, mask))).await.1,
            "nothing is put on the tape"
        );
    }
    assert!(!of(&|| attend(&one, None)).await.1, "one query");
}

/// Concatenated sequences give the same values and gradients as single ones.
#[tokio::test]
async fn sequences_do_not_see_each_other() {
    let device = Device::cpu_with(Default::default());
    for causal in [false, true] {
        let lengths = [3usize, 5, 5, 0, 1, 7];
        let leaves = [4, 4, 6].map(|width| device.randn([2, 21, width]).requires_grad());
        let options = || AttentionOptions::default().causal(causal);
        let attend = |x: &[crate::TensorFuture], options| {
            x[0].scaled_dot_product_attention(&x[1], &x[2], options)
        };
        let together = attend(&leaves, options().sequences(lengths));
        let mut from = 0;
        let alone: Vec<_> = lengths
            .iter()
            .map(|&n| {
                from += n;
                attend(&leaves.each_ref().map(|x| x.narrow(-2, from - n, n)), options())
            })
            .collect();
        let alone = crate::cat(&alone, -2);
        let up = device.randn([2, 21, 6]);
        let grads = |y: &crate::TensorFuture| {
            grad_with(y, &leaves.each_ref(), GradOptions::default().upstream(&up).retain(true))
        };
        let pairs = [(together.clone(), alone.clone())];
        for (a, b) in pairs.into_iter().chain(grads(&together).into_iter().zip(grads(&alone))) {
            let most = (a - b).abs().max_all().item::<f32>().await.unwrap();
            assert!(most < 1e-5, "causal {causal}: {most}");
        }
    }
    let (x, mask) = (device.ones([4, 2]), device.ones([4, 4]));
    let why = |options: AttentionOptions| {
        x.scaled_dot_product_attention(&x, &x, options).error().unwrap().message().to_owned()
    };
    let sequences = AttentionOptions::default().sequences([1, 2]);
    assert_eq!(why(sequences.clone()), "sequences of 3 together, beside 4 queries and 4 keys");
    assert_eq!(why(sequences.mask(&mask)), "takes neither a mask nor lengths beside sequences");
    // A sum of lengths that overflows is refused too.
    let all = AttentionOptions::default().sequences([usize::MAX, 5]);
    assert!(x.scaled_dot_product_attention(&x, &x, all).error().unwrap().is_shape());
}

/// A cap bends the scores of a plain cache as it does those over pages, which are compared with
/// PyTorch.
#[tokio::test]
async fn a_cap_is_the_same_beside_pages() {
    let device = Device::cpu_with(Default::default());
    let (q, k) = (device.randn([2, 3, 4, 8]), device.randn([2, 5, 2, 8]));
    let v = device.randn([2, 5, 2, 6]);
    let (table, lengths) = (device.arange(0, 2, 1).unsqueeze(1), device.arange(4, 6, 1));
    let options = AttentionOptions::default().scale(2.0);
    let turned = |x: &crate::TensorFuture| x.transpose(1, 2);
    let of = |options: &AttentionOptions| {
        let paged = q.paged_attention(&k, &v, &table, &lengths, options.clone());
        let options = options.clone().grouped(true).lengths(&lengths);
        let plain = turned(&q).scaled_dot_product_attention(turned(&k), turned(&v), options);
        [paged, turned(&plain)]
    };
    let apart = async |[a, b]: [crate::TensorFuture; 2]| {
        (a - b).abs().max_all().item::<f32>().await.unwrap()
    };
    let (capped, plain) = (of(&options.clone().cap(0.5)), of(&options));
    let [one, other] = [&capped[1], &plain[1]].map(Clone::clone);
    assert!(apart(capped).await < 1e-5 && apart(plain).await < 1e-5);
    assert!(apart([one, other]).await > 0.1);
}

#[tokio::test]
async fn a_cap_that_is_none_is_refused() {
    let device = Device::cpu();
    let (q, one) = (device.ones([1, 1, 1, 8]), device.full_dtype([1], 1, DType::I64));
    for cap in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let options = || AttentionOptions::default().cap(cap);
        let table = device.zeros_dtype([1, 1], DType::I64);
        for found in [
            q.scaled_dot_product_attention(&q, &q, options()),
            q.paged_attention(&q, &q, table, &one, options()),
        ] {
            let error = found.await.unwrap_err().to_string();
            assert!(error.contains("takes a finite cap above zero, not"), "{error}");
        }
    }
}
