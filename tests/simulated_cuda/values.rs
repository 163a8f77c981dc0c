//! Values come out right, wherever they came from and wherever they go.

use super::support::{Rng, block_on, until};
use super::{Entry, device, entries, two_devices};
use futensor::cuda::{CudaOptions, HalfProducts};
use futensor::custom::custom_fn;
use futensor::quant::{Format, Quantized, Weight};
use futensor::{
    AttentionOptions, DType, Device, Generator, GradOptions, Tensor, TensorFuture, grad, grad_with,
};
use futensor_simulated_driver::Simulator;

pub fn all() -> Vec<Entry> {
    let mut list = entries![1, false;
        a_sum_of_ones_is_two
        host_data_of_every_size_comes_back_as_it_was
        views_of_host_data_are_gathered_on_the_way
        a_view_larger_than_a_pinned_block_goes_to_the_gpu
        an_expanded_value_takes_no_more_memory_on_the_gpu_than_its_elements
        reads_need_no_gpu_work_of_their_own_on_constants
        display_and_item_and_nonzero_read_back
        a_value_goes_round_every_device
        gpus_that_cannot_reach_each_other_go_through_the_host
        random_numbers_are_those_of_the_cpu
        attention_and_its_gradients_are_those_of_the_cpu
        a_query_beside_others_finds_the_same_among_many_keys
        long_sorts_and_gradients_of_long_gathers_are_the_cpus_bit_by_bit
        quantised_weights_have_the_bits_of_the_cpu
        choices_by_weight_are_the_cpus_bit_by_bit
        an_op_without_a_kernel_says_so
        an_index_out_of_range_fails_what_is_made_from_it_and_nothing_else
        queued_updates_need_no_more_memory_than_a_few
        a_buffer_is_overwritten_only_by_its_last_reader
        a_source_brings_elements_to_the_gpu
        values_outlive_the_handle_on_their_device
        a_device_that_was_abandoned_starts_again
        shutdown_ends_what_was_before_and_refuses_what_comes_after
        every_step_runs_to_its_end_when_asked_to]
    .to_vec();
    list.extend(entries![20, false; any_graph_gives_what_the_cpu_gives]);
    list
}

fn a_sum_of_ones_is_two(_: &Simulator, _: u64) {
    let device = device(0);
    let x = device.ones([1, 2]);
    let y = &x * 2.0 + device.arange(0.0, 2.0, 1.0);
    assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [2.0, 3.0]);
}

fn host_data_of_every_size_comes_back_as_it_was(_: &Simulator, _: u64) {
    let device = device(0);
    for n in [0usize, 1, 7, 8, 9, 1000, 20_000, 300_000, 1_500_001] {
        let data: Vec<i32> = (0..n as i32).collect();
        let x = device.from_vec(data.clone(), [n]);
        assert_eq!(block_on(x.to_vec::<i32>()).unwrap(), data, "never on the device");
        let y = -&x;
        let negated: Vec<i32> = data.iter().map(|v| -v).collect();
        assert_eq!(block_on(y.to_vec::<i32>()).unwrap(), negated);
        assert_eq!(block_on(x.to_vec::<i32>()).unwrap(), data, "there and back");
    }
}

fn views_of_host_data_are_gathered_on_the_way(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    let rows: Vec<f32> = (0..600).map(|i| i as f32).collect();
    let x = cpu.from_vec(rows, [20, 30]).t();
    let there = x.to_device(&gpu);
    let want = block_on((&x + 1.0).to_vec::<f32>()).unwrap();
    assert_eq!(block_on((&there + 1.0).to_vec::<f32>()).unwrap(), want);
    // And a view on the GPU is none of the elements' business.
    let back = there.t().narrow(0, 3, 5).to_device(&cpu);
    let want = block_on(x.t().narrow(0, 3, 5).to_vec::<f32>()).unwrap();
    assert_eq!(block_on(back.to_vec::<f32>()).unwrap(), want);
}

fn a_view_larger_than_a_pinned_block_goes_to_the_gpu(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    let x = cpu.randn([521, 1037]);
    let last = cpu.randn([2, 270_000]).narrow(0, 1, 1);
    let bytes =
        cpu.arange(0, 1_200_000, 1).to_dtype(DType::U8).reshape([3, 400, 1000]).permute([2, 0, 1]);
    let views = [
        ("turned", x.t()),
        ("a part with gaps", x.narrow(1, 3, 1030)),
        ("backwards", x.flip([0, 1])),
        ("behind an offset", last),
        ("expanded", cpu.arange(0, 4, 1).expand([1 << 16, 4])),
        ("expanded inside", cpu.arange(0, 1 << 17, 1).unsqueeze(-1).expand([-1, 4])),
        ("bytes", bytes),
    ];
    for (name, view) in views {
        let (there, one) = (view.to_device(&gpu), 1);
        let want = block_on((&view + one).to_dtype(DType::F32).to_vec::<f32>()).unwrap();
        assert_eq!(
            block_on((&there + one).to_dtype(DType::F32).to_vec::<f32>()).unwrap(),
            want,
            "{name}"
        );
        let want = block_on(view.to_dtype(DType::F32).to_vec::<f32>()).unwrap();
        assert_eq!(
            block_on(there.to_device(&cpu).to_dtype(DType::F32).to_vec::<f32>()).unwrap(),
            want,
            "{name}, back"
        );
    }
}

fn an_expanded_value_takes_no_more_memory_on_the_gpu_than_its_elements(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    let there = cpu.arange(0.0, 4.0, 1.0).expand([1 << 18, 4]).to_device(&gpu);
    assert_eq!(
        block_on(there.sum(0).to_vec::<f32>()).unwrap(),
        [0, 1, 2, 3].map(|k| (k << 18) as f32)
    );
    assert!(gpu.stats().bytes_live < 1 << 20, "{}", gpu.stats().bytes_live);
}

fn reads_need_no_gpu_work_of_their_own_on_constants(simulator: &Simulator, _: u64) {
    let device = device(0);
    let x = device.full([3, 2], 4.0);
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [4.0; 6]);
    assert_eq!(simulator.stats().allocations, 0);
}

fn display_and_item_and_nonzero_read_back(_: &Simulator, _: u64) {
    let device = device(0);
    let x = device.from_vec(vec![0, 5, 0, 7], [2, 2]) * 1;
    assert!(
        block_on(x.display())
            .unwrap()
            .starts_with("tensor([[0, 5],\n        [0, 7]], device='cuda:0")
    );
    assert_eq!(block_on(x.sum_all().item::<i64>()).unwrap(), 12);
    let at: Tensor = block_on(x.nonzero()).unwrap();
    assert_eq!(at.device(), device);
    assert_eq!(block_on(at.to_vec::<i64>()).unwrap(), [0, 1, 1, 1]);
}

fn round(simulator: &Simulator) -> Vec<f32> {
    let (a, b) = two_devices();
    let cpu = Device::cpu();
    let x = cpu.arange(0.0, 50_000.0, 1.0);
    let on_a = x.to_device(&a) * 2.0;
    let on_b = on_a.to_device(&b) + 1.0;
    let mixed = &on_a + &on_b;
    assert!(mixed.error().unwrap().is_device());
    let back = (on_b.to_device(&a) + &on_a).to_device(&cpu);
    assert_eq!(back.device(), cpu);
    let _ = simulator;
    block_on(back.to_vec::<f32>()).unwrap()
}

fn a_value_goes_round_every_device(simulator: &Simulator, _: u64) {
    let want: Vec<f32> = (0..50_000).map(|i| (2 * i + 1 + 2 * i) as f32).collect();
    assert_eq!(round(simulator), want);
}

fn gpus_that_cannot_reach_each_other_go_through_the_host(simulator: &Simulator, _: u64) {
    simulator.deny_peers(true);
    let want: Vec<f32> = (0..50_000).map(|i| (2 * i + 1 + 2 * i) as f32).collect();
    assert_eq!(round(simulator), want);
}

fn random_numbers_are_those_of_the_cpu(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu_with(Default::default()));
    gpu.seed(5);
    cpu.seed(5);
    let uniform = |d: &Device| block_on(d.rand([1000]).to_vec::<f32>()).unwrap();
    assert_eq!(uniform(&gpu), uniform(&cpu));
    let normal = |d: &Device| block_on(d.randn([1000]).to_vec::<f32>()).unwrap();
    for (a, b) in normal(&gpu).into_iter().zip(normal(&cpu)) {
        assert!(a == b || (a.to_bits() as i64 - b.to_bits() as i64).abs() <= 2, "{a} {b}");
    }
}

fn attention_and_its_gradients_are_those_of_the_cpu(_: &Simulator, seed: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
        for masked in [false, true] {
            // Two heads share keys and values; a query sees nothing, nor does a whole row.
            let padded = masked == (dtype == DType::F16);
            let of = |shape: &[usize]| cpu.randn(shape).to_dtype(dtype).to_dtype(DType::F32);
            let (q, up) = (of(&[2, 2, 70, 24]), of(&[2, 2, 70, 24]));
            let (k, v) = (of(&[2, 1, 90, 24]), of(&[2, 1, 90, 24]));
            let see =
                cpu.randn([70, 90]).gt(0.0).logical_and(cpu.arange(0, 70, 1).ne(7).unsqueeze(1));
            let all = |on: &Device, dtype: DType, graph: bool| {
                let there = |x: &TensorFuture| x.to_device(on).to_dtype(dtype);
                let leaves = [&q, &k, &v].map(|x| there(x).requires_grad());
                let [q, k, v] = &leaves;
                let options = AttentionOptions::default().causal(!masked);
                let options = if masked { options.mask(see.to_device(on)) } else { options };
                let options = options.grouped(true);
                let options = if padded {
                    options.lengths(on.from_vec(vec![50i64, 0], [2]))
                } else {
                    options
                };
                let found = q.scaled_dot_product_attention(k, v, options);
                let mode = GradOptions::default().upstream(&there(&up)).graph(graph);
                let mut out = grad_with(&found, &leaves, mode);
                if graph {
                    let bent = grad(out[0].square().sum_all(), &leaves);
                    out.extend(bent);
                }
                out.push(found);
                out.into_iter().map(|x| x.to_dtype(DType::F32).to_device(&cpu)).collect::<Vec<_>>()
            };
            for graph in [false, true] {
                let (got, want) = (all(&gpu, dtype, graph), all(&cpu, DType::F32, graph));
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    let size = block_on(want.abs().max_all().item::<f32>()).unwrap();
                    let off = block_on((got - want).abs().max_all().item::<f32>()).unwrap();
                    let what =
                        format!("seed {seed}, {dtype}, masked {masked}, graph {graph}, value {i}");
                    assert!(off <= tolerance * size.max(1.0), "{what}: {off} of {size}");
                }
            }
        }
    }
}

fn a_query_beside_others_finds_the_same_among_many_keys(_: &Simulator, _: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 3e-2)] {
        let of = |shape: &[usize]| cpu.randn(shape).to_dtype(dtype);
        // Three heads share keys and values, of which some are not seen.
        let (q, k, v) = (of(&[2, 3, 5, 40]), of(&[2, 1, 700, 40]), of(&[2, 1, 700, 24]));
        let see = cpu.randn([700]).gt(0.0);
        let found = |on: &Device, q: &TensorFuture| {
            let [q, k, v, see] = [q, &k, &v, &see].map(|x| x.to_device(on));
            let options = AttentionOptions::default().mask(see);
            let found = q.scaled_dot_product_attention(k, v, options).to_dtype(DType::F32);
            block_on(found.to_vec::<f32>()).unwrap()
        };
        let (got, want) = (found(&gpu, &q), found(&cpu, &q));
        assert!(
            got.iter().zip(&want).all(|(got, want)| (got - want).abs() <= tolerance),
            "{dtype}"
        );
        let one = found(&gpu, &q.narrow(1, 2, 1).narrow(2, 3, 1));
        for (one, all) in one.chunks(24).zip(got.chunks(3 * 5 * 24)) {
            assert_eq!(one, &all[(2 * 5 + 3) * 24..][..24], "{dtype}");
        }
    }
}

fn long_sorts_and_gradients_of_long_gathers_are_the_cpus_bit_by_bit(_: &Simulator, seed: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    for dtype in [DType::F32, DType::F16] {
        let (table, up) =
            (cpu.randn([40, 24]).to_dtype(dtype), cpu.randn([3000, 24]).to_dtype(dtype));
        let words = cpu.rand([3000]).mul(40.0).floor().to_dtype(DType::I64);
        let (row, one) =
            (cpu.randn([2, 4000]).to_dtype(dtype), cpu.randn([3, 900]).to_dtype(dtype));
        let at = cpu.rand([3, 900]).mul(700.0).floor().to_dtype(DType::I64);
        let all = |on: &Device| {
            let there = |x: &TensorFuture| x.to_device(on);
            let (table, wide) = (there(&table).requires_grad(), there(&one).requires_grad());
            let back = |x: TensorFuture, up: &TensorFuture, of: &TensorFuture| {
                grad_with(&x, &[of], GradOptions::default().upstream(up)).remove(0)
            };
            let row = there(&row);
            let mut out = vec![
                back(table.embedding(there(&words)), &there(&up), &table),
                back(table.index_select(0, there(&words)), &there(&up), &table),
                back(wide.gather(1, there(&at)), &there(&one), &wide),
            ];
            let (values, places) = row.topk(300, 1, true);
            out.extend([values, places, row.argsort(1, false)]);
            out.into_iter().map(|x| x.to_dtype(DType::F64).to_device(&cpu)).collect::<Vec<_>>()
        };
        for (i, (got, want)) in all(&gpu).iter().zip(all(&cpu)).enumerate() {
            let bits = |x: &TensorFuture| {
                let x = block_on(x.to_vec::<f64>()).unwrap();
                x.into_iter().map(f64::to_bits).collect::<Vec<_>>()
            };
            assert!(bits(got) == bits(&want), "seed {seed}, {dtype}, value {i}");
        }
    }
}

fn choices_by_weight_are_the_cpus_bit_by_bit(_: &Simulator, seed: u64) {
    let (gpu, cpu) = (device(0), Device::cpu());
    cpu.seed(seed);
    let bits = |x: &TensorFuture| block_on(x.to_dtype(DType::F64).to_vec::<f64>()).unwrap();
    for (dtype, n) in [(DType::F32, 3000), (DType::F64, 700), (DType::F16, 64), (DType::BF16, 1)] {
        let weights = (cpu.randn([2, n, 3]) * 3.0).exp().to_dtype(dtype).transpose(1, 2);
        let (shares, draws) = (cpu.rand([2, 3, 1]), cpu.rand([2, 3, 5]));
        let table = cpu.randn([2, 3]);
        let all = |on: &Device| {
            let there = |x: &TensorFuture| x.to_device(on);
            let kept = there(&weights).top_p(there(&shares));
            let (values, places) = there(&weights).max_with_positions(2);
            let turned = there(&weights).transpose(1, 2).narrow(2, 0, 2);
            let angles = |k: usize| there(&table).i(k as isize).reshape([3]).narrow(0, 0, 1);
            let wide =
                there(&weights.transpose(1, 2)).reshape([2, n * 3]).narrow(1, 0, n * 3 / 2 * 2);
            vec![
                kept.categorical(there(&draws)).to_dtype(dtype),
                kept,
                Generator::new(seed).categorical(there(&weights), 4),
                values,
                places,
                turned.rope(angles(0), angles(1), true),
                turned.rope(angles(0), angles(1), false),
                wide.rope(angles(1), angles(0), n % 2 == 0),
            ]
        };
        for (i, (got, want)) in all(&gpu).iter().zip(all(&cpu)).enumerate() {
            assert!(bits(got) == bits(&want), "seed {seed}, {dtype}, value {i}");
        }
    }
}

fn quantised_weights_have_the_bits_of_the_cpu(_: &Simulator, seed: u64) {
    let options = CudaOptions::default().half_products(HalfProducts::Exact);
    let (gpu, cpu) = (Device::cuda_with(0, options).expect("a simulated GPU"), Device::cpu());
    cpu.seed(seed);
    let file = block_on(futensor::gguf::open_bytes(include_bytes!("../reference/reference.gguf")))
        .unwrap();
    let all = block_on(file.load(&cpu).all()).unwrap();
    let bits = |x: TensorFuture| -> Vec<u32> {
        block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
    };
    for format in Format::ALL {
        let mut weights = Vec::new();
        if let Some(Weight::Quantized(read)) = all.get(format.name()) {
            weights.push(read.clone());
        }
        if format.can_quantize() {
            // Blocks that are no multiple of four, and panels no multiple of eight.
            for dims in [[40, 96], [150, 288]] {
                weights.push(Quantized::from_tensor(&cpu.randn(dims), format).unwrap());
            }
        }
        if let Some(dtype) = format.dtype() {
            // Packed where they are.
            let x = cpu.randn([70, 64]).to_dtype(dtype);
            weights.push(Quantized::from_tensor(&x, format).unwrap());
            let there = Quantized::from_tensor(&x.to_device(&gpu), format).unwrap();
            let packed = |w: &Quantized| block_on(w.packed().to_vec::<u8>()).unwrap();
            assert!(packed(&there) == packed(weights.last().unwrap()), "{format}");
        }
        for weight in weights {
            let there = weight.to_device(&gpu);
            assert!(bits(there.dequantize()) == bits(weight.dequantize()), "{format}");
            let index = cpu.from_vec(vec![2i64, 0, 1, 2], [2, 2]);
            assert!(
                bits(there.embedding(index.to_device(&gpu))) == bits(weight.embedding(&index)),
                "{format}"
            );
            let wrong = there.embedding(gpu.from_vec(vec![0i32, weight.dims()[0] as i32], [2]));
            assert!(block_on(wrong).unwrap_err().is_index());
            for rows in [1, 5, 17, 70] {
                let x = cpu.randn([rows, weight.dims()[1]]);
                let (got, wanted) = (there.linear(x.to_device(&gpu)), weight.linear(&x));
                assert!(bits(got) == bits(wanted), "{rows} rows by {weight:?}");
            }
        }
    }
    // Rows of a view, and what is no number.
    let weight = Quantized::from_tensor(&cpu.randn([20, 32]), Format::Q4_1).unwrap();
    let x = cpu
        .from_vec((0..96).map(|i| if i == 40 { f32::NAN } else { i as f32 }).collect(), [32, 3])
        .t();
    let got =
        block_on(weight.to_device(&gpu).linear(x.to_device(&gpu).t().t()).to_vec::<f32>()).unwrap();
    let wanted = block_on(weight.linear(&x).to_vec::<f32>()).unwrap();
    assert!(got.iter().zip(&wanted).all(|(a, b)| a == b || a.is_nan() && b.is_nan()));
    assert_eq!(wanted.iter().filter(|x| x.is_nan()).count(), 20);
}

fn an_op_without_a_kernel_says_so(_: &Simulator, _: u64) {
    let device = device(0);
    let x = device.ones([2]) + 1.0;
    let y = custom_fn("mine", &[&x], |m| Ok(futensor::custom::Meta::clone(m[0])), |_| Ok(()));
    let error = block_on(&y).unwrap_err();
    assert!(error.is_kernel() && error.op() == "mine", "{error}");
    assert!(error.message().contains("CUDA"), "{error}");
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [2.0, 2.0]);
}

fn an_index_out_of_range_fails_what_is_made_from_it_and_nothing_else(
    simulator: &Simulator,
    _: u64,
) {
    let device = device(0);
    let x = device.arange(0.0, 10.0, 1.0) * 1.0;
    // Nothing runs yet: all of it is queued before the index is looked at.
    simulator.pause();
    let wrong = x.index_select(0, device.from_vec(vec![1i64, 10, 3], [3]));
    let made = &wrong * 2.0;
    let further = made.sum_all();
    let right = x.index_select(0, device.from_vec(vec![1i64, 9, 3], [3])) + 1.0;
    (&wrong - 1.0).detach();
    simulator.resume();
    let error = block_on(&wrong).unwrap_err();
    assert!(error.is_index(), "{error}");
    assert_eq!(error.message(), "index 10 at position 1 is out of range for size 10");
    assert!(block_on(&made).unwrap_err().same_root(&error));
    assert!(block_on(&further).unwrap_err().same_root(&error));
    assert_eq!(block_on(right.to_vec::<f32>()).unwrap(), [2.0, 10.0, 4.0]);
    assert!(block_on(device.waitall()).unwrap_err().same_root(&error));
}

fn queued_updates_need_no_more_memory_than_a_few(simulator: &Simulator, _: u64) {
    let bytes = 4 * 65_536;
    // What is freed earlier on a stream is room for what is allocated later on it.
    simulator.set_memory(0, 4 * bytes);
    let device = device(0);
    let mut x = device.arange(0.0, 65_536.0, 1.0);
    for i in 0..500 {
        x = x + i;
    }
    let sum: i64 = (0..500).sum();
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap()[7], 7.0 + sum as f32);
    let peak = device.stats().bytes_peak;
    assert!(peak <= 4 * bytes, "{peak} bytes");
}

fn a_buffer_is_overwritten_only_by_its_last_reader(_: &Simulator, _: u64) {
    let device = device(0);
    let x = device.arange(0.0, 1000.0, 1.0) + 0.5;
    let y = x.narrow(0, 0, 10);
    let z = &x + 1.0;
    drop(x);
    let w = &z * 2.0;
    let row = device.full([10], 9.0) * 1.0;
    let v = z.clone().slice_assign(0..10, &row);
    assert_eq!(block_on(y.to_vec::<f32>()).unwrap()[3], 3.5);
    assert_eq!(block_on(z.to_vec::<f32>()).unwrap()[3], 4.5);
    assert_eq!(block_on(w.to_vec::<f32>()).unwrap()[3], 9.0);
    assert_eq!(block_on(v.to_vec::<f32>()).unwrap()[9..11], [9.0, 11.5]);
}

fn a_source_brings_elements_to_the_gpu(_: &Simulator, _: u64) {
    let device = device(0);
    let (send, receive) = futures::channel::oneshot::channel::<Vec<f32>>();
    let x = device.from_future([3], receive);
    let y = &x * 2.0;
    send.send(vec![1.0, 2.0, 3.0]).unwrap();
    assert_eq!(block_on(y.to_vec::<f32>()).unwrap(), [2.0, 4.0, 6.0]);
    let failed = device.from_future([1], async { Err::<Vec<f32>, _>("no such file") });
    assert!(block_on(failed + 1.0).unwrap_err().is_source());
}

fn values_outlive_the_handle_on_their_device(simulator: &Simulator, _: u64) {
    let x = {
        let device = device(0);
        let x = device.arange(0.0, 4.0, 1.0) + 1.0;
        block_on(x.wait_to_read()).unwrap();
        x
    };
    assert!(simulator.stats().live_streams > 0);
    assert_eq!(block_on((&x + 1.0).to_vec::<f32>()).unwrap(), [2.0, 3.0, 4.0, 5.0]);
}

fn a_device_that_was_abandoned_starts_again(simulator: &Simulator, _: u64) {
    let shared = Device::cuda_with(1, CudaOptions::default()).unwrap();
    let x = shared.ones([2]);
    assert_eq!(block_on((&x + 1.0).to_vec::<f32>()).unwrap(), [2.0, 2.0]);
    drop(shared);
    until(|| simulator.stats().live_streams == 0);
    assert_eq!(block_on((&x + 2.0).to_vec::<f32>()).unwrap(), [3.0, 3.0]);
}

fn shutdown_ends_what_was_before_and_refuses_what_comes_after(_: &Simulator, _: u64) {
    let device = device(0);
    let x = device.arange(0.0, 1000.0, 1.0) * 3.0;
    let y = &x + 1.0;
    block_on(device.shutdown()).unwrap();
    assert!(y.is_ready() && y.error().is_none());
    assert!(block_on(&y + 1.0).unwrap_err().is_shutdown());
}

fn every_step_runs_to_its_end_when_asked_to(_: &Simulator, _: u64) {
    let device = Device::cuda_with(0, CudaOptions::default().sync(true)).unwrap();
    let mut x = device.arange(0.0, 10.0, 1.0);
    for _ in 0..5 {
        x = (&x + 1.0).exp().log();
    }
    let got = block_on(x.to_vec::<f32>()).unwrap();
    assert!((got[9] - 14.0).abs() < 1e-4);
}

/// A graph that a seed chooses, on any device: what its values are is the CPU's affair.
pub fn graph(device: &Device, seed: u64, nodes: usize) -> Vec<TensorFuture> {
    graph_with(device, seed, nodes, |_| ())
}

/// `after` is given each value when it was asked for.
fn graph_with(
    device: &Device,
    seed: u64,
    nodes: usize,
    after: impl Fn(&TensorFuture),
) -> Vec<TensorFuture> {
    let mut rng = Rng(seed);
    let n = 64;
    let mut values: Vec<TensorFuture> = (0..4)
        .map(|k| device.from_vec((0..n * n).map(|i| ((i * (k + 3)) % 17) as f32).collect(), [n, n]))
        .collect();
    for _ in 0..nodes {
        let a = values[rng.below(values.len())].clone();
        let b = values[rng.below(values.len())].clone();
        let made = match rng.below(9) {
            0 => (a + b) * 0.5,
            1 => a.maximum(&b) - 1.0,
            2 => a.t() + b,
            3 => a.sum([0]) * 0.015625 + b,
            4 => b.slice_assign(3..9, a.narrow(0, 0, 6)),
            5 => a.narrow(0, 1, n - 1).pad_back(&b),
            6 => -a,
            7 => a.index_select(0, device.from_vec((0..n as i64).rev().collect(), [n])),
            _ => a.minimum(&b),
        };
        after(&made);
        // Some are forgotten, so that memory comes and goes.
        if rng.below(3) == 0 && values.len() > 6 {
            let at = rng.below(values.len());
            drop(values.swap_remove(at));
        }
        values.push(made);
    }
    values
}

trait PadBack {
    fn pad_back(&self, b: &TensorFuture) -> TensorFuture;
}

impl PadBack for TensorFuture {
    /// One row of `b` behind what is there.
    fn pad_back(&self, b: &TensorFuture) -> TensorFuture {
        futensor::cat(&[self, &b.narrow(0, 0, 1)], 0)
    }
}

fn any_graph_gives_what_the_cpu_gives(_: &Simulator, seed: u64) {
    let options = CudaOptions::default().streams(3).depth(1 + seed % 9);
    let gpu = Device::cuda_with(0, options).unwrap();
    let (here, fused) = (graph(&gpu, seed, 60), graph(&Device::cpu(), seed, 60));
    // One op after the other: nothing that the engine could do better or worse.
    let there = graph_with(&Device::cpu(), seed, 60, |x| block_on(x.wait_to_read()).unwrap());
    for (k, (a, b)) in here.iter().chain(&fused).zip(there.iter().chain(&there)).enumerate() {
        let (a, b) = (block_on(a.to_vec::<f32>()).unwrap(), block_on(b.to_vec::<f32>()).unwrap());
        let far = a.iter().zip(&b).position(|(x, y)| (x - y).abs() > 1e-3 * y.abs().max(1.0));
        assert!(
            far.is_none(),
            "value {k} at {far:?}: {:?} and {:?}",
            far.map(|i| a[i]),
            far.map(|i| b[i])
        );
    }
}
