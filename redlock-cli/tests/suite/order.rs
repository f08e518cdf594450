//! The order in which `redlock run` gets a lock.

use std::fs;

use redlock_tests::{Server, Servers};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::process::{Process, eventually, expect_no_keys, run};
use crate::server::field;
use crate::waiters::LINE;

#[test]
fn commands_run_in_the_order_in_which_they_began_to_wait_also_if_it_takes_long() {
    let servers = Servers::start(3);
    let directory = TempDir::new().unwrap();
    let order = directory.path().join("order");
    // Longer than the times after which a command that waits looks whether nodes answer.
    let script = "echo ready; sleep 5; echo late; sleep 60";
    let holder = Process::ready(run(&servers, &[], "dock-7", script));
    let waiters = [1, 2, 3, 4].map(|number| {
        let script = format!("echo {number} >> {}", order.display());
        let waiter = Process::start(run(&servers, &[], "dock-7", &script));
        eventually("it stands in the line", || {
            servers.iter().all(|server| waiting(server) == number)
        });
        waiter
    });
    let before = servers.iter().map(places).collect::<Vec<_>>();
    holder.expect_line("late");
    let later = servers.iter().map(places).collect::<Vec<_>>();
    for ((mailbox, later), (earlier_mailbox, ticket)) in
        later.iter().flatten().zip(before.iter().flatten())
    {
        assert_eq!(mailbox, earlier_mailbox);
        // Its first attempt, of one round, had a ticket of its own; and each round tells the nodes' time anew.
        assert!(
            later.abs_diff(*ticket) < 1_000_000,
            "{mailbox} waits anew since {later}: {ticket}"
        );
    }
    drop(holder);
    for waiter in waiters {
        waiter.end().expect_code(0);
    }
    assert_eq!(fs::read_to_string(&order).unwrap(), "1\n2\n3\n4\n");
    expect_no_keys(&servers);
}

#[test]
fn a_key_in_the_place_of_a_line_is_to_be_deleted_and_no_permission_is_missing() {
    let servers = Servers::start(3);
    let holder = Process::ready(run(&servers, &[], "dock-7", "echo ready; exec sleep 60"));
    for server in servers.iter() {
        let _: () = server
            .query(&["SET", "redlock:queue:dock-7", "no line"])
            .unwrap();
    }
    let next = Process::start(run(&servers, &[], "dock-7", "exit 0"));
    eventually("a client that looks for its place", || {
        servers
            .iter()
            .all(|server| !field(server, "errorstat_WRONGTYPE").is_empty())
    });
    holder.signal(Signal::TERM);
    holder.end();
    let ended = next.end();
    ended.expect_code(0);
    ended.expect_stderr(
        "KEY and redlock:fence:KEY must be strings and redlock:queue:KEY a zset, as TYPE says; delete the one that is not",
    );
    ended.expect_not_in_stderr("grant");
}

fn waiting(server: &Server) -> usize {
    server.query(&["ZCARD", LINE]).unwrap()
}

/// The mailbox of each client in the line, and its ticket.
fn places(server: &Server) -> Vec<(String, u64)> {
    server
        .query(&["ZRANGE", LINE, "0", "-1", "WITHSCORES"])
        .unwrap()
}
