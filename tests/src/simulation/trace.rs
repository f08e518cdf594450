//! What led to a broken promise, for people.

use core::fmt;

use super::history::{Fact, What};
use super::judge::Breach;

/// The part of a history that matters for a breach.
#[derive(Debug)]
pub(crate) struct Excerpt<'a> {
    facts: &'a [Fact],
    breach: &'a Breach,
}

impl<'a> Excerpt<'a> {
    pub(crate) const fn new(facts: &'a [Fact], breach: &'a Breach) -> Self {
        Self { facts, breach }
    }

    fn matters(&self, fact: &Fact) -> bool {
        let Breach { at, since, .. } = *self.breach;
        let is_in_time = (since..=at).contains(&fact.at);
        let is_about_the_key = match (fact.what.key(), self.breach.key) {
            (Some(one), Some(other)) => one == other,
            _ => true,
        };
        is_in_time && is_about_the_key
    }
}

/// A trace is read from its end: that many lines of it.
const LINES: usize = 80;

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<_> = self
            .facts
            .iter()
            .filter(|fact| self.matters(fact))
            .collect();
        let left_out = lines.len().saturating_sub(LINES);
        if left_out > 0 {
            writeln!(f, "      ({left_out} lines before)")?;
        }
        for fact in &lines[left_out..] {
            writeln!(f, "{fact}")?;
        }
        writeln!(f, "{}", self.breach)
    }
}

impl What {
    /// The key that it is about; none where it may be about any.
    const fn key(&self) -> Option<usize> {
        match self {
            Self::Begins { call, .. } | Self::Ends { call, .. } => call.key(),
            Self::Granted { key, .. }
            | Self::Extended { key, .. }
            | Self::Over { key, .. }
            | Self::CalledLost { key, .. }
            | Self::CalledDone { key, .. }
            | Self::Works { key, .. }
            | Self::Stops { key, .. }
            | Self::Stands { key, .. }
            | Self::Falls { key, .. }
            | Self::Probed { key, .. } => Some(*key),
            Self::Sent { message, .. }
            | Self::Executed { message, .. }
            | Self::Answered { message, .. } => Some(message.key),
            Self::Paused { .. }
            | Self::Connection { .. }
            | Self::Forgets { .. }
            | Self::Fault(_)
            | Self::Calm
            | Self::Endless => None,
        }
    }
}
