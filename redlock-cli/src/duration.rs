//! Durations, parsed from arguments and printed.

use core::time::Duration;

use humantime::DurationError;

pub(crate) use redlock_std::init::duration::in_words;

/// Parses an argument.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
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
        for text in ["5secret", "1s 5secret", "secret", "1s:secret", "5"] {
            let why = parse(text).unwrap_err();
            assert!(!why.contains("secret") && why.contains("30s"), "{why}");
        }
    }
}
