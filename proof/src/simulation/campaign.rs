//! Many seeds, spread over threads; each one by itself is the same whatever the others do.

use std::num::NonZero;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::assumption::Assumption;
use super::promise::Promise;
use super::run::Run;
use super::summary::Summary;

/// What came of many seeds.
#[derive(Debug)]
pub struct Campaign {
    /// What was done in them.
    pub summary: Summary,
    /// The first seed in which something was found, and what.
    pub found: Option<(u64, Promise)>,
}

impl Campaign {
    /// Runs `seeds` until something is found, or all of them: without a broken assumption a broken promise,
    /// with one of the algorithm two that hold one lock.
    #[must_use]
    pub fn run(seeds: Range<u64>, broken: Option<Assumption>, threads: NonZero<usize>) -> Self {
        let next = AtomicU64::new(seeds.start);
        let end = AtomicU64::new(seeds.end);
        let worker = || {
            let mut campaign = Self {
                summary: Summary::NONE,
                found: None,
            };
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end.load(Ordering::Relaxed) {
                    return campaign;
                }
                let run = Run::of(seed, broken);
                campaign.summary += run.summary();
                if let Some(promise) = run
                    .broken_promises()
                    .find(|promise| is_looked_for(*promise, broken))
                {
                    campaign.found = campaign.found.or(Some((seed, promise)));
                    // Seeds before this one may still find something; those after it need not be run.
                    end.fetch_min(seed, Ordering::Relaxed);
                }
            }
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..threads.get()).map(|_| scope.spawn(worker)).collect();
            let mut all = Self {
                summary: Summary::NONE,
                found: None,
            };
            for worker in workers {
                match worker.join() {
                    Ok(campaign) => all.add(campaign),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        })
    }

    fn add(&mut self, other: Self) {
        self.summary += &other.summary;
        let found = self.found.into_iter().chain(other.found);
        self.found = found.min_by_key(|(seed, _)| *seed);
    }
}

fn is_looked_for(promise: Promise, broken: Option<Assumption>) -> bool {
    match broken {
        Some(assumption) => assumption.breaks().is_none_or(|broken| broken == promise),
        None => true,
    }
}
