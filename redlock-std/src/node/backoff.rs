//! The delay before a connection is made again.

use std::time::Duration;

use redlock_core::Entropy;

use crate::entropy::SystemEntropy;

/// The delays before the connections to one node.
#[derive(Debug)]
pub(crate) struct Backoff {
    next: Duration,
    is_tls: bool,
    /// Whether the last connection that was made again without delay had lasted for less than [`LONG_LIFE`].
    was_brief: bool,
}

/// The delay before a reconnect if no call comes, and before a release is sent again. Each delay is twice the one
/// before, from the first to the last.
pub(crate) const FIRST_BACKOFF: Duration = Duration::from_millis(20);
pub(crate) const LAST_BACKOFF: Duration = Duration::from_secs(1);

/// If a connection that answered lasted this long, it is made again without delay when it ends: the server closes idle
/// connections, or has restarted.
pub(crate) const MIN_LIFE: Duration = Duration::from_millis(30);

/// Over TLS, a connection that lasted for less is made again without delay only once, until one lasts this long: each handshake may
/// take a tenth of a second of the thread, see `tls/verifier.rs`.
const LONG_LIFE: Duration = Duration::from_secs(1);

/// Over TLS, only a connection that lasted this long makes the delays short again. Otherwise a node could get a burst of handshakes
/// after each second.
const STABLE: Duration = Duration::from_secs(5);

impl Backoff {
    pub(crate) const fn new(is_tls: bool) -> Self {
        Self {
            next: FIRST_BACKOFF,
            is_tls,
            was_brief: false,
        }
    }

    /// Returns whether the next connection is made without delay, after one that was of use and lasted for `lived`.
    pub(crate) fn is_over(&mut self, lived: Duration) -> bool {
        let is_brief = self.is_tls && lived < LONG_LIFE;
        if is_brief && self.was_brief {
            return false;
        }
        self.was_brief = is_brief;
        if !self.is_tls || lived >= STABLE {
            self.next = FIRST_BACKOFF;
        }
        true
    }

    /// Returns the delay before the next connect, and doubles the one after it.
    pub(crate) fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(LAST_BACKOFF);
        jittered(delay)
    }
}

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
    fn over_tls_brief_connections_are_made_again_without_delay_only_once_in_a_second() {
        let mut plain = Backoff::new(false);
        assert!((0..9).all(|_| plain.is_over(MIN_LIFE)));
        let mut backoff = Backoff::new(true);
        for _ in 0..3 {
            assert!(backoff.is_over(STABLE) && backoff.is_over(MIN_LIFE));
            for doublings in 0..9 {
                let most = (FIRST_BACKOFF * 2_u32.pow(doublings)).min(LAST_BACKOFF);
                assert!(!backoff.is_over(MIN_LIFE));
                let delay = backoff.next_delay();
                assert!((most / 2..=most).contains(&delay), "{delay:?}, {most:?}");
            }
            assert!(backoff.is_over(LONG_LIFE) && backoff.is_over(MIN_LIFE));
            assert!(backoff.next_delay() >= LAST_BACKOFF / 2, "no burst");
        }
    }

    #[test]
    fn clients_that_lost_a_node_together_do_not_reconnect_together() {
        let delays: HashSet<_> = (0..100).map(|_| jittered(LAST_BACKOFF)).collect();
        assert!(delays.len() > 10, "{delays:?}");
        let range = LAST_BACKOFF / 2..=LAST_BACKOFF;
        assert!(delays.iter().all(|delay| range.contains(delay)));
    }
}
