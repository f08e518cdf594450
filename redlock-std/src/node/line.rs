//! The place of one handle in the line of a lock on its node.

use std::future::pending;
use std::sync::Arc;

use redlock_core::Token;
use redlock_core::transport::{Call, Command, Mailbox, Place, RunId};

use super::mail::{Mail, Waiter};
use super::order::{Order, Wanted};

/// How one handle stands in the line of the lock for which it waits, or has waited last. A clone stands in no line.
#[derive(Debug, Default)]
pub(crate) struct Line {
    /// `None` if the handle has never waited. Boxed because it is rare.
    stand: Option<Box<Stand>>,
    /// The ticket of an acquire whose place has none yet.
    ticket: Option<u64>,
    /// The lock that the handle wants now.
    wanted: Option<Arc<Wanted>>,
}

#[derive(Debug)]
struct Stand {
    key: Box<[u8]>,
    /// Whether it stands there under a mailbox that the node could call when the wait began. That stays so until the wait ends, also
    /// if the connection breaks or is made meanwhile: the client would have two places in the line otherwise. If it breaks and cannot
    /// be made again, the client leaves that place, and stands there as one that cannot be called from then on.
    is_callable: bool,
    /// `None` if the handle does not wait any more.
    waiter: Option<Waiter>,
}

impl Clone for Line {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Line {
    /// Returns the command that is sent before `command` if the node can no longer call this client: it leaves the place under the
    /// mailbox that the node could call. Its token is that of no lease, because the command may be sent again, behind the grant.
    pub(super) fn leave_silent<'a>(
        &self,
        command: &Command<'a>,
        mail: &Mail,
    ) -> Option<Command<'a>> {
        let place = command.place.filter(|_| command.is_acquire())?;
        let stand = self.stand_for(command.key)?;
        let is_silent = stand.waiter.is_some()
            && stand.is_callable
            && mail.is_shut()
            && mail.keeps_line(Some(command.key));
        let left = Place::left(mail.mailbox(), place.turn_ms);
        is_silent.then(|| Command::release(command.key, &NO_TOKEN).with_place(Some(left)))
    }

    /// Returns `command` as it is sent, before an acquire with a place is sent. `process` returns the run ID of the node's process.
    pub(crate) fn stand<'a>(
        &mut self,
        command: &Command<'a>,
        mail: &Arc<Mail>,
        process: impl FnOnce() -> Option<RunId>,
    ) -> Command<'a> {
        if command.place.is_some() && command.is_acquire() && mail.keeps_line(Some(command.key)) {
            let is_callable = mail.can_call(process());
            match &mut self.stand {
                Some(stand)
                    if *stand.key == *command.key
                        && stand.waiter.is_some()
                        && !(stand.is_callable && mail.is_shut()) =>
                {
                    // Those for this try come later, and perhaps before its reply: they arrive on another connection.
                    stand.waiter.iter().for_each(Waiter::forget);
                }
                stand => {
                    *stand = Some(Box::new(Stand {
                        key: command.key.into(),
                        is_callable,
                        waiter: Some(mail.wait_for(command.key, is_callable)),
                    }));
                }
            }
        }
        self.at_node(command, mail)
    }

    /// Returns `command` as it is sent.
    pub(crate) fn at_node<'a>(&self, command: &Command<'a>, mail: &Mail) -> Command<'a> {
        let Some(mut place) = command.place else {
            return *command;
        };
        let leaves = leaves_line(command);
        let has_place = leaves && self.stands_for(command.key);
        if !has_place && !mail.keeps_line(Some(command.key)) {
            return command.at_node(None);
        }
        let is_callable = self
            .stand_for(command.key)
            .is_some_and(|stand| stand.is_callable);
        // The mailbox is in the line once for all handles.
        if leaves && mail.is_wanted_by_another(command.key, is_callable, self.waiter()) {
            return command.with_place(Some(Place::outside(place.turn_ms)));
        }
        // Not `at_node`: the acquire may have joined the line before the node could call.
        let mailbox = marked(mail.mailbox(), is_callable);
        place.mailbox = place.mailbox.map(|_| mailbox);
        if place.ticket == Some(Place::NOW) {
            place.ticket = self.ticket.or(place.ticket);
        }
        command.with_place(Some(place))
    }

    /// Whether the handle has stood in the line of the lock that `release` leaves.
    pub(super) fn is_left_by(&self, release: &Command<'_>) -> bool {
        leaves_line(release) && self.stands_for(release.key)
    }

    fn stands_for(&self, key: &[u8]) -> bool {
        self.stand_for(key).is_some()
    }

    fn stand_for(&self, key: &[u8]) -> Option<&Stand> {
        self.stand.as_deref().filter(|stand| *stand.key == *key)
    }

    fn waiter(&self) -> Option<&Waiter> {
        self.stand.as_ref()?.waiter.as_ref()
    }

    /// The mailbox for the line in which the handle stands, or for the next one.
    pub(super) fn mailbox(&self, mail: &Mail, process: Option<RunId>) -> Option<Mailbox> {
        let waiting = self.stand.as_deref();
        let waiting = waiting.filter(|stand| stand.waiter.is_some());
        let is_callable = waiting.is_none_or(|stand| stand.is_callable) && mail.can_call(process);
        self.is_kept(mail)
            .then(|| marked(mail.mailbox(), is_callable))
    }

    /// Whether the node keeps the line of the lock that the handle wants.
    pub(super) fn is_kept(&self, mail: &Mail) -> bool {
        mail.keeps_line(self.wanted.as_deref().map(|wanted| &**wanted.key()))
    }

    /// Waits for a call.
    pub(super) async fn called(&self, key: &[u8]) -> Call {
        match self.stand.as_deref() {
            Some(Stand {
                key: own,
                waiter: Some(waiter),
                ..
            }) if **own == *key => waiter.called().await,
            _ => pending().await,
        }
    }

    /// Begins to want a lock, with this ticket.
    pub(crate) fn want(&mut self, wanted: Arc<Wanted>, ticket: Option<u64>) {
        self.wanted = Some(wanted);
        self.ticket = ticket;
    }

    /// Returns `command` as it is queued.
    pub(crate) fn order(&self, command: &Command<'_>) -> Order {
        match self.wanted_with(command.key) {
            Some(wanted) => wanted.order(command),
            None => command.into(),
        }
    }

    fn wanted_with(&self, key: &[u8]) -> Option<&Wanted> {
        let wanted = self.wanted.as_deref();
        wanted.filter(|wanted| **wanted.key() == *key)
    }

    /// Ends the wait: calls are ignored from now on.
    pub(crate) fn end_wait(&mut self) {
        if let Some(stand) = &mut self.stand {
            stand.waiter = None;
        }
    }
}

/// Tokens are random: no lease has this one.
const NO_TOKEN: Token = Token::from_bytes([0; Token::LEN]);

/// Whether `command` leaves the line for good.
fn leaves_line(command: &Command<'_>) -> bool {
    let place = command.place.as_ref();
    command.is_release()
        && place.is_some_and(|place| place.ticket.is_none() && place.mailbox.is_some())
}

const fn marked(mailbox: Mailbox, is_callable: bool) -> Mailbox {
    if is_callable {
        mailbox
    } else {
        mailbox.uncallable()
    }
}

#[cfg(test)]
mod tests {
    use redlock_core::transport::VoteConditions;

    use super::*;

    const KEY: &[u8] = b"dock";
    const TOKEN: &Token = &Token::from_bytes([1; Token::LEN]);
    const MAILBOX: [u8; 8] = [7; 8];

    fn acquire(ticket: u64) -> Command<'static> {
        let place = Place::waiting(Mailbox::new(MAILBOX), ticket, 9);
        Command::acquire(KEY, TOKEN, 1_000, VoteConditions::NONE).with_place(Some(place))
    }

    fn leave() -> Command<'static> {
        let place = Place::left(Mailbox::new(MAILBOX), 9);
        Command::release(KEY, TOKEN).with_place(Some(place))
    }

    fn mailbox(command: &Command<'_>) -> Option<String> {
        let mailbox = command.place.and_then(|place| place.mailbox);
        mailbox.map(|mailbox| mailbox.to_string())
    }

    fn node() -> Arc<Mail> {
        Arc::new(Mail::new(
            Mailbox::new(MAILBOX),
            crate::lines::Teller::alone(),
        ))
    }

    #[test]
    fn a_wait_keeps_its_place_whether_or_not_the_node_can_call_meanwhile() {
        let mail = node();
        let mut line = Line::default();
        let [uncallable, callable] = ["0707070707070707~", "0707070707070707"];
        assert_eq!(
            mailbox(&line.stand(&acquire(5), &mail, || None)).unwrap(),
            uncallable
        );
        mail.opened(None);
        assert_eq!(
            mailbox(&line.stand(&acquire(5), &mail, || None)).unwrap(),
            uncallable
        );
        assert_eq!(mailbox(&line.at_node(&leave(), &mail)).unwrap(), uncallable);

        line.end_wait();
        assert_eq!(
            mailbox(&line.stand(&acquire(5), &mail, || None)).unwrap(),
            callable
        );
        mail.failed(super::super::error::TransportError::Disconnected);
        assert_eq!(
            mailbox(&line.stand(&acquire(5), &mail, || None)).unwrap(),
            callable
        );
        line.end_wait();
        assert_eq!(mailbox(&line.at_node(&leave(), &mail)).unwrap(), callable);
    }

    #[test]
    fn a_wait_goes_on_without_calls_when_the_connection_for_them_cannot_be_made_again() {
        let mail = node();
        let mut line = Line::default();
        mail.opened(None);
        line.stand(&acquire(5), &mail, || None);
        assert!(line.leave_silent(&acquire(5), &mail).is_none());
        mail.shut(super::super::error::TransportError::Disconnected);
        let left = line.leave_silent(&acquire(5), &mail).unwrap();
        assert!(left.is_release() && mailbox(&left).unwrap() == "0707070707070707");
        // Where the node refuses the line, the place stays as it is: otherwise each try would leave it once more.
        mail.refused(KEY, "NOPERM".into());
        assert!(line.leave_silent(&acquire(5), &mail).is_none());
        let mail = node();
        mail.opened(None);
        assert_ne!(
            left.token, TOKEN,
            "it must not release what is acquired behind it"
        );
        mail.opened(None);
        let mut stands_as = || mailbox(&line.stand(&acquire(5), &mail, || None)).unwrap();
        assert_eq!(stands_as(), "0707070707070707");
        mail.shut(super::super::error::TransportError::Disconnected);
        assert_eq!(stands_as(), "0707070707070707~");
        mail.opened(None);
        assert_eq!(stands_as(), "0707070707070707~");
        mail.shut(super::super::error::TransportError::Disconnected);
        assert!(line.leave_silent(&acquire(5), &mail).is_none());
        assert_eq!(
            mailbox(&line.at_node(&leave(), &mail)).unwrap(),
            "0707070707070707~"
        );
    }

    #[test]
    fn a_release_leaves_a_place_alone_in_which_another_task_stands() {
        let mail = node();
        let (mut first, mut second) = (Line::default(), Line::default());
        first.stand(&acquire(5), &mail, || None);
        assert!(mailbox(&first.at_node(&leave(), &mail)).is_some());
        first.end_wait();
        second.stand(&acquire(6), &mail, || None);
        assert_eq!(mailbox(&first.at_node(&leave(), &mail)), None);
        assert!(mailbox(&second.at_node(&leave(), &mail)).is_some());
    }

    #[test]
    fn the_first_try_has_the_ticket_that_the_process_knows() {
        let mail = node();
        let mut line = Line::default();
        let ticket = |command: Command<'_>| command.place.and_then(|place| place.ticket);
        assert_eq!(
            ticket(line.stand(&acquire(Place::NOW), &mail, || None)),
            Some(Place::NOW)
        );
        line.want(Wanted::new(KEY.into()), Some(42));
        for (of_the_core, sent) in [(Place::NOW, 42), (5, 5)] {
            let command = line.stand(&acquire(of_the_core), &mail, || None);
            assert_eq!(ticket(command), Some(sent));
        }
        assert_eq!(ticket(line.at_node(&leave(), &mail)), None);
    }

    #[test]
    fn a_node_that_has_refused_the_line_gets_the_commands_of_every_client() {
        let mail = node();
        let mut line = Line::default();
        assert!(line.mailbox(&mail, None).is_some());
        mail.refused(KEY, "NOPERM".into());
        assert_eq!(line.stand(&acquire(5), &mail, || None).place, None);
        assert_eq!(line.at_node(&leave(), &mail).place, None);
        assert_eq!(line.mailbox(&mail, None), None);
    }

    #[test]
    fn a_node_that_has_refused_the_line_of_one_lock_keeps_the_others() {
        let mail = node();
        let mut line = Line::default();
        mail.refused(b"crane", "WRONGTYPE".into());
        line.want(Wanted::new(KEY.into()), None);
        assert!(line.mailbox(&mail, None).is_some());
        assert!(line.stand(&acquire(5), &mail, || None).place.is_some());
        // Also if it refuses this one later, the client leaves its place there.
        mail.refused(KEY, "WRONGTYPE".into());
        assert!(line.at_node(&leave(), &mail).place.is_some());
        assert_eq!(line.at_node(&acquire(5), &mail).place, None);
        assert_eq!(line.mailbox(&mail, None), None);
    }
}
