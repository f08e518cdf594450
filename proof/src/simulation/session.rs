//! What a task tells of its calls, and what a world tells it that a client could not know.

use core::time::Duration;

use redlock_core::Instant;
use redlock_core::transport::NodeInfo;

use super::assumption::Assumption;
use super::clock::Moment;
use super::fencing::Jumps;
use super::history::{Call, End, Message, Span, Task, What};
use super::place::Route;
use super::state::State;

impl State {
    /// A call begins that ends within `bound` by the clock of its client, and the ticks by which each sleep in
    /// it is rounded up.
    pub(crate) fn begin(&mut self, task: Task, call: Call, bound: Duration) {
        let tick = self.processes[task.client].clock.resolution();
        let bound = u64::try_from((bound + TICKS * tick).as_micros()).unwrap_or(u64::MAX);
        let local = self.local(task.client);
        self.tell_of(task.client, What::Begins(task, call, Span { local, bound }));
        self.mailboxes.begin(task, call);
    }

    pub(crate) fn end(&mut self, task: Task, call: Call, end: End) {
        let local = self.local(task.client);
        self.tell_of(task.client, What::Ends(task, call, end, local));
        self.mailboxes.stop_waiting(task);
    }

    /// By how much the clocks of the nodes differ now.
    pub(crate) fn clock_spread(&self) -> u64 {
        let clocks = self
            .machines
            .iter()
            .map(|machine| machine.dial.reads(self.now));
        let last = clocks.clone().max().unwrap_or_default();
        last - clocks.min().unwrap_or_default()
    }

    /// The task has the lock.
    pub(crate) fn stop_waiting(&mut self, task: Task) {
        self.mailboxes.stop_waiting(task);
    }

    /// When the clock of `client` reads `reading`.
    pub(crate) fn end_of(&self, client: usize, reading: Instant) -> Moment {
        self.processes[client].clock.first(reading.as_micros())
    }

    /// What the clock of `client` reads at `moment`.
    pub(crate) fn reading(&self, client: usize, moment: Moment) -> Instant {
        Instant::from_micros(self.processes[client].clock.reads(moment))
    }

    /// The client has been told who a node is. Of two names for one server, each is told by itself.
    pub(super) fn tell_max_ttl(&mut self, route: Route, node_info: &NodeInfo) {
        if !self.names_twice(route.client) {
            self.tell_of(route.client, What::Told(route, node_info.max_ttl_ms));
        }
    }

    pub(super) fn attempted(&mut self, task: Task, message: Message) {
        let attempt = (task, message.key, message.token);
        if !self.attempts.contains(&attempt) {
            self.attempts.push(attempt);
        }
    }

    /// Moves what `task` has tried since it was last asked to `into`.
    pub(crate) fn take_attempts(&mut self, task: Task, into: &mut Vec<(usize, usize)>) {
        self.attempts.retain(|(whose, key, token)| {
            let is_its = *whose == task;
            if is_its {
                into.push((*key, *token));
            }
            !is_its
        });
    }

    /// Tells how far the idea that a task has of the nodes' time is from the clocks that are right, where so few are
    /// wrong that they cannot be most of the answers from which it is learned.
    pub(crate) fn compare_idea(&mut self, task: Task, offset: i64, begun_at: Instant) {
        let nodes = self.machines.len();
        let enough = nodes - nodes / 2;
        let wrong = self
            .machines
            .iter()
            .filter(|machine| machine.was_wrong)
            .count();
        let has_right = matches!(self.jumps, Some(Jumps::None | Jumps::Minority));
        if !has_right || self.names_twice(task.client) || 2 * wrong >= enough {
            return;
        }
        let at = self.moment_of(task.client);
        let now = self.reading(task.client, at);
        let idea = now.as_micros().saturating_add_signed(offset);
        let off = idea.wrapping_sub(self.right.reads(at)).cast_signed();
        // An answer is as old as the call at the most, and clocks of clients have ticks and drift.
        let taken = now.saturating_duration_since(begun_at).as_micros();
        let tick = self.processes[task.client].clock.resolution().as_micros();
        let most = u64::try_from(taken + 2 * tick).unwrap_or(u64::MAX);
        self.tell_of(
            task.client,
            What::Believes(task, off, most + self.skew + 1_000),
        );
    }

    /// For a client that follows any clock: that of the first node.
    pub(crate) fn offset_of_one_clock(&self, client: usize) -> Option<i64> {
        if !self.fails(Assumption::OneClock) {
            return None;
        }
        let at = self.moment_of(client);
        let reading = self.machines.first()?.dial.reads(at);
        let ours = self.reading(client, at).as_micros();
        Some(reading.wrapping_sub(ours).cast_signed())
    }

    /// By the clock of the client, without its ticks.
    fn local(&self, client: usize) -> u64 {
        let at = self.moment_of(client);
        self.processes[client].clock.dial().reads(at)
    }
}

/// More than there are deadlines in a call that are not its own.
const TICKS: u32 = 8;
