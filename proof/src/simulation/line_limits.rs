//! By what the lines of a world are judged.

use redlock_core::transport::{Mailbox, Place};

use super::clock::Moment;

/// By what the lines of a world are judged. Times are in microseconds.
#[derive(Debug, Clone, Default)]
pub(crate) struct LineLimits {
    pub(crate) nodes: usize,
    /// When nothing is left of what went wrong before.
    pub(crate) from: Moment,
    /// How long a turn lasts, a client sleeps, and a round takes, at the most.
    pub(crate) turn: u64,
    pub(crate) timer: u64,
    pub(crate) round: u64,
    /// How long it takes at the most if everybody comes who is called.
    pub(crate) quick: u64,
    /// By how much the clocks of the nodes differ, and clients can be wrong about them.
    pub(crate) spread: u64,
    pub(crate) slack: u64,
    pub(crate) clients: Vec<LineClient>,
}

#[derive(Debug, Clone)]
pub(crate) struct LineClient {
    /// It waits in lines, and names each node once.
    pub(crate) is_judged: bool,
    /// Each node can call it, behind its replies. Over a connection of its own, a call can overtake the reply to the last try, and
    /// is taken for an earlier one.
    pub(crate) is_callable: bool,
    pub(crate) mailboxes: Vec<Mailbox>,
}

impl LineLimits {
    pub(crate) fn is_callable(&self, client: usize) -> bool {
        self.clients[client].is_callable
    }

    /// The number of the task of `client` with this place.
    pub(crate) fn number(&self, client: usize, place: Option<Place>) -> usize {
        let mailbox = place.and_then(|place| place.mailbox);
        let mut its = self.clients[client].mailboxes.iter();
        let number = its.position(|its| mailbox.is_some_and(|it| it.digits() == its.digits()));
        number.unwrap_or_default()
    }
}
