//! Checks of the permissions for the waiting line, without side effects.

use redlock_core::QUEUE_KEY_PREFIX;
use redlock_std::printable;
use serde_json::{Value as Json, json};

use super::finding::{Finding, ok, warn};
use super::permission::{Call, NO_SCRIPT, Permission};
use crate::nodes::{Connection, user_to_grant};

/// What the user may do of what the line needs.
#[derive(Debug)]
pub(crate) struct Line {
    user: Option<String>,
    /// In the order of [`COMMANDS`].
    commands: Vec<Permission>,
    /// The lock of `--key`.
    lock: Option<String>,
    /// For its line, or for those of all locks.
    keys: Permission,
}

/// A command that clients in the line send, itself or in a script.
struct Command {
    /// The name in an ACL.
    name: &'static str,
    /// A form without effect: it reads an unused key, uses an unused channel, or is not a valid command.
    harmless: Call<'static>,
    purpose: Purpose,
}

/// What a client needs a command for.
#[derive(PartialEq, Eq)]
enum Purpose {
    /// To stand in the line.
    Stand,
    /// To be called, and to call the next client.
    Call,
}

/// The line of a key that no lock may have, and a mailbox that no client can have.
const QUEUE: &str = "redlock:queue:redlock:doctor";
const MAIL: &str = "redlock:mail:redlock:doctor";

/// All of them, as in an ACL.
const QUEUES: &str = "redlock:queue:*";
const MAILS: &str = "redlock:mail:*";

const COMMANDS: [Command; 12] = [
    command("time", &["TIME"], Purpose::Stand),
    command("exists", &["EXISTS", QUEUE], Purpose::Stand),
    command("pttl", &["PTTL", QUEUE], Purpose::Stand),
    command("zadd", &["ZADD", QUEUE, "never", ""], Purpose::Stand),
    command("zcard", &["ZCARD", QUEUE], Purpose::Stand),
    command("zrange", &["ZRANGE", QUEUE, "0", "0"], Purpose::Stand),
    command("zrank", &["ZRANK", QUEUE, ""], Purpose::Stand),
    command("zrem", &["ZREM", QUEUE, ""], Purpose::Stand),
    command("zscore", &["ZSCORE", QUEUE, ""], Purpose::Stand),
    command("pubsub|numsub", &["PUBSUB", "NUMSUB"], Purpose::Call),
    command("publish", &["PUBLISH", MAIL, ""], Purpose::Call),
    // The last one: a connection with a subscription takes no other commands.
    command("subscribe", &["SUBSCRIBE", MAIL], Purpose::Call),
];

const fn command(name: &'static str, harmless: Call<'static>, purpose: Purpose) -> Command {
    Command {
        name,
        harmless,
        purpose,
    }
}

impl Line {
    /// Asks, or tries, what the user may do, with the line of the lock `key` or else with that of no lock. After that, the connection may have a subscription.
    pub(crate) async fn ask(
        connection: &mut Connection,
        key: Option<&str>,
    ) -> Result<Self, String> {
        let user = Permission::user(connection).await?;
        // A script call with a key needs the permission to read and to write it.
        let queue = key.map_or_else(
            || QUEUE.to_owned(),
            |key| format!("{QUEUE_KEY_PREFIX}{key}"),
        );
        let keys = match key {
            // As a script of the line does: one selector must allow all keys of a call.
            Some(key) => vec!["EVALSHA", NO_SCRIPT, "2", key, &queue],
            None => vec!["EVALSHA", NO_SCRIPT, "1", &queue],
        };
        let mut calls: Vec<Call<'_>> = vec![&keys];
        calls.extend(COMMANDS.iter().map(|command| command.harmless));
        let answers = Permission::ask(connection, user.as_deref(), &calls).await?;
        let (keys, commands) = answers.split_first().ok_or("no answer")?;
        Ok(Self {
            user,
            lock: key.map(printable),
            commands: commands.to_vec(),
            keys: *keys,
        })
    }

    /// Whether clients that wait are called. Without that they wait longer, but every promise of the lock holds.
    pub(crate) fn finding(seen: &Result<Self, String>) -> Finding {
        match seen {
            Ok(line) => line.judge(),
            Err(why) => Finding::new(
                "line",
                warn(format!(
                    "unknown whether clients that wait are called: {why}"
                )),
                json!({}),
            ),
        }
    }

    fn judge(&self) -> Finding {
        let judgement = if self.lacks(Purpose::Stand) {
            warn(
                self.message(
                    "this node keeps no line for its clients, and they poll while they wait",
                ),
            )
        } else if !self.denied_keys().is_empty() {
            // The user may have the keys of the lines of some locks.
            warn(self.message(
                "this node keeps no line for the lock KEY unless the user may use redlock:queue:KEY, and clients poll while they \
                 wait",
            ))
        } else if self.lacks(Purpose::Call) {
            warn(self.message(
                "this node does not call its clients, and they look at the lock again and again while they wait",
            ))
        } else {
            ok("clients that wait stand in a line, and are called when it is their turn")
        };
        Finding::new("line", judgement, self.json())
    }

    /// What is missing, what that costs, and what to do.
    fn message(&self, cost: &str) -> String {
        let (missing, unknown) = (self.missing(), self.unknown());
        let denied = self.all(|given| given == Permission::Denied);
        let (mut faults, mut rules, mut cures) = (Vec::new(), String::new(), Vec::new());
        if !missing.is_empty() {
            faults.push(format!("cannot run {}", missing.join(", ")));
        }
        for name in &denied {
            rules += &format!(" +{name}");
        }
        for keys in self.denied_keys() {
            match &self.lock {
                // One selector must allow both.
                Some(lock) => {
                    faults.push(format!("may not use the keys {keys} together with {lock}"));
                    rules += &format!(" ~{keys} ~{lock}");
                }
                None => {
                    faults.push(format!("may not use the keys {keys}"));
                    rules += &format!(" ~{keys}");
                }
            }
        }
        for channels in self.denied_channels() {
            faults.push(format!("may not use the channels {channels}"));
            rules += &format!(" &{channels}");
        }
        // The server checks the command before the channel. It refuses to add a channel to all channels.
        if ["publish", "subscribe"]
            .iter()
            .all(|name| denied.contains(name))
        {
            rules += &format!(", and &{MAILS} unless the user has all channels");
        }
        if !rules.is_empty() {
            let user = user_to_grant(self.user.as_deref());
            cures.push(format!("ACL SETUSER {user}{rules}"));
        }
        if !unknown.is_empty() {
            cures.push(format!(
                "the server does not know {}: it is too old, or rename-command has renamed or disabled it",
                unknown.join(", ")
            ));
        }
        format!(
            "the user {}, so {cost}: {}",
            faults.join(" and "),
            cures.join("; ")
        )
    }

    fn json(&self) -> Json {
        json!({
            "user": self.user,
            "denied": self.missing(),
            "unknown": self.unknown(),
            "denied_keys": self.denied_keys(),
            "denied_channels": self.denied_channels(),
        })
    }

    fn lacks(&self, purpose: Purpose) -> bool {
        let commands = COMMANDS.iter().zip(&self.commands);
        let mut commands = commands.filter(|(command, _)| command.purpose == purpose);
        commands.any(|(_, given)| given.is_missing() || *given == Permission::ChannelDenied)
    }

    fn missing(&self) -> Vec<&'static str> {
        self.all(Permission::is_missing)
    }

    fn unknown(&self) -> Vec<&'static str> {
        self.all(|given| given == Permission::Unknown)
    }

    fn denied_keys(&self) -> Vec<&'static str> {
        let is_denied = self.keys == Permission::KeyDenied;
        is_denied.then_some(QUEUES).into_iter().collect()
    }

    fn denied_channels(&self) -> Vec<&'static str> {
        let is_denied = self.commands.contains(&Permission::ChannelDenied);
        is_denied.then_some(MAILS).into_iter().collect()
    }

    /// The names of the commands that are given like that.
    fn all(&self, is_meant: fn(Permission) -> bool) -> Vec<&'static str> {
        let commands = COMMANDS.iter().zip(&self.commands);
        let meant = commands.filter(|(_, given)| is_meant(**given));
        meant.map(|(command, _)| command.name).collect()
    }
}
