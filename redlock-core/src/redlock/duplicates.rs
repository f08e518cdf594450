//! Duplicates: nodes of one lock that are the same process as an earlier node.

use core::array;

use crate::entropy::Entropy;
use crate::failure::Failure;
use crate::node_info::RunId;
use crate::redlock::Redlock;
use crate::report::{Outcome, Report};
use crate::round::NodeSet;
use crate::time::Clock;
use crate::transport::{NodeErrorOf, Transport};

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
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

    /// Records the error of each duplicate in the report. In `race`, one vote of each process has counted.
    pub(super) fn record_duplicates(&self, report: &mut Report<NodeErrorOf<T>, MAX>) {
        let run_ids = self.run_ids();
        for (node, transport) in self.nodes().enumerate() {
            if let Some(first) = first_like(node, &run_ids)
                && let Some(first) = self.nodes().nth(first)
            {
                let failure = Failure::DuplicateOf(first.name());
                report.record(node, Outcome::failed(transport, failure));
            }
        }
    }

    /// The process of each node. `None` if it is unknown.
    fn run_ids(&self) -> [Option<RunId>; MAX] {
        array::from_fn(|node| self.nodes.get(node)?.as_ref()?.run_id())
    }
}

/// The first node that is the same process as `node`. `None` if `node` is the first, or if its process is unknown.
fn first_like(node: usize, run_ids: &[Option<RunId>]) -> Option<usize> {
    let run_id = (*run_ids.get(node)?)?;
    let first = run_ids.iter().position(|other| *other == Some(run_id));
    first.filter(|first| *first < node)
}
