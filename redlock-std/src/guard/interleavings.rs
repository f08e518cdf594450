//! The validity in every order of the threads that share it: guard, keeper and waiting tasks.

use loom::future::block_on;
use loom::thread;

use super::*;
use crate::clock::SystemClock;
use crate::key_queues::{KeyQueues, Term};
use crate::telemetry::Telemetry;

const TERM: Term = Term {
    until: Instant::MAX,
    validity: Duration::from_secs(60),
};

fn key() -> Arc<[u8]> {
    Arc::from(*b"dock-7")
}

const fn second(number: u64) -> Instant {
    Instant::from_micros(number * 1_000_000)
}

/// The validity of a lease until the end of the tenth second.
fn validity(queues: &KeyQueues) -> Arc<Validity> {
    validity_of(queues, false)
}

fn validity_of(queues: &KeyQueues, is_adopted: bool) -> Arc<Validity> {
    let turn = queues.try_take(&key(), TERM).unwrap();
    turn.hold(second(10));
    Arc::new(Validity {
        key: key(),
        token: Token::from_bytes([1; Token::LEN]),
        fence: None,
        turn,
        is_adopted: AtomicBool::new(is_adopted),
        rounds: Rounds::default(),
        scope: Telemetry::new(LockClock::default()).adoption(&key()).hold(),
        ending: Mutex::default(),
        lost: Notify::new(),
    })
}

fn spawn<T: 'static>(
    validity: &Arc<Validity>,
    act: impl FnOnce(&Validity) -> T + 'static,
) -> thread::JoinHandle<T> {
    let validity = Arc::clone(validity);
    thread::spawn(move || act(&validity))
}

#[test]
fn a_lease_that_ends_while_it_is_extended_is_either_extended_or_lost_for_good() {
    loom::model(|| {
        let validity = validity(&KeyQueues::default());
        SystemClock.advance_to(second(10));
        let keeper = spawn(&validity, |validity| validity.extended_until(second(20)));
        let guard = spawn(&validity, |validity| {
            validity.expire(second(10));
            validity.until()
        });
        let (is_extended, until) = (keeper.join().unwrap(), guard.join().unwrap());
        assert_eq!(validity.is_lost(), !is_extended);
        let end = second(if is_extended { 20 } else { 10 });
        assert!(validity.until() == end && until == end);
    });
}

#[test]
fn the_validity_never_exceeds_the_lease_when_guard_keeper_and_drop_race() {
    loom::model(|| {
        let validity = validity(&KeyQueues::default());
        SystemClock.advance_to(second(9));
        let keeper = spawn(&validity, |validity| validity.extended_until(second(20)));
        // The guard learns that another client has the lock.
        let guard = spawn(&validity, |validity| {
            validity.lose(LossCause::Expired);
            validity.until()
        });
        // A guard that is dropped passes its turn on, and moves no end.
        validity.turn.end();
        keeper.join().unwrap();
        assert!(guard.join().unwrap() <= second(9));
        assert!(validity.is_lost() && validity.until() <= second(9));
        assert!(!validity.extended_until(second(30)));
        assert!(validity.until() <= second(9));
    });
}

/// The next task may have adopted the lease too, with the same token.
#[test]
fn an_adopted_lease_is_either_extended_or_its_turn_is_passed_on() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let validity = validity_of(&queues, true);
        SystemClock.advance_to(second(10));
        let keeper = spawn(&validity, |validity| validity.extended_until(second(20)));
        let next = queues.try_take(&key(), TERM);
        assert_ne!(keeper.join().unwrap(), next.is_some());
        assert_eq!(validity.is_lost(), next.is_some());
    });
}

#[test]
fn a_lease_is_extended_although_its_turn_was_given_away() {
    loom::model(|| {
        let validity = validity(&KeyQueues::default());
        validity.turn.end();
        assert!(validity.extended_until(second(20)));
        assert!(!validity.is_lost() && validity.until() == second(20));
    });
}

#[test]
fn a_task_that_waits_for_the_loss_is_woken_by_it() {
    loom::model(|| {
        let validity = validity(&KeyQueues::default());
        let waits = spawn(&validity, |validity| {
            let cause = block_on(validity.lost());
            assert_eq!(
                validity.until(),
                Instant::from_micros(0),
                "it is over by then"
            );
            cause
        });
        validity.lose(LossCause::ExtensionsSpent);
        let cause = waits.join().unwrap();
        assert!(matches!(cause, LossCause::ExtensionsSpent));
    });
}

#[test]
fn a_lease_that_was_extended_is_not_lost_at_its_old_end() {
    loom::model(|| {
        let validity = validity(&KeyQueues::default());
        let waits = spawn(&validity, |validity| {
            let cause = block_on(validity.lost());
            (cause, SystemClock.now())
        });
        assert!(validity.extended_until(second(20)));
        SystemClock.advance_to(second(10));
        SystemClock.advance_to(second(20));
        let (cause, at) = waits.join().unwrap();
        assert!(matches!(cause, LossCause::Expired));
        assert_eq!(at, second(20));
    });
}

#[test]
fn a_loss_lets_the_next_task_of_the_key_begin() {
    loom::model(|| {
        let queues = KeyQueues::default();
        let validity = validity(&queues);
        let keeper = spawn(&validity, |validity| validity.lose(LossCause::Expired));
        let next = thread::spawn(move || block_on(queues.take(&key(), Instant::MAX, TERM)));
        assert!(next.join().unwrap().is_some());
        keeper.join().unwrap();
    });
}
