//! Waits for the lock.

use core::time::Duration;

use redlock_core::Clock;
use redlock_std::{
    AcquireError, AdoptError, Denial, Failure, Guard, Handover, NodeError, NodeStatus, Redlock,
    Report, SystemClock, TransportError,
};
use tokio::task::AbortHandle;

use super::arguments::Plan;
use super::journal::{Event, Journal};
use crate::inspect::{Sight, Verdict};
use crate::nodes::quorum;

/// For how long `--no-wait` tries again while nodes are being connected, or for one TTL if that is shorter. Every run makes new
/// connections, and a login and an introduction take several round trips.
const CONNECTING: Duration = Duration::from_secs(1);

/// The time between two of these tries.
const CONNECTING_PAUSE: Duration = Duration::from_millis(20);

/// The longest attempt outside of the line, after which the reason for waiting is reported to the operator.
const SLICE: Duration = Duration::from_secs(2);

/// How long a client stays in the line that has no limit.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// The time between two looks at the nodes by a client in the line.
const LOOK: Duration = Duration::from_secs(1);

/// Waits for the lock as long as the plan says. If the plan has no limit, it waits
///
/// - without a limit for another holder, and for nodes whose votes will count again;
/// - one TTL while no quorum of nodes answers, so that a job fails if Redis is down.
pub(crate) async fn acquire(
    redlock: &Redlock,
    plan: &Plan,
    journal: &Journal,
) -> Result<Guard, AcquireError> {
    let started_at = SystemClock.now();
    let give_up_at = plan.wait.map(|wait| started_at.saturating_add(wait));
    let mut failing_since = started_at;
    // A connection and its login take three round trips.
    let connecting = CONNECTING.max(plan.options.round_time() * 3);
    let connect_by = started_at.saturating_add(connecting.min(plan.options.ttl()));
    let mut was_held = None;
    let mut inquiry = Inquiry::default();
    // The first attempt is one round, so that the reason for waiting is reported at once.
    let mut slice = Duration::ZERO;
    loop {
        let tried_at = SystemClock.now();
        let is_in_line = was_held == Some(true);
        let result = if is_in_line {
            let limit = give_up_at.map(|at| at.saturating_duration_since(SystemClock.now()));
            in_line(redlock, plan, limit.unwrap_or(FOR_EVER)).await
        } else {
            attempt(redlock, plan, slice).await
        };
        let error = match result {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let now = SystemClock.now();
        // What made it leave the line has just begun.
        if is_in_line || error.is_held() || is_quarantine(&error) {
            failing_since = now;
        }
        let tried_for = now.saturating_duration_since(tried_at);
        if now < connect_by && is_connecting(&error)
            || was_just_connected(redlock, &error, tried_for + plan.options.round_time())
        {
            SystemClock
                .sleep_until(now.saturating_add(CONNECTING_PAUSE))
                .await;
            continue;
        }
        let give_up_for_good = failing_since.saturating_add(plan.options.ttl());
        let end = give_up_at.unwrap_or(give_up_for_good);
        if now >= end || is_hopeless(&error) || error.is_misconfigured() {
            return Err(error);
        }
        if was_held != Some(error.is_held()) {
            was_held = Some(error.is_held());
            journal.write(&Event::Waiting {
                why: error.to_string(),
                is_held: error.is_held(),
            });
            if error.is_held() && journal.shows_holder() {
                inquiry.begin(plan, journal);
            }
        }
        slice = end.saturating_duration_since(now).min(SLICE);
    }
}

async fn attempt(redlock: &Redlock, plan: &Plan, wait: Duration) -> Result<Guard, AcquireError> {
    let redlock = redlock.with_options(plan.options.wait(wait));
    redlock.acquire(&plan.key).await
}

/// One attempt for the whole wait: the next one would begin at the end of the line. It leaves the line when no quorum has a vote any
/// more, and then returns what one more round says about it.
async fn in_line(redlock: &Redlock, plan: &Plan, wait: Duration) -> Result<Guard, AcquireError> {
    tokio::select! {
        biased;
        result = attempt(redlock, plan, wait) => result,
        () = no_quorum(redlock) => attempt(redlock, plan, Duration::ZERO).await,
    }
}

/// Waits until two looks have found fewer votes than a quorum: a connection that is made anew takes less time.
async fn no_quorum(redlock: &Redlock) {
    let mut has_quorum = [true; 2];
    while has_quorum.contains(&true) {
        tokio::time::sleep(LOOK).await;
        let nodes = redlock.status();
        let votes = nodes.iter().filter(|node| node.has_vote()).count();
        has_quorum = [votes >= quorum(nodes.len()), has_quorum[0]];
    }
}

/// Adopts a lease. Tries again for `patience`, while no quorum of nodes answers.
pub(crate) async fn adopt(
    redlock: &Redlock,
    handover: &Handover,
    patience: Duration,
) -> Result<Guard, AdoptError> {
    let give_up_at = SystemClock.now().saturating_add(patience);
    loop {
        let error = match redlock.adopt(handover).await {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let again_at = SystemClock.now().saturating_add(CONNECTING_PAUSE);
        if !error.is_retryable() || again_at >= give_up_at {
            return Err(error);
        }
        SystemClock.sleep_until(again_at).await;
    }
}

/// The time between two looks at the holder of a lock that is waited for: soon after a change, and less often later, because each look
/// makes new connections.
const HOLDER_PAUSES: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];

/// Asks the nodes who holds the lock, and tells it whenever the holder has changed, beside the wait. Dropping it ends that.
#[derive(Debug, Default)]
struct Inquiry(Option<AbortHandle>);

impl Inquiry {
    fn begin(&mut self, plan: &Plan, journal: &Journal) {
        // The connect has accepted these URLs.
        let Ok(nodes) = plan.nodes.nodes(SLICE) else {
            return;
        };
        let (key, journal) = (plan.key.clone(), journal.clone());
        let asking = tokio::spawn(async move {
            let [soon, late] = HOLDER_PAUSES;
            let (mut known, mut pause) = (None, soon);
            loop {
                let sight = Sight::of(&nodes, &key, None).await;
                let tally = sight.tally();
                let token = match tally.verdict {
                    Verdict::Held { token, .. } => Some(token.to_string()),
                    _ => None,
                };
                let owner = tally.owner.map(str::to_owned);
                let released = tally.is_released;
                let seen = Some((token.clone(), owner.clone(), released));
                // A lock that has no holder at the moment is told of only if there was none before.
                if known.is_none() || seen != known && token.is_some() {
                    let who = tally.to_string();
                    journal.write(&Event::Holder {
                        who,
                        token,
                        owner,
                        released,
                    });
                    (known, pause) = (seen, soon);
                }
                SystemClock
                    .sleep_until(SystemClock.now().saturating_add(pause))
                    .await;
                pause = (pause * 2).min(late);
            }
        });
        if let Some(earlier) = self.0.replace(asking.abort_handle()) {
            earlier.abort();
        }
    }
}

impl Drop for Inquiry {
    fn drop(&mut self) {
        if let Some(asking) = &self.0 {
            asking.abort();
        }
    }
}

/// The failures of the last round.
pub(super) fn failures(error: &AcquireError) -> impl Iterator<Item = &NodeError> {
    let report = match error {
        AcquireError::Nodes(error) => error.report(),
        _ => None,
    };
    report.into_iter().flat_map(Report::failures)
}

/// Whether the nodes may only need a moment: a connection is not made yet.
fn is_connecting(error: &AcquireError) -> bool {
    let is_late = |failure: &NodeError| {
        matches!(
            failure.failure(),
            Failure::Transport(TransportError::NotConnected(_))
        )
    };
    error.is_unreachable() && failures(error).any(is_late)
}

/// Whether the connection to a node that was too late is younger than this: the next try finds it ready.
fn was_just_connected(redlock: &Redlock, error: &AcquireError, age: Duration) -> bool {
    let is_late = |node: &NodeStatus| {
        failures(error).any(|failure| {
            **failure.node() == *node.node && matches!(failure.failure(), Failure::TimedOut(_))
        })
    };
    error.is_unreachable()
        && redlock
            .status()
            .iter()
            .any(|node| node.is_connected && node.since < age && is_late(node))
}

/// Whether the TTL is longer than the guard record of the node allows.
pub(super) fn is_too_long(failure: &NodeError) -> bool {
    matches!(
        failure.failure(),
        Failure::Denied(Denial::TtlTooLong { .. })
    )
}

/// Whether a node has no vote now, and will have one without an operator.
fn is_quarantine(error: &AcquireError) -> bool {
    failures(error).map(NodeError::failure).any(|failure| {
        matches!(
            failure,
            Failure::Denied(
                Denial::Restarted { .. } | Denial::Evicted { .. } | Denial::Quarantined { .. }
            )
        )
    })
}

/// Whether waiting cannot help: no node was asked, and none would be.
pub(super) fn is_hopeless(error: &AcquireError) -> bool {
    match error {
        AcquireError::Build(_) | AcquireError::KeyTooLong(_) => true,
        AcquireError::Nodes(error) => matches!(
            **error,
            // The machine has no randomness for tokens.
            redlock_core::AcquireError::Entropy | redlock_core::AcquireError::ReservedKey
        ),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use redlock_core::{BuildError, KeyName};

    use super::*;

    #[test]
    fn errors_that_waiting_cannot_change_are_hopeless() {
        for error in [
            AcquireError::Build(BuildError::ClockTooCoarse),
            AcquireError::KeyTooLong(66_000),
            redlock_core::AcquireError::Entropy.into(),
            redlock_core::AcquireError::ReservedKey.into(),
        ] {
            assert!(is_hopeless(&error), "{error}");
        }
        let key = KeyName::new(b"dock-7");
        assert!(!is_hopeless(&AcquireError::HeldHere(key)));
    }
}
