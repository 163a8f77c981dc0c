//! What a program computes of one input of 16-bit floats alone: looked up in a table of all of
//! them.
//!
//! A 16-bit type has 65,536 elements, and a function of one costs more than a look into the second
//! cache. (4 Mi of bf16 on two threads of a Zen 4: `exp` 0.94 ms, `gelu` 1.63, `log1p` 2.55, a look
//! 0.45.) So a part of a program that comes from one such input becomes a single step. The loops
//! that the table stands for make it, so the bits are the same. Asked by the executor for large
//! shapes; the tables are the process's.
//!
//! A program is remembered as it is seen for the first time, and gets a table the second time: a
//! number that is another at each call would have a table made in vain.

#![allow(unsafe_code)]

use super::forms::Instances;
use super::run;
use crate::dtype::DType;
use crate::graph::cost::instr_ps;
use crate::graph::program::{Arg, Code, INSTRS_MAX, Instr, Program, Reg};
use crate::host::kernels::load::{Load, Row, over};
use crate::host::kernels::simd::{Body, Level, Loop, Simd, instances};
use crate::op::BinaryOp;
use crate::sync::plain::Mutex;
use crate::sync::{lock_plain, statics};
use crate::view::{View, ViewMut};
use half::{bf16, f16};
use smallvec::SmallVec;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// What a table replaces takes at least so long, by the estimate: a root does not.
const LEAST_PS: u64 = 500;
/// The elements of a 16-bit type.
const ALL: usize = 1 << 16;
/// The programs that are remembered: at most 4 MiB of tables.
const KEPT: usize = 16;

/// The values of a program for all elements of its input, in the order of their bits.
#[derive(Debug)]
pub(super) struct Table(Vec<u32>);

impl Table {
    pub fn ptr(&self) -> *mut u8 {
        self.0.as_ptr().cast_mut().cast()
    }
}

/// A register that is looked up. As the program has it, it is a conversion of an input, or the
/// product of two: then what is looked up for the first is multiplied by the second.
pub(super) type Lookup = (Reg, Arc<Table>);

/// A program with what is looked up in the place of what is computed.
#[derive(Debug)]
pub(super) struct Tabled {
    pub program: Program,
    /// The numbers of the inputs that it still reads.
    pub read: SmallVec<[u8; 4]>,
    pub lookups: SmallVec<[Lookup; 2]>,
}

/// Where the value of a register comes from.
#[derive(Clone, Copy, PartialEq)]
enum From {
    Nothing,
    /// Halves alone, in this register.
    Halves(Reg),
    More,
}

/// The program by tables; `None` where there is none.
pub(super) fn tabled(level: Level, program: &Program, inputs: &[View<'_>]) -> Option<Tabled> {
    if !program.instrs.iter().any(|instr| instr.dtype.is_half()) {
        return None;
    }
    let (mut from, mut parts) = ([From::Nothing; INSTRS_MAX], [0u64; INSTRS_MAX]);
    // Registers that somebody reads beside other things.
    let mut ends = program.outputs.iter().fold(0u64, |ends, &r| ends | 1 << r);
    for (i, instr) in program.instrs.iter().enumerate() {
        parts[i] = instr.code.operands().fold(1 << i, |all, r| all | parts[r as usize]);
        from[i] = match instr.code {
            Code::Input(k) if instr.dtype.is_half() && is_read_once(&inputs[k as usize]) => {
                From::Halves(i as Reg)
            }
            Code::Input(_) | Code::Arange { .. } | Code::Uniform { .. } | Code::Normal { .. } => {
                From::More
            }
            _ => instr.code.operands().map(|r| from[r as usize]).fold(From::Nothing, both),
        };
        if from[i] == From::More {
            ends |= instr.code.operands().fold(0, |all, r| all | 1 << r);
        }
    }
    let mut out = program.clone();
    let mut wanted = program.outputs.clone();
    let mut tables: SmallVec<[Arc<Table>; 2]> = SmallVec::new();
    for (i, instr) in program.instrs.iter().enumerate() {
        let From::Halves(x) = from[i] else { continue };
        let fits = instr.dtype.is_half() || instr.dtype == DType::F32;
        if ends >> i & 1 == 0 || !fits || ps(program, parts[i]) < LEAST_PS {
            continue;
        }
        let Some(table) = table(level, program.only(&[i as Reg]).0) else { continue };
        let on = program.dtype(x);
        let (r, code) = match scaled(program, i as Reg, inputs) {
            Some((r, by)) => (r, Code::Binary(BinaryOp::Mul, Arg::Reg(x), Arg::Reg(by))),
            None => (i as Reg, Code::Cast(Arg::Reg(x))),
        };
        out.instrs[r as usize] = Instr { code, on, dtype: program.dtype(r) };
        wanted.push(r);
        tables.push(table);
    }
    if tables.is_empty() {
        return None;
    }
    let (mut program, read) = out.only(&wanted);
    let at = program.outputs.drain(wanted.len() - tables.len()..).zip(tables).collect();
    Some(Tabled { program, read, lookups: at })
}

/// Where a register is only multiplied by an input of halves, and the product only rounded to its
/// type, as a gradient is: the rounded product, and the input. One loop does that.
fn scaled(program: &Program, of: Reg, inputs: &[View<'_>]) -> Option<(Reg, Reg)> {
    let instr = |r: Reg| &program.instrs[r as usize];
    let only_reader = |r: Reg| {
        let reads = |i: &Reg| instr(*i).code.operands().any(|operand| operand == r);
        let mut readers = (0..program.instrs.len() as Reg).filter(reads);
        readers.next().filter(|_| readers.next().is_none() && !program.outputs.contains(&r))
    };
    let product = only_reader(of)?;
    let Code::Binary(BinaryOp::Mul, Arg::Reg(a), Arg::Reg(b)) = instr(product).code else {
        return None;
    };
    let rounded = only_reader(product)?;
    let to = program.dtype(rounded);
    let Code::Cast(Arg::Reg(by)) = instr(if a == of { b } else { a }).code else { return None };
    let Code::Input(k) = instr(by).code else { return None };
    let fits = a != b
        && program.dtype(of) == DType::F32
        && to.is_half()
        && matches!(instr(rounded).code, Code::Cast(_))
        && program.dtype(by) == to
        && is_read_once(&inputs[k as usize]);
    fits.then_some((rounded, by))
}

/// True where no element is read for several positions: what is broadcast is computed less often.
fn is_read_once(view: &View<'_>) -> bool {
    view.shape.iter().zip(view.strides).all(|(&n, &step)| n == 1 || step != 0)
}

fn both(a: From, b: From) -> From {
    match (a, b) {
        (From::Nothing, other) | (other, From::Nothing) => other,
        (a, b) if a == b => a,
        _ => From::More,
    }
}

/// The estimate for these instructions. An input is read with or without a table.
fn ps(program: &Program, parts: u64) -> u64 {
    let own = program.instrs.iter().enumerate().filter(|(i, _)| parts >> i & 1 != 0);
    let computed = own.filter(|(_, instr)| !matches!(instr.code, Code::Input(_)));
    computed.map(|(_, instr)| instr_ps(instr.code, instr.on, instr.dtype)).sum()
}

/// A program of one input and one output that was seen, and its table, if it was seen again.
struct Seen {
    level: Level,
    program: Program,
    table: Option<Arc<Table>>,
}

// Those that were seen last come last.
statics! { static SEEN: Mutex<Vec<Seen>> = Mutex::new(Vec::new()); }

/// The table of a program that has been seen before.
fn table(level: Level, program: Program) -> Option<Arc<Table>> {
    let mut all = lock_plain(&SEEN);
    let at = all.iter().position(|seen| seen.level == level && seen.program == program);
    let Some(at) = at else {
        if all.len() == KEPT {
            all.remove(0);
        }
        all.push(Seen { level, program, table: None });
        return None;
    };
    let seen = all.remove(at);
    let found = seen.table.clone();
    all.push(seen);
    drop(all);
    if found.is_some() {
        return found;
    }
    let made = Arc::new(made(level, &program)?);
    let mut all = lock_plain(&SEEN);
    let own = all.iter_mut().rev().find(|seen| seen.level == level && seen.program == program);
    if let Some(seen) = own {
        seen.table = Some(made.clone());
    }
    Some(made)
}

/// The table of a program; `None` where there is no memory for it.
fn made(level: Level, program: &Program) -> Option<Table> {
    let [output] = program.outputs[..] else { return None };
    let (on, to) = (program.instrs.iter().find_map(input_type)?, program.dtype(output));
    let (mut halves, mut values) = (Vec::<u16>::new(), Vec::<u32>::new());
    let words = ALL * to.size() / size_of::<u32>();
    if halves.try_reserve_exact(ALL).is_err() || values.try_reserve_exact(words).is_err() {
        return None;
    }
    halves.extend(0..=u16::MAX);
    values.resize(words, 0);
    let shape = [ALL];
    let input = View { ptr: halves.as_ptr().cast(), dtype: on, shape: &shape, strides: &[1] };
    let (ptr, life) = (values.as_mut_ptr().cast(), PhantomData);
    let out = ViewMut { ptr, dtype: to, shape: &shape, life };
    run(level, program, &[], &shape, &[input], &[out], 0..ALL);
    Some(Table(values))
}

fn input_type(instr: &Instr) -> Option<DType> {
    matches!(instr.code, Code::Input(_)).then_some(instr.dtype)
}

/// The loop of a register that is looked up.
pub(super) fn lookup(level: Level, instr: &Instr) -> Loop {
    const SCALED: [Instances; 2] = [instances::<Scaled<f16>>(), instances::<Scaled<bf16>>()];
    match instr.code {
        Code::Binary(..) => SCALED[(instr.dtype == DType::BF16) as usize][level as usize],
        _ if instr.dtype.size() == size_of::<f32>() => look::<u32>,
        _ => look::<u16>,
    }
}

/// Elements that are looked up at once.
const AT_ONCE: usize = 8;

/// So many elements of 16 bits, as they lie in memory: two loads, not eight.
type Places = [u64; AT_ONCE / 4];

/// The bits of element `k`.
#[inline(always)]
fn place(places: Places, k: usize) -> usize {
    (u64::from_le(places[k / 4]) >> (k % 4 * 16)) as u16 as usize
}

/// What a table has.
trait Word: Copy {
    /// Writes the words that the table has at these places.
    ///
    /// # Safety
    /// It has them, and there is room for all.
    unsafe fn put(table: *const Self, places: Places, to: *mut Self);
}

impl Word for u32 {
    #[inline(always)]
    unsafe fn put(table: *const u32, places: Places, to: *mut u32) {
        for k in 0..AT_ONCE {
            // SAFETY: the caller's promise.
            unsafe { to.add(k).write(*table.add(place(places, k))) };
        }
    }
}

impl Word for u16 {
    /// Stores of two bytes each fill the store buffer before two lines are full: of 16 Mi of bf16
    /// one thread took 4.9 ms, and 4.0 so, of f16 7.2 and 6.0.
    #[inline(always)]
    unsafe fn put(table: *const u16, places: Places, to: *mut u16) {
        // SAFETY: the caller's promise; SSE2 is part of x86-64.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            use std::arch::x86_64::*;
            let both = _mm_unpacklo_epi64(four(table, places, 0), four(table, places, 4));
            _mm_storeu_si128(to.cast(), both);
        }
        #[cfg(not(target_arch = "x86_64"))]
        for k in 0..AT_ONCE {
            // SAFETY: the caller's promise.
            unsafe { to.add(k).write(*table.add(place(places, k))) };
        }
    }
}

/// The words at four places, from the `k`-th on.
///
/// # Safety
/// The table has them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn four(table: *const u16, places: Places, k: usize) -> std::arch::x86_64::__m128i {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise; SSE2 is part of x86-64.
    unsafe {
        let x = _mm_cvtsi32_si128(*table.add(place(places, k)) as i32);
        let x = _mm_insert_epi16::<1>(x, *table.add(place(places, k + 1)) as i32);
        let x = _mm_insert_epi16::<2>(x, *table.add(place(places, k + 2)) as i32);
        _mm_insert_epi16::<3>(x, *table.add(place(places, k + 3)) as i32)
    }
}

/// `dst[i] = b[a[i]]`. At every level the same instructions: a processor's own gathers take longer
/// (4 Mi of f32 by AVX-512 1.5 ms, by its compiler's choice 2.2, so 1.1).
///
/// # Safety
/// There are `n` elements each, and in `b` a table of all.
#[inline(never)]
unsafe fn look<T: Word>(dst: *mut u8, a: *const u8, b: *const u8, _: *const u8, n: usize) {
    let (dst, a, table) = (dst.cast::<T>(), a.cast::<u16>(), b.cast::<T>());
    let whole = n - n % AT_ONCE;
    // SAFETY: the caller's promise.
    unsafe {
        for i in (0..whole).step_by(AT_ONCE) {
            T::put(table, a.add(i).cast::<Places>().read_unaligned(), dst.add(i));
        }
        for i in whole..n {
            dst.add(i).write(*table.add(*a.add(i) as usize));
        }
    }
}

/// `dst[i] = b[a[i]] * c[i]` in f32, rounded.
struct Scaled<E>(PhantomData<E>);

/// Elements that are looked up before they are multiplied: so many that a vector of them is not
/// read while they are on their way to the first cache.
const BLOCK: usize = 256;

/// A stretch of products.
struct Products<E> {
    dst: *mut E,
    a: *const f32,
    b: *const E,
}

impl<E: Load<f32>> Row for Products<E> {
    #[inline(always)]
    unsafe fn some<S: Simd, const N: usize>(&self, i: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let mut all = E::load_some::<S, N>(self.b.add(i));
            for k in 0..N {
                all[k] *= *self.a.add(i + k);
            }
            E::store_some::<S, N>(all, self.dst.add(i));
        }
    }
}

impl<E: Load<f32>> Body for Scaled<E> {
    #[inline(always)]
    unsafe fn run<S: Simd>(dst: *mut u8, a: *const u8, b: *const u8, c: *const u8, n: usize) {
        let (dst, c) = (dst.cast::<E>(), c.cast::<E>());
        let mut room = [MaybeUninit::<f32>::uninit(); BLOCK];
        let block = room.as_mut_ptr();
        for from in (0..n).step_by(BLOCK) {
            let n = BLOCK.min(n - from);
            // SAFETY: the planner passes places of n elements, and a table of all; the block is
            // written before it is read.
            unsafe {
                look::<u32>(block.cast(), a.add(2 * from), b, std::ptr::null(), n);
                let (dst, b) = (dst.add(from), c.add(from));
                over::<E, f32, S>(n, Products { dst, a: block.cast::<f32>(), b });
            }
        }
    }
}
