//! The library as a whole: its single initialisation, and its communicators.

use super::opening::Opens;
use super::segments;
use super::table::{Handle, Table};
use crate::sync::lock_plain as lock;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex};

pub(super) struct Library {
    table: Arc<Table>,
    begun: Mutex<Begun>,
}

/// The result of the initialisation, which is possible only once per process.
enum Begun {
    Not,
    Begins,
    Done(Result<(), String>),
}

pub(super) struct Comm(pub Handle);

// SAFETY: a handle is valid on every thread.
unsafe impl Send for Comm {}

impl Library {
    pub fn new(table: Arc<Table>) -> Library {
        Library { table, begun: Mutex::new(Begun::Not) }
    }

    /// Initialises the library, unless that has been done.
    fn begin(&self) -> Result<(), String> {
        {
            let mut begun = lock(&self.begun);
            match &*begun {
                Begun::Done(done) => return done.clone(),
                Begun::Begins => {
                    return Err("a rank was lost while MPI was initialised, which ends MPI".into());
                }
                Begun::Not => *begun = Begun::Begins,
            }
        }
        let done = initialise(&self.table);
        *lock(&self.begun) = Begun::Done(done.clone());
        done
    }
}

impl Opens for Library {
    type Made = Comm;

    fn is_ready(&self) -> bool {
        matches!(*lock(&self.begun), Begun::Done(Ok(())))
    }

    fn open(&self, ranks: &[usize], me: usize, name: &str) -> Result<Comm, String> {
        self.begin()?;
        let Table { call, is } = &*self.table;
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the pointers are to two local numbers.
        unsafe {
            self.table.check((call.comm_rank)(is.world, &mut rank))?;
            self.table.check((call.comm_size)(is.world, &mut size))?;
        }
        let most = ranks.iter().max().map_or(0, |r| r + 1);
        if (size as usize) < most || rank as usize != me {
            return Err(format!(
                "MPI has this process as rank {rank} of {size}, not as rank {me} of {most} \
                 or more: start all ranks with MPI's own launcher, `mpirun`"
            ));
        }
        let made = self.table.communicator(ranks, name)?;
        if ranks.len() == size as usize {
            // All ranks are here, so all have mapped the shared memory.
            segments::unlink();
        }
        Ok(Comm(made))
    }
}

fn initialise(table: &Table) -> Result<(), String> {
    let Table { call, is } = table;
    let (mut flag, mut level) = (0, 0);
    // SAFETY: the pointers are to local values; no arguments are passed.
    unsafe {
        table.check((call.initialized)(&mut flag))?;
        if flag != 0 {
            return Err("MPI is already initialised in this process".into());
        }
        table.check((call.init_thread)(null_mut(), null_mut(), is.multiple, &mut level))?;
        if level < is.multiple {
            return Err("this MPI was built without MPI_THREAD_MULTIPLE".into());
        }
        table.check((call.comm_set_errhandler)(is.world, is.errors_return))
    }
}
