//! The limit of rounds in flight, which adapts to the nodes.

use std::time::Duration;

use redlock_core::Instant;

/// The largest number of rounds in flight. It grows while nodes answer well within the node timeout, and shrinks when
/// they take much of it: additive increase, multiplicative decrease, as in TCP.
///
/// The time of each round is compared with the shortest recent one, so that the latency of the network does not look
/// like a queue. While few rounds are in flight, none of them waits in our own queues. Then the shortest time is
/// measured again, because networks change and near nodes may be down.
#[derive(Debug)]
pub(super) struct Limit {
    slots: usize,
    /// Whether it doubles while the nodes answer in time: at first, and after it was at its minimum.
    doubles: bool,
    /// Rounds that were answered in time since the limit grew.
    in_time: usize,
    /// The shortest time of a recent round, and when it ended.
    shortest: Option<(Duration, Instant)>,
    /// When the limit shrank last. A round that began before does not shrink it again.
    shrunk_at: Instant,
}

/// So small that no round waits long for the others.
const FIRST: usize = 128;
const LEAST: usize = 32;
/// What the queue of a node sends before it waits for answers.
const MOST: usize = 2_048;

const LATELY: Duration = Duration::from_secs(10);

impl Limit {
    pub(super) const fn new() -> Self {
        Self {
            slots: FIRST,
            doubles: true,
            in_time: 0,
            shortest: None,
            shrunk_at: Instant::from_micros(0),
        }
    }

    #[cfg(all(test, redlock_loom))]
    pub(super) const fn with_slots(slots: usize) -> Self {
        Self {
            slots,
            ..Self::new()
        }
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Adapts to a round that a quorum of nodes answered. `is_full` tells whether no further round could begin.
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
            self.shrink(started_at, now, self.slots / 4 * 3);
        } else if is_full && queued <= room / 4 {
            self.grow();
        }
    }

    /// Adapts to a round that no quorum answered. If it took long, commands may have waited in our own queues.
    pub(super) fn unanswered(&mut self, started_at: Instant, now: Instant, node_timeout: Duration) {
        if now.saturating_duration_since(started_at) > node_timeout / 2 {
            self.shrink(started_at, now, self.slots / 2);
        }
    }

    fn shortest(&mut self, took: Duration, now: Instant) -> Duration {
        let is_old = |at| {
            let age = now.saturating_duration_since(at);
            age >= LATELY && self.slots <= FIRST || self.slots == LEAST && at < self.shrunk_at
        };
        match self.shortest {
            Some((shortest, at)) if shortest < took && !is_old(at) => shortest,
            _ => {
                self.shortest = Some((took, now));
                took
            }
        }
    }

    /// Grows by one for each round while it doubles, otherwise by an eighth after as many rounds as the limit allows.
    fn grow(&mut self) {
        self.in_time += 1;
        let more = if self.doubles {
            1
        } else if self.in_time >= self.slots {
            self.slots / 8
        } else {
            return;
        };
        self.in_time = 0;
        self.slots = self.slots.saturating_add(more).min(MOST);
    }

    fn shrink(&mut self, started_at: Instant, now: Instant, slots: usize) {
        if started_at < self.shrunk_at {
            return;
        }
        self.slots = slots.max(LEAST);
        self.doubles = self.slots == LEAST;
        self.in_time = 0;
        self.shrunk_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(100);

    /// Rounds that take `millis` each, one after the other.
    fn rounds(limit: &mut Limit, clock: &mut u64, millis: u64, count: usize) {
        for _ in 0..count {
            let started_at = Instant::from_micros(*clock);
            *clock += millis * 1_000;
            let now = Instant::from_micros(*clock);
            limit.answered(started_at, now, TIMEOUT, true);
        }
    }

    #[test]
    fn it_grows_while_nodes_answer_in_time_and_tasks_wait_up_to_what_a_node_queue_sends() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, FIRST);
        assert_eq!(limit.slots(), 2 * FIRST);
        limit.answered(
            Instant::from_micros(0),
            Instant::from_micros(1_000),
            TIMEOUT,
            false,
        );
        assert_eq!(limit.slots(), 2 * FIRST, "no task waits");
        rounds(&mut limit, &mut clock, 1, 2 * MOST);
        assert_eq!(limit.slots(), MOST);
    }

    #[test]
    fn latency_does_not_shrink_the_limit_and_queueing_does() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 80, 10);
        assert_eq!(limit.slots(), FIRST + 10);
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, 10);
        rounds(&mut limit, &mut clock, 80, 1);
        assert_eq!(limit.slots(), (FIRST + 10) / 4 * 3);
        // Half-way it stays.
        rounds(&mut limit, &mut clock, 40, 100);
        assert_eq!(limit.slots(), (FIRST + 10) / 4 * 3);
    }

    #[test]
    fn rounds_that_fail_together_halve_the_limit_once_and_it_has_a_minimum() {
        let (mut limit, start) = (Limit::new(), Instant::from_micros(0));
        let later = Instant::from_micros(90_000);
        for _ in 0..FIRST {
            limit.unanswered(start, later, TIMEOUT);
        }
        assert_eq!(limit.slots(), FIRST / 2);
        // Refused at once: this does not indicate a queue.
        limit.unanswered(later, later, TIMEOUT);
        assert_eq!(limit.slots(), FIRST / 2);
        for moment in 1..10 {
            let started_at = Instant::from_micros(moment * 100_000);
            let now = Instant::from_micros((moment + 1) * 100_000);
            limit.unanswered(started_at, now, TIMEOUT);
        }
        assert_eq!(limit.slots(), LEAST);
    }

    #[test]
    fn at_its_minimum_the_limit_takes_a_longer_time_for_latency_and_doubles_again() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        rounds(&mut limit, &mut clock, 1, 1);
        // The near nodes are down.
        rounds(&mut limit, &mut clock, 60, 10);
        rounds(&mut limit, &mut clock, 60, LEAST);
        assert!(limit.slots() > LEAST + LEAST / 2, "{}", limit.slots());
    }

    #[test]
    fn with_few_rounds_the_shortest_time_is_measured_again_after_a_while() {
        let (mut limit, mut clock) = (Limit::new(), 0);
        limit.slots = FIRST - 2;
        rounds(&mut limit, &mut clock, 1, 1);
        rounds(&mut limit, &mut clock, 40, 10);
        assert_eq!(limit.slots(), FIRST - 1);
        clock += 10_000_000;
        rounds(&mut limit, &mut clock, 40, 2);
        assert_eq!(limit.slots(), FIRST + 1);
    }
}
