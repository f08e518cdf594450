//! The nodes of a trial, and locks over them.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redlock_core::GUARD_KEY;
use redlock_std::{Guard, Options, Redlock};
use rustls::ClientConfig;

use super::tally::Tally;
use redlock_tests::Servers;

/// Real servers, which end with it.
#[derive(Debug, Clone)]
pub(super) struct Stage {
    servers: Arc<Servers>,
}

/// The TTL of the trials, if they do not say otherwise.
pub(super) const TTL: Duration = Duration::from_secs(10);

/// How many nodes a lock has here.
pub(super) const NODES: usize = 5;

/// Guards that are kept alive beside the load: how many, and for how long each lives. They are extended some
/// times in every trial.
const KEPT: usize = 10;
const KEPT_TTL: Duration = Duration::from_secs(3);

impl Stage {
    /// Starts `count` servers.
    pub(super) fn start(count: usize) -> Self {
        Self {
            servers: Arc::new(Servers::start(count)),
        }
    }

    pub(super) fn servers(&self) -> &Servers {
        &self.servers
    }

    /// A lock over the servers that is connected to all of them.
    pub(super) async fn connect(&self, options: Options) -> Result<Redlock, Box<dyn Error>> {
        self.connect_with(&[], options).await
    }

    /// A lock over the servers and over `more` nodes. It is connected to a quorum, and has had the time of some
    /// locks for the others.
    pub(super) async fn connect_with(
        &self,
        more: &[String],
        options: Options,
    ) -> Result<Redlock, Box<dyn Error>> {
        let urls = self.servers.urls();
        warm_up(Redlock::connect(urls.iter().chain(more), options)?).await
    }

    /// [`connect_with`](Self::connect_with), if some of the nodes speak TLS.
    pub(super) async fn connect_with_tls(
        &self,
        more: &[String],
        options: Options,
        tls: &Arc<ClientConfig>,
    ) -> Result<Redlock, Box<dyn Error>> {
        let urls = self.servers.urls();
        warm_up(Redlock::connect_with_tls(
            urls.iter().chain(more),
            options,
            tls,
        )?)
        .await
    }

    /// Guards that are kept alive. [`end_kept`] counts those that are lost.
    pub(super) async fn keep(&self, redlock: &Redlock) -> Result<Vec<Guard>, Box<dyn Error>> {
        let redlock = redlock.with_options(Options::new(KEPT_TTL)?);
        let mut kept = Vec::new();
        for number in 0..KEPT {
            let mut guard = redlock.acquire(format!("kept-{number}")).await?;
            guard.keep_alive();
            kept.push(guard);
        }
        Ok(kept)
    }

    /// How many keys there are on all servers together, once there are none or `limit` is over. Tasks run meanwhile.
    pub(super) async fn keys_left_within(&self, limit: Duration) -> usize {
        let started_at = Instant::now();
        loop {
            let stage = self.clone();
            let count = tokio::task::spawn_blocking(move || stage.key_count()).await;
            let count = count.unwrap_or(usize::MAX);
            if count == 0 || started_at.elapsed() > limit {
                return count;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// By DBSIZE, which costs the servers nothing, also with many keys.
    fn key_count(&self) -> usize {
        let counts = self.servers.iter().map(|server| {
            let all: usize = server.query(&["DBSIZE"]).unwrap_or(0);
            let guards: usize = server.query(&["EXISTS", GUARD_KEY]).unwrap_or(0);
            all.saturating_sub(guards)
        });
        counts.sum()
    }
}

/// Takes some locks, which connects.
async fn warm_up(redlock: Redlock) -> Result<Redlock, Box<dyn Error>> {
    const LOCKS: u32 = 50;

    for _ in 0..LOCKS {
        redlock.acquire("connected").await?.release().await;
    }
    Ok(redlock)
}

/// Gives guards back that were kept alive, and counts those that were lost.
pub(super) async fn end_kept(kept: Vec<Guard>, tally: &Tally) {
    for guard in kept {
        if !guard.is_valid() {
            tally.lost();
        }
        guard.release().await;
    }
}
