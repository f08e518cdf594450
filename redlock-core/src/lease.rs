//! A lease: the right to a lock until an instant.

use core::time::Duration;

use crate::command::Command;
use crate::fence::{Fence, Proposal};
use crate::line::Place;
use crate::time::{Instant, whole_micros};
use crate::token::Token;

/// A granted lock. It is held until [`valid_until`](Self::valid_until) on the clock of the
/// [`Redlock`](crate::Redlock) that granted it.
///
/// A lease is a value: dropping it sends nothing, and its keys live until their TTL is over. To delete them, call
/// [`Redlock::release`](crate::Redlock::release).
#[must_use = "a lease that is dropped keeps the lock until its TTL is over; release it"]
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Lease<K> {
    key: K,
    token: Token,
    terms: Terms,
    valid_until: Instant,
    proposal: Option<Proposal>,
    /// How its release treats the line of the lock.
    place: Option<Place>,
    /// Until then, a release lets the keys live. Zero if it deletes them.
    #[cfg(feature = "min-hold")]
    hold_until: Instant,
    #[cfg(feature = "min-hold")]
    min_hold_ms: u32,
    /// When it was granted or adopted. `None` if another client did so.
    #[cfg(feature = "observe")]
    granted_at: Option<Instant>,
}

/// The TTL and the validity of a lease. A lease keeps its terms: options that are set later apply to the next lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct Terms {
    pub(crate) ttl_ms: u32,
    /// `TTL - drift - margin for clocks that jump`, in microseconds.
    pub(crate) validity_micros: u64,
}

impl Terms {
    /// The end of a lease that was requested at `started_at`: `started_at + validity - tick`, but no earlier than `started_at`.
    /// `tick` is the `resolution` of the clock, rounded up to whole microseconds.
    pub(crate) const fn valid_until(self, started_at: Instant, resolution: Duration) -> Instant {
        // Rounded up, so that the lease ends no later than it may.
        let is_cut = !resolution.subsec_nanos().is_multiple_of(1_000);
        let tick = whole_micros(resolution).saturating_add(is_cut as u64);
        let valid_for = self.validity_micros.saturating_sub(tick);
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
        place: Option<Place>,
    ) -> Self {
        Self {
            key,
            token,
            terms,
            valid_until,
            proposal,
            place,
            #[cfg(feature = "min-hold")]
            hold_until: Instant::from_micros(0),
            #[cfg(feature = "min-hold")]
            min_hold_ms: 0,
            #[cfg(feature = "observe")]
            granted_at: None,
        }
    }

    /// The same lease, granted at this instant.
    #[cfg(feature = "observe")]
    pub(crate) const fn granted_at(mut self, granted_at: Instant) -> Self {
        self.granted_at = Some(granted_at);
        self
    }

    /// How long this client has held it. `None` if another client has acquired it.
    #[cfg(feature = "observe")]
    #[must_use]
    pub fn held_for(&self, now: Instant) -> Option<Duration> {
        self.granted_at
            .map(|granted_at| now.saturating_duration_since(granted_at))
    }

    /// [`held_for`](Self::held_for), for an adapter that reports the end of the lease itself: the lock does not report it any more.
    #[cfg(feature = "observe")]
    pub fn take_held_for(&mut self, now: Instant) -> Option<Duration> {
        let held = self.held_for(now);
        self.granted_at = None;
        held
    }

    /// The same lease, of which a release before `hold_until` lets the keys live until then, at most for `min_hold_ms`.
    #[cfg(feature = "min-hold")]
    pub(crate) const fn held_until(mut self, hold_until: Instant, min_hold_ms: u32) -> Self {
        self.hold_until = hold_until;
        self.min_hold_ms = min_hold_ms;
        self
    }

    /// Lets the next release delete the keys, even if [`Options::min_hold`](crate::Options::min_hold) is not over.
    #[cfg(feature = "min-hold")]
    pub const fn end_min_hold(&mut self) {
        self.hold_until = Instant::from_micros(0);
    }

    /// For how long a release at `now` lets the keys live, in milliseconds. Zero if it deletes them.
    pub(crate) fn rest_ms(&self, now: Instant) -> u32 {
        #[cfg(feature = "min-hold")]
        {
            let rest = self.hold_until.saturating_duration_since(now);
            // Rounded up: the lock stays held for at least that long.
            let rest_ms = whole_micros(rest).div_ceil(1_000);
            // At once after the acquire, the tick is no part of it: guard records may not allow more than the `min_hold`.
            u32::try_from(rest_ms)
                .unwrap_or(u32::MAX)
                .min(self.min_hold_ms)
        }
        #[cfg(not(feature = "min-hold"))]
        {
            let _now = now;
            0
        }
    }

    /// Creates a lease from its token, for instance the token of a lease that another process has acquired. The new lease is
    /// not valid, but it can be released. To hold it on, use [`Redlock::adopt`](crate::Redlock::adopt).
    ///
    /// For a fenced lock, this release deletes the key, so plain clients can acquire the lock. Fenced clients cannot until the
    /// lease would have ended, because this release has no fence.
    pub const fn adopt(key: K, token: Token) -> Self {
        let terms = Terms {
            ttl_ms: 0,
            validity_micros: 0,
        };
        Self::new(key, token, terms, Instant::from_micros(0), None, None)
    }

    /// A copy of the lease with its key in another form, for instance one that owns it. `key` must have the same bytes: the copy is
    /// a lease on `key`, which no node has granted.
    ///
    /// For an adapter that keeps or releases the lease in another place. An extension of the copy does not change the original.
    pub const fn with_key<Q>(&self, key: Q) -> Lease<Q> {
        Lease {
            key,
            token: self.token,
            terms: self.terms,
            valid_until: self.valid_until,
            proposal: self.proposal,
            place: self.place,
            #[cfg(feature = "min-hold")]
            hold_until: self.hold_until,
            #[cfg(feature = "min-hold")]
            min_hold_ms: self.min_hold_ms,
            #[cfg(feature = "observe")]
            granted_at: self.granted_at,
        }
    }

    /// The key that is locked.
    pub const fn key(&self) -> &K {
        &self.key
    }

    /// The value of the key, the same on every node.
    #[must_use]
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// The fencing token. It is larger than the fencing token of every earlier lease on the key. `None` if the lock is plain,
    /// see `Options::fenced`.
    #[must_use]
    pub fn fence(&self) -> Option<Fence> {
        self.proposal.map(|proposal| proposal.fence())
    }

    /// How long the keys live after the grant, and after each extension.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        Duration::from_millis(self.terms.ttl_ms as u64)
    }

    /// The end of the lease: no other client holds the lock before this instant. It is counted from an instant before the
    /// first byte was sent, and rounded down.
    #[must_use]
    pub const fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// Whether the lock is held at `now`.
    #[must_use]
    pub fn is_valid(&self, now: Instant) -> bool {
        now < self.valid_until
    }

    /// What is left of the validity at `now`. Zero if it is over.
    #[must_use]
    pub const fn remaining(&self, now: Instant) -> Duration {
        self.valid_until.saturating_duration_since(now)
    }

    pub(crate) const fn proposal(&self) -> Option<Proposal> {
        self.proposal
    }

    pub(crate) const fn place(&self) -> Option<Place> {
        self.place
    }

    pub(crate) const fn terms(&self) -> Terms {
        self.terms
    }

    pub(crate) const fn set_valid_until(&mut self, valid_until: Instant) {
        self.valid_until = valid_until;
    }

    /// Ends a lease that an extension found lost: no later extension makes it valid again. `started_at` is the start of that
    /// extension, an instant that has passed and at which the lease was valid.
    pub(crate) const fn mark_lost(&mut self, started_at: Instant) {
        self.valid_until = started_at;
    }
}

impl<K: AsRef<[u8]>> Lease<K> {
    /// The command that releases the lease, for an adapter that sends it and does not wait for replies. All other callers use
    /// [`Redlock::release`](crate::Redlock::release).
    #[must_use]
    pub fn release_command(&self) -> Command<'_> {
        Command::release(self.key.as_ref(), &self.token)
            .with_proposal(self.proposal)
            .with_place(self.place)
    }
}
