//! The task that owns the subscription to one node.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::{sleep, sleep_until};

use super::super::actor::{FIRST_BACKOFF, LAST_BACKOFF, MIN_IDLE_LIFE, jittered};
use super::super::address::Address;
use super::super::connect_limit::ConnectLimit;
use super::super::error::TransportError;
use super::subscription::{NotOpen, Subscription};
use super::{KEPT, Mail};

/// Keeps a subscription to one node while acquires wait, and passes its messages on.
#[derive(Debug)]
pub(crate) struct Subscriber {
    address: Arc<Address>,
    mail: Arc<Mail>,
    node_timeout: Duration,
}

/// The delay before the next try if the user lacks a permission.
const FORBIDDEN_BACKOFF: Duration = Duration::from_secs(30);

/// Why the subscriber stops for now.
enum End {
    /// The last handle was dropped.
    Closed,
    /// No acquire has waited for some time.
    Idle,
}

impl Subscriber {
    pub(in super::super) const fn new(
        address: Arc<Address>,
        mail: Arc<Mail>,
        node_timeout: Duration,
    ) -> Self {
        Self {
            address,
            mail,
            node_timeout,
        }
    }

    /// Runs until the last handle of the node is dropped.
    pub(crate) async fn run(self) {
        loop {
            while self.mail.is_idle() {
                if self.mail.is_closed() {
                    return;
                }
                self.mail.changed.notified().await;
            }
            if matches!(self.serve().await, End::Closed) {
                return;
            }
        }
    }

    async fn serve(&self) -> End {
        let mut backoff = FIRST_BACKOFF;
        let mut limit = ConnectLimit::new(self.address.is_tls());
        loop {
            let kind = match self.unless_closed(self.open(&limit)).await {
                Err(end) => return end,
                Ok(Ok(mut subscription)) => {
                    limit.was_in_time();
                    self.mail.opened(subscription.run_id);
                    let opened_at = Instant::now();
                    let kind = match self.receive(&mut subscription).await {
                        Err(end) => return end,
                        Ok(kind) => kind,
                    };
                    self.mail.failed(kind.clone());
                    if opened_at.elapsed() >= MIN_IDLE_LIFE && !kind.is_violation() {
                        backoff = FIRST_BACKOFF;
                        continue;
                    }
                    kind
                }
                Ok(Err(NotOpen { kind, was_late })) => {
                    if was_late {
                        limit.was_late();
                    }
                    self.mail.failed(kind.clone());
                    kind
                }
            };
            let delay = match kind {
                TransportError::CannotCall(_) => FORBIDDEN_BACKOFF,
                _ => backoff,
            };
            if let Err(end) = self.unless_closed(sleep(jittered(delay))).await {
                return end;
            }
            if self.mail.rest() {
                return End::Idle;
            }
            backoff = backoff.saturating_mul(2).min(LAST_BACKOFF);
        }
    }

    async fn open(&self, limit: &ConnectLimit) -> Result<Subscription, NotOpen> {
        let to_dial = ConnectLimit::to_dial(self.node_timeout);
        let to_set_up = limit.to_set_up(self.node_timeout);
        Subscription::open(&self.address, &self.mail.channel, to_dial, to_set_up).await
    }

    /// Passes messages on until the connection fails, and returns why. Ends if it is not needed any more.
    async fn receive(&self, subscription: &mut Subscription) -> Result<TransportError, End> {
        loop {
            let check_at = self
                .mail
                .kept_until()
                .unwrap_or_else(|| Instant::now() + KEPT);
            if check_at <= Instant::now() && self.mail.rest() {
                return Err(End::Idle);
            }
            let mut timer = pin!(sleep_until(check_at.into()));
            loop {
                tokio::select! {
                    biased;
                    () = self.mail.changed.notified() => break,
                    () = &mut timer => break,
                    message = subscription.next() => match message {
                        Ok(message) => self.mail.deliver(&message),
                        Err(kind) => return Ok(kind),
                    }
                }
            }
            if self.mail.is_closed() {
                return Err(End::Closed);
            }
            if !self.mail.is_up() {
                return Ok(TransportError::Disconnected);
            }
        }
    }

    async fn unless_closed<F: Future>(&self, future: F) -> Result<F::Output, End> {
        let mut future = pin!(future);
        loop {
            if self.mail.is_closed() {
                return Err(End::Closed);
            }
            tokio::select! {
                biased;
                output = &mut future => return Ok(output),
                () = self.mail.changed.notified() => {}
            }
        }
    }
}

impl Drop for Subscriber {
    /// If the last handle is not dropped yet, the runtime shuts down.
    fn drop(&mut self) {
        self.mail.failed(TransportError::RuntimeGone);
    }
}
