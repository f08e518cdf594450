//! The tables, which the first server of a deployment creates or changes while the others wait.

use std::fmt;

use redlock_std::{Guard, HoldError, Redlock};
use tokio_postgres::{Client, Error};

/// Each step once, in this order. Add new ones at the end.
const STEPS: [&str; 2] = [
    "CREATE TABLE orders (id BIGINT PRIMARY KEY, fence BIGINT NOT NULL DEFAULT 0)",
    "ALTER TABLE orders ADD COLUMN receipt TEXT",
];

/// Runs the steps that are missing, under a lock: each server of a deployment calls this when it starts. Returns how many it ran.
///
/// A step and its number are stored in one transaction, which locks the numbers and then looks which step is missing. So a server that dies
/// half-way leaves nothing half-done, and one that was paused and wakes up late finds what the others have done.
///
/// # Errors
///
/// If the lock is not acquired or is lost, or the database fails.
pub async fn migrate(redlock: &Redlock, client: &mut Client) -> Result<usize, MigrationError> {
    let work = async |_guard: &Guard| run_missing(client).await;
    Ok(redlock.hold("schema", work).await??)
}

async fn run_missing(client: &mut Client) -> Result<usize, Error> {
    const TABLE: &str = "CREATE TABLE IF NOT EXISTS schema_steps (number INT PRIMARY KEY)";
    // If this server is paused now, Postgres ends the transaction, and the next one goes on.
    const LOCK: &str =
        "SET LOCAL idle_in_transaction_session_timeout = '10s'; LOCK TABLE schema_steps";
    const COUNT: &str = "SELECT count(*)::INT FROM schema_steps";
    const DONE: &str = "INSERT INTO schema_steps (number) VALUES ($1)";

    client.batch_execute(TABLE).await?;
    let mut count = 0;
    loop {
        let transaction = client.transaction().await?;
        transaction.batch_execute(LOCK).await?;
        let number: i32 = transaction.query_one(COUNT, &[]).await?.try_get(0)?;
        let missing = usize::try_from(number)
            .ok()
            .and_then(|done| STEPS.get(done));
        let Some(step) = missing else {
            return Ok(count);
        };
        transaction.execute(DONE, &[&number]).await?;
        transaction.batch_execute(step).await?;
        transaction.commit().await?;
        count += 1;
    }
}

/// Why the tables are not known to be up to date.
#[derive(Debug)]
pub enum MigrationError {
    /// The lock was not acquired, or was lost half-way.
    Lock(HoldError),
    /// The database failed.
    Database(Error),
}

impl fmt::Display for MigrationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => write!(f, "migration: {error}"),
            Self::Database(error) => write!(f, "migration: {error}"),
        }
    }
}

impl std::error::Error for MigrationError {}

impl From<HoldError> for MigrationError {
    fn from(error: HoldError) -> Self {
        Self::Lock(error)
    }
}

impl From<Error> for MigrationError {
    fn from(error: Error) -> Self {
        Self::Database(error)
    }
}
