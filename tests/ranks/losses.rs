//! Ranks that are killed, stopped, or leave.

use super::stage::{
    Folder, SILENCE, Scene, Stage, block_on, command, nothing_is_left, now, settle, signal, told,
};
use super::support::until;
use futensor::ranks::Combine::Sum;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

pub fn scenes() -> Vec<Scene> {
    let losing = |name, play| Scene { name, ranks: 3, play, direct: others_end_well };
    vec![
        losing("losses::a_rank_killed_before_its_call_is_named_and_the_rest_goes_on", before),
        losing("losses::a_rank_killed_in_mid_course_is_named_and_the_rest_goes_on", middle),
        losing("losses::a_rank_killed_while_others_shrink_is_left_out_too", shrinking),
        losing("losses::rank_0_is_a_rank_like_any_other", first),
        losing("losses::a_rank_killed_while_all_join_ends_the_join", joining),
        losing("losses::a_loss_concerns_the_groups_that_share_it_alone", apart),
        Scene {
            name: "losses::a_rank_killed_while_a_group_is_opened_holds_up_nothing_else",
            ranks: 4,
            play: opening,
            direct: others_end_well,
        },
        Scene {
            name: "losses::the_last_one_ends_at_once_also_if_it_has_left_before",
            ranks: 2,
            play: last,
            direct: |launcher, scene| {
                let folder = Folder::new(scene);
                let output = command(launcher, scene, &folder).output().expect("mpirun runs");
                let text =
                    folder.read("ends").unwrap_or_else(|| panic!("it ends:\n{}", told(&output)));
                let took =
                    now().saturating_sub(Duration::from_nanos(text.parse().expect("a time")));
                // What hangs inside MPI's own end is waited for longer.
                assert!(took < Duration::from_secs(8), "it took {took:?}");
                nothing_is_left(scene);
            },
        },
        Scene::of("losses::shared_memory_has_no_name_that_could_stay", 3, segments),
        Scene {
            name: "losses::a_stopped_rank_is_lost_once_it_was_silent_for_too_long",
            ranks: 3,
            play: stopped,
            direct: |launcher, scene| {
                let folder = Folder::new(scene);
                let mut ranks = command(launcher, scene, &folder);
                let ranks = ranks.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
                with_one_stopped(scene, &folder, vec![ranks.expect("mpirun runs")]);
            },
        },
        Scene::of("losses::a_rank_that_leaves_first_is_no_loss_to_what_it_took_part_in", 2, leaves),
        Scene::of(
            "losses::a_call_that_one_never_makes_ends_at_the_deadline_and_names_it",
            2,
            absent,
        ),
    ]
}

/// Those that were not to die end well, and leave nothing.
fn others_end_well(launcher: &Path, scene: &Scene) {
    let folder = Folder::new(scene);
    let output = command(launcher, scene, &folder).output().expect("mpirun runs");
    others_ended_well(scene, &folder, &told(&output));
}

pub fn others_ended_well(scene: &Scene, folder: &Folder, told: &str) {
    let ended = (0..scene.ranks).filter(|r| folder.read(&format!("well-{r}")).is_some()).count();
    let died = (0..scene.ranks).filter(|r| folder.read(&format!("died-{r}")).is_some()).count();
    assert_eq!(ended + died, scene.ranks, "{died} died:\n{told}");
    assert!(died > 0);
    nothing_is_left(scene);
}

/// All but rank 2 end well, which is stopped until they have.
pub fn with_one_stopped(scene: &Scene, folder: &Folder, ranks: Vec<Child>) {
    let since = Instant::now();
    let well = || (0..scene.ranks).filter(|r| folder.read(&format!("well-{r}")).is_some()).count();
    while well() < scene.ranks - 1 && since.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let stopped = folder.read("stopped-2").expect("it has stopped").parse().expect("a process");
    signal(stopped, libc::SIGKILL);
    let outputs = ranks.into_iter().map(|rank| told(&rank.wait_with_output().expect("it ends")));
    let said: String = outputs.collect();
    assert_eq!(well(), scene.ranks - 1, "{said}");
    assert!(!said.contains("simulated driver:"), "{said}");
    nothing_is_left(scene);
}

/// How long a loss may take to be told, on two cores with three ranks and whatever else runs: less
/// than a silence by far. `kills` measures it, as does `benches/ranks`.
pub const SOON: Duration = Duration::from_millis(500);

fn survives(stage: &Stage, group: &futensor::ranks::Group, lost: usize) {
    let rest = block_on(group.shrink()).expect("those who are left");
    assert_eq!(rest.size(), group.size() - 1);
    assert_eq!(rest.rank(), group.rank() - (group.rank() > lost) as usize);
    let sum = stage.device().ones([1000]).all_reduce(&rest, Sum).sum_all();
    assert_eq!(block_on(sum.item::<f32>()).unwrap(), 1000.0 * rest.size() as f32);
    block_on(rest.barrier()).expect("all who are left");
    stage.note(&format!("well-{}", group.rank()), "");
}

fn fails(stage: &Stage, waits: futensor::TensorFuture, lost: usize) {
    let error = block_on(&waits).unwrap_err();
    let took = stage.since_death_of(lost);
    assert!(error.is_peer_lost() && error.lost_rank() == Some(lost), "{error}");
    assert!(took < SOON, "it took {took:?}");
}

pub fn before(stage: Stage) {
    let group = stage.join();
    if group.rank() == 2 {
        stage.dies(2);
    }
    let x = stage.device().ones([1 << 20]);
    fails(&stage, x.all_reduce(&group, Sum), 2);
    // What is asked of the group later fails at once, and with the same rank.
    assert_eq!(block_on(&x.all_gather(&group)).unwrap_err().lost_rank(), Some(2));
    survives(&stage, &group, 2);
}

pub fn middle(stage: Stage) {
    let group = stage.join();
    let x = stage.device().ones([8 << 20]) * 1.0;
    block_on(&x.all_reduce(&group, Sum)).expect("a sum");
    // The one that dies makes half of the calls, so that however late it does, the last one fails.
    let calls = if group.rank() == 2 { 10 } else { 20 };
    let sums: Vec<_> = (0..calls).map(|_| x.all_reduce(&group, Sum)).collect();
    if group.rank() == 2 {
        block_on(&sums[2]).expect("a sum");
        stage.dies(2);
    }
    fails(&stage, sums[19].clone(), 2);
    survives(&stage, &group, 2);
}

pub fn first(stage: Stage) {
    let group = stage.join();
    if group.rank() == 0 {
        stage.dies(0);
    }
    fails(&stage, stage.device().ones([4]).all_reduce(&group, Sum), 0);
    survives(&stage, &group, 0);
}

pub fn shrinking(stage: Stage) {
    let group = stage.join();
    if group.rank() == 2 {
        stage.dies(2);
    }
    fails(&stage, stage.device().ones([4]).all_reduce(&group, Sum), 2);
    let shrinks = group.shrink();
    if group.rank() == 1 {
        stage.dies(1);
    }
    let rest = block_on(shrinks).expect("this one alone");
    // Either it was lost before the new group came to be, or to the new group.
    let rest =
        if rest.size() == 2 { block_on(rest.shrink()).expect("this one alone") } else { rest };
    assert_eq!((rest.size(), rest.rank()), (1, 0));
    stage.note("well-0", "");
}

pub fn joining(stage: Stage) {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").expect("mpirun says so");
    let joins = futensor::ranks::Group::join(stage.options());
    // On a busy machine a process may begin long after another.
    stage.note(&format!("joins-{rank}"), "");
    until(|| (0..3).all(|rank| stage.read(&format!("joins-{rank}")).is_some()));
    if rank == "1" {
        std::thread::sleep(Duration::from_millis(200));
        stage.dies(1);
    }
    match block_on(joins) {
        Err(error) => assert_eq!(error.lost_rank(), Some(1), "{error}"),
        Ok(_) => panic!("joined without rank 1"),
    }
    let took = stage.since_death_of(1);
    assert!(took < SOON, "it took {took:?}");
    stage.note(&format!("took-join-{rank}"), took.as_micros());
    stage.note(&format!("well-{rank}"), "");
}

fn opening(stage: Stage) {
    let group = stage.join();
    let halves = block_on(group.split((group.rank() / 2) as u64)).expect("a half");
    let splits = group.split(0);
    if group.rank() == 3 {
        // All have agreed, and the others' MPI waits for this rank's.
        settle();
        // The others are told at once that this rank gave the split up.
        stage.is_about_to_die(3);
        drop(splits);
        stage.dies(3);
    }
    let error = block_on(splits).unwrap_err();
    let took = stage.since_death_of(3);
    assert!(error.lost_rank() == Some(3) && took < SOON, "{error}, {took:?}");
    let x = stage.device().ones([10]);
    if group.rank() < 2 {
        assert_eq!(block_on(x.all_reduce(&halves, Sum).sum_all().item::<f32>()).unwrap(), 20.0);
    }
    survives(&stage, &group, 3);
}

fn last(stage: Stage) {
    let group = stage.join();
    if group.rank() == 1 {
        stage.dies(1);
    }
    fails(&stage, stage.device().ones([4]).all_reduce(&group, Sum), 1);
    drop(group);
    // Nothing of the group is left in this process.
    let is_of_group = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name == "futensor-ranks\n")
    };
    until(|| !std::fs::read_dir("/proc/self/task").expect("threads").flatten().any(is_of_group));
    stage.note("ends", now().as_nanos());
}

fn segments(stage: Stage) {
    let group = stage.join();
    block_on(group.barrier()).expect("all are here");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("what is mapped");
    let shared: Vec<&str> = maps.lines().filter(|line| line.contains("/sm_segment.")).collect();
    assert!(
        shared.len() >= 3 && shared.iter().all(|line| line.ends_with("(deleted)")),
        "{shared:?}"
    );
}

fn apart(stage: Stage) {
    let group = stage.join();
    let pair = block_on(group.split((group.rank() == 2) as u64)).expect("a part");
    let x = stage.device().ones([100]);
    if group.rank() == 2 {
        block_on(group.barrier()).expect("all are here");
        settle();
        stage.dies(2);
    }
    block_on(group.barrier()).expect("all are here");
    fails(&stage, x.all_reduce(&group, Sum), 2);
    for _ in 0..20 {
        assert_eq!(block_on(x.all_reduce(&pair, Sum).sum_all().item::<f32>()).unwrap(), 200.0);
    }
    stage.note(&format!("well-{}", group.rank()), "");
}

pub fn stopped(stage: Stage) {
    let group = stage.join();
    block_on(group.barrier()).expect("all are here");
    settle();
    if group.rank() == 2 {
        stage.stops(2);
    }
    let since = Instant::now();
    let error = block_on(&stage.device().ones([4]).all_reduce(&group, Sum)).unwrap_err();
    let took = since.elapsed();
    assert_eq!(error.lost_rank(), Some(2), "{error}");
    // Its last beat may be as old as the time between two.
    assert!(took < SILENCE + SOON && took > SILENCE / 2, "it took {took:?}");
    survives(&stage, &group, 2);
}

fn leaves(stage: Stage) {
    let group = stage.join();
    let x = stage.device().ones([1 << 20]);
    let sums: Vec<_> = (0..5).map(|_| x.all_reduce(&group, Sum)).collect();
    if group.rank() == 1 {
        sums.iter().for_each(|sum| drop(block_on(sum).expect("a sum")));
        return;
    }
    std::thread::sleep(Duration::from_millis(300));
    sums.iter().for_each(|sum| drop(block_on(sum).expect("a sum")));
    let error = block_on(&x.all_reduce(&group, Sum)).unwrap_err();
    let is_named = ["it has left", "it has dropped the group"].map(|w| error.message().contains(w));
    assert!(error.lost_rank() == Some(1) && is_named.contains(&true), "{error}");
}

pub fn absent(stage: Stage) {
    let options = stage.options().deadline(Duration::from_secs(3)).compares(false);
    let group = block_on(futensor::ranks::Group::join(options)).expect("a group");
    block_on(group.barrier()).expect("all are here");
    let x = stage.device().ones([4]);
    if group.rank() == 0 {
        let since = Instant::now();
        let error = block_on(&x.all_reduce(&group, Sum)).unwrap_err();
        assert_eq!(error.lost_rank(), Some(1), "{error}");
        assert!(error.message().contains("has not called"), "{error}");
        let late = since.elapsed().saturating_sub(Duration::from_secs(3));
        assert!(late < SOON, "late by {late:?}");
    } else {
        std::thread::sleep(Duration::from_millis(3500));
        assert!(block_on(&x.all_reduce(&group, Sum)).is_err());
    }
    // Both are there: the group of all that are left is the same.
    assert_eq!(block_on(group.shrink()).expect("both").size(), 2);
}
