//! All nodes of a lock at once. The lock owns them, or has references to them.

use core::array;
use core::borrow::BorrowMut;
use core::cell::Cell;
use core::future::poll_fn;
use core::task::Poll;

use embassy_futures::join::join_array;
use embassy_futures::select::select;
use redlock_core::{Clock, Entropy, NodeErrorOf, Observer, Redlock, Transport};

use crate::{Connect, TcpNode};

/// Connects to all nodes of `redlock` side by side, and logs in. Returns how many nodes are connected.
///
/// Takes as long as the slowest node: at most about two [connect timeouts](TcpNode::connect_timeout) if a node answers nothing, and
/// one more for each answer to the login that is slow, and for each 1,024 bytes of a login that is longer. To learn why a
/// node is not connected, call [`TcpNode::connect`].
///
/// If the future is dropped, the attempts continue with the next call, if the streams keep rule 5 of [`Connect`].
pub async fn connect_all<'a, T, S, K, C, E, const N: usize, const TX: usize, const RX: usize, O>(
    redlock: &mut Redlock<T, C, E, N, O>,
) -> usize
where
    T: Transport + BorrowMut<TcpNode<'a, S, K, TX, RX>>,
    S: Connect,
    K: Clock,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    connect(redlock, usize::MAX).await
}

/// Connects to the nodes of `redlock` side by side, and logs in. Returns as soon as a quorum of them is connected, and whether
/// it is. If all nodes are connected, returns at once.
///
/// Call it before an acquire if connecting takes longer than a round. It takes no time off the validity of the lease, and a
/// round need not wait for connections. It waits only until a quorum is connected, so a dead minority costs nothing. If there
/// is no quorum, it takes as long as [`connect_all`].
///
/// If the future is dropped, the attempts continue with the next call, if the streams keep rule 5 of [`Connect`]. When it
/// returns, it drops the attempts of the other nodes in the same way.
pub async fn connect_quorum<
    'a,
    T,
    S,
    K,
    C,
    E,
    const N: usize,
    const TX: usize,
    const RX: usize,
    O,
>(
    redlock: &mut Redlock<T, C, E, N, O>,
) -> bool
where
    T: Transport + BorrowMut<TcpNode<'a, S, K, TX, RX>>,
    S: Connect,
    K: Clock,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    let quorum = redlock.nodes().count() / 2 + 1;
    connect(redlock, quorum).await >= quorum
}

/// Closes all connections of `redlock` side by side, so that the servers notice. Takes at most one second: see
/// [`TcpNode::close`].
///
/// Call it before a stop mode, before the network is switched off, and before the lock is dropped. If the future is dropped,
/// connections may stay open.
pub async fn close_all<'a, T, S, K, C, E, const N: usize, const TX: usize, const RX: usize, O>(
    redlock: &mut Redlock<T, C, E, N, O>,
) where
    T: Transport + BorrowMut<TcpNode<'a, S, K, TX, RX>>,
    S: Connect,
    K: Clock,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    let mut nodes = redlock.nodes_mut();
    join_array(array::from_fn::<_, N, _>(|_| {
        let node = nodes.next();
        async {
            if let Some(node) = node {
                node.borrow_mut().close().await;
            }
        }
    }))
    .await;
}

/// Connects until `count` nodes are connected, or no attempt is left. Returns how many nodes are connected.
async fn connect<'a, T, S, K, C, E, const N: usize, const TX: usize, const RX: usize, O>(
    redlock: &mut Redlock<T, C, E, N, O>,
    count: usize,
) -> usize
where
    T: Transport + BorrowMut<TcpNode<'a, S, K, TX, RX>>,
    S: Connect,
    K: Clock,
    C: Clock,
    E: Entropy,
    O: Observer<NodeErrorOf<T>>,
{
    let connected = Cell::new(0);
    let mut nodes = redlock.nodes_mut();
    let all = join_array(array::from_fn::<_, N, _>(|_| {
        let node = nodes.next();
        async {
            if let Some(node) = node
                && node.borrow_mut().connect().await.is_ok()
            {
                connected.set(connected.get() + 1);
            }
        }
    }));
    // It is polled after the attempts, whenever one of them ends.
    let enough = poll_fn(|_| match connected.get() {
        so_far if so_far >= count => Poll::Ready(()),
        _ => Poll::Pending,
    });
    select(all, enough).await;
    connected.get()
}
