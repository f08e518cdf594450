//! What the lock protects. The program on the host uses it in the same way.

use core::fmt::Write;

use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::mutex::Mutex;
use heapless::String;

use super::super::Failure;
use super::super::control::{Answer, Control};

/// Adds one to the count; counts an overlap if another one is in here.
pub(super) async fn use_alone(
    control: &Mutex<NoopRawMutex, Control>,
    name: &str,
) -> Result<(), Failure> {
    // Locked for one command at a time, so that an overlap of this device's own tasks shows too.
    let ask =
        async |words: &[&str]| -> Result<Answer, Failure> { control.lock().await.ask(words).await };

    if ask(&["SET", "user", name, "NX"]).await?.is_none() {
        ask(&["INCR", "overlaps"]).await?;
    }
    if ask(&["GETSET", "side", SIDE]).await?.as_deref() != Some(SIDE) {
        ask(&["INCR", "changes"]).await?;
    }
    let count: u32 = match ask(&["GET", "count"]).await? {
        Some(count) => count.parse().map_err(|_| Failure::Control("no count"))?,
        None => 0,
    };
    let mut next = String::<10>::new();
    write!(next, "{}", count + 1).map_err(|_| Failure::Control("too high a count"))?;
    ask(&["SET", "count", &next]).await?;
    // What the count would be if no use were lost.
    ask(&["INCR", "uses"]).await?;
    if ask(&["GET", "user"]).await?.as_deref() == Some(name) {
        ask(&["DEL", "user"]).await?;
    } else {
        ask(&["INCR", "overlaps"]).await?;
    }
    Ok(())
}

const SIDE: &str = "firmware";
