//! The telemetry of nodes.
//!
//! The items in `disabled.rs` must have the same signatures.

#[cfg(feature = "metrics")]
use metrics::{Gauge, Label, counter, gauge};
use redlock_core::{Denial, Observer};

use crate::node::error::{Failure, NodeError, TransportError};

#[cfg(feature = "metrics")]
pub(crate) const NODE_FAILURES: &str = "redlock.client.node.failures";
#[cfg(feature = "metrics")]
pub(crate) const NODE_UP: &str = "redlock.client.node.up";

/// Counts the votes that nodes did not give. The other reports of the core are not used: a handle has queues in front of it, and
/// reports its acquires and leases itself.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NodeObserver;

impl Observer<NodeError> for NodeObserver {
    fn node_failed(&self, _node: usize, error: &NodeError) {
        let kind = kind(error);
        #[cfg(feature = "metrics")]
        {
            let mut labels = labels(error.node());
            labels.push(Label::from_static_parts("error.type", kind));
            counter!(NODE_FAILURES, labels).increment(1);
        }
        #[cfg(feature = "tracing")]
        {
            let (address, port) = host_and_port(error.node());
            tracing::debug!(
                server.address = address,
                server.port = port,
                error.r#type = kind,
                error = %error.failure(),
                "a node gave no vote"
            );
        }
    }
}

/// Tells whether one handle is connected to a node, and is answered by it. The caller tells each change once.
#[derive(Debug)]
pub(crate) struct Presence {
    #[cfg(feature = "metrics")]
    up: Gauge,
}

impl Presence {
    #[cfg_attr(
        not(feature = "metrics"),
        expect(clippy::missing_const_for_fn, reason = "with metrics it is none")
    )]
    pub(crate) fn new(_name: &str) -> Self {
        Self {
            #[cfg(feature = "metrics")]
            up: {
                let up = gauge!(NODE_UP, labels(_name));
                // So that a node that was never connected is seen.
                up.increment(0.0);
                up
            },
        }
    }

    pub(crate) fn up(&self, _name: &str) {
        // Several handles of a process may have the same node.
        #[cfg(feature = "metrics")]
        self.up.increment(1.0);
        #[cfg(feature = "tracing")]
        {
            let (address, port) = host_and_port(_name);
            tracing::info!(
                server.address = address,
                server.port = port,
                "connected to a node"
            );
        }
    }

    /// The first connect of a handle has failed.
    pub(crate) fn not_connected(&self, _name: &str, _error: &TransportError) {
        #[cfg(feature = "tracing")]
        {
            let (address, port) = host_and_port(_name);
            tracing::warn!(
                server.address = address,
                server.port = port,
                error.r#type = of_transport(_error),
                error = %_error,
                "a node is not reached"
            );
        }
    }

    /// The handle does not need the connection any more.
    pub(crate) fn closed(&self, _was_up: bool) {
        #[cfg(feature = "metrics")]
        if _was_up {
            self.up.decrement(1.0);
        }
    }

    pub(crate) fn down(&self, _name: &str, _error: &TransportError) {
        #[cfg(feature = "metrics")]
        self.up.decrement(1.0);
        #[cfg(feature = "tracing")]
        {
            let (address, port) = host_and_port(_name);
            tracing::warn!(
                server.address = address,
                server.port = port,
                error.r#type = of_transport(_error),
                error = %_error,
                "a node is not reached any more"
            );
        }
    }
}

#[cfg(feature = "metrics")]
fn labels(name: &str) -> Vec<Label> {
    let (address, port) = host_and_port(name);
    let mut labels = vec![Label::new("server.address", address.to_owned())];
    labels.extend(port.map(|port| Label::new("server.port", port.to_owned())));
    labels
}

/// The name of a node is `host:port`, or the path of its socket.
fn host_and_port(name: &str) -> (&str, Option<&str>) {
    let Some((host, port)) = name.rsplit_once(':') else {
        return (name, None);
    };
    if port.is_empty() || !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return (name, None);
    }
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    (inner.unwrap_or(host), Some(port))
}

/// The value of `error.type`: why a node gave no vote.
const fn kind(error: &NodeError) -> &'static str {
    match error.failure() {
        Failure::TimedOut(_) => "timed_out",
        Failure::DuplicateOf(_) => "duplicate",
        Failure::Denied(denial) => of_denial(*denial),
        Failure::Transport(error) => of_transport(error),
        _ => "other",
    }
}

const fn of_denial(denial: Denial) -> &'static str {
    match denial {
        Denial::Restarted { .. } => "restarted",
        Denial::Replica => "replica",
        Denial::MayEvict => "may_evict",
        Denial::Evicted { .. } => "evicted",
        Denial::InfoForbidden => "info_forbidden",
        Denial::Quarantined { .. } => "quarantined",
        Denial::Stale(_) => "stale_fence",
        Denial::TooOld(_) => "fence_too_old",
        Denial::TooNew(_) => "fence_too_new",
        Denial::FencingMismatch(_) => "other_rules",
        Denial::Unguarded { .. } => "unguarded",
        Denial::TtlTooLong { .. } => "ttl_too_long",
        _ => "denied",
    }
}

/// The value of `error.type`: what went wrong on the way to a node.
const fn of_transport(error: &TransportError) -> &'static str {
    match error {
        TransportError::TooFar { .. } => "too_far",
        TransportError::NotConnected(_) => "not_connected",
        TransportError::Unreachable(_) => "unreachable",
        TransportError::LoginRefused(_) => "login_refused",
        TransportError::Disconnected => "disconnected",
        TransportError::Flooded => "flooded",
        TransportError::Protocol(_) => "protocol",
        TransportError::Silent(_) => "silent",
        TransportError::RuntimeGone => "runtime_gone",
        TransportError::Forked => "forked",
        TransportError::Overloaded => "overloaded",
        TransportError::ReleasesGivenUp(_) => "releases_given_up",
        TransportError::CannotCall(_) => "cannot_call",
        TransportError::CannotRelease(_) => "cannot_release",
        TransportError::Rejected(_) => "rejected",
        TransportError::Unexpected => "unexpected",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_node_is_split_into_host_and_port() {
        for (name, host, port) in [
            ("10.0.0.1:6379", "10.0.0.1", Some("6379")),
            ("[::1]:6380", "::1", Some("6380")),
            ("redis-1.example:1", "redis-1.example", Some("1")),
            ("/run/redis.sock", "/run/redis.sock", None),
            ("/run/a:b", "/run/a:b", None),
            ("node 1", "node 1", None),
        ] {
            assert_eq!(host_and_port(name), (host, port), "{name}");
        }
    }
}
