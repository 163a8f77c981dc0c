//! `src/ARCHITECTURE.md`: a newcomer's page names files that are there, and few words of its own.

use crate::source::root;
use std::fs;

/// Words that a stranger has to learn.
const WORDS_MAX: usize = 25;

fn page() -> String {
    fs::read_to_string(root().join("src/ARCHITECTURE.md")).expect("the page")
}

/// The words of the glossary: the first cells of its table, between commas.
fn words(page: &str) -> Vec<String> {
    let (_, table) = page.split_once("| word |").expect("the glossary");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with("| "));
    rows.filter_map(|row| row.split(" | ").next())
        .flat_map(|cell| cell.trim_start_matches("| ").split(", "))
        .map(str::to_owned)
        .collect()
}

/// The paths in a page: quoted, in lower case, with a slash; `graph/claim::Claim` names
/// `graph/claim`.
fn paths(page: &str) -> Vec<&str> {
    let quoted = page.split('`').skip(1).step_by(2);
    let path = quoted.map(|text| text.split("::").next().unwrap_or(text));
    let is_path = |text: &&str| {
        text.contains('/') && text.chars().all(|c| c.is_ascii_lowercase() || "_/.".contains(c))
    };
    path.filter(is_path).collect()
}

#[test]
fn the_glossary_has_few_words() {
    let words = words(&page());
    assert!(words.len() >= 15, "the test does not see the glossary: {words:?}");
    assert!(words.len() <= WORDS_MAX, "{} words: {words:?}", words.len());
}

#[test]
fn every_file_that_the_page_names_is_there() {
    let page = page();
    let paths = paths(&page);
    assert!(paths.len() > 60, "the test does not see the paths: {paths:?}");
    let is_there = |path: &str| {
        ["src", "", "tests"].iter().any(|folder| {
            let at = root().join(folder).join(path.trim_end_matches('/'));
            at.exists() || at.with_extension("rs").exists()
        })
    };
    let gone: Vec<_> = paths.iter().filter(|path| !is_there(path)).collect();
    assert!(gone.is_empty(), "named, and not there: {gone:?}");
}
