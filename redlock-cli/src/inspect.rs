//! `redlock inspect`: who holds a lock.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

mod holding;
mod tally;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use redlock_std::KeyName;
use serde_json::{Value, json};

use crate::nodes::{FleetArguments, Node, block_on, each, quorum};
use crate::{exit, key};
use holding::Holding;
use tally::{Tally, Verdict};

/// Show who holds the lock KEY, on each node and by quorum
///
/// Reads, and changes nothing. Of a token its first bytes are shown, in hexadecimal: who knows the
/// whole of it can release the lock. The fence is the highest that a node has seen for the key: the
/// holder's, if the holder has one.
///
/// The last line says what a quorum of nodes knows: held, free, split (no token is on a quorum of
/// nodes, as for a moment while several clients try at once) or unknown.
///
/// With --json: key, verdict (held, free, split, unknown), message, token, on (so many nodes), of,
/// answered, quorum, free_in_ms, fence, and nodes, each with node, state (held, free, foreign,
/// unknown), token, type, ends_in_ms, fence, error; null is what there is not.
///
/// Exit codes: 0 known; 69 too few nodes answered to know; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// One JSON document on stdout
    #[arg(long)]
    json: bool,

    /// The name of the lock: the key on each node; "redlock:.." is reserved
    key: OsString,
}

pub(crate) fn inspect(arguments: Arguments) -> ExitCode {
    let key = arguments.key.into_encoded_bytes();
    if let Err(why) = key::check(&key) {
        return exit::usage(&why);
    }
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(look(nodes, key, arguments.json)),
        Err(why) => exit::usage(&why),
    }
}

async fn look(nodes: Vec<Node>, key: Vec<u8>, as_json: bool) -> ExitCode {
    let holdings = each(nodes, |node| Holding::read(node, key.clone())).await;
    let tally = Tally::new(&holdings);
    let told = if as_json {
        format!("{:#}\n", json(&key, &holdings, &tally))
    } else {
        in_words(&key, &holdings, &tally)
    };
    // Nobody needs to read it: the exit code counts.
    let _unread = std::io::stdout().write_all(told.as_bytes());
    match tally.verdict {
        Verdict::Held { .. } | Verdict::Free | Verdict::Split => ExitCode::SUCCESS,
        Verdict::Unknown => exit::UNREACHABLE.into(),
    }
}

fn in_words(key: &[u8], holdings: &[Holding], tally: &Tally<'_>) -> String {
    let width = holdings.iter().map(|holding| holding.node.len()).max();
    let width = width.unwrap_or_default();
    let mut told = String::new();
    for holding in holdings {
        told += &format!("{:width$}  {holding}\n", holding.node);
    }
    told + &format!("{}: {tally}\n", KeyName::new(key))
}

fn json(key: &[u8], holdings: &[Holding], tally: &Tally<'_>) -> Value {
    let (verdict, token, on) = match &tally.verdict {
        Verdict::Held { token, on } => ("held", Some(token.to_string()), Some(on)),
        Verdict::Free => ("free", None, None),
        Verdict::Split => ("split", None, None),
        Verdict::Unknown => ("unknown", None, None),
    };
    json!({
        "key": String::from_utf8_lossy(key),
        "verdict": verdict,
        "message": tally.to_string(),
        "token": token,
        "on": on,
        "of": tally.nodes,
        "answered": tally.answered,
        "quorum": quorum(tally.nodes),
        "free_in_ms": tally
            .free_in
            .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "fence": tally.fence,
        "nodes": holdings.iter().map(Holding::json).collect::<Vec<_>>(),
    })
}
