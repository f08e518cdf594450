//! Decides what to do on each node, from the state of all nodes.

use core::time::Duration;

use super::clock::{Distance, Estimate, median};
use super::duration;
use super::guard_record::Settings;
use super::recovery::quorum;
use super::recovery::{Cure, Recovery, Sight};
use super::site::{Obstacle, Site, There};
use super::{Mode, Wanted};

/// What to do on all nodes together.
#[derive(Debug)]
pub enum Plan {
    /// Do nothing: a line for each node, and advice for the operator.
    Refuse { lines: Vec<String>, advice: String },
    /// What to do on each node.
    Proceed {
        steps: Vec<Step>,
        quarantine: Duration,
        /// What the operator must do afterwards.
        follow_up: Option<String>,
    },
}

#[derive(Debug)]
pub enum Step {
    Write,
    /// Nothing, for this reason.
    Leave(String),
}

/// The state of a node, or why it could not be read.
pub type Look = Result<Site, Obstacle>;

impl Plan {
    /// Plans to write `settings`: those that are `wanted`, completed by the records or the defaults.
    pub fn new(
        names: &[String],
        looks: &[Look],
        settings: Settings,
        wanted: Wanted,
        mode: Mode,
    ) -> Self {
        let faults = faults(names, looks, settings, mode);
        if faults.iter().any(Option::is_some) {
            let is_away = looks
                .iter()
                .any(|look| matches!(look, Err(Obstacle::Away(_))));
            let is_stuck = mode == Mode::Start && recovery(looks) == Recovery::Operator;
            let settings = records(looks).next();
            let is_one_fleet = records(looks).all(|other| Some(other) == settings);
            let advice = match is_away && is_stuck {
                false => String::new(),
                true if is_one_fleet => {
                    format!(
                        "; if this fleet is in use and the missing nodes stay away, run {REPAIR}"
                    )
                }
                true => format!(
                    "; bring the missing nodes back, give all clients the same settings, then run {REPAIR}"
                ),
            };
            return Self::refuse(looks, &faults, advice);
        }
        match mode {
            Mode::Start => Self::start(looks, settings),
            Mode::Repair => Self::repair(names, looks, settings, wanted),
            Mode::Force => Self::write_all(looks, settings),
        }
    }

    /// Writes all records or none.
    fn start(looks: &[Look], settings: Settings) -> Self {
        let sites = || looks.iter().flatten();
        if sites().all(|site| site.there().is_right(settings)) {
            let steps = sites().map(|site| Step::Leave(format!("nothing to do: {}", site.there())));
            return Self::Proceed {
                steps: steps.collect(),
                quarantine: Duration::ZERO,
                follow_up: None,
            };
        }
        let is_first = sites().all(|site| matches!(site.there(), There::Nothing));
        let may_be_locked = |site: &Site| site.expiring_keys() > 0 || site.may_have_forgotten();
        if is_first && !sites().any(may_be_locked) {
            return Self::write_all(looks, settings);
        }
        let recovery = recovery(looks);
        let faults: Vec<_> = sites()
            .map(|site| fault_at_start(site, settings, recovery))
            .collect();
        let advice = match recovery {
            Recovery::FirstStart => {
                let wait = duration::in_words(settings.quarantine());
                format!(
                    ": a lock may be held; clients write the records by themselves, and the votes \
                     count {wait} after the first fenced acquire"
                )
            }
            Recovery::Clients(own) if own != settings => {
                format!(": the fleet has other settings; give {}", own.arguments())
            }
            Recovery::Operator => format!(
                ": a lock may be held, and no client may restore the records: give all clients the \
                 same settings, then run {REPAIR}"
            ),
            _ => ": a lock may be held; wait until the next fenced acquires have restored the records"
                .to_owned(),
        };
        Self::refuse(looks, &faults, advice)
    }

    /// Writes all records, whose votes count at once.
    fn write_all(looks: &[Look], settings: Settings) -> Self {
        let quarantines = records(looks).chain([settings]).map(|it| it.quarantine());
        let longest = quarantines.max();
        let longest = duration::in_words(longest.unwrap_or_default());
        let are_idle = format!(
            "these nodes are new, or they have been running for {longest} (a whole quarantine) without a client that held a lock"
        );
        let condition = match records(looks).next() {
            None => format!("both are true: (1) {are_idle}; (2) {AT_LEAST}"),
            Some(_) => are_idle,
        };
        Self::Proceed {
            steps: looks.iter().map(|_| Step::Write).collect(),
            quarantine: Duration::ZERO,
            follow_up: Some(format!(
                "this was safe only if {condition}; if not, stop all clients now, for {longest}"
            )),
        }
    }

    /// Writes the records that are not right, with a quarantine.
    fn repair(names: &[String], looks: &[Look], settings: Settings, wanted: Wanted) -> Self {
        let away = away(names, looks);
        if let Some(refusal) = Self::refuse_change(looks, settings, wanted, &away) {
            return refusal;
        }
        let step = |look: &Look| match look {
            Err(Obstacle::Away(why) | Obstacle::Unfit(why)) => {
                Step::Leave(format!("not written: {why}"))
            }
            Ok(site) if site.there().is_right(settings) && !site.there().is_too_long() => {
                Step::Leave(format!("nothing to do: {}", site.there()))
            }
            Ok(_) => Step::Write,
        };
        // No record confirms the given settings.
        let is_blind = records(looks).next().is_none();
        let again = match away.as_slice() {
            [] => String::new(),
            away => format!(
                "; run it again when the missing nodes are back, because they may have records with \
                 other settings: {}",
                away.join(", ")
            ),
        };
        let is_change = records(looks).any(|record| record != settings);
        let follow_up = if is_blind {
            Some(format!("this was safe only if {AT_LEAST}{again}"))
        } else if is_change && !wanted.are_all_given() {
            Some(format!(
                "give all fenced clients {}: what was not given is from the records",
                settings.arguments()
            ))
        } else {
            None
        };
        Self::Proceed {
            steps: looks.iter().map(step).collect(),
            quarantine: settings.quarantine(),
            follow_up,
        }
    }

    /// Refuses a repair that would change the settings of the fleet in a way that is not safe.
    fn refuse_change(
        looks: &[Look],
        settings: Settings,
        wanted: Wanted,
        away: &[&str],
    ) -> Option<Self> {
        let least = least(looks)?;
        // No client has written such a record.
        if !settings.are_possible() {
            let faults = record_faults(looks, "has a record", |_| true);
            let advice = format!(
                ": no client can have what was given with the rest from the records ({settings}); take nodes down whose settings \
                 no client has; or stop all clients, and then run redlock init --force with their settings"
            );
            return Some(Self::refuse(looks, &faults, advice));
        }
        if records(looks).all(|record| record == settings) {
            return None;
        }
        if !wanted.are_given() {
            let faults = record_faults(looks, "the records have different settings", |_| true);
            // One node may have a record that no client has written.
            let advice = format!(
                ": give all clients the same settings, then run {REPAIR} {}; if a node has settings \
                 that no client has, take it down first",
                least.arguments()
            );
            return Some(Self::refuse(looks, &faults, advice));
        }
        // If the other nodes are silent, one old record and a node without a record are enough for clients with the old
        // settings to write their record to that node.
        if !away.is_empty() {
            let faults: Vec<_> = looks
                .iter()
                .map(|look| match look {
                    Err(Obstacle::Away(why) | Obstacle::Unfit(why)) => Some(why.clone()),
                    Ok(_) => None,
                })
                .collect();
            let advice = format!(
                ": a change of settings needs all nodes, because clients with the old settings can \
                copy them from a node that was left out; bring {} back, or replace lost nodes by empty \
                ones, then run it again",
                away.join(", ")
            );
            return Some(Self::refuse(looks, &faults, advice));
        }
        let quarantines = records(looks).chain([settings]).map(|it| it.quarantine());
        let when_stopped = format!(
            "give at least {}; or stop all clients for {}, and then run redlock init --force {}",
            least.arguments(),
            duration::in_words(quarantines.max().unwrap_or_default()),
            settings.arguments()
        );
        let reasons: [Reason<'_>; 3] = [
            // The next fenced acquire cuts every quarantine to that of its own settings.
            (
                "has a record with a longer quarantine",
                "a lease of the old settings may outlast the quarantine of the new ones",
                &|found| found.quarantine() > settings.quarantine(),
            ),
            // A lease of the old settings is extended as long as window and step_back are the same.
            (
                "has a record with a longer max TTL",
                "a lease of the old settings may be extended for ever, and outlast the time that plain clients wait \
                 for a restarted node",
                &|found| found.max_ttl_ms > settings.max_ttl_ms,
            ),
            // Fences that are as far ahead as these settings allow were given out.
            (
                "has a record with a longer window or step back",
                "if all clocks are set back, fences may be lower than those of the old settings",
                &|found| {
                    found.window_ms > settings.window_ms
                        || found.step_back_ms > settings.step_back_ms
                },
            ),
        ];
        reasons.into_iter().find_map(|(fault, why, is_fault)| {
            let faults = record_faults(looks, fault, is_fault);
            let is_refused = faults.iter().any(Option::is_some);
            is_refused.then(|| Self::refuse(looks, &faults, format!(": {why}; {when_stopped}")))
        })
    }

    fn refuse(looks: &[Look], faults: &[Option<String>], advice: String) -> Self {
        let lines = looks
            .iter()
            .zip(faults)
            .map(|(look, fault)| match (look, fault) {
                (_, Some(fault)) => format!("refused: {fault}"),
                (Ok(site), None) => format!("not written: there is {}", site.there()),
                (Err(Obstacle::Away(why) | Obstacle::Unfit(why)), None) => why.clone(),
            });
        Self::Refuse {
            lines: lines.collect(),
            advice,
        }
    }
}

/// Why the record of a node forbids a change: in short, in full, and whether it does.
type Reason<'a> = (&'a str, &'a str, &'a dyn Fn(Settings) -> bool);

const REPAIR: &str = "redlock init --repair";

/// The condition for a quarantine that is long enough, if there is no record to compare with.
const AT_LEAST: &str =
    "--max-ttl, --window and --step-back are at least those that the clients have had";

/// For each node, why it prevents all writes, whatever the records are.
fn faults(names: &[String], looks: &[Look], settings: Settings, mode: Mode) -> Vec<Option<String>> {
    let present = looks.iter().flatten().count();
    let enough = mode == Mode::Repair && present >= quorum(looks.len());
    let clocks = clock_faults(names, looks, settings);
    let fault = |(number, (look, clock)): (usize, (&Look, Option<String>))| match look {
        Err(Obstacle::Away(_)) if enough => None,
        Err(Obstacle::Away(why) | Obstacle::Unfit(why)) => Some(why.clone()),
        Ok(site) => {
            let mut earlier = names.iter().zip(looks).take(number);
            let twin = earlier.find(|(_, other)| {
                let other = other.as_ref().ok();
                other.is_some_and(|other| other.run_id() == site.run_id())
            });
            twin.map(|(name, _)| format!("the same server as {name}, or one of them claims to be the other: name each server once"))
                .or(clock)
        }
    };
    looks.iter().zip(clocks).enumerate().map(fault).collect()
}

/// For each node, what is certainly wrong with its clock. To set it right later is a step, maybe during a quarantine.
///
/// Each two clocks must agree, because a client takes the time of any of the nodes: if the others are away, one of two clocks on
/// different sides of the median may be that time, and the other one outside of its window. Of clocks that are too far apart, the one
/// that is furthest from the median is named.
fn clock_faults(names: &[String], looks: &[Look], settings: Settings) -> Vec<Option<String>> {
    let window = Duration::from_millis(settings.window_ms);
    let told = duration::in_words(window);
    let offsets = looks
        .iter()
        .map(|look| look.as_ref().ok().and_then(Site::clock_offset));
    let offsets: Vec<Option<Estimate>> = offsets.collect();
    let Some(median) = median(offsets.iter().copied().flatten().collect()) else {
        return vec![None; looks.len()];
    };
    let named = || {
        let nodes = names.iter().zip(&offsets);
        nodes.filter_map(|(name, offset)| Some((name.as_str(), (*offset)?)))
    };
    let apart = |own: Estimate| Distance::beyond(window, own, named());
    let distances = offsets.iter().map(|offset| {
        let distance = (*offset).and_then(apart)?;
        Some(((*offset)?.minus(median), distance))
    });
    let distances: Vec<_> = distances.collect();
    let from_median = |off: &Estimate| off.value.saturating_abs();
    let furthest = distances.iter().flatten();
    let furthest = furthest.map(|(off, _)| from_median(off)).max();
    let fault = |(off, distance): (Estimate, Distance<'_>)| {
        if off.surely_leaves(window) {
            return Some(format!(
                "its clock is {off}, outside of the window of {told}: set its clock, run NTP"
            ));
        }
        (Some(from_median(&off)) == furthest).then(|| {
            format!(
                "its clock is {off}, and {distance}, further than the window of {told}: set its clock, run NTP"
            )
        })
    };
    let faults = distances
        .into_iter()
        .map(|distance| distance.and_then(fault));
    faults.collect()
}

/// Why this node prevents the writes of a first start. `None` if it does not prevent them.
fn fault_at_start(site: &Site, settings: Settings, recovery: Recovery) -> Option<String> {
    let there = site.there();
    if there.is_right(settings) {
        return None;
    }
    if recovery == Recovery::FirstStart {
        let keys = site.expiring_keys();
        if site.may_have_forgotten() && keys == 0 {
            return Some(
                "the node was flushed, evicted a key, was a replica, or has loaded a dump of a server with replicas, since it \
                started: it may have lost a lock"
                    .to_owned(),
            );
        }
        return (keys > 0).then(|| {
            let (keys, they) = match keys {
                1 => ("1 key".to_owned(), "it may be a lock"),
                keys => (format!("{keys} keys"), "they may be locks"),
            };
            format!("{keys} with a TTL: {they}")
        });
    }
    let cure = match recovery.cure(there.sight()) {
        Cure::Wait(own) => format!(
            "the next fenced acquire that a quorum and this node answer restores it, and its vote counts {} later",
            duration::in_words(own.quarantine())
        ),
        Cure::MoreNodes => {
            "bring the other nodes back: then the next fenced acquire that a quorum and this node answer restores it"
                .to_owned()
        }
        Cure::Repair => format!("no client restores it: run {REPAIR}"),
    };
    Some(match there {
        There::Record(record, standing) if standing.is_of_this_node() => {
            format!("has a record with other settings ({})", record.settings)
        }
        there => format!("{there}: {cure}"),
    })
}

/// Returns `fault` for each node with a record whose settings fulfil `is_fault`.
fn record_faults(
    looks: &[Look],
    fault: &str,
    is_fault: impl Fn(Settings) -> bool,
) -> Vec<Option<String>> {
    let found = looks
        .iter()
        .map(|look| look.as_ref().ok()?.there().settings());
    let faults = found.map(|found| {
        let found = found.filter(|found| is_fault(*found))?;
        Some(format!("{fault} ({found})"))
    });
    faults.collect()
}

/// The nodes that do not answer.
fn away<'a>(names: &'a [String], looks: &[Look]) -> Vec<&'a str> {
    let nodes = names.iter().zip(looks);
    let away = nodes.filter(|(_, look)| matches!(look, Err(Obstacle::Away(_))));
    away.map(|(name, _)| name.as_str()).collect()
}

/// The least settings that may replace those of all records. `None` if there are no records.
pub fn least(looks: &[Look]) -> Option<Settings> {
    Settings::least(records(looks))
}

/// The settings of all records, of any run and data set.
fn records(looks: &[Look]) -> impl Iterator<Item = Settings> + Clone {
    let sites = looks.iter().flatten();
    sites.filter_map(|site| site.there().settings())
}

fn recovery(looks: &[Look]) -> Recovery {
    let sights: Vec<Sight> = looks
        .iter()
        .map(|look| {
            look.as_ref()
                .map_or(Sight::Unseen, |site| site.there().sight())
        })
        .collect();
    Recovery::of(&sights, looks.len())
}
