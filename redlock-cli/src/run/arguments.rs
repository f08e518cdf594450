//! The arguments of `redlock run`, parsed and checked.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

use core::time::Duration;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use redlock_std::{Fencing, Options, OptionsError};

use super::deadline::Deadline;
use super::journal::Form;
use crate::nodes::{NodeArguments, Urls};
use crate::{defaults, duration, key};

/// Run a command while holding the lock KEY
///
/// Acquires the lock, runs the command and releases the lock when the command has ended. The lease is
/// extended for as long as the command runs. If it cannot be extended, because no quorum of nodes answers,
/// the command gets SIGTERM, and SIGKILL before the lease ends: it never runs on without the lock.
///
/// The environment of the command has the key in REDLOCK_KEY, the token in hexadecimal in REDLOCK_TOKEN,
/// and with --fenced the fencing token in REDLOCK_FENCE. REDLOCK_NODES is removed from it, because it may
/// contain passwords; --keep-env keeps it.
///
/// Exit codes:
///
/// - the command's own, if it ran under the lock to its end
/// - 128+N  signal N ended the command, or the wait for the lock
/// - 75     another client holds the lock, or held it when the wait was over
/// - 69     no quorum of nodes reached, also when the wait was over
/// - 76     the lock was lost while the command ran
/// - 126    the command cannot be executed
/// - 127    the command was not found
/// - 64     usage
/// - 70     internal error
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    nodes: NodeArguments,

    /// How long a lease lasts if it is not extended, and so how long the lock stays held after a crash; at
    /// least 100ms
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    ttl: Duration,

    /// How long to wait for the lock [default: no limit while another client holds it, or a restarted node
    /// has no vote yet; one TTL while no quorum of nodes answers]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// Do not wait: try once, and up to three times more if clients that tried at the same time have split the votes
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,

    /// The exit code if another client holds the lock: at once with --no-wait, otherwise when the wait is over
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::HELD)]
    conflict_exit_code: u8,

    /// The time between SIGTERM and SIGKILL when the lock is lost [default: a third of the TTL, at most
    /// 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    kill_after: Option<Duration>,

    /// How long to wait for a node that does not answer, each time the nodes are asked [default: a twentieth
    /// of the TTL, from 20ms to 1s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    node_timeout: Option<Duration>,

    /// Get a fencing token: a number that is higher for every later holder, for the resource to check
    ///
    /// The clocks of the nodes must agree within --window. All clients of the nodes must have the same
    /// --window, --max-ttl and --step-back.
    #[arg(long)]
    fenced: bool,

    /// How far the clock of a node may be from those of the other nodes; the same for all clients
    #[arg(long, value_name = "DURATION", default_value = defaults::WINDOW_TEXT, value_parser = duration::parse, requires = "fenced")]
    window: Duration,

    /// The longest TTL that any client of these nodes uses; the same for all clients [default: 1m with
    /// --fenced, otherwise that of --ttl]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

    /// By how much the clock of a node may be stepped back; the same for all clients
    #[arg(long, value_name = "DURATION", default_value = defaults::STEP_BACK_TEXT, value_parser = duration::parse, requires = "fenced")]
    step_back: Duration,

    /// Count the vote of a restarted node at once: only for nodes that write every command to a disk
    /// before they answer
    #[arg(long, conflicts_with = "fenced")]
    no_restart_guard: bool,

    /// Let the command inherit the URLs of the nodes, with their passwords, if it uses the nodes itself
    #[arg(long)]
    keep_env: bool,

    /// Print what happens on stderr, one JSON object per line
    #[arg(long)]
    json: bool,

    /// Print what happens on stderr, including each extension
    #[arg(short, long)]
    verbose: bool,

    /// The name of the lock: the key on each node; "redlock:.." is reserved
    key: OsString,

    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "CMD")]
    command: Vec<OsString>,
}

/// The checked arguments.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: Urls,
    pub(crate) key: Vec<u8>,
    pub(crate) command: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) options: Options,
    /// `None` to wait without a limit.
    pub(crate) wait: Option<Duration>,
    pub(crate) kill_after: Duration,
    pub(crate) conflict_exit_code: u8,
    /// Whether the command inherits the URLs of the nodes.
    pub(crate) keep_env: bool,
    pub(crate) form: Form,
}

impl Arguments {
    /// Checks the arguments. The nodes are checked later, by the connect.
    pub(crate) fn plan(self) -> Result<Plan, String> {
        if self.ttl < MIN_TTL {
            return Err(format!(
                "--ttl {}: the TTL is too short, because the command must end before the lease ends: use at least {}",
                humantime::format_duration(self.ttl),
                humantime::format_duration(MIN_TTL)
            ));
        }
        let options = self.options().map_err(|error| match error {
            OptionsError::MaxTtl => self.ttl_is_too_long(),
            error => error.to_string(),
        })?;
        let kill_after = self.kill_after(&options)?;
        let key = self.key.into_vec();
        key::check(&key)?;
        let nodes = self.nodes.urls()?;
        let mut command = self.command.into_iter();
        Ok(Plan {
            options,
            kill_after,
            command: command.next().ok_or("no command: write it after --")?,
            arguments: command.collect(),
            nodes,
            key,
            wait: if self.no_wait {
                Some(Duration::ZERO)
            } else {
                self.wait
            },
            conflict_exit_code: self.conflict_exit_code,
            keep_env: self.keep_env,
            form: match (self.json, self.verbose) {
                (true, _) => Form::Json,
                (false, true) => Form::Verbose,
                (false, false) => Form::Brief,
            },
        })
    }

    /// Extensions are not limited: the lease ends with the command.
    fn options(&self) -> Result<Options, OptionsError> {
        let mut options = Options::new(self.ttl)?
            .unlimited_extensions()
            .restart_guard(!self.no_restart_guard);
        if self.fenced {
            options = options.fenced(self.fencing()?)?;
        } else if let Some(max_ttl) = self.max_ttl {
            options = options.max_ttl(max_ttl)?;
        }
        options.node_timeout(self.node_timeout.unwrap_or_else(|| node_timeout(&options)))
    }

    fn fencing(&self) -> Result<Fencing, OptionsError> {
        let fencing = Fencing::new(self.window)?.with_step_back(self.step_back)?;
        match self.max_ttl {
            Some(max_ttl) => fencing.with_max_ttl(max_ttl),
            None => Ok(fencing),
        }
    }

    fn ttl_is_too_long(&self) -> String {
        let ttl = humantime::format_duration(self.ttl);
        match self.max_ttl {
            Some(max_ttl) => {
                let max_ttl = humantime::format_duration(max_ttl);
                format!("--ttl {ttl} is longer than --max-ttl {max_ttl}")
            }
            None => format!(
                "--ttl {ttl} is longer than the default of --max-ttl, {}: set --max-ttl, to the same value for all \
                clients of these nodes",
                humantime::format_duration(defaults::MAX_TTL)
            ),
        }
    }

    fn kill_after(&self, options: &Options) -> Result<Duration, String> {
        let validity = options.validity();
        let most = (validity / 2).saturating_sub(Deadline::margin(validity));
        match self.kill_after {
            None => Ok((validity / 3).min(Duration::from_secs(10)).min(most)),
            Some(kill_after) if kill_after <= most => Ok(kill_after),
            Some(kill_after) => Err(format!(
                "--kill-after {} is too long for --ttl {}: use at most {} ms, so that there is time to extend the lease \
                before the command must get SIGTERM",
                humantime::format_duration(kill_after),
                humantime::format_duration(options.ttl()),
                most.as_millis(),
            )),
        }
    }
}

/// A shorter TTL leaves too little time beside the [margin](Deadline::margin) for ending a process.
const MIN_TTL: Duration = Duration::from_millis(100);

/// The default of `--node-timeout`. It is longer than that of the library, because every run makes new connections, and its
/// first round waits for them.
fn node_timeout(options: &Options) -> Duration {
    let share = options.ttl() / 20;
    let clamped = share.clamp(Duration::from_millis(20), Duration::from_secs(1));
    clamped.min(options.validity() / 2)
}
