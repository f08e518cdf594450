//! Whether a node takes writes, which locks are.

use redis::Value;
use redlock_core::GUARD_KEY;
use serde_json::json;

use super::finding::{Finding, Judgement, bad, ok, warn};
use crate::nodes::{Connection, Info, in_words};

/// What a node says to a write that writes nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Writes {
    Taken,
    /// The code of the error, and all of it.
    Refused {
        code: String,
        told: String,
    },
    /// The user may not try.
    NotSeen,
}

impl Writes {
    /// Tries it. The server finds out whether it takes writes at all before it finds out that nothing is to be written:
    /// NX and XX exclude each other, and the script is empty. The script names no key, for users with keys of
    /// their own; servers before Redis 7 do not know its first line.
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

    /// Whether a master takes writes; a replica takes none whatever it says.
    pub(crate) fn finding(&self, info: &Info) -> Finding {
        let judgement = match self {
            _ if !info.is_master() => warn("none, since it is a replica"),
            Self::Taken => ok("it takes writes"),
            Self::Refused { code, told } => refused(code, told),
            Self::NotSeen => warn("not seen: the user may not try"),
        };
        let refusal = match self {
            Self::Refused { code, .. } => Some(code),
            Self::Taken | Self::NotSeen => None,
        };
        Finding::new("writes", judgement, json!({ "refusal": refusal }))
    }
}

/// What a server says that takes no writes, whatever they are.
const REFUSALS: [&str; 5] = ["MISCONF", "NOREPLICAS", "OOM", "READONLY", "MASTERDOWN"];

fn refused(code: &str, told: &str) -> Judgement {
    let cure = match code {
        "NOREPLICAS" => {
            "fewer replicas follow it than min-replicas-to-write asks for: set that to 0, a lock needs none"
        }
        "OOM" => "its memory is full: raise maxmemory, or remove what is no lock",
        "MISCONF" => {
            "it cannot save its data: see its log and its disk; for a snapshot, stop-writes-on-bgsave-error no \
             helps too"
        }
        _ => "see its log",
    };
    bad(format!("it refuses every lock; {cure} ({told})"))
}
