//! Nodes that are known by their names.

use core::fmt;
use core::future::pending;

use embassy_futures::join::join_array;
use embassy_net::dns::DnsQueryType;
use embassy_net::{IpAddress, IpEndpoint, Stack};
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_sync::signal::Signal;
use embassy_time::Instant;
use heapless::Vec;

use crate::NodeName;

/// The name of a node's host, for one [`NetSocket::named`](crate::NetSocket::named). [`resolve`] asks for its addresses.
pub struct HostName {
    name: &'static str,
    question: Signal<NoopRawMutex, ()>,
    /// Empty if the name has no address, or no name server has answered.
    answer: Signal<NoopRawMutex, Addresses>,
}

type Addresses = Vec<IpAddress, ADDRESSES_MAX>;

/// More addresses than a node normally has.
const ADDRESSES_MAX: usize = 4;

impl HostName {
    /// Creates the name of a host, like `"redis-1.lan"`, or its address as text. Asks for nothing.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            question: Signal::new(),
            answer: Signal::new(),
        }
    }

    async fn answer_questions(&self, stack: Stack<'_>) {
        loop {
            self.question.wait().await;
            let asked_again = AskAgain(&self.question);
            let mut addresses = look_up(stack, self.name, DnsQueryType::A).await;
            if addresses.is_empty() {
                addresses = look_up(stack, self.name, DnsQueryType::Aaaa).await;
            }
            core::mem::forget(asked_again);
            self.answer.signal(addresses);
        }
    }
}

/// Asks a question again if the future that looks for the answer is dropped.
struct AskAgain<'a>(&'a Signal<NoopRawMutex, ()>);

impl Drop for AskAgain<'_> {
    fn drop(&mut self) {
        self.0.signal(());
    }
}

/// Asks the name servers of `stack` for the addresses of `names`, whenever their sockets connect. Never returns: run it in a
/// task of its own, or beside the `Runner` of the stack.
///
/// It is a task because embassy-net cancels a question when its future is dropped, and a round drops the attempts that are
/// slower than itself. While it does not run, the sockets find no address.
///
/// The names are asked for side by side, four at a time, each at an address of version 4 first. embassy-net gives a name server
/// 10 s, and keeps only the first address of an answer, unless the firmware is built with the environment variable
/// `SMOLTCP_DNS_MAX_RESULT_COUNT`.
///
/// Dropping the future cancels the questions. A later call answers them.
pub async fn resolve<const N: usize>(stack: Stack<'_>, names: &[HostName; N]) -> ! {
    let all = names.each_ref().map(|name| name.answer_questions(stack));
    join_array(all).await;
    pending().await
}

async fn look_up(stack: Stack<'_>, name: &str, kind: DnsQueryType) -> Addresses {
    let found = stack.dns_query(name, kind).await;
    // The stack cannot connect to any other address, whatever the name server says.
    let found = found.into_iter().flatten();
    found
        .filter(IpAddress::is_unicast)
        .take(ADDRESSES_MAX)
        .collect()
}

impl fmt::Debug for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HostName").field(&self.name).finish()
    }
}

/// The host of one socket, with the addresses of the last answer.
#[derive(Debug)]
pub(super) struct Host<'a> {
    name: &'a HostName,
    port: u16,
    addresses: Addresses,
    /// The index of the address that is tried next. If there is none, the name is asked for again.
    next: usize,
    /// The address at which a node accepted a login last. Otherwise a new connection would begin with an address that is dead,
    /// again and again.
    proven: Option<IpAddress>,
    /// The answer to a question is outstanding. The call that asked may have been dropped.
    is_asking: bool,
    /// An attempt to connect ended before its question was answered.
    has_cancelled: bool,
    /// When the question of the present attempt was asked, and when it was answered.
    asked_at: Instant,
    answered_at: Option<Instant>,
}

impl<'a> Host<'a> {
    pub(super) const fn new(name: &'a HostName, port: u16) -> Self {
        Self {
            name,
            port,
            addresses: Vec::new(),
            next: 0,
            proven: None,
            is_asking: false,
            has_cancelled: false,
            asked_at: Instant::MIN,
            answered_at: None,
        }
    }

    pub(super) fn node_name(&self) -> NodeName {
        NodeName::of_host(self.name.name, self.port, !self.addresses.is_empty())
    }

    pub(super) fn has_untried_address(&self) -> bool {
        self.next < self.addresses.len()
    }

    /// Whether the answer to a question is outstanding.
    pub(super) const fn is_asking(&self) -> bool {
        self.is_asking
    }

    /// Returns the next address to try. If all were tried, asks for the name again. If there is no answer, the addresses of the
    /// last one are tried again: a node can be reached while the name servers are down. `None` if none was ever known.
    ///
    /// If the future is dropped, the next call waits for the same answer.
    pub(super) async fn next_address(&mut self) -> Option<IpEndpoint> {
        if !self.has_untried_address() {
            if !self.is_asking {
                // Otherwise a name that takes longer than an attempt would never be found.
                let is_answered = self.has_cancelled && self.name.answer.signaled();
                if !is_answered {
                    self.name.answer.reset();
                    self.name.question.signal(());
                }
                self.is_asking = true;
                self.asked_at = Instant::now();
            }
            let answer = self.name.answer.wait().await;
            self.is_asking = false;
            self.has_cancelled = false;
            self.answered_at = Some(Instant::now());
            self.next = 0;
            if !answer.is_empty() {
                self.addresses = answer;
            }
            self.begin_with_proven();
        }
        let address = self.addresses.get(self.next)?;
        self.next += 1;
        Some(IpEndpoint::new(*address, self.port))
    }

    /// Moves the proven address to the front, if the name still has it. The others keep their order.
    fn begin_with_proven(&mut self) {
        let is_proven = |address: &IpAddress| Some(*address) == self.proven;
        if let Some(index) = self.addresses.iter().position(is_proven)
            && let Some(until_proven) = self.addresses.get_mut(..=index)
        {
            until_proven.rotate_right(1);
        }
    }

    /// Records that a node has accepted the login at `address`. An answer alone does not prove it: what refuses a later step of the
    /// login answers too, and so does a proxy that has lost its server. The next connection begins with a question: the address
    /// may change.
    pub(super) fn logged_in(&mut self, address: IpAddress) {
        self.has_cancelled = false;
        self.answered_at = None;
        self.proven = Some(address);
        self.next = self.addresses.len();
    }

    /// Ends the attempt. The next one does not wait for the answer to the same question: it is made with the addresses that are
    /// known, if there are any. If the answer took most of the attempt, the same address is tried again.
    pub(super) fn cancel(&mut self) {
        if self.is_asking {
            self.is_asking = false;
            self.has_cancelled = true;
            self.next = 0;
            self.begin_with_proven();
        } else if let Some(answered_at) = self.answered_at
            && answered_at.elapsed() < answered_at.saturating_duration_since(self.asked_at)
        {
            self.next = self.next.saturating_sub(1);
        }
        self.answered_at = None;
    }
}
