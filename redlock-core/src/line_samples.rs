//! What the answers of one round tell about the line of the lock.

#[cfg(any(feature = "queue", feature = "mock"))]
mod samples {
    use crate::line::Refusal;
    use crate::reply::Reply;
    use crate::time::Instant;

    /// A client that has waited longer for an answer stood still, or is far away.
    const ROUND_TRIP_MAX_MICROS: u64 = 500_000;

    /// The answers of the nodes of one round to a client in the line, or to a release.
    #[derive(Debug)]
    pub(crate) struct LineSamples<const MAX: usize> {
        /// The answer of each node that has refused.
        samples: [Option<Sample>; MAX],
        /// How many nodes have granted.
        granted: usize,
        /// How many nodes without a line have told that the lock is held.
        held_elsewhere: u32,
        has_waiters: bool,
        ended_at: Instant,
    }

    /// What is used of a [`Position`](crate::line::Position), in 16 bytes.
    #[derive(Debug, Clone, Copy)]
    struct Sample {
        /// How far the node's clock is ahead of the client's, in microseconds.
        offset: i64,
        left_ms: u32,
        ahead: u16,
        refusal: Refusal,
    }

    impl<const MAX: usize> LineSamples<MAX> {
        pub(crate) const fn new() -> Self {
            Self {
                samples: [None; MAX],
                granted: 0,
                held_elsewhere: 0,
                has_waiters: false,
                ended_at: Instant::from_micros(0),
            }
        }

        /// Records the answer of `node` to a command that was sent at `sent_at` and answered at `now`.
        pub(crate) fn record<E>(
            &mut self,
            node: usize,
            answer: &Result<Reply, E>,
            sent_at: Instant,
            now: Instant,
        ) {
            self.ended_at = now;
            match answer {
                Ok(Reply::Waiting(position, _)) => {
                    // The node read its clock at some time between `sent_at` and `now`. If that is long, the client takes `sent_at`. An
                    // early ticket would overtake others; this one is late at worst.
                    let (sent_at, now) = (sent_at.as_micros(), now.as_micros());
                    let ours = match now.saturating_sub(sent_at) {
                        0..=ROUND_TRIP_MAX_MICROS => sent_at.midpoint(now),
                        _ => sent_at,
                    };
                    let offset = position.time.wrapping_sub(ours).cast_signed();
                    if let Some(slot) = self.samples.get_mut(node) {
                        *slot = Some(Sample {
                            offset,
                            left_ms: position.left_ms,
                            ahead: u16::try_from(position.ahead).unwrap_or(u16::MAX),
                            refusal: position.refusal,
                        });
                    }
                }
                Ok(Reply::Acquired(_)) => self.granted += 1,
                Ok(Reply::Held(_)) => self.held_elsewhere += 1,
                Ok(Reply::ReleasedWithWaiters(_)) => self.has_waiters = true,
                _ => {}
            }
        }

        /// Whether a node has told that clients wait for the lock that was released.
        pub(crate) const fn has_waiters(&self) -> bool {
            self.has_waiters
        }

        /// How many clients are ahead in the line: the most of any node. `None` if no node has told.
        pub(crate) fn ahead(&self) -> Option<u32> {
            self.samples().map(|sample| sample.ahead.into()).max()
        }

        /// How many clients are ahead where it is the turn of another: the fewest of any node. `None` if no node has told.
        pub(crate) fn least_ahead(&self) -> Option<u16> {
            let ahead = self
                .samples()
                .filter(|sample| sample.refusal == Refusal::Ahead);
            ahead.map(|sample| sample.ahead).min()
        }

        /// Whether `quorum` nodes that keep a line have told that the lock is held, and none has granted it.
        pub(crate) fn is_surely_held(&self, quorum: u32) -> bool {
            let held = self
                .count(Refusal::Held)
                .saturating_sub(self.held_elsewhere);
            self.granted == 0 && held >= quorum
        }

        /// When the last answer came.
        pub(crate) const fn ended_at(&self) -> Instant {
            self.ended_at
        }

        /// How many nodes have refused for this reason.
        pub(crate) fn count(&self, refusal: Refusal) -> u32 {
            let samples = self.samples().filter(|sample| sample.refusal == refusal);
            let elsewhere = match refusal {
                Refusal::Held => self.held_elsewhere,
                Refusal::Ahead | Refusal::Full => 0,
            };
            let count = u32::try_from(samples.count()).unwrap_or(u32::MAX);
            count.saturating_add(elsewhere)
        }

        /// The longest time that is left of the turn of another client, in microseconds.
        pub(crate) fn longest_turn_micros(&self) -> Option<u64> {
            let ahead = self
                .samples()
                .filter(|sample| sample.refusal == Refusal::Ahead);
            let left = ahead.map(|sample| u64::from(sample.left_ms) * 1_000);
            left.max()
        }

        /// How long until the key has expired on `quorum` nodes, in microseconds. If fewer nodes have told, for example because the
        /// round was lost without the others: on all of these. `None` if this is unknown.
        pub(crate) fn expiry_micros(&self, quorum: u32) -> Option<u64> {
            let mut held_ms = [u32::MAX; MAX];
            let held = self.samples().map(|sample| match sample.refusal {
                Refusal::Held => sample.left_ms,
                Refusal::Ahead | Refusal::Full => 0,
            });
            let granted = core::iter::repeat_n(0, self.granted);
            let slots = held_ms.iter_mut().zip(held.chain(granted));
            let told = slots.map(|(slot, ms)| *slot = ms).count();
            held_ms.sort_unstable();
            let last = told.min(quorum as usize).checked_sub(1)?;
            let left_ms = *held_ms.get(last)?;
            if left_ms == u32::MAX {
                return None;
            }
            // Redis truncates to milliseconds, and deletes a key one millisecond after its TTL.
            Some((u64::from(left_ms) + 2) * 1_000)
        }

        /// How far the nodes' clocks are ahead of the client's, in microseconds: the median. `None` if fewer than `needed`
        /// have told.
        pub(crate) fn offset(&self, needed: u32) -> Option<i64> {
            let mut offsets = [0; MAX];
            let known = self.samples().map(|sample| sample.offset);
            let slots = offsets.iter_mut().zip(known);
            let count = slots.map(|(slot, offset)| *slot = offset).count();
            let offsets = offsets.get_mut(..count)?;
            if count < needed as usize {
                return None;
            }
            offsets.sort_unstable();
            offsets.get(count.checked_sub(1)? / 2).copied()
        }

        fn samples(&self) -> impl Iterator<Item = &Sample> {
            self.samples.iter().flatten()
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::line::Position;

        #[test]
        fn a_client_that_stood_still_gets_no_ticket_from_before_its_wait() {
            for (took, ours) in [(1_000, 500), (500_000, 250_000), (20_000_000, 0)] {
                let position = Position {
                    time: 7_000_000,
                    left_ms: 1,
                    ahead: 0,
                    refusal: Refusal::Held,
                };
                let mut samples = LineSamples::<1>::new();
                let answer = Ok::<_, ()>(Reply::Waiting(position, None));
                let [sent_at, now] = [0, took].map(Instant::from_micros);
                samples.record(0, &answer, sent_at, now);
                assert_eq!(samples.offset(1), Some(7_000_000 - ours));
            }
        }
    }
}

/// Without the features `queue` and `mock`, no node tells anything about a line.
#[cfg(not(any(feature = "queue", feature = "mock")))]
mod samples {
    use crate::reply::Reply;
    use crate::time::Instant;

    #[derive(Debug)]
    pub(crate) struct LineSamples<const MAX: usize>;

    impl<const MAX: usize> LineSamples<MAX> {
        pub(crate) const fn new() -> Self {
            Self
        }

        pub(crate) const fn record<E>(
            &mut self,
            _node: usize,
            _answer: &Result<Reply, E>,
            _sent_at: Instant,
            _now: Instant,
        ) {
        }

        pub(crate) const fn has_waiters(&self) -> bool {
            false
        }

        pub(crate) const fn ahead(&self) -> Option<u32> {
            None
        }
    }
}

pub(crate) use samples::LineSamples;
