//! What happened in a world, in true time: all that the judge is told, and what a trace shows.

use redlock_core::transport::{
    Call as LineCall, Command, Place as LinePlace, Proposal, Reply, Verb, VoteConditions,
};
use redlock_core::{Denial, Fence, Fencing, Token};

use super::clock::Moment;
use super::fault::Fault;
use super::place::{KEYS, Place, Route};

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fact {
    pub(crate) at: Moment,
    pub(crate) what: What,
}

/// A task of a client, with a lock of its own; the tasks of one client share its clock and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Task {
    pub(crate) client: usize,
    pub(crate) number: usize,
}

/// A lease, as the judge knows it. A token is a number: the same number, the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) task: Task,
    pub(crate) key: usize,
    pub(crate) token: usize,
    pub(crate) fence: Option<Fence>,
}

/// What happened.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// A task calls the lock, when its clock reads `local`. It is promised an end within `bound` of that clock.
    Begins(Task, Call, Span),
    Ends(Task, Call, End, u64),
    /// A lease is handed out. Its holder believes in it until its clock reads the end of the validity.
    Granted(Claim, Moment),
    /// It ends later than it did.
    Extended(Claim, Moment),
    /// Another process takes the lease over, and holds it until then. False if its votes need not meet any conditions.
    Adopted(Claim, Moment, bool),
    /// The holder leaves the lease to another process.
    HandedOver(Claim),
    /// The lease was given back before its `min_hold` was over: no other client has the lock until then.
    Kept(Claim, Moment),
    /// The client is told that a quorum of nodes has released its lease, or had it no more.
    Freed(Claim),
    /// The holder gives the lease back or leaves it to another process, or has been told that it is over.
    Over(Claim),
    /// It says that it is valid although the holder has been told that it is over.
    StillValid(Claim),
    /// How far from the nodes' time a task's idea of it is after a call, and how far it can be, in microseconds.
    Believes(Task, i64, u64),
    /// The holder has been told that a quorum does not carry its token any more.
    CalledLost(Claim),
    /// Work under `hold` begins, with a lease that is good until then.
    Works(Claim, Moment),
    /// That work is done or was dropped.
    Stops(Claim),
    /// The holder has been told that its work was done under the lock.
    CalledDone(Claim),
    /// The process is not run until then; its clock moves on by so much.
    Paused(usize, Moment, u64),
    Sent(Task, usize, Message),
    Executed(Route, Message, Result<Reply, Denial>),
    /// The node lacks the script of this command. It has done nothing, and the client may send it again.
    NotExecuted(Route, Message),
    /// A device has sent what is no command of the lock.
    Nonsense(Route),
    Answered(Route, Message, Result<Reply, Denial>),
    /// The client has a new connection, or has noticed that it has none.
    Connected(Route, bool),
    /// The node can call the client, or cannot any more: it has noticed that the connection is gone.
    Subscribed(Route, bool),
    /// The client has not sent a command, since the node has no vote for it.
    Denied(Route),
    /// The node calls a task that waits for a key, on this connection. False if the call is lost.
    Calls(Route, Task, usize, LineCall, bool),
    /// The call has reached the task.
    Called(Route, Task, usize, LineCall),
    /// The process is gone.
    Died(usize),
    /// The node has forgotten the line of a key.
    ForgotLine(usize, usize),
    /// Whether a task that has left the line of a key still stands there, looked at behind everything that it was sent.
    LineProbed(Route, Task, usize, bool),
    /// A token stands there until it expires by the clock of that node.
    Stands(Place, usize, Moment),
    /// Nothing stands there.
    Falls(Place),
    /// A node has forgotten all its keys, or one.
    Forgets(usize, Option<usize>),
    /// A node has released a token with a fence that is in its window.
    Burns(usize, usize, Fence),
    /// A node is another process.
    Restarted(usize),
    /// A node has become a replica, or a master again.
    Role(usize, bool),
    /// A plain acquire or adoption was granted by a node that has lost keys, or has old ones, without a sign to its client.
    Unaware(usize),
    /// An operator has restored guard records.
    Repaired,
    /// An operator has told a node that it has forgotten nothing.
    Initialized(usize),
    /// An operator gives the fleet these rules.
    Changed(Fencing),
    /// A node that lost its guard record has taken one with the rules of before, in one of the ways that the README names.
    Captured(usize),
    /// A plain lease was granted or extended with a TTL above the `max_ttl` of the fleet.
    Long(usize),
    /// The client was told the `max_ttl` of the node's guard record, in milliseconds, if there is one.
    Told(Route, Option<u32>),
    /// The holder of a fenced lease, or somebody who was one, acts on what the lock protects, if its gate admits it.
    Visits(Claim, bool),
    /// Whether a token stands that nobody wants any more, looked at behind everything that was sent for it.
    Probed(Route, usize, usize, bool),
    Fault(Fault),
    /// No more fault begins.
    Calm,
    /// Events without end: a client repeats itself.
    Endless,
}

/// When a call begins and how long it may take, by the clock of its client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) local: u64,
    pub(crate) bound: u64,
}

/// A call of the lock, with its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    TryAcquire(usize),
    Acquire(usize),
    /// After the faults, with all the time that it takes.
    CalmAcquire(usize),
    Extend(usize),
    Adopt(usize),
    Release(usize),
    Hold(usize),
    Keep(usize),
    Tidy,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Held,
    Unreachable,
    TooLate,
    Lost,
    Expired,
    ExtensionsSpent,
    Entropy,
    Dropped,
}

/// A command on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) verb: Verb,
    pub(crate) key: usize,
    pub(crate) token: usize,
    pub(crate) proposal: Option<Proposal>,
    pub(crate) place: Option<LinePlace>,
}

impl What {
    /// The token that it is about.
    pub(crate) const fn token(&self) -> Option<usize> {
        match self {
            Self::Granted(claim, _)
            | Self::Extended(claim, _)
            | Self::Adopted(claim, ..)
            | Self::HandedOver(claim)
            | Self::Kept(claim, _)
            | Self::Freed(claim)
            | Self::Over(claim)
            | Self::StillValid(claim)
            | Self::CalledLost(claim)
            | Self::Works(claim, _)
            | Self::Stops(claim)
            | Self::CalledDone(claim)
            | Self::Visits(claim, _) => Some(claim.token),
            Self::Sent(_, _, message)
            | Self::Executed(_, message, _)
            | Self::NotExecuted(_, message)
            | Self::Answered(_, message, _) => Some(message.token),
            Self::Stands(_, token, _)
            | Self::Probed(_, _, token, _)
            | Self::Burns(_, token, _)
            | Self::Unaware(token)
            | Self::Long(token) => Some(*token),
            Self::Begins(..)
            | Self::Ends(..)
            | Self::Falls(_)
            | Self::Paused(..)
            | Self::Connected(..)
            | Self::Subscribed(..)
            | Self::Denied(_)
            | Self::Calls(..)
            | Self::Called(..)
            | Self::Died(_)
            | Self::ForgotLine(..)
            | Self::LineProbed(..)
            | Self::Nonsense(_)
            | Self::Forgets(..)
            | Self::Believes(..)
            | Self::Restarted(_)
            | Self::Role(..)
            | Self::Repaired
            | Self::Initialized(_)
            | Self::Changed(_)
            | Self::Captured(_)
            | Self::Told(..)
            | Self::Fault(_)
            | Self::Calm
            | Self::Endless => None,
        }
    }
}

impl Call {
    pub(crate) const fn key(self) -> Option<usize> {
        match self {
            Self::TryAcquire(key)
            | Self::Acquire(key)
            | Self::CalmAcquire(key)
            | Self::Extend(key)
            | Self::Adopt(key)
            | Self::Release(key)
            | Self::Hold(key)
            | Self::Keep(key) => Some(key),
            Self::Tidy => None,
        }
    }
}

impl Message {
    /// The command that goes to the node, with the bytes of its token.
    pub(crate) const fn command<'a>(&self, token: &'a Token) -> Command<'a> {
        let key = KEYS[self.key].as_bytes();
        let command = match self.verb {
            Verb::Acquire { ttl_ms, conditions } => {
                Command::acquire(key, token, ttl_ms, conditions)
            }
            Verb::Extend { ttl_ms, conditions } => Command::adopt(key, token, ttl_ms, conditions),
            Verb::Keep { rest_ms } => Command::keep(key, token, rest_ms),
            Verb::Release => Command::release(key, token),
        };
        command.with_proposal(self.proposal).with_place(self.place)
    }

    pub(crate) const fn is_acquire(&self) -> bool {
        matches!(self.verb, Verb::Acquire { .. })
    }

    /// Whether it takes over a lease, for which nodes need votes.
    pub(crate) fn is_adoption(&self) -> bool {
        let none = VoteConditions::NONE;
        matches!(self.verb, Verb::Extend { conditions, .. } if conditions != none)
    }

    /// Of a plain lease, how long the command asks for.
    pub(crate) const fn plain_ttl_ms(&self) -> Option<u32> {
        match (self.verb, self.proposal) {
            (
                Verb::Acquire { ttl_ms, .. }
                | Verb::Extend { ttl_ms, .. }
                | Verb::Keep { rest_ms: ttl_ms },
                None,
            ) => Some(ttl_ms),
            _ => None,
        }
    }

    pub(crate) const fn is_release(&self) -> bool {
        matches!(self.verb, Verb::Release)
    }

    /// Whether it gives a lease back, at once or when the `min_hold` is over.
    pub(crate) const fn is_ending(&self) -> bool {
        matches!(self.verb, Verb::Release | Verb::Keep { .. })
    }
}
