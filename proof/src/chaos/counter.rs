//! What else one might take for a fence: each node counts its grants (INCR), and who wins the lock takes the
//! highest of the numbers that it was told. It is run beside the lock, on the same nodes, to show that it
//! does not do: nodes that forget count again from one, and two majorities need not have counted together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use redis::{Connection, RedisResult};
use redlock_core::{Clock, Instant};
use redlock_std::SystemClock;

use super::fault::MAJORITY;
use super::order::Issued;
use super::random::Random;
use super::record::Recorder;

/// Its clients, as threads that end with their handle.
#[derive(Debug)]
pub(super) struct Counters {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Counters {
    pub(super) fn start(ports: &[u16], ttl: Duration, recorder: &Recorder, seed: u64) -> Self {
        const CLIENTS: u64 = 3;

        let stop = Arc::new(AtomicBool::new(false));
        let threads = (0..CLIENTS).map(|number| {
            let mut client = Client {
                nodes: ports.iter().map(|port| Node::new(*port)).collect(),
                ttl: ttl / 4,
                random: Random::new(seed.wrapping_add(number)),
            };
            let (stop, recorder) = (Arc::clone(&stop), recorder.clone());
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Some(issued) = client.take_turn() {
                        recorder.note(|record| record.counted.push(issued));
                    }
                }
            })
        });
        Self {
            threads: threads.collect(),
            stop,
        }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

struct Client {
    nodes: Vec<Node>,
    ttl: Duration,
    random: Random,
}

impl Client {
    /// Acquires once if it can, and gives back; what it got.
    fn take_turn(&mut self) -> Option<Issued> {
        const ACQUIRE: &str = "if redis.call('set', KEYS[1], ARGV[1], 'nx', 'px', ARGV[2]) then \
             return redis.call('incr', KEYS[2]) end return 0";
        const RELEASE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0";

        let token = self.random.number();
        let ttl_ms = u64::try_from(self.ttl.as_millis()).unwrap_or(u64::MAX);
        let sent = SystemClock.now();
        let limit = self.ttl / 10;
        let votes = self.nodes.iter_mut().map(|node| {
            let count = node.call(ACQUIRE, [token, ttl_ms], limit);
            count.unwrap_or_default()
        });
        let votes: Vec<u64> = votes.collect();
        let at = SystemClock.now();
        let granted = votes.iter().filter(|count| **count > 0).count();
        let is_in_time = at.saturating_duration_since(sent) < self.ttl * 9 / 10;
        let won = (granted >= MAJORITY && is_in_time).then(|| Issued {
            sent,
            at,
            fence: votes.into_iter().max().unwrap_or_default(),
        });
        if won.is_some() {
            self.rest();
        }
        for node in &mut self.nodes {
            drop(node.call(RELEASE, [token, ttl_ms], limit));
        }
        self.rest();
        won
    }

    fn rest(&mut self) {
        thread::sleep(self.random.between(Duration::ZERO, self.ttl / 20));
    }
}

struct Node {
    port: u16,
    connection: Option<Connection>,
    /// Not asked before then: one that is silent would hold up all others.
    ask_again: Instant,
}

impl Node {
    const fn new(port: u16) -> Self {
        Self {
            port,
            connection: None,
            ask_again: Instant::from_micros(0),
        }
    }

    fn call(&mut self, script: &str, arguments: [u64; 2], limit: Duration) -> RedisResult<u64> {
        let now = SystemClock.now();
        if now < self.ask_again {
            return Err((redis::ErrorKind::Io, "silent").into());
        }
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect(limit)?,
        };
        let mut call = redis::cmd("EVAL");
        call.arg(script).arg(2).arg("counted").arg("counted:fence");
        let answer = call.arg(&arguments).query(&mut connection);
        if answer.is_ok() {
            self.connection = Some(connection);
        } else {
            self.ask_again = now.saturating_add(2 * limit);
        }
        answer
    }

    fn connect(&mut self, limit: Duration) -> RedisResult<Connection> {
        self.ask_again = SystemClock.now().saturating_add(2 * limit);
        let client = redis::Client::open(("127.0.0.1", self.port))?;
        let connection = client.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        connection.set_write_timeout(Some(limit))?;
        self.ask_again = Instant::from_micros(0);
        Ok(connection)
    }
}
