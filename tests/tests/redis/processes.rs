//! The waiting line between processes, some of which die or hang.

#![expect(
    clippy::print_stdout,
    reason = "the times are for the reader, and only their best is judged"
)]

use std::time::Duration;

use redlock_tests::contender::{Arguments, Contender, Kind, Turn};
use redlock_tests::{Server, Servers, undisturbed};

const KEY: &str = "dock-7";

const TTL: Duration = Duration::from_secs(10);

/// A machine that is busy is late now and then, and not each time.
const TRIALS: usize = 5;

/// A process, and its turn in the line: 25 ms and two node timeouts.
#[derive(Clone, Copy)]
struct Kept {
    kind: Kind,
    ttl: Duration,
    node_timeout: Duration,
}

const PATIENT: Kept = Kept {
    kind: Kind::Queue,
    ttl: TTL,
    node_timeout: Duration::from_secs(1),
};

impl Kept {
    fn turn(self) -> Duration {
        Duration::from_millis(25) + self.node_timeout * 2
    }

    fn start(self, servers: &Servers) -> Contender {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap();
        let arguments = Arguments {
            kind: self.kind,
            ttl: millis(self.ttl),
            node_timeout: millis(self.node_timeout),
            nodes: servers.urls(),
        };
        Contender::start(env!("CARGO_BIN_EXE_redlock-tests"), &arguments)
    }
}

/// Has each of the processes take the lock again and again, in so many tasks.
fn contend(processes: &mut [Contender], tasks: &[usize], time: Duration) {
    for (process, tasks) in processes.iter_mut().zip(tasks) {
        process.contend(KEY, *tasks, time);
    }
}

fn turns(processes: &[Contender]) -> Vec<Vec<Turn>> {
    let turns: Vec<_> = processes.iter().map(Contender::turns).collect();
    let mut all = turns.concat();
    all.sort_unstable_by_key(|turn| turn.acquired);
    let holders = all.windows(2);
    assert!(
        holders
            .into_iter()
            .all(|pair| pair[0].released <= pair[1].acquired),
        "two hold the lock at once"
    );
    turns
}

/// How long the last process in the line waits for the lock after its release, if `fault` happens to the `ahead` processes
/// before it.
fn hand_over(kept: Kept, servers: &Servers, ahead: usize, fault: fn(Contender)) -> Duration {
    let up = || servers.iter().filter(|server| server.is_up());
    let mut holder = kept.start(servers);
    holder.acquire(KEY);
    let _since = holder.acquired();
    let in_line = || {
        let mut process = kept.start(servers);
        process.stand_in_line(KEY, up());
        process
    };
    let waiting: Vec<_> = (0..ahead).map(|_| in_line()).collect();
    let mut last = in_line();
    waiting.into_iter().for_each(fault);
    let released = holder.release();
    let took = Duration::from_micros(last.acquired() - released);
    let _released = last.release();
    took
}

/// The shortest of some times.
fn best(what: &str, run: impl Fn() -> Duration) -> Duration {
    let mut times: Vec<_> = (0..TRIALS).map(|_| run()).collect();
    times.sort_unstable();
    println!("{what}: the next has the lock after {times:?}");
    times[0]
}

#[test]
fn eight_tasks_of_one_process_and_one_of_another_get_a_ninth_of_the_turns_each() {
    let servers = Servers::start(3);
    let mut processes: Vec<_> = (0..2).map(|_| PATIENT.start(&servers)).collect();
    contend(&mut processes, &[8, 1], Duration::from_secs(4));
    let turns = turns(&processes);
    let counts = [turns[0].len(), turns[1].len()];
    let all = counts[0] + counts[1];
    println!("turns: {counts:?}");
    for (count, tasks) in counts.into_iter().zip([8, 1]) {
        // Between 0.8 and 1.25 of the share.
        let share = 8 * all * tasks..=8 * all * tasks * 25 / 16;
        assert!(share.contains(&(count * 90)), "{counts:?}");
    }
}

#[test]
fn processes_that_are_killed_in_the_line_delay_no_other() {
    let servers = Servers::start(3);
    let control = best("no fault", || hand_over(PATIENT, &servers, 0, drop));
    let killed = best("the first three of four are killed", || {
        hand_over(PATIENT, &servers, 3, Contender::kill)
    });
    assert!(
        killed < control + PATIENT.turn() / 8,
        "{killed:?}, {control:?}"
    );
}

#[test]
fn a_process_that_is_stopped_at_the_head_of_the_line_delays_the_next_by_one_turn() {
    let kept = Kept {
        node_timeout: Duration::from_millis(100),
        ..PATIENT
    };
    let servers = Servers::start(3);
    let control = best("no fault", || hand_over(kept, &servers, 0, drop));
    let stopped = best("the first of two is stopped", || {
        hand_over(kept, &servers, 1, |process| {
            process.pause();
            // Its connections stay open until the end of the test.
            std::mem::forget(process);
        })
    });
    println!("a turn lasts {:?}", kept.turn());
    assert!(stopped >= kept.turn(), "{stopped:?}");
    assert!(
        stopped < control + kept.turn() * 3 / 2,
        "{stopped:?}, {control:?}"
    );
}

#[test]
fn when_the_holder_is_killed_the_next_has_the_lock_at_the_end_of_its_ttl() {
    let kept = Kept {
        ttl: Duration::from_secs(2),
        node_timeout: Duration::from_millis(500),
        ..PATIENT
    };
    let servers = Servers::start(3);
    let took = best("from the grant of a holder that is killed", || {
        let mut holder = kept.start(&servers);
        holder.acquire(KEY);
        let since = holder.acquired();
        let mut next = kept.start(&servers);
        next.acquire(KEY);
        holder.kill();
        let took = Duration::from_micros(next.acquired() - since);
        let _released = next.release();
        took
    });
    assert!(took > kept.ttl * 9 / 10, "{took:?}");
    assert!(took < kept.ttl * 11 / 10, "{took:?}");
}

#[tokio::test]
async fn a_node_that_is_killed_delays_no_process() {
    const HALF: Duration = Duration::from_secs(2);

    undisturbed(async || {
        let mut servers = Servers::start(5);
        let mut processes: Vec<_> = (0..4).map(|_| PATIENT.start(&servers)).collect();
        contend(&mut processes, &[1; 4], HALF * 2);
        std::thread::sleep(HALF);
        servers.first_mut().map(Server::kill);
        let killed_at = redlock_tests::contender::now();
        let turns = turns(&processes);
        let all = turns.concat();
        let [before, after] = [true, false].map(|is_before| {
            let turns = all
                .iter()
                .filter(|turn| (turn.acquired < killed_at) == is_before);
            turns.count()
        });
        let longest = all.iter().map(|turn| turn.acquired - turn.asked).max();
        println!("turns before and after: {before}, {after}; longest wait {longest:?} us");
        assert!(after * 2 > before, "{before}, {after}");
        let counts: Vec<_> = turns.iter().map(Vec::len).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        assert!(least * 10 >= most * 8, "{counts:?}");
    })
    .await;
}

#[test]
fn beside_clients_that_do_not_stand_in_the_line_no_process_starves() {
    const TIME: Duration = Duration::from_secs(30);

    let servers = Servers::start(3);
    let kinds = [
        Kind::Queue,
        Kind::Queue,
        Kind::Queue,
        Kind::Poll,
        Kind::Rslock,
    ];
    let mut processes: Vec<_> = kinds
        .iter()
        .map(|kind| {
            Kept {
                kind: *kind,
                ..PATIENT
            }
            .start(&servers)
        })
        .collect();
    contend(&mut processes, &[1; 5], TIME);
    for (kind, turns) in kinds.iter().zip(turns(&processes)) {
        let longest = turns.iter().map(|turn| turn.acquired - turn.asked).max();
        println!(
            "{kind:?}: {} turns, longest wait {longest:?} us",
            turns.len()
        );
        assert!(turns.len() >= 10, "{kind:?}: {} turns", turns.len());
    }
}
