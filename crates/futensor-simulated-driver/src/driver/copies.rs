//! Copies, fills, stores, and host functions: work on memory that is not a kernel.

use crate::checks::pinned;
use crate::ffi::Handle;
use crate::machine::entry::{call, call_holding};
use crate::machine::sim::Sim;
use crate::machine::work::{Source, Work, hash};
use crate::memory::{Place, Touch};
use crate::status::{INVALID_HANDLE, INVALID_VALUE, Outcome, Status};

impl Sim {
    /// The touch of host memory, where it is memory that the driver knows (pinned or registered).
    fn host_touch(
        &mut self,
        what: &str,
        address: usize,
        len: usize,
        write: bool,
    ) -> Outcome<Option<Touch>> {
        match self.memory.find(address) {
            None => Ok(None),
            Some(allocation) if matches!(allocation.place, Place::Device(_)) => Err(INVALID_VALUE),
            Some(_) => self.touch(what, address, len, write).map(Some),
        }
    }

    fn captures(&self, stream: u64) -> bool {
        self.streams.get(&stream).is_some_and(|stream| stream.capture.is_some())
    }

    fn device_touch(
        &mut self,
        what: &str,
        address: usize,
        len: usize,
        write: bool,
    ) -> Outcome<Touch> {
        let touch = self.touch(what, address, len, write)?;
        match self.memory.at(touch.base) {
            Some(allocation) if matches!(allocation.place, Place::Device(_)) => Ok(touch),
            _ => Err(INVALID_VALUE),
        }
    }

    fn copy_in(
        &mut self,
        what: &str,
        to: usize,
        from: usize,
        bytes: usize,
        stream: u64,
    ) -> Outcome {
        let mut touches = vec![self.device_touch(what, to, bytes, true)?];
        let source = match self.host_touch(what, from, bytes, false)? {
            Some(touch) => {
                let held = !self.captures(stream) && self.host_only(&touch);
                touches.push(touch);
                if held { Source::Held(from, hash(from, bytes)) } else { Source::At(from) }
            }
            None => {
                // SAFETY: the caller of the C function promises `bytes` readable bytes at `from`;
                // pageable memory is read before the call returns, as the driver does by staging
                // it.
                Source::Staged(
                    unsafe { std::slice::from_raw_parts(from as *const u8, bytes) }.into(),
                )
            }
        };
        self.stats.copies += 1;
        let label = format!("{what} of {bytes} bytes");
        self.submit(stream, label, Work::Copy { to, from: source, bytes }, touches)?;
        Ok(())
    }

    /// Enqueues a copy to the host. True where the caller must wait, because the target is
    /// pageable.
    fn copy_out(
        &mut self,
        what: &str,
        to: usize,
        from: usize,
        bytes: usize,
        stream: u64,
    ) -> Outcome<bool> {
        let mut touches = vec![self.device_touch(what, from, bytes, false)?];
        let known = self.host_touch(what, to, bytes, true)?;
        let pageable = known.is_none();
        if known.as_ref().is_some_and(|touch| self.host_only(touch)) && !self.captures(stream) {
            pinned::spoil(to, bytes);
        }
        touches.extend(known);
        self.stats.copies += 1;
        let label = format!("{what} of {bytes} bytes");
        self.submit(stream, label, Work::Copy { to, from: Source::At(from), bytes }, touches)?;
        Ok(pageable)
    }

    fn between(
        &mut self,
        what: &str,
        to: usize,
        from: usize,
        bytes: usize,
        stream: u64,
    ) -> Outcome {
        let touches = vec![
            self.device_touch(what, to, bytes, true)?,
            self.device_touch(what, from, bytes, false)?,
        ];
        self.stats.copies += 1;
        let label = format!("{what} of {bytes} bytes");
        self.submit(stream, label, Work::Copy { to, from: Source::At(from), bytes }, touches)?;
        Ok(())
    }

    fn fill(&mut self, to: usize, width: usize, value: u32, count: usize, stream: u64) -> Outcome {
        if !to.is_multiple_of(width) {
            return Err(INVALID_VALUE);
        }
        let touch = self.device_touch("cuMemset", to, width * count, true)?;
        self.stats.fills += 1;
        self.submit(
            stream,
            "cuMemset".into(),
            Work::Fill { to, width, value, count },
            vec![touch],
        )?;
        Ok(())
    }
}

/// `cuMemcpyHtoDAsync_v2`: pageable memory is read before the call returns, pinned memory when the
/// copy runs.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: Handle,
    from: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        sim.copy_in("cuMemcpyHtoDAsync", to, from, bytes, stream)
    })
}

/// `cuMemcpyDtoHAsync_v2`: blocks the caller where the target is pageable.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(
    to: Handle,
    from: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    call_holding(|mut sim| {
        let stream = sim.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        let context = sim.streams.get(&stream).map_or(0, |stream| stream.context);
        let capturing = sim.captures(stream);
        let wait = sim.copy_out("cuMemcpyDtoHAsync", to, from, bytes, stream)?;
        if !wait || capturing {
            return Ok(());
        }
        crate::driver::streams::synchronize(
            sim,
            "cuMemcpyDtoHAsync into pageable memory",
            context,
            &[stream],
        )
        .1
    })
}

/// `cuMemcpyDtoDAsync_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    to: Handle,
    from: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        if bytes == 0 {
            return Ok(());
        }
        sim.between("cuMemcpyDtoDAsync", to, from, bytes, stream)
    })
}

/// `cuMemcpyPeerAsync`: works with and without peer access.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: Handle,
    to_context: Handle,
    from: Handle,
    from_context: Handle,
    bytes: usize,
    stream: Handle,
) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        sim.context(to_context)?;
        sim.context(from_context)?;
        if bytes == 0 {
            return Ok(());
        }
        if sim.faults.silent_peers && to_context != from_context {
            return Ok(());
        }
        sim.between("cuMemcpyPeerAsync", to, from, bytes, stream)
    })
}

/// `cuMemcpyAsync`: the kinds of memory are known from the addresses.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(to: Handle, from: Handle, bytes: usize, stream: Handle) -> Status {
    let kind = |address| {
        let mut sim = crate::machine::sim::lock();
        sim.memory
            .find(address)
            .is_some_and(|allocation| matches!(allocation.place, Place::Device(_)))
    };
    match (kind(to), kind(from)) {
        (true, true) => cuMemcpyDtoDAsync_v2(to, from, bytes, stream),
        (true, false) => cuMemcpyHtoDAsync_v2(to, from, bytes, stream),
        (false, true) => cuMemcpyDtoHAsync_v2(to, from, bytes, stream),
        (false, false) => INVALID_VALUE,
    }
}

/// Runs an enqueuing call on the legacy default stream and waits for it.
fn now(what: &'static str, enqueue: impl FnOnce(&mut Sim, u64) -> Outcome) -> Status {
    call_holding(|mut sim| {
        let context = sim.healthy_current()?;
        let stream = sim.stream(0)?;
        enqueue(&mut sim, stream)?;
        crate::driver::streams::synchronize(sim, what, context, &[stream]).1
    })
}

/// `cuMemcpyHtoD_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: Handle, from: Handle, bytes: usize) -> Status {
    now("cuMemcpyHtoD", |sim, stream| sim.copy_in("cuMemcpyHtoD", to, from, bytes, stream))
}

/// `cuMemcpyDtoH_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: Handle, from: Handle, bytes: usize) -> Status {
    now("cuMemcpyDtoH", |sim, stream| {
        sim.copy_out("cuMemcpyDtoH", to, from, bytes, stream).map(drop)
    })
}

/// `cuMemcpyDtoD_v2`: asynchronous to the host, as the driver's.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: Handle, from: Handle, bytes: usize) -> Status {
    cuMemcpyDtoDAsync_v2(to, from, bytes, 0)
}

macro_rules! fills {
    ($($asynchronous:ident, $synchronous:ident, $Value:ty, $width:literal;)*) => {$(
        /// Sets elements, in the order of a stream.
        #[unsafe(no_mangle)]
        pub extern "C" fn $asynchronous(
            to: Handle, value: $Value, count: usize, stream: Handle,
        ) -> Status {
            call(|sim| {
                let stream = sim.stream(stream)?;
                if count == 0 {
                    return Ok(());
                }
                sim.fill(to, $width, u32::from(value), count, stream)
            })
        }
        /// Sets elements, in the order of the legacy default stream; asynchronous to the host.
        #[unsafe(no_mangle)]
        pub extern "C" fn $synchronous(to: Handle, value: $Value, count: usize) -> Status {
            $asynchronous(to, value, count, 0)
        }
    )*};
}
fills! {
    cuMemsetD8Async, cuMemsetD8_v2, u8, 1;
    cuMemsetD16Async, cuMemsetD16_v2, u16, 2;
    cuMemsetD32Async, cuMemsetD32_v2, u32, 4;
}

/// `cuLaunchHostFunc`. Not called once a fault has ended the context.
#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(stream: Handle, function: Handle, data: Handle) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        if function == 0 {
            return Err(INVALID_VALUE);
        }
        sim.stats.host_functions += 1;
        sim.submit(stream, "host function".into(), Work::Host { function, data }, Vec::new())?;
        Ok(())
    })
}

fn store(stream: Handle, to: Handle, value: u64, width: usize) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        if !to.is_multiple_of(width) {
            return Err(INVALID_VALUE);
        }
        let touch = sim.touch("cuStreamWriteValue", to, width, true)?;
        sim.submit(
            stream,
            "cuStreamWriteValue".into(),
            Work::Store { to, value, width },
            vec![touch],
        )?;
        Ok(())
    })
}

/// `cuStreamWriteValue32_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue32_v2(
    stream: Handle,
    to: Handle,
    value: u32,
    _flags: u32,
) -> Status {
    store(stream, to, u64::from(value), 4)
}

/// `cuStreamWriteValue64_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWriteValue64_v2(
    stream: Handle,
    to: Handle,
    value: u64,
    _flags: u32,
) -> Status {
    store(stream, to, value, 8)
}

fn until(stream: Handle, at: Handle, value: u64, width: usize, flags: u32) -> Status {
    call(|sim| {
        let stream = sim.stream(stream)?;
        if !at.is_multiple_of(width)
            || sim.streams.get(&stream).ok_or(INVALID_HANDLE)?.capture.is_some()
        {
            return Err(INVALID_VALUE);
        }
        // Reading a flag that another stream writes is what this call is for: no access for the
        // race check.
        sim.touch("cuStreamWaitValue", at, width, false)?;
        sim.submit(
            stream,
            "cuStreamWaitValue".into(),
            Work::Until { at, value, width, flags },
            Vec::new(),
        )?;
        Ok(())
    })
}

/// `cuStreamWaitValue32_v2`. Orders execution; the race check does not take it for an order.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue32_v2(
    stream: Handle,
    at: Handle,
    value: u32,
    flags: u32,
) -> Status {
    until(stream, at, u64::from(value), 4, flags)
}

/// `cuStreamWaitValue64_v2`.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitValue64_v2(
    stream: Handle,
    at: Handle,
    value: u64,
    flags: u32,
) -> Status {
    until(stream, at, value, 8, flags)
}
