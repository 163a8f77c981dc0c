//! Question: what does the device save where a block is planned at once, as a region?
//!
//! Method: the same ops queued one by one and as one call of a region, awaited each time, in turn
//! from sample to sample: a chain over 16 Mi elements, a sum behind a product over 32 Mi, and a
//! step of a Llama-like model of 15 M weights (288 wide, 6 layers, 256 places in its cache,
//! vocabulary 32,000, random float32). A time is one result's. Of the sum it is printed as well how
//! often the two ops ran as one: the caller may be interrupted between its two calls.
//!
//! `cargo bench -p futensor-benches --bench planned`

use futensor::{AttentionOptions, CpuOptions, Device, TensorFuture};
use std::time::{Duration, Instant};

const WIDE: usize = 288;
const HEADS: usize = 6;
const INNER: usize = 768;
const LAYERS: usize = 6;
const PLACES: usize = 256;
const VOCABULARY: usize = 32_000;

struct Layer {
    norms: [TensorFuture; 2],
    /// Queries, keys, values and output; gate, up and down.
    own: [TensorFuture; 4],
    forward: [TensorFuture; 3],
    keys: TensorFuture,
    values: TensorFuture,
}

struct Model {
    layers: Vec<Layer>,
    norm: TensorFuture,
    out: TensorFuture,
    turn: [TensorFuture; 2],
}

impl Model {
    fn new(device: &Device) -> Model {
        let weight = |to: usize, from: usize| device.randn([to, from]) * (from as f32).powf(-0.5);
        let cache = || device.randn([HEADS, PLACES, WIDE / HEADS]);
        let layer = || Layer {
            norms: [device.ones([WIDE]), device.ones([WIDE])],
            own: [(); 4].map(|()| weight(WIDE, WIDE)),
            forward: [weight(INNER, WIDE), weight(INNER, WIDE), weight(WIDE, INNER)],
            keys: cache(),
            values: cache(),
        };
        let angle = device.arange(0, WIDE / HEADS / 2, 1) * 0.1;
        Model {
            layers: (0..LAYERS).map(|_| layer()).collect(),
            norm: device.ones([WIDE]),
            out: weight(VOCABULARY, WIDE),
            turn: [angle.cos(), angle.sin()],
        }
    }

    /// From a token's `[1, WIDE]` to the likeliest next one.
    fn step(&self, x: &TensorFuture) -> TensorFuture {
        let [cos, sin] = &self.turn;
        let mut x = x.clone();
        for layer in &self.layers {
            let h = x.rms_norm(&layer.norms[0], 1e-5);
            let heads = |w: &TensorFuture| h.linear(w, None).reshape([HEADS, 1, WIDE / HEADS]);
            let [q, k, v] = [0, 1, 2].map(|i| heads(&layer.own[i]));
            let (q, k) = (q.rope(cos, sin, false), k.rope(cos, sin, false));
            let keys = futensor::cat(&[layer.keys.narrow(1, 1, PLACES - 1), k], 1);
            let values = futensor::cat(&[layer.values.narrow(1, 1, PLACES - 1), v], 1);
            let found = q.scaled_dot_product_attention(&keys, &values, AttentionOptions::default());
            x = x + found.reshape([1, WIDE]).linear(&layer.own[3], None);
            let h = x.rms_norm(&layer.norms[1], 1e-5);
            let [gate, up, down] = &layer.forward;
            x = x + (h.linear(gate, None).silu() * h.linear(up, None)).linear(down, None);
        }
        x.rms_norm(&self.norm, 1e-5).linear(&self.out, None).argmax(-1)
    }
}

async fn each(iterations: u64, make: impl Fn() -> TensorFuture) -> Duration {
    let from = Instant::now();
    for _ in 0..iterations {
        drop(make().await.expect("a value"));
    }
    from.elapsed()
}

type Ops = Box<dyn Fn(&TensorFuture) -> TensorFuture + Send + Sync>;

fn main() {
    ledger::run("planned", |group, ledger| {
        let runtime = ledger::runtime();
        let device = Device::cpu_with(CpuOptions::default());
        let model = Model::new(&device);
        let rows: [(&str, TensorFuture, Ops); 3] = [
            ("chain", device.randn([16 << 20]), Box::new(|x| ((x * 2.0 + 1.0) * x - 0.5).relu())),
            ("sum behind a product", device.randn([32 << 20]), Box::new(|x| (x * x).sum_all())),
            ("Llama step", device.randn([1, WIDE]), Box::new(move |x| model.step(x))),
        ];
        runtime.block_on(device.waitall()).expect("no errors");
        for (name, x, ops) in rows {
            let region = device.region(|x: TensorFuture| ops(&x));
            let values = |y: TensorFuture| {
                runtime.block_on(y.to_dtype(futensor::DType::F32).to_vec::<f32>())
            };
            let (one, other) =
                (values(ops(&x)).expect("values"), values(region.call(x.clone())).expect("values"));
            assert!(one == other, "{name}: the same bits");
            let before = device.stats();
            ledger.bench(group, name, 1, |n| runtime.block_on(each(n, || ops(&x))));
            let after = device.stats();
            let planned = format!("{name}, planned");
            ledger.bench(group, &planned, 1, |n| {
                runtime.block_on(each(n, || region.call(x.clone())))
            });
            ledger.ratio(name, &planned);
            let (fused, steps) = (after.fused - before.fused, after.started - before.started);
            println!("{name}, op by op: {fused} ops fused, {steps} steps");
        }
    });
}
