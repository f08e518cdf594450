//! Whether the promises were kept. It knows the record and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use redlock_core::Instant;

use crate::exclusion::{Holding, overlaps};

use super::fault::Kind;
use super::history::{History, Lease, TurnedAway, Used};
use super::lock::Lock;
use super::operator::Operation;
use super::order::Disorder;
use super::record::{Fault, Left, Record};
use super::said::{Flaw, Mark};

#[derive(Debug)]
pub(super) struct Verdict {
    /// Two held the lock at once.
    pub(super) overlaps: Vec<[Holding; 2]>,
    /// Uses of the resource, both in the time of their lease, that found the same: one of them is lost.
    pub(super) lost_counts: Vec<[Mark; 2]>,
    /// Leases of which the nodes knew nothing before they were over.
    pub(super) lost_leases: Vec<Lease>,
    /// Fences that are not unique or do not grow.
    pub(super) disorder: Disorder,
    /// The same of the highest counts of the nodes.
    pub(super) counted: Disorder,
    /// The clients with valid leases that the resource turned away.
    turned_away: Vec<TurnedAway>,
    /// What the operator's commands should not have done.
    misdone: Vec<String>,
    /// What the lock was to be tried with and was not.
    untried: Vec<&'static str>,
    /// Clients that never held the lock, or never after the last fault.
    stuck: Vec<String>,
    /// What could have been done and was not.
    missing: Vec<Kind>,
    /// No client was ever refused, so none was excluded.
    is_unchallenged: bool,
    /// Whatever was done to clients, it never met one that held the lock.
    are_holders_spared: bool,
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
        let counted = Disorder::of(&record.counted);
        let mut turned_away = history.turned_away.clone();
        turned_away.retain(|one| one.at < one.valid_until);
        Self {
            disorder: Disorder::of(&history.fences),
            counted,
            turned_away,
            misdone: misdone(&record.operations),
            untried: untried(record, &history, counted),
            overlaps: overlaps(&history.holdings()),
            lost_counts: lost_counts(&history.uses),
            lost_leases: match record.lock {
                Lock::Plain => lost_early(&history.leases, &record.faults),
                // Nodes that have forgotten say so: the lease is lost, and no other client has it.
                Lock::Fenced => Vec::new(),
            },
            stuck: stuck(record, &history),
            missing: missing.copied().collect(),
            is_unchallenged: history.refusals.is_empty(),
            are_holders_spared: are_holders_spared(record, &history),
            left: record.left.clone(),
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

    /// What is to be said against it, a line each.
    pub(super) fn complaints(&self) -> Vec<String> {
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
        for (what, times) in [
            ("two leases have one fence", self.disorder.duplicates),
            (
                "a fence is no higher than one that was reported before it was asked for",
                self.disorder.out_of_order,
            ),
        ] {
            if times > 0 {
                complaints.push(format!("{what}, {times} times"));
            }
        }
        for one in self.turned_away.iter().take(ENOUGH) {
            complaints.push(format!(
                "{} was turned away at {} by the resource, and its lease was valid until {}",
                self.name(one.voice),
                self.time(one.at),
                self.time(one.valid_until),
            ));
        }
        complaints.extend(self.misdone.iter().cloned());
        complaints.extend(self.untried.iter().map(|&what| what.to_owned()));
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
            complaints.push("no client was ever refused, so this shows nothing".into());
        }
        if self.are_holders_spared {
            complaints.push("nothing was ever done to a client that held the lock".into());
        }
        for key in &self.left.keys {
            complaints.push(format!(
                "a key was left on node {} by a lease that had been given back: it would live {}",
                key.node + 1,
                key.ttl
                    .map_or_else(|| "for ever".into(), |ttl| format!("for {ttl:?} more")),
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

/// Of so many repairs one comes before the clients.
const ENOUGH: usize = 10;

fn untried(record: &Record, history: &History, counted: Disorder) -> Vec<&'static str> {
    let mut untried = Vec::new();
    if record.lock.is_fenced() {
        if history.fences.is_empty() {
            untried.push("no lease has a fence");
        }
        if history.denied(Flaw::Quarantined) == 0 {
            untried.push("no client ever met a node in quarantine");
        }
        if counted.is_none() {
            untried.push("counting nodes did just as well as fences, so this shows nothing");
        }
    }
    if record.kinds.contains(&Kind::FailBack)
        && record.read_only + history.denied(Flaw::Replica) == 0
    {
        untried.push("no client ever met a replica");
    }
    if record.kinds.contains(&Kind::Evict) {
        if record.evicted == 0 {
            untried.push("no key was ever evicted");
        }
        if history.denied(Flaw::MayEvict) == 0 {
            untried.push("no client ever met a node that may evict keys");
        }
    }
    let is_repair = |operation: &&Operation| operation.kind == Kind::Repair;
    let repairs = record.operations.iter().filter(is_repair);
    if repairs.clone().count() >= ENOUGH && repairs.clone().all(|repair| repair.written == 0) {
        untried.push("redlock init --repair never wrote a guard record");
    }
    untried
}

/// Votes that the operator gives back at once, by nodes that may have forgotten something; and ends that no
/// command has.
fn misdone(operations: &[Operation]) -> Vec<String> {
    let wrong = operations.iter().filter(|operation| {
        let is_end = match operation.kind {
            // With 2, there is nothing to do, but a quarantine is not over.
            Kind::Init => matches!(operation.code, Some(0..=2)),
            _ => matches!(operation.code, Some(0 | 1)),
        };
        !is_end || operation.kind == Kind::Init && operation.written > 0
    });
    wrong.map(|operation| format!("{operation:?}")).collect()
}

/// A lease stands on a majority, so a majority without it shares a node with that one: this node has
/// forgotten. Those that were made to forget may say so.
fn lost_early(leases: &[Lease], faults: &[Fault]) -> Vec<Lease> {
    let is_excused = |lease: &Lease, lost: Instant| {
        let mut losses = faults.iter().filter(|fault| fault.kind.is_loss());
        losses.any(|fault| {
            let until = fault.until.unwrap_or(Instant::MAX);
            fault.from <= lost && lease.acquired <= until
        })
    };
    let mut early = leases.to_vec();
    early.retain(|lease| {
        lease
            .lost
            .is_some_and(|lost| lost < lease.valid_until && !is_excused(lease, lost))
    });
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

fn are_holders_spared(record: &Record, history: &History) -> bool {
    let mut kinds = record.kinds.iter();
    let is_possible = kinds.any(|kind| Kind::TO_CLIENTS.contains(kind));
    let mut faults = record.faults.iter();
    let has_met = faults.any(|fault| {
        let client = fault
            .client
            .filter(|_| Kind::TO_CLIENTS.contains(&fault.kind));
        client.is_some_and(|client| history.is_holder(client, fault.from))
    });
    is_possible && !has_met
}

#[cfg(test)]
mod tests {
    use super::super::order::Issued;
    use super::super::record::{Fault, LeftKey};
    use super::*;

    /// Two clients, each with a voice; what they said, the voice first; all is well but for that.
    fn record(said: &[&str]) -> Record {
        let said = said.iter().map(|line| {
            let (voice, words) = line.split_once(' ').unwrap();
            (voice.parse().unwrap(), words.parse().unwrap())
        });
        Record {
            time: Some([Instant::from_micros(0), Instant::from_micros(1_000)]),
            calm_from: Some(Instant::from_micros(0)),
            clients: vec!["one".into(), "other".into()],
            voices: vec![0, 1],
            said: said.collect(),
            ..Record::default()
        }
    }

    fn complaints(record: &Record) -> Vec<String> {
        Verdict::on(record).complaints()
    }

    const GOOD: [&str; 9] = [
        "0 wants 1",
        "1 wants 1",
        "0 acquired 2 20",
        "1 refused 3 held",
        "0 used 4 20 0.1 0.0",
        "0 lets-go 5 20",
        "1 acquired 5 25",
        "1 used 8 25 1.1 0.1",
        "1 lets-go 9 25",
    ];

    #[test]
    fn one_after_the_other_is_good() {
        assert_eq!(complaints(&record(&GOOD)), [""; 0]);
    }

    #[test]
    fn one_that_acquires_before_another_lets_go_is_seen() {
        let mut said = GOOD;
        said[5] = "0 lets-go 6 20";
        let verdict = Verdict::on(&record(&said));
        assert!(verdict.is_exclusion_broken());
        let words = "other acquired at 0.000005 s while one held until 0.000006 s";
        assert_eq!(verdict.complaints(), [words]);
    }

    #[test]
    fn one_that_is_killed_holds_until_its_lease_is_over() {
        let of = |acquired: &str| {
            let said = ["0 acquired 2 20", "1 refused 3 held", acquired];
            Verdict::on(&record(&said)).is_exclusion_broken()
        };
        assert!(of("1 acquired 19 40"));
        assert!(!of("1 acquired 20 40"));
    }

    #[test]
    fn an_extension_counts_and_time_after_the_lease_does_not() {
        let of = |acquired: &str| {
            let said = [
                "0 acquired 2 20",
                "0 extended 30",
                acquired,
                "0 lets-go 50 30",
            ];
            Verdict::on(&record(&said)).is_exclusion_broken()
        };
        assert!(of("1 acquired 29 40"));
        assert!(!of("1 acquired 30 40"));
    }

    #[test]
    fn two_that_found_the_same_are_seen_without_a_clock() {
        let mut said = GOOD;
        said[7] = "1 used 8 25 1.1 0.0";
        let verdict = Verdict::on(&record(&said));
        assert!(verdict.is_exclusion_broken());
        let words = "one and other both added to what they found: one count is lost";
        assert_eq!(verdict.complaints(), [words]);
    }

    #[test]
    fn one_that_was_paused_in_the_middle_of_a_use_is_not_judged_by_it() {
        let mut said = GOOD;
        said[4] = "0 used 21 20 0.1 0.0";
        said[7] = "1 used 8 25 1.1 0.0";
        assert_eq!(complaints(&record(&said)), [""; 0]);
    }

    #[test]
    fn a_lease_that_is_gone_too_early_is_seen() {
        let with = |lost| {
            let mut said = GOOD.to_vec();
            said.push(lost);
            complaints(&record(&said)).len()
        };
        assert_eq!(with("1 lost 24"), 1);
        assert_eq!(with("1 lost 25"), 0);
    }

    #[test]
    fn who_never_comes_to_his_turn_is_named() {
        let alone = complaints(&record(&GOOD[..6]));
        assert_eq!(alone, ["other never held the lock"]);
        let mut record = record(&GOOD);
        record.calm_from = Some(Instant::from_micros(3));
        let lately = complaints(&record);
        assert_eq!(lately, ["one never held the lock after the last fault"]);
    }

    #[test]
    fn a_run_that_shows_nothing_is_not_good() {
        let mut unchallenged = GOOD.to_vec();
        unchallenged.remove(3);
        assert_eq!(complaints(&record(&unchallenged)).len(), 1);

        let mut record = record(&GOOD);
        record.kinds = vec![Kind::KillClient];
        let none = [
            "never done: client killed",
            "nothing was ever done to a client that held the lock",
        ];
        assert_eq!(complaints(&record), none);
        let mut fault = Fault {
            kind: Kind::KillClient,
            nodes: Vec::new(),
            client: Some(1),
            from: Instant::from_micros(4),
            until: None,
        };
        record.faults = vec![fault.clone()];
        assert_eq!(complaints(&record), none[1..]);
        fault.client = Some(0);
        record.faults = vec![fault];
        assert_eq!(complaints(&record), [""; 0]);
    }

    /// Two that have fences, one after the other; and the counts of others, which are no fences.
    fn fenced(said: &[&str]) -> Record {
        let [asked, at] = [5, 6].map(Instant::from_micros);
        let issued = Issued {
            sent: asked,
            at,
            fence: 1,
        };
        Record {
            lock: Lock::Fenced,
            counted: vec![issued; 2],
            ..record(said)
        }
    }

    const FENCED: [&str; 10] = [
        "0 wants 1",
        "1 wants 1",
        "0 acquired 2 20",
        "0 fenced 1 1 70",
        "1 refused 3 held",
        "1 denied quarantined 2",
        "0 lets-go 5 20",
        "1 acquired 8 25",
        "1 fenced 6 6 90",
        "1 lets-go 9 25",
    ];

    #[test]
    fn fences_that_grow_are_good() {
        assert_eq!(complaints(&fenced(&FENCED)), [""; 0]);
        // Nodes may forget: a lease that is lost is no other client's.
        let mut lost = FENCED.to_vec();
        lost.push("1 lost 9");
        assert_eq!(complaints(&fenced(&lost)), [""; 0]);
    }

    #[test]
    fn a_fence_that_is_not_higher_or_not_the_only_one_is_seen() {
        let of = |fence| {
            let mut said = FENCED;
            said[8] = fence;
            complaints(&fenced(&said))
        };
        let late =
            "a fence is no higher than one that was reported before it was asked for, 1 times";
        assert_eq!(of("1 fenced 6 6 69"), [late]);
        assert_eq!(of("1 fenced 1 1 69"), [""; 0], "both at once");
        assert_eq!(
            of("1 fenced 1 1 70"),
            ["two leases have one fence, 1 times"]
        );
    }

    #[test]
    fn who_is_turned_away_while_his_lease_is_valid_is_seen() {
        let of = |words| {
            let mut said = FENCED.to_vec();
            said.push(words);
            complaints(&fenced(&said)).len()
        };
        assert_eq!(of("0 turned-away 19 20"), 1);
        assert_eq!(of("0 turned-away 20 20"), 0);
    }

    #[test]
    fn a_late_use_that_was_let_in_counts() {
        let mut said = FENCED.to_vec();
        said.extend(["0 used 30 20 0.1 0.0", "1 used 31 25 1.1 0.0"]);
        let words = "one and other both added to what they found: one count is lost";
        assert_eq!(complaints(&fenced(&said)), [words]);
    }

    #[test]
    fn a_fenced_run_without_quarantine_fences_or_counters_that_fail_shows_nothing() {
        let mut record = fenced(&["0 acquired 2 20", "1 refused 3 held"]);
        record.counted.clear();
        assert_eq!(
            complaints(&record).len(),
            4,
            "and one was never at its turn"
        );
    }

    #[test]
    fn a_lease_may_be_gone_early_when_nodes_were_made_to_forget_it() {
        let mut said = GOOD.to_vec();
        said.push("1 lost 24");
        let mut record = record(&said);
        let of = |from| Fault {
            kind: Kind::RestartEmpty,
            nodes: vec![0],
            client: None,
            from: Instant::from_micros(from),
            until: Some(Instant::from_micros(from + 1)),
        };
        for (from, count) in [(3, 1), (4, 0), (24, 0), (25, 1)] {
            record.faults = vec![of(from)];
            assert_eq!(complaints(&record).len(), count, "{from}");
        }
    }

    #[test]
    fn an_operator_who_ends_a_quarantine_or_whose_command_fails_is_seen() {
        let mut record = fenced(&FENCED);
        let of = |kind, code, written| Operation {
            kind,
            code,
            written,
        };
        for (operation, count) in [
            (of(Kind::Init, Some(1), 0), 0),
            (of(Kind::Init, Some(2), 0), 0),
            (of(Kind::Examine, Some(2), 0), 1),
            (of(Kind::Init, Some(0), 1), 1),
            (of(Kind::Repair, Some(0), 1), 0),
            (of(Kind::Repair, Some(1), 0), 0),
            (of(Kind::Examine, Some(70), 0), 1),
            (of(Kind::Examine, None, 0), 1),
        ] {
            record.operations = vec![operation];
            assert_eq!(complaints(&record).len(), count, "{operation:?}");
        }
        record.operations = vec![of(Kind::Repair, Some(1), 0); ENOUGH];
        let late = "redlock init --repair never wrote a guard record";
        assert_eq!(complaints(&record), [late]);
    }

    #[test]
    fn a_run_in_which_nobody_met_a_replica_or_a_node_that_evicts_shows_nothing() {
        let mut record = record(&GOOD);
        record.kinds = vec![Kind::FailBack, Kind::Evict];
        let fault = |kind| Fault {
            kind,
            nodes: vec![0],
            client: None,
            from: Instant::from_micros(0),
            until: None,
        };
        record.faults = record.kinds.iter().copied().map(fault).collect();
        assert_eq!(complaints(&record).len(), 3);
        record.read_only = 1;
        record.evicted = 1;
        record.said.push((0, "denied may-evict 1".parse().unwrap()));
        assert_eq!(complaints(&record), [""; 0]);
    }

    #[test]
    fn what_is_left_behind_is_seen() {
        let mut record = record(&GOOD);
        let key = LeftKey {
            node: 0,
            ttl: Some(Duration::from_millis(1)),
        };
        record.left = Left {
            keys: vec![key],
            connections: 2,
        };
        assert_eq!(complaints(&record).len(), 2);
    }
}
