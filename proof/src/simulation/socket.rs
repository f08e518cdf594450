//! The end of a connection on a device: bytes that were written and make no whole command yet, and bytes that have come
//! and were not read.

use core::time::Duration;
use std::collections::VecDeque;
use std::task::Waker;

use embedded_io_async::ErrorKind;
use redlock_core::Denial;
use redlock_core::transport::{NodeInfo, Reply, Verb, VoteConditions};

use super::debt::Debt;
use super::history::Message;

/// What a device has for its network.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hardware {
    /// How many bytes of commands may be on their way.
    pub(crate) room: usize,
    /// How many bytes are read or written at once, at the most.
    pub(crate) chunk: usize,
    /// Written bytes leave without being flushed.
    pub(crate) sends_at_once: bool,
    pub(crate) connect_timeout: Duration,
    pub(crate) patience: Duration,
}

#[derive(Debug)]
pub(crate) struct Socket {
    pub(super) hardware: Hardware,
    /// The attempt to connect, until its end is told.
    pub(super) attempt: Option<Attempt>,
    /// Written, and not on the way yet.
    pub(super) written: Vec<u8>,
    /// How many bytes of whole commands have not arrived.
    pub(super) on_their_way: usize,
    /// How many of them the device has not read the answer to.
    pub(super) unanswered: usize,
    /// The last write found no room, so that the device has more to write.
    pub(super) is_stuck: bool,
    pub(super) debt: Debt,
    /// What the node has first said of itself.
    pub(super) introduced: Option<Vec<u8>>,
    waker: Option<Waker>,
    inbox: VecDeque<u8>,
    /// The replies in the inbox, each with the number of its bytes that were not read.
    letters: VecDeque<(usize, Letter)>,
    /// Of each acquire: its token, and what must be so that its vote counts. This is not sent.
    conditions: Vec<(usize, VoteConditions)>,
    /// The same of the last extension.
    extension: Option<(usize, VoteConditions)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attempt {
    Running,
    Over(Result<(), ErrorKind>),
}

/// What the bytes of a reply mean.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Letter {
    Answer(Message, Result<Reply, Denial>),
    /// The node lacks the script of the command.
    NoScript(Message),
    NodeInfo(NodeInfo),
    Other,
}

impl Socket {
    pub(crate) const fn new(hardware: Hardware) -> Self {
        Self {
            hardware,
            attempt: None,
            written: Vec::new(),
            on_their_way: 0,
            unanswered: 0,
            is_stuck: false,
            debt: Debt::new(),
            introduced: None,
            waker: None,
            inbox: VecDeque::new(),
            letters: VecDeque::new(),
            conditions: Vec::new(),
            extension: None,
        }
    }

    /// The task calls the node.
    pub(super) fn call(&mut self, message: Message) {
        let is_idle = !self.is_stuck && self.unanswered == 0;
        self.debt.call(message, is_idle);
        match message.verb {
            Verb::Acquire { conditions, .. } => self.conditions.push((message.token, conditions)),
            Verb::Extend { conditions, .. } => self.extension = Some((message.token, conditions)),
            Verb::Keep { .. } | Verb::Release => {}
        }
    }

    /// What must be so that the vote for an acquire with `token` counts.
    pub(super) fn conditions_of(&self, token: usize) -> VoteConditions {
        let mut known = self.conditions.iter().rev();
        let found = known.find(|(whose, _)| *whose == token);
        found.map_or(VoteConditions::NONE, |(_, conditions)| *conditions)
    }

    /// What must be so that the vote for the last extension counts, if that is of `token`.
    pub(super) fn conditions_of_extension(&self, token: usize) -> VoteConditions {
        let its = self.extension.filter(|(whose, _)| *whose == token);
        its.map_or(VoteConditions::NONE, |(_, conditions)| conditions)
    }

    /// How many of `len` bytes can be written now.
    pub(super) fn room(&self, len: usize) -> usize {
        // What is a part of a command is there at once, unless a command before it is not.
        let waiting = match self.on_their_way {
            0 => 0,
            on_their_way => on_their_way + self.written.len(),
        };
        let room = self.hardware.room.saturating_sub(waiting);
        len.min(room).min(self.hardware.chunk)
    }

    /// A command has left the room for bytes on their way.
    pub(super) fn arrived(&mut self, len: usize) {
        let was_full = self.on_their_way >= self.hardware.room;
        self.on_their_way = self.on_their_way.saturating_sub(len);
        if was_full {
            self.wake();
        }
    }

    pub(super) fn receive(&mut self, bytes: &[u8], letter: Letter) {
        self.inbox.extend(bytes);
        self.letters.push_back((bytes.len(), letter));
        self.wake();
    }

    /// Reads what there is: how many bytes, and what the replies mean that end in them.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> (usize, Vec<Letter>) {
        let count = buffer.len().min(self.inbox.len()).min(self.hardware.chunk);
        let bytes = self.inbox.drain(..count);
        buffer
            .iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = from);
        let mut letters = Vec::new();
        let mut read = count;
        while let Some((left, letter)) = self.letters.front_mut() {
            let of_it = read.min(*left);
            *left -= of_it;
            read -= of_it;
            if *left > 0 {
                break;
            }
            letters.push(*letter);
            self.unanswered = self.unanswered.saturating_sub(1);
            self.letters.pop_front();
        }
        (count, letters)
    }

    /// Nothing is left of the connection. Whether it ends in the middle of a command.
    pub(super) fn clear(&mut self) -> bool {
        let is_cut_off = !self.written.is_empty();
        self.attempt = None;
        self.unanswered = 0;
        self.is_stuck = false;
        self.debt.end_refusal();
        self.written.clear();
        self.on_their_way = 0;
        self.inbox.clear();
        self.letters.clear();
        is_cut_off
    }

    pub(super) fn wait(&mut self, waker: &Waker) {
        if !self.waker.as_ref().is_some_and(|set| set.will_wake(waker)) {
            self.waker = Some(waker.clone());
        }
    }

    pub(super) fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}
