//! This program again, so many times, under `mpirun`: MPI's ranks are started by its own launcher.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// `mpirun`, of the virtual environment that is active or of `PATH`; or what `FUTENSOR_MPIRUN`
/// names.
fn launcher() -> Option<PathBuf> {
    let named = std::env::var_os("FUTENSOR_MPIRUN").map(PathBuf::from);
    let environment = std::env::var_os("VIRTUAL_ENV").map(|venv| PathBuf::from(venv).join("bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = environment.into_iter().chain(std::env::split_paths(&path));
    named.or_else(|| {
        folders.find_map(|folder| Some(folder.join("mpirun")).filter(|file| file.exists()))
    })
}

/// Runs so many ranks to their end; nothing where there is no `mpirun`.
pub fn ranks(n: usize) -> Option<ExitCode> {
    let mut command = Command::new(launcher()?);
    // Those that are left go on when one ends; and there may be more of them than cores.
    command.args("--runtime-options recoverable --oversubscribe -n".split(' ')).arg(n.to_string());
    command.arg(std::env::current_exe().ok()?);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--spawn" {
            args.next();
        } else {
            command.arg(arg);
        }
    }
    // Whoever is root in a container runs this as root as well.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    match command.status() {
        Ok(status) if status.success() => Some(ExitCode::SUCCESS),
        Ok(_) => Some(ExitCode::FAILURE),
        Err(error) => {
            eprintln!("ranks: {error}");
            Some(ExitCode::FAILURE)
        }
    }
}

/// Ends this process as a machine that fails does: at once.
pub fn kill_this() -> ! {
    let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    std::process::abort()
}
