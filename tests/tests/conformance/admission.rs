//! The lock of a device over real servers: which of them have a vote, and fences.

use std::time::{Duration, Instant};

use redlock_core::{Fence, FenceGate, Fencing, Lease, Options, Redlock};
use redlock_embassy::TcpNode;
use redlock_std::SystemClock;
use redlock_tests::{Server, Servers, TokioStream, eventually};

use crate::{LIMIT, address, name, tcp_node};

type Lock = Redlock<TcpNode<'static, TokioStream, SystemClock, 512>, SystemClock, Random, 3>;
type Random = fn(&mut [u8]);

/// Short, so that a quarantine is.
const TTL: Duration = Duration::from_millis(1_500);

/// Of a fleet without longer leases: `max_ttl`, `window` and `step_back`.
const RECORD: &str = "1500:250:60000";

fn options() -> Options {
    let options = Options::new(TTL).unwrap().wait(Duration::ZERO);
    // Longer than a busy machine pauses a process.
    options.node_timeout(Duration::from_millis(400)).unwrap()
}

fn fenced() -> Options {
    options().fenced(Fencing::default()).unwrap()
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
    servers.iter().for_each(|server| server.vouch(RECORD));
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
    servers.iter().for_each(|server| server.vouch(RECORD));
    let mut redlock = lock(servers.iter(), options());
    let lease = take(&mut redlock).await;
    redlock.release(lease).await;
}

#[tokio::test]
async fn a_server_that_is_named_twice_has_one_vote_and_a_replica_none() {
    let servers = Servers::start(4);
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|number| &servers[number]);
    // With its first replica a master begins a new history, and has no vote for a while.
    let master = fourth.port().to_string();
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

/// What each transport owes a node that changes while it is connected.
mod changes {
    use redlock_core::mock::MockNode;
    use redlock_core::transport::{Command, Reply, VoteConditions};
    use redlock_core::{Clock, Transport};

    use super::*;
    use crate::{redis_node, release, token};

    const KEY: &[u8] = b"dock-7";

    /// The node of a device.
    fn device(server: &Server) -> TcpNode<'static, TokioStream, SystemClock, 320> {
        tcp_node(TokioStream::new(address(server)))
    }

    fn conditions(options: Options) -> VoteConditions {
        options.vote_conditions()
    }

    async fn acquired(
        node: &mut impl Transport,
        conditions: VoteConditions,
        number: u8,
    ) -> Result<Reply, String> {
        let token = token(number);
        let command = Command::acquire(KEY, &token, 1_500, conditions);
        let result = node.execute(&command).await;
        result.map_err(|error| error.to_string())
    }

    async fn extended(node: &mut impl Transport, number: u8) -> Result<Reply, String> {
        let token = token(number);
        let command = Command::extend(KEY, &token, 1_500);
        let result = node.execute(&command).await;
        result.map_err(|error| error.to_string())
    }

    /// It becomes a replica under its client, and a master again.
    async fn a_failback_is_a_restart(
        node: &mut impl Transport,
        demote: impl AsyncFnOnce(),
        promote: impl AsyncFnOnce(),
    ) {
        let conditions = conditions(options());
        assert_eq!(
            acquired(node, conditions, 1).await,
            Ok(Reply::Acquired(None))
        );
        demote().await;
        let error = acquired(node, conditions, 2).await.unwrap_err();
        let words = ["READONLY", "a replica"];
        assert!(words.iter().any(|word| error.contains(word)), "{error}");
        promote().await;
        let error = acquired(node, conditions, 2).await.unwrap_err();
        assert!(error.contains("restarted "), "{error}");
        tokio::time::sleep(TTL + Duration::from_millis(100)).await;
        assert_eq!(
            acquired(node, conditions, 3).await,
            Ok(Reply::Acquired(None))
        );
    }

    async fn a_failback_of_a_server_is_a_restart<T: Transport>(node: impl Fn(&Server) -> T) {
        let (server, master) = (Server::start(), Server::start());
        server.vouch(RECORD);
        let mut node = node(&server);
        let port = master.port().to_string();
        let demote = async || {
            let follow = ["REPLICAOF", "127.0.0.1", &port];
            assert_eq!(server.query::<String>(&follow).unwrap(), "OK");
        };
        let promote = async || {
            let alone = ["REPLICAOF", "NO", "ONE"];
            assert_eq!(server.query::<String>(&alone).unwrap(), "OK");
            assert_eq!(server.query::<i64>(&["DEL", "dock-7"]).unwrap(), 1);
        };
        a_failback_is_a_restart(&mut node, demote, promote).await;
    }

    #[tokio::test]
    async fn a_failback_of_a_node_in_memory_is_a_restart() {
        let memory = MockNode::new(1, SystemClock);
        let demote = async || memory.demote();
        let promote = async || memory.promote();
        a_failback_is_a_restart(&mut &memory, demote, promote).await;
    }

    #[tokio::test]
    async fn a_failback_under_a_tcp_node_is_a_restart() {
        a_failback_of_a_server_is_a_restart(device).await;
    }

    #[tokio::test]
    async fn a_failback_under_a_redis_node_is_a_restart() {
        a_failback_of_a_server_is_a_restart(redis_node).await;
    }

    async fn a_policy_is_looked_at_again(node: &mut impl Transport, set_may_evict: impl Fn(bool)) {
        let conditions = conditions(options().refuse_eviction(true));
        assert!(acquired(node, conditions, 1).await.is_ok());
        set_may_evict(true);
        release(node, KEY, &token(1), Reply::Released).await;
        // The answer may count as one tick younger than it is.
        tokio::time::sleep(TTL / 2 + Clock::resolution(&SystemClock)).await;
        let error = acquired(node, conditions, 2).await.unwrap_err();
        assert!(error.contains("noeviction"), "{error}");
        set_may_evict(false);
        tokio::time::sleep(Duration::from_secs(1)).await;
        // Looked at, and not yet forgiven: it may have evicted what it granted before.
        let result = acquired(node, conditions, 3).await;
        assert!(!matches!(result, Ok(Reply::Acquired(_))), "{result:?}");
        let mut lenient = conditions;
        lenient.refuse_eviction = false;
        let result = acquired(node, lenient, 4).await;
        assert!(
            !matches!(&result, Err(error) if error.contains("noeviction")),
            "{result:?}"
        );
    }

    async fn a_policy_of_a_server_is_looked_at_again<T: Transport>(node: impl Fn(&Server) -> T) {
        let server = Server::start();
        let set_may_evict = |may_evict| {
            let policy = if may_evict {
                "allkeys-lru"
            } else {
                "noeviction"
            };
            let words = ["CONFIG", "SET", "maxmemory-policy", policy];
            assert_eq!(server.query::<String>(&words).unwrap(), "OK");
        };
        let mut node = node(&server);
        a_policy_is_looked_at_again(&mut node, set_may_evict).await;
        assert_eq!(server.client_count(), 1, "over the first connection");
    }

    #[tokio::test]
    async fn the_eviction_policy_of_a_node_in_memory_is_looked_at_again() {
        let memory = MockNode::new(1, SystemClock);
        a_policy_is_looked_at_again(&mut &memory, |may_evict| memory.set_may_evict(may_evict))
            .await;
    }

    #[tokio::test]
    async fn the_eviction_policy_is_looked_at_again_by_a_tcp_node() {
        a_policy_of_a_server_is_looked_at_again(device).await;
    }

    #[tokio::test]
    async fn the_eviction_policy_is_looked_at_again_by_a_redis_node() {
        a_policy_of_a_server_is_looked_at_again(redis_node).await;
    }

    async fn who_does_not_say_who_it_is_has_plain_locks<T: Transport>(
        node: impl Fn(&Server) -> T,
        without: &str,
    ) {
        let server = if without.starts_with('-') {
            let server = Server::start();
            let words = ["ACL", "SETUSER", "default", without];
            assert_eq!(server.query::<String>(&words).unwrap(), "OK");
            server
        } else {
            Server::start_without(without)
        };
        let mut node = node(&server);
        let error = acquired(&mut node, conditions(options()), 1)
            .await
            .unwrap_err();
        assert!(error.contains("+info +time"), "{error}");
        let unguarded = conditions(options().restart_guard(false));
        assert_eq!(
            acquired(&mut node, unguarded, 1).await,
            Ok(Reply::Acquired(None))
        );
        assert_eq!(extended(&mut node, 1).await, Ok(Reply::Extended(None)));
    }

    /// No permission for it in a script, and no such command at all.
    const WITHOUT: [&str; 4] = ["-info", "-time", "INFO", "TIME"];

    #[tokio::test]
    async fn a_tcp_node_without_info_or_time_has_plain_locks_and_says_what_to_do() {
        for without in WITHOUT {
            who_does_not_say_who_it_is_has_plain_locks(device, without).await;
        }
    }

    #[tokio::test]
    async fn a_redis_node_without_info_or_time_has_plain_locks_and_says_what_to_do() {
        for without in WITHOUT {
            who_does_not_say_who_it_is_has_plain_locks(redis_node, without).await;
        }
    }

    /// A release that the server cannot carry out for the moment is not lost.
    #[tokio::test]
    async fn a_release_that_is_refused_for_the_moment_goes_ahead_of_the_next_command_of_a_tcp_node()
    {
        let server = Server::start();
        let mut node = device(&server);
        let conditions = conditions(options());
        assert!(acquired(&mut node, conditions, 1).await.is_ok());
        let few = ["CONFIG", "SET", "min-replicas-to-write", "1"];
        assert_eq!(server.query::<String>(&few).unwrap(), "OK");
        let token = token(1);
        let release = Command::release(KEY, &token);
        let error = node.execute(&release).await.unwrap_err().to_string();
        assert!(error.contains("NOREPLICAS"), "{error}");
        assert!(acquired(&mut node, conditions, 2).await.is_err());
        let none = ["CONFIG", "SET", "min-replicas-to-write", "0"];
        assert_eq!(server.query::<String>(&none).unwrap(), "OK");
        assert_eq!(
            acquired(&mut node, conditions, 3).await,
            Ok(Reply::Acquired(None))
        );
    }
}

#[tokio::test]
async fn a_user_who_may_not_ask_who_a_server_is_is_told_so() {
    let server = Server::start();
    let words = "ACL SETUSER default resetkeys ~dock-7 ~redlock:guard -info";
    let words: Vec<_> = words.split(' ').collect();
    assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    let message = refusal(&mut lock([&server], options())).await;
    assert!(message.contains("+info +time"), "{message}");
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
            let lease = take(&mut other).await;
            admit(lease.fence());
            other.release(lease).await;
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
