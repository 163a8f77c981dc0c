//! CPU loops.
