//! Keeping the lock for longer.

use core::pin::pin;
use core::time::Duration;

use redlock_core::mock::{MockClock, MockNode};
use redlock_core::{Clock, ExtendError, Instant, Lease, Options};

use crate::world::*;

#[test]
fn an_extension_resets_the_ttl_and_the_validity() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    clock.advance(ms(4_000));
    clock.run(redlock.extend(&mut lease)).unwrap();
    let until = Instant::from_micros(4_000_000 + 10_000_000 - 102_000 - 1);
    assert_eq!(lease.valid_until(), until);
    assert!(
        nodes.iter().all(|node| node.ttl(KEY) == Some(TTL)),
        "reset, not added to"
    );
}

#[test]
fn a_lease_is_extended_by_its_own_ttl_whatever_the_options_are_now() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    redlock.set_options(Options::new(ms(1_000)).unwrap());
    clock.advance(ms(500));
    clock.run(redlock.extend(&mut lease)).unwrap();
    assert!(nodes.iter().all(|node| node.ttl(KEY) == Some(TTL)));
    assert_eq!(lease.ttl(), TTL);
    let until = ms(500) + TTL - ms(102) - Duration::from_micros(1);
    assert_eq!(lease.valid_until(), at(until));
}

#[test]
fn an_extension_is_valid_by_the_drift_that_the_lease_was_granted_with() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let drifting = one_round().drift_ppm(900_000).unwrap();
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, drifting);
    // Nine of ten seconds are drift, although the options have changed since.
    redlock.set_options(one_round());
    clock.run(redlock.extend(&mut lease)).unwrap();
    let until = at(ms(1_000) - ms(2) - Duration::from_micros(1));
    assert_eq!(lease.valid_until(), until);

    // Replies that are read when that is over come too late, whatever was granted before.
    let mut redlock = client_with(&nodes, &clock, 2, drifting);
    let mut lease = clock.run(redlock.try_acquire("dock-8")).unwrap();
    redlock.set_options(one_round());
    nodes.iter().for_each(|node| node.set_latency(ms(10)));
    let result = clock.run(async {
        let mut extension = pin!(redlock.extend(&mut lease));
        assert!(poll_once(extension.as_mut()).is_pending());
        clock.advance(ms(1_000));
        extension.await
    });
    assert!(matches!(result, Err(ExtendError::TooLate(_))), "{result:?}");
}

#[test]
fn an_extension_is_counted_from_before_its_round() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    clock.advance(ms(4_000));
    nodes.iter().for_each(|node| node.set_latency(ms(30)));
    clock.run(redlock.extend(&mut lease)).unwrap();
    assert_eq!(clock.now(), at(ms(4_030)));
    let until = ms(4_000) + TTL - ms(102) - Duration::from_micros(1);
    assert_eq!(
        lease.valid_until(),
        at(until),
        "the way to the nodes is in it"
    );
}

#[test]
fn any_mixture_of_nodes_that_carry_the_token_or_not_or_are_silent_ends_as_the_rule_says() {
    for count in 1..=NODES_MAX {
        for mixture in Mixture::all(count) {
            let clock = MockClock::new();
            let fleet: [Node<'_>; NODES_MAX] = MockNode::array(&clock);
            let nodes = &fleet[..count];
            let (mut redlock, mut lease) = holder(nodes, &clock);
            let before = lease.valid_until();
            clock.advance(ms(1_000));
            mixture.begin(nodes);
            let result = clock.run(redlock.extend(&mut lease));

            let [carry, do_not, hung] = [Condition::Well, Condition::Taken, Condition::Hung]
                .map(|condition| mixture.count(condition));
            let majority = count / 2 + 1;
            let is_lost = count - do_not < majority;
            match result {
                Ok(()) => assert!(carry >= majority, "{mixture:?}"),
                Err(ExtendError::Lost(_)) => assert!(is_lost, "{mixture:?}"),
                Err(ExtendError::Unreachable(_)) => {
                    assert!(carry < majority && !is_lost, "{mixture:?}");
                }
                Err(other) => panic!("{mixture:?}: {other}"),
            }
            assert_eq!(
                lease.valid_until() > before,
                carry >= majority,
                "{mixture:?}"
            );
            let is_decided_at_once = carry >= majority || carry + hung < majority;
            let waited = if is_decided_at_once { ms(0) } else { TIMEOUT };
            assert_eq!(clock.now(), at(ms(1_000) + waited), "{mixture:?}");
            // When all nodes work again, it can be extended unless it is lost.
            mixture.end(nodes);
            assert_eq!(key_count(nodes), count, "no key is made or deleted");
            assert!(mixture.thief_has_its_keys(nodes), "{mixture:?}");
            assert_eq!(
                clock.run(redlock.extend(&mut lease)).is_ok(),
                !is_lost,
                "{mixture:?}"
            );
        }
    }
}

#[test]
fn a_lease_of_which_only_the_token_is_known_cannot_be_extended() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    let mut adopted = Lease::adopt(KEY, *lease.token());
    assert_eq!(adopted.ttl(), Duration::ZERO);
    let result = clock.run(redlock.extend(&mut adopted));
    assert_eq!(result, Err(ExtendError::Expired));
    assert!(
        nodes.iter().all(|node| node.ttl(KEY) == Some(TTL)),
        "a TTL of zero is not sent"
    );
}

#[test]
fn a_lease_that_is_adopted_is_valid_from_the_start_of_the_round_that_extended_it() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (_gone, lease) = holder(&nodes, &clock);
    let token = *lease.token();
    // Its validity is over, and its keys are not.
    clock.advance(TTL - ms(40));
    assert!(!lease.is_valid(clock.now()));
    nodes.iter().for_each(|node| node.set_latency(ms(30)));
    let mut other = client_with(&nodes, &clock, 2, one_round());
    let started_at = TTL - ms(40);
    let mut adopted = clock.run(other.adopt(KEY, token, None)).unwrap();
    let until = started_at + TTL - ms(102) - Duration::from_micros(1);
    assert_eq!(adopted.valid_until(), at(until));
    assert_eq!((*adopted.token(), adopted.ttl()), (token, TTL));
    // It is a lease as any other.
    clock.advance(ms(4_000));
    clock.run(other.extend(&mut adopted)).unwrap();
    let released = clock.run(other.release(adopted));
    assert!(released.released() >= 3, "{released:?}");
    clock.advance(ms(30));
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_lease_is_adopted_only_if_a_quorum_of_nodes_carries_its_token() {
    for stolen in 0..=5 {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let (_gone, lease) = holder(&nodes, &clock);
        let token = *lease.token();
        steal(&nodes[..stolen]);
        let mut other = client_with(&nodes, &clock, 2, one_round());
        let result = clock.run(other.adopt(KEY, token, None));
        match result {
            Ok(_) => assert!(stolen < 3),
            Err(ExtendError::Lost(_)) => assert!(stolen >= 3),
            Err(other) => panic!("{other}"),
        }
        assert_eq!(key_count(&nodes), 5, "no key is made or deleted");
    }
}

#[test]
fn a_lease_whose_keys_have_expired_is_not_adopted() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    clock.advance(TTL + ms(2));
    let result = clock.run(redlock.adopt(KEY, *lease.token(), None));
    assert!(matches!(result, Err(ExtendError::Lost(_))), "{result:?}");
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_lease_is_adopted_when_the_nodes_answer_again() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    nodes[..3].iter().for_each(MockNode::hang);
    let result = clock.run(redlock.adopt(KEY, *lease.token(), None));
    assert!(
        matches!(result, Err(ExtendError::Unreachable(_))),
        "{result:?}"
    );
    nodes[..3].iter().for_each(MockNode::resume);
    let adopted = clock.run(redlock.adopt(KEY, *lease.token(), None));
    assert!(adopted.is_ok());
}

#[test]
fn a_lease_survives_a_majority_that_is_away_for_less_than_its_validity() {
    for fault in Fault::ALL {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let (mut redlock, mut lease) = holder(&nodes, &clock);
        let before = lease.valid_until();
        nodes[..3].iter().for_each(|node| fault.begin(node));
        clock.advance(ms(3_000));
        let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
        assert!(
            matches!(error, ExtendError::Unreachable(_)) && error.is_retryable(),
            "{error}"
        );
        assert_eq!(lease.valid_until(), before, "as it was");
        nodes[..3].iter().for_each(|node| fault.end(node));
        assert_eq!(holders(&nodes), 5, "the keys stay");
        clock.run(redlock.extend(&mut lease)).unwrap();
        assert!(lease.valid_until() > before);
    }
}

#[test]
fn a_lease_is_lost_when_no_quorum_can_carry_its_token() {
    for stolen in 1..=5 {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let (mut redlock, mut lease) = holder(&nodes, &clock);
        steal(&nodes[..stolen]);
        let result = clock.run(redlock.extend(&mut lease));
        if stolen < 3 {
            result.unwrap();
        } else {
            assert!(matches!(result, Err(ExtendError::Lost(_))), "{result:?}");
        }
        assert!(
            nodes[..stolen]
                .iter()
                .all(|node| node.token(KEY) == Some(thief()))
        );
    }
}

#[test]
fn a_key_that_is_gone_is_not_made_again() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    nodes[0].restart_empty();
    nodes[1].remove(KEY);
    clock.run(redlock.extend(&mut lease)).unwrap();
    assert_eq!(holders(&nodes), 3);
    nodes[2].remove(KEY);
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert!(matches!(error, ExtendError::Lost(_)), "{error}");
    assert_eq!(holders(&nodes), 2);
}

#[test]
fn some_that_say_no_and_some_that_say_nothing_are_not_a_loss_for_certain() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    nodes[..2].iter().for_each(|node| node.remove(KEY));
    nodes[2].stop();
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert!(matches!(error, ExtendError::Unreachable(_)), "{error}");
    nodes[2].restart();
    clock.run(redlock.extend(&mut lease)).unwrap();
}

#[test]
fn an_expired_lease_is_not_extended_and_nothing_is_sent() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    clock.advance(lease.remaining(clock.now()));
    let left = nodes[0].ttl(KEY).unwrap();
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert_eq!(error, ExtendError::Expired);
    assert!(!error.is_retryable());
    assert!(
        nodes.iter().all(|node| node.ttl(KEY) == Some(left)),
        "the keys are as they were"
    );
}

#[test]
fn an_extension_does_not_outlast_the_validity_of_its_lease() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    let until = lease.valid_until();
    nodes[..3].iter().for_each(MockNode::hang);
    // Ten milliseconds before the end: the round is cut from fifty to ten.
    clock.advance(lease.remaining(clock.now()) - ms(10));
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert!(matches!(error, ExtendError::Unreachable(_)), "{error}");
    assert_eq!(clock.now(), until);
}

#[test]
fn replies_that_are_read_after_the_validity_do_not_extend_it() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    nodes.iter().for_each(|node| node.set_latency(ms(10)));
    clock.advance(ms(4_000));
    let result = clock.run(async {
        let mut extension = core::pin::pin!(redlock.extend(&mut lease));
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        assert!(extension.as_mut().poll(&mut context).is_pending());
        clock.advance(TTL - ms(102) - ms(4_000));
        extension.await
    });
    assert!(matches!(result, Err(ExtendError::TooLate(_))), "{result:?}");
    assert!(!lease.is_valid(clock.now()));
}
