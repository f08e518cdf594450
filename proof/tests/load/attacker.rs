//! The hostile node bites who reads whatever it sends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use redlock_tests::{Authority, resident_bytes};
use rustls::{ClientConnection, StreamOwned};

use crate::load;

const LIMIT: Duration = Duration::from_secs(20);

/// Enough for a parser without limits to show.
const BITE: u64 = 64 << 20;

#[test]
fn a_client_that_reads_everything_grows() {
    for attack in ["nulls", "flood", "reply"] {
        let mut attacker = Attacker::start(attack, "at-once");
        let before = resident_bytes();
        let url = attacker.url.clone();
        let naive = thread::spawn(move || {
            let client = redis::Client::open(url).unwrap();
            client.get_connection().map(drop)
        });
        let started_at = Instant::now();
        while resident_bytes() < before + BITE {
            assert!(started_at.elapsed() < LIMIT, "{attack} does not bite");
            // Once a reply of 100 MB is read, it is free again.
            if naive.is_finished() {
                panic!("{attack} is over before it bites");
            }
            thread::sleep(Duration::from_millis(1));
        }
        attacker.end();
        assert!(naive.join().unwrap().is_err(), "{attack}");
    }
}

#[test]
fn over_tls_it_bites_too() {
    let authority = Authority::create();
    let own = authority.sign("127.0.0.1");
    let files = [own.certificate, own.key].map(|file| file.display().to_string());
    let tls = ["--certificate", &files[0], "--key", &files[1]];
    let attacker = Attacker::start_with("okays", "at-once", &tls);
    let address = attacker.url.strip_prefix("rediss://").unwrap();
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let name = "127.0.0.1".try_into().unwrap();
    let session = ClientConnection::new(authority.config(None), name).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    stream.write_all(PING).unwrap();
    let mut piece = vec![0; 1 << 20];
    for _ in 0..4 {
        stream.read_exact(&mut piece).unwrap();
    }
    assert!(piece.windows(10).any(|part| part == b"+OK\r\n+OK\r\n"));
}

#[test]
fn what_trickles_in_and_what_never_ends_keeps_coming() {
    for attack in ["dribble", "okays"] {
        let attacker = Attacker::start(attack, "at-once");
        let mut stream = attacker.connect();
        stream.write_all(PING).unwrap();
        let mut piece = vec![0; 1 << 20];
        for _ in 0..4 {
            stream.read_exact(&mut piece).unwrap();
        }
    }
}

#[test]
fn a_node_is_polite_until_its_moment() {
    for (moment, polite, fatal) in [
        ("at-once", vec![], PING),
        ("idle", vec![(PING, PONG), (EVAL, NODE_INFO)], b"" as &[u8]),
        (
            "busy",
            vec![(PING, PONG), (EVAL, NODE_INFO), (PING, PONG)],
            SET,
        ),
    ] {
        let attacker = Attacker::start("okays", moment);
        let mut stream = attacker.connect();
        for (command, expected) in polite {
            stream.write_all(command).unwrap();
            let mut answer = vec![0; expected.len()];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(answer, expected, "{moment}");
        }
        stream.write_all(fatal).unwrap();
        let mut flood = [0; 10_000];
        stream.read_exact(&mut flood).unwrap();
        assert!(flood.starts_with(b"+OK\r\n+OK\r\n"), "{moment}");
    }
}

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";
const EVAL: &[u8] = b"*3\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n";
const NODE_INFO: &[u8] = b"*4\r\n:4711\r\n:4712\r\n:4000003\r\n:60000\r\n";
const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\ntoken\r\n";

/// A hostile node, which ends with its test.
struct Attacker {
    process: Child,
    url: String,
}

impl Attacker {
    fn start(attack: &str, moment: &str) -> Self {
        Self::start_with(attack, moment, &[])
    }

    fn start_with(attack: &str, moment: &str, tls: &[&str]) -> Self {
        let mut process = load(&["attacker", "--attack", attack, "--moment", moment])
            .args(tls)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut url = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut url).unwrap();
        let url = url.trim_end().to_owned();
        Self { process, url }
    }

    fn connect(&self) -> TcpStream {
        let address = self.url.strip_prefix("redis://").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}
