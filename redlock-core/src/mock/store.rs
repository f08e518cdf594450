//! The data of a node, and what commands do to it: the Lua scripts, in Rust.

use core::time::Duration;

use crate::admission::Admission;
use crate::command::Verb;
use crate::denial::Denial;
use crate::failure::Failure;
use crate::fence::{Fence, Fleet, Proposal, Reading};
use crate::key::KeyName;
use crate::mock::error::{MockError, MockFailure};
use crate::mock::slots::Slots;
use crate::node_info::{NodeInfo, ReplicationId, RunId};
use crate::owned::OwnedCommand;
use crate::reply::Reply;
use crate::time::Instant;
use crate::token::Token;

/// The data of one node. Times are on its own wall clock, in microseconds, unless their names or types say
/// otherwise.
#[derive(Debug)]
pub(super) struct Store {
    data: Data,
    run_id: RunId,
    replication_id: ReplicationId,
    is_master: bool,
    may_evict: bool,
    /// One admission for all clients, as if all of them were connected at every restart.
    admission: Admission,
    /// How far its wall clock is ahead of the others, in microseconds.
    pub(super) clock_step: i64,
}

/// The data that a server writes to its disk and copies to its replicas.
#[derive(Debug, Clone)]
pub(super) struct Data {
    keys: Slots<Entry, MAX_KEYS>,
    fences: Slots<Highest, MAX_KEYS>,
    guard: Option<Guard>,
}

impl Data {
    pub(super) const EMPTY: Self = Self {
        keys: Slots::new(),
        fences: Slots::new(),
        guard: None,
    };
}

const MAX_KEYS: usize = 64;

/// The wall clock of every node at the origin of the clock, in microseconds: a realistic date.
const ORIGIN: u64 = 1_700_000_000_000_000;

/// The uptime of nodes when a test begins: long enough for every guard.
const FIRST_UPTIME: Duration = Duration::from_secs(365 * 86_400);

#[derive(Debug, Clone)]
struct Entry {
    key: KeyName,
    token: Token,
    deadline: Deadline,
}

/// The fence record of a key.
#[derive(Debug, Clone)]
struct Highest {
    key: KeyName,
    /// The highest fence that was accepted.
    fence: Fence,
    /// Until when the key is held, even if a clock that was ahead has expired it.
    held_until: Deadline,
    /// The token whose acquire or extend was accepted last.
    accepted: Option<Token>,
    deadline: Deadline,
}

/// The last millisecond in which a key exists. Redis counts in milliseconds, so a key lives for its TTL and up
/// to a millisecond longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(u64);

impl Deadline {
    /// A deadline that has always passed.
    const PAST: Self = Self(0);

    pub(super) const fn after(wall: u64, ttl_ms: u64) -> Self {
        Self((wall / 1_000).saturating_add(ttl_ms))
    }

    /// The time left, in whole milliseconds. `None` if it is over.
    fn left(self, wall: u64) -> Option<Duration> {
        let left_ms = self.0.checked_sub(wall / 1_000);
        left_ms.map(Duration::from_millis)
    }
}

/// The guard record.
#[derive(Debug, Clone)]
struct Guard {
    run_id: RunId,
    replication_id: ReplicationId,
    until: u64,
    /// `None` until the first fenced client sets it, as if the fleet had been set up with its rules.
    fleet: Option<Fleet>,
}

impl Store {
    pub(super) const fn new(number: usize) -> Self {
        let run_id = RunId::new((number as u64) << 32);
        let replication_id = ReplicationId::new(run_id.0);
        let data = Data {
            guard: Some(Guard {
                run_id,
                replication_id,
                until: 0,
                fleet: None,
            }),
            ..Data::EMPTY
        };
        Self {
            data,
            run_id,
            replication_id,
            is_master: true,
            may_evict: false,
            admission: Admission::new(),
            clock_step: 0,
        }
    }

    pub(super) const fn run_id(&self) -> RunId {
        self.run_id
    }

    /// Restarts: another process, with the same data.
    pub(super) fn restart(&mut self, now: Instant) {
        self.change(now, |store| {
            store.run_id = RunId(store.run_id.0.wrapping_add(1));
            store.is_master = true;
            store.begin_history();
        });
    }

    /// Becomes a master or a replica.
    pub(super) fn set_master(&mut self, is_master: bool, now: Instant) {
        self.change(now, |store| {
            store.is_master = is_master;
            store.begin_history();
        });
    }

    pub(super) fn set_may_evict(&mut self, may_evict: bool, now: Instant) {
        self.change(now, |store| store.may_evict = may_evict);
    }

    /// Makes a change that every client notices.
    fn change(&mut self, now: Instant, change: impl FnOnce(&mut Self)) {
        self.meet(Instant::from_micros(0));
        change(self);
        self.meet(now);
    }

    const fn begin_history(&mut self) {
        self.replication_id = ReplicationId(self.replication_id.0.wrapping_add(1));
    }

    pub(super) fn data(&self) -> Data {
        self.data.clone()
    }

    /// Replaces the data in the same process, as after a failover there and back.
    pub(super) fn fail_back(&mut self, data: Data) {
        self.data = data;
        self.begin_history();
    }

    pub(super) fn clear(&mut self) {
        self.data = Data::EMPTY;
    }

    /// Deletes everything that belongs to the lock of this key.
    pub(super) fn evict(&mut self, key: &KeyName) {
        self.remove(key);
        self.data.fences.retain(|highest| highest.key != *key);
    }

    pub(super) fn wall(&self, now: Instant) -> u64 {
        now.as_micros()
            .saturating_add(ORIGIN)
            .saturating_add_signed(self.clock_step)
    }

    pub(super) fn execute(
        &mut self,
        command: &OwnedCommand<KeyName>,
        now: Instant,
    ) -> Result<Reply, MockFailure> {
        self.meet(Instant::from_micros(0));
        let wall = self.wall(now);
        self.expire(now);
        let admitted = self.admission.check(command.verb, now);
        admitted.map_err(Failure::Denied)?;
        match (command.verb, command.proposal) {
            (Verb::Acquire { ttl_ms, .. }, None) => self.acquire(command, ttl_ms, wall),
            (Verb::Acquire { ttl_ms, .. }, Some(proposal)) => {
                self.acquire_fenced(command, ttl_ms, proposal, wall)
            }
            (Verb::Extend { ttl_ms }, proposal) => self.extend(command, ttl_ms, proposal, wall),
            (Verb::Release, proposal) => Ok(self.release(command, proposal, wall)),
        }
    }

    /// Deletes what has expired, at once. If the clock is stepped back later, the key does not come back: as on a
    /// server on which the key was read, or found by the expiry cycle, meanwhile.
    pub(super) fn expire(&mut self, now: Instant) {
        let wall = self.wall(now);
        self.data
            .keys
            .retain(|entry| entry.deadline.left(wall).is_some());
        self.data
            .fences
            .retain(|highest| highest.deadline.left(wall).is_some());
    }

    pub(super) fn find(&self, key: &KeyName, wall: u64) -> Option<(Token, Duration)> {
        let entry = self.data.keys.iter().find(|entry| entry.key == *key)?;
        Some((entry.token, entry.deadline.left(wall)?))
    }

    pub(super) fn find_fence(&self, key: &KeyName, wall: u64) -> Option<(Fence, Duration)> {
        let highest = self
            .data
            .fences
            .iter()
            .find(|highest| highest.key == *key)?;
        Some((highest.fence, highest.deadline.left(wall)?))
    }

    pub(super) fn len(&self) -> usize {
        self.data.keys.iter().count()
    }

    pub(super) fn remove(&mut self, key: &KeyName) {
        self.data.keys.retain(|entry| entry.key != *key);
    }

    pub(super) fn set(
        &mut self,
        key: KeyName,
        token: Token,
        deadline: Deadline,
    ) -> Result<(), MockFailure> {
        self.remove(&key);
        let entry = Entry {
            key,
            token,
            deadline,
        };
        let place = self.data.keys.insert(entry);
        place
            .map(|_| ())
            .ok_or(Failure::Transport(MockError::OutOfMemory))
    }

    /// Records what a client learns on a new connection.
    fn meet(&mut self, now: Instant) {
        if self.may_evict {
            self.data.guard = None;
        }
        let node_info = NodeInfo {
            run_id: self.run_id,
            replication_id: self.replication_id,
            uptime: FIRST_UPTIME,
            is_master: self.is_master,
            may_evict: self.may_evict,
            max_ttl_ms: None,
            is_vouched: false,
        };
        self.admission.record(Some(node_info), now);
    }

    fn acquire(
        &mut self,
        command: &OwnedCommand<KeyName>,
        ttl_ms: u32,
        wall: u64,
    ) -> Result<Reply, MockFailure> {
        if self.token(command).is_some() {
            return Ok(Reply::Held(None));
        }
        self.set(
            command.key,
            command.token,
            Deadline::after(wall, ttl_ms.into()),
        )?;
        Ok(Reply::Acquired(None))
    }

    fn acquire_fenced(
        &mut self,
        command: &OwnedCommand<KeyName>,
        ttl_ms: u32,
        proposal: Proposal,
        wall: u64,
    ) -> Result<Reply, MockFailure> {
        let Proposal { fence, fleet, .. } = proposal;
        let known = self.known(command);
        let reading = reading_of(&known, fleet, wall);
        let (low, high) = window(fleet, wall);
        let is_old = fence.as_u64() <= low;
        let is_new = fence.as_u64() > high;
        self.guarded(proposal, ttl_ms, reading, !is_old && !is_new)
            .map_err(Failure::Denied)?;

        let found = self.find(&command.key, wall);
        let held = match found {
            Some((holder, left)) => (holder != command.token).then_some(left),
            None => known.held_until.left(wall),
        };
        if let Some(left) = held {
            let held_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            return Ok(Reply::Held(Some(Reading { held_ms, ..reading })));
        }
        // Another attempt may have proposed the same fence.
        let is_again = found.is_some() && known.accepted == Some(command.token);
        let denial = if fence < known.fence || fence == known.fence && !is_again {
            Some(Denial::Stale(reading))
        } else if is_old {
            Some(Denial::TooOld(reading))
        } else if is_new {
            Some(Denial::TooNew(reading))
        } else {
            None
        };
        if let Some(denial) = denial {
            return Err(Failure::Denied(denial));
        }
        let end = Deadline::after(wall, ttl_ms.into());
        let accepted = Highest {
            fence,
            // A late copy, on a clock that was stepped back, must not shorten what an extension has promised.
            held_until: Deadline(end.0.max(known.held_until.0)),
            accepted: Some(command.token),
            // Computed by these rules, not by those of earlier clients.
            deadline: Deadline::PAST,
            ..known
        };
        self.remember(accepted, fleet)?;
        self.set(command.key, command.token, end)?;
        let reading = Reading { fence, ..reading };
        Ok(Reply::Acquired(Some(reading)))
    }

    /// Checks that the node cannot have forgotten leases or fences of this fleet.
    fn guarded(
        &mut self,
        proposal: Proposal,
        ttl_ms: u32,
        reading: Reading,
        is_near: bool,
    ) -> Result<(), Denial> {
        let Proposal { fleet, vouches, .. } = proposal;
        let wall = reading.time;
        let is_other = self
            .data
            .guard
            .as_mut()
            .is_some_and(|guard| *guard.fleet.get_or_insert(fleet) != fleet);
        if is_other || ttl_ms > fleet.max_ttl_ms {
            return Err(Denial::FencingMismatch(reading));
        }
        let known_until = self.guard_until();
        if known_until.is_none() && !(is_near && vouches && !self.may_evict) {
            return Err(Denial::Unguarded {
                has_record: self.data.guard.is_some(),
                reading,
            });
        }
        // Redis writes it in milliseconds.
        let last = (wall.div_ceil(1_000) * 1_000).saturating_add(micros(fleet.quarantine()));
        let until = known_until.unwrap_or(last).min(last);
        if known_until != Some(until) && is_near {
            self.data.guard = Some(Guard {
                run_id: self.run_id,
                replication_id: self.replication_id,
                until,
                fleet: Some(fleet),
            });
        }
        if wall >= until {
            return Ok(());
        }
        let left_ms = u32::try_from((until - wall).div_ceil(1_000)).unwrap_or(u32::MAX);
        Err(Denial::Quarantined { left_ms, reading })
    }

    /// Whether the rules have changed since a lease with `fleet` was granted: new clients rely on other margins.
    fn has_other_margins(&self, fleet: Fleet) -> bool {
        let recorded = self.data.guard.as_ref().and_then(|guard| guard.fleet);
        let margins = |fleet: Fleet| (fleet.window_ms, fleet.step_back_ms);
        recorded.is_some_and(|recorded| margins(recorded) != margins(fleet))
    }

    /// The end of the quarantine. `None` if the guard record is not of this process with this data.
    fn guard_until(&self) -> Option<u64> {
        let guard = self.data.guard.as_ref()?;
        let is_mine = guard.run_id == self.run_id && guard.replication_id == self.replication_id;
        is_mine.then_some(guard.until)
    }

    fn extend(
        &mut self,
        command: &OwnedCommand<KeyName>,
        ttl_ms: u32,
        proposal: Option<Proposal>,
        wall: u64,
    ) -> Result<Reply, MockFailure> {
        let holder = self.token(command);
        let end = Deadline::after(wall, ttl_ms.into());
        let Some(proposal) = proposal else {
            if holder != Some(command.token) {
                return Ok(Reply::NotMine);
            }
            self.set(command.key, command.token, end)?;
            return Ok(Reply::Extended(None));
        };
        let Proposal { fleet, time, .. } = proposal;
        let known = self.known(command);
        // A key that is gone is set again if no other attempt was accepted since.
        if holder.or(known.accepted) != Some(command.token) || self.has_other_margins(fleet) {
            return Ok(Reply::NotMine);
        }
        let reading = reading_of(&known, fleet, wall);
        let (low, high) = window(fleet, wall);
        if time <= low {
            return Err(Failure::Denied(Denial::TooOld(reading)));
        }
        if time > high {
            return Err(Failure::Denied(Denial::TooNew(reading)));
        }
        let may_have_forgotten = self.guard_until().is_none_or(|until| wall < until);
        if holder.is_none() && may_have_forgotten {
            return Ok(Reply::NotMine);
        }
        let accepted = Highest {
            fence: known.fence.max(proposal.fence),
            // A clock that was stepped back must not shorten what was promised before.
            held_until: Deadline(end.0.max(known.held_until.0)),
            accepted: Some(command.token),
            ..known
        };
        let reading = reading_of(&accepted, fleet, wall);
        self.remember(accepted, fleet)?;
        self.set(command.key, command.token, end)?;
        Ok(Reply::Extended(Some(reading)))
    }

    fn release(
        &mut self,
        command: &OwnedCommand<KeyName>,
        proposal: Option<Proposal>,
        wall: u64,
    ) -> Reply {
        let is_mine = self.token(command) == Some(command.token);
        if is_mine {
            self.remove(&command.key);
        }
        if let Some(proposal) = proposal {
            let (low, high) = window(proposal.fleet, wall);
            let fence = proposal.fence;
            let is_near = fence.as_u64() > low && fence.as_u64() <= high;
            let mut known = self.known(command);
            let mut is_changed = false;
            // A late extend must not set the key again. Another attempt with the same fence keeps what it has.
            if known.accepted == Some(command.token) {
                known.held_until = Deadline::PAST;
                known.accepted = None;
                is_changed = true;
            }
            if known.fence == fence || is_near && known.fence < fence {
                known.fence = fence.next();
                is_changed = true;
            }
            if is_changed {
                // This may fail for lack of room: the key is still deleted.
                let _refused = self.remember(known, proposal.fleet);
            }
        }
        if is_mine {
            Reply::Released
        } else {
            Reply::NotMine
        }
    }

    fn token(&self, command: &OwnedCommand<KeyName>) -> Option<Token> {
        let mut all = self.data.keys.iter();
        all.find(|entry| entry.key == command.key)
            .map(|entry| entry.token)
    }

    fn known(&self, command: &OwnedCommand<KeyName>) -> Highest {
        let mut all = self.data.fences.iter();
        let known = all.find(|highest| highest.key == command.key).cloned();
        known.unwrap_or(Highest {
            key: command.key,
            fence: Fence::ZERO,
            held_until: Deadline::PAST,
            accepted: None,
            deadline: Deadline::PAST,
        })
    }

    fn remember(&mut self, known: Highest, fleet: Fleet) -> Result<(), MockFailure> {
        self.data.fences.retain(|highest| highest.key != known.key);
        let accepted_until = known.fence.as_u64().div_ceil(1_000) + u64::from(fleet.window_ms);
        let kept_until = accepted_until.max(known.held_until.0) + u64::from(fleet.step_back_ms) + 1;
        // A client with other rules must not shorten it.
        let known = Highest {
            deadline: Deadline(kept_until.max(known.deadline.0)),
            ..known
        };
        let place = self.data.fences.insert(known);
        place
            .map(|_| ())
            .ok_or(Failure::Transport(MockError::OutOfMemory))
    }
}

fn reading_of(known: &Highest, fleet: Fleet, wall: u64) -> Reading {
    Reading {
        time: wall,
        fence: known.fence,
        held_ms: 0,
        on: fleet.on,
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The window of accepted fences: above the first value, up to and including the second.
fn window(fleet: Fleet, wall: u64) -> (u64, u64) {
    let half = u64::from(fleet.window_ms) * 1_000;
    (wall.saturating_sub(half), wall.saturating_add(half))
}
