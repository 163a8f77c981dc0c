//! A word to whoever runs a build without optimisation: kernels take up to a hundred times as long
//! there, and nothing else tells.
//!
//! Called by the first worker of a CPU device. Whether the build is such a one, `build.rs` says:
//! `debug_assertions` would also be on in a dev profile that is optimised.

use crate::sync::plain::{AtomicBool, Ordering::Relaxed};
use crate::sync::statics;
use std::io::Write;

const WORDS: &str = "\
futensor: this build is not optimised, and its kernels take up to a hundred times as long. To have
the crates that a program depends on optimised in debug builds, put into its Cargo.toml:

[profile.dev.package.\"*\"]
opt-level = 3

(FUTENSOR_QUIET=1 in the environment keeps this from being said.)
";

statics! { static SAID: AtomicBool = AtomicBool::new(false); }

/// Says it once in a process. A standard error that is closed is no fault of the device's.
pub(super) fn say() {
    let is_quiet = std::env::var_os("FUTENSOR_QUIET").is_some_and(|v| v == "1");
    if !is_quiet && !SAID.swap(true, Relaxed) {
        let _ = std::io::stderr().write_all(WORDS.as_bytes());
    }
}
