//! What do the same cases cost in futensor, in candle and in burn, and what could the machine do?
//!
//! ```text
//! cargo run --release -- [--only CASE,...] [--quick] [--threads N] [--nice N] [--peers FILE]... \
//!   [--json FILE] [--write FILE]
//! cargo run --release --no-default-features --features candle,burn-ndarray -- --json FILE
//! python3 peers.py --json FILE
//! ```
//!
//! Method: one process, one case after the other. In a case each engine is warmed up until a sample
//! is long enough, then the engines take turns, a sample each, and each is known by the median of
//! its samples. Everybody has the same number of threads. Results are looked at in every sample,
//! after the clock has stopped: all engines have to have come to the same numbers, and futensor's
//! counters have to say that every op ran. Copies, reads, multiply-adds and the `gemm` crate called
//! directly stand beside them as what the machine can do.
//!
//! Cargo gives a crate one set of features, so beside futensor the `gemm` of candle and burn has
//! AVX-512, which it has not by itself. The second line builds them as they come and writes what
//! they took to a file; so does the script for NumPy, PyTorch and JAX; `--peers` reads such files
//! into the tables. With `MALLOC_MMAP_MAX_=0` in the environment, which has glibc keep its pages, a
//! program measures the libraries alone and says so behind their names: futensor keeps its pages
//! itself. `--write` puts the tables between the marks of a file such as RESULTS.md. `run`
//! does all of it. `--nice` is how far futensor's compute threads stand back (8 is its default);
//! beside other work on the machine, `--nice 0` competes as the others do.

mod cases;
mod floor;
mod measure;
#[cfg(feature = "burn")]
mod on_burn;
#[cfg(feature = "candle")]
mod on_candle;
#[cfg(feature = "futensor")]
mod ours;
mod table;

use cases::{CASES, Case};
use measure::{Effort, Job, Row};
use std::process::Command;
use std::time::Duration;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

struct Arguments {
    only: Vec<String>,
    quick: bool,
    threads: usize,
    nice: i32,
    peers: Vec<String>,
    json: Option<String>,
    write: Option<String>,
}

fn parse() -> Outcome<Arguments> {
    let mut words = std::env::args().skip(1);
    let mut arguments = Arguments {
        only: Vec::new(),
        quick: false,
        threads: std::thread::available_parallelism()?.get(),
        nice: 8,
        peers: Vec::new(),
        json: None,
        write: None,
    };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--only" => arguments.only.extend(value()?.split(',').map(str::to_owned)),
            "--quick" => arguments.quick = true,
            "--threads" => arguments.threads = value()?.parse()?,
            "--nice" => arguments.nice = value()?.parse()?,
            "--peers" => arguments.peers.push(value()?),
            "--json" => arguments.json = Some(value()?),
            "--write" => arguments.write = Some(value()?),
            _ => return Err(format!("what is {word}? See the head of src/main.rs").into()),
        }
    }
    let names: Vec<String> = CASES.iter().map(|c| c.name()).collect();
    match arguments.only.iter().find(|o| !names.iter().any(|n| n.starts_with(*o))) {
        Some(wrong) => Err(format!("no case begins with {wrong}: {}", names.join(", ")).into()),
        None => Ok(arguments),
    }
}

/// All engines' jobs. The first use of memory and of threads is in them, so they are made case by
/// case.
struct Engines {
    #[cfg(feature = "futensor")]
    ours: ours::Ours,
    threads: usize,
}

impl Engines {
    fn jobs(&self, case: Case) -> Vec<Job> {
        let mut jobs = Vec::new();
        #[cfg(feature = "futensor")]
        if !keeps_pages() {
            jobs.extend(self.ours.jobs(case));
        }
        jobs.extend(floor::jobs(case, self.threads));
        #[cfg(feature = "candle")]
        jobs.extend(on_candle::jobs(case));
        #[cfg(feature = "burn")]
        jobs.extend(on_burn::jobs(case));
        jobs
    }
}

/// The allocator was told to keep what it has.
fn keeps_pages() -> bool {
    std::env::var("MALLOC_MMAP_MAX_").is_ok_and(|value| value == "0")
}

/// All who show something have to show the same; what is random has to be different each time, and
/// normal.
fn check(case: Case, known: &mut Option<(String, Vec<f32>)>, engine: &str, shows: &[f32]) {
    assert!(shows.iter().all(|v| v.is_finite()), "{}: {engine} came to {shows:?}", case.name());
    if shows.is_empty() {
        return;
    }
    let Some((first, values)) = known else {
        *known = Some((engine.to_owned(), shows.to_vec()));
        return;
    };
    if case.is_determined() {
        let same = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-3 * a.abs().max(1.0);
        let all = values.iter().zip(shows).all(same);
        assert!(all, "{}: {first} has {values:?}, {engine} has {shows:?}", case.name());
    } else {
        assert!(values != shows && shows.iter().all(|v| v.abs() < 7.0), "{engine}: {shows:?}");
        *values = shows.to_vec();
    }
}

fn output(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).env("LC_ALL", "C").output();
    output.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

/// The machine, the time, and how this was asked for.
fn about(arguments: &Arguments) -> Vec<String> {
    let cpu = output("lscpu", &[]);
    let field = |name: &str| {
        let line = cpu.lines().find(|l| l.trim_start().starts_with(name));
        line.and_then(|l| l.split_once(':')).map_or("", |(_, v)| v.trim()).to_owned()
    };
    let isa: Vec<&str> = ["avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "asimd"]
        .into_iter()
        .filter(|flag| cpu.split_whitespace().any(|word| word == *flag))
        .collect();
    let memory = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = memory.split_whitespace().nth(1).and_then(|v| v.parse::<f64>().ok()).unwrap_or(0.0);
    let huge =
        std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: Vec<&str> = load.split_whitespace().take(1).collect();
    let flag = |on: bool, word: &str| if on { format!(" {word}") } else { String::new() };
    let (only, quick) = (arguments.only.join(","), flag(arguments.quick, "--quick"));
    let only = flag(!only.is_empty(), &format!("--only {only}"));
    vec![
        format!(
            "Machine: {} (family {}, model {}), {} cores; {}; L2 {}, L3 {}; {:.0} GiB of memory; \
                {}; huge pages: {}",
            field("Model name"),
            field("CPU family"),
            field("Model:"),
            field("CPU(s)"),
            isa.join(" "),
            field("L2"),
            field("L3"),
            kib / (1 << 20) as f64,
            std::env::consts::OS,
            huge.trim(),
        ),
        format!(
            "{}; load before the start {}; a line from core to core and back {} ns; {} threads \
                each, futensor's at nice {}; \
             `benches/peers/run{only}{quick}`",
            output("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            load.join(" "),
            floor::round_trip().as_nanos(),
            arguments.threads,
            arguments.nice,
        ),
    ]
}

fn main() -> Outcome<()> {
    let arguments = parse()?;
    for name in ["RAYON_NUM_THREADS", "MATMUL_NUM_THREADS"] {
        // SAFETY: no other thread is there yet.
        unsafe { std::env::set_var(name, arguments.threads.to_string()) };
    }
    let read = |file: &String| table::from_json(&std::fs::read_to_string(file)?);
    let others = arguments.peers.iter().map(read).collect::<Outcome<Vec<_>>>()?;
    let about = about(&arguments);
    about.iter().for_each(|line| eprintln!("{line}"));
    let ms = Duration::from_millis;
    let effort = match arguments.quick {
        true => Effort { turns: 5, sample: ms(5), most: ms(500) },
        false => Effort { turns: 15, sample: ms(30), most: ms(2500) },
    };
    let engines = Engines {
        #[cfg(feature = "futensor")]
        ours: ours::Ours::new(arguments.threads, arguments.nice),
        threads: arguments.threads,
    };
    let mut rows: Vec<Row> = Vec::new();
    for &case in CASES {
        let name = case.name();
        if !arguments.only.is_empty() && !arguments.only.iter().any(|o| name.starts_with(o)) {
            continue;
        }
        let mut known = None;
        let jobs = engines.jobs(case);
        let measured =
            measure::run(&name, case.items(), jobs, effort, |e, s| check(case, &mut known, e, s));
        for row in &measured {
            eprintln!("{name:<12} {:<28} {:>10}", row.engine, table::time(row.median));
        }
        rows.extend(measured.into_iter().map(|row| match keeps_pages() {
            true => Row { engine: format!("{}, pages kept", row.engine), ..row },
            false => row,
        }));
    }
    if let Some(file) = &arguments.json {
        std::fs::write(file, table::to_json(&rows, &about[1..]))?;
    }
    let mut text = about.iter().map(|line| format!("- {line}\n")).collect::<String>();
    for (others, about) in others {
        let mine = |r: &Row| rows.iter().any(|m| m.case == r.case);
        // What the machine can do was measured here as well, and here it counts.
        let here = |r: &Row| table::is_floor(&r.engine) && rows.iter().any(|m| m.case == r.case);
        let others: Vec<Row> = others.into_iter().filter(|r| mine(r) && !here(r)).collect();
        rows.extend(others);
        about.iter().for_each(|line| text.push_str(&format!("- {line}\n")));
    }
    if cfg!(feature = "futensor") {
        text.push_str(&format!("\n{}\n{}", table::bars(&rows), table::times(&rows)));
    } else {
        text.push_str(&format!("\n{}", table::times(&rows)));
    }
    println!("{text}");
    if let Some(file) = &arguments.write {
        let old = std::fs::read_to_string(file)?;
        let new = table::replaced(&old, text.trim_end()).ok_or(
            "the file has no marks for the \
            tables",
        )?;
        std::fs::write(file, new)?;
    }
    Ok(())
}
