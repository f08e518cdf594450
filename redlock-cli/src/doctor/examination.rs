//! The facts about one node, not yet judged.

use core::time::Duration;

use redis::{Value, from_redis_value};
use redlock_core::Clock;
use redlock_std::{SystemClock, printable};

use super::line::Line;
use super::permissions::Permissions;
use super::writes::Writes;
use crate::inspect::State;
use crate::nodes::{Connection, Info, Node, in_words, raw_text};
use redlock_std::init::clock::{Sample, now_micros};
use redlock_std::init::guard_record;

/// The facts about a node, or why there are none.
#[derive(Debug)]
pub(crate) struct Examination {
    pub(crate) node: String,
    pub(crate) seen: Result<Seen, String>,
}

/// The facts. `Err` is an error of the node; `None` is a setting that could not be read.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) info: Result<Info, String>,
    pub(crate) appendfsync: Option<String>,
    /// The `save` setting: after how many changes in how many seconds a snapshot is saved; empty for never.
    pub(crate) save: Option<String>,
    /// After how many seconds without replicas the replication ID changes; 0 for never.
    pub(crate) repl_backlog_ttl: Option<String>,
    /// What is at the key of the guard record.
    pub(crate) guard: Result<guard_record::Content, String>,
    /// What the node has gone through since it started, if it may have lost keys meanwhile, as far as its statistics tell.
    pub(crate) loss: Option<String>,
    /// The time on the clock of the node when the guard record was read.
    pub(crate) now_ms: Option<u64>,
    pub(crate) permissions: Permissions,
    pub(crate) writes: Writes,
    pub(crate) samples: Vec<Sample>,
    pub(crate) line: Result<Line, String>,
    /// The lock that was asked about, and its state.
    pub(crate) lock: Option<(String, Result<State, String>)>,
}

/// How many samples are taken without a pause at first.
const FIRST_SAMPLES: usize = 8;

/// The time between two samples, after that.
const PAUSE: Duration = Duration::from_millis(100);

impl Examination {
    /// Collects the facts about `node`, and samples its clock for the time of `watch`.
    pub(crate) async fn of(node: Node, watch: Duration, key: Option<String>) -> Self {
        let seen = match node.connect().await {
            Ok(connection) => Seen::ask(connection, watch, key.as_deref()).await,
            Err(why) => Err(why),
        };
        Self {
            node: node.name().to_owned(),
            seen,
        }
    }
}

impl Seen {
    async fn ask(
        mut connection: Connection,
        watch: Duration,
        key: Option<&str>,
    ) -> Result<Self, String> {
        let mut questions = redis::pipe();
        Info::ask(&mut questions);
        questions
            .cmd("CONFIG")
            .arg(&["GET", "appendfsync"])
            .cmd("CONFIG")
            .arg(&["GET", "save"])
            .cmd("CONFIG")
            .arg(&["GET", "repl-backlog-ttl"]);
        guard_record::ask(&mut questions);
        questions.cmd("TIME").cmd("INFO").arg("commandstats");
        let replies = connection.ask(&questions).await?;
        if let Some(Value::ServerError(error)) = replies.first()
            && error.code() == "NOAUTH"
        {
            return Err(in_words(error));
        }
        let (info, rest) = Info::read(&replies).ok_or("no answer")?;
        let [appendfsync, save, backlog_ttl, guard, time, calls] = rest else {
            return Err("no answer".to_owned());
        };
        let mut permissions = Permissions::ask(&mut connection, key).await?;
        let writes = Writes::ask(&mut connection).await?;
        let samples = watch_clock(&mut connection, watch).await?;
        // After the others, because a record that is none can keep the node busy.
        permissions.introduce(&mut connection).await;
        let lock = match key {
            Some(key) => Some((
                key.to_owned(),
                State::read(&mut connection, key.as_bytes()).await,
            )),
            None => None,
        };
        Ok(Self {
            loss: info.as_ref().ok().and_then(|info| loss(info, calls)),
            info,
            appendfsync: setting(appendfsync),
            save: setting(save),
            repl_backlog_ttl: setting(backlog_ttl),
            guard: guard_record::read(guard),
            now_ms: micros(time).map(|micros| micros.unsigned_abs() / 1_000),
            permissions,
            writes,
            samples,
            lock,
            // The last question, because it may subscribe.
            line: Line::ask(&mut connection, key).await,
        })
    }
}

/// What `redlock init` refuses too: CONFIG RESETSTAT hides the first two.
fn loss(info: &Info, calls: &Value) -> Option<String> {
    let calls = raw_text(calls).unwrap_or_default();
    // A call that was refused counts as zero.
    let was_flushed = |line: &str| line.starts_with("cmdstat_flush") && !line.contains(":calls=0,");
    if calls.lines().any(was_flushed) {
        return Some("was flushed".to_owned());
    }
    if let Some(evicted @ 1..) = info.number::<u64>("evicted_keys") {
        return Some(format!("has evicted {evicted} keys"));
    }
    let earlier = info.text("master_replid2").unwrap_or_default();
    earlier
        .contains(|digit| digit != '0')
        .then(|| "was a replica".to_owned())
}

/// Takes samples of the clock, the last one when `watch` is over.
async fn watch_clock(connection: &mut Connection, watch: Duration) -> Result<Vec<Sample>, String> {
    let end = SystemClock.now().saturating_add(watch);
    let mut samples = Vec::new();
    loop {
        let is_last = SystemClock.now() >= end;
        samples.push(sample(connection).await?);
        if is_last {
            return Ok(samples);
        }
        if samples.len() >= FIRST_SAMPLES {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn sample(connection: &mut Connection) -> Result<Sample, String> {
    let mut question = redis::pipe();
    question.cmd("TIME");
    let sent = now_micros();
    let replies = connection.ask(&question).await?;
    Ok(Sample {
        sent,
        received: now_micros(),
        node: replies.first().and_then(micros),
    })
}

/// The value in a reply to CONFIG GET.
fn setting(reply: &Value) -> Option<String> {
    let (_name, value): (String, String) = from_redis_value(reply.clone()).ok()?;
    Some(printable(&value))
}

/// The µs since 1970 in a reply to TIME.
fn micros(reply: &Value) -> Option<i64> {
    let (seconds, micros): (i64, i64) = from_redis_value(reply.clone()).ok()?;
    seconds.checked_mul(1_000_000)?.checked_add(micros)
}
