//! Every CUDA kernel goes through NVIDIA's own compiler, and through the host's with values.
//!
//! The pure layers of the crate are compiled into this test, so that it sees the kernels as the
//! backend does. Where a compiler is missing its trials are reported as ignored, and so are those
//! of the machine code without NVIDIA's disassembler.

#![allow(dead_code, unused, missing_docs)]

#[path = "../../src/dtype.rs"]
mod dtype;
#[path = "../../src/float8.rs"]
mod float8;
#[path = "../../src/format.rs"]
mod format;
#[path = "../../src/op/mod.rs"]
mod op;
#[path = "../../src/shape.rs"]
mod shape;
#[path = "../../src/graph"]
mod graph {
    pub(crate) mod program;
}
#[path = "../../src/philox.rs"]
mod philox;
#[path = "../../src/window.rs"]
mod window;
#[path = "../../src/cuda"]
mod cuda {
    pub(crate) mod kernels;
}
/// Of the host's kernels only the random numbers, which are the same bit by bit.
#[path = "../../src/host"]
mod host {
    #[path = "kernels"]
    pub(crate) mod kernels {
        pub(crate) mod random;
        pub(crate) mod simd;
    }
}

mod catalogue;
mod machine;
#[path = "host.rs"]
mod on_host;
mod values;

use futensor_nvrtc::Compiled;
use libtest_mimic::{Arguments, Failed, Trial};
use std::sync::Arc;

fn main() {
    let args = Arguments::from_args();
    let compiler = futensor_nvrtc::Compiler::find().map(Arc::new);
    let mut trials = Vec::new();
    for (family, kernels) in catalogue::all() {
        let kernels = Arc::new(kernels);
        for arch in [80, 90, 100] {
            let (kernels, compiler) = (kernels.clone(), compiler.clone());
            let missing = compiler.is_none();
            let trial = Trial::test(format!("{family}_compile_for_sm_{arch}"), move || {
                let sources: Vec<_> = kernels.iter().map(|k| k.source()).collect();
                let text = cuda::kernels::source::module(&sources);
                let compiler = compiler.ok_or("there is no NVRTC")?;
                let failed = |why: String| {
                    let path = std::env::temp_dir().join(format!("futensor-{family}.cu"));
                    let _ = std::fs::write(&path, &text);
                    Failed::from(format!("{}\n{why}", path.display()))
                };
                let Compiled { image, spills, .. } = compiler
                    .compile(&text, arch, cuda::kernels::source::OPTIONS)
                    .map_err(failed)?;
                // An ELF file that holds every entry by name.
                assert_eq!(&image[..4], b"\x7fELF");
                for source in &sources {
                    let name = source.entry.as_bytes();
                    assert!(
                        image.windows(name.len()).any(|w| w == name),
                        "{} is missing",
                        source.entry
                    );
                }
                match spills.is_empty() {
                    true => Ok(()),
                    false => Err(failed(format!("kernels that spill:\n{}", spills.join("\n")))),
                }
            });
            trials.push(trial.with_ignored_flag(missing));
        }
    }
    let missing = compiler.is_none() || !futensor_nvrtc::has_disassembler();
    for family in machine::names() {
        let compiler = compiler.clone();
        let trial =
            Trial::test(format!("machine_code_of_{family}_is_within_its_bounds"), move || {
                let compiler = compiler.ok_or("there is no NVRTC")?;
                machine::check(&compiler, family).map_err(Failed::from)
            });
        trials.push(trial.with_ignored_flag(missing));
    }
    let missing = !on_host::is_there();
    for (name, test) in values::TESTS {
        let trial = Trial::test(*name, move || {
            test();
            Ok(())
        });
        trials.push(trial.with_ignored_flag(missing));
    }
    libtest_mimic::run(&args, trials).exit();
}
