//! What is agreed in a world of fenced locks, and what its clocks may do.

use core::time::Duration;

use redlock_core::{Options, OptionsError};

use super::assumption::Assumption;
use super::chance::Chance;
use super::clock::Dial;

/// The rules of a fleet, and how far its clocks follow them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fencing {
    /// By how much a fence may differ from a clock.
    pub(crate) window: u64,
    /// By how much a clock may be set back.
    pub(crate) step_back: u64,
    pub(crate) max_ttl: u64,
    /// By how much the clocks differ that are right.
    pub(crate) skew: u64,
    pub(crate) jumps: Jumps,
    /// Whether leases pay for clocks that jump.
    has_margin: bool,
}

/// Which clocks are set to anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Jumps {
    None,
    /// Those of a minority, always the same: leases stay exclusive.
    Minority,
    /// Any, and all: only the fences are to be relied on.
    All,
}

impl Fencing {
    /// The clock that is right: the others run as fast, and read at most the skew more.
    pub(crate) const RIGHT: Dial = Dial::new(1_000_000_000_000, Dial::TRUE_RATE);

    pub(crate) fn draw(chance: &mut Chance, ttl_ms: u64, broken: Option<Assumption>) -> Self {
        let jumps = match broken {
            Some(
                Assumption::Margin
                | Assumption::HeldUntil
                | Assumption::EqualFences
                | Assumption::TodaysOptions
                | Assumption::OneClock,
            ) => Jumps::Minority,
            Some(
                Assumption::JumpTogether
                | Assumption::Burn
                | Assumption::AnyRules
                | Assumption::Failback
                | Assumption::Eviction
                | Assumption::Init
                | Assumption::OldConfirmation
                | Assumption::OldRecords
                | Assumption::LongPlain,
            ) => Jumps::None,
            Some(_) => Jumps::All,
            None => chance.pick(&[Jumps::None, Jumps::Minority, Jumps::Minority, Jumps::All]),
        };
        let window_ms = match broken {
            Some(Assumption::Margin | Assumption::TodaysOptions | Assumption::EqualFences) => {
                ttl_ms / 10
            }
            // What expires can be proposed again.
            Some(Assumption::Strict) => 2 * ttl_ms,
            // What is late is in it.
            Some(Assumption::Burn) => ttl_ms / 2,
            _ => (ttl_ms / chance.pick(&[10, 20, 40])).max(1),
        };
        let skew_ms = match broken {
            Some(
                Assumption::Burn
                | Assumption::AnyRules
                | Assumption::Failback
                | Assumption::Eviction
                | Assumption::Init
                | Assumption::OldConfirmation
                | Assumption::OldRecords
                | Assumption::LongPlain,
            ) => 0,
            _ => chance.pick(&[0, 1, window_ms / 4]),
        };
        let step_back_ms = ttl_ms * chance.pick(&[1, 4, 20]);
        Self {
            window: window_ms * 1_000,
            step_back: step_back_ms * 1_000,
            // Some clients have a TTL of twice the usual one.
            max_ttl: 2 * ttl_ms * 1_000,
            skew: skew_ms * 1_000,
            jumps,
            has_margin: jumps == Jumps::Minority && broken != Some(Assumption::Margin),
        }
    }

    /// A clock that is right.
    pub(crate) fn dial(&self, chance: &mut Chance) -> Dial {
        let ahead = chance.below(self.skew + 1);
        Dial::new(Self::RIGHT.reads(0) + ahead, Dial::TRUE_RATE)
    }

    pub(crate) fn fence(&self, options: Options) -> Result<Options, OptionsError> {
        let node_timeout = options.round_time();
        // Valid with any margin.
        let options = options
            .node_timeout(Duration::from_millis(1))?
            .tolerate_clock_jumps(self.has_margin, Duration::from_micros(self.skew))?
            .fenced(self.rules()?)?;
        options.node_timeout(node_timeout.min(options.validity() / 2))
    }

    /// The rules of clients that do not agree, in one of them or all.
    pub(crate) fn other(mut self, chance: &mut Chance, broken: Option<Assumption>) -> Self {
        let ttl = self.max_ttl / 2;
        match chance.below(4) {
            // So short a quarantine that leases outlive it.
            _ if broken == Some(Assumption::AnyRules) => {
                self.max_ttl = ttl / 4;
                self.step_back = 1_000;
            }
            _ if broken == Some(Assumption::ShorterFences) => self.step_back = 1_000,
            0 => self.max_ttl = ttl,
            1 => self.max_ttl *= 2,
            2 => self.window += 1_000,
            _ => {
                self.max_ttl = ttl;
                self.step_back = 1_000;
            }
        }
        self
    }

    /// The rules of the fleet before an operator changes them to these. `redlock init --repair` refuses a change to a shorter
    /// quarantine or a shorter `max_ttl`, which this never is, and to a shorter window or step back, which this may be.
    pub(crate) fn before(self, chance: &mut Chance, broken: Option<Assumption>) -> Self {
        let ttl = self.max_ttl / 2;
        // So short a quarantine that leases with the later rules outlive it, if the margin for clocks leaves anything of it.
        let shortest = Self {
            max_ttl: if self.has_margin { ttl } else { ttl / 4 },
            step_back: 1_000,
            ..self
        };
        let before = match chance.below(6) {
            _ if broken.is_some() => shortest,
            0 | 1 => shortest,
            2 => Self {
                max_ttl: ttl,
                ..self
            },
            3 => Self {
                window: self.window + 1_000,
                ..shortest
            },
            4 => Self {
                window: (self.window / 2_000).max(1) * 1_000,
                ..self
            },
            // Shorter or longer afterwards.
            _ => Self {
                step_back: self.max_ttl,
                ..self
            },
        };
        let is_accepted = before.quarantine() <= self.quarantine();
        if is_accepted { before } else { shortest }
    }

    /// What all clients agree on.
    pub(crate) fn rules(&self) -> Result<redlock_core::Fencing, OptionsError> {
        let [max_ttl, window, step_back] =
            [self.max_ttl, self.window, self.step_back].map(Duration::from_micros);
        redlock_core::Fencing::new(window)?
            .with_max_ttl(max_ttl)?
            .with_step_back(step_back)
    }

    /// For how long a quarantine lasts.
    pub(crate) fn quarantine(&self) -> u64 {
        self.max_ttl.max(self.step_back) + 4 * self.window + 1_000_000
    }

    /// By how much a clock may read less than before a crash.
    pub(crate) fn set_back_over_a_crash(&self) -> u64 {
        self.max_ttl.max(self.step_back) + 2 * self.window + 1_000_000
    }
}
