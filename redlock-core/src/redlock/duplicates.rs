//! Nodes of one lock that are one process.

use core::array;

use crate::entropy::Entropy;
use crate::failure::Failure;
use crate::node_info::RunId;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::report::{Outcome, Report};
use crate::round::{NodeSet, Verdict};
use crate::time::Clock;
use crate::transport::{NodeErrorOf, Transport};

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// Revokes a win to which one process contributed two votes.
    pub(super) fn judge_duplicates(&self, ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>) {
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
        let run_ids = self.run_ids();
        let mut duplicates = NodeSet::EMPTY;
        for node in 0..self.count() {
            if first_like(node, &run_ids).is_some() {
                duplicates.insert(node);
            }
        }
        duplicates
    }

    /// Like [`duplicates`](Self::duplicates), and records the error of each in the report.
    fn name_duplicates(&self, report: &mut Report<NodeErrorOf<T>, MAX>) -> NodeSet {
        let run_ids = self.run_ids();
        let mut duplicates = NodeSet::EMPTY;
        for (node, transport) in self.nodes().enumerate() {
            if let Some(first) = first_like(node, &run_ids)
                && let Some(first) = self.nodes().nth(first)
            {
                duplicates.insert(node);
                let failure = Failure::DuplicateOf(first.name());
                report.record(node, Outcome::failed(transport, failure));
            }
        }
        duplicates
    }

    /// The processes of the nodes, as far as they are known.
    fn run_ids(&self) -> [Option<RunId>; MAX] {
        array::from_fn(|node| self.nodes.get(node)?.as_ref()?.run_id())
    }
}

/// The first node that is the same process as `node`. `None` if that is `node` itself.
fn first_like(node: usize, run_ids: &[Option<RunId>]) -> Option<usize> {
    let run_id = (*run_ids.get(node)?)?;
    let first = run_ids.iter().position(|other| *other == Some(run_id));
    first.filter(|first| *first < node)
}
