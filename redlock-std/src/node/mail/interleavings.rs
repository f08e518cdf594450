//! Every order of the threads that call a client and that wait for a call.

use loom::future::block_on;
use loom::thread;

use super::*;

fn mail() -> Arc<Mail> {
    Arc::new(Mail::new(Mailbox::new([7; 8]), Teller::alone()))
}

#[test]
fn a_call_that_comes_while_an_acquire_begins_to_wait_wakes_it() {
    loom::model(|| {
        let mail = mail();
        let waiter = mail.wait_for(b"dock", true);
        let caller = thread::spawn(move || {
            mail.deliver(b"2dock");
            mail.deliver(b"1dock");
        });
        let mut call = block_on(waiter.called());
        if call == Call::Deputy {
            call = block_on(waiter.called());
        }
        assert_eq!(call, Call::Turn);
        caller.join().unwrap();
    });
}

#[test]
fn an_acquire_that_asks_while_it_is_decided_whether_the_node_can_call_is_told() {
    loom::model(|| {
        let mail = mail();
        let asking = Arc::clone(&mail);
        let acquire = thread::spawn(move || block_on(asking.open()));
        // As the subscriber does, which is woken by the first that asks.
        block_on(async {
            while mail.is_idle() {
                mail.changed.notified().await;
            }
        });
        mail.opened(None);
        acquire.join().unwrap();
        assert!(mail.can_call(None));
    });
}

#[test]
fn an_acquire_that_comes_when_the_connection_is_given_up_has_it_made_again() {
    loom::model(|| {
        let mail = mail();
        mail.opened(None);
        mail.lock().last_wanted -= KEPT;
        let asking = Arc::clone(&mail);
        let acquire = thread::spawn(move || asking.want());
        let is_at_rest = mail.rest();
        acquire.join().unwrap();
        // Either the connection stays, or it is wanted.
        assert!(!is_at_rest || !mail.is_idle() || mail.can_call(None));
    });
}
