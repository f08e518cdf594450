//! `redlock doctor`: whether the nodes are fit to hold locks.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

mod clock;
mod examination;
mod exclusion;
mod finding;
mod fleet;
mod guard;
mod introduction;
mod line;
mod lock;
mod permission;
mod permissions;
mod report;
mod server;
mod storage;
mod writes;

use core::time::Duration;
use std::process::ExitCode;

use redlock_std::{Options, OptionsError};

use crate::fold::columns;
use crate::nodes::{FleetArguments, Node, block_on, each};
use crate::{duration, exit, json, key, output};
use examination::Examination;
use finding::Verdict;
use report::Report;

const USER: &str = "\
A user for locks whose keys begin with lock:, as one command, on each node.
--key lock:NAME tries its keys.
  ACL SETUSER locker on >password resetkeys resetchannels -@all
    ~lock:* ~redlock:guard ~redlock:fence:lock:* ~redlock:queue:lock:*
    ~redlock:owner:lock:* &redlock:mail:*
    +set +get +del +pexpire +pttl +evalsha +eval +script|load
    +info +time +select +ping +exists +zadd +zrem +zrange +zrank
    +zscore +zcard +publish +pubsub +subscribe";

/// Examine the nodes: are they fit to hold locks, now and after a crash?
///
/// For each node, checks the round trip time, the server and its uptime, whether it is a master, what it
/// would lose in a crash, whether it evicts keys, whether it accepts writes, the permissions of the user for
/// locks and for the waiting line, the guard record and the clock. Then checks all nodes together. Each line has a verdict (ok, warn or
/// bad), and says what to change and why, or what to wait for.
///
/// Nothing is changed, and no key of a lock is touched; only on a node that may evict keys, the question of
/// every client, which this command asks too, deletes the guard record. An unreachable node costs one timeout.
///
/// A node has no vote if it answers later than the node timeout of "redlock run": that of --node-timeout, or the
/// default of "redlock run" for this --ttl.
///
/// Between two restarts of nodes, wait until this command ends with 0: then the vote of the restarted node
/// counts again. That is enough for locks that are held for less than a TTL. A lock that is held longer and
/// extended again and again, as by "redlock run", loses its key on each node that restarts without its
/// data. It is lost when a majority of the nodes has restarted since it was granted, however long the
/// pauses are. Nodes that keep their data (appendonly yes, appendfsync always) lose no key.
///
/// The result holds for clients that stayed connected and for new clients. A client that knew the nodes, but
/// has not connected since they restarted, counts the time without a vote from its next connection. For
/// example, a device that connects with its next command, or a laptop after suspend, notices several
/// restarts at once. From then on it acquires no plain lock for the longest TTL. If a node was a replica
/// for a time, or loaded its data for more than a second, connected clients count from the end of that
/// time: after exit code 0, wait for the longest TTL once more.
///
/// The next fenced acquire that a quorum of nodes answers restores missing guard records.
/// If no client may restore them, a line names the command "redlock init --repair".
/// If no node has a record, exit code 0 says nothing about fenced locks: they are not in use, or every node
/// has lost its record.
///
/// With --json, one document. A value that could not be read is null or absent.
///
/// - the document: verdict, bad (a number), warn (a number), nodes, fleet
/// - a node:       node, verdict, checks
/// - the fleet:    verdict, checks
/// - a check:      check (its name), verdict, message, and the values of its kind
///
/// Values of the checks of a node:
///
/// - reachable:    round_trip_us
/// - server:       product, version, run_id
/// - role:         role, connected_replicas, master, repl_backlog_ttl_s
/// - uptime:       uptime_s, counts_in_ms
/// - persistence:  aof, appendfsync, save
/// - memory:       maxmemory, used_memory, policy, evicted_keys
/// - writes:       refusal (the error code)
/// - permissions:  user, denied (commands), unknown (the denied commands that are renamed or disabled),
///   denied_keys, denied_with (key and commands: the user may run these with other keys only)
/// - line:         user, denied (commands), unknown (as above), denied_keys, denied_channels
/// - lock:         state (free, held, foreign), with --key
/// - guard:        record (absent, foreign, counts, quarantined, other_run, other_data, older, unknown),
///   settings (max_ttl_ms, window_ms, step_back_ms), counts_in_ms
/// - clock:        offset_us, error_us
/// - drift:        drift_ppm, error_ppm
///
/// Values of the checks of the fleet:
///
/// - quorum:       voting, nodes, quorum
/// - nodes:        nodes
/// - duplicates:   groups
/// - replication:  groups
/// - guard:        configurations
///
/// Exit codes: 0 nothing is bad; 1 something is bad; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment, after_long_help = USER)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The TTL of your locks: the --ttl of "redlock run", which takes at least 100ms
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,

    /// The longest TTL that any client of these nodes uses: a restarted node has no vote for at least this
    /// time [default: that of --ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

    /// The longest time for which any client of these nodes keeps a lock after its release: the --min-hold of "redlock run". A restarted
    /// node has no vote for at least this time, and a guard record must allow it
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    min_hold: Option<Duration>,

    /// The name of a lock: check also whether the user may use this lock, which the keys in its ACL decide, and whether its key is that
    /// of a lock
    #[arg(long, value_name = "KEY")]
    key: Option<String>,

    /// For how many seconds the clocks are measured
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,

    /// Print one JSON document on stdout
    #[arg(long)]
    json: bool,
}

pub(crate) fn doctor(arguments: Arguments) -> ExitCode {
    if let Some(Err(why)) = arguments.key.as_ref().map(|key| key::check(key.as_bytes())) {
        return exit::usage(&format!("--key: {why}"));
    }
    let options = match arguments.options() {
        Ok(options) => options,
        Err(why) => return exit::usage(&why),
    };
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(examine(
            nodes,
            options,
            Duration::from_secs(arguments.seconds.into()),
            arguments.key,
            arguments.json,
        )),
        Err(why) => exit::usage(&why),
    }
}

impl Arguments {
    fn options(&self) -> Result<Options, String> {
        let mut options = Options::new(self.ttl).map_err(|error| format!("--ttl: {error}"))?;
        if let Some(max_ttl) = self.max_ttl {
            options = options.max_ttl(max_ttl).map_err(|error| match error {
                OptionsError::MaxTtl => format!(
                    "--ttl {} is longer than --max-ttl {}",
                    humantime::format_duration(self.ttl),
                    humantime::format_duration(max_ttl)
                ),
                error => format!("--max-ttl: {error}"),
            })?;
        }
        if let Some(min_hold) = self.min_hold {
            options = options
                .min_hold(min_hold)
                .map_err(|error| format!("--min-hold: {error}"))?;
        }
        // A time that `redlock run` refuses is only the patience of this command.
        let given = self.fleet.node_timeout;
        let as_given = given.and_then(|given| options.node_timeout(given).ok());
        let by_default = || options.node_timeout(default_node_timeout(&options)).ok();
        Ok(as_given.or_else(by_default).unwrap_or(options))
    }
}

/// The default of `redlock run`, or that of the library on a system without `run`.
fn default_node_timeout(options: &Options) -> Duration {
    #[cfg(unix)]
    return crate::lock_options::node_timeout(options);
    #[cfg(not(unix))]
    options.round_time()
}

async fn examine(
    nodes: Vec<Node>,
    options: Options,
    watch: Duration,
    key: Option<String>,
    as_json: bool,
) -> ExitCode {
    let examinations = each(nodes, |node| Examination::of(node, watch, key.clone())).await;
    let report = Report::new(&examinations, &options);
    let told = if as_json {
        json::document(&report.json()) + "\n"
    } else {
        report.in_words(columns(std::io::stdout()))
    };
    let code = match report.verdict() {
        Verdict::Ok | Verdict::Warn => exit::OK,
        Verdict::Bad => exit::BAD,
    };
    output::print(told.as_bytes(), code)
}
