//! Sockets for host names, between real stacks and with a name server.

use core::time::Duration;

use embassy_futures::select::{Either, select};
use embassy_net::Ipv4Address;
use embedded_io_async::{Read, Write};
use redlock_core::Entropy;
use redlock_core::mock::SeededEntropy;
use redlock_embassy::{
    Connect, EmbassyClock, HostName, NetSocket, Options, Redlock, TcpNode, close_all,
    connect_quorum, resolve,
};

use crate::fleet::one_round;
use crate::lan::{
    HOST, Lan, LanLock, LanNode, MOVED_HOST, NOBODY, lan, lan_of_hosts, neighbor, reply,
};
use crate::wire::Who;
use crate::world::*;

/// A lease of ten seconds, one attempt, in a round of 250 ms.
fn options() -> Options {
    let options = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
    options.node_timeout(ms(250)).unwrap()
}

/// A lock over the first `N` servers, by their names.
fn named_lock<const N: usize>(lan: &mut Lan, options: Options) -> LanLock<N> {
    let names = lan.resolve::<N>();
    let nodes = (0..).zip(names).map(|(number, name)| {
        let node = TcpNode::new(lan.named_socket(name, number), EmbassyClock);
        node.connect_timeout(ms(3_000))
    });
    let nodes: Vec<_> = nodes.collect();
    Redlock::new(nodes, EmbassyClock, SeededEntropy::new(1), options).unwrap()
}

/// Tries to acquire the lock this many times, twice a second. Returns how many tries succeed.
fn wins<const N: usize>(lan: &mut Lan, lock: &mut LanLock<N>, tries: usize) -> usize {
    let mut wins = 0;
    for _ in 0..tries {
        if let Ok(lease) = lan.run(lock.try_acquire("dock-7")) {
            wins += 1;
            lan.run(lock.release(lease));
        }
        lan.idle(ms(500));
    }
    wins
}

/// The error of a try.
fn error<const N: usize>(lan: &mut Lan, lock: &mut LanLock<N>) -> String {
    lan.run(lock.try_acquire("dock-7")).unwrap_err().to_string()
}

#[test]
fn a_name_that_takes_longer_than_a_round_is_connected_by_itself_also_after_two_nodes_restart() {
    let (servers, mut lan) = lan::<5>();
    lan.cable.delay(ms(5));
    lan.name_server.answer_after(ms(400));
    let mut lock = named_lock::<5>(&mut lan, options());
    let first = error(&mut lan, &mut lock);
    assert!(
        first.contains("redis-0.lan:6379 (no address yet): still connecting after 250 ms"),
        "{first}"
    );
    lan.idle(ms(500));
    // The fifth name waits for one of four slots.
    assert!(wins(&mut lan, &mut lock, 5) >= 3);
    for turn in 0..3 {
        servers[turn].cut();
        servers[turn + 1].cut();
        lan.idle(ms(100));
        assert_eq!(wins(&mut lan, &mut lock, 10), 10);
        for server in servers {
            assert_eq!(server.clients(), 1);
        }
    }
}

#[test]
fn a_name_that_takes_about_as_long_as_the_connect_timeout_is_found_also_after_its_host_has_moved() {
    // With the lock's own timeout: three seconds for the name and the handshake.
    for answer_after in [2_800, 3_400] {
        let (servers, mut lan) = lan::<1>();
        lan.cable.delay(ms(150));
        lan.name_server.answer_after(ms(answer_after));
        let mut lock = named_lock::<1>(&mut lan, options().node_timeout(ms(500)).unwrap());
        assert!(wins(&mut lan, &mut lock, 20) > 3, "{answer_after} ms");
        lan.move_host();
        servers[0].cut();
        // Of the old address, of its last attempt, and of the name.
        let wins_of_the_moved = wins(&mut lan, &mut lock, 40);
        assert!(
            wins_of_the_moved > 3,
            "{answer_after} ms, moved: {wins_of_the_moved}"
        );
    }
}

#[test]
fn a_name_is_asked_for_once_for_each_connection_and_not_for_each_round() {
    let (servers, mut lan) = lan::<3>();
    let mut lock = named_lock::<3>(&mut lan, options());
    assert_eq!(wins(&mut lan, &mut lock, 10), 10);
    assert_eq!(lan.name_server.asked(), 3);
    servers[1].cut();
    assert_eq!(wins(&mut lan, &mut lock, 10), 10);
    assert_eq!(lan.name_server.asked(), 4);
}

#[test]
fn a_node_whose_address_changes_is_found_again_and_is_still_known() {
    let (servers, mut lan) = lan::<3>();
    let mut lock = named_lock::<3>(&mut lan, options());
    assert_eq!(wins(&mut lan, &mut lock, 1), 1);
    lan.move_host();
    // Until the connections to the old address are given up.
    lan.idle(NetSocket::IDLE_MAX + ms(2_000));
    assert!(wins(&mut lan, &mut lock, 20) >= 15);
    for server in servers {
        assert_eq!((server.connections(), server.clients()), (2, 1));
        // It restarts. Who did not know it before would believe that it has been running for eleven days.
        server.introduce(Who {
            run_id: 99,
            ..Who::default()
        });
        server.cut();
    }
    lan.idle(ms(100));
    let _connecting = wins(&mut lan, &mut lock, 4);
    let error = error(&mut lan, &mut lock);
    assert!(error.contains("redis-0.lan:6379: restarted"), "{error}");
}

#[test]
fn all_addresses_of_an_answer_are_tried_in_turn() {
    let (servers, mut lan) = lan::<1>();
    let nowhere = Ipv4Address::new(10, 0, 0, 8);
    lan.name_server.answer_with(&[NOBODY, nowhere, HOST]);
    let mut lock = named_lock::<1>(&mut lan, options());
    // Each of the first two has the connect timeout.
    assert_eq!(wins(&mut lan, &mut lock, 8), 0);
    assert!(wins(&mut lan, &mut lock, 8) > 0);
    assert_eq!((servers[0].connections(), lan.name_server.asked()), (1, 1));
}

/// The stack gives up the attempt at the first one in the meantime.
#[test]
fn all_addresses_of_an_answer_are_tried_also_by_a_device_that_calls_once_a_minute() {
    let (_servers, mut lan) = lan::<1>();
    lan.name_server.answer_with(&[NOBODY, HOST]);
    let mut lock = named_lock::<1>(&mut lan, options());
    let mut wins = 0;
    for _ in 0..8 {
        if let Ok(lease) = lan.run(lock.try_acquire("dock-7")) {
            wins += 1;
            lan.run(lock.release(lease));
        }
        lan.idle(ms(61_000));
    }
    assert!(wins >= 4, "{wins}");
}

/// As that of a TLS session, which no round drops. No host has the first address, so the stack cannot send it a reset.
#[test]
fn a_connect_that_is_not_dropped_tries_the_next_address_when_the_stack_gives_up_the_first() {
    let (servers, mut lan) = lan::<1>();
    lan.name_server.answer_with(&[NOBODY, NOBODY, HOST]);
    let names = lan.resolve::<1>();
    let mut socket = lan.named_socket(&names[0], 0);
    let limit = embassy_time::Duration::from_secs(60);
    let connected = lan.run(embassy_time::with_timeout(limit, socket.connect()));
    assert_eq!(connected, Ok(Ok(())), "after {} ms", lan.now_ms());
    lan.idle(ms(10));
    assert_eq!((servers[0].clients(), lan.name_server.asked()), (1, 1));
}

#[test]
fn a_question_whose_resolve_is_dropped_is_asked_by_the_next_one() {
    let (_servers, mut lan) = lan::<1>();
    lan.name_server.answer_after(ms(100));
    let names: &'static [HostName; 1] = Box::leak(Box::new([HostName::new("redis-0.lan")]));
    let socket = lan.named_socket(&names[0], 0);
    let mut node = TcpNode::<_, _>::new(socket, EmbassyClock);
    let stack = lan.stack;
    let resolving = async {
        let limit = embassy_time::Duration::from_millis(50);
        let dropped = embassy_time::with_timeout(limit, resolve(stack, names)).await;
        assert!(dropped.is_err());
        resolve(stack, names).await
    };
    let connected = lan.run(select(node.connect(), resolving));
    assert!(
        matches!(connected, Either::First(Ok(()))),
        "the name is asked for again"
    );
}

#[test]
fn an_address_that_accepts_and_ends_each_connection_does_not_hide_the_next() {
    let (servers, mut lan) = lan::<1>();
    lan.name_server.answer_with(&[HOST, NOBODY, HOST]);
    servers[0].hang(usize::MAX);
    let mut lock = named_lock::<1>(&mut lan, options());
    assert_eq!(wins(&mut lan, &mut lock, 6), 0);
    // It had accepted a connection, and said nothing.
    assert_eq!(servers[0].connections(), 1);
    servers[0].cut();
    servers[0].resume();
    assert!(wins(&mut lan, &mut lock, 16) > 0);
    assert_eq!((servers[0].connections(), lan.name_server.asked()), (2, 1));
}

/// As a host with two interfaces, of which the first is down.
#[test]
fn a_new_connection_begins_with_the_address_that_answered_last() {
    for (is_connected_first, expected) in [(false, "--++++++++"), (true, "++++++++++")] {
        let (_servers, mut lan) = lan::<1>();
        lan.cable.delay(ms(5));
        lan.name_server.answer_with(&[NOBODY, HOST]);
        let [name] = lan.resolve::<1>();
        let socket = lan.named_socket(name, 0).close_when_idle(ms(5_000));
        let nodes = [TcpNode::<_, _>::new(socket, EmbassyClock)];
        let entropy = SeededEntropy::new(1);
        let mut lock = Redlock::<_, _, _, 1>::new(nodes, EmbassyClock, entropy, options()).unwrap();
        let mut results = String::new();
        for _ in expected.chars() {
            if is_connected_first {
                lan.run(connect_quorum(&mut lock));
            }
            if let Ok(lease) = lan.run(lock.try_acquire("dock-7")) {
                results.push('+');
                lan.run(lock.release(lease));
            } else {
                results.push('-');
            }
            lan.idle(ms(61_000));
        }
        assert_eq!(results, expected, "connected first: {is_connected_first}");
    }
}

/// smoltcp asks for one address a second. As long as a socket waits for one that no host has, others may never have their turn.
#[test]
fn a_lock_that_is_closed_while_it_looks_for_a_host_keeps_no_other_from_its_nodes() {
    for is_named in [false, true] {
        for phase in [0, 300, 700] {
            let (_servers, mut lan) = lan::<1>();
            let [name, other_name] = lan.resolve::<2>();
            let sockets = match is_named {
                true => [lan.named_socket(name, 0), lan.named_socket(other_name, 0)],
                false => [lan.socket(0), lan.socket_of_nobody()],
            };
            let [mut lock, mut closed] = sockets.map(|socket| {
                let nodes = [TcpNode::<_, _>::new(socket, EmbassyClock)];
                let entropy = SeededEntropy::new(1);
                let options = options().wait(ms(60_000));
                Redlock::<_, _, _, 1>::new(nodes, EmbassyClock, entropy, options).unwrap()
            });
            lan.name_server.answer_with(&[NOBODY]);
            for _ in 0..8 {
                lan.run(closed.try_acquire("crane")).unwrap_err();
            }
            lan.name_server.answer_with(&[HOST]);
            lan.run(close_all(&mut closed));
            // The stack forgets all addresses.
            lan.idle(ms(61_000 + phase));
            let start = lan.now_ms();
            let lease = lan.run(lock.acquire("dock-7")).unwrap();
            let took = lan.now_ms() - start;
            lan.run(lock.release(lease));
            assert!(
                took < 1_000,
                "named: {is_named}, {phase} ms apart: {took} ms"
            );
        }
    }
}

#[test]
fn an_address_that_answers_and_is_no_node_does_not_hide_the_first_one() {
    let (servers, mut lan) = lan_of_hosts::<2>();
    lan.name_server.answer_with(&[neighbor(0), neighbor(1)]);
    servers[1].introduce_with(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let mut lock = named_lock::<1>(&mut lan, options());
    let _connecting = wins(&mut lan, &mut lock, 6);
    assert_eq!(wins(&mut lan, &mut lock, 4), 4);
    servers[0].hang(usize::MAX);
    servers[0].cut();
    assert_eq!(wins(&mut lan, &mut lock, 16), 0);
    assert!(servers[1].connections() > 0);
    servers[0].resume();
    servers[0].cut();
    assert!(wins(&mut lan, &mut lock, 20) >= 10);
}

#[test]
fn an_address_that_answers_and_is_no_node_does_not_hide_the_next_one() {
    let (servers, mut lan) = lan_of_hosts::<2>();
    lan.name_server.answer_with(&[neighbor(0), neighbor(1)]);
    servers[0].introduce_with(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let mut lock = named_lock::<1>(&mut lan, options());
    let _connecting = wins(&mut lan, &mut lock, 6);
    assert_eq!(wins(&mut lan, &mut lock, 4), 4);
    // A new connection does not begin with the wrong one.
    let connections = servers[0].connections();
    servers[1].cut();
    lan.idle(ms(100));
    assert_eq!(wins(&mut lan, &mut lock, 4), 4);
    assert_eq!(servers[0].connections(), connections);
}

/// As a login that is not pipelined: what is at the first address takes the password, and has no such database.
#[test]
fn an_address_that_refuses_a_later_step_of_the_login_does_not_hide_the_next_one() {
    let (servers, mut lan) = lan_of_hosts::<2>();
    lan.name_server.answer_with(&[neighbor(0), neighbor(1)]);
    let [name] = lan.resolve::<1>();
    let mut socket = lan.named_socket(name, 0);
    let log_in = async |socket: &mut NetSocket<'_>| {
        socket.connect().await.unwrap();
        let mut answer = [0; 64];
        for step in [
            &b"*2\r\n$6\r\nSELECT\r\n$1\r\n3\r\n"[..],
            b"*2\r\n$6\r\nSELECT\r\n$2\r\n99\r\n",
        ] {
            socket.write_all(step).await.unwrap();
            let _count = socket.read(&mut answer).await.unwrap();
        }
    };
    let connections = || servers.each_ref().map(|server| server.connections());
    for expected in [[1, 0], [1, 1], [2, 1]] {
        lan.run(log_in(&mut socket));
        assert_eq!(connections(), expected);
        lan.run(socket.close());
    }
    // The second one accepts a login. From then on, each connection begins with it.
    lan.run(log_in(&mut socket));
    socket.logged_in();
    lan.run(socket.close());
    for expected in [[2, 3], [3, 3], [3, 4]] {
        lan.run(log_in(&mut socket));
        assert_eq!(connections(), expected);
        lan.run(socket.close());
    }
}

/// As over TLS, where the handshake did not fit into what the question had left of the connect timeout.
#[test]
fn an_address_that_accepted_after_a_slow_question_is_tried_again_without_one() {
    let (servers, mut lan) = lan::<1>();
    lan.name_server.answer_with(&[HOST]);
    let [name] = lan.resolve::<1>();
    let mut socket = lan.named_socket(name, 0);
    lan.run(socket.connect()).unwrap();
    socket.logged_in();
    lan.run(socket.close());
    lan.name_server.answer_after(ms(2_200));
    let mut attempt = || {
        lan.run(socket.connect()).unwrap();
        lan.idle(ms(700));
        lan.run(socket.close());
        (servers[0].connections(), lan.name_server.asked())
    };
    let (connections, asked) = attempt();
    assert_eq!(attempt(), (connections + 1, asked));
}

#[test]
fn a_new_connection_does_not_begin_with_the_address_after_the_one_that_answered() {
    let (servers, mut lan) = lan::<1>();
    lan.name_server.answer_with(&[HOST, NOBODY]);
    let mut lock = named_lock::<1>(&mut lan, options());
    for connection in 1..4 {
        assert_eq!(wins(&mut lan, &mut lock, 4), 4);
        assert_eq!(servers[0].connections(), connection);
        assert_eq!(lan.name_server.asked(), connection);
        servers[0].cut();
        lan.idle(ms(100));
    }
}

#[test]
fn while_the_name_server_is_down_the_known_address_is_used() {
    let (servers, mut lan) = lan::<3>();
    let mut lock = named_lock::<3>(&mut lan, options());
    assert_eq!(wins(&mut lan, &mut lock, 1), 1);
    for silent in [true, false] {
        lan.name_server
            .answer_by(move |_, question| (!silent).then(|| reply(question, &[])));
        servers.iter().for_each(|server| server.cut());
        lan.idle(ms(100));
        let wins = wins(&mut lan, &mut lock, 16);
        assert!(wins >= 7, "{wins}, silent: {silent}");
    }
}

#[test]
fn while_the_name_server_is_down_the_address_that_answered_last_is_used_first() {
    let (servers, mut lan) = lan::<1>();
    lan.name_server.answer_with(&[NOBODY, HOST]);
    let mut lock = named_lock::<1>(&mut lan, options());
    let _connecting = wins(&mut lan, &mut lock, 8);
    lan.name_server.answer_by(|_, _| None);
    servers[0].cut();
    // Of these seconds, the question takes three.
    let wins = wins(&mut lan, &mut lock, 16);
    assert!(wins >= 7, "{wins}");
}

#[test]
fn a_name_without_an_address_is_an_error_that_says_so() {
    let no_address =
        "redis-0.lan:6379 (no address yet): the name has no address: is it right, and is DNS up?";
    let (_, mut lan) = lan::<3>();
    let mut lock = named_lock::<3>(&mut lan, options());
    lan.name_server.answer_with(&[]);
    let first = error(&mut lan, &mut lock);
    assert!(first.contains(no_address), "{first}");
    // Addresses that no node can have.
    let lies = [[0, 0, 0, 0], [255, 255, 255, 255], [224, 0, 0, 1]].map(Ipv4Address::from);
    lan.name_server.answer_with(&lies);
    lan.idle(ms(2_000));
    let second = error(&mut lan, &mut lock);
    assert!(second.contains(no_address), "{second}");
    // "No such name."
    lan.name_server.answer_by(|_, question| {
        let mut reply = reply(question, &[]);
        reply[3] |= 3;
        Some(reply)
    });
    lan.idle(ms(2_000));
    let third = error(&mut lan, &mut lock);
    assert!(third.contains(no_address), "{third}");
    // And when the name server is right again, the lock is acquired.
    lan.name_server.answer_with(&[HOST]);
    assert!(wins(&mut lan, &mut lock, 8) >= 4);
}

#[test]
fn a_name_server_that_never_answers_blocks_nothing() {
    let (servers, mut lan) = lan::<3>();
    // Two nodes by their addresses, one by its name.
    lan.name_server.answer_by(|_, _| None);
    let [name] = lan.resolve::<1>();
    let sockets = [lan.socket(1), lan.socket(2), lan.named_socket(name, 0)];
    let nodes = sockets.map(|socket| TcpNode::<_, _>::new(socket, EmbassyClock));
    let entropy = SeededEntropy::new(1);
    let mut lock = Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, entropy, one_round()).unwrap();
    assert!(lan.run(connect_quorum(&mut lock)));
    for _ in 0..40 {
        let begun_at = lan.now_ms();
        let lease = lan.run(lock.try_acquire("dock-7")).unwrap();
        assert!(lan.now_ms() - begun_at < 50);
        lan.run(lock.release(lease));
        lan.idle(ms(500));
    }
    let error = lan.run(lock.nodes_mut().nth(2).unwrap().connect());
    assert_eq!(
        error.unwrap_err().to_string(),
        "redis-0.lan:6379 (no address yet): no connection within 3000 ms"
    );
    lan.name_server.answer_with(&[HOST]);
    lan.idle(ms(10_000));
    let node = lock.nodes_mut().nth(2).unwrap();
    assert!(lan.run(node.connect()).is_ok());
    lan.run(close_all(&mut lock));
    lan.idle(ms(100));
    assert_eq!(servers[0].clients(), 0);
}

#[test]
fn garbage_from_a_name_server_is_no_answer_and_harms_nothing() {
    for seed in 0..12 {
        let (_, mut lan) = lan::<1>();
        let mut random = SeededEntropy::new(seed);
        // From noise to an answer in which a few bytes are wrong.
        lan.name_server.answer_by(move |_, question| {
            let mut dice = [0; 4];
            random.fill(&mut dice);
            let mut answer = reply(question, &[NOBODY, NOBODY]);
            let wrong = usize::from(dice[0] % 6);
            for _ in 0..wrong {
                random.fill(&mut dice);
                // The number of the question stays, mostly: without it, nothing is read.
                let at = 2 + usize::from(dice[1]) % (answer.len() - 2);
                answer[at] = [dice[2], 0xc0, 0xff, 0][usize::from(dice[3] % 4)];
            }
            answer.truncate(answer.len() - usize::from(dice[0] / 64) * 7);
            if wrong == 5 {
                random.fill(&mut answer[2..]);
            }
            Some(answer)
        });
        let mut lock = named_lock::<1>(&mut lan, options());
        assert_eq!(wins(&mut lan, &mut lock, 10), 0);
        lan.name_server.answer_with(&[HOST]);
        // A question that got no answer is given up after ten seconds, and an address without a host after three.
        lan.idle(ms(12_000));
        assert!(wins(&mut lan, &mut lock, 40) > 0, "{seed}");
    }
}

#[test]
fn who_resolves_names_itself_sets_the_address_of_a_socket() {
    let (servers, mut lan) = lan::<1>();
    let mut lock = lan.lock::<1>(options());
    assert_eq!(wins(&mut lan, &mut lock, 1), 1);
    lan.move_host();
    let node = lock.nodes_mut().next().unwrap();
    node.stream_mut().set_remote((MOVED_HOST, 6_379));
    lan.run(close_all(&mut lock));
    // The stack asks for one address a second, and has asked for the old one.
    assert!(wins(&mut lan, &mut lock, 6) >= 3);
    assert_eq!(servers[0].connections(), 2);
}

#[test]
fn a_name_that_is_an_address_needs_no_name_server() {
    let (_, mut lan) = lan::<1>();
    let name = lan.resolve_these(Box::leak(Box::new([HostName::new("10.0.0.1")])));
    let node = TcpNode::<_, _>::new(lan.named_socket(&name[0], 0), EmbassyClock);
    let entropy = SeededEntropy::new(1);
    let mut lock = Redlock::<_, _, _, 1>::new([node], EmbassyClock, entropy, options()).unwrap();
    assert_eq!(wins(&mut lan, &mut lock, 2), 2);
    assert_eq!(lan.name_server.asked(), 0);
}

/// A lock over three servers on hosts of their own, by name.
fn lock_of_hosts(lan: &mut Lan) -> LanLock<3> {
    let nodes = lan.resolve::<3>().each_ref().map(|name| {
        let [receive, send] = [128, 1_024].map(|len| vec![0; len].leak());
        let socket = NetSocket::named(lan.stack, name, 6379, receive, send);
        TcpNode::new(socket, EmbassyClock)
    });
    Redlock::new(nodes, EmbassyClock, SeededEntropy::new(1), options()).unwrap()
}

/// Has the name server lead the names of the three nodes to these hosts.
fn lead(lan: &Lan, hosts: [Ipv4Address; 3]) {
    lan.name_server.answer_by(move |name, question| {
        let number = ["redis-0.lan", "redis-1.lan", "redis-2.lan"]
            .iter()
            .position(|known| *known == name);
        Some(reply(question, &[hosts[number.unwrap()]]))
    });
}

const REPLICA: Who = Who {
    is_master: false,
    run_id: 9,
    ..Who::MASTER
};

/// Tries for as long as a device needs to find the names again, and to wait for a server that was not known by this name.
const FOUND_AGAIN: usize = 2 * 20;

#[test]
fn names_that_led_to_one_server_for_a_while_are_asked_for_again() {
    for first in [
        [neighbor(1), neighbor(1), neighbor(1)],
        // The other one is down.
        [neighbor(1), neighbor(1), NOBODY],
    ] {
        let (servers, mut lan) = lan_of_hosts::<3>();
        let mut lock = lock_of_hosts(&mut lan);
        lead(&lan, first);
        assert_eq!(wins(&mut lan, &mut lock, 4), 0);
        let told = error(&mut lan, &mut lock);
        assert!(told.contains("the same server as"), "{told}");
        lead(&lan, [neighbor(0), neighbor(1), first[2]]);
        assert!(wins(&mut lan, &mut lock, FOUND_AGAIN) > 0);
        assert_eq!(wins(&mut lan, &mut lock, 20), 20);
        let connections = servers[1].connections();
        // Two names of one server that stay so cost a connection only every three seconds.
        assert!(connections <= 20, "{connections}");
    }
}

/// The key is what a lost release has left, for example.
#[test]
fn names_that_led_to_one_server_are_asked_for_again_also_if_another_server_refuses() {
    let (_, mut lan) = lan_of_hosts::<3>();
    let mut lock = lock_of_hosts(&mut lan);
    lead(&lan, [neighbor(0), neighbor(1), neighbor(1)]);
    assert!(wins(&mut lan, &mut lock, 6) > 0);
    let node: LanNode = TcpNode::new(lan.socket_of_neighbor(0), EmbassyClock);
    let options = Options::new(ms(3_600_000)).unwrap();
    let mut other: LanLock<1> =
        Redlock::new([node], EmbassyClock, SeededEntropy::new(2), options).unwrap();
    let _kept = lan.run(other.acquire("dock-7")).unwrap();
    lead(&lan, [neighbor(0), neighbor(1), neighbor(2)]);
    assert!(wins(&mut lan, &mut lock, FOUND_AGAIN) > 0);
    assert_eq!(wins(&mut lan, &mut lock, 20), 20);
}

#[test]
fn a_name_that_led_to_a_replica_is_asked_for_again() {
    let (servers, mut lan) = lan_of_hosts::<3>();
    let mut lock = lock_of_hosts(&mut lan);
    servers[2].introduce(REPLICA);
    lead(&lan, [neighbor(2), neighbor(1), NOBODY]);
    assert_eq!(wins(&mut lan, &mut lock, 4), 0);
    let told = error(&mut lan, &mut lock);
    assert!(told.contains("replica"), "{told}");
    lead(&lan, [neighbor(0), neighbor(1), NOBODY]);
    assert!(wins(&mut lan, &mut lock, FOUND_AGAIN) > 0);
    assert_eq!(wins(&mut lan, &mut lock, 20), 20);
}

/// It answers an extension of a key that it lacks without a word about its role.
#[test]
fn a_name_that_led_to_a_replica_is_asked_for_again_also_if_only_extensions_are_sent() {
    let (servers, mut lan) = lan_of_hosts::<3>();
    let mut lock = lock_of_hosts(&mut lan);
    lead(&lan, [neighbor(0), neighbor(1), NOBODY]);
    assert!(wins(&mut lan, &mut lock, 4) > 0);
    let mut lease = lan.run(lock.try_acquire("dock-7")).unwrap();
    servers[2].introduce(REPLICA);
    lead(&lan, [neighbor(2), neighbor(1), NOBODY]);
    servers[0].cut();
    lan.idle(ms(100));
    assert!(lan.run(lock.extend(&mut lease)).is_err());
    lead(&lan, [neighbor(0), neighbor(1), NOBODY]);
    let mut tries = 0;
    while lan.run(lock.extend(&mut lease)).is_err() {
        lan.idle(ms(500));
        tries += 1;
        assert!(tries < 14, "within the lease");
    }
}
