//! The result of one check.

use core::fmt;

use redlock_std::init::connection::ASK_DOCTOR;
use serde_json::Value;

/// One line of the report: the state, and what to do about it.
#[derive(Debug)]
pub(crate) struct Finding {
    /// The name of the check, which is stable for programs.
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) message: String,
    /// The measured values: a JSON object.
    pub(crate) facts: Value,
}

/// The verdict of a check. The worst one is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Ok,
    /// Locks are safe unless something else fails.
    Warn,
    /// The node has no vote, or may grant a lock that is held.
    Bad,
}

impl Finding {
    pub(crate) fn new(check: &'static str, (verdict, message): Judgement, facts: Value) -> Self {
        Self {
            check,
            verdict,
            // Of an error of a node: it is this command that the reader has run.
            message: message.replace(ASK_DOCTOR, ""),
            facts,
        }
    }
}

/// A verdict and its reason.
pub(crate) type Judgement = (Verdict, String);

pub(crate) fn ok(message: impl Into<String>) -> Judgement {
    (Verdict::Ok, message.into())
}

pub(crate) fn warn(message: impl Into<String>) -> Judgement {
    (Verdict::Warn, message.into())
}

pub(crate) fn bad(message: impl Into<String>) -> Judgement {
    (Verdict::Bad, message.into())
}

impl Verdict {
    pub(crate) fn worst_of<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Self {
        let verdicts = findings.into_iter().map(|finding| finding.verdict);
        verdicts.max().unwrap_or(Self::Ok)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
