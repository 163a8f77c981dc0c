//! The common part of the servers' commands.

use futensor::Device;
use std::io::Write;
use std::process::ExitCode;

/// The device of this name, `cpu` or `cuda:N`; the first GPU where none is named, and the CPU where
/// there is none.
pub fn device(name: Option<&str>) -> Result<Device, String> {
    match name {
        None => Ok(Device::try_gpu(0)),
        Some(name) => name.parse().map_err(|error: futensor::Error| error.message().to_owned()),
    }
}

/// Resolves when the process is asked to end: an interrupt, or what a supervisor sends.
pub async fn asked_to_end() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    let _ = interrupt.await;
}

/// The page where it is asked for, else the run; its error is said.
pub async fn main<E: std::fmt::Display>(
    usage: &str,
    run: impl Future<Output = Result<(), E>>,
) -> ExitCode {
    if std::env::args().skip(1).any(|word| word == "--help" || word == "-h") {
        // In one piece, and without a word where the reader has seen enough.
        let _ = std::io::stdout().write_all(format!("{usage}\n").as_bytes());
        return ExitCode::SUCCESS;
    }
    match run.await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
