//! What a node must be like for its vote to count: one memory of it per client, one set of rules.

use core::fmt;
use core::time::Duration;

use crate::command::{Answer, Argument, Arguments, GUARD_KEY, Script, ScriptCall};
use crate::fence::Reading;
use crate::time::{Instant, Span, drift_micros};

/// The process that a node is: another one after every restart, and the same one by whatever name or
/// address it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RunId(pub(crate) u64);

impl RunId {
    /// A run id, for a transport of your own. Those of Redis are the first 13 hexadecimal digits of `run_id`.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The history of a node's data: another one after every change of its role.
///
/// A master that becomes a replica takes over the data of its new master. When it is a master again the process is
/// the same, and so may be the guard record, but the locks that it has granted are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReplicationId(pub(crate) u64);

impl ReplicationId {
    /// A replication ID, for a transport of your own. Those of Redis are the first 13 hexadecimal digits of
    /// `master_replid`.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What a node says of itself to a client that has just connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Introduction {
    /// The process.
    pub run_id: RunId,
    /// The history of its data.
    pub replication_id: ReplicationId,
    /// For how long it has been running, by its own clock, in whole seconds and up to one more or less.
    pub uptime: Duration,
    /// Whether it is a master, and nobody's replica.
    pub is_master: bool,
    /// Whether it may delete keys that live for want of memory.
    pub may_evict: bool,
    /// The longest TTL of the fleet by the guard record, in milliseconds. `None` if the node has no record.
    pub max_ttl_ms: Option<u32>,
    /// Whether the guard record says that this process with this data has forgotten no lease.
    pub is_vouched: bool,
}

impl Introduction {
    /// The question, as Redis takes it: once on every connection, before the first command.
    #[must_use]
    pub fn question() -> Arguments<'static> {
        let guard = Argument::Bytes(GUARD_KEY.as_bytes());
        Script::INTRODUCE.call(ScriptCall::Text, 1).and(Some(guard))
    }

    /// What `answer` says; none when it is no answer to the question.
    #[must_use]
    pub fn read(answer: Answer) -> Option<Self> {
        let Answer::Integers([run_id, replication_id, traits, max_ttl_ms]) = answer else {
            return None;
        };
        if run_id < 0 || replication_id < 0 {
            return None;
        }
        // Negative if the record does not vouch for the node. More than any TTL is as good as the longest.
        let longest_ms = u32::try_from(max_ttl_ms.unsigned_abs()).unwrap_or(u32::MAX);
        Some(Self {
            run_id: RunId(run_id.cast_unsigned()),
            replication_id: ReplicationId(replication_id.cast_unsigned()),
            // Negative if the clock of the node was set back.
            uptime: Duration::from_secs((traits >> 2).max(0).unsigned_abs()),
            is_master: traits & 2 != 0,
            may_evict: traits & 1 == 0,
            max_ttl_ms: (longest_ms != 0).then_some(longest_ms),
            is_vouched: max_ttl_ms > 0,
        })
    }
}

/// What is asked of a node before its vote for an acquire counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rules {
    /// The longest TTL of any client of the node, in milliseconds.
    pub max_ttl_ms: u32,
    /// By how much the clocks of client and node may differ in rate, in millionths.
    pub drift_ppm: u32,
    /// Whether a node that has restarted has no vote until every lease that it may have forgotten is over:
    /// for `max_ttl_ms` and the drift. False if its data survives.
    pub restart_guard: bool,
    /// Whether a node that may evict keys has no vote. It is asked again when half of `max_ttl_ms` has passed, before
    /// the next acquire.
    pub refuse_eviction: bool,
    /// Whether the longest TTL of the node's guard record binds the client. Fenced acquires are judged by the node.
    pub obeys_record: bool,
}

impl Rules {
    /// Every master has a vote.
    pub const NONE: Self = Self {
        max_ttl_ms: 0,
        drift_ppm: 0,
        restart_guard: false,
        refuse_eviction: false,
        obeys_record: false,
    };
}

/// What one client knows of one node. It belongs to the transport, and outlives its connections.
///
/// The Redlock specification, "Performance, crash recovery and fsync": delayed restarts, here enforced by
/// the client. A restart ends every connection, so the node is asked on each new one. What can change on a
/// connection that lives, its role and its `maxmemory-policy`, is asked again when [`must_ask`](Self::must_ask) says so.
// As little of an introduction as is needed later, in a flat form: a device has one for each node, and short code.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Admission {
    run_id: RunId,
    replication_id: ReplicationId,
    /// When the process began at the latest, in microseconds on the client's clock, which may have begun later: modulo
    /// 2^64.
    began_at: u64,
    /// The last time that the node was asked. Never, at first.
    asked_at: Instant,
    /// Of the guard record. Zero if there is none.
    max_ttl_ms: u32,
    /// The longest of all that were seen: the record may be gone, or an older one may be back with older data.
    longest_ms: u32,
    is_vouched: bool,
    is_master: bool,
    may_evict: bool,
    /// It could evict keys before it was asked last, and has begun anew since.
    has_evicted: bool,
    /// How often the client has seen the node begin: another process, or other data. Zero as long as it has not said who
    /// it is. From the second time on the client's own clock tells when its vote counts again: that of the node, by
    /// which a guard record vouches for it, may have been set since.
    beginnings: u8,
    /// The node has said who it is when it was last asked.
    is_known: bool,
    is_in_doubt: bool,
}

/// A denial may be out of date after this time.
const DENIAL_MS: u32 = 1_000;

/// What is known of a node that is in use may be out of date after this time, whatever the rules are.
const KNOWLEDGE_MS: u32 = 60_000;

impl Admission {
    /// Nothing is known of the node, and its vote does not count yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            run_id: RunId(0),
            replication_id: ReplicationId(0),
            began_at: 0,
            asked_at: Instant::from_micros(0),
            max_ttl_ms: 0,
            longest_ms: 0,
            is_vouched: false,
            is_master: false,
            may_evict: false,
            has_evicted: false,
            beginnings: 0,
            is_known: false,
            is_in_doubt: false,
        }
    }

    /// Records what the node said of itself at `now` on the client's clock. `None` if it may not say who it is.
    ///
    /// If the clock is coarse, `now` is the end of its tick: the reading and the clock's
    /// [`resolution`](crate::Clock::resolution). A node is not taken for older than it is.
    ///
    /// A process, or a history of its data, that is not the one from before has begun just now, as far as the client
    /// can tell. On the first contact the node's own word for its age is taken: it follows the node's wall clock, and
    /// says nothing of a replica that was promoted.
    pub fn introduced(&mut self, introduction: Option<Introduction>, now: Instant) {
        self.asked_at = now;
        self.is_in_doubt = false;
        self.is_known = introduction.is_some();
        let Some(introduction) = introduction else {
            return;
        };
        // What it has evicted it has forgotten.
        let has_evicted = self.may_evict && !introduction.may_evict;
        let is_same = self.run_id == introduction.run_id
            && self.replication_id == introduction.replication_id
            && self.is_master
            && !has_evicted;
        if !is_same {
            self.began_at = now.as_micros();
            if self.beginnings == 0 {
                // A whole number of seconds, of which one may not have passed.
                let uptime = u32::try_from(introduction.uptime.as_secs()).unwrap_or(u32::MAX);
                let age_s = u64::from(uptime.saturating_sub(1));
                self.began_at = self.began_at.wrapping_sub(age_s * 1_000_000);
            }
            self.beginnings = self.beginnings.saturating_add(1);
        }
        self.max_ttl_ms = introduction.max_ttl_ms.unwrap_or(0);
        self.longest_ms = self.longest_ms.max(self.max_ttl_ms);
        self.run_id = introduction.run_id;
        self.replication_id = introduction.replication_id;
        self.is_vouched = introduction.is_vouched;
        self.is_master = introduction.is_master;
        self.may_evict = introduction.may_evict;
        self.has_evicted |= has_evicted;
    }

    /// The node has answered as a replica does: it is asked again before its next vote.
    pub const fn doubt(&mut self) {
        self.is_in_doubt = true;
    }

    /// Whether the node must be asked who it is before an acquire of `ttl_ms` that is sent at `now`: it is in
    /// [doubt](Self::doubt), what is known of it is older than the rules allow, or its vote is denied for something
    /// that may have changed since. The answer goes to [`introduced`](Self::introduced), and the vote to
    /// [`check`](Self::check) after that.
    #[must_use]
    pub fn must_ask(&self, rules: Rules, ttl_ms: u32, now: Instant) -> bool {
        self.is_outdated(rules, &self.check(rules, ttl_ms, now), now)
    }

    /// The same, after a [`check`](Self::check) at `now`.
    #[must_use]
    #[inline(never)]
    pub fn is_outdated(&self, rules: Rules, admitted: &Result<(), Denial>, now: Instant) -> bool {
        let mut after_ms = if admitted.is_ok() {
            KNOWLEDGE_MS
        } else {
            DENIAL_MS
        };
        if rules.refuse_eviction {
            // Not at once, whatever the rules are: what has just been asked is not asked again.
            after_ms = after_ms.min((rules.max_ttl_ms / 2).max(1));
        }
        if self.is_in_doubt {
            after_ms = 0;
        }
        let asked_ago = now.as_micros().saturating_sub(self.asked_at.as_micros());
        asked_ago >= u64::from(after_ms) * 1_000
    }

    /// The process that the node was when it was last asked. `None` if it may not say who it is.
    #[must_use]
    pub fn run_id(&self) -> Option<RunId> {
        self.is_known.then_some(self.run_id)
    }

    /// Whether the node may evict keys, as far as it is known.
    #[must_use]
    pub const fn may_evict(&self) -> bool {
        self.is_known && self.may_evict
    }

    /// Whether the vote of the node counts at `now` for a lease of `ttl_ms`. To be asked before an acquire is
    /// sent, and again when the node was asked meanwhile; extend and release are always sent.
    ///
    /// # Errors
    ///
    /// Why it does not.
    pub fn check(&self, rules: Rules, ttl_ms: u32, now: Instant) -> Result<(), Denial> {
        if !self.is_known {
            return if rules.restart_guard || rules.refuse_eviction {
                Err(Denial::Silenced)
            } else {
                Ok(())
            };
        }
        if !self.is_master {
            return Err(Denial::Replica);
        }
        if self.may_evict && rules.refuse_eviction {
            return Err(Denial::MayEvict);
        }
        let max_ttl_ms = self.max_ttl_ms;
        if ttl_ms > max_ttl_ms && max_ttl_ms > 0 && rules.obeys_record {
            return Err(Denial::TtlTooLong { max_ttl_ms });
        }
        // Fenced leases of the fleet may be longer than this one.
        let longest_ms = rules.max_ttl_ms.max(self.longest_ms);
        // A record for shorter leases says nothing of the longer ones.
        let is_vouched = self.is_vouched && longest_ms <= max_ttl_ms && self.beginnings < 2;
        let has_evicted = self.has_evicted && rules.refuse_eviction;
        if !has_evicted && (!rules.restart_guard || is_vouched) {
            return Ok(());
        }
        let drift = drift_micros(longest_ms, rules.drift_ppm);
        let quarantine = (u64::from(longest_ms) * 1_000).saturating_add(drift);
        // `now` may lie before the end of the tick in which the node was asked.
        let age = now.as_micros().wrapping_sub(self.began_at).cast_signed();
        let age = age.max(0).unsigned_abs();
        if age >= quarantine {
            return Ok(());
        }
        // Rounded up: a client that comes back then is let in.
        let left_ms = millis((quarantine - age).saturating_add(999));
        Err(if has_evicted {
            Denial::Evicted { left_ms }
        } else {
            Denial::Restarted {
                ago_ms: millis(age),
                left_ms,
            }
        })
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}

// Called in many places: once in flash.
#[inline(never)]
fn millis(micros: u64) -> u32 {
    u32::try_from(micros / 1_000).unwrap_or(u32::MAX)
}

/// Why a node that can be reached has no vote. It is no word about who holds the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Denial {
    /// It has restarted, and may have forgotten keys that were granted before: it is another process than the one this
    /// client knows, or has other data.
    Restarted {
        /// How long ago at the least, in milliseconds: when the client has seen it. Without a connection meanwhile that is
        /// later than the restart.
        ago_ms: u32,
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// It is a replica: what it grants, its master does not know.
    Replica,
    /// It may delete keys for want of memory.
    MayEvict,
    /// It could delete keys for want of memory when it was asked before, and may have done so.
    Evicted {
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// The user may not ask it who it is.
    Silenced,
    /// To a fenced acquire: it may have forgotten keys or fences that it granted, by its guard record.
    Quarantined {
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
        /// What it told besides.
        reading: Reading,
    },
    /// To a fenced acquire: it has accepted this fence or a higher one before.
    Stale(Reading),
    /// To a fenced acquire: the fence is too far behind the node's clock.
    TooOld(Reading),
    /// To a fenced acquire: the fence is too far ahead of the node's clock.
    TooNew(Reading),
    /// To a fenced acquire: this client and those before it do not agree on the rules of the fleet.
    OtherFleet(Reading),
    /// To a fenced acquire: the guard record of this node, with these rules, is missing. Clients write it again, and a
    /// quarantine begins with it, when a quorum of nodes has confirmed their rules.
    Unguarded {
        /// Whether there is a record with these rules, of another process or other data.
        has_record: bool,
        /// What it told besides.
        reading: Reading,
    },
    /// To a plain acquire: the TTL is longer than fenced clients of these nodes wait after a restart.
    TtlTooLong {
        /// The longest TTL of the fleet by the guard record, in milliseconds.
        max_ttl_ms: u32,
    },
}

impl Denial {
    /// What the node told besides.
    pub(crate) const fn reading(&self) -> Option<Reading> {
        match self {
            Self::Quarantined { reading, .. }
            | Self::Unguarded { reading, .. }
            | Self::Stale(reading)
            | Self::TooOld(reading)
            | Self::TooNew(reading)
            | Self::OtherFleet(reading) => Some(*reading),
            _ => None,
        }
    }

    /// Whether another fence would have done.
    pub(crate) const fn is_misfit(&self) -> bool {
        matches!(self, Self::Stale(_) | Self::TooOld(_) | Self::TooNew(_))
    }
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Restarted { ago_ms, left_ms } => {
                write!(f, "restarted at least {} ago, its vote counts again in {}", Span(*ago_ms), Span(*left_ms))
            }
            Self::Evicted { left_ms } => {
                write!(f, "may have evicted locks, its vote counts again in {}", Span(*left_ms))
            }
            Self::Quarantined { left_ms, .. } => {
                write!(f, "may have forgotten locks, its vote counts again in {}", Span(*left_ms))
            }
            Self::Replica => f.write_str("a replica, which has no vote; name its master"),
            Self::MayEvict => f.write_str(
                "may evict locks for want of memory; set its maxmemory-policy to noeviction",
            ),
            Self::Silenced => f.write_str(
                "the user may not ask it who it is; grant +info +time ~redlock:guard, or switch the restart \
                 guard off",
            ),
            Self::Stale(_) => f.write_str("has accepted a higher fence"),
            Self::TooOld(_) => f.write_str("its clock is ahead of the other nodes"),
            Self::TooNew(_) => f.write_str("its clock is behind the other nodes"),
            Self::OtherFleet(_) => f.write_str(
                "other clients follow other rules: max_ttl, window and step_back must be the same for all",
            ),
            Self::Unguarded { .. } => f.write_str(
                "lost its guard record, which is restored once a quorum of nodes has confirmed the rules",
            ),
            Self::TtlTooLong { max_ttl_ms } => write!(
                f,
                "its guard record allows TTLs up to {max_ttl_ms} ms; use a shorter TTL, or raise max_ttl for all clients"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    /// In milliseconds.
    const TTL: u32 = 10_000;
    /// With a quarantine of 11 s: the TTL and the drift.
    const GUARDED: Rules = Rules {
        max_ttl_ms: 10_000,
        drift_ppm: 99_800,
        restart_guard: true,
        ..Rules::NONE
    };

    const fn node(run_id: u64, uptime: u64) -> Introduction {
        Introduction {
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

    fn met(introduction: Introduction, now: Instant) -> Admission {
        let mut admission = Admission::new();
        admission.introduced(Some(introduction), now);
        admission
    }

    #[test]
    fn on_the_first_contact_a_node_is_as_old_as_it_says_less_a_second() {
        // The client's own clock may have begun a moment ago.
        let old = met(node(1, 12), at(0));
        assert_eq!(old.check(GUARDED, TTL, at(0)), Ok(()));
        let young = met(node(1, 3), at(100));
        let denial = young.check(GUARDED, TTL, at(104)).unwrap_err();
        let wanted = "restarted at least 6 s ago, its vote counts again in 5 s";
        assert_eq!(denial.to_string(), wanted);
        assert!(young.check(GUARDED, TTL, at(108)).is_err());
        assert_eq!(young.check(GUARDED, TTL, at(109)), Ok(()));
    }

    #[test]
    fn another_process_than_before_has_restarted_just_now_whatever_it_says() {
        let mut admission = met(node(1, 1_000), at(100));
        // A replica that was promoted: another process, that has run for long.
        admission.introduced(Some(node(2, 1_000)), at(200));
        assert!(admission.check(GUARDED, TTL, at(210)).is_err());
        assert_eq!(admission.check(GUARDED, TTL, at(211)), Ok(()));
        // The same one over a new connection: nothing begins again.
        admission.introduced(Some(node(2, 0)), at(212));
        assert_eq!(admission.check(GUARDED, TTL, at(212)), Ok(()));
    }

    #[test]
    fn a_young_node_that_is_vouched_for_counts_for_leases_that_are_not_longer() {
        let vouched = Introduction {
            max_ttl_ms: Some(TTL),
            is_vouched: true,
            ..node(1, 0)
        };
        let admission = met(vouched, at(0));
        assert_eq!(admission.check(GUARDED, TTL, at(0)), Ok(()));
        // Whatever the TTL of this lease is: others may be longer.
        let longer = Rules {
            max_ttl_ms: 10_001,
            ..GUARDED
        };
        assert!(admission.check(longer, TTL, at(0)).is_err());
    }

    #[test]
    fn a_node_that_could_evict_and_does_no_more_has_no_vote_until_what_it_may_have_evicted_is_over()
    {
        let rules = Rules {
            max_ttl_ms: 10_000,
            refuse_eviction: true,
            ..Rules::NONE
        };
        let mut admission = met(node(1, 1_000), at(0));
        let evicts = Introduction {
            may_evict: true,
            ..node(1, 1_000)
        };
        admission.introduced(Some(evicts), at(100));
        assert_eq!(admission.check(rules, TTL, at(100)), Err(Denial::MayEvict));
        admission.introduced(Some(node(1, 1_000)), at(200));
        let denial = admission.check(rules, TTL, at(200)).unwrap_err();
        let words = "may have evicted locks, its vote counts again in 11 s";
        assert_eq!(denial.to_string(), words);
        admission.introduced(Some(node(1, 1_000)), at(205));
        assert!(admission.check(rules, TTL, at(210)).is_err());
        assert_eq!(admission.check(rules, TTL, at(211)), Ok(()));
        assert_eq!(admission.check(Rules::NONE, TTL, at(200)), Ok(()));
    }

    #[test]
    fn what_is_known_of_a_node_outlives_a_time_in_which_it_does_not_say_who_it_is() {
        let mut admission = met(node(1, 1_000), at(0));
        admission.introduced(None, at(100));
        admission.introduced(Some(node(2, 1_000)), at(200));
        assert!(admission.check(GUARDED, TTL, at(210)).is_err());
        assert_eq!(admission.check(GUARDED, TTL, at(211)), Ok(()));
        // It might evict keys.
        let rules = Rules {
            refuse_eviction: true,
            ..Rules::NONE
        };
        admission.introduced(None, at(300));
        assert_eq!(admission.check(rules, TTL, at(300)), Err(Denial::Silenced));
    }

    #[test]
    fn a_node_that_was_a_replica_or_has_other_data_has_restarted_just_now_although_the_process_is_the_same()
     {
        let replica = Introduction {
            is_master: false,
            ..node(1, 1_000)
        };
        let mut admission = met(node(1, 1_000), at(100));
        admission.introduced(Some(replica), at(200));
        assert_eq!(admission.check(GUARDED, TTL, at(200)), Err(Denial::Replica));
        admission.introduced(Some(node(1, 1_000)), at(300));
        assert!(admission.check(GUARDED, TTL, at(310)).is_err());
        assert_eq!(admission.check(GUARDED, TTL, at(311)), Ok(()));
        // Nobody looked while it was a replica.
        let failed_back = Introduction {
            replication_id: ReplicationId(1),
            ..node(1, 1_000)
        };
        admission.introduced(Some(failed_back), at(400));
        assert!(admission.check(GUARDED, TTL, at(410)).is_err());
        assert_eq!(admission.check(GUARDED, TTL, at(411)), Ok(()));
    }

    #[test]
    fn the_longest_ttl_of_the_guard_record_binds_plain_clients_also_when_the_record_is_gone() {
        let rules = Rules {
            obeys_record: true,
            ..GUARDED
        };
        let minute = 60_000;
        let recorded = Introduction {
            max_ttl_ms: Some(minute),
            ..node(1, 1_000)
        };
        let mut admission = met(recorded, at(0));
        assert_eq!(admission.check(rules, TTL, at(0)), Ok(()));
        let longer = minute + 1;
        let denial = admission.check(rules, longer, at(0)).unwrap_err();
        assert_eq!(denial, Denial::TtlTooLong { max_ttl_ms: 60_000 });
        assert_eq!(
            denial.to_string(),
            "its guard record allows TTLs up to 60000 ms; use a shorter TTL, or raise max_ttl for all clients"
        );
        // It restarts without its data: fenced leases of a minute may be forgotten.
        admission.introduced(Some(node(2, 0)), at(100));
        assert!(admission.check(rules, TTL, at(165)).is_err());
        assert_eq!(admission.check(rules, TTL, at(166)), Ok(()));
    }

    #[test]
    fn an_older_record_that_comes_back_does_not_shorten_the_wait() {
        let recorded = |run_id, max_ttl_ms| Introduction {
            max_ttl_ms: Some(max_ttl_ms),
            ..node(run_id, 1_000)
        };
        let mut admission = met(recorded(1, 60_000), at(0));
        admission.introduced(Some(recorded(2, 2_000)), at(100));
        assert!(admission.check(GUARDED, TTL, at(165)).is_err());
        assert_eq!(admission.check(GUARDED, TTL, at(166)), Ok(()));
        // A longer lease than the record allows is refused all the same.
        let rules = Rules {
            obeys_record: true,
            ..GUARDED
        };
        let denial = admission.check(rules, TTL, at(166)).unwrap_err();
        assert_eq!(denial, Denial::TtlTooLong { max_ttl_ms: 2_000 });
    }

    #[test]
    fn a_record_vouches_for_the_process_that_was_met_first_and_for_no_other() {
        let vouched = |run_id| Introduction {
            max_ttl_ms: Some(TTL),
            is_vouched: true,
            ..node(run_id, 0)
        };
        let mut admission = met(vouched(1), at(0));
        assert_eq!(admission.check(GUARDED, TTL, at(0)), Ok(()));
        // Its clock may have been set since its quarantine began, and it may be a node of another fleet.
        admission.introduced(Some(vouched(2)), at(100));
        assert!(admission.check(GUARDED, TTL, at(110)).is_err());
        admission.introduced(Some(vouched(2)), at(110));
        assert!(admission.check(GUARDED, TTL, at(110)).is_err());
        assert_eq!(admission.check(GUARDED, TTL, at(111)), Ok(()));
    }

    #[test]
    fn a_node_is_asked_again_when_it_is_in_doubt_when_time_has_passed_and_when_a_denial_may_be_out_of_date()
     {
        let rules = Rules {
            refuse_eviction: true,
            ..GUARDED
        };
        let mut admission = met(node(1, 100), at(0));
        assert!(!admission.must_ask(rules, TTL, at(4)));
        assert!(admission.must_ask(rules, TTL, at(5)));
        assert!(!admission.must_ask(GUARDED, TTL, at(5)));
        admission.doubt();
        assert!(admission.must_ask(GUARDED, TTL, at(0)));
        let evicts = Introduction {
            may_evict: true,
            ..node(1, 100)
        };
        admission.introduced(Some(evicts), at(1));
        assert!(!admission.must_ask(rules, TTL, at(1)));
        assert!(admission.must_ask(rules, TTL, at(2)));
        admission.introduced(None, at(6));
        assert!(admission.must_ask(rules, TTL, at(7)));
    }

    #[test]
    fn a_replica_has_no_vote_and_one_that_evicts_none_where_the_rules_say_so() {
        let replica = Introduction {
            is_master: false,
            ..node(1, 100)
        };
        let denial = met(replica, at(0)).check(Rules::NONE, TTL, at(0));
        assert_eq!(denial, Err(Denial::Replica));
        let evicts = Introduction {
            may_evict: true,
            ..node(1, 100)
        };
        let admission = met(evicts, at(0));
        assert!(admission.may_evict());
        assert_eq!(admission.check(GUARDED, TTL, at(0)), Ok(()));
        let strict = Rules {
            refuse_eviction: true,
            ..Rules::NONE
        };
        assert_eq!(admission.check(strict, TTL, at(0)), Err(Denial::MayEvict));
    }

    #[test]
    fn a_node_that_may_not_say_who_it_is_counts_only_without_the_guard() {
        let mut admission = met(node(1, 100), at(0));
        admission.introduced(None, at(1));
        assert_eq!(admission.run_id(), None);
        assert_eq!(admission.check(Rules::NONE, TTL, at(1)), Ok(()));
        let denial = admission.check(GUARDED, TTL, at(1)).unwrap_err();
        assert!(denial.to_string().contains("+info"), "{denial}");
    }

    #[test]
    fn what_a_node_says_is_read_and_nonsense_is_not() {
        let said = Answer::Integers([7, 8, 4 * 30 + 2, 10_000]);
        let wanted = Introduction {
            run_id: RunId(7),
            replication_id: ReplicationId(8),
            uptime: Duration::from_secs(30),
            is_master: true,
            may_evict: true,
            max_ttl_ms: Some(TTL),
            is_vouched: true,
        };
        assert_eq!(Introduction::read(said), Some(wanted));
        let said = Answer::Integers([7, 8, 1, 0]);
        let replica = Introduction::read(said).unwrap();
        assert!(!replica.is_master && !replica.may_evict);
        assert_eq!((replica.max_ttl_ms, replica.is_vouched), (None, false));
        let said = Answer::Integers([7, 8, 1, -10_000]);
        let in_quarantine = Introduction::read(said).unwrap();
        assert_eq!(
            (in_quarantine.max_ttl_ms, in_quarantine.is_vouched),
            (Some(TTL), false)
        );
        let set_back = Answer::Integers([7, 8, 4 * -30 + 2, 0]);
        let set_back = Introduction::read(set_back).unwrap();
        assert_eq!(
            (set_back.uptime, set_back.is_master),
            (Duration::ZERO, true)
        );
        for nonsense in [
            Answer::Ok,
            Answer::Integer(1),
            Answer::Integers([-1, 0, 0, 0]),
            Answer::Integers([0, -1, 0, 0]),
        ] {
            assert_eq!(Introduction::read(nonsense), None);
        }
    }
}
