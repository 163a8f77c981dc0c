//! The committed list of promises: one that goes missing is a failure, on every kind of device.
//!
//! Both suites of laws note what they are given and compare it with `promises.txt`, a line a
//! promise with the number of kinds of devices that it is for. `FUTENSOR_LIST=write` writes the
//! file anew.

use crate::support::Kind;
use crate::trials::Case;
use std::collections::BTreeSet;

/// What a suite was given.
#[derive(Default)]
pub struct List(BTreeSet<String>);

impl List {
    pub fn note(&mut self, law: u32, kinds: &[Kind], name: &str) {
        let new = self.0.insert(format!("law {law}: {name}, {} kinds", kinds.len()));
        assert!(new, "{name} is listed twice");
    }

    /// The trial that compares.
    pub fn trial(self) -> Case {
        Case::that("laws::no_promise_is_missing", move || self.compare().map(|()| None))
    }

    fn compare(&self) -> Result<(), String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/laws/promises.txt");
        if std::env::var("FUTENSOR_LIST").is_ok_and(|what| what == "write") {
            let lines: String = self.0.iter().map(|line| format!("{line}\n")).collect();
            return std::fs::write(path, lines).map_err(|error| format!("{path}: {error}"));
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let then: BTreeSet<String> = text.lines().map(str::to_owned).collect();
        let missing: Vec<_> = then.difference(&self.0).collect();
        let new: Vec<_> = self.0.difference(&then).collect();
        match missing.is_empty() && new.is_empty() {
            true => Ok(()),
            false => Err(format!("missing: {missing:#?}\nnot in promises.txt: {new:#?}")),
        }
    }
}
