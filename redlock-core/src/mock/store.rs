//! What a node remembers, and what commands do to it. The Lua scripts, in Rust.

use core::time::Duration;

use crate::admission::{Admission, Denial, Introduction, Rules, RunId};
use crate::command::{Command, Reply, Token};
use crate::fence::{Fence, Fleet, Proposal, Reading};
use crate::mock::node::MemoryErrorKind;
use crate::mock::slots::Slots;
use crate::report::KeyName;
use crate::time::Instant;

/// The data of one node. Times are those of its own wall clock, in microseconds unless they are named
/// otherwise or instants.
#[derive(Debug)]
pub(super) struct Store {
    keys: Slots<Entry, MAX_KEYS>,
    fences: Slots<Highest, MAX_KEYS>,
    guard: Option<Guard>,
    run_id: RunId,
    /// As if every client were connected at every restart.
    admission: Admission,
    /// By how much its wall clock is ahead of others.
    pub(super) clock_step: i64,
}

const MAX_KEYS: usize = 64;

/// What the wall clock of every node shows at the origin of the clock, so that times look like times.
const ORIGIN: u64 = 1_700_000_000_000_000;

/// Nodes have been running for long when a test begins.
const FIRST_UPTIME: Duration = Duration::from_secs(365 * 86_400);

#[derive(Debug)]
struct Entry {
    key: KeyName,
    token: Token,
    deadline: Deadline,
}

/// What is known of a key beside it.
#[derive(Debug)]
struct Highest {
    key: KeyName,
    /// The highest fence that was accepted.
    fence: Fence,
    /// Until when the key is held, also when a clock that was ahead has taken it away.
    held_until: Deadline,
    deadline: Deadline,
}

/// The last millisecond in which a key is there: Redis counts no smaller parts of time, and a key lives for
/// its TTL and up to a millisecond longer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline(u64);

impl Deadline {
    /// Over since ever.
    const PAST: Self = Self(0);

    pub(super) const fn after(wall: u64, ttl_ms: u64) -> Self {
        Self((wall / 1_000).saturating_add(ttl_ms))
    }

    /// In whole milliseconds; none when it is over.
    fn left(self, wall: u64) -> Option<Duration> {
        let left_ms = self.0.checked_sub(wall / 1_000);
        left_ms.map(Duration::from_millis)
    }
}

/// The guard record.
#[derive(Debug)]
struct Guard {
    run_id: RunId,
    until: u64,
    /// None as long as nobody has said: the first client does, as if the fleet had been set up for it.
    fleet: Option<Fleet>,
}

/// A command that outlives the call.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owned {
    kind: Kind,
    key: KeyName,
    token: Token,
    proposal: Option<Proposal>,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Acquire { ttl_ms: u32, rules: Rules },
    Extend { ttl_ms: u32 },
    Release,
}

impl Owned {
    /// None when the key is too long.
    pub(super) fn new(command: &Command<'_>) -> Option<Self> {
        let (kind, token, proposal) = match *command {
            Command::Acquire {
                token,
                ttl_ms,
                rules,
                proposal,
                ..
            } => (Kind::Acquire { ttl_ms, rules }, token, proposal),
            Command::Extend {
                token,
                ttl_ms,
                proposal,
                ..
            } => (Kind::Extend { ttl_ms }, token, proposal),
            Command::Release {
                token, proposal, ..
            } => (Kind::Release, token, proposal),
        };
        let key = KeyName::new(command.key());
        key.whole()?;
        Some(Self {
            kind,
            key,
            token: *token,
            proposal,
        })
    }
}

impl Store {
    pub(super) const fn new(number: usize) -> Self {
        let run_id = RunId::new(number as u64, 0);
        Self {
            keys: Slots::new(),
            fences: Slots::new(),
            guard: Some(Guard {
                run_id,
                until: 0,
                fleet: None,
            }),
            run_id,
            admission: Admission::new(),
            clock_step: 0,
        }
    }

    pub(super) const fn run_id(&self) -> RunId {
        self.run_id
    }

    /// Another process, with the data of the one before it.
    pub(super) fn restart(&mut self, now: Instant) {
        self.meet(Instant::from_micros(0));
        let RunId(number, incarnation) = self.run_id;
        self.run_id = RunId::new(number, incarnation.wrapping_add(1));
        self.meet(now);
    }

    pub(super) fn clear(&mut self) {
        self.keys = Slots::new();
        self.fences = Slots::new();
        self.guard = None;
    }

    pub(super) fn wall(&self, now: Instant) -> u64 {
        now.as_micros()
            .saturating_add(ORIGIN)
            .saturating_add_signed(self.clock_step)
    }

    pub(super) fn execute(
        &mut self,
        command: &Owned,
        now: Instant,
    ) -> Result<Reply, MemoryErrorKind> {
        self.meet(Instant::from_micros(0));
        let wall = self.wall(now);
        self.expire(now);
        match (command.kind, command.proposal) {
            (Kind::Acquire { ttl_ms, rules }, proposal) => {
                let ttl = Duration::from_millis(ttl_ms.into());
                let admitted = self.admission.check(rules, ttl, now);
                admitted.map_err(MemoryErrorKind::Denied)?;
                match proposal {
                    None => self.acquire(command, ttl_ms, wall),
                    Some(proposal) => self.acquire_fenced(command, ttl_ms, proposal, wall),
                }
            }
            (Kind::Extend { ttl_ms }, proposal) => self.extend(command, ttl_ms, proposal, wall),
            (Kind::Release, proposal) => Ok(self.release(command, proposal, wall)),
        }
    }

    /// Forgets what has expired, at once. A clock that is set back does not bring it back, as on a server
    /// that was asked for it or looked for such keys meanwhile.
    pub(super) fn expire(&mut self, now: Instant) {
        let wall = self.wall(now);
        self.keys
            .retain(|entry| entry.deadline.left(wall).is_some());
        self.fences
            .retain(|highest| highest.deadline.left(wall).is_some());
    }

    pub(super) fn find(&self, key: &KeyName, wall: u64) -> Option<(Token, Duration)> {
        let entry = self.keys.iter().find(|entry| entry.key == *key)?;
        Some((entry.token, entry.deadline.left(wall)?))
    }

    pub(super) fn find_fence(&self, key: &KeyName, wall: u64) -> Option<(Fence, Duration)> {
        let highest = self.fences.iter().find(|highest| highest.key == *key)?;
        Some((highest.fence, highest.deadline.left(wall)?))
    }

    pub(super) fn len(&self) -> usize {
        self.keys.iter().count()
    }

    pub(super) fn remove(&mut self, key: &KeyName) {
        self.keys.retain(|entry| entry.key != *key);
    }

    pub(super) fn set(
        &mut self,
        key: KeyName,
        token: Token,
        deadline: Deadline,
    ) -> Result<(), MemoryErrorKind> {
        self.remove(&key);
        let entry = Entry {
            key,
            token,
            deadline,
        };
        let place = self.keys.insert(entry);
        place.map(|_| ()).ok_or(MemoryErrorKind::OutOfMemory)
    }

    /// What a client learns on a new connection.
    fn meet(&mut self, now: Instant) {
        let introduction = Introduction {
            run_id: self.run_id,
            uptime: FIRST_UPTIME,
            is_master: true,
            may_evict: false,
            vouched: None,
        };
        self.admission.introduced(Some(introduction), now);
    }

    fn acquire(
        &mut self,
        command: &Owned,
        ttl_ms: u32,
        wall: u64,
    ) -> Result<Reply, MemoryErrorKind> {
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
        command: &Owned,
        ttl_ms: u32,
        proposal: Proposal,
        wall: u64,
    ) -> Result<Reply, MemoryErrorKind> {
        let Proposal { fence, fleet, .. } = proposal;
        let (highest, held_until) = self.highest(command);
        let reading = Reading {
            time: wall,
            fence: highest,
            held_ms: 0,
            on: fleet.on,
        };
        let (low, high) = window(fleet, wall);
        let is_old = fence.as_u64() <= low;
        let is_new = fence.as_u64() > high;
        self.guarded(fleet, ttl_ms, reading, is_old || is_new)
            .map_err(MemoryErrorKind::Denied)?;

        let found = self.find(&command.key, wall);
        let held = match found {
            Some((holder, left)) => (holder != command.token).then_some(left),
            None => held_until.left(wall),
        };
        if let Some(left) = held {
            let held_ms = u32::try_from(left.as_millis()).unwrap_or(u32::MAX);
            return Ok(Reply::Held(Some(Reading { held_ms, ..reading })));
        }
        let denial = if fence < highest || fence == highest && found.is_none() {
            Some(Denial::Stale(reading))
        } else if is_old {
            Some(Denial::TooOld(reading))
        } else if is_new {
            Some(Denial::TooNew(reading))
        } else {
            None
        };
        if let Some(denial) = denial {
            return Err(MemoryErrorKind::Denied(denial));
        }
        let end = Deadline::after(wall, ttl_ms.into());
        self.accept(command, fence, end, fleet)?;
        self.set(command.key, command.token, end)?;
        let reading = Reading { fence, ..reading };
        Ok(Reply::Acquired(Some(reading)))
    }

    /// Whether nothing can have been forgotten, as far as leases and fences of this fleet go.
    fn guarded(
        &mut self,
        fleet: Fleet,
        ttl_ms: u32,
        reading: Reading,
        is_off: bool,
    ) -> Result<(), Denial> {
        let wall = reading.time;
        // Redis writes it in milliseconds.
        let until = (wall.div_ceil(1_000) * 1_000).saturating_add(micros(fleet.quarantine()));
        let is_other = self
            .guard
            .as_mut()
            .is_some_and(|guard| *guard.fleet.get_or_insert(fleet) != fleet);
        if is_other || ttl_ms > fleet.max_ttl_ms {
            return Err(Denial::OtherFleet);
        }
        let until = match &self.guard {
            Some(guard) if guard.run_id == self.run_id => guard.until,
            _ => {
                if !is_off {
                    self.guard = Some(Guard {
                        run_id: self.run_id,
                        until,
                        fleet: Some(fleet),
                    });
                }
                until
            }
        };
        if wall >= until {
            return Ok(());
        }
        let left_ms = u32::try_from((until - wall).div_ceil(1_000)).unwrap_or(u32::MAX);
        Err(Denial::Quarantined { left_ms, reading })
    }

    fn extend(
        &mut self,
        command: &Owned,
        ttl_ms: u32,
        proposal: Option<Proposal>,
        wall: u64,
    ) -> Result<Reply, MemoryErrorKind> {
        let holder = self.token(command);
        let (highest, held_until) = self.highest(command);
        let is_mine = holder.map_or_else(
            || proposal.is_some_and(|proposal| proposal.fence == highest),
            |holder| holder == command.token,
        );
        if !is_mine {
            return Ok(Reply::NotMine);
        }
        if let Some(Proposal { fleet, time, .. }) = proposal {
            let reading = Reading {
                time: wall,
                fence: highest,
                held_ms: 0,
                on: fleet.on,
            };
            let (low, high) = window(fleet, wall);
            if time <= low {
                return Err(MemoryErrorKind::Denied(Denial::TooOld(reading)));
            }
            if time > high {
                return Err(MemoryErrorKind::Denied(Denial::TooNew(reading)));
            }
        }
        let may_have_forgotten = !self
            .guard
            .as_ref()
            .is_some_and(|guard| guard.run_id == self.run_id && wall >= guard.until);
        if holder.is_none() && may_have_forgotten {
            return Ok(Reply::NotMine);
        }
        let end = Deadline::after(wall, ttl_ms.into());
        if let Some(proposal) = proposal {
            // A clock that was set back must not take off what was promised before. For want of room it may
            // fail: the key is extended all the same.
            let held_until = Deadline(end.0.max(held_until.0));
            let _refused = self.accept(command, highest, held_until, proposal.fleet);
        }
        self.set(command.key, command.token, end)?;
        Ok(Reply::Extended)
    }

    fn release(&mut self, command: &Owned, proposal: Option<Proposal>, wall: u64) -> Reply {
        let is_mine = self.token(command) == Some(command.token);
        if is_mine {
            self.remove(&command.key);
        }
        if let Some(proposal) = proposal {
            let (low, high) = window(proposal.fleet, wall);
            let fence = proposal.fence;
            let is_near = fence.as_u64() > low && fence.as_u64() <= high;
            let (mut highest, mut held_until) = self.highest(command);
            if is_mine || highest == fence {
                held_until = Deadline::PAST;
            }
            if highest == fence || is_near && highest < fence {
                highest = fence.next();
            }
            if highest > Fence::ZERO {
                // For want of room it may fail: the key is deleted all the same.
                let _refused = self.accept(command, highest, held_until, proposal.fleet);
            }
        }
        if is_mine {
            Reply::Released
        } else {
            Reply::NotMine
        }
    }

    fn token(&self, command: &Owned) -> Option<Token> {
        let mut all = self.keys.iter();
        all.find(|entry| entry.key == command.key)
            .map(|entry| entry.token)
    }

    fn highest(&self, command: &Owned) -> (Fence, Deadline) {
        let mut all = self.fences.iter();
        all.find(|highest| highest.key == command.key)
            .map_or((Fence::ZERO, Deadline::PAST), |highest| {
                (highest.fence, highest.held_until)
            })
    }

    fn accept(
        &mut self,
        command: &Owned,
        fence: Fence,
        held_until: Deadline,
        fleet: Fleet,
    ) -> Result<(), MemoryErrorKind> {
        self.fences.retain(|highest| highest.key != command.key);
        let accepted_until = fence.as_u64().div_ceil(1_000) + u64::from(fleet.window_ms);
        let kept_until = accepted_until.max(held_until.0) + u64::from(fleet.step_back_ms) + 1;
        let highest = Highest {
            key: command.key,
            fence,
            held_until,
            deadline: Deadline(kept_until),
        };
        let place = self.fences.insert(highest);
        place.map(|_| ()).ok_or(MemoryErrorKind::OutOfMemory)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// A fence is accepted above the first and up to the second.
fn window(fleet: Fleet, wall: u64) -> (u64, u64) {
    let half = u64::from(fleet.window_ms) * 1_000;
    (wall.saturating_sub(half), wall.saturating_add(half))
}
