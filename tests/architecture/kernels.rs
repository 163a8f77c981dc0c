//! Kernels and calls of the driver: none goes untested, or unlisted.

use crate::source::{is_word, shipped, sources};
use std::collections::BTreeSet;

#[test]
fn every_kernel_that_chooses_a_level_is_tested_at_every_level() {
    // A family is a file of `host/kernels` or of a room in it, or a folder.
    let family = |path: &str| {
        let path = path.strip_prefix("host/kernels/")?;
        let of_room = ["attention/", "windows/"].iter().find_map(|room| path.strip_prefix(room));
        let name = of_room.unwrap_or(path).split('/').next()?.trim_end_matches(".rs").to_owned();
        (!["isa", "simd", "testing"].contains(&&name[..])).then_some(name)
    };
    let (mut chooses, mut tested) = (BTreeSet::new(), BTreeSet::new());
    for source in sources() {
        let Some(family) = family(&source.path) else { continue };
        let shipped = shipped(&source);
        let names =
            |words: &[&str]| shipped.iter().any(|(_, line)| words.iter().any(|w| line.contains(w)));
        if !source.is_test
            && names(&["vectorize!(", "at_level(", "multiversion!", "level()", "instances::<"])
        {
            chooses.insert(family.clone());
        }
        if source.text.contains("at_every_level! {") || source.text.contains("Level::available()") {
            tested.insert(family);
        }
    }
    assert!(chooses.len() >= 10, "the test does not see who chooses: {chooses:?}");
    // Elementwise kernels and copies call `stream`, pools `largest`.
    tested.extend(["stream", "largest"].map(String::from));
    let untested: Vec<&String> = chooses.difference(&tested).collect();
    assert!(untested.is_empty(), "tested at the widest level alone: {untested:?}");
}

/// A call of a symbol that the driver lacks is a panic inside cudarc.
#[test]
fn every_call_of_the_driver_is_on_the_list_that_a_device_looks_through_first() {
    let sources = sources();
    let driver = sources
        .iter()
        .find(|s| s.path == "cuda/device/libraries/driver.rs")
        .expect("the list is there");
    let called: BTreeSet<&str> = sources
        .iter()
        .filter(|source| source.path.starts_with("cuda/"))
        .flat_map(|source| source.text.split("sys::cu").skip(1))
        .map(|rest| &rest[..rest.find(|c: char| !is_word(c)).unwrap_or(rest.len())])
        .filter(|call| call.starts_with(char::is_uppercase))
        .collect();
    assert!(called.len() > 40, "{called:?}");
    let missing: Vec<_> = called
        .iter()
        .filter(|call| !driver.text.contains(&format!("    \"cu{call}\",\n")))
        .collect();
    assert!(missing.is_empty(), "not on the list: {missing:?}");
}
