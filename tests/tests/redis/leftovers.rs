//! Leaving at the quorum must not leave keys behind: on no server, at no load.

use std::time::{Duration, Instant};

use redlock_tests::Server;

use crate::setup::{five, patient};

#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_a_released_lease_is_left_at_1_32_and_64_tasks() {
    leaves_no_key(false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_a_released_lease_is_left_while_a_server_hangs() {
    leaves_no_key(true).await;
}

#[tokio::test]
async fn no_key_of_a_released_lease_is_left_on_one_thread() {
    leaves_no_key(false).await;
}

async fn leaves_no_key(hung: bool) {
    const LOAD: Duration = Duration::from_secs(3);
    const TTL: Duration = Duration::from_secs(60);
    // Nothing has expired by then, and the slowest machine has sent what was queued.
    const LIMIT: Duration = Duration::from_secs(20);

    let (servers, redlock) = five(patient(TTL)).await;
    for tasks in [1, 32, 64] {
        if hung {
            servers[0].pause();
        }
        let start = Instant::now();
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let redlock = redlock.clone();
                tokio::spawn(async move {
                    let key = format!("dock-{task}");
                    let mut count = 0_u32;
                    while start.elapsed() < LOAD {
                        redlock.try_acquire(&key).await.unwrap().release().await;
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        for task in tasks {
            assert!(task.await.unwrap() > 0);
        }
        let answering = &servers[usize::from(hung)..];
        redlock_tests::eventually("no key is left", LIMIT, || {
            answering.iter().map(Server::key_count).sum::<usize>() == 0
        })
        .await;
        if hung {
            servers[0].resume();
            servers.expect_no_keys().await;
        }
    }
}
