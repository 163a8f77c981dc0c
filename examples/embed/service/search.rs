//! The searched text: this project's own documentation, a passage at a time.

use std::path::{Path, PathBuf};

/// A few sentences, and where they stand.
#[derive(Clone, Debug)]
pub struct Passage {
    /// File and line.
    pub place: String,
    /// The heading above, or the item that is documented.
    pub title: String,
    pub text: String,
}

/// The passages of the project's pages, and of its source's doc comments.
pub fn documentation() -> Vec<Passage> {
    let root = &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("docs"), root.join("src")];
    let mut files: Vec<PathBuf> = vec![root.join("README.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    let mut passages = Vec::new();
    for file in files {
        let name = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        let read: fn(&str, &str) -> Vec<Passage> = match file.extension() {
            Some(e) if e == "md" => of_page,
            Some(e) if e == "rs" => of_source,
            _ => continue,
        };
        if let Ok(text) = std::fs::read_to_string(&file) {
            passages.extend(read(&name, &text));
        }
    }
    passages
}

/// Paragraphs, list items and table rows of a Markdown page; code blocks are left out.
pub fn of_page(name: &str, text: &str) -> Vec<Passage> {
    let (mut passages, mut title, mut held, mut from) =
        (Vec::new(), String::new(), String::new(), 0);
    let mut code = false;
    for (k, line) in text.lines().chain([""]).enumerate() {
        if line.starts_with("```") {
            code = !code;
            continue;
        }
        let begins = line.is_empty() || line.starts_with(['#', '|']) || line.starts_with("- ");
        let numbered = line.split_once(". ").is_some_and(|(n, _)| n.parse::<u32>().is_ok());
        if (begins || numbered) && !held.is_empty() {
            push(&mut passages, name, from, &title, std::mem::take(&mut held));
        }
        if code {
        } else if let Some(heading) = line.strip_prefix('#') {
            title = heading.trim_start_matches('#').trim().to_owned();
        } else if !line.trim().is_empty() && !line.starts_with("|-") {
            if held.is_empty() {
                from = k + 1;
            }
            held = held + line.trim() + " ";
        }
    }
    passages
}

/// Doc comments with the item that they are of: their first paragraph, and further ones as their
/// own.
pub fn of_source(name: &str, text: &str) -> Vec<Passage> {
    let lines: Vec<&str> = text.lines().collect();
    let mut passages = Vec::new();
    let mut k = 0;
    while k < lines.len() {
        let marker = ["//! ", "/// "].into_iter().find(|m| lines[k].trim_start().starts_with(m));
        let Some(marker) = marker else {
            k += 1;
            continue;
        };
        let from = k;
        while k < lines.len() && lines[k].trim_start().starts_with(marker.trim_end()) {
            k += 1;
        }
        let item =
            lines[k..].iter().map(|l| l.trim()).find(|l| !l.is_empty() && !l.starts_with("#["));
        let item = item.unwrap_or("").split(['{', ';']).next().unwrap_or("").trim();
        let title = if marker == "//! " { name } else { item };
        // What users cannot call, they need not find.
        let private = [
            "pub(",
            "fn ",
            "struct ",
            "enum ",
            "impl",
            "const ",
            "static ",
            "trait ",
            "type ",
            "macro_rules",
        ];
        if marker == "/// " && private.iter().any(|p| item.starts_with(p)) {
            continue;
        }
        let doc: String = lines[from..k]
            .iter()
            .map(|l| {
                l.trim_start().trim_start_matches(marker.trim_end()).trim_start().to_owned() + "\n"
            })
            .collect();
        for mut passage in of_page(name, &doc) {
            let line =
                passage.place.rsplit(':').next().and_then(|n| n.parse::<usize>().ok()).unwrap_or(1);
            passage.place = format!("{name}:{}", from + line);
            passage.title = title.to_owned();
            passages.push(passage);
        }
    }
    passages
}

fn push(passages: &mut Vec<Passage>, name: &str, from: usize, title: &str, text: String) {
    // A few words say little by themselves.
    if text.split_whitespace().count() >= 5 {
        passages.push(Passage {
            place: format!("{name}:{from}"),
            title: title.to_owned(),
            text: text.trim().to_owned(),
        });
    }
}
