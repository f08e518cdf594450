//! What every transport owes the lock: one suite, run on each of them.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod admission;
mod contract;
mod dribble;
mod dropping;
mod faults;
mod flushed;
mod line;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use redlock_core::mock::MockNode;
use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Token, Transport};
use redlock_embassy::{ClientName, Connect, TcpNode};
use redlock_std::{RedisNode, SystemClock};
use redlock_tests::{Server, TokioStream};

use dribble::Dribble;

const LIMIT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_node_in_memory_conforms() {
    let node = MockNode::new(1, SystemClock);
    contract::conforms(&mut &node, "node 1").await;
    contract::handles_share_one_order(&node).await;
    dropping::conforms(&mut &node).await;
}

#[tokio::test]
async fn a_redis_node_conforms() {
    let server = Server::start();
    let mut node = redis_node(&server);
    contract::conforms(&mut node, &name(&server)).await;
    contract::handles_share_one_order(node.clone()).await;
    dropping::conforms(&mut node).await;
}

#[tokio::test]
async fn a_tcp_node_conforms() {
    let server = Server::start();
    let mut node = tcp_node(TokioStream::new(address(&server)));
    contract::conforms(&mut node, &name(&server)).await;
    dropping::conforms(&mut node).await;
}

/// Its network hands over one byte at a time, so that there is an await between any two bytes.
#[tokio::test]
async fn a_tcp_node_conforms_on_a_network_that_dribbles() {
    let server = Server::start();
    let mut node = tcp_node(Dribble::new(TokioStream::new(address(&server))));
    contract::replies(&mut node).await;
    let polls = dropping::conforms(&mut node).await;
    assert!(polls > 100, "it was dropped in the middle {polls} times");
    assert_eq!(server.client_count(), 1, "all over one connection");
}

#[tokio::test]
async fn a_server_lists_a_device_by_its_name_if_it_permits_it() {
    let server = Server::start();
    for (rules, is_named) in [("+@all", true), ("+@all -client|setname", false)] {
        let user = ["ACL", "SETUSER", "locker", "reset", "on", ">secret", "~*"];
        let words: Vec<_> = user.into_iter().chain(rules.split(' ')).collect();
        assert_eq!(server.query::<String>(&words).unwrap(), "OK");
        let mut node = tcp_node(TokioStream::new(address(&server)))
            .credentials("locker", "secret")
            .client_name(ClientName::new("dock-7").unwrap());
        for _ in 0..2 {
            node.connect().await.unwrap();
            let list: String = server.query(&["CLIENT", "LIST"]).unwrap();
            assert_eq!(list.contains(" name=dock-7 "), is_named, "{list}");
            let mine = &token(1);
            acquire(&mut node, b"named", mine, 10_000).await;
            release(&mut node, b"named", mine, Reply::Released).await;
            node.close().await;
        }
    }
}

#[tokio::test]
async fn a_lock_over_redis_nodes_that_is_dropped_leaves_no_key() {
    dropping::a_dropped_acquire_leaves_no_key(redis_node).await;
}

#[tokio::test]
async fn a_lock_over_tcp_nodes_that_is_dropped_leaves_no_key() {
    Box::pin(dropping::a_dropped_acquire_leaves_no_key(|server| {
        tcp_node(TokioStream::new(address(server)))
    }))
    .await;
}

#[tokio::test]
async fn a_lock_over_tcp_nodes_that_is_dropped_leaves_no_key_on_a_network_that_dribbles() {
    Box::pin(dropping::a_dropped_acquire_leaves_no_key(|server| {
        tcp_node(Dribble::new(TokioStream::new(address(server))))
    }))
    .await;
}

fn redis_node(server: &Server) -> RedisNode {
    RedisNode::connect(&server.url(), Duration::from_secs(1)).unwrap()
}

/// Its send buffer has room for a release with `min_hold` of the longest key.
fn tcp_node<S: Connect>(stream: S) -> TcpNode<'static, S, SystemClock, 320> {
    TcpNode::new(stream, SystemClock)
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()))
}

fn name(server: &Server) -> String {
    format!("127.0.0.1:{}", server.port())
}

async fn acquire(node: &mut impl Transport, key: &[u8], token: &Token, ttl_ms: u32) {
    let command = Command::acquire(key, token, ttl_ms, VoteConditions::NONE);
    assert_eq!(node.execute(&command).await.unwrap(), Reply::Acquired(None));
}

async fn release(node: &mut impl Transport, key: &[u8], token: &Token, expected: Reply) {
    let command = Command::release(key, token);
    assert_eq!(node.execute(&command).await.unwrap(), expected);
}

fn token(number: u8) -> Token {
    Token::from_bytes([number + 1; Token::LEN])
}
