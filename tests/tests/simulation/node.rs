//! The node of the simulation and the one of the test kit, which the conformance suite compares with a real
//! Redis, answer alike.

use core::cell::Cell;
use core::future::Future;
use core::pin::pin;
use core::time::Duration;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use redlock_core::mock::MemoryNode;
use redlock_core::{Clock, Command, Instant, Reply, Token, Transport};
use redlock_tests::simulation::Node;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// A clock that is set, also back.
struct SetClock(Cell<Instant>);

impl Clock for SetClock {
    fn now(&self) -> Instant {
        self.0.get()
    }

    fn resolution(&self) -> Duration {
        Duration::from_micros(1)
    }

    async fn sleep_until(&self, _deadline: Instant) {
        std::future::pending::<()>().await;
    }
}

#[test]
fn two_nodes_give_the_same_replies_whatever_they_are_asked_and_however_time_goes() {
    for seed in 0..300 {
        let mut random = Rng::with_seed(seed);
        let clock = SetClock(Cell::new(Instant::from_micros(1_000_000)));
        let memory = MemoryNode::new(1, &clock);
        let mut node = Node::default();
        for step in 0..200 {
            let now = moved(clock.now(), &mut random);
            clock.0.set(now);
            let token = Token::from_bytes([random.u8(1..4); Token::LEN]);
            let key = KEYS[random.usize(..KEYS.len())].as_bytes();
            let ttl_ms = random.u32(1..5);
            let token = &token;
            let command = match random.u8(..3) {
                0 => Command::Acquire { key, token, ttl_ms },
                1 => Command::Extend { key, token, ttl_ms },
                _ => Command::Release { key, token },
            };
            let told = format!("seed {seed}, step {step}: {command:?} at {now:?}");
            assert_eq!(
                node.execute(&command, now),
                reply(&memory, &command),
                "{told}"
            );
            for key in KEYS {
                let entry = node.entry(key.as_bytes(), now);
                assert_eq!(entry.map(|entry| entry.token), memory.token(key), "{told}");
                let left = entry.map(|entry| entry.expires_at.saturating_duration_since(now));
                assert_eq!(left, memory.ttl(key), "{told}");
            }
        }
    }
}

#[test]
fn two_nodes_forget_alike() {
    let clock = SetClock(Cell::new(Instant::from_micros(0)));
    let memory = MemoryNode::new(1, &clock);
    let mut node = Node::default();
    let token = &Token::from_bytes([1; Token::LEN]);
    for key in KEYS {
        let key = key.as_bytes();
        let command = Command::Acquire {
            key,
            token,
            ttl_ms: 1,
        };
        assert_eq!(
            node.execute(&command, clock.now()),
            reply(&memory, &command)
        );
    }
    memory.remove("a");
    node.remove(b"a");
    assert_eq!(node.entry(b"a", clock.now()), None);
    assert!(node.entry(b"b", clock.now()).is_some());
    assert_eq!(memory.len(), 2);
    memory.clear();
    node.clear();
    assert_eq!(node, Node::default());
    assert!(memory.is_empty());
}

/// Often to the very moment at which something expires, or next to it; now and then back.
fn moved(now: Instant, random: &mut Rng) -> Instant {
    let millisecond = Duration::from_millis(1);
    let microsecond = Duration::from_micros(1);
    match random.u8(..8) {
        0..=2 => now,
        3 => now.saturating_add(millisecond),
        4 => now.saturating_add(millisecond - microsecond),
        5 => now.saturating_add(microsecond),
        6 => now.saturating_add(random.u32(..4) * millisecond),
        _ => now.saturating_sub(random.u32(..3_000) * microsecond),
    }
}

fn reply(mut node: &MemoryNode<&SetClock>, command: &Command<'_>) -> Reply {
    let call = pin!(node.execute(command));
    let poll = call.poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(reply) = poll else {
        unreachable!("a node in memory answers at once");
    };
    reply.unwrap()
}
