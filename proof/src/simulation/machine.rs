//! A node on its machine: with a clock of its own, which may be set, and a life that may end.

use core::time::Duration;

use redlock_core::Instant;
use redlock_core::mock;
use redlock_core::transport::{NodeInfo, RunId, Script};

use super::assumption::Assumption;
use super::clock::{Dial, Moment, NEVER};
use super::place::{KEYS, Route};
use super::scenario::Scenario;

/// What a machine has of its data when it is back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    All,
    /// What was last saved.
    Saved,
    Nothing,
}

#[derive(Debug)]
pub(crate) struct Machine {
    pub(super) server: Server,
    /// When the process began, by its own clock; none when it was before the world began.
    pub(super) born: Option<u64>,
    pub(super) dial: Dial,
    /// The latest that its clock has read when it was set.
    pub(super) latest: u64,
    /// The same since its node was started.
    pub(super) latest_alive: u64,
    pub(super) hung_until: Moment,
    /// Whether its clock has ever been set to what is not right.
    pub(super) was_wrong: bool,
    pub(super) is_down: bool,
    pub(super) has_evicted: bool,
    /// Which scripts of fenced locks it knows. Only devices ask for them by their names.
    pub(super) scripts: [bool; Script::FENCED.len()],
    /// Its data as of some time.
    pub(super) saved: Data,
    /// How many times it has been a replica.
    pub(super) histories: u64,
    /// Until when a lease may be out of which it has lost the keys, without a sign to plain clients.
    pub(super) lost_until: Moment,
    /// The same for clients that do not know that it was a replica meanwhile.
    pub(super) failed_back_until: Moment,
    /// How many times it has died.
    pub(super) life: u32,
    /// Clients that wait for it to come back.
    pub(super) callers: Vec<Route>,
}

/// A server with room for all keys.
type Server = mock::Server<{ KEYS.len() }>;

/// Its data.
pub(super) type Data = mock::Data<{ KEYS.len() }>;

impl Machine {
    pub(crate) fn fleet(scenario: &Scenario) -> Vec<Self> {
        let flaw = scenario.broken.and_then(Assumption::server_flaw);
        let rules = scenario.is_set_up.then(|| scenario.first_rules()).flatten();
        let dials = scenario.nodes.iter().zip(1..);
        let machine = |(dial, number): (&Dial, u64)| {
            let server = Server::new(RunId::new(number << 32)).exact();
            Self::new(server.set_up_for(rules).with_flaw(flaw), *dial)
        };
        dials.map(machine).collect()
    }

    fn new(server: Server, dial: Dial) -> Self {
        Self {
            has_evicted: false,
            scripts: [false; Script::FENCED.len()],
            was_wrong: false,
            saved: server.data(),
            histories: 0,
            lost_until: 0,
            failed_back_until: 0,
            server,
            born: None,
            dial,
            latest: 0,
            latest_alive: 0,
            hung_until: 0,
            is_down: false,
            life: 0,
            callers: Vec::new(),
        }
    }

    pub(super) const fn reads(&self, now: Moment) -> Instant {
        Instant::from_micros(self.dial.reads(now))
    }

    /// Whether it can be reached, or will be soon.
    pub(super) const fn is_live(&self) -> bool {
        !self.is_down && self.hung_until != NEVER
    }

    /// What it says of itself.
    pub(super) fn node_info(&mut self, now: Moment) -> NodeInfo {
        // As Redis counts: the seconds that have begun since the second in which it began.
        let seconds = |reading: u64| reading / 1_000_000;
        let reading = self.reads(now);
        let uptime = self.born.map_or(LONG_AGO, |born| {
            seconds(reading.as_micros()).saturating_sub(seconds(born))
        });
        self.server.node_info(Duration::from_secs(uptime), reading)
    }
}

/// For how many seconds nodes have been running when a world begins.
const LONG_AGO: u64 = 365 * 86_400;
