//! The values of the attributes `error.type` and `cause`.

use redlock_core::AcquireOutcome;

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
