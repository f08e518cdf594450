//! `redlock wait`: waits until a lock is free, and takes nothing.

use core::time::Duration;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use redlock_core::Clock;
use redlock_std::{KeyName, Options, SystemClock};

use crate::fold::{columns, fold};
use crate::inspect::{Sight, Tally, Verdict};
use crate::nodes::{FleetArguments, Node, block_on};
use crate::{duration, exit, key};

/// Wait until the lock KEY is free, without taking it
///
/// The lock may be taken again before this command has ended. To run a command under the lock, use "redlock run".
///
/// On a terminal, it shows who holds the lock. If too few nodes answer to know, it says so once.
///
/// Exit codes: 0 free; 75 still held when the timeout was over; 69 too few answers counted to know when the timeout was over;
/// 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// How long to wait [default: no limit]
    #[arg(
        short,
        long,
        visible_alias = "wait",
        visible_short_alias = 'w',
        value_name = "DURATION",
        value_parser = duration::parse
    )]
    timeout: Option<Duration>,

    /// The longest TTL that any client of these nodes uses: for this time after a restart, a key that is
    /// missing on the node does not count [default: that of the guard records, or 1m if there are none]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

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
    if let Some(Err(error)) = arguments.max_ttl.map(Options::new) {
        return exit::usage(&format!("--max-ttl: {error}"));
    }
    let (timeout, max_ttl) = (arguments.timeout, arguments.max_ttl);
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(until_free(nodes, key, timeout, max_ttl)),
        Err(why) => exit::usage(&why),
    }
}

async fn until_free(
    nodes: Vec<Node>,
    key: Vec<u8>,
    timeout: Option<Duration>,
    max_ttl: Option<Duration>,
) -> ExitCode {
    let give_up_at = timeout.map(|timeout| SystemClock.now().saturating_add(timeout));
    let mut shown = None;
    // A connection that is made anew takes less than two looks.
    let (mut unknown, mut said) = (0, None);
    loop {
        let sight = Sight::until_free(&nodes, &key, max_ttl).await;
        let tally = sight.tally();
        let holder = match tally.verdict {
            Verdict::Held { token, .. } => {
                let owner = tally.owner.map(str::to_owned);
                Some((token.to_string(), owner, tally.is_released))
            }
            _ => None,
        };
        let code = match tally.verdict {
            Verdict::Free => return ExitCode::SUCCESS,
            Verdict::Unknown => exit::UNREACHABLE,
            Verdict::Held { .. } | Verdict::Split => HELD,
        };
        let now = SystemClock.now();
        let left = give_up_at.map_or(PAUSE, |at| at.saturating_duration_since(now));
        if left.is_zero() {
            if said.as_ref() != Some(&tally.to_string()) {
                tell(&key, &tally);
            }
            return code.into();
        }
        // A person may wonder why nothing happens.
        if holder.is_some() && holder != shown && std::io::stderr().is_terminal() {
            tell(&key, &tally);
            shown = holder;
        }
        if tally.verdict == Verdict::Unknown {
            unknown += 1;
            if unknown == 2 {
                tell(&key, &tally);
                said = Some(tally.to_string());
            }
        }
        tokio::time::sleep(left.min(PAUSE)).await;
    }
}

fn tell(key: &[u8], tally: &Tally<'_>) {
    let line = format!("redlock: {}: {tally}", KeyName::new(key));
    let line = fold(&line, columns(std::io::stderr()));
    let _unread = writeln!(std::io::stderr(), "{line}");
}
