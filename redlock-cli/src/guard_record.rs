//! The guard record, and the other names that fenced locks use on a node.

use core::fmt;
use core::time::Duration;

/// Where a node's guard record is.
pub(crate) const GUARD_KEY: &str = "redlock:guard";

/// Where the fence of a key is: this, then the key.
pub(crate) const FENCE_PREFIX: &str = "redlock:fence:";

/// What fenced clients read on a node before they count its vote:
/// `run_id:until_ms:max_ttl_ms:window_ms:sigma_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GuardRecord {
    /// The run of the server that it is about: after a restart it is of another one.
    pub(crate) run_id: String,
    /// The vote counts from this moment on, in milliseconds since 1970 by the node's clock.
    pub(crate) until_ms: u64,
    pub(crate) settings: Settings,
}

/// What all clients and nodes of a fleet agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) max_ttl_ms: u64,
    /// By how much a fence may differ from the time of a node.
    pub(crate) window_ms: u64,
    /// By how much the clock of a node may go back.
    pub(crate) sigma_ms: u64,
}

/// Whether the vote of a node with a guard record counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Counts,
    /// Its vote counts again after this time.
    Quarantined(Duration),
    /// The server has restarted since, or is another one: its quarantine begins with the first client.
    OtherRun,
}

impl GuardRecord {
    /// None when it is something else.
    pub(crate) fn parse(value: &[u8]) -> Option<Self> {
        let mut fields = core::str::from_utf8(value).ok()?.split(':');
        let run_id = fields.next().filter(|run_id| !run_id.is_empty())?;
        let mut number = || fields.next()?.parse::<u64>().ok();
        let record = Self {
            run_id: run_id.to_owned(),
            until_ms: number()?,
            settings: Settings {
                max_ttl_ms: number()?,
                window_ms: number()?,
                sigma_ms: number()?,
            },
        };
        fields.next().is_none().then_some(record)
    }

    /// Whether the vote counts on the run `run_id`, at `now_ms` by the node's clock.
    pub(crate) fn standing(&self, run_id: &str, now_ms: u64) -> Standing {
        if self.run_id != run_id {
            return Standing::OtherRun;
        }
        match self.until_ms.saturating_sub(now_ms) {
            0 => Standing::Counts,
            left => Standing::Quarantined(Duration::from_millis(left)),
        }
    }
}

impl Settings {
    /// As they stand in the record.
    pub(crate) fn fields(&self) -> String {
        let Self {
            max_ttl_ms,
            window_ms,
            sigma_ms,
        } = self;
        format!("{max_ttl_ms}:{window_ms}:{sigma_ms}")
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // As they are written in arguments.
        let words = |ms| humantime::format_duration(Duration::from_millis(ms)).to_string();
        write!(
            f,
            "max TTL {}, window {}, sigma {}",
            words(self.max_ttl_ms),
            words(self.window_ms),
            words(self.sigma_ms),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_field_by_field() {
        let record = GuardRecord::parse(b"ab12:7:60000:250:30000").unwrap();
        assert_eq!(record.run_id, "ab12");
        assert_eq!(record.until_ms, 7);
        assert_eq!(record.settings.fields(), "60000:250:30000");
    }

    #[test]
    fn what_is_no_record_is_not_taken_for_one() {
        for value in [
            &b""[..],
            b":7:60000:250:60000",
            b"ab12:7:60000:250",
            b"ab12:7:60000:250:60000:1",
            b"ab12:7:60000:-250:60000",
            b"ab12:7:60000:2.5:60000",
            b"\xff:7:60000:250:60000",
        ] {
            assert_eq!(GuardRecord::parse(value), None, "{value:?}");
        }
    }

    #[test]
    fn a_vote_counts_from_the_moment_in_the_record_and_on_its_run_only() {
        let record = GuardRecord::parse(b"ab12:1000:60000:250:60000").unwrap();
        let left = Standing::Quarantined(Duration::from_millis(1));
        assert_eq!(record.standing("ab12", 999), left);
        assert_eq!(record.standing("ab12", 1_000), Standing::Counts);
        assert_eq!(record.standing("cd34", 1_000), Standing::OtherRun);
    }
}
