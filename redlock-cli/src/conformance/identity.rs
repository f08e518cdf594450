//! The trials of what a server tells about itself.

use redis::Value;
use redlock_core::GUARD_KEY;
use redlock_core::transport::{Answer, Argument, NodeInfo};

use super::keys::Keys;
use super::trial::{Word, ask, eval, four, raw};
use crate::nodes::{Connection, Info, raw_text, text, user_to_grant};

/// The server is a master, as far as it tells its role: a replica has no vote for any lock.
pub(super) async fn is_master(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    let reply = eval(connection, &question()?, &[&keys.guard()], &[]).await;
    let numbers = reply.ok().as_ref().and_then(four);
    match numbers.and_then(|numbers| NodeInfo::read(Answer::Integers(numbers))) {
        Some(info) if !info.is_master => Err("it is a replica, and has no vote".to_owned()),
        Some(_) => Ok("it is a master".to_owned()),
        None => Ok("unknown, because it does not tell its identity".to_owned()),
    }
}

/// A script tells the process, the data, the uptime and the role of the server.
pub(super) async fn tells_identity(
    connection: &mut Connection,
    keys: &Keys,
) -> Result<String, String> {
    let script = question()?;
    let reply = match eval(connection, &script, &[&keys.guard()], &[]).await {
        Ok(reply) => reply,
        Err(why) => return Err(why_not(connection, why).await),
    };
    let numbers = four(&reply).ok_or("unexpected reply to the question of identity")?;
    let info = NodeInfo::read(Answer::Integers(numbers)).ok_or("it does not tell its identity")?;
    if let Some(why) = may_not_use(connection, GUARD_KEY).await? {
        return Err(why);
    }
    Ok(format!(
        "a script tells its process and its data; it runs for {} s",
        info.uptime.as_secs()
    ))
}

/// The server evicts no keys. Plain locks work without it, but can be lost.
pub(super) async fn keeps_keys(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    let reply = eval(connection, &question()?, &[&keys.guard()], &[]).await?;
    let info = four(&reply).and_then(|numbers| NodeInfo::read(Answer::Integers(numbers)));
    match info {
        Some(info) if !info.may_evict => Ok("it evicts no keys".to_owned()),
        Some(_) => Err(
            "its maxmemory-policy is not noeviction, or INFO does not tell it: an evicted lock is granted again".to_owned(),
        ),
        None => Err("unknown, because it does not tell its identity".to_owned()),
    }
}

/// The text of the script that every client calls first.
fn question() -> Result<String, String> {
    let script = NodeInfo::question().nth(1);
    match script {
        Some(Argument::Bytes(text)) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err("this program has no question of identity".to_owned()),
    }
}

/// What is missing, if the script that asks for the identity failed with `error`.
async fn why_not(connection: &mut Connection, error: String) -> String {
    if let Err(why) = eval(connection, "return 1", &[], &[]).await {
        return why;
    }
    let mut missing = Vec::new();
    for command in ["info", "time"] {
        let call = format!("return redis.call('{command}')");
        if eval(connection, &call, &[], &[]).await.is_err() {
            missing.push(command.to_uppercase());
        }
    }
    if !missing.is_empty() {
        return format!("scripts may not call {} ({error})", missing.join(" and "));
    }
    let info = match eval(connection, "return redis.call('info')", &[], &[]).await {
        Ok(reply) => Info::parse(&raw_text(&reply).unwrap_or_default()),
        Err(why) => return why,
    };
    let fields = FIELDS.into_iter();
    let absent: Vec<&str> = fields.filter(|field| info.text(field).is_none()).collect();
    if absent.is_empty() {
        error
    } else {
        format!("INFO in a script has no {} ({error})", absent.join(", "))
    }
}

/// What the script reads.
const FIELDS: [&str; 4] = ["run_id", "master_replid", "uptime_in_seconds", "role"];

/// Why the user may not use this key, if so. A script call with a key needs the permission to read and to write it.
async fn may_not_use(connection: &mut Connection, key: &str) -> Result<Option<String>, String> {
    const NO_SCRIPT: Word<'_> = b"0000000000000000000000000000000000000000";

    let reply = raw(connection, &[b"EVALSHA", NO_SCRIPT, b"1", key.as_bytes()]).await?;
    Ok(match reply {
        // Not of the command, which other trials name.
        Value::ServerError(error)
            if error.code() == "NOPERM"
                && error.details().is_some_and(|words| words.contains(" key")) =>
        {
            let user = ask(connection, &[b"ACL", b"WHOAMI"]).await;
            let user = user.ok().as_ref().and_then(text);
            Some(format!(
                "the user may not use the key {key}: ACL SETUSER {} ~{key}",
                user_to_grant(user.as_deref())
            ))
        }
        _ => None,
    })
}
