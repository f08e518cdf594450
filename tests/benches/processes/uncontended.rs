//! What the line costs where no client waits: `redlock-std` with its line beside itself without it, in turns.

use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};
use redlock_tests::{Server, Servers};
use rustix::time::{ClockId, clock_gettime};

use crate::commands::Commands;
use crate::runtime;

const TTL: Duration = Duration::from_secs(10);

/// How often each measurement is repeated; the median of the ratios counts.
const REPETITIONS: usize = 21;

const RUN: Duration = Duration::from_millis(400);

const TASKS: usize = 64;

/// The permissions of a client without the line, and those for the line.
const PLAIN: &str =
    "~own-* ~redlock:guard +set +get +del +pexpire +evalsha +eval +script|load +info +time";
const LINE: &str = "~redlock:queue:own-* &redlock:mail:* +exists +pttl +zadd +zrem +zrange +zrank +zscore +zcard \
    +publish +pubsub +subscribe";

/// The client that uses the line, one whose option is off, and one that may not use it. The second one still tells the
/// first of a line that a lock is free. The third one sends the commands of every Redlock client.
pub(crate) fn run() {
    let servers = Servers::start(5);
    runtime().block_on(async {
        let on = Redlock::connect(
            user(&servers, "member", &format!("{PLAIN} {LINE}")),
            // No round times out on a machine that is busy.
            Options::new(TTL)
                .unwrap()
                .node_timeout(TTL / 10)
                .unwrap(),
        )
        .unwrap();
        let off = on.with_options(on.options().queue(false));
        let none = user(&servers, "stranger", PLAIN);
        let none = Redlock::connect(none, *on.options()).unwrap();
        let clients = [&on, &off, &none];
        for redlock in clients {
            cycles(redlock, 1).await;
        }
        assert!(!none.warnings().is_empty() && on.warnings().is_empty());
        for (what, tasks) in [("lock + unlock, one task", 1), ("64 tasks, 64 keys", TASKS)] {
            let mut rates = [Vec::new(), Vec::new()];
            let mut work = [Vec::new(), Vec::new()];
            for repetition in 0..REPETITIONS {
                let mut runs = [(0.0, 0.0); 3];
                // None is always the first.
                for turn in 0..3 {
                    let number = (repetition + turn) % 3;
                    let before = cpu_time(&servers);
                    let cycles = cycles(clients[number], tasks).await;
                    let cpu = (cpu_time(&servers) - before).as_secs_f64() / cycles.count;
                    runs[number] = (cycles.per_second, cpu);
                }
                for other in 0..2 {
                    rates[other].push(runs[0].0 / runs[other + 1].0);
                    work[other].push(runs[0].1 / runs[other + 1].1);
                }
            }
            let [to_off, to_none] = rates.map(quartiles);
            let [work_to_off, work_to_none] = work.map(quartiles);
            let watched = Commands::of(&servers);
            let count = cycles(&on, tasks).await.count;
            let commands = watched.count() as f64 / count;
            println!("{what}, with the line divided by with its option off, and by without its permissions:");
            println!("  cycles per second: {to_off}, {to_none}");
            println!("  CPU time of the client and the servers per cycle: {work_to_off}, {work_to_none}");
            println!("  {commands:.1} commands per cycle");
        }
    });
}

/// The CPU time of this process and of all servers.
fn cpu_time(servers: &Servers) -> Duration {
    let own = clock_gettime(ClockId::ProcessCPUTime);
    let own = Duration::new(
        own.tv_sec.unsigned_abs(),
        u32::try_from(own.tv_nsec).unwrap_or(0),
    );
    own + servers.iter().map(Server::cpu_time).sum::<Duration>()
}

/// The URLs with a user that has these permissions.
fn user(servers: &Servers, name: &str, permissions: &str) -> Vec<String> {
    let url = |server: &Server| {
        let user = [
            "ACL",
            "SETUSER",
            name,
            "reset",
            "on",
            ">secret",
            "resetchannels",
        ];
        let words: Vec<_> = user
            .into_iter()
            .chain(permissions.split_whitespace())
            .collect();
        assert_eq!(server.query::<String>(&words).unwrap(), "OK");
        format!("redis://{name}:secret@127.0.0.1:{}", server.port())
    };
    servers.iter().map(url).collect()
}

fn quartiles(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let [low, middle, high] = [1, 2, 3].map(|quarter| values[values.len() * quarter / 4]);
    format!("{middle:.3} (quartiles {low:.3} to {high:.3})")
}

struct Cycles {
    count: f64,
    per_second: f64,
}

/// Tasks lock and unlock a key each.
async fn cycles(redlock: &Redlock, tasks: usize) -> Cycles {
    let start = Instant::now();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let redlock = redlock.clone();
            tokio::spawn(async move {
                let key = format!("own-{task}");
                let mut cycles = 0_u32;
                while start.elapsed() < RUN {
                    redlock.acquire(&key).await.unwrap().release().await;
                    cycles += 1;
                }
                cycles
            })
        })
        .collect();
    let mut count = 0;
    for task in tasks {
        count += task.await.unwrap();
    }
    let count = f64::from(count);
    Cycles {
        count,
        per_second: count / start.elapsed().as_secs_f64(),
    }
}
