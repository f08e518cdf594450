//! Extends the lease while the command runs.

use core::cell::{Cell, RefCell};
use core::time::Duration;

use redlock_core::Clock;
use redlock_std::{ExtendError, Guard, Instant, Options, SystemClock};

use super::journal::{Event, Journal};

/// The current end of the lease, also readable while an extension is in flight.
#[derive(Debug)]
pub(crate) struct Validity {
    until: Cell<Instant>,
    trouble: RefCell<Option<String>>,
}

impl Validity {
    pub(crate) fn new(guard: &Guard) -> Self {
        Self {
            until: Cell::new(guard.valid_until()),
            trouble: RefCell::new(None),
        }
    }

    pub(crate) const fn until(&self) -> Instant {
        self.until.get()
    }

    /// Why the last extension failed.
    pub(crate) fn trouble(&self) -> String {
        self.trouble.borrow().clone().unwrap_or_else(|| {
            "the lease was not extended in time, because this process was paused".to_owned()
        })
    }

    fn left(&self) -> Duration {
        self.until
            .get()
            .saturating_duration_since(SystemClock.now())
    }
}

/// Extends the lease each time a third of its validity has passed, until it is lost. Returns the cause.
///
/// This replaces [`Guard::keep_alive`], because an operator needs to know which node failed while there is still time to
/// repair it.
pub(crate) async fn keep(
    guard: &mut Guard,
    options: &Options,
    validity: &Validity,
    journal: &Journal,
) -> ExtendError {
    let third = options.validity() / 3;
    let pause = (third / 10).min(Duration::from_secs(1));
    let mut due = guard.valid_until().saturating_sub(third * 2);
    let mut is_first = true;
    loop {
        SystemClock.sleep_until(due).await;
        match guard.extend().await {
            Ok(()) => {
                validity.until.set(guard.valid_until());
                validity.trouble.replace(None);
                is_first = true;
                due = guard.valid_until().saturating_sub(third * 2);
                journal.write(&Event::Extended {
                    valid: validity.left(),
                });
            }
            Err(error) if error.is_retryable() => {
                let why = error.to_string();
                validity.trouble.replace(Some(why.clone()));
                journal.write(&Event::NotExtended {
                    why,
                    valid: validity.left(),
                    is_first,
                });
                is_first = false;
                due = SystemClock.now().saturating_add(pause);
            }
            Err(error) => return error,
        }
    }
}
