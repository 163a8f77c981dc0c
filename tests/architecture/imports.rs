//! The imports of files from each other, and the circles among them.

use crate::paths::{named_paths, paths_of_use};
use crate::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// One file that names something of another.
#[derive(Debug, PartialEq)]
pub struct Import {
    pub from: String,
    pub line: usize,
    pub to: String,
    /// The name itself.
    pub name: String,
}

/// What the files import from each other. What a folder's `mod.rs` names of its own files is none:
/// it gathers them, and they may import it. What the crate's root lends is of the file it is from.
pub fn imports(sources: &[Source]) -> Vec<Import> {
    let shipped: Vec<&Source> = sources.iter().filter(|s| !s.is_test).collect();
    let files: BTreeMap<Vec<String>, &str> =
        shipped.iter().map(|s| (s.module(), &s.path[..])).collect();
    let lent = lent_by_the_root(sources);
    let mut found = Vec::new();
    for source in shipped {
        let own = source.module();
        for (line, inside, path) in named_paths(source) {
            let mut here = [&own[..], &inside].concat();
            let mut rest = &path[..];
            match &path[0][..] {
                "crate" => (here, rest) = (Vec::new(), &path[1..]),
                "self" => rest = &path[1..],
                "super" => {
                    while rest.first().is_some_and(|name| name == "super") && here.pop().is_some() {
                        rest = &rest[1..];
                    }
                }
                name => {
                    if !files.contains_key(&[&here[..], &[name.to_owned()]].concat()) {
                        continue;
                    }
                }
            }
            here.extend_from_slice(rest);
            if let Some(from) = here.first().and_then(|name| lent.get(name)) {
                here = from.clone();
            }
            // The longest beginning that is a file's module: what follows is a name in it.
            let to =
                (1..=here.len()).rev().find_map(|k| Some((&here[..k], *files.get(&here[..k])?)));
            let Some((module, to)) = to else { continue };
            let gathers = source.path.ends_with("/mod.rs") && module.starts_with(&own);
            if to != source.path && !gathers && source.path != "lib.rs" {
                found.push(Import {
                    from: source.path.clone(),
                    line,
                    to: to.into(),
                    name: path.join("::"),
                });
            }
        }
    }
    found
}

/// The names that the crate's root takes from its modules, with their paths.
fn lent_by_the_root(sources: &[Source]) -> BTreeMap<String, Vec<String>> {
    let root = sources.iter().find(|source| source.path == "lib.rs");
    let lines = root.map_or("", |root| &root.text).lines();
    let uses = lines.filter_map(|line| {
        let tree = line.strip_prefix("pub use ").or(line.strip_prefix("pub(crate) use "))?;
        tree.strip_suffix(';')
    });
    let paths = uses.flat_map(paths_of_use);
    paths.filter_map(|path| Some((path.last()?.clone(), path))).collect()
}

/// Files that import each other, round whatever corners: each circle with what it is made of.
pub fn circles(imports: &[Import]) -> Vec<Vec<&Import>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        next.entry(&import.from).or_default().insert(&import.to);
    }
    let reach = |from: &str| {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut open: Vec<&str> = next.get(from).into_iter().flatten().copied().collect();
        while let Some(file) = open.pop() {
            if seen.insert(file) {
                open.extend(next.get(file).into_iter().flatten());
            }
        }
        seen
    };
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reach(file))).collect();
    let mut found: Vec<Vec<&Import>> = Vec::new();
    let mut done: BTreeSet<&str> = BTreeSet::new();
    for (file, ahead) in &reached {
        if !ahead.contains(file) || done.contains(file) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|ahead| ahead.contains(file));
        let circle: BTreeSet<&str> = ahead.iter().filter(back).copied().collect();
        found.push(
            imports
                .iter()
                .filter(|i| circle.contains(&i.from[..]) && circle.contains(&i.to[..]))
                .collect(),
        );
        done.extend(circle);
    }
    found
}

#[test]
fn the_reader_of_imports_sees_every_form() {
    let text = "
use crate::{
    b::Two,
    a::{x::{self, One as Uno}, z},
};
pub(crate) use super::z::*;
use std::fmt;
mod inner {
    use super::super::x;
    use super::own;
}
// crate::b::comment
#[cfg(test)]
mod tests {
    use crate::b::only_for_tests;
}
use crate::Lent;
fn f(x: &crate::b::Two) -> Vec<super::x::One> {
    $crate::b::of_a_macro();
    self::own(other::crate::b, x::<u8>)
}
";
    let files = [
        Source::new("lib.rs", "use a::x;\npub use b::{Lent, Other};"),
        Source::new("a/mod.rs", "mod x;\nuse x::One;\nuse crate::b::Two;"),
        Source::new("a/x.rs", ""),
        Source::new("a/y.rs", text),
        Source::new("a/z.rs", "fn f() -> super::Gathered { deep::f() }"),
        Source::new("a/z/deep.rs", "use crate::a::x::One;"),
        Source::new("b.rs", ""),
    ];
    let found: Vec<(String, usize, String)> = imports(&files)
        .into_iter()
        .map(|i| (format!("{} {}", i.from, i.to), i.line, i.name))
        .collect();
    let expected = [
        ("a/mod.rs b.rs", 3, "crate::b::Two"),
        ("a/y.rs b.rs", 2, "crate::b::Two"),
        ("a/y.rs a/x.rs", 2, "crate::a::x::self"),
        ("a/y.rs a/x.rs", 2, "crate::a::x::One"),
        ("a/y.rs a/z.rs", 2, "crate::a::z"),
        ("a/y.rs a/z.rs", 6, "super::z::*"),
        ("a/y.rs a/x.rs", 9, "super::super::x"),
        ("a/y.rs b.rs", 17, "crate::Lent"),
        ("a/y.rs b.rs", 18, "crate::b::Two"),
        ("a/y.rs a/x.rs", 18, "super::x::One"),
        ("a/z.rs a/mod.rs", 1, "super::Gathered"),
        ("a/z.rs a/z/deep.rs", 1, "deep::f"),
        ("a/z/deep.rs a/x.rs", 1, "crate::a::x::One"),
    ];
    assert_eq!(
        found,
        expected.map(|(files, line, name)| (files.to_owned(), line, name.to_owned()))
    );
}

#[test]
fn the_reader_of_imports_sees_circles() {
    let import = |from: &str, to: &str| Import {
        from: from.into(),
        line: 1,
        to: to.into(),
        name: to.into(),
    };
    let all = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "d"), ("e", "f")];
    let all = all.map(|(from, to)| import(from, to));
    let pairs = |circle: &Vec<&Import>| {
        circle.iter().map(|i| format!("{}{}", i.from, i.to)).collect::<Vec<_>>()
    };
    let found: Vec<Vec<String>> = circles(&all).iter().map(pairs).collect();
    assert_eq!(found, [vec!["ab", "bc", "ca"], vec!["de", "ed"]]);
    assert!(circles(&all[3..5]).is_empty());
}
