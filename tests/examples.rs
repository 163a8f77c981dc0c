//! The manners of every example: `--help` explains each flag, and files are looked at before
//! the run.

#[path = "../examples/support/output.rs"]
mod output;

use std::fs;
use std::path::{Path, PathBuf};

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

/// All of an example's Rust source.
fn source(path: &Path) -> String {
    if path.is_dir() {
        let entries = fs::read_dir(path).unwrap().map(|entry| source(&entry.unwrap().path()));
        return entries.collect();
    }
    match path.extension() {
        Some(extension) if extension == "rs" => fs::read_to_string(path).unwrap(),
        _ => String::new(),
    }
}

/// Words that are compared with an argument: `"--flag"` in a pattern or beside `==`.
fn flags(source: &str) -> Vec<&str> {
    let mut found: Vec<&str> = source.split('"').filter(|word| word.starts_with("--")).collect();
    found.retain(|word| {
        word[2..].chars().all(|c| c.is_ascii_lowercase() || c == '-') && word.len() > 2
    });
    found.sort();
    found.dedup();
    found
}

#[test]
fn help_explains_each_flag_of_each_example() {
    let mut seen = Vec::new();
    for entry in fs::read_dir(examples()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut text = source(&path);
        let shared = "support/command.rs";
        if text.contains(shared) {
            text += &fs::read_to_string(examples().join(shared)).unwrap();
        }
        let flags = flags(&text);
        if flags.is_empty() || name == "support" {
            continue;
        }
        assert!(flags.contains(&"--help"), "{name} takes flags and no --help");
        let usage = text.split_once("const USAGE: &str = \"").expect("a text for --help").1;
        let usage = usage.split_once("\";").unwrap().0.trim_start_matches("\\\n");
        assert!(usage.starts_with(&format!("usage: {name} ")), "{name}: {usage}");
        let (first, lines) =
            usage.split_once("\n\n").unwrap_or_else(|| panic!("{name}: no line a flag:\n{usage}"));
        for flag in &flags {
            let line =
                lines.lines().find(|line| line.trim_start().split([' ', ',']).next() == Some(flag));
            let line =
                line.unwrap_or_else(|| panic!("{name}: --help does not explain {flag}:\n{usage}"));
            let words = line.trim_start().split_once("  ").map_or("", |(_, words)| words.trim());
            assert!(words.split_whitespace().count() >= 2, "{name}: {line:?} explains nothing");
            assert!(
                *flag == "--help" || first.contains(flag),
                "{name}: {flag} is not in the first lines"
            );
        }
        // And nothing is explained that is not taken.
        for line in lines.lines().filter(|line| line.trim_start().starts_with("--")) {
            let flag = line.trim_start().split([' ', ',']).next().unwrap();
            assert!(flags.contains(&flag), "{name} does not take {flag}");
        }
        seen.push(name);
    }
    seen.sort();
    assert_eq!(
        seen,
        [
            "async_computation",
            "chat",
            "devices",
            "embed",
            "load_weights",
            "ranks",
            "server",
            "train_digits"
        ]
    );
}

#[test]
fn a_file_that_cannot_be_written_is_named_before_the_run_and_nothing_is_left_behind() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("examples");
    fs::create_dir_all(&folder).unwrap();
    let missing = folder.join("not there").join("figures.json");
    for error in [output::check(&missing).unwrap_err(), output::write(&missing, "{}").unwrap_err()]
    {
        assert!(error.starts_with(&format!("{}: ", missing.display())), "{error}");
    }
    assert!(output::check(&folder).unwrap_err().contains("examples: "), "a folder is no file");
    let file = folder.join("figures.json");
    let _ = fs::remove_file(&file);
    output::check(&file).unwrap();
    assert!(!file.exists());
    fs::write(&file, "before").unwrap();
    output::check(&file).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    output::write(&file, "after").unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "after");
}
