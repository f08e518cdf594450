//! The arguments of `redlock run`, parsed and checked.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

use core::time::Duration;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use clap::ValueHint;
use redlock_std::{Options, OptionsError};

use super::deadline::Deadline;
use super::journal::Form;
#[cfg(target_os = "linux")]
use super::starter::check_proc;
use crate::lease_file::LeaseFile;
use crate::lock_options::{LockOptions, MIN_TTL};
use crate::nodes::{NodeArguments, Urls};
use crate::{duration, exit, key, owner};

const EXAMPLES: &str = "\
Examples:
  # A crontab, the same line on each host: one of them runs the job.
  * * * * * redlock run --no-wait -E 0 --min-hold 55s report -- ./report.sh

  # The clocks of the hosts differ by up to a minute: a key for each period.
  0 * * * * redlock run --no-wait -E 0 --min-hold 1m job-$(date +\\%H) -- ./job

  # A deploy: the next one waits, and says who holds the lock.
  redlock run -v --wait 10m --owner deploy-42 migration -- ./migrate

  # A service that runs on one of several hosts: in its systemd unit, with
  # KillMode=mixed and Restart=always.
  ExecStart=/usr/bin/redlock run --die-with-parent leader -- /usr/bin/serve";

/// Run a command while holding the lock KEY
///
/// Acquires the lock, runs the command and releases the lock when the command has ended. The lease is
/// extended for as long as the command runs. If it cannot be extended, because no quorum of nodes answers,
/// the command gets SIGTERM, and SIGKILL before the lease ends: it never runs on without the lock, unless redlock
/// itself is killed with SIGKILL (see --die-with-parent).
///
/// The environment of the command has the key in REDLOCK_KEY, the token in hexadecimal in REDLOCK_TOKEN,
/// and with --fenced the fencing token in REDLOCK_FENCE. REDLOCK_PIDS has the process IDs of all "redlock run" above
/// the command, each with its start time. REDLOCK_NODES is removed from it, because it may contain passwords; --keep-env keeps it.
///
/// The command runs in its own process group. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are
/// forwarded to this group. As the first process of a container, redlock reaps orphans.
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
///
/// A DURATION is like 500ms, 30s, 10m or 1h30m; a number alone is in seconds.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = EXAMPLES,
    verbatim_doc_comment,
    override_usage = "redlock run [OPTIONS] <KEY> -- <CMD>...\n       redlock run [OPTIONS] <KEY> -c <STRING>\n       redlock run [OPTIONS] --adopt <FILE> -- <CMD>..."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    nodes: NodeArguments,

    #[command(flatten)]
    lock: LockOptions,

    /// Adopt the lease in FILE, which "redlock lock" has written, and release it at the end: KEY and the options of the lock are
    /// those in the file, but for --owner
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["key", "ttl", "wait", "no_wait", "fenced", "max_ttl", "no_restart_guard"])]
    adopt: Option<PathBuf>,

    /// How long the lock stays held after it was acquired, even if the command ends earlier
    ///
    /// For a job that cron starts at the same time on several hosts, with --no-wait: a host whose clock is late
    /// finds the lock held, although the job is done, so the job runs once. If the command
    /// cannot be started, the lock is released at once. Use a time that is longer than the clocks of the hosts differ, and
    /// shorter than the period by more than they differ, so that no period is left out when a host fails: for example 55s for
    /// a job of every minute, if the clocks agree within 5 s. If they differ by more, use a key for each period (see the
    /// examples). With --fenced, at most
    /// --max-ttl, and the lock stays held for at least the rest of its TTL. A restarted node has no vote for at least this time:
    /// give all clients of the key the same --min-hold, or a --max-ttl of at least it. If the nodes have guard records, it is at most
    /// the --max-ttl of "redlock init".
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "adopt")]
    min_hold: Option<Duration>,

    /// The time between SIGTERM and SIGKILL when the lock is lost [default: a third of the TTL, at most
    /// 10s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    kill_after: Option<Duration>,

    /// End the command with SIGKILL if redlock itself is killed with SIGKILL. The processes that the command has started are
    /// not ended, and neither is a command with set-user-ID, set-group-ID or file capabilities
    #[cfg(target_os = "linux")]
    #[arg(long)]
    die_with_parent: bool,

    /// Let the command inherit the URLs of the nodes, with their passwords, if it uses the nodes itself
    #[arg(long)]
    keep_env: bool,

    /// Print what happens on stderr, one JSON object per line. What is wrong with an argument, a file or a URL is a text
    #[arg(long)]
    json: bool,

    /// Print what happens on stderr, including each extension
    #[arg(short, long)]
    verbose: bool,

    /// Run STRING in a shell, instead of CMD
    #[arg(
        short = 'c',
        long = "command",
        value_name = "STRING",
        conflicts_with = "command"
    )]
    shell: Option<OsString>,

    /// The name of the lock: the key on each node; "redlock:.." is reserved
    #[arg(required_unless_present = "adopt")]
    key: Option<OsString>,

    /// The command and its arguments
    #[arg(last = true, required_unless_present = "shell", num_args = 1.., value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
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
    /// Who holds the lock, for operators; `None` or empty to tell nothing.
    pub(crate) owner: Option<String>,
    pub(crate) min_hold: Option<Duration>,
    /// The lease to adopt instead of an acquire.
    pub(crate) adopt: Option<LeaseFile>,
    /// `None` to wait without a limit.
    pub(crate) wait: Option<Duration>,
    pub(crate) kill_after: Duration,
    pub(crate) conflict_exit_code: u8,
    /// Whether the command inherits the URLs of the nodes.
    pub(crate) keep_env: bool,
    /// Whether the command ends with this process.
    #[cfg(target_os = "linux")]
    pub(crate) die_with_parent: bool,
    pub(crate) form: Form,
}

impl Plan {
    /// For a lock without a command.
    pub(crate) fn without_command(nodes: Urls, key: Vec<u8>, options: Options, form: Form) -> Self {
        Self {
            nodes,
            key,
            command: OsString::new(),
            arguments: Vec::new(),
            options,
            owner: None,
            min_hold: None,
            adopt: None,
            wait: None,
            kill_after: Duration::ZERO,
            conflict_exit_code: exit::HELD,
            keep_env: false,
            #[cfg(target_os = "linux")]
            die_with_parent: false,
            form,
        }
    }
}

impl Arguments {
    /// Checks the arguments. The nodes are checked later, by the connect.
    pub(crate) fn plan(self) -> Result<Plan, String> {
        let file = self.adopt.as_deref().map(LeaseFile::open).transpose()?;
        let mut options = match &file {
            Some(file) if file.ttl() < MIN_TTL => {
                return Err(format!(
                    "--adopt: the TTL of the lease, {}, is too short, because the command must end before the lease ends",
                    humantime::format_duration(file.ttl())
                ));
            }
            Some(file) => file.options(),
            None => self.lock.checked()?,
        };
        if let Some(min_hold) = self.min_hold {
            options = options.min_hold(min_hold).map_err(|error| match error {
                OptionsError::MinHold => format!(
                    "--min-hold {} is longer than --max-ttl, which is 1m by default with --fenced: use a shorter --min-hold, or a \
                     longer --max-ttl for all clients",
                    humantime::format_duration(min_hold)
                ),
                error => format!("--min-hold: {error}"),
            })?;
        }
        let kill_after = self.kill_after(&options)?;
        #[cfg(target_os = "linux")]
        if self.die_with_parent
            && let Err(error) = check_proc()
        {
            return Err(format!(
                "--die-with-parent needs /proc of the system: {error}"
            ));
        }
        let nodes = self.nodes.urls()?;
        let key = match (&file, self.key) {
            (Some(file), _) => {
                file.expect_nodes(&nodes)?;
                file.key().to_owned()
            }
            (None, Some(key)) => key.into_vec(),
            (None, None) => return Err("no key: give the name of the lock".to_owned()),
        };
        key::check(&key)?;
        let command = match self.shell {
            Some(script) => vec!["sh".into(), "-c".into(), script],
            None => self.command,
        };
        let mut command = command.into_iter();
        let owner = self.lock.owner.clone();
        let owner = owner.unwrap_or_else(|| owner::of_process(std::process::id()));
        Ok(Plan {
            options,
            owner: Some(owner),
            min_hold: self.min_hold,
            kill_after,
            command: command.next().ok_or("no command: write it after --")?,
            arguments: command.collect(),
            nodes,
            key,
            adopt: file,
            wait: self.lock.wait(),
            conflict_exit_code: self.lock.conflict_exit_code,
            keep_env: self.keep_env,
            #[cfg(target_os = "linux")]
            die_with_parent: self.die_with_parent,
            form: Form::of(self.json, self.verbose),
        })
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
