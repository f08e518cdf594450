//! What was found in one respect.

use core::fmt;

use serde_json::Value;

/// One line: what is so, and what to do about it.
#[derive(Debug)]
pub(crate) struct Finding {
    /// Its name, which stays the same for programs.
    pub(crate) check: &'static str,
    pub(crate) verdict: Verdict,
    pub(crate) message: String,
    /// What was measured: an object.
    pub(crate) facts: Value,
}

/// How things are; the worst of several is the greatest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    Ok,
    /// It holds as long as nothing else goes wrong.
    Warn,
    /// The node does not count, or may give a lock away that is held.
    Bad,
}

impl Finding {
    pub(crate) fn new(check: &'static str, (verdict, message): Judgement, facts: Value) -> Self {
        Self {
            check,
            verdict,
            message,
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
