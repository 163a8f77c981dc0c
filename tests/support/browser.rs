//! A real browser without a window, where the machine has one: `FUTENSOR_BROWSER` names it, or it
//! is on the path.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// A browser that has been found, with a profile of its own, which goes with it.
pub struct Browser {
    program: PathBuf,
    profile: PathBuf,
}

impl Browser {
    /// None where there is no Chromium or Chrome.
    pub fn find() -> Option<Browser> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let named = std::env::var_os("FUTENSOR_BROWSER").map(PathBuf::from);
        let names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"];
        let folders: Vec<PathBuf> =
            std::env::var_os("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
        let found = || folders.iter().flat_map(|f| names.map(|n| f.join(n))).find(|p| p.is_file());
        let own = format!("futensor-page-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        Some(Browser { program: named.or_else(found)?, profile: std::env::temp_dir().join(own) })
    }

    /// What a page has become, as HTML, once it has loaded and its scripts had some seconds of its
    /// own time.
    pub fn page(&self, url: &str) -> String {
        let run = Command::new(&self.program)
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"])
            .arg("--virtual-time-budget=4000")
            .arg(format!("--user-data-dir={}", self.profile.display()))
            .arg("--dump-dom")
            .arg(url)
            .output()
            .unwrap();
        String::from_utf8_lossy(&run.stdout).into_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.profile);
    }
}
