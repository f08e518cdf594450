//! Real `redis-server` processes on free loopback ports.
//!
//! A server ends with its handle, also when a test panics; and with the test process, also when that
//! is killed. A server that another program started is never touched.

#![expect(
    clippy::panic,
    clippy::expect_used,
    reason = "what fails here fails a test"
)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::{Deref, DerefMut, Index, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::str::FromStr;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::{Connection, FromRedisValue, RedisResult, ToRedisArgs};
use redlock_core::{FENCE_KEY_PREFIX, GUARD_KEY};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::time::sleep;

use crate::child;
use crate::step_clock::StepClock;

/// Several servers that know nothing of each other.
#[derive(Debug)]
pub struct Servers(Vec<Server>);

impl Servers {
    /// Starts `count` servers and waits until they answer.
    #[must_use]
    pub fn start(count: usize) -> Self {
        Self((0..count).map(|_| Server::start()).collect())
    }

    /// Starts `count` Valkey servers, whose votes count at once.
    #[must_use]
    pub fn start_valkey(count: usize) -> Self {
        let servers = Self((0..count).map(|_| Server::start_valkey()).collect());
        for server in servers.iter() {
            server.vouch(DEFAULT_FLEET);
        }
        servers
    }

    /// Starts `count` servers, each with a wall clock of its own that can be stepped.
    #[must_use]
    pub fn start_with_clocks(count: usize) -> Self {
        Self((0..count).map(|_| Server::start_with_clock()).collect())
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
        const LIMIT: Duration = Duration::from_secs(5);

        let start = Instant::now();
        while self.key_count() > 0 {
            assert!(
                start.elapsed() < LIMIT,
                "keys are left: {:?}",
                self.iter().map(Server::described_keys).collect::<Vec<_>>()
            );
            sleep(Duration::from_millis(2)).await;
        }
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
    program: PathBuf,
    port: u16,
    /// None after a kill: the number of a process that was waited for may be another's by now.
    child: Option<Child>,
    /// None for one that lives by the machine's clock.
    clock: Option<StepClock>,
    directory: TempDir,
}

impl Server {
    /// Starts a server, empty and without persistence, and waits until it answers. Its vote counts at
    /// once, as in a fleet that its operator has begun with `redlock init`.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start() -> Self {
        #[cfg(feature = "telemetry")]
        crate::telemetry::record_if_asked();
        Self::start_by(None, TempDir::new().expect("a temporary directory"))
    }

    /// Starts a server that lives by a wall clock of its own: the machine's, until it is
    /// [stepped](Self::step_clock) or [stopped](Self::stop_clock). Restarts do not change what it shows.
    ///
    /// # Panics
    ///
    /// When no server can be started, or there is no C compiler to make the clock with.
    #[must_use]
    pub fn start_with_clock() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let clock = StepClock::create(directory.path()).expect("a clock");
        Self::start_by(Some(clock), directory)
    }

    /// Starts a server that does not know `command`: INFO or TIME, for instance. No record vouches for it.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start_without(command: &str) -> Self {
        Self::start_with(&["--rename-command", command, ""])
    }

    /// Starts a server with these settings more. No record vouches for it.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_program(REDIS.into(), settings)
    }

    /// Starts a Valkey server. No record vouches for it.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start_valkey() -> Self {
        Self::start_valkey_with(&[])
    }

    /// Starts a Valkey server with these settings more. No record vouches for it.
    ///
    /// # Panics
    ///
    /// When no server can be started.
    #[must_use]
    pub fn start_valkey_with(settings: &[&str]) -> Self {
        Self::start_program(valkey(), settings)
    }

    fn start_program(program: PathBuf, settings: &[&str]) -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        for _ in 0..50 {
            let port = next_port();
            let mut child = start_process(&program, port, None, &directory, settings);
            for _ in 0..1_000 {
                // One that cannot have the port ends.
                let is_there = query::<String>(port, &["PING"]).is_ok();
                std::thread::sleep(Duration::from_millis(5));
                if child.try_wait().expect("our own child").is_some() {
                    break;
                }
                if is_there {
                    return Self {
                        program,
                        port,
                        child: Some(child),
                        clock: None,
                        directory,
                    };
                }
            }
            child::end(&mut child);
        }
        panic!(
            "{} could not be started; ./test.sh installs it",
            program.display()
        )
    }

    fn start_by(clock: Option<StepClock>, directory: TempDir) -> Self {
        for _ in 0..50 {
            let port = next_port();
            if let Some(child) = spawn(REDIS.as_ref(), port, clock.as_ref(), &directory) {
                let server = Self {
                    program: REDIS.into(),
                    port,
                    child: Some(child),
                    clock,
                    directory,
                };
                server.vouch(DEFAULT_FLEET);
                return server;
            }
        }
        // The directory is gone when this is read, so what is in it has to be said here.
        let log = fs::read_to_string(directory.path().join(LOG)).unwrap_or_default();
        panic!("no redis-server could be started; ./test.sh installs it. Its last words:\n{log}")
    }

    /// Where the server is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where the server is on this machine alone: its socket.
    #[must_use]
    pub fn socket_url(&self) -> String {
        format!(
            "redis+unix://{}",
            self.directory.path().join(SOCKET).display()
        )
    }

    /// Its port on the loopback interface.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// The number of its process.
    ///
    /// # Panics
    ///
    /// When it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.running().id()
    }

    /// Stops the process with its connections open (SIGSTOP).
    ///
    /// # Panics
    ///
    /// When it was killed.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets the process go on (SIGCONT).
    ///
    /// # Panics
    ///
    /// When it was killed.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether there is a process: it was not killed.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.child.is_some()
    }

    /// Ends the process (SIGKILL).
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child::end(&mut child);
        }
    }

    /// Ends the process and starts an empty one on the same port. No operator vouches for it: it may have
    /// forgotten something.
    ///
    /// # Panics
    ///
    /// When the port cannot be taken again.
    pub fn restart(&mut self) {
        self.kill();
        for _ in 0..1_000 {
            let (clock, directory) = (self.clock.as_ref(), &self.directory);
            if let Some(child) = spawn(&self.program, self.port, clock, directory) {
                self.child = Some(child);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the port {} was taken by another process", self.port);
    }

    /// Sets the wall clock of its own so many microseconds ahead of the machine's; it goes on.
    ///
    /// # Panics
    ///
    /// When it was started without one.
    pub fn step_clock(&self, micros: i64) {
        self.clock().step(micros).expect("a clock");
    }

    /// Lets the wall clock of its own stand still at `micros` since 1970.
    ///
    /// # Panics
    ///
    /// When it was started without one.
    pub fn stop_clock(&self, micros: i64) {
        self.clock().stop(micros).expect("a clock");
    }

    fn clock(&self) -> &StepClock {
        let clock = self.clock.as_ref();
        clock.expect("the server was started without a clock of its own")
    }

    /// Sends a command and reads its answer; an error when the server does not answer in time.
    ///
    /// # Errors
    ///
    /// Whatever the server or the connection reports.
    pub fn query<T: FromRedisValue>(&self, words: &[impl ToRedisArgs]) -> RedisResult<T> {
        query(self.port, words)
    }

    /// Writes the guard record of this very process, for a fleet with these rules: it has forgotten nothing,
    /// and its vote counts from now on.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn vouch(&self, fleet: &str) {
        let [run_id, replid] = self.identity().expect("INFO");
        let record = format!("{run_id}:0:{fleet}:{replid}");
        let set = ["SET", GUARD_KEY, &record];
        assert_eq!(self.query::<String>(&set).expect("SET"), "OK");
        let reset = ["CONFIG", "RESETSTAT"];
        assert_eq!(self.query::<String>(&reset).expect("RESETSTAT"), "OK");
    }

    /// Whether the guard record is of this very process with this data, and its quarantine is over.
    ///
    /// # Errors
    ///
    /// Whatever the server or the connection reports.
    pub fn is_vouched(&self) -> RedisResult<bool> {
        let record: Option<String> = self.query(&["GET", GUARD_KEY])?;
        let record = record.unwrap_or_default();
        let [run_id, replid] = self.identity()?;
        let [seconds, micros]: [u64; 2] = self.query(&["TIME"])?;
        let mut fields = record.split(':');
        let is_of_this_process = fields.next() == Some(&run_id);
        let until_ms = fields.next().and_then(|until| until.parse().ok());
        let is_over =
            until_ms.is_some_and(|until_ms: u64| until_ms * 1_000 <= seconds * 1_000_000 + micros);
        Ok(is_of_this_process && is_over && fields.next_back() == Some(&replid))
    }

    /// Its process and the history of its data.
    ///
    /// # Errors
    ///
    /// Whatever the server or the connection reports.
    ///
    /// # Panics
    ///
    /// When it is no Redis server.
    pub fn identity(&self) -> RedisResult<[String; 2]> {
        let id = |section, name| -> RedisResult<String> {
            let info: String = self.query(&["INFO", section])?;
            let id = info.lines().find_map(|line| line.strip_prefix(name));
            Ok(id.expect("every server has it").to_owned())
        };
        Ok([
            id("server", "run_id:")?,
            id("replication", "master_replid:")?,
        ])
    }

    /// Takes the guard record away: nothing vouches for the server any more.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    pub fn disown(&self) {
        self.query::<u64>(&["DEL", GUARD_KEY]).expect("DEL");
    }

    /// The keys there are, expired ones left out, in order. The guard record and the fences are not of them:
    /// they outlive the locks.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn keys(&self) -> Vec<Vec<u8>> {
        let mut keys: Vec<Vec<u8>> = self.query(&["KEYS", "*"]).expect("KEYS");
        keys.retain(|key| {
            key != GUARD_KEY.as_bytes() && !key.starts_with(FENCE_KEY_PREFIX.as_bytes())
        });
        keys.sort();
        keys
    }

    /// The keys, each with its milliseconds to live and its value, for the message of a failure.
    fn described_keys(&self) -> Vec<String> {
        let keys = self.keys();
        keys.iter()
            .map(|key| {
                let ttl: i64 = self.query(&[b"PTTL", &**key]).expect("PTTL");
                let value = self.query::<redis::Value>(&[b"GET", &**key]);
                let value = value.or_else(|_| {
                    let range: [&[u8]; 5] = [b"ZRANGE", key, b"0", b"9", b"WITHSCORES"];
                    self.query::<redis::Value>(&range)
                });
                format!("{} ({ttl} ms): {value:?}", key.escape_ascii())
            })
            .collect()
    }

    /// How many keys there are, expired ones not counted.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.keys().len()
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

    /// How many bytes it has received and sent, those that this look costs included.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn bytes_on_the_wire(&self) -> u64 {
        let fields = ["total_net_input_bytes:", "total_net_output_bytes:"];
        self.numbers::<u64, 2>("stats", fields).iter().sum()
    }

    /// For how long it has been busy.
    ///
    /// # Panics
    ///
    /// When the server does not answer.
    #[must_use]
    pub fn cpu_time(&self) -> Duration {
        let fields = ["used_cpu_sys:", "used_cpu_user:"];
        let seconds = self.numbers("cpu", fields).into_iter();
        seconds.map(Duration::from_secs_f64).sum()
    }

    /// What a section of INFO tells in the lines that begin with `fields`.
    fn numbers<T: FromStr, const N: usize>(&self, section: &str, fields: [&str; N]) -> [T; N] {
        let info: String = self.query(&["INFO", section]).expect("INFO");
        fields.map(|field| {
            let number = info.lines().find_map(|line| line.strip_prefix(field));
            let number = number.and_then(|number| number.parse().ok());
            number.expect("a number")
        })
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
        let pid = Pid::from_child(self.running());
        kill_process(pid, signal).expect("the process is ours and not waited for");
    }

    fn running(&self) -> &Child {
        self.child.as_ref().expect("the server was killed")
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
fn spawn(
    program: &Path,
    port: u16,
    clock: Option<&StepClock>,
    directory: &TempDir,
) -> Option<Child> {
    let mut child = start_process(program, port, clock, directory, &[]);
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
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child::end(&mut child);
    None
}

fn start_process(
    program: &Path,
    port: u16,
    clock: Option<&StepClock>,
    directory: &TempDir,
    more: &[&str],
) -> Child {
    let log = File::create(directory.path().join(LOG)).expect("a log file");
    let mut command = child::bound(program);
    command.envs(clock.into_iter().flat_map(StepClock::environment));
    command
        .args(["--save", "", "--appendonly", "no"])
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
        .arg("--unixsocket")
        .arg(directory.path().join(SOCKET))
        .args(more)
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a log file"))
        .stderr(log);
    child::spawn(command).expect("setpriv and redis-server are installed; ./test.sh installs them")
}

fn query<T: FromRedisValue>(port: u16, words: &[impl ToRedisArgs]) -> RedisResult<T> {
    // Far longer than a server takes on a machine that stands still now and then.
    const LIMIT: Duration = Duration::from_secs(5);

    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection: Connection = client.get_connection_with_timeout(LIMIT)?;
    connection.set_read_timeout(Some(LIMIT))?;
    connection.set_write_timeout(Some(LIMIT))?;
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    let answer = command.query(&mut connection)?;
    // The server ends it: a process that is being started has a copy of the socket for a moment.
    let _ended: RedisResult<()> = redis::cmd("QUIT").query(&mut connection);
    Ok(answer)
}

/// Ports that the kernel does not give to outgoing connections, so that none of them is in the way of
/// a restart; each process begins somewhere else.
fn next_port() -> u16 {
    static PORTS: LazyLock<RangeInclusive<u16>> = LazyLock::new(|| {
        let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
        listening_ports(&range.unwrap_or_default())
    });
    static NEXT: LazyLock<AtomicU32> =
        LazyLock::new(|| AtomicU32::new(std::process::id().wrapping_mul(2_654_435_761) >> 16));

    let count = u32::from(PORTS.end() - PORTS.start()) + 1;
    let offset = NEXT.fetch_add(1, Ordering::Relaxed) % count;
    PORTS.start() + u16::try_from(offset).expect("less than the number of ports")
}

/// The larger range of ports beside `outgoing`, which is written as the kernel writes it.
fn listening_ports(outgoing: &str) -> RangeInclusive<u16> {
    // Where people let their own servers listen is left alone.
    const FIRST: u16 = 10_000;
    // With fewer than that, two runs at once would meet: an outgoing connection is the lesser evil.
    const ENOUGH: usize = 1_000;

    let mut bounds = outgoing.split_whitespace().map(str::parse);
    let (Some(Ok(first)), Some(Ok(last))) = (bounds.next(), bounds.next()) else {
        return FIRST..=u16::MAX;
    };
    let below = FIRST..=u16::saturating_sub(first, 1);
    let above = u16::saturating_add(last, 1).max(FIRST)..=u16::MAX;
    [below, above]
        .into_iter()
        .max_by_key(ExactSizeIterator::len)
        .filter(|ports| ports.len() >= ENOUGH)
        .unwrap_or(FIRST..=u16::MAX)
}

const REDIS: &str = "redis-server";

/// The one that ./test.sh has installed in the target directory, or else that of the system.
fn valkey() -> PathBuf {
    const VALKEY: &str = "valkey-server";

    // A test is in deps/ of debug/ or release/ of the target directory.
    let test = std::env::current_exe().unwrap_or_default();
    let installed = test
        .ancestors()
        .nth(3)
        .map(|target| target.join("valkey").join(VALKEY));
    let installed = installed.filter(|program| program.exists());
    installed.unwrap_or_else(|| VALKEY.into())
}

/// The default rules of a fenced lock: `max_ttl:window:step_back` in milliseconds.
const DEFAULT_FLEET: &str = "60000:250:60000";

/// Where a server listens besides its port, in its directory.
const SOCKET: &str = "socket";

/// Where a server writes, in its directory.
const LOG: &str = "log";

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::sync::mpsc;

    use super::*;
    use crate::eventually;

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
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err());
    }

    #[test]
    fn a_server_outlives_the_thread_that_started_it() {
        let server = std::thread::spawn(Server::start).join().unwrap();
        // The signal of a wrong death would come a moment after the join.
        for _ in 0..100 {
            assert_eq!(server.query::<String>(&["PING"]).unwrap(), "PONG");
        }
    }

    #[tokio::test]
    async fn a_server_ends_with_a_test_process_that_is_killed() {
        // This test runs itself once more, as the process that is killed.
        const ROLE: &str = "REDLOCK_TESTS_KILLED";
        const NAME: &str = "servers::tests::a_server_ends_with_a_test_process_that_is_killed";
        if std::env::var_os(ROLE).is_some() {
            let server = Server::start();
            writeln!(std::io::stderr(), "{}", server.port()).unwrap();
            // Returns when the other process is gone.
            std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
            return;
        }

        // What a killed process leaves in its directory goes with this one.
        let directory = TempDir::new().unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(ROLE, "1")
            .env("TMPDIR", directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        BufReader::new(process.stderr.take().unwrap())
            .read_line(&mut port)
            .unwrap();
        let port = port.trim().parse().unwrap();
        assert_eq!(query::<String>(port, &["PING"]).unwrap(), "PONG");

        process.kill().unwrap();
        process.wait().unwrap();
        eventually("the server is gone", Duration::from_secs(5), || {
            TcpStream::connect(("127.0.0.1", port)).is_err()
        })
        .await;
    }

    #[test]
    fn a_port_that_is_taken_is_left_to_who_has_it() {
        let server = Server::start();
        let directory = TempDir::new().unwrap();
        assert!(spawn(REDIS.as_ref(), server.port(), None, &directory).is_none());
        assert_eq!(server.query::<String>(&["PING"]).unwrap(), "PONG");

        let mute = TcpListener::bind(("127.0.0.1", next_port())).unwrap();
        let port = mute.local_addr().unwrap().port();
        assert!(spawn(REDIS.as_ref(), port, None, &directory).is_none());
    }

    #[test]
    fn ports_are_outside_of_the_range_of_outgoing_connections() {
        assert_eq!(listening_ports("32768\t60999\n"), 10_000..=32_767);
        assert_eq!(listening_ports("10240\t40000\n"), 40_001..=65_535);
        assert_eq!(listening_ports("1024\t9999\n"), 10_000..=65_535);
        // None is left, or nothing is known: any may be tried.
        assert_eq!(listening_ports("0\t65535\n"), 10_000..=65_535);
        assert_eq!(listening_ports("10100\t65535\n"), 10_000..=65_535);
        assert_eq!(listening_ports(""), 10_000..=65_535);
    }

    #[test]
    fn a_killed_server_refuses_connections_until_it_is_restarted() {
        let mut server = Server::start();
        let pid = server.pid();
        server.kill();
        assert!(TcpStream::connect(("127.0.0.1", server.port())).is_err());
        server.restart();
        assert_eq!(server.query::<String>(&["PING"]).unwrap(), "PONG");
        assert_ne!(server.pid(), pid);
    }

    #[test]
    #[should_panic(expected = "the server was killed")]
    fn a_killed_server_gets_no_signal() {
        let mut server = Server::start();
        server.kill();
        server.pause();
    }

    #[test]
    fn keys_may_be_any_bytes() {
        let server = Server::start();
        for key in [b"\xff\0", b"ab"] {
            let set: [&[u8]; 3] = [b"SET", key, b"value"];
            assert_eq!(server.query::<String>(&set).unwrap(), "OK");
        }
        assert_eq!(server.keys(), [b"ab", b"\xff\0"]);
    }

    #[test]
    fn looking_counts_no_client() {
        let server = Server::start();
        let _client = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        for _ in 0..100 {
            assert_eq!(server.client_count(), 1);
        }
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

    #[test]
    fn the_clock_of_a_server_stands_still_or_is_ahead_as_it_is_told() {
        let time = |server: &Server| -> u64 {
            let [seconds, micros] = server.query::<[u64; 2]>(&["TIME"]).unwrap();
            seconds * 1_000_000 + micros
        };
        let [machine, mut server] = [Server::start(), Server::start_with_clock()];
        let before = time(&machine);
        let shown = time(&server);
        assert!((before..=time(&machine)).contains(&shown), "not set yet");

        server.step_clock(-3_600_000_000);
        let before = time(&machine);
        let shown = time(&server) + 3_600_000_000;
        assert!((before..=time(&machine)).contains(&shown));

        server.stop_clock(1_700_000_000_000_001);
        for _ in 0..3 {
            assert_eq!(time(&server), 1_700_000_000_000_001);
        }
        server.restart();
        assert_eq!(time(&server), 1_700_000_000_000_001);

        // Keys expire by it, and by nothing else.
        let set = ["SET", "key", "value", "PX", "10"];
        assert_eq!(server.query::<String>(&set).unwrap(), "OK");
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(server.key_count(), 1);
        server.stop_clock(1_700_000_000_011_000);
        assert_eq!(server.key_count(), 0);
    }

    #[test]
    #[should_panic(expected = "without a clock of its own")]
    fn a_server_that_lives_by_the_machines_clock_is_not_stepped() {
        Server::start().step_clock(1);
    }
}
