//! Processes that take one lock again and again.

use std::time::Duration;

use redlock_tests::contender::{Contender, Kind, Turn};
use redlock_tests::{Proxy, Servers};

use crate::commands::Commands;
use crate::{percentile, processes, runtime};

const TIME: Duration = Duration::from_secs(5);

const KEY: &str = "dock-7";

/// How far the servers are in `far`, one way.
const WAY: Duration = Duration::from_micros(2_500);

/// All on one machine.
pub(crate) fn near() {
    let servers = Servers::start(5);
    println!(
        "lock held for 2 to 5 ms; RT: a round trip, the median time of a release in the same run\n"
    );
    for count in [2, 8, 16, 64] {
        for kind in [Kind::Queue, Kind::Poll, Kind::Rslock] {
            // The others do not finish with so many.
            if count < 64 || kind == Kind::Queue {
                contention(&servers, &servers.urls(), count, kind);
            }
        }
    }
}

/// Five milliseconds away.
pub(crate) fn far() {
    let servers = Servers::start(5);
    let runtime = runtime();
    let proxies = runtime.block_on(async {
        let mut proxies = Vec::new();
        for server in servers.iter() {
            proxies.push(Proxy::start(server, WAY).await);
        }
        proxies
    });
    let urls: Vec<_> = proxies.iter().map(Proxy::url).collect();
    println!("the servers are {WAY:?} away, one way\n");
    for count in [2, 8] {
        for kind in [Kind::Queue, Kind::Poll, Kind::Rslock] {
            contention(&servers, &urls, count, kind);
        }
    }
}

fn contention(servers: &Servers, urls: &[String], count: usize, kind: Kind) {
    // The kinds differ in how they take the lock, not in how far the servers are.
    let round_trip = processes(1, Kind::Queue, urls)[0].round_trip();
    let mut processes = processes(count, kind, urls);
    let turns = contend(&mut processes, TIME);
    // Not while the time is taken.
    let watched = Commands::of(servers);
    let watched_turns = contend(&mut processes, TIME / 2).concat().len();
    let commands = watched.count() as f64 / watched_turns.max(1) as f64;
    drop(processes);

    let counts: Vec<_> = turns.iter().map(Vec::len).collect();
    let (least, most) = (
        counts.iter().min().copied().unwrap_or(0),
        counts.iter().max().copied().unwrap_or(0),
    );
    let all: Vec<_> = turns.concat();
    let longest = all.iter().map(|turn| turn.acquired - turn.asked).max();
    let mut hand_overs = hand_overs(&turns);
    let mut releases: Vec<_> = all.iter().map(|t| t.answered - t.released).collect();
    let release = percentile(&mut releases, 50);
    let (p50, p99) = (
        percentile(&mut hand_overs, 50),
        percentile(&mut hand_overs, 99),
    );
    println!(
        "{count:2} processes, {:6}: hand-off p50 {:.2} ms = {:.1} RT, p99 {:.2} ms = {:.1} RT (RT {:.2} ms, {:.2} ms of one \
         process alone); turns {least} to {most}, min/max {:.2}; longest wait {:.0} ms; {commands:.1} commands per acquisition",
        format!("{kind:?}").to_lowercase(),
        millis(p50),
        p50 as f64 / release as f64,
        millis(p99),
        p99 as f64 / release as f64,
        millis(release),
        millis(round_trip),
        least as f64 / most.max(1) as f64,
        millis(longest.unwrap_or(0)),
    );
}

fn contend(processes: &mut [Contender], time: Duration) -> Vec<Vec<Turn>> {
    for process in &mut *processes {
        process.contend(KEY, 1, time);
    }
    processes.iter().map(Contender::turns).collect()
}

/// The times between a release and the next acquisition, if that was of another process.
fn hand_overs(turns: &[Vec<Turn>]) -> Vec<u64> {
    let mut all: Vec<_> = turns
        .iter()
        .enumerate()
        .flat_map(|(process, turns)| turns.iter().map(move |turn| (process, turn)))
        .collect();
    all.sort_unstable_by_key(|(_, turn)| turn.acquired);
    all.windows(2)
        .filter(|pair| pair[0].0 != pair[1].0)
        .map(|pair| {
            let (released, acquired) = (pair[0].1.released, pair[1].1.acquired);
            assert!(acquired >= released, "two hold the lock at once");
            acquired - released
        })
        .collect()
}

pub(crate) fn millis(micros: u64) -> f64 {
    micros as f64 / 1e3
}
