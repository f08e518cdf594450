//! Queues of the tasks that want the same key through one handle and its clones, first come, first served.
//!
//! For each handle and key, one task contends for the lock. The others wait here, which costs the nodes nothing, and the
//! acquire of the next task is sent right after the release. A turn ends with the validity of the lease that was
//! acquired in it, so an expired guard keeps no task waiting. All tasks in the queue watch the end of the turn, so that
//! it is noticed even if one of them is not polled.

use std::collections::btree_map::{self, BTreeMap};
use std::collections::hash_map::{Entry, HashMap, OccupiedEntry};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::lock_clock::LockClock;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};

/// The queues of all keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyQueues {
    by_key: Arc<Mutex<Queues>>,
    clock: LockClock,
}

/// How long a task waits before it looks again at a turn that is about to end. Its task only has to queue its commands.
const ENDING: Duration = Duration::from_millis(10);

type Queues = HashMap<Arc<[u8]>, Queue>;

/// The tasks that want one key.
#[derive(Debug)]
struct Queue {
    holder: Arc<Slot>,
    /// By number, in the order of arrival.
    waiting: BTreeMap<u64, Arc<Slot>>,
    last_number: u64,
    /// Since when the turn was passed on among these tasks, or since when one of them has stood back.
    passed_on_since: Instant,
}

/// One task in a queue.
#[derive(Debug)]
struct Slot {
    clock: LockClock,
    /// The position in its queue.
    number: u64,
    /// When the turn ends by itself.
    until_micros: AtomicU64,
    /// The validity of a lease that the task acquires in its turn.
    validity: Duration,
    /// Whether the task holds a lease: then the turn ends with the lease.
    is_holding: AtomicBool,
    /// Whether the task is about to end its turn: then the turn does not end by itself.
    is_ending: AtomicBool,
    /// Whether the task has left the queue, or its turn was over.
    has_left: AtomicBool,
    /// Wakes the task when it becomes the holder, when it becomes the first that waits, or when the end of the holder's
    /// turn is known.
    changed: Notify,
}

impl KeyQueues {
    pub(crate) fn new(clock: LockClock) -> Self {
        Self {
            by_key: Arc::default(),
            clock,
        }
    }

    /// Waits for the turn of the caller. Returns `None` if it has not come by `give_up_at`. Dropping the future leaves
    /// the queue.
    ///
    /// The turn ends at `term.until` unless the caller [holds](Turn::hold) a lease by then.
    pub(crate) async fn take(
        &self,
        key: &Arc<[u8]>,
        give_up_at: Instant,
        term: Term,
    ) -> Option<Turn> {
        // From here on, dropping the future leaves the queue.
        let turn = self.enter(key, term);
        loop {
            let again_at = match turn.position() {
                Position::Holder => return Some(turn),
                Position::Waiting { again_at } => again_at,
                Position::Gone => return None,
            };
            if self.clock.now() >= give_up_at {
                return None;
            }
            tokio::select! {
                biased;
                () = turn.slot.changed.notified() => {}
                () = self.clock.sleep_until(again_at.min(give_up_at)) => {}
            }
        }
    }

    /// Returns the turn, or `None` if another task has the turn or waits for it. The turn ends at `term.until` unless
    /// the caller [holds](Turn::hold) a lease by then.
    pub(crate) fn try_take(&self, key: &Arc<[u8]>, term: Term) -> Option<Turn> {
        let mut queues = lock(&self.by_key);
        let mut entry = queues.entry(Arc::clone(key));
        if let Entry::Occupied(occupied) = entry {
            if !occupied.get().holder.is_over() {
                return None;
            }
            pass_on(occupied);
            entry = queues.entry(Arc::clone(key));
        }
        let Entry::Vacant(entry) = entry else {
            return None;
        };
        let slot = Slot::new(0, term, self.clock);
        entry.insert(Queue::new(Arc::clone(&slot)));
        drop(queues);
        Some(self.turn(key, slot))
    }

    /// Joins the queue at its end.
    fn enter(&self, key: &Arc<[u8]>, term: Term) -> Turn {
        let slot = match lock(&self.by_key).entry(Arc::clone(key)) {
            Entry::Vacant(entry) => {
                let slot = Slot::new(0, term, self.clock);
                entry.insert(Queue::new(Arc::clone(&slot)));
                slot
            }
            Entry::Occupied(mut entry) => entry.get_mut().push(term),
        };
        self.turn(key, slot)
    }

    fn turn(&self, key: &Arc<[u8]>, slot: Arc<Slot>) -> Turn {
        Turn {
            slot,
            key: Arc::clone(key),
            by_key: Arc::clone(&self.by_key),
        }
    }
}

/// The longest that a turn can last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    /// When it ends by itself if no lease is acquired in it.
    pub(crate) until: Instant,
    /// The validity of a lease that is acquired in it.
    pub(crate) validity: Duration,
}

/// The right to contend for the key, or a position in the queue for it. Dropping it passes the turn on.
#[derive(Debug)]
pub(crate) struct Turn {
    slot: Arc<Slot>,
    key: Arc<[u8]>,
    by_key: Arc<Mutex<Queues>>,
}

enum Position {
    Holder,
    /// The turn of the holder does not end by itself before about `again_at`.
    Waiting {
        again_at: Instant,
    },
    /// The turn is over.
    Gone,
}

impl Turn {
    /// The clock of its handle.
    pub(crate) fn clock(&self) -> LockClock {
        self.slot.clock
    }

    /// When the turn ends by itself.
    pub(crate) fn until(&self) -> Instant {
        Instant::from_micros(self.slot.until_micros.load(Ordering::Acquire))
    }

    /// Records that the lock is held: the turn ends at `until`, which may be earlier or later than before.
    pub(crate) fn hold(&self, until: Instant) {
        self.slot.set(until);
        self.slot.is_holding.store(true, Ordering::Release);
        if let Some(queue) = lock(&self.by_key).get(&self.key)
            && Arc::ptr_eq(&queue.holder, &self.slot)
        {
            queue.wake_first();
        }
    }

    /// Like [`hold`](Self::hold), unless the turn has been passed on meanwhile.
    pub(crate) fn hold_if_not_passed_on(&self, until: Instant) -> bool {
        let queues = lock(&self.by_key);
        let is_own = self.is_own(&queues);
        if is_own {
            self.slot.set(until);
        }
        is_own
    }

    /// Whether the turn is the caller's, and has not been passed on.
    fn is_own(&self, queues: &Queues) -> bool {
        let is_own = |queue: &Queue| Arc::ptr_eq(&queue.holder, &self.slot);
        queues.get(&self.key).is_some_and(is_own)
    }

    /// Moves the end later.
    pub(crate) fn extend(&self, until: Instant) {
        let until = until.as_micros();
        self.slot.until_micros.fetch_max(until, Ordering::AcqRel);
    }

    /// Like [`extend`](Self::extend), unless the turn has been passed on meanwhile.
    pub(crate) fn extend_if_not_passed_on(&self, until: Instant) -> bool {
        let queues = lock(&self.by_key);
        let is_own = self.is_own(&queues);
        if is_own {
            self.extend(until);
        }
        is_own
    }

    /// Keeps the turn from ending by itself, until the caller [ends](Self::end) it, which must be soon. Returns `false` if it is over.
    pub(crate) fn outlast(&self) -> bool {
        let queues = lock(&self.by_key);
        let lasts = self.is_own(&queues) && !self.slot.is_over();
        if lasts {
            self.slot.is_ending.store(true, Ordering::Release);
        }
        lasts
    }

    /// Moves the end to now if it is later.
    pub(crate) fn expire(&self) {
        let now = self.slot.clock.now().as_micros();
        self.slot.until_micros.fetch_min(now, Ordering::AcqRel);
    }

    /// Passes the turn on, which [expires](Self::expire), unless the caller of [`outlast`](Self::outlast) is about to end it.
    pub(crate) fn end_unless_outlasting(&self) {
        let queues = lock(&self.by_key);
        let is_ending = self.slot.is_ending.load(Ordering::Acquire);
        drop(queues);
        // After this, the turn is over, and so `outlast` fails.
        if !is_ending {
            self.end();
        }
    }

    /// Whether the tasks of the queue have passed the turn on for `longest` without an interval. If so, the caller stands back
    /// now, and counting begins again.
    pub(crate) fn stands_back_after(&self, longest: Duration) -> bool {
        let mut queues = lock(&self.by_key);
        let Some(queue) = queues.get_mut(&self.key) else {
            return false;
        };
        let now = self.slot.clock.now();
        let is_long = now >= queue.passed_on_since.saturating_add(longest);
        if is_long {
            queue.passed_on_since = now;
        }
        is_long
    }

    /// Passes the turn on, or leaves the queue. A second call does nothing.
    pub(crate) fn end(&self) {
        if self.slot.has_left.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut queues = lock(&self.by_key);
        let Entry::Occupied(mut entry) = queues.entry(Arc::clone(&self.key)) else {
            return;
        };
        let queue = entry.get_mut();
        if Arc::ptr_eq(&queue.holder, &self.slot) {
            pass_on(entry);
            return;
        }
        let first = queue.waiting.keys().next().copied();
        let number = self.slot.number;
        // If this slot was removed meanwhile, the number may belong to another task in a new queue.
        if let btree_map::Entry::Occupied(waiting) = queue.waiting.entry(number)
            && Arc::ptr_eq(waiting.get(), &self.slot)
        {
            waiting.remove();
            if first == Some(number) {
                queue.wake_first();
            }
        }
    }

    /// Returns the position in the queue. Ends the turn of a holder whose validity is over, even if the caller is not next.
    fn position(&self) -> Position {
        let mut queues = lock(&self.by_key);
        loop {
            let Entry::Occupied(entry) = queues.entry(Arc::clone(&self.key)) else {
                return Position::Gone;
            };
            if self.slot.has_left.load(Ordering::Acquire) {
                return Position::Gone;
            }
            let holder = &entry.get().holder;
            if Arc::ptr_eq(holder, &self.slot) {
                return Position::Holder;
            }
            if !holder.is_over() {
                let again_at = holder.check_again_at();
                return Position::Waiting { again_at };
            }
            pass_on(entry);
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

/// Makes the first waiting task whose time is not over the holder. Removes the queue if there is none.
fn pass_on(mut entry: OccupiedEntry<'_, Arc<[u8]>, Queue>) {
    let queue = entry.get_mut();
    queue.holder.has_left.store(true, Ordering::Release);
    while let Some((_, next)) = queue.waiting.pop_first() {
        next.changed.notify_one();
        if next.is_over() {
            next.has_left.store(true, Ordering::Release);
            continue;
        }
        queue.holder = next;
        queue.wake_first();
        return;
    }
    entry.remove();
}

impl Queue {
    fn new(holder: Arc<Slot>) -> Self {
        let passed_on_since = holder.clock.now();
        Self {
            holder,
            waiting: BTreeMap::new(),
            last_number: 0,
            passed_on_since,
        }
    }

    /// Adds a task at the end.
    fn push(&mut self, term: Term) -> Arc<Slot> {
        self.last_number += 1;
        let slot = Slot::new(self.last_number, term, self.holder.clock);
        self.waiting.insert(self.last_number, Arc::clone(&slot));
        slot
    }

    /// Wakes the first waiting task, which checks the holder.
    fn wake_first(&self) {
        if let Some((_, first)) = self.waiting.first_key_value() {
            first.changed.notify_one();
        }
    }
}

impl Slot {
    fn new(number: u64, term: Term, clock: LockClock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            number,
            until_micros: AtomicU64::new(term.until.as_micros()),
            validity: term.validity,
            is_holding: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
            changed: Notify::new(),
        })
    }

    fn until(&self) -> Instant {
        Instant::from_micros(self.until_micros.load(Ordering::Acquire))
    }

    fn set(&self, until: Instant) {
        self.until_micros
            .store(until.as_micros(), Ordering::Release);
    }

    /// When waiting tasks check this turn again. The end of a lease is not known before it is acquired, and then only
    /// the first waiting task is woken. The others check again when the lease can be over.
    fn check_again_at(&self) -> Instant {
        if self.is_ending.load(Ordering::Acquire) {
            // The first one is woken.
            return self.clock.now().saturating_add(ENDING);
        }
        if self.is_holding.load(Ordering::Acquire) {
            return self.until();
        }
        let soonest = self.clock.now().saturating_add(self.validity);
        self.until().min(soonest)
    }

    fn is_over(&self) -> bool {
        self.clock.now() >= self.until() && !self.is_ending.load(Ordering::Acquire)
    }
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[cfg(redlock_loom)]
mod interleavings;

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;
    use crate::clock::SystemClock;

    const LONG: Duration = Duration::from_secs(60);

    const ENDLESS: Term = Term {
        until: Instant::MAX,
        validity: LONG,
    };

    fn key(name: &str) -> Arc<[u8]> {
        Arc::from(name.as_bytes())
    }

    fn after(delay: Duration) -> Instant {
        SystemClock.now().saturating_add(delay)
    }

    #[tokio::test]
    async fn turns_are_granted_in_the_order_of_the_requests() {
        let queues = KeyQueues::default();
        let first = queues.try_take(&key("k"), ENDLESS).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (queues, order) = (queues.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let turn = queues.take(&key("k"), after(LONG), ENDLESS).await;
                let _turn = turn.unwrap();
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        assert!(queues.try_take(&key("k"), ENDLESS).is_none());
        assert!(queues.try_take(&key("another"), ENDLESS).is_some());
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        assert!(lock(&queues.by_key).is_empty());
    }

    #[tokio::test]
    async fn the_queue_of_a_key_is_removed_when_no_task_wants_the_key() {
        let queues = KeyQueues::default();
        let turn = queues.try_take(&key("k"), ENDLESS).unwrap();
        let waiting = queues.clone();
        let waiter = tokio::spawn(async move {
            let turn = waiting.take(&key("k"), after(LONG), ENDLESS).await;
            turn.is_some()
        });
        tokio::task::yield_now().await;
        waiter.abort();
        assert!(waiter.await.is_err());
        let late = queues.take(&key("k"), SystemClock.now(), ENDLESS).await;
        assert!(late.is_none(), "it gave up");
        drop(turn);
        assert!(lock(&queues.by_key).is_empty());
    }

    #[tokio::test]
    async fn a_task_stands_back_once_after_the_turn_was_passed_on_for_long() {
        let queues = KeyQueues::default();
        for _ in 0..2 {
            let first = queues.try_take(&key("k"), ENDLESS).unwrap();
            assert!(!first.stands_back_after(LONG), "the queue is new");
            let second = queues.enter(&key("k"), ENDLESS);
            drop(first);
            assert!(!second.stands_back_after(LONG));
            assert!(second.stands_back_after(Duration::ZERO));
            assert!(!second.stands_back_after(LONG));
        }
    }

    #[tokio::test]
    async fn a_long_queue_is_left_from_its_end_as_fast_as_from_its_front() {
        const TASKS: usize = 30_000;

        let queues = KeyQueues::default();
        let k = key("k");
        let _holder = queues.try_take(&k, ENDLESS).unwrap();
        let [from_the_front, from_the_end] = [false, true].map(|is_reversed| {
            let mut waiting: VecDeque<_> = (0..TASKS).map(|_| queues.enter(&k, ENDLESS)).collect();
            let started_at = std::time::Instant::now();
            while let Some(turn) = match is_reversed {
                true => waiting.pop_back(),
                false => waiting.pop_front(),
            } {
                drop(turn);
            }
            started_at.elapsed()
        });
        assert!(
            from_the_end < from_the_front * 30,
            "{from_the_end:?}, {from_the_front:?}"
        );
    }

    #[tokio::test]
    async fn a_turn_ends_with_the_validity_and_the_queue_keeps_its_order() {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key("k"), ENDLESS).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..3 {
            let (queues, order) = (queues.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let turn = queues.take(&key("k"), after(LONG), ENDLESS).await;
                order.lock().unwrap().push(number);
                // This task does not pass its turn on either: its validity ends.
                turn.unwrap().hold(after(Duration::from_millis(20)));
                std::future::pending::<()>().await;
            }));
            tokio::task::yield_now().await;
        }
        // The first task in the queue waits for an end that is far away.
        holder.hold(after(Duration::from_millis(20)));
        let last = queues.take(&key("k"), after(LONG), ENDLESS).await;
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
        assert!(queues.try_take(&key("k"), ENDLESS).is_none());
        // Tasks that have lost their turn leave nothing behind, and take no turn away.
        drop(holder);
        for task in tasks {
            task.abort();
            assert!(task.await.is_err());
        }
        assert!(queues.try_take(&key("k"), ENDLESS).is_none());
        drop(last);
        assert!(lock(&queues.by_key).is_empty());
    }

    #[tokio::test]
    async fn a_turn_whose_end_moves_later_is_waited_for() {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key("k"), ENDLESS).unwrap();
        holder.hold(after(Duration::from_millis(20)));
        let later = after(Duration::from_millis(100));
        let mut next = std::pin::pin!({
            let queues = queues.clone();
            async move { queues.take(&key("k"), after(LONG), ENDLESS).await }
        });
        let extend = async {
            tokio::task::yield_now().await;
            holder.extend(later);
        };
        let (next, ()) = tokio::join!(next.as_mut(), extend);
        assert!(next.is_some() && SystemClock.now() >= later);
    }

    #[tokio::test]
    async fn a_task_that_is_not_polled_loses_its_turn_to_the_next() {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key("k"), ENDLESS).unwrap();
        let end = after(Duration::from_millis(20));
        let k = key("k");
        let term = Term {
            until: end,
            validity: LONG,
        };
        let mut unpolled = std::pin::pin!(queues.take(&k, after(LONG), term));
        let first = std::future::poll_fn(|context| {
            std::task::Poll::Ready(unpolled.as_mut().poll(context).is_ready())
        });
        assert!(!first.await);
        drop(holder);
        let next = queues.take(&key("k"), after(LONG), ENDLESS).await;
        assert!(next.is_some() && SystemClock.now() >= end);
        assert!(unpolled.await.is_none(), "it has lost its turn");
    }

    #[tokio::test]
    async fn a_turn_is_passed_on_past_a_task_that_is_not_polled() {
        let queues = KeyQueues::default();
        let k = key("k");
        for is_held_before in [true, false] {
            let holder = queues.try_take(&k, ENDLESS_BUT_SHORT).unwrap();
            let end = after(Duration::from_millis(20));
            if is_held_before {
                holder.hold(end);
            }
            let term = Term {
                until: after(Duration::from_millis(40)),
                validity: LONG,
            };
            let mut unpolled = std::pin::pin!(queues.take(&k, after(LONG), term));
            assert!(poll_once(unpolled.as_mut()).await.is_pending());
            let mut next = std::pin::pin!(queues.take(&k, after(LONG), ENDLESS));
            assert!(poll_once(next.as_mut()).await.is_pending());
            if !is_held_before {
                // Only the first task is woken.
                holder.hold(end);
            }
            let turn = tokio::time::timeout(LONG / 60, next).await;
            assert!(turn.unwrap().is_some() && SystemClock.now() >= end);
            assert!(unpolled.await.is_none(), "its time was over");
            drop(holder);
            assert!(lock(&queues.by_key).is_empty());
        }
    }

    #[tokio::test]
    async fn tasks_whose_time_is_over_get_no_turn() {
        let queues = KeyQueues::default();
        let k = key("k");
        let holder = queues.try_take(&k, ENDLESS).unwrap();
        let over = Term {
            until: SystemClock.now(),
            validity: LONG,
        };
        let mut late = std::pin::pin!(queues.take(&k, after(LONG), over));
        assert!(poll_once(late.as_mut()).await.is_pending());
        holder.expire();
        let turn = queues.try_take(&k, ENDLESS);
        assert!(turn.is_some(), "no other task is left");
        assert!(late.await.is_none());
        drop(holder);
        assert!(queues.try_take(&k, ENDLESS).is_none());
    }

    #[tokio::test]
    async fn a_turn_that_was_passed_on_is_not_extended() {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key("k"), ENDLESS).unwrap();
        assert!(holder.extend_if_not_passed_on(after(LONG)));
        holder.expire();
        let next = queues.try_take(&key("k"), ENDLESS);
        assert!(!holder.extend_if_not_passed_on(after(LONG)));
        drop(next);
        assert!(!holder.extend_if_not_passed_on(after(LONG)));
    }

    #[tokio::test]
    async fn a_turn_that_its_task_ends_does_not_end_by_itself() {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key("k"), ENDLESS).unwrap();
        holder.hold(after(LONG));
        assert!(holder.outlast());
        holder.expire();
        holder.end_unless_outlasting();
        assert!(queues.try_take(&key("k"), ENDLESS).is_none());
        let next = async { queues.take(&key("k"), after(LONG), ENDLESS).await };
        let mut next = std::pin::pin!(next);
        assert!(poll_once(next.as_mut()).await.is_pending());
        holder.end();
        let next = next.await.unwrap();
        next.hold(SystemClock.now());
        assert!(!next.outlast(), "it is over");
        assert!(queues.try_take(&key("k"), ENDLESS).is_some());
    }

    /// A turn without an end whose lease is valid for a moment.
    const ENDLESS_BUT_SHORT: Term = Term {
        until: Instant::MAX,
        validity: Duration::from_millis(20),
    };

    async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) -> std::task::Poll<F::Output> {
        std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context))).await
    }
}
