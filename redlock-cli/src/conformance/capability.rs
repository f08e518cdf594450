//! One thing that a server can do or cannot.

use clap::ValueEnum;
use serde_json::{Value, json};

/// A kind of lock, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Plain locks
    Plain,
    /// The restart guard of plain locks
    Guard,
    /// Fenced locks
    Fenced,
    /// The waiting line
    Line,
}

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Plain, Self::Guard, Self::Fenced, Self::Line];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Guard => "guard",
            Self::Fenced => "fenced",
            Self::Line => "line",
        }
    }
}

/// Needed for all kinds.
pub(super) const ALL: &[Kind] = &Kind::ALL;

/// Needed for what relies on the identity of a server.
pub(super) const IDENTIFIED: &[Kind] = &[Kind::Guard, Kind::Fenced];

pub(super) const FENCED: &[Kind] = &[Kind::Fenced];

pub(super) const LINE: &[Kind] = &[Kind::Line];

/// What a trial has found.
#[derive(Debug)]
pub(crate) struct Capability {
    pub(crate) name: &'static str,
    pub(crate) needed_for: &'static [Kind],
    /// What was seen, or why the server cannot do it.
    pub(crate) found: Result<String, String>,
}

impl Capability {
    pub(super) const fn new(
        name: &'static str,
        needed_for: &'static [Kind],
        found: Result<String, String>,
    ) -> Self {
        Self {
            name,
            needed_for,
            found,
        }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.found.is_ok()
    }

    pub(crate) fn message(&self) -> &str {
        match &self.found {
            Ok(message) | Err(message) => message,
        }
    }

    pub(crate) fn json(&self) -> Value {
        let needed_for: Vec<_> = self.needed_for.iter().map(|kind| kind.name()).collect();
        json!({
            "capability": self.name,
            "yes": self.is_there(),
            "needed_for": needed_for,
            "message": self.message(),
        })
    }
}
