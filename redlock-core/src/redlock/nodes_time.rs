//! The nodes' time, as the client knows it.

use crate::entropy::Entropy;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::round::Verdict;
use crate::time::Clock;
use crate::transport::{NodeErrorOf, Transport};

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    /// The nodes' time in microseconds. Zero if it is unknown: the nodes refuse this, and tell their time.
    pub(super) fn nodes_time(&self) -> u64 {
        let offset = self.clock_offset.unwrap_or(i64::MIN);
        self.clock.now().as_micros().saturating_add_signed(offset)
    }

    /// Learns the nodes' time, if enough nodes have answered to decide a round. If the round was lost for another reason
    /// than the time, only the answers of a quorum replace what is known: nodes that answer first and grant nothing may
    /// have wrong clocks too.
    pub(super) fn learn(&mut self, ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>) {
        let (enough, quorum) = (ballot.round.enough(), self.quorum());
        let readings = &mut ballot.readings;
        let Some(offset) = readings.offset(enough) else {
            return;
        };
        let is_for_the_time = readings.misfits() > 0 || readings.unguarded().len() > 0;
        let window = self
            .options
            .fencing()
            .map_or(0, |fencing| fencing.window_ms);
        if ballot.verdict == Verdict::Won
            || is_for_the_time
            || self.clock_offset.is_none()
            || readings.is_confirmed(offset, window, quorum)
        {
            self.clock_offset = Some(offset);
        }
    }

    /// Whether a round was lost only because the client did not know the nodes' time and fences, which it has now learned.
    pub(super) fn may_fit(&self, ballot: &Ballot<'_, NodeErrorOf<T>, MAX>) -> bool {
        let misfits = ballot.readings.misfits() as usize;
        let tally = ballot.report.tally();
        // With an even number of nodes, half of them decide before a quorum has answered.
        let not_heard = tally
            .unknown
            .saturating_sub(ballot.report.failures().count());
        let open = misfits + tally.granted + not_heard;
        ballot.verdict != Verdict::Won && misfits > 0 && open >= self.quorum() as usize
    }
}
