//! What a node says of itself: who it is, and what can be relied on.

use core::time::Duration;

use crate::key::GUARD_KEY;
use crate::wire::{Answer, Argument, Arguments, Script, ScriptCall};

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
pub struct NodeInfo {
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

impl NodeInfo {
    /// The question, as Redis takes it: once on every connection, before the first command.
    #[must_use]
    pub fn question() -> Arguments<'static> {
        let guard = Argument::Bytes(GUARD_KEY.as_bytes());
        Script::NODE_INFO.call(ScriptCall::Text, 1).and(Some(guard))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_says_is_read_and_nonsense_is_not() {
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
