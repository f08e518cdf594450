//! Nodes that are down, that come back, that let no client in.

use std::time::Duration;

use redlock_core::mock::MockNode;
use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Token, Transport};
use redlock_embassy::TcpNode;
use redlock_std::{RedisNode, SystemClock};
use redlock_tests::{Server, TokioStream, eventually};

use crate::{LIMIT, acquire, address, name, redis_node, release, tcp_node, token};

const KEY: &[u8] = b"dock-7";

fn acquire_of(token: &Token) -> Command<'_> {
    Command::acquire(KEY, token, 60_000, VoteConditions::NONE)
}

#[tokio::test]
async fn a_node_that_is_down_is_an_error_at_once_and_says_so() {
    let memory = MockNode::new(1, SystemClock);
    memory.stop();
    fails_with(&memory, "node 1: connection refused").await;

    let mut server = Server::start();
    server.kill();
    let message = format!("{}: connection refused", name(&server));
    fails_with(redis_node(&server), &message).await;
    fails_with(tcp_node(TokioStream::new(address(&server))), &message).await;
}

async fn fails_with(mut node: impl Transport, message: &str) {
    let error = node.execute(&acquire_of(&token(6))).await.unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn a_redis_node_is_connected_again_when_its_server_is_back() {
    let mut server = Server::start();
    let mut node = redis_node(&server);
    is_connected_again(&mut node, &mut server, async |server| {
        eventually("connected again", LIMIT, || server.client_count() == 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_tcp_node_is_connected_again_when_its_server_is_back() {
    let mut server = Server::start();
    let mut node = tcp_node(TokioStream::new(address(&server)));
    is_connected_again(&mut node, &mut server, async |_| {}).await;
}

async fn is_connected_again(
    node: &mut impl Transport,
    server: &mut Server,
    connected: impl AsyncFnOnce(&Server),
) {
    let token = &token(7);
    acquire(node, KEY, token, 60_000).await;
    server.kill();
    let command = acquire_of(token);
    tokio::time::timeout(LIMIT, async {
        while node.execute(&command).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    server.restart();
    connected(server).await;
    let reply = tokio::time::timeout(LIMIT, async {
        loop {
            if let Ok(reply) = node.execute(&command).await {
                break reply;
            }
            tokio::task::yield_now().await;
        }
    });
    assert_eq!(reply.await.unwrap(), Reply::Acquired(None));
}

#[tokio::test]
async fn a_redis_node_may_be_waited_for_as_long_as_one_likes() {
    let server = Server::start();
    let mut node = RedisNode::connect(&server.url(), Duration::MAX).unwrap();
    acquire(&mut node, KEY, &token(8), 60_000).await;
    release(&mut node, KEY, &token(8), Reply::Released).await;
}

#[tokio::test]
async fn a_tcp_node_that_lost_its_connection_meanwhile_connects_before_it_asks() {
    let mut server = Server::start();
    let mut node = tcp_node(TokioStream::new(address(&server)));
    acquire(&mut node, KEY, &token(9), 60_000).await;
    server.restart();
    // Lets tokio see what the network has told it already.
    tokio::time::sleep(Duration::from_millis(1)).await;
    // One call: the end of the connection is noticed before anything is sent.
    tokio::time::timeout(LIMIT, acquire(&mut node, KEY, &token(9), 60_000))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_hung_server_carries_out_in_order_what_a_tcp_node_has_dropped() {
    let server = Server::start();
    let mut node = tcp_node(TokioStream::new(address(&server)));
    let token = &token(10);
    acquire(&mut node, b"other", token, 60_000).await;
    server.pause();
    for command in [acquire_of(token), Command::release(KEY, token)] {
        let dropped = tokio::time::timeout(Duration::from_millis(20), node.execute(&command));
        assert!(dropped.await.is_err(), "the server hangs");
    }
    server.resume();
    // Its own reply, behind two that no caller waits for; and of the two the release came last.
    release(&mut node, b"other", token, Reply::Released).await;
    assert_eq!(server.key_count(), 0);
}

#[tokio::test]
async fn a_tcp_node_that_is_closed_leaves_no_client_and_opens_again() {
    let server = Server::start();
    let mut node = tcp_node(TokioStream::new(address(&server)));
    acquire(&mut node, KEY, &token(11), 60_000).await;
    node.close().await;
    eventually("no client is left", LIMIT, || server.client_count() == 0).await;
    release(&mut node, KEY, &token(11), Reply::Released).await;
    assert_eq!(server.client_count(), 1);
}

#[tokio::test]
async fn a_tcp_node_logs_in_and_uses_its_database() {
    let server = Server::start();
    let acl = ["ACL", "SETUSER", "dock", "on", ">secret", "~*", "+@all"];
    server.query::<String>(&acl).unwrap();
    let stream = TokioStream::new(address(&server));
    let mut node = TcpNode::<_, _>::new(stream, SystemClock)
        .credentials("dock", "secret")
        .database(5);
    acquire(&mut node, KEY, &token(12), 60_000).await;
    let clients = server.query::<String>(&["CLIENT", "LIST"]).unwrap();
    let client = clients.lines().find(|line| line.contains(" user=dock "));
    assert!(client.unwrap().contains(" db=5 "), "{clients}");
    let keyspace = server.query::<String>(&["INFO", "keyspace"]).unwrap();
    assert!(keyspace.contains("db5:keys=1"), "{keyspace}");
    assert_eq!(server.key_count(), 0, "there is none in database 0");
}

#[tokio::test]
async fn a_tcp_node_says_in_the_words_of_the_server_why_it_was_not_let_in() {
    let server = Server::start();
    let set_password = ["CONFIG", "SET", "requirepass", "secret"];
    let stream = || TokioStream::new(address(&server));
    let mut open = tcp_node(stream());
    acquire(&mut open, KEY, &token(13), 60_000).await;
    server.query::<String>(&set_password).unwrap();
    for (node, words) in [
        (tcp_node(stream()), "NOAUTH Authentication required."),
        (
            tcp_node(stream()).password("wrong"),
            "WRONGPASS invalid username-passw..",
        ),
        (
            tcp_node(stream()).password("secret").database(99),
            "ERR DB index is out of range",
        ),
    ] {
        fails_with(node, &format!("{}: {words}", name(&server))).await;
    }
    let mut node = tcp_node(stream()).password("secret");
    release(&mut node, KEY, &token(13), Reply::Released).await;
}

#[tokio::test]
async fn a_replica_and_a_key_of_another_type_are_errors_and_no_refusals() {
    let server = Server::start();
    let mut node = tcp_node(TokioStream::new(address(&server)));
    server.query::<i64>(&["LPUSH", "dock-7", "a"]).unwrap();
    let own = token(14);
    let released = Command::release(KEY, &own);
    acquire(&mut node, b"other", &own, 60_000).await;
    let error = node.execute(&released).await.unwrap_err().to_string();
    assert!(error.contains("WRONGTYPE"), "{error}");
    let release_of_other = Command::release(b"other", &own);
    let replica_of = ["REPLICAOF", "127.0.0.1", "1"];
    server.query::<String>(&replica_of).unwrap();
    let error = node.execute(&release_of_other).await.unwrap_err();
    assert!(error.to_string().contains("READONLY"), "{error}");
    // After an error it is asked again who it is.
    let error = node.execute(&acquire_of(&token(15))).await.unwrap_err();
    assert!(error.to_string().contains("a replica"), "{error}");
    server.query::<String>(&["REPLICAOF", "NO", "ONE"]).unwrap();
    release(&mut node, b"other", &token(14), Reply::Released).await;
    assert_eq!(server.client_count(), 1, "still the first connection");
}
