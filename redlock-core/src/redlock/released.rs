//! What a release has done.

use crate::report::Report;
use crate::text;

/// The result of a release. It is never an error: a key that was not deleted expires. Its text is for logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Released<E, const MAX: usize> {
    report: Report<E, MAX>,
    /// Whether the keys live on, by `Options::min_hold`.
    is_kept: bool,
}

impl<E, const MAX: usize> Released<E, MAX> {
    pub(super) const fn new(report: Report<E, MAX>, is_kept: bool) -> Self {
        Self { report, is_kept }
    }

    /// A release that asked no node, of so many nodes. For an adapter whose lease was over, and may go on elsewhere.
    #[must_use]
    pub fn without_asking(key: &[u8], nodes: usize) -> Self {
        Self::new(Report::new(key, nodes.min(MAX)), false)
    }

    /// How many nodes have deleted the key.
    #[must_use]
    pub fn released(&self) -> usize {
        match self.is_kept {
            true => 0,
            false => self.report.tally().granted,
        }
    }

    /// How many nodes let the key live for the rest of `Options::min_hold`. Zero if that time was over, or if it is not set.
    #[must_use]
    pub fn kept(&self) -> usize {
        match self.is_kept {
            true => self.report.tally().granted,
            false => 0,
        }
    }

    /// How many nodes no longer had the key of this lease: it had expired, or now carries the token of another client.
    #[must_use]
    pub fn gone(&self) -> usize {
        self.report.tally().refused
    }

    /// How many nodes had not answered, or had failed, when the release returned: when a quorum had answered, when all nodes had
    /// answered or failed, or when the node timeout was over. Nodes that can be reached delete the key a moment later. On the other
    /// nodes, it expires. A node that was never sent the acquire counts too, although it has nothing to release.
    #[must_use]
    pub fn unanswered(&self) -> usize {
        self.report.tally().unknown
    }

    /// Whether other clients wait for the lock in its line, as far as the nodes have answered. Then the next acquire of the key
    /// begins in the line, see [`Options::queue`](crate::Options). `false` without the feature `queue`.
    #[must_use]
    pub fn has_waiters(&self) -> bool {
        self.report.has_waiters()
    }

    /// The outcome of each node: `Granted` if it deleted or kept the key, `Refused` if the key was gone.
    #[must_use]
    pub const fn report(&self) -> &Report<E, MAX> {
        &self.report
    }
}

text! {
    impl [E, const MAX: usize] for Released<E, MAX> [E] {
        Self { report, is_kept: false } => "{}: released on {}, gone on {}; {}", report.key(), report.tally().granted,
            report.tally().refused, report.nodes_text(report.tally().unknown, " had not answered or failed");
        Self { report, is_kept: true } => "{}: kept for its min_hold on {}, gone on {}; {}", report.key(),
            report.tally().granted, report.tally().refused,
            report.nodes_text(report.tally().unknown, " had not answered or failed");
    }
}
