//! Fenced locks over nodes whose clocks differ, by clients whose clocks run at other rates.

use core::pin::pin;
use core::time::Duration;

use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::{Clock, Fencing, Instant, Options, Redlock};

use crate::world::{Node, ms, poll_once};

/// A client's clock that is fast or slow by so many millionths.
#[derive(Debug, Clone, Copy)]
struct Rated<'c>(&'c MockClock, i128);

impl Clock for Rated<'_> {
    fn now(&self) -> Instant {
        let micros = i128::from(self.0.now().as_micros());
        let micros = micros * (1_000_000 + self.1) / 1_000_000;
        Instant::from_micros(micros.try_into().unwrap())
    }

    fn resolution(&self) -> Duration {
        self.0.resolution()
    }

    async fn sleep_until(&self, deadline: Instant) {
        let micros = i128::from(deadline.as_micros());
        let micros = micros * 1_000_000 / (1_000_000 + self.1) + 1;
        let deadline = Instant::from_micros(micros.try_into().unwrap());
        self.0.sleep_until(deadline).await;
    }
}

/// One clock jumps back and on, the other two differ by the `skew`, and the clients' ideas of the nodes' time are as far
/// apart as the window allows.
#[test]
fn a_minority_of_clocks_may_jump_while_the_others_agree_within_the_window() {
    for skew in [ms(0), ms(50), ms(120), ms(200), ms(240)] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        let [_, ahead, jumping] = &nodes;
        let skew_micros = i64::try_from(skew.as_micros()).unwrap();
        ahead.set_clock_step(skew_micros);
        clock.advance(Duration::from_secs(100));
        let options = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
        let options = options.fenced(Fencing::default()).unwrap();
        let client = |ppm, seed| {
            let rated = Rated(&clock, ppm);
            Redlock::<_, _, _, 3>::new(&nodes, rated, SeededEntropy::new(seed), options).unwrap()
        };
        // Both within `drift_ppm`. Each learns the nodes' time, and relies on it 25 and 9 seconds later.
        let (mut slow, mut fast) = (client(-9_900, 1), client(9_900, 2));
        let lease = clock.run(slow.try_acquire("other")).unwrap();
        clock.run(slow.release(lease));
        let later = ms(9_012) - skew;
        clock.advance(later);
        jumping.set_clock_step(skew_micros);
        let lease = clock.run(fast.try_acquire("another")).unwrap();
        clock.run(fast.release(lease));
        clock.advance(ms(25_000) - later);

        jumping.set_clock_step(-495_000);
        let first = clock.run(slow.try_acquire("dock")).unwrap();
        clock.advance(later);
        jumping.set_clock_step(skew_micros + 495_000);
        let second = loop {
            match clock.run(fast.try_acquire("dock")) {
                Ok(lease) => break lease,
                Err(_) => clock.advance(ms(1)),
            }
        };
        assert!(second.fence() > first.fence());
        let left = first.remaining(slow.clock().now());
        assert!(left.is_zero(), "{skew:?} apart: two holders for {left:?}");
    }
}

/// The estimate of the nodes' time is used later without a round that could correct it: by a release that leaves the lock to
/// its `min_hold`, and by the first try of a wait.
#[test]
fn a_client_that_stood_still_in_a_round_keeps_the_nodes_time_that_it_knew() {
    for is_held in [false, true] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        let options = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
        let options = options.fenced(Fencing::default()).unwrap();
        let [mut lock, mut other] = [1, 2].map(|seed| {
            Redlock::<_, _, _, 3>::new(&nodes, &clock, SeededEntropy::new(seed), options).unwrap()
        });
        let lease = clock.run(lock.try_acquire("other")).unwrap();
        clock.run(lock.release(lease));
        let known = lock.clock_offset().unwrap();
        let _held = is_held.then(|| clock.run(other.try_acquire("dock")).unwrap());
        nodes.iter().for_each(|node| node.set_latency(ms(2)));
        let acquired = {
            let mut attempt = pin!(lock.try_acquire("dock"));
            assert!(poll_once(attempt.as_mut()).is_pending());
            clock.advance(ms(2_000));
            clock.run(attempt)
        };
        assert_eq!(acquired.is_err(), is_held, "{acquired:?}");
        assert_eq!(lock.clock_offset(), Some(known));
    }
}

/// A fence that a client has proposed when its idea of the time was ahead of the window does not hide the one that the nodes have
/// accepted, from a holder whose idea is ahead too.
#[test]
fn a_client_whose_time_is_ahead_of_the_window_wins_behind_a_holder_whose_time_is_ahead_within_it() {
    let took = |holder_idle: Duration| {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        nodes.iter().for_each(|node| node.set_latency(ms(2)));
        let options = Options::new(ms(10_000)).unwrap();
        let options = options.fenced(Fencing::default()).unwrap();
        let client = |seed| {
            let rated = Rated(&clock, 9_900);
            Redlock::<_, _, _, 5>::new(&nodes, rated, SeededEntropy::new(seed), options).unwrap()
        };
        let (mut holder, mut late) = (client(1), client(2));
        // Each learns the nodes' time, and relies on it later.
        for (client, idle) in [
            (&mut late, ms(60_000) - holder_idle),
            (&mut holder, holder_idle),
        ] {
            let lease = clock.run(client.try_acquire("dock")).unwrap();
            clock.run(client.release(lease));
            clock.advance(idle);
        }
        let lease = clock.run(holder.try_acquire("dock")).unwrap();
        clock.run(holder.release(lease));
        let start = clock.now();
        let lease = clock.run(late.try_acquire("dock")).unwrap();
        let took = clock.now().saturating_duration_since(start);
        clock.run(late.release(lease));
        took
    };
    for seconds in [2, 8, 14, 20, 24] {
        // Two round trips.
        assert_eq!(took(ms(seconds * 1_000)), ms(4), "{seconds} s");
    }
}
