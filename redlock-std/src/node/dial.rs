//! A TCP connection to a host that may have several addresses.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use redis::io::tcp::socket2;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;

/// How long to wait for an address before the next one is tried in parallel, as in RFC 8305.
const HEAD_START: Duration = Duration::from_millis(250);

/// More addresses than a host name normally has.
const MAX_ADDRESSES: usize = 16;

/// With this, a dead connection without traffic is noticed after about half a minute.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Connects to the address of `host` that answers first. An address that drops all packets does not block the others.
pub(crate) async fn dial(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses = lookup_host((host, port)).await?;
    let stream = race(addresses.take(MAX_ADDRESSES)).await?;
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(KEEPALIVE)
        .with_interval(KEEPALIVE / 3);
    stream.set_nodelay(true)?;
    socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
    Ok(stream)
}

type Attempt = Pin<Box<dyn Future<Output = io::Result<TcpStream>> + Send>>;

/// Tries one address after the other: the next one when the last one has failed or its head start is over.
async fn race(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
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
            timeout(HEAD_START, first(&mut attempts)).await
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
