//! What happened, for people.

use core::fmt;
use std::collections::BTreeMap;

use redlock_core::Denial;
use redlock_core::transport::{Place as LinePlace, Position, Reply, Verb};

use super::clock::Seconds;
use super::history::{Call, Claim, Fact, Message, Task, What};
use super::judge::Breach;
use super::place::{KEYS, Place, Route};

/// The part of a history that matters for a breach.
#[derive(Debug)]
pub(crate) struct Excerpt<'a> {
    facts: &'a [Fact],
    breach: &'a Breach,
}

impl<'a> Excerpt<'a> {
    pub(crate) const fn new(facts: &'a [Fact], breach: &'a Breach) -> Self {
        Self { facts, breach }
    }

    /// What is about the tokens of the breach, and what goes wrong at that time; where it is about no token,
    /// everything.
    fn lines(&self) -> Vec<&'a Fact> {
        let Breach {
            at,
            since,
            ref tokens,
            ..
        } = *self.breach;
        let mut standing = BTreeMap::new();
        let matters = |fact: &&Fact| {
            let token = match fact.what {
                What::Stands(place, token, _) => {
                    standing.insert(place, token);
                    Some(token)
                }
                What::Falls(place) => standing.remove(&place),
                // Shown also when it was another's that was deleted.
                What::Executed(
                    Route { node, .. },
                    Message { key, token, .. },
                    Ok(Reply::Released | Reply::ReleasedWithWaiters(_)),
                ) => standing.get(&Place { node, key }).copied().or(Some(token)),
                what => what.token(),
            };
            let is_about_them = match token {
                Some(token) => tokens.contains(&token),
                None => !matches!(
                    fact.what,
                    What::Begins(..) | What::Ends(..) | What::Falls(_)
                ),
            };
            let is_gone = matches!(fact.what, What::Probed(.., false));
            (since..=at).contains(&fact.at) && !is_gone && (tokens.is_empty() || is_about_them)
        };
        self.facts.iter().filter(matters).collect()
    }
}

/// A trace is read from its end: that many lines of it.
const LINES: usize = 80;

impl fmt::Display for Excerpt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let left_out = lines.len().saturating_sub(LINES);
        if left_out > 0 {
            writeln!(f, "      ({left_out} lines before)")?;
        }
        for fact in &lines[left_out..] {
            writeln!(f, "{fact}")?;
        }
        writeln!(f, "{}", self.breach)
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>11}  {}", Seconds(self.at).to_string(), self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begins(task, call, _) => write!(f, "{task} calls {call}"),
            Self::Ends(task, call, end, _) => write!(f, "{task} ends {call}: {end:?}"),
            Self::Granted(claim, until) => write!(f, "{claim}: HELD until {}", Seconds(*until)),
            Self::Extended(claim, until) => write!(f, "{claim}: HELD ON until {}", Seconds(*until)),
            Self::Adopted(claim, until, _) => {
                write!(f, "{claim}: TAKEN OVER until {}", Seconds(*until))
            }
            Self::HandedOver(claim) => write!(f, "{claim}: left to another process"),
            Self::Kept(claim, until) => {
                write!(
                    f,
                    "{claim}: no other client has it until {}",
                    Seconds(*until)
                )
            }
            Self::Freed(claim) => write!(f, "{claim}: is said to be free"),
            Self::Over(claim) => write!(f, "{claim}: given back or over"),
            Self::StillValid(claim) => write!(f, "{claim}: says that it is valid"),
            Self::Believes(task, off, _) => write!(f, "{task} is {off} us from the nodes' time"),
            Self::CalledLost(claim) => write!(f, "{claim}: is said to be lost"),
            Self::Works(claim, until) => {
                write!(f, "{claim}: WORK, at first until {}", Seconds(*until))
            }
            Self::Stops(claim) => write!(f, "{claim}: no more work"),
            Self::CalledDone(claim) => write!(f, "{claim}: the work is said to be done"),
            Self::Paused(client, until, _) => {
                write!(f, "client {client} is paused until {}", Seconds(*until))
            }
            Self::Sent(task, node, message) => write!(f, "{task} -> node {node}: {message}"),
            Self::Executed(Route { client, node }, message, reply) => {
                write!(
                    f,
                    "node {node} does for client {client}: {message}: {}",
                    Said(reply)
                )
            }
            Self::NotExecuted(Route { client, node }, message) => {
                write!(
                    f,
                    "node {node} lacks the script of client {client}: {message}"
                )
            }
            Self::Nonsense(route) => write!(f, "{route}: what is sent is no command"),
            Self::Answered(Route { client, node }, message, reply) => {
                write!(
                    f,
                    "client {client} <- node {node}: {message}: {}",
                    Said(reply)
                )
            }
            Self::Connected(route, true) => write!(f, "{route}: connected"),
            Self::Denied(route) => write!(f, "{route}: has no vote"),
            Self::Subscribed(route, true) => write!(f, "{route}: can be called"),
            Self::Subscribed(route, false) => write!(f, "{route}: can no longer be called"),
            Self::Calls(Route { node, .. }, task, key, call, is_sent) => {
                let lost = if *is_sent { "" } else { ", and it is LOST" };
                write!(
                    f,
                    "node {node} calls {task} for {}: {call:?}{lost}",
                    KEYS[*key]
                )
            }
            Self::Called(Route { node, .. }, task, key, call) => {
                write!(
                    f,
                    "{task} is called by node {node} for {}: {call:?}",
                    KEYS[*key]
                )
            }
            Self::Died(client) => write!(f, "client {client} dies"),
            Self::ForgotLine(node, key) => {
                write!(f, "node {node} has forgotten the line of {}", KEYS[*key])
            }
            Self::LineProbed(Route { node, .. }, task, key, stands) => {
                let still = if *stands { "STILL" } else { "no more" };
                write!(
                    f,
                    "{task} is {still} in the line of node {node} {}",
                    KEYS[*key]
                )
            }
            Self::Connected(route, false) => write!(f, "{route}: is known to be broken"),
            Self::Stands(place, token, until) => {
                write!(f, "{place} = t{token} until {}", Seconds(*until))
            }
            Self::Falls(place) => write!(f, "{place} is free"),
            Self::Visits(claim, is_admitted) => {
                let how = if *is_admitted {
                    "visits"
                } else {
                    "is refused at the gate"
                };
                write!(f, "{claim}: {how}")
            }
            Self::Forgets(node, None) => write!(f, "node {node} has forgotten its data"),
            Self::Forgets(node, Some(key)) => {
                write!(f, "node {node} has evicted {}", KEYS[*key])
            }
            Self::Burns(node, token, fence) => {
                write!(f, "node {node} accepts {fence} of t{token} no more")
            }
            Self::Restarted(node) => write!(f, "node {node} is another process"),
            Self::Role(node, true) => write!(f, "node {node} is a master again"),
            Self::Role(node, false) => write!(f, "node {node} is a replica"),
            Self::Unaware(token) => {
                write!(
                    f,
                    "t{token}: its client does not know what the node has lost"
                )
            }
            Self::Initialized(node) => write!(f, "*** node {node} is told that it is new"),
            Self::Changed(rules) => write!(f, "*** an operator gives the fleet {rules:?}"),
            Self::Captured(node) => write!(f, "*** node {node} has the rules of before again"),
            Self::Long(token) => write!(f, "t{token}: its TTL is above that of the fleet"),
            Self::Told(route, max_ttl_ms) => {
                write!(f, "{route}: it allows TTLs up to {max_ttl_ms:?} ms")
            }
            Self::Repaired => f.write_str("*** an operator repairs guard records"),
            Self::Probed(Route { client, node }, key, token, stands) => {
                let still = if *stands { "STILL there" } else { "gone" };
                write!(
                    f,
                    "node {node} {} = t{token} of client {client} is {still}",
                    KEYS[*key]
                )
            }
            Self::Fault(fault) => write!(f, "*** {fault}"),
            Self::Calm => f.write_str("*** no more faults"),
            Self::Endless => f.write_str("*** events without end"),
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {}.{}", self.client, self.number)
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} = t{}", self.task, KEYS[self.key], self.token)?;
        self.fence
            .map_or(Ok(()), |fence| write!(f, " with fence {fence}"))
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} to node {}", self.client, self.node)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} {}", self.node, KEYS[self.key])
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TryAcquire(_) => "try_acquire",
            Self::Acquire(_) => "acquire",
            Self::CalmAcquire(_) => "acquire after the faults",
            Self::Extend(_) => "extend",
            Self::Adopt(_) => "adopt",
            Self::Release(_) => "release",
            Self::Hold(_) => "hold",
            Self::Keep(_) => "keep",
            Self::Tidy => "tidy",
        })?;
        self.key().map_or(Ok(()), |key| write!(f, " {}", KEYS[key]))
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.verb {
            Verb::Extend { ttl_ms, .. } if self.is_adoption() => write!(f, "Adopt {ttl_ms} ms")?,
            Verb::Extend { ttl_ms, .. } => write!(f, "Extend {ttl_ms} ms")?,
            Verb::Keep { rest_ms } => write!(f, "Keep {rest_ms} ms")?,
            verb => write!(f, "{verb:?}")?,
        }
        write!(f, " {} = t{}", KEYS[self.key], self.token)?;
        if let Some(proposal) = self.proposal {
            write!(f, " with fence {}", proposal.fence)?;
        }
        match self.place {
            Some(place) => write!(f, " by {}", Where(&place)),
            None => Ok(()),
        }
    }
}

/// A place in a line, in few words.
struct Where<'a>(&'a LinePlace);

impl fmt::Display for Where<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.mailbox, self.0.ticket) {
            (Some(mailbox), Some(ticket)) => write!(f, "{mailbox} since {ticket}"),
            (Some(mailbox), None) => write!(f, "{mailbox}, which leaves"),
            (None, _) => f.write_str("a client outside of the line"),
        }
    }
}

/// What a node says, in few words.
struct Said<'a>(&'a Result<Reply, Denial>);

impl fmt::Display for Said<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Ok(Reply::Acquired(_)) => f.write_str("Acquired"),
            Ok(Reply::Held(_)) => f.write_str("Held"),
            Ok(Reply::Waiting(position, _)) => {
                let Position {
                    refusal,
                    left_ms,
                    ahead,
                    ..
                } = position;
                write!(f, "{refusal:?} for {left_ms} ms, {ahead} ahead")
            }
            Ok(reply) => write!(f, "{reply:?}"),
            Err(denial) => write!(f, "{denial}"),
        }
    }
}
