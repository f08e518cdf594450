//! What the lock asks of its transports, and what it does not believe them.

use core::fmt;
use core::pin::pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use redlock_core::mock::{MockClock, SeededEntropy};
use redlock_core::{
    AcquireError, Clock, Command, Entropy, ExtendError, Instant, Options, Outcome, Redlock, Reply,
    Token, Transport,
};

use crate::world::*;

/// Answers every command with the same reply, or never, and writes down what it was sent.
#[derive(Debug, Clone)]
struct Script {
    reply: Option<Result<Reply, Broken>>,
    sent: Rc<RefCell<Vec<(&'static str, Token)>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Broken;

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
            sent: Rc::default(),
        }
    }

    /// What it was sent, in order.
    fn verbs(&self) -> Vec<&'static str> {
        self.sent.borrow().iter().map(|(verb, _)| *verb).collect()
    }
}

impl Transport for Script {
    type Error = Broken;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, Broken> {
        self.sent.borrow_mut().push(match *command {
            Command::Acquire { token, .. } => ("acquire", *token),
            Command::Extend { token, .. } => ("extend", *token),
            Command::Release { token, .. } => ("release", *token),
        });
        match self.reply {
            Some(reply) => reply,
            None => core::future::pending().await,
        }
    }

    fn timed_out(&self, _after: Duration) -> Broken {
        Broken
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
    let nodes = [(); 5].map(|()| Script::answering(Some(Ok(Reply::Acquired))));
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
        Some(Ok(Reply::Held)),
        Some(Ok(Reply::Held)),
        Some(Ok(Reply::Held)),
        Some(Ok(Reply::Acquired)),
        None,
    ];
    let nodes = answers.map(Script::answering);
    assert!(clock.run(lock(&nodes, &clock).try_acquire(KEY)).is_err());
    // Who has refused has not set the key.
    assert!(nodes[..3].iter().all(|node| node.verbs() == ["acquire"]));
    assert!(
        nodes[3..]
            .iter()
            .all(|node| node.verbs() == ["acquire", "release"])
    );
}

#[test]
fn every_attempt_is_made_and_cleaned_up_with_a_token_of_its_own() {
    let clock = MockClock::new();
    let nodes = [None, None, Some(Ok(Reply::Acquired))].map(Script::answering);
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
        clock.run(redlock.tidy());
        assert_eq!(redlock.abandoned(), None);
        assert_eq!(nodes[0].verbs().len(), 1 + releases, "{length} bytes");
    }
}

#[test]
fn a_reply_to_another_command_never_counts() {
    use Reply::{Acquired, Extended, Held, NotMine, Released};

    for reply in [Extended, Released, NotMine] {
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
        (Acquired, false),
        (Held, false),
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
    for (reply, counts) in [(Acquired, 0), (Held, 0), (Extended, 0), (Released, 5)] {
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

/// Grants an acquire, and answers everything else with the same reply.
#[derive(Debug)]
struct Changing(Reply);

fn after_the_acquire(
    reply: Reply,
    clock: &MockClock,
) -> Redlock<Changing, &MockClock, SeededEntropy, 5> {
    let nodes = [(); 5].map(|()| Changing(reply));
    Redlock::new(nodes, clock, SeededEntropy::new(1), one_round()).unwrap()
}

impl Transport for Changing {
    type Error = Broken;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, Broken> {
        Ok(match command {
            Command::Acquire { .. } => Reply::Acquired,
            _ => self.0,
        })
    }

    fn timed_out(&self, _after: Duration) -> Broken {
        Broken
    }
}

#[test]
fn an_error_is_never_a_no() {
    let clock = MockClock::new();
    let nodes = [(); 5].map(|()| Script::answering(Some(Err(Broken))));
    let error = clock
        .run(lock(&nodes, &clock).try_acquire(KEY))
        .unwrap_err();
    let report = error.report().unwrap();
    assert_eq!(report.tally().refused, 0);
    assert!(
        report
            .outcomes()
            .iter()
            .all(|outcome| *outcome == Outcome::Failed(Broken))
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
        type Error = Broken;

        async fn execute(&mut self, _command: &Command<'_>) -> Result<Reply, Broken> {
            Err(Broken)
        }

        fn timed_out(&self, _after: Duration) -> Broken {
            Broken
        }
    }

    fn is_send(_: impl Send) {}

    fn all_are_send(mut redlock: Redlock<Up, Still, impl Entropy + Send, 3>) {
        is_send(redlock.try_acquire("key"));
        is_send(redlock.acquire("key"));
        is_send(redlock.hold("key", async |_| ()));
        is_send(redlock.tidy());
    }

    let options = Options::new(TTL).unwrap();
    all_are_send(Redlock::new([Up], Still, SeededEntropy::new(1), options).unwrap());
}
