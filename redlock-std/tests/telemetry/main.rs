//! What a handle tells metrics and traces, over nodes in memory and in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]
#![expect(
    clippy::float_arithmetic,
    reason = "metrics are floating-point numbers"
)]

mod metrics;
mod recorder;
mod traces;

use std::time::Duration;

use redlock_std::{MemoryNode, Options, Redlock};

const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "invoice:42";

fn fleet() -> ([MemoryNode; 3], Redlock) {
    let nodes = MemoryNode::array();
    let redlock = handle(&nodes);
    (nodes, redlock)
}

fn handle(nodes: &[MemoryNode]) -> Redlock {
    Redlock::in_memory(nodes, Options::new(TTL).unwrap()).unwrap()
}
