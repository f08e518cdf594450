//! The number of places, and when it changes.

use std::time::Duration;

use redlock_core::Instant;

/// How many rounds are in flight at most. It grows while nodes answer well within the node timeout, and shrinks when
/// they take much of it: additive increase, multiplicative decrease, as TCP does it.
///
/// The time that nodes take is measured against the shortest, so that a far network is not taken for a queue. With few
/// rounds in flight there is no queue of ours: then it is measured anew, since networks change, and near nodes die.
#[derive(Debug)]
pub(super) struct Limit {
    places: usize,
    /// Whether it doubles while the nodes answer in time: at first, and after it has been at its least.
    doubles: bool,
    /// Rounds that were answered in time since it grew.
    in_time: usize,
    /// The shortest time that a round has taken of late, and when.
    shortest: Option<(Duration, Instant)>,
    /// A round that began before is no reason to shrink again.
    shrunk_at: Instant,
}

/// So few that a round waits for none of the others for long.
const FIRST: usize = 128;
const LEAST: usize = 32;
/// What a node's queue sends before it waits for answers.
const MOST: usize = 2_048;

const LATELY: Duration = Duration::from_secs(10);

impl Limit {
    pub(super) const fn new() -> Self {
        Self {
            places: FIRST,
            doubles: true,
            in_time: 0,
            shortest: None,
            shrunk_at: Instant::from_micros(0),
        }
    }

    pub(super) const fn places(&self) -> usize {
        self.places
    }

    /// A quorum of nodes has answered a round. `is_full` if no other round could have begun.
    pub(super) fn answered(
        &mut self,
        started_at: Instant,
        now: Instant,
        node_timeout: Duration,
        is_full: bool,
    ) {
        let took = now.saturating_duration_since(started_at);
        let shortest = self.shortest(took, now);
        let queued = took.saturating_sub(shortest);
        let room = node_timeout.saturating_sub(shortest);
        if queued > room / 2 {
            self.shrink(started_at, now, self.places / 4 * 3);
        } else if is_full && queued <= room / 4 {
            self.grow();
        }
    }

    /// No quorum of nodes has answered. If that took long, commands may have waited in our own queues.
    pub(super) fn unanswered(&mut self, started_at: Instant, now: Instant, node_timeout: Duration) {
        if now.saturating_duration_since(started_at) > node_timeout / 2 {
            self.shrink(started_at, now, self.places / 2);
        }
    }

    fn shortest(&mut self, took: Duration, now: Instant) -> Duration {
        let is_old = |at| {
            let age = now.saturating_duration_since(at);
            age >= LATELY && self.places <= FIRST || self.places == LEAST && at < self.shrunk_at
        };
        match self.shortest {
            Some((shortest, at)) if shortest < took && !is_old(at) => shortest,
            _ => {
                self.shortest = Some((took, now));
                took
            }
        }
    }

    /// By one for each round, or by an eighth for all of them together.
    fn grow(&mut self) {
        self.in_time += 1;
        let more = if self.doubles {
            1
        } else if self.in_time >= self.places {
            self.places / 8
        } else {
            return;
        };
        self.in_time = 0;
        self.places = self.places.saturating_add(more).min(MOST);
    }

    fn shrink(&mut self, started_at: Instant, now: Instant, places: usize) {
        if started_at < self.shrunk_at {
            return;
        }
        self.places = places.max(LEAST);
        self.doubles = self.places == LEAST;
        self.in_time = 0;
        self.shrunk_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// Rounds that take `millis` each, one generation after the other.
    fn rounds(limit: &mut Limit, clock: &mut u64, millis: u64, count: usize) {
        for _ in 0..count {
            let started_at = Instant::from_micros(*clock);
            *clock += millis * 1_000;
            let now = Instant::from_micros(*clock);
            limit.answered(started_at, now, TIMEOUT, true);
        }
    }

    #[test]
    fn it_grows_while_nodes_answer_in_time_and_others_wait_and_never_beyond_what_a_node_takes() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, FIRST);
        assert_eq!(limit.places(), 2 * FIRST);
        limit.answered(
            Instant::from_micros(0),
            Instant::from_micros(1_000),
            TIMEOUT,
            false,
        );
        assert_eq!(limit.places(), 2 * FIRST, "nobody waits");
        rounds(&mut limit, &mut clock, 1, 2 * MOST);
        assert_eq!(limit.places(), MOST);
    }

    #[test]
    fn a_far_network_is_not_a_queue_and_a_queue_is() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 80, 10);
        assert_eq!(limit.places(), FIRST + 10);
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, 10);
        rounds(&mut limit, &mut clock, 80, 1);
        assert_eq!(limit.places(), (FIRST + 10) / 4 * 3);
        // Half-way it stays.
        rounds(&mut limit, &mut clock, 40, 100);
        assert_eq!(limit.places(), (FIRST + 10) / 4 * 3);
    }

    #[test]
    fn one_bad_moment_costs_half_of_the_places_once_and_some_always_stay() {
        let (mut limit, start) = (Limit::new(), Instant::from_micros(0));
        let later = Instant::from_micros(90_000);
        for _ in 0..FIRST {
            limit.unanswered(start, later, TIMEOUT);
        }
        assert_eq!(limit.places(), FIRST / 2);
        // Refused at once: no sign of a queue.
        limit.unanswered(later, later, TIMEOUT);
        assert_eq!(limit.places(), FIRST / 2);
        for moment in 1..10 {
            let started_at = Instant::from_micros(moment * 100_000);
            let now = Instant::from_micros((moment + 1) * 100_000);
            limit.unanswered(started_at, now, TIMEOUT);
        }
        assert_eq!(limit.places(), LEAST);
    }

    #[test]
    fn where_it_is_at_its_least_a_longer_way_is_no_queue_and_it_doubles_again() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, 1);
        // The near nodes have died.
        rounds(&mut limit, &mut clock, 60, 10);
        rounds(&mut limit, &mut clock, 60, LEAST);
        assert!(limit.places() > LEAST + LEAST / 2, "{}", limit.places());
    }

    #[test]
    fn with_few_rounds_the_shortest_time_is_measured_anew_now_and_then() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        limit.places = FIRST - 2;
        rounds(&mut limit, &mut clock, 1, 1);
        rounds(&mut limit, &mut clock, 40, 10);
        assert_eq!(limit.places(), FIRST - 1);
        clock += 10_000_000;
        rounds(&mut limit, &mut clock, 40, 2);
        assert_eq!(limit.places(), FIRST + 1);
    }
}
