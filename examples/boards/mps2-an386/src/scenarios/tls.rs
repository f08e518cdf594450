//! A lock over TLS: taken and released, or refused because a server is not the right one.

use embassy_executor::Spawner;
use embassy_net::Stack;
use embassy_time::Instant;
use heapless::Vec;
use redlock_embassy::{close_all, connect_all};
use redlock_embassy_tls::TlsOptions;
use semihosting::println;
use static_cell::ConstStaticCell;

use super::Failure;
use super::arguments::Arguments;
use super::control::Control;
use crate::tls;

/// Room for the certificate of a CA.
const CA_MAX: usize = 1_024;

pub(crate) async fn run(
    spawner: Spawner,
    stack: Stack<'static>,
    mut control: Control,
    arguments: &Arguments,
) -> Result<(), Failure> {
    static CA: ConstStaticCell<Vec<u8, CA_MAX>> = ConstStaticCell::new(Vec::new());

    // A device has it in its flash. Here, the test has made it.
    let ca = CA.take();
    while let Some(piece) = control.ask(&["LPOP", "ca"]).await? {
        read_hex(&piece, ca).ok_or(Failure::Control("a CA that is no hexadecimal number"))?;
    }
    let options = TlsOptions::new(ca, "redis.example");
    let options = options.map_err(|_| Failure::Control("a CA that is no certificate"))?;
    let lock = tls::over(spawner, arguments.nodes, stack, arguments.options, &options);
    let start = Instant::now();
    connect_all(lock).await;
    println!("connected_us={}", start.elapsed().as_micros());
    for node in lock.nodes_mut() {
        if let Some(failure) = node.stream_mut().failure() {
            println!("refused={failure}");
        }
    }
    match lock.acquire(arguments.key.as_str()).await {
        Ok(lease) => {
            println!("acquired=1");
            control.expect_order("release").await?;
            println!("released={}", lock.release(lease).await.released());
        }
        Err(error) => println!("message={error}"),
    }
    close_all(lock).await;
    println!("closed=1");
    control.expect_order("exit").await?;
    control.close().await;
    Ok(())
}

fn read_hex(text: &str, bytes: &mut Vec<u8, CA_MAX>) -> Option<()> {
    for at in (0..text.len()).step_by(2) {
        let byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
        bytes.push(byte).ok()?;
    }
    Some(())
}
