//! Tasks that share one lock and run in two executors: one of high priority, in an interrupt, and that of the thread mode.

use core::cell::{Cell, RefCell};
use core::pin::Pin;
use core::task::{Context, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Wake;

use embassy_sync::blocking_mutex::raw::CriticalSectionRawMutex;
use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::{Clock, Entropy, Redlock};
use redlock_embassy::{Options, Shared};

use crate::world::ms;

type Lock<'a> =
    Shared<CriticalSectionRawMutex, &'a MockNode<&'a MockClock>, &'a MockClock, SeededEntropy, 3>;

/// How long a turn lasts in these tests.
const TURN: Duration = ms(4);

#[test]
fn all_tasks_of_two_executors_come_to_their_turn_however_many_wait() {
    for (low, high) in [
        (1, 1),
        (1, 7),
        (1, 8),
        (1, 9),
        (1, 10),
        (1, 30),
        (8, 1),
        (9, 1),
        (20, 1),
        (20, 20),
        (40, 0),
        (0, 40),
    ] {
        with_lock(|clock, _, lock| {
            let mut executors = Executors::new(clock);
            for number in 0..low + high {
                let priority = if number < low { LOW } else { HIGH };
                executors.spawn(priority, async move {
                    // Those of high priority ask while one of low priority has its turn.
                    sleep(clock, priority * ms(1)).await;
                    take_a_turn(clock, lock).await;
                });
            }
            executors.run();
            // A task that finds no place looks every 10 ms.
            let limit = (low + high) * TURN + ms(100);
            assert!(now(clock) < limit, "{low} and {high} took {:?}", now(clock));
        });
    }
}

#[test]
fn a_task_of_low_priority_goes_before_those_of_high_priority_that_asked_later() {
    for busy in [1, 2, 3, 6, 7] {
        with_lock(|clock, _, lock| {
            let turns = &Cell::new(0);
            let mut executors = Executors::new(clock);
            for _ in 0..busy {
                executors.spawn(HIGH, async move {
                    while now(clock) < ms(2_000) {
                        take_a_turn(clock, lock).await;
                        turns.set(turns.get() + 1);
                    }
                });
            }
            executors.spawn(LOW, async move {
                while now(clock) < ms(2_000) {
                    sleep(clock, ms(3)).await;
                    let before = turns.get();
                    take_a_turn(clock, lock).await;
                    let meanwhile = turns.get() - before;
                    assert!(meanwhile <= busy, "{meanwhile} turns of {busy} tasks");
                }
            });
            executors.run();
        });
    }
}

#[test]
fn no_task_starves_beside_many_that_take_turns_without_a_pause() {
    for (low, high) in [(1, 8), (1, 12), (1, 30), (12, 12), (40, 0)] {
        with_lock(|clock, _, lock| {
            let turns = &RefCell::new(vec![0_u32; (low + high) as usize]);
            let mut executors = Executors::new(clock);
            for (number, _) in turns.borrow().iter().enumerate() {
                let priority = if number < low as usize { LOW } else { HIGH };
                executors.spawn(priority, async move {
                    while now(clock) < ms(5_000) {
                        take_a_turn(clock, lock).await;
                        turns.borrow_mut()[number] += 1;
                    }
                });
            }
            executors.run();
            let turns = turns.borrow();
            let (least, all) = (turns.iter().min().unwrap(), turns.iter().sum::<u32>());
            let fair = all / (low + high);
            assert!(least * 2 > fair, "{low} and {high}: {turns:?}");
            // The lock is not idle.
            assert!(all * TURN > ms(5_000) * 3 / 4, "{low} and {high}: {all}");
        });
    }
}

#[test]
fn a_lease_of_low_priority_is_extended_beside_busy_tasks_of_high_priority() {
    for busy in [1, 3, 12] {
        with_lock(|clock, nodes, lock| {
            nodes.iter().for_each(|node| node.set_latency(TURN));
            let mut executors = Executors::new(clock);
            executors.spawn(LOW, async move {
                let hold = lock.hold("dock-7", async |_| sleep(clock, ms(15_000)).await);
                hold.await.unwrap();
            });
            for number in 0..busy {
                executors.spawn(HIGH, async move {
                    while now(clock) < ms(16_000) {
                        let lease = lock.acquire(format!("dock-8-{number}")).await.unwrap();
                        lock.release(lease).await;
                    }
                });
            }
            executors.run();
        });
    }
}

#[test]
fn a_future_that_is_no_longer_polled_delays_the_others_once() {
    for forgotten in 1..=12 {
        with_lock(|clock, _, lock| {
            let turn = clock.run(lock.turn());
            let mut futures: Vec<_> = (0..forgotten).map(|_| Box::pin(lock.turn())).collect();
            for future in &mut futures {
                let poll = future
                    .as_mut()
                    .poll(&mut Context::from_waker(Waker::noop()));
                assert!(poll.is_pending());
            }
            drop(turn);
            let wait = || {
                let begun = clock.now();
                drop(clock.run(lock.turn()));
                clock.now().saturating_duration_since(begun)
            };
            // Ten milliseconds for each that had a place, and for one of the others.
            assert_eq!(wait(), forgotten.min(9) * ms(10));
            assert_eq!(wait(), ms(0));
            drop(futures);
            assert_eq!(wait(), ms(0));
        });
    }
}

#[test]
fn a_task_that_was_passed_goes_first_when_it_is_polled_again() {
    with_lock(|clock, _, lock| {
        let turn = clock.run(lock.turn());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut paused = Box::pin(lock.turn());
        let mut poll_paused = || {
            let mut context = Context::from_waker(&waker);
            paused.as_mut().poll(&mut context)
        };
        assert!(poll_paused().is_pending());
        drop(turn);
        woken.0.store(false, Ordering::Relaxed);
        let turn = clock.run(lock.turn());
        assert!(woken.0.load(Ordering::Relaxed), "it lost its place");
        let mut later = Box::pin(lock.turn());
        let mut context = Context::from_waker(Waker::noop());
        assert!(later.as_mut().poll(&mut context).is_pending());
        assert!(poll_paused().is_pending());
        drop(turn);
        assert!(later.as_mut().poll(&mut context).is_pending());
        assert!(poll_paused().is_ready());
    });
}

#[test]
fn a_task_whose_predecessor_is_dropped_does_not_wait_for_it() {
    with_lock(|clock, _, lock| {
        let turn = clock.run(lock.turn());
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let mut first = Box::pin(lock.turn());
        let mut second = Box::pin(lock.turn());
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        drop(turn);
        assert!(second.as_mut().poll(&mut context).is_pending());
        woken.0.store(false, Ordering::Relaxed);
        drop(first);
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(second.as_mut().poll(&mut context).is_ready());
    });
}

#[test]
fn tasks_that_wait_for_a_long_turn_sleep() {
    for (waiting, polls_max) in [(8, 3 * 8), (12, 3 * 8 + 4 * 102)] {
        with_lock(|clock, _, lock| {
            let mut executors = Executors::new(clock);
            executors.spawn(LOW, async move {
                let _turn = lock.turn().await;
                sleep(clock, ms(1_000)).await;
            });
            for _ in 0..waiting {
                executors.spawn(HIGH, async move {
                    sleep(clock, ms(1)).await;
                    drop(lock.turn().await);
                });
            }
            executors.run();
            // It starts, asks, and is woken once. A task without a place looks every 10 ms.
            let polls = executors.polls[HIGH as usize];
            assert!(polls <= polls_max, "{polls} polls of {waiting} tasks");
        });
    }
}

/// Tasks of both executors take turns, pause, drop futures that wait, and forget some, in an order that a seed decides.
#[test]
fn no_task_waits_for_long_whatever_the_others_do() {
    for seed in 0..40 {
        with_lock(|clock, _, lock| {
            let random = &RefCell::new(SeededEntropy::new(seed));
            let below = |limit: u32| {
                let mut bytes = [0; 4];
                random.borrow_mut().fill(&mut bytes);
                u32::from_le_bytes(bytes) % limit
            };
            let tasks = 1 + below(24);
            let mut executors = Executors::new(clock);
            for _ in 0..tasks {
                executors.spawn(below(2), async move {
                    let mut forgotten = Vec::new();
                    while now(clock) < ms(3_000) {
                        match below(8) {
                            0 => sleep(clock, below(30) * ms(1)).await,
                            // Asks, and drops the future a few polls later.
                            1 => drop(ask(below(3), lock.turn())),
                            2 if forgotten.len() < 3 => {
                                forgotten.extend(ask(below(2), lock.turn()));
                            }
                            3 => forgotten.clear(),
                            _ => {
                                let asked_at = now(clock);
                                let turn = lock.turn().await;
                                let waited = now(clock) - asked_at;
                                // Each other task goes before it, and forgets some futures meanwhile.
                                let limit = (tasks + 10) * ms(17);
                                assert!(waited < limit, "{waited:?} in seed {seed}");
                                sleep(clock, TURN * below(3) / 2).await;
                                drop(turn);
                            }
                        }
                    }
                });
            }
            executors.run();
        });
    }
}

/// Polls `future` up to `polls` times. Returns it if it is not ready by then.
fn ask<F: Future>(polls: u32, future: F) -> Option<Pin<Box<F>>> {
    let mut future = Box::pin(future);
    // Not the waker of the task: a `MockClock` wakes a sleeper that is not polled again and again.
    let mut context = Context::from_waker(Waker::noop());
    let is_ready = (0..polls).any(|_| future.as_mut().poll(&mut context).is_ready());
    (!is_ready).then_some(future)
}

fn with_lock(
    test: impl for<'a> FnOnce(&'a MockClock, &'a [MockNode<&'a MockClock>; 3], &'a Lock<'a>),
) {
    let clock = MockClock::new();
    let nodes = MockNode::array(&clock);
    let options = Options::new(ms(10_000)).unwrap().wait(ms(20_000));
    let options = options.node_timeout(ms(50)).unwrap();
    let redlock = Redlock::new(&nodes, &clock, SeededEntropy::new(1), options);
    test(&clock, &nodes, &Shared::new(redlock.unwrap()));
}

async fn take_a_turn(clock: &MockClock, lock: &Lock<'_>) {
    let _turn = lock.turn().await;
    sleep(clock, TURN).await;
}

async fn sleep(clock: &MockClock, time: Duration) {
    clock.sleep_until(clock.now().saturating_add(time)).await;
}

fn now(clock: &MockClock) -> Duration {
    Duration::from_micros(clock.now().as_micros())
}

const LOW: u32 = 0;
const HIGH: u32 = 1;

/// The executors of both priorities. The low one runs only while no task of the high one is woken.
struct Executors<'a> {
    clock: &'a MockClock,
    tasks: [Vec<Task<'a>>; 2],
    polls: [usize; 2],
}

struct Task<'a> {
    woken: Arc<Woken>,
    future: Pin<Box<dyn Future<Output = ()> + 'a>>,
}

struct Woken(AtomicBool);

impl Default for Woken {
    fn default() -> Self {
        Self(AtomicBool::new(true))
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<'a> Executors<'a> {
    fn new(clock: &'a MockClock) -> Self {
        Self {
            clock,
            tasks: [vec![], vec![]],
            polls: [0; 2],
        }
    }

    fn spawn(&mut self, priority: u32, task: impl Future<Output = ()> + 'a) {
        self.tasks[priority as usize].push(Task {
            woken: Arc::default(),
            future: Box::pin(task),
        });
    }

    /// Runs all tasks to their end. Each poll takes some time, and time passes while no task is woken.
    fn run(&mut self) {
        /// A tenth of a second without a pause.
        const POLLS_MAX: u32 = 10_000;

        let mut polls = 0;
        while self.tasks.iter().any(|tasks| !tasks.is_empty()) {
            assert!(now(self.clock) < ms(120_000), "a task waits for ever");
            if self.poll(HIGH) {
                polls += 1;
                assert!(polls < POLLS_MAX, "the high priority never sleeps");
                self.clock.advance(Duration::from_micros(10));
            } else {
                polls = 0;
                let is_busy = self.poll(LOW);
                let time = if is_busy { 10 } else { 250 };
                self.clock.advance(Duration::from_micros(time));
            }
        }
    }

    /// Polls each woken task once, as embassy's executors do. Returns whether there was one.
    fn poll(&mut self, priority: u32) -> bool {
        let tasks = &mut self.tasks[priority as usize];
        let woken = tasks
            .iter()
            .map(|task| task.woken.0.swap(false, Ordering::Relaxed));
        let woken: Vec<_> = woken.collect();
        let mut woken_now = woken.iter();
        let polls = &mut self.polls[priority as usize];
        tasks.retain_mut(|task| {
            if woken_now.next() != Some(&true) {
                return true;
            }
            *polls += 1;
            let waker = Waker::from(Arc::clone(&task.woken));
            let mut context = Context::from_waker(&waker);
            task.future.as_mut().poll(&mut context).is_pending()
        });
        woken.contains(&true)
    }
}
