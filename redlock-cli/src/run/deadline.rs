//! When the child gets SIGTERM and SIGKILL.

use core::time::Duration;

use redlock_std::Instant;

/// Ensures that the child runs only while the lease is valid. It has no I/O: it takes instants and returns orders.
///
/// ```text
/// extension due          SIGTERM            SIGKILL  valid_until
/// ----+---------------------+------------------+-------+---->
///     | retries               | kill_after      | margin |
/// ```
///
/// Until SIGTERM is sent, an extension of the lease moves both signals. After SIGTERM, the child is ended in any case.
#[derive(Debug)]
pub(crate) struct Deadline {
    kill_after: Duration,
    margin: Duration,
    stage: Stage,
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Running,
    Terminated {
        kill_at: Instant,
    },
    /// The child gets the [margin](Deadline::margin) to end, also if the SIGKILL came late.
    Killed {
        gone_at: Instant,
    },
    GivenUp,
}

/// What to do with the child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// SIGTERM; SIGKILL follows at `kill_at`.
    Terminate { kill_at: Instant },
    /// SIGKILL.
    Kill,
    /// The validity is over, and SIGKILL has not ended the child: report this to the operator.
    Report,
}

impl Deadline {
    /// SIGTERM is sent `kill_after` before SIGKILL. SIGKILL is sent some time before `validity` is over, because a process
    /// needs time to end.
    pub(crate) fn new(kill_after: Duration, validity: Duration) -> Self {
        Self {
            kill_after,
            margin: Self::margin(validity),
            stage: Stage::Running,
        }
    }

    /// How long before the end of the validity SIGKILL is sent. On a busy machine, this process needs time to be scheduled,
    /// and the child needs time to end.
    pub(crate) fn margin(validity: Duration) -> Duration {
        (validity / 20).clamp(Duration::from_millis(20), Duration::from_secs(1))
    }

    /// Returns what to do at `now`. Each order is returned once.
    pub(crate) fn order(
        &mut self,
        now: Instant,
        valid_until: Instant,
        is_lost: bool,
    ) -> Option<Order> {
        let end = valid_until.saturating_sub(self.margin);
        match self.stage {
            Stage::Running if is_lost || now >= end.saturating_sub(self.kill_after) => {
                let kill_at = now.saturating_add(self.kill_after).min(end);
                if now >= kill_at {
                    return Some(self.kill(now));
                }
                self.stage = Stage::Terminated { kill_at };
                Some(Order::Terminate { kill_at })
            }
            Stage::Terminated { kill_at } if now >= kill_at => Some(self.kill(now)),
            Stage::Killed { gone_at } if now >= valid_until.max(gone_at) => {
                self.stage = Stage::GivenUp;
                Some(Order::Report)
            }
            _ => None,
        }
    }

    /// When to call [`order`](Self::order) again, unless the lease is lost before.
    pub(crate) fn next(&self, valid_until: Instant) -> Instant {
        match self.stage {
            Stage::Running => valid_until.saturating_sub(self.margin + self.kill_after),
            Stage::Terminated { kill_at } => kill_at,
            Stage::Killed { gone_at } => valid_until.max(gone_at),
            Stage::GivenUp => Instant::MAX,
        }
    }

    /// Whether the child got SIGTERM, and it is not yet time for SIGKILL.
    pub(crate) fn has_time(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Terminated { kill_at } if now < kill_at)
    }

    /// Whether the child got SIGTERM or SIGKILL.
    pub(crate) const fn is_over(&self) -> bool {
        !matches!(self.stage, Stage::Running)
    }

    const fn kill(&mut self, now: Instant) -> Order {
        self.stage = Stage::Killed {
            gone_at: now.saturating_add(self.margin),
        };
        Order::Kill
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Valid for 30 s, SIGTERM 10 s before SIGKILL: at 19.9 s and at 29.9 s.
    const fn deadline() -> Deadline {
        Deadline {
            kill_after: Duration::from_secs(10),
            margin: Duration::from_millis(100),
            stage: Stage::Running,
        }
    }

    const fn ms(ms: u64) -> Instant {
        Instant::from_micros(ms * 1_000)
    }

    const END: Instant = ms(30_000);

    #[test]
    fn a_lease_that_is_not_extended_ends_in_sigterm_and_then_sigkill_before_its_validity_does() {
        let mut deadline = deadline();
        assert_eq!(deadline.next(END), ms(19_900));
        assert_eq!(deadline.order(ms(19_899), END, false), None);
        let terminate = Order::Terminate {
            kill_at: ms(29_900),
        };
        assert_eq!(deadline.order(ms(19_900), END, false), Some(terminate));
        assert_eq!(deadline.next(END), ms(29_900));
        assert_eq!(deadline.order(ms(29_899), END, false), None);
        assert_eq!(deadline.order(ms(29_900), END, false), Some(Order::Kill));
        assert_eq!(deadline.next(END), END);
        assert_eq!(deadline.order(ms(29_999), END, false), None);
        assert_eq!(deadline.order(END, END, false), Some(Order::Report));
        assert_eq!(deadline.order(ms(99_000), END, false), None);
        assert_eq!(deadline.next(END), Instant::MAX);
    }

    #[test]
    fn an_extension_moves_both_signals() {
        let mut deadline = deadline();
        let extended = ms(40_000);
        assert_eq!(deadline.order(ms(19_900), extended, false), None);
        assert_eq!(deadline.next(extended), ms(29_900));
        assert!(!deadline.is_over());
    }

    #[test]
    fn an_extension_after_sigterm_does_not_move_sigkill() {
        let mut deadline = deadline();
        deadline.order(ms(19_900), END, false);
        assert!(deadline.is_over());
        assert_eq!(
            deadline.order(ms(29_900), ms(50_000), false),
            Some(Order::Kill)
        );
    }

    #[test]
    fn a_lock_that_is_known_to_be_lost_ends_the_child_at_once() {
        let mut early = deadline();
        let terminate = Order::Terminate {
            kill_at: ms(15_000),
        };
        assert_eq!(early.order(ms(5_000), END, true), Some(terminate));
        let mut late = deadline();
        let terminate = Order::Terminate {
            kill_at: ms(29_900),
        };
        assert_eq!(late.order(ms(25_000), END, true), Some(terminate));
    }

    #[test]
    fn with_no_time_left_sigkill_comes_at_once() {
        // This process was paused, or the machine was in suspend.
        assert_eq!(deadline().order(ms(29_950), END, false), Some(Order::Kill));
        assert_eq!(deadline().order(ms(99_000), END, false), Some(Order::Kill));
        let mut at_once = Deadline {
            kill_after: Duration::ZERO,
            ..deadline()
        };
        assert_eq!(at_once.order(ms(5_000), END, true), Some(Order::Kill));
    }

    #[test]
    fn a_child_that_was_killed_late_gets_time_to_end_before_it_is_said_to_live() {
        // This process was paused past the end of the lease.
        let mut late = deadline();
        assert_eq!(late.order(ms(31_000), END, false), Some(Order::Kill));
        assert_eq!(late.next(END), ms(31_100));
        assert_eq!(late.order(ms(31_099), END, false), None);
        assert_eq!(late.order(ms(31_100), END, false), Some(Order::Report));
    }

    #[test]
    fn the_margin_is_small_beside_the_validity() {
        assert_eq!(
            Deadline::margin(Duration::from_secs(1)),
            Duration::from_millis(50)
        );
        // The time that a process needs to end does not depend on the TTL.
        assert_eq!(
            Deadline::margin(Duration::from_millis(97)),
            Duration::from_millis(20)
        );
        assert_eq!(
            Deadline::margin(Duration::from_secs(30)),
            Duration::from_secs(1)
        );
    }
}
