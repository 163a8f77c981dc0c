//! Kernels: read (`scan`), compiled behind the shim (`compile`), loaded (`image`), and run with
//! their faults and endless loops caught (`fibers`, `trap`, `limit`).

pub mod abi;
pub mod bounds;
pub mod compile;
pub mod fibers;
pub mod image;
pub mod launch;
pub mod limit;
pub mod scan;
pub mod trap;
