//! What a node does with a command: plain data, the time passed in.

use core::time::Duration;
use std::collections::BTreeMap;

use redlock_core::{
    Command, Denial, Fence, Fleet, Instant, Proposal, Reading, Reply, RunId, Token,
};

/// The data of one node. Instants are readings of its own wall clock.
///
/// It does what Redis does with the scripts, and to the microsecond what `MemoryNode` of the core does; a test
/// compares them, and that one is compared with a real Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    run_id: RunId,
    keys: BTreeMap<Vec<u8>, Entry>,
    fences: BTreeMap<Vec<u8>, Highest>,
    guard: Option<Guard>,
    /// Whether it counts whole milliseconds, as Redis does: then a key lives for up to one longer.
    is_coarse: bool,
    lapse: Option<Lapse>,
}

/// What stands under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Whose it is.
    pub token: Token,
    /// By the clock of the node: from then on it is not there any more.
    pub expires_at: Instant,
}

/// What is known of a key beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Highest {
    /// The highest fence that was accepted.
    fence: Fence,
    /// Until when the key is held, also when a clock that was ahead has taken it away.
    held_until: Instant,
    expires_at: Instant,
}

impl Highest {
    const NONE: Self = Self {
        fence: Fence::ZERO,
        held_until: Instant::from_micros(0),
        expires_at: Instant::MAX,
    };
}

/// The guard record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Guard {
    run_id: RunId,
    until: Instant,
    /// None as long as nobody has said.
    fleet: Option<Fleet>,
}

/// A rule of fenced locks that a node does not follow, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lapse {
    /// It counts its grants, and the count is the fence.
    Counts,
    /// It takes note of the highest fence and accepts every one: the first round of an attempt asks, the
    /// second writes back.
    WritesBack,
    /// It accepts the fence that it has accepted before.
    IsNotStrict,
    /// It accepts a fence however far it is behind its clock, and forgets fences sooner.
    HasNoFloor,
    /// It accepts a fence however far it is ahead of its clock.
    HasNoCeiling,
    /// It comes out of quarantine a millisecond before the last fence that it may have forgotten is too old.
    IsBackTooEarly,
    /// A release leaves its fence acceptable.
    BurnsNothing,
    /// A key that is gone is free, also when a clock that was ahead has taken it away.
    ForgetsLeases,
    /// It makes a key again for an extend although it has accepted another fence since.
    HealsAnyway,
}

impl Node {
    /// A node that has forgotten nothing: it was set up for its fleet.
    #[must_use]
    pub const fn new(run_id: RunId, lapse: Option<Lapse>) -> Self {
        Self {
            run_id,
            keys: BTreeMap::new(),
            fences: BTreeMap::new(),
            guard: Some(Guard {
                run_id,
                until: Instant::from_micros(0),
                fleet: None,
            }),
            is_coarse: false,
            lapse,
        }
    }

    /// The same node, counting time as Redis does. Else everything expires as early as ever it may.
    #[must_use]
    pub const fn coarse(mut self) -> Self {
        self.is_coarse = true;
        self
    }

    /// Another process, with the data of the one before it.
    pub const fn restart(&mut self, run_id: RunId) {
        self.run_id = run_id;
    }

    /// The process.
    #[must_use]
    pub const fn run_id(&self) -> RunId {
        self.run_id
    }

    /// Does what `command` says, at `now` by the clock of the node.
    ///
    /// # Errors
    ///
    /// When the node has no vote.
    pub fn execute(&mut self, command: &Command<'_>, now: Instant) -> Result<Reply, Denial> {
        self.expire(now);
        match *command {
            Command::Acquire {
                key,
                token,
                ttl_ms,
                proposal,
                ..
            } => match proposal {
                None => Ok(self.acquire(key, token, ttl_ms, now)),
                Some(proposal) => self.acquire_fenced(key, token, ttl_ms, proposal, now),
            },
            Command::Extend {
                key,
                token,
                ttl_ms,
                proposal,
            } => self.extend(key, token, ttl_ms, proposal, now),
            Command::Release {
                key,
                token,
                proposal,
            } => Ok(self.release(key, token, proposal, now)),
        }
    }

    /// Forgets what has expired: it stays away, also when the clock is set back later.
    pub fn expire(&mut self, now: Instant) {
        self.keys.retain(|_, entry| entry.expires_at > now);
        self.fences.retain(|_, highest| highest.expires_at > now);
    }

    /// What stands under `key` at `now`.
    #[must_use]
    pub fn entry(&self, key: &[u8], now: Instant) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| entry.expires_at > now)
    }

    /// The longest TTL of leases that it cannot have forgotten, by its guard record.
    #[must_use]
    pub fn vouched(&self, now: Instant) -> Option<Duration> {
        let guard = self.guard?;
        let is_over = guard.run_id == self.run_id && now >= guard.until;
        guard.fleet.filter(|_| is_over).map(|fleet| fleet.max_ttl())
    }

    /// Deletes `key`, whosever it is.
    pub fn remove(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    /// Lets the lease under `key` be over before its time, as if its end had come.
    pub fn expire_early(&mut self, key: &[u8]) {
        self.keys.remove(key);
        if let Some(known) = self.fences.get_mut(key) {
            known.held_until = Highest::NONE.held_until;
        }
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.fences.clear();
        self.guard = None;
    }

    fn acquire(&mut self, key: &[u8], token: &Token, ttl_ms: u32, now: Instant) -> Reply {
        if self.keys.contains_key(key) {
            return Reply::Held(None);
        }
        self.set(key, token, ttl_ms, now);
        Reply::Acquired(None)
    }

    fn acquire_fenced(
        &mut self,
        key: &[u8],
        token: &Token,
        ttl_ms: u32,
        proposal: Proposal,
        now: Instant,
    ) -> Result<Reply, Denial> {
        let Proposal { fence, fleet, .. } = proposal;
        let known = self.highest(key);
        let highest = known.fence;
        let reading = self.reading(highest, now);
        let is_old = is_too_old(proposal, now) && self.lapse != Some(Lapse::HasNoFloor);
        let is_new = is_too_new(proposal, now) && self.lapse != Some(Lapse::HasNoCeiling);
        self.guarded(fleet, ttl_ms, reading, now, is_old || is_new)?;

        let standing = self.keys.get(key);
        let held_until = match standing {
            Some(entry) if entry.token != *token => entry.expires_at,
            None if self.lapse != Some(Lapse::ForgetsLeases) => known.held_until,
            _ => now,
        };
        if held_until > now {
            let left = held_until.saturating_duration_since(now);
            let left_ms = left.as_micros().saturating_sub(1) / 1_000;
            let mut reading = reading;
            reading.held_ms = u32::try_from(left_ms).unwrap_or(u32::MAX);
            return Ok(Reply::Held(Some(reading)));
        }
        let is_mine = standing.is_some();
        let accepted = match self.lapse {
            Some(Lapse::Counts) => highest.as_u64() + 1,
            Some(Lapse::WritesBack) if fence.as_u64() == 1 => return Err(Denial::Stale(reading)),
            Some(Lapse::WritesBack) => fence.max(highest).as_u64(),
            lapse => {
                let is_equal = fence == highest && !is_mine && lapse != Some(Lapse::IsNotStrict);
                if fence < highest || is_equal {
                    return Err(Denial::Stale(reading));
                }
                if is_old {
                    return Err(Denial::TooOld(reading));
                }
                if is_new {
                    return Err(Denial::TooNew(reading));
                }
                fence.as_u64()
            }
        };
        let accepted = Fence::from_u64(accepted);
        let end = self.after(now, Duration::from_millis(ttl_ms.into()));
        self.accept(key, accepted, end, fleet, now);
        self.set(key, token, ttl_ms, now);
        let mut reading = reading;
        reading.fence = accepted;
        Ok(Reply::Acquired(Some(reading)))
    }

    /// Whether nothing can have been forgotten, as far as leases and fences of this fleet go.
    fn guarded(
        &mut self,
        fleet: Fleet,
        ttl_ms: u32,
        reading: Reading,
        now: Instant,
        is_off: bool,
    ) -> Result<(), Denial> {
        let guarded_fleet = self
            .guard
            .as_mut()
            .map(|guard| *guard.fleet.get_or_insert(fleet));
        let is_other = guarded_fleet.is_some_and(|guarded| guarded != fleet);
        if is_other || Duration::from_millis(ttl_ms.into()) > fleet.max_ttl() {
            return Err(Denial::OtherFleet);
        }
        let until = match self.guard {
            Some(guard) if guard.run_id == self.run_id => guard.until,
            _ => {
                let quarantine = match self.lapse {
                    Some(Lapse::IsBackTooEarly) => 2 * fleet.window() - Duration::from_millis(1),
                    _ => fleet.quarantine(),
                };
                // Redis writes it in milliseconds.
                let until = up_to_millis(now).saturating_add(quarantine);
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
        if now >= until {
            return Ok(());
        }
        let left = until.saturating_duration_since(now).as_micros();
        Err(Denial::Quarantined {
            left_ms: u32::try_from(left.div_ceil(1_000)).unwrap_or(u32::MAX),
            reading,
        })
    }

    fn extend(
        &mut self,
        key: &[u8],
        token: &Token,
        ttl_ms: u32,
        proposal: Option<Proposal>,
        now: Instant,
    ) -> Result<Reply, Denial> {
        let standing = self.keys.get(key);
        let is_mine = standing.map_or_else(
            || {
                let is_last = |it: Proposal| it.fence == self.highest(key).fence;
                proposal.is_some_and(|it| is_last(it) || self.lapse == Some(Lapse::HealsAnyway))
            },
            |entry| entry.token == *token,
        );
        if !is_mine {
            return Ok(Reply::NotMine);
        }
        if let Some(Proposal { fleet, time, .. }) = proposal {
            let reading = self.reading(self.highest(key).fence, now);
            let time = Fence::from_u64(time);
            let proposal = Proposal {
                fence: time,
                fleet,
                time: 0,
            };
            if is_too_old(proposal, now) {
                return Err(Denial::TooOld(reading));
            }
            if is_too_new(proposal, now) {
                return Err(Denial::TooNew(reading));
            }
        }
        // Nobody was here since, as far as it can know.
        let is_guarded = |guard: Guard| guard.run_id == self.run_id && now >= guard.until;
        if standing.is_none() && !self.guard.is_some_and(is_guarded) {
            return Ok(Reply::NotMine);
        }
        if let Some(proposal) = proposal {
            let end = self.after(now, Duration::from_millis(ttl_ms.into()));
            let known = self.highest(key);
            // A clock that was set back must not take off what was promised before.
            let held_until = end.max(known.held_until);
            self.accept(key, known.fence, held_until, proposal.fleet, now);
        }
        self.set(key, token, ttl_ms, now);
        Ok(Reply::Extended)
    }

    fn release(
        &mut self,
        key: &[u8],
        token: &Token,
        proposal: Option<Proposal>,
        now: Instant,
    ) -> Reply {
        let is_mine = self
            .keys
            .get(key)
            .is_some_and(|entry| entry.token == *token);
        if is_mine {
            self.keys.remove(key);
        }
        if let Some(proposal) = proposal {
            let is_near = !is_too_old(proposal, now) && !is_too_new(proposal, now);
            let burns = !matches!(
                self.lapse,
                Some(Lapse::BurnsNothing | Lapse::Counts | Lapse::WritesBack)
            );
            let fence = proposal.fence;
            let Highest {
                fence: mut highest,
                mut held_until,
                ..
            } = self.highest(key);
            if is_mine || highest == fence {
                held_until = Highest::NONE.held_until;
            }
            if burns && (highest == fence || is_near && highest < fence) {
                // So that an extend of this lease finds another's.
                highest = Fence::from_u64(fence.as_u64() + 1);
            }
            if highest > Fence::ZERO {
                self.accept(key, highest, held_until, proposal.fleet, now);
            }
        }
        if is_mine {
            Reply::Released
        } else {
            Reply::NotMine
        }
    }

    fn set(&mut self, key: &[u8], token: &Token, ttl_ms: u32, now: Instant) {
        let entry = Entry {
            token: *token,
            expires_at: self.after(now, Duration::from_millis(ttl_ms.into())),
        };
        self.keys.insert(key.to_vec(), entry);
    }

    fn after(&self, instant: Instant, time: Duration) -> Instant {
        if !self.is_coarse {
            return instant.saturating_add(time);
        }
        let millis = Instant::from_micros(instant.as_micros() / 1_000 * 1_000);
        millis.saturating_add(time + Duration::from_millis(1))
    }

    fn highest(&self, key: &[u8]) -> Highest {
        self.fences.get(key).copied().unwrap_or(Highest::NONE)
    }

    fn accept(
        &mut self,
        key: &[u8],
        fence: Fence,
        held_until: Instant,
        fleet: Fleet,
        now: Instant,
    ) {
        let kept = fleet.step_back() + Duration::from_millis(1);
        let accepted_until = up_to_millis(Instant::from_micros(fence.as_u64()));
        let accepted_until = accepted_until.saturating_add(fleet.window());
        // The last millisecond, where those are counted.
        let last = held_until.saturating_sub(Duration::from_millis(self.is_coarse.into()));
        let expires_at = match self.lapse {
            Some(Lapse::Counts | Lapse::WritesBack) => Instant::MAX,
            Some(Lapse::HasNoFloor) => now.saturating_add(fleet.window()),
            _ => self.after(accepted_until.max(last), kept),
        };
        let highest = Highest {
            fence,
            held_until,
            expires_at,
        };
        self.fences.insert(key.to_vec(), highest);
    }

    fn reading(&self, highest: Fence, now: Instant) -> Reading {
        let time = match self.lapse {
            // A time that is always before the first fence, so that proposals follow from fences alone.
            Some(Lapse::WritesBack) => 3 << 62,
            _ => now.as_micros(),
        };
        Reading::new(time, highest)
    }
}

fn up_to_millis(instant: Instant) -> Instant {
    Instant::from_micros(instant.as_micros().div_ceil(1_000) * 1_000)
}

/// A fence is accepted above `now - window` and up to `now + window`.
fn is_too_old(proposal: Proposal, now: Instant) -> bool {
    let low = now.saturating_sub(proposal.fleet.window());
    proposal.fence.as_u64() <= low.as_micros()
}

fn is_too_new(proposal: Proposal, now: Instant) -> bool {
    let high = now.saturating_add(proposal.fleet.window());
    proposal.fence.as_u64() > high.as_micros()
}
