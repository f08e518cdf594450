//! Errors of one node.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{RedisError, ServerError};

use super::printable::{printable, without_arguments};

/// An error of one node, by its address: `host:port`, or the path of its socket.
pub type NodeError = redlock_core::NodeError<Arc<str>, TransportError>;

/// Why the vote of a node is unknown in a round.
pub(crate) type Failure = redlock_core::Failure<Arc<str>, TransportError>;

/// What went wrong on the way to a node.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransportError {
    /// The round stopped waiting after its node timeout, and the last answer of the node took longer than this timeout.
    TooFar {
        /// How long the round waits.
        node_timeout: Duration,
        /// How long the last answer took.
        round_trip: Duration,
    },
    /// The round stopped waiting after this time, before the node was connected. Nothing was sent to it.
    NotConnected(Duration),
    /// No connection could be made, because of the network or the host name, for example.
    Unreachable(Arc<str>),
    /// The node refused the login with this error: the user or the password is wrong, one is missing, the database is not one of the
    /// server or of the user, or the user may run no scripts, without which no lock is released. The client goes on trying, because the node may be told of the user later. Until a login
    /// succeeds, each command fails at once with this error.
    LoginRefused(Arc<str>),
    /// The connection broke. The client reconnects.
    Disconnected,
    /// The node sent more data than the replies to its commands can take. The connection was closed, so that the data
    /// does not fill the memory.
    Flooded,
    /// The node sent what Redis never sends to this client, for example a push message: the text says what. The connection was
    /// closed, because the reply parser could use too much memory or stack for it.
    Protocol(&'static str),
    /// The node has not answered for at least this time. That is so long that the node is skipped until it answers.
    Silent(Duration),
    /// The tokio runtime on which the node was connected has shut down, so no task sends commands to the node.
    /// Connect again on a running one.
    RuntimeGone,
    /// This process is a fork of the one that has connected, and has no connection of its own: connect in each process.
    Forked,
    /// The command was not sent: the queue of the node is full, or the round ended while the command waited there, for example
    /// because the node has not answered the commands before it.
    Overloaded,
    /// This number of releases were dropped, because more than a million releases, or more than 256 MB of their keys,
    /// waited. Their keys expire.
    ReleasesGivenUp(u64),
    /// The node cannot call this client when it is its turn for a lock, because of this error. So its acquires look again after
    /// delays, and wait longer.
    CannotCall(Arc<str>),
    /// The node refuses releases with this error, because the user lacks a permission, for example. Their keys expire.
    CannotRelease(Arc<str>),
    /// The node answered with this error.
    Rejected(Arc<str>),
    /// The reply does not fit the command.
    Unexpected,
}

impl TransportError {
    /// Whether the connection was closed for what the node sent. The next one may end in the same way.
    pub(crate) const fn is_violation(&self) -> bool {
        matches!(self, Self::Flooded | Self::Protocol(_))
    }

    /// Whether the user or the password is wrong, or one is missing.
    pub(crate) fn is_wrong_login(&self) -> bool {
        matches!(self, Self::LoginRefused(why) if !why.ends_with(SCRIPTS) && !why.ends_with(DATABASE))
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFar {
                node_timeout,
                round_trip,
            } => write!(
                f,
                "timed out after {} ms, its last answer took {} ms; raise node_timeout if the node is that far away",
                node_timeout.as_millis(),
                round_trip.as_millis()
            ),
            Self::NotConnected(after) => write!(
                f,
                "not connected yet after {} ms; check that the node answers, or raise node_timeout if it is that far away",
                after.as_millis()
            ),
            Self::Unreachable(why) | Self::LoginRefused(why) => f.write_str(why),
            Self::Disconnected => f.write_str("the connection broke"),
            Self::Flooded => f.write_str("sent more than was asked for; is this a Redis server?"),
            Self::Protocol(what) => write!(f, "sent {what}; is this a Redis server?"),
            Self::Silent(since) => write!(f, "no answer for {} ms", since.as_millis()),
            Self::RuntimeGone => f.write_str(
                "the tokio runtime of the connection has shut down; connect again on a running one",
            ),
            Self::Forked => f.write_str(
                "this process is a fork of the one that has connected; connect in each process",
            ),
            Self::Overloaded => f.write_str(
                "the command was not sent: too many others wait for the node, or it has not answered those before",
            ),
            Self::ReleasesGivenUp(count) => {
                write!(
                    f,
                    "{count} releases were dropped because too many waited; their keys expire"
                )
            }
            Self::CannotCall(error) => write!(
                f,
                "cannot call this client when it is its turn for a lock, so acquires wait longer: {error}{}",
                advice_for_lines(error)
            ),
            Self::CannotRelease(error) => write!(
                f,
                "refuses releases, so keys are left until they expire: {error}{}",
                advice(error)
            ),
            Self::Rejected(error) => write!(f, "{error}{}", advice(error)),
            Self::Unexpected => f.write_str("unexpected reply; is this a Redis server?"),
        }
    }
}

impl core::error::Error for TransportError {}

/// What the user lacks whose script was refused. No lock is released without it.
const SCRIPTS: &str = "; grant `+eval +evalsha +script|load`";

/// What to do about a database that cannot be used.
pub(crate) const DATABASE: &str =
    "; name another database in its URL, one that the server has and the user may use";

/// What a user needs who takes locks.
const LOCKS: &str = "; grant `~KEY ~redlock:guard +set +get +del +pexpire +evalsha +eval +script|load +info +time`, for a fenced lock also `~redlock:fence:KEY +pttl`";

/// What to do about a key that another program has written. The error does not say which one it is.
const WRONG_TYPE: &str = "; another program has written a key of this lock: KEY and redlock:fence:KEY must be strings and redlock:queue:KEY a zset, as TYPE says; delete the one that is not";

/// What a user needs whose clients stand in a line.
const LINES: &str = "; grant `~redlock:queue:* &redlock:mail:* +subscribe +publish +pubsub +exists +pttl +zadd +zrem +zrange +zrank +zscore +zcard`";

/// Whether an error tells that the user may not call a command, whatever the key.
pub(crate) fn is_of_a_command(error: &str) -> bool {
    // The second is what a script says on Redis 7.0. It does not say which command.
    ["permissions to run", "can't run this command"]
        .iter()
        .any(|words| error.contains(words))
}

/// Why a node cannot be used whose user may run no scripts, or not use this database, which this error tells. `None` if it tells
/// something else.
pub(crate) fn without_scripts(error: &ServerError) -> Option<TransportError> {
    let details = error.details().unwrap_or_default();
    let cure = match error.code() {
        "NOPERM" if names_scripts(details) => SCRIPTS,
        "NOPERM" if names_database(details) => DATABASE,
        _ => return None,
    };
    let words = printable(&format!("NOPERM {details}"));
    Some(TransportError::LoginRefused(
        format!("{words}{cure}").into(),
    ))
}

/// Whether the error of a missing permission names the database: "No permissions to access database", of Valkey.
pub(crate) fn names_database(error: &str) -> bool {
    error.contains("access database")
}

/// Whether the error of a missing permission names the commands for scripts: "no permissions to run the 'eval' command".
fn names_scripts(error: &str) -> bool {
    ["'eval'", "'evalsha'"]
        .iter()
        .any(|name| error.contains(name))
}

/// What to do about an error of a command.
fn advice(error: &str) -> &'static str {
    if names_scripts(error) {
        SCRIPTS
    } else if names_database(error) {
        DATABASE
    } else if is_missing_permission(error) {
        LOCKS
    } else if error.contains("WRONGTYPE") {
        WRONG_TYPE
    } else if error.starts_with("OOM ") {
        "; raise maxmemory of this server, or let it store less"
    } else if error.starts_with("NOREPLICAS ") {
        "; this server has fewer replicas than its min-replicas-to-write"
    } else {
        ""
    }
}

/// What to do about an error that keeps a client out of a line.
fn advice_for_lines(error: &str) -> String {
    if error.contains("WRONGTYPE") {
        WRONG_TYPE.into()
    } else if names_scripts(error) {
        SCRIPTS.into()
    } else if !is_missing_permission(error) {
        String::new()
    } else if error.contains("channel") || error.contains("'subscribe'") {
        LINES.into()
    } else {
        // A script of a line also does what locks need, and its error does not tell which command was refused.
        format!("{LINES}{LOCKS}")
    }
}

/// Whether an error tells that the user lacks a permission.
fn is_missing_permission(error: &str) -> bool {
    // A script does not begin its error with the code: Redis 7.0 says "can't access", later ones and Valkey "ACL failure".
    ["NOPERM", "can't access", "ACL failure"]
        .iter()
        .any(|words| error.contains(words))
        || is_of_a_command(error)
}

/// The part of an error that helps an operator.
pub(crate) fn in_words(error: &RedisError) -> Arc<str> {
    if error.is_connection_refusal() {
        return "connection refused".into();
    }
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    printable(without_arguments(&words)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_permission_for_scripts_is_advised_where_it_is_missing() {
        let told = TransportError::CannotCall(
            "NOPERM User web has no permissions to run the 'evalsha' command".into(),
        );
        let told = told.to_string();
        assert!(
            told.contains("grant `+eval +evalsha +script|load`"),
            "{told}"
        );
        assert!(!told.contains("zadd"), "{told}");
    }

    #[test]
    fn the_permissions_of_a_line_are_advised_and_those_of_a_lock_where_the_error_may_be_of_either()
    {
        for (error, is_of_either) in [
            (
                "NOPERM User locker has no permissions to access the channel",
                false,
            ),
            (
                "NOPERM User locker has no permissions to run the 'subscribe' command",
                false,
            ),
            ("NOPERM No permissions to access a key", true),
            (
                "ERR The user executing the script can't run this command or subcommand",
                true,
            ),
        ] {
            let told = TransportError::CannotCall(error.into()).to_string();
            assert!(told.contains("~redlock:queue:*"), "{told}");
            assert_eq!(told.contains("~redlock:fence:KEY"), is_of_either, "{told}");
        }
    }

    #[test]
    fn a_permission_is_advised_only_if_one_is_missing() {
        for (error, is_advised) in [
            ("NOPERM No permissions to access a key", true),
            (
                "ERR The user executing the script can't run this command or subcommand",
                true,
            ),
            (
                "ERR ACL failure in script: User web has no permissions to run the 'set' command",
                true,
            ),
            (
                "ERR ACL failure in script: No permissions to access a key",
                true,
            ),
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                false,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                false,
            ),
        ] {
            for told in [
                TransportError::CannotCall(error.into()),
                TransportError::CannotRelease(error.into()),
                TransportError::Rejected(error.into()),
            ] {
                let told = told.to_string();
                assert_eq!(told.contains("grant"), is_advised, "{told}");
            }
        }
    }
}
