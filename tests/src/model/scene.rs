//! What is searched: how many take part, and what may happen to them. Each scene is a world of its own.

use redlock_core::Options;

use core::time::Duration;

use super::promise;

/// One unit of the model's time. The drift that every lease loses, 2 ms, is one of them.
pub(super) const UNIT: Duration = Duration::from_millis(2);

/// A small world. Times are in units, faults are how many of them there may be in one run.
#[derive(Debug, Clone)]
pub struct Scene {
    /// What it is called.
    pub name: &'static str,
    /// What it adds to the others.
    pub about: &'static str,
    pub(super) nodes: usize,
    /// What each client may do.
    pub(super) clients: &'static [Role],
    pub(super) ttl: u8,
    /// In which steps the clock of a client moves; zero for a clock that is exact.
    pub(super) tick: u8,
    pub(super) node_timeout: u8,
    pub(super) wait: u8,
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
    pub(super) flaw: Option<Flaw>,
}

/// How many times a client tries to acquire the lock, and how many times it extends a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Role {
    pub(super) acquires: u8,
    pub(super) extends: u8,
}

const ONCE: Role = Role {
    acquires: 1,
    extends: 0,
};
const TWICE: Role = Role {
    acquires: 2,
    extends: 0,
};
const EXTENDING: Role = Role {
    acquires: 1,
    extends: 1,
};

/// One thing that is wrong. None of these can be switched on in the library: they are made from outside,
/// in what surrounds it here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Flaw {
    /// The validity is counted from when the round is over.
    ValidityFromTheEnd,
    /// The clock is not read any more after a round has begun.
    ClockNotReadAgain,
    /// The tick of a coarse clock is not taken off the validity.
    TickNotTakenOff,
    /// A minority of nodes is enough for an extension.
    MinorityExtends,
    /// A client uses its token again for its next attempt.
    SameToken,
    /// The reply to a call that was given up counts for the next one.
    LateRepliesCount,
    /// Half of the nodes are a quorum.
    HalfIsAQuorum,
    /// A node deletes the key whoever asks for it.
    ReleaseWithoutCompare,
    /// No release is sent.
    NothingIsReleased,
    /// The clock of a client falls behind by more than the options allow for.
    DriftBeyond,
    /// The quarantine of a node that has forgotten everything is one unit too short.
    QuarantineTooShort,
}

impl Flaw {
    /// What is wrong, in words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::ValidityFromTheEnd => "the validity is counted from the end of the round",
            Self::ClockNotReadAgain => "the clock is not read after the last vote",
            Self::TickNotTakenOff => "the margin is one tick too small",
            Self::MinorityExtends => "a minority is enough for an extension",
            Self::SameToken => "the same token for the next attempt",
            Self::LateRepliesCount => "a late reply to an earlier attempt counts",
            Self::HalfIsAQuorum => "half of the nodes are a quorum",
            Self::ReleaseWithoutCompare => "a release deletes whatever key is there",
            Self::NothingIsReleased => "no release is sent",
            Self::DriftBeyond => "a clock drifts by more than the options allow for",
            Self::QuarantineTooShort => {
                "the quarantine of a node that forgot is one unit too short"
            }
        }
    }

    /// The promise that it breaks.
    #[must_use]
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::NothingIsReleased => promise::CLEAN,
            _ => promise::EXCLUSION,
        }
    }
}

impl Scene {
    const PLAIN: Self = Self {
        name: "contend",
        about: "two clients, messages in any order and as late as can be",
        nodes: 3,
        clients: &[ONCE, ONCE],
        ttl: 3,
        tick: 0,
        node_timeout: 1,
        wait: 0,
        end: 3,
        drops: 0,
        breaks: 0,
        crashes: 0,
        node_ahead: 0,
        client_behind: 0,
        client_ahead: 0,
        flaw: None,
    };

    /// All that are searched. Together they take a minute or two; each with a later end takes several times as long.
    #[must_use]
    pub fn all() -> Vec<Self> {
        vec![
            Self::PLAIN,
            Self {
                name: "node ahead",
                about: "node clocks are ahead, by as much as the options allow",
                node_ahead: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "client behind",
                about: "client clocks fall behind, by as much as the options allow",
                nodes: 2,
                client_behind: 1,
                end: 4,
                ..Self::PLAIN
            },
            Self {
                name: "tick",
                about: "client clocks are coarse, node clocks ahead",
                nodes: 2,
                ttl: 4,
                tick: 2,
                node_ahead: 1,
                end: 4,
                ..Self::PLAIN
            },
            Self {
                name: "extend",
                about: "a lease is extended, node clocks are ahead",
                nodes: 2,
                clients: &[EXTENDING, ONCE],
                node_ahead: 1,
                end: 4,
                ..Self::PLAIN
            },
            Self {
                name: "retry",
                about: "clients wait, and try again with another token",
                nodes: 2,
                wait: 2,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "drop",
                about: "a future is dropped, at any of its steps",
                nodes: 2,
                clients: &[TWICE, ONCE],
                drops: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "break",
                about: "a connection breaks, releases are sent again, the rest comes late or never",
                nodes: 2,
                clients: &[TWICE, ONCE],
                breaks: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "crash",
                about: "a node forgets everything and is back at once; clients do not count its vote",
                crashes: 1,
                end: 2,
                ..Self::PLAIN
            },
            Self {
                name: "quarantine",
                about: "the only node forgets, its vote counts again while clocks differ by all that they may",
                nodes: 1,
                clients: &[ONCE, TWICE],
                client_behind: 1,
                client_ahead: 1,
                crashes: 1,
                end: 5,
                ..Self::PLAIN
            },
            Self {
                name: "four nodes",
                about: "an even number of nodes",
                nodes: 4,
                end: 1,
                ..Self::PLAIN
            },
            Self {
                name: "three clients",
                about: "one more client",
                nodes: 2,
                clients: &[ONCE, ONCE, ONCE],
                end: 2,
                ..Self::PLAIN
            },
        ]
    }

    /// A scene in which `flaw` shows.
    #[must_use]
    pub fn with(flaw: Flaw) -> Self {
        let scene = Self {
            name: "flaw",
            about: flaw.about(),
            end: 4,
            flaw: Some(flaw),
            ..Self::PLAIN
        };
        match flaw {
            Flaw::ClockNotReadAgain | Flaw::HalfIsAQuorum | Flaw::NothingIsReleased => {
                Self { nodes: 2, ..scene }
            }
            Flaw::ValidityFromTheEnd => Self {
                nodes: 2,
                node_ahead: 1,
                ..scene
            },
            Flaw::TickNotTakenOff => Self {
                nodes: 2,
                ttl: 4,
                tick: 2,
                node_ahead: 1,
                ..scene
            },
            Flaw::MinorityExtends => Self {
                clients: &[EXTENDING, ONCE],
                node_ahead: 1,
                end: 2,
                ..scene
            },
            Flaw::SameToken => Self {
                clients: &[TWICE, ONCE],
                breaks: 1,
                end: 1,
                ..scene
            },
            Flaw::LateRepliesCount | Flaw::ReleaseWithoutCompare => Self {
                clients: &[TWICE, ONCE],
                end: 1,
                ..scene
            },
            Flaw::DriftBeyond => Self {
                nodes: 2,
                client_behind: 2,
                ..scene
            },
            Flaw::QuarantineTooShort => Self {
                nodes: 1,
                client_behind: 1,
                client_ahead: 1,
                crashes: 1,
                end: 4,
                ..scene
            },
        }
    }

    /// What has to be seen, or the search is not worth much.
    pub(super) const fn sight(&self) -> &'static str {
        if self.end + self.node_ahead < self.ttl {
            promise::ACQUIRED
        } else {
            promise::HANDED_ON
        }
    }

    /// For how long the vote of a node does not count after a restart, in units: the TTL and the drift.
    pub(super) const fn quarantine(&self) -> u8 {
        self.ttl + 1
    }

    /// The options of its clients.
    pub(super) fn options(&self) -> Options {
        let units = |count: u8| UNIT * u32::from(count);
        let options = Options::new(units(self.ttl))
            .and_then(|options| options.drift_ppm(0))
            .and_then(|options| options.node_timeout(units(self.node_timeout)))
            .and_then(|options| options.retry_delay(Duration::ZERO, Duration::ZERO));
        options
            .expect("a scene has options that are right")
            .wait(units(self.wait))
    }
}
