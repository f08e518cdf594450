//! What people read.

use redlock_core::mock::{MemoryNode, MockClock};
use redlock_core::{Clock, HoldError};

use crate::world::*;

#[test]
fn a_held_lock_says_how_many_hold_it_and_who_did_not_answer() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes[..4]
        .iter()
        .for_each(|node| node.set(KEY, thief(), TTL));
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "dock-7 is held by another client: 4 of 5 nodes refused"
    );

    nodes[4].stop();
    nodes[3].stop();
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "dock-7 is held by another client: 3 of 5 nodes refused \
         (node 4: connection refused; node 5: connection refused)",
    );
}

#[test]
fn no_quorum_names_each_node_that_failed_and_why() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes[2].hang();
    nodes[3].stop();
    nodes[4].hang();
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no quorum for dock-7: 2 of 5 nodes answered (node 3: timed out after 50 ms; \
         node 4: connection refused; node 5: timed out after 50 ms)",
    );
}

#[test]
fn who_was_not_waited_for_is_not_said_to_have_failed() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes[..3].iter().for_each(MemoryNode::stop);
    nodes[3..].iter().for_each(|node| node.set_latency(ms(10)));
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "no quorum for dock-7: 3 of 5 nodes failed (node 1: connection refused; \
         node 2: connection refused; node 3: connection refused)",
    );
}

#[test]
fn a_lost_lock_says_what_was_lost_and_how() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MemoryNode::fleet(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    nodes[1].set(KEY, thief(), TTL);
    nodes[2].remove(KEY);
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the lock dock-7 is lost: 2 of 3 nodes no longer carry its token",
    );
    let hold = clock.run(redlock.hold("dock-8", async |_| {
        nodes.iter().for_each(MemoryNode::stop);
        core::future::pending::<()>().await;
    }));
    let Err(HoldError::<_, 5>::Lost(cause)) = hold else {
        panic!("all nodes are dead")
    };
    assert_eq!(
        cause.to_string(),
        "the lease could not be extended: no quorum for dock-8: 0 of 3 nodes answered \
         (node 1: connection refused; node 2: connection refused; node 3: connection refused)",
    );
    assert!(clock.now().as_micros() > 9_000_000);
}
