//! Checks of the permissions of a user, without side effects.

use redlock_core::{FENCE_KEY_PREFIX, GUARD_KEY};
use serde_json::{Value as Json, json};

use super::exclusion::{Exclusion, Exclusions};
use super::finding::{Finding, bad, ok, warn};
use super::introduction;
use super::permission::{Call, NO_LUA, NO_SCRIPT, Permission, UNUSED_KEY as KEY};
use crate::nodes::{Connection, user_to_grant};
use crate::owner;

/// What the user may do.
#[derive(Debug)]
pub(crate) struct Permissions {
    /// `None` if the user may not run ACL WHOAMI, or the server has no users.
    user: Option<String>,
    /// In the order of [`COMMANDS`].
    answers: Vec<Permission>,
    /// In the order of [`KEYS`].
    keys: Vec<Permission>,
    exclusions: Exclusions,
    /// Why clients give the node no vote, if it does not answer what they ask first.
    no_introduction: Option<String>,
}

/// Whether a node has refused the keys, whoever asks for them, because it is one of a Redis Cluster.
fn is_of_cluster(error: &str) -> bool {
    let code = error.split(' ').next();
    code.is_some_and(|code| ["CLUSTERDOWN", "MOVED", "ASK", "CROSSSLOT"].contains(&code))
}

/// A command that clients send, itself or in a script.
struct Command {
    /// The name in an ACL.
    name: &'static str,
    /// A form without effect: it reads an unused key, or it is not a valid command. The server checks permissions before
    /// it checks that.
    harmless: Call<'static>,
    needed: Needed,
}

#[derive(PartialEq, Eq)]
enum Needed {
    /// Without it there are no locks.
    Always,
    /// Without it a plain lock can be taken, but not be extended, or not be released.
    ToKeep,
    /// Without it the server cannot tell its identity: only plain locks without the restart guard work.
    ForIdentity,
    /// Without it there are no fenced locks.
    ForFences,
    /// Without it clients send scripts as text.
    ForSpeed,
}

const COMMANDS: [Command; 10] = [
    command("set", &["SET", KEY, "", "NX", "XX"], Needed::Always),
    command("get", &["GET", KEY], Needed::ToKeep),
    command("del", &["DEL", KEY], Needed::ToKeep),
    command("pexpire", &["PEXPIRE", KEY, "never"], Needed::ToKeep),
    command("evalsha", &["EVALSHA", NO_SCRIPT, "0"], Needed::ToKeep),
    command("eval", &["EVAL", NO_LUA, "0"], Needed::Always),
    command("info", &["INFO", "server"], Needed::ForIdentity),
    command("script|load", &["SCRIPT", "LOAD", NO_LUA], Needed::ForSpeed),
    command("time", &["TIME"], Needed::ForIdentity),
    command("pttl", &["PTTL", KEY], Needed::ForFences),
];

/// The keys beside the locks, as in an ACL.
const KEYS: [&str; 3] = [GUARD_KEY, FENCES, OWNERS];

const FENCES: &str = "redlock:fence:*";
const OWNERS: &str = "redlock:owner:*";

const fn command(name: &'static str, harmless: Call<'static>, needed: Needed) -> Command {
    Command {
        name,
        harmless,
        needed,
    }
}

impl Permissions {
    /// Asks the server with ACL DRYRUN what the user may do. If the user may not run ACL DRYRUN, tries the commands.
    /// With the keys of the lock `lock`, or else with those of no lock.
    pub(crate) async fn ask(
        connection: &mut Connection,
        lock: Option<&str>,
    ) -> Result<Self, String> {
        let user = Permission::user(connection).await?;
        let fence = FENCE_KEY_PREFIX.to_owned() + lock.unwrap_or(KEY);
        let owner = owner::KEY_PREFIX.to_owned() + lock.unwrap_or(KEY);
        // A script call with a key needs the permission to read and to write it.
        let script = |key| vec!["EVALSHA", NO_SCRIPT, "1", key];
        let with_fence = match lock {
            // As a fenced acquire does: one selector must allow all keys of a call.
            Some(lock) => vec!["EVALSHA", NO_SCRIPT, "3", lock, &fence, GUARD_KEY],
            None => script(&fence),
        };
        let with_keys = [script(GUARD_KEY), with_fence, script(&owner)];
        let mut with_lock: Vec<_> = lock.into_iter().map(script).collect();
        // The text of the script, for a server that lacks it.
        with_lock.extend(lock.map(|lock| vec!["EVAL", NO_LUA, "3", lock, &fence, GUARD_KEY]));
        let calls = COMMANDS.iter().map(|command| command.harmless);
        let with_keys = with_keys.iter().chain(&with_lock).map(Vec::as_slice);
        let calls: Vec<Call<'_>> = calls.chain(with_keys).collect();
        let answers = Permission::ask(connection, user.as_deref(), &calls).await?;
        let (commands, keys) = answers.split_at(COMMANDS.len().min(answers.len()));
        let (keys, with_lock) = keys.split_at(KEYS.len().min(keys.len()));
        let mut keys = keys.to_vec();
        if let [_, as_text] = with_lock
            && let [_, fence, _] = &mut *keys
            && *fence == Permission::Granted
        {
            *fence = *as_text;
        }
        let may_run = |name: &str| {
            let mut answers = COMMANDS.iter().zip(commands);
            answers.any(|(command, given)| command.name == name && !given.is_missing())
        };
        let mut exclusions = Exclusions::ask(connection, user.as_deref(), lock, may_run).await?;
        if let Some(lock) = &exclusions.lock
            && lock.commands.is_empty()
        {
            // A server without selectors has answered this call only.
            exclusions.is_lock_denied |= with_lock.first() == Some(&Permission::KeyDenied);
        }
        let beside = [
            &mut exclusions.guard,
            &mut exclusions.fence,
            &mut exclusions.owner,
        ];
        for (given, excluded) in keys.iter().zip(beside) {
            if *given == Permission::KeyDenied {
                // The key is missing, not the commands.
                excluded.commands.clear();
            }
        }
        Ok(Self {
            answers: commands.to_vec(),
            keys,
            user,
            exclusions,
            no_introduction: None,
        })
    }

    /// Asks what clients ask first. Without an answer, other facts are known.
    pub(crate) async fn introduce(&mut self, connection: &mut Connection) {
        let refusal = introduction::ask(connection).await;
        self.no_introduction = refusal.unwrap_or_else(Some);
    }

    pub(crate) fn finding(&self) -> Finding {
        let missing = |is_meant| self.missing(is_meant);
        let denied = self.all(|given| given == Permission::Denied, |_| true);
        let unknown = self.unknown();
        let denied_keys = self.denied_keys();
        let user = user_to_grant(self.user.as_deref());
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
        let judgement = if self.answers.contains(&Permission::DatabaseDenied) {
            bad(
                "the user may not use the database that the URL of the node names, which is 0 if it names none: name one that the user \
                 may use",
            )
        } else if let Some(commands) = missing(|needed| *needed == Needed::Always) {
            bad(format!(
                "the user cannot run {commands}, so it can take no lock: {cures}"
            ))
        } else if let Some(commands) = missing(|needed| *needed == Needed::ToKeep) {
            let cannot = match &*commands {
                "pexpire" => "extend",
                _ => "release or extend",
            };
            bad(format!(
                "the user cannot run {commands}, so it can take a plain lock, but cannot {cannot} it: {cures}"
            ))
        } else if let Some(commands) = missing(|needed| *needed == Needed::ForIdentity) {
            bad(format!(
                "the user cannot run {commands}, so it can take no fenced lock, and a plain lock only without the restart \
                 guard (--no-restart-guard): {cures}"
            ))
        } else if let Some(why) = self.exclusions.without_lock(self.user.as_deref()) {
            bad(why)
        } else if denied_keys.contains(&GUARD_KEY) {
            bad(format!(
                "the user may not use the key {GUARD_KEY}, which the restart guard needs too, so it can take no fenced lock, \
                 and a plain lock only without the restart guard (--no-restart-guard): ACL SETUSER {user} \
                 ~{GUARD_KEY}, and for fenced locks ~{FENCES}; {}",
                self.exclusions.in_one_selector(self.user.as_deref())
            ))
        } else if let Some(why) = self
            .no_introduction
            .as_ref()
            .filter(|why| is_of_cluster(why))
        {
            bad(format!(
                "it does not answer the question that clients ask first ({why}), because it is a node of a Redis Cluster: no client can \
                 take a lock there"
            ))
        } else if let Some(why) = &self.no_introduction {
            bad(format!(
                "it does not answer the question that clients ask first ({why}), so it can grant no fenced lock, and a plain lock \
                 only without the restart guard (--no-restart-guard): ACL SETUSER {user} +eval +info +time ~{GUARD_KEY}"
            ))
        } else if let Some(lacks) = self.lacks(&cures) {
            warn(lacks)
        } else {
            ok(match &self.user {
                Some(user) => format!("the user {user:?} may run every command that locks need"),
                None => "every command that locks need may be run".to_owned(),
            })
        };
        Finding::new("permissions", judgement, self.json())
    }

    /// All that is missing, and not needed for a plain lock.
    fn lacks(&self, cures: &str) -> Option<String> {
        let user = user_to_grant(self.user.as_deref());
        let is_denied = |key| self.denied_keys().contains(&key);
        let for_fences = self
            .missing(|needed| *needed == Needed::ForFences)
            .map(|commands| format!("the user cannot run {commands}, which fenced locks need"));
        let for_speed = self
            .missing(|needed| *needed == Needed::ForSpeed)
            .map(|commands| {
                format!("the user cannot run {commands}, so clients send scripts as text")
            });
        let commands = [for_fences, for_speed].into_iter().flatten();
        let commands = commands.collect::<Vec<_>>().join(", and ");
        let commands = (!commands.is_empty()).then(|| format!("{commands}: {cures}"));
        let fences = is_denied(FENCES).then(|| match &self.exclusions.lock {
            Some(Exclusion { key, pattern, .. }) => format!(
                "the user may take a plain lock {key}; a fenced one also needs redlock:fence:{key}, and one selector that allows all its \
                 keys: ACL SETUSER {user} +get +set +pttl ~{FENCES} ~{GUARD_KEY} ~{pattern}"
            ),
            None => format!(
                "plain locks work on the keys that the user may use; fenced locks also need redlock:fence:KEY for each KEY: ACL \
                 SETUSER {user} ~{FENCES}"
            ),
        });
        let owners = is_denied(OWNERS).then(|| {
            format!(
                "locks work, but redlock cannot show who holds the lock KEY unless the user may also use redlock:owner:KEY: ACL \
                 SETUSER {user} ~{OWNERS}"
            )
        });
        let lacks = [commands, fences, owners].into_iter().flatten();
        let in_one = is_denied(FENCES) && self.exclusions.lock.is_some();
        let in_one = in_one.then(|| self.exclusions.in_one_selector(self.user.as_deref()));
        let lacks: Vec<_> = lacks
            .chain(self.exclusions.lacks(self.user.as_deref()))
            .chain(in_one)
            .collect();
        (!lacks.is_empty()).then(|| lacks.join("; "))
    }

    fn json(&self) -> Json {
        json!({
            "user": self.user,
            "denied": self.all(|given| given.is_missing(), |_| true),
            "unknown": self.unknown(),
            "denied_keys": self.denied_keys(),
            "denied_with": self.exclusions.json(),
        })
    }

    fn denied_keys(&self) -> Vec<&'static str> {
        let keys = KEYS.iter().zip(&self.keys);
        let denied = keys.filter(|(_, given)| **given == Permission::KeyDenied);
        denied.map(|(key, _)| *key).collect()
    }

    /// The names of the commands that cannot be run, of those that are meant.
    fn missing(&self, is_meant: fn(&Needed) -> bool) -> Option<String> {
        let missing = self.all(|given| given.is_missing(), is_meant);
        (!missing.is_empty()).then(|| missing.join(", "))
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
