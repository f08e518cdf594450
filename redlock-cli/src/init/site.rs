//! One node, and what stands where its guard record belongs.

use core::fmt;

use redis::{Pipeline, Value, from_redis_value};

use crate::duration;
use crate::guard_record::{GUARD_KEY, GuardRecord, Settings, Standing};
use crate::nodes::{Connection, Info, Node, in_words, text};

/// A node that was looked at.
pub(crate) struct Site {
    connection: Connection,
    info: Info,
    there: There,
}

/// What to do with a record that is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Keep it.
    Write,
    /// Write over it.
    Force,
}

/// What stands where the record belongs.
#[derive(Debug)]
pub(crate) enum There {
    Nothing,
    Record(GuardRecord, Standing),
    SomethingElse,
}

impl Site {
    /// Looks, and finds out whether it could be written to.
    pub(crate) async fn look(node: &Node) -> Result<Self, String> {
        let mut connection = node.connect().await?;
        let mut questions = script("look", "", "");
        questions.cmd("INFO");
        let replies = connection.ask(&questions).await?;
        let [answer, info] = replies.as_slice() else {
            return Err("no answer".to_owned());
        };
        if let Value::ServerError(error) = info {
            return Err(in_words(error));
        }
        let info = Info::parse(&text(info).unwrap_or_default());
        // Before what the script says: a replica says that it cannot be written to.
        if !info.is_master() {
            return Err(format!("a replica of {}: name masters only", info.master()));
        }
        let (_, there) = answer_of(answer, info.run_id())?;
        Ok(Self {
            connection,
            info,
            there,
        })
    }

    pub(crate) fn run_id(&self) -> &str {
        self.info.run_id()
    }

    pub(crate) const fn there(&self) -> &There {
        &self.there
    }

    /// What forbids to write on any node.
    pub(crate) fn obstacle(&self, settings: Settings, mode: Mode) -> Option<String> {
        match &self.there {
            _ if mode == Mode::Force => None,
            There::Nothing => None,
            There::Record(record, _) if record.settings == settings => None,
            There::Record(record, _) => Some(format!(
                "has a record with other settings ({}): give the same, or --force",
                record.settings
            )),
            There::SomethingElse => Some(format!(
                "{GUARD_KEY} is no guard record: see who wrote it; --force writes over it"
            )),
        }
    }

    /// Writes the record; what came of it, in words.
    pub(crate) async fn write(mut self, settings: Settings, mode: Mode) -> Result<String, String> {
        let mode = match mode {
            Mode::Write => "write",
            Mode::Force => "force",
        };
        let script = script(mode, self.run_id(), &settings.fields());
        let replies = self.connection.ask(&script).await?;
        let answer = replies.first().ok_or("no answer")?;
        let (outcome, there) = answer_of(answer, self.run_id())?;
        match (outcome.as_str(), &there) {
            ("written", _) => Ok(format!("written: its vote counts now; there was {there}")),
            ("kept", There::Record(record, standing)) if record.settings == settings => {
                let then = match standing {
                    Standing::Counts => "",
                    _ => "; --force takes the quarantine away",
                };
                Ok(format!("kept: there is {there}{then}"))
            }
            ("kept", _) => Err(format!("in this moment a client wrote {there}")),
            _ => Err("the server restarted in this moment: try again".to_owned()),
        }
    }
}

impl fmt::Display for There {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (record, standing) = match self {
            Self::Nothing => return f.write_str("no record"),
            Self::SomethingElse => return f.write_str("something that is no record"),
            Self::Record(record, standing) => (record, standing),
        };
        let settings = record.settings;
        match standing {
            Standing::Counts => write!(f, "a record of this run, its vote counts ({settings})"),
            Standing::Quarantined(left) => {
                let left = duration::in_words(*left);
                write!(
                    f,
                    "a record of this run, in quarantine for {left} ({settings})"
                )
            }
            Standing::OtherRun => write!(f, "a record of another run of the server ({settings})"),
        }
    }
}

fn script(mode: &str, run_id: &str, settings: &str) -> Pipeline {
    let mut commands = redis::pipe();
    commands
        .cmd("EVAL")
        .arg(include_str!("init.lua"))
        .arg(1)
        .arg(GUARD_KEY)
        .arg(mode)
        .arg(run_id)
        .arg(settings);
    commands
}

/// What the script did, and what it found.
fn answer_of(answer: &Value, run_id: &str) -> Result<(String, There), String> {
    if let Value::ServerError(error) = answer {
        return Err(in_words(error));
    }
    let (outcome, kind, value, now_ms): (String, String, Vec<u8>, u64) =
        from_redis_value(answer.clone()).map_err(|_| "an answer that makes no sense")?;
    let there = match (kind.as_str(), GuardRecord::parse(&value)) {
        ("none", _) => There::Nothing,
        (_, Some(record)) => {
            let standing = record.standing(run_id, now_ms);
            There::Record(record, standing)
        }
        (_, None) => There::SomethingElse,
    };
    Ok((outcome, there))
}
