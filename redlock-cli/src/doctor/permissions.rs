//! What the user of a URL may do, found out without doing it.

use redis::Value;
use serde_json::{Value as Json, json};

use super::finding::{Finding, bad, ok, warn};
use crate::nodes::{Connection, text};

/// What the user may do.
#[derive(Debug)]
pub(crate) struct Permissions {
    /// None when the user may not ask who it is, or the server knows no users.
    user: Option<String>,
    /// In the order of [`COMMANDS`].
    answers: Vec<Permission>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permission {
    Granted,
    Denied,
    /// The command, but not on this key.
    KeyDenied,
}

/// A command that clients send, itself or in a script.
struct Command {
    /// As an ACL grants it.
    name: &'static str,
    /// A form that does nothing: the key is nobody's, and what could do something is no valid command.
    /// Permissions are checked before that is found out.
    harmless: &'static [&'static str],
    needed: Needed,
}

#[derive(PartialEq, Eq)]
enum Needed {
    /// Without it there are no locks.
    Always,
    /// Without it there are no fenced locks.
    ForFences,
    /// Without it there is a way round.
    Hardly,
}

/// Nobody's key, among the names that fenced locks use.
const KEY: &str = "redlock:doctor";

const COMMANDS: [Command; 10] = [
    command("set", &["SET", KEY, "", "NX", "XX"], Needed::Always),
    command("get", &["GET", KEY], Needed::Always),
    command("del", &["DEL", KEY], Needed::Always),
    command("pexpire", &["PEXPIRE", KEY, "never"], Needed::Always),
    command("evalsha", &["EVALSHA", NO_SCRIPT, "0"], Needed::Always),
    command("eval", &["EVAL", NO_LUA, "0"], Needed::Always),
    command("info", &["INFO", "server"], Needed::Always),
    command("script|load", &["SCRIPT", "LOAD", NO_LUA], Needed::Hardly),
    command("time", &["TIME"], Needed::ForFences),
    command("pttl", &["PTTL", KEY], Needed::ForFences),
];

/// The hash of no script.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// A script that does not compile: the server does not keep it.
const NO_LUA: &str = "return )";

const fn command(name: &'static str, harmless: &'static [&'static str], needed: Needed) -> Command {
    Command {
        name,
        harmless,
        needed,
    }
}

impl Permissions {
    /// Asks the server what the user may do, and tries it where the user may not ask.
    pub(crate) async fn ask(connection: &mut Connection) -> Result<Self, String> {
        let mut who = redis::pipe();
        who.cmd("ACL").arg("WHOAMI");
        let user = connection.ask(&who).await?.first().and_then(text);
        if let Some(user) = &user {
            let replies = ask(connection, &["ACL", "DRYRUN", user]).await?;
            if let Some(answers) = replies.iter().map(dry_run).collect() {
                return Ok(Self {
                    user: Some(user.clone()),
                    answers,
                });
            }
        }
        let replies = ask(connection, &[]).await?;
        Ok(Self {
            user,
            answers: replies.iter().map(trial).collect(),
        })
    }

    pub(crate) fn finding(&self) -> Finding {
        let user = self.user.as_deref().unwrap_or("..");
        let denied = self.all(Permission::Denied, |_| true);
        let grant = |names: &[&str]| format!("ACL SETUSER {user} +{}", names.join(" +"));
        let no_locks = self.all(Permission::Denied, |needed| *needed == Needed::Always);
        let no_fences = self.all(Permission::Denied, |needed| *needed == Needed::ForFences);
        let judgement = if !no_locks.is_empty() {
            bad(format!(
                "the user may not run {}, and cannot take locks: {}",
                no_locks.join(", "),
                grant(&denied)
            ))
        } else if !no_fences.is_empty() {
            warn(format!(
                "the user may not run {}, which fenced locks need: {}",
                no_fences.join(", "),
                grant(&denied)
            ))
        } else if !denied.is_empty() {
            warn(format!(
                "the user may not run {}, so that scripts are sent as text: {}",
                denied.join(", "),
                grant(&denied)
            ))
        } else if !self.all(Permission::KeyDenied, |_| true).is_empty() {
            warn(format!(
                "all commands, but not the keys of fenced locks: ACL SETUSER {user} ~redlock:*"
            ))
        } else {
            ok(match &self.user {
                Some(user) => format!("the user {user:?} may run all that locks need"),
                None => "all that locks need may be run".to_owned(),
            })
        };
        Finding::new("permissions", judgement, self.json())
    }

    fn json(&self) -> Json {
        json!({
            "user": self.user,
            "denied": self.all(Permission::Denied, |_| true),
            "denied_keys": self.all(Permission::KeyDenied, |_| true),
        })
    }

    fn all(&self, answer: Permission, is_meant: impl Fn(&Needed) -> bool) -> Vec<&'static str> {
        let answers = COMMANDS.iter().zip(&self.answers);
        answers
            .filter(|(command, given)| **given == answer && is_meant(&command.needed))
            .map(|(command, _)| command.name)
            .collect()
    }
}

/// Sends the harmless form of each command behind `prefix`.
async fn ask(connection: &mut Connection, prefix: &[&str]) -> Result<Vec<Value>, String> {
    let mut questions = redis::pipe();
    for command in &COMMANDS {
        let mut words = prefix.iter().chain(command.harmless);
        if let Some(first) = words.next() {
            questions.cmd(first);
        }
        for word in words {
            questions.arg(word);
        }
    }
    connection.ask(&questions).await
}

/// What ACL DRYRUN says; none when the user may not ask, or the server knows no such question.
fn dry_run(reply: &Value) -> Option<Permission> {
    match reply {
        Value::Okay => Some(Permission::Granted),
        Value::ServerError(_) => None,
        reply => Some(refusal(&text(reply)?)),
    }
}

/// What came of a command. An error of any other kind comes after permissions are checked.
fn trial(reply: &Value) -> Permission {
    match reply {
        Value::ServerError(error) if error.code() == "NOPERM" => {
            refusal(error.details().unwrap_or_default())
        }
        _ => Permission::Granted,
    }
}

/// Servers say it in different words, but they say what it is about.
fn refusal(words: &str) -> Permission {
    if words.contains(" key") {
        Permission::KeyDenied
    } else {
        Permission::Denied
    }
}
