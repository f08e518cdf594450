//! What an observer learns of tasks that share one lock.

use core::cell::RefCell;
use core::time::Duration;

use embassy_futures::join::join;
use embassy_futures::select::select;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use redlock_core::mock::{MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::{AcquireOutcome, Clock, HoldEnd, NodeError, Observer, Redlock};
use redlock_embassy::{Options, Shared};

use crate::world::ms;

/// Writes down what it learns of acquires and leases.
#[derive(Debug, Default)]
struct Recorder(RefCell<Vec<String>>);

impl Recorder {
    fn push(&self, event: impl Into<String>) {
        self.0.borrow_mut().push(event.into());
    }
}

impl Observer<NodeError<MockName, MockError>> for &Recorder {
    fn wait_begun(&self, _key: &[u8]) {
        self.push("wait begun");
    }

    fn wait_ended(&self) {
        self.push("wait ended");
    }

    fn acquire_ended(&self, _key: &[u8], outcome: AcquireOutcome, took: Duration, tries: u32) {
        let (outcome, took) = (outcome.as_str(), took.as_millis());
        self.push(format!("{outcome} after {took} ms, {tries} tries"));
    }

    fn hold_ended(&self, key: &[u8], end: HoldEnd, held: Duration) {
        assert_eq!(key, b"dock-7");
        self.push(format!("{} after {} ms", end.as_str(), held.as_millis()));
    }
}

type Observed<'a> = Shared<
    NoopRawMutex,
    &'a MockNode<&'a MockClock>,
    &'a MockClock,
    SeededEntropy,
    3,
    &'a Recorder,
>;

/// What `work` tells the observer of a lock with leases of ten seconds, over three nodes that take 4 ms to answer.
fn observed(work: impl AsyncFnOnce(&Observed<'_>, &MockClock)) -> Vec<String> {
    let (clock, recorder) = (&MockClock::new(), &Recorder::default());
    let nodes: &[_; 3] = &MockNode::array(clock);
    for node in nodes {
        node.set_latency(ms(4));
    }
    let options = Options::new(ms(10_000)).unwrap();
    let redlock = Redlock::new(nodes, clock, SeededEntropy::new(1), options).unwrap();
    let shared = Shared::new(redlock.with_observer(recorder));
    clock.run(work(&shared, clock));
    recorder.0.take()
}

async fn sleep(clock: &MockClock, time: Duration) {
    clock.sleep_until(clock.now().saturating_add(time)).await;
}

/// Another task has the turn for this long.
async fn keep_a_turn(shared: &Observed<'_>, clock: &MockClock, time: Duration) {
    let turn = shared.turn().await;
    sleep(clock, time).await;
    drop(turn);
}

/// A lock that was acquired after another task had the turn for half a second, and was released at once.
#[track_caller]
fn expect_half_a_second(events: &[String]) {
    let expected = [
        "wait begun",
        "acquired after 504 ms, 1 tries",
        "wait ended",
        "released after 0 ms",
    ];
    assert_eq!(events, expected);
}

#[test]
fn the_time_of_a_shared_acquire_has_the_wait_for_its_first_turn() {
    expect_half_a_second(&observed(async |shared, clock| {
        let acquire = shared.acquire("dock-7");
        let ((), lease) = join(keep_a_turn(shared, clock, ms(500)), acquire).await;
        shared.release(lease.unwrap()).await;
    }));
    expect_half_a_second(&observed(async |shared, clock| {
        let acquire = shared.try_acquire("dock-7");
        let ((), lease) = join(keep_a_turn(shared, clock, ms(500)), acquire).await;
        shared.release(lease.unwrap()).await;
    }));
    expect_half_a_second(&observed(async |shared, clock| {
        let hold = shared.hold("dock-7", async |_| ());
        let ((), done) = join(keep_a_turn(shared, clock, ms(500)), hold).await;
        done.unwrap();
    }));
}

#[test]
fn a_shared_acquire_that_is_dropped_before_its_first_turn_has_waited() {
    let events = observed(async |shared, clock| {
        let acquire = select(shared.acquire("dock-7"), sleep(clock, ms(100)));
        join(keep_a_turn(shared, clock, ms(500)), acquire).await;
    });
    assert_eq!(events, ["wait begun", "wait ended"]);
}

#[test]
fn the_end_of_a_shared_hold_that_is_dropped_is_reported_once_and_when_it_is_dropped() {
    for (dropped_after, end) in [
        (104, "dropped after 100 ms"),
        (11_004, "expired after 11000 ms"),
    ] {
        let events = observed(async |shared, clock| {
            let hold = shared.hold("dock-7", async |_| {
                sleep(clock, ms(50)).await;
                // Too busy to be dropped when the validity ends.
                clock.advance(ms(dropped_after - 54));
                core::future::pending::<()>().await;
            });
            select(hold, sleep(clock, ms(dropped_after))).await;
            sleep(clock, ms(3_600_000)).await;
            shared.release_abandoned().await;
        });
        assert_eq!(events[3..], [end]);
    }
}

#[test]
fn a_lease_that_a_shared_hold_has_lost_is_reported_as_lost() {
    let options = Options::new(ms(10_000)).unwrap();
    for (max_extensions, end) in [(0, "lost after "), (100, "released after 20000 ms")] {
        let events = observed(async |shared, clock| {
            let options = options.max_extensions(max_extensions);
            shared.turn().await.set_options(options);
            let work = async |_: &_| sleep(clock, ms(20_000)).await;
            let _lost = shared.hold("dock-7", work).await;
        });
        assert!(
            events.len() == 4 && events[3].starts_with(end),
            "{events:?}"
        );
    }
}

#[test]
fn the_end_of_a_lease_whose_release_is_dropped_is_reported_when_it_is_dropped() {
    let events = observed(async |shared, clock| {
        let lease = shared.acquire("dock-7").await.unwrap();
        let release = select(shared.release(lease), sleep(clock, ms(100)));
        join(keep_a_turn(shared, clock, ms(500)), release).await;
        shared.release_abandoned().await;
    });
    assert_eq!(events[3..], ["dropped after 100 ms"]);
}
