//! Scripts that another client of the servers makes them forget.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlock_core::mock::SeededEntropy;
use redlock_core::{Fencing, Options, Redlock};
use redlock_embassy::TcpNode;
use redlock_std::SystemClock;
use redlock_tests::{Servers, TokioStream};

use crate::address;

#[tokio::test(flavor = "multi_thread")]
async fn a_device_takes_every_fenced_lock_while_another_client_flushes_the_scripts_every_20_ms() {
    let servers = Servers::start(3);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for server in servers.iter() {
            let client = redis::Client::open(server.url()).unwrap();
            let mut connection = client.get_connection().unwrap();
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let flush = redis::cmd("SCRIPT").arg("FLUSH").take();
                    flush.exec(&mut connection).unwrap();
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
        let (taken, failed) = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(lock_for(Duration::from_secs(2), &servers))
        });
        is_over.store(true, Ordering::Relaxed);
        assert!(taken > 100 && failed.is_empty(), "{taken}, {failed:?}");
    });
}

/// Acquires and releases, one lock after the other: how many were taken, and why others were not.
async fn lock_for(time: Duration, servers: &Servers) -> (usize, Vec<String>) {
    let options = Options::new(Duration::from_secs(10)).unwrap();
    let options = options.wait(Duration::from_secs(1));
    let options = options.fenced(Fencing::default()).unwrap();
    let nodes = servers
        .iter()
        .map(|server| TcpNode::<_, _, 512>::new(TokioStream::new(address(server)), SystemClock));
    let entropy = SeededEntropy::new(1);
    let mut redlock = Redlock::<_, _, _, 3>::new(nodes, SystemClock, entropy, options).unwrap();
    let (mut taken, mut failed) = (0, Vec::new());
    let end = Instant::now() + time;
    while Instant::now() < end {
        match redlock.acquire("dock-7").await {
            Ok(lease) => {
                taken += 1;
                redlock.release(lease).await;
            }
            Err(error) => failed.push(error.to_string()),
        }
    }
    (taken, failed)
}
