//! The same by NCCL, on simulated GPUs: each rank has one, in a process of its own, and what they exchange goes
//! between the processes (`tests/simulated-driver/src/nccl.rs`). Nobody needs an `mpirun` for that.

use super::losses::others_ended_well;
use super::stage::{Folder, Scene, Stage, block_on, nothing_is_left, settle, told};
use super::{losses, values};
use futensor::ranks::Combine::Sum;
use futensor::ranks::Group;
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
        all("gpus::an_operand_that_fails_fails_on_every_rank_and_shrink_goes_on", 3, values::operand),
        all("gpus::values_of_the_host_go_there_and_back", 2, host),
        all("gpus::a_call_that_one_never_makes_ends_at_the_deadline_and_names_it", 2, losses::absent),
        losing("gpus::a_rank_killed_before_its_call_is_named_and_the_rest_goes_on", losses::before),
        losing("gpus::a_rank_killed_in_mid_course_is_named_and_the_rest_goes_on", losses::middle),
        losing("gpus::rank_0_is_a_rank_like_any_other", losses::first),
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
    let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
    let rank = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        harness::settings(&mut command);
        command.arg("--scene").arg(scene.name).arg(&folder.0);
        command.env("LD_LIBRARY_PATH", &libraries).env("FUTENSOR_SCENE_ON_GPU", "1");
        command.env("FUTENSOR_SIM_NCCL", fault).env("FUTENSOR_SIM_VERBOSE", "1");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", scene.ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("FUTENSOR_SECRET", "words").env("RUST_BACKTRACE", "0");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a process")
    };
    (0..scene.ranks).map(rank).collect()
}

/// What all said, and whether all ended well.
fn end(ranks: Vec<Child>) -> (bool, String) {
    let outputs: Vec<_> = ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect();
    let texts = outputs.iter().enumerate().map(|(rank, output)| format!("rank {rank}:\n{}", told(output)));
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
    let error = block_on(Group::join(stage.options().deadline(Duration::from_secs(2)))).unwrap_err();
    assert!(error.is_peer_lost() || error.message().contains("not through within"), "{error}");
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
