//! Whether every call ended, and in time.

use super::super::clock::{Moment, Seconds};
use super::super::history::{Call, End, Span, Task};
use super::super::promise::Promise;
use super::Breach;

/// The calls under way, and the pauses that excuse them.
#[derive(Debug, Default)]
pub(super) struct Calls {
    running: Vec<Running>,
    pauses: Vec<Pause>,
}

#[derive(Debug)]
struct Running {
    task: Task,
    call: Call,
    since: Moment,
    span: Span,
}

/// A process is not run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pause {
    client: usize,
    pub(super) from: Moment,
    pub(super) until: Moment,
    /// How far its clock moves on.
    local: u64,
}

impl Calls {
    pub(super) fn begins(&mut self, at: Moment, task: Task, call: Call, span: Span) {
        let since = at;
        self.running.push(Running {
            task,
            call,
            since,
            span,
        });
    }

    /// What it has begun does not end.
    pub(super) fn died(&mut self, client: usize) {
        self.running.retain(|running| running.task.client != client);
    }

    pub(super) fn paused(&mut self, client: usize, from: Moment, until: Moment, local: u64) {
        self.pauses.push(Pause {
            client,
            from,
            until,
            local,
        });
    }

    /// The pauses of a client that last beyond `since`.
    pub(super) fn pauses(&self, client: usize, since: Moment) -> impl Iterator<Item = &Pause> {
        let pauses = self.pauses.iter();
        pauses.filter(move |pause| pause.client == client && pause.until > since)
    }

    pub(super) fn ends(
        &mut self,
        at: Moment,
        task: Task,
        call: Call,
        end: End,
        local: u64,
    ) -> Option<Breach> {
        let place = self
            .running
            .iter()
            .position(|running| running.task == task)?;
        let Running { since, span, .. } = self.running.swap_remove(place);
        let pauses = self
            .pauses(task.client, since)
            .filter(|pause| pause.from <= at);
        let paused: u64 = pauses.map(|pause| pause.local).sum();
        let taken = local - span.local;
        let breach = |promise, what| Breach {
            promise,
            at,
            since,
            tokens: Vec::new(),
            what,
        };
        if taken > span.bound.saturating_add(paused) {
            let bound = span.bound;
            let what = format!(
                "{task} ends {call} after {taken} us of its clock; {bound} are promised, and pauses took {paused}"
            );
            return Some(breach(Promise::Time, what));
        }
        let is_denied = matches!(call, Call::CalmAcquire(_)) && end != End::Done;
        is_denied.then(|| {
            let what = format!("{task} does not get the lock although nothing goes wrong: {end:?}");
            breach(Promise::Progress, what)
        })
    }

    pub(super) fn never_ended(&mut self) -> impl Iterator<Item = Breach> {
        self.running.drain(..).map(
            |Running {
                 task,
                 call,
                 since,
                 span,
             }| Breach {
                promise: Promise::Time,
                // Roughly, by another clock.
                at: since.saturating_add(span.bound),
                since,
                tokens: Vec::new(),
                what: format!("{task} never ends {call}, begun at {}", Seconds(since)),
            },
        )
    }
}
