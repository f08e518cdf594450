//! What every transport owes the lock: one suite, run on each of them.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redlock_core::mock::MemoryNode;
use redlock_core::{Command, Reply, Token, Transport};
use redlock_std::{RedisNode, SystemClock};
use redlock_tests::{Server, eventually};

const LIMIT: Duration = Duration::from_secs(5);

#[tokio::test]
async fn a_node_in_memory_conforms() {
    let node = MemoryNode::new(1, SystemClock);
    conforms(&node, "node 1").await;
}

#[tokio::test]
async fn a_redis_node_conforms() {
    let server = Server::start();
    let node = RedisNode::connect(&server.url(), Duration::from_secs(1)).unwrap();
    let name = format!("127.0.0.1:{}", server.port());
    conforms(node, &name).await;
}

/// A client of its own for each part: handles share what is behind them.
async fn conforms(node: impl Transport + Clone, name: &str) {
    for key in [b"dock-7".as_slice(), b"", b"\0\r\n$5\r\n\xff", &[b'k'; 64]] {
        replies_say_what_the_node_did(node.clone(), key).await;
    }
    keys_expire(node.clone()).await;
    extensions_reset_the_ttl(node.clone()).await;
    commands_arrive_in_the_order_of_the_calls(node.clone()).await;
    a_dropped_call_takes_no_reply_from_the_next(node.clone()).await;
    the_first_poll_hands_over(node.clone()).await;
    time_outs_name_the_node(&node, name);
}

async fn replies_say_what_the_node_did(mut node: impl Transport, key: &[u8]) {
    // Bytes that mean something to the protocol, or are no text.
    let mine = &Token::from_bytes(*b"\r\n+OK\r\n:1\r\n$-1\r\n\0\xff\xfe*");
    let other = &Token::from_bytes([0xaa; Token::LEN]);
    let ttl_ms = 60_000;
    let steps = [
        (
            Command::Extend {
                key,
                token: mine,
                ttl_ms,
            },
            Reply::NotMine,
        ),
        (Command::Release { key, token: mine }, Reply::NotMine),
        (
            Command::Acquire {
                key,
                token: mine,
                ttl_ms,
            },
            Reply::Acquired,
        ),
        (
            Command::Acquire {
                key,
                token: mine,
                ttl_ms,
            },
            Reply::Held,
        ),
        (
            Command::Acquire {
                key,
                token: other,
                ttl_ms,
            },
            Reply::Held,
        ),
        (
            Command::Extend {
                key,
                token: other,
                ttl_ms,
            },
            Reply::NotMine,
        ),
        (
            Command::Extend {
                key,
                token: mine,
                ttl_ms,
            },
            Reply::Extended,
        ),
        (Command::Release { key, token: other }, Reply::NotMine),
        (Command::Release { key, token: mine }, Reply::Released),
        (Command::Release { key, token: mine }, Reply::NotMine),
        (
            Command::Acquire {
                key,
                token: other,
                ttl_ms,
            },
            Reply::Acquired,
        ),
        (Command::Release { key, token: other }, Reply::Released),
    ];
    for (command, reply) in steps {
        assert_eq!(node.execute(&command).await.unwrap(), reply, "{command:?}");
    }
}

async fn keys_expire(mut node: impl Transport) {
    let (key, token) = (b"expires", &token(1));
    acquire(&mut node, key, token, 50).await;
    let again = Command::Acquire {
        key,
        token,
        ttl_ms: 60_000,
    };
    tokio::time::timeout(LIMIT, async {
        while node.execute(&again).await.unwrap() == Reply::Held {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    release(&mut node, key, token, Reply::Released).await;
}

async fn extensions_reset_the_ttl(mut node: impl Transport) {
    let (key, token) = (b"extended", &token(2));
    acquire(&mut node, key, token, 60_000).await;
    let shorten = Command::Extend {
        key,
        token,
        ttl_ms: 30,
    };
    assert_eq!(node.execute(&shorten).await.unwrap(), Reply::Extended);
    tokio::time::timeout(LIMIT, async {
        let other = Command::Acquire {
            key,
            token,
            ttl_ms: 60_000,
        };
        while node.execute(&other).await.unwrap() == Reply::Held {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
    release(&mut node, key, token, Reply::Released).await;
}

async fn commands_arrive_in_the_order_of_the_calls(node: impl Transport + Clone) {
    let (mut first, mut second) = (node.clone(), node);
    for number in 0..50 {
        let (key, token) = (b"order", &token(number));
        let acquire = Command::Acquire {
            key,
            token,
            ttl_ms: 60_000,
        };
        let release = Command::Release { key, token };
        // Called one after the other, before either has been answered.
        let mut acquire = pin!(first.execute(&acquire));
        let acquired = poll_once(acquire.as_mut());
        let released = second.execute(&release).await.unwrap();
        assert_eq!(released, Reply::Released);
        match acquired {
            Poll::Ready(reply) => assert_eq!(reply.unwrap(), Reply::Acquired),
            Poll::Pending => assert_eq!(acquire.await.unwrap(), Reply::Acquired),
        }
    }
}

async fn a_dropped_call_takes_no_reply_from_the_next(mut node: impl Transport) {
    let (key, mine, other) = (b"dropped", &token(3), &token(4));
    for polls in 0..4 {
        acquire(&mut node, key, mine, 60_000).await;
        // Answered with a refusal, if anybody were there to hear it.
        let refused = Command::Release { key, token: other };
        {
            let mut call = pin!(node.execute(&refused));
            for _ in 0..polls {
                if poll_once(call.as_mut()).is_ready() {
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        // Each of these has an answer of its own, that none of the others has.
        let extend = Command::Extend {
            key,
            token: mine,
            ttl_ms: 60_000,
        };
        assert_eq!(
            node.execute(&extend).await.unwrap(),
            Reply::Extended,
            "{polls} polls"
        );
        release(&mut node, key, mine, Reply::Released).await;
    }
}

async fn the_first_poll_hands_over(mut node: impl Transport + Clone) {
    let (key, token) = (b"handed over", &token(5));
    let command = Command::Acquire {
        key,
        token,
        ttl_ms: 60_000,
    };
    {
        let mut other = node.clone();
        let mut call = pin!(other.execute(&command));
        let _dropped = poll_once(call.as_mut());
    }
    release(&mut node, key, token, Reply::Released).await;
}

fn time_outs_name_the_node(node: &impl Transport, name: &str) {
    let error = node.timed_out(Duration::from_millis(50));
    assert_eq!(error.to_string(), format!("{name}: timed out after 50 ms"));
}

#[tokio::test]
async fn a_redis_node_may_be_waited_for_as_long_as_one_likes() {
    let server = Server::start();
    let mut node = RedisNode::connect(&server.url(), Duration::MAX).unwrap();
    acquire(&mut node, b"patient", &token(8), 60_000).await;
    release(&mut node, b"patient", &token(8), Reply::Released).await;
}

#[tokio::test]
async fn a_node_that_is_down_is_an_error_at_once_and_says_so() {
    let memory = MemoryNode::new(1, SystemClock);
    memory.stop();
    fails_with(&memory, "node 1: connection refused").await;

    let mut server = Server::start();
    server.kill();
    let node = RedisNode::connect(&server.url(), Duration::from_secs(1)).unwrap();
    fails_with(
        node,
        &format!("127.0.0.1:{}: connection refused", server.port()),
    )
    .await;
}

async fn fails_with(mut node: impl Transport, message: &str) {
    let (key, token) = (b"down", &token(6));
    let error = node
        .execute(&Command::Acquire {
            key,
            token,
            ttl_ms: 60_000,
        })
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[tokio::test]
async fn a_redis_node_is_connected_again_when_its_server_is_back() {
    let mut server = Server::start();
    let mut node = RedisNode::connect(&server.url(), Duration::from_secs(1)).unwrap();
    let (key, token) = (b"back", &token(7));
    acquire(&mut node, key, token, 60_000).await;
    server.kill();
    // Noticed without any traffic: the connection was closed.
    let command = Command::Acquire {
        key,
        token,
        ttl_ms: 60_000,
    };
    tokio::time::timeout(LIMIT, async {
        while node.execute(&command).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    server.restart();
    eventually("connected again", LIMIT, || server.client_count() == 1).await;
    let mut reply = node.execute(&command).await;
    while reply.is_err() {
        tokio::task::yield_now().await;
        reply = node.execute(&command).await;
    }
    assert_eq!(reply.unwrap(), Reply::Acquired);
}

async fn acquire(node: &mut impl Transport, key: &[u8], token: &Token, ttl_ms: u32) {
    let command = Command::Acquire { key, token, ttl_ms };
    assert_eq!(node.execute(&command).await.unwrap(), Reply::Acquired);
}

async fn release(node: &mut impl Transport, key: &[u8], token: &Token, expected: Reply) {
    let command = Command::Release { key, token };
    assert_eq!(node.execute(&command).await.unwrap(), expected);
}

fn token(number: u8) -> Token {
    Token::from_bytes([number + 1; Token::LEN])
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
