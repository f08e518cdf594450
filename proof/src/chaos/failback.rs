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
            // In one step: a key that is deleted between two commands would have no TTL any more, and its copy would stay for ever.
            let script = "local key = ARGV[1] \
                 return {redis.call('DUMP', key), redis.call('PEXPIRETIME', key)}";
            let (value, expires_at): (Option<Vec<u8>>, i64) =
                node.query(&["EVAL", script, "0", key])?;
            let Some(value) = value else {
                continue;
            };
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn the_copy_of_a_key_that_comes_and_goes_has_its_ttl() {
        const COPIES: usize = 20;

        let node = Server::start();
        let is_over = AtomicBool::new(false);
        let copied = thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    node.query::<String>(&["SET", KEY, "", "PX", "60000"])
                        .unwrap();
                    node.query::<u64>(&["DEL", KEY]).unwrap();
                }
            });
            let mut random = Random::new(1);
            let mut copied = Vec::new();
            while copied.len() < COPIES {
                let leader = Leader::of(&node, &mut random).unwrap();
                let ttl = leader.0.query::<i64>(&["PTTL", KEY]).unwrap();
                // Negative: -2 if there is no key, -1 if it has no TTL.
                if ttl != -2 {
                    copied.push(ttl);
                }
            }
            is_over.store(true, Ordering::Relaxed);
            copied
        });
        assert!(copied.iter().all(|ttl| *ttl > 0), "{copied:?}");
    }
}
