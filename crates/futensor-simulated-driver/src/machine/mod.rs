//! The simulated machine: its state and lock (`sim`), the thread that moves it (`scheduler`), what
//! an item of work does (`work`), and faults on demand.

pub mod accesses;
pub mod arrival;
pub mod entry;
pub mod faults;
pub mod objects;
pub mod scheduler;
pub mod sim;
pub mod thread;
pub mod work;
