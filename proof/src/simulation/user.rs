//! A task that uses the lock: whatever its chance says.

use core::time::Duration;
use std::rc::Rc;

use redlock_core::mock::SeededEntropy;
use redlock_core::{Clock, Lease, Options, Redlock, Transport};

use super::assumption::Assumption;
use super::chance::Chance;
use super::clock::Moment;
use super::cut::Cut;
use super::fault::Kind;
use super::history::{Call, Task};
use super::transport::LocalClock;
use super::world::World;

/// The most nodes that a world has.
pub(crate) const MAX: usize = 7;

/// The lock under test: the shipping code.
pub(crate) type Lock<T> = Redlock<T, LocalClock, SeededEntropy, MAX>;

pub(crate) type Key = &'static str;

pub(crate) struct User<T> {
    pub(crate) world: Rc<World>,
    pub(crate) task: Task,
    pub(crate) lock: Lock<T>,
    pub(crate) chance: Chance,
    /// It takes one of them for each thing it does.
    pub(crate) options: Vec<Options>,
    /// With these nobody is left without the lock when nothing goes wrong.
    pub(crate) calm: Options,
    pub(crate) keys: usize,
    /// How many things it does.
    pub(crate) steps: u64,
    /// The keys and tokens of its attempts that it is not done with.
    pub(crate) open: Vec<(usize, usize)>,
    /// The token of a lease whose keys live on after its release.
    pub(crate) left_to_expire: Option<usize>,
    /// The tokens of its leases.
    pub(crate) held: Vec<usize>,
    /// From this moment on nothing goes wrong any more.
    pub(crate) calm_at: Moment,
    /// From this moment on clients can restore what is left.
    pub(crate) restored_at: Moment,
    /// From this moment on nothing is left of what went wrong.
    pub(crate) clear_at: Moment,
    /// Whether it takes every lock once more then.
    pub(crate) comes_back: bool,
    /// Whether it takes one lock again and again with all others after that.
    pub(crate) rushes: bool,
    /// Whether it leaves leases to other processes, and takes theirs over.
    pub(crate) hands_over: bool,
    /// It does so now.
    pub(crate) is_back: bool,
}

impl<T: Transport> User<T> {
    pub(crate) async fn live(mut self) {
        self.rest().await;
        for _ in 0..self.steps {
            if self.world.look().moment_of(self.task.client) >= self.calm_at {
                break;
            }
            self.change_options();
            if self.hands_over && self.chance.one_in(3) {
                self.succeed().await;
                continue;
            }
            match self.chance.below(12) {
                0..=5 => self.visit().await,
                6 => self.work().await,
                7 => self.linger().await,
                8 => self.stay().await,
                9 => self.give_up().await,
                10 => self.release_abandoned().await,
                _ => self.rest().await,
            }
        }
        if self.comes_back {
            self.come_back().await;
        }
    }

    /// Takes a lock, stays for a while, perhaps longer than the TTL, and gives it back, perhaps.
    async fn visit(&mut self) {
        let key = self.draw_key();
        self.be_misled();
        let cut = self.draw_cut(16);
        if let Some(lease) = self.acquire(key, cut).await {
            self.stay_on(key, lease).await;
        }
    }

    /// Goes on with a lease of another process, if there is one.
    async fn succeed(&mut self) {
        let options = *self.lock.options();
        let handover = self.world.look().take_handover(self.task, options);
        let Some(handover) = handover else {
            return self.rest().await;
        };
        let key = handover.claim.key;
        if let Some(lease) = self.adopt(handover).await {
            self.stay_on(key, lease).await;
        }
    }

    /// Has the lease for a while, perhaps for longer than the TTL, and leaves it.
    async fn stay_on(&mut self, key: usize, mut lease: Lease<Key>) {
        self.act(key, &lease);
        for _ in 0..self.chance.below(3) {
            self.rest().await;
            self.act(key, &lease);
            if self.chance.one_in(2) || self.world.look().fails(Assumption::TodaysOptions) {
                // The lease that is out keeps its TTL.
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
        self.leave(key, lease).await;
    }

    /// Acts on what the lock protects, also when the lease is long over.
    fn act(&self, key: usize, lease: &Lease<Key>) {
        if lease.fence().is_some() {
            let claim = self.claim(key, lease);
            self.world.look().visit(claim);
        }
    }

    /// Takes some time for the nodes' time: fences do not rest on what clients believe. Often it is at the edge of
    /// the window, and often others propose the same.
    fn be_misled(&mut self) {
        let (Some(fencing), Some(offset)) =
            (self.lock.options().fencing(), self.lock.clock_offset())
        else {
            return;
        };
        let broken = self.world.look().broken();
        let is_wild = broken == Some(Assumption::Ceiling);
        // What is broken shows only where two propose the same, or what is far away.
        let is_equal = matches!(broken, Some(Assumption::EqualFences | Assumption::Strict));
        if self.is_back || !(is_equal || self.chance.one_in(3)) {
            return;
        }
        self.world.look().count(Kind::WrongProposal);
        let window = i64::try_from(fencing.window().as_micros()).unwrap_or(i64::MAX);
        let ours = i64::try_from(self.lock.clock().now().as_micros()).unwrap_or_default();
        let by = match self.chance.below(4) {
            _ if is_wild => 60_000_000,
            _ if is_equal => window - (ours + offset).rem_euclid(window),
            0 => window,
            1 => 1 - window,
            2 => window - 500,
            _ => window - (ours + offset).rem_euclid(window),
        };
        self.lock.set_clock_offset(Some(offset + by));
    }

    /// Takes a second lock while it has the first one.
    async fn visit_another(&mut self, first: usize) {
        let key = (first + 1) % self.keys;
        if key == first {
            return;
        }
        let cut = self.draw_cut(4);
        if let Some(lease) = self.acquire(key, cut).await {
            self.leave(key, lease).await;
        }
    }

    /// Gives a lock back, leaves it to another process, or just forgets it: then it is held until it ends.
    async fn leave(&mut self, key: usize, lease: Lease<Key>) {
        if self.chance.one_in(8) {
            self.world.look().count(Kind::ForgottenLease);
            self.forget(lease.token());
        } else if self.hands_over && self.chance.one_in(2) {
            self.hand_over(key, &lease);
        } else {
            self.release(key, lease).await;
        }
    }

    async fn work(&mut self) {
        let key = self.draw_key();
        let count = self.chance.below(4);
        let rests: Vec<_> = (0..count).map(|_| self.draw_rest()).collect();
        self.hold(key, &rests).await;
    }

    async fn stay(&mut self) {
        let key = self.draw_key();
        if let Some(lease) = self.acquire(key, Cut::Never).await {
            let rest = self.draw_rest() + self.draw_rest();
            let lease = self.keep(key, lease, rest).await;
            self.release(key, lease).await;
        }
    }

    /// Keeps, extends and takes other options on one lease, in any order, and perhaps just drops it.
    async fn linger(&mut self) {
        let key = self.draw_key();
        let Some(mut lease) = self.acquire(key, Cut::Never).await else {
            return;
        };
        for _ in 0..self.chance.between(2, 5) {
            self.act(key, &lease);
            match self.chance.below(4) {
                0 => self.change_options(),
                1 => {
                    let rest = self.draw_rest();
                    lease = self.keep(key, lease, rest).await;
                }
                2 => self.rest().await,
                _ if self.extend(key, &mut lease).await => (),
                _ => break,
            }
        }
        self.leave(key, lease).await;
    }

    async fn give_up(&mut self) {
        let key = self.draw_key();
        let cut = self.draw_cut(1);
        if let Some(lease) = self.acquire(key, cut).await {
            self.release(key, lease).await;
        } else if self.chance.one_in(2) {
            self.release_abandoned().await;
        }
    }

    async fn rest(&mut self) {
        let rest = self.draw_rest();
        let clock = self.lock.clock().clone();
        clock.sleep_until(clock.now().saturating_add(rest)).await;
    }

    /// Takes every lock once, as promised to whoever waits for long enough.
    async fn come_back(&mut self) {
        self.is_back = true;
        self.lock.set_options(self.calm);
        self.restore().await;
        self.sleep_until(self.clear_at).await;
        self.release_abandoned().await;
        for key in 0..self.keys {
            let call = Call::CalmAcquire(key);
            if let Some(lease) = self.acquire_by(call, key, Cut::Never).await {
                self.release(key, lease).await;
            }
        }
        if self.rushes {
            self.rush().await;
        }
    }

    /// Wants one lock again and again, as all others do.
    async fn rush(&mut self) {
        for _ in 0..self.chance.between(2, 6) {
            let cut = if self.chance.one_in(8) {
                let wait = self.draw_stay() + self.draw_stay();
                Cut::At(self.lock.clock().now().saturating_add(wait))
            } else {
                Cut::Never
            };
            if let Some(lease) = self.acquire_by(Call::Acquire(0), 0, cut).await {
                let stay = self.draw_stay();
                self.stay_for(stay).await;
                if self.chance.one_in(16) {
                    self.world.look().count(Kind::ForgottenLease);
                    self.forget(lease.token());
                } else {
                    self.release(0, lease).await;
                }
            } else {
                self.release_abandoned().await;
            }
            if self.chance.one_in(3) {
                let stay = self.draw_stay();
                self.stay_for(stay).await;
            }
        }
    }

    /// Milliseconds.
    fn draw_stay(&mut self) -> Duration {
        let longest = self.chance.pick(&[1, 1, 2_000, 20_000, 200_000]);
        Duration::from_micros(self.chance.below(longest))
    }

    async fn stay_for(&self, stay: Duration) {
        let clock = self.lock.clock().clone();
        clock.sleep_until(clock.now().saturating_add(stay)).await;
    }

    /// Has the nodes that have lost their guard records begin their quarantine, so that nobody waits for it later.
    async fn restore(&mut self) {
        if self.calm.fencing().is_none() {
            return;
        }
        self.sleep_until(self.restored_at).await;
        for _ in 0..3 {
            let call = Call::TryAcquire(0);
            if let Some(lease) = self.acquire_by(call, 0, Cut::Never).await {
                self.release(0, lease).await;
            }
        }
    }

    async fn sleep_until(&self, moment: Moment) {
        let deadline = self.world.look().reading(self.task.client, moment);
        self.lock.clock().clone().sleep_until(deadline).await;
    }

    fn change_options(&mut self) {
        let options = self.chance.pick(&self.options);
        self.lock.set_options(options);
    }

    fn draw_key(&mut self) -> usize {
        self.chance.index(self.keys)
    }

    /// One call in so many is dropped somewhere, as long as things go wrong.
    pub(super) fn draw_cut(&mut self, odds: u64) -> Cut {
        if self.is_back || !self.chance.one_in(odds) {
            return Cut::Never;
        }
        match self.chance.below(8) {
            0 => Cut::Polls(0),
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
}
