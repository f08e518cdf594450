//! `redlock init`: writes the guard records of a fleet, at its first start or if no client can restore them.

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
/// A node votes for fenced locks only if its guard record (the key redlock:guard) is of this very
/// process and data set, and its quarantine is over. Without options, this command is for the first
/// start of a fleet only: it writes all records or none. It requires that all nodes answer, are
/// distinct masters and have maxmemory-policy noeviction; that no node has a record or a key with
/// a TTL, which may be a lock; and that no node was flushed, evicted a key, or was a replica, since
/// it started. Flushes and evictions are in the statistics of the server: after CONFIG RESETSTAT, this
/// command does not see them. Nor does it see that a node was a replica longer ago than its
/// repl-backlog-ttl. If these nodes were ever used for locks, do not run it until a whole quarantine (see
/// below) has passed since all of them were started, without a client that held a lock: a fleet of which
/// all nodes restarted without their data looks like a new one, and their clocks may have gone back.
/// On every boot, run it with --repair instead, which never lets a vote count at once.
///
/// If all records are lost, nothing on the nodes tells how long the quarantine must be. It is long enough
/// if --max-ttl, --window and --step-back are at least those that the clients have had.
///
/// If every node has a sound record with these settings, there is nothing to do: exit code 0. In all
/// other cases nothing is written, and each node's line says why. If a node has lost its record, the next
/// acquire of a fenced lock that a quorum of nodes answers restores it. The vote of the node counts
/// after a quarantine: the longer one of --max-ttl and --step-back, four times --window and one second;
/// 62 s by default.
///
/// Three states do not end by themselves, and "redlock doctor" names them: the records have different
/// settings, and no settings have a quorum; no node that answers has a record, while another node is
/// away; the value of redlock:guard on a node is no record. Then run "redlock init --repair".
///
/// Exit codes: 0 every node has a record with these settings (with --repair: every node that answers);
/// 1 refused, or failed on a node; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The longest TTL that any client of these nodes uses [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

    /// By how much a fence that a client proposes may differ from the clock of a node [default: 250ms]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    window: Option<Duration>,

    /// By how much the clock of a node may be stepped back [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    step_back: Option<Duration>,

    /// Write the records that are not sound, with a quarantine: no vote counts at once
    ///
    /// It is safe while locks are held, if --max-ttl, --window and --step-back are at least those that the
    /// clients have used. The records contain these settings; if all records are lost, they are unknown. Sound
    /// records with the given settings stay as they are. A minority of the nodes may be away. If no node that
    /// answers has a record, run it again when the missing nodes are back, because they may have records
    /// with other settings.
    ///
    /// If a record has other settings, the settings must be given and all nodes must answer. Otherwise clients
    /// with the old settings can copy them from a node that was left out. The quarantine of the given
    /// settings must be as long as that of each record, so that no old lease outlasts it: give at least
    /// the --max-ttl, --window and --step-back of the longest one. To make the quarantine shorter, stop all
    /// clients for the longest quarantine and use --force.
    #[arg(long, conflicts_with = "force")]
    repair: bool,

    /// Overwrite all records, and let all votes count at once: only if no client holds a lock
    ///
    /// All nodes must answer. It is safe only if all clients have been stopped, and all nodes have been running,
    /// for a whole quarantine: the
    /// longer one of --max-ttl and --step-back, four times --window and one second, by these settings, by those
    /// of the records and, if records are lost, by those that the clients have used; 62 s by default. Otherwise
    /// two clients may hold one lock, or the clock of a node may be stepped back, and fences with it.
    #[arg(long)]
    force: bool,
}

/// What may be overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Nothing.
    Start,
    /// Records that are not sound; the new ones have a quarantine.
    Repair,
    /// Everything.
    Force,
}

/// The settings for the records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    settings: Settings,
    /// Whether the operator gave any of them.
    are_said: bool,
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
                // Nodes whose clocks never go back.
                step_back_ms: at_least(0, "--step-back", self.step_back.unwrap_or(STEP_BACK))?,
            },
            are_said: [self.max_ttl, self.window, self.step_back]
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
            rest,
        } => {
            let outcomes = write(looks, steps, wanted.settings, quarantine, mode).await;
            tell(&names, outcomes.iter().map(Outcome::line));
            let code = conclude(&names, &outcomes, mode);
            let is_written = |outcome: &Outcome| matches!(outcome, Outcome::Written(_));
            if let Some(rest) = rest.filter(|_| outcomes.iter().any(is_written)) {
                warn(&rest);
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

/// Writes to one node after the other, in an order that is the same for every client. If two operators start
/// a fleet with different settings, the second one fails at the first node.
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
            // Records with the old settings may be left.
            let advice = match mode {
                Mode::Repair => "; run it again until all are",
                Mode::Start | Mode::Force => "",
            };
            format!("only these were written: {written}{advice}")
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
