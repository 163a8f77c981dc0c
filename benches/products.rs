//! Question: what does a matrix product cost beside the `gemm` crate, called directly with as many
//! threads?
//!
//! Method: products of f32 `[n, n]` for n from 64 to 4096, queued one after the other behind
//! `ready()` on a device of one thread and joined at the end, beside direct calls of `gemm` on one
//! thread. The same with the second operand transposed, which each side brings into its own order
//! (`gemm` as it packs it; the device turns up to 4 MiB of it first, or packs one that stays), and
//! on a device of as many threads as there are cores. Then `[16, 384] x [384, 1536]` against a
//! weight that stays, as a served model has it: f32, f16 and bf16, each beside `gemm` in f32. And
//! one row by a matrix, both ways round. Values are checked before the clock starts.
//!
//! `cargo bench -p futensor-benches --bench products`; a quick pass leaves out n = 2048 and 4096.

use futensor::{CpuOptions, DType, Device, TensorFuture};
use std::time::{Duration, Instant};

/// Sizes, and how many products are queued for a sample.
const SIZES: [(usize, usize); 5] = [(64, 500), (256, 50), (1000, 3), (2048, 1), (4096, 1)];
/// Of these a quick pass takes so many: beyond, one product takes a second and more unoptimised.
const QUICK: usize = 3;
const SERVED: [usize; 3] = [16, 384, 1536];
const ROW: [usize; 3] = [1, 1024, 1024];
const CALLS: usize = 200;

/// Operands of `[m, k] x [k, n]`, the second possibly lying transposed.
struct Case {
    a: TensorFuture,
    b: TensorFuture,
    turned: bool,
}

impl Case {
    async fn new(device: &Device, [m, k, n]: [usize; 3], turned: bool, dtype: DType) -> Case {
        let a = device.randn([m, k]).to_dtype(dtype);
        let b = device.randn(if turned { [n, k] } else { [k, n] }).to_dtype(dtype);
        device.waitall().await.expect("no errors");
        Case { a, b, turned }
    }

    fn product(&self) -> TensorFuture {
        if self.turned { self.a.matmul(self.b.t()) } else { self.a.matmul(&self.b) }
    }
}

async fn ours(device: &Device, case: &Case, calls: usize, iterations: u64) -> Duration {
    let from = Instant::now();
    for _ in 0..calls * iterations as usize {
        device.ready().await;
        case.product().detach();
    }
    device.waitall().await.expect("no errors");
    from.elapsed()
}

/// The same by `gemm` into one buffer that stays.
fn direct(case: &Direct, calls: usize, iterations: u64) -> Duration {
    let [m, _, n] = case.size;
    let mut out = vec![0f32; m * n];
    let from = Instant::now();
    for _ in 0..calls * iterations as usize {
        case.call(&mut out);
        std::hint::black_box(&mut out);
    }
    let time = from.elapsed();
    assert!(out.iter().any(|x| *x != 0.0), "something was computed");
    time
}

struct Direct {
    a: Vec<f32>,
    b: Vec<f32>,
    size: [usize; 3],
    turned: bool,
}

impl Direct {
    async fn of(case: &Case, size: [usize; 3]) -> Direct {
        let wide = |x: &TensorFuture| x.to_dtype(DType::F32);
        let a = wide(&case.a).to_vec().await.expect("a");
        let b = wide(&case.b).to_vec().await.expect("b");
        Direct { a, b, size, turned: case.turned }
    }

    #[allow(unsafe_code)]
    fn call(&self, out: &mut [f32]) {
        let [m, k, n] = self.size;
        assert_eq!((self.a.len(), self.b.len(), out.len()), (m * k, k * n, m * n));
        let (cols, rows) = if self.turned { (k as isize, 1) } else { (1, n as isize) };
        // SAFETY: the lengths were just compared with the sizes, and the strides stay within them.
        unsafe {
            let (out, a, b) = (out.as_mut_ptr(), self.a.as_ptr(), self.b.as_ptr());
            let (k_step, n_step) = (k as isize, n as isize);
            let (no, how) = (false, gemm::Parallelism::None);
            gemm::gemm(
                m, n, k, out, 1, n_step, no, a, 1, k_step, b, cols, rows, 0.0, 1.0, no, no, no, how,
            );
        }
    }
}

/// Both give the same, within the type's precision.
async fn agree(case: &Case, direct: &Direct, tolerance: f32) {
    let got: Vec<f32> = case.product().to_dtype(DType::F32).to_vec().await.expect("a product");
    let mut want = vec![0f32; got.len()];
    direct.call(&mut want);
    let size = (direct.size[1] as f32).sqrt();
    for (got, want) in got.iter().zip(&want) {
        assert!((got - want).abs() <= tolerance * (size + want.abs()), "{got} instead of {want}");
    }
}

fn main() {
    ledger::run("products", |group, ledger| {
        let runtime = ledger::runtime();
        let every = Device::cpu_with(CpuOptions::default());
        let device = Device::cpu_with(CpuOptions::default().threads(1));
        every.seed(5);
        device.seed(5);
        let mut rows: Vec<(String, String)> = Vec::new();
        let sizes = if ledger::is_quick() { &SIZES[..QUICK] } else { &SIZES[..] };
        for &(n, calls) in sizes {
            for turned in [false, true] {
                let case = runtime.block_on(Case::new(&device, [n; 3], turned, DType::F32));
                let peer = runtime.block_on(Direct::of(&case, [n; 3]));
                runtime.block_on(agree(&case, &peer, 1e-4));
                let name = format!("{n}{}", if turned { " transposed" } else { "" });
                ledger.bench(group, &name, calls as u64, |i| {
                    runtime.block_on(ours(&device, &case, calls, i))
                });
                let gemm = format!("gemm, {name}");
                ledger.bench(group, &gemm, calls as u64, |i| direct(&peer, calls, i));
                rows.push((name, gemm));
            }
            let case = runtime.block_on(Case::new(&every, [n; 3], false, DType::F32));
            let name = format!("{n} on every core");
            ledger.bench(group, &name, calls as u64, |i| {
                runtime.block_on(ours(&every, &case, calls, i))
            });
            rows.push((name, n.to_string()));
        }
        for (size, turned, dtype, tolerance) in [
            (SERVED, true, DType::F32, 1e-4),
            (SERVED, true, DType::F16, 2e-3),
            (SERVED, true, DType::BF16, 2e-2),
            (ROW, false, DType::F32, 1e-4),
            (ROW, true, DType::F32, 1e-4),
        ] {
            let [m, k, n] = size;
            let case = runtime.block_on(Case::new(&device, size, turned, dtype));
            let peer = runtime.block_on(Direct::of(&case, size));
            runtime.block_on(agree(&case, &peer, tolerance));
            let name = format!(
                "[{m}, {k}] x [{k}, {n}] {dtype}{}",
                if turned { " transposed" } else { "" }
            );
            ledger.bench(group, &name, CALLS as u64, |i| {
                runtime.block_on(ours(&device, &case, CALLS, i))
            });
            let gemm = format!("gemm, {name}");
            ledger.bench(group, &gemm, CALLS as u64, |i| direct(&peer, CALLS, i));
            rows.push((name, gemm));
        }
        for (name, gemm) in rows {
            ledger.ratio(&name, &gemm);
        }
    });
}
