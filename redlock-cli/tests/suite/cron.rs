//! Jobs that are due at the same time on several hosts.

use std::fs;

use redlock_tests::{Servers, StepClock};
use tempfile::tempdir;

use crate::process::{end_of, run};

/// The time between two runs of a job.
const PERIOD: u64 = 60;

/// By how many seconds the clock of each host is behind that of the nodes.
const BEHIND: [u64; 3] = [0, 20, 40];

/// The hosts that are down in a period.
const DOWN: [(u64, u64); 3] = [(3, 0), (6, 0), (6, 20)];

#[test]
fn of_three_hosts_whose_clocks_are_40_s_apart_one_runs_a_job_in_each_of_ten_periods() {
    let servers = Servers::start_with_clocks(3);
    let directory = tempdir().unwrap();
    let ran = directory.path().join("ran");
    let clocks = BEHIND.map(|behind| {
        let files = directory.path().join(behind.to_string());
        fs::create_dir(&files).unwrap();
        StepClock::create(&files).unwrap()
    });
    for period in 0..10 {
        for (behind, clock) in BEHIND.into_iter().zip(&clocks) {
            // The period has begun on the clock of this host, which shows full minutes.
            let now = period * PERIOD + behind;
            for server in servers.iter() {
                server.step_clock(micros(now));
            }
            clock.step(micros(period * PERIOD)).unwrap();
            if DOWN.contains(&(period, behind)) {
                continue;
            }
            // As the help says of a job of every minute.
            let options = ["--no-wait", "--min-hold=55s", "-E", "0"];
            let script = format!("echo {period} >> {}", ran.display());
            let mut host = run(&servers, &options, "report", &script);
            host.envs(clock.environment());
            let ended = end_of(host);
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""));
        }
    }
    let ran = fs::read_to_string(ran).unwrap();
    let periods: Vec<u64> = ran.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(periods, (0..10).collect::<Vec<_>>());
}

fn micros(seconds: u64) -> i64 {
    i64::try_from(seconds * 1_000_000).unwrap()
}
