//! The options of joining a group.

use super::dial::is_loopback;
use super::launcher::{Launched, launched};
use super::protocol::Rules;
use super::secret::Secret;
use crate::options::options;
use crate::tensor::device::Device;
use std::time::Duration;

/// Options of [`Group::join`](super::Group::join). Missing values are taken from the environment
/// variables of launchers: `OMPI_COMM_WORLD_RANK` and its siblings, `PMI_RANK`, torchrun's `RANK`,
/// `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT`, and `SLURM_PROCID`. Without options and
/// variables, a process is alone.
///
/// ```
/// use futensor::ranks::Options;
/// use std::time::Duration;
/// let options = Options::default().address("10.0.0.1:29500").secret("not this one")
///     .silence(Duration::from_secs(5));
/// assert!(!format!("{options:?}").contains("not this one"));
/// ```
#[derive(Clone, Debug)]
pub struct Options {
    member: Option<(usize, usize)>,
    address: Option<String>,
    secret: Option<Secret>,
    silence: Duration,
    deadline: Duration,
    arrival: Duration,
    compares: bool,
    device: Option<Device>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            member: None,
            address: None,
            secret: None,
            silence: Duration::from_secs(10),
            deadline: Duration::from_secs(600),
            arrival: Duration::from_secs(60),
            compares: cfg!(debug_assertions),
            device: None,
        }
    }
}

options! { Options;
    /// A member that is silent for this long is lost; 10 s by default. (A member whose process ends
    /// is lost immediately.)
    silence: Duration;
    /// How long a call may take once its operand is complete. After that it fails, and names a rank
    /// that has not made the call. 10 minutes by default.
    deadline: Duration;
    /// How long to wait for all members to join; one minute by default.
    arrival: Duration;
    /// Whether calls are compared before they start, so that calls that differ (in op, shape, type
    /// or order) are an error on every rank. On by default in builds with debug assertions; each
    /// call then costs a message between every two members. Must be the same on every rank.
    compares: bool;
}

impl Options {
    /// The rank of this process, and the number of members: at most 1024.
    pub fn member(mut self, rank: usize, size: usize) -> Options {
        self.member = Some((rank, size));
        self
    }

    /// The host and port on which rank 0 listens.
    pub fn address(mut self, address: impl Into<String>) -> Options {
        self.address = Some(address.into());
        self
    }

    /// The device whose own library carries the values: NCCL for a GPU, which needs neither MPI nor
    /// its launcher. Values of other devices are copied to this device and back. By default, and
    /// for a CPU, all values go through host memory by MPI. Every rank must use the same kind of
    /// device, and ranks on one machine different GPUs.
    pub fn device(mut self, device: &Device) -> Options {
        self.device = Some(device.clone());
        self
    }

    /// The shared secret of the members; `FUTENSOR_SECRET` by default. Required if an address is
    /// given: a process that knows the secret may join. It is never sent.
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Options {
        self.secret = Some(Secret::of(secret.as_ref()));
        self
    }
}

/// Longer durations are no limit either; this one can be added to any time without overflow.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// One message of rank 0 lists the addresses of all members, and addresses may be long.
const MEMBERS_MAX: usize = 1024;

/// Where members meet.
#[derive(Clone, Debug)]
pub(crate) enum Meeting {
    Address(String, Secret),
    /// On this machine: rank 0 writes its address to a file that only this user can read.
    File(String),
}

/// The parameters of a join.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub rank: usize,
    pub size: usize,
    pub meeting: Meeting,
    pub rules: Rules,
    /// A device with its own library for collectives.
    pub home: Option<Device>,
}

impl Options {
    /// The plan for this environment; `None` if the process is alone.
    ///
    /// # Errors
    /// A value that is missing or invalid.
    pub(crate) fn plan(
        &self,
        get: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Plan>, String> {
        let found = launched(&get)?;
        let (rank, size) = match (self.member, &found) {
            (Some(member), _) => member,
            (None, Some(found)) => (found.rank, found.size),
            (None, None) if self.address.is_some() => {
                return Err("an address is given, but neither rank nor size".into());
            }
            (None, None) => return Ok(None),
        };
        if rank >= size {
            return Err(format!("rank {rank} of {size} members: ranks count from 0"));
        }
        if size > MEMBERS_MAX {
            return Err(format!("{size} members: a group has {MEMBERS_MAX} at most"));
        }
        if size == 1 {
            return Ok(None);
        }
        let (address, job) = match found {
            Some(Launched { address, local_job, .. }) => (address, local_job),
            None => (None, None),
        };
        let secret = self
            .secret
            .clone()
            .or_else(|| get("FUTENSOR_SECRET").map(|s| Secret::of(s.as_bytes())));
        let meeting = match (self.address.clone().or(address), job) {
            (Some(address), _) => match secret {
                Some(secret) => Meeting::Address(address, secret),
                None if is_loopback(&address) => {
                    return Err(format!(
                        "any process on this machine can connect to {address}: set FUTENSOR_SECRET \
                         to the same words for every rank"
                    ));
                }
                None => {
                    return Err(format!(
                        "any host that reaches {address} could join: set FUTENSOR_SECRET to the \
                         same words for every rank"
                    ));
                }
            },
            (None, Some(job)) => Meeting::File(job),
            (None, None) => {
                return Err("the address of rank 0 is unknown: set MASTER_ADDR, MASTER_PORT and \
                     FUTENSOR_SECRET"
                    .into());
            }
        };
        let Options { silence, deadline, arrival, compares, .. } = *self;
        let home = self.device.clone().filter(|device| !device.port.profile.in_memory);
        let [silence, deadline, arrival] = [silence, deadline, arrival].map(|d| d.min(NEVER));
        let rules = Rules { silence, deadline, arrival, compares };
        Ok(Some(Plan { rank, size, meeting, rules, home }))
    }
}

#[cfg(all(test, not(futensor_loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_goes_before_what_the_launcher_says_and_what_is_missing_is_named() {
        let none = |_: &str| None;
        assert!(Options::default().plan(none).unwrap().is_none());
        assert!(Options::default().member(0, 1).plan(none).unwrap().is_none());
        let error = Options::default().member(0, 2).plan(none).unwrap_err();
        assert!(error.contains("MASTER_ADDR"), "{error}");
        let error = Options::default().member(2, 2).plan(none).unwrap_err();
        assert_eq!(error, "rank 2 of 2 members: ranks count from 0");
        let error = Options::default().member(0, usize::MAX).plan(none).unwrap_err();
        assert!(error.contains("1024 at most"), "{error}");
        let error = Options::default().member(0, 2).address("127.0.0.1:1").plan(none).unwrap_err();
        assert!(error.contains("FUTENSOR_SECRET"), "{error}");
        let vars = |name: &str| match name {
            "RANK" => Some("1".into()),
            "WORLD_SIZE" => Some("3".into()),
            "MASTER_ADDR" => Some("127.0.0.1".into()),
            "FUTENSOR_SECRET" => Some("s".into()),
            _ => None,
        };
        let plan = Options::default().plan(vars).unwrap().unwrap();
        assert_eq!((plan.rank, plan.size), (1, 3));
        assert!(
            matches!(plan.meeting, Meeting::Address(address, _) if address == "127.0.0.1:29500")
        );
        let plan =
            Options::default().member(0, 2).address("127.0.0.1:7").plan(vars).unwrap().unwrap();
        assert!(matches!(plan.meeting, Meeting::Address(address, _) if address == "127.0.0.1:7"));
    }

    #[test]
    fn a_time_without_end_can_be_added_to_any_other() {
        let vars = |name: &str| (name == "FUTENSOR_SECRET").then(|| "s".to_string());
        let options = Options::default().member(0, 2).address("127.0.0.1:7").arrival(Duration::MAX);
        let rules = options
            .silence(Duration::MAX)
            .deadline(Duration::MAX)
            .plan(vars)
            .unwrap()
            .unwrap()
            .rules;
        for time in [rules.silence, rules.deadline, rules.arrival] {
            assert!(std::time::Instant::now().checked_add(time).is_some());
            assert!(NEVER.checked_add(time).is_some());
        }
    }
}
