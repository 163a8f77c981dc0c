//! Shapes and views, joining, padding, and elements moved.

pub(crate) mod views;

mod moves;

pub(crate) mod join;

pub(crate) mod pad;
