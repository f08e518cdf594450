//! Durations in words.

use core::time::Duration;

/// Formats `duration` in a suitable unit, with two or three digits.
pub fn in_words(duration: Duration) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;

    let (seconds, micros) = (duration.as_secs(), duration.subsec_micros());
    match seconds {
        0 if micros < 10_000 => format!("{}.{:02} ms", micros / 1_000, micros % 1_000 / 10),
        0 => format!("{} ms", micros / 1_000),
        1..MINUTE => format!("{seconds}.{} s", micros / 100_000),
        MINUTE..HOUR => format!("{} min {} s", seconds / MINUTE, seconds % MINUTE),
        HOUR..DAY => format!("{} h {} min", seconds / HOUR, seconds % HOUR / MINUTE),
        _ => format!("{} d {} h", seconds / DAY, seconds % DAY / HOUR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_shown_in_the_unit_that_suits_it() {
        for (micros, words) in [
            (0, "0.00 ms"),
            (128, "0.12 ms"),
            (9_999, "9.99 ms"),
            (50_000, "50 ms"),
            (6_290_000, "6.2 s"),
            (61_000_000, "1 min 1 s"),
            (3_600_000_000, "1 h 0 min"),
            (90_000_000_000, "1 d 1 h"),
        ] {
            assert_eq!(in_words(Duration::from_micros(micros)), words);
        }
    }
}
