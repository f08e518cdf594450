//! Searches on all cores at once, each in one thread.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// A search, and how to say what it has come to.
pub(super) struct Task<R> {
    /// How many millions of states it has, about: the longest ones begin first, so that all cores are busy to the end.
    pub(super) weight: u32,
    pub(super) run: Box<dyn Fn() -> R + Send + Sync>,
}

impl<R> Task<R> {
    pub(super) fn new(weight: u32, run: impl Fn() -> R + Send + Sync + 'static) -> Self {
        let run = Box::new(run);
        Self { weight, run }
    }
}

/// Runs all tasks, and hands what they return to `take`, in the order of the tasks.
pub(super) fn run_all<R: Send>(tasks: &[Task<R>], mut take: impl FnMut(R)) {
    let mut order: Vec<_> = tasks.iter().enumerate().collect();
    order.sort_by_key(|(_, task)| core::cmp::Reverse(task.weight));
    let (order, next) = (&order, &AtomicUsize::new(0));
    let (sender, done) = mpsc::channel();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            let sender = sender.clone();
            scope.spawn(move || {
                while let Some((number, task)) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if sender.send((*number, (task.run)())).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut number = 0;
        for (done, result) in done {
            early.insert(done, result);
            while let Some(result) = early.remove(&number) {
                take(result);
                number += 1;
            }
        }
    });
}
