//! What all operations of a lock have learned of its nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::redlock::Core;

/// The nodes' time, for a lock and its clones: only the first operation has to ask.
#[derive(Debug, Clone)]
pub(crate) struct FleetKnowledge {
    /// By how much the nodes' clocks are ahead of this machine's.
    clock_offset: Arc<AtomicI64>,
    /// Whether the last acquire has confirmed the rules of fenced locks. The rules are those of one set of options.
    may_vouch: Arc<AtomicBool>,
}

/// No clock is so far behind.
const UNKNOWN: i64 = i64::MIN;

impl FleetKnowledge {
    pub(crate) fn nothing() -> Self {
        Self {
            clock_offset: Arc::new(AtomicI64::new(UNKNOWN)),
            may_vouch: Arc::default(),
        }
    }

    /// The same for options with other rules.
    pub(crate) fn with_other_rules(&self) -> Self {
        Self {
            clock_offset: Arc::clone(&self.clock_offset),
            may_vouch: Arc::default(),
        }
    }

    /// Tells it to the state machine of one operation.
    pub(crate) fn tell(&self, core: &mut Core) {
        let offset = self.clock_offset.load(Ordering::Relaxed);
        core.set_clock_offset(Some(offset).filter(|offset| *offset != UNKNOWN));
        core.set_may_vouch(self.may_vouch.load(Ordering::Relaxed));
    }

    /// Learns what that operation has found out. Nothing is written if that is nothing new: handles on many cores
    /// share it.
    pub(crate) fn learn(&self, core: &Core) {
        if let Some(offset) = core.clock_offset()
            && offset != self.clock_offset.load(Ordering::Relaxed)
        {
            self.clock_offset.store(offset, Ordering::Relaxed);
        }
        if core.may_vouch() != self.may_vouch.load(Ordering::Relaxed) {
            self.may_vouch.store(core.may_vouch(), Ordering::Relaxed);
        }
    }
}
