//! An operator changes the rules of a fleet that is in use: `redlock init --repair` with other rules.

use core::time::Duration;

use redlock_core::{Denial, Fencing};

use super::assumption::Assumption;
use super::fault::Kind;
use super::history::{Message, What};
use super::place::Route;
use super::state::{Event, State};

impl State {
    /// `redlock init --repair` with other rules: refused unless all nodes answer and are fit.
    pub(super) fn change(&mut self) {
        let Some(change) = &self.change else {
            return;
        };
        let after = change.after;
        let now = self.now;
        let are_fit = self.machines.iter().all(|machine| {
            !machine.is_down
                && machine.hung_until <= now
                && machine.server.is_master()
                && !machine.server.may_evict()
        });
        if are_fit && !change.is_complete {
            self.begin_change(after);
            for node in 0..self.machines.len() {
                let at = self.now + self.chance.below(5_000);
                self.queue.add(at, Event::Change(node));
            }
        }
    }

    /// Much may have happened since the operator looked.
    pub(super) fn write_change(&mut self, node: usize) {
        let Some(after) = self.change.as_ref().map(|change| change.after) else {
            return;
        };
        let machine = &mut self.machines[node];
        if machine.is_down || machine.hung_until > self.now || !machine.server.is_master() {
            return;
        }
        let reading = machine.reads(self.now);
        machine.server.repair(after, reading);
        let nodes = self.machines.iter();
        let is_complete = nodes
            .clone()
            .all(|machine| machine.server.rules() == Some(after));
        if let Some(change) = &mut self.change {
            change.written_at = Some(self.now);
            change.is_complete |= is_complete;
            if is_complete {
                self.fencing = Some(change.fencing);
            }
        }
    }

    /// When no more faults happen: the operator sees to it that all nodes have the rules of the clients that come back.
    pub(super) fn finish_change(&mut self) {
        let Some(after) = self.change.as_ref().map(|change| change.after) else {
            return;
        };
        let is_done = |rules: Option<Fencing>| rules.is_none_or(|rules| rules == after);
        let mut machines = self.machines.iter();
        if self.rules == Some(after) && machines.all(|machine| is_done(machine.server.rules())) {
            return;
        }
        self.begin_change(after);
        (0..self.machines.len()).for_each(|node| self.write_change(node));
    }

    fn begin_change(&mut self, after: Fencing) {
        self.count(Kind::Change);
        self.rules = Some(after);
        self.tell(What::Changed(after));
    }

    /// What the client sends. If what an earlier attempt was told of the rules is never out of date, it vouches from the first
    /// round on. If a record is never older than the rules of the fleet, it vouches when a quorum has told of one.
    pub(super) fn vouching(&self, client: usize, message: Message) -> Message {
        let is_broken = self.fails(Assumption::OldConfirmation);
        let confirmed = self.confirmed[client].filter(|_| is_broken && message.is_acquire());
        let quorum = self.machines.len() / 2 + 1;
        let is_recorded = self.fails(Assumption::OldRecords)
            && message.is_acquire()
            && self
                .recorded
                .iter()
                .filter(|token| **token == message.token)
                .count()
                >= quorum;
        let proposal = message.proposal.map(|mut proposal| {
            proposal.vouches |= is_recorded || confirmed == Some(proposal.fencing);
            proposal
        });
        Message {
            proposal,
            ..message
        }
    }

    /// A client has heard what the record of a node says.
    pub(super) fn heard_of_rules(&mut self, message: Message, denial: Denial) {
        let knows_no_age = self.fails(Assumption::OldRecords);
        match (&mut self.change, denial) {
            (Some(change), Denial::FencingMismatch(_)) => change.mismatched.push(message.token),
            (_, Denial::Unguarded { has_record, .. }) if has_record && knows_no_age => {
                self.recorded.push(message.token);
            }
            _ => {}
        }
    }

    /// Tells if the node has just taken rules that are no longer those of its fleet, in one of the ways that the README names
    /// ("Lost guard records"). If it does so in another way, nothing is excused.
    pub(super) fn look_at_rules(
        &mut self,
        route: Route,
        message: Message,
        recorded: Option<Fencing>,
    ) {
        let Route { client, node } = route;
        let (Some(change), Some(proposal)) = (&self.change, message.proposal) else {
            return;
        };
        let rules = proposal.fencing;
        let is_taken = self.machines[node].server.rules() == Some(rules) && recorded != Some(rules);
        if !is_taken || Some(rules) == self.rules {
            return;
        }
        // A client with the rules of before notices the change with its next round.
        let moment = 2 * self.node_timeouts[client] + micros(rules.window());
        let is_the_moment = change.written_at.is_some_and(|at| self.now <= at + moment);
        let mut machines = self.machines.iter().enumerate();
        let differ = machines
            .any(|(number, machine)| number != node && machine.server.rules() == Some(rules));
        let is_unanswered = !change.mismatched.contains(&message.token);
        if is_the_moment || differ && is_unanswered {
            self.tell(What::Captured(node));
        }
    }

    /// Whether a plain lease is longer than the fleet allows. While the rules are changed, those of before count.
    pub(super) fn is_longer_than_allowed(&self, message: Message) -> bool {
        let rules = match &self.change {
            Some(change) if !change.is_complete => Some(change.before),
            _ => self.rules,
        };
        let ttl = message.plain_ttl_ms().map(u64::from);
        let longest = rules.map(|rules| rules.max_ttl());
        ttl.is_some_and(|ttl| longest.is_some_and(|longest| Duration::from_millis(ttl) > longest))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
