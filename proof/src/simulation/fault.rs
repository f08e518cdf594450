//! What goes wrong in a world.

use core::fmt;

use super::clock::{Moment, Seconds};
use super::place::Route;

/// Something that goes wrong at some moment.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Fault {
    /// The connection breaks; what is on its way is lost or late.
    Break(Route),
    /// Nothing gets from the client to the node until then.
    CutRequests(Route, Moment),
    /// Nothing gets from the node to the client until then.
    CutReplies(Route, Moment),
    /// Everything takes longer by so much, either way, until then.
    Spike(Route, u64, Moment),
    /// The node stands still until then, with its connections open.
    Hang(usize, Moment),
    /// The node dies, and comes back with its data.
    Crash(usize, Moment),
    /// The node dies, and comes back without its data.
    Forget(usize, Moment),
    /// The node dies, and comes back with older data: a dump was restored.
    Restore(usize, Moment),
    /// The node loses its data and lives on: FLUSHALL.
    Flush(usize),
    /// Its data is saved, for a restore or for the node that is to follow it.
    Save(usize),
    /// It becomes a replica, with its connections open.
    Demote(usize),
    /// It becomes a master again, with older data.
    Promote(usize),
    /// Its policy: whether keys may go for want of memory.
    Policy(usize, bool),
    /// It evicts the keys of one lock.
    Evict(usize, usize),
    /// An operator runs `redlock init`.
    Init,
    /// An operator runs `redlock init --repair`.
    Repair,
    /// An operator runs `redlock init --repair` with other rules.
    Change,
    /// The clock of the node is set: so much ahead of those that are right, or behind them.
    Set(usize, i64),
    /// The clock of the node is set back by so much.
    SetBack(usize, u64),
    /// The clock of the node is set forward by so much.
    SetForward(usize, u64),
    /// The process is not run for so long.
    Pause(usize, u64),
    /// The node loses its scripts and nothing else: SCRIPT FLUSH.
    FlushScripts(usize),
    /// The process dies, and its connections with it.
    Die(usize),
    /// The node loses the line of a key, and nothing else.
    ForgetLine(usize, usize),
}

/// The kinds of what goes wrong, as they are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    DriftAtTheLimit,
    CoarseClock,
    Pause,
    Stall,
    BrokenConnection,
    LostCommand,
    LostReply,
    LateCommand,
    OvertakenCommand,
    ResentRelease,
    CutRequests,
    CutReplies,
    Spike,
    Hang,
    Crash,
    CrashWithLoss,
    Flush,
    DeadForGood,
    MetAgain,
    Denial,
    Quarantined,
    StaleFence,
    FenceOutOfWindow,
    ClockSetBack,
    ClockStep,
    WrongProposal,
    RefusedVisit,
    NeverPolled,
    DroppedFuture,
    ForgottenLease,
    Repair,
    Change,
    TtlTooLong,
    CrashAndRestore,
    Demoted,
    ReadOnly,
    Evicted,
    AskedAgain,
    LostGrant,
    Unguarded,
    OtherRules,
    Init,
    ServerNamedTwice,
    CutOffCommand,
    FullSocket,
    ScriptFlush,
    NoScript,
    Died,
    Call,
    LostCall,
    StrayCall,
    ForgottenLine,
    /// The assumption that is broken on purpose.
    BrokenAssumption,
}

impl Kind {
    pub(crate) const ALL: [Self; 53] = [
        Self::DriftAtTheLimit,
        Self::CoarseClock,
        Self::Pause,
        Self::Stall,
        Self::BrokenConnection,
        Self::LostCommand,
        Self::LostReply,
        Self::LateCommand,
        Self::OvertakenCommand,
        Self::ResentRelease,
        Self::CutRequests,
        Self::CutReplies,
        Self::Spike,
        Self::Hang,
        Self::Crash,
        Self::CrashWithLoss,
        Self::Flush,
        Self::DeadForGood,
        Self::MetAgain,
        Self::Denial,
        Self::Quarantined,
        Self::StaleFence,
        Self::FenceOutOfWindow,
        Self::ClockSetBack,
        Self::ClockStep,
        Self::WrongProposal,
        Self::RefusedVisit,
        Self::NeverPolled,
        Self::DroppedFuture,
        Self::ForgottenLease,
        Self::Repair,
        Self::Change,
        Self::TtlTooLong,
        Self::CrashAndRestore,
        Self::Demoted,
        Self::ReadOnly,
        Self::Evicted,
        Self::AskedAgain,
        Self::LostGrant,
        Self::Unguarded,
        Self::OtherRules,
        Self::Init,
        Self::ServerNamedTwice,
        Self::CutOffCommand,
        Self::FullSocket,
        Self::ScriptFlush,
        Self::NoScript,
        Self::Died,
        Self::Call,
        Self::LostCall,
        Self::StrayCall,
        Self::ForgottenLine,
        Self::BrokenAssumption,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::DriftAtTheLimit => "clocks that differ by all that the options allow",
            Self::CoarseClock => "clients with a coarse clock",
            Self::Pause => "processes paused",
            Self::Stall => "processes stalled in the middle of a poll",
            Self::BrokenConnection => "connections broken",
            Self::LostCommand => "commands lost",
            Self::LostReply => "replies lost",
            Self::LateCommand => "commands that outlived their connection",
            Self::OvertakenCommand => "of them, behind a later connection",
            Self::ResentRelease => "releases sent again",
            Self::CutRequests => "links cut towards the node",
            Self::CutReplies => "links cut towards the client",
            Self::Spike => "spikes of delay",
            Self::Hang => "nodes hung",
            Self::Crash => "nodes crashed, data kept",
            Self::CrashWithLoss => "nodes crashed, data lost",
            Self::Flush => "nodes flushed",
            Self::MetAgain => "nodes met again as another process",
            Self::Denial => "acquires not sent to a node that restarted",
            Self::Quarantined => "fences refused in quarantine",
            Self::StaleFence => "fences refused for a higher one",
            Self::FenceOutOfWindow => "fences refused for the clock",
            Self::ClockStep => "node clocks stepped",
            Self::WrongProposal => "clients misled about the time",
            Self::RefusedVisit => "late holders refused at a gate",
            Self::DeadForGood => "nodes dead for good",
            Self::ClockSetBack => "node clocks set back",
            Self::NeverPolled => "futures dropped before their first poll",
            Self::DroppedFuture => "futures dropped at an await",
            Self::ForgottenLease => "leases dropped and not released",
            Self::Repair => "guard records restored by an operator",
            Self::Change => "fleets given other rules by an operator",
            Self::TtlTooLong => "plain commands not sent for a TTL above that of the fleet",
            Self::CrashAndRestore => "nodes crashed, older data restored",
            Self::Demoted => "masters that became replicas",
            Self::ReadOnly => "commands refused by a replica",
            Self::Evicted => "locks evicted",
            Self::AskedAgain => "nodes asked again who they are",
            Self::LostGrant => "grants that their client never heard of",
            Self::Unguarded => "fences refused for want of a guard record",
            Self::OtherRules => "fences refused for other rules",
            Self::Init => "fleets declared new by an operator",
            Self::ServerNamedTwice => "clients that name a server twice",
            Self::CutOffCommand => "connections of devices that ended within a command",
            Self::FullSocket => "writes of devices that found no room",
            Self::ScriptFlush => "scripts flushed",
            Self::NoScript => "commands of devices to a node without their script",
            Self::Died => "clients that died",
            Self::Call => "calls of clients in a line",
            Self::LostCall => "calls lost",
            Self::StrayCall => "calls of clients that did not wait any more",
            Self::ForgottenLine => "lines forgotten",
            Self::BrokenAssumption => "assumptions broken",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Break(route) => write!(f, "{route}: the connection breaks"),
            Self::CutRequests(route, until) => {
                write!(f, "{route}: nothing gets there until {}", Seconds(*until))
            }
            Self::CutReplies(route, until) => {
                write!(f, "{route}: nothing comes back until {}", Seconds(*until))
            }
            Self::Spike(route, delay, until) => {
                write!(
                    f,
                    "{route}: takes {delay} us longer until {}",
                    Seconds(*until)
                )
            }
            Self::Hang(node, until) => write!(f, "node {node} hangs until {}", Seconds(*until)),
            Self::Crash(node, until) => {
                write!(
                    f,
                    "node {node} is down until {}, its data is kept",
                    Seconds(*until)
                )
            }
            Self::Forget(node, until) => {
                write!(
                    f,
                    "node {node} is down until {}, its data is lost",
                    Seconds(*until)
                )
            }
            Self::Restore(node, until) => {
                write!(
                    f,
                    "node {node} is down until {}, an older dump is restored",
                    Seconds(*until)
                )
            }
            Self::Flush(node) => write!(f, "node {node} is flushed"),
            Self::Save(node) => write!(f, "the data of node {node} is saved"),
            Self::Demote(node) => write!(f, "node {node} is to be a replica"),
            Self::Promote(node) => write!(f, "node {node} is to be a master again"),
            Self::Policy(node, true) => write!(f, "node {node} may evict keys from now on"),
            Self::Policy(node, false) => write!(f, "node {node} evicts no keys from now on"),
            Self::Evict(node, key) => write!(f, "node {node} evicts key {key}"),
            Self::Init => f.write_str("an operator runs redlock init"),
            Self::Repair => f.write_str("an operator runs redlock init --repair"),
            Self::Change => f.write_str("an operator runs redlock init --repair with other rules"),
            Self::Set(node, ahead) => {
                write!(f, "the clock of node {node} is set {ahead} us ahead")
            }
            Self::SetBack(node, by) => write!(f, "the clock of node {node} is set back by {by} us"),
            Self::SetForward(node, by) => {
                write!(f, "the clock of node {node} is set forward by {by} us")
            }
            Self::FlushScripts(node) => write!(f, "the scripts of node {node} are flushed"),
            Self::Die(client) => write!(f, "client {client} is to die"),
            Self::ForgetLine(node, key) => {
                write!(f, "node {node} is to forget the line of key {key}")
            }
            Self::Pause(client, length) => write!(f, "client {client} is not run for {length} us"),
        }
    }
}
