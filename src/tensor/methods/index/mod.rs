//! Picking and placing elements by their indices.

mod pick;

mod choice;
