//! One node, and the value at the key of its guard record.

use core::fmt;
use core::time::Duration;

use redis::{Pipeline, Value, from_redis_value};
use redlock_core::GUARD_KEY;

use super::Mode;
use super::clock::{Estimate, Sample, now_micros};
use super::connection::{Connection, Node, in_words};
use super::duration;
use super::guard_record::{GuardRecord, Settings, Standing};
use super::info::Info;
use super::recovery::Sight;

/// A node whose state was read, and that accepts writes.
#[derive(Debug)]
pub struct Site {
    connection: Connection,
    info: Info,
    kind: String,
    value: Vec<u8>,
    there: There,
    may_have_forgotten: bool,
    clock: Sample,
}

/// Why a node cannot be written to.
#[derive(Debug)]
pub enum Obstacle {
    /// It does not answer.
    Away(String),
    /// It answers, but is not fit to be a node.
    Unfit(String),
}

/// The value at the key of the guard record.
#[derive(Debug)]
pub enum There {
    Nothing,
    Record(GuardRecord, Standing),
    SomethingElse,
    /// A list, for example: every fenced command fails on this node.
    OtherType,
}

impl Site {
    /// Reads the state of the node, and checks whether it accepts writes.
    pub async fn look(node: &Node) -> Result<Self, Obstacle> {
        let mut connection = node.connect().await.map_err(Obstacle::Away)?;
        let mut questions = Pipeline::new();
        Info::ask(&mut questions);
        // Before the script: a server that wants a password answers no command with that many arguments, and closes the connection.
        let infos = connection.ask(&questions).await.map_err(Obstacle::Away)?;
        let info = Self::read_info(&infos).map_err(Obstacle::Unfit)?;
        let sent = now_micros();
        let script = Question::default().script("look");
        let replies = connection.ask(&script).await.map_err(Obstacle::Away)?;
        Self::read(connection, info, &replies, sent).map_err(Obstacle::Unfit)
    }

    fn read_info(replies: &[Value]) -> Result<Info, String> {
        let (info, _) = Info::read(replies).ok_or("no answer")?;
        let info = info?;
        // Before the script, because a replica answers only READONLY to it.
        match info.is_master() {
            true => Ok(info),
            false => Err(format!("a replica of {}: name masters only", info.master())),
        }
    }

    fn read(
        connection: Connection,
        info: Info,
        replies: &[Value],
        sent: i64,
    ) -> Result<Self, String> {
        let received = now_micros();
        let answer = replies.first().ok_or("no answer")?;
        let answer = Answer::read(answer, &info)?;
        if info.run_id().is_empty() || info.replication_id().is_empty() {
            return Err("INFO has no run_id or no master_replid".to_owned());
        }
        if info.may_evict() != Some(false) {
            return Err(EVICTS.to_owned());
        }
        Ok(Self {
            connection,
            info,
            kind: answer.kind,
            value: answer.value,
            there: answer.there,
            may_have_forgotten: answer.outcome == "forgot",
            clock: Sample {
                sent,
                received,
                node: i64::try_from(answer.now_ms.saturating_mul(1_000)).ok(),
            },
        })
    }

    /// By how much the clock of the node is ahead of ours.
    pub fn clock_offset(&self) -> Option<Estimate> {
        let offset = self.clock.offset()?;
        // The node has rounded its time to whole milliseconds.
        let error = offset.error.saturating_add(1_000);
        Some(Estimate { error, ..offset })
    }

    pub fn run_id(&self) -> &str {
        self.info.run_id()
    }

    /// The number of keys with a TTL, which may be locks.
    pub fn expiring_keys(&self) -> u64 {
        self.info.expiring_keys()
    }

    /// Whether the node was flushed, evicted a key, was a replica, or has loaded a dump of a server with replicas, since it started.
    pub const fn may_have_forgotten(&self) -> bool {
        self.may_have_forgotten
    }

    pub const fn there(&self) -> &There {
        &self.there
    }

    /// Writes the record. Returns the result as text.
    pub async fn write(
        &mut self,
        settings: Settings,
        quarantine: Duration,
        mode: Mode,
    ) -> Result<String, String> {
        let question = Question {
            run_id: self.info.run_id(),
            replication_id: self.info.replication_id(),
            kind: &self.kind,
            value: &self.value,
            quarantine_ms: u64::try_from(quarantine.as_millis()).unwrap_or(u64::MAX),
            settings: settings.fields(),
        };
        let script = question.script(match mode {
            Mode::Start => "start",
            Mode::Repair => "repair",
            Mode::Force => "force",
        });
        let replies = self.connection.ask(&script).await;
        let replies = replies.map_err(|why| format!("{why}; the record may have been written"))?;
        let answer = Answer::read(replies.first().ok_or("no answer")?, &self.info)?;
        let there = answer.there;
        match answer.outcome.as_str() {
            "written" if mode == Mode::Repair => {
                let left = duration::in_words(quarantine);
                Ok(format!(
                    "written: its vote counts in {left}; there was {there}"
                ))
            }
            "written" => Ok(format!("written: its vote counts now; there was {there}")),
            "evicts" => Err(EVICTS.to_owned()),
            // For example another `init` of the same fleet, at the same moment.
            "changed" if there.is_right(settings) && there.quarantine_left().is_none() => {
                Ok(format!("nothing to do: {there}"))
            }
            "changed" => Err(format!("a client has just written {there}")),
            "expires" => {
                Err("a client has just written a key that expires, maybe a lock".to_owned())
            }
            "forgot" => Err(
                "the node has just lost keys, for example by FLUSHALL: it may have lost a lock"
                    .to_owned(),
            ),
            _ => Err("the node has just restarted or failed over: run this again".to_owned()),
        }
    }
}

const EVICTS: &str =
    "the node may evict locks, so fenced clients give it no vote: set maxmemory-policy noeviction";

impl There {
    /// Whether the record is of this node, with these settings.
    pub fn is_right(&self, settings: Settings) -> bool {
        match self {
            Self::Record(record, standing) => {
                record.settings == settings && standing.is_of_this_node()
            }
            Self::Nothing | Self::SomethingElse | Self::OtherType => false,
        }
    }

    /// Whether the quarantine in the record is longer than its settings require.
    pub const fn is_too_long(&self) -> bool {
        let Self::Record(_, Standing::Quarantined { written, .. }) = self else {
            return false;
        };
        written.is_some()
    }

    /// How long the node has no vote by its record. `None` if its vote counts, or no record is its own.
    pub const fn quarantine_left(&self) -> Option<Duration> {
        match self {
            Self::Record(_, Standing::Quarantined { left, .. }) => Some(*left),
            _ => None,
        }
    }

    /// The settings of the record. `None` if the value is no record.
    pub const fn settings(&self) -> Option<Settings> {
        match self {
            Self::Record(record, _) => Some(record.settings),
            Self::Nothing | Self::SomethingElse | Self::OtherType => None,
        }
    }

    pub const fn sight(&self) -> Sight {
        match self {
            Self::Nothing => Sight::Nothing,
            Self::SomethingElse => Sight::Foreign,
            // To clients, the node fails.
            Self::OtherType => Sight::Unseen,
            Self::Record(record, standing) => Sight::of_record(record.settings, *standing),
        }
    }
}

impl fmt::Display for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (record, standing) = match self {
            Self::Nothing => return f.write_str("no record"),
            Self::SomethingElse | Self::OtherType => {
                return write!(f, "something at {GUARD_KEY} that is no record");
            }
            Self::Record(record, standing) => (record, standing),
        };
        match standing {
            Standing::Counts => f.write_str("a record, its vote counts")?,
            Standing::Quarantined { left, written } => {
                let left = duration::in_words(*left);
                match written {
                    None => write!(f, "a record, its vote counts in {left}")?,
                    Some(_) => write!(
                        f,
                        "a record, its vote counts {left} after the next fenced acquire"
                    )?,
                }
            }
            Standing::OtherRun => f.write_str("a record of another run of the server")?,
            Standing::OtherData => f.write_str("a record of another data set")?,
            Standing::Older => f.write_str("a record of an older version")?,
        }
        write!(f, " ({})", record.settings)
    }
}

/// The arguments of the script.
#[derive(Debug, Default)]
struct Question<'a> {
    run_id: &'a str,
    replication_id: &'a str,
    kind: &'a str,
    value: &'a [u8],
    quarantine_ms: u64,
    settings: String,
}

impl Question<'_> {
    fn script(&self, mode: &str) -> Pipeline {
        let mut commands = redis::pipe();
        commands
            .cmd("EVAL")
            .arg(include_str!("init.lua"))
            .arg(1)
            .arg(GUARD_KEY)
            .arg(mode)
            .arg(self.run_id)
            .arg(self.replication_id)
            .arg(self.kind)
            .arg(self.value)
            .arg(self.quarantine_ms)
            .arg(&self.settings);
        commands
    }
}

/// The result of the script, and what it found.
struct Answer {
    outcome: String,
    kind: String,
    value: Vec<u8>,
    there: There,
    now_ms: u64,
}

impl Answer {
    fn read(answer: &Value, info: &Info) -> Result<Self, String> {
        if let Value::ServerError(error) = answer {
            return Err(in_words(error));
        }
        let (outcome, kind, value, now_ms): (String, String, Vec<u8>, u64) =
            from_redis_value(answer.clone()).map_err(|_| "unexpected reply")?;
        let there = match (kind.as_str(), GuardRecord::parse(&value)) {
            ("none", _) => There::Nothing,
            ("type", _) => There::OtherType,
            (_, Some(record)) => {
                let standing = record.standing(info, now_ms);
                There::Record(record, standing)
            }
            (_, None) => There::SomethingElse,
        };
        Ok(Self {
            outcome,
            kind,
            value,
            there,
            now_ms,
        })
    }
}
