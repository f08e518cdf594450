//! `redlock run`: runs a command under a lock.

mod arguments;
mod child;
mod deadline;
mod foreign;
mod journal;
mod keeper;
mod owner_record;
mod signals;
#[cfg(target_os = "linux")]
mod starter;
mod stat;
mod supervisor;
mod terminal;
mod wait;

use core::time::Duration;
use std::io::ErrorKind;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitCode;

use redlock_std::{
    AcquireError, AdoptError, Clock, ConnectError, Denial, Failure as NodeFailure, Fence, Guard,
    NodeError, Redlock, Released, SystemClock, TransportError,
};
use rustix::process::Signal;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::inspect::shown;
use crate::lease_file::{Blank, LeaseFile};
use crate::nodes::runtime;
use crate::{echo, exit, wall_clock};
pub(crate) use arguments::{Arguments, Plan};
use child::Launch;
use journal::Event;
pub(crate) use journal::{Form, Journal};
use owner_record::OwnerRecord;
use signals::Signals;
pub(crate) use signals::is_ignored;
#[cfg(target_os = "linux")]
pub(crate) use starter::{Arguments as StarterArguments, become_command};
use supervisor::{End, supervise};

pub(crate) fn run(arguments: Arguments) -> ExitCode {
    match arguments.plan() {
        Ok(plan) => on_runtime(&plan, async |journal| under_lock(&plan, journal).await),
        Err(why) => exit::usage(&why),
    }
}

/// Runs `work` to its end, on a runtime of its own.
pub(crate) fn on_runtime(
    plan: &Plan,
    work: impl AsyncFnOnce(&Journal) -> Result<u8, Failure>,
) -> ExitCode {
    let runtime = match runtime() {
        Ok(runtime) => runtime,
        Err(error) => return exit::internal(&format!("no runtime: {error}")),
    };
    let journal = match Journal::open(plan.form, &plan.key) {
        Ok(journal) => journal,
        Err(error) => return exit::internal(&format!("no thread: {error}")),
    };
    let worked = runtime.block_on(async {
        signals::survive_file_size_limit().map_err(|error| internal("no signals", &error))?;
        work(&journal).await
    });
    let code = match worked {
        Ok(code) => code,
        Err(Failure { why, code }) => {
            journal.write(&Event::Failed { why, code });
            code
        }
    };
    journal.close();
    // A thread may still wait for a name server; its result is no longer needed.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Why a command failed, and its exit code.
pub(crate) struct Failure {
    pub(crate) why: String,
    pub(crate) code: u8,
}

async fn under_lock(plan: &Plan, journal: &Journal) -> Result<u8, Failure> {
    // Signals are caught before anything is sent, so that a signal leaves no key on the nodes.
    let mut signals = Signals::catch().map_err(|error| internal("no signals", &error))?;
    let redlock = plan.nodes.connect(plan.options).map_err(not_connected)?;
    let locked = lock(&redlock, &mut signals, plan, journal).await;
    // A lease that was adopted is not left on the nodes.
    let is_over = match &locked {
        Ok(_) => true,
        Err(failure) => failure.code == exit::LOST,
    };
    let result = match locked {
        Ok((guard, took)) => {
            write_acquired(&guard, took, plan, journal);
            for warning in redlock.warnings() {
                journal.write(&Event::Warned {
                    why: warning.to_string(),
                });
            }
            let owner = OwnerRecord::keep(plan, guard.token(), journal);
            let result = hold(guard, &owner, &mut signals, plan, journal).await;
            let heard = async {
                match plan.adopt {
                    Some(_) => all_answered(&redlock).await,
                    None => all_sent(&redlock).await,
                }
            };
            tokio::join!(heard, owner.ended(&redlock));
            result
        }
        Err(failure) => {
            all_sent(&redlock).await;
            Err(failure)
        }
    };
    if let Some(file) = plan.adopt.as_ref().filter(|_| is_over) {
        remove(file, journal);
    }
    result
}

/// Removes the file of a lease that is over. If this fails, the operator is told, and the code stays that of the command.
fn remove(file: &LeaseFile, journal: &Journal) {
    if let Err(why) = file.remove() {
        journal.write(&Event::Warned { why });
    }
}

/// Acquires the lock, and leaves it on the nodes: the lease is in the file.
pub(crate) async fn lock_to_file(
    plan: &Plan,
    blank: Blank,
    journal: &Journal,
) -> Result<u8, Failure> {
    // Its file will tell when the lease ends.
    wall_clock::text_after(plan.options.ttl()).map_err(|error| Failure {
        why: error.to_string(),
        code: exit::INTERNAL,
    })?;
    let mut signals = Signals::catch().map_err(|error| internal("no signals", &error))?;
    let redlock = plan.nodes.connect(plan.options).map_err(not_connected)?;
    let (guard, took) = match lock(&redlock, &mut signals, plan, journal).await {
        Ok(locked) => locked,
        Err(failure) => {
            all_sent(&redlock).await;
            return Err(failure);
        }
    };
    write_acquired(&guard, took, plan, journal);
    let valid = guard.remaining();
    let token = *guard.token();
    let handover = guard.handover();
    let (options, nodes, owner) = (&plan.options, &plan.nodes, plan.owner.as_deref());
    let written = blank.write(&handover, options, nodes, owner, valid).await;
    if let Err(error) = written {
        let released = guard.release_now().await;
        all_sent(&redlock).await;
        let count = released.released() + released.gone();
        let told = if count > released.report().outcomes().len() / 2 {
            "the lock was released"
        } else {
            "no quorum of nodes has told that the lock is released: it ends with its TTL, or with redlock break"
        };
        return Err(Failure {
            why: format!("{}; {told}", blank.fault(&error)),
            code: match error.kind() {
                ErrorKind::AlreadyExists => exit::USAGE,
                _ => exit::INTERNAL,
            },
        });
    }
    owner_record::write(&redlock, plan, &token, journal).await;
    if !guard.is_valid() {
        let removed = blank.remove();
        tokio::join!(
            guard.release_now(),
            owner_record::delete(&redlock, plan, &token)
        );
        all_sent(&redlock).await;
        let left = removed
            .err()
            .map(|error| format!("; {}", blank.fault(&error)));
        return Err(Failure {
            why: format!(
                "the lease was over before its file was written: the disk is slow, or the TTL too short; the lock was released{}",
                left.unwrap_or_default()
            ),
            code: exit::LOST,
        });
    }
    // Not released.
    let _left = guard.hand_over();
    Ok(0)
}

/// Extends the lease in the file of the plan, and leaves it on the nodes.
pub(crate) async fn extend_file(plan: &Plan, journal: &Journal) -> Result<u8, Failure> {
    let redlock = plan.nodes.connect(plan.options).map_err(not_connected)?;
    let adopted = adopt(&redlock, plan).await;
    if let (Err(failure), Some(file)) = (&adopted, &plan.adopt)
        && failure.code == exit::LOST
    {
        remove(file, journal);
    }
    let guard = adopted?;
    let valid = guard.remaining();
    let token = *guard.token();
    owner_record::write(&redlock, plan, &token, journal).await;
    if let Some(Err(why)) = plan.adopt.as_ref().map(|file| file.extended(valid)) {
        // No command reads the end that is in the file.
        let why = format!("{why}; the lease was extended, but valid_until in the file is old");
        journal.write(&Event::Warned { why });
    }
    if !guard.is_valid() {
        tokio::join!(
            guard.release_now(),
            owner_record::delete(&redlock, plan, &token)
        );
        all_sent(&redlock).await;
        if let Some(file) = &plan.adopt {
            remove(file, journal);
        }
        return Err(Failure {
            why: "the lease was extended, and over before its file was written: the disk is slow, or the TTL too short; the lock was \
                  released"
                .to_owned(),
            code: exit::LOST,
        });
    }
    journal.write(&Event::Extended { valid });
    // Not released.
    let _left = guard.hand_over();
    Ok(0)
}

/// Releases the lease in the file of the plan, and removes the file.
pub(crate) async fn release_file(plan: &Plan, journal: &Journal) -> Result<u8, Failure> {
    let redlock = plan.nodes.connect(plan.options).map_err(not_connected)?;
    let result = match adopt(&redlock, plan).await {
        Ok(guard) => {
            let token = *guard.token();
            let released = release(guard, plan, None, journal).await;
            tokio::join!(
                all_answered(&redlock),
                owner_record::delete(&redlock, plan, &token)
            );
            let nodes = released.report().outcomes().len();
            let count = released.released() + released.gone();
            if count > nodes / 2 {
                Ok(0)
            } else {
                Err(Failure {
                    why: format!(
                        "only {count} of {nodes} nodes have told that the lock is released; the lease file is left as it is, and the \
                         lock ends with its TTL"
                    ),
                    code: exit::UNREACHABLE,
                })
            }
        }
        Err(failure) => {
            all_sent(&redlock).await;
            Err(failure)
        }
    };
    match (&result, &plan.adopt) {
        (Ok(_), Some(file)) => file.remove().map_err(|why| Failure {
            why: format!("{why}; the lock was released"),
            code: exit::INTERNAL,
        })?,
        (Err(failure), Some(file)) if failure.code == exit::LOST => remove(file, journal),
        _ => {}
    }
    result
}

/// Adopts the lease in the file of the plan. Tries again for one TTL while no quorum of nodes answers.
async fn adopt(redlock: &Redlock, plan: &Plan) -> Result<Guard, Failure> {
    let Some(file) = &plan.adopt else {
        return Err(Failure {
            why: "no lease file".to_owned(),
            code: exit::USAGE,
        });
    };
    file.expect_unused().map_err(|why| Failure {
        why,
        code: plan.conflict_exit_code,
    })?;
    wait::adopt(redlock, file.handover(), plan.options.ttl())
        .await
        .map_err(|error| match &error {
            AdoptError::Nodes(_) if error.is_retryable() => Failure {
                why: format!(
                    "{error}; the lease file is left as it is; redlock doctor says what each node needs"
                ),
                code: exit::UNREACHABLE,
            },
            AdoptError::Nodes(_) => Failure {
                why: format!(
                    "the lease is lost: {error}; another client may have the lock, or had it"
                ),
                code: exit::LOST,
            },
            _ => Failure {
                why: error.to_string(),
                code: exit::USAGE,
            },
        })
}

/// Waits for the lock, or for a signal. Or adopts a lease.
///
/// Returns how long it took, too: a guard knows only of its last attempt.
async fn lock(
    redlock: &Redlock,
    signals: &mut Signals,
    plan: &Plan,
    journal: &Journal,
) -> Result<(Guard, Duration), Failure> {
    let started_at = SystemClock.now();
    let mut waiting = core::pin::pin!(async {
        if plan.adopt.is_some() {
            return adopt(redlock, plan).await;
        }
        let acquired = wait::acquire(redlock, plan, journal).await;
        match acquired {
            Err(error) if error.is_held() => {
                let foreign = foreign::failure(plan).await;
                Err(foreign.unwrap_or_else(|| not_acquired(&error, plan)))
            }
            acquired => acquired.map_err(|error| not_acquired(&error, plan)),
        }
    });
    loop {
        tokio::select! {
            acquired = &mut waiting => {
                let took = SystemClock.now().saturating_duration_since(started_at);
                return acquired.map(|guard| (guard, took));
            }
            signal = signals.next() => match signal {
                Signal::TSTP => journal.write(&Event::Suspended),
                signal => {
                    let name = signals::name(signal.as_raw());
                    let why = format!("{name} while waiting for the lock{}", not_run(plan));
                    return Err(Failure { why, code: exit::signal(signal.as_raw()) });
                }
            },
        }
    }
}

/// Runs the command, and releases the lock in any case.
async fn hold(
    mut guard: Guard,
    owner: &OwnerRecord,
    signals: &mut Signals,
    plan: &Plan,
    journal: &Journal,
) -> Result<u8, Failure> {
    let held_since = SystemClock.now();
    let launch = Launch::prepare(plan, &guard, journal);
    let result = supervise(launch, &mut guard, signals, plan, journal)
        .await
        .map_err(|error| internal("cannot wait for the command", &error));
    let is_started = !matches!(result, Ok(End::NotStarted(_)));
    // The answers of a release do not tell whether a quorum still had the key, because it does not wait for all of them.
    let loss = match &result {
        Ok(End::Done(_)) => loss(&mut guard).await,
        _ => None,
    };
    let held = SystemClock.now().saturating_duration_since(held_since);
    // A lease that was adopted was held before.
    let told = plan.adopt.is_none().then_some(held);
    let is_kept = if is_started {
        let released = release(guard, plan, told, journal).await;
        if plan.min_hold.is_none() {
            warn_if_refused(&released, journal);
        }
        // If no node has answered in time, the release is still on its way.
        let is_early = plan.min_hold.is_some_and(|min_hold| held < min_hold);
        let nodes = released.report().outcomes().len();
        let may_be_kept =
            is_early && released.released() == 0 && refused(&released).len() <= nodes / 2;
        released.kept() > 0 || may_be_kept
    } else {
        // Another host may be able to start it.
        let released = guard.release_now().await;
        write_released(&released, told, journal);
        warn_if_refused(&released, journal);
        false
    };
    owner.end(is_kept);
    match (result?, loss) {
        (End::Done(_), Some(why)) => Err(Failure {
            why: format!(
                "lost the lock while the command ran, but found out only when it had ended: {why}; another client may have \
                 had the lock; check what the command did"
            ),
            code: exit::LOST,
        }),
        (End::Done(status), None) => Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or_else(|| exit::signal(status.signal().unwrap_or_default()))),
        (End::NotStarted(error), _) => Err(not_started(&error, plan)),
        (End::Lost { why }, _) => Err(Failure {
            why: format!(
                "lost the lock while the command ran: {why}; check what the command left half done"
            ),
            code: exit::LOST,
        }),
    }
}

fn write_acquired(guard: &Guard, took: Duration, plan: &Plan, journal: &Journal) {
    journal.write(&Event::Acquired {
        valid: guard.remaining(),
        fence: guard.fence().map(Fence::as_u64),
        took,
        tries: guard.attempts(),
        token: shown(guard.token().as_bytes()),
        owner: plan.owner.clone().filter(|owner| !owner.is_empty()),
    });
}

fn write_released(released: &Released, held: Option<Duration>, journal: &Journal) {
    let failed = failed(released);
    journal.write(&Event::Released {
        held,
        released: released.released(),
        gone: released.gone(),
        unanswered: released.unanswered() - failed.len(),
        failed,
        kept: released.kept(),
    });
}

/// The nodes that have answered a release with an error, or cannot be asked, each with the reason.
fn failed(released: &Released) -> Vec<String> {
    let has_failed = |failure: &&NodeError| {
        !matches!(
            failure.failure(),
            NodeFailure::TimedOut(_) | NodeFailure::NothingToRelease
        )
    };
    let failures = released.report().failures().filter(has_failed);
    failures.map(NodeError::to_string).collect()
}

async fn release(guard: Guard, plan: &Plan, held: Option<Duration>, journal: &Journal) -> Released {
    let released = guard.release().await;
    write_released(&released, held, journal);
    let nodes = released.report().outcomes().len();
    let kept = released.kept();
    // If the time is over, the lock is released.
    if plan.min_hold.is_some() && released.released() == 0 && kept <= nodes / 2 {
        let failed = failed(&released);
        let failed = match failed.len() {
            0 => String::new(),
            count => format!(", failed on {count} ({})", failed.join("; ")),
        };
        let why = format!(
            "only {kept} of {nodes} nodes have told that they keep the lock for --min-hold{failed}: another host may run the command earlier"
        );
        journal.write(&Event::Warned { why });
    }
    released
}

/// Warns if so many nodes have refused the release that no client can take the lock before its TTL is over.
fn warn_if_refused(released: &Released, journal: &Journal) {
    let nodes = released.report().outcomes().len();
    let refused = refused(released);
    if refused.len() >= nodes.div_ceil(2) {
        let why = format!(
            "{} of {nodes} nodes have refused the release ({}): the lock stays held there until its TTL is over",
            refused.len(),
            refused.join("; ")
        );
        journal.write(&Event::Warned { why });
    }
}

/// The nodes that have answered a release with an error, each with the reason.
fn refused(released: &Released) -> Vec<String> {
    let is_refusal = |failure: &&NodeError| {
        matches!(
            failure.failure(),
            NodeFailure::Transport(TransportError::Rejected(_))
        )
    };
    let failures = released.report().failures().filter(is_refusal);
    failures.map(NodeError::to_string).collect()
}

/// Why the lock is lost, if fewer nodes than a quorum can still have the key.
async fn loss(guard: &mut Guard) -> Option<String> {
    match guard.extend().await {
        Err(error) if !error.is_retryable() => Some(error.to_string()),
        _ => None,
    }
}

/// Waits until the tasks of the nodes have sent the releases. A node answers its first command before it gets the next one. The wait
/// is short, because a node that hangs in between must not delay every run.
async fn all_sent(redlock: &Redlock) {
    // Counts sleeps instead of time: on a busy machine, time passes without any task running.
    for _ in 0..200 {
        // The tasks take their turn first.
        tokio::task::yield_now().await;
        if redlock.has_sent_releases() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Waits until the nodes have answered the release of a lease that was adopted. This process may not have been connected to each node that
/// has its key, so nothing is on its way to such a node when the process ends.
async fn all_answered(redlock: &Redlock) {
    const PATIENCE: Duration = Duration::from_secs(1);

    let _closed: Result<usize, Elapsed> = timeout(PATIENCE, redlock.close()).await;
}

fn not_connected(error: ConnectError) -> Failure {
    let code = match error {
        ConnectError::NoRuntime => exit::INTERNAL,
        _ => exit::USAGE,
    };
    Failure {
        why: error.to_string(),
        code,
    }
}

fn not_acquired(error: &AcquireError, plan: &Plan) -> Failure {
    let waited = match plan.wait {
        // A configuration that is refused ends the wait at once.
        Some(wait) if !wait.is_zero() && !error.is_misconfigured() => {
            format!("gave up after {}: ", humantime::format_duration(wait))
        }
        _ => String::new(),
    };
    if error.is_held() {
        return Failure {
            why: format!("{waited}{error}"),
            code: plan.conflict_exit_code,
        };
    }
    match error {
        AcquireError::Nodes(error) if matches!(**error, redlock_core::AcquireError::Entropy) => {
            Failure {
                why: error.to_string(),
                code: exit::INTERNAL,
            }
        }
        error if wait::is_hopeless(error) => Failure {
            why: error.to_string(),
            code: exit::USAGE,
        },
        error => Failure {
            why: format!("{waited}{error}{}{}", not_run(plan), advice(error, plan)),
            code: exit::UNREACHABLE,
        },
    }
}

/// `redlock lock` has no command.
fn not_run(plan: &Plan) -> &'static str {
    if plan.command.is_empty() {
        ""
    } else {
        "; the command was not run"
    }
}

/// What to do about nodes that gave no vote.
fn advice(error: &AcquireError, plan: &Plan) -> String {
    let advice = advice_in_words(error, plan);
    advice.map_or_else(String::new, |advice| format!("; {advice}"))
}

fn advice_in_words(error: &AcquireError, plan: &Plan) -> Option<&'static str> {
    let failures = || wait::failures(error);
    let is_held_for_longer = plan.min_hold.is_some_and(|hold| hold > plan.options.ttl());
    Some(if failures().any(wait::is_too_long) {
        if is_held_for_longer {
            "--min-hold counts as a TTL for the nodes: use a shorter one"
        } else {
            "use a shorter --ttl, or give the nodes (redlock init --repair --max-ttl) and all fenced clients a longer --max-ttl"
        }
    } else if failures().any(is_of_certificates) {
        "check --tls-ca, --tls-cert, and the names in the URLs of these nodes"
    } else if failures().all(is_away) {
        "check whether these nodes are up"
    } else if failures().any(is_away)
        && failures().all(|failure| is_away(failure) || is_of_an_unknown_time(failure))
    {
        "check whether the other nodes are up: a client learns the nodes' time from a majority of them"
    } else if failures().all(is_of_an_earlier_time) {
        "the clocks of these nodes were set back, or run behind: wait until they have passed the last fence, which redlock inspect shows; if it \
         says that a fence record cannot be read, delete that key"
    } else if failures().any(is_of_a_value) {
        "redlock inspect shows the node where the value of a key was not written by a client of the lock"
    } else if failures().any(is_of_other_rules) {
        "give --max-ttl, --window and --step-back the values of the guard records, which redlock doctor --json shows"
    } else if failures().any(is_of_open_files) {
        "raise the limit of open files of this process (ulimit -n)"
    } else if failures().all(|failure| is_away(failure) || is_unfit(failure)) {
        return None;
    } else {
        "redlock doctor --key KEY says what each node needs for this key"
    })
}

/// Whether the node has not answered.
fn is_away(failure: &NodeError) -> bool {
    match failure.failure() {
        NodeFailure::TimedOut(_) => true,
        NodeFailure::Transport(error) => match error {
            TransportError::Unreachable(why) => !is_answer(why) && !is_of_open_files(failure),
            TransportError::NotConnected(_)
            | TransportError::TooFar { .. }
            | TransportError::Disconnected
            | TransportError::Silent(_)
            | TransportError::Overloaded => true,
            _ => false,
        },
        _ => false,
    }
}

/// Whether the node, or what is in its place, has answered to the connect in a way that is no matter of its settings.
fn is_unfit(failure: &NodeError) -> bool {
    match failure.failure() {
        NodeFailure::Transport(error) => match error {
            TransportError::Unreachable(why) => is_answer(why),
            TransportError::Flooded | TransportError::Protocol(_) | TransportError::Unexpected => {
                true
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether these are the words of a node, which begin with a code in capitals, and not of a system or a network.
fn is_answer(words: &str) -> bool {
    let code = words.split(' ').next().unwrap_or_default();
    code.len() > 2 && code.bytes().all(|byte| byte.is_ascii_uppercase())
}

/// Whether no connection could be made because this process has too many files open.
fn is_of_open_files(failure: &NodeError) -> bool {
    match failure.failure() {
        NodeFailure::Transport(TransportError::Unreachable(why)) => {
            why.contains("Too many open files")
        }
        _ => false,
    }
}

/// Whether the node or this client has refused the certificate of the other.
fn is_of_certificates(failure: &NodeError) -> bool {
    match failure.failure() {
        NodeFailure::Transport(TransportError::Unreachable(why)) => {
            why.contains("peer certificate") || why.contains("fatal alert")
        }
        _ => false,
    }
}

/// Whether the clock of the node is behind the last fence of the key.
fn is_of_an_earlier_time(failure: &NodeError) -> bool {
    matches!(failure.failure(), NodeFailure::Denied(Denial::Stale(_)))
}

/// Whether the time of the node is not the time that this client has learned so far, which is none at first.
fn is_of_an_unknown_time(failure: &NodeError) -> bool {
    matches!(
        failure.failure(),
        NodeFailure::Denied(Denial::TooOld(_) | Denial::TooNew(_))
    )
}

/// Whether the settings of the guard record are not those of this client.
fn is_of_other_rules(failure: &NodeError) -> bool {
    matches!(
        failure.failure(),
        NodeFailure::Denied(Denial::FencingMismatch(_))
    )
}

/// Whether a script has failed on the value of a key: it is of another type, or not in the form of a record.
fn is_of_a_value(failure: &NodeError) -> bool {
    match failure.failure() {
        NodeFailure::Transport(TransportError::Rejected(error)) => {
            error.contains("WRONGTYPE") || error.contains("attempt to ")
        }
        _ => false,
    }
}

fn not_started(error: &std::io::Error, plan: &Plan) -> Failure {
    let code = exit::not_started(error);
    let program = echo::program(&plan.command);
    // The usual cause: the whole command is one word, or a variable precedes it.
    let advice = match program.ends_with("..") {
        true => {
            "; write the program and each argument as separate words, and set variables with env"
        }
        false => "",
    };
    Failure {
        why: format!("cannot run {program}: {error}{advice}"),
        code,
    }
}

fn internal(what: &str, error: &std::io::Error) -> Failure {
    Failure {
        why: format!("internal error: {what}: {error}"),
        code: exit::INTERNAL,
    }
}
