//! A socket of embassy-net, between real stacks.

use core::time::Duration;

use embedded_io_async::ErrorKind;
use redlock_core::Transport;
use redlock_core::mock::SeededEntropy;
use redlock_embassy::{
    EmbassyClock, Failure, NetSocket, Options, Redlock, TcpNode, TransportError, close_all,
    connect_all,
};

use crate::fleet::one_round;
use crate::lan::{Lan, LanLock, lan};
use crate::world::*;

/// Calls `try_acquire` once a second. Returns how many of the calls succeeded.
fn acquire_once_a_second(lan: &mut Lan, calls: u64) -> u64 {
    let mut lock = lan.lock::<3>(one_round());
    let mut won = 0;
    for call in 1..=calls {
        if let Ok(lease) = lan.run(lock.try_acquire("dock-7")) {
            won += 1;
            lan.run(lock.release(lease));
        }
        lan.idle(ms((call * 1_000).saturating_sub(lan.now_ms())));
    }
    won
}

#[test]
fn a_connection_that_comes_about_between_two_calls_is_used() {
    let (servers, mut lan) = lan::<3>();
    lan.cable.delay(ms(5));
    lan.cable.accept_after(ms(70));
    let won = acquire_once_a_second(&mut lan, 12);
    assert!(won > 0);
    for server in servers {
        assert_eq!((server.connections(), server.clients()), (1, 1));
    }
    assert_eq!(lan.cable.opens(), 3, "one attempt for each node");
}

#[test]
fn a_refusal_that_arrives_between_two_calls_is_reported_by_the_next_call() {
    let (_, mut lan) = lan::<1>();
    lan.cable.accept_after(ms(70));
    // No server listens there.
    let mut node = lan.node(1);
    let timeout = embassy_time::Duration::from_millis(50);
    let acquire = acquire(A);
    let call = embassy_time::with_timeout(timeout, node.execute(&acquire));
    assert!(lan.run(call).is_err(), "no answer yet");
    lan.idle(ms(100));
    let error = lan.run(node.execute(&acquire)).unwrap_err();
    let refused = TransportError::Unreachable(ErrorKind::ConnectionReset);
    assert_eq!(*error.failure(), Failure::Transport(refused));
    assert_eq!(lan.cable.opens(), 1);
}

#[test]
fn closing_ends_an_attempt_to_connect_and_the_next_call_begins_another() {
    let (servers, mut lan) = lan::<1>();
    lan.cable.accept_after(ms(70));
    let mut node = lan.node(0);
    let timeout = embassy_time::Duration::from_millis(50);
    let call = embassy_time::with_timeout(timeout, node.connect());
    assert!(lan.run(call).is_err(), "still connecting");
    lan.run(node.close());
    assert_eq!(lan.run(node.connect()), Ok(()));
    lan.idle(ms(1_000));
    assert_eq!((lan.cable.opens(), servers[0].clients()), (2, 1));
}

#[test]
fn a_cable_that_is_pulled_costs_no_more_than_the_time_until_the_stack_sends_again() {
    for pulled_at in [0, 1, 3, 30, 300] {
        let (_, mut lan) = lan::<3>();
        let mut lock = lan.lock::<3>(one_round().wait(ms(30_000)));
        let lease = embassy_time::with_timeout(
            embassy_time::Duration::from_millis(pulled_at),
            lock.acquire("dock-7"),
        );
        // Wherever the acquire is, also in the middle of connecting.
        let lease = lan.run(lease);
        lan.cable.pull();
        if let Ok(lease) = lease {
            lan.run(lock.release(lease.unwrap()));
        }
        assert!(lan.run(lock.try_acquire("dock-7")).is_err());
        lan.idle(ms(5_000));
        lan.cable.plug_in();
        let back_at = lan.now_ms();
        let lease = lan.run(lock.acquire("dock-7")).unwrap();
        let after = lan.now_ms() - back_at;
        assert!(after < 12_000, "pulled at {pulled_at} ms: {after} ms");
        lan.run(lock.release(lease));
    }
}

#[test]
fn a_link_that_loses_frames_delays_the_lock_and_leaves_no_second_connection() {
    let (servers, mut lan) = lan::<3>();
    lan.cable.lose(5);
    let mut lock = lan.lock::<3>(one_round().wait(ms(60_000)));
    for _ in 0..20 {
        let lease = lan.run(lock.acquire("dock-7")).unwrap();
        lan.run(lock.release(lease));
    }
    for server in servers {
        assert!(server.clients() <= 1);
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

/// An acquire outlasts the first login.
fn patient() -> Options {
    one_round().wait(ms(5_000))
}

/// Acquires and releases the lock, and waits until every node has answered.
fn use_once<const N: usize>(lan: &mut Lan, lock: &mut LanLock<N>) {
    let lease = lan.run(lock.acquire("dock-7")).unwrap();
    lan.run(lock.release(lease));
    lan.idle(ms(500));
}

#[test]
fn idle_connections_are_probed_as_often_as_they_are_told() {
    // Five connections, each with so many probes and answers of 54 bytes in an hour.
    for (interval, probes) in [(5, 720), (60, 60), (600, 6)] {
        let (servers, mut lan) = lan::<5>();
        let interval = Duration::from_secs(interval);
        let mut lock = lan.lock_over::<5>(patient(), |socket| {
            let socket = socket.keep_alive(Some(interval));
            socket.idle_max(Some(interval * 3))
        });
        use_once(&mut lan, &mut lock);
        let (bytes, frames) = (lan.cable.bytes(), lan.cable.frames());
        lan.idle(HOUR);
        let (bytes, frames) = (lan.cable.bytes() - bytes, lan.cable.frames() - frames);
        let expected = 5 * probes * 2;
        // A round trip is added to each interval. Once a minute, the stacks ask for the address of the other side.
        let (least, most) = (expected - expected / 20 - 10, expected + 4 * 60);
        assert!(
            (least..most).contains(&frames) && bytes < 60 * most,
            "{interval:?}: {bytes} bytes in {frames} frames"
        );
        use_once(&mut lan, &mut lock);
        for server in servers {
            assert_eq!((server.connections(), server.clients()), (1, 1));
        }
    }
}

#[test]
fn without_probes_an_idle_connection_sends_nothing_and_is_used_again() {
    let (servers, mut lan) = lan::<3>();
    let set_up = |socket: NetSocket<'static>| socket.keep_alive(None).idle_max(None);
    let mut lock = lan.lock_over::<3>(patient(), set_up);
    use_once(&mut lan, &mut lock);
    let frames = lan.cable.frames();
    lan.idle(HOUR);
    assert_eq!(lan.cable.frames(), frames);
    use_once(&mut lan, &mut lock);
    for server in servers {
        assert_eq!((server.connections(), server.clients()), (1, 1));
    }
}

#[test]
fn connections_that_are_closed_when_idle_are_gone_after_each_use_and_come_back_by_themselves() {
    let (servers, mut lan) = lan::<3>();
    let set_up = |socket: NetSocket<'static>| socket.close_when_idle(ms(2_000));
    let mut lock = lan.lock_over::<3>(patient(), set_up);
    for connections in 1..4 {
        use_once(&mut lan, &mut lock);
        lan.idle(ms(2_000));
        for server in servers {
            assert_eq!((server.connections(), server.clients()), (connections, 0));
        }
        let frames = lan.cable.frames();
        lan.idle(HOUR);
        assert_eq!(lan.cable.frames(), frames);
    }
}

#[test]
fn the_intervals_of_a_socket_have_limits() {
    for interval in [Duration::ZERO, ms(1), Duration::MAX] {
        let (_, mut lan) = lan::<3>();
        let mut lock = lan.lock_over::<3>(patient(), |socket| {
            let socket = socket.keep_alive(Some(interval));
            socket.idle_max(Some(Duration::MAX))
        });
        use_once(&mut lan, &mut lock);
        let frames = lan.cable.frames();
        lan.idle(ms(60_000));
        assert!(lan.cable.frames() - frames <= 3 * 2 * 60);
        use_once(&mut lan, &mut lock);
    }
}

const ROUND_TRIP: u64 = 400;

/// How many round trips passed since the last call. Less than one goes to delayed acknowledgements.
fn round_trips(lan: &Lan, begun_at: &mut u64) -> u64 {
    let since = lan.now_ms() - *begun_at;
    *begun_at = lan.now_ms();
    since / ROUND_TRIP
}

/// How many round trips a client with a password and a database takes: to connect, to acquire, and to connect again.
fn round_trips_of_login<const TX: usize>(options: Options) -> [u64; 3] {
    let (servers, mut lan) = lan::<1>();
    servers[0].require("default", "wordword");
    lan.cable.delay(ms(ROUND_TRIP / 2));
    let socket = lan.socket_with_tx::<TX>(0);
    let node = TcpNode::<_, _, 512>::new(socket, EmbassyClock);
    let node = node.password("wordword").database(3);
    let entropy = SeededEntropy::new(1);
    let mut lock = Redlock::<_, _, _, 1>::new([node], EmbassyClock, entropy, options).unwrap();
    let mut begun_at = 0;
    assert_eq!(lan.run(connect_all(&mut lock)), 1);
    let first = round_trips(&lan, &mut begun_at);
    let lease = lan.run(lock.try_acquire("dock-7")).unwrap();
    let acquire = round_trips(&lan, &mut begun_at);
    lan.run(lock.release(lease));
    lan.run(close_all(&mut lock));
    let _release = round_trips(&lan, &mut begun_at);
    assert_eq!(lan.run(connect_all(&mut lock)), 1);
    [first, acquire, round_trips(&lan, &mut begun_at)]
}

#[test]
fn the_login_takes_one_round_trip_if_the_socket_has_room_for_it() {
    let options = Options::new(ms(60_000)).unwrap().wait(Duration::ZERO);
    let options = options.node_timeout(ms(20_000)).unwrap();
    // The address of the host, the handshake, and the login in as many pieces as the buffer needs.
    let waits = if cfg!(feature = "fence") { 0 } else { 2 };
    assert_eq!(
        round_trips_of_login::<256>(options),
        [waits + 5, 1, waits + 4]
    );
    assert_eq!(
        round_trips_of_login::<1_024>(options),
        [waits + 3, 1, waits + 2]
    );
}

#[cfg(feature = "fence")]
#[test]
fn a_fenced_client_loads_the_scripts_only_on_a_node_that_lacks_them() {
    let fencing = redlock_embassy::Fencing::new(ms(5_000)).unwrap();
    let options = Options::new(ms(60_000)).unwrap().wait(Duration::ZERO);
    let options = options.node_timeout(ms(20_000)).unwrap();
    let options = options.fenced(fencing).unwrap();
    // The first acquire takes a round more, because the client does not know the nodes' time.
    let [first_login, first_acquire, second_login] = round_trips_of_login::<1_024>(options);
    assert_eq!((first_login, second_login), (3, 2));
    assert!(first_acquire > 5, "{first_acquire}");
}
