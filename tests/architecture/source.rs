//! The repository's files as these tests read them: which there are, which are compiled for tests
//! alone, and which of their lines are shipped code.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

pub struct Source {
    /// Relative to `src/`, with slashes.
    pub path: String,
    pub text: String,
    /// Compiled for tests alone: see [`test_files`].
    pub is_test: bool,
}

impl Source {
    pub fn new(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.into(), is_test: false }
    }

    /// The names that lead to its module from the crate's root.
    pub fn module(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.path.trim_end_matches(".rs").split('/').map(String::from).collect();
        if names.last().is_some_and(|name| name == "mod" || self.path == "lib.rs") {
            names.pop();
        }
        names
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The files below a folder whose names end so, in order. What cargo and git keep is none.
pub fn below(folder: &Path, endings: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            let name = path.file_name().unwrap_or_default();
            if name != "target" && !name.as_encoded_bytes().starts_with(b".") {
                found.extend(below(&path, endings));
            }
        } else if path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The Rust files below a folder, in order.
pub fn files_below(folder: &Path) -> Vec<PathBuf> {
    below(folder, &["rs"])
}

/// All files of the repository whose names end so, relative to its root, with slashes.
pub fn files_with(endings: &[&str]) -> Vec<String> {
    let root = root();
    let name = |path: PathBuf| {
        path.strip_prefix(&root).expect("below the root").to_string_lossy().replace('\\', "/")
    };
    below(&root, endings).into_iter().map(name).collect()
}

/// All Rust files of the repository.
pub fn files_of_rust() -> Vec<String> {
    files_with(&["rs"])
}

/// All files below `src/`.
pub fn sources() -> Vec<Source> {
    sources_of("src")
}

/// All files of a package's sources.
pub fn sources_of(folder: &str) -> Vec<Source> {
    let root = root().join(folder);
    let found = files_below(&root);
    let read = |path: PathBuf| {
        let name =
            path.strip_prefix(&root).expect("below src").to_string_lossy().replace('\\', "/");
        Source::new(&name, &fs::read_to_string(&path).expect("a source file"))
    };
    let mut all: Vec<Source> = found.into_iter().map(read).collect();
    let tests: BTreeSet<String> = all.iter().flat_map(test_files).collect();
    // With what stands in a folder of theirs.
    let beside = |path: &str| tests.iter().any(|of| path.starts_with(&of.replace(".rs", "/")));
    all.iter_mut().for_each(|s| s.is_test = tests.contains(&s.path) || beside(&s.path));
    all
}

/// The files of the modules that this one declares for tests.
fn test_files(source: &Source) -> Vec<String> {
    let folder =
        source.path.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (k, line) in lines.iter().enumerate() {
        if !(line.starts_with("#[cfg(") && line.contains("test")) {
            continue;
        }
        let attributes = lines[k..].iter().take_while(|l| l.starts_with("#[")).count();
        let placed = lines[k..k + attributes]
            .iter()
            .find_map(|l| l.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
        let item = lines.get(k + attributes).unwrap_or(&"");
        let Some(name) =
            item.strip_suffix(';').and_then(|l| l.rsplit_once("mod ")).map(|(_, name)| name)
        else {
            continue;
        };
        let inside = source.module().iter().map(|part| format!("{part}/")).collect::<String>();
        found.push(
            placed.map_or_else(|| format!("{inside}{name}.rs"), |file| format!("{folder}{file}")),
        );
    }
    found
}

/// The line without its comment. Good enough for Rust that rustfmt has seen.
fn code(line: &str) -> &str {
    match line.find("//") {
        Some(at) if !line[..at].contains('"') => &line[..at],
        _ => line,
    }
}

/// The lines of a file that are not in its test modules, with their numbers.
pub fn shipped(source: &Source) -> Vec<(usize, &str)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut out = Vec::new();
    let mut k = 0;
    while k < lines.len() {
        let line = lines[k];
        if line.starts_with("#[cfg(") && line.contains("test") {
            // The item that follows, to its closing brace (or its semicolon).
            k += 1;
            while k < lines.len() && lines[k].starts_with("#[") {
                k += 1;
            }
            if lines.get(k).is_some_and(|l| !l.ends_with(';')) {
                while k < lines.len() && lines[k] != "}" {
                    k += 1;
                }
            }
        } else {
            out.push((k + 1, code(line)));
        }
        k += 1;
    }
    out
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[test]
fn files_of_tests_are_those_that_are_declared_so() {
    let declared = |path: &str, text: &str| test_files(&Source::new(path, text));
    assert_eq!(declared("a/mod.rs", "#[cfg(test)]\nmod tests;\nmod own;"), ["a/tests.rs"]);
    assert_eq!(
        declared("a/b.rs", "#[cfg(all(test, not(loom)))]\n#[path = \"b_tests.rs\"]\npub mod t;"),
        ["a/b_tests.rs"]
    );
    assert_eq!(
        declared("b.rs", "#[cfg(test)]\nmod tests {\n}\n#[cfg(test)]\nmod more;"),
        ["b/more.rs"]
    );
    let all = sources();
    let known: BTreeSet<&String> = all.iter().map(|s| &s.path).collect();
    let lost: Vec<String> =
        all.iter().flat_map(test_files).filter(|path| !known.contains(path)).collect();
    assert!(lost.is_empty(), "declared, and not there: {lost:?}");
}
