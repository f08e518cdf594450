//! What a task of a client does with the lock: whatever its chance says.

use core::cell::Cell;
use core::time::Duration;
use std::rc::Rc;

use embassy_futures::select::{Either, select};
use redlock_core::mock::SeededEntropy;
use redlock_core::{
    AcquireError, Clock, ExtendError, HoldError, Lease, LossCause, Options, Redlock, Token,
};

use super::chance::Chance;
use super::clock::Moment;
use super::cut::{Cut, cut};
use super::fault::Kind;
use super::history::{Call, End, KEYS, Task, What};
use super::transport::{LocalClock, Wire, WireError};
use super::world::World;

/// The most nodes that a world has.
pub(crate) const MAX: usize = 7;

/// The lock under test: the shipping code.
pub(crate) type Lock = Redlock<Wire, LocalClock, SeededEntropy, MAX>;

type Key = &'static str;

/// A task that uses the lock.
pub(crate) struct User {
    pub(crate) world: Rc<World>,
    pub(crate) task: Task,
    pub(crate) lock: Lock,
    pub(crate) chance: Chance,
    /// It takes one of them for each thing it does.
    pub(crate) options: Vec<Options>,
    /// With these nobody is left without the lock when nothing goes wrong.
    pub(crate) calm: Options,
    pub(crate) keys: usize,
    pub(crate) steps: u64,
    /// Acquires made by this task whose token is not done with.
    pub(crate) open: Vec<(usize, usize)>,
    /// The tokens of its leases.
    pub(crate) held: Vec<usize>,
    /// From this moment on nothing goes wrong any more.
    pub(crate) calm_at: Moment,
    /// From this moment on nothing is left of what went wrong.
    pub(crate) clear_at: Moment,
    /// Whether it takes every lock once more then.
    pub(crate) comes_back: bool,
}

impl User {
    /// Does one thing after the other, then takes every lock once more when all is calm.
    pub(crate) async fn live(mut self) {
        self.rest().await;
        for _ in 0..self.steps {
            if self.moment() >= self.calm_at {
                break;
            }
            self.change_options();
            match self.chance.below(12) {
                0..=5 => self.visit().await,
                6 | 7 => self.hold().await,
                8 => self.keep().await,
                9 => self.give_up_acquiring().await,
                10 => self.tidy().await,
                _ => self.rest().await,
            }
        }
        if self.comes_back {
            self.come_back().await;
        }
    }

    /// Takes a lock, stays for a while, perhaps longer than the TTL, and gives it back, perhaps.
    async fn visit(&mut self) {
        let key = self.chance.index(self.keys);
        let cut = self.draw_cut(16);
        let Some(mut lease) = self.acquire(key, cut).await else {
            return;
        };
        for _ in 0..self.chance.below(3) {
            self.rest().await;
            if self.chance.one_in(2) {
                self.change_options();
            }
            if !self.extend(key, &mut lease).await {
                break;
            }
        }
        if self.chance.one_in(8) {
            self.visit_another(key).await;
        }
        if self.chance.one_in(2) {
            self.rest().await;
        }
        if self.chance.one_in(8) {
            // Nobody gives it back: it is held until it ends.
            self.count(Kind::ForgottenLease);
            self.forget(lease.token());
        } else {
            self.release(key, lease).await;
        }
    }

    /// Those that are out keep their TTL.
    fn change_options(&mut self) {
        let options = self.chance.pick(&self.options);
        self.lock.set_options(options);
    }

    /// Takes a second lock while it has the first one.
    async fn visit_another(&mut self, first: usize) {
        let key = (first + 1) % self.keys;
        if key == first {
            return;
        }
        let cut = self.draw_cut(4);
        if let Some(lease) = self.acquire(key, cut).await {
            self.release(key, lease).await;
        }
    }

    async fn give_up_acquiring(&mut self) {
        let key = self.chance.index(self.keys);
        let cut = self.draw_cut(1);
        if let Some(lease) = self.acquire(key, cut).await {
            self.release(key, lease).await;
        } else if self.chance.one_in(2) {
            self.tidy().await;
        }
    }

    async fn acquire(&mut self, key: usize, end: Cut) -> Option<Lease<Key>> {
        let call = if self.chance.one_in(3) {
            Call::TryAcquire { key }
        } else {
            Call::Acquire { key }
        };
        self.acquire_by(call, key, end).await
    }

    async fn acquire_by(&mut self, call: Call, key: usize, end: Cut) -> Option<Lease<Key>> {
        let rounds = 2 * self.lock.options().round_time();
        let clock = self.lock.clock().clone();
        let result = if matches!(call, Call::TryAcquire { .. }) {
            self.begins(call, rounds);
            cut(self.lock.try_acquire(KEYS[key]), end, &clock).await
        } else {
            self.begins(call, rounds + self.lock.options().wait_time());
            cut(self.lock.acquire(KEYS[key]), end, &clock).await
        };
        let (lease, end) = match result {
            Some(Ok(lease)) => (Some(lease), End::Done),
            Some(Err(error)) => (None, failure(&error)),
            None => (None, End::Dropped),
        };
        if let Some(lease) = &lease {
            self.granted(key, lease);
        }
        self.ends(call, end);
        lease
    }

    /// Whether the lease is still worth something.
    async fn extend(&mut self, key: usize, lease: &mut Lease<Key>) -> bool {
        let call = Call::Extend { key };
        self.begins(call, self.lock.options().round_time());
        let end = self.draw_cut(16);
        let clock = self.lock.clock().clone();
        let until = lease.valid_until();
        let result = cut(self.lock.extend(lease), end, &clock).await;
        let token = *lease.token();
        if lease.valid_until() != until {
            extended(&self.world, self.task, key, lease);
        }
        let end = match result {
            Some(Ok(())) => End::Done,
            Some(Err(ExtendError::Unreachable(_))) => End::Unreachable,
            Some(Err(ExtendError::Lost(_))) => End::Lost,
            Some(Err(ExtendError::TooLate(_))) => End::TooLate,
            Some(Err(_)) => End::Expired,
            None => End::Dropped,
        };
        if end == End::Lost {
            self.says(|task, token| What::CalledLost { task, key, token }, &token);
        }
        let is_over = matches!(end, End::Lost | End::TooLate | End::Expired);
        if is_over {
            self.says(|task, token| What::Over { task, key, token }, &token);
        }
        self.ends(call, end);
        !is_over
    }

    async fn release(&mut self, key: usize, lease: Lease<Key>) {
        let call = Call::Release { key };
        let token = *lease.token();
        let number = self.world.look().number_of(&token);
        self.begins(call, self.lock.options().round_time());
        self.says(|task, token| What::Over { task, key, token }, &token);
        let end = self.draw_cut(8);
        if end == Cut::Polls(0) {
            self.forget(&token);
        }
        self.held.retain(|held| *held != number);
        let clock = self.lock.clock().clone();
        let result = cut(self.lock.release(lease), end, &clock).await;
        self.ends(call, result.map_or(End::Dropped, |_| End::Done));
    }

    async fn hold(&mut self) {
        let key = self.chance.index(self.keys);
        let call = Call::Hold { key };
        let rests: Vec<_> = (0..self.chance.below(4))
            .map(|_| self.draw_rest())
            .collect();
        let options = self.lock.options();
        // The work is stopped in time, or is over by itself; then the lock is released.
        let work: Duration = rests.iter().sum();
        let bound = options.wait_time() + 3 * options.round_time() + work;
        self.begins(call, bound);
        let end = self.draw_cut(6);
        let clock = self.lock.clock().clone();
        let (world, task) = (Rc::clone(&self.world), self.task);
        let worked = Cell::new(0);
        let work = async |lease: &Lease<Key>| {
            let work = Work::begin(&world, task, key, lease);
            worked.set(work.token);
            for rest in &rests {
                clock.sleep_until(clock.now().saturating_add(*rest)).await;
                // Work may keep the process busy, past the end of the validity as well.
                world.look().touch(task.client);
            }
        };
        let result = cut(self.lock.hold(KEYS[key], work), end, &clock).await;
        let end = match &result {
            Some(Ok(())) => End::Done,
            Some(Err(HoldError::NotAcquired(error))) => failure(error),
            Some(Err(HoldError::Lost(cause))) => loss(cause),
            Some(Err(_)) => End::Lost,
            None => End::Dropped,
        };
        let token = worked.get();
        match end {
            End::Lost => self.tell(What::CalledLost { task, key, token }),
            End::Done => self.tell(What::CalledDone { task, key, token }),
            _ => (),
        }
        self.ends(call, end);
    }

    /// Keeps a lease for some time, and gives it back.
    async fn keep(&mut self) {
        let key = self.chance.index(self.keys);
        let Some(mut lease) = self.acquire(key, Cut::Never).await else {
            return;
        };
        let call = Call::Keep { key };
        let token = *lease.token();
        let rest = self.draw_rest() + self.draw_rest();
        let clock = self.lock.clock().clone();
        self.begins(call, rest);
        let until = clock.now().saturating_add(rest);
        let (world, task) = (Rc::clone(&self.world), self.task);
        let kept = self
            .lock
            .keep(&mut lease, |lease| extended(&world, task, key, lease));
        let end = match select(kept, clock.sleep_until(until)).await {
            Either::First(cause) => loss(&cause),
            Either::Second(()) => End::Done,
        };
        if end == End::Lost {
            self.says(|task, token| What::CalledLost { task, key, token }, &token);
        }
        self.ends(call, end);
        self.release(key, lease).await;
    }

    async fn tidy(&mut self) {
        self.begins(Call::Tidy, self.lock.options().round_time());
        let end = self.draw_cut(6);
        let clock = self.lock.clock().clone();
        let result = cut(self.lock.tidy(), end, &clock).await;
        self.ends(Call::Tidy, result.map_or(End::Dropped, |()| End::Done));
    }

    async fn rest(&mut self) {
        let rest = self.draw_rest();
        let clock = self.lock.clock().clone();
        clock.sleep_until(clock.now().saturating_add(rest)).await;
    }

    /// Takes every lock once, as promised to whoever waits for long enough.
    async fn come_back(&mut self) {
        let clear_at = self.world.look().reading(self.task.client, self.clear_at);
        self.lock.clock().clone().sleep_until(clear_at).await;
        self.lock.set_options(self.calm);
        self.tidy().await;
        for key in 0..self.keys {
            let call = Call::CalmAcquire { key };
            if let Some(lease) = self.acquire_by(call, key, Cut::Never).await {
                self.release(key, lease).await;
            }
        }
    }

    /// One call in so many is dropped somewhere.
    fn draw_cut(&mut self, odds: u64) -> Cut {
        if !self.chance.one_in(odds) {
            return Cut::Never;
        }
        match self.chance.below(8) {
            0 => {
                self.count(Kind::NeverPolled);
                Cut::Polls(0)
            }
            1..=5 => Cut::Polls(self.chance.between(1, 12)),
            _ => Cut::At(self.lock.clock().now().saturating_add(self.draw_rest())),
        }
    }

    fn draw_rest(&mut self) -> Duration {
        let options = self.lock.options();
        let length = match self.chance.below(4) {
            0 => options.round_time(),
            1 => options.validity(),
            2 => options.validity() / 3,
            _ => options.validity() / 16,
        };
        let micros = u64::try_from(length.as_micros()).unwrap_or_default();
        Duration::from_micros(self.chance.about(micros))
    }

    fn moment(&self) -> Moment {
        self.world.look().moment_of(self.task.client)
    }

    fn granted(&mut self, key: usize, lease: &Lease<Key>) {
        let mut state = self.world.look();
        let token = state.number_of(lease.token());
        let until = state.end_of(self.task.client, lease.valid_until());
        let task = self.task;
        state.tell_of(
            task.client,
            What::Granted {
                task,
                key,
                token,
                until,
            },
        );
        self.held.push(token);
    }

    fn says(&self, what: impl FnOnce(Task, usize) -> What, token: &Token) {
        let number = self.world.look().number_of(token);
        self.tell(what(self.task, number));
    }

    fn tell(&self, what: What) {
        self.world.look().tell_of(self.task.client, what);
    }

    fn count(&self, kind: Kind) {
        self.world.look().count(kind);
    }

    /// The lease is given up without a word to the nodes: its token may stand until it expires.
    fn forget(&mut self, token: &Token) {
        let number = self.world.look().number_of(token);
        self.open.retain(|(_, open)| *open != number);
        self.held.retain(|held| *held != number);
    }

    fn begins(&self, call: Call, bound: Duration) {
        self.world.look().begin(self.task, call, bound);
    }

    /// Done with all tokens but those of leases, and one that a dropped future has left.
    fn ends(&mut self, call: Call, end: End) {
        let mut state = self.world.look();
        state.end(self.task, call, end);
        if end == End::Dropped {
            state.count(Kind::DroppedFuture);
        }
        let left = self.lock.abandoned().map(|token| state.number_of(token));
        state.take_attempts(self.task, &mut self.open);
        let client = self.task.client;
        self.open.retain(|(key, token)| {
            let is_wanted = Some(*token) == left || self.held.contains(token);
            if !is_wanted {
                state.nobody_wants(client, *key, *token);
            }
            is_wanted
        });
    }
}

/// The work under `hold`: it goes on until it is dropped.
struct Work {
    world: Rc<World>,
    task: Task,
    key: usize,
    token: usize,
}

impl Work {
    fn begin(world: &Rc<World>, task: Task, key: usize, lease: &Lease<Key>) -> Self {
        let world = Rc::clone(world);
        let mut state = world.look();
        let token = state.number_of(lease.token());
        let until = state.end_of(task.client, lease.valid_until());
        state.tell_of(
            task.client,
            What::Works {
                task,
                key,
                token,
                until,
            },
        );
        drop(state);
        Self {
            world,
            task,
            key,
            token,
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let Self {
            task, key, token, ..
        } = *self;
        let stops = What::Stops { task, key, token };
        self.world.look().tell_of(task.client, stops);
    }
}

fn extended(world: &World, task: Task, key: usize, lease: &Lease<impl AsRef<[u8]>>) {
    let mut state = world.look();
    let token = state.number_of(lease.token());
    let until = state.end_of(task.client, lease.valid_until());
    state.tell_of(
        task.client,
        What::Extended {
            task,
            key,
            token,
            until,
        },
    );
}

const fn failure(error: &AcquireError<WireError, MAX>) -> End {
    match error {
        AcquireError::Held(_) => End::Held,
        AcquireError::Unreachable(_) => End::Unreachable,
        AcquireError::TooLate(_) => End::TooLate,
        _ => End::Entropy,
    }
}

const fn loss(cause: &LossCause<WireError, MAX>) -> End {
    match cause {
        LossCause::Lost(_) => End::Lost,
        LossCause::Unreachable(_) => End::Unreachable,
        LossCause::ExtensionsSpent => End::ExtensionsSpent,
        _ => End::Expired,
    }
}
