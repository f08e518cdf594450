//! Releases before the end of `min_hold`: they find no connection, no room, or a node that cannot execute them.

use core::time::Duration;

use redlock_core::transport::{Command, Reply};
use redlock_core::{Clock, Instant, Transport};

use crate::wire::{Entry, Server};
use crate::world::*;

const REST_MS: u32 = 55_000;

const fn keep(rest_ms: u32) -> Command<'static> {
    Command::keep(KEY, A, rest_ms)
}

fn acquire_other() -> Command<'static> {
    acquire_of(b"other", B)
}

/// Accepts connections again, when the longest pause is over.
fn found(server: &Server<'_>) {
    server.enter(Entry::OPEN);
    server.world.clock.advance(ms(1_600));
}

/// The node has the key of a lease that is released, until then.
fn assert_kept_until(server: &Server<'_>, until: Instant) {
    assert_eq!(server.token(KEY), Some([&A.as_bytes()[..], b"~"].concat()));
    assert_eq!(server.end_of(KEY), Some(until));
}

/// A node that is reachable again, after a release for `rest_ms` has found no connection. And when the key ends.
fn found_with_unsent_keep(rest_ms: u32) -> (Setup, Instant) {
    let (world, server, mut node) = holding();
    server.cut();
    server.enter(Entry::REFUSED);
    let until = world.after(ms(rest_ms.into()));
    assert!(world.execute(&mut node, &keep(rest_ms)).is_err());
    found(server);
    ((world, server, node), until)
}

#[test]
fn a_keep_that_finds_no_connection_goes_first_on_the_next_one_for_the_time_that_is_left() {
    for late in [Duration::ZERO, ms(20_000)] {
        let ((world, server, mut node), until) = found_with_unsent_keep(REST_MS);
        // The key has ended by then if it is late.
        world.clock.advance(late);
        assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
        assert_eq!(server.heard(), ["SET a", "KEEP a", "SET other b"]);
        if late.is_zero() {
            assert_kept_until(server, until);
        }
        // And not again.
        assert_eq!(world.execute(&mut node, &extend(B)), Ok(Reply::NotMine));
        assert_eq!(server.heard()[3..], ["EXTEND b"]);
    }
}

#[test]
fn a_keep_whose_time_is_over_is_not_sent() {
    let ((world, server, mut node), _) = found_with_unsent_keep(1_600);
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SET a", "SET other b"]);
}

#[test]
fn the_time_that_is_left_is_rounded_up() {
    for (micros, left_ms) in [
        (0, 10),
        (1, 10),
        (999, 10),
        (1_000, 9),
        (9_001, 1),
        (9_999, 1),
    ] {
        let ((world, server, mut node), until) = found_with_unsent_keep(1_610);
        world.clock.advance(Duration::from_micros(micros));
        let now = world.clock.now();
        assert!(now < until);
        assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
        assert_kept_until(server, now.saturating_add(ms(left_ms)));
    }
}

#[test]
fn a_keep_for_which_there_is_no_room_waits_and_goes_ahead_of_the_next_command() {
    let (world, server, mut node) = holding();
    server.hang(0);
    let long = Command::extend(&[b'k'; 40], B, TTL_MS);
    for _ in 0..2 {
        assert!(poll_times(1, node.execute(&long)).is_none());
    }
    let until = world.after(ms(REST_MS.into()));
    assert_eq!(world.round(&mut node, &keep(REST_MS)), None);
    assert!(world.now_ms() > 0);
    server.resume();
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    let heard = server.heard();
    assert_eq!(heard[1..3], ["EXTEND k b", "EXTEND k b"]);
    assert_eq!(heard[3..], ["KEEP a", "SET other b"]);
    assert_kept_until(server, until);
}

#[test]
fn a_keep_that_a_node_cannot_execute_for_the_moment_is_sent_again_for_the_time_that_is_left() {
    let (world, server, mut node) = holding();
    let until = world.after(ms(REST_MS.into()));
    server.answer_with("-LOADING Redis is loading the dataset in memory\r\n");
    assert!(world.execute(&mut node, &keep(REST_MS)).is_err());
    world.clock.advance(ms(3_000));
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SET a", "KEEP a", "KEEP a", "SET other b"]);
    assert_kept_until(server, until);
}

#[test]
fn a_keep_that_is_rejected_for_good_is_not_sent_again() {
    let (world, server, mut node) = holding();
    server.answer_with("-NOPERM this user has no permissions\r\n");
    assert!(world.execute(&mut node, &keep(REST_MS)).is_err());
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SET a", "KEEP a", "SET other b"]);
}

#[test]
fn a_keep_whose_answer_is_lost_is_sent_again_and_does_not_make_the_time_longer() {
    let (world, server, mut node) = holding();
    let until = world.after(ms(REST_MS.into()));
    server.hang(usize::MAX);
    assert!(poll_times(2, node.execute(&keep(REST_MS))).is_none());
    // The node executes it, and the answer is lost with the connection.
    server.resume();
    server.cut();
    world.clock.advance(ms(3_000));
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    assert_eq!(server.heard().last(), Some(&"SET other b".to_owned()));
    assert_kept_until(server, until);
}

#[test]
fn a_late_deletion_of_the_same_lease_does_not_take_the_place_of_its_keep() {
    let (world, server, mut node) = holding();
    server.cut();
    server.enter(Entry::REFUSED);
    let until = world.after(ms(REST_MS.into()));
    for command in [keep(REST_MS), release(A)] {
        assert!(world.execute(&mut node, &command).is_err());
    }
    found(server);
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    let heard = server.heard();
    assert_eq!(heard, ["SET a", "KEEP a", "RELEASE a", "SET other b"]);
    assert_kept_until(server, until);
}

#[test]
fn a_node_that_was_sent_no_acquire_of_the_lease_gets_no_keep() {
    let (world, server, mut node) = unconnected();
    server.enter(Entry::REFUSED);
    assert!(world.execute(&mut node, &acquire(A)).is_err());
    let kept = poll_times(1, node.execute(&keep(REST_MS)));
    assert!(is_nothing_to_release(kept));
    found(server);
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    assert_eq!(server.heard(), ["SET other b"]);
}

/// A node refuses an extension whose time of the nodes is older than the window, and this release is one.
#[cfg(feature = "fence")]
#[test]
fn a_fenced_keep_that_is_sent_late_has_the_time_of_the_nodes_by_then() {
    use crate::fence::{acquire_at, proposal};

    let (world, server, mut node) = unconnected();
    let first = proposal(world, 1);
    assert!(world.execute(&mut node, &acquire_at(first, A)).is_ok());
    server.cut();
    server.enter(Entry::REFUSED);
    let until = world.after(ms(REST_MS.into()));
    let kept = keep(REST_MS).with_proposal(Some(proposal(world, 1)));
    assert!(world.execute(&mut node, &kept).is_err());
    found(server);
    world.clock.advance(ms(5_000));
    assert_eq!(world.execute(&mut node, &acquire_other()), Ok(ACQUIRED));
    let heard = server.heard();
    assert!(heard.contains(&"KEEP a".to_owned()), "{heard:?}");
    assert_kept_until(server, until);
}
