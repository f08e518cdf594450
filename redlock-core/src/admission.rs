//! What a node must be like for its vote to count: one memory of it per client, one set of rules.

use core::fmt;
use core::time::Duration;

use crate::command::{Answer, Argument, Arguments, GUARD_KEY, Script, ScriptCall};
use crate::fence::Reading;
use crate::time::{Instant, Span, whole_micros};

/// The process that a node is: another one after every restart, and the same one by whatever name or
/// address it is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RunId(pub(crate) u64, pub(crate) u64);

impl RunId {
    /// A run id, for a transport of one's own. Those of Redis are made of the first 26 hexadecimal digits of
    /// its `run_id`, 13 in each number.
    #[must_use]
    pub const fn new(left: u64, right: u64) -> Self {
        Self(left, right)
    }
}

/// What a node says of itself to a client that has just connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Introduction {
    /// The process.
    pub run_id: RunId,
    /// For how long it has been running, by its own clock, in whole seconds and up to one more or less.
    pub uptime: Duration,
    /// Whether it is a master, and nobody's replica.
    pub is_master: bool,
    /// Whether it may delete keys that live for want of memory.
    pub may_evict: bool,
    /// The longest TTL of leases that it cannot have forgotten, by its guard record: the vote of this very
    /// process counts for them already.
    pub vouched: Option<Duration>,
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
        let Answer::Integers([left, right, traits, vouched_ms]) = answer else {
            return None;
        };
        if left < 0 || right < 0 || traits < 0 {
            return None;
        }
        let [left, right, traits] = [left, right, traits].map(i64::cast_unsigned);
        Some(Self {
            run_id: RunId(left, right),
            uptime: Duration::from_secs(traits >> 2),
            is_master: traits & 2 != 0,
            may_evict: traits & 1 == 0,
            vouched: u64::try_from(vouched_ms).ok().map(Duration::from_millis),
        })
    }
}

/// What is asked of a node before its vote for an acquire counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Rules {
    /// For how long the vote of a node that has restarted does not count; zero when its data survives.
    pub quarantine: Duration,
    /// Whether a node that may evict keys has no vote.
    pub refuse_eviction: bool,
}

impl Rules {
    /// Every master has a vote.
    pub const NONE: Self = Self {
        quarantine: Duration::ZERO,
        refuse_eviction: false,
    };
}

/// What one client knows of one node. It belongs to the transport, and outlives its connections.
///
/// The Redlock specification, "Performance, crash recovery and fsync": delayed restarts, here enforced by
/// the client. A restart ends every connection, so it is enough to ask when one was made.
#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Admission(State);

#[derive(Debug, Clone, Copy, Default)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
enum State {
    #[default]
    Unknown,
    /// The node may not say who it is.
    Silenced,
    Known(Known),
}

/// As much of an introduction as is needed later, in few bytes: a device has one for each node.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
struct Known {
    run_id: RunId,
    /// How old the process was at `since` at the least, by the client's clock.
    age_s: u32,
    since: Instant,
    vouched_ms: Option<u32>,
    is_master: bool,
    may_evict: bool,
}

impl Admission {
    /// Nothing is known of the node, and its vote does not count yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(State::Unknown)
    }

    /// Takes note of what the node said on a new connection, at `now` on the client's clock; none when it
    /// may not say who it is.
    ///
    /// Another process than before has restarted just now, as far as anybody can tell. On the first
    /// contact the node's own word for its age is taken: it follows the node's wall clock, and says nothing
    /// of a replica that was promoted.
    pub fn introduced(&mut self, introduction: Option<Introduction>, now: Instant) {
        let Some(introduction) = introduction else {
            self.0 = State::Silenced;
            return;
        };
        let (age_s, since) = match self.0 {
            State::Known(before) if before.run_id == introduction.run_id => {
                (before.age_s, before.since)
            }
            State::Known(_) => (0, now),
            State::Unknown | State::Silenced => {
                // A whole number of seconds, of which one may not have passed.
                let least = introduction.uptime.as_secs().saturating_sub(1);
                (u32::try_from(least).unwrap_or(u32::MAX), now)
            }
        };
        // More than any TTL is as good as the longest.
        let vouched = introduction.vouched;
        let vouched_ms = vouched.map(|longest| millis(whole_micros(longest)));
        self.0 = State::Known(Known {
            run_id: introduction.run_id,
            age_s,
            since,
            vouched_ms,
            is_master: introduction.is_master,
            may_evict: introduction.may_evict,
        });
    }

    /// The process that the node was when it was last asked.
    #[must_use]
    pub const fn run_id(&self) -> Option<RunId> {
        match &self.0 {
            State::Known(known) => Some(known.run_id),
            State::Unknown | State::Silenced => None,
        }
    }

    /// Whether the node may evict keys, as far as it is known.
    #[must_use]
    pub const fn may_evict(&self) -> bool {
        matches!(&self.0, State::Known(known) if known.may_evict)
    }

    /// Whether the vote of the node counts at `now` for a lease of `ttl`. To be asked before an acquire is
    /// sent; extend and release are always sent.
    ///
    /// # Errors
    ///
    /// Why it does not.
    pub fn check(&self, rules: Rules, ttl: Duration, now: Instant) -> Result<(), Denial> {
        let quarantine = whole_micros(rules.quarantine);
        let known = match &self.0 {
            State::Known(known) => known,
            State::Unknown | State::Silenced if quarantine == 0 => return Ok(()),
            State::Unknown | State::Silenced => return Err(Denial::Silenced),
        };
        if !known.is_master {
            return Err(Denial::Replica);
        }
        if known.may_evict && rules.refuse_eviction {
            return Err(Denial::MayEvict);
        }
        let vouched = known.vouched_ms.map(|longest| u64::from(longest) * 1_000);
        if vouched.is_some_and(|longest| whole_micros(ttl) <= longest) {
            return Ok(());
        }
        let known_for = now.as_micros().saturating_sub(known.since.as_micros());
        let age = known_for.saturating_add(u64::from(known.age_s) * 1_000_000);
        if age < quarantine {
            return Err(Denial::Restarted {
                ago_ms: millis(age),
                // Rounded up: whoever comes back then is let in.
                left_ms: millis((quarantine - age).saturating_add(999)),
            });
        }
        Ok(())
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
    /// It has restarted, and may have forgotten keys that were granted before.
    Restarted {
        /// How long ago at the least, in milliseconds.
        ago_ms: u32,
        /// When its vote counts again, in milliseconds.
        left_ms: u32,
    },
    /// It is a replica: what it grants, its master does not know.
    Replica,
    /// It may delete keys for want of memory.
    MayEvict,
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
    OtherFleet,
}

impl Denial {
    /// What the node told besides.
    pub(crate) const fn reading(&self) -> Option<Reading> {
        match self {
            Self::Quarantined { reading, .. }
            | Self::Stale(reading)
            | Self::TooOld(reading)
            | Self::TooNew(reading) => Some(*reading),
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
                write!(f, "restarted {} ago, its vote counts again in {}", Span(*ago_ms), Span(*left_ms))
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
            Self::OtherFleet => f.write_str(
                "other clients follow other rules: max_ttl, window and step_back must be the same for all",
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    const TTL: Duration = Duration::from_secs(10);
    const GUARDED: Rules = Rules {
        quarantine: Duration::from_secs(11),
        refuse_eviction: false,
    };

    const fn node(run_id: u64, uptime: u64) -> Introduction {
        Introduction {
            run_id: RunId(run_id, 0),
            uptime: Duration::from_secs(uptime),
            is_master: true,
            may_evict: false,
            vouched: None,
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
        let wanted = "restarted 6 s ago, its vote counts again in 5 s";
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
            vouched: Some(TTL),
            ..node(1, 0)
        };
        let admission = met(vouched, at(0));
        assert_eq!(admission.check(GUARDED, TTL, at(0)), Ok(()));
        let longer = TTL + Duration::from_millis(1);
        assert!(admission.check(GUARDED, longer, at(0)).is_err());
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
            run_id: RunId(7, 8),
            uptime: Duration::from_secs(30),
            is_master: true,
            may_evict: true,
            vouched: Some(TTL),
        };
        assert_eq!(Introduction::read(said), Some(wanted));
        let said = Answer::Integers([7, 8, 1, -1]);
        let replica = Introduction::read(said).unwrap();
        assert!(!replica.is_master && !replica.may_evict && replica.vouched.is_none());
        for nonsense in [
            Answer::Ok,
            Answer::Integer(1),
            Answer::Integers([-1, 0, 0, 0]),
            Answer::Integers([0, -1, 0, 0]),
            Answer::Integers([0, 0, -1, 0]),
        ] {
            assert_eq!(Introduction::read(nonsense), None);
        }
    }
}
