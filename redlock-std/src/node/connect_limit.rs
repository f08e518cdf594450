//! How long a connect may take.

use std::time::Duration;

/// Grows with each connection that was there and was not set up in time: a node to which many come at once is slow for
/// all of them, and who gives up early has wasted its time.
///
/// To be there at all it always takes as long as at first: packets that were dropped are sent again more and more
/// rarely, and a new attempt finds a node that is back sooner than an old one.
#[derive(Debug)]
pub(crate) struct ConnectLimit {
    least: Duration,
    late_in_a_row: u32,
}

/// For the connect, the handshake and the scripts together: as many node timeouts as they take round trips, and
/// no less and no more than this.
pub(crate) const ROUND_TRIPS: u32 = 4;
const LEAST: Duration = Duration::from_secs(1);
const MOST: Duration = Duration::from_secs(60);

/// A handshake that is given up was work for both ends, and the next one finds no less to do.
const LEAST_OVER_TLS: Duration = Duration::from_secs(8);

impl ConnectLimit {
    pub(crate) const fn new(is_tls: bool) -> Self {
        Self {
            least: if is_tls { LEAST_OVER_TLS } else { LEAST },
            late_in_a_row: 0,
        }
    }

    /// For the connection alone.
    pub(crate) fn to_dial(node_timeout: Duration) -> Duration {
        node_timeout.saturating_mul(ROUND_TRIPS).clamp(LEAST, MOST)
    }

    /// For the handshake, the login, the scripts.
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
    fn it_doubles_up_to_a_minute_and_falls_back() {
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
