//! The main job: `cargo run --release --example async_computation`.
//!
//! Nine parts of asynchronous computation, measured on the device that is found: a program that
//! queues, a device that works, and barriers that are explicit. `--device cpu|cuda:0` names the
//! device, `--quick` takes smaller counts, `--json FILE` writes the figures down, `--trace
//! FILE.html` draws where the time goes.
//!
//! How it measures: handles are held or detached, so that nothing may be skipped; ops are `x + i`,
//! so that no two are the same; where ops are counted, `started + fused` has to say that all have
//! run; and values are checked after the clock has stopped. A wrong value or count ends the program
//! with an error. Times are only shown.

mod barriers;
mod cancel;
mod graph;
mod heartbeat;
mod increments;
#[path = "../support/output.rs"]
mod output;
mod overlap;
mod queue;
mod randn_mm;
mod reads;
mod report;
mod setup;
mod timeline;

use report::Report;
use setup::{Arguments, Outcome, Setup, USAGE};
use std::process::ExitCode;

/// Each part is a future that adds to the report.
macro_rules! parts {
    ($setup:ident, $report:ident, $bar:ident, $($name:literal $module:ident;)*) => {$(
        $bar.set_message($name);
        $module::run(&$setup, &mut $report).await.map_err(|error| format!("{}: {error}", $name))?;
        $bar.inc(1);
    )*};
}

async fn job(arguments: Arguments) -> Outcome<()> {
    let setup = Setup::new(&arguments)?;
    let mut report = Report::new(&setup);
    let bar = indicatif::ProgressBar::new(9);
    bar.set_style(indicatif::ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}")?);
    parts!(setup, report, bar,
        "1 randn and matmul" randn_mm;
        "2 the dependency graph" graph;
        "3 barriers" barriers;
        "4 reads" reads;
        "5 increments" increments;
        "6 over-filling the queue" queue;
        "7 overlap" overlap;
        "8 cancellation" cancel;
        "9 heartbeat" heartbeat;
    );
    if let Some(file) = &arguments.trace {
        bar.set_message("a picture");
        timeline::run(&setup, &mut report, file).await?;
    }
    bar.finish_and_clear();
    print!("{report}");
    if let Some(file) = &arguments.json {
        report.write_json(file)?;
    }
    setup.device.shutdown().await?;
    Ok(())
}

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        // In one piece, and without a word where the reader has seen enough.
        let _ = std::io::Write::write_all(&mut std::io::stdout(), format!("{USAGE}\n").as_bytes());
        return ExitCode::SUCCESS;
    }
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let result = runtime.map_err(Into::into).and_then(|runtime| runtime.block_on(job(arguments)));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("async_computation: {error}");
            ExitCode::FAILURE
        }
    }
}
