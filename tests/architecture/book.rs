//! The front page and the book: short, whole, and without a link that leads nowhere.

use crate::source::root;
use std::fs;

/// Lines of the README: a screen and a half.
const FRONT_PAGE_MAX: usize = 150;

/// The pages of the project, by their paths below the root.
fn pages() -> Vec<String> {
    let chapters = fs::read_dir(root().join("docs")).expect("the book");
    let chapters = chapters.map(|entry| entry.expect("a chapter").file_name());
    let mut pages: Vec<String> =
        chapters.map(|name| format!("docs/{}", name.to_string_lossy())).collect();
    let beside = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "src/ARCHITECTURE.md"];
    pages.extend(beside.map(str::to_owned));
    pages.push("benches/RESULTS.md".to_owned());
    pages
}

fn text(page: &str) -> String {
    fs::read_to_string(root().join(page)).expect("a page")
}

/// The targets of links in a page: `[text](target)`, and `[name]: target` at the start of a line.
fn targets(page: &str) -> Vec<String> {
    let inline = page.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let defined = page.lines().filter_map(|line| line.strip_prefix('[')?.split_once("]: "));
    inline.chain(defined.map(|(_, target)| target)).map(str::to_owned).collect()
}

#[test]
fn the_front_page_is_short() {
    let lines = text("README.md").lines().count();
    assert!(lines <= FRONT_PAGE_MAX, "{lines} lines");
}

#[test]
fn every_link_leads_to_a_file() {
    let mut seen = 0;
    for page in pages() {
        let from = root().join(&page);
        let folder = from.parent().expect("a folder");
        for target in targets(&text(&page)) {
            let file = target.split('#').next().unwrap_or("");
            if target.contains("://") || file.is_empty() {
                continue;
            }
            assert!(folder.join(file).exists(), "{page} links to {target}, which is not there");
            seen += 1;
        }
    }
    assert!(seen > 30, "the test does not see the links: {seen}");
}

#[test]
fn the_rustdoc_and_the_front_page_have_every_chapter() {
    let (book, front) = (text("src/book.rs"), text("README.md"));
    for chapter in pages().iter().filter(|page| page.starts_with("docs/")) {
        assert!(book.contains(&format!("\"../{chapter}\"")), "{chapter} is not in src/book.rs");
        let linked = front.contains(chapter.as_str());
        let of_internals = text("src/ARCHITECTURE.md").contains(chapter.as_str());
        assert!(linked || of_internals, "no page leads to {chapter}");
    }
}
