//! The calls of the lock, each of them told to the history.

use core::cell::Cell;
use core::time::Duration;
use embassy_futures::select::{Either, select};
use std::rc::Rc;

use redlock_core::transport::Verb;
use redlock_core::{
    AcquireError, Clock, ExtendError, HoldError, Instant, Lease, LossCause, Token, Transport,
};

use super::assumption::Assumption;
use super::clock::NEVER;
use super::cut::{Cut, cut};
use super::fault::Kind;
use super::handover::Handover;
use super::history::{Call, Claim, End, Task, What};
use super::place::KEYS;
use super::user::{Key, MAX, User};
use super::world::World;

impl<T: Transport> User<T> {
    pub(super) async fn acquire(&mut self, key: usize, end: Cut) -> Option<Lease<Key>> {
        let tries_once = self.chance.one_in(3);
        let call = if tries_once {
            Call::TryAcquire(key)
        } else {
            Call::Acquire(key)
        };
        self.acquire_by(call, key, end).await
    }

    pub(super) async fn acquire_by(
        &mut self,
        call: Call,
        key: usize,
        end: Cut,
    ) -> Option<Lease<Key>> {
        // One round to ask, perhaps one to ask better, and one to clean up.
        let is_fenced = self.lock.options().fencing().is_some();
        let round_time = self.lock.options().round_time();
        let rounds = (2 + 2 * u32::from(is_fenced)) * round_time;
        // Retries for a split vote.
        let split = 8 * round_time;
        let clock = self.lock.clock().clone();
        let idea = self.idea();
        let result = if matches!(call, Call::TryAcquire(_)) {
            self.begins(call, rounds + split);
            cut(self.lock.try_acquire(KEYS[key]), end, &clock).await
        } else {
            let wait = self.lock.options().wait_time();
            self.begins(call, rounds + wait.max(split));
            cut(self.lock.acquire(KEYS[key]), end, &clock).await
        };
        let (lease, end) = match result {
            Some(Ok(lease)) => (Some(lease), End::Done),
            Some(Err(error)) => (None, failure(&error)),
            None => (None, dropped(&self.world, end)),
        };
        if let Some(lease) = &lease {
            let claim = claim(&self.world, self.task, key, lease);
            self.held.push(claim.token);
            self.write_down(claim, lease);
            if lease.fence().is_some() {
                let rules = self.lock.options().fencing();
                self.world.look().confirmed[self.task.client] = rules;
            }
            tell_end(&self.world, claim, lease.valid_until(), What::Granted);
        }
        self.compare(idea);
        self.ends(call, end);
        lease
    }

    /// Whether the lease is still worth something.
    pub(super) async fn extend(&mut self, key: usize, lease: &mut Lease<Key>) -> bool {
        let call = Call::Extend(key);
        let claim = claim(&self.world, self.task, key, lease);
        let rounds = 1 + u32::from(lease.fence().is_some());
        self.begins(call, rounds * self.lock.options().round_time());
        let end = self.draw_cut(16);
        let clock = self.lock.clock().clone();
        let (before, begun_at, idea) = (lease.clone(), clock.now(), self.idea());
        let result = cut(self.lock.extend(lease), end, &clock).await;
        if lease.valid_until() > before.valid_until() {
            let until = self.end_by_today(lease, begun_at);
            tell_end(&self.world, claim, until, What::Extended);
        }
        self.compare(idea);
        let end = match result {
            Some(Ok(())) => End::Done,
            Some(Err(ExtendError::Unreachable(_))) => End::Unreachable,
            Some(Err(ExtendError::Lost(_))) => End::Lost,
            Some(Err(ExtendError::TooLate(_))) => End::TooLate,
            Some(Err(_)) => End::Expired,
            None => dropped(&self.world, end),
        };
        self.told(claim, end);
        let is_over = matches!(end, End::Lost | End::TooLate | End::Expired);
        if is_over {
            if self.world.look().fails(Assumption::Lost) {
                *lease = before;
            }
            if lease.is_valid(clock.now()) {
                self.tell(What::StillValid(claim));
            }
            self.tell(What::Over(claim));
        }
        self.ends(call, end);
        !is_over
    }

    /// Takes over the lease of another process.
    pub(super) async fn adopt(&mut self, handover: Handover) -> Option<Lease<Key>> {
        let Claim { key, token, .. } = handover.claim;
        let claim = Claim {
            task: self.task,
            ..handover.claim
        };
        let call = Call::Adopt(key);
        let options = *self.lock.options();
        // One round for what a dropped future has left.
        let rounds = 2 + u32::from(claim.fence.is_some());
        self.begins(call, rounds * options.round_time());
        let end = self.draw_cut(8);
        let clock = self.lock.clock().clone();
        let (idea, bytes) = (self.idea(), self.world.look().tokens[token]);
        let result = cut(self.lock.adopt(KEYS[key], bytes, claim.fence), end, &clock).await;
        let (lease, end) = match result {
            Some(Ok(lease)) => (Some(lease), End::Done),
            Some(Err(ExtendError::Unreachable(_))) => (None, End::Unreachable),
            Some(Err(ExtendError::Lost(_))) => (None, End::Lost),
            Some(Err(ExtendError::TooLate(_))) => (None, End::TooLate),
            Some(Err(_)) => (None, End::Expired),
            None => (None, dropped(&self.world, end)),
        };
        match &lease {
            Some(lease) => {
                self.held.push(token);
                self.open.push((key, token));
                self.write_down(claim, lease);
                let is_guarded = options.vote_conditions().restart_guard || claim.fence.is_some();
                let adopted = |claim, until| What::Adopted(claim, until, is_guarded);
                tell_end(&self.world, claim, lease.valid_until(), adopted);
            }
            // Another one may try again.
            None => self
                .world
                .look()
                .hand_over_lease(Handover { claim, ..handover }),
        }
        self.compare(idea);
        self.ends(call, end);
        lease
    }

    /// Leaves the lease to another process.
    pub(super) fn hand_over(&mut self, key: usize, lease: &Lease<Key>) {
        let claim = claim(&self.world, self.task, key, lease);
        let handover = self.world.look().discard_handover(claim.token);
        self.tell(What::Over(claim));
        self.tell(What::HandedOver(claim));
        self.forget(lease.token());
        if let Some(handover) = handover {
            self.world.look().hand_over_lease(handover);
        }
    }

    /// Writes down what a successor needs if this process dies.
    fn write_down(&self, claim: Claim, lease: &Lease<Key>) {
        if self.hands_over {
            self.world.look().write_handover(Handover {
                claim,
                rules: self.lock.options().fencing(),
                ttl: lease.ttl(),
                from: NEVER,
            });
        }
    }

    pub(super) async fn release(&mut self, key: usize, lease: Lease<Key>) {
        let call = Call::Release(key);
        let claim = claim(&self.world, self.task, key, &lease);
        self.begins(call, self.release_time(lease.fence().is_some()));
        self.tell(What::Over(claim));
        let end = self.draw_cut(8);
        if end == Cut::Polls(0) {
            self.forget(lease.token());
        }
        self.held.retain(|held| *held != claim.token);
        // Before the end of the `min_hold`, the keys stay.
        let kept = match self.lock.release_command(&lease).verb {
            Verb::Keep { rest_ms } => Some(self.kept_until(&lease, rest_ms)),
            _ => None,
        };
        if kept.is_some() {
            // It leaves no line: a node that has refused the client calls it, and only then it leaves.
            self.world.look().forget_place(self.task, key);
            self.open.retain(|(_, open)| *open != claim.token);
            self.left_to_expire = Some(claim.token);
        }
        // What is on its way now may come late.
        let handover = self.world.look().discard_handover(claim.token);
        let clock = self.lock.clock().clone();
        let result = cut(self.lock.release(lease), end, &clock).await;
        if let Some(released) = &result {
            let (nodes, names_twice) = {
                let state = self.world.look();
                (state.nodes(), state.names_twice(self.task.client))
            };
            let is_most = |count: usize| count > nodes / 2 && !names_twice;
            if let Some(until) = kept.filter(|_| is_most(released.kept())) {
                tell_end(&self.world, claim, until, What::Kept);
            }
            // A process that comes too late has it still.
            let is_gone = kept.is_none() && is_most(released.released() + released.gone());
            if is_gone {
                self.tell(What::Freed(claim));
            }
            if let Some(handover) = handover.filter(|_| is_gone && self.chance.one_in(2)) {
                self.world.look().hand_over_lease(handover);
            }
        }
        let end = result.map_or_else(|| dropped(&self.world, end), |_| End::Done);
        self.ends(call, end);
    }

    /// Until when no other client has a lock whose keys live for `rest_ms` from now on, by the clock of this client.
    fn kept_until(&self, lease: &Lease<Key>, rest_ms: u32) -> Instant {
        let clock = self.lock.clock();
        let options = self.lock.options();
        // What a lease of that length lacks of its TTL, as the options of today have it.
        let rest = Duration::from_millis(rest_ms.into());
        let most = rest.max(options.ttl()).max(lease.ttl());
        let drift = most / 1_000_000 * options.vote_conditions().drift_ppm;
        let jumps = options.ttl().saturating_sub(options.validity());
        let tick = clock.resolution() + Duration::from_micros(2);
        clock
            .now()
            .saturating_add(rest.saturating_sub(drift + jumps + tick))
    }

    /// Works under the lock, with these rests.
    pub(super) async fn hold(&mut self, key: usize, rests: &[Duration]) {
        let call = Call::Hold(key);
        let options = self.lock.options();
        // The work is over by itself or is stopped before; then the lock is released.
        let rested: Duration = rests.iter().sum();
        self.begins(
            call,
            options.wait_time().max(8 * options.round_time())
                + (2 + 2 * u32::from(options.fencing().is_some())) * options.round_time()
                + self.release_time(options.fencing().is_some())
                + rested,
        );
        let end = self.draw_cut(6);
        let clock = self.lock.clock().clone();
        let (world, task) = (Rc::clone(&self.world), self.task);
        let worked = Cell::new(None);
        let work = async |lease: &Lease<Key>| {
            let work = Work::begin(&world, task, key, lease);
            worked.set(Some(work.claim));
            for rest in rests {
                clock.sleep_until(clock.now().saturating_add(*rest)).await;
                if let Some(claim) = worked.get().filter(|claim: &Claim| claim.fence.is_some()) {
                    world.look().visit(claim);
                }
                // Work may keep its process busy, past the end of the validity as well.
                world.look().touch(task.client);
            }
        };
        let result = cut(self.lock.hold(KEYS[key], work), end, &clock).await;
        let was_lost = matches!(result, Some(Err(HoldError::Lost(_))));
        let end = match result {
            Some(Ok(())) => End::Done,
            Some(Err(HoldError::NotAcquired(error))) => failure(&error),
            Some(Err(HoldError::Lost(cause))) => loss(&cause),
            Some(Err(_)) => End::Lost,
            None => dropped(&world, end),
        };
        // The release lets the keys live if the `min_hold` is not over.
        let has_min_hold = self.lock.options().vote_conditions().min_hold_ms > 0;
        if let Some(claim) = worked.get() {
            self.told(claim, end);
            // If the future was dropped before its release, the next operation deletes them.
            let is_abandoned = self.lock.abandoned().is_some_and(|token| {
                let token = world.look().number_of(token);
                token == claim.token
            });
            if has_min_hold && !is_abandoned {
                world.look().forget_place(self.task, key);
                self.left_to_expire = Some(claim.token);
            }
        } else if was_lost && has_min_hold {
            // After a long pause, the work has not begun. The token is that of the last attempt.
            world.look().take_attempts(self.task, &mut self.open);
            world.look().forget_place(self.task, key);
            self.left_to_expire = self.open.last().map(|(_, token)| *token);
        }
        self.ends(call, end);
    }

    /// Keeps a lease, for some time at the most.
    pub(super) async fn keep(
        &mut self,
        key: usize,
        mut lease: Lease<Key>,
        rest: Duration,
    ) -> Lease<Key> {
        let call = Call::Keep(key);
        let claim = claim(&self.world, self.task, key, &lease);
        let clock = self.lock.clock().clone();
        let until = clock.now().saturating_add(rest);
        self.begins(call, rest);
        let world = Rc::clone(&self.world);
        let kept = self.lock.keep(&mut lease, |lease| {
            tell_end(&world, claim, lease.valid_until(), What::Extended);
        });
        let end = match select(kept, clock.sleep_until(until)).await {
            Either::First(cause) => loss(&cause),
            Either::Second(()) => End::Dropped,
        };
        self.told(claim, end);
        if end == End::Lost && lease.is_valid(clock.now()) {
            self.tell(What::StillValid(claim));
        }
        self.ends(call, end);
        lease
    }

    /// The release of a fenced lock with a `min_hold` asks once more if the client did not know the nodes' time: at most for two node
    /// timeouts, and a part of one for what passes between the two. The `min_hold` is that of the lease, which may be an older one.
    fn release_time(&self, is_fenced: bool) -> Duration {
        let round_time = self.lock.options().round_time();
        match is_fenced {
            true => round_time * 9 / 4,
            false => round_time,
        }
    }

    pub(super) async fn release_abandoned(&mut self) {
        self.begins(Call::Tidy, self.lock.options().round_time());
        let end = self.draw_cut(6);
        let clock = self.lock.clock().clone();
        let result = cut(self.lock.release_abandoned(), end, &clock).await;
        let end = result.map_or_else(|| dropped(&self.world, end), |()| End::Done);
        self.ends(Call::Tidy, end);
    }

    /// The lease is given up without a word to the nodes: its token may stand until it expires.
    pub(super) fn forget(&mut self, token: &Token) {
        let mut state = self.world.look();
        let number = state.number_of(token);
        let its = self.open.iter().find(|(_, open)| *open == number);
        if let Some((key, _)) = its {
            state.forget_place(self.task, *key);
        }
        state.discard_handover(number);
        self.open.retain(|(_, open)| *open != number);
        self.held.retain(|held| *held != number);
    }

    /// What the holder is told of its lease.
    fn told(&self, claim: Claim, end: End) {
        match end {
            End::Lost => self.tell(What::CalledLost(claim)),
            End::Done => self.tell(What::CalledDone(claim)),
            _ => (),
        }
    }

    /// The end of an extended lease, also for a user who counts it by the options of today.
    fn end_by_today(&self, lease: &Lease<Key>, begun_at: Instant) -> Instant {
        if !self.world.look().fails(Assumption::TodaysOptions) {
            return lease.valid_until();
        }
        let options = self.lock.options();
        let margin = options.ttl().saturating_sub(options.validity());
        let validity = lease.ttl().saturating_sub(margin);
        begun_at.saturating_add(validity).max(lease.valid_until())
    }

    /// What the lock takes for the nodes' time before a call, and when that is.
    fn idea(&self) -> (Option<i64>, Instant) {
        (self.lock.clock_offset(), self.lock.clock().now())
    }

    /// How far that is from the truth after the call, if it has learned something.
    fn compare(&mut self, (before, begun_at): (Option<i64>, Instant)) {
        let mut state = self.world.look();
        if let Some(offset) = state.offset_of_one_clock(self.task.client) {
            self.lock.set_clock_offset(Some(offset));
        }
        let Some(offset) = self.lock.clock_offset().filter(|now| before != Some(*now)) else {
            return;
        };
        state.compare_idea(self.task, offset, begun_at);
    }

    pub(super) fn claim(&self, key: usize, lease: &Lease<Key>) -> Claim {
        claim(&self.world, self.task, key, lease)
    }

    fn tell(&self, what: What) {
        self.world.look().tell_of(self.task.client, what);
    }

    fn begins(&self, call: Call, bound: Duration) {
        self.world.look().begin(self.task, call, bound);
    }

    /// Done with all tokens but those of leases, and one that a dropped future has left.
    fn ends(&mut self, call: Call, end: End) {
        let mut state = self.world.look();
        state.end(self.task, call, end);
        // The next operation releases what a dropped future has left. Nothing releases what is lost.
        let has_left = match call {
            Call::Acquire(_) | Call::CalmAcquire(_) => !matches!(end, End::Done | End::Dropped),
            Call::Release(_) | Call::Hold(_) | Call::Tidy => end == End::Done,
            _ => false,
        };
        if has_left {
            state.look_for_place(self.task, call.key());
        }
        let left = self.lock.abandoned().map(|token| state.number_of(token));
        state.take_attempts(self.task, &mut self.open);
        let client = self.task.client;
        self.open.retain(|(key, token)| {
            let is_wanted = Some(*token) == left || self.held.contains(token);
            let is_kept = self.left_to_expire == Some(*token);
            if !is_wanted && !is_kept {
                state.abandon(client, *key, *token);
            }
            is_wanted
        });
    }
}

/// The work under `hold`: it goes on until it is dropped.
struct Work {
    world: Rc<World>,
    claim: Claim,
}

impl Work {
    fn begin(world: &Rc<World>, task: Task, key: usize, lease: &Lease<Key>) -> Self {
        world.look().stop_waiting(task);
        let claim = claim(world, task, key, lease);
        tell_end(world, claim, lease.valid_until(), What::Works);
        let world = Rc::clone(world);
        Self { world, claim }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Claim { task, .. } = self.claim;
        self.world
            .look()
            .tell_of(task.client, What::Stops(self.claim));
    }
}

fn claim(world: &World, task: Task, key: usize, lease: &Lease<Key>) -> Claim {
    let mut state = world.look();
    let token = state.number_of(lease.token());
    let fence = lease.fence().map(|fence| state.fence_of(token, fence));
    Claim {
        task,
        key,
        token,
        fence,
    }
}

/// Tells a claim with its end, in true time.
fn tell_end(
    world: &World,
    claim: Claim,
    valid_until: Instant,
    what: impl FnOnce(Claim, u64) -> What,
) {
    let mut state = world.look();
    let Task { client, .. } = claim.task;
    let until = state.end_of(client, valid_until);
    state.tell_of(client, what(claim, until));
}

fn dropped(world: &World, end: Cut) -> End {
    let is_polled = end != Cut::Polls(0);
    world.look().count(if is_polled {
        Kind::DroppedFuture
    } else {
        Kind::NeverPolled
    });
    End::Dropped
}

const fn failure<E>(error: &AcquireError<E, MAX>) -> End {
    match error {
        AcquireError::Held(_) => End::Held,
        AcquireError::Unreachable(_) => End::Unreachable,
        AcquireError::TooLate(_) => End::TooLate,
        _ => End::Entropy,
    }
}

const fn loss<E>(cause: &LossCause<E, MAX>) -> End {
    match cause {
        LossCause::Lost(_) => End::Lost,
        LossCause::Unreachable(_) => End::Unreachable,
        LossCause::ExtensionsSpent => End::ExtensionsSpent,
        _ => End::Expired,
    }
}
