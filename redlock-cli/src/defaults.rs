//! The defaults of the settings that all clients of the nodes share. They are those of the library.

use core::time::Duration;

/// The longest TTL that any client of the nodes uses, with fenced locks.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(60);

/// How far the clock of a node may be from the clocks of the others.
pub(crate) const WINDOW: Duration = Duration::from_millis(250);

/// By how much the clock of a node may be stepped back.
pub(crate) const STEP_BACK: Duration = Duration::from_secs(60);

/// By how much the clocks of a client and a node may differ in rate, in parts per million.
pub(crate) const DRIFT_PPM: u32 = 10_000;

/// [`WINDOW`] as `--help` shows it.
#[cfg(any(unix, test))]
pub(crate) const WINDOW_TEXT: &str = "250ms";

/// [`STEP_BACK`] as `--help` shows it.
#[cfg(any(unix, test))]
pub(crate) const STEP_BACK_TEXT: &str = "1m";

#[cfg(test)]
mod tests {
    use redlock_std::{Fencing, Options};

    use super::*;
    use crate::duration;
    use redlock_std::init::guard_record::Settings;

    #[test]
    fn they_are_those_of_the_library_and_of_the_help() {
        let options = Options::new(Duration::from_secs(30)).unwrap();
        assert_eq!(options.vote_conditions().drift_ppm, DRIFT_PPM);
        let fencing = Fencing::default();
        assert_eq!(fencing.max_ttl(), MAX_TTL);
        assert_eq!(fencing.window(), WINDOW);
        assert_eq!(fencing.step_back(), STEP_BACK);
        assert_eq!(duration::parse(WINDOW_TEXT), Ok(WINDOW));
        assert_eq!(duration::parse(STEP_BACK_TEXT), Ok(STEP_BACK));
    }

    #[test]
    fn their_quarantine_is_62_seconds_as_the_help_says() {
        let settings = Settings {
            max_ttl_ms: ms(MAX_TTL),
            window_ms: ms(WINDOW),
            step_back_ms: ms(STEP_BACK),
        };
        assert_eq!(settings.quarantine(), Duration::from_secs(62));
    }

    fn ms(duration: Duration) -> u64 {
        duration.as_millis().try_into().unwrap()
    }
}
