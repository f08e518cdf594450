//! The test kit itself: clock and nodes.

use core::future::pending;
use core::time::Duration;

use redlock_core::mock::{MemoryErrorKind, MemoryNode, MockClock};
use redlock_core::{Clock, Command, Instant, Reply, Token, Transport};

use crate::world::*;

fn acquire<'a>(key: &'a [u8], token: &'a Token) -> Command<'a> {
    Command::Acquire {
        key,
        token,
        ttl_ms: 100,
    }
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
    let node = MemoryNode::new(1, &clock);
    let token = thief();
    let reply = clock.run((&node).execute(&acquire(b"dock-7", &token)));
    assert_eq!(reply, Ok(Reply::Acquired));
    clock.advance(ms(100) - Duration::from_micros(1));
    assert_eq!(node.token(KEY), Some(token));
    assert_eq!(node.ttl(KEY), Some(Duration::from_micros(1)));
    clock.advance(Duration::from_micros(1));
    assert!(node.is_empty());
}

#[test]
fn commands_arrive_in_the_order_in_which_they_were_sent_however_slow_the_first_was() {
    let clock = MockClock::new();
    let node = MemoryNode::new(1, &clock);
    let token = thief();
    node.set_latency(ms(50));
    let first = acquire(b"dock-7", &token);
    let release = Command::Release {
        key: b"dock-7",
        token: &token,
    };
    let (mut one, mut two) = (&node, &node);
    let replies = clock.run(embassy_futures::join::join(one.execute(&first), async {
        node.set_latency(Duration::ZERO);
        two.execute(&release).await
    }));
    assert_eq!(replies, (Ok(Reply::Acquired), Ok(Reply::Released)));
}

#[test]
fn a_node_that_stops_loses_what_was_on_its_way_and_refuses_the_rest() {
    let clock = MockClock::new();
    let node = MemoryNode::new(3, &clock);
    let token = thief();
    node.hang();
    let command = acquire(b"dock-7", &token);
    let mut way = &node;
    let (lost, ()) = clock.run(embassy_futures::join::join(way.execute(&command), async {
        node.stop();
    }));
    assert_eq!(lost.unwrap_err().kind(), MemoryErrorKind::Reset);
    let refused = clock.run((&node).execute(&command)).unwrap_err();
    assert_eq!(
        (refused.node(), refused.kind()),
        (3, MemoryErrorKind::Refused)
    );
    node.restart();
    assert!(node.is_empty());
}

#[test]
fn a_node_has_bounds_and_says_so() {
    let clock = MockClock::new();
    let node = MemoryNode::new(1, &clock);
    let token = thief();
    let too_long = clock
        .run((&node).execute(&acquire(&[b'k'; 65], &token)))
        .unwrap_err();
    assert_eq!(too_long.kind(), MemoryErrorKind::KeyTooLong);
    for key in 0..64_u8 {
        let reply = clock.run((&node).execute(&acquire(&[key], &token)));
        assert_eq!(reply, Ok(Reply::Acquired));
    }
    let full = clock
        .run((&node).execute(&acquire(b"one more", &token)))
        .unwrap_err();
    assert_eq!(full.kind(), MemoryErrorKind::OutOfMemory);
}

#[test]
fn abandoned_commands_do_not_fill_a_node_up() {
    let clock = MockClock::new();
    let node = MemoryNode::new(1, &clock);
    let token = thief();
    let mut context = core::task::Context::from_waker(core::task::Waker::noop());
    for _ in 0..1_000 {
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
