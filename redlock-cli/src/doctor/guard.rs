//! Checks of the guard records: whose vote counts for fenced locks, and with which settings.

use core::time::Duration;

use redlock_core::GUARD_KEY;
use serde_json::{Value, json};

use super::examination::{Examination, Seen};
use super::finding::{Finding, Judgement, bad, ok, warn};
use super::fleet;
use crate::duration;
use crate::nodes::Info;
use redlock_std::init::guard_record::{Content, GuardRecord, Settings, Standing};
use redlock_std::init::recovery::{Cure, Recovery, Sight};

/// The value at the key of the guard record of a node.
enum Guard {
    NotSeen(String),
    Nothing,
    SomethingElse,
    OtherType,
    /// The standing is `None` if the run or the time of the node is unknown.
    Record(GuardRecord, Option<Standing>),
}

impl Guard {
    fn of(seen: &Seen) -> Self {
        let value = match &seen.guard {
            Ok(Content::Text(value)) => value,
            Ok(Content::Nothing) => return Self::Nothing,
            Ok(Content::OtherType) => return Self::OtherType,
            Err(why) => return Self::NotSeen(why.clone()),
        };
        let Some(record) = GuardRecord::parse(value) else {
            return Self::SomethingElse;
        };
        let standing = seen.info.as_ref().ok().zip(seen.now_ms);
        let standing = standing.map(|(info, now_ms)| record.standing(info, now_ms));
        Self::Record(record, standing)
    }
}

/// The guard records of all nodes together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Records {
    /// The settings that most nodes have; `None` if no node has a record, and fenced locks are not in use.
    pub(crate) in_use: Option<Settings>,
    recovery: Recovery,
    /// The least settings that `redlock init --repair` accepts. `None` if no node has a record.
    least: Option<Settings>,
    /// Whether all nodes answer.
    are_all: bool,
}

impl Records {
    pub(crate) fn of(all: &[Examination]) -> Self {
        // A server with several names is one server to the clients.
        let servers = all
            .iter()
            .enumerate()
            .filter(|(number, _)| fleet::twin(all, *number).is_none());
        let sights: Vec<Sight> = servers.map(|(_, server)| sight(server)).collect();
        let recovery = Recovery::of(&sights, all.len());
        let settings: Vec<Settings> = all.iter().filter_map(settings_of).collect();
        let count = |wanted: &Settings| settings.iter().filter(|other| *other == wanted).count();
        Self {
            in_use: match recovery {
                Recovery::Clients(settings) => Some(settings),
                _ => settings.iter().copied().rev().max_by_key(count),
            },
            recovery,
            least: Settings::least(settings.iter().copied()),
            are_all: all.iter().all(|examination| examination.seen.is_ok()),
        }
    }
}

/// The guard record of the node as clients of fenced locks see it.
fn sight(examination: &Examination) -> Sight {
    let Ok(seen) = &examination.seen else {
        return Sight::Unseen;
    };
    let has_vote = |info: &Info| info.is_master() && info.may_evict() != Some(true);
    if !seen.info.as_ref().is_ok_and(has_vote) {
        return Sight::Unseen;
    }
    match Guard::of(seen) {
        // To clients, a node fails whose record has another type.
        Guard::NotSeen(_) | Guard::OtherType => Sight::Unseen,
        Guard::Nothing => Sight::Nothing,
        Guard::SomethingElse => Sight::Foreign,
        Guard::Record(record, None) => Sight::Old(record.settings),
        Guard::Record(record, Some(standing)) => Sight::of_record(record.settings, standing),
    }
}

/// The longest TTL in the record of a node, and whether the record vouches that the node has lost no lock.
pub(crate) fn max_ttl(seen: &Seen) -> Option<(Duration, bool)> {
    match Guard::of(seen) {
        Guard::Record(record, standing) => Some((
            Duration::from_millis(record.settings.max_ttl_ms),
            standing == Some(Standing::Counts),
        )),
        _ => None,
    }
}

/// The finding about the record of a node, among all `records`, for locks that are held for `longest` without an extension.
pub(crate) fn finding(seen: &Seen, records: Records, longest: Duration) -> Finding {
    let guard = Guard::of(seen);
    let judgement = match (&guard, records.in_use) {
        (Guard::NotSeen(why), _) => warn(format!("unknown: {why}")),
        (Guard::Nothing, None) => match &seen.loss {
            None => ok(format!("no record: {NOT_IN_USE}")),
            Some(loss) => warn(format!(
                "no record, and the node {loss} since it started, so it may have lost its record: fenced locks may be in use, \
                 and a lease may be out; {FIRST_RECORDS}"
            )),
        },
        (Guard::Nothing, Some(_)) => bad(format!(
            "no record: {}",
            nothing(seen.info.as_ref().ok(), records)
        )),
        (Guard::SomethingElse | Guard::OtherType, _) => {
            // Without a record, the repair does not know the settings of the clients.
            let back = if records.are_all {
                ""
            } else {
                "bring all nodes back, "
            };
            let settings = match records.least {
                Some(_) => "",
                None => " with the --max-ttl, --window and --step-back of the clients",
            };
            bad(format!(
                "{GUARD_KEY} is no guard record, so it grants no fenced lock: find out which program wrote it, {back}then \
                run {REPAIR}{settings}"
            ))
        }
        (Guard::Record(record, standing), in_use) => {
            let settings = record.settings;
            let cure = || cure(records, Sight::Old(settings));
            match standing {
                _ if in_use.is_some_and(|in_use| in_use != settings) => bad(format!(
                    "its settings ({settings}) differ from those of other nodes, and no client overwrites them; {}",
                    repair(records)
                )),
                Some(Standing::OtherRun) => bad(format!(
                    "a record of another run: the server has restarted, or is a different one; {}",
                    cure()
                )),
                Some(Standing::OtherData) => bad(format!(
                    "a record of another data set: the node was a replica in between, or its \
                     replicas came or went; {}",
                    cure()
                )),
                Some(Standing::Older) => bad(format!(
                    "a record of an older version, which does not name the data set; {}",
                    cure()
                )),
                Some(Standing::Quarantined { left, written }) => bad(quarantined(*left, *written)),
                Some(Standing::Counts) if u128::from(settings.max_ttl_ms) < longest.as_millis() => {
                    bad(format!(
                        "it refuses locks with a TTL or --min-hold of {}, plain ones too; {settings}",
                        humantime::format_duration(longest)
                    ))
                }
                Some(Standing::Counts) => ok(format!("its vote counts; {settings}")),
                None => warn("a record, but it is unknown whether it is of this run and data set"),
            }
        }
    };
    Finding::new("guard", judgement, facts(&guard))
}

fn facts(guard: &Guard) -> Value {
    let (name, settings, left) = match guard {
        Guard::NotSeen(_) => ("unknown", None, None),
        Guard::Nothing => ("absent", None, None),
        Guard::SomethingElse | Guard::OtherType => ("foreign", None, None),
        Guard::Record(record, standing) => {
            let (name, left) = match standing {
                None => ("unknown", None),
                Some(Standing::Counts) => ("counts", Some(Duration::ZERO)),
                Some(Standing::Quarantined { left, .. }) => ("quarantined", Some(*left)),
                Some(Standing::OtherRun) => ("other_run", None),
                Some(Standing::OtherData) => ("other_data", None),
                Some(Standing::Older) => ("older", None),
            };
            (name, Some(record.settings), left)
        }
    };
    json!({
        "record": name,
        "settings": settings.map(|settings| json!({
            "max_ttl_ms": settings.max_ttl_ms,
            "window_ms": settings.window_ms,
            "step_back_ms": settings.step_back_ms,
        })),
        "counts_in_ms": left.and_then(|left| u64::try_from(left.as_millis()).ok()),
    })
}

const REPAIR: &str = "redlock init --repair";

/// What it means that no node has a record.
const NOT_IN_USE: &str = "fenced locks are not in use, or every node has lost its record";

/// What clients do if no node has a record.
const FIRST_RECORDS: &str = "the next fenced acquire that all nodes answer writes the records, and their votes count after a quarantine";

/// Why there is no record although other nodes have one, and what restores it.
fn nothing(info: Option<&Info>, records: Records) -> String {
    let may_evict = info.is_some_and(|info| info.may_evict() == Some(true));
    if may_evict {
        return "clients delete it on a node that may evict keys, because such a node may have evicted locks; set \
        maxmemory-policy noeviction: then clients restore it, and the vote counts after a quarantine"
            .to_owned();
    }
    let evicted = info.and_then(|info| info.number::<u64>("evicted_keys"));
    let cure = cure(records, Sight::Nothing);
    match evicted {
        Some(evicted @ 1..) => format!(
            "the node has evicted {evicted} keys since it started, and clients delete the record of such a node; \
             {cure}"
        ),
        _ => format!(
            "the node has lost its data, for example by FLUSHALL, or had a maxmemory-policy that may evict keys; {cure}"
        ),
    }
}

/// What restores the record, as a part of a sentence.
fn cure(records: Records, sight: Sight) -> String {
    match records.recovery.cure(sight) {
        Cure::Wait(settings) => format!(
            "the next fenced acquire that a quorum and this node answer restores it, and its vote counts {} later: wait",
            duration::in_words(settings.quarantine())
        ),
        Cure::MoreNodes => {
            let condition = if records.are_all {
                "the other nodes answer, but have no vote; do what their lines say"
            } else {
                "bring the other nodes back"
            };
            format!(
                "{condition}: then the next fenced acquire that a quorum and this node answer restores it"
            )
        }
        Cure::Repair => format!("no client may restore it: run {REPAIR}"),
    }
}

/// How to repair different settings, as a part of a sentence. For this, `redlock init --repair` needs all nodes, and
/// refuses a max TTL, window or step back that is shorter than that of a record.
fn repair(records: Records) -> String {
    let back = if records.are_all {
        ""
    } else {
        "bring all nodes back, "
    };
    let Some(least) = records.least else {
        return format!("{back}give all clients the same settings, then run {REPAIR}");
    };
    let which = if records.recovery == Recovery::Clients(least) {
        "the same settings"
    } else {
        "the longest max TTL, window and step back of all records"
    };
    format!(
        "{back}give all clients {which}, then run {REPAIR} {}",
        least.arguments()
    )
}

fn quarantined(left: Duration, written: Option<Duration>) -> String {
    let left = duration::in_words(left);
    match written {
        None => format!(
            "its vote counts again in {left}: the server is new, has restarted or has lost its data; wait"
        ),
        Some(written) => format!(
            "its vote counts {left} after the next fenced acquire: the record says {}, because the node's \
             clock was ahead when it was written; wait",
            duration::in_words(written)
        ),
    }
}

/// Whether all records have the same settings, allow locks that are held for `longest`, and can be restored by clients.
pub(crate) fn agreement(all: &[Examination], records: Records, longest: Duration) -> Finding {
    let mut groups: Vec<(Settings, Vec<&str>)> = Vec::new();
    for examination in all {
        let Some(settings) = settings_of(examination) else {
            continue;
        };
        match groups.iter_mut().find(|(other, _)| *other == settings) {
            Some((_, names)) => names.push(&examination.node),
            None => groups.push((settings, vec![&examination.node])),
        }
    }
    let judgement = match groups.as_slice() {
        [] => match records.recovery {
            Recovery::Operator if records.are_all => warn(
                "no node shows a guard record, and at least one node has no vote for fenced locks: do what \
                 the lines of that node say",
            ),
            Recovery::Operator => warn(format!(
                "no node that answers has a guard record: bring the missing nodes back; if they stay away \
                 and fenced locks are in use, run {REPAIR}, and again when they are back"
            )),
            _ => without_records(all),
        },
        [(settings, _)] if u128::from(settings.max_ttl_ms) < longest.as_millis() => bad(format!(
            "the records do not allow a TTL or --min-hold of {}, so the nodes refuse such locks, plain ones too; \
            {settings}",
            humantime::format_duration(longest)
        )),
        [(settings, _)] => ok(format!("one configuration: {settings}")),
        groups => {
            let groups = groups
                .iter()
                .map(|(settings, names)| format!("{settings} on {}", names.join(", ")));
            bad(format!(
                "the configurations differ, and no client can match all of them: {}; {}",
                groups.collect::<Vec<_>>().join("; "),
                repair(records)
            ))
        }
    };
    Finding::new(
        "guard",
        judgement,
        json!({ "configurations": groups.len() }),
    )
}

/// Judges a fleet in which no node shows a record.
fn without_records(all: &[Examination]) -> Judgement {
    let seen = || all.iter().filter_map(|node| node.seen.as_ref().ok());
    let without = seen().filter(|seen| matches!(Guard::of(seen), Guard::Nothing));
    match without.count() {
        0 if seen().count() == 0 => warn("unknown: no node answers, so fenced locks may be in use"),
        count if count < all.len() => warn(
            "unknown: some nodes do not show whether they have a guard record, so fenced locks may be in use: do what their lines say",
        ),
        _ if seen().any(|seen| seen.loss.is_some()) => warn(format!(
            "no guard records, and a node may have lost its record: do not run redlock init if the nodes were used for fenced \
             locks; {FIRST_RECORDS}"
        )),
        _ => ok(format!(
            "no guard records: {NOT_IN_USE}; {FIRST_RECORDS}; if the nodes are new, or have been running for a quarantine without a \
             client that held a lock, redlock init writes records whose votes count at once"
        )),
    }
}

fn settings_of(examination: &Examination) -> Option<Settings> {
    match Guard::of(examination.seen.as_ref().ok()?) {
        Guard::Record(record, _) => Some(record.settings),
        _ => None,
    }
}
