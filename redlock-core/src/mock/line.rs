//! The waiting line of a lock on a server.

use crate::line::Mailbox;
use crate::time::Instant;

/// A sorted set of mailboxes, by ticket. On Redis, the turn is a member too.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Line {
    /// Sorted by ticket, then by mailbox. Those that are `None` come last.
    members: [Option<Member>; Self::CAPACITY],
    pub(super) turn: Option<Turn>,
    pub(super) expires_at: Instant,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Member {
    /// In microseconds of the server's clock.
    ticket: u64,
    mailbox: Mailbox,
}

/// Whose turn it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    pub(super) mailbox: Mailbox,
    /// In milliseconds of the server's clock.
    pub(super) ends_ms: u64,
}

impl Line {
    /// A server has room for 1,000.
    pub(super) const CAPACITY: usize = 12;

    pub(super) const EMPTY: Self = Self {
        members: [None; Self::CAPACITY],
        turn: None,
        expires_at: Instant::MAX,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.members.first().is_none_or(Option::is_none) && self.turn.is_none()
    }

    pub(super) fn has_room(&self) -> bool {
        let members = self.mailboxes().count() + usize::from(self.turn.is_some());
        members < Self::CAPACITY
    }

    /// The clients in the line, the first one first.
    pub(super) fn mailboxes(&self) -> impl Iterator<Item = &Mailbox> {
        self.tickets().map(|(mailbox, _)| mailbox)
    }

    /// The clients in the line with their tickets, the first one first.
    pub(super) fn tickets(&self) -> impl Iterator<Item = (&Mailbox, u64)> {
        let members = self.members.iter().flatten();
        members.map(|member| (&member.mailbox, member.ticket))
    }

    pub(super) fn head(&self) -> Option<Mailbox> {
        self.mailboxes().next().copied()
    }

    pub(super) fn ticket(&self, mailbox: &Mailbox) -> Option<u64> {
        let mut tickets = self.tickets();
        tickets
            .find(|(other, _)| *other == mailbox)
            .map(|(_, ticket)| ticket)
    }

    pub(super) fn clients_ahead_of(&self, mailbox: &Mailbox) -> u32 {
        let ahead = self.mailboxes().take_while(|other| *other != mailbox);
        u32::try_from(ahead.count()).unwrap_or(u32::MAX)
    }

    pub(super) fn set(&mut self, mailbox: Mailbox, ticket: u64) {
        self.remove(&mailbox);
        if let Some(free) = self.members.last_mut() {
            *free = Some(Member { ticket, mailbox });
        }
        self.sort();
    }

    pub(super) fn remove(&mut self, mailbox: &Mailbox) {
        for slot in &mut self.members {
            slot.take_if(|member| member.mailbox == *mailbox);
        }
        self.sort();
    }

    fn sort(&mut self) {
        self.members.sort_unstable_by_key(|member| member.ok_or(()));
    }
}
