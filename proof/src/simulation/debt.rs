//! The release that a device owes a node.

use core::mem::discriminant;

use super::history::Message;

/// The last release of a device, until it has read the answer: ahead of the next command of a later call it is sent, again if
/// need be. So the key cannot be there behind it.
#[derive(Debug)]
pub(super) struct Debt {
    /// The last call.
    call: Option<Message>,
    release: Option<Message>,
    /// The token of a later call that lets a key live for `min_hold`. The device stores the last two calls that give a lease back, and
    /// drops this one when its time is over, whether or not it was sent.
    kept: Option<usize>,
    /// There was a call after that of the release.
    is_due: bool,
    last_acquire: Option<usize>,
    /// Tokens of acquires that may have been written in part. For the others no release is needed.
    begun: Vec<usize>,
    /// The node has refused the release of this token, so that nothing follows from what is sent behind it. Forgotten when
    /// the release must have been sent again.
    refused: Option<usize>,
    has_read_refusal: bool,
    /// Tokens of commands that have outlived their connections: what is late may arrive behind the release.
    late: Vec<usize>,
}

impl Debt {
    pub(super) const fn new() -> Self {
        Self {
            call: None,
            release: None,
            kept: None,
            is_due: false,
            last_acquire: None,
            begun: Vec::new(),
            refused: None,
            has_read_refusal: false,
            late: Vec::new(),
        }
    }

    /// The device makes a call. It looks back at refused releases only where it `is_idle`: nothing is unsent or unanswered.
    pub(super) fn call(&mut self, message: Message, is_idle: bool) {
        self.call = Some(message);
        self.is_due = is_idle || !self.has_read_refusal;
        if self.is_due && self.has_read_refusal {
            self.end_refusal();
        }
        if message.is_acquire() {
            self.last_acquire = Some(message.token);
        }
        let was_begun =
            self.begun.contains(&message.token) || self.last_acquire != Some(message.token);
        if message.is_release() && was_begun {
            self.release = Some(message);
            self.kept = None;
            self.is_due = false;
        }
        if message.is_ending() && !message.is_release() {
            let earlier = self.kept.replace(message.token);
            if earlier.is_some_and(|token| token != message.token) {
                self.release = None;
            }
        }
    }

    /// The device writes.
    pub(super) fn write(&mut self) {
        if let Some(call) = self.call
            && call.is_acquire()
            && !self.begun.contains(&call.token)
        {
            self.begun.push(call.token);
        }
    }

    pub(super) fn is_late(&mut self, token: usize) {
        self.late.push(token);
    }

    /// The node has not done `message`: it is a replica, or lacks the script.
    pub(super) fn refuse(&mut self, message: Message) {
        if message.is_release() {
            self.refused = Some(message.token);
            self.has_read_refusal = false;
        }
    }

    /// The node has other data from now on: what it has released may be back, and the device is not told.
    pub(super) const fn forgive(&mut self) {
        self.release = None;
    }

    /// Also where the connection ends: then the device sends the release again.
    pub(super) const fn end_refusal(&mut self) {
        self.refused = None;
        self.has_read_refusal = false;
    }

    pub(super) fn is_refused(&self, token: usize) -> bool {
        self.refused == Some(token)
    }

    /// The device has read that `message` was refused. It sends it again when it is idle.
    pub(super) const fn read_refusal(&mut self, message: Message) {
        if message.is_release() {
            self.is_due = false;
            self.has_read_refusal = true;
        }
    }

    /// The device has read the answer to `message`.
    pub(super) fn answered(&mut self, message: Message) {
        let is_it = |owed: &Message| owed.token == message.token;
        if message.is_release() && self.release.as_ref().is_some_and(is_it) {
            self.release = None;
        }
    }

    /// The device sends a release that it has stored. It stores the last two: also those of acquires that it had queued, and that were
    /// never written, because the connection had ended, and those that let a key live for `min_hold`. So the one that is owed may have
    /// made room for others.
    pub(super) fn send_stored(&mut self, message: Message) {
        let is_another = |owed: &Message| owed.token != message.token;
        if self.release.as_ref().is_some_and(is_another) {
            self.release = None;
        }
    }

    /// The release that must have been sent ahead of `message`, which is sent now.
    pub(super) fn due_before(&self, message: Message) -> Option<Message> {
        let is_call = self.is_call(message);
        let owed = self.release.filter(|_| self.is_due && is_call)?;
        if owed.token == message.token || self.late.contains(&owed.token) {
            return None;
        }
        Some(owed)
    }

    /// Whether it is the last call that sends `message`, and not the rest of an earlier one.
    pub(super) fn is_call(&self, message: Message) -> bool {
        self.call.is_some_and(|call| {
            let [one, other] =
                [call, message].map(|message| (message.token, discriminant(&message.verb)));
            one == other
        })
    }
}
