//! What a client says, one line each, with the time on the machine's clock. It is the same clock for all,
//! and the one on which leases are counted.

use std::fmt;
use std::str::{FromStr, SplitWhitespace};

use redlock_core::Instant;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Said {
    /// From now on it tries to acquire.
    Wants {
        at: Instant,
    },
    /// A try has failed.
    Refused {
        at: Instant,
        why: Refusal,
    },
    Acquired {
        at: Instant,
        valid_until: Instant,
    },
    /// The lease that was just acquired has a fence; the round that won it began at `sent`, and it was asked
    /// for at `asked`.
    Fenced {
        asked: Instant,
        sent: Instant,
        fence: u64,
    },
    /// So many nodes had no vote when a try failed.
    Denied {
        why: Flaw,
        nodes: u64,
    },
    /// A client with a higher fence has been at the resource.
    TurnedAway {
        at: Instant,
        valid_until: Instant,
    },
    Extended {
        valid_until: Instant,
    },
    /// It has used what the lock protects, and was done with that at `at`.
    Used {
        at: Instant,
        valid_until: Instant,
        used: Use,
    },
    /// It does not count on the lease any more. Said before anything is released.
    LetsGo {
        at: Instant,
        valid_until: Instant,
    },
    /// A quorum of the nodes has told it that they do not know its lease.
    Lost {
        at: Instant,
    },
    /// It was told to stop, and has given back everything.
    Idle {
        at: Instant,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Held,
    Unreachable,
    TooLate,
    /// It did not want to wait any longer.
    GaveUp,
}

/// Why a node has no vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flaw {
    /// It has restarted, as a plain client sees it.
    Restarted,
    /// It may have forgotten something.
    Quarantined,
    /// Its guard record is missing.
    Unguarded,
    Replica,
    MayEvict,
}

/// A use of what the lock protects: whose use was found there, and which one was left there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Use {
    /// `None` if it could not be read, because another client was writing.
    pub(super) found: Option<Mark>,
    pub(super) left: Mark,
}

/// What a use leaves behind. No two are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Mark {
    /// Who used it.
    pub(super) voice: usize,
    /// How often that one had used it then.
    pub(super) count: u64,
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wants { at } => write!(f, "wants {}", at.as_micros()),
            Self::Refused { at, why } => write!(f, "refused {} {}", at.as_micros(), why.name()),
            Self::Acquired { at, valid_until } => {
                let [at, until] = [at, valid_until].map(|instant| instant.as_micros());
                write!(f, "acquired {at} {until}")
            }
            Self::Fenced { asked, sent, fence } => {
                let [asked, sent] = [asked, sent].map(|instant| instant.as_micros());
                write!(f, "fenced {asked} {sent} {fence}")
            }
            Self::Denied { why, nodes } => write!(f, "denied {} {nodes}", why.name()),
            Self::TurnedAway { at, valid_until } => {
                let [at, until] = [at, valid_until].map(|instant| instant.as_micros());
                write!(f, "turned-away {at} {until}")
            }
            Self::Extended { valid_until } => write!(f, "extended {}", valid_until.as_micros()),
            Self::Used {
                at,
                valid_until,
                used: Use { found, left },
            } => {
                let [at, until] = [at, valid_until].map(|instant| instant.as_micros());
                write!(f, "used {at} {until} {left}")?;
                found.map_or(Ok(()), |found| write!(f, " {found}"))
            }
            Self::LetsGo { at, valid_until } => {
                let [at, until] = [at, valid_until].map(|instant| instant.as_micros());
                write!(f, "lets-go {at} {until}")
            }
            Self::Lost { at } => write!(f, "lost {}", at.as_micros()),
            Self::Idle { at } => write!(f, "idle {}", at.as_micros()),
        }
    }
}

impl FromStr for Said {
    type Err = NotSaid;

    fn from_str(line: &str) -> Result<Self, NotSaid> {
        let mut words = line.split_whitespace();
        let said = match words.next() {
            Some("wants") => Self::Wants {
                at: instant(&mut words)?,
            },
            Some("refused") => Self::Refused {
                at: instant(&mut words)?,
                why: words.next().and_then(Refusal::named).ok_or(NotSaid)?,
            },
            Some("acquired") => Self::Acquired {
                at: instant(&mut words)?,
                valid_until: instant(&mut words)?,
            },
            Some("fenced") => Self::Fenced {
                asked: instant(&mut words)?,
                sent: instant(&mut words)?,
                fence: number(&mut words)?,
            },
            Some("denied") => Self::Denied {
                why: words.next().and_then(Flaw::named).ok_or(NotSaid)?,
                nodes: number(&mut words)?,
            },
            Some("turned-away") => Self::TurnedAway {
                at: instant(&mut words)?,
                valid_until: instant(&mut words)?,
            },
            Some("extended") => Self::Extended {
                valid_until: instant(&mut words)?,
            },
            Some("used") => Self::Used {
                at: instant(&mut words)?,
                valid_until: instant(&mut words)?,
                used: Use {
                    left: words.next().ok_or(NotSaid)?.parse()?,
                    found: words.next().map(str::parse).transpose()?,
                },
            },
            Some("lets-go") => Self::LetsGo {
                at: instant(&mut words)?,
                valid_until: instant(&mut words)?,
            },
            Some("lost") => Self::Lost {
                at: instant(&mut words)?,
            },
            Some("idle") => Self::Idle {
                at: instant(&mut words)?,
            },
            _ => return Err(NotSaid),
        };
        words.next().is_none().then_some(said).ok_or(NotSaid)
    }
}

fn instant(words: &mut SplitWhitespace<'_>) -> Result<Instant, NotSaid> {
    number(words).map(Instant::from_micros)
}

fn number(words: &mut SplitWhitespace<'_>) -> Result<u64, NotSaid> {
    let word = words.next().ok_or(NotSaid)?;
    word.parse().map_err(|_| NotSaid)
}

impl Refusal {
    const ALL: [Self; 4] = [Self::Held, Self::Unreachable, Self::TooLate, Self::GaveUp];

    const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Unreachable => "unreachable",
            Self::TooLate => "too-late",
            Self::GaveUp => "gave-up",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.name() == name)
    }
}

impl Flaw {
    pub(super) const ALL: [Self; 5] = [
        Self::Restarted,
        Self::Quarantined,
        Self::Unguarded,
        Self::Replica,
        Self::MayEvict,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Restarted => "restarted",
            Self::Quarantined => "quarantined",
            Self::Unguarded => "unguarded",
            Self::Replica => "replica",
            Self::MayEvict => "may-evict",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|why| why.name() == name)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.voice, self.count)
    }
}

impl FromStr for Mark {
    type Err = NotSaid;

    fn from_str(word: &str) -> Result<Self, NotSaid> {
        let (voice, count) = word.split_once('.').ok_or(NotSaid)?;
        Ok(Self {
            voice: voice.parse().map_err(|_| NotSaid)?,
            count: count.parse().map_err(|_| NotSaid)?,
        })
    }
}

/// A line that no client says.
#[derive(Debug)]
pub(super) struct NotSaid;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_read() {
        let at = Instant::from_micros(7);
        let valid_until = Instant::from_micros(u64::MAX);
        let left = Mark { voice: 3, count: 9 };
        let found = Some(Mark { voice: 0, count: 0 });
        let why = Refusal::Unreachable;
        for said in [
            Said::Wants { at },
            Said::Refused { at, why },
            Said::Acquired { at, valid_until },
            Said::Extended { valid_until },
            Said::Fenced {
                asked: at,
                sent: valid_until,
                fence: 5,
            },
            Said::Denied {
                why: Flaw::MayEvict,
                nodes: 2,
            },
            Said::TurnedAway { at, valid_until },
            Said::Used {
                at,
                valid_until,
                used: Use { found, left },
            },
            Said::Used {
                at,
                valid_until,
                used: Use { found: None, left },
            },
            Said::LetsGo { at, valid_until },
            Said::Lost { at },
            Said::Idle { at },
        ] {
            assert_eq!(said.to_string().parse::<Said>().unwrap(), said);
        }
    }

    #[test]
    fn a_line_that_is_torn_is_not_read() {
        for line in [
            "",
            "acquired 7",
            "acquired 7 8 9",
            "acquired 7 x",
            "hello 7",
        ] {
            assert!(line.parse::<Said>().is_err(), "{line}");
        }
    }
}
