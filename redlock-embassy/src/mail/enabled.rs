//! The mailbox of a client with the feature `queue`.
//!
//! The items in `disabled.rs` must have the same signatures.

use core::time::Duration;

use heapless::Vec;
use redlock_core::transport::{Call, Command, Mailbox, Place, Verb};
use redlock_core::{Instant, Token};

use crate::outbox::Outbox;

/// The mailbox of this client on one node.
#[derive(Debug, Default)]
pub struct Mail {
    /// `None` if the client stands in no lines.
    mailbox: Option<Mailbox>,
    status: Status,
    /// When the node has refused a command with a place in a line. For some time, it gets none.
    refused_at: Option<Instant>,
    lines: Lines,
    /// The lock for which the client has tried last, and the calls for it.
    latest: Latest,
    /// The key of a call for which the client does not wait.
    stray: Option<Vec<u8, { Outbox::KEY_MAX }>>,
    turn_ms: u32,
    /// Whether the client has used fenced locks, and plain ones with a line.
    uses_fences: bool,
    uses_plain_lines: bool,
    scripts: Scripts,
}

/// What is known of the scripts of lines on the current connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Scripts {
    /// The node has not said that it lacks one.
    #[default]
    There,
    /// The node has lacked one. The next acquire loads the one for releases.
    Lacking,
    /// The client has tried to load it.
    Tried,
}

/// Whether the node can call this client on the current connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Status {
    /// The client has not tried to subscribe.
    #[default]
    Unknown,
    /// The command to subscribe is sent.
    Subscribing,
    Callable,
    Uncallable,
}

/// For this time after a refusal, a node gets only commands without a place.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// The locks in whose lines the client may stand, as hashes of their keys: those for which it has tried last and not left the line
/// since. A lease that is not released leaves none either, so the oldest one makes room.
///
/// If two keys share a hash, the client does not leave the line of the one when it is called for it.
#[derive(Debug, Default)]
struct Lines {
    keys: Vec<u32, 4>,
}

impl Lines {
    fn contains(&self, key: u32) -> bool {
        self.keys.contains(&key)
    }

    fn insert(&mut self, key: u32) {
        self.remove(key);
        if self.keys.is_full() {
            self.keys.remove(0);
        }
        let _has_room: Result<(), u32> = self.keys.push(key);
    }

    fn remove(&mut self, key: u32) {
        self.keys.retain(|known| *known != key);
    }
}

#[derive(Debug, Default)]
struct Latest {
    key: Option<u32>,
    /// Whether the node could call when the wait began. The place in the line keeps its mark until the wait ends: otherwise the
    /// client would have two places.
    is_callable: bool,
    /// The number of outstanding replies up to that to the latest try, this one included. Calls before it do not count.
    replies_until_try: u8,
    /// The call that the client has not seen yet, the most important one if there are several.
    call: Option<Call>,
}

impl Mail {
    /// A client without a mailbox.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            mailbox: None,
            status: Status::Unknown,
            refused_at: None,
            lines: Lines { keys: Vec::new() },
            latest: Latest {
                key: None,
                is_callable: false,
                replies_until_try: 0,
                call: None,
            },
            stray: None,
            turn_ms: 0,
            uses_fences: false,
            uses_plain_lines: false,
            scripts: Scripts::There,
        }
    }

    pub(crate) const fn set_mailbox(&mut self, mailbox: Mailbox) {
        self.mailbox = Some(mailbox);
    }

    /// The mailbox as it stands in the line for which the client has tried last, or will stand in the next one. `None` if the
    /// node keeps no line for this client.
    pub(crate) fn mailbox(&self) -> Option<Mailbox> {
        let can_call = self.status == Status::Callable;
        self.marked(can_call && (self.latest.is_callable || !self.is_waiting()))
    }

    fn is_waiting(&self) -> bool {
        self.latest.key.is_some_and(|key| self.lines.contains(key))
    }

    fn marked(&self, is_callable: bool) -> Option<Mailbox> {
        let mailbox = self.mailbox.filter(|_| self.refused_at.is_none())?;
        Some(if is_callable {
            mailbox
        } else {
            mailbox.uncallable()
        })
    }

    /// Returns `command` as it is sent on this connection.
    pub(crate) fn at_node<'a>(&self, command: &Command<'a>) -> Command<'a> {
        if command.place.is_none() {
            return *command;
        }
        let key = hash(command.key);
        let is_callable = if self.latest.key == Some(key) && self.lines.contains(key) {
            self.latest.is_callable
        } else {
            self.status == Status::Callable
        };
        command.at_node(self.marked(is_callable))
    }

    /// Whether the client may stand in the line of `key`.
    pub(crate) fn stands_in_line(&self, key: &[u8]) -> bool {
        self.lines.contains(hash(key))
    }

    /// Ends a refusal that is long ago. Call it before a command: during a command, [`mailbox`](Self::mailbox) must not change
    /// by itself.
    pub(crate) fn refresh(&mut self, now: Instant) {
        let is_over = |at: &Instant| now >= at.saturating_add(REFUSED_FOR);
        if self.refused_at.as_ref().is_some_and(is_over) {
            self.refused_at = None;
        }
    }

    /// Records that the node has refused a command with a place in a line.
    pub(crate) const fn refuse(&mut self, now: Instant) {
        self.refused_at = Some(now);
    }

    /// Whether the connection must subscribe before `command` is sent, or tries to.
    pub(crate) fn needs_subscription(&self, command: &Command<'_>) -> bool {
        self.is_undecided() && is_try(command).is_some()
    }

    /// Whether a client that waits must subscribe, or try to.
    pub(crate) fn is_undecided(&self) -> bool {
        self.status == Status::Unknown && self.marked(true).is_some()
    }

    /// A new connection is open.
    pub(crate) const fn connected(&mut self) {
        self.status = Status::Unknown;
        self.latest.replies_until_try = 0;
        self.scripts = Scripts::There;
    }

    /// Records that the node has lacked a script.
    pub(crate) fn lack_script(&mut self) {
        if self.scripts == Scripts::There {
            self.scripts = Scripts::Lacking;
        }
    }

    /// Records that the node has the script with which plain locks are released.
    pub(crate) const fn have_scripts(&mut self) {
        self.scripts = Scripts::There;
    }

    /// Whether the script with which plain locks are released is loaded ahead of `command`. Only once: the user may lack the permission.
    pub(crate) fn needs_script_for(&self, command: &Command<'_>) -> bool {
        let is_acquire = matches!(command.verb, Verb::Acquire { .. });
        self.scripts == Scripts::Lacking && is_acquire && !command.is_fenced()
    }

    /// Records that the client tries to load it.
    pub(crate) const fn try_script(&mut self) {
        self.scripts = Scripts::Tried;
        self.uses_plain_lines = true;
    }

    /// Whether `command` is a release that goes as a short text, because the node lacks the scripts of lines: to load them may take
    /// longer than the round.
    pub(crate) fn goes_without_scripts(&self, command: &Command<'_>) -> bool {
        self.scripts != Scripts::There && command.is_release_from_outside()
    }

    pub(crate) const fn set_status(&mut self, status: Status) {
        self.status = status;
    }

    /// Records that it is known whether the node can call. Calls may have been lost before.
    pub(crate) fn decide(&mut self, can_call: bool) {
        self.status = if can_call {
            Status::Callable
        } else {
            Status::Uncallable
        };
        if can_call && self.is_waiting() {
            self.tell(Call::Reconnected);
        }
    }

    /// Records that the connection has confirmed a subscription. Returns whether that is the answer to a command.
    pub(crate) fn subscribed(&mut self) -> bool {
        core::mem::take(&mut self.status) == Status::Subscribing
    }

    /// Records that the pipeline has taken `command`, and that this number of replies is outstanding now.
    pub(crate) fn queued(&mut self, command: &Command<'_>, outstanding: u8) {
        self.uses_fences |= command.is_fenced();
        let Some(place) = command.place else {
            return;
        };
        self.uses_plain_lines |= !command.is_fenced() && !command.is_release_from_outside();
        self.turn_ms = place.turn_ms;
        let key = hash(command.key);
        if is_try(command).is_some() {
            if self.latest.key != Some(key) || !self.lines.contains(key) {
                self.latest = Latest {
                    key: Some(key),
                    is_callable: place.mailbox.is_some_and(|mailbox| mailbox.is_callable()),
                    replies_until_try: 0,
                    call: None,
                };
            }
            self.latest.replies_until_try = outstanding;
            self.lines.insert(key);
        } else if command.is_release() && place.ticket.is_none() && place.mailbox.is_some() {
            self.lines.remove(key);
        }
    }

    /// Records that a reply has arrived.
    pub(crate) fn replied(&mut self) {
        let latest = &mut self.latest;
        if latest.replies_until_try == 1 {
            latest.call = None;
        }
        latest.replies_until_try = latest.replies_until_try.saturating_sub(1);
    }

    /// Records a message. It can be of any client of the node.
    pub(crate) fn deliver(&mut self, message: &Message) {
        let Some((call, key)) = Call::read(&message.payload) else {
            return;
        };
        if self.latest.key == Some(message.hash) && self.lines.contains(message.hash) {
            if self.latest.replies_until_try == 0 {
                self.tell(call);
            }
        } else if !self.lines.contains(message.hash) && !message.is_cut && self.mailbox.is_some() {
            self.stray = Vec::from_slice(key).ok();
        }
    }

    fn tell(&mut self, call: Call) {
        let latest = &mut self.latest;
        if latest.call.is_none_or(|known| rank(known) < rank(call)) {
            latest.call = Some(call);
        }
    }

    /// Takes the call for `key`.
    pub(crate) fn take_call(&mut self, key: &[u8]) -> Option<Call> {
        let is_latest = self.latest.key == Some(hash(key)) && self.is_waiting();
        self.latest.call.take_if(|_| is_latest)
    }

    /// Has `send` leave the line of a lock for which the client was called and does not wait.
    pub(crate) fn leave_stray(&mut self, send: impl FnOnce(&Command<'_>)) {
        if let (Some(key), Some(mailbox)) = (self.stray.take(), self.marked(true)) {
            let token = Token::from_bytes([0; Token::LEN]);
            let place = Place::left(mailbox, self.turn_ms);
            send(&Command::release(&key, &token).with_place(Some(place)));
        }
    }

    pub(crate) const fn uses_fences(&self) -> bool {
        self.uses_fences
    }

    pub(crate) const fn uses_fenced_lines(&self) -> bool {
        self.uses_fences && self.mailbox.is_some()
    }

    pub(crate) const fn uses_plain_lines(&self) -> bool {
        self.uses_plain_lines
    }
}

/// Returns the place of `command` if it is an acquire that stands in the line.
fn is_try(command: &Command<'_>) -> Option<Place> {
    let is_acquire = matches!(command.verb, Verb::Acquire { .. });
    command.place.filter(|_| is_acquire)
}

const fn rank(call: Call) -> u8 {
    match call {
        Call::Deputy => 1,
        Call::Reconnected => 2,
        Call::Turn => 3,
    }
}

/// The payload of a message: all of it if it is short, and a hash of the key in it.
#[derive(Debug)]
pub struct Message {
    /// A letter, and a key.
    payload: Vec<u8, { 1 + Outbox::KEY_MAX }>,
    is_cut: bool,
    is_empty: bool,
    hash: u32,
}

impl Message {
    /// An empty message.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            payload: Vec::new(),
            is_cut: false,
            is_empty: true,
            hash: HASH_START,
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }

    pub(crate) fn push(&mut self, byte: u8) {
        self.is_cut |= self.payload.push(byte).is_err();
        if !core::mem::take(&mut self.is_empty) {
            self.hash = hash_with(self.hash, byte);
        }
    }

    /// The first bytes of the payload.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.payload
    }
}

impl Default for Message {
    fn default() -> Self {
        Self::new()
    }
}

const HASH_START: u32 = 0x811c_9dc5;

/// FNV-1a.
fn hash(key: &[u8]) -> u32 {
    key.iter()
        .fold(HASH_START, |hash, byte| hash_with(hash, *byte))
}

const fn hash_with(hash: u32, byte: u8) -> u32 {
    (hash ^ byte as u32).wrapping_mul(0x0100_0193)
}
