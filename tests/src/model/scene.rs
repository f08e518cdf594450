//! What is searched: how many take part, and what may happen to them. Each scene is a world of its own.

use redlock_core::{Instant, Options};

use core::time::Duration;

use super::promise;
use super::stamp::Stamp;
use crate::simulation::Lapse;

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
    /// How many clocks jump together; it is always the same ones.
    pub(super) jumping: usize,
    /// Whether leases are exclusive; else the fences alone are looked at.
    pub(super) is_exclusive: bool,
    /// Nobody looks on from the one time to the other.
    pub(super) leap: Option<(u8, u8)>,
}

impl Fencing {
    const CALM: Self = Self {
        window: 1,
        step_back: 60,
        guesses: &[0],
        has_margin: false,
        jumps: 0,
        jump_sizes: &[],
        jumping: 1,
        is_exclusive: true,
        leap: None,
    };
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
    /// Nodes count their grants, and the highest count that a client is told is its fence.
    Count,
    /// A client asks for the highest fence, and writes one more back, which nodes accept in any case.
    WriteBack,
    /// Nodes accept the same fence again.
    Strict,
    /// Nodes accept a fence however old, and forget fences when their TTL is over.
    Floor,
    /// Nodes accept a fence however new.
    Ceiling,
    /// Nodes that forgot come back before the last fence that they may have forgotten is too old.
    Quarantine,
    /// Nodes accept a fence that was released.
    Burn,
    /// Nodes make a key again for an extend although they have accepted another fence since.
    Heal,
    /// The margin for clocks that jump is not taken off the validity.
    Margin,
    /// The clocks of a majority of nodes jump together.
    JumpTogether,
    /// Nodes forget until when a key was held when a clock that is ahead takes it away.
    HeldUntil,
    /// The clock of a node is set back by more than is agreed.
    StepBack,
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
            Self::Count => "nodes count, and the highest count is the fence",
            Self::WriteBack => "the highest fence and one is written back, and nodes accept any",
            Self::Strict => "a node accepts one fence twice",
            Self::Floor => "a node accepts a fence that is too old, and forgets fences early",
            Self::Ceiling => "a node accepts a fence that is too new",
            Self::Quarantine => "the quarantine for fences is one unit too short",
            Self::Burn => "a release leaves its fence acceptable",
            Self::Heal => "an extend makes a key again where another fence was accepted since",
            Self::Margin => "no margin for clocks that jump",
            Self::JumpTogether => "the clocks of a majority jump together",
            Self::HeldUntil => "what a clock that jumps takes away is free when it is right again",
            Self::StepBack => "a clock is set back by more than is agreed",
        }
    }

    /// The promise that it breaks.
    #[must_use]
    pub const fn breaks(self) -> &'static str {
        match self {
            Self::NothingIsReleased => promise::CLEAN,
            Self::Count
            | Self::WriteBack
            | Self::Strict
            | Self::Floor
            | Self::Ceiling
            | Self::Quarantine
            | Self::StepBack => promise::FENCE,
            Self::Burn | Self::Heal => promise::BURN,
            _ => promise::EXCLUSION,
        }
    }

    /// What nodes do wrong.
    pub(super) const fn lapse(self) -> Option<Lapse> {
        match self {
            Self::Count => Some(Lapse::Counts),
            Self::WriteBack => Some(Lapse::WritesBack),
            Self::Strict => Some(Lapse::IsNotStrict),
            Self::Floor => Some(Lapse::HasNoFloor),
            Self::Ceiling => Some(Lapse::HasNoCeiling),
            Self::Quarantine => Some(Lapse::IsBackTooEarly),
            Self::Burn => Some(Lapse::BurnsNothing),
            Self::Heal => Some(Lapse::HealsAnyway),
            Self::HeldUntil => Some(Lapse::ForgetsLeases),
            _ => None,
        }
    }
}

impl Scene {
    const PLAIN: Self = Self {
        name: "contend",
        about: "two clients, messages in any order and as late as can be",
        // The drift that every lease loses, 2 ms, is one of them.
        unit: Duration::from_millis(2),
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
        fencing: None,
        flaw: None,
    };

    /// Units are long: the drift is none of them, and the quarantine only seven.
    const FENCED: Self = Self {
        name: "fence",
        about: "fenced, two clients, messages in any order and as late as can be",
        unit: Duration::from_secs(1),
        ttl: 2,
        end: 1,
        fencing: Some(Fencing::CALM),
        ..Self::PLAIN
    };

    /// Keys expire whenever they like: only the fences are to be relied on.
    const EXPIRING: Self = Self {
        name: "fence, any expiry",
        about: "fenced, keys expire at any moment, and clients differ over the time of the nodes",
        node_ahead: u8::MAX,
        end: 0,
        fencing: Some(Fencing {
            guesses: &[0, 1],
            is_exclusive: false,
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    const ASKING: Self = Self {
        name: "fence, time unknown",
        about: "fenced, keys expire at any moment, and clients learn the time of the nodes by a round",
        fencing: Some(Fencing {
            guesses: &[],
            is_exclusive: false,
            ..Fencing::CALM
        }),
        ..Self::EXPIRING
    };

    const JUMPING: Self = Self {
        name: "fence, jump",
        about: "fenced, the clock of one node jumps twice, on or back, within the window or beyond the TTL",
        ttl: 6,
        end: 0,
        fencing: Some(Fencing {
            has_margin: true,
            jumps: 2,
            jump_sizes: &[-6, -1, 1, 6],
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    /// There is nobody else who remembers.
    const FORGETTING: Self = Self {
        name: "fence, forget",
        about: "fenced, the only node forgets everything twice, is quarantined, and has a vote again",
        nodes: 1,
        clients: &[ONCE, TWICE],
        crashes: 2,
        end: 8,
        fencing: Some(Fencing {
            step_back: 0,
            guesses: &[0, 1],
            leap: Some((1, 7)),
            ..Fencing::CALM
        }),
        ..Self::FENCED
    };

    const FENCED_BREAKING: Self = Self {
        name: "fence, break",
        about: "fenced, a connection breaks, the rest comes late or never; a lease is extended",
        clients: &[EXTENDING, ONCE],
        breaks: 1,
        end: 0,
        ..Self::FENCED
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
            Self::FENCED,
            Self {
                name: "fence, expiry",
                about: "fenced, two nodes, keys expire when their time is over",
                nodes: 2,
                end: 2,
                ..Self::FENCED
            },
            Self::EXPIRING,
            Self::ASKING,
            Self::JUMPING,
            Self::FORGETTING,
            Self {
                name: "fence, extend",
                about: "fenced, two nodes, a lease is extended, where a key is gone it is made again",
                nodes: 2,
                clients: &[EXTENDING, ONCE],
                end: 2,
                ..Self::FENCED
            },
            Self::FENCED_BREAKING,
        ]
    }

    /// A scene in which `flaw` shows.
    #[must_use]
    pub fn with(flaw: Flaw) -> Self {
        let of = |scene| Self {
            name: "flaw",
            about: flaw.about(),
            flaw: Some(flaw),
            ..scene
        };
        let scene = of(Self {
            end: 4,
            ..Self::PLAIN
        });
        let fenced = |scene, fencing| {
            of(Self {
                fencing: Some(fencing),
                ..scene
            })
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
            Flaw::Count | Flaw::WriteBack => of(Self::ASKING),
            Flaw::Strict => of(Self::EXPIRING),
            Flaw::Floor => of(Self {
                nodes: 1,
                end: 1,
                ..Self::EXPIRING
            }),
            Flaw::Ceiling => fenced(
                Self::FORGETTING,
                Fencing {
                    step_back: 0,
                    guesses: &[0, 20],
                    leap: Some((1, 7)),
                    ..Fencing::CALM
                },
            ),
            Flaw::Quarantine => fenced(
                Self {
                    unit: Duration::from_millis(1),
                    ttl: 4,
                    end: 2,
                    ..Self::FORGETTING
                },
                Fencing {
                    guesses: &[0, 1],
                    ..Fencing::CALM
                },
            ),
            Flaw::StepBack => fenced(
                Self {
                    nodes: 1,
                    end: 3,
                    ..Self::EXPIRING
                },
                Fencing {
                    step_back: 0,
                    jumps: 1,
                    jump_sizes: &[-2],
                    is_exclusive: false,
                    ..Fencing::CALM
                },
            ),
            Flaw::Burn => of(Self::FENCED_BREAKING),
            Flaw::Heal => of(Self {
                nodes: 1,
                clients: &[EXTENDING],
                ..Self::FENCED_BREAKING
            }),
            Flaw::Margin => fenced(
                Self {
                    ttl: 2,
                    ..Self::JUMPING
                },
                Fencing {
                    window: 2,
                    jumps: 1,
                    jump_sizes: &[2],
                    ..Fencing::CALM
                },
            ),
            Flaw::JumpTogether => fenced(
                Self::JUMPING,
                Fencing {
                    has_margin: true,
                    jumps: 1,
                    jump_sizes: &[6],
                    jumping: 2,
                    ..Fencing::CALM
                },
            ),
            Flaw::HeldUntil => fenced(
                Self::JUMPING,
                Fencing {
                    has_margin: true,
                    jumps: 2,
                    jump_sizes: &[-6, 6],
                    ..Fencing::CALM
                },
            ),
        }
    }

    /// What has to be seen, or the search is not worth much.
    pub(super) const fn sight(&self) -> &'static str {
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

    /// For how long the vote of a node does not count after a restart, in units: the TTL and the drift.
    pub(super) const fn quarantine(&self) -> u8 {
        self.ttl + 1
    }

    /// The options of its clients.
    pub(super) fn options(&self) -> Options {
        let units = |count: u8| self.unit * u32::from(count);
        let options = Options::new(units(self.ttl))
            .and_then(|options| options.drift_ppm(0))
            .and_then(|options| match self.fencing {
                None => Ok(options),
                Some(fencing) => options
                    .fenced(units(fencing.window))?
                    .max_ttl(units(self.ttl))?
                    .step_back(units(fencing.step_back))?
                    .tolerate_clock_jumps(fencing.has_margin, Duration::ZERO),
            })
            .and_then(|options| options.node_timeout(units(self.node_timeout)))
            .and_then(|options| options.retry_delay(Duration::ZERO, Duration::ZERO));
        options
            .expect("a scene has options that are right")
            .wait(units(self.wait))
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
