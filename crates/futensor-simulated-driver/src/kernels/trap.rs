//! Turns a processor fault inside a kernel into a fault of the simulated device.
//!
//! A kernel that leaves its memory hits a page without access. The signal handler makes the fiber
//! it happened in return with an error instead of letting the process die. Faults anywhere else go
//! to whoever had the signal before. The only thing this knows of kernels is that they run in
//! fibers.

use crate::status::{
    ILLEGAL_ADDRESS, ILLEGAL_INSTRUCTION, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS, Status,
};
use corosensei::trap::CoroutineTrapHandler;
use std::cell::Cell;
use std::sync::Once;

/// What a fiber ends with when a fault ended it.
#[derive(Clone, Copy, Debug)]
pub struct Trap {
    /// The device's error.
    pub status: Status,
    /// The address, or the instruction, or 0.
    pub address: usize,
    /// What it was.
    pub what: &'static str,
}

/// What a fiber ends with.
pub type Ending = Result<(), Trap>;

thread_local! {
    /// The fiber that runs on this thread.
    static FIBER: Cell<Option<CoroutineTrapHandler<Ending>>> = const { Cell::new(None) };
    /// True on a thread that runs fibers.
    static FIBER_SEEN: Cell<bool> = const { Cell::new(false) };
}

/// SIGXCPU is the limit's (`limit.rs`).
const SIGNALS: [i32; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGXCPU];

static mut BEFORE: [Option<libc::sigaction>; 5] = [None; 5];

/// Names the fiber that is about to run on this thread, or none.
pub fn watch(fiber: Option<CoroutineTrapHandler<Ending>>) {
    FIBER.set(fiber);
}

/// Room for the handler.
const STACK_BYTES: usize = 64 << 10;

/// Gives this thread a stack for the handler, as a fiber whose own has run out has none left.
fn own_stack() {
    thread_local!(static DONE: Cell<bool> = const { Cell::new(false) });
    if DONE.replace(true) {
        return;
    }
    let stack = Vec::leak(vec![0u8; STACK_BYTES]);
    let stack =
        libc::stack_t { ss_sp: stack.as_mut_ptr().cast(), ss_flags: 0, ss_size: STACK_BYTES };
    // SAFETY: the memory is leaked, so it is there for as long as the thread, the only one it is
    // given to.
    unsafe { libc::sigaltstack(&stack, std::ptr::null_mut()) };
}

/// Installs the handler, once for the process.
pub fn install() {
    own_stack();
    FIBER_SEEN.set(true);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for (i, &signal) in SIGNALS.iter().enumerate() {
            // SAFETY: `BEFORE` is written here only, under `Once`, before the handler that reads it
            // is there; `on_signal` has the type that SA_SIGINFO asks for.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_signal as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                let mut before: libc::sigaction = std::mem::zeroed();
                if libc::sigaction(signal, &action, &mut before) == 0 {
                    BEFORE[i] = Some(before);
                }
            }
        }
    });
}

extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if let Some(fiber) = FIBER.get()
        && redirect(fiber, signal, info, context)
    {
        return;
    }
    if signal == libc::SIGXCPU && FIBER_SEEN.get() {
        return; // The kernel has just ended, or is between two threads; the limit asks again.
    }
    // SAFETY: `BEFORE` does not change after `install`. The earlier action gets the signal as it
    // expects it, or is put back, so that returning repeats the fault under it.
    unsafe {
        let index = SIGNALS.iter().position(|&s| s == signal).unwrap_or(0);
        let before = (&raw const BEFORE).read()[index];
        match before {
            Some(action)
                if action.sa_sigaction == libc::SIG_DFL || action.sa_sigaction == libc::SIG_IGN =>
            {
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
            Some(action) if action.sa_flags & libc::SA_SIGINFO != 0 => {
                type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
                let earlier: Handler = std::mem::transmute::<usize, Handler>(action.sa_sigaction);
                earlier(signal, info, context);
            }
            _ => {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn redirect(
    fiber: CoroutineTrapHandler<Ending>,
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) -> bool {
    // SAFETY: the kernel hands a SA_SIGINFO handler valid pointers of these types.
    let (machine, address) = unsafe {
        (&mut (*context.cast::<libc::ucontext_t>()).uc_mcontext, (*info).si_addr() as usize)
    };
    let stack = machine.gregs[libc::REG_RSP as usize] as usize;
    if !fiber.stack_ptr_in_bounds(stack) {
        return false;
    }
    let trap = match signal {
        libc::SIGFPE => {
            Trap { status: ILLEGAL_INSTRUCTION, address, what: "integer division by zero at" }
        }
        libc::SIGXCPU => {
            let address = machine.gregs[libc::REG_RIP as usize] as usize;
            Trap {
                status: LAUNCH_TIMEOUT,
                address,
                what: "the limit of processor time is reached at",
            }
        }
        // What the compiler puts where an address is not aligned as its type has to be.
        libc::SIGILL => Trap { status: MISALIGNED_ADDRESS, address, what: "misaligned access at" },
        _ => Trap { status: ILLEGAL_ADDRESS, address, what: "illegal access to" },
    };
    // SAFETY: the fiber is the one that runs on this thread (`watch` names it for just that long),
    // its stack pointer was inside it, and the registers are set as told. What the kernel had on
    // its stack is C++ data without destructors, and the Rust frames below it hold nothing to drop.
    let registers = unsafe { fiber.setup_trap_handler(move || Err(trap)) };
    machine.gregs[libc::REG_RIP as usize] = registers.rip as i64;
    machine.gregs[libc::REG_RSP as usize] = registers.rsp as i64;
    machine.gregs[libc::REG_RBP as usize] = registers.rbp as i64;
    machine.gregs[libc::REG_RDI as usize] = registers.rdi as i64;
    machine.gregs[libc::REG_RSI as usize] = registers.rsi as i64;
    true
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn redirect(
    _: CoroutineTrapHandler<Ending>,
    _: i32,
    _: *mut libc::siginfo_t,
    _: *mut libc::c_void,
) -> bool {
    false
}
