//! No async code reads a file on the thread that it was polled on.

use crate::source::{files_of_rust, root};
use std::fs;

/// What blocks a thread until a disk has answered.
const BLOCKING: [&str; 6] =
    ["std::fs::", " fs::", "(fs::", "File::open(", "File::create(", "Tokenizer::from_file("];

/// The end of what begins with a bracket here.
fn closed(text: &str, from: usize, open: char, close: char) -> usize {
    let mut depth = 0;
    for (at, c) in text[from..].char_indices() {
        depth += (c == open) as usize;
        depth -= (c == close) as usize;
        if depth == 0 {
            return from + at;
        }
    }
    text.len()
}

/// What stands in async functions and blocks, without what they hand to threads that may block.
fn async_code(text: &str) -> String {
    let code: String = text
        .lines()
        .filter(|l| !l.trim_start().starts_with("//"))
        .map(|l| format!("{l}\n"))
        .collect();
    let mut found = String::new();
    for word in ["async fn ", "async move {", "async {", "async ||", "async |"] {
        for (at, _) in code.match_indices(word) {
            let Some(begin) = code[at..].find('{').map(|k| at + k) else { continue };
            found.push_str(&code[begin..closed(&code, begin, '{', '}')]);
        }
    }
    for elsewhere in ["spawn_blocking(", ".work("] {
        while let Some(at) = found.find(elsewhere) {
            let bracket = at + elsewhere.len() - 1;
            let end = closed(&found, bracket, '(', ')');
            found.replace_range(at..end, "");
        }
    }
    found
}

#[test]
fn no_async_code_of_examples_and_crates_reads_a_file_on_its_thread() {
    let mut seen = 0;
    let mut wrong = Vec::new();
    for file in files_of_rust() {
        let is_ours = ["examples/", "crates/", "src/"].iter().any(|f| file.starts_with(f));
        if !is_ours || file.contains("tests") {
            continue;
        }
        let code = async_code(&fs::read_to_string(root().join(&file)).expect("a source"));
        seen += !code.is_empty() as usize;
        let blocks = BLOCKING.iter().find(|call| code.contains(**call));
        wrong.extend(blocks.map(|call| format!("{file}: {}", call.trim())));
    }
    assert!(seen > 20, "the test does not see async code: {seen}");
    assert!(wrong.is_empty(), "files are read in async code: {wrong:#?}");
    let bad = "async fn f() { let a = std::fs::read(p); spawn_blocking(move || std::fs::read(p)) }";
    assert_eq!(async_code(bad).matches("std::fs").count(), 1);
}
