//! The machine instructions of vectors of f32 that compiled programs are made of, as bytes.
//!
//! The encodings are those of the Intel 64 and IA-32 Architectures Software Developer's Manual,
//! volume 2, sections 2.3 (VEX: registers of 32 bytes) and 2.7 (EVEX: of 64 bytes). Called by
//! `emit`; knows no programs. (The crate `dynasm` has no AVX-512, and Cranelift no vectors of more
//! than 16 bytes. `iced-x86` encodes every instruction that there is; here are some forty.)

/// A vector register, or a mask register where an instruction takes one.
pub(super) type Vector = u8;

/// A register that holds an address.
pub(super) type Address = u8;

/// Registers for addresses: those that a function need not restore, but for those with another use.
pub(super) const ADDRESSES: [Address; 5] = [2, 8, 9, 10, 11];
/// The register for an address that is used once.
pub(super) const PASSING: Address = 0;

/// The last operand of an instruction.
#[derive(Clone, Copy)]
pub(super) enum Last {
    Vector(Vector),
    /// Elements of so many bytes, from the position on.
    Row(Address, u8),
    /// One element.
    One(Address),
}

/// A group of opcodes, and the prefix that the manual names before it.
#[derive(Clone, Copy)]
pub(super) struct Opcode {
    pub map: u8,
    pub prefix: u8,
    pub code: u8,
}

pub(super) const fn opcode(map: u8, prefix: u8, code: u8) -> Opcode {
    Opcode { map, prefix, code }
}

/// How much of a register an instruction takes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Width {
    Whole,
    /// 16 bytes.
    Quarter,
}

/// An instruction's mask of lanes, and whether other lanes become zero.
#[derive(Clone, Copy)]
pub(super) struct Mask(pub Vector, pub bool);

pub(super) const ALL: Mask = Mask(0, false);

/// The instructions so far.
pub(super) struct Assembler {
    /// Registers of 64 bytes, or of 32.
    pub is_wide: bool,
    pub bytes: Vec<u8>,
}

/// Where a loop begins.
pub(super) struct Begin(usize);

impl Assembler {
    /// Elements of f32 in a register.
    pub fn lanes(&self) -> usize {
        if self.is_wide { 16 } else { 8 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// `first = op(second, last)` on whole registers.
    pub fn vector(&mut self, op: Opcode, first: Vector, second: Vector, last: Last) {
        self.instruction(op, Width::Whole, [first, second], last, ALL, None);
    }

    /// The same with a number in the instruction.
    pub fn vector_by(&mut self, op: Opcode, first: Vector, second: Vector, last: Last, by: u8) {
        self.instruction(op, Width::Whole, [first, second], last, ALL, Some(by));
    }

    /// `first = op(last)`: a load, or where the opcode is one, a store of `first`.
    pub fn moved(&mut self, op: Opcode, width: Width, first: Vector, last: Last) {
        self.instruction(op, width, [first, 0], last, ALL, None);
    }

    /// Any instruction. `mask` is for wide registers alone.
    pub fn instruction(
        &mut self,
        op: Opcode,
        width: Width,
        [first, second]: [Vector; 2],
        last: Last,
        mask: Mask,
        by: Option<u8>,
    ) {
        let bit = |register: u8, bit: u8| register >> bit & 1;
        // Both prefixes have most bits inverted.
        let not = |bit: u8| bit ^ 1;
        let (low, high) = match last {
            Last::Vector(v) => (bit(v, 3), bit(v, 4)),
            Last::Row(address, _) | Last::One(address) => (bit(address, 3), 0),
        };
        let whole = width == Width::Whole;
        if self.is_wide {
            self.put(&[
                0x62,
                not(bit(first, 3)) << 7
                    | not(high) << 6
                    | not(low) << 5
                    | not(bit(first, 4)) << 4
                    | op.map,
                (!second & 15) << 3 | 1 << 2 | op.prefix,
                (mask.1 as u8) << 7
                    | (if whole { 2 } else { 0 }) << 5
                    | not(bit(second, 4)) << 3
                    | mask.0,
            ]);
        } else {
            debug_assert!(mask.0 == 0 && first < 16 && second < 16);
            self.put(&[
                0xc4,
                not(bit(first, 3)) << 7 | 1 << 6 | not(low) << 5 | op.map,
                (!second & 15) << 3 | (whole as u8) << 2 | op.prefix,
            ]);
        }
        self.put(&[op.code]);
        self.last(first, last);
        if let Some(by) = by {
            self.put(&[by]);
        }
    }

    /// The operands of an instruction, after its opcode.
    fn last(&mut self, first: u8, last: Last) {
        let first = (first & 7) << 3;
        match last {
            Last::Vector(v) => self.put(&[0xc0 | first | v & 7]),
            // `[address + rcx * size]`.
            Last::Row(address, size) => {
                self.put(&[first | 4, (size.trailing_zeros() as u8) << 6 | 1 << 3 | address & 7]);
            }
            Last::One(address) => self.put(&[first | address & 7]),
        }
    }

    /// An op of masks in VEX, `first = op(second, last)`.
    pub fn masks(&mut self, code: u8, first: Vector, second: Vector, last: Vector) {
        self.put(&[0xc5, 0x80 | (!second & 15) << 3 | 1 << 2, code, 0xc0 | first << 3 | last]);
    }

    /// Loads the address of place `k`: the function is given an array of addresses.
    pub fn address(&mut self, to: Address, k: usize) {
        // `mov to, [rdi + 8 k]`.
        self.put(&[0x48 | to >> 3 << 2, 0x8b, 0x80 | (to & 7) << 3 | 7]);
        self.put(&(8 * k as u32).to_le_bytes());
    }

    /// Asks for a row's line that lies so far ahead, into the second-level cache.
    pub fn ask(&mut self, address: Address, size: u8, ahead: u32) {
        // `prefetcht1 [address + rcx * size + ahead]`.
        self.put(&[0x40 | address >> 3, 0x0f, 0x18, 0x94]);
        self.put(&[(size.trailing_zeros() as u8) << 6 | 1 << 3 | address & 7]);
        self.put(&ahead.to_le_bytes());
    }

    /// The position becomes 0; here the loop begins.
    pub fn begin(&mut self) -> Begin {
        self.put(&[0x31, 0xc9]); // xor ecx, ecx
        while !self.bytes.len().is_multiple_of(32) {
            self.put(&[0x90]);
        }
        Begin(self.bytes.len())
    }

    /// Goes on by a register while the position is below the count; then the function ends.
    pub fn end(&mut self, Begin(begin): Begin) {
        self.put(&[0x48, 0x83, 0xc1, self.lanes() as u8]); // add rcx, lanes
        self.put(&[0x48, 0x39, 0xf1, 0x0f, 0x82]); // cmp rcx, rsi; jb
        let back = begin as i32 - (self.bytes.len() as i32 + 4);
        self.put(&back.to_le_bytes());
        self.put(&[0xc5, 0xf8, 0x77, 0xc3]); // vzeroupper; ret
    }
}
