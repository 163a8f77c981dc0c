//! `Group`, a user's handle: joining, splitting, shrinking, and calls.

use super::driver::{Asks, Driver, Gives, Job, driver};
use super::keeper::keep;
use super::links::Links;
use super::options::{Meeting, Options, Plan};
use super::protocol::message::{Fault, FaultKind, GroupId, Lane};
use super::protocol::{Ended, WORLD};
use super::slot::{End, Slot, Trouble};
use super::world::World;
use crate::dtype::DType;
use crate::engine::exchange::{Key, What};
use crate::engine::port::Port;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::caught;
use crate::sync::lock_plain as lock;
use crate::tensor::build::At;
use crate::tensor::creation::Arrival;
use crate::tensor::device::Device;
use std::fmt;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

/// Processes that work together: this one and others, on this machine or on several.
///
/// A collective is an op like any other: [`all_reduce`](crate::TensorFuture::all_reduce) and its
/// siblings are queued immediately and return a [`TensorFuture`](crate::TensorFuture). Calls on one
/// group keep their order, which must be the same on all members. Each call **completes**: with a
/// value, or, once a member is lost, with an error that [names the member](Error::lost_rank). The
/// group is then unusable; other groups go on, and [`shrink`](Group::shrink) makes a new group of
/// the survivors.
///
/// A collective runs whether or not its result is observed, since the other ranks wait for it.
///
/// ```
/// # tokio_test::block_on(async {
/// use futensor::{Device, ranks::{Combine::Sum, Group, Options}};
/// let group = Group::join(Options::default()).await?;  // alone without a launcher
/// let mine = Device::cpu().full([2], group.rank() as f32);
/// let all = mine.all_reduce(&group, Sum);                      // nothing has waited
/// assert_eq!(all.to_vec::<f32>().await?.len(), 2);
/// # Ok::<(), futensor::Error>(()) }).unwrap();
/// ```
///
/// A process leaves in order when it drops its last handle on any group. A program that ends waits
/// for the other ranks to end as well, as every MPI program does.
#[doc(alias("ProcessGroup", "Communicator"))]
#[derive(Clone)]
pub struct Group(Arc<Inner>);

struct Inner {
    id: GroupId,
    /// The members, by their ranks in the world.
    members: Vec<usize>,
    me: usize,
    /// `None` if the process is alone.
    world: Option<Arc<Membership>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(membership) = &self.world {
            membership.0.act(|machine, _| machine.let_go(self.id));
        }
    }
}

/// This process's membership in its world; dropping the last handle leaves the world.
struct Membership(Arc<World>);

impl Drop for Membership {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// An await of a new group. If it is dropped, the other members are told that this rank makes no
/// calls in the new group, so that they do not wait for it.
struct Given(Arc<Slot>, Arc<Membership>);

impl Drop for Given {
    fn drop(&mut self) {
        if let Some(id) = self.0.give_up() {
            self.1.0.act(|machine, _| machine.let_go(id));
        }
    }
}

/// The groups that this process is joining, with its rank in each. Two joins at the same time as
/// the same member of the same group would be indistinguishable to the other ranks.
static JOINING: Mutex<Vec<(usize, String)>> = Mutex::new(Vec::new());

struct Joining((usize, String));

impl Joining {
    fn of(plan: &Plan) -> Option<Joining> {
        let place = match &plan.meeting {
            Meeting::Address(address, _) => address.clone(),
            Meeting::File(job) => format!("the run {job}"),
        };
        let joining = (plan.rank, place);
        let mut all = lock(&JOINING);
        let is_new = !all.contains(&joining);
        is_new.then(|| {
            all.push(joining.clone());
            Joining(joining)
        })
    }
}

impl Drop for Joining {
    fn drop(&mut self) {
        lock(&JOINING).retain(|other| *other != self.0);
    }
}

/// The future of a group operation. The operation is already in progress; dropping the future gives
/// up only the wait.
#[must_use = "futures do nothing unless awaited"]
pub struct Waiting<T>(Pin<Box<dyn Future<Output = Result<T>> + Send>>);

impl<T> Future for Waiting<T> {
    type Output = Result<T>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        self.0.as_mut().poll(cx)
    }
}

impl<T> fmt::Debug for Waiting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waiting")
    }
}

impl<T: Send + 'static> Waiting<T> {
    pub(super) fn on(future: impl Future<Output = Result<T>> + Send + 'static) -> Waiting<T> {
        Waiting(Box::pin(future))
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group(rank {} of {})", self.rank(), self.size())
    }
}

/// A call of the engine, as ops request it.
pub(super) struct Asked<'a> {
    pub op: &'static str,
    pub lane: Lane,
    pub what: What,
    /// The call as text, the same on every rank.
    pub text: String,
    pub dtype: DType,
    pub operand: Option<&'a crate::TensorFuture>,
    /// The number of elements of the result, and the device whose memory it goes to.
    pub result: Option<(usize, &'static Port)>,
    pub gives: Gives,
    pub at: At,
}

impl Asked<'_> {
    /// A call of all members, without elements.
    fn plain(op: &'static str, what: What, at: At) -> Asked<'static> {
        let (dtype, gives) = (DType::Bool, Gives::Result);
        Asked {
            op,
            lane: Lane::All,
            what,
            text: op.into(),
            dtype,
            operand: None,
            result: None,
            gives,
            at,
        }
    }
}

impl Group {
    /// A group of this process alone: every collective returns its operand.
    pub fn alone() -> Group {
        Group(Arc::new(Inner { id: WORLD, members: vec![0], me: 0, world: None }))
    }

    /// Joins the other ranks that a launcher started, or that the options name; without either, the
    /// process is alone. Joining begins with this call. Dropping the returned future gives it up:
    /// the joins of the other ranks then fail with this rank's number, and all may try
    /// again.
    ///
    /// # Errors
    /// - An argument error, if options, secret, version or size are missing or differ, if two
    ///   processes claim one rank, or if this process is still joining the same group.
    /// - A device error, if no MPI library is found. It says where the library was searched for,
    ///   and how to install one.
    /// - [`is_peer_lost`](Error::is_peer_lost) with a rank that was lost meanwhile, or did not join
    ///   in time.
    #[doc(alias = "init_process_group")]
    #[track_caller]
    pub fn join(options: Options) -> Waiting<Group> {
        let at = Location::caller();
        let wrong = move |kind, text: String| Error::new(kind, "join", text, at);
        let plan = match options.plan(|name| std::env::var(name).ok()) {
            Ok(Some(plan)) => plan,
            Ok(None) => return Waiting::on(std::future::ready(Ok(Group::alone()))),
            Err(text) => {
                return Waiting::on(std::future::ready(Err(wrong(ErrorKind::Argument, text))));
            }
        };
        let driver = driver(plan.home.as_ref());
        Group::join_by(plan, driver, at)
    }

    /// Joins as planned, with values that go through this driver.
    pub(super) fn join_by(
        plan: Plan,
        driver: Result<&'static Driver, String>,
        at: At,
    ) -> Waiting<Group> {
        let wrong = move |kind, text: String| Error::new(kind, "join", text, at);
        let Some(joining) = Joining::of(&plan) else {
            let text =
                "this process is already joining that group: await that join, or drop it".into();
            return Waiting::on(std::future::ready(Err(wrong(ErrorKind::Argument, text))));
        };
        let begun = driver.and_then(|driver| Group::begin(plan, driver));
        let begun = begun.map(|(world, slot)| (Membership(world), slot));
        let begun = begun.map_err(|text| wrong(ErrorKind::Device, text));
        Waiting::on(async move {
            let _joining = joining;
            let (membership, slot) = begun?;
            match End(slot).await {
                Ok((Ended::Group(id, members), _)) => {
                    Group::made(Arc::new(membership), id, members).opened("join", at).await
                }
                Ok(_) => unreachable!("joining ends with a group"),
                Err(trouble) => Err(error_of(trouble, &[], membership.0.rank, "join", at)),
            }
        })
    }

    /// Starts the thread of the links.
    fn begin(plan: Plan, driver: &'static Driver) -> Result<(Arc<World>, Arc<Slot>), String> {
        let (links, heard) = Links::new(plan.size).map_err(|error| error.to_string())?;
        let (world, slot) = World::new(&plan, links, driver);
        let asks: Arc<dyn Asks> = world.clone();
        driver.serves(Arc::downgrade(&asks));
        let keeps = world.clone();
        let thread = std::thread::Builder::new().name("futensor-ranks".into());
        let run = move || {
            if let Err(words) = caught(|| keep(keeps.clone(), plan, heard)) {
                keeps.fails(format!("its thread for the links panicked: {words}"));
            }
        };
        thread.spawn(run).map_err(|error| error.to_string())?;
        Ok((world, slot))
    }

    /// A group that the members have agreed on.
    fn made(world: Arc<Membership>, id: GroupId, members: Vec<usize>) -> Group {
        let me = members.iter().position(|&r| r == world.0.rank).unwrap_or(0);
        Group(Arc::new(Inner { id, members, me, world: Some(world) }))
    }

    /// This group, once the engine has opened it.
    async fn opened(self, op: &'static str, at: At) -> Result<Group> {
        let what = What::Open(self.0.members.clone(), self.0.members[self.0.me]);
        self.signal(Asked::plain(op, what, at)).await.map(|()| self)
    }

    /// The rank of this process in the group, from 0.
    pub fn rank(&self) -> usize {
        self.0.me
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.0.members.len()
    }

    /// Splits the group: members with the same `color` form a new group, in the order of their
    /// ranks. All members have to call this and await the result; this group stays usable.
    ///
    /// The members begin to agree at the call. The transport library opens the new group when the
    /// future is polled, so a member that drops the future takes no part. The opening waits for all
    /// members on a thread inside the library, which in some libraries can only be abandoned; it is
    /// not started for a group that nobody awaits.
    ///
    /// # Errors
    /// [`is_peer_lost`](Error::is_peer_lost), if a member is lost or misses the deadline.
    #[doc(alias = "new_group")]
    #[track_caller]
    pub fn split(&self, color: u64) -> Waiting<Group> {
        let (at, group) = (Location::caller(), self.clone());
        let Some(membership) = self.0.world.clone() else {
            return Waiting::on(async move { Ok(group) });
        };
        let asked = membership.0.ask(|machine, now| machine.split(group.0.id, color, now));
        let asked = asked.map(|slot| Given(slot, membership.clone()));
        Waiting::on(async move {
            let given = asked.map_err(|fault| group.error(Trouble::Fault(fault), "split", at))?;
            match End(given.0.clone()).await.map_err(|trouble| group.error(trouble, "split", at))? {
                (Ended::Group(id, members), _) => {
                    Group::made(membership, id, members).opened("split", at).await
                }
                _ => unreachable!("a split ends with a group"),
            }
        })
    }

    /// Makes a new group of the surviving members, once all of them have called this: how to
    /// continue after a loss. Members that miss the deadline are treated as lost. Without a loss
    /// the new group has the same members. All members have to await the result, as with
    /// [`split`](Self::split).
    ///
    /// # Errors
    /// - [`is_peer_lost`](Error::is_peer_lost) with this rank, if the other members have given it
    ///   up (it was stopped for too long), or may have continued without it. Of the members whose
    ///   processes are not known to have ended, more than half must remain, or exactly half with
    ///   the first of them.
    /// - An error of the engine.
    #[track_caller]
    pub fn shrink(&self) -> Waiting<Group> {
        let (at, mut group) = (Location::caller(), self.clone());
        let Some(membership) = self.0.world.clone() else {
            return Waiting::on(async move { Ok(group) });
        };
        let shrink = |group: &Group, membership: &Arc<Membership>| {
            let asked = membership.0.ask(|machine, now| Ok(machine.shrink(group.0.id, now)));
            asked.map(|slot| Given(slot, membership.clone()))
        };
        let mut asked = shrink(&group, &membership);
        Waiting::on(async move {
            loop {
                let given =
                    asked.map_err(|fault| group.error(Trouble::Fault(fault), "shrink", at))?;
                let ended = End(given.0.clone())
                    .await
                    .map_err(|trouble| group.error(trouble, "shrink", at))?;
                let (Ended::Group(id, members), _) = ended else {
                    unreachable!("a shrink ends with a group")
                };
                group = Group::made(membership.clone(), id, members);
                match group.clone().opened("shrink", at).await {
                    // Another survivor is lost.
                    Err(error) if error.is_peer_lost() => asked = shrink(&group, &membership),
                    opened => return opened,
                }
            }
        })
    }

    /// Waits until all members have called it.
    ///
    /// # Errors
    /// As any call: [`is_peer_lost`](Error::is_peer_lost).
    #[track_caller]
    pub fn barrier(&self) -> Waiting<()> {
        self.signal(Asked::plain("barrier", What::Barrier, Location::caller()))
    }

    /// A call without a result.
    pub(super) fn signal(&self, asked: Asked<'_>) -> Waiting<()> {
        if self.size() == 1 {
            return Waiting::on(async { Ok(()) });
        }
        let (group, op, at) = (self.clone(), asked.op, asked.at);
        let slot = self.call(asked);
        Waiting::on(async move {
            End(slot?).await.map(|_| ()).map_err(|trouble| group.error(trouble, op, at))
        })
    }

    /// The device whose memory the engine reads and writes for a value of this device.
    pub(super) fn memory(&self, device: &Device) -> &'static Port {
        let home = self.0.world.as_ref().and_then(|membership| membership.0.home.as_ref());
        match home {
            Some(home) => home.port,
            None if device.port.profile.in_memory => device.port,
            None => Device::cpu().port,
        }
    }

    /// The device that first receives a result of the engine for this device.
    pub(super) fn home<'a>(&'a self, device: &'a Device) -> &'a Device {
        let home = self.0.world.as_ref().and_then(|membership| membership.0.home.as_ref());
        home.unwrap_or(device)
    }

    /// Whether the engine can reduce this type.
    pub(super) fn combines(&self, dtype: DType) -> bool {
        self.0.world.as_ref().is_none_or(|membership| membership.0.driver.combines(dtype))
    }

    /// A call of the engine, queued in the order of this group's calls.
    ///
    /// # Errors
    /// The group is unusable.
    pub(super) fn call(&self, asked: Asked<'_>) -> Result<Arc<Slot>, Error> {
        let Asked { op, lane, what, text, dtype, operand, result, gives, at } = asked;
        let world =
            &self.0.world.as_ref().unwrap_or_else(|| unreachable!("who is alone asks nobody")).0;
        let group = self.0.id;
        let reads = operand.map_or(0, |x| x.numel());
        let operand = operand.map(|x| Arrival::new(x, self.memory(&x.device()), true, at));
        // The lane's rank is a rank of the world.
        let lane = match lane {
            Lane::All => Lane::All,
            Lane::Send(rank) => Lane::Send(self.0.members[rank]),
            Lane::Recv(rank) => Lane::Recv(self.0.members[rank]),
        };
        let job = |slot| Job {
            world: world.clone(),
            group: Key(world.serial, group),
            slot,
            what,
            dtype,
            operand,
            reads,
            result,
            gives,
            op,
            at,
        };
        let called = world.call(|machine| machine.call(group, lane, text), job);
        called.map_err(|fault| self.error(Trouble::Fault(fault), op, at))
    }

    /// Reports a call that this rank could not make, so that the other ranks do not wait for it.
    pub(super) fn spoil(&self, op: &str, text: &str) {
        let Some(world) = &self.0.world else { return };
        world.0.act(|machine, _| machine.spoil(self.0.id, format!("{op}: {text}")));
    }

    /// The failure of a call as an error with this group's ranks.
    pub(super) fn error(&self, trouble: Trouble, op: &str, at: At) -> Error {
        error_of(trouble, &self.0.members, self.0.members[self.0.me], op, at)
    }
}

/// An error with the ranks of a group with these members; with ranks of the world if there are no
/// members yet.
fn error_of(trouble: Trouble, members: &[usize], me: usize, op: &str, at: At) -> Error {
    let Fault { kind, rank, text } = match trouble {
        Trouble::Own(error) => return error,
        Trouble::Fault(fault) => fault,
    };
    let here = |r: usize| members.iter().position(|&m| m == r).unwrap_or(r);
    let named = rank.map(|r| format!("rank {}", here(r)));
    let (kind, text) = match (kind, rank, named) {
        (FaultKind::Lost, Some(rank), _) if rank == me => (
            ErrorKind::PeerLost(here(rank) as u32),
            format!("the other ranks have given this rank up: {text}"),
        ),
        (FaultKind::Lost, Some(rank), Some(name)) => {
            (ErrorKind::PeerLost(here(rank) as u32), format!("{name} is lost: {text}"))
        }
        (FaultKind::Operand, _, Some(name)) => {
            (ErrorKind::Kernel, format!("the operand of {name} has failed: {text}"))
        }
        (FaultKind::Engine, _, Some(name)) => {
            (ErrorKind::Kernel, format!("it failed on {name}: {text}"))
        }
        (FaultKind::Calls, ..) => (ErrorKind::Argument, text),
        _ => (ErrorKind::Kernel, text),
    };
    Error::new(kind, op, text, at)
}
