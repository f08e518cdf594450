//! What the answers to one round tell of the nodes' clocks and fences.

use crate::admission::Denial;
use crate::command::Reply;
use crate::fence::{Fence, Reading};
use crate::time::Instant;

/// Collected while the votes come in, for the fence of the next proposal.
#[derive(Debug)]
pub(crate) struct Readings<const MAX: usize> {
    /// By how much the clock of each node is ahead of ours, in microseconds; in no order.
    offsets: [i64; MAX],
    /// For how long each node that answered will not grant the key, in milliseconds; in no order.
    held_ms: [u32; MAX],
    count: usize,
    highest: Fence,
    misfits: u32,
}

impl<const MAX: usize> Readings<MAX> {
    pub(crate) const fn new() -> Self {
        Self {
            offsets: [0; MAX],
            held_ms: [0; MAX],
            count: 0,
            highest: Fence::ZERO,
            misfits: 0,
        }
    }

    /// Takes note of the answer to what was sent at `sent_at` and came at `now`.
    pub(crate) fn take(
        &mut self,
        answer: &Result<Reply, Option<Denial>>,
        sent_at: Instant,
        now: Instant,
    ) {
        let reading = match answer {
            Ok(Reply::Acquired(reading) | Reply::Held(reading)) => *reading,
            Ok(_) => None,
            Err(denial) => denial.and_then(|denial| denial.reading()),
        };
        let Some(Reading {
            time,
            fence,
            held_ms,
            on: _,
        }) = reading
        else {
            return;
        };
        if let Err(Some(denial)) = answer {
            self.misfits += u32::from(denial.is_misfit());
        }
        self.highest = self.highest.max(fence);
        // The node read its clock somewhere between the two.
        let ours = sent_at.as_micros().midpoint(now.as_micros());
        let places = self.offsets.get_mut(self.count);
        if let Some((offset, held)) = places.zip(self.held_ms.get_mut(self.count)) {
            *offset = time.wrapping_sub(ours).cast_signed();
            *held = held_ms;
            self.count += 1;
        }
    }

    /// When `quorum` nodes will grant the key, in milliseconds, if its holder does nothing until then; none
    /// when fewer have answered.
    pub(crate) fn free_in_ms(&mut self, quorum: u32) -> Option<u32> {
        let held_ms = self.held_ms.get_mut(..self.count)?;
        held_ms.sort_unstable();
        held_ms.get((quorum as usize).checked_sub(1)?).copied()
    }

    /// The highest fence that any of the nodes has seen.
    pub(crate) const fn highest(&self) -> Fence {
        self.highest
    }

    /// How many nodes refused for the fence that was proposed, and for nothing else.
    pub(crate) const fn misfits(&self) -> u32 {
        self.misfits
    }

    /// By how much the nodes' clocks are ahead of ours: the median, which a minority of clocks that are
    /// wrong cannot move beyond those that are right.
    pub(crate) fn offset(&mut self) -> Option<i64> {
        let offsets = self.offsets.get_mut(..self.count)?;
        offsets.sort_unstable();
        offsets.get(self.count.checked_sub(1)? / 2).copied()
    }
}
