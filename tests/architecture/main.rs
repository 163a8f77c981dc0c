//! The house stays tidy: imports run down only and in no circle, nothing outside `cuda/` says CUDA,
//! `graph/` knows no threads, `unsafe` is where it is expected and says why, files can be read in
//! one sitting, folders at one glance, and lines on one screen.

mod blocking;
mod book;
mod columns;
mod imports;
mod kernels;
mod layers;
mod messages;
mod mutations;
mod ops;
mod page;
mod paths;
mod rooms;
mod source;
mod unsafe_code;
mod words;
