//! How the suites that have a list of trials run them: each in a process that has nothing else to
//! do, with a time that it may take, and with a look at what it leaves behind.
//!
//! The program that cargo starts runs no trial. It starts itself again, once for each of its
//! threads, and names one trial after the other to that process, which runs it and says what came
//! of it. A trial that does not end has its process killed, one that ends its process is told of,
//! and in both cases what is left to run has a fresh process: each trial that was asked for has an
//! outcome of its own, whatever another does.
//!
//! After a trial every device of its process must have nothing in hand: see [`behind`].

#![allow(dead_code)] // Each suite uses its part.

use crate::support;
use futensor::in_hand;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::cell::RefCell;
use std::future::Future;
use std::io::{BufRead, BufReader, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// Says to a process that it is to run what is named to it.
pub const NAMED: &str = "FUTENSOR_TRIALS_NAMED";
/// Begins a line that is for the process that has named the trial.
const WORD: char = '\u{1}';
/// Stands for a new line in such a line.
const LINE: char = '\u{2}';

/// Longest time that a trial may take, or one of its rounds.
fn limit() -> Duration {
    let asked = std::env::var("FUTENSOR_TRIAL_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(60))
}

/// How long what a trial has let go of may take to be gone.
fn gone_within() -> Duration {
    (limit() / 2).min(Duration::from_secs(10))
}

/// What came of a trial that did not fail: nothing more, or why it was left out.
pub type Came = Result<Option<String>, String>;

/// A promise under its name.
pub struct Case {
    pub name: String,
    run: Box<dyn Fn() -> Came + Send + Sync>,
    ignored: bool,
}

impl Case {
    /// One that fails by a panic, and is ignored where that is with [`support::NotHere`].
    pub fn new(name: impl Into<String>, run: impl Fn() + Send + Sync + 'static) -> Case {
        Case::that(name, move || {
            run();
            Ok(None)
        })
    }

    /// One that may fail, or be left out, in words.
    pub fn that(name: impl Into<String>, run: impl Fn() -> Came + Send + Sync + 'static) -> Case {
        Case { name: name.into(), run: Box::new(run), ignored: false }
    }

    pub fn ignored(self, ignored: bool) -> Case {
        Case { ignored, ..self }
    }
}

/// `cases!["group::"; a b; async c d]`: functions without arguments as trials, and such that are to
/// be awaited.
#[allow(unused_macros)]
macro_rules! cases {
    ($group:expr; $($name:ident)* $(; async $($awaited:ident)*)?) => {
        vec![
            $($crate::trials::Case::new(concat!($group, stringify!($name)), $name),)*
            $($($crate::trials::Case::new(concat!($group, stringify!($awaited)), || {
                $crate::trials::on_workers(0, $awaited())
            }),)*)?
        ]
    };
}
#[allow(unused_imports)]
pub(crate) use cases;

/// Awaits on a runtime of tokio's with so many threads beside this one; with none, this one runs
/// its tasks.
pub fn on_workers(threads: usize, code: impl Future<Output = ()>) {
    let mut builder = match threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.worker_threads(threads.max(1)).enable_all().build().expect("a runtime").block_on(code);
}

/// Runs the trials that the arguments ask for; on one thread alone where that is `serial`.
pub fn run(cases: Vec<Case>, serial: bool) -> ExitCode {
    if std::env::var_os(NAMED).is_some() {
        run_named(&cases);
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    if serial {
        arguments.test_threads = Some(1);
    }
    let trial = |case: Case| {
        let name = case.name.clone();
        Trial::ignorable_test(case.name, move || attempt(&name)).with_ignored_flag(case.ignored)
    };
    libtest_mimic::run(&arguments, cases.into_iter().map(trial).collect()).exit_code()
}

/// A process that runs what is named to it, one trial at a time.
struct Worker {
    process: Child,
    names: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start() -> std::io::Result<Worker> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).env(NAMED, "1");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(names), Some(out)) = (process.stdin.take(), process.stdout.take()) else {
            unreachable!("both were asked for");
        };
        let (said, lines) = channel();
        std::thread::spawn(move || {
            // A kernel's words need not be text.
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                if said.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    return;
                }
            }
        });
        Ok(Worker { process, names, lines })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

thread_local! {
    /// This thread's, while there is one.
    static WORKER: RefCell<Option<Worker>> = const { RefCell::new(None) };
}

/// Has a trial run, and says what came of it.
fn attempt(name: &str) -> Result<Completion, Failed> {
    let left = WORKER.take();
    let mut worker = match left {
        Some(worker) => worker,
        None => Worker::start()
            .map_err(|error| format!("no process could be started for it: {error}"))?,
    };
    let mut said = String::new();
    if writeln!(worker.names, "{name}").is_err() {
        return Err(ended(worker, &said).into());
    }
    let limit = limit();
    let mut until = Instant::now() + limit;
    loop {
        let line = match worker.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
        {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                return Err(format!(
                    "not through after {limit:?}: something waits for ever\n{said}"
                )
                .into());
            }
            Err(RecvTimeoutError::Disconnected) => return Err(ended(worker, &said).into()),
        };
        let Some(word) = line.strip_prefix(WORD) else {
            said.push_str(&line);
            said.push('\n');
            continue;
        };
        let (what, text) = word.split_once(' ').unwrap_or((word, ""));
        let text = text.replace(LINE, "\n");
        match what {
            "round" => {
                until = Instant::now() + limit;
                continue;
            }
            "failed" => return Err(format!("{text}\n{said}").into()),
            "alone" => return Ok(Completion::Completed),
            _ => {}
        }
        WORKER.set(Some(worker));
        return Ok(if what == "ignored" {
            Completion::ignored_with(text)
        } else {
            Completion::Completed
        });
    }
}

fn ended(mut worker: Worker, said: &str) -> String {
    let how = match worker.process.wait() {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    format!("its process ended before it did ({how})\n{said}")
}

fn say(what: &str, text: &str) {
    // What a trial prints need not end with a line.
    println!("\n{WORD}{what} {}", text.replace('\n', &LINE.to_string()));
    let _ = std::io::stdout().flush();
}

/// A trial goes into another round, which may take as long as the first.
pub fn round() {
    if std::env::var_os(NAMED).is_some() {
        say("round", "");
    }
}

/// The words of a panic; `Ok` where it says that the device has no such thing.
pub fn words(panic: Box<dyn std::any::Any + Send>) -> Came {
    if let Some(support::NotHere(what)) = panic.downcast_ref() {
        return Ok(Some(what.to_string()));
    }
    let text = panic.downcast_ref::<String>().cloned();
    Err(text.or_else(|| panic.downcast_ref::<&str>().map(|t| t.to_string())).unwrap_or_default())
}

/// The life of a process that trials are named to. It ends with one that failed, or that keeps
/// something.
fn run_named(cases: &[Case]) {
    for name in std::io::stdin().lines().map_while(Result::ok) {
        let Some(case) = cases.iter().find(|case| case.name == name) else {
            return say("failed", "the process that runs the trials has no such trial");
        };
        let came = catch_unwind(AssertUnwindSafe(&case.run)).unwrap_or_else(words);
        let behind = behind();
        match (came, behind) {
            (Err(text), _) => return say("failed", &text),
            (Ok(_), Err(text)) => return say("failed", &format!("this stays behind:\n{text}")),
            (Ok(_), Ok(Leaves::What)) => return say("alone", ""),
            (Ok(None), Ok(Leaves::Nothing)) => say("passed", ""),
            (Ok(Some(why)), Ok(Leaves::Nothing)) => say("ignored", &why),
        }
    }
}

/// What a trial leaves behind.
enum Leaves {
    Nothing,
    /// What it has [told](support::keeps) of: the next one is to have another process.
    What,
}

/// Waits for every device and for the end of all that was let go of; what is there all the same, by
/// name. All handles are dropped by now.
fn behind() -> Result<Leaves, String> {
    let mut kept = support::kept();
    let lost = in_hand::devices().into_iter().filter(in_hand::InHand::is_lost);
    kept.extend(lost.map(|d| support::Kept { device: d.name().to_owned(), what: support::LOST }));
    let until = Instant::now() + gone_within();
    let stays = |device: Option<&str>, counts: &[(&str, usize)]| -> Option<String> {
        let may = |what: &str| {
            let of_it = kept.iter().filter(|kept| device.is_none_or(|name| kept.device == name));
            of_it.into_iter().any(|kept| kept.what.contains(&what))
        };
        let there = counts.iter().filter(|(what, count)| *count > 0 && !may(what));
        let words: Vec<String> = there.map(|(what, count)| format!("{count} {what}")).collect();
        (!words.is_empty())
            .then(|| format!("{}: {}", device.unwrap_or("all devices"), words.join(", ")))
    };
    let busy = || {
        in_hand::devices().into_iter().filter_map(|d| Some((stays(Some(d.name()), &d.counts)?, d)))
    };
    let mut waits: Vec<_> = busy().map(|(_, device)| Box::pin(device.device().waitall())).collect();
    let mut context = Context::from_waker(Waker::noop());
    loop {
        in_hand::drive();
        // What was detached may have failed: that is for the trial to say.
        waits.retain_mut(|wait| wait.as_mut().poll(&mut context).is_pending());
        let mut left: Vec<String> = busy().map(|(words, _)| words).collect();
        if waits.is_empty() {
            left.extend(stays(None, &in_hand::values_and_wakers()));
        } else {
            left.push(format!("{} waitalls do not end", waits.len()));
        }
        if left.is_empty() {
            return Ok(if kept.is_empty() { Leaves::Nothing } else { Leaves::What });
        }
        if Instant::now() > until {
            return Err(left.join("\n"));
        }
        std::thread::yield_now();
    }
}
