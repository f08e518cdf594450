//! The queue of events: what is going to happen, and when.

use core::cmp::Ordering;
use std::collections::BinaryHeap;

use super::chance::Chance;
use super::clock::{Moment, NEVER};

/// The events to come, the next one first.
#[derive(Debug)]
pub(crate) struct Queue<E> {
    events: BinaryHeap<Scheduled<E>>,
    chance: Chance,
    count: u32,
}

#[derive(Debug)]
struct Scheduled<E> {
    at: Moment,
    /// Drawn: nothing in a world orders what happens at one moment.
    order: u64,
    event: E,
}

impl<E> Queue<E> {
    pub(crate) const fn new(chance: Chance) -> Self {
        Self {
            events: BinaryHeap::new(),
            chance,
            count: 0,
        }
    }

    /// Does nothing where the moment does not come.
    pub(crate) fn add(&mut self, at: Moment, event: E) {
        if at == NEVER {
            return;
        }
        self.count += 1;
        let drawn = self.chance.bits() & !u64::from(u32::MAX);
        let order = drawn | u64::from(self.count);
        self.events.push(Scheduled { at, order, event });
    }

    pub(crate) fn next(&mut self) -> Option<(Moment, E)> {
        self.events.pop().map(|next| (next.at, next.event))
    }
}

impl<E> Scheduled<E> {
    const fn rank(&self) -> (Moment, u64) {
        (self.at, self.order)
    }
}

/// A binary heap gives its greatest first: that is the earliest.
impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<E> Eq for Scheduled<E> {}
