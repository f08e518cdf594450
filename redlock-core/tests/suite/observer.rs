//! What an observer learns of a lock.

use core::cell::RefCell;
use core::time::Duration;

use redlock_core::mock::{MockClock, MockError, MockName, SeededEntropy};
use redlock_core::{
    AcquireOutcome, Failure, HoldEnd, HoldError, NodeError, Observer, Options, Redlock,
};

use crate::world::{KEY, Node, TIMEOUT, TTL, ms, one_round, steal};

/// Writes down what it learns.
#[derive(Debug, Default)]
struct Recorder(RefCell<Vec<String>>);

impl Recorder {
    fn push(&self, event: String) {
        self.0.borrow_mut().push(event);
    }

    /// What was learned since the last call. `answered` is left out: most events are such.
    fn take(&self) -> Vec<String> {
        let mut events = self.0.take();
        events.retain(|event| !event.starts_with("answered"));
        events
    }
}

type MockNodeError = NodeError<MockName, MockError>;

impl Observer<MockNodeError> for &Recorder {
    fn wait_begun(&self, key: &[u8]) {
        assert_eq!(key, KEY.as_bytes());
        self.push("wait begun".to_owned());
    }

    fn wait_ended(&self) {
        self.push("wait ended".to_owned());
    }

    fn acquire_ended(&self, key: &[u8], outcome: AcquireOutcome, took: Duration, tries: u32) {
        assert_eq!(key, KEY.as_bytes());
        let (outcome, took) = (outcome.as_str(), took.as_millis());
        self.push(format!("{outcome} after {took} ms, {tries} tries"));
    }

    fn handed_off(&self, _key: &[u8], took: Duration) {
        self.push(format!("handed off in {} ms", took.as_millis()));
    }

    fn node_answered(&self, node: usize) {
        self.push(format!("answered {node}"));
    }

    fn node_failed(&self, node: usize, error: &MockNodeError) {
        let is_timeout = matches!(error.failure(), Failure::TimedOut(_));
        let kind = if is_timeout { "timed out" } else { "failed" };
        self.push(format!("node {node} {kind}"));
    }

    fn hold_ended(&self, key: &[u8], end: HoldEnd, held: Duration) {
        assert_eq!(key, KEY.as_bytes());
        self.push(format!("{} after {} ms", end.as_str(), held.as_millis()));
    }
}

type Observed<'c> = Redlock<&'c Node<'c>, &'c MockClock, SeededEntropy, 5, &'c Recorder>;

fn observed<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
    recorder: &'c Recorder,
    options: Options,
) -> Observed<'c> {
    let redlock = Redlock::<_, _, _, 5>::new(nodes, clock, SeededEntropy::new(1), options);
    redlock.unwrap().with_observer(recorder)
}

#[test]
fn an_acquire_and_a_release_are_reported_with_their_times() {
    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 3] = Node::array(&clock);
    nodes.iter().for_each(|node| node.set_latency(ms(2)));
    let mut redlock = observed(&nodes, &clock, &recorder, one_round());
    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    let wanted = ["wait begun", "acquired after 2 ms, 1 tries", "wait ended"];
    assert_eq!(recorder.take(), wanted);
    clock.advance(ms(500));
    clock.run(redlock.release(lease));
    assert_eq!(recorder.take(), ["released after 500 ms"]);

    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    clock.advance(TTL);
    recorder.take();
    clock.run(redlock.release(lease));
    assert_eq!(recorder.take(), ["expired after 10000 ms"]);
}

#[test]
fn a_vote_that_a_second_name_of_a_server_costs_is_reported_also_if_the_lock_is_won() {
    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 2] = Node::array(&clock);
    nodes[0].set_latency(ms(2));
    let names = [&nodes[0], &nodes[1], &nodes[1]];
    let entropy = SeededEntropy::new(1);
    let redlock = Redlock::<_, _, _, 3>::new(names, &clock, entropy, one_round()).unwrap();
    let mut redlock = redlock.with_observer(&recorder);
    for _ in 0..2 {
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        let events = recorder.take();
        assert!(events.contains(&"node 2 failed".to_owned()), "{events:?}");
        clock.run(redlock.release(lease));
        recorder.take();
    }
}

#[test]
fn each_way_in_which_an_acquire_fails_is_reported_and_so_is_each_node_that_failed() {
    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 3] = Node::array(&clock);
    let mut redlock = observed(&nodes, &clock, &recorder, one_round());
    steal(&nodes);
    clock.run(redlock.try_acquire(KEY)).unwrap_err();
    let wanted = ["wait begun", "held after 0 ms, 1 tries", "wait ended"];
    assert_eq!(recorder.take(), wanted);

    nodes.iter().for_each(|node| node.remove(KEY));
    nodes[0].hang();
    nodes[2].stop();
    clock.run(redlock.try_acquire(KEY)).unwrap_err();
    let failed = ["node 0 timed out", "node 2 failed"];
    let told = recorder.take();
    assert_eq!(told[1..3], failed, "{told:?}");
    let ended = format!("unreachable after {} ms, 1 tries", TIMEOUT.as_millis());
    assert!(told.contains(&ended), "{told:?}");
}

#[test]
fn a_node_that_answers_is_reported_in_each_round() {
    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 1] = Node::array(&clock);
    let mut redlock = observed(&nodes, &clock, &recorder, one_round());
    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    clock.run(redlock.release(lease));
    let answered = recorder.0.take();
    let answered = answered.iter().filter(|event| *event == "answered 0");
    assert_eq!(answered.count(), 2);
}

#[test]
fn an_acquire_that_is_dropped_ends_its_wait() {
    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 3] = Node::array(&clock);
    nodes.iter().for_each(Node::hang);
    let mut redlock = observed(&nodes, &clock, &recorder, one_round());
    {
        let mut acquire = Box::pin(redlock.acquire(KEY));
        assert!(crate::world::poll_once(acquire.as_mut()).is_pending());
        assert_eq!(recorder.take(), ["wait begun"]);
    }
    assert_eq!(recorder.take(), ["wait ended"]);
}

#[test]
fn the_end_of_a_hold_is_reported_as_released_or_lost() {
    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 3] = Node::array(&clock);
    let mut redlock = observed(&nodes, &clock, &recorder, one_round());
    let work = async |_: &_| redlock_core::Clock::sleep_until(&clock, crate::world::at(ms(60_000)));
    clock
        .run(redlock.hold(KEY, async |lease| work(lease).await.await))
        .unwrap();
    let told = recorder.take();
    assert_eq!(told.last().unwrap(), "released after 60000 ms");

    let stolen = async |_: &_| {
        steal(&nodes);
        core::future::pending::<()>().await;
    };
    let held = clock.run(redlock.hold(KEY, stolen));
    assert!(matches!(held, Err(HoldError::Lost(_))), "{held:?}");
    let told = recorder.take();
    let ends: Vec<_> = told
        .iter()
        .filter(|event| event.starts_with("lost after"))
        .collect();
    assert_eq!(ends.len(), 1, "{told:?}");
}

#[test]
fn a_hand_off_is_reported_to_the_client_that_was_called() {
    use core::pin::pin;

    use redlock_core::transport::Mailbox;

    let (clock, recorder) = (MockClock::new(), Recorder::default());
    let nodes: [Node<'_>; 3] = Node::array(&clock);
    nodes.iter().for_each(|node| node.set_latency(ms(2)));
    let options = one_round().wait(Duration::from_secs(60));
    let client = |number: u8| {
        let links = nodes
            .iter()
            .map(|node| node.client(Mailbox::new([number; 8])));
        let entropy = SeededEntropy::new(number.into());
        Redlock::<_, _, _, 5>::new(links, &clock, entropy, options).unwrap()
    };
    let mut holder = client(1);
    let mut waiter = client(2).with_observer(&recorder);
    let lease = clock.run(holder.acquire(KEY)).unwrap();
    let release = async {
        redlock_core::Clock::sleep_until(&clock, crate::world::at(ms(500))).await;
        holder.release(lease).await;
    };
    let acquire = async { waiter.acquire(KEY).await.map(drop) };
    let both = pin!(embassy_futures::join::join(
        Box::pin(release),
        Box::pin(acquire)
    ));
    clock.run(both).1.unwrap();
    let told = recorder.take();
    let handed_off: Vec<_> = told
        .iter()
        .filter(|event| event.starts_with("handed"))
        .collect();
    assert_eq!(handed_off, ["handed off in 2 ms"], "{told:?}");
}
