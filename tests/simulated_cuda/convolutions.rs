//! Convolutions through cuDNN, which may be there or not, takes some sizes and not others, and is
//! asked in the background.

use super::edges::played;
use super::support::block_on;
use super::{Entry, device, entries};
use futensor::cuda::CudaOptions;
use futensor::{ConvOptions, DType, Device, TensorFuture, grad};
use futensor_simulated_driver::{ILLEGAL_ADDRESS, Simulator};

pub fn all() -> Vec<Entry> {
    let mut list = entries![1, false;
        convolutions_of_every_kind_go_through_cudnn_where_it_takes_them
        a_not_a_number_stays_with_the_outputs_that_see_it
        a_region_with_convolutions_is_a_graph_with_the_same_bits
        without_cudnn_or_with_an_old_one_columns_are_multiplied
        what_is_too_large_to_be_tried_is_asked_for_untried
        a_device_says_why_cudnn_is_not_asked]
    .to_vec();
    list.extend(entries![12, false;
        no_launch_waits_for_what_cudnn_loads
        memory_that_is_short_once_changes_no_bit]);
    list.extend(entries![12, true; a_fault_in_a_convolution_ends_every_await]);
    list
}

fn bits(x: &TensorFuture) -> Vec<u32> {
    block_on(x.to_dtype(DType::F32).to_vec::<f32>())
        .unwrap()
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

fn random(device: &Device, shape: &[usize], dtype: DType) -> TensorFuture {
    device.randn(shape.to_vec()).to_dtype(dtype)
}

/// A convolution with a bias, and its gradients.
fn all_three(device: &Device, stride: usize, groups: usize, dtype: DType) -> Vec<TensorFuture> {
    let [x, w, bias] = [&[2, 4, 9, 11][..], &[6, 4 / groups, 3, 3], &[6]]
        .map(|shape| random(device, shape, dtype).requires_grad());
    let options = ConvOptions::default().stride(stride).padding(1).groups(groups);
    let y = x.conv2d(&w, Some(&bias), options);
    let mut all = grad(y.to_dtype(DType::F32).square().sum_all(), &[&x, &w, &bias]);
    all.push(y);
    all
}

fn convolutions_of_every_kind_go_through_cudnn_where_it_takes_them(simulator: &Simulator, _: u64) {
    let gpu = device(0);
    for (stride, groups, dtype, through) in [
        (1, 1, DType::F32, 3),
        (2, 2, DType::BF16, 3),
        // The best algorithm is refused when it runs, and the next one is taken.
        (3, 1, DType::F16, 3),
        (1, 1, DType::F64, 0),
    ] {
        let (before, cpu) = (simulator.stats().convolutions, Device::cpu());
        let (got, want) = [&gpu, &cpu]
            .map(|device| {
                device.seed(5);
                let all = all_three(device, stride, groups, dtype);
                all.iter()
                    .map(|x| block_on(x.to_dtype(DType::F32).to_vec::<f32>()).unwrap())
                    .collect()
            })
            .into();
        let (got, want): (Vec<Vec<f32>>, Vec<Vec<f32>>) = (got, want);
        let slack = if dtype.size() == 2 { 0.1 } else { 1e-3 };
        for (got, want) in got.iter().flatten().zip(want.iter().flatten()) {
            assert!((got - want).abs() <= slack * (1.0 + want.abs()), "{got} and {want}, {dtype}");
        }
        // Each is tried once, and then done.
        assert_eq!(
            simulator.stats().convolutions - before,
            2 * through,
            "{stride} {groups} {dtype}"
        );
    }
}

fn a_not_a_number_stays_with_the_outputs_that_see_it(simulator: &Simulator, _: u64) {
    let device = device(0);
    let mut image = vec![1.0f32; 64];
    image[0] = f32::NAN;
    let x = device.from_vec(image, [1, 1, 8, 8]);
    let y = x.conv2d(device.ones([1, 1, 3, 3]), None, ConvOptions::default());
    let y = block_on(y.to_vec::<f32>()).unwrap();
    assert!(y[0].is_nan() && y[1..].iter().all(|y| *y == 9.0), "{y:?}");
    assert!(simulator.stats().convolutions > 0);
}

fn a_region_with_convolutions_is_a_graph_with_the_same_bits(simulator: &Simulator, _: u64) {
    let device = device(0);
    let (x, w) =
        (random(&device, &[2, 3, 8, 8], DType::F32), random(&device, &[3, 3, 3, 3], DType::F32));
    let body = |x: TensorFuture, w: TensorFuture| {
        let options = || ConvOptions::default().padding(1);
        let y = x.conv2d(&w, None, options()).relu();
        y.conv2d(&w, None, options()) + 1.0
    };
    let want = bits(&body(x.clone(), w.clone()));
    let region = device.region(move |(x, w): (TensorFuture, TensorFuture)| body(x, w));
    let before = device.stats().graphs;
    for _ in 0..40 {
        assert_eq!(bits(&region.call((x.clone(), w.clone()))), want);
    }
    assert!(device.stats().graphs > before, "a graph");
    // Other operands are captured anew.
    let other = &x + 0.0;
    assert_eq!(bits(&region.call((other, w.clone()))), want);
    assert!(simulator.stats().convolutions > 0);
}

/// How many convolutions went to cuDNN, and the bits that came of them.
pub fn seen() -> (bool, Vec<u32>) {
    let device = device(0);
    device.seed(9);
    let all = all_three(&device, 1, 1, DType::BF16);
    let bits = all.iter().flat_map(bits).collect();
    (Simulator::attach().unwrap().stats().convolutions > 0, bits)
}

fn without_cudnn_or_with_an_old_one_columns_are_multiplied(simulator: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().cudnn(false)).unwrap();
    device.seed(9);
    let want: Vec<u32> = all_three(&device, 1, 1, DType::BF16).iter().flat_map(bits).collect();
    // The convolution and what flows back to value and weight are products of halves all the same.
    assert_eq!(simulator.stats().half_products, 3);
    let with = played("convolved", |c| c);
    assert!(with.starts_with("(true, "), "{with}");
    let columns = format!("{:?}\n", (false, want));
    assert_eq!(played("convolved", |c| c.env("FUTENSOR_CUDNN", "never")), columns);
    assert_eq!(played("convolved", |c| c.env("FUTENSOR_SIM_CUDNN", "8907")), columns);
}

fn what_is_too_large_to_be_tried_is_asked_for_untried(simulator: &Simulator, _: u64) {
    simulator.set_memory(0, 14 << 20);
    let device = Device::cuda_with(0, CudaOptions::default().kept_bytes(0)).unwrap();
    let x = block_on(device.ones([1, 1, 1024, 1024]) + 0.0).unwrap();
    let w = device.ones([2, 1, 1, 2]);
    let y = x.conv2d(&w, None, ConvOptions::default());
    assert_eq!(block_on(y.sum_all().item::<f32>()).unwrap(), 2.0 * 2.0 * 1024.0 * 1023.0);
    assert_eq!(simulator.stats().convolutions, 1);
    // Its kernel is loaded by the step, which may wait for what runs: the one case.
    let report = simulator.report();
    assert!(
        report.lines().all(|line| line.starts_with("stall: cudnnConvolutionForward")),
        "{report}"
    );
    simulator.clear_report();
}

fn a_device_says_why_cudnn_is_not_asked(_: &Simulator, _: u64) {
    let device = device(0);
    let convolved = |options: ConvOptions| {
        let y = device.ones([1, 1, 5]).conv1d(device.ones([1, 1, 3]), None, options);
        block_on(y.sum_all().item::<f32>()).unwrap()
    };
    assert_eq!(convolved(ConvOptions::default()), 9.0);
    let before = device.libraries();
    for line in ["driver: CUDA 13.0\n", "products: cuBLAS\n", "convolutions: cuDNN 91500\n"] {
        assert!(before.contains(line), "{before}");
    }
    assert!(before.starts_with("GPU: ") && !before.contains("not by cuDNN"), "{before}");
    assert_eq!(convolved(ConvOptions::default().padding_sides(2, 0)), 12.0);
    let after = device.libraries();
    let why = "not by cuDNN: the output in float32: input [1, 1, 5], weight [1, 1, 3], 1 group, \
        padding [2] before and [0] after: cuDNN does";
    assert!(after.starts_with(&before) && after[before.len()..].starts_with(why), "{after}");
    let said = |name, value| played("libraries", |c| c.env(name, value));
    assert!(
        said("FUTENSOR_CUDNN", "never")
            .contains("convolutions: columns and products: cuDNN is switched off")
    );
    let old = said("FUTENSOR_SIM_CUDNN", "8907");
    assert!(
        old.contains("convolutions: columns and products: cuDNN version 8907 was found"),
        "{old}"
    );
}

fn no_launch_waits_for_what_cudnn_loads(_: &Simulator, seed: u64) {
    let device = device(0);
    let mut held = Vec::new();
    for k in 0..8 {
        let x = device.randn([1, 2, 6 + k, 5 + seed as usize]);
        let w = device.randn([3, 2, 2, 3]);
        held.push(x.conv2d(&w, None, ConvOptions::default()).tanh().sum_all());
        held.push((device.randn([50, 60]) * 2.0).sum_all());
    }
    held.iter().for_each(|x| assert!(block_on(x.item::<f32>()).unwrap().is_finite()));
}

fn memory_that_is_short_once_changes_no_bit(simulator: &Simulator, seed: u64) {
    let run = || {
        let device = device(0);
        device.seed(4);
        all_three(&device, 1, 2, DType::F32).iter().flat_map(bits).collect::<Vec<u32>>()
    };
    let want = run();
    simulator.fail_allocation(1 + seed);
    assert_eq!(run(), want);
}

fn a_fault_in_a_convolution_ends_every_await(simulator: &Simulator, seed: u64) {
    let device = device(0);
    block_on((device.ones([3]) + 1.0).wait_to_read()).unwrap();
    simulator.fault_launch(1 + seed % 6, ILLEGAL_ADDRESS);
    let all = all_three(&device, 1, 1, DType::F32);
    let ended = all.iter().filter(|x| block_on(x.to_vec::<f32>()).is_err()).count();
    assert!(ended > 0, "the fault was nobody's");
    simulator.clear_report();
}
