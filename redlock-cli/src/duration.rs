//! Durations, parsed from arguments and printed.

use core::time::Duration;

use humantime::DurationError;

pub(crate) use redlock_std::init::duration::in_words;

/// Parses an argument. A number without a unit is in seconds, as those of `flock` and `timeout`.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if let Some((whole, rest)) = text.split_once('.').or(Some((text, "")))
        && !whole.is_empty()
        && is_number(whole)
        && is_number(rest)
        && rest.len() <= 6
    {
        // In microseconds, without floating point.
        let micros = format!("{whole}{rest:0<6}")
            .parse()
            .map(Duration::from_micros);
        return micros.map_err(|_| "number is too large; write 30s, 500ms or 2m".to_owned());
    }
    humantime::parse_duration(text).map_err(|error| {
        let why = match error {
            // This error quotes a part of the text, which may be anything.
            DurationError::UnknownUnit { .. } => "unknown time unit".to_owned(),
            error => error.to_string(),
        };
        format!("{why}; write 30s, 500ms or 2m")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn why_a_text_is_no_duration_does_not_repeat_it() {
        for text in [
            "5secret",
            "1s 5secret",
            "secret",
            "1s:secret",
            "-5",
            "5.secret",
            ".",
        ] {
            let why = parse(text).unwrap_err();
            assert!(!why.contains("secret") && why.contains("30s"), "{why}");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_in_seconds() {
        for (text, millis) in [("5", 5_000), ("0.25", 250), ("10.5", 10_500), ("0", 0)] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        assert!(parse("99999999999999999999").is_err());
    }
}
