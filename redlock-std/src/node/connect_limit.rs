//! The timeouts of a connect.

use std::time::Duration;

/// The timeouts of a connect. The timeout for the setup doubles each time that the node accepts the connection but the
/// setup is not done in time: if many clients connect at once, the node is slow for all of them, and an attempt that is
/// cancelled early was wasted work.
///
/// The timeout for the connection itself stays the same: TCP retransmits lost packets less and less often, so a new
/// attempt finds a node that is back sooner than an old attempt.
#[derive(Debug)]
pub(crate) struct ConnectLimit {
    least: Duration,
    late_in_a_row: u32,
}

/// The timeout is one node timeout for each round trip of connect, handshake and scripts together, within these bounds.
pub(crate) const ROUND_TRIPS: u32 = 4;
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);

/// A cancelled TLS handshake was wasted work for both ends, and the next one takes as long.
const LEAST_OVER_TLS: Duration = Duration::from_secs(8);

impl ConnectLimit {
    pub(crate) const fn new(is_tls: bool) -> Self {
        Self {
            least: if is_tls { LEAST_OVER_TLS } else { LEAST },
            late_in_a_row: 0,
        }
    }

    /// The timeout for the connection alone.
    pub(crate) fn to_dial(node_timeout: Duration) -> Duration {
        node_timeout.saturating_mul(ROUND_TRIPS).clamp(LEAST, MOST)
    }

    /// The timeout for the handshake, the login and the scripts.
    pub(crate) fn to_set_up(&self, node_timeout: Duration) -> Duration {
        let doubled = 2_u32.saturating_pow(self.late_in_a_row);
        let first = Self::to_dial(node_timeout).max(self.least);
        first.saturating_mul(doubled).min(MOST)
    }

    pub(crate) const fn was_late(&mut self) {
        self.late_in_a_row = self.late_in_a_row.saturating_add(1);
    }

    pub(crate) const fn was_in_time(&mut self) {
        self.late_in_a_row = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timeout_doubles_up_to_a_minute_and_is_reset_by_a_connection() {
        let node_timeout = Duration::from_millis(500);
        let mut limit = ConnectLimit::new(false);
        let mut seconds = Vec::new();
        for _ in 0..8 {
            seconds.push(limit.to_set_up(node_timeout).as_secs());
            limit.was_late();
        }
        assert_eq!(seconds, [2, 4, 8, 16, 32, 60, 60, 60]);
        limit.was_in_time();
        assert_eq!(limit.to_set_up(Duration::ZERO), LEAST);
        for _ in 0..100 {
            limit.was_late();
        }
        assert_eq!(limit.to_set_up(Duration::MAX), MOST);
        assert_eq!(
            ConnectLimit::new(true).to_set_up(Duration::ZERO),
            LEAST_OVER_TLS
        );
    }
}
