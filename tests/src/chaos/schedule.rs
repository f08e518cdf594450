//! When what is done to whom: the same seed, the same schedule.

use core::time::Duration;

use super::fault::{Kind, MAJORITY, NODES};
use super::random::Random;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) kind: Kind,
    /// How long after the beginning of the run, at the earliest.
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    /// None for what is done to a client: which one is seen when it is time.
    pub(super) nodes: Vec<usize>,
}

/// Faults of all `kinds`, again and again in another order, for as long as `length`. No node has two at
/// once. Leases last for `ttl` at most.
pub(super) fn plan(seed: u64, length: Duration, ttl: Duration, kinds: &[Kind]) -> Vec<Planned> {
    let mut random = Random::new(seed);
    // Every kind has to come, also in a short run; and in a long one there is no need to wait.
    let count = u32::try_from(kinds.len()).unwrap_or(u32::MAX).max(1);
    let pace = (length / count / 2).min(ttl / 3);
    let mut free_from = [Duration::ZERO; NODES];
    let mut planned = Vec::new();
    let mut at = Duration::ZERO;
    loop {
        for kind in random.shuffled(kinds) {
            at += random.between(pace / 2, pace * 3 / 2);
            let mut nodes = random.shuffled(&NODE_NUMBERS);
            nodes.sort_by_key(|node| free_from[*node].max(at));
            nodes.truncate(node_count(kind, &mut random));
            if let Some(last) = nodes.last() {
                at = at.max(free_from[*last]);
            }
            if at >= length {
                return planned;
            }
            let lasts = duration(kind, ttl, &mut random);
            for node in &nodes {
                // Some time of health in between, in which the clients find the node again.
                free_from[*node] = at + lasts + ttl / 10;
            }
            nodes.sort_unstable();
            planned.push(Planned {
                kind,
                at,
                lasts,
                nodes,
            });
        }
    }
}

fn node_count(kind: Kind, random: &mut Random) -> usize {
    match kind {
        Kind::StopMajority | Kind::FlushKeys | Kind::RestartAtOnce => MAJORITY,
        Kind::KillNodes if random.one_in(4) => MAJORITY,
        Kind::StopNodes
        | Kind::KillNodes
        | Kind::FlushScripts
        | Kind::KillConnections
        | Kind::LoseRequests
        | Kind::LoseReplies => 1 + usize::from(random.one_in(2)),
        Kind::CutOffClient | Kind::PauseClient | Kind::KillClient | Kind::ResetDevice => 0,
    }
}

fn duration(kind: Kind, ttl: Duration, random: &mut Random) -> Duration {
    match kind {
        _ if kind.is_momentary() => Duration::ZERO,
        Kind::KillNodes => random.between(away(ttl), ttl * 2),
        Kind::StopMajority => random.between(ttl / 10, ttl),
        _ => random.between(ttl / 10, ttl * 3 / 2),
    }
}

/// "A bit more than the max TTL", as the specification has it.
fn away(ttl: Duration) -> Duration {
    ttl + ttl / 20 + Duration::from_millis(10)
}

const NODE_NUMBERS: [usize; NODES] = {
    let mut numbers = [0; NODES];
    let mut number = 0;
    while number < NODES {
        numbers[number] = number;
        number += 1;
    }
    numbers
};

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(600);
    const LENGTH: Duration = Duration::from_secs(4);

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
    fn a_long_run_is_as_busy_as_a_short_one() {
        let ttl = Duration::from_secs(3);
        let minute = plan(1, Duration::from_secs(60), ttl, &Kind::BEARABLE).len();
        let ten = plan(1, Duration::from_secs(600), ttl, &Kind::BEARABLE).len();
        assert!((minute * 8..minute * 12).contains(&ten), "{minute}, {ten}");
    }
}
