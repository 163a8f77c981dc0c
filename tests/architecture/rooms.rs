//! Rooms: every file says what it is, a file is read in one sitting, and a folder seen at one
//! glance.

use crate::source::{files_of_rust, root};
use std::collections::BTreeMap;
use std::fs;

const LINES_MAX: usize = 600;
const FILES_MAX: usize = 20;

/// Folders that have more files, until they are sorted.
const LARGE: &[&str] = &[];

/// Files that are longer, until they are split.
const LONG: &[&str] = &["src/ranks/protocol/simulated.rs"];

#[test]
fn files_are_read_in_one_sitting() {
    let mut wrong = Vec::new();
    for path in files_of_rust() {
        let lines = fs::read_to_string(root().join(&path)).expect("a file").lines().count();
        if lines > LINES_MAX && !LONG.contains(&&path[..]) {
            wrong.push(format!("{path}: {lines} lines"));
        }
    }
    assert!(wrong.is_empty(), "longer than {LINES_MAX} lines:\n{}", wrong.join("\n"));
}

#[test]
fn every_file_says_what_it_is() {
    for path in files_of_rust() {
        let text = fs::read_to_string(root().join(&path)).expect("a file");
        assert!(text.starts_with("//!"), "{path} does not open with what it is");
    }
}

#[test]
fn no_folder_has_more_than_twenty_files_in_a_row() {
    let mut folders: BTreeMap<String, usize> = BTreeMap::new();
    for path in files_of_rust() {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        *folders.entry(folder.to_owned()).or_default() += 1;
    }
    assert!(folders.len() > 60, "the test does not see the folders: {}", folders.len());
    let large: Vec<_> = folders
        .iter()
        .filter(|(folder, files)| **files > FILES_MAX && !LARGE.contains(&&folder[..]))
        .collect();
    assert!(large.is_empty(), "more than {FILES_MAX} files: {large:?}");
}
