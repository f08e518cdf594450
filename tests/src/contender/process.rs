//! What the process does.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the process reports on stdout, and ends when anything fails"
)]

use std::io::stdin;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use redlock_std::{Guard, Options, Redlock};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Builder;
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Contends for locks as stdin tells, and ends with it.
#[derive(Debug, Clone, Parser)]
pub struct Arguments {
    /// Which client.
    #[arg(long, value_enum, default_value = "queue")]
    pub kind: Kind,
    /// In milliseconds.
    #[arg(long, default_value_t = 10_000)]
    pub ttl: u64,
    /// In milliseconds.
    #[arg(long, default_value_t = 50)]
    pub node_timeout: u64,
    /// Their URLs.
    pub nodes: Vec<String>,
}

/// A Redlock client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// `redlock-std`.
    Queue,
    /// `redlock-std` without the waiting line.
    Poll,
    /// `rslock`.
    Rslock,
}

impl Arguments {
    pub(super) fn to_words(&self) -> Vec<String> {
        let kind = match self.kind {
            Kind::Queue => "queue",
            Kind::Poll => "poll",
            Kind::Rslock => "rslock",
        };
        let (ttl, node_timeout) = (self.ttl.to_string(), self.node_timeout.to_string());
        let options = [
            "--kind",
            kind,
            "--ttl",
            &ttl,
            "--node-timeout",
            &node_timeout,
        ];
        let options = options.into_iter().map(str::to_owned);
        options.chain(self.nodes.iter().cloned()).collect()
    }
}

/// It looks again after up to this time, at random. Its own default.
const RSLOCK_DELAY: Duration = Duration::from_millis(200);

/// How long a client waits for a lock: longer than any run.
const WAIT: Duration = Duration::from_secs(600);

/// The process.
///
/// # Panics
///
/// When it cannot do what it is told.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect(arguments).await;
        println!("ready");
        obey(&client, commands()).await;
    });
    ExitCode::SUCCESS
}

/// The lines of stdin.
fn commands() -> Receiver<String> {
    let (sender, commands) = channel(1);
    std::thread::spawn(move || {
        for line in stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                break;
            }
        }
    });
    commands
}

async fn obey(client: &Client, mut commands: Receiver<String>) {
    let mut lock = None;
    while let Some(command) = commands.recv().await {
        let words: Vec<_> = command.split(' ').collect();
        match words[..] {
            ["acquire", key] => {
                lock = Some(client.lock(key).await);
                println!("acquired {}", now());
            }
            ["release"] => {
                let at = now();
                client.unlock(lock.take().unwrap()).await;
                println!("released {at}");
            }
            ["contend", key, tasks, millis] => {
                let time = Duration::from_millis(millis.parse().unwrap());
                contend(client, key, tasks.parse().unwrap(), time).await;
                println!("done");
            }
            ["round-trip"] => println!("round-trip {}", client.round_trip().await),
            _ => unreachable!("{command}"),
        }
    }
}

async fn contend(client: &Client, key: &str, tasks: usize, time: Duration) {
    let end = Instant::now() + time;
    let mut set = JoinSet::new();
    for _ in 0..tasks {
        let (client, key) = (client.clone(), key.to_owned());
        set.spawn(async move {
            while Instant::now() < end {
                let asked = now();
                let lock = client.lock(&key).await;
                let acquired = now();
                sleep(Duration::from_micros(2_000 + acquired % 3_000)).await;
                let released = now();
                client.unlock(lock).await;
                println!("turn {asked} {acquired} {released} {}", now());
            }
        });
    }
    set.join_all().await;
}

#[derive(Clone)]
enum Client {
    Ours(Redlock),
    Theirs(rslock::LockManager, Duration),
}

enum Lock {
    Ours(Box<Guard>),
    Theirs(rslock::Lock),
}

impl Client {
    async fn connect(arguments: &Arguments) -> Self {
        let ttl = Duration::from_millis(arguments.ttl);
        let client = if arguments.kind == Kind::Rslock {
            let mut manager = rslock::LockManager::new(arguments.nodes.clone());
            manager.set_retry(u32::MAX, RSLOCK_DELAY);
            Self::Theirs(manager, ttl)
        } else {
            let options = Options::new(ttl).unwrap().wait(WAIT);
            let node_timeout = Duration::from_millis(arguments.node_timeout);
            let options = options.node_timeout(node_timeout).unwrap();
            let options = options.queue(arguments.kind == Kind::Queue);
            Self::Ours(Redlock::connect(&arguments.nodes, options).unwrap())
        };
        // Until it is connected to all nodes.
        for _ in 0..20 {
            let lock = client.lock(&own_key()).await;
            client.unlock(lock).await;
        }
        client
    }

    async fn lock(&self, key: &str) -> Lock {
        match self {
            Self::Ours(redlock) => Lock::Ours(Box::new(redlock.acquire(key).await.unwrap())),
            Self::Theirs(manager, ttl) => {
                Lock::Theirs(manager.lock(key.as_bytes(), *ttl).await.unwrap())
            }
        }
    }

    async fn unlock(&self, lock: Lock) {
        match (self, lock) {
            (_, Lock::Ours(guard)) => drop(guard.release().await),
            (Self::Theirs(manager, _), Lock::Theirs(lock)) => manager.unlock(&lock).await,
            (Self::Ours(_), Lock::Theirs(_)) => unreachable!("its own lock"),
        }
    }

    /// The median time of a round trip, in microseconds.
    async fn round_trip(&self) -> u64 {
        let mut times = Vec::new();
        let mut lock = self.lock(&own_key()).await;
        for _ in 0..101 {
            let start = now();
            match &mut lock {
                Lock::Ours(guard) => drop(guard.extend().await),
                Lock::Theirs(_) => unreachable!("it is not asked"),
            }
            times.push(now() - start);
        }
        self.unlock(lock).await;
        times.sort_unstable();
        times[times.len() / 2]
    }
}

/// A key that no other process wants.
fn own_key() -> String {
    format!("own-{}", std::process::id())
}

/// The time on the one clock of the machine, in microseconds.
#[must_use]
pub fn now() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
}
