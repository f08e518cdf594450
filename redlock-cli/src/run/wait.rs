//! Waits for the lock.

use core::time::Duration;

use redlock_core::Clock;
use redlock_std::{AcquireError, Denial, Failure, Guard, NodeError, Redlock, Report, SystemClock};

use super::arguments::Plan;
use super::journal::{Event, Journal};

/// The longest attempt, after which the reason for waiting is reported to the operator.
const SLICE: Duration = Duration::from_secs(2);

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
    let mut was_held = None;
    // The first attempt is one round, so that the reason for waiting is reported at once.
    let mut slice = Duration::ZERO;
    loop {
        let attempt = redlock.with_options(plan.options.wait(slice));
        let error = match attempt.acquire(&plan.key).await {
            Ok(guard) => return Ok(guard),
            Err(error) => error,
        };
        let now = SystemClock.now();
        if error.is_held() || is_quarantine(&error) {
            failing_since = now;
        }
        let give_up_for_good = failing_since.saturating_add(plan.options.ttl());
        if now >= give_up_at.unwrap_or(give_up_for_good) || is_hopeless(&error) {
            return Err(error);
        }
        if was_held != Some(error.is_held()) {
            was_held = Some(error.is_held());
            journal.write(&Event::Waiting {
                why: error.to_string(),
                is_held: error.is_held(),
            });
        }
        slice = give_up_at.map_or(SLICE, |at| at.saturating_duration_since(now).min(SLICE));
    }
}

/// Whether a node has no vote now, and will have one without an operator.
fn is_quarantine(error: &AcquireError) -> bool {
    let AcquireError::Nodes(error) = error else {
        return false;
    };
    let failures = error.report().into_iter().flat_map(Report::failures);
    failures.map(NodeError::failure).any(|failure| {
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
