//! A node that becomes a replica of another server and is a master again, as Sentinel does it. The process of the
//! node stays, and its data is that of the other one from then on.

use std::error::Error;
use std::time::Duration;

use redlock_core::{FENCE_KEY_PREFIX, GUARD_KEY};

use super::client::KEY;
use super::random::Random;
use redlock_tests::Server;

/// The server that a node follows. It has the node's guard record, and, it may be, what the node knew of the lock
/// when this one was started.
#[derive(Debug)]
pub(super) struct Leader(Server);

impl Leader {
    pub(super) fn of(node: &Server, random: &mut Random) -> Result<Self, Box<dyn Error>> {
        let server = Server::start();
        server.query::<String>(&["FLUSHALL"])?;
        // Else a replica is let in after seconds.
        let at_once = ["CONFIG", "SET", "repl-diskless-sync-delay", "0"];
        server.query::<String>(&at_once)?;
        let fence = format!("{FENCE_KEY_PREFIX}{KEY}");
        let keys = [GUARD_KEY, KEY, &fence];
        let count = if random.one_in(2) { keys.len() } else { 1 };
        for key in keys.into_iter().take(count) {
            let Some(value) = node.query::<Option<Vec<u8>>>(&["DUMP", key])? else {
                continue;
            };
            let expires_at: i64 = node.query(&["PEXPIRETIME", key])?;
            let expires_at = expires_at.max(0).to_string();
            let restore = [
                b"RESTORE",
                key.as_bytes(),
                expires_at.as_bytes(),
                &value,
                b"ABSTTL",
            ];
            server.query::<String>(&restore)?;
        }
        Ok(Self(server))
    }

    /// Makes the node a replica of it.
    pub(super) fn lead(&self, node: &Server) -> Result<(), Box<dyn Error>> {
        let follow = ["REPLICAOF", "127.0.0.1", &self.0.port().to_string()];
        node.query::<String>(&follow)?;
        Ok(())
    }

    /// Whether the node has its data and nothing else.
    pub(super) fn is_followed_by(&self, node: &Server) -> Result<bool, Box<dyn Error>> {
        let info: String = node.query(&["INFO", "replication"])?;
        let port = format!("master_port:{}\r", self.0.port());
        Ok(info.contains(&port) && info.contains("master_link_status:up"))
    }

    /// Makes the node a master. How often it has refused to write since it was asked last.
    pub(super) fn leave(node: &Server) -> Result<u64, Box<dyn Error>> {
        let errors: String = node.query(&["INFO", "errorstats"])?;
        let refused = errors
            .lines()
            .find_map(|line| line.strip_prefix("errorstat_READONLY:count="));
        node.query::<String>(&["REPLICAOF", "NO", "ONE"])?;
        node.query::<String>(&["CONFIG", "RESETSTAT"])?;
        Ok(refused
            .and_then(|count| count.trim().parse().ok())
            .unwrap_or(0))
    }
}

/// Ends the connections of all clients of a node. Its data is not theirs any more, and a plain client notices it
/// by nothing else if it asks nothing of the node meanwhile.
pub(super) fn disconnect(node: &Server) -> Result<(), Box<dyn Error>> {
    node.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal"])?;
    Ok(())
}

/// How long a look at something takes that takes no time.
pub(super) const AGAIN: Duration = Duration::from_millis(20);
