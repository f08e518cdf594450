//! One client: the shipping code, with a transport, a clock and a source of tokens of the model's making.
//!
//! A future cannot be copied, so a search cannot go back to one. But it does nothing of its own accord: what it
//! has been given so far makes it what it is. A client is built anew and given the same again.

use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::{Future, poll_fn};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use arrayvec::ArrayVec;
use embassy_futures::select::{Either, select};
use redlock_core::{
    Admission, Clock, Command, Denial, Entropy, ExtendError, Fence, Instant, Introduction, Lease,
    Proposal, Reading, Redlock, ReplicationId, Reply, RunId, Token, Transport,
};

use super::scene::{Flaw, Scene};
use super::stamp::Stamp;
use super::world::BASE;

/// Some of the nodes, or of the clients.
pub(super) type Few<T> = ArrayVec<T, 4>;

/// What a client is given: each is one poll of its future.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Input {
    /// What its clock reads meanwhile, in units.
    pub(super) reading: u8,
    pub(super) cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Cause {
    /// It begins an operation.
    Begin(Operation),
    /// Replies to its calls have come, or none, and it looks at its clock.
    Wake(Few<(usize, Answer)>),
    /// Replies on which it does nothing yet. Of a fenced lock it matters when they are read: they tell the time.
    Read(Few<(usize, Answer)>),
    /// The future of its operation is dropped.
    Drop,
    /// It meets a node again, which has restarted. Its future is not polled.
    Met(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Operation {
    Acquire,
    Extend,
    Release,
    Tidy,
    /// It is told the time of the nodes: by so many units more than it is.
    Learn(i8),
}

/// What a call to a node ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    Acquired,
    Held,
    Extended,
    Released,
    NotMine,
    /// The connection is broken.
    Broken,
    /// What a node says of a fence, and what it tells besides.
    Fenced(Saying, Told),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Saying {
    Acquired,
    Held,
    Stale,
    TooOld,
    TooNew,
    Quarantined,
    Extended,
    OtherFleet,
    /// Whether there is a record.
    Unguarded(bool),
}

/// As much of a reading as changes what a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Told {
    time: Stamp,
    fence: Stamp,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {}, time {}", self.fence, self.time)
    }
}

impl Answer {
    /// What a node of the simulation has answered, in few bytes; none when no node of a scene says so.
    pub(super) fn new(scene: &Scene, answer: &Result<Reply, Denial>) -> Option<Self> {
        let (saying, reading) = match answer {
            Ok(Reply::Acquired(None)) => return Some(Self::Acquired),
            Ok(Reply::Held(None)) => return Some(Self::Held),
            Ok(Reply::Extended(None)) => return Some(Self::Extended),
            Ok(Reply::Released) => return Some(Self::Released),
            Ok(Reply::NotMine) => return Some(Self::NotMine),
            Ok(Reply::Acquired(Some(reading))) => (Saying::Acquired, reading),
            Ok(Reply::Held(Some(reading))) => (Saying::Held, reading),
            Ok(Reply::Extended(Some(reading))) => (Saying::Extended, reading),
            Err(Denial::Stale(reading)) => (Saying::Stale, reading),
            Err(Denial::TooOld(reading)) => (Saying::TooOld, reading),
            Err(Denial::TooNew(reading)) => (Saying::TooNew, reading),
            Err(Denial::Quarantined { reading, .. }) => (Saying::Quarantined, reading),
            Err(Denial::OtherFleet(reading)) => (Saying::OtherFleet, reading),
            Err(Denial::Unguarded {
                has_record,
                reading,
            }) => (Saying::Unguarded(*has_record), reading),
            _ => return None,
        };
        let told = Told {
            time: scene.stamp(reading.time),
            fence: scene.stamp(reading.fence.as_u64()),
        };
        Some(Self::Fenced(saying, told))
    }

    fn result(self, scene: &Scene, node: usize) -> Result<Reply, Failure> {
        Ok(match self {
            Self::Acquired => Reply::Acquired(None),
            Self::Held => Reply::Held(None),
            Self::Extended => Reply::Extended(None),
            Self::Released => Reply::Released,
            Self::NotMine => Reply::NotMine,
            Self::Broken => return Err(Failure::Silent(node)),
            Self::Fenced(saying, told) => {
                let fence = Fence::from_u64(scene.micros(told.fence));
                let reading = Reading::new(scene.micros(told.time), fence);
                let denial = match saying {
                    Saying::Acquired => return Ok(Reply::Acquired(Some(reading))),
                    Saying::Held => return Ok(Reply::Held(Some(reading))),
                    Saying::Extended => return Ok(Reply::Extended(Some(reading))),
                    Saying::Stale => Denial::Stale(reading),
                    Saying::TooOld => Denial::TooOld(reading),
                    Saying::TooNew => Denial::TooNew(reading),
                    Saying::Quarantined => Denial::Quarantined {
                        left_ms: 0,
                        reading,
                    },
                    Saying::OtherFleet => Denial::OtherFleet(reading),
                    Saying::Unguarded(has_record) => Denial::Unguarded {
                        has_record,
                        reading,
                    },
                };
                return Err(Failure::Denied(denial));
            }
        })
    }
}

/// A command, by the number of its token among those of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Order {
    Acquire(u8, Option<Offer>),
    Extend(u8, Option<Offer>),
    Release(u8, Option<Offer>),
}

/// The fence of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Offer {
    pub(super) fence: Stamp,
    /// What goes with an extend.
    pub(super) time: Stamp,
    /// Whether the client may write a guard record, which goes with an acquire.
    pub(super) vouches: bool,
}

/// What a client does when it is polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Effect {
    /// It hands a command to the transport of a node.
    Sent(usize, Order),
    /// It waits for the reply of that node no longer.
    GivenUp(usize),
    /// It has the lock.
    Acquired,
    NotAcquired,
    Extended,
    /// The lease is as it was.
    NotExtended,
    Lost,
    Released,
    Tidied,
    /// The future of its operation is gone.
    Dropped,
}

/// What can be told of a client from outside.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct View {
    /// An operation is going on.
    pub(super) is_busy: bool,
    /// The lease that it has.
    pub(super) claim: Option<Claim>,
    /// The token that a dropped future has left to the next operation.
    pub(super) abandoned: Option<u8>,
    /// When it wants to be woken.
    pub(super) deadline: Option<Instant>,
    /// How many tokens it has drawn.
    pub(super) drawn: u8,
    /// By how much the clocks of the nodes are ahead, as far as it knows.
    clock_offset: Option<i64>,
    /// Whether it may write the guard record of a node that has lost it.
    may_vouch: bool,
    /// When it has met each node again, if any.
    pub(super) met: Few<Option<Instant>>,
}

impl View {
    /// The same where node `i` is number `numbers[i]`.
    pub(super) fn renumbered(&self, numbers: &[usize]) -> Self {
        let mut other = self.clone();
        for (place, met) in self.met.iter().enumerate() {
            other.met[numbers[place]] = *met;
        }
        other
    }
}

/// A lease, and what its holder makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Claim {
    pub(super) token: u8,
    /// What the lease says.
    valid_until: Instant,
    /// The same, if nothing is wrong with the client.
    pub(super) believed_until: Instant,
    pub(super) fence: Option<Fence>,
}

impl Claim {
    fn new(lease: &Lease<&str>, believed_until: Instant) -> Self {
        Self {
            token: number(lease.token()),
            valid_until: lease.valid_until(),
            believed_until,
            fence: lease.fence(),
        }
    }
}

pub(super) const KEY: &str = "dock-7";

/// What a client with this history does on what it is given now, and what it is then.
pub(super) fn after(scene: &Scene, history: &[Input], now: &[Input]) -> (Vec<Effect>, View) {
    let world = World::new(scene.unit);
    // Boxed: it is as large as all its nodes together.
    let mut life = Box::pin(life(scene, &world));
    let mut poll = || {
        let mut context = Context::from_waker(Waker::noop());
        assert!(life.as_mut().poll(&mut context).is_pending(), "a life ends");
    };
    // It waits for its first operation.
    poll();
    let mut give = |input: &Input| {
        world.give(scene, input);
        if !matches!(input.cause, Cause::Met(_)) {
            poll();
        }
    };
    history.iter().for_each(&mut give);
    world.effects.borrow_mut().clear();
    now.iter().for_each(give);
    (world.effects.take(), world.view.take())
}

/// Everything that a client has to do with.
#[derive(Debug)]
struct World {
    unit: Duration,
    reading: Cell<u8>,
    /// What the clock reads while it is not read: a flaw.
    frozen: Cell<Option<u8>>,
    begun: Cell<Option<Operation>>,
    is_dropped: Cell<bool>,
    answers: RefCell<Vec<(usize, Answer)>>,
    /// What it knows of each node.
    admissions: RefCell<[Admission; MAX_NODES]>,
    /// The highest count that came with a grant: a flaw.
    count: Cell<Fence>,
    effects: RefCell<Vec<Effect>>,
    view: RefCell<View>,
}

impl World {
    fn new(unit: Duration) -> Self {
        Self {
            unit,
            reading: Cell::default(),
            frozen: Cell::default(),
            begun: Cell::default(),
            is_dropped: Cell::default(),
            answers: RefCell::default(),
            admissions: RefCell::default(),
            count: Cell::new(Fence::ZERO),
            effects: RefCell::default(),
            view: RefCell::default(),
        }
    }

    fn give(&self, scene: &Scene, input: &Input) {
        self.reading.set(input.reading);
        if let Cause::Met(node) = input.cause {
            return self.meet_again(scene, node);
        }
        self.view.borrow_mut().deadline = None;
        match &input.cause {
            Cause::Begin(operation) => self.begun.set(Some(*operation)),
            Cause::Wake(answers) | Cause::Read(answers) => {
                self.answers.borrow_mut().extend(answers.iter().copied());
            }
            Cause::Drop => self.is_dropped.set(true),
            Cause::Met(_) => {}
        }
    }

    /// Every node is met in the beginning, and has been running for long.
    fn meet_all(&self) {
        let admissions = &mut *self.admissions.borrow_mut();
        for (node, admission) in admissions.iter_mut().enumerate() {
            admission.introduced(Some(introduction(node, 0)), self.now());
        }
    }

    fn meet_again(&self, scene: &Scene, node: usize) {
        let mut view = self.view.borrow_mut();
        if view.met.is_empty() {
            view.met.extend(std::iter::repeat_n(None, scene.nodes));
        }
        view.met[node] = Some(self.now());
        // No node crashes twice.
        self.admissions.borrow_mut()[node].introduced(Some(introduction(node, 1)), self.now());
    }

    fn did(&self, effect: Effect) {
        self.effects.borrow_mut().push(effect);
    }

    async fn operation(&self) -> Operation {
        poll_fn(|_| self.begun.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn dropped(&self) {
        poll_fn(|_| {
            if self.is_dropped.take() {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
    }

    fn answer(&self, node: usize) -> Option<Answer> {
        let mut answers = self.answers.borrow_mut();
        let place = answers.iter().position(|(from, _)| *from == node)?;
        Some(answers.remove(place).1)
    }

    fn now(&self) -> Instant {
        let reading = self.frozen.get().unwrap_or_else(|| self.reading.get());
        Instant::from_micros(0).saturating_add(self.unit * u32::from(reading))
    }
}

fn introduction(node: usize, incarnation: u64) -> Introduction {
    Introduction {
        run_id: RunId::new((node as u64) << 32 | incarnation),
        replication_id: ReplicationId::new(0),
        uptime: Duration::from_secs(86_400),
        is_master: true,
        may_evict: false,
        max_ttl: None,
        is_vouched: false,
    }
}

/// The life of a client: one operation after the other, each one the shipping code.
async fn life(scene: &Scene, world: &World) {
    world.meet_all();
    let phantom = (scene.flaw == Some(Flaw::HalfIsAQuorum)).then_some(None);
    let nodes = (0..scene.nodes).map(Some).chain(phantom);
    let mut redlock = Redlock::new(
        nodes.map(|node| Port { node, scene, world }),
        Watch { scene, world },
        Tokens { scene, world },
        scene.options(),
    )
    .expect("a scene has nodes and a clock that are right");
    let mut lease = None;
    loop {
        let operation = world.operation().await;
        world.view.borrow_mut().is_busy = true;
        if scene.flaw == Some(Flaw::SameToken) && operation == Operation::Acquire {
            // A lock of its own refuses to use a token twice.
            redlock = redlock.fork(Tokens { scene, world });
        }
        if scene.flaw == Some(Flaw::ClockNotReadAgain) {
            world.frozen.set(Some(world.reading.get()));
        }
        let performance = perform(&mut redlock, &mut lease, operation, scene, world);
        if let Either::First(()) = select(world.dropped(), performance).await {
            world.did(Effect::Dropped);
        }
        world.frozen.set(None);
        let mut view = world.view.borrow_mut();
        view.is_busy = false;
        view.abandoned = redlock.abandoned().map(number);
        view.clock_offset = redlock.clock_offset();
        view.may_vouch = redlock.may_vouch();
    }
}

/// How many nodes a scene has at the most, with one that is not there.
const MAX_NODES: usize = 5;

type Lock<'w> = Redlock<Port<'w>, Watch<'w>, Tokens<'w>, MAX_NODES>;

async fn perform(
    redlock: &mut Lock<'_>,
    lease: &mut Option<Lease<&'static str>>,
    operation: Operation,
    scene: &Scene,
    world: &World,
) {
    let validity = scene.options().validity();
    let begun_at = world.now();
    let believe = |claim| world.view.borrow_mut().claim = claim;
    match operation {
        Operation::Learn(more) => {
            let units = i64::from(BASE) + i64::from(more);
            let unit = i64::try_from(scene.unit.as_micros()).expect("units are short");
            redlock.set_clock_offset(Some(units * unit));
        }
        Operation::Acquire => match redlock.acquire(KEY).await {
            Ok(granted) => {
                let believed_until = match scene.flaw {
                    Some(Flaw::ValidityFromTheEnd) => world.now().saturating_add(validity),
                    _ => granted.valid_until(),
                };
                let mut claim = Claim::new(&granted, believed_until);
                if scene.flaw == Some(Flaw::Count) {
                    claim.fence = Some(world.count.get());
                }
                believe(Some(claim));
                *lease = Some(granted);
                world.did(Effect::Acquired);
            }
            Err(_) => world.did(Effect::NotAcquired),
        },
        Operation::Extend => {
            let Some(lease) = lease else { return };
            let believed_until = match redlock.extend(lease).await {
                Ok(()) => lease.valid_until(),
                Err(ExtendError::Unreachable(report) | ExtendError::Lost(report))
                    if scene.flaw == Some(Flaw::MinorityExtends) && report.tally().granted > 0 =>
                {
                    begun_at.saturating_add(validity)
                }
                Err(ExtendError::Unreachable(_)) => {
                    world.did(Effect::NotExtended);
                    return;
                }
                Err(_) => {
                    believe(Some(Claim::new(lease, Instant::from_micros(0))));
                    world.did(Effect::Lost);
                    return;
                }
            };
            believe(Some(Claim::new(lease, believed_until)));
            world.did(Effect::Extended);
        }
        Operation::Release => {
            let Some(lease) = lease.take() else { return };
            believe(None);
            redlock.release(lease).await;
            world.did(Effect::Released);
        }
        Operation::Tidy => {
            redlock.tidy().await;
            world.did(Effect::Tidied);
        }
    }
}

/// The way to a node; to none for the flaw of a node that grants everything and is not there.
#[derive(Debug, Clone)]
struct Port<'w> {
    node: Option<usize>,
    scene: &'w Scene,
    world: &'w World,
}

impl Transport for Port<'_> {
    type Error = Failure;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, Failure> {
        let (order, granted) = match command {
            Command::Acquire {
                token, proposal, ..
            } => {
                let offer = self.offer(proposal.map(without_time));
                (Order::Acquire(number(token), offer), Reply::Acquired(None))
            }
            Command::Extend {
                token, proposal, ..
            } => {
                let offer = self.offer(proposal.map(without_vouching));
                (Order::Extend(number(token), offer), Reply::Extended(None))
            }
            Command::Release {
                token, proposal, ..
            } => {
                let offer = self.offer(proposal.map(without_time).map(without_vouching));
                (Order::Release(number(token), offer), Reply::Released)
            }
        };
        let Some(node) = self.node else {
            return Ok(granted);
        };
        let swallows_releases = self.scene.flaw == Some(Flaw::NothingIsReleased);
        if swallows_releases && matches!(order, Order::Release(..)) {
            return Ok(granted);
        }
        self.check(node, command)?;
        self.world.did(Effect::Sent(node, order));
        let mut call = Call {
            node,
            world: self.world,
            is_over: false,
        };
        poll_fn(|_| {
            let Some(answer) = self.world.answer(node) else {
                return Poll::Pending;
            };
            call.is_over = true;
            let result = answer.result(self.scene, node);
            if let Ok(Reply::Acquired(Some(reading))) = &result {
                let count = self.world.count.get().max(reading.fence);
                self.world.count.set(count);
            }
            Poll::Ready(result)
        })
        .await
    }

    fn timed_out(&self, _after: Duration) -> Failure {
        Failure::Silent(self.node.unwrap_or(MAX_NODES))
    }

    fn denial(error: &Failure) -> Option<Denial> {
        match error {
            Failure::Denied(denial) => Some(*denial),
            Failure::Silent(_) => None,
        }
    }
}

impl Port<'_> {
    fn offer(&self, proposal: Option<Proposal>) -> Option<Offer> {
        proposal.map(|proposal| Offer {
            fence: self.scene.stamp(proposal.fence.as_u64()),
            time: self.scene.stamp(proposal.time),
            vouches: proposal.vouches,
        })
    }

    /// Whether the vote of the node counts.
    fn check(&self, node: usize, command: &Command<'_>) -> Result<(), Failure> {
        let Command::Acquire {
            ttl_ms, mut rules, ..
        } = *command
        else {
            return Ok(());
        };
        if self.scene.flaw == Some(Flaw::QuarantineTooShort) {
            rules.quarantine -= self.scene.unit;
        }
        let ttl = Duration::from_millis(ttl_ms.into());
        let admission = self.world.admissions.borrow()[node];
        let admitted = admission.check(rules, ttl, self.world.now());
        admitted.map_err(Failure::Denied)
    }
}

/// Only an extend carries the time.
const fn without_time(proposal: Proposal) -> Proposal {
    Proposal {
        time: 0,
        ..proposal
    }
}

/// Only an acquire writes guard records.
const fn without_vouching(proposal: Proposal) -> Proposal {
    Proposal {
        vouches: false,
        ..proposal
    }
}

/// Says when it is dropped before its end.
struct Call<'w> {
    node: usize,
    world: &'w World,
    is_over: bool,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.world.did(Effect::GivenUp(self.node));
        }
    }
}

#[derive(Debug)]
enum Failure {
    Silent(usize),
    Denied(Denial),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(node) => write!(f, "node {node} did not answer"),
            Self::Denied(denial) => write!(f, "{denial}"),
        }
    }
}

impl core::error::Error for Failure {}

/// The clock of a client: it reads what the search says.
#[derive(Debug, Clone)]
struct Watch<'w> {
    scene: &'w Scene,
    world: &'w World,
}

impl Clock for Watch<'_> {
    fn now(&self) -> Instant {
        self.world.now()
    }

    fn resolution(&self) -> Duration {
        match self.scene.flaw {
            Some(Flaw::TickNotTakenOff) => Duration::ZERO,
            _ => self.scene.unit * u32::from(self.scene.tick),
        }
    }

    async fn sleep_until(&self, deadline: Instant) {
        poll_fn(|_| {
            if self.now() >= deadline {
                return Poll::Ready(());
            }
            let mut view = self.world.view.borrow_mut();
            let earlier = view.deadline.map_or(deadline, |other| other.min(deadline));
            view.deadline = Some(earlier);
            Poll::Pending
        })
        .await;
    }
}

/// Tokens that are numbers, and the shortest of all delays.
#[derive(Debug)]
struct Tokens<'w> {
    scene: &'w Scene,
    world: &'w World,
}

impl Entropy for Tokens<'_> {
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill(0);
        if bytes.len() != Token::LEN {
            return;
        }
        let mut view = self.world.view.borrow_mut();
        view.drawn += 1;
        bytes.fill(match self.scene.flaw {
            Some(Flaw::SameToken) => 1,
            _ => view.drawn,
        });
    }
}

fn number(token: &Token) -> u8 {
    let [number, ..] = token.as_bytes();
    *number
}
