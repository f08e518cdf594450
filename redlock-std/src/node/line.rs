//! The place of one handle in the line of a lock on its node.

use std::future::pending;
use std::sync::Arc;

use redlock_core::transport::{Call, Command, Mailbox, Place, RunId};

use super::mail::{Mail, Waiter};
use super::queue::Queue;

/// How one handle stands in the line of the lock for which it waits, or has waited last. A clone stands in no line.
#[derive(Debug, Default)]
pub(super) struct Line {
    key: Box<[u8]>,
    /// Whether it stands there under a mailbox that the node can call. If the node could not when the wait began, the mark stays: the
    /// client would have two places in the line otherwise.
    is_callable: bool,
    /// The ticket of an acquire whose place has none yet.
    ticket: Option<u64>,
    /// `None` if the handle does not wait.
    waiter: Option<Waiter>,
}

impl Clone for Line {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Line {
    /// Returns `command` as it is sent, before an acquire with a place is sent.
    pub(super) fn stand<'a>(
        &mut self,
        command: &Command<'a>,
        mail: &Arc<Mail>,
        queue: &Queue,
    ) -> Command<'a> {
        if command.place.is_some() && command.is_acquire() && mail.keeps_line() {
            let can_call = mail.can_call(queue.run_id());
            match &self.waiter {
                Some(waiter) if *self.key == *command.key => {
                    self.is_callable &= can_call;
                    // Those for this try come later, and perhaps before its reply: they arrive on another connection.
                    waiter.forget();
                }
                _ => {
                    self.key = command.key.into();
                    self.is_callable = can_call;
                    self.waiter = Some(mail.wait_for(command.key));
                }
            }
        }
        self.at_node(command, mail)
    }

    /// Returns `command` as it is sent.
    pub(super) fn at_node<'a>(&self, command: &Command<'a>, mail: &Mail) -> Command<'a> {
        let Some(mut place) = command.place else {
            return *command;
        };
        if !mail.keeps_line() {
            return command.at_node(None);
        }
        // The mailbox is in the line once for all handles.
        let leaves = command.is_release() && place.ticket.is_none() && place.mailbox.is_some();
        if leaves && mail.is_wanted_by_another(command.key, self.waiter.as_ref()) {
            return command.with_place(Some(Place::outside(place.turn_ms)));
        }
        let is_callable = self.is_callable && *self.key == *command.key;
        // Not `at_node`: the acquire may have joined the line before the node could call.
        let mailbox = marked(mail.mailbox(), is_callable);
        place.mailbox = place.mailbox.map(|_| mailbox);
        if place.ticket == Some(Place::NOW) {
            place.ticket = self.ticket.or(place.ticket);
        }
        command.with_place(Some(place))
    }

    /// The mailbox for the line in which the handle stands, or for the next one.
    pub(super) fn mailbox(&self, mail: &Mail, process: Option<RunId>) -> Option<Mailbox> {
        let is_callable = self.waiter.is_none() || self.is_callable;
        let is_callable = is_callable && mail.can_call(process);
        mail.keeps_line()
            .then(|| marked(mail.mailbox(), is_callable))
    }

    /// Waits for a call.
    pub(super) async fn called(&self, key: &[u8]) -> Call {
        match &self.waiter {
            Some(waiter) if *self.key == *key => waiter.called().await,
            _ => pending().await,
        }
    }

    pub(super) const fn set_ticket(&mut self, ticket: Option<u64>) {
        self.ticket = ticket;
    }

    /// Ends the wait: calls are ignored from now on.
    pub(super) fn end_wait(&mut self) {
        self.waiter = None;
    }
}

const fn marked(mailbox: Mailbox, is_callable: bool) -> Mailbox {
    if is_callable {
        mailbox
    } else {
        mailbox.uncallable()
    }
}
