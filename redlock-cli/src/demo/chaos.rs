//! Makes nodes fail and recover, a minority of them at a time.

use std::rc::Rc;

use tokio::task::spawn_local;
use tokio::time::sleep;

use super::fault::Fault;
use super::random::Random;
use super::world::World;

/// Makes nodes fail until the future is dropped.
pub(crate) async fn chaos(world: Rc<World>, mut random: Random) {
    loop {
        sleep(random.between_ms(100, 500)).await;
        let healthy: Vec<_> = world.healthy().collect();
        let failing = world.nodes().count() - healthy.len();
        if failing >= world.minority() {
            continue;
        }
        if let Some(number) = random.pick(healthy)
            && let Some(fault) = random.pick(Fault::ALL)
        {
            spawn_local(strike(fault, number, Rc::clone(&world), random.fork()));
        }
    }
}

async fn strike(fault: Fault, number: usize, world: Rc<World>, mut random: Random) {
    let Some(node) = world.break_down(number, fault) else {
        return;
    };
    let time = random.between_ms(100, 600);
    match fault {
        Fault::Hang => node.hang(),
        Fault::Slowness => node.set_latency(random.between_ms(20, 120)),
        Fault::Death | Fault::DataLoss => node.stop(),
    }
    world.say(format_args!(
        "node {number} {}, for {} ms",
        fault.in_words(),
        time.as_millis()
    ));
    sleep(time).await;
    fault.end(&node);
    if fault.is_death() {
        world.say(format_args!("node {number} is back, and has no vote yet"));
        sleep(Fault::WITHOUT_VOTE).await;
        world.recover(number);
        world.say(format_args!("node {number} votes again"));
    } else {
        world.recover(number);
        world.say(format_args!("node {number} is back"));
    }
}
