//! Which fault is done when, and to which node or client: the same seed, the same schedule.

use std::time::Duration;

use super::fault::{Kind, MAJORITY, NODES};
use super::lock::quarantine;
use super::random::Random;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    /// How long after the beginning of the run, at the earliest.
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    /// Empty for what is done to a client: which one is seen when it is time.
    pub(super) nodes: Vec<usize>,
}

/// Faults of all `kinds`, again and again in another order, for as long as `length`. Leases last for `ttl`
/// at most. Those that keep nodes busy for long do not hold up the others.
pub(super) fn plan(seed: u64, length: Duration, ttl: Duration, kinds: &[Kind]) -> Vec<Planned> {
    let mut random = Random::new(seed);
    let is_on_nodes = |kind: &Kind| !kind.is_momentary() && !Kind::TO_CLIENTS.contains(kind);
    let (long, short) = kinds.iter().copied().partition(is_on_nodes);
    let mut tracks = [long, short].map(|kinds| Track::new(kinds, length, ttl));
    let mut health = Health::default();
    let mut planned = Vec::new();
    while let Some(track) = tracks.iter_mut().min_by_key(|track| track.at)
        && track.at < length
    {
        let Some(kind) = track.next(&mut random) else {
            continue;
        };
        let count = node_count(kind, &mut random);
        track.at = track.at.max(health.spares(count, kind));
        let at = track.at;
        if at >= length {
            continue;
        }
        let lasts = duration(kind, ttl, &mut random);
        let mut nodes = random.shuffled(&health.well_at(at));
        nodes.truncate(count);
        nodes.sort_unstable();
        for node in &nodes {
            // Some time of health in between, in which the clients find the node again.
            health.from[*node] = at + lasts + voteless(kind, ttl) + ttl / 10;
        }
        planned.push(Planned {
            kind,
            at,
            lasts,
            nodes,
        });
    }
    planned.sort_by_key(|planned| planned.at);
    planned
}

/// Faults that come one after the other.
struct Track {
    kinds: Vec<Kind>,
    /// What is left of the kinds, in their order of this time.
    left: Vec<Kind>,
    pace: Duration,
    /// When the last one came.
    at: Duration,
}

impl Track {
    fn new(kinds: Vec<Kind>, length: Duration, ttl: Duration) -> Self {
        // Every kind has to come, also in a short run; and in a long one there is no need to wait.
        let count = u32::try_from(kinds.len()).unwrap_or(u32::MAX).max(1);
        Self {
            left: Vec::new(),
            pace: (length / count / 2).min(ttl / 3),
            at: if kinds.is_empty() {
                Duration::MAX
            } else {
                Duration::ZERO
            },
            kinds,
        }
    }

    /// What comes next; it comes at `at` at the earliest.
    fn next(&mut self, random: &mut Random) -> Option<Kind> {
        if self.left.is_empty() {
            self.left = random.shuffled(&self.kinds);
        }
        self.at += random.between(self.pace / 2, self.pace * 3 / 2);
        self.left.pop()
    }
}

/// How many nodes are well beside those to which `kind` is done, so that clients come to their turn, but for
/// the faults that are meant to be too much.
pub(super) const fn stay_well(kind: Kind, count: usize) -> usize {
    if kind.is_momentary() || count == 0 || count >= MAJORITY {
        0
    } else {
        MAJORITY
    }
}

/// From when on each node is well.
#[derive(Debug, Default)]
struct Health {
    from: [Duration; NODES],
}

impl Health {
    /// From when on so many nodes can be spared. None has two faults at once.
    fn spares(&self, count: usize, kind: Kind) -> Duration {
        let mut from = self.from;
        from.sort_unstable();
        let needed = (count + stay_well(kind, count)).checked_sub(1);
        needed.map_or(Duration::ZERO, |last| from[last.min(NODES - 1)])
    }

    fn well_at(&self, at: Duration) -> Vec<usize> {
        let mut nodes: Vec<usize> = (0..NODES).collect();
        nodes.retain(|node| self.from[*node] <= at);
        nodes
    }
}

fn node_count(kind: Kind, random: &mut Random) -> usize {
    match kind {
        Kind::StopMajority | Kind::FlushKeys | Kind::EvictUnseen => MAJORITY,
        // One vote too early is seen best where no majority remembers.
        Kind::KillNodes | Kind::Forget | Kind::RestartEmpty | Kind::FailBack | Kind::Evict
            if random.one_in(4) =>
        {
            MAJORITY
        }
        // The first one keeps its guard record: a fleet that has lost all of them looks like a new one.
        Kind::Init | Kind::Repair => 2,
        Kind::Examine => 1,
        Kind::StopNodes
        | Kind::KillNodes
        | Kind::Forget
        | Kind::RestartEmpty
        | Kind::FailBack
        | Kind::Evict
        | Kind::StepClocks
        | Kind::FlushScripts
        | Kind::KillConnections
        | Kind::LoseRequests
        | Kind::LoseReplies => 1 + usize::from(random.one_in(3)),
        Kind::CutOffClient
        | Kind::DeafenClient
        | Kind::PauseClient
        | Kind::KillClient
        | Kind::ResetDevice => 0,
    }
}

fn duration(kind: Kind, ttl: Duration, random: &mut Random) -> Duration {
    match kind {
        _ if kind.is_momentary() => Duration::ZERO,
        // A key that is gone before its time is missed when the clock is right again.
        Kind::KillNodes | Kind::StepClocks => random.between(away(ttl), ttl * 3 / 2),
        Kind::Forget | Kind::RestartEmpty | Kind::Init | Kind::Repair => quarantine(ttl),
        Kind::FailBack => ttl / 2 + quarantine(ttl),
        // Until the end of every lease, and then maybe without a guard record.
        Kind::Evict => away(ttl) + quarantine(ttl),
        Kind::StopMajority => random.between(ttl / 20, ttl / 2),
        // Past the end of the lease, mostly.
        Kind::CutOffClient => random.between(ttl / 2, ttl * 3 / 2),
        // Half of them so short that what was not heard is heard in the same round, late.
        Kind::DeafenClient if random.one_in(2) => random.between(ttl / 60, ttl / 15),
        Kind::DeafenClient => random.between(ttl / 2, ttl * 3 / 2),
        _ => random.between(ttl / 10, ttl),
    }
}

/// For how long a node has no vote when the fault is over, as far as it is planned.
fn voteless(kind: Kind, ttl: Duration) -> Duration {
    match kind {
        // Clients see that it has restarted, and do not know for how long it was away.
        Kind::KillNodes => away(ttl),
        // Clients look again at a node that had no vote after a second.
        Kind::Evict => ttl / 4 + Duration::from_secs(1),
        // They write a guard record before its quarantine begins.
        _ if kind.is_loss() => ttl / 4,
        _ => Duration::ZERO,
    }
}

/// "A bit more than the max TTL", as the specification has it.
pub(super) fn away(ttl: Duration) -> Duration {
    ttl + ttl / 20 + Duration::from_millis(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(800);
    const LENGTH: Duration = Duration::from_secs(16);

    fn plans() -> impl Iterator<Item = Vec<Planned>> {
        (0..500).map(|seed| plan(seed, LENGTH, TTL, &Kind::BEARABLE))
    }

    #[test]
    fn the_same_seed_gives_the_same_schedule() {
        let of = |seed| plan(seed, LENGTH, TTL, &Kind::BEARABLE);
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
    }

    #[test]
    fn every_kind_comes_also_in_a_short_run() {
        for planned in plans() {
            for kind in Kind::BEARABLE {
                assert!(planned.iter().any(|fault| fault.kind == kind), "{kind:?}");
            }
        }
    }

    #[test]
    fn a_node_that_forgets_stays_away_for_longer_than_any_lease() {
        let mut killed: Vec<_> = plans().flatten().collect();
        killed.retain(|fault| fault.kind == Kind::KillNodes);
        assert!(!killed.is_empty());
        for fault in killed {
            assert!(fault.lasts > TTL, "{fault:?}");
        }
    }

    #[test]
    fn no_node_has_two_faults_at_once() {
        for planned in plans() {
            for (number, fault) in planned.iter().enumerate() {
                for later in &planned[number + 1..] {
                    let shares = fault.nodes.iter().any(|node| later.nodes.contains(node));
                    assert!(
                        !shares || later.at > fault.at + fault.lasts,
                        "{fault:?}, {later:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_majority_is_well_but_for_faults_that_are_meant_to_be_too_much() {
        for planned in plans() {
            let lasting = planned.iter().filter(|fault| fault.lasts > Duration::ZERO);
            for fault in lasting.clone().filter(|fault| fault.nodes.len() < MAJORITY) {
                let others = lasting.clone().filter(|other| {
                    let is_minor = other.nodes.len() < MAJORITY;
                    is_minor && other.at <= fault.at && other.at + other.lasts > fault.at
                });
                let ill: usize = others.map(|other| other.nodes.len()).sum();
                assert!(ill < MAJORITY, "{fault:?}");
            }
        }
    }

    #[test]
    fn every_kind_comes_also_where_nodes_are_in_quarantine() {
        for seed in 0..500 {
            let planned = plan(seed, LENGTH * 5 / 3, TTL, &Kind::BEARABLE_FENCED);
            for kind in Kind::BEARABLE_FENCED {
                let mut planned = planned.iter();
                assert!(planned.any(|fault| fault.kind == kind), "{seed}: {kind:?}");
            }
        }
    }

    #[test]
    fn a_clock_that_was_stepped_is_right_again_when_all_leases_are_over() {
        let plans = (0..500).map(|seed| plan(seed, LENGTH, TTL, &Kind::BEARABLE_FENCED));
        let mut stepped: Vec<_> = plans.flatten().collect();
        stepped.retain(|fault| fault.kind == Kind::StepClocks);
        assert!(!stepped.is_empty());
        for fault in stepped {
            assert!(
                fault.lasts > TTL && fault.nodes.len() < MAJORITY,
                "{fault:?}"
            );
        }
    }

    #[test]
    fn a_long_run_is_as_busy_as_a_short_one() {
        let ttl = Duration::from_secs(3);
        let minute = plan(1, Duration::from_secs(60), ttl, &Kind::BEARABLE).len();
        let ten = plan(1, Duration::from_secs(600), ttl, &Kind::BEARABLE).len();
        assert!((minute * 8..minute * 12).contains(&ten), "{minute}, {ten}");
    }
}
