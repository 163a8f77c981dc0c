//! The same by NCCL, on simulated GPUs: each rank has one, in a process of its own, and what they
//! exchange goes between the processes (`crates/futensor-simulated-driver/src/libraries/nccl`).
//! Nobody needs an `mpirun` for that.

use super::losses::others_ended_well;
use super::stage::{Folder, Scene, Stage, block_on, command, nothing_is_left, settle, told};
use super::{losses, values};
use futensor::ranks::Combine::Sum;
use futensor::ranks::Group;
use futensor::{Device, TensorFuture};
use futensor_simulated_driver::harness;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub fn scenes() -> Vec<Scene> {
    let all = |name, ranks, play| Scene { name, ranks, play, direct: all_end_well };
    let losing = |name, play| Scene { name, ranks: 3, play, direct: others_end_well };
    vec![
        all("gpus::every_collective_gives_what_its_name_says", 3, values::collectives),
        all("gpus::all_types_that_there_are", 2, values::types),
        all("gpus::calls_keep_their_order_whoever_is_late", 3, values::order),
        all("gpus::a_collective_runs_though_nobody_holds_its_result", 2, values::dropped),
        all("gpus::gradients_go_back_through_ranks", 2, values::gradients),
        all("gpus::splits_of_splits_work_apart", 4, values::splits),
        all("gpus::views_constants_and_nothing_at_all_can_be_sent", 2, values::layouts),
        all("gpus::calls_that_differ_are_an_error_on_every_rank", 2, values::differ),
        all(
            "gpus::an_operand_that_fails_fails_on_every_rank_and_shrink_goes_on",
            3,
            values::operand,
        ),
        all("gpus::times_and_sizes_without_end_have_an_end", 2, values::without_end),
        all("gpus::values_of_the_host_go_there_and_back", 2, host),
        all(
            "gpus::a_call_that_one_never_makes_ends_at_the_deadline_and_names_it",
            2,
            losses::absent,
        ),
        losing("gpus::a_rank_killed_before_its_call_is_named_and_the_rest_goes_on", losses::before),
        losing("gpus::a_rank_killed_in_mid_course_is_named_and_the_rest_goes_on", losses::middle),
        losing("gpus::rank_0_is_a_rank_like_any_other", losses::first),
        losing("gpus::a_rank_killed_while_others_shrink_is_left_out_too", losses::shrinking),
        Scene {
            name: "gpus::a_stopped_rank_is_lost_once_it_was_silent_for_too_long",
            ranks: 3,
            play: losses::stopped,
            direct: |_, scene| {
                let folder = Folder::new(scene);
                losses::with_one_stopped(scene, &folder, start(scene, &folder, ""));
            },
        },
        all("gpus::an_executor_is_not_blocked_while_much_is_reduced", 2, values::heartbeat),
        all("gpus::a_sum_takes_the_place_of_an_operand_that_nobody_else_has", 2, in_place),
        all("gpus::views_are_put_in_order_on_the_device", 2, views),
        all("gpus::what_is_under_way_at_the_end_keeps_its_memory", 2, ends),
        all("gpus::calls_in_another_order_are_an_error_where_the_library_says_so", 2, crossed),
        Scene {
            name: "gpus::calls_in_another_order_end_at_the_deadline_where_it_does_not",
            ranks: 2,
            play: crossed,
            direct: |_, scene| with_fault(scene, "mute"),
        },
        Scene {
            name: "gpus::a_group_goes_by_nccl_beside_one_by_mpi",
            ranks: 2,
            play: beside,
            direct: others_end_well_by_mpi,
        },
        Scene {
            name: "gpus::a_communicator_that_never_opens_ends_at_the_deadline",
            ranks: 2,
            play: hangs,
            direct: |_, scene| with_fault(scene, "hang"),
        },
        Scene {
            name: "gpus::an_error_of_the_library_is_an_error_on_every_rank",
            ranks: 2,
            play: fails,
            direct: |_, scene| with_fault(scene, "error"),
        },
    ]
}

/// Where the simulated driver lies, built once.
///
/// # Errors
/// What it needs and there is not.
pub fn driver() -> Result<PathBuf, String> {
    static DRIVER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    DRIVER
        .get_or_init(|| {
            let compiles = Command::new("g++").arg("--version").stdout(Stdio::null()).status();
            if !compiles.is_ok_and(|status| status.success()) {
                return Err("no g++, which kernels of a simulated GPU are compiled by".into());
            }
            harness::install(&harness::build()?)
        })
        .clone()
}

/// Starts a scene's ranks.
fn start(scene: &Scene, folder: &Folder, fault: &str) -> Vec<Child> {
    let libraries = driver().expect("the simulated driver");
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let rank = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("--scene").arg(scene.name).arg(&folder.0);
        simulated(&mut command, &libraries);
        command.env("FUTENSOR_SCENE_ON_GPU", "1").env("FUTENSOR_SIM_NCCL", fault);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", scene.ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("FUTENSOR_SECRET", "words").env("RUST_BACKTRACE", "0");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process")
    };
    (0..scene.ranks).map(rank).collect()
}

/// Lets a command find the simulated driver, which says what is misused.
fn simulated(command: &mut Command, libraries: &Path) {
    harness::settings(command);
    command.env("LD_LIBRARY_PATH", libraries).env("FUTENSOR_SIM_VERBOSE", "1");
}

/// What all said, and whether all ended well.
fn end(ranks: Vec<Child>) -> (bool, String) {
    let outputs: Vec<_> =
        ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect();
    let texts =
        outputs.iter().enumerate().map(|(rank, output)| format!("rank {rank}:\n{}", told(output)));
    (outputs.iter().all(|output| output.status.success()), texts.collect())
}

fn with_fault(scene: &Scene, fault: &str) {
    let folder = Folder::new(scene);
    let (well, told) = end(start(scene, &folder, fault));
    assert!(well, "{told}");
    // The simulated machine says what was misused.
    assert!(!told.contains("simulated driver:"), "{told}");
    nothing_is_left(scene);
}

fn all_end_well(_: &Path, scene: &Scene) {
    with_fault(scene, "");
}

fn others_end_well(_: &Path, scene: &Scene) {
    let folder = Folder::new(scene);
    let (_, told) = end(start(scene, &folder, ""));
    others_ended_well(scene, &folder, &told);
}

fn others_end_well_by_mpi(launcher: &Path, scene: &Scene) {
    let folder = Folder::new(scene);
    let mut ranks = command(launcher, scene, &folder);
    simulated(&mut ranks, &driver().expect("the simulated driver"));
    let output = ranks.output().expect("mpirun runs");
    others_ended_well(scene, &folder, &told(&output));
}

fn host(stage: Stage) {
    let group = stage.join();
    let x = futensor::Device::cpu().arange(0.0, 6.0, 1.0).reshape([2, 3]);
    let sum = x.t().all_reduce(&group, Sum);
    assert_eq!(sum.device(), futensor::Device::cpu());
    assert_eq!(block_on(sum.to_vec::<f32>()).expect("a sum"), [0.0, 6.0, 2.0, 8.0, 4.0, 10.0]);
    settle();
}

fn hangs(stage: Stage) {
    let since = Instant::now();
    let error =
        block_on(Group::join(stage.options().deadline(Duration::from_secs(2)))).unwrap_err();
    assert!(error.is_peer_lost() || error.message().contains("did not complete within"), "{error}");
    let took = since.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

fn fails(stage: Stage) {
    let group = stage.join();
    let x = stage.device().ones([4]);
    let failed = (0..8).find_map(|_| block_on(&x.all_reduce(&group, Sum)).err()).expect("an error");
    assert!(failed.message().contains("NCCL says 6"), "{failed}");
    settle();
}

/// No second buffer where the device has let go of the first, and has nothing to read of it.
fn in_place(stage: Stage) {
    const N: usize = 1 << 20;
    let (group, device) = (stage.join(), stage.device());
    let ends = |x: &TensorFuture| block_on(x.narrow(0, N - 2, 2).to_vec::<f32>()).expect("a value");
    let mut once = 0;
    for reads in [false, true] {
        for _ in 0..5 {
            let x = device.full([1], 1.5).expand([N]) * 2.0;
            block_on(&x).expect("it is there");
            block_on(group.barrier()).expect("it is everywhere");
            // The first has to wait, and what made its operand is done with meanwhile.
            std::thread::sleep(Duration::from_millis(20 * group.rank() as u64));
            let (sum, more) = (x.all_reduce(&group, Sum), reads.then(|| &x * 3.0));
            drop(x);
            assert_eq!(ends(&sum), [6.0; 2]);
            once += usize::from(device.stats().bytes_peak < 2 * 4 * N);
            assert!(more.is_none_or(|more| ends(&more) == [9.0; 2]));
        }
    }
    assert!(once > 0 || group.rank() > 0, "a second buffer each time");
    settle();
}

fn views(stage: Stage) {
    const N: usize = 1 << 10;
    let (group, device) = (stage.join(), stage.device());
    let x = device.arange(0.0, (N * N) as f64, 1.0).reshape([N, N]) * 1.0;
    let sum = x.t().all_reduce(&group, Sum);
    block_on(&sum).expect("a sum");
    // It, in order, and the sum: none in host memory.
    assert!(device.stats().bytes_peak < 4 * 4 * N * N, "{}", device.stats().bytes_peak);
    let row = block_on(sum.narrow(0, 1, 1).narrow(1, 0, 3).to_vec::<f32>()).expect("a row");
    assert_eq!(row, [2.0, 2.0 * (N + 1) as f32, 2.0 * (2 * N + 1) as f32]);
    let part = x.narrow(1, 1, 2).narrow(0, 0, 2).all_gather(&group);
    let n = N as f32;
    let twice = [1.0, 2.0, n + 1.0, n + 2.0].repeat(2);
    assert_eq!(block_on(part.to_vec::<f32>()).expect("all parts"), twice);
    settle();
}

/// Nobody waits for the sum.
fn ends(stage: Stage) {
    let group = stage.join();
    let x = stage.device().ones([1 << 20]) * 1.0;
    block_on(&x).expect("it is there");
    std::mem::forget((x.all_reduce(&group, Sum), group));
    std::thread::sleep(Duration::from_millis(5));
}

/// Nobody compares the calls.
fn crossed(stage: Stage) {
    let deadline = Duration::from_secs(3);
    let options = stage.options().compares(false).deadline(deadline);
    let group = block_on(Group::join(options)).expect("a group");
    block_on(group.barrier()).expect("all are here");
    let x = stage.device().ones([4]);
    let calls: [&dyn Fn() -> TensorFuture; 2] =
        [&|| x.all_reduce(&group, Sum), &|| x.all_gather(&group)];
    let since = Instant::now();
    for value in [group.rank(), 1 - group.rank()].map(|i| calls[i]()) {
        let error = block_on(&value).expect_err("they do not meet").to_string();
        assert!(
            error.contains("NCCL says 5") || error.contains("did not complete within"),
            "{error}"
        );
    }
    let took = since.elapsed();
    assert!(took < deadline + losses::SOON, "{took:?}");
    let anew = block_on(group.shrink()).expect("both are there");
    assert_eq!(block_on(x.all_reduce(&anew, Sum).to_vec::<f32>()).expect("a sum"), [2.0; 4]);
    settle();
}

/// Two groups of the same processes, each by a library of its own.
fn beside(stage: Stage) {
    let (cpu, gpu) = (Device::cpu(), Device::cuda(0).expect("a simulated GPU"));
    let nccl = block_on(Group::join(stage.options().device(&gpu))).expect("a group");
    let mpi = stage.join();
    let (x, y) = (gpu.ones([1 << 16]) * 1.0, cpu.ones([1 << 16]) * 1.0);
    // Each group carries values of both devices.
    let groups = [&nccl, &mpi, &nccl, &mpi];
    let sums = groups.map(|group| [&x, &y].map(|value| value.all_reduce(group, Sum).sum_all()));
    for sum in sums.as_flattened() {
        assert_eq!(block_on(sum.item::<f32>()).expect("a sum"), (2 << 16) as f32);
    }
    settle();
    if mpi.rank() == 1 {
        stage.dies(1);
    }
    for (group, value) in [(&nccl, &x), (&mpi, &y)] {
        let error = block_on(&value.all_reduce(group, Sum)).expect_err("rank 1 is gone");
        assert_eq!(error.lost_rank(), Some(1), "{error}");
    }
    stage.note("well-0", "");
}
