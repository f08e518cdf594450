//! The line of waiting clients alone: the nodes of the simulation, which do what the scripts do, and clients that follow the rules
//! of `docs/line.md`, in every order of events.
//!
//! Within a unit of time all messages arrive, in any order, and all that is due happens; a call may be lost. So what takes time
//! here is what the rules make a client wait for.

use std::collections::HashMap;
use std::sync::Mutex;

use redlock_core::mock::{Server, ServerFlaw};
use redlock_core::transport::{
    Call, Command, Mailbox, Place, Position, Refusal, Reply, RunId, VoteConditions,
};
use redlock_core::{Instant, Token};
use stateright::{Checker, HasDiscoveries, Model, Property};

const NODES_MAX: usize = 3;
const CLIENTS_MAX: usize = 3;
const KEY: &[u8] = b"dock-7";
/// A unit, in milliseconds: for so long a client waits for more calls after the first one.
const UNIT_MS: u32 = 25;
/// In units.
const TURN: u8 = 2;
const LOOK: u8 = 4;
const TTL: u8 = 6;
const LOOKS_MIN: u8 = 3;

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
    rows: Mutex<Rows>,
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

/// Nodes, each under a number: a world is small, and a node is not.
#[derive(Debug, Default)]
struct Rows {
    servers: Vec<Node>,
    numbers: HashMap<Node, u16>,
}

type Node = Server<1>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct World {
    now: u8,
    nodes: [u16; NODES_MAX],
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
    looks: u8,
    /// The nodes that have called it, behind the reply to its last try.
    called: u8,
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
    Ahead(u8),
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
            rows: Mutex::default(),
        }
    }

    /// How many worlds there are, and which promise is broken, if one is.
    pub(super) fn search(self) -> (usize, Option<&'static str>) {
        let checker = self
            .checker()
            .finish_when(HasDiscoveries::AnyFailures)
            .spawn_bfs()
            .join();
        let broken = checker
            .discoveries()
            .into_keys()
            .find(|found| *found != TAKEN);
        (checker.unique_state_count(), broken)
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

    fn server(&self, row: u16) -> Node {
        self.rows.lock().expect("no search has panicked").servers[usize::from(row)].clone()
    }

    fn row(&self, server: Node) -> u16 {
        let mut rows = self.rows.lock().expect("no search has panicked");
        if let Some(row) = rows.numbers.get(&server) {
            return *row;
        }
        let row = u16::try_from(rows.servers.len()).expect("there are few different nodes");
        rows.servers.push(server.clone());
        rows.numbers.insert(server, row);
        row
    }

    fn change(&self, world: &mut World, node: usize, change: impl FnOnce(&mut Node)) {
        let mut server = self.server(world.nodes[node]);
        change(&mut server);
        world.nodes[node] = self.row(server);
    }

    fn is_free(&self, world: &World) -> bool {
        let is_free = |node: &usize| {
            let server = self.server(world.nodes[*node]);
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
                it.called &= !(1 << node);
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
        let until = match call {
            Call::Turn => {
                it.called |= 1 << node;
                now + 1
            }
            _ => now + TURN + 1,
        };
        if let Phase::Waits(at) = &mut it.phase {
            *at = until.min(*at);
        }
    }

    /// How long a client waits after a lost round. None where it is random.
    fn pause(&self, it: &Client, said: &[Said]) -> Option<u8> {
        let held = said.iter().filter(|said| matches!(said, Said::Held(_)));
        let ahead = said.iter().filter_map(|said| match said {
            Said::Ahead(left) => Some(*left),
            _ => None,
        });
        let (held, turn) = (held.count(), ahead.clone().max());
        if self.slip == Some(Slip::NoTimer) {
            return Some(u8::MAX);
        }
        if it.looks >= LOOKS_MIN && held > 0 {
            let mut left: Vec<_> = said
                .iter()
                .map(|said| match said {
                    Said::Held(left) => *left,
                    _ => 0,
                })
                .collect();
            left.sort_unstable();
            let expiry = left[self.quorum() - 1].saturating_add(1);
            return Some(expiry.min(LOOK));
        }
        let blocking = self.nodes + 1 - self.quorum();
        let turn = turn.filter(|left| *left > 0 && held + ahead.count() >= blocking)?;
        Some(turn.saturating_add(1))
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
                    Phase::Waits(at) => at <= world.now,
                    _ => false,
                };
            is_sent || is_due
        })
    }

    fn is_called(&self, it: &Client) -> bool {
        it.called.count_ones() as usize >= self.quorum()
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
            looks: 0,
            called: 0,
            fate: Fate::Well,
        };
        vec![World {
            now: 0,
            nodes: [self.row(server); NODES_MAX],
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
                Phase::CleansUp(0, said) => match self.pause(it, &said[..self.nodes]) {
                    Some(pause) => actions.push(Action::Plan(client, pause)),
                    None => actions.extend([1, 2].map(|pause| Action::Plan(client, pause))),
                },
                Phase::Waits(at) if at <= world.now || self.is_called(it) => {
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
        let is_called = |it: &Client| {
            it.fate == Fate::Well && matches!(it.phase, Phase::Waits(_)) && self.is_called(it)
        };
        if world.now < self.end && !Self::is_busy(world) && !world.clients.iter().any(is_called) {
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
                it.looks = (it.looks + 1).min(LOOKS_MIN);
                let pause = if it.called == 0 { pause } else { pause.min(1) };
                it.phase = Phase::Waits(world.now.saturating_add(pause));
            }
            Action::Wake(client) => {
                let it = &mut next.clients[client];
                if self.is_called(it) {
                    it.looks = 0;
                }
                it.called = 0;
                it.phase = Phase::Tries([Said::Nothing; NODES_MAX]);
            }
            Action::Release(client) => next.clients[client].phase = self.leaves(),
            Action::GiveUp(client) => {
                next.mishaps.leavers -= 1;
                next.clients[client].phase = match self.slip {
                    Some(Slip::StaysInLine) => Phase::Done,
                    _ => self.leaves(),
                };
            }
            Action::Die(client) => {
                next.mishaps.deaths -= 1;
                next.clients[client].fate = Fate::Dead;
                next.clients[client].called = 0;
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
                        it.phase = self.leaves();
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
            clients.any(|it| it.looks == 0 && it.since > 0 && matches!(it.phase, Phase::Holds(_)))
        };
        let is_gone = |line: &Self, world: &World| {
            let is_done = |it: &Client| it.phase == Phase::Done && it.fate == Fate::Well;
            !world.clients[..line.clients].iter().all(is_done)
                || world.nodes[..line.nodes].iter().all(|node| {
                    let server = line.server(*node);
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
    const fn leaves(&self) -> Phase {
        Phase::Leaves((1 << self.nodes) - 1)
    }
}

fn heard(position: &Position) -> Said {
    let units = position.left_ms.div_ceil(UNIT_MS);
    let left = u8::try_from(units).unwrap_or(u8::MAX);
    match position.refusal {
        Refusal::Held => Said::Held(left),
        Refusal::Ahead | Refusal::Full => Said::Ahead(left),
    }
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
