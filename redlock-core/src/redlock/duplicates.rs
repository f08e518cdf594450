//! Nodes of one lock that are one process.

use core::array;

use crate::entropy::Entropy;
use crate::redlock::Redlock;
use crate::report::{Outcome, Report};
use crate::round::NodeSet;
use crate::time::Clock;
use crate::transport::Transport;

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// Nodes that are the same process as one before them.
    pub(super) fn duplicates(&self) -> NodeSet {
        let mut duplicates = NodeSet::EMPTY;
        self.each_duplicate(|node, _| duplicates.insert(node));
        duplicates
    }

    /// The same, each of them with its reason in the report.
    pub(super) fn name_duplicates(&self, report: &mut Report<T::Error, MAX>) -> NodeSet {
        let mut duplicates = NodeSet::EMPTY;
        self.each_duplicate(|node, first| {
            duplicates.insert(node);
            let both = self.nodes.get(node).zip(self.nodes.get(first));
            let error = both.and_then(|(node, first)| node.as_ref()?.duplicate_of(first.as_ref()?));
            report.record(node, error.map_or(Outcome::Unanswered, Outcome::Failed));
        });
        duplicates
    }

    /// Tells of each the number, and that of the first with the same process.
    fn each_duplicate(&self, mut tell: impl FnMut(usize, usize)) {
        let run_ids: [_; MAX] = array::from_fn(|node| self.nodes.get(node)?.as_ref()?.run_id());
        for (node, run_id) in run_ids.iter().enumerate() {
            let mut all = run_ids.iter().take(node);
            if let Some(first) = all.position(|other| run_id.is_some() && other == run_id) {
                tell(node, first);
            }
        }
    }
}
