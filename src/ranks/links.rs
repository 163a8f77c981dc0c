//! The writing ends of the links to the other members: whoever has something to say writes, and
//! never waits. The thread that reads, and makes the links, is `keeper`'s.

use crate::sync::lock_plain as lock;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

/// Bytes that wait for a peer who does not read: it is as good as gone.
const UNREAD_MAX: usize = 16 << 20;

/// The writing ends, and what the thread is asked for.
pub(crate) struct Links {
    ends: Mutex<Vec<Option<(TcpStream, VecDeque<u8>)>>>,
    wanted: Mutex<Vec<(usize, String)>>,
    bell: UnixStream,
}

impl Links {
    /// For so many members, with what the thread hears the bell by.
    pub fn new(size: usize) -> io::Result<(Links, UnixStream)> {
        let (bell, heard) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        let ends = Mutex::new((0..size).map(|_| None).collect());
        Ok((Links { ends, wanted: Mutex::default(), bell }, heard))
    }

    /// Has the thread look.
    pub fn ring(&self) {
        // Where it is full, it rings already.
        let _ = (&self.bell).write(&[1]);
    }

    pub fn ask_for(&self, rank: usize, address: String) {
        lock(&self.wanted).push((rank, address));
        self.ring();
    }

    /// Sends without waiting; what the socket does not take, the thread sends on.
    pub fn send(&self, rank: usize, bytes: &[u8]) {
        let mut ends = lock(&self.ends);
        let Some((stream, unsent)) = &mut ends[rank] else { return };
        unsent.extend(bytes);
        flush(stream, unsent);
        if unsent.len() > UNREAD_MAX {
            unsent.clear();
            let _ = stream.shutdown(Shutdown::Both);
        } else if !unsent.is_empty() {
            self.ring();
        }
    }

    /// A link that was made: its writing end.
    pub fn add(&self, rank: usize, stream: TcpStream) {
        lock(&self.ends)[rank] = Some((stream, VecDeque::new()));
    }

    /// The links that the thread is asked to make, since it was last asked.
    pub fn wanted(&self) -> Vec<(usize, String)> {
        std::mem::take(&mut *lock(&self.wanted))
    }

    /// Sends on what waits.
    pub fn flush(&self) {
        for (stream, unsent) in lock(&self.ends).iter_mut().flatten() {
            flush(stream, unsent);
        }
    }

    /// Sockets for which something waits.
    pub fn full(&self) -> Vec<RawFd> {
        let ends = lock(&self.ends);
        let waits = ends.iter().flatten().filter(|(_, unsent)| !unsent.is_empty());
        waits.map(|(stream, _)| stream.as_raw_fd()).collect()
    }

    pub fn close(&self, rank: usize) {
        if let Some((stream, _)) = lock(&self.ends)[rank].take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn flush(stream: &mut TcpStream, unsent: &mut VecDeque<u8>) {
    while !unsent.is_empty() {
        match stream.write(unsent.as_slices().0) {
            Ok(n) => drop(unsent.drain(..n)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Full; or broken, which the reading end sees.
            Err(_) => return,
        }
    }
}
