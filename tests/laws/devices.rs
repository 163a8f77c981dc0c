//! Law 9: one meaning on every device: streams that overlap, chains that do not wait, random
//! numbers that do not depend on the order in which anything ran.

use crate::support::{ALL, Gate, Kind, PARALLEL, Rng, block_on, identity, same_meta};
use crate::{Laws, promises};
use futensor::custom::{CpuRun, custom_fn};
use futensor::{DType, Device, Generator, GeneratorState, TensorFuture};
use std::sync::{Arc, Barrier};

pub fn add(laws: &mut Laws) {
    promises!(laws, 9, ALL;
        a_chain_stays_on_one_stream
        random_positions_are_reserved_at_the_call
        draws_of_every_type_reserve_what_they_read_and_no_more
        the_order_of_execution_does_not_change_a_number
        a_seed_starts_the_sequence_again
        a_generator_is_a_sequence_of_its_own
        a_run_that_is_resumed_draws_what_it_would_have_drawn
        every_kind_of_device_draws_the_same_numbers
        a_value_goes_from_device_to_device);
    promises!(laws, 9, PARALLEL;
        independent_work_overlaps_in_whatever_order_it_was_queued
        a_step_waits_for_its_inputs_on_other_streams);
}

/// An op that ends once as many of its like as the barrier counts are inside at once.
fn meeting(x: &TensorFuture, barrier: &Arc<Barrier>) -> TensorFuture {
    let barrier = barrier.clone();
    custom_fn("meet", &[x], same_meta, move |run: &mut CpuRun<'_>| {
        barrier.wait();
        crate::support::copy_input(run)
    })
}

fn independent_work_overlaps_in_whatever_order_it_was_queued(kind: Kind) {
    const LENGTH: usize = 10;
    for seed in 0..20 {
        let mut rng = Rng(seed);
        let device = kind.device();
        let barrier = Arc::new(Barrier::new(2));
        let mut chains = [device.ones([4]), device.ones([4])];
        let mut left = [LENGTH, LENGTH];
        while left != [0, 0] {
            let k = match seed {
                0 => (left[0] == 0) as usize,
                1 => (left[0] < left[1]) as usize,
                _ => rng.below(2),
            };
            if left[k] > 0 {
                chains[k] = meeting(&chains[k], &barrier);
                left[k] -= 1;
            }
        }
        // Each step of one chain is inside together with one of the other, or nobody gets out.
        for chain in &chains {
            assert_eq!(block_on(chain.to_vec::<f32>()).unwrap(), [1.0; 4], "seed {seed}");
        }
    }
}

fn a_chain_stays_on_one_stream(kind: Kind) {
    let device = kind.device();
    let mut x = device.rand([100, 100]);
    for i in 0..100 {
        x = x.matmul(&x);
        x = (x + i).sin();
        x = identity("copy", &x, || Ok(()));
    }
    block_on(x).unwrap();
    assert_eq!(device.stats().stream_waits, 0);
}

fn a_step_waits_for_its_inputs_on_other_streams(kind: Kind) {
    let device = kind.device();
    let gates = [Gate::new(), Gate::new()];
    let a = gates[0].op(&device.full([1000], 2.0));
    let b = gates[1].op(&device.full([1000], 3.0));
    gates.iter().for_each(|g| g.wait_entered(1));
    let product = identity("copy", &(&a * &b), || Ok(()));
    gates[0].open();
    block_on(&a).unwrap();
    assert!(!product.is_ready());
    gates[1].open();
    assert_eq!(block_on(product.to_vec::<f32>()).unwrap(), [6.0; 1000]);
}

fn numbers(x: &TensorFuture) -> Vec<u32> {
    block_on(x.to_vec::<f32>()).unwrap().into_iter().map(f32::to_bits).collect()
}

fn random_positions_are_reserved_at_the_call(kind: Kind) {
    let device = kind.device();
    let draw = |skip: bool| {
        device.seed(11);
        let busy = kind.occupy(&device);
        let a = device.rand([1000]);
        let skipped = device.randn([777]);
        let b = device.rand([1000]);
        let kept = (!skip).then_some(skipped);
        busy.release();
        block_on(device.waitall()).unwrap();
        drop(kept);
        (numbers(&a), numbers(&b))
    };
    let skipped_before = device.stats().skipped;
    let with = draw(false);
    assert_eq!(device.stats().skipped, skipped_before);
    assert_eq!(draw(true), with, "a draw that was skipped uses its numbers up");
    assert_ne!(with.0, with.1);
}

/// One after the other, draws are one draw: of doubles, which take two words each, as of all else.
fn draws_of_every_type_reserve_what_they_read_and_no_more(kind: Kind) {
    let device = kind.device();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for normal in [false, true] {
            let draws = |shapes: &[usize]| -> Vec<u64> {
                let own = Generator::new(8);
                let draw = |&n: &usize| match normal {
                    true => own.randn_dtype(&device, [n], dtype),
                    false => own.rand_dtype(&device, [n], dtype),
                };
                let all: Vec<_> = shapes.iter().map(draw).collect();
                let read =
                    |x: &TensorFuture| block_on(x.to_dtype(DType::F64).to_vec::<f64>()).unwrap();
                all.iter().flat_map(read).map(f64::to_bits).collect()
            };
            // Blocks of four words are whole.
            assert_eq!(draws(&[8, 4, 40]), draws(&[52]), "{dtype}, normal: {normal}");
            let odd = draws(&[7, 1, 5]);
            let even = draws(&[8, 4, 40]);
            assert_eq!(odd[..7], even[..7]);
            if dtype != DType::F64 {
                assert_eq!(
                    (odd[7], &odd[8..]),
                    (even[8], &even[12..17]),
                    "{dtype}, normal: {normal}"
                );
            } else {
                // Fourteen words take four blocks, two take one.
                assert_eq!(
                    (odd[7], &odd[8..]),
                    (even[8], &even[10..15]),
                    "{dtype}, normal: {normal}"
                );
            }
        }
    }
}

fn the_order_of_execution_does_not_change_a_number(kind: Kind) {
    let device = kind.device();
    device.seed(5);
    let want: Vec<_> = (0..50).map(|i| numbers(&device.randn([100 + i]))).collect();
    for seed in 0..5 {
        device.seed(5);
        let mut rng = Rng(seed);
        let mut held: Vec<_> = (0..50).map(|i| (i, device.randn([100 + i]))).collect();
        while !held.is_empty() {
            let (i, x) = held.swap_remove(rng.below(held.len()));
            assert_eq!(numbers(&x), want[i], "seed {seed}");
        }
    }
}

fn a_seed_starts_the_sequence_again(kind: Kind) {
    let one = kind.device_with(|o| o.seed(3));
    let first = numbers(&one.rand([64]));
    let second = numbers(&one.rand([64]));
    assert_ne!(first, second);
    one.seed(3);
    assert_eq!((numbers(&one.rand([64])), numbers(&one.rand([64]))), (first.clone(), second));
    one.seed(4);
    assert_ne!(numbers(&one.rand([64])), first);
}

fn a_generator_is_a_sequence_of_its_own(kind: Kind) {
    let device = kind.device();
    let alone: Vec<Vec<u32>> = (0..4)
        .map(|task| {
            let generator = Generator::new(task);
            (0..20).flat_map(|_| numbers(&generator.rand(&device, [50]))).collect()
        })
        .collect();
    let together: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let device = device.clone();
                scope.spawn(move || {
                    let generator = Generator::new(task);
                    (0..20).flat_map(|_| numbers(&generator.rand(&device, [50]))).collect()
                })
            })
            .collect();
        tasks.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    assert_ne!(alone[0], alone[1]);
}

/// Steps of a training run: what is learnt, and a generator of its own beside the device's.
struct Run {
    device: Device,
    weight: TensorFuture,
    own: Generator,
}

impl Run {
    fn steps(&mut self, n: usize) {
        for _ in 0..n {
            // Sizes that end within a block of four words.
            let x = (self.device.rand([5, 3]) + self.own.randn(&self.device, [3])).dropout(0.5);
            let weight = self.weight.requires_grad();
            let loss = (x.matmul(&weight) - self.device.randn([5, 1])).square().mean_all();
            let slope = futensor::grad(&loss, std::slice::from_ref(&weight));
            self.weight =
                (&self.weight - &slope[0] * 0.1 + self.own.rand(&self.device, [1])).stop_gradient();
        }
    }
}

fn a_run_that_is_resumed_draws_what_it_would_have_drawn(kind: Kind) {
    let device = kind.device();
    device.seed(6);
    let mut run =
        Run { device: device.clone(), weight: device.ones([3, 1]), own: Generator::new(7) };
    run.steps(3);
    // What a checkpoint has: taken at once, whatever is still queued.
    let states = [device.generator().state(), run.own.state()].map(GeneratorState::to_bytes);
    let weight = run.weight.clone();
    assert!(states.iter().all(|s| s[8..] != [0; 8]), "nothing was drawn: {states:?}");
    run.steps(3);
    let straight = numbers(&run.weight);

    let other = kind.device();
    other.rand([77]).detach();
    let [of_device, of_own] = states.map(GeneratorState::from_bytes);
    other.generator().set_state(of_device);
    let weight = other.from_vec(block_on(weight.to_vec::<f32>()).unwrap(), [3, 1]);
    let mut resumed = Run { device: other.clone(), weight, own: Generator::from_state(of_own) };
    resumed.steps(3);
    assert_eq!(numbers(&resumed.weight), straight);
    assert_eq!(other.generator().state(), device.generator().state());
    // A saved state means the same on every device, and to a handle that is there already.
    let reference = Kind::CpuOneThread.device();
    let again = Generator::new(0);
    again.set_state(of_own);
    assert_eq!(
        numbers(&again.rand(&reference, [50])),
        numbers(&Generator::from_state(of_own).rand(&device, [50]))
    );
    // One that is made up begins with the next whole block.
    let made_up = GeneratorState { seed: 9, position: 5 };
    assert_eq!(Generator::from_state(made_up).state().position, 8);
}

fn every_kind_of_device_draws_the_same_numbers(kind: Kind) {
    let reference = Kind::CpuOneThread.device_with(|o| o.inline(false).seed(99));
    let device = kind.device_with(|o| o.seed(99));
    for n in [1, 2, 5, 63, 1000, 100_000] {
        assert_eq!(numbers(&device.rand([n])), numbers(&reference.rand([n])));
        assert_eq!(numbers(&device.randn([n])), numbers(&reference.randn([n])));
    }
    let generator = |device: &Device| {
        let x = Generator::new(1).rand_dtype(device, [1000], DType::F64);
        block_on(x.to_vec::<f64>()).unwrap()
    };
    assert_eq!(generator(&device), generator(&reference));
    // What is made of these numbers by ops that have one result.
    let drawn = |device: &Device| {
        let (generator, p) = (Generator::new(5), device.arange(0.0, 1.0, 0.01));
        let all = [
            generator.randint(device, -9, 1000, [500]),
            generator.randperm(device, 500),
            generator.uniform(device, -2.0, 3.0, [500]),
            generator.exponential(device, 0.7, [500]),
            generator.bernoulli(&p),
            generator.multinomial(&p, 20, false),
        ];
        all.map(|x| block_on(x.to_dtype(DType::F64).to_vec::<f64>()).unwrap())
    };
    assert_eq!(drawn(&device), drawn(&reference));
}

fn a_value_goes_from_device_to_device(kind: Kind) {
    let (one, two) = (kind.device(), kind.device());
    let gate = Gate::new();
    let x = gate.op(&one.arange(0.0, 5000.0, 1.0));
    gate.wait_entered(1);
    let there = x.to_device(&two);
    assert_eq!((there.device(), there.dims(), there.is_ready()), (two.clone(), x.dims(), false));
    let back = (&there * 2.0).to_device(&one) + &x;
    assert_eq!(x.to_device(&one).device(), one);
    // The other device is not blocked by what it waits for.
    assert_eq!(block_on(two.ones([2]).to_vec::<f32>()).unwrap(), [1.0; 2]);
    gate.open();
    assert!(
        block_on(back.to_vec::<f32>()).unwrap().into_iter().eq((0..5000).map(|i| 3.0 * i as f32))
    );
}
