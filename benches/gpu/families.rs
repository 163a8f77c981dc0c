//! One op of each family of kernels: the GPU's own time for it, by events.

use super::{median, row, row_of, wait};
use futensor::cuda::CudaOptions;
use futensor::quant::{Format, Quantized};
use futensor::{
    AttentionOptions, ConvOptions, DType, Device, GradOptions, TensorFuture, grad_with,
};
use futures::executor::block_on;

/// The GPU's time for what one call queues, in seconds. Its kernels are compiled before.
fn on_gpu(device: &Device, name: &str, call: impl Fn() -> TensorFuture) -> f64 {
    let time = median(10, || {
        let recording = device.record();
        block_on(call().wait_to_read()).expect("a value");
        wait(device);
        let steps = recording.finish().steps;
        let times: Vec<_> =
            steps.iter().filter(|s| s.by_device).map(|s| s.ended - s.began).collect();
        assert!(!times.is_empty(), "the GPU has timed nothing of {name}");
        times.iter().map(|time| time.as_secs_f64()).sum()
    });
    row(&format!("GPU's time: {name}"), time * 1e6, "us");
    time
}

/// All families; `n` is the side of the large matrices. With `only`, that one is called three times
/// and not timed, for a profiler.
pub fn all(n: usize, only: Option<&str>) {
    let device =
        Device::cuda_with(0, CudaOptions::default().streams(1).timed(1)).expect("there was one");
    let made = |value: TensorFuture| TensorFuture::from(block_on(value).expect("a value"));
    let x = made(device.randn([n, n]));
    let half = made(x.to_dtype(DType::BF16));
    // In memory, as a peer's are: a constant would be one element.
    let (weight, bias) = (made(device.ones([n]) + 0.0), made(device.zeros([n]) + 0.0));
    let index = made((device.rand([n]) * n as f64).floor().to_dtype(DType::I64));
    let ids = made(device.zeros([n, n]).to_dtype(DType::I64) + &index.reshape([n, 1]));
    let run = |name: &str, call: &dyn Fn() -> TensorFuture| match only {
        None => on_gpu(&device, name, call),
        Some(only) => {
            for _ in 0..if only == name { 3 } else { 0 } {
                block_on(call().wait_to_read()).expect("a value");
                wait(&device);
            }
            f64::NAN
        }
    };

    // What moves most is what the memory gives.
    let bytes_a_second = 12.0 * (n * n) as f64 / run("add", &|| &x + &x);
    run("gelu", &|| x.gelu());
    run("sum of rows", &|| x.sum([1]));
    run("sum of columns", &|| x.sum([0]));
    run("argmax of rows", &|| x.argmax(1));
    run("softmax of rows", &|| x.softmax(1));
    run("softmax of rows, bf16", &|| half.softmax(1));
    run("softmax of columns", &|| x.softmax(0));
    run("layer norm", &|| x.layer_norm(&weight, &bias, 1e-5));
    run("layer norm, bf16", &|| {
        half.layer_norm(&weight.to_dtype(DType::BF16), &bias.to_dtype(DType::BF16), 1e-5)
    });
    run("transposed copy", &|| x.transpose(0, 1).reshape([n * n]));
    run("cumsum of rows", &|| x.cumsum(1));
    run("sort of rows", &|| x.sort(1, false));
    run("50 largest of rows", &|| x.topk(50, 1, true).0);
    run("rows by index", &|| x.index_select(0, &index));
    run("scatter_add of rows", &|| device.zeros([n, n]).scatter_add(0, &ids, &x));
    run("product with bias and gelu", &|| (x.matmul(&x) + &bias).gelu());
    let products_of_halves = run("product with bias and gelu, bf16", &|| {
        (half.matmul(&half) + &bias.to_dtype(DType::BF16)).gelu()
    });
    let terms_a_second = (n * n * n) as f64 / products_of_halves;
    let image = made(device.randn([32, 64, n / 64, n / 64]));
    let filter = made(device.randn([64, 64, 3, 3]));
    run("convolution 3 x 3, 64 channels", &|| {
        image.conv2d(&filter, None, ConvOptions::default().padding(1))
    });
    run("greatest of 2 x 2", &|| image.max_pool2d(2));
    // Heads of 128, four to a head of keys and values, as language models have them.
    let heads = |dims: [usize; 4]| made(device.randn(dims).to_dtype(DType::BF16));
    let (q, kv) = (heads([4, 16, n / 2, 128]), heads([4, 4, n / 2, 128]));
    run("causal attention, bf16, grouped heads of 128", &|| {
        let options = AttentionOptions::default().causal(true).grouped(true);
        q.scaled_dot_product_attention(&kv, &kv, options)
    });
    // Each sequence has its keys in pages of 16, all over the cache.
    let (keys, sequences, page) = (n / 2, 32, 16);
    let pages = sequences * keys / page;
    let cache = heads([pages, page, 4, 128]);
    let table: Vec<i64> = (0..pages as i64).map(|k| k * 7 % pages as i64).collect();
    let table = made(device.from_vec(table, [sequences, keys / page]));
    let lengths = made(device.from_vec(vec![keys as i64; sequences], [sequences]));
    let one = made(device.randn([sequences, 16, 128]).to_dtype(DType::BF16));
    run("attention of 32 sequences, bf16, grouped heads of 128", &|| {
        one.paged_attention(&cache, &cache, &table, &lengths, ())
    });
    // The peer's weights are bf16. Beside each the time for its bytes: weights and rows read, rows
    // written.
    let on_host = made(x.to_device(&Device::cpu()));
    for format in [Format::Q4_0, Format::Q8_0, Format::BF16] {
        let weight = Quantized::from_tensor(&on_host, format).expect("rows of whole blocks");
        let weight = weight.to_device(&device);
        for rows in [1, 8, 64, 512] {
            let few = made(x.narrow(0, 0, 1).expand([rows, n]) + 0.0);
            let name = format!("{rows} rows by weights, {format}");
            run(&name, &|| weight.linear(&few));
            if only.is_none() {
                let floor = (weight.bytes() + 8 * rows * n) as f64 / bytes_a_second;
                row_of("the bytes' floor", &format!("GPU's time: {name}"), floor * 1e6, "us");
            }
        }
    }
    for (dtype, name) in [(DType::F32, "float32"), (DType::BF16, "bf16")] {
        let q = made(device.randn([4, 16, n / 2, 64]).to_dtype(dtype));
        let causal = || AttentionOptions::default().causal(true);
        run(&format!("causal attention, {name}"), &|| {
            q.scaled_dot_product_attention(&q, &q, causal())
        });
        // All three gradients: nine products of the half of the scores that is seen, two of which
        // make the sums of each query, three what flows to queries, four what flows to the rest.
        let leaves = [&q, &q, &q].map(|x| made(x + 0.0).requires_grad());
        let [a, b, c] = &leaves;
        let found = a.scaled_dot_product_attention(b, c, causal());
        block_on(found.wait_to_read()).expect("a value");
        let gradients = format!("gradients of causal attention, {name}");
        run(&gradients, &|| {
            let mut all = grad_with(&found, &leaves, GradOptions::default().upstream(&q));
            let last = all.remove(2);
            all.iter().for_each(TensorFuture::detach);
            last
        });
        if only.is_none() && dtype == DType::BF16 {
            let floor = 9.0 * (4 * 16 * 64 * n / 2 * n / 2) as f64 / 2.0 / terms_a_second;
            row_of("the products' floor", &format!("GPU's time: {gradients}"), floor * 1e6, "us");
        }
        let one = made(q.narrow(2, 0, 1) + 0.0);
        run(&format!("attention of one query, {name}"), &|| {
            one.scaled_dot_product_attention(&q, &q, ())
        });
    }
}
