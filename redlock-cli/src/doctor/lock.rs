//! Checks of the lock of `--key`: whether its keys are those of a lock.

use redlock_core::FENCE_KEY_PREFIX;
use redlock_std::printable;
use serde_json::json;

use super::finding::{Finding, bad, ok};
use crate::inspect::{FenceRecord, Key, State};

/// Whether a client can take the lock `key`, or will be able to.
pub(super) fn finding(key: &str, state: &State) -> Finding {
    let key = printable(key);
    let judgement = match &state.key {
        Key::Foreign { kind, .. } => bad(format!(
            "no client can acquire the key {key}, because it is a {kind}, not a lock: delete it if nothing needs it, or use another key"
        )),
        Key::Held { ends_in: None, .. } => bad(format!(
            "no client can acquire the key {key}, because it has a value without a TTL, which no client of a lock writes: delete it if \
             nothing needs it, or use another key"
        )),
        _ if state.fence == FenceRecord::Unreadable => bad(format!(
            "no client can acquire a fenced lock {key}, because the value at {FENCE_KEY_PREFIX}{key} is no fence record: delete it when no \
             client holds the lock"
        )),
        Key::Held { .. } => ok(format!("{key} is held")),
        Key::Free => ok(format!("{key} is free")),
    };
    let name = match state.key {
        Key::Free => "free",
        Key::Held { .. } => "held",
        Key::Foreign { .. } => "foreign",
    };
    Finding::new("lock", judgement, json!({ "state": name }))
}
