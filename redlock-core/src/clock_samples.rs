//! What the answers to one round tell of the nodes' clocks, fences and rules.

use crate::denial::Denial;
use crate::fence::Fence;
use crate::reply::Reply;
use crate::round::NodeSet;
use crate::time::Instant;

/// Collected while the votes come in, for the fence of the next proposal.
#[derive(Debug)]
pub(crate) struct ClockSamples<const MAX: usize> {
    /// By how much the clock of each node is ahead of ours, in microseconds; in no order.
    offsets: [i64; MAX],
    /// For how long each node that answered will not grant the key, in milliseconds; in no order.
    held_ms: [u32; MAX],
    count: usize,
    highest: Fence,
    misfits: u32,
    unguarded: NodeSet,
    rules: RulesHeard,
}

/// Which nodes follow which rules.
#[derive(Debug, Clone, Copy)]
struct RulesHeard {
    /// Those of the client.
    own: NodeSet,
    /// None: there is no guard record.
    none: NodeSet,
    /// Others.
    other: NodeSet,
}

/// What a round says of the client's rules. A client that may be wrong about them writes no guard record: it would
/// capture the nodes that have lost theirs one by one, each with a quarantine that suits no other client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// Nothing.
    None,
    /// All nodes have answered, and none has a record: they are new, or all have lost it. Good for the next round.
    ColdStart,
    /// They are those of the fleet: a quorum follows them, or some do, none has others, and a quorum has answered.
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

    /// Takes note of the answer of `node` to what was sent at `sent_at` and came at `now`. Returns whether it tells
    /// anything.
    // Apart from the loop that takes the votes, which would be longer with it.
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
        let places = self.offsets.get_mut(self.count);
        if let Some((offset, held)) = places.zip(self.held_ms.get_mut(self.count)) {
            *offset = reading.time().wrapping_sub(ours).cast_signed();
            *held = match answer {
                // Who has no vote grants nothing, whatever it says of the key.
                Err(Some(Denial::Quarantined { left_ms, .. })) => reading.held_ms().max(*left_ms),
                Err(Some(Denial::Unguarded { .. } | Denial::FencingMismatch(_))) => u32::MAX,
                _ => reading.held_ms(),
            };
            self.count += 1;
        }
        true
    }

    /// When `quorum` nodes will grant the key, in milliseconds, if its holder does nothing until then; none
    /// when fewer have answered.
    pub(crate) fn free_in_ms(&mut self, quorum: u32) -> Option<u32> {
        let held_ms = self.held_ms.get_mut(..self.count)?;
        held_ms.sort_unstable();
        let left_ms = *held_ms.get((quorum as usize).checked_sub(1)?)?;
        // A key without a TTL too.
        if left_ms == u32::MAX {
            return None;
        }
        // Redis drops the rest of a millisecond, and deletes what is older than its TTL by one.
        Some(left_ms.saturating_add(2))
    }

    /// The highest fence that any of the nodes has seen.
    pub(crate) const fn highest(&self) -> Fence {
        self.highest
    }

    /// How many nodes refused for the fence that was proposed, and for nothing else.
    pub(crate) const fn misfits(&self) -> u32 {
        self.misfits
    }

    /// The nodes whose guard record is known to be there.
    pub(crate) const fn guarded(&self) -> NodeSet {
        self.rules.own.without(self.unguarded)
    }

    /// The nodes that have lost their guard record.
    pub(crate) const fn unguarded(&self) -> NodeSet {
        self.unguarded
    }

    /// By how much the nodes' clocks are ahead of ours: the median of at least `enough` answers. None if there are
    /// fewer: of a few answers, most may come from clocks that are wrong.
    pub(crate) fn offset(&mut self, enough: u32) -> Option<i64> {
        let offsets = self.offsets.get_mut(..self.count)?;
        if self.count < enough as usize {
            return None;
        }
        offsets.sort_unstable();
        offsets.get(self.count.checked_sub(1)? / 2).copied()
    }

    /// Whether the clocks of a quorum differ from ours by `offset`, give or take `window_ms`.
    pub(crate) fn is_confirmed(&self, offset: i64, window_ms: u32, quorum: u32) -> bool {
        let window = u64::from(window_ms) * 1_000;
        let offsets = self.offsets.iter().take(self.count);
        let agreeing = offsets.filter(|other| other.abs_diff(offset) <= window);
        agreeing.count() >= quorum as usize
    }

    /// What the answers of `voters`, which are all nodes but those that are the same server as another, say of the
    /// client's rules.
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
        let mut readings = ClockSamples::<5>::new();
        assert_eq!(readings.offset(0), None);
        // Sent at 100, answered at 300: read at 200 or so.
        let (sent_at, now) = (Instant::from_micros(100), Instant::from_micros(300));
        for time in [9_000_000, 1_200, 0, 1_210, 1_190] {
            let granted = Ok(Reply::Acquired(Some(reading(time, 1))));
            readings.take(0, &granted, sent_at, now);
        }
        assert_eq!(readings.offset(5), Some(1_000));
        assert_eq!(readings.offset(6), None, "too few have answered");
    }

    const UNGUARDED: fn(bool) -> Result<Reply, Option<Denial>> = |has_record| {
        let reading = reading(0, 0);
        Err(Some(Denial::Unguarded {
            has_record,
            reading,
        }))
    };

    fn confirmation(answers: &[Result<Reply, Option<Denial>>]) -> Confirmation {
        let mut readings = ClockSamples::<3>::new();
        let now = Instant::from_micros(0);
        for (node, answer) in answers.iter().enumerate() {
            readings.take(node, answer, now, now);
        }
        readings.confirmation(NodeSet::first(3), 2)
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
        let mut readings = ClockSamples::<3>::new();
        let now = Instant::from_micros(0);
        for node in [0, 1] {
            readings.take(node, &Ok(Reply::Held(Some(reading(0, 0)))), now, now);
        }
        let mut voters = NodeSet::first(3);
        let mut twin = NodeSet::EMPTY;
        twin.insert(1);
        assert_eq!(readings.confirmation(voters, 2), Confirmation::Fleet);
        voters = voters.without(twin);
        assert_eq!(readings.confirmation(voters, 2), Confirmation::None);
        // Nor does it keep a new fleet from its first records.
        let mut readings = ClockSamples::<3>::new();
        readings.take(0, &UNGUARDED(false), now, now);
        assert_eq!(readings.confirmation(voters, 2), Confirmation::None);
        readings.take(2, &UNGUARDED(false), now, now);
        assert_eq!(readings.confirmation(voters, 2), Confirmation::ColdStart);
    }

    #[test]
    fn nodes_that_refuse_for_the_fence_alone_are_counted_and_no_others() {
        let mut readings = ClockSamples::<5>::new();
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
            readings.take(0, &answer, now, now);
            assert_eq!(readings.misfits(), misfits, "{answer:?}");
        }
        assert_eq!(readings.highest(), Fence::from_u64(9));
    }

    #[test]
    fn a_key_comes_free_when_a_quorum_has_let_it_go() {
        let mut readings = ClockSamples::<5>::new();
        let now = Instant::from_micros(0);
        for held_ms in [70, 0, 30] {
            let held = Reading {
                held_ms,
                ..reading(0, 1)
            };
            readings.take(0, &Ok(Reply::Held(Some(held))), now, now);
        }
        assert_eq!(readings.free_in_ms(2), Some(32));
        assert_eq!(readings.free_in_ms(3), Some(72));
        assert_eq!(
            readings.free_in_ms(4),
            None,
            "the others may keep it for ever"
        );
    }
}
