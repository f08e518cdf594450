//! A gateway that tells a robot to clean the dock "dock-7" while none of the machines of `examples/boards` uses it. A server and a
//! microcontroller exclude each other: the key, the nodes and the node timeout are the same.
//!
//! `REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3 cargo run --example gateway`

#![expect(clippy::print_stdout, reason = "an example prints")]

use std::env;
use std::error::Error;
use std::time::Duration;

use redlock_std::{Guard, Options, Redlock};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes =
        env::var("REDLOCK_NODES").map_err(|_| "set REDLOCK_NODES to the URLs of the nodes")?;
    let options = Options::new(Duration::from_secs(10))?
        // That of the machines, whose radio is slower than this server's network.
        .node_timeout(Duration::from_millis(250))?
        // A machine needs 15 s, and more than one may be in the line.
        .wait(Duration::from_secs(120));
    let redlock = Redlock::connect(nodes.split(','), options)?;

    redlock.hold("dock-7", clean).await?;
    println!("dock-7: clean");
    redlock.close().await;
    Ok(())
}

/// If the lock is lost, this is dropped, and the robot stops.
async fn clean(guard: &Guard) {
    println!("dock-7: ours after {} s", guard.waited().as_secs());
    let _robot = Robot;
    for _ in 0..3 {
        sleep(Duration::from_secs(1)).await;
    }
}

/// Works while it exists.
struct Robot;

impl Drop for Robot {
    fn drop(&mut self) {
        println!("dock-7: the robot has stopped");
    }
}
