//! Calls each target with valid inputs that a seed changes. No call may panic, hang, or take memory
//! out of proportion to its input.
//!
//! A failure prints the seed and writes the input to `target/untrusted`. `FUTENSOR_SEED=7 cargo
//! test -p futensor-untrusted NAME` repeats it. `FUTENSOR_INPUTS=100` makes a hundred times as many
//! inputs.

mod memory;

use libtest_mimic::{Arguments, Failed, Trial};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use untrusted::changes::changed;
use untrusted::{TARGETS, Target};

/// A call that takes longer hangs. The machine may be busy, and test builds are slow.
const HANGS: Duration = Duration::from_secs(30);

/// A number of the environment.
fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn main() -> std::process::ExitCode {
    let mut arguments = Arguments::from_args();
    // The allocator counts the memory of all threads together.
    arguments.test_threads = Some(1);
    let trials = TARGETS.iter().map(|target| Trial::test(target.name, || tried(target)));
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

/// The outcome of an input.
struct Came {
    was_valid: bool,
    took: Duration,
    bytes: usize,
}

fn came(target: &Target, bytes: &[u8]) -> Came {
    let before = memory::begin();
    let since = Instant::now();
    let was_valid = (target.run)(bytes);
    Came { was_valid, took: since.elapsed(), bytes: memory::most().saturating_sub(before) }
}

fn tried(target: &'static Target) -> Result<(), Failed> {
    let seed = number("FUTENSOR_SEED", 16);
    let inputs = target.inputs as u64 * number("FUTENSOR_INPUTS", 1);
    println!("{}: seed {seed}", target.name);
    let corpus = (target.corpus)();
    // A thread of its own can hang without holding up the test, and has the stack of any thread.
    let (give, given) = channel::<Vec<u8>>();
    let (tell, told) = channel();
    let runs = std::thread::spawn(move || {
        given.iter().try_for_each(|bytes| tell.send(came(target, &bytes)))
    });
    let (mut valid, mut slowest, mut largest) = (0, Duration::ZERO, 0);
    let whole = corpus.len() as u64;
    for number in 0..whole + inputs {
        // The corpus comes first. Its first input creates what all inputs share.
        let bytes = match corpus.get(number as usize) {
            Some(bytes) => bytes.clone(),
            None => changed(&corpus, target.words, seed, number),
        };
        let failed = |what: String| {
            let path = write(target, seed, number, &bytes);
            format!("seed {seed}, input {number} {what}\n{}", path.display())
        };
        if give.send(bytes.clone()).is_err() {
            return Err(failed("panics".into()).into());
        }
        let came = match told.recv_timeout(HANGS) {
            Ok(came) => came,
            Err(RecvTimeoutError::Disconnected) => return Err(failed("panics".into()).into()),
            Err(RecvTimeoutError::Timeout) => {
                return Err(failed(format!("is not through after {HANGS:?}")).into());
            }
        };
        let (most, each) = target.memory;
        if number > 0 && came.bytes > most + each * bytes.len() {
            let took = format!("of {} bytes takes {} of memory", bytes.len(), came.bytes);
            return Err(failed(took).into());
        }
        if number >= whole {
            valid += came.was_valid as u64;
        }
        if number > 0 {
            (slowest, largest) = (slowest.max(came.took), largest.max(came.bytes));
        }
    }
    drop(give);
    assert!(runs.join().expect("no panic").is_ok());
    println!(
        "{inputs} inputs, of which {valid} were valid; {slowest:?} and {} KiB at most",
        largest >> 10
    );
    // Inputs that are all valid, or all invalid, test little.
    if valid * 100 < inputs || valid * 100 > inputs * 99 {
        return Err(format!("{valid} of {inputs} inputs are valid").into());
    }
    Ok(())
}

fn write(target: &Target, seed: u64, number: u64, bytes: &[u8]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/untrusted");
    let path = folder.join(format!("{}-{seed}-{number}", target.name));
    let written = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, bytes));
    written.expect("what failed is written");
    path
}
