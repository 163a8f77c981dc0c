//! Reductions: the rows of the table, and the ops composed of them.

mod table;

mod initial;

pub(crate) mod stats;
