//! How two members authenticate a link: each sends a challenge, and proves that it knows the secret
//! by an HMAC over both challenges and its own description.
//!
//! Before that a peer can send only [`HELLO`] bytes and occupy the connection for [`PATIENCE`], and
//! nothing of its data is kept. The link is not encrypted: it carries the messages of
//! `protocol/message`. A network in which others can write into a connection needs a tunnel.

use super::secret::{BYTES, Secret, random};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The longest time from a connection to a link.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
const MAGIC: &[u8; 16] = b"futensor-ranks-\n";
/// The version of the side channel's protocol. The handshake itself is the same in every version.
pub(crate) const VERSION: u32 = 3;
pub(super) const GREETING: usize = 16 + 4 + BYTES;
pub(super) const HELLO: usize = GREETING + 16 + BYTES;
pub(super) const REPLY: usize = 1 + 16 + BYTES;

/// The description that a member sends of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Who {
    pub rank: usize,
    pub size: usize,
    pub compares: bool,
    /// Whether its values go through a device's own library instead of MPI.
    pub by_device: bool,
    /// The port on which it listens, on the machine that it connects from.
    pub port: u16,
}

impl Who {
    pub(super) fn bytes(&self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..4].copy_from_slice(&(self.rank as u32).to_le_bytes());
        out[4..8].copy_from_slice(&(self.size as u32).to_le_bytes());
        out[8..10].copy_from_slice(&self.port.to_le_bytes());
        (out[10], out[11]) = (self.compares as u8, self.by_device as u8);
        out
    }

    fn of(bytes: &[u8; 16]) -> Who {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
        };
        let port = u16::from_le_bytes([bytes[8], bytes[9]]);
        let (compares, by_device) = (bytes[10] != 0, bytes[11] != 0);
        Who { rank: word(0), size: word(4), compares, by_device, port }
    }
}

/// Why a link was refused. `proved` means that the peer knows the secret: then it is a member that
/// was started wrongly, and the group cannot form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Refused {
    pub proved: bool,
    pub text: String,
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Refused {
        Refused { proved: false, text: error.to_string() }
    }
}

fn refused(proved: bool, text: impl Into<String>) -> Refused {
    Refused { proved, text: text.into() }
}

/// The answer to a peer that connects.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Verdict {
    Welcome = 0,
    Secret = 1,
    Version = 2,
    Size = 3,
    Taken = 4,
    Compares = 5,
    Way = 6,
}

/// Fills the buffer before a deadline, however slowly the bytes come.
fn read_by(mut stream: &TcpStream, bytes: &mut [u8], until: Instant) -> io::Result<()> {
    let mut read = 0;
    while read < bytes.len() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[read..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => read += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) fn greeting(challenge: &[u8; BYTES], version: u32) -> [u8; GREETING] {
    let mut out = [0; GREETING];
    out[..16].copy_from_slice(MAGIC);
    out[16..20].copy_from_slice(&version.to_le_bytes());
    out[20..].copy_from_slice(challenge);
    out
}

fn version(greeting: &[u8]) -> Option<u32> {
    let (magic, rest) = greeting.split_at_checked(16)?;
    (magic == MAGIC).then(|| u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]))
}

/// Answers a peer that connected: its description, if it may join. `takes` tells whether that rank
/// is expected.
pub(crate) fn answer(
    stream: &TcpStream,
    secret: &Secret,
    me: Who,
    takes: impl Fn(usize) -> bool,
) -> Result<Who, Refused> {
    let until = Instant::now() + PATIENCE;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let own = greeting(&random()?, VERSION);
    (&mut &*stream).write_all(&own)?;
    let mut hello = [0; HELLO];
    read_by(stream, &mut hello, until)?;
    let (reply, came) = judge(&hello, &own, secret, me, takes);
    if let Some(reply) = reply {
        (&mut &*stream).write_all(&reply)?;
    }
    came
}

/// Checks the message of a caller: the reply, and the caller if it may come in.
pub(super) fn judge(
    hello: &[u8; HELLO],
    own: &[u8; GREETING],
    secret: &Secret,
    me: Who,
    takes: impl Fn(usize) -> bool,
) -> (Option<[u8; REPLY]>, Result<Who, Refused>) {
    let (theirs, rest) = hello.split_at(GREETING);
    let (about, proof) = rest.split_at(16);
    let (Some(version), Ok(about), Ok(proof)) =
        (version(theirs), <&[u8; 16]>::try_from(about), <&[u8; BYTES]>::try_from(proof))
    else {
        return (None, Err(refused(false, "it uses another protocol")));
    };
    let who = Who::of(about);
    let proved = secret.check(&[b"call", own, theirs, about], proof);
    let (verdict, text) = match who {
        _ if !proved => (Verdict::Secret, "it does not know the secret".into()),
        _ if version != VERSION => (
            Verdict::Version,
            format!("rank {} uses version {version}, this rank version {VERSION}", who.rank),
        ),
        Who { rank, size, .. } if size != me.size || rank >= size => (
            Verdict::Size,
            format!("rank {rank} was started as one of {size}, this rank as one of {}", me.size),
        ),
        Who { rank, compares, .. } if compares != me.compares => (
            Verdict::Compares,
            format!(
                "calls are compared on rank {}, but not on the other",
                if compares { rank } else { me.rank }
            ),
        ),
        Who { rank, by_device, .. } if by_device != me.by_device => {
            (Verdict::Way, way(if by_device { rank } else { me.rank }))
        }
        Who { rank, .. } if !takes(rank) => {
            (Verdict::Taken, format!("another process has already joined as rank {rank}"))
        }
        _ => (Verdict::Welcome, String::new()),
    };
    let proof = secret.prove(&[b"answer", own, theirs, about, &me.bytes(), &[verdict as u8]]);
    let mut reply = [0; REPLY];
    reply[0] = verdict as u8;
    reply[1..17].copy_from_slice(&me.bytes());
    reply[17..].copy_from_slice(&proof);
    let came = match verdict {
        Verdict::Welcome => Ok(who),
        // The first process of this rank stays; the second one has been told.
        Verdict::Taken => Err(refused(false, text)),
        _ => Err(refused(proved, text)),
    };
    (Some(reply), came)
}

fn way(rank: usize) -> String {
    format!("values go through a device's own library on rank {rank}, but through MPI on the other")
}

/// Connects to a member: a link with `rank`, before the deadline.
pub(crate) fn call(
    stream: &TcpStream,
    secret: &Secret,
    me: Who,
    rank: usize,
    until: Instant,
) -> Result<(), Refused> {
    let until = until.min(Instant::now() + PATIENCE);
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut theirs = [0; GREETING];
    read_by(stream, &mut theirs, until)?;
    if version(&theirs).is_none() {
        return Err(refused(false, "the answer is not from futensor"));
    }
    let own = greeting(&random()?, VERSION);
    let about = me.bytes();
    (&mut &*stream).write_all(&own)?;
    (&mut &*stream).write_all(&about)?;
    (&mut &*stream).write_all(&secret.prove(&[b"call", &theirs, &own, &about]))?;
    let mut reply = [0; REPLY];
    read_by(stream, &mut reply, until)?;
    believe(&reply, &theirs, &own, secret, me, rank)
}

/// Checks the reply of `rank` to this rank's call.
pub(super) fn believe(
    reply: &[u8; REPLY],
    theirs: &[u8; GREETING],
    own: &[u8; GREETING],
    secret: &Secret,
    me: Who,
    rank: usize,
) -> Result<(), Refused> {
    let (Some(version), Ok(other), Ok(proof)) = (
        version(theirs),
        <&[u8; 16]>::try_from(&reply[1..17]),
        <&[u8; BYTES]>::try_from(&reply[17..]),
    ) else {
        return Err(refused(false, "the answer is not from futensor"));
    };
    if !secret.check(&[b"answer", theirs, own, &me.bytes(), other, &reply[..1]], proof) {
        return Err(refused(true, format!("rank {rank} has a different secret")));
    }
    let who = Who::of(other);
    Err(refused(
        true,
        match reply[0] {
            0 if who.rank == rank => return Ok(()),
            0 => format!("rank {} answers instead of rank {rank}", who.rank),
            2 => format!("rank {rank} uses version {version}, this rank version {VERSION}"),
            3 => format!(
                "this rank was started as one of {}, rank {rank} as one of {}",
                me.size, who.size
            ),
            4 => format!("another process joined as rank {} before this one", me.rank),
            5 => format!(
                "calls are compared on rank {}, but not on the other",
                if me.compares { me.rank } else { rank }
            ),
            6 => way(if me.by_device { me.rank } else { rank }),
            _ => format!("rank {rank} refuses this one"),
        },
    ))
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;
    use crate::ranks::protocol::simulated::Dice;
    use std::net::TcpListener;

    fn who(rank: usize) -> Who {
        Who { rank, size: 2, compares: false, by_device: false, port: 7 }
    }

    /// The results of both ends of a handshake.
    fn meet(
        a: (&str, Who),
        b: (&str, Who),
        takes: bool,
    ) -> (Result<Who, Refused>, Result<(), Refused>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (secret, caller) = (Secret::of(b.0.as_bytes()), b.1);
        let calls = std::thread::spawn(move || {
            call(
                &TcpStream::connect(address).unwrap(),
                &secret,
                caller,
                0,
                Instant::now() + PATIENCE,
            )
        });
        let answered =
            answer(&listener.accept().unwrap().0, &Secret::of(a.0.as_bytes()), a.1, |_| takes);
        (answered, calls.join().unwrap())
    }

    #[test]
    fn members_come_in_and_others_are_told_why_not_on_both_sides() {
        assert_eq!(meet(("s", who(0)), ("s", who(1)), true), (Ok(who(1)), Ok(())));
        let (here, there) = meet(("s", who(0)), ("t", who(1)), true);
        assert_eq!(here, Err(refused(false, "it does not know the secret")));
        assert_eq!(there, Err(refused(true, "rank 0 has a different secret")));
        let (here, there) = meet(("s", who(0)), ("s", Who { size: 3, ..who(1) }), true);
        assert_eq!(
            here,
            Err(refused(true, "rank 1 was started as one of 3, this rank as one of 2"))
        );
        assert_eq!(
            there,
            Err(refused(true, "this rank was started as one of 3, rank 0 as one of 2"))
        );
        let (here, there) = meet(("s", who(0)), ("s", who(1)), false);
        assert!(here.unwrap_err().text.contains("another process has already joined as rank 1"));
        assert!(there.unwrap_err().text.contains("another process joined as rank 1"));
        let (here, there) = meet(("s", who(0)), ("s", Who { compares: true, ..who(1) }), true);
        assert!(here.unwrap_err().text.contains("on rank 1, but not") && there.is_err());
    }

    #[test]
    fn another_version_that_knows_the_secret_is_told_and_refused() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let later = std::thread::spawn(move || {
            let stream = TcpStream::connect(address).unwrap();
            let (mut theirs, about) = ([0; GREETING], who(1).bytes());
            read_by(&stream, &mut theirs, Instant::now() + PATIENCE).unwrap();
            let own = greeting(&[7; BYTES], VERSION + 1);
            let proof = Secret::of(b"s").prove(&[b"call", &theirs, &own, &about]);
            (&mut &stream).write_all(&[&own[..], &about, &proof].concat()).unwrap();
            let mut reply = [0; 1];
            read_by(&stream, &mut reply, Instant::now() + PATIENCE).unwrap();
            reply[0]
        });
        let refusal =
            answer(&listener.accept().unwrap().0, &Secret::of(b"s"), who(0), |_| true).unwrap_err();
        let text = format!("rank 1 uses version {}, this rank version {VERSION}", VERSION + 1);
        assert_eq!(refusal, refused(true, text));
        assert_eq!(later.join().unwrap(), Verdict::Version as u8);
    }

    #[test]
    fn one_who_speaks_something_else_or_hangs_up_is_let_go() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; HELLO + 100]] {
            let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            stream.write_all(words).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let refusal =
                answer(&listener.accept().unwrap().0, &Secret::of(b"s"), who(0), |_| true)
                    .unwrap_err();
            assert!(!refusal.proved, "{refusal:?}");
        }
    }

    /// Both ends of a handshake whose bytes a man in the middle changes, truncates, or extends.
    fn meddled(dice: &mut Dice) -> (Result<Who, Refused>, Result<(), Refused>) {
        let [to_listener, to_caller] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let (at, through) = (to_listener.local_addr().unwrap(), to_caller.local_addr().unwrap());
        let until = Instant::now() + PATIENCE;
        let calls = std::thread::spawn(move || {
            call(&TcpStream::connect(through).unwrap(), &Secret::of(b"s"), who(1), 0, until)
        });
        let answers = std::thread::spawn(move || {
            answer(&to_listener.accept().unwrap().0, &Secret::of(b"s"), who(0), |_| true)
        });
        let (caller, listener) = (to_caller.accept().unwrap().0, TcpStream::connect(at).unwrap());
        let (side, place, how) = (dice.next() % 2, dice.next() as usize % HELLO, dice.next());
        let meddle = |from: &TcpStream, to: &TcpStream, most: usize, meddles: bool| {
            let mut bytes = vec![0; most];
            if read_by(from, &mut bytes, until).is_err() {
                return false;
            }
            if meddles {
                let (at, whole) = (place % most, bytes.clone());
                match how % 4 {
                    0 => bytes[at] ^= 1 << ((how >> 8) % 8),
                    1 => bytes.truncate(at),
                    2 => bytes[at..].fill((how >> 8) as u8),
                    _ => bytes.insert(at, (how >> 8) as u8),
                }
                // The change may have had no effect: the numbers of a handshake are random.
                if bytes.starts_with(&whole) {
                    bytes[at] ^= 1;
                }
            }
            let sent = (&mut &*to).write_all(&bytes).is_ok();
            if meddles {
                let _ = to.shutdown(std::net::Shutdown::Write);
            }
            sent
        };
        // The greeting; then the caller's message, and the answer to it.
        let part = dice.next() % 2;
        let all = meddle(&listener, &caller, GREETING, side == 0 && part == 0)
            && meddle(&caller, &listener, HELLO, side == 1)
            && meddle(&listener, &caller, REPLY, side == 0 && part == 1);
        if !all {
            for stream in [&caller, &listener] {
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        }
        (answers.join().expect("no panic"), calls.join().expect("no panic"))
    }

    #[test]
    fn whatever_is_changed_on_the_way_nobody_comes_in_and_nobody_panics_or_waits() {
        let seed =
            std::env::var("FUTENSOR_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1u64);
        println!("seed {seed}");
        let (mut dice, since) = (Dice(seed), Instant::now());
        for round in 0..300 {
            let (here, there) = meddled(&mut dice);
            // Only the caller can detect a change of the answer.
            assert!(there.is_err(), "seed {seed}, round {round}: {here:?}");
            assert!(
                here.as_ref().is_ok_and(|came| *came == who(1)) || here.is_err(),
                "seed {seed}, round {round}"
            );
            if let Err(refused) = here {
                assert!(
                    !refused.proved,
                    "seed {seed}, round {round}: a stranger has it given up: {refused:?}"
                );
            }
        }
        assert!(since.elapsed() < 2 * PATIENCE, "it took {:?}", since.elapsed());
    }

    #[test]
    fn one_who_says_a_byte_now_and_then_is_hung_up_on_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let calls = std::thread::spawn(move || {
            let (stream, since) = (TcpStream::connect(address).unwrap(), Instant::now());
            let refused =
                call(&stream, &Secret::of(b"s"), who(1), 0, since + Duration::from_millis(200));
            (refused.unwrap_err(), since.elapsed())
        });
        let mut stream = listener.accept().unwrap().0;
        while stream.write_all(b"f").is_ok() && !calls.is_finished() {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (refused, took) = calls.join().unwrap();
        assert!(!refused.proved && took < Duration::from_secs(2), "{refused:?} after {took:?}");
    }
}
