//! A server that speaks Redis for a while, and then sends what no Redis sends.
//!
//! It is a process of its own, so that it takes nothing of the memory and the CPU time that are measured.

use std::error::Error;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

use clap::ValueEnum;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::crowd;

/// What a hostile node does.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[arg(long)]
    attack: Attack,

    #[arg(long)]
    moment: Moment,

    /// As PEM; with it the node speaks TLS
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,

    /// As PEM
    #[arg(long, requires = "certificate")]
    key: Option<PathBuf>,
}

/// What it sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Attack {
    /// An array of a billion, and nulls without an end
    Nulls,
    /// A bulk string of 9 EB, a few MB a second
    Dribble,
    /// The same, as fast as it goes
    Flood,
    /// `+OK` without an end
    Okays,
    /// Bulk strings of 100 MB
    Reply,
    /// One push message that confirms a subscription to a new channel, instead of each answer
    Push,
    /// Valid answers: that many other clients wait for each lock
    Waiters,
    /// Valid calls without an end, that it is the turn of this client
    Calls,
}

/// When it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Moment {
    /// Instead of the first answer on a connection
    AtOnce,
    /// After the handshake, unasked
    Idle,
    /// Instead of the answer to the first command on a key, or as soon as a client has subscribed to its mailbox
    Busy,
}

/// Serves until the process is ended. Prints its URL.
pub(super) fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let tls = arguments.tls()?;
    let scheme = if tls.is_some() { "rediss" } else { "redis" };
    writeln!(io::stdout(), "{scheme}://{}", listener.local_addr()?)?;
    let Arguments { attack, moment, .. } = *arguments;
    for stream in listener.incoming().flatten() {
        let tls = tls.clone();
        // The victim ends a connection whenever it likes.
        thread::spawn(move || drop(receive(stream, tls, attack, moment)));
    }
    Ok(())
}

impl Arguments {
    /// `None` if the node speaks plain TCP.
    fn tls(&self) -> Result<Option<Arc<ServerConfig>>, Box<dyn Error>> {
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return Ok(None);
        };
        let certificate = CertificateDer::from_pem_file(certificate)?;
        let key = PrivateKeyDer::from_pem_file(key)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)?;
        Ok(Some(Arc::new(config)))
    }
}

fn receive(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    attack: Attack,
    moment: Moment,
) -> Result<(), Box<dyn Error>> {
    stream.set_nodelay(true)?;
    match tls {
        None => serve(stream, attack, moment)?,
        Some(tls) => {
            let session = ServerConnection::new(tls)?;
            serve(StreamOwned::new(session, stream), attack, moment)?;
        }
    }
    Ok(())
}

fn serve(stream: impl Read + Write, attack: Attack, moment: Moment) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let command = read_command(&mut stream)?;
        let writer = stream.get_mut();
        let is_due = match moment {
            Moment::AtOnce => true,
            Moment::Busy => attack.is_due_at(&command.name),
            Moment::Idle => false,
        };
        if is_due {
            attack.send(writer, &command)?;
            continue;
        }
        writer.write_all(answer(&command.name))?;
        // The question who it is comes last.
        if moment == Moment::Idle && command.name == "EVAL" {
            attack.send(writer, &command)?;
        }
    }
}

/// What a node says that has run for long: a master that evicts nothing, with a guard record.
fn answer(command: &str) -> &'static [u8] {
    match command {
        "HELLO" => b"-ERR unknown command 'HELLO'\r\n",
        "SCRIPT" => b"$40\r\n0123456789abcdef0123456789abcdef01234567\r\n",
        "EVAL" => b"*4\r\n:4711\r\n:4712\r\n:4000003\r\n:60000\r\n",
        "EVALSHA" => b":1\r\n",
        "PING" => b"+PONG\r\n",
        _ => b"+OK\r\n",
    }
}

impl Attack {
    /// Whether a client that uses the lock has sent what the attack waits for.
    fn is_due_at(self, command: &str) -> bool {
        match self {
            Self::Calls => matches!(command, "SET" | "EVALSHA" | "SUBSCRIBE"),
            _ => matches!(command, "SET" | "EVALSHA"),
        }
    }

    /// Until it is over, or the other end has had enough.
    fn send(self, mut to: impl Write, asked: &Asked) -> io::Result<()> {
        match self {
            Self::Nulls => {
                to.write_all(b"*1000000000\r\n")?;
                forever(to, &b"$-1\r\n".repeat(PIECE), Duration::ZERO)
            }
            Self::Okays => forever(to, &b"+OK\r\n".repeat(PIECE), Duration::ZERO),
            Self::Flood => {
                to.write_all(ENDLESS)?;
                forever(to, &b"x".repeat(PIECE), Duration::ZERO)
            }
            Self::Dribble => {
                to.write_all(ENDLESS)?;
                forever(to, &b"x".repeat(PIECE), DRIBBLE_DELAY)
            }
            Self::Reply => {
                to.write_all(format!("${REPLY}\r\n").as_bytes())?;
                io::copy(&mut io::repeat(b'x').take(REPLY), &mut to)?;
                to.write_all(b"\r\n")
            }
            Self::Push => {
                let number = PUSHED.fetch_add(1, Ordering::Relaxed);
                let channel = format!("{number:0>CHANNEL$}");
                let push = format!(">3\r\n$9\r\nsubscribe\r\n${CHANNEL}\r\n{channel}\r\n:1\r\n");
                to.write_all(push.as_bytes())
            }
            Self::Waiters => to.write_all(asked.with_waiters().as_bytes()),
            Self::Calls if asked.name != "SUBSCRIBE" => to.write_all(asked.granted().as_bytes()),
            Self::Calls => {
                let mailbox = &asked.subject;
                let head = format!("${}\r\n{mailbox}\r\n", mailbox.len());
                to.write_all(format!("*3\r\n$9\r\nsubscribe\r\n{head}:1\r\n").as_bytes())?;
                let calls = (0..KEYS).map(|number| {
                    let call = format!("1{}", crowd::key(number));
                    format!("*3\r\n$7\r\nmessage\r\n{head}${}\r\n{call}\r\n", call.len())
                });
                let calls: String = calls.collect();
                forever(to, &calls.as_bytes().repeat(CALLS), Duration::ZERO)
            }
        }
    }
}

/// The code of a client that has the lock.
const GRANTED: u64 = 0;

/// The code of a client that is not the first in the line.
const AHEAD: u64 = 8;

static PUSHED: AtomicU64 = AtomicU64::new(0);

const ENDLESS: &[u8] = b"$9000000000000000000\r\n";
const REPLY: u64 = 100_000_000;
/// With it a push message is as long as an answer may be, however many are in flight.
const CHANNEL: usize = 450;
const PIECE: usize = 65_536;
/// How many keys the clients use. It calls for all of them.
pub(super) const KEYS: usize = 2;
/// How many calls for each key are sent at once.
const CALLS: usize = 1_000;
const DRIBBLE_DELAY: Duration = Duration::from_millis(10);

fn forever(mut to: impl Write, piece: &[u8], delay: Duration) -> io::Result<()> {
    loop {
        to.write_all(piece)?;
        thread::sleep(delay);
    }
}

/// A command, as far as the attacks look at it.
#[derive(Debug)]
struct Asked {
    name: String,
    /// The word after the name, for example the mailbox.
    subject: String,
    words: usize,
    /// How many keys its script has, if it runs one: two if the lock has a waiting line.
    script_keys: usize,
}

impl Asked {
    /// The answer that grants what the command asks for, and tells of other clients that wait for the lock.
    fn with_waiters(&self) -> String {
        match self.script_keys {
            // Another client is ahead in the line, and has its turn for a second: see the script.
            2 if self.is_queued_acquire() => stood_in_line(AHEAD, 1_000 * 1_024 + 1),
            2 => ":2\r\n".into(),
            _ => self.granted(),
        }
    }

    /// The answer that grants what the command asks for.
    fn granted(&self) -> String {
        match &*self.name {
            "SET" => "+OK\r\n".into(),
            _ if self.is_queued_acquire() => stood_in_line(GRANTED, 0),
            _ => ":1\r\n".into(),
        }
    }

    /// Only an acquire has so many words.
    const fn is_queued_acquire(&self) -> bool {
        self.script_keys == 2 && self.words == 10
    }
}

/// The answer to an acquire with a place in the line.
fn stood_in_line(code: u64, number: u64) -> String {
    let clock = UNIX_EPOCH.elapsed().unwrap_or_default().as_micros();
    format!("*4\r\n:{code}\r\n:{clock}\r\n:0\r\n:{number}\r\n")
}

/// An array of bulk strings.
fn read_command(reader: &mut impl BufRead) -> io::Result<Asked> {
    let words = read_length(reader, '*')?;
    let mut read = Vec::new();
    for _ in 0..words {
        let length = read_length(reader, '$')?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word)?;
        word.truncate(length);
        read.push(String::from_utf8_lossy(&word).into_owned());
    }
    let name = read.first().ok_or(io::ErrorKind::InvalidData)?;
    let script_keys = read.get(2).and_then(|word| word.parse().ok());
    Ok(Asked {
        name: name.to_uppercase(),
        subject: read.get(1).cloned().unwrap_or_default(),
        words,
        script_keys: script_keys.unwrap_or_default(),
    })
}

fn read_length(reader: &mut impl BufRead, kind: char) -> io::Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let length = line.trim_end().strip_prefix(kind);
    let length = length.and_then(|length| length.parse().ok());
    length.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl fmt::Display for Attack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(self, f)
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        name(self, f)
    }
}

/// As on the command line.
fn name(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match value.to_possible_value() {
        Some(value) => f.write_str(value.get_name()),
        None => Ok(()),
    }
}
