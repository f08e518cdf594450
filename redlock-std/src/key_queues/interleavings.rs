//! The queues in every order of the threads that use them. A task that is never woken is a deadlock, which loom reports.

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::clock::SystemClock;
use crate::sync::atomic::AtomicUsize;

const VALIDITY: Duration = Duration::from_secs(60);

const ENDLESS: Term = Term {
    until: Instant::MAX,
    validity: VALIDITY,
};

fn key() -> Arc<[u8]> {
    Arc::from(*b"dock-7")
}

/// Waits for the turn on a thread of its own.
fn next_turn(queues: &KeyQueues) -> thread::JoinHandle<Option<Turn>> {
    let queues = queues.clone();
    thread::spawn(move || block_on(queues.take(&key(), Instant::MAX, ENDLESS)))
}

#[test]
fn a_turn_that_ends_while_the_next_task_enters_wakes_it() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key(), ENDLESS).unwrap();
        let next = next_turn(&queues);
        drop(holder);
        drop(next.join().unwrap().unwrap());
        assert!(lock(&queues.by_key).is_empty(), "the queue is removed");
    });
}

#[test]
fn tasks_that_enter_and_leave_at_once_have_the_turn_one_after_the_other() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let turns = Arc::new(AtomicUsize::new(0));
        let contend = |queues: KeyQueues, turns: Arc<AtomicUsize>| {
            move || {
                let turn = block_on(queues.take(&key(), Instant::MAX, ENDLESS));
                // Two at once would both read the same number, and so would one that does not see what the last one did.
                let before = turns.load(Ordering::Relaxed);
                turns.store(before + 1, Ordering::Relaxed);
                drop(turn);
            }
        };
        let others = [(); 2].map(|()| thread::spawn(contend(queues.clone(), Arc::clone(&turns))));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(turns.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn an_expired_holder_keeps_no_task_waiting() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let forgotten = queues.try_take(&key(), ENDLESS).unwrap();
        let next = next_turn(&queues);
        // Sooner than the next task would look by itself: it is woken to see this end.
        let end = SystemClock.now().saturating_add(VALIDITY / 2);
        forgotten.hold(end);
        SystemClock.advance_to(end);
        assert!(next.join().unwrap().is_some());
        drop(forgotten);
    });
}

#[test]
fn a_holder_that_leaves_when_it_has_expired_does_not_end_the_turn_of_the_next_task() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key(), ENDLESS).unwrap();
        let end = SystemClock.now().saturating_add(VALIDITY / 2);
        holder.hold(end);
        let next = next_turn(&queues);
        SystemClock.advance_to(end);
        drop(holder);
        let next = next.join().unwrap().unwrap();
        assert!(queues.try_take(&key(), ENDLESS).is_none());
        drop(next);
    });
}

#[test]
fn a_task_that_leaves_while_the_turn_is_passed_to_it_passes_it_on() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let holder = queues.try_take(&key(), ENDLESS).unwrap();
        let leaves = queues.enter(&key(), ENDLESS);
        let leaves = thread::spawn(move || drop(leaves));
        let next = next_turn(&queues);
        drop(holder);
        assert!(next.join().unwrap().is_some());
        leaves.join().unwrap();
    });
}
