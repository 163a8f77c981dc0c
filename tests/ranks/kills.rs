//! How soon a killed rank is known, whatever the ranks were doing.
//!
//! A few kills in the suite; `FUTENSOR_KILLS=200` has about so many, of which 99 in 100 are to be
//! an error on every other rank within 10 ms (on a machine that does nothing else).

use super::losses::{SOON, joining};
use super::stage::{Folder, Scene, Stage, block_on, command, nothing_is_left, settle, told};
use futensor::Device;
use futensor::ranks::Combine::Sum;
use std::path::Path;
use std::time::Duration;

const PHASES: [&str; 4] = ["start", "middle", "end", "shrink"];
/// The note that says which of them comes first.
const FIRST: &str = "first";

pub fn scenes() -> Vec<Scene> {
    vec![
        Scene {
            name: "kills::are_known_soon_in_every_phase",
            ranks: 4,
            play,
            direct: in_every_phase,
        },
        Scene {
            name: "kills::are_known_soon_while_all_join",
            ranks: 3,
            play: joining,
            direct: while_all_join,
        },
    ]
}

/// How many kills there are to be, where anybody says so.
pub fn wanted() -> Option<usize> {
    std::env::var("FUTENSOR_KILLS")
        .ok()
        .map(|text| text.parse().expect("FUTENSOR_KILLS is a number"))
}

/// One rank after the other dies, each in another phase, until one is left. Runs take turns with
/// which phase comes first.
fn play(stage: Stage) {
    let mut group = stage.join();
    let x = Device::cpu().ones([1 << 20]) * 1.0;
    let first: usize = stage.read(FIRST).expect("which comes first").parse().expect("a number");
    for phase in PHASES.into_iter().cycle().skip(first).take(group.size() - 1) {
        let lost = group.size() - 1;
        let dies = group.rank() == lost;
        block_on(&x.all_reduce(&group, Sum)).expect("a sum");
        settle();
        let calls = if phase == "middle" { 20 } else { 1 };
        // In the end they have come through a call, and in a shrink to that alone.
        let sums: Vec<_> = match (phase, dies) {
            ("start", true) | ("shrink", _) => Vec::new(),
            _ => (0..calls).map(|_| x.all_reduce(&group, Sum)).collect(),
        };
        if phase == "end" {
            let _ = block_on(&sums[0]);
        }
        let waits = (!dies).then(|| group.barrier());
        let shrinks = (phase == "shrink").then(|| group.shrink());
        if dies {
            sums.get(2).into_iter().for_each(|sum| drop(block_on(sum).expect("a sum")));
            stage.dies(lost);
        }
        let error = block_on(waits.expect("it lives")).unwrap_err();
        let took = stage.since_death_of(lost);
        assert_eq!(error.lost_rank(), Some(lost), "{error}");
        stage.note(&format!("took-{phase}-{}", group.rank()), took.as_micros());
        group = block_on(shrinks.unwrap_or_else(|| group.shrink())).expect("those who are left");
        // Whoever died while it asked may have been in it still.
        if group.size() > lost {
            group = block_on(group.shrink()).expect("those who are left");
        }
        assert_eq!(group.size(), lost);
    }
    stage.note("well-0", "");
}

fn in_every_phase(launcher: &Path, scene: &Scene) {
    let kills = scene.ranks - 1;
    kill(launcher, scene, kills, wanted().map_or(2, |n| (n * 4 / 5).div_ceil(kills)));
}

fn while_all_join(launcher: &Path, scene: &Scene) {
    kill(launcher, scene, 1, wanted().map_or(1, |n| n.div_ceil(5)));
}

/// So many runs, in each of which so many die.
fn kill(launcher: &Path, scene: &Scene, kills: usize, runs: usize) {
    let mut took = Vec::new();
    for run in 0..runs {
        let folder = Folder::new(scene);
        std::fs::write(folder.0.join(FIRST), (run % PHASES.len()).to_string()).expect("a note");
        let output = command(launcher, scene, &folder).output().expect("mpirun runs");
        let names =
            std::fs::read_dir(&folder.0).expect("notes").flatten().map(|entry| entry.file_name());
        let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
        let known = names.iter().filter(|name| name.starts_with("took-")).map(|name| {
            let text = folder.read(name).expect("a note");
            (Duration::from_micros(text.parse().expect("microseconds")), name.clone())
        });
        took.extend(known);
        let with = |part: &str| names.iter().filter(|name| name.starts_with(part)).count();
        assert!(with("died-") == kills && with("well-") > 0, "{names:?}\n{}", told(&output));
        nothing_is_left(scene);
    }
    let most = if wanted().is_some() { Duration::from_millis(10) } else { SOON };
    for phase in ["join", "start", "middle", "end", "shrink", ""] {
        let is_of = |name: &str| name.starts_with(&format!("took-{phase}"));
        let mut known: Vec<Duration> =
            took.iter().filter(|(_, name)| is_of(name)).map(|k| k.0).collect();
        if known.is_empty() {
            continue;
        }
        known.sort();
        let at = |share: usize| known[(known.len() * share / 100).min(known.len() - 1)];
        let (phase, n) = (if phase.is_empty() { "all" } else { phase }, known.len());
        println!(
            "{phase}: {n} losses, {:?} median, {:?} p99 (wanted {most:?}), {:?} most",
            at(50),
            at(99),
            at(100)
        );
    }
    took.sort();
    assert!(took[(took.len() * 99 / 100).min(took.len() - 1)].0 <= most, "{took:?}");
}
