//! Checks of the server: round trip, product, role and uptime.

use core::time::Duration;

use redlock_std::Options;
use serde_json::json;

use super::finding::{Finding, bad, ok, warn};
use crate::duration;
use crate::nodes::Info;
use crate::product::Product;
use crate::uptime::time_without_vote;

/// The first extension of `redlock run` comes after a third of the TTL, and the command is ended a third before the end. So there are two
/// round trips between them.
const ROUND_TRIPS_PER_TTL: u32 = 6;

/// Whether the round trip is short enough for the TTL and the node timeout of `redlock run`, and for the shorter default of the clients.
pub(crate) fn reachable(
    round_trip: Duration,
    ttl: Duration,
    node_timeout: Duration,
    shorter_default: Duration,
) -> Finding {
    let told = format!("answers in {}", duration::in_words(round_trip));
    let judgement = if round_trip > node_timeout {
        bad(format!(
            "{told}, more than the node timeout of {} of redlock run: it has no vote; set a longer one, or a longer TTL",
            duration::in_words(node_timeout)
        ))
    } else if round_trip > ttl / ROUND_TRIPS_PER_TTL {
        bad(format!(
            "{told}, which is too long for a TTL of {}: redlock run may not extend the lock in time; set a TTL of at least {}",
            duration::in_words(ttl),
            duration::in_words(round_trip * ROUND_TRIPS_PER_TTL)
        ))
    } else if round_trip > shorter_default / 2 {
        warn(format!(
            "{told}, more than half of the default node timeout of {}: set a longer one",
            duration::in_words(shorter_default)
        ))
    } else {
        ok(told)
    };
    let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    Finding::new("reachable", judgement, json!({ "round_trip_us": micros }))
}

/// The product and version. `same_as` is another node of the fleet that is the same server.
pub(crate) fn server(info: &Info, same_as: Option<&str>) -> Finding {
    let (product, version) = Product::of(info);
    let run: String = info.run_id().chars().take(8).collect();
    let told = format!("{} {}, run {run}..", product.name(), version.unwrap_or("?"));
    let judgement = match (same_as, info.mode()) {
        (Some(other), _) => bad(format!(
            "{told}, the same server as {other}, or one of them claims to be the other: they have one vote, name each server once"
        )),
        (None, Some("standalone") | None) => match product.caveat() {
            Some(caveat) => warn(format!("{told}: {caveat}")),
            None => ok(told),
        },
        (None, Some(mode)) => bad(format!(
            "{told}, in {mode} mode: locks need standalone masters"
        )),
    };
    Finding::new(
        "server",
        judgement,
        json!({ "product": product.id(), "version": version, "run_id": info.run_id() }),
    )
}

/// Whether it is a master. `backlog_ttl` is the time after which a master without replicas changes its
/// replication ID.
pub(crate) fn role(info: &Info, backlog_ttl: Option<&str>) -> Finding {
    let replicas: u64 = info.number("connected_slaves").unwrap_or(0);
    let is_loading = info.text("loading") == Some("1");
    // A server that has replicas, or had some, keeps a backlog for them.
    let has_backlog = info.text("repl_backlog_active") == Some("1");
    let forgets = has_backlog && backlog_ttl.is_some_and(|ttl| ttl != "0");
    let advice = "set repl-backlog-ttl 0: otherwise its replication ID changes some time after its last replica \
                  has disconnected, and it has no vote for a quarantine";
    let (judgement, master) = if !info.is_master() {
        let master = info.master();
        let why = format!("a replica of {master}: it has no vote, name masters only");
        (bad(why), Some(master))
    } else if is_loading {
        (
            bad("a master that loads its data, and has no vote until it has finished"),
            None,
        )
    } else if replicas > 0 {
        let why = format!(
            "a master with {replicas} replica{}: a replica that is promoted may miss the last \
            locks, so disable automatic failover",
            if replicas == 1 { "" } else { "s" },
        );
        let why = if forgets {
            format!("{why}; {advice}")
        } else {
            why
        };
        (warn(why), None)
    } else if forgets {
        (warn(format!("a master that had replicas: {advice}")), None)
    } else {
        (ok("a master without replicas"), None)
    };
    Finding::new(
        "role",
        judgement,
        json!({
            "role": info.text("role"),
            "connected_replicas": replicas,
            "master": master,
            "repl_backlog_ttl_s": backlog_ttl.and_then(|ttl| ttl.parse::<u64>().ok()),
        }),
    )
}

/// Whether the uptime is long enough for the longest TTL of `options`, and for that in the guard record. If the record
/// vouches for the node, any uptime is long enough.
pub(crate) fn uptime(info: &Info, options: &Options, record: Option<(Duration, bool)>) -> Finding {
    let uptime: Option<i64> = info.number("uptime_in_seconds");
    let max_ttl = Duration::from_millis(options.vote_conditions().max_ttl_ms.into());
    let left = uptime.map(|uptime| time_without_vote(uptime, max_ttl, record));
    let judgement = match (uptime, left) {
        (Some(uptime), Some(Duration::ZERO)) => {
            let uptime = Duration::from_secs(uptime.unsigned_abs());
            ok(format!("runs for {}", duration::in_words(uptime)))
        }
        (Some(uptime), Some(left)) => bad(format!(
            "restarted {} s ago, its vote counts again in {}: it may have lost locks",
            uptime.max(0),
            duration::in_words(left),
        )),
        _ => warn("unknown"),
    };
    let left = left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
    Finding::new(
        "uptime",
        judgement,
        json!({ "uptime_s": uptime, "counts_in_ms": left }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Verdict;

    #[test]
    fn a_server_whose_scripts_may_not_run_alone_is_warned_of() {
        let garnet = "garnet_version:1.0.50\r\nredis_version:7.4.3\r\nrun_id:0123456789abcdef\r\n";
        let server = server(&Info::parse(garnet), None);
        assert_eq!(server.verdict, Verdict::Warn);
        let is_told = server.message.contains("Lua transaction mode");
        assert!(is_told, "{}", server.message);
        assert_eq!(server.facts["product"], "garnet");
    }

    #[test]
    fn valkey_is_told_from_redis() {
        let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\n";
        let server = server(&Info::parse(valkey), None);
        assert_eq!(server.facts["product"], "valkey");
        assert_eq!(server.facts["version"], "8.0.1");
        assert!(server.message.starts_with("Valkey 8.0.1"));
    }

    #[test]
    fn a_cluster_node_and_a_node_that_loads_are_bad() {
        for mode in ["redis_mode", "server_mode"] {
            let cluster = format!("redis_version:7.0.15\r\n{mode}:cluster\r\n");
            assert_eq!(server(&Info::parse(&cluster), None).verdict, Verdict::Bad);
        }
        let loading = "role:master\r\nloading:1\r\n";
        assert_eq!(role(&Info::parse(loading), None).verdict, Verdict::Bad);
    }

    #[test]
    fn a_master_whose_replication_id_will_change_is_warned_of() {
        for (info, backlog_ttl, verdict) in [
            ("role:master\nrepl_backlog_active:0", "3600", Verdict::Ok),
            ("role:master\nrepl_backlog_active:1", "0", Verdict::Ok),
            ("role:master\nrepl_backlog_active:1", "3600", Verdict::Warn),
        ] {
            let role = role(&Info::parse(info), Some(backlog_ttl));
            assert_eq!(role.verdict, verdict, "{info} {backlog_ttl}");
        }
    }

    #[test]
    fn a_node_as_far_away_as_half_a_round_is_warned_of_and_beyond_the_node_timeout_it_is_bad() {
        let [timeout, default] = [200, 100].map(Duration::from_millis);
        let ttl = Duration::from_secs(20);
        let verdict = |ms| reachable(Duration::from_millis(ms), ttl, timeout, default).verdict;
        for (ms, expected) in [
            (50, Verdict::Ok),
            (51, Verdict::Warn),
            (200, Verdict::Warn),
            (201, Verdict::Bad),
        ] {
            assert_eq!(verdict(ms), expected, "{ms} ms");
        }
    }

    #[test]
    fn a_node_that_is_too_far_away_for_the_ttl_is_bad_whatever_the_node_timeout() {
        let [ttl, timeout] = [600, 500].map(Duration::from_millis);
        for (ms, expected) in [(100, Verdict::Ok), (101, Verdict::Bad)] {
            let found = reachable(Duration::from_millis(ms), ttl, timeout, timeout);
            assert_eq!(found.verdict, expected, "{ms} ms");
        }
    }
}
