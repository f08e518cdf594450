//! What a node tells about itself: its identity, its role, and what its guard record says.

use core::time::Duration;

use crate::key::GUARD_KEY;
use crate::wire::{Answer, Argument, Arguments, Script, ScriptCall};

/// The ID of a node's process. It changes with every restart. All names and addresses of one node have the same ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct RunId(pub(crate) u64);

impl RunId {
    /// Creates a run ID, for your own transport. For Redis, it is the first 13 hexadecimal digits of `run_id`.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// The ID of the history of a node's data. It changes whenever the node's role changes.
///
/// A master that becomes a replica takes over the data of its new master. If it becomes a master again, its process is the
/// same, and its guard record may be the same. But the locks that it granted are gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct ReplicationId(pub(crate) u64);

impl ReplicationId {
    /// Creates a replication ID, for your own transport. For Redis, it is the first 13 hexadecimal digits of
    /// `master_replid`.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What a node tells about itself when a client connects.
///
/// A transport gets it from [`read`](Self::read). To create one, for instance for a transport to nodes that are not Redis,
/// start with [`new`](Self::new) and set its fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct NodeInfo {
    /// The process.
    pub run_id: RunId,
    /// The history of its data.
    pub replication_id: ReplicationId,
    /// How long the process has been running, by the node's own clock. In whole seconds, so it may be up to one second more or
    /// less.
    pub uptime: Duration,
    /// Whether it is a master. If not, it is a replica.
    pub is_master: bool,
    /// Whether it may evict keys that have not expired.
    pub may_evict: bool,
    /// The longest TTL that the guard record allows, in milliseconds. `None` if the node has no record.
    pub max_ttl_ms: Option<u32>,
    /// Whether the guard record vouches for the node: it is of this process and this data, and its quarantine is over. So the
    /// node cannot have forgotten a lease that is still valid, if its TTL is at most `max_ttl_ms`.
    pub is_vouched: bool,
}

impl NodeInfo {
    /// The info of a master that was started just now, does not evict keys and has no guard record.
    #[must_use]
    pub const fn new(run_id: RunId, replication_id: ReplicationId) -> Self {
        Self {
            run_id,
            replication_id,
            uptime: Duration::ZERO,
            is_master: true,
            may_evict: false,
            max_ttl_ms: None,
            is_vouched: false,
        }
    }

    /// The Redis command that asks for it. Send it on every new connection, before the first command.
    #[must_use]
    pub fn question() -> Arguments<'static> {
        let guard = Argument::Bytes(GUARD_KEY.as_bytes());
        Script::NODE_INFO
            .call(ScriptCall::Text, "1")
            .and(Some(guard))
    }

    /// Parses `answer`. `None` if it is not an answer to [`question`](Self::question).
    #[must_use]
    pub fn read(answer: Answer) -> Option<Self> {
        let Answer::Integers([run_id, replication_id, uptime_and_flags, max_ttl_ms]) = answer
        else {
            return None;
        };
        if run_id < 0 || replication_id < 0 {
            return None;
        }
        // `max_ttl_ms` is negative if the record does not vouch for the node. A number larger than any TTL becomes `u32::MAX`.
        let longest_ms = u32::try_from(max_ttl_ms.unsigned_abs()).unwrap_or(u32::MAX);
        Some(Self {
            run_id: RunId(run_id.cast_unsigned()),
            replication_id: ReplicationId(replication_id.cast_unsigned()),
            // Negative if the clock of the node was stepped back.
            uptime: Duration::from_secs((uptime_and_flags >> 2).max(0).unsigned_abs()),
            is_master: uptime_and_flags & 2 != 0,
            may_evict: uptime_and_flags & 1 == 0,
            max_ttl_ms: (longest_ms != 0).then_some(longest_ms),
            is_vouched: max_ttl_ms > 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_valid_answer_is_parsed_and_an_invalid_one_is_not() {
        let said = Answer::Integers([7, 8, 4 * 30 + 2, 10_000]);
        let wanted = NodeInfo {
            run_id: RunId(7),
            replication_id: ReplicationId(8),
            uptime: Duration::from_secs(30),
            is_master: true,
            may_evict: true,
            max_ttl_ms: Some(10_000),
            is_vouched: true,
        };
        assert_eq!(NodeInfo::read(said), Some(wanted));
        let said = Answer::Integers([7, 8, 1, 0]);
        let replica = NodeInfo::read(said).unwrap();
        assert!(!replica.is_master && !replica.may_evict);
        assert_eq!((replica.max_ttl_ms, replica.is_vouched), (None, false));
        let said = Answer::Integers([7, 8, 1, -10_000]);
        let in_quarantine = NodeInfo::read(said).unwrap();
        assert_eq!(
            (in_quarantine.max_ttl_ms, in_quarantine.is_vouched),
            (Some(10_000), false)
        );
        let set_back = Answer::Integers([7, 8, 4 * -30 + 2, 0]);
        let set_back = NodeInfo::read(set_back).unwrap();
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
            assert_eq!(NodeInfo::read(nonsense), None);
        }
    }
}
