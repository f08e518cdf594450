//! Checks of the permissions of a user, without side effects.

use redis::Value;
use redlock_core::GUARD_KEY;
use serde_json::{Value as Json, json};

use super::finding::{Finding, bad, ok, warn};
use crate::nodes::{Connection, text};

/// What the user may do.
#[derive(Debug)]
pub(crate) struct Permissions {
    /// `None` if the user may not run ACL WHOAMI, or the server has no users.
    user: Option<String>,
    /// In the order of [`COMMANDS`].
    answers: Vec<Permission>,
    /// In the order of [`KEYS`].
    keys: Vec<Permission>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Permission {
    Granted,
    Denied,
    /// The user may run the command, but not on this key.
    KeyDenied,
    /// The server does not know the command: it is renamed or disabled.
    Unknown,
}

/// A command that clients send, itself or in a script.
struct Command {
    /// The name in an ACL.
    name: &'static str,
    /// A form without effect: it reads an unused key, or it is not a valid command. The server checks permissions before
    /// it checks that.
    harmless: &'static [&'static str],
    needed: Needed,
}

#[derive(PartialEq, Eq)]
enum Needed {
    /// Without it there are no locks.
    Always,
    /// Without it the server cannot tell its identity: only plain locks without the restart guard work.
    ForIdentity,
    /// Without it there are no fenced locks.
    ForFences,
    /// Without it clients send scripts as text.
    ForSpeed,
}

/// An unused key, in the reserved prefix.
const KEY: &str = "redlock:doctor";

const COMMANDS: [Command; 10] = [
    command("set", &["SET", KEY, "", "NX", "XX"], Needed::Always),
    command("get", &["GET", KEY], Needed::Always),
    command("del", &["DEL", KEY], Needed::Always),
    command("pexpire", &["PEXPIRE", KEY, "never"], Needed::Always),
    command("evalsha", &["EVALSHA", NO_SCRIPT, "0"], Needed::Always),
    command("eval", &["EVAL", NO_LUA, "0"], Needed::Always),
    command("info", &["INFO", "server"], Needed::ForIdentity),
    command("script|load", &["SCRIPT", "LOAD", NO_LUA], Needed::ForSpeed),
    command("time", &["TIME"], Needed::ForIdentity),
    command("pttl", &["PTTL", KEY], Needed::ForFences),
];

/// The keys beside the locks, as in an ACL, and a call with each that has no effect. A script call with a key needs the
/// permission to read and to write it.
const KEYS: [(&str, &[&str]); 2] = [
    (GUARD_KEY, &["EVALSHA", NO_SCRIPT, "1", GUARD_KEY]),
    (
        FENCES,
        &["EVALSHA", NO_SCRIPT, "1", "redlock:fence:redlock:doctor"],
    ),
];

const FENCES: &str = "redlock:fence:*";

/// A hash that no script has.
const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";

/// A script that does not compile, so that the server does not store it.
const NO_LUA: &str = "return )";

const fn command(name: &'static str, harmless: &'static [&'static str], needed: Needed) -> Command {
    Command {
        name,
        harmless,
        needed,
    }
}

impl Permissions {
    /// Asks the server with ACL DRYRUN what the user may do. If the user may not run ACL DRYRUN, tries the commands.
    pub(crate) async fn ask(connection: &mut Connection) -> Result<Self, String> {
        let mut who = redis::pipe();
        who.cmd("ACL").arg("WHOAMI");
        let user = connection.ask(&who).await?.first().and_then(text);
        let read = |answers: Vec<Permission>| {
            let (commands, keys) = answers.split_at(COMMANDS.len().min(answers.len()));
            (commands.to_vec(), keys.to_vec())
        };
        if let Some(user) = &user {
            let replies = ask(connection, &["ACL", "DRYRUN", user]).await?;
            if let Some(answers) = replies.iter().map(dry_run).collect() {
                let (answers, keys) = read(answers);
                return Ok(Self {
                    user: Some(user.clone()),
                    answers,
                    keys,
                });
            }
        }
        let replies = ask(connection, &[]).await?;
        let (answers, keys) = read(replies.iter().map(trial).collect());
        Ok(Self {
            user,
            answers,
            keys,
        })
    }

    pub(crate) fn finding(&self) -> Finding {
        let missing = |is_meant: fn(&Needed) -> bool| {
            let missing = self.all(|given| given.is_missing(), is_meant);
            (!missing.is_empty()).then(|| missing.join(", "))
        };
        let denied = self.all(|given| given == Permission::Denied, |_| true);
        let unknown = self.unknown();
        let denied_keys = self.denied_keys();
        let user = self.user.as_deref().unwrap_or("..");
        let mut cures = Vec::new();
        if !denied.is_empty() {
            cures.push(format!("ACL SETUSER {user} +{}", denied.join(" +")));
        }
        if !unknown.is_empty() {
            cures.push(format!(
                "the server does not know {}: rename-command has renamed or disabled it; restore it in the configuration \
                of the server, because no permission helps",
                unknown.join(", ")
            ));
        }
        let cures = cures.join("; ");
        let judgement = if let Some(commands) = missing(|needed| *needed == Needed::Always) {
            bad(format!(
                "the user cannot run {commands}, so it can take no lock: {cures}"
            ))
        } else if let Some(commands) = missing(|needed| *needed == Needed::ForIdentity) {
            bad(format!(
                "the user cannot run {commands}, so it can take no fenced lock, and a plain lock only without the restart \
                 guard (--no-restart-guard): {cures}"
            ))
        } else if denied_keys.contains(&GUARD_KEY) {
            bad(format!(
                "the user may not use the key {GUARD_KEY}, which the restart guard needs too, so it can take no fenced lock, \
                 and a plain lock only without the restart guard (--no-restart-guard): ACL SETUSER {user} \
                 ~{GUARD_KEY}, and for fenced locks ~{FENCES}"
            ))
        } else if let Some(commands) = missing(|needed| *needed == Needed::ForFences) {
            warn(format!(
                "the user cannot run {commands}, which fenced locks need: {cures}"
            ))
        } else if let Some(commands) = missing(|_| true) {
            warn(format!(
                "the user cannot run {commands}, so clients send scripts as text: {cures}"
            ))
        } else if denied_keys.contains(&FENCES) {
            warn(format!(
                "plain locks work on the keys that the user may use; fenced locks also need redlock:fence:KEY for each KEY: ACL \
                 SETUSER {user} ~{FENCES}"
            ))
        } else {
            ok(match &self.user {
                Some(user) => format!("the user {user:?} may run every command that locks need"),
                None => "every command that locks need may be run".to_owned(),
            })
        };
        Finding::new("permissions", judgement, self.json())
    }

    fn json(&self) -> Json {
        json!({
            "user": self.user,
            "denied": self.all(|given| given.is_missing(), |_| true),
            "unknown": self.unknown(),
            "denied_keys": self.denied_keys(),
        })
    }

    fn denied_keys(&self) -> Vec<&'static str> {
        let keys = KEYS.iter().zip(&self.keys);
        keys.filter(|(_, given)| **given == Permission::KeyDenied)
            .map(|((key, _), _)| *key)
            .collect()
    }

    fn unknown(&self) -> Vec<&'static str> {
        self.all(|given| given == Permission::Unknown, |_| true)
    }

    fn all(
        &self,
        is_given: fn(Permission) -> bool,
        is_meant: fn(&Needed) -> bool,
    ) -> Vec<&'static str> {
        let answers = COMMANDS.iter().zip(&self.answers);
        answers
            .filter(|(command, given)| is_given(**given) && is_meant(&command.needed))
            .map(|(command, _)| command.name)
            .collect()
    }
}

impl Permission {
    /// Whether the command cannot be run.
    const fn is_missing(self) -> bool {
        matches!(self, Self::Denied | Self::Unknown)
    }
}

/// Sends the harmless form of each command, and the call with each key, after `prefix`.
async fn ask(connection: &mut Connection, prefix: &[&str]) -> Result<Vec<Value>, String> {
    let mut questions = redis::pipe();
    let commands = COMMANDS.iter().map(|command| command.harmless);
    for harmless in commands.chain(KEYS.iter().map(|(_, call)| *call)) {
        let mut words = prefix.iter().chain(harmless);
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

/// The texts of servers differ, but all of them name the key if it is the reason.
fn refusal(words: &str) -> Permission {
    if words.contains(" key") {
        Permission::KeyDenied
    } else {
        Permission::Denied
    }
}
