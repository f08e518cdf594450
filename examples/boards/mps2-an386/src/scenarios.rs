//! The scenarios of the host's test suite: one per run. The results are for a program to read.

mod contend;
mod outage;
mod share;
mod sizes;
mod speed;
mod tls;
mod wait;

mod arguments;
mod control;
mod failure;

use embassy_executor::Spawner;
use embassy_net::Stack;
use semihosting::println;

use crate::board::Exit;
use crate::lock::{self, Lock};

use arguments::{Arguments, Scenario};
use control::Control;
use failure::Failure;

pub(crate) async fn run(spawner: Spawner, stack: Stack<'static>) -> Exit {
    match play(spawner, stack).await {
        Ok(()) => Exit::Passed,
        Err(failure) => {
            println!("failure={failure}");
            Exit::Failed
        }
    }
}

async fn play(spawner: Spawner, stack: Stack<'static>) -> Result<(), Failure> {
    let arguments = Arguments::read()?;
    let control = Control::connect(stack, arguments.control);
    if matches!(arguments.scenario, Scenario::Share) {
        let lock = lock::shared_over(arguments.nodes, stack, arguments.options);
        return share::run(lock, control.await?, &arguments).await;
    }
    if matches!(arguments.scenario, Scenario::Tls) {
        return tls::run(spawner, stack, control.await?, &arguments).await;
    }
    let lock = lock::over(arguments.nodes, stack, arguments.options);
    match arguments.scenario {
        Scenario::Contend => contend::run(spawner, lock, control.await?, &arguments).await,
        Scenario::Speed => speed::run(lock, control.await?, &arguments).await,
        Scenario::Outage => outage::run(lock, control.await?, &arguments).await,
        Scenario::Wait => wait::run(lock, control.await?, &arguments).await,
        Scenario::Sizes | Scenario::Share | Scenario::Tls => {
            sizes::print(lock);
            Ok(())
        }
    }
}

/// Ends a scenario without open connections. The host checks this while the firmware still runs.
async fn finish(lock: &mut Lock, control: &mut Control) -> Result<(), Failure> {
    lock::close(lock).await;
    println!("closed=1");
    control.expect_order("exit").await?;
    control.close().await;
    Ok(())
}
