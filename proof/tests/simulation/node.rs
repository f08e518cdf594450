//! The node of the simulation and the one of the test kit, which the conformance suite compares with a real
//! Redis, answer alike.

use core::cell::{Cell, RefCell};
use core::future::Future;
use core::pin::pin;
use core::time::Duration;
use std::task::{Context, Poll, Waker};

use fastrand::Rng;
use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Proposal, ReplicationId, Reply, Rules, RunId};
use redlock_core::{
    Clock, Denial, Failure, Fence, Instant, NodeError, NodeErrorOf, Options, Redlock, Token,
    Transport,
};
use redlock_proof::simulation::Node;

const KEYS: [&str; 3] = ["a", "b", "c"];

/// What the wall clock of a node in memory shows at the origin of its clock.
const ORIGIN: u64 = 1_700_000_000_000_000;

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
    let fleet = proposal_of(fenced());
    let other = proposal_of(fenced().max_ttl(Duration::from_millis(90)).unwrap());
    for seed in 0..300 {
        let mut random = Rng::with_seed(seed);
        let clock = SetClock(Cell::new(Instant::from_micros(1_000_000)));
        let memory = MockNode::new(1, &clock);
        let mut node = Node::new(RunId::new(1), None).coarse();
        let mut lives = 1;
        // In some runs it loses what it has, again and again.
        let odds_of_loss = [200, 30][random.usize(..2)];
        for step in 0..200 {
            let now = moved(clock.now(), &mut random);
            clock.0.set(now);
            let wall = wall(now);
            if random.u32(..odds_of_loss) == 0 {
                // The quarantine of the fleet is over a second long.
                clock
                    .0
                    .set(now.saturating_add(Duration::from_millis(1_100)));
                lives += 1;
                let history = ReplicationId::new(lives);
                match random.u8(..5) {
                    0 => {
                        memory.evict("a");
                        node.evict(b"a");
                    }
                    1 => {
                        memory.save();
                        memory.fail_back();
                        node.fail_back(node.data(), history);
                    }
                    2 => {
                        memory.restart();
                        node.restart(RunId::new(lives));
                        node.fail_back(node.data(), history);
                    }
                    _ => {
                        memory.clear();
                        node.clear();
                    }
                }
                continue;
            }
            let token = Token::from_bytes([random.u8(1..4); Token::LEN]);
            let key = KEYS[random.usize(..KEYS.len())].as_bytes();
            let ttl_ms = random.u32(1..5);
            let token = &token;
            let fence = wall.as_micros() + random.u64(..12_000) - 6_000;
            let fence = Fence::from_u64(fence / 500 * 500);
            let proposal = match random.u8(..8) {
                0..3 => None,
                3 if random.u8(..10) == 0 => Some(Proposal {
                    fence,
                    vouches: random.bool(),
                    ..other
                }),
                _ => Some(Proposal {
                    fence,
                    time: wall.as_micros() + random.u64(..6_000) - 3_000,
                    vouches: random.bool(),
                    ..fleet
                }),
            };
            let command = match random.u8(..3) {
                0 => Command::acquire(key, token, ttl_ms, Rules::NONE).with_proposal(proposal),
                1 => Command::extend(key, token, ttl_ms).with_proposal(proposal),
                _ => Command::release(key, token).with_proposal(proposal),
            };
            let told = format!("seed {seed}, step {step}: {command:?} at {now:?}");
            assert_eq!(
                node.execute(&command, wall),
                reply(&memory, &command),
                "{told}"
            );
            for key in KEYS {
                let entry = node.entry(key.as_bytes(), wall);
                assert_eq!(entry.map(|entry| entry.token), memory.token(key), "{told}");
                // The last millisecond is there up to its end.
                let left = entry.map(|entry| {
                    let last = entry.expires_at.as_micros() / 1_000 - 1;
                    Duration::from_millis(last - wall.as_micros() / 1_000)
                });
                assert_eq!(left, memory.ttl(key), "{told}");
            }
        }
    }
}

#[test]
fn two_nodes_forget_alike() {
    let clock = SetClock(Cell::new(Instant::from_micros(0)));
    let memory = MockNode::new(1, &clock);
    let mut node = Node::new(RunId::new(1), None).coarse();
    let token = &Token::from_bytes([1; Token::LEN]);
    for key in KEYS {
        let key = key.as_bytes();
        let command = Command::acquire(key, token, 1, Rules::NONE);
        let now = wall(clock.now());
        assert_eq!(node.execute(&command, now), reply(&memory, &command));
    }
    memory.remove("a");
    node.remove(b"a");
    assert_eq!(node.entry(b"a", wall(clock.now())), None);
    assert!(node.entry(b"b", wall(clock.now())).is_some());
    assert_eq!(memory.len(), 2);
    memory.clear();
    node.clear();
    assert_eq!(node.entry(b"b", wall(clock.now())), None);
    assert!(memory.is_empty());
}

fn wall(now: Instant) -> Instant {
    Instant::from_micros(now.as_micros() + ORIGIN)
}

/// A window of 2 ms, and a quarantine of little over a second.
fn fenced() -> Options {
    let millis = Duration::from_millis;
    let options = Options::new(millis(4)).unwrap();
    let options = options.fenced(millis(2)).unwrap();
    let options = options.max_ttl(millis(20)).unwrap();
    options.step_back(millis(3)).unwrap()
}

/// Some proposal of a client with `options`: nobody else makes a fleet.
fn proposal_of(options: Options) -> Proposal {
    struct Tap<'t>(&'t RefCell<Option<Proposal>>);

    impl Transport for Tap<'_> {
        type Name = &'static str;
        type Error = core::fmt::Error;

        fn name(&self) -> &'static str {
            "a node"
        }

        async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
            if command.is_acquire() {
                *self.0.borrow_mut() = command.proposal;
            }
            Err(NodeError::new(
                self.name(),
                Failure::Transport(core::fmt::Error),
            ))
        }
    }

    let (clock, seen) = (MockClock::new(), RefCell::new(None));
    let lock = Redlock::<_, _, _, 1>::new([Tap(&seen)], &clock, SeededEntropy::new(1), options);
    assert!(clock.run(lock.unwrap().try_acquire("a")).is_err());
    seen.take().unwrap()
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

fn reply(mut node: &MockNode<&SetClock>, command: &Command<'_>) -> Result<Reply, Denial> {
    let call = pin!(node.execute(command));
    let poll = call.poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(reply) = poll else {
        unreachable!("a node in memory answers at once");
    };
    reply.map_err(|error| error.denial().unwrap())
}
