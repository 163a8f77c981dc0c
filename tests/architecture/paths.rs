//! The paths that stand in a file's code: in `use` lines, whatever their form, and elsewhere.

use crate::source::{Source, is_word, shipped};

/// The paths of a `use`: of `a::{b, c::{d, e as f}}`, `a::b`, `a::c::d` and `a::c::e`.
pub fn paths_of_use(tree: &str) -> Vec<Vec<String>> {
    let Some((start, list)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        return vec![path.split("::").map(|name| name.trim().to_owned()).collect()];
    };
    let start: Vec<String> = start
        .split("::")
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty())
        .collect();
    let list = list.trim_end().strip_suffix('}').unwrap_or(list);
    let (mut found, mut level, mut from) = (Vec::new(), 0, 0);
    for (at, c) in list.char_indices().chain([(list.len(), ',')]) {
        match c {
            '{' => level += 1,
            '}' => level -= 1,
            ',' if level == 0 => {
                let part = &list[from..at];
                from = (at + 1).min(list.len());
                if !part.trim().is_empty() {
                    found.extend(
                        paths_of_use(part).into_iter().map(|path| [&start[..], &path].concat()),
                    );
                }
            }
            _ => {}
        }
    }
    found
}

/// The paths that stand in a line of code: at least two names, and no macro's `$crate`.
fn paths_of_line(line: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = line;
    let mut before = None;
    while let Some(c) = rest.chars().next() {
        if !is_word(c) || matches!(before, Some(':' | '$')) {
            // What follows `::` or `$` is no beginning: the whole word goes by.
            let skip: usize = match rest.find(|c| !is_word(c)) {
                Some(0) | None => c.len_utf8(),
                Some(end) => end,
            };
            before = rest[..skip].chars().next_back();
            rest = &rest[skip..];
            continue;
        }
        let mut path = Vec::new();
        loop {
            let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            path.push(rest[..end].to_owned());
            rest = &rest[end..];
            match rest.strip_prefix("::").filter(|after| after.starts_with(is_word)) {
                Some(after) => rest = after,
                None => break,
            }
        }
        before = None;
        if path.len() > 1 {
            found.push(path);
        }
    }
    found
}

/// A path in a file: the line, the modules inside the file around it, and its names.
pub type Named = (usize, Vec<String>, Vec<String>);

/// The paths in a file's code, in `use` lines and elsewhere.
pub fn named_paths(source: &Source) -> Vec<Named> {
    let mut found = Vec::new();
    // The modules that are open, with the line that closes each.
    let mut inside: Vec<(String, String)> = Vec::new();
    let mut lines = shipped(source).into_iter();
    while let Some((number, line)) = lines.next() {
        let item = line.trim_start();
        let indent = &line[..line.len() - item.len()];
        let names = |inside: &[(String, String)]| {
            inside.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>()
        };
        let bare = match item.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => {
                rest.split_once(") ").map_or(item, |(_, rest)| rest)
            }
            Some(rest) => rest.trim_start(),
            None => item,
        };
        if inside.last().is_some_and(|(_, end)| line.trim_end() == end) {
            inside.pop();
        } else if let Some(name) =
            bare.strip_prefix("mod ").and_then(|rest| rest.trim_end().strip_suffix(" {"))
        {
            inside.push((name.to_owned(), format!("{indent}}}")));
        } else if let Some(tree) = bare.strip_prefix("use ") {
            let mut tree = tree.to_owned();
            while !tree.contains(';') {
                let Some((_, more)) = lines.next() else { break };
                tree.push(' ');
                tree.push_str(more.trim());
            }
            let tree = tree.split(';').next().unwrap_or_default();
            found.extend(paths_of_use(tree).into_iter().map(|path| (number, names(&inside), path)));
        } else {
            found
                .extend(paths_of_line(line).into_iter().map(|path| (number, names(&inside), path)));
        }
    }
    found
}
