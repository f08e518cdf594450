//! One round of votes: pure logic, without a clock or I/O.

use crate::time::Instant;

/// What one node's reply means for the round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Vote {
    /// The node did what it was asked.
    Granted,
    /// The node refused.
    Refused,
    /// The node gave no valid answer. It may have done what it was asked.
    Unknown,
}

/// The state of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Missing votes can still decide it.
    Pending,
    /// A quorum granted, in time.
    Won,
    /// A quorum granted, but the validity was over by then.
    TooLate,
    /// A quorum is no longer possible, and some node refused.
    Refused,
    /// A quorum is not possible, because too many nodes gave no answer.
    Unreachable,
}

/// The votes of one round, and its verdict.
///
/// The verdict is settled at the first vote after which no other vote could change whether the round
/// is won: `granted >= quorum`, or `granted + pending < quorum`. This is exact for an even number of
/// nodes too.
#[derive(Debug, Clone)]
pub(crate) struct Round {
    voters: NodeSet,
    quorum: u32,
    /// When the caller stops waiting for votes.
    deadline: Instant,
    /// A win counts only before this instant.
    valid_until: Instant,
    granted: NodeSet,
    refused: NodeSet,
    unknown: NodeSet,
    /// How many nodes have given data for the next round.
    heard: u32,
    /// How many nodes must give data for the next round before this one is lost.
    wanted: u32,
    /// How many nodes refused only because of the proposed fence.
    misfits: u32,
    wants_all: bool,
    doubt: Doubt,
}

/// What an attempt that has lost a round cannot trust.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Doubt {
    None,
    /// The nodes' time.
    Time,
    /// The nodes' time, and the highest known fence: it may come from a clock that is ahead.
    TimeAndFences,
}

impl Round {
    /// A round among `voters` that takes `quorum` grants to win.
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
            heard: 0,
            wanted: 0,
            misfits: 0,
            wants_all: false,
            doubt: Doubt::None,
        }
    }

    /// Keeps a lost round open until all nodes have answered or its time is over: a node has lost its guard record,
    /// and the records of the others decide which client may write it again. If the next round may be won without
    /// that node, the round does not stay open.
    pub(crate) const fn hear_all(&mut self) {
        self.wants_all = true;
    }

    /// Keeps a lost round open for a fence that does not fit: the next fence needs [`enough`](Self::enough) answers.
    /// Nodes that cannot be reached help to lose a round, but give no data.
    pub(crate) fn hear_enough(&mut self, is_stale: bool) {
        self.misfits += 1;
        let is_doubtful = match self.doubt {
            Doubt::None => false,
            Doubt::Time => !is_stale,
            Doubt::TimeAndFences => true,
        };
        let wanted = if is_doubtful {
            self.voters.len()
        } else {
            self.enough()
        };
        self.wanted = self.wanted.max(wanted);
    }

    /// If the round is lost because of doubtful data, it waits for all nodes: those that answered first may have wrong
    /// clocks.
    pub(crate) const fn doubt(&mut self, doubt: Doubt) {
        self.doubt = doubt;
    }

    /// Counts a node that has told its time.
    pub(crate) const fn heard(&mut self) {
        self.heard += 1;
    }

    /// The number of nodes that leaves the others without a quorum.
    pub(crate) fn enough(&self) -> u32 {
        (self.voters.len() + 1).saturating_sub(self.quorum)
    }

    pub(crate) const fn deadline(&self) -> Instant {
        self.deadline
    }

    pub(crate) const fn valid_until(&self) -> Instant {
        self.valid_until
    }

    /// Counts the vote of `node`: only its first one, and only if it is a voter.
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

    /// The state of the round at `now`, a reading of the clock *after* the last vote that counts.
    ///
    /// `is_over` ends the wait for pending votes: they count as unknown. The caller decides this, not the deadline:
    /// a task that is polled late first reads the votes that have arrived.
    ///
    /// The Redlock specification, step 3: the elapsed time is measured when the replies have arrived.
    pub(crate) fn verdict(&self, now: Instant, is_over: bool) -> Verdict {
        let granted = self.granted.len();
        let pending = if is_over { 0 } else { self.pending().len() };
        if granted >= self.quorum {
            return if now < self.valid_until {
                Verdict::Won
            } else {
                Verdict::TooLate
            };
        }
        let may_fit = self.misfits > 0 && granted + self.misfits + pending >= self.quorum;
        let is_unheard = self.heard < self.wanted || self.wants_all && !may_fit;
        if granted + pending >= self.quorum || is_unheard && pending > 0 {
            return Verdict::Pending;
        }
        let silent = self.voters.len() - granted - self.refused.len() - pending;
        if self.voters.len() - silent < self.quorum {
            Verdict::Unreachable
        } else {
            Verdict::Refused
        }
    }

    fn pending(&self) -> NodeSet {
        self.voters
            .without(self.granted)
            .without(self.refused)
            .without(self.unknown)
    }
}

/// A set of nodes, by their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeSet(u32);

impl NodeSet {
    /// How many nodes a set can hold.
    pub(crate) const CAPACITY: usize = 32;

    pub(crate) const EMPTY: Self = Self(0);

    /// The nodes `0..count`.
    pub(crate) fn first(count: usize) -> Self {
        let mut set = Self::EMPTY;
        (0..count).for_each(|node| set.insert(node));
        set
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

    pub(crate) const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn within(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// No bit for a node beyond the capacity.
    fn bit(node: usize) -> u32 {
        u32::try_from(node)
            .ok()
            .and_then(|node| 1_u32.checked_shl(node))
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests;
