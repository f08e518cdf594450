//! `redlock wait`: waits until a lock is free, and takes nothing.

use core::time::Duration;
use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use redlock_core::Clock;
use redlock_std::{KeyName, SystemClock};

use crate::inspect::{Sight, Verdict};
use crate::nodes::{FleetArguments, Node, block_on};
use crate::{duration, exit, key};

/// Wait until the lock KEY is free, without taking it
///
/// The lock may be taken again before this command has ended. To run a command under the lock, use "redlock run".
///
/// Exit codes: 0 free; 75 still held when the timeout was over; 69 too few answers counted to know when the timeout was over;
/// 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// How long to wait [default: no limit]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,

    /// The name of the lock
    key: OsString,
}

/// The code for a lock that is still held, as that of `redlock run`.
const HELD: u8 = 75;

/// The longest time between two looks.
const PAUSE: Duration = Duration::from_millis(500);

pub(crate) fn wait(arguments: Arguments) -> ExitCode {
    let key = arguments.key.into_encoded_bytes();
    if let Err(why) = key::check(&key) {
        return exit::usage(&why);
    }
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(until_free(nodes, key, arguments.timeout)),
        Err(why) => exit::usage(&why),
    }
}

async fn until_free(nodes: Vec<Node>, key: Vec<u8>, timeout: Option<Duration>) -> ExitCode {
    let give_up_at = timeout.map(|timeout| SystemClock.now().saturating_add(timeout));
    loop {
        let sight = Sight::of(&nodes, &key, None).await;
        let tally = sight.tally();
        let code = match tally.verdict {
            Verdict::Free => return ExitCode::SUCCESS,
            Verdict::Unknown => exit::UNREACHABLE,
            Verdict::Held { .. } | Verdict::Split => HELD,
        };
        let now = SystemClock.now();
        let left = give_up_at.map_or(PAUSE, |at| at.saturating_duration_since(now));
        if left.is_zero() {
            let name = KeyName::new(&key);
            let _unread = writeln!(std::io::stderr(), "redlock: {name}: {tally}");
            return code.into();
        }
        tokio::time::sleep(left.min(PAUSE)).await;
    }
}
