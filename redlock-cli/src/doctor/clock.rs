//! Checks of the clocks of the nodes.

use core::time::Duration;

use serde_json::json;

use super::examination::{Examination, Seen};
use super::finding::{Finding, Judgement, bad, ok, warn};
use crate::defaults::{DRIFT_PPM, WINDOW};
use crate::duration;
use redlock_std::init::clock::{Distance, Estimate, Sample, median};
use redlock_std::init::guard_record::Settings;

/// A clock with more drift than this, in parts per million, is being set during the measurement: ntpd slews at most half
/// as fast.
const DRIFT_SUSPICIOUS: i64 = 1_000;

/// The largest drift between a client and a node that locks allow.
const DRIFT_ALLOWED: i64 = DRIFT_PPM as i64;

/// The findings about the offset of the node from the median of all nodes, and about its drift.
pub(crate) fn findings(
    seen: &Seen,
    all: &[Examination],
    settings: Option<Settings>,
) -> [Finding; 2] {
    let is_alone = offsets(all).count() == 1;
    let off = off_median(seen, all).filter(|_| !is_alone);
    let own = offset(&seen.samples);
    let distance = own.and_then(|own| Distance::beyond(window(settings), own, offsets(all)));
    let drift = drift(&seen.samples);
    [
        Finding::new(
            "clock",
            match off {
                Some(off) => judge_offset(off, distance, settings),
                None if is_alone => ok("no other clock to compare it with"),
                None => not_seen(),
            },
            json!({
                "offset_us": off.map(|off| off.value),
                "error_us": off.map(|off| off.error),
            }),
        ),
        Finding::new(
            "drift",
            drift.map_or_else(not_seen, judge_drift),
            json!({
                "drift_ppm": drift.map(|drift| drift.value),
                "error_ppm": drift.map(|drift| drift.error),
            }),
        ),
    ]
}

/// Whether the node grants no fenced lock, because its clock is certainly outside of the window around the time of all nodes.
pub(crate) fn is_outside(seen: &Seen, all: &[Examination], settings: Settings) -> bool {
    off_median(seen, all).is_some_and(|off| off.surely_leaves(window(Some(settings))))
}

/// The offset of the node from the median of all nodes.
fn off_median(seen: &Seen, all: &[Examination]) -> Option<Estimate> {
    let median = median(offsets(all).map(|(_, offset)| offset).collect())?;
    Some(offset(&seen.samples)?.minus(median))
}

/// Each node with its offset from our clock.
fn offsets(all: &[Examination]) -> impl Iterator<Item = (&str, Estimate)> {
    all.iter().filter_map(|examination| {
        let seen = examination.seen.as_ref().ok()?;
        Some((examination.node.as_str(), offset(&seen.samples)?))
    })
}

/// The window of the records, or the default.
fn window(settings: Option<Settings>) -> Duration {
    settings.map_or(WINDOW, |settings| Duration::from_millis(settings.window_ms))
}

/// The median round trip time.
pub(crate) fn round_trip(samples: &[Sample]) -> Duration {
    let mut times: Vec<i64> = samples.iter().map(Sample::round_trip).collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    Duration::from_micros(median.unsigned_abs())
}

/// By how much the clock of the node is ahead of ours.
fn offset(samples: &[Sample]) -> Option<Estimate> {
    best(samples.get(..quarter(samples))?).map(|(_, offset)| offset)
}

/// How much faster the clock of the node runs than ours, in parts per million: the change of the offset from the first
/// quarter of the samples to the last.
fn drift(samples: &[Sample]) -> Option<Estimate> {
    let quarter = quarter(samples);
    let (from, before) = best(samples.get(..quarter)?)?;
    let (to, after) = best(samples.get(samples.len() - quarter..)?)?;
    let elapsed = to.checked_sub(from).filter(|elapsed| *elapsed > 0)?;
    let change = after.minus(before);
    let ppm = |micros: i64| micros.checked_mul(1_000_000)?.checked_div(elapsed);
    Some(Estimate {
        value: ppm(change.value)?,
        // Rounding of the divisions.
        error: ppm(change.error)?.saturating_add(2),
    })
}

fn quarter(samples: &[Sample]) -> usize {
    samples.len().div_ceil(4)
}

/// The offset in the sample with the shortest round trip, and when it was taken.
fn best(samples: &[Sample]) -> Option<(i64, Estimate)> {
    let sample = samples.iter().min_by_key(|sample| sample.round_trip())?;
    Some((sample.middle(), sample.offset()?))
}

/// `distance` is that from another clock, if it is certainly longer than the window.
fn judge_offset(
    off: Estimate,
    distance: Option<Distance<'_>>,
    settings: Option<Settings>,
) -> Judgement {
    let told = off.to_string();
    let limit = window(settings);
    let window = duration::in_words(limit);
    if off.surely_leaves(limit) {
        let why = format!("{told}, outside of the window of {window}: set its clock, run NTP");
        // Plain locks do not compare clocks.
        return match settings {
            Some(_) => bad(format!("{why}; it grants no fenced lock")),
            None => warn(format!("{why}; it would grant no fenced lock")),
        };
    }
    // Of two clocks that are further apart than the window, at least one is further than half of it from the median, however uncertain the
    // median is.
    let half = i64::try_from((limit / 2).as_micros()).unwrap_or(i64::MAX);
    if let Some(distance) = distance.filter(|_| off.value.saturating_abs() > half) {
        let why = format!(
            "{told}, and {distance}, further than the window of fenced locks ({window}): without the nodes between them, no \
                client can take a fenced lock; set its clock, run NTP"
        );
        return match settings {
            Some(_) => bad(why),
            None => warn(why),
        };
    }
    if off.surely_leaves(limit / 2) {
        return warn(format!(
            "{told}, more than half of the window of fenced locks ({window}): run NTP"
        ));
    }
    ok(told)
}

fn judge_drift(drift: Estimate) -> Judgement {
    let told = format!(
        "{} ppm (±{}) against this machine",
        drift.value, drift.error
    );
    if drift.surely_exceeds(DRIFT_ALLOWED) {
        return bad(format!(
            "{told}, more than the {DRIFT_ALLOWED} ppm that locks allow for: its clock, or the clock of \
            this machine, is being set"
        ));
    }
    if drift.surely_exceeds(DRIFT_SUSPICIOUS) {
        return warn(format!(
            "{told}: its clock, or the clock of this machine, is being set; let NTP slew slowly \
            (chrony: maxslewrate 1000)"
        ));
    }
    ok(told)
}

fn not_seen() -> Judgement {
    warn("unknown: the user cannot run TIME, see permissions")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    /// Samples over `seconds`, ten in each, of a clock that is ahead by `ahead` µs at first and runs
    /// faster by `ppm`. The round trips differ, and so do their two halves.
    fn samples(seconds: i64, ahead: i64, ppm: i64) -> Vec<Sample> {
        let samples = (0..=seconds * 10).map(|number| {
            let sent = 5_000_000_000 + number * 100_000;
            let (there, back) = (100 + number * 37 % 50, 100 + number * 91 % 300);
            let looked = sent + there;
            Sample {
                sent,
                received: looked + back,
                node: Some(looked + ahead + (looked - 5_000_000_000) * ppm / 1_000_000),
            }
        });
        samples.collect()
    }

    fn surely(estimate: Estimate, truth: i64) -> bool {
        (estimate.value - truth).abs() <= estimate.error
    }

    #[test]
    fn the_offset_is_right_within_its_error_and_the_error_is_half_of_the_best_round_trip() {
        for ahead in [0, 1, -1, 777, 86_400_000_000, -86_400_000_000] {
            let offset = offset(&samples(3, ahead, 0)).unwrap();
            assert!(surely(offset, ahead), "{offset:?} {ahead}");
            assert!((100..=200).contains(&offset.error), "{offset:?}");
        }
    }

    #[test]
    fn the_drift_is_right_within_its_error() {
        for ppm in [0, 500, -500, 10_000, -83_333] {
            let drift = drift(&samples(3, 1_000_000, ppm)).unwrap();
            assert!(surely(drift, ppm), "{drift:?} {ppm}");
            assert!(drift.error < 250, "{drift:?}");
        }
    }

    #[test]
    fn a_longer_look_tells_the_drift_better() {
        let error = |seconds| drift(&samples(seconds, 0, 0)).unwrap().error;
        assert!(error(30) * 5 < error(3), "{} {}", error(30), error(3));
    }

    #[test]
    fn a_clock_that_is_set_while_it_is_watched_shows_as_drift() {
        let mut samples = samples(3, 0, 0);
        for sample in &mut samples[20..] {
            sample.node = sample.node.map(|node| node + 200_000);
        }
        let (verdict, message) = judge_drift(drift(&samples).unwrap());
        assert_eq!(verdict, Verdict::Bad, "{message}");
    }

    #[test]
    fn without_samples_there_are_no_estimates() {
        let mut samples = samples(3, 0, 0);
        for sample in &mut samples {
            sample.node = None;
        }
        assert_eq!((offset(&samples), drift(&samples)), (None, None));
        assert_eq!(
            (offset(&[]), drift(&[]), median(vec![])),
            (None, None, None)
        );
        assert_eq!(round_trip(&[]), Duration::ZERO);
        // One sample gives no drift.
        assert_eq!(drift(&self::samples(3, 0, 0)[..1]), None);
    }

    #[test]
    fn a_clock_is_only_judged_if_it_is_certainly_wrong() {
        use Verdict::{Bad, Ok, Warn};

        let fenced = Some(Settings {
            max_ttl_ms: 60_000,
            window_ms: 250,
            step_back_ms: 60_000,
        });
        for (value, error, settings, verdict) in [
            (0, 1_000_000, fenced, Ok),
            (125_000, 0, fenced, Ok),
            (125_001, 0, fenced, Warn),
            (-250_000, 0, fenced, Warn),
            (250_001, 0, fenced, Bad),
            (-250_001, 0, fenced, Bad),
            (-250_001, 1, fenced, Warn),
            // Plain locks do not compare clocks.
            (10_000_000, 0, None, Warn),
        ] {
            let (judged, message) = judge_offset(Estimate { value, error }, None, settings);
            assert_eq!(judged, verdict, "{message}");
        }
        let estimate = |value| Estimate { value, error: 10 };
        let others = [("b:1", estimate(0)), ("c:1", estimate(-125_001))];
        for (value, settings, verdict) in [
            (125_019, fenced, Warn),
            (125_020, fenced, Bad),
            (125_020, None, Warn),
        ] {
            let distance = Distance::beyond(window(settings), estimate(value), others);
            // However uncertain the median is, because its node is slow.
            let uncertain = Estimate {
                value,
                error: 30_000,
            };
            if distance.is_some() {
                assert_eq!(judge_offset(uncertain, distance, settings).0, verdict);
            }
            let (judged, message) = judge_offset(estimate(value), distance, settings);
            assert_eq!(judged, verdict, "{message}");
            assert_eq!(
                message.contains("250 ms from that of c:1"),
                value == 125_020
            );
        }
        for (value, error, verdict) in [
            (1_000, 0, Ok),
            (-1_001, 0, Warn),
            (1_001, 1, Ok),
            (10_000, 0, Warn),
            (-10_001, 0, Bad),
            (10_001, 1, Warn),
        ] {
            let (judged, message) = judge_drift(Estimate { value, error });
            assert_eq!(judged, verdict, "{message}");
        }
    }

    #[test]
    fn the_round_trip_is_the_median() {
        let trip = |micros: i64| Sample {
            sent: 10,
            received: 10 + micros,
            node: None,
        };
        let samples = [trip(900), trip(100), trip(200)];
        assert_eq!(round_trip(&samples), Duration::from_micros(200));
    }
}
