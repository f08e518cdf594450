//! What is done to both, drawn so that what counts happens: at the edges of the window, of lives and of
//! quarantines, to the microsecond.

use fastrand::Rng;
use redlock_core::transport::{Command, Mailbox, Place, Proposal, Verb, VoteConditions};
use redlock_core::{Fence, Fencing, Token};

use crate::twins::{KEYS, MAILBOXES, Twins, fencing, mailbox, other_fencing};

#[derive(Debug)]
pub(crate) enum Step {
    Ask(Asked),
    /// So many microseconds.
    Pass(u64),
    /// By so many microseconds.
    SetClock(i64),
    Delete(&'static str),
    /// The key of a lock and its fence record.
    Evict(&'static str),
    Flush,
    /// Whether it may evict keys.
    Policy(bool),
    /// A client connects.
    Connect,
    /// An operator runs `redlock init`.
    Init,
    /// The same with `--repair`.
    Repair,
    /// Another process, with the data of the one before.
    Restart,
    /// The same process and data after a time as a replica.
    FailBack,
    /// The guard record is one of before, without the history of the data.
    AgeGuard,
    /// The connection of the client with this mailbox begins or ends.
    Subscribe(usize),
    Unsubscribe(usize),
    /// The fence of the key is one of before, without the token that was accepted last.
    AgeFence(&'static str),
}

/// A command, and who asks.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) key: &'static str,
    verb: Verb,
    token: Token,
    proposal: Option<Proposal>,
    place: Option<Place>,
}

impl Step {
    pub(crate) fn draw(random: &mut Rng, twins: &Twins<'_>) -> Self {
        // A server that was a replica is not new.
        if !twins.has_record() && !twins.may_fail_back && random.u8(..4) == 0 {
            return Self::Init;
        }
        match random.u8(..100) {
            ..62 => Self::Ask(Asked::draw(random, twins)),
            62 if random.bool() => Self::Unsubscribe(random.usize(..MAILBOXES)),
            62 | 63 => Self::Subscribe(random.usize(..MAILBOXES)),
            64..87 => Self::Pass(passed(random, twins)),
            87..93 => Self::SetClock(stepped(random)),
            93 => Self::Policy(random.u8(..3) == 0),
            94 => Self::Connect,
            95 => Self::Repair,
            96 => pick_one(random, [Self::Delete, Self::Evict])(pick(random, &KEYS)),
            97 => Self::AgeFence(pick(random, &KEYS)),
            98 => match random.u8(..3) {
                0 => Self::Restart,
                1 => Self::AgeGuard,
                _ if twins.may_fail_back => Self::FailBack,
                _ => Self::Connect,
            },
            _ => Self::Flush,
        }
    }
}

impl Asked {
    fn draw(random: &mut Rng, twins: &Twins<'_>) -> Self {
        let key = pick(random, &KEYS);
        let is_fenced = twins.has_fences && random.u8(..4) > 0;
        // The longest of the fleet is among them, and one that is longer.
        let ttl_ms = pick(random, &[1, 2, 7, 50, 100, 300, 301]);
        let conditions = VoteConditions::NONE;
        let mut asked = Self {
            key,
            verb: match random.u8(..10) {
                ..5 => Verb::Acquire { ttl_ms, conditions },
                5..7 if !twins.has_lines => Verb::Extend { ttl_ms, conditions },
                5 => Verb::Extend { ttl_ms, conditions },
                6 => Verb::Keep { rest_ms: ttl_ms },
                _ => Verb::Release,
            },
            // Any bytes: the end of a string in C, of a line, of a number in a record.
            token: Token::from_bytes(*pick(
                random,
                &[
                    b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01",
                    b"one line\nanother\n\n\r\n",
                    b"17:42:\0\xff:1:2:3:4:5:6",
                ],
            )),
            proposal: is_fenced.then(|| proposal(random, twins, key)),
            place: (twins.has_lines && random.u8(..8) > 0).then(|| place(random, twins)),
        };
        if asked.verb == Verb::Release
            && let Some(holder) = twins.holder(key).filter(|_| random.bool())
        {
            asked.token = holder;
        }
        asked
    }

    pub(crate) fn command(&self) -> Command<'_> {
        let key = self.key.as_bytes();
        let token = &self.token;
        let command = match self.verb {
            Verb::Acquire { ttl_ms, conditions } => {
                Command::acquire(key, token, ttl_ms, conditions)
            }
            Verb::Extend { ttl_ms, .. } => Command::extend(key, token, ttl_ms),
            Verb::Keep { rest_ms } => Command::keep(key, token, rest_ms),
            Verb::Release => Command::release(key, token),
        };
        let place = match self.verb {
            // An acquire always has a ticket and a mailbox.
            Verb::Acquire { .. } => self.place.filter(|place| place.ticket.is_some()),
            _ => self.place,
        };
        command.with_proposal(self.proposal).with_place(place)
    }
}

fn place(random: &mut Rng, twins: &Twins<'_>) -> Place {
    let mailbox: Mailbox = mailbox(random.usize(..MAILBOXES));
    // One of them cannot be called.
    let mailbox = match mailbox == crate::twins::mailbox(0) {
        true => mailbox.uncallable(),
        false => mailbox,
    };
    // The longest turn is 10 s.
    let turn_ms = pick(random, &[0, 1, 7, 50, 9_999, 10_000, 10_001]);
    let wall = twins.wall();
    match random.u8(..8) {
        0 => Place::outside(turn_ms),
        1 => Place::left(mailbox, turn_ms),
        number => {
            let ticket = match number {
                2 => Place::NOW,
                3 => wall + random.u64(..1_000),
                // The oldest ticket is a day old.
                4 => around(random, wall - 86_400_000_000, 1),
                5 => 0,
                _ => wall - random.u64(..50_000),
            };
            Place::waiting(mailbox, ticket, turn_ms)
        }
    }
}

fn proposal(random: &mut Rng, twins: &Twins<'_>, key: &str) -> Proposal {
    let fencing = if random.u8(..30) == 0 {
        other_fencing()
    } else {
        fencing()
    };
    let fence = match random.u8(..5) {
        // That of the lease there is, or of one before.
        0 | 1 => twins.fence(key).as_u64(),
        2 => around(random, twins.fence(key).as_u64(), 1),
        _ => near(random, twins.wall(), fencing),
    };
    let time = near(random, twins.wall(), fencing);
    let vouches = random.u8(..3) > 0;
    Proposal::new(Fence::from_u64(fence), fencing, time, vouches)
}

/// Within the window, or next to one of its edges.
fn near(random: &mut Rng, wall: u64, fencing: Fencing) -> u64 {
    let window = u64::try_from(fencing.window().as_micros()).unwrap();
    match random.u8(..8) {
        0 => around(random, wall - window, 1),
        1 => around(random, wall + window, 1),
        _ => around(random, wall, window),
    }
}

fn passed(random: &mut Rng, twins: &Twins<'_>) -> u64 {
    let wall = twins.wall();
    let mut edges: Vec<_> = KEYS.iter().flat_map(|key| twins.deadlines(key)).collect();
    // Keys are gone when that millisecond is over.
    edges.extend(KEYS.iter().filter_map(|key| twins.turn_end(key)));
    edges.extend(edges.clone().iter().map(|deadline| deadline + 1_000));
    if twins.quarantined_until > wall {
        edges = vec![twins.quarantined_until];
    }
    let to_edge = random.choice(edges).filter(|_| random.u8(..3) > 0);
    match to_edge {
        Some(edge) => around(random, edge, 1).saturating_sub(wall),
        // A line lives for 10 s.
        None if twins.has_lines => pick(random, &[1, 333, 1_000, 2_500, 30_000, 9_999_500]),
        None => pick(random, &[1, 333, 1_000, 2_500, 30_000]),
    }
}

fn stepped(random: &mut Rng) -> i64 {
    // Some of it within the window, some further than fences are kept for.
    let most = pick(random, &[2, 1_500, 25_000, 500_000, 3_000_000]);
    random.i64(-most..=most)
}

fn around(random: &mut Rng, middle: u64, width: u64) -> u64 {
    random.u64(middle.saturating_sub(width)..=middle + width)
}

fn pick_one<T, const N: usize>(random: &mut Rng, choices: [T; N]) -> T {
    let number = random.usize(..N);
    choices.into_iter().nth(number).unwrap()
}

fn pick<T: Copy>(random: &mut Rng, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}
