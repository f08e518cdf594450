//! Whether the vote of a node counts, decided by what one client knows about the node.

use crate::command::Verb;
use crate::denial::Denial;
use crate::fence::FENCES;
use crate::node_info::{NodeInfo, ReplicationId, RunId};
use crate::time::{Instant, drift_micros};

/// What one client knows about one node. It belongs to the transport, and outlives the connections to the node.
///
/// The Redlock specification, "Performance, crash recovery and fsync": delayed restarts. Here, the client enforces them.
///
/// - A restart ends every connection, so the client asks the node for its identity on each new connection.
/// - The role and the `maxmemory-policy` of the node can change during a connection, so the client asks again if
///   [`must_ask`](Self::must_ask) returns `true`.
/// - An answer counts from the time of its question ([`ask`](Self::ask)): it may have waited for long until the client reads it.
// Flat, with only those fields of `NodeInfo` that are needed later: a device keeps one per node, and the code is shorter.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Admission {
    run_id: RunId,
    replication_id: ReplicationId,
    /// The latest time at which this process of the node can have begun, with this data. In microseconds on the client's clock,
    /// modulo 2^64: the client's clock may have started later than the node.
    began_at: u64,
    /// The latest time at which the node may have evicted a key, if it could evict keys. In microseconds on the client's clock.
    /// Apart from `began_at`, because only clients that refuse eviction count from it.
    could_evict_until: u64,
    /// When the question was sent whose answer was recorded last. Zero at first.
    asked_at: Instant,
    /// When the last question was sent.
    asking_at: Instant,
    /// From the guard record. Zero if the node has none.
    max_ttl_ms: u32,
    /// The longest `max_ttl_ms` that the client has seen. The record may be gone since, or an older record may be back with
    /// older data.
    longest_ms: u32,
    is_vouched: bool,
    is_master: bool,
    may_evict: bool,
    /// The node could evict keys when it was asked, and could not when it was asked again.
    could_evict: bool,
    /// The node could evict keys and still had its guard record, because it refused to delete the record. So this record may
    /// vouch for a node that has evicted locks.
    keeps_record: bool,
    /// How often `began_at` was set. Zero until the node has identified itself.
    ///
    /// From the second time on, the client's own clock decides when the vote counts again. A guard record no longer vouches
    /// for the node: it depends on the node's clock, which may have been set since.
    beginnings: u8,
    /// Whether the node identified itself when it was last asked.
    is_known: bool,
    /// The node has answered like a replica since it was last asked.
    is_in_doubt: bool,
}

/// If the vote is denied, the node is asked again after this time, in milliseconds.
const DENIAL_MS: u32 = 1_000;

/// If the vote counts, the node is asked again after this time, in milliseconds, or earlier if the client refuses nodes that
/// may evict keys.
const KNOWLEDGE_MS: u32 = 60_000;

impl Admission {
    /// An admission that knows nothing about the node yet. Until the node has identified itself, its vote counts only for
    /// clients that neither have a restart guard nor refuse nodes that may evict keys.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            run_id: RunId(0),
            replication_id: ReplicationId(0),
            began_at: 0,
            could_evict_until: 0,
            asked_at: Instant::from_micros(0),
            asking_at: Instant::from_micros(0),
            max_ttl_ms: 0,
            longest_ms: 0,
            is_vouched: false,
            is_master: false,
            may_evict: false,
            could_evict: false,
            keeps_record: false,
            beginnings: 0,
            is_known: false,
            is_in_doubt: false,
        }
    }

    /// Records that the node is asked for its identity at `now`. Call it before the question is sent. Pass the answer to
    /// [`record`](Self::record).
    pub const fn ask(&mut self, now: Instant) {
        self.asking_at = now;
    }

    /// Records the identity of the node. `node_info` is `None` if the ACL user lacks permission to ask for it.
    ///
    /// If the node was [asked](Self::ask) a minute ago or earlier, it must be asked again, because the answer does not tell what the
    /// node is today. But it tells what has changed until then, and it is the right one for a command that was sent with the
    /// question. On the first contact, such an answer has no effect.
    ///
    /// `now` is the time on the client's clock. If the clock is coarse, it is the end of the tick: the reading plus the
    /// clock's [`resolution`](crate::Clock::resolution). So a node never seems older than it is.
    ///
    /// How the client counts the age of the node:
    ///
    /// - On the first contact, from the uptime that the node reports. The uptime follows the node's wall clock, and does not
    ///   show that a replica was promoted.
    /// - Later, from `now`, if the process or the history of its data has changed, or if the node was a replica.
    /// - If it can no longer evict keys, also from `now`, for clients that refuse nodes that may evict keys.
    pub fn record(&mut self, node_info: Option<NodeInfo>, now: Instant) {
        self.asked_at = self.asking_at;
        // An uptime of long ago would make a node that the client meets for the first time younger than it is.
        if self.beginnings == 0 && is_over(self.asked_at, KNOWLEDGE_MS, now) {
            return;
        }
        self.is_in_doubt = false;
        self.is_known = node_info.is_some();
        let Some(node_info) = node_info else {
            return;
        };
        // The node may have forgotten keys, because it may have evicted them until now.
        if self.may_evict && !node_info.may_evict {
            self.could_evict = true;
            self.could_evict_until = now.as_micros();
        }
        let is_other =
            self.run_id != node_info.run_id || self.replication_id != node_info.replication_id;
        if is_other || !self.is_master {
            self.began_at = now.as_micros();
            if self.beginnings == 0 {
                // The uptime is rounded to whole seconds: it may be up to one second too long.
                let uptime = u32::try_from(node_info.uptime.as_secs()).unwrap_or(u32::MAX);
                let age_s = u64::from(uptime.saturating_sub(1));
                self.began_at = self.began_at.wrapping_sub(age_s * 1_000_000);
            }
            self.beginnings = self.beginnings.saturating_add(1);
        }
        self.max_ttl_ms = node_info.max_ttl_ms.unwrap_or(0);
        self.longest_ms = self.longest_ms.max(self.max_ttl_ms);
        self.run_id = node_info.run_id;
        self.replication_id = node_info.replication_id;
        self.is_vouched = node_info.is_vouched;
        self.is_master = node_info.is_master;
        self.may_evict = node_info.may_evict;
        if FENCES {
            // The record that was kept does not vouch for another process, nor for other data.
            self.keeps_record &= !is_other;
            self.keeps_record |= node_info.may_evict && node_info.max_ttl_ms.is_some();
        }
    }

    /// Records that the node has answered like a replica. So it must be asked again before its next vote.
    pub const fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// Whether the node must be asked for its identity before a command that is sent at `now`: call [`ask`](Self::ask), pass the
    /// answer to [`record`](Self::record), then call [`check`](Self::check).
    ///
    /// Before an acquire and an extend, it must be asked in these cases:
    ///
    /// - It answered last to a question that was sent at least one minute ago.
    /// - Its vote is denied, and that question was sent at least one second ago: the reason may no longer be true. This is not
    ///   so if the client has seen the node restart or evict: then only time ends the denial.
    ///
    /// Before an acquire, also in these cases:
    ///
    /// - The node is in [doubt](Self::doubt).
    /// - The client refuses nodes that may evict keys, and that question was sent at least half of `max_ttl` ago.
    #[must_use]
    pub fn must_ask(&self, verb: Verb, now: Instant) -> bool {
        self.is_outdated(verb, &self.check(verb, now), now)
    }

    /// Like [`must_ask`](Self::must_ask), for a caller that already has the result of [`check`](Self::check) at `now`.
    #[must_use]
    pub fn is_outdated(&self, verb: Verb, admitted: &Result<(), Denial>, now: Instant) -> bool {
        let conditions = match verb {
            Verb::Acquire { conditions, .. } | Verb::Extend { conditions, .. } => conditions,
            // The end of a lease does not wait for the answer.
            Verb::Keep { .. } | Verb::Release => return false,
        };
        let mut after_ms = match admitted {
            // No answer ends these waits. Only on the first contact, a guard record may vouch for a node that has restarted.
            Err(Denial::Evicted { .. }) => KNOWLEDGE_MS,
            Err(Denial::Restarted { .. }) if self.beginnings > 1 => KNOWLEDGE_MS,
            Err(_) => DENIAL_MS,
            Ok(()) => KNOWLEDGE_MS,
        };
        if conditions.refuse_eviction {
            // At least 1 ms, so that a node that was just asked is not asked again.
            after_ms = after_ms.min((conditions.max_ttl_ms / 2).max(1));
        }
        if self.is_in_doubt && verb.needs_vote() {
            after_ms = 0;
        }
        is_over(self.asked_at, after_ms, now)
    }

    /// The process of the node when it was last asked. `None` if the node did not identify itself.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.is_known.then_some(self.run_id)
    }

    /// Whether the node may evict keys. `false` if this is unknown.
    #[must_use]
    pub const fn may_evict(&self) -> bool {
        self.is_known && self.may_evict
    }

    /// Checks whether the vote of the node counts at `now`. Call it before you send a command, and again if you have asked
    /// the node since. For a release, the result is always `Ok`: it is always sent. For an extend, the result is `Ok` unless
    /// its TTL is longer than the guard record of the node allows, or the lease is adopted, which needs the vote of the node.
    ///
    /// # Errors
    ///
    /// The [`Denial`] tells why the vote does not count.
    pub fn check(&self, verb: Verb, now: Instant) -> Result<(), Denial> {
        let max_ttl_ms = self.max_ttl_ms;
        let (ttl_ms, conditions) = match verb {
            Verb::Acquire { ttl_ms, conditions } => (ttl_ms, conditions),
            // A fenced acquire after a restart does not wait for the end of a longer lease.
            Verb::Extend { ttl_ms, .. } | Verb::Keep { rest_ms: ttl_ms }
                if ttl_ms > max_ttl_ms && max_ttl_ms > 0 =>
            {
                return Err(Denial::TtlTooLong { max_ttl_ms });
            }
            Verb::Extend { ttl_ms, conditions } if conditions.restart_guard => (ttl_ms, conditions),
            _ => return Ok(()),
        };
        if !self.is_known {
            return if conditions.restart_guard || conditions.refuse_eviction {
                Err(Denial::InfoForbidden)
            } else {
                Ok(())
            };
        }
        if !self.is_master {
            return Err(Denial::Replica);
        }
        if self.may_evict && conditions.refuse_eviction {
            return Err(Denial::MayEvict);
        }
        #[cfg(feature = "min-hold")]
        let ttl_ms = ttl_ms.max(conditions.min_hold_ms);
        if ttl_ms > max_ttl_ms && max_ttl_ms > 0 && conditions.obeys_record {
            return Err(Denial::TtlTooLong { max_ttl_ms });
        }
        // Leases of other clients may be longer than this one.
        let longest_ms = conditions.max_ttl_ms.max(self.longest_ms);
        // A record with a shorter `max_ttl` does not vouch that longer leases are over.
        let is_vouched = self.is_vouched && longest_ms <= max_ttl_ms && self.beginnings < 2;
        // The client checks whether the leases that the node may have evicted are over. For a fenced acquire, the node checks it
        // instead, because its guard record was deleted while it could evict keys. If the record was not deleted, the client
        // checks the fenced acquire too.
        let is_checked_by_client = !FENCES || conditions.obeys_record || self.keeps_record;
        let may_lack_evicted =
            self.could_evict && conditions.refuse_eviction && is_checked_by_client;
        let may_lack_restarted = conditions.restart_guard && !is_vouched;
        let left = |began_at: u64, longest_ms: u32| {
            let drift = drift_micros(longest_ms, conditions.drift_ppm);
            let quarantine = (u64::from(longest_ms) * 1_000).saturating_add(drift);
            quarantine.saturating_sub(since(began_at, now))
        };
        // A fenced client waits until the fences that the node may have evicted are too old, not only the leases.
        #[cfg(any(feature = "fence", feature = "mock"))]
        let evicted_ms = longest_ms.max(conditions.quarantine_ms);
        #[cfg(not(any(feature = "fence", feature = "mock")))]
        let evicted_ms = longest_ms;
        // Each wait counts only for the clients that it is for: a restart says nothing about evicted keys.
        let evicted = if may_lack_evicted {
            left(self.could_evict_until, evicted_ms)
        } else {
            0
        };
        let restarted = if may_lack_restarted {
            left(self.began_at, longest_ms)
        } else {
            0
        };
        let longer = evicted.max(restarted);
        if longer == 0 {
            return Ok(());
        }
        // Rounded up: a client that retries then gets the vote.
        let left_ms = millis(longer.saturating_add(999));
        Err(if evicted >= restarted {
            Denial::Evicted { left_ms }
        } else {
            Denial::Restarted {
                ago_ms: millis(since(self.began_at, now)),
                left_ms,
                has_record: max_ttl_ms > 0,
            }
        })
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether `after_ms` milliseconds have passed since `start`.
fn is_over(start: Instant, after_ms: u32, now: Instant) -> bool {
    now >= start.plus_micros(u64::from(after_ms) * 1_000)
}

/// The time from `start` to `now`, in microseconds.
fn since(start: u64, now: Instant) -> u64 {
    // Negative if `now` is in the tick in which the node was asked: `start` is the end of that tick.
    let passed = now.as_micros().wrapping_sub(start).cast_signed();
    passed.max(0).unsigned_abs()
}

// `inline(never)`: many callers, one copy in flash.
#[inline(never)]
fn millis(micros: u64) -> u32 {
    u32::try_from(micros / 1_000).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vote_conditions::VoteConditions;
    use core::time::Duration;
    use std::string::ToString;

    /// In milliseconds.
    const TTL: u32 = 10_000;
    /// With a quarantine of 11 s: the longest TTL and the drift.
    const GUARDED: VoteConditions = VoteConditions {
        max_ttl_ms: 10_000,
        drift_ppm: 99_800,
        restart_guard: true,
        ..VoteConditions::NONE
    };

    const fn acquire(conditions: VoteConditions) -> Verb {
        Verb::Acquire {
            ttl_ms: TTL,
            conditions,
        }
    }

    const fn extend(conditions: VoteConditions) -> Verb {
        Verb::Extend {
            ttl_ms: TTL,
            conditions,
        }
    }

    const fn node(run_id: u64, uptime: u64) -> NodeInfo {
        NodeInfo {
            run_id: RunId(run_id),
            replication_id: ReplicationId(0),
            uptime: Duration::from_secs(uptime),
            is_master: true,
            may_evict: false,
            max_ttl_ms: None,
            is_vouched: false,
        }
    }

    const fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn met(node_info: NodeInfo, now: Instant) -> Admission {
        let mut admission = Admission::new();
        meet(&mut admission, Some(node_info), now);
        admission
    }

    /// The node is asked, and answers at once.
    fn meet(admission: &mut Admission, node_info: Option<NodeInfo>, now: Instant) {
        admission.ask(now);
        admission.record(node_info, now);
    }

    #[test]
    fn an_answer_counts_from_the_time_of_its_question() {
        let may_evict = NodeInfo {
            may_evict: true,
            ..node(1, 1_000)
        };
        for (read_at, is_heard) in [(259, true), (260, false), (2_600, false)] {
            let mut admission = Admission::new();
            admission.ask(at(200));
            admission.record(Some(may_evict), at(read_at));
            assert_eq!(admission.may_evict(), is_heard);
            assert_eq!(admission.must_ask(acquire(GUARDED), at(read_at)), !is_heard);
            assert!(admission.must_ask(acquire(GUARDED), at(read_at.max(260))));
        }
        // What has changed by then counts from the time when it is heard, however late that is.
        for read_at in [230, 260, 2_600] {
            let mut admission = met(node(1, 1_000), at(100));
            admission.ask(at(200));
            admission.record(Some(node(2, 0)), at(read_at));
            assert!(admission.check(acquire(GUARDED), at(read_at + 10)).is_err());
            let checked = admission.check(acquire(GUARDED), at(read_at + 11));
            assert_eq!(checked, Ok(()));
            admission.ask(at(200));
            admission.record(Some(may_evict), at(read_at));
            assert!(admission.may_evict());
        }
    }

    #[test]
    fn on_the_first_contact_a_node_is_as_old_as_it_says_less_a_second() {
        // The client's own clock may have just started.
        let old = met(node(1, 12), at(0));
        assert_eq!(old.check(acquire(GUARDED), at(0)), Ok(()));
        let young = met(node(1, 3), at(100));
        let denial = young.check(acquire(GUARDED), at(104)).unwrap_err();
        let wanted = "restarted at least 6 s ago, its vote counts again in 5 s";
        assert_eq!(denial.to_string(), wanted);
        assert!(young.check(acquire(GUARDED), at(108)).is_err());
        assert_eq!(young.check(acquire(GUARDED), at(109)), Ok(()));
    }

    #[test]
    fn another_process_than_before_has_restarted_just_now_whatever_it_says() {
        let mut admission = met(node(1, 1_000), at(100));
        // A replica that was promoted: another process, with a long uptime.
        meet(&mut admission, Some(node(2, 1_000)), at(200));
        assert!(admission.check(acquire(GUARDED), at(210)).is_err());
        assert_eq!(admission.check(acquire(GUARDED), at(211)), Ok(()));
        // The same process over a new connection: the wait does not start again.
        meet(&mut admission, Some(node(2, 0)), at(212));
        assert_eq!(admission.check(acquire(GUARDED), at(212)), Ok(()));
    }

    #[test]
    fn a_young_node_that_is_vouched_for_counts_for_leases_that_are_not_longer() {
        let vouched = NodeInfo {
            max_ttl_ms: Some(TTL),
            is_vouched: true,
            ..node(1, 0)
        };
        let admission = met(vouched, at(0));
        assert_eq!(admission.check(acquire(GUARDED), at(0)), Ok(()));
        // Whatever the TTL of this lease: leases of other clients may be longer.
        let longer = VoteConditions {
            max_ttl_ms: 10_001,
            ..GUARDED
        };
        let denial = Denial::Restarted {
            ago_ms: 0,
            left_ms: 11_002,
            has_record: true,
        };
        assert_eq!(admission.check(acquire(longer), at(0)), Err(denial));
    }

    #[test]
    fn a_node_that_can_no_longer_evict_has_no_vote_until_leases_that_it_may_have_evicted_are_over()
    {
        let conditions = VoteConditions {
            max_ttl_ms: 10_000,
            refuse_eviction: true,
            obeys_record: true,
            ..VoteConditions::NONE
        };
        let mut admission = met(node(1, 1_000), at(0));
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 1_000)
        };
        meet(&mut admission, Some(evicts), at(100));
        assert_eq!(
            admission.check(acquire(conditions), at(100)),
            Err(Denial::MayEvict)
        );
        meet(&mut admission, Some(node(1, 1_000)), at(200));
        let denial = admission.check(acquire(conditions), at(200)).unwrap_err();
        let words = "may have evicted locks, its vote counts again in 11 s";
        assert_eq!(denial.to_string(), words);
        meet(&mut admission, Some(node(1, 1_000)), at(205));
        assert!(admission.check(acquire(conditions), at(210)).is_err());
        assert_eq!(admission.check(acquire(conditions), at(211)), Ok(()));
        assert_eq!(
            admission.check(acquire(VoteConditions::NONE), at(200)),
            Ok(())
        );
    }

    #[test]
    fn a_node_that_can_no_longer_evict_keeps_its_vote_for_clients_that_do_not_refuse_eviction() {
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 1_000)
        };
        let mut admission = met(evicts, at(0));
        meet(&mut admission, Some(node(1, 1_000)), at(100));
        assert_eq!(admission.check(acquire(GUARDED), at(100)), Ok(()));
        // Those that refuse it count from the change of the policy, whether the guard is on or off.
        for restart_guard in [false, true] {
            let strict = VoteConditions {
                restart_guard,
                refuse_eviction: true,
                obeys_record: true,
                ..GUARDED
            };
            for (now, left_ms) in [(100, 11_000), (110, 1_000)] {
                let denial = admission.check(acquire(strict), at(now));
                assert_eq!(denial, Err(Denial::Evicted { left_ms }));
            }
            assert_eq!(admission.check(acquire(strict), at(111)), Ok(()));
        }
        // A restart is another matter.
        meet(&mut admission, Some(node(2, 0)), at(200));
        let denial = admission.check(acquire(GUARDED), at(200));
        let restarted = Denial::Restarted {
            ago_ms: 0,
            left_ms: 11_000,
            has_record: false,
        };
        assert_eq!(denial, Err(restarted));
    }

    #[test]
    fn a_restart_long_after_a_change_of_the_policy_counts_as_a_restart_and_only_for_the_guard() {
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 1_000)
        };
        let mut admission = met(evicts, at(0));
        meet(&mut admission, Some(node(1, 1_000)), at(100));
        meet(&mut admission, Some(node(2, 0)), at(1_000));
        let strict = VoteConditions {
            refuse_eviction: true,
            obeys_record: true,
            ..GUARDED
        };
        let restarted = Denial::Restarted {
            ago_ms: 0,
            left_ms: 11_000,
            has_record: false,
        };
        let denial = admission.check(acquire(strict), at(1_000));
        assert_eq!(denial, Err(restarted));
        // Its disk has kept the keys, as the client knows.
        let durable = VoteConditions {
            restart_guard: false,
            ..strict
        };
        assert_eq!(admission.check(acquire(durable), at(1_000)), Ok(()));
    }

    /// Only the uptime and the record tell how old it is. The change of its policy says nothing about that.
    #[test]
    fn a_record_vouches_for_a_young_node_also_after_its_policy_has_changed() {
        let vouched = NodeInfo {
            max_ttl_ms: Some(TTL),
            is_vouched: true,
            ..node(1, 0)
        };
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 0)
        };
        let mut admission = met(evicts, at(0));
        let denial = admission.check(acquire(GUARDED), at(0));
        assert!(matches!(denial, Err(Denial::Restarted { .. })));
        meet(&mut admission, Some(vouched), at(1));
        assert_eq!(admission.check(acquire(GUARDED), at(1)), Ok(()));
    }

    #[cfg(any(feature = "fence", feature = "mock"))]
    #[test]
    fn a_fenced_acquire_leaves_a_node_that_could_evict_to_its_record_unless_that_could_not_be_deleted()
     {
        let fenced = VoteConditions {
            max_ttl_ms: 10_000,
            refuse_eviction: true,
            ..VoteConditions::NONE
        };
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 1_000)
        };
        let kept = NodeInfo {
            max_ttl_ms: Some(TTL),
            ..evicts
        };
        for (evicting, is_denied) in [(evicts, false), (kept, true)] {
            let mut admission = met(evicting, at(0));
            assert_eq!(
                admission.check(acquire(fenced), at(0)),
                Err(Denial::MayEvict)
            );
            meet(&mut admission, Some(node(1, 1_000)), at(100));
            assert_eq!(
                admission.check(acquire(fenced), at(100)).is_err(),
                is_denied
            );
        }
    }

    /// Its record may vouch for a node that has evicted a fence, and its clock may be set back.
    #[cfg(any(feature = "fence", feature = "mock"))]
    #[test]
    fn a_node_that_has_kept_its_record_while_it_could_evict_has_no_fenced_vote_for_a_whole_quarantine()
     {
        let fenced = VoteConditions {
            max_ttl_ms: 10_000,
            quarantine_ms: 61_000,
            refuse_eviction: true,
            ..VoteConditions::NONE
        };
        let kept = NodeInfo {
            may_evict: true,
            max_ttl_ms: Some(TTL),
            ..node(1, 1_000)
        };
        let mut admission = met(kept, at(0));
        meet(&mut admission, Some(node(1, 1_000)), at(100));
        // Two milliseconds are the least drift.
        for (now, left_ms) in [(100, 61_002), (161, 2)] {
            let denial = admission.check(acquire(fenced), at(now));
            assert_eq!(denial, Err(Denial::Evicted { left_ms }));
        }
        assert_eq!(admission.check(acquire(fenced), at(162)), Ok(()));
        // After a restart, the record does not vouch. Then the node decides, and its quarantine begins at once.
        meet(&mut admission, Some(node(2, 0)), at(200));
        assert_eq!(admission.check(acquire(fenced), at(200)), Ok(()));
    }

    #[test]
    fn the_identity_of_a_node_is_kept_while_it_does_not_identify_itself() {
        let mut admission = met(node(1, 1_000), at(0));
        meet(&mut admission, None, at(100));
        meet(&mut admission, Some(node(2, 1_000)), at(200));
        assert!(admission.check(acquire(GUARDED), at(210)).is_err());
        assert_eq!(admission.check(acquire(GUARDED), at(211)), Ok(()));
        // It is unknown whether it may evict keys.
        let conditions = VoteConditions {
            refuse_eviction: true,
            ..VoteConditions::NONE
        };
        meet(&mut admission, None, at(300));
        assert_eq!(
            admission.check(acquire(conditions), at(300)),
            Err(Denial::InfoForbidden)
        );
    }

    #[test]
    fn a_node_that_was_a_replica_or_has_other_data_has_restarted_just_now_although_the_process_is_the_same()
     {
        let replica = NodeInfo {
            is_master: false,
            ..node(1, 1_000)
        };
        let mut admission = met(node(1, 1_000), at(100));
        meet(&mut admission, Some(replica), at(200));
        assert_eq!(
            admission.check(acquire(GUARDED), at(200)),
            Err(Denial::Replica)
        );
        meet(&mut admission, Some(node(1, 1_000)), at(300));
        assert!(admission.check(acquire(GUARDED), at(310)).is_err());
        assert_eq!(admission.check(acquire(GUARDED), at(311)), Ok(()));
        // No client asked it while it was a replica.
        let failed_back = NodeInfo {
            replication_id: ReplicationId(1),
            ..node(1, 1_000)
        };
        meet(&mut admission, Some(failed_back), at(400));
        assert!(admission.check(acquire(GUARDED), at(410)).is_err());
        assert_eq!(admission.check(acquire(GUARDED), at(411)), Ok(()));
    }

    #[test]
    fn the_longest_ttl_of_the_guard_record_binds_plain_clients_also_when_the_record_is_gone() {
        let conditions = VoteConditions {
            obeys_record: true,
            ..GUARDED
        };
        let minute = 60_000;
        let recorded = NodeInfo {
            max_ttl_ms: Some(minute),
            ..node(1, 1_000)
        };
        let mut admission = met(recorded, at(0));
        assert_eq!(admission.check(acquire(conditions), at(0)), Ok(()));
        let longer = minute + 1;
        let denial = admission
            .check(
                Verb::Acquire {
                    ttl_ms: longer,
                    conditions,
                },
                at(0),
            )
            .unwrap_err();
        assert_eq!(denial, Denial::TtlTooLong { max_ttl_ms: 60_000 });
        assert_eq!(
            denial.to_string(),
            "its guard record allows a TTL or min_hold of up to 60000 ms; shorten it, or raise max_ttl for all clients"
        );
        // It restarts without its data: it may have forgotten fenced leases of a minute.
        meet(&mut admission, Some(node(2, 0)), at(100));
        assert!(admission.check(acquire(conditions), at(165)).is_err());
        assert_eq!(admission.check(acquire(conditions), at(166)), Ok(()));
    }

    #[test]
    fn a_lease_is_not_extended_by_more_than_the_guard_record_allows() {
        let recorded = |max_ttl_ms| NodeInfo {
            max_ttl_ms,
            ..node(1, 1_000)
        };
        let extend = extend(VoteConditions::NONE);
        let mut admission = met(recorded(None), at(0));
        assert_eq!(admission.check(extend, at(0)), Ok(()));
        meet(&mut admission, Some(recorded(Some(TTL - 1))), at(10));
        let denial = Denial::TtlTooLong {
            max_ttl_ms: TTL - 1,
        };
        assert_eq!(admission.check(extend, at(10)), Err(denial));
        // The record may be replaced.
        assert!(!admission.must_ask(extend, at(10)));
        assert!(admission.must_ask(extend, at(11)));
        assert!(!admission.must_ask(Verb::Release, at(11)));
        meet(&mut admission, Some(recorded(Some(TTL))), at(11));
        assert_eq!(admission.check(extend, at(11)), Ok(()));
        // Another record may come meanwhile, also if the client only extends.
        assert!(!admission.must_ask(extend, at(70)));
        assert!(admission.must_ask(extend, at(71)));
    }

    #[test]
    fn a_restarted_node_has_no_vote_for_an_adoption_but_extends() {
        let young = met(node(1, 3), at(100));
        assert_eq!(young.check(extend(VoteConditions::NONE), at(104)), Ok(()));
        let denial = young.check(extend(GUARDED), at(104));
        assert!(
            matches!(denial, Err(Denial::Restarted { .. })),
            "{denial:?}"
        );
        assert_eq!(young.check(extend(GUARDED), at(109)), Ok(()));
    }

    #[test]
    fn an_older_record_that_comes_back_does_not_shorten_the_wait() {
        let recorded = |run_id, max_ttl_ms| NodeInfo {
            max_ttl_ms: Some(max_ttl_ms),
            ..node(run_id, 1_000)
        };
        let mut admission = met(recorded(1, 60_000), at(0));
        meet(&mut admission, Some(recorded(2, 2_000)), at(100));
        assert!(admission.check(acquire(GUARDED), at(165)).is_err());
        assert_eq!(admission.check(acquire(GUARDED), at(166)), Ok(()));
        // An acquire with a longer TTL than the record allows is still denied.
        let conditions = VoteConditions {
            obeys_record: true,
            ..GUARDED
        };
        let denial = admission.check(acquire(conditions), at(166)).unwrap_err();
        assert_eq!(denial, Denial::TtlTooLong { max_ttl_ms: 2_000 });
    }

    #[test]
    fn a_record_vouches_for_the_process_that_was_met_first_and_for_no_other() {
        let vouched = |run_id| NodeInfo {
            max_ttl_ms: Some(TTL),
            is_vouched: true,
            ..node(run_id, 0)
        };
        let mut admission = met(vouched(1), at(0));
        assert_eq!(admission.check(acquire(GUARDED), at(0)), Ok(()));
        // Its clock may have been set since its quarantine began, and the node may come from another fleet.
        meet(&mut admission, Some(vouched(2)), at(100));
        assert!(admission.check(acquire(GUARDED), at(110)).is_err());
        meet(&mut admission, Some(vouched(2)), at(110));
        assert!(admission.check(acquire(GUARDED), at(110)).is_err());
        assert_eq!(admission.check(acquire(GUARDED), at(111)), Ok(()));
    }

    #[test]
    fn a_node_is_asked_again_when_it_is_in_doubt_when_time_has_passed_and_when_a_denial_may_be_out_of_date()
     {
        let conditions = VoteConditions {
            refuse_eviction: true,
            ..GUARDED
        };
        let mut admission = met(node(1, 100), at(0));
        assert!(!admission.must_ask(acquire(conditions), at(4)));
        assert!(admission.must_ask(acquire(conditions), at(5)));
        assert!(!admission.must_ask(acquire(GUARDED), at(5)));
        admission.doubt();
        assert!(admission.must_ask(acquire(GUARDED), at(0)));
        assert!(
            admission.must_ask(extend(GUARDED), at(0)),
            "the lease is adopted"
        );
        assert!(!admission.must_ask(extend(VoteConditions::NONE), at(0)));
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 100)
        };
        meet(&mut admission, Some(evicts), at(1));
        assert!(!admission.must_ask(acquire(conditions), at(1)));
        assert!(admission.must_ask(acquire(conditions), at(2)));
        meet(&mut admission, None, at(6));
        assert!(admission.must_ask(acquire(conditions), at(7)));
    }

    #[test]
    fn a_replica_has_no_vote_nor_has_a_node_that_may_evict_if_the_conditions_say_so() {
        let replica = NodeInfo {
            is_master: false,
            ..node(1, 100)
        };
        let denial = met(replica, at(0)).check(acquire(VoteConditions::NONE), at(0));
        assert_eq!(denial, Err(Denial::Replica));
        let evicts = NodeInfo {
            may_evict: true,
            ..node(1, 100)
        };
        let admission = met(evicts, at(0));
        assert!(admission.may_evict());
        assert_eq!(admission.check(acquire(GUARDED), at(0)), Ok(()));
        let strict = VoteConditions {
            refuse_eviction: true,
            ..VoteConditions::NONE
        };
        assert_eq!(
            admission.check(acquire(strict), at(0)),
            Err(Denial::MayEvict)
        );
    }

    #[test]
    fn a_node_that_does_not_identify_itself_counts_only_without_the_guard() {
        let mut admission = met(node(1, 100), at(0));
        meet(&mut admission, None, at(1));
        assert_eq!(admission.run_id(), None);
        assert_eq!(
            admission.check(acquire(VoteConditions::NONE), at(1)),
            Ok(())
        );
        let denial = admission.check(acquire(GUARDED), at(1)).unwrap_err();
        assert!(denial.to_string().contains("+info"), "{denial}");
    }
}
