//! What a server does with the waiting line of a lock: `scripts/line.lua`, `line_wait.lua` and `line_leave.lua`, function by
//! function.

use core::time::Duration;

use crate::key::KeyName;
use crate::line::{Call, Mailbox, Place, Position, Refusal};
use crate::mock::flaw::ServerFlaw;
use crate::mock::line::{Line, Turn};
use crate::mock::server::Server;
use crate::time::Instant;

/// The longest turn, in milliseconds.
const TURN_MAX: u64 = 10_000;

/// A ticket is at most this old, in microseconds, or as old as that of the first client.
const AGE_MAX: u64 = 86_400_000_000;

/// The line of a lock lives for so long after the last client has stood in it.
const LIFE_MS: u32 = 10_000;

/// How many clients that are gone a script removes.
const GONE_MAX: usize = 1_000;

impl<const KEYS: usize> Server<KEYS> {
    /// A connection of this client subscribes to its mailbox. Until it unsubscribes, the server can call the client. Returns
    /// whether there was room: there is for 32 clients.
    pub fn subscribe(&mut self, mailbox: Mailbox) -> bool {
        self.unsubscribe(mailbox);
        self.subscribers.insert(*mailbox.digits()).is_some()
    }

    /// The connection of this client ends.
    pub fn unsubscribe(&mut self, mailbox: Mailbox) {
        self.subscribers.retain(|digits| digits != mailbox.digits());
    }

    /// Takes the calls of the last command: the mailboxes of clients that have subscribed, and what they are told about the lock.
    pub fn take_calls(&mut self) -> impl Iterator<Item = (Mailbox, Call)> {
        self.calls.take_all()
    }

    /// The clients in the line of `key` with their tickets in microseconds, the first one first. Like `ZRANGE` of Redis, but for
    /// the turn.
    pub fn line(&self, key: &[u8], now: Instant) -> impl Iterator<Item = (Mailbox, u64)> {
        let line = self.data.line(&KeyName::new(key));
        let line = line.filter(|line| line.expires_at > now);
        let tickets = line.into_iter().flat_map(Line::tickets);
        tickets.map(|(mailbox, ticket)| (*mailbox, ticket))
    }

    /// Whose turn it is in the line of `key`, and until when, in milliseconds of the server's clock.
    #[must_use]
    pub fn turn(&self, key: &[u8], now: Instant) -> Option<(Mailbox, u64)> {
        let line = self.data.line(&KeyName::new(key))?;
        let turn = line.turn.filter(|_| line.expires_at > now)?;
        Some((turn.mailbox, turn.ends_ms))
    }

    /// How long the line of `key` still lives, in whole milliseconds, like `PTTL` of Redis.
    #[must_use]
    pub fn line_ttl(&self, key: &[u8], now: Instant) -> Option<Duration> {
        super::left(self.data.line(&KeyName::new(key))?.expires_at, now)
    }

    /// Deletes the line of `key`, like a server that evicts it.
    pub fn forget_line(&mut self, key: &[u8]) {
        self.data.set_line(KeyName::new(key), Line::EMPTY);
    }

    /// `wait_in_line`: returns the answer to a client that wants the free lock and must wait.
    pub(super) fn wait_in_line(
        &mut self,
        key: &KeyName,
        place: &Place,
        now: Instant,
    ) -> Option<Position> {
        let (me, ticket) = (place.mailbox?, place.ticket?);
        self.data.line(key)?;
        let position =
            |refusal, left_ms, ahead| Some(Position::new(refusal, now.as_micros(), left_ms, ahead));
        let mut has_place = self.register(key, me, ticket, now);
        let now_ms = millis(now);
        let mut line = self.data.line(key)?.clone();
        if let Some(turn) = line.turn
            && !self.has(ServerFlaw::TurnNeverEnds)
            && (turn.ends_ms < now_ms || turn.ends_ms > now_ms + TURN_MAX)
        {
            let spared = match self.has(ServerFlaw::KeepsHead) {
                true => turn.mailbox,
                false => me,
            };
            end_turn(&mut line, turn, Some(spared), now_ms);
        }
        let is_mine = |line: &Line| {
            line.head() == Some(me) || line.turn.is_some_and(|turn| turn.mailbox == me)
        };
        let mut waits = !is_mine(&line);
        if waits && line.turn.is_none() {
            self.call_next(&mut line, Some(me), place.turn_ms, now);
            if !has_place {
                self.data.set_line(*key, line.clone());
                has_place = self.register(key, me, ticket, now);
                line = self.data.line(key).cloned().unwrap_or(Line::EMPTY);
            }
            waits = line.head() != Some(me);
        }
        if waits && !has_place {
            self.data.set_line(*key, line);
            return position(Refusal::Full, 0, 1_000);
        }
        let ahead = line.clients_ahead_of(&me);
        let left_ms = line
            .turn
            .map_or(0, |turn| turn.ends_ms.saturating_sub(now_ms));
        self.data.set_line(*key, line);
        if !waits {
            return None;
        }
        let left_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
        position(Refusal::Ahead, left_ms, ahead)
    }

    /// `wait_for_holder`: a client that finds the lock held stands in the line. `left_ms` is how long it is held.
    pub(super) fn wait_for_holder(
        &mut self,
        key: &KeyName,
        place: &Place,
        left_ms: u32,
        now: Instant,
    ) -> Position {
        let me = place.mailbox.zip(place.ticket);
        let is_in = me.filter(|(me, ticket)| self.register(key, *me, *ticket, now));
        if let Some(mut line) = self.data.line(key).cloned()
            && let Some((me, _)) = is_in
            && line.turn.is_some_and(|turn| turn.mailbox == me)
        {
            line.turn = None;
            self.data.set_line(*key, line);
        }
        let line = self.data.line(key).zip(is_in);
        let ahead = line.map_or(1_000, |(line, (me, _))| line.clients_ahead_of(&me));
        Position::new(Refusal::Held, now.as_micros(), left_ms, ahead)
    }

    /// `leave_line`: this client takes the lock.
    pub(super) fn leave_line(&mut self, key: &KeyName, place: &Place) {
        if let Some(mut line) = self.data.line(key).cloned() {
            if let Some(me) = &place.mailbox {
                line.remove(me);
            }
            line.turn = None;
            self.data.set_line(*key, line);
        }
    }

    /// `hand_over`: after a release. Returns whether clients wait.
    pub(super) fn hand_over(
        &mut self,
        key: &KeyName,
        place: &Place,
        is_deleted: bool,
        now: Instant,
    ) -> bool {
        if let (Some(me), Some(ticket)) = (place.mailbox, place.ticket) {
            let keeps_place = !self.has(ServerFlaw::LosesPlace);
            if is_deleted && keeps_place && self.register(key, me, ticket, now) {
                let mut line = self.data.line(key).cloned().unwrap_or(Line::EMPTY);
                if line.turn.is_none() {
                    self.call_next(&mut line, Some(me), place.turn_ms, now);
                }
                self.data.set_line(*key, line);
            }
            return false;
        }
        let Some(mut line) = self.data.line(key).cloned() else {
            return false;
        };
        let me = place.mailbox;
        if let Some(me) = me.as_ref().filter(|_| !self.has(ServerFlaw::KeepsLeaver)) {
            line.remove(me);
        }
        let is_deleted = is_deleted || self.has(ServerFlaw::CallsWhileHeld);
        if let Some(turn) = line.turn
            && (is_deleted || Some(turn.mailbox) == me)
        {
            let spared = match self.has(ServerFlaw::KeepsHead) {
                true => Some(turn.mailbox),
                false => me,
            };
            end_turn(&mut line, turn, spared, millis(now));
        }
        if line.turn.is_none() && (is_deleted || self.data.entry(key).is_none()) {
            self.call_next(&mut line, me, place.turn_ms, now);
        }
        let waits = !line.is_empty();
        self.data.set_line(*key, line);
        waits
    }

    /// Returns whether the client stands in the line.
    fn register(&mut self, key: &KeyName, me: Mailbox, ticket: u64, now: Instant) -> bool {
        let mut line = self.data.line(key).cloned().unwrap_or(Line::EMPTY);
        let known = line.ticket(&me);
        if known.is_none() && !(line.has_room() && self.data.has_room_for_line(key)) {
            return false;
        }
        let now_micros = now.as_micros();
        let ticket = match self.has(ServerFlaw::TakesLastTicket) {
            true => now_micros,
            false => ticket,
        };
        let oldest = line.tickets().map(|(_, ticket)| ticket).next();
        let floor = now_micros.saturating_sub(AGE_MAX);
        let from = ticket
            .min(now_micros)
            .max(oldest.map_or(floor, |oldest| oldest.min(floor)));
        let is_new = self.has(ServerFlaw::TakesLastTicket);
        if known.is_none_or(|known| from < known) || is_new {
            line.set(me, from);
        }
        line.expires_at = self.end(now, super::millis(LIFE_MS));
        self.data.set_line(*key, line);
        true
    }

    fn call_next(&mut self, line: &mut Line, me: Option<Mailbox>, turn_ms: u32, now: Instant) {
        let head = self.living(line, 0, me);
        let Some(head) = head.filter(|head| Some(*head) != me) else {
            return;
        };
        let deputy = self.living(line, 1, me);
        line.turn = Some(Turn {
            mailbox: head,
            ends_ms: millis(now) + u64::from(turn_ms).min(TURN_MAX),
        });
        self.publish(head, Call::Turn);
        if let Some(deputy) = deputy.filter(|deputy| Some(*deputy) != me) {
            self.publish(deputy, Call::Deputy);
        }
    }

    /// The client with this rank, after those that are gone have left the line.
    fn living(&self, line: &mut Line, rank: usize, me: Option<Mailbox>) -> Option<Mailbox> {
        for _ in 0..GONE_MAX {
            let client = line.mailboxes().nth(rank).copied()?;
            let is_gone = match self.flaw {
                Some(ServerFlaw::TakesGoneForAlive) => false,
                Some(ServerFlaw::TakesErrorForGone) => true,
                _ => !self.has_subscribed(&client),
            };
            if Some(client) == me || !client.is_callable() || !is_gone {
                return Some(client);
            }
            line.remove(&client);
        }
        None
    }

    fn publish(&mut self, mailbox: Mailbox, call: Call) {
        if mailbox.is_callable() && self.has_subscribed(&mailbox) {
            self.calls.insert((mailbox, call));
        }
    }

    fn has_subscribed(&self, mailbox: &Mailbox) -> bool {
        let mut subscribers = self.subscribers.iter();
        subscribers.any(|digits| digits == mailbox.digits())
    }
}

/// If the turn has passed, its client did not come, and leaves the line.
fn end_turn(line: &mut Line, turn: Turn, me: Option<Mailbox>, now_ms: u64) {
    line.turn = None;
    if turn.ends_ms < now_ms && Some(turn.mailbox) != me {
        line.remove(&turn.mailbox);
    }
}

const fn millis(now: Instant) -> u64 {
    now.as_micros() / 1_000
}
