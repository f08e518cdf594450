//! What a node does with a command: plain data, the time passed in.

use core::time::Duration;
use std::collections::BTreeMap;

use redlock_core::transport::{Command, Proposal, Reading, ReplicationId, Reply, RunId, Verb};
use redlock_core::{Denial, Fence, Fleet, Instant, Token};

/// The data of one node. Instants are readings of its own wall clock.
///
/// It does what Redis does with the scripts, and to the microsecond what `MockNode` of the core does; a test
/// compares them, and that one is compared with a real Redis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Node {
    run_id: RunId,
    replication_id: ReplicationId,
    data: Data,
    /// Whether it counts whole milliseconds, as Redis does: then a key lives for up to one longer.
    is_coarse: bool,
    /// Its policy: it writes no guard record.
    may_evict: bool,
    lapse: Option<Lapse>,
}

/// What it writes to its disk, and gives to its replicas.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Data {
    keys: BTreeMap<Vec<u8>, Entry>,
    fences: BTreeMap<Vec<u8>, Highest>,
    guard: Option<Guard>,
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
    /// The token whose acquire or extend was accepted last.
    accepted: Option<Token>,
    expires_at: Instant,
}

impl Highest {
    const NONE: Self = Self {
        fence: Fence::ZERO,
        held_until: Instant::from_micros(0),
        accepted: None,
        expires_at: Instant::from_micros(0),
    };
}

/// The guard record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Guard {
    run_id: RunId,
    replication_id: ReplicationId,
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
    /// It takes an attempt that proposes the fence of another for the other.
    MistakesEqualFences,
    /// Without a guard record it takes the rules of the first client that asks.
    TakesAnyRules,
    /// It knows its guard record by the process alone, also when its data is of before.
    MissesFailback,
    /// Its quarantine is long enough for leases, and not for a clock that is set back.
    ForgetsStepBack,
    /// A quarantine that was written by a clock that was ahead lasts until that time.
    NeverCapsQuarantine,
    /// A release by a client with other rules shortens the life of the fence.
    ShortensFences,
}

impl Data {
    /// The rules of the fleet, by the guard record.
    #[must_use]
    pub fn rules(&self) -> Option<Fleet> {
        self.guard?.fleet
    }
}

impl Node {
    /// A node that has forgotten nothing: it was set up for its fleet, whose rules are those of the first client.
    #[must_use]
    pub fn new(run_id: RunId, lapse: Option<Lapse>) -> Self {
        let replication_id = ReplicationId::new(0);
        let guard = Guard {
            run_id,
            replication_id,
            until: Instant::from_micros(0),
            fleet: None,
        };
        Self {
            run_id,
            replication_id,
            data: Data {
                guard: Some(guard),
                ..Data::default()
            },
            is_coarse: false,
            may_evict: false,
            lapse,
        }
    }

    /// The same node, set up for `fleet`; not set up at all if there is none.
    #[must_use]
    pub fn set_up_for(mut self, fleet: Option<Fleet>) -> Self {
        self.data.guard = fleet
            .and(self.data.guard)
            .map(|guard| Guard { fleet, ..guard });
        self
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

    /// The history of its data.
    #[must_use]
    pub const fn replication_id(&self) -> ReplicationId {
        self.replication_id
    }

    /// The data, as it is saved or given to a replica.
    #[must_use]
    pub fn data(&self) -> Data {
        self.data.clone()
    }

    /// Other data in the same process: it was a replica meanwhile.
    pub fn fail_back(&mut self, data: Data, replication_id: ReplicationId) {
        self.data = data;
        self.replication_id = replication_id;
    }

    /// The data of before is that of now.
    pub fn restore(&mut self, data: Data) {
        self.data = data;
    }

    /// Forgets what belongs to the lock of `key`, and nothing else.
    pub fn evict(&mut self, key: &[u8]) {
        self.data.keys.remove(key);
        self.data.fences.remove(key);
    }

    /// Does what `command` says, at `now` by the clock of the node.
    ///
    /// # Errors
    ///
    /// When the node has no vote.
    pub fn execute(&mut self, command: &Command<'_>, now: Instant) -> Result<Reply, Denial> {
        self.expire(now);
        let Command {
            key,
            token,
            proposal,
            ..
        } = *command;
        match command.verb {
            Verb::Acquire { ttl_ms, .. } => match proposal {
                None => Ok(self.acquire(key, token, ttl_ms, now)),
                Some(proposal) => self.acquire_fenced(key, token, ttl_ms, proposal, now),
            },
            Verb::Extend { ttl_ms } => self.extend(key, token, ttl_ms, proposal, now),
            Verb::Release => Ok(self.release(key, token, proposal, now)),
        }
    }

    /// Forgets what has expired: it stays away, also when the clock is set back later.
    pub fn expire(&mut self, now: Instant) {
        self.data.keys.retain(|_, entry| entry.expires_at > now);
        self.data
            .fences
            .retain(|_, highest| highest.expires_at > now);
    }

    /// What stands under `key` at `now`.
    #[must_use]
    pub fn entry(&self, key: &[u8], now: Instant) -> Option<&Entry> {
        self.data
            .keys
            .get(key)
            .filter(|entry| entry.expires_at > now)
    }

    /// The rules of the fleet, by the guard record, also by one of another process or other data.
    #[must_use]
    pub fn rules(&self) -> Option<Fleet> {
        self.data.rules()
    }

    /// Whether anything is here that expires.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.data.keys.is_empty() || !self.data.fences.is_empty()
    }

    /// What `redlock init` writes: a record without a quarantine, on a node that has none and nothing that expires,
    /// unless it `is_careless` about that.
    pub fn init(&mut self, fleet: Fleet, now: Instant, is_careless: bool) -> bool {
        self.expire(now);
        let is_new = self.data.guard.is_none() && (is_careless || !self.has_keys());
        if is_new {
            // Unless the clock goes back.
            self.write_guard(fleet, now.saturating_sub(Duration::from_millis(1)));
        }
        is_new
    }

    /// What `redlock init --repair` writes: a record, where there is none of these rules for this process with this
    /// data, and a quarantine that is long enough for the rules of both.
    pub fn repair(&mut self, fleet: Fleet, now: Instant) {
        let recorded = self.rules();
        if recorded == Some(fleet) && self.guard_until().is_some() {
            return;
        }
        let quarantine = recorded.map_or(Duration::ZERO, |before| before.quarantine());
        let quarantine = quarantine.max(fleet.quarantine());
        self.write_guard(fleet, up_to_millis(now).saturating_add(quarantine));
    }

    const fn write_guard(&mut self, fleet: Fleet, until: Instant) {
        self.data.guard = Some(Guard {
            run_id: self.run_id,
            replication_id: self.replication_id,
            until,
            fleet: Some(fleet),
        });
    }

    /// The longest TTL of the fleet by the guard record, in milliseconds.
    #[must_use]
    pub fn max_ttl_ms(&self) -> Option<u32> {
        let longest = self.rules()?.max_ttl().as_millis();
        Some(u32::try_from(longest).unwrap_or(u32::MAX))
    }

    /// Whether its guard record says that it has forgotten no lease.
    #[must_use]
    pub fn is_vouched(&self, now: Instant) -> bool {
        self.guard_until().is_some_and(|until| now >= until)
    }

    /// Deletes `key`, whosever it is.
    pub fn remove(&mut self, key: &[u8]) {
        self.data.keys.remove(key);
    }

    /// Lets the lease under `key` be over before its time, as if its end had come.
    pub fn expire_early(&mut self, key: &[u8]) {
        self.data.keys.remove(key);
        if let Some(known) = self.data.fences.get_mut(key) {
            known.held_until = Highest::NONE.held_until;
        }
    }

    /// Whether it may evict keys from now on.
    pub const fn set_may_evict(&mut self, may_evict: bool) {
        self.may_evict = may_evict;
    }

    /// Forgets the guard record.
    pub const fn forget_guard(&mut self) {
        self.data.guard = None;
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.data = Data::default();
    }

    fn acquire(&mut self, key: &[u8], token: &Token, ttl_ms: u32, now: Instant) -> Reply {
        if self.data.keys.contains_key(key) {
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
        self.guarded(proposal, ttl_ms, reading, now, !is_old && !is_new)?;

        let standing = self.data.keys.get(key);
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
        // Another attempt may have proposed the same fence.
        let is_mine = standing.is_some()
            && (known.accepted == Some(*token) || self.lapse == Some(Lapse::MistakesEqualFences));
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
        let accepted_now = Highest {
            fence: accepted,
            held_until: self
                .after(now, Duration::from_millis(ttl_ms.into()))
                .max(known.held_until),
            accepted: Some(*token),
            // It follows these rules, whatever was remembered by others.
            expires_at: Highest::NONE.expires_at,
        };
        self.remember(key, accepted_now, fleet, now);
        self.set(key, token, ttl_ms, now);
        let mut reading = reading;
        reading.fence = accepted;
        Ok(Reply::Acquired(Some(reading)))
    }

    /// Whether nothing can have been forgotten, as far as leases and fences of this fleet go.
    fn guarded(
        &mut self,
        proposal: Proposal,
        ttl_ms: u32,
        reading: Reading,
        now: Instant,
        is_near: bool,
    ) -> Result<(), Denial> {
        let Proposal { fleet, vouches, .. } = proposal;
        let recorded = self.data.guard.as_mut();
        let recorded = recorded.map(|guard| *guard.fleet.get_or_insert(fleet));
        let is_other = recorded.is_some_and(|recorded| recorded != fleet);
        if is_other || Duration::from_millis(ttl_ms.into()) > fleet.max_ttl() {
            return Err(Denial::FencingMismatch(reading));
        }
        let known_until = self.guard_until();
        let vouches = vouches || self.lapse == Some(Lapse::TakesAnyRules);
        if known_until.is_none() && !(is_near && vouches && !self.may_evict) {
            return Err(Denial::Unguarded {
                has_record: recorded.is_some(),
                reading,
            });
        }
        let quarantine = match self.lapse {
            Some(Lapse::IsBackTooEarly) => 2 * fleet.window() - Duration::from_millis(1),
            Some(Lapse::ForgetsStepBack) => {
                fleet.max_ttl() + 4 * fleet.window() + Duration::from_secs(1)
            }
            _ => fleet.quarantine(),
        };
        // Redis writes it in milliseconds.
        let last = up_to_millis(now).saturating_add(quarantine);
        let until = match known_until {
            Some(until) if self.lapse == Some(Lapse::NeverCapsQuarantine) => until,
            Some(until) => until.min(last),
            None => last,
        };
        if known_until != Some(until) && is_near {
            self.write_guard(fleet, until);
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

    /// The end of the quarantine. None if the guard record is not of this process with this data.
    fn guard_until(&self) -> Option<Instant> {
        let guard = self.data.guard?;
        let is_same_data = guard.replication_id == self.replication_id
            || self.lapse == Some(Lapse::MissesFailback);
        (guard.run_id == self.run_id && is_same_data).then_some(guard.until)
    }

    fn extend(
        &mut self,
        key: &[u8],
        token: &Token,
        ttl_ms: u32,
        proposal: Option<Proposal>,
        now: Instant,
    ) -> Result<Reply, Denial> {
        let holder = self.data.keys.get(key).map(|entry| entry.token);
        let Some(proposal) = proposal else {
            if holder != Some(*token) {
                return Ok(Reply::NotMine);
            }
            self.set(key, token, ttl_ms, now);
            return Ok(Reply::Extended(None));
        };
        let known = self.highest(key);
        let is_mine = match (holder, self.lapse) {
            (Some(holder), _) => holder == *token,
            (None, Some(Lapse::HealsAnyway)) => true,
            (None, Some(Lapse::MistakesEqualFences)) => known.fence == proposal.fence,
            // No other attempt was accepted since.
            (None, _) => known.accepted == Some(*token),
        };
        // New clients rely on the margins of their rules.
        let fleet = proposal.fleet;
        let has_other_margins = self.rules().is_some_and(|rules| {
            (rules.window(), rules.step_back()) != (fleet.window(), fleet.step_back())
        });
        if !is_mine || has_other_margins {
            return Ok(Reply::NotMine);
        }
        let by_time = Proposal {
            fence: Fence::from_u64(proposal.time),
            ..proposal
        };
        if is_too_old(by_time, now) {
            return Err(Denial::TooOld(self.reading(known.fence, now)));
        }
        if is_too_new(by_time, now) {
            return Err(Denial::TooNew(self.reading(known.fence, now)));
        }
        if holder.is_none() && !self.is_vouched(now) {
            return Ok(Reply::NotMine);
        }
        let end = self.after(now, Duration::from_millis(ttl_ms.into()));
        let accepted = Highest {
            fence: known.fence.max(proposal.fence),
            // A clock that was set back must not take off what was promised before.
            held_until: end.max(known.held_until),
            accepted: Some(*token),
            ..known
        };
        self.remember(key, accepted, proposal.fleet, now);
        self.set(key, token, ttl_ms, now);
        let reading = self.reading(accepted.fence, now);
        Ok(Reply::Extended(Some(reading)))
    }

    fn release(
        &mut self,
        key: &[u8],
        token: &Token,
        proposal: Option<Proposal>,
        now: Instant,
    ) -> Reply {
        let entry = self.data.keys.get(key);
        let is_mine = entry.is_some_and(|entry| entry.token == *token);
        if is_mine {
            self.data.keys.remove(key);
        }
        if let Some(proposal) = proposal {
            let is_near = !is_too_old(proposal, now) && !is_too_new(proposal, now);
            let burns = !matches!(
                self.lapse,
                Some(Lapse::BurnsNothing | Lapse::Counts | Lapse::WritesBack)
            );
            let fence = proposal.fence;
            let known = self.highest(key);
            let mut left = known;
            let is_accepted = known.accepted == Some(*token)
                || self.lapse == Some(Lapse::MistakesEqualFences)
                    && (is_mine || known.fence == fence);
            // A late extend must not make the key again. Another attempt with the same fence keeps what it has.
            if is_accepted {
                left.held_until = Highest::NONE.held_until;
                left.accepted = None;
            }
            if burns && (known.fence == fence || is_near && known.fence < fence) {
                left.fence = Fence::from_u64(fence.as_u64() + 1);
            }
            if left != known {
                self.remember(key, left, proposal.fleet, now);
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
        self.data.keys.insert(key.to_vec(), entry);
    }

    fn after(&self, instant: Instant, time: Duration) -> Instant {
        if !self.is_coarse {
            return instant.saturating_add(time);
        }
        let millis = Instant::from_micros(instant.as_micros() / 1_000 * 1_000);
        millis.saturating_add(time + Duration::from_millis(1))
    }

    fn highest(&self, key: &[u8]) -> Highest {
        self.data.fences.get(key).copied().unwrap_or(Highest::NONE)
    }

    fn remember(&mut self, key: &[u8], known: Highest, fleet: Fleet, now: Instant) {
        let kept = fleet.step_back() + Duration::from_millis(1);
        let accepted_until = up_to_millis(Instant::from_micros(known.fence.as_u64()));
        let accepted_until = accepted_until.saturating_add(fleet.window());
        // The last millisecond, where those are counted.
        let held_until = known.held_until;
        let last = held_until.saturating_sub(Duration::from_millis(self.is_coarse.into()));
        let expires_at = match self.lapse {
            Some(Lapse::Counts | Lapse::WritesBack) => Instant::MAX,
            Some(Lapse::HasNoFloor) => now.saturating_add(fleet.window()),
            Some(Lapse::ShortensFences) => self.after(accepted_until.max(last), kept),
            _ => self
                .after(accepted_until.max(last), kept)
                .max(known.expires_at),
        };
        let known = Highest {
            expires_at,
            ..known
        };
        self.data.fences.insert(key.to_vec(), known);
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
