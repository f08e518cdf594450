//! When a client in the line tries next: only the rules, without a clock and without nodes. The model of the line in `redlock-proof`
//! follows them too.

#![cfg_attr(
    not(feature = "mock"),
    expect(
        unreachable_pub,
        reason = "only the test kit exports this, for the model"
    )
)]

use core::cmp::min;
use core::num::NonZero;

use crate::line::{Call, Refusal};
use crate::line_samples::LineSamples;
#[cfg(feature = "mock")]
use crate::reply::Reply;
use crate::round::NodeSet;
#[cfg(feature = "mock")]
use crate::time::Instant;

/// What a client in the line remembers of its tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Looks {
    /// How many tries were lost since the client has joined the line, or since a quorum of nodes has called it: at most
    /// [`LOST_MIN`].
    lost: u8,
    /// Whether a quorum of nodes has called the client in this wait.
    was_called: bool,
    /// How many clients were ahead at the last look, if it was the turn of one of them.
    ahead: Option<u16>,
    /// The nodes that have called the client since its last look of its own accord, when no quorum had. The lock was not free on a
    /// quorum, or the client would have it.
    outvoted: NodeSet,
    /// The nodes whose new connection has led to a try since the client's last look of its own accord.
    reconnected: NodeSet,
}

/// The nodes that have called since the last try.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calls {
    callers: NodeSet,
    /// Those because of which the client tries before its next look.
    heeded: NodeSet,
}

/// By what a client measures how long it waits.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    pub(crate) quorum: u32,
    /// So many nodes that refuse leave no quorum.
    pub(crate) blocking: u32,
    /// The other names of nodes that have several.
    pub(crate) duplicates: NodeSet,
    /// How long a turn lasts, in microseconds.
    pub(crate) turn: u64,
    /// How long a client waits at most for its next look, in microseconds.
    pub(crate) longest: u64,
    pub(crate) ahead_per_turn: NonZero<u64>,
}

/// How many tries must be lost before a client waits for long. Two clients may have split the votes, so that both find the
/// lock held although no client holds it. Or a client of another library was faster than the client that was called, and
/// will not call it.
const LOST_MIN: u8 = 3;

/// Of so many clients ahead, a client expects one to miss its turn. If each client looked at the end of each turn, the lock would
/// cost the more commands, the more clients wait for it. But while the line does not move, because clients ahead hang, it is a look
/// that ends their turns.
pub(crate) const AHEAD_PER_TURN: NonZero<u64> = NonZero::<u64>::MIN.saturating_add(3);

/// How long a client waits for the calls of the other nodes after the first call, in microseconds. The same release is on its
/// way to them. A turn lasts longer.
const CALLS_MICROS: u64 = 25_000;

/// A turn is over when this has passed after its end, in microseconds: a node counts whole milliseconds.
const AFTER_TURN_MICROS: u64 = 2_000;

impl Pace {
    /// The pace of a client of `nodes` different nodes. `turn` and `longest` are in microseconds.
    #[cfg(feature = "mock")]
    #[must_use]
    pub const fn new(nodes: u32, turn: u64, longest: u64, ahead_per_turn: NonZero<u64>) -> Self {
        let quorum = nodes / 2 + 1;
        Self {
            quorum,
            blocking: nodes + 1 - quorum,
            duplicates: NodeSet::EMPTY,
            turn,
            longest,
            ahead_per_turn,
        }
    }

    fn is_quorum(&self, nodes: NodeSet) -> bool {
        nodes.without(self.duplicates).len() >= self.quorum
    }
}

impl Calls {
    /// No calls.
    pub const NONE: Self = Self {
        callers: NodeSet::EMPTY,
        heeded: NodeSet::EMPTY,
    };
}

impl Looks {
    /// No tries yet.
    pub const NONE: Self = Self {
        lost: 0,
        was_called: false,
        ahead: None,
        outvoted: NodeSet::EMPTY,
        reconnected: NodeSet::EMPTY,
    };

    pub(crate) const fn was_called(&self) -> bool {
        self.was_called
    }

    /// After a try that is lost by these answers of the nodes: how long the client waits for the next one, in microseconds, if no node
    /// calls it. `None` if this is random and short.
    #[cfg(feature = "mock")]
    pub fn after_answers<E, const MAX: usize>(
        &mut self,
        answers: &[Result<Reply, E>; MAX],
        pace: &Pace,
    ) -> Option<u64> {
        let mut line = LineSamples::<MAX>::new();
        let at = Instant::from_micros(0);
        for (node, answer) in answers.iter().enumerate() {
            line.record(node, answer, at, at);
        }
        self.after_lost_try(&line, pace)
    }

    /// The same, after all that one round has told about the line.
    pub(crate) fn after_lost_try<const MAX: usize>(
        &mut self,
        line: &LineSamples<MAX>,
        pace: &Pace,
    ) -> Option<u64> {
        let fewest = line.least_ahead();
        let ahead_before = core::mem::replace(&mut self.ahead, fewest);
        let is_new = self.lost < LOST_MIN;
        self.lost = min(self.lost + 1, LOST_MIN);
        let held = line.count(Refusal::Held);
        let ahead = line.count(Refusal::Ahead);
        // Two clients that split the votes do not see this, unless a third one takes part. Then their clean-ups call the first in
        // the line. But if this client was called in vain, the holder may be one that does not call.
        let is_surely_held = !self.was_called && line.is_surely_held(pace.quorum);
        if is_surely_held || (!is_new && held > 0) {
            let expiry = line.expiry_micros(pace.quorum);
            return Some(min(expiry.unwrap_or(pace.longest), pace.longest));
        }
        // If the clock of this node was stepped back, more may be left than a turn lasts.
        let left = line.longest_turn_micros().filter(|left| *left > 0)?;
        if held + ahead < pace.blocking {
            return None;
        }
        let fewest = fewest.unwrap_or_default();
        let is_moving = ahead_before.is_none_or(|before| fewest.saturating_add(1) < before);
        let turns = match is_moving {
            true => u64::from(fewest) / pace.ahead_per_turn,
            false => 0,
        };
        let left = left.saturating_add(AFTER_TURN_MICROS + turns * pace.turn);
        Some(min(left, pace.longest.max(pace.turn)))
    }

    /// A node has called since the last try: within how many microseconds the client tries because of that, at the latest. Zero if
    /// a quorum has called. `None` if the client waits as before.
    ///
    /// A node that is free although the lock is held calls the client whenever another one looks. If each call led to a try, the
    /// clients would call each other without end. So a node whose call has led to a try before counts only for a quorum, until one
    /// has called or the client has looked of its own accord.
    pub fn hear(&mut self, calls: &mut Calls, node: usize, call: Call, pace: &Pace) -> Option<u64> {
        let within = match call {
            Call::Turn => {
                calls.callers.insert(node);
                if pace.is_quorum(calls.callers) {
                    self.lost = 0;
                    self.was_called = true;
                    self.outvoted = NodeSet::EMPTY;
                    return Some(0);
                }
                CALLS_MICROS
            }
            Call::Deputy => pace.turn.saturating_add(AFTER_TURN_MICROS),
            // A node whose connections break one after the other must not have the client try without end.
            Call::Reconnected if self.reconnected.contains(node) => return None,
            Call::Reconnected => {
                self.reconnected.insert(node);
                return Some(0);
            }
        };
        if self.outvoted.contains(node) {
            return None;
        }
        calls.heeded.insert(node);
        Some(within)
    }

    /// The client tries because of `calls`. If they came from a quorum, as to a deputy, the lock was free on a quorum, and no node was
    /// outvoted.
    pub fn try_called(&mut self, calls: Calls, pace: &Pace) {
        if !pace.is_quorum(calls.heeded) {
            self.outvoted.insert_all(calls.heeded);
        }
    }

    /// The client looks of its own accord.
    pub const fn look(&mut self) {
        self.outvoted = NodeSet::EMPTY;
        self.reconnected = NodeSet::EMPTY;
    }
}
