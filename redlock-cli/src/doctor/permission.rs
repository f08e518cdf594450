//! What a user may do, asked or tried without side effects.

use redis::{Value, from_redis_value};

use crate::nodes::{Connection, text};

/// Whether a user may run a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Permission {
    Granted,
    Denied,
    /// The user may run the command, but not on this key.
    KeyDenied,
    /// The user may run the command, but not on this channel.
    ChannelDenied,
    /// The user may not use the database of the connection, as on Valkey.
    DatabaseDenied,
    /// The server does not know the command: it is renamed or disabled, or the server is too old.
    Unknown,
}

/// A call without effect.
pub(super) type Call<'a> = &'a [&'a str];

/// A script that does not compile, so that the server does not store it.
pub(super) const NO_LUA: &str = "return )";

/// A hash that no script has.
pub(super) const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// In the reserved prefix.
pub(super) const UNUSED_KEY: &str = "redlock:doctor";

impl Permission {
    /// Whether the command cannot be run.
    pub(super) const fn is_missing(self) -> bool {
        matches!(self, Self::Denied | Self::Unknown)
    }

    /// The name of the user. `None` if the user may not run ACL WHOAMI, or the server has no users.
    pub(super) async fn user(connection: &mut Connection) -> Result<Option<String>, String> {
        let mut who = redis::pipe();
        who.cmd("ACL").arg("WHOAMI");
        Ok(connection.ask(&who).await?.first().and_then(text))
    }

    /// Asks the server with ACL DRYRUN which of these calls `user` may do. If the user may not run ACL DRYRUN, tries the calls.
    pub(super) async fn ask(
        connection: &mut Connection,
        user: Option<&str>,
        calls: &[Call<'_>],
    ) -> Result<Vec<Self>, String> {
        if let Some(answers) = Self::dry_run(connection, user, calls).await? {
            return Ok(answers);
        }
        let replies = send(connection, &[], calls).await?;
        Ok(replies.iter().map(trial).collect())
    }

    /// `None` if the user may not run ACL DRYRUN, or the server does not know it.
    async fn dry_run(
        connection: &mut Connection,
        user: Option<&str>,
        calls: &[Call<'_>],
    ) -> Result<Option<Vec<Self>>, String> {
        let Some(user) = user else {
            return Ok(None);
        };
        let replies = send(connection, &["ACL", "DRYRUN", user], calls).await?;
        Ok(replies.iter().map(dry_run).collect())
    }
}

/// Whether `user` may not do these calls, each with its key. None of them is done, so they may have effects. Servers before Redis 7 cannot
/// tell, and need not: they have no selectors, so a user may run each command with the same keys.
pub(super) async fn denied(
    connection: &mut Connection,
    user: Option<&str>,
    calls: &[Call<'_>],
) -> Result<Vec<bool>, String> {
    if let Some(answers) = Permission::dry_run(connection, user, calls).await? {
        let denied = answers.iter().map(|given| *given != Permission::Granted);
        return Ok(denied.collect());
    }
    let mut question = redis::pipe();
    question.cmd("EVAL").arg(include_str!("denied.lua")).arg(0);
    for call in calls {
        question.arg(call.len()).arg(call);
    }
    let replies = connection.ask(&question).await?;
    // An error if the user may run no script.
    let denied = replies
        .into_iter()
        .next()
        .map(from_redis_value::<Vec<bool>>);
    Ok(denied.and_then(Result::ok).unwrap_or_default())
}

/// Sends each call, after `prefix`.
async fn send(
    connection: &mut Connection,
    prefix: &[&str],
    calls: &[Call<'_>],
) -> Result<Vec<Value>, String> {
    let mut questions = redis::pipe();
    for call in calls {
        let mut words = prefix.iter().chain(*call);
        if let Some(first) = words.next() {
            questions.cmd(first);
        }
        for word in words {
            questions.arg(word);
        }
    }
    connection.ask(&questions).await
}

/// Reads a reply to ACL DRYRUN. Returns `None` if the user may not run it, or the server does not know it.
fn dry_run(reply: &Value) -> Option<Permission> {
    match reply {
        Value::Okay => Some(Permission::Granted),
        Value::ServerError(_) => None,
        reply => Some(refusal(&text(reply)?)),
    }
}

/// Reads the reply to a tried command. An error other than these means that the check of permissions has passed.
fn trial(reply: &Value) -> Permission {
    match reply {
        Value::ServerError(error) if error.code() == "NOPERM" => {
            refusal(error.details().unwrap_or_default())
        }
        // For a subcommand the text is "unknown subcommand", since Redis 7.
        Value::ServerError(error)
            if error
                .details()
                .is_some_and(|words| words.starts_with("unknown ")) =>
        {
            Permission::Unknown
        }
        _ => Permission::Granted,
    }
}

/// The texts of servers differ, but all of them name the key or the channel if it is the reason.
fn refusal(words: &str) -> Permission {
    if words.contains(" access database") {
        Permission::DatabaseDenied
    } else if words.contains(" channel") {
        Permission::ChannelDenied
    } else if words.contains(" key") {
        Permission::KeyDenied
    } else {
        Permission::Denied
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_refusal_is_found_in_the_text_of_any_server() {
        for (words, permission) in [
            // Redis 6.0 and 6.2
            (
                "this user has no permissions to run the 'zadd' command or its subcommand",
                Permission::Denied,
            ),
            (
                "this user has no permissions to access one of the keys used as arguments",
                Permission::KeyDenied,
            ),
            (
                "this user has no permissions to access one of the channels used as arguments",
                Permission::ChannelDenied,
            ),
            // ACL DRYRUN of Redis 7 and Valkey
            (
                "User app has no permissions to run the 'pubsub|numsub' command",
                Permission::Denied,
            ),
            (
                "User app has no permissions to access the 'redlock:queue:redlock:doctor' key",
                Permission::KeyDenied,
            ),
            (
                "User app has no permissions to access the 'redlock:mail:redlock:doctor' channel",
                Permission::ChannelDenied,
            ),
            // Valkey 9.1
            (
                "User app has no permissions to access database SET",
                Permission::DatabaseDenied,
            ),
            (
                "No permissions to access database",
                Permission::DatabaseDenied,
            ),
        ] {
            assert_eq!(refusal(words), permission, "{words}");
        }
    }
}
