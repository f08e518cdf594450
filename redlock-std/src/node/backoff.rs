//! The delay before a connection is made again.

use std::time::Duration;

use redlock_core::Entropy;

use crate::entropy::SystemEntropy;

/// The delay before a reconnect if no call comes, and before a release is sent again. Each delay is twice the one
/// before, from the first to the last.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(20);
pub(crate) const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// If a connection that answered lasted this long, it is made again without delay when it ends: the server closes idle
/// connections, or has restarted.
pub(crate) const MIN_LIFE: Duration = Duration::from_millis(30);

/// Returns a random time between a half of `backoff` and all of it, so that clients that lost a node at the same time do
/// not reconnect at the same time.
pub(crate) fn jittered(backoff: Duration) -> Duration {
    let mut random = [0; 1];
    SystemEntropy.fill(&mut random);
    let [random] = random;
    backoff / 2 + backoff / 2 * u32::from(random) / u32::from(u8::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn clients_that_lost_a_node_together_do_not_reconnect_together() {
        let delays: HashSet<_> = (0..100).map(|_| jittered(LAST_BACKOFF)).collect();
        assert!(delays.len() > 10, "{delays:?}");
        let range = LAST_BACKOFF / 2..=LAST_BACKOFF;
        assert!(delays.iter().all(|delay| range.contains(delay)));
    }
}
