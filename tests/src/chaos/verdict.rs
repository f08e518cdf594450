//! Whether the promises were kept. It knows the record and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use core::time::Duration;
use redlock_core::Instant;

use crate::exclusion::{Holding, overlaps};

use super::fault::Kind;
use super::history::{History, Lease, Used};
use super::record::{Left, Record};
use super::said::Mark;

#[derive(Debug)]
pub(super) struct Verdict {
    /// Two held the lock at once.
    pub(super) overlaps: Vec<[Holding; 2]>,
    /// Uses of the resource, both in the time of their lease, that found the same: one of them is lost.
    pub(super) lost_counts: Vec<[Mark; 2]>,
    /// Leases of which the nodes knew nothing before they were over.
    pub(super) lost_leases: Vec<Lease>,
    /// Clients that never held the lock, or never after the last fault.
    stuck: Vec<String>,
    /// What could have been done and was not.
    missing: Vec<Kind>,
    /// Nobody was ever refused, so nobody was excluded.
    is_unchallenged: bool,
    left: Left,
    clock_step: Duration,
    began: Instant,
    clients: BTreeMap<usize, String>,
}

impl Verdict {
    pub(super) fn on(record: &Record) -> Self {
        let history = History::of(record);
        let missing = record.kinds.iter().filter(|kind| {
            let mut injected = record.faults.iter().map(|fault| fault.kind);
            !injected.any(|injected| injected == **kind)
        });
        let clients = record.voices.iter().map(|client| {
            let name = record.clients.get(*client);
            name.cloned().unwrap_or_default()
        });
        Self {
            overlaps: overlaps(&history.holdings()),
            lost_counts: lost_counts(&history.uses),
            lost_leases: lost_early(&history.leases),
            stuck: stuck(record, &history),
            missing: missing.copied().collect(),
            is_unchallenged: history.refusals.is_empty(),
            left: record.left,
            clock_step: record.clock_step,
            began: record
                .time
                .map_or(Instant::from_micros(0), |[began, _]| began),
            clients: clients.enumerate().collect(),
        }
    }

    /// Two held the lock at once, or it was seen by what they did to the resource.
    pub(super) fn is_exclusion_broken(&self) -> bool {
        !self.overlaps.is_empty() || !self.lost_counts.is_empty()
    }

    /// Nothing is to be said against this run.
    pub(super) fn is_good(&self) -> bool {
        self.complaints().is_empty()
    }

    fn complaints(&self) -> Vec<String> {
        const ENOUGH: usize = 5;

        let mut complaints = Vec::new();
        for [first, second] in self.overlaps.iter().take(ENOUGH) {
            complaints.push(format!(
                "{} acquired at {} while {} held until {}",
                self.name(second.holder),
                self.time(second.from),
                self.name(first.holder),
                self.time(first.until),
            ));
        }
        for [first, second] in self.lost_counts.iter().take(ENOUGH) {
            complaints.push(format!(
                "{} and {} both added to what they found: one count is lost",
                self.name(first.voice),
                self.name(second.voice),
            ));
        }
        for lease in self.lost_leases.iter().take(ENOUGH) {
            complaints.push(format!(
                "a lease of {} was valid until {}, and gone from the nodes at {}",
                self.name(lease.voice),
                self.time(lease.valid_until),
                self.time(lease.lost.unwrap_or(lease.acquired)),
            ));
        }
        if !complaints.is_empty() && self.clock_step > Duration::from_millis(2) {
            complaints.push(format!(
                "the wall clock of this machine, by which nodes expire keys, was moved by {:?}: \
                 the lock does not promise to survive that",
                self.clock_step
            ));
        }
        let stuck = self.stuck.iter().cloned();
        complaints.extend(stuck);
        let missing = self.missing.iter();
        complaints.extend(missing.map(|kind| format!("never done: {}", kind.name())));
        if self.is_unchallenged {
            complaints.push("nobody was ever refused, so this shows nothing".into());
        }
        if self.left.keys > 0 {
            complaints.push(format!(
                "{} keys were left on the nodes by leases that had been given back",
                self.left.keys
            ));
        }
        if self.left.connections > 0 {
            complaints.push(format!(
                "{} connections were left on the nodes by clients that had ended",
                self.left.connections
            ));
        }
        complaints
    }

    fn name(&self, voice: usize) -> &str {
        self.clients.get(&voice).map_or("?", String::as_str)
    }

    fn time(&self, at: Instant) -> String {
        let since = at.saturating_duration_since(self.began);
        format!("{}.{:06} s", since.as_secs(), since.subsec_micros())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for complaint in self.complaints() {
            writeln!(f, "FAILED: {complaint}")?;
        }
        Ok(())
    }
}

/// What a use leaves is there once and never again. So two uses that found the same were both between their
/// first and their second half at one moment: no clock is needed to see it. Who used the resource after the
/// end of his lease, since he was paused in the middle, does not count: the lock does not promise to stop him.
fn lost_counts(uses: &[Used]) -> Vec<[Mark; 2]> {
    let mut finders = BTreeMap::new();
    let mut lost = Vec::new();
    for use_ in uses.iter().filter(|use_| use_.is_in_time) {
        let Some(found) = use_.used.found else {
            continue;
        };
        if let Some(first) = finders.insert(found, use_.used.left) {
            lost.push([first, use_.used.left]);
        }
    }
    lost
}

/// A lease stands on a majority, so a majority without it shares a node with that one: this node has
/// forgotten.
fn lost_early(leases: &[Lease]) -> Vec<Lease> {
    let mut early = leases.to_vec();
    early.retain(|lease| lease.lost.is_some_and(|lost| lost < lease.valid_until));
    early
}

fn stuck(record: &Record, history: &History) -> Vec<String> {
    let holders = |since: Instant| -> BTreeSet<usize> {
        let leases = history.leases.iter();
        leases
            .filter(|lease| lease.acquired > since)
            .map(|lease| lease.client)
            .collect()
    };
    let ever = holders(Instant::from_micros(0));
    let lately = holders(record.calm_from.unwrap_or(Instant::from_micros(0)));
    let clients = record.clients.iter().enumerate();
    clients
        .filter_map(|(client, name)| {
            if !ever.contains(&client) {
                Some(format!("{name} never held the lock"))
            } else if !lately.contains(&client) {
                Some(format!("{name} never held the lock after the last fault"))
            } else {
                None
            }
        })
        .collect()
}
