//! The state of a world, which events change. `connection`, `delivery`, `injection`, `network`, `nodes`, `operator`,
//! `pauses` and `session` say what happens to it, each in one respect, and `world` lets it happen.

use std::task::Waker;

use redlock_core::transport::{Command, Reply};
use redlock_core::{Denial, Fence, FenceGate, Token};

use super::assumption::Assumption;
use super::chance::Chance;
use super::clock::{Dial, Moment};
use super::fault::{Fault, Kind};
use super::fencing::{Fencing, Jumps};
use super::handover::Handover;
use super::history::{Claim, Fact, Message, Task, What};
use super::link::{Link, Mail, Straggler};
use super::machine::{Left, Machine};
use super::mailboxes::Mailboxes;
use super::new_rules::NewRules;
use super::place::{KEYS, Route};
use super::process::Process;
use super::queue::Queue;
use super::scenario::Scenario;
use super::slab::{Name, Slab};
use super::socket::Socket;

/// All of a world.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) now: Moment,
    pub(super) calm_at: Moment,
    pub(super) queue: Queue<Event>,
    pub(super) chance: Chance,
    pub(super) machines: Vec<Machine>,
    /// The clock that is right, if there is one: by it the others are set.
    pub(super) right: Dial,
    /// By how much the clocks differ that are right.
    pub(super) skew: u64,
    /// None in a world of plain locks.
    pub(super) jumps: Option<Jumps>,
    /// Some clients follow other rules.
    pub(super) has_other_rules: bool,
    /// Of a grant that its client never hears of: one in so many.
    pub(super) lost_grant_odds: u64,
    /// The rules of the nodes' fleet, where there are fenced locks.
    pub(super) rules: Option<redlock_core::Fencing>,
    /// What an operator does about them.
    pub(super) change: Option<NewRules>,
    /// The limits by which clocks are set back.
    pub(super) fencing: Option<Fencing>,
    /// By the client: the rules that an acquire of it has confirmed, where this is never out of date.
    pub(super) confirmed: Vec<Option<redlock_core::Fencing>>,
    /// The token of each attempt that a node has told of a record of an earlier process, where such a record is never out of date.
    pub(super) recorded: Vec<usize>,
    /// By the client: the longest that it waits for a node.
    pub(super) node_timeouts: Vec<u64>,
    pub(super) processes: Vec<Process>,
    links: Vec<Link>,
    /// By the client: the machine behind each name that it has for a node.
    names: Vec<Vec<usize>>,
    pub(super) stragglers: Slab<Straggler>,
    pub(super) calls: Slab<PendingCall>,
    pub(super) timers: Slab<Waker>,
    pub(super) mailboxes: Mailboxes,
    /// The name of no call.
    pub(super) no_call: Name,
    /// The bytes of each token, by the number that it has in the history.
    pub(super) tokens: Vec<Token>,
    /// Acquires that a task has sent during its call: the key and the token.
    pub(super) attempts: Vec<(Task, usize, usize)>,
    pub(super) parcels: u64,
    pub(super) commands: u64,
    pub(super) faults: [u64; Kind::ALL.len()],
    facts: Vec<Fact>,
    /// What is to go wrong, by its number.
    pub(super) plan: Vec<Fault>,
    broken: Option<Assumption>,
    /// The lengths of time that matter here.
    pub(super) lengths: [u64; 4],
    /// What the locks protect checks fences, key by key.
    pub(super) gates: [FenceGate; KEYS.len()],
    /// What nodes have told that count their grants: the token, and the highest count.
    pub(super) counts: Vec<(usize, u64)>,
    /// What processes have written down for their successors.
    pub(super) handovers: Vec<Handover>,
    /// The tokens of leases that a successor has tried to take over.
    pub(super) adopted: Vec<usize>,
    /// Nodes and tokens of such leases: an acquire that came after that.
    pub(super) late_acquires: Vec<(usize, usize)>,
}

/// What is going to happen. A connection has a number, since it may be gone by then.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// A task can run again.
    Free,
    Timer(Name),
    Arrival(Route, u32),
    Answer(Route, u32),
    Straggler(Name),
    Notice(Route, u32),
    /// The node notices that the connection is gone.
    HangUp(Route, u32),
    /// A process that was in the middle of a poll dies.
    Die(usize),
    /// A call comes over a connection of its own.
    Mail(Route, u32, Mail),
    Reconnect(Route),
    /// A node is back, with what is left of its data.
    Restart(usize, Left),
    /// An operator who found a fleet that has never been used writes the record of one node.
    Init(usize),
    /// An operator who changes the rules writes the record of one node.
    Change(usize),
    /// A client uses the resource that a lock protects.
    Visit(Claim),
    Fault(usize),
    Calm,
    /// An operator looks whether clients can restore the guard records, and restores them if not.
    Repair,
}

/// A call that waits for its reply, or for a connection.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    pub(super) waker: Option<Waker>,
    /// An error means that the connection is gone.
    pub(super) result: Option<Result<Result<Reply, Denial>, ()>>,
}

impl State {
    /// Far more than happens in any world.
    const FACTS_MAX: usize = 1_000_000;

    pub(super) fn new(scenario: &Scenario, chance: &mut Chance) -> Self {
        let mut calls = Slab::new();
        let no_call = calls.insert(PendingCall::default());
        calls.remove(no_call);
        let mut queue = Queue::new(chance.child());
        for (number, (at, _)) in scenario.plan.iter().enumerate() {
            queue.add(*at, Event::Fault(number));
        }
        queue.add(scenario.calm_at, Event::Calm);
        if scenario.fencing.is_some() {
            queue.add(scenario.restored_at(), Event::Repair);
        }
        let mut state = Self {
            now: 0,
            calm_at: scenario.calm_at,
            queue,
            chance: chance.child(),
            machines: Machine::fleet(scenario),
            right: scenario.right,
            skew: scenario.fencing.map_or(0, |fencing| fencing.skew),
            jumps: scenario.fencing.map(|fencing| fencing.jumps),
            has_other_rules: scenario.has_other_rules,
            lost_grant_odds: scenario.lost_grant_odds,
            rules: scenario.first_rules(),
            change: NewRules::of(scenario),
            fencing: scenario.before.or(scenario.fencing),
            confirmed: vec![None; scenario.clients.len()],
            recorded: Vec::new(),
            node_timeouts: scenario
                .clients
                .iter()
                .map(|client| client.node_timeout())
                .collect(),
            processes: scenario
                .clients
                .iter()
                .map(|client| client.process())
                .collect(),
            links: Vec::new(),
            names: scenario
                .clients
                .iter()
                .map(|client| client.names.clone())
                .collect(),
            stragglers: Slab::new(),
            calls,
            timers: Slab::new(),
            mailboxes: Mailboxes::new(scenario),
            no_call,
            tokens: Vec::new(),
            attempts: Vec::new(),
            parcels: 0,
            commands: 0,
            faults: [0; Kind::ALL.len()],
            facts: Vec::with_capacity(4_096),
            plan: scenario.plan.iter().map(|(_, fault)| *fault).collect(),
            broken: scenario.broken,
            lengths: scenario.lengths,
            gates: [FenceGate::new(); KEYS.len()],
            counts: Vec::new(),
            handovers: Vec::new(),
            adopted: Vec::new(),
            late_acquires: Vec::new(),
        };
        state.links = scenario.links.iter().copied().map(Link::new).collect();
        let links = state.links.chunks_mut(scenario.nodes.len());
        for (links, client) in links.zip(&scenario.clients) {
            for link in links {
                link.socket = client
                    .hardware
                    .map(|hardware| Box::new(Socket::new(hardware)));
            }
        }
        state.connect_all();
        state
    }

    pub(crate) fn tell(&mut self, what: What) {
        self.tell_at(self.now, what);
    }

    pub(crate) fn tell_at(&mut self, at: Moment, what: What) {
        self.facts.push(Fact { at, what });
    }

    /// Something that a client did, at its own moment.
    pub(crate) fn tell_of(&mut self, client: usize, what: What) {
        self.tell_at(self.moment_of(client), what);
    }

    /// All that happened, in the order of time.
    pub(crate) fn take_facts(&mut self) -> Vec<Fact> {
        let mut facts = core::mem::take(&mut self.facts);
        facts.sort_by_key(|fact| fact.at);
        facts
    }

    /// Whether a client repeats itself without an end, perhaps within one poll.
    pub(super) const fn is_endless(&self) -> bool {
        self.facts.len() > Self::FACTS_MAX
    }

    pub(crate) const fn nodes(&self) -> usize {
        self.machines.len()
    }

    pub(super) fn names_twice(&self, client: usize) -> bool {
        let names = &self.names[client];
        (1..names.len()).any(|name| names[..name].contains(&names[name]))
    }

    /// What answers under the name that a client has for a node.
    pub(super) fn machine_of(&self, route: Route) -> usize {
        self.names[route.client][route.node]
    }

    /// All ways to a machine.
    pub(super) fn routes_to(&self, machine: usize) -> Vec<Route> {
        let names = self.names.iter().enumerate().flat_map(|(client, names)| {
            let names = names.iter().enumerate();
            names.map(move |(node, of)| (Route { client, node }, *of))
        });
        let routes = names.filter(|(_, of)| *of == machine);
        routes.map(|(route, _)| route).collect()
    }

    pub(super) fn link(&mut self, route: Route) -> &mut Link {
        &mut self.links[route.client * self.machines.len() + route.node]
    }

    /// The number of `token` in the history.
    pub(crate) fn number_of(&mut self, token: &Token) -> usize {
        // The latest ones are asked for most.
        let known = self.tokens.iter().rposition(|known| known == token);
        known.unwrap_or_else(|| {
            self.tokens.push(*token);
            self.tokens.len() - 1
        })
    }

    /// `command` as the history has it.
    pub(super) fn message_of(&mut self, command: &Command<'_>) -> Message {
        let key = KEYS.iter().position(|key| key.as_bytes() == command.key);
        Message {
            verb: command.verb,
            key: key.unwrap_or_default(),
            token: self.number_of(command.token),
            proposal: command.proposal,
            place: command.place,
        }
    }

    /// Takes note of the count that came with a grant.
    pub(super) fn counted(&mut self, token: usize, fence: Fence) {
        if self.fails(Assumption::Count) {
            self.counts.push((token, fence.as_u64()));
        }
    }

    /// What a client takes for its fence: where nodes count, the highest count that came with a grant.
    pub(crate) fn fence_of(&self, token: usize, fence: Fence) -> Fence {
        if !self.fails(Assumption::Count) {
            return fence;
        }
        let counts = self.counts.iter().filter(|(whose, _)| *whose == token);
        counts
            .map(|(_, count)| Fence::from_u64(*count))
            .max()
            .unwrap_or(fence)
    }

    /// The holder of a fenced lease comes to what the lock protects, at its own moment.
    pub(crate) fn visit(&mut self, claim: Claim) {
        let at = self.moment_of(claim.task.client);
        self.queue.add(at, Event::Visit(claim));
    }

    pub(super) fn admit(&mut self, claim: Claim) {
        if let Some(fence) = claim.fence {
            let is_admitted = self.gates[claim.key].admit(fence);
            self.count_many(Kind::RefusedVisit, (!is_admitted).into());
            self.tell(What::Visits(claim, is_admitted));
        }
    }

    pub(super) fn finish_call(&mut self, call: Name, result: Result<Result<Reply, Denial>, ()>) {
        if let Some(pending) = self.calls.get_mut(call) {
            pending.result = Some(result);
        }
        self.wake_call(call);
    }

    pub(super) fn wake_call(&mut self, call: Name) {
        if let Some(waker) = self
            .calls
            .get_mut(call)
            .and_then(|pending| pending.waker.take())
        {
            waker.wake();
        }
    }

    pub(crate) const fn broken(&self) -> Option<Assumption> {
        self.broken
    }

    pub(crate) fn fails(&self, assumption: Assumption) -> bool {
        self.broken == Some(assumption)
    }
}
