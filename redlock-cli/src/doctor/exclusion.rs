//! Commands that a user may run, but not with a key that clients use: a selector allows them with other keys only.

use redlock_core::{FENCE_KEY_PREFIX, GUARD_KEY};
use redlock_std::printable;
use serde_json::{Value as Json, json};

use super::permission::{NO_LUA, NO_SCRIPT, UNUSED_KEY, denied};
use crate::nodes::{Connection, key_to_grant, user_to_grant};
use crate::owner;

/// The commands that a user may run, but not with this key.
#[derive(Debug)]
pub(super) struct Exclusion {
    /// Printable.
    pub(super) key: String,
    /// As in an ACL.
    pub(super) pattern: String,
    /// Empty if nothing is excluded.
    pub(super) commands: Vec<&'static str>,
    /// Whether the key stands for those of all locks.
    is_of_all: bool,
}

impl Exclusion {
    pub(super) fn with(key: &str, commands: Vec<&'static str>) -> Self {
        Self {
            key: printable(key),
            pattern: key_to_grant(key),
            commands,
            is_of_all: false,
        }
    }

    /// With `prefix` before the key of this lock, or else of all locks.
    pub(super) fn beside(lock: Option<&str>, prefix: &str, commands: Vec<&'static str>) -> Self {
        match lock {
            Some(lock) => Self::with(&format!("{prefix}{lock}"), commands),
            None => Self {
                key: format!("{prefix}*"),
                pattern: format!("{prefix}*"),
                commands,
                is_of_all: true,
            },
        }
    }

    /// What the user may not run. `None` if nothing is excluded.
    pub(super) fn fault(&self) -> Option<String> {
        let key = if self.is_of_all { "keys" } else { "key" };
        let commands = self.commands.join(", ");
        (!commands.is_empty()).then(|| format!("{commands} with the {key} {}", self.key))
    }

    /// The rule of an ACL that allows it. It is a selector, because Redis refuses to add a key to a user who has all keys.
    pub(super) fn rule(&self) -> String {
        format!("(+{} ~{})", self.commands.join(" +"), self.pattern)
    }
}

/// What the user may not run with each key that scripts use.
#[derive(Debug)]
pub(super) struct Exclusions {
    /// That of the lock that was asked about.
    pub(super) lock: Option<Exclusion>,
    /// Whether the user may run nothing with its key.
    pub(super) is_lock_denied: bool,
    pub(super) guard: Exclusion,
    pub(super) fence: Exclusion,
    pub(super) owner: Exclusion,
}

/// The commands that scripts run with the key of a lock, the guard record, a fence record and an owner record.
const COMMANDS: [&[&str]; 4] = [
    &["evalsha", "eval", "set", "get", "del", "pexpire", "pttl"],
    &["evalsha", "eval", "get", "set", "del"],
    &["evalsha", "eval", "get", "set", "pttl"],
    &["evalsha", "eval", "get", "set", "del"],
];

impl Exclusions {
    /// Asks which of the commands that the user `may_run` with some key it may not run with the keys of this lock, or else of no lock.
    /// On a server without selectors, none.
    pub(super) async fn ask(
        connection: &mut Connection,
        user: Option<&str>,
        lock: Option<&str>,
        may_run: impl Fn(&str) -> bool,
    ) -> Result<Self, String> {
        let key = lock.unwrap_or(UNUSED_KEY);
        let (fence, owner) = (
            FENCE_KEY_PREFIX.to_owned() + key,
            owner::KEY_PREFIX.to_owned() + key,
        );
        let keys = [key, GUARD_KEY, &fence, &owner];
        let calls = keys.iter().zip(COMMANDS).flat_map(|(key, commands)| {
            let call = |command: &&'static str| match *command {
                "evalsha" => vec![*command, NO_SCRIPT, "1", key],
                "eval" => vec![*command, NO_LUA, "1", key],
                "set" | "pexpire" => vec![*command, key, ""],
                _ => vec![*command, key],
            };
            commands.iter().map(call)
        });
        let calls: Vec<Vec<&str>> = calls.collect();
        let calls: Vec<&[&str]> = calls.iter().map(Vec::as_slice).collect();
        let denied = denied(connection, user, &calls).await?;
        let of_lock = denied.get(..COMMANDS[0].len());
        let is_lock_denied = of_lock.is_some_and(|denied| denied.iter().all(|denied| *denied));
        let mut denied = denied.into_iter();
        let [on_lock, on_guard, on_fence, on_owner] = COMMANDS.map(|commands| {
            let commands = commands.iter().zip(denied.by_ref());
            let commands = commands.filter(|(command, denied)| *denied && may_run(command));
            commands.map(|(command, _)| *command).collect()
        });
        Ok(Self {
            lock: lock.map(|lock| Exclusion::with(lock, on_lock)),
            is_lock_denied,
            guard: Exclusion::with(GUARD_KEY, on_guard),
            fence: Exclusion::beside(lock, FENCE_KEY_PREFIX, on_fence),
            owner: Exclusion::beside(lock, owner::KEY_PREFIX, on_owner),
        })
    }

    /// What the user cannot do with the lock.
    pub(super) fn without_lock(&self, user: Option<&str>) -> Option<String> {
        let lock = self.lock.as_ref()?;
        if self.is_lock_denied {
            // Beside the other keys of the user, because one selector must allow all keys of a script. The commands may be those of
            // another selector.
            let commands: Vec<_> = lock
                .commands
                .iter()
                .map(|name| format!("+{name} "))
                .collect();
            return Some(format!(
                "the user may not use the key {}, so it cannot take this lock: ACL SETUSER {} {}~{}",
                lock.key,
                user_to_grant(user),
                commands.concat(),
                lock.pattern
            ));
        }
        let lacks = |command| lock.commands.contains(&command);
        let cannot = if lacks("set") {
            "so it cannot take this lock"
        } else if lock.commands.iter().any(|command| *command != "pttl") {
            "so it cannot release or extend this lock"
        } else {
            return None;
        };
        told(&[lock], cannot, user)
    }

    /// A rule for a user whose commands and keys are those of selectors, of which one must allow a script and all its keys.
    pub(super) fn in_one_selector(&self, user: Option<&str>) -> String {
        let lock = self.lock.as_ref().map_or("KEY", |lock| &lock.pattern);
        format!(
            "if the user has selectors: ACL SETUSER {} (+eval +evalsha +get +set +del +pexpire +pttl +info +time ~{lock} ~{GUARD_KEY} \
             ~{FENCE_KEY_PREFIX}{lock} ~{}{lock})",
            user_to_grant(user),
            owner::KEY_PREFIX
        )
    }

    /// What the user cannot do with locks that it can take and release.
    pub(super) fn lacks(&self, user: Option<&str>) -> impl Iterator<Item = String> {
        let lock = self.lock.as_ref().into_iter();
        let waits = lock.filter(|lock| lock.commands == ["pttl"]);
        let waits: Vec<&Exclusion> = waits.collect();
        [
            told(
                &waits,
                "so its clients poll while they wait for a plain lock, and cannot wait for a fenced lock that another client holds",
                user,
            ),
            told(&[&self.guard, &self.fence], "which fenced locks need", user),
            told(
                &[&self.owner],
                "which redlock needs to show who holds a lock",
                user,
            ),
        ]
        .into_iter()
        .flatten()
    }

    pub(super) fn json(&self) -> Json {
        let beside = [&self.guard, &self.fence, &self.owner];
        let all = self.lock.iter().chain(beside);
        let all = all.filter(|excluded| !excluded.commands.is_empty());
        let all = all.map(|excluded| json!({ "key": excluded.key, "commands": excluded.commands }));
        all.collect()
    }
}

/// What is excluded, what that costs, and what to do, if anything is.
fn told(excluded: &[&Exclusion], cost: &str, user: Option<&str>) -> Option<String> {
    let (faults, rules): (Vec<_>, Vec<_>) = excluded
        .iter()
        .filter_map(|excluded| Some((excluded.fault()?, excluded.rule())))
        .unzip();
    (!faults.is_empty()).then(|| {
        format!(
            "the user may not run {}, {cost}: ACL SETUSER {} {}",
            faults.join(", or "),
            user_to_grant(user),
            rules.join(" ")
        )
    })
}
