//! How a case is measured: every engine's job is warmed up, then they take turns, and each is known
//! by its median.
//!
//! Turns make what the machine does meanwhile everybody's share: a ratio of two rows says more than
//! either alone.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// What a job gives back: how long it took, and some elements of its last result, which the clock
/// has not seen.
pub struct Sample {
    pub time: Duration,
    pub shows: Vec<f32>,
}

/// One engine's way to do a case, as often as it is told.
pub struct Job {
    pub engine: String,
    pub run: Box<dyn FnMut(usize) -> Sample>,
}

impl Job {
    pub fn new(engine: impl Into<String>, run: impl FnMut(usize) -> Sample + 'static) -> Job {
        Job { engine: engine.into(), run: Box::new(run) }
    }
}

/// The first and the last elements: what a result is known by.
pub fn ends(all: &[f32]) -> Vec<f32> {
    let n = all.len().min(4);
    [&all[..n], &all[all.len() - n..]].concat()
}

/// Does it `n` times; a result is gone before the next is made. The last one is for the proof.
pub fn repeat<T>(n: usize, mut make: impl FnMut() -> T) -> (Duration, T) {
    let mut last = None;
    let from = Instant::now();
    for _ in 0..n {
        drop(last.take());
        last = Some(black_box(make()));
    }
    (from.elapsed(), last.expect("once at least"))
}

#[derive(Clone, Copy)]
pub struct Effort {
    /// Turns of each engine.
    pub turns: usize,
    /// A sample takes at least about so long.
    pub sample: Duration,
    /// No engine is given more than about this in one case, but for three turns.
    pub most: Duration,
}

/// One engine at one case: seconds an item.
#[derive(Clone, Debug)]
pub struct Row {
    pub case: String,
    pub engine: String,
    pub median: f64,
    pub fastest: f64,
    /// Median of the processor time of all threads, a sample's preparations and checks included.
    pub cpu: f64,
}

struct Runner {
    job: Job,
    /// How often a sample does it.
    n: usize,
    turns: usize,
    seconds: Vec<f64>,
    cpu: Vec<f64>,
}

/// Seconds of processor time that this process has used.
fn cpu() -> f64 {
    // SAFETY: a zeroed `rusage` is one, and it is ours to be written.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// How often it has to be done for a sample to be long enough; warms up on the way.
fn calibrate(job: Job, effort: Effort, proof: &mut dyn FnMut(&str, &[f32])) -> Runner {
    let mut job = job;
    let mut n = 1;
    let mut once = f64::MAX;
    for _ in 0..12 {
        let sample = (job.run)(n);
        proof(&job.engine, &sample.shows);
        once = once.min(sample.time.as_secs_f64() / n as f64);
        let wanted = (effort.sample.as_secs_f64() / once).ceil().clamp(1.0, 1e7) as usize;
        if n >= wanted {
            break;
        }
        // By steps: the first time pays for what later ones do not.
        n = wanted.min(n * 16);
    }
    let sample = once * n as f64;
    let turns = ((effort.most.as_secs_f64() / sample) as usize).clamp(3, effort.turns);
    Runner { job, n, turns, seconds: Vec::new(), cpu: Vec::new() }
}

/// Runs all jobs of a case; a time is divided by `items`. `proof` is shown what every sample came
/// to.
pub fn run(
    case: &str,
    items: f64,
    jobs: Vec<Job>,
    effort: Effort,
    mut proof: impl FnMut(&str, &[f32]),
) -> Vec<Row> {
    let mut runners: Vec<Runner> =
        jobs.into_iter().map(|job| calibrate(job, effort, &mut proof)).collect();
    for turn in 0..effort.turns {
        for runner in &mut runners {
            if turn < runner.turns {
                let before = cpu();
                let sample = (runner.job.run)(runner.n);
                let each = 1.0 / (runner.n as f64 * items);
                runner.cpu.push((cpu() - before) * each);
                runner.seconds.push(sample.time.as_secs_f64() * each);
                proof(&runner.job.engine, &sample.shows);
            }
        }
    }
    let row = |mut runner: Runner| Row {
        case: case.to_owned(),
        engine: runner.job.engine,
        median: median(&mut runner.seconds),
        fastest: runner.seconds[0],
        cpu: median(&mut runner.cpu),
    };
    runners.into_iter().map(row).collect()
}
