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
    count: usize,
    highest: Fence,
    misfits: u32,
}

impl<const MAX: usize> Readings<MAX> {
    pub(crate) const fn new() -> Self {
        Self {
            offsets: [0; MAX],
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
        let Some(Reading { time, fence, on: _ }) = reading else {
            return;
        };
        if let Err(Some(denial)) = answer {
            self.misfits += u32::from(denial.is_misfit());
        }
        self.highest = self.highest.max(fence);
        // The node read its clock somewhere between the two.
        let ours = sent_at.as_micros().midpoint(now.as_micros());
        if let Some(place) = self.offsets.get_mut(self.count) {
            *place = time.wrapping_sub(ours).cast_signed();
            self.count += 1;
        }
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
