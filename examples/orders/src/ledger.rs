//! The orders, in a database that compares fences.

use std::future::Future;

use axum::BoxError;
use redlock_std::Fence;
use tokio_postgres::{Client, Error, Statement};

/// The orders. A test has them in memory.
pub trait Ledger: Send + Sync + 'static {
    /// Stores the fence of a new holder of the lock, and tells what became of the order before it.
    fn claim(
        &self,
        order: i64,
        fence: Fence,
    ) -> impl Future<Output = Result<Claim, BoxError>> + Send;

    /// Stores the receipt of a paid order, if no later holder has claimed the order. Returns whether it was done.
    fn settle(
        &self,
        order: i64,
        fence: Fence,
        receipt: &str,
    ) -> impl Future<Output = Result<bool, BoxError>> + Send;
}

/// The answer to [`Ledger::claim`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// The order is to be paid, by this holder.
    Open,
    /// It is paid.
    Paid,
    /// A later holder of the lock has claimed it.
    Superseded,
    /// There is no such order.
    Unknown,
}

/// The orders in Postgres.
#[derive(Debug)]
pub struct Postgres {
    client: Client,
    claim: Statement,
    is_there: Statement,
    settle: Statement,
}

impl Postgres {
    /// The orders in this database, whose [schema](crate::schema) is there.
    ///
    /// # Errors
    ///
    /// What the database answered.
    pub async fn new(client: Client) -> Result<Self, Error> {
        const CLAIM: &str = "
            UPDATE orders SET fence = $2 WHERE id = $1 AND fence <= $2
            RETURNING receipt IS NOT NULL AS is_paid";
        const IS_THERE: &str = "SELECT 1 FROM orders WHERE id = $1";
        const SETTLE: &str = "UPDATE orders SET receipt = $3 WHERE id = $1 AND fence = $2";

        Ok(Self {
            claim: client.prepare(CLAIM).await?,
            is_there: client.prepare(IS_THERE).await?,
            settle: client.prepare(SETTLE).await?,
            client,
        })
    }
}

impl Ledger for Postgres {
    async fn claim(&self, order: i64, fence: Fence) -> Result<Claim, BoxError> {
        let claimed = self
            .client
            .query_opt(&self.claim, &[&order, &fence.as_i64()])
            .await?;
        if let Some(row) = claimed {
            return Ok(match row.try_get("is_paid")? {
                true => Claim::Paid,
                false => Claim::Open,
            });
        }
        Ok(
            match self.client.query_opt(&self.is_there, &[&order]).await? {
                Some(_) => Claim::Superseded,
                None => Claim::Unknown,
            },
        )
    }

    async fn settle(&self, order: i64, fence: Fence, receipt: &str) -> Result<bool, BoxError> {
        let changed = self
            .client
            .execute(&self.settle, &[&order, &fence.as_i64(), &receipt])
            .await?;
        Ok(changed == 1)
    }
}
