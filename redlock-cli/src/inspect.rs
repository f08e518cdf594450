//! `redlock inspect`: who holds a lock, and who waits for it.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

mod credit;
mod holding;
mod line;
mod lines;
mod paint;
mod tally;

use core::time::Duration;
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use redlock_core::Clock;
use redlock_std::{KeyName, Options, SystemClock};
use serde_json::Value;
use tokio::task::JoinSet;

use crate::nodes::{FleetArguments, Node, block_on, each, quorum};
use crate::{duration, exit, json, key, output};
use credit::Credit;
use holding::RELEASED;
#[cfg(unix)]
pub(crate) use holding::shown;
pub(crate) use holding::{FenceRecord, Holding, Key, Mark, State};
use lines::Lines;
pub(crate) use tally::{Tally, Verdict};

/// Show who holds the lock KEY and who waits for it, on each node and by quorum
///
/// Reads, and changes nothing. Only the first bytes of a token are shown, in hexadecimal, because the
/// whole token is enough to release the lock. The fence is the highest one that a node has seen for the
/// key. If the holder has a fence, this is the fence of the holder. The owner is what the holder says of itself
/// with "redlock run --owner": it is in parentheses behind the token. If the holder has released the lock, and only --min-hold
/// keeps it, this stands there too. Clients of other libraries say nothing. If the rest of --min-hold is shorter than that of a fenced
/// lease, the node grants the lock to plain clients after the one, and to fenced clients after the other: both are shown.
///
/// The last line says what a quorum of nodes knows: held, free, split (no token is on a quorum of
/// nodes, for example for a moment while several clients try at once) or unknown.
///
/// A node that may have lost the key does not know that the lock is free. So a missing key counts only
/// if the vote of the node counts for every client. It does not count
/// - after a restart of the node, for the longest TTL of any client,
/// - in the quarantine of the guard record,
/// - if the guard record is missing or unlike those of other nodes,
/// - if the node may evict keys and fenced locks are in use,
/// - while the node refuses fenced locks because a fenced lease has not ended: its --min-hold is over, the
///   key was deleted, or it expired too early because the clock of the node was ahead.
///
/// If the node is a replica, is the same server as an earlier node, or does not identify itself, none of
/// its answers counts. The output for the node says why.
///
/// Three losses are invisible to this command:
/// - FLUSHALL, evictions or a failback on all nodes,
/// - one of them on any node if there are no guard records,
/// - a key that a node has expired too early, because its clock is ahead. If the lock is fenced, this is
///   visible when the clock is right again.
///
/// Plain clients notice none of these losses.
///
/// Below each node is its waiting line: the first 16 clients, each with its mailbox (a random number of the
/// client), for how long and since when it waits, and whose turn it is. Until the turn is over, the node grants
/// the lock to no client behind. A mailbox with ~ behind it cannot be called: its client looks at the lock again
/// and again. If the connection of a client is gone, the next call passes it over. Clients of other libraries do
/// not stand in the line.
///
/// On a terminal, states are in colour, unless NO_COLOR is set and not empty, or TERM is dumb.
///
/// With --json, one document for each lock. Absent values are null.
///
/// - the document: key, key_hex (the bytes of the key), verdict (held, free, split, unknown), message,
///   token, owner, released (whether only --min-hold keeps it), on (number of nodes), of (number of all nodes),
///   answered, counted (number of answers), quorum, free_in_ms, fence, line, nodes
/// - line, of all: waiting (number of clients), is_least (whether more may wait), first (the mailbox that is
///   the first on most nodes), first_on (number of nodes), turn (the mailbox that has the turn on most
///   nodes), turn_on, shown_by (number of nodes whose line counts), message
/// - a node:       node, state (held, free, foreign, unknown), token, owner, released, type, ends_in_ms,
///   fence, fence_error (why no fence can be read), refuses_fenced_for_ms (null unless that is longer than
///   ends_in_ms), line, line_error (why the line cannot be read), counts (whether this state counts), no_vote
///   (why the vote of the node does not count), error
/// - line, of one: waiting (number of clients), turn (mailbox, ends_in_ms: 0 if the turn is over), clients (the
///   first 16)
/// - a client:     mailbox, since, waits_for_ms, callable (whether it gets calls), connected
///
/// Exit codes: 0 known; 69 too few answers count to know; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The longest TTL that any client of these nodes uses: for this time after a restart, a key that is
    /// missing on the node does not count [default: that of the guard records, or 1m if there are none]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max_ttl: Option<Duration>,

    /// Print one JSON document on stdout
    #[arg(long)]
    json: bool,

    /// Show it again each second, until Ctrl-C
    #[arg(long)]
    watch: bool,

    /// The names of locks: their keys on each node; "redlock:.." is reserved
    #[arg(required = true, value_name = "KEY")]
    keys: Vec<OsString>,
}

pub(crate) fn inspect(arguments: Arguments) -> ExitCode {
    let keys: Vec<Vec<u8>> = arguments
        .keys
        .into_iter()
        .map(OsString::into_encoded_bytes)
        .collect();
    if let Some(why) = keys.iter().find_map(|key| key::check(key).err()) {
        return exit::usage(&why);
    }
    if let Some(Err(error)) = arguments.max_ttl.map(Options::new) {
        return exit::usage(&format!("--max-ttl: {error}"));
    }
    let max_ttl = arguments.max_ttl;
    match (arguments.fleet.nodes(), arguments.watch) {
        (Ok(nodes), false) => block_on(show(nodes, keys, max_ttl, arguments.json)),
        (Ok(nodes), true) => block_on(watch(nodes, keys, max_ttl, arguments.json)),
        (Err(why), _) => exit::usage(&why),
    }
}

/// Shows each lock once.
async fn show(
    nodes: Vec<Node>,
    keys: Vec<Vec<u8>>,
    max_ttl: Option<Duration>,
    as_json: bool,
) -> ExitCode {
    let (told, is_known) = told(&nodes, &keys, max_ttl, as_json).await;
    let code = if is_known {
        exit::OK
    } else {
        exit::UNREACHABLE
    };
    output::print(told.as_bytes(), code)
}

/// Shows each lock once a second, until the output is closed or a signal ends this process.
async fn watch(
    nodes: Vec<Node>,
    keys: Vec<Vec<u8>>,
    max_ttl: Option<Duration>,
    as_json: bool,
) -> ExitCode {
    const PAUSE: Duration = Duration::from_secs(1);

    let mut screen = std::io::stdout();
    let clears = screen.is_terminal() && !as_json && !paint::is_dumb();
    loop {
        let (told, _) = told(&nodes, &keys, max_ttl, as_json).await;
        // The screen is cleared when there is something to show, so that it does not flicker.
        let begin = if clears { "\x1b[H\x1b[2J" } else { "" };
        let end = if clears || as_json { "" } else { "\n" };
        let written = write!(screen, "{begin}{told}{end}");
        let written = written.and_then(|()| screen.flush());
        if written.is_err() {
            return output::ended(written, exit::OK);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What is to be told of each lock, and whether the state of all of them is known.
async fn told(
    nodes: &[Node],
    keys: &[Vec<u8>],
    max_ttl: Option<Duration>,
    as_json: bool,
) -> (String, bool) {
    let (mut told, mut is_known) = (String::new(), true);
    for key in keys {
        let sight = Sight::of(nodes, key, max_ttl).await;
        let (tally, lines) = (sight.tally(), sight.lines());
        told += &if as_json {
            json::document(&json(key, &sight.holdings, &sight.credits, &tally, &lines)) + "\n"
        } else {
            paint::states(&sight.in_words(key))
        };
        is_known &= tally.verdict != Verdict::Unknown;
    }
    (told, is_known)
}

/// What the nodes have told about a lock.
#[derive(Debug)]
pub(crate) struct Sight {
    pub(crate) holdings: Vec<Holding>,
    credits: Vec<Credit>,
}

impl Sight {
    pub(crate) async fn of(nodes: &[Node], key: &[u8], max_ttl: Option<Duration>) -> Self {
        let holdings = each(nodes.to_vec(), |node| Holding::read(node, key.to_owned())).await;
        let credits = Credit::of(&holdings, max_ttl);
        Self { holdings, credits }
    }

    /// What the nodes tell until a quorum has told that the lock is free. A node that answers as fast as the quorum is heard too,
    /// because it may know why an answer of another node does not count.
    pub(crate) async fn until_free(nodes: &[Node], key: &[u8], max_ttl: Option<Duration>) -> Self {
        let mut reading = JoinSet::new();
        for (place, node) in nodes.iter().cloned().enumerate() {
            let key = key.to_owned();
            reading.spawn(async move { (place, Holding::read(node, key).await) });
        }
        let mut holdings: Vec<_> = nodes.iter().map(Holding::unanswered).collect();
        let began_at = SystemClock.now();
        let mut free_at = None;
        loop {
            let credits = Credit::of(&holdings, max_ttl);
            let sight = Self { holdings, credits };
            let now = SystemClock.now();
            free_at = match sight.tally().verdict {
                Verdict::Free => free_at.or(Some(now)),
                _ => None,
            };
            // As long again as a quorum took.
            let end = free_at.map(|at| at.saturating_add(at.saturating_duration_since(began_at)));
            let next = tokio::select! {
                biased;
                next = reading.join_next() => next,
                () = SystemClock.sleep_until(end.unwrap_or(now)), if end.is_some() => None,
            };
            let Some(read) = next else {
                return sight;
            };
            holdings = sight.holdings;
            match read {
                Ok((place, holding)) => {
                    if let Some(unanswered) = holdings.get_mut(place) {
                        *unanswered = holding;
                    }
                }
                // Nothing cancels the task.
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }

    pub(crate) fn tally(&self) -> Tally<'_> {
        Tally::new(&self.holdings, &self.credits)
    }

    fn lines(&self) -> Lines<'_> {
        Lines::new(&self.holdings, &self.credits)
    }

    pub(crate) fn in_words(&self, key: &[u8]) -> String {
        let (tally, lines) = (self.tally(), self.lines());
        in_words(key, &self.holdings, &self.credits, &tally, &lines)
    }
}

fn in_words(
    key: &[u8],
    holdings: &[Holding],
    credits: &[Credit],
    tally: &Tally<'_>,
    lines: &Lines<'_>,
) -> String {
    let width = holdings.iter().map(|holding| holding.node.len()).max();
    let width = width.unwrap_or_default();
    let mut told = String::new();
    for (holding, credit) in holdings.iter().zip(credits) {
        // A node that did not answer has its error in its own line.
        let doubt = credit.doubt().filter(|_| holding.state.is_ok());
        let no_vote = doubt.map_or_else(String::new, |why| format!("; no vote: {why}"));
        // That of the holder is in the last line.
        let owner = holding.owner().filter(|_| tally.owner.is_none());
        let owner = owner.map_or_else(String::new, |owner| format!(", owner {owner}"));
        let is_told = tally.is_released || !holding.is_released();
        let released = if is_told {
            String::new()
        } else {
            format!(", {RELEASED}")
        };
        told += &format!(
            "{:width$}  {holding}{owner}{released}{no_vote}\n",
            holding.node
        );
        // Why it cannot be read is said once, below.
        if let Ok(line) = &holding.line {
            told += &line.to_string();
        }
    }
    if lines.is_known() {
        told += &format!("line: {lines}\n");
    }
    told + &format!("{}: {tally}\n", KeyName::new(key))
}

fn json(
    key: &[u8],
    holdings: &[Holding],
    credits: &[Credit],
    tally: &Tally<'_>,
    lines: &Lines<'_>,
) -> Value {
    let nodes = holdings.iter().zip(credits);
    let (verdict, token, on) = match &tally.verdict {
        Verdict::Held { token, on } => ("held", Some(token.to_string()), Some(on)),
        Verdict::Free => ("free", None, None),
        Verdict::Split => ("split", None, None),
        Verdict::Unknown => ("unknown", None, None),
    };
    serde_json::json!({
        "key": String::from_utf8_lossy(key),
        "key_hex": json::hex(key),
        "verdict": verdict,
        "message": tally.to_string(),
        "token": token,
        "owner": tally.owner,
        "released": tally.is_released,
        "on": on,
        "of": tally.nodes,
        "answered": tally.answered,
        "counted": tally.counted,
        "quorum": quorum(tally.nodes),
        "free_in_ms": tally
            .free_in
            .map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
        "fence": tally.fence,
        "line": lines.json(),
        "nodes": nodes.map(|(holding, credit)| credit.json(holding)).collect::<Vec<_>>(),
    })
}
