//! Writes the first inputs of a fuzzer. `untrusted-corpus TARGET FOLDER` writes the valid inputs to
//! a folder, and their words to the dictionary `FOLDER.dict`. Without arguments, it prints the
//! names of the targets.

use std::fmt::Write;
use std::path::Path;
use untrusted::TARGETS;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, folder] = &arguments[..] else {
        TARGETS.iter().for_each(|target| println!("{}", target.name));
        return Ok(());
    };
    let target = TARGETS.iter().find(|target| target.name == name).expect("the name of a target");
    std::fs::create_dir_all(folder)?;
    for (at, bytes) in (target.corpus)().iter().enumerate() {
        std::fs::write(Path::new(folder).join(format!("valid-{at:03}")), bytes)?;
    }
    let mut words = String::new();
    for word in target.words {
        let bytes = word.bytes().map(|b| format!("\\x{b:02x}")).collect::<String>();
        writeln!(words, "\"{bytes}\"").expect("a text takes it");
    }
    std::fs::write(format!("{folder}.dict"), words)
}
