//! The line of waiting clients alone: the nodes of the simulation, which do what the scripts do, and clients that wait by the rules of
//! the library (`Looks`), in every order of events.
//!
//! Within a unit of time all messages arrive, in any order, and all that is due happens; a call may be lost. So what takes time
//! here is what the rules make a client wait for.

use std::num::NonZero;

use redlock_core::mock::{Calls, Looks, Pace, Server, ServerFlaw};
use redlock_core::transport::{
    Call, Command, Mailbox, Place, Position, Refusal, Reply, RunId, VoteConditions,
};
use redlock_core::{Instant, Token};
use stateright::{Model, Property};

use super::explore::explore;
use super::numbered::Numbered;

const NODES_MAX: usize = 3;
const CLIENTS_MAX: usize = 3;
const KEY: &[u8] = b"dock-7";
/// A unit, in milliseconds: for so long a client waits for more calls after the first one.
const UNIT_MS: u32 = 25;
/// In units.
const TURN: u8 = 2;
const LOOK: u8 = 4;
const TTL: u8 = 6;
/// Of so many clients ahead, a client expects one to miss its turn: so few that this matters in a small world.
const AHEAD_PER_TURN: NonZero<u64> = NonZero::<u64>::MIN;

/// A world of a few nodes and clients that wait for one lock, with the line or with something wrong.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) nodes: usize,
    pub(super) clients: usize,
    /// When the search ends.
    pub(super) end: u8,
    /// How many clients may die, hang and give up, how many calls may be lost, and how many nodes forget their line.
    pub(super) mishaps: Mishaps,
    pub(super) slip: Option<Slip>,
    rows: Numbered<Node>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Mishaps {
    pub(super) deaths: u8,
    pub(super) hangs: u8,
    pub(super) leavers: u8,
    pub(super) lost_calls: u8,
    pub(super) lapses: u8,
}

/// How many nodes and clients, and when it ends; what goes wrong, and in words.
type Scene = ((usize, usize, u8), Mishaps, &'static str);

pub(super) const SCENES: [Scene; 7] = [
    ((1, 3, 14), NONE, "nothing goes wrong"),
    ((1, 3, 14), HANG, "one hangs"),
    ((1, 3, 12), DEATH, "one dies"),
    (
        (2, 2, 18),
        Mishaps {
            lost_calls: 2,
            ..DEATH
        },
        "one dies, two calls are lost",
    ),
    (
        (2, 2, 18),
        Mishaps {
            leavers: 1,
            lost_calls: 1,
            ..HANG
        },
        "one hangs, one gives up, a call is lost",
    ),
    (
        (2, 2, 18),
        Mishaps {
            lapses: 2,
            lost_calls: 1,
            ..NONE
        },
        "nodes forget their lines, a call is lost",
    ),
    (
        (3, 2, 14),
        Mishaps {
            lost_calls: 1,
            ..NONE
        },
        "a call is lost",
    ),
];

const NONE: Mishaps = Mishaps {
    deaths: 0,
    hangs: 0,
    leavers: 0,
    lost_calls: 0,
    lapses: 0,
};
const HANG: Mishaps = Mishaps { hangs: 1, ..NONE };
const DEATH: Mishaps = Mishaps { deaths: 1, ..NONE };

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slip {
    Server(ServerFlaw),
    /// A client waits for calls alone.
    NoTimer,
    /// A client that gives up does not leave the line.
    StaysInLine,
}

impl Slip {
    pub(super) const ALL: [Self; 4] = [
        Self::Server(ServerFlaw::KeepsHead),
        Self::Server(ServerFlaw::TurnNeverEnds),
        Self::NoTimer,
        Self::StaysInLine,
    ];

    /// In how large a world it shows.
    pub(super) const fn shows_in(self) -> ((usize, usize, u8), Mishaps) {
        match self {
            Self::Server(_) => ((1, 3, 24), HANG),
            Self::NoTimer => (
                (1, 2, 24),
                Mishaps {
                    lost_calls: 1,
                    ..NONE
                },
            ),
            Self::StaysInLine => ((1, 2, 24), Mishaps { leavers: 1, ..NONE }),
        }
    }

    pub(super) const fn about(self) -> &'static str {
        match self {
            Self::Server(ServerFlaw::KeepsHead) => "a client that does not come keeps its place",
            Self::Server(_) => "a turn does not end",
            Self::NoTimer => "a client waits for calls alone",
            Self::StaysInLine => "a client that gives up does not leave the line",
        }
    }
}

type Node = Server<1>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct World {
    now: u8,
    /// The number of each [`Node`].
    nodes: [u32; NODES_MAX],
    clients: [Client; CLIENTS_MAX],
    mishaps: Mishaps,
    /// For how long the lock has been free although a live client wants it.
    idle: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    /// When its wait began.
    since: u8,
    looks: Looks,
    /// The nodes that have called it, behind the reply to its last try.
    calls: Calls,
    /// When it tries because of these, if it does.
    called_for: Option<u8>,
    /// Whether a quorum has called it in this wait.
    was_called: bool,
    fate: Fate,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Fate {
    Well,
    Hung,
    Dead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Out,
    /// It asks the nodes, and knows what these have said.
    Tries([Said; NODES_MAX]),
    /// It takes back what was granted.
    CleansUp(u8, [Said; NODES_MAX]),
    Waits(u8),
    Holds(u8),
    /// It releases the lock, or leaves the line, on these nodes.
    Leaves(u8),
    Done,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Said {
    Nothing,
    Granted,
    /// For so many units.
    Held(u8),
    /// For so many units, and so many clients.
    Ahead(u8, u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Begin(usize),
    /// A node executes what a client has sent, and loses the calls that it makes if so.
    Execute(usize, usize, bool),
    /// A client whose round is lost and cleaned up waits; for so long, if that is random.
    Plan(usize, u8),
    /// A client tries: it is called, or it is time.
    Wake(usize),
    Release(usize),
    GiveUp(usize),
    Die(usize),
    Hang(usize),
    Forget(usize),
    Tick,
}

impl Line {
    pub(super) fn new(
        (nodes, clients, end): (usize, usize, u8),
        mishaps: Mishaps,
        slip: Option<Slip>,
    ) -> Self {
        Self {
            nodes,
            clients,
            end,
            mishaps,
            slip,
            rows: Numbered::default(),
        }
    }

    /// How many worlds there are, and which promise is broken, if one is.
    pub(super) fn search(self) -> (usize, Option<&'static str>) {
        let found = explore(&self, |_| true);
        let broken = found.steps.into_keys().find(|found| *found != TAKEN);
        (found.states, broken)
    }

    /// For how long a lock is free that a live client wants: the turns of those who do not come, a look, and a moment. If nothing
    /// goes wrong, for as long as a client waits after a split vote. Of clients that have died all nodes know.
    fn bound(&self) -> u8 {
        if self.mishaps == NONE {
            return 3;
        }
        (self.mishaps.hangs + 1) * (TURN + 1) + LOOK + 3
    }

    const fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn change(&self, world: &mut World, node: usize, change: impl FnOnce(&mut Node)) {
        let mut server = self.rows.get(world.nodes[node]).clone();
        change(&mut server);
        world.nodes[node] = self.rows.number(server);
    }

    fn is_free(&self, world: &World) -> bool {
        let is_free = |node: &usize| {
            let server = self.rows.get(world.nodes[*node]);
            server.entry(KEY, instant(world.now)).is_none()
        };
        (0..self.nodes).filter(is_free).count() >= self.quorum()
    }

    fn execute(&self, world: &mut World, client: usize, node: usize, is_lost: bool) {
        let it = world.clients[client];
        let token = Token::from_bytes([byte(client) + 1; Token::LEN]);
        let ticket = instant(it.since).as_micros() + client as u64;
        let turn_ms = u32::from(TURN) * UNIT_MS;
        let waiting = Place::waiting(mailbox(client), ticket, turn_ms);
        let release = Command::release(KEY, &token);
        let command = match it.phase {
            Phase::Tries(_) => {
                let ttl_ms = u32::from(TTL) * UNIT_MS;
                Command::acquire(KEY, &token, ttl_ms, VoteConditions::NONE)
                    .with_place(Some(waiting))
            }
            Phase::CleansUp(..) => release.with_place(Some(waiting)),
            _ => release.with_place(Some(Place::left(mailbox(client), turn_ms))),
        };
        let now = instant(world.now);
        let mut reply = None;
        let mut calls = Vec::new();
        self.change(world, node, |server| {
            reply = server.execute(&command, now).ok();
            calls = server.take_calls().collect();
            // What is over makes no difference to anybody.
            server.expire(now);
        });
        if !is_lost {
            for (mailbox, call) in calls {
                self.call(world, number(&mailbox), node, call);
            }
        }
        let it = &mut world.clients[client];
        match &mut it.phase {
            Phase::Tries(said) => {
                said[node] = match reply {
                    Some(Reply::Waiting(position, _)) => heard(&position),
                    _ => Said::Granted,
                };
                let granted = said.iter().filter(|said| **said == Said::Granted).count();
                if !said[..self.nodes].contains(&Said::Nothing) {
                    it.phase = if granted >= self.quorum() {
                        Phase::Holds(world.now + TTL)
                    } else {
                        let nodes = (0..self.nodes).filter(|node| said[*node] == Said::Granted);
                        Phase::CleansUp(nodes.map(|node| 1 << node).sum(), *said)
                    };
                }
            }
            Phase::CleansUp(left, _) => *left &= !(1 << node),
            Phase::Leaves(left) => {
                *left &= !(1 << node);
                if *left == 0 {
                    it.phase = Phase::Done;
                }
            }
            _ => {}
        }
    }

    /// A call arrives behind the reply of its node.
    fn call(&self, world: &mut World, client: usize, node: usize, call: Call) {
        let now = world.now;
        let it = &mut world.clients[client];
        let is_behind = match it.phase {
            Phase::Tries(said) => said[node] != Said::Nothing,
            Phase::Waits(_) | Phase::CleansUp(..) => true,
            Phase::Done => {
                // No client waits any more.
                if it.fate == Fate::Well && self.slip != Some(Slip::StaysInLine) {
                    it.phase = Phase::Leaves(1 << node);
                }
                false
            }
            _ => false,
        };
        if !is_behind || it.fate == Fate::Dead {
            return;
        }
        if let Some(micros) = it.looks.hear(&mut it.calls, node, call, &self.pace()) {
            let at = now.saturating_add(units(micros));
            it.called_for = Some(it.called_for.map_or(at, |known| known.min(at)));
            it.was_called |= micros == 0;
        }
    }

    /// By what clients measure their waits.
    fn pace(&self) -> Pace {
        let micros = |units: u8| u64::from(units) * u64::from(UNIT_MS) * 1_000;
        let nodes = u32::try_from(self.nodes).expect("there are few nodes");
        Pace::new(nodes, micros(TURN), micros(LOOK), AHEAD_PER_TURN)
    }

    /// What a client remembers after a lost round, and how long it waits then. `None` where that is random.
    fn pause(&self, it: &Client, said: &[Said; NODES_MAX]) -> (Looks, Option<u8>) {
        let mut looks = it.looks;
        let answers = said.map(Said::answer);
        let pause = looks.after_answers(&answers, &self.pace());
        match self.slip {
            Some(Slip::NoTimer) => (looks, Some(u8::MAX)),
            _ => (looks, pause.map(units)),
        }
    }

    /// Whether something happens before time passes.
    fn is_busy(world: &World) -> bool {
        world.clients.iter().any(|it| {
            let is_sent = it.fate != Fate::Dead
                && match it.phase {
                    Phase::Tries(_) => true,
                    Phase::CleansUp(left, _) | Phase::Leaves(left) => left != 0,
                    _ => false,
                };
            let is_due = it.fate == Fate::Well
                && match it.phase {
                    Phase::CleansUp(..) => true,
                    Phase::Waits(at) => Self::tries_at(it, at) <= world.now,
                    _ => false,
                };
            is_sent || is_due
        })
    }

    /// When a client tries that plans to wait until `at`.
    fn tries_at(it: &Client, at: u8) -> u8 {
        it.called_for.map_or(at, |called_for| called_for.min(at))
    }
}

/// What is seen at least.
const TAKEN: &str = "a client that was called takes the lock";

impl Model for Line {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let flaw = match self.slip {
            Some(Slip::Server(flaw)) => Some(flaw),
            _ => None,
        };
        let mut server = Node::new(RunId::new(1)).exact().with_flaw(flaw);
        for client in 0..self.clients {
            server.subscribe(mailbox(client));
        }
        let client = Client {
            phase: Phase::Out,
            since: 0,
            looks: Looks::NONE,
            calls: Calls::NONE,
            called_for: None,
            was_called: false,
            fate: Fate::Well,
        };
        vec![World {
            now: 0,
            nodes: [self.rows.number(server); NODES_MAX],
            clients: [client; CLIENTS_MAX],
            mishaps: self.mishaps,
            idle: 0,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let Mishaps {
            deaths,
            hangs,
            leavers,
            lost_calls,
            lapses,
        } = world.mishaps;
        for (client, it) in world.clients[..self.clients].iter().enumerate() {
            let waits = matches!(it.phase, Phase::Waits(_));
            let nodes: Vec<usize> = (0..self.nodes)
                .filter(|node| match it.phase {
                    Phase::Tries(said) => said[*node] == Said::Nothing,
                    Phase::CleansUp(left, _) | Phase::Leaves(left) => left >> node & 1 == 1,
                    _ => false,
                })
                .collect();
            if it.fate != Fate::Dead {
                // What a hung client has sent arrives.
                for node in nodes {
                    actions.push(Action::Execute(client, node, false));
                    if lost_calls > 0 {
                        actions.push(Action::Execute(client, node, true));
                    }
                }
            }
            if it.fate != Fate::Well {
                continue;
            }
            match it.phase {
                // They come one after the other: they are alike.
                Phase::Out if client == 0 || world.clients[client - 1].phase != Phase::Out => {
                    actions.push(Action::Begin(client));
                }
                Phase::CleansUp(0, said) => match self.pause(it, &said) {
                    (_, Some(pause)) => actions.push(Action::Plan(client, pause)),
                    (_, None) => actions.extend([1, 2].map(|pause| Action::Plan(client, pause))),
                },
                Phase::Waits(at) if Self::tries_at(it, at) <= world.now => {
                    actions.push(Action::Wake(client));
                }
                Phase::Holds(_) => actions.push(Action::Release(client)),
                _ => {}
            }
            if waits && leavers > 0 {
                actions.push(Action::GiveUp(client));
            }
            // The first one is always there.
            let has_come = it.phase != Phase::Out && it.phase != Phase::Done;
            if client > 0 && has_come && deaths > 0 {
                actions.push(Action::Die(client));
            }
            if client > 0 && waits && hangs > 0 {
                actions.push(Action::Hang(client));
            }
        }
        if lapses > 0 {
            actions.extend((0..self.nodes).map(Action::Forget));
        }
        if world.now < self.end && !Self::is_busy(world) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = *world;
        match action {
            Action::Begin(client) => {
                next.clients[client].phase = Phase::Tries([Said::Nothing; NODES_MAX]);
                next.clients[client].since = world.now;
            }
            Action::Execute(client, node, is_lost) => {
                self.execute(&mut next, client, node, is_lost);
                if is_lost {
                    let mut heard = *world;
                    self.execute(&mut heard, client, node, false);
                    if heard == next {
                        return None;
                    }
                    next.mishaps.lost_calls -= 1;
                }
            }
            Action::Plan(client, pause) => {
                let it = &mut next.clients[client];
                if let Phase::CleansUp(_, said) = it.phase {
                    it.looks = self.pause(it, &said).0;
                }
                it.phase = Phase::Waits(world.now.saturating_add(pause));
            }
            Action::Wake(client) => {
                let it = &mut next.clients[client];
                match it.called_for {
                    Some(_) => it.looks.try_called(it.calls, &self.pace()),
                    None => it.looks.look(),
                }
                it.phase = Phase::Tries([Said::Nothing; NODES_MAX]);
                it.calls = Calls::NONE;
                it.called_for = None;
            }
            Action::Release(client) => self.leave(&mut next.clients[client]),
            Action::GiveUp(client) => {
                next.mishaps.leavers -= 1;
                self.leave(&mut next.clients[client]);
                if self.slip == Some(Slip::StaysInLine) {
                    next.clients[client].phase = Phase::Done;
                }
            }
            Action::Die(client) => {
                next.mishaps.deaths -= 1;
                next.clients[client].fate = Fate::Dead;
                next.clients[client].calls = Calls::NONE;
                next.clients[client].called_for = None;
                for node in 0..self.nodes {
                    self.change(&mut next, node, |server| {
                        server.unsubscribe(mailbox(client));
                    });
                }
            }
            Action::Hang(client) => {
                next.mishaps.hangs -= 1;
                next.clients[client].fate = Fate::Hung;
            }
            Action::Forget(node) => {
                next.mishaps.lapses -= 1;
                self.change(&mut next, node, |server| server.forget_line(KEY));
            }
            Action::Tick => {
                let wants = |it: &Client| {
                    it.fate == Fate::Well
                        && matches!(
                            it.phase,
                            Phase::Tries(_) | Phase::CleansUp(..) | Phase::Waits(_)
                        )
                };
                let is_idle = self.is_free(world) && world.clients.iter().any(wants);
                next.idle = if is_idle { world.idle + 1 } else { 0 };
                next.now += 1;
                for it in &mut next.clients {
                    if matches!(it.phase, Phase::Holds(until) if until <= next.now) {
                        self.leave(it);
                    }
                }
                for node in 0..self.nodes {
                    let now = instant(next.now);
                    self.change(&mut next, node, |server| server.expire(now));
                }
            }
        }
        (next != *world).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let is_exclusive = |_: &Self, world: &World| {
            let holds = |it: &&Client| matches!(it.phase, Phase::Holds(until) if world.now < until);
            world.clients.iter().filter(holds).count() <= 1
        };
        let is_taken = |line: &Self, world: &World| world.idle <= line.bound();
        let takes = |_: &Self, world: &World| {
            let mut clients = world.clients.iter();
            clients.any(|it| it.was_called && matches!(it.phase, Phase::Holds(_)))
        };
        let is_gone = |line: &Self, world: &World| {
            let is_done = |it: &Client| it.phase == Phase::Done && it.fate == Fate::Well;
            !world.clients[..line.clients].iter().all(is_done)
                || world.nodes[..line.nodes].iter().all(|node| {
                    let server = line.rows.get(*node);
                    let now = instant(world.now);
                    server.line(KEY, now).next().is_none() && server.turn(KEY, now).is_none()
                })
        };
        vec![
            Property::always("no two hold the lock", is_exclusive),
            Property::always("a lock that is free and wanted is taken", is_taken),
            Property::always("no place is left", is_gone),
            Property::sometimes(TAKEN, takes),
        ]
    }
}

impl Line {
    /// It releases the lock, or gives up, and remembers nothing of its wait.
    const fn leave(&self, it: &mut Client) {
        *it = Client {
            phase: Phase::Leaves((1 << self.nodes) - 1),
            looks: Looks::NONE,
            calls: Calls::NONE,
            called_for: None,
            was_called: false,
            ..*it
        };
    }
}

fn heard(position: &Position) -> Said {
    let units = position.left_ms.div_ceil(UNIT_MS);
    let left = u8::try_from(units).unwrap_or(u8::MAX);
    match position.refusal {
        Refusal::Held => Said::Held(left),
        Refusal::Ahead | Refusal::Full => {
            Said::Ahead(left, u8::try_from(position.ahead).unwrap_or(u8::MAX))
        }
    }
}

impl Said {
    /// The answer of which this is the short form.
    fn answer(self) -> Result<Reply, ()> {
        let (refusal, left, ahead) = match self {
            Self::Nothing => return Err(()),
            Self::Granted => return Ok(Reply::Acquired(None)),
            Self::Held(left) => (Refusal::Held, left, 0),
            Self::Ahead(left, ahead) => (Refusal::Ahead, left, ahead),
        };
        let position = Position::new(refusal, 0, u32::from(left) * UNIT_MS, ahead.into());
        Ok(Reply::Waiting(position, None))
    }
}

/// As many units as these microseconds last.
fn units(micros: u64) -> u8 {
    let units = micros.div_ceil(u64::from(UNIT_MS) * 1_000);
    u8::try_from(units).unwrap_or(u8::MAX)
}

/// What a clock reads: well behind its start, so that tickets are in the past.
fn instant(now: u8) -> Instant {
    let units = 10_000 + u64::from(now);
    Instant::from_micros(units * u64::from(UNIT_MS) * 1_000)
}

fn mailbox(client: usize) -> Mailbox {
    Mailbox::new([byte(client); 8])
}

fn number(mailbox: &Mailbox) -> usize {
    (0..CLIENTS_MAX)
        .find(|client| self::mailbox(*client).digits() == mailbox.digits())
        .expect("a client of this world")
}

fn byte(client: usize) -> u8 {
    u8::try_from(client).expect("there are few clients")
}
