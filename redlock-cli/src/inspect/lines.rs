//! The waiting lines of a lock on all nodes together.

use core::fmt;
use core::time::Duration;

use serde_json::{Value, json};

use super::credit::Credit;
use super::holding::Holding;
use super::line::Line;
use crate::duration;
use crate::nodes::quorum;

/// The lines of all nodes, counted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Lines<'a> {
    nodes: usize,
    /// How many nodes have shown their line.
    shown: usize,
    /// Why a node has not.
    error: Option<&'a str>,
    /// How many clients wait, and whether that is the least number, because not all of them were read.
    waiting: u64,
    is_least: bool,
    /// The client that is the first one on most nodes, and on how many.
    first: Option<(&'a str, usize)>,
    /// The client that has the turn on most nodes, on how many, and when the last of these turns ends.
    turn: Option<(&'a str, usize, Duration)>,
}

impl<'a> Lines<'a> {
    pub(crate) fn new(holdings: &'a [Holding], credits: &[Credit]) -> Self {
        // A replica has a copy of another line, and one server with two names has one line.
        let counts = |credit: &Credit| !matches!(credit, Credit::Nothing { .. });
        let answers: Vec<&Result<Line, String>> = holdings
            .iter()
            .zip(credits)
            .filter(|(holding, credit)| holding.state.is_ok() && counts(credit))
            .map(|(holding, _)| &holding.line)
            .collect();
        let lines: Vec<&Line> = answers
            .iter()
            .filter_map(|line| line.as_ref().ok())
            .collect();
        let clients = lines.iter().flat_map(|line| &line.clients);
        let mut mailboxes: Vec<&str> = clients.map(|client| client.mailbox.as_str()).collect();
        mailboxes.sort_unstable();
        mailboxes.dedup();
        let seen = u64::try_from(mailboxes.len()).unwrap_or(u64::MAX);
        let longest = lines.iter().map(|line| line.length).max().unwrap_or(0);
        let firsts = lines.iter().filter_map(|line| line.clients.first());
        let turns = || {
            let turns = lines.iter().filter_map(|line| line.turn.as_ref());
            turns.filter(|turn| turn.left > Duration::ZERO)
        };
        Self {
            nodes: holdings.len(),
            shown: lines.len(),
            error: answers
                .iter()
                .find_map(|line| line.as_ref().err())
                .map(String::as_str),
            waiting: seen.max(longest),
            is_least: lines.iter().any(|line| line.has_more()),
            first: most(firsts.map(|client| client.mailbox.as_str())),
            turn: most(turns().map(|turn| turn.mailbox.as_str())).map(|(mailbox, on)| {
                let own = turns().filter(|turn| turn.mailbox == mailbox);
                let left = own.map(|turn| turn.left).max();
                (mailbox, on, left.unwrap_or_default())
            }),
        }
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Value {
        json!({
            "waiting": (self.shown > 0).then_some(self.waiting),
            "is_least": self.is_least,
            "first": self.first.map(|(mailbox, _)| mailbox),
            "first_on": self.first.map(|(_, on)| on),
            "turn": self.turn.map(|(mailbox, ..)| mailbox),
            "turn_on": self.turn.map(|(_, on, _)| on),
            "shown_by": self.shown,
            "message": self.to_string(),
        })
    }

    /// Whether there is something to tell.
    pub(crate) const fn is_known(&self) -> bool {
        self.shown > 0 || self.error.is_some()
    }
}

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (shown, nodes) = (self.shown, self.nodes);
        match self.error {
            Some(error) if shown == 0 => return write!(f, "unknown: {error}"),
            _ if shown == 0 => return f.write_str("unknown"),
            _ => {}
        }
        match self.waiting {
            0 => f.write_str("empty")?,
            1 => f.write_str("1 client waits")?,
            waiting if self.is_least => write!(f, "at least {waiting} clients wait")?,
            waiting => write!(f, "{waiting} clients wait")?,
        }
        let first = self.first.filter(|(_, on)| *on >= quorum(nodes));
        match first {
            Some((mailbox, on)) => write!(f, ", {mailbox} is the first on {on} of {nodes} nodes")?,
            None if self.first.is_some() => {
                f.write_str(", and no client is the first on a quorum of nodes")?;
            }
            None => {}
        }
        if let Some((mailbox, on, left)) = self.turn {
            match first {
                Some((first, _)) if first == mailbox => f.write_str(", and has the turn")?,
                _ => write!(f, ", {mailbox} has the turn")?,
            }
            let left = duration::in_words(left);
            write!(f, " on {on} of {nodes} nodes for at most {left}")?;
        }
        match self.error {
            Some(_) => write!(f, " ({shown} of {nodes} nodes have shown their line)"),
            None => Ok(()),
        }
    }
}

/// What occurs most often, and how often. Of several, the one that comes first.
fn most<'a>(names: impl Iterator<Item = &'a str>) -> Option<(&'a str, usize)> {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for name in names {
        match counts.iter_mut().find(|(other, _)| *other == name) {
            Some((_, count)) => *count += 1,
            None => counts.push((name, 1)),
        }
    }
    counts.into_iter().rev().max_by_key(|(_, count)| *count)
}
