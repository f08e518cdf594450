//! Which token stood where, and when.

use core::ops::Range;
use std::collections::BTreeMap;

use super::super::clock::Moment;
use super::super::place::Place;

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
    /// The node has lost it, and must let nobody else in until it would have been over.
    is_forgotten: bool,
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
                // Older data may have it with an earlier end; until the later one nobody else is let in.
                if !standing.is_forgotten || until >= standing.until {
                    standing.until = until;
                    standing.is_forgotten = false;
                }
            }
            _ => {
                self.falls(at, place);
                self.now.insert(
                    place,
                    Standing {
                        token,
                        from: at,
                        until,
                        is_forgotten: false,
                    },
                );
            }
        }
    }

    pub(super) fn falls(&mut self, at: Moment, place: Place) {
        if let Some(mut standing) = self.now.remove(&place) {
            // What was forgotten is kept up to its end, whatever has come back with older data.
            if !standing.is_forgotten {
                standing.until = standing.until.min(at);
            }
            self.past.entry(standing.token).or_default().push(standing);
        }
    }

    pub(super) fn forgets(&mut self, node: usize, key: Option<usize>) {
        let all = self.now.iter_mut();
        all.filter(|(place, _)| place.node == node && key.is_none_or(|key| place.key == key))
            .for_each(|(_, standing)| standing.is_forgotten = true);
    }

    /// Nothing more happens: each key expires when it does.
    pub(super) fn close(&mut self) {
        while let Some((_, standing)) = self.now.pop_first() {
            self.past.entry(standing.token).or_default().push(standing);
        }
    }

    /// Whether a quorum carries `token`.
    pub(super) fn has_quorum(&self, at: Moment, key: usize, token: usize) -> bool {
        let carry = self.on(at, key, token);
        carry.filter(|standing| !standing.is_forgotten).count() >= self.quorum
    }

    /// Whether a quorum carries `token`, or would if it had not forgotten it: nobody else can have one.
    pub(super) fn is_kept(&self, at: Moment, key: usize, token: usize) -> bool {
        let past = self.past.get(&token).map_or(&[][..], Vec::as_slice);
        let forgotten = past
            .iter()
            .filter(|one| one.is_forgotten && (one.from..one.until).contains(&at));
        self.on(at, key, token).count() + forgotten.count() >= self.quorum
    }

    fn on(&self, at: Moment, key: usize, token: usize) -> impl Iterator<Item = &Standing> {
        let on_key = self.now.iter().filter(move |(place, _)| place.key == key);
        on_key
            .map(|(_, standing)| standing)
            .filter(move |standing| standing.token == token && at < standing.until)
    }

    /// The first moment of `span` at which no quorum carried `token`, or would have: only where it ceased to stand somewhere.
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
