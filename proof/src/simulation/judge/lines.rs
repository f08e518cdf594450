//! Whether the lines of waiting clients do what they are for: a free lock is taken soon, by the one that has waited longest, and
//! whoever leaves is gone.
//!
//! All but the last is judged only once everything else is calm.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use redlock_core::Denial;
use redlock_core::transport::{Call as LineCall, Reply};

use super::super::clock::{Moment, NEVER, Seconds};
use super::super::fault::Fault;
use super::super::history::{Call, End, Task, What};
use super::super::line_limits::LineLimits;
use super::super::place::{KEYS, Place, Route};
use super::super::promise::Promise;
use super::Breach;

/// The lines of a world.
#[derive(Debug, Default)]
pub(super) struct Lines {
    limits: LineLimits,
    now: Moment,
    /// By the place: until when a token stands there.
    standing: BTreeMap<Place, Moment>,
    /// Nodes that are gone for good, and those that had no vote when they were last asked.
    dead_nodes: Vec<usize>,
    denying: BTreeSet<usize>,
    /// By the key: since when the lock is free on a quorum of nodes.
    free_since: [Option<Moment>; KEYS.len()],
    /// By the key: when it was seen not to be free for the last time.
    held_at: [Moment; KEYS.len()],
    /// By the key: when a client was last about to try that nobody had called: its votes may split with a release.
    looked_at: [Moment; KEYS.len()],
    /// By the key: whether it is free because its lease has expired.
    has_expired: [bool; KEYS.len()],
    /// By the key: when a node has forgotten its line for the last time, or a client has tried to take the lock without it.
    upset_at: [Moment; KEYS.len()],
    clients: Vec<Client>,
    tasks: Vec<Waiter>,
    /// By the token: whether it was tried from a line.
    from_line: BTreeMap<usize, bool>,
    /// How many tries have followed the first call at once, and how many a quorum of calls.
    hasty: usize,
    patient: usize,
    breaches: Vec<Breach>,
}

#[derive(Debug, Clone, Default)]
struct Client {
    is_dead: bool,
    /// It has had a lock since all is calm: its connections are there, and nodes that had restarted have votes.
    has_held: bool,
    /// The end of its last pause.
    runs_from: Moment,
    /// When a node had no vote for it, as it knew, for the last time.
    denied_at: Moment,
    /// When a node refused its fence for the last time: if it gets no other in time, it leaves the lines until its next try.
    misfit_at: Moment,
    /// By the node: since when it has this connection; none if it has none.
    connected: Vec<Option<Moment>>,
    /// By the node: whether the node takes it for alive.
    subscribed: Vec<bool>,
    /// When it was not well for the last time.
    ill_at: Moment,
    /// When no node took it for alive any more.
    gone_at: Moment,
}

/// A task, and what it waits for.
#[derive(Debug, Clone)]
struct Waiter {
    task: Task,
    key: Option<usize>,
    since: Moment,
    /// By the node: since when it stands in the line of the key.
    registered: Vec<Option<Moment>>,
    /// When it was dropped while it waited, or has forgotten a lease, for the last time: it may still stand in lines.
    absent_at: Moment,
    /// When a node has called it for the last time.
    called_at: Moment,
    last_token: Option<usize>,
    /// The nodes that have called it since its last try because it is its turn, and when.
    turns: Vec<(usize, Moment)>,
    /// When it has begun its last tries.
    tries: VecDeque<(Moment, usize)>,
}

/// What a line forgets by itself, and some time.
const LAPSE: u64 = 12_000_000;

/// A client tries no more often in a second while another holds the lock.
const TRIES: usize = 30;

impl Lines {
    pub(super) fn new(limits: LineLimits) -> Self {
        let nodes = limits.nodes;
        let client = Client {
            connected: vec![None; nodes],
            subscribed: vec![false; nodes],
            ..Client::default()
        };
        Self {
            clients: vec![client; limits.clients.len()],
            limits,
            ..Self::default()
        }
    }

    pub(super) fn hear(&mut self, at: Moment, what: &What) -> Option<Breach> {
        self.now = at;
        match *what {
            What::Stands(place, _, until) => {
                self.look(place.key);
                self.standing.insert(place, until);
                self.look(place.key);
            }
            What::Falls(place) => {
                self.look(place.key);
                self.standing.remove(&place);
                self.look(place.key);
            }
            What::Fault(Fault::Crash(node, NEVER) | Fault::Hang(node, NEVER)) => {
                self.dead_nodes.push(node);
            }
            // The client notices it later.
            What::Fault(Fault::Break(Route { client, node })) => {
                self.look_at_all();
                self.clients[client].connected[node] = None;
                self.clients[client].ill_at = at;
            }
            What::Begins(task, call, _) => self.begins(task, call),
            What::Ends(task, _, end, _) => self.ends(task, end),
            What::Works(claim, _) => {
                self.granted(claim.task, claim.key, claim.token);
                self.ends(claim.task, End::Done);
            }
            What::Granted(claim, _) => self.granted(claim.task, claim.key, claim.token),
            What::Paused(client, until, _) => {
                self.look_at_all();
                let client = &mut self.clients[client];
                client.runs_from = client.runs_from.max(until);
                client.ill_at = client.ill_at.max(until);
            }
            What::Died(client) => {
                self.look_at_all();
                self.clients[client].is_dead = true;
                self.clients[client].ill_at = at;
            }
            What::Connected(Route { client, node }, is_connected) => {
                self.look_at_all();
                let client = &mut self.clients[client];
                client.connected[node] = is_connected.then_some(at);
                client.ill_at = at;
            }
            What::Subscribed(Route { client, node }, is_subscribed) => {
                self.look_at_all();
                let client = &mut self.clients[client];
                client.subscribed[node] = is_subscribed;
                if !is_subscribed && !client.subscribed.contains(&true) {
                    client.gone_at = at;
                }
            }
            What::Called(Route { node, .. }, task, _, call) => {
                if let Some(waiter) = self.tasks.iter_mut().find(|it| it.task == task) {
                    waiter.called_at = at;
                    if call == LineCall::Turn {
                        waiter.turns.push((node, at));
                    }
                }
            }
            What::Denied(Route { client, .. }) => {
                self.look_at_all();
                self.clients[client].denied_at = at;
            }
            What::ForgotLine(node, key) => {
                self.upset_at[key] = at;
                for task in &mut self.tasks {
                    if task.key == Some(key) {
                        task.registered[node] = None;
                    }
                }
            }
            What::Sent(task, _, message) if message.is_acquire() => {
                let is_from_line = message.place.is_some();
                let is_all = self.from_line.entry(message.token).or_insert(true);
                *is_all &= is_from_line;
                if !is_from_line {
                    self.upset_at[message.key] = at;
                } else {
                    let mut waiters = self.tasks.iter();
                    let waiter = waiters.find(|waiter| waiter.task == task);
                    if waiter.is_none_or(|waiter| waiter.called_at + 30_000 < at) {
                        self.looked_at[message.key] = at;
                    }
                    self.tries(task, message.key, message.token);
                }
            }
            What::Executed(Route { client, node }, message, Ok(reply)) => {
                if message.is_acquire() && message.place.is_none() {
                    self.upset_at[message.key] = at;
                }
                if message.is_acquire() && message.place.is_some() {
                    let number = self.limits.number(client, message.place);
                    let task = Task { client, number };
                    if let Some(waiter) = self.tasks.iter_mut().find(|it| it.task == task)
                        && waiter.key == Some(message.key)
                        && matches!(reply, Reply::Waiting(..))
                    {
                        waiter.registered[node].get_or_insert(at);
                    }
                }
            }
            What::Answered(Route { client, node }, message, answer) if message.is_acquire() => {
                let had_vote = !self.denying.contains(&node);
                let is_misfit = matches!(
                    answer,
                    Err(Denial::Stale(_) | Denial::TooOld(_) | Denial::TooNew(_))
                );
                if is_misfit {
                    self.clients[client].misfit_at = at;
                }
                let has_vote = is_misfit || answer.is_ok();
                if had_vote != has_vote {
                    self.look_at_all();
                    match has_vote {
                        true => self.denying.remove(&node),
                        false => self.denying.insert(node),
                    };
                    self.look_at_all();
                }
            }
            What::LineProbed(.., true) => {
                let what = format!("{what}, although it has left");
                self.breach(Promise::Line, at, what);
            }
            _ => (),
        }
        self.breaches.pop()
    }

    fn begins(&mut self, task: Task, call: Call) {
        self.look_at_all();
        let nodes = self.limits.nodes;
        let waiter = match self.tasks.iter_mut().find(|it| it.task == task) {
            Some(waiter) => waiter,
            None => {
                self.tasks.push(Waiter {
                    task,
                    key: None,
                    since: 0,
                    registered: vec![None; nodes],
                    absent_at: 0,
                    called_at: 0,
                    last_token: None,
                    turns: Vec::new(),
                    tries: VecDeque::new(),
                });
                let last = self.tasks.len() - 1;
                &mut self.tasks[last]
            }
        };
        waiter.key = match call {
            Call::Acquire(key) | Call::CalmAcquire(key) | Call::Hold(key) => Some(key),
            _ => None,
        };
        waiter.since = self.now;
        waiter.registered.fill(None);
        waiter.called_at = 0;
        waiter.turns.clear();
        waiter.tries.clear();
    }

    fn ends(&mut self, task: Task, end: End) {
        self.look_at_all();
        let now = self.now;
        if let Some(waiter) = self.tasks.iter_mut().find(|it| it.task == task) {
            if end == End::Dropped {
                waiter.absent_at = now;
            }
            waiter.key = None;
        }
    }

    /// Clients wait until a quorum has called, so that the lock is free where they ask for it. No try comes by chance in the
    /// microsecond of the first call, but for a few.
    fn heeds_calls(&mut self, task: Task) {
        let quorum = self.limits.nodes / 2 + 1;
        let Some(waiter) = self.tasks.iter_mut().find(|it| it.task == task) else {
            return;
        };
        let mut turns = core::mem::take(&mut waiter.turns);
        let Some((_, first)) = turns
            .first()
            .copied()
            .filter(|(_, at)| *at >= self.limits.from)
        else {
            return;
        };
        turns.sort_unstable();
        turns.dedup_by_key(|(node, _)| *node);
        if turns.len() >= quorum {
            self.patient += 1;
        } else if self.now == first {
            self.hasty += 1;
            if self.hasty >= 4 && self.hasty > self.patient {
                let what = format!("{task} tries before a quorum has called, as often before");
                self.breach(Promise::Restraint, first, what);
            }
        }
    }

    fn tries(&mut self, task: Task, key: usize, token: usize) {
        let now = self.now;
        let mut waiters = self.tasks.iter();
        let waiter = waiters.find(|waiter| waiter.task == task);
        if waiter.is_some_and(|waiter| waiter.last_token != Some(token)) {
            self.heeds_calls(task);
        }
        let mut waiters = self.tasks.iter_mut();
        if let Some(waiter) = waiters.find(|waiter| waiter.task == task) {
            waiter.last_token = Some(token);
        }
        // A client that cannot be called looks often, and then the first one is called.
        let is_callable = |waiter: &Waiter| {
            waiter.key != Some(key) || self.limits.is_callable(waiter.task.client)
        };
        let is_judged = now >= self.limits.from && self.tasks.iter().all(is_callable);
        if !is_judged || self.upset_at[key] + 1_000_000 > now {
            return;
        }
        let Some(waiter) = self.tasks.iter_mut().find(|it| it.task == task) else {
            return;
        };
        if waiter.tries.back().is_none_or(|(_, last)| *last != token) {
            waiter.tries.push_back((now, token));
        }
        if waiter.tries.len() <= TRIES {
            return;
        }
        if let Some((first, _)) = waiter.tries.pop_front()
            && now - first < 1_000_000
        {
            let what = format!("{task} tries {TRIES} times in {} us", now - first);
            self.breach(Promise::Restraint, first, what);
        }
    }

    /// Nobody is overtaken who has stood in the line of each node since before the other came.
    fn granted(&mut self, task: Task, key: usize, token: usize) {
        let is_from_line = self.from_line.get(&token).copied().unwrap_or_default();
        let begun_at = self.tasks.iter().find(|it| it.task == task);
        let Some(begun_at) = begun_at.map(|it| it.since) else {
            return;
        };
        self.clients[task.client].has_held |= self.now >= self.limits.from;
        if self.now < self.limits.from || !is_from_line || !self.dead_nodes.is_empty() {
            return;
        }
        let slack = self.limits.spread + self.limits.slack;
        let is_overtaken = |waiter: &&Waiter| {
            let registered = waiter.registered.iter().copied();
            let registered: Option<Vec<_>> = registered.collect();
            let registered = registered.and_then(|all| all.into_iter().max());
            waiter.task != task
                && waiter.key == Some(key)
                && waiter.since >= self.limits.from
                && registered.is_some_and(|at| at + slack < begun_at)
                && self.upset_at[key] < waiter.since
                && self.limits.is_callable(waiter.task.client)
                && self.well_since(waiter.task.client) <= Some(waiter.since)
                && self.well_since(waiter.task.client).is_some()
        };
        let overtaken = self.tasks.iter().find(is_overtaken).cloned();
        if let Some(waiter) = overtaken {
            let what = format!(
                "{task}, who waits since {}, overtakes {}, who waits since {}",
                Seconds(begun_at),
                waiter.task,
                Seconds(waiter.since)
            );
            self.breach(Promise::Fairness, waiter.since, what);
        }
    }

    /// Since when a client is alive, runs, and is connected to all nodes that live.
    fn well_since(&self, client: usize) -> Option<Moment> {
        let Client {
            is_dead,
            has_held,
            runs_from,
            denied_at,
            ref connected,
            ..
        } = self.clients[client];
        let is_new = !has_held;
        if is_new || is_dead || runs_from > self.now || !self.limits.clients[client].is_judged {
            return None;
        }
        let mut since = runs_from.max(denied_at);
        for (node, connected) in connected.iter().enumerate() {
            if !self.dead_nodes.contains(&node) {
                since = since.max((*connected)?);
            }
        }
        Some(since)
    }

    fn look_at_all(&mut self) {
        (0..KEYS.len()).for_each(|key| self.look(key));
    }

    /// Looks whether the lock is free, and for how long somebody has wanted it.
    fn look(&mut self, key: usize) {
        if self.now < self.limits.from {
            return;
        }
        let nodes = 0..self.limits.nodes;
        let votes = |node: &usize| !self.dead_nodes.contains(node) && !self.denying.contains(node);
        let live = nodes.filter(votes);
        let free_from = |node| {
            let until = self.standing.get(&Place { node, key });
            until.copied().unwrap_or_default()
        };
        let mut free: Vec<_> = live.map(free_from).filter(|at| *at <= self.now).collect();
        free.sort_unstable();
        let quorum = self.limits.nodes / 2 + 1;
        let Some(free_from) = free.get(quorum - 1).copied() else {
            self.free_since[key] = None;
            self.held_at[key] = self.now;
            return;
        };
        if self.free_since[key].is_none() {
            self.has_expired[key] = free_from > self.held_at[key];
            let waiters = self.tasks.iter_mut();
            let its = waiters.filter(|waiter| waiter.key == Some(key));
            its.for_each(|waiter| waiter.tries.clear());
        }
        let free_since = *self.free_since[key]
            .get_or_insert_with(|| free_from.max(self.held_at[key]).max(self.limits.from));
        let wants = |waiter: &&Waiter| waiter.key == Some(key);
        let idle = |waiter: &Waiter| {
            let well_since = self.well_since(waiter.task.client)?;
            let since = free_since.max(waiter.since).max(well_since);
            Some((self.now.saturating_sub(since), since, waiter.task))
        };
        let waiters = self.tasks.iter().filter(wants);
        let Some((idle, since, task)) = waiters.filter_map(idle).max_by_key(|(idle, ..)| *idle)
        else {
            return;
        };
        let bound = self.bound(key, since, task);
        if idle > bound {
            let what = format!(
                "{} is free for {idle} us although {task} wants it; {bound} are promised",
                KEYS[key]
            );
            self.breach(Promise::Idle, since, what);
            self.free_since[key] = Some(self.now);
        }
    }

    /// How long a lock may be free that a live client wants: turns of clients that do not come, a look at the end of the longest
    /// timer, and some rounds.
    fn bound(&self, key: usize, since: Moment, task: Task) -> u64 {
        let LineLimits {
            turn,
            timer,
            round,
            quick,
            ..
        } = self.limits;
        if self.is_smooth(key, since, task) {
            return quick;
        }
        let missing = self.missing(since, task) as u64;
        (missing + 1) * turn + timer + 4 * round
    }

    /// How many others may have a turn and not come at once.
    fn missing(&self, since: Moment, task: Task) -> usize {
        let from = since.saturating_sub(LAPSE);
        let is_missing = |waiter: &&Waiter| {
            let client = &self.clients[waiter.task.client];
            let is_ill = client.ill_at >= from || client.is_dead;
            let is_gone = client.is_dead && !client.subscribed.contains(&true);
            let is_gone = is_gone && client.gone_at < since;
            let is_absent = waiter.absent_at >= from;
            let is_callable = self.limits.is_callable(waiter.task.client);
            waiter.task != task && (is_ill && !is_gone || is_absent || !is_callable)
        };
        self.tasks.iter().filter(is_missing).count()
    }

    /// Whether nothing stands in the way of a hand-over but messages: all who wait can be called and are well, and nobody barges.
    fn is_smooth(&self, key: usize, since: Moment, task: Task) -> bool {
        self.limits.is_callable(task.client)
            && !self.retries_unheard(task)
            && self.dead_nodes.is_empty()
            && self.denying.is_empty()
            && !self.has_expired[key]
            && self
                .clients
                .iter()
                .all(|client| client.denied_at + LAPSE < since)
            && self.looked_at[key] + 5_000 < since
            && self.missing(since, task) == 0
            && self.upset_at[key] < since.saturating_sub(LAPSE.min(300_000))
    }

    /// Whether it has begun without a connection, so it stands in no line yet: then no node calls it, and it tries again after its
    /// retry delay, which has grown.
    fn retries_unheard(&self, task: Task) -> bool {
        let well_since = self.well_since(task.client);
        let its = |waiter: &&Waiter| waiter.task == task;
        self.tasks.iter().find(its).is_some_and(|waiter| {
            let is_outside = waiter.registered.iter().all(Option::is_none);
            is_outside && well_since > Some(waiter.since)
        })
    }

    fn breach(&mut self, promise: Promise, since: Moment, what: String) {
        self.breaches.push(Breach {
            promise,
            at: self.now,
            since,
            tokens: Vec::new(),
            what,
        });
    }
}
