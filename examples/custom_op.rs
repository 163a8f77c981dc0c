//! Run with `cargo run --example custom_op`; its tests with `cargo test --example custom_op`.
//!
//! Two ops from outside the crate: a reversal that is two closures, and a Fourier transform that
//! implements [`Operation`], with a CUDA kernel beside its CPU one. They queue, fail and are
//! awaited like the crate's own.

use futensor::cuda::{CudaArg, CudaGrid, CudaKernel, CudaRun};
use futensor::custom::{CpuRun, Meta, Operation, Refusal, custom, custom_fn};
use futensor::{DType, Device, Result, TensorFuture};
use std::f64::consts::PI;

/// The elements of a vector from the last to the first.
#[track_caller]
fn reversed(x: &TensorFuture) -> TensorFuture {
    let infer = |inputs: &[&Meta]| Ok(Meta::clone(inputs[0]));
    custom_fn("reverse", &[x], infer, |run| {
        let values =
            run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
        run.output().fill_from(values.into_iter().rev());
        Ok(())
    })
}

/// The discrete Fourier transform of a complex vector, `[n, 2]` of float32 (real and imaginary
/// part), by halving (Cooley and Tukey 1965); `n` is a power of two.
struct Fourier;

impl Operation for Fourier {
    fn name(&self) -> &str {
        "fourier"
    }

    // Called at once, by the caller's thread: a refusal makes a failed value.
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, Refusal> {
        let x = inputs[0];
        match x.shape.dims() {
            [n, 2] if n.is_power_of_two() && x.dtype == DType::F32 => Ok(x.clone()),
            [n, 2] if x.dtype == DType::F32 => {
                Err(Refusal::shape(format!("length {n} is not a power of two")))
            }
            [_, 2] => Err(Refusal::dtype(format!("{}, not float32", x.dtype))),
            _ => Err(Refusal::shape(format!("{} is not [n, 2]", x.shape))),
        }
    }

    // Called by a thread of the device, or by the poll that awaits it where it is short.
    fn run_cpu(&self, run: &mut CpuRun<'_>) -> Result<(), Refusal> {
        let x = run.inputs()[0].to_vec::<f32>().ok_or_else(|| Refusal::dtype("float32 only"))?;
        let x: Vec<[f64; 2]> = x.chunks(2).map(|c| [c[0] as f64, c[1] as f64]).collect();
        let y = fourier(&x);
        run.output().fill_from(y.into_iter().flatten().map(|v| v as f32));
        Ok(())
    }

    // Called by the thread of a CUDA device: it says what to launch, and returns.
    #[allow(unsafe_code)]
    fn run_cuda(&self, run: &mut CudaRun<'_>) -> Result<(), Refusal> {
        let (x, out) = (run.inputs()[0], run.output());
        let n = out.shape()[0];
        let args = [
            CudaArg::Address(x.address()),
            CudaArg::I64(x.strides()[0] as i64),
            CudaArg::I64(x.strides()[1] as i64),
            CudaArg::Address(out.address()),
            CudaArg::I32(n as i32),
        ];
        // SAFETY: the arguments are the kernel's parameters; it reads x inside its shape, which has
        // n rows, and writes the n rows of the output.
        unsafe { run.launch(FOURIER, CudaGrid::cover(n, 128), &args) }
    }

    fn estimate_ns(&self, inputs: &[&Meta], _output: &Meta) -> u64 {
        let n = inputs[0].shape[0] as u64;
        100 + 20 * n * u64::from(n.max(2).ilog2())
    }
}

/// The sum that defines the transform, a thread a bin: more additions than by halving, all at once.
const FOURIER: CudaKernel = CudaKernel::new(
    "fourier",
    r#"
extern "C" __global__ void fourier(
    const float* x, long long row, long long part, float* out, int n
) {
    int k = blockIdx.x * blockDim.x + threadIdx.x;
    if (k >= n) return;
    double re = 0, im = 0;
    for (int j = 0; j < n; ++j) {
        double angle = -6.283185307179586 * (double)((long long)j * k % n) / n;
        double c = cos(angle), s = sin(angle);
        double a = x[j * row], b = x[j * row + part];
        re += a * c - b * s;
        im += a * s + b * c;
    }
    out[2 * k] = (float)re;
    out[2 * k + 1] = (float)im;
}
"#,
);

fn fourier(x: &[[f64; 2]]) -> Vec<[f64; 2]> {
    let n = x.len();
    if n <= 1 {
        return x.to_vec();
    }
    let half = |from: usize| fourier(&x.iter().skip(from).step_by(2).copied().collect::<Vec<_>>());
    let (even, odd) = (half(0), half(1));
    let at = |k: usize| {
        let (e, o) = (even[k % (n / 2)], odd[k % (n / 2)]);
        let (sin, cos) = (-2.0 * PI * k as f64 / n as f64).sin_cos();
        [e[0] + o[0] * cos - o[1] * sin, e[1] + o[0] * sin + o[1] * cos]
    };
    (0..n).map(at).collect()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let device = Device::try_gpu(0);
    // Closures have no CUDA side: a value of a GPU's comes to the CPU for them.
    let x = device.arange(0.0, 8.0, 1.0).to_device(&Device::cpu());
    println!("reversed: {}", reversed(&x).display().await?);

    // A wave that turns twice in eight samples has all its weight in bin 2.
    let turns = device.arange(0.0, 8.0, 1.0) * (2.0 * PI * 2.0 / 8.0);
    let wave = futensor::stack(&[turns.cos(), turns.sin()], 1);
    let bins = custom(Fourier, &[&wave]);
    println!("its bins: {}", bins.round().display().await?);

    let refused = custom(Fourier, &[&device.ones([6, 2])]);
    if let Some(error) = refused.error() {
        println!("refused: {error}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reversal_reverses_a_view_too() {
        let device = Device::cpu();
        let x = device.from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]);
        let column = x.t().i(1);
        assert_eq!(reversed(&column).to_vec::<f32>().await.unwrap(), [4.0, 2.0]);
        let wrong = reversed(&device.arange(0, 3, 1));
        assert!(wrong.await.unwrap_err().is_dtype());
    }

    #[tokio::test]
    async fn fourier_agrees_with_the_sum_that_defines_it() {
        let n = 64;
        // On a GPU, too, where there is one.
        let device = Device::try_gpu(0);
        device.seed(7);
        let x = device.randn([n, 2]).await.unwrap();
        let fast = custom(Fourier, &[&x]).to_vec::<f32>().await.unwrap();
        let x = x.to_vec::<f32>().await.unwrap();
        for k in 0..n {
            let mut sum = [0.0f64; 2];
            for j in 0..n {
                let (sin, cos) = (-2.0 * PI * (k * j) as f64 / n as f64).sin_cos();
                let (re, im) = (x[2 * j] as f64, x[2 * j + 1] as f64);
                sum = [sum[0] + re * cos - im * sin, sum[1] + re * sin + im * cos];
            }
            for part in 0..2 {
                let off = (fast[2 * k + part] as f64 - sum[part]).abs();
                assert!(off < 1e-4, "bin {k} is off by {off}");
            }
        }
    }

    #[tokio::test]
    async fn refusal_says_why_and_where() {
        let refused = custom(Fourier, &[&Device::cpu().ones([6, 2])]);
        let error = refused.await.unwrap_err();
        assert!(error.is_shape());
        assert!(error.to_string().contains("6 is not a power of two"), "{error}");
        assert!(error.to_string().contains("custom_op.rs"), "{error}");
    }
}
