//! Several leases of a shared lock whose futures are dropped together, between real stacks.

use core::cell::Cell;
use core::future::pending;

use embassy_futures::join::join4;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use embassy_time::with_timeout;
use redlock_core::Redlock;
use redlock_core::mock::SeededEntropy;
#[cfg(feature = "queue")]
use redlock_core::transport::Mailbox;
use redlock_embassy::{EmbassyClock, NetSocket, Options, Shared, TcpNode};

use crate::lan::lan;
use crate::world::*;

type Node<const TX: usize> = TcpNode<'static, NetSocket<'static>, EmbassyClock, TX>;

fn four_holds_that_are_dropped_together_leave_no_key<const TX: usize>(
    with_options: impl Fn(Node<TX>) -> Node<TX>,
) {
    for len in [1, 24, 64] {
        // The servers have no script yet.
        let (servers, mut lan) = lan::<3>();
        let options = Options::new(ms(60_000)).unwrap().wait(ms(5_000));
        let options = options.node_timeout(ms(250)).unwrap();
        let nodes = [0, 1, 2].map(|node| {
            let socket = lan.socket_with_tx::<256>(node);
            with_options(TcpNode::new(socket, EmbassyClock))
        });
        let redlock =
            Redlock::<_, _, _, 3>::new(nodes, EmbassyClock, SeededEntropy::new(1), options);
        let shared = Shared::<NoopRawMutex, _, _, _, 3>::new(redlock.unwrap());
        let keys = ["a", "b", "c", "d"].map(|letter| letter.repeat(len));
        let held = Cell::new(0);
        let hold = |key: usize| {
            let work = async |_: &_| {
                held.set(held.get() + 1);
                pending::<()>().await;
            };
            shared.hold(&keys[key], work)
        };
        let holds = join4(hold(0), hold(1), hold(2), hold(3));
        let dropped = with_timeout(embassy_time::Duration::from_secs(2), holds);
        assert!(lan.run(dropped).is_err());
        assert_eq!(held.get(), 4);
        lan.run(shared.release_abandoned());
        lan.idle(ms(500));
        // Of another task, for another key.
        let lease = lan.run(shared.acquire("next")).unwrap();
        lan.run(shared.release(lease));
        lan.idle(ms(500));
        for key in &keys {
            let tokens = servers
                .each_ref()
                .map(|server| server.token(key.as_bytes()));
            assert_eq!(tokens, [const { None }; 3], "{key}");
        }
    }
}

#[test]
fn four_holds_that_are_dropped_together_leave_no_key_on_nodes_with_small_buffers() {
    four_holds_that_are_dropped_together_leave_no_key::<256>(|node| node);
}

#[test]
#[cfg(feature = "queue")]
fn four_holds_that_are_dropped_together_leave_no_key_on_servers_that_lack_the_script() {
    four_holds_that_are_dropped_together_leave_no_key::<512>(|node| {
        node.with_mailbox(Mailbox::new([7; 8]))
    });
}
