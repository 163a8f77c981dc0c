//! Accesses: what a call names is an allocation's, what work touches is ordered, and is there when
//! the work runs.

use crate::checks::race::Access;
use crate::machine::faults::Fault;
use crate::machine::sim::Sim;
use crate::memory::{Life, Place, Touch};
use crate::status::{ILLEGAL_ADDRESS, INVALID_VALUE, Outcome};
use std::sync::Arc;

impl Sim {
    /// The touch of `len` bytes at a device address that a call names; `INVALID_VALUE` where they
    /// are no allocation's. `what` names the call.
    pub fn touch(&mut self, what: &str, address: usize, len: usize, write: bool) -> Outcome<Touch> {
        let Some(allocation) = self.memory.find(address) else {
            self.report("misuse", format!("{what}: {address:#x} lies in no allocation"));
            return Err(INVALID_VALUE);
        };
        let base = allocation.span.start;
        let (from, size, serial) = (address - base, allocation.span.len, allocation.serial);
        if from + len > size {
            let text = format!(
                "{what}: bytes {from}..{} of allocation {serial}, which has {size}",
                from + len
            );
            self.report("overrun", text);
            return Err(INVALID_VALUE);
        }
        Ok(Touch { base, range: from..from + len, write })
    }

    /// Notes the accesses of the work at `point`, and reports those that conflict with earlier
    /// work.
    pub fn check_touches(&mut self, point: (u64, u64), touches: &[Touch], label: &Arc<str>) {
        for touch in touches {
            let Some(allocation) = self.memory.at(touch.base) else { continue };
            let serial = allocation.serial;
            if let Some(left) = allocation.left.clone() {
                let text = format!("{label} uses allocation {serial} after {left}");
                self.reports.add("use after free", text);
                continue;
            }
            let access = Access {
                range: touch.range.clone(),
                write: touch.write,
                point,
                label: label.clone(),
            };
            for text in allocation.history.touch(&self.race, access) {
                self.reports.add("race", format!("allocation {serial}: {text}"));
            }
        }
    }

    /// True where work of `context` may reach memory of `device`. Pools have access rights of their
    /// own.
    fn reaches(&self, context: u64, device: usize, pool: Option<u64>) -> bool {
        let own = self.device_of(context);
        if own == device {
            return true;
        }
        if let Some(pool) = pool {
            return self.pools.get(&pool).is_some_and(|pool| pool.access.contains(&own));
        }
        let peers = self.contexts.get(&context).map(|context| &context.peers);
        peers.is_some_and(|peers| peers.iter().any(|&peer| self.device_of(peer) == device))
    }

    /// Whether the memory that an item is about to use is there, as the device sees it now. Copies
    /// (`staged`) cross between devices without peer access; kernels do not.
    pub fn check_presence(
        &mut self,
        context: u64,
        touches: &[Touch],
        staged: bool,
        label: &str,
    ) -> Result<(), Fault> {
        for touch in touches {
            let Some(allocation) = self.memory.at(touch.base) else { continue };
            let (life, place, pool, serial) =
                (allocation.life, allocation.place, allocation.pool, allocation.serial);
            let problem = match (life, place) {
                (Life::Coming, _) => "is not there yet",
                (Life::Gone, _) => "has been freed",
                (Life::Here, Place::Device(device))
                    if !staged && !self.reaches(context, device, pool) =>
                {
                    "is on a device without peer access"
                }
                _ => continue,
            };
            return Err(Fault {
                status: ILLEGAL_ADDRESS,
                text: format!("{label} uses allocation {serial}, which {problem}"),
            });
        }
        Ok(())
    }
}
