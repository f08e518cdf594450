use super::super::history::{Call, End, Span};
use super::super::place::{Place, Route};
use super::*;
use redlock_core::Options;
use redlock_core::transport::{Reply, Verb, VoteConditions};

const NODES: usize = 3;

/// A lease of a client that is known by its token.
const fn claim(token: usize) -> Claim {
    let client = token;
    let task = Task { client, number: 0 };
    Claim {
        task,
        key: 0,
        token,
        fence: None,
    }
}

const fn message(verb: Verb, token: usize) -> Message {
    Message {
        verb,
        key: 0,
        token,
        proposal: None,
        place: None,
    }
}

const fn acquire(conditions: VoteConditions) -> Verb {
    Verb::Acquire {
        ttl_ms: 1,
        conditions,
    }
}

const fn stands(node: usize, token: usize, until: Moment) -> What {
    What::Stands(Place { node, key: 0 }, token, until)
}

const fn falls(node: usize) -> What {
    What::Falls(Place { node, key: 0 })
}

fn broken(facts: &[(Moment, What)]) -> Vec<(Promise, Moment)> {
    let facts: Vec<_> = facts
        .iter()
        .map(|(at, what)| Fact {
            at: *at,
            what: *what,
        })
        .collect();
    let breaches = judge(&facts, NODES, Promised::ALL, None);
    breaches
        .iter()
        .map(|breach| (breach.promise, breach.at))
        .collect()
}

/// All nodes have said yes.
fn answered(token: usize) -> impl Iterator<Item = (Moment, What)> {
    (0..NODES).map(move |node| {
        let route = Route {
            client: token,
            node,
        };
        let granted = Ok(Reply::Acquired(None));
        (
            5,
            What::Answered(
                route,
                message(acquire(VoteConditions::NONE), token),
                granted,
            ),
        )
    })
}

/// The token stands on all nodes until 100; the lease is held from 10 until 90.
fn held(token: usize) -> Vec<(Moment, What)> {
    let mut facts: Vec<_> = (0..NODES)
        .map(|node| (5, stands(node, token, 100)))
        .chain(answered(token))
        .collect();
    facts.push((10, What::Granted(claim(token), 90)));
    facts
}

/// The same with work that begins at 10.
fn worked(token: usize) -> Vec<(Moment, What)> {
    let mut facts = held(token);
    facts.pop();
    facts.push((10, What::Works(claim(token), 90)));
    facts
}

#[test]
fn a_lease_that_a_quorum_carries_is_good() {
    let mut facts = held(1);
    facts.push((20, falls(0)));
    assert_eq!(broken(&facts), []);
}

#[test]
fn a_lease_without_a_quorum_is_seen_at_the_moment_at_which_it_is_lost() {
    let mut facts = held(1);
    facts.extend([(20, falls(0)), (30, falls(1))]);
    assert_eq!(broken(&facts), [(Promise::Quorum, 30)]);
}

/// By its quarantine.
#[test]
fn a_node_that_has_forgotten_a_lease_keeps_others_out_all_the_same() {
    let mut facts = held(1);
    facts.extend([(20, falls(0)), (30, What::Forgets(1, None))]);
    assert_eq!(broken(&facts), []);
}

#[test]
fn a_key_that_expires_a_microsecond_before_the_lease_is_seen() {
    let mut facts = held(1);
    facts.extend([(20, stands(0, 1, 89)), (20, stands(1, 1, 89))]);
    assert_eq!(broken(&facts), [(Promise::Quorum, 89)]);
    facts.extend([(20, stands(0, 1, 90))]);
    assert_eq!(broken(&facts), []);
}

/// Token 2 is granted by all at `at`, and stands until 100.
fn another(at: Moment) -> Vec<(Moment, What)> {
    let mut facts: Vec<_> = (0..NODES).map(|node| (at, falls(node))).collect();
    facts.extend((0..NODES).map(|node| (at, stands(node, 2, 100))));
    facts.extend(answered(2).map(|(_, what)| (at, what)));
    facts.push((at, What::Granted(claim(2), 90)));
    facts
}

/// All nodes have extended the lease for client 3, which takes it over from client 1.
fn taken_over(at: Moment) -> Vec<(Moment, What)> {
    let client = 3;
    let task = Task { client, number: 0 };
    let conditions = Options::new(core::time::Duration::from_secs(1))
        .unwrap()
        .vote_conditions();
    let ttl_ms = 1;
    let message = message(Verb::Extend { ttl_ms, conditions }, 1);
    let mut facts: Vec<_> = (0..NODES)
        .map(|node| {
            let route = Route { client, node };
            (
                at,
                What::Answered(route, message, Ok(Reply::Extended(None))),
            )
        })
        .collect();
    let claim = Claim { task, ..claim(1) };
    facts.push((at, What::Adopted(claim, 90, true)));
    facts
}

#[test]
fn a_lease_that_another_process_takes_over_is_one_lease() {
    let mut facts = held(1);
    facts.push((20, What::Over(claim(1))));
    facts.extend(taken_over(30));
    assert_eq!(broken(&facts), []);
}

#[test]
fn two_processes_with_one_lease_are_seen() {
    let facts = [held(1), taken_over(30)].concat();
    assert_eq!(broken(&facts), [(Promise::Exclusion, 30)]);
}

#[test]
fn a_lease_that_is_taken_over_after_another_client_had_the_lock_is_seen() {
    let mut facts = held(1);
    facts.push((20, What::Over(claim(1))));
    facts.extend(another(30));
    facts.push((40, What::Over(claim(2))));
    facts.extend((0..NODES).map(|node| (40, stands(node, 1, 100))));
    facts.extend(taken_over(50));
    assert_eq!(broken(&facts), [(Promise::Adoption, 30)]);
}

#[test]
fn a_client_that_has_the_lock_before_the_min_hold_is_over_is_seen() {
    let mut facts = held(1);
    facts.push((20, What::Over(claim(1))));
    facts.push((20, What::Kept(claim(1), 50)));
    let early = [facts.clone(), another(49)].concat();
    assert_eq!(broken(&early), [(Promise::MinHold, 49)]);
    let late = [facts, another(50)].concat();
    assert_eq!(broken(&late), []);
}

#[test]
fn two_that_hold_one_lock_are_seen() {
    let mut facts = held(1);
    facts.extend([
        (20, falls(0)),
        (20, stands(0, 2, 100)),
        (21, stands(1, 2, 100)),
    ]);
    facts.push((22, What::Granted(claim(2), 90)));
    let found = broken(&facts);
    assert!(found.contains(&(Promise::Exclusion, 22)), "{found:?}");
    assert!(found.contains(&(Promise::Quorum, 21)), "{found:?}");
}

#[test]
fn one_that_has_given_back_excludes_nobody() {
    let mut facts = held(1);
    facts.push((20, What::Over(claim(1))));
    facts.extend([(20, stands(0, 2, 100)), (20, stands(1, 2, 100))]);
    facts.extend(answered(2));
    facts.push((20, What::Granted(claim(2), 90)));
    assert_eq!(broken(&facts), []);
}

#[test]
fn a_lease_that_is_over_when_it_is_handed_out_is_seen() {
    let mut facts = held(1);
    facts.extend(answered(1));
    facts.extend([(91, What::Extended(claim(1), 99))]);
    assert_eq!(broken(&facts), [(Promise::Validity, 91)]);
    let mut late: Vec<_> = answered(2).collect();
    late.push((10, What::Granted(claim(2), 10)));
    assert_eq!(broken(&late), [(Promise::Validity, 10)]);
}

#[test]
fn work_goes_on_until_it_is_stopped() {
    let mut facts = worked(1);
    facts.push((99, What::Stops(claim(1))));
    assert_eq!(broken(&facts), []);
    facts.pop();
    facts.push((101, What::Stops(claim(1))));
    assert_eq!(broken(&facts), [(Promise::Quorum, 100)]);
}

#[test]
fn work_cannot_be_stopped_while_its_process_is_paused() {
    let mut facts = worked(1);
    facts.extend([
        (99, What::Paused(1, 200, 101)),
        (200, What::Stops(claim(1))),
    ]);
    assert_eq!(broken(&facts), []);
    facts.pop();
    facts.push((201, What::Stops(claim(1))));
    assert_eq!(broken(&facts), [(Promise::Quorum, 200)]);
}

#[test]
fn what_is_said_of_a_lease_is_compared_with_the_truth() {
    let mut facts = held(1);
    facts.push((20, What::CalledLost(claim(1))));
    assert_eq!(broken(&facts), [(Promise::Loss, 20)]);

    let mut facts = worked(1);
    facts.extend([
        (99, What::Stops(claim(1))),
        (99, What::CalledDone(claim(1))),
    ]);
    assert_eq!(broken(&facts), []);
    let mut facts = worked(1);
    facts.extend([
        (20, What::Paused(1, 200, 180)),
        (200, What::Stops(claim(1))),
    ]);
    facts.push((200, What::CalledDone(claim(1))));
    assert_eq!(broken(&facts), [(Promise::Loss, 200)]);
}

#[test]
fn a_token_that_is_sent_again_is_seen() {
    let Claim { task, .. } = claim(1);
    let acquire = |node| What::Sent(task, node, message(acquire(VoteConditions::NONE), 7));
    assert_eq!(broken(&[(1, acquire(0)), (1, acquire(1))]), []);
    assert_eq!(
        broken(&[(1, acquire(0)), (2, acquire(0))]),
        [(Promise::Token, 2)]
    );
}

#[test]
fn a_token_that_is_left_is_seen() {
    let route = Route { client: 0, node: 0 };
    assert_eq!(broken(&[(5, What::Probed(route, 0, 1, false))]), []);
    assert_eq!(
        broken(&[(5, What::Probed(route, 0, 1, true))]),
        [(Promise::Cleanup, 5)]
    );
}

#[test]
fn a_call_that_takes_too_long_or_for_ever_is_seen() {
    let Claim { task, .. } = claim(1);
    let begins = (
        5,
        What::Begins(
            task,
            Call::Tidy,
            Span {
                local: 100,
                bound: 10,
            },
        ),
    );
    let ends = |local| (20, What::Ends(task, Call::Tidy, End::Done, local));
    assert_eq!(broken(&[begins, ends(110)]), []);
    assert_eq!(broken(&[begins, ends(111)]), [(Promise::Time, 20)]);
    assert_eq!(broken(&[begins, (6, What::Paused(1, 8, 1)), ends(111)]), []);
    assert_eq!(broken(&[begins]), [(Promise::Time, 15)]);
    assert_eq!(broken(&[(9, What::Endless)]), [(Promise::Time, 9)]);
}

#[test]
fn one_that_waits_in_vain_when_all_is_calm_is_seen() {
    let Claim { task, .. } = claim(1);
    let call = Call::CalmAcquire(0);
    let begins = (
        5,
        What::Begins(
            task,
            call,
            Span {
                local: 0,
                bound: 10,
            },
        ),
    );
    let ends = |end| (9, What::Ends(task, call, end, 4));
    assert_eq!(broken(&[begins, ends(End::Done)]), []);
    assert_eq!(broken(&[begins, ends(End::Held)]), [(Promise::Progress, 9)]);
}

#[test]
fn a_lease_of_fewer_servers_than_a_quorum_is_seen() {
    let mut facts = held(1);
    // Two answers of one server.
    facts.retain(|(_, what)| !matches!(what, What::Answered(Route { node: 1 | 2, .. }, ..)));
    facts.extend(answered(1).take(1));
    facts.sort_by_key(|(at, _)| *at);
    assert_eq!(broken(&facts), [(Promise::Votes, 10)]);
}

#[test]
fn a_plain_lock_excuses_a_holder_whose_client_could_not_know() {
    let mut facts = held(1);
    facts.extend(answered(2));
    facts.push((20, What::Granted(claim(2), 90)));
    assert!(broken(&facts).contains(&(Promise::Exclusion, 20)));
    facts.push((15, What::Unaware(2)));
    facts.sort_by_key(|(at, _)| *at);
    assert!(!broken(&facts).contains(&(Promise::Exclusion, 20)));
}

#[test]
fn a_lease_that_is_over_and_says_that_it_is_valid_is_seen() {
    let mut facts = held(1);
    facts.push((20, What::StillValid(claim(1))));
    assert_eq!(broken(&facts), [(Promise::Over, 20)]);
}

#[test]
fn an_idea_of_the_time_that_no_clock_that_is_right_gives_is_seen() {
    let Claim { task, .. } = claim(1);
    assert_eq!(broken(&[(5, What::Believes(task, -7, 7))]), []);
    assert_eq!(
        broken(&[(5, What::Believes(task, -8, 7))]),
        [(Promise::NodesTime, 5)]
    );
}

#[test]
fn a_node_that_has_restarted_and_votes_too_soon_is_seen() {
    let mut conditions = VoteConditions::NONE;
    conditions.max_ttl_ms = 1_000;
    conditions.restart_guard = true;
    let of_a_millisecond = message(acquire(conditions), 1);
    let route = Route { client: 1, node: 0 };
    let granted = What::Executed(route, of_a_millisecond, Ok(Reply::Acquired(None)));
    let since = |restarted_at| {
        let mut facts = held(1);
        facts.insert(0, (restarted_at, What::Restarted(0)));
        facts.insert(1, (restarted_at, granted));
        let later = |(at, what)| match what {
            What::Restarted(_) | What::Executed(..) => (at, what),
            What::Stands(place, token, until) => {
                (at + 1_000, What::Stands(place, token, until + 1_000))
            }
            What::Granted(claim, until) => (at + 1_000, What::Granted(claim, until + 1_000)),
            what => (at + 1_000, what),
        };
        broken(&facts.into_iter().map(later).collect::<Vec<_>>())
    };
    assert_eq!(since(5), []);
    assert_eq!(since(6), [(Promise::Restart, 1_010)]);
}

#[test]
fn a_vote_for_a_plain_lease_that_is_longer_than_its_client_was_told_is_seen() {
    let told = |nodes: core::ops::Range<usize>, max_ttl_ms| {
        let route = |node| Route { client: 1, node };
        let mut facts: Vec<_> = nodes
            .map(|node| (1, What::Told(route(node), Some(max_ttl_ms))))
            .collect();
        facts.extend(held(1));
        broken(&facts)
    };
    assert_eq!(told(0..NODES, 1), []);
    assert_eq!(told(0..1, 0), [], "the others are a quorum");
    assert_eq!(told(0..2, 0), [(Promise::Ttl, 10)]);
}

#[test]
fn a_long_plain_lease_excuses_a_later_holder_only_after_a_loss_of_data() {
    let overlap = |more: &[(Moment, What)]| {
        let mut facts = held(1);
        facts.extend(answered(2));
        facts.extend([(20, What::Granted(claim(2), 90)), (6, What::Long(1))]);
        facts.extend(more);
        facts.sort_by_key(|(at, _)| *at);
        broken(&facts).contains(&(Promise::Exclusion, 20))
    };
    assert!(overlap(&[]));
    assert!(!overlap(&[(15, What::Forgets(0, None))]));
    assert!(overlap(&[(25, What::Forgets(0, None))]));
}

#[test]
fn a_node_that_has_the_rules_of_before_again_excuses_a_holder_who_was_there_before_it() {
    let overlap = |captured_at| {
        let mut facts = held(1);
        facts.extend(answered(2));
        facts.push((20, What::Granted(claim(2), 90)));
        facts.push((captured_at, What::Captured(0)));
        facts.sort_by_key(|(at, _)| *at);
        broken(&facts).contains(&(Promise::Exclusion, 20))
    };
    assert!(overlap(9));
    assert!(!overlap(15));
    assert!(overlap(21));
}
