//! The handlers.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{BoxError, Router};
use redlock_std::{Fence, Guard, HoldError, Redlock};

use crate::ledger::{Claim, Ledger};
use crate::payments::Payments;

/// What the handlers need.
#[derive(Debug)]
pub struct Shop<L, P> {
    /// With [`Options::fenced`](redlock_std::Options::fenced).
    pub redlock: Redlock,
    /// The orders.
    pub ledger: L,
    /// The payment provider.
    pub payments: P,
}

/// The routes: `POST /orders/{id}/pay` and `GET /ready`.
pub fn router<L: Ledger, P: Payments>(shop: Shop<L, P>) -> Router {
    Router::new()
        .route("/orders/{id}/pay", post(pay::<L, P>))
        .route("/ready", get(ready::<L, P>))
        .with_state(Arc::new(shop))
}

async fn pay<L: Ledger, P: Payments>(
    State(shop): State<Arc<Shop<L, P>>>,
    Path(order): Path<i64>,
) -> Result<&'static str, Failure> {
    let work = async |guard: &Guard| {
        let fence = guard.fence().ok_or(Failure::NotFenced)?;
        pay_once(&shop.ledger, &shop.payments, order, fence).await
    };
    shop.redlock.hold(format!("order:{order}"), work).await?
}

/// The work under the lock.
async fn pay_once(
    ledger: &impl Ledger,
    payments: &impl Payments,
    order: i64,
    fence: Fence,
) -> Result<&'static str, Failure> {
    // Before anything is read: from here on, the database refuses the holders before this one.
    match ledger.claim(order, fence).await? {
        Claim::Open => {}
        Claim::Paid => return Ok("was paid already\n"),
        Claim::Superseded => return Err(Failure::Superseded),
        Claim::Unknown => return Err(Failure::Unknown),
    }
    let receipt = payments.charge(order).await?;
    match ledger.settle(order, fence, &receipt).await? {
        true => Ok("paid\n"),
        false => Err(Failure::Superseded),
    }
}

/// Whether this server should get requests: a quorum of nodes has a vote. A dead minority is in the text.
async fn ready<L: Ledger, P: Payments>(State(shop): State<Arc<Shop<L, P>>>) -> impl IntoResponse {
    let nodes = shop.redlock.status();
    let votes = nodes.iter().filter(|node| node.has_vote()).count();
    // Without requests, nothing else would ask the nodes again whose configuration has cost them their votes.
    let is_ready = votes > nodes.len() / 2 || can_lock(&shop.redlock).await;
    let status = match is_ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    let lines: String = nodes.iter().map(|node| format!("{node}\n")).collect();
    (status, lines)
}

/// Whether a quorum of nodes decides about a lock.
async fn can_lock(redlock: &Redlock) -> bool {
    match redlock.try_acquire("readiness").await {
        Ok(guard) => {
            guard.release().await;
            true
        }
        // Another server asks just now.
        Err(error) => error.is_held(),
    }
}

/// Why an order was not paid.
#[derive(Debug)]
pub enum Failure {
    /// Another request has the order, no quorum of nodes answered, or the lock was lost half-way.
    Lock(HoldError),
    /// A later holder of the lock has claimed the order: this server was too slow.
    Superseded,
    /// There is no such order.
    Unknown,
    /// The options of the lock are not fenced.
    NotFenced,
    /// The database or the payment provider failed.
    Dependency(BoxError),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => write!(f, "{error}"),
            Self::Superseded => write!(f, "refused: another server has taken over this order"),
            Self::Unknown => write!(f, "there is no such order"),
            Self::NotFenced => write!(f, "the lock has no fence: set Options::fenced"),
            Self::Dependency(error) => write!(f, "{error}"),
        }
    }
}

impl From<HoldError> for Failure {
    fn from(error: HoldError) -> Self {
        Self::Lock(error)
    }
}

impl From<BoxError> for Failure {
    fn from(error: BoxError) -> Self {
        Self::Dependency(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let text = format!("{self}\n");
        match self {
            // Another request works on it, or the nodes will be back: the client may ask again.
            Self::Lock(_) => {
                let later = [(header::RETRY_AFTER, "1")];
                (StatusCode::SERVICE_UNAVAILABLE, later, text).into_response()
            }
            Self::Superseded => (StatusCode::CONFLICT, text).into_response(),
            Self::Unknown => (StatusCode::NOT_FOUND, text).into_response(),
            Self::NotFenced => (StatusCode::INTERNAL_SERVER_ERROR, text).into_response(),
            Self::Dependency(_) => (StatusCode::BAD_GATEWAY, text).into_response(),
        }
    }
}
