//! The test kit itself: clock and nodes.

use core::future::pending;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, Ordering};
use core::task::{Context, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::task::Wake;

use redlock_core::mock::{MockClock, MockError, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Clock, Entropy, Failure, Instant, Token, Transport};

use crate::world::*;

fn acquire<'a>(key: &'a [u8], token: &'a Token) -> Command<'a> {
    Command::acquire(key, token, 100, VoteConditions::NONE)
}

#[test]
fn time_jumps_to_the_next_deadline_and_stands_still_otherwise() {
    let clock = MockClock::new();
    let at = Instant::from_micros(1_500);
    clock.run(async {
        clock.sleep_until(at).await;
        assert_eq!(clock.now(), at);
    });
    assert_eq!(clock.now(), at);
}

#[test]
#[should_panic(expected = "nothing can wake it")]
fn a_future_that_waits_for_nothing_is_a_panic_and_not_a_hang() {
    MockClock::new().run(pending::<()>());
}

#[test]
fn a_key_lives_for_its_ttl() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let token = thief();
    let reply = clock.run((&node).execute(&acquire(b"dock-7", &token)));
    assert_eq!(reply, Ok(Reply::Acquired(None)));
    clock.advance(ms(99));
    assert_eq!(node.ttl(KEY), Some(ms(1)));
    // Redis counts whole milliseconds, and the last one to its end.
    clock.advance(ms(2) - Duration::from_micros(1));
    assert_eq!(node.token(KEY), Some(token));
    assert_eq!(node.ttl(KEY), Some(ms(0)));
    assert!(!node.is_empty());
    clock.advance(Duration::from_micros(1));
    assert!(node.is_empty());
}

#[test]
fn commands_arrive_in_the_order_in_which_they_were_sent_however_slow_the_first_was() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let token = thief();
    node.set_latency(ms(50));
    let first = acquire(b"dock-7", &token);
    let release = Command::release(b"dock-7", &token);
    let (mut one, mut two) = (&node, &node);
    let replies = clock.run(embassy_futures::join::join(one.execute(&first), async {
        node.set_latency(Duration::ZERO);
        two.execute(&release).await
    }));
    assert_eq!(replies, (Ok(Reply::Acquired(None)), Ok(Reply::Released)));
}

#[test]
fn a_node_that_stops_loses_what_was_on_its_way_and_refuses_the_rest() {
    let clock = MockClock::new();
    let node = MockNode::new(3, &clock);
    let token = thief();
    node.hang();
    let command = acquire(b"dock-7", &token);
    let mut way = &node;
    let (lost, ()) = clock.run(embassy_futures::join::join(way.execute(&command), async {
        node.stop();
    }));
    let lost = lost.unwrap_err();
    assert_eq!(*lost.failure(), Failure::Transport(MockError::Reset));
    let refused = clock.run((&node).execute(&command)).unwrap_err();
    assert_eq!(refused.to_string(), "node 3: connection refused");
    node.restart();
    assert!(node.is_empty());
}

#[test]
fn a_node_has_bounds_and_says_so() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let token = thief();
    let too_long = clock
        .run((&node).execute(&acquire(&[b'k'; 65], &token)))
        .unwrap_err();
    assert_eq!(
        *too_long.failure(),
        Failure::Transport(MockError::KeyTooLong)
    );
    for key in 0..64_u8 {
        let reply = clock.run((&node).execute(&acquire(&[key], &token)));
        assert_eq!(reply, Ok(Reply::Acquired(None)));
    }
    let full = clock
        .run((&node).execute(&acquire(b"one more", &token)))
        .unwrap_err();
    assert_eq!(*full.failure(), Failure::Transport(MockError::OutOfMemory));
}

#[test]
fn abandoned_commands_do_not_fill_a_node_up() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let token = thief();
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..unless_miri(1_000, 65) {
        node.hang();
        let command = acquire(b"dock-7", &token);
        let mut way = &node;
        let mut call = Box::pin(way.execute(&command));
        assert!(call.as_mut().poll(&mut context).is_pending());
        drop(call);
        node.resume();
    }
    assert_eq!(node.len(), 1);
}

#[test]
fn a_node_that_resumes_does_everything_that_was_sent_in_its_order() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let [first, second] = [[1; Token::LEN], [2; Token::LEN]].map(Token::from_bytes);
    node.hang();
    for command in [
        acquire(b"dock-7", &first),
        acquire(b"dock-7", &second),
        Command::release(b"dock-7", &first),
        acquire(b"dock-7", &second),
        acquire(b"dock-8", &first),
    ] {
        // Sent by its first poll, and dropped.
        assert!(poll_once(pin!((&node).execute(&command))).is_pending());
    }
    clock.advance(ms(30));
    assert!(node.is_empty(), "it hangs");
    node.resume();
    assert_eq!(node.token("dock-7"), Some(second));
    assert_eq!(node.token("dock-8"), Some(first));
    assert_eq!(node.ttl("dock-7"), Some(ms(100)), "from then on");
}

#[test]
fn a_command_takes_half_of_the_latency_to_the_node_and_half_back() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let token = thief();
    node.set_latency(ms(40));
    let command = acquire(b"dock-7", &token);
    let reply = clock.run((&node).execute(&command));
    assert_eq!(
        (reply, clock.now()),
        (Ok(Reply::Acquired(None)), at(ms(40)))
    );
    assert_eq!(node.ttl(KEY), Some(ms(80)), "set after 20 ms");
}

#[test]
fn a_node_is_restarted_with_its_data_or_without() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    node.set(KEY, thief(), ms(100));
    node.stop();
    clock.advance(ms(10));
    node.restart();
    assert_eq!(node.ttl(KEY), Some(ms(90)), "time has gone on");
    node.stop();
    clock.advance(ms(91));
    node.restart();
    assert_eq!(node.token(KEY), None);
    node.set(KEY, thief(), ms(100));
    node.restart_empty();
    assert!(node.is_empty());
    node.set(KEY, thief(), ms(100));
    node.clear();
    assert!(node.is_empty());
    let token = thief();
    let reply = clock.run((&node).execute(&acquire(b"dock-7", &token)));
    assert_eq!(reply, Ok(Reply::Acquired(None)), "and answers");
}

#[test]
fn only_the_token_under_a_key_can_extend_or_release_it() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let [mine, other] = [[1; Token::LEN], [2; Token::LEN]].map(Token::from_bytes);
    let key = b"dock-7";
    let extend = |token| Command::extend(key, token, 500);
    let release = |token| Command::release(key, token);
    let execute = |command: Command<'_>| clock.run((&node).execute(&command));
    assert_eq!(execute(extend(&mine)), Ok(Reply::NotMine));
    assert_eq!(execute(release(&mine)), Ok(Reply::NotMine));
    assert_eq!(execute(acquire(key, &mine)), Ok(Reply::Acquired(None)));
    assert_eq!(
        execute(acquire(key, &mine)),
        Ok(Reply::Held(None)),
        "also its own"
    );
    assert_eq!(execute(extend(&other)), Ok(Reply::NotMine));
    assert_eq!(execute(release(&other)), Ok(Reply::NotMine));
    assert_eq!(node.ttl(KEY), Some(ms(100)));
    assert_eq!(execute(extend(&mine)), Ok(Reply::Extended(None)));
    assert_eq!(node.ttl(KEY), Some(ms(500)));
    clock.advance(ms(501));
    assert_eq!(execute(extend(&mine)), Ok(Reply::NotMine), "expired");
    assert_eq!(execute(acquire(key, &other)), Ok(Reply::Acquired(None)));
    assert_eq!(execute(release(&mine)), Ok(Reply::NotMine));
    assert_eq!(execute(release(&other)), Ok(Reply::Released));
    assert!(node.is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "its time grows with the square of the room")]
fn a_node_that_hangs_for_too_long_has_no_room_for_more_commands() {
    let clock = MockClock::new();
    let node = MockNode::new(2, &clock);
    let token = thief();
    let command = acquire(b"dock-7", &token);
    node.hang();
    for _ in 0..64 {
        assert!(poll_once(pin!((&node).execute(&command))).is_pending());
    }
    let full = clock.run((&node).execute(&command)).unwrap_err();
    assert_eq!(full.node().number(), 2);
    assert_eq!(*full.failure(), Failure::Transport(MockError::Full));
    node.resume();
    assert_eq!(clock.run((&node).execute(&command)), Ok(Reply::Held(None)));
}

#[test]
#[should_panic(expected = "no room for the key")]
fn a_test_that_sets_a_key_too_long_is_stopped() {
    let clock = MockClock::new();
    MockNode::new(1, &clock).set(&"k".repeat(65), thief(), TTL);
}

/// Records whether a task was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Woken {
    fn is_woken(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_task_that_waits_for_a_node_is_woken_when_it_resumes_or_stops() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let token = thief();
    let command = acquire(b"dock-7", &token);
    for change in [MockNode::resume, MockNode::stop] {
        node.hang();
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut way = &node;
        let mut call = pin!(way.execute(&command));
        let mut context = Context::from_waker(&waker);
        assert!(call.as_mut().poll(&mut context).is_pending());
        assert!(!woken.is_woken());
        change(&node);
        assert!(woken.is_woken());
        assert!(call.as_mut().poll(&mut context).is_ready());
    }
}

#[test]
fn only_tasks_whose_deadline_has_passed_are_woken() {
    let clock = MockClock::new();
    let [early, late] = [Arc::new(Woken::default()), Arc::new(Woken::default())];
    let mut sleeps = [
        (pin!(clock.sleep_until(at(ms(5)))), &early),
        (pin!(clock.sleep_until(at(ms(6)))), &late),
    ];
    for (sleep, woken) in &mut sleeps {
        let waker = Waker::from(Arc::clone(woken));
        let mut context = Context::from_waker(&waker);
        assert!(sleep.as_mut().poll(&mut context).is_pending());
    }
    for (passed, are_woken) in [
        (ms(4), [false, false]),
        (ms(1), [true, false]),
        (ms(1), [true, true]),
    ] {
        clock.advance(passed);
        let woken = [&early, &late].map(|woken| woken.is_woken());
        assert_eq!(woken, are_woken, "{:?}", clock.now());
    }
}

#[test]
fn a_sleep_that_is_no_longer_polled_does_not_stop_time() {
    let clock = MockClock::new();
    let mut forgotten = pin!(clock.sleep_until(at(ms(5))));
    assert!(poll_once(forgotten.as_mut()).is_pending());
    clock.run(clock.sleep_until(at(ms(10))));
    assert_eq!(clock.now(), at(ms(10)));
}

#[test]
fn time_does_not_go_back() {
    let clock = MockClock::new();
    clock.advance(ms(10));
    clock.run(clock.sleep_until(at(ms(3))));
    assert_eq!(clock.now(), at(ms(10)));
    clock.advance(Duration::MAX);
    assert_eq!(clock.now(), Instant::MAX);
    clock.advance(ms(1));
    assert_eq!(clock.now(), Instant::MAX);
}

#[test]
fn a_sleep_that_is_over_or_dropped_makes_room_for_another() {
    let clock = MockClock::new();
    for _ in 0..unless_miri(300, 10) {
        assert!(poll_once(pin!(clock.sleep_until(at(TTL)))).is_pending());
    }
    let mut sleeps: Vec<_> = (0..unless_miri(256, 10))
        .map(|_| Box::pin(clock.sleep_until(at(TTL))))
        .collect();
    assert!(
        sleeps
            .iter_mut()
            .all(|sleep| poll_once(sleep.as_mut()).is_pending())
    );
    clock.advance(TTL);
    assert!(
        sleeps
            .iter_mut()
            .all(|sleep| poll_once(sleep.as_mut()).is_ready())
    );
}

#[test]
#[cfg_attr(miri, ignore = "its time grows with the square of the room")]
#[should_panic(expected = "more futures sleep on one MockClock")]
fn more_sleeps_than_there_is_room_for_are_a_panic_that_says_so() {
    let clock = MockClock::new();
    let mut sleeps: Vec<_> = (0..257)
        .map(|_| Box::pin(clock.sleep_until(at(TTL))))
        .collect();
    for sleep in &mut sleeps {
        assert!(poll_once(sleep.as_mut()).is_pending());
    }
}

#[test]
fn a_seed_gives_the_same_bytes_each_time_and_another_seed_gives_others() {
    let bytes = |seed| {
        let mut bytes = [0; 100];
        SeededEntropy::new(seed).fill(&mut bytes);
        bytes
    };
    assert_eq!(bytes(1), bytes(1));
    assert_ne!(bytes(1), bytes(2));
    assert!(bytes(0).iter().filter(|byte| **byte == 0).count() < 10);
}

#[test]
fn seeded_randomness_is_that_of_splitmix64() {
    let mut bytes = [0; 20];
    SeededEntropy::new(1_234_567).fill(&mut bytes);
    // What every implementation of it gives for this seed.
    let [first, second, third] = [
        6_457_827_717_110_365_317_u64,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ]
    .map(u64::to_le_bytes);
    assert_eq!(bytes[..8], first);
    assert_eq!(bytes[8..16], second);
    assert_eq!(
        bytes[16..],
        third[..4],
        "what does not fill a number is cut"
    );
}
