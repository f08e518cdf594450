//! A TCP connection to a host that may have several addresses.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use redis::io::tcp::socket2;
use tokio::net::TcpStream;
use tokio::sync::{Mutex, oneshot};
use tokio::time::timeout;

/// The host of a node, by name or by address.
pub(crate) struct Host {
    name: String,
    port: u16,
    /// A lookup that has no result yet. A lookup cannot be cancelled, so the next connect waits for the same one.
    lookup: Mutex<Option<oneshot::Receiver<Found>>>,
}

type Found = io::Result<Vec<SocketAddr>>;

/// How long to wait for an address before the next one is tried in parallel, as in RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// By then all addresses are tried, however many there are: a dial has a second.
const LAST_START: Duration = Duration::from_millis(750);

/// More addresses than a host name normally has.
const MAX_ADDRESSES: usize = 16;

/// With this, a dead connection without traffic is noticed after about half a minute.
const KEEPALIVE: Duration = Duration::from_secs(15);

impl Host {
    pub(crate) fn new(name: String, port: u16) -> Self {
        Self {
            name,
            port,
            lookup: Mutex::default(),
        }
    }

    /// Connects to the address that accepts a connection first. An address that drops all packets does not block the others.
    pub(crate) async fn dial(&self) -> io::Result<TcpStream> {
        let addresses = self.addresses().await?;
        let stream = race(addresses.into_iter()).await?;
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE / 3);
        stream.set_nodelay(true)?;
        socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        Ok(stream)
    }

    /// Looks the name up, unless it is an address. Dropping the future leaves the lookup to the next call.
    async fn addresses(&self) -> Found {
        if let Ok(address) = self.name.parse::<IpAddr>() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let mut lookup = self.lookup.lock().await;
        let found = match &mut *lookup {
            Some(running) => running,
            none => none.insert(look_up(self.name.clone(), self.port)?),
        };
        let found = found.await;
        *lookup = None;
        found.unwrap_or_else(|_| Err(io::Error::other("the name lookup has failed")))
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

/// Starts a lookup on a thread of its own. On the runtime's blocking threads, lookups of a name server that does not answer
/// would delay the blocking calls of the application, and the end of the runtime.
fn look_up(name: String, port: u16) -> io::Result<oneshot::Receiver<Found>> {
    let (sender, receiver) = oneshot::channel();
    let thread = thread::Builder::new().name("redlock-lookup".to_owned());
    thread.spawn(move || {
        let addresses = (name.as_str(), port).to_socket_addrs();
        // The last handle may be gone.
        drop(sender.send(addresses.map(|addresses| addresses.take(MAX_ADDRESSES).collect())));
    })?;
    Ok(receiver)
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Tries one address after the other: the next one when the last one has failed or its head start is over.
async fn race(addresses: impl ExactSizeIterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let others = u32::try_from(addresses.len())
        .unwrap_or(u32::MAX)
        .saturating_sub(1);
    let head_start = HEAD_START.min(LAST_START / others.max(1));
    let mut waiting = addresses.peekable();
    let mut attempts: Vec<Attempt> = Vec::new();
    let mut failed = None;
    loop {
        if let Some(address) = waiting.next() {
            attempts.push(Box::pin(TcpStream::connect(address)));
        } else if attempts.is_empty() {
            let nowhere = || io::Error::new(io::ErrorKind::NotFound, "the name has no address");
            return Err(failed.unwrap_or_else(nowhere));
        }
        let connected = if waiting.peek().is_some() {
            timeout(head_start, first(&mut attempts)).await
        } else {
            Ok(first(&mut attempts).await)
        };
        match connected {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failed = Some(error),
            Err(_elapsed) => {}
        }
    }
}

/// Removes the first attempt that ends, and returns its result.
async fn first(attempts: &mut Vec<Attempt>) -> io::Result<TcpStream> {
    poll_fn(|context| {
        for number in 0..attempts.len() {
            if let Some(attempt) = attempts.get_mut(number)
                && let Poll::Ready(result) = attempt.as_mut().poll(context)
            {
                drop(attempts.swap_remove(number));
                return Poll::Ready(result);
            }
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_connect_waits_for_the_lookup_that_an_earlier_one_has_left() {
        let host = Host::new("localhost".to_owned(), 1);
        let (answer, lookup) = oneshot::channel();
        *host.lookup.lock().await = Some(lookup);
        let given_up = timeout(Duration::ZERO, host.addresses()).await;
        assert!(given_up.is_err());
        let later = SocketAddr::from(([192, 0, 2, 1], 1));
        answer.send(Ok(vec![later])).unwrap();
        assert_eq!(host.addresses().await.unwrap(), [later]);
        // The next one looks the name up again.
        assert!(
            host.addresses()
                .await
                .unwrap()
                .iter()
                .all(|address| address.ip().is_loopback())
        );
    }

    #[tokio::test]
    async fn an_address_is_not_looked_up() {
        for (name, address) in [
            ("192.0.2.1", "192.0.2.1:1"),
            ("2001:db8::1", "[2001:db8::1]:1"),
        ] {
            let host = Host::new(name.to_owned(), 1);
            // A lookup would be waited for.
            let (_answer, lookup) = oneshot::channel();
            *host.lookup.lock().await = Some(lookup);
            assert_eq!(host.addresses().await.unwrap(), [address.parse().unwrap()]);
        }
    }

    #[tokio::test]
    async fn an_address_that_drops_all_packets_does_not_keep_the_next_one_from_being_tried() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let good = listener.local_addr().unwrap();
        let refusing = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let refused = refusing.local_addr().unwrap();
        drop(refusing);
        let (_full, silent) = silent_address();
        for addresses in [
            vec![silent, good],
            vec![silent, silent, good],
            vec![silent, refused, good],
            vec![refused, good, silent],
            [vec![silent; MAX_ADDRESSES - 1], vec![good]].concat(),
        ] {
            let start = Instant::now();
            let stream = race(addresses.clone().into_iter()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), good, "{addresses:?}");
            assert!(
                start.elapsed() < Duration::from_millis(900),
                "{addresses:?}"
            );
        }
        assert!(race([refused, refused].into_iter()).await.is_err());
        assert!(race([].into_iter()).await.is_err());
    }

    /// One whose queue of connections is full: the kernel drops what comes.
    fn silent_address() -> (impl Drop, SocketAddr) {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        socket.bind(&any.into()).unwrap();
        socket.listen(0).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        let clients: Vec<_> = (0..3)
            .filter_map(|_| std::net::TcpStream::connect_timeout(&address, HEAD_START).ok())
            .collect();
        (
            Full {
                _socket: socket,
                _clients: clients,
            },
            address,
        )
    }

    struct Full {
        _socket: socket2::Socket,
        _clients: Vec<std::net::TcpStream>,
    }

    impl Drop for Full {
        fn drop(&mut self) {}
    }
}
