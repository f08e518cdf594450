//! What every test begins with.

use core::time::Duration;

use redlock_core::mock::{MemoryNode, MockClock, SeededEntropy};
use redlock_core::{Clock, Options, Redlock, Token};

pub(crate) type Node<'c> = MemoryNode<&'c MockClock>;
pub(crate) type Lock<'c> = Redlock<&'c Node<'c>, &'c MockClock, SeededEntropy, 5>;

pub(crate) const KEY: &str = "dock-7";
pub(crate) const TTL: Duration = ms(10_000);
pub(crate) const TIMEOUT: Duration = ms(50);

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// A lease of ten seconds, one round, fifty milliseconds for it.
pub(crate) fn one_round() -> Options {
    Options::new(TTL)
        .unwrap()
        .wait(Duration::ZERO)
        .node_timeout(TIMEOUT)
        .unwrap()
}

/// A client of its own, with tokens that no other seed gives.
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

/// The token of somebody else.
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
    nodes.iter().map(MemoryNode::len).sum()
}

/// Whether bit `node` of `pattern` is set.
pub(crate) const fn is_in(pattern: u32, node: usize) -> bool {
    pattern >> node & 1 == 1
}

pub(crate) fn micros(clock: &MockClock) -> u64 {
    clock.now().as_micros()
}

/// What can be wrong with a node for a while.
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
