//! One extension of a lease.

use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::ExtendError;
use crate::lease::Lease;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::round::{Doubt, Verdict};
use crate::time::{Clock, Instant};
use crate::transport::{NodeErrorOf, Transport};

impl<T: Transport, C: Clock, E: Entropy, const MAX: usize> Redlock<T, C, E, MAX> {
    pub(crate) async fn extension<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
    ) -> Result<(), ExtendError<NodeErrorOf<T>, MAX>> {
        let mut rounds = 0;
        let (ballot, started_at) = loop {
            let started_at = self.clock.now();
            if !lease.is_valid(started_at) {
                return Err(ExtendError::Expired);
            }
            let mut ballot = self.extension_round(lease, started_at);
            if lease.proposal().is_some() && rounds > 0 {
                ballot.round.doubt(Doubt::Time);
            }
            self.ask(&mut ballot).await;
            self.judge_duplicates(&mut ballot);
            rounds += 1;
            if lease.proposal().is_some() {
                self.learn(&mut ballot);
                if rounds == 1 && self.may_fit(&ballot) {
                    continue;
                }
            }
            break (ballot, started_at);
        };
        let Ballot {
            verdict, report, ..
        } = ballot;
        match verdict {
            Verdict::Won => {
                let valid_until = lease
                    .terms()
                    .valid_until(started_at, self.clock.resolution());
                lease.extended_until(valid_until);
                Ok(())
            }
            Verdict::TooLate => Err(ExtendError::TooLate(report)),
            // Lost only if too few nodes have not refused for a quorum. With an even number of nodes, this can
            // be so although as many nodes have not answered.
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending
                if self.count() - report.tally().refused < self.quorum() as usize =>
            {
                lease.end(started_at);
                Err(ExtendError::Lost(report))
            }
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending => {
                Err(ExtendError::Unreachable(report))
            }
        }
    }

    fn extension_round<'c, K: AsRef<[u8]>>(
        &self,
        lease: &'c Lease<K>,
        started_at: Instant,
    ) -> Ballot<'c, NodeErrorOf<T>, MAX> {
        let terms = lease.terms();
        let proposal = lease.proposal();
        let command = Command::extend(lease.key().as_ref(), lease.token(), terms.ttl_ms)
            .with_proposal(proposal.map(|proposal| proposal.at(self.nodes_time())));
        self.ballot(command, started_at, terms, lease.valid_until())
    }
}
