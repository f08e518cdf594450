//! The setup of every test.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use redlock_core::mock::{MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Reply, RunId};
use redlock_core::{
    AcquireError, Clock, Entropy, Instant, Lease, NodeErrorOf, Options, Redlock, Token, Transport,
};

pub(crate) type Node<'c> = MockNode<&'c MockClock>;
pub(crate) type Lock<'c> = Redlock<&'c Node<'c>, &'c MockClock, SeededEntropy, 5>;

pub(crate) const KEY: &str = "dock-7";
pub(crate) const TTL: Duration = ms(10_000);
/// When a key that was to live for the TTL is gone: it expires after its last millisecond, as in Redis.
pub(crate) const EXPIRED: Duration = ms(10_001);
pub(crate) const TIMEOUT: Duration = ms(50);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// How many cases a test runs: all, or a few under Miri. Miri takes a thousand times as long, and looks for
/// something else: what the unsafe code of the dependencies does with the futures of the lock. The first of
/// a thousand similar cases shows this.
pub(crate) const fn unless_miri<T: Copy>(all: T, a_little: T) -> T {
    if cfg!(miri) { a_little } else { all }
}

/// The most nodes of the tests that try every pattern of nodes.
pub(crate) const NODES_MAX: usize = unless_miri(5, 2);

/// The instant `after` the beginning of a test.
pub(crate) const fn at(after: Duration) -> Instant {
    Instant::from_micros(0).saturating_add(after)
}

/// A lease of ten seconds, one round, fifty milliseconds for it.
pub(crate) fn one_round() -> Options {
    Options::new(TTL)
        .unwrap()
        .wait(Duration::ZERO)
        .node_timeout(TIMEOUT)
        .unwrap()
}

/// A separate client, with tokens that no other seed gives.
pub(crate) fn client<'c>(nodes: &'c [Node<'c>], clock: &'c MockClock, seed: u64) -> Lock<'c> {
    client_with(nodes, clock, seed, one_round())
}

pub(crate) fn client_with<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
    seed: u64,
    options: Options,
) -> Lock<'c> {
    Redlock::new(nodes, clock, SeededEntropy::new(seed), options).unwrap()
}

/// One attempt: no retry if the votes are split.
pub(crate) async fn attempt<T, C, E, const N: usize>(
    redlock: &mut Redlock<T, C, E, N>,
) -> Result<Lease<&'static str>, AcquireError<NodeErrorOf<T>, N>>
where
    T: Transport,
    C: Clock,
    E: Entropy,
{
    let mut acquisition = redlock.begin();
    redlock.attempt(&mut acquisition, KEY).await
}

/// A client that has acquired [`KEY`].
pub(crate) fn holder<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
) -> (Lock<'c>, Lease<&'static str>) {
    holder_with(nodes, clock, one_round())
}

pub(crate) fn holder_with<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
    options: Options,
) -> (Lock<'c>, Lease<&'static str>) {
    let mut redlock = client_with(nodes, clock, 1, options);
    let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    (redlock, lease)
}

/// Whether a new client acquires [`KEY`] if it is free.
#[expect(clippy::result_large_err, reason = "it is the error of `acquire`")]
pub(crate) fn try_once<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
) -> Result<Lease<&'static str>, AcquireError<NodeErrorOf<&'c Node<'c>>, 5>> {
    clock.run(client(nodes, clock, 1).try_acquire(KEY))
}

/// Another client takes [`KEY`] on these nodes.
pub(crate) fn steal(nodes: &[Node<'_>]) {
    steal_for(TTL, nodes);
}

/// The same, with another TTL.
pub(crate) fn steal_for(ttl: Duration, nodes: &[Node<'_>]) {
    for node in nodes {
        node.set(KEY, thief(), ttl);
    }
}

/// The token of another client.
pub(crate) fn thief() -> Token {
    Token::from_bytes([0x7f; Token::LEN])
}

/// How many nodes carry the key.
pub(crate) fn holders(nodes: &[Node<'_>]) -> usize {
    nodes
        .iter()
        .filter(|node| node.token(KEY).is_some())
        .count()
}

pub(crate) fn key_count(nodes: &[Node<'_>]) -> usize {
    nodes.iter().map(MockNode::len).sum()
}

/// Whether bit `node` of `pattern` is set.
pub(crate) const fn is_in(pattern: u32, node: usize) -> bool {
    pattern >> node & 1 == 1
}

pub(crate) fn micros(clock: &MockClock) -> u64 {
    clock.now().as_micros()
}

pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// A temporary fault of a node.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    Hang,
    /// It keeps its data.
    Death,
}

impl Fault {
    pub(crate) const ALL: [Self; 2] = [Self::Hang, Self::Death];

    pub(crate) fn begin(self, node: &Node<'_>) {
        match self {
            Self::Hang => node.hang(),
            Self::Death => node.stop(),
        }
    }

    pub(crate) fn end(self, node: &Node<'_>) {
        match self {
            Self::Hang => node.resume(),
            Self::Death => node.restart(),
        }
    }
}

/// The condition of a node when an operation on [`KEY`] begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    Well,
    /// Another client holds the key.
    Taken,
    Hung,
    /// It keeps its data.
    Dead,
}

/// The condition of each node.
#[derive(Debug, Clone)]
pub(crate) struct Mixture(Vec<Condition>);

impl Mixture {
    /// Every one of `count` nodes.
    pub(crate) fn all(count: usize) -> impl Iterator<Item = Self> {
        const CONDITIONS: [Condition; 4] = [
            Condition::Well,
            Condition::Taken,
            Condition::Hung,
            Condition::Dead,
        ];
        (0..4_usize.pow(u32::try_from(count).unwrap())).map(move |number| {
            let digit = |node| number / 4_usize.pow(node) % 4;
            Self(
                (0..)
                    .take(count)
                    .map(|node| CONDITIONS[digit(node)])
                    .collect(),
            )
        })
    }

    pub(crate) fn begin(&self, nodes: &[Node<'_>]) {
        for (node, condition) in nodes.iter().zip(&self.0) {
            match condition {
                Condition::Well => {}
                Condition::Taken => node.set(KEY, thief(), TTL),
                Condition::Hung => node.hang(),
                Condition::Dead => node.stop(),
            }
        }
    }

    /// Every node answers again.
    pub(crate) fn end(&self, nodes: &[Node<'_>]) {
        for (node, condition) in nodes.iter().zip(&self.0) {
            match condition {
                Condition::Well | Condition::Taken => {}
                Condition::Hung => node.resume(),
                Condition::Dead => node.restart(),
            }
        }
    }

    /// How many nodes are in this condition.
    pub(crate) fn count(&self, condition: Condition) -> usize {
        self.0.iter().filter(|other| **other == condition).count()
    }

    /// Whether the key of the thief, and only that, is where it was put.
    pub(crate) fn thief_has_its_keys(&self, nodes: &[Node<'_>]) -> bool {
        nodes.iter().zip(&self.0).all(|(node, condition)| {
            (*condition == Condition::Taken) == (node.token(KEY) == Some(thief()))
        })
    }
}

/// A transport that shows each command to `spy` before it sends it.
#[derive(Clone)]
pub(crate) struct Tap<'c, F> {
    pub(crate) node: &'c Node<'c>,
    pub(crate) spy: F,
}

impl<F: Fn(&Command<'_>)> Transport for Tap<'_, F> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.node.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        (self.spy)(command);
        self.node.execute(command).await
    }

    fn run_id(&self) -> Option<RunId> {
        self.node.run_id()
    }
}

/// A transport that has to connect first: a command that is dropped before the delay is over was never
/// sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Detour<'c> {
    pub(crate) node: &'c Node<'c>,
    pub(crate) clock: &'c MockClock,
    pub(crate) delay: Duration,
}

impl Transport for Detour<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.node.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let connected_at = self.clock.now().saturating_add(self.delay);
        self.clock.sleep_until(connected_at).await;
        self.node.execute(command).await
    }
}
