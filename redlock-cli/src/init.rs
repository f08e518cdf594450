//! `redlock init`: writes the guard records of a fleet, at its first start, or if no client can restore the records.

mod plan;
mod site;

use core::time::Duration;
use std::fmt::Display;
use std::io::Write;
use std::process::ExitCode;

use redlock_std::Options;

use crate::defaults::{MAX_TTL, STEP_BACK, WINDOW};
use crate::guard_record::Settings;
use crate::nodes::{FleetArguments, Node, block_on, each};
use crate::{duration, exit};
use plan::{Look, Plan, Step};
use site::Site;

/// Write the guard records of new nodes, so that their votes count at once
///
/// A node has a vote for fenced locks only if its guard record (the key redlock:guard) names its present
/// run and data set, and the quarantine in the record is over.
///
/// Without options, this command is for the first start of a fleet. It writes all records or none, unless a
/// node fails or a client takes a lock while it writes: then the line of that node says so. It requires that
/// - all nodes answer, are distinct masters and have maxmemory-policy noeviction,
/// - no node has a guard record, or a key with a TTL, which may be a lock, and
/// - no node was flushed, evicted a key, or was a replica, since it started.
///
/// It does not see
/// - flushes and evictions before a CONFIG RESETSTAT, which resets the statistics of the server,
/// - that a node was a replica longer ago than its repl-backlog-ttl,
/// - that all nodes restarted without their data: such a fleet looks like a new one, and the clocks of its
///   nodes may have gone back.
///
/// If these nodes were ever used for locks, do not run it until all of them have been running for a whole
/// quarantine in which no client held a lock. On every boot, run it with --repair instead, which never
/// lets a vote count at once.
///
/// A quarantine is max(--max-ttl, --step-back) + 4 * --window + 1 s: 62 s by default. If all records are
/// lost, no node knows how long it must be. It is long enough if --max-ttl, --window and --step-back are at
/// least those that the clients have had.
///
/// If every node has a correct record with these settings, there is nothing to do: exit code 0. Otherwise,
/// if a requirement is not met, nothing is written, and the line of each node says why. If a node has lost
/// its record, the next fenced acquire that a quorum of nodes answers restores it. The vote of the node
/// counts one quarantine later.
///
/// In three states, clients cannot restore the records. "redlock doctor" names these states. Then run
/// "redlock init --repair".
/// - The records have different settings, and no settings have a quorum.
/// - No node that answers has a record, and another node is away.
/// - The value of redlock:guard on a node is no record.
///
/// Exit codes: 0 every node has a record with these settings (with --repair: every node that answers);
/// 1 refused, or failed on a node; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The longest TTL that any client of these nodes uses; the same for all clients [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

    /// How far the clock of a node may be from those of the other nodes; the same for all clients [default: 250ms]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    window: Option<Duration>,

    /// By how much the clock of a node may be stepped back; the same for all clients [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    step_back: Option<Duration>,

    /// Write the records that are missing or wrong, with a quarantine: no vote counts at once
    ///
    /// Correct records with the given settings stay as they are. A minority of the nodes may be away.
    ///
    /// It is safe while locks are held, if --max-ttl, --window and --step-back are at least those that the
    /// clients have used. The records contain these settings. If all records are lost, no node knows them.
    ///
    /// If no node that answers has a record, run it again when the missing nodes are back, because they
    /// may have records with other settings.
    ///
    /// If a record has other settings than the new ones,
    /// - the new settings must be given as options;
    /// - all nodes must answer, because clients with the old settings can copy them from a node that was
    ///   left out;
    /// - the quarantine and the --max-ttl of the new settings must be at least as long as those of each
    ///   record, so that no old lease outlasts the time that clients wait. Give at least the --window and
    ///   --step-back of the record with the longest quarantine, and the highest --max-ttl of all records. To
    ///   make them shorter, stop all clients for the quarantine of these settings, and use --force.
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

/// What may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    Start,
    /// Records that are missing or wrong; the new ones have a quarantine.
    Repair,
    /// Everything.
    Force,
}

/// The settings for the records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    settings: Settings,
    /// Whether the operator gave any of them.
    are_given: bool,
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
        let at_least = |least_ms: u64, name, duration: Duration| {
            let ms = u64::try_from(duration.as_millis()).ok();
            ms.filter(|ms| (least_ms..=u64::from(u32::MAX)).contains(ms))
                .ok_or_else(|| format!("{name} is not between {least_ms}ms and 49days"))
        };
        Ok(Wanted {
            settings: Settings {
                max_ttl_ms: at_least(1, "--max-ttl", max_ttl)?,
                window_ms: at_least(1, "--window", self.window.unwrap_or(WINDOW))?,
                // Zero is for nodes whose clocks never go back.
                step_back_ms: at_least(0, "--step-back", self.step_back.unwrap_or(STEP_BACK))?,
            },
            are_given: [self.max_ttl, self.window, self.step_back]
                .iter()
                .any(Option::is_some),
        })
    }
}

/// Reads the state of every node before it writes to any.
async fn start(nodes: Vec<Node>, wanted: Wanted, mode: Mode) -> ExitCode {
    let names: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    let looks = each(nodes, |node| async move { Site::look(&node).await }).await;
    match Plan::new(&names, &looks, wanted, mode) {
        Plan::Refuse { lines, advice } => {
            tell(&names, lines.iter());
            warn(&format!("nothing was written on any node{advice}"));
            exit::BAD.into()
        }
        Plan::Proceed {
            steps,
            quarantine,
            follow_up,
        } => {
            let outcomes = write(looks, steps, wanted.settings, quarantine, mode).await;
            tell(&names, outcomes.iter().map(Outcome::line));
            let code = conclude(&names, &outcomes, mode);
            let is_written = |outcome: &Outcome| matches!(outcome, Outcome::Written(_));
            if let Some(follow_up) = follow_up.filter(|_| outcomes.iter().any(is_written)) {
                warn(&follow_up);
            }
            code
        }
    }
}

/// The result for one node.
#[derive(Debug)]
enum Outcome {
    Written(String),
    Left(String),
    Failed(String),
}

impl Outcome {
    fn line(&self) -> String {
        match self {
            Self::Written(line) | Self::Left(line) => line.clone(),
            Self::Failed(why) => format!("failed: {why}"),
        }
    }
}

/// Writes to one node after the other. The order is the same for every operator: if two operators start a fleet with
/// different settings at once, one of them fails at the first node.
async fn write(
    looks: Vec<Look>,
    steps: Vec<Step>,
    settings: Settings,
    quarantine: Duration,
    mode: Mode,
) -> Vec<Outcome> {
    let mut work: Vec<_> = looks.into_iter().zip(steps).enumerate().collect();
    work.sort_by_cached_key(|(_, (look, _))| {
        look.as_ref().ok().map(|site| site.run_id().to_owned())
    });
    let mut outcomes = Vec::new();
    let mut has_failed = false;
    for (number, (look, step)) in work {
        let outcome = match (step, look) {
            (Step::Leave(why), _) => Outcome::Left(why),
            (Step::Write, _) if has_failed && mode == Mode::Start => {
                Outcome::Failed("not written, because another node failed".to_owned())
            }
            (Step::Write, Ok(mut site)) => match site.write(settings, quarantine, mode).await {
                Ok(line) => Outcome::Written(line),
                Err(why) => Outcome::Failed(why),
            },
            (Step::Write, Err(_)) => Outcome::Failed("the node did not answer".to_owned()),
        };
        has_failed |= matches!(outcome, Outcome::Failed(_));
        outcomes.push((number, outcome));
    }
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// If a node failed, names the nodes that have a new record.
fn conclude(names: &[String], outcomes: &[Outcome], mode: Mode) -> ExitCode {
    let nodes = || names.iter().zip(outcomes);
    if !nodes().any(|(_, outcome)| matches!(outcome, Outcome::Failed(_))) {
        return ExitCode::SUCCESS;
    }
    let written: Vec<&str> = nodes()
        .filter(|(_, outcome)| matches!(outcome, Outcome::Written(_)))
        .map(|(name, _)| name.as_str())
        .collect();
    warn(&match written.as_slice() {
        [] => "no record was written".to_owned(),
        written => {
            let written = written.join(", ");
            // Other nodes may still have records with the old settings.
            let advice = match mode {
                Mode::Repair => "; run it again until all nodes have one",
                Mode::Start | Mode::Force => "",
            };
            format!("a record was written only on {written}{advice}")
        }
    });
    exit::BAD.into()
}

fn warn(message: &str) {
    let _unread = writeln!(std::io::stderr(), "redlock: {message}");
}

fn tell(names: &[String], lines: impl Iterator<Item = impl Display>) {
    let width = names.iter().map(String::len).max().unwrap_or_default();
    for (name, line) in names.iter().zip(lines) {
        // A failed write is ignored: the caller may want only the exit code.
        let _unread = writeln!(std::io::stdout(), "{name:width$}  {line}");
    }
}
