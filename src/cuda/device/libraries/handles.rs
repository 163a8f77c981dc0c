//! A library's handles: one a lane, and one for captures. Making a handle takes long, so the
//! background makes each when it is first needed.

use crate::cuda::device::background::{Background, Pending, Wanted};
use crate::cuda::device::{Site, Trouble, Until};

/// The use of a handle.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Use {
    /// Calls on the stream with this number.
    Lane(usize),
    /// Calls that are captured.
    Capture,
}

/// The handles of a device.
pub(crate) struct Handles<Raw> {
    slots: Vec<Option<Pending<Raw>>>,
    background: Background,
    make: fn() -> Result<Raw, Trouble>,
    end: fn(Raw),
}

impl Use {
    /// The use for the calls of a step.
    pub fn of(site: &dyn Site) -> Use {
        if site.launch_list().is_some() { Use::Capture } else { Use::Lane(site.stream().number) }
    }

    fn slot(self) -> usize {
        if let Use::Lane(number) = self { number + 1 } else { 0 }
    }
}

impl<Raw: Copy + Send + Sync + 'static> Handles<Raw> {
    pub fn new(
        background: Background,
        make: fn() -> Result<Raw, Trouble>,
        end: fn(Raw),
    ) -> Handles<Raw> {
        Handles { slots: Vec::new(), background, make, end }
    }

    /// Sees to it that there is one.
    ///
    /// # Errors
    /// [`Trouble::Later`] where it is being made. One that could not be made is asked for anew the
    /// next time.
    pub fn ready(&mut self, of: Use) -> Result<(), Trouble> {
        if self.slots.len() <= of.slot() {
            self.slots.resize_with(of.slot() + 1, || None);
        }
        let slot = &mut self.slots[of.slot()];
        let made = slot.get_or_insert_with(|| self.background.make(Wanted::Now, self.make));
        let ready = made.get().map(drop);
        if !matches!(ready, Ok(()) | Err(Trouble::Later(_))) {
            *slot = None;
        }
        ready
    }

    /// One that is ready.
    pub fn get(&self, of: Use) -> Result<Raw, Trouble> {
        self.slots
            .get(of.slot())
            .and_then(Option::as_ref)
            .ok_or(Trouble::Later(Until::Made))?
            .get()
            .copied()
    }

    /// Has the handles of the first lanes made, and the one for captures.
    pub fn warm(&mut self, lanes: usize) {
        // It is on its way; the step that needs it asks again.
        (0..lanes).map(Use::Lane).chain([Use::Capture]).for_each(|of| drop(self.ready(of)));
    }

    /// Ends them; the background has ended.
    pub fn clear(&mut self) {
        self.slots.drain(..).flatten().filter_map(Pending::take).for_each(self.end);
    }
}
