//! Makes a program for libFuzzer out of a target of `tests/untrusted`.

pub use libfuzzer_sys;

/// The program of the target of this name.
#[macro_export]
macro_rules! target {
    ($name:literal) => {
        $crate::libfuzzer_sys::fuzz_target!(
            // libfuzzer-sys aborts in its panic hook. The library catches panics of the tokenizer
            // and the template engine, so the hook goes. A panic of the target still aborts.
            init: drop(std::panic::take_hook()),
            |bytes: &[u8]| $crate::run($name, bytes)
        );
    };
}

pub use untrusted::run;
