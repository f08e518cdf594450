//! Times of the wall clock of this machine, for people: no lock depends on them.

use core::fmt;
use core::time::Duration;
use std::error::Error;
use std::time::SystemTime;

/// The clock shows a year that RFC 3339 cannot write.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrongClock;

impl fmt::Display for WrongClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the clock of this machine is before 1970 or after 9999: set it")
    }
}

impl Error for WrongClock {}

/// Returns the time after this duration, as in RFC 3339.
pub(crate) fn text_after(duration: Duration) -> Result<String, WrongClock> {
    text(SystemTime::now().checked_add(duration))
}

fn text(time: Option<SystemTime>) -> Result<String, WrongClock> {
    const YEAR_10000: Duration = Duration::from_secs(253_402_300_800);

    let time = time.ok_or(WrongClock)?;
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since < YEAR_10000 => Ok(humantime::format_rfc3339_millis(time).to_string()),
        _ => Err(WrongClock),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_cannot_be_written_is_an_error() {
        let after = |ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms));
        let last = 253_402_300_799_999;
        assert_eq!(text(after(0)).unwrap(), "1970-01-01T00:00:00.000Z");
        assert_eq!(text(after(last)).unwrap(), "9999-12-31T23:59:59.999Z");
        let before = SystemTime::UNIX_EPOCH.checked_sub(Duration::from_millis(1));
        for time in [before, after(last + 1), None] {
            assert_eq!(text(time), Err(WrongClock));
        }
        assert_eq!(text_after(Duration::MAX), Err(WrongClock));
    }
}
