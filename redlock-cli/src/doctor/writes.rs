//! Checks whether a node accepts writes, because a lock is a write.

use redis::Value;
use redlock_core::GUARD_KEY;
use serde_json::json;

use super::finding::{Finding, Judgement, bad, ok, warn};
use crate::nodes::{Connection, Info, in_words};

/// The answer of a node to a write without effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Writes {
    Taken,
    /// The code of the error, and all of it.
    Refused {
        code: String,
        told: String,
    },
    /// The user may not try a write.
    NotSeen,
}

impl Writes {
    /// Tries two writes without effect: NX excludes XX, and the script writes nothing. The server first checks whether it
    /// accepts writes.
    ///
    /// The script names no key, for users that are restricted to some keys. Servers before Redis 7 do not know the first
    /// line of the script.
    pub(crate) async fn ask(connection: &mut Connection) -> Result<Self, String> {
        let mut trials = redis::pipe();
        trials
            .cmd("SET")
            .arg(&[GUARD_KEY, "", "NX", "XX"])
            .cmd("EVAL")
            .arg(&["#!lua\nreturn 1", "0"]);
        let replies = connection.ask(&trials).await?;
        let [set, script] = replies.as_slice() else {
            return Err("no answer".to_owned());
        };
        let refusal = [set, script].into_iter().find_map(|reply| match reply {
            Value::ServerError(error) if REFUSALS.contains(&error.code()) => Some(error),
            _ => None,
        });
        let may_not_set = matches!(set, Value::ServerError(error) if error.code() == "NOPERM");
        Ok(match refusal {
            Some(error) => Self::Refused {
                code: error.code().to_owned(),
                told: in_words(error),
            },
            None if may_not_set && matches!(script, Value::ServerError(_)) => Self::NotSeen,
            None => Self::Taken,
        })
    }

    /// Whether a master accepts writes. A replica accepts none, whatever it answers.
    pub(crate) fn finding(&self, info: &Info) -> Finding {
        let judgement = match self {
            _ if !info.is_master() => warn("a replica accepts no writes"),
            Self::Taken => ok("it accepts writes"),
            Self::Refused { code, told } => refused(code, told),
            Self::NotSeen => warn("unknown: the user may not write"),
        };
        let refusal = match self {
            Self::Refused { code, .. } => Some(code),
            Self::Taken | Self::NotSeen => None,
        };
        Finding::new("writes", judgement, json!({ "refusal": refusal }))
    }
}

/// The error codes of a server that accepts no writes at all.
const REFUSALS: [&str; 5] = ["MISCONF", "NOREPLICAS", "OOM", "READONLY", "MASTERDOWN"];

fn refused(code: &str, told: &str) -> Judgement {
    let cure = match code {
        "NOREPLICAS" => {
            "it has fewer replicas than min-replicas-to-write: set that to 0, because locks need no replicas"
        }
        "OOM" => "its memory is full: raise maxmemory, or remove keys that are no locks",
        "MISCONF" => {
            "it cannot save its data: check its log and its disk; if a snapshot failed, setting \
            stop-writes-on-bgsave-error to no helps too"
        }
        _ => "check its log",
    };
    bad(format!("it refuses every lock; {cure} ({told})"))
}
