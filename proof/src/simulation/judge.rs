//! Whether the lock kept its promises: looks at what happened and at nothing else. It does not know how the
//! lock works, nor how the world was made.

mod calls;
mod fences;
mod lines;
mod releases;
mod standings;
#[cfg(test)]
mod tests;
mod votes;

use core::fmt;
use std::collections::{BTreeMap, BTreeSet};

use redlock_core::{Denial, Fence, Fencing, Instant};

use super::clock::{Moment, Seconds};
use super::history::{Claim, Fact, Message, Task, What};
use super::line_limits::LineLimits;
use super::place::Route;
use super::promise::{Promise, Promised};
use crate::exclusion::Holding;
use calls::Calls;
use fences::Fences;
use lines::Lines;
use releases::Releases;
use standings::Standings;
use votes::Votes;

/// A promise that was broken.
#[derive(Debug)]
pub(crate) struct Breach {
    pub(crate) promise: Promise,
    pub(crate) at: Moment,
    /// When it began, and the tokens that it is about: for whoever reads the trace.
    pub(crate) since: Moment,
    pub(crate) tokens: Vec<usize>,
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
pub(crate) fn judge(
    facts: &[Fact],
    nodes: usize,
    promised: Promised,
    limits: Option<LineLimits>,
) -> Vec<Breach> {
    let mut judge = Judge {
        standings: Standings::new(nodes / 2 + 1),
        votes: Votes::new(nodes / 2 + 1),
        releases: Releases::new(nodes / 2 + 1),
        promised: Some(promised),
        lines: limits.map(Lines::new),
        ..Judge::default()
    };
    for fact in facts {
        judge.hear(fact.at, fact.what);
    }
    let mut breaches = judge.conclude();
    breaches.retain(|breach| promised.has(breach.promise));
    breaches
}

#[derive(Debug, Default)]
struct Judge {
    promised: Option<Promised>,
    breaches: Vec<Breach>,
    leases: Vec<Tenure>,
    /// Until when no other client may have a lock that was given back before its `min_hold` was over.
    kept: Vec<Holding>,
    /// By the token: its lease.
    by_token: BTreeMap<usize, usize>,
    /// By the token: when it was first sent.
    first_sent: BTreeMap<usize, Moment>,
    /// By the token, the node and the fence that it proposed, if any: who has sent an acquire there.
    acquires: BTreeMap<(usize, usize, Option<Proposed>), Task>,
    /// Tokens of plain leases whose client could not know what a node had lost when it granted them, and when that was.
    unaware: BTreeMap<usize, Moment>,
    /// When an operator has said that nodes have forgotten nothing.
    initialized_at: Vec<Moment>,
    /// When a node has taken rules of before that its fleet has no longer, as the README says that it may.
    captured_at: Vec<Moment>,
    /// The rules that an operator has given the fleet.
    changed: Vec<Fencing>,
    /// By the token: the rules of its client.
    rules: BTreeMap<usize, Fencing>,
    /// Tokens of plain leases that are longer than the fleet allows, and when nodes have lost keys.
    long: BTreeSet<usize>,
    forgotten_at: Vec<Moment>,
    standings: Standings,
    calls: Calls,
    fences: Fences,
    votes: Votes,
    releases: Releases,
    /// None where no client waits in a line.
    lines: Option<Lines>,
}

/// Somebody holds a lock.
#[derive(Debug)]
struct Tenure {
    claim: Claim,
    from: Moment,
    until: Moment,
    /// It was taken over from another process.
    is_adopted: bool,
    /// Work ends when it is dropped, which cannot happen while its process is paused.
    work: Option<Work>,
}

#[derive(Debug, Default)]
struct Work {
    /// Whether a quorum carried the token when it was stopped.
    had_quorum: bool,
    /// Whether nobody else can have had one.
    was_kept: bool,
}

/// The fence, and whether the client vouches.
type Proposed = (Fence, bool);

/// An acquire, once it is sent to `node`.
fn acquire(message: Message, node: usize) -> (usize, usize, Option<Proposed>) {
    // Sent once more to a node that has lost its guard record, so that it writes it again.
    let proposed = message.proposal;
    let fence = proposed.map(|proposal| (proposal.fence, proposal.vouches));
    (message.token, node, fence)
}

impl Judge {
    fn hear(&mut self, at: Moment, what: What) {
        let broken = self.fences.hear(at, &what);
        self.breaches.extend(broken);
        let lines = self.lines.as_mut();
        self.breaches
            .extend(lines.and_then(|lines| lines.hear(at, &what)));
        if let Some((claim, promise)) = self.votes.hear(at, &what) {
            let what = format!("{claim}: by votes that must not count");
            self.breach(promise, at, &[claim.token], what);
        }
        if let Some(claim) = self.releases.hear(&what) {
            let what = format!("{claim}: is said to be released, and a quorum may carry its token");
            self.breach(Promise::Release, at, &[claim.token], what);
        }
        match what {
            What::Begins(task, call, span) => self.calls.begins(at, task, call, span),
            What::Ends(task, call, end, local) => {
                let broken = self.calls.ends(at, task, call, end, local);
                self.breaches.extend(broken);
            }
            What::Granted(claim, until) => self.holds(at, claim, until, None),
            What::Works(claim, until) => self.holds(at, claim, until, Some(Work::default())),
            What::Extended(claim, until) => self.extended(at, claim, until),
            What::Adopted(claim, until, _) => self.adopted(at, claim, until),
            What::Kept(claim, until) => self.kept(at, claim, until),
            What::Over(claim) => {
                if let Some(lease) = self.lease(claim) {
                    lease.until = lease.until.min(at);
                }
            }
            What::Stops(claim) => self.stops(at, claim),
            What::CalledLost(claim) => self.called_lost(at, claim),
            What::CalledDone(claim) => self.called_done(at, claim),
            What::StillValid(claim) => {
                let what = format!("{claim}: is said to be over, and says that it is valid");
                self.breach(Promise::Over, at, &[claim.token], what);
            }
            What::Believes(task, off, most) if off.unsigned_abs() > most => {
                let what =
                    format!("{task} is {off} us from the nodes' time; {most} us are possible");
                self.breach(Promise::NodesTime, at, &[], what);
            }
            What::Paused(client, until, local) => self.calls.paused(client, at, until, local),
            What::Sent(task, node, message) => self.sent(at, task, node, message),
            // A replica executes nothing either.
            What::NotExecuted(Route { node, .. }, message)
            | What::Executed(Route { node, .. }, message, Err(Denial::Replica)) => {
                self.acquires.remove(&acquire(message, node));
            }
            What::Nonsense(route) => {
                let what = format!("{route}: no command of the lock");
                self.breach(Promise::Protocol, at, &[], what);
            }
            What::Visits(..) => (),
            What::Stands(place, token, until) => self.standings.stands(at, place, token, until),
            What::Falls(place) => self.standings.falls(at, place),
            What::Forgets(node, key) => {
                self.forgotten_at.push(at);
                self.standings.forgets(node, key);
            }
            What::Unaware(token) => {
                self.unaware.insert(token, at);
            }
            What::Initialized(_) => self.initialized_at.push(at),
            What::Captured(_) => self.captured_at.push(at),
            What::Changed(rules) => self.changed.push(rules),
            What::Long(token) => {
                self.long.insert(token);
            }
            What::Probed(_, _, token, true) => {
                let what = format!("{what}, although all that was sent for it has arrived");
                self.breach(Promise::Cleanup, at, &[token], what);
            }
            What::Died(client) => {
                self.calls.died(client);
                // No client works any more.
                let works =
                    |lease: &&mut Tenure| lease.claim.task.client == client && lease.work.is_some();
                let leases = self.leases.iter_mut().filter(works);
                leases.for_each(|lease| lease.until = lease.until.min(at));
            }
            What::Endless => self.breaches.push(Breach {
                promise: Promise::Time,
                at,
                since: at.saturating_sub(1_000),
                tokens: Vec::new(),
                what: "events without end: a client repeats itself".into(),
            }),
            What::Executed(..)
            | What::Freed(_)
            | What::Answered(..)
            | What::Connected(..)
            | What::Subscribed(..)
            | What::Denied(_)
            | What::Calls(..)
            | What::Called(..)
            | What::ForgotLine(..)
            | What::LineProbed(..)
            | What::Probed(..)
            | What::Fault(_)
            | What::Repaired
            | What::Restarted(_)
            | What::HandedOver(_)
            | What::Believes(..)
            | What::Burns(..)
            | What::Told(..)
            | What::Calm => (),
            What::Role(..) => self.forgotten_at.push(at),
        }
    }

    fn holds(&mut self, at: Moment, claim: Claim, until: Moment, work: Option<Work>) {
        if at >= until {
            self.invalid(at, claim);
        }
        if self.by_token.contains_key(&claim.token) {
            let what = format!("{claim}: it has been the token of another lease");
            self.breach(Promise::Token, at, &[claim.token], what);
        }
        self.begins_to_hold(at, claim, until, work, false);
    }

    /// Another process goes on with a lease: the token is that of before, and so is the fence.
    fn adopted(&mut self, at: Moment, claim: Claim, until: Moment) {
        if at >= until {
            self.invalid(at, claim);
        }
        self.begins_to_hold(at, claim, until, None, true);
    }

    fn kept(&mut self, at: Moment, claim: Claim, until: Moment) {
        let [from, until] = [at, until].map(Instant::from_micros);
        if let Some(holder) = self.by_token.get(&claim.token) {
            self.kept.push(Holding {
                key: claim.key,
                holder: *holder,
                from,
                until,
            });
        }
    }

    fn begins_to_hold(
        &mut self,
        at: Moment,
        claim: Claim,
        until: Moment,
        work: Option<Work>,
        is_adopted: bool,
    ) {
        self.by_token.insert(claim.token, self.leases.len());
        // The end of the lease under work is not known here once it is extended.
        let until = if work.is_some() { Moment::MAX } else { until };
        let from = at;
        self.leases.push(Tenure {
            claim,
            from,
            until,
            is_adopted,
            work,
        });
    }

    fn extended(&mut self, at: Moment, claim: Claim, until: Moment) {
        let Some(lease) = self.lease(claim) else {
            return;
        };
        let was_valid = at < lease.until;
        lease.until = until;
        if !was_valid || at >= until {
            self.invalid(at, claim);
        }
    }

    fn invalid(&mut self, at: Moment, claim: Claim) {
        let what = format!("{claim}: the lease is over when it is handed out");
        self.breach(Promise::Validity, at, &[claim.token], what);
    }

    fn stops(&mut self, at: Moment, claim: Claim) {
        let had_quorum = self.standings.has_quorum(at, claim.key, claim.token);
        let was_kept = self.standings.is_kept(at, claim.key, claim.token);
        if let Some(lease) = self.lease(claim) {
            lease.until = at;
            lease.work = Some(Work {
                had_quorum,
                was_kept,
            });
        }
    }

    /// Work is stopped first and told why later.
    fn called_lost(&mut self, at: Moment, claim: Claim) {
        let has_quorum = self.standings.has_quorum(at, claim.key, claim.token);
        if self.has_other_margins(claim) {
            return;
        }
        let was_valid = self.lease(claim).is_some_and(|lease| match &lease.work {
            Some(work) => work.had_quorum,
            // Nodes may have forgotten it.
            None => at < lease.until && has_quorum,
        });
        if was_valid {
            let what = format!("{claim}: is said to be lost, and was not");
            self.breach(Promise::Loss, at, &[claim.token], what);
        }
    }

    /// Whether an operator has changed the `window` or `step_back` of this lease: it is no longer extended.
    fn has_other_margins(&self, claim: Claim) -> bool {
        let margins = |rules: &Fencing| (rules.window(), rules.step_back());
        self.rules.get(&claim.token).is_some_and(|rules| {
            let mut changed = self.changed.iter();
            changed.any(|changed| margins(changed) != margins(rules))
        })
    }

    fn called_done(&mut self, at: Moment, claim: Claim) {
        let work = self.lease(claim).and_then(|lease| lease.work.as_ref());
        if work.is_some_and(|work| !work.was_kept) {
            let what =
                format!("{claim}: the work is said to be done, and the lock was lost before");
            self.breach(Promise::Loss, at, &[claim.token], what);
        }
    }

    fn sent(&mut self, at: Moment, task: Task, node: usize, message: Message) {
        let token = message.token;
        self.first_sent.entry(token).or_insert(at);
        if let Some(proposal) = message.proposal {
            self.rules.entry(token).or_insert(proposal.fencing);
        }
        if message.is_acquire()
            && let Some(first) = self.acquires.insert(acquire(message, node), task)
        {
            let what = format!("{task} sends t{token} to node {node}, as {first} did before");
            self.breach(Promise::Token, at, &[token], what);
        }
    }

    fn conclude(mut self) -> Vec<Breach> {
        self.breaches.extend(self.calls.never_ended());
        self.breaches.extend(self.fences.conclude());
        self.standings.close();
        let holdings = self.holdings();
        for [first, second] in overlaps(&holdings) {
            self.overlap(first, second);
        }
        self.look_for_other_holders();
        for holding in holdings {
            self.look_for_a_quorum(holding);
        }
        let Self {
            mut breaches,
            votes,
            ..
        } = self;
        breaches.retain(|breach| {
            let needs_quorum = [Promise::Quorum, Promise::Loss, Promise::Exclusion];
            let mut tokens = breach.tokens.iter();
            !(needs_quorum.contains(&breach.promise)
                && tokens.any(|token| votes.is_excused(*token)))
        });
        breaches
    }

    /// When a lock was held; `holder` is the number of the lease.
    fn holdings(&self) -> Vec<Holding> {
        let mut holdings = Vec::new();
        for (holder, lease) in self.leases.iter().enumerate() {
            let mut hold = |from, until| {
                let [from, until] = [from, until].map(Instant::from_micros);
                let key = lease.claim.key;
                holdings.extend((from < until).then_some(Holding {
                    key,
                    holder,
                    from,
                    until,
                }));
            };
            let mut from = lease.from;
            if lease.work.is_some() {
                for pause in self.calls.pauses(lease.claim.task.client, lease.from) {
                    hold(from, pause.from.min(lease.until));
                    from = from.max(pause.until);
                }
            }
            hold(from, lease.until);
        }
        holdings
    }

    fn overlap(&mut self, first: Holding, second: Holding) {
        let (one, other) = (
            self.leases[first.holder].claim,
            self.leases[second.holder].claim,
        );
        if self.is_excused(first, second) {
            return;
        }
        let [from, until, at] = [first.from, first.until, second.from].map(Instant::as_micros);
        let what = format!(
            "{one} is held from {} until {}, and {other} from {} on",
            Seconds(from),
            Seconds(until),
            Seconds(at)
        );
        self.breach(Promise::Exclusion, at, &[one.token, other.token], what);
    }

    /// Clients that had the lock between a lease and its adoption, or before the `min_hold` was over.
    fn look_for_other_holders(&mut self) {
        let span = |from: Moment, until: Moment, key, holder| {
            let [from, until] = [from, until].map(Instant::from_micros);
            Holding {
                key,
                holder,
                from,
                until,
            }
        };
        let leases = self.leases.iter().enumerate();
        let adopted = leases.clone().filter(|(_, lease)| lease.is_adopted);
        let adopted = adopted.filter_map(|(_, lease)| {
            let is_it = |first: &&Tenure| first.claim.token == lease.claim.token;
            let first = self.leases.iter().position(|first| is_it(&first))?;
            let from = self.leases[first].from;
            Some((
                Promise::Adoption,
                span(from, lease.from, lease.claim.key, first),
            ))
        });
        let kept = self.kept.iter().map(|kept| (Promise::MinHold, *kept));
        let mut found = Vec::new();
        for (promise, closed) in adopted.chain(kept) {
            let own = self.leases[closed.holder].claim.token;
            for (holder, lease) in leases.clone() {
                let from = Instant::from_micros(lease.from);
                let is_another = lease.claim.key == closed.key && lease.claim.token != own;
                // Also within one microsecond, the leases are in the order in which they were granted.
                let is_later = holder > closed.holder;
                if is_another && is_later && (closed.from..closed.until).contains(&from) {
                    let other = span(lease.from, lease.until, closed.key, holder);
                    found.push((promise, closed, other));
                }
            }
        }
        for (promise, closed, other) in found {
            if self.is_excused(closed, other) {
                continue;
            }
            let [one, two] = [closed, other].map(|it| self.leases[it.holder].claim);
            let [from, until, at] = [closed.from, closed.until, other.from].map(Instant::as_micros);
            let what = format!(
                "{two} is held from {} on, although no other client may have {one} from {} until {}",
                Seconds(at),
                Seconds(from),
                Seconds(until)
            );
            self.breach(promise, at, &[one.token, two.token], what);
        }
    }

    /// Whether what the README demands is not given for these two.
    fn is_excused(&self, first: Holding, second: Holding) -> bool {
        // Work that was paused goes on later: what counts is who was granted the lock first.
        let mut leases = [first, second].map(|holding| &self.leases[holding.holder]);
        leases.sort_by_key(|lease| lease.from);
        let [from, until] = leases.map(|lease| lease.from);
        let [one, other] = leases.map(|lease| lease.claim);
        let is_plain = one.fence.is_none() || other.fence.is_none();
        let is_promised = self.promised.is_none_or(|promised| {
            if is_plain {
                promised.plain
            } else {
                promised.fenced
            }
        });
        // One of them asked a node that may have lost the other's key, and could not know.
        let after = |one: Claim, other: Claim| {
            let sent_at = self.first_sent.get(&other.token).copied();
            let granted_at = self.unaware.get(&one.token).copied();
            granted_at.is_some_and(|at| at >= sent_at.unwrap_or_default())
        };
        let is_unaware = after(one, other) || after(other, one);
        // `redlock init` is for a fleet that has never been used.
        let mut initialized = self.initialized_at.iter();
        let is_declared_new = initialized.any(|at| (from..=until).contains(at));
        // A client with the rules of before begins the quarantine of before.
        let mut captured = self.captured_at.iter();
        let is_captured = captured.any(|at| (from..=until).contains(at));
        // After a loss of data no client waits for a lease that is longer than the fleet allows.
        let sent_at = self.first_sent.get(&one.token).copied().unwrap_or_default();
        let mut forgotten = self.forgotten_at.iter();
        let is_long =
            self.long.contains(&one.token) && forgotten.any(|at| (sent_at..=until).contains(at));
        !is_promised || is_unaware || is_declared_new || is_captured || is_long
    }

    fn look_for_a_quorum(&mut self, holding: Holding) {
        let claim = self.leases[holding.holder].claim;
        let (from, until) = (holding.from.as_micros(), holding.until.as_micros());
        if let Some(at) = self.standings.first_loss(claim.token, from..until) {
            let what = format!(
                "{claim}: held until {}, but no quorum carries the token",
                Seconds(until)
            );
            self.breach(Promise::Quorum, at, &[claim.token], what);
        }
    }

    fn lease(&mut self, claim: Claim) -> Option<&mut Tenure> {
        let number = self.by_token.get(&claim.token)?;
        self.leases.get_mut(*number)
    }

    fn breach(&mut self, promise: Promise, at: Moment, tokens: &[usize], what: String) {
        let sent = tokens.iter().filter_map(|token| self.first_sent.get(token));
        self.breaches.push(Breach {
            promise,
            at,
            since: sent.min().copied().unwrap_or(at),
            tokens: tokens.to_vec(),
            what,
        });
    }
}

/// Each two holdings of one key that overlap, the earlier one first. Some are excused, so that it takes all of them.
fn overlaps(holdings: &[Holding]) -> Vec<[Holding; 2]> {
    let mut ordered = holdings.to_vec();
    ordered.sort_by_key(|holding| (holding.from, holding.until));
    let mut open = Vec::<Holding>::new();
    let mut found = Vec::new();
    for holding in ordered {
        open.retain(|earlier| holding.from < earlier.until);
        let same_key = open
            .iter()
            .filter(|earlier| earlier.key == holding.key && earlier.holder != holding.holder);
        found.extend(same_key.map(|earlier| [*earlier, holding]));
        open.push(holding);
    }
    found
}
