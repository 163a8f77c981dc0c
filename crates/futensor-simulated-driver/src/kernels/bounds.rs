//! A kernel's launch bounds, as its source has them: how many threads a block may have, and how
//! many registers that leaves to each.

/// Registers of a multiprocessor, and the most of a thread (CUDA C++ Programming Guide, "Compute
/// Capabilities").
const REGISTERS: u32 = 65_536;
const OF_A_THREAD: u32 = 255;
const THREADS_MAX: u32 = 1024;

/// Of one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// The most threads of a block.
    pub threads: u32,
    /// The most registers of a thread.
    pub registers: u32,
}

impl Bounds {
    /// Those of the kernel `name`: what stands in numbers before its name, else what the hardware
    /// allows.
    pub fn of(source: &str, name: &str) -> Bounds {
        let before = source.match_indices(name).find_map(|(at, _)| {
            let behind = source[at + name.len()..].trim_start();
            let before = source[..at].trim_end().strip_suffix(')')?;
            let (_, numbers) = before.rsplit_once("__launch_bounds__(")?;
            behind.starts_with('(').then_some(numbers)
        });
        let mut numbers = before.into_iter().flat_map(|text| text.split(','));
        let mut number = |otherwise| {
            let text = numbers.next().unwrap_or_default();
            text.trim().parse().ok().filter(|&n: &u32| n > 0).unwrap_or(otherwise)
        };
        let threads = number(THREADS_MAX).min(THREADS_MAX);
        // Registers are given to warps, eight of each thread at a time.
        let registers = REGISTERS / (threads.next_multiple_of(32) * number(1));
        Bounds { threads, registers: (registers / 8 * 8).min(OF_A_THREAD) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_those_before_the_name() {
        let source = "extern \"C\" __global__ void __launch_bounds__(256, 2) first(int n) {}\n\
            extern \"C\" __global__ void second(int n) { first (n); }\n\
            extern \"C\" __global__ void __launch_bounds__(128) third(int n) {}";
        let of = |name| {
            let Bounds { threads, registers } = Bounds::of(source, name);
            (threads, registers)
        };
        assert_eq!([of("first"), of("second"), of("third")], [(256, 128), (1024, 64), (128, 255)]);
    }
}
