//! Values that were not made by this crate, and how they are compared with what it makes.
//!
//! `case` reads what `make.py` wrote, `compare` says whether two tensors agree, `apply` calls the
//! op of a case; `README.md` beside this file describes the format.

pub mod apply;
mod calls;
pub mod case;
pub mod checked;
pub mod compare;
