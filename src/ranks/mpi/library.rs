//! The library as a whole: its one beginning, and the communicators that it makes.

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

/// Whether the library was initialised, which may be done once in a process, and how that went.
enum Begun {
    Not,
    Begins,
    Done(Result<(), String>),
}

pub(super) struct Comm(pub Handle);

// SAFETY: a handle means the same on every thread.
unsafe impl Send for Comm {}

impl Library {
    pub fn new(table: Arc<Table>) -> Library {
        Library { table, begun: Mutex::new(Begun::Not) }
    }

    /// Initialises it, if nobody has.
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
        // SAFETY: places for two numbers.
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
            // All are here, so all have mapped what they share.
            segments::unlink();
        }
        Ok(Comm(made))
    }
}

fn initialise(table: &Table) -> Result<(), String> {
    let Table { call, is } = table;
    let (mut flag, mut level) = (0, 0);
    // SAFETY: places for what is asked; no arguments are handed in.
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
