//! What can be asked beside the table: one op a file, each behind the one trait.

pub(crate) mod arrange;
pub(crate) mod attention;
pub(crate) mod cat;
pub(crate) mod classes;
pub(crate) mod conv;
pub(crate) mod cumprod;
pub(crate) mod custom;
pub(crate) mod matmul;
pub(crate) mod nll;
pub(crate) mod nonzero;
pub(crate) mod pick;
pub(crate) mod pool;
pub(crate) mod rows;
pub(crate) mod scatter;
pub(crate) mod slice_assign;
pub(crate) mod turned;

#[cfg(all(test, not(futensor_loom)))]
mod cost_tests;
