//! A Redis server with the scripts of the lock, in Rust.

mod queue;

use core::time::Duration;

use crate::command::{Command, Verb};
use crate::denial::Denial;
use crate::failure::Failure;
use crate::fence::{Fence, Fencing, Proposal, Reading};
use crate::key::KeyName;
use crate::line::{Call, Mailbox, Place, Waiters};
use crate::mock::data::{Data, Entry, FenceRecord, Guard, PAST, Value};
use crate::mock::error::{MockError, MockFailure};
use crate::mock::flaw::ServerFlaw;
use crate::mock::slots::Slots;
use crate::node_info::{NodeInfo, ReplicationId, RunId};
use crate::reply::Reply;
use crate::time::{Instant, whole_millis};
use crate::token::Token;

/// A server with room for `KEYS` locks: a value, without a clock or a network. `now` is always the time on the server's own
/// wall clock.
///
/// It does what the scripts do on Redis, and a test compares the two. The nodes of the test kit, of the simulation and of the
/// model are such servers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Server<const KEYS: usize> {
    run_id: RunId,
    replication_id: ReplicationId,
    is_master: bool,
    may_evict: bool,
    data: Data<KEYS>,
    is_exact: bool,
    flaw: Option<ServerFlaw>,
    /// The mailboxes to which a connection has subscribed.
    subscribers: Slots<[u8; Mailbox::DIGITS], SUBSCRIBERS>,
    /// The calls of the last command.
    calls: Slots<(Mailbox, Call), 2>,
}

const SUBSCRIBERS: usize = 32;

/// What an operator and the machine do.
impl<const KEYS: usize> Server<KEYS> {
    /// A master that has forgotten nothing: its quarantine is over. The first fenced acquire sets the rules of its guard record.
    #[must_use]
    pub const fn new(run_id: RunId) -> Self {
        let replication_id = ReplicationId(0);
        let guard = Guard {
            run_id,
            replication_id,
            until: PAST,
            fencing: None,
        };
        Self {
            run_id,
            replication_id,
            is_master: true,
            may_evict: false,
            data: Data::of(guard),
            is_exact: false,
            flaw: None,
            subscribers: Slots::new(),
            calls: Slots::new(),
        }
    }

    /// The same server with the rules of `fencing` in its guard record. If `fencing` is `None`, without a guard record.
    #[must_use]
    pub fn set_up_for(mut self, fencing: Option<Fencing>) -> Self {
        let guard = fencing.and(self.data.guard);
        self.data.guard = guard.map(|guard| Guard { fencing, ..guard });
        self
    }

    /// The same server, but keys expire to the microsecond: no server may expire them earlier. Redis counts whole milliseconds,
    /// so on Redis a key lives up to one millisecond longer.
    #[must_use]
    pub const fn exact(mut self) -> Self {
        self.is_exact = true;
        self
    }

    /// The same server with `flaw`.
    #[must_use]
    pub const fn with_flaw(mut self, flaw: Option<ServerFlaw>) -> Self {
        self.flaw = flaw;
        self
    }

    /// Restarts: another process, with the same data. All connections end.
    pub fn restart(&mut self, run_id: RunId) {
        self.run_id = run_id;
        self.subscribers = Slots::new();
    }

    /// Becomes a master or a replica. If a test is to be like Redis, it must also [begin a history](Self::begin_history).
    pub const fn set_master(&mut self, is_master: bool) {
        self.is_master = is_master;
    }

    /// Begins another history of its data.
    pub const fn begin_history(&mut self, replication_id: ReplicationId) {
        self.replication_id = replication_id;
    }

    /// A copy of its data, for [`restore`](Self::restore).
    #[must_use]
    pub fn data(&self) -> Data<KEYS> {
        self.data.clone()
    }

    /// Replaces its data, as a replica does that copies its master.
    pub fn restore(&mut self, data: Data<KEYS>) {
        self.data = data;
    }

    /// Deletes all data, as FLUSHALL does.
    pub fn clear(&mut self) {
        self.data = Data::EMPTY;
    }

    /// Deletes the key and the fence record of a lock. Keeps the guard record.
    pub fn evict(&mut self, key: &[u8]) {
        let key = KeyName::new(key);
        self.data.remove_entry(&key);
        self.data.remove_fence(&key);
    }

    /// Deletes the key of a lock, whatever its token.
    pub fn remove(&mut self, key: &[u8]) {
        self.data.remove_entry(&KeyName::new(key));
    }

    /// Ends the lease in `key`, as if it had expired.
    pub fn expire_early(&mut self, key: &[u8]) {
        let key = KeyName::new(key);
        self.data.remove_entry(&key);
        if let Some(record) = self.data.fence_record(&key).copied() {
            let held_until = PAST;
            let record = FenceRecord {
                held_until,
                ..record
            };
            self.data.set_fence(key, record);
        }
    }

    /// Sets its `maxmemory-policy`.
    pub const fn set_may_evict(&mut self, may_evict: bool) {
        self.may_evict = may_evict;
    }

    /// Sets `key` to `token`, even if the key exists.
    ///
    /// # Errors
    ///
    /// If there is no room, or the key is too long.
    pub fn set(
        &mut self,
        key: &[u8],
        token: Token,
        ttl: Duration,
        now: Instant,
    ) -> Result<(), MockFailure> {
        let key = short(key)?;
        if !self.data.has_room_for_entry(&key) {
            return Err(Failure::Transport(MockError::OutOfMemory));
        }
        self.set_entry(key, Value::of(token), ttl, now);
        Ok(())
    }

    /// Does what `redlock init` does: writes a guard record without a quarantine. Returns whether the record was written. It is
    /// not written in any of these cases:
    ///
    /// - There is a guard record.
    /// - There is the key, the fence record or the waiting line of a lock, unless `is_careless`.
    /// - The server is a replica.
    /// - The server may evict keys.
    pub fn init(&mut self, fencing: Fencing, now: Instant, is_careless: bool) -> bool {
        self.expire(now);
        let is_new = self.data.guard.is_none() && (is_careless || self.data.is_empty());
        let is_new = is_new && self.is_master && !self.may_evict;
        if is_new {
            self.write_guard(fencing, up_to_millis(now));
        }
        is_new
    }

    /// Does what `redlock init --repair` does: writes a guard record with the longer of two quarantines, that of the old record
    /// and that of `fencing`. The record is not written in any of these cases:
    ///
    /// - There is a guard record with these rules, of this process and this data.
    /// - The server is a replica.
    /// - The server may evict keys.
    pub fn repair(&mut self, fencing: Fencing, now: Instant) {
        let recorded = self.rules();
        let is_right = recorded == Some(fencing) && self.quarantined_until().is_some();
        if is_right || !self.is_master || self.may_evict {
            return;
        }
        let quarantine = recorded.map_or(Duration::ZERO, |before| before.quarantine());
        let quarantine = quarantine.max(fencing.quarantine());
        self.write_guard(fencing, up_to_millis(now).saturating_add(quarantine));
    }

    /// Deletes the keys that have expired. They do not come back if the clock is stepped back later: as on a Redis server that
    /// has read them, or whose expiry cycle has found them.
    pub fn expire(&mut self, now: Instant) {
        self.data.expire(now);
    }
}

/// What a test can see.
impl<const KEYS: usize> Server<KEYS> {
    /// The process.
    #[must_use]
    pub const fn run_id(&self) -> RunId {
        self.run_id
    }

    /// The history of its data.
    #[must_use]
    pub const fn replication_id(&self) -> ReplicationId {
        self.replication_id
    }

    /// Whether it is a master.
    #[must_use]
    pub const fn is_master(&self) -> bool {
        self.is_master
    }

    /// Whether its `maxmemory-policy` allows it to evict keys.
    #[must_use]
    pub const fn may_evict(&self) -> bool {
        self.may_evict
    }

    /// The key of a lock. `None` if it does not exist or has expired.
    #[must_use]
    pub fn entry(&self, key: &[u8], now: Instant) -> Option<&Entry> {
        let entry = self.data.entry(&KeyName::new(key));
        entry.filter(|entry| entry.expires_at > now)
    }

    /// How long the key of a lock still lives, in whole milliseconds, like `PTTL` of Redis.
    #[must_use]
    pub fn ttl(&self, key: &[u8], now: Instant) -> Option<Duration> {
        left(self.entry(key, now)?.expires_at, now)
    }

    /// The highest fence that was accepted for `key`, and how long its record still lives. `None` if there is no record.
    #[must_use]
    pub fn fence(&self, key: &[u8], now: Instant) -> Option<(Fence, Duration)> {
        let record = self.data.fence_record(&KeyName::new(key))?;
        Some((record.fence, left(record.expires_at, now)?))
    }

    /// The number of locks whose keys had not expired at the last command or [`expire`](Self::expire).
    #[must_use]
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Whether there is neither the key, the fence record nor the waiting line of a lock.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The rules of the guard record, even if it is of another process or other data.
    #[must_use]
    pub fn rules(&self) -> Option<Fencing> {
        self.data.rules()
    }

    /// The end of the quarantine, by the guard record. `None` if there is no record of this process with this data.
    #[must_use]
    pub fn quarantined_until(&self) -> Option<Instant> {
        let guard = self.data.guard?;
        let is_same_data =
            guard.replication_id == self.replication_id || self.has(ServerFlaw::MissesFailback);
        (guard.run_id == self.run_id && is_same_data).then_some(guard.until)
    }

    /// Whether the guard record vouches for the server: it is of this process with this data, and its quarantine is over.
    #[must_use]
    pub fn is_vouched(&self, now: Instant) -> bool {
        self.quarantined_until().is_some_and(|until| now >= until)
    }

    /// What it tells a client about itself. If it is a master that may evict keys, it deletes its guard record.
    pub fn node_info(&mut self, uptime: Duration, now: Instant) -> NodeInfo {
        let is_hidden = self.has(ServerFlaw::HidesItsRole);
        let may_evict = self.may_evict && !is_hidden;
        if may_evict && self.is_master {
            self.data.guard = None;
        }
        NodeInfo {
            run_id: self.run_id,
            replication_id: self.replication_id,
            uptime,
            is_master: self.is_master || is_hidden,
            may_evict,
            max_ttl_ms: self.rules().map(|rules| rules.max_ttl_ms),
            is_vouched: self.is_vouched(now),
        }
    }
}

/// What a client's command does.
impl<const KEYS: usize> Server<KEYS> {
    /// Executes `command`. A replica executes no command. (On Redis, a replica refuses only commands that write.)
    ///
    /// # Errors
    ///
    /// Fails if the server has no vote, if it has no room for another key, or if the key has more than 64 bytes.
    pub fn execute(&mut self, command: &Command<'_>, now: Instant) -> Result<Reply, MockFailure> {
        let key = short(command.key)?;
        self.expire(now);
        self.calls = Slots::new();
        if !self.is_master && !self.has(ServerFlaw::HidesItsRole) {
            return Err(Failure::Denied(Denial::Replica));
        }
        // A release needs no room, as on Redis.
        if !matches!(command.verb, Verb::Release) {
            let is_fenced = command.proposal.is_some();
            let has_room = self.data.has_room_for_entry(&key)
                && (!is_fenced || self.data.has_room_for_fence(&key));
            if !has_room {
                return Err(Failure::Transport(MockError::OutOfMemory));
            }
        }
        let token = *command.token;
        let place = command.place;
        let reply = match (command.verb, command.proposal) {
            (Verb::Acquire { ttl_ms, .. }, None) => {
                Ok(self.acquire(key, token, ttl_ms, place, now))
            }
            (Verb::Acquire { ttl_ms, .. }, Some(proposal)) => {
                self.acquire_fenced(key, token, ttl_ms, proposal, place, now)
            }
            (Verb::Extend { ttl_ms, .. }, None) => {
                Ok(self.extend(key, Value::of(token), ttl_ms, now))
            }
            (Verb::Keep { rest_ms }, None) => Ok(self.extend(key, self.kept(token), rest_ms, now)),
            (Verb::Extend { .. }, Some(_))
                if command.is_adoption()
                    && (self.holder(&key) != Some(Value::of(token)) || !self.is_vouched(now)) =>
            {
                Ok(Reply::NotMine)
            }
            (Verb::Extend { ttl_ms, .. }, Some(proposal)) => {
                self.extend_fenced(key, Value::of(token), ttl_ms, proposal, now)
            }
            (Verb::Keep { rest_ms }, Some(proposal)) => {
                self.extend_fenced(key, self.kept(token), rest_ms, proposal, now)
            }
            (Verb::Release, proposal) => Ok(self.release(key, token, proposal, place, now)),
        };
        reply.map_err(Failure::Denied)
    }

    fn acquire(
        &mut self,
        key: KeyName,
        token: Token,
        ttl_ms: u32,
        place: Option<Place>,
        now: Instant,
    ) -> Reply {
        if let Some(entry) = self.data.entry(&key) {
            let left = left(entry.expires_at, now).unwrap_or_default();
            return match place {
                None => Reply::Held(None),
                Some(place) => {
                    let left_ms = whole_millis(left).unwrap_or(u32::MAX);
                    Reply::Waiting(self.wait_for_holder(&key, &place, left_ms, now), None)
                }
            };
        }
        if let Some(place) = &place {
            if let Some(position) = self.wait_in_line(&key, place, now) {
                return Reply::Waiting(position, None);
            }
            self.leave_line(&key, place);
        }
        self.set_entry(key, Value::of(token), millis(ttl_ms), now);
        Reply::Acquired(None)
    }

    fn acquire_fenced(
        &mut self,
        key: KeyName,
        token: Token,
        ttl_ms: u32,
        proposal: Proposal,
        place: Option<Place>,
        now: Instant,
    ) -> Result<Reply, Denial> {
        let Proposal { fence, fencing, .. } = proposal;
        let known = self.data.known(&key);
        let reading = self.reading(known.fence, fencing, now);
        let is_old = is_too_old(fence.as_u64(), fencing, now);
        let is_old = is_old && !self.has(ServerFlaw::AcceptsOldFence);
        let is_new = is_too_new(fence.as_u64(), fencing, now);
        let is_new = is_new && !self.has(ServerFlaw::AcceptsNewFence);
        self.check_guard(proposal, ttl_ms, reading, now, !is_old && !is_new)?;

        let found = self.data.entry(&key).copied();
        // The key may have expired before the end of the last lease, or expire before it.
        let promised = match self.flaw {
            Some(ServerFlaw::ForgetsHeldUntil) => PAST,
            _ => known.held_until,
        };
        let held_until = match found {
            Some(entry) if entry.value() == Value::of(token) => PAST,
            Some(entry) => entry.expires_at.max(promised),
            None => promised,
        };
        if let Some(left) = left(held_until, now) {
            let held_ms = whole_millis(left).unwrap_or(u32::MAX);
            let reading = Some(Reading { held_ms, ..reading });
            return Ok(match place {
                None => Reply::Held(reading),
                Some(place) => {
                    Reply::Waiting(self.wait_for_holder(&key, &place, held_ms, now), reading)
                }
            });
        }
        if let Some(place) = &place
            && found.is_none()
            && let Some(position) = self.wait_in_line(&key, place, now)
        {
            let held_ms = position.left_ms;
            let reading = Some(Reading { held_ms, ..reading });
            return Ok(Reply::Waiting(position, reading));
        }
        // Another attempt may have proposed the same fence.
        let is_same = known.accepted == Some(token) || self.has(ServerFlaw::ConfusesEqualFences);
        let is_again = found.is_some() && is_same;
        let fence = match self.flaw {
            Some(ServerFlaw::CountsGrants) => known.fence.next(),
            Some(ServerFlaw::AcceptsAnyFence) if fence.as_u64() > 1 => fence.max(known.fence),
            Some(ServerFlaw::AcceptsAnyFence) => return Err(Denial::Stale(reading)),
            _ if fence < known.fence => return Err(Denial::Stale(reading)),
            flaw if fence == known.fence
                && !is_again
                && flaw != Some(ServerFlaw::AcceptsFenceAgain) =>
            {
                return Err(Denial::Stale(reading));
            }
            _ if is_old => return Err(Denial::TooOld(reading)),
            _ if is_new => return Err(Denial::TooNew(reading)),
            _ => fence,
        };
        let end = self.end(now, millis(ttl_ms));
        let accepted = FenceRecord {
            fence,
            // A late copy of the command, or a clock that was stepped back, must not shorten what an extension has promised.
            held_until: end.max(known.held_until),
            accepted: Some(token),
            // The life of the record follows from the rules of this client, not from those of earlier clients.
            expires_at: PAST,
        };
        self.record_fence(key, accepted, fencing, now);
        if let Some(place) = &place {
            self.leave_line(&key, place);
        }
        self.set_entry(key, Value::of(token), millis(ttl_ms), now);
        Ok(Reply::Acquired(Some(Reading { fence, ..reading })))
    }

    /// Checks that the server cannot have forgotten leases or fences of this fleet. Writes the guard record if that is allowed.
    fn check_guard(
        &mut self,
        proposal: Proposal,
        ttl_ms: u32,
        reading: Reading,
        now: Instant,
        is_near: bool,
    ) -> Result<(), Denial> {
        let Proposal {
            fencing, vouches, ..
        } = proposal;
        let recorded = self.data.guard.as_mut();
        let recorded = recorded.map(|guard| *guard.fencing.get_or_insert(fencing));
        let has_record = recorded.is_some();
        if recorded.is_some_and(|recorded| recorded != fencing) || ttl_ms > fencing.max_ttl_ms {
            return Err(Denial::FencingMismatch(reading));
        }
        let known_until = self.quarantined_until();
        let vouches = vouches || self.has(ServerFlaw::TakesAnyRules);
        let may_evict = self.may_evict && !self.has(ServerFlaw::HidesItsRole);
        if known_until.is_none() && !(is_near && vouches && !may_evict) {
            return Err(Denial::Unguarded {
                has_record,
                reading,
            });
        }
        let quarantine = match self.flaw {
            Some(ServerFlaw::QuarantineTooShort) => {
                (2 * fencing.window()).saturating_sub(MILLISECOND)
            }
            Some(ServerFlaw::QuarantineWithoutStepBack) => {
                fencing.max_ttl() + 4 * fencing.window() + Duration::from_secs(1)
            }
            _ => fencing.quarantine(),
        };
        let last = up_to_millis(now).saturating_add(quarantine);
        let until = known_until.unwrap_or(last).min(last);
        if known_until != Some(until) && is_near {
            self.write_guard(fencing, until);
        }
        if now >= until {
            return Ok(());
        }
        let left = until.saturating_duration_since(now).as_micros();
        Err(Denial::Quarantined {
            left_ms: u32::try_from(left.div_ceil(1_000)).unwrap_or(u32::MAX),
            reading,
        })
    }

    /// What the key carries from the release of a lease on, for the rest of its `min_hold`.
    fn kept(&self, token: Token) -> Value {
        Value {
            token,
            is_kept: !self.has(ServerFlaw::KeepsToken),
        }
    }

    /// Extends the lease, after which the key carries `value`.
    fn extend(&mut self, key: KeyName, value: Value, ttl_ms: u32, now: Instant) -> Reply {
        match self.holder(&key) {
            // A second copy of the release does not make the time longer.
            Some(holder) if holder == value && value.is_kept => {}
            Some(holder) if holder == Value::of(value.token) => {
                self.set_entry(key, value, millis(ttl_ms), now);
            }
            _ => return Reply::NotMine,
        }
        Reply::Extended(None)
    }

    fn extend_fenced(
        &mut self,
        key: KeyName,
        value: Value,
        ttl_ms: u32,
        proposal: Proposal,
        now: Instant,
    ) -> Result<Reply, Denial> {
        let Proposal { fencing, time, .. } = proposal;
        let holder = self.holder(&key);
        let known = self.data.known(&key);
        // A key that is gone is set again if no other attempt was accepted since.
        let is_mine = match (holder, self.flaw) {
            (None, Some(ServerFlaw::RestoresAnyKey)) => true,
            (None, Some(ServerFlaw::ConfusesEqualFences)) => known.fence == proposal.fence,
            (holder, _) => {
                let last = holder.or_else(|| known.accepted.map(Value::of));
                last == Some(value) || last == Some(Value::of(value.token))
            }
        };
        if !is_mine || self.has_other_margins(fencing) {
            return Ok(Reply::NotMine);
        }
        let reading = self.reading(known.fence, fencing, now);
        if is_too_old(time, fencing, now) {
            return Err(Denial::TooOld(reading));
        }
        if is_too_new(time, fencing, now) {
            return Err(Denial::TooNew(reading));
        }
        if value.is_kept && holder == Some(value) {
            return Ok(Reply::Extended(Some(reading)));
        }
        if holder.is_none() && !self.is_vouched(now) {
            return Ok(Reply::NotMine);
        }
        let end = self.end(now, millis(ttl_ms));
        let fence = known.fence.max(proposal.fence);
        let accepted = FenceRecord {
            fence,
            // If the clock was stepped back since the last extension, the lease must not become shorter.
            held_until: end.max(known.held_until),
            accepted: Some(value.token),
            ..known
        };
        self.record_fence(key, accepted, fencing, now);
        self.set_entry(key, value, millis(ttl_ms), now);
        Ok(Reply::Extended(Some(Reading { fence, ..reading })))
    }

    fn release(
        &mut self,
        key: KeyName,
        token: Token,
        proposal: Option<Proposal>,
        place: Option<Place>,
        now: Instant,
    ) -> Reply {
        let is_mine =
            self.holder(&key) == Some(Value::of(token)) || self.has(ServerFlaw::ReleasesAnyToken);
        if is_mine {
            self.data.remove_entry(&key);
        }
        if let Some(Proposal { fence, fencing, .. }) = proposal {
            let known = self.data.known(&key);
            let mut left = known;
            let is_confused = self.has(ServerFlaw::ConfusesEqualFences);
            // A late extend must not set the key again. If another attempt with the same fence holds the lock, it keeps it.
            if known.accepted == Some(token) || is_confused && (is_mine || known.fence == fence) {
                left.held_until = PAST;
                left.accepted = None;
            }
            let is_near = !is_too_old(fence.as_u64(), fencing, now)
                && !is_too_new(fence.as_u64(), fencing, now);
            let is_highest = known.fence == fence || is_near && known.fence < fence;
            if is_highest && self.burns_fences() {
                left.fence = fence.next();
            }
            if left != known {
                // This may fail because there is no room. The key is deleted all the same.
                self.record_fence(key, left, fencing, now);
            }
        }
        let waits = place.is_some_and(|place| self.hand_over(&key, &place, is_mine, now));
        match is_mine {
            true if waits => Reply::ReleasedWithWaiters(Waiters::new()),
            true => Reply::Released,
            false => Reply::NotMine,
        }
    }

    fn holder(&self, key: &KeyName) -> Option<Value> {
        self.data.entry(key).map(Entry::value)
    }

    /// Whether the window or `step_back` of the guard record has changed since a lease with the rules `fencing` was granted. Then
    /// other clients rely on other margins.
    fn has_other_margins(&self, fencing: Fencing) -> bool {
        let margins = |fencing: Fencing| (fencing.window_ms, fencing.step_back_ms);
        self.rules()
            .is_some_and(|recorded| margins(recorded) != margins(fencing))
    }

    const fn write_guard(&mut self, fencing: Fencing, until: Instant) {
        self.data.guard = Some(Guard {
            run_id: self.run_id,
            replication_id: self.replication_id,
            until,
            fencing: Some(fencing),
        });
    }

    fn set_entry(&mut self, key: KeyName, value: Value, ttl: Duration, now: Instant) {
        let expires_at = self.end(now, ttl);
        let Value { token, is_kept } = value;
        let entry = Entry {
            token,
            is_kept,
            expires_at,
        };
        self.data.set_entry(key, entry);
    }

    /// Writes the fence record, and computes for how long it is kept.
    fn record_fence(&mut self, key: KeyName, record: FenceRecord, fencing: Fencing, now: Instant) {
        let accepted_until = up_to_millis(Instant::from_micros(record.fence.as_u64()));
        let accepted_until = accepted_until.saturating_add(fencing.window());
        // If the server counts milliseconds, `held_until` is the end of the last millisecond of the lease. Its start counts.
        let tick = if self.is_exact {
            Duration::ZERO
        } else {
            MILLISECOND
        };
        let last = accepted_until.max(record.held_until.saturating_sub(tick));
        let end = self.end(last, fencing.step_back() + MILLISECOND);
        let expires_at = match self.flaw {
            Some(ServerFlaw::CountsGrants | ServerFlaw::AcceptsAnyFence) => Instant::MAX,
            Some(ServerFlaw::AcceptsOldFence) => now.saturating_add(fencing.window()),
            Some(ServerFlaw::ShortensFenceRecord) => end,
            // A client with other rules must not shorten the life of the record.
            _ => end.max(record.expires_at),
        };
        let record = FenceRecord {
            expires_at,
            ..record
        };
        self.data.set_fence(key, record);
    }

    /// When a key with this `ttl` expires, counted from `from`.
    fn end(&self, from: Instant, ttl: Duration) -> Instant {
        if self.is_exact {
            return from.saturating_add(ttl);
        }
        let from = Instant::from_micros(from.as_micros() / 1_000 * 1_000);
        from.saturating_add(ttl.saturating_add(MILLISECOND))
    }

    fn reading(&self, fence: Fence, fencing: Fencing, now: Instant) -> Reading {
        let time = match self.flaw {
            // So far behind the client's clock that the nodes' time is always zero: proposals follow from the known fences
            // alone.
            Some(ServerFlaw::AcceptsAnyFence) => 3 << 62,
            _ => now.as_micros(),
        };
        Reading {
            time,
            fence,
            held_ms: 0,
            on: fencing.on,
        }
    }

    /// Whether a release burns its fence: raises the highest fence above it, so that the server accepts it no more.
    fn burns_fences(&self) -> bool {
        !matches!(
            self.flaw,
            Some(ServerFlaw::BurnsNoFence | ServerFlaw::CountsGrants | ServerFlaw::AcceptsAnyFence)
        )
    }

    fn has(&self, flaw: ServerFlaw) -> bool {
        self.flaw == Some(flaw)
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);

fn millis(ttl_ms: u32) -> Duration {
    Duration::from_millis(ttl_ms.into())
}

fn short(key: &[u8]) -> Result<KeyName, MockFailure> {
    let key = KeyName::new(key);
    let whole = key.whole().map(|_| key);
    whole.ok_or(Failure::Transport(MockError::KeyTooLong))
}

/// The time until `end` in whole milliseconds. `None` if `end` has passed.
fn left(end: Instant, now: Instant) -> Option<Duration> {
    let left = end.saturating_duration_since(now).as_micros();
    let left_ms = u64::try_from(left.checked_sub(1)? / 1_000).unwrap_or(u64::MAX);
    Some(Duration::from_millis(left_ms))
}

fn up_to_millis(instant: Instant) -> Instant {
    Instant::from_micros(instant.as_micros().div_ceil(1_000) * 1_000)
}

/// A fence or a client's time is near the clock if `now - window < time <= now + window`.
fn is_too_old(time: u64, fencing: Fencing, now: Instant) -> bool {
    time <= now.saturating_sub(fencing.window()).as_micros()
}

fn is_too_new(time: u64, fencing: Fencing, now: Instant) -> bool {
    time > now.saturating_add(fencing.window()).as_micros()
}
