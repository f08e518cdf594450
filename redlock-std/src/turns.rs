//! The tasks of this process that want the same key, first come, first served.
//!
//! One contender per process and key: the others wait here, where it costs the nodes nothing, and
//! the next one's acquire goes out right behind the release. A turn ends with the validity of what was
//! acquired in it: a guard that has expired and still exists keeps no task waiting.

use std::collections::hash_map::{Entry, HashMap, OccupiedEntry};
use std::collections::vec_deque::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redlock_core::{Clock, Instant};
use tokio::sync::Notify;

use crate::clock::SystemClock;

/// The queues of all keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    queues: Arc<Mutex<Queues>>,
}

type Queues = HashMap<Arc<[u8]>, Queue>;

/// The tasks that want one key.
#[derive(Debug)]
struct Queue {
    holder: Arc<Place>,
    /// The first of them watches the holder's validity.
    waiting: VecDeque<Arc<Place>>,
}

/// One task in a queue.
#[derive(Debug)]
struct Place {
    /// When the turn ends by itself.
    until_micros: AtomicU64,
    /// Whether it is in the queue no more: it has left, or its turn was over.
    has_left: AtomicBool,
    /// Wakes the task when it becomes the holder, or the first that waits, or when the holder's end is known.
    changed: Notify,
}

impl Turns {
    /// Waits for the turn of the caller; `None` if it has not come by `give_up_at`. Dropping the future leaves
    /// the queue.
    ///
    /// The turn ends at `until` unless the caller [holds](Turn::hold) something by then.
    pub(crate) async fn take(
        &self,
        key: &Arc<[u8]>,
        give_up_at: Instant,
        until: Instant,
    ) -> Option<Turn> {
        // From here on, dropping it leaves the queue.
        let turn = self.enter(key, until);
        loop {
            let over = match turn.look() {
                Look::Holder => return Some(turn),
                Look::First { over } => over,
                Look::Behind => Instant::MAX,
                Look::Gone => return None,
            };
            if SystemClock.now() >= give_up_at {
                return None;
            }
            tokio::select! {
                biased;
                () = turn.place.changed.notified() => {}
                () = SystemClock.sleep_until(over.min(give_up_at)) => {}
            }
        }
    }

    /// The turn, if no other task has it or waits for it. It ends at `until` unless the caller
    /// [holds](Turn::hold) something by then.
    pub(crate) fn try_take(&self, key: &Arc<[u8]>, until: Instant) -> Option<Turn> {
        let place = match lock(&self.queues).entry(Arc::clone(key)) {
            Entry::Vacant(entry) => {
                let place = Place::new(until);
                entry.insert(Queue::new(Arc::clone(&place)));
                place
            }
            Entry::Occupied(mut entry) => {
                let queue = entry.get_mut();
                if !queue.holder.is_over() {
                    return None;
                }
                if !queue.waiting.is_empty() {
                    pass_on(entry);
                    return None;
                }
                let place = Place::new(until);
                let before = std::mem::replace(&mut queue.holder, Arc::clone(&place));
                before.has_left.store(true, Ordering::Release);
                place
            }
        };
        Some(self.turn(key, place))
    }

    /// Takes the last place in the queue.
    fn enter(&self, key: &Arc<[u8]>, until: Instant) -> Turn {
        let place = Place::new(until);
        match lock(&self.queues).entry(Arc::clone(key)) {
            Entry::Vacant(entry) => {
                entry.insert(Queue::new(Arc::clone(&place)));
            }
            Entry::Occupied(mut entry) => entry.get_mut().waiting.push_back(Arc::clone(&place)),
        }
        self.turn(key, place)
    }

    fn turn(&self, key: &Arc<[u8]>, place: Arc<Place>) -> Turn {
        Turn {
            place,
            key: Arc::clone(key),
            queues: Arc::clone(&self.queues),
        }
    }
}

/// The right to contend for the key, or a place in the queue for it. Dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    place: Arc<Place>,
    key: Arc<[u8]>,
    queues: Arc<Mutex<Queues>>,
}

enum Look {
    Holder,
    /// Next, once the holder's turn ends, at `over` by itself.
    First {
        over: Instant,
    },
    Behind,
    /// It was the holder until its turn was over.
    Gone,
}

impl Turn {
    /// When the turn ends by itself.
    pub(crate) fn until(&self) -> Instant {
        Instant::from_micros(self.place.until_micros.load(Ordering::Acquire))
    }

    /// The lock is held: the turn ends at `until`, whether that is earlier or later than before.
    pub(crate) fn hold(&self, until: Instant) {
        self.place.set(until);
        if let Some(queue) = lock(&self.queues).get(&self.key)
            && Arc::ptr_eq(&queue.holder, &self.place)
        {
            queue.wake_first();
        }
    }

    /// Moves the end later.
    pub(crate) fn extend(&self, until: Instant) {
        let until = until.as_micros();
        self.place.until_micros.fetch_max(until, Ordering::AcqRel);
    }

    /// Moves the end to now if it is later.
    pub(crate) fn expire(&self) {
        let now = SystemClock.now().as_micros();
        self.place.until_micros.fetch_min(now, Ordering::AcqRel);
    }

    /// Passes the turn on, or leaves the queue. Does nothing the second time.
    pub(crate) fn end(&self) {
        if self.place.has_left.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut queues = lock(&self.queues);
        let Entry::Occupied(mut entry) = queues.entry(Arc::clone(&self.key)) else {
            return;
        };
        let queue = entry.get_mut();
        if Arc::ptr_eq(&queue.holder, &self.place) {
            pass_on(entry);
            return;
        }
        let mut waiting = queue.waiting.iter();
        if let Some(index) = waiting.position(|place| Arc::ptr_eq(place, &self.place)) {
            queue.waiting.remove(index);
            if index == 0 {
                queue.wake_first();
            }
        }
    }

    /// Looks where this place is in the queue, and takes the turn of a holder whose validity is over.
    fn look(&self) -> Look {
        let mut queues = lock(&self.queues);
        let Entry::Occupied(mut entry) = queues.entry(Arc::clone(&self.key)) else {
            return Look::Gone;
        };
        if self.place.has_left.load(Ordering::Acquire) {
            return Look::Gone;
        }
        let queue = entry.get_mut();
        if Arc::ptr_eq(&queue.holder, &self.place) {
            return Look::Holder;
        }
        let first = queue.waiting.front();
        if !first.is_some_and(|first| Arc::ptr_eq(first, &self.place)) {
            return Look::Behind;
        }
        if !queue.holder.is_over() {
            let over = queue.holder.until();
            return Look::First { over };
        }
        pass_on(entry);
        Look::Holder
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.end();
    }
}

/// The first that waits is the holder; a queue of no task is removed.
fn pass_on(mut entry: OccupiedEntry<'_, Arc<[u8]>, Queue>) {
    let queue = entry.get_mut();
    queue.holder.has_left.store(true, Ordering::Release);
    let Some(next) = queue.waiting.pop_front() else {
        entry.remove();
        return;
    };
    next.changed.notify_one();
    queue.holder = next;
    queue.wake_first();
}

impl Queue {
    const fn new(holder: Arc<Place>) -> Self {
        Self {
            holder,
            waiting: VecDeque::new(),
        }
    }

    /// Lets the first that waits look at the holder.
    fn wake_first(&self) {
        if let Some(first) = self.waiting.front() {
            first.changed.notify_one();
        }
    }
}

impl Place {
    fn new(until: Instant) -> Arc<Self> {
        Arc::new(Self {
            until_micros: AtomicU64::new(until.as_micros()),
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

    fn is_over(&self) -> bool {
        SystemClock.now() >= self.until()
    }
}

fn lock(queues: &Mutex<Queues>) -> MutexGuard<'_, Queues> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn key(name: &str) -> Arc<[u8]> {
        Arc::from(name.as_bytes())
    }

    fn after(delay: Duration) -> Instant {
        SystemClock.now().saturating_add(delay)
    }

    #[tokio::test]
    async fn turns_are_taken_in_the_order_in_which_they_were_asked_for() {
        let turns = Turns::default();
        let first = turns.try_take(&key("k"), Instant::MAX).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..10 {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let turn = turns.take(&key("k"), after(LONG), Instant::MAX).await;
                let _turn = turn.unwrap();
                order.lock().unwrap().push(number);
            }));
            tokio::task::yield_now().await;
        }
        assert!(turns.try_take(&key("k"), Instant::MAX).is_none());
        assert!(turns.try_take(&key("another"), Instant::MAX).is_some());
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
        assert!(lock(&turns.queues).is_empty());
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_key_that_no_task_wants_any_more() {
        let turns = Turns::default();
        let turn = turns.try_take(&key("k"), Instant::MAX).unwrap();
        let waiting = turns.clone();
        let waiter = tokio::spawn(async move {
            let turn = waiting.take(&key("k"), after(LONG), Instant::MAX).await;
            turn.is_some()
        });
        tokio::task::yield_now().await;
        waiter.abort();
        assert!(waiter.await.is_err());
        let late = turns.take(&key("k"), SystemClock.now(), Instant::MAX).await;
        assert!(late.is_none(), "it gave up");
        drop(turn);
        assert!(lock(&turns.queues).is_empty());
    }

    #[tokio::test]
    async fn a_turn_ends_with_the_validity_and_the_queue_keeps_its_order() {
        let turns = Turns::default();
        let holder = turns.try_take(&key("k"), Instant::MAX).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..3 {
            let (turns, order) = (turns.clone(), Arc::clone(&order));
            tasks.push(tokio::spawn(async move {
                let turn = turns.take(&key("k"), after(LONG), Instant::MAX).await;
                order.lock().unwrap().push(number);
                // Nor does this one pass its turn on: its validity ends.
                turn.unwrap().hold(after(Duration::from_millis(20)));
                std::future::pending::<()>().await;
            }));
            tokio::task::yield_now().await;
        }
        // The first in the queue watches by now, until an end that is far away.
        holder.hold(after(Duration::from_millis(20)));
        let last = turns.take(&key("k"), after(LONG), Instant::MAX).await;
        assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
        assert!(turns.try_take(&key("k"), Instant::MAX).is_none());
        // Those whose turn was taken away leave nothing, and take nothing away.
        drop(holder);
        for task in tasks {
            task.abort();
            assert!(task.await.is_err());
        }
        assert!(turns.try_take(&key("k"), Instant::MAX).is_none());
        drop(last);
        assert!(lock(&turns.queues).is_empty());
    }

    #[tokio::test]
    async fn a_turn_whose_end_moves_later_is_waited_for() {
        let turns = Turns::default();
        let holder = turns.try_take(&key("k"), Instant::MAX).unwrap();
        holder.hold(after(Duration::from_millis(20)));
        let later = after(Duration::from_millis(100));
        let mut next = std::pin::pin!({
            let turns = turns.clone();
            async move { turns.take(&key("k"), after(LONG), Instant::MAX).await }
        });
        let extend = async {
            tokio::task::yield_now().await;
            holder.extend(later);
        };
        let (next, ()) = tokio::join!(next.as_mut(), extend);
        assert!(next.is_some() && SystemClock.now() >= later);
    }

    #[tokio::test]
    async fn a_turn_that_was_taken_away_from_a_task_that_is_not_polled_goes_to_the_next() {
        let turns = Turns::default();
        let holder = turns.try_take(&key("k"), Instant::MAX).unwrap();
        let end = after(Duration::from_millis(20));
        let k = key("k");
        let mut stuck = std::pin::pin!(turns.take(&k, after(LONG), end));
        let first = std::future::poll_fn(|context| {
            std::task::Poll::Ready(stuck.as_mut().poll(context).is_ready())
        });
        assert!(!first.await);
        drop(holder);
        let next = turns.take(&key("k"), after(LONG), Instant::MAX).await;
        assert!(next.is_some() && SystemClock.now() >= end);
        assert!(stuck.await.is_none(), "it has lost its turn");
    }
}
