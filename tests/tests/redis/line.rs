//! The waiting line: who has waited longest is next, in whichever process it waits.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use redlock_std::{Fencing, Guard, Options, Redlock};
use redlock_tests::{Proxy, Server, Servers, eventually, undisturbed};
use tokio::runtime::Builder;
use tokio::sync::{Mutex, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::sleep;

use crate::setup::{connected, patient};

const TTL: Duration = Duration::from_secs(10);

const LIMIT: Duration = Duration::from_secs(20);

const KEY: &str = "dock-7";

const QUEUE: &str = "redlock:queue:dock-7";

/// A turn lasts for more than two seconds, so that a call that is lost shows.
fn options() -> Options {
    patient(TTL).wait(LIMIT)
}

/// Clients with connections and a mailbox of their own, as processes have.
async fn clients(servers: &Servers, count: usize) -> Vec<Redlock> {
    clients_with(servers, count, options()).await
}

async fn clients_with(servers: &Servers, count: usize, options: Options) -> Vec<Redlock> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(connected(servers, options).await);
    }
    clients
}

/// A grant: the number of the client, and when its wait began.
type Grant = (usize, Instant);

/// Has `tasks` of each client take the lock again and again for `time`. Returns the grants in their order.
async fn contend(clients: &[Redlock], tasks: &[usize], time: Duration) -> Vec<Grant> {
    const HELD: Duration = Duration::from_millis(3);

    let is_held = Arc::new(AtomicBool::new(false));
    let grants: Arc<Mutex<Vec<Grant>>> = Arc::default();
    let end = Instant::now() + time;
    let mut set = JoinSet::new();
    for (number, client) in clients.iter().enumerate() {
        for _ in 0..tasks[number] {
            let (client, is_held, grants) = (client.clone(), is_held.clone(), grants.clone());
            set.spawn(async move {
                while Instant::now() < end {
                    let since = Instant::now();
                    let guard = client.acquire(KEY).await.unwrap();
                    assert!(!is_held.swap(true, Ordering::SeqCst), "two holders");
                    grants.lock().await.push((number, since));
                    sleep(HELD).await;
                    is_held.store(false, Ordering::SeqCst);
                    guard.release().await;
                }
            });
        }
    }
    while let Some(done) = set.join_next().await {
        done.unwrap();
    }
    std::mem::take(&mut *grants.lock().await)
}

/// The number of turns of each client.
fn turns(grants: &[Grant], clients: usize) -> Vec<usize> {
    let turns = |client| {
        grants
            .iter()
            .filter(|(number, _)| *number == client)
            .count()
    };
    (0..clients).map(turns).collect()
}

/// How often a grant was for a client that began to wait before the one that was granted the lock just before.
fn inversions(grants: &[Grant]) -> usize {
    let pairs = grants.windows(2);
    pairs.filter(|pair| pair[0].1 > pair[1].1).count()
}

/// Has `client` wait for the lock behind `ahead` others, and waits until it stands in the line on all servers. By then it has
/// looked at the lock so often that its next look is about a second away, unless it is called.
async fn waiting(client: &Redlock, servers: &Servers, ahead: usize) -> JoinHandle<Guard> {
    let client = client.clone();
    let task = tokio::spawn(async move { client.acquire(KEY).await.unwrap() });
    eventually("it stands in the line", LIMIT, || {
        servers.iter().all(|server| places(server) == ahead + 1)
    })
    .await;
    sleep(FIRST_LOOKS).await;
    task
}

/// Three looks, with delays of up to 50 ms.
const FIRST_LOOKS: Duration = Duration::from_millis(300);

/// How many clients stand in the line of a server.
fn places(server: &Server) -> usize {
    server.query(&["ZCARD", QUEUE]).unwrap()
}

/// How many connections of the clients have subscribed on all servers.
fn subscribers(servers: &Servers) -> usize {
    let list = ["CLIENT", "LIST", "TYPE", "pubsub"];
    let lists = servers
        .iter()
        .map(|server| server.query::<String>(&list).unwrap());
    lists.map(|list| list.lines().count()).sum()
}

/// The permissions that a client needed before there was a line.
const PERMISSIONS_WITHOUT_LINE: &str =
    "~dock-7 ~redlock:guard +set +get +del +pexpire +evalsha +eval +script|load +info +time";

/// Creates a user with these permissions, and returns the URLs with it.
fn with_user(servers: &Servers, permissions: &str) -> Vec<String> {
    let url = |server: &Server| {
        let user = [
            "ACL",
            "SETUSER",
            "locker",
            "reset",
            "on",
            ">secret",
            "resetchannels",
        ];
        let words: Vec<_> = user.into_iter().chain(permissions.split(' ')).collect();
        assert_eq!(server.query::<String>(&words).unwrap(), "OK");
        format!("redis://locker:secret@127.0.0.1:{}", server.port())
    };
    servers.iter().map(url).collect()
}

/// How long `task` waits for the lock after `guard` was released.
async fn hand_over(guard: Guard, task: JoinHandle<Guard>) -> Duration {
    let start = Instant::now();
    guard.release().await;
    let next = task.await.unwrap();
    let elapsed = start.elapsed();
    next.release().await;
    elapsed
}

/// Waits until the client in the line has one place on all servers, as one that is not called.
async fn expect_uncalled(servers: &Servers) {
    eventually("it is not called", LIMIT, || {
        servers.iter().all(|server| {
            let line: Vec<String> = server.query(&["ZRANGE", QUEUE, "0", "-1"]).unwrap();
            matches!(&line[..], [only] if only.ends_with('~'))
        })
    })
    .await;
}

/// How often `others` get the lock after `guard` was released, before `task` does.
async fn turns_before(guard: Guard, others: Vec<Redlock>, task: JoinHandle<Guard>) -> usize {
    let turns = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for other in others {
        let turns = Arc::clone(&turns);
        tasks.spawn(async move {
            loop {
                let _guard = other.acquire(KEY).await.unwrap();
                turns.fetch_add(1, Ordering::SeqCst);
                sleep(options().turn() / 4).await;
            }
        });
    }
    guard.release().await;
    drop(task.await.unwrap());
    turns.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_take_turns_in_the_order_in_which_they_began_to_wait() {
    for count in [2, 8] {
        let servers = Servers::start(3);
        let clients = clients(&servers, count).await;
        let grants = contend(&clients, &vec![1; count], Duration::from_secs(3)).await;
        let turns = turns(&grants, count);
        let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
        assert!(least * 10 >= most * 8, "{turns:?}");
        assert!(
            inversions(&grants) * 20 <= grants.len(),
            "{}",
            inversions(&grants)
        );
        servers.expect_no_keys().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_fenced_locks_take_turns_too() {
    let servers = Servers::start(3);
    let fenced = options().fenced(Fencing::default()).unwrap();
    let clients = clients_with(&servers, 4, fenced).await;
    let grants = contend(&clients, &[1; 4], Duration::from_secs(2)).await;
    let turns = turns(&grants, 4);
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(least * 10 >= most * 8, "{turns:?}");
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_tasks_of_one_client_and_one_of_another_wait_in_one_order() {
    let servers = Servers::start(3);
    let clients = clients(&servers, 2).await;
    let grants = contend(&clients, &[8, 1], Duration::from_secs(3)).await;
    let turns = turns(&grants, 2);
    let shares = turns[1] * 6..turns[1] * 10;
    assert!(shares.contains(&turns[0]), "{turns:?}");
    let inversions = inversions(&grants);
    assert!(inversions * 20 <= grants.len(), "{inversions}");
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_waits_has_one_connection_to_a_node() {
    let servers = Servers::start(3);
    let [first, second] = &clients(&servers, 2).await[..] else {
        unreachable!()
    };
    first.acquire(KEY).await.unwrap().release().await;
    let guard = first.try_acquire(KEY).await.unwrap();
    let error = second.try_acquire(KEY).await.unwrap_err();
    assert!(error.is_held(), "{error}");
    assert_eq!((subscribers(&servers), places(&servers[0])), (0, 0));
    let waiting = waiting(second, &servers, 0).await;
    assert_eq!(subscribers(&servers), 3);
    hand_over(guard, waiting).await;
    servers.expect_no_keys().await;
    assert!(servers.iter().all(|server| server.client_count() == 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_the_next_client_within_about_two_round_trips() {
    const WAY: Duration = Duration::from_millis(10);

    undisturbed(async || {
        let servers = Servers::start(3);
        let mut proxies = Vec::new();
        for server in servers.iter() {
            proxies.push(Proxy::start(server, WAY).await);
        }
        let urls = || proxies.iter().map(Proxy::url);
        let [first, second] = [(); 2].map(|()| Redlock::connect(urls(), options()).unwrap());
        for client in [&first, &second] {
            client.acquire(KEY).await.unwrap().release().await;
        }
        let mut guard = first.acquire(KEY).await.unwrap();
        let start = Instant::now();
        guard.extend().await.unwrap();
        let round_trip = start.elapsed();
        let waiting = waiting(&second, &servers, 0).await;
        let took = hand_over(guard, waiting).await;
        assert!(
            took < round_trip * 3,
            "{took:?}, a round trip {round_trip:?}"
        );
        servers.expect_no_keys().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_died_in_the_line_costs_the_others_no_turn() {
    let servers = Servers::start(3);
    let mut proxies = Vec::new();
    for server in servers.iter() {
        proxies.push(Proxy::start(server, Duration::ZERO).await);
    }
    let dying = Redlock::connect(proxies.iter().map(Proxy::url), options()).unwrap();
    let [first, last] = &clients(&servers, 2).await[..] else {
        unreachable!()
    };
    let guard = first.acquire(KEY).await.unwrap();
    let dead = waiting(&dying, &servers, 0).await;
    let waiting = waiting(last, &servers, 1).await;
    proxies.iter().for_each(Proxy::cut);
    eventually("it is dead", LIMIT, || subscribers(&servers) == 3).await;
    let took = hand_over(guard, waiting).await;
    assert!(took < options().turn() / 4, "{took:?}");
    dead.abort();
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_hangs_in_the_line_costs_the_others_one_turn() {
    let options = options().node_timeout(Duration::from_millis(100)).unwrap();
    undisturbed(async || {
        let servers = Servers::start(3);
        let urls = servers.urls();
        let clients = clients_with(&servers, 2, options).await;
        let guard = clients[0].acquire(KEY).await.unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        let (hang, hangs) = oneshot::channel::<()>();
        let hanging = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let client = Redlock::connect(urls, options).unwrap();
                tokio::select! {
                    guard = client.acquire(KEY) => drop(guard.unwrap()),
                    hang = hangs => hang.unwrap(),
                }
                // Its connections stay, and nothing of it runs.
                let _closed = stopped.recv();
            });
        });
        eventually("it stands in the line", LIMIT, || {
            servers.iter().all(|server| places(server) == 1)
        })
        .await;
        let waiting = waiting(&clients[1], &servers, 1).await;
        hang.send(()).unwrap();
        let took = hand_over(guard, waiting).await;
        assert!(took >= options.turn(), "{took:?}");
        assert!(took < options.turn() * 2, "{took:?}");
        drop(stop);
        hanging.join().unwrap();
        // A node whose turn ended after the quorum had granted the lock still has it in its line. The next client there clears that.
        let start = Instant::now();
        while servers.key_count() > 0 {
            assert!(start.elapsed() < TTL / 2, "its line would have expired");
            clients[0].acquire(KEY).await.unwrap().release().await;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_hangs_delays_no_client_that_waits_for_the_lock() {
    const NODE_TIMEOUT: Duration = Duration::from_secs(3);

    let options = options().node_timeout(NODE_TIMEOUT).unwrap();
    undisturbed(async || {
        let servers = Servers::start(3);
        let holder = connected(&servers, options).await;
        let guard = holder.acquire(KEY).await.unwrap();
        servers[2].pause();
        let begun_at = Instant::now();
        let waiting = Redlock::connect(servers.urls(), options).unwrap();
        let waiting = tokio::spawn(async move { waiting.acquire(KEY).await.unwrap() });
        eventually("it stands in the line", LIMIT, || {
            servers[..2].iter().all(|server| places(server) == 1)
        })
        .await;
        hand_over(guard, waiting).await;
        assert!(begun_at.elapsed() < NODE_TIMEOUT / 2, "{begun_at:?}");
        servers[2].resume();
        servers.expect_no_keys().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_the_line_off_a_client_polls() {
    let servers = Servers::start(3);
    let [first, second] = &clients_with(&servers, 2, options().queue(false)).await[..] else {
        unreachable!()
    };
    let guard = first.acquire(KEY).await.unwrap();
    let second = second.clone();
    let waiting = tokio::spawn(async move { second.acquire(KEY).await.unwrap() });
    sleep(FIRST_LOOKS).await;
    assert_eq!((places(&servers[0]), subscribers(&servers)), (0, 0));
    hand_over(guard, waiting).await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_gives_up_leaves_the_line() {
    let servers = Servers::start(3);
    let [first, second] = &clients(&servers, 2).await[..] else {
        unreachable!()
    };
    let guard = first.acquire(KEY).await.unwrap();
    let dropped = waiting(second, &servers, 0).await;
    dropped.abort();
    let is_empty = || servers.iter().all(|server| places(server) == 0);
    eventually("it has left after a drop", LIMIT, is_empty).await;

    let impatient = second.with_options(options().wait(Duration::from_millis(100)));
    let error = impatient.acquire(KEY).await.unwrap_err();
    assert!(error.is_held(), "{error}");
    eventually("it has left after its wait", LIMIT, is_empty).await;
    guard.release().await;
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_calls_are_lost_with_their_connections_gets_the_lock() {
    let servers = Servers::start(3);
    // The first one stands in no line, so all subscriptions are of the second.
    let first = connected(&servers, options().queue(false)).await;
    let second = connected(&servers, options()).await;
    for _ in 0..5 {
        let guard = first.acquire(KEY).await.unwrap();
        let waiting = waiting(&second, &servers, 0).await;
        for server in servers.iter() {
            let killed: usize = server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
            assert_eq!(killed, 1);
        }
        let took = hand_over(guard, waiting).await;
        assert!(took < options().turn() / 8, "{took:?}");
        eventually("it can be called again", LIMIT, || {
            subscribers(&servers) == 3
        })
        .await;
    }
    servers.expect_no_keys().await;
}

/// Does `harm` to the servers again and again, over one connection to each, until it is dropped.
struct Harm {
    is_over: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<usize>>,
}

impl Harm {
    /// `harm` returns how often it has done it.
    fn start(servers: &Servers, harm: fn(&mut redis::Connection) -> usize) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let threads = servers.iter().map(|server| {
            let url = format!("redis://127.0.0.1:{}", server.port());
            let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
            let is_over = Arc::clone(&is_over);
            std::thread::spawn(move || {
                let mut count = 0;
                while !is_over.load(Ordering::Relaxed) {
                    count += harm(&mut connection);
                    std::thread::sleep(Duration::from_millis(1));
                }
                count
            })
        });
        Self {
            threads: threads.collect(),
            is_over,
        }
    }

    /// Ends it. Returns how often it was done on each server.
    fn end(self) -> Vec<usize> {
        self.is_over.store(true, Ordering::Relaxed);
        let threads = self.threads.into_iter();
        threads.map(|thread| thread.join().unwrap()).collect()
    }
}

/// The numbers of the connections that have subscribed.
fn subscribed(list: &str) -> Vec<String> {
    let number = |line: &str| {
        line.split(' ')
            .find_map(|word| Some(word.strip_prefix("id=")?.to_owned()))
    };
    list.lines().filter_map(number).collect()
}

/// Has a server send messages about keys of another application to all clients that wait: short ones, and one that is longer than any
/// of the lock.
fn invalidate(connection: &mut redis::Connection) -> usize {
    let mut query = |words: &str| {
        let mut command = redis::Cmd::new();
        command.arg(words.split(' ').collect::<Vec<_>>());
        command.query::<redis::Value>(connection)
    };
    let list = query("CLIENT LIST TYPE pubsub").unwrap();
    let list: String = redis::from_redis_value(list).unwrap();
    let mut count = 0;
    for number in subscribed(&list) {
        for mode in ["", " BCAST PREFIX app:"] {
            let track = format!("CLIENT TRACKING ON REDIRECT {number}{mode}");
            // It may be gone.
            if query(&track).is_ok() {
                query("GET app:0").unwrap();
                let keys: Vec<_> = (0..20).map(|key| format!("app:{key} 1")).collect();
                query(&format!("MSET {}", keys.join(" "))).unwrap();
                query("CLIENT TRACKING OFF").unwrap();
                count += 1;
            }
        }
    }
    let keys: Vec<_> = (0..20).map(|key| format!("app:{key}")).collect();
    query(&format!("DEL {}", keys.join(" "))).unwrap();
    count
}

#[tokio::test(flavor = "multi_thread")]
async fn invalidations_of_another_client_do_not_end_the_connection_on_which_a_client_is_called() {
    let servers = Servers::start(3);
    let first = connected(&servers, options().queue(false)).await;
    let second = connected(&servers, options()).await;
    let connections = || {
        let list = ["CLIENT", "LIST", "TYPE", "pubsub"];
        let lists = servers.iter().map(|server| server.query::<String>(&list));
        lists
            .map(|list| subscribed(&list.unwrap()))
            .collect::<Vec<_>>()
    };
    let mut before = None;
    let mut harm = None;
    for _ in 0..5 {
        let guard = first.acquire(KEY).await.unwrap();
        let waiting = waiting(&second, &servers, 0).await;
        assert_eq!(*before.get_or_insert_with(&connections), connections());
        harm.get_or_insert_with(|| Harm::start(&servers, invalidate));
        let took = hand_over(guard, waiting).await;
        assert!(took < options().turn() / 8, "{took:?}");
    }
    let counts = harm.unwrap().end();
    assert!(counts.iter().all(|count| *count > 100), "{counts:?}");
    assert_eq!(before, Some(connections()));
    assert_eq!(second.warnings(), []);
    servers.expect_no_keys().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_whose_calls_are_always_lost_with_their_connections_gets_its_turn() {
    const OTHERS: usize = 3;

    let servers = Servers::start(3);
    let urls = with_user(&servers, "~* &redlock:mail:* +@all");
    let client = Redlock::connect(&urls, options()).unwrap();
    let others = clients(&servers, OTHERS).await;
    let guard = others[0].acquire(KEY).await.unwrap();
    let waiting = waiting(&client, &servers, 0).await;
    let harm = Harm::start(&servers, |connection| {
        let mut kill = redis::cmd("CLIENT");
        kill.arg(&["KILL", "TYPE", "pubsub", "USER", "locker"]);
        kill.query(connection).unwrap()
    });
    expect_uncalled(&servers).await;
    let turns = turns_before(guard, others, waiting).await;
    let counts = harm.end();
    assert!(counts.iter().all(|count| *count >= 3), "{counts:?}");
    assert!(
        turns <= OTHERS * 4,
        "{turns} turns of others before its own"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_permissions_for_the_line_a_client_polls_and_warns() {
    const RULES: [&str; 4] = [
        PERMISSIONS_WITHOUT_LINE,
        "~* +@all",
        "~* &redlock:mail:* +@all -subscribe",
        "~* &redlock:mail:* +@all -zadd",
    ];

    for rules in RULES {
        let servers = Servers::start(3);
        let urls = with_user(&servers, rules);
        let [first, second] = [(); 2].map(|()| Redlock::connect(&urls, options()).unwrap());
        for _ in 0..3 {
            let guard = first.acquire(KEY).await.unwrap();
            let second = second.clone();
            let waiting = tokio::spawn(async move { second.acquire(KEY).await.unwrap() });
            sleep(Duration::from_millis(100)).await;
            hand_over(guard, waiting).await;
        }
        let warnings: Vec<_> = second.warnings().iter().map(ToString::to_string).collect();
        // If only the scripts are refused, a client that knows it of one node need not hear it from the others.
        let least = if rules.ends_with("-zadd") { 1 } else { 3 };
        assert!(warnings.len() >= least, "{rules}: {warnings:?}");
        let words = warnings
            .iter()
            .all(|warning| warning.contains("&redlock:mail:*"));
        assert!(words, "{warnings:?}");
        servers.expect_no_keys().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_loses_the_permission_to_subscribe_while_it_waits_gets_its_turn() {
    const OTHERS: usize = 3;

    let servers = Servers::start(3);
    let urls = with_user(&servers, "~* &redlock:mail:* +@all");
    let client = Redlock::connect(&urls, options()).unwrap();
    let others = clients(&servers, OTHERS).await;
    let guard = others[0].acquire(KEY).await.unwrap();
    let waiting = waiting(&client, &servers, 0).await;
    for server in servers.iter() {
        let forbid = ["ACL", "SETUSER", "locker", "resetchannels"];
        assert_eq!(server.query::<String>(&forbid).unwrap(), "OK");
    }
    expect_uncalled(&servers).await;
    // In order: those that began to wait later come later, but the client has to notice first that it is not called.
    let turns = turns_before(guard, others, waiting).await;
    assert!(
        turns <= OTHERS * 4,
        "{turns} turns of others before its own"
    );
}

/// A client that has met others gives up its turn among its own tasks when it acquires.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_extended_while_clients_of_other_processes_wait() {
    let servers = Servers::start(3);
    let clients = clients(&servers, 2).await;
    let guard = clients[0].acquire(KEY).await.unwrap();
    let first = waiting(&clients[1], &servers, 0).await;
    guard.release().await;
    first.await.unwrap().release().await;
    let mut guard = clients[0].acquire(KEY).await.unwrap();
    let second = waiting(&clients[1], &servers, 0).await;
    guard.extend().await.unwrap();
    assert!(guard.is_valid());
    guard.release().await;
    second.await.unwrap().release().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_is_no_line_costs_no_lock() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        assert_eq!(
            server.query::<String>(&["SET", QUEUE, "squatter"]).unwrap(),
            "OK"
        );
    }
    let clients = clients_without_check(&servers);
    let guard = clients[0].acquire(KEY).await.unwrap();
    let other = clients[1].clone();
    let waiting = tokio::spawn(async move { other.acquire(KEY).await.unwrap() });
    sleep(Duration::from_millis(100)).await;
    hand_over(guard, waiting).await;
    eventually("no other key is left", LIMIT, || {
        servers
            .iter()
            .all(|server| server.keys() == [QUEUE.as_bytes()])
    })
    .await;
}

fn clients_without_check(servers: &Servers) -> [Redlock; 2] {
    [(); 2].map(|()| Redlock::connect(servers.urls(), options()).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_other_clients_cost_a_client_wake_ups_and_nothing_else() {
    let servers = Servers::start(3);
    let clients = clients(&servers, 2).await;
    let guard = clients[0].acquire(KEY).await.unwrap();
    let waiting = waiting(&clients[1], &servers, 0).await;
    let line: Vec<String> = servers[0].query(&["ZRANGE", QUEUE, "0", "-1"]).unwrap();
    let channel = format!("redlock:mail:{}", line[0]);
    let is_over = Arc::new(AtomicBool::new(false));
    let floods: Vec<_> = servers
        .iter()
        .map(|server| {
            let (url, channel, is_over) = (server.url(), channel.clone(), is_over.clone());
            std::thread::spawn(move || {
                let client = redis::Client::open(url).unwrap();
                let mut connection = client.get_connection().unwrap();
                let long = vec![b'1'; 1 << 20];
                let payloads = [&b"1dock-7"[..], b"2dock-7", b"1dock-8", b"", &long];
                for payload in payloads.iter().cycle() {
                    let mut publish = redis::cmd("PUBLISH");
                    let _count: u64 = publish
                        .arg(&channel)
                        .arg(payload)
                        .query(&mut connection)
                        .unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            })
        })
        .collect();
    sleep(Duration::from_millis(500)).await;
    assert!(guard.is_valid());
    let took = hand_over(guard, waiting).await;
    assert!(took < options().turn(), "{took:?}");
    is_over.store(true, Ordering::Relaxed);
    for flood in floods {
        flood.join().unwrap();
    }
    servers.expect_no_keys().await;
}

/// Its release and its next acquire leave together, so that it does not know yet whether others wait. It was told in the lease before.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_drops_its_guards_and_holds_the_lock_for_long_does_not_starve_others() {
    const HELD: Duration = Duration::from_secs(6);

    let servers = Servers::start(3);
    // Without `patient`: a turn that is longer than a look would hide it.
    let options = Options::new(HELD * 5).unwrap().wait(HELD * 20);
    let clients = clients_with(&servers, 2, options).await;
    let [busy, other] = &clients[..] else {
        unreachable!()
    };
    let first = busy.acquire(KEY).await.unwrap();
    let waiting = waiting(other, &servers, 0).await;
    let leases = Arc::new(AtomicUsize::new(0));
    let (busy, count) = (busy.clone(), Arc::clone(&leases));
    let again = tokio::spawn(async move {
        let mut guard = first;
        loop {
            count.fetch_add(1, Ordering::SeqCst);
            sleep(HELD).await;
            drop(guard);
            guard = busy.acquire(KEY).await.unwrap();
        }
    });
    let guard = waiting.await.unwrap();
    again.abort();
    // One before it waits, one that overtakes it, and one for a slow machine.
    assert!(leases.load(Ordering::SeqCst) <= 3);
    guard.release().await;
}
