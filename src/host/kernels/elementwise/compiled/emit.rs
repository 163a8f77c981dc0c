//! From the operations of a group to machine instructions: which registers hold what.
//!
//! A loop goes over a register's worth of positions at a time. A value stays in a register from its
//! operation to its last reader; what is read from memory does so as well, unless registers run
//! out: then it is read again. Called by `compiled`.

use super::super::forms::AHEAD;
use super::assembler::{
    ADDRESSES, ALL, Address, Assembler, Last, Mask, Opcode, PASSING, Vector, Width, opcode,
};
use super::group::{From, Held, How, Key, Operation};
use smallvec::SmallVec;

const LOAD: Opcode = opcode(1, 0, 0x10);
const STORE: Opcode = opcode(1, 0, 0x11);
const STORE_AROUND: Opcode = opcode(1, 0, 0x2b);
const BROADCAST: Opcode = opcode(2, 1, 0x18);
const COMPARE: Opcode = opcode(1, 0, 0xc2);
const ROUND: Opcode = opcode(3, 1, 0x08);
const SQRT: Opcode = opcode(1, 0, 0x51);
/// Bytes, and words of 16 bits, to words of 32 bits.
const WIDEN_BYTES: Opcode = opcode(2, 1, 0x31);
const WIDEN_WORDS: Opcode = opcode(2, 1, 0x33);
const WIDEN_F16: Opcode = opcode(2, 1, 0x13);
/// The operand that is written comes last.
const NARROW_F16: Opcode = opcode(3, 1, 0x1d);
/// Of words of 32 bits; the first operand says which way, the second is written.
const SHIFT: Opcode = opcode(1, 1, 0x72);
const LEFT: u8 = 6;
const RIGHT: u8 = 2;
/// Of a register of 32 bytes; the operand that is written comes last.
const UPPER_HALF: Opcode = opcode(3, 1, 0x39);
const ABS_BYTES: Opcode = opcode(2, 1, 0x1c);

/// What a register holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Holds {
    Nothing,
    What(From),
}

/// The functions' state as it is written.
struct Emitter<'a> {
    asm: Assembler,
    key: &'a Key,
    /// What each vector register holds, and each mask register.
    vectors: [Holds; 32],
    masks: [Holds; 8],
    /// The last operation that reads each value and each place.
    last_value: SmallVec<[usize; 16]>,
    last_place: SmallVec<[usize; 16]>,
    /// Where each place's address is, if it stays in a register.
    addresses: SmallVec<[Option<Address>; 16]>,
    /// Registers that the present operation has taken.
    used: u32,
    /// Something is written around the caches, so what is read is asked for early.
    is_streamed: bool,
    /// The first registers hold numbers for the whole loop.
    kept: usize,
}

/// The instructions of a group, and the positions that a turn of their loop takes; `None` where the
/// values do not fit into the registers.
pub(super) fn emit(key: &Key, is_wide: bool) -> Option<(Vec<u8>, usize)> {
    let (values, places) = (key.operations.len(), key.places.len());
    let mut emitter = Emitter {
        asm: Assembler { is_wide, bytes: Vec::new() },
        key,
        vectors: [Holds::Nothing; 32],
        masks: [Holds::Nothing; 8],
        last_value: SmallVec::from_elem(0, values),
        last_place: SmallVec::from_elem(0, places),
        addresses: SmallVec::from_elem(None, places),
        used: 0,
        is_streamed: key.places.contains(&Held::Streamed),
        kept: 0,
    };
    for (i, operation) in key.operations.iter().enumerate() {
        for from in operation.operands() {
            match from {
                From::Value(v) => emitter.last_value[v as usize] = i,
                From::Place(k) => emitter.last_place[k as usize] = i,
            }
        }
    }
    emitter.prologue();
    let begin = emitter.asm.begin();
    for (i, operation) in key.operations.iter().enumerate() {
        emitter.operation(i, operation)?;
    }
    emitter.asm.end(begin);
    let lanes = emitter.asm.lanes();
    Some((emitter.asm.bytes, lanes))
}

impl Emitter<'_> {
    /// Vector registers: the last two are for passing things.
    fn count(&self) -> usize {
        if self.asm.is_wide { 30 } else { 14 }
    }

    fn passing(&self) -> Vector {
        self.count() as Vector
    }

    /// Numbers that are the same everywhere stay in registers, in up to half of them; so do
    /// addresses of rows.
    fn prologue(&mut self) {
        let mut free = ADDRESSES.into_iter();
        for k in 0..self.key.places.len() {
            match self.key.places[k] {
                Held::One if self.kept < self.count() / 2 => {
                    self.asm.address(PASSING, k);
                    let (to, from) = (self.kept as Vector, Last::One(PASSING));
                    self.asm.moved(BROADCAST, Width::Whole, to, from);
                    self.vectors[self.kept] = Holds::What(From::Place(k as u8));
                    self.last_place[k] = usize::MAX;
                    self.kept += 1;
                }
                Held::One => {}
                _ => {
                    self.addresses[k] = free.next();
                    if let Some(address) = self.addresses[k] {
                        self.asm.address(address, k);
                    }
                }
            }
        }
    }

    /// The address of a place, in a register.
    fn address(&mut self, k: usize) -> Address {
        self.addresses[k].unwrap_or_else(|| {
            self.asm.address(PASSING, k);
            PASSING
        })
    }

    fn is_mask(&self, what: From) -> bool {
        self.asm.is_wide && self.is_truth(what)
    }

    fn is_truth(&self, what: From) -> bool {
        match what {
            From::Value(v) => self.key.operations[v as usize].how.is_truth(),
            From::Place(k) => self.key.places[k as usize] == Held::Truths,
        }
    }

    /// A free register for something. Where all are taken, something gives way that is in memory
    /// too.
    fn take(&mut self, what: From) -> Option<Vector> {
        // Mask register 0 means "no mask", and the last vector register passes things.
        let (count, is_mask) = (self.count(), self.is_mask(what));
        let (registers, first, used) = match is_mask {
            true => (&mut self.masks[..], 1, 0),
            false => (&mut self.vectors[..count], 0, self.used),
        };
        let is_unused = |at: &usize| used >> at & 1 == 0;
        let free =
            (first..registers.len()).filter(is_unused).find(|&at| registers[at] == Holds::Nothing);
        let is_in_memory = |holds| matches!(holds, Holds::What(From::Place(_)));
        let at = match free {
            None if is_mask => return None,
            None => (self.kept..count).filter(is_unused).find(|&at| is_in_memory(registers[at]))?,
            Some(at) => at,
        };
        registers[at] = Holds::What(what);
        if !is_mask {
            self.used |= 1 << at;
        }
        Some(at as Vector)
    }

    /// The register that holds an operand.
    fn operand(&mut self, what: From) -> Option<Vector> {
        let registers = if self.is_mask(what) { &self.masks[..] } else { &self.vectors[..] };
        if let Some(at) = registers.iter().position(|&holds| holds == Holds::What(what)) {
            if !self.is_mask(what) {
                self.used |= 1 << at;
            }
            return Some(at as Vector);
        }
        let From::Place(k) = what else { return None };
        let to = self.take(what)?;
        let address = self.address(k as usize);
        match self.key.places[k as usize] {
            Held::F32 | Held::Streamed => {
                self.asm.moved(LOAD, Width::Whole, to, Last::Row(address, 4));
                if self.is_streamed {
                    self.asm.ask(address, 4, AHEAD as u32);
                }
            }
            Held::F16 => self.asm.moved(WIDEN_F16, Width::Whole, to, Last::Row(address, 2)),
            Held::Bf16 => {
                self.asm.moved(WIDEN_WORDS, Width::Whole, to, Last::Row(address, 2));
                self.asm.vector_by(SHIFT, LEFT, to, Last::Vector(to), 16);
            }
            Held::One => self.asm.moved(BROADCAST, Width::Whole, to, Last::One(address)),
            Held::Truths => {
                let words = if self.asm.is_wide { self.passing() } else { to };
                self.asm.moved(WIDEN_BYTES, Width::Whole, words, Last::Row(address, 1));
                match self.asm.is_wide {
                    // vptestmd: true where not zero.
                    true => self.asm.vector(opcode(2, 1, 0x27), to, words, Last::Vector(words)),
                    false => {
                        let zero = self.passing();
                        self.asm.vector(opcode(1, 1, 0xef), zero, zero, Last::Vector(zero));
                        // vpcmpgtd: truths are 1.
                        self.asm.vector(opcode(1, 1, 0x66), to, to, Last::Vector(zero));
                    }
                }
            }
        }
        Some(to)
    }

    fn operation(&mut self, i: usize, operation: &Operation) -> Option<()> {
        self.used = 0;
        let mut registers = [0; 3];
        for (register, from) in registers.iter_mut().zip(operation.operands()) {
            *register = self.operand(from)?;
        }
        let [a, b, c] = registers;
        let to = self.take(From::Value(i as u8))?;
        let last = Last::Vector(b);
        let wide = self.asm.is_wide;
        match operation.how {
            How::Add => self.asm.vector(opcode(1, 0, 0x58), to, a, last),
            How::Mul => self.asm.vector(opcode(1, 0, 0x59), to, a, last),
            How::Sub => self.asm.vector(opcode(1, 0, 0x5c), to, a, last),
            How::Smaller => self.asm.vector(opcode(1, 0, 0x5d), to, a, last),
            How::Div => self.asm.vector(opcode(1, 0, 0x5e), to, a, last),
            How::Larger => self.asm.vector(opcode(1, 0, 0x5f), to, a, last),
            How::And => self.asm.vector(opcode(1, 0, 0x54), to, a, last),
            How::Xor => self.asm.vector(opcode(1, 0, 0x57), to, a, last),
            How::AddBits => self.asm.vector(opcode(1, 1, 0xfe), to, a, last),
            How::Upper => self.asm.vector_by(SHIFT, RIGHT, to, Last::Vector(a), 16),
            // vmovaps
            How::Same => self.asm.vector(opcode(1, 0, 0x28), to, 0, Last::Vector(a)),
            How::ToF16 => {
                let passing = self.passing();
                self.asm.vector_by(NARROW_F16, a, 0, Last::Vector(passing), 0);
                self.asm.vector(WIDEN_F16, to, 0, Last::Vector(passing));
            }
            How::Sqrt => self.asm.vector(SQRT, to, 0, Last::Vector(a)),
            How::Round(by) => self.asm.vector_by(ROUND, to, 0, Last::Vector(a), by),
            How::Compare(by) => self.asm.vector_by(COMPARE, to, a, last, by),
            How::Both if wide => self.asm.masks(0x41, to, a, b),
            How::Either if wide => self.asm.masks(0x45, to, a, b),
            How::OneOf if wide => self.asm.masks(0x47, to, a, b),
            How::Both => self.asm.vector(opcode(1, 0, 0x54), to, a, last),
            How::Either => self.asm.vector(opcode(1, 0, 0x56), to, a, last),
            How::OneOf => self.asm.vector(opcode(1, 0, 0x57), to, a, last),
            // vblendmps, vblendvps: the last where the mask is set.
            How::Where if wide => self.asm.instruction(
                opcode(2, 1, 0x65),
                Width::Whole,
                [to, c],
                Last::Vector(b),
                Mask(a, false),
                None,
            ),
            How::Where => self.asm.vector_by(opcode(3, 1, 0x4a), to, c, Last::Vector(b), a << 4),
        }
        if let Some(k) = operation.stored {
            self.store(k as usize, to);
        }
        // Values that nobody reads any more make room.
        for at in 0..self.vectors.len() {
            if let Holds::What(what) = self.vectors[at]
                && self.is_over(what, i)
            {
                self.vectors[at] = Holds::Nothing;
            }
        }
        for at in 0..self.masks.len() {
            if let Holds::What(what) = self.masks[at]
                && self.is_over(what, i)
            {
                self.masks[at] = Holds::Nothing;
            }
        }
        Some(())
    }

    fn is_over(&self, what: From, i: usize) -> bool {
        match what {
            From::Value(v) => self.last_value[v as usize] <= i,
            From::Place(k) => self.last_place[k as usize] <= i,
        }
    }

    /// Writes a value to a place.
    fn store(&mut self, k: usize, from: Vector) {
        let (address, passing) = (self.address(k), self.passing());
        let (last, whole, quarter) = (Last::Vector(passing), Width::Whole, Width::Quarter);
        match self.key.places[k] {
            Held::Streamed => self.asm.moved(STORE_AROUND, whole, from, Last::Row(address, 4)),
            Held::F16 => self.asm.vector_by(NARROW_F16, from, 0, Last::Row(address, 2), 0),
            Held::Bf16 => {
                self.asm.vector_by(SHIFT, RIGHT, passing, Last::Vector(from), 16);
                if self.asm.is_wide {
                    // vpmovdw: the lower half of each.
                    self.asm.moved(opcode(2, 2, 0x33), whole, passing, Last::Row(address, 2));
                } else {
                    // vextracti128, vpackusdw
                    let high = passing + 1;
                    self.asm.vector_by(UPPER_HALF, passing, 0, Last::Vector(high), 1);
                    let pack = opcode(2, 1, 0x2b);
                    let high = Last::Vector(high);
                    self.asm.instruction(pack, quarter, [passing, passing], high, ALL, None);
                    self.asm.moved(STORE, quarter, passing, Last::Row(address, 2));
                }
            }
            Held::Truths if self.asm.is_wide => {
                // vpternlogd: all ones; vpabsb: ones where the mask is set, zeros elsewhere.
                let (ones, ternary) = ([passing, passing], opcode(3, 1, 0x25));
                self.asm.instruction(ternary, quarter, ones, last, ALL, Some(0xff));
                let mask = Mask(from, true);
                self.asm.instruction(ABS_BYTES, quarter, [passing, 0], last, mask, None);
                self.asm.moved(STORE, quarter, passing, Last::Row(address, 1));
            }
            Held::Truths => {
                // vextracti128, vpackssdw, vpacksswb, vpabsb: -1 in 32 bits becomes 1 in 8.
                self.asm.vector_by(UPPER_HALF, from, 0, last, 1);
                let (words, bytes) = (opcode(1, 1, 0x6b), opcode(1, 1, 0x63));
                self.asm.instruction(words, quarter, [passing, from], last, ALL, None);
                self.asm.instruction(bytes, quarter, [passing, passing], last, ALL, None);
                self.asm.moved(ABS_BYTES, quarter, passing, last);
                // vmovq
                self.asm.moved(opcode(1, 1, 0xd6), quarter, passing, Last::Row(address, 1));
            }
            Held::F32 | Held::One => self.asm.moved(STORE, whole, from, Last::Row(address, 4)),
        }
    }
}
