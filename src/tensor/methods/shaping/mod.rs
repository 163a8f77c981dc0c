//! Shapes and views, joining, padding, and ops that move elements.

pub(crate) mod views;

mod moves;

pub(crate) mod axes;

mod diagonals;

pub(crate) mod join;

pub(crate) mod pad;
