//! The last releases of a node, stored until they are answered.

mod ending;

use heapless::Vec;
use redlock_core::transport::{Command, Place, Proposal};
use redlock_core::{Instant, Token};

use ending::Ending;

/// The last releases, until they are answered. A release is sent ahead of the next command if
///
/// - it could not be sent,
/// - its connection ended before the answer, or
/// - no reply is outstanding any more, and one of the replies was an error. It may be the answer to the release: only the
///   reply to the last command is matched.
///
/// So a release that the node refused is not sent again while any reply is outstanding.
///
/// A release may let the key live for the rest of `min_hold`. It is stored with the feature `min-hold`, and dropped when that
/// time is over.
///
/// A stored release is dropped if it does not fit the send buffer, if the call of this release reads an error that is neither
/// temporary nor `NOSCRIPT`, if it is fenced and the node refuses to load its script, or if there is no room for a newer one.
#[derive(Debug)]
pub(crate) struct Outbox {
    // Slots that stay where they are take less flash than a vector.
    slots: [Slot; 2],
    /// Whether the release that was stored last is in the second slot.
    is_second_newer: bool,
}

#[derive(Debug)]
struct Slot {
    state: State,
    ending: Ending,
    key: Vec<u8, { Outbox::KEY_MAX }>,
    token: Token,
    proposal: Option<Proposal>,
    place: Option<Place>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No release is stored.
    Empty,
    /// The connection has taken the release. It counts as answered when no reply is outstanding.
    InFlight,
    /// The release will be sent ahead of the next command for which there is a connection.
    Unsent,
}

impl Outbox {
    /// The longest key that is stored, in bytes. `Redlock` has the same limit for the releases that it still owes after a
    /// future was dropped. A longer key expires on the node.
    pub(crate) const KEY_MAX: usize = 64;

    /// A release returns at the quorum, so the next one may come while a slow node has not answered the one before. If it replaced
    /// that one, the key would be left there if the node lacks the script, for example. So there are two slots.
    pub(crate) const EMPTY: Self = Self {
        slots: [Slot::EMPTY, Slot::EMPTY],
        is_second_newer: false,
    };

    /// Stores `command`, if it is a release, to be sent ahead of the next command.
    pub(crate) fn store_unsent(&mut self, command: &Command<'_>, now: Instant) {
        self.store(command, State::Unsent, now);
    }

    /// Stores `command`, if it is a release, until it is answered. The connection has taken it.
    pub(crate) fn store_in_flight(&mut self, command: &Command<'_>, now: Instant) {
        self.store(command, State::InFlight, now);
    }

    /// Stores `command` like [`store_unsent`](Self::store_unsent), unless another release would be replaced.
    #[cfg(feature = "queue")]
    pub(crate) fn store_if_room(&mut self, command: &Command<'_>, now: Instant) {
        if self.slots.iter().any(|slot| slot.state == State::Empty) {
            self.store_unsent(command, now);
        }
    }

    /// Stores a release, if its key is not too long. It replaces the older one if there is no room.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn store(&mut self, command: &Command<'_>, state: State, now: Instant) {
        let Some(ending) = Ending::of(command, now) else {
            return;
        };
        if command.key.len() > Self::KEY_MAX {
            return;
        }
        self.remove(command);
        let [first, second] = &self.slots;
        self.is_second_newer = match (first.state, second.state) {
            (State::Empty, _) => false,
            (_, State::Empty) => true,
            _ => !self.is_second_newer,
        };
        let [first, second] = &mut self.slots;
        let slot = if self.is_second_newer { second } else { first };
        slot.key.clear();
        let _fits = slot.key.extend_from_slice(command.key);
        slot.token = *command.token;
        slot.ending = ending;
        slot.proposal = ending.at_end(command.proposal, now);
        slot.place = command.place;
        slot.state = state;
    }

    /// Drops the releases whose keys have ended by themselves.
    pub(crate) fn remove_over(&mut self, now: Instant) {
        for slot in &mut self.slots {
            if slot.ending.is_over(now) {
                slot.state = State::Empty;
            }
        }
    }

    /// Whether another release would take the place of one of these.
    pub(crate) fn is_full(&self) -> bool {
        self.slots.iter().all(|slot| slot.state != State::Empty)
    }

    /// Gives up the script that a stored release needs that must be sent, because the node does not load it: drops the fenced ones, and
    /// sends the plain ones without a place in the line.
    #[cfg(feature = "scripts")]
    pub(crate) fn give_up_scripts(&mut self) {
        for slot in &mut self.slots {
            if slot.state == State::Unsent {
                slot.place = None;
                if slot.proposal.is_some() {
                    slot.state = State::Empty;
                }
            }
        }
    }

    /// Whether there is a stored release that must be sent.
    #[cfg(feature = "scripts")]
    pub(crate) fn has_unsent(&self) -> bool {
        self.position(None).is_some()
    }

    /// Returns the older stored release that must be sent, as it is at `now`. `None` if there is none but `command`.
    pub(crate) fn unsent_ahead_of(
        &self,
        command: Option<&Command<'_>>,
        now: Instant,
    ) -> Option<Command<'_>> {
        let slot = self.slots.get(self.position(command)?)?;
        Some(slot.command(now))
    }

    /// Records that the connection has taken the release that [`unsent_ahead_of`](Self::unsent_ahead_of) has returned.
    pub(crate) fn set_in_flight(&mut self, command: Option<&Command<'_>>) {
        self.set_next(command, State::InFlight);
    }

    /// Drops the release that [`unsent_ahead_of`](Self::unsent_ahead_of) returns.
    pub(crate) fn remove_unsent_ahead_of(&mut self, command: Option<&Command<'_>>) {
        self.set_next(command, State::Empty);
    }

    /// Drops the stored release that is `command`, if there is one.
    pub(crate) fn remove(&mut self, command: &Command<'_>) {
        for slot in &mut self.slots {
            if slot.is(command) {
                slot.state = State::Empty;
            }
        }
    }

    /// Records that no reply is outstanding, or that the connection has ended. The releases that were in flight will be sent
    /// again ahead of the next command if `is_retried`, and are dropped if not.
    pub(crate) fn end_flight(&mut self, is_retried: bool) {
        for slot in &mut self.slots {
            if slot.state == State::InFlight {
                slot.state = if is_retried {
                    State::Unsent
                } else {
                    State::Empty
                };
            }
        }
    }

    /// Whether a release with a place in a line is in flight.
    #[cfg(feature = "queue")]
    pub(crate) fn has_place_in_flight(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| slot.state == State::InFlight && slot.place.is_some())
    }

    /// Whether a plain release of a client that has not stood in the line is in flight.
    #[cfg(feature = "queue")]
    pub(crate) fn has_release_from_outside_in_flight(&self) -> bool {
        let mut slots = self.slots.iter();
        slots.any(|slot| {
            let command = slot.command(Instant::from_micros(0));
            slot.state == State::InFlight && command.is_release_from_outside()
        })
    }

    fn set_next(&mut self, command: Option<&Command<'_>>, state: State) {
        let at = self.position(command);
        if let Some(slot) = at.and_then(|at| self.slots.get_mut(at)) {
            slot.state = state;
        }
    }

    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn position(&self, command: Option<&Command<'_>>) -> Option<usize> {
        let newer = usize::from(self.is_second_newer);
        [1 - newer, newer].into_iter().find(|at| {
            self.slots.get(*at).is_some_and(|slot| {
                slot.state == State::Unsent && !command.is_some_and(|command| slot.is(command))
            })
        })
    }
}

impl Slot {
    const EMPTY: Self = Self {
        state: State::Empty,
        ending: Ending::Delete,
        key: Vec::new(),
        token: Token::from_bytes([0; Token::LEN]),
        proposal: None,
        place: None,
    };

    fn command(&self, now: Instant) -> Command<'_> {
        self.ending
            .command(&self.key, &self.token, now)
            .with_proposal(self.ending.before_end(self.proposal, now))
            .with_place(self.place)
    }

    /// Whether it is `command`. The key is compared too: a client leaves lines under a token that is no lease's.
    fn is(&self, command: &Command<'_>) -> bool {
        self.ending.is_of(command) && *command.token == self.token && command.key == self.key
    }
}
