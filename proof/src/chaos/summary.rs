//! What happened, as a table.

use std::fmt;
use std::time::Duration;

use super::fault::Kind;
use super::history::{History, Lease};
use super::record::Record;
use super::said::{Flaw, Refusal};
use super::verdict::Verdict;

#[derive(Debug)]
pub(super) struct Summary<'a> {
    record: &'a Record,
    history: History,
    verdict: &'a Verdict,
}

impl<'a> Summary<'a> {
    pub(super) fn of(record: &'a Record, verdict: &'a Verdict) -> Self {
        Self {
            record,
            history: History::of(record),
            verdict,
        }
    }

    fn faults(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<34} times  while the client held", "fault")?;
        for kind in &self.record.kinds {
            let faults = self.record.faults.iter();
            let faults = faults.filter(|fault| fault.kind == *kind);
            write!(f, "{:<34} {:>5}", kind.name(), faults.clone().count())?;
            // What a device holds is known too roughly for that.
            if Kind::TO_CLIENTS.contains(kind) {
                let of_holders = faults.filter(|fault| {
                    let client = fault.client;
                    client.is_some_and(|client| self.history.is_holder(client, fault.from))
                });
                write!(f, "  {:>5}", of_holders.count())?;
            }
            writeln!(f)?;
        }
        Ok(())
    }

    fn fences(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Who has lost an attempt waits for longer than this before the next one.
        const ONE_ATTEMPT: Duration = Duration::from_millis(5);

        let delays = self.history.delays.iter();
        let first = delays.filter(|delay| **delay < ONE_ATTEMPT).count();
        let late = &self.history.turned_away;
        let [ours, counted] = [self.verdict.disorder, self.verdict.counted];
        writeln!(
            f,
            "\nfences       {} leases with one, {first} won by the first attempt, in one round trip or two\n\
             resource     {} came too late with a lower fence and were turned away\n\
             order        fences: {} duplicates, {} out of order, of {}\n\
             \x20            INCR:   {} duplicates, {} out of order, of {}",
            self.history.fences.len(),
            late.len(),
            ours.duplicates,
            ours.out_of_order,
            self.history.fences.len(),
            counted.duplicates,
            counted.out_of_order,
            self.record.counted.len(),
        )
    }

    /// What nodes did and clients noticed of what was done to nodes.
    fn nodes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let denied = |why| self.history.denied(why);
        writeln!(
            f,
            "nodes        {} keys evicted, {} commands refused by a replica, {} clocks set back when all was lost\n\
             no vote      in tries that failed: {} restarted, {} in quarantine, {} without a guard record, {} replicas, \
             {} that may evict",
            self.record.evicted,
            self.record.read_only,
            self.record.set_back,
            denied(Flaw::Restarted),
            denied(Flaw::Quarantined),
            denied(Flaw::Unguarded),
            denied(Flaw::Replica),
            denied(Flaw::MayEvict),
        )?;
        for kind in self
            .record
            .kinds
            .iter()
            .filter(|kind| kind.is_of_operator())
        {
            let operations = self.record.operations.iter();
            let operations = operations.filter(|operation| operation.kind == *kind);
            let bad = operations.clone().filter(|one| one.code != Some(0)).count();
            let written: usize = operations.map(|one| one.written).sum();
            let name = kind.name();
            writeln!(
                f,
                "operator     {name}: {bad} ended with an error, {written} guard records written"
            )?;
        }
        Ok(())
    }

    fn clients(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<12} {:>8} {:>7} {:>9} {:>9} {:>8} {:>11} {:>12} {:>7} {:>6}",
            "client",
            "acquired",
            "held",
            "no quorum",
            "too late",
            "gave up",
            "holds p50",
            "longest hold",
            "waited",
            "killed",
        )?;
        for (number, name) in self.record.clients.iter().enumerate() {
            let leases = self.history.leases.iter();
            let leases: Vec<_> = leases.filter(|lease| lease.client == number).collect();
            let refused = |why: Refusal| {
                let refusals = self.history.refusals.iter();
                refusals
                    .filter(|refusal| **refusal == (number, why))
                    .count()
            };
            let mut holds: Vec<_> = leases.iter().map(|lease| held(lease)).collect();
            holds.sort_unstable();
            let median = holds.get(holds.len() / 2).copied().unwrap_or_default();
            let longest = holds.last().copied().unwrap_or_default();
            let waits = leases.iter().map(|lease| waited(lease));
            let deaths = self.record.faults.iter().filter(|fault| {
                let kind = fault.kind;
                fault.client == Some(number) && matches!(kind, Kind::KillClient | Kind::ResetDevice)
            });
            writeln!(
                f,
                "{name:<12} {:>8} {:>7} {:>9} {:>9} {:>8} {:>8} ms {:>9} ms {:>5} s {:>6}",
                leases.len(),
                refused(Refusal::Held),
                refused(Refusal::Unreachable),
                refused(Refusal::TooLate),
                refused(Refusal::GaveUp),
                median.as_millis(),
                longest.as_millis(),
                waits.max().unwrap_or_default().as_secs(),
                deaths.count(),
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.faults(f)?;
        writeln!(f)?;
        self.clients(f)?;
        let uses = &self.history.uses;
        let late = uses.iter().filter(|used| !used.is_in_time).count();
        let lapsed = self
            .history
            .leases
            .iter()
            .filter(|lease| lease.let_go.is_none_or(|let_go| let_go > lease.valid_until))
            .count();
        writeln!(
            f,
            "\nleases       {}, {lapsed} not given back in time: paused, killed, cut off or left to lapse\n\
             uses         {}, {late} not judged: past the end of the lease, or not known (device)\n\
             lost counts  {}\n\
             overlaps     {}\n\
             wall clock   moved by {:?} at most",
            self.history.leases.len(),
            uses.len(),
            self.verdict.lost_counts.len(),
            self.verdict.overlaps.len(),
            self.record.clock_step,
        )?;
        self.nodes(f)?;
        if self.record.lock.is_fenced() {
            self.fences(f)?;
        }
        Ok(())
    }
}

fn held(lease: &Lease) -> Duration {
    lease.until().saturating_duration_since(lease.acquired)
}

fn waited(lease: &Lease) -> Duration {
    lease.acquired.saturating_duration_since(lease.wanted)
}
