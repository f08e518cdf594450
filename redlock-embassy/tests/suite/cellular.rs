//! A device behind a modem: round trips of 300 ms, and a radio that takes 2 s to wake up, between real stacks.

use core::time::Duration;
use std::rc::Rc;

use embassy_futures::select::select;
use embassy_time::Timer;
use redlock_core::Clock;
use redlock_core::mock::SeededEntropy;
#[cfg(feature = "fence")]
use redlock_embassy::Fencing;
use redlock_embassy::{EmbassyClock, NetSocket, Options, Redlock, TcpNode, connect_quorum};

use crate::lan::{Lan, LanLock, lan};
use crate::wire::Server;
use crate::world::*;

const ROUND_TRIP: Duration = ms(300);
const WAKE_UP: Duration = ms(2_000);
/// The radio sleeps when it has been idle for this long.
const AWAKE: Duration = ms(10_000);

const NODES: usize = 3;

/// The longest round trip, from which the README derives the other sizes.
const LONGEST: Duration = ms(2_300);

/// The TTL of the README: 30 node timeouts.
const TTL: Duration = Duration::from_millis(30 * 3 * 2_300);

fn cellular() -> (&'static [Server<'static>; NODES], Lan) {
    let (servers, lan) = lan();
    lan.cable.delay(ROUND_TRIP / 2);
    lan.cable.sleep_after(AWAKE, WAKE_UP);
    (servers, lan)
}

/// The sizes of the README for [`LONGEST`], and the defaults for the rest.
fn sized() -> Options {
    let options = Options::new(TTL).unwrap();
    let options = options.node_timeout(3 * LONGEST).unwrap();
    options.retry_delay(LONGEST, 2 * LONGEST).unwrap()
}

fn lock(
    lan: &Lan,
    options: Options,
    set_up: impl Fn(NetSocket<'static>) -> NetSocket<'static>,
) -> LanLock<NODES> {
    let nodes = [0, 1, 2].map(|number| {
        let socket = set_up(lan.socket_with_tx::<1_024>(number));
        TcpNode::new(socket, EmbassyClock)
            .connect_timeout(5 * LONGEST)
            .patience(6 * LONGEST)
    });
    Redlock::new(nodes, EmbassyClock, SeededEntropy::new(1), options).unwrap()
}

fn quiet(socket: NetSocket<'static>) -> NetSocket<'static> {
    socket.keep_alive(None).idle_max(None)
}

#[test]
fn acquire_wins_with_the_sizes_of_the_readme_whatever_sleeps_and_not_with_the_default_node_timeout()
{
    let one_attempt = sized().wait(Duration::ZERO);
    let too_short = Options::new(TTL).unwrap().wait(Duration::ZERO);
    for (options, wins) in [(one_attempt, true), (too_short, false)] {
        let (servers, mut lan) = cellular();
        let mut lock = lock(&lan, options, quiet);
        assert!(lan.run(connect_quorum(&mut lock)));
        for _ in 0..5 {
            lan.idle(ms(60_000));
            let result = lan.run(lock.try_acquire("dock-7"));
            assert_eq!(result.is_ok(), wins, "{result:?}");
            if let Ok(lease) = result {
                let validity = lease.remaining(EmbassyClock.now());
                assert!(validity > TTL * 9 / 10, "{validity:?}");
                lan.run(lock.release(lease));
            }
        }
        for server in servers {
            assert!(server.connections() <= 1 && server.clients() <= 1);
        }
    }
}

/// The question for the address, the handshake, the login and the command.
#[test]
fn acquire_by_itself_wins_in_the_round_that_connects_if_it_lasts_four_round_trips_and_the_wake_up()
{
    let four_and_wake_up = |round_trip, wake_up| 4 * round_trip + wake_up;
    let three_longest = |round_trip, wake_up| 3 * (round_trip + wake_up);
    for (round_trip, wake_up, wins_with_three_longest) in [
        (ms(600), ms(0), false),
        (ms(600), ms(200), false),
        (ms(600), ms(300), true),
        (ROUND_TRIP, WAKE_UP, true),
    ] {
        for (node_timeout, wins) in [
            (four_and_wake_up(round_trip, wake_up), true),
            (three_longest(round_trip, wake_up), wins_with_three_longest),
        ] {
            let (_, mut lan) = lan::<NODES>();
            lan.cable.delay(round_trip / 2);
            lan.cable.sleep_after(AWAKE, wake_up);
            lan.idle(ms(60_000));
            let begun_at = lan.now_ms();
            let options = Options::new(30 * node_timeout).unwrap();
            let options = options.node_timeout(node_timeout).unwrap();
            let mut lock = lock(&lan, options.wait(Duration::ZERO), quiet);
            let result = lan.run(lock.acquire("dock-7"));
            assert_eq!(result.is_ok(), wins, "{node_timeout:?}: {result:?}");
            let taken = Duration::from_millis(lan.now_ms() - begun_at);
            assert!(taken <= four_and_wake_up(round_trip, wake_up), "{taken:?}");
        }
    }
}

#[test]
fn a_lease_is_extended_over_a_radio_that_sleeps_between_the_extensions() {
    let (_, mut lan) = cellular();
    let mut lock = lock(&lan, sized(), quiet);
    // Two TTLs.
    let long = 2 * TTL;
    let worked = lan.run(lock.hold("dock-7", async |_lease| {
        EmbassyClock
            .sleep_until(EmbassyClock.now().saturating_add(long))
            .await;
    }));
    assert!(worked.is_ok(), "{worked:?}");
}

/// The bytes for each node, on a link with Ethernet frames, while the device does nothing for `time`.
fn idle_bytes(time: Duration, set_up: impl Fn(NetSocket<'static>) -> NetSocket<'static>) -> usize {
    let (servers, mut lan) = cellular();
    let mut lock = lock(&lan, sized(), set_up);
    let lease = lan.run(lock.acquire("dock-7")).unwrap();
    lan.run(lock.release(lease));
    lan.idle(ms(5_000));
    let bytes = lan.cable.bytes();
    lan.idle(time);
    let bytes = lan.cable.bytes() - bytes;
    let lease = lan.run(lock.acquire("dock-7")).unwrap();
    lan.run(lock.release(lease));
    for server in servers {
        assert_eq!(server.connections(), 1, "the same connection");
    }
    bytes / NODES
}

#[test]
#[expect(clippy::print_stdout, reason = "the README cites the figures")]
fn an_idle_day_costs_what_the_readme_says() {
    const HOUR: Duration = Duration::from_secs(3_600);

    let minutes = |minutes: u64| Some(Duration::from_secs(minutes * 60));
    let default = 24 * idle_bytes(HOUR, |socket| socket);
    let seldom = |socket: NetSocket<'static>| socket.keep_alive(minutes(10)).idle_max(minutes(30));
    let seldom = 4 * idle_bytes(6 * HOUR, seldom);
    let off = idle_bytes(24 * HOUR, quiet);
    println!(
        "a day, for each node: {default} bytes by default, {seldom} with long intervals, {off} without"
    );
    assert!((1_600_000..1_900_000).contains(&default), "{default}");
    // Almost half of it are questions for the address of the host, which a link without Ethernet frames does not have.
    assert!((24_000..30_000).contains(&seldom), "{seldom}");
    assert_eq!(off, 0);
}

/// Each attempt queues its acquire and its release on the dead connection.
#[test]
fn a_lock_that_was_granted_just_before_an_outage_is_released_after_it_however_often_the_device_has_tried()
 {
    let (servers, mut lan) = lan::<NODES>();
    lan.cable.delay(ms(15));
    let options = Options::new(ms(60_000)).unwrap();
    let mut lock = lock(&lan, options.node_timeout(ms(300)).unwrap(), quiet);
    assert!(lan.run(connect_quorum(&mut lock)));
    lan.idle(ms(500));
    let cable = Rc::clone(&lan.cable);
    let outage = async {
        // The nodes have the commands by then, and the device has no answer.
        Timer::after_millis(22).await;
        cable.pull();
        Timer::after_millis(8_000).await;
    };
    lan.run(select(lock.acquire("dock-7"), outage));
    assert!(servers.iter().all(|server| server.token(KEY).is_some()));
    lan.cable.plug_in();
    let begun_at = lan.now_ms();
    let lease = lan.run(lock.acquire("dock-7")).unwrap();
    let taken = lan.now_ms() - begun_at;
    assert!(taken < 10_000, "{taken} ms");
    lan.run(lock.release(lease));
}

/// A connection that closes when it is idle ends before all scripts are loaded, each time.
#[cfg(feature = "fence")]
#[test]
fn a_fenced_device_that_closes_idle_connections_loses_one_try_when_the_servers_lose_their_scripts()
{
    const ROUND_TRIP: Duration = ms(600);

    let (servers, mut lan) = lan::<NODES>();
    lan.cable.delay(ROUND_TRIP / 2);
    let fencing = Fencing::new(ms(1_000)).unwrap();
    let options = Options::new(ms(60_000)).unwrap().fenced(fencing).unwrap();
    let options = options.node_timeout(ms(2_000)).unwrap();
    let nodes = [0, 1, 2].map(|number| {
        let socket = lan.socket_with_tx::<1_024>(number);
        TcpNode::<_, _, 512>::new(socket.close_when_idle(ms(5_000)), EmbassyClock)
            .connect_timeout(ms(5_000))
            .patience(ms(10_000))
    });
    let mut lock =
        Redlock::<_, _, _, NODES>::new(nodes, EmbassyClock, SeededEntropy::new(1), options)
            .unwrap();
    let lease = lan.run(lock.acquire("dock-7")).unwrap();
    lan.run(lock.release(lease));
    for server in servers {
        server.scripts().flush();
    }
    let mut won = Vec::new();
    for _ in 0..4 {
        lan.idle(ms(60_000));
        assert!(lan.run(connect_quorum(&mut lock)));
        let acquired = lan.run(lock.try_acquire("dock-7"));
        won.push(acquired.is_ok());
        if let Ok(lease) = acquired {
            lan.run(lock.release(lease));
        }
    }
    assert_eq!(won, [false, true, true, true]);
}
