//! A lock without an executor and without embassy-net: smoltcp alone, in a loop that polls everything again and again, and
//! sleeps in a stop mode between two uses. It works in the same way in an idle task of RTIC, or in a task of an RTOS.
//!
//! It takes three parts: a [`Clock`] that counts through stop modes, a stream that implements [`Connect`], and a [`run`] that
//! polls. No part needs a waker.
//!
//! `cargo test --example superloop`

use core::cell::{Cell, RefCell};
use core::fmt;
use core::future::poll_fn;
use core::net::SocketAddrV4;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use embedded_io_async::{ErrorKind, ErrorType, Read, Write};
use redlock_embassy::{
    Clock, Connect, Entropy, Instant, NodeName, Redlock, TcpNode, close_all, connect_all,
};
use smoltcp::iface::{Interface, SocketHandle, SocketSet};
use smoltcp::phy::Device;
use smoltcp::socket::tcp::{Socket, State};

fn main() {}

/// Uses the lock once, as a device with a battery does. No connection is left when it returns, so the device may enter a stop
/// mode. Returns whether the lock was acquired.
pub async fn use_once<S: Connect, C: Clock + Copy, E: Entropy, const N: usize>(
    lock: &mut Redlock<TcpNode<'_, S, C>, C, E, N>,
    work: impl AsyncFnOnce(),
) -> bool {
    // The nodes side by side, before the lease begins.
    let _connected = connect_all(lock).await;
    let done = lock.hold("valve-3", async |_lease| work().await).await;
    // The servers notice. Without it, they would keep the connections for minutes.
    close_all(lock).await;
    done.is_ok()
}

/// A counter that continues in every stop mode, at 32,768 Hz: the RTC or a low-power timer.
pub trait Rtc {
    /// How often it has counted since the device has started.
    fn ticks(&self) -> u64;
}

/// The clock of the lock. A timer that stops in a stop mode would make the device believe that it still holds a lock that has
/// expired.
#[derive(Debug)]
pub struct RtcClock<'r, R>(pub &'r R);

impl<R> Clone for RtcClock<'_, R> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<R> Copy for RtcClock<'_, R> {}

const HZ: u64 = 32_768;

impl<R: Rtc> Clock for RtcClock<'_, R> {
    fn now(&self) -> Instant {
        let ticks = self.0.ticks();
        // In two parts, which do not overflow.
        Instant::from_micros(ticks / HZ * 1_000_000 + ticks % HZ * 1_000_000 / HZ)
    }

    /// One tick, rounded up.
    fn resolution(&self) -> Duration {
        Duration::from_micros(31)
    }

    async fn sleep_until(&self, deadline: Instant) {
        poll_fn(|_| match self.now() < deadline {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
    }
}

/// The network stack, which the loop and all streams use.
pub struct Network {
    interface: Interface,
    sockets: SocketSet<'static>,
    /// Random at the start, so that a restart does not use the same ports again.
    next_port: u16,
}

/// Runs `future` to its end: polls the stack and the future, again and again. A loop with other work polls the future once in
/// each turn.
pub fn run<D: Device, R: Rtc, F: Future>(
    network: &RefCell<Network>,
    device: &mut D,
    clock: RtcClock<'_, R>,
    future: F,
) -> F::Output {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    loop {
        network.borrow_mut().poll(device, clock.now());
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Network").finish_non_exhaustive()
    }
}

impl Network {
    fn poll<D: Device>(&mut self, device: &mut D, now: Instant) {
        let micros = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
        let now = smoltcp::time::Instant::from_micros(micros);
        self.interface.poll(now, device, &mut self.sockets);
    }
}

/// A stream to one node. Its socket keeps the state of the connection, so every call may be dropped.
pub struct Stream<'n> {
    network: &'n RefCell<Network>,
    socket: SocketHandle,
    remote: SocketAddrV4,
    /// Rule 5 of [`Connect`]: an attempt that a round has dropped continues.
    is_connecting: Cell<bool>,
}

impl fmt::Debug for Stream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.remote)
    }
}

impl Stream<'_> {
    /// Waits until `poll` has a result.
    async fn until<R>(&self, mut poll: impl FnMut(&mut Socket<'static>) -> Option<R>) -> R {
        poll_fn(|_| {
            let mut network = self.network.borrow_mut();
            poll(network.sockets.get_mut(self.socket)).map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// Resets the connection. The stack has told the node when it has forgotten its address.
    async fn reset(&self) {
        self.is_connecting.set(false);
        self.network
            .borrow_mut()
            .sockets
            .get_mut::<Socket<'_>>(self.socket)
            .abort();
        self.until(|socket| socket.remote_endpoint().is_none().then_some(()))
            .await;
    }

    fn begin(&self) -> Result<(), ErrorKind> {
        let network = &mut *self.network.borrow_mut();
        network.next_port = network.next_port.wrapping_add(1).max(49_152);
        let socket = network.sockets.get_mut::<Socket<'_>>(self.socket);
        socket.set_nagle_enabled(false);
        let context = network.interface.context();
        let remote = (*self.remote.ip(), self.remote.port());
        let begun = socket.connect(context, remote, network.next_port);
        begun.map_err(|_| ErrorKind::NotConnected)
    }
}

impl Connect for Stream<'_> {
    fn name(&self) -> NodeName {
        core::net::SocketAddr::V4(self.remote).into()
    }

    async fn connect(&mut self) -> Result<(), ErrorKind> {
        if !self.is_connecting.get() {
            self.reset().await;
            self.begin()?;
            self.is_connecting.set(true);
        }
        let state = self.until(|socket| match socket.state() {
            State::SynSent | State::SynReceived => None,
            state => Some(state),
        });
        let state = state.await;
        self.is_connecting.set(false);
        match state {
            State::Closed => Err(ErrorKind::ConnectionReset),
            _ => Ok(()),
        }
    }

    async fn close(&mut self) {
        self.reset().await;
    }
}

impl ErrorType for Stream<'_> {
    type Error = ErrorKind;
}

impl Read for Stream<'_> {
    async fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ErrorKind> {
        self.until(|socket| match socket.recv_slice(buffer) {
            Ok(0) => None,
            Ok(count) => Some(Ok(count)),
            // The node has closed the connection, or there is none.
            Err(_) => Some(Ok(0)),
        })
        .await
    }
}

impl Write for Stream<'_> {
    async fn write(&mut self, bytes: &[u8]) -> Result<usize, ErrorKind> {
        self.until(|socket| match socket.send_slice(bytes) {
            Ok(0) => None,
            Ok(count) => Some(Ok(count)),
            Err(_) => Some(Err(ErrorKind::ConnectionReset)),
        })
        .await
    }

    /// The loop sends the bytes.
    async fn flush(&mut self) -> Result<(), ErrorKind> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use redlock_core::mock::SeededEntropy;
    use redlock_embassy::Options;
    use smoltcp::iface::Config;
    use smoltcp::phy::{Loopback, Medium};
    use smoltcp::socket::tcp::SocketBuffer;
    use smoltcp::wire::{HardwareAddress, IpCidr};

    use super::*;

    /// It counts whenever it is read, so the test takes no time. A stop mode lets it jump.
    #[derive(Default)]
    struct MockRtc(Cell<u64>);

    impl Rtc for MockRtc {
        fn ticks(&self) -> u64 {
            self.0.set(self.0.get() + 1);
            self.0.get()
        }
    }

    const NODE: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 6_379);

    fn network(device: &mut Loopback, sockets: usize) -> (RefCell<Network>, Vec<SocketHandle>) {
        let config = Config::new(HardwareAddress::Ip);
        let mut interface = Interface::new(config, device, smoltcp::time::Instant::ZERO);
        interface.update_ip_addrs(|addresses| {
            addresses
                .push(IpCidr::new(Ipv4Addr::LOCALHOST.into(), 8))
                .unwrap();
        });
        let mut set = SocketSet::new(Vec::new());
        let handles = (0..sockets).map(|_| {
            let buffer = || SocketBuffer::new(vec![0; 1_024]);
            set.add(Socket::new(buffer(), buffer()))
        });
        let handles = handles.collect();
        let network = Network {
            interface,
            sockets: set,
            next_port: 50_000,
        };
        (RefCell::new(network), handles)
    }

    /// A server that knows one conversation: who it is, an acquire, a release. Counts the connections that were reset by then.
    async fn serve(server: Stream<'_>, connections: &Cell<u32>) {
        let replies = ["*4\r\n:1\r\n:7\r\n:4000003\r\n:0\r\n", "+OK\r\n", ":1\r\n"];
        loop {
            let listening = |socket: &mut Socket<'_>| socket.listen(NODE.port()).ok();
            server.until(listening).await;
            server.until(|socket| socket.may_recv().then_some(())).await;
            let mut answered = replies.iter();
            let mut inbox = Vec::new();
            loop {
                let mut buffer = [0; 256];
                let read = server.until(|socket| match socket.recv_slice(&mut buffer) {
                    Ok(0) => None,
                    end => Some(end),
                });
                let Ok(count) = read.await else { break };
                inbox.extend_from_slice(&buffer[..count]);
                if is_whole(&inbox) {
                    inbox.clear();
                    let reply = answered.next().unwrap().as_bytes();
                    let sent = server.until(|socket| socket.send_slice(reply).ok());
                    assert_eq!(sent.await, reply.len());
                }
            }
            connections.set(connections.get() + 1);
            server.reset().await;
        }
    }

    /// Whether the command has all its words: each is one line after the line with its length, or contains line ends.
    fn is_whole(inbox: &[u8]) -> bool {
        let mut rest = inbox;
        let Some(count) = take_number(&mut rest) else {
            return false;
        };
        (0..count).all(|_| match take_number(&mut rest) {
            Some(len) if rest.len() >= len + 2 => {
                rest = &rest[len + 2..];
                true
            }
            _ => false,
        })
    }

    fn take_number(rest: &mut &[u8]) -> Option<usize> {
        let end = rest.iter().position(|byte| *byte == b'\r')?;
        let number = str::from_utf8(rest.get(1..end)?).unwrap().parse().unwrap();
        *rest = rest.get(end + 2..)?;
        Some(number)
    }

    fn stream(network: &RefCell<Network>, socket: SocketHandle) -> Stream<'_> {
        Stream {
            network,
            socket,
            remote: NODE,
            is_connecting: Cell::new(false),
        }
    }

    fn lock<'n>(
        stream: Stream<'n>,
        clock: RtcClock<'n, MockRtc>,
    ) -> Redlock<
        TcpNode<'static, Stream<'n>, RtcClock<'n, MockRtc>>,
        RtcClock<'n, MockRtc>,
        SeededEntropy,
        1,
    > {
        let options = Options::new(Duration::from_secs(10)).unwrap();
        let options = options.wait(Duration::ZERO);
        let node = TcpNode::new(stream, clock);
        Redlock::new([node], clock, SeededEntropy::new(1), options).unwrap()
    }

    #[test]
    fn the_lock_is_used_twice_with_an_hour_in_a_stop_mode_in_between() {
        let rtc = MockRtc::default();
        let clock = RtcClock(&rtc);
        let mut device = Loopback::new(Medium::Ip);
        let (network, sockets) = network(&mut device, 2);
        let mut lock = lock(stream(&network, sockets[0]), clock);
        let ended = Cell::new(0);
        let mut server = pin!(serve(stream(&network, sockets[1]), &ended));
        for uses in 1..=2 {
            let worked = Cell::new(false);
            let device_side = use_once(&mut lock, async || worked.set(true));
            let mut device_side = pin!(device_side);
            let both = poll_fn(|cx| {
                let _serves = server.as_mut().poll(cx);
                device_side.as_mut().poll(cx)
            });
            assert!(run(&network, &mut device, clock, both) && worked.get());
            // The server notices the end of the connection.
            let limit = rtc.0.get() + 10 * HZ;
            let noticed = poll_fn(|cx| {
                let _serves = server.as_mut().poll(cx);
                assert!(rtc.0.get() < limit, "the server keeps the connection");
                match ended.get() == uses {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            });
            run(&network, &mut device, clock, noticed);
            rtc.0.set(rtc.0.get() + 3_600 * HZ);
        }
    }

    #[test]
    fn without_a_server_the_lock_is_not_acquired_and_the_error_says_why() {
        let rtc = MockRtc::default();
        let clock = RtcClock(&rtc);
        let mut device = Loopback::new(Medium::Ip);
        let (network, sockets) = network(&mut device, 1);
        let mut lock = lock(stream(&network, sockets[0]), clock);
        let error = run(&network, &mut device, clock, lock.try_acquire("valve-3"));
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("127.0.0.1:6379: connection refused"),
            "{error}"
        );
    }
}
