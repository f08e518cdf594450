//! What the holder of a lock has: a right to it, until an instant.

use core::time::Duration;

use crate::command::Command;
use crate::fence::{Fence, Proposal};
use crate::time::{Instant, whole_micros};
use crate::token::Token;

/// The lock is held until [`valid_until`](Self::valid_until), as told by the clock of the
/// [`Redlock`](crate::Redlock) that granted it.
///
/// A lease is a value: dropping it sends nothing, and the keys live on until their TTL is over. Give
/// it back with [`Redlock::release`](crate::Redlock::release).
#[must_use = "a lease that is dropped keeps the lock until its TTL is over; release it"]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Lease<K> {
    key: K,
    token: Token,
    terms: Terms,
    valid_until: Instant,
    proposal: Option<Proposal>,
}

/// For how long a lease was granted. They stay with it: options that are set later are for the next lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Terms {
    pub(crate) ttl_ms: u32,
    /// The TTL less the drift and what clocks that jump take off, in microseconds.
    pub(crate) validity: u64,
}

impl Terms {
    /// The end of a lease that is asked for at `started_at`: the validity later, less one tick of the clock, or
    /// `started_at` if that is earlier.
    // `inline(never)`: several callers, and long code on a small machine.
    #[inline(never)]
    pub(crate) const fn valid_until(self, started_at: Instant, resolution: Duration) -> Instant {
        // Rounded up, against the lease.
        let is_cut = !resolution.subsec_nanos().is_multiple_of(1_000);
        let tick = whole_micros(resolution).saturating_add(is_cut as u64);
        let valid_for = self.validity.saturating_sub(tick);
        Instant::from_micros(started_at.as_micros().saturating_add(valid_for))
    }
}

impl<K> Lease<K> {
    pub(crate) const fn new(
        key: K,
        token: Token,
        terms: Terms,
        valid_until: Instant,
        proposal: Option<Proposal>,
    ) -> Self {
        Self {
            key,
            token,
            terms,
            valid_until,
            proposal,
        }
    }

    /// A lease of which nothing but the token is known, for instance one that another process has
    /// taken: it can be released, and is not valid. Of a fenced lock its key goes, for plain clients: fenced ones wait
    /// until the lease would have been over, since the release knows no fence.
    pub const fn adopt(key: K, token: Token) -> Self {
        let terms = Terms {
            ttl_ms: 0,
            validity: 0,
        };
        Self::new(key, token, terms, Instant::from_micros(0), None)
    }

    /// The key that is locked.
    pub const fn key(&self) -> &K {
        &self.key
    }

    /// The token under the key, the same on every node.
    #[must_use]
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// The fencing token, larger than that of every earlier lease on the key; none for a plain lock, see
    /// `Options::fenced`.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.proposal.map(|proposal| proposal.fence())
    }

    /// For how long the keys live from each grant or extension.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.terms.ttl_ms as u64)
    }

    /// The instant from which on the lock may be another's. Computed before the first byte was sent
    /// and rounded against the lease: no other client holds the lock before it.
    #[must_use]
    pub const fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// Whether the lock is held at `now`.
    #[must_use]
    pub fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }

    /// What is left of the validity at `now`; zero when it is over.
    #[must_use]
    pub const fn remaining(&self, now: Instant) -> Duration {
        self.valid_until.saturating_duration_since(now)
    }

    pub(crate) const fn proposal(&self) -> Option<Proposal> {
        self.proposal
    }

    pub(crate) const fn terms(&self) -> Terms {
        self.terms
    }

    pub(crate) const fn extended_until(&mut self, valid_until: Instant) {
        self.valid_until = valid_until;
    }

    /// It is lost: no later extension brings it back. It was valid at the instant `until`, which has passed.
    pub(crate) const fn end(&mut self, until: Instant) {
        self.valid_until = until;
    }
}

impl<K: AsRef<[u8]>> Lease<K> {
    /// The command that gives it back, for an adapter that sends it and waits for nobody. Everybody else
    /// calls [`Redlock::release`](crate::Redlock::release).
    #[must_use]
    pub fn release_command(&self) -> Command<'_> {
        Command::release(self.key.as_ref(), &self.token).with_proposal(self.proposal)
    }
}
