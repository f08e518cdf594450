//! What can be broken on purpose.

use redlock_core::mock::ServerFlaw;

use super::promise::Promise;

/// Something that the lock may rely on, broken on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Assumption {
    /// Clocks differ in rate by more than the options allow.
    Drift,
    /// Nodes come back without their data, and the restart guard is off.
    Forget,
    /// Clocks of nodes are set forward.
    Jump,
    /// Clocks of clients say that they have no tick.
    Resolution,
    /// Commands overtake each other on one connection.
    Order,
    /// Nodes delete a key whosever it is.
    Compare,
    /// Timers forget to wake.
    Wake,
    /// Clients draw the same tokens.
    Entropy,
    /// The clocks of a majority of nodes jump together.
    JumpTogether,
    /// The margin for clocks that jump is not taken off the validity.
    Margin,
    /// Nodes forget until when a key was held when a clock that is ahead takes it away.
    HeldUntil,
    /// Nodes count their grants, and the highest count that a client is told is its fence.
    Count,
    /// A client asks for the highest fence, and writes one more back, which nodes accept in any case.
    WriteBack,
    /// Nodes accept the same fence again.
    Strict,
    /// Nodes accept a fence however old, and forget fences when their TTL is over.
    Floor,
    /// Nodes accept a fence however new.
    Ceiling,
    /// Nodes that forgot come back before the last fence that they may have forgotten is too old.
    Quarantine,
    /// Nodes accept a fence that was released.
    Burn,
    /// Clocks of nodes are set back by more than is agreed.
    StepBack,
    /// Nodes take an attempt that proposes the fence of another for the other.
    EqualFences,
    /// Nodes without a guard record take the rules of the first client that asks.
    AnyRules,
    /// Clients vouch for nodes without a guard record by what an earlier attempt was told of the rules.
    OldConfirmation,
    /// Clients vouch for nodes by the records of earlier processes, which may be older than the rules of the fleet.
    OldRecords,
    /// Plain clients take leases that are longer than the guard records of the nodes allow.
    LongPlain,
    /// Nodes know their guard record by the process alone, also when they have been replicas meanwhile.
    Failback,
    /// Nodes that evict keys say that they do not.
    Eviction,
    /// Operators tell nodes that have lost their data that they are new.
    Init,
    /// The quarantine is long enough for leases, and not for clocks that are set back.
    StepBackQuarantine,
    /// Holders who are told that their lease is lost go by what it said before.
    Lost,
    /// Servers that are named twice are not known to be one.
    Duplicates,
    /// Holders count an extended lease by the options of today.
    TodaysOptions,
    /// Clients follow the clock of one node.
    OneClock,
    /// Replicas take writes, and say that they are masters.
    Replica,
    /// A release by a client with other rules shortens the life of the fence.
    ShorterFences,
    /// Nodes answer some commands of devices twice.
    Twice,
    /// Nodes tell a device on each connection what they told it on the first one.
    OldIdentity,
    /// Nodes say that they have done a release that a device had stored, and have not.
    StoredRelease,
    /// A release that a device need not send, because its acquire was not sent, counts as an answer of the node.
    EarlyRelease,
    /// A client that does not come when it is its turn stays at the head of the line.
    KeptHead,
    /// A turn does not end.
    EndlessTurn,
    /// Clients draw a ticket for each try.
    TicketPerTry,
    /// Clients try as soon as one node has called them.
    FirstCall,
    /// Nodes call before they have deleted the key.
    CallFirst,
    /// Nodes call clients that are gone as if they lived.
    DeadMembers,
    /// Nodes take an error for the end of a client.
    ErrorIsDeath,
    /// Clients sleep for long after a split vote.
    LongTimer,
    /// A client that has left stays in the line.
    KeptPlace,
    /// A lost round that was granted by a minority costs a client its place.
    LostPlace,
    /// Nodes that have restarted have a vote for an adoption.
    VotelessAdoption,
    /// After a restart of a node clients wait for the longest TTL, and not for the longest `min_hold`.
    MinHoldGuard,
    /// A late extension can shorten the rest of a `min_hold`.
    MinHoldToken,
}

impl Assumption {
    /// Whether the algorithm itself rests on it: without it, two hold one lock.
    #[must_use]
    pub const fn is_of_the_algorithm(self) -> bool {
        self.breaks().is_some()
    }

    /// The promise that rests on it alone; none where any may break first.
    #[must_use]
    pub const fn breaks(self) -> Option<Promise> {
        match self {
            Self::EqualFences
            | Self::AnyRules
            | Self::OldConfirmation
            | Self::OldRecords
            | Self::Failback
            | Self::Eviction
            | Self::Init
            | Self::TodaysOptions
            | Self::Drift
            | Self::Forget
            | Self::Jump
            | Self::JumpTogether
            | Self::Margin
            | Self::VotelessAdoption
            | Self::HeldUntil => Some(Promise::Exclusion),
            Self::Count
            | Self::WriteBack
            | Self::Strict
            | Self::Floor
            | Self::Ceiling
            | Self::Quarantine
            | Self::StepBackQuarantine
            | Self::ShorterFences
            | Self::StepBack => Some(Promise::Fence),
            Self::Burn => Some(Promise::Burn),
            Self::Lost => Some(Promise::Over),
            Self::LongPlain => Some(Promise::Ttl),
            Self::Duplicates | Self::Twice => Some(Promise::Votes),
            Self::OldIdentity => Some(Promise::Restart),
            Self::StoredRelease => Some(Promise::Cleanup),
            Self::EarlyRelease => Some(Promise::Release),
            Self::OneClock => Some(Promise::NodesTime),
            Self::Replica => Some(Promise::Replica),
            Self::FirstCall => Some(Promise::Restraint),
            Self::KeptHead
            | Self::EndlessTurn
            | Self::CallFirst
            | Self::DeadMembers
            | Self::LongTimer => Some(Promise::Idle),
            Self::TicketPerTry | Self::ErrorIsDeath => Some(Promise::Fairness),
            Self::KeptPlace => Some(Promise::Line),
            Self::MinHoldGuard | Self::MinHoldToken => Some(Promise::MinHold),
            Self::LostPlace => None,
            Self::Resolution | Self::Order | Self::Compare | Self::Wake | Self::Entropy => None,
        }
    }

    /// How many seeds it takes at the most to find it. A few need several things to come together.
    #[must_use]
    pub const fn found_within(self) -> u64 {
        match self {
            Self::TodaysOptions | Self::CallFirst | Self::DeadMembers | Self::MinHoldToken => {
                60_000
            }
            Self::AnyRules
            | Self::OldConfirmation
            | Self::OldRecords
            | Self::Strict
            | Self::StepBack
            | Self::VotelessAdoption => 20_000,
            Self::Burn | Self::EqualFences | Self::ShorterFences | Self::LostPlace => 40_000,
            _ => 2_000,
        }
    }

    /// Whether there are fences in its worlds; none where it makes no difference.
    pub(super) const fn needs_fences(self) -> bool {
        let is_of_plain_locks = matches!(self, Self::Compare | Self::Replica | Self::MinHoldToken)
            || self.needs_lines();
        self.server_flaw().is_some() && !is_of_plain_locks
            || matches!(
                self,
                Self::JumpTogether
                    | Self::Margin
                    | Self::StepBack
                    | Self::Eviction
                    | Self::Init
                    | Self::TodaysOptions
                    | Self::OneClock
                    | Self::OldConfirmation
                    | Self::OldRecords
                    | Self::LongPlain
            )
    }

    /// Whether some clients of its worlds are devices: not where a connection is no stream of bytes, or an answer has no form.
    pub(super) const fn suits_devices(self) -> bool {
        !matches!(
            self,
            Self::Order
                | Self::WriteBack
                | Self::OldConfirmation
                | Self::OldRecords
                | Self::LongPlain
                | Self::VotelessAdoption
                | Self::MinHoldGuard
                | Self::MinHoldToken
        )
    }

    /// Whether processes take over the leases of others in its worlds.
    pub(super) const fn needs_adoptions(self) -> bool {
        matches!(self, Self::VotelessAdoption)
    }

    /// Whether an operator changes the rules in its worlds.
    pub(super) const fn changes_rules(self) -> bool {
        matches!(self, Self::OldConfirmation | Self::OldRecords)
    }

    /// Whether it makes a difference to devices only.
    pub(super) const fn needs_devices(self) -> bool {
        matches!(
            self,
            Self::Twice | Self::OldIdentity | Self::StoredRelease | Self::EarlyRelease
        )
    }

    /// Whether it is about the lines of waiting clients.
    pub(super) const fn needs_lines(self) -> bool {
        matches!(
            self,
            Self::KeptHead
                | Self::EndlessTurn
                | Self::TicketPerTry
                | Self::FirstCall
                | Self::CallFirst
                | Self::DeadMembers
                | Self::ErrorIsDeath
                | Self::LongTimer
                | Self::KeptPlace
                | Self::LostPlace
        )
    }

    /// What nodes do wrong.
    pub(crate) const fn server_flaw(self) -> Option<ServerFlaw> {
        match self {
            Self::Compare => Some(ServerFlaw::ReleasesAnyToken),
            Self::Eviction | Self::Replica => Some(ServerFlaw::HidesItsRole),
            Self::Count => Some(ServerFlaw::CountsGrants),
            Self::WriteBack => Some(ServerFlaw::AcceptsAnyFence),
            Self::Strict => Some(ServerFlaw::AcceptsFenceAgain),
            Self::Floor => Some(ServerFlaw::AcceptsOldFence),
            Self::Ceiling => Some(ServerFlaw::AcceptsNewFence),
            Self::Quarantine => Some(ServerFlaw::QuarantineTooShort),
            Self::Burn => Some(ServerFlaw::BurnsNoFence),
            Self::HeldUntil => Some(ServerFlaw::ForgetsHeldUntil),
            Self::EqualFences => Some(ServerFlaw::ConfusesEqualFences),
            Self::AnyRules => Some(ServerFlaw::TakesAnyRules),
            Self::Failback => Some(ServerFlaw::MissesFailback),
            Self::StepBackQuarantine => Some(ServerFlaw::QuarantineWithoutStepBack),
            Self::ShorterFences => Some(ServerFlaw::ShortensFenceRecord),
            Self::KeptHead => Some(ServerFlaw::KeepsHead),
            Self::EndlessTurn => Some(ServerFlaw::TurnNeverEnds),
            Self::TicketPerTry => Some(ServerFlaw::TakesLastTicket),
            Self::CallFirst => Some(ServerFlaw::CallsWhileHeld),
            Self::DeadMembers => Some(ServerFlaw::TakesGoneForAlive),
            Self::ErrorIsDeath => Some(ServerFlaw::TakesErrorForGone),
            Self::KeptPlace => Some(ServerFlaw::KeepsLeaver),
            Self::LostPlace => Some(ServerFlaw::LosesPlace),
            Self::MinHoldToken => Some(ServerFlaw::KeepsToken),
            _ => None,
        }
    }
}
