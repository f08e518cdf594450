//! What the operations of a handle have learned about its nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use redlock_core::Instant;

use crate::core::Core;

/// The nodes' time, and when the nodes were last asked for their guard records, shared by a handle and its clones, so that only the first
/// operation has to ask.
#[derive(Debug, Clone)]
pub(crate) struct FleetKnowledge {
    /// By how much the clocks of the nodes are ahead of the clock of this machine, in microseconds.
    clock_offset: Arc<AtomicI64>,
    /// When an acquire last looked for nodes that have lost their guard records, in microseconds. It looks by the rules of one set
    /// of options.
    looked_at: Arc<AtomicU64>,
    /// Whether an operation has waited for the first connections.
    has_connected: Arc<AtomicBool>,
}

/// No real offset is so low.
const UNKNOWN: i64 = i64::MIN;

/// No acquire happens at time zero.
const NEVER: u64 = 0;

impl FleetKnowledge {
    pub(crate) fn nothing() -> Self {
        Self {
            clock_offset: Arc::new(AtomicI64::new(UNKNOWN)),
            looked_at: Arc::new(AtomicU64::new(NEVER)),
            has_connected: Arc::default(),
        }
    }

    /// Returns the knowledge for options with other rules.
    pub(crate) fn with_other_rules(&self) -> Self {
        Self {
            clock_offset: Arc::clone(&self.clock_offset),
            looked_at: Arc::new(AtomicU64::new(NEVER)),
            has_connected: Arc::clone(&self.has_connected),
        }
    }

    /// Whether an operation has waited for the first connections.
    pub(crate) fn has_connected(&self) -> bool {
        self.has_connected.load(Ordering::Relaxed)
    }

    pub(crate) fn set_connected(&self) {
        self.has_connected.store(true, Ordering::Relaxed);
    }

    /// Copies the knowledge into the state machine of one operation.
    pub(crate) fn tell(&self, core: &mut Core) {
        let offset = self.clock_offset.load(Ordering::Relaxed);
        core.set_clock_offset(Some(offset).filter(|offset| *offset != UNKNOWN));
        let looked_at = self.looked_at.load(Ordering::Relaxed);
        let looked_at = Some(looked_at).filter(|at| *at != NEVER);
        core.set_looked_at(looked_at.map(Instant::from_micros));
    }

    /// Returns the ticket of an acquire that has begun to wait at `since`: this time on the clocks of the nodes, in microseconds.
    /// `None` if no quorum has told its time. If the clocks are stepped, only the order in the line is wrong.
    pub(crate) fn ticket(&self, since: Instant) -> Option<u64> {
        let offset = self.clock_offset.load(Ordering::Relaxed);
        let ticket = since.as_micros().checked_add_signed(offset);
        ticket.filter(|_| offset != UNKNOWN)
    }

    /// Stores what the operation has learned since `before`. Values that did not change are not stored, because another
    /// operation may have newer ones.
    pub(crate) fn learn(&self, core: &Core, before: Told) {
        let now = Told::by(core);
        if let Some(offset) = now.clock_offset
            && now.clock_offset != before.clock_offset
        {
            self.clock_offset.store(offset, Ordering::Relaxed);
        }
        if now.looked_at != before.looked_at {
            let looked_at = now.looked_at.map_or(NEVER, Instant::as_micros);
            self.looked_at.store(looked_at, Ordering::Relaxed);
        }
    }
}

/// What an operation knows about the nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    clock_offset: Option<i64>,
    looked_at: Option<Instant>,
}

impl Told {
    pub(crate) const fn by(core: &Core) -> Self {
        Self {
            clock_offset: core.clock_offset(),
            looked_at: core.looked_at(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_the_time_of_the_nodes_at_which_the_wait_began() {
        let knowledge = FleetKnowledge::nothing();
        let since = Instant::from_micros(5_000);
        assert_eq!(knowledge.ticket(since), None);
        knowledge.clock_offset.store(-4_000, Ordering::Relaxed);
        assert_eq!(knowledge.ticket(since), Some(1_000));
        knowledge.clock_offset.store(-6_000, Ordering::Relaxed);
        assert_eq!(
            knowledge.ticket(since),
            None,
            "before the nodes' time began"
        );
    }
}
