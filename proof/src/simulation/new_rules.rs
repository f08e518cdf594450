//! The rules of a fleet before and after an operator changes them.

use redlock_core::Fencing;

use super::clock::Moment;
use super::fencing;
use super::scenario::Scenario;

/// The rules that an operator gives a fleet in the course of a world.
#[derive(Debug)]
pub(crate) struct NewRules {
    /// The rules before it and after it.
    pub(super) before: Fencing,
    pub(super) after: Fencing,
    pub(super) fencing: fencing::Fencing,
    /// When a node was last given them.
    pub(super) written_at: Option<Moment>,
    pub(super) is_complete: bool,
    /// Tokens of attempts to which a node has answered that it has other rules.
    pub(super) mismatched: Vec<usize>,
}

impl NewRules {
    pub(super) fn of(scenario: &Scenario) -> Option<Self> {
        let fencing = scenario.fencing?;
        Some(Self {
            before: scenario.before?.rules().ok()?,
            after: fencing.rules().ok()?,
            fencing,
            written_at: None,
            is_complete: false,
            mismatched: Vec::new(),
        })
    }
}
