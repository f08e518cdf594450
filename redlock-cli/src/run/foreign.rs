//! A key that no client of a lock has written. It keeps every client from the lock, and its errors cannot tell it from a lock that is
//! held.

use core::time::Duration;

use redlock_std::KeyName;

use super::{Failure, Plan};
use crate::exit;
use crate::inspect::Sight;

/// For how long the nodes are asked.
const PATIENCE: Duration = Duration::from_millis(300);

/// Why no client can take this lock, if so many nodes have such a key that the others are no quorum.
pub(super) async fn failure(plan: &Plan) -> Option<Failure> {
    let nodes = plan.nodes.nodes(PATIENCE).ok()?;
    let sight = Sight::of(&nodes, &plan.key, None).await;
    let foreign = sight.holdings.iter().filter(|node| node.is_foreign());
    let count = foreign.count();
    let is_hopeless = nodes.len() - count <= nodes.len() / 2;
    is_hopeless.then(|| Failure {
        why: format!(
            "{}: no client can acquire this key, because another program has written it on {count} of {} nodes, as redlock inspect \
             shows; delete it if nothing needs it, or use another key{}",
            KeyName::new(&plan.key),
            nodes.len(),
            super::not_run(plan)
        ),
        code: exit::UNREACHABLE,
    })
}
