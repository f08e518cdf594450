//! Real stacks of embassy-net, in virtual time: a device and hosts with servers, at the ends of a cable.

mod cable;
mod host;
#[cfg(feature = "dns")]
mod name_server;

use core::net::SocketAddr;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::task::Wake;

#[cfg(feature = "dns")]
use embassy_net::ConfigV4;
use embassy_net::{Config, Ipv4Address, Ipv4Cidr, Runner, Stack, StackResources, StaticConfigV4};
use embassy_time::MockDriver;
use redlock_core::mock::SeededEntropy;
use redlock_embassy::{EmbassyClock, NetSocket, Options, Redlock, TcpNode};
#[cfg(feature = "dns")]
use redlock_embassy::{HostName, resolve};

pub(crate) use cable::Cable;
use cable::{End, Side};
use host::Host;
#[cfg(feature = "dns")]
use name_server::NameServer;
#[cfg(feature = "dns")]
pub(crate) use name_server::reply;

use crate::fleet::fleet;
use crate::wire::{Server, Who};
use crate::world::{World, embassy_time, ms};

pub(crate) type LanNode = TcpNode<'static, NetSocket<'static>>;
pub(crate) type LanLock<const N: usize> = Redlock<LanNode, EmbassyClock, SeededEntropy, N>;

/// The sockets of the device, and those of the host for each server.
const SOCKETS: usize = 24;

/// How often everything is polled in a millisecond.
const POLLS_MAX: usize = 100;

pub(crate) const HOST: Ipv4Address = Ipv4Address::new(10, 0, 0, 1);
/// The address of the host after it has moved.
#[cfg(feature = "dns")]
pub(crate) const MOVED_HOST: Ipv4Address = Ipv4Address::new(10, 0, 0, 5);
const DEVICE: Ipv4Address = Ipv4Address::new(10, 0, 0, 2);
pub(crate) const NOBODY: Ipv4Address = Ipv4Address::new(10, 0, 0, 9);
const FIRST_PORT: u16 = 6_379;

/// A device and a host. Time passes a millisecond at a time, when neither has anything to do.
pub(crate) struct Lan {
    world: &'static World,
    pub(crate) cable: Rc<Cable>,
    pub(crate) stack: Stack<'static>,
    device: Task<Pin<Box<dyn Future<Output = ()>>>>,
    hosts: Vec<Host>,
    #[cfg(feature = "dns")]
    host_stack: Stack<'static>,
    #[cfg(feature = "dns")]
    pub(crate) name_server: Rc<NameServer>,
    /// What runs on the device beside its stack.
    others: Vec<Task<Pin<Box<dyn Future<Output = ()>>>>>,
    _turn: MutexGuard<'static, ()>,
}

/// A host with `N` servers, and a device.
pub(crate) fn lan<const N: usize>() -> (&'static [Server<'static>; N], Lan) {
    lan_of(24)
}

/// The same. The device takes addresses with the same first `prefix` bits for neighbors, and sends all else to the host.
pub(crate) fn lan_of<const N: usize>(prefix: u8) -> (&'static [Server<'static>; N], Lan) {
    let world = Box::leak(Box::<World>::default());
    let servers: &'static [_; N] = Box::leak(Box::new(fleet(world, Who::default())));
    let lan = Lan::new(world, &servers.each_ref(), prefix);
    (servers, lan)
}

/// `N` hosts in the subnet of the device, with one server each. Their addresses are those of [`neighbor`].
pub(crate) fn lan_of_hosts<const N: usize>() -> (&'static [Server<'static>; N], Lan) {
    let world = Box::leak(Box::<World>::default());
    let servers: &'static [_; N] = Box::leak(Box::new(fleet(world, Who::default())));
    let mut lan = Lan::new(world, &[], 24);
    for (number, server) in (0..).zip(servers) {
        let end = lan.cable.end(Side::neighbor(number));
        let (stack, runner) = start(Ipv4Cidr::new(neighbor(number), 24), end);
        let host = Host::new(stack, Box::pin(drive(runner)), &[server], FIRST_PORT);
        lan.hosts.push(host);
    }
    (servers, lan)
}

/// The address of a host of [`lan_of_hosts`].
pub(crate) const fn neighbor(number: u8) -> Ipv4Address {
    Ipv4Address::new(10, 0, 0, 11 + number)
}

impl Lan {
    /// Starts a host with these servers, at one port each.
    fn new(world: &'static World, servers: &[&'static Server<'static>], prefix: u8) -> Self {
        let turn = embassy_time();
        let cable = Rc::<Cable>::default();
        let (stack, runner) = start(Ipv4Cidr::new(DEVICE, prefix), cable.end(Side::DEVICE));
        let (host_stack, host_runner) = start(Ipv4Cidr::new(HOST, 24), cable.end(Side::HOST));
        let host = Host::new(
            host_stack,
            Box::pin(drive(host_runner)),
            servers,
            FIRST_PORT,
        );
        #[cfg(feature = "dns")]
        let name_server = Rc::new(NameServer::new(|_, question| {
            Some(reply(question, &[HOST]))
        }));
        #[cfg(feature = "dns")]
        let host = host.and(Box::pin(Rc::clone(&name_server).serve(host_stack)));
        Self {
            world,
            cable,
            stack,
            device: Task::new(Box::pin(drive(runner))),
            hosts: vec![host],
            #[cfg(feature = "dns")]
            host_stack,
            #[cfg(feature = "dns")]
            name_server,
            others: Vec::new(),
            _turn: turn,
        }
    }

    /// Names for the first `N` servers, for which the device asks the name server.
    #[cfg(feature = "dns")]
    pub(crate) fn resolve<const N: usize>(&mut self) -> &'static [HostName; N] {
        const TEXTS: [&str; 5] = [
            "redis-0.lan",
            "redis-1.lan",
            "redis-2.lan",
            "redis-3.lan",
            "redis-4.lan",
        ];
        let names = core::array::from_fn(|number| HostName::new(TEXTS[number]));
        self.resolve_these(Box::leak(Box::new(names)))
    }

    #[cfg(feature = "dns")]
    pub(crate) fn resolve_these<const N: usize>(
        &mut self,
        names: &'static [HostName; N],
    ) -> &'static [HostName; N] {
        let stack = self.stack;
        let resolving = async move { resolve(stack, names).await };
        self.others.push(Task::new(Box::pin(resolving)));
        names
    }

    /// A socket for the server with this number, by a name.
    #[cfg(feature = "dns")]
    pub(crate) fn named_socket(&self, name: &'static HostName, number: u16) -> NetSocket<'static> {
        let rx = Box::leak(Box::new([0; 128]));
        let tx = Box::leak(Box::new([0; 256]));
        NetSocket::named(self.stack, name, FIRST_PORT + number, rx, tx)
    }

    /// Gives the host the address [`MOVED_HOST`], with the name server and its records. The device is told where the name server
    /// is now, as by DHCP.
    #[cfg(feature = "dns")]
    pub(crate) fn move_host(&self) {
        let config = |address| StaticConfigV4 {
            address: Ipv4Cidr::new(address, 24),
            gateway: Some(MOVED_HOST),
            dns_servers: [MOVED_HOST].into_iter().collect(),
        };
        self.host_stack
            .set_config_v4(ConfigV4::Static(config(MOVED_HOST)));
        self.stack.set_config_v4(ConfigV4::Static(config(DEVICE)));
        self.name_server.answer_with(&[MOVED_HOST]);
    }

    /// A socket for the server with this number.
    pub(crate) fn socket(&self, number: u16) -> NetSocket<'static> {
        self.socket_with_tx::<256>(number)
    }

    /// The same, with a send buffer of this size.
    pub(crate) fn socket_with_tx<const TX: usize>(&self, number: u16) -> NetSocket<'static> {
        self.socket_to::<TX>(HOST, FIRST_PORT + number)
    }

    pub(crate) fn address_of(&self, number: u16) -> SocketAddr {
        SocketAddr::new(HOST.into(), FIRST_PORT + number)
    }

    /// A socket for an address that no host has.
    pub(crate) fn socket_of_nobody(&self) -> NetSocket<'static> {
        self.socket_to::<256>(NOBODY, FIRST_PORT)
    }

    /// A socket for the server of a [`neighbor`], with a send buffer that holds the login.
    pub(crate) fn socket_of_neighbor(&self, number: u8) -> NetSocket<'static> {
        self.socket_to::<1_024>(neighbor(number), FIRST_PORT)
    }

    fn socket_to<const TX: usize>(&self, address: Ipv4Address, port: u16) -> NetSocket<'static> {
        let rx = Box::leak(Box::new([0; 128]));
        let tx = Box::leak(Box::new([0; TX]));
        NetSocket::new(self.stack, (address, port), rx, tx)
    }

    /// A node of the server with this number.
    pub(crate) fn node(&self, number: u16) -> LanNode {
        TcpNode::new(self.socket(number), EmbassyClock)
    }

    /// A lock over the first `N` servers.
    pub(crate) fn lock<const N: usize>(&self, options: Options) -> LanLock<N> {
        self.lock_over(options, |socket| socket)
    }

    /// The same, over sockets that `set_up` has changed.
    pub(crate) fn lock_over<const N: usize>(
        &self,
        options: Options,
        set_up: impl Fn(NetSocket<'static>) -> NetSocket<'static>,
    ) -> LanLock<N> {
        let sockets = (0..).take(N).map(|number| set_up(self.socket(number)));
        let nodes = sockets.map(|socket| TcpNode::new(socket, EmbassyClock));
        Redlock::new(nodes, EmbassyClock, SeededEntropy::new(1), options).unwrap()
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.world.now_ms()
    }

    /// Runs `future` to its end.
    pub(crate) fn run<F: Future>(&mut self, future: F) -> F::Output {
        let deadline = self.world.after(Duration::from_secs(3_600));
        let future = pin!(future);
        let mut task = Task::new(future);
        loop {
            if let Poll::Ready(output) = self.poll(&mut task) {
                return output;
            }
            assert!(self.world.after(Duration::ZERO) < deadline, "it never ends");
            self.tick(ms(1));
        }
    }

    /// Lets time pass in which the device calls nothing. Its stack runs.
    pub(crate) fn idle(&mut self, time: Duration) {
        // Longer ticks, to pass hours and days in a moment.
        let tick = match time.as_secs() {
            0..=60 => ms(1),
            61..=21_600 => ms(100),
            _ => ms(1_000),
        };
        let end = self.world.after(time);
        let mut task = Task::new(core::future::pending::<()>());
        while self.world.after(Duration::ZERO) < end {
            let _pending = self.poll(&mut task);
            self.tick(tick);
        }
    }

    /// Polls everything until nothing moves, or for a while: the stack may wake itself over and over until time has passed.
    fn poll<F: Future + Unpin>(&mut self, task: &mut Task<F>) -> Poll<F::Output> {
        for _ in 0..POLLS_MAX {
            let frames = self.cable.frames();
            let _runs_forever = self.device.poll_if_woken();
            for other in &mut self.others {
                let _runs_forever = other.poll_if_woken();
            }
            self.hosts.iter_mut().for_each(Host::poll);
            if let Some(output) = task.poll_if_woken() {
                return Poll::Ready(output);
            }
            let is_woken =
                self.device.is_woken() || self.others.iter().any(Task::is_woken) || task.is_woken();
            if !is_woken && self.cable.frames() == frames {
                return Poll::Pending;
            }
        }
        Poll::Pending
    }

    fn tick(&self, by: Duration) {
        self.world.clock.advance(by);
        MockDriver::get().advance(by.try_into().unwrap());
        self.cable.deliver();
    }
}

fn start(address: Ipv4Cidr, end: End) -> (Stack<'static>, Runner<'static, End>) {
    let config = Config::ipv4_static(StaticConfigV4 {
        address,
        gateway: Some(HOST),
        dns_servers: [HOST].into_iter().collect(),
    });
    let resources = Box::leak(Box::new(StackResources::<SOCKETS>::new()));
    embassy_net::new(end, config, resources, 1)
}

async fn drive(mut runner: Runner<'static, End>) {
    runner.run().await;
}

/// A future that is polled only after it was woken. So a lost wake-up fails the test.
struct Task<F> {
    future: F,
    flag: Arc<Flag>,
    waker: Waker,
}

#[derive(Default)]
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl<F: Future + Unpin> Task<F> {
    fn new(future: F) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        // A clone, because `will_wake` may tell a waker from its clones, and the clones from each other not.
        let waker = Waker::clone(&Waker::from(Arc::clone(&flag)));
        Self {
            future,
            flag,
            waker,
        }
    }

    fn is_woken(&self) -> bool {
        self.flag.0.load(Ordering::Relaxed)
    }

    fn poll_if_woken(&mut self) -> Option<F::Output> {
        if !self.flag.0.swap(false, Ordering::Relaxed) {
            return None;
        }
        let mut cx = Context::from_waker(&self.waker);
        match Pin::new(&mut self.future).poll(&mut cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }
}
