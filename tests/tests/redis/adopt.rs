//! A lease that goes on in another process.

use std::time::Duration;

use redlock_std::{AdoptError, Fencing, Handover, Options, Redlock, Token};
use redlock_tests::{Servers, eventually};

use crate::setup::{connected, expect_key_on, patient};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_handed_over_goes_on_in_another_process() {
    let servers = Servers::start(3);
    let plain = patient(TTL);
    for options in [plain, plain.fenced(Fencing::default()).unwrap()] {
        let first = connected(&servers, options).await;
        let second = connected(&servers, options).await;
        let guard = first.acquire("dock-7").await.unwrap();
        let (token, fence) = (*guard.token(), guard.fence());
        let handover = guard.hand_over();
        expect_key_on(&servers, "dock-7", 3).await;
        assert!(second.try_acquire("dock-7").await.unwrap_err().is_held());

        // All that is needed is in its parts.
        let handover = Handover::new(
            handover.key(),
            *handover.token(),
            handover.fence(),
            handover.ttl(),
        );
        let mut adopted = second.adopt(&handover).await.unwrap();
        assert_eq!((*adopted.token(), adopted.fence()), (token, fence));
        assert!(adopted.is_valid() && adopted.remaining() <= TTL);
        adopted.extend().await.unwrap();
        // One holder in one process.
        let again = second.adopt(&handover).await.unwrap_err();
        assert!(matches!(again, AdoptError::HeldHere(_)) && again.is_retryable());
        assert!(adopted.release().await.released() >= 2);

        // It is over now, and the next one is another.
        let next = first.acquire("dock-7").await.unwrap();
        let lost = second.adopt(&handover).await.unwrap_err();
        assert!(
            matches!(lost, AdoptError::Nodes(_)) && !lost.is_retryable(),
            "{lost}"
        );
        assert!(next.is_valid());
        // A node that had still to carry out the release before has refused the acquire, and may be the first to answer.
        let released = next.release().await;
        assert!(released.released() + released.gone() >= 2, "{released:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_lease_is_not_adopted_as_a_plain_one_nor_the_other_way_round() {
    let servers = Servers::start(3);
    let plain = connected(&servers, patient(TTL)).await;
    let fenced = plain.with_options(patient(TTL).fenced(Fencing::default()).unwrap());
    for (one, other) in [(&plain, &fenced), (&fenced, &plain)] {
        let handover = one.acquire("dock-7").await.unwrap().hand_over();
        assert_eq!(
            other.adopt(&handover).await.unwrap_err(),
            AdoptError::OtherKind
        );
        one.adopt(&handover).await.unwrap().release().await;
    }
}

/// A late extension with the shorter of two TTLs would shorten the longer one: two could hold the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_adopted_with_another_ttl() {
    let servers = Servers::start(3);
    let redlock = connected(&servers, patient(TTL)).await;
    let handover = redlock.acquire("dock-7").await.unwrap().hand_over();
    assert_eq!(handover.ttl(), TTL);
    for ttl in [TTL + Duration::from_millis(1), TTL / 2] {
        let other = redlock.with_options(patient(ttl));
        let refused = other.adopt(&handover).await.unwrap_err();
        assert_eq!(refused, AdoptError::OtherTtl(TTL));
    }
    redlock.adopt(&handover).await.unwrap().release().await;
}

/// The validity is shorter than the TTL by its margins, so the keys live on for a moment, and a fenced lease for longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_whose_validity_is_over_does_not_release_a_lease_that_was_adopted_again() {
    let servers = Servers::start(3);
    let plain = Options::new(Duration::from_secs(2)).unwrap();
    let plain = plain.drift_ppm(500_000).unwrap();
    for options in [plain, plain.fenced(Fencing::default()).unwrap()] {
        let redlock = connected(&servers, options).await;
        let other = connected(&servers, options).await;
        let handover = redlock.acquire("dock-7").await.unwrap().hand_over();
        for explicit in [true, false] {
            let late = redlock.adopt(&handover).await.unwrap();
            late.lost().await;
            let adopted = redlock.adopt(&handover).await.unwrap();
            if explicit {
                assert_eq!(late.release().await.unanswered(), 3);
            } else {
                drop(late);
            }
            redlock
                .try_acquire("another")
                .await
                .unwrap()
                .release()
                .await;
            assert!(adopted.is_valid());
            assert!(other.try_acquire("dock-7").await.unwrap_err().is_held());
            let _again = adopted.hand_over();
        }
        redlock.adopt(&handover).await.unwrap().release().await;
    }
}

/// A task that acquires may go before its turn then: it has a token of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_has_met_waiters_adopts_a_lease_once() {
    let servers = Servers::start(3);
    let options = patient(TTL).wait(TTL);
    let redlock = connected(&servers, options).await;
    let other = connected(&servers, options).await;
    let guard = redlock.acquire("dock-7").await.unwrap();
    let waiting = tokio::spawn({
        let other = other.clone();
        async move { other.acquire("dock-7").await.unwrap() }
    });
    eventually("it waits in the line", TTL, || {
        servers
            .iter()
            .all(|server| server.query::<u64>(&["ZCARD", "redlock:queue:dock-7"]) == Ok(1))
    })
    .await;
    guard.release().await;
    let handover = waiting.await.unwrap().hand_over();
    let adopted = redlock.adopt(&handover).await.unwrap();
    let again = redlock.adopt(&handover).await.unwrap_err();
    assert!(matches!(again, AdoptError::HeldHere(_)), "{again}");
    adopted.release().await;
}

/// The fence record knows only of fenced clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_not_adopted_if_a_plain_client_can_have_had_the_lock_since() {
    let servers = Servers::start(3);
    let plain = patient(TTL);
    let fenced = connected(&servers, plain.fenced(Fencing::default()).unwrap()).await;
    let handover = fenced.acquire("dock-7").await.unwrap().hand_over();
    expect_key_on(&servers, "dock-7", 3).await;
    for server in servers.iter() {
        let _: usize = server.query(&["DEL", "dock-7"]).unwrap();
    }
    let another = fenced.with_options(plain);
    another.acquire("dock-7").await.unwrap().release().await;
    let refused = fenced.adopt(&handover).await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
}

#[test]
fn the_token_of_a_lease_on_its_way_is_not_printed() {
    let handover = Handover::new("dock-7", Token::from_bytes([0xab; Token::LEN]), None, TTL);
    let told = format!("{handover:?}");
    assert!(
        told.contains("dock-7") && !told.contains("abababababab"),
        "{told}"
    );
}

/// The server loads a snapshot that is older than the release: its keys are those of a lease that is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_nodes_brought_back_with_old_data_is_not_adopted_while_another_client_holds_the_lock()
 {
    let plain = patient(TTL);
    for options in [plain, plain.fenced(Fencing::default()).unwrap()] {
        let mut servers = Servers::start(3);
        let first = connected(&servers, options).await;
        let handover = first.acquire("dock-7").await.unwrap().hand_over();
        let adopted = first.adopt(&handover).await.unwrap();
        adopted.release().await;
        let next = first.acquire("dock-7").await.unwrap();
        for server in &mut servers[..2] {
            server.restart();
            let set = ["SET", "dock-7"].map(str::as_bytes);
            let set = [&set[..], &[handover.token().as_bytes(), b"PX", b"10000"]].concat();
            let () = server.query(&set).unwrap();
        }
        let second = Redlock::connect(servers.urls(), options).unwrap();
        let refused = second.adopt(&handover).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused}");
        assert!(refused.to_string().contains("restarted"), "{refused}");
        assert!(next.is_valid());
    }
}
