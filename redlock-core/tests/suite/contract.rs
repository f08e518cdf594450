//! What the lock requires of its transports, and what it does not trust them with.

use core::fmt;
use core::pin::pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Reply, Verb};
use redlock_core::{
    AcquireError, Clock, Entropy, ExtendError, Failure, Instant, Lease, NodeError, NodeErrorOf,
    Options, Outcome, Redlock, Token, Transport,
};

use crate::world::*;

/// Answers every command with the same reply, or never, and records what it was sent.
#[derive(Debug, Clone)]
struct Script {
    reply: Option<Result<Reply, Broken>>,
    /// An acquire is granted, whatever the reply to everything else is.
    grants: bool,
    sent: Rc<RefCell<Vec<(&'static str, Token)>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Broken;

const NAME: &str = "a node";

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("broken")
    }
}

impl core::error::Error for Broken {}

impl Script {
    fn answering(reply: Option<Result<Reply, Broken>>) -> Self {
        Self {
            reply,
            grants: false,
            sent: Rc::default(),
        }
    }

    /// What it was sent, in order.
    fn verbs(&self) -> Vec<&'static str> {
        self.sent.borrow().iter().map(|(verb, _)| *verb).collect()
    }
}

impl Transport for Script {
    type Name = &'static str;
    type Error = Broken;

    fn name(&self) -> &'static str {
        NAME
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let (verb, granted) = carried_out(command);
        self.sent.borrow_mut().push((verb, *command.token));
        match self.reply {
            _ if self.grants && command.is_acquire() => Ok(granted),
            Some(result) => {
                result.map_err(|broken| NodeError::new(NAME, Failure::Transport(broken)))
            }
            None => core::future::pending().await,
        }
    }
}

/// What a command is called, and the reply of a node that carries it out.
const fn carried_out(command: &Command<'_>) -> (&'static str, Reply) {
    match command.verb {
        Verb::Acquire { .. } => ("acquire", Reply::Acquired(None)),
        Verb::Extend { .. } | Verb::Keep { .. } => ("extend", Reply::Extended(None)),
        Verb::Release => ("release", Reply::Released),
    }
}

fn lock<'c>(
    nodes: &[Script],
    clock: &'c MockClock,
) -> Redlock<Script, &'c MockClock, SeededEntropy, 5> {
    let nodes = nodes.iter().cloned();
    Redlock::new(nodes, clock, SeededEntropy::new(1), one_round()).unwrap()
}

#[test]
fn every_node_sees_every_command_although_the_first_ones_decide() {
    let clock = MockClock::new();
    let nodes = [(); 5].map(|()| Script::answering(Some(Ok(Reply::Acquired(None)))));
    let mut redlock = lock(&nodes, &clock);
    let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    clock.run(redlock.release(lease));
    for node in &nodes {
        assert_eq!(node.verbs(), ["acquire", "release"]);
    }
}

#[test]
fn every_node_that_may_have_granted_sees_the_clean_up() {
    let clock = MockClock::new();
    let answers = [
        Some(Ok(Reply::Held(None))),
        Some(Ok(Reply::Held(None))),
        Some(Ok(Reply::Held(None))),
        Some(Ok(Reply::Acquired(None))),
        None,
    ];
    let nodes = answers.map(Script::answering);
    assert!(clock.run(attempt(&mut lock(&nodes, &clock))).is_err());
    // A node that has refused has not set the key.
    assert!(nodes[..3].iter().all(|node| node.verbs() == ["acquire"]));
    assert!(
        nodes[3..]
            .iter()
            .all(|node| node.verbs() == ["acquire", "release"])
    );
}

#[test]
fn the_clean_up_is_handed_to_every_node_although_the_first_one_ends_it() {
    let clock = MockClock::new();
    let sent = RefCell::new(Vec::new());
    // The first one answers everything at once; the others never, though they may have granted.
    let nodes = [0, 1, 2, 3, 4].map(|number| First {
        number,
        sent: &sent,
    });
    let mut redlock =
        Redlock::<_, _, _, 5>::new(nodes, &clock, SeededEntropy::new(1), one_round()).unwrap();
    assert!(clock.run(redlock.try_acquire(KEY)).is_err());
    assert_eq!(clock.now(), at(TIMEOUT), "only the first is waited for");
    let sent = sent.borrow();
    let (acquires, releases) = sent.split_at(5);
    assert_eq!(acquires, [0, 1, 2, 3, 4].map(|node| ("acquire", node)));
    assert_eq!(releases, [0, 1, 2, 3, 4].map(|node| ("release", node)));
}

/// Records which node was sent what; node 0 answers.
#[derive(Debug)]
struct First<'a> {
    number: usize,
    sent: &'a RefCell<Vec<(&'static str, usize)>>,
}

impl Transport for First<'_> {
    type Name = &'static str;
    type Error = Broken;

    fn name(&self) -> &'static str {
        NAME
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let (verb, reply) = carried_out(command);
        self.sent.borrow_mut().push((verb, self.number));
        if self.number == 0 {
            return Ok(reply);
        }
        core::future::pending().await
    }
}

#[test]
fn the_time_that_it_takes_to_read_the_votes_counts_against_the_validity() {
    // Of 1000 ms, 988 ms are valid. All three nodes are read before the verdict.
    for (each, is_in_time) in [(ms(329), true), (ms(330), false)] {
        let clock = MockClock::new();
        let nodes = [(); 3].map(|()| Blocking {
            clock: &clock,
            each,
        });
        let options = Options::new(ms(1_000)).unwrap().wait(Duration::ZERO);
        let mut redlock =
            Redlock::<_, _, _, 3>::new(nodes, &clock, SeededEntropy::new(1), options).unwrap();
        let result = clock.run(redlock.try_acquire(KEY));
        assert_eq!(result.is_ok(), is_in_time, "{result:?}");
        if !is_in_time {
            assert!(
                matches!(result, Err(AcquireError::TooLate(_))),
                "{result:?}"
            );
        }
    }
    for (extended_at, is_in_time) in [(ms(687), true), (ms(688), false)] {
        let clock = MockClock::new();
        let each = ms(100);
        let nodes = [(); 3].map(|()| Blocking {
            clock: &clock,
            each,
        });
        let options = Options::new(ms(1_000)).unwrap();
        let mut redlock =
            Redlock::<_, _, _, 3>::new(nodes, &clock, SeededEntropy::new(1), options).unwrap();
        let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        let before = lease.valid_until();
        clock.advance(extended_at - ms(300));
        let result = clock.run(redlock.extend(&mut lease));
        assert_eq!(result.is_ok(), is_in_time, "{result:?}");
        if !is_in_time {
            assert!(matches!(result, Err(ExtendError::TooLate(_))), "{result:?}");
            assert_eq!(lease.valid_until(), before);
        }
    }
}

/// Executes each command, and blocks the whole process meanwhile.
#[derive(Debug)]
struct Blocking<'c> {
    clock: &'c MockClock,
    each: Duration,
}

impl Transport for Blocking<'_> {
    type Name = &'static str;
    type Error = Broken;

    fn name(&self) -> &'static str {
        NAME
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        self.clock.advance(self.each);
        let (_, reply) = carried_out(command);
        Ok(reply)
    }
}

#[test]
fn every_attempt_is_made_and_cleaned_up_with_a_token_of_its_own() {
    let clock = MockClock::new();
    let nodes = [None, None, Some(Ok(Reply::Acquired(None)))].map(Script::answering);
    let mut redlock = lock(&nodes, &clock);
    redlock.set_options(one_round().wait(ms(1_000)));
    assert!(clock.run(redlock.acquire(KEY)).is_err());
    let sent = nodes[2].sent.borrow();
    assert!(sent.len() >= 10, "{} commands", sent.len());
    let mut tokens = HashSet::new();
    for attempt in sent.chunks(2) {
        let [("acquire", taken), ("release", given_back)] = attempt else {
            panic!("{attempt:?}")
        };
        assert!(taken == given_back && tokens.insert(*taken));
    }
}

#[test]
fn a_key_too_long_to_be_kept_is_left_to_expire_when_its_acquire_is_dropped() {
    let clock = MockClock::new();
    let nodes = [None, None, None].map(Script::answering);
    let mut redlock = lock(&nodes, &clock);
    for (length, releases) in [(64, 1), (65, 0)] {
        nodes.iter().for_each(|node| node.sent.borrow_mut().clear());
        let mut context = Context::from_waker(Waker::noop());
        let key = vec![b'k'; length];
        assert!(pin!(redlock.acquire(&key)).poll(&mut context).is_pending());
        assert!(redlock.abandoned().is_some());
        clock.run(redlock.release_abandoned());
        assert_eq!(redlock.abandoned(), None);
        assert_eq!(nodes[0].verbs().len(), 1 + releases, "{length} bytes");
        // Nor does the next operation, or a dropped release, or a hold, stumble over it.
        assert!(pin!(redlock.acquire(&key)).poll(&mut context).is_pending());
        let lease = Lease::adopt(&key, thief());
        assert!(pin!(redlock.release(lease)).poll(&mut context).is_pending());
        assert!(poll_once(pin!(redlock.hold(&key, async |_| ()))).is_pending());
        clock.run(redlock.release_abandoned());
        // An attempt that ends by itself cleans up whatever the length.
        nodes.iter().for_each(|node| node.sent.borrow_mut().clear());
        assert!(clock.run(redlock.try_acquire(&key)).is_err());
        assert_eq!(nodes[0].verbs(), ["acquire", "release"]);
    }
}

#[test]
fn a_clock_that_wakes_too_early_costs_the_lock_and_not_its_safety() {
    /// Does not sleep.
    #[derive(Debug, Clone, Copy)]
    struct Sleepless<'c>(&'c MockClock);

    impl Clock for Sleepless<'_> {
        fn now(&self) -> Instant {
            self.0.now()
        }

        fn resolution(&self) -> Duration {
            self.0.resolution()
        }

        async fn sleep_until(&self, _deadline: Instant) {}
    }

    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes.iter().for_each(|node| node.set_latency(ms(4)));
    let mut redlock = Redlock::<_, _, _, 3>::new(
        &nodes,
        Sleepless(&clock),
        SeededEntropy::new(1),
        one_round(),
    )
    .unwrap();
    let result = clock.run(redlock.acquire(KEY));
    assert!(
        matches!(result, Err(AcquireError::Unreachable(_))),
        "{result:?}"
    );
    clock.advance(ms(10));
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_round_whose_time_ends_between_two_looks_at_the_clock_is_told_as_it_is() {
    /// Each reading takes a millisecond.
    #[derive(Debug, Clone, Copy)]
    struct Slow<'c>(&'c MockClock);

    impl Clock for Slow<'_> {
        fn now(&self) -> Instant {
            let now = self.0.now();
            self.0.advance(ms(1));
            now
        }

        fn resolution(&self) -> Duration {
            self.0.resolution()
        }

        async fn sleep_until(&self, deadline: Instant) {
            self.0.sleep_until(deadline).await;
        }
    }

    // Ten milliseconds are over before a round has been polled so often that time jumps.
    let options = one_round().node_timeout(ms(10)).unwrap();
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[1].set(KEY, thief(), TTL);
    nodes[2].hang();
    let seeded = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, Slow(&clock), seeded, options).unwrap();
    let result = clock.run(redlock.try_acquire(KEY));
    // Two of three nodes have answered, one of them with a refusal.
    assert!(matches!(result, Err(AcquireError::Held(_))), "{result:?}");
}

#[test]
fn a_reply_to_another_command_never_counts() {
    use Reply::{Acquired, Extended, Held, NotMine, Released};

    for reply in [Extended(None), Released, NotMine] {
        let clock = MockClock::new();
        let nodes = [(); 5].map(|()| Script::answering(Some(Ok(reply))));
        let error = clock
            .run(lock(&nodes, &clock).try_acquire(KEY))
            .unwrap_err();
        assert!(
            matches!(error, AcquireError::Unreachable(_)),
            "{reply:?}: {error}"
        );
    }
    for (reply, counts) in [
        (Acquired(None), false),
        (Held(None), false),
        (Released, false),
        (NotMine, true),
    ] {
        let clock = MockClock::new();
        let mut redlock = after_the_acquire(reply, &clock);
        let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
        assert_eq!(
            matches!(error, ExtendError::Lost(_)),
            counts,
            "{reply:?}: {error}"
        );
    }
    for (reply, counts) in [
        (Acquired(None), 0),
        (Held(None), 0),
        (Extended(None), 0),
        (Released, 5),
    ] {
        let clock = MockClock::new();
        let mut redlock = after_the_acquire(reply, &clock);
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        let released = clock.run(redlock.release(lease));
        assert_eq!(
            (released.released(), released.gone()),
            (counts, 0),
            "{reply:?}"
        );
    }
}

/// A lock over nodes that grant an acquire, and answer everything else with `reply`.
fn after_the_acquire(
    reply: Reply,
    clock: &MockClock,
) -> Redlock<Script, &MockClock, SeededEntropy, 5> {
    let nodes = [(); 5].map(|()| Script {
        grants: true,
        ..Script::answering(Some(Ok(reply)))
    });
    lock(&nodes, clock)
}

#[test]
fn an_error_is_never_a_no() {
    let clock = MockClock::new();
    let nodes = [(); 5].map(|()| Script::answering(Some(Err(Broken))));
    let error = clock
        .run(lock(&nodes, &clock).try_acquire(KEY))
        .unwrap_err();
    let report = error.report().unwrap();
    let broken = NodeError::new(NAME, Failure::Transport(Broken));
    assert_eq!(report.tally().refused, 0);
    assert!(
        report
            .outcomes()
            .iter()
            .all(|outcome| *outcome == Outcome::Failed(broken))
    );
    assert!(
        nodes
            .iter()
            .all(|node| node.verbs() == ["acquire", "release"])
    );
}

#[test]
fn futures_are_send_when_their_parts_are() {
    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            Instant::from_micros(0)
        }

        fn resolution(&self) -> Duration {
            Duration::ZERO
        }

        async fn sleep_until(&self, _deadline: Instant) {}
    }

    struct Up;

    impl Transport for Up {
        type Name = &'static str;
        type Error = Broken;

        fn name(&self) -> &'static str {
            NAME
        }

        async fn execute(&mut self, _command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
            Err(NodeError::new(NAME, Failure::Transport(Broken)))
        }
    }

    fn is_send(_: impl Send) {}

    fn all_are_send(mut redlock: Redlock<Up, Still, impl Entropy + Send, 3>) {
        let mut lease = Lease::adopt("key", thief());
        is_send(redlock.try_acquire("key"));
        is_send(redlock.acquire("key"));
        is_send(redlock.extend(&mut lease));
        is_send(redlock.keep(&mut lease, |_| ()));
        is_send(redlock.release(lease));
        is_send(redlock.hold("key", async |_| ()));
        is_send(redlock.release_abandoned());
        is_send(redlock);
    }

    let options = Options::new(TTL).unwrap();
    all_are_send(Redlock::new([Up], Still, SeededEntropy::new(1), options).unwrap());
}
