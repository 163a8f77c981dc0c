//! The writing ends of the links to the other members: any thread writes, and never waits. `keeper`
//! has the thread that opens the links and reads them.

use crate::sync::lock_plain as lock;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;

/// The most bytes that wait for a peer that does not read; beyond that the peer counts as lost.
const UNREAD_MAX: usize = 16 << 20;

/// The writing ends, and the requests to the thread.
pub(crate) struct Links {
    ends: Mutex<Vec<Option<(TcpStream, VecDeque<u8>)>>>,
    wanted: Mutex<Vec<(usize, String)>>,
    wake_pipe: UnixStream,
}

impl Links {
    /// The links of a group of this size, and the end of the pipe that wakes the thread.
    pub fn new(size: usize) -> io::Result<(Links, UnixStream)> {
        let (wake_pipe, heard) = UnixStream::pair()?;
        wake_pipe.set_nonblocking(true)?;
        heard.set_nonblocking(true)?;
        let ends = Mutex::new((0..size).map(|_| None).collect());
        Ok((Links { ends, wanted: Mutex::default(), wake_pipe }, heard))
    }

    /// Wakes the thread.
    pub fn ring(&self) {
        // A full pipe has already woken the thread.
        let _ = (&self.wake_pipe).write(&[1]);
    }

    pub fn ask_for(&self, rank: usize, address: String) {
        lock(&self.wanted).push((rank, address));
        self.ring();
    }

    /// Sends without waiting; the thread sends bytes that the socket does not take.
    pub fn send(&self, rank: usize, bytes: &[u8]) {
        let mut ends = lock(&self.ends);
        let Some((stream, unsent)) = &mut ends[rank] else { return };
        unsent.extend(bytes);
        flush(stream, unsent);
        if unsent.len() > UNREAD_MAX {
            // The reading end sees the shutdown. Waiting bytes are dropped with the link.
            let _ = stream.shutdown(Shutdown::Both);
            ends[rank] = None;
        } else if !unsent.is_empty() {
            self.ring();
        }
    }

    /// Adds the writing end of a new link.
    pub fn add(&self, rank: usize, stream: TcpStream) {
        lock(&self.ends)[rank] = Some((stream, VecDeque::new()));
    }

    /// The links that the thread has to open, since the last call.
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

    /// The last of what is sent has been: the other end sees that, and this one reads on.
    pub fn end(&self) {
        for (stream, unsent) in lock(&self.ends).iter_mut().flatten() {
            flush(stream, unsent);
            if unsent.is_empty() {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
    }

    pub fn close_all(&self) {
        let ranks = lock(&self.ends).len();
        (0..ranks).for_each(|rank| self.close(rank));
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

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// A link to rank 1 of two, and its other end.
    fn link() -> (Links, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        here.set_nonblocking(true).unwrap();
        let (links, _heard) = Links::new(2).unwrap();
        links.add(1, here);
        (links, listener.accept().unwrap().0)
    }

    fn waiting(links: &Links) -> Option<usize> {
        lock(&links.ends)[1].as_ref().map(|(_, unsent)| unsent.len())
    }

    #[test]
    fn a_peer_that_reads_nothing_is_hung_up_on_before_it_fills_the_memory() {
        let (links, mut there) = link();
        let mut sent = 0;
        while let Some(waits) = waiting(&links) {
            assert!(waits <= UNREAD_MAX, "{waits} bytes wait");
            links.send(1, &[7; 64 << 10]);
            sent += 64 << 10;
            assert!(sent < 8 * UNREAD_MAX, "{sent} bytes and no end");
        }
        // All that is said from then on goes nowhere, and the other end sees that it is over.
        links.send(1, &[7; 64 << 10]);
        assert!(waiting(&links).is_none() && links.full().is_empty());
        let mut read = Vec::new();
        there.read_to_end(&mut read).unwrap();
        assert!(read.len() < sent && read.iter().all(|byte| *byte == 7));
    }

    #[test]
    fn a_peer_that_reads_late_has_all_of_it_in_order_and_then_the_end() {
        let (links, mut there) = link();
        let words: Vec<u8> = (0..UNREAD_MAX / 2).map(|i| (i / 1000) as u8).collect();
        words.chunks(10_000).for_each(|part| links.send(1, part));
        assert!(waiting(&links).is_some_and(|waits| waits > 0) && links.full().len() == 1);
        let reads = std::thread::spawn(move || {
            let mut read = Vec::new();
            there.read_to_end(&mut read).map(|_| read)
        });
        while waiting(&links) != Some(0) {
            links.end();
            std::thread::yield_now();
        }
        links.end();
        assert!(reads.join().unwrap().unwrap() == words, "not what was sent");
    }
}
