//! What happened in a world, in true time: all that the judge is told, and what a trace shows.

use core::fmt;

use redlock_core::{Command, Reply, Token};

use super::clock::Moment;
use super::fault::Fault;

/// The names of the keys, by their number.
pub(crate) const KEYS: [&str; 3] = ["dock-0", "dock-1", "dock-2"];

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fact {
    pub(crate) at: Moment,
    pub(crate) what: What,
}

/// A task of a client, with a lock of its own; the tasks of one client share its clock and connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) client: usize,
    pub(crate) number: usize,
}

/// What happened. A token is a number: the same number, the same bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum What {
    /// A task calls the lock, `local` by its clock. It is promised an end within `bound` of that clock.
    Begins {
        task: Task,
        call: Call,
        local: u64,
        bound: u64,
    },
    Ends {
        task: Task,
        call: Call,
        end: End,
        local: u64,
    },
    /// A lease is handed out. Its holder believes in it `until` its clock reads the end of the validity.
    Granted {
        task: Task,
        key: usize,
        token: usize,
        until: Moment,
    },
    Extended {
        task: Task,
        key: usize,
        token: usize,
        until: Moment,
    },
    /// The holder gives the lease back, or has been told that it is over.
    Over {
        task: Task,
        key: usize,
        token: usize,
    },
    /// The holder has been told that a quorum does not carry its token any more.
    CalledLost {
        task: Task,
        key: usize,
        token: usize,
    },
    /// The holder has been told that its work was done under the lock.
    CalledDone {
        task: Task,
        key: usize,
        token: usize,
    },
    /// Work under `hold` begins.
    Works {
        task: Task,
        key: usize,
        token: usize,
        until: Moment,
    },
    /// That work is done or was dropped.
    Stops {
        task: Task,
        key: usize,
        token: usize,
    },
    /// The process is not run `until` then; its clock moves on by `local`.
    Paused {
        client: usize,
        until: Moment,
        local: u64,
    },
    Sent {
        task: Task,
        node: usize,
        message: Message,
    },
    Executed {
        client: usize,
        node: usize,
        message: Message,
        reply: Reply,
    },
    Answered {
        client: usize,
        node: usize,
        message: Message,
        reply: Reply,
    },
    /// A client has noticed that its connection is dead, or has a new one.
    Connection {
        client: usize,
        node: usize,
        is_up: bool,
    },
    /// A token stands under a key of a node until it expires by that node's clock.
    Stands {
        node: usize,
        key: usize,
        token: usize,
        until: Moment,
    },
    /// A key was deleted.
    Falls {
        node: usize,
        key: usize,
    },
    /// A node has forgotten all its keys.
    Forgets {
        node: usize,
    },
    /// Behind everything that a client had sent for a token that nobody wants any more: whether it stands.
    Probed {
        client: usize,
        node: usize,
        key: usize,
        token: usize,
        stands: bool,
    },
    Fault(Fault),
    /// No more fault begins.
    Calm,
    /// Events without end: somebody goes round in circles.
    Endless,
}

/// A call of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    TryAcquire {
        key: usize,
    },
    Acquire {
        key: usize,
    },
    /// An acquire after the faults, with all the time that it needs.
    CalmAcquire {
        key: usize,
    },
    Extend {
        key: usize,
    },
    Release {
        key: usize,
    },
    Hold {
        key: usize,
    },
    Keep {
        key: usize,
    },
    Tidy,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    Held,
    Unreachable,
    TooLate,
    Lost,
    Expired,
    ExtensionsSpent,
    Entropy,
    Dropped,
}

/// A command on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) verb: Verb,
    pub(crate) key: usize,
    pub(crate) token: usize,
    pub(crate) ttl_ms: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    Acquire,
    Extend,
    Release,
}

impl Message {
    /// The command that goes to the node, with the bytes of its token.
    pub(crate) const fn command<'a>(&self, token: &'a Token) -> Command<'a> {
        let key = KEYS[self.key].as_bytes();
        let ttl_ms = self.ttl_ms;
        match self.verb {
            Verb::Acquire => Command::Acquire { key, token, ttl_ms },
            Verb::Extend => Command::Extend { key, token, ttl_ms },
            Verb::Release => Command::Release { key, token },
        }
    }
}

impl Call {
    pub(crate) const fn key(self) -> Option<usize> {
        match self {
            Self::TryAcquire { key }
            | Self::Acquire { key }
            | Self::CalmAcquire { key }
            | Self::Extend { key }
            | Self::Release { key }
            | Self::Hold { key }
            | Self::Keep { key } => Some(key),
            Self::Tidy => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::TryAcquire { .. } => "try_acquire",
            Self::Acquire { .. } => "acquire",
            Self::CalmAcquire { .. } => "acquire after the faults",
            Self::Extend { .. } => "extend",
            Self::Release { .. } => "release",
            Self::Hold { .. } => "hold",
            Self::Keep { .. } => "keep",
            Self::Tidy => "tidy",
        }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.at / 1_000_000, self.at % 1_000_000);
        write!(f, "{seconds:>4}.{micros:06}  {}", self.what)
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Begins { task, call, .. } => write!(f, "{task} calls {call}"),
            Self::Ends {
                task, call, end, ..
            } => write!(f, "{task} ends {call}: {end:?}"),
            Self::Granted {
                task,
                key,
                token,
                until,
            } => {
                write!(
                    f,
                    "{task} HOLDS {} as t{token} until {}",
                    KEYS[key],
                    Seconds(until)
                )
            }
            Self::Extended {
                task,
                key,
                token,
                until,
            } => {
                write!(
                    f,
                    "{task} HOLDS ON to {} as t{token} until {}",
                    KEYS[key],
                    Seconds(until)
                )
            }
            Self::Over { task, key, token } => {
                write!(f, "{task} holds {} as t{token} no more", KEYS[key])
            }
            Self::CalledLost { task, key, token } => {
                write!(f, "{task} is told that {} as t{token} is lost", KEYS[key])
            }
            Self::CalledDone { task, key, token } => {
                write!(
                    f,
                    "{task} is told that its work under {} as t{token} is done",
                    KEYS[key]
                )
            }
            Self::Works {
                task, key, token, ..
            } => {
                write!(f, "{task} WORKS under {} as t{token}", KEYS[key])
            }
            Self::Stops { task, key, token } => {
                write!(f, "{task} works no more under {} as t{token}", KEYS[key])
            }
            Self::Paused { client, until, .. } => {
                write!(f, "client {client} is paused until {}", Seconds(until))
            }
            Self::Sent {
                task,
                node,
                message,
            } => write!(f, "{task} -> node {node}: {message}"),
            Self::Executed {
                client,
                node,
                message,
                reply,
            } => {
                write!(
                    f,
                    "node {node} does for client {client}: {message}: {reply:?}"
                )
            }
            Self::Answered {
                client,
                node,
                message,
                reply,
            } => {
                write!(f, "client {client} <- node {node}: {message}: {reply:?}")
            }
            Self::Connection {
                client,
                node,
                is_up,
            } => {
                let now = if is_up {
                    "is connected to"
                } else {
                    "notices that it has lost"
                };
                write!(f, "client {client} {now} node {node}")
            }
            Self::Stands {
                node,
                key,
                token,
                until,
            } => {
                write!(
                    f,
                    "node {node} has {} = t{token} until {}",
                    KEYS[key],
                    Seconds(until)
                )
            }
            Self::Falls { node, key } => write!(f, "node {node} has no {}", KEYS[key]),
            Self::Forgets { node } => write!(f, "node {node} has no key at all"),
            Self::Probed {
                client,
                node,
                key,
                token,
                stands,
            } => {
                let verb = if stands { "STILL has" } else { "has not" };
                write!(
                    f,
                    "node {node} {verb} {} = t{token}, of which client {client} is done",
                    KEYS[key]
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

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        self.key().map_or(Ok(()), |key| write!(f, " {}", KEYS[key]))
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} t{}", self.verb, KEYS[self.key], self.token)
    }
}

/// A moment in seconds, as it stands at the beginning of each line.
#[derive(Debug)]
pub(crate) struct Seconds(pub(crate) Moment);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Moment::MAX => f.write_str("the end of time"),
            at => write!(f, "{}.{:06}", at / 1_000_000, at % 1_000_000),
        }
    }
}
