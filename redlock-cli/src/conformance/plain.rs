//! The trials of what plain locks need.

use core::time::Duration;
use std::time::Instant;

use redis::Value;
use redlock_core::transport::Script;
use redlock_std::printable;

use super::keys::{Keys, LIFE_MS, token};
use super::trial::{Word, ask, command, expect, get, pttl, raw, run, set};
use crate::nodes::{Connection, Info, in_words, raw_text};

/// `SET NX PX` sets a key once, to any bytes.
pub(super) async fn sets(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    let (lock, first) = (keys.lock("set"), token());
    expect(
        "the first SET NX PX",
        set(connection, &lock, &first, LIFE_MS).await?,
        true,
    )?;
    expect(
        "the second SET NX PX",
        set(connection, &lock, b"other", LIFE_MS).await?,
        false,
    )?;
    if get(connection, &lock).await?.as_deref() != Some(&first[..]) {
        return Err("GET returns other bytes than SET NX PX has stored".to_owned());
    }
    Ok("SET NX PX sets a key that does not exist, and no other".to_owned())
}

/// A key lives as long as its TTL says, to the millisecond.
pub(super) async fn expires(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    const TTL_MS: u32 = 250;
    const TTL: Duration = Duration::from_millis(TTL_MS as u64);
    /// How much faster its clock may be: one tick, and more than clocks of machines differ.
    const EARLY: Duration = Duration::from_millis(4);
    const LATE: Duration = Duration::from_secs(1);

    let lock = keys.lock("expiry");
    let sent_at = Instant::now();
    set(connection, &lock, b"1", TTL_MS).await?;
    let set_at = Instant::now();
    let left = pttl(connection, &lock).await?;
    if let Some(left) = left.filter(|left| *left > TTL_MS.into() || *left == -1) {
        return Err(format!("PTTL is {left} ms after SET PX {TTL_MS}"));
    }
    loop {
        let asked_at = Instant::now();
        if get(connection, &lock).await?.is_none() {
            break;
        }
        // Counted from what is certain, so that a slow network is not taken for a slow clock.
        let lived = asked_at.saturating_duration_since(set_at);
        if lived > TTL + LATE {
            return Err(format!(
                "a key of {TTL_MS} ms is still there after {} ms",
                lived.as_millis()
            ));
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let gone_after = sent_at.elapsed();
    if gone_after + EARLY < TTL {
        return Err(format!(
            "a key of {TTL_MS} ms was gone after {} ms",
            gone_after.as_millis()
        ));
    }
    Ok(format!(
        "a key of {TTL_MS} ms was gone when asked after {} ms",
        gone_after.as_millis()
    ))
}

/// A script deletes a key if it has the token, and only then.
pub(super) async fn releases(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    let [_extend, release] = Script::PLAIN;
    let (lock, mine) = (keys.lock("release"), token());
    set(connection, &lock, &mine, LIFE_MS).await?;
    let of_another = run(connection, release, &[&lock], &[b"other"]).await?;
    expect("the release with another token", of_another, 0)?;
    expect(
        "the release",
        run(connection, release, &[&lock], &[&mine]).await?,
        1,
    )?;
    expect(
        "the key after its release",
        get(connection, &lock).await?,
        None,
    )?;
    Ok("a script compares the token and deletes the key".to_owned())
}

/// A script extends a key if it has the token, and only then.
pub(super) async fn extends(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    const SHORT: u32 = LIFE_MS / 2;

    let [extend, _release] = Script::PLAIN;
    let (lock, mine, life) = (keys.lock("extend"), token(), LIFE_MS.to_string());
    set(connection, &lock, &mine, SHORT).await?;
    let of_another = run(connection, extend, &[&lock], &[b"other", life.as_bytes()]).await?;
    expect("the extension with another token", of_another, 0)?;
    let left = pttl(connection, &lock).await?;
    expect(
        "a longer TTL after the extension with another token",
        left.is_some_and(|left| left > SHORT.into()),
        false,
    )?;
    let own = run(connection, extend, &[&lock], &[&mine, life.as_bytes()]).await?;
    expect("the extension", own, 1)?;
    let left = pttl(connection, &lock).await?;
    expect(
        "a longer TTL after the extension",
        left.is_none_or(|left| left > SHORT.into()),
        true,
    )?;
    Ok("a script compares the token and extends the key".to_owned())
}

/// A script is called by its hash, or the server says that it does not know it.
pub(super) async fn caches(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    const UNKNOWN: Word<'_> = b"0000000000000000000000000000000000000000";

    let [_extend, release] = Script::PLAIN;
    let lock = keys.lock("cache");
    let call = |hash| -> [Word<'_>; 5] { [b"EVALSHA", hash, b"1", lock.as_bytes(), b"other"] };
    match raw(connection, &call(UNKNOWN)).await? {
        Value::ServerError(error) if error.code() == "NOSCRIPT" => {}
        Value::ServerError(error) => {
            return Err(format!(
                "EVALSHA of no script answered {}, not NOSCRIPT",
                in_words(&error)
            ));
        }
        _ => return Err("EVALSHA of no script answered no error".to_owned()),
    }
    let loaded = raw(connection, &[b"SCRIPT", b"LOAD", release.text().as_bytes()]).await?;
    if let Value::ServerError(error) = loaded {
        return Ok(format!(
            "scripts are sent as text, because SCRIPT LOAD answered {}",
            in_words(&error)
        ));
    }
    let called = ask(connection, &call(release.sha1().as_bytes())).await?;
    expect(
        "a script that was called by its hash",
        called,
        Value::Int(0),
    )?;
    Ok("a loaded script is called by its hash, and an unknown one is refused".to_owned())
}

/// Scripts of several connections run one after the other.
pub(super) async fn is_atomic(
    connections: &mut [Connection; 4],
    keys: &Keys,
) -> Result<String, String> {
    const CALLS: usize = 50;
    /// Reads, takes its time, and writes: if another script runs meanwhile, its increment is lost.
    const INCREMENT: &str = "\
        local count = redis.call('get', KEYS[1]) or 0\n\
        for _ = 1, 5000 do end\n\
        redis.call('set', KEYS[1], string.format('%d', count + 1), 'px', ARGV[1])\n\
        return 1";

    let (lock, life) = (keys.lock("atomic"), LIFE_MS.to_string());
    let words: [Word<'_>; 5] = [
        b"EVAL",
        INCREMENT.as_bytes(),
        b"1",
        lock.as_bytes(),
        life.as_bytes(),
    ];
    let mut calls = redis::pipe();
    for _ in 0..CALLS {
        calls.add_command(command(&words));
    }
    let count = connections.len();
    let [first, second, third, fourth] = connections;
    let all = tokio::join!(
        first.ask(&calls),
        second.ask(&calls),
        third.ask(&calls),
        fourth.ask(&calls),
    );
    for replies in [all.0, all.1, all.2, all.3] {
        let error = replies?.into_iter().find_map(|reply| match reply {
            Value::ServerError(error) => Some(in_words(&error)),
            _ => None,
        });
        if let Some(error) = error {
            return Err(error);
        }
    }
    let counted = get(first, &lock).await?.unwrap_or_default();
    let wanted = count * CALLS;
    if counted != wanted.to_string().as_bytes() {
        return Err(format!(
            "scripts of {count} connections do not run one after the other: of {wanted} increments, {} were counted",
            printable(&String::from_utf8_lossy(&counted))
        ));
    }
    Ok(format!(
        "{wanted} scripts of {count} connections ran one after the other"
    ))
}

/// All connections lead to one server, which is a master by itself.
pub(super) async fn is_one_server(
    connections: &mut [Connection],
    keys: &Keys,
) -> Result<String, String> {
    // First of all: a server in cluster mode may refuse every key.
    let identities = identities(connections).await?;
    let lock = keys.lock("server");
    let count = connections.len();
    let (first, others) = connections.split_first_mut().ok_or("no connection")?;
    set(first, &lock, b"1", LIFE_MS).await?;
    for other in others.iter_mut() {
        if get(other, &lock).await?.is_none() {
            return Err(
                "a key that was set over one connection is not there over another: name one server, not a proxy before several"
                    .to_owned(),
            );
        }
    }
    match identities {
        Err(why) => Ok(format!(
            "{count} connections see one another's keys; unknown whether it is in cluster mode: {why}"
        )),
        Ok(identities) if identities.len() <= 1 => {
            Ok(format!("{count} connections lead to one process"))
        }
        Ok(_) => Err(
            "connections lead to different processes: name one server, not a proxy before several"
                .to_owned(),
        ),
    }
}

/// The run IDs that the connections tell, without repetitions, or why they do not tell. `Err` if a server is no standalone one.
async fn identities(connections: &mut [Connection]) -> Result<Result<Vec<String>, String>, String> {
    let mut identities = Vec::new();
    for connection in connections {
        let info = match ask(connection, &[b"INFO", b"server"]).await {
            Ok(info) => Info::parse(&raw_text(&info).unwrap_or_default()),
            Err(why) => return Ok(Err(why)),
        };
        if let Some(mode) = info.mode().filter(|mode| *mode != "standalone") {
            return Err(format!(
                "it is in {mode} mode, and locks need standalone masters"
            ));
        }
        identities.push(info.run_id().to_owned());
    }
    identities.dedup();
    Ok(Ok(identities))
}
