//! The options of a lock that `redlock run` and `redlock lock` acquire.

use core::time::Duration;

use redlock_std::{Fencing, Options, OptionsError};

use crate::{defaults, duration, owner};

#[derive(Debug, clap::Args)]
pub(crate) struct LockOptions {
    /// How long a lease lasts if it is not extended, and so how long the lock stays held after a crash; at
    /// least 100ms
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse)]
    pub(crate) ttl: Duration,

    /// How long to wait for the lock [default: no limit while another client holds it, or a restarted node
    /// has no vote yet; one TTL while no quorum of nodes answers]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    wait: Option<Duration>,

    /// Do not wait: try once, and up to three times more if clients that tried at the same time have split the votes
    #[arg(long, conflicts_with = "wait")]
    no_wait: bool,

    /// The exit code if another client holds the lock: at once with --no-wait, otherwise when the wait is over. With 0, this is
    /// no failure, and nothing is printed unless -v or --json is given, or stderr is a terminal; redlock lock refuses 0
    #[arg(short = 'E', long, value_name = "N", default_value_t = crate::exit::HELD)]
    pub(crate) conflict_exit_code: u8,

    /// Who holds the lock, for "redlock inspect" and for those who wait on a terminal or with -v: a text of at most 128 bytes; empty to
    /// tell nothing [default: HOST:PID, of redlock run, or of the process that has started redlock lock]
    ///
    /// It is stored beside the key of the lock, as redlock:owner:KEY, from a tenth of a second after the acquire until the
    /// release. Every user of the nodes who may read this key can see it.
    #[arg(long, value_name = "TEXT", value_parser = owner::check)]
    pub(crate) owner: Option<String>,

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
}

/// A shorter TTL leaves too little time beside the margin for ending a process.
pub(crate) const MIN_TTL: Duration = Duration::from_millis(100);

impl LockOptions {
    /// The options of the library. Why they are not valid is for the operator.
    pub(crate) fn checked(&self) -> Result<Options, String> {
        if self.ttl < MIN_TTL {
            return Err(format!(
                "--ttl {}: the TTL is too short, because the command must end before the lease ends: use at least {}",
                humantime::format_duration(self.ttl),
                humantime::format_duration(MIN_TTL)
            ));
        }
        self.options().map_err(|error| match error {
            OptionsError::MaxTtl => self.ttl_is_too_long(),
            OptionsError::TtlTooLong if Options::new(self.ttl).is_ok() => {
                format!("--max-ttl: {error}")
            }
            OptionsError::TtlTooLong => format!("--ttl: {error}"),
            OptionsError::NodeTimeout => format!("--node-timeout: {error}"),
            error => error.to_string(),
        })
    }

    /// How long to wait for the lock. `None` to wait without a limit.
    pub(crate) const fn wait(&self) -> Option<Duration> {
        if self.no_wait {
            Some(Duration::ZERO)
        } else {
            self.wait
        }
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
}

/// The default of `--node-timeout`. It is longer than that of the library, because every run makes new connections, and waits
/// for them for two node timeouts at first.
pub(crate) fn node_timeout(options: &Options) -> Duration {
    let share = options.ttl() / 20;
    let clamped = share.clamp(Duration::from_millis(20), Duration::from_secs(1));
    clamped.min(options.validity() / 2)
}
