//! The rounds in every order of the threads that use them. A task that is never woken is a deadlock, which loom reports.

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::clock::SystemClock;
use crate::sync::atomic::{AtomicUsize, Ordering};

const LONGEST: Duration = Duration::from_secs(60);

/// With one slot, so that two rounds are a queue.
fn rounds() -> Rounds {
    Rounds {
        state: Arc::new(Mutex::new(State {
            limit: Limit::with_slots(1),
            ..State::default()
        })),
        clock: LockClock::default(),
    }
}

/// Takes the slot.
fn begin(rounds: &Rounds, kind: Kind) -> Round<'_> {
    let begun = rounds.enter(kind, Instant::MAX, LONGEST);
    begun.ok().unwrap()
}

/// Begins and ends an acquire on a thread of its own.
fn next_acquire(rounds: &Rounds) -> thread::JoinHandle<bool> {
    let rounds = rounds.clone();
    thread::spawn(move || block_on(rounds.admit_acquire(Instant::MAX, LONGEST)).is_some())
}

/// No round is in flight, and no task waits.
fn expect_none_left(rounds: &Rounds) {
    let state = rounds.lock();
    for queue in [&state.extensions, &state.acquires] {
        assert_eq!(queue.in_flight() + queue.waiting(), 0);
    }
}

#[test]
fn an_acquire_that_enters_while_another_round_ends_is_woken() {
    for kind in [Kind::Acquire, Kind::Extension] {
        loom::model(move || {
            let rounds = rounds();
            let round = begin(&rounds, kind);
            let next = next_acquire(&rounds);
            drop(round);
            assert!(next.join().unwrap());
            expect_none_left(&rounds);
        });
    }
}

#[test]
fn tasks_that_enter_and_end_at_once_have_the_slot_one_after_the_other() {
    loom::model(|| {
        let rounds = rounds();
        let begun = Arc::new(AtomicUsize::new(0));
        let contend = |rounds: Rounds, begun: Arc<AtomicUsize>| {
            move || {
                let round = block_on(rounds.admit_acquire(Instant::MAX, LONGEST));
                // Two at once would both read the same number.
                let before = begun.load(Ordering::Relaxed);
                begun.store(before + 1, Ordering::Relaxed);
                drop(round);
            }
        };
        let others = [(); 2].map(|()| thread::spawn(contend(rounds.clone(), Arc::clone(&begun))));
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(begun.load(Ordering::Relaxed), 2);
        expect_none_left(&rounds);
    });
}

#[test]
fn a_task_that_leaves_while_the_slot_is_passed_to_it_passes_it_on() {
    loom::model(|| {
        let rounds = rounds();
        let round = begin(&rounds, Kind::Acquire);
        let leaves = rounds.clone();
        let leaves =
            thread::spawn(move || drop(leaves.enter(Kind::Acquire, Instant::MAX, LONGEST)));
        let next = next_acquire(&rounds);
        drop(round);
        assert!(next.join().unwrap());
        leaves.join().unwrap();
        expect_none_left(&rounds);
    });
}

#[test]
fn a_dropped_round_keeps_its_slot_until_its_commands_have_left() {
    loom::model(|| {
        let rounds = rounds();
        // Behind a lock, as in the queues.
        let have_left = Arc::new(Mutex::new(false));
        let mut round = begin(&rounds, Kind::Acquire);
        let seen = Arc::clone(&have_left);
        round.leave_behind(move || *seen.lock().unwrap());
        drop(round);
        let sender = thread::spawn({
            let have_left = Arc::clone(&have_left);
            move || {
                *have_left.lock().unwrap() = true;
                // A waiting task checks again by itself.
                SystemClock.advance_to(Instant::from_micros(1_000));
            }
        });
        let next = block_on(rounds.admit_acquire(Instant::MAX, LONGEST));
        assert!(*have_left.lock().unwrap() && next.is_some());
        drop(next);
        sender.join().unwrap();
        expect_none_left(&rounds);
    });
}
