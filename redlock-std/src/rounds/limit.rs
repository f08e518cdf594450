//! The number of places, and when it changes.

use std::time::Duration;

use redlock_core::Instant;

/// How many rounds are in flight at most. It grows while nodes answer well within the node timeout, and shrinks when
/// they take much of it: additive increase, multiplicative decrease, as TCP does it.
///
/// The time that nodes take is measured against the shortest of late, so that a far network is not taken for a queue.
#[derive(Debug)]
pub(super) struct Limit {
    places: usize,
    /// Places that were taken away while rounds had them.
    owed: usize,
    /// Whether it still doubles while the nodes answer in time: until they first did not.
    doubles: bool,
    /// Rounds that were answered in time since it grew.
    in_time: usize,
    /// The shortest time that a round has taken of late, and when.
    shortest: Option<(Duration, Instant)>,
    /// A round that began before is no reason to shrink again.
    shrunk_at: Instant,
}

const FIRST: usize = 128;
const LEAST: usize = 16;
/// What a node's queue sends before it waits for answers.
const MOST: usize = 2_048;

/// The shortest time of a round is measured anew after that long: networks change.
const LATELY: Duration = Duration::from_secs(60);

impl Limit {
    pub(super) const fn new() -> Self {
        Self {
            places: FIRST,
            owed: 0,
            doubles: true,
            in_time: 0,
            shortest: None,
            shrunk_at: Instant::from_micros(0),
        }
    }

    pub(super) const fn places(&self) -> usize {
        self.places
    }

    /// Whether the place of a round that ends is taken away.
    pub(super) const fn takes_back(&mut self) -> bool {
        let takes = self.owed > 0;
        self.owed = self.owed.saturating_sub(1);
        takes
    }

    /// A quorum of nodes has answered a round. `is_full` if no other round could have begun. How many places are new.
    pub(super) fn answered(
        &mut self,
        started_at: Instant,
        now: Instant,
        node_timeout: Duration,
        is_full: bool,
    ) -> usize {
        let took = now.saturating_duration_since(started_at);
        let shortest = self.shortest(took, now);
        let queued = took.saturating_sub(shortest);
        let room = node_timeout.saturating_sub(shortest);
        if queued > room / 2 {
            self.shrink(started_at, now, self.places / 4 * 3);
            return 0;
        }
        if is_full && queued <= room / 4 {
            return self.grow();
        }
        0
    }

    /// No quorum of nodes has answered. If that took long, commands may have waited in our own queues.
    pub(super) fn unanswered(&mut self, started_at: Instant, now: Instant, node_timeout: Duration) {
        if now.saturating_duration_since(started_at) > node_timeout / 2 {
            self.shrink(started_at, now, self.places / 2);
        }
    }

    fn shortest(&mut self, took: Duration, now: Instant) -> Duration {
        match self.shortest {
            Some((shortest, at))
                if shortest < took && now.saturating_duration_since(at) < LATELY =>
            {
                shortest
            }
            _ => {
                self.shortest = Some((took, now));
                took
            }
        }
    }

    /// By one for each round, or by an eighth for all of them together.
    fn grow(&mut self) -> usize {
        self.in_time += 1;
        let more = if self.doubles {
            1
        } else if self.in_time >= self.places {
            self.places / 8
        } else {
            return 0;
        };
        let more = more.min(MOST.saturating_sub(self.places));
        self.in_time = 0;
        self.places += more;
        // Those that were to be taken away stay instead.
        let kept = more.min(self.owed);
        self.owed -= kept;
        more - kept
    }

    fn shrink(&mut self, started_at: Instant, now: Instant, places: usize) {
        if started_at < self.shrunk_at {
            return;
        }
        let places = places.max(LEAST);
        self.owed += self.places.saturating_sub(places);
        self.places = places;
        self.doubles = false;
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
        let idle = limit.answered(
            Instant::from_micros(0),
            Instant::from_micros(1_000),
            TIMEOUT,
            false,
        );
        assert_eq!((limit.places(), idle), (2 * FIRST, 0), "nobody waits");
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
        rounds(&mut limit, &mut clock, 40, 1_000);
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
    fn places_that_are_taken_away_are_gone_when_their_rounds_end_or_stay_if_it_grows_again() {
        let mut limit = Limit::new();
        limit.unanswered(
            Instant::from_micros(0),
            Instant::from_micros(90_000),
            TIMEOUT,
        );
        let taken = std::iter::repeat_with(|| limit.takes_back()).take(10);
        assert!(taken.into_iter().all(|taken| taken));
        let mut clock = 100_000;
        let mut more = 0;
        for _ in 0..limit.places() {
            let started_at = Instant::from_micros(clock);
            clock += 1_000;
            more += limit.answered(started_at, Instant::from_micros(clock), TIMEOUT, true);
        }
        assert_eq!(limit.places(), FIRST / 2 + FIRST / 16);
        assert_eq!(more, 0, "fewer are taken away instead");
        let owed = FIRST / 2 - 10 - FIRST / 16;
        let taken = std::iter::repeat_with(|| limit.takes_back()).take(FIRST);
        assert_eq!(taken.filter(|taken| *taken).count(), owed);
    }

    #[test]
    fn after_a_minute_a_network_may_have_become_slower() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, 1);
        clock += 60_000_000;
        rounds(&mut limit, &mut clock, 80, 2);
        assert_eq!(limit.places(), FIRST + 3);
    }
}
