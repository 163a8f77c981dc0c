//! Runs a command under the simulated driver:
//!
//!     cargo run -p futensor-simulated-driver --example under -- \
//!       cargo test --lib cuda::device -- --ignored

use futensor_simulated_driver::harness;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: under COMMAND [ARGUMENTS]");
        return ExitCode::FAILURE;
    };
    let mut path = match harness::build().and_then(|library| harness::install(&library)) {
        Ok(folder) => folder.into_os_string(),
        Err(why) => {
            eprintln!("the simulated driver cannot be used: {why}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(before) = std::env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(before);
    }
    let mut command = Command::new(&program);
    harness::settings(&mut command);
    let error = command.args(words).env("LD_LIBRARY_PATH", path).exec();
    eprintln!("{}: {error}", program.display());
    ExitCode::FAILURE
}
