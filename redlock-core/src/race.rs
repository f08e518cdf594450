//! The loop of a round: one call per node, and one timer.

use core::array;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, ready};
use core::time::Duration;

use embassy_futures::select::select_slice;
use pin_project_lite::pin_project;

use crate::clock_samples::ClockSamples;
use crate::command::Command;
use crate::denial::Denial;
use crate::failure::{Failure, NodeError};
use crate::line_samples::LineSamples;
use crate::report::{Outcome, Report};
use crate::round::{NodeSet, Round, Verdict, Vote};
use crate::time::Clock;
use crate::transport::{NodeErrorOf, Transport};

/// A round and its result. It is passed by reference, because reports are large and would be copied from call
/// to call.
///
/// Three sets of nodes can differ:
///
/// - `recipients`: the nodes that are sent the command.
/// - The voters of `round`: the nodes whose votes count. If the round grants or extends a lease, these are all nodes. If several of
///   them are one process, one vote of it counts.
/// - The nodes that may carry the token after the round, see `carriers` in `redlock/attempt.rs`.
pub(crate) struct Ballot<'c, E, const MAX: usize> {
    pub(crate) command: Command<'c>,
    pub(crate) recipients: NodeSet,
    pub(crate) round: Round,
    /// `Pending` until [`race`] has returned.
    pub(crate) verdict: Verdict,
    pub(crate) report: Report<E, MAX>,
    /// The nodes whose vote did not count, because another name of their process has voted.
    pub(crate) uncounted: NodeSet,
    pub(crate) samples: ClockSamples<MAX>,
    pub(crate) line: LineSamples<MAX>,
}

impl<'c, E, const MAX: usize> Ballot<'c, E, MAX> {
    /// A round that sends `command` to `recipients`, out of `nodes` nodes.
    pub(crate) fn new(
        command: Command<'c>,
        recipients: NodeSet,
        nodes: usize,
        round: Round,
    ) -> Self {
        Self {
            command,
            recipients,
            round,
            verdict: Verdict::Pending,
            report: Report::new(command.key, nodes),
            uncounted: NodeSet::EMPTY,
            samples: ClockSamples::new(),
            line: LineSamples::new(),
        }
    }
}

/// Sends the command of `ballot` to all recipients at once, and waits until the round has a verdict.
///
/// Each poll, also the first one, polls all calls and collects the votes that have arrived, and only then reads the
/// verdict. So every recipient gets the command, even if the first votes decide the round.
///
/// If a win still counts at the deadline (`now < valid_until`), the round does not end yet: the clock first lets the transports
/// read the replies that have arrived. So a task that is polled late loses no vote.
pub(crate) async fn race<T: Transport, C: Clock, const MAX: usize>(
    nodes: &mut [Option<T>; MAX],
    clock: &C,
    ballot: &mut Ballot<'_, NodeErrorOf<T>, MAX>,
) {
    let Ballot {
        command,
        recipients,
        round,
        verdict,
        report,
        uncounted,
        samples,
        line,
    } = ballot;
    let command = &*command;
    let started_at = clock.now();
    *verdict = {
        let mut numbered = nodes.iter_mut().enumerate();
        let mut calls = pin!(array::from_fn::<_, MAX, _>(|_| {
            let transport = numbered
                .next()
                .filter(|(node, _)| recipients.contains(*node))
                .and_then(|(_, transport)| transport.as_mut());
            Once::new(transport.map(|transport| async move {
                // The process is known by then: a transport asks for it on each connection, ahead of the command.
                let result = transport.execute(command).await;
                (result, transport.run_id())
            }))
        }));
        // The processes that have voted.
        let mut run_ids = [None; MAX];
        let mut timer = pin!(clock.sleep_and_catch_up(round.deadline(), round.valid_until()));
        poll_fn(|cx| {
            let mut slice: Pin<&mut [_]> = calls.as_mut();
            while let Poll::Ready(((result, run_id), node)) =
                pin!(select_slice(slice.as_mut())).poll(cx)
            {
                if command.is_fenced() {
                    let answer = result.as_ref().map_err(NodeError::denial).copied();
                    match answer {
                        Err(Some(Denial::Unguarded { .. })) => round.wait_for_all(),
                        Err(Some(denial)) if denial.is_misfit() => {
                            round.wait_for_samples(matches!(denial, Denial::Stale(_)));
                        }
                        _ => {}
                    }
                    // No node with an honest clock grants what is outside of its window. Without this, a hostile node could grant and
                    // so make the client learn a wrong time.
                    if command.can_be_granted(&answer)
                        && samples.record(node, &answer, started_at, clock.now())
                    {
                        round.count_sample();
                    }
                }
                if command.place.is_some() {
                    // What a release tells has no time, and reading a clock takes time.
                    let now = match command.is_release() {
                        true => started_at,
                        false => clock.now(),
                    };
                    line.record(node, &result, started_at, now);
                }
                let outcome = Outcome::of(command, result);
                let mut vote = vote(command, &outcome);
                // If a process has several names, one vote of it counts: the first, or else the first grant. After a grant to one
                // name, another name may refuse because of the key. A release counts for every name.
                let voted = run_ids
                    .iter()
                    .position(|voted| voted.is_some() && *voted == run_id);
                if let Some(voted) = voted.filter(|_| !command.is_release()) {
                    let is_better = vote == Vote::Granted && round.withdraw_refusal(voted);
                    uncounted.insert(if is_better { voted } else { node });
                    if !is_better {
                        vote = Vote::Unknown;
                    }
                }
                round.vote(node, vote);
                if let Some(voted) = run_ids.get_mut(node).filter(|_| vote != Vote::Unknown) {
                    *voted = run_id;
                }
                report.record(node, outcome);
            }
            // The clock is read after the last vote: the time until that vote counts against the validity. Until a quorum has
            // granted, the time does not matter, and reading a clock takes time.
            let now = if round.has_quorum() {
                clock.now()
            } else {
                started_at
            };
            let verdict = round.verdict(now, false);
            if verdict != Verdict::Pending {
                return Poll::Ready(verdict);
            }
            ready!(timer.as_mut().poll(cx));
            Poll::Ready(round.verdict(clock.now(), true))
        })
        .await
    };
    if let Some(place) = &command.place {
        report.set_line(place.line_report(line.ahead(), line.has_waiters()));
    }
    let now = clock.now();
    if now >= round.deadline() {
        let waited = now.saturating_duration_since(started_at);
        record_timeouts(nodes, *recipients, waited, report);
    }
}

/// The vote of a node with this `outcome`. For a release, a refusal counts as a grant: the key is gone already.
fn vote<E>(command: &Command<'_>, outcome: &Outcome<E>) -> Vote {
    match outcome {
        Outcome::Granted => Vote::Granted,
        Outcome::Refused if command.is_release() => Vote::Granted,
        Outcome::Refused => Vote::Refused,
        Outcome::Unanswered | Outcome::Failed(_) => Vote::Unknown,
    }
}

/// Records an error for each recipient that has not answered.
fn record_timeouts<T: Transport, const MAX: usize>(
    nodes: &[Option<T>; MAX],
    recipients: NodeSet,
    waited: Duration,
    report: &mut Report<NodeErrorOf<T>, MAX>,
) {
    for (node, transport) in nodes.iter().enumerate() {
        if let Some(transport) = transport
            && recipients.contains(node)
            && report.is_unanswered(node)
        {
            let cause = transport.explain_timeout(waited);
            let failure = cause.map_or(Failure::TimedOut(waited), Failure::Transport);
            report.record(node, Outcome::failed(transport, failure));
        }
    }
}

pin_project! {
    /// The call of a transport. It is never polled again after it has completed. `None` if it has completed, or if the node
    /// is no recipient.
    pub(crate) struct Once<F> {
        #[pin]
        future: Option<F>,
    }
}

impl<F> Once<F> {
    pub(crate) const fn new(future: Option<F>) -> Self {
        Self { future }
    }
}

impl<F: Future> Future for Once<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let mut future = self.project().future;
        let Some(call) = future.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let output = ready!(call.poll(cx));
        future.set(None);
        Poll::Ready(output)
    }
}

#[cfg(test)]
mod tests {
    use core::fmt;
    use core::task::Waker;

    use super::*;
    use crate::reply::Reply;
    use crate::time::Instant;
    use crate::token::Token;

    const NOW: Instant = Instant::from_micros(0);

    struct Silent;

    impl Transport for Silent {
        type Name = &'static str;
        type Error = fmt::Error;

        fn name(&self) -> &'static str {
            "a node"
        }

        async fn execute(&mut self, _command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
            core::future::pending().await
        }
    }

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Instant {
            NOW
        }

        fn resolution(&self) -> Duration {
            Duration::ZERO
        }

        async fn sleep_until(&self, _deadline: Instant) {}
    }

    #[test]
    fn a_node_that_is_no_recipient_is_not_reported_as_timed_out() {
        let mut nodes = [Some(Silent), Some(Silent)];
        let mut recipients = NodeSet::EMPTY;
        recipients.insert(1);
        let token = Token::from_bytes([1; Token::LEN]);
        let command = Command::release(b"key", &token);
        let round = Round::new(recipients, 1, NOW, Instant::MAX);
        let mut ballot = Ballot::new(command, recipients, nodes.len(), round);
        {
            let race = pin!(race(&mut nodes, &Still, &mut ballot));
            let held = race.poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(held, Poll::Ready(()));
        }
        assert_eq!(ballot.verdict, Verdict::Unreachable);
        let timed_out = NodeError::new("a node", Failure::TimedOut(Duration::ZERO));
        assert_eq!(
            ballot.report.outcomes(),
            [Outcome::Unanswered, Outcome::Failed(timed_out)]
        );
    }

    /// A node whose reply has arrived, and is read by the second poll.
    struct Unread(bool);

    impl Transport for Unread {
        type Name = &'static str;
        type Error = fmt::Error;

        fn name(&self) -> &'static str {
            "a node"
        }

        async fn execute(&mut self, _command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
            poll_fn(|_| match core::mem::replace(&mut self.0, true) {
                true => Poll::Ready(Ok(Reply::Acquired(None))),
                false => Poll::Pending,
            })
            .await
        }
    }

    /// A clock that is late: the deadline has passed, and it lets the nodes be polled once more.
    struct Late;

    impl Clock for Late {
        fn now(&self) -> Instant {
            NOW
        }

        fn resolution(&self) -> Duration {
            Duration::ZERO
        }

        async fn sleep_until(&self, _deadline: Instant) {}

        async fn sleep_and_catch_up(&self, _deadline: Instant, too_late_at: Instant) {
            let mut is_done = self.now() >= too_late_at;
            poll_fn(|_| match core::mem::replace(&mut is_done, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            })
            .await;
        }
    }

    #[test]
    fn a_reply_that_is_unread_when_the_deadline_has_passed_counts_if_the_round_can_still_be_won() {
        let token = Token::from_bytes([1; Token::LEN]);
        for (valid_until, verdict) in [(Instant::MAX, Verdict::Won), (NOW, Verdict::Unreachable)] {
            let mut nodes = [Some(Unread(false))];
            let command =
                Command::acquire(b"key", &token, 1, crate::transport::VoteConditions::NONE);
            let recipients = NodeSet::first(1);
            let round = Round::new(recipients, 1, NOW, valid_until);
            let mut ballot = Ballot::new(command, recipients, nodes.len(), round);
            {
                let mut race = pin!(race(&mut nodes, &Late, &mut ballot));
                let mut context = Context::from_waker(Waker::noop());
                let is_won = verdict == Verdict::Won;
                assert_eq!(race.as_mut().poll(&mut context).is_pending(), is_won);
                if is_won {
                    assert_eq!(race.poll(&mut context), Poll::Ready(()));
                }
            }
            assert_eq!(ballot.verdict, verdict);
        }
    }
}
