//! Where the members of a communicator meet: a thread of whoever made its id, that is sent what
//! each brings, and answers once all have.

use half::{bf16, f16};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

pub const ALL_REDUCE: u8 = 1;
pub const REDUCE: u8 = 2;
pub const BROADCAST: u8 = 3;
pub const ALL_GATHER: u8 = 4;
pub const REDUCE_SCATTER: u8 = 5;
pub const SEND: u8 = 6;
pub const RECV: u8 = 7;

/// A call, as all its members have to make it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Ask {
    pub kind: u8,
    pub dtype: i32,
    pub op: i32,
    /// Or whom it is sent to, or received from.
    pub root: i32,
    pub count: u64,
}

impl Ask {
    /// Sends a call with its number and what the member brings.
    pub fn write(&self, mut link: &TcpStream, number: u64, bytes: &[u8]) {
        let mut out = vec![self.kind];
        [self.dtype, self.op, self.root].iter().for_each(|x| out.extend(x.to_le_bytes()));
        [self.count, number, bytes.len() as u64].iter().for_each(|x| out.extend(x.to_le_bytes()));
        out.extend(bytes);
        // A hub that is gone answers nothing, and that is what its members see of it.
        let _ = link.write_all(&out);
    }

    fn read(mut link: &TcpStream) -> io::Result<(Ask, u64, Vec<u8>)> {
        let mut head = [0; 37];
        link.read_exact(&mut head)?;
        let int = |at: usize| i32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let long =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let ask = Ask { kind: head[0], dtype: int(1), op: int(5), root: int(9), count: long(13) };
        let mut bytes = vec![0; long(29) as usize];
        link.read_exact(&mut bytes)?;
        Ok((ask, long(21), bytes))
    }
}

/// What a hub says.
pub enum Reply {
    /// All members are there.
    Ready,
    /// Calls do not meet.
    Wrong,
    /// What a call gets, by its number.
    Gives(u64, Vec<u8>),
}

impl Reply {
    /// The next, until the hub is gone.
    pub fn read(mut link: &TcpStream) -> Option<Reply> {
        let mut head = [0; 17];
        link.read_exact(&mut head).ok()?;
        let long =
            |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let mut bytes = vec![0; long(9) as usize];
        link.read_exact(&mut bytes).ok()?;
        Some(match head[0] {
            0 => Reply::Ready,
            1 => Reply::Wrong,
            _ => Reply::Gives(long(1), bytes),
        })
    }

    fn write(&self, mut link: &TcpStream) {
        let (kind, number, bytes) = match self {
            Reply::Ready => (0, 0, &[][..]),
            Reply::Wrong => (1, 0, &[][..]),
            Reply::Gives(number, bytes) => (2, *number, &bytes[..]),
        };
        let mut out = vec![kind];
        [number, bytes.len() as u64].iter().for_each(|x: &u64| out.extend(x.to_le_bytes()));
        out.extend(bytes);
        // As above.
        let _ = link.write_all(&out);
    }
}

/// Bytes of an element of a `ncclDataType_t`.
pub fn width(dtype: i32) -> Option<usize> {
    match dtype {
        0 | 1 => Some(1),
        2 | 3 | 7 => Some(4),
        4 | 5 | 8 => Some(8),
        6 | 9 => Some(2),
        _ => None,
    }
}

/// Opens a hub for one communicator: the port that its members call.
pub fn open() -> io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || meet(&listener));
    Ok(port)
}

/// A call, its number, and what its member brings.
type Call = (Ask, u64, Vec<u8>);

fn meet(listener: &TcpListener) -> io::Result<()> {
    let mut links: BTreeMap<usize, Arc<TcpStream>> = BTreeMap::new();
    let mut size = 1;
    while links.len() < size {
        let (mut link, _) = listener.accept()?;
        link.set_nodelay(true)?;
        let mut hello = [0; 8];
        link.read_exact(&mut hello)?;
        let word = |at: usize| {
            u32::from_le_bytes(hello[at..at + 4].try_into().expect("four bytes")) as usize
        };
        size = word(4);
        links.insert(word(0), Arc::new(link));
    }
    let (tell, told) = channel();
    for (&rank, link) in &links {
        Reply::Ready.write(link);
        let (link, tell) = (link.clone(), tell.clone());
        std::thread::spawn(move || {
            while let Ok((ask, number, bytes)) = Ask::read(&link) {
                let _ = tell.send((rank, (ask, number, bytes)));
            }
        });
    }
    drop(tell);
    serve(&links.into_values().collect::<Vec<_>>(), &told);
    Ok(())
}

fn serve(links: &[Arc<TcpStream>], told: &Receiver<(usize, Call)>) {
    // Of each member those that the others have not all made yet; of each two, sends and receives.
    let mut calls: Vec<VecDeque<Call>> = links.iter().map(|_| VecDeque::new()).collect();
    let mut pairs: BTreeMap<(usize, usize), [VecDeque<Call>; 2]> = BTreeMap::new();
    let mute = super::fault() == "mute";
    let wrong = || links.iter().filter(|_| !mute).for_each(|link| Reply::Wrong.write(link));
    for (rank, (ask, number, bytes)) in told {
        let peer = ask.root as usize;
        match ask.kind {
            SEND | RECV => {
                let pair = if ask.kind == SEND { (rank, peer) } else { (peer, rank) };
                let both = pairs.entry(pair).or_default();
                both[usize::from(ask.kind == RECV)].push_back((ask, number, bytes));
                if both.iter().any(VecDeque::is_empty) {
                    continue;
                }
                let [Some((sent, from, bytes)), Some((got, to, _))] =
                    both.each_mut().map(VecDeque::pop_front)
                else {
                    continue;
                };
                if (sent.dtype, sent.count) != (got.dtype, got.count) {
                    wrong();
                    continue;
                }
                Reply::Gives(from, Vec::new()).write(&links[pair.0]);
                Reply::Gives(to, bytes).write(&links[pair.1]);
            }
            _ => {
                calls[rank].push_back((ask, number, bytes));
                if calls.iter().any(VecDeque::is_empty) {
                    continue;
                }
                let all: Vec<_> = calls.iter_mut().filter_map(VecDeque::pop_front).collect();
                if all.iter().any(|(other, ..)| *other != all[0].0) {
                    wrong();
                    continue;
                }
                let brought: Vec<&[u8]> = all.iter().map(|(.., bytes)| &bytes[..]).collect();
                for (rank, given) in given(all[0].0, &brought).into_iter().enumerate() {
                    Reply::Gives(all[rank].1, given).write(&links[rank]);
                }
            }
        }
    }
}

/// What each member gets.
fn given(ask: Ask, brought: &[&[u8]]) -> Vec<Vec<u8>> {
    let n = brought.len();
    let same = |bytes: Vec<u8>| vec![bytes; n];
    match ask.kind {
        ALL_GATHER => same(brought.concat()),
        BROADCAST => same(brought[ask.root as usize].to_vec()),
        ALL_REDUCE => same(reduced(ask, brought)),
        REDUCE => {
            let at_root =
                |rank| if rank == ask.root as usize { reduced(ask, brought) } else { Vec::new() };
            (0..n).map(at_root).collect()
        }
        _ => {
            let all = reduced(ask, brought);
            all.chunks((all.len() / n).max(1)).map(<[u8]>::to_vec).collect()
        }
    }
}

fn reduced(ask: Ask, brought: &[&[u8]]) -> Vec<u8> {
    macro_rules! by {
        ($T:ty, $add:expr, $times:expr) => {{
            let list = |bytes: &[u8]| -> Vec<$T> {
                bytes
                    .chunks_exact(size_of::<$T>())
                    .map(|b| <$T>::from_le_bytes(b.try_into().expect("its bytes")))
                    .collect()
            };
            let combine = |a: $T, b: $T| match ask.op {
                0 => $add(a, b),
                1 => $times(a, b),
                2 => {
                    if b > a {
                        b
                    } else {
                        a
                    }
                }
                _ => {
                    if b < a {
                        b
                    } else {
                        a
                    }
                }
            };
            let mut all = list(brought[0]);
            for other in &brought[1..] {
                all.iter_mut().zip(list(other)).for_each(|(a, b)| *a = combine(*a, b));
            }
            all.iter().flat_map(|x| x.to_le_bytes()).collect()
        }};
    }
    match ask.dtype {
        0 => by!(i8, i8::wrapping_add, i8::wrapping_mul),
        1 => by!(u8, u8::wrapping_add, u8::wrapping_mul),
        2 => by!(i32, i32::wrapping_add, i32::wrapping_mul),
        3 => by!(u32, u32::wrapping_add, u32::wrapping_mul),
        4 => by!(i64, i64::wrapping_add, i64::wrapping_mul),
        5 => by!(u64, u64::wrapping_add, u64::wrapping_mul),
        6 => by!(f16, |a, b| a + b, |a, b| a * b),
        7 => by!(f32, |a, b| a + b, |a, b| a * b),
        8 => by!(f64, |a, b| a + b, |a, b| a * b),
        _ => by!(bf16, |a, b| a + b, |a, b| a * b),
    }
}
