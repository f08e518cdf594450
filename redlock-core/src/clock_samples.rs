//! What the answers of one round tell about the nodes' clocks, fences and rules.

use crate::denial::Denial;
use crate::fence::Fence;
use crate::reply::Reply;
use crate::round::NodeSet;
use crate::time::Instant;

/// Samples of the nodes' clocks, fences and rules, collected during a round for the next proposal.
#[derive(Debug)]
pub(crate) struct ClockSamples<const MAX: usize> {
    /// How far the clock of each node is ahead of the client's, in microseconds; in no order.
    offsets: [i64; MAX],
    /// How long each node that answered will not grant the key, in milliseconds; in no order.
    held_ms: [u32; MAX],
    count: usize,
    highest: Fence,
    misfits: u32,
    unguarded: NodeSet,
    rules: RulesHeard,
}

/// Which nodes have which rules.
#[derive(Debug, Clone, Copy)]
struct RulesHeard {
    /// Nodes with the client's rules.
    own: NodeSet,
    /// Nodes without a guard record.
    none: NodeSet,
    /// Nodes with other rules.
    other: NodeSet,
}

/// What a round tells about the client's rules. A client whose rules may be wrong writes no guard record: it would
/// take over the nodes that have lost theirs one by one, each with a quarantine that fits no other client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Nothing.
    None,
    /// All nodes have answered, and none has a record: they are new, or all have lost it. Valid for the next round.
    ColdStart,
    /// The client's rules are those of the fleet: a quorum has them; or some nodes have them, none has others, and a
    /// quorum has answered.
    Fleet,
}

impl<const MAX: usize> ClockSamples<MAX> {
    pub(crate) const fn new() -> Self {
        Self {
            offsets: [0; MAX],
            held_ms: [0; MAX],
            count: 0,
            highest: Fence::ZERO,
            misfits: 0,
            unguarded: NodeSet::EMPTY,
            rules: RulesHeard {
                own: NodeSet::EMPTY,
                none: NodeSet::EMPTY,
                other: NodeSet::EMPTY,
            },
        }
    }

    /// Records the answer of `node` to a command: sent at `sent_at`, answered at `now`. Returns whether the answer has a
    /// reading.
    // `inline(never)`: keeps the loop that collects the votes short.
    #[inline(never)]
    pub(crate) fn take(
        &mut self,
        node: usize,
        answer: &Result<Reply, Option<Denial>>,
        sent_at: Instant,
        now: Instant,
    ) -> bool {
        let reading = match answer {
            Ok(Reply::Acquired(reading) | Reply::Held(reading) | Reply::Extended(reading)) => {
                *reading
            }
            Ok(_) => None,
            Err(denial) => denial.and_then(|denial| denial.reading()),
        };
        let Some(reading) = reading else {
            return false;
        };
        let mut rules = &mut self.rules.own;
        if let Err(Some(denial)) = answer {
            self.misfits += u32::from(denial.is_misfit());
            match denial {
                Denial::Unguarded { has_record, .. } => {
                    self.unguarded.insert(node);
                    if !has_record {
                        rules = &mut self.rules.none;
                    }
                }
                Denial::FencingMismatch(_) => rules = &mut self.rules.other,
                _ => {}
            }
        }
        rules.insert(node);
        self.highest = self.highest.max(reading.fence());
        // The node read its clock somewhere between the two.
        let ours = sent_at.as_micros().midpoint(now.as_micros());
        let slot = self.offsets.get_mut(self.count);
        if let Some((offset, held)) = slot.zip(self.held_ms.get_mut(self.count)) {
            *offset = reading.time().wrapping_sub(ours).cast_signed();
            *held = match answer {
                // A node without a vote grants nothing, even if the key is free.
                Err(Some(Denial::Quarantined { left_ms, .. })) => reading.held_ms().max(*left_ms),
                Err(Some(Denial::Unguarded { .. } | Denial::FencingMismatch(_))) => u32::MAX,
                _ => reading.held_ms(),
            };
            self.count += 1;
        }
        true
    }

    /// The time until `quorum` nodes will grant the key, in milliseconds, if its holder does nothing until then. `None`
    /// if fewer have answered, or if the time is unknown.
    pub(crate) fn free_in_ms(&mut self, quorum: u32) -> Option<u32> {
        let held_ms = self.held_ms.get_mut(..self.count)?;
        held_ms.sort_unstable();
        let left_ms = *held_ms.get((quorum as usize).checked_sub(1)?)?;
        // No vote, for an unknown time, or a key without a TTL.
        if left_ms == u32::MAX {
            return None;
        }
        // Redis truncates to milliseconds, and deletes a key one millisecond after its TTL.
        Some(left_ms.saturating_add(2))
    }

    /// The highest fence that any of the nodes has seen.
    pub(crate) const fn highest(&self) -> Fence {
        self.highest
    }

    /// How many nodes refused only because of the proposed fence.
    pub(crate) const fn misfits(&self) -> u32 {
        self.misfits
    }

    /// The nodes that are known to have their guard record.
    pub(crate) const fn guarded(&self) -> NodeSet {
        self.rules.own.without(self.unguarded)
    }

    /// The nodes that have lost their guard record.
    pub(crate) const fn unguarded(&self) -> NodeSet {
        self.unguarded
    }

    /// How far the nodes' clocks are ahead of the client's: the median of at least `enough` answers. `None` if there are
    /// fewer, because most of a few answers may come from wrong clocks.
    pub(crate) fn offset(&mut self, enough: u32) -> Option<i64> {
        let offsets = self.offsets.get_mut(..self.count)?;
        if self.count < enough as usize {
            return None;
        }
        offsets.sort_unstable();
        offsets.get(self.count.checked_sub(1)? / 2).copied()
    }

    /// Whether the clocks of a quorum differ from the client's by `offset`, plus or minus `window_ms`.
    pub(crate) fn is_confirmed(&self, offset: i64, window_ms: u32, quorum: u32) -> bool {
        let window = u64::from(window_ms) * 1_000;
        let offsets = self.offsets.iter().take(self.count);
        let agreeing = offsets.filter(|other| other.abs_diff(offset) <= window);
        agreeing.count() >= quorum as usize
    }

    /// What the answers of `voters` tell about the client's rules. `voters` are all nodes except duplicates of a server.
    pub(crate) fn confirmation(&self, voters: NodeSet, quorum: u32) -> Confirmation {
        let RulesHeard { own, none, other } = self.rules;
        let [own, none, other] = [own, none, other].map(|heard| heard.within(voters).len());
        if own >= quorum || other == 0 && own > 0 && own + none >= quorum {
            Confirmation::Fleet
        } else if other == 0 && none >= quorum && none == voters.len() {
            Confirmation::ColdStart
        } else {
            Confirmation::None
        }
    }
}

#[cfg(all(test, feature = "fence"))]
mod tests {
    use super::*;
    use crate::fence::Reading;

    const fn reading(time: u64, fence: u64) -> Reading {
        Reading::new(time, Fence::from_u64(fence))
    }

    #[test]
    fn the_offset_is_the_median_which_a_minority_of_clocks_cannot_move() {
        let mut samples = ClockSamples::<5>::new();
        assert_eq!(samples.offset(0), None);
        // Sent at 100, answered at 300: read at 200 or so.
        let (sent_at, now) = (Instant::from_micros(100), Instant::from_micros(300));
        for time in [9_000_000, 1_200, 0, 1_210, 1_190] {
            let granted = Ok(Reply::Acquired(Some(reading(time, 1))));
            samples.take(0, &granted, sent_at, now);
        }
        assert_eq!(samples.offset(5), Some(1_000));
        assert_eq!(samples.offset(6), None, "too few have answered");
    }

    const UNGUARDED: fn(bool) -> Result<Reply, Option<Denial>> = |has_record| {
        let reading = reading(0, 0);
        Err(Some(Denial::Unguarded {
            has_record,
            reading,
        }))
    };

    fn confirmation(answers: &[Result<Reply, Option<Denial>>]) -> Confirmation {
        let mut samples = ClockSamples::<3>::new();
        let now = Instant::from_micros(0);
        for (node, answer) in answers.iter().enumerate() {
            samples.take(node, answer, now, now);
        }
        samples.confirmation(NodeSet::first(3), 2)
    }

    #[test]
    fn rules_are_confirmed_by_a_quorum_that_has_them_or_by_a_quorum_of_which_none_has_others() {
        let own = Ok(Reply::Held(Some(reading(0, 0))));
        let other = Err(Some(Denial::FencingMismatch(reading(0, 0))));
        let (same, none, silent) = (UNGUARDED(true), UNGUARDED(false), Err(None));
        for (answers, wanted) in [
            ([own, own, other], Confirmation::Fleet),
            ([own, same, other], Confirmation::Fleet),
            ([own, none, silent], Confirmation::Fleet),
            ([same, none, none], Confirmation::Fleet),
            ([own, silent, silent], Confirmation::None),
            ([own, none, other], Confirmation::None),
            ([none, none, silent], Confirmation::None),
            ([none, none, other], Confirmation::None),
            ([none, none, none], Confirmation::ColdStart),
        ] {
            assert_eq!(confirmation(&answers), wanted, "{answers:?}");
        }
    }

    #[test]
    fn a_server_that_is_named_twice_confirms_rules_once() {
        let mut samples = ClockSamples::<3>::new();
        let now = Instant::from_micros(0);
        for node in [0, 1] {
            samples.take(node, &Ok(Reply::Held(Some(reading(0, 0)))), now, now);
        }
        let mut voters = NodeSet::first(3);
        let mut twin = NodeSet::EMPTY;
        twin.insert(1);
        assert_eq!(samples.confirmation(voters, 2), Confirmation::Fleet);
        voters = voters.without(twin);
        assert_eq!(samples.confirmation(voters, 2), Confirmation::None);
        // Nor does it prevent the first records of a new fleet.
        let mut samples = ClockSamples::<3>::new();
        samples.take(0, &UNGUARDED(false), now, now);
        assert_eq!(samples.confirmation(voters, 2), Confirmation::None);
        samples.take(2, &UNGUARDED(false), now, now);
        assert_eq!(samples.confirmation(voters, 2), Confirmation::ColdStart);
    }

    #[test]
    fn only_nodes_that_refuse_because_of_the_fence_are_counted_as_misfits() {
        let mut samples = ClockSamples::<5>::new();
        let now = Instant::from_micros(0);
        for (answer, misfits) in [
            (Err(Some(Denial::Stale(reading(0, 7)))), 1),
            (Err(Some(Denial::TooOld(reading(0, 9)))), 2),
            (Err(Some(Denial::TooNew(reading(0, 8)))), 3),
            (Ok(Reply::Held(Some(reading(0, 5)))), 3),
            (Err(Some(Denial::FencingMismatch(reading(0, 9)))), 3),
            (UNGUARDED(true), 3),
            (Err(None), 3),
            (Ok(Reply::NotMine), 3),
        ] {
            samples.take(0, &answer, now, now);
            assert_eq!(samples.misfits(), misfits, "{answer:?}");
        }
        assert_eq!(samples.highest(), Fence::from_u64(9));
    }

    #[test]
    fn a_key_is_free_when_a_quorum_no_longer_holds_it() {
        let mut samples = ClockSamples::<5>::new();
        let now = Instant::from_micros(0);
        for held_ms in [70, 0, 30] {
            let held = Reading {
                held_ms,
                ..reading(0, 1)
            };
            samples.take(0, &Ok(Reply::Held(Some(held))), now, now);
        }
        assert_eq!(samples.free_in_ms(2), Some(32));
        assert_eq!(samples.free_in_ms(3), Some(72));
        assert_eq!(
            samples.free_in_ms(4),
            None,
            "the others may keep it forever"
        );
    }
}
