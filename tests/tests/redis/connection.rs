//! Connections that break at the worst moment: a server of our own, which can be told when.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Token, Transport};
use redlock_std::{Failure, Fencing, RedisNode, Redlock, TransportError};
use redlock_tests::{Servers, read_command, undisturbed};

use crate::setup::{connected, patient};

const LIMIT: Duration = Duration::from_secs(5);

const KEY: &[u8] = b"dock-7";

#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_was_on_its_way_when_the_connection_broke_is_sent_again() {
    let (mut node, commands) = node_that_breaks_on("EVALSHA");
    let token = &Token::from_bytes([1; Token::LEN]);
    let acquire = acquire(token);
    assert_eq!(node.execute(&acquire).await.unwrap(), Reply::Acquired(None));
    let broken = node.execute(&release(token)).await.unwrap_err();
    assert!(broken.to_string().contains("connection"), "{broken}");
    let sent: Vec<_> = (0..3)
        .map(|_| commands.recv_timeout(LIMIT).unwrap())
        .collect();
    assert_eq!(sent, ["SET", "EVALSHA", "EVALSHA"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_was_on_its_way_when_the_connection_broke_is_never_sent_again() {
    let (mut node, commands) = node_that_breaks_on("SET");
    let token = &Token::from_bytes([1; Token::LEN]);
    let acquire = acquire(token);
    assert!(node.execute(&acquire).await.is_err());
    // It may have taken effect, so its release is sent, by the next connection.
    let _unknown = node.execute(&release(token)).await;
    let sent: Vec<_> = (0..2)
        .map(|_| commands.recv_timeout(LIMIT).unwrap())
        .collect();
    assert_eq!(sent, ["SET", "EVALSHA"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_does_not_say_who_it_is_gets_no_command_and_is_asked_again() {
    for (answer, words) in [
        (
            "-LOADING Redis is loading the dataset in memory\r\n",
            "LOADING Redis is loading the dataset in memory",
        ),
        ("+OK\r\n", "unexpected reply; is this a Redis server?"),
    ] {
        let fault = Fault {
            command: "EVAL",
            answer,
            // For longer than it takes to look.
            connections: 5,
        };
        let (mut node, commands) = faulty_node(fault);
        let token = &Token::from_bytes([1; Token::LEN]);
        let error = node.execute(&acquire(token)).await.unwrap_err();
        assert!(error.to_string().ends_with(words), "{error}");
        assert!(commands.try_recv().is_err());
        while node.execute(&acquire(token)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(commands.recv_timeout(LIMIT).unwrap(), "SET");
    }
}

/// With RESP3, any client of the server could send push messages into the connection, which end it.
#[tokio::test(flavor = "multi_thread")]
async fn a_url_that_asks_for_resp3_gets_a_lock_over_resp2() {
    let servers = Servers::start(3);
    for protocol in ["resp2", "resp3"] {
        let urls = servers.urls().into_iter();
        let urls = urls.map(|url| format!("{url}/?protocol={protocol}"));
        let plain = Redlock::connect(urls, patient(LIMIT)).unwrap();
        let fenced = plain.with_options(patient(LIMIT).fenced(Fencing::default()).unwrap());
        for (redlock, key) in [(&plain, "plain"), (&fenced, "fenced")] {
            // The second time the nodes have forgotten the scripts.
            for _ in 0..2 {
                let mut guard = redlock.acquire(key).await.unwrap();
                guard.extend().await.unwrap();
                assert!(redlock.try_acquire(key).await.is_err());
                guard.release().await;
                for server in servers.iter() {
                    server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap();
                    let clients: String = server.query(&["CLIENT", "LIST"]).unwrap();
                    assert!(!clients.contains("resp=3"), "{clients}");
                }
            }
        }
    }
}

#[tokio::test]
async fn servers_that_close_all_idle_connections_together_lose_no_round() {
    undisturbed(async || {
        let servers = Servers::start(3);
        let redlock = connected(&servers, patient(LIMIT)).await;
        for round in 0..20 {
            // Not connections that live for a moment only.
            tokio::time::sleep(Duration::from_millis(50)).await;
            redlock.try_acquire("dock-7").await.unwrap().release().await;
            servers.expect_no_keys().await;
            for server in servers.iter() {
                let killed: u32 = server.query(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
                assert_eq!(killed, 1, "round {round}");
            }
            // On this one thread the tasks of the nodes run before this one goes on, also if the machine was so late
            // that the end of the sleep came together with the end of the connections.
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::task::yield_now().await;
            let guard = redlock.try_acquire("dock-7").await;
            guard.unwrap().release().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_node_fails_calls_at_once_and_is_not_flooded_with_connects() {
    undisturbed(async || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let connects = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&connects);
        std::thread::spawn(move || {
            for _closed in listener.incoming() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut node = RedisNode::connect(&url, LIMIT).unwrap();
        let token = &Token::from_bytes([1; Token::LEN]);
        let start = Instant::now();
        let (mut calls, mut slow) = (0_u32, 0_u32);
        while start.elapsed() < Duration::from_secs(2) {
            let before = Instant::now();
            let error = node.execute(&acquire(token)).await.unwrap_err();
            assert!(
                matches!(
                    error.failure(),
                    Failure::Transport(TransportError::Unreachable(_))
                ),
                "{error}"
            );
            calls += 1;
            slow += u32::from(before.elapsed() > Duration::from_millis(20));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(slow * 10 < calls, "{slow} of {calls} calls have waited");
        let called = connects.swap(0, Ordering::Relaxed);
        assert!((10..=140).contains(&called), "{called} connects in 2 s");
        tokio::time::sleep(Duration::from_secs(2)).await;
        let idle = connects.load(Ordering::Relaxed);
        assert!(idle <= 5, "{idle} connects in 2 s without a call");
    })
    .await;
}

const fn acquire(token: &Token) -> Command<'_> {
    Command::acquire(KEY, token, 60_000, VoteConditions::NONE)
}

const fn release(token: &Token) -> Command<'_> {
    Command::release(KEY, token)
}

/// A node whose server closes its first connection instead of answering `fatal`, and what the server
/// is sent, the handshakes left out.
fn node_that_breaks_on(fatal: &'static str) -> (RedisNode, mpsc::Receiver<String>) {
    faulty_node(Fault {
        command: fatal,
        answer: "",
        connections: 1,
    })
}

/// What a server does wrong.
#[derive(Clone, Copy)]
struct Fault {
    /// To which command.
    command: &'static str,
    /// What it answers; nothing, and it closes the connection.
    answer: &'static str,
    /// On how many connections, until it is well.
    connections: usize,
}

fn faulty_node(fault: Fault) -> (RedisNode, mpsc::Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (sender, commands) = mpsc::channel();
    // Ends when the test does not listen to it any more.
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let fault = Some(fault).filter(|fault| number < fault.connections);
            serve(&stream.unwrap(), &sender, fault);
        }
    });
    (RedisNode::connect(&url, LIMIT).unwrap(), commands)
}

fn serve(stream: &TcpStream, commands: &mpsc::Sender<String>, fault: Option<Fault>) {
    let mut reader = BufReader::new(stream);
    let mut writer = stream;
    while let Some(command) = read_command(&mut reader) {
        let answer = match (command.as_str(), fault) {
            (command, Some(fault)) if command == fault.command => fault.answer,
            ("EVALSHA", _) => ":1\r\n",
            // Who it is: a master that never evicts.
            ("EVAL", _) => "*4\r\n:1\r\n:2\r\n:3\r\n:-1\r\n",
            _ => "+OK\r\n",
        };
        if matches!(command.as_str(), "SET" | "EVALSHA") && commands.send(command).is_err() {
            return;
        }
        if answer.is_empty() || writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}
