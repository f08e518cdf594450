//! Guards of several processes that do at random what an application may do, in worlds made from seeds, in virtual time. The
//! simulation of `redlock-proof` runs the core; this runs guards, keepers, queues for keys and adoptions.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Mutex;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use redlock_std::{
    Failure, Fence, Fencing, Guard, Handover, MemoryNode, Options, Redlock, Token, TransportError,
};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

const TTL: Duration = Duration::from_millis(400);

/// How far the clocks that do not jump may be from each other.
const WINDOW: Duration = Duration::from_millis(10);

/// How far a clock jumps at most.
const STEP: Duration = Duration::from_millis(200);

const KEYS: [&str; 2] = ["crane", "dock"];

/// How many tasks a process has, and how often each of them acquires a lock.
const TASKS: usize = 3;
const TURNS: usize = 12;

/// One process may adopt the leases of all others.
const ADOPTER: usize = 0;

#[test]
fn no_two_guards_hold_a_lock_at_once_whatever_their_tasks_do() {
    let seeds = std::env::var("STORM_SEEDS").map_or(150, |seeds| seeds.parse().unwrap());
    let mut all = Tally::default();
    for seed in 0..seeds {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().start_paused(true).build();
        let tally = LocalSet::new().block_on(&runtime.unwrap(), World::run(seed));
        all.acquired += tally.acquired;
        all.adopted += tally.adopted;
        all.lost += tally.lost;
    }
    assert!(
        all.acquired > 50 * seeds && all.adopted > seeds && all.lost > seeds,
        "{all:?}"
    );
}

#[derive(Debug, Clone, Copy, Default)]
struct Tally {
    acquired: u64,
    adopted: u64,
    lost: u64,
}

struct World {
    seed: u64,
    nodes: [MemoryNode; 5],
    processes: Vec<Redlock>,
    min_hold: Duration,
    is_fenced: bool,
    faults: Faults,
    judge: Mutex<Judge>,
}

/// What nodes do besides to hang. Not both: no clock may be stepped forward in a quarantine.
#[derive(Debug, Clone, Copy)]
enum Faults {
    /// They lose their keys, or restart.
    Losses,
    Jumps,
}

#[derive(Default)]
struct Judge {
    /// The last lease of each lock.
    last: HashMap<Vec<u8>, Tenure>,
    /// The highest fence of each lock.
    fences: HashMap<Vec<u8>, Fence>,
    /// What is left to be adopted, perhaps once more.
    handovers: Vec<Handover>,
    /// Tokens of leases that were adopted and released: they must not be adopted again.
    released: Vec<Token>,
    guards: u64,
    tally: Tally,
}

#[derive(Clone, Copy)]
struct Tenure {
    token: Token,
    /// The number of its guard.
    guard: u64,
    from: redlock_std::Instant,
    is_adopted: bool,
    /// What its guard said last.
    until: redlock_std::Instant,
    /// Its task does not use it any more.
    is_over: bool,
    /// No other client may have the lock before.
    kept_until: redlock_std::Instant,
}

/// How many releases were dropped.
fn given_up(redlock: &Redlock) -> usize {
    let counts = redlock.warnings().into_iter().map(|warning| {
        let Failure::Transport(TransportError::ReleasesGivenUp(count)) = warning.failure() else {
            panic!("{warning}");
        };
        usize::try_from(*count).unwrap()
    });
    counts.sum()
}

impl World {
    async fn run(seed: u64) -> Tally {
        let mut random = Rng::with_seed(seed);
        let nodes = MemoryNode::array();
        let is_fenced = random.bool();
        let min_hold = match random.u8(..3) {
            0 => TTL / 4,
            _ => Duration::ZERO,
        };
        let fencing = Fencing::new(WINDOW).unwrap().with_max_ttl(TTL).unwrap();
        let fencing = fencing.with_step_back(STEP * 2).unwrap();
        let processes = (0..random.usize(2..4)).map(|_| {
            let options = Options::new(TTL * random.u32(4..=8) / 8).unwrap();
            let options = match is_fenced {
                true => { options.fenced(fencing).unwrap() }
                    .tolerate_clock_jumps(true, WINDOW)
                    .unwrap(),
                false => options.max_ttl(TTL).unwrap(),
            };
            let options = options.min_hold(min_hold).unwrap().wait(TTL * 400);
            Redlock::in_memory(&nodes, options.queue(random.u8(..4) > 0)).unwrap()
        });
        let world = Rc::new(Self {
            seed,
            processes: processes.collect(),
            nodes,
            min_hold,
            is_fenced,
            faults: random.choice([Faults::Losses, Faults::Jumps]).unwrap(),
            judge: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        for process in 0..world.processes.len() {
            for _ in 0..TASKS {
                let (world, random) = (Rc::clone(&world), random.fork());
                tasks.spawn_local(async move { world.task(process, random).await });
            }
        }
        let faults = {
            let (world, random) = (Rc::clone(&world), random.fork());
            tokio::task::spawn_local(async move { world.faults(random).await })
        };
        while let Some(ended) = tasks.join_next().await {
            ended.unwrap();
        }
        faults.abort();
        world.nodes.iter().for_each(MemoryNode::resume);
        for redlock in &world.processes {
            // But for those that had no room in a node that hung.
            let unanswered = redlock.close().await;
            assert_eq!(unanswered, given_up(redlock), "seed {seed}");
        }
        sleep(TTL * 2).await;
        let left: usize = world.nodes.iter().map(MemoryNode::lock_count).sum();
        assert_eq!(left, 0, "seed {seed}: keys are left");
        world.judge.lock().unwrap().tally
    }

    /// Two of the five nodes hang, are slow or lose their keys for a while.
    async fn faults(&self, mut random: Rng) {
        let mut is_dead = [false; 2];
        loop {
            for (index, node) in self.nodes[..2].iter().enumerate() {
                if std::mem::take(&mut is_dead[index]) {
                    node.restart();
                }
                node.resume();
                node.set_latency(Duration::from_micros(random.u64(..20_000)));
                match (self.faults, random.u8(..12)) {
                    (_, 0..4) => node.hang(),
                    (Faults::Losses, 4) => {
                        node.kill();
                        is_dead[index] = true;
                    }
                    (Faults::Losses, 5) => node.restart(),
                    (Faults::Losses, 6) => node.restart_with_data(),
                    // Plain clients do not notice it.
                    (Faults::Losses, 7) if self.is_fenced => node.flush(),
                    // Of plain locks, keys expire too early.
                    (Faults::Jumps, 4..8) if self.is_fenced => {
                        let step = i64::try_from(STEP.as_micros()).unwrap();
                        node.set_clock_step(random.i64(-step..step));
                    }
                    _ => {}
                }
            }
            for node in &self.nodes[2..] {
                node.set_latency(Duration::from_micros(random.u64(..5_000)));
            }
            sleep(Duration::from_millis(random.u64(1..600))).await;
        }
    }

    async fn task(&self, process: usize, mut random: Rng) {
        let redlock = &self.processes[process];
        for _ in 0..TURNS {
            sleep(Duration::from_millis(random.u64(..40))).await;
            if random.u8(..8) == 0 {
                self.work(redlock, &mut random).await;
                continue;
            }
            let found = match self.handover(process, &mut random) {
                Some(handover) => self.adopt(redlock, handover, &mut random).await,
                None => self.acquire(redlock, &mut random).await,
            };
            if let Some((guard, number)) = found {
                self.hold(guard, number, &mut random).await;
            }
        }
    }

    async fn acquire(&self, redlock: &Redlock, random: &mut Rng) -> Option<(Guard, u64)> {
        let key = random.choice(KEYS)?;
        let acquired = match random.u8(..6) {
            0 => redlock.try_acquire(key).await.ok(),
            1 => timeout(moment(random), redlock.acquire(key))
                .await
                .ok()?
                .ok(),
            2 if random.bool() => now_and_then(redlock.acquire(key), random).await.ok(),
            _ => redlock.acquire(key).await.ok(),
        };
        let guard = acquired?;
        let number = self.begins(&guard, None);
        Some((guard, number))
    }

    /// `hold`, whose future may be dropped half-way.
    async fn work(&self, redlock: &Redlock, random: &mut Rng) {
        let (key, limit) = (random.choice(KEYS).unwrap(), moment(random) * 20);
        let held = redlock.hold(key, async |guard| {
            let work = Work {
                world: self,
                guard,
                number: self.begins(guard, None),
            };
            for _ in 0..random.u8(..6) {
                self.check(guard, work.number);
                sleep(moment(random) / 2).await;
            }
        });
        drop(timeout(limit, held).await);
    }

    fn handover(&self, process: usize, random: &mut Rng) -> Option<Handover> {
        let handovers = &mut self.judge.lock().unwrap().handovers;
        let is_taken = process == ADOPTER && !handovers.is_empty();
        is_taken.then(|| handovers.swap_remove(random.usize(..handovers.len())))
    }

    /// Tries it again while it may succeed. The lease is left for another task, if the future is dropped, or to be adopted once more
    /// when the validity is over.
    async fn adopt(
        &self,
        redlock: &Redlock,
        handover: Handover,
        random: &mut Rng,
    ) -> Option<(Guard, u64)> {
        let leave = || self.judge.lock().unwrap().handovers.push(handover.clone());
        if random.u8(..4) == 0 {
            // Another task of this process tries it too.
            leave();
        }
        loop {
            if self
                .judge
                .lock()
                .unwrap()
                .released
                .contains(handover.token())
            {
                return None;
            }
            let adopt = redlock.adopt(&handover);
            let adopted = match random.u8(..4) {
                0 => timeout(moment(random) / 20, adopt).await,
                1 if random.bool() => Ok(now_and_then(adopt, random).await),
                _ => Ok(adopt.await),
            };
            match adopted {
                Ok(Ok(guard)) => {
                    let number = self.begins(&guard, Some(*handover.token()));
                    if random.bool() {
                        leave();
                    }
                    return Some((guard, number));
                }
                Ok(Err(error)) if error.is_retryable() => sleep(moment(random) / 20).await,
                Ok(Err(_)) => return None,
                Err(_) => {
                    leave();
                    return None;
                }
            }
        }
    }

    async fn hold(&self, mut guard: Guard, number: u64, random: &mut Rng) {
        for _ in 0..random.u8(..6) {
            self.check(&guard, number);
            match random.u8(..9) {
                0 => guard.keep_alive(),
                1 => drop(guard.extend().await),
                2 => drop(timeout(moment(random) / 20, guard.extend()).await),
                3 => drop(timeout(moment(random), guard.lost()).await),
                4 => sleep(moment(random) * 2).await,
                5 if random.bool() => drop(now_and_then(guard.extend(), random).await),
                _ => sleep(moment(random) / 10).await,
            }
        }
        self.check(&guard, number);
        let how = random.choice(How::ALL).unwrap();
        self.ends(&guard, number, how);
        match how {
            How::Drop => drop(guard),
            How::DropRelease => drop(timeout(moment(random) / 20, guard.release()).await),
            How::HandOver => self.leave(guard),
            How::ReleaseNow => drop(guard.release_now().await),
            How::LateRelease => drop(now_and_then(guard.release(), random).await),
            How::Release => drop(guard.release().await),
        }
    }

    fn leave(&self, guard: Guard) {
        let handover = guard.hand_over();
        self.judge.lock().unwrap().handovers.push(handover);
    }

    /// The guard was granted, or has adopted the lease with this token.
    fn begins(&self, guard: &Guard, adopted: Option<Token>) -> u64 {
        let mut judge = self.judge.lock().unwrap();
        let judge = &mut *judge;
        let (now, token) = (now(guard), *guard.token());
        if let Some(last) = judge.last.get(guard.key()) {
            assert!(last.is_over || last.until <= now, "{self}: a second holder");
            match adopted {
                Some(_) => assert_eq!(
                    last.token, token,
                    "{self}: another client had the lock since"
                ),
                None => assert!(
                    last.kept_until <= now,
                    "{self}: before the min_hold is over"
                ),
            }
        }
        if let Some(fence) = guard.fence() {
            let last = judge.fences.insert(guard.key().to_vec(), fence);
            let is_later = last.is_none_or(|last| match adopted {
                Some(_) => last == fence,
                None => last < fence,
            });
            assert!(is_later, "{self}: {fence} after {last:?}");
        }
        match adopted {
            Some(_) => judge.tally.adopted += 1,
            None => judge.tally.acquired += 1,
        }
        judge.guards += 1;
        let tenure = Tenure {
            token,
            guard: judge.guards,
            from: now,
            is_adopted: adopted.is_some(),
            until: guard.valid_until(),
            is_over: false,
            kept_until: now,
        };
        judge.last.insert(guard.key().to_vec(), tenure);
        judge.guards
    }

    fn check(&self, guard: &Guard, number: u64) {
        let mut judge = self.judge.lock().unwrap();
        let last = judge.last.get_mut(guard.key()).unwrap();
        let is_last = last.guard == number;
        if is_last {
            last.until = guard.valid_until();
        }
        assert!(
            is_last || !guard.is_valid(),
            "{self}: valid, although another guard is"
        );
        if !guard.is_valid() {
            judge.tally.lost += 1;
        }
    }

    /// The task does not use the guard any more.
    fn ends(&self, guard: &Guard, number: u64, how: How) {
        let mut judge = self.judge.lock().unwrap();
        let judge = &mut *judge;
        if how != How::HandOver && guard.is_valid() {
            judge.released.push(*guard.token());
        }
        let last = judge.last.get_mut(guard.key()).unwrap();
        if last.guard != number {
            return;
        }
        last.is_over = true;
        let keeps = [How::Drop, How::Release].contains(&how);
        if keeps && guard.is_valid() && !last.is_adopted {
            // Less the drift, which the nodes might have.
            last.kept_until = last.from.saturating_add(self.min_hold * 9 / 10);
        }
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}, min_hold {:?}", self.seed, self.min_hold)
    }
}

/// The work of a `hold`, which is over when it is dropped.
struct Work<'a> {
    world: &'a World,
    guard: &'a Guard,
    number: u64,
}

impl Drop for Work<'_> {
    fn drop(&mut self) {
        self.world.ends(self.guard, self.number, How::Release);
    }
}

/// How a task ends its use of a guard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Drop,
    /// Drops the future of the release.
    DropRelease,
    HandOver,
    ReleaseNow,
    /// Polls the future of the release now and then.
    LateRelease,
    Release,
}

impl How {
    const ALL: [Self; 6] = [
        Self::Drop,
        Self::DropRelease,
        Self::HandOver,
        Self::ReleaseNow,
        Self::LateRelease,
        Self::Release,
    ];
}

/// A task that is not polled for a while between two polls of `future`, as on a runtime that other tasks keep busy.
async fn now_and_then<F: Future>(future: F, random: &mut Rng) -> F::Output {
    let mut future = pin!(future);
    loop {
        let polled = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return output;
        }
        if random.u8(..5) == 0 {
            // Longer than a task that is not polled keeps its turn.
            sleep(moment(random) * 12).await;
        } else {
            tokio::task::yield_now().await;
            sleep(Duration::from_micros(random.u64(..2_000))).await;
        }
    }
}

/// Mostly shorter than a TTL.
fn moment(random: &mut Rng) -> Duration {
    Duration::from_micros(random.u64(..500_000))
}

/// The time on the clock of the guard, or earlier.
fn now(guard: &Guard) -> redlock_std::Instant {
    guard.valid_until().saturating_sub(guard.remaining())
}
