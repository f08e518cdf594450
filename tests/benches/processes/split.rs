//! Three clients that try once at the same moment, each of them near another server.

use std::time::Duration;

use redlock_std::{Options, Redlock};
use redlock_tests::{Proxy, Servers};

use crate::runtime;

const TRIALS: usize = 200;

/// How far the servers are, one way.
const WAYS: [Duration; 3] = [
    Duration::from_micros(250),
    Duration::from_micros(2_500),
    Duration::from_millis(10),
];

pub(crate) fn run() {
    let servers = Servers::start(3);
    runtime().block_on(async {
        let mut proxies = Vec::new();
        let mut clients = Vec::new();
        for number in 0..3 {
            let mut urls = Vec::new();
            for (other, server) in servers.iter().enumerate() {
                let proxy = Proxy::start(server, WAYS[(3 + other - number) % 3]).await;
                urls.push(proxy.url());
                proxies.push(proxy);
            }
            let options = Options::new(Duration::from_secs(10)).unwrap();
            clients.push(Redlock::connect(urls, options.wait(Duration::ZERO)).unwrap());
        }
        for client in &clients {
            while client.try_acquire("set-up").await.is_err() {}
        }
        let mut won = 0;
        for trial in 0..TRIALS {
            let key = format!("job-{trial}");
            let (first, second, third) = tokio::join!(
                clients[0].try_acquire(&key),
                clients[1].try_acquire(&key),
                clients[2].try_acquire(&key)
            );
            let holders = [first, second, third].iter().filter(|it| it.is_ok()).count();
            assert!(holders <= 1, "{key}: {holders} hold the lock");
            won += holders;
        }
        println!("three clients, each near another server, try once: one wins in {won} of {TRIALS} trials, never two");
    });
}
