//! `redlock conformance`: which kinds of locks a server can serve.
#![expect(
    clippy::doc_markdown,
    reason = "--help prints these comments as they are"
)]

mod capability;
mod examination;
mod fenced;
mod identity;
mod keys;
mod line;
mod plain;
mod report;
mod trial;

use core::time::Duration;
use std::process::ExitCode;

use crate::fold::{columns, fold};
use crate::nodes::{FleetArguments, Node, block_on, each};
use crate::{exit, json, output};
use capability::Kind;
use examination::Examination;
use report::Report;

/// Try what locks need on a server: can it serve plain locks, fenced locks and the waiting line?
///
/// For servers other than those on which the tests run, for managed services, and for users with few
/// permissions. Each capability is tried as clients use it, most of them with the scripts of the lock, and
/// its line says yes or no, and why. The last lines say which kinds of locks the server can serve:
///
/// - plain:  plain locks
/// - guard:  the restart guard of plain locks; without it, they need "--no-restart-guard"
/// - fenced: fenced locks
/// - line:   clients that wait are called in their order; without it, they poll
///
/// The trials write keys that begin with the prefix, and the same with redlock:fence: and redlock:queue:
/// before them. They delete these keys in the end; if the connection breaks, or the user may not call DEL, the
/// keys expire within a few minutes. No key of a lock is touched, and no guard record, unless the server may
/// evict keys: there, the question of every client, which this command asks too, deletes it. It takes about a
/// second, and is safe on a server in use.
///
/// A trial can find that scripts do not run alone, but cannot prove that they always do. For what a server
/// would lose in a crash, and for its clock and its settings, run "redlock doctor".
///
/// With --json, one document:
///
/// - the document: conforms (whether each server serves every kind that is required), required, nodes
/// - a node:       node, product, version, plain, guard, fenced, line (whether it serves this kind),
///   capabilities, error (why there are no more)
/// - a capability: capability (its name), yes, needed_for (kinds), message
///
/// Exit codes: 0 each server serves every kind that is required; 1 one does not; 64 usage; 69 a server
/// could not be examined to the end, for example because it gave no answer, wants a password, is busy, or is loading its data;
/// 70 internal error.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// The kinds of locks that the exit code is about
    #[arg(
        long,
        value_name = "KIND",
        value_delimiter = ',',
        default_value = "plain,guard,fenced,line"
    )]
    require: Vec<Kind>,

    /// What the keys of the trials begin with: for a user with restricted keys, a prefix that its locks have
    #[arg(long, value_name = "PREFIX", default_value = "redlock:conformance:")]
    prefix: String,

    /// Print one JSON document on stdout
    #[arg(long)]
    json: bool,
}

pub(crate) fn conformance(arguments: Arguments) -> ExitCode {
    if arguments.prefix.is_empty() || arguments.prefix.len() > MAX_PREFIX {
        return exit::usage(&format!("--prefix: use 1 to {MAX_PREFIX} bytes"));
    }
    let Arguments {
        fleet,
        require,
        prefix,
        json,
    } = arguments;
    match fleet.nodes() {
        Ok(nodes) => block_on(examine(nodes, require, prefix, json)),
        Err(why) => exit::usage(&why),
    }
}

/// Longer prefixes are no help.
const MAX_PREFIX: usize = 1_024;

/// The trials of one server, all together. Each answer has its own timeout, so this is for a server that always answers late.
const LIMIT: Duration = Duration::from_secs(120);

async fn examine(nodes: Vec<Node>, required: Vec<Kind>, prefix: String, as_json: bool) -> ExitCode {
    let examinations = each(nodes, |node| Examination::of(node, prefix.clone(), LIMIT)).await;
    let report = Report::new(examinations, required);
    let told = if as_json {
        json::document(&report.json()) + "\n"
    } else {
        fold(&report.to_string(), columns(std::io::stdout()))
    };
    let code = if !report.is_complete() {
        exit::UNREACHABLE
    } else if report.conforms() {
        exit::OK
    } else {
        exit::BAD
    };
    output::print(told.as_bytes(), code)
}
