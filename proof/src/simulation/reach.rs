//! How nodes reach the clients that wait in the line of a lock.

use super::chance::Chance;

/// How a node calls a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It keeps no line for the client, which polls.
    NoLine,
    /// The client stands in the line and cannot be called.
    Uncallable,
    /// Behind the replies.
    Callable,
    /// Over a connection of its own.
    Apart,
}

impl Reach {
    /// How the nodes call a client: most clients are the same to all nodes.
    pub(super) fn draw(chance: &mut Chance, nodes: usize) -> Vec<Self> {
        let usual = chance.pick(&[
            Self::Callable,
            Self::Callable,
            Self::Callable,
            Self::Callable,
            Self::Apart,
            Self::Uncallable,
            Self::NoLine,
        ]);
        let is_mixed = chance.one_in(8);
        let all = [Self::Callable, Self::Apart, Self::Uncallable, Self::NoLine];
        let one = |_| if is_mixed { chance.pick(&all) } else { usual };
        (0..nodes).map(one).collect()
    }

    pub(crate) const fn is_callable(self) -> bool {
        matches!(self, Self::Callable | Self::Apart)
    }
}
