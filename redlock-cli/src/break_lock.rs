//! `redlock break`: deletes the keys of a holder that is gone.

use std::ffi::OsString;
use std::io::{BufRead, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use redis::Value;
use redlock_core::FENCE_KEY_PREFIX;
use redlock_std::KeyName;

use crate::fold::{columns, fold};
use crate::inspect::{Holding, Key, Mark, Sight, Verdict};
use crate::nodes::{FleetArguments, Node, block_on, each, in_words, quorum};
use crate::{exit, key, output, owner};

/// Delete the keys of the client that holds the lock KEY
///
/// Shows who holds the lock, and asks. Deletes on each node only what was shown: not the key of a client that has
/// acquired the lock meanwhile. If the holder still runs, it notices the loss when it extends its lease, up to a third of
/// its TTL later, and does its work beside the next holder until then. So end it first, if you can: the lock is free
/// without this command as soon as the holder has released it, or one TTL after its end.
///
/// Clients that wait find out with their next look, within about a second.
///
/// Exit codes: 0 the keys are deleted, or nobody holds the lock; 1 not confirmed, another client holds the lock, or a node failed;
/// 69 too few answers count to know the holder, or the lock is split: no quorum has the same token; 64 usage; 70 internal error.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    fleet: FleetArguments,

    /// Do not ask: break the lock only if the token of its holder begins with these digits, as "redlock inspect" shows
    /// them
    #[arg(long, value_name = "HEX", value_parser = prefix)]
    token_prefix: Option<String>,

    /// The name of the lock
    key: OsString,
}

/// What `inspect` shows of a token.
fn prefix(text: &str) -> Result<String, String> {
    let digits = text.trim_end_matches('.');
    if digits.len() == 8 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        Ok(digits.to_lowercase())
    } else {
        Err("write the eight digits that redlock inspect shows".to_owned())
    }
}

pub(crate) fn break_lock(arguments: Arguments) -> ExitCode {
    let key = arguments.key.into_encoded_bytes();
    if let Err(why) = key::check(&key) {
        return exit::usage(&why);
    }
    match arguments.fleet.nodes() {
        Ok(nodes) => block_on(look_and_break(nodes, key, arguments.token_prefix)),
        Err(why) => exit::usage(&why),
    }
}

async fn look_and_break(nodes: Vec<Node>, key: Vec<u8>, prefix: Option<String>) -> ExitCode {
    let sight = Sight::of(&nodes, &key, None).await;
    let told = fold(&sight.in_words(&key), columns(std::io::stdout()));
    let written = std::io::stdout().write_all(told.as_bytes());
    if let Err(error) = &written
        && error.kind() != ErrorKind::BrokenPipe
    {
        // Nothing is deleted of which the operator does not read.
        return output::ended(written, exit::OK);
    }
    let marks = match (holders(&sight, prefix.as_deref()), sight.tally().verdict) {
        (marks, _) if !marks.is_empty() => marks,
        (_, Verdict::Free) => return ExitCode::SUCCESS,
        (_, Verdict::Held { .. }) => {
            return failed(&key, "another client holds it than --token-prefix names");
        }
        (_, Verdict::Split | Verdict::Unknown) => {
            let why = "no holder is known; name one with --token-prefix, if a line above shows it";
            let _failed = failed(&key, why);
            return exit::UNREACHABLE.into();
        }
    };
    if prefix.is_none() && !is_confirmed(&marks, sight.tally().is_released) {
        return failed(&key, "not broken");
    }
    let is_of_another =
        |verdict| matches!(verdict, Verdict::Held { token, .. } if !marks.contains(token));
    let mut is_held = is_of_another(sight.tally().verdict);
    let asked = nodes.clone();
    let answers = each(asked, |node| delete(node, key.clone(), marks.clone())).await;
    let deleted = answers.iter().filter(|answer| **answer == Ok(true)).count();
    // Another client may have the lock, or may have acquired it since the look. After a quorum of deletions, another client has the lock
    // because of them.
    let mut is_unknown = false;
    if deleted < quorum(nodes.len()) {
        let now = Sight::of(&nodes, &key, None).await;
        let verdict = now.tally().verdict;
        is_unknown = verdict == Verdict::Unknown;
        is_held |= is_of_another(verdict);
    }
    let (mut code, mut lines) = (exit::OK, String::new());
    for (holding, answer) in sight.holdings.iter().zip(answers) {
        let had_it = mark_of(holding).is_some_and(|mark| marks.contains(mark));
        let told = match answer {
            Ok(true) => "deleted".to_owned(),
            Ok(false) if !had_it => continue,
            Ok(false) => "no longer there".to_owned(),
            Err(why) => {
                code = exit::BAD;
                format!("failed: {why}")
            }
        };
        lines += &format!("{}  {told}\n", holding.node);
    }
    if is_held {
        code = failed_code(&key, "another client holds it");
    } else if is_unknown && code == exit::OK {
        let _bad = failed_code(
            &key,
            "too few answers count to know whether another client holds it",
        );
        code = exit::UNREACHABLE;
    }
    output::print(fold(&lines, columns(std::io::stdout())).as_bytes(), code)
}

/// The tokens to delete: that of the holder, or all that begin as the operator says. One node alone can show a token with the same
/// first digits.
fn holders(sight: &Sight, prefix: Option<&str>) -> Vec<Mark> {
    let mut marks: Vec<Mark> = Vec::new();
    match (prefix, sight.tally().verdict) {
        (Some(prefix), _) => {
            let is_meant = |mark: &&Mark| mark.to_string().trim_end_matches('.') == prefix;
            for mark in sight.holdings.iter().filter_map(mark_of).filter(is_meant) {
                if !marks.contains(mark) {
                    marks.push(mark.clone());
                }
            }
        }
        (None, Verdict::Held { token, .. }) => marks.push(token.clone()),
        (None, _) => {}
    }
    marks
}

fn mark_of(holding: &Holding) -> Option<&Mark> {
    match &holding.state.as_ref().ok()?.key {
        Key::Held { token, .. } => Some(token),
        _ => None,
    }
}

/// Asks on the terminal.
fn is_confirmed(marks: &[Mark], is_released: bool) -> bool {
    let input = std::io::stdin();
    if !input.is_terminal() {
        let line = "redlock: there is no terminal to ask on: give --token-prefix";
        let line = fold(line, columns(std::io::stderr()));
        let _unread = writeln!(std::io::stderr(), "{line}");
        return false;
    }
    let mut output = std::io::stdout();
    let marks: Vec<String> = marks.iter().map(Mark::to_string).collect();
    let question = format!(
        "Delete the keys of {}, which {}? [y/N] ",
        marks.join(", "),
        match is_released {
            true => "only --min-hold keeps",
            false => "may still be at work",
        }
    );
    let question = fold(&question, columns(&output));
    let _unread = output.write_all(question.as_bytes());
    let _unread = output.flush();
    let mut answer = String::new();
    let read = input.lock().read_line(&mut answer);
    read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes")
}

/// Deletes the key if it still has a token with one of these marks. Returns whether it did.
///
/// The node itself compares the first bytes too, not only the digest. Otherwise another node could show the digits that the operator
/// has typed in with the digest of a live holder, and this command would delete the keys of that holder.
///
/// If it is that of the last fenced lease, what its fence record says about it goes as well, as when its holder releases it (see
/// `release_fenced.lua` in `redlock-core`): otherwise an extension would set the key again.
async fn delete(node: Node, key: Vec<u8>, marks: Vec<Mark>) -> Result<bool, String> {
    // The fence record is no key of the script, because a user of plain locks need not have the permission for it.
    const SCRIPT: &str = "
        local function is_meant(token)
          if type(token) ~= 'string' then return false end
          -- Of a lock that is released, and kept for the rest of a min_hold.
          if #token == 21 and string.sub(token, 21) == '~' then token = string.sub(token, 1, 20) end
          local digest = redis.sha1hex(token)
          for i = 2, #ARGV, 2 do
            if string.sub(token, 1, #ARGV[i]) == ARGV[i] and digest == ARGV[i + 1] then return true end
          end
          return false
        end
        local record = redis.pcall('get', ARGV[1])
        local highest, accepted = string.match(type(record) == 'string' and record or '', '^(%d+):%d+:(.*)$')
        if is_meant(accepted) then
          redis.call('set', ARGV[1], string.format('%.0f:0', highest + 1), 'keepttl')
        end
        return is_meant(redis.pcall('get', KEYS[1])) and redis.call('del', KEYS[1]) or 0";

    // The record of a holder whose key is still there stays.
    const OWNER_SCRIPT: &str = "
        local value, token = redis.pcall('get', KEYS[1]), redis.pcall('get', KEYS[2])
        if type(token) == 'string' and #token == 21 then token = string.sub(token, 1, 20) end
        local digest = type(token) == 'string' and redis.sha1hex(token)
        for i = 1, #ARGV do
          if type(value) == 'string' and string.sub(value, 1, 41) == ARGV[i] .. ':' and digest ~= ARGV[i] then
            return redis.call('del', KEYS[1])
          end
        end";

    let mut connection = node.connect().await?;
    let mut questions = redis::pipe();
    let question = questions.cmd("EVAL").arg(SCRIPT).arg(1).arg(&key[..]);
    let fence = [FENCE_KEY_PREFIX.as_bytes(), &key[..]].concat();
    question.arg(fence);
    for mark in &marks {
        question.arg(&mark.prefix).arg(&mark.digest);
    }
    // A script of its own, because the user may not have the permission. The record ends by itself too.
    let record = questions.cmd("EVAL").arg(OWNER_SCRIPT).arg(2);
    record.arg(owner::record_key(&key)).arg(&key[..]);
    for mark in &marks {
        record.arg(&mark.digest);
    }
    let replies = connection.ask(&questions).await?;
    match replies.first() {
        Some(Value::Int(count)) => Ok(*count == 1),
        Some(Value::ServerError(error)) => Err(in_words(error)),
        _ => Err("unexpected reply".to_owned()),
    }
}

fn failed(key: &[u8], why: &str) -> ExitCode {
    failed_code(key, why).into()
}

fn failed_code(key: &[u8], why: &str) -> u8 {
    let line = format!("redlock: {}: {why}", KeyName::new(key));
    let line = fold(&line, columns(std::io::stderr()));
    let _unread = writeln!(std::io::stderr(), "{line}");
    exit::BAD
}
