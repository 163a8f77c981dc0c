//! Sizes that no memory holds, beside sizes of 0 and without: results, gradients, options.

use super::calls::{Call, calls};
use super::everything::try_all;
use futensor::custom::*;
use futensor::quant::{Format, Quantized};
use futensor::*;
use std::time::Duration;

/// No elements, and sizes whose products and sums no integer holds.
pub fn sizes_beside_a_size_of_0_overflow_nothing(device: &Device) {
    const HUGE: usize = 1 << 62;
    const LARGEST: usize = isize::MAX as usize - 1;
    let shapes: &[&[usize]] = &[
        &[0, usize::MAX, 4],
        &[0, 1, usize::MAX, 4],
        &[0, 1, LARGEST, 4],
        &[0, LARGEST],
        &[0, LARGEST, LARGEST],
        &[2, LARGEST, 0],
        &[1, 0, HUGE, HUGE],
        &[1, HUGE, HUGE, 0],
        &[HUGE, HUGE, 0],
    ];
    let values: Vec<_> = shapes.iter().map(|&s| (format!("{s:?}"), device.zeros(s))).collect();
    let all = calls();
    // As many parts as there are rows are what is asked for.
    let (parts, calls): (Vec<Call>, Vec<Call>) = all
        .into_iter()
        .partition(|(name, _)| name.starts_with("split") || name.starts_with("chunk"));
    try_all(&calls, &values);
    try_all(&parts, &values[..5]);
}

pub fn a_value_without_elements_is_shown_whatever_its_sizes(device: &Device) {
    let x = device.zeros([0, 1 << 60]);
    assert_eq!(block_on(x.to_vec::<f32>()).unwrap(), [0.0; 0]);
    assert!(block_on(x.display()).unwrap().starts_with("tensor([]"));
}

pub fn ranges_that_are_longer_than_any_memory_are_refused(device: &Device) {
    for range in [device.arange(0.0, 1e30, 1.0), device.arange(i64::MIN, i64::MAX, 1)] {
        assert!(range.error().is_some_and(|e| e.is_out_of_memory()), "{:?}", range);
    }
    assert_eq!(device.arange(0, 4, 1).i(1..=isize::MAX).dims(), [3]);
}

/// The generator stands where it stood: what is drawn next has numbers of its own.
pub fn a_draw_that_fails_at_the_call_uses_no_numbers_up(device: &Device) {
    let drawn = |x: TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
    let own = Generator::new(3);
    let sources: [&dyn Fn(usize) -> TensorFuture; 2] =
        [&|n| device.rand([n]), &|n| own.randn(device, [n])];
    for draw in sources {
        let before = drawn(draw(4));
        assert!(draw(usize::MAX).error().is_some_and(|e| e.is_out_of_memory()));
        assert_ne!(drawn(draw(4)), before);
    }
    device.seed(3);
    let all = drawn(device.rand([8]));
    device.seed(3);
    let first = drawn(device.rand([4]));
    assert!(device.rand([usize::MAX]).error().is_some());
    assert_eq!([first, drawn(device.rand([4]))].concat(), all);
}

/// Neither differences that a double cannot hold nor products that it rounds to zero.
pub fn a_range_that_leads_away_is_refused_whatever_its_size(device: &Device) {
    let wrong = [
        device.arange(i64::MAX, i64::MAX - 1, 1),
        device.arange((1i64 << 53) + 1, 1i64 << 53, 1),
        device.arange(i64::MIN, i64::MIN + 1, -1),
        device.arange(1e-200, 0.0, 1e-200),
        device.arange(0, 1, 0),
        device.arange(0.0, f64::NAN, 1.0),
    ];
    for range in wrong {
        assert!(range.error().is_some_and(|e| e.is_argument() && e.op() == "arange"), "{range:?}");
    }
    let ints = |x: TensorFuture| block_on(x.to_vec::<i64>()).unwrap();
    assert_eq!(ints(device.arange(i64::MAX - 1, i64::MAX, 1)), [i64::MAX - 1]);
    assert_eq!(ints(device.arange(i64::MAX, i64::MIN, i64::MIN)), [i64::MAX, -1]);
    assert_eq!(ints(device.arange(5, 5, -1)), [0i64; 0]);
    assert_eq!(device.arange(1e-200, 0.0, -1e-200).dims(), [1]);
}

/// The values between have the sizes of what they were to be made from.
pub fn an_einsum_that_fails_on_its_way_is_one_failed_value(device: &Device) {
    let x = device.ones([2, 2, 2, 3]);
    let (double, last) = (device.ones_dtype([3, 4], DType::F64), device.ones([4, 5]));
    let elsewhere = Device::cpu_with(CpuOptions::default().threads(1)).ones([3, 4]);
    let failed = device.ones([3, 4]) + device.ones([7]);
    let (huge, wide) = (device.zeros([0, 1 << 40, 1 << 40]), device.zeros([1 << 40, 5]));
    for value in [
        einsum("abcd,de,ef->abcf", &[&x, &double, &last]),
        einsum("abcd,de,ef->abcf", &[&x, &elsewhere, &last]),
        einsum("abcd,de,ef->abcf", &[&x, &failed, &last]),
        einsum("abc,bd,cd->d", &[&huge, &wide, &wide]),
    ] {
        assert!(value.error().is_some() && value.device() == *device, "{value:?}");
    }
}

pub fn a_roll_has_a_gradient_whatever_its_shift(device: &Device) {
    let weight = device.from_vec(vec![1.0f32, 2.0, 4.0], [3]);
    for (shift, once) in [(isize::MIN, 1), (isize::MIN + 1, 2), (isize::MAX - 1, 0)] {
        let x = device.from_vec(vec![0.0f32, 1.0, 2.0], [3]).requires_grad();
        let y = x.roll(shift, 0);
        let gradient = grad((&y * &weight).sum_all(), &[&x]).remove(0);
        let floats = |x: &TensorFuture| block_on(x.to_vec::<f32>()).unwrap();
        assert_eq!(floats(&y), floats(&x.roll(once, 0)), "{shift}");
        assert_eq!(floats(&gradient), floats(&weight.roll(-once, 0)), "{shift}");
    }
    let x = device.zeros([0]).requires_grad();
    assert_eq!(grad(x.roll(isize::MIN, 0).sum_all(), &[&x])[0].dims(), [0]);
}

pub fn more_parts_than_memory_has_room_for_are_one_failed_value(device: &Device) {
    let none = device.zeros([usize::MAX]);
    assert!(none.error().is_some());
    // Where the system would promise the room, but does not have it.
    let free = Device::cpu().memory().free.unwrap_or(1 << 40);
    let many = device.zeros([1]).expand([free / 128]);
    for parts in [
        none.split(1, 0),
        none.chunk(usize::MAX, 0),
        device.zeros([1 << 40]).split(1, 0),
        many.split(1, 0),
        many.chunk(free / 128, 0),
    ] {
        assert_eq!(parts.len(), 1);
        assert!(parts[0].error().is_some_and(|e| e.is_out_of_memory()), "{:?}", parts[0]);
    }
}

pub fn the_places_of_more_elements_than_memory_has_room_for_fail(device: &Device) {
    let places = block_on(device.zeros_dtype([1 << 60], DType::Bool).nonzero());
    assert!(
        places.as_ref().is_err_and(|e| e.is_out_of_memory() && e.op() == "nonzero"),
        "{places:?}"
    );
    let places = block_on(device.ones_dtype([2, 0, 3], DType::Bool).nonzero()).unwrap();
    assert_eq!(places.dims(), [0, 3]);
}

pub fn of_a_value_of_many_dimensions_the_first_elements_are_shown(device: &Device) {
    for x in [device.zeros(vec![7; 20]), device.zeros(vec![2; 40]), device.ones([1; 64])] {
        let text = block_on(x.display()).unwrap();
        assert!(text.starts_with("tensor([[[[[[[[[[[[[[[[[[[["), "{}", &text[..100]);
        assert!(text.len() < 4 << 20, "{}", text.len());
    }
}

pub fn pages_of_any_size_give_values_and_gradients(device: &Device) {
    const LARGEST: usize = isize::MAX as usize - 1;
    let one = |n: i64| device.full([1], n);
    let (none, rows) =
        (device.zeros_dtype([0], DType::I64), device.zeros_dtype([0, 0], DType::I64));
    // No queries, and no keys.
    let pages = device.zeros([0, 1, 1, LARGEST]).requires_grad();
    let q = device.zeros([0, 1, 1, LARGEST]).requires_grad();
    let y = q.paged_attention(&pages, &pages, &rows, &none, ());
    assert_eq!(y.dims(), [0, 1, 1, LARGEST]);
    let gradients = grad(y.sum_all(), &[&q, &pages]);
    gradients.iter().for_each(|g| block_on(g.wait_to_read()).unwrap());
    let pages = device.zeros([0, LARGEST, 1, 2]).requires_grad();
    let (q, table) =
        (device.ones([1, 1, 1, 2]).requires_grad(), device.zeros_dtype([1, 4], DType::I64));
    let y = q.paged_attention(&pages, &pages, table, one(0), ());
    let gradients = grad(y.sum_all(), &[&q, &pages]);
    assert_eq!(block_on(gradients[0].to_vec::<f32>()).unwrap(), [0.0; 2]);
    assert_eq!(gradients[1].dims(), pages.dims());
    // A table of one number that is repeated.
    let (pages, table) = (
        device.ones([1, 32, 1, 2]),
        device.zeros_dtype([1, 1], DType::I64).expand([1, 1isize << 59]),
    );
    let y = q.paged_attention(&pages, &pages, &table, one(3), ());
    let without_kernel = |error: &Error| error.message().contains("has no CUDA kernel");
    match block_on(y.to_vec::<f32>()) {
        Ok(found) => assert_eq!(found, [1.0; 2]),
        Err(error) => assert!(without_kernel(&error), "{error}"),
    }
    let error = block_on(grad(y.sum_all(), &[&q]).remove(0)).unwrap_err();
    assert!(
        error.op() == "paged_attention" && (error.is_out_of_memory() || without_kernel(&error)),
        "{error}"
    );
}

pub fn a_weight_without_rows_or_columns_has_any_other_size(device: &Device) {
    for (format, columns) in [(Format::F16, 1usize << 63), (Format::Q8_0, 1 << 60)] {
        let refused = Quantized::from_blocks(device, &[], format, [0, columns]);
        assert!(refused.unwrap_err().message().contains("larger than any memory"));
    }
    let none = Quantized::from_blocks(device, &[], Format::Q4_0, [1 << 63, 0]).unwrap();
    assert!(
        Quantized::join(&[&none, &none]).unwrap_err().message().contains("larger than any memory")
    );
    assert!(none.linear(device.ones([1, 0])).error().is_some_and(|e| e.is_out_of_memory()));
}

pub fn sizes_of_failed_values_overflow_nothing(device: &Device) {
    let image = device.zeros([1, 1, 1 << 63]);
    for mode in [InterpolateMode::Nearest, InterpolateMode::Linear, InterpolateMode::Cubic] {
        assert!(image.interpolate(InterpolateOptions::size(5).mode(mode)).error().is_some());
    }
    let rows = device.zeros([usize::MAX, 4]);
    for lengths in [vec![usize::MAX; 2], vec![usize::MAX, 0], vec![1 << 63; 2]] {
        let options = AttentionOptions::default().sequences(lengths);
        assert!(rows.scaled_dot_product_attention(&rows, &rows, options).error().is_some());
    }
}

/// What is not a future never does device-sized work.
pub fn a_pool_looks_at_no_place_one_by_one_when_it_is_asked_for(device: &Device) {
    let start = std::time::Instant::now();
    let options = PoolOptions::new(2).dilation(i32::MAX).padding(i32::MAX).stride(1);
    let pooled = device.zeros([1, 1, (1 << 31) - 2]).max_pool1d(options.clone());
    assert!(pooled.error().is_some_and(|e| e.is_shape() && e.message().contains("passes over")));
    let pooled = device.zeros([1, 1, (1 << 31) - 1]).max_pool1d(options);
    assert_eq!(pooled.dims(), [1, 1, (1 << 32) - 2]);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

pub fn a_convolution_of_no_images_has_a_gradient_whatever_their_size(device: &Device) {
    for outs in [1, 4] {
        let x = device.zeros([0, 1, 1 << 40, 1 << 40]).requires_grad();
        let w = device.ones([outs, 1, 3, 3]).requires_grad();
        let gradients = grad(x.conv2d(&w, None, ()).sum_all(), &[&w, &x]);
        assert_eq!(block_on(gradients[0].to_vec::<f32>()).unwrap(), vec![0.0; 9 * outs]);
        block_on(gradients[1].wait_to_read()).unwrap();
        let y = x.conv_transpose2d(device.ones([1, outs, 3, 3]), None, ());
        block_on(grad(y.sum_all(), &[&x])[0].wait_to_read()).unwrap();
    }
}

/// A row of no columns is no work, however many there are.
pub fn rows_without_columns_are_quantised_at_once(device: &Device) {
    for rows in [1usize << 40, 1 << 60] {
        let none = device.zeros([rows, 0]);
        for format in [Format::Q8_0, Format::F16] {
            if let Ok(weight) = Quantized::from_tensor(&none, format) {
                let back = block_on(weight.dequantize()).unwrap();
                assert_eq!(back.dims(), [rows, 0]);
            }
        }
    }
}

pub fn attention_of_no_width_finds_the_mean_of_the_values(device: &Device) {
    let (q, k) = (device.zeros([1, 1, 1, 0]), device.zeros([1, 2, 1, 0]));
    let v = device.arange(0.0, 32.0, 1.0).reshape([1, 2, 1, 16]);
    let mean: Vec<f32> = (0..16).map(|c| c as f32 + 8.0).collect();
    let table = device.zeros_dtype([1, 1], DType::I64);
    let found = q.paged_attention(&k, &v, table, device.full_dtype([1], 2, DType::I64), ());
    let flat = q.scaled_dot_product_attention(k.transpose(1, 2), v.transpose(1, 2), ());
    for found in [found, flat] {
        match block_on(found.to_vec::<f32>()) {
            Ok(found) => assert_eq!(found, mean),
            Err(error) => assert!(error.message().contains("no CUDA kernel"), "{error}"),
        }
    }
}

/// "As long as you like" and "as much as there is" overflow nothing.
pub fn options_without_end_are_no_limits(_: &Device) {
    let (most, longest) = (usize::MAX, Duration::MAX);
    for limit in [longest, Duration::from_nanos(u64::MAX) + Duration::from_nanos(1)] {
        let options = CpuOptions::default()
            .threads(2)
            .linger(longest)
            .fusion_delay(limit)
            .watchdog(Some(limit));
        let options =
            options.bytes_max(most).in_flight_ops(most).in_flight_bytes(most).nice(i32::MAX);
        let device = Device::cpu_with(options.queue_ops(most).queue_bytes(most).permits(most));
        // The other thread has nothing to do meanwhile, and looks around.
        let region = device.region(|x: TensorFuture| {
            let as_it_is = |inputs: &[&Meta]| Ok(Meta::new(inputs[0].shape.clone(), DType::F32));
            let slow = custom_fn("slow", &[&x], as_it_is, |run| {
                (0..2000).for_each(|_| std::thread::yield_now());
                let x = run.inputs()[0].to_vec::<f32>().unwrap_or_default();
                run.output().fill_from(x);
                Ok(())
            });
            slow.sum_all()
        });
        let sum = block_on(region.call(device.eye(128)).item::<f32>()).unwrap();
        assert_eq!(sum, 128.0);
    }
}
