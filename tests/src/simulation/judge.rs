//! Whether the lock kept its promises: looks at what happened and at nothing else. It does not know how the
//! lock works, nor how the world was made.

use core::fmt;
use std::collections::BTreeMap;

use redlock_core::Instant;

use super::clock::Moment;
use super::history::{Call, End, Fact, KEYS, Seconds, Task, Verb, What};
use crate::exclusion::{Holding, overlaps};

/// A promise of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    /// No two hold one lock at once.
    Exclusion,
    /// A lease is valid when it is handed out, and when it is extended.
    Validity,
    /// While a lease is valid a quorum of nodes carries its token.
    Quorum,
    /// A lease is not said to be lost while it is not, nor work to be done under a lease that is lost.
    Loss,
    /// What is not wanted any more is deleted on every node whose connection has lived since.
    Cleanup,
    /// A token is never used twice.
    Token,
    /// Every call ends in time.
    Time,
    /// When nothing goes wrong whoever waits gets the lock.
    Progress,
}

/// A promise that was broken.
#[derive(Debug)]
pub(crate) struct Breach {
    pub(crate) promise: Promise,
    pub(crate) at: Moment,
    /// What it is about, for whoever reads the trace.
    pub(crate) key: Option<usize>,
    pub(crate) since: Moment,
    what: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} broken at {}: {}",
            self.promise,
            Seconds(self.at),
            self.what
        )
    }
}

/// Every promise that was broken, in a world of so many nodes. The facts are in the order of time.
pub(crate) fn judge(facts: &[Fact], nodes: usize) -> Vec<Breach> {
    let mut judge = Judge::new(nodes);
    for fact in facts {
        judge.hear(fact.at, fact.what);
    }
    judge.conclude()
}

#[derive(Debug)]
struct Judge {
    quorum: usize,
    breaches: Vec<Breach>,
    leases: Vec<Tenure>,
    /// By the token: the last of its leases.
    latest: BTreeMap<usize, usize>,
    /// When a token was first sent.
    first_sent: BTreeMap<usize, Moment>,
    /// Who sent an acquire with a token to a node.
    sent: BTreeMap<(usize, usize), Task>,
    /// What stands on a node under a key.
    standing: BTreeMap<(usize, usize), Standing>,
    stood: Vec<Standing>,
    pauses: Vec<Pause>,
    running: Vec<Running>,
}

/// Somebody holds a lock.
#[derive(Debug, Clone, Copy)]
struct Tenure {
    task: Task,
    key: usize,
    token: usize,
    from: Moment,
    until: Moment,
    /// Work that ends when it is dropped, and cannot be dropped while its process is paused.
    is_work: bool,
    /// Whether a quorum carried its token when work was stopped.
    had_quorum: bool,
}

/// A token stood under a key of a node.
#[derive(Debug, Clone, Copy)]
struct Standing {
    token: usize,
    from: Moment,
    until: Moment,
}

#[derive(Debug, Clone, Copy)]
struct Pause {
    client: usize,
    from: Moment,
    until: Moment,
    local: u64,
}

/// A call that has not ended.
#[derive(Debug, Clone, Copy)]
struct Running {
    task: Task,
    call: Call,
    from: Moment,
    local: u64,
    bound: u64,
}

impl Judge {
    const fn new(nodes: usize) -> Self {
        Self {
            quorum: nodes / 2 + 1,
            breaches: Vec::new(),
            leases: Vec::new(),
            latest: BTreeMap::new(),
            first_sent: BTreeMap::new(),
            sent: BTreeMap::new(),
            standing: BTreeMap::new(),
            stood: Vec::new(),
            pauses: Vec::new(),
            running: Vec::new(),
        }
    }

    fn hear(&mut self, at: Moment, what: What) {
        match what {
            What::Begins {
                task,
                call,
                local,
                bound,
            } => {
                self.running.push(Running {
                    task,
                    call,
                    from: at,
                    local,
                    bound,
                });
            }
            What::Ends {
                task,
                call,
                end,
                local,
            } => self.ends(at, task, call, end, local),
            What::Granted {
                task,
                key,
                token,
                until,
            } => {
                self.holds(
                    at,
                    Tenure {
                        task,
                        key,
                        token,
                        from: at,
                        until,
                        is_work: false,
                        had_quorum: false,
                    },
                );
            }
            What::Works {
                task,
                key,
                token,
                until,
            } => {
                if at >= until {
                    self.invalid(at, key, token);
                }
                self.holds(
                    at,
                    Tenure {
                        task,
                        key,
                        token,
                        from: at,
                        until: Moment::MAX,
                        is_work: true,
                        had_quorum: false,
                    },
                );
            }
            What::Extended {
                key, token, until, ..
            } => self.extended(at, key, token, until),
            What::Stops { key, token, .. } => self.stops(at, key, token),
            What::Over { token, .. } => {
                if let Some(lease) = self.lease(token) {
                    lease.until = lease.until.min(at);
                }
            }
            What::CalledLost { task, key, token } => self.called_lost(at, task, key, token),
            What::CalledDone { task, key, token } => self.called_done(at, task, key, token),
            What::Paused {
                client,
                until,
                local,
            } => {
                self.pauses.push(Pause {
                    client,
                    from: at,
                    until,
                    local,
                });
            }
            What::Sent {
                task,
                node,
                message,
            } => {
                self.first_sent.entry(message.token).or_insert(at);
                if message.verb == Verb::Acquire {
                    self.sent_acquire(at, task, node, message.key, message.token);
                }
            }
            What::Stands {
                node,
                key,
                token,
                until,
            } => self.stands(at, node, key, token, until),
            What::Falls { node, key } => self.falls(at, node, key),
            What::Forgets { node } => (0..KEYS.len()).for_each(|key| self.falls(at, node, key)),
            What::Probed {
                client,
                node,
                key,
                token,
                stands: true,
            } => {
                let what = format!(
                    "node {node} still has {} = t{token}, of which client {client} is done, although all that \
                     was sent has arrived",
                    KEYS[key]
                );
                self.breach(Promise::Cleanup, at, key, token, what);
            }
            What::Endless => {
                let what = "events without end: somebody goes round in circles".into();
                self.breach_of(Promise::Time, at, None, at.saturating_sub(1_000), what);
            }
            What::Executed { .. }
            | What::Answered { .. }
            | What::Connection { .. }
            | What::Probed { .. }
            | What::Fault(_)
            | What::Calm => (),
        }
    }

    fn ends(&mut self, at: Moment, task: Task, call: Call, end: End, local: u64) {
        let Some(place) = self.running.iter().position(|running| running.task == task) else {
            return;
        };
        let begun = self.running.swap_remove(place);
        let paused: u64 = self
            .pauses
            .iter()
            .filter(|pause| {
                pause.client == task.client && pause.until >= begun.from && pause.from <= at
            })
            .map(|pause| pause.local)
            .sum();
        let taken = local - begun.local;
        if taken > begun.bound.saturating_add(paused) {
            let what = format!(
                "{task} ends {call} after {taken} us of its clock; {} are promised, and it was paused for {paused}",
                begun.bound
            );
            self.breach_of(Promise::Time, at, call.key(), begun.from, what);
        }
        if matches!(call, Call::CalmAcquire { .. }) && end != End::Done {
            let what = format!("{task} does not get the lock although nothing goes wrong: {end:?}");
            self.breach_of(Promise::Progress, at, call.key(), begun.from, what);
        }
    }

    fn holds(&mut self, at: Moment, tenure: Tenure) {
        if at >= tenure.until {
            self.invalid(at, tenure.key, tenure.token);
        }
        if self.latest.contains_key(&tenure.token) {
            let what = format!("t{} is the token of two leases", tenure.token);
            self.breach(Promise::Token, at, tenure.key, tenure.token, what);
        }
        self.latest.insert(tenure.token, self.leases.len());
        self.leases.push(tenure);
    }

    fn extended(&mut self, at: Moment, key: usize, token: usize, until: Moment) {
        let Some(lease) = self.lease(token) else {
            return;
        };
        let old = lease.until;
        lease.until = until;
        if at >= old.min(until) {
            self.invalid(at, key, token);
        }
    }

    fn invalid(&mut self, at: Moment, key: usize, token: usize) {
        let what = format!(
            "the lease of {} as t{token} is over when it is handed out",
            KEYS[key]
        );
        self.breach(Promise::Validity, at, key, token, what);
    }

    fn stops(&mut self, at: Moment, key: usize, token: usize) {
        let has_quorum = self.has_quorum(at, key, token);
        if let Some(lease) = self.lease(token) {
            lease.until = at;
            lease.had_quorum = has_quorum;
        }
    }

    /// Work is stopped first and told why later.
    fn called_lost(&mut self, at: Moment, task: Task, key: usize, token: usize) {
        let was_valid = |lease: &mut Tenure| {
            if lease.is_work {
                lease.had_quorum
            } else {
                at < lease.until
            }
        };
        if self.lease(token).is_some_and(was_valid) {
            let what = format!(
                "{task} is told that {} as t{token} is lost, although it was not",
                KEYS[key]
            );
            self.breach(Promise::Loss, at, key, token, what);
        }
    }

    fn called_done(&mut self, at: Moment, task: Task, key: usize, token: usize) {
        if self.lease(token).is_some_and(|lease| !lease.had_quorum) {
            let what = format!(
                "{task} is told that its work under {} as t{token} is done, but it was lost",
                KEYS[key]
            );
            self.breach(Promise::Loss, at, key, token, what);
        }
    }

    fn has_quorum(&self, at: Moment, key: usize, token: usize) -> bool {
        let carry = self.standing.iter().filter(|((_, under), standing)| {
            *under == key && standing.token == token && at < standing.until
        });
        carry.count() >= self.quorum
    }

    fn sent_acquire(&mut self, at: Moment, task: Task, node: usize, key: usize, token: usize) {
        if let Some(first) = self.sent.insert((token, node), task) {
            let what = format!("{task} sends t{token} to node {node}, as {first} did before");
            self.breach(Promise::Token, at, key, token, what);
        }
    }

    fn stands(&mut self, at: Moment, node: usize, key: usize, token: usize, until: Moment) {
        if let Some(standing) = self.standing.get_mut(&(node, key))
            && standing.token == token
            && standing.until >= at
        {
            standing.until = until;
            return;
        }
        self.falls(at, node, key);
        let standing = Standing {
            token,
            from: at,
            until,
        };
        self.standing.insert((node, key), standing);
    }

    fn falls(&mut self, at: Moment, node: usize, key: usize) {
        if let Some(mut standing) = self.standing.remove(&(node, key)) {
            standing.until = standing.until.min(at);
            self.stood.push(standing);
        }
    }

    fn conclude(mut self) -> Vec<Breach> {
        self.stood.extend(self.standing.values());
        let never_ended = core::mem::take(&mut self.running);
        for Running {
            task, call, from, ..
        } in never_ended
        {
            let what = format!("{task} never ends {call}, begun at {}", Seconds(from));
            self.breach_of(Promise::Time, from, call.key(), from, what);
        }
        let holdings = self.holdings();
        for [first, second] in overlaps(&holdings) {
            self.overlap(first, second);
        }
        for holding in holdings {
            self.look_for_a_quorum(holding);
        }
        self.breaches
    }

    /// When a lock was held; `holder` is the number of the lease.
    fn holdings(&self) -> Vec<Holding> {
        let mut holdings = Vec::new();
        for (holder, lease) in self.leases.iter().enumerate() {
            let holding = |from, until| Holding {
                key: lease.key,
                holder,
                from: Instant::from_micros(from),
                until: Instant::from_micros(until),
            };
            let mut from = lease.from;
            let pauses = self
                .pauses
                .iter()
                .filter(|pause| lease.is_work && pause.client == lease.task.client);
            for pause in pauses.filter(|pause| pause.until > lease.from) {
                let until = pause.from.min(lease.until);
                holdings.extend((from < until).then(|| holding(from, until)));
                from = from.max(pause.until);
            }
            holdings.extend((from < lease.until).then(|| holding(from, lease.until)));
        }
        holdings
    }

    fn overlap(&mut self, first: Holding, second: Holding) {
        let (one, other) = (self.leases[first.holder], self.leases[second.holder]);
        let at = second.from.as_micros();
        let what = format!(
            "{} holds {} as t{} from {} until {}, and {} as t{} from {} on",
            one.task,
            KEYS[one.key],
            one.token,
            Seconds(first.from.as_micros()),
            Seconds(first.until.as_micros()),
            other.task,
            other.token,
            Seconds(at)
        );
        self.breach(Promise::Exclusion, at, one.key, one.token, what);
    }

    /// A quorum can only be lost at a moment at which the token ceases to stand somewhere.
    fn look_for_a_quorum(&mut self, holding: Holding) {
        let Tenure {
            task, key, token, ..
        } = self.leases[holding.holder];
        let (from, until) = (holding.from.as_micros(), holding.until.as_micros());
        let stood = self.stood.iter().filter(|standing| standing.token == token);
        let ends = stood.clone().map(|standing| standing.until);
        let lost_at = ends
            .chain([from])
            .filter(|at| (from..until).contains(at))
            .filter(|at| {
                let carry = stood
                    .clone()
                    .filter(|standing| (standing.from..standing.until).contains(at));
                carry.count() < self.quorum
            })
            .min();
        if let Some(at) = lost_at {
            let what = format!(
                "{task} holds {} as t{token} until {}, but fewer than {} nodes carry the token",
                KEYS[key],
                Seconds(until),
                self.quorum
            );
            self.breach(Promise::Quorum, at, key, token, what);
        }
    }

    fn lease(&mut self, token: usize) -> Option<&mut Tenure> {
        let number = self.latest.get(&token)?;
        self.leases.get_mut(*number)
    }

    fn breach(&mut self, promise: Promise, at: Moment, key: usize, token: usize, what: String) {
        let since = self.first_sent.get(&token).copied().unwrap_or(at);
        self.breach_of(promise, at, Some(key), since, what);
    }

    fn breach_of(
        &mut self,
        promise: Promise,
        at: Moment,
        key: Option<usize>,
        since: Moment,
        what: String,
    ) {
        self.breaches.push(Breach {
            promise,
            at,
            key,
            since,
            what,
        });
    }
}
