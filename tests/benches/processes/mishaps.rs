//! What it costs the next client when a process dies or hangs.

use std::time::Duration;

use redlock_tests::Servers;
use redlock_tests::contender::{Arguments, Contender, Kind};

use crate::hand_over::millis;
use crate::{PROGRAM, percentile};

const REPETITIONS: usize = 9;

const KEY: &str = "dock-7";

/// Short, so that the death of a holder costs little time here.
const TTL: Duration = Duration::from_secs(1);

const NODE_TIMEOUT: Duration = Duration::from_millis(50);

/// 25 ms and two node timeouts.
const TURN: Duration = Duration::from_millis(125);

pub(crate) fn run() {
    let mut servers = Servers::start(5);
    println!("a turn lasts {TURN:?}, a TTL {TTL:?}; {REPETITIONS} times each\n");
    print(
        "no fault",
        |servers| hand_over(servers, 0, |_| {}),
        &servers,
    );
    print(
        "the first three of four in the line are killed",
        |servers| hand_over(servers, 3, |waiting| drop(waiting.drain(..))),
        &servers,
    );
    print(
        "the first of two in the line is stopped",
        |servers| {
            hand_over(servers, 1, |waiting| {
                waiting.iter().for_each(Contender::pause);
            })
        },
        &servers,
    );
    print(
        "the holder is killed, from its grant on",
        killed_holder,
        &servers,
    );
    servers[0].kill();
    print(
        "one of five servers is down",
        |servers| hand_over(servers, 0, |_| {}),
        &servers,
    );
}

fn print(what: &str, run: impl Fn(&Servers) -> u64, servers: &Servers) {
    let mut times: Vec<_> = (0..REPETITIONS).map(|_| run(servers)).collect();
    let (middle, longest) = (percentile(&mut times, 50), percentile(&mut times, 100));
    println!(
        "{what}: the next has the lock after {:.2} ms, at most {:.2} ms",
        millis(middle),
        millis(longest),
    );
}

fn process(servers: &Servers, ttl: Duration) -> Contender {
    let arguments = Arguments {
        kind: Kind::Queue,
        ttl: u64::try_from(ttl.as_millis()).unwrap(),
        node_timeout: u64::try_from(NODE_TIMEOUT.as_millis()).unwrap(),
        nodes: servers.urls(),
    };
    Contender::start(PROGRAM, &arguments)
}

/// How long the last process waits after a release, if `fault` happens to the `ahead` processes before it.
fn hand_over(servers: &Servers, ahead: usize, fault: impl Fn(&mut Vec<Contender>)) -> u64 {
    let up = || servers.iter().filter(|server| server.is_up());
    let mut holder = process(servers, TTL * 10);
    holder.acquire(KEY);
    let _since = holder.acquired();
    let mut waiting = Vec::new();
    for _ in 0..ahead {
        let mut process = process(servers, TTL * 10);
        process.stand_in_line(KEY, up());
        waiting.push(process);
    }
    let mut last = process(servers, TTL * 10);
    last.stand_in_line(KEY, up());
    fault(&mut waiting);
    let released = holder.release();
    let took = last.acquired() - released;
    last.release();
    took
}

fn killed_holder(servers: &Servers) -> u64 {
    let mut holder = process(servers, TTL);
    holder.acquire(KEY);
    let since = holder.acquired();
    let mut next = process(servers, TTL);
    next.acquire(KEY);
    holder.kill();
    let took = next.acquired() - since;
    next.release();
    took
}
