//! How long a restarted node has no vote.

use core::time::Duration;

use redlock_core::transport::{Admission, NodeInfo, ReplicationId, RunId, Verb, VoteConditions};
use redlock_core::{Denial, Instant};

use crate::defaults::DRIFT_PPM;

/// Returns how long a master has no vote for plain locks of a client that connects now.
///
/// `max_ttl` is the longest TTL of any client. `record` is the max TTL in the guard record, and whether the record vouches
/// for the node.
pub(crate) fn time_without_vote(
    uptime_s: i64,
    max_ttl: Duration,
    record: Option<(Duration, bool)>,
) -> Duration {
    let mut conditions = VoteConditions::NONE;
    conditions.max_ttl_ms = millis(max_ttl);
    conditions.drift_ppm = DRIFT_PPM;
    conditions.restart_guard = true;
    let now = Instant::from_micros(0);
    let mut admission = Admission::new();
    let mut node_info = NodeInfo::new(RunId::new(0), ReplicationId::new(0));
    node_info.uptime = Duration::from_secs(uptime_s.max(0).unsigned_abs());
    node_info.max_ttl_ms = record.map(|(max_ttl, _)| millis(max_ttl));
    node_info.is_vouched = record.is_some_and(|(_, is_vouched)| is_vouched);
    admission.record(Some(node_info), now);
    // The TTL is zero, because the caller checks whether the record allows the TTL of a lease.
    match admission.check(
        Verb::Acquire {
            ttl_ms: 0,
            conditions,
        },
        now,
    ) {
        Err(Denial::Restarted { left_ms, .. }) => Duration::from_millis(left_ms.into()),
        _ => Duration::ZERO,
    }
}

fn millis(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uptime_is_rounded_down() {
        // 1 % and 2 ms of drift.
        let (ttl, longer) = (Duration::from_secs(10), Duration::from_secs(20));
        for (uptime, left_ms) in [
            (-3600, 10_102),
            (0, 10_102),
            (1, 10_102),
            (2, 9_102),
            (10, 1_102),
            (11, 102),
            (12, 0),
            (99, 0),
        ] {
            let left = time_without_vote(uptime, ttl, None);
            assert_eq!(left, Duration::from_millis(left_ms), "{uptime}");
        }
        let vouched = Some((ttl, true));
        assert_eq!(time_without_vote(0, ttl, vouched), Duration::ZERO);
        // A record for shorter leases does not vouch for the longer leases of other clients.
        let wait = Duration::from_millis(20_202);
        assert_eq!(time_without_vote(0, longer, vouched), wait);
        assert_eq!(time_without_vote(0, longer, None), wait);
        // Leases of the fleet may be longer.
        assert_eq!(time_without_vote(0, ttl, Some((longer, false))), wait);
    }
}
