//! Products with a weight that stays: however often it was used, the result is the same to the bit,
//! and the memory that is kept beside it is accounted for.

use crate::support::{Kind, Rng, block_on, until};
use crate::{Laws, promises};
use futensor::{DType, Device, TensorFuture};

/// Devices that keep a weight in another form once it has been used a few times.
const HOSTS: &[Kind] = &[Kind::Cpu, Kind::CpuOneThread];

pub fn add(laws: &mut Laws) {
    promises!(laws, 9, HOSTS;
        a_product_is_the_same_to_the_bit_however_often_its_weight_was_used
        a_weight_that_is_written_over_is_multiplied_with_as_it_is
        another_view_of_a_weight_is_not_mistaken_for_it);
    promises!(laws, 8, HOSTS;
        what_is_kept_beside_a_weight_is_counted_and_goes_with_it
        a_weight_for_whose_other_form_there_is_no_room_is_multiplied_with_all_the_same);
}

/// The bits of a product of halves or floats.
fn bits(x: &TensorFuture) -> Vec<u32> {
    block_on(x.to_dtype(DType::F32).to_vec::<f32>())
        .unwrap()
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

fn normal(device: &Device, shape: [usize; 2], dtype: DType) -> TensorFuture {
    let x = device.randn(shape).to_dtype(dtype);
    block_on(&x).unwrap();
    x
}

fn a_product_is_the_same_to_the_bit_however_often_its_weight_was_used(kind: Kind) {
    let device = kind.device();
    device.seed(41);
    let mut rng = Rng(41);
    let mut pick = |of: &[usize]| of[rng.below(of.len())];
    for turn in 0..60 {
        // One row, and few of them; neither side above 64 with k above 512; and what comes.
        let (m, n) = match turn % 3 {
            0 => (1, pick(&[2, 48, 100, 256, 1536])),
            1 => (pick(&[2, 7, 64]), pick(&[3, 10, 64])),
            _ => (pick(&[4, 16, 32, 65, 200]), pick(&[1, 65, 130, 520])),
        };
        let k = pick(&[1, 2, 64, 384, 512, 513, 777, 1100, 2100]);
        let dtype = [DType::F32, DType::F16, DType::F32, DType::BF16][turn % 4];
        let x = normal(&device, [m, k], dtype);
        let weight = match turn / 2 % 2 {
            0 => normal(&device, [k, n], dtype),
            _ => normal(&device, [n, k], dtype).t(),
        };
        let first = bits(&x.matmul(&weight));
        for time in 2..6 {
            let again = bits(&x.matmul(&weight));
            let transposed = turn / 2 % 2 == 1;
            assert_eq!(
                first, again,
                "{dtype} [{m}, {k}] x [{k}, {n}], transposed {transposed}, use {time}"
            );
            // Other rows in between do not change it either.
            let others = normal(&device, [3, k], dtype);
            block_on(&others.matmul(&weight)).unwrap();
        }
    }
}

fn a_weight_that_is_written_over_is_multiplied_with_as_it_is(kind: Kind) {
    let device = kind.device();
    device.seed(42);
    let x = normal(&device, [8, 96], DType::F32);
    let mut weight = normal(&device, [96, 80], DType::F32);
    for round in 0..6 {
        for _ in 0..round {
            block_on(&x.matmul(&weight)).unwrap();
        }
        // The old one's memory, where it can be had.
        weight = weight * 1.25 + 0.5;
        block_on(&weight).unwrap();
        let copy: Vec<f32> = block_on(weight.to_vec()).unwrap();
        let fresh = device.from_vec(copy, [96, 80]);
        assert_eq!(bits(&x.matmul(&weight)), bits(&x.matmul(&fresh)), "round {round}");
    }
}

fn another_view_of_a_weight_is_not_mistaken_for_it(kind: Kind) {
    let device = kind.device();
    device.seed(43);
    let x = normal(&device, [8, 96], DType::F32);
    let weight = normal(&device, [96, 96], DType::F32);
    let views = [weight.clone(), weight.t(), weight.flip([1]), weight.narrow(1, 8, 80)];
    let fresh = |view: &TensorFuture| {
        let copy: Vec<f32> = block_on(view.to_vec()).unwrap();
        device.from_vec(copy, view.shape().clone())
    };
    let expected: Vec<_> = views.iter().map(|view| bits(&x.matmul(fresh(view)))).collect();
    // Each by itself often enough to be kept in another form, then all in turn.
    for (view, expected) in views.iter().zip(&expected) {
        for use_ in 1..5 {
            assert_eq!(&bits(&x.matmul(view)), expected, "use {use_}");
        }
    }
    for (view, expected) in views.iter().zip(&expected).cycle().take(20) {
        assert_eq!(&bits(&x.matmul(view)), expected);
    }
}

const SIDE: usize = 256;
const BYTES: usize = 4 * SIDE * SIDE;

fn what_is_kept_beside_a_weight_is_counted_and_goes_with_it(kind: Kind) {
    let device = kind.device();
    let x = normal(&device, [8, SIDE], DType::F32);
    let live = || device.stats().bytes_live;
    let few = live();
    let weight = normal(&device, [SIDE, SIDE], DType::F32);
    let use_it =
        |times: usize| (0..times).for_each(|_| block_on(x.matmul(&weight)).map(drop).unwrap());
    use_it(2);
    until(|| live() == few + BYTES);
    use_it(8);
    until(|| (few + 2 * BYTES..few + 3 * BYTES).contains(&live()));
    assert!(device.stats().bytes_peak >= few + 2 * BYTES);
    // Nobody multiplies by it just now (as soon as the device has let go of the last product's
    // step).
    until(|| {
        device.trim();
        live() == few + BYTES
    });
    use_it(1);
    until(|| live() >= few + 2 * BYTES);
    drop(weight);
    until(|| live() == few);
}

fn a_weight_for_whose_other_form_there_is_no_room_is_multiplied_with_all_the_same(kind: Kind) {
    // The weight, its rows and a few products, but not the weight again.
    let device = kind.device_with(|options| options.bytes_max(BYTES + BYTES / 2));
    device.seed(44);
    let weight = normal(&device, [SIDE, SIDE], DType::F32);
    let x = normal(&device, [8, SIDE], DType::F32);
    let first = bits(&x.matmul(&weight));
    for use_ in 2..8 {
        assert_eq!(bits(&x.matmul(&weight)), first, "use {use_}");
    }
    until(|| device.stats().bytes_live < BYTES + BYTES / 4);
    assert!(device.stats().bytes_peak <= BYTES + BYTES / 2);
    // Where there is room at first, it is given up for what needs it.
    let device = kind.device_with(|options| options.bytes_max(3 * BYTES));
    let weight = normal(&device, [SIDE, SIDE], DType::F32);
    let x = normal(&device, [8, SIDE], DType::F32);
    (0..5).for_each(|_| block_on(x.matmul(&weight)).map(drop).unwrap());
    until(|| device.stats().bytes_live > 2 * BYTES);
    let large = block_on(device.zeros([SIDE, SIDE]) + 1.0);
    assert!(large.is_ok(), "{large:?}");
    assert!(block_on(x.matmul(&weight)).is_ok());
}
