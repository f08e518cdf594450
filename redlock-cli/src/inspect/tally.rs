//! The state of a lock on all nodes together.

use core::fmt;
use core::time::Duration;

use super::credit::Credit;
use super::holding::{Holding, Key, Mark, RELEASED, State};
use crate::duration;
use crate::nodes::quorum;

/// The answers of all nodes, counted.
#[derive(Debug)]
pub(crate) struct Tally<'a> {
    pub(crate) verdict: Verdict<'a>,
    pub(crate) nodes: usize,
    pub(crate) answered: usize,
    /// The number of nodes whose answer counts.
    pub(crate) counted: usize,
    /// After this time a quorum of nodes is free for all clients, whatever the state of the other nodes is. `None` if that may never
    /// happen.
    pub(crate) free_in: Option<Duration>,
    /// The highest fence that any node has seen.
    pub(crate) fence: Option<u64>,
    /// Who the owner records of the holder name, escaped for printing. `None` if the lock is not held, or they name no owner.
    pub(crate) owner: Option<&'a str>,
    /// Whether the holder has released the lock, and only `--min-hold` keeps it.
    pub(crate) is_released: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict<'a> {
    /// A quorum of nodes has this token.
    Held { token: &'a Mark, on: usize },
    /// A quorum of nodes has no key, and none of them may have lost it.
    Free,
    /// No token has a quorum, and no new one can get it at once.
    Split,
    /// It depends on the nodes that did not answer, or whose answer does not count.
    Unknown,
}

/// An answer that counts.
#[derive(Debug, Clone, Copy)]
struct Evidence<'a> {
    key: &'a Key,
    /// Whether the node may have lost another key.
    may_have_forgotten: bool,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(holdings: &'a [Holding], credits: &[Credit]) -> Self {
        let states = || {
            holdings
                .iter()
                .zip(credits)
                .filter_map(|(holding, credit)| {
                    Some((holding.state.as_ref().ok()?, holding, credit))
                })
        };
        let evidence: Vec<Evidence<'_>> = states()
            .filter(|(_, holding, credit)| credit.counts(holding))
            .map(|(state, _, credit)| Evidence {
                key: &state.key,
                may_have_forgotten: *credit != Credit::Full,
            })
            .collect();
        let nodes = holdings.len();
        let verdict = verdict(&evidence, nodes);
        Self {
            owner: owner(&evidence, &verdict),
            is_released: is_released(&evidence, &verdict, nodes),
            verdict,
            nodes,
            answered: states().count(),
            counted: evidence.len(),
            free_in: free_in(states().map(|(state, _, credit)| (state, credit)), nodes),
            fence: states()
                .filter_map(|(state, ..)| state.fence.highest())
                .max(),
        }
    }
}

fn verdict<'a>(evidence: &[Evidence<'a>], nodes: usize) -> Verdict<'a> {
    let (quorum, silent) = (quorum(nodes), nodes - evidence.len());
    let count = |is_meant: &dyn Fn(&Evidence<'a>) -> bool| {
        evidence
            .iter()
            .filter(|evidence| is_meant(evidence))
            .count()
    };
    let has = |evidence: &Evidence<'_>, token: &Mark| matches!(evidence.key, Key::Held { token: other, .. } if other == token);
    let tokens = || {
        evidence.iter().filter_map(|evidence| match evidence.key {
            Key::Held { token, .. } => Some(token),
            _ => None,
        })
    };
    let on = |token: &Mark| count(&|evidence| has(evidence, token));
    if let Some(token) = tokens().find(|token| on(token) >= quorum) {
        let on = on(token);
        return Verdict::Held { token, on };
    }
    let free = count(&|evidence| *evidence.key == Key::Free);
    if free >= quorum {
        return Verdict::Free;
    }
    // The number of nodes that may have `token`, including those that do not show it.
    let may_be_on = |token: &Mark| {
        let forgotten = count(&|evidence| evidence.may_have_forgotten && !has(evidence, token));
        on(token) + forgotten + silent
    };
    let unseen = count(&|evidence| evidence.may_have_forgotten) + silent;
    let is_unknown = evidence.len() < quorum
        || free + silent >= quorum
        || unseen >= quorum
        || tokens().any(|token| may_be_on(token) >= quorum);
    if is_unknown {
        Verdict::Unknown
    } else {
        Verdict::Split
    }
}

/// The owner that most of the nodes name that have the token of the holder.
fn owner<'a>(evidence: &[Evidence<'a>], verdict: &Verdict<'a>) -> Option<&'a str> {
    let Verdict::Held { token: holder, .. } = verdict else {
        return None;
    };
    let named = || {
        evidence.iter().filter_map(|evidence| match evidence.key {
            Key::Held { token, owner, .. } if token == *holder => owner.as_deref(),
            _ => None,
        })
    };
    named().max_by_key(|name| named().filter(|other| other == name).count())
}

/// Whether a quorum of nodes tells that the holder has released the lock. One alone may lie, and the holder be at work.
fn is_released(evidence: &[Evidence<'_>], verdict: &Verdict<'_>, nodes: usize) -> bool {
    let Verdict::Held { token: holder, .. } = verdict else {
        return false;
    };
    let tells = |evidence: &&Evidence<'_>| match evidence.key {
        Key::Held {
            token, is_released, ..
        } => *is_released && token == *holder,
        Key::Free | Key::Foreign { .. } => false,
    };
    evidence.iter().filter(tells).count() >= quorum(nodes)
}

/// When a quorum of nodes is free for all clients: each of them has no key, or its key has expired, its vote counts, and it refuses no
/// fenced locks any more.
fn free_in<'a>(
    states: impl Iterator<Item = (&'a State, &'a Credit)>,
    nodes: usize,
) -> Option<Duration> {
    let mut ends: Vec<Duration> = states
        .filter_map(|(state, credit)| {
            let ends_in = match &state.key {
                Key::Free => Duration::ZERO,
                key => key.ends_in()?,
            };
            let fenced_in = state.refuses_fenced_for.unwrap_or_default();
            Some(ends_in.max(fenced_in).max(credit.full_in()?))
        })
        .collect();
    ends.sort_unstable();
    ends.get(quorum(nodes) - 1).copied()
}

impl fmt::Display for Tally<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nodes,
            answered,
            counted,
            ..
        } = self;
        match &self.verdict {
            Verdict::Held { token, on } => {
                write!(f, "held by {token}")?;
                let released = self.is_released.then_some(RELEASED);
                let known: Vec<_> = self.owner.into_iter().chain(released).collect();
                if !known.is_empty() {
                    write!(f, " ({})", known.join("; "))?;
                }
                write!(f, " on {on} of {nodes} nodes")?;
            }
            Verdict::Free => return f.write_str("free"),
            Verdict::Split => f.write_str("split: no token has a quorum")?,
            Verdict::Unknown if counted == nodes => {
                return write!(
                    f,
                    "unknown: {answered} of {nodes} nodes answered, but some may have lost the key of another holder"
                );
            }
            Verdict::Unknown if counted == answered => {
                return write!(f, "unknown: {answered} of {nodes} nodes answered");
            }
            Verdict::Unknown => {
                return write!(
                    f,
                    "unknown: only {counted} of {nodes} nodes gave an answer that counts"
                );
            }
        }
        match self.free_in {
            Some(left) => write!(f, ", free in at most {}", duration::in_words(left))?,
            None => f.write_str(", and it is unknown when it will be free")?,
        }
        match self.fence {
            Some(fence) => write!(f, ", fence {fence}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::holding::FenceRecord;
    use super::*;

    /// A letter is a token, `.` a free node, `l` a list, `?` a node that did not answer; `_` is a free node that may
    /// have lost a key, `a` the token `A` on such a node, and `x` a node without a vote. The key of the n-th node has n
    /// seconds left.
    fn holdings(nodes: &str) -> Vec<Holding> {
        let state = |number, node: char| match node.to_ascii_uppercase() {
            '?' => Err("connection refused".to_owned()),
            '.' | '_' => Ok(Key::Free),
            'L' => Ok(Key::Foreign {
                kind: "list".to_owned(),
                ends_in: None,
            }),
            token => Ok(Key::Held {
                token: Mark {
                    prefix: vec![0xab; 4],
                    digest: token.to_string(),
                },
                ends_in: Some(Duration::from_secs(number)),
                owner: match token {
                    'O' => Some("a:1".to_owned()),
                    _ => None,
                },
                is_released: false,
            }),
        };
        let numbered = (1..).zip(nodes.chars());
        numbered
            .map(|(number, node)| Holding {
                node: node.to_string(),
                state: state(number, node).map(|key| State {
                    key,
                    fence: FenceRecord::Missing,
                    refuses_fenced_for: None,
                }),
                line: Err("not asked".to_owned()),
                identity: Err("not asked".to_owned()),
            })
            .collect()
    }

    fn credits(nodes: &str) -> Vec<Credit> {
        let why = || "a reason".to_owned();
        let credit = |node| match node {
            '_' | 'a' | 'b' => Credit::KeysOnly {
                why: why(),
                left: Some(Duration::from_secs(9)),
            },
            'x' => Credit::Nothing { why: why() },
            _ => Credit::Full,
        };
        nodes.chars().map(credit).collect()
    }

    fn told(nodes: &str) -> String {
        Tally::new(&holdings(nodes), &credits(nodes)).to_string()
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
                "split: no token has a quorum, and it is unknown when it will be free",
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
        // Whatever this node has, no token gets a quorum.
        assert!(told("ABCD?").starts_with("split"));
    }

    #[test]
    fn a_missing_key_does_not_count_on_a_node_that_may_have_lost_it() {
        for (nodes, line) in [
            (
                "..xx_",
                "unknown: only 2 of 5 nodes gave an answer that counts",
            ),
            (
                "A_.",
                "unknown: only 2 of 3 nodes gave an answer that counts",
            ),
            (
                "A_?",
                "unknown: only 1 of 3 nodes gave an answer that counts",
            ),
            (
                "__.",
                "unknown: only 1 of 3 nodes gave an answer that counts",
            ),
            ("._.", "free"),
            // The second may have had `A` before it got `B`.
            (
                "Ab.",
                "unknown: 3 of 3 nodes answered, but some may have lost the key of another holder",
            ),
            (
                "Aa.",
                "held by abababab.. on 2 of 3 nodes, free in at most 1.0 s",
            ),
            // Their votes count in 9 s.
            (
                "aa.",
                "held by abababab.. on 2 of 3 nodes, free in at most 9.0 s",
            ),
            // Two nodes may have lost a token that no node shows.
            (
                "abC",
                "unknown: 3 of 3 nodes answered, but some may have lost the key of another holder",
            ),
            (
                "xxA",
                "unknown: only 1 of 3 nodes gave an answer that counts",
            ),
        ] {
            assert_eq!(told(nodes), line, "{nodes}");
        }
    }

    #[test]
    fn the_owner_is_the_one_whom_most_nodes_of_the_holder_name() {
        let mut all = holdings("OOOOA");
        let owner = |all: &[Holding]| {
            let tally = Tally::new(all, &credits("OOOOA"));
            tally.owner.map(str::to_owned)
        };
        assert_eq!(owner(&all).as_deref(), Some("a:1"));
        for (holding, name) in all.iter_mut().zip(["b:2", "a:1", "a:1"]) {
            if let Ok(State {
                key: Key::Held { owner, .. },
                ..
            }) = &mut holding.state
            {
                *owner = Some(name.to_owned());
            }
        }
        assert_eq!(owner(&all).as_deref(), Some("a:1"));
        assert!(told("OOO..").starts_with("held by abababab.. (a:1) on 3 of 5 nodes"));
        assert!(!told("OOABC").contains("a:1"), "split");
    }

    #[test]
    fn one_node_alone_does_not_say_that_the_holder_has_released_the_lock() {
        let mut all = holdings("OOO..");
        for released in 1..=3 {
            if let Ok(State {
                key: Key::Held { is_released, .. },
                ..
            }) = &mut all[released - 1].state
            {
                *is_released = true;
            }
            let told = Tally::new(&all, &credits("OOO..")).to_string();
            let words = match released {
                3 => "(a:1; released, held by --min-hold) on 3",
                _ => "(a:1) on 3",
            };
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn tokens_that_begin_alike_are_not_one_token() {
        assert!(told("ABC").starts_with("split"), "{}", told("ABC"));
    }

    #[test]
    fn a_node_that_is_silent_is_never_taken_for_free() {
        let free_in = |nodes| Tally::new(&holdings(nodes), &credits(nodes)).free_in;
        assert_eq!(free_in("AAA??"), Some(Duration::from_secs(3)));
        assert_eq!(free_in("AA???"), None);
    }
}
