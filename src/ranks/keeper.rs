//! The thread that opens the links to the other members, and reads them.
//!
//! All ranks connect to rank 0, which tells each where the others listen; between two other ranks
//! the one with the larger number connects. The thread sleeps in `poll`, and never blocks on a
//! socket.

use super::dial::{dial, listen};
use super::driver::Asks;
use super::handshake::{Refused, Who, answer, call};
use super::options::{Meeting, Plan};
use super::protocol::message::{Fault, FaultKind, Message};
use super::secret::{Note, Secret};
use super::world::World;
use crate::guard::caught;
use crate::sync::lock_plain as lock;
use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The most handshakes at the same time. One more closes the oldest connection: a member has long
/// authenticated itself by then, or connects again.
const GREETED: usize = 32;
/// The pause between two attempts to connect.
const AGAIN: Duration = Duration::from_millis(10);
/// The most bytes that are read from a member before the others have their turn.
const READ: usize = 1 << 20;
/// How long to wait at the end for a member that has also left: the end of its connection is read
/// last.
const LAST: Duration = Duration::from_secs(1);

/// The result of a thread that answers or connects.
enum Met {
    Link(usize, TcpStream, String),
    Refused(Refused),
    /// A member cannot be reached.
    Missed(usize, String),
    /// The thread has panicked, and has not connected to its member.
    Panicked(String),
}

struct Reading {
    rank: usize,
    stream: TcpStream,
    bytes: Vec<u8>,
}

/// The thread.
struct Keeper {
    world: Arc<World>,
    me: Who,
    secret: Secret,
    listener: Option<TcpListener>,
    note: Option<Note>,
    heard: UnixStream,
    readings: Vec<Reading>,
    met: (Sender<Met>, Receiver<Met>),
    greeted: Arc<Mutex<VecDeque<(SocketAddr, TcpStream)>>>,
    until: Instant,
}

/// The thread: opens the links and reads them, until all ranks have left.
pub(crate) fn keep(world: Arc<World>, plan: Plan, heard: UnixStream) {
    let (compares, by_device) = (plan.rules.compares, plan.home.is_some());
    let me = Who { rank: plan.rank, size: plan.size, compares, by_device, port: 0 };
    let until = Instant::now() + plan.rules.arrival;
    let begun =
        if plan.rank == 0 { open(&plan, until) } else { call_first(&world, &plan, me, until) };
    let (listener, secret, note, first) = match begun {
        Ok(begun) => begun,
        Err(text) => {
            let fault = Fault { kind: FaultKind::Calls, rank: None, text };
            return world.act_aside(|machine, _| machine.fail_join(fault));
        }
    };
    let port = listener.local_addr().map_or(0, |address| address.port());
    let mut keeper = Keeper {
        me: Who { port, ..me },
        world,
        secret,
        listener: Some(listener),
        note,
        heard,
        readings: Vec::new(),
        met: channel(),
        greeted: Arc::default(),
        until,
    };
    if let Some(stream) = first {
        keeper.link(0, stream, String::new());
    }
    while !keeper.world.is_over().0 {
        keeper.turn();
    }
    keeper.end();
    if keeper.world.is_over().1 {
        keeper.world.driver.loses();
    }
}

type Begun = (TcpListener, Secret, Option<Note>, Option<TcpStream>);

/// Rank 0 listens.
fn open(plan: &Plan, until: Instant) -> Result<Begun, String> {
    let listen = |address: &str| {
        listen(address, until).map_err(|error| format!("cannot listen at {address}: {error}"))
    };
    match &plan.meeting {
        Meeting::Address(address, secret) => Ok((listen(address)?, secret.clone(), None, None)),
        Meeting::File(job) => {
            let listener = listen("127.0.0.1:0")?;
            let address = listener.local_addr().map_err(|error| error.to_string())?;
            let (note, secret) = Note::write(job, &address.to_string()).map_err(|error| {
                format!(
                    "cannot write the address to a file in {}: {error}",
                    std::env::temp_dir().display()
                )
            })?;
            Ok((listener, secret, Some(note), None))
        }
    }
}

/// Another rank connects to rank 0 until it answers, and listens on the same interface.
fn call_first(world: &World, plan: &Plan, me: Who, until: Instant) -> Result<Begun, String> {
    let mut listener: Option<TcpListener> = None;
    let mut last = "it has not published its address".to_string();
    loop {
        let place = match &plan.meeting {
            Meeting::Address(address, secret) => Some((address.clone(), secret.clone())),
            Meeting::File(job) => Note::read(job),
        };
        if let Some((address, secret)) = place {
            match dial(&address, until) {
                Ok(stream) => {
                    let own = listener
                        .take()
                        .map_or_else(|| listen_beside(&stream), Ok)
                        .map_err(|e| e.to_string())?;
                    let port = own.local_addr().map_err(|error| error.to_string())?.port();
                    match call(&stream, &secret, Who { port, ..me }, 0, until) {
                        Ok(()) => return Ok((own, secret, None, Some(stream))),
                        Err(Refused { proved: true, text }) => return Err(text),
                        Err(Refused { text, .. }) => last = format!("at {address}: {text}"),
                    }
                    listener = Some(own);
                }
                Err(error) => last = format!("at {address}: {error}"),
            }
        }
        if Instant::now() >= until || world.is_over().0 {
            return Err(format!("rank 0 does not answer within {:?}: {last}", plan.rules.arrival));
        }
        std::thread::sleep(AGAIN);
    }
}

/// Listens on the interface from which it connected to rank 0.
fn listen_beside(stream: &TcpStream) -> io::Result<TcpListener> {
    let side: IpAddr = stream.local_addr()?.ip();
    let listener = TcpListener::bind((side, 0))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

impl Keeper {
    fn turn(&mut self) {
        self.sleep();
        let mut rings = [0; 64];
        while matches!((&self.heard).read(&mut rings), Ok(n) if n > 0) {}
        self.greet();
        for (rank, address) in self.world.links.wanted() {
            self.call(rank, address);
        }
        while let Ok(met) = self.met.1.try_recv() {
            self.meets(met);
        }
        self.read();
        self.world.links.flush();
        self.world.act_aside(|machine, now| machine.tick(now));
        if self.readings.len() + 1 >= self.me.size {
            // All members are linked: no more connections are accepted.
            (self.listener, self.note) = (None, None);
        }
    }

    /// All members have left or are lost. The last messages are sent, and the links are closed when
    /// this thread ends: members that left earlier wait only for that.
    fn end(&mut self) {
        (self.listener, self.note) = (None, None);
        let until = Instant::now() + LAST;
        while !self.readings.is_empty() && Instant::now() < until {
            self.world.links.end();
            let mut chunk = [0; 16 << 10];
            // What is read now is ignored, except for the end of the connection.
            self.readings.retain_mut(|reading| {
                let read = reading.stream.read(&mut chunk);
                matches!(read, Ok(1..))
                    || read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
            });
            self.wait(AGAIN);
        }
        self.readings.clear();
        self.world.links.close_all();
    }

    fn sleep(&mut self) {
        let wait = self.world.sleep();
        self.wait(wait);
    }

    /// Waits until something arrives, or for this long.
    #[allow(unsafe_code)]
    fn wait(&mut self, most: Duration) {
        let entry = |fd: i32, events: i16| libc::pollfd { fd, events, revents: 0 };
        let mut fds = vec![entry(self.heard.as_raw_fd(), libc::POLLIN)];
        fds.extend(
            self.listener.as_ref().map(|listener| entry(listener.as_raw_fd(), libc::POLLIN)),
        );
        fds.extend(self.readings.iter().map(|r| entry(r.stream.as_raw_fd(), libc::POLLIN)));
        fds.extend(self.world.links.full().into_iter().map(|fd| entry(fd, libc::POLLOUT)));
        let ms = most.as_micros().div_ceil(1000).min(60_000) as i32;
        // SAFETY: the number of entries is right, and they live through the call. If another thread
        // closes a socket meanwhile, the worst result is a spurious wake.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
    }

    /// Answers each connection on a separate thread, which a peer can hold only for a limited time.
    fn greet(&mut self) {
        while let Some(Ok((stream, from))) = self.listener.as_ref().map(TcpListener::accept) {
            let Ok(held) = stream.try_clone() else { continue };
            let mut all = lock(&self.greeted);
            if all.len() >= GREETED
                && let Some((_, first)) = all.pop_front()
            {
                let _ = first.shutdown(Shutdown::Both);
            }
            all.push_back((from, held));
            drop(all);
            let (me, secret, greeted) = (self.me, self.secret.clone(), self.greeted.clone());
            let (world, met) = (self.world.clone(), self.met.0.clone());
            let linked: Vec<usize> = self.readings.iter().map(|r| r.rank).collect();
            let thread =
                std::thread::Builder::new().name("futensor-greets".into()).spawn(move || {
                    let takes = |rank: usize| rank > me.rank && !linked.contains(&rank);
                    let came = stream.set_nonblocking(false).map_err(Refused::from);
                    let came = came.and_then(|()| greets(|| answer(&stream, &secret, me, takes)));
                    lock(&greeted).retain(|(other, _)| *other != from);
                    let _ = met.send(match came {
                        Ok(who) => {
                            let listens = SocketAddr::new(from.ip(), who.port);
                            Met::Link(who.rank, stream, listens.to_string())
                        }
                        Err(refused) => Met::Refused(Refused {
                            text: format!("{from}: {}", refused.text),
                            ..refused
                        }),
                    });
                    world.links.ring();
                });
            if thread.is_err() {
                lock(&self.greeted).retain(|(other, _)| *other != from);
            }
        }
    }

    /// Connects to a member at the address from rank 0; retries if strangers keep it busy.
    fn call(&mut self, rank: usize, address: String) {
        let (me, secret, until) = (self.me, self.secret.clone(), self.until);
        let world = self.world.clone();
        let calls = move || {
            let came = loop {
                let came = dial(&address, until).map_err(Refused::from);
                let came = came
                    .and_then(|stream| call(&stream, &secret, me, rank, until).map(|()| stream));
                match came {
                    Err(Refused { proved: false, .. })
                        if Instant::now() < until && !world.is_over().0 =>
                    {
                        std::thread::sleep(AGAIN);
                    }
                    came => break came,
                }
            };
            match came {
                Ok(stream) => Met::Link(rank, stream, String::new()),
                Err(refused) if refused.proved => Met::Refused(refused),
                Err(refused) => {
                    Met::Missed(rank, format!("it does not answer at {address}: {}", refused.text))
                }
            }
        };
        let (links, met) = (self.world.clone(), self.met.0.clone());
        let thread = std::thread::Builder::new().name("futensor-calls".into()).spawn(move || {
            let _ = met.send(caught(calls).unwrap_or_else(Met::Panicked));
            links.links.ring();
        });
        if let Err(error) = thread {
            let _ = self.met.0.send(Met::Missed(rank, error.to_string()));
            self.world.links.ring();
        }
    }

    fn meets(&mut self, met: Met) {
        match met {
            Met::Link(rank, stream, _) if self.readings.iter().any(|r| r.rank == rank) => {
                let _ = stream.shutdown(Shutdown::Both);
            }
            Met::Link(rank, stream, address) => self.link(rank, stream, address),
            Met::Refused(Refused { proved: true, text }) => {
                let fault = Fault { kind: FaultKind::Calls, rank: None, text };
                self.world.act_aside(|machine, _| machine.fail_join(fault));
            }
            Met::Refused(Refused { text, .. }) => self.world.note(text),
            Met::Panicked(words) => {
                self.world.fails(format!("its thread for calls panicked: {words}"))
            }
            Met::Missed(rank, text) => {
                self.world.act_aside(|machine, _| machine.closed(rank, &text))
            }
        }
    }

    fn link(&mut self, rank: usize, stream: TcpStream, address: String) {
        let writing = stream.set_nonblocking(true).and_then(|()| stream.try_clone());
        match writing {
            Ok(writing) => {
                self.world.links.add(rank, writing);
                self.readings.push(Reading { rank, stream, bytes: Vec::new() });
                self.world.act_aside(|machine, now| machine.linked(rank, address, now));
            }
            Err(error) => {
                self.world.act_aside(|machine, _| machine.closed(rank, &error.to_string()))
            }
        }
    }

    /// Reads arrived bytes, from each member at most its share, and reports messages in order.
    fn read(&mut self) {
        let mut chunk = [0; 16 << 10];
        let world = &self.world;
        self.readings.retain_mut(|reading| {
            let mut left = READ / chunk.len();
            let why = loop {
                if left == 0 {
                    return true;
                }
                left -= 1;
                match reading.stream.read(&mut chunk) {
                    Ok(0) => break "its process or its connection has ended",
                    Ok(n) => reading.bytes.extend(&chunk[..n]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                    Err(_) => break "its connection broke",
                }
                let rank = reading.rank;
                let hear = |message| {
                    world.act_aside(|machine, now| machine.heard(rank, message, now));
                };
                if !Message::take_whole(&mut reading.bytes, hear) {
                    break "it sent an invalid message";
                }
            };
            world.act_aside(|machine, _| machine.closed(reading.rank, why));
            false
        });
    }
}

/// Runs a handshake so that a stranger cannot cause another member to be refused.
fn greets<T>(greet: impl FnOnce() -> Result<T, Refused>) -> Result<T, Refused> {
    let panicked =
        |words| Err(Refused { proved: false, text: format!("the handshake panicked: {words}") });
    caught(greet).unwrap_or_else(panicked)
}
