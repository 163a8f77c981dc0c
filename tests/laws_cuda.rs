//! The laws of the contract on simulated CUDA: the list of `laws`, on the third kind of device.
//!
//!     cargo test -p futensor-tests --test laws_cuda        # ignored where there is no g++
//!
//! With `FUTENSOR_DEMAND_GPU` set they are held on a GPU instead, and `smoke`, `one`, `fault`,
//! `gone` and `full` as the first argument play a part there (`tests/gpu/run`). Trials that need
//! what a GPU has not (a closure as a kernel, a CPU device's options) are reported as ignored.

#[path = "laws/barriers.rs"]
mod barriers;
#[path = "laws/calls.rs"]
mod calls;
#[path = "laws/captured.rs"]
mod captured;
#[path = "laws/devices.rs"]
mod devices;
#[path = "laws/ends.rs"]
mod ends;
#[path = "laws/errors.rs"]
mod errors;
#[path = "laws/finite.rs"]
mod finite;
#[path = "laws/foreign.rs"]
mod foreign;
#[path = "laws/fusion.rs"]
mod fusion;
#[path = "laws/handles.rs"]
mod handles;
#[path = "laws/list.rs"]
mod list;
#[path = "laws/observers.rs"]
mod observers;
#[path = "laws/plans.rs"]
mod plans;
#[path = "laws/pressure.rs"]
mod pressure;
#[path = "laws/races.rs"]
mod races;
#[path = "laws/regions.rs"]
mod regions;
#[path = "support/mod.rs"]
mod support;
#[path = "support/trials.rs"]
mod trials;
#[path = "laws/waits.rs"]
mod waits;
#[path = "laws/wakers.rs"]
mod wakers;
#[path = "laws/weights.rs"]
mod weights;

use futensor::{Device, DeviceMemory};
use futensor_simulated_driver::{Simulator, harness};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use support::{ALL, Kind, block_on};
use trials::{Came, Case};

/// Promises that look at elements or memory inside a kernel of the test's, or read after a shutdown
/// (which on a GPU takes a copy).
const OF_THE_HOST: &[&str] = &[
    "a_loop_goes_on_in_the_memory_of_its_first_rounds_and_trim_gives_it_back",
    "running_work_is_not_torn_down_by_a_drop",
    "an_op_is_offered_its_input_only_as_its_last_reader",
    "a_poll_runs_no_step_of_many_elements",
    "an_op_that_leaves_elements_unwritten_fails",
    "a_slice_of_the_output_is_zeros_where_nothing_was_written",
    "an_op_in_place_has_one_view_with_the_old_elements",
    "a_key_value_cache_of_a_users_own_copies_nothing",
    "an_input_that_is_read_twice_is_not_changed_in_place",
    "shutdown_ends_what_was_before_and_refuses_what_comes_after",
];

/// Promises about which ops are one step: a GPU's library computes a product in a step of its own.
const GROUPS_OF_THE_HOST: &[&str] = &[
    "what_follows_a_product_runs_in_its_step",
    "a_reduction_may_end_what_follows_a_product",
    "what_follows_an_op_that_fails_fails_with_it_alone",
    "the_groups_of_a_loop_are_the_same_each_time_round",
    "the_groups_of_a_loop_that_awaits_its_loss_are_the_same_each_time_round",
];

/// Trials of one law.
pub struct Laws {
    cases: Vec<Case>,
    simulator: Option<Simulator>,
    /// They are held on a GPU.
    real: bool,
    list: list::List,
}

fn run(simulator: Option<&Simulator>, promise: fn(Kind)) -> Came {
    // A caller's thread waits for nothing.
    let alone = |on: bool| simulator.into_iter().for_each(|s| s.forbid_blocking(on));
    simulator.into_iter().for_each(|s| s.reset(1, 2));
    alone(true);
    let outcome = catch_unwind(AssertUnwindSafe(|| promise(Kind::Cuda)));
    alone(false);
    let report = simulator.map(Simulator::report).unwrap_or_default();
    if let Err(panic) = outcome {
        return trials::words(panic).map_err(|text| format!("{text}\n{report}"));
    }
    if report.is_empty() { Ok(None) } else { Err(report) }
}

impl Laws {
    /// Adds a promise; one that is neither for all kinds of devices nor for a GPU is ignored.
    pub fn add(&mut self, law: u32, kinds: &'static [Kind], name: &'static str, promise: fn(Kind)) {
        self.list.note(law, kinds, name);
        let device = if self.real { "cuda" } else { "simulated_cuda" };
        let (simulator, real) = (self.simulator, self.real);
        let ignored = |why: &str| Ok(Some(why.to_owned()));
        self.cases.push(Case::that(
            format!("law_{law}::{name}[{device}]"),
            move || match simulator {
                _ if kinds != ALL && !kinds.contains(&Kind::Cuda) => {
                    ignored("of a CPU device alone")
                }
                None if !real => ignored("no simulated driver"),
                _ if OF_THE_HOST.contains(&name) => ignored("needs host memory"),
                _ if GROUPS_OF_THE_HOST.contains(&name) => ignored("other groups"),
                simulator => run(simulator.as_ref(), promise),
            },
        ));
    }
}

/// `promises!(laws, 1, ALL; a b c)`: the functions `a`, `b` and `c` prove law 1 on all kinds.
macro_rules! promises {
    ($laws:expr, $law:literal, $kinds:expr; $($name:ident)*) => {
        $($laws.add($law, $kinds, stringify!($name), $name);)*
    };
}
pub(crate) use promises;

/// What is there, in seconds: which libraries were found and where, and that each computes. It ends
/// with 1 where one is missing that the rest of a run needs.
fn smoke() {
    let began = Instant::now();
    let stop = |why: &str| -> ! {
        eprintln!("SMOKE: {why}");
        std::process::exit(1)
    };
    let device = Device::cuda(0).unwrap_or_else(|error| stop(&format!("there is no GPU: {error}")));
    let told = device.libraries();
    print!("{told}");
    let missing = |what: &str| !told.lines().any(|line| line.starts_with(what));
    if missing("kernel compiler: NVRTC of CUDA") || missing("products: cuBLAS") {
        stop("a library is missing without which nothing is computed");
    }
    if missing("convolutions: cuDNN") {
        println!("without cuDNN: convolutions are products of columns");
    }
    let x = device.ones([4, 4]) + 1.0;
    match block_on(x.matmul(&x).to_vec::<f32>()) {
        Ok(values) if values == [16.0; 16] => {}
        other => stop(&format!("a sum and a product of matrices gave {other:?}")),
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_nvidia = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or_default();
        ["libcuda.so", "libnvrtc.so", "libcublas.so", "libcudnn.so", "libnccl.so"]
            .iter()
            .any(|n| name.starts_with(n))
    };
    let mut files: Vec<&str> =
        maps.lines().filter_map(|line| line.split_whitespace().nth(5)).filter(of_nvidia).collect();
    files.sort();
    files.dedup();
    files.iter().for_each(|file| println!("opened: {file}"));
    println!("the smoke took {:.1} s", began.elapsed().as_secs_f64());
}

/// One op after the other, and what they are computed with.
fn one() {
    let device = Device::cuda(0).expect("a GPU");
    let x = device.ones([4, 4]) + 1.0;
    let y = block_on(x.matmul(&x).to_vec::<f32>()).expect("values");
    assert_eq!(y, [16.0; 16]);
    print!("{}", device.libraries());
}

/// A kernel of a user's that writes where nothing is ends its device within a second, and every
/// await.
fn fault() {
    let device = Device::cuda(0).expect("a GPU");
    let before = block_on(device.ones([10]) + 1.0).expect("a value");
    let from = Instant::now();
    let error = block_on(support::stray(&before)).expect_err("an illegal address");
    assert!(error.is_device_lost(), "{error}");
    assert!(from.elapsed() < Duration::from_secs(1), "it took {:?}", from.elapsed());
    assert!(block_on(device.ones([3]) + 1.0).is_err_and(|error| error.is_device_lost()));
    println!("{error}");
}

/// Work of every kind is queued as the process ends.
fn gone() {
    let device = Device::cuda(0).expect("a GPU");
    let x = device.randn([2000, 2000]);
    for k in 0..40 {
        let y = x.matmul(&x).cumsum(0) + k as f64;
        y.detach();
        drop(y.to_vec::<f32>());
    }
}

/// With 95 % of its memory taken a device computes as before; what does not fit is an error alone.
fn full() {
    let device = Device::cuda(0).expect("a GPU");
    let computed = || {
        let x = device.arange(0.0, 1e5, 1.0);
        let sum = block_on(((&x % 7.0) * 2.0).sum_all().item::<f32>()).expect("a value");
        let x = x.reshape([10, 10_000]);
        let sorted = block_on(x.sort(1, true).narrow(1, 0, 1).to_vec::<f32>()).expect("values");
        let product =
            block_on(x.narrow(1, 0, 10).matmul(device.eye(10)).to_vec::<f32>()).expect("values");
        (sum, sorted, product)
    };
    let want = computed();
    // A constant would be one element.
    let value = |n: usize| block_on(device.ones([n]) + 0.0);
    let taken = || match device.memory() {
        DeviceMemory { free: Some(free), total } => total - free,
        unknown => panic!("{unknown:?}"),
    };
    let total = device.memory().total;
    let mut kept = Vec::new();
    while taken() < total / 100 * 95 {
        kept.push(value(total / 400).expect("what is free"));
    }
    assert_eq!(computed(), want, "at 95 % of {total} bytes");
    let error = value(total / 4 / 10).expect_err("a tenth of all, of a twentieth");
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(computed(), want);
    println!("{} bytes taken, {} values, then: {error}", taken(), kept.len());
    drop(kept);
    value(total / 4 / 10).expect("what was let go");
}

fn main() -> ExitCode {
    // A GPU has no simulator: `tests/gpu/run` says that there is one.
    let real = std::env::var_os("FUTENSOR_DEMAND_GPU").is_some();
    match std::env::args().nth(1).as_deref() {
        Some("smoke") if real => smoke(),
        Some("one") if real => one(),
        Some("fault") if real => fault(),
        Some("gone") if real => gone(),
        Some("full") if real => full(),
        _ => return suite(real),
    }
    ExitCode::SUCCESS
}

fn suite(real: bool) -> ExitCode {
    let enter = || harness::enter().and_then(|s| s.can_compile().map(|()| s));
    let simulator = match if real { Err(String::new()) } else { enter() } {
        _ if real => None,
        Ok(simulator) => Some(simulator),
        Err(why) => {
            eprintln!("ignored, as the simulated driver cannot be used: {why}");
            None
        }
    };
    let mut laws = Laws { cases: Vec::new(), simulator, real, list: list::List::default() };
    calls::add(&mut laws);
    barriers::add(&mut laws);
    observers::add(&mut laws);
    ends::add(&mut laws);
    errors::add(&mut laws);
    finite::add(&mut laws);
    foreign::add(&mut laws);
    captured::add(&mut laws);
    pressure::add(&mut laws);
    races::add(&mut laws);
    devices::add(&mut laws);
    handles::add(&mut laws);
    fusion::add(&mut laws);
    regions::add(&mut laws);
    plans::add(&mut laws);
    waits::add(&mut laws);
    wakers::add(&mut laws);
    weights::add(&mut laws);
    laws.cases.push(laws.list.trial());
    trials::run(laws.cases, true)
}
