//! The state of a lock on one node.

use core::fmt;
use core::time::Duration;

use redis::{Value, from_redis_value};
use redlock_std::printable;

use super::line::Line;
use crate::nodes::{Connection, Info, Node, in_words};
use crate::{duration, owner};
use redlock_core::FENCE_KEY_PREFIX;
use redlock_std::init::guard_record;

/// The answers of a node, or why there are none.
#[derive(Debug)]
pub(crate) struct Holding {
    pub(crate) node: String,
    pub(crate) state: Result<State, String>,
    pub(crate) line: Result<Line, String>,
    /// The identity of the node, read after the state.
    pub(crate) identity: Result<Identity, String>,
}

/// The identity of a node, which decides whether its vote counts.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) info: Info,
    /// What is at the key of the guard record.
    pub(crate) guard: Result<guard_record::Content, String>,
    /// The time on the clock of the node.
    pub(crate) now_ms: Option<u64>,
}

/// The state of a lock at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) key: Key,
    pub(crate) fence: FenceRecord,
    /// For how long the node refuses fenced locks because a fenced lease has not ended. `None` if the key says it: then it lasts for
    /// as long as the lease. It is missing if, for example, an operator deleted it, and it ends earlier if only `--min-hold` keeps it.
    pub(crate) refuses_fenced_for: Option<Duration>,
}

/// The fence record of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FenceRecord {
    /// There is none, or the user may not read it.
    Missing,
    /// With the highest fence that the node has seen.
    Highest(u64),
    /// No client has written it, and no fenced acquire is granted over it.
    Unreadable,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Key {
    Free,
    Held {
        token: Mark,
        ends_in: Option<Duration>,
        /// Who the owner record of this token names, escaped for printing.
        owner: Option<String>,
        /// Whether the holder has released the lock, and only `--min-hold` keeps it.
        is_released: bool,
    },
    /// A value that is no token, which blocks every lock.
    Foreign {
        kind: String,
        ends_in: Option<Duration>,
    },
}

/// What is told of a lock that its holder has released.
pub(crate) const RELEASED: &str = "released, held by --min-hold";

/// Distinguishes tokens without revealing them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) prefix: Vec<u8>,
    pub(crate) digest: String,
}

impl Mark {
    /// How many bytes of a token are shown.
    const SHOWN: usize = 4;
}

/// A lease and its key end at the same time if they end at most this much apart: a node that is slow reads its clock twice.
const SAME: Duration = Duration::from_millis(100);

impl Holding {
    /// Reads `key` on `node`.
    pub(crate) async fn read(node: Node, key: Vec<u8>) -> Self {
        let (state, line, identity) = match node.connect().await {
            Ok(mut connection) => (
                State::read(&mut connection, &key).await,
                Line::read(&mut connection, &key).await,
                Identity::read(&mut connection).await,
            ),
            Err(why) => (Err(why.clone()), Err(why.clone()), Err(why)),
        };
        Self {
            node: node.name().to_owned(),
            state,
            line,
            identity,
        }
    }

    /// That of a node that has not answered yet.
    pub(crate) fn unanswered(node: &Node) -> Self {
        let why = || "no answer yet".to_owned();
        Self {
            node: node.name().to_owned(),
            state: Err(why()),
            line: Err(why()),
            identity: Err(why()),
        }
    }

    /// Who the owner record of the holder on this node names, escaped for printing.
    pub(crate) fn owner(&self) -> Option<&str> {
        match &self.state.as_ref().ok()?.key {
            Key::Held { owner, .. } => owner.as_deref(),
            Key::Free | Key::Foreign { .. } => None,
        }
    }

    /// Whether the key is one that no client of a lock has written, on this node.
    pub(crate) fn is_foreign(&self) -> bool {
        let key = self.state.as_ref().map(|state| &state.key);
        key.is_ok_and(Key::is_foreign)
    }

    /// Whether the holder on this node has released the lock, and only `--min-hold` keeps it.
    pub(crate) fn is_released(&self) -> bool {
        let key = self.state.as_ref().map(|state| &state.key);
        matches!(
            key,
            Ok(Key::Held {
                is_released: true,
                ..
            })
        )
    }

    /// Whether the node answered, and has no key.
    pub(crate) fn is_free(&self) -> bool {
        self.state
            .as_ref()
            .is_ok_and(|state| state.key == Key::Free)
    }
}

impl Identity {
    async fn read(connection: &mut Connection) -> Result<Self, String> {
        let mut questions = redis::pipe();
        Info::ask(&mut questions);
        guard_record::ask(&mut questions);
        questions.cmd("TIME");
        let replies = connection.ask(&questions).await?;
        let (info, rest) = Info::read(&replies).ok_or("no answer")?;
        let [guard, time] = rest else {
            return Err("no answer".to_owned());
        };
        let time: Option<(u64, u64)> = from_redis_value(time.clone()).ok();
        Ok(Self {
            info: info?,
            guard: guard_record::read(guard),
            now_ms: time.map(|(seconds, micros)| {
                seconds.saturating_mul(1_000).saturating_add(micros / 1_000)
            }),
        })
    }
}

impl State {
    pub(crate) async fn read(connection: &mut Connection, key: &[u8]) -> Result<Self, String> {
        let (fence, owner) = (
            [FENCE_KEY_PREFIX.as_bytes(), key].concat(),
            owner::record_key(key),
        );
        let (fence, owner) = (Some(&fence[..]), Some(&owner[..]));
        // A user of plain locks may not be allowed to see fences, nor a user of an older ACL to see owners.
        let mut reply = Value::Nil;
        for (fence, owner) in [(fence, owner), (fence, None), (None, owner), (None, None)] {
            reply = ask(connection, key, fence, owner).await?;
            if !matches!(&reply, Value::ServerError(error) if error.code() == "NOPERM") {
                break;
            }
        }
        match &reply {
            Value::ServerError(error) => Err(in_words(error)),
            reply => Self::parse(reply).ok_or_else(|| "unexpected reply".to_owned()),
        }
    }

    fn parse(reply: &Value) -> Option<Self> {
        type Reply = (String, Vec<u8>, String, i64, String, Vec<u8>, i64, u8);
        let (kind, mut prefix, digest, ttl_ms, fence, owner, refusal_ms, released): Reply =
            from_redis_value(reply.clone()).ok()?;
        prefix.truncate(Mark::SHOWN);
        // -1 is a key without a TTL, and -2 one that is missing.
        let ends_in = u64::try_from(ttl_ms).ok().map(Duration::from_millis);
        let refused_for = u64::try_from(refusal_ms).ok().map(Duration::from_millis);
        let refuses_fenced_for = match (kind.as_str(), ends_in) {
            ("none", _) => refused_for,
            (_, Some(ends_in)) => refused_for.filter(|left| *left > ends_in + SAME),
            (_, None) => None,
        };
        let key = match kind.as_str() {
            "none" => Key::Free,
            "string" => Key::Held {
                token: Mark { prefix, digest },
                ends_in,
                owner: (!owner.is_empty()).then(|| printable(&String::from_utf8_lossy(&owner))),
                is_released: released == 1,
            },
            kind => Key::Foreign {
                kind: printable(kind),
                ends_in,
            },
        };
        Some(Self {
            key,
            fence: match fence.as_str() {
                "" => FenceRecord::Missing,
                fence => fence
                    .parse()
                    .map_or(FenceRecord::Unreadable, FenceRecord::Highest),
            },
            refuses_fenced_for,
        })
    }
}

impl FenceRecord {
    /// Why the record has no fence, although it exists.
    pub(crate) const fn error(self) -> Option<&'static str> {
        match self {
            Self::Unreadable => {
                Some("the fence record cannot be read: no client can acquire a fenced lock here")
            }
            Self::Missing | Self::Highest(_) => None,
        }
    }

    pub(crate) const fn highest(self) -> Option<u64> {
        match self {
            Self::Highest(fence) => Some(fence),
            Self::Missing | Self::Unreadable => None,
        }
    }
}

impl Key {
    /// Whether no client of a lock has written it: a lock is a string, and has a TTL.
    const fn is_foreign(&self) -> bool {
        matches!(
            self,
            Self::Foreign { .. } | Self::Held { ends_in: None, .. }
        )
    }

    /// When the key expires; `None` if it is missing or has no TTL.
    pub(crate) const fn ends_in(&self) -> Option<Duration> {
        match self {
            Self::Free => None,
            Self::Held { ends_in, .. } | Self::Foreign { ends_in, .. } => *ends_in,
        }
    }
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            Ok(state) => state,
            Err(why) => return write!(f, "unknown  {why}"),
        };
        match &state.key {
            Key::Free => f.write_str("free")?,
            Key::Held { token, ends_in, .. } => write!(f, "held     {token}, {}", left(*ends_in))?,
            Key::Foreign { kind, ends_in } => write!(
                f,
                "foreign  a {kind}, not a lock, {}: no client can acquire here",
                left(*ends_in)
            )?,
        }
        let is_free = state.key == Key::Free;
        match state.fence {
            FenceRecord::Highest(fence) if is_free => write!(f, "     last fence {fence}")?,
            FenceRecord::Highest(fence) => write!(f, ", fence {fence}")?,
            FenceRecord::Missing | FenceRecord::Unreadable => {}
        }
        if let Some(why) = state.fence.error() {
            write!(f, "{}{why}", if is_free { "     " } else { ", " })?;
        }
        match state.refuses_fenced_for {
            Some(left) => write!(f, ", refuses fenced locks for {}", duration::in_words(left)),
            None => Ok(()),
        }
    }
}

/// The first bytes of a token, like the `Debug` of `Token`. They tell tokens apart, and release no lock.
pub(crate) fn shown(token: &[u8]) -> String {
    let first = token.iter().take(Mark::SHOWN);
    let digits: String = first.map(|byte| format!("{byte:02x}")).collect();
    digits + ".."
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.prefix))
    }
}

async fn ask(
    connection: &mut Connection,
    key: &[u8],
    fence: Option<&[u8]>,
    owner: Option<&[u8]>,
) -> Result<Value, String> {
    let keys: Vec<&[u8]> = [Some(key), fence, owner].into_iter().flatten().collect();
    // Where the keys stand among them; 0 for a key that is missing.
    let fence_at = fence.map_or(0, |_| 2);
    let owner_at = owner.map_or(0, |_| keys.len());
    let mut script = redis::pipe();
    script
        .cmd("EVAL")
        .arg(include_str!("holding.lua"))
        .arg(keys.len());
    for key in keys {
        script.arg(key);
    }
    script.arg(fence_at).arg(owner_at);
    let mut replies = connection.ask(&script).await?;
    replies.pop().ok_or_else(|| "no answer".to_owned())
}

fn left(ends_in: Option<Duration>) -> String {
    match ends_in {
        Some(left) => format!("{} left", duration::in_words(left)),
        None => "no TTL".to_owned(),
    }
}
