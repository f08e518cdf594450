//! The wait in a line with the feature `queue` or `mock`.
//!
//! The items in `disabled.rs` must have the same signatures.

use core::array;
use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Poll, ready};
use core::time::Duration;

use embassy_futures::select::select_slice;

use crate::entropy::Entropy;
use crate::error::AcquireError;
use crate::line::{Call, Mailbox, Place, Refusal};
use crate::line_looks::{AHEAD_PER_TURN, Calls, Looks, Pace};
use crate::observer::Observer;
use crate::options::part_of;
use crate::race::{Ballot, Once};
use crate::redlock::Redlock;
use crate::round::{NodeSet, Verdict};
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

/// The state of a wait in the line of one lock.
#[derive(Debug)]
pub(in crate::redlock) struct Waiting {
    /// The ticket is this instant by the nodes' time.
    since: Instant,
    give_up_at: Instant,
    /// Whether the client waits if the lock is held.
    is_patient: bool,
    /// `None` until the client stands in the line.
    place: Option<Place>,
    /// Whether enough nodes have told their time since the wait began. Then the ticket does not change any more. The offset of an
    /// earlier acquire may be out of date, and a node never makes a ticket later.
    has_ticket: bool,
    /// How many rounds in a row were lost although no other client kept the lock from this one.
    failed_rounds: u32,
    /// In how many rounds some nodes granted, and others had another client ahead.
    splits: u8,
    looks: Looks,
    /// Whether the client stands further back than its ticket says, and is to tell the nodes at once.
    is_misplaced: bool,
    /// When the client looks at the lock next, if no node calls it.
    look_at: Instant,
    /// The last attempt has left the line.
    is_over: bool,
}

impl Waiting {
    /// A client that wants the lock since this instant, and does not stand in the line yet.
    pub(in crate::redlock) fn new(since: Instant, give_up_at: Instant) -> Self {
        Self {
            since,
            give_up_at,
            is_patient: give_up_at > since,
            failed_rounds: 0,
            splits: 0,
            place: None,
            has_ticket: false,
            looks: Looks::NONE,
            is_misplaced: false,
            look_at: Instant::MAX,
            is_over: false,
        }
    }

    pub(in crate::redlock) const fn place(&self) -> Option<Place> {
        self.place
    }

    pub(in crate::redlock) const fn is_in_line(&self) -> bool {
        self.place.is_some()
    }

    pub(in crate::redlock) const fn was_called(&self) -> bool {
        self.looks.was_called()
    }

    pub(in crate::redlock) const fn is_over(&self) -> bool {
        self.is_over
    }

    pub(in crate::redlock) const fn set_since(&mut self, since: Instant) {
        self.since = since;
    }

    pub(in crate::redlock) const fn stay_outside(&mut self) {
        self.is_patient = false;
    }
}

/// The key that other clients wanted when this client last used it. Its next acquire begins in the line, so that it does not
/// overtake those that wait. A client remembers one key.
#[derive(Debug, Clone, Copy)]
pub(in crate::redlock) struct Contention {
    /// A hash of the key. If two keys share it, a client stands in a line in vain, which costs little.
    key: Option<u32>,
}

impl Contention {
    pub(in crate::redlock) const NONE: Self = Self { key: None };

    pub(in crate::redlock) fn record(&mut self, key: &[u8], is_wanted: bool) {
        if is_wanted {
            self.key = Some(hash(key));
        } else if self.contains(key) {
            self.key = None;
        }
    }

    pub(in crate::redlock) fn contains(&self, key: &[u8]) -> bool {
        self.key == Some(hash(key))
    }
}

/// FNV-1a.
fn hash(key: &[u8]) -> u32 {
    key.iter().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
    })
}

/// After this number of calls of a node, a client does not listen to it for a moment. If a node sends calls without end, they do not
/// keep the task busy, and do not hide those of the others.
const CALLS_MAX: u8 = 8;

/// For how long it does not. Less than a turn: among many hand-overs before its own turn, a client is called as often, and must not
/// miss that turn.
const DEAF_MICROS: u64 = 25_000;

/// After so many rounds that were lost to different lines, a client leaves them, and tries after random delays until its wait is over.
/// If clocks are further apart than the lines allow, two nodes can have different clients first for ever, and each keeps the lock
/// from the other.
const SPLITS_MAX: u8 = 8;

/// A client that has waited longer than this before it stood in the line may have overtaken others, or they it. Waits that began at
/// nearly the same time have no order.
const NEARLY_MICROS: u64 = 30_000;

/// A client looks at a lock that is held at least about once a second: then its place does not expire, and it notices other
/// Redlock clients, which do not call.
const LONG_LOOK_MICROS: u64 = 1_000_000;

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// The place of this client after a release, or after a dropped future: outside of the line.
    pub(in crate::redlock) fn departure(&self, waiting: &Waiting) -> Option<Place> {
        match waiting.place.and_then(|place| place.mailbox) {
            Some(mailbox) => Some(Place::left(mailbox, self.options.turn_ms())),
            None => self.outside(),
        }
    }

    /// The place of a client that has not stood in the line. `None` if no node keeps a line for it.
    pub(in crate::redlock) fn outside(&self) -> Option<Place> {
        let turn_ms = self.options.turn_ms();
        self.mailbox().map(|_| Place::outside(turn_ms))
    }

    /// The next attempt stands in the line. Returns `false` if it does not: some node keeps no line for this client. If the client
    /// stood in the lines of the others, it could take nodes from the one that they have called, which would take others from it.
    pub(in crate::redlock) fn join(&self, waiting: &mut Waiting) -> bool {
        let keep_lines = self.nodes().all(|node| node.mailbox().is_some());
        let may_wait = keep_lines && waiting.is_patient && self.options.is_queue_on();
        let mailbox = self.mailbox().filter(|_| may_wait);
        let Some(mailbox) = mailbox else {
            return false;
        };
        if waiting.place.is_none() {
            let turn_ms = self.options.turn_ms();
            waiting.place = Some(Place::waiting(mailbox, Place::NOW, turn_ms));
        }
        true
    }

    /// The first attempt already stands in the line if other clients wanted the lock when this client last used it.
    pub(in crate::redlock) fn join_if_wanted(&self, waiting: &mut Waiting, key: &[u8]) {
        if self.contention.contains(key) {
            self.join(waiting);
        }
    }

    /// After a lost round: takes the ticket from the first nodes that tell their time, and makes it earlier once enough of them
    /// have.
    ///
    /// This comes before the clean-up of the round, which brings the client back to its place on the nodes that had granted. Without
    /// a ticket, it would return to the end of their lines, and two clients could change places with each lost round.
    pub(in crate::redlock) fn learn_ticket(
        &mut self,
        waiting: &mut Waiting,
        ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
    ) {
        let known = ballot.line.offset(ballot.round.blocking_count());
        let is_plain = self.options.fencing().is_none();
        let is_first = is_plain && known.is_some() && self.clock_offset.is_none();
        if is_plain && known.is_some() {
            self.clock_offset = known;
        }
        if let Some(place) = &mut waiting.place
            && let Some(offset) = known.or_else(|| ballot.line.offset(1))
            && !waiting.has_ticket
        {
            let ticket = waiting.since.as_micros().saturating_add_signed(offset);
            place.ticket = Some(place.ticket.unwrap_or(Place::NOW).min(ticket));
            waiting.has_ticket = known.is_some();
            // Without the nodes' time, it has the place of one that comes now. Once: this try has told the time.
            let joined_at = ballot.line.ended_at();
            let waited = joined_at.saturating_duration_since(waiting.since);
            waiting.is_misplaced = is_first && waited > Duration::from_micros(NEARLY_MICROS);
        }
    }

    /// After a lost round: the nodes that get the release of its token, and the place of the client in their lines. `carriers` are
    /// the nodes that may carry the token. Decides whether the client goes on waiting.
    pub(in crate::redlock) fn departing(
        &mut self,
        waiting: &mut Waiting,
        ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
        carriers: NodeSet,
    ) -> (NodeSet, Option<Place>) {
        if ballot.verdict == Verdict::Refused {
            self.contention.record(ballot.command.key, true);
        }
        let is_split = ballot.report.tally().granted > 0 && ballot.line.count(Refusal::Ahead) > 0;
        waiting.splits = waiting.splits.saturating_add(is_split.into());
        if waiting.place.is_none() {
            (carriers, self.departure(waiting))
        } else if waiting.splits >= SPLITS_MAX {
            let departure = self.departure(waiting);
            waiting.place = None;
            waiting.stay_outside();
            (self.all, departure)
        } else if self.clock.now() < waiting.give_up_at {
            match ballot.verdict {
                // This client reaches no quorum, so others must not wait for it. Its next attempt takes its place again. But if only
                // the fence was in its way, it has the right one by now, and those that came later must not overtake it. If the fence
                // is in its way again, it is the clock of a node that is wrong.
                Verdict::Unreachable
                    if waiting.failed_rounds > 1 || !self.is_only_misfit(ballot) =>
                {
                    (self.all, self.departure(waiting))
                }
                _ => (carriers, waiting.place),
            }
        } else {
            waiting.is_over = true;
            // Every node may have the client in its line.
            (self.all, self.departure(waiting))
        }
    }

    /// When to start the next attempt of a client that stands in the line, or does so from now on because the lock is held.
    /// `Some(None)` if there must be no further attempt. `None` if it does not stand in the line.
    pub(in crate::redlock) fn again_in_line(
        &self,
        waiting: &mut Waiting,
        error: &AcquireError<NodeErrorOf<T>, MAX>,
        now: Instant,
    ) -> Option<Option<Instant>> {
        if waiting.is_over {
            Some(None)
        } else if waiting.is_in_line() {
            // The clean-up of the last round may have taken until after the end of the wait.
            Some((now < waiting.give_up_at).then(|| waiting.look_at.min(waiting.give_up_at)))
        } else if matches!(error, AcquireError::Held(_)) && now < waiting.give_up_at {
            self.join(waiting).then_some(Some(now))
        } else {
            None
        }
    }

    /// After a lost round: decides when the client looks at the lock next, if no node calls it.
    pub(in crate::redlock) fn plan_look(
        &mut self,
        waiting: &mut Waiting,
        ballot: &Ballot<'_, NodeErrorOf<T>, MAX>,
        round_micros: u64,
    ) {
        let Some(place) = waiting.place.filter(|_| !waiting.is_over) else {
            return;
        };
        let now = self.clock.now();
        let random = self.random();
        let pace = Pace {
            blocking: ballot.round.blocking_count(),
            ..self.pace(place, random)
        };
        let mut look_at = if let Some(micros) = waiting.looks.after_lost_try(&ballot.line, &pace) {
            ballot.line.ended_at().plus_micros(micros)
        } else {
            let held = ballot.line.count(Refusal::Held);
            let ahead = ballot.line.count(Refusal::Ahead);
            // The delay grows only if it is not another client that keeps the lock from this one.
            let is_kept_away = ballot.verdict == Verdict::Refused && held + ahead > 0;
            waiting.failed_rounds = match is_kept_away {
                true => 1,
                false => waiting.failed_rounds.saturating_add(1),
            };
            let mut delay = self.options.delay_micros(waiting.failed_rounds, random);
            if waiting.failed_rounds == 1 && self.is_only_misfit(ballot) {
                // As long as it is its turn.
                delay = delay.min(pace.turn / 4);
            }
            // A process that was paused takes its pause for a part of the round.
            let round = round_micros.min(self.options.round_micros());
            let rounds = part_of(round.saturating_mul(4), self.random());
            now.plus_micros(delay.max(rounds))
        };
        if self.callable_nodes() < self.quorum() {
            // Its turn may begin without a call.
            look_at = look_at.min(now.plus_micros(pace.turn / 2));
        }
        let soonest = now.plus_micros(1_000);
        waiting.look_at = match core::mem::take(&mut waiting.is_misplaced) {
            true => soonest,
            false => look_at.max(soonest),
        };
    }

    /// Whether the attempt would have been won if its fence had fitted.
    fn is_only_misfit(&self, ballot: &Ballot<'_, NodeErrorOf<T>, MAX>) -> bool {
        let misfits = ballot.samples.misfits() as usize;
        let votes = misfits + ballot.report.tally().granted;
        misfits > 0 && votes >= self.quorum() as usize
    }

    /// By what a client at this place measures its waits.
    fn pace(&self, place: Place, random: u32) -> Pace {
        let spread = LONG_LOOK_MICROS / 2;
        let longest = LONG_LOOK_MICROS - spread / 2 + part_of(spread, random);
        let quorum = self.quorum();
        Pace {
            quorum,
            blocking: self.all.len().saturating_add(1).saturating_sub(quorum),
            duplicates: self.duplicates(),
            turn: u64::from(place.turn_ms) * 1_000,
            longest: longest.min(u64::from(self.options.terms().ttl_ms) * 1_000 / 4),
            ahead_per_turn: AHEAD_PER_TURN,
        }
    }

    /// Waits until the nodes call this client, or until its next look. Ends when a quorum of nodes has called, a moment after
    /// the first call, and after a new connection.
    pub(in crate::redlock) async fn wait_until(
        &mut self,
        waiting: &mut Waiting,
        key: &[u8],
        until: Instant,
    ) {
        let Some(place) = waiting.place else {
            self.clock.sleep_until(until).await;
            return;
        };
        let pace = self.pace(place, 0);
        let mut calls = Calls::NONE;
        let mut try_at = until;
        let mut heard = [0; MAX];
        // The nodes that are not listened to until this instant. Their calls are not lost.
        let (mut unheard, mut again_at) = (NodeSet::EMPTY, until);
        loop {
            let next = self.next_call(key, unheard, try_at.min(again_at)).await;
            let Some((node, call)) = next else {
                if self.clock.now() >= try_at {
                    break;
                }
                (heard, unheard, again_at) = ([0; MAX], NodeSet::EMPTY, until);
                continue;
            };
            match waiting.looks.hear(&mut calls, node, call, &pace) {
                Some(0) => return,
                Some(micros) => try_at = try_at.min(self.clock.now().plus_micros(micros)),
                None => {}
            }
            if let Some(count) = heard.get_mut(node) {
                *count += 1;
                if *count == CALLS_MAX {
                    if unheard == NodeSet::EMPTY {
                        again_at = self.clock.now().plus_micros(DEAF_MICROS);
                    }
                    unheard.insert(node);
                }
            }
        }
        if try_at < until {
            waiting.looks.try_called(calls, &pace);
        } else {
            waiting.looks.look();
        }
    }

    /// Waits for the next call of any node except the `unheard`. `None` at `until`.
    async fn next_call(
        &mut self,
        key: &[u8],
        unheard: NodeSet,
        until: Instant,
    ) -> Option<(usize, Call)> {
        let mut nodes = self.nodes.iter_mut();
        let mut calls = pin!(array::from_fn::<_, MAX, _>(|number| {
            let node = nodes.next().and_then(Option::as_mut);
            let node = node.filter(|_| !unheard.contains(number));
            Once::new(node.map(async |node| node.called(key).await))
        }));
        let mut timer = pin!(self.clock.sleep_until(until));
        poll_fn(|cx| {
            let mut slice: Pin<&mut [_]> = calls.as_mut();
            if let Poll::Ready((call, node)) = pin!(select_slice(slice.as_mut())).poll(cx) {
                return Poll::Ready(Some((node, call)));
            }
            ready!(timer.as_mut().poll(cx));
            Poll::Ready(None)
        })
        .await
    }

    /// The mailbox of this client.
    fn mailbox(&self) -> Option<Mailbox> {
        self.nodes().find_map(Transport::mailbox)
    }

    /// How many nodes can call this client.
    fn callable_nodes(&self) -> u32 {
        let mailboxes = self.nodes().filter_map(Transport::mailbox);
        let callable = mailboxes.filter(Mailbox::is_callable);
        u32::try_from(callable.count()).unwrap_or(u32::MAX)
    }
}
