//! One node of three that answers what it wants.

use core::time::Duration;
use std::boxed::Box;

use embassy_futures::join::join;
use embassy_futures::select::{Either, select};
use redlock_core::mock::{MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Reading, Reply, RunId};
use redlock_core::{
    Clock, Denial, Failure, Fence, Fencing, NodeError, NodeErrorOf, Options, Redlock, Transport,
};

use crate::world::*;

/// The time of the nodes when a test begins, in microseconds.
const MOCK_EPOCH: u64 = 1_700_000_000_000_000;

/// What the first node does.
#[derive(Clone, Copy)]
enum Malice {
    /// It refuses, and claims to be this node.
    Claims(usize),
    /// It denies its vote, and reports a fence that is so far ahead of the nodes' time, in microseconds.
    Reports(u64),
    /// It grants, or then refuses to extend, and tells a time that is so far behind, in microseconds.
    IsBehind(u64),
}

/// A way to a node. Its answer takes some time.
struct Way<'c> {
    nodes: &'c [Node<'c>; 3],
    number: usize,
    clock: &'c MockClock,
    delay: Duration,
    malice: Option<Malice>,
}

impl Transport for Way<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        (&self.nodes[self.number]).name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        match self.malice {
            _ if command.is_release() && self.malice.is_some() => Ok(Reply::Released),
            Some(Malice::Claims(_)) => Ok(Reply::Held(None)),
            Some(Malice::Reports(ahead)) => {
                let time = MOCK_EPOCH + self.clock.now().as_micros();
                let reading = Reading::new(time, Fence::from_u64(time.saturating_add(ahead)));
                let failure = Failure::Denied(Denial::Stale(reading));
                Err(NodeError::new(self.name(), failure))
            }
            Some(Malice::IsBehind(behind)) => {
                let time = MOCK_EPOCH + self.clock.now().as_micros() - behind;
                let reading = Reading::new(time, Fence::from_u64(1));
                if command.is_acquire() {
                    return Ok(Reply::Acquired(Some(reading)));
                }
                let failure = Failure::Denied(Denial::TooOld(reading));
                Err(NodeError::new(self.name(), failure))
            }
            None => {
                let arrives_at = self.clock.now().saturating_add(self.delay);
                self.clock.sleep_until(arrives_at).await;
                (&self.nodes[self.number]).execute(command).await
            }
        }
    }

    fn run_id(&self) -> Option<RunId> {
        let node = match self.malice {
            Some(Malice::Claims(other)) => other,
            _ => self.number,
        };
        (&self.nodes[node]).run_id()
    }
}

type Client<'c> = Redlock<Way<'c>, &'c MockClock, SeededEntropy, 3>;

fn client_beside<'c>(
    nodes: &'c [Node<'c>; 3],
    clock: &'c MockClock,
    seed: u64,
    (malice, delays): (Malice, [u64; 3]),
    options: Options,
) -> Client<'c> {
    let ways = delays.into_iter().enumerate().map(|(number, delay)| Way {
        nodes,
        number,
        clock,
        delay: ms(delay),
        malice: (number == 0).then_some(malice),
    });
    Redlock::new(ways, clock, SeededEntropy::new(seed), options).unwrap()
}

/// Each of two clients is near one honest node, and is told that the hostile one is that node.
#[test]
fn a_node_that_claims_to_be_another_one_hides_no_split_votes() {
    const TRIALS: u64 = unless_miri(100, 1);

    let mut won = 0;
    for trial in 0..TRIALS {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        let make = |seed, claims, delays| {
            let first = (Malice::Claims(claims), delays);
            client_beside(&nodes, &clock, seed, first, one_round())
        };
        let mut one = make(2 * trial, 1, [1, 1, 10]);
        let mut two = make(2 * trial + 1, 2, [1, 10, 1]);
        let tries = join(
            Box::pin(one.try_acquire(KEY)),
            Box::pin(two.try_acquire(KEY)),
        );
        let (one, two) = clock.run(tries);
        won += u64::from(one.is_ok() || two.is_ok());
    }
    assert!(won >= unless_miri(95, 0), "{won} of {TRIALS} trials");
}

/// It reports fences near the end of the window to one client, which takes the lock again and again, and a fence of the far
/// future to the other one.
#[test]
fn a_node_that_reports_wrong_fences_keeps_no_client_from_a_lock() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let make = |seed, ahead, wait| {
        let options = one_round().wait(wait);
        let options = options.fenced(Fencing::new(Fencing::WINDOW).unwrap());
        let malice = Malice::Reports(ahead);
        client_beside(&nodes, &clock, seed, (malice, [1; 3]), options.unwrap())
    };
    let mut often = make(1, 230_000, ms(1_000));
    let mut once = make(2, u64::MAX, ms(5_000));
    let takes_often = async {
        loop {
            if let Ok(lease) = often.acquire(KEY).await {
                often.release(lease).await;
            }
            clock.sleep_until(clock.now().saturating_add(ms(100))).await;
        }
    };
    let takes_once = async {
        clock.sleep_until(at(ms(500))).await;
        once.acquire(KEY).await.map(drop)
    };
    let first = select(Box::pin(takes_often), Box::pin(takes_once));
    let Either::Second(result) = clock.run(first);
    result.unwrap();
}

/// It answers first.
#[test]
fn a_node_that_grants_and_tells_a_wrong_time_makes_no_extension_fail() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = one_round().fenced(Fencing::new(Fencing::WINDOW).unwrap());
    let malice = (Malice::IsBehind(3_600_000_000), [0; 3]);
    nodes[1].set_latency(ms(1));
    nodes[2].set_latency(ms(2));
    let mut redlock = client_beside(&nodes, &clock, 1, malice, options.unwrap());
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    for _ in 0..3 {
        clock.advance(ms(4_500));
        clock.run(redlock.extend(&mut lease)).unwrap();
    }
}
