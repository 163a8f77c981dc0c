//! The messages of members on the side channel, and their encoding.
//!
//! A message is its length in four bytes, a tag, and its fields, little-endian. It never contains
//! data of a tensor. Messages of peers may be malformed: each length is checked before memory is
//! allocated for it.

/// The id of a group, the same on all its members.
pub(crate) type GroupId = u64;

/// The most bytes of a message.
pub(crate) const BYTES_MAX: usize = 64 << 10;
/// The most bytes of a text in a message.
const TEXT_MAX: usize = 512;
/// The most bytes of an engine's words.
const WORDS_MAX: usize = 1024;

/// Calls that must match: those of all members, or a send and its receive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Lane {
    All,
    Send(usize),
    Recv(usize),
}

/// The number of calls that a member has made in a group: of all members, sends to the reader,
/// receives from the reader.
pub(crate) type Counts = [u64; 3];

/// Why a group is unusable.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Fault {
    pub kind: FaultKind,
    /// The member at fault, by its rank in the world.
    pub rank: Option<usize>,
    pub text: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FaultKind {
    /// The member is lost, or missed a deadline.
    Lost,
    /// Calls of the members differ.
    Calls,
    /// The operand of a member has failed.
    Operand,
    /// The engine failed.
    Engine,
}

#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Message {
    /// A sign of life, with the number of calls made.
    Beat {
        calls: Vec<(GroupId, Counts)>,
    },
    /// From rank 0 once all have connected to it: the address of each.
    Roster {
        addresses: Vec<String>,
    },
    /// A call as text, if calls are compared. `lane` is 0 for all, 1 for a send, 2 for a
    /// receive.
    Called {
        group: GroupId,
        lane: u8,
        seq: u64,
        text: String,
    },
    Broke {
        group: GroupId,
        fault: Fault,
    },
    /// The sender has given this member up: its link has ended, or it was silent.
    Lost {
        rank: usize,
        ended: bool,
        text: String,
    },
    Split {
        group: GroupId,
        seq: u64,
        color: u64,
    },
    /// The sender wants to continue without these members, which have ended or were silent; and the
    /// new members, if it knows that they are settled.
    Shrink {
        group: GroupId,
        lost: Vec<(usize, bool)>,
        settled: Option<Vec<usize>>,
    },
    /// The sender makes no more calls in this group, after this number.
    LetGo {
        group: GroupId,
        calls: Counts,
    },
    /// Words of the sender's engine to the others' engines: where and how they meet.
    Words {
        group: GroupId,
        words: Vec<u8>,
    },
    /// The sender leaves in order, after this number of calls.
    Bye {
        calls: Vec<(GroupId, Counts)>,
    },
}

impl Message {
    /// Encodes the message, preceded by its length.
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer(vec![0; 4]);
        match self {
            Message::Beat { calls } => w.u8(0).calls(calls),
            Message::Roster { addresses } => {
                w.u8(1).u32(addresses.len());
                addresses.iter().fold(&mut w, |w, a| w.text(a))
            }
            Message::Called { group, lane, seq, text } => {
                w.u8(2).u64(*group).u8(*lane).u64(*seq).text(text)
            }
            Message::Broke { group, fault } => {
                let rank = fault.rank.map_or(u32::MAX as usize, |r| r);
                w.u8(3).u64(*group).u8(fault.kind as u8).u32(rank).text(&fault.text)
            }
            Message::Lost { rank, ended, text } => w.u8(4).u32(*rank).u8(*ended as u8).text(text),
            Message::Split { group, seq, color } => w.u8(5).u64(*group).u64(*seq).u64(*color),
            Message::Shrink { group, lost, settled } => {
                w.u8(6).u64(*group).u32(lost.len());
                lost.iter().fold(&mut w, |w, (rank, ended)| w.u32(*rank).u8(*ended as u8));
                w.u8(settled.is_some() as u8);
                w.ranks(settled.as_deref().unwrap_or(&[]))
            }
            Message::Bye { calls } => w.u8(7).calls(calls),
            Message::LetGo { group, calls } => {
                calls.iter().fold(w.u8(8).u64(*group), |w, &n| w.u64(n))
            }
            Message::Words { group, words } => w.u8(9).u64(*group).words(words),
        };
        let length = (w.0.len() - 4) as u32;
        w.0[..4].copy_from_slice(&length.to_le_bytes());
        w.0
    }

    /// Decodes a message without its length; `None` if it is invalid.
    pub fn decode(bytes: &[u8]) -> Option<Message> {
        let mut r = Reader(bytes);
        let message = match r.u8()? {
            0 => Message::Beat { calls: r.calls()? },
            1 => {
                let n = r.count(4)?;
                Message::Roster { addresses: (0..n).map(|_| r.text()).collect::<Option<_>>()? }
            }
            2 => Message::Called { group: r.u64()?, lane: r.u8()?, seq: r.u64()?, text: r.text()? },
            3 => {
                let group = r.u64()?;
                let kind = match r.u8()? {
                    0 => FaultKind::Lost,
                    1 => FaultKind::Calls,
                    2 => FaultKind::Operand,
                    3 => FaultKind::Engine,
                    _ => return None,
                };
                let rank = r.u32()?;
                let rank = (rank != u32::MAX as usize).then_some(rank);
                Message::Broke { group, fault: Fault { kind, rank, text: r.text()? } }
            }
            4 => Message::Lost { rank: r.u32()?, ended: r.u8()? == 1, text: r.text()? },
            5 => Message::Split { group: r.u64()?, seq: r.u64()?, color: r.u64()? },
            6 => {
                let (group, n) = (r.u64()?, r.count(5)?);
                let lost = (0..n).map(|_| Some((r.u32()?, r.u8()? == 1))).collect::<Option<_>>()?;
                let some = r.u8()?;
                let settled = r.ranks()?;
                Message::Shrink { group, lost, settled: (some == 1).then_some(settled) }
            }
            7 => Message::Bye { calls: r.calls()? },
            8 => Message::LetGo { group: r.u64()?, calls: r.counts()? },
            9 => Message::Words { group: r.u64()?, words: r.words()? },
            _ => return None,
        };
        r.0.is_empty().then_some(message)
    }

    /// Takes the complete messages off the front of `bytes`; false if one is invalid.
    pub fn take_whole(bytes: &mut Vec<u8>, mut hear: impl FnMut(Message)) -> bool {
        let mut at = 0;
        while let Some(head) = bytes.get(at..at + 4) {
            let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
            if length > BYTES_MAX {
                return false;
            }
            let Some(body) = bytes.get(at + 4..at + 4 + length) else { break };
            let Some(message) = Message::decode(body) else { return false };
            hear(message);
            at += 4 + length;
        }
        bytes.drain(..at);
        true
    }
}

/// The part of a text that is sent: its beginning.
pub(crate) fn clipped(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|&i| text.is_char_boundary(i)).unwrap_or(0);
    &text[..end]
}

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, x: u8) -> &mut Writer {
        self.0.push(x);
        self
    }
    fn u32(&mut self, x: usize) -> &mut Writer {
        self.0.extend((x as u32).to_le_bytes());
        self
    }
    fn u64(&mut self, x: u64) -> &mut Writer {
        self.0.extend(x.to_le_bytes());
        self
    }
    fn text(&mut self, text: &str) -> &mut Writer {
        let text = clipped(text);
        self.u32(text.len()).0.extend(text.as_bytes());
        self
    }
    fn words(&mut self, words: &[u8]) -> &mut Writer {
        self.u32(words.len()).0.extend(words);
        self
    }
    fn ranks(&mut self, ranks: &[usize]) -> &mut Writer {
        ranks.iter().fold(self.u32(ranks.len()), |w, &r| w.u32(r))
    }
    fn calls(&mut self, calls: &[(GroupId, Counts)]) -> &mut Writer {
        let each = |w, (group, counts): &(GroupId, Counts)| {
            counts.iter().fold(Writer::u64(w, *group), |w, &n| w.u64(n))
        };
        calls.iter().fold(self.u32(calls.len()), each)
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }
    fn u8(&mut self) -> Option<u8> {
        self.take(1).map(|b| b[0])
    }
    fn u32(&mut self) -> Option<usize> {
        self.take(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize)
    }
    fn u64(&mut self) -> Option<u64> {
        self.take(8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes)
    }
    /// Reads a count of items, of at least `each` bytes each.
    fn count(&mut self, each: usize) -> Option<usize> {
        self.u32().filter(|n| n.saturating_mul(each) <= self.0.len())
    }
    fn text(&mut self) -> Option<String> {
        let n = self.u32().filter(|&n| n <= TEXT_MAX)?;
        String::from_utf8(self.take(n)?.to_vec()).ok()
    }
    fn words(&mut self) -> Option<Vec<u8>> {
        let n = self.u32().filter(|&n| n <= WORDS_MAX)?;
        self.take(n).map(<[u8]>::to_vec)
    }
    fn ranks(&mut self) -> Option<Vec<usize>> {
        let n = self.count(4)?;
        (0..n).map(|_| self.u32()).collect()
    }
    fn calls(&mut self) -> Option<Vec<(GroupId, Counts)>> {
        let n = self.count(32)?;
        (0..n).map(|_| Some((self.u64()?, self.counts()?))).collect()
    }
    fn counts(&mut self) -> Option<Counts> {
        Some([self.u64()?, self.u64()?, self.u64()?])
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    fn some() -> Vec<Message> {
        let fault =
            Fault { kind: FaultKind::Operand, rank: Some(3), text: "é was too much".into() };
        vec![
            Message::Beat { calls: vec![(7, [1, 2, 3]), (u64::MAX, [0; 3])] },
            Message::Roster { addresses: vec!["127.0.0.1:4".into(), String::new()] },
            Message::Called { group: 1, lane: 2, seq: 9, text: "sum of float32 [4]".into() },
            Message::Broke { group: 2, fault: Fault { rank: None, ..fault.clone() } },
            Message::Broke { group: 2, fault },
            Message::Lost { rank: 5, ended: true, text: "gone".into() },
            Message::Split { group: 1, seq: 2, color: 3 },
            Message::Shrink { group: 1, lost: vec![(1, true), (2, false)], settled: None },
            Message::Shrink { group: 1, lost: vec![], settled: Some(vec![0]) },
            Message::Bye { calls: vec![] },
            Message::LetGo { group: 4, calls: [5, 6, 7] },
            Message::Words { group: 5, words: vec![0, 255] },
        ]
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        for message in some() {
            let bytes = message.encode();
            assert_eq!(
                u32::from_le_bytes(bytes[..4].try_into().unwrap()) as usize,
                bytes.len() - 4
            );
            assert_eq!(Message::decode(&bytes[4..]), Some(message));
        }
    }

    #[test]
    fn what_is_cut_off_or_goes_on_is_no_message_and_no_bytes_at_all_make_it_panic() {
        for message in some() {
            let bytes = message.encode();
            for end in 4..bytes.len() {
                assert_eq!(Message::decode(&bytes[4..end]), None, "{message:?} of {end} bytes");
            }
            assert_eq!(Message::decode(&[&bytes[4..], &[0]].concat()), None);
            for at in 4..bytes.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut wrong = bytes.clone();
                    wrong[at] = value;
                    let _ = Message::decode(&wrong[4..]);
                }
            }
        }
    }

    #[test]
    fn a_long_text_is_cut_between_two_characters() {
        let text = "é".repeat(TEXT_MAX);
        let bytes = Message::Lost { rank: 1, ended: false, text }.encode();
        let Some(Message::Lost { text, .. }) = Message::decode(&bytes[4..]) else {
            panic!("no message")
        };
        assert_eq!(text.len(), TEXT_MAX);
    }
}
