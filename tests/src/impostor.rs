//! A server that answers as a node does, for a while.

#![expect(clippy::expect_used, reason = "what fails here fails a test")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A node that is in the wrong hands. It serves until the process ends.
#[derive(Debug)]
pub struct Impostor {
    port: u16,
    tally: Arc<Tally>,
}

/// What it does wrong.
#[derive(Debug, Clone, Copy)]
pub struct Mischief {
    /// When it is sent this command.
    pub on: &'static str,
    /// What it answers.
    pub answer: &'static [u8],
    /// What it sends after that, again and again, without being asked; nothing, and it goes on as before.
    pub flood: &'static [u8],
    /// How long it waits before each of these.
    pub pause: Duration,
}

#[derive(Debug, Default)]
struct Tally {
    connections: AtomicU64,
    /// Floods that ended because the connection did.
    cut_off: AtomicU64,
    /// The longest of them.
    longest: AtomicU64,
}

impl Impostor {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When there is no port.
    #[must_use]
    pub fn start(mischief: Mischief) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let tally = Arc::new(Tally::default());
        let counted = Arc::clone(&tally);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let tally = Arc::clone(&counted);
                tally.connections.fetch_add(1, Ordering::Relaxed);
                std::thread::spawn(move || serve(&stream, mischief, &tally));
            }
        });
        Self { port, tally }
    }

    /// Starts one that answers `on` with `answer`, and goes on as before.
    ///
    /// # Panics
    ///
    /// When there is no port.
    #[must_use]
    pub fn answering(on: &'static str, answer: &'static [u8]) -> Self {
        Self::flooding(on, answer, b"")
    }

    /// Starts one that answers `on` with `answer`, and then sends `flood` without a pause.
    ///
    /// # Panics
    ///
    /// When there is no port.
    #[must_use]
    pub fn flooding(on: &'static str, answer: &'static [u8], flood: &'static [u8]) -> Self {
        Self::start(Mischief {
            on,
            answer,
            flood,
            pause: Duration::ZERO,
        })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// How many connections there were.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.tally.connections.load(Ordering::Relaxed)
    }

    /// How many of its floods have ended because the client read no more.
    #[must_use]
    pub fn cut_off(&self) -> u64 {
        self.tally.cut_off.load(Ordering::Relaxed)
    }

    /// How many bytes of a flood were taken at the most, what the kernel has kept among them.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.tally.longest.load(Ordering::Relaxed)
    }
}

fn serve(stream: &TcpStream, mischief: Mischief, tally: &Tally) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    // A master that never evicts and runs for years, and another server than its neighbours.
    let id = stream.local_addr().map_or(0, |address| address.port());
    let node_info = format!("*4\r\n:{id}\r\n:2\r\n:400000003\r\n:60000\r\n");
    while let Some(command) = read_command(&mut reader) {
        let is_meant = command == mischief.on;
        let answer = match command.as_str() {
            _ if is_meant => mischief.answer,
            "EVALSHA" => b":1\r\n",
            "EVAL" => node_info.as_bytes(),
            _ => b"+OK\r\n",
        };
        if writer.write_all(answer).is_err() {
            return;
        }
        if is_meant && !mischief.flood.is_empty() {
            let mut sent = 0;
            // Many in one write, unless they are to come one by one.
            let times = if mischief.pause.is_zero() { 4_096 } else { 1 };
            let flood = mischief.flood.repeat(times);
            while writer.write_all(&flood).is_ok() {
                sent += flood.len() as u64;
                tally.longest.fetch_max(sent, Ordering::Relaxed);
                std::thread::sleep(mischief.pause);
            }
            tally.cut_off.fetch_add(1, Ordering::Relaxed);
            return;
        }
    }
}

/// The first word of an array of bulk strings, `None` at the end of the stream.
pub fn read_command(reader: &mut impl BufRead) -> Option<String> {
    let words: usize = read_line(reader)?.strip_prefix('*')?.parse().ok()?;
    let mut first = None;
    for _ in 0..words {
        let length: usize = read_line(reader)?.strip_prefix('$')?.parse().ok()?;
        let mut word = vec![0; length + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(length);
        first.get_or_insert_with(|| String::from_utf8_lossy(&word).into_owned());
    }
    first
}

fn read_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    Some(line.trim_end().to_owned())
}
