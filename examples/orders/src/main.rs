//! The service as a process.
//!
//! ```sh
//! export REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
//! export DATABASE_URL=postgres://shop@10.0.0.4/shop PAYMENTS_URL=http://10.0.0.5
//! cargo run --bin orders
//! ```

#![expect(clippy::print_stdout, reason = "it says where it listens")]

use std::env;
use std::error::Error;
use std::future::IntoFuture as _;
use std::time::Duration;

use redlock_example_orders::ledger::Postgres;
use redlock_example_orders::payments::HttpPayments;
use redlock_example_orders::schema;
use redlock_example_orders::service::{self, Shop};
use redlock_std::{Fencing, Options, Redlock};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_postgres::NoTls;

/// For how long requests may go on when the process is to end. One whose client never sends its last byte would never end.
const GRACE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let nodes = setting("REDLOCK_NODES")?;
    // A request would rather fail than wait for long.
    let options = Options::new(Duration::from_secs(5))?
        .fenced(Fencing::default())?
        .wait(Duration::from_secs(2));
    let redlock = Redlock::connect(nodes.split(','), options)?;

    let (mut client, connection) =
        tokio_postgres::connect(&setting("DATABASE_URL")?, NoTls).await?;
    let connection = tokio::spawn(connection);
    let patient = redlock.with_options(options.wait(Duration::from_secs(120)));
    schema::migrate(&patient, &mut client).await?;

    let shop = Shop {
        redlock: redlock.clone(),
        ledger: Postgres::new(client).await?,
        payments: HttpPayments::new(setting("PAYMENTS_URL")?),
    };
    let address = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let listener = TcpListener::bind(address).await?;
    let mut terminate = signal(SignalKind::terminate())?;
    println!("listening on http://{}", listener.local_addr()?);
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = axum::serve(listener, service::router(shop))
        .with_graceful_shutdown(async { drop(stopped.await) });
    let serving = tokio::spawn(serving.into_future());
    let why: Result<(), Box<dyn Error>> = tokio::select! {
        _told = terminate.recv() => Ok(()),
        // The process ends with an error, so that its supervisor starts it again.
        _ended = connection => Err("the database has closed the connection".into()),
    };
    drop(stop);
    let _late = timeout(GRACE, serving).await;

    // What the last requests released is sent before the process ends.
    redlock.close().await;
    why
}

fn setting(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("set {name}"))
}
