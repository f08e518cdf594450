//! One extension of a lease.

use crate::command::Command;
use crate::entropy::Entropy;
use crate::error::ExtendError;
use crate::fence::{Fence, Proposal};
use crate::lease::Lease;
use crate::observer::Observer;
use crate::race::Ballot;
use crate::redlock::Redlock;
use crate::round::{Distrust, Verdict};
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::{NodeErrorOf, Transport};
use crate::vote_conditions::VoteConditions;

impl<T, C, E, const MAX: usize, O> Redlock<T, C, E, MAX, O>
where
    T: Transport,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    /// Takes over a lease that another process has acquired and left on the nodes: extends it, with the TTL and the drift of the
    /// options. This TTL must be that of the lease: an extension that was sent before, by the other process or by an adoption that failed,
    /// may arrive late, and sets its own TTL. The lease is fenced if there is a `fence` and the options are
    /// [fenced](crate::Options::fencing). The rules must be those of the lease.
    ///
    /// A quorum of nodes that have a vote must still carry `token`. Then no other client has held the lock since it was granted: with
    /// a plain lock, unless a command of the lease has reached a node more than one TTL after it was sent, or a node has failed over
    /// and back behind an open connection; with a fenced lock, no other fenced client. The validity counts from the start of this
    /// round, whatever became of the first validity. A node that has restarted has no vote, as for the acquire of a plain lock,
    /// because it may have come back with old data. The process that handed the lease over must not use it any more. Neither may an
    /// earlier lease of this one, whose validity is over, be released after a second adoption: they have one token.
    ///
    /// Dropping the future leaves the lease on the nodes. It may have been extended.
    ///
    /// # Errors
    ///
    /// Those of [`extend`](Self::extend), but not [`ExtendError::Expired`]. After [`ExtendError::Unreachable`] and
    /// [`ExtendError::TooLate`], try again. The key and the token stay on the nodes in any case.
    pub async fn adopt<K: AsRef<[u8]>>(
        &mut self,
        key: K,
        token: Token,
        fence: Option<Fence>,
    ) -> Result<Lease<K>, ExtendError<NodeErrorOf<T>, MAX>> {
        self.send_abandoned_release().await;
        let time = self.nodes_time();
        let proposal = fence
            .zip(self.options.fencing())
            .map(|(fence, fencing)| Proposal::new(fence, fencing, time, false));
        let (terms, place) = (self.options.terms(), self.outside());
        let mut lease = Lease::new(key, token, terms, Instant::MAX, proposal, place);
        let conditions = self.options.vote_conditions();
        let conditions = VoteConditions {
            // The script of an extension trusts the guard record, and that may be old data too.
            restart_guard: conditions.restart_guard || proposal.is_some(),
            refuse_eviction: false,
            ..conditions
        };
        self.extension_if(&mut lease, conditions).await?;
        #[cfg(feature = "observe")]
        if O::OBSERVES {
            lease = lease.granted_at(self.clock.now());
        }
        Ok(lease)
    }

    /// Extends the lease in one round. A fenced lease takes a second round if the first was lost only because the client did
    /// not know the nodes' time.
    pub(crate) fn extension<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
    ) -> impl Future<Output = Result<(), ExtendError<NodeErrorOf<T>, MAX>>> {
        self.extension_if(lease, VoteConditions::NONE)
    }

    /// An extension that counts only the nodes that meet these conditions.
    async fn extension_if<K: AsRef<[u8]>>(
        &mut self,
        lease: &mut Lease<K>,
        conditions: VoteConditions,
    ) -> Result<(), ExtendError<NodeErrorOf<T>, MAX>> {
        let mut rounds = 0;
        let (ballot, started_at) = loop {
            let started_at = self.clock.now();
            if !lease.is_valid(started_at) {
                return Err(ExtendError::Expired);
            }
            let mut ballot = self.extension_round(lease, conditions, started_at);
            if lease.proposal().is_some() && rounds > 0 {
                ballot.round.distrust(Distrust::Time);
            }
            self.run(&mut ballot).await;
            self.record_duplicates(&mut ballot);
            rounds += 1;
            if lease.proposal().is_some() {
                self.learn_time(&mut ballot, started_at);
                if rounds == 1 && self.is_worth_repeating(&ballot) {
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
                lease.set_valid_until(valid_until);
                Ok(())
            }
            Verdict::TooLate => Err(ExtendError::TooLate(report)),
            // The lease is lost only if no quorum can carry its token any more.
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending
                if self.is_quorum_impossible(&report) =>
            {
                lease.mark_lost(started_at);
                Err(ExtendError::Lost(report))
            }
            Verdict::Refused | Verdict::Unreachable | Verdict::Pending => {
                Err(ExtendError::Unreachable(report))
            }
        }
    }

    /// Creates one round of an extension.
    fn extension_round<'c, K: AsRef<[u8]>>(
        &self,
        lease: &'c Lease<K>,
        conditions: VoteConditions,
        started_at: Instant,
    ) -> Ballot<'c, NodeErrorOf<T>, MAX> {
        let terms = lease.terms();
        let proposal = lease.proposal();
        let key = lease.key().as_ref();
        let command = Command::adopt(key, lease.token(), terms.ttl_ms, conditions)
            .with_proposal(proposal.map(|proposal| proposal.at(self.nodes_time())));
        self.lease_round(command, started_at, terms, lease.valid_until())
    }
}
