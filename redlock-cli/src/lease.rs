//! `redlock lock`, `extend` and `unlock`: a lock for several commands of a script. The lease is in a file meanwhile.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueHint;
use rustix::process::Pid;

use crate::lease_file::{Blank, LeaseFile};
use crate::lock_options::LockOptions;
use crate::nodes::NodeArguments;
use crate::run::{Form, Plan, extend_file, lock_to_file, on_runtime, release_file};
use crate::{exit, key, owner};

const EXAMPLE: &str = "\
Example:
  set -e
  redlock lock --wait 1m --ttl 1m --lease-file deploy.lease deploy
  # Behind the lock: so they never release the lease of another script.
  # Some shells run no trap of EXIT when a signal ends them.
  trap '[ ! -e deploy.lease ] ||
    redlock unlock --lease-file deploy.lease' EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM HUP
  ./stop-traffic
  redlock extend --lease-file deploy.lease
  ./start-traffic";

/// Acquire the lock KEY, and leave its lease in a file
///
/// Nothing extends the lease: it ends one --ttl after the acquire, or after the last "redlock extend". With the file,
/// "redlock run --adopt" runs a command under the lock, and "redlock unlock" releases it. The file holds the token,
/// which is enough to release the lock, so only its owner can read it. It is removed when the lease is released or
/// found lost.
///
/// Exit codes: 0 the lock is held; 75 another client holds it; 69 no quorum of nodes reached; 76 the lease was over before its file
/// was written; 128+N signal N; 64 usage, or the file exists; 70 internal error, for example a full disk. With every code but 0, the lock is not held, unless a command of
/// a plain acquire reaches the nodes after the end of redlock: then it is held for one TTL.
///
/// With --fenced, the fence is in the file, as "fence", and on stderr with -v and --json.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLE)]
pub(crate) struct LockArguments {
    #[command(flatten)]
    nodes: NodeArguments,

    #[command(flatten)]
    lock: LockOptions,

    /// The file for the lease; it must not exist
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    lease_file: PathBuf,

    #[command(flatten)]
    output: Output,

    /// The name of the lock: the key on each node; "redlock:.." is reserved
    key: OsString,
}

/// Extend the lease in a file: it lasts for its TTL from now on
///
/// Exit codes: 0 extended; 76 the lease is lost; 69 no quorum of nodes reached: try again; 75 another process uses the
/// file; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct ExtendArguments {
    #[command(flatten)]
    adopted: Adopted,
}

/// Release the lock of the lease in a file, and remove the file
///
/// Exit codes: 0 released; 76 the lease was lost before; 69 no quorum of nodes reached: the file stays, and the lock ends
/// with its TTL; 75 another process uses the file; 64 usage; 70 internal error, or released, but the file cannot be removed.
#[derive(Debug, clap::Args)]
pub(crate) struct UnlockArguments {
    #[command(flatten)]
    adopted: Adopted,
}

#[derive(Debug, clap::Args)]
struct Adopted {
    #[command(flatten)]
    nodes: NodeArguments,

    /// The file that "redlock lock" has written
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    lease_file: PathBuf,

    #[command(flatten)]
    output: Output,
}

#[derive(Debug, clap::Args)]
struct Output {
    /// Print what happens on stderr, one JSON object per line. What is wrong with an argument, a file or a URL is a text
    #[arg(long)]
    json: bool,

    /// Print what happens on stderr
    #[arg(short, long)]
    verbose: bool,
}

pub(crate) fn lock(arguments: LockArguments) -> ExitCode {
    let path = arguments.lease_file.clone();
    let plan = match arguments.plan() {
        Ok(plan) => plan,
        Err(why) => return exit::usage(&why),
    };
    match Blank::look(&path) {
        Ok(blank) => on_runtime(&plan, async |journal| {
            lock_to_file(&plan, blank, journal).await
        }),
        Err(why) => exit::usage(&why),
    }
}

pub(crate) fn extend(arguments: ExtendArguments) -> ExitCode {
    match arguments.adopted.plan() {
        Ok(plan) => on_runtime(&plan, async |journal| extend_file(&plan, journal).await),
        Err(why) => exit::usage(&why),
    }
}

pub(crate) fn unlock(arguments: UnlockArguments) -> ExitCode {
    match arguments.adopted.plan() {
        Ok(plan) => on_runtime(&plan, async |journal| release_file(&plan, journal).await),
        Err(why) => exit::usage(&why),
    }
}

impl LockArguments {
    fn plan(self) -> Result<Plan, String> {
        let key = self.key.into_vec();
        key::check(&key)?;
        if self.lock.conflict_exit_code == exit::OK {
            return Err("--conflict-exit-code 0: the exit code 0 of redlock lock says that the lock is held: use another one".to_owned());
        }
        let (nodes, options) = (self.nodes.urls()?, self.lock.checked()?);
        // This process ends at once.
        let owner = self.lock.owner.clone().unwrap_or_else(|| {
            let parent = rustix::process::getppid();
            owner::of_process(parent.map_or(0, Pid::as_raw_pid))
        });
        Ok(Plan {
            owner: Some(owner),
            wait: self.lock.wait(),
            conflict_exit_code: self.lock.conflict_exit_code,
            ..Plan::without_command(nodes, key, options, self.output.form())
        })
    }
}

impl Adopted {
    /// What to do with the lease in the file.
    fn plan(self) -> Result<Plan, String> {
        let file = LeaseFile::open(&self.lease_file)?;
        let nodes = self.nodes.urls()?;
        file.expect_nodes(&nodes)?;
        let (key, options) = (file.key().to_owned(), file.options());
        Ok(Plan {
            owner: file.owner().map(str::to_owned),
            adopt: Some(file),
            ..Plan::without_command(nodes, key, options, self.output.form())
        })
    }
}

impl Output {
    const fn form(&self) -> Form {
        Form::of(self.json, self.verbose)
    }
}
