//! The waiting line of a lock on one node.

use core::fmt;
use core::time::Duration;
use std::time::SystemTime;

use redis::{FromRedisValue, Value, from_redis_value};
use redlock_core::QUEUE_KEY_PREFIX;
use serde_json::{Value as Json, json};

use crate::duration;
use crate::nodes::{Connection, in_words};

/// The clients that wait for a lock, as a node knows them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// How many clients stand in the line.
    pub(crate) length: u64,
    /// The first ones, in their order.
    pub(crate) clients: Vec<Client>,
    /// `None` if it is the turn of no client.
    pub(crate) turn: Option<Turn>,
}

/// A client in the line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) mailbox: String,
    /// Its ticket: when its wait began, in microseconds of the nodes' time.
    since: u64,
    /// How long ago that was, on the clock of the node.
    waits_for: Duration,
    reach: Reach,
}

/// Whether the node can call a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Connected,
    /// No connection of the client is left, so the next call passes it over.
    Gone,
    /// The client does not get messages: it looks at the lock again and again.
    Uncallable,
    /// The user may not see whether the client is connected.
    Unknown,
}

/// The turn of a client: until it ends, the node grants the lock to no client behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    pub(crate) mailbox: String,
    /// Zero if the turn is over. Then the next acquire removes the record of the turn.
    pub(crate) left: Duration,
}

impl Line {
    /// How many clients are shown.
    pub(crate) const SHOWN: usize = 16;

    /// Reads the line of `key`.
    pub(crate) async fn read(connection: &mut Connection, key: &[u8]) -> Result<Self, String> {
        let mut script = redis::pipe();
        script
            .cmd("EVAL")
            .arg(include_str!("line.lua"))
            .arg(1)
            .arg([QUEUE_KEY_PREFIX.as_bytes(), key].concat())
            // The record of the turn is a member too.
            .arg(Self::SHOWN + 1);
        match connection.ask(&script).await?.first() {
            Some(Value::ServerError(error)) => Err(in_words(error)),
            Some(reply) => Self::parse(reply).ok_or_else(|| "unexpected reply".to_owned()),
            None => Err("no answer".to_owned()),
        }
    }

    fn parse(reply: &Value) -> Option<Self> {
        let Value::Array(values) = reply else {
            return None;
        };
        let (head, members) = values.split_at_checked(2)?;
        let [clock, length] = head else {
            return None;
        };
        let now: u64 = read(clock)?;
        let mut line = Self {
            length: read(length)?,
            clients: Vec::new(),
            turn: None,
        };
        let mut records: u64 = 0;
        for member in members.chunks(3) {
            let [name, score, subscribers] = member else {
                return None;
            };
            let name: Vec<u8> = read(name)?;
            let is_record = name.starts_with(b"!");
            records = records.saturating_add(is_record.into());
            // No client has written infinity, or a number that is too long.
            let Some(score) = read(score) else {
                continue;
            };
            if is_record {
                line.turn = line.turn.or_else(|| Turn::parse(&name, score, now));
            } else if line.clients.len() < Self::SHOWN {
                let client = Client::parse(&name, score, read(subscribers)?, now);
                line.clients.extend(client);
            }
        }
        line.length = line.length.saturating_sub(records);
        Some(line)
    }

    /// Whether more clients stand in the line than were read.
    pub(crate) fn has_more(&self) -> bool {
        self.unread() > 0
    }

    fn unread(&self) -> u64 {
        let read = u64::try_from(self.clients.len()).unwrap_or(u64::MAX);
        self.length.saturating_sub(read)
    }

    /// As JSON.
    pub(crate) fn json(&self) -> Json {
        json!({
            "waiting": self.length,
            "turn": self.turn.as_ref().map(|turn| json!({
                "mailbox": turn.mailbox,
                "ends_in_ms": millis(turn.left),
            })),
            "clients": self.clients.iter().map(Client::json).collect::<Vec<_>>(),
        })
    }
}

impl Client {
    /// No ticket is later: the scores of Redis count no further.
    const LATEST: u64 = 1 << 53;

    fn parse(name: &[u8], score: i64, subscribers: i64, now: u64) -> Option<Self> {
        let mailbox = mailbox(name)?;
        let since = u64::try_from(score)
            .ok()
            .filter(|since| *since <= Self::LATEST)?;
        let reach = match subscribers {
            _ if name.ends_with(b"~") => Reach::Uncallable,
            0 => Reach::Gone,
            1.. => Reach::Connected,
            _ => Reach::Unknown,
        };
        Some(Self {
            mailbox,
            since,
            waits_for: Duration::from_micros(now.saturating_sub(since)),
            reach,
        })
    }

    fn since(&self) -> String {
        let since = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(self.since));
        let since = since.unwrap_or(SystemTime::UNIX_EPOCH);
        humantime::format_rfc3339_millis(since).to_string()
    }

    fn json(&self) -> Json {
        json!({
            "mailbox": self.mailbox,
            "since": self.since(),
            "waits_for_ms": millis(self.waits_for),
            "callable": self.reach != Reach::Uncallable,
            "connected": match self.reach {
                Reach::Connected => Some(true),
                Reach::Gone => Some(false),
                Reach::Uncallable | Reach::Unknown => None,
            },
        })
    }
}

impl Turn {
    /// The clients take a record that ends later than that for one of a clock that was ahead: it is over.
    const LONGEST_MS: u64 = 10_000;

    fn parse(name: &[u8], score: i64, now: u64) -> Option<Self> {
        let mailbox = mailbox(name.strip_prefix(b"!")?)?;
        let left_ms = u64::try_from(score.checked_neg()?)
            .ok()?
            .saturating_sub(now / 1_000);
        let left_ms = if left_ms > Self::LONGEST_MS {
            0
        } else {
            left_ms
        };
        Some(Self {
            mailbox,
            left: Duration::from_millis(left_ms),
        })
    }
}

/// A line for each client.
impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, client) in (1..).zip(&self.clients) {
            write!(f, "  {rank:>2}. {client}")?;
            match &self.turn {
                Some(turn) if turn.mailbox == client.mailbox => writeln!(f, ", {turn}")?,
                _ => writeln!(f)?,
            }
        }
        match self.unread() {
            0 => {}
            more => writeln!(f, "      and {more} more")?,
        }
        match &self.turn {
            Some(turn)
                if self
                    .clients
                    .iter()
                    .all(|other| other.mailbox != turn.mailbox) =>
            {
                writeln!(f, "      {}, which has left the line: {turn}", turn.mailbox)
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mailbox, waits_for) = (&self.mailbox, duration::in_words(self.waits_for));
        let mark = match self.reach {
            Reach::Uncallable => "~",
            Reach::Connected | Reach::Gone | Reach::Unknown => "",
        };
        let since = self.since();
        write!(f, "{mailbox}{mark:1} waits for {waits_for}, since {since}")?;
        f.write_str(match self.reach {
            Reach::Connected | Reach::Unknown => "",
            Reach::Gone => ", its connection is gone",
            Reach::Uncallable => ", cannot be called",
        })
    }
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.left {
            Duration::ZERO => f.write_str("its turn is over"),
            left => write!(f, "its turn for {}", duration::in_words(left)),
        }
    }
}

/// The 16 digits of a mailbox, with or without the mark of a client that cannot be called. `None` if it is no mailbox.
fn mailbox(name: &[u8]) -> Option<String> {
    const DIGITS: usize = 16;

    let digits = name.strip_suffix(b"~").unwrap_or(name);
    let is_mailbox = digits.len() == DIGITS && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = str::from_utf8(digits).ok().filter(|_| is_mailbox)?;
    Some(digits.to_owned())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn read<T: FromRedisValue>(value: &Value) -> Option<T> {
    from_redis_value(value.clone()).ok()
}
