//! One extension of a lease.

use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::ExtendError;
use crate::lease::Lease;
use crate::readings::Readings;
use crate::redlock::Redlock;
use crate::report::Report;
use crate::round::{Round, Verdict};
use crate::time::{Clock, Instant};
use crate::transport::Transport;

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    pub(crate) async fn extension<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
    ) -> Result<(), ExtendError<T::Error, MAX>> {
        let mut rounds = 0;
        let (verdict, report, valid_until) = loop {
            let started_at = self.clock.now();
            if !lease.is_valid(started_at) {
                return Err(ExtendError::Expired);
            }
            let (verdict, report, valid_until, mut readings) =
                self.extension_round(lease, started_at).await;
            rounds += 1;
            if lease.proposal().is_some() {
                self.learn(&mut readings);
                if rounds == 1 && self.may_fit(verdict, &report, &readings) {
                    continue;
                }
            }
            break (verdict, report, valid_until);
        };
        match verdict {
            Verdict::Won => {
                lease.extended_until(valid_until);
                Ok(())
            }
            Verdict::TooLate => Err(ExtendError::TooLate(report)),
            // Lost for certain only when too few other nodes are left for a quorum; with an even number
            // of nodes that may be so although as many are silent.
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending
                if self.count() - report.tally().refused < self.quorum() as usize =>
            {
                Err(ExtendError::Lost(report))
            }
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending => {
                Err(ExtendError::Unreachable(report))
            }
        }
    }

    async fn extension_round<K: AsRef<[u8]>>(
        &mut self,
        lease: &Lease<K>,
        started_at: Instant,
    ) -> (Verdict, Report<T::Error, MAX>, Instant, Readings<MAX>) {
        let ttl_ms = lease.ttl_ms();
        let command = Command::Extend {
            key: lease.key().as_ref(),
            token: lease.token(),
            ttl_ms,
            proposal: lease
                .proposal()
                .map(|proposal| proposal.at(self.nodes_time())),
        };
        let resolution = self.clock.resolution();
        let valid_until = self.options.valid_until(started_at, ttl_ms, resolution);
        let deadline = started_at.saturating_add(self.options.round_time());
        let voters = self.all.without(self.duplicates());
        let round = Round::new(
            voters,
            self.quorum(),
            deadline.min(lease.valid_until()),
            valid_until.min(lease.valid_until()),
        );
        let mut readings = Readings::new();
        let (verdict, mut report) = self.ask(voters, &command, round, &mut readings).await;
        self.name_duplicates(&mut report);
        (verdict, report, valid_until, readings)
    }
}
