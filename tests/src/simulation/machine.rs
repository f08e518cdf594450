//! A node on its machine: with a clock of its own, which may be set, and a life that may end.

use core::time::Duration;

use redlock_core::{Denial, Instant, Introduction, Reply, RunId};

use super::clock::{Dial, Moment};
use super::fault::Kind;
use super::fencing::Jumps;
use super::history::{KEYS, Message, Place, Route, Verb, What};
use super::node::Node;
use super::scenario::{Assumption, Scenario};
use super::world::{Event, State};

#[derive(Debug)]
pub(crate) struct Machine {
    pub(super) node: Node,
    /// When the process began, by its own clock; none when it was before the world began.
    born: Option<u64>,
    pub(super) dial: Dial,
    /// The latest that its clock has read when it was set.
    pub(super) latest: u64,
    pub(super) hung_until: Moment,
    pub(super) is_down: bool,
    /// How many times it has died.
    pub(super) life: u32,
    /// Clients that wait for it to come back.
    pub(super) callers: Vec<usize>,
}

impl Machine {
    pub(crate) fn fleet(scenario: &Scenario) -> Vec<Self> {
        let lapse = scenario.broken.and_then(Assumption::lapse);
        let dials = scenario.nodes.iter().zip(1..);
        let machine = |(dial, number): (&Dial, u64)| {
            let node = Node::new(RunId::new(number << 32), lapse);
            Self::new(node, *dial)
        };
        dials.map(machine).collect()
    }

    const fn new(node: Node, dial: Dial) -> Self {
        Self {
            node,
            born: None,
            dial,
            latest: 0,
            hung_until: 0,
            is_down: false,
            life: 0,
            callers: Vec::new(),
        }
    }

    pub(super) const fn reads(&self, now: Moment) -> Instant {
        Instant::from_micros(self.dial.reads(now))
    }

    /// What it says of itself.
    pub(super) fn introduction(&self, now: Moment) -> Introduction {
        // As Redis counts: the seconds that have begun since the second in which it began.
        let seconds = |reading: u64| reading / 1_000_000;
        let reading = self.reads(now);
        let uptime = self.born.map_or(LONG_AGO, |born| {
            seconds(reading.as_micros()).saturating_sub(seconds(born))
        });
        Introduction {
            run_id: self.node.run_id(),
            replication_id: self.node.replication_id(),
            uptime: Duration::from_secs(uptime),
            is_master: true,
            may_evict: false,
            max_ttl: self.node.max_ttl(),
            is_vouched: self.node.is_vouched(reading),
        }
    }
}

impl State {
    pub(super) fn execute(&mut self, route: Route, message: Message) -> Result<Reply, Denial> {
        let Message {
            key, token, verb, ..
        } = message;
        let place = Place {
            node: route.node,
            key,
        };
        let bytes = self.tokens[token];
        let machine = &mut self.machines[route.node];
        let now = machine.reads(self.now);
        let mut reply = machine.node.execute(&message.command(&bytes), now);
        if verb == Verb::Release && self.fails(Assumption::Compare) {
            self.machines[route.node].node.remove(KEYS[key].as_bytes());
            reply = Ok(Reply::Released);
        }
        self.commands += 1;
        self.tell(What::Executed(route, message, reply));
        match reply {
            Ok(Reply::Acquired(_) | Reply::Extended(_) | Reply::Released) => {
                self.tell_what_stands(place);
            }
            Ok(_) => (),
            Err(Denial::Quarantined { .. }) => self.count(Kind::Quarantined),
            Err(Denial::Stale(_)) => self.count(Kind::StaleFence),
            Err(_) => self.count(Kind::FenceOutOfWindow),
        }
        reply
    }

    pub(super) fn probe(&mut self, route: Route, key: usize, token: usize) {
        let machine = &self.machines[route.node];
        let entry = machine
            .node
            .entry(KEYS[key].as_bytes(), machine.reads(self.now));
        let stands = entry.is_some_and(|entry| entry.token == self.tokens[token]);
        self.tell(What::Probed(route, key, token, stands));
    }

    pub(super) fn crash(&mut self, node: usize, until: Moment, forgets: bool) {
        let machine = &mut self.machines[node];
        if machine.is_down {
            return;
        }
        machine.is_down = true;
        machine.life += 1;
        self.count(match forgets {
            _ if until == Moment::MAX => Kind::DeadForGood,
            true => Kind::CrashWithLoss,
            false => Kind::Crash,
        });
        for client in 0..self.processes.len() {
            self.lose_connection(Route { client, node });
        }
        self.queue.add(until, Event::Restart(node, forgets));
    }

    pub(super) fn restart(&mut self, node: usize, forgets: bool) {
        let machine = &mut self.machines[node];
        machine.is_down = false;
        machine.hung_until = 0;
        machine.born = Some(machine.dial.reads(self.now));
        machine.node.restart(RunId::new(
            (node as u64 + 1) << 32 | u64::from(machine.life),
        ));
        let callers = core::mem::take(&mut machine.callers);
        if forgets {
            self.forget(node);
        }
        for client in callers {
            let at = self.now + self.chance.below(2_000);
            self.queue.add(at, Event::Reconnect(Route { client, node }));
        }
    }

    pub(super) fn forget(&mut self, node: usize) {
        self.machines[node].node.clear();
        self.tell(What::Forgets(node));
    }

    /// Sets the clock so much ahead of those that are right, or behind them.
    pub(super) fn step_clock(&mut self, node: usize, ahead: i64) {
        self.count(Kind::ClockStep);
        let wanted = self.right.reads(self.now).saturating_add_signed(ahead);
        let machine = &self.machines[node];
        let now = machine.dial.reads(self.now);
        let latest = machine.latest.max(now);
        let least = if self.fails(Assumption::StepBack) {
            0
        } else {
            latest.saturating_sub(self.set_back_max)
        };
        let wanted = wanted.max(least);
        // Leases are exclusive only where no quarantine is cut short.
        let is_in_quarantine = !machine.node.is_vouched(Instant::from_micros(now));
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
        let stands = |key: &usize| machine.node.entry(KEYS[*key].as_bytes(), before).is_some();
        let stood: Vec<_> = (0..KEYS.len()).filter(stands).collect();
        machine.latest = machine.latest.max(machine.dial.reads(self.now));
        machine.dial = machine.dial.set(self.now, reading);
        let now = machine.reads(self.now);
        machine.node.expire(now);
        stood
            .into_iter()
            .for_each(|key| self.tell_what_stands(Place { node, key }));
    }

    fn tell_what_stands(&mut self, place: Place) {
        let machine = &self.machines[place.node];
        let entry = machine
            .node
            .entry(KEYS[place.key].as_bytes(), machine.reads(self.now));
        let what = entry.map_or(What::Falls(place), |entry| {
            let until = machine.dial.first(entry.expires_at.as_micros());
            let token = self.tokens.iter().rposition(|token| *token == entry.token);
            What::Stands(place, token.unwrap_or_default(), until)
        });
        self.tell(what);
    }
}

/// For how many seconds nodes have been running when a world begins.
const LONG_AGO: u64 = 365 * 86_400;
