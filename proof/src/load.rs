//! The shipping lock under load, and beside a node that is slow or hostile.
//!
//! Each trial runs in a process of its own, so that what one has allocated does not hide the growth of the
//! next. It prints a row of figures and a line for each promise that is broken. Promises are counts, and ratios of
//! two times of the same process; no limit is a time that depends on the machine.

mod trial;

mod attacker;
mod burst;
mod churn;
mod drops;
mod handles;
mod hostile;
mod kept;
mod length;
mod reconnect;
mod slow;
mod tasks;

mod crowd;
mod histogram;
mod proxy;
mod report;
mod runtime;
mod stage;
mod tally;
mod usage;
mod watch;

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ExitCode, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use self::length::Length;
use self::report::{FAILED, Report};
use self::trial::Trial;
use redlock_tests::child;

/// Puts the lock under load over five redis-servers, and beside a node that is slow or hostile.
///
/// Scenes: burst (all keys at once, with guards that are kept alive), tasks (1,000 at once), kept (guards whose
/// extensions are due at once), churn (memory and descriptors stay flat), drop (100,000 guards at once), reconnect (all
/// connections are killed), slow (one node), hostile (one node sends what no Redis sends, idle and busy, plain and over
/// TLS), handles (hundreds connect at once).
///
/// Prints a row for each trial, and ends with exit code 1 if a promise is broken.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    /// Less of everything, for CI
    #[arg(long)]
    short: bool,

    /// Each trial of a hostile node takes a minute
    #[arg(long, conflicts_with = "short")]
    long: bool,

    /// Only this scene, or this trial of it
    #[arg(long, value_name = "NAME")]
    scene: Option<String>,

    /// The trial runs in this very process
    #[arg(long, hide = true, requires = "scene")]
    here: bool,

    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, clap::Subcommand)]
enum Role {
    #[command(hide = true)]
    Attacker(attacker::Arguments),
}

/// Runs the trials that the command line names. Fails if a promise is broken.
#[must_use]
pub fn run(arguments: &Arguments) -> ExitCode {
    let result = match &arguments.role {
        Some(Role::Attacker(arguments)) => attacker::run(arguments).map(|()| true),
        None => arguments.perform(),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            drop(writeln!(io::stderr(), "load: {error}"));
            ExitCode::FAILURE
        }
    }
}

impl Arguments {
    fn perform(&self) -> Result<bool, Box<dyn Error>> {
        child::expect_programs(&["redis-server", "setpriv"])?;
        let trials = self.trials()?;
        let mut out = io::stdout().lock();
        if self.here {
            for trial in trials {
                write!(out, "{}", trial.perform(self.length())?)?;
            }
            return Ok(true);
        }
        let started_at = Instant::now();
        writeln!(out, "{}", Report::HEAD)?;
        let mut failures = Vec::new();
        for trial in trials {
            failures.extend(self.perform_apart(trial, &mut out)?);
        }
        writeln!(out, "\n{} s", started_at.elapsed().as_secs())?;
        for failure in &failures {
            writeln!(out, "{FAILED}{failure}")?;
        }
        if failures.is_empty() {
            writeln!(out, "the lock kept its promises")?;
        }
        Ok(failures.is_empty())
    }

    fn length(&self) -> Length {
        if self.short {
            Length::Short
        } else if self.long {
            Length::Long
        } else {
            Length::Full
        }
    }

    fn trials(&self) -> Result<Vec<Trial>, String> {
        let Some(wanted) = &self.scene else {
            let mut trials = Trial::all();
            trials.retain(|trial| !self.short || trial.is_short());
            return Ok(trials);
        };
        let mut trials = Trial::all();
        trials.retain(|trial| trial.scene() == wanted || trial.to_string() == *wanted);
        if trials.is_empty() {
            let mut scenes: Vec<_> = Trial::all().iter().map(Trial::scene).collect();
            scenes.dedup();
            return Err(format!(
                "there is no scene {wanted:?}; there are {}",
                scenes.join(", ")
            ));
        }
        Ok(trials)
    }

    /// Runs a trial in a process of its own. Returns the promises that it has broken.
    fn perform_apart(
        &self,
        trial: Trial,
        out: &mut impl Write,
    ) -> Result<Vec<String>, Box<dyn Error>> {
        // What a process that is killed leaves behind goes with it.
        let directory = tempfile::TempDir::new()?;
        let mut command = child::bound(env::current_exe()?);
        command.args(["load", "--here", "--scene", &trial.to_string()]);
        if self.short {
            command.arg("--short");
        }
        if self.long {
            command.arg("--long");
        }
        command.env("TMPDIR", directory.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = child::spawn(command)?;
        let mut failures = Vec::new();
        let limit = trial.limit(self.length());
        match echo(&mut process, limit, out, &mut failures) {
            Ok(()) => {
                let status = process.wait()?;
                if !status.success() {
                    failures.push(format!("{trial}: ended with {status}"));
                }
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                child::end(&mut process);
                failures.push(format!("{trial}: did not end within {limit:?}"));
            }
        }
        Ok(failures)
    }
}

/// Passes on what the process prints until its output ends, and collects the promises that it says are broken.
fn echo(
    process: &mut Child,
    limit: Duration,
    out: &mut impl Write,
    failures: &mut Vec<String>,
) -> Result<(), RecvTimeoutError> {
    let until = Instant::now() + limit;
    let (sender, lines) = mpsc::channel();
    if let Some(stdout) = process.stdout.take() {
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if let Some(failure) = line.strip_prefix(FAILED) {
                    failures.push(failure.to_owned());
                }
                drop(writeln!(out, "{line}"));
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(timeout) => return Err(timeout),
        }
    }
}
