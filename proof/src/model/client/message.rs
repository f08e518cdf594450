//! What goes between a client and a node, in few bytes.

use core::fmt;

use redlock_core::transport::{Reading, Reply};
use redlock_core::{Denial, Failure, Fence};

use super::failure::{NodeError, Silent};
use crate::model::scene::Scene;
use crate::model::stamp::Stamp;

/// What a call to a node ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) enum Answer {
    Acquired,
    Held,
    Extended,
    Released,
    NotMine,
    /// The connection is broken.
    Broken,
    /// What a node says of a fence, and what it tells besides.
    Fenced(Saying, Told),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) enum Saying {
    Acquired,
    Held,
    Stale,
    TooOld,
    TooNew,
    Quarantined,
    Extended,
    FencingMismatch,
    /// Whether there is a record.
    Unguarded(bool),
}

/// As much of a reading as changes what a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) struct Told {
    time: Stamp,
    fence: Stamp,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fence {}, time {}", self.fence, self.time)
    }
}

impl Answer {
    /// What a node of the simulation has answered, in few bytes; none when no node of a scene says so.
    pub(in crate::model) fn new(scene: &Scene, answer: &Result<Reply, Denial>) -> Option<Self> {
        let (saying, reading) = match answer {
            Ok(Reply::Acquired(None)) => return Some(Self::Acquired),
            Ok(Reply::Held(None)) => return Some(Self::Held),
            Ok(Reply::Extended(None)) => return Some(Self::Extended),
            Ok(Reply::Released) => return Some(Self::Released),
            Ok(Reply::NotMine) => return Some(Self::NotMine),
            Ok(Reply::Acquired(Some(reading))) => (Saying::Acquired, reading),
            Ok(Reply::Held(Some(reading))) => (Saying::Held, reading),
            Ok(Reply::Extended(Some(reading))) => (Saying::Extended, reading),
            Err(Denial::Stale(reading)) => (Saying::Stale, reading),
            Err(Denial::TooOld(reading)) => (Saying::TooOld, reading),
            Err(Denial::TooNew(reading)) => (Saying::TooNew, reading),
            Err(Denial::Quarantined { reading, .. }) => (Saying::Quarantined, reading),
            Err(Denial::FencingMismatch(reading)) => (Saying::FencingMismatch, reading),
            Err(Denial::Unguarded {
                has_record,
                reading,
            }) => (Saying::Unguarded(*has_record), reading),
            _ => return None,
        };
        let told = Told {
            time: scene.stamp(reading.time),
            fence: scene.stamp(reading.fence.as_u64()),
        };
        Some(Self::Fenced(saying, told))
    }

    pub(super) fn result(self, scene: &Scene, node: usize) -> Result<Reply, NodeError> {
        Ok(match self {
            Self::Acquired => Reply::Acquired(None),
            Self::Held => Reply::Held(None),
            Self::Extended => Reply::Extended(None),
            Self::Released => Reply::Released,
            Self::NotMine => Reply::NotMine,
            Self::Broken => return Err(NodeError::new(node, Failure::Transport(Silent))),
            Self::Fenced(saying, told) => {
                let fence = Fence::from_u64(scene.micros(told.fence));
                let reading = Reading::new(scene.micros(told.time), fence);
                let denial = match saying {
                    Saying::Acquired => return Ok(Reply::Acquired(Some(reading))),
                    Saying::Held => return Ok(Reply::Held(Some(reading))),
                    Saying::Extended => return Ok(Reply::Extended(Some(reading))),
                    Saying::Stale => Denial::Stale(reading),
                    Saying::TooOld => Denial::TooOld(reading),
                    Saying::TooNew => Denial::TooNew(reading),
                    Saying::Quarantined => Denial::Quarantined {
                        left_ms: 0,
                        reading,
                    },
                    Saying::FencingMismatch => Denial::FencingMismatch(reading),
                    Saying::Unguarded(has_record) => Denial::Unguarded {
                        has_record,
                        reading,
                    },
                };
                return Err(NodeError::new(node, Failure::Denied(denial)));
            }
        })
    }
}

/// A command, by the number of its token among those of its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) enum Order {
    Acquire(u8, Option<Offer>),
    Extend(u8, Option<Offer>),
    Release(u8, Option<Offer>),
}

/// The fence of a command.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::model) struct Offer {
    pub(in crate::model) fence: Stamp,
    /// What goes with an extend.
    pub(in crate::model) time: Stamp,
    /// Whether the client may write a guard record, which goes with an acquire.
    pub(in crate::model) vouches: bool,
}
