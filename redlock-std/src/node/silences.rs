//! How often a node was silent.

use std::time::Duration;

/// The silences of a node, each of which has ended a connection.
///
/// A long command may take longer over a slow network than a node may be silent. On each new connection it would be sent again, in vain.
/// So the time that the node may be silent doubles, up to a minute, until a connection lasts for that long.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Silences {
    in_a_row: u32,
}

const MOST: Duration = Duration::from_secs(60);

impl Silences {
    /// How long the node may be silent now if that is `first` otherwise.
    pub(crate) fn patience(self, first: Duration) -> Duration {
        let doubled = 2_u32.saturating_pow(self.in_a_row);
        first.saturating_mul(doubled).min(MOST.max(first))
    }

    /// Records that the node was silent for `silent_for`, on a connection that lasted for `lived`.
    pub(crate) fn note(&mut self, lived: Duration, silent_for: Duration) {
        self.in_a_row = match lived.saturating_sub(silent_for) < MOST {
            true => self.in_a_row.saturating_add(1),
            false => 0,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_node_may_be_silent_for_twice_the_time_after_each_silence_up_to_a_minute() {
        let mut silences = Silences::default();
        for patience in [1, 2, 4, 8, 16, 32, 60, 60] {
            let patience = SECOND * patience;
            assert_eq!(silences.patience(SECOND), patience);
            silences.note(SECOND * 30 + patience, patience);
        }
        assert_eq!(silences.patience(SECOND * 80), SECOND * 80);
    }

    #[test]
    fn a_connection_that_lasts_for_a_minute_makes_the_time_short_again() {
        let mut silences = Silences::default();
        for _ in 0..3 {
            silences.note(SECOND * 9, SECOND);
        }
        silences.note(SECOND * 64, SECOND * 4);
        assert_eq!(silences.patience(SECOND), SECOND);
    }
}
