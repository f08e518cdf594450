//! What a program can see of its locks.

use core::marker::PhantomData;
use core::time::Duration;

use crate::error::AcquireError;

/// Learns what a lock does: for metrics and logs. `E` is the error of a node. `()` learns nothing, and costs nothing: neither code
/// nor memory nor a read of the clock.
///
/// `Redlock::with_observer` sets it, with the feature `observe`. All methods have a default that does nothing. A reference to an
/// observer is an observer too.
///
/// # For callers
///
/// - Durations are measured on the clock of the lock.
/// - Keys may be secret or very many: use them in no name of a metric. Tokens are never passed.
/// - An adapter that makes its attempts itself, with [`Redlock::attempt`](crate::Redlock::attempt), reports its acquires itself. Those
///   of `redlock-std` and `redlock-embassy` do.
///
/// # For implementers
///
/// The methods are called by the task that uses the lock, when a round or an operation has ended, and must not use the lock
/// themselves. The time that a method takes counts against the validity of the lease. If a method panics, the panic goes through the operation like one
/// in the code around it. Then the operation is a dropped future: the lock is sound, and what it has left on the nodes is released by
/// the next operation.
pub trait Observer<E>: Clone {
    /// Whether the lock collects what it reports. `false` only for `()`.
    const OBSERVES: bool = true;

    /// An acquire has begun. It waits until it has the lock or fails.
    fn wait_begun(&self, key: &[u8]) {
        let _key = key;
    }

    /// An acquire does not wait any more. There is one for each [`wait_begun`](Self::wait_begun), also if the future of the acquire is
    /// dropped.
    fn wait_ended(&self) {}

    /// An acquire has ended after the time `took`, with this number of attempts. It is not called if the future of the acquire is
    /// dropped, unless the adapter does so.
    fn acquire_ended(&self, key: &[u8], outcome: AcquireOutcome, took: Duration, tries: u32) {
        let _unused = (key, outcome, took, tries);
    }

    /// An acquire has got the lock, the time `took` after the nodes had called it, because it was the first in the waiting line.
    fn handed_off(&self, key: &[u8], took: Duration) {
        let _unused = (key, took);
    }

    /// The node with this index, in the order in which the nodes were given, has answered in the round that has ended. A node that
    /// answers after the round was decided is not reported.
    fn node_answered(&self, node: usize) {
        let _node = node;
    }

    /// The node with this index has failed, or its vote was denied, in the round that has ended.
    fn node_failed(&self, node: usize, error: &E) {
        let _unused = (node, error);
    }

    /// A lease has ended that was held for the time `held`. Of a lease that is dropped, no end is reported: a lease is a value. This is so
    /// also of one whose [`Redlock::hold`](crate::Redlock::hold) is dropped, unless the adapter reports it.
    fn hold_ended(&self, key: &[u8], end: HoldEnd, held: Duration) {
        let _unused = (key, end, held);
    }
}

impl<E> Observer<E> for () {
    const OBSERVES: bool = false;
}

// Forwards the constant and all methods: otherwise a reference would use the defaults, not those of `O`.
impl<E, O: Observer<E>> Observer<E> for &O {
    const OBSERVES: bool = O::OBSERVES;

    fn wait_begun(&self, key: &[u8]) {
        O::wait_begun(self, key);
    }

    fn wait_ended(&self) {
        O::wait_ended(self);
    }

    fn acquire_ended(&self, key: &[u8], outcome: AcquireOutcome, took: Duration, tries: u32) {
        O::acquire_ended(self, key, outcome, took, tries);
    }

    fn handed_off(&self, key: &[u8], took: Duration) {
        O::handed_off(self, key, took);
    }

    fn node_answered(&self, node: usize) {
        O::node_answered(self, node);
    }

    fn node_failed(&self, node: usize, error: &E) {
        O::node_failed(self, node, error);
    }

    fn hold_ended(&self, key: &[u8], end: HoldEnd, held: Duration) {
        O::hold_ended(self, key, end, held);
    }
}

/// How an acquire ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum AcquireOutcome {
    /// With the lock.
    Acquired,
    /// Another client, or another task of this process, holds the lock.
    Held,
    /// Too few nodes gave a vote.
    Unreachable,
    /// The validity was over when a quorum had granted.
    TooLate,
    /// The future was dropped.
    Dropped,
    /// The process asks for more locks than the nodes grant in time.
    Overloaded,
    /// The handle was closed.
    Closed,
    /// The key, the options or the source of randomness cannot be used. No node was asked.
    Invalid,
}

impl AcquireOutcome {
    /// All outcomes.
    pub const ALL: [Self; 8] = [
        Self::Acquired,
        Self::Held,
        Self::Unreachable,
        Self::TooLate,
        Self::Dropped,
        Self::Overloaded,
        Self::Closed,
        Self::Invalid,
    ];

    /// The value of the attribute `outcome` in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Held => "held",
            Self::Unreachable => "unreachable",
            Self::TooLate => "too_late",
            Self::Dropped => "dropped",
            Self::Overloaded => "overloaded",
            Self::Closed => "closed",
            Self::Invalid => "invalid",
        }
    }
}

impl<E, const MAX: usize> From<&AcquireError<E, MAX>> for AcquireOutcome {
    fn from(error: &AcquireError<E, MAX>) -> Self {
        match error {
            AcquireError::Held(_) => Self::Held,
            AcquireError::Unreachable(_) => Self::Unreachable,
            AcquireError::TooLate(_) => Self::TooLate,
            AcquireError::Entropy | AcquireError::ReservedKey => Self::Invalid,
        }
    }
}

/// How a lease ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum HoldEnd {
    /// It was released in time.
    Released,
    /// Its guard was dropped in time, which releases it in the background.
    Dropped,
    /// It was left on the nodes for another process.
    HandedOver,
    /// It was lost: it could not be extended while `hold` or a guard kept it. A lease that [`Redlock::extend`](crate::Redlock::extend)
    /// has found lost has expired when it is released.
    Lost,
    /// Its validity was over before it was released.
    Expired,
}

impl HoldEnd {
    /// All ends.
    pub const ALL: [Self; 5] = [
        Self::Released,
        Self::Dropped,
        Self::HandedOver,
        Self::Lost,
        Self::Expired,
    ];

    /// The value of the attribute `end` in metrics and logs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Dropped => "dropped",
            Self::HandedOver => "handed_over",
            Self::Lost => "lost",
            Self::Expired => "expired",
        }
    }
}

/// An acquire that waits, for an adapter that makes the attempts itself: the observer learns when it is dropped, too.
#[derive(Debug)]
pub struct Wait<E, O: Observer<E>> {
    observer: O,
    error: PhantomData<fn() -> E>,
}

impl<E, O: Observer<E>> Wait<E, O> {
    /// Tells `observer` that an acquire of `key` has begun.
    pub fn begin(observer: O, key: &[u8]) -> Self {
        observer.wait_begun(key);
        Self {
            observer,
            error: PhantomData,
        }
    }

    /// The observer.
    pub const fn observer(&self) -> &O {
        &self.observer
    }
}

impl<E, O: Observer<E>> Drop for Wait<E, O> {
    fn drop(&mut self) {
        self.observer.wait_ended();
    }
}
