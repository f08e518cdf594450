//! The payment provider.

use std::future::Future;

use axum::BoxError;
use reqwest::Client;

/// A payment provider. A test has one of its own.
pub trait Payments: Send + Sync + 'static {
    /// Charges an order, and returns the receipt. The provider knows the order by its number: one that is charged twice is paid once.
    fn charge(&self, order: i64) -> impl Future<Output = Result<String, BoxError>> + Send;
}

/// A provider that is asked by `POST {url}/charges/{order}`.
#[derive(Debug)]
pub struct HttpPayments {
    client: Client,
    url: String,
}

impl HttpPayments {
    /// The provider at `url`.
    #[must_use]
    pub fn new(url: String) -> Self {
        let client = Client::new();
        Self { client, url }
    }
}

impl Payments for HttpPayments {
    async fn charge(&self, order: i64) -> Result<String, BoxError> {
        let url = format!("{}/charges/{order}", self.url);
        let charge = self.client.post(url).header("idempotency-key", order);
        Ok(charge.send().await?.error_for_status()?.text().await?)
    }
}
