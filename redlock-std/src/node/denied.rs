//! Why a node has denied its vote to fenced acquires.

use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_core::{Denial, Fencing};

use crate::sync::Mutex;

/// What the guard record of a node says is known only from its answers to fenced acquires.
#[derive(Debug, Default)]
pub(super) struct Denied {
    /// With the rules of the acquire: a handle with other rules gets other answers.
    last: Mutex<Option<(Denial, Fencing, Instant)>>,
    /// So that the acquires of a node that has a vote take no lock.
    is_some: AtomicBool,
}

impl Denied {
    /// Records the answer to a fenced acquire with these rules: `None` if the node has a vote.
    pub(super) fn record(&self, denial: Option<&Denial>, rules: Fencing) {
        let of_the_record = denial.filter(|denial| {
            matches!(
                denial,
                Denial::Quarantined { .. } | Denial::Unguarded { .. } | Denial::FencingMismatch(_)
            )
        });
        if of_the_record.is_none() && !self.is_some.load(Ordering::Relaxed) {
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if of_the_record.is_none() && last.is_some_and(|(_, of, _)| of != rules) {
            return;
        }
        *last = of_the_record.map(|denial| (*denial, rules, Instant::now()));
        self.is_some.store(last.is_some(), Ordering::Relaxed);
    }

    /// The denial of the last acquire, if it had these rules. `None` if the node had a vote, or its quarantine is over since.
    pub(super) fn current(&self, rules: Fencing) -> Option<Denial> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (denial, _, at) = last.filter(|(_, of, _)| *of == rules)?;
        let Denial::Quarantined { left_ms, reading } = denial else {
            return Some(denial);
        };
        let left = Duration::from_millis(left_ms.into()).saturating_sub(at.elapsed());
        let left_ms = u32::try_from(left.as_millis()).ok().filter(|ms| *ms > 0)?;
        Some(Denial::Quarantined { left_ms, reading })
    }
}
