//! Every order of votes, every vote and every point of timeout, for one to five nodes.

use core::hash::Hash;
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

use super::*;

const EARLY: Instant = Instant::from_micros(10);
const DEADLINE: Instant = Instant::from_micros(100);
const VALID_UNTIL: Instant = Instant::from_micros(1_000);

const VOTES: [Vote; 3] = [Vote::Granted, Vote::Refused, Vote::Unknown];

#[test]
#[expect(clippy::print_stdout, reason = "a figure for the documentation")]
fn every_sequence_of_votes_is_decided_at_the_first_moment_and_rightly() {
    // Under Miri only two nodes, with dozens of sequences instead of hundreds of thousands: there is no
    // unsafe code here.
    for nodes in 1..=if cfg!(miri) { 2 } else { 5 } {
        let (orders, ballots) = (orders(nodes), ballots(nodes));
        assert_eq!(different(&orders), (1..=nodes).product());
        assert_eq!(
            different(&ballots),
            VOTES.len().pow(u32::try_from(nodes).unwrap())
        );
        let mut sequences = 0;
        let mut rule = Rule::default();
        for order in &orders {
            for votes in &ballots {
                for timed_out_after in 0..=nodes {
                    sequences += 1;
                    play(&mut rule, &order[..timed_out_after], votes);
                }
            }
        }
        assert_eq!(
            sequences,
            different(&orders) * different(&ballots) * (nodes + 1)
        );
        std::println!("{nodes} nodes: {sequences} orders of votes and timeouts");
    }
}

fn different<T: Eq + Hash>(all: &[T]) -> usize {
    all.iter().collect::<HashSet<_>>().len()
}

/// The nodes vote in this order, then the time is over.
fn play(rule: &mut Rule, order: &[usize], votes: &[Vote]) {
    let nodes = votes.len();
    let mut round = round(nodes);
    let mut known = std::vec![None; nodes];
    assert_eq!(
        round.verdict(EARLY, false),
        rule.expected(&known),
        "before the first vote"
    );
    let mut is_won = None;
    for &node in order {
        round.vote(node, votes[node]);
        known[node] = Some(votes[node]);
        let verdict = round.verdict(EARLY, false);
        assert_eq!(verdict, rule.expected(&known), "{known:?}");
        // Whether it is won is settled by its first verdict.
        if verdict != Verdict::Pending {
            assert_eq!(
                *is_won.get_or_insert(verdict == Verdict::Won),
                verdict == Verdict::Won
            );
        }
        // Once the validity is over, a win is worth nothing, and nothing else changes.
        for late in [VALID_UNTIL, Instant::MAX] {
            assert_ne!(round.verdict(late, true), Verdict::Won);
            let late_verdict = round.verdict(late, false);
            let is_too_late = verdict == Verdict::Won;
            assert_eq!(late_verdict == Verdict::TooLate, is_too_late);
            assert!(is_too_late || late_verdict == verdict);
        }
        // A node has one vote.
        let mut again = round.clone();
        for vote in VOTES {
            again.vote(node, vote);
            again.vote(nodes, vote);
        }
        assert_eq!(again.verdict(EARLY, false), verdict, "{known:?}");
    }
    for vote in &mut known {
        vote.get_or_insert(Vote::Unknown);
    }
    let at_last = round.verdict(DEADLINE, true);
    assert_eq!(at_last, rule.expected(&known), "timed out: {known:?}");
    assert_ne!(at_last, Verdict::Pending);
    if let Some(is_won) = is_won {
        assert_eq!(is_won, at_last == Verdict::Won);
    }
}

/// The rule, in the words of the specification: the majority wins, and a round is decided when
/// nothing that the missing nodes may say could change whether it is won.
fn expected(known: &[Option<Vote>]) -> Verdict {
    let missing = known.iter().filter(|vote| vote.is_none()).count();
    let (mut can_win, mut can_lose) = (false, false);
    for completion in ballots(missing) {
        let mut completion = completion.into_iter();
        let granted = known
            .iter()
            .filter(|vote| vote.or_else(|| completion.next()) == Some(Vote::Granted))
            .count();
        let is_majority = 2 * granted > known.len();
        can_win |= is_majority;
        can_lose |= !is_majority;
    }
    let silent = known
        .iter()
        .filter(|vote| **vote == Some(Vote::Unknown))
        .count();
    match (can_win, can_lose) {
        (true, true) => Verdict::Pending,
        (true, false) => Verdict::Won,
        (false, _) if 2 * (known.len() - silent) > known.len() => Verdict::Refused,
        (false, _) => Verdict::Unreachable,
    }
}

/// Remembers what it has worked out: the same votes come in many orders.
#[derive(Default)]
struct Rule(HashMap<Vec<Option<Vote>>, Verdict>);

impl Rule {
    fn expected(&mut self, known: &[Option<Vote>]) -> Verdict {
        if let Some(verdict) = self.0.get(known) {
            return *verdict;
        }
        let verdict = expected(known);
        self.0.insert(known.to_vec(), verdict);
        verdict
    }
}

#[test]
fn a_round_is_won_before_its_validity_ends_and_not_at_its_end() {
    let mut round = round(3);
    round.vote(0, Vote::Granted);
    round.vote(1, Vote::Granted);
    let last = Instant::from_micros(VALID_UNTIL.as_micros() - 1);
    assert_eq!(round.verdict(last, false), Verdict::Won);
    assert_eq!(round.verdict(VALID_UNTIL, false), Verdict::TooLate);
}

#[test]
fn a_validity_that_ends_before_the_deadline_does_not_end_the_round() {
    let mut round = Round::new(NodeSet::first(3), 2, VALID_UNTIL, DEADLINE);
    round.vote(0, Vote::Granted);
    assert_eq!(round.verdict(DEADLINE, false), Verdict::Pending);
    round.vote(1, Vote::Granted);
    assert_eq!(round.verdict(DEADLINE, false), Verdict::TooLate);
}

#[test]
fn votes_that_are_read_after_the_deadline_count_until_the_round_is_said_to_be_over() {
    let mut round = round(3);
    let late = Instant::from_micros(VALID_UNTIL.as_micros() - 1);
    for now in [EARLY, DEADLINE, late, VALID_UNTIL] {
        assert_eq!(round.verdict(now, false), Verdict::Pending);
        assert_eq!(round.verdict(now, true), Verdict::Unreachable);
    }
    round.vote(0, Vote::Granted);
    round.vote(1, Vote::Granted);
    assert_eq!(round.verdict(late, false), Verdict::Won);
    assert_eq!(round.verdict(late, true), Verdict::Won);
}

#[test]
fn only_voters_count() {
    let mut voters = NodeSet::EMPTY;
    voters.insert(1);
    voters.insert(4);
    let mut round = Round::new(voters, 2, DEADLINE, VALID_UNTIL);
    for other in [0, 2, 3, NodeSet::CAPACITY, usize::MAX] {
        round.vote(other, Vote::Granted);
    }
    assert_eq!(round.verdict(EARLY, false), Verdict::Pending);
    round.vote(1, Vote::Granted);
    round.vote(4, Vote::Granted);
    assert_eq!(round.verdict(EARLY, false), Verdict::Won);
}

#[test]
fn a_round_that_needs_no_vote_is_won_at_once() {
    let round = Round::new(NodeSet::EMPTY, 0, DEADLINE, Instant::MAX);
    assert_eq!(round.verdict(EARLY, false), Verdict::Won);
    assert_eq!(round.verdict(DEADLINE, true), Verdict::Won);
}

#[test]
fn a_set_holds_as_many_nodes_as_it_says() {
    let all = NodeSet::first(NodeSet::CAPACITY);
    assert_eq!(all.len() as usize, NodeSet::CAPACITY);
    assert!(all.contains(NodeSet::CAPACITY - 1));
    assert!(!all.contains(NodeSet::CAPACITY));
}

fn round(nodes: usize) -> Round {
    Round::new(
        NodeSet::first(nodes),
        NodeSet::first(nodes).len() / 2 + 1,
        DEADLINE,
        VALID_UNTIL,
    )
}

/// All orders of `0..nodes`.
fn orders(nodes: usize) -> Vec<Vec<usize>> {
    let mut orders = std::vec![Vec::new()];
    for node in 0..nodes {
        orders = orders
            .iter()
            .flat_map(|order| {
                (0..=order.len()).map(move |place| {
                    let mut longer = order.clone();
                    longer.insert(place, node);
                    longer
                })
            })
            .collect();
    }
    orders
}

/// All ways in which `nodes` nodes can vote.
fn ballots(nodes: usize) -> Vec<Vec<Vote>> {
    let mut ballots = std::vec![Vec::new()];
    for _ in 0..nodes {
        ballots = ballots
            .iter()
            .flat_map(|ballot| VOTES.map(|vote| [ballot.as_slice(), &[vote]].concat()))
            .collect();
    }
    ballots
}
