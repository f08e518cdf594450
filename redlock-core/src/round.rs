//! One round of votes: pure logic, without a clock or I/O.

use crate::fence::FENCES;
use crate::time::Instant;

/// What one node's reply means for the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    /// The node executed the command.
    Granted,
    /// The node refused: another client holds the key, or the key is gone.
    Refused,
    /// The node failed, gave no valid answer, or denied its vote (a [`Denial`](crate::Denial)). It may have executed the
    /// command.
    Unknown,
}

/// The state of a round.
///
/// [`Round::verdict`] decides by the votes alone. Two more decisions are made after the round:
///
/// - If the validity ends while guard records are restored, a won attempt is `TooLate`: `redlock/attempt.rs`.
/// - If so many nodes refused an extension that the others are no quorum, the lease is lost: `redlock/extension.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The round waits for more votes.
    Pending,
    /// A quorum granted, in time.
    Won,
    /// A quorum granted, but the validity was over by then.
    TooLate,
    /// A quorum of grants is no longer possible. The nodes whose vote is not [unknown](Vote::Unknown) are a quorum.
    Refused,
    /// A quorum of grants is no longer possible, and the nodes whose vote is not [unknown](Vote::Unknown) are no
    /// quorum. Some of them may have refused: of five nodes, one may have refused and three may have failed.
    Unreachable,
}

/// The votes of one round, and its verdict.
///
/// Whether the round is won is certain, whatever the other votes are, as soon as one of these holds:
///
/// - won: `granted >= quorum`
/// - lost: `granted + pending < quorum`
///
/// This is exact for an even number of nodes too. A won round ends at once. A lost round also ends at once, except after
/// [`wait_for_samples`](Self::wait_for_samples) or [`wait_for_all`](Self::wait_for_all).
#[derive(Debug, Clone)]
pub(crate) struct Round {
    /// The nodes whose votes count.
    voters: NodeSet,
    quorum: u32,
    /// When the caller stops waiting for votes.
    deadline: Instant,
    /// A win counts only before this instant.
    valid_until: Instant,
    granted: NodeSet,
    refused: NodeSet,
    unknown: NodeSet,
    /// How many nodes have told their time and their highest fence, which the next proposal needs.
    samples: u32,
    /// A lost round waits until it has so many samples.
    samples_needed: u32,
    /// How many nodes denied their vote only because of the proposed fence.
    misfits: u32,
    /// A lost round waits for all voters, unless the next round may be won with another fence.
    needs_all: bool,
    distrust: Distrust,
}

/// What a round does not trust, because an earlier round of the same attempt or extension was lost.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Distrust {
    Nothing,
    /// The nodes' time, as the client knows it.
    Time,
    /// The nodes' time, and the highest known fence: it may come from a clock that is ahead.
    TimeAndFences,
}

impl Round {
    /// Creates a round among `voters` that is won by `quorum` grants.
    pub(crate) const fn new(
        voters: NodeSet,
        quorum: u32,
        deadline: Instant,
        valid_until: Instant,
    ) -> Self {
        Self {
            voters,
            quorum,
            deadline,
            valid_until,
            granted: NodeSet::EMPTY,
            refused: NodeSet::EMPTY,
            unknown: NodeSet::EMPTY,
            samples: 0,
            samples_needed: 0,
            misfits: 0,
            needs_all: false,
            distrust: Distrust::Nothing,
        }
    }

    /// Makes a lost round wait until all voters have voted or the round is over:
    ///
    /// - if a node lacks its guard record, because the records of the other nodes decide whether this client may write it again;
    /// - if the round delivers a release, which is worth waiting for on each node.
    ///
    /// If other nodes denied only the fence, and the next round may be won with another one, the round does not wait.
    pub(crate) const fn wait_for_all(&mut self) {
        self.needs_all = true;
    }

    /// Records that a node denied its vote only because of the proposed fence. The next proposal needs the samples of
    /// [`blocking_count`](Self::blocking_count) nodes, or of all voters if this round used data that it
    /// [distrusts](Self::distrust). So a lost round waits for them. An unreachable node helps to lose a round, but gives no
    /// sample.
    ///
    /// `is_stale`: the node has accepted a higher fence, or this fence for another attempt.
    pub(crate) fn wait_for_samples(&mut self, is_stale: bool) {
        self.misfits += 1;
        let is_distrusted = match self.distrust {
            Distrust::Nothing => false,
            Distrust::Time => !is_stale,
            Distrust::TimeAndFences => true,
        };
        let needed = if is_distrusted {
            self.voters.len()
        } else {
            self.blocking_count()
        };
        self.samples_needed = self.samples_needed.max(needed);
    }

    /// Sets what this round distrusts. If the round is lost because of such data, it waits for all voters: the
    /// nodes that were the first to answer the previous round may have wrong clocks.
    pub(crate) const fn distrust(&mut self, distrust: Distrust) {
        self.distrust = distrust;
    }

    /// Counts a node that has told its time and its highest fence.
    pub(crate) const fn count_sample(&mut self) {
        self.samples += 1;
    }

    /// The smallest number of voters that can make a quorum of the others impossible: `voters + 1 - quorum`.
    pub(crate) fn blocking_count(&self) -> u32 {
        (self.voters.len() + 1).saturating_sub(self.quorum)
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) const fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// Counts the first vote of `node`. Ignores a later vote, and the vote of a node that is no voter.
    pub(crate) fn vote(&mut self, node: usize, vote: Vote) {
        if !self.pending().contains(node) {
            return;
        }
        match vote {
            Vote::Granted => self.granted.insert(node),
            Vote::Refused => self.refused.insert(node),
            Vote::Unknown => self.unknown.insert(node),
        }
    }

    /// Makes the refusal of `node` unknown. Returns whether it had refused.
    pub(crate) fn withdraw_refusal(&mut self, node: usize) -> bool {
        let has_refused = self.refused.contains(node);
        if has_refused {
            self.refused = self.refused.without(NodeSet::of(node));
            self.unknown.insert(node);
        }
        has_refused
    }

    /// Whether a quorum has granted. Only then the [verdict](Self::verdict) depends on the time.
    pub(crate) const fn has_quorum(&self) -> bool {
        self.granted.len() >= self.quorum
    }

    /// Returns the state of the round at `now`. The clock must be read *after* the last vote that counts.
    ///
    /// If `is_over`, pending votes count as unknown. The caller decides this, not the deadline: a task that is polled late
    /// first reads the votes that have arrived.
    ///
    /// The Redlock specification, step 3: the elapsed time is measured when the replies have arrived.
    pub(crate) fn verdict(&self, now: Instant, is_over: bool) -> Verdict {
        let granted = self.granted.len();
        let pending = if is_over { 0 } else { self.pending().len() };
        if self.has_quorum() {
            return if now < self.valid_until {
                Verdict::Won
            } else {
                Verdict::TooLate
            };
        }
        // Whether the next round may be won with another fence, without the nodes that lack a guard record. The nodes that
        // granted, that denied only the fence or that have not voted yet may grant it.
        let can_win_next = self.misfits > 0 && granted + self.misfits + pending >= self.quorum;
        let needs_more =
            FENCES && self.samples < self.samples_needed || self.needs_all && !can_win_next;
        if granted + pending >= self.quorum || needs_more && pending > 0 {
            return Verdict::Pending;
        }
        let unknown = self.voters.len() - granted - self.refused.len() - pending;
        if self.voters.len() - unknown < self.quorum {
            Verdict::Unreachable
        } else {
            Verdict::Refused
        }
    }

    /// Whether all voters have voted, or had the time for it.
    pub(crate) fn is_complete(&self, now: Instant) -> bool {
        self.pending() == NodeSet::EMPTY || now >= self.deadline
    }

    fn pending(&self) -> NodeSet {
        self.voters
            .without(self.granted)
            .without(self.refused)
            .without(self.unknown)
    }
}

/// A set of nodes, by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct NodeSet(u32);

impl NodeSet {
    /// The largest number of nodes in a set.
    pub(crate) const CAPACITY: usize = 32;

    pub(crate) const EMPTY: Self = Self(0);

    /// The nodes `0..count`.
    pub(crate) fn first(count: usize) -> Self {
        let mut set = Self::EMPTY;
        (0..count).for_each(|node| set.insert(node));
        set
    }

    /// Only `node`.
    pub(crate) fn of(node: usize) -> Self {
        Self(Self::bit(node))
    }

    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    pub(crate) const fn len(self) -> u32 {
        self.0.count_ones()
    }

    pub(crate) fn contains(self, node: usize) -> bool {
        self.0 & Self::bit(node) != 0
    }

    pub(crate) fn insert(&mut self, node: usize) {
        debug_assert!(node < Self::CAPACITY, "a node beyond the set's capacity");
        self.0 |= Self::bit(node);
    }

    #[cfg(any(feature = "queue", feature = "mock"))]
    pub(crate) const fn insert_all(&mut self, others: Self) {
        self.0 |= others.0;
    }

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The bit of `node`. Zero if `node` is beyond the capacity.
    fn bit(node: usize) -> u32 {
        u32::try_from(node)
            .ok()
            .and_then(|node| 1_u32.checked_shl(node))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
