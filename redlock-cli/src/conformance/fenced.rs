//! The trial of what fenced locks need: the life of a fenced lock, under a guard record of the trial.

use redlock_core::transport::Script;

use super::keys::{Keys, LIFE_MS, token};
use super::trial::{Word, ask, expect, get, pttl, run, run_four};
use crate::nodes::Connection;

/// The rules of the guard record, in milliseconds. The window is long, so that a slow network does not matter.
const MAX_TTL: i64 = LIFE_MS as i64;
const WINDOW: i64 = 10_000;
const STEP_BACK: i64 = 1_000;

// The codes of `scripts/codes.lua`.
const GRANTED: i64 = 0;
const REFUSED: i64 = 1;
const STALE: i64 = 2;
const TOO_OLD: i64 = 3;
const TOO_NEW: i64 = 4;
const QUARANTINED: i64 = 5;
const UNGUARDED: i64 = 7;

/// A node keeps a guard record, grants a fenced lock, extends it, sets its key again, releases it, and accepts no old fence.
pub(super) async fn fences(connection: &mut Connection, keys: &Keys) -> Result<String, String> {
    let mine = Attempt::new(keys, "fenced");
    let [code, now, ..] = mine.acquire(connection, 0, false).await?;
    expect("an acquire without a guard record", code, UNGUARDED)?;
    let [code, _, _, left] = mine.acquire(connection, now, true).await?;
    expire(connection, &mine.guard).await?;
    if code == UNGUARDED {
        let why = "it may evict keys, so it writes no guard record again; set its maxmemory-policy to noeviction";
        return Err(why.to_owned());
    }
    expect(
        "an acquire that vouches for a lost guard record",
        code,
        QUARANTINED,
    )?;
    // Its end and the rest of it are both rounded up.
    let quarantine = MAX_TTL.max(STEP_BACK) + 4 * WINDOW + 1_000 + 1;
    expect(
        "a quarantine of that length",
        left > 0 && left <= quarantine,
        true,
    )?;
    end_quarantine(connection, &mine.guard).await?;

    let [code, now, highest, _] = mine.acquire(connection, now, false).await?;
    expect("an acquire of a free lock", code, GRANTED)?;
    let fence = highest;
    expect(
        "the lock",
        get(connection, &mine.lock).await?,
        Some(mine.token.to_vec()),
    )?;
    for key in [&mine.lock, &mine.fence] {
        let left = pttl(connection, key).await?;
        expect(
            "a TTL of the lock and of its fence record",
            left.is_none_or(|left| left > 0),
            true,
        )?;
    }

    let other = Attempt::new(keys, "fenced");
    let [code, _, highest, left] = other.acquire(connection, now, false).await?;
    expect("an acquire of a lock that is held", code, REFUSED)?;
    expect("the fence of the holder", highest, fence)?;
    expect("the rest of its TTL", left > 0 && left <= MAX_TTL, true)?;

    expect(
        "an extension",
        mine.extend(connection, fence, now).await?,
        GRANTED,
    )?;
    ask(connection, &[b"DEL", mine.lock.as_bytes()]).await?;
    expect(
        "an extension of a key that is gone",
        mine.extend(connection, fence, now).await?,
        GRANTED,
    )?;
    expect(
        "a release by another attempt",
        other.release(connection, now).await?,
        0,
    )?;
    expect("a release", mine.release(connection, fence).await?, 1)?;
    expect(
        "the lock after its release",
        get(connection, &mine.lock).await?,
        None,
    )?;
    let [code, ..] = mine.acquire(connection, fence, false).await?;
    expect("an acquire with a released fence", code, STALE)?;

    let far = Attempt::new(keys, "window");
    let [code, ..] = far
        .acquire(connection, now - 3 * WINDOW * 1_000, false)
        .await?;
    expect("an acquire with an old fence", code, TOO_OLD)?;
    let [code, ..] = far
        .acquire(connection, now + 3 * WINDOW * 1_000, false)
        .await?;
    expect("an acquire with a fence of the future", code, TOO_NEW)?;
    Ok("the scripts of fenced locks grant, refuse, extend and release as they should".to_owned())
}

/// One attempt to acquire a fenced lock.
struct Attempt {
    lock: String,
    fence: String,
    guard: String,
    token: [u8; redlock_core::Token::LEN],
}

impl Attempt {
    fn new(keys: &Keys, trial: &str) -> Self {
        Self {
            lock: keys.lock(trial),
            fence: keys.fence(trial),
            guard: keys.guard(),
            token: token(),
        }
    }

    /// Proposes `fence`, in microseconds.
    async fn acquire(
        &self,
        connection: &mut Connection,
        fence: i64,
        vouches: bool,
    ) -> Result<[i64; 4], String> {
        let [acquire, ..] = Script::FENCED;
        let keys = [&*self.lock, &*self.fence, &*self.guard];
        let numbers = [MAX_TTL, fence, MAX_TTL, WINDOW, STEP_BACK, vouches.into()];
        let numbers = numbers.map(|number: i64| number.to_string());
        let words = self.words(&numbers);
        run_four(connection, acquire, &keys, &words).await
    }

    /// At `time` of the nodes, in microseconds.
    async fn extend(
        &self,
        connection: &mut Connection,
        fence: i64,
        time: i64,
    ) -> Result<i64, String> {
        let [_acquire, extend, _release] = Script::FENCED;
        let keys = [&*self.lock, &*self.fence, &*self.guard];
        let numbers = [MAX_TTL, fence, time, WINDOW, STEP_BACK];
        let numbers = numbers.map(|number| number.to_string());
        let words = self.words(&numbers);
        let [code, ..] = run_four(connection, extend, &keys, &words).await?;
        Ok(code)
    }

    async fn release(&self, connection: &mut Connection, fence: i64) -> Result<i64, String> {
        let [_acquire, _extend, release] = Script::FENCED;
        let keys = [&*self.lock, &*self.fence];
        let numbers = [fence, WINDOW, STEP_BACK].map(|number| number.to_string());
        run(connection, release, &keys, &self.words(&numbers)).await
    }

    /// The token, then the numbers.
    fn words<'a>(&'a self, numbers: &'a [String]) -> Vec<Word<'a>> {
        let numbers = numbers.iter().map(|number| number.as_bytes());
        core::iter::once(&self.token[..]).chain(numbers).collect()
    }
}

/// Ends the quarantine of the guard record of the trial, as time would.
async fn end_quarantine(connection: &mut Connection, guard: &str) -> Result<(), String> {
    let record = get(connection, guard).await?;
    let record = record.ok_or("the guard record was not written")?;
    let record = String::from_utf8(record).map_err(|_| "the guard record has other bytes")?;
    let mut fields: Vec<&str> = record.split(':').collect();
    match fields.get_mut(1) {
        Some(until) => *until = "0",
        None => return Err("the guard record has other fields".to_owned()),
    }
    let record = fields.join(":");
    ask(connection, &[b"SET", guard.as_bytes(), record.as_bytes()]).await?;
    expire(connection, guard).await
}

/// A guard record does not expire by itself, unlike all other keys.
async fn expire(connection: &mut Connection, guard: &str) -> Result<(), String> {
    let life = LIFE_MS.to_string();
    ask(connection, &[b"PEXPIRE", guard.as_bytes(), life.as_bytes()]).await?;
    Ok(())
}
