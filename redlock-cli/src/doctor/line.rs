//! Checks of the permissions for the waiting line, without side effects.

use redlock_core::QUEUE_KEY_PREFIX;
use serde_json::{Value as Json, json};

use super::exclusion::Exclusion;
use super::finding::{Finding, ok, warn};
use super::permission::{Call, NO_SCRIPT, Permission, UNUSED_KEY as LOCK};
use crate::nodes::{Connection, user_to_grant};

/// What the user may do of what the line needs.
#[derive(Debug)]
pub(crate) struct Line {
    user: Option<String>,
    /// In the order of [`COMMANDS`].
    commands: Vec<Permission>,
    /// For the line of the lock of `--key`, or for those of all locks.
    keys: Permission,
    /// What the user may run, but not with the key of this line.
    queue: Exclusion,
    /// And not with the key of the lock, if there is one.
    lock: Option<Exclusion>,
}

/// A command that clients in the line send, itself or in a script.
struct Command {
    /// The name in an ACL.
    name: &'static str,
    /// A form without effect: it reads no more than a number, uses an unused member or channel, or is not a valid command. For
    /// [`QUEUE`] and [`LOCK`], the keys of the lock are put in.
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

const COMMANDS: [Command; 14] = [
    command("time", &["TIME"], Purpose::Stand),
    command("exists", &["EXISTS", LOCK], Purpose::Stand),
    command("exists", &["EXISTS", QUEUE], Purpose::Stand),
    command("pexpire", &["PEXPIRE", QUEUE, "never"], Purpose::Stand),
    command("pttl", &["PTTL", QUEUE], Purpose::Stand),
    command("zadd", &["ZADD", QUEUE, "never", ""], Purpose::Stand),
    command("zcard", &["ZCARD", QUEUE], Purpose::Stand),
    // None of them: a member may be long.
    command("zrange", &["ZRANGE", QUEUE, "1", "0"], Purpose::Stand),
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
        let calls = COMMANDS.iter().map(|command| {
            let words = command.harmless.iter();
            let words = words.map(|word| match *word {
                QUEUE => &*queue,
                LOCK => key.unwrap_or(LOCK),
                word => word,
            });
            words.collect()
        });
        let calls: Vec<Vec<&str>> = core::iter::once(keys).chain(calls).collect();
        let calls: Vec<Call<'_>> = calls.iter().map(Vec::as_slice).collect();
        let answers = Permission::ask(connection, user.as_deref(), &calls).await?;
        let (keys, commands) = answers.split_first().ok_or("no answer")?;
        let excluded = |key| {
            let commands = COMMANDS.iter().zip(commands);
            let excluded = commands.filter(|(command, given)| {
                // If the user may not use the key at all, this is told.
                *keys == Permission::Granted
                    && **given == Permission::KeyDenied
                    && command.harmless.contains(&key)
            });
            excluded.map(|(command, _)| command.name).collect()
        };
        Ok(Self {
            commands: commands.to_vec(),
            keys: *keys,
            queue: Exclusion::beside(key, QUEUE_KEY_PREFIX, excluded(QUEUE)),
            lock: key.map(|key| Exclusion::with(key, excluded(LOCK))),
            user,
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
        } else if self.lock.is_some() && self.excluded().next().is_some() {
            warn(self.message(
                "this node keeps no line for this lock, and its clients poll while they wait",
            ))
        } else if !self.denied_keys().is_empty() || self.excluded().next().is_some() {
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
                Some(Exclusion { key, pattern, .. }) => {
                    faults.push(format!("may not use the keys {keys} together with {key}"));
                    rules += &format!(" ~{keys} ~{pattern}");
                }
                None => {
                    faults.push(format!("may not use the keys {keys}"));
                    rules += &format!(" ~{keys}");
                }
            }
        }
        for excluded in self.excluded() {
            faults.extend(excluded.fault().map(|fault| format!("may not run {fault}")));
            rules += &format!(" {}", excluded.rule());
        }
        for channels in self.denied_channels() {
            faults.push(format!("may not use the channels {channels}"));
            rules += &format!(" &{channels}");
        }
        let user = user_to_grant(self.user.as_deref());
        if !rules.is_empty() {
            cures.push(format!("ACL SETUSER {user}{rules}"));
        }
        // The server checks the command before the channel. It refuses to add a channel to all channels.
        if ["publish", "subscribe"]
            .iter()
            .all(|name| denied.contains(name))
        {
            cures.push(format!(
                "unless the user has all channels: ACL SETUSER {user} &{MAILS}"
            ));
        }
        if !self.denied_channels().is_empty() {
            cures.push(format!(
                "if the user has selectors: ACL SETUSER {user} (+publish +subscribe &{MAILS})"
            ));
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
        let missing = self.missing().into_iter();
        let excluded = self.excluded().flat_map(|excluded| &excluded.commands);
        json!({
            "user": self.user,
            "denied": missing.chain(excluded.copied()).collect::<Vec<_>>(),
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

    /// What the user may run with other keys only.
    fn excluded(&self) -> impl Iterator<Item = &Exclusion> {
        let all = [&self.queue].into_iter().chain(&self.lock);
        all.filter(|excluded| !excluded.commands.is_empty())
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
        let mut names: Vec<_> = meant.map(|(command, _)| command.name).collect();
        // Of the lock, and of its line.
        names.dedup();
        names
    }
}
