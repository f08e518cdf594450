//! The lock of a device over real servers: which of them have a vote, and fences.

use std::time::{Duration, Instant};

use redlock_core::{Fence, FenceGate, Lease, Options, Redlock};
use redlock_embassy::TcpNode;
use redlock_std::SystemClock;
use redlock_tests::{Server, Servers, TokioStream, eventually};

use crate::{LIMIT, address, name, tcp_node};

type Lock = Redlock<TcpNode<'static, TokioStream, SystemClock, 512>, SystemClock, Random, 3>;
type Random = fn(&mut [u8]);

/// Short, so that a quarantine is.
const TTL: Duration = Duration::from_millis(1_500);

fn options() -> Options {
    let options = Options::new(TTL).unwrap().wait(Duration::ZERO);
    // Longer than a busy machine pauses a process.
    options.node_timeout(Duration::from_millis(400)).unwrap()
}

fn fenced() -> Options {
    options().fenced(Options::WINDOW).unwrap()
}

fn lock<'s>(servers: impl IntoIterator<Item = &'s Server>, options: Options) -> Lock {
    let nodes = servers
        .into_iter()
        .map(|server| TcpNode::new(TokioStream::new(address(server)), SystemClock));
    let random: Random = |bytes| bytes.fill_with(|| fastrand::u8(..));
    Redlock::new(nodes, SystemClock, random, options).unwrap()
}

async fn take(redlock: &mut Lock) -> Lease<&'static str> {
    redlock.try_acquire("dock-7").await.unwrap()
}

async fn refusal(redlock: &mut Lock) -> String {
    let error = redlock.try_acquire("dock-7").await.unwrap_err();
    error.to_string()
}

#[tokio::test]
async fn servers_that_restart_without_their_data_have_no_vote_until_the_quarantine_is_over() {
    let mut servers = Servers::start(3);
    let mut redlock = lock(servers.iter(), options());
    let lease = take(&mut redlock).await;
    redlock.release(lease).await;

    let start = Instant::now();
    servers[..2].iter_mut().for_each(Server::restart);
    // What is sent on a connection that has just ended breaks it.
    let mut message = refusal(&mut redlock).await;
    while message.contains("the connection broke") {
        message = refusal(&mut redlock).await;
    }
    for server in &servers[..2] {
        let words = format!("{}: restarted ", name(server));
        assert!(message.contains(&words), "{message}");
    }
    assert!(message.contains("its vote counts again in "), "{message}");
    redlock.set_options(options().wait(LIMIT));
    let lease = redlock.acquire("dock-7").await.unwrap();
    assert!(start.elapsed() > TTL, "{:?}", start.elapsed());
    redlock.release(lease).await;
    servers.expect_no_keys().await;
}

#[tokio::test]
async fn servers_that_are_young_have_no_vote_unless_they_are_vouched_for_or_the_guard_is_off() {
    let servers = Servers::start(3);
    servers.iter().for_each(Server::disown);
    let message = refusal(&mut lock(servers.iter(), options())).await;
    assert!(message.contains("restarted "), "{message}");
    let mut unguarded = lock(servers.iter(), options().restart_guard(false));
    let lease = take(&mut unguarded).await;
    unguarded.release(lease).await;
    servers
        .iter()
        .for_each(|server| server.vouch("1500:250:60000"));
    let mut redlock = lock(servers.iter(), options());
    let lease = take(&mut redlock).await;
    redlock.release(lease).await;
}

#[tokio::test]
async fn a_server_that_is_named_twice_has_one_vote_and_a_replica_none() {
    let servers = Servers::start(3);
    let [first, second, third] = [&servers[0], &servers[1], &servers[2]];
    let master = first.port().to_string();
    let follow = ["REPLICAOF", "127.0.0.1", &master];
    assert_eq!(second.query::<String>(&follow).unwrap(), "OK");
    let message = refusal(&mut lock([first, first, second], options())).await;
    let twice = format!(
        "{0}: the same server as {0}; name each server once",
        name(first)
    );
    assert!(message.contains(&twice), "{message}");
    let replica = format!(
        "{}: a replica, which has no vote; name its master",
        name(second)
    );
    assert!(message.contains(&replica), "{message}");
    eventually("no key is left", LIMIT, || first.key_count() == 0).await;

    let mut redlock = lock([first, second, third], options());
    let lease = take(&mut redlock).await;
    redlock.release(lease).await;
}

#[tokio::test]
async fn a_user_who_may_not_ask_who_a_server_is_is_told_so() {
    let server = Server::start();
    let words = "ACL SETUSER default resetkeys ~dock-7 ~redlock:guard -info";
    let words: Vec<_> = words.split(' ').collect();
    assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    let message = refusal(&mut lock([&server], options())).await;
    assert!(message.contains("grant +info"), "{message}");
    let mut unguarded = lock([&server], options().restart_guard(false));
    let lease = take(&mut unguarded).await;
    unguarded.release(lease).await;
}

#[tokio::test]
async fn fences_of_devices_and_of_servers_grow_in_one_order() {
    let servers = Servers::start(3);
    let mut device = lock(servers.iter(), fenced());
    let mut other = lock(servers.iter(), fenced());
    let host = redlock_std::Redlock::connect(servers.urls(), fenced().wait(LIMIT)).unwrap();
    let mut gate = FenceGate::new();
    let mut admit = |fence: Option<Fence>| {
        let fence = fence.unwrap();
        assert!(fence > gate.highest() && gate.admit(fence), "{fence}");
    };
    for round in 0..30 {
        let mut lease = take(&mut device).await;
        admit(lease.fence());
        assert!(host.try_acquire("dock-7").await.is_err());
        device.extend(&mut lease).await.unwrap();
        let released = device.release(lease).await;
        assert!(released.released() + released.gone() >= 2, "{released:?}");
        if round == 15 {
            for server in servers.iter() {
                assert_eq!(server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
            }
            let message = refusal(&mut other).await;
            assert!(message.contains("has lost its scripts"), "{message}");
        }
        let guard = host.acquire("dock-7").await.unwrap();
        admit(guard.fence());
        guard.release().await;
        other.set_options(fenced().wait(LIMIT));
        let lease = other.acquire("dock-7").await.unwrap();
        admit(lease.fence());
        other.release(lease).await;
        device.set_options(fenced().wait(LIMIT));
        let lease = device.acquire("dock-7").await.unwrap();
        admit(lease.fence());
        device.release(lease).await;
    }
    servers.expect_no_keys().await;
}

#[tokio::test]
async fn a_user_without_the_permission_for_scripts_has_plain_locks_and_is_told_what_is_missing() {
    let server = Server::start();
    let words = ["ACL", "SETUSER", "default", "-script"];
    assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    let mut plain = lock([&server], options());
    let lease = take(&mut plain).await;
    plain.release(lease).await;
    let message = refusal(&mut lock([&server], fenced())).await;
    assert!(message.contains("grant +script|load"), "{message}");
    let mut node = tcp_node(TokioStream::new(address(&server)));
    assert!(node.connect().await.is_ok());
}
