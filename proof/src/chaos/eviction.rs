//! Nodes that evict keys for want of memory.
//!
//! What a node evicts between a change of its policy and the next look of a client is lost, and so is what it has
//! evicted when its policy is noeviction again. So every client is made to look, by the end of its connection,
//! before anything is evicted; and the policy stays until all leases are over that the node has voted for.

use std::error::Error;

use super::failback::disconnect;
use super::random::Random;
use redlock_tests::Server;

/// Gives a node a policy with which it may evict locks, and lets all clients know.
pub(super) fn allow(node: &Server, random: &mut Random) -> Result<(), Box<dyn Error>> {
    // The first two leave the guard record alone, which has no TTL: it vouches for what is gone.
    const POLICIES: [&str; 4] = [
        "volatile-lru",
        "volatile-ttl",
        "allkeys-lru",
        "allkeys-random",
    ];
    let policy = random.pick(&POLICIES).unwrap_or(POLICIES[0]);
    set(node, "maxmemory-policy", policy)?;
    disconnect(node)
}

/// Lets a node evict all locks and fences between two looks of its clients.
pub(super) fn happen_unseen(node: &Server) -> Result<u64, Box<dyn Error>> {
    set(node, "maxmemory-policy", "volatile-lru")?;
    let count = happen(node)?;
    forbid(node)?;
    Ok(count)
}

/// Leaves the node without memory until it has evicted all that it may. How many keys that were.
pub(super) fn happen(node: &Server) -> Result<u64, Box<dyn Error>> {
    let before = evicted(node)?;
    set(node, "maxmemory", "1")?;
    // Before a command it looks for memory.
    node.query::<String>(&["PING"])?;
    set(node, "maxmemory", "0")?;
    Ok(evicted(node)?.saturating_sub(before))
}

/// The node keeps what it has from now on, and clients notice it when they look again.
pub(super) fn forbid(node: &Server) -> Result<(), Box<dyn Error>> {
    set(node, "maxmemory-policy", "noeviction")
}

fn set(node: &Server, name: &str, value: &str) -> Result<(), Box<dyn Error>> {
    node.query::<String>(&["CONFIG", "SET", name, value])?;
    Ok(())
}

fn evicted(node: &Server) -> Result<u64, Box<dyn Error>> {
    let info: String = node.query(&["INFO", "stats"])?;
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("evicted_keys:"));
    Ok(count.and_then(|count| count.parse().ok()).unwrap_or(0))
}
