//! What the clients' words come to: leases, waits, and uses of what the lock protects.

use std::collections::BTreeMap;
use std::time::Duration;

use redlock_core::Instant;

use crate::exclusion::Holding;

use super::order::Issued;
use super::record::Record;
use super::said::{Flaw, Refusal, Said, Use};

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) leases: Vec<Lease>,
    pub(super) refusals: Vec<(usize, Refusal)>,
    pub(super) uses: Vec<Used>,
    /// In the order of the leases that have one.
    pub(super) fences: Vec<Issued>,
    /// For each of them how long after it was wanted the round began that won it.
    pub(super) delays: Vec<Duration>,
    /// How many votes were missing for what, in tries that failed.
    pub(super) denied: BTreeMap<Flaw, u64>,
    /// The clients that the resource turned away: each with the time, and with the end of its lease as it knew it.
    pub(super) turned_away: Vec<TurnedAway>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct TurnedAway {
    pub(super) voice: usize,
    pub(super) at: Instant,
    pub(super) valid_until: Instant,
}

/// A lease, as its holder believed in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) client: usize,
    pub(super) voice: usize,
    /// Since when it was wanted; tries that failed included.
    pub(super) wanted: Instant,
    pub(super) acquired: Instant,
    pub(super) valid_until: Instant,
    /// When its holder gave it up; none for one that was killed before.
    pub(super) let_go: Option<Instant>,
    /// When its holder heard that the nodes know nothing of it.
    pub(super) lost: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Used {
    pub(super) used: Use,
    /// It was over before the lease was. Of a fenced lock none is too late that was let in.
    pub(super) is_in_time: bool,
}

impl History {
    pub(super) fn of(record: &Record) -> Self {
        let mut history = Self::default();
        let mut wanted = BTreeMap::new();
        // The last lease of each voice.
        let mut last = BTreeMap::new();
        for (voice, said) in &record.said {
            let Some(client) = record.voices.get(*voice).copied() else {
                continue;
            };
            let lease: Option<&mut Lease> = last
                .get(voice)
                .and_then(|number: &usize| history.leases.get_mut(*number));
            match *said {
                Said::Wants { at } => {
                    wanted.entry(*voice).or_insert(at);
                }
                Said::Refused { why, .. } => history.refusals.push((client, why)),
                Said::Acquired { at, valid_until } => {
                    last.insert(*voice, history.leases.len());
                    history.leases.push(Lease {
                        client,
                        voice: *voice,
                        wanted: wanted.remove(voice).unwrap_or(at),
                        acquired: at,
                        valid_until,
                        let_go: None,
                        lost: None,
                    });
                }
                Said::Fenced { asked, sent, fence } => {
                    if let Some(lease) = lease {
                        let at = lease.acquired;
                        history.fences.push(Issued { sent, at, fence });
                        history.delays.push(sent.saturating_duration_since(asked));
                    }
                }
                Said::Denied { why, nodes } => *history.denied.entry(why).or_default() += nodes,
                Said::TurnedAway { at, valid_until } => history.turned_away.push(TurnedAway {
                    voice: *voice,
                    at,
                    valid_until,
                }),
                Said::Extended { valid_until } => {
                    if let Some(lease) = lease {
                        lease.extended_until(valid_until);
                    }
                }
                Said::Used {
                    at,
                    valid_until,
                    used,
                } => {
                    if let Some(lease) = lease {
                        lease.extended_until(valid_until);
                    }
                    history.uses.push(Used {
                        used,
                        is_in_time: at < valid_until || record.lock.is_fenced(),
                    });
                }
                Said::LetsGo { at, valid_until } => {
                    if let Some(lease) = lease {
                        lease.extended_until(valid_until);
                        lease.let_go = Some(at);
                    }
                }
                Said::Lost { at } => {
                    if let Some(lease) = lease {
                        lease.lost = Some(at);
                    }
                }
                Said::Idle { .. } => {
                    wanted.remove(voice);
                }
            }
        }
        history
    }

    /// How many votes were missing for `why`.
    pub(super) fn denied(&self, why: Flaw) -> u64 {
        self.denied.get(&why).copied().unwrap_or_default()
    }

    /// Whether `client` held the lock at `at`.
    pub(super) fn is_holder(&self, client: usize, at: Instant) -> bool {
        let mut leases = self.leases.iter().filter(|lease| lease.client == client);
        leases.any(|lease| lease.acquired <= at && at < lease.until())
    }

    pub(super) fn holdings(&self) -> Vec<Holding> {
        self.leases.iter().map(Lease::holding).collect()
    }
}

impl Lease {
    /// Until when its holder counted on it. One that was killed counts on it to the end: it has not released
    /// it.
    pub(super) fn until(&self) -> Instant {
        let let_go = self.let_go.unwrap_or(Instant::MAX);
        self.valid_until.min(let_go)
    }

    fn holding(&self) -> Holding {
        Holding {
            key: 0,
            holder: self.voice,
            from: self.acquired,
            until: self.until(),
        }
    }

    fn extended_until(&mut self, valid_until: Instant) {
        self.valid_until = self.valid_until.max(valid_until);
    }
}
