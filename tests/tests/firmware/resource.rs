//! What the lock protects, on the control server. The firmware uses it in the same way.

use redis::Connection;
use redlock_std::Fence;
use redlock_tests::Server;

/// Adds one to the count; counts an overlap if another one is in here.
///
/// The count is read and written in two commands, so overlapping uses lose counts; and a client that
/// is in here leaves a name, so they are seen also where no count is lost.
pub(crate) fn use_alone(control: &mut Connection, name: &str) {
    const SIDE: &str = "host";

    if ask::<Option<String>>(control, &["SET", "user", name, "NX"]).is_none() {
        ask::<u64>(control, &["INCR", "overlaps"]);
    }
    if ask::<Option<String>>(control, &["GETSET", "side", SIDE]).as_deref() != Some(SIDE) {
        ask::<u64>(control, &["INCR", "changes"]);
    }
    let count = ask::<Option<u64>>(control, &["GET", "count"]).unwrap_or(0);
    ask::<String>(control, &["SET", "count", &(count + 1).to_string()]);
    ask::<u64>(control, &["INCR", "uses"]);
    if ask::<Option<String>>(control, &["GET", "user"]).as_deref() == Some(name) {
        ask::<u64>(control, &["DEL", "user"]);
    } else {
        ask::<u64>(control, &["INCR", "overlaps"]);
    }
}

/// Shows the fence there; counts one that is not higher than all before.
pub(crate) fn show(control: &mut Connection, fence: Fence) {
    let number = fence.to_string();
    let before = ask::<Option<u64>>(control, &["GETSET", "fence", &number]);
    if before.is_some_and(|before| before >= fence.as_u64()) {
        ask::<u64>(control, &["INCR", "disorder"]);
    }
}

/// What has become of it.
#[derive(Debug)]
pub(crate) struct Usage {
    /// How often it was used.
    pub(crate) uses: u64,
    /// How many of the uses were counted.
    pub(crate) count: u64,
    /// How often two were in there.
    pub(crate) overlaps: u64,
    /// How often the user was another side's than before.
    pub(crate) changes: u64,
    /// How often a fence was not higher than the one before; none where none was shown.
    pub(crate) disorder: Option<u64>,
}

impl Usage {
    pub(crate) fn of(control: &Server) -> Self {
        let number =
            |name: &str| -> Option<u64> { control.query(&["GET", name]).expect("it answers") };
        Self {
            uses: number("uses").unwrap_or(0),
            count: number("count").unwrap_or(0),
            overlaps: number("overlaps").unwrap_or(0),
            changes: number("changes").unwrap_or(0),
            disorder: number("fence").map(|_| number("disorder").unwrap_or(0)),
        }
    }

    /// No client was in there with another one, no use was lost, and fences have grown.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.overlaps == 0 && self.count == self.uses && self.disorder.unwrap_or(0) == 0
    }
}

fn ask<T: redis::FromRedisValue>(control: &mut Connection, words: &[&str]) -> T {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command.query(control).expect("the control server answers")
}
