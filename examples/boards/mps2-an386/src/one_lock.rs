//! The smallest firmware with the lock: takes it once, extends it, gives it back. To be measured.

use core::time::Duration;

use embassy_executor::Spawner;
use embassy_net::Stack;
use redlock_embassy::Options;

use crate::board::Exit;
use crate::lock;
use crate::network::NODES;

pub(crate) async fn run(_spawner: Spawner, stack: Stack<'static>) -> Exit {
    let lock = lock::over(PORTS, stack, OPTIONS);
    let Ok(mut lease) = lock.acquire("dock-7").await else {
        return Exit::Failed;
    };
    let is_extended = lock.extend(&mut lease).await.is_ok();
    let released = lock.release(lease).await.released();
    lock::close(lock).await;
    if is_extended && released > NODES / 2 {
        Exit::Passed
    } else {
        Exit::Failed
    }
}

const OPTIONS: Options = match Options::new(Duration::from_secs(10)) {
    Ok(options) => options,
    Err(_) => panic!("a TTL of 10 s is long enough"),
};

/// The ports of README.md's example.
const PORTS: [u16; NODES] = [17101, 17102, 17103, 17104, 17105];
