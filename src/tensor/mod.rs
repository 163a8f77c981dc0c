//! To come.

mod display;
