//! What is searched: how many take part, and what may happen to them. Each scene is a world of its own.

mod fenced;
mod flawed;
mod plain;
mod rules;

use core::time::Duration;

use redlock_core::{Instant, Options};

use super::flaw::Flaw;
use super::promise;
use super::stamp::Stamp;

/// What the clocks of the nodes read in the beginning, in units.
pub(super) const BASE: u8 = 16;

/// A small world. Times are in units, faults are how many of them there may be in one run.
#[derive(Debug, Clone)]
pub struct Scene {
    /// What it is called.
    pub name: &'static str,
    /// What it adds to the others.
    pub about: &'static str,
    /// One unit of its time.
    pub(super) unit: Duration,
    pub(super) nodes: usize,
    /// What each client may do.
    pub(super) clients: &'static [Role],
    pub(super) ttl: u8,
    /// In which steps the clock of a client moves; zero for a clock that is exact.
    pub(super) tick: u8,
    pub(super) node_timeout: u8,
    pub(super) wait: u8,
    pub(super) start: Start,
    /// When the search ends: nothing happens at a later time.
    pub(super) end: u8,
    /// How many futures are dropped.
    pub(super) drops: u8,
    /// How many connections break. What was on its way arrives at any later time, or never.
    pub(super) breaks: u8,
    /// How many nodes crash, forget everything and are back at once.
    pub(super) crashes: u8,
    /// By how much the clock of a node may be ahead when a key expires.
    pub(super) node_ahead: u8,
    /// By how much the clock of a client may fall behind.
    pub(super) client_behind: u8,
    /// By how much the clock of a client that waits for the end of a quarantine may be ahead.
    pub(super) client_ahead: u8,
    /// None where locks are plain.
    pub(super) fencing: Option<Fencing>,
    pub(super) upsets: Upsets,
    /// What has to be seen, if it does not follow from the times.
    pub(super) sight: Option<&'static str>,
    pub(super) flaw: Option<Flaw>,
}

/// What is different where locks are fenced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fencing {
    pub(super) window: u8,
    pub(super) step_back: u8,
    /// By how much more than it is a client may take the time of the nodes for, before they tell; if there is none, it
    /// knows nothing.
    pub(super) guesses: &'static [i8],
    /// Whether leases pay for clocks that jump.
    pub(super) has_margin: bool,
    /// How many times the clock of a node jumps.
    pub(super) jumps: u8,
    /// By how much.
    pub(super) jump_sizes: &'static [i8],
    /// Whether a clock that jumps is right again before anything else happens.
    pub(super) returns: bool,
    /// How many clocks jump together; it is always the same ones.
    pub(super) jumping: usize,
    /// Whether leases are exclusive; else the fences alone are looked at.
    pub(super) is_exclusive: bool,
    /// The search skips from the one time to the other.
    pub(super) leap: Option<(u8, u8)>,
    /// Whether a node that has lost its data must have its vote back some time, whichever other one is down.
    pub(super) recovers: bool,
}

impl Fencing {
    pub(super) const CALM: Self = Self {
        window: 1,
        step_back: 60,
        guesses: &[0],
        has_margin: false,
        jumps: 0,
        jump_sizes: &[],
        returns: false,
        jumping: 1,
        is_exclusive: true,
        leap: None,
        recovers: false,
    };

    /// The same, and the search skips from one time to another.
    const fn leaping(self, from: u8, to: u8) -> Self {
        Self {
            leap: Some((from, to)),
            ..self
        }
    }
}

/// The largest scenes, each with about how many millions of states it has.
const LARGE: &[(&str, u32)] = &[
    ("loss", 10),
    ("fence, forget", 9),
    ("twin", 6),
    ("fence, options", 6),
    ("fence, jump", 6),
    ("failback", 5),
    ("fence, jump, extend", 3),
    ("fenced, then plain", 3),
];

/// What has happened before the search begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Nothing.
    New,
    /// The first client has acquired the lock, and its acquire is still on its way to the last node.
    Held,
    /// The same, and then all other nodes have lost their data.
    Wiped,
    /// The nodes are new, and no operator has set them up.
    Cold,
}

/// What else befalls the nodes of fenced locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Upsets {
    /// Whether a node that crashes is another process then, which ends its connections. Else it was `FLUSHALL`.
    pub(super) restarts: bool,
    /// How many times a node comes back with an earlier data set in the same process.
    pub(super) rollbacks: u8,
    /// How many times one node, whose policy allows it, evicts a lock and its fence.
    pub(super) evictions: u8,
    /// How many times an operator runs `redlock init`.
    pub(super) inits: u8,
    /// On how many nodes an operator runs `redlock init --repair`.
    pub(super) repairs: u8,
    /// Whether the last node is the process that the one before it is.
    pub(super) has_twin: bool,
}

impl Upsets {
    const NONE: Self = Self {
        restarts: false,
        rollbacks: 0,
        evictions: 0,
        inits: 0,
        repairs: 0,
        has_twin: false,
    };
}

/// How many times a client tries to acquire the lock, and how many times it extends a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    pub(super) acquires: u8,
    pub(super) extends: u8,
    pub(super) kind: Kind,
}

/// In what clients differ.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    /// Its locks are plain also where those of others are fenced.
    pub(super) is_plain: bool,
    /// Its TTL, and the longest one by its rules, if they are not those of the scene.
    pub(super) ttls: Option<(u8, u8)>,
    /// Before it extends a lease it sets options for plain locks.
    pub(super) changes_options: bool,
}

impl Kind {
    /// As the scene says.
    const USUAL: Self = Self {
        is_plain: false,
        ttls: None,
        changes_options: false,
    };
}

pub(super) const ONCE: Role = Role {
    acquires: 1,
    extends: 0,
    kind: Kind::USUAL,
};
pub(super) const TWICE: Role = Role {
    acquires: 2,
    ..ONCE
};
pub(super) const EXTENDING: Role = Role { extends: 1, ..ONCE };

impl Scene {
    /// All that are searched. Together they take two or three minutes; each with a later end takes several times as
    /// long.
    #[must_use]
    pub fn all() -> Vec<Self> {
        [Self::all_plain(), Self::all_fenced(), Self::all_of_rules()].concat()
    }

    /// What has to be seen, or the search is not worth much.
    pub(super) const fn sight(&self) -> &'static str {
        if let Some(sight) = self.sight {
            return sight;
        }
        let margin = match self.fencing {
            Some(fencing) if fencing.has_margin => 4 * fencing.window,
            _ => 0,
        };
        if self.end.saturating_add(self.node_ahead) < self.ttl - margin {
            promise::ACQUIRED
        } else {
            promise::HANDED_ON
        }
    }

    /// How many millions of states it has, about.
    pub(super) fn weight(&self) -> u32 {
        let large = LARGE.iter().find(|(name, _)| *name == self.name);
        large.map_or(1, |(_, weight)| *weight)
    }

    /// For how long the vote of a node does not count after a restart, in units: the TTL and the drift.
    pub(super) const fn quarantine(&self) -> u8 {
        self.ttl + 1
    }

    /// The options of a client.
    pub(super) fn options(&self, kind: Kind) -> Options {
        let units = |count: u8| self.unit * u32::from(count);
        let (ttl, max_ttl) = kind.ttls.unwrap_or((self.ttl, self.ttl));
        let options = Options::new(units(ttl))
            .and_then(|options| options.drift_ppm(0))
            .and_then(|options| match self.fencing {
                Some(fencing) if !kind.is_plain => {
                    let rules = redlock_core::Fencing::new(units(fencing.window))?
                        .with_max_ttl(units(max_ttl))?
                        .with_step_back(units(fencing.step_back))?;
                    options
                        .tolerate_clock_jumps(fencing.has_margin, Duration::ZERO)?
                        .fenced(rules)
                }
                _ => options.max_ttl(units(max_ttl)),
            })
            .and_then(|options| options.node_timeout(units(self.node_timeout)))
            .and_then(|options| options.retry_delay(Duration::ZERO, Duration::ZERO));
        options
            .expect("a scene has options that are right")
            .wait(units(self.wait))
    }

    /// The rules that its nodes were set up for.
    pub(super) fn rules(&self) -> Option<redlock_core::Fencing> {
        let mut clients = self.clients.iter();
        clients.find_map(|role| self.options(role.kind).fencing())
    }

    /// The process that a node is.
    pub(super) const fn process(&self, node: usize) -> usize {
        if self.upsets.has_twin && node + 1 == self.nodes {
            node - 1
        } else {
            node
        }
    }

    /// The next time.
    pub(super) fn after(&self, now: u8) -> u8 {
        match self.fencing.and_then(|fencing| fencing.leap) {
            Some((from, to)) if from == now => to,
            _ => now + 1,
        }
    }

    /// The instant that a clock tells by `reading`.
    pub(super) fn instant(&self, reading: u8) -> Instant {
        Instant::from_micros(0).saturating_add(self.unit * u32::from(reading))
    }

    /// What a clock reads from `instant` on.
    pub(super) fn reading(&self, instant: Instant) -> u8 {
        let units = instant.as_micros().div_ceil(2 * self.half());
        u8::try_from(units).expect("a scene is short")
    }

    pub(super) fn stamp(&self, micros: u64) -> Stamp {
        Stamp::new(micros, self.half())
    }

    pub(super) fn micros(&self, stamp: Stamp) -> u64 {
        stamp.micros(self.half())
    }

    fn half(&self) -> u64 {
        u64::try_from(self.unit.as_micros() / 2).expect("units are short")
    }
}
