//! The values of the attributes `error.type` and `cause`.

use redlock_core::AcquireOutcome;

#[cfg(feature = "tracing")]
use crate::error::Report;
use crate::error::{AcquireError, ExtendError, LossCause};

/// How an acquire ended that returned this error.
pub(super) fn outcome(error: &AcquireError) -> AcquireOutcome {
    match error {
        AcquireError::HeldHere(_) => AcquireOutcome::Held,
        AcquireError::Build(_) | AcquireError::KeyTooLong(_) => AcquireOutcome::Invalid,
        AcquireError::NotAsked {
            nodes_answer: true, ..
        } => AcquireOutcome::Overloaded,
        AcquireError::NotAsked { .. } => AcquireOutcome::Unreachable,
        AcquireError::Closed(_) => AcquireOutcome::Closed,
        AcquireError::Nodes(error) => AcquireOutcome::from(&**error),
    }
}

/// Why the nodes gave no vote: all of the error but the key.
#[cfg(feature = "tracing")]
pub(super) fn failures(error: &AcquireError) -> String {
    let report = match error {
        AcquireError::Nodes(error) => error.report(),
        _ => None,
    };
    let failures = report.into_iter().flat_map(Report::failures);
    failures
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// Each reason for which an extension fails.
#[cfg(feature = "metrics")]
pub(super) const OF_EXTENSIONS: [&str; 5] =
    ["lost", "unreachable", "too_late", "expired", "not_asked"];

/// Why an extension failed.
pub(super) const fn of_extension(error: &ExtendError) -> &'static str {
    match error {
        ExtendError::Lost(_) => "lost",
        ExtendError::Unreachable(_) => "unreachable",
        ExtendError::TooLate(_) => "too_late",
        ExtendError::Expired => "expired",
        ExtendError::NotAsked { .. } => "not_asked",
        _ => "other",
    }
}

/// Each reason for which a lock is lost.
#[cfg(feature = "metrics")]
pub(super) const OF_LOSSES: [&str; 5] = [
    "lost",
    "unreachable",
    "expired",
    "extensions_spent",
    "not_asked",
];

/// Why a lock was lost.
pub(super) const fn of_loss(cause: &LossCause) -> &'static str {
    match cause {
        LossCause::Lost(_) => "lost",
        LossCause::Unreachable(_) => "unreachable",
        LossCause::Expired => "expired",
        LossCause::ExtensionsSpent => "extensions_spent",
        LossCause::NotAsked { .. } => "not_asked",
        _ => "other",
    }
}
