//! The result of a round, node by node.

use core::array;
use core::fmt;
use core::time::Duration;

use crate::command::{Command, Verb};
use crate::failure::{Failure, NodeError};
use crate::key::KeyName;
use crate::line::LineReport;
use crate::reply::Reply;
use crate::transport::Transport;

/// The outcome of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Outcome<E> {
    /// The round was decided before the node answered.
    Unanswered,
    /// The node did what it was asked.
    Granted,
    /// The node refused. To an acquire: another client holds the lock. To an extend or a release: the key is gone or
    /// carries another token, or, for an extend of a fenced lock, the guard record has other rules.
    Refused,
    /// The node could not be asked, gave no answer in time, or has no vote. It may have done what it was asked.
    Failed(E),
}

impl<E> Outcome<E> {
    /// Converts `result`. A reply of another kind of command counts as no answer.
    // `inline(never)`: inlined, it would copy the error of the transport once more. Not on servers, where a call takes more time.
    #[cfg_attr(target_pointer_width = "32", inline(never))]
    pub(crate) fn of(command: &Command<'_>, result: Result<Reply, E>) -> Self {
        let reply = match result {
            Err(error) => return Self::Failed(error),
            Ok(reply) => reply,
        };
        match (command.verb, reply) {
            (Verb::Acquire { .. }, Reply::Acquired(_))
            | (Verb::Extend { .. } | Verb::Keep { .. }, Reply::Extended(_))
            | (Verb::Release, Reply::Released | Reply::ReleasedWithWaiters(_)) => Self::Granted,
            (Verb::Acquire { .. }, Reply::Held(_) | Reply::Waiting(..))
            | (Verb::Extend { .. } | Verb::Keep { .. } | Verb::Release, Reply::NotMine) => {
                Self::Refused
            }
            _ => Self::Unanswered,
        }
    }
}

impl<N, E> Outcome<NodeError<N, E>> {
    /// The outcome of `node` if the round itself, not the transport, has found `failure`.
    pub(crate) fn failed<T>(node: &T, failure: Failure<N, E>) -> Self
    where
        T: Transport<Name = N, Error = E>,
    {
        Self::Failed(NodeError::new(node.name(), failure))
    }
}

/// How many nodes had which outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Tally {
    /// How many nodes there are.
    pub nodes: usize,
    /// How many did what they were asked.
    pub granted: usize,
    /// How many refused.
    pub refused: usize,
    /// How many neither granted nor refused: they have failed, have no vote, or have not answered yet.
    pub unknown: usize,
}

/// The result of a round: the key, and the outcome of each node.
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Report<E, const MAX: usize> {
    key: KeyName,
    nodes: usize,
    outcomes: [Outcome<E>; MAX],
    free_in_ms: Option<u32>,
    line: Option<LineReport>,
}

impl<E, const MAX: usize> Report<E, MAX> {
    pub(crate) fn new(key: &[u8], nodes: usize) -> Self {
        Self {
            key: KeyName::new(key),
            nodes,
            outcomes: array::from_fn(|_| Outcome::Unanswered),
            free_in_ms: None,
            line: None,
        }
    }

    pub(crate) const fn set_free_in_ms(&mut self, free_in_ms: Option<u32>) {
        self.free_in_ms = free_in_ms;
    }

    pub(crate) const fn free_in_ms(&self) -> Option<u32> {
        self.free_in_ms
    }

    pub(crate) const fn set_line(&mut self, line: LineReport) {
        self.line = Some(line);
    }

    /// Returns how many clients are ahead in the waiting line of the lock. `None` if this client does not stand in the line.
    #[must_use]
    pub fn ahead(&self) -> Option<u32> {
        self.line.and_then(|line| line.ahead())
    }

    pub(crate) fn has_waiters(&self) -> bool {
        self.line.is_some_and(|line| line.has_waiters())
    }

    /// Returns an upper bound on the time until a quorum of nodes will grant the key. The bound does not hold if the holder
    /// extends the lease, or if the clock of a node was ahead during the lease and is right again.
    ///
    /// `None` if the lock is plain, or if too few nodes have told how long they keep the key. A node without a vote does not
    /// tell it.
    #[must_use]
    pub fn free_in(&self) -> Option<Duration> {
        self.free_in_ms.map(|ms| Duration::from_millis(ms.into()))
    }

    // `inline(never)`: many callers, one copy in flash.
    #[cfg_attr(target_pointer_width = "32", inline(never))]
    pub(crate) fn record(&mut self, node: usize, outcome: Outcome<E>) {
        if let Some(place) = self.outcomes.get_mut(node) {
            *place = outcome;
        }
    }

    pub(crate) fn is_unanswered(&self, node: usize) -> bool {
        matches!(self.outcomes.get(node), Some(Outcome::Unanswered))
    }

    /// The key, as far as it can be shown.
    #[must_use]
    pub const fn key(&self) -> &KeyName {
        &self.key
    }

    /// The outcome of each node, in the order in which the nodes were given.
    #[must_use]
    pub fn outcomes(&self) -> &[Outcome<E>] {
        self.outcomes.get(..self.nodes).unwrap_or_default()
    }

    /// How many nodes had which outcome.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let mut tally = Tally {
            nodes: self.nodes,
            granted: 0,
            refused: 0,
            unknown: 0,
        };
        for outcome in self.outcomes() {
            match outcome {
                Outcome::Granted => tally.granted += 1,
                Outcome::Refused => tally.refused += 1,
                Outcome::Unanswered | Outcome::Failed(_) => tally.unknown += 1,
            }
        }
        tally
    }

    /// The error of each node that failed.
    pub fn failures(&self) -> impl Iterator<Item = &E> {
        self.outcomes().iter().filter_map(|outcome| match outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        })
    }
}

/// With as many outcomes as there are nodes.
impl<E: fmt::Debug, const MAX: usize> fmt::Debug for Report<E, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report")
            .field("key", &self.key)
            .field("outcomes", &self.outcomes())
            .field("free_in_ms", &self.free_in_ms)
            .field("line", &self.line)
            .finish()
    }
}

impl<E, const MAX: usize> Report<E, MAX> {
    /// The text that `count` nodes did `what`, with the failures of the others.
    pub(crate) const fn nodes_text(
        &self,
        count: usize,
        what: &'static str,
    ) -> NodesText<'_, E, MAX> {
        NodesText {
            report: self,
            count,
            what,
        }
    }
}

/// How many nodes did something, and why the others failed: `1 of 3 nodes voted (a: ..; b: ..)`.
pub(crate) struct NodesText<'r, E, const MAX: usize> {
    report: &'r Report<E, MAX>,
    count: usize,
    what: &'static str,
}

impl<E: fmt::Display, const MAX: usize> fmt::Display for NodesText<'_, E, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            report,
            count,
            what,
        } = self;
        write!(f, "{count} of {} nodes{what}", report.nodes)?;
        let mut separator = " (";
        for failure in report.failures() {
            write!(f, "{separator}{failure}")?;
            separator = "; ";
        }
        if separator == "; " {
            f.write_str(")")
        } else {
            Ok(())
        }
    }
}

#[cfg(feature = "defmt")]
impl<E: defmt::Format, const MAX: usize> defmt::Format for NodesText<'_, E, MAX> {
    fn format(&self, f: defmt::Formatter<'_>) {
        let Self {
            report,
            count,
            what,
        } = self;
        defmt::write!(f, "{} of {} nodes{=str}", count, report.nodes, what);
        let mut separator = " (";
        for failure in report.failures() {
            defmt::write!(f, "{=str}{}", separator, failure);
            separator = "; ";
        }
        if separator == "; " {
            defmt::write!(f, ")");
        }
    }
}
