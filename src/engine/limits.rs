//! The limits of a device's engine.

/// The limits of streams and steps. The queue has limits of its own: `pressure`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub streams: u16,
    /// Steps that may be submitted to one stream and not finished.
    pub depth_max: u64,
    /// Steps and bytes of results that may be submitted and not finished, on all streams.
    pub ops_max: usize,
    pub bytes_max: usize,
    /// Longest delay of a step that may fuse with what follows, in nanoseconds. 0 turns it off.
    pub fusion_delay_max_ns: u64,
    /// A step may be submitted before its operands are there: its stream is in order, and waits for
    /// others by itself. Where this is false each submitted step can run at once, on any
    /// free thread.
    pub ahead: bool,
    /// Ops behind one that [takes an epilogue](crate::custom::Operation::takes_epilogue) may run in
    /// the same step.
    pub epilogues: bool,
}

impl Limits {
    /// The streams; where steps are submitted ahead, one more, for urgent steps.
    pub fn all_streams(&self) -> u16 {
        self.streams + self.ahead as u16
    }
}
