//! Fencing tokens, which grow even if nodes lose data; and clocks of nodes that jump.

use core::pin::pin;
use core::time::Duration;
use std::cell::RefCell;
use std::string::ToString;
use std::vec::Vec;

use redlock_core::mock::{MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Proposal, Reply};
use redlock_core::{
    AcquireError, Clock, Denial, Fence, FenceGate, Fencing, Instant, NodeErrorOf, Options,
    OptionsError, Redlock, Token, Transport,
};

use crate::world::*;

const WINDOW: Duration = Fencing::WINDOW;

fn fenced() -> Options {
    one_round().fenced(rules()).unwrap()
}

fn rules() -> Fencing {
    Fencing::new(WINDOW).unwrap()
}

fn fenced_client<'c>(nodes: &'c [Node<'c>], clock: &'c MockClock, seed: u64) -> Lock<'c> {
    client_with(nodes, clock, seed, fenced())
}

#[test]
fn the_fence_of_every_lease_fits_in_a_bigint_of_sql_and_other_numbers_stay_in_order() {
    for (number, bigint) in [(0, 0), ((1 << 53) - 1, (1 << 53) - 1), (u64::MAX, i64::MAX)] {
        assert_eq!(Fence::from_u64(number).as_i64(), bigint);
    }
}

#[test]
fn every_lease_has_a_higher_fence_than_those_before_it() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut clients = [1, 2, 3].map(|seed| fenced_client(&nodes, &clock, seed));
    let mut last = Fence::ZERO;
    for turn in 0..unless_miri(30, 4) {
        let redlock = &mut clients[turn % 3];
        nodes[turn % 5].hang();
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        nodes[turn % 5].resume();
        let fence = lease.fence().unwrap();
        assert!(fence > last, "turn {turn}: {fence} after {last}");
        last = fence;
        if turn % 4 == 0 {
            drop(lease);
            clock.advance(EXPIRED);
        } else {
            clock.run(redlock.release(lease));
        }
    }
}

#[test]
fn a_plain_lease_has_no_fence() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let lease = try_once(&nodes, &clock).unwrap();
    assert_eq!(lease.fence(), None);
}

#[test]
fn a_client_asks_twice_the_first_time_and_once_from_then_on() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let proposals = RefCell::new(Vec::new());
    let taps = nodes.iter().map(|node| tap(node, &proposals));
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 3>::new(taps, &clock, entropy, fenced()).unwrap();
    for turn in 0..5 {
        proposals.borrow_mut().clear();
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        clock.run(redlock.release(lease));
        clock.advance(ms(1));
        let rounds = if turn == 0 { 2 } else { 1 };
        assert_eq!(proposals.borrow().len(), 3 * rounds, "turn {turn}");
    }
    // Another client on the same clock need not learn it again.
    let mut fork = redlock.fork(SeededEntropy::new(2));
    proposals.borrow_mut().clear();
    assert!(clock.run(fork.try_acquire(KEY)).is_ok());
    assert_eq!(proposals.borrow().len(), 3);
}

#[test]
fn the_first_attempt_of_all_wins_whatever_the_number_of_nodes() {
    for count in 1..=5 {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        // One answers after the other.
        for (node, latency) in nodes.iter().zip(1..) {
            node.set_latency(ms(latency));
        }
        let lease = clock.run(fenced_client(&nodes[..count], &clock, 1).try_acquire(KEY));
        assert!(lease.is_ok(), "{count} nodes: {lease:?}");
    }
}

#[test]
fn a_client_whose_idea_of_the_time_is_behind_wins_in_its_second_round() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut first, lease) = holder_with(&nodes, &clock, fenced());
    let before = lease.fence().unwrap();
    clock.run(first.release(lease));
    let mut second = fenced_client(&nodes, &clock, 2);
    second.set_clock_offset(first.clock_offset().map(|offset| offset - 100_000));
    let lease = clock.run(second.try_acquire(KEY)).unwrap();
    assert!(lease.fence().unwrap() > before);
}

#[test]
fn plain_and_fenced_clients_exclude_each_other() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut plain, mut fenced) = (client(&nodes, &clock, 1), fenced_client(&nodes, &clock, 2));
    let lease = clock.run(plain.try_acquire(KEY)).unwrap();
    let held = clock.run(fenced.try_acquire(KEY));
    assert!(matches!(held, Err(AcquireError::Held(_))), "{held:?}");
    clock.run(plain.release(lease));
    let lease = clock.run(fenced.try_acquire(KEY)).unwrap();
    let held = clock.run(plain.try_acquire(KEY));
    assert!(matches!(held, Err(AcquireError::Held(_))), "{held:?}");
    clock.run(fenced.release(lease));
    assert!(clock.run(plain.try_acquire(KEY)).is_ok());
}

#[test]
fn a_client_that_finds_a_fenced_lock_held_is_told_when_it_becomes_free() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let lease = try_once(&nodes, &clock).unwrap();
    clock.advance(ms(3_500));
    let error = clock
        .run(fenced_client(&nodes, &clock, 2).try_acquire(KEY))
        .unwrap_err();
    let free_in = error.report().unwrap().free_in().unwrap();
    assert_eq!(free_in, ms(6_502));
    let words = error.to_string();
    assert!(
        words.ends_with(" nodes refused; free in at most 7 s"),
        "{words}"
    );
    clock.advance(free_in + ms(1));
    assert!(!lease.is_valid(clock.now()));
    assert!(
        clock
            .run(fenced_client(&nodes, &clock, 2).try_acquire(KEY))
            .is_ok()
    );
}

#[test]
fn a_fenced_lock_that_a_min_hold_keeps_is_free_when_its_lease_ends() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = fenced().min_hold(ms(1_000)).unwrap();
    let mut job = client_with(&nodes, &clock, 1, options);
    let lease = clock.run(job.try_acquire(KEY)).unwrap();
    clock.run(job.release(lease));
    assert!(nodes.iter().all(|node| node.ttl(KEY) <= Some(ms(1_001))));
    let mut other = fenced_client(&nodes, &clock, 2);
    let asked_at = clock.now();
    let error = clock.run(other.try_acquire(KEY)).unwrap_err();
    let told = error.report().unwrap().free_in().unwrap();

    // The clock may be late by a tick.
    clock.advance(ms(1_002));
    assert_eq!(holders(&nodes), 0, "the min_hold is over");
    let again_at = clock.now();
    let error = clock.run(other.try_acquire(KEY)).unwrap_err();
    let then = error.report().unwrap().free_in().unwrap();
    // Whole milliseconds, and the margins of two answers.
    let free_at = |from: Instant, left| from.saturating_add(left).as_micros();
    let between = free_at(asked_at, told).abs_diff(free_at(again_at, then));
    assert!(between <= 10_000, "{told:?}, then {then:?}");
    clock.advance(then + ms(1));
    assert!(clock.run(other.try_acquire(KEY)).is_ok());
}

#[test]
fn fences_grow_although_every_node_has_lost_everything() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut redlock = fenced_client(&nodes, &clock, 1);
    let before = clock.run(redlock.try_acquire(KEY)).unwrap().fence();
    nodes.iter().for_each(MockNode::clear);

    let error = clock.run(redlock.try_acquire(KEY)).unwrap_err();
    // A minute, four windows and a second.
    let wanted = "may have forgotten locks, its vote counts again in 62 s";
    assert!(error.to_string().contains(wanted), "{error}");
    clock.advance(ms(61_900));
    assert!(clock.run(redlock.try_acquire(KEY)).is_err());
    clock.advance(ms(101));
    let after = clock.run(redlock.try_acquire(KEY)).unwrap().fence();
    assert!(after > before);
}

#[test]
fn a_wait_that_is_long_enough_outlasts_a_flush() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = one_round().wait(Duration::from_secs(30));
    let rules = rules().with_max_ttl(TTL).unwrap();
    let options = options.fenced(rules.with_step_back(TTL).unwrap()).unwrap();
    nodes.iter().for_each(MockNode::clear);
    let lease = clock.run(client_with(&nodes, &clock, 1, options).acquire(KEY));
    assert!(lease.is_ok());
    assert!(clock.now() > at(ms(12_000)) && clock.now() < at(ms(12_300)));
}

/// What plain Redlock cannot promise, and a fenced lock can.
#[test]
fn the_clocks_of_a_minority_may_jump_and_a_lease_stays_exclusive() {
    for (count, jumping) in [(3, 1), (5, 2)] {
        for jump in [11_000_000, 3_600_000_000, -3_600_000_000] {
            assert!(
                !is_taken_over(count, jumping, jump, fenced()),
                "{count} {jump}"
            );
        }
        assert!(is_taken_over(count, jumping, 11_000_000, one_round()));
    }
}

#[test]
fn when_a_majority_jumps_together_nothing_helps() {
    assert!(is_taken_over(3, 2, 11_000_000, fenced()));
}

#[test]
fn a_clock_that_jumps_forward_and_is_right_again_gives_nothing_away_before_the_lease_ends() {
    let clock = MockClock::new();
    let fleet: [Node<'_>; 5] = MockNode::array(&clock);
    let nodes = &fleet[..3];
    // The third one does not hear of the first client in time.
    nodes[2].hang();
    let (mut holder, mut lease) = holder_with(nodes, &clock, fenced());
    clock.advance(WINDOW + ms(1));
    nodes[2].resume();

    // Redis deletes what has expired, and does not bring it back.
    let jump = || {
        nodes[1].set_clock_step(11_000_000);
        nodes[1].set_clock_step(0);
        assert_eq!(nodes[1].token(KEY), None);
    };
    jump();
    let mut other = fenced_client(nodes, &clock, 2);
    let error = clock.run(other.try_acquire(KEY)).unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");

    // An extension counts from then on.
    clock.advance(ms(5_000));
    clock.run(holder.extend(&mut lease)).unwrap();
    clock.advance(TTL - ms(2_000));
    jump();
    assert!(clock.run(other.try_acquire(KEY)).is_err());

    // And a release frees it.
    clock.run(holder.release(lease));
    assert!(clock.run(other.try_acquire(KEY)).is_ok());
}

#[test]
fn until_when_a_lock_is_held_is_known_for_as_long_as_it_is_held() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    // A fence alone would be forgotten long before the end of the lease.
    let rules = rules().with_step_back(ms(2_000)).unwrap();
    let options = one_round().fenced(rules).unwrap();
    let lease = clock
        .run(client_with(&nodes, &clock, 1, options).try_acquire(KEY))
        .unwrap();
    clock.advance(ms(8_500));
    assert!(lease.is_valid(clock.now()));
    for node in &nodes {
        node.set_clock_step(1_600_000);
        node.set_clock_step(0);
    }
    assert_eq!(holders(&nodes), 0);
    let mut other = client_with(&nodes, &clock, 2, options);
    assert!(clock.run(other.try_acquire(KEY)).is_err());
}

#[test]
fn an_extension_by_a_clock_that_was_set_back_takes_nothing_off_the_lease() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[2].hang();
    let (mut holder, mut lease) = holder_with(&nodes, &clock, fenced());
    clock.advance(WINDOW + ms(1));
    nodes[2].resume();
    nodes[1].set_clock_step(-5_000_000);
    let offset = holder.clock_offset();
    holder.set_clock_offset(offset.map(|offset| offset - 5_000_000));
    assert!(clock.run(holder.extend(&mut lease)).is_err());
    assert_eq!(nodes[1].ttl(KEY), Some(TTL), "extended by its own clock");

    clock.advance(ms(8_250));
    nodes[1].set_clock_step(0);
    assert!(lease.is_valid(clock.now()));
    assert_eq!(nodes[1].token(KEY), None);
    let mut other = fenced_client(&nodes, &clock, 2);
    assert!(clock.run(other.try_acquire(KEY)).is_err());
}

#[test]
fn a_release_frees_a_lock_for_which_others_have_asked_meanwhile() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut holder, lease) = holder_with(&nodes, &clock, fenced());
    clock.advance(ms(1));
    // An attempt that is released leaves a higher fence behind.
    let mut other = fenced_client(&nodes, &clock, 2);
    other.set_clock_offset(holder.clock_offset());
    nodes.iter().for_each(|node| node.set_latency(ms(10)));
    assert!(poll_once(pin!(other.try_acquire(KEY))).is_pending());
    clock.run(other.release_abandoned());
    clock.run(holder.release(lease));
    nodes.iter().for_each(|node| node.set_latency(ms(0)));
    assert!(clock.run(other.try_acquire(KEY)).is_ok());
}

#[test]
fn a_clock_that_is_set_right_in_quarantine_makes_two_holders_with_ordered_fences() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[2].hang();
    let rules = rules().with_max_ttl(TTL).unwrap();
    let options = one_round().fenced(rules).unwrap();
    let (_, lease) = holder_with(&nodes, &clock, options);
    clock.advance(WINDOW + ms(1));
    nodes[2].resume();

    // It forgets while it is behind, and another client believes its clock.
    nodes[1].set_clock_step(-60_000_000);
    nodes[1].clear();
    nodes[0].hang();
    let mut misled = client_with(&nodes, &clock, 3, options);
    assert!(clock.run(misled.try_acquire(KEY)).is_err());
    nodes[0].resume();

    nodes[1].set_clock_step(0);
    clock.advance(ms(2_000));
    let other = clock
        .run(client_with(&nodes, &clock, 2, options).try_acquire(KEY))
        .unwrap();
    assert!(lease.is_valid(clock.now()) && other.is_valid(clock.now()));
    assert!(other.fence() > lease.fence());
}

/// Whether another client gets a lock that is held, if the clocks of the last `jumping` nodes of the holder's
/// quorum jump.
fn is_taken_over(count: usize, jumping: usize, jump: i64, options: Options) -> bool {
    let clock = MockClock::new();
    let fleet: [Node<'_>; 5] = MockNode::array(&clock);
    let nodes = &fleet[..count];
    let quorum = count / 2 + 1;
    nodes[quorum..].iter().for_each(MockNode::stop);
    let (_first, lease) = holder_with(nodes, &clock, options);
    // Those that did not take part keep what they know: a crash is another story.
    nodes[quorum..].iter().for_each(|node| node.restart());
    let mut second = client_with(nodes, &clock, 2, options.restart_guard(false));
    for node in &nodes[quorum - jumping..quorum] {
        node.set_clock_step(jump);
    }
    while lease.is_valid(clock.now()) {
        if clock.run(second.try_acquire(KEY)).is_ok() {
            return true;
        }
        clock.advance(ms(unless_miri(100, 3_000)));
    }
    false
}

#[test]
fn a_lease_loses_four_windows_and_the_skew_where_clocks_may_jump() {
    let plain = one_round().validity();
    let cost = 4 * WINDOW + WINDOW;
    assert_eq!(fenced().validity(), plain - cost);
    let none = fenced().tolerate_clock_jumps(false, ms(50)).unwrap();
    assert_eq!(none.validity(), plain);
    let fine = Duration::from_micros(1_001);
    let skewed = fenced().tolerate_clock_jumps(true, fine).unwrap();
    assert_eq!(skewed.validity(), plain - 4 * WINDOW - ms(2), "rounded up");
    // Most of a short lease would be lost.
    let short = Options::new(ms(9_999)).unwrap();
    assert_eq!(short.fenced(rules()).unwrap().validity(), short.validity());
}

/// A client counts it in 32 bits of milliseconds, and would wait for less than the quarantine.
#[test]
fn rules_with_a_quarantine_that_cannot_be_counted_are_refused() {
    // The windows and the second of grace.
    let longest = Options::MAX_TTL - ms(4 * 250 + 1_000);
    for set in [Fencing::with_max_ttl, Fencing::with_step_back] {
        let rules = set(Fencing::default(), longest).unwrap();
        assert_eq!(rules.quarantine(), Options::MAX_TTL);
        let options = one_round().fenced(rules).unwrap();
        assert_eq!(options.vote_conditions().quarantine_ms, u32::MAX);
        let longer = set(Fencing::default(), longest + ms(1));
        assert_eq!(longer, Err(OptionsError::Quarantine));
    }
}

#[test]
fn rules_that_cannot_be_followed_are_refused() {
    for window in [
        Duration::ZERO,
        Duration::from_micros(999),
        ms(3_600_001),
        Duration::MAX,
    ] {
        assert_eq!(Fencing::new(window), Err(OptionsError::Window));
    }
    let longer = Options::new(ms(60_001)).unwrap();
    assert_eq!(longer.fenced(rules()), Err(OptionsError::MaxTtl));
    let for_longer = rules().with_max_ttl(ms(60_001)).unwrap();
    assert!(longer.fenced(for_longer).is_ok());
    let for_shorter = rules().with_max_ttl(ms(9_999)).unwrap();
    assert_eq!(one_round().fenced(for_shorter), Err(OptionsError::MaxTtl));
    assert_eq!(
        rules().with_max_ttl(Duration::MAX),
        Err(OptionsError::TtlTooLong)
    );
    assert_eq!(
        rules().with_step_back(Duration::MAX),
        Err(OptionsError::StepBack)
    );
    let all = fenced().tolerate_clock_jumps(true, TTL);
    assert_eq!(all, Err(OptionsError::TtlTooShort));
    let endless = fenced().tolerate_clock_jumps(true, Duration::MAX);
    assert_eq!(endless, Err(OptionsError::TtlTooShort));
    // The node timeout is not set: its default follows from what the margin leaves.
    let narrow = Fencing::new(ms(2)).unwrap();
    let short = Options::new(ms(100)).unwrap().fenced(narrow).unwrap();
    assert!(short.round_time() < short.validity());
}

#[test]
fn a_client_with_other_rules_has_no_vote_anywhere() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, lease) = holder_with(&nodes, &clock, fenced());
    clock.run(redlock.release(lease));
    for other in [
        Fencing::new(ms(251)),
        rules().with_max_ttl(ms(59_999)),
        rules().with_step_back(ms(1)),
    ] {
        let other = one_round().fenced(other.unwrap()).unwrap();
        let error = clock
            .run(client_with(&nodes, &clock, 2, other).try_acquire(KEY))
            .unwrap_err();
        assert!(
            error.to_string().contains("other clients have other rules"),
            "{error}"
        );
    }
    assert!(clock.run(redlock.try_acquire(KEY)).is_ok());
}

#[test]
fn an_acquire_that_arrives_after_its_release_is_refused() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let mut way = &node;
    let token = thief();
    let proposal = proposal_now(&clock, &node);
    let acquire = Command::acquire(
        KEY.as_bytes(),
        &token,
        10_000,
        redlock_core::transport::VoteConditions::NONE,
    )
    .with_proposal(Some(proposal));
    let release = Command::release(KEY.as_bytes(), &token).with_proposal(Some(proposal));
    assert_eq!(clock.run(way.execute(&release)), Ok(Reply::NotMine));
    let late = clock.run(way.execute(&acquire)).unwrap_err();
    assert!(matches!(late.denial(), Some(Denial::Stale(_))), "{late}");
}

#[test]
fn an_extend_that_arrives_after_its_release_does_not_set_the_key_again() {
    let clock = MockClock::new();
    let node = MockNode::new(1, &clock);
    let proposals = RefCell::new(Vec::new());
    let tap = tap(&node, &proposals);
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 1>::new([tap], &clock, entropy, fenced()).unwrap();
    // Long after the round the fence of a lease is out of the window.
    for pause in [ms(0), WINDOW, 4 * WINDOW] {
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        let token = *lease.token();
        clock.advance(pause);
        clock.run(redlock.release(lease));
        let late = Command::extend(KEY.as_bytes(), &token, 10_000)
            .with_proposal(proposals.borrow().last().copied());
        assert_eq!(clock.run((&mut &node).execute(&late)), Ok(Reply::NotMine));
        assert_eq!(node.token(KEY), None);
    }
}

#[test]
fn a_fenced_lease_that_is_adopted_keeps_its_fence_and_refuses_lower_ones() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut first = fenced_client(&nodes, &clock, 1);
    let lease = clock.run(first.try_acquire(KEY)).unwrap();
    let (token, fence) = (*lease.token(), lease.fence());
    assert!(fence.is_some());
    let mut second = fenced_client(&nodes, &clock, 2);
    let adopted = clock.run(second.adopt(KEY, token, fence)).unwrap();
    assert_eq!(adopted.fence(), fence);
    clock.run(second.release(adopted));
    let next = clock.run(first.try_acquire(KEY)).unwrap();
    assert!(next.fence() > fence);
    // The adopted one is over.
    let result = clock.run(second.adopt(KEY, token, fence));
    assert!(result.is_err(), "{result:?}");
}

#[test]
fn nodes_whose_clocks_jumped_and_that_answer_first_do_not_block_the_lock() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    for (node, latency) in nodes.iter().zip([0, 0, 1, 5, 5]) {
        node.set_latency(ms(latency));
    }
    for node in &nodes[..2] {
        node.set_clock_step(3_600_000_000);
    }
    let options = fenced().wait(ms(1_000));
    let mut redlock = client_with(&nodes, &clock, 1, options);
    assert!(clock.run(redlock.acquire(KEY)).is_ok());
}

#[test]
fn an_extension_heals_a_node_that_lost_the_key_and_remembers_the_fence() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, fenced());
    nodes[0].remove(KEY);
    clock.run(redlock.extend(&mut lease)).unwrap();
    assert_eq!(holders(&nodes), 3);

    // Another attempt was accepted since, when the clock was ahead: the extension must not replace it.
    nodes[0].set_clock_step(11_000_000);
    let mut other = fenced_client(&nodes, &clock, 2);
    let ahead = redlock.clock_offset().map(|offset| offset + 11_000_000);
    other.set_clock_offset(ahead);
    assert!(clock.run(other.try_acquire(KEY)).is_err());
    assert!(nodes[0].fence(KEY) > Some(lease.fence().unwrap()));
    nodes[0].set_clock_step(0);
    clock.run(redlock.extend(&mut lease)).unwrap();
    assert_eq!(holders(&nodes), 2);
}

#[test]
fn a_node_whose_clock_is_off_has_no_vote_for_an_extension() {
    for jump in [-3_600_000_000, 3_600_000_000_i64] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        nodes[2].stop();
        let (mut redlock, mut lease) = holder_with(&nodes, &clock, fenced());
        nodes[1].set_clock_step(jump);
        // A key that lives for an hour, and may expire at the moment when the clock is right again.
        let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
}

#[test]
fn an_extension_is_asked_for_once_more_where_the_client_was_wrong_about_the_time() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, fenced());
    // After hours on a clock that drifts.
    let right = redlock.clock_offset();
    redlock.set_clock_offset(right.map(|offset| offset - 1_000_000));
    assert_eq!(clock.run(redlock.extend(&mut lease)), Ok(()));
    assert_eq!(redlock.clock_offset(), right);
}

#[test]
fn a_dropped_acquire_of_a_fenced_lock_leaves_no_key() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, lease) = holder_with(&nodes, &clock, fenced());
    clock.run(redlock.release(lease));
    nodes.iter().for_each(|node| node.set_latency(ms(10)));
    assert!(poll_once(pin!(redlock.try_acquire(KEY))).is_pending());
    clock.run(redlock.release_abandoned());
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_gate_refuses_an_earlier_holder_after_a_later_one() {
    let mut gate = FenceGate::above(Fence::from_u64(5));
    assert!(!gate.admit(Fence::from_u64(4)));
    assert!(
        gate.admit(Fence::from_u64(5)),
        "a client that it has seen may come again"
    );
    assert!(gate.admit(Fence::from_u64(8)));
    assert!(!gate.admit(Fence::from_u64(7)));
    assert_eq!(gate.highest(), Fence::from_u64(8));
}

/// A fence that the node accepts now.
fn proposal_now(clock: &MockClock, node: &Node<'_>) -> Proposal {
    let proposals = RefCell::new(Vec::new());
    let tap = tap(node, &proposals);
    let entropy = SeededEntropy::new(9);
    let mut redlock = Redlock::<_, _, _, 1>::new([tap], clock, entropy, fenced()).unwrap();
    let lease = clock.run(redlock.try_acquire("another")).unwrap();
    clock.run(redlock.release(lease));
    let proposals = proposals.borrow();
    *proposals.last().unwrap()
}

/// Records what is proposed.
fn tap<'t>(
    node: &'t Node<'t>,
    proposals: &'t RefCell<Vec<Proposal>>,
) -> Tap<'t, impl Fn(&Command<'_>) + Clone> {
    let spy = move |command: &Command<'_>| {
        if command.is_acquire() {
            proposals.borrow_mut().extend(command.proposal);
        }
    };
    Tap { node, spy }
}

/// A transport to a node on which the second copy of an acquire is late.
struct Slow<'c> {
    node: &'c Node<'c>,
    is_slow: bool,
    seen: &'c RefCell<Vec<Token>>,
    late: &'c RefCell<Option<(Token, Proposal)>>,
}

impl Transport for Slow<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.node.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let token = command.token;
        if let Some(proposal) = command.proposal
            && command.is_acquire()
            && self.is_slow
        {
            if self.seen.borrow().contains(token) {
                *self.late.borrow_mut() = Some((*token, proposal));
                return core::future::pending().await;
            }
            self.seen.borrow_mut().push(*token);
        }
        self.node.execute(command).await
    }
}

#[test]
fn a_late_copy_of_an_acquire_does_not_shorten_what_an_extension_has_promised() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (seen, late) = (RefCell::default(), RefCell::default());
    let ways = nodes.iter().zip([false, false, true]);
    let ways = ways.map(|(node, is_slow)| Slow {
        node,
        is_slow,
        seen: &seen,
        late: &late,
    });
    let mut holder =
        Redlock::<_, _, _, 3>::new(ways, &clock, SeededEntropy::new(1), fenced()).unwrap();
    let first = clock.run(holder.try_acquire("another")).unwrap();
    clock.run(holder.release(first));
    // So long ago that the client no longer vouches: the slow node gets the acquire once again.
    clock.advance(ms(40_000));
    nodes[2].set_latency(ms(2));
    let mut lease = clock.run(holder.try_acquire(KEY)).unwrap();
    clock.advance(ms(6_000));
    nodes[1].hang();
    clock.run(holder.extend(&mut lease)).unwrap();
    // It comes while the clock is behind, and the fence in its window.
    let (token, proposal) = late.borrow().unwrap();
    clock.advance(ms(500));
    nodes[2].set_clock_step(-6_450_000);
    let copy = Command::acquire(KEY.as_bytes(), &token, 10_000, fenced().vote_conditions())
        .with_proposal(Some(proposal));
    assert!(clock.run((&nodes[2]).execute(&copy)).is_ok());
    nodes[2].set_clock_step(0);
    // The key of the other client has expired, and the lease has not.
    clock.advance(ms(3_700));
    nodes[1].resume();
    let second = clock.run(fenced_client(&nodes, &clock, 2).try_acquire(KEY));
    assert!(lease.is_valid(clock.now()));
    assert!(second.is_err(), "{second:?}");
}
