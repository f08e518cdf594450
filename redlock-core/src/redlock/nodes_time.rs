//! The nodes' time, as the client knows it from the answers of the nodes.

use crate::entropy::Entropy;
use crate::observer::Observer;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::round::Verdict;
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// The nodes' time in microseconds. Zero if it is unknown: the nodes deny it as too old, and tell their time.
    pub(super) fn nodes_time(&self) -> u64 {
        let offset = self.clock_offset.unwrap_or(i64::MIN);
        self.clock.now().as_micros().saturating_add_signed(offset)
    }

    /// Learns the nodes' time from the answers of a round: the median of their clocks. Learns nothing if fewer nodes have
    /// told their time than [`Round::blocking_count`](crate::round::Round::blocking_count).
    ///
    /// The new time replaces the known one only in these cases:
    ///
    /// - No time is known yet.
    /// - The round was lost, and a node denied its vote because of the fence or because of its guard record: the known time may be
    ///   the reason.
    /// - The round was won, or the clocks of a quorum agree with the new time, within the window; and the round was short enough to
    ///   tell the time more exactly than within the window. A client that stood still between a command and its answer does not
    ///   know when the node read its clock.
    ///
    /// In all other cases, the round was lost for another reason, such as a held lock. The nodes that answer such a round
    /// first may have wrong clocks.
    pub(super) fn learn_time(
        &mut self,
        ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>,
        started_at: Instant,
    ) {
        let (needed, quorum) = (ballot.round.blocking_count(), self.quorum());
        let samples = &ballot.samples;
        let Some(offset) = samples.offset(needed) else {
            return;
        };
        let is_won = ballot.verdict == Verdict::Won;
        let may_be_wrong = samples.misfits() > 0 || samples.unguarded().len() > 0;
        let window = self
            .options
            .fencing()
            .map_or(0, |fencing| fencing.window_ms);
        // An offset is wrong by half of the round at most.
        let took = self.clock.now().saturating_duration_since(started_at);
        let is_exact = took.as_micros() <= 2_000 * u128::from(window);
        if self.clock_offset.is_none()
            || !is_won && may_be_wrong
            || is_exact && (is_won || samples.is_offset_confirmed(offset, window, quorum))
        {
            self.clock_offset = Some(offset);
        }
    }

    /// Whether a lost round may be won if it is repeated with the time and the fences that it has told: some nodes denied
    /// only the fence or the time, and with those that granted or have not answered yet, they are a quorum.
    pub(super) fn is_worth_repeating(&self, ballot: &Ballot<'_, NodeErrorOf<T>, MAX>) -> bool {
        ballot.verdict != Verdict::Won && self.is_possible_with_misfits(ballot)
    }

    /// Whether a quorum may have granted, or denied only the fence or the time, and some nodes did the latter.
    pub(super) fn is_possible_with_misfits(
        &self,
        ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
    ) -> bool {
        let misfits = ballot.samples.misfits() as usize;
        let tally = ballot.report.tally();
        // `unknown` counts failed nodes too. With an even number of nodes, half of them can end a round before the other
        // half has answered.
        let unanswered = tally
            .unknown
            .saturating_sub(ballot.report.failures().count());
        let possible = misfits + tally.granted + unanswered;
        misfits > 0 && possible >= self.quorum() as usize
    }
}
