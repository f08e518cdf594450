//! Which token stood where, and when.

use core::ops::Range;
use std::collections::BTreeMap;

use super::super::clock::Moment;
use super::super::history::{KEYS, Place};

/// What stood on the nodes.
#[derive(Debug, Default)]
pub(super) struct Standings {
    quorum: usize,
    now: BTreeMap<Place, Standing>,
    /// By the token: where it stood and does no more.
    past: BTreeMap<usize, Vec<Standing>>,
}

#[derive(Debug, Clone, Copy)]
struct Standing {
    token: usize,
    from: Moment,
    until: Moment,
}

impl Standings {
    pub(super) const fn new(quorum: usize) -> Self {
        Self {
            quorum,
            now: BTreeMap::new(),
            past: BTreeMap::new(),
        }
    }

    pub(super) fn stands(&mut self, at: Moment, place: Place, token: usize, until: Moment) {
        match self.now.get_mut(&place) {
            Some(standing) if standing.token == token && at <= standing.until => {
                standing.until = until;
            }
            _ => {
                self.falls(at, place);
                self.now.insert(
                    place,
                    Standing {
                        token,
                        from: at,
                        until,
                    },
                );
            }
        }
    }

    pub(super) fn falls(&mut self, at: Moment, place: Place) {
        if let Some(mut standing) = self.now.remove(&place) {
            standing.until = standing.until.min(at);
            self.past.entry(standing.token).or_default().push(standing);
        }
    }

    pub(super) fn forgets(&mut self, at: Moment, node: usize) {
        (0..KEYS.len()).for_each(|key| self.falls(at, Place { node, key }));
    }

    /// Nothing more happens: each key expires when it does.
    pub(super) fn close(&mut self) {
        while let Some((_, standing)) = self.now.pop_first() {
            self.past.entry(standing.token).or_default().push(standing);
        }
    }

    pub(super) fn has_quorum(&self, at: Moment, key: usize, token: usize) -> bool {
        let carry = self.now.iter().filter(|(place, standing)| {
            place.key == key && standing.token == token && at < standing.until
        });
        carry.count() >= self.quorum
    }

    /// The first moment of `span` at which no quorum carried `token`: only where it ceased to stand somewhere.
    pub(super) fn first_loss(&self, token: usize, span: Range<Moment>) -> Option<Moment> {
        let stood = self.past.get(&token).map_or(&[][..], Vec::as_slice);
        let carry = |at: &Moment| {
            let carry = stood
                .iter()
                .filter(|one| (one.from..one.until).contains(at));
            carry.count()
        };
        let ends = stood
            .iter()
            .map(|one| one.until)
            .filter(|at| span.contains(at));
        ends.chain([span.start])
            .filter(|at| carry(at) < self.quorum)
            .min()
    }
}
