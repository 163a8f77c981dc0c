//! Memory of a GPU, page-locked memory of the host, and copies between the two.
//!
//! `heap` and `pool` allocate and free in the order of the lanes. `pinned` lends page-locked
//! memory for staging, `page_locked` to users. `upload` and `download` copy; a large value is
//! copied in chunks (`chunked`), and a value that was handed in from elsewhere is copied when a
//! step first needs it (`lazy_upload`).

pub(crate) mod chunked;
pub(crate) mod download;
pub(crate) mod heap;
pub(crate) mod lazy_upload;
pub(crate) mod page_locked;
pub(crate) mod pinned;
pub(super) mod pool;
pub(super) mod upload;
