//! What a stored release does to its key.

#[cfg(feature = "min-hold")]
use core::time::Duration;

use redlock_core::transport::{Command, Proposal, Verb};
use redlock_core::{Instant, Token};

/// How a stored release ends its lease. Without the feature `min-hold`, it takes no space.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ending {
    /// Deletes the key.
    Delete,
    /// Lets the key live until this instant. So a release that is sent late, or again, is for the time that is left.
    ///
    /// The stored proposal has the nodes' time of this instant: a node refuses a fenced release with an old time.
    #[cfg(feature = "min-hold")]
    Keep { until: Instant },
}

impl Ending {
    /// How `command`, which was given at `now`, ends its lease. `None` if it does not end it.
    pub(super) const fn of(command: &Command<'_>, now: Instant) -> Option<Self> {
        let _now = now;
        match command.verb {
            Verb::Release => Some(Self::Delete),
            #[cfg(feature = "min-hold")]
            Verb::Keep { rest_ms } => Some(Self::Keep {
                until: now.saturating_add(Duration::from_millis(rest_ms as u64)),
            }),
            _ => None,
        }
    }

    /// Whether `command` ends its lease in this way.
    pub(super) const fn is_of(self, command: &Command<'_>) -> bool {
        match self {
            Self::Delete => command.is_release(),
            #[cfg(feature = "min-hold")]
            Self::Keep { .. } => matches!(command.verb, Verb::Keep { .. }),
        }
    }

    /// Whether the key has ended by itself.
    pub(super) fn is_over(self, now: Instant) -> bool {
        self.rest_micros(now) == Some(0)
    }

    /// The release of `key` at `now`.
    pub(super) fn command<'k>(self, key: &'k [u8], token: &'k Token, now: Instant) -> Command<'k> {
        let Some(rest) = self.rest_micros(now) else {
            return Command::release(key, token);
        };
        // Rounded up: the lock stays held for at least that long, less the tick within which the release was first sent.
        let rest_ms = rest.div_ceil(1_000).max(1);
        Command::keep(key, token, u32::try_from(rest_ms).unwrap_or(u32::MAX))
    }

    /// The proposal of the end of the key, from that of `now`.
    pub(super) fn at_end(self, proposal: Option<Proposal>, now: Instant) -> Option<Proposal> {
        self.shifted(proposal, now, u64::saturating_add)
    }

    /// The proposal of `now`, from that of the end of the key.
    pub(super) fn before_end(self, proposal: Option<Proposal>, now: Instant) -> Option<Proposal> {
        self.shifted(proposal, now, u64::saturating_sub)
    }

    #[cfg(all(feature = "min-hold", feature = "fence"))]
    fn shifted(
        self,
        proposal: Option<Proposal>,
        now: Instant,
        shift: fn(u64, u64) -> u64,
    ) -> Option<Proposal> {
        let (Some(mut proposal), Some(rest)) = (proposal, self.rest_micros(now)) else {
            return proposal;
        };
        proposal.time = shift(proposal.time, rest);
        Some(proposal)
    }

    /// Without the features, there is nothing to shift.
    #[cfg(not(all(feature = "min-hold", feature = "fence")))]
    const fn shifted(
        self,
        proposal: Option<Proposal>,
        _now: Instant,
        _shift: fn(u64, u64) -> u64,
    ) -> Option<Proposal> {
        proposal
    }

    /// For how long the key lives at `now`, in microseconds. `None` if the release deletes it.
    const fn rest_micros(self, now: Instant) -> Option<u64> {
        let _now = now;
        match self {
            Self::Delete => None,
            #[cfg(feature = "min-hold")]
            Self::Keep { until } => Some(until.as_micros().saturating_sub(now.as_micros())),
        }
    }
}
