//! Nodes of one lock that are one process.

use crate::entropy::Entropy;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::report::{Outcome, Report};
use crate::round::{NodeSet, Verdict};
use crate::time::Clock;
use crate::transport::Transport;

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// Revokes a win to which one process contributed two votes.
    pub(super) fn judge_duplicates(&self, ballot: &mut Ballot<'_, T::Error, MAX>) {
        if self.name_duplicates(&mut ballot.report) != self.all.without(ballot.asked) {
            // The duplicates were found in this round, and one process has voted twice: it refused what it
            // had granted itself, or granted it again.
            let is_refused = self.count() - ballot.report.tally().refused < self.quorum() as usize;
            let verdict = ballot.verdict;
            if verdict == Verdict::Won || verdict == Verdict::Refused && !is_refused {
                ballot.verdict = Verdict::Unreachable;
            }
        }
    }

    /// The nodes that are the same process as an earlier node.
    pub(super) fn duplicates(&self) -> NodeSet {
        let mut duplicates = NodeSet::EMPTY;
        for node in 0..self.count() {
            if self.first_like(node).is_some() {
                duplicates.insert(node);
            }
        }
        duplicates
    }

    /// Like [`duplicates`](Self::duplicates), and records the error of each in the report.
    fn name_duplicates(&self, report: &mut Report<T::Error, MAX>) -> NodeSet {
        let mut duplicates = NodeSet::EMPTY;
        for (node, transport) in self.nodes().enumerate() {
            if let Some(first) = self.first_like(node) {
                duplicates.insert(node);
                let error = transport.duplicate_of(first);
                report.record(node, error.map_or(Outcome::Unanswered, Outcome::Failed));
            }
        }
        duplicates
    }

    /// The first node that is the same process as `node`. `None` if that is `node` itself.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn first_like(&self, node: usize) -> Option<&T> {
        let run_id = self.nodes.get(node)?.as_ref()?.run_id()?;
        let mut before = self.nodes.iter().take(node).flatten();
        before.find(|other| other.run_id() == Some(run_id))
    }
}
