//! The queue of a node in every order of its callers and its actor. A caller or an actor that is never woken is a deadlock,
//! which loom reports.

use std::future::poll_fn;
use std::task::Poll;

use loom::future::block_on;
use loom::thread;
use redlock_core::Token;
use redlock_core::transport::{Command, VoteConditions};

use super::*;

const LONG: Duration = Duration::from_secs(3600);

fn queue() -> Arc<Queue> {
    Arc::new(Queue::new("node".into(), LONG))
}

fn acquire(token: u8) -> Call {
    let token = Token::from_bytes([token; Token::LEN]);
    let command = Command::acquire(b"dock-7", &token, 60_000, VoteConditions::NONE);
    Call::new(&command, LONG, LONG)
}

/// The release of the acquire with this number.
fn release(token: u8, acquire: Option<AcquireNumber>) -> Call {
    let token = Token::from_bytes([token; Token::LEN]);
    Call::new(&Command::release(b"dock-7", &token), LONG, LONG).behind(acquire)
}

/// Acquires, and is gone before the answer comes.
fn acquire_and_leave(queue: &Queue, token: u8) {
    let number = queue.push(acquire(token)).unwrap().number;
    queue.push_unattended(release(token, number));
}

fn spawn<T: 'static>(
    queue: &Arc<Queue>,
    act: impl FnOnce(&Queue) -> T + 'static,
) -> thread::JoinHandle<T> {
    let queue = Arc::clone(queue);
    thread::spawn(move || act(&queue))
}

/// Waits for the next calls, as the actor does.
fn next(queue: &Queue, most: usize) -> Vec<Call> {
    block_on(poll_fn(|context| {
        let bundle = queue.take(most, context.waker());
        bundle.map_or(Poll::Pending, |bundle| Poll::Ready(bundle.calls))
    }))
}

/// The calls that the actor sends until it has sent `count`, each as its verb and the first byte of its token.
fn sent(queue: &Queue, count: usize, most: usize) -> Vec<(char, u8)> {
    let mut sent = Vec::new();
    while sent.len() < count {
        sent.extend(next(queue, most).iter().map(name));
    }
    sent
}

#[test]
fn a_release_never_overtakes_its_acquire() {
    loom::model(|| {
        let queue = queue();
        let callers =
            [1, 2].map(|token| spawn(&queue, move |queue| acquire_and_leave(queue, token)));
        let sent = sent(&queue, 4, 1);
        for token in [1, 2] {
            let at = |verb| sent.iter().position(|call| *call == (verb, token));
            assert!(at('a') < at('r'), "{sent:?}");
        }
        callers
            .into_iter()
            .for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn a_release_that_is_requeued_while_others_are_queued_is_sent_again() {
    loom::model(|| {
        let queue = queue();
        queue.push_unattended(release(1, None));
        let caller = spawn(&queue, |queue| acquire_and_leave(queue, 2));
        let in_flight = next(&queue, 1);
        let lost: Vec<_> = in_flight.iter().map(name).collect();
        // The connection broke before the answer.
        queue.push_front(in_flight.into_iter());
        let sent = sent(&queue, 3, 1);
        assert!(lost == [('r', 1)] && sent.contains(&('r', 1)), "{sent:?}");
        caller.join().unwrap();
    });
}

#[test]
fn every_queued_call_wakes_the_actor() {
    loom::model(|| {
        let queue = queue();
        let callers = [
            spawn(&queue, |queue| drop(queue.push(acquire(1)))),
            spawn(&queue, |queue| queue.push_unattended(release(2, None))),
        ];
        assert_eq!(sent(&queue, 2, 128).len(), 2);
        callers
            .into_iter()
            .for_each(|caller| caller.join().unwrap());
    });
}

#[test]
fn a_call_that_is_queued_while_the_actor_ends_is_answered() {
    loom::model(|| {
        let queue = queue();
        let caller = spawn(&queue, |queue| match queue.push(acquire(1)) {
            Ok(pushed) => block_on(pushed.answer).unwrap().unwrap_err().failure,
            Err(error) => Failure::Transport(error),
        });
        queue.end();
        let wanted = Failure::Transport(TransportError::RuntimeGone);
        assert_eq!(caller.join().unwrap(), wanted);
        assert!(queue.lock().waiting.is_empty());
    });
}

#[test]
fn a_call_that_is_queued_while_the_node_fails_is_answered_and_a_release_stays() {
    loom::model(|| {
        let queue = queue();
        let caller = spawn(&queue, |queue| match queue.push(acquire(1)) {
            Ok(pushed) => block_on(pushed.answer).unwrap().unwrap_err().failure,
            Err(error) => Failure::Transport(error),
        });
        let dropped = spawn(&queue, |queue| queue.push_unattended(release(2, None)));
        queue.fail(&TransportError::Disconnected, None);
        let wanted = Failure::Transport(TransportError::Disconnected);
        assert_eq!(caller.join().unwrap(), wanted);
        dropped.join().unwrap();
        assert_eq!(sent(&queue, 1, 128), [('r', 2)]);
    });
}

#[test]
fn the_release_of_the_last_handle_is_sent_before_the_actor_ends() {
    loom::model(|| {
        let queue = queue();
        let handle = spawn(&queue, |queue| {
            queue.push_unattended(release(1, None));
            queue.close();
        });
        let mut sent = Vec::new();
        block_on(poll_fn(|context| {
            if queue.is_done() {
                return Poll::Ready(());
            }
            while let Some(bundle) = queue.take(128, context.waker()) {
                sent.extend(bundle.calls.iter().map(name));
            }
            if queue.is_done() {
                return Poll::Ready(());
            }
            Poll::Pending
        }));
        assert_eq!(sent, [('r', 1)]);
        handle.join().unwrap();
    });
}
