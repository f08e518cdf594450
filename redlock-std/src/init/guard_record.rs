//! The guard record.

use core::fmt;
use core::time::Duration;

use redis::{Pipeline, Value, from_redis_value};
use redlock_core::{Fencing, GUARD_KEY};

use super::connection::in_words;
use super::info::Info;

/// The record that clients of fenced locks read on a node before they count its vote:
/// `run_id:until_ms:max_ttl_ms:window_ms:step_back_ms:replication_id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardRecord {
    /// The run of the server: a restart changes it.
    run_id: String,
    /// The vote counts from this time on, in milliseconds since 1970 on the clock of the node.
    until_ms: u64,
    pub settings: Settings,
    /// The data set: a failover changes it. `None` in records of older versions.
    replication_id: Option<String>,
}

/// The settings that all clients and nodes of a fleet must share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    pub max_ttl_ms: u64,
    /// By how much a fence may differ from the time of a node.
    pub window_ms: u64,
    /// By how much the clock of a node may be stepped back.
    pub step_back_ms: u64,
}

/// Whether the vote of a node with a guard record counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Counts,
    Quarantined {
        /// The vote counts again after this time.
        left: Duration,
        /// The time in the record, if it is longer than a quarantine, because the clock of the node was ahead when it was written. The next
        /// fenced acquire cuts it to `left`.
        written: Option<Duration>,
    },
    /// The server has restarted since then, or is another one.
    OtherRun,
    /// The same process has another data set since then, for example after a failover and back.
    OtherData,
    /// An older version wrote the record, so it does not name the data set.
    Older,
}

/// Asks for the value of the record, one byte more than a record can have: the value may be anything, of any length.
pub fn ask(questions: &mut Pipeline) {
    questions
        .cmd("EVAL")
        .arg(include_str!("guard_record.lua"))
        .arg(1)
        .arg(GUARD_KEY)
        .arg(GuardRecord::MOST_BYTES + 1);
}

/// What is at the key of the record.
#[derive(Debug)]
pub enum Content {
    Nothing,
    /// A string, which may be a record.
    Text(Vec<u8>),
    /// A list, for example: every fenced command fails on this node.
    OtherType,
}

/// Reads the reply to [`ask`], or why the value cannot be read.
pub fn read(reply: &Value) -> Result<Content, String> {
    match reply {
        Value::ServerError(error) if error.code() == "WRONGTYPE" => Ok(Content::OtherType),
        Value::ServerError(error) => Err(in_words(error)),
        reply => {
            let text: Option<_> =
                from_redis_value(reply.clone()).map_err(|_| "unexpected reply".to_owned())?;
            Ok(text.map_or(Content::Nothing, Content::Text))
        }
    }
}

impl GuardRecord {
    /// The limit for a record: twice its largest length, and the limit for shown text of a node.
    pub const MOST_BYTES: usize = 256;

    /// Parses a record. Returns `None` if the value is none.
    pub fn parse(value: &[u8]) -> Option<Self> {
        if value.len() > Self::MOST_BYTES {
            return None;
        }
        let mut fields = core::str::from_utf8(value).ok()?.split(':');
        let id = |id: &&str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let run_id = fields.next().filter(id)?;
        let mut number = || fields.next()?.parse::<u64>().ok();
        let until_ms = number()?;
        // No client has a longer setting.
        let mut setting = || number().filter(|ms| *ms <= u32::MAX.into());
        let settings = Settings {
            max_ttl_ms: setting()?,
            window_ms: setting()?,
            step_back_ms: setting()?,
        };
        let replication_id = match fields.next() {
            None | Some("") => None,
            Some(field) => Some(Some(field).filter(id)?.to_owned()),
        };
        fields.next().is_none().then(|| Self {
            run_id: run_id.to_owned(),
            until_ms,
            settings,
            replication_id,
        })
    }

    /// Whether the vote of the node with this `info` counts, at `now_ms` on its clock.
    pub fn standing(&self, info: &Info, now_ms: u64) -> Standing {
        if self.run_id != info.run_id() {
            return Standing::OtherRun;
        }
        match &self.replication_id {
            None => return Standing::Older,
            Some(id) if id != info.replication_id() => return Standing::OtherData,
            Some(_) => {}
        }
        let longest = self.settings.quarantine();
        match Duration::from_millis(self.until_ms.saturating_sub(now_ms)) {
            Duration::ZERO => Standing::Counts,
            left => Standing::Quarantined {
                left: left.min(longest),
                written: Some(left).filter(|left| *left > longest),
            },
        }
    }
}

impl Standing {
    /// Whether the record is of this run and this data set.
    pub const fn is_of_this_node(self) -> bool {
        matches!(self, Self::Counts | Self::Quarantined { .. })
    }
}

impl Settings {
    pub fn of(fencing: Fencing) -> Self {
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Self {
            max_ttl_ms: ms(fencing.max_ttl()),
            window_ms: ms(fencing.window()),
            step_back_ms: ms(fencing.step_back()),
        }
    }

    /// The settings as fields of a record.
    pub fn fields(&self) -> String {
        let Self {
            max_ttl_ms,
            window_ms,
            step_back_ms,
        } = self;
        format!("{max_ttl_ms}:{window_ms}:{step_back_ms}")
    }

    /// How long a node that has lost its record has no vote: longer than any lease that it may have lost.
    pub fn quarantine(&self) -> Duration {
        const GRACE_MS: u64 = 1_000;

        let windows = self.window_ms.saturating_mul(4);
        let longest = self.max_ttl_ms.max(self.step_back_ms);
        Duration::from_millis(longest.saturating_add(windows).saturating_add(GRACE_MS))
    }

    /// The least settings that may replace those of all `records`, because no old lease and no old fence outlasts them: the longest
    /// of each. `None` if there are no records.
    pub fn least(records: impl Iterator<Item = Self>) -> Option<Self> {
        records.reduce(|one, other| Self {
            max_ttl_ms: one.max_ttl_ms.max(other.max_ttl_ms),
            window_ms: one.window_ms.max(other.window_ms),
            step_back_ms: one.step_back_ms.max(other.step_back_ms),
        })
    }

    /// Whether clients can have them.
    pub fn are_possible(&self) -> bool {
        let [max_ttl, window, step_back] =
            [self.max_ttl_ms, self.window_ms, self.step_back_ms].map(Duration::from_millis);
        let fencing = Fencing::new(window).and_then(|fencing| fencing.with_step_back(step_back));
        fencing.is_ok_and(|fencing| fencing.with_max_ttl(max_ttl).is_ok())
    }

    /// The settings as arguments of `redlock init`.
    pub fn arguments(&self) -> String {
        format!(
            "--max-ttl={} --window={} --step-back={}",
            argument(self.max_ttl_ms),
            argument(self.window_ms),
            argument(self.step_back_ms),
        )
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |ms| humantime::format_duration(Duration::from_millis(ms)).to_string();
        write!(
            f,
            "max TTL {}, window {}, step back {}",
            words(self.max_ttl_ms),
            words(self.window_ms),
            words(self.step_back_ms),
        )
    }
}

/// A duration without spaces.
fn argument(ms: u64) -> String {
    let words = humantime::format_duration(Duration::from_millis(ms)).to_string();
    words.replace(' ', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(record: &str, now_ms: u64) -> Standing {
        let info = Info::parse("run_id:ab12\nmaster_replid:ef56\n");
        let record = GuardRecord::parse(record.as_bytes()).unwrap();
        record.standing(&info, now_ms)
    }

    #[test]
    fn a_record_is_read_field_by_field() {
        let record = GuardRecord::parse(b"ab12:7:60000:250:30000:ef56").unwrap();
        assert_eq!(record.run_id, "ab12");
        assert_eq!(record.until_ms, 7);
        assert_eq!(record.settings.fields(), "60000:250:30000");
        assert_eq!(record.replication_id.as_deref(), Some("ef56"));
        let older = GuardRecord::parse(b"ab12:7:60000:250:30000").unwrap();
        assert_eq!(older.replication_id, None);
    }

    #[test]
    fn other_values_are_not_parsed_as_a_record() {
        for value in [
            &b""[..],
            b":7:60000:250:60000:ef56",
            b"ab12:7:60000:250",
            b"ab12:7:60000:250:60000:..",
            b"ab12:7:60000:250:60000:ef56:1",
            b"ab12:7:60000:-250:60000:ef56",
            b"ab12:7:60000:2.5:60000:ef56",
            b"ab12:7:60000:4294967296:60000:ef56",
            b"ab 12:7:60000:250:60000:ef56",
            b"\xff:7:60000:250:60000:ef56",
            [&b"ab12:7:60000:250:60000:"[..], &[b'e'; 256]]
                .concat()
                .as_slice(),
        ] {
            assert_eq!(GuardRecord::parse(value), None, "{value:?}");
        }
    }

    #[test]
    fn a_vote_counts_from_the_moment_in_the_record_on() {
        let record = "ab12:1000:60000:250:60000:ef56";
        let left = Standing::Quarantined {
            left: Duration::from_millis(1),
            written: None,
        };
        assert_eq!(standing(record, 999), left);
        assert_eq!(standing(record, 1_000), Standing::Counts);
    }

    #[test]
    fn a_vote_counts_for_its_run_and_its_data_set_only() {
        for (record, expected) in [
            ("cd34:0:60000:250:60000:ef56", Standing::OtherRun),
            ("ab12:0:60000:250:60000:ab12", Standing::OtherData),
            ("ab12:0:60000:250:60000", Standing::Older),
            ("cd34:0:60000:250:60000", Standing::OtherRun),
        ] {
            assert_eq!(standing(record, 1_000), expected, "{record}");
        }
    }

    #[test]
    fn no_quarantine_is_longer_than_its_settings_ask_for() {
        let longest = Duration::from_millis(62_000);
        for (until_ms, left, written) in [(62_007, longest, None), (62_008, longest, Some(62_001))]
        {
            let record = format!("ab12:{until_ms}:60000:250:60000:ef56");
            let written = written.map(Duration::from_millis);
            assert_eq!(
                standing(&record, 7),
                Standing::Quarantined { left, written }
            );
        }
        // A clock may be stepped back by more than the longest TTL.
        let record = GuardRecord::parse(b"ab12:0:1000:250:60000:ef56").unwrap();
        assert_eq!(record.settings.quarantine(), longest);
    }

    #[test]
    fn the_least_settings_are_the_longest_of_each_in_any_order() {
        let settings = |fields: &str| {
            let record = format!("ab12:0:{fields}");
            GuardRecord::parse(record.as_bytes()).unwrap().settings
        };
        // The one with the longest quarantine has neither the longest window nor the longest max TTL.
        let records = ["60000:250:100000", "60000:10000:1000", "61000:1:0"].map(settings);
        for order in [[0, 1, 2], [1, 2, 0], [2, 1, 0]] {
            let least = Settings::least(order.into_iter().map(|node| records[node])).unwrap();
            assert_eq!(least.fields(), "61000:10000:100000");
        }
        assert_eq!(Settings::least(core::iter::empty()), None);
    }

    #[test]
    fn clients_cannot_have_every_setting_of_a_record() {
        for (fields, are_possible) in [
            ("60000:250:0", true),
            ("60000:0:60000", false),
            ("60000:3600001:60000", false),
            ("4294967295:250:60000", false),
        ] {
            let record = format!("ab12:0:{fields}");
            let record = GuardRecord::parse(record.as_bytes()).unwrap();
            assert_eq!(record.settings.are_possible(), are_possible, "{fields}");
        }
    }

    #[test]
    fn settings_are_formatted_as_arguments() {
        let record = GuardRecord::parse(b"ab12:0:90000:250:60000").unwrap();
        let arguments = "--max-ttl=1m30s --window=250ms --step-back=1m";
        assert_eq!(record.settings.arguments(), arguments);
    }
}
