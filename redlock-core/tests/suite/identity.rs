//! Rules, data and attempts have identities: a node that has forgotten them, or never knew them, has no vote.

use core::cell::Cell;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use std::string::ToString;

use redlock_core::mock::{MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::transport::{Command, Reply, RunId, Verb};
use redlock_core::{
    AcquireError, Clock, ExtendError, Fencing, Instant, NodeErrorOf, Options, Redlock, Transport,
};

use crate::clocks::Coarse;
use crate::world::*;

const WINDOW: Duration = Fencing::WINDOW;
const MINUTE: Duration = ms(60_000);
/// For rules with a `max_ttl` of a minute, and a `step_back` of a minute.
const QUARANTINE: Duration = ms(60_000 + 4 * 250 + 1_000);

fn fenced() -> Options {
    one_round().fenced(rules()).unwrap()
}

fn long() -> Options {
    let rules = rules().with_max_ttl(2 * MINUTE).unwrap();
    one_round().fenced(rules).unwrap()
}

fn rules() -> Fencing {
    Fencing::new(WINDOW).unwrap()
}

#[test]
fn a_client_with_other_rules_takes_no_node_that_lost_its_record_and_its_own_client_does() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut right, lease) = holder_with(&nodes, &clock, long());
    // Its rules leave room for a shorter quarantine, and the nodes are lost one by one.
    let mut wrong = client_with(&nodes, &clock, 2, fenced());
    for node in &nodes[..2] {
        node.clear();
        for _ in 0..3 {
            assert!(clock.run(wrong.try_acquire(KEY)).is_err());
        }
    }
    clock.advance(QUARANTINE);
    assert!(clock.run(wrong.try_acquire(KEY)).is_err());

    drop(lease);
    let words = "its vote counts again in 122 s";
    let denied = (0..3).any(|_| {
        let error = clock.run(right.try_acquire(KEY)).unwrap_err();
        error.to_string().matches(words).count() == 2
    });
    assert!(
        denied,
        "both begin their quarantine, by the rules of the fleet"
    );
}

#[test]
fn a_node_that_lost_its_record_is_back_although_another_one_is_down() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = fenced().wait(2 * MINUTE);
    let mut redlock = client_with(&nodes, &clock, 1, options);
    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    clock.run(redlock.release(lease));
    nodes[0].hang();
    nodes[1].clear();
    // A client that has never met them.
    let mut other = client_with(&nodes, &clock, 2, options);
    assert!(clock.run(other.acquire(KEY)).is_ok());
    let now = clock.now();
    assert!(
        now >= at(QUARANTINE) && now < at(QUARANTINE + ms(1_000)),
        "{now:?}"
    );
}

#[test]
fn no_client_takes_over_a_fleet_that_has_lost_all_records_while_a_node_is_not_heard() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut first = client_with(&nodes, &clock, 1, long());
    assert!(clock.run(first.try_acquire(KEY)).is_ok());
    nodes[0].hang();
    nodes[1].clear();
    nodes[2].clear();
    let options = fenced().wait(3 * MINUTE);
    let error = clock.run(client_with(&nodes, &clock, 2, options).acquire(KEY));
    let error = error.unwrap_err().to_string();
    assert_eq!(error.matches("lost its guard record").count(), 2, "{error}");
}

#[test]
fn a_node_that_failed_back_has_no_vote_for_a_fenced_lock_until_the_quarantine_is_over() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut holder = client_with(&nodes, &clock, 1, fenced());
    let lease = clock.run(holder.try_acquire("another")).unwrap();
    clock.run(holder.release(lease));
    nodes[0].save();
    nodes[2].hang();
    let lease = clock.run(holder.try_acquire(KEY)).unwrap();
    nodes[0].fail_back();
    // It has forgotten the way to the third node, too.
    clock.advance(WINDOW + ms(1));
    nodes[2].resume();
    nodes[2].evict(KEY);
    let mut other = client_with(&nodes, &clock, 2, fenced());
    for _ in 0..3 {
        assert!(clock.run(other.try_acquire(KEY)).is_err());
        assert!(lease.is_valid(clock.now()));
    }
}

#[test]
fn a_plain_client_that_saw_a_node_as_a_replica_counts_its_vote_when_the_ttl_is_over() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[2].stop();
    let mut redlock = client(&nodes, &clock, 1);
    nodes[0].demote();
    let error = clock.run(redlock.try_acquire(KEY)).unwrap_err().to_string();
    assert!(error.contains("node 1: a replica"), "{error}");
    nodes[0].promote();
    let error = clock.run(redlock.try_acquire(KEY)).unwrap_err().to_string();
    assert!(error.contains("node 1: restarted"), "{error}");
    clock.advance(ms(10_102));
    assert!(clock.run(redlock.try_acquire(KEY)).is_ok());
}

#[test]
fn a_node_that_may_evict_has_no_vote_for_a_fenced_lock_and_one_for_a_plain_lock() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[..2].iter().for_each(|node| node.set_may_evict(true));
    let error = clock.run(client_with(&nodes, &clock, 1, fenced()).try_acquire(KEY));
    let error = error.unwrap_err().to_string();
    assert_eq!(error.matches("may evict locks").count(), 2, "{error}");
    assert!(
        clock
            .run(client(&nodes, &clock, 2).try_acquire(KEY))
            .is_ok()
    );
}

/// The longest TTL is ten seconds, and the clocks may be stepped back by a minute.
#[test]
fn fences_grow_although_all_is_lost_and_the_clocks_are_set_back_right_after() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let rules = rules().with_max_ttl(TTL).unwrap();
    let options = one_round().fenced(rules).unwrap().wait(3 * MINUTE);
    let mut redlock = client_with(&nodes, &clock, 1, options);
    let before = clock.run(redlock.acquire(KEY)).unwrap().fence();
    for node in &nodes {
        node.clear();
        node.set_clock_step(-50_000_000);
    }
    let after = clock.run(redlock.acquire(KEY)).unwrap().fence();
    assert!(after > before, "{after:?} after {before:?}");
}

#[test]
fn a_quarantine_that_began_on_a_clock_that_was_ahead_is_no_longer_than_any_other() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let year = 365 * 86_400_000_000;
    for node in &nodes {
        node.clear();
        node.set_clock_step(year);
    }
    let options = fenced().wait(2 * MINUTE);
    let mut redlock = client_with(&nodes, &clock, 1, fenced());
    let error = clock.run(redlock.try_acquire("another"));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("may have forgotten locks"), "{error}");
    nodes.iter().for_each(|node| node.set_clock_step(0));
    let begun_at = clock.now();
    redlock.set_options(options);
    assert!(clock.run(redlock.acquire(KEY)).is_ok());
    assert!(clock.now() < begun_at.saturating_add(QUARANTINE + ms(1_000)));
}

#[test]
fn a_lease_that_is_lost_is_over_at_once() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    nodes[..2].iter().for_each(|node| node.remove(KEY));
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert!(matches!(error, ExtendError::Lost(_)), "{error:?}");
    assert!(!lease.is_valid(clock.now()));
    assert_eq!(lease.remaining(clock.now()), Duration::ZERO);
    let again = clock.run(redlock.extend(&mut lease));
    assert_eq!(again, Err(ExtendError::Expired));
}

#[test]
fn a_lease_keeps_the_margin_for_clocks_that_jump_whatever_the_options_say_by_then() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, fenced());
    redlock.set_options(one_round());
    let begun_at = clock.now();
    clock.run(redlock.extend(&mut lease)).unwrap();
    let until = begun_at.saturating_add(fenced().validity());
    assert!(lease.valid_until() <= until, "{:?}", lease.valid_until());
}

/// A name of a server that identifies itself only after some command.
struct Name<'c> {
    node: &'c Node<'c>,
    /// The process that it claims to be.
    claims: Cell<&'c Node<'c>>,
    /// Whether this command makes its process known.
    tells: fn(&Command<'_>) -> bool,
    says_who: Cell<bool>,
}

impl Transport for &Name<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.node.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let mut node = self.node;
        let reply = node.execute(command).await;
        if (self.tells)(command) {
            self.says_who.set(true);
        }
        reply
    }

    fn run_id(&self) -> Option<RunId> {
        self.claims.get().run_id().filter(|_| self.says_who.get())
    }
}

#[test]
fn an_extension_is_not_won_by_one_server_with_two_names() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 2] = MockNode::array(&clock);
    let names = [&nodes[0], &nodes[1], &nodes[1]].map(|node| Name {
        node,
        claims: Cell::new(node),
        tells: |command| matches!(command.verb, Verb::Extend { .. }),
        says_who: Cell::new(false),
    });
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 3>::new(&names, &clock, entropy, one_round()).unwrap();
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    nodes[0].hang();
    let until = lease.valid_until();
    clock.advance(ms(1_000));
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert!(matches!(error, ExtendError::Unreachable(_)), "{error:?}");
    assert_eq!(lease.valid_until(), until);
}

#[test]
fn a_server_that_is_met_under_two_names_costs_no_round() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 4] = MockNode::array(&clock);
    for (first, second) in [(0, 0), (0, 3), (1, 2), (3, 3)] {
        // The first name belongs to one server, and claims to be another or the same.
        let names = [(first, second), (0, 0), (1, 1), (2, 2), (3, 3)];
        let ways = names.map(|(node, claims)| Name {
            node: &nodes[node],
            claims: Cell::new(&nodes[claims]),
            tells: |_| true,
            says_who: Cell::new(false),
        });
        let entropy = SeededEntropy::new(1);
        let mut redlock = Redlock::<_, _, _, 5>::new(&ways, &clock, entropy, one_round()).unwrap();
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        clock.run(redlock.release(lease));
    }
}

#[test]
fn the_second_name_of_a_server_is_used_while_the_first_hangs() {
    let clock = MockClock::new();
    let servers: [Node<'_>; 4] = MockNode::array(&clock);
    let hung: Node<'_> = MockNode::new(9, &clock);
    hung.hang();
    servers[3].hang();
    let names = [
        (&hung, 0),
        (&servers[0], 0),
        (&servers[1], 1),
        (&servers[2], 2),
        (&servers[3], 3),
    ];
    let names = names.map(|(node, claims)| known(node, &servers[claims]));
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 5>::new(&names, &clock, entropy, one_round()).unwrap();
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    clock.run(redlock.extend(&mut lease)).unwrap();
}

/// It claims to be one node for longer than a TTL, then the next: none of them goes without extensions.
#[test]
fn a_node_that_claims_to_be_one_node_after_the_other_ends_no_lease() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 4] = MockNode::array(&clock);
    let hostile: Node<'_> = MockNode::new(9, &clock);
    let names =
        [&hostile, &nodes[0], &nodes[1], &nodes[2], &nodes[3]].map(|node| known(node, node));
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 5>::new(&names, &clock, entropy, one_round()).unwrap();
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    hostile.stop();
    for victim in &nodes {
        names[0].claims.set(victim);
        for _ in 0..4 {
            clock.advance(TTL / 3);
            clock.run(redlock.extend(&mut lease)).unwrap();
        }
    }
}

/// A name that claims from the beginning to be the process of `claims`.
fn known<'c>(node: &'c Node<'c>, claims: &'c Node<'c>) -> Name<'c> {
    Name {
        node,
        claims: Cell::new(claims),
        tells: |_| true,
        says_who: Cell::new(true),
    }
}

/// One name grants, and another refuses because of the key: the refusal is read first.
#[test]
fn a_refusal_because_of_the_clients_own_key_costs_the_server_no_vote() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 2] = MockNode::array(&clock);
    let names = [(&nodes[0], ms(2)), (&nodes[0], ms(0)), (&nodes[1], ms(1))];
    let ways = names.map(|(node, delay)| Late {
        node,
        clock: &clock,
        delay,
    });
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 3>::new(ways, &clock, entropy, one_round()).unwrap();
    assert!(clock.run(attempt(&mut redlock)).is_ok());
}

/// A node whose answer takes some time.
struct Late<'c> {
    node: &'c Node<'c>,
    clock: &'c MockClock,
    delay: Duration,
}

impl Transport for Late<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.node.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let mut node = self.node;
        let reply = node.execute(command).await;
        let read_at = self.clock.now().saturating_add(self.delay);
        self.clock.sleep_until(read_at).await;
        reply
    }

    fn run_id(&self) -> Option<RunId> {
        self.node.run_id()
    }
}

#[test]
fn one_clock_of_five_does_not_move_the_clients_idea_of_the_time() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, fenced());
    let right = redlock.clock_offset();
    for ahead in [-5_000_000, 5_000_000] {
        // Two do not answer, and one is wrong: an extension learns from all three that answer.
        nodes[3].hang();
        nodes[4].hang();
        nodes[0].set_clock_step(ahead);
        assert!(clock.run(redlock.extend(&mut lease)).is_err());
        assert_eq!(redlock.clock_offset(), right, "{ahead}");
        nodes[0].set_clock_step(0);
        nodes[3].resume();
        nodes[4].resume();
    }
}

#[test]
fn a_key_that_nodes_use_for_themselves_is_refused_and_nothing_is_sent() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut redlock = client_with(&nodes, &clock, 1, one_round().wait(MINUTE));
    for key in ["redlock:guard", "redlock:fence:dock-7", "redlock:"] {
        let error = clock.run(redlock.acquire(key)).unwrap_err();
        assert_eq!(error, AcquireError::ReservedKey);
    }
    assert_eq!(clock.now(), at(Duration::ZERO));
    assert_eq!(key_count(&nodes), 0);
    for key in ["redlock", "redlock-guard", "Redlock:guard"] {
        assert!(clock.run(redlock.acquire(key)).is_ok());
    }
}

#[test]
fn a_plain_client_that_is_told_the_longest_ttl_waits_for_it_after_a_restart() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = one_round().max_ttl(MINUTE).unwrap();
    nodes[..2].iter().for_each(MockNode::restart_empty);
    let mut redlock = client_with(&nodes, &clock, 1, options);
    clock.advance(MINUTE);
    assert!(
        clock.run(redlock.try_acquire(KEY)).is_err(),
        "the drift is missing"
    );
    clock.advance(ms(602));
    assert!(clock.run(redlock.try_acquire(KEY)).is_ok());
}

/// An operator changes the rules, a plain client uses the longer TTL at once, and a majority loses its data. A client that had the
/// old rules confirmed a moment ago must not give this majority the old quarantine.
#[test]
fn what_an_earlier_attempt_was_told_of_the_rules_restores_no_record() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut old, lease) = holder_with(&nodes, &clock, fenced());
    clock.run(old.release(lease));
    let new = long().fencing().unwrap();
    nodes.iter().for_each(|node| node.repair(new));
    let plain = Options::new(new.max_ttl()).unwrap();
    let mut plain = client_with(&nodes, &clock, 2, plain);
    let lease = clock.run(plain.try_acquire("plain")).unwrap();

    nodes[..2].iter().for_each(MockNode::restart_empty);
    for _ in 0..20 {
        let result = clock.run(old.try_acquire("plain"));
        assert!(
            result.is_err() || !lease.is_valid(clock.now()),
            "two hold the lock"
        );
        clock.advance(QUARANTINE / 16);
    }
}

/// The node that answers last has lost its record, and every round is lost before it has said so.
#[test]
fn the_record_of_the_farthest_node_is_restored_while_the_lock_is_held() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[2].set_latency(ms(10));
    let (mut leader, mut lease) = holder_with(&nodes, &clock, fenced());
    clock.advance(ms(100));
    nodes[2].restart_empty();
    let mut other = client_with(&nodes, &clock, 2, fenced());
    for _ in 0..40 {
        clock.advance(ms(3_000));
        clock.run(leader.extend(&mut lease)).unwrap();
        let error = clock.run(other.try_acquire(KEY)).unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
    }
    clock.run(leader.release(lease));
    nodes[0].stop();
    assert!(clock.run(other.try_acquire(KEY)).is_ok());
}

#[test]
fn a_client_with_a_coarse_clock_restores_a_record_while_another_node_hangs() {
    for tick in [ms(50), ms(100), ms(500)] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        nodes.iter().for_each(|node| node.set_latency(ms(1)));
        let coarse = Coarse {
            clock: &clock,
            tick,
        };
        let entropy = SeededEntropy::new(1);
        let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, coarse, entropy, fenced()).unwrap();
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        clock.run(redlock.release(lease));
        nodes[1].clear();
        nodes[2].hang();
        assert!(clock.run(redlock.try_acquire(KEY)).is_err());
        clock.advance(QUARANTINE);
        assert!(clock.run(redlock.try_acquire(KEY)).is_ok(), "{tick:?}");
    }
}

#[test]
fn clients_that_try_once_restore_a_record_while_another_node_is_down() {
    for count in [3, 4, 5] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let nodes = &nodes[..count];
        assert!(
            clock
                .run(client_with(nodes, &clock, 1, fenced()).try_acquire(KEY))
                .is_ok()
        );
        clock.advance(EXPIRED);
        // With the one that was wiped, as many as leave no quorum.
        let down = count - (count / 2 + 1);
        nodes[..down].iter().for_each(MockNode::stop);
        nodes[down].clear();
        let restored = (2..100).any(|seed| {
            clock.advance(ms(2_000));
            let mut fresh = client_with(nodes, &clock, seed, fenced());
            clock.run(fresh.try_acquire(KEY)).is_ok()
        });
        assert!(restored, "{count} nodes");
        assert!(
            clock.now() < at(QUARANTINE + EXPIRED + ms(10_000)),
            "{count}"
        );
    }
}

#[test]
fn a_server_that_is_named_twice_keeps_no_new_fleet_from_its_first_records() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 4] = MockNode::array(&clock);
    nodes.iter().for_each(MockNode::clear);
    let names = [&nodes[0], &nodes[1], &nodes[1], &nodes[2], &nodes[3]];
    let options = fenced().wait(2 * MINUTE);
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 5>::new(names, &clock, entropy, options).unwrap();
    assert!(clock.run(redlock.acquire(KEY)).is_ok());
}

#[test]
fn a_minority_of_wrong_clocks_that_answers_first_costs_a_client_a_round_and_not_the_lock() {
    for (count, wrong) in [(3, 1), (4, 1), (5, 2)] {
        for ahead in [-50_000_000, 50_000_000] {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 5] = MockNode::array(&clock);
            nodes[..wrong]
                .iter()
                .for_each(|node| node.set_clock_step(ahead));
            let lease =
                clock.run(client_with(&nodes[..count], &clock, 1, fenced()).try_acquire(KEY));
            assert!(lease.is_ok(), "{wrong} of {count} by {ahead}: {lease:?}");
        }
    }
}

#[test]
fn a_client_does_not_wait_for_a_hung_node_because_another_one_lost_its_record() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    assert!(
        clock
            .run(client_with(&nodes, &clock, 1, fenced()).try_acquire(KEY))
            .is_ok()
    );
    nodes[0].hang();
    nodes[1].clear();
    let before = clock.now();
    let mut fresh = client_with(&nodes, &clock, 2, fenced());
    assert!(clock.run(fresh.try_acquire("another")).is_ok());
    assert_eq!(clock.now(), before);
}

#[test]
fn a_client_that_acquires_once_a_minute_restores_a_record_too() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, lease) = holder_with(&nodes, &clock, fenced());
    clock.run(redlock.release(lease));
    nodes[0].clear();
    for _ in 0..3 {
        clock.advance(MINUTE);
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        clock.run(redlock.release(lease));
    }
    nodes[1].hang();
    assert!(clock.run(redlock.try_acquire(KEY)).is_ok());
}

#[test]
fn what_an_attempt_learned_of_a_cold_start_is_forgotten_with_the_attempt() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes.iter().for_each(MockNode::clear);
    // Over so slow a link no fence is in the window when it arrives, and no record is written.
    let short = one_round().node_timeout(ms(2_000)).unwrap();
    let rules = Fencing::new(ms(100)).unwrap();
    let short = short.fenced(rules.with_max_ttl(TTL).unwrap()).unwrap();
    let quarter = 15 * MINUTE;
    let rare = short.wait(quarter + MINUTE).retry_delay(quarter, quarter);
    let mut rare = client_with(&nodes, &clock, 1, rare.unwrap());
    nodes.iter().for_each(|node| node.set_latency(ms(300)));
    let mut rare = pin!(rare.acquire(KEY));
    let attempted = at(ms(10_000));
    let first = clock.run(async { poll_until(&clock, rare.as_mut(), attempted).await });
    assert!(first.is_none());
    nodes.iter().for_each(|node| node.set_latency(ms(1)));
    // Meanwhile the fleet gets other rules.
    let right = long().wait(4 * MINUTE);
    let lease = clock.run(client_with(&nodes, &clock, 2, right).acquire("another"));
    assert!(lease.is_ok());
    nodes[..3].iter().for_each(MockNode::clear);
    let error = clock.run(rare).unwrap_err().to_string();
    assert!(error.contains("lost its guard record"), "{error}");
}

/// `None` if `future` is not ready by `until`.
async fn poll_until<F: Future>(
    clock: &MockClock,
    mut future: Pin<&mut F>,
    until: Instant,
) -> Option<F::Output> {
    let mut timer = pin!(clock.sleep_until(until));
    poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        timer.as_mut().poll(context).map(|()| None)
    })
    .await
}

/// They grant nothing, answer first, and their clocks are wrong: the others are a quorum.
#[test]
fn a_minority_of_wrong_clocks_that_has_no_vote_does_not_keep_the_lock_from_anybody() {
    for (count, wrong) in [(3, 1), (4, 1), (5, 2)] {
        for (is_flushed, ahead) in [
            (true, -700_000),
            (true, 700_000),
            (false, -50_000_000),
            (false, -700_000),
        ] {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 5] = MockNode::array(&clock);
            let nodes = &nodes[..count];
            let (mut known, lease) = holder_with(nodes, &clock, fenced());
            clock.run(known.release(lease));
            let held = clock.run(client_with(nodes, &clock, 2, fenced()).try_acquire("held"));
            assert!(held.is_ok());
            for (node, latency) in nodes.iter().zip(1..) {
                node.set_latency(ms(latency));
            }
            for node in &nodes[..wrong] {
                if is_flushed {
                    node.clear();
                }
                node.set_clock_step(ahead);
            }
            let world = std::format!("{wrong} of {count} by {ahead}, flushed: {is_flushed}");
            let fresh = clock.run(client_with(nodes, &clock, 3, fenced()).try_acquire(KEY));
            assert!(fresh.is_ok(), "{world}: {fresh:?}");
            clock.advance(EXPIRED);
            // Not even after they have told their time to a client that asked for a held key.
            for _ in 0..3 {
                assert!(clock.run(known.try_acquire("held")).is_err() || clock.now() > at(TTL));
            }
            let lease = clock.run(known.try_acquire(KEY));
            assert!(lease.is_ok(), "{world}: {lease:?}");
        }
    }
}

#[test]
fn a_node_that_may_evict_loses_its_record_as_soon_as_a_client_looks_for_those_that_come_later() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let lease = clock.run(client_with(&nodes, &clock, 1, long()).try_acquire(KEY));
    for node in &nodes[..2] {
        node.set_may_evict(true);
    }
    assert!(
        clock
            .run(client_with(&nodes, &clock, 2, long()).try_acquire("another"))
            .is_err()
    );
    for node in &nodes[..2] {
        node.evict(KEY);
        node.set_may_evict(false);
    }
    let second = clock.run(client_with(&nodes, &clock, 3, long().wait(MINUTE)).acquire(KEY));
    assert!(second.is_err() && lease.unwrap().is_valid(at(ms(1_000))));
}

#[test]
fn a_node_that_could_evict_has_its_vote_again_one_quarantine_after_it_may_no_more() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes.iter().for_each(|node| node.set_may_evict(true));
    let quarantine = long().fencing().unwrap().quarantine();
    let patient = long().wait(quarantine + ms(2_000));
    let mut client = client_with(&nodes, &clock, 1, patient);
    assert!(clock.run(client.try_acquire(KEY)).is_err());
    nodes.iter().for_each(|node| node.set_may_evict(false));
    let lease = clock.run(client.acquire(KEY));
    assert!(lease.is_ok(), "{lease:?}");
}
