//! The search itself: each state once, the nearest ones first.
//!
//! [`stateright`] searches as well, and knows the way to each state. What is asked here is only how far the nearest state is, if any,
//! in which a promise is broken. So this search keeps one number of each state, in one thread: it takes half of the time, and other
//! threads search other worlds meanwhile.

use core::hash::{BuildHasher, Hash};
use std::collections::{BTreeMap, HashSet};

use foldhash::fast::FixedState as Placing;
use foldhash::quality::FixedState as Numbering;
use stateright::{Expectation, Model};

/// What a search has come to.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) states: usize,
    /// How many states the longest of the shortest ways has.
    pub(super) depth: usize,
    /// By the property: after how many steps it was broken, or seen if it has to be seen.
    pub(super) steps: BTreeMap<&'static str, usize>,
}

/// Searches all of `model`, or until a property is broken that `ends` the search.
pub(super) fn explore<M>(model: &M, ends: impl Fn(&'static str) -> bool) -> Found
where
    M: Model,
    M::State: Hash,
{
    let properties = model.properties();
    let numbering = Numbering::default();
    let mut numbers = HashSet::with_hasher(Placing::default());
    let mut found = Found {
        states: 0,
        depth: 0,
        steps: BTreeMap::new(),
    };
    let mut level = Level::default();
    for state in model.init_states() {
        if numbers.insert(numbering.hash_one(&state)) {
            level.push(state);
        }
    }
    let mut actions = Vec::new();
    while !level.0.is_empty() {
        let steps = found.depth;
        found.depth += 1;
        let mut next_level = Level::default();
        for state in level.0.into_iter().flatten() {
            found.states += 1;
            for property in &properties {
                let is_always = match property.expectation {
                    Expectation::Always => true,
                    Expectation::Sometimes => false,
                    Expectation::Eventually => unreachable!("no promise says so"),
                };
                let is_known = found.steps.contains_key(property.name);
                if is_known || (property.condition)(model, &state) == is_always {
                    continue;
                }
                found.steps.insert(property.name, steps);
                if is_always && ends(property.name) {
                    return found;
                }
            }
            model.actions(&state, &mut actions);
            for action in actions.drain(..) {
                let Some(next) = model.next_state(&state, action) else {
                    continue;
                };
                if model.within_boundary(&next) && numbers.insert(numbering.hash_one(&next)) {
                    next_level.push(next);
                }
            }
        }
        level = next_level;
    }
    found
}

/// The states that are equally far, in pieces: none is moved when more come, and each piece is freed when it is done.
struct Level<S>(Vec<Vec<S>>);

impl<S> Default for Level<S> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<S> Level<S> {
    const PIECE: usize = 1_024;

    fn push(&mut self, state: S) {
        match self.0.last_mut() {
            Some(piece) if piece.len() < Self::PIECE => piece.push(state),
            _ => {
                let mut piece = Vec::with_capacity(Self::PIECE);
                piece.push(state);
                self.0.push(piece);
            }
        }
    }
}
