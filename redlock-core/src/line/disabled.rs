//! Places in a line without the features `queue` and `mock`: these types have no values and take no space. Types with fields
//! would take space in every command and answer.
//!
//! The types in `enabled.rs` must have the same methods.

use core::marker::PhantomData;

use crate::line::Refusal;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
enum Never {}

/// The name of a client in the lines of the nodes. Without the feature `queue`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Mailbox(Never);

/// What a client tells a node about its place in the line. Without the feature `queue`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Place(Never);

impl Place {
    pub(crate) const fn at(self, _mailbox: Option<Mailbox>) -> Option<Self> {
        match self.0 {}
    }

    pub(crate) const fn mailbox_word<'a>(&self) -> Option<LineWord<'a>> {
        match self.0 {}
    }

    pub(crate) const fn is_outside(&self) -> bool {
        match self.0 {}
    }

    pub(crate) const fn queue_key<'a>(&self, _key: &'a [u8]) -> LineWord<'a> {
        match self.0 {}
    }

    pub(crate) const fn ticket(&self) -> Option<u64> {
        match self.0 {}
    }

    pub(crate) const fn turn_ms(&self) -> u32 {
        match self.0 {}
    }

    pub(crate) const fn position(
        &self,
        _refusal: Refusal,
        _time: u64,
        _left_ms: u32,
        _ahead: u32,
    ) -> Position {
        match self.0 {}
    }

    pub(crate) const fn line_report(&self, _ahead: Option<u32>, _has_waiters: bool) -> LineReport {
        match self.0 {}
    }

    pub(crate) const fn waiters(&self) -> Waiters {
        match self.0 {}
    }
}

/// The answer of a node that refuses a client in its line. Without the feature `queue`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Position(Never);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub(crate) struct LineReport(Never);

impl LineReport {
    pub(crate) const fn ahead(&self) -> Option<u32> {
        match self.0 {}
    }

    pub(crate) const fn has_waiters(&self) -> bool {
        match self.0 {}
    }
}

/// A marker in the answer to a release. Without the feature `queue`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Waiters(Never);

/// A word of a command that concerns the line. Without the feature `queue`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LineWord<'a>(Never, PhantomData<&'a [u8]>);

impl LineWord<'_> {
    /// The word in two pieces.
    #[must_use]
    pub const fn pieces(&self) -> (&str, &[u8]) {
        match self.0 {}
    }
}
