//! Calls that are dropped in the middle.

use redlock_core::transport::{Command, Reply, VoteConditions};
use redlock_core::{Options, Redlock, Token, Transport};
use redlock_std::{SystemClock, SystemEntropy};
use redlock_tests::{Server, Servers, poll_times};

use crate::{LIMIT, acquire, release, token};

const HELD: &[u8] = b"held";
const FREE: &[u8] = b"free";
const TTL_MS: u32 = 60_000;

/// Drops calls of each kind after 0, 1, 2 .. polls, until one is done; the next call must get its own
/// reply, which is never the one that was dropped. Returns the most polls that a call took.
pub(crate) async fn conforms(node: &mut impl Transport) -> usize {
    let (mine, other) = (&token(100), &token(101));
    let acquire_of = |key, token| Command::acquire(key, token, TTL_MS, VoteConditions::NONE);
    let extension = Command::extend(HELD, mine, TTL_MS);
    let release_of = |token| Command::release(HELD, token);
    let cases = [
        // The reply that is dropped, on the wire, and the one that must come.
        (release_of(other), extension, Reply::Extended(None)), // 0, 1
        (extension, release_of(other), Reply::NotMine),        // 1, 0
        (acquire_of(HELD, other), extension, Reply::Extended(None)), // nil, 1
        (extension, acquire_of(HELD, other), Reply::Held(None)), // 1, nil
        (
            acquire_of(FREE, mine),
            acquire_of(HELD, other),
            Reply::Held(None),
        ), // OK, nil
        (
            acquire_of(HELD, other),
            acquire_of(FREE, mine),
            Reply::Acquired(None),
        ), // nil, OK
    ];
    let mut most = 0;
    for (dropped, next, expected) in cases {
        for polls in 0.. {
            acquire(node, HELD, mine, TTL_MS).await;
            let is_done = drop_after(polls, node.execute(&dropped)).await;
            let reply = tokio::time::timeout(LIMIT, node.execute(&next)).await;
            let context = format!("{next:?} after {polls} polls of {dropped:?}");
            assert_eq!(reply.map(Result::unwrap), Ok(expected), "{context}");
            release(node, HELD, mine, Reply::Released).await;
            give_back(node, FREE, mine).await;
            most = most.max(polls);
            if is_done {
                break;
            }
        }
    }
    most
}

/// Drops an acquire over five real servers after 0, 1, 2 .. polls until it is done; one `release_abandoned` later
/// there is no key on any of them.
pub(crate) async fn a_dropped_acquire_leaves_no_key<T: Transport>(node: impl Fn(&Server) -> T) {
    let servers = Servers::start(5);
    let options = Options::new(LIMIT * 12).unwrap();
    let options = options.node_timeout(LIMIT).unwrap();
    let nodes = servers.iter().map(&node);
    let mut redlock =
        Redlock::<_, _, _, 5>::new(nodes, SystemClock, SystemEntropy, options).unwrap();
    // Connects, which takes polls of its own, more on one node than on another.
    for node in redlock.nodes_mut() {
        give_back(node, b"dock-7", &Token::from_bytes([1; Token::LEN])).await;
    }
    for polls in 0.. {
        let is_done = {
            let attempt = async {
                let lease = redlock.acquire("dock-7").await.unwrap();
                redlock.release(lease).await;
            };
            drop_after(polls, attempt).await
        };
        redlock.release_abandoned().await;
        assert_eq!(redlock.abandoned(), None);
        servers.expect_no_keys().await;
        if is_done {
            assert!(polls > 1, "it was dropped in the middle");
            break;
        }
    }
}

/// Polls `future` at most `polls` times, and drops it. Returns whether it was done.
async fn drop_after(polls: usize, future: impl Future) -> bool {
    let polled = poll_times(polls, future);
    tokio::time::timeout(LIMIT, polled).await.unwrap()
}

async fn give_back(node: &mut impl Transport, key: &[u8], token: &Token) {
    let reply = node.execute(&Command::release(key, token)).await;
    assert!(matches!(reply, Ok(Reply::Released | Reply::NotMine)));
}
