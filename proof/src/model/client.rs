//! One client: the shipping code, with a transport, a clock and a source of tokens of the model's making.
//!
//! A future cannot be copied, so a search cannot go back to one. But it does nothing of its own accord: what it
//! has been given so far makes it what it is. A client is built anew and given the same again.

mod failure;
mod heard;
mod message;
mod port;

use core::cell::{Cell, RefCell};
use core::future::{Future, poll_fn};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use arrayvec::ArrayVec;
use embassy_futures::select::{Either, select};
use redlock_core::transport::{Admission, NodeInfo, ReplicationId, RunId};
use redlock_core::{
    AcquireError, Clock, Entropy, ExtendError, Fence, Instant, Lease, NodeErrorOf, Options,
    Redlock, Token,
};

use super::flaw::Flaw;
use super::scene::{BASE, Kind, Scene};
use heard::Heard;
pub(super) use message::{Answer, Offer, Order};
use port::Port;

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
    /// It meets a node again. Its future is not polled.
    Met(usize, Meeting),
}

/// What is new with a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Meeting {
    /// It has restarted, and has forgotten everything.
    Restarted,
    /// It may evict keys.
    MayEvict,
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
    /// Whether a client with a wrong rule for it may write guard records.
    may_vouch: bool,
    /// When it has last looked for nodes that have lost their guard records.
    looked_at: Option<Instant>,
    /// When it has met each node again, if any.
    pub(super) met: Few<Option<Instant>>,
    /// The node that may evict keys, as far as it knows.
    evicting: Option<usize>,
}

impl View {
    /// The same where node `i` is number `numbers[i]`.
    pub(super) fn renumbered(&self, numbers: &[usize]) -> Self {
        let mut other = self.clone();
        for (place, met) in self.met.iter().enumerate() {
            other.met[numbers[place]] = *met;
        }
        other.evicting = self.evicting.map(|node| numbers[node]);
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
pub(super) fn after(
    scene: &Scene,
    kind: Kind,
    history: &[Input],
    now: &[Input],
) -> (Vec<Effect>, View) {
    let world = World::new(scene, kind);
    // Boxed: it is as large as all its nodes together.
    let mut life = Box::pin(life(scene, kind, &world));
    let mut poll = || {
        let mut context = Context::from_waker(Waker::noop());
        assert!(life.as_mut().poll(&mut context).is_pending(), "a life ends");
    };
    // It waits for its first operation.
    poll();
    let mut give = |input: &Input| {
        world.give(scene, input);
        if !matches!(input.cause, Cause::Met(..)) {
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
    options: Options,
    /// The longest TTL by the guard record of the nodes that have one.
    max_ttl_ms: Option<u32>,
    reading: Cell<u8>,
    /// What the clock reads while it is not read: a flaw.
    frozen: Cell<Option<u8>>,
    begun: Cell<Option<Operation>>,
    is_dropped: Cell<bool>,
    is_extending: Cell<bool>,
    answers: RefCell<Vec<(usize, Answer)>>,
    /// What it knows of each node.
    admissions: RefCell<[Admission; MAX_NODES]>,
    /// The highest count that came with a grant: a flaw.
    count: Cell<Fence>,
    /// What the nodes have said of its rules, for clients that judge it wrongly.
    heard: RefCell<Heard>,
    effects: RefCell<Vec<Effect>>,
    view: RefCell<View>,
}

impl World {
    fn new(scene: &Scene, kind: Kind) -> Self {
        Self {
            unit: scene.unit,
            options: scene.options(kind),
            max_ttl_ms: scene
                .rules()
                .filter(|_| scene.flaw != Some(Flaw::ShortPlain))
                .and_then(|rules| u32::try_from(rules.max_ttl().as_millis()).ok()),
            reading: Cell::default(),
            frozen: Cell::default(),
            begun: Cell::default(),
            is_dropped: Cell::default(),
            is_extending: Cell::default(),
            answers: RefCell::default(),
            admissions: RefCell::default(),
            count: Cell::new(Fence::ZERO),
            heard: RefCell::default(),
            effects: RefCell::default(),
            view: RefCell::default(),
        }
    }

    fn give(&self, scene: &Scene, input: &Input) {
        self.reading.set(input.reading);
        match input.cause {
            Cause::Met(node, Meeting::Restarted) => return self.meet_again(scene, node),
            Cause::Met(node, Meeting::MayEvict) => return self.meet_evicting(node),
            _ => {}
        }
        self.view.borrow_mut().deadline = None;
        match &input.cause {
            Cause::Begin(operation) => self.begun.set(Some(*operation)),
            Cause::Wake(answers) | Cause::Read(answers) => {
                self.answers.borrow_mut().extend(answers.iter().copied());
            }
            Cause::Drop => self.is_dropped.set(true),
            Cause::Met(..) => {}
        }
    }

    /// Every node is met in the beginning, and has been running for long.
    fn meet_all(&self) {
        let nodes = self.admissions.borrow().len();
        for node in 0..nodes {
            self.meet(node, self.node_info(node));
        }
    }

    fn meet_again(&self, scene: &Scene, node: usize) {
        let mut view = self.view.borrow_mut();
        if view.met.is_empty() {
            view.met.extend(std::iter::repeat_n(None, scene.nodes));
        }
        view.met[node] = Some(self.now());
        // No node crashes twice.
        let mut restarted = self.node_info(node);
        restarted.run_id = RunId::new((node as u64) << 32 | 1);
        (restarted.max_ttl_ms, restarted.is_vouched) = (None, false);
        self.meet(node, restarted);
    }

    fn meet_evicting(&self, node: usize) {
        self.view.borrow_mut().evicting = Some(node);
        let mut evicting = self.node_info(node);
        evicting.may_evict = true;
        self.meet(node, evicting);
    }

    fn meet(&self, node: usize, node_info: NodeInfo) {
        let admission = &mut self.admissions.borrow_mut()[node];
        admission.ask(self.now());
        admission.record(Some(node_info), self.now());
    }

    fn node_info(&self, node: usize) -> NodeInfo {
        let run_id = RunId::new((node as u64) << 32);
        let mut info = NodeInfo::new(run_id, ReplicationId::new(0));
        info.uptime = Duration::from_secs(86_400);
        info.max_ttl_ms = self.max_ttl_ms;
        info.is_vouched = self.max_ttl_ms.is_some();
        info
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

/// The life of a client: one operation after the other, each one the shipping code.
async fn life(scene: &Scene, kind: Kind, world: &World) {
    world.meet_all();
    let phantom = (scene.flaw == Some(Flaw::HalfIsAQuorum)).then_some(None);
    let nodes = (0..scene.nodes).map(Some).chain(phantom);
    let mut redlock = Redlock::new(
        nodes.map(|node| Port { node, scene, world }),
        Watch { scene, world },
        Tokens { scene, world },
        world.options,
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
        let performance = perform(&mut redlock, &mut lease, operation, (scene, kind), world);
        if let Either::First(()) = select(world.dropped(), performance).await {
            world.did(Effect::Dropped);
        }
        world.frozen.set(None);
        let mut view = world.view.borrow_mut();
        view.is_busy = false;
        view.abandoned = redlock.abandoned().map(number);
        view.clock_offset = redlock.clock_offset();
        world.heard.borrow_mut().end_round(scene.flaw);
        view.looked_at = redlock.looked_at();
        view.may_vouch = world.heard.borrow().may_vouch();
    }
}

/// How many nodes a scene has at the most, with one that is not there.
const MAX_NODES: usize = 5;

type Lock<'w> = Redlock<Port<'w>, Watch<'w>, Tokens<'w>, MAX_NODES>;

/// Acquires the lock as [`Redlock::acquire`] does, but tries a split vote again like any other: after the shortest of all delays. The
/// three retries at once are attempts in a row, and with them a scene has two hundred times as many states.
async fn acquire<'w>(redlock: &mut Lock<'w>, world: &World) -> Acquired<'w> {
    let mut acquisition = redlock.begin();
    let give_up_at = world.now().saturating_add(redlock.options().wait_time());
    loop {
        let result = redlock.attempt(&mut acquisition, KEY).await;
        let now = world.now();
        if result.is_ok() || now >= give_up_at {
            return result;
        }
        let again_at = now.saturating_add(Options::MIN_RETRY_DELAY);
        redlock.clock().sleep_until(again_at.min(give_up_at)).await;
    }
}

type Acquired<'w> = Result<Lease<&'static str>, AcquireError<NodeErrorOf<Port<'w>>, MAX_NODES>>;

async fn perform(
    redlock: &mut Lock<'_>,
    lease: &mut Option<Lease<&'static str>>,
    operation: Operation,
    (scene, kind): (&Scene, Kind),
    world: &World,
) {
    let validity = world.options.validity();
    let begun_at = world.now();
    let believe = |claim| world.view.borrow_mut().claim = claim;
    match operation {
        Operation::Learn(more) => {
            let units = i64::from(BASE) + i64::from(more);
            let unit = i64::try_from(scene.unit.as_micros()).expect("units are short");
            redlock.set_clock_offset(Some(units * unit));
        }
        Operation::Acquire => match acquire(redlock, world).await {
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
            if kind.changes_options {
                redlock.set_options(scene.options(Kind {
                    is_plain: true,
                    ..kind
                }));
            }
            world.is_extending.set(true);
            let extended = redlock.extend(lease).await;
            world.is_extending.set(false);
            let (believed_until, effect) = match (extended, scene.flaw) {
                (Ok(()), Some(Flaw::OptionsOfNow)) => {
                    let validity = redlock.options().validity();
                    (begun_at.saturating_add(validity), Effect::Extended)
                }
                (Ok(()), _) => (lease.valid_until(), Effect::Extended),
                (
                    Err(ExtendError::Unreachable(report) | ExtendError::Lost(report)),
                    Some(Flaw::MinorityExtends),
                ) if report.tally().granted > 0 => {
                    (begun_at.saturating_add(validity), Effect::Extended)
                }
                (Err(ExtendError::Unreachable(_)), _) => {
                    world.did(Effect::NotExtended);
                    return;
                }
                (Err(_), _) => (lease.valid_until(), Effect::Lost),
            };
            believe(Some(Claim::new(lease, believed_until)));
            world.did(effect);
        }
        Operation::Release => {
            let Some(lease) = lease.take() else { return };
            believe(None);
            redlock.release(lease).await;
            world.did(Effect::Released);
        }
        Operation::Tidy => {
            redlock.release_abandoned().await;
            world.did(Effect::Tidied);
        }
    }
}

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
