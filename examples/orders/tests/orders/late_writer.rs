//! A server that is paused while its write is under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use redlock_tests::{Servers, eventually};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::database::Database;
use crate::process::{Provider, Service};

// On two threads: one of them waits for the first line of a process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_database_refuses_a_write_that_arrives_after_another_server_has_paid_the_order() {
    let servers = Servers::start(3);
    let database = Database::start().await;
    let way = Way::to(&database).await;
    let provider = Provider::start().await;
    let slow = Service::start(&servers, way.port, &provider);
    let fast = Service::start(&servers, database.port(), &provider);
    database.query("INSERT INTO orders (id) VALUES (1)").await;

    // The slow server is at the provider. Its next word to the database will be its write.
    let late = tokio::spawn(slow.pay(1));
    provider.asked.acquire().await.unwrap().forget();
    way.is_open.send_replace(false);
    provider.answers.add_permits(1);
    let held = || way.held.load(Ordering::Relaxed) > 0;
    eventually("the write is under way", Duration::from_secs(5), held).await;
    slow.signal(Signal::STOP);

    // Its lease expires, and the other server takes over.
    provider.answers.add_permits(1);
    let (status, text) = loop {
        let answer = fast.pay(1).await;
        if answer.0 != StatusCode::SERVICE_UNAVAILABLE {
            break answer;
        }
    };
    assert_eq!((status, &*text), (StatusCode::OK, "paid\n"));
    let receipt = database.receipt(1).await;
    assert_eq!(receipt.as_deref(), Some("receipt 1"));

    // The write arrives, and then the paused server wakes up.
    let answered = way.answered.load(Ordering::Relaxed);
    way.is_open.send_replace(true);
    let more = || way.answered.load(Ordering::Relaxed) > answered;
    eventually(
        "the database answers the write",
        Duration::from_secs(5),
        more,
    )
    .await;
    assert_eq!(
        database.receipt(1).await,
        receipt,
        "the late write is refused"
    );
    slow.signal(Signal::CONT);
    let (status, text) = late.await.unwrap();
    assert_ne!(status, StatusCode::OK, "{text}");
    assert_eq!(database.receipt(1).await, receipt);
}

/// A way to the database that can hold what a client sends.
struct Way {
    port: u16,
    is_open: watch::Sender<bool>,
    /// How many pieces it has held.
    held: Arc<AtomicU32>,
    /// How many pieces the database has sent.
    answered: Arc<AtomicU32>,
}

impl Way {
    async fn to(database: &Database) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Self {
            port: listener.local_addr().unwrap().port(),
            is_open: watch::channel(true).0,
            held: Arc::default(),
            answered: Arc::default(),
        };
        let (held, answered) = (Arc::clone(&way.held), Arc::clone(&way.answered));
        let (is_open, port) = (way.is_open.subscribe(), database.port());
        tokio::spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut database = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let (mut from_client, mut to_client) = client.split();
            let (mut from_database, mut to_database) = database.split();
            let there = async {
                let mut is_open = is_open;
                let mut bytes = [0; 65_536];
                while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                    if !*is_open.borrow() {
                        held.fetch_add(1, Ordering::Relaxed);
                        drop(is_open.wait_for(|is_open| *is_open).await.unwrap());
                    }
                    to_database.write_all(&bytes[..count]).await.unwrap();
                }
            };
            let back = async {
                let mut bytes = [0; 65_536];
                while let Ok(count @ 1..) = from_database.read(&mut bytes).await {
                    answered.fetch_add(1, Ordering::Relaxed);
                    if to_client.write_all(&bytes[..count]).await.is_err() {
                        break;
                    }
                }
            };
            tokio::join!(there, back);
        });
        way
    }
}
