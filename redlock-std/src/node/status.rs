//! The status of a node, for readiness checks.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::error::NodeError;

/// The status of one node, as [`Redlock::status`](crate::Redlock::status) returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStatus {
    /// The address of the node, without its password.
    pub node: Arc<str>,
    /// Whether the node is connected and answers.
    pub is_connected: bool,
    /// For how long the node has been connected, or not been connected.
    pub since: Duration,
    /// Why the node has no vote: why it is not connected or, if it is connected, the [`Denial`](crate::Denial) of its vote. `None`
    /// if it has a vote, as far as it is known, or if its first connection is not made yet.
    pub error: Option<NodeError>,
    /// How long the last answer of the node took. `None` before the first answer.
    pub round_trip: Option<Duration>,
}

impl NodeStatus {
    /// Whether the node is connected, and has a vote as far as it is known.
    #[must_use]
    pub const fn has_vote(&self) -> bool {
        self.is_connected && self.error.is_none()
    }
}

/// One line, for a log or the answer to a readiness check.
impl fmt::Display for NodeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.is_connected {
            true => "connected",
            false => "not connected",
        };
        let since = self.since.as_secs();
        match &self.error {
            // It names the node.
            Some(error) => write!(f, "{error}")?,
            None => write!(f, "{}", self.node)?,
        }
        write!(f, ", {state} for {since} s")?;
        if let Some(round_trip) = self.round_trip {
            write!(f, ", last answer after {} us", round_trip.as_micros())?;
        }
        Ok(())
    }
}
