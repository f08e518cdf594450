//! Supervises the command from its start to its end.

use core::pin::pin;
use core::time::Duration;
use std::process::ExitStatus;

use redlock_core::Clock;
use redlock_std::{Guard, SystemClock};
use rustix::process::{Pid, Signal};

use super::arguments::Plan;
use super::child::{Child, Launch};
use super::deadline::{Deadline, Order};
use super::journal::{Event, Journal};
use super::keeper::{Validity, keep};
use super::signals::Signals;

/// How the command ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It ended by itself, while it held the lock.
    Done(ExitStatus),
    /// It was stopped, or the lease ended first.
    Lost { why: String },
    /// It did not begin.
    NotStarted(std::io::Error),
}

/// Starts the command, and runs until it has ended: extends the lease, forwards signals, and ends the child in time if the lease cannot be
/// extended.
///
/// Only the extensions use the network, and nothing else waits for them.
pub(crate) async fn supervise(
    launch: Launch,
    guard: &mut Guard,
    signals: &mut Signals,
    plan: &Plan,
    journal: &Journal,
) -> std::io::Result<End> {
    let validity = Validity::new(guard);
    let mut deadline = Deadline::new(plan.kill_after, plan.options.validity());
    let mut keeping = pin!(keep(guard, &plan.options, &validity, journal));
    let (mut lost, mut out_of_reach) = (None, Vec::new());
    let mut starting = pin!(launch.start(journal));
    let started = loop {
        tokio::select! {
            biased;
            started = &mut starting => break started,
            error = &mut keeping, if lost.is_none() => lost = Some(error.to_string()),
        }
    };
    let mut child = match started {
        Ok(child) => child,
        Err(error) => return Ok(End::NotStarted(error)),
    };
    let pid = child.pid();
    journal.write(&Event::Started { pid });
    loop {
        let now = SystemClock.now();
        let why = || lost.clone().unwrap_or_else(|| validity.trouble());
        match deadline.order(now, validity.until(), lost.is_some()) {
            Some(Order::Terminate { kill_at }) => {
                let is_permitted = child.signal(Signal::TERM);
                // A stopped child would not handle SIGTERM.
                child.signal(Signal::CONT);
                let kill_in = kill_at.saturating_duration_since(now);
                journal.write(&Event::Terminating {
                    why: why(),
                    pid,
                    kill_in,
                });
                out_of_reach = child.out_of_reach();
                warn_of(&out_of_reach, is_permitted, &child, journal);
            }
            Some(Order::Kill) => {
                let is_permitted = child.signal(Signal::KILL);
                journal.write(&Event::Killing { why: why(), pid });
                let now_out_of_reach = child.out_of_reach();
                if now_out_of_reach != out_of_reach {
                    warn_of(&now_out_of_reach, is_permitted, &child, journal);
                }
            }
            Some(Order::Report) => journal.write(&Event::NotDead { pid }),
            None => {}
        }
        tokio::select! {
            biased;
            () = child.ended() => break,
            () = SystemClock.sleep_until(deadline.next(validity.until())) => {}
            signal = signals.next() => forward(signal, &child, journal),
            error = &mut keeping, if lost.is_none() => lost = Some(error.to_string()),
        }
    }
    let is_over = deadline.is_over() || lost.is_some() || SystemClock.now() >= validity.until();
    if is_over {
        // Those that it has left in its group have the time that it had. They must not run on without the lock.
        while deadline.has_time(SystemClock.now()) && child.has_left_others() {
            tokio::time::sleep(GLANCE).await;
        }
        child.signal(Signal::KILL);
        let left = child.out_of_reach();
        if !left.is_empty() {
            let why = format!(
                "{} of the command runs on without the lock, as another user: end it, and run redlock itself as that user",
                named(&left)
            );
            journal.write(&Event::Warned { why });
        }
    }
    let not_started = child.not_started();
    let status = child.reap()?;
    if let (Some(error), false) = (not_started, is_over) {
        return Ok(End::NotStarted(error));
    }
    journal.write(&Event::Ended {
        code: status.code(),
        signal: signal_of(status),
    });
    let why = || lost.unwrap_or_else(|| validity.trouble());
    Ok(if is_over {
        End::Lost { why: why() }
    } else {
        End::Done(status)
    })
}

fn forward(signal: Signal, child: &Child, journal: &Journal) {
    if signal == Signal::TSTP {
        journal.write(&Event::Suspended);
    } else {
        journal.write(&Event::Forwarded {
            signal: signal.as_raw(),
        });
        let is_permitted = child.signal(signal);
        warn_of(&child.out_of_reach(), is_permitted, child, journal);
        if ENDING.contains(&signal) {
            // A stopped child would not handle it.
            child.signal(Signal::CONT);
        }
    }
}

/// Warns of processes that took no signal. `is_permitted` is `false` if no process of the group did.
fn warn_of(out_of_reach: &[Pid], is_permitted: bool, child: &Child, journal: &Journal) {
    let pid = child.pid();
    let is_command = |other: &Pid| other.as_raw_pid() == pid;
    let who = if !is_permitted || out_of_reach.iter().any(is_command) {
        format!("the command (process {pid}) has become another user")
    } else if !out_of_reach.is_empty() {
        format!(
            "{} of the command runs as another user",
            named(out_of_reach)
        )
    } else {
        return;
    };
    let why = format!(
        "{who}, and gets no signal of redlock: it can run on without the lock; run redlock itself as that user"
    );
    journal.write(&Event::Warned { why });
}

/// The first of these processes, and how many more there are.
fn named(processes: &[Pid]) -> String {
    match processes {
        [] => "no process".to_owned(),
        [pid] => format!("process {pid}"),
        [pid, others @ ..] => format!("process {pid} (and {} more)", others.len()),
    }
}

/// The interval at which the rest of the group is looked at, after the end of the command.
const GLANCE: Duration = Duration::from_millis(20);

/// The forwarded signals that ask the child to end.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

fn signal_of(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}
