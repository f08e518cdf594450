//! Duplicates: nodes of one lock that are the same process as an earlier node.

use core::array;

use crate::entropy::Entropy;
use crate::failure::Failure;
use crate::node_info::RunId;
use crate::observer::Observer;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::report::Outcome;
use crate::round::{NodeSet, Verdict};
use crate::time::Clock;
use crate::transport::{NodeErrorOf, Transport};

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// The nodes that are known to be the same process as an earlier node.
    pub(super) fn duplicates(&self) -> NodeSet {
        let run_ids = self.run_ids();
        let mut duplicates = NodeSet::EMPTY;
        for node in 0..self.node_count() {
            if first_like(node, &run_ids).is_some() {
                duplicates.insert(node);
            }
        }
        duplicates
    }

    /// Records an error for each node whose vote did not count, or was not waited for, because another name of its process has
    /// voted. If the votes of a process with several names may have cost the round its quorum, tells the nodes of all these names: which of
    /// them is wrong is not known.
    pub(super) fn record_duplicates(&mut self, ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>) {
        let run_ids = self.run_ids();
        for (node, transport) in self.nodes.iter().enumerate() {
            let Some(transport) = transport else {
                continue;
            };
            let other = other_like(node, &run_ids);
            let is_unanswered = |node| ballot.report.is_unanswered(node);
            let is_spared = is_unanswered(node) && other.is_some_and(|it| !is_unanswered(it));
            if ballot.uncounted.contains(node) || is_spared {
                let other = other.and_then(|other| self.nodes.get(other)?.as_ref());
                let outcome = other.map_or(Outcome::Unanswered, |other| {
                    Outcome::failed(transport, Failure::DuplicateOf(other.name()))
                });
                #[cfg(feature = "observe")]
                if let (true, Outcome::Failed(error)) = (O::OBSERVES, &outcome) {
                    self.observer.node_failed(node, error);
                }
                ballot.report.record(node, outcome);
            }
        }
        if T::DOUBTS_ADDRESSES && may_cost_the_quorum(ballot) {
            for (node, transport) in self.nodes.iter_mut().enumerate() {
                if let (Some(transport), Some(_)) = (transport, other_like(node, &run_ids)) {
                    transport.doubt_address();
                }
            }
        }
    }

    /// The process of each node. `None` if it is unknown.
    fn run_ids(&self) -> [Option<RunId>; MAX] {
        array::from_fn(|node| self.nodes.get(node)?.as_ref()?.run_id())
    }
}

/// Whether a round might have been won with the votes that did not count. A lock that another client holds is refused in any case.
fn may_cost_the_quorum<E, const MAX: usize>(ballot: &Ballot<'_, E, MAX>) -> bool {
    match ballot.verdict {
        Verdict::Won => false,
        Verdict::Unreachable => true,
        _ => ballot.report.tally().granted > 0,
    }
}

/// The first node that is the same process as `node`. `None` if `node` is the first, or if its process is unknown.
fn first_like(node: usize, run_ids: &[Option<RunId>]) -> Option<usize> {
    other_like(node, run_ids).filter(|other| *other < node)
}

/// The first other node that is the same process as `node`. `None` if there is none, or if its process is unknown.
fn other_like(node: usize, run_ids: &[Option<RunId>]) -> Option<usize> {
    let run_id = (*run_ids.get(node)?)?;
    let mut others = run_ids.iter().enumerate();
    let other = others.find(|(other, its)| *other != node && **its == Some(run_id));
    other.map(|(other, _)| other)
}
