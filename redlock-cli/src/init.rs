//! `redlock init`: writes the guard records of a fleet, at its first start, or if no client can restore the records.

use core::time::Duration;
use std::io::Write;
use std::process::ExitCode;

use redlock_std::init::guard_record::Settings;
use redlock_std::init::{Mode, State, Wanted, set_up};
use redlock_std::{Fencing, Options};

use crate::defaults::{MAX_TTL, STEP_BACK, WINDOW};
use crate::fold::{columns, fold};
use crate::nodes::{FleetArguments, Node, block_on};
use crate::{duration, exit, output};

/// Write the guard records of new nodes, so that their votes count at once
///
/// A node has a vote for fenced locks only if its guard record (the key redlock:guard) names its present
/// run and data set, and the quarantine in the record is over. The record also vouches for a server that has
/// just started, so its vote counts at once for plain locks too, if their --ttl, --max-ttl and --min-hold are
/// at most this --max-ttl.
///
/// Without options, this command is for the first start of a fleet. It writes all records or none, unless a
/// node fails or a client takes a lock while it writes: then the line of that node says so. It requires that
/// - all nodes answer, are distinct masters and have maxmemory-policy noeviction,
/// - no two clocks are certainly further apart than --window (with --repair and --force too),
/// - no node has a guard record, or a key with a TTL, which may be a lock, and
/// - no node was flushed, evicted a key, was a replica, or has loaded a dump of a server with replicas, since
///   it started.
///
/// It does not see
/// - flushes and evictions before a CONFIG RESETSTAT, which resets the statistics of the server,
/// - that a node was a replica longer ago than its repl-backlog-ttl,
/// - that a majority of the nodes restarted without their data, if the other nodes have no record and no lock:
///   such a fleet looks like a new one, and the clocks of its nodes may have gone back.
///
/// If these nodes were ever used for locks, do not run it until all of them have been running for a whole
/// quarantine in which no client held a lock. On every boot, run it with --repair instead, which never
/// lets a vote count at once.
///
/// A quarantine is max(--max-ttl, --step-back) + 4 * --window + 1 s: 62 s by default. If all records are
/// lost, no node knows how long it must be. It is long enough if --max-ttl, --window and --step-back are at
/// least those that the clients have had.
///
/// If every node has a correct record with these settings, there is nothing to do: exit code 0 if every vote
/// counts, and 2 if a quarantine is not over. Otherwise, if a requirement is not met, nothing is written, and the line of each node says why. If a node has lost
/// its record, the next fenced acquire that a quorum of nodes answers restores it, unless the process ends before it
/// is connected to this node: "redlock run --fenced KEY -- sleep 2" is long enough. The vote of the node counts one
/// quarantine later.
///
/// In three states, clients cannot restore the records. "redlock doctor" names these states. Then run
/// "redlock init --repair".
/// - The records have different settings, and no settings have a quorum.
/// - No node that answers has a record, and another node is away.
/// - The value of redlock:guard on a node is no record.
///
/// The records are read again after they were written. If another init has overwritten one, the exit code
/// is 1: run only one at a time. If another one is at work with the same settings, it waits for the other.
///
/// Exit codes: 0 every node has a record with these settings (with --repair: every node that answers);
/// 1 refused, or failed on a node; 2 there was nothing to do, but not every vote counts yet; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The longest TTL that any client of these nodes uses; the same for all clients [default: 1m; with --repair that of
    /// the records]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

    /// How far the clock of a node may be from those of the other nodes; the same for all clients [default: 250ms;
    /// with --repair that of the records]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    window: Option<Duration>,

    /// By how much the clock of a node may be stepped back; the same for all clients [default: 1m; with --repair that of
    /// the records]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    step_back: Option<Duration>,

    /// Write the records that are missing or wrong, with a quarantine: no vote counts at once
    ///
    /// Correct records with the given settings stay as they are. A minority of the nodes may be away.
    ///
    /// It is safe while locks are held, if --max-ttl, --window and --step-back are at least those that the
    /// clients have used. The records contain these settings: what is not given is from the records, the longest
    /// of all. If all records are lost, no node knows the settings, and what is not given has its default.
    ///
    /// If no node that answers has a record, run it again when the missing nodes are back, because they
    /// may have records with other settings.
    ///
    /// If a record has other settings than the new ones,
    /// - at least one of the new settings must be given as an option;
    /// - all nodes must answer, because clients with the old settings can copy them from a node that was
    ///   left out;
    /// - --max-ttl, --window and --step-back must each be at least the longest of all records, so that no old
    ///   lease outlasts the time that clients wait, and no fence is lower than an old one. To make one of them
    ///   shorter, stop all clients for the longest quarantine of the records, and use --force.
    #[arg(long, conflicts_with = "force", verbatim_doc_comment)]
    repair: bool,

    /// Overwrite all records, and let all votes count at once: only if no client holds a lock
    ///
    /// All nodes must answer. It is safe only if all clients have been stopped, and all nodes have been running,
    /// for a whole quarantine. This quarantine is the longest one of these: that of the given settings, those
    /// of the records and, if records are lost, that of the settings that the clients have used. Otherwise two
    /// clients may hold one lock; or the clock of a node may be stepped back, and fences go back with it.
    #[arg(long, verbatim_doc_comment)]
    force: bool,
}

pub(crate) fn init(arguments: Arguments) -> ExitCode {
    let mode = match (arguments.repair, arguments.force) {
        (true, _) => Mode::Repair,
        (false, true) => Mode::Force,
        (false, false) => Mode::Start,
    };
    let wanted = match arguments.wanted() {
        Ok(wanted) => wanted,
        Err(why) => return exit::usage(&why),
    };
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(start(nodes, wanted, mode)),
        Err(why) => exit::usage(&why),
    }
}

impl Arguments {
    fn wanted(&self) -> Result<Wanted, String> {
        let max_ttl = self.max_ttl.unwrap_or(MAX_TTL);
        Options::new(max_ttl).map_err(|error| format!("--max-ttl: {error}"))?;
        // No client may have another window.
        let window = self.window.unwrap_or(WINDOW);
        let fencing = Fencing::new(window).map_err(|error| format!("--window: {error}"))?;
        let fencing = fencing
            .with_step_back(self.step_back.unwrap_or(STEP_BACK))
            .map_err(|error| format!("--step-back: {error}"))?;
        let fencing = fencing
            .with_max_ttl(max_ttl)
            .map_err(|error| format!("--max-ttl: {error}"))?;
        let settings = Settings::of(fencing);
        Ok(Wanted {
            max_ttl_ms: self.max_ttl.map(|_| settings.max_ttl_ms),
            window_ms: self.window.map(|_| settings.window_ms),
            step_back_ms: self.step_back.map(|_| settings.step_back_ms),
        })
    }
}

/// Sets the nodes up, and tells what was done.
async fn start(nodes: Vec<Node>, wanted: Wanted, mode: Mode) -> ExitCode {
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let setup = set_up(nodes, wanted, mode).await;
    let width = names.iter().map(String::len).max().unwrap_or_default();
    let mut told = String::new();
    for (name, line) in names.iter().zip(setup.lines) {
        let line = format!("{name:width$}  {line}");
        told += &fold(&line, columns(std::io::stdout()));
        told.push('\n');
    }
    let printed = output::print(told.as_bytes(), exit::OK);
    for note in setup.notes {
        warn(&note);
    }
    match setup.state {
        State::Done => printed,
        State::NoVote(left) => {
            let left = duration::in_words(left);
            warn(&format!(
                "not every vote counts yet: run this again in {left}"
            ));
            exit::NO_VOTE.into()
        }
        State::Failed => exit::BAD.into(),
    }
}

fn warn(message: &str) {
    let line = fold(&format!("redlock: {message}"), columns(std::io::stderr()));
    let _unread = writeln!(std::io::stderr(), "{line}");
}
