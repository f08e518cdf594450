//! Real `redis-server` processes on free loopback ports.
//!
//! A server ends with its handle, also when a test panics; and with the test process, also when that
//! is killed. A server that somebody else started is never touched.

#![expect(
    clippy::panic,
    clippy::expect_used,
    reason = "what fails here fails a test"
)]

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::{Deref, DerefMut, Index};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use redis::{Connection, FromRedisValue, RedisResult};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::eventually;

/// Several servers that know nothing of each other.
#[derive(Debug)]
pub struct Servers(Vec<Server>);

impl Servers {
    /// Starts `count` servers and waits until they answer.
    #[must_use]
    pub fn start(count: usize) -> Self {
        Self((0..count).map(|_| Server::start()).collect())
    }

    /// The URLs, in the order of the servers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.0.iter().map(Server::url).collect()
    }

    /// How many keys there are on all servers together.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.0.iter().map(Server::key_count).sum()
    }

    /// Waits until no server has a key, for less than any TTL of the tests.
    ///
    /// # Panics
    ///
    /// When keys are left.
    pub async fn expect_no_keys(&self) {
        eventually(
            "no key is left on any server",
            Duration::from_secs(2),
            || self.key_count() == 0,
        )
        .await;
    }
}

impl Deref for Servers {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.0
    }
}

impl DerefMut for Servers {
    fn deref_mut(&mut self) -> &mut [Server] {
        &mut self.0
    }
}

/// One server.
#[derive(Debug)]
pub struct Server {
    port: u16,
    child: Child,
    directory: TempDir,
}

impl Server {
    /// Starts a server, empty and without persistence, and waits until it answers.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        for _ in 0..50 {
            let port = next_port();
            if let Some(child) = spawn(port, &directory) {
                return Self {
                    port,
                    child,
                    directory,
                };
            }
        }
        panic!("no redis-server could be started; is it installed? see {directory:?}")
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its port on the loopback interface.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Stops the process with its connections open (SIGSTOP).
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets the process go on (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the process (SIGKILL).
    pub fn kill(&mut self) {
        // It may be dead already; what counts is that it is afterwards.
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Ends the process and starts an empty one on the same port.
    ///
    /// # Panics
    ///
    /// When the port cannot be taken again.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..1_000 {
            if let Some(child) = spawn(self.port, &self.directory) {
                self.child = child;
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the port {} was taken by another process", self.port);
    }

    /// Sends a command and reads its answer; an error when the server does not answer in time.
    ///
    /// # Errors
    ///
    /// Whatever the server or the connection reports.
    pub fn query<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        query(self.port, words)
    }

    /// How many keys there are, expired ones not counted.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn key_count(&self) -> usize {
        let keys: Vec<Vec<u8>> = self.query(&["KEYS", "*"]).expect("KEYS");
        keys.len()
    }

    /// How often each command was called, those that scripts call included.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn calls(&self) -> Calls {
        let info: String = self.query(&["INFO", "commandstats"]).expect("INFO");
        let lines = info
            .lines()
            .filter_map(|line| line.strip_prefix("cmdstat_"));
        Calls(
            lines
                .filter_map(|line| {
                    let (name, fields) = line.split_once(":calls=")?;
                    Some((name.to_owned(), fields.split(',').next()?.parse().ok()?))
                })
                .collect(),
        )
    }

    /// How many clients are connected, the one that asks not counted.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn client_count(&self) -> usize {
        let list: String = self.query(&["CLIENT", "LIST"]).expect("CLIENT LIST");
        list.lines().count() - 1
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the process is ours and not waited for");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How often each command was called.
#[derive(Debug)]
pub struct Calls(BTreeMap<String, u64>);

impl Index<&str> for Calls {
    type Output = u64;

    fn index(&self, command: &str) -> &u64 {
        self.0.get(command).unwrap_or(&0)
    }
}

/// A server that answers on `port` and is the one that was started here; none if the port was taken.
fn spawn(port: u16, directory: &TempDir) -> Option<Child> {
    let mut child = spawner(port, directory);
    for _ in 0..1_000 {
        if child.try_wait().expect("our own child").is_some() {
            return None;
        }
        let info: RedisResult<String> = query(port, &["INFO", "server"]);
        if let Ok(info) = info {
            let ours = format!("process_id:{}\r", child.id());
            if info.contains(&ours) {
                return Some(child);
            }
            drop(child.kill());
            drop(child.wait());
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(child.kill());
    drop(child.wait());
    None
}

/// Starts the process from a thread that lives as long as this process: the signal that ends a server
/// with its parent comes when the *thread* ends that started it.
fn spawner(port: u16, directory: &TempDir) -> Child {
    type Job = (Command, mpsc::Sender<std::io::Result<Child>>);
    static SPAWNER: LazyLock<mpsc::Sender<Job>> = LazyLock::new(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, reply) in jobs {
                drop(reply.send(command.spawn()));
            }
        });
        sender
    });

    let log = File::create(directory.path().join("log")).expect("a log file");
    let mut command = Command::new("setpriv");
    command
        .args([
            "--pdeathsig",
            "KILL",
            "redis-server",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .args([
            "--bind",
            "127.0.0.1",
            "--loglevel",
            "warning",
            "--port",
            &port.to_string(),
        ])
        .arg("--dir")
        .arg(directory.path())
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log file"))
        .stderr(log);
    let (sender, child) = mpsc::channel();
    SPAWNER
        .send((command, sender))
        .expect("the spawner lives as long as the process");
    child
        .recv()
        .expect("the spawner answers")
        .expect("setpriv and redis-server are installed; ./test.sh installs them")
}

fn query<T: FromRedisValue>(port: u16, words: &[&str]) -> RedisResult<T> {
    const LIMIT: Duration = Duration::from_millis(500);

    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection: Connection = client.get_connection_with_timeout(LIMIT)?;
    connection.set_read_timeout(Some(LIMIT))?;
    connection.set_write_timeout(Some(LIMIT))?;
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command.query(&mut connection)
}

/// Ports below those that the kernel gives to outgoing connections, so that none of them is in the
/// way; each process begins somewhere else.
fn next_port() -> u16 {
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        let spread = std::process::id().wrapping_mul(2_654_435_761) >> 16;
        AtomicU16::new(u16::try_from(spread % u32::from(COUNT)).unwrap_or(0))
    });
    FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_paused_server_does_not_answer_until_it_is_resumed() {
        let server = Server::start();
        server.pause();
        assert!(server.query::<String>(&["PING"]).is_err());
        server.resume();
        let limit = Duration::from_secs(5);
        eventually("it answers", limit, || {
            server.query::<String>(&["PING"]).is_ok()
        })
        .await;
    }

    #[test]
    fn a_restarted_server_is_empty_and_on_the_same_port() {
        let mut server = Server::start();
        let url = server.url();
        assert_eq!(
            server.query::<String>(&["SET", "key", "value"]).unwrap(),
            "OK"
        );
        assert_eq!(server.key_count(), 1);
        server.restart();
        assert_eq!((server.key_count(), server.url()), (0, url));
    }

    #[test]
    fn a_server_is_gone_when_its_test_panics() {
        let (sender, port) = mpsc::channel();
        let test = std::thread::spawn(move || {
            let server = Server::start();
            server.pause();
            sender.send(server.port()).unwrap();
            panic!("on purpose");
        });
        let port = port.recv().unwrap();
        assert!(test.join().is_err());
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    }

    #[test]
    fn calls_are_counted_by_command() {
        let server = Server::start();
        assert_eq!(
            server.query::<String>(&["SET", "key", "value"]).unwrap(),
            "OK"
        );
        let calls = server.calls();
        assert_eq!((calls["set"], calls["evalsha"]), (1, 0));
    }
}
