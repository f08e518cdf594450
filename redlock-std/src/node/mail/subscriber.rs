//! The task that owns the subscription to one node.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::super::address::Address;
use super::super::backoff::{Backoff, MIN_LIFE, jittered};
use super::super::connect_limit::ConnectLimit;
use super::super::error::TransportError;
use super::super::replies::Budget;
use super::Mail;
use super::subscription::{NotOpen, Subscription};

/// Keeps a subscription to one node while acquires wait, and passes its messages on.
#[derive(Debug)]
pub(crate) struct Subscriber {
    address: Arc<Address>,
    mail: Arc<Mail>,
    node_timeout: Duration,
    /// Outlives the connections: a server ends that of a client which reads too slowly.
    budget: Arc<Budget>,
}

/// A subscription on which nothing has arrived for eight node timeouts, and at least for this time, is asked for a sign of life. It is
/// replaced if there is none within as long again: to the node, a client without a subscription is gone.
const MIN_SILENCE: Duration = Duration::from_secs(1);

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
    pub(in super::super) fn new(
        address: Arc<Address>,
        mail: Arc<Mail>,
        node_timeout: Duration,
    ) -> Self {
        Self {
            address,
            mail,
            node_timeout,
            budget: Budget::new(),
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
        let mut backoff = Backoff::new(self.address.is_tls());
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
                    self.mail.broke(kind.clone());
                    let is_worth_it = !kind.is_violation() && !self.mail.is_shut();
                    let lived = opened_at.elapsed();
                    if lived >= MIN_LIFE && is_worth_it && backoff.is_over(lived) {
                        continue;
                    }
                    kind
                }
                Ok(Err(NotOpen { kind, was_late })) => {
                    if was_late {
                        limit.was_late();
                    }
                    self.mail.shut(kind.clone());
                    kind
                }
            };
            let delay = match kind {
                TransportError::CannotCall(_) => jittered(FORBIDDEN_BACKOFF),
                _ => backoff.next_delay(),
            };
            if let Err(end) = self.unless_closed(sleep(delay)).await {
                return end;
            }
            if self.mail.rest() {
                return End::Idle;
            }
        }
    }

    async fn open(&self, limit: &ConnectLimit) -> Result<Subscription, NotOpen> {
        let to_dial = ConnectLimit::to_dial(self.node_timeout);
        let to_set_up = limit.to_set_up(self.node_timeout);
        let channel = &self.mail.channel;
        let budget = Arc::clone(&self.budget);
        Subscription::open(&self.address, channel, budget, to_dial, to_set_up).await
    }

    /// Passes messages on until the connection fails, and returns why. Ends if it is not needed any more.
    async fn receive(&self, subscription: &mut Subscription) -> Result<TransportError, End> {
        let silence = self.node_timeout.saturating_mul(8).max(MIN_SILENCE);
        let mut silent_at = Instant::now() + silence;
        let mut is_asked = false;
        loop {
            let kept_until = self.mail.kept_until();
            if kept_until.is_some_and(|until| until <= Instant::now()) && self.mail.rest() {
                return Err(End::Idle);
            }
            let wake_at = kept_until.map_or(silent_at, |until| until.min(silent_at));
            tokio::select! {
                biased;
                () = self.mail.changed.notified() => {
                    if self.mail.is_closed() {
                        return Err(End::Closed);
                    }
                    if !self.mail.is_up() {
                        return Ok(TransportError::Disconnected);
                    }
                }
                // Ahead of the timer: a process that was paused finds what has arrived meanwhile.
                message = subscription.next() => match message {
                    Ok(message) => {
                        self.mail.deliver(&message);
                        silent_at = Instant::now() + silence;
                        is_asked = false;
                    }
                    Err(kind) => return Ok(kind),
                },
                () = sleep_until(wake_at) => if silent_at <= Instant::now() {
                    if is_asked || timeout(silence, subscription.ask()).await.is_err() {
                        return Ok(TransportError::Disconnected);
                    }
                    silent_at = Instant::now() + silence;
                    is_asked = true;
                },
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use redlock_core::transport::{Call, Mailbox};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::{AbortHandle, yield_now};

    use super::super::KEPT;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// The replies of a node to the setup of a subscription, the last one apart.
    const SETUP: &[u8] =
        b"+OK\r\n+OK\r\n*4\r\n:1\r\n:2\r\n:400000003\r\n:60000\r\n*2\r\n$1\r\nc\r\n:0\r\n:0\r\n";
    const SUBSCRIBED: &[u8] = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";

    /// A node that the test plays.
    struct Node {
        listener: TcpListener,
        mail: Arc<Mail>,
        subscriber: AbortHandle,
    }

    impl Node {
        async fn start() -> Self {
            Self::start_with(LIMIT).await
        }

        async fn start_with(node_timeout: Duration) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("redis://{}", listener.local_addr().unwrap());
            let address = Arc::new(Address::parse(&url).unwrap());
            let mail = Arc::new(Mail::new(
                Mailbox::new([7; 8]),
                crate::lines::Teller::alone(),
            ));
            let subscriber = Subscriber::new(address, Arc::clone(&mail), node_timeout);
            Self {
                listener,
                mail,
                subscriber: tokio::spawn(subscriber.run()).abort_handle(),
            }
        }

        /// Accepts the next connection, and answers its setup.
        async fn accept(&self, end: &[u8]) -> TcpStream {
            let accepted = timeout(LIMIT, self.listener.accept()).await;
            let (mut stream, _peer) = accepted.unwrap().unwrap();
            let mut setup = Vec::new();
            while !setup.ends_with(b"SUBSCRIBE\r\n$29\r\nredlock:mail:0707070707070707\r\n") {
                assert!(stream.read_buf(&mut setup).await.unwrap() > 0);
            }
            stream.write_all(&[SETUP, end].concat()).await.unwrap();
            stream
        }

        async fn open(&self) -> TcpStream {
            let (stream, ()) = tokio::join!(self.accept(SUBSCRIBED), self.mail.open());
            assert!(self.mail.can_call(None));
            stream
        }
    }

    fn message(payload: &[u8]) -> Vec<u8> {
        let head = format!("${}\r\n", payload.len());
        message_on(
            "redlock:mail:0707070707070707",
            &[head.as_bytes(), payload, b"\r\n"].concat(),
        )
    }

    fn message_on(channel: &str, payload: &[u8]) -> Vec<u8> {
        let head = format!("*3\r\n$7\r\nmessage\r\n${}\r\n{channel}\r\n", channel.len());
        [head.as_bytes(), payload].concat()
    }

    #[tokio::test]
    async fn the_first_acquire_that_waits_opens_the_connection_and_is_called_on_it() {
        let node = Node::start().await;
        let idle = timeout(Duration::from_millis(20), node.listener.accept()).await;
        assert!(idle.is_err(), "no acquire has waited");
        let mut stream = node.open().await;
        let waiter = node.mail.wait_for(b"dock", true);
        stream.write_all(&message(b"1dock")).await.unwrap();
        assert_eq!(waiter.called().await, Call::Turn);
        node.mail.open().await;
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_made_again_and_wakes_the_acquires() {
        let node = Node::start().await;
        let mut stream = node.open().await;
        for end in [
            Vec::new(),
            b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
            b"+OK\r\n".to_vec(),
            b"*1\r\n".repeat(1_000),
        ] {
            let waiter = node.mail.wait_for(b"dock", true);
            // It may close the connection before all of it has arrived.
            drop(stream.write_all(&end).await);
            if end.is_empty() {
                drop(stream);
            }
            stream = node.accept(SUBSCRIBED).await;
            assert_eq!(waiter.called().await, Call::Reconnected);
            assert!(node.mail.can_call(None));
        }
    }

    /// As CLIENT TRACKING with REDIRECT sends them.
    #[tokio::test]
    async fn messages_that_are_not_for_this_client_do_not_end_the_connection() {
        let node = Node::start().await;
        let mut stream = node.open().await;
        let waiter = node.mail.wait_for(b"dock", true);
        let thousand = [&b"*1000\r\n"[..], &b"$5\r\napp:k\r\n".repeat(1_000)].concat();
        for payload in [
            &b"*1\r\n$5\r\napp:k\r\n"[..],
            b"*-1\r\n",
            b"$-1\r\n",
            b"*0\r\n",
            b"$5\r\n1dock\r\n",
            &thousand,
            &[b"*1\r\n$300000\r\n", &[b'x'; 300_000][..], b"\r\n"].concat(),
        ] {
            let sent = message_on("__redis__:invalidate", payload);
            stream.write_all(&sent).await.unwrap();
            stream.write_all(&message(b"2dock")).await.unwrap();
            assert_eq!(waiter.called().await, Call::Deputy);
        }
        stream.write_all(&message(&[b'x'; 300_000])).await.unwrap();
        stream.write_all(&message(b"2dock")).await.unwrap();
        assert_eq!(waiter.called().await, Call::Deputy);
        assert!(node.mail.can_call(None));
    }

    #[tokio::test]
    async fn a_connection_that_gives_no_sign_of_life_is_replaced() {
        let node = Node::start_with(Duration::from_millis(1)).await;
        let mut stream = node.open().await;
        let waiter = node.mail.wait_for(b"dock", true);
        let question = b"*2\r\n$9\r\nSUBSCRIBE\r\n$29\r\nredlock:mail:0707070707070707\r\n";
        let mut asked = [0; 55];
        for _ in 0..2 {
            stream.read_exact(&mut asked).await.unwrap();
            assert_eq!(asked, *question);
            stream.write_all(SUBSCRIBED).await.unwrap();
            assert!(node.mail.can_call(None));
        }
        // Asked once more, and silent.
        let (again, ()) = tokio::join!(node.accept(SUBSCRIBED), async {
            while stream.read(&mut asked).await.unwrap() > 0 {}
        });
        assert_eq!(waiter.called().await, Call::Reconnected);
        drop(again);
    }

    #[tokio::test]
    async fn a_flood_of_messages_keeps_no_other_task_waiting() {
        let node = Node::start().await;
        let stream = node.open().await;
        let waiter = node.mail.wait_for(b"dock", true);
        // From another thread, so that there is always more to read.
        let mut stream = stream.into_std().unwrap();
        stream.set_nonblocking(false).unwrap();
        let flood = tokio::task::spawn_blocking(move || {
            let messages = message(b"1dock").repeat(1_000);
            while stream.write_all(&messages).is_ok() {}
        });
        for _ in 0..1_000 {
            assert_eq!(waiter.called().await, Call::Turn);
            yield_now().await;
        }
        node.subscriber.abort();
        flood.await.unwrap();
    }

    #[tokio::test]
    async fn without_the_permission_the_node_cannot_call_and_is_not_asked_at_once() {
        let node = Node::start().await;
        let error = b"-NOPERM User locker has no permissions to access the channel\r\n";
        let (stream, ()) = tokio::join!(node.accept(error), node.mail.open());
        assert!(!node.mail.can_call(None));
        let problem = node.mail.problem().unwrap().to_string();
        assert!(
            problem.contains("User locker") && problem.contains("&redlock:mail:*"),
            "{problem}"
        );
        drop(stream);
        node.mail.open().await;
        let again = timeout(Duration::from_millis(200), node.listener.accept()).await;
        assert!(again.is_err());
    }

    #[tokio::test]
    async fn a_minute_after_the_last_wait_the_connection_is_closed() {
        let node = Node::start().await;
        let mut stream = node.open().await;
        let waiter = node.mail.wait_for(b"dock", true);
        tokio::time::pause();
        tokio::time::advance(KEPT + Duration::from_secs(1)).await;
        yield_now().await;
        assert!(node.mail.can_call(None), "an acquire waits");
        drop(waiter);
        while stream.read(&mut [0; 64]).await.unwrap() > 0 {}
        assert!(node.mail.is_idle());
        tokio::time::resume();
        let _again = node.open().await;
    }

    #[tokio::test]
    async fn the_subscriber_ends_with_the_last_handle() {
        for is_open in [true, false] {
            let node = Node::start().await;
            let _stream = if is_open {
                Some(node.open().await)
            } else {
                None
            };
            node.mail.close();
            timeout(LIMIT, async {
                while !node.subscriber.is_finished() {
                    yield_now().await;
                }
            })
            .await
            .unwrap();
        }
    }
}
