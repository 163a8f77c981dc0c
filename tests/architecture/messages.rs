//! Messages say numbers in words that fit: "1 value", and not "1 values".

use crate::source::{Source, files_below, is_word, root, shipped, sources};
use std::collections::BTreeSet;
use std::fs;

const NEVER_ONE: &[&str] = &[
    "a shape of {rank} dimensions is needed",
    "{} dimensions are needed, of an input",
    "{few} or {many} dimensions are needed",
    "has {rank} dimensions, more than",
    "tensor {name} has {} dimensions",
    "{} dimensions are more than",
    "{bytes} bytes, of {",
    "{n} elements are more than",
    "cannot be split into {parts} parts",
    "{} detached ops failed",
    "{} ... {} ({} ops)",
    "more than {most} bytes",
];

/// By `number_of`, which says "1 value". Its calls tell which words have a plural.
#[test]
fn numbers_in_messages_are_in_words_that_fit() {
    let companions = ["crates/futensor-generate", "crates/futensor-models"];
    let companions = companions.into_iter().flat_map(|folder| files_below(&root().join(folder)));
    let companions = companions.filter_map(|path| {
        let name = path.to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&path).expect("a source file");
        (name.contains("/src/") && !name.contains("tests")).then(|| Source::new(&name, &text))
    });
    let all: Vec<Source> = sources().into_iter().filter(|s| !s.is_test).chain(companions).collect();
    let many = |call: &'_ str| -> Option<String> {
        let parts: Vec<&str> = call.split('"').take(4).collect();
        (parts.len() == 4 && !parts[0].contains('{')).then(|| parts[3].to_string())
    };
    let plurals: BTreeSet<String> =
        all.iter().flat_map(|s| s.text.split("number_of(").skip(1)).filter_map(many).collect();
    assert!(plurals.contains("bytes") && plurals.len() > 20, "{plurals:?}");
    let is_plural = |text: &str| {
        plurals
            .iter()
            .filter_map(|plural| text.strip_prefix(&plural[..]))
            .any(|rest| !rest.starts_with(is_word))
    };
    let is_counted = |line: &str| {
        line.match_indices("} ").any(|(end, _)| {
            let Some(start) = line[..end].rfind('{') else { return false };
            let number = &line[start + 1..end];
            let is_constant =
                !number.is_empty() && number.chars().all(|c| c.is_ascii_uppercase() || c == '_');
            line[..start].contains('"') && !is_constant && is_plural(&line[end + 2..])
        })
    };
    let wrong: Vec<String> = all
        .iter()
        .flat_map(|source| shipped(source).into_iter().map(move |line| (source, line)))
        .filter(|(_, (_, line))| is_counted(line) && !NEVER_ONE.iter().any(|t| line.contains(t)))
        .map(|(source, (number, line))| format!("{}:{number}: {}", source.path, line.trim()))
        .collect();
    assert!(wrong.is_empty(), "through `number_of`:\n{}", wrong.join("\n"));
}
