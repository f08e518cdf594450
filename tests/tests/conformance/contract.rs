//! Replies, order, and what a call does in its first poll.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Token, Transport};

use crate::{LIMIT, acquire, release, token};

pub(crate) async fn conforms(node: &mut impl Transport, name: &str) {
    replies(node).await;
    keys_expire(node).await;
    extensions_reset_the_ttl(node).await;
    a_released_key_that_is_kept_is_not_extended(node).await;
    the_first_poll_hands_over(node).await;
    the_node_has_its_name(node, name);
}

pub(crate) async fn replies(node: &mut impl Transport) {
    for key in [b"dock-7".as_slice(), b"", b"\0\r\n$5\r\n\xff", &[b'k'; 64]] {
        replies_say_what_the_node_did(node, key).await;
    }
}

async fn replies_say_what_the_node_did(node: &mut impl Transport, key: &[u8]) {
    // Bytes that mean something to the protocol, or are no text.
    let mine = &Token::from_bytes(*b"\r\n+OK\r\n:1\r\n$-1\r\n\0\xff\xfe*");
    let other = &Token::from_bytes([0xaa; Token::LEN]);
    let ttl_ms = 60_000;
    let steps = [
        (Command::extend(key, mine, ttl_ms), Reply::NotMine),
        (Command::release(key, mine), Reply::NotMine),
        (
            Command::acquire(key, mine, ttl_ms, VoteConditions::NONE),
            Reply::Acquired(None),
        ),
        (
            Command::acquire(key, mine, ttl_ms, VoteConditions::NONE),
            Reply::Held(None),
        ),
        (
            Command::acquire(key, other, ttl_ms, VoteConditions::NONE),
            Reply::Held(None),
        ),
        (Command::extend(key, other, ttl_ms), Reply::NotMine),
        (Command::extend(key, mine, ttl_ms), Reply::Extended(None)),
        (Command::keep(key, other, ttl_ms), Reply::NotMine),
        (Command::release(key, other), Reply::NotMine),
        (Command::release(key, mine), Reply::Released),
        (Command::release(key, mine), Reply::NotMine),
        (
            Command::acquire(key, other, ttl_ms, VoteConditions::NONE),
            Reply::Acquired(None),
        ),
        (Command::release(key, other), Reply::Released),
        (Command::keep(key, mine, ttl_ms), Reply::NotMine),
    ];
    for (command, reply) in steps {
        assert_eq!(node.execute(&command).await.unwrap(), reply, "{command:?}");
    }
}

async fn keys_expire(node: &mut impl Transport) {
    let (key, token) = (b"expires", &token(1));
    acquire(node, key, token, 50).await;
    acquire_when_free(node, key, token).await;
    release(node, key, token, Reply::Released).await;
}

async fn extensions_reset_the_ttl(node: &mut impl Transport) {
    let (key, token) = (b"extended", &token(2));
    acquire(node, key, token, 60_000).await;
    let shorten = Command::extend(key, token, 30);
    assert_eq!(node.execute(&shorten).await.unwrap(), Reply::Extended(None));
    acquire_when_free(node, key, token).await;
    release(node, key, token, Reply::Released).await;
}

/// An extension that comes after it is late. A release may come twice, and changes nothing then.
async fn a_released_key_that_is_kept_is_not_extended(node: &mut impl Transport) {
    let (key, token) = (b"kept", &token(3));
    acquire(node, key, token, 60_000).await;
    for (command, reply) in [
        (Command::keep(key, token, 300), Reply::Extended(None)),
        (Command::extend(key, token, 1), Reply::NotMine),
        (Command::release(key, token), Reply::NotMine),
        (Command::keep(key, token, 60_000), Reply::Extended(None)),
    ] {
        assert_eq!(node.execute(&command).await.unwrap(), reply, "{command:?}");
    }
    acquire_when_free(node, key, token).await;
    release(node, key, token, Reply::Released).await;
}

/// Acquires `key` again and again, until the key that holds it has expired.
async fn acquire_when_free(node: &mut impl Transport, key: &[u8], token: &Token) {
    let acquire = Command::acquire(key, token, 60_000, VoteConditions::NONE);
    tokio::time::timeout(LIMIT, async {
        while node.execute(&acquire).await.unwrap() == Reply::Held(None) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await
    .unwrap();
}

/// Commands arrive in the order of the calls: a release finds what a dropped acquire has set.
async fn the_first_poll_hands_over(node: &mut impl Transport) {
    for number in 0..50 {
        let (key, token) = (b"handed over", &token(number));
        let command = Command::acquire(key, token, 60_000, VoteConditions::NONE);
        let _dropped = poll_once(pin!(node.execute(&command)));
        release(node, key, token, Reply::Released).await;
    }
}

fn the_node_has_its_name(node: &impl Transport, name: &str) {
    assert_eq!(node.name().to_string(), name);
}

/// Where handles share one connection, it is the order of the calls on all of them.
pub(crate) async fn handles_share_one_order(node: impl Transport + Clone) {
    let (mut first, mut second) = (node.clone(), node);
    // Tokens that nothing else has used: a handle knows its last one.
    for number in 100..150 {
        let (key, token) = (b"order", &token(number));
        let acquire = Command::acquire(key, token, 60_000, VoteConditions::NONE);
        // Called one after the other, before either has been answered.
        let mut acquire = pin!(first.execute(&acquire));
        let acquired = poll_once(acquire.as_mut());
        release(&mut second, key, token, Reply::Released).await;
        match acquired {
            Poll::Ready(reply) => assert_eq!(reply.unwrap(), Reply::Acquired(None)),
            Poll::Pending => assert_eq!(acquire.await.unwrap(), Reply::Acquired(None)),
        }
    }
}

fn poll_once<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}
