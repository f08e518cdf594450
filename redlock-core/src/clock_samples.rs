//! What the answers of one round tell about the nodes' clocks, fences and rules. Rules are the `window`, `max_ttl` and
//! `step_back` of a fleet.

use crate::denial::Denial;
use crate::fence::{Fence, Fenced};
use crate::reply::Reply;
use crate::round::NodeSet;
use crate::time::Instant;

/// Samples of the nodes' clocks, fences and rules, collected during a round for the next proposal.
#[derive(Debug)]
pub(crate) struct ClockSamples<const MAX: usize> {
    /// By node. Without the feature `fence`, there is no sample, and this takes no space.
    samples: [Option<Fenced<Sample>>; MAX],
    /// How many nodes denied their vote only because of the proposed fence.
    misfits: u32,
    /// The nodes that lack a guard record of their process and data.
    unguarded: NodeSet,
    rules: RecordedRules,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// How far the node's clock is ahead of the client's, in microseconds.
    offset: i64,
    /// The highest fence that the node has accepted.
    fence: Fence,
    /// For how long the node will not grant the key to this client, in milliseconds. `None` if this is unknown.
    held_ms: Option<u32>,
}

/// Which nodes have which rules in their guard records.
#[derive(Debug, Clone, Copy)]
struct RecordedRules {
    /// Nodes with the client's rules.
    own: NodeSet,
    /// Nodes without a guard record.
    none: NodeSet,
    /// Nodes with other rules.
    other: NodeSet,
}

/// What a round tells about the client's rules.
///
/// A client whose rules may be wrong must not write guard records. If it did, it could take over the nodes that have lost
/// their records, one after the other, each with a quarantine that is too short for the leases of other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confirmation {
    /// The round tells nothing.
    None,
    /// All nodes have answered, and none has a record: the nodes are new, or all have lost their records. The client may
    /// write records in the next round of the same attempt.
    ColdStart,
    /// The client's rules are those of the fleet, in either of two cases:
    ///
    /// - A quorum has them, in records of their process and data. A record of an earlier process may be older than the rules of
    ///   the fleet.
    /// - At least one node has them, no node has others, and a quorum has answered. All nodes had the time of a round to answer.
    Fleet,
}

impl<const MAX: usize> ClockSamples<MAX> {
    pub(crate) const fn new() -> Self {
        Self {
            samples: [None; MAX],
            misfits: 0,
            unguarded: NodeSet::EMPTY,
            rules: RecordedRules {
                own: NodeSet::EMPTY,
                none: NodeSet::EMPTY,
                other: NodeSet::EMPTY,
            },
        }
    }

    /// Records the answer of `node` to a command that was sent at `sent_at` and answered at `now`. Returns whether the answer
    /// was a sample: whether it has a reading.
    // `inline(never)`: keeps the loop that collects the votes short.
    #[inline(never)]
    pub(crate) fn record(
        &mut self,
        node: usize,
        answer: &Result<Reply, Option<Denial>>,
        sent_at: Instant,
        now: Instant,
    ) -> bool {
        let reading = match answer {
            Ok(
                Reply::Acquired(reading)
                | Reply::Held(reading)
                | Reply::Waiting(_, reading)
                | Reply::Extended(reading),
            ) => *reading,
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
        // The node read its clock at some time between `sent_at` and `now`.
        let ours = sent_at.as_micros().midpoint(now.as_micros());
        // A node without a vote does not say how long it keeps the key.
        let is_silent = matches!(
            answer,
            Err(Some(
                Denial::Quarantined { .. } | Denial::Unguarded { .. } | Denial::FencingMismatch(_)
            ))
        );
        if let Some(sample) = self.samples.get_mut(node) {
            *sample = Some(reading.with(Sample {
                offset: reading.time().wrapping_sub(ours).cast_signed(),
                fence: reading.fence(),
                held_ms: (!is_silent).then(|| reading.held_ms()),
            }));
        }
        true
    }

    /// The time until `quorum` nodes will grant the key, in milliseconds, if its holder neither extends nor releases it. `None`
    /// if fewer nodes have answered, or if the time is unknown. A process with several names counts once: `duplicates` are its
    /// other names.
    pub(crate) fn free_in_ms(&self, duplicates: NodeSet, quorum: u32) -> Option<u32> {
        let mut held_ms = [u32::MAX; MAX];
        for (node, (held_ms, sample)) in held_ms.iter_mut().zip(&self.samples).enumerate() {
            if let Some(known_ms) = sample.and_then(|sample| sample.get().held_ms)
                && !duplicates.contains(node)
            {
                *held_ms = known_ms;
            }
        }
        held_ms.sort_unstable();
        let left_ms = *held_ms.get((quorum as usize).checked_sub(1)?)?;
        // Fewer nodes have answered, or a node has no vote, and it is unknown for how long. Or the key has no TTL.
        if left_ms == u32::MAX {
            return None;
        }
        // Redis truncates to milliseconds, and deletes a key one millisecond after its TTL.
        Some(left_ms.saturating_add(2))
    }

    /// The highest fence that a node has reported, of those up to `newest`, and whether a node has reported a higher one.
    pub(crate) fn highest(&self, newest: Fence) -> (Fence, bool) {
        let mut highest = Fence::ZERO;
        let mut is_exceeded = false;
        for Sample { fence, .. } in self.samples() {
            if *fence <= newest {
                highest = highest.max(*fence);
            } else {
                is_exceeded = true;
            }
        }
        (highest, is_exceeded)
    }

    /// How many nodes denied their vote only because of the proposed fence.
    pub(crate) const fn misfits(&self) -> u32 {
        self.misfits
    }

    /// The nodes that are known to have a guard record of their process and data, with the client's rules.
    pub(crate) const fn guarded(&self) -> NodeSet {
        self.rules.own.without(self.unguarded)
    }

    /// The nodes that have no guard record, or only one of another process or other data.
    pub(crate) const fn unguarded(&self) -> NodeSet {
        self.unguarded
    }

    /// How far the nodes' clocks are ahead of the client's, in microseconds: the median of all samples. `None` if there are
    /// fewer than `needed`, because most of so few samples may come from wrong clocks.
    pub(crate) fn offset(&self, needed: u32) -> Option<i64> {
        let mut offsets = [0; MAX];
        let mut count = 0;
        for (offset, sample) in offsets.iter_mut().zip(self.samples()) {
            *offset = sample.offset;
            count += 1;
        }
        if count < needed as usize {
            return None;
        }
        let offsets = offsets.get_mut(..count)?;
        offsets.sort_unstable();
        offsets.get(count.checked_sub(1)? / 2).copied()
    }

    /// Whether the clocks of a quorum are ahead of the client's by `offset`, plus or minus `window_ms`.
    pub(crate) fn is_offset_confirmed(&self, offset: i64, window_ms: u32, quorum: u32) -> bool {
        let window = u64::from(window_ms) * 1_000;
        let agreeing = self
            .samples()
            .filter(|sample| sample.offset.abs_diff(offset) <= window);
        agreeing.count() >= quorum as usize
    }

    fn samples(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().flatten().map(Fenced::get)
    }

    /// What the answers of `all` nodes tell about the client's rules. Of a process, one name counts: `duplicates` are its other
    /// names. But other rules count under every name, because a hostile node may claim the process of an honest one.
    ///
    /// `is_complete`: all nodes have answered, or had the time of a round for it.
    pub(crate) fn confirmation(
        &self,
        all: NodeSet,
        duplicates: NodeSet,
        quorum: u32,
        is_complete: bool,
    ) -> Confirmation {
        let RecordedRules { own, none, other } = self.rules;
        let is_new = none == all;
        let is_undisputed = is_complete && other == NodeSet::EMPTY;
        let [guarded, own, none] =
            [self.guarded(), own, none].map(|nodes| nodes.without(duplicates).len());
        if guarded >= quorum || is_undisputed && own > 0 && own + none >= quorum {
            Confirmation::Fleet
        } else if is_new && none >= quorum {
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
        // Sent at 100 and answered at 300, so the node's clock was read at about 200.
        let (sent_at, now) = (Instant::from_micros(100), Instant::from_micros(300));
        for (node, time) in [9_000_000, 1_200, 0, 1_210, 1_190].into_iter().enumerate() {
            let granted = Ok(Reply::Acquired(Some(reading(time, 1))));
            samples.record(node, &granted, sent_at, now);
        }
        assert_eq!(samples.offset(5), Some(1_000));
        assert_eq!(samples.offset(6), None, "too few have answered");
    }

    #[test]
    fn a_node_in_quarantine_does_not_tell_how_long_it_keeps_the_key() {
        let free_in_ms = |quarantined: usize| {
            let mut readings = ClockSamples::<3>::new();
            let now = Instant::from_micros(0);
            for node in 0..3 {
                let reading = reading(0, 0);
                let left_ms = 500;
                let answer = if node < quarantined {
                    Err(Some(Denial::Quarantined { left_ms, reading }))
                } else {
                    Ok(Reply::Held(Some(reading)))
                };
                readings.record(node, &answer, now, now);
            }
            readings.free_in_ms(NodeSet::EMPTY, 2)
        };
        // The others keep the key for 0 ms.
        assert_eq!([0, 1, 2].map(free_in_ms), [Some(2), Some(2), None]);
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
            samples.record(node, answer, now, now);
        }
        samples.confirmation(NodeSet::first(3), NodeSet::EMPTY, 2, true)
    }

    #[test]
    fn rules_are_confirmed_by_a_quorum_that_has_them_or_by_a_quorum_of_which_none_has_others() {
        let own = Ok(Reply::Held(Some(reading(0, 0))));
        let other = Err(Some(Denial::FencingMismatch(reading(0, 0))));
        let (same, none, silent) = (UNGUARDED(true), UNGUARDED(false), Err(None));
        for (answers, wanted) in [
            ([own, own, other], Confirmation::Fleet),
            ([own, same, other], Confirmation::None),
            ([same, same, silent], Confirmation::Fleet),
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
            samples.record(node, &Ok(Reply::Held(Some(reading(0, 0)))), now, now);
        }
        let all = NodeSet::first(3);
        let twin = NodeSet::of(1);
        assert_eq!(
            samples.confirmation(all, NodeSet::EMPTY, 2, true),
            Confirmation::Fleet
        );
        assert_eq!(samples.confirmation(all, twin, 2, true), Confirmation::None);
        // A server that is named twice does not prevent the first records of a new fleet.
        let mut samples = ClockSamples::<3>::new();
        samples.record(0, &UNGUARDED(false), now, now);
        samples.record(2, &UNGUARDED(false), now, now);
        assert_eq!(samples.confirmation(all, twin, 2, true), Confirmation::None);
        samples.record(1, &UNGUARDED(false), now, now);
        assert_eq!(
            samples.confirmation(all, twin, 2, true),
            Confirmation::ColdStart
        );
    }

    #[test]
    fn a_hostile_node_that_claims_to_be_a_node_with_other_rules_does_not_hide_them() {
        let mut samples = ClockSamples::<3>::new();
        let now = Instant::from_micros(0);
        samples.record(0, &Ok(Reply::Held(Some(reading(0, 0)))), now, now);
        let other = Err(Some(Denial::FencingMismatch(reading(0, 0))));
        samples.record(1, &other, now, now);
        samples.record(2, &UNGUARDED(false), now, now);
        let claimed = NodeSet::of(1);
        let confirmation = samples.confirmation(NodeSet::first(3), claimed, 2, true);
        assert_eq!(confirmation, Confirmation::None);
    }

    #[test]
    fn only_nodes_that_deny_because_of_the_fence_are_counted_as_misfits() {
        let mut samples = ClockSamples::<5>::new();
        let now = Instant::from_micros(0);
        let answers = [
            (Err(Some(Denial::Stale(reading(0, 7)))), 1),
            (Err(Some(Denial::TooOld(reading(0, 9)))), 2),
            (Err(Some(Denial::TooNew(reading(0, 8)))), 3),
            (Ok(Reply::Held(Some(reading(0, 5)))), 3),
            (Err(Some(Denial::FencingMismatch(reading(0, 9)))), 3),
            (UNGUARDED(true), 3),
            (Err(None), 3),
            (Ok(Reply::NotMine), 3),
        ];
        for (node, (answer, misfits)) in answers.into_iter().enumerate() {
            samples.record(node, &answer, now, now);
            assert_eq!(samples.misfits(), misfits, "{answer:?}");
        }
        let highest = |newest| {
            let (highest, is_exceeded) = samples.highest(Fence::from_u64(newest));
            (highest.as_u64(), is_exceeded)
        };
        assert_eq!([8, 9, 10].map(highest), [(8, true), (9, false), (9, false)]);
    }

    #[test]
    fn a_key_is_free_when_a_quorum_no_longer_holds_it() {
        let mut samples = ClockSamples::<5>::new();
        let now = Instant::from_micros(0);
        for (node, held_ms) in [70, 0, 30].into_iter().enumerate() {
            let held = Reading {
                held_ms,
                ..reading(0, 1)
            };
            samples.record(node, &Ok(Reply::Held(Some(held))), now, now);
        }
        let free_in_ms = |quorum| samples.free_in_ms(NodeSet::EMPTY, quorum);
        // The nodes that have not answered may hold it forever.
        assert_eq!([2, 3, 4].map(free_in_ms), [Some(32), Some(72), None]);
    }

    #[test]
    fn a_server_with_two_names_is_one_node_on_which_the_key_is_free() {
        let mut samples = ClockSamples::<3>::new();
        let now = Instant::from_micros(0);
        for (node, held_ms) in [0, 0, 30].into_iter().enumerate() {
            let held = Reading {
                held_ms,
                ..reading(0, 1)
            };
            samples.record(node, &Ok(Reply::Held(Some(held))), now, now);
        }
        assert_eq!(samples.free_in_ms(NodeSet::of(1), 2), Some(32));
    }
}
