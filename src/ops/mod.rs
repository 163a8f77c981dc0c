//! The ops beside the table: a folder for each family, a file for each op, behind one trait.

pub(crate) mod attention;
pub(crate) mod check;
pub(crate) mod custom;
pub(crate) mod index;
pub(crate) mod order;
pub(crate) mod products;
pub(crate) mod rows;
pub(crate) mod shaping;
pub(crate) mod windows;

#[cfg(all(test, not(futensor_loom)))]
mod cost_tests;
