//! `folder` of `tests/untrusted`.

#![no_main]

futensor_fuzz::target!("folder");
