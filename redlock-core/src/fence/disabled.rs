//! Proposals and readings without the features `fence` and `mock`: these types have no values and take no space. Types
//! with fields would take space in every command, lease and answer.
//!
//! The types in `enabled.rs` must have the same methods.

use core::marker::PhantomData;

use crate::fence::{Fence, FencesEnabled, Fencing};

/// The fence that an attempt proposes or a lease has. Without the feature `fence`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Proposal(FencesEnabled);

impl Proposal {
    pub(crate) const fn new(_fence: Fence, fencing: Fencing, _time: u64, _vouches: bool) -> Self {
        match fencing.on {}
    }

    pub(crate) const fn vouches(&self) -> bool {
        match self.0 {}
    }

    pub(crate) const fn fence(&self) -> Fence {
        match self.0 {}
    }

    pub(crate) const fn fencing_ms(&self) -> [u32; 3] {
        match self.0 {}
    }

    pub(crate) const fn time(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) const fn at(self, _time: u64) -> Self {
        match self.0 {}
    }
}

/// The details of a node's answer to a fenced acquire or extend. Without the feature `fence`, there is no value of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Reading(FencesEnabled);

impl Reading {
    pub(crate) const fn of(proposal: &Proposal, _time: u64, _fence: Fence, _held_ms: u32) -> Self {
        match proposal.0 {}
    }

    pub(crate) const fn time(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) const fn fence(&self) -> Fence {
        match self.0 {}
    }

    pub(crate) const fn held_ms(&self) -> u32 {
        match self.0 {}
    }

    pub(crate) fn with<T>(&self, _value: T) -> Fenced<T> {
        match self.0 {}
    }
}

/// A value that comes from a reading: there is none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fenced<T>(FencesEnabled, PhantomData<T>);

impl<T> Fenced<T> {
    pub(crate) const fn get(&self) -> &T {
        match self.0 {}
    }
}
