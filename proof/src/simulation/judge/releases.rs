//! Whether a release that is said to be done was executed by a quorum of nodes.

use std::collections::{BTreeMap, BTreeSet};

use crate::simulation::history::{Claim, What};

#[derive(Debug, Default)]
pub(super) struct Releases {
    quorum: usize,
    /// By the token: the nodes that have executed its release.
    executed: BTreeMap<usize, BTreeSet<usize>>,
}

impl Releases {
    pub(super) fn new(quorum: usize) -> Self {
        Self {
            quorum,
            executed: BTreeMap::new(),
        }
    }

    /// The lease whose release is said to be done and is not.
    pub(super) fn hear(&mut self, what: &What) -> Option<Claim> {
        match what {
            What::Executed(route, message, Ok(_)) if message.is_release() => {
                let nodes = self.executed.entry(message.token).or_default();
                nodes.insert(route.node);
                None
            }
            What::Freed(claim) => {
                let nodes = self.executed.get(&claim.token);
                let count = nodes.map_or(0, BTreeSet::len);
                (count < self.quorum).then_some(*claim)
            }
            _ => None,
        }
    }
}
