//! What happens to nodes: commands, crashes, failovers, and clocks that are set.

use redlock_core::transport::{ReplicationId, Reply, RunId, Script};
use redlock_core::{Denial, Failure, Instant};

use super::assumption::Assumption;
use super::clock::Moment;
use super::fault::Kind;
use super::fencing::Jumps;
use super::history::{Message, What};
use super::machine::{Data, Left, Machine};
use super::place::{KEYS, Place, Route};
use super::state::{Event, State};

impl State {
    pub(super) fn execute(&mut self, route: Route, message: Message) -> Result<Reply, Denial> {
        let message = self.called_first(route, message);
        let Message { key, token, .. } = message;
        // Of two names for one machine nothing is left here.
        let node = self.machine_of(route);
        let is_unaware = message.proposal.is_none() && self.is_unaware(route);
        let route = Route { node, ..route };
        let place = Place { node, key };
        let bytes = self.tokens[token];
        let machine = &mut self.machines[node];
        let now = machine.reads(self.now);
        let recorded = machine.server.rules();
        let reply = match machine.server.execute(&message.command(&bytes), now) {
            Ok(reply) => Ok(reply),
            Err(Failure::Denied(denial)) => Err(denial),
            Err(other) => unreachable!("a server has room for all keys: {other}"),
        };
        self.commands += 1;
        self.look_at_late_acquire(node, message);
        self.tell(What::Executed(route, message, reply));
        self.send_calls(node, key);
        if message.is_release()
            && let Some(proposal) = message.proposal
        {
            let off = proposal.fence.as_u64().abs_diff(now.as_micros());
            if u128::from(off) < proposal.fencing.window().as_micros() {
                self.tell(What::Burns(node, token, proposal.fence));
            }
        }
        self.look_at_rules(route, message, recorded);
        let is_granted = matches!(reply, Ok(Reply::Acquired(_) | Reply::Extended(_)));
        if is_granted && self.is_longer_than_allowed(message) {
            self.tell(What::Long(token));
        }
        let may_give_the_lock = message.is_acquire() || message.is_adoption();
        if is_unaware && is_granted && may_give_the_lock {
            self.tell(What::Unaware(token));
        }
        match reply {
            Ok(
                Reply::Acquired(_)
                | Reply::Extended(_)
                | Reply::Released
                | Reply::ReleasedWithWaiters(_),
            ) => {
                self.tell_what_stands(place);
            }
            Ok(_) => (),
            Err(Denial::Quarantined { .. }) => self.count(Kind::Quarantined),
            Err(Denial::Stale(_)) => self.count(Kind::StaleFence),
            Err(Denial::Replica) => self.count(Kind::ReadOnly),
            Err(Denial::FencingMismatch(_)) => self.count(Kind::OtherRules),
            Err(Denial::Unguarded { .. }) => self.count(Kind::Unguarded),
            Err(_) => self.count(Kind::FenceOutOfWindow),
        }
        reply
    }

    /// Whether the node may have lost a lease that is out, and the client does not know.
    fn is_unaware(&mut self, route: Route) -> bool {
        let met = self.link(route).met;
        let machine = &self.machines[self.machine_of(route)];
        // Of a node that it has never met before it learns nothing of a time as a replica.
        let id = machine.server.replication_id();
        let is_noticed = met.is_some_and(|(first, last)| first != id && last == id);
        machine.lost_until > self.now || machine.failed_back_until > self.now && !is_noticed
    }

    pub(super) fn probe(&mut self, route: Route, key: usize, token: usize) {
        let node = self.machine_of(route);
        let route = Route { node, ..route };
        let machine = &self.machines[node];
        let entry = machine
            .server
            .entry(KEYS[key].as_bytes(), machine.reads(self.now));
        let stands = entry.is_some_and(|entry| entry.token == self.tokens[token]);
        if self.late_acquires.contains(&(node, token)) {
            return;
        }
        self.tell(What::Probed(route, key, token, stands));
    }

    pub(super) fn crash(&mut self, node: usize, until: Moment, left: Left) {
        let machine = &mut self.machines[node];
        if machine.is_down {
            return;
        }
        machine.is_down = true;
        machine.life += 1;
        self.count(match left {
            _ if until == Moment::MAX => Kind::DeadForGood,
            Left::Nothing => Kind::CrashWithLoss,
            Left::Saved => Kind::CrashAndRestore,
            Left::All => Kind::Crash,
        });
        for route in self.routes_to(node) {
            self.lose_connection(route);
        }
        self.queue.add(until, Event::Restart(node, left));
    }

    pub(super) fn restart(&mut self, node: usize, left: Left) {
        let machine = &mut self.machines[node];
        machine.is_down = false;
        machine.hung_until = 0;
        machine.born = Some(machine.dial.reads(self.now));
        machine.latest_alive = 0;
        machine.scripts = [false; Script::FENCED.len()];
        let callers = core::mem::take(&mut machine.callers);
        self.forget_subscribers(node);
        let run_id = RunId::new(self.run_number(node));
        self.machines[node].server.restart(run_id);
        self.tell(What::Restarted(node));
        match left {
            Left::All => (),
            Left::Saved => self.restore(node),
            Left::Nothing => self.forget(node),
        }
        for route in callers {
            let at = self.now + self.chance.below(2_000);
            self.queue.add(at, Event::Reconnect(route));
        }
    }

    pub(super) fn forget(&mut self, node: usize) {
        if !self.keeps_a_record_without(node, None) {
            return;
        }
        self.machines[node].server.clear();
        self.tell(What::Forgets(node, None));
    }

    /// The data of before is that of now.
    pub(super) fn restore(&mut self, node: usize) {
        let saved = self.machines[node].saved.clone();
        if !self.keeps_a_record_without(node, Some(&saved)) {
            return;
        }
        self.forget_places(node);
        let machine = &mut self.machines[node];
        machine.server.restore(saved);
        let now = machine.reads(self.now);
        machine.server.expire(now);
        self.tell(What::Forgets(node, None));
        (0..KEYS.len()).for_each(|key| self.tell_if_stands(Place { node, key }));
    }

    /// Changes the eviction policy of the node. If the node has evicted keys, the policy stays until a client has seen it: no
    /// client could notice the eviction otherwise.
    pub(super) fn set_policy(&mut self, node: usize, may_evict: bool) {
        let machine = &mut self.machines[node];
        if !may_evict && machine.has_evicted && machine.server.rules().is_some() {
            return;
        }
        machine.server.set_may_evict(may_evict);
    }

    /// Forgets one lock, and not the rules.
    pub(super) fn evict(&mut self, node: usize, key: usize) {
        if !self.machines[node].server.may_evict() {
            return;
        }
        self.count(Kind::Evicted);
        self.machines[node].has_evicted = true;
        self.machines[node].server.evict(KEYS[key].as_bytes());
        self.lose_unnoticed(node);
        self.tell(What::Forgets(node, Some(key)));
    }

    /// Plain clients learn nothing of what is lost now.
    pub(super) fn lose_unnoticed(&mut self, node: usize) {
        self.machines[node].lost_until = self.now + self.longest();
    }

    /// For how long a lease may be out at the most, on a node that runs slow.
    const fn longest(&self) -> u64 {
        self.lengths[3] + self.lengths[3] / 2
    }

    /// A replica of another node from now on: connections live on.
    pub(super) fn demote(&mut self, node: usize) {
        if self.machines[node].is_down || !self.machines[node].server.is_master() {
            return;
        }
        self.count(Kind::Demoted);
        self.machines[node].server.set_master(false);
        self.change_history(node);
    }

    /// A master again, with the data of the one that it has followed.
    pub(super) fn promote(&mut self, node: usize) {
        if self.machines[node].server.is_master() {
            return;
        }
        self.machines[node].server.set_master(true);
        self.restore(node);
        self.machines[node].failed_back_until = self.now + self.longest();
        self.change_history(node);
    }

    fn change_history(&mut self, node: usize) {
        self.machines[node].histories += 1;
        let id = ReplicationId::new(self.history_number(node));
        self.machines[node].server.begin_history(id);
        // What is released now may stay.
        self.forget_places(node);
        for route in self.routes_to(node) {
            self.link(route).forget_handed();
            if let Some(socket) = self.socket(route) {
                socket.debt.forgive();
            }
        }
        let is_master = self.machines[node].server.is_master();
        self.tell(What::Role(node, is_master));
    }

    /// The number of its process.
    pub(super) fn run_number(&self, node: usize) -> u64 {
        (node as u64 + 1) << 32 | u64::from(self.machines[node].life)
    }

    /// The number of the history of its data.
    pub(super) fn history_number(&self, node: usize) -> u64 {
        match self.machines[node].histories {
            0 => 0,
            histories => (node as u64 + 1) << 32 | histories,
        }
    }

    /// If there are clients with other rules, one node keeps the rules of the fleet: there is no promise for a fleet that has
    /// lost every record, if such a client comes first.
    fn keeps_a_record_without(&self, node: usize, data: Option<&Data>) -> bool {
        let Some(rules) = self.rules.filter(|_| self.has_other_rules) else {
            return true;
        };
        data.is_some_and(|data| data.rules() == Some(rules))
            || self
                .machines
                .iter()
                .enumerate()
                .any(|(number, machine)| number != node && machine.server.rules() == Some(rules))
    }

    fn tell_if_stands(&mut self, place: Place) {
        let machine = &self.machines[place.node];
        let key = KEYS[place.key].as_bytes();
        if machine.server.entry(key, machine.reads(self.now)).is_some() {
            self.tell_what_stands(place);
        }
    }

    /// Sets the clock so much ahead of those that are right, or behind them.
    pub(super) fn step_clock(&mut self, node: usize, ahead: i64) {
        self.count(Kind::ClockStep);
        let wanted = self.right.reads(self.now).saturating_add_signed(ahead);
        let machine = &self.machines[node];
        let now = machine.dial.reads(self.now);
        let over_a_crash = machine
            .latest
            .max(now)
            .saturating_sub(self.fencing.map_or(0, |it| it.set_back_over_a_crash()));
        let set_back = self.fencing.map_or(0, |fencing| fencing.step_back);
        let alive = machine.latest_alive.max(now).saturating_sub(set_back);
        let least = match machine.is_down {
            _ if self.fails(Assumption::StepBack) => 0,
            true => over_a_crash,
            false => alive.max(over_a_crash),
        };
        let wanted = wanted.max(least);
        // Leases are exclusive only where no quarantine is cut short.
        let is_in_quarantine = !machine.server.is_vouched(Instant::from_micros(now));
        let wanted = match self.jumps {
            Some(Jumps::Minority) if is_in_quarantine => wanted.min(now),
            _ => wanted,
        };
        self.set_clock(node, wanted);
    }

    /// All clocks are right again, whatever that is by now: none is set back.
    pub(super) fn set_all_clocks(&mut self) {
        let reads = |machine: &Machine| machine.dial.reads(self.now);
        let Some(latest) = self.machines.iter().map(reads).max() else {
            return;
        };
        (0..self.machines.len()).for_each(|node| self.set_clock(node, latest));
    }

    pub(super) fn set_clock(&mut self, node: usize, reading: u64) {
        let machine = &mut self.machines[node];
        let before = machine.reads(self.now);
        let stands = |key: &usize| {
            machine
                .server
                .entry(KEYS[*key].as_bytes(), before)
                .is_some()
        };
        let stood: Vec<_> = (0..KEYS.len()).filter(stands).collect();
        machine.latest = machine.latest.max(machine.dial.reads(self.now));
        machine.latest_alive = machine.latest_alive.max(machine.dial.reads(self.now));
        let right = self.right.reads(self.now);
        machine.was_wrong |= !(right..=right + self.skew).contains(&reading);
        machine.dial = machine.dial.set(self.now, reading);
        let now = machine.reads(self.now);
        machine.server.expire(now);
        stood
            .into_iter()
            .for_each(|key| self.tell_what_stands(Place { node, key }));
    }

    fn tell_what_stands(&mut self, place: Place) {
        let machine = &self.machines[place.node];
        let entry = machine
            .server
            .entry(KEYS[place.key].as_bytes(), machine.reads(self.now));
        let what = entry.map_or(What::Falls(place), |entry| {
            let until = machine.dial.first(entry.expires_at.as_micros());
            let token = self.tokens.iter().rposition(|token| *token == entry.token);
            What::Stands(place, token.unwrap_or_default(), until)
        });
        self.tell(what);
    }
}
