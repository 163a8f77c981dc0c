//! Values that were not made by this crate, and how they are compared with what it makes.
//!
//! `case` reads what `make.py` wrote, `compare` says whether two tensors agree; `README.md` beside
//! this file describes the format. Neither knows futensor's ops.

pub mod case;
pub mod compare;
