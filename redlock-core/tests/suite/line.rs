//! Clients that wait for a lock stand in its line, and are called in turn.

use core::cell::{Cell, RefCell};
use core::pin::{Pin, pin};
use core::task::Poll;
use core::time::Duration;
use std::rc::Rc;

use embassy_futures::select::{Either, select};
use redlock_core::mock::{MockClient, MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::transport::{Call, Command, Mailbox, Place, Reply, RunId};
use redlock_core::{AcquireError, Clock, Entropy, NodeErrorOf, Options, Redlock, Token, Transport};

use crate::world::*;

type Client<'c> = MockClient<'c, &'c MockClock>;
type Queued<'c> = Redlock<Client<'c>, &'c MockClock, SeededEntropy, 5>;
/// The numbers of the clients, and when they got the lock.
type Served = RefCell<Vec<(u8, Duration)>>;
type Task<'t> = Pin<Box<dyn Future<Output = ()> + 't>>;

const COUNTS: &[usize] = unless_miri(&[1, 2, 3, 5], &[1]);
const ROUND_TRIP: Duration = ms(2);
/// 25 ms and two node timeouts.
const TURN: Duration = ms(125);
/// A ticket is no older than that, in microseconds.
const DAY: i64 = 86_400_000_000;
/// A client in the line looks at least so often.
const LONGEST_LOOK: Duration = ms(1_250);

fn patient() -> Options {
    one_round().wait(Duration::from_secs(600))
}

/// A plain lock and a fenced one.
fn kinds() -> Vec<Options> {
    let mut kinds = vec![patient()];
    kinds.push(patient().fenced(redlock_core::Fencing::default()).unwrap());
    kinds
}

/// Each number of nodes with each kind of lock.
fn worlds() -> impl Iterator<Item = (usize, Options)> {
    let counts = COUNTS.iter().copied();
    counts.flat_map(|count| kinds().into_iter().map(move |options| (count, options)))
}

fn mailbox(number: u8) -> Mailbox {
    Mailbox::new([number; 8])
}

fn queued<'c>(nodes: &'c [Node<'c>], clock: &'c MockClock, number: u8) -> Queued<'c> {
    queued_with(nodes, clock, number, patient())
}

fn queued_with<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
    number: u8,
    options: Options,
) -> Queued<'c> {
    connected(nodes, clock, mailbox(number), number, options)
}

fn connected<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
    mailbox: Mailbox,
    number: u8,
    options: Options,
) -> Queued<'c> {
    let links = nodes.iter().map(|node| node.client(mailbox));
    let entropy = SeededEntropy::new(u64::from(number) + 1_000);
    Redlock::new(links, clock, entropy, options).unwrap()
}

/// Runs all tasks to their ends.
async fn join_all(mut tasks: Vec<Task<'_>>) {
    core::future::poll_fn(|context| {
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if tasks.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

async fn sleep(clock: &MockClock, time: Duration) {
    clock.sleep_until(clock.now().saturating_add(time)).await;
}

fn is_not_called(link: &mut Client<'_>, key: &[u8]) -> bool {
    poll_once(pin!(link.called(key))).is_pending()
}

fn lines_are_empty(nodes: &[Node<'_>]) -> bool {
    nodes.iter().all(|node| node.waiting(KEY) == 0)
}

/// In a vector: an array of nodes takes much stack in a debug build.
fn far(clock: &MockClock, count: usize) -> Vec<Node<'_>> {
    let nodes: Vec<_> = (1..=count)
        .map(|number| MockNode::new(number, clock))
        .collect();
    nodes.iter().for_each(|node| node.set_latency(ROUND_TRIP));
    nodes
}

/// A client waits from `from` on, and holds the lock for `held` when it gets it. Its number is recorded then.
fn waiter<'t>(
    mut redlock: Queued<'t>,
    number: u8,
    from: Duration,
    held: Duration,
    served: &'t Served,
) -> Task<'t> {
    Box::pin(async move {
        let clock = *redlock.clock();
        clock.sleep_until(at(from)).await;
        let lease = redlock.acquire(KEY).await.unwrap();
        let now = Duration::from_micros(clock.now().as_micros());
        served.borrow_mut().push((number, now));
        sleep(clock, held).await;
        redlock.release(lease).await;
    })
}

/// A client holds the lock from the beginning until `until`.
fn first_holder<'t>(mut redlock: Queued<'t>, until: Duration) -> Task<'t> {
    Box::pin(async move {
        let clock = *redlock.clock();
        let lease = redlock.try_acquire(KEY).await.unwrap();
        clock.sleep_until(at(until)).await;
        redlock.release(lease).await;
    })
}

#[test]
fn clients_are_served_in_the_order_in_which_they_began_to_wait() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let mut tasks = vec![first_holder(
            queued_with(nodes, &clock, 99, options),
            ms(3_000),
        )];
        for (number, from) in [(4, 1_400), (1, 200), (5, 1_403), (2, 450), (3, 1_000)] {
            let redlock = queued_with(nodes, &clock, number, options);
            tasks.push(waiter(redlock, number, ms(from), ms(5), &served));
        }
        clock.run(join_all(tasks));
        let order: Vec<_> = served.borrow().iter().map(|(number, _)| *number).collect();
        assert_eq!(order, [1, 2, 3, 4, 5], "{count} nodes, {options:?}");
        assert!(lines_are_empty(nodes), "{count} nodes, {options:?}");
        assert_eq!(key_count(nodes), 0);
    }
}

#[test]
fn a_released_lock_is_handed_to_the_next_client_within_two_round_trips() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let mut tasks = vec![first_holder(
            queued_with(nodes, &clock, 99, options),
            ms(3_000),
        )];
        for number in 1..4 {
            let from = ms(u64::from(number) * 100);
            let redlock = queued_with(nodes, &clock, number, options);
            tasks.push(waiter(redlock, number, from, ms(40), &served));
        }
        clock.run(join_all(tasks));
        let mut released_at = ms(3_000);
        for (number, acquired_at) in served.borrow().iter() {
            let taken = *acquired_at - released_at;
            assert!(taken <= 2 * ROUND_TRIP, "{number}: {taken:?}");
            released_at = *acquired_at + ms(40);
        }
    }
}

#[test]
fn a_waiter_that_is_gone_costs_the_next_one_nothing() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let holder = first_holder(queued_with(nodes, &clock, 99, options), ms(2_000));
        let next = waiter(
            queued_with(nodes, &clock, 2, options),
            2,
            ms(200),
            ms(5),
            &served,
        );
        let gone = async {
            let mut redlock = queued_with(nodes, &clock, 1, options);
            let killed_at = clock.sleep_until(at(ms(1_000)));
            let acquire = redlock.acquire(KEY);
            assert!(matches!(
                select(pin!(killed_at), pin!(acquire)).await,
                Either::First(())
            ));
            nodes.iter().for_each(|node| node.disconnect(mailbox(1)));
            assert_eq!(nodes[0].waiting(KEY), 2, "it has not left the line");
        };
        clock.run(join_all(vec![holder, next, Box::pin(gone)]));
        let (number, acquired_at) = served.borrow()[0];
        assert_eq!(number, 2);
        assert!(acquired_at <= ms(2_000) + 2 * ROUND_TRIP, "{acquired_at:?}");
        assert!(lines_are_empty(nodes));
    }
}

#[test]
fn a_waiter_that_hangs_costs_the_next_one_a_turn_once() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let mut redlock = queued_with(nodes, &clock, 1, options);
        let mut hung = Box::pin(redlock.acquire(KEY));
        let mut tasks = vec![
            first_holder(queued_with(nodes, &clock, 99, options), ms(2_000)),
            waiter(
                queued_with(nodes, &clock, 2, options),
                2,
                ms(200),
                ms(5),
                &served,
            ),
            waiter(
                queued_with(nodes, &clock, 3, options),
                3,
                ms(300),
                ms(5),
                &served,
            ),
        ];
        let until_hang = async {
            clock.sleep_until(at(ms(100))).await;
            let hang = clock.sleep_until(at(ms(1_000)));
            assert!(matches!(
                select(pin!(hang), &mut hung).await,
                Either::First(())
            ));
        };
        tasks.push(Box::pin(until_hang));
        clock.run(join_all(tasks));
        drop(hung);
        let served = served.borrow();
        let [(2, second), (3, third)] = served[..] else {
            panic!("{served:?}");
        };
        let taken = second - ms(2_000);
        assert!(
            taken > TURN && taken <= TURN + ms(2) + 2 * ROUND_TRIP,
            "{taken:?}"
        );
        assert!(third - second <= ms(5) + 2 * ROUND_TRIP);
        assert!(lines_are_empty(nodes));
    }
}

/// A client outside of the line is faster, and holds the lock for longer than a turn, so that the second client has come in vain once.
#[test]
fn a_waiter_that_hangs_costs_a_turn_also_if_the_next_one_has_come_in_vain_before() {
    for &count in COUNTS {
        let clock = &MockClock::new();
        let nodes = &far(clock, count);
        let client = |number| queued(nodes, clock, number);
        let served = Served::default();
        let (mut first, mut faster) = (client(1), client(3));
        let mut hung = Box::pin(first.acquire(KEY));
        let until_hang = async {
            clock.sleep_until(at(ms(100))).await;
            let hang = clock.sleep_until(at(ms(1_390)));
            let stopped = select(pin!(hang), &mut hung).await;
            assert!(matches!(stopped, Either::First(())));
        };
        let overtaking = async {
            // When its first commands arrive, the key has just gone.
            clock.sleep_until(at(ms(1_000))).await;
            sleep(clock, Duration::from_micros(1)).await;
            let lease = faster.try_acquire(KEY).await.unwrap();
            clock.sleep_until(at(ms(1_400))).await;
            faster.release(lease).await;
        };
        clock.run(join_all(vec![
            first_holder(client(99), ms(1_000)),
            waiter(client(2), 2, ms(200), ms(5), &served),
            Box::pin(until_hang),
            Box::pin(overtaking),
        ]));
        drop(hung);
        let served = served.borrow();
        let [(2, second)] = served[..] else {
            panic!("{served:?}");
        };
        let taken = second - ms(1_400);
        assert!(taken <= TURN + ms(2) + 3 * ROUND_TRIP, "{taken:?}");
    }
}

#[test]
fn a_waiter_that_is_gone_behind_one_that_hangs_costs_no_more_than_the_turn() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let mut first = queued_with(nodes, &clock, 1, options);
        let mut hung = Box::pin(first.acquire(KEY));
        let mut second = queued_with(nodes, &clock, 2, options);
        let mut gone = Box::pin(second.acquire(KEY));
        let faults = async {
            for (from, acquire) in [(100, &mut hung), (200, &mut gone)] {
                clock.sleep_until(at(ms(from))).await;
                let end = clock.sleep_until(at(ms(from + 50)));
                let ended = select(pin!(end), acquire).await;
                assert!(matches!(ended, Either::First(())));
            }
            nodes.iter().for_each(|node| node.disconnect(mailbox(2)));
        };
        let third = queued_with(nodes, &clock, 3, options);
        clock.run(join_all(vec![
            first_holder(queued_with(nodes, &clock, 99, options), ms(2_000)),
            waiter(third, 3, ms(300), ms(5), &served),
            Box::pin(faults),
        ]));
        drop((hung, gone));
        let (3, acquired_at) = served.borrow()[0] else {
            panic!("{served:?}");
        };
        let taken = acquired_at - ms(2_000);
        assert!(taken <= TURN + ms(2) + 2 * ROUND_TRIP, "{taken:?}");
        assert!(lines_are_empty(nodes));
    }
}

/// As many workers of one process that is frozen. A look ends the turn of one of them.
#[test]
fn waiters_that_hang_one_behind_the_other_cost_about_a_turn_each() {
    const HUNG: u8 = 8;

    let clock = MockClock::new();
    let nodes = &far(&clock, 3);
    let served = Served::default();
    let mut frozen: Vec<_> = (1..=HUNG)
        .map(|number| queued(nodes, &clock, number))
        .collect();
    let mut hung: Vec<_> = frozen
        .iter_mut()
        .map(|redlock| Box::pin(redlock.acquire(KEY)))
        .collect();
    let freeze = async {
        clock.sleep_until(at(ms(100))).await;
        for acquire in &mut hung {
            let hang = clock.sleep_until(clock.now().saturating_add(ms(50)));
            let first = select(pin!(hang), acquire).await;
            assert!(matches!(first, Either::First(())));
        }
    };
    let tasks: Vec<Task<'_>> = vec![
        first_holder(queued(nodes, &clock, 99), ms(2_000)),
        Box::pin(freeze),
        waiter(queued(nodes, &clock, 50), 50, ms(1_000), ms(5), &served),
    ];
    clock.run(join_all(tasks));
    drop(hung);
    let served = served.borrow();
    let [(50, at)] = served[..] else {
        panic!("{served:?}");
    };
    let taken = at - ms(2_000);
    assert!(taken > TURN * u32::from(HUNG), "{taken:?}");
    assert!(taken <= TURN * u32::from(HUNG + 3), "{taken:?}");
}

#[test]
fn a_lost_call_costs_a_look() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        nodes.iter().for_each(|node| node.lose_calls(true));
        let served = Served::default();
        clock.run(join_all(vec![
            first_holder(queued_with(nodes, &clock, 99, options), ms(5_000)),
            waiter(
                queued_with(nodes, &clock, 1, options),
                1,
                ms(100),
                ms(5),
                &served,
            ),
        ]));
        let taken = served.borrow()[0].1 - ms(5_000);
        assert!(taken <= LONGEST_LOOK + ROUND_TRIP, "{taken:?}");
        assert!(lines_are_empty(nodes));
    }
}

#[test]
fn a_lock_that_expires_is_handed_on_when_it_expires() {
    for count in COUNTS.iter().copied() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        steal_for(ms(3_000), nodes);
        let served = Served::default();
        clock.run(join_all(vec![
            waiter(queued(nodes, &clock, 2), 2, ms(200), ms(5), &served),
            waiter(queued(nodes, &clock, 1), 1, ms(100), ms(5), &served),
        ]));
        let served = served.borrow();
        let [(1, first), (2, second)] = served[..] else {
            panic!("{served:?}");
        };
        assert!(first <= ms(3_003) + 3 * ROUND_TRIP, "{first:?}");
        assert!(second - first <= ms(5) + 2 * ROUND_TRIP);
        assert!(lines_are_empty(nodes));
    }
}

/// Two of four nodes are nearer: the round is lost when they have refused, and the others have not told when their keys expire.
#[test]
fn a_lock_is_handed_on_when_it_expires_although_no_quorum_has_told_when() {
    let clock = MockClock::new();
    let nodes = far(&clock, 4);
    steal_for(ms(3_300), &nodes);
    let (mut redlock, _) = distant(&nodes, &clock, 1, patient(), |node| {
        ms(if node < 2 { 1 } else { 4 })
    });
    let _lease = clock.run(redlock.acquire(KEY)).unwrap();
    assert!(clock.now() >= at(ms(3_300)) && clock.now() <= at(ms(3_310)));
}

/// The holder dies half-way through its release: two of five nodes have deleted the key.
#[test]
fn a_client_that_a_minority_has_called_gets_the_lock_when_the_other_keys_expire() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    steal_for(ms(9_000), &nodes);
    let served = Served::default();
    let release = async {
        clock.sleep_until(at(ms(4_000))).await;
        for node in &nodes[..2] {
            let mut link = node.client(mailbox(99));
            let thief = thief();
            let release = Command::release(KEY.as_bytes(), &thief);
            let release = release.with_place(Some(Place::outside(125)));
            link.execute(&release).await.unwrap();
        }
    };
    clock.run(join_all(vec![
        Box::pin(release),
        waiter(queued(&nodes, &clock, 1), 1, ms(100), ms(5), &served),
        waiter(queued(&nodes, &clock, 2), 2, ms(200), ms(5), &served),
    ]));
    let served = served.borrow();
    let [(1, first), (2, second)] = served[..] else {
        panic!("{served:?}");
    };
    assert!(
        first > ms(9_000) && first <= ms(9_003) + TURN + 3 * ROUND_TRIP,
        "{first:?}"
    );
    assert!(second - first <= ms(5) + 2 * ROUND_TRIP);
    assert!(lines_are_empty(&nodes));
}

/// A client at another distance of each node: the time to the node and back. The counter counts the acquires.
fn distant<'c>(
    nodes: &'c [Node<'c>],
    clock: &'c MockClock,
    number: u8,
    options: Options,
    distance: impl Fn(usize) -> Duration,
) -> (
    Redlock<Counted<'c>, &'c MockClock, SeededEntropy, 5>,
    Rc<Cell<usize>>,
) {
    let acquires = Rc::default();
    let links = nodes.iter().enumerate().map(|(node, to)| Counted {
        client: to.client(mailbox(number)).with_latency(distance(node)),
        keeps_line: true,
        acquires: Rc::clone(&acquires),
    });
    let entropy = SeededEntropy::new(u64::from(number) + 1_000);
    (
        Redlock::new(links, clock, entropy, options).unwrap(),
        acquires,
    )
}

/// The release reaches one node first, and the others 10 ms later.
#[test]
fn a_client_tries_when_a_quorum_has_called_it_and_not_before() {
    for count in [3, 5] {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let (mut holder, _) = distant(nodes, &clock, 99, patient(), |node| {
            ms(if node == 0 { 0 } else { 20 })
        });
        let (mut redlock, acquires) = distant(nodes, &clock, 1, patient(), |_| ms(0));
        let release = async {
            let lease = holder.try_acquire(KEY).await.unwrap();
            clock.sleep_until(at(ms(2_000))).await;
            acquires.set(0);
            holder.release(lease).await;
        };
        let wait = async {
            clock.sleep_until(at(ms(100))).await;
            drop(redlock.acquire(KEY).await.unwrap());
            let tries = acquires.get() / count;
            assert!(tries <= 1, "{tries} tries after the release");
        };
        clock.run(join_all(vec![Box::pin(release), Box::pin(wait)]));
        assert!(micros(&clock) <= 2_020_000 + 4_000, "{}", micros(&clock));
    }
}

#[test]
fn a_client_that_only_a_minority_can_call_tries_a_moment_later() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    nodes[1..].iter().for_each(|node| node.lose_calls(true));
    let served = Served::default();
    clock.run(join_all(vec![
        first_holder(queued(&nodes, &clock, 99), ms(3_000)),
        waiter(queued(&nodes, &clock, 1), 1, ms(100), ms(5), &served),
    ]));
    let taken = served.borrow()[0].1 - ms(3_000);
    assert!(taken <= ms(25) + 2 * ROUND_TRIP, "{taken:?}");
}

/// A foreign client is faster than the client that was called, and releases the lock after 20 ms. It calls no client.
#[test]
fn a_client_that_was_called_in_vain_looks_again_soon() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    let served = Served::default();
    let foreign = async {
        clock.sleep_until(at(ms(3_001))).await;
        steal(&nodes);
        clock.sleep_until(at(ms(3_021))).await;
        nodes.iter().for_each(|node| node.remove(KEY));
    };
    clock.run(join_all(vec![
        first_holder(queued(&nodes, &clock, 99), ms(3_000)),
        waiter(queued(&nodes, &clock, 1), 1, ms(100), ms(5), &served),
        Box::pin(foreign),
    ]));
    let taken = served.borrow()[0].1 - ms(3_021);
    assert!(taken <= ms(50) + 2 * ROUND_TRIP, "{taken:?}");
}

#[test]
fn a_client_looks_at_once_when_it_is_connected_again() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    steal_for(Duration::from_secs(60), &nodes);
    let served = Served::default();
    let restart = async {
        clock.sleep_until(at(ms(3_000))).await;
        nodes.iter().for_each(MockNode::restart_empty);
    };
    let options = patient().restart_guard(false);
    clock.run(join_all(vec![
        waiter(
            queued_with(&nodes, &clock, 1, options),
            1,
            ms(100),
            ms(5),
            &served,
        ),
        Box::pin(restart),
    ]));
    let taken = served.borrow()[0].1 - ms(3_000);
    assert!(taken <= ROUND_TRIP, "{taken:?}");
}

/// A foreign client does not call when it releases the lock.
#[test]
fn a_release_of_a_foreign_client_is_noticed_within_a_quarter_of_the_ttl_or_about_a_second() {
    for (ttl, most) in [(ms(2_000), ms(500)), (ms(60_000), LONGEST_LOOK)] {
        let clock = MockClock::new();
        let nodes = far(&clock, 3);
        steal_for(Duration::from_secs(600), &nodes);
        let served = Served::default();
        let foreign = async {
            clock.sleep_until(at(ms(8_000))).await;
            nodes.iter().for_each(|node| node.remove(KEY));
        };
        let options = Options::new(ttl).unwrap().wait(Duration::from_secs(600));
        clock.run(join_all(vec![
            waiter(
                queued_with(&nodes, &clock, 1, options),
                1,
                ms(100),
                ms(5),
                &served,
            ),
            Box::pin(foreign),
        ]));
        let taken = served.borrow()[0].1 - ms(8_000);
        assert!(taken <= most + ROUND_TRIP, "{taken:?}");
    }
}

#[test]
fn a_node_that_forgets_its_line_or_restarts_delays_no_client() {
    for is_restarted in [false, true] {
        let clock = MockClock::new();
        let nodes = far(&clock, 5);
        let served = Served::default();
        let forget = async {
            clock.sleep_until(at(ms(1_990))).await;
            match is_restarted {
                true => nodes[0].restart_empty(),
                false => nodes[0].forget_line(KEY),
            }
        };
        clock.run(join_all(vec![
            Box::pin(forget),
            first_holder(queued(&nodes, &clock, 99), ms(2_000)),
            waiter(queued(&nodes, &clock, 1), 1, ms(100), ms(5), &served),
            waiter(queued(&nodes, &clock, 2), 2, ms(200), ms(5), &served),
        ]));
        let served = served.borrow();
        let [(1, first), (2, second)] = served[..] else {
            panic!("{served:?}");
        };
        assert!(first <= ms(2_000) + 2 * ROUND_TRIP, "{first:?}");
        assert!(second - first <= ms(5) + 2 * ROUND_TRIP, "{second:?}");
        assert!(lines_are_empty(&nodes));
    }
}

#[test]
fn clients_that_cannot_be_called_are_served_in_order_and_within_a_turn() {
    for count in COUNTS.iter().copied() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let mut tasks = vec![first_holder(queued(nodes, &clock, 99), ms(3_000))];
        for number in 1..5 {
            let mailbox = match number {
                3 => mailbox(number),
                _ => mailbox(number).uncallable(),
            };
            let redlock = connected(nodes, &clock, mailbox, number, patient());
            let from = ms(u64::from(number) * 100);
            tasks.push(waiter(redlock, number, from, ms(5), &served));
        }
        clock.run(join_all(tasks));
        let mut last = ms(3_000);
        for (next, (number, acquired_at)) in (1..).zip(served.borrow().iter()) {
            assert_eq!(*number, next);
            let taken = *acquired_at - last;
            let most = if *number == 3 {
                2 * ROUND_TRIP
            } else {
                TURN / 2 + 2 * ROUND_TRIP
            };
            assert!(taken <= most, "{number}: {taken:?}");
            last = *acquired_at + ms(5);
        }
        assert!(lines_are_empty(nodes));
    }
}

#[test]
fn no_line_is_left_when_a_client_stops_waiting() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        steal(nodes);
        // Its wait is over.
        let mut redlock = queued_with(nodes, &clock, 1, options.wait(ms(1_500)));
        let error = clock.run(redlock.acquire(KEY)).unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
        assert!(micros(&clock) >= 1_500_000 && micros(&clock) < 1_510_000);
        // Like that of every key, the command that leaves the line is not waited for.
        clock.advance(ROUND_TRIP);
        assert!(lines_are_empty(nodes));
        // Its future is dropped while it waits. The next operation leaves the line.
        let begun = clock.now();
        let acquire = async {
            let stop = clock.sleep_until(begun.saturating_add(ms(700)));
            let acquire = redlock.acquire(KEY);
            assert!(matches!(
                select(pin!(stop), pin!(acquire)).await,
                Either::First(())
            ));
        };
        clock.run(acquire);
        assert!(redlock.abandoned().is_some());
        assert!(!lines_are_empty(nodes));
        clock.run(redlock.release_abandoned());
        assert!(redlock.abandoned().is_none());
        clock.advance(ROUND_TRIP);
        assert!(lines_are_empty(nodes));
        assert!(nodes.iter().all(|node| node.token(KEY) == Some(thief())));
    }
}

#[test]
fn a_client_that_stops_waiting_in_its_turn_calls_the_next() {
    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served = Served::default();
        let mut redlock = queued_with(nodes, &clock, 1, options);
        let leave = async {
            clock.sleep_until(at(ms(100))).await;
            let stop = clock.sleep_until(at(ms(2_001)));
            let acquire = redlock.acquire(KEY);
            assert!(matches!(
                select(pin!(stop), pin!(acquire)).await,
                Either::First(())
            ));
            redlock.release_abandoned().await;
        };
        clock.run(join_all(vec![
            first_holder(queued_with(nodes, &clock, 99, options), ms(2_000)),
            Box::pin(leave),
            waiter(
                queued_with(nodes, &clock, 2, options),
                2,
                ms(200),
                ms(5),
                &served,
            ),
        ]));
        let acquired_at = served.borrow()[0].1;
        assert!(acquired_at <= ms(2_001) + 2 * ROUND_TRIP, "{acquired_at:?}");
        assert!(lines_are_empty(nodes));
    }
}

#[test]
fn try_acquire_never_stands_in_a_line() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    steal(&nodes);
    let mut redlock = queued(&nodes, &clock, 1);
    for _ in 0..3 {
        let error = clock.run(redlock.try_acquire(KEY)).unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
        assert!(lines_are_empty(&nodes));
    }
    // Nor does a client whose queue is off, nor one without a mailbox.
    let off = one_round().wait(ms(300)).queue(false);
    let mut redlock = queued_with(&nodes, &clock, 2, off);
    let _held = clock.run(redlock.acquire(KEY)).unwrap_err();
    let mut redlock = client_with(&nodes, &clock, 3, one_round().wait(ms(300)));
    let _held = clock.run(redlock.acquire(KEY)).unwrap_err();
    assert!(lines_are_empty(&nodes));
}

/// The next client is called by a release of a client whose queue is off.
#[test]
fn a_client_whose_queue_is_off_still_calls() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    let served = Served::default();
    clock.run(join_all(vec![
        first_holder(
            queued_with(&nodes, &clock, 99, patient().queue(false)),
            ms(3_000),
        ),
        waiter(queued(&nodes, &clock, 1), 1, ms(100), ms(5), &served),
    ]));
    assert!(served.borrow()[0].1 <= ms(3_000) + 2 * ROUND_TRIP);
}

/// Both want the lock again as soon as they have released it.
#[test]
fn a_client_that_releases_while_others_wait_does_not_overtake_them() {
    const TURNS: usize = unless_miri(50, 2);

    for (count, options) in worlds() {
        let clock = MockClock::new();
        let nodes = &far(&clock, count);
        let served: RefCell<Vec<u8>> = RefCell::default();
        let greedy = |number: u8| -> Task<'_> {
            let (clock, served) = (&clock, &served);
            Box::pin(async move {
                let mut redlock = queued_with(nodes, clock, number, options);
                for _ in 0..TURNS {
                    let lease = redlock.acquire(KEY).await.unwrap();
                    served.borrow_mut().push(number);
                    sleep(clock, ms(5)).await;
                    redlock.release(lease).await;
                }
            })
        };
        clock.run(join_all((0..4).map(greedy).collect()));
        // From the moment on at which all four stand in the line, each has its turn before another one has two.
        let served = served.borrow();
        for round in served[4..served.len() - 4].chunks_exact(4) {
            let mut numbers = round.to_vec();
            numbers.sort_unstable();
            assert_eq!(
                numbers,
                [0, 1, 2, 3],
                "{count} nodes, {options:?}: {served:?}"
            );
        }
        let busy = ms(5) * u32::try_from(served.len()).unwrap();
        let handed_over = 2 * ROUND_TRIP * u32::try_from(served.len()).unwrap();
        let taken = Duration::from_micros(micros(&clock));
        assert!(taken <= busy + handed_over + ms(300), "{taken:?}");
        assert!(lines_are_empty(nodes));
    }
}

/// A transport that counts the acquires.
#[derive(Debug, Clone)]
struct Counted<'c> {
    client: Client<'c>,
    keeps_line: bool,
    acquires: Rc<Cell<usize>>,
}

impl Transport for Counted<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.client.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        if command.is_acquire() {
            self.acquires.set(self.acquires.get() + 1);
        }
        let command = command.at_node(self.mailbox());
        self.client.execute(&command).await
    }

    fn run_id(&self) -> Option<RunId> {
        self.client.run_id()
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.client.mailbox().filter(|_| self.keeps_line)
    }

    async fn called(&mut self, key: &[u8]) -> Call {
        self.client.called(key).await
    }
}

/// A transport whose proposals are too old, as often as `misfits` says.
struct Misfit<'c> {
    client: Client<'c>,
    misfits: Rc<Cell<u32>>,
    /// No acquire reaches the node.
    is_cut: Rc<Cell<bool>>,
}

impl Transport for Misfit<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.client.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        use redlock_core::transport::Proposal;
        use redlock_core::{Fence, Fencing};

        let command = command.at_node(self.mailbox());
        let left = self.misfits.get();
        if self.is_cut.get() && command.is_acquire() {
            let failure = redlock_core::Failure::Transport(MockError::Refused);
            return Err(redlock_core::NodeError::new(self.name(), failure));
        }
        if !command.is_acquire() || left == 0 {
            return self.client.execute(&command).await;
        }
        self.misfits.set(left - 1);
        let old = Proposal::new(Fence::from_u64(1), Fencing::default(), 0, false);
        let command = command.with_proposal(Some(old));
        self.client.execute(&command).await
    }

    fn run_id(&self) -> Option<RunId> {
        self.client.run_id()
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.client.mailbox()
    }

    async fn called(&mut self, key: &[u8]) -> Call {
        self.client.called(key).await
    }
}

#[test]
fn a_client_whose_fence_is_denied_in_its_turn_is_not_overtaken() {
    for count in [3, 5] {
        let clock = MockClock::new();
        let nodes = far(&clock, count);
        let options = patient().fenced(redlock_core::Fencing::default()).unwrap();
        let served = Served::default();
        let misfits: Vec<_> = nodes.iter().map(|_| Rc::new(Cell::new(0))).collect();
        let links = nodes.iter().zip(&misfits).map(|(node, misfits)| Misfit {
            client: node.client(mailbox(1)),
            misfits: Rc::clone(misfits),
            is_cut: Rc::default(),
        });
        let entropy = SeededEntropy::new(1_001);
        let mut misled = Redlock::<_, _, _, 5>::new(links, &clock, entropy, options).unwrap();
        let mut holder = queued_with(&nodes, &clock, 99, options);
        let hold = async {
            let lease = holder.try_acquire(KEY).await.unwrap();
            clock.sleep_until(at(ms(3_000))).await;
            // All rounds of one attempt.
            misfits.iter().for_each(|misfits| misfits.set(3));
            holder.release(lease).await;
        };
        let wait = async {
            clock.sleep_until(at(ms(100))).await;
            let lease = misled.acquire(KEY).await.unwrap();
            let now = Duration::from_micros(clock.now().as_micros());
            served.borrow_mut().push((1, now));
            misled.release(lease).await;
        };
        clock.run(join_all(vec![
            Box::pin(hold),
            Box::pin(wait),
            waiter(
                queued_with(&nodes, &clock, 2, options),
                2,
                ms(200),
                ms(5),
                &served,
            ),
        ]));
        let order: Vec<_> = served.borrow().iter().map(|(number, _)| *number).collect();
        assert_eq!(order, [1, 2], "{count} nodes");
        // Three rounds, a part of the turn, and one round.
        let taken = served.borrow()[0].1 - ms(3_000);
        assert!(taken <= TURN / 4 + 6 * ROUND_TRIP, "{taken:?}");
        assert!(lines_are_empty(&nodes));
    }
}

/// Two nodes are left for the lock, and one of them is the only one for the client that waits first. It cannot be called, so it looks
/// often.
#[test]
fn a_client_that_reaches_no_quorum_is_not_waited_for_either_where_the_clock_of_a_node_is_wrong() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    nodes[0].set_clock_step(DAY);
    let options = patient().fenced(redlock_core::Fencing::default()).unwrap();
    let is_cut = Rc::new(Cell::new(false));
    let links = nodes.iter().enumerate().map(|(number, node)| Misfit {
        client: node.client(mailbox(1).uncallable()),
        misfits: Rc::default(),
        is_cut: match number {
            1 => Rc::clone(&is_cut),
            _ => Rc::default(),
        },
    });
    let entropy = SeededEntropy::new(1_001);
    let mut cut_off = Redlock::<_, _, _, 5>::new(links, &clock, entropy, options).unwrap();
    let mut other = queued_with(&nodes, &clock, 2, options);
    let taken = async {
        let lease = other.try_acquire(KEY).await.unwrap();
        clock.sleep_until(at(ms(1_000))).await;
        is_cut.set(true);
        // It learns that a client waits, so it goes to the end of the line.
        other.release(lease).await;
        let lease = other.acquire(KEY).await.unwrap();
        drop(lease);
        Duration::from_micros(clock.now().as_micros()) - ms(1_000)
    };
    let waits = async {
        clock.sleep_until(at(ms(100))).await;
        cut_off.acquire(KEY).await.unwrap_err();
    };
    let Either::Second(taken) = clock.run(select(waits, taken)) else {
        panic!("the other client has waited for longer than the one without a quorum");
    };
    assert!(taken <= TURN + LONGEST_LOOK, "{taken:?}");
}

/// Each of three clients is near one node and far from the others.
#[test]
fn clients_that_split_the_votes_do_not_wait_for_each_other_for_long() {
    for seed in 0..unless_miri(50, 1) {
        let clock = MockClock::new();
        let nodes = far(&clock, 3);
        nodes.iter().for_each(|node| node.set_latency(ms(0)));
        let worker = |number: usize| -> Task<'_> {
            let (clock, nodes) = (&clock, &nodes);
            Box::pin(async move {
                let name = u8::try_from(number).unwrap();
                let links = nodes.iter().enumerate().map(|(other, node)| {
                    let distance = [1, 10, 18][(3 + other - number) % 3];
                    node.client(mailbox(name)).with_latency(ms(distance))
                });
                let entropy = SeededEntropy::new(seed * 3 + u64::from(name));
                let mut redlock =
                    Redlock::<_, _, _, 3>::new(links, clock, entropy, patient()).unwrap();
                let lease = redlock.acquire(KEY).await.unwrap();
                redlock.release(lease).await;
            })
        };
        clock.run(join_all((0..3).map(worker).collect()));
        assert!(micros(&clock) < 250_000, "seed {seed}: {}", micros(&clock));
        clock.advance(ms(20));
        assert!(
            lines_are_empty(&nodes) && key_count(&nodes) == 0,
            "seed {seed}"
        );
    }
}

/// The line of a node whose clock is far ahead is in another order. If each node that lives is needed for the quorum, two clients
/// that are first on some nodes each keep the lock from the other.
#[test]
fn clients_get_the_lock_although_the_lines_of_two_nodes_disagree_for_ever() {
    let clock = MockClock::new();
    clock.advance(Duration::from_secs(100));
    let nodes = &far(&clock, 4);
    // The others are needed for the quorum.
    nodes[0].hang();
    // The first two that tell their time give a client its ticket: it is the earlier time.
    nodes[3].set_latency(ms(3));
    for node in &nodes[2..] {
        node.set_clock_step(DAY + 7_000_000);
    }
    let served = Served::default();
    let from = Duration::from_secs(100);
    let mut tasks = vec![first_holder(queued(nodes, &clock, 5), from + ms(500))];
    for (number, since) in [(9, 50), (1, 100), (7, 120), (3, 130), (8, 140), (2, 150)] {
        let redlock = queued(nodes, &clock, number);
        tasks.push(waiter(redlock, number, from + ms(since), ms(1), &served));
    }
    clock.run(join_all(tasks));
    let last = served.borrow().iter().map(|(_, at)| *at).max();
    assert!(last < Some(from + Duration::from_secs(4)), "{served:?}");
}

#[test]
fn a_client_that_a_quorum_refuses_as_held_waits_for_its_call_at_once() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    steal(&nodes);
    let (mut redlock, acquires) = distant(&nodes, &clock, 1, patient(), |_| ms(0));
    let stop = clock.sleep_until(at(ms(700)));
    let acquire = redlock.acquire(KEY);
    let stopped = clock.run(select(pin!(stop), pin!(acquire)));
    assert!(matches!(stopped, Either::First(())));
    // The first try, and the one that joins the line.
    assert_eq!(acquires.get(), 2 * 5);
}

/// Each client asks again as soon as it has released the lock, when the lock is free for the next one.
#[test]
fn an_acquisition_costs_the_same_however_many_clients_wait() {
    const TURNS: usize = 8;

    for count in unless_miri(&[2, 5, 11][..], &[2]).iter().copied() {
        let clock = MockClock::new();
        let nodes = &far(&clock, 5);
        let counts = RefCell::new(Vec::new());
        let client = |number: u8| -> Task<'_> {
            let (clock, counts) = (&clock, &counts);
            Box::pin(async move {
                let (mut redlock, acquires) =
                    distant(nodes, clock, number, patient(), |_| ROUND_TRIP);
                for _ in 0..TURNS {
                    let lease = redlock.acquire(KEY).await.unwrap();
                    sleep(clock, ms(25)).await;
                    redlock.release(lease).await;
                }
                counts.borrow_mut().push(acquires.get());
            })
        };
        clock.run(join_all((0..count).map(client).collect()));
        // One joins the line, and one takes the lock. When all come at once, the votes are split.
        let acquires: usize = counts.borrow().iter().sum();
        let least = usize::from(count) * TURNS * 2 * 5;
        assert!(acquires * 10 <= least * 12, "{count}: {acquires}, {least}");
    }
}

/// One of five nodes has lost the key of the holder.
#[test]
fn a_client_does_not_poll_because_a_node_is_free_that_is_outvoted() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    steal(&nodes[..4]);
    let (mut redlock, acquires) = distant(&nodes, &clock, 1, patient(), |_| ms(0));
    let stop = clock.sleep_until(at(ms(9_000)));
    let acquire = redlock.acquire(KEY);
    let stopped = clock.run(select(pin!(stop), pin!(acquire)));
    assert!(matches!(stopped, Either::First(())));
    // The first try, three looks, and then one about each second.
    assert!(acquires.get() <= 18 * 5, "{}", acquires.get());
    // On the node that grants again and again, it has its place again.
    assert_eq!(nodes[4].waiting(KEY), 1);
    assert_eq!(nodes[4].token(KEY), None);
}

/// So many clients wait in the line for nine seconds, in vain. Returns how often each of them has asked all nodes.
fn tries_while_held(nodes: &[Node<'_>], clock: &MockClock, clients: u8) -> Vec<usize> {
    let mut counts = Vec::new();
    let mut tasks: Vec<Task<'_>> = Vec::new();
    for number in 1..=clients {
        let (mut redlock, acquires) = distant(nodes, clock, number, patient(), |_| ms(0));
        counts.push(acquires);
        tasks.push(Box::pin(async move {
            let stop = clock.sleep_until(at(ms(9_000)));
            let acquire = redlock.acquire(KEY);
            let stopped = select(pin!(stop), pin!(acquire)).await;
            assert!(matches!(stopped, Either::First(())));
        }));
    }
    clock.run(join_all(tasks));
    let tries = counts.iter().map(|acquires| acquires.get() / nodes.len());
    tries.collect()
}

/// One of five nodes is free and outvoted: it calls the first client whenever another one looks.
#[test]
fn clients_do_not_call_each_other_again_and_again_while_the_lock_is_held() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    steal(&nodes[..4]);
    for tries in tries_while_held(&nodes, &clock, 4) {
        // 13 looks of its own, and the first client comes at those of the three others.
        assert!(tries <= 45, "{tries}");
    }
}

/// The clock of one of five nodes was stepped back, so that every ticket is from its future. A client that returns to its place comes
/// after the others. The node is free and outvoted: each try that is lost there calls the next client.
#[test]
fn clients_that_an_outvoted_node_calls_in_turn_do_not_try_without_end() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    nodes[4].set_clock_step(-30_000_000);
    steal_for(Duration::from_secs(60), &nodes[..4]);
    for tries in tries_while_held(&nodes, &clock, 3) {
        // 13 looks of its own, and after each a try for the first call.
        assert!(tries <= 30, "{tries}");
    }
}

/// A client that has not come when an outvoted node called it comes when the other nodes call.
#[test]
fn a_client_that_an_outvoted_node_has_called_in_vain_comes_when_others_call() {
    for lost in [0, 1] {
        let clock = MockClock::new();
        let nodes = far(&clock, 5);
        nodes[4].set_clock_step(-30_000_000);
        let served = Served::default();
        let mut holder = queued(&nodes, &clock, 99);
        let hold = async {
            let lease = holder.try_acquire(KEY).await.unwrap();
            sleep(&clock, ms(10)).await;
            nodes[4].remove(KEY);
            clock.sleep_until(at(ms(3_000))).await;
            nodes[..lost].iter().for_each(|node| node.lose_calls(true));
            holder.release(lease).await;
        };
        let client = |number| queued(&nodes, &clock, number);
        clock.run(join_all(vec![
            Box::pin(hold),
            waiter(client(1), 1, ms(100), ms(5), &served),
            waiter(client(2), 2, ms(200), ms(5), &served),
        ]));
        let (first, taken) = served.borrow()[0];
        let taken = taken - ms(3_000);
        assert_eq!(first, 1);
        assert!(taken <= ms(25) + 2 * ROUND_TRIP, "{taken:?}");
    }
}

/// A client of which one node keeps no line polls all of them.
#[test]
fn a_client_that_one_node_keeps_no_line_for_stands_in_none() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    steal_for(ms(2_000), &nodes);
    let (mut redlock, _) = distant(&nodes, &clock, 1, patient(), |_| ms(0));
    redlock.nodes_mut().nth(1).unwrap().keeps_line = false;
    let mut acquisition = redlock.begin();
    assert!(!redlock.join_line(&mut acquisition));
    let stop = clock.sleep_until(at(ms(1_000)));
    let acquire = redlock.acquire(KEY);
    let stopped = clock.run(select(pin!(stop), pin!(acquire)));
    assert!(matches!(stopped, Either::First(())));
    assert!(lines_are_empty(&nodes));
    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    // Its release calls those that wait on the other nodes.
    let mut waiter = queued(&nodes, &clock, 2);
    let mut waiting = pin!(waiter.acquire(KEY));
    let stop = clock.sleep_until(at(ms(4_000)));
    clock.run(select(pin!(stop), waiting.as_mut()));
    clock.run(redlock.release(lease));
    let released_at = clock.now();
    let _lease = clock.run(waiting).unwrap();
    assert!(clock.now() <= released_at.saturating_add(2 * ROUND_TRIP));
}

/// The node that granted has taken the client out of its line.
#[test]
fn a_client_that_wins_a_minority_keeps_its_place() {
    let clock = MockClock::new();
    let nodes = far(&clock, 5);
    steal_for(ms(6_000), &nodes[..3]);
    steal_for(ms(1_000), &nodes[3..]);
    let served = Served::default();
    clock.run(join_all(vec![
        waiter(queued(&nodes, &clock, 1), 1, ms(100), ms(5), &served),
        waiter(queued(&nodes, &clock, 2), 2, ms(200), ms(5), &served),
        waiter(queued(&nodes, &clock, 3), 3, ms(300), ms(5), &served),
    ]));
    let order: Vec<_> = served.borrow().iter().map(|(number, _)| *number).collect();
    assert_eq!(order, [1, 2, 3]);
    assert!(lines_are_empty(&nodes));
}

/// The releaser gives a turn of 2 s. A client whose own turns are short looks at the lock meanwhile.
#[test]
fn a_client_with_shorter_turns_does_not_end_a_longer_turn() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    let slow = patient().node_timeout(ms(1_000)).unwrap();
    let served = Served::default();
    let mut redlock = queued_with(&nodes, &clock, 1, slow);
    let first = async {
        clock.sleep_until(at(ms(100))).await;
        let mut acquire = Box::pin(redlock.acquire(KEY));
        let stop = clock.sleep_until(at(ms(1_990)));
        assert!(matches!(
            select(pin!(stop), &mut acquire).await,
            Either::First(())
        ));
        // It is not polled for a second of its turn.
        clock.sleep_until(at(ms(3_000))).await;
        assert!(served.borrow().is_empty());
        let lease = acquire.await.unwrap();
        assert!(clock.now() <= at(ms(3_000) + 2 * ROUND_TRIP));
        drop(lease);
        served.borrow_mut().push((1, Duration::ZERO));
    };
    let second = async {
        clock.sleep_until(at(ms(200))).await;
        let mut redlock = queued(&nodes, &clock, 2);
        let stop = clock.sleep_until(at(ms(5_000)));
        let acquire = redlock.acquire(KEY);
        assert!(matches!(
            select(pin!(stop), pin!(acquire)).await,
            Either::First(())
        ));
    };
    clock.run(join_all(vec![
        first_holder(queued_with(&nodes, &clock, 99, slow), ms(2_000)),
        Box::pin(first),
        Box::pin(second),
    ]));
    assert_eq!(served.borrow().len(), 1);
}

#[test]
fn a_call_counts_only_behind_the_reply_to_the_last_acquire() {
    let clock = MockClock::new();
    let nodes = far(&clock, 1);
    nodes[0].set_latency(ms(0));
    let mut link = nodes[0].client(mailbox(1));
    let mut other = nodes[0].client(mailbox(2));
    let key = KEY.as_bytes();
    let (mine, its) = (Token::from_bytes([1; 20]), Token::from_bytes([2; 20]));
    let conditions = patient().vote_conditions();
    let waiting = |number| Some(Place::waiting(mailbox(number), Place::NOW, 125));
    let acquire = |token, number| {
        Command::acquire(key, token, 10_000, conditions).with_place(waiting(number))
    };
    let release = Command::release(key, &its).with_place(Some(Place::outside(125)));
    clock.run(async {
        other.execute(&acquire(&its, 2)).await.unwrap();
        link.execute(&acquire(&mine, 1)).await.unwrap();
        other.execute(&release).await.unwrap();
        assert_eq!(link.called(key).await, Call::Turn);
        // Called again, and then the lock is another's.
        other
            .execute(&Command::acquire(key, &its, 10_000, conditions))
            .await
            .unwrap();
        other.execute(&release).await.unwrap();
        nodes[0].set(KEY, its, TTL);
        link.execute(&acquire(&mine, 1)).await.unwrap();
        assert!(is_not_called(&mut link, key));
        // The call comes although the future of the one before was dropped.
        other.execute(&release).await.unwrap();
        assert!(is_not_called(&mut link, b"another key"));
        assert_eq!(link.called(key).await, Call::Turn);
    });
}

#[test]
fn a_refused_client_is_told_how_many_wait_ahead_of_it() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    steal(&nodes);
    let mut errors = Vec::new();
    for number in 0..3 {
        let mut redlock = queued(&nodes, &clock, number);
        let mut acquisition = redlock.begin();
        let first = clock
            .run(redlock.attempt(&mut acquisition, KEY))
            .unwrap_err();
        assert!(!acquisition.is_in_line());
        assert_eq!(first.report().unwrap().ahead(), None);
        let again_at = redlock.again_at(&mut acquisition, &first).unwrap();
        assert_eq!(again_at, clock.now(), "at once");
        assert!(acquisition.is_in_line());
        let error = clock
            .run(redlock.attempt(&mut acquisition, KEY))
            .unwrap_err();
        errors.push((error.report().unwrap().ahead(), error.to_string()));
    }
    assert_eq!(
        errors[2],
        (
            Some(2),
            "dock-7 is held by another client: 3 of 3 nodes refused; 2 clients wait ahead".into()
        )
    );
    assert_eq!(errors[1].0, Some(1));
    assert_eq!(
        errors[1].1,
        "dock-7 is held by another client: 3 of 3 nodes refused; 1 client waits ahead"
    );
    assert_eq!(errors[0].0, Some(0));
    assert_eq!(
        errors[0].1,
        "dock-7 is held by another client: 3 of 3 nodes refused; no client waits ahead"
    );
}

#[test]
fn an_adapter_gives_a_client_the_ticket_of_the_task_that_asked_first() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    let served = Served::default();
    // Another client has waited since 500 ms, but this task has since 200 ms.
    let task = async {
        clock.sleep_until(at(ms(1_000))).await;
        let mut redlock = queued(&nodes, &clock, 1);
        let mut acquisition = redlock.begin().since(at(ms(200)));
        assert!(redlock.join_line(&mut acquisition));
        let lease = loop {
            let error = match redlock.attempt(&mut acquisition, KEY).await {
                Ok(lease) => break lease,
                Err(error) => error,
            };
            let again_at = redlock.again_at(&mut acquisition, &error).unwrap();
            redlock.wait_for_turn(&mut acquisition, KEY, again_at).await;
        };
        served.borrow_mut().push((1, Duration::ZERO));
        redlock.release(lease).await;
    };
    clock.run(join_all(vec![
        first_holder(queued(&nodes, &clock, 99), ms(3_000)),
        Box::pin(task),
        waiter(queued(&nodes, &clock, 2), 2, ms(500), ms(5), &served),
    ]));
    let order: Vec<_> = served.borrow().iter().map(|(number, _)| *number).collect();
    assert_eq!(order, [1, 2]);
}

/// Calls are lost, nodes hang, clients are killed or stop waiting, and foreign clients take the lock.
#[test]
fn whatever_fails_the_line_excludes_and_all_that_wait_get_the_lock() {
    const SEEDS: u64 = unless_miri(60, 1);
    const CLIENTS: u8 = 5;
    const TURNS: usize = unless_miri(12, 1);

    for seed in 0..SEEDS {
        let clock = MockClock::new();
        let count = [1, 2, 3, 5][usize::try_from(seed % 4).unwrap()];
        let options = *kinds()
            .iter()
            .cycle()
            .nth(usize::try_from(seed / 4).unwrap())
            .unwrap();
        let nodes = &far(&clock, count);
        let is_held = Cell::new(false);
        let busy = Cell::new(CLIENTS);
        let worker = |number: u8| -> Task<'_> {
            let (clock, is_held, busy) = (&clock, &is_held, &busy);
            Box::pin(async move {
                let mut dice = SeededEntropy::new(seed * 100 + u64::from(number));
                let mut roll = move || {
                    let mut random = [0; 2];
                    dice.fill(&mut random);
                    u64::from(u16::from_ne_bytes(random))
                };
                let mut redlock = queued_with(nodes, clock, number, options);
                let mut turns = 0;
                while turns < TURNS {
                    sleep(clock, ms(roll() % 60)).await;
                    if roll() % 8 == 0 {
                        // It stops waiting, or is killed and starts again.
                        let stop = clock.now().saturating_add(ms(roll() % 400));
                        let acquire = select(
                            Box::pin(clock.sleep_until(stop)),
                            Box::pin(redlock.acquire(KEY)),
                        );
                        let lease = match acquire.await {
                            Either::First(()) => None,
                            Either::Second(lease) => Some(lease.unwrap()),
                        };
                        if let Some(lease) = lease {
                            redlock.release(lease).await;
                        } else if roll() % 2 == 0 {
                            nodes
                                .iter()
                                .for_each(|node| node.disconnect(mailbox(number)));
                            sleep(clock, ms(roll() % 100)).await;
                            redlock = queued_with(nodes, clock, number, options);
                        }
                        continue;
                    }
                    let lease = redlock.acquire(KEY).await.unwrap();
                    assert!(!is_held.replace(true), "two at once, seed {seed}");
                    sleep(clock, ms(roll() % 30)).await;
                    assert!(lease.is_valid(clock.now()));
                    is_held.set(false);
                    redlock.release(lease).await;
                    turns += 1;
                }
                redlock.release_abandoned().await;
                busy.set(busy.get() - 1);
            })
        };
        let faults = async {
            let mut dice = SeededEntropy::new(seed);
            while busy.get() > 0 {
                let mut random = [0; 3];
                dice.fill(&mut random);
                let node = &nodes[usize::from(random[0]) % count];
                match random[1] % 6 {
                    0 => {
                        node.hang();
                        sleep(&clock, ms(u64::from(random[2]))).await;
                        node.resume();
                    }
                    1 => {
                        node.lose_calls(true);
                        sleep(&clock, ms(u64::from(random[2]))).await;
                        node.lose_calls(false);
                    }
                    2 => node.forget_line(KEY),
                    3 if node.token(KEY).is_none() => {
                        steal_for(ms(20), core::slice::from_ref(node));
                    }
                    _ => {}
                }
                sleep(&clock, ms(200)).await;
            }
        };
        let mut tasks: Vec<_> = (0..CLIENTS).map(worker).collect();
        tasks.push(Box::pin(faults));
        clock.run(join_all(tasks));
        let most = Duration::from_secs(90);
        let taken = Duration::from_micros(micros(&clock));
        assert!(taken < most, "seed {seed}: {taken:?}");
        clock.advance(Duration::from_secs(10));
        assert!(lines_are_empty(nodes), "seed {seed}");
    }
}

/// Transports whose nodes call without end.
#[derive(Debug)]
struct Flooded<'c>(Client<'c>);

impl Transport for Flooded<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.0.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        self.0.execute(command).await
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.0.mailbox()
    }

    async fn called(&mut self, _key: &[u8]) -> Call {
        Call::Deputy
    }
}

#[test]
fn calls_without_end_do_not_keep_a_client_busy() {
    let clock = MockClock::new();
    let nodes = far(&clock, 3);
    steal(&nodes);
    let links = nodes.iter().map(|node| Flooded(node.client(mailbox(1))));
    let options = one_round().wait(ms(1_000));
    let mut redlock =
        Redlock::<_, _, _, 3>::new(links, &clock, SeededEntropy::new(1), options).unwrap();
    let error = clock.run(redlock.acquire(KEY)).unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");
    assert!(clock.now() >= at(ms(1_000)) && clock.now() <= at(ms(1_000) + 2 * ROUND_TRIP));
}

/// A transport whose first node calls the client each millisecond, beside the calls that count.
#[derive(Debug)]
struct Chatty<'c> {
    client: Client<'c>,
    clock: &'c MockClock,
    is_chatty: bool,
}

impl Transport for Chatty<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.client.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let command = command.at_node(self.mailbox());
        self.client.execute(&command).await
    }

    fn run_id(&self) -> Option<RunId> {
        self.client.run_id()
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.client.mailbox()
    }

    async fn called(&mut self, key: &[u8]) -> Call {
        if !self.is_chatty {
            return self.client.called(key).await;
        }
        let silence = sleep(self.clock, ms(1));
        let call = select(pin!(self.client.called(key)), pin!(silence)).await;
        match call {
            Either::First(call) => call,
            Either::Second(()) => Call::Turn,
        }
    }
}

/// The second client was called as often as it listens in one wait, in vain, long before it is its turn.
#[test]
fn a_client_that_was_called_without_end_does_not_miss_its_turn() {
    for held in (300..1_300).step_by(50).map(ms) {
        let clock = &MockClock::new();
        let nodes = far(clock, 5);
        let holder = queued(&nodes, clock, 1);
        let links = nodes.iter().enumerate().map(|(node, link)| Chatty {
            client: link.client(mailbox(2)),
            clock,
            is_chatty: node == 0,
        });
        let mut waiter =
            Redlock::<_, _, _, 5>::new(links, clock, SeededEntropy::new(2), patient()).unwrap();
        let waiting = Box::pin(async {
            sleep(clock, ms(10)).await;
            let lease = waiter.acquire(KEY).await.unwrap();
            let taken = Duration::from_micros(micros(clock)) - held;
            assert!(taken <= ms(25) + 3 * ROUND_TRIP, "held {held:?}: {taken:?}");
            waiter.release(lease).await;
        });
        clock.run(join_all(vec![first_holder(holder, held), waiting]));
    }
}

/// Each of two clients is granted by one of two nodes: both are told that the lock is held, although no client holds it. The calls
/// of their clean-ups are lost.
#[test]
fn clients_that_are_told_that_a_free_lock_is_held_look_again_soon() {
    for seed in 0..unless_miri(50, 1) {
        let clock = MockClock::new();
        let nodes = &far(&clock, 2);
        nodes.iter().for_each(|node| node.lose_calls(true));
        let client = |near: u8| -> Task<'_> {
            let clock = &clock;
            Box::pin(async move {
                let (mut redlock, _) = distant(nodes, clock, seed * 2 + near, patient(), |node| {
                    ms(if node == usize::from(near) { 1 } else { 4 })
                });
                let lease = redlock.acquire(KEY).await.unwrap();
                assert!(micros(clock) < 500_000, "seed {seed}: {}", micros(clock));
                redlock.release(lease).await;
            })
        };
        clock.run(join_all((0..2).map(client).collect()));
    }
}

/// The first of three nodes calls, or is connected again, without end while the lock is held for nine seconds.
#[test]
fn a_node_that_calls_without_end_does_not_have_the_client_try_more_often() {
    for call in [Call::Turn, Call::Deputy, Call::Reconnected] {
        let clock = &MockClock::new();
        let nodes = far(clock, 3);
        let holder = queued(&nodes, clock, 1);
        let held = ms(9_000);
        let tries = &Cell::new(0);
        let links = nodes.iter().enumerate().map(|(node, link)| Loud {
            client: link.client(mailbox(2)),
            call: (node == 0).then_some(call),
            tries,
        });
        let mut waiter =
            Redlock::<_, _, _, 3>::new(links, clock, SeededEntropy::new(2), patient()).unwrap();
        let waiting = Box::pin(async {
            sleep(clock, ms(10)).await;
            let lease = waiter.acquire(KEY).await.unwrap();
            let taken = Duration::from_micros(micros(clock)) - held;
            assert!(taken <= ms(25) + 3 * ROUND_TRIP, "{call:?}: {taken:?}");
            waiter.release(lease).await;
        });
        clock.run(join_all(vec![first_holder(holder, held), waiting]));
        // About one a second, and one more for the calls before each.
        assert!(tries.get() <= 24, "{call:?}: {} tries", tries.get());
    }
}

/// A transport whose node always has a call for the client, if it has one. Counts what the client acquires.
#[derive(Debug)]
struct Loud<'c> {
    client: Client<'c>,
    call: Option<Call>,
    tries: &'c Cell<u32>,
}

impl Transport for Loud<'_> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.client.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        if self.call.is_some() && command.is_acquire() {
            self.tries.set(self.tries.get() + 1);
        }
        self.client.execute(command).await
    }

    fn run_id(&self) -> Option<RunId> {
        self.client.run_id()
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.client.mailbox()
    }

    async fn called(&mut self, key: &[u8]) -> Call {
        match self.call {
            Some(call) => call,
            None => self.client.called(key).await,
        }
    }
}
