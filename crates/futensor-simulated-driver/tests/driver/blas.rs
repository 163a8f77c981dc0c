//! cuBLAS: gemms against a plain product, in the order of their stream.

use crate::Test;
use crate::rig::{code, context};
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, StridedBatchedConfig, result, sys};
use cudarc::driver::{CudaSlice, DevicePtr};
use futensor_simulated_driver::{ILLEGAL_ADDRESS, Simulator};
use half::{bf16, f16};

pub const TESTS: &[(&str, Test)] = &[
    ("sgemm_and_dgemm_multiply_with_every_transposition", transpositions),
    ("strided_batches_are_independent", batches),
    ("half_types_accumulate_in_f32", halves),
    ("gemv_multiplies_rows_and_columns_with_a_strided_vector", gemv),
    ("lt_matmul_adds_a_bias_and_activates", lt),
    ("a_gemm_reads_and_writes_for_the_race_check", races),
    ("a_gemm_beyond_its_matrices_is_refused", bounds),
    ("a_capture_asks_for_no_gemm_that_was_never_asked_for", capture),
    ("a_gemm_counts_as_a_launch_for_faults", faults),
];

const N: sys::cublasOperation_t = sys::cublasOperation_t::CUBLAS_OP_N;
const T: sys::cublasOperation_t = sys::cublasOperation_t::CUBLAS_OP_T;

/// Small whole numbers, so that every sum is exact.
fn numbers(n: usize, seed: u32) -> Vec<f32> {
    (0..n as u32)
        .map(|i| {
            ((i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40503)) >> 13) as f32 % 9.0 - 4.0
        })
        .collect()
}

/// Element (row, column) of a column-major matrix, transposed or not.
fn at(x: &[f32], leading: usize, transposed: bool, row: usize, column: usize) -> f32 {
    if transposed { x[row * leading + column] } else { x[column * leading + row] }
}

fn capture(_: &Simulator) {
    use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as MODE;
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let x = stream.clone_htod(&numbers(16, 1)).unwrap();
    let mut out = stream.alloc_zeros::<f32>(16).unwrap();
    let [m, n, k, lda, ldb, ldc] = [4; 6];
    let mut multiply = |transa| {
        let config =
            GemmConfig { transa, transb: N, m, n, k, alpha: 1.0f32, lda, ldb, beta: 0.0, ldc };
        // SAFETY: the matrices have the sizes given.
        unsafe { blas.gemm(config, &x, &x, &mut out) }
    };
    multiply(N).unwrap();
    stream.begin_capture(MODE).unwrap();
    multiply(N).unwrap();
    assert!(multiply(T).is_err());
    let plain = cudarc::driver::sys::CUgraphInstantiate_flags(0);
    assert_eq!(code(stream.end_capture(plain).map(drop)), 901);
    multiply(T).unwrap();
    stream.begin_capture(MODE).unwrap();
    multiply(T).unwrap();
    assert!(stream.end_capture(plain).unwrap().is_some());
}

fn transpositions(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let (m, n, k) = (7usize, 5, 11);
    for (ta, tb) in [(N, N), (N, T), (T, N), (T, T)] {
        let (lda, ldb, ldc) = (13usize, 14, 9);
        let (a, b, c) = (numbers(lda * 11, 1), numbers(ldb * 11, 2), numbers(ldc * n, 3));
        let mut expected = c.clone();
        for row in 0..m {
            for column in 0..n {
                let sum: f32 = (0..k)
                    .map(|i| at(&a, lda, ta == T, row, i) * at(&b, ldb, tb == T, i, column))
                    .sum();
                expected[column * ldc + row] = 2.0 * sum - 3.0 * c[column * ldc + row];
            }
        }
        let config = GemmConfig {
            transa: ta,
            transb: tb,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: 2.0f32,
            lda: lda as i32,
            ldb: ldb as i32,
            beta: -3.0,
            ldc: ldc as i32,
        };
        let (a32, b32) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
        let mut c32 = stream.clone_htod(&c).unwrap();
        // SAFETY: the matrices have the sizes given.
        unsafe { blas.gemm(config, &a32, &b32, &mut c32) }.unwrap();
        assert_eq!(stream.clone_dtoh(&c32).unwrap(), expected);

        let wide = |x: &[f32]| {
            stream.clone_htod(&x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>()).unwrap()
        };
        let (a64, b64, mut c64) = (wide(&a), wide(&b), wide(&c));
        let config = GemmConfig {
            transa: ta,
            transb: tb,
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: 2.0f64,
            lda: lda as i32,
            ldb: ldb as i32,
            beta: -3.0,
            ldc: ldc as i32,
        };
        // SAFETY: as above.
        unsafe { blas.gemm(config, &a64, &b64, &mut c64) }.unwrap();
        let got: Vec<f32> = stream.clone_dtoh(&c64).unwrap().iter().map(|&x| x as f32).collect();
        assert_eq!(got, expected);
    }
}

fn plain<X>(m: i32, n: i32, k: i32, alpha: X, beta: X) -> GemmConfig<X> {
    GemmConfig { transa: N, transb: N, m, n, k, alpha, lda: m, ldb: k, beta, ldc: m }
}

fn batches(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let (a, b) = (numbers(4 * 3 * 2, 4), numbers(4 * 2 * 5, 5));
    let config = StridedBatchedConfig {
        gemm: plain(3, 5, 2, 1.0f32, 0.0),
        batch_size: 4,
        stride_a: 6,
        stride_b: 10,
        stride_c: 15,
    };
    let (a_device, b_device) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    // SAFETY: written by the gemm before it is read; beta is 0, so the NaNs in it do not count.
    let mut c: CudaSlice<f32> = unsafe { stream.alloc(60) }.unwrap();
    // SAFETY: the matrices have the sizes given.
    unsafe { blas.gemm_strided_batched(config, &a_device, &b_device, &mut c) }.unwrap();
    let got = stream.clone_dtoh(&c).unwrap();
    for (i, &got) in got.iter().enumerate() {
        let (batch, column, row) = (i / 15, i % 15 / 3, i % 3);
        let expected: f32 =
            (0..2).map(|j| a[batch * 6 + j * 3 + row] * b[batch * 10 + column * 2 + j]).sum();
        assert_eq!(got, expected);
    }
}

fn halves(_: &Simulator) {
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    // 4096 ones and a half: an f16 sum would stand still at 2048, a bf16 one at 256.
    let k = 4097;
    let mut ones = vec![1.0f32; k];
    ones[k - 1] = 0.5;
    let c32 = stream.alloc_zeros::<f32>(1).unwrap();
    let run = |element: sys::cudaDataType, a: u64, b: u64| {
        let (alpha, beta) = (1.0f32, 0.0f32);
        // SAFETY: the operands have k elements of the type given, the result one f32.
        unsafe {
            result::gemm_ex(
                *blas.handle(),
                N,
                N,
                1,
                1,
                k as i32,
                (&raw const alpha).cast(),
                a as *const _,
                element,
                1,
                b as *const _,
                element,
                k as i32,
                (&raw const beta).cast(),
                c32.device_ptr(&stream).0 as *mut _,
                sys::cudaDataType_t::CUDA_R_32F,
                1,
                sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                sys::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        }
        .unwrap();
        stream.clone_dtoh(&c32).unwrap()[0]
    };
    let x = stream.clone_htod(&ones.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()).unwrap();
    let y =
        stream.clone_htod(&ones.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>()).unwrap();
    let (x_at, y_at) = (x.device_ptr(&stream).0, y.device_ptr(&stream).0);
    assert_eq!(run(sys::cudaDataType_t::CUDA_R_16F, x_at, x_at), 4096.25);
    assert_eq!(run(sys::cudaDataType_t::CUDA_R_16BF, y_at, y_at), 4096.25);
    let mut z: CudaSlice<f16> = stream.alloc_zeros(1).unwrap();
    let config = plain(1, 1, k as i32, f16::ONE, f16::ZERO);
    // SAFETY: as above, in f16.
    unsafe { blas.gemm(config, &x, &x, &mut z) }.unwrap();
    assert_eq!(stream.clone_dtoh(&z).unwrap(), [f16::from_f32(4096.25)]);
}

fn gemv(_: &Simulator) {
    use cudarc::cublas::{Gemv, GemvConfig};
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let blas = CudaBlas::new(stream.clone()).unwrap();
    let (m, n, lda) = (3usize, 5usize, 4usize);
    let (a, x) = (numbers(lda * n, 6), numbers(10, 7));
    let a_device = stream.clone_htod(&a).unwrap();
    let x_device = stream.clone_htod(&x).unwrap();
    for (trans, rows, inner) in [(N, m, n), (T, n, m)] {
        let mut y = stream.clone_htod(&vec![1.0f32; rows]).unwrap();
        let config = GemvConfig {
            trans,
            m: m as i32,
            n: n as i32,
            alpha: 2.0f32,
            lda: lda as i32,
            incx: 2,
            beta: 1.0,
            incy: 1,
        };
        // SAFETY: matrix and vectors have the sizes given.
        unsafe { blas.gemv(config, &a_device, &x_device, &mut y) }.unwrap();
        let row = |row: usize| {
            (0..inner).map(|i| at(&a, lda, trans == T, row, i) * x[2 * i]).sum::<f32>()
        };
        let expected: Vec<f32> = (0..rows).map(|i| 1.0 + 2.0 * row(i)).collect();
        assert_eq!(stream.clone_dtoh(&y).unwrap(), expected);
    }
}

fn lt(_: &Simulator) {
    use cudarc::cublaslt::{Activation, CudaBlasLT, Matmul, MatmulConfig};
    let context = context(0);
    let stream = context.new_stream().unwrap();
    let blas = CudaBlasLT::new(stream.clone()).unwrap();
    let (m, n, k) = (3usize, 4, 2);
    let (a, b, bias) = (numbers(2 * m * k, 8), numbers(2 * k * n, 9), [1.0f32, -2.0, 0.5]);
    let config = |activation| MatmulConfig {
        transa: true,
        transb: false,
        transc: false,
        m: m as u64,
        n: n as u64,
        k: k as u64,
        alpha: 1.0,
        lda: k as i64,
        ldb: k as i64,
        beta: if activation { 0.0 } else { 1.0 },
        ldc: m as i64,
        stride_a: Some((m * k) as i64),
        stride_b: Some((k * n) as i64),
        stride_c: Some((m * n) as i64),
        stride_bias: None,
        batch_size: Some(2),
    };
    let (a_device, b_device) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let bias_device = stream.clone_htod(&bias).unwrap();
    for relu in [false, true] {
        let mut c = stream.clone_htod(&vec![3.0f32; 2 * m * n]).unwrap();
        let activation = relu.then_some(Activation::Relu);
        // SAFETY: matrices and bias have the sizes given.
        unsafe {
            blas.matmul(
                config(relu),
                &a_device,
                &b_device,
                &mut c,
                Some(&bias_device),
                activation.as_ref(),
            )
        }
        .unwrap();
        for (i, got) in stream.clone_dtoh(&c).unwrap().into_iter().enumerate() {
            let (batch, column, row) = (i / 12, i % 12 / 3, i % 3);
            let sum: f32 = (0..k)
                .map(|j| a[batch * 6 + row * k + j] * b[batch * 8 + column * k + j])
                .sum::<f32>()
                + bias[row];
            assert_eq!(got, if relu { sum.max(0.0) } else { sum + 3.0 });
        }
    }
}

fn races(simulator: &Simulator) {
    let context = context(0);
    let (a, b) = (context.new_stream().unwrap(), context.new_stream().unwrap());
    let blas = CudaBlas::new(a.clone()).unwrap();
    let x = a.alloc_zeros::<f32>(4).unwrap();
    let mut y = a.alloc_zeros::<f32>(4).unwrap();
    a.synchronize().unwrap();
    // SAFETY: the matrices have the sizes given.
    unsafe { blas.gemm(plain(2, 2, 2, 1.0f32, 0.0), &x, &x, &mut y) }.unwrap();
    let _ = b.clone_dtoh(&x).unwrap();
    assert_eq!(simulator.report(), "");
    let _ = b.clone_dtoh(&y).unwrap();
    assert_eq!(simulator.count("race"), 1);
    simulator.clear_report();
    context.synchronize().unwrap();
}

fn bounds(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let blas = CudaBlas::new(a.clone()).unwrap();
    let x = a.alloc_zeros::<f32>(5).unwrap();
    let mut y = a.alloc_zeros::<f32>(6).unwrap();
    // SAFETY: the call must refuse what does not fit.
    let refused = unsafe { blas.gemm(plain(2, 3, 3, 1.0f32, 0.0), &x, &x, &mut y) }.unwrap_err();
    assert_eq!(refused.0 as u32, 13);
    let config = GemmConfig { lda: 1, ..plain(2, 1, 1, 1.0f32, 0.0) };
    // SAFETY: as above.
    let refused = unsafe { blas.gemm(config, &x, &x, &mut y) }.unwrap_err();
    assert_eq!(refused.0 as u32, 7, "a leading dimension below the rows");
    assert_eq!(simulator.count("overrun"), 1);
    simulator.clear_report();
    a.synchronize().unwrap();
}

fn faults(simulator: &Simulator) {
    let context = context(0);
    let a = context.new_stream().unwrap();
    let blas = CudaBlas::new(a.clone()).unwrap();
    let x = a.alloc_zeros::<f32>(4).unwrap();
    let mut y = a.alloc_zeros::<f32>(4).unwrap();
    a.synchronize().unwrap();
    simulator.fault_launch(2, ILLEGAL_ADDRESS);
    for _ in 0..2 {
        // SAFETY: the matrices have the sizes given.
        unsafe { blas.gemm(plain(2, 2, 2, 1.0f32, 0.0), &x, &x, &mut y) }.unwrap();
    }
    assert_eq!(code(a.synchronize()), ILLEGAL_ADDRESS);
    // SAFETY: as above.
    let refused = unsafe { blas.gemm(plain(2, 2, 2, 1.0f32, 0.0), &x, &x, &mut y) }.unwrap_err();
    assert_eq!(refused.0 as u32, 13);
    simulator.clear_report();
}
