//! Things that are large and few, each under a number: a state that has their numbers is small, and quick to copy and compare.

use core::hash::Hash;
use std::collections::HashMap;
use std::sync::RwLock;

use foldhash::fast::RandomState;

/// All things of one kind so far. A number is never given to another thing. Reading takes no lock.
#[derive(Debug)]
pub(super) struct Numbered<T> {
    things: boxcar::Vec<T>,
    numbers: RwLock<HashMap<T, u32, RandomState>>,
}

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self {
            things: boxcar::Vec::new(),
            numbers: RwLock::default(),
        }
    }
}

impl<T: Clone + Eq + Hash> Numbered<T> {
    pub(super) fn get(&self, number: u32) -> &T {
        &self.things[number as usize]
    }

    /// The number of `thing`: the next one if it is new.
    pub(super) fn number(&self, thing: T) -> u32 {
        if let Some(&known) = self.numbers.read().expect(NO_PANIC).get(&thing) {
            return known;
        }
        let mut numbers = self.numbers.write().expect(NO_PANIC);
        *numbers.entry(thing).or_insert_with_key(|thing| {
            let number = self.things.push(thing.clone());
            u32::try_from(number).expect("fewer things than memory")
        })
    }
}

const NO_PANIC: &str = "no thread has panicked";
