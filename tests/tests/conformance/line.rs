//! Devices in the waiting line of real servers, beside a server of `redlock-std`.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

use redlock_core::transport::Mailbox;
use redlock_core::{Clock, Entropy, Lease, Redlock, Transport};
use redlock_embassy::{Connect, TcpNode};
use redlock_std::{Fencing, Options, SystemClock, SystemEntropy, Token};
use redlock_tests::{Server, Servers, TokioStream, eventually, poll_times, undisturbed};
use tokio::task::{LocalSet, spawn_local};
use tokio::time::{sleep, timeout};

use crate::dribble::Dribble;
use crate::{LIMIT, address};

const KEY: &str = "dock-7";

const QUEUE: &str = "redlock:queue:dock-7";

type Node<S = TokioStream> = TcpNode<'static, S, SystemClock, 512>;

type Device<S = TokioStream> = Redlock<Node<S>, SystemClock, SystemEntropy, 3>;

/// A turn lasts for ten seconds, so that a call that is lost shows.
fn options() -> Options {
    let options = Options::new(LIMIT * 12).unwrap();
    options.node_timeout(LIMIT).unwrap().wait(LIMIT * 4)
}

fn device(servers: &Servers, options: Options) -> Device {
    device_over(servers, options, |server| {
        TcpNode::new(TokioStream::new(address(server)), SystemClock)
    })
}

fn device_over<S: Connect>(
    servers: &Servers,
    options: Options,
    node: impl Fn(&Server) -> Node<S>,
) -> Device<S> {
    let mut name = [0; 8];
    SystemEntropy.fill(&mut name);
    let mailbox = Mailbox::new(name);
    let nodes = servers
        .iter()
        .map(|server| node(server).with_mailbox(mailbox));
    Redlock::new(nodes, SystemClock, SystemEntropy, options).unwrap()
}

/// Has the devices send what they still owe, and waits until there is no key. A release returns when a quorum has answered, and the
/// release for a node that lacked its script, refused its place, or whose messages are still being read, goes ahead of the next
/// command.
async fn expect_no_keys<S: Connect, T: Connect>(
    servers: &Servers,
    first: &mut Device<S>,
    second: &mut Device<T>,
) {
    // A release of a token that no node has: it sets no key that would be owed again.
    let nothing = || Lease::adopt(KEY, Token::from_bytes([0; Token::LEN]));
    let end = Instant::now() + LIMIT;
    while servers.key_count() > 0 && Instant::now() < end {
        first.release(nothing()).await;
        second.release(nothing()).await;
        sleep(Duration::from_millis(5)).await;
    }
    servers.expect_no_keys().await;
}

/// The second device waits while the first one holds the lock, and gets it then.
async fn take_turns<S: Connect>(first: &mut Device<S>, second: &mut Device<S>) {
    let lease = first.acquire(KEY).await.unwrap();
    let wait = async {
        let lease = second.acquire(KEY).await.unwrap();
        second.release(lease).await;
    };
    let release = async {
        sleep(Duration::from_millis(100)).await;
        first.release(lease).await;
    };
    tokio::join!(wait, release);
}

/// The name of the device with this mailbox as it stands in the line of a server. `None` if it does not.
fn name_in_line(server: &Server, digits: &str) -> Option<String> {
    let line: Vec<String> = server.query(&["ZRANGE", QUEUE, "0", "-1"]).unwrap();
    let names = [digits.to_owned(), format!("{digits}~")];
    line.into_iter().find(|name| names.contains(name))
}

/// The digits of the mailbox of `device`.
fn digits<S: Connect>(device: &Device<S>) -> String {
    let mailbox = device.nodes().find_map(Transport::mailbox).unwrap();
    String::from_utf8(mailbox.digits().to_vec()).unwrap()
}

/// Waits until the device stands in the line of all servers. Another one may stand there too: one that has won with the votes of
/// the other servers.
async fn expect_in_line(servers: &Servers, digits: &str) {
    // A stream that takes single bytes is slow beside other tests.
    eventually("it stands in the line", LIMIT * 4, || {
        let mut names = servers.iter().map(|server| name_in_line(server, digits));
        names.all(|name| name.is_some())
    })
    .await;
}

/// How many connections have subscribed.
fn subscribers(server: &Server) -> usize {
    let list: String = server.query(&["CLIENT", "LIST", "TYPE", "pubsub"]).unwrap();
    list.lines().count()
}

/// Has `first` release the lock for which `second` waits, after `meanwhile`. Returns how long `second` waits after the release.
async fn hand_over<S: Connect>(
    servers: &Servers,
    first: &mut Device,
    lease: Lease<&str>,
    second: &mut Device<S>,
    meanwhile: impl AsyncFnOnce(),
) -> Duration {
    let released_at = Cell::new(Instant::now());
    let digits = digits(second);
    let wait = async {
        let lease = second.acquire(KEY).await.unwrap();
        let took = released_at.get().elapsed();
        second.release(lease).await;
        took
    };
    let release = async {
        expect_in_line(servers, &digits).await;
        // Three looks, with delays of up to 50 ms; its next look is a second away.
        sleep(Duration::from_millis(300)).await;
        meanwhile().await;
        released_at.set(Instant::now());
        first.release(lease).await;
    };
    tokio::join!(wait, release).0
}

#[tokio::test]
async fn a_release_calls_a_device_that_waits() {
    Box::pin(undisturbed(async || {
        for options in [options(), options().fenced(Fencing::default()).unwrap()] {
            let servers = Servers::start(3);
            let [mut first, mut second] = [(); 2].map(|()| device(&servers, options));
            for _ in 0..3 {
                let lease = first.acquire(KEY).await.unwrap();
                let took = hand_over(&servers, &mut first, lease, &mut second, async || {
                    assert!(servers.iter().all(|server| subscribers(server) > 0));
                })
                .await;
                // Sooner than its next look.
                assert!(took < Duration::from_millis(500), "{took:?}");
            }
            expect_no_keys(&servers, &mut first, &mut second).await;
            assert!(
                servers.iter().all(|server| server.client_count() == 2),
                "one connection each"
            );
        }
    }))
    .await;
}

#[tokio::test]
async fn a_release_calls_a_device_that_waits_also_if_the_server_has_lost_its_script() {
    Box::pin(undisturbed(async || {
        for options in [options(), options().fenced(Fencing::default()).unwrap()] {
            let servers = Servers::start(3);
            let [mut first, mut second] = [(); 2].map(|()| device(&servers, options));
            let lease = first.acquire(KEY).await.unwrap();
            let took = hand_over(&servers, &mut first, lease, &mut second, async || {
                for server in servers.iter() {
                    assert_eq!(server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
                }
            })
            .await;
            assert!(took < Duration::from_millis(500), "{took:?}");
            expect_no_keys(&servers, &mut first, &mut second).await;
        }
    }))
    .await;
}

#[tokio::test]
async fn a_device_that_never_waits_does_not_subscribe() {
    let servers = Servers::start(3);
    let mut device = device(&servers, options());
    for _ in 0..3 {
        let lease = device.acquire(KEY).await.unwrap();
        device.release(lease).await;
    }
    for server in servers.iter() {
        assert_eq!(subscribers(server), 0);
        assert_eq!(server.calls()["hello"], 0);
    }
}

#[tokio::test]
async fn devices_and_servers_take_turns() {
    const HELD: Duration = Duration::from_millis(3);

    let servers = Servers::start(3);
    let is_held = Rc::new(Cell::new(false));
    let turns = Rc::new(RefCell::new([0; 3]));
    let end = Instant::now() + Duration::from_secs(3);
    let hold = {
        let (is_held, turns) = (is_held.clone(), turns.clone());
        move |number: usize| {
            let (is_held, turns) = (is_held.clone(), turns.clone());
            async move {
                assert!(!is_held.replace(true), "two holders");
                turns.borrow_mut()[number] += 1;
                sleep(HELD).await;
                is_held.set(false);
            }
        }
    };
    LocalSet::new()
        .run_until(async {
            let mut tasks = Vec::new();
            for number in 0..2 {
                let (mut device, hold) = (device(&servers, options()), hold.clone());
                tasks.push(spawn_local(async move {
                    while Instant::now() < end {
                        let lease = device.acquire(KEY).await.unwrap();
                        hold(number).await;
                        device.release(lease).await;
                    }
                }));
            }
            let redlock = redlock_std::Redlock::connect(servers.urls(), options()).unwrap();
            tasks.push(spawn_local(async move {
                while Instant::now() < end {
                    let guard = redlock.acquire(KEY).await.unwrap();
                    hold(2).await;
                    guard.release().await;
                }
            }));
            for task in tasks {
                task.await.unwrap();
            }
        })
        .await;
    let turns = turns.take();
    let (least, most) = (turns.iter().min().unwrap(), turns.iter().max().unwrap());
    assert!(least * 10 >= most * 8, "{turns:?}");
    servers.expect_no_keys().await;
}

/// Creates a user with these permissions, which every client uses from then on.
fn restrict(servers: &Servers, permissions: &str) {
    for server in servers.iter() {
        let user = ["ACL", "SETUSER", "locker", "on", ">secret", "resetchannels"];
        let words: Vec<_> = user.into_iter().chain(permissions.split(' ')).collect();
        assert_eq!(server.query::<String>(&words).unwrap(), "OK");
    }
}

fn restricted(servers: &Servers) -> Device {
    device_over(servers, options(), |server| {
        TcpNode::new(TokioStream::new(address(server)), SystemClock).credentials("locker", "secret")
    })
}

#[tokio::test]
async fn a_device_that_cannot_be_called_stands_in_the_line_and_looks() {
    for rules in [
        "~* &redlock:mail:* +@all -subscribe",
        "~* &redlock:mail:* +@all -publish",
        "~* +@all",
    ] {
        let servers = Servers::start(3);
        restrict(&servers, rules);
        let (mut first, mut second) = (device(&servers, options()), restricted(&servers));
        let digits = digits(&second);
        for _ in 0..2 {
            let lease = first.acquire(KEY).await.unwrap();
            let took = hand_over(&servers, &mut first, lease, &mut second, async || {
                for server in servers.iter() {
                    let name = name_in_line(server, &digits).unwrap();
                    assert!(name.ends_with('~'), "{rules}");
                }
            })
            .await;
            assert!(took < options().turn(), "{took:?}");
        }
        expect_no_keys(&servers, &mut first, &mut second).await;
        assert!(servers.iter().all(|server| server.client_count() == 2));
    }
}

#[tokio::test]
async fn without_the_permissions_for_the_line_a_device_polls() {
    for rules in [
        "~dock-7 ~redlock:guard +set +get +del +pexpire +evalsha +eval +script|load +info +time",
        "~dock-7 ~redlock:guard +set +get +del +pexpire +eval +info +time",
        "~* &redlock:mail:* +@all -zadd",
    ] {
        let servers = Servers::start(3);
        restrict(&servers, rules);
        let [mut first, mut second] = [(); 2].map(|()| restricted(&servers));
        for _ in 0..2 {
            take_turns(&mut first, &mut second).await;
        }
        expect_no_keys(&servers, &mut first, &mut second).await;
        assert!(
            servers.iter().all(|server| server.client_count() == 2),
            "{rules}: over one connection each"
        );
    }
}

#[tokio::test]
async fn a_line_that_is_no_line_costs_a_device_no_lock() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        assert_eq!(
            server.query::<String>(&["SET", QUEUE, "squatter"]).unwrap(),
            "OK"
        );
    }
    let [mut first, mut second] = [(); 2].map(|()| device(&servers, options()));
    take_turns(&mut first, &mut second).await;
    for server in servers.iter() {
        let kind: String = server.query(&["TYPE", QUEUE]).unwrap();
        assert_eq!(kind, "string");
    }
}

#[tokio::test]
async fn a_device_whose_calls_are_lost_with_its_connections_gets_the_lock() {
    Box::pin(undisturbed(async || {
        let servers = Servers::start(3);
        let [mut first, mut second] = [(); 2].map(|()| device(&servers, options()));
        for _ in 0..3 {
            let lease = first.acquire(KEY).await.unwrap();
            let took = hand_over(&servers, &mut first, lease, &mut second, async || {
                for server in servers.iter() {
                    let killed: usize =
                        server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
                    assert_eq!(killed, 1);
                }
            })
            .await;
            assert!(took < Duration::from_secs(2), "{took:?}");
        }
        expect_no_keys(&servers, &mut first, &mut second).await;
    }))
    .await;
}

#[tokio::test]
async fn a_device_reconnects_while_it_waits() {
    Box::pin(undisturbed(async || {
        let servers = Servers::start(3);
        let [mut first, mut second] = [(); 2].map(|()| device(&servers, options()));
        let lease = first.acquire(KEY).await.unwrap();
        let took = hand_over(&servers, &mut first, lease, &mut second, async || {
            for _ in 0..3 {
                for server in servers.iter() {
                    let _killed: usize =
                        server.query(&["CLIENT", "KILL", "TYPE", "pubsub"]).unwrap();
                }
                eventually("it has subscribed again", LIMIT, || {
                    servers.iter().all(|server| subscribers(server) == 1)
                })
                .await;
            }
            sleep(Duration::from_millis(300)).await;
        })
        .await;
        assert!(took < Duration::from_millis(500), "{took:?}");
        expect_no_keys(&servers, &mut first, &mut second).await;
    }))
    .await;
}

#[tokio::test]
async fn a_device_that_gives_up_leaves_the_line() {
    let servers = Servers::start(3);
    let impatient = options().wait(Duration::from_millis(200));
    let (mut first, mut second) = (device(&servers, options()), device(&servers, impatient));
    let digits = digits(&second);
    let lease = first.acquire(KEY).await.unwrap();
    assert!(second.acquire(KEY).await.is_err());
    let has_left = || {
        let mut names = servers.iter().map(|server| name_in_line(server, &digits));
        names.all(|name| name.is_none())
    };
    eventually("it has left after its wait", LIMIT, has_left).await;

    second.set_options(options());
    tokio::select! {
        acquired = second.acquire(KEY) => panic!("{acquired:?}"),
        () = expect_in_line(&servers, &digits) => {}
    }
    second.release_abandoned().await;
    eventually("it has left after a drop", LIMIT, has_left).await;
    first.release(lease).await;
    expect_no_keys(&servers, &mut first, &mut second).await;
}

#[tokio::test]
async fn scripts_that_are_flushed_while_a_device_waits_cost_no_place() {
    for options in [options(), options().fenced(Fencing::default()).unwrap()] {
        let servers = Servers::start(3);
        let [mut first, mut second] = [(); 2].map(|()| device(&servers, options));
        let lease = first.acquire(KEY).await.unwrap();
        let took = hand_over(&servers, &mut first, lease, &mut second, async || {
            for server in servers.iter() {
                assert_eq!(server.query::<String>(&["SCRIPT", "FLUSH"]).unwrap(), "OK");
            }
        })
        .await;
        assert!(took < options.turn(), "{took:?}");
        expect_no_keys(&servers, &mut first, &mut second).await;
    }
}

/// Each message is cut between any two bytes, and the wait is dropped between any two bytes of it.
#[tokio::test]
async fn a_wait_that_is_dropped_anywhere_loses_no_call() {
    Box::pin(undisturbed(async || {
        let servers = Servers::start(3);
        let mut first = device(&servers, options());
        let mut second = device_over(&servers, options(), |server| {
            TcpNode::new(Dribble::new(TokioStream::new(address(server))), SystemClock)
        });
        let digits = digits(&second);
        let mut called = 0;
        for polls in [1, 2, 3, 5, 8, 13] {
            let lease = first.acquire(KEY).await.unwrap();
            let is_released = Cell::new(false);
            let wait = async {
                let mut acquisition = second.begin();
                let mut was_turn = false;
                let lease = loop {
                    let error = match second.attempt(&mut acquisition, KEY).await {
                        Ok(lease) => break lease,
                        Err(error) => error,
                    };
                    let again_at = second.again_at(&mut acquisition, &error).unwrap();
                    loop {
                        let turn = second.wait_for_turn(&mut acquisition, KEY, again_at);
                        let is_turn =
                            timeout(Duration::from_millis(20), poll_times(polls, turn)).await;
                        was_turn = is_turn == Ok(true) && SystemClock.now() < again_at;
                        if is_turn == Ok(true) || SystemClock.now() >= again_at {
                            break;
                        }
                        sleep(Duration::from_millis(1)).await;
                    }
                };
                let was_called = is_released.get() && was_turn;
                second.release(lease).await;
                was_called
            };
            let release = async {
                expect_in_line(&servers, &digits).await;
                sleep(Duration::from_millis(300)).await;
                is_released.set(true);
                first.release(lease).await;
            };
            let (was_called, ()) = tokio::join!(wait, release);
            called += usize::from(was_called);
        }
        // A look may come while the message dribbles in.
        assert!(called >= 2, "{called}");
        expect_no_keys(&servers, &mut first, &mut second).await;
    }))
    .await;
}

#[tokio::test]
async fn messages_of_other_clients_cost_a_device_no_connection() {
    let servers = Servers::start(3);
    let [mut first, mut second] = [(); 2].map(|()| device(&servers, options()));
    let digits = digits(&second);
    let lease = first.acquire(KEY).await.unwrap();
    let took = hand_over(&servers, &mut first, lease, &mut second, async || {
        let channel = format!("redlock:mail:{digits}");
        let long = vec![b'1'; 1 << 20];
        for payload in [&b"2dock-7"[..], b"1dock-8", b"", b"3", &long, b"1dock-7"] {
            for server in servers.iter() {
                let words = [&b"PUBLISH"[..], channel.as_bytes(), payload];
                let _count: usize = server.query(&words).unwrap();
            }
            sleep(Duration::from_millis(30)).await;
        }
        expect_in_line(&servers, &digits).await;
    })
    .await;
    assert!(took < options().turn(), "{took:?}");
    expect_no_keys(&servers, &mut first, &mut second).await;
    assert!(servers.iter().all(|server| server.client_count() == 2));
}
