//! What the guard records say: whose vote counts for fenced locks, and with which settings.

use core::time::Duration;

use redlock_core::GUARD_KEY;
use serde_json::json;

use super::examination::{Examination, Seen};
use super::finding::{Finding, bad, ok, warn};
use crate::duration;
use crate::guard_record::{GuardRecord, Settings, Standing};

/// What stands where a node's guard record belongs.
enum Guard {
    NotSeen(String),
    Nothing,
    SomethingElse,
    /// The standing is none when the run or the time of the node is not to be seen.
    Record(GuardRecord, Option<Standing>),
}

impl Guard {
    fn of(seen: &Seen) -> Self {
        let value = match &seen.guard {
            Ok(Some(value)) => value,
            Ok(None) => return Self::Nothing,
            Err(why) => return Self::NotSeen(why.clone()),
        };
        let Some(record) = GuardRecord::parse(value) else {
            return Self::SomethingElse;
        };
        let standing = seen.info.as_ref().ok().zip(seen.now_ms);
        let standing = standing.map(|(info, now_ms)| record.standing(info.run_id(), now_ms));
        Self::Record(record, standing)
    }
}

/// The settings that most nodes have; none while no node has a record, and fenced locks are not in use.
pub(crate) fn settings_in_use(all: &[Examination]) -> Option<Settings> {
    let settings: Vec<Settings> = all.iter().filter_map(settings_of).collect();
    let count = |wanted: &Settings| settings.iter().filter(|other| *other == wanted).count();
    settings.iter().copied().rev().max_by_key(count)
}

/// The longest TTL of locks of which the record says that the node has forgotten none.
pub(crate) fn vouched(seen: &Seen) -> Option<Duration> {
    match Guard::of(seen) {
        Guard::Record(record, Some(Standing::Counts)) => {
            Some(Duration::from_millis(record.settings.max_ttl_ms))
        }
        _ => None,
    }
}

/// What the record of a node says, in a fleet that uses `in_use`.
pub(crate) fn finding(seen: &Seen, in_use: Option<Settings>) -> Finding {
    let guard = Guard::of(seen);
    let begins = "begins with the first client of fenced locks";
    let (name, judgement) = match (&guard, in_use) {
        (Guard::NotSeen(why), _) => ("unknown", warn(format!("not seen: {why}"))),
        (Guard::Nothing, None) => (
            "absent",
            ok("no record: fenced locks are not in use; begin with redlock init"),
        ),
        (Guard::Nothing, Some(settings)) => {
            let quarantine = duration::in_words(quarantine(settings));
            let why = "no record, as after FLUSHALL or the loss of data";
            (
                "absent",
                bad(format!("{why}; a quarantine of {quarantine} {begins}")),
            )
        }
        (Guard::SomethingElse, _) => (
            "foreign",
            bad(format!(
                "{GUARD_KEY} is no guard record: see who wrote it; redlock init --force writes over it"
            )),
        ),
        (Guard::Record(record, Some(Standing::OtherRun)), _) => {
            let quarantine = duration::in_words(quarantine(record.settings));
            let why = "a record of another run: the server has restarted, or is another one";
            (
                "other_run",
                bad(format!("{why}; a quarantine of {quarantine} {begins}")),
            )
        }
        (Guard::Record(_, Some(Standing::Quarantined(left))), _) => {
            let left = duration::in_words(*left);
            let why = "the server has restarted or lost its data";
            (
                "quarantined",
                bad(format!("its vote counts again in {left}: {why}")),
            )
        }
        (Guard::Record(record, _), Some(in_use)) if record.settings != in_use => {
            let why = format!("{}, unlike most nodes", record.settings);
            (
                "counts",
                bad(format!("{why}: redlock init --force writes it anew")),
            )
        }
        (Guard::Record(record, standing), _) => match standing {
            Some(_) => (
                "counts",
                ok(format!("its vote counts; {}", record.settings)),
            ),
            None => (
                "unknown",
                warn("a record, but whether it is of this run is not seen"),
            ),
        },
    };
    let (settings, standing) = match guard {
        Guard::Record(record, standing) => (Some(record.settings), standing),
        _ => (None, None),
    };
    Finding::new(
        "guard",
        judgement,
        json!({
            "record": name,
            "settings": settings.map(|settings| json!({
                "max_ttl_ms": settings.max_ttl_ms,
                "window_ms": settings.window_ms,
                "step_back_ms": settings.step_back_ms,
            })),
            "counts_in_ms": match standing {
                Some(Standing::Counts) => Some(0),
                Some(Standing::Quarantined(left)) => u64::try_from(left.as_millis()).ok(),
                Some(Standing::OtherRun) | None => None,
            },
        }),
    )
}

/// Whether all records have the same settings, and locks of `ttl` fit into them.
pub(crate) fn agreement(all: &[Examination], ttl: Duration) -> Finding {
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
        [] => ok("no guard records: fenced locks are not in use"),
        [(settings, _)] if u128::from(settings.max_ttl_ms) < ttl.as_millis() => bad(format!(
            "a TTL of {} is longer than the records allow, fenced locks of it are refused; {settings}",
            humantime::format_duration(ttl)
        )),
        [(settings, _)] => ok(format!("one configuration: {settings}")),
        groups => {
            let groups = groups
                .iter()
                .map(|(settings, names)| format!("{settings} on {}", names.join(", ")));
            bad(format!(
                "the configurations differ, and no client can have all: {}",
                groups.collect::<Vec<_>>().join("; ")
            ))
        }
    };
    Finding::new(
        "guard",
        judgement,
        json!({ "configurations": groups.len() }),
    )
}

fn settings_of(examination: &Examination) -> Option<Settings> {
    match Guard::of(examination.seen.as_ref().ok()?) {
        Guard::Record(record, _) => Some(record.settings),
        _ => None,
    }
}

/// Longer than any lock that the node may have forgotten.
const fn quarantine(settings: Settings) -> Duration {
    const GRACE_MS: u64 = 1_000;

    let windows = settings.window_ms.saturating_mul(4);
    let ms = settings.max_ttl_ms.saturating_add(windows);
    Duration::from_millis(ms.saturating_add(GRACE_MS))
}
