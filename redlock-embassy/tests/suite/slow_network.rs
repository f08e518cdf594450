//! Networks on which connecting takes longer than a round, between real stacks.

use core::time::Duration;

use embassy_net::tcp::client::{TcpClient, TcpClientState};
use embassy_time::Timer;
use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use redlock_core::mock::SeededEntropy;
#[cfg(feature = "queue")]
use redlock_core::transport::Mailbox;
use redlock_core::{Clock, Instant, Redlock};
use redlock_embassy::{
    Connect, EmbassyClock, NalSocket, NetSocket, NodeName, Options, TcpNode, close_all,
    connect_all, connect_quorum,
};

use crate::fleet::one_round;
use crate::lan::{lan, lan_of, lan_of_hosts};
use crate::world::*;

/// A lease of ten seconds, one attempt, and this node timeout.
fn rounds_of(node_timeout: Duration) -> Options {
    let options = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
    options.node_timeout(node_timeout).unwrap()
}

const ROUND_TRIP: Duration = ms(240);

#[test]
fn a_round_of_three_round_trips_wins_on_a_slow_network_and_a_shorter_one_says_what_to_change() {
    let default = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
    for (options, wins) in [(default, false), (rounds_of(3 * ROUND_TRIP), true)] {
        let (_, mut lan) = lan::<3>();
        lan.cable.delay(ROUND_TRIP / 2);
        let mut lock = lan.lock::<3>(options);
        let error = lan.run(lock.try_acquire("dock-7")).unwrap_err().to_string();
        assert!(error.contains("still connecting after"), "{error}");
        assert!(lan.run(connect_quorum(&mut lock)));
        for _ in 0..3 {
            match lan.run(lock.try_acquire("dock-7")) {
                Ok(lease) => {
                    assert!(wins);
                    let validity = lease.remaining(EmbassyClock.now());
                    assert!(validity > ms(9_000), "connecting costs no validity");
                    lan.run(lock.release(lease));
                }
                Err(error) => {
                    assert!(!wins);
                    let hint = "timed out after 100 ms; raise node_timeout if the network is slow";
                    assert!(error.to_string().contains(hint), "{error}");
                }
            }
            lan.idle(ms(1_000));
        }
    }
}

#[test]
fn a_radio_that_wakes_up_slowly_needs_rounds_that_are_longer_than_that() {
    for (node_timeout, wins) in [(ms(250), false), (ms(1_000), true)] {
        let (_, mut lan) = lan::<3>();
        lan.cable.delay(ms(5));
        lan.cable.sleep_after(ms(100), ms(300));
        let mut lock = lan.lock::<3>(rounds_of(node_timeout));
        assert!(lan.run(connect_quorum(&mut lock)));
        for _ in 0..3 {
            lan.idle(ms(2_000));
            let result = lan.run(lock.try_acquire("dock-7"));
            assert_eq!(result.is_ok(), wins, "{result:?}");
            if let Ok(lease) = result {
                lan.run(lock.release(lease));
            }
        }
    }
}

#[test]
fn a_quorum_is_waited_for_no_longer_than_it_takes_to_connect_and_all_nodes_for_as_long_as_the_slowest()
 {
    let (servers, mut lan) = lan::<3>();
    lan.cable.delay(ms(20));
    // No host has the address of the last node. The stack asks for one address a second, that of the first socket first.
    let nodes = [lan.socket(0), lan.socket(1), lan.socket_of_nobody()].map(|socket| {
        let node = TcpNode::<_, _>::new(socket, EmbassyClock);
        node.connect_timeout(ms(3_000))
    });
    let mut lock =
        Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, SeededEntropy::new(1), one_round())
            .unwrap();
    assert!(lan.run(connect_quorum(&mut lock)));
    let taken = lan.now_ms();
    assert!(taken < 1_000, "{taken} ms");
    assert!(lan.run(connect_quorum(&mut lock)), "at once");
    assert_eq!(lan.now_ms(), taken);
    assert_eq!(lan.run(connect_all(&mut lock)), 2);
    let taken = lan.now_ms();
    assert!((3_000..4_000).contains(&taken), "{taken} ms");
    lan.run(close_all(&mut lock));
    lan.idle(ms(100));
    for server in &servers[..2] {
        assert_eq!((server.connections(), server.clients()), (1, 0));
    }
    lan.cable.pull();
    assert!(!lan.run(connect_quorum(&mut lock)), "it has an end");
}

#[test]
fn a_lock_that_has_only_references_to_its_nodes_connects_and_closes_them() {
    let (servers, mut lan) = lan::<3>();
    let mut nodes = [0, 1, 2].map(|node| TcpNode::<_, _>::new(lan.socket(node), EmbassyClock));
    let mut lock =
        Redlock::<_, _, _, 3>::new(&mut nodes, EmbassyClock, SeededEntropy::new(1), one_round())
            .unwrap();
    assert_eq!(lan.run(connect_all(&mut lock)), 3);
    assert!(lan.run(lock.try_acquire("dock-7")).is_ok());
    lan.run(close_all(&mut lock));
    lan.idle(ms(100));
    for server in servers {
        assert_eq!((server.connections(), server.clients()), (1, 0));
    }
}

/// How long a name server takes to answer.
const NAME_SERVER: Duration = ms(400);

/// A stream that first asks a name server for its address.
struct Named {
    socket: NetSocket<'static>,
    /// If the call is dropped, whether the next one waits for the same answer.
    continues: bool,
    answered_at: Option<Instant>,
    is_resolved: bool,
}

impl Connect for Named {
    fn name(&self) -> NodeName {
        self.socket.name()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        if !self.is_resolved || !self.continues {
            let asked_now = EmbassyClock.now().saturating_add(NAME_SERVER);
            let answered_at = match self.answered_at.filter(|_| self.continues) {
                Some(answered_at) => answered_at,
                None => *self.answered_at.insert(asked_now),
            };
            let at = embassy_time::Instant::from_micros(answered_at.as_micros());
            Timer::at(at).await;
            self.is_resolved = true;
        }
        let connected = self.socket.connect().await;
        (self.is_resolved, self.answered_at) = (false, None);
        connected
    }

    fn logged_in(&mut self) {
        self.socket.logged_in();
    }

    async fn close(&mut self) {
        (self.is_resolved, self.answered_at) = (false, None);
        self.socket.close().await;
    }
}

impl ErrorType for Named {
    type Error = embassy_net::tcp::Error;
}

impl Read for Named {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Self::Error> {
        self.socket.read(buffer).await
    }
}

impl Write for Named {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, Self::Error> {
        self.socket.write(bytes).await
    }

    async fn flush(&mut self) -> Result<(), Self::Error> {
        self.socket.flush().await
    }
}

/// Acquires the lock in rounds of 250 ms, twice a second for half a minute. Two of five servers restart at the beginning.
/// Returns how many acquires succeed, and how many servers have a client in the end.
fn after_a_restart(continues: bool, connects_all: bool) -> (u64, usize) {
    let (servers, mut lan) = lan::<5>();
    lan.cable.delay(ms(5));
    let nodes = [0, 1, 2, 3, 4].map(|number| {
        let socket = Named {
            socket: lan.socket(number),
            continues,
            answered_at: None,
            is_resolved: false,
        };
        TcpNode::<_, _>::new(socket, EmbassyClock)
    });
    let options = rounds_of(ms(250));
    let mut lock =
        Redlock::<_, _, _, 5>::new(nodes, EmbassyClock, SeededEntropy::new(1), options).unwrap();
    assert!(lan.run(connect_quorum(&mut lock)));
    let _connected = lan.run(connect_all(&mut lock));
    servers[0].cut();
    servers[1].cut();
    lan.idle(ms(100));
    let mut won = 0;
    for number in 0..60 {
        if connects_all && number % 10 == 5 {
            let _connected = lan.run(connect_all(&mut lock));
        }
        if let Ok(lease) = lan.run(lock.try_acquire("dock-7")) {
            won += 1;
            lan.run(lock.release(lease));
        }
        lan.idle(ms(500));
    }
    let clients = servers.iter().filter(|server| server.clients() == 1);
    (won, clients.count())
}

#[test]
fn a_stream_that_continues_a_dropped_connect_is_back_by_itself_after_a_restart() {
    assert_eq!(after_a_restart(true, false), (60, 5));
}

#[test]
fn a_stream_that_begins_each_connect_anew_is_back_only_when_all_nodes_are_waited_for() {
    assert_eq!(after_a_restart(false, false), (60, 3));
    assert_eq!(after_a_restart(false, true), (60, 5));
}

#[test]
fn a_connection_of_another_stack_needs_no_round_that_is_long_enough_if_all_nodes_are_waited_for() {
    for connects_all in [false, true] {
        let (_, mut lan) = lan::<3>();
        lan.cable.delay(ms(5));
        lan.cable.accept_after(ms(300));
        let state = Box::leak(Box::new(TcpClientState::<3, 1_024, 256>::new()));
        let client = &*Box::leak(Box::new(TcpClient::new(lan.stack, state)));
        let nodes = [0, 1, 2].map(|number| {
            let socket = NalSocket::new(client, lan.address_of(number));
            TcpNode::<_, _>::new(socket, EmbassyClock)
        });
        let entropy = SeededEntropy::new(1);
        let options = rounds_of(ms(250));
        let mut lock = Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, entropy, options).unwrap();
        if connects_all {
            assert_eq!(lan.run(connect_all(&mut lock)), 3);
        }
        for _ in 0..20 {
            let result = lan.run(lock.try_acquire("dock-7"));
            assert_eq!(result.is_ok(), connects_all, "{result:?}");
            if let Ok(lease) = result {
                lan.run(lock.release(lease));
            }
            lan.idle(ms(500));
        }
    }
}

/// smoltcp asks for one address a second, for the first socket that waits. If this test fails because the lock is acquired,
/// the README can be shortened.
#[test]
fn a_node_without_a_host_keeps_the_stack_from_finding_nodes_that_come_after_it() {
    for (comes_first, prefix, is_found) in [(true, 24, false), (false, 24, true), (true, 30, true)]
    {
        let (_, mut lan) = lan_of::<2>(prefix);
        // Sockets wait in the order in which they were created.
        let sockets = if comes_first {
            [lan.socket_of_nobody(), lan.socket(0), lan.socket(1)]
        } else {
            [lan.socket(0), lan.socket(1), lan.socket_of_nobody()]
        };
        let nodes = sockets.map(|socket| TcpNode::<_, _>::new(socket, EmbassyClock));
        let entropy = SeededEntropy::new(1);
        let options = one_round().wait(ms(20_000));
        let mut lock = Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, entropy, options).unwrap();
        assert_eq!(lan.run(lock.acquire("dock-7")).is_ok(), is_found);
    }
}

/// smoltcp forgets an address after a minute without a packet from it, and asks for one address a second. If this test fails because
/// the lock is acquired without probes, the README can be shortened.
#[test]
fn try_acquire_wins_over_hosts_in_the_own_subnet_after_two_minutes_if_they_are_probed_each_30_s() {
    for (keep_alive, wins) in [(Some(ms(30_000)), true), (None, false)] {
        let (_, mut lan) = lan_of_hosts::<3>();
        let sockets = [0, 1, 2].map(|number| lan.socket_of_neighbor(number));
        let nodes = sockets.map(|socket| {
            let socket = socket.keep_alive(keep_alive);
            TcpNode::<_, _>::new(
                socket.idle_max(keep_alive.map(|time| 3 * time)),
                EmbassyClock,
            )
        });
        let entropy = SeededEntropy::new(1);
        let options = Options::new(ms(10_000)).unwrap();
        let mut lock = Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, entropy, options).unwrap();
        assert_eq!(lan.run(connect_all(&mut lock)), 3);
        for _ in 0..6 {
            lan.idle(ms(120_000));
            // All connections are open.
            let begun_at = lan.now_ms();
            assert!(lan.run(connect_quorum(&mut lock)));
            assert_eq!(lan.now_ms(), begun_at);
            let tried = lan.run(lock.try_acquire("dock-7"));
            assert_eq!(tried.is_ok(), wins, "{keep_alive:?}: {tried:?}");
            // With the default wait.
            let lease = match tried {
                Ok(lease) => lease,
                Err(_) => lan.run(lock.acquire("dock-7")).unwrap(),
            };
            assert!(lan.now_ms() - begun_at < 2_000);
            lan.run(lock.release(lease));
        }
    }
}

/// Rounds of the default time, over the buffers of the README: a round ends in the middle of the login. After more than a minute, a
/// round takes two round trips.
#[test]
fn a_device_that_calls_less_often_than_the_connect_timeout_gets_the_lock() {
    for (pause, delay) in [(3_500, 15), (61_000, 8)] {
        let (servers, mut lan) = lan::<3>();
        lan.cable.delay(ms(delay));
        let options = Options::new(ms(10_000)).unwrap().wait(Duration::ZERO);
        let mut lock = lan.lock::<3>(options);
        let mut wins = 0;
        for _ in 0..12 {
            if let Ok(lease) = lan.run(lock.try_acquire("dock-7")) {
                wins += 1;
                lan.run(lock.release(lease));
            }
            lan.idle(ms(pause));
        }
        assert!(wins >= 4, "{wins} of 12, with pauses of {pause} ms");
        for server in servers {
            assert_eq!(server.connections(), 1);
        }
    }
}

#[test]
fn after_a_minute_a_round_of_less_than_two_round_trips_is_too_short_and_acquire_makes_another_one()
{
    let (_, mut lan) = lan::<3>();
    lan.cable.delay(ms(15));
    let options = Options::new(ms(10_000)).unwrap();
    let mut lock = lan.lock::<3>(options);
    let lease = lan.run(lock.acquire("dock-7")).unwrap();
    lan.run(lock.release(lease));
    for _ in 0..4 {
        lan.idle(ms(61_000));
        let tried = lan.run(lock.try_acquire("dock-7"));
        assert!(tried.is_err(), "{tried:?}");
        lan.idle(ms(61_000));
        let lease = lan.run(lock.acquire("dock-7")).unwrap();
        lan.run(lock.release(lease));
    }
}

/// The first round after a longer pause finds that the attempt of the one before has failed.
#[test]
fn a_device_that_started_without_a_network_connects_with_the_second_round_at_the_latest_and_acquire_makes_both()
 {
    for (pause, fails_first) in [(5_000, false), (20_000, true), (600_000, true)] {
        for waits in [false, true] {
            let (_, mut lan) = lan::<3>();
            let mut lock = lan.lock::<3>(rounds_of(ms(250)));
            lan.cable.pull();
            assert!(lan.run(lock.try_acquire("dock-7")).is_err());
            lan.idle(ms(pause));
            lan.cable.plug_in();
            lan.idle(ms(5_000));
            if waits {
                lock.set_options(lock.options().wait(ms(10_000)));
                assert!(lan.run(lock.acquire("dock-7")).is_ok());
            } else {
                let is_ok = lan.run(lock.try_acquire("dock-7")).is_ok();
                assert_eq!(is_ok, !fails_first, "after {pause} ms");
                assert!(is_ok || lan.run(lock.try_acquire("dock-7")).is_ok());
            }
        }
    }
}

/// Connecting takes longer than a round, and the stack closes a connection between two uses of the lock. So each use begins with what
/// is left of an attempt of the use before it.
#[test]
fn a_device_that_closes_idle_connections_gets_the_lock_again_after_an_outage_however_seldom_it_calls()
 {
    // Round trip, node timeout, connect timeout, the time of `close_when_idle`, and the pauses between two uses. The second pause is
    // shorter than the connect timeout.
    let cellular = (600, 2_000, 5_000, 5_000);
    let default = (60, 200, 3_000, 2_000);
    for ((round_trip, node_timeout, connect_timeout, idle), pause) in [
        (cellular, 600_000),
        (cellular, 10_000),
        (default, 600_000),
        (default, 2_500),
    ] {
        let (_, mut lan) = lan::<3>();
        lan.cable.delay(ms(round_trip / 2));
        let options = Options::new(ms(60_000)).unwrap().wait(Duration::ZERO);
        let options = options.node_timeout(ms(node_timeout)).unwrap();
        let nodes = [0, 1, 2].map(|number| {
            let socket = lan.socket(number).close_when_idle(ms(idle));
            TcpNode::<_, _>::new(socket, EmbassyClock).connect_timeout(ms(connect_timeout))
        });
        let entropy = SeededEntropy::new(1);
        let mut lock = Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, entropy, options).unwrap();
        for number in 0..10 {
            let is_down = (2..4).contains(&number);
            if is_down {
                lan.cable.pull();
            } else {
                lan.cable.plug_in();
            }
            let is_connected = lan.run(connect_quorum(&mut lock));
            let result = lan.run(lock.try_acquire("dock-7"));
            assert!(
                is_down || is_connected && result.is_ok(),
                "use {number}, pause {pause} ms: {is_connected}, {result:?}"
            );
            if let Ok(lease) = result {
                lan.run(lock.release(lease));
            }
            lan.idle(ms(pause));
        }
    }
}

/// A socket with a send buffer of 256 bytes takes a script of the line in seven pieces, of a round trip and a late acknowledgement
/// each.
#[cfg(feature = "queue")]
#[test]
fn the_first_release_of_a_client_with_a_mailbox_frees_the_lock_in_its_round_on_servers_without_scripts()
 {
    for one_way in [1, 3, 5] {
        let (servers, mut lan) = lan::<3>();
        lan.cable.delay(ms(one_way));
        let options = rounds_of(ms(100));
        let mailbox = Mailbox::new([9; 8]);
        let nodes = (0..3).map(|number| {
            let node = TcpNode::<_, _, 512>::new(lan.socket(number), EmbassyClock);
            node.with_mailbox(mailbox)
        });
        let mut lock: Redlock<_, _, _, 3> =
            Redlock::new(nodes, EmbassyClock, SeededEntropy::new(5), options).unwrap();
        assert!(lan.run(connect_quorum(&mut lock)));
        lan.idle(ms(1_000));
        for _ in 0..2 {
            // The second acquire loads the script, which may take longer than its round.
            let lease = loop {
                match lan.run(lock.try_acquire("dock-7")) {
                    Ok(lease) => break lease,
                    Err(_) => assert!(lan.run(connect_quorum(&mut lock))),
                }
            };
            let released = lan.run(lock.release(lease));
            let keys = servers.iter().filter(|server| server.token(KEY).is_some());
            assert!(keys.count() < 2, "{one_way} ms: {released:?}");
        }
    }
}
