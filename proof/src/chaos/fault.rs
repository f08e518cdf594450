//! What can be done to nodes and clients.

/// How many nodes there are.
pub(super) const NODES: usize = 5;

/// As many as no lock can do without.
pub(super) const MAJORITY: usize = NODES / 2 + 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    StopNodes,
    StopMajority,
    /// The nodes come back empty, when every lease is over that they have voted for: the Redlock
    /// specification, "Delayed restarts".
    KillNodes,
    FlushScripts,
    KillConnections,
    /// Nothing reaches the node: commands are lost, and no client can connect.
    LoseRequests,
    /// Nothing comes from the node: commands may be obeyed, but no reply arrives.
    LoseReplies,
    /// Nothing of a client reaches any node: it cannot extend, while other clients may acquire.
    CutOffClient,
    /// A client hears from no node, while they obey it: it does not know what it has.
    DeafenClient,
    PauseClient,
    KillClient,
    ResetDevice,
    /// Nodes forget everything. They have no vote until the quarantine is over.
    Forget,
    /// The nodes come back empty at once. They have no vote until all that they have forgotten is over.
    RestartEmpty,
    /// The nodes become replicas of servers with older data, and are masters again. Their processes stay, and
    /// with a fenced lock their connections too: a plain client has to be told.
    FailBack,
    /// The nodes may evict keys, and do. They are allowed to stop it when all leases are over that they have
    /// voted for: what was evicted before is lost.
    Evict,
    /// A node forgets everything, and the operator runs `redlock init`, which has to refuse.
    Init,
    /// The same with `redlock init --repair`, which races with the clients for the guard record.
    Repair,
    /// The operator runs `redlock doctor`.
    Examine,
    /// The wall clocks of a minority jump, and are right again when all leases are over that they have
    /// voted for.
    StepClocks,
    /// A majority forgets every key, which breaks the assumption.
    FlushKeys,
    /// A majority evicts every key, and may not do so before and after: no client sees it, which breaks the
    /// assumption.
    EvictUnseen,
}

impl Kind {
    /// What a lock has to live with.
    pub(super) const BEARABLE: [Self; 15] = [
        Self::StopNodes,
        Self::StopMajority,
        Self::KillNodes,
        Self::RestartEmpty,
        Self::FailBack,
        Self::Evict,
        Self::FlushScripts,
        Self::KillConnections,
        Self::LoseRequests,
        Self::LoseReplies,
        Self::CutOffClient,
        Self::DeafenClient,
        Self::PauseClient,
        Self::KillClient,
        Self::ResetDevice,
    ];

    /// What a fenced lock has to live with: nodes forget in any way, and clocks jump.
    pub(super) const BEARABLE_FENCED: [Self; 18] = [
        Self::StopNodes,
        Self::StopMajority,
        Self::Forget,
        Self::RestartEmpty,
        Self::FailBack,
        Self::Evict,
        Self::Init,
        Self::Repair,
        Self::Examine,
        Self::StepClocks,
        Self::FlushScripts,
        Self::KillConnections,
        Self::LoseRequests,
        Self::LoseReplies,
        Self::CutOffClient,
        Self::DeafenClient,
        Self::PauseClient,
        Self::KillClient,
    ];

    /// Those that are done to a client, mostly to one that holds the lock.
    pub(super) const TO_CLIENTS: [Self; 4] = [
        Self::CutOffClient,
        Self::DeafenClient,
        Self::PauseClient,
        Self::KillClient,
    ];

    /// What no lock of this kind survives.
    pub(super) const FORGETTING: [Self; 2] = [Self::FlushKeys, Self::EvictUnseen];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::StopNodes => "nodes stopped (SIGSTOP)",
            Self::StopMajority => "a majority stopped (SIGSTOP)",
            Self::KillNodes => "nodes killed, away for a TTL",
            Self::FlushScripts => "scripts flushed",
            Self::KillConnections => "connections killed",
            Self::LoseRequests => "cut: nothing reaches the node",
            Self::LoseReplies => "cut: nothing comes from the node",
            Self::CutOffClient => "cut: a client reaches no node",
            Self::DeafenClient => "cut: a client hears no node",
            Self::PauseClient => "client paused past its lease",
            Self::KillClient => "client killed",
            Self::ResetDevice => "device reset",
            Self::Forget => "nodes flushed (FLUSHALL)",
            Self::RestartEmpty => "nodes killed, back at once, empty",
            Self::FailBack => "nodes failed over and back",
            Self::Evict => "nodes evicted keys",
            Self::Init => "node flushed: redlock init",
            Self::Repair => "node flushed: redlock init --repair",
            Self::Examine => "redlock doctor",
            Self::StepClocks => "clocks of nodes stepped",
            Self::FlushKeys => "a majority: keys flushed",
            Self::EvictUnseen => "a majority: keys evicted, unseen",
        }
    }

    /// Whether it takes a network that this run has for itself.
    pub(super) const fn is_cut(self) -> bool {
        matches!(
            self,
            Self::LoseRequests | Self::LoseReplies | Self::CutOffClient | Self::DeafenClient
        )
    }

    /// Whether the operator runs a command.
    pub(super) const fn is_of_operator(self) -> bool {
        matches!(self, Self::Init | Self::Repair | Self::Examine)
    }

    /// Whether a client is started, which has met no node.
    pub(super) const fn brings_newcomer(self) -> bool {
        matches!(self, Self::KillClient | Self::ResetDevice)
    }

    /// Whether nodes lose keys that live.
    pub(super) const fn is_loss(self) -> bool {
        matches!(
            self,
            Self::Forget
                | Self::RestartEmpty
                | Self::FailBack
                | Self::Evict
                | Self::Init
                | Self::Repair
                | Self::FlushKeys
                | Self::EvictUnseen
        )
    }

    /// Whether it begins and ends at one moment.
    pub(super) const fn is_momentary(self) -> bool {
        match self {
            Self::FlushScripts
            | Self::KillConnections
            | Self::KillClient
            | Self::ResetDevice
            | Self::Examine
            | Self::FlushKeys
            | Self::EvictUnseen => true,
            Self::StopNodes
            | Self::StopMajority
            | Self::KillNodes
            | Self::Forget
            | Self::RestartEmpty
            | Self::FailBack
            | Self::Evict
            | Self::Init
            | Self::Repair
            | Self::StepClocks
            | Self::LoseRequests
            | Self::LoseReplies
            | Self::CutOffClient
            | Self::DeafenClient
            | Self::PauseClient => false,
        }
    }
}
