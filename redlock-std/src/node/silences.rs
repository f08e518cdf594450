//! How often a node was silent.

use std::time::Duration;

use super::error::TransportError;

/// The silences of a node, each of which has ended a connection.
///
/// A long command may take longer over a slow network than a node may be silent. On each new connection it would be sent again, in vain.
/// So the time that the node may be silent doubles, up to a minute, until it has gone on answering for a minute after a connect.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Silences {
    in_a_row: u32,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Silences {
    /// How long the node may be silent on a connection on which it has gone on answering for `answered_for`. That is `usual` if it was not
    /// silent before.
    pub(crate) fn patience(self, usual: Duration, answered_for: Duration) -> Duration {
        if answered_for >= MINUTE {
            return usual;
        }
        let doubled = 2_u32.saturating_pow(self.in_a_row);
        usual.saturating_mul(doubled).min(MINUTE.max(usual))
    }

    /// Records why a connection has ended on which the node has gone on answering for `answered_for`.
    pub(crate) fn note(&mut self, kind: &TransportError, answered_for: Duration) {
        if answered_for >= MINUTE {
            self.in_a_row = 0;
        } else if matches!(kind, TransportError::Silent(_)) {
            self.in_a_row = self.in_a_row.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const SILENT: &TransportError = &TransportError::Silent(SECOND);

    #[test]
    fn a_node_may_be_silent_for_twice_the_time_after_each_silence_up_to_a_minute() {
        let mut silences = Silences::default();
        for patience in [1, 2, 4, 8, 16, 32, 60, 60] {
            assert_eq!(silences.patience(SECOND, SECOND * 59), SECOND * patience);
            silences.note(SILENT, SECOND * 59);
            silences.note(&TransportError::Disconnected, SECOND * 59);
        }
        assert_eq!(silences.patience(SECOND * 80, SECOND), SECOND * 80);
    }

    #[test]
    fn a_node_that_has_answered_for_a_minute_is_as_one_that_was_never_silent() {
        for kind in [SILENT, &TransportError::Disconnected] {
            let mut silences = Silences::default();
            for _ in 0..3 {
                silences.note(SILENT, Duration::ZERO);
            }
            assert_eq!(silences.patience(SECOND, MINUTE), SECOND);
            silences.note(kind, MINUTE);
            assert_eq!(silences.patience(SECOND, Duration::ZERO), SECOND);
        }
    }
}
