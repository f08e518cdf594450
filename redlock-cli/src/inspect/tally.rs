//! What the nodes know of a lock together.

use core::fmt;
use core::time::Duration;

use super::holding::{Holding, Key, Mark, State};
use crate::duration;
use crate::nodes::quorum;

/// What can be said of the lock.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    pub(crate) verdict: Verdict<'a>,
    pub(crate) nodes: usize,
    pub(crate) answered: usize,
    /// After this time a quorum of nodes is free, whatever those say that did not answer; none when
    /// it may take for ever.
    pub(crate) free_in: Option<Duration>,
    /// The highest that any node has seen.
    pub(crate) fence: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// A quorum of nodes has this token.
    Held { token: &'a Mark, on: usize },
    /// A quorum of nodes has no key.
    Free,
    /// No token has a quorum, and no new one can get it at once.
    Split,
    /// It depends on the nodes that did not answer.
    Unknown,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(holdings: &'a [Holding]) -> Self {
        let states = || {
            holdings
                .iter()
                .filter_map(|holding| holding.state.as_ref().ok())
        };
        let (nodes, answered) = (holdings.len(), states().count());
        Self {
            verdict: verdict(states().map(|state| &state.key).collect(), nodes),
            nodes,
            answered,
            free_in: free_in(states(), nodes),
            fence: states().filter_map(|state| state.fence).max(),
        }
    }
}

fn verdict(keys: Vec<&Key>, nodes: usize) -> Verdict<'_> {
    let (quorum, silent) = (quorum(nodes), nodes - keys.len());
    let free = keys.iter().filter(|key| ***key == Key::Free).count();
    let tokens = keys.iter().filter_map(|key| match key {
        Key::Held { token, .. } => Some(token),
        _ => None,
    });
    let most = tokens
        .clone()
        .map(|token| {
            (
                token,
                tokens.clone().filter(|other| *other == token).count(),
            )
        })
        .max_by_key(|(_, on)| *on);
    match most {
        Some((token, on)) if on >= quorum => Verdict::Held { token, on },
        _ if free >= quorum => Verdict::Free,
        _ if keys.len() < quorum => Verdict::Unknown,
        _ if free + silent >= quorum => Verdict::Unknown,
        Some((_, on)) if on + silent >= quorum => Verdict::Unknown,
        _ => Verdict::Split,
    }
}

/// When so many of the keys have expired that a quorum is free.
fn free_in<'a>(states: impl Iterator<Item = &'a State>, nodes: usize) -> Option<Duration> {
    let mut ends: Vec<Duration> = states
        .filter_map(|state| match &state.key {
            Key::Free => Some(Duration::ZERO),
            key => key.ends_in(),
        })
        .collect();
    ends.sort_unstable();
    ends.get(quorum(nodes) - 1).copied()
}

impl fmt::Display for Tally<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nodes, answered, ..
        } = self;
        match &self.verdict {
            Verdict::Held { token, on } => write!(f, "held by {token} on {on} of {nodes} nodes")?,
            Verdict::Free => return f.write_str("free"),
            Verdict::Split => f.write_str("split: no token has a quorum")?,
            Verdict::Unknown => return write!(f, "unknown: {answered} of {nodes} nodes answered"),
        }
        match self.free_in {
            Some(left) => write!(f, ", free in at most {}", duration::in_words(left))?,
            None => f.write_str(", no telling when it is free")?,
        }
        match self.fence {
            Some(fence) => write!(f, ", fence {fence}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A letter is a token, `.` a free node, `l` a list, `?` a node that did not answer; the n-th
    /// node's key has n seconds left.
    fn holdings(nodes: &str) -> Vec<Holding> {
        let state = |number, node| match node {
            '?' => Err("connection refused".to_owned()),
            '.' => Ok(Key::Free),
            'l' => Ok(Key::Foreign {
                kind: "list".to_owned(),
                ends_in: None,
            }),
            token => Ok(Key::Held {
                token: Mark {
                    prefix: vec![0xab; 4],
                    digest: token.to_string(),
                },
                ends_in: Some(Duration::from_secs(number)),
            }),
        };
        let numbered = (1..).zip(nodes.chars());
        numbered
            .map(|(number, node)| Holding {
                node: node.to_string(),
                state: state(number, node).map(|key| State {
                    key,
                    fence: None,
                    refuses_fenced_for: None,
                }),
            })
            .collect()
    }

    fn told(nodes: &str) -> String {
        Tally::new(&holdings(nodes)).to_string()
    }

    #[test]
    fn a_quorum_of_nodes_decides() {
        for (nodes, line) in [
            (
                "A",
                "held by abababab.. on 1 of 1 nodes, free in at most 1.0 s",
            ),
            (
                "AAAAA",
                "held by abababab.. on 5 of 5 nodes, free in at most 3.0 s",
            ),
            (
                "AAA.?",
                "held by abababab.. on 3 of 5 nodes, free in at most 2.0 s",
            ),
            (
                "AAABB",
                "held by abababab.. on 3 of 5 nodes, free in at most 3.0 s",
            ),
            (".....", "free"),
            ("A...?", "free"),
            (
                "A..ll",
                "split: no token has a quorum, free in at most 1.0 s",
            ),
            (
                "AABBC",
                "split: no token has a quorum, free in at most 3.0 s",
            ),
            (
                "AABB",
                "split: no token has a quorum, free in at most 3.0 s",
            ),
            (
                "ABlll",
                "split: no token has a quorum, no telling when it is free",
            ),
        ] {
            assert_eq!(told(nodes), line, "{nodes}");
        }
    }

    #[test]
    fn a_node_that_is_silent_may_be_either() {
        for nodes in [
            "AA???", "..???", "AAB??", "A..??", "A..B?", "AABB?", "AA..?", "?",
        ] {
            let answered = nodes.chars().filter(|node| *node != '?').count();
            let line = format!("unknown: {answered} of {} nodes answered", nodes.len());
            assert_eq!(told(nodes), line, "{nodes}");
        }
        // Whatever this one has, no token and no new one gets a quorum.
        assert!(told("ABCD?").starts_with("split"));
    }

    #[test]
    fn tokens_that_begin_alike_are_not_one_token() {
        assert!(told("ABC").starts_with("split"), "{}", told("ABC"));
    }

    #[test]
    fn a_node_that_is_silent_is_never_taken_for_free() {
        let free_in = |nodes| Tally::new(&holdings(nodes)).free_in;
        assert_eq!(free_in("AAA??"), Some(Duration::from_secs(3)));
        assert_eq!(free_in("AA???"), None);
    }
}
