//! What all operations of a lock have learned of its nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use redlock_core::Instant;

use crate::core::Core;

/// The nodes' time, for a lock and its clones: only the first operation has to ask.
#[derive(Debug, Clone)]
pub(crate) struct FleetKnowledge {
    /// By how much the nodes' clocks are ahead of this machine's.
    clock_offset: Arc<AtomicI64>,
    /// When the last acquire confirmed the rules of fenced locks, in microseconds. The rules are those of one set of
    /// options.
    rules_confirmed_at: Arc<AtomicU64>,
}

/// No clock is so far behind.
const UNKNOWN: i64 = i64::MIN;

/// No acquire begins with the clock.
const NEVER: u64 = 0;

impl FleetKnowledge {
    pub(crate) fn nothing() -> Self {
        Self {
            clock_offset: Arc::new(AtomicI64::new(UNKNOWN)),
            rules_confirmed_at: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// The same for options with other rules.
    pub(crate) fn with_other_rules(&self) -> Self {
        Self {
            clock_offset: Arc::clone(&self.clock_offset),
            rules_confirmed_at: Arc::new(AtomicU64::new(NEVER)),
        }
    }

    /// Tells it to the state machine of one operation.
    pub(crate) fn tell(&self, core: &mut Core) {
        let offset = self.clock_offset.load(Ordering::Relaxed);
        core.set_clock_offset(Some(offset).filter(|offset| *offset != UNKNOWN));
        let confirmed_at = self.rules_confirmed_at.load(Ordering::Relaxed);
        let confirmed_at = Some(confirmed_at).filter(|at| *at != NEVER);
        core.set_rules_confirmed_at(confirmed_at.map(Instant::from_micros));
    }

    /// Learns what that operation has found out since it was told `before`. What it has not found out itself it does not
    /// say again: another operation may know better by now.
    pub(crate) fn learn(&self, core: &Core, before: Told) {
        let now = Told::by(core);
        if let Some(offset) = now.clock_offset
            && now.clock_offset != before.clock_offset
        {
            self.clock_offset.store(offset, Ordering::Relaxed);
        }
        if now.rules_confirmed_at != before.rules_confirmed_at {
            let confirmed_at = now.rules_confirmed_at.map_or(NEVER, Instant::as_micros);
            self.rules_confirmed_at
                .store(confirmed_at, Ordering::Relaxed);
        }
    }
}

/// What an operation knows of the nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Told {
    clock_offset: Option<i64>,
    rules_confirmed_at: Option<Instant>,
}

impl Told {
    pub(crate) const fn by(core: &Core) -> Self {
        Self {
            clock_offset: core.clock_offset(),
            rules_confirmed_at: core.rules_confirmed_at(),
        }
    }
}
