//! The resource that the lock protects. The program on the host uses it in the same way.

use core::fmt::Write;

use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::mutex::Mutex;
use heapless::String;
use redlock_embassy::Fence;

use super::super::Failure;
use super::super::control::{Answer, Control};

/// Increments the count. Counts an overlap if another user is here at the same time.
pub(super) async fn use_alone(
    control: &Mutex<NoopRawMutex, Control>,
    name: &str,
) -> Result<(), Failure> {
    // Locked for one command at a time, so that an overlap of two tasks of this device is seen too.
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
    // The count if no use is lost.
    ask(&["INCR", "uses"]).await?;
    if ask(&["GET", "user"]).await?.as_deref() == Some(name) {
        ask(&["DEL", "user"]).await?;
    } else {
        ask(&["INCR", "overlaps"]).await?;
    }
    Ok(())
}

/// Shows the fence to the resource. Counts a fence that is not higher than all before.
pub(super) async fn show(
    control: &Mutex<NoopRawMutex, Control>,
    fence: Fence,
) -> Result<(), Failure> {
    let mut number = String::<20>::new();
    write!(number, "{fence}").map_err(|_| Failure::Control("too high a fence"))?;
    let mut control = control.lock().await;
    let before = control.ask(&["GETSET", "fence", &number]).await?;
    let before: u64 = match before {
        Some(before) => before.parse().map_err(|_| Failure::Control("no fence"))?,
        None => 0,
    };
    if before >= fence.as_u64() {
        control.ask(&["INCR", "disorder"]).await?;
    }
    Ok(())
}

const SIDE: &str = "firmware";
