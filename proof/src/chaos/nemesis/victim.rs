//! Which nodes and clients a fault is done to, and when.

use std::error::Error;

use redlock_core::{Clock, Instant};
use redlock_std::SystemClock;

use super::Nemesis;

impl Nemesis<'_> {
    /// The client to which something is to be done, and until when it holds the lock: mostly one that does.
    pub(super) fn victim(&mut self) -> Result<(usize, Instant), Box<dyn Error>> {
        // While a majority is dead, it may be that no client can hold it.
        let give_up_at = SystemClock.now().saturating_add(self.ttl * 5);
        let is_any = self.random.one_in(4);
        loop {
            let now = SystemClock.now();
            let able = self.undisturbed();
            if let Some((client, until)) = self.stage.recorder.holder(now)
                && able.contains(&client)
                && !is_any
            {
                return Ok((client, until));
            }
            if is_any || now >= give_up_at {
                return self.pick(&able).map(|client| (client, now));
            }
            self.stage.watch()?;
            self.undo_what_is_due()?;
        }
    }

    /// A client that is likely to acquire in the next moment, and that would hold the lock to the very end.
    pub(super) fn acquirer(&mut self) -> Result<usize, Box<dyn Error>> {
        let give_up_at = SystemClock.now().saturating_add(self.ttl);
        loop {
            let now = SystemClock.now();
            if self.stage.recorder.holder(now).is_none() || now >= give_up_at {
                let mut able = self.undisturbed();
                if able
                    .iter()
                    .any(|client| self.stage.crew.is_lapsing(*client))
                {
                    able.retain(|client| self.stage.crew.is_lapsing(*client));
                }
                return self.pick(&able);
            }
            self.stage.watch()?;
            self.undo_what_is_due()?;
        }
    }

    fn undisturbed(&self) -> Vec<usize> {
        let mut clients = self.stage.crew.numbers();
        clients.retain(|client| {
            let mut lasting = self.lasting.iter();
            !lasting.any(|lasting| lasting.client == Some(*client))
        });
        clients
    }

    fn pick(&mut self, clients: &[usize]) -> Result<usize, Box<dyn Error>> {
        let client = self.random.pick(clients);
        client.ok_or_else(|| "no client is left to be disturbed".into())
    }

    /// Waits until a client holds the lock for some time to come.
    pub(super) fn wait_for_holder(&mut self) -> Result<(), Box<dyn Error>> {
        loop {
            let soon = SystemClock.now().saturating_add(self.ttl / 4);
            if self.stage.recorder.holder(soon).is_some() {
                return Ok(());
            }
            self.stage.watch()?;
        }
    }
}
