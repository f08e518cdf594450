//! Checks of persistence and memory: what a node loses in a crash, and when its memory is full.

use serde_json::json;

use super::finding::{Finding, bad, ok, warn};
use crate::duration;
use crate::nodes::Info;
use redlock_std::init::guard_record::Settings;

/// What the node loses in a crash or a restart. Settings that cannot be read are `None`.
pub(crate) fn persistence(info: &Info, appendfsync: Option<&str>, save: Option<&str>) -> Finding {
    const CURE: &str = "set appendonly yes and appendfsync always, or keep the node down for one TTL after a crash";

    let has_aof = info.text("aof_enabled") == Some("1");
    let judgement = if has_aof && info.text("aof_last_write_status") == Some("err") {
        bad(
            "AOF cannot be written, and locks are refused: check the log and the disk of the server",
        )
    } else if info.text("rdb_last_bgsave_status") == Some("err") {
        warn(
            "the last snapshot failed, and locks may be refused until the next one succeeds: check the disk of the server",
        )
    } else {
        match (has_aof, appendfsync, save) {
            (true, Some("always"), _) => {
                ok("AOF on, appendfsync always: a crash loses no lock, if the disk honors fsync")
            }
            (true, Some("everysec"), _) => warn(format!(
                "AOF on, appendfsync everysec: a crash loses the locks of a second or two; {CURE}"
            )),
            (true, Some(policy), _) => warn(format!(
                "AOF on, appendfsync {policy}: a crash of its machine loses locks; {CURE}"
            )),
            (true, None, _) => warn(
                "AOF on, appendfsync unknown: ACL SETUSER .. +config|get, or make sure that it is \
                always",
            ),
            (false, _, Some("")) => warn(format!(
                "AOF off, no snapshots: a restart loses all locks; {CURE}"
            )),
            (false, _, _) => warn(format!(
                "AOF off: a crash loses the locks since the last snapshot, if there is one; {CURE}"
            )),
        }
    };
    Finding::new(
        "persistence",
        judgement,
        json!({ "aof": has_aof, "appendfsync": appendfsync, "save": save }),
    )
}

/// Whether the node evicts locks when its memory is full. Clients of fenced locks give no vote to a node that may evict,
/// whatever its memory limit is.
///
/// `in_use` are the settings of the guard records, if there are any.
pub(crate) fn memory(info: &Info, in_use: Option<Settings>) -> Finding {
    // Nine tenths of it.
    const ALMOST: (u64, u64) = (9, 10);

    let limit: Option<u64> = info.number("maxmemory");
    let used: Option<u64> = info.number("used_memory");
    let evicted: Option<u64> = info.number("evicted_keys");
    let policy = info.text("maxmemory_policy");
    let judgement = match (limit, policy) {
        (Some(limit), Some("noeviction")) => {
            let is_full = used.is_some_and(|used| {
                limit > 0 && used.saturating_mul(ALMOST.1) >= limit.saturating_mul(ALMOST.0)
            });
            if let Some(evicted @ 1..) = evicted {
                warn(has_evicted(evicted, in_use))
            } else if is_full {
                warn(
                    "noeviction, but the memory is almost full: a full node refuses locks; raise maxmemory",
                )
            } else {
                ok("noeviction: a full memory loses no lock")
            }
        }
        (_, Some(policy)) if in_use.is_some() => bad(format!(
            "{policy} may evict locks ({} keys evicted so far): the node has no vote for fenced locks, and clients \
             delete its guard record when they see this; set maxmemory-policy noeviction: then the vote counts after \
             a quarantine",
            evicted.unwrap_or(0)
        )),
        (Some(0), Some(policy)) => warn(format!(
            "{policy}, without maxmemory: the node has no vote for fenced locks, and \
             clients delete a guard record on it when they see this; set maxmemory-policy noeviction"
        )),
        (Some(_), Some(policy)) => bad(format!(
            "{policy} with maxmemory: a full memory loses locks ({} keys evicted so far); set \
            maxmemory-policy noeviction",
            evicted.unwrap_or(0)
        )),
        _ => warn("unknown: make sure that maxmemory-policy is noeviction"),
    };
    Finding::new(
        "memory",
        judgement,
        json!({
            "maxmemory": limit,
            "used_memory": used,
            "policy": policy,
            "evicted_keys": evicted,
        }),
    )
}

/// What it means that a node has evicted keys, although it no longer can.
fn has_evicted(evicted: u64, in_use: Option<Settings>) -> String {
    let wait = in_use.map_or_else(
        || "the longest TTL of any client".to_owned(),
        |settings| duration::in_words(settings.quarantine()),
    );
    format!(
        "noeviction now, but the node has evicted {evicted} keys since it started, maybe those of locks: if no client asked for the \
         policy meanwhile, its guard record is still there, and the node may grant a lock that is held; unless {wait} have passed since \
         the policy became noeviction, stop all clients until then; afterwards, CONFIG RESETSTAT ends this warning"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn only_a_disk_that_gets_every_write_is_not_warned_of() {
        for (info, appendfsync, verdict) in [
            ("aof_enabled:1", Some("always"), Verdict::Ok),
            ("aof_enabled:1", Some("everysec"), Verdict::Warn),
            ("aof_enabled:1", Some("no"), Verdict::Warn),
            ("aof_enabled:1", None, Verdict::Warn),
            ("aof_enabled:0", Some("always"), Verdict::Warn),
            (
                "aof_enabled:1\naof_last_write_status:err",
                Some("always"),
                Verdict::Bad,
            ),
            (
                "aof_enabled:1\nrdb_last_bgsave_status:err",
                Some("always"),
                Verdict::Warn,
            ),
        ] {
            let finding = persistence(&Info::parse(info), appendfsync, Some(""));
            assert_eq!(finding.verdict, verdict, "{info} {appendfsync:?}");
        }
    }

    #[test]
    fn eviction_is_bad_with_a_limit_or_with_fenced_locks_and_a_warning_without() {
        for (info, verdict) in [
            ("maxmemory:0\nmaxmemory_policy:noeviction", Verdict::Ok),
            (
                "maxmemory:100\nmaxmemory_policy:noeviction\nused_memory:89",
                Verdict::Ok,
            ),
            (
                "maxmemory:100\nmaxmemory_policy:noeviction\nused_memory:90",
                Verdict::Warn,
            ),
            // It may have evicted locks before its policy was changed.
            (
                "maxmemory:0\nmaxmemory_policy:noeviction\nevicted_keys:1",
                Verdict::Warn,
            ),
            (
                "maxmemory:0\nmaxmemory_policy:noeviction\nevicted_keys:0",
                Verdict::Ok,
            ),
            ("maxmemory:0\nmaxmemory_policy:volatile-ttl", Verdict::Warn),
            ("maxmemory:1\nmaxmemory_policy:volatile-ttl", Verdict::Bad),
            ("", Verdict::Warn),
        ] {
            let info = Info::parse(info);
            assert_eq!(memory(&info, None).verdict, verdict, "{info:?}");
            // A known policy that evicts.
            let may_evict = info.may_evict() == Some(true);
            let verdict = if may_evict { Verdict::Bad } else { verdict };
            let in_use = Some(Settings {
                max_ttl_ms: 60_000,
                window_ms: 250,
                step_back_ms: 60_000,
            });
            assert_eq!(memory(&info, in_use).verdict, verdict, "{info:?}");
        }
    }
}
