//! How a group's communicator comes to be: on a thread of its own.
//!
//! To make one is to wait for all its members inside the library, and a member that dies meanwhile
//! may keep it waiting for good (Open MPI 5 does in `PMIx_Group_construct`). Such a thread is given
//! up, asleep, and everything else goes on. The first one initialises the library.

use super::segments;
use super::table::{Handle, Table};
use crate::engine::exchange::{Call, Key};
use crate::sync::lock_plain as lock;
use std::ptr::null_mut;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

pub(super) struct Opening {
    table: Arc<Table>,
    begun: Arc<Mutex<Begun>>,
    /// Those that are waited for.
    calls: Vec<Call>,
    /// Threads that have not come back.
    threads: usize,
    made: (Sender<Made>, Receiver<Made>),
}

/// The ticket, and the communicator.
type Made = (Key, Result<Comm, String>);

pub(super) struct Comm(pub Handle);

// SAFETY: a handle means the same on every thread.
unsafe impl Send for Comm {}

/// Whether the library was initialised, which may be done once in a process, and how that went.
enum Begun {
    Not,
    Begins,
    Done(Result<(), String>),
}

impl Opening {
    pub fn new(table: Arc<Table>) -> Opening {
        let begun = Arc::new(Mutex::new(Begun::Not));
        Opening { table, begun, calls: Vec::new(), threads: 0, made: channel() }
    }

    /// Begins to open a call's group, of these ranks, of which this is one.
    pub fn start(&mut self, call: Call, ranks: Vec<usize>, me: usize) {
        let ticket = call.ticket;
        let name = format!("futensor-{}-{:x}", call.group.0, call.group.1);
        let (table, begun, made) = (self.table.clone(), self.begun.clone(), self.made.0.clone());
        let thread = std::thread::Builder::new().name("futensor-opens".into());
        let opens = move || {
            let opened = begin(&table, &begun).and_then(|()| open(&table, &ranks, me, &name));
            let _ = made.send((ticket, opened.map(Comm)));
        };
        if let Err(error) = thread.spawn(opens) {
            let _ = self.made.0.send((ticket, Err(format!("no thread to open a group: {error}"))));
        }
        self.threads += 1;
        self.calls.push(call);
    }

    /// What has come of one, and its call, if that is waited for still.
    pub fn next(&mut self) -> Option<(Option<Call>, Result<Comm, String>)> {
        let (ticket, made) = self.made.1.try_recv().ok()?;
        self.threads -= 1;
        let at = self.calls.iter().position(|call| call.ticket == ticket);
        Some((at.map(|at| self.calls.remove(at)), made))
    }

    /// Nobody waits for this group any more.
    pub fn give_up(&mut self, group: Key) {
        self.calls.retain(|call| call.group != group);
    }

    pub fn waited_for(&self) -> usize {
        self.calls.len()
    }

    /// Whether the library was initialised, and no thread is inside it.
    pub fn is_whole(&self) -> bool {
        self.threads == 0 && matches!(*lock(&self.begun), Begun::Done(Ok(())))
    }

    pub fn is_stuck(&self) -> bool {
        self.threads > 0
    }
}

/// Initialises the library, if nobody has.
fn begin(table: &Table, begun: &Mutex<Begun>) -> Result<(), String> {
    {
        let mut begun = lock(begun);
        match &*begun {
            Begun::Done(done) => return done.clone(),
            Begun::Begins => return Err("a rank was lost while MPI was initialised, which ends MPI".into()),
            Begun::Not => *begun = Begun::Begins,
        }
    }
    let done = initialise(table);
    *lock(begun) = Begun::Done(done.clone());
    done
}

fn initialise(table: &Table) -> Result<(), String> {
    let Table { call, is } = table;
    let (mut flag, mut level) = (0, 0);
    // SAFETY: places for what is asked; no arguments are handed in.
    unsafe {
        table.check((call.initialized)(&mut flag))?;
        if flag != 0 {
            return Err("MPI was initialised by somebody else in this process".into());
        }
        table.check((call.init_thread)(null_mut(), null_mut(), is.multiple, &mut level))?;
        if level < is.multiple {
            return Err("this MPI was built without MPI_THREAD_MULTIPLE".into());
        }
        table.check((call.comm_set_errhandler)(is.world, is.errors_return))
    }
}

/// The communicator of these ranks, of which this is one.
fn open(table: &Table, ranks: &[usize], me: usize, name: &str) -> Result<Handle, String> {
    let Table { call, is } = table;
    let (mut rank, mut size) = (0, 0);
    // SAFETY: places for two numbers.
    unsafe {
        table.check((call.comm_rank)(is.world, &mut rank))?;
        table.check((call.comm_size)(is.world, &mut size))?;
    }
    let most = ranks.iter().max().map_or(0, |r| r + 1);
    if (size as usize) < most || rank as usize != me {
        return Err(format!(
            "MPI takes this process for rank {rank} of {size}, and not for rank {me} of {most} or more: start all \
             with its own launcher, `mpirun`"
        ));
    }
    let made = table.communicator(ranks, name)?;
    if ranks.len() == size as usize {
        // All are here, so all have mapped what they share.
        segments::unlink();
    }
    Ok(made)
}
